/* Guard checks: parsing their arguments, evaluating them, saying why one failed. */
#include "guards.h"

const KindInfo kind_table[NUM_KINDS] = {
    [CHECK_TYPE] = {"type", 1, 1, 1},
    [CHECK_ID] = {"id", 1, 1, 1},
    [CHECK_NOT_ID] = {"not_id", 1, 1, 1},
    [CHECK_EQUALS] = {"equals", 1, 1, 10},
    [CHECK_IS_NONE] = {"is_none", 0, 0, 1},
    [CHECK_NOT_NONE] = {"not_none", 0, 0, 1},
    [CHECK_TRUTH] = {"truth", 1, 1, 5},
    [CHECK_LEN] = {"len", 1, 1, 2},
    [CHECK_DICT_KEYS] = {"dict_keys", 1, 1, 50},
    [CHECK_HAS_KEY] = {"has_key", 1, 1, 10},
    [CHECK_NOT_HAS_KEY] = {"not_has_key", 1, 1, 10},
    [CHECK_HAS_ATTR] = {"has_attr", 1, 1, 40},
    [CHECK_NOT_HAS_ATTR] = {"not_has_attr", 1, 1, 60},
    [CHECK_TYPE_VERSION] = {"type_version", 1, 1, 2},
    [CHECK_ISINSTANCE] = {"isinstance", 1, 1, 5},
    [CHECK_INT_RANGE] = {"int_range", 2, 2, 3},
    [CHECK_CALL] = {"call", 2, 2, 100},
    [CHECK_GLOBAL_STATE] = {"global_state", 1, 1, 100},
    [CHECK_TENSOR] = {"tensor", 8, 8, 50},
    [CHECK_SAME_OBJECT] = {"same_object", 1, 1, 1},
    [CHECK_DISTINCT] = {"distinct", 1, 1, 10},
    [CHECK_PYTHON] = {"python", 2, 2, 150},
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

static inline unsigned int
version_tag(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return type->tp_version_tag; /* 0: none, since the last modification */
}

static unsigned int
assign_version_tag(PyTypeObject *type)
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
    return version_tag(type);
}

static int
parse_type_version(Check *check, PyObject *obj)
{
    if (parse_class(check, obj) < 0) {
        return -1;
    }
    check->version_tag = assign_version_tag((PyTypeObject *)obj);
    if (check->version_tag == 0) {
        PyErr_Format(PyExc_ValueError, "CPython gives class %.100s no version tag", ((PyTypeObject *)obj)->tp_name);
        return -1;
    }
    return 0;
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
parse_bound(PyObject *obj, long long *value, bool *open)
{
    *open = obj == Py_None;
    if (*open) {
        return 0;
    }
    *value = PyLong_AsLongLong(obj);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
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
    return check->a == NULL ? -1 : 0;
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
    case CHECK_ISINSTANCE:
        return parse_class(check, args[0]);
    case CHECK_TYPE_VERSION:
        return parse_type_version(check, args[0]);
    case CHECK_ID:
    case CHECK_NOT_ID:
        return parse_identity(check, args[0]);
    case CHECK_EQUALS:
        check->a = snapshot_value(args[0]);
        return check->a == NULL ? -1 : 0;
    case CHECK_DICT_KEYS:
        if (!PyTuple_Check(args[0])) {
            PyErr_SetString(PyExc_TypeError, "check \"dict_keys\" takes a tuple");
            return -1;
        }
        check->a = Py_NewRef(args[0]);
        return 0;
    case CHECK_TRUTH: {
        int truth = PyObject_IsTrue(args[0]);
        check->low = truth;
        return truth < 0 ? -1 : 0;
    }
    case CHECK_LEN:
        return parse_bound(args[0], &check->low, &check->open_low) < 0 || check->open_low
                   ? (PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "check \"len\" takes an int"), -1))
                   : 0;
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
    case CHECK_INT_RANGE:
        return parse_bound(args[0], &check->low, &check->open_low) < 0 ||
                       parse_bound(args[1], &check->high, &check->open_high) < 0
                   ? -1
                   : 0;
    case CHECK_CALL:
        check->b = snapshot_value(args[1]);
        return check->b == NULL ? -1 : parse_callable(check, args[0]);
    case CHECK_GLOBAL_STATE:
        return parse_global_state(check, args[0]);
    case CHECK_TENSOR:
        return parse_tensor(check, args, nargs);
    case CHECK_SAME_OBJECT:
        return parse_same_object(tree, check, args[0]);
    case CHECK_DISTINCT:
        return parse_nodes(tree, check, args[0]);
    case CHECK_PYTHON:
        return parse_callable(check, args[0]) < 0 ? -1 : parse_nodes(tree, check, args[1]);
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
}

/* Conservative: only what is certainly the same question is taken for the same. */
bool
check_same(const Check *a, const Check *b)
{
    if (a->kind != b->kind || a->num_nodes != b->num_nodes || a->weak != b->weak || a->low != b->low || a->high != b->high ||
        a->open_low != b->open_low || a->open_high != b->open_high || a->version_tag != b->version_tag ||
        a->hash != b->hash) {
        return false;
    }
    if (a->num_nodes > 0 && memcmp(a->nodes, b->nodes, a->num_nodes * sizeof(int)) != 0) {
        return false;
    }
    if (a->tensor != NULL && !tensor_spec_same(a->tensor, b->tensor)) {
        return false;
    }
    if (a->weak) {
        return identity_target(a->a, true) != NULL && identity_target(a->a, true) == identity_target(b->a, true);
    }
    if (a->a == b->a && a->b == b->b) {
        return true;
    }
    bool scalar = a->kind == CHECK_EQUALS && (PyLong_CheckExact(a->a) || PyUnicode_CheckExact(a->a) || PyFloat_CheckExact(a->a));
    return scalar && exact_equal(a->a, b->a) == 1;
}

/* ---- evaluating ------------------------------------------------------------------------------------------------ */

static int
match_len(const Check *check, PyObject *obj)
{
    Py_ssize_t size;
    if (PyTuple_CheckExact(obj) || PyList_CheckExact(obj)) {
        size = Py_SIZE(obj);
    }
    else if (PyDict_CheckExact(obj)) {
        size = PyDict_GET_SIZE(obj);
    }
    else {
        size = PyObject_Size(obj);
        if (size < 0) {
            return -1;
        }
    }
    return size == check->low;
}

static int
match_dict_keys(const Check *check, PyObject *obj)
{
    if (!PyDict_Check(obj) || PyDict_GET_SIZE(obj) != PyTuple_GET_SIZE(check->a)) {
        return 0;
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
    return cls != NULL && (Py_TYPE(obj) == cls || obj == (PyObject *)cls) &&
           version_tag(cls) == check->version_tag;
}

static int
match_isinstance(const Check *check, PyObject *obj)
{
    PyObject *cls = identity_target(check->a, check->weak);
    if (cls == NULL) {
        return 0;
    }
    if (PyType_IsSubtype(Py_TYPE(obj), (PyTypeObject *)cls)) {
        return 1;
    }
    return PyType_CheckExact(cls) ? 0 : PyObject_IsInstance(obj, cls);
}

static int
match_int_range(const Check *check, PyObject *obj)
{
    if (!PyLong_CheckExact(obj)) {
        return 0;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(obj, &overflow);
    if (overflow != 0) {
        return overflow > 0 ? check->open_high : check->open_low;
    }
    return (check->open_low || value >= check->low) && (check->open_high || value <= check->high);
}

/* Steals result: NULL means an exception. */
static int
compare_result(PyObject *result, PyObject *expected)
{
    if (result == NULL) {
        return -1;
    }
    int status = result == expected && PyBool_Check(result) ? 1 : exact_equal(result, expected);
    Py_DECREF(result);
    return status;
}

/* Index of the first pair that does not hold, the number of pairs when all hold, -1 with an exception. */
static Py_ssize_t
first_changed_state(const Check *check)
{
    Py_ssize_t n = PyTuple_GET_SIZE(check->a);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pair = PyTuple_GET_ITEM(check->a, i);
        int status = compare_result(PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0)), PyTuple_GET_ITEM(pair, 1));
        if (status <= 0) {
            return status < 0 ? -1 : i;
        }
    }
    return n;
}

static inline PyObject *
slot_value(const Walk *walk, int node)
{
    return walk->slots[walk->tree->plan->slot_of[node]];
}

#define SMALL_TABLE 256

/* 1 when all differ, 0 when two are the same object (their places in *first and *second), -1 with an exception. */
static int
all_distinct(const Check *check, const Walk *walk, int *first, int *second)
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
    case CHECK_NOT_ID:
        return obj != identity_target(check->a, check->weak);
    case CHECK_EQUALS:
        return exact_equal(obj, check->a);
    case CHECK_IS_NONE:
        return obj == Py_None;
    case CHECK_NOT_NONE:
        return obj != Py_None;
    case CHECK_TRUTH: {
        int truth = PyObject_IsTrue(obj);
        return truth < 0 ? -1 : truth == check->low;
    }
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
    case CHECK_ISINSTANCE:
        return match_isinstance(check, obj);
    case CHECK_INT_RANGE:
        return match_int_range(check, obj);
    case CHECK_CALL:
        return compare_result(PyObject_CallOneArg(check->a, obj), check->b);
    case CHECK_GLOBAL_STATE: {
        Py_ssize_t changed = first_changed_state(check);
        return changed < 0 ? -1 : changed == PyTuple_GET_SIZE(check->a);
    }
    case CHECK_SAME_OBJECT:
        return slot_value(walk, check->nodes[0]) == slot_value(walk, check->nodes[1]);
    case CHECK_DISTINCT:
        return all_distinct(check, walk, &first, &second);
    default: /* CHECK_PYTHON */
        return match_python(check, walk);
    }
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

/* "expected X, found Y" from two objects. */
static PyObject *
expected_found(PyObject *expected, PyObject *found)
{
    PyObject *e = short_repr(expected), *f = e == NULL ? NULL : short_repr(found), *text = NULL;
    if (f != NULL && Py_TYPE(expected) != Py_TYPE(found)) {
        text = PyUnicode_FromFormat("expected %U (%.100s), found %U (%.100s)", e, Py_TYPE(expected)->tp_name, f,
                                    Py_TYPE(found)->tp_name);
    }
    else if (f != NULL) {
        text = PyUnicode_FromFormat("expected %U, found %U", e, f);
    }
    Py_XDECREF(e);
    Py_XDECREF(f);
    return text;
}

static PyObject *
detail_type(const Check *check, PyObject *obj)
{
    PyTypeObject *cls = (PyTypeObject *)identity_target(check->a, check->weak);
    if (cls == NULL) {
        return PyUnicode_FromString("the expected class no longer exists");
    }
    PyTypeObject *type = Py_TYPE(obj);
    if (check->kind == CHECK_TYPE_VERSION && (type == cls || obj == (PyObject *)cls)) {
        return PyUnicode_FromFormat("class %.100s or a base of it was modified", cls->tp_name);
    }
    const char *word = check->kind == CHECK_ISINSTANCE ? "an instance of" : "type";
    if (strcmp(cls->tp_name, type->tp_name) == 0) {
        return PyUnicode_FromFormat("expected %s %.100s, found another class of that name", word, cls->tp_name);
    }
    return PyUnicode_FromFormat("expected %s %.100s, found %.100s", word, cls->tp_name, type->tp_name);
}

static PyObject *
detail_identity(const Check *check, PyObject *obj)
{
    PyObject *target = identity_target(check->a, check->weak);
    if (target == NULL) {
        return PyUnicode_FromString("the expected object no longer exists");
    }
    PyObject *text = short_repr(target);
    PyObject *found = text == NULL ? NULL : short_repr(obj);
    PyObject *detail = NULL;
    if (found != NULL) {
        detail = check->kind == CHECK_NOT_ID
                     ? PyUnicode_FromFormat("expected another object than %U", text)
                     : PyUnicode_FromFormat("expected the object %U at %p, found %U at %p", text, target, found, obj);
    }
    Py_XDECREF(text);
    Py_XDECREF(found);
    return detail;
}

static PyObject *
detail_dict_keys(const Check *check, PyObject *obj)
{
    if (!PyDict_Check(obj)) {
        return PyUnicode_FromFormat("expected a dict, found %.100s", Py_TYPE(obj)->tp_name);
    }
    PyObject *keys = PyDict_Keys(obj);
    PyObject *found = keys == NULL ? NULL : PyList_AsTuple(keys);
    PyObject *text = NULL;
    if (found != NULL) {
        PyObject *e = short_repr(check->a), *f = e == NULL ? NULL : short_repr(found);
        text = f == NULL ? NULL : PyUnicode_FromFormat("expected keys %U, found %U", e, f);
        Py_XDECREF(e);
        Py_XDECREF(f);
    }
    Py_XDECREF(keys);
    Py_XDECREF(found);
    return text;
}

static PyObject *
detail_int_range(const Check *check, PyObject *obj)
{
    if (!PyLong_CheckExact(obj)) {
        return PyUnicode_FromFormat("expected an int, found %.100s", Py_TYPE(obj)->tp_name);
    }
    PyObject *found = short_repr(obj), *text = NULL;
    if (found != NULL && check->open_low) {
        text = PyUnicode_FromFormat("expected at most %lld, found %U", check->high, found);
    }
    else if (found != NULL && check->open_high) {
        text = PyUnicode_FromFormat("expected at least %lld, found %U", check->low, found);
    }
    else if (found != NULL) {
        text = PyUnicode_FromFormat("expected from %lld to %lld, found %U", check->low, check->high, found);
    }
    Py_XDECREF(found);
    return text;
}

static PyObject *
detail_call(PyObject *fn, PyObject *result, PyObject *expected)
{
    PyObject *difference = result == NULL ? NULL : expected_found(expected, result);
    PyObject *name = difference == NULL ? NULL : PyObject_GetAttrString(fn, "__name__");
    if (difference != NULL && name == NULL) {
        PyErr_Clear();
        name = short_repr(fn);
    }
    PyObject *text = name == NULL ? NULL : PyUnicode_FromFormat("%S: %U", name, difference);
    Py_XDECREF(result);
    Py_XDECREF(difference);
    Py_XDECREF(name);
    return text;
}

static PyObject *
detail_global_state(const Check *check)
{
    Py_ssize_t changed = first_changed_state(check);
    if (changed < 0) {
        return NULL;
    }
    if (changed == PyTuple_GET_SIZE(check->a)) {
        return PyUnicode_FromString("changed for a moment");
    }
    PyObject *pair = PyTuple_GET_ITEM(check->a, changed);
    PyObject *fn = PyTuple_GET_ITEM(pair, 0);
    return detail_call(fn, PyObject_CallNoArgs(fn), PyTuple_GET_ITEM(pair, 1));
}

static PyObject *
detail_key(const Check *check, PyObject *obj)
{
    PyObject *key = short_repr(check->a);
    if (key == NULL) {
        return NULL;
    }
    const char *what = check->kind == CHECK_HAS_KEY || check->kind == CHECK_NOT_HAS_KEY ? "key" : "attribute";
    bool wanted = check->kind == CHECK_HAS_KEY || check->kind == CHECK_HAS_ATTR;
    PyObject *text = PyUnicode_FromFormat(wanted ? "%s %U is missing in %.100s" : "%s %U was not expected in %.100s", what, key,
                                          Py_TYPE(obj)->tp_name);
    Py_DECREF(key);
    return text;
}

static PyObject *
detail_distinct(const Check *check, const Walk *walk)
{
    int first = 0, second = 0;
    if (all_distinct(check, walk, &first, &second) < 0) {
        return NULL;
    }
    PyObject *a = node_source(walk->tree, check->nodes[first]);
    PyObject *b = a == NULL ? NULL : node_source(walk->tree, check->nodes[second]);
    PyObject *text = b == NULL ? NULL : PyUnicode_FromFormat("%U and %U are the same object", a, b);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return text;
}

static PyObject *
detail_same_object(const Check *check, const Walk *walk)
{
    PyObject *a = node_source(walk->tree, check->nodes[0]);
    PyObject *b = a == NULL ? NULL : node_source(walk->tree, check->nodes[1]);
    PyObject *text = b == NULL ? NULL : PyUnicode_FromFormat("%U and %U are different objects", a, b);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return text;
}

PyObject *
check_detail(const Check *check, PyObject *obj, Walk *walk)
{
    switch (check->kind) {
    case CHECK_TYPE:
    case CHECK_TYPE_VERSION:
    case CHECK_ISINSTANCE:
        return detail_type(check, obj);
    case CHECK_TENSOR:
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak) ? tensor_spec_detail(check->tensor, obj)
                                                                                 : detail_type(check, obj);
    case CHECK_ID:
    case CHECK_NOT_ID:
        return detail_identity(check, obj);
    case CHECK_EQUALS:
        return expected_found(check->a, obj);
    case CHECK_IS_NONE:
        return expected_found(Py_None, obj);
    case CHECK_NOT_NONE:
        return PyUnicode_FromString("expected something else than None");
    case CHECK_TRUTH:
        return PyUnicode_FromFormat("expected a %s value, found %R", check->low ? "true" : "false", obj);
    case CHECK_LEN: {
        Py_ssize_t size = PyObject_Size(obj);
        return size < 0 ? NULL : PyUnicode_FromFormat("expected length %lld, found %zd", check->low, size);
    }
    case CHECK_DICT_KEYS:
        return detail_dict_keys(check, obj);
    case CHECK_INT_RANGE:
        return detail_int_range(check, obj);
    case CHECK_CALL:
        return detail_call(check->a, PyObject_CallOneArg(check->a, obj), check->b);
    case CHECK_GLOBAL_STATE:
        return detail_global_state(check);
    case CHECK_SAME_OBJECT:
        return detail_same_object(check, walk);
    case CHECK_DISTINCT:
        return detail_distinct(check, walk);
    case CHECK_PYTHON:
        return PyUnicode_FromFormat("%R is not true of the values", check->a);
    default:
        return detail_key(check, obj);
    }
}
