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

/* prefer_original(size_class, unless) */
PyObject *
rerun_prefer(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long size_class = nargs == 2 ? PyLong_AsLong(args[0]) : -1;
    if (size_class < 0 || size_class >= NUM_SIZE_CLASSES) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "prefer_original takes a class of sizes and a function or None");
        }
        return NULL;
    }
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
    if (entry == NULL || !entry->whole) {
        Py_RETURN_FALSE;
    }
    Py_XSETREF(entry->unless, args[1] == Py_None ? NULL : Py_NewRef(args[1]));
    entry->outrun |= (uint64_t)1 << size_class;
    Py_RETURN_TRUE;
}

bool
rerun_preferred(Entry *entry)
{
    if (LIKELY(entry->outrun == 0) || (entry->outrun >> guard_size_class() & 1) == 0) {
        return false;
    }
    if (entry->unless == NULL) {
        return true;
    }
    int is_set = state_is_set(entry->unless);
    if (is_set < 0) {
        PyErr_Clear();
    }
    return is_set == 0;
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
