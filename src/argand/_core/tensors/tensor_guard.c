/* The "tensor" check: what it expects, whether a tensor agrees, and what to say when it does not. */
#include "tensor.h"

static PyObject *dispatch_keys_fn = NULL; /* torch._C._dispatch_keys, looked up at first need */
static PyObject *references = NULL;       /* dict: (dtype, device, inference) -> bytes of a Reference, or None */

/* ---- reference tensors ----------------------------------------------------------------------------------------- */

/* 0 or -1 with an exception */
static int
raw_dispatch_keys(PyObject *obj, uint64_t *keys)
{
    if (dispatch_keys_fn == NULL) {
        PyObject *core = PyImport_ImportModule("torch._C");
        dispatch_keys_fn = core == NULL ? NULL : PyObject_GetAttrString(core, "_dispatch_keys");
        Py_XDECREF(core);
        if (dispatch_keys_fn == NULL) {
            return -1;
        }
    }
    PyObject *set = PyObject_CallOneArg(dispatch_keys_fn, obj);
    PyObject *raw = set == NULL ? NULL : PyObject_CallMethod(set, "raw_repr", NULL);
    int status = -1;
    if (raw != NULL && PyLong_Check(raw)) {
        *keys = PyLong_AsUnsignedLongLongMask(raw);
        status = PyErr_Occurred() ? -1 : 0;
    }
    Py_XDECREF(set);
    Py_XDECREF(raw);
    return status;
}

static PyObject *
make_reference(PyObject *dtype, PyObject *device, bool inference)
{
    PyObject *tensor =
        tensor_module_call("reference", Py_BuildValue("(OOO)", dtype, device, inference ? Py_True : Py_False));
    if (tensor == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
        return Py_NewRef(Py_None); /* no ordinary tensor of this kind can be made: a quantized dtype, say */
    }
    Reference reference = {0};
    TensorFields fields;
    PyObject *result = NULL;
    if (raw_dispatch_keys(tensor, &reference.keys) == 0) {
        if (tensor_layout.known && tensor_layout_read(tensor, &fields)) {
            reference.dtype = fields.dtype;
            memcpy(reference.device, fields.device, sizeof(reference.device));
        }
        result = PyBytes_FromStringAndSize((const char *)&reference, sizeof(reference));
    }
    Py_DECREF(tensor);
    return result;
}

/* 1 and *out, 0 when there is no ordinary tensor of this kind, -1 with an exception. */
static int
get_reference(PyObject *dtype, PyObject *device, bool inference, Reference *out)
{
    static unsigned known_layout = 0;
    if (references == NULL || known_layout != tensor_layout_generation) {
        Py_XSETREF(references, PyDict_New());
        if (references == NULL) {
            return -1;
        }
        known_layout = tensor_layout_generation;
    }
    PyObject *key = PyTuple_Pack(3, dtype, device, inference ? Py_True : Py_False);
    PyObject *reference = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(references, key));
    if (reference == NULL && key != NULL && !PyErr_Occurred()) {
        reference = make_reference(dtype, device, inference);
        if (reference != NULL && PyDict_SetItem(references, key, reference) < 0) {
            Py_CLEAR(reference);
        }
    }
    Py_XDECREF(key);
    int status = reference == NULL ? -1 : 0;
    if (reference != NULL && PyBytes_Check(reference)) {
        memcpy(out, PyBytes_AS_STRING(reference), sizeof(*out));
        status = 1;
    }
    Py_XDECREF(reference);
    return status;
}

/* The index byte is where it was found to be on the CPU only if it says what the device says. */
static int
device_index_seen(PyObject *device, const Reference *reference)
{
    PyObject *index = PyObject_GetAttr(device, tensor_names[N_INDEX]);
    if (index == NULL) {
        return -1;
    }
    long value = index == Py_None ? -1 : PyLong_AsLong(index);
    Py_DECREF(index);
    return value == -1 && PyErr_Occurred() ? -1 : reference->device[1] == (uint8_t)value;
}

/* ---- what a tensor guard expects ------------------------------------------------------------------------------- */

static int
parse_dims(PyObject *obj, DimSpec *dims, int64_t *values, const char *what)
{
    dims->ndim = -1;
    if (obj == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of ints and Nones, or None", what);
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(obj);
    dims->values = values;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(obj, i);
        dims->values[i] = item == Py_None ? OPEN_DIM : PyLong_AsLongLong(item);
        if (dims->values[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    dims->ndim = (int)count;
    return 0;
}

/* Fills in the dispatch keys and, when the layout is known, the fields to compare. */
static int
parse_keys(TensorSpec *spec, PyObject *dispatch_keys)
{
    if (dispatch_keys != Py_None) {
        if (!PyLong_Check(dispatch_keys)) {
            PyErr_SetString(PyExc_TypeError, "dispatch_keys must be an int or None");
            return -1;
        }
        spec->expected.keys = spec->other.keys = PyLong_AsUnsignedLongLongMask(dispatch_keys);
        return PyErr_Occurred() ? -1 : 0;
    }
    bool inference = spec->flags & TENSOR_INFERENCE;
    spec->plain = true;
    spec->any_inference = spec->flags & TENSOR_ANY_INFERENCE;
    int status = get_reference(spec->dtype, spec->device, inference, &spec->expected);
    status = status > 0 ? get_reference(spec->dtype, spec->device, !inference, &spec->other) : status;
    if (status <= 0) {
        if (status == 0) {
            PyErr_Format(PyExc_ValueError, "a tensor of %S on %S needs dispatch_keys in its guard", spec->dtype, spec->device);
        }
        return -1;
    }
    int index_seen = device_index_seen(spec->device, &spec->expected);
    spec->fast = tensor_layout.known && index_seen > 0;
    spec->generation = tensor_layout_generation;
    return index_seen < 0 ? -1 : 0;
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
    Py_ssize_t num_sizes = PyTuple_Check(args[5]) ? PyTuple_GET_SIZE(args[5]) : 0;
    Py_ssize_t num_strides = PyTuple_Check(args[6]) ? PyTuple_GET_SIZE(args[6]) : 0;
    TensorSpec *spec = PyMem_Calloc(1, sizeof(TensorSpec) + (num_sizes + num_strides) * sizeof(int64_t));
    if (spec == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    spec->dtype = Py_NewRef(args[1]);
    spec->device = Py_NewRef(args[2]);
    int requires_grad = PyObject_IsTrue(args[3]);
    spec->requires_grad = requires_grad > 0;
    long flags = PyLong_AsLong(args[7]);
    spec->flags = (int)flags;
    if (requires_grad < 0 || (flags == -1 && PyErr_Occurred()) || parse_dims(args[5], &spec->sizes, spec->values, "sizes") < 0 ||
        parse_dims(args[6], &spec->strides, spec->values + num_sizes, "strides") < 0 || tensor_layout_learn() < 0 || parse_keys(spec, args[4]) < 0) {
        tensor_spec_free(spec);
        return NULL;
    }
    return spec;
}

TensorSpec *
tensor_spec_shared(TensorSpec *spec)
{
    if (spec != NULL) {
        spec->shares++;
    }
    return spec;
}

void
tensor_spec_free(TensorSpec *spec)
{
    if (spec != NULL && spec->shares-- == 0) {
        Py_XDECREF(spec->dtype);
        Py_XDECREF(spec->device);
        PyMem_Free(spec);
    }
}

int
tensor_spec_visit(TensorSpec *spec, visitproc visit, void *arg)
{
    Py_VISIT(spec->dtype);
    Py_VISIT(spec->device);
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
           a->flags == b->flags && a->expected.keys == b->expected.keys && same_dims(&a->sizes, &b->sizes) &&
           same_dims(&a->strides, &b->strides);
}

/* ---- matching -------------------------------------------------------------------------------------------------- */

static inline bool
dims_match(const DimSpec *dims, int ndim, const int64_t *values)
{
    if (dims->ndim != ndim) {
        return dims->ndim < 0;
    }
    for (int i = 0; i < ndim; i++) {
        if (dims->values[i] != values[i] && dims->values[i] != OPEN_DIM) {
            return false;
        }
    }
    return true;
}

static inline bool
keys_match(const TensorSpec *spec, uint64_t keys)
{
    return keys == spec->expected.keys || (spec->any_inference && keys == spec->other.keys);
}

/* Whether the learnt layout serves this check. */
bool
tensor_spec_pure(const TensorSpec *spec)
{
    return spec->fast && spec->generation == tensor_layout_generation;
}

static inline bool
match_fields_but_grad(const TensorSpec *spec, PyObject *obj, TensorFields *fields)
{
    return LIKELY(tensor_layout_read(obj, fields)) && keys_match(spec, fields->keys) &&
           fields->dtype == spec->expected.dtype &&
           memcmp(fields->device, spec->expected.device, sizeof(fields->device)) == 0 &&
           dims_match(&spec->sizes, fields->ndim, fields->sizes) && dims_match(&spec->strides, fields->ndim, fields->strides);
}

static int
match_fields(const TensorSpec *spec, PyObject *obj)
{
    TensorFields fields;
    if (!match_fields_but_grad(spec, obj, &fields)) {
        return 0;
    }
    int requires_grad = fields.requires_grad;
    if (UNLIKELY(requires_grad < 0)) {
        requires_grad = tensor_requires_grad(obj);
        if (requires_grad < 0) {
            return -1;
        }
    }
    return requires_grad == spec->requires_grad;
}

/* Like tensor_spec_match, but runs no Python code: false also where torch would have to be asked. */
bool
tensor_spec_match_pure(const TensorSpec *spec, PyObject *obj)
{
    TensorFields fields;
    return tensor_spec_pure(spec) && match_fields_but_grad(spec, obj, &fields) && fields.requires_grad == spec->requires_grad;
}

/* Compares a tuple of ints with what is expected; a NULL tuple means an exception. Steals the tuple. */
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
            int64_t value = PyLong_Check(item) ? PyLong_AsLongLong(item) : OPEN_DIM;
            status = value == -1 && PyErr_Occurred() ? -1 : value == dims->values[i];
        }
    }
    Py_DECREF(tuple);
    return status;
}

/* Steals found. */
static int
equals_and_drop(PyObject *actual, PyObject *expected)
{
    int status = actual == NULL ? -1 : exact_equal(actual, expected);
    Py_XDECREF(actual);
    return status;
}

static int
match_by_attributes(const TensorSpec *spec, PyObject *obj)
{
    uint64_t keys;
    PyObject *hush;
    if (raw_dispatch_keys(obj, &keys) < 0 || tensor_hush(obj, &hush) < 0) {
        return -1;
    }
    int status = keys_match(spec, keys);
    status = status > 0 ? equals_and_drop(PyObject_GetAttr(obj, tensor_names[N_DTYPE]), spec->dtype) : status;
    status = status > 0 ? equals_and_drop(PyObject_GetAttr(obj, tensor_names[N_DEVICE]), spec->device) : status;
    if (status > 0) {
        int requires_grad = tensor_requires_grad(obj);
        status = requires_grad < 0 ? -1 : requires_grad == spec->requires_grad;
    }
    if (status > 0 && spec->sizes.ndim >= 0) {
        status = tuple_matches(&spec->sizes, PyObject_GetAttr(obj, tensor_names[N_SHAPE]));
    }
    if (status > 0 && spec->strides.ndim >= 0) {
        status = tuple_matches(&spec->strides, PyObject_CallMethodNoArgs(obj, tensor_names[N_STRIDE]));
    }
    tensor_unhush(hush);
    return status;
}

int
tensor_spec_match(const TensorSpec *spec, PyObject *obj)
{
    if (LIKELY(tensor_spec_pure(spec))) {
        return match_fields(spec, obj);
    }
    return match_by_attributes(spec, obj);
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

/* "expected <what> X, found Y" when an attribute differs; None when it does not. */
static PyObject *
attribute_detail(PyObject *obj, int name, PyObject *expected)
{
    PyObject *actual = PyObject_GetAttr(obj, tensor_names[name]);
    if (actual == NULL) {
        return NULL;
    }
    int same = exact_equal(actual, expected);
    PyObject *text = same < 0 ? NULL
                     : same   ? Py_NewRef(Py_None)
                              : PyUnicode_FromFormat("expected %U %S, found %S", tensor_names[name], expected, actual);
    Py_DECREF(actual);
    return text;
}

static PyObject *
dims_detail(const DimSpec *dims, PyObject *tuple, const char *what)
{
    if (tuple == NULL) {
        return NULL;
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

/* The truth of a method without arguments; -1 with an exception. */
static int
ask(PyObject *obj, const char *method)
{
    PyObject *result = PyObject_CallMethod(obj, method, NULL);
    int truth = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return truth;
}

static PyObject *
keys_detail(const TensorSpec *spec, PyObject *obj)
{
    static const struct {
        const char *method, *what;
    } bits[] = {{"is_neg", "a negated view"}, {"is_conj", "a conjugated view"}, {"_is_zerotensor", "a zero tensor"}};
    uint64_t keys;
    if (raw_dispatch_keys(obj, &keys) < 0) {
        return NULL;
    }
    if (keys_match(spec, keys)) {
        return Py_NewRef(Py_None);
    }
    for (size_t i = 0; spec->plain && i < sizeof(bits) / sizeof(bits[0]); i++) {
        int set = ask(obj, bits[i].method);
        if (set != 0) {
            return set < 0 ? NULL : PyUnicode_FromFormat("expected a plain tensor, found %s", bits[i].what);
        }
    }
    if (spec->plain && keys == spec->other.keys) {
        return PyUnicode_FromFormat("expected %s inference tensor", spec->flags & TENSOR_INFERENCE ? "an" : "a tensor that is no");
    }
    return PyUnicode_FromFormat("expected dispatch keys %llx, found %llx", (unsigned long long)spec->expected.keys,
                                (unsigned long long)keys);
}

static PyObject *
requires_grad_detail(const TensorSpec *spec, PyObject *obj)
{
    int requires_grad = tensor_requires_grad(obj);
    if (requires_grad < 0) {
        return NULL;
    }
    if (requires_grad != spec->requires_grad) {
        return PyUnicode_FromFormat("expected requires_grad=%s, found %s", spec->requires_grad ? "True" : "False",
                                    requires_grad ? "True" : "False");
    }
    return PyUnicode_FromString("tensor properties differ");
}

PyObject *
tensor_spec_detail(const TensorSpec *spec, PyObject *obj)
{
    PyObject *hush;
    if (tensor_hush(obj, &hush) < 0) {
        return NULL;
    }
    PyObject *text = attribute_detail(obj, N_DTYPE, spec->dtype);
    if (text == Py_None) {
        Py_SETREF(text, attribute_detail(obj, N_DEVICE, spec->device));
    }
    if (text == Py_None) { /* before the sizes: those of a nested or sparse tensor may not be had */
        Py_SETREF(text, keys_detail(spec, obj));
    }
    if (text == Py_None && spec->sizes.ndim >= 0) {
        Py_SETREF(text, dims_detail(&spec->sizes, PyObject_GetAttr(obj, tensor_names[N_SHAPE]), "size"));
    }
    if (text == Py_None && spec->strides.ndim >= 0) {
        Py_SETREF(text, dims_detail(&spec->strides, PyObject_CallMethodNoArgs(obj, tensor_names[N_STRIDE]), "stride"));
    }
    if (text == Py_None) {
        Py_SETREF(text, requires_grad_detail(spec, obj));
    }
    tensor_unhush(hush);
    return text;
}

/* ---- the arguments of a check that a tensor passes ------------------------------------------------------------- */

/* Steals tuple. Puts None at the open dims; open None: everything is open. */
static PyObject *
open_dims(PyObject *tuple, PyObject *open)
{
    if (open == Py_None) {
        Py_DECREF(tuple);
        return Py_NewRef(Py_None);
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

/* A tuple of ints with the open places None, or None where the tensor has no such property. Steals found. */
static PyObject *
dims_or_none(PyObject *value, PyObject *open)
{
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    PyObject *list = PySequence_List(value);
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list); /* a plain tuple, of a torch.Size too */
    Py_XDECREF(list);
    Py_DECREF(value);
    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_GET_SIZE(tuple); i++) {
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(tuple, i))) { /* symbolic sizes of a nested tensor */
            Py_DECREF(tuple);
            return Py_NewRef(Py_None);
        }
    }
    return tuple == NULL ? NULL : open_dims(tuple, open);
}

PyObject *
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
    if (tensor_layout_learn() < 0) {
        return NULL;
    }
    PyObject *hush;
    if (tensor_hush(obj, &hush) < 0) {
        return NULL;
    }
    PyObject *none_open = PyTuple_New(0), *result = NULL, *sizes = NULL, *strides = NULL;
    PyObject *dtype = PyObject_GetAttr(obj, tensor_names[N_DTYPE]);
    PyObject *device = dtype == NULL ? NULL : PyObject_GetAttr(obj, tensor_names[N_DEVICE]);
    uint64_t keys = 0;
    Reference reference = {0};
    int requires_grad = device == NULL ? -1 : tensor_requires_grad(obj);
    int inference = requires_grad < 0 ? -1 : ask(obj, "is_inference");
    int known = inference < 0 || raw_dispatch_keys(obj, &keys) < 0 ? -1 : get_reference(dtype, device, inference, &reference);
    if (known >= 0 && none_open != NULL) {
        sizes = dims_or_none(PyObject_GetAttr(obj, tensor_names[N_SHAPE]), nargs > 1 ? args[1] : none_open);
    }
    if (sizes != NULL) {
        strides = dims_or_none(PyObject_CallMethodNoArgs(obj, tensor_names[N_STRIDE]), nargs > 2 ? args[2] : none_open);
    }
    if (strides != NULL) {
        PyObject *special =
            known > 0 && keys == reference.keys ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(keys);
        result = Py_BuildValue("(OOOONOOi)", Py_TYPE(obj), dtype, device, requires_grad ? Py_True : Py_False, special, sizes,
                               strides, inference ? TENSOR_INFERENCE : 0);
    }
    Py_XDECREF(none_open);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    tensor_unhush(hush);
    return result;
}
