/* DeviceKernel: a function of a GPU, launched with the pointers of tensors and integers on the tensors' device.
 *
 * No headers of any maker are used: the caller finds the driver's functions in its library and gives their addresses. */
#include "device.h"
#include "profile.h"

typedef int (*LaunchFn)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **params, void **extra); /* cuLaunchKernel */

typedef union {
    void *pointer;
    int64_t wide;
    int32_t narrow;
} Word;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    void *function;
    LaunchFn launch;
    DeviceContext device;
    int device_type, device_index;
    unsigned threads, shared;
    Py_ssize_t num_tensors, num_ints, num_params; /* parameters behind the arguments are null pointers */
    char *kinds;                                  /* of each argument: 'p', 'i' (32 bits), 'l' (64 bits) */
    unsigned long long calls;
    PyObject *name, *index, *stream_of, *failed;
    PyObject *unaligned; /* makes `other`; NULL when pointers need no alignment */
    PyObject *other;     /* the same kernel for pointers that are not multiples of DEVICE_ALIGNMENT, or NULL until it is needed */
    PyObject *owner;     /* kept alive */
    PyObject *label;     /* its name in profiles, or NULL: `name` */
    char annotated;      /* always in profiles, whatever the settings are */
} DeviceKernel;

#define HOST_DEVICE 1 /* DLPack's number of the CPU: for tests */
#define GRID_ARGS 3
#define STACK_WORDS 64
#define MAX_GRID_X 0x7fffffffL
#define MAX_GRID_YZ 65535L

/* Tensors that have no view (of a type that DLPack lacks) are asked themselves. */
static int
pointer_asked(DeviceKernel *self, PyObject *arg, Py_ssize_t position, void **pointer)
{
    PyErr_Clear();
    bool host = self->device_type == HOST_DEVICE;
    PyObject *answer = PyObject_CallMethod(arg, "data_ptr", NULL);
    PyObject *kind = answer == NULL ? NULL : PyObject_GetAttrString(arg, host ? "is_cpu" : "is_cuda");
    PyObject *index = kind == NULL ? NULL : PyObject_CallMethod(arg, "get_device", NULL);
    if (index != NULL) {
        *pointer = PyLong_AsVoidPtr(answer);
        long at = PyLong_AsLong(index);
        if (!PyErr_Occurred() && (kind != Py_True || (!host && at != self->device_index))) {
            PyErr_Format(PyExc_ValueError, "kernel %U: argument %zd is on device %ld of another kind, or another device than %d",
                         self->name, position, at, self->device_index);
        }
    }
    Py_XDECREF(answer);
    Py_XDECREF(kind);
    Py_XDECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

static int
pointer_of(DeviceKernel *self, PyObject *arg, Py_ssize_t position, void **pointer)
{
    TensorView view;
    if (UNLIKELY(tensor_view_fn == NULL || !tensor_type_ok(arg))) {
        PyErr_Format(PyExc_TypeError, "kernel %U: argument %zd must be a tensor%s, not %.100s", self->name, position,
                     tensor_view_fn == NULL ? " (and set_exchange_api was not called)" : "", Py_TYPE(arg)->tp_name);
        return -1;
    }
    if (UNLIKELY(tensor_view_fn(arg, &view) < 0)) {
        return pointer_asked(self, arg, position, pointer);
    }
    if (UNLIKELY(view.device_type != self->device_type || view.device_id != self->device_index)) {
        PyErr_Format(PyExc_ValueError, "kernel %U: argument %zd is on device %d of type %d, the kernel on device %d of type %d",
                     self->name, position, view.device_id, view.device_type, self->device_index, self->device_type);
        return -1;
    }
    *pointer = (char *)view.data + view.byte_offset;
    return 0;
}

static int
integer_of(DeviceKernel *self, PyObject *arg, Py_ssize_t position, char kind, Word *word)
{
    if (UNLIKELY(!PyLong_Check(arg))) {
        PyErr_Format(PyExc_TypeError, "kernel %U: argument %zd must be an int, not %.100s", self->name, position,
                     Py_TYPE(arg)->tp_name);
        return -1;
    }
    int64_t value = PyLong_AsLongLong(arg);
    if (UNLIKELY(value == -1) && PyErr_Occurred()) {
        return -1;
    }
    if (kind == 'l') {
        word->wide = value;
        return 0;
    }
    if (UNLIKELY(value < INT32_MIN || value > INT32_MAX)) {
        PyErr_Format(PyExc_OverflowError, "kernel %U: argument %zd is %lld, which 32 bits do not hold", self->name, position,
                     (long long)value);
        return -1;
    }
    word->wide = 0;
    word->narrow = (int32_t)value;
    return 0;
}

/* The grid; 1 when it is empty, -1 with an exception. */
static int
grid_of(DeviceKernel *self, PyObject *const *args, unsigned grid[GRID_ARGS])
{
    int empty = 0;
    for (int i = 0; i < GRID_ARGS; i++) {
        long extent = PyLong_Check(args[i]) ? PyLong_AsLong(args[i]) : -1;
        if (UNLIKELY(extent < 0 || extent > (i == 0 ? MAX_GRID_X : MAX_GRID_YZ))) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "kernel %U: a grid of %S x %S x %S programs cannot be launched", self->name, args[0],
                         args[1], args[2]);
            return -1;
        }
        empty |= extent == 0;
        grid[i] = (unsigned)extent;
    }
    return empty;
}

/* Stores the arguments in words; 1 when a pointer is not aligned as the code expects, -1 with an exception. */
static int
pack(DeviceKernel *self, PyObject *const *args, Word *words)
{
    uintptr_t bits = 0;
    Py_ssize_t i = 0;
    for (; i < self->num_tensors; i++) {
        if (UNLIKELY(pointer_of(self, args[i], i, &words[i].pointer) < 0)) {
            return -1;
        }
        bits |= (uintptr_t)words[i].pointer;
    }
    for (; i < self->num_tensors + self->num_ints; i++) {
        if (UNLIKELY(integer_of(self, args[i], i, self->kinds[i], &words[i]) < 0)) {
            return -1;
        }
    }
    for (; i < self->num_params; i++) {
        words[i].pointer = NULL;
    }
    return bits % DEVICE_ALIGNMENT != 0 && self->unaligned != NULL;
}

/* Other threads run meanwhile: a launch waits while the queue of its stream is full. */
static int
launch(DeviceKernel *self, const unsigned grid[GRID_ARGS], void *stream, void **params)
{
    int code;
    bool foreign;
    Py_INCREF(self);
    Py_BEGIN_ALLOW_THREADS
    code = device_enter(&self->device, &foreign);
    if (code == 0) {
        code = self->launch(self->function, grid[0], grid[1], grid[2], self->threads, 1, 1, self->shared, stream, params, NULL);
        code = device_leave(&self->device, foreign, code);
    }
    Py_END_ALLOW_THREADS
    Py_DECREF(self);
    return code;
}

static int
launch_words(DeviceKernel *self, PyObject *const *args, const unsigned grid[GRID_ARGS], Word *words, void **params)
{
    void *stream;
    if (UNLIKELY(device_stream(self->stream_of, self->index, &stream) < 0)) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->num_params; i++) {
        params[i] = &words[i];
    }
    PyObject *range = NULL;
    if (UNLIKELY(profiler_runs()) && (self->annotated || kernel_ranges_wanted())) {
        range = range_begin(self->label != NULL ? self->label : self->name, args + GRID_ARGS, self->num_tensors);
    }
    int code = launch(self, grid, stream, params);
    if (UNLIKELY(range != NULL)) {
        range_end(range);
    }
    if (UNLIKELY(code != 0)) {
        PyObject *answer = PyObject_CallFunction(self->failed, "iO", code, self->name); /* raises */
        if (answer != NULL) {
            Py_DECREF(answer);
            PyErr_Format(PyExc_RuntimeError, "kernel %U: the driver refused a launch (error %d)", self->name, code);
        }
        return -1;
    }
    self->calls++;
    return 0;
}

static PyObject *
call_other(DeviceKernel *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (self->other == NULL) {
        PyObject *other = PyObject_CallNoArgs(self->unaligned);
        if (other == NULL) {
            return NULL;
        }
        Py_XSETREF(self->other, other); /* another thread may have been here too */
    }
    PyObject *other = Py_NewRef(self->other), *result = PyObject_Vectorcall(other, args, nargs, NULL);
    Py_DECREF(other);
    return result;
}

static PyObject *
device_kernel_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    DeviceKernel *self = (DeviceKernel *)callable;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), wanted = GRID_ARGS + self->num_tensors + self->num_ints;
    if (UNLIKELY(nargs != wanted || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0))) {
        return PyErr_Format(PyExc_TypeError, "kernel %U takes a grid of %d, %zd tensors and %zd ints (%zd arguments given)",
                            self->name, GRID_ARGS, self->num_tensors, self->num_ints, nargs);
    }
    unsigned grid[GRID_ARGS];
    int status = grid_of(self, args, grid);
    if (UNLIKELY(status != 0)) {
        return status < 0 ? NULL : Py_NewRef(Py_None);
    }
    Word on_stack[STACK_WORDS], *words = on_stack;
    void *stack_params[STACK_WORDS], **params = stack_params;
    if (UNLIKELY(self->num_params > STACK_WORDS)) {
        words = PyMem_Malloc(self->num_params * (sizeof(*words) + sizeof(*params)));
        if (words == NULL) {
            return PyErr_NoMemory();
        }
        params = (void **)&words[self->num_params];
    }
    PyObject *result = NULL;
    status = pack(self, args + GRID_ARGS, words);
    if (UNLIKELY(status == 1)) {
        result = call_other(self, args, nargs);
    }
    else if (LIKELY(status == 0) && LIKELY(launch_words(self, args, grid, words, params) == 0)) {
        result = Py_NewRef(Py_None);
    }
    if (UNLIKELY(words != on_stack)) {
        PyMem_Free(words);
    }
    return result;
}

/* ---- making one ------------------------------------------------------------------------------------------------------ */

static int
count_kinds(DeviceKernel *self, PyObject *kinds, Py_ssize_t scratch)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(kinds, &length);
    if (text == NULL) {
        return -1;
    }
    self->num_tensors = (Py_ssize_t)strspn(text, "p");
    self->num_ints = length - self->num_tensors;
    if ((Py_ssize_t)strspn(text + self->num_tensors, "il") != self->num_ints || scratch < 0) {
        PyErr_Format(PyExc_ValueError, "kernel %U: %R are no kinds of arguments", self->name, kinds);
        return -1;
    }
    self->num_params = length + scratch;
    self->kinds = PyMem_Malloc(length + 1);
    if (self->kinds == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(self->kinds, text, length + 1);
    return 0;
}

static PyObject *
device_kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "context",   "device", "name",   "kinds",     "threads", "shared",
                            "scratch",  "driver", "stream_of", "failed", "unaligned", "owner",   NULL};
    PyObject *function, *context, *name, *kinds, *driver, *stream, *failed, *unaligned = Py_None, *owner = Py_None;
    int device_type, device_index;
    unsigned threads, shared;
    Py_ssize_t scratch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!(ii)UUIInO!OO|OO:DeviceKernel", names, &PyLong_Type, &function,
                                     &PyLong_Type, &context, &device_type, &device_index, &name, &kinds, &threads, &shared,
                                     &scratch, &PyTuple_Type, &driver, &stream, &failed, &unaligned, &owner)) {
        return NULL;
    }
    DeviceKernel *self = (DeviceKernel *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = device_kernel_vectorcall;
    self->name = Py_NewRef(name);
    self->function = PyLong_AsVoidPtr(function);
    self->device.context = PyLong_AsVoidPtr(context);
    self->device_type = device_type;
    self->device_index = device_index;
    self->threads = threads;
    self->shared = shared;
    self->stream_of = Py_NewRef(stream);
    self->failed = Py_NewRef(failed);
    self->unaligned = unaligned == Py_None ? NULL : Py_NewRef(unaligned);
    self->owner = Py_NewRef(owner);
    self->index = PyLong_FromLong(device_index);
    void *const functions[] = {&self->launch, &self->device.current, &self->device.push, &self->device.pop};
    if (PyErr_Occurred() || self->index == NULL || count_kinds(self, kinds, scratch) < 0 ||
        device_addresses(driver, 4, functions) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
device_kernel_traverse(DeviceKernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->stream_of);
    Py_VISIT(self->failed);
    Py_VISIT(self->unaligned);
    Py_VISIT(self->other);
    Py_VISIT(self->owner);
    return 0;
}

static int
device_kernel_clear(DeviceKernel *self)
{
    Py_CLEAR(self->unaligned);
    Py_CLEAR(self->other);
    Py_CLEAR(self->owner);
    return 0;
}

static void
device_kernel_dealloc(DeviceKernel *self)
{
    PyObject_GC_UnTrack(self);
    device_kernel_clear(self);
    Py_CLEAR(self->stream_of);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->name);
    Py_CLEAR(self->index);
    Py_CLEAR(self->label);
    PyMem_Free(self->kinds);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
device_kernel_repr(DeviceKernel *self)
{
    return PyUnicode_FromFormat("<argand kernel %U(%zd tensors, %zd ints) on device %d>", self->name, self->num_tensors,
                                self->num_ints, self->device_index);
}

static PyObject *
device_kernel_label(DeviceKernel *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->label != NULL ? self->label : self->name);
}

static int
device_kernel_set_label(DeviceKernel *self, PyObject *label, void *Py_UNUSED(closure))
{
    return set_label(&self->label, label);
}

static PyMemberDef device_kernel_members[] = {
    {"name", T_OBJECT, offsetof(DeviceKernel, name), READONLY, NULL},
    {"other", T_OBJECT, offsetof(DeviceKernel, other), READONLY, NULL},
    {"num_tensors", T_PYSSIZET, offsetof(DeviceKernel, num_tensors), READONLY, NULL},
    {"num_ints", T_PYSSIZET, offsetof(DeviceKernel, num_ints), READONLY, NULL},
    {"annotated", T_BOOL, offsetof(DeviceKernel, annotated), 0, NULL},
    {"calls", T_ULONGLONG, offsetof(DeviceKernel, calls), READONLY, NULL},
    {NULL},
};

static PyGetSetDef device_kernel_getset[] = {
    {"label", (getter)device_kernel_label, (setter)device_kernel_set_label, NULL, NULL},
    {NULL},
};

PyTypeObject DeviceKernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.DeviceKernel",
    .tp_doc = "DeviceKernel(function, context, device, name, kinds, threads, shared, scratch, driver, stream_of, failed, "
              "unaligned=None, owner=None)\n--\n\n"
              "A function of a GPU, callable with a grid, tensors and ints.",
    .tp_basicsize = sizeof(DeviceKernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = device_kernel_new,
    .tp_traverse = (traverseproc)device_kernel_traverse,
    .tp_clear = (inquiry)device_kernel_clear,
    .tp_dealloc = (destructor)device_kernel_dealloc,
    .tp_repr = (reprfunc)device_kernel_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(DeviceKernel, vectorcall),
    .tp_members = device_kernel_members,
    .tp_getset = device_kernel_getset,
};
