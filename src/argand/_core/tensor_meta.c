/* Tensor metadata through the DLPack C exchange API that torch publishes; the "tensor" guard. No torch headers.
 *
 * DLPack tells dtype, device, sizes, strides and the data pointer. What it does not tell (requires_grad, and the conj, neg,
 * zero and inference bits) comes through the descriptors of torch's own tensor class. */
#include "core.h"

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
static PyTypeObject *tensor_base = NULL;    /* the class that the table was published on */
static PyTypeObject *recent_type = NULL;    /* a subclass found good last; kept alive */
static PyObject *names_of[12];              /* interned attribute names */
static PyObject *dispatch_keys_fn = NULL;   /* torch._C._dispatch_keys, looked up at first need */

enum { N_DTYPE, N_DEVICE, N_REQUIRES_GRAD, N_SHAPE, N_STRIDE, N_LAYOUT, N_RAW_REPR, N_TYPE, N_INDEX, NUM_NAMES };
static const char *const name_texts[NUM_NAMES] = {"dtype",  "device",   "requires_grad", "shape", "stride",
                                                  "layout", "raw_repr", "type",          "index"};

/* Descriptors of the tensor class, called without a lookup. */
static PyObject *requires_grad_descr, *is_neg_descr, *is_conj_descr, *is_zero_descr, *is_inference_descr;

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

static PyObject *
get_descr(PyTypeObject *type, const char *name)
{
    PyObject *text = PyUnicode_InternFromString(name);
    PyObject *descr = text == NULL ? NULL : Py_XNewRef(_PyType_Lookup(type, text));
    Py_XDECREF(text);
    if (descr == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_RuntimeError, "%.100s has no %s", type->tp_name, name);
    }
    return descr;
}

static int
find_descriptors(PyTypeObject *type)
{
    static const struct {
        PyObject **where;
        const char *name;
    } wanted[] = {
        {&requires_grad_descr, "requires_grad"}, {&is_neg_descr, "is_neg"},
        {&is_conj_descr, "is_conj"},             {&is_zero_descr, "_is_zerotensor"},
        {&is_inference_descr, "is_inference"},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        PyObject *descr = get_descr(type, wanted[i].name);
        if (descr == NULL) {
            return -1;
        }
        Py_XSETREF(*wanted[i].where, descr);
    }
    return 0;
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
    if (find_descriptors((PyTypeObject *)type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    Py_XSETREF(tensor_base, (PyTypeObject *)type);
    Py_CLEAR(recent_type);
    tensor_view_fn = table->view_of_object;
    Py_RETURN_NONE;
}

static PyObject *
has_exchange_api(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(tensor_view_fn != NULL);
}

/* The truth of a getset or no-argument method of the tensor class: 1, 0, -1 with an exception. */
static int
tensor_flag(PyObject *descr, PyObject *obj)
{
    PyObject *result;
    if (Py_IS_TYPE(descr, &PyGetSetDescr_Type)) {
        PyGetSetDef *def = ((PyGetSetDescrObject *)descr)->d_getset;
        result = def->get(obj, def->closure);
    }
    else if (Py_IS_TYPE(descr, &PyMethodDescr_Type) && ((PyMethodDescrObject *)descr)->d_method->ml_flags == METH_NOARGS) {
        result = ((PyMethodDescrObject *)descr)->d_method->ml_meth(obj, NULL);
    }
    else if (PyCallable_Check(descr)) {
        result = PyObject_CallOneArg(descr, obj);
    }
    else {
        descrgetfunc get = Py_TYPE(descr)->tp_descr_get;
        result = get == NULL ? Py_NewRef(descr) : get(descr, obj, (PyObject *)Py_TYPE(obj));
    }
    if (result == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

/* ---- what a tensor guard expects ------------------------------------------------------------------------------- */

#define OPEN_DIM INT64_MIN

typedef struct {
    int ndim;    /* -1: everything open */
    bool absent; /* no such property, or open */
    int64_t *values;
} DimSpec;

struct TensorSpec {
    bool plain; /* an ordinary strided tensor: checked through DLPack */
    uint8_t dtype_code, dtype_bits;
    int32_t device_type, device_id;
    bool requires_grad;
    int flags;
    DimSpec sizes, strides;
    PyObject *dtype, *device;
    PyObject *dispatch_keys; /* int; NULL when plain */
};

static const struct {
    const char *name;
    uint8_t code, bits;
} dtype_table[] = {
    {"torch.float32", 2, 32},       {"torch.float64", 2, 64},        {"torch.float16", 2, 16},
    {"torch.bfloat16", 4, 16},      {"torch.int64", 0, 64},          {"torch.int32", 0, 32},
    {"torch.int16", 0, 16},         {"torch.int8", 0, 8},            {"torch.uint8", 1, 8},
    {"torch.uint16", 1, 16},        {"torch.uint32", 1, 32},         {"torch.uint64", 1, 64},
    {"torch.bool", 6, 8},           {"torch.complex32", 5, 32},      {"torch.complex64", 5, 64},
    {"torch.complex128", 5, 128},   {"torch.float8_e4m3fn", 10, 8},  {"torch.float8_e4m3fnuz", 11, 8},
    {"torch.float8_e5m2", 12, 8},   {"torch.float8_e5m2fnuz", 13, 8}, {"torch.float8_e8m0fnu", 14, 8},
};

static const struct {
    const char *name;
    int32_t type;
} device_table[] = {{"cpu", 1}, {"cuda", 2}, {"mps", 8}, {"xpu", 14}};

#define DEVICE_CUDA 2
#define DEVICE_ROCM 10 /* what a ROCm build of torch reports for its "cuda" device */

/* 1 known, 0 not in the table, -1 exception */
static int
dtype_from_object(PyObject *dtype, uint8_t *code, uint8_t *bits)
{
    PyObject *text = PyObject_Str(dtype);
    const char *name = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    int status = name == NULL ? -1 : 0;
    for (size_t i = 0; status == 0 && i < sizeof(dtype_table) / sizeof(dtype_table[0]); i++) {
        if (strcmp(name, dtype_table[i].name) == 0) {
            *code = dtype_table[i].code;
            *bits = dtype_table[i].bits;
            status = 1;
        }
    }
    Py_XDECREF(text);
    return status;
}

static int
device_from_object(PyObject *device, int32_t *type, int32_t *id)
{
    PyObject *text = PyObject_GetAttr(device, names_of[N_TYPE]);
    PyObject *index = text == NULL ? NULL : PyObject_GetAttr(device, names_of[N_INDEX]);
    const char *name = index == NULL || !PyUnicode_Check(text) ? NULL : PyUnicode_AsUTF8(text);
    int status = name == NULL ? -1 : 0;
    for (size_t i = 0; status == 0 && i < sizeof(device_table) / sizeof(device_table[0]); i++) {
        if (strcmp(name, device_table[i].name) == 0) {
            *type = device_table[i].type;
            *id = index == Py_None ? 0 : (int32_t)PyLong_AsLong(index);
            status = *id == -1 && PyErr_Occurred() ? -1 : 1;
        }
    }
    if (status < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "expected a torch.device, not %.100s", Py_TYPE(device)->tp_name);
    }
    Py_XDECREF(text);
    Py_XDECREF(index);
    return status;
}

static int
parse_dims(PyObject *obj, DimSpec *dims, const char *what)
{
    *dims = (DimSpec){.ndim = -1, .absent = true};
    if (obj == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of ints and Nones, or None", what);
        return -1;
    }
    int64_t *values = PyMem_Malloc((PyTuple_GET_SIZE(obj) + 1) * sizeof(int64_t));
    if (values == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    dims->values = values;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(obj); i++) {
        PyObject *item = PyTuple_GET_ITEM(obj, i);
        values[i] = item == Py_None ? OPEN_DIM : PyLong_AsLongLong(item);
        if (values[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    dims->ndim = (int)PyTuple_GET_SIZE(obj);
    dims->absent = false;
    return 0;
}

TensorSpec *
tensor_spec_new(PyObject *const *args, Py_ssize_t Py_UNUSED(nargs))
{
    /* args: cls (the caller's), dtype, device, requires_grad, dispatch_keys, sizes, strides, flags */
    if (tensor_view_fn == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "set_exchange_api must be called before tensors can be guarded");
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)args[0], tensor_base)) {
        PyErr_Format(PyExc_TypeError, "%.100s is not a tensor class", ((PyTypeObject *)args[0])->tp_name);
        return NULL;
    }
    TensorSpec *spec = PyMem_Calloc(1, sizeof(TensorSpec));
    if (spec == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    int known_dtype = dtype_from_object(args[1], &spec->dtype_code, &spec->dtype_bits);
    int known_device = known_dtype < 0 ? -1 : device_from_object(args[2], &spec->device_type, &spec->device_id);
    int requires_grad = known_device < 0 ? -1 : PyObject_IsTrue(args[3]);
    if (requires_grad < 0 || parse_dims(args[5], &spec->sizes, "sizes") < 0 ||
        parse_dims(args[6], &spec->strides, "strides") < 0) {
        goto error;
    }
    spec->requires_grad = requires_grad;
    spec->flags = (int)PyLong_AsLong(args[7]);
    if (spec->flags == -1 && PyErr_Occurred()) {
        goto error;
    }
    spec->dtype = Py_NewRef(args[1]);
    spec->device = Py_NewRef(args[2]);
    spec->plain = args[4] == Py_None;
    if (!spec->plain && !PyLong_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "dispatch_keys must be an int or None");
        goto error;
    }
    spec->dispatch_keys = spec->plain ? NULL : Py_NewRef(args[4]);
    if (spec->plain && (known_dtype == 0 || known_device == 0)) {
        PyErr_Format(PyExc_ValueError, "a tensor of %S on %S needs dispatch_keys in its guard", args[1], args[2]);
        goto error;
    }
    return spec;
error:
    tensor_spec_free(spec);
    return NULL;
}

void
tensor_spec_free(TensorSpec *spec)
{
    if (spec != NULL) {
        PyMem_Free(spec->sizes.values);
        PyMem_Free(spec->strides.values);
        Py_XDECREF(spec->dtype);
        Py_XDECREF(spec->device);
        Py_XDECREF(spec->dispatch_keys);
        PyMem_Free(spec);
    }
}

int
tensor_spec_visit(TensorSpec *spec, visitproc visit, void *arg)
{
    Py_VISIT(spec->dtype);
    Py_VISIT(spec->device);
    Py_VISIT(spec->dispatch_keys);
    return 0;
}

static bool
same_dims(const DimSpec *a, const DimSpec *b)
{
    return a->ndim == b->ndim && (a->ndim <= 0 || memcmp(a->values, b->values, a->ndim * sizeof(int64_t)) == 0);
}

bool
tensor_spec_same(const TensorSpec *a, const TensorSpec *b)
{
    return a->dtype == b->dtype && exact_equal(a->device, b->device) == 1 && a->requires_grad == b->requires_grad &&
           a->flags == b->flags && same_dims(&a->sizes, &b->sizes) && same_dims(&a->strides, &b->strides) &&
           (a->dispatch_keys == b->dispatch_keys ||
            (a->dispatch_keys && b->dispatch_keys && exact_equal(a->dispatch_keys, b->dispatch_keys) == 1));
}

/* ---- matching -------------------------------------------------------------------------------------------------- */

static inline bool
dims_match(const DimSpec *dims, int ndim, const int64_t *values)
{
    if (dims->absent) {
        return true;
    }
    if (dims->ndim != ndim) {
        return false;
    }
    for (int i = 0; i < ndim; i++) {
        if (dims->values[i] != values[i] && dims->values[i] != OPEN_DIM) {
            return false;
        }
    }
    return true;
}

static inline bool
device_matches(const TensorSpec *spec, const TensorView *view)
{
    return view->device_id == spec->device_id &&
           (view->device_type == spec->device_type ||
            (spec->device_type == DEVICE_CUDA && view->device_type == DEVICE_ROCM));
}

static bool
has_elements(const TensorView *view)
{
    for (int i = 0; i < view->ndim; i++) {
        if (view->sizes[i] == 0) {
            return false;
        }
    }
    return true;
}

/* The bits that DLPack does not tell, each 1, 0 or -1 with an exception. */
static int
is_special(const TensorSpec *spec, PyObject *obj, const TensorView *view)
{
    int special = tensor_flag(is_neg_descr, obj);
    if (special == 0 && view->dtype_code == 5) {
        special = tensor_flag(is_conj_descr, obj);
    }
    if (special == 0 && view->data == NULL && has_elements(view)) {
        special = tensor_flag(is_zero_descr, obj);
    }
    if (special == 0 && !(spec->flags & TENSOR_ANY_INFERENCE)) {
        int inference = tensor_flag(is_inference_descr, obj);
        special = inference < 0 ? inference : inference != !!(spec->flags & TENSOR_INFERENCE);
    }
    return special;
}

static int
match_plain(const TensorSpec *spec, PyObject *obj)
{
    TensorView view;
    if (UNLIKELY(tensor_view_fn(obj, &view) < 0)) {
        return -1;
    }
    if (view.dtype_code != spec->dtype_code || view.dtype_bits != spec->dtype_bits || view.dtype_lanes != 1 ||
        !device_matches(spec, &view) || !dims_match(&spec->sizes, view.ndim, view.sizes) ||
        !dims_match(&spec->strides, view.ndim, view.strides)) {
        return 0;
    }
    int requires_grad = tensor_flag(requires_grad_descr, obj);
    if (requires_grad != spec->requires_grad) {
        return requires_grad < 0 ? -1 : 0;
    }
    int special = is_special(spec, obj, &view);
    return special < 0 ? -1 : !special;
}

/* New reference to the raw dispatch key set of a tensor, as an int. */
static PyObject *
raw_dispatch_keys(PyObject *obj)
{
    if (dispatch_keys_fn == NULL) {
        PyObject *core = PyImport_ImportModule("torch._C");
        dispatch_keys_fn = core == NULL ? NULL : PyObject_GetAttrString(core, "_dispatch_keys");
        Py_XDECREF(core);
        if (dispatch_keys_fn == NULL) {
            return NULL;
        }
    }
    PyObject *keys = PyObject_CallOneArg(dispatch_keys_fn, obj);
    PyObject *raw = keys == NULL ? NULL : PyObject_CallMethodNoArgs(keys, names_of[N_RAW_REPR]);
    Py_XDECREF(keys);
    return raw;
}

/* Compares a tuple of ints with what is expected; -1 keeps the exception that made the tuple NULL. Steals the tuple. */
static int
tuple_matches(const DimSpec *dims, PyObject *tuple)
{
    if (tuple == NULL) {
        return -1;
    }
    int status = PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == dims->ndim;
    for (int i = 0; status > 0 && i < dims->ndim; i++) {
        if (dims->values[i] != OPEN_DIM) {
            PyObject *item = PyTuple_GET_ITEM(tuple, i);
            int64_t value = PyLong_Check(item) ? PyLong_AsLongLong(item) : -1;
            status = value == -1 && PyErr_Occurred() ? -1 : value == dims->values[i];
        }
    }
    Py_DECREF(tuple);
    return status;
}

/* Steals found. */
static int
equals_and_drop(PyObject *found, PyObject *expected)
{
    int status = found == NULL ? -1 : exact_equal(found, expected);
    Py_XDECREF(found);
    return status;
}

static int
match_by_attributes(const TensorSpec *spec, PyObject *obj)
{
    int status = equals_and_drop(raw_dispatch_keys(obj), spec->dispatch_keys);
    status = status > 0 ? equals_and_drop(PyObject_GetAttr(obj, names_of[N_DTYPE]), spec->dtype) : status;
    status = status > 0 ? equals_and_drop(PyObject_GetAttr(obj, names_of[N_DEVICE]), spec->device) : status;
    if (status > 0) {
        int requires_grad = tensor_flag(requires_grad_descr, obj);
        status = requires_grad < 0 ? -1 : requires_grad == spec->requires_grad;
    }
    if (status > 0 && !spec->sizes.absent) {
        status = tuple_matches(&spec->sizes, PyObject_GetAttr(obj, names_of[N_SHAPE]));
    }
    if (status > 0 && !spec->strides.absent) {
        status = tuple_matches(&spec->strides, PyObject_CallMethodNoArgs(obj, names_of[N_STRIDE]));
    }
    return status;
}

int
tensor_spec_match(const TensorSpec *spec, PyObject *obj)
{
    return LIKELY(spec->plain) ? match_plain(spec, obj) : match_by_attributes(spec, obj);
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

/* "expected <what> X, found Y" when an attribute differs; None when it does not. */
static PyObject *
attribute_detail(PyObject *obj, int name, PyObject *expected)
{
    PyObject *found = PyObject_GetAttr(obj, names_of[name]);
    if (found == NULL) {
        return NULL;
    }
    int same = exact_equal(found, expected);
    PyObject *text = same < 0 ? NULL
                     : same   ? Py_NewRef(Py_None)
                              : PyUnicode_FromFormat("expected %U %S, found %S", names_of[name], expected, found);
    Py_DECREF(found);
    return text;
}

static PyObject *
dims_detail(const DimSpec *dims, PyObject *tuple, const char *what)
{
    if (tuple == NULL || dims->absent) {
        Py_XDECREF(tuple);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    PyObject *text = NULL;
    if (PyTuple_GET_SIZE(tuple) != dims->ndim) {
        text = PyUnicode_FromFormat("expected %d dims, found %zd", dims->ndim, PyTuple_GET_SIZE(tuple));
    }
    for (int i = 0; text == NULL && i < dims->ndim; i++) {
        long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (dims->values[i] != OPEN_DIM && dims->values[i] != value) {
            text = PyUnicode_FromFormat("expected %s %lld at dim %d, found %lld", what, (long long)dims->values[i], i, value);
        }
    }
    Py_DECREF(tuple);
    return text == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : text;
}

static PyObject *
flags_detail(const TensorSpec *spec, PyObject *obj)
{
    int requires_grad = tensor_flag(requires_grad_descr, obj);
    if (requires_grad < 0) {
        return NULL;
    }
    if (requires_grad != spec->requires_grad) {
        return PyUnicode_FromFormat("expected requires_grad=%s, found %s", spec->requires_grad ? "True" : "False",
                                    requires_grad ? "True" : "False");
    }
    if (!spec->plain) {
        PyObject *found = raw_dispatch_keys(obj);
        PyObject *text = found == NULL ? NULL : PyUnicode_FromFormat("expected dispatch keys %S, found %S", spec->dispatch_keys, found);
        Py_XDECREF(found);
        return text;
    }
    static const struct {
        PyObject **descr;
        const char *what;
    } bits[] = {{&is_neg_descr, "a negated view"}, {&is_conj_descr, "a conjugated view"}, {&is_zero_descr, "a zero tensor"}};
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        int set = tensor_flag(*bits[i].descr, obj);
        if (set != 0) {
            return set < 0 ? NULL : PyUnicode_FromFormat("expected a plain tensor, found %s", bits[i].what);
        }
    }
    int inference = tensor_flag(is_inference_descr, obj);
    if (inference >= 0 && !(spec->flags & TENSOR_ANY_INFERENCE) && inference != !!(spec->flags & TENSOR_INFERENCE)) {
        return PyUnicode_FromFormat("expected %s inference tensor", inference ? "a tensor that is no" : "an");
    }
    return inference < 0 ? NULL : PyUnicode_FromString("tensor properties differ");
}

PyObject *
tensor_spec_detail(const TensorSpec *spec, PyObject *obj)
{
    PyObject *text = attribute_detail(obj, N_DTYPE, spec->dtype);
    if (text == Py_None) {
        Py_SETREF(text, attribute_detail(obj, N_DEVICE, spec->device));
    }
    if (text == Py_None && !spec->sizes.absent) {
        Py_SETREF(text, dims_detail(&spec->sizes, PyObject_GetAttr(obj, names_of[N_SHAPE]), "size"));
    }
    if (text == Py_None && !spec->strides.absent) {
        Py_SETREF(text, dims_detail(&spec->strides, PyObject_CallMethodNoArgs(obj, names_of[N_STRIDE]), "stride"));
    }
    if (text == Py_None) {
        Py_SETREF(text, flags_detail(spec, obj));
    }
    return text;
}

/* ---- module functions ------------------------------------------------------------------------------------------ */

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

/* Steals tuple. Puts None at the open dims; open None: everything is open. */
static PyObject *
open_dims(PyObject *tuple, PyObject *open)
{
    if (tuple == NULL || open == Py_None) {
        Py_XDECREF(tuple);
        return tuple == NULL ? NULL : Py_NewRef(Py_None);
    }
    PyObject *list = PySequence_List(tuple);
    PyObject *dims = list == NULL ? NULL : PySequence_Fast(open, "dynamic dims must be a sequence of ints or None");
    bool ok = dims != NULL;
    for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(dims); i++) {
        ok = PyObject_SetItem(list, PySequence_Fast_GET_ITEM(dims, i), Py_None) == 0;
    }
    PyObject *result = ok ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    Py_XDECREF(dims);
    Py_DECREF(tuple);
    return result;
}

/* Whether DLPack and the flags tell all about this tensor: 1, 0, -1 with an exception outside Exception. */
static int
tensor_is_plain(PyObject *obj, PyObject *dtype, PyObject *device)
{
    TensorView view;
    uint8_t code, bits;
    int32_t type, id;
    TensorSpec any = {.flags = TENSOR_ANY_INFERENCE};
    int status = dtype_from_object(dtype, &code, &bits);
    status = status > 0 ? device_from_object(device, &type, &id) : status;
    if (status > 0) {
        int special = tensor_view_fn(obj, &view) < 0 ? -1 : is_special(&any, obj, &view);
        status = special < 0 ? -1 : !special && view.dtype_code == code && view.dtype_bits == bits;
    }
    if (status < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        status = 0;
    }
    return status;
}

/* A tuple of ints, or None where the tensor has no such property. Steals found. */
static PyObject *
dims_or_none(PyObject *found)
{
    if (found == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    PyObject *tuple = PySequence_Tuple(found);
    Py_DECREF(found);
    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_GET_SIZE(tuple); i++) {
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(tuple, i))) { /* symbolic sizes of a nested tensor */
            Py_SETREF(tuple, Py_NewRef(Py_None));
            break;
        }
    }
    return tuple;
}

static PyObject *
tensor_guard_args(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 3) {
        return PyErr_Format(PyExc_TypeError, "tensor_guard_args takes 1 to 3 arguments (%zd given)", nargs);
    }
    PyObject *obj = args[0];
    if (tensor_view_fn == NULL || !tensor_type_ok(obj)) {
        return PyErr_Format(PyExc_TypeError, "expected a tensor, not %.100s%s", Py_TYPE(obj)->tp_name,
                            tensor_view_fn == NULL ? " (and set_exchange_api was not called)" : "");
    }
    PyObject *none_open = PyTuple_New(0), *result = NULL, *keys = NULL, *sizes = NULL, *strides = NULL;
    PyObject *dtype = PyObject_GetAttr(obj, names_of[N_DTYPE]);
    PyObject *device = dtype == NULL ? NULL : PyObject_GetAttr(obj, names_of[N_DEVICE]);
    int plain = device == NULL ? -1 : tensor_is_plain(obj, dtype, device);
    int requires_grad = plain < 0 ? -1 : tensor_flag(requires_grad_descr, obj);
    int inference = requires_grad < 0 ? -1 : tensor_flag(is_inference_descr, obj);
    if (inference >= 0) {
        keys = plain ? Py_NewRef(Py_None) : raw_dispatch_keys(obj);
        sizes = dims_or_none(PyObject_GetAttr(obj, names_of[N_SHAPE]));
        strides = dims_or_none(PyObject_CallMethodNoArgs(obj, names_of[N_STRIDE]));
        if (sizes != NULL && sizes != Py_None) {
            sizes = open_dims(sizes, nargs > 1 ? args[1] : none_open);
        }
        if (strides != NULL && strides != Py_None) {
            strides = open_dims(strides, nargs > 2 ? args[2] : none_open);
        }
    }
    if (keys != NULL && sizes != NULL && strides != NULL) {
        result = Py_BuildValue("(OOOOOOOi)", Py_TYPE(obj), dtype, device, requires_grad ? Py_True : Py_False, keys, sizes,
                               strides, inference ? TENSOR_INFERENCE : 0);
    }
    Py_XDECREF(none_open);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    Py_XDECREF(keys);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    return result;
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
    {NULL},
};

int
tensor_init(void)
{
    for (int i = 0; i < NUM_NAMES; i++) {
        names_of[i] = PyUnicode_InternFromString(name_texts[i]);
        if (names_of[i] == NULL) {
            return -1;
        }
    }
    return PyType_Ready(&Kernel_Type) < 0 || PyType_Ready(&GuardTree_Type) < 0 ? -1 : 0;
}
