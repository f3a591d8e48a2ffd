/* Where the frame's own code runs after all: transformed code returns that its graph raised, or it is the slower one. */
#include "core.h"

static void
rerun_dealloc(Rerun *self)
{
    Py_CLEAR(self->arguments);
    Py_CLEAR(self->after);
    PyObject_Free(self);
}

/* Lives from the return of transformed code to the hook that called it, in no container: no garbage collection. */
PyTypeObject Rerun_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.Rerun",
    .tp_basicsize = sizeof(Rerun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)rerun_dealloc,
};

/* run_original(arguments, after) */
PyObject *
rerun_ask(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "run_original takes a list and a callable or None");
        return NULL;
    }
    Rerun *rerun = PyObject_New(Rerun, &Rerun_Type);
    if (rerun == NULL) {
        return NULL;
    }
    rerun->arguments = Py_NewRef(args[0]);
    rerun->after = args[1] == Py_None ? NULL : Py_NewRef(args[1]);
    return (PyObject *)rerun;
}

/* Tells `after` whether the frame's own code returned; the exception that is set stays. */
void
rerun_done(PyObject *after, bool returned)
{
    PyObject *pending = take_exception();
    PyObject *told = PyObject_CallOneArg(after, returned ? Py_True : Py_False);
    if (told == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(told);
    put_exception(pending);
}

/* prefer_original(size_class, unless, gain_later=-1) */
PyObject *
rerun_prefer(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long size_class = nargs == 2 || nargs == 3 ? PyLong_AsLong(args[0]) : -2;
    long later = nargs == 3 ? PyLong_AsLong(args[2]) : -1;
    if (PyErr_Occurred() || size_class < -1 || size_class >= NUM_SIZE_CLASSES || later < -1) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "prefer_original takes a class of sizes, a function or None, and nanoseconds");
        }
        return NULL;
    }
    uint64_t classes = size_class < 0 ? UINT64_MAX : (uint64_t)1 << size_class;
    Entry *entry = NULL;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL && entry == NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        CodeCache *cache = cache_get(code);
        entry = cache == NULL ? NULL : cache->stands_for;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    if (entry != NULL) {
        Py_XSETREF(entry->unless, args[1] == Py_None ? NULL : Py_NewRef(args[1]));
        entry->judged |= classes;
        entry->faster |= later >= 0;
        entry->gain_later = Py_MAX(entry->gain_later, (uint64_t)Py_MAX(later, 0));
    }
    if (entry == NULL || entry->whole != WHOLE || later >= 0) {
        Py_RETURN_FALSE;
    }
    entry->outrun |= classes;
    Py_RETURN_TRUE;
}

bool
rerun_unless(PyObject *unless)
{
    if (unless == NULL) {
        return false;
    }
    Py_INCREF(unless);
    int is_set = state_is_set(unless);
    Py_DECREF(unless);
    if (is_set < 0) {
        PyErr_Clear();
    }
    return is_set != 0;
}

bool
rerun_preferred(CodeCache *cache, Entry *entry, const FrameView *view)
{
    if (LIKELY(entry->outrun == 0) || (entry->outrun >> guard_size_class() & 1) == 0) {
        left_alone_not(cache, entry, view);
        return false;
    }
    entry->passed++;
    if (timed_again(entry) || rerun_unless(entry->unless)) {
        return false;
    }
    left_alone_note(cache, entry, view);
    return true;
}

bool
rerun_at_sight(CodeCache *cache, const PyObject *key, const FrameView *view)
{
    return UNLIKELY(cache->left_alone != NULL) && left_alone_now(cache, key, view);
}

#define MOST_IDLE_ROUNDS 1000 /* at some 3 us each */
static _Thread_local unsigned long long graphs_called;

/* Whether an entry that is to run is one round more of a loop that Python runs, many rounds without a graph: then its
 * code is left alone from now on, and the rest of the loop runs as the program wrote it. */
bool
cache_idles(CodeCache *cache, Entry *entry)
{
    graphs_called += entry->graph;
    if (LIKELY(entry->graph || !entry->resumed)) {
        return false;
    }
    if (entry->busy_at != graphs_called) {
        entry->busy_at = graphs_called;
        entry->rounds = 0;
    }
    if (LIKELY(++entry->rounds < MOST_IDLE_ROUNDS) || cache->all_keys != MODE_NONE) {
        return false;
    }
    if (cache_set_mode(cache, entry->key, MODE_SKIP) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}
