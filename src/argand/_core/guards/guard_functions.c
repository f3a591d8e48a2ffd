/* The "functions" check: Python functions that were inlined have the code and the defaults that they had.
 *
 * A function that is gone is no longer asked: what found it is guarded elsewhere. Defaults that are atoms are compared by
 * value; of others only the number is, and capture guards those that it used where they come from. */
#include "guards.h"
#include "watch.h"

typedef struct {
    PyObject *weak;       /* weak reference to the function */
    PyObject *code;       /* strong */
    PyObject *defaults;   /* strong; NULL: the function has none, or their number counts */
    PyObject *kwdefaults; /* a copy, strong; NULL likewise */
    Py_ssize_t num_defaults, num_kwdefaults; /* -1: none */
    PyObject *seen;       /* the function's __kwdefaults__ (borrowed, only compared) that was equal in this version */
    uint64_t version;
} Known;

struct FunctionTable {
    int count;
    Known *known;
};

void
function_table_free(FunctionTable *table)
{
    if (table == NULL) {
        return;
    }
    for (int i = 0; i < table->count; i++) {
        Py_XDECREF(table->known[i].weak);
        Py_XDECREF(table->known[i].code);
        Py_XDECREF(table->known[i].defaults);
        Py_XDECREF(table->known[i].kwdefaults);
    }
    PyMem_Free(table->known);
    PyMem_Free(table);
}

int
function_table_visit(FunctionTable *table, visitproc visit, void *arg)
{
    for (int i = 0; i < table->count; i++) {
        Py_VISIT(table->known[i].weak);
        Py_VISIT(table->known[i].code);
        Py_VISIT(table->known[i].defaults);
        Py_VISIT(table->known[i].kwdefaults);
    }
    return 0;
}

/* Holding it keeps nothing else alive, and comparing it runs no Python code. */
static bool
is_atom(PyObject *value)
{
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
           PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) || PyComplex_CheckExact(value);
}

static bool
all_atoms(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (!is_atom(PyTuple_GET_ITEM(tuple, i))) {
            return false;
        }
    }
    return true;
}

static bool
all_values_atoms(PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (!PyUnicode_CheckExact(key) || !is_atom(value)) {
            return false;
        }
    }
    return true;
}

static int
know(Known *known, PyObject *obj)
{
    if (!PyFunction_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "check \"functions\" takes a tuple of Python functions, not %.100s",
                     Py_TYPE(obj)->tp_name);
        return -1;
    }
    PyFunctionObject *function = (PyFunctionObject *)obj;
    PyObject *defaults = function->func_defaults, *kwdefaults = function->func_kwdefaults;
    known->weak = PyWeakref_NewRef(obj, NULL);
    known->code = Py_NewRef(function->func_code);
    known->num_defaults = defaults == NULL ? -1 : PyTuple_GET_SIZE(defaults);
    known->num_kwdefaults = kwdefaults == NULL ? -1 : PyDict_GET_SIZE(kwdefaults);
    if (defaults != NULL && all_atoms(defaults)) {
        known->defaults = Py_NewRef(defaults);
    }
    if (kwdefaults != NULL && all_values_atoms(kwdefaults)) {
        known->kwdefaults = PyDict_Copy(kwdefaults);
    }
    return known->weak == NULL || PyErr_Occurred() ? -1 : 0;
}

FunctionTable *
function_table_new(PyObject *functions)
{
    if (!PyTuple_Check(functions)) {
        PyErr_SetString(PyExc_TypeError, "check \"functions\" takes a tuple of Python functions");
        return NULL;
    }
    FunctionTable *table = PyMem_Calloc(1, sizeof(FunctionTable));
    Known *known = PyMem_Calloc(PyTuple_GET_SIZE(functions) + 1, sizeof(Known));
    if (table == NULL || known == NULL) {
        PyMem_Free(table);
        PyMem_Free(known);
        PyErr_NoMemory();
        return NULL;
    }
    table->known = known;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(functions); i++) {
        table->count++;
        if (know(&known[i], PyTuple_GET_ITEM(functions, i)) < 0) {
            function_table_free(table);
            return NULL;
        }
    }
    return table;
}

static int
same_defaults(const Known *known, PyObject *defaults)
{
    if (known->defaults == NULL || defaults == NULL) {
        return known->num_defaults == (defaults == NULL ? -1 : PyTuple_GET_SIZE(defaults));
    }
    return exact_equal(defaults, known->defaults);
}

static int
same_kwdefaults(Known *known, PyObject *kwdefaults)
{
    if (known->kwdefaults == NULL || kwdefaults == NULL) {
        return known->num_kwdefaults == (kwdefaults == NULL ? -1 : PyDict_GET_SIZE(kwdefaults));
    }
    uint64_t version = dict_version(kwdefaults);
    if (kwdefaults == known->seen && version == known->version && dict_version_counts(kwdefaults)) {
        return 1;
    }
    int status = all_values_atoms(kwdefaults) ? exact_equal(kwdefaults, known->kwdefaults) : 0;
    if (status > 0) {
        known->seen = kwdefaults;
        known->version = version;
    }
    return status;
}

/* Index of the first function that was changed, their number when none was, -1 with an exception. */
Py_ssize_t
function_table_changed(const FunctionTable *table)
{
    for (int i = 0; i < table->count; i++) {
        Known *known = &table->known[i];
        PyFunctionObject *function = (PyFunctionObject *)identity_target(known->weak, true);
        if (function == NULL) {
            continue;
        }
        if (function->func_code != known->code) {
            return i;
        }
        PyObject *defaults = function->func_defaults;
        bool settled = defaults == known->defaults && (defaults != NULL || known->num_defaults < 0);
        int status = settled ? 1 : same_defaults(known, defaults);
        if (status > 0 && (function->func_kwdefaults != NULL || known->num_kwdefaults >= 0)) {
            status = same_kwdefaults(known, function->func_kwdefaults);
        }
        if (status <= 0) {
            return status < 0 ? -1 : i;
        }
    }
    return table->count;
}

/* Borrowed: the function at a place of the table, NULL when it is gone. */
PyObject *
function_table_at(const FunctionTable *table, Py_ssize_t i)
{
    return i < table->count ? identity_target(table->known[i].weak, true) : NULL;
}

Py_ssize_t
function_table_size(const FunctionTable *table)
{
    return table->count;
}
