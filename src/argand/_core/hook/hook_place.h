/* Where argand's hook is in the chain of PEP 523 hooks (hook_place.c). */
#ifndef ARGAND_HOOK_PLACE_H
#define ARGAND_HOOK_PLACE_H

#include "hook_compat.h"

#include <stdbool.h>

extern _PyFrameEvalFunction hook_base; /* what was installed before us */
extern PyObject *hook_stub;            /* a Python function that returns None */
extern PyObject *hook_probe;           /* not NULL: the next frame that comes to our hook sets it to NULL and runs untouched */

PyObject *hook_eval_frame(PyThreadState *tstate, InterpreterFrame *frame, int throwflag); /* hook.c */

/* Puts our hook on top, unless it is in the chain. */
void hook_install(PyInterpreterState *interp);
/* Takes our hook away, unless another one is on top of it. */
void hook_uninstall(PyInterpreterState *interp);
/* Number of threads that want frames to come to the hook, which is installed while it is not zero. */
extern int hook_active_threads;
void hook_enter_active(void);
void hook_leave_active(void);
int hook_place_init(void);
PyObject *hook_is_installed(PyObject *module, PyObject *ignored);

#endif
