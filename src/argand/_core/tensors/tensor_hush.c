/* Questions about a tensor that a program's own __torch_function__ must not hear of. */
#include "tensor.h"

/* Whether torch asks code of the program about operations on objects of this class. */
static bool
class_listens(PyTypeObject *type)
{
    static PyObject *name = NULL;
    if (type == tensor_base || tensor_base == NULL) {
        return false;
    }
    if (name == NULL && (name = PyUnicode_InternFromString("__torch_function__")) == NULL) {
        PyErr_Clear();
        return true;
    }
    PyObject *own = _PyType_Lookup(type, name);
    return own != NULL && !PyCFunction_Check(own) && own != _PyType_Lookup(tensor_base, name);
}

/* Begins what tensor_unhush ends: nobody hears what torch is asked about obj. *hush is NULL where nobody listens. */
int
tensor_hush(PyObject *obj, PyObject **hush)
{
    *hush = NULL;
    if (LIKELY(!class_listens(Py_TYPE(obj)))) {
        return 0;
    }
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C");
    PyObject *guard = torch == NULL ? NULL : PyObject_CallMethod(torch, "DisableTorchFunctionSubclass", NULL);
    PyObject *entered = guard == NULL ? NULL : PyObject_CallMethod(guard, "__enter__", NULL);
    if (entered == NULL) {
        Py_XDECREF(guard);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "torch is not imported");
        }
        return -1;
    }
    Py_DECREF(entered);
    *hush = guard;
    return 0;
}

/* Keeps an exception that is set. Steals hush. */
void
tensor_unhush(PyObject *hush)
{
    if (hush == NULL) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *left = PyObject_CallMethod(hush, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(left);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    Py_DECREF(hush);
}
