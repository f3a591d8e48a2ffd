/* The "type_version" check once the version of its class has moved: were the attributes that matter changed, or others?
 *
 * CPython gives a class a new version when any attribute of it or of a base is set. Capture says which names it looked up;
 * names that begin with an underscore always matter (special methods are looked up by native code), but for
 * `__slotnames__`, which CPython puts into a class when an object of it is first copied or pickled. Their values are
 * remembered for each class of the MRO, and compared when the version is another. */
#include "guards.h"

typedef struct {
    PyObject *klass;  /* strong or weak reference */
    PyObject *values; /* dict: name -> value or weak reference; NULL for a class that cannot change */
    bool weak;
} Namespace;

struct ClassNames {
    PyObject *names; /* frozenset */
    int count;
    Namespace *spaces; /* of the classes of the MRO, in order */
};

void
class_names_free(ClassNames *names)
{
    if (names != NULL) {
        for (int i = 0; i < names->count; i++) {
            Py_XDECREF(names->spaces[i].klass);
            Py_XDECREF(names->spaces[i].values);
        }
        Py_XDECREF(names->names);
        PyMem_Free(names->spaces);
        PyMem_Free(names);
    }
}

int
class_names_visit(ClassNames *names, visitproc visit, void *arg)
{
    for (int i = 0; i < names->count; i++) {
        Py_VISIT(names->spaces[i].klass);
        Py_VISIT(names->spaces[i].values);
    }
    return 0;
}

static inline bool
class_fixed(PyTypeObject *type)
{
    return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
}

/* 1, 0 or -1. Names are exact strings: hashing and comparing them runs no Python code. */
static int
name_matters(PyObject *names, PyObject *name)
{
    bool private = PyUnicode_GET_LENGTH(name) > 0 && PyUnicode_READ_CHAR(name, 0) == '_';
    return private && PyUnicode_CompareWithASCIIString(name, "__slotnames__") != 0 ? 1 : PySet_Contains(names, name);
}

/* Whether a value of a class's namespace is one of the descriptors that CPython makes for the class: `__dict__`,
 * `__weakref__`, slots. They refer to the class. */
static bool
own_descriptor(PyObject *klass, PyObject *value)
{
    bool descriptor = Py_IS_TYPE(value, &PyGetSetDescr_Type) || Py_IS_TYPE(value, &PyMemberDescr_Type);
    return descriptor && (PyObject *)PyDescr_TYPE(value) == klass;
}

/* Borrowed: the object if it can be held weakly, or the function of a static or class method; else NULL. */
static PyObject *
weak_part(PyObject *value)
{
    if (Py_IS_TYPE(value, &PyStaticMethod_Type) || Py_IS_TYPE(value, &PyClassMethod_Type)) {
        PyObject *function = PyObject_GetAttrString(value, "__func__"); /* a member: the value keeps it alive */
        PyErr_Clear();
        Py_XDECREF(function);
        value = function;
    }
    return value != NULL && PyType_SUPPORTS_WEAKREFS(Py_TYPE(value)) ? value : NULL;
}

/* Something that says which object a class had, weak where that can be: guards keep no more alive than they must, and
 * above all not the class. What is no weak reference to the value itself is a tuple: (type, weak reference to the
 * function), (None, address of a descriptor of the class), (value,). NULL with an exception. */
static PyObject *
hold(PyObject *klass, PyObject *value)
{
    if (own_descriptor(klass, value)) {
        return Py_BuildValue("(ON)", Py_None, PyLong_FromVoidPtr(value));
    }
    PyObject *part = weak_part(value);
    if (part == NULL) {
        return PyTuple_Pack(1, value);
    }
    PyObject *weak = PyWeakref_NewRef(part, NULL);
    return weak == NULL || part == value ? weak : Py_BuildValue("(ON)", Py_TYPE(value), weak);
}

static PyObject *
snapshot_namespace(PyObject *klass, PyObject *names)
{
    PyObject *dict = ((PyTypeObject *)klass)->tp_dict;
    PyObject *values = PyDict_New(), *name, *value;
    Py_ssize_t pos = 0;
    while (values != NULL && PyDict_Next(dict, &pos, &name, &value)) {
        int matters = PyUnicode_CheckExact(name) ? name_matters(names, name) : 0;
        PyObject *held = matters > 0 ? hold(klass, value) : NULL;
        if (matters < 0 || (matters > 0 && (held == NULL || PyDict_SetItem(values, name, held) < 0))) {
            Py_CLEAR(values);
        }
        Py_XDECREF(held);
    }
    return values;
}

ClassNames *
class_names_new(PyTypeObject *type, PyObject *wanted)
{
    PyObject *mro = type->tp_mro;
    ClassNames *names = PyMem_Calloc(1, sizeof(ClassNames));
    if (names == NULL || mro == NULL) {
        PyMem_Free(names);
        PyErr_NoMemory();
        return NULL;
    }
    names->names = PyFrozenSet_New(wanted);
    names->spaces = PyMem_Calloc(PyTuple_GET_SIZE(mro) + 1, sizeof(Namespace));
    bool ok = names->names != NULL && names->spaces != NULL;
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *klass = PyTuple_GET_ITEM(mro, i);
        Namespace *space = &names->spaces[names->count++];
        space->weak = !class_fixed((PyTypeObject *)klass);
        space->klass = space->weak ? PyWeakref_NewRef(klass, NULL) : Py_NewRef(klass);
        if (space->weak) {
            space->values = snapshot_namespace(klass, names->names);
            ok = space->klass != NULL && space->values != NULL;
        }
    }
    if (!ok) {
        class_names_free(names);
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return NULL;
    }
    return names;
}

/* Runs no Python code: atoms are compared by value, everything else by identity. */
static bool
same_value(PyObject *klass, PyObject *held, PyObject *value)
{
    if (!PyTuple_CheckExact(held)) {
        return identity_target(held, true) == value;
    }
    PyObject *kind = PyTuple_GET_ITEM(held, 0);
    if (PyTuple_GET_SIZE(held) == 1) {
        bool atom = PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value);
        return kind == value || (atom && Py_TYPE(kind) == Py_TYPE(value) && exact_equal(kind, value) == 1);
    }
    PyObject *what = PyTuple_GET_ITEM(held, 1);
    if (kind == Py_None) {
        return own_descriptor(klass, value) && PyLong_AsVoidPtr(what) == (void *)value;
    }
    PyObject *part = kind == (PyObject *)Py_TYPE(value) ? weak_part(value) : NULL;
    return part != NULL && identity_target(what, true) == part;
}

/* Whether a class of the MRO gained a name for what it had inherited under that name: who looks it up, from wherever in
 * the MRO, gets what they got before. So flags of packages are kept (`with setting(False):` writes the old value back).
 * Special methods and what CPython reads off the class itself (`__doc__`) do not count, nor do descriptors, nor what
 * stands behind a class that cannot change (CPython 3.12 keeps the names of its own ones elsewhere). */
static bool
was_inherited(const ClassNames *names, const Namespace *space, PyObject *name, PyObject *value)
{
    if (PyUnicode_GET_LENGTH(name) > 1 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_') {
        return false;
    }
    for (const Namespace *base = space + 1; base < names->spaces + names->count && base->weak; base++) {
        PyObject *klass = identity_target(base->klass, true), *held = PyDict_GetItemWithError(base->values, name);
        if (held != NULL || klass == NULL || PyDict_GetItemWithError(((PyTypeObject *)klass)->tp_dict, name) != NULL) {
            bool plain = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value)
                         || PyUnicode_CheckExact(value);
            return held != NULL && plain && same_value(NULL, held, value);
        }
    }
    return false;
}

/* The first name of a class that matters and has another value now (borrowed), NULL when there is none. */
static PyObject *
changed_name(const ClassNames *names, const Namespace *space, PyObject *klass)
{
    PyObject *dict = ((PyTypeObject *)klass)->tp_dict;
    PyObject *name, *value, *held;
    Py_ssize_t pos = 0, seen = 0;
    while (PyDict_Next(dict, &pos, &name, &value)) {
        if (!PyUnicode_CheckExact(name)) {
            continue;
        }
        held = PyDict_GetItemWithError(space->values, name);
        bool same = held != NULL ? same_value(klass, held, value) : was_inherited(names, space, name, value);
        if (!same && (held != NULL || name_matters(names->names, name) != 0)) {
            return name;
        }
        seen += held != NULL;
    }
    if (seen == PyDict_GET_SIZE(space->values)) {
        return NULL;
    }
    pos = 0;
    while (PyDict_Next(space->values, &pos, &name, &held)) {
        if (PyDict_GetItemWithError(dict, name) == NULL) {
            return name;
        }
    }
    return NULL;
}

/* Whether everything that matters is as it was. Otherwise *name (borrowed) is what changed, NULL when it is the bases. */
bool
class_names_hold(const ClassNames *names, PyTypeObject *type, PyObject **name)
{
    PyObject *mro = type->tp_mro;
    *name = NULL;
    if (mro == NULL || PyTuple_GET_SIZE(mro) != names->count) {
        return false;
    }
    for (int i = 0; i < names->count; i++) {
        const Namespace *space = &names->spaces[i];
        PyObject *klass = PyTuple_GET_ITEM(mro, i);
        if (identity_target(space->klass, space->weak) != klass) {
            return false;
        }
        *name = space->weak ? changed_name(names, space, klass) : NULL;
        if (*name != NULL) {
            return false;
        }
    }
    return true;
}
