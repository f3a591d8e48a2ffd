/* Number slots: the sizes, strides, ints and floats that the "expr" check computes with. An evaluation reads each
 * one that an expression uses into an array of its own, right after the checks of its node held. */
#include "guards.h"
#include "tensor.h"

static const char *const slot_names[NUM_SLOT_KINDS] = {"size", "stride", "int", "float"};

bool
number_is_float(const NumberSlot *slot)
{
    return slot->kind == SLOT_FLOAT;
}

/* ---- making one ------------------------------------------------------------------------------------------------ */

static int
parse_hint(NumberSlot *slot, PyObject *hint)
{
    if (hint == NULL || hint == Py_None) {
        return 0;
    }
    slot->hinted = true;
    if (number_is_float(slot)) {
        slot->hint.d = PyFloat_AsDouble(hint);
    }
    else {
        slot->hint.i = PyLong_AsLongLong(hint);
    }
    return PyErr_Occurred() ? -1 : 0;
}

int
number_slot_parse(NumberSlot *slot, PyObject *kind, PyObject *dim, PyObject *name, PyObject *hint)
{
    int at = 0;
    while (at < NUM_SLOT_KINDS && PyUnicode_CompareWithASCIIString(kind, slot_names[at]) != 0) {
        at++;
    }
    if (at == NUM_SLOT_KINDS || (dim != NULL) != (at <= SLOT_STRIDE)) {
        PyErr_Format(PyExc_ValueError, "a slot is a \"size\" or \"stride\" and its dim, an \"int\" or a \"float\", not %R", kind);
        return -1;
    }
    slot->kind = (SlotKind)at;
    if (name != NULL && name != Py_None && !PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "name must be a str or None, not %.100s", Py_TYPE(name)->tp_name);
        return -1;
    }
    if (dim != NULL) {
        long value = PyLong_AsLong(dim);
        if (value < 0 || value > INT_MAX) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "the dim of a %s is 0 or more", slot_names[slot->kind]);
            }
            return -1;
        }
        slot->dim = (int)value;
    }
    if (parse_hint(slot, hint) < 0) {
        return -1;
    }
    slot->name = name == NULL || name == Py_None ? NULL : Py_NewRef(name);
    return 0;
}

bool
number_slot_same(const NumberSlot *a, const NumberSlot *b)
{
    return a->kind == b->kind && a->node == b->node && a->dim == b->dim;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Steals value: NULL means an exception. */
static int
int_and_drop(PyObject *value, Number *out)
{
    int status = value == NULL ? -1 : 0;
    if (value != NULL && PyLong_CheckExact(value)) {
        int overflow;
        out->i = PyLong_AsLongLongAndOverflow(value, &overflow);
        status = overflow == 0;
    }
    Py_XDECREF(value);
    return status;
}

/* The item of a tuple that torch gave. Steals it. */
static int
item_and_drop(PyObject *tuple, int dim, Number *out)
{
    int status = tuple == NULL ? -1 : 0;
    if (tuple != NULL && PyTuple_Check(tuple) && dim < PyTuple_GET_SIZE(tuple)) {
        status = int_and_drop(Py_NewRef(PyTuple_GET_ITEM(tuple, dim)), out);
    }
    Py_XDECREF(tuple);
    return status;
}

static int
ask_tensor(const NumberSlot *slot, PyObject *obj, Number *out)
{
    if (!tensor_type_ok(obj)) {
        return 0;
    }
    PyObject *hush;
    if (tensor_hush(obj, &hush) < 0) {
        return -1;
    }
    PyObject *all = slot->kind == SLOT_SIZE ? PyObject_GetAttr(obj, tensor_names[N_SHAPE])
                                            : PyObject_CallMethodNoArgs(obj, tensor_names[N_STRIDE]);
    int status = item_and_drop(all, slot->dim, out);
    tensor_unhush(hush);
    return status;
}

/* Whether reading runs no Python code: `spec` is the tensor check that the object has passed, or NULL. */
bool
number_pure(const NumberSlot *slot, const TensorSpec *spec)
{
    return slot->kind == SLOT_INT || slot->kind == SLOT_FLOAT || (spec != NULL && tensor_spec_pure(spec));
}

static int
read_layout(const NumberSlot *slot, PyObject *obj, Number *out)
{
    TensorFields fields;
    if (!tensor_layout_read(obj, &fields) || slot->dim >= fields.ndim) {
        return 0;
    }
    out->i = (slot->kind == SLOT_SIZE ? fields.sizes : fields.strides)[slot->dim];
    return 1;
}

int
number_read(const NumberSlot *slot, const TensorSpec *spec, PyObject *obj, Number *out)
{
    if (slot->kind == SLOT_FLOAT) {
        if (!PyFloat_CheckExact(obj)) {
            return 0;
        }
        out->d = PyFloat_AS_DOUBLE(obj);
        return 1;
    }
    if (slot->kind == SLOT_INT) {
        return int_and_drop(Py_NewRef(obj), out);
    }
    return LIKELY(number_pure(slot, spec)) ? read_layout(slot, obj, out) : ask_tensor(slot, obj, out);
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

PyObject *
number_missing_detail(const NumberSlot *slot, PyObject *obj)
{
    const char *type = Py_TYPE(obj)->tp_name;
    switch (slot->kind) {
    case SLOT_INT:
        return PyUnicode_FromFormat(PyLong_CheckExact(obj) ? "expected an int of at most 64 bits, found a longer %.100s"
                                                           : "expected an int, found %.100s",
                                    type);
    case SLOT_FLOAT:
        return PyUnicode_FromFormat("expected a float, found %.100s", type);
    default:
        return PyUnicode_FromFormat(tensor_type_ok(obj) ? "expected a tensor with a %s at dim %d, found %.100s"
                                                        : "expected a tensor (for its %s at dim %d), found %.100s",
                                    slot_names[slot->kind], slot->dim, type);
    }
}

static PyObject *
number_source(const GuardTree *tree, const NumberSlot *slot)
{
    if (slot->name != NULL) {
        return Py_NewRef(slot->name);
    }
    PyObject *source = node_source(tree, slot->node);
    if (source != NULL && (slot->kind == SLOT_SIZE || slot->kind == SLOT_STRIDE)) {
        Py_SETREF(source, PyUnicode_FromFormat("%U.%s[%d]", source, slot_names[slot->kind], slot->dim));
    }
    return source;
}

static PyObject *
number_object(const NumberSlot *slot, Number value)
{
    return number_is_float(slot) ? PyFloat_FromDouble(value.d) : PyLong_FromLongLong(value.i);
}

/* "L['x'].size()[0] was 8, is 10" */
PyObject *
number_detail(const GuardTree *tree, const NumberSlot *slot, Number value)
{
    PyObject *source = number_source(tree, slot);
    PyObject *now = source == NULL ? NULL : number_object(slot, value);
    PyObject *before = now == NULL || !slot->hinted ? NULL : number_object(slot, slot->hint);
    PyObject *text = NULL;
    if (before != NULL) {
        text = PyUnicode_FromFormat("%U was %R, is %R", source, before, now);
    }
    else if (now != NULL && !PyErr_Occurred()) {
        text = PyUnicode_FromFormat("%U is %R", source, now);
    }
    Py_XDECREF(source);
    Py_XDECREF(now);
    Py_XDECREF(before);
    return text;
}
