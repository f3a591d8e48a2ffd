/* Tensor metadata and data pointers through the DLPack C exchange API that torch publishes. No torch headers. */
#include "tensor.h"

/* ---- the exchange API ------------------------------------------------------------------------------------------ */

typedef struct ExchangeHeader {
    uint32_t major, minor;
    struct ExchangeHeader *previous; /* an older table of the same producer, or NULL */
} ExchangeHeader;

typedef struct {
    ExchangeHeader header;
    void *allocator, *from_object, *to_object; /* not used here */
    TensorViewFn view_of_object;
    void *current_stream;
} ExchangeTable;

#define EXCHANGE_MAJOR 1

TensorViewFn tensor_view_fn = NULL;
PyTypeObject *tensor_base = NULL;
static PyTypeObject *recent_type = NULL; /* a subclass found good last; kept alive */
static PyObject *requires_grad_descr = NULL;
PyObject *tensor_names[NUM_NAMES];
static const char *const name_texts[NUM_NAMES] = {"dtype", "device", "requires_grad", "shape", "stride", "type", "index"};

int
tensor_type_ok(PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);
    if (type == recent_type || type == tensor_base) {
        return 1;
    }
    if (tensor_base == NULL || !PyType_IsSubtype(type, tensor_base)) {
        return 0;
    }
    Py_XSETREF(recent_type, (PyTypeObject *)Py_NewRef(type));
    return 1;
}

int
tensor_view(PyObject *obj, TensorView *out)
{
    if (tensor_view_fn == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "set_exchange_api was not called");
        return -1;
    }
    if (!tensor_type_ok(obj)) {
        PyErr_Format(PyExc_TypeError, "expected a tensor, not %.100s", Py_TYPE(obj)->tp_name);
        return -1;
    }
    return tensor_view_fn(obj, out) < 0 ? -1 : 0;
}

/* torch's own answer, through the descriptor of its tensor class: no lookup along the class of the object. */
int
tensor_requires_grad(PyObject *obj)
{
    PyObject *result, *hush;
    if (tensor_hush(obj, &hush) < 0) {
        return -1;
    }
    if (LIKELY(Py_IS_TYPE(requires_grad_descr, &PyGetSetDescr_Type))) {
        PyGetSetDef *def = ((PyGetSetDescrObject *)requires_grad_descr)->d_getset;
        result = def->get(obj, def->closure);
    }
    else {
        result = PyObject_GetAttr(obj, tensor_names[N_REQUIRES_GRAD]);
    }
    tensor_unhush(hush);
    if (result == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

PyObject *
tensor_module_call(const char *function, PyObject *args)
{
    PyObject *module = args == NULL ? NULL : PyImport_ImportModule("argand._core.tensor_samples");
    PyObject *callable = module == NULL ? NULL : PyObject_GetAttrString(module, function);
    PyObject *result = callable == NULL ? NULL : PyObject_CallObject(callable, args);
    Py_XDECREF(module);
    Py_XDECREF(callable);
    Py_XDECREF(args);
    return result;
}

static PyObject *
imported_tensor_type(void)
{
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (torch == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "set_exchange_api: torch is not imported and no tensor type was given");
        return NULL;
    }
    return PyObject_GetAttrString(torch, "Tensor");
}

static PyObject *
set_exchange_api(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 2) {
        return PyErr_Format(PyExc_TypeError, "set_exchange_api takes 1 or 2 arguments (%zd given)", nargs);
    }
    if (!PyCapsule_IsValid(args[0], "dlpack_exchange_api")) {
        return PyErr_Format(PyExc_ValueError, "not a \"dlpack_exchange_api\" capsule: %R", args[0]);
    }
    ExchangeHeader *header = PyCapsule_GetPointer(args[0], "dlpack_exchange_api");
    while (header != NULL && header->major > EXCHANGE_MAJOR) {
        header = header->previous;
    }
    ExchangeTable *table = (ExchangeTable *)header;
    if (table == NULL || header->major != EXCHANGE_MAJOR || table->view_of_object == NULL) {
        return PyErr_Format(PyExc_ValueError, "this producer has no DLPack %d exchange API with non-owning views", EXCHANGE_MAJOR);
    }
    PyObject *type = nargs > 1 && args[1] != Py_None ? Py_NewRef(args[1]) : imported_tensor_type();
    if (type == NULL) {
        return NULL;
    }
    if (!PyType_Check(type)) {
        Py_DECREF(type);
        return PyErr_Format(PyExc_TypeError, "tensor_type must be a class");
    }
    PyObject *descr = _PyType_Lookup((PyTypeObject *)type, tensor_names[N_REQUIRES_GRAD]);
    if (descr == NULL) {
        Py_DECREF(type);
        return PyErr_Format(PyExc_TypeError, "tensor_type must be torch's tensor class: it has no requires_grad");
    }
    Py_XSETREF(requires_grad_descr, Py_NewRef(descr));
    Py_XSETREF(tensor_base, (PyTypeObject *)type);
    Py_CLEAR(recent_type);
    if (tensor_view_fn != table->view_of_object) {
        tensor_layout = (TensorLayout){0};
        tensor_layout_generation++;
    }
    tensor_view_fn = table->view_of_object;
    Py_RETURN_NONE;
}

static PyObject *
has_exchange_api(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(tensor_view_fn != NULL);
}

/* ---- module functions ------------------------------------------------------------------------------------------------ */

static PyObject *
dims_to_tuple(const int64_t *values, int ndim)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (int i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *item = PyLong_FromLongLong(values[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

static PyObject *
tensor_info(PyObject *Py_UNUSED(module), PyObject *obj)
{
    TensorView view;
    if (tensor_view(obj, &view) < 0) {
        return NULL;
    }
    PyObject *sizes = dims_to_tuple(view.sizes, view.ndim);
    PyObject *strides = sizes == NULL ? NULL : dims_to_tuple(view.strides, view.ndim);
    PyObject *pointer = strides == NULL ? NULL : PyLong_FromVoidPtr((char *)view.data + view.byte_offset);
    PyObject *result = NULL;
    if (pointer != NULL) {
        result = Py_BuildValue("(iiiiiOOO)", view.dtype_code, view.dtype_bits, view.dtype_lanes, view.device_type,
                               view.device_id, sizes, strides, pointer);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    Py_XDECREF(pointer);
    return result;
}

static PyObject *
tensor_data_ptr(PyObject *Py_UNUSED(module), PyObject *obj)
{
    TensorView view;
    return tensor_view(obj, &view) < 0 ? NULL : PyLong_FromVoidPtr((char *)view.data + view.byte_offset);
}

static PyObject *
tensor_layout_get(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return tensor_view_fn != NULL && tensor_layout_learn() < 0 ? NULL : tensor_layout_describe();
}

static PyObject *
learn_tensor_layout(PyObject *Py_UNUSED(module), PyObject *enable)
{
    int on = PyObject_IsTrue(enable);
    if (on < 0) {
        return NULL;
    }
    if (on && tensor_view_fn == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "set_exchange_api was not called");
    }
    tensor_layout = (TensorLayout){.tried = !on};
    tensor_layout_generation++;
    return tensor_layout_get(NULL, NULL);
}

PyMethodDef tensor_methods[] = {
    {"set_exchange_api", (PyCFunction)(void (*)(void))set_exchange_api, METH_FASTCALL,
     "set_exchange_api(capsule, tensor_type=None, /)\n--\n\nRegisters torch.Tensor.__dlpack_c_exchange_api__."},
    {"has_exchange_api", has_exchange_api, METH_NOARGS, "has_exchange_api()\n--\n\nWhether set_exchange_api was called."},
    {"tensor_guard_args", (PyCFunction)(void (*)(void))tensor_guard_args, METH_FASTCALL,
     "tensor_guard_args(tensor, dynamic_dims=(), dynamic_strides=(), /)\n--\n\nThe arguments of a check that tensor passes."},
    {"tensor_data_ptr", tensor_data_ptr, METH_O, "tensor_data_ptr(tensor, /)\n--\n\nAddress of the first element."},
    {"tensor_info", tensor_info, METH_O,
     "tensor_info(tensor, /)\n--\n\n(type code, bits, lanes, device type, device id, sizes, strides, data pointer)."},
    {"tensor_layout", tensor_layout_get, METH_NOARGS,
     "tensor_layout()\n--\n\nThe learnt places of tensor fields, None when guards ask torch instead."},
    {"learn_tensor_layout", (PyCFunction)(void (*)(void))learn_tensor_layout, METH_O,
     "learn_tensor_layout(enable, /)\n--\n\nLearns (again), or with False forgets, where tensors keep their fields."},
    {NULL},
};

int
tensor_init(void)
{
    for (int i = 0; i < NUM_NAMES; i++) {
        tensor_names[i] = PyUnicode_InternFromString(name_texts[i]);
        if (tensor_names[i] == NULL) {
            return -1;
        }
    }
    return PyType_Ready(&Kernel_Type) < 0 || PyType_Ready(&GuardTree_Type) < 0 ? -1 : 0;
}
