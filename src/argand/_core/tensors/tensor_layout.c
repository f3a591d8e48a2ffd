/* Where this process's torch keeps the dispatch keys, dtype, device, sizes and strides of a tensor, and whether it requires
 * grad: learnt at run time, never from torch's headers.
 *
 * Asking torch for all of this takes 200 to 600 ns a tensor, and a model has a thousand parameters to guard. But DLPack hands
 * out pointers to the sizes and strides inside the tensor's implementation object, and from there every other field can be
 * found by looking at sample tensors whose properties are known (tensor_samples.py). A field is accepted only when exactly one
 * place agrees with every sample; when any is not found, or the final check of all samples against torch's own answers fails,
 * nothing is used and guards ask torch. Only equality of fields is ever used, no pointer into torch is kept. */
#include "tensor.h"

#if defined(__linux__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#endif

TensorLayout tensor_layout;
unsigned tensor_layout_generation = 1;

#define MAX_SAMPLES 32
#define INLINE_DIMS 5
#define TAIL 64      /* bytes looked at behind the inline strides */
#define META_TAIL 384 /* bytes of the autograd part looked at, when it is that long */

typedef struct {
    int count;
    PyObject *tensors[MAX_SAMPLES]; /* borrowed from the samples dict */
    uint64_t keys[MAX_SAMPLES];
    TensorView views[MAX_SAMPLES];
    const char *impls[MAX_SAMPLES];
} Group;

typedef struct {
    Group shapes, dtypes, keys, plain, grad, result, views, meta;
    int end; /* of what is looked at in an implementation object */
} Samples;

static inline uint64_t
word_at(const char *where)
{
    uint64_t value;
    memcpy(&value, where, sizeof(value));
    return value;
}

/* Bytes of the allocation that starts here, META_TAIL at most. 0 where it cannot be told: then no field is found. */
static int
allocated_size(const char *start)
{
#if defined(__linux__)
    size_t size = malloc_usable_size((void *)start);
#elif defined(__APPLE__)
    size_t size = malloc_size(start);
#else
    size_t size = start == NULL;
#endif
    return size > META_TAIL ? META_TAIL : (int)size;
}

/* ---- loading the samples --------------------------------------------------------------------------------------- */

static int
load_group(PyObject *samples, const char *name, Group *group, bool views)
{
    PyObject *list = PyDict_GetItemString(samples, name);
    if (list == NULL || !PyList_Check(list) || PyList_GET_SIZE(list) > MAX_SAMPLES) {
        return -1;
    }
    group->count = (int)PyList_GET_SIZE(list);
    for (int i = 0; i < group->count; i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            return -1;
        }
        group->tensors[i] = PyTuple_GET_ITEM(pair, 0);
        group->keys[i] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(pair, 1));
        if (PyErr_Occurred() || !tensor_type_ok(group->tensors[i])) {
            return -1;
        }
        if (views && tensor_view_fn(group->tensors[i], &group->views[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

static void
load_impls(Group *group)
{
    for (int i = 0; i < group->count; i++) {
        memcpy(&group->impls[i], (const char *)group->tensors[i] + tensor_layout.impl, sizeof(char *));
    }
}

/* ---- finding fields -------------------------------------------------------------------------------------------- */

/* The pointer in the Python object to what holds the inline sizes and strides. */
static bool
find_impl(Samples *s)
{
    Group *shapes = &s->shapes;
    int matches = 0;
    Py_ssize_t size = Py_TYPE(shapes->tensors[0])->tp_basicsize;
    for (int at = sizeof(PyObject); at + 8 <= size && at < 128; at += 8) {
        ptrdiff_t to_sizes = 0, to_strides = 0;
        bool same = true;
        for (int i = 0; same && i < shapes->count; i++) {
            const TensorView *view = &shapes->views[i];
            if (view->ndim == 0 || view->ndim > INLINE_DIMS) {
                continue;
            }
            uint64_t base = word_at((const char *)shapes->tensors[i] + at);
            ptrdiff_t sizes = (ptrdiff_t)((uint64_t)(uintptr_t)view->sizes - base);
            ptrdiff_t strides = (ptrdiff_t)((uint64_t)(uintptr_t)view->strides - base);
            same = base != 0 && sizes > 16 && sizes < 512 && strides == sizes + INLINE_DIMS * 8 && sizes % 8 == 0 &&
                   (to_sizes == 0 || (sizes == to_sizes && strides == to_strides));
            to_sizes = sizes;
            to_strides = strides;
        }
        if (same && to_sizes != 0) {
            matches++;
            tensor_layout.impl = at;
            tensor_layout.sizes = (int)to_sizes;
            tensor_layout.strides = (int)to_strides;
        }
    }
    return matches == 1;
}

/* The rank stands right before the sizes; from rank 6 on, the first word of the sizes points to sizes and strides. */
static bool
find_rank(Samples *s)
{
    tensor_layout.rank = tensor_layout.sizes - 8;
    for (int i = 0; i < s->shapes.count; i++) {
        const TensorView *view = &s->shapes.views[i];
        const char *impl = s->shapes.impls[i];
        if (word_at(impl + tensor_layout.rank) != (uint64_t)view->ndim) {
            return false;
        }
        if (view->ndim > INLINE_DIMS && (word_at(impl + tensor_layout.sizes) != (uint64_t)(uintptr_t)view->sizes ||
                                         view->strides != view->sizes + view->ndim)) {
            return false;
        }
    }
    return true;
}

static bool
find_keys(Samples *s)
{
    int matches = 0;
    for (int at = 8; at + 8 <= s->end; at += 8) {
        bool same = true;
        for (int i = 0; same && i < s->keys.count; i++) {
            same = word_at(s->keys.impls[i] + at) == s->keys.keys[i];
        }
        for (int i = 0; same && i < s->dtypes.count; i++) {
            same = word_at(s->dtypes.impls[i] + at) == s->dtypes.keys[i];
        }
        if (same) {
            matches++;
            tensor_layout.keys = at;
        }
    }
    return matches == 1;
}

static bool
inside_keys(int at)
{
    return at + 2 > tensor_layout.keys && at < tensor_layout.keys + 8;
}

/* Two bytes that differ between any two dtypes and agree within one. */
static bool
find_dtype(Samples *s)
{
    int matches = 0;
    for (int at = tensor_layout.strides + INLINE_DIMS * 8; at + 2 <= s->end; at += 2) {
        bool good = !inside_keys(at);
        uint16_t first, other;
        memcpy(&first, s->dtypes.impls[0] + at, 2);
        for (int i = 0; good && i < s->dtypes.count; i++) {
            uint16_t value;
            memcpy(&value, s->dtypes.impls[i] + at, 2);
            for (int k = 0; good && k < i; k++) {
                memcpy(&other, s->dtypes.impls[k] + at, 2);
                good = other != value;
            }
        }
        for (int i = 0; good && i < s->shapes.count; i++) { /* all of the first dtype */
            memcpy(&other, s->shapes.impls[i] + at, 2);
            good = other == first;
        }
        for (int i = 0; good && i < s->meta.count; i++) {
            memcpy(&other, s->meta.impls[i] + at, 2);
            good = other == first;
        }
        if (good) {
            matches++;
            tensor_layout.dtype = at;
        }
    }
    return matches == 1;
}

/* A byte that differs between the CPU and the meta device, followed by the index, which is -1 for both. */
static bool
find_device(Samples *s)
{
    int matches = 0;
    for (int at = tensor_layout.strides + INLINE_DIMS * 8; at + 2 <= s->end; at++) {
        const unsigned char cpu = (unsigned char)s->plain.impls[0][at], meta = (unsigned char)s->meta.impls[0][at];
        bool good = !inside_keys(at) && cpu != meta && (unsigned char)s->meta.impls[0][at + 1] == 0xff;
        const Group *groups[] = {&s->shapes, &s->dtypes, &s->plain, &s->grad};
        for (int g = 0; good && g < 4; g++) {
            for (int i = 0; good && i < groups[g]->count; i++) {
                good = (unsigned char)groups[g]->impls[i][at] == cpu && (unsigned char)groups[g]->impls[i][at + 1] == 0xff;
            }
        }
        if (good) {
            matches++;
            tensor_layout.device = at;
        }
    }
    return matches == 1;
}

/* A pointer that is null where nothing ever required grad and set where it does. */
static bool
find_autograd(Samples *s)
{
    int matches = 0;
    for (int at = 16; at + 8 <= tensor_layout.rank; at += 8) {
        bool good = true;
        for (int i = 0; good && i < s->grad.count; i++) {
            good = word_at(s->grad.impls[i] + at) != 0;
        }
        for (int i = 0; good && i < s->plain.count; i++) {
            good = word_at(s->plain.impls[i] + at) == 0;
        }
        for (int i = 0; good && i < s->dtypes.count; i++) {
            good = word_at(s->dtypes.impls[i] + at) == 0;
        }
        if (good) {
            matches++;
            tensor_layout.autograd = at;
        }
    }
    return matches == 1;
}

static bool
set_requires_grad(PyObject *tensor, bool value)
{
    PyObject *result = PyObject_CallMethod(tensor, "requires_grad_", "O", value ? Py_True : Py_False);
    Py_XDECREF(result);
    return result != NULL;
}

/* The byte that follows requires_grad as it is switched on and off. */
static bool
find_requires_grad(Samples *s)
{
    static const bool switching[] = {true, false, true, true, false, false, true, false, true};
    unsigned char agree[META_TAIL];
    memset(agree, 1, sizeof(agree));
    int size = META_TAIL;
    for (int i = 0; i < s->grad.count; i++) {
        const char *autograd = (const char *)(uintptr_t)word_at(s->grad.impls[i] + tensor_layout.autograd);
        int own = allocated_size(autograd);
        size = own < size ? own : size;
        for (size_t k = 0; k < sizeof(switching) / sizeof(switching[0]); k++) {
            if (!set_requires_grad(s->grad.tensors[i], switching[k])) {
                return false;
            }
            if ((uint64_t)(uintptr_t)autograd != word_at(s->grad.impls[i] + tensor_layout.autograd)) {
                return false;
            }
            for (int at = 8; at < size; at++) {
                agree[at] &= (unsigned char)autograd[at] == switching[k];
            }
        }
    }
    int matches = 0;
    for (int at = 8; at < size; at++) {
        if (agree[at]) {
            matches++;
            tensor_layout.requires_grad = at;
        }
    }
    return matches == 1;
}

/* The pointer that is set in results of recorded operations and in nothing else: the other way to require grad. Torch 2.11
 * has two such words side by side, of one shared pointer: both are null or none is. */
static bool
find_grad_fn(Samples *s)
{
    int matches = 0, size = META_TAIL;
    bool adjacent = true;
    const Group *groups[] = {&s->result, &s->grad};
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < groups[g]->count; i++) {
            int own = allocated_size((const char *)(uintptr_t)word_at(groups[g]->impls[i] + tensor_layout.autograd));
            size = own < size ? own : size;
        }
    }
    for (int at = 8; at + 8 <= size; at += 8) {
        bool good = true;
        for (int g = 0; g < 2; g++) {
            for (int i = 0; good && i < groups[g]->count; i++) {
                const char *autograd = (const char *)(uintptr_t)word_at(groups[g]->impls[i] + tensor_layout.autograd);
                uint64_t word = word_at(autograd + at);
                good = g == 0 ? word > 4096 && word % 8 == 0 : word == 0;
            }
        }
        if (good) {
            adjacent = matches == 0 || at == tensor_layout.grad_fn + 8;
            tensor_layout.grad_fn = matches++ == 0 ? at : tensor_layout.grad_fn;
        }
    }
    return matches == 1 || (matches == 2 && adjacent);
}

/* What the first word of a plain autograd part is (its type, as C++ has it). A view has another: it may also require grad
 * because its base does, and then torch is asked. */
static bool
find_autograd_type(Samples *s)
{
    const char *first = (const char *)(uintptr_t)word_at(s->grad.impls[0] + tensor_layout.autograd);
    tensor_layout.autograd_type = word_at(first);
    const Group *groups[] = {&s->grad, &s->result};
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < groups[g]->count; i++) {
            const char *autograd = (const char *)(uintptr_t)word_at(groups[g]->impls[i] + tensor_layout.autograd);
            if (word_at(autograd) != tensor_layout.autograd_type) {
                return false;
            }
        }
    }
    for (int i = 0; i < s->views.count; i++) {
        const char *autograd = (const char *)(uintptr_t)word_at(s->views.impls[i] + tensor_layout.autograd);
        if (autograd == NULL || word_at(autograd) == tensor_layout.autograd_type) {
            return false;
        }
    }
    return true;
}

/* ---- checking the whole ---------------------------------------------------------------------------------------- */

static bool
agrees_with_torch(const Group *group, bool views)
{
    for (int i = 0; i < group->count; i++) {
        TensorFields fields;
        int requires_grad = tensor_requires_grad(group->tensors[i]);
        if (!tensor_layout_read(group->tensors[i], &fields) || fields.keys != group->keys[i] || requires_grad < 0 ||
            (fields.requires_grad >= 0 && fields.requires_grad != requires_grad)) {
            return false;
        }
        const TensorView *view = &group->views[i];
        if (views && (fields.ndim != view->ndim || (view->ndim > 0 && (fields.sizes != view->sizes || fields.strides != view->strides)))) {
            return false;
        }
    }
    return true;
}

static bool
find_all(PyObject *groups, Samples *s)
{
    if (load_group(groups, "shapes", &s->shapes, true) < 0 || load_group(groups, "dtypes", &s->dtypes, true) < 0 ||
        load_group(groups, "keys", &s->keys, false) < 0 || load_group(groups, "plain", &s->plain, true) < 0 ||
        load_group(groups, "grad", &s->grad, true) < 0 || load_group(groups, "result", &s->result, true) < 0 ||
        load_group(groups, "views", &s->views, true) < 0 || load_group(groups, "meta", &s->meta, false) < 0) {
        return false;
    }
    if (s->shapes.count < 5 || s->dtypes.count < 5 || s->keys.count < 4 || s->plain.count < 2 || s->grad.count < 2 ||
        s->result.count < 2 || s->views.count < 2 || s->meta.count < 1 || !find_impl(s)) {
        return false;
    }
    Group *all[] = {&s->shapes, &s->dtypes, &s->keys, &s->plain, &s->grad, &s->result, &s->views, &s->meta};
    for (int i = 0; i < 8; i++) {
        load_impls(all[i]);
    }
    s->end = tensor_layout.strides + INLINE_DIMS * 8 + TAIL;
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < all[g]->count; i++) {
            int size = allocated_size(all[g]->impls[i]);
            s->end = size < s->end ? size : s->end;
        }
    }
    if (s->end < tensor_layout.strides + INLINE_DIMS * 8) {
        return false;
    }
    if (!find_rank(s) || !find_keys(s) || !find_dtype(s) || !find_device(s) || !find_autograd(s) || !find_requires_grad(s) ||
        !find_grad_fn(s) || !find_autograd_type(s)) {
        return false;
    }
    tensor_layout.known = true;
    if (!agrees_with_torch(&s->shapes, true) || !agrees_with_torch(&s->dtypes, true) || !agrees_with_torch(&s->keys, false) ||
        !agrees_with_torch(&s->plain, true) || !agrees_with_torch(&s->grad, true) ||
        !agrees_with_torch(&s->result, true) ||
        !agrees_with_torch(&s->views, true)) {
        tensor_layout.known = false;
    }
    return tensor_layout.known;
}

/* Learns the layout once. Returns -1 only for exceptions outside Exception. */
int
tensor_layout_learn(void)
{
    if (tensor_layout.tried) {
        return 0;
    }
    tensor_layout = (TensorLayout){.tried = true};
    Samples *samples = PyMem_Calloc(1, sizeof(Samples));
    PyObject *module = PyImport_ImportModule("argand._core.tensor_samples");
    PyObject *groups = module == NULL ? NULL : PyObject_CallMethod(module, "samples", NULL);
    if (samples != NULL && groups != NULL && PyDict_Check(groups) && !find_all(groups, samples)) {
        tensor_layout = (TensorLayout){.tried = true};
    }
    tensor_layout_generation++;
    Py_XDECREF(groups);
    Py_XDECREF(module);
    PyMem_Free(samples);
    if (PyErr_Occurred()) {
        tensor_layout = (TensorLayout){.tried = true};
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            tensor_layout.tried = false;
            return -1;
        }
        PyErr_Clear();
    }
    return 0;
}

PyObject *
tensor_layout_describe(void)
{
    const TensorLayout *l = &tensor_layout;
    if (!l->known) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "impl", l->impl, "rank", l->rank, "sizes", l->sizes, "strides",
                         l->strides, "keys", l->keys, "dtype", l->dtype, "device", l->device, "autograd", l->autograd,
                         "requires_grad", l->requires_grad, "grad_fn", l->grad_fn);
}
