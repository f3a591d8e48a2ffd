/* Where the frame's own code runs after all: transformed code returns that its graph raised, or it is the slower one. */
#include "core.h"

static void
rerun_dealloc(Rerun *self)
{
    Py_CLEAR(self->arguments);
    Py_CLEAR(self->after);
    PyObject_Free(self);
}

/* A frame whose graph breaks is run in parts, each of which costs something, and what its graphs gain may be less. Who calls
 * them is not known when they are compared with eager's kernels, so that is added up over runs of the frame: of all that runs
 * in it, compiled, on the way. */
#define MUCH 1000000000   /* ns: of graphs that were compared with nothing, of what is captured on the way */
#define PART 700          /* ns: guards, the call of the graph, the call of what comes next */
#define IDLE_RUNS 16
static _Thread_local uint64_t gained, parts, judged_graphs, unless_graphs;
static _Thread_local PyObject *last_unless; /* strong or NULL */

void
trial_note_gain(void)
{
    gained += MUCH;
}

Trial
trial_begin(Entry *entry)
{
    int size_class = guard_size_class();
    Trial trial = {NULL, gained, parts, judged_graphs, unless_graphs, size_class};
    if (entry->whole == IN_PART && !entry->resumed && entry->idle >= 0) {
        trial.entry = (Entry *)Py_NewRef(entry);
    }
    bool judged = entry->graph && (entry->judged >> size_class & 1) != 0;
    parts++;
    judged_graphs += judged;
    if (judged && entry->unless != NULL) {
        unless_graphs++;
        Py_XSETREF(last_unless, Py_NewRef(entry->unless));
    }
    gained += entry->whole == NOT_ALIKE || (entry->graph && !judged) ? MUCH : judged ? entry->gain : 0;
    return trial;
}

PyObject *
trial_end(Trial trial, PyObject *result)
{
    Entry *entry = trial.entry;
    if (entry == NULL) {
        return result;
    }
    bool gains = gained - trial.gained >= (parts - trial.parts) * PART;
    if (gains && entry->outrun != 0) {
        entry->outrun = 0;
        entry->idle = -1;
    }
    else if (gains || result == NULL || judged_graphs == trial.judged || entry->idle_class != trial.size_class) {
        entry->idle = 0;
        entry->idle_class = trial.size_class;
    }
    else if (++entry->idle >= IDLE_RUNS) {
        entry->idle = 0;
        entry->outrun |= (uint64_t)1 << trial.size_class;
        if (unless_graphs > trial.unless) {
            Py_XSETREF(entry->unless, Py_NewRef(last_unless));
        }
    }
    Py_DECREF(entry);
    return result;
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

/* prefer_original(size_class, unless, gain=0) */
PyObject *
rerun_prefer(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long size_class = nargs == 2 || nargs == 3 ? PyLong_AsLong(args[0]) : -2;
    long gain = nargs == 3 ? PyLong_AsLong(args[2]) : 0;
    if (PyErr_Occurred() || size_class < -1 || size_class >= NUM_SIZE_CLASSES || gain < 0) {
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
        entry->gain = (unsigned)Py_MAX(entry->gain, Py_MIN(gain, MUCH));
    }
    if (entry == NULL || entry->whole != WHOLE || gain > 0) {
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
    judged_graphs++;
    if ((++entry->passed % TRIED_AGAIN == 0 && entry->whole == IN_PART) || rerun_unless(entry->unless)) {
        return false;
    }
    left_alone_note(cache, entry, view);
    return true;
}

bool
rerun_at_sight(CodeCache *cache, const PyObject *key, const FrameView *view)
{
    if (LIKELY(cache->left_alone == NULL) || !left_alone_now(cache, key, view)) {
        return false;
    }
    judged_graphs++;
    return true;
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
