/* Guard checks: what kinds there are, and making one from the arguments of `GuardTree.check`. */
#include "guards.h"

const KindInfo kind_table[NUM_KINDS] = {
    [CHECK_TYPE] = {"type", 1, 1, 1},
    [CHECK_ID] = {"id", 1, 1, 1},
    [CHECK_EQUALS] = {"equals", 1, 1, 10},
    [CHECK_BASE_VALUE] = {"base_value", 1, 1, 10},
    [CHECK_IS_NONE] = {"is_none", 0, 0, 1},
    [CHECK_NOT_NONE] = {"not_none", 0, 0, 1},
    [CHECK_LEN] = {"len", 1, 1, 2},
    [CHECK_DICT_KEYS] = {"dict_keys", 1, 1, 50},
    [CHECK_HAS_KEY] = {"has_key", 1, 1, 10},
    [CHECK_NOT_HAS_KEY] = {"not_has_key", 1, 1, 10},
    [CHECK_HAS_ATTR] = {"has_attr", 1, 1, 40},
    [CHECK_NOT_HAS_ATTR] = {"not_has_attr", 1, 1, 60},
    [CHECK_TYPE_VERSION] = {"type_version", 1, 2, 2},
    [CHECK_CALL] = {"call", 2, 2, 100},
    [CHECK_GLOBAL_STATE] = {"global_state", 1, 1, 100},
    [CHECK_FUNCTIONS] = {"functions", 1, 1, 20},
    [CHECK_TENSOR] = {"tensor", 8, 8, 50},
    [CHECK_SAME_OBJECT] = {"same_object", 1, 1, 1},
    [CHECK_DISTINCT] = {"distinct", 1, 1, 10},
    [CHECK_PYTHON] = {"python", 2, 2, 150},
    [CHECK_EXPR] = {"expr", 1, 1, 8},
};

/* ---- parsing --------------------------------------------------------------------------------------------------- */

/* Remembers an object by identity: weakly where it has weak references, so that a guard never keeps a model alive. */
static int
parse_identity(Check *check, PyObject *obj)
{
    bool immortal = PyType_Check(obj) && !(((PyTypeObject *)obj)->tp_flags & Py_TPFLAGS_HEAPTYPE);
    if (!immortal && PyType_SUPPORTS_WEAKREFS(Py_TYPE(obj))) {
        check->a = PyWeakref_NewRef(obj, NULL);
        if (check->a != NULL) {
            check->weak = true;
            return 0;
        }
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1;
        }
        PyErr_Clear();
    }
    check->a = Py_NewRef(obj);
    return 0;
}

static int
parse_class(Check *check, PyObject *obj)
{
    if (!PyType_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "check \"%s\" takes a class, not %.100s", kind_table[check->kind].name,
                     Py_TYPE(obj)->tp_name);
        return -1;
    }
    return parse_identity(check, obj);
}

unsigned int
class_version_tag(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return type->tp_version_tag; /* 0: none, since the last modification */
}

unsigned int
class_assign_version_tag(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyUnstable_Type_AssignVersionTag(type);
#else
    PyObject *name = PyUnicode_InternFromString("__class__");
    if (name != NULL) {
        _PyType_Lookup(type, name); /* 3.11 assigns a tag when it caches a lookup */
        Py_DECREF(name);
    }
#endif
    return class_version_tag(type);
}

static int
parse_type_version(Check *check, PyObject *obj, PyObject *names)
{
    if (parse_class(check, obj) < 0) {
        return -1;
    }
    check->version_tag = class_assign_version_tag((PyTypeObject *)obj);
    if (check->version_tag == 0 && names == Py_None) { /* with names, they are compared each time */
        PyErr_Format(PyExc_ValueError, "CPython gives class %.100s no version tag", ((PyTypeObject *)obj)->tp_name);
        return -1;
    }
    if (names == Py_None) {
        return 0;
    }
    check->names = class_names_new((PyTypeObject *)obj, names);
    return check->names == NULL ? -1 : 0;
}

static int
parse_callable(Check *check, PyObject *obj)
{
    if (!PyCallable_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "check \"%s\" takes a callable, not %.100s", kind_table[check->kind].name,
                     Py_TYPE(obj)->tp_name);
        return -1;
    }
    check->a = Py_NewRef(obj);
    return 0;
}

static int
parse_nodes(GuardTree *tree, Check *check, PyObject *obj)
{
    PyObject *list = PySequence_Fast(obj, "nodes must be a sequence of ints");
    if (list == NULL) {
        return -1;
    }
    check->num_nodes = (int)PySequence_Fast_GET_SIZE(list);
    check->nodes = PyMem_Calloc(check->num_nodes + 1, sizeof(int));
    int status = check->nodes == NULL ? (PyErr_NoMemory(), -1) : 0;
    for (int i = 0; status == 0 && i < check->num_nodes; i++) {
        long node = PyLong_AsLong(PySequence_Fast_GET_ITEM(list, i));
        if (node <= 0 || node >= tree->num_nodes) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "no node with a value has number %ld", node);
            }
            status = -1;
        }
        check->nodes[i] = (int)node;
    }
    Py_DECREF(list);
    return status;
}

static int
parse_same_object(GuardTree *tree, Check *check, PyObject *other)
{
    PyObject *node = PyLong_FromLong(check->node);
    PyObject *pair = node == NULL ? NULL : PyTuple_Pack(2, node, other);
    int status = pair == NULL ? -1 : parse_nodes(tree, check, pair);
    Py_XDECREF(node);
    Py_XDECREF(pair);
    return status;
}

static int
parse_global_state(Check *check, PyObject *obj)
{
    bool ok = PyTuple_Check(obj);
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(obj); i++) {
        PyObject *pair = PyTuple_GET_ITEM(obj, i);
        ok = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 && PyCallable_Check(PyTuple_GET_ITEM(pair, 0));
    }
    if (!ok) {
        PyErr_SetString(PyExc_TypeError, "check \"global_state\" takes a tuple of (callable, expected)");
        return -1;
    }
    check->a = snapshot_value(obj);
    check->state = check->a == NULL ? NULL : state_table_new(check->a);
    return check->state == NULL ? -1 : 0;
}

static int
parse_tensor(Check *check, PyObject *const *args, Py_ssize_t nargs)
{
    if (parse_class(check, args[0]) < 0) {
        return -1;
    }
    check->tensor = tensor_spec_new(args, nargs);
    return check->tensor == NULL ? -1 : 0;
}

int
check_parse(GuardTree *tree, Check *check, PyObject *const *args, Py_ssize_t nargs)
{
    switch (check->kind) {
    case CHECK_TYPE:
        return parse_class(check, args[0]);
    case CHECK_TYPE_VERSION:
        return parse_type_version(check, args[0], nargs > 1 ? args[1] : Py_None);
    case CHECK_ID:
        return parse_identity(check, args[0]);
    case CHECK_EQUALS:
        check->a = snapshot_value(args[0]);
        return check->a == NULL ? -1 : 0;
    case CHECK_BASE_VALUE:
        if (!is_base_value(args[0])) {
            PyErr_SetString(PyExc_TypeError, "check \"base_value\" takes an int, float, complex, str or bytes, and none of a subclass");
            return -1;
        }
        check->a = Py_NewRef(args[0]);
        return 0;
    case CHECK_DICT_KEYS:
        if (!PyTuple_Check(args[0])) {
            PyErr_SetString(PyExc_TypeError, "check \"dict_keys\" takes a tuple");
            return -1;
        }
        check->a = Py_NewRef(args[0]);
        return 0;
    case CHECK_LEN:
        check->length = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
        return check->length == -1 && PyErr_Occurred() ? -1 : 0;
    case CHECK_HAS_KEY:
    case CHECK_NOT_HAS_KEY:
        check->a = Py_NewRef(args[0]);
        check->hash = PyObject_Hash(args[0]);
        return check->hash == -1 ? -1 : 0;
    case CHECK_HAS_ATTR:
    case CHECK_NOT_HAS_ATTR:
        if (!PyUnicode_CheckExact(args[0])) {
            PyErr_Format(PyExc_TypeError, "check \"%s\" takes a str", kind_table[check->kind].name);
            return -1;
        }
        check->a = Py_NewRef(args[0]);
        PyUnicode_InternInPlace(&check->a);
        return 0;
    case CHECK_CALL:
        check->b = snapshot_value(args[1]);
        return check->b == NULL ? -1 : parse_callable(check, args[0]);
    case CHECK_GLOBAL_STATE:
        return parse_global_state(check, args[0]);
    case CHECK_FUNCTIONS:
        check->functions = function_table_new(args[0]);
        return check->functions == NULL ? -1 : 0;
    case CHECK_TENSOR:
        return parse_tensor(check, args, nargs);
    case CHECK_SAME_OBJECT:
        return parse_same_object(tree, check, args[0]);
    case CHECK_DISTINCT:
        return parse_nodes(tree, check, args[0]);
    case CHECK_PYTHON:
        return parse_callable(check, args[0]) < 0 ? -1 : parse_nodes(tree, check, args[1]);
    case CHECK_EXPR:
        check->program = program_parse(tree, args[0]);
        return check->program == NULL ? -1 : 0;
    default: /* is_none, not_none */
        return 0;
    }
}

void
check_release(Check *check)
{
    Py_CLEAR(check->a);
    Py_CLEAR(check->b);
    Py_CLEAR(check->label);
    PyMem_Free(check->nodes);
    check->nodes = NULL;
    tensor_spec_free(check->tensor);
    check->tensor = NULL;
    program_free(check->program);
    check->program = NULL;
    class_names_free(check->names);
    check->names = NULL;
    function_table_free(check->functions);
    check->functions = NULL;
    state_table_free(check->state);
    check->state = NULL;
}

/* Conservative: only what is certainly the same question is taken for the same. */
bool
check_same(const Check *a, const Check *b)
{
    if (a->kind != b->kind || a->num_nodes != b->num_nodes || a->weak != b->weak || a->length != b->length ||
        a->version_tag != b->version_tag ||
        a->hash != b->hash) {
        return false;
    }
    if (a->num_nodes > 0 && memcmp(a->nodes, b->nodes, a->num_nodes * sizeof(int)) != 0) {
        return false;
    }
    if (a->tensor != NULL && !tensor_spec_same(a->tensor, b->tensor)) {
        return false;
    }
    if (a->names != NULL || b->names != NULL || a->functions != NULL || b->functions != NULL) {
        return false;
    }
    if (a->program != NULL && !program_same(a->program, b->program)) {
        return false;
    }
    if (a->weak) {
        return identity_target(a->a, true) != NULL && identity_target(a->a, true) == identity_target(b->a, true);
    }
    if (a->a == b->a && a->b == b->b) {
        return true;
    }
    bool scalar = (a->kind == CHECK_EQUALS || a->kind == CHECK_BASE_VALUE) && (PyLong_CheckExact(a->a) || PyUnicode_CheckExact(a->a) || PyFloat_CheckExact(a->a));
    return scalar && exact_equal(a->a, b->a) == 1;
}
