/* Regions: calls during which this thread's frames are looked up. */
#include "core.h"
#include "hook_place.h"

static PyObject *exception_filter; /* or NULL: called with each exception that leaves a region with a callback */
static PyObject *code_reader;      /* or NULL: called when somebody asks a region for __code__, which it has not */
static PyObject *trace_state;      /* or NULL: tells the state of torch.jit.trace, None where it is not at work */
static PyObject *trace_reader;     /* called when a region runs while it is; may refuse by raising */
static bool regions_off;           /* regions run as if their callback were None */

/* Hands the exception that is set to the filter, which may shorten its traceback. A filter that fails changes nothing. */
static void
filter_exception(void)
{
    if (exception_filter == NULL) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL && PyException_SetTraceback(value, traceback) < 0) {
        PyErr_Clear();
    }
    PyObject *filter = Py_NewRef(exception_filter);
    PyObject *done = PyObject_CallOneArg(filter, value);
    Py_DECREF(filter);
    if (done == NULL) {
        PyErr_Clear();
    } else {
        Py_XSETREF(traceback, PyException_GetTraceback(value));
        Py_DECREF(done);
    }
    PyErr_Restore(type, value, traceback);
}

static PyObject *
set_exception_filter(PyObject *Py_UNUSED(module), PyObject *filter)
{
    Py_XSETREF(exception_filter, filter == Py_None ? NULL : Py_NewRef(filter));
    Py_RETURN_NONE;
}

static PyObject *
set_tracers(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "set_tracers takes 3 arguments (%zd given)", nargs);
    }
    Py_XSETREF(code_reader, Py_NewRef(args[0]));
    Py_XSETREF(trace_state, Py_NewRef(args[1]));
    Py_XSETREF(trace_reader, Py_NewRef(args[2]));
    Py_RETURN_NONE;
}

/* Whether a region is not to run, since torch.jit.trace would not see what it does; with an exception then. */
static bool
trace_refused(void)
{
    int traced = trace_state == NULL ? 0 : state_is_set(trace_state);
    if (LIKELY(traced == 0)) {
        return false;
    }
    PyObject *told = traced < 0 ? NULL : PyObject_CallNoArgs(trace_reader);
    Py_XDECREF(told);
    return told == NULL;
}

static PyObject *
region_no_code(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *told = code_reader == NULL ? Py_NewRef(Py_None) : PyObject_CallNoArgs(code_reader);
    if (told != NULL) {
        Py_DECREF(told);
        PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '__code__'", Py_TYPE(self)->tp_name);
    }
    return NULL;
}

static PyObject *
set_regions_enabled(PyObject *Py_UNUSED(module), PyObject *enabled)
{
    int on = PyObject_IsTrue(enabled);
    if (on < 0) {
        return NULL;
    }
    bool before = !regions_off;
    regions_off = !on;
    return PyBool_FromLong(before);
}

static PyObject *
run_with_callback(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 3 || nargs > 5) {
        return PyErr_Format(PyExc_TypeError, "run_with_callback takes 3 to 5 arguments (%zd given)", nargs);
    }
    PyObject *fn_args = nargs > 3 ? args[3] : NULL;
    PyObject *fn_kwargs = nargs > 4 && args[4] != Py_None ? args[4] : NULL;
    if (fn_args != NULL && !PyTuple_Check(fn_args)) {
        return PyErr_Format(PyExc_TypeError, "args must be a tuple, not %.100s", Py_TYPE(fn_args)->tp_name);
    }
    if (fn_kwargs != NULL && !PyDict_Check(fn_kwargs)) {
        return PyErr_Format(PyExc_TypeError, "kwargs must be a dict or None, not %.100s", Py_TYPE(fn_kwargs)->tp_name);
    }
    PyObject *callback = args[0] == Py_None || regions_off ? NULL : Py_NewRef(args[0]);
    PyObject *key = callback == NULL ? NULL : Py_NewRef(args[1]);
    bool hooked = callback != NULL;
    hook_swap_state(&callback, &key);
    PyObject *result =
        fn_args == NULL ? PyObject_CallNoArgs(args[2]) : PyObject_Call(args[2], fn_args, fn_kwargs);
    hook_swap_state(&callback, &key);
    if (UNLIKELY(result == NULL) && hooked) {
        filter_exception();
    }
    Py_XDECREF(callback);
    Py_XDECREF(key);
    return result;
}

static PyObject *
set_callback(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 2) {
        return PyErr_Format(PyExc_TypeError, "set_callback takes 1 or 2 arguments (%zd given)", nargs);
    }
    PyObject *old = PyTuple_New(2);
    if (old == NULL) {
        return NULL;
    }
    PyObject *callback = args[0] == Py_None ? NULL : Py_NewRef(args[0]);
    PyObject *key = callback == NULL ? NULL : Py_NewRef(nargs > 1 ? args[1] : Py_None);
    hook_swap_state(&callback, &key);
    PyTuple_SET_ITEM(old, 0, callback == NULL ? Py_NewRef(Py_None) : callback);
    PyTuple_SET_ITEM(old, 1, key == NULL ? Py_NewRef(Py_None) : key);
    return old;
}

static PyObject *
size_class(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(guard_size_class());
}

PyMethodDef hook_methods[] = {
    {"run_with_callback", (PyCFunction)(void (*)(void))run_with_callback, METH_FASTCALL,
     "run_with_callback(callback, key, fn, args=(), kwargs=None, /)\n--\n\n"
     "Calls fn with this thread's frames answered by callback under key."},
    {"set_callback", (PyCFunction)(void (*)(void))set_callback, METH_FASTCALL,
     "set_callback(callback, key=None, /)\n--\n\nSets this thread's callback and key; returns the pair before."},
    {"take_inputs", hook_take_inputs, METH_NOARGS,
     "take_inputs()\n--\n\nThe values that the guards of the entry that is starting have collected."},
    {"call_with_inputs", hook_call_with_inputs, METH_O,
     "call_with_inputs(fn, /)\n--\n\nfn(*take_inputs()), whose arguments only the callee holds."},
    {"get_callback", hook_get_callback, METH_NOARGS, "get_callback()\n--\n\nThis thread's (callback, key)."},
    {"call_with_list", (PyCFunction)(void (*)(void))hook_call_with_list, METH_FASTCALL,
     "call_with_list(fn, arguments, /)\n--\n\nCalls fn; the list is emptied, only the callee holds its items."},
    {"call_in_place", (PyCFunction)(void (*)(void))hook_call_in_place, METH_FASTCALL,
     "call_in_place(fn, arguments, /)\n--\n\nAs call_with_list, without the calling frame on the stack meanwhile."},
    {"run_original", (PyCFunction)(void (*)(void))rerun_ask, METH_FASTCALL,
     "run_original(arguments, after, /)\n--\n\nFor transformed code to return: run the frame's own code instead."},
    {"prefer_original", (PyCFunction)(void (*)(void))rerun_prefer, METH_FASTCALL,
     "prefer_original(size_class, unless, /)\n--\n\nThe frame's own code runs in later calls instead of the code that calls."},
    {"size_class", size_class, METH_NOARGS,
     "size_class()\n--\n\nHow large the call that began last is, by the sizes that vary."},
    {"new_frame", (PyCFunction)(void (*)(void))frame_new, METH_FASTCALL,
     "new_frame(code, globals, /)\n--\n\nA frame for tracebacks to show, which never runs."},
    {"set_exception_filter", set_exception_filter, METH_O,
     "set_exception_filter(filter, /)\n--\n\nfilter(exception) is called for exceptions that leave a region; None: nobody."},
    {"set_tracers", (PyCFunction)(void (*)(void))set_tracers, METH_FASTCALL,
     "set_tracers(code_reader, trace_state, trace_reader, /)\n--\n\nWho is asked when a tracer takes hold of a region."},
    {"set_regions_enabled", set_regions_enabled, METH_O,
     "set_regions_enabled(enabled, /)\n--\n\nFalse: regions run as if their callback were None. Returns the setting before."},
    {"is_hook_installed", hook_is_installed, METH_NOARGS,
     "is_hook_installed()\n--\n\nWhether the interpreter's eval-frame function is argand's at this moment."},
    {NULL},
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callback; /* NULL: capture off inside */
    PyObject *key, *fn, *dict, *weakrefs;
} Region;

/* Whether a hook of another package sees frames too, above ours or below. */
static bool
other_hook_is_there(void)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    if (LIKELY(current == _PyEval_EvalFrameDefault)) {
        return false;
    }
    return current != hook_eval_frame || hook_base != _PyEval_EvalFrameDefault;
}

/* Calls a region's function within another compiler's region: that one is off inside, or it would compile the code that we
 * compiled. It takes itself out of the chain of hooks, so ours leaves before and comes back after. */
static PyObject *
call_without_other_compiler(PyObject *fn, PyObject **callback, PyObject **key, PyObject *const *args, size_t nargsf,
                            PyObject *kwnames)
{
    PyObject *outer_callback = NULL, *outer_key = NULL;
    hook_swap_state(&outer_callback, &outer_key);
    PyObject *others = other_compiler_off();
    hook_swap_state(callback, key);
    PyObject *result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
    hook_swap_state(callback, key);
    other_compiler_on(others);
    hook_swap_state(&outer_callback, &outer_key);
    Py_XDECREF(outer_callback);
    Py_XDECREF(outer_key);
    return result;
}

static PyObject *
region_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Region *self = (Region *)callable;
    PyObject *callback = UNLIKELY(regions_off) ? NULL : Py_XNewRef(self->callback);
    PyObject *key = callback == NULL ? NULL : Py_NewRef(self->key);
    PyObject *fn = Py_NewRef(self->fn);
    bool hooked = callback != NULL;
    PyObject *result;
    if (UNLIKELY(hooked && trace_refused())) {
        result = NULL;
    }
    else if (UNLIKELY(hooked && other_hook_is_there())) {
        result = call_without_other_compiler(fn, &callback, &key, args, nargsf, kwnames);
    }
    else {
        hook_swap_state(&callback, &key);
        result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
        hook_swap_state(&callback, &key);
    }
    if (UNLIKELY(result == NULL) && hooked) {
        filter_exception();
    }
    Py_XDECREF(callback);
    Py_XDECREF(key);
    Py_DECREF(fn);
    return result;
}

PyObject *
region_uncaptured_fn(PyObject *obj)
{
    return Py_IS_TYPE(obj, &Region_Type) && ((Region *)obj)->callback == NULL ? ((Region *)obj)->fn : NULL;
}

static PyObject *
region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"callback", "key", "fn", NULL};
    PyObject *callback, *key, *fn;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:Region", names, &callback, &key, &fn)) {
        return NULL;
    }
    if (!PyCallable_Check(fn) || (callback != Py_None && !PyCallable_Check(callback))) {
        PyErr_SetString(PyExc_TypeError, "Region: fn must be callable, callback must be callable or None");
        return NULL;
    }
    Region *self = (Region *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = region_vectorcall;
    self->callback = callback == Py_None ? NULL : Py_NewRef(callback);
    self->key = Py_NewRef(key);
    self->fn = Py_NewRef(fn);
    return (PyObject *)self;
}

static int
region_traverse(Region *self, visitproc visit, void *arg)
{
    Py_VISIT(self->callback);
    Py_VISIT(self->key);
    Py_VISIT(self->fn);
    Py_VISIT(self->dict);
    return 0;
}

static int
region_clear(Region *self)
{
    Py_CLEAR(self->dict);
    return 0; /* fn, key and callback stay: a cleared region must not crash when called by a finalizer */
}

static void
region_dealloc(Region *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_CLEAR(self->dict);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->key);
    Py_CLEAR(self->fn);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
region_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    return obj == NULL || obj == Py_None ? Py_NewRef(self) : PyMethod_New(self, obj);
}

static PyObject *
region_repr(Region *self)
{
    return PyUnicode_FromFormat("<argand region of %R>", self->fn);
}

static PyMemberDef region_members[] = {
    {"callback", T_OBJECT, offsetof(Region, callback), READONLY, NULL},
    {"key", T_OBJECT, offsetof(Region, key), READONLY, NULL},
    {"fn", T_OBJECT, offsetof(Region, fn), READONLY, NULL},
    {NULL},
};

static PyGetSetDef region_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__code__", region_no_code, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject Region_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.Region",
    .tp_doc = "Region(callback, key, fn)\n--\n\nCalls fn with this thread's frames answered by callback under key.",
    .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = region_new,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_repr = (reprfunc)region_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Region, vectorcall),
    .tp_dictoffset = offsetof(Region, dict),
    .tp_weaklistoffset = offsetof(Region, weakrefs),
    .tp_descr_get = region_get,
    .tp_members = region_members,
    .tp_getset = region_getset,
};
