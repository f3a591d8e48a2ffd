/* Shared by device_launcher.c and device_product.c: a GPU's context and current stream, through the driver's functions. */
#ifndef ARGAND_DEVICE_H
#define ARGAND_DEVICE_H

#include "core.h"

typedef int (*ContextOutFn)(void **context); /* cuCtxGetCurrent, cuCtxPopCurrent */
typedef int (*ContextInFn)(void *context);   /* cuCtxPushCurrent */

typedef struct {
    ContextOutFn current, pop;
    ContextInFn push;
    void *context; /* of the device at hand */
} DeviceContext;

#define DEVICE_ALIGNMENT 16 /* bytes: of pointers that vectorised accesses may use */

/* Makes the context current where it is not; the driver's error code. Needs no GIL. */
static inline int
device_enter(const DeviceContext *device, bool *foreign)
{
    void *before = NULL;
    int code = device->current(&before);
    *foreign = before != device->context;
    return code == 0 && *foreign ? device->push(device->context) : code;
}

/* After `device_enter` that went well: the first error of both. */
static inline int
device_leave(const DeviceContext *device, bool foreign, int code)
{
    if (foreign) {
        void *popped;
        int left = device->pop(&popped);
        return code == 0 ? left : code;
    }
    return code;
}

/* The current stream of a device, as `stream_of(index)` says; -1 with an exception. */
static inline int
device_stream(PyObject *stream_of, PyObject *index, void **stream)
{
    PyObject *const args[] = {index};
    PyObject *answer = PyObject_Vectorcall(stream_of, args, 1, NULL);
    if (UNLIKELY(answer == NULL)) {
        return -1;
    }
    *stream = PyLong_AsVoidPtr(answer);
    Py_DECREF(answer);
    return *stream == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Reads the addresses of a tuple, each to its place; -1 with an exception, where one is 0 too. */
static inline int
device_addresses(PyObject *tuple, Py_ssize_t count, void *const *places)
{
    if (PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "%zd addresses of the driver or a library are given, not %zd", PyTuple_GET_SIZE(tuple),
                     count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, i));
        if (address == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "an address of the driver or a library is 0");
            }
            return -1;
        }
        memcpy(places[i], &address, sizeof(address));
    }
    return 0;
}

#endif
