/* Ranges in torch's profiler (see profile.h). */
#include "profile.h"

PyObject *profiler_space = NULL;
Tracked profiler_seen = {NULL, 0};
bool profiler_ran = false;

static PyObject *profiler_flag = NULL;  /* name of the variable in profiler_space */
static PyObject *range_type = NULL;     /* range_type(name, values) is a context manager */
static PyObject *kernels_wanted = NULL; /* kernels_wanted(): whether each kernel gets a range */

/* Reads the variable anew. */
bool
profiler_look(void)
{
    tracked_end(&profiler_seen);
    tracked_begin(&profiler_seen, profiler_space);
    PyObject *pending = take_exception();
    PyObject *flag = PyDict_GetItemWithError(profiler_space, profiler_flag);
    int on = flag == NULL ? 0 : PyObject_IsTrue(flag);
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
    put_exception(pending);
    profiler_ran = on > 0;
    return profiler_ran;
}

/* Calls one of the functions above, or a range's method, with capture off: where it is Python code, it is not the program's.
 * NULL without an exception when it raises. */
static PyObject *
call_aside(PyObject *callable, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *pending = take_exception(), *callback = NULL, *key = NULL;
    hook_swap_state(&callback, &key);
    PyObject *result = PyObject_Vectorcall(callable, args, nargs, NULL);
    hook_swap_state(&callback, &key);
    Py_XDECREF(callback);
    Py_XDECREF(key);
    if (result == NULL) {
        PyErr_Clear();
    }
    put_exception(pending);
    return result;
}

static PyObject *
call_method_aside(PyObject *obj, const char *name, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *method = PyObject_GetAttrString(obj, name);
    if (method == NULL) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *result = call_aside(method, args, nargs);
    Py_DECREF(method);
    return result;
}

bool
kernel_ranges_wanted(void)
{
    PyObject *answer = call_aside(kernels_wanted, NULL, 0);
    bool wanted = answer == Py_True;
    Py_XDECREF(answer);
    return wanted;
}

PyObject *
range_begin(PyObject *name, PyObject *const *values, Py_ssize_t count)
{
    PyObject *shown = PyTuple_New(count);
    if (shown == NULL) {
        PyErr_Clear();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(shown, i, Py_NewRef(values[i]));
    }
    PyObject *const args[] = {name, shown};
    PyObject *range = call_aside(range_type, args, 2);
    Py_DECREF(shown);
    if (range != NULL) {
        PyObject *entered = call_method_aside(range, "__enter__", NULL, 0);
        if (entered == NULL) {
            Py_CLEAR(range);
        }
        Py_XDECREF(entered);
    }
    return range;
}

void
range_end(PyObject *range)
{
    PyObject *pending = take_exception();
    PyObject *const args[] = {Py_None, Py_None, Py_None};
    PyObject *left = call_method_aside(range, "__exit__", args, 3);
    Py_XDECREF(left);
    Py_DECREF(range);
    put_exception(pending);
}

static PyObject *
set_profiler(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyDict_Check(args[0]) || !PyUnicode_Check(args[1]) || !PyCallable_Check(args[2]) ||
        !PyCallable_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "set_profiler takes a dict, a name in it and two callables");
        return NULL;
    }
    if (profiler_space != NULL) {
        tracked_end(&profiler_seen);
    }
    Py_XSETREF(profiler_flag, Py_NewRef(args[1]));
    Py_XSETREF(range_type, Py_NewRef(args[2]));
    Py_XSETREF(kernels_wanted, Py_NewRef(args[3]));
    Py_XSETREF(profiler_space, Py_NewRef(args[0]));
    tracked_begin(&profiler_seen, profiler_space);
    profiler_look();
    Py_RETURN_NONE;
}

int
set_label(PyObject **slot, PyObject *label)
{
    if (label == NULL || !PyUnicode_Check(label)) {
        PyErr_SetString(PyExc_TypeError, "the label of a kernel is a text");
        return -1;
    }
    Py_XSETREF(*slot, Py_NewRef(label));
    return 0;
}

PyMethodDef profile_methods[] = {
    {"set_profiler", (PyCFunction)(void (*)(void))set_profiler, METH_FASTCALL,
     "set_profiler(space, flag, range, kernels_wanted, /)\n--\n\n"
     "While space[flag] is true, entries that have a label run in `with range(label, ())`, kernels likewise."},
    {NULL},
};
