/* Guard checks: saying why one failed. */
#include "guards.h"

/* "expected X, found Y" from two objects. */
static PyObject *
expected_found(PyObject *expected, PyObject *actual)
{
    PyObject *e = short_repr(expected), *f = e == NULL ? NULL : short_repr(actual), *text = NULL;
    if (f != NULL && Py_TYPE(expected) != Py_TYPE(actual)) {
        text = PyUnicode_FromFormat("expected %U (%.100s), found %U (%.100s)", e, Py_TYPE(expected)->tp_name, f,
                                    Py_TYPE(actual)->tp_name);
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
        PyObject *changed = NULL;
        if (check->names == NULL || class_names_hold(check->names, cls, &changed) || changed == NULL) {
            return PyUnicode_FromFormat("class %.100s or a base of it was modified", cls->tp_name);
        }
        return PyUnicode_FromFormat("attribute %R of class %.100s or a base of it was changed", changed, cls->tp_name);
    }
    if (strcmp(cls->tp_name, type->tp_name) == 0) {
        return PyUnicode_FromFormat("expected type %.100s, found another class of that name", cls->tp_name);
    }
    return PyUnicode_FromFormat("expected type %.100s, found %.100s", cls->tp_name, type->tp_name);
}

static PyObject *
detail_identity(const Check *check, PyObject *obj)
{
    PyObject *target = identity_target(check->a, check->weak);
    if (target == NULL) {
        return PyUnicode_FromString("the expected object no longer exists");
    }
    PyObject *text = short_repr(target);
    PyObject *own_text = text == NULL ? NULL : short_repr(obj);
    PyObject *detail = NULL;
    if (own_text != NULL) {
        detail = PyUnicode_FromFormat("expected the object %U at %p, found %U at %p", text, target, own_text, obj);
    }
    Py_XDECREF(text);
    Py_XDECREF(own_text);
    return detail;
}

static PyObject *
detail_dict_keys(const Check *check, PyObject *obj)
{
    if (!PyDict_Check(obj)) {
        return PyUnicode_FromFormat("expected a dict, found %.100s", Py_TYPE(obj)->tp_name);
    }
    PyObject *keys = dict_key_list(obj);
    PyObject *actual_keys = keys == NULL ? NULL : PyList_AsTuple(keys);
    PyObject *text = NULL;
    if (actual_keys != NULL) {
        PyObject *e = short_repr(check->a), *f = e == NULL ? NULL : short_repr(actual_keys);
        text = f == NULL ? NULL : PyUnicode_FromFormat("expected keys %U, found %U", e, f);
        Py_XDECREF(e);
        Py_XDECREF(f);
    }
    Py_XDECREF(keys);
    Py_XDECREF(actual_keys);
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
    Py_ssize_t changed = check_first_changed_state(check);
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
    if (check_distinct(check, walk, &first, &second) < 0) {
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
        return detail_type(check, obj);
    case CHECK_TENSOR:
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak) ? tensor_spec_detail(check->tensor, obj)
                                                                                 : detail_type(check, obj);
    case CHECK_ID:
        return detail_identity(check, obj);
    case CHECK_EQUALS:
    case CHECK_BASE_VALUE:
        return expected_found(check->a, obj);
    case CHECK_IS_NONE:
        return expected_found(Py_None, obj);
    case CHECK_NOT_NONE:
        return PyUnicode_FromString("expected something else than None");
    case CHECK_LEN: {
        Py_ssize_t size = PyObject_Size(obj);
        return size < 0 ? NULL : PyUnicode_FromFormat("expected length %zd, found %zd", check->length, size);
    }
    case CHECK_DICT_KEYS:
        return detail_dict_keys(check, obj);
    case CHECK_CALL:
        return detail_call(check->a, PyObject_CallOneArg(check->a, obj), check->b);
    case CHECK_GLOBAL_STATE:
        return detail_global_state(check);
    case CHECK_FUNCTIONS: {
        Py_ssize_t changed = function_table_changed(check->functions);
        PyObject *function = changed < 0 ? NULL : function_table_at(check->functions, changed);
        return function == NULL ? (PyErr_Occurred() ? NULL : PyUnicode_FromString("changed for a moment"))
                                : PyUnicode_FromFormat("%U() has other code or other defaults than it had",
                                                       ((PyFunctionObject *)function)->func_qualname);
    }
    case CHECK_SAME_OBJECT:
        return detail_same_object(check, walk);
    case CHECK_DISTINCT:
        return detail_distinct(check, walk);
    case CHECK_PYTHON:
        return PyUnicode_FromFormat("%R is not true of the values", check->a);
    case CHECK_EXPR:
        return program_detail(check->program, walk);
    default:
        return detail_key(check, obj);
    }
}
