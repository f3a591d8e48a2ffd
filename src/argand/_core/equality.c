/* Exact equality of constants, private copies of them, and short texts for messages. */
#include "core.h"

#include <math.h>

/* ---- exact_equal ----------------------------------------------------------------------------------------------- */

static bool
same_double(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static int
equal_items(PyObject *a, PyObject *b)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(a); i++) {
        if (i >= Py_SIZE(b)) {
            return 0; /* a comparison has changed a list */
        }
        PyObject *x = Py_NewRef(PyTuple_Check(a) ? PyTuple_GET_ITEM(a, i) : PyList_GET_ITEM(a, i));
        PyObject *y = Py_NewRef(PyTuple_Check(b) ? PyTuple_GET_ITEM(b, i) : PyList_GET_ITEM(b, i));
        int status = exact_equal(x, y);
        Py_DECREF(x);
        Py_DECREF(y);
        if (status <= 0) {
            return status;
        }
    }
    return Py_SIZE(a) == Py_SIZE(b);
}

/* Same keys in the same order, with exactly equal keys and values. */
static int
equal_dicts(PyObject *a, PyObject *b)
{
    PyObject *ka, *va, *kb, *vb;
    Py_ssize_t pa = 0, pb = 0;
    while (PyDict_Next(a, &pa, &ka, &va)) {
        if (!PyDict_Next(b, &pb, &kb, &vb)) {
            return 0;
        }
        Py_ssize_t size_a = PyDict_GET_SIZE(a), size_b = PyDict_GET_SIZE(b);
        Py_INCREF(ka);
        Py_INCREF(va);
        Py_INCREF(kb);
        Py_INCREF(vb);
        int status = exact_equal(ka, kb);
        if (status > 0) {
            status = exact_equal(va, vb);
        }
        Py_DECREF(ka);
        Py_DECREF(va);
        Py_DECREF(kb);
        Py_DECREF(vb);
        if (status <= 0) {
            return status;
        }
        if (PyDict_GET_SIZE(a) != size_a || PyDict_GET_SIZE(b) != size_b) {
            return 0; /* a comparison has changed a dict */
        }
    }
    return PyDict_GET_SIZE(a) == PyDict_GET_SIZE(b);
}

/* Equal as sets, and each element has an exactly equal one on the other side (1, 1.0 and True are one set element). */
static int
equal_sets(PyObject *a, PyObject *b)
{
    PyObject *list_a = PySequence_List(a);
    PyObject *list_b = list_a == NULL ? NULL : PySequence_List(b);
    int status = -1;
    if (list_b != NULL) {
        status = 1;
        Py_ssize_t n = PyList_GET_SIZE(list_a);
        for (Py_ssize_t i = 0; status > 0 && i < n; i++) {
            /* Equal sets mostly iterate in the same order: start looking at the same place. */
            status = 0;
            for (Py_ssize_t k = 0; status == 0 && k < n; k++) {
                status = exact_equal(PyList_GET_ITEM(list_a, i), PyList_GET_ITEM(list_b, (i + k) % n));
            }
        }
    }
    Py_XDECREF(list_a);
    Py_XDECREF(list_b);
    return status;
}

static int
equal_attribute(PyObject *a, PyObject *b, const char *name)
{
    PyObject *x = PyObject_GetAttrString(a, name);
    PyObject *y = x == NULL ? NULL : PyObject_GetAttrString(b, name);
    int status = y == NULL ? -1 : exact_equal(x, y);
    Py_XDECREF(x);
    Py_XDECREF(y);
    return status;
}

static int
equal_triples(PyObject *a, PyObject *b)
{
    int status = equal_attribute(a, b, "start");
    status = status > 0 ? equal_attribute(a, b, "stop") : status;
    return status > 0 ? equal_attribute(a, b, "step") : status;
}

static int
equal_ordered_dicts(PyObject *a, PyObject *b)
{
    PyObject *x = PyMapping_Items(a);
    PyObject *y = x == NULL ? NULL : PyMapping_Items(b);
    int status = y == NULL ? -1 : exact_equal(x, y);
    Py_XDECREF(x);
    Py_XDECREF(y);
    return status;
}

static int
equal_containers(PyObject *a, PyObject *b)
{
    if (Py_EnterRecursiveCall(" in an exact comparison")) {
        return -1;
    }
    int status;
    if (PyTuple_Check(a) || PyList_Check(a)) {
        status = Py_SIZE(a) == Py_SIZE(b) ? equal_items(a, b) : 0;
    }
    else if (PyODict_Check(a)) { /* its order is not that of the dict underneath */
        status = equal_ordered_dicts(a, b);
    }
    else if (PyDict_Check(a)) {
        status = PyDict_GET_SIZE(a) == PyDict_GET_SIZE(b) ? equal_dicts(a, b) : 0;
    }
    else if (PyAnySet_Check(a)) {
        status = PySet_GET_SIZE(a) == PySet_GET_SIZE(b) ? equal_sets(a, b) : 0;
    }
    else {
        status = equal_triples(a, b);
    }
    Py_LeaveRecursiveCall();
    return status;
}

/* Numbers of numpy's by their bytes, which tell zeros apart; -1 where there are none to see, without an exception. */
static int
equal_bytes(PyObject *a, PyObject *b)
{
    Py_buffer x, y;
    if (PyObject_GetBuffer(a, &x, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return -1;
    }
    int status = PyObject_GetBuffer(b, &y, PyBUF_SIMPLE);
    if (status < 0) {
        PyErr_Clear();
    }
    else {
        status = x.len == y.len && memcmp(x.buf, y.buf, x.len) == 0;
        PyBuffer_Release(&y);
    }
    PyBuffer_Release(&x);
    return status;
}

int
exact_equal(PyObject *a, PyObject *b)
{
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) {
        return 0;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
        return a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ);
    }
    if (type == &PyBool_Type || a == Py_None || PyType_Check(a)) {
        return a == b;
    }
    if (PyFloat_Check(a)) {
        return same_double(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    }
    if (PyComplex_Check(a)) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return same_double(x.real, y.real) && same_double(x.imag, y.imag);
    }
    if (PyTuple_Check(a) || PyList_Check(a) || PyDict_Check(a) || PyAnySet_Check(a) || type == &PySlice_Type ||
        type == &PyRange_Type) {
        return equal_containers(a, b);
    }
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && strncmp(type->tp_name, "numpy.", 6) == 0) {
        int status = equal_bytes(a, b);
        if (status >= 0) {
            return status;
        }
    }
    return PyObject_RichCompareBool(a, b, Py_EQ); /* identical objects are equal */
}

bool
is_base_value(PyObject *value)
{
    return PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyComplex_CheckExact(value) || PyUnicode_CheckExact(value) ||
           PyBytes_CheckExact(value);
}

/* Whether the value is what an object of a subclass of the same builtin type holds, past any method of that subclass. */
int
base_value_equal(PyObject *obj, PyObject *value)
{
    PyTypeObject *base = Py_TYPE(value);
    if (!PyObject_TypeCheck(obj, base)) {
        return 0;
    }
    if (base == &PyFloat_Type) {
        return same_double(PyFloat_AS_DOUBLE(obj), PyFloat_AS_DOUBLE(value));
    }
    if (base == &PyComplex_Type) {
        Py_complex x = ((PyComplexObject *)obj)->cval, y = ((PyComplexObject *)value)->cval;
        return same_double(x.real, y.real) && same_double(x.imag, y.imag);
    }
    PyObject *equal = base->tp_richcompare(obj, value, Py_EQ);
    Py_XDECREF(equal); /* True or False, which outlive it */
    return equal == NULL ? -1 : equal == Py_True;
}

/* ---- snapshot_value -------------------------------------------------------------------------------------------- */

static PyObject *
snapshot_list(PyObject *value)
{
    PyObject *copy = PyList_New(0);
    for (Py_ssize_t i = 0; copy != NULL && i < PyList_GET_SIZE(value); i++) {
        PyObject *item = snapshot_value(PyList_GET_ITEM(value, i));
        if (item == NULL || PyList_Append(copy, item) < 0) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(item);
    }
    return copy;
}

/* The tuple itself where no item had to be copied: then nothing in it can change. */
static PyObject *
snapshot_tuple(PyObject *value)
{
    PyObject *copy = PyTuple_New(PyTuple_GET_SIZE(value));
    bool changed = false;
    for (Py_ssize_t i = 0; copy != NULL && i < PyTuple_GET_SIZE(value); i++) {
        PyObject *item = snapshot_value(PyTuple_GET_ITEM(value, i));
        if (item == NULL) {
            Py_CLEAR(copy);
            break;
        }
        changed |= item != PyTuple_GET_ITEM(value, i);
        PyTuple_SET_ITEM(copy, i, item);
    }
    if (copy == NULL || (changed && PyTuple_CheckExact(value))) {
        return copy;
    }
    Py_DECREF(copy);
    if (changed) {
        return PyErr_Format(PyExc_TypeError, "an \"equals\" guard cannot copy the mutable items of a %.100s",
                            Py_TYPE(value)->tp_name);
    }
    return Py_NewRef(value);
}

static PyObject *
snapshot_dict(PyObject *value)
{
    PyObject *copy = PyDict_New(), *key, *item;
    Py_ssize_t pos = 0;
    while (copy != NULL && PyDict_Next(value, &pos, &key, &item)) {
        PyObject *own = snapshot_value(item);
        if (own == NULL || PyDict_SetItem(copy, key, own) < 0) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(own);
    }
    return copy;
}

PyObject *
snapshot_value(PyObject *value)
{
    PyObject *copy;
    if (Py_EnterRecursiveCall(" while copying a constant")) {
        return NULL;
    }
    if (PyTuple_Check(value)) {
        copy = snapshot_tuple(value);
    }
    else if (PyList_CheckExact(value)) {
        copy = snapshot_list(value);
    }
    else if (PyDict_CheckExact(value)) {
        copy = snapshot_dict(value);
    }
    else if (PySet_CheckExact(value)) {
        copy = PySet_New(value);
    }
    else if (PyList_Check(value) || PyDict_Check(value) || PySet_Check(value) || PyByteArray_Check(value)) {
        copy = PyErr_Format(PyExc_TypeError, "an \"equals\" guard cannot hold a %.100s: it may change", Py_TYPE(value)->tp_name);
    }
    else {
        copy = Py_NewRef(value);
    }
    Py_LeaveRecursiveCall();
    return copy;
}

/* ---- short_repr ------------------------------------------------------------------------------------------------ */

#define SHORT_REPR 80
#define SHOWN_DEPTH 4

/* C code of the interpreter, of torch or of numpy writes the texts of such objects, from nothing but themselves. */
static int
shown_natively(PyTypeObject *type)
{
    static PyTypeObject *const known[] = {&PyBool_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyUnicode_Type,
                                          &PyBytes_Type, &PyRange_Type, &PyFunction_Type, &PyCFunction_Type, &PyCode_Type,
                                          &PyType_Type, &PyMethodDescr_Type, &PyWrapperDescr_Type, &PyGetSetDescr_Type,
                                          &PyMemberDescr_Type, &PyEllipsis_Type};
    static PyTypeObject *const bases[] = {&PyBaseObject_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type,
                                          &PyUnicode_Type, &PyBytes_Type};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (type == known[i]) {
            return 1;
        }
    }
    for (size_t i = 0; i < sizeof(bases) / sizeof(*bases); i++) {
        if (type->tp_repr == bases[i]->tp_repr) {
            return 1;
        }
    }
    return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && (strncmp(type->tp_name, "torch.", 6) == 0 || strncmp(type->tp_name, "numpy.", 6) == 0)
           && strcmp(type->tp_name, "numpy.ndarray") != 0;
}

/* Whether the text of an object can be made without running code of the program, which must not notice that it is. */
static int
shown_unnoticed(PyObject *value, int depth)
{
    if (value == Py_None || shown_natively(Py_TYPE(value))) {
        return 1;
    }
    if (depth > SHOWN_DEPTH) {
        return 0;
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < Py_SIZE(value); i++) {
            if (!shown_unnoticed(PySequence_Fast_GET_ITEM(value, i), depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t pos = 0;
        while (PyDict_Next(value, &pos, &key, &item)) {
            if (!shown_unnoticed(key, depth + 1) || !shown_unnoticed(item, depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    if (PyAnySet_CheckExact(value)) {
        PyObject *items = PySequence_List(value);
        int shown = items != NULL && shown_unnoticed(items, depth);
        Py_XDECREF(items);
        return shown;
    }
    return 0;
}

PyObject *
short_repr(PyObject *value)
{
    PyObject *text = shown_unnoticed(value, 0) ? PyObject_Repr(value) : NULL;
    if (text == NULL) {
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) {
                return NULL;
            }
            PyErr_Clear();
        }
        return PyUnicode_FromFormat("<%.100s object at %p>", Py_TYPE(value)->tp_name, value);
    }
    if (PyUnicode_GET_LENGTH(text) <= SHORT_REPR) {
        return text;
    }
    PyObject *head = PyUnicode_Substring(text, 0, SHORT_REPR - 3);
    Py_DECREF(text);
    PyObject *cut = head == NULL ? NULL : PyUnicode_FromFormat("%U...", head);
    Py_XDECREF(head);
    return cut;
}
