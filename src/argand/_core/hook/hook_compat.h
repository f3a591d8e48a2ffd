/* What differs between CPython 3.11, 3.12 and 3.13 in frames and code extras. Only hook*.c and cache.c include this:
 * it is the one place that reads CPython's internal headers. */
#ifndef ARGAND_HOOK_COMPAT_H
#define ARGAND_HOOK_COMPAT_H

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "argand supports CPython 3.11, 3.12 and 3.13"
#endif

typedef struct _PyInterpreterFrame InterpreterFrame;

#if PY_VERSION_HEX >= 0x030D0000
#define TOP_FRAME(tstate) ((tstate)->current_frame)
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define FRAME_FUNC(f) ((PyFunctionObject *)(f)->f_funcobj)
#elif PY_VERSION_HEX >= 0x030C0000
#define TOP_FRAME(tstate) ((tstate)->cframe->current_frame)
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_FUNC(f) ((PyFunctionObject *)(f)->f_funcobj)
#else
#define TOP_FRAME(tstate) ((tstate)->cframe->current_frame)
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_FUNC(f) ((f)->f_func)
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define CODE_GET_EXTRA PyUnstable_Code_GetExtra
#define CODE_SET_EXTRA PyUnstable_Code_SetExtra
#define REQUEST_CODE_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
/* From 3.12 on, the eval-frame function that does not run a frame must clear and pop it; in 3.11 its caller does. */
#define EVAL_OWNS_FRAME 1
#else
#define CODE_GET_EXTRA _PyCode_GetExtra
#define CODE_SET_EXTRA _PyCode_SetExtra
#define REQUEST_CODE_EXTRA _PyEval_RequestCodeExtraIndex
#define EVAL_OWNS_FRAME 0
#endif

#endif
