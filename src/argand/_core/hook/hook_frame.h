/* Frames that the hook gives up before they ran (hook_frame.c). */
#ifndef ARGAND_HOOK_FRAME_H
#define ARGAND_HOOK_FRAME_H

#include "hook_compat.h"

#if EVAL_OWNS_FRAME
/* Releases what a frame that never ran holds, and takes it off the data stack. A pending exception stays. */
void discard_frame(PyThreadState *tstate, InterpreterFrame *frame);
#else
static inline void
discard_frame(PyThreadState *Py_UNUSED(tstate), InterpreterFrame *Py_UNUSED(frame))
{
}
#endif

bool globals_of_module(PyObject *globals);

#endif
