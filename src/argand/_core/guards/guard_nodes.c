/* Guard tree nodes: how a value is fetched from its parent, and what to say when it cannot be. */
#include "guards.h"

const AccessorInfo accessor_table[NUM_ACCESSORS] = {
    [ACC_ROOT] = {"root", ARG_NONE, false, 0},
    [ACC_LOCAL] = {"local", ARG_INDEX, true, 1},
    [ACC_GLOBAL] = {"global", ARG_NAME, true, 8},
    [ACC_BUILTIN] = {"builtin", ARG_NAME, true, 8},
    [ACC_CLOSURE] = {"closure", ARG_INDEX, true, 2},
    [ACC_CONST] = {"const", ARG_OBJECT, true, 1},
    [ACC_ATTR] = {"attr", ARG_NAME, false, 30},
    [ACC_TYPE] = {"type", ARG_NONE, false, 1},
    [ACC_TYPE_ATTR] = {"type_attr", ARG_NAME, false, 8},
    [ACC_INSTANCE_DICT] = {"instance_dict", ARG_NONE, false, 5},
    [ACC_DICT_ITEM] = {"dict_item", ARG_OBJECT, false, 8},
    [ACC_DICT_KEY] = {"dict_key", ARG_INDEX, false, 10},
    [ACC_DICT_VALUE] = {"dict_value", ARG_INDEX, false, 10},
    [ACC_SEQUENCE_ITEM] = {"sequence_item", ARG_INDEX, false, 2},
    [ACC_GETITEM] = {"getitem", ARG_OBJECT, false, 60},
    [ACC_CALL] = {"call", ARG_CALLABLE, false, 100},
    [ACC_FUNC_CODE] = {"func_code", ARG_NONE, false, 1},
    [ACC_FUNC_DEFAULTS] = {"func_defaults", ARG_NONE, false, 1},
    [ACC_FUNC_KWDEFAULTS] = {"func_kwdefaults", ARG_NONE, false, 1},
    [ACC_FUNC_CLOSURE] = {"func_closure", ARG_INDEX, false, 2},
    [ACC_CELL_CONTENTS] = {"cell_contents", ARG_NONE, false, 1},
    [ACC_METHOD_SELF] = {"method_self", ARG_NONE, false, 1},
    [ACC_METHOD_FUNC] = {"method_func", ARG_NONE, false, 1},
};

/* ---- building -------------------------------------------------------------------------------------------------- */

enum { WEAK_CONST = 1 }; /* `index` of a "const" node whose `arg` is a weak reference */

/* Classes and functions that a program makes while it runs may die although guards look into them. */
static bool
const_is_weak(PyObject *obj)
{
    return PyFunction_Check(obj) || (PyType_Check(obj) && (((PyTypeObject *)obj)->tp_flags & Py_TPFLAGS_HEAPTYPE));
}

int
node_parse(Node *node, PyObject *arg)
{
    const AccessorInfo *info = &accessor_table[node->accessor];
    switch (info->arg) {
    case ARG_NONE:
        return 0;
    case ARG_INDEX:
        if (!PyLong_Check(arg)) {
            PyErr_Format(PyExc_TypeError, "accessor \"%s\" takes an int, not %.100s", info->name, Py_TYPE(arg)->tp_name);
            return -1;
        }
        node->index = PyLong_AsSsize_t(arg);
        if (node->index == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (node->index < 0 && node->accessor != ACC_SEQUENCE_ITEM) {
            PyErr_Format(PyExc_ValueError, "accessor \"%s\" takes an index from 0 on", info->name);
            return -1;
        }
        return 0;
    case ARG_NAME:
        if (!PyUnicode_CheckExact(arg)) {
            PyErr_Format(PyExc_TypeError, "accessor \"%s\" takes a str, not %.100s", info->name, Py_TYPE(arg)->tp_name);
            return -1;
        }
        node->arg = Py_NewRef(arg);
        PyUnicode_InternInPlace(&node->arg);
        node->hash = PyObject_Hash(node->arg);
        return node->hash == -1 ? -1 : 0;
    case ARG_CALLABLE:
        if (!PyCallable_Check(arg)) {
            PyErr_Format(PyExc_TypeError, "accessor \"%s\" takes a callable, not %.100s", info->name, Py_TYPE(arg)->tp_name);
            return -1;
        }
        break;
    case ARG_OBJECT:
        if (node->accessor == ACC_CONST && const_is_weak(arg)) {
            node->index = WEAK_CONST;
            node->arg = PyWeakref_NewRef(arg, NULL);
            return node->arg == NULL ? -1 : 0;
        }
        if (node->accessor == ACC_DICT_ITEM) {
            node->hash = PyObject_Hash(arg);
            if (node->hash == -1) {
                return -1;
            }
        }
        break;
    }
    node->arg = Py_NewRef(arg);
    if (PyUnicode_CheckExact(arg)) {
        PyUnicode_InternInPlace(&node->arg); /* dict lookups of interned keys compare by identity */
    }
    return 0;
}

/* ---- fetching -------------------------------------------------------------------------------------------------- */

static inline PyObject *
fetch_dict_item(PyObject *dict, const PlanNode *node)
{
    return Py_XNewRef(_PyDict_GetItem_KnownHash(dict, node->arg, node->hash));
}

static inline PyObject *
fetch_cell(PyObject *cells, Py_ssize_t index)
{
    if (cells == NULL || index >= PyTuple_GET_SIZE(cells)) {
        return NULL;
    }
    PyObject *cell = PyTuple_GET_ITEM(cells, index);
    return PyCell_Check(cell) ? Py_XNewRef(PyCell_GET(cell)) : NULL;
}

PyObject *
node_fetch_root(const PlanNode *node, Walk *walk)
{
    const FrameView *view = walk->view;
    switch (node->accessor) {
    case ACC_LOCAL:
        return LIKELY(node->index < view->nargs) ? Py_XNewRef(view->args[node->index]) : NULL;
    case ACC_GLOBAL:
        return view->globals == NULL ? NULL : fetch_dict_item(view->globals, node);
    case ACC_BUILTIN:
        return view->builtins == NULL ? NULL : fetch_dict_item(view->builtins, node);
    case ACC_CLOSURE:
        return fetch_cell(view->closure, node->index);
    default: /* ACC_CONST: the builder lets no other accessor hang on the root */
        return Py_XNewRef(node->index == WEAK_CONST ? identity_target(node->arg, true) : node->arg);
    }
}

static PyObject *
fetch_instance_dict(PyObject *obj)
{
    PyObject **where = _PyObject_GetDictPtr(obj);
    if (where == NULL) {
        return NULL;
    }
    if (*where == NULL) { /* an object that has no attribute yet */
        return PyObject_GenericGetDict(obj, NULL);
    }
    return Py_NewRef(*where);
}

static PyObject *
fetch_dict_key(PyObject *dict, Py_ssize_t index)
{
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    if (!PyDict_Check(dict)) {
        return NULL;
    }
    if (PyODict_Check(dict) && PyDict_GET_SIZE(dict) != 1) { /* its order is not that of the dict underneath */
        PyObject *keys = dict_key_list(dict);
        key = keys != NULL && index < PyList_GET_SIZE(keys) ? Py_NewRef(PyList_GET_ITEM(keys, index)) : NULL;
        Py_XDECREF(keys);
        return key;
    }
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (index-- == 0) {
            return Py_NewRef(key);
        }
    }
    return NULL;
}

static PyObject *
fetch_dict_value(PyObject *dict, Py_ssize_t index)
{
    PyObject *key = fetch_dict_key(dict, index);
    PyObject *value = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(dict, key));
    Py_XDECREF(key);
    return value;
}

static PyObject *
fetch_sequence_item(PyObject *obj, Py_ssize_t index)
{
    if (!PyTuple_Check(obj) && !PyList_Check(obj)) {
        return NULL;
    }
    Py_ssize_t size = Py_SIZE(obj);
    index += index < 0 ? size : 0;
    if (index < 0 || index >= size) {
        return NULL;
    }
    return Py_NewRef(PyTuple_Check(obj) ? PyTuple_GET_ITEM(obj, index) : PyList_GET_ITEM(obj, index));
}

static PyObject *
fetch_of_function(const PlanNode *node, PyObject *obj)
{
    if (!PyFunction_Check(obj)) {
        return NULL;
    }
    PyFunctionObject *func = (PyFunctionObject *)obj;
    switch (node->accessor) {
    case ACC_FUNC_CODE:
        return Py_NewRef(func->func_code);
    case ACC_FUNC_DEFAULTS:
        return Py_NewRef(func->func_defaults == NULL ? Py_None : func->func_defaults);
    case ACC_FUNC_KWDEFAULTS:
        return Py_NewRef(func->func_kwdefaults == NULL ? Py_None : func->func_kwdefaults);
    default:
        return fetch_cell(func->func_closure, node->index);
    }
}

PyObject *
node_fetch(const PlanNode *node, PyObject *obj)
{
    switch (node->accessor) {
    case ACC_INSTANCE_DICT:
        return fetch_instance_dict(obj);
    case ACC_DICT_ITEM:
        return LIKELY(PyDict_Check(obj)) ? fetch_dict_item(obj, node) : NULL;
    case ACC_SEQUENCE_ITEM:
        return fetch_sequence_item(obj, node->index);
    case ACC_ATTR:
        return PyObject_GetAttr(obj, node->arg);
    case ACC_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(obj));
    case ACC_TYPE_ATTR:
        return PyType_Check(obj) ? Py_XNewRef(_PyType_Lookup((PyTypeObject *)obj, node->arg)) : NULL;
    case ACC_DICT_KEY:
        return fetch_dict_key(obj, node->index);
    case ACC_DICT_VALUE:
        return fetch_dict_value(obj, node->index);
    case ACC_GETITEM:
        return PyObject_GetItem(obj, node->arg);
    case ACC_CALL:
        return PyObject_CallOneArg(node->arg, obj);
    case ACC_CELL_CONTENTS:
        return PyCell_Check(obj) ? Py_XNewRef(PyCell_GET(obj)) : NULL;
    case ACC_METHOD_SELF:
        return PyMethod_Check(obj) ? Py_NewRef(PyMethod_GET_SELF(obj)) : NULL;
    case ACC_METHOD_FUNC:
        return PyMethod_Check(obj) ? Py_NewRef(PyMethod_GET_FUNCTION(obj)) : NULL;
    default:
        return fetch_of_function(node, obj);
    }
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

PyObject *
node_missing_detail(const PlanNode *node, PyObject *parent)
{
    const char *type = parent == NULL ? "frame" : Py_TYPE(parent)->tp_name;
    switch (node->accessor) {
    case ACC_CONST:
        return PyUnicode_FromString("a class or function no longer exists");
    case ACC_LOCAL:
        return PyUnicode_FromFormat("the frame has no argument %zd", node->index);
    case ACC_GLOBAL:
        return PyUnicode_FromFormat("global %R no longer exists", node->arg);
    case ACC_BUILTIN:
        return PyUnicode_FromFormat("builtin %R no longer exists", node->arg);
    case ACC_CLOSURE:
    case ACC_FUNC_CLOSURE:
        return PyUnicode_FromFormat("free variable %zd of %.100s is missing or empty", node->index, type);
    case ACC_CELL_CONTENTS:
        return PyUnicode_FromFormat(parent != NULL && PyCell_Check(parent) ? "the cell is empty" : "expected a cell, found %.100s",
                                    type);
    case ACC_DICT_ITEM:
    case ACC_GETITEM: {
        if (node->accessor == ACC_DICT_ITEM && !PyDict_Check(parent)) {
            return PyUnicode_FromFormat("expected a dict, found %.100s", type);
        }
        PyObject *key = short_repr(node->arg);
        PyObject *text = key == NULL ? NULL : PyUnicode_FromFormat("key %U is missing in %.100s", key, type);
        Py_XDECREF(key);
        return text;
    }
    case ACC_SEQUENCE_ITEM:
        if (!PyTuple_Check(parent) && !PyList_Check(parent)) {
            return PyUnicode_FromFormat("expected a list or tuple, found %.100s", type);
        }
        return PyUnicode_FromFormat("no item %zd in %.100s of length %zd", node->index, type, Py_SIZE(parent));
    case ACC_DICT_KEY:
    case ACC_DICT_VALUE:
        return PyUnicode_FromFormat("no key number %zd in %.100s", node->index, type);
    case ACC_TYPE_ATTR:
        return PyUnicode_FromFormat("attribute %R is missing on %.100s", node->arg,
                                    PyType_Check(parent) ? ((PyTypeObject *)parent)->tp_name : type);
    case ACC_INSTANCE_DICT:
        return PyUnicode_FromFormat("%.100s object has no __dict__", type);
    case ACC_METHOD_SELF:
    case ACC_METHOD_FUNC:
        return PyUnicode_FromFormat("expected a bound method, found %.100s", type);
    default:
        return PyUnicode_FromFormat("cannot take %s of %.100s", accessor_table[node->accessor].name, type);
    }
}

PyObject *
node_source(const GuardTree *tree, int index)
{
    const Node *node = &tree->nodes[index];
    const AccessorInfo *info = &accessor_table[node->accessor];
    if (node->accessor == ACC_ROOT) {
        return PyUnicode_FromString("");
    }
    PyObject *parent = node_source(tree, node->parent);
    if (parent == NULL) {
        return NULL;
    }
    const char *dot = node->parent == 0 ? "" : ".";
    PyObject *text = NULL, *arg = NULL;
    switch (info->arg) {
    case ARG_NONE:
        text = PyUnicode_FromFormat("%U%s%s()", parent, dot, info->name);
        break;
    case ARG_INDEX:
        text = PyUnicode_FromFormat("%U%s%s[%zd]", parent, dot, info->name, node->index);
        break;
    default: {
        bool weak = node->accessor == ACC_CONST && node->index == WEAK_CONST;
        PyObject *target = weak ? identity_target(node->arg, true) : node->arg;
        arg = short_repr(target == NULL ? Py_None : target);
        text = arg == NULL ? NULL : PyUnicode_FromFormat("%U%s%s(%U)", parent, dot, info->name, arg);
    }
    }
    Py_XDECREF(arg);
    Py_DECREF(parent);
    return text;
}
