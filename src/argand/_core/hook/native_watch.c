/* Calls of native code in which code of the program may not run.
 *
 * Capture runs C code on objects whose classes may define methods in Python. Each frame that this C code starts comes to the
 * hook, which asks before it runs: what is refused has done nothing, and the call ends with the refusal, whatever the C code
 * made of the exception. */
#include "native_watch.h"

#include "hook_place.h"

_Thread_local NativeWatch native_watch;

WatchVerdict
native_watch_judge(PyObject *function, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *judge = native_watch.judge;
    PyObject *pending = take_exception(); /* C code may call Python code while one is set: finalizers */
    PyObject *given = PyTuple_New(nargs), *answer = NULL;
    if (given != NULL) {
        for (Py_ssize_t i = 0; i < nargs; i++) {
            PyTuple_SET_ITEM(given, i, Py_NewRef(args[i] == NULL ? Py_None : args[i]));
        }
        native_watch.judge = NULL;
        answer = PyObject_CallFunctionObjArgs(judge, function, given, NULL);
        native_watch.judge = judge;
        Py_DECREF(given);
    }
    if (answer == NULL) {
        Py_XDECREF(pending);
        return WATCH_REFUSED;
    }
    if (answer == Py_None || answer == Py_True) {
        Py_DECREF(answer);
        put_exception(pending);
        return answer == Py_None ? WATCH_SUSPENDED : WATCH_ON;
    }
    Py_XDECREF(pending);
    PyErr_SetObject((PyObject *)Py_TYPE(answer), answer);
    Py_XSETREF(native_watch.refused, answer);
    return WATCH_REFUSED;
}

static PyObject *
call_watched(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (nargs < 2) {
        return PyErr_Format(PyExc_TypeError, "call_watched takes at least 2 arguments (%zd given)", nargs);
    }
    NativeWatch outer = native_watch;
    native_watch = (NativeWatch){args[0], NULL};
    hook_enter_active();
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(nargs - 2), names);
    hook_leave_active();
    PyObject *refused = native_watch.refused;
    native_watch = outer;
    if (UNLIKELY(refused != NULL)) {
        PyErr_Clear();
        Py_XDECREF(result);
        PyErr_SetObject((PyObject *)Py_TYPE(refused), refused);
        Py_DECREF(refused);
        return NULL;
    }
    return result;
}

PyMethodDef native_watch_methods[] = {
    {"call_watched", (PyCFunction)(void (*)(void))call_watched, METH_FASTCALL | METH_KEYWORDS,
     "call_watched(judge, fn, /, *args, **kwargs)\n--\n\nCalls fn; judge says which Python code may run meanwhile."},
    {NULL},
};
