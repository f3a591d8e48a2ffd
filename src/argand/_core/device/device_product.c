/* DeviceProduct: a matrix product of fixed sizes by a library of the GPU's maker (cuBLASLt), prepared once.
 *
 * No headers of any maker are used: the caller finds the library's functions and gives their addresses. */
#include "device.h"

typedef int (*MatmulFn)(void *handle, void *description, const void *alpha, const void *a, void *a_layout, const void *b,
                        void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                        const void *algorithm, void *workspace, size_t workspace_bytes, void *stream); /* cublasLtMatmul */
typedef int (*AttributeFn)(void *description, int attribute, const void *value, size_t bytes);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    MatmulFn matmul;
    AttributeFn set_attribute;
    DeviceContext device;
    void *handle, *description, *left_layout, *right_layout, *result_layout;
    int device_type, device_index, bias_attribute;
    bool bias, broken;
    size_t workspace_bytes;
    PyThread_type_lock lock; /* of the description, which holds the bias of the call */
    unsigned long long calls;
    PyObject *algorithm, *index, *stream_of, *otherwise, *owner;
} DeviceProduct;

#define MAX_OPERANDS 5

/* The address of a tensor on the product's device; NULL, without an exception, when it has none that can be used. */
static void *
address_of(DeviceProduct *self, PyObject *arg)
{
    TensorView view;
    if (tensor_view_fn == NULL || !tensor_type_ok(arg)) {
        return NULL;
    }
    if (tensor_view_fn(arg, &view) < 0) {
        PyErr_Clear();
        return NULL;
    }
    if (view.device_type != self->device_type || view.device_id != self->device_index) {
        return NULL;
    }
    char *address = (char *)view.data + view.byte_offset;
    return (uintptr_t)address % DEVICE_ALIGNMENT == 0 ? address : NULL;
}

/* Other threads run meanwhile: a launch waits while the queue of its stream is full. */
static int
run(DeviceProduct *self, void *const *operands, void *workspace, void *stream)
{
    static const float one = 1.0f, zero = 0.0f;
    void *result = operands[self->bias ? 3 : 2];
    const void *algorithm = PyBytes_AS_STRING(self->algorithm);
    int code;
    bool foreign;
    Py_INCREF(self);
    Py_BEGIN_ALLOW_THREADS
    code = device_enter(&self->device, &foreign);
    if (code == 0) {
        if (self->bias) {
            PyThread_acquire_lock(self->lock, WAIT_LOCK);
            code = self->set_attribute(self->description, self->bias_attribute, &operands[2], sizeof(void *));
        }
        if (code == 0) { /* by columns, as the library counts: the transposed product of what is stored by rows */
            code = self->matmul(self->handle, self->description, &one, operands[1], self->right_layout, operands[0],
                                self->left_layout, &zero, result, self->result_layout, result, self->result_layout, algorithm,
                                workspace, self->workspace_bytes, stream);
        }
        if (self->bias) {
            PyThread_release_lock(self->lock);
        }
        code = device_leave(&self->device, foreign, code);
    }
    Py_END_ALLOW_THREADS
    Py_DECREF(self);
    return code;
}

static PyObject *
device_product_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    DeviceProduct *self = (DeviceProduct *)callable;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), operands = self->bias ? 4 : 3;
    if (UNLIKELY(nargs != operands + 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0))) {
        return PyErr_Format(PyExc_TypeError, "this product takes %zd tensors and a workspace (%zd arguments given)", operands,
                            nargs);
    }
    void *addresses[MAX_OPERANDS], *workspace = NULL, *stream;
    bool usable = !self->broken;
    for (Py_ssize_t i = 0; usable && i < operands; i++) {
        addresses[i] = address_of(self, args[i]);
        usable = addresses[i] != NULL;
    }
    if (usable && self->workspace_bytes != 0) {
        workspace = address_of(self, args[operands]);
        usable = workspace != NULL;
    }
    if (LIKELY(usable)) {
        if (UNLIKELY(device_stream(self->stream_of, self->index, &stream) < 0)) {
            return NULL;
        }
        if (LIKELY(run(self, addresses, workspace, stream) == 0)) {
            self->calls++;
            Py_RETURN_NONE;
        }
        self->broken = true; /* nothing was computed: torch does it, and says what is wrong */
    }
    return PyObject_Vectorcall(self->otherwise, args, nargs, NULL);
}

static int
set_addresses(DeviceProduct *self, PyObject *functions, PyObject *handles)
{
    void *const where[] = {&self->matmul, &self->set_attribute, &self->device.current, &self->device.push, &self->device.pop};
    void *const what[] = {&self->handle,       &self->description,   &self->left_layout,
                          &self->right_layout, &self->result_layout, &self->device.context};
    return device_addresses(functions, 5, where) < 0 ? -1 : device_addresses(handles, 6, what);
}

static PyObject *
device_product_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"functions", "handles", "device", "algorithm", "workspace_bytes", "bias_attribute", "stream_of",
                            "otherwise", "owner",   NULL};
    PyObject *functions, *handles, *algorithm, *stream, *otherwise, *owner = Py_None;
    int device_type, device_index, bias;
    Py_ssize_t workspace;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!(ii)O!niOO|O:DeviceProduct", names, &PyTuple_Type, &functions,
                                     &PyTuple_Type, &handles, &device_type, &device_index, &PyBytes_Type, &algorithm, &workspace,
                                     &bias, &stream, &otherwise, &owner)) {
        return NULL;
    }
    DeviceProduct *self = (DeviceProduct *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = device_product_vectorcall;
    self->device_type = device_type;
    self->device_index = device_index;
    self->bias = bias >= 0;
    self->bias_attribute = bias;
    self->workspace_bytes = (size_t)workspace;
    self->algorithm = Py_NewRef(algorithm);
    self->stream_of = Py_NewRef(stream);
    self->otherwise = Py_NewRef(otherwise);
    self->owner = Py_NewRef(owner);
    self->index = PyLong_FromLong(device_index);
    self->lock = PyThread_allocate_lock();
    if (self->index == NULL || set_addresses(self, functions, handles) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int
device_product_traverse(DeviceProduct *self, visitproc visit, void *arg)
{
    Py_VISIT(self->stream_of);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->owner);
    return 0;
}

static void
device_product_dealloc(DeviceProduct *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->algorithm);
    Py_CLEAR(self->stream_of);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->index);
    if (self->lock != NULL) {
        PyThread_free_lock(self->lock);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef device_product_members[] = {
    {"broken", T_BOOL, offsetof(DeviceProduct, broken), READONLY, NULL},
    {"calls", T_ULONGLONG, offsetof(DeviceProduct, calls), READONLY, NULL},
    {"otherwise", T_OBJECT, offsetof(DeviceProduct, otherwise), READONLY, NULL},
    {NULL},
};

PyTypeObject DeviceProduct_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.DeviceProduct",
    .tp_doc = "DeviceProduct(functions, handles, device, algorithm, workspace_bytes, bias_attribute, stream_of, otherwise, "
              "owner=None)\n--\n\nA matrix product of fixed sizes on a GPU.",
    .tp_basicsize = sizeof(DeviceProduct),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = device_product_new,
    .tp_traverse = (traverseproc)device_product_traverse,
    .tp_dealloc = (destructor)device_product_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(DeviceProduct, vectorcall),
    .tp_members = device_product_members,
};
