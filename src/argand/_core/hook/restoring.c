/* Calls after which the thread is as it was before them, and calls under a lock.
 *
 * A signal, a trace function or another thread may raise between any two lines of Python code: also in a `finally`, and
 * between a context's __enter__ and the block that would leave it. Between two statements of C code nothing is raised. */
#include "core.h"

static PyObject *take_snapshot, *put_back; /* or NULL: there is nothing to restore */

/* An exception that comes from outside while the state is put back may come again, but not for ever. */
#define MAX_TRIES 64

static PyObject *
set_ambient(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyCallable_Check(args[0]) || !PyCallable_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "set_ambient takes two callables");
        return NULL;
    }
    Py_XSETREF(take_snapshot, Py_NewRef(args[0]));
    Py_XSETREF(put_back, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

/* put_back(state, error), again and again until it gets to its end. Returns the first exception on the way, or NULL. */
static PyObject *
restore_ambient(PyThreadState *tstate, PyObject *state, PyObject *error)
{
    PyObject *restore = Py_NewRef(put_back), *first = NULL;
    for (int i = 0; i < MAX_TRIES; i++) {
        PyThreadState_EnterTracing(tstate); /* no trace or profile function is called, which could raise */
        PyObject *done = PyObject_CallFunctionObjArgs(restore, state, error == NULL ? Py_None : error, NULL);
        PyThreadState_LeaveTracing(tstate);
        if (done != NULL) {
            Py_DECREF(done);
            break;
        }
        PyObject *raised = take_exception();
        if (first == NULL) {
            first = raised;
        }
        else {
            Py_XDECREF(raised);
        }
    }
    Py_DECREF(restore);
    return first;
}

/* Calls fn in a copy of the thread's context variables, then puts back everything else of the thread that it changed. */
PyObject *
call_restoring(PyObject *fn, PyObject *const *args, size_t nargs)
{
    PyObject *state = take_snapshot == NULL ? Py_NewRef(Py_None) : PyObject_CallNoArgs(take_snapshot);
    PyObject *context = state == NULL ? NULL : PyContext_CopyCurrent();
    if (context == NULL || PyContext_Enter(context) < 0) {
        Py_XDECREF(context);
        Py_XDECREF(state);
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(fn, args, nargs, NULL);
    PyObject *error = take_exception();
    PyObject *late = put_back == NULL ? NULL : restore_ambient(PyThreadState_Get(), state, error);
    if (PyContext_Exit(context) < 0) {
        PyErr_Clear(); /* somebody switched contexts meanwhile and did not come back: theirs stays */
    }
    Py_DECREF(context);
    Py_DECREF(state);
    if (late != NULL && error == NULL) {
        Py_CLEAR(result); /* nobody knows of it yet: as if it had come while fn ran */
        put_exception(late);
        return NULL;
    }
    Py_XDECREF(late);
    put_exception(error);
    return result;
}

/* ---- another compiler ------------------------------------------------------------------------------------------ */

static PyObject *set_others_callback; /* or NULL: sets the other frame hook's callback of this thread, returns the one before */

static PyObject *
set_other_compiler(PyObject *Py_UNUSED(module), PyObject *fn)
{
    Py_XSETREF(set_others_callback, fn == Py_None ? NULL : Py_NewRef(fn));
    Py_RETURN_NONE;
}

PyObject *
other_compiler_off(void)
{
    PyObject *before = set_others_callback == NULL ? NULL : PyObject_CallOneArg(set_others_callback, Py_None);
    if (before == NULL) {
        PyErr_Clear(); /* it stays on, as it was */
    }
    else if (before == Py_None) {
        Py_CLEAR(before);
    }
    return before;
}

void
other_compiler_on(PyObject *before)
{
    if (before == NULL) {
        return;
    }
    PyObject *error = take_exception();
    PyObject *done = PyObject_CallOneArg(set_others_callback, before);
    if (done == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(done);
    Py_DECREF(before);
    put_exception(error);
}

/* ---- Python functions ------------------------------------------------------------------------------------------ */

static PyObject *
py_call_restoring(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "call_restoring takes a callable and its arguments");
        return NULL;
    }
    return call_restoring(args[0], args + 1, nargs - 1);
}

/* call_locked(lock, fn, *args) */
static PyObject *
call_locked(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "call_locked takes a lock, a callable and its arguments");
        return NULL;
    }
    PyObject *held = PyObject_CallMethod(args[0], "acquire", NULL);
    if (held == NULL) {
        return NULL;
    }
    Py_DECREF(held);
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, nargs - 2, NULL);
    PyObject *error = take_exception();
    PyObject *released = PyObject_CallMethod(args[0], "release", NULL);
    if (released == NULL) {
        Py_CLEAR(result);
        Py_XDECREF(error);
        return NULL;
    }
    Py_DECREF(released);
    put_exception(error);
    return result;
}

PyMethodDef restoring_methods[] = {
    {"set_ambient", (PyCFunction)(void (*)(void))set_ambient, METH_FASTCALL,
     "set_ambient(snapshot, restore, /)\n--\n\nWhat call_restoring does before and after a call."},
    {"set_other_compiler", set_other_compiler, METH_O,
     "set_other_compiler(set_callback, /)\n--\n\n"
     "set_callback(callback) of another frame hook, which is off in a thread while argand captures there."},
    {"call_restoring", (PyCFunction)(void (*)(void))py_call_restoring, METH_FASTCALL,
     "call_restoring(fn, /, *args)\n--\n\nfn(*args), after which the thread's state is as it was before."},
    {"call_locked", (PyCFunction)(void (*)(void))call_locked, METH_FASTCALL,
     "call_locked(lock, fn, /, *args)\n--\n\nfn(*args) while the lock is held; it is released whatever happens."},
    {NULL},
};
