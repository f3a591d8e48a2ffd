/* Kernel: a C function at an address, called with data pointers and integers. */
#include "core.h"
#include "profile.h"

typedef void (*KernelFn)(void **ptrs, const int64_t *ints);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    KernelFn fn;
    Py_ssize_t num_tensors, num_ints;
    bool release_gil;
    unsigned long long calls;
    PyObject *name, *owner;
    PyObject *label; /* its name in profiles, or NULL: `name` */
    char annotated;  /* always in profiles, whatever the settings are */
} Kernel;

static int
pointer_of(Kernel *self, PyObject *arg, Py_ssize_t position, void **pointer)
{
    TensorView view;
    if (LIKELY(tensor_view_fn != NULL && tensor_type_ok(arg))) {
        if (UNLIKELY(tensor_view_fn(arg, &view) < 0)) {
            return -1;
        }
        *pointer = (char *)view.data + view.byte_offset;
        return 0;
    }
    if (arg == Py_None) {
        *pointer = NULL;
        return 0;
    }
    if (PyLong_Check(arg)) {
        *pointer = PyLong_AsVoidPtr(arg);
        return *pointer == NULL && PyErr_Occurred() ? -1 : 0;
    }
    PyErr_Format(PyExc_TypeError, "kernel %U: argument %zd must be a tensor%s, not %.100s", self->name, position,
                 tensor_view_fn == NULL ? " (and set_exchange_api was not called)" : "", Py_TYPE(arg)->tp_name);
    return -1;
}

static int
integer_of(Kernel *self, PyObject *arg, Py_ssize_t position, int64_t *value)
{
    if (UNLIKELY(!PyLong_Check(arg))) {
        PyErr_Format(PyExc_TypeError, "kernel %U: argument %zd must be an int, not %.100s", self->name, position,
                     Py_TYPE(arg)->tp_name);
        return -1;
    }
    *value = PyLong_AsLongLong(arg);
    return UNLIKELY(*value == -1) && PyErr_Occurred() ? -1 : 0;
}

#define STACK_WORDS 64

static PyObject *
kernel_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Kernel *self = (Kernel *)callable;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), wanted = self->num_tensors + self->num_ints;
    if (UNLIKELY(nargs != wanted || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0))) {
        return PyErr_Format(PyExc_TypeError, "kernel %U takes %zd tensors and %zd ints (%zd arguments given)%s", self->name,
                            self->num_tensors, self->num_ints, nargs,
                            kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0 ? " and no keyword arguments" : "");
    }
    union {
        void *pointer;
        int64_t integer;
    } on_stack[STACK_WORDS], *words = on_stack;
    if (UNLIKELY(wanted > STACK_WORDS)) {
        words = PyMem_Malloc(wanted * sizeof(*words));
        if (words == NULL) {
            return PyErr_NoMemory();
        }
    }
    void **pointers = &words[0].pointer;
    int64_t *integers = &words[self->num_tensors].integer;
    PyObject *result = NULL;
    for (Py_ssize_t i = 0; i < self->num_tensors; i++) {
        if (UNLIKELY(pointer_of(self, args[i], i, &pointers[i]) < 0)) {
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < self->num_ints; i++) {
        if (UNLIKELY(integer_of(self, args[self->num_tensors + i], self->num_tensors + i, &integers[i]) < 0)) {
            goto done;
        }
    }
    self->calls++;
    PyObject *range = NULL;
    if (UNLIKELY(profiler_runs()) && (self->annotated || kernel_ranges_wanted())) {
        range = range_begin(self->label != NULL ? self->label : self->name, args, self->num_tensors);
    }
    if (self->release_gil) {
        KernelFn fn = self->fn;
        Py_INCREF(self); /* and with it its owner, which keeps the code loaded */
        Py_BEGIN_ALLOW_THREADS
        fn(pointers, integers);
        Py_END_ALLOW_THREADS
        Py_DECREF(self);
    }
    else {
        self->fn(pointers, integers);
    }
    if (UNLIKELY(range != NULL)) {
        range_end(range);
    }
    result = Py_NewRef(Py_None);
done:
    if (UNLIKELY(words != on_stack)) {
        PyMem_Free(words);
    }
    return result;
}

static PyObject *
kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "name", "num_tensors", "num_ints", "release_gil", "owner", NULL};
    PyObject *address, *name, *owner = Py_None;
    Py_ssize_t num_tensors, num_ints;
    int release_gil = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Unn|pO:Kernel", names, &PyLong_Type, &address, &name, &num_tensors,
                                     &num_ints, &release_gil, &owner)) {
        return NULL;
    }
    void *fn = PyLong_AsVoidPtr(address);
    if (fn == NULL || num_tensors < 0 || num_ints < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "kernel %U: the address must not be 0, the counts not negative", name);
        }
        return NULL;
    }
    Kernel *self = (Kernel *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = kernel_vectorcall;
    memcpy(&self->fn, &fn, sizeof(fn));
    self->name = Py_NewRef(name);
    self->num_tensors = num_tensors;
    self->num_ints = num_ints;
    self->release_gil = release_gil;
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static int
kernel_traverse(Kernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    return 0;
}

static void
kernel_dealloc(Kernel *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->name);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->label);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
kernel_address(Kernel *self, void *Py_UNUSED(closure))
{
    void *fn;
    memcpy(&fn, &self->fn, sizeof(fn));
    return PyLong_FromVoidPtr(fn);
}

static PyObject *
kernel_repr(Kernel *self)
{
    return PyUnicode_FromFormat("<argand kernel %U(%zd tensors, %zd ints)>", self->name, self->num_tensors, self->num_ints);
}

static PyMemberDef kernel_members[] = {
    {"name", T_OBJECT, offsetof(Kernel, name), READONLY, NULL},
    {"owner", T_OBJECT, offsetof(Kernel, owner), READONLY, NULL},
    {"num_tensors", T_PYSSIZET, offsetof(Kernel, num_tensors), READONLY, NULL},
    {"num_ints", T_PYSSIZET, offsetof(Kernel, num_ints), READONLY, NULL},
    {"release_gil", T_BOOL, offsetof(Kernel, release_gil), READONLY, NULL},
    {"annotated", T_BOOL, offsetof(Kernel, annotated), 0, NULL},
    {"calls", T_ULONGLONG, offsetof(Kernel, calls), READONLY, NULL},
    {NULL},
};

static PyObject *
kernel_label(Kernel *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->label != NULL ? self->label : self->name);
}

static int
kernel_set_label(Kernel *self, PyObject *label, void *Py_UNUSED(closure))
{
    return set_label(&self->label, label);
}

static PyGetSetDef kernel_getset[] = {
    {"address", (getter)kernel_address, NULL, NULL, NULL},
    {"label", (getter)kernel_label, (setter)kernel_set_label, NULL, NULL},
    {NULL},
};

PyTypeObject Kernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.Kernel",
    .tp_doc = "Kernel(address, name, num_tensors, num_ints, release_gil=False, owner=None)\n--\n\n"
              "A C function void(void **ptrs, const int64_t *ints), callable with tensors and ints.",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_new,
    .tp_traverse = (traverseproc)kernel_traverse,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_repr = (reprfunc)kernel_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_members = kernel_members,
    .tp_getset = kernel_getset,
};
