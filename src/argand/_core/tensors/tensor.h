/* Shared by tensor_meta.c (the exchange API), tensor_guard.c (the "tensor" check) and tensor_layout.c. */
#ifndef ARGAND_TENSOR_H
#define ARGAND_TENSOR_H

#include "core.h"

/* Offsets in bytes: impl in the Python object, requires_grad and grad_fn in the autograd part, the others in the implementation object. */
typedef struct {
    bool tried, known;
    int impl, rank, sizes, strides, keys, dtype, device, autograd, requires_grad, grad_fn;
    uint64_t autograd_type;
} TensorLayout;

extern TensorLayout tensor_layout;
extern unsigned tensor_layout_generation; /* changes when the layout is learnt anew or forgotten */

typedef struct {
    uint64_t keys;
    uint16_t dtype;    /* an index of torch's: only good for comparing */
    uint8_t device[2]; /* type and index, likewise */
    int ndim;
    int requires_grad; /* -1: torch must be asked */
    const int64_t *sizes, *strides;
} TensorFields;

#define OPEN_DIM INT64_MIN

typedef struct {
    int ndim; /* -1: everything open, or the tensor has no such property */
    int64_t *values;
} DimSpec;

/* What every ordinary tensor of a dtype and device has in common. */
typedef struct {
    uint64_t keys;
    uint16_t dtype;
    uint8_t device[2];
} Reference;

/* What a tensor guard expects. */
struct TensorSpec {
    /* first what a comparison with the learnt layout reads */
    bool fast;          /* compared with the learnt layout; otherwise by attributes */
    bool requires_grad;
    bool any_inference; /* other.keys are good too */
    bool plain;
    unsigned generation; /* of the layout that the references were read with */
    Reference expected;
    DimSpec sizes, strides;
    Reference other;
    PyObject *dtype, *device;
    int flags;
    int shares; /* how many more checks have it */
    int64_t values[]; /* of sizes and strides */
};

PyObject *tensor_guard_args(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int tensor_layout_learn(void);
PyObject *tensor_layout_describe(void);
int tensor_requires_grad(PyObject *obj); /* torch's own answer: 1, 0, -1 with an exception */
int tensor_hush(PyObject *obj, PyObject **hush); /* no __torch_function__ of obj's class until tensor_unhush */
void tensor_unhush(PyObject *hush);
PyObject *tensor_module_call(const char *function, PyObject *args); /* of argand._core.tensor_samples; steals args */

/* The attribute names that are read from tensors, interned. */
enum { N_DTYPE, N_DEVICE, N_REQUIRES_GRAD, N_SHAPE, N_STRIDE, N_TYPE, N_INDEX, NUM_NAMES };
extern PyObject *tensor_names[NUM_NAMES];
extern PyTypeObject *tensor_base; /* the class that the exchange API was published on */

/* Reads the fields of a tensor; false when it has no implementation object. The pointers are good until torch runs again. */
static inline bool
tensor_layout_read(PyObject *obj, TensorFields *out)
{
    const char *impl, *autograd;
    uint64_t rank;
    memcpy(&impl, (const char *)obj + tensor_layout.impl, sizeof(impl));
    if (UNLIKELY(impl == NULL)) {
        return false;
    }
    memcpy(&out->keys, impl + tensor_layout.keys, sizeof(out->keys));
    memcpy(&out->dtype, impl + tensor_layout.dtype, sizeof(out->dtype));
    memcpy(out->device, impl + tensor_layout.device, sizeof(out->device));
    memcpy(&rank, impl + tensor_layout.rank, sizeof(rank));
    memcpy(&autograd, impl + tensor_layout.autograd, sizeof(autograd));
    out->ndim = (int)rank;
    if (LIKELY(rank <= 5)) {
        out->sizes = (const int64_t *)(impl + tensor_layout.sizes);
        out->strides = (const int64_t *)(impl + tensor_layout.strides);
    }
    else {
        memcpy(&out->sizes, impl + tensor_layout.sizes, sizeof(out->sizes));
        out->strides = out->sizes + rank;
    }
    out->requires_grad = 0;
    if (autograd != NULL) { /* switched on, or the result of an operation that was recorded */
        uint64_t grad_fn, type;
        if (LIKELY(autograd[tensor_layout.requires_grad] == 1)) { /* as parameters: the rest would be memory read for nothing */
            out->requires_grad = 1;
            return true;
        }
        memcpy(&grad_fn, autograd + tensor_layout.grad_fn, sizeof(grad_fn));
        memcpy(&type, autograd, sizeof(type));
        if (grad_fn != 0) {
            out->requires_grad = 1;
        }
        else if (type != tensor_layout.autograd_type) {
            out->requires_grad = -1;
        }
    }
    return true;
}

#endif
