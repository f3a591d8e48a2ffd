/* The place of argand's hook in the chain of PEP 523 hooks that other packages install too. */
#include "hook_place.h"

#include "core.h"

_PyFrameEvalFunction hook_base = NULL;
PyObject *hook_stub = NULL;
PyObject *hook_probe = NULL;

static bool buried = false; /* we could not leave: a hook that came later called ours then */

/* Whether frames come to our hook although another one is on top: a frame tells. */
static bool
reached_from_above(void)
{
    PyObject *error = take_exception();
    hook_probe = hook_stub;
    Py_XDECREF(PyObject_CallNoArgs(hook_stub));
    bool reached = hook_probe == NULL;
    hook_probe = NULL;
    PyErr_Clear();
    put_exception(error);
    return reached;
}

void
hook_install(PyInterpreterState *interp)
{
    bool below = _PyInterpreterState_GetEvalFrameFunc(interp) != hook_eval_frame && buried && reached_from_above();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (current != hook_eval_frame && !below) { /* on top of a hook that calls ours each frame would come to us twice */
        hook_base = current;
        _PyInterpreterState_SetEvalFrameFunc(interp, hook_eval_frame);
    }
    buried = false;
}

void
hook_uninstall(PyInterpreterState *interp)
{
    /* When another hook was put on top of ours it still calls us as its base: leave both, we pass everything on. */
    buried = _PyInterpreterState_GetEvalFrameFunc(interp) != hook_eval_frame;
    if (!buried) {
        _PyInterpreterState_SetEvalFrameFunc(interp, hook_base);
    }
}

int hook_active_threads = 0;

void
hook_enter_active(void)
{
    hook_active_threads++;
    /* Looked at on every entry, not only the first: another hook may have restored what it found before us. */
    hook_install(PyInterpreterState_Get());
}

void
hook_leave_active(void)
{
    if (--hook_active_threads == 0) {
        hook_uninstall(PyInterpreterState_Get());
    }
}

int
hook_place_init(void)
{
    PyObject *globals = PyDict_New();
    PyObject *done = globals == NULL ? NULL : PyRun_String("def argand_stub(): pass\n", Py_file_input, globals, globals);
    PyObject *func = done == NULL ? NULL : PyDict_GetItemString(globals, "argand_stub");
    hook_stub = Py_XNewRef(func);
    Py_XDECREF(done);
    Py_XDECREF(globals);
    return hook_stub == NULL ? -1 : 0;
}

PyObject *
hook_is_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook_eval_frame);
}
