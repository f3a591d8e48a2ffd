/* Calls of native code in which code of the program may not run (native_watch.c). */
#ifndef ARGAND_NATIVE_WATCH_H
#define ARGAND_NATIVE_WATCH_H

#include "core.h"

typedef struct {
    PyObject *judge;   /* borrowed; NULL: nothing is watched in this thread */
    PyObject *refused; /* strong or NULL: the exception that took the place of a frame */
} NativeWatch;

typedef enum { WATCH_REFUSED, WATCH_ON, WATCH_SUSPENDED } WatchVerdict;

extern _Thread_local NativeWatch native_watch;

static inline bool
native_watch_on(void)
{
    return native_watch.judge != NULL;
}

/* What becomes of the frame of a function that is about to start. Where it is refused, an exception is set. */
WatchVerdict native_watch_judge(PyObject *function, PyObject *const *args, Py_ssize_t nargs);

#endif
