/* Frames that the hook gives up before they ran. */
#include "hook_frame.h"

#include "core.h"
#include "hook_place.h"

#if EVAL_OWNS_FRAME
#if PY_VERSION_HEX < 0x030D0000
/* Frees a frame that opens its data stack chunk. CPython 3.12 exports nothing that frees a chunk, so the default eval
 * function gets the frame with a body that only returns. */
static void
pop_by_running_stub(PyThreadState *tstate, InterpreterFrame *frame)
{
    PyObject *old = (PyObject *)frame->f_code;
    frame->f_code = (PyCodeObject *)Py_NewRef(PyFunction_GET_CODE(hook_stub));
    frame->prev_instr = _PyCode_CODE(frame->f_code) - 1;
    Py_DECREF(old);
    tstate->tracing++; /* the stub is nobody's business */
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    tstate->tracing--;
    Py_XDECREF(result);
}
#endif

/* Releases what a frame that never ran holds, and takes it off the data stack. A pending exception stays. */
void
discard_frame(PyThreadState *tstate, InterpreterFrame *frame)
{
    for (int i = 0; i < frame->stacktop; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_CLEAR(frame->f_locals);
#if PY_VERSION_HEX < 0x030D0000
    if (UNLIKELY((PyObject **)frame == &tstate->datastack_chunk->data[0])) {
        PyObject *pending = take_exception();
        pop_by_running_stub(tstate, frame);
        if (pending != NULL) {
            PyErr_Clear();
            put_exception(pending);
        }
        return;
    }
#endif
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(FRAME_CODE(frame));
#if PY_VERSION_HEX >= 0x030D0000
    _PyThreadState_PopFrame(tstate, frame);
#else
    tstate->datastack_top = (PyObject **)frame;
#endif
}
#endif

/* Whether a globals dict belongs to an imported module: then a cached function does not prolong its life. */
bool
globals_of_module(PyObject *globals)
{
    PyObject *name = PyDict_GetItemString(globals, "__name__");
    PyObject *modules = PyImport_GetModuleDict();
    if (name == NULL || modules == NULL) {
        return false;
    }
    PyObject *module = PyDict_GetItemWithError(modules, name);
    if (module == NULL) {
        PyErr_Clear();
        return false;
    }
    return PyModule_Check(module) && PyModule_GetDict(module) == globals;
}
