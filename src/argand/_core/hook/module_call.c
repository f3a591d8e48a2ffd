/* Whether a call of a compiled module is one of its compiled forward, or hooks and hosts have a say. To ask for all of this in
 * Python takes 3 us in a step of training, whose operations leave little of Python's code in the caches. */
#include "core.h"

enum { MODULES, ORIGINAL, COMPILED, FORWARD, CALL, OWN_HOOKS, GLOBAL_HOOKS = 9, NUM_NAMES = 13 };
static const char *const texts[NUM_NAMES] = {
    "_modules", "_orig_mod", "_forward", "forward", "__call__",
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
};
static PyObject *names[NUM_NAMES];

static PyObject * /* borrowed, or NULL without an exception */
item(PyObject *dict, int name)
{
    return dict != NULL && PyDict_Check(dict) ? PyDict_GetItemWithError(dict, names[name]) : NULL;
}

static bool
no_hooks(PyObject *dict, int first)
{
    for (int i = first; i < first + 4; i++) {
        PyObject *hooks = item(dict, i);
        if (hooks == NULL || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0) {
            return false;
        }
    }
    return true;
}

/* Borrowed from own, the attributes of a compiled module; NULL where more is to be done than to call it. */
static PyObject *
forward_alone(PyObject *own, PyObject *plain, PyObject *global_hooks)
{
    PyObject *module = item(item(own, MODULES), ORIGINAL), *forward = item(own, COMPILED);
    if (module == NULL || forward == NULL || !PyTuple_CheckExact(forward) || PyTuple_GET_SIZE(forward) != 3 ||
        item(own, FORWARD) != NULL || !no_hooks(own, OWN_HOOKS) || !no_hooks(global_hooks, GLOBAL_HOOKS) ||
        _PyType_Lookup(Py_TYPE(module), names[CALL]) != plain) {
        return NULL;
    }
    PyObject *set = PyTuple_GET_ITEM(forward, 1), *of_class = _PyType_Lookup(Py_TYPE(module), names[FORWARD]);
    PyObject *its = PyObject_GenericGetDict(module, NULL), *set_now = item(its, FORWARD);
    bool same = no_hooks(its, OWN_HOOKS) && of_class == PyTuple_GET_ITEM(forward, 2) &&
                (set_now == NULL ? Py_None : set_now) == set;
    Py_XDECREF(its);
    return same ? PyTuple_GET_ITEM(forward, 0) : NULL;
}

static PyObject *
py_forward_alone(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "forward_alone takes 3 arguments (%zd given)", nargs);
    }
    for (int i = 0; i < NUM_NAMES && names[i] == NULL; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL) {
            return NULL;
        }
    }
    PyObject *own = PyObject_GenericGetDict(args[0], NULL);
    PyObject *compiled = forward_alone(own, args[1], args[2]);
    Py_XDECREF(own);
    return PyErr_Occurred() ? NULL : Py_NewRef(compiled == NULL ? Py_None : compiled);
}

PyMethodDef module_call_methods[] = {
    {"forward_alone", (PyCFunction)(void (*)(void))py_forward_alone, METH_FASTCALL,
     "forward_alone(compiled_module, plain_call, global_hooks, /)\n--\n\nWhat alone a call of it calls, or None."},
    {NULL},
};
