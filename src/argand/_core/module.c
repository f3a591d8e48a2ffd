/* The module object: collects what the other files define. */
#include "core.h"
#include "profile.h"
#include "watch.h"

static int
add_types(PyObject *module)
{
    static PyTypeObject *const types[] = {
        &GuardTree_Type, &Kernel_Type,    &DeviceKernel_Type, &DeviceProduct_Type,
        &Entry_Type,     &FrameInfo_Type, &Region_Type,       &Sentinel_Type,
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
add_constants(PyObject *module)
{
    return PyModule_AddObjectRef(module, "SKIP", sentinels[MODE_SKIP]) < 0 ||
                   PyModule_AddObjectRef(module, "SKIP_RECURSIVE", sentinels[MODE_SKIP_RECURSIVE]) < 0 ||
                   PyModule_AddObjectRef(module, "RUN_ONLY", sentinels[MODE_RUN_ONLY]) < 0 ||
                   PyModule_AddIntConstant(module, "TENSOR_INFERENCE", TENSOR_INFERENCE) < 0 ||
                   PyModule_AddIntConstant(module, "TENSOR_ANY_INFERENCE", TENSOR_ANY_INFERENCE) < 0
               ? -1
               : 0;
}

static PyObject *
py_exact_equal(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "exact_equal takes 2 arguments (%zd given)", nargs);
    }
    int status = exact_equal(args[0], args[1]);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

/* CPython's messages name a type by tp_name, which Python code has no other way to read. */
static PyObject *
py_type_name(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type)) {
        return PyErr_Format(PyExc_TypeError, "type_name takes a type, not %R", type);
    }
    return PyUnicode_FromString(((PyTypeObject *)type)->tp_name);
}

/* Whether a class has something that is asked when an attribute of this name is set. */
static bool
is_set_by_class(PyTypeObject *cls, PyObject *name)
{
    PyObject *attribute = _PyType_Lookup(cls, name);
    return attribute != NULL && Py_TYPE(attribute)->tp_descr_set != NULL;
}

/* As its own code would set them: CPython keeps an object's attributes in the object, which is quicker to read, until somebody
 * asks for its __dict__. */
static PyObject *
py_set_in_object(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyDict_CheckExact(args[1])) {
        return PyErr_Format(PyExc_TypeError, "set_in_object takes an object and a dict");
    }
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(args[1], &at, &name, &value)) {
        if (!PyUnicode_CheckExact(name) || is_set_by_class(Py_TYPE(args[0]), name)) {
            Py_RETURN_FALSE;
        }
    }
    at = 0;
    while (PyDict_Next(args[1], &at, &name, &value)) {
        if (PyObject_GenericSetAttr(args[0], name, value) < 0) {
            return NULL;
        }
    }
    Py_RETURN_TRUE;
}

static PyMethodDef equality_methods[] = {
    {"exact_equal", (PyCFunction)(void (*)(void))py_exact_equal, METH_FASTCALL,
     "exact_equal(a, b, /)\n--\n\nThe comparison of the \"equals\" check."},
    {"type_name", py_type_name, METH_O,
     "type_name(type, /)\n--\n\nThe name of a type in CPython's own messages: functools.partial, but int."},
    {"set_in_object", (PyCFunction)(void (*)(void))py_set_in_object, METH_FASTCALL,
     "set_in_object(object, attributes, /)\n--\n\nSets them past any __setattr__; False, and nothing is set, where the class "
     "has something to say."},
    {NULL},
};

/* By the slots: each class that fills one has a `__getattribute__` of its own in its dict, whatever it does. */
static PyObject *
py_generic_attributes(PyObject *Py_UNUSED(module), PyObject *cls)
{
    if (!PyType_Check(cls)) {
        return PyErr_Format(PyExc_TypeError, "generic_attributes takes a class, not %.100s", Py_TYPE(cls)->tp_name);
    }
    PyTypeObject *type = (PyTypeObject *)cls;
    return Py_BuildValue("(OO)", type->tp_getattro == PyObject_GenericGetAttr ? Py_True : Py_False,
                         type->tp_setattro == PyObject_GenericSetAttr ? Py_True : Py_False);
}

static PyMethodDef class_methods[] = {
    {"generic_attributes", py_generic_attributes, METH_O,
     "generic_attributes(cls, /)\n--\n\nWhether reading, and whether writing attributes is object's own way of it."},
    {NULL},
};

/* What is process-wide: once, also when the module is imported anew. */
static int
init_process(void)
{
    static bool done;
    if (done) {
        return 0;
    }
    watch_init();
    if (cache_init() < 0 || hook_init() < 0 || tensor_init() < 0) {
        return -1;
    }
    done = true;
    return 0;
}

static int
exec_core(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "argand does not support subinterpreters: its frame hook is process-wide");
        return -1;
    }
    if (init_process() < 0 || add_types(module) < 0 || add_constants(module) < 0 ||
        PyModule_AddFunctions(module, hook_methods) < 0 || PyModule_AddFunctions(module, cache_methods) < 0 ||
        PyModule_AddFunctions(module, tensor_methods) < 0 || PyModule_AddFunctions(module, equality_methods) < 0 ||
        PyModule_AddFunctions(module, profile_methods) < 0 || PyModule_AddFunctions(module, restoring_methods) < 0 ||
        PyModule_AddFunctions(module, class_methods) < 0 || PyModule_AddFunctions(module, native_watch_methods) < 0 ||
        PyModule_AddFunctions(module, module_call_methods) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, exec_core},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "argand._core._C",
    .m_doc = "Frame hook, per-code entry cache, guard trees, tensor metadata and kernel launcher. See _C.pyi.",
    .m_slots = core_slots,
};

PyMODINIT_FUNC
PyInit__C(void)
{
    return PyModuleDef_Init(&core_module);
}
