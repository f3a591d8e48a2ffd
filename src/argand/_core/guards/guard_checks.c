/* Guard checks: evaluating them. */
#include "guards.h"

static int
match_len(const Check *check, PyObject *obj)
{
    Py_ssize_t size;
    if (PyTuple_Check(obj) || PyList_Check(obj)) { /* whatever __len__ a subclass has */
        size = Py_SIZE(obj);
    }
    else if (PyDict_Check(obj)) {
        size = PyDict_GET_SIZE(obj);
    }
    else if (PyAnySet_Check(obj)) {
        size = PySet_GET_SIZE(obj);
    }
    else {
        size = PyObject_Size(obj);
        if (size < 0) {
            return -1;
        }
    }
    return size == check->length;
}

PyObject *
dict_key_list(PyObject *dict)
{
    if (!PyODict_Check(dict)) {
        return PyDict_Keys(dict);
    }
    PyObject *iterator = PyODict_Type.tp_iter(dict); /* its order is not that of the dict underneath */
    PyObject *keys = iterator == NULL ? NULL : PySequence_List(iterator);
    Py_XDECREF(iterator);
    return keys;
}

static int
match_keys_iterated(const Check *check, PyObject *obj)
{
    PyObject *list = dict_key_list(obj);
    PyObject *keys = list == NULL ? NULL : PyList_AsTuple(list);
    int status = keys == NULL ? -1 : exact_equal(keys, check->a);
    Py_XDECREF(list);
    Py_XDECREF(keys);
    return status;
}

static int
match_dict_keys(const Check *check, PyObject *obj)
{
    if (!PyDict_Check(obj) || PyDict_GET_SIZE(obj) != PyTuple_GET_SIZE(check->a)) {
        return 0;
    }
    if (PyODict_Check(obj)) { /* its order is not that of the dict underneath */
        return match_keys_iterated(check, obj);
    }
    PyObject *key, *value;
    Py_ssize_t pos = 0, i = 0;
    while (PyDict_Next(obj, &pos, &key, &value)) {
        if (i >= PyTuple_GET_SIZE(check->a)) {
            return 0;
        }
        PyObject *expected = PyTuple_GET_ITEM(check->a, i++);
        if (key != expected || PyFloat_CheckExact(key)) {
            Py_INCREF(key);
            int status = exact_equal(key, expected);
            Py_DECREF(key);
            if (status <= 0) {
                return status;
            }
        }
    }
    return i == PyTuple_GET_SIZE(check->a);
}

static int
has_key(const Check *check, PyObject *obj)
{
    if (PyDict_Check(obj)) {
        return _PyDict_GetItem_KnownHash(obj, check->a, check->hash) != NULL ? 1 : (PyErr_Occurred() ? -1 : 0);
    }
    return PySequence_Contains(obj, check->a);
}

static int
has_attr(const Check *check, PyObject *obj)
{
    PyObject *value;
#if PY_VERSION_HEX >= 0x030D0000
    int status = PyObject_GetOptionalAttr(obj, check->a, &value);
#else
    int status = _PyObject_LookupAttr(obj, check->a, &value);
#endif
    Py_XDECREF(value);
    return status;
}

static inline int
invert(int status)
{
    return status < 0 ? status : !status;
}

static int
match_type_version(const Check *check, PyObject *obj)
{
    PyTypeObject *cls = (PyTypeObject *)identity_target(check->a, check->weak);
    if (cls == NULL || (Py_TYPE(obj) != cls && obj != (PyObject *)cls)) {
        return false;
    }
    if (LIKELY(class_version_tag(cls) == check->version_tag && check->version_tag != 0)) {
        return true;
    }
    PyObject *changed;
    if (check->names == NULL || !class_names_hold(check->names, cls, &changed)) {
        return false;
    }
    unsigned int version = class_version_tag(cls);
    if (version == 0) { /* CPython gives a new one when it caches a lookup; none any more after a thousand changes */
        version = class_assign_version_tag(cls);
    }
    if (version != 0) {
        ((Check *)check)->version_tag = version; /* what holds for this version needs no second look */
    }
    return true;
}

/* Steals result: NULL means an exception. */
int
compare_result(PyObject *result, PyObject *expected)
{
    if (result == NULL) {
        return -1;
    }
    int status = result == expected && PyBool_Check(result) ? 1 : exact_equal(result, expected);
    Py_DECREF(result);
    return status;
}

static inline PyObject *
slot_value(const Walk *walk, int node)
{
    return walk->slots[walk->tree->plan->slot_of[node]];
}

#define SMALL_TABLE 256

/* 1 when all differ, 0 when two are the same object (their places in *first and *second), -1 with an exception. */
int
check_distinct(const Check *check, const Walk *walk, int *first, int *second)
{
    int n = check->num_nodes;
    size_t size = 8;
    while (size < 2 * (size_t)n) {
        size *= 2;
    }
    int on_stack[SMALL_TABLE];
    int *table = on_stack; /* place + 1 of what was seen; open addressing */
    if (size > SMALL_TABLE) {
        table = PyMem_Calloc(size, sizeof(int));
        if (table == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    else {
        memset(table, 0, size * sizeof(int));
    }
    int status = 1;
    for (int i = 0; status == 1 && i < n; i++) {
        PyObject *obj = slot_value(walk, check->nodes[i]);
        size_t at = ((uintptr_t)obj >> 4) * 0x9E3779B97F4A7C15u >> 20 & (size - 1);
        for (; table[at] != 0; at = (at + 1) & (size - 1)) {
            if (slot_value(walk, check->nodes[table[at] - 1]) == obj) {
                *first = table[at] - 1;
                *second = i;
                status = 0;
                break;
            }
        }
        table[at] = i + 1;
    }
    if (table != on_stack) {
        PyMem_Free(table);
    }
    return status;
}

#define STACK_ARGS 16

static int
match_python(const Check *check, const Walk *walk)
{
    PyObject *on_stack[STACK_ARGS] = {NULL};
    PyObject **args = on_stack;
    if (check->num_nodes > STACK_ARGS) {
        args = PyMem_Malloc(check->num_nodes * sizeof(PyObject *));
        if (args == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (int i = 0; i < check->num_nodes; i++) {
        args[i] = slot_value(walk, check->nodes[i]);
    }
    PyObject *result = PyObject_Vectorcall(check->a, args, check->num_nodes, NULL);
    if (args != on_stack) {
        PyMem_Free(args);
    }
    if (result == NULL) {
        return -1;
    }
    int status = PyObject_IsTrue(result);
    Py_DECREF(result);
    return status;
}

int
check_match(const Check *check, PyObject *obj, Walk *walk)
{
    int first, second;
    switch (check->kind) {
    case CHECK_TYPE:
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak);
    case CHECK_TENSOR:
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak) ? tensor_spec_match(check->tensor, obj) : 0;
    case CHECK_ID:
        return obj == identity_target(check->a, check->weak);
    case CHECK_EQUALS:
        return exact_equal(obj, check->a);
    case CHECK_BASE_VALUE:
        return base_value_equal(obj, check->a);
    case CHECK_IS_NONE:
        return obj == Py_None;
    case CHECK_NOT_NONE:
        return obj != Py_None;
    case CHECK_LEN:
        return match_len(check, obj);
    case CHECK_DICT_KEYS:
        return match_dict_keys(check, obj);
    case CHECK_HAS_KEY:
        return has_key(check, obj);
    case CHECK_NOT_HAS_KEY:
        return invert(has_key(check, obj));
    case CHECK_HAS_ATTR:
        return has_attr(check, obj);
    case CHECK_NOT_HAS_ATTR:
        return invert(has_attr(check, obj));
    case CHECK_TYPE_VERSION:
        return match_type_version(check, obj);
    case CHECK_CALL:
        return compare_result(PyObject_CallOneArg(check->a, obj), check->b);
    case CHECK_GLOBAL_STATE: {
        Py_ssize_t changed = check_first_changed_state(check);
        return changed < 0 ? -1 : changed == PyTuple_GET_SIZE(check->a);
    }
    case CHECK_FUNCTIONS: {
        Py_ssize_t changed = function_table_changed(check->functions);
        return changed < 0 ? -1 : changed == function_table_size(check->functions);
    }
    case CHECK_SAME_OBJECT:
        return slot_value(walk, check->nodes[0]) == slot_value(walk, check->nodes[1]);
    case CHECK_DISTINCT:
        return check_distinct(check, walk, &first, &second);
    case CHECK_EXPR:
        return program_holds(check->program, walk->numbers);
    default: /* CHECK_PYTHON */
        return match_python(check, walk);
    }
}
