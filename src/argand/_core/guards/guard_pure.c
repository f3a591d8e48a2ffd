/* Which questions of a guard tree need asking again in a replay, and which can be asked without running Python code. */
#include "replay.h"

static bool
is_atom(PyObject *obj)
{
    return obj == Py_None || PyBool_Check(obj) || PyLong_CheckExact(obj) || PyFloat_CheckExact(obj) || PyUnicode_CheckExact(obj) ||
           PyBytes_CheckExact(obj) || PyComplex_CheckExact(obj);
}

/* Whether `__class__` of the object may be assigned. */
static bool
type_may_change(PyObject *obj)
{
    return (Py_TYPE(obj)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(obj);
}

/* The answer cannot change while the object is the same. Runs no Python code either. */
bool
replay_check_settled(const Check *check, PyObject *obj)
{
    switch (check->kind) {
    case CHECK_ID:
    case CHECK_IS_NONE:
    case CHECK_NOT_NONE:
    case CHECK_BASE_VALUE:
        return true;
    case CHECK_EQUALS:
        return is_atom(obj);
    case CHECK_TYPE:
        return !type_may_change(obj);
    default:
        return false;
    }
}

/* The answer depends on the object and, for a dict, on its contents only, and asking runs no Python code. */
bool
replay_check_of_dict(const Check *check, PyObject *obj)
{
    bool plain = PyDict_CheckExact(obj);
    if (!plain && !PyODict_CheckExact(obj)) {
        return false;
    }
    switch (check->kind) {
    case CHECK_LEN:
        return true;
    case CHECK_DICT_KEYS:
        return plain; /* an OrderedDict has an order of its own */
    case CHECK_HAS_KEY:
    case CHECK_NOT_HAS_KEY:
        return PyUnicode_CheckExact(check->a);
    default:
        return false;
    }
}

bool
replay_check_pure(const Check *check, PyObject *obj)
{
    switch (check->kind) {
    case CHECK_TYPE:
    case CHECK_TYPE_VERSION:
        return true;
    case CHECK_LEN:
        return PyList_CheckExact(obj) || PyTuple_CheckExact(obj) || PyDict_CheckExact(obj);
    case CHECK_TENSOR:
        return tensor_spec_pure(check->tensor);
    default:
        return replay_check_settled(check, obj);
    }
}

bool
replay_accessor_pure(Accessor accessor, PyObject *obj)
{
    switch (accessor) {
    case ACC_DICT_KEY:
    case ACC_DICT_VALUE:
        return PyDict_CheckExact(obj);
    case ACC_TYPE:
    case ACC_SEQUENCE_ITEM:
    case ACC_TYPE_ATTR:
    case ACC_FUNC_CODE:
    case ACC_FUNC_DEFAULTS:
    case ACC_FUNC_KWDEFAULTS:
    case ACC_FUNC_CLOSURE:
    case ACC_CELL_CONTENTS:
    case ACC_METHOD_SELF:
    case ACC_METHOD_FUNC:
        return true;
    default:
        return false;
    }
}

/* Where the object keeps the value that its class gives for this attribute name, in bytes from the object: a slot that
 * `__slots__` has made. 0: something else gives the value, or Python code could. Good while the class has its version. */
Py_ssize_t
replay_slot_of(PyObject *obj, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(obj);
    if (type->tp_getattro != PyObject_GenericGetAttr) {
        return 0;
    }
    PyObject *descriptor = _PyType_Lookup(type, name); /* borrowed */
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
        return 0;
    }
    const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    bool plain = member->type == T_OBJECT_EX && (member->flags & ~READONLY) == 0 && member->offset > 0 && PyType_IsSubtype(type, PyDescr_TYPE(descriptor));
    return plain ? member->offset : 0;
}
