/* Shared declarations of the extension. All of it runs under the GIL unless said otherwise. */
#ifndef ARGAND_CORE_H
#define ARGAND_CORE_H

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <structmember.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- frames ---------------------------------------------------------------------------------------------------- */

/* The part of a frame that guards can see. All references are borrowed from the frame. */
typedef struct {
    PyObject *const *args; /* nargs raw arguments */
    Py_ssize_t nargs;
    PyObject *globals;  /* dict or NULL */
    PyObject *builtins; /* dict or NULL */
    PyObject *closure;  /* tuple of cells or NULL */
} FrameView;

/* Number of leading localsplus slots that hold arguments when a frame of this code starts. */
static inline Py_ssize_t
code_total_args(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

/* ---- per-code cache (cache.c) ---------------------------------------------------------------------------------- */

typedef enum { MODE_NONE = 0, MODE_SKIP, MODE_SKIP_RECURSIVE, MODE_RUN_ONLY } CodeMode;

typedef struct CodeCache CodeCache;
typedef struct LooksLeftAlone LooksLeftAlone;

/* What is known of a frame's own code beside an entry, and the runs of both that are being compared (timed.c). */
typedef struct {
    uint64_t settled, lost; /* classes of sizes of which it is known which is faster; in which the frame's own code is */
    uint64_t first, later;  /* ns: the first run of a pair; what the graphs of transformed code gain after it */
    uint64_t own, compiled; /* ns: of all pairs until now */
    unsigned again;         /* runs of the frame's own code until both are timed again */
    int size_class, pairs, won, quiet, strange;
    bool half;
} EntryTiming;

typedef struct Entry {
    PyObject_HEAD
    PyObject *code;
    PyObject *guards; /* GuardTree or None */
    PyObject *key;
    PyObject *payload;
    PyObject *label; /* str: its name in profiles; or NULL */
    PyObject *last_failure; /* tuple or NULL */
    PyObject *func;         /* cached function object, or NULL */
    const void *globals;    /* the only globals in which the code finds its names; or NULL */
    unsigned long long hits;
    bool graph;                 /* the code calls one */
    bool resumed;               /* the code goes on where a graph broke */
    enum { NOT_ALIKE, WHOLE, IN_PART } whole; /* the frame's own code, with capture off, does the same; of a part, with others */
    uint64_t outrun;            /* and is faster, in calls of these classes of sizes (bits): it runs instead */
    PyObject *unless;           /* but where this is true; or NULL */
    uint64_t judged;            /* classes of sizes of which it is known what the graph gains */
    bool faster;                /* than eager's kernels, in any of them */
    uint64_t gain_later;        /* ns that it gains after a call then, in the backward */
    EntryTiming timing;
    unsigned passed;            /* runs of the frame's own code since it was found to be faster */
    unsigned rounds;            /* how often it ran in a row without one of another kind in between */
    unsigned long long busy_at; /* entries that had called graphs by then */
    CodeCache *own;     /* of the entry's code, which it holds */
    CodeCache *owner;   /* the cache that lists this entry, or NULL */
    struct Entry *next; /* strong; the list is the owner's */
} Entry;

typedef struct {
    PyObject *key; /* strong */
    CodeMode mode;
} KeyMode;

struct CodeCache {
    PyCodeObject *code; /* borrowed: the cache dies with the code */
    CodeCache *reg_prev, *reg_next;
    Entry *head;
    KeyMode *modes;
    int num_modes;
    unsigned version; /* changes whenever the entry list does */
    unsigned misses;  /* while nothing is compiled any more */
    CodeMode all_keys;
    bool transformed; /* made by us: never captured */
    LooksLeftAlone *left_alone; /* calls that run as eager's; or NULL */
    Entry *stands_for; /* of transformed code: the entry that was made last of it, while there is one; borrowed */
};

extern PyTypeObject Entry_Type;
extern PyTypeObject Sentinel_Type;
extern PyObject *sentinels[4]; /* indexed by CodeMode; [0] is NULL */

int cache_init(void);
CodeCache *cache_get(PyCodeObject *code);          /* NULL when none */
CodeCache *cache_get_or_create(PyCodeObject *code); /* NULL with an exception */
CodeMode cache_mode_slow(const CodeCache *cache, PyObject *key);
int cache_set_mode(CodeCache *cache, PyObject *key, CodeMode mode);
int cache_insert(CodeCache *cache, Entry *entry);
/* 1: *found, and *inputs where its guards collect any, are new references; 0: nothing matches; -1: exception. */
int cache_lookup(CodeCache *cache, PyObject *key, const FrameView *view, Entry **match, PyObject **inputs);
/* New tuple of (index, label, detail); drops dead entries; *live counts the others, *wasted those dropped unused. */
PyObject *cache_explain(CodeCache *cache, PyObject *key, const FrameView *view, Py_ssize_t *live, Py_ssize_t *wasted);
int sentinel_mode(PyObject *obj); /* MODE_NONE when obj is no sentinel */
extern PyMethodDef cache_methods[];

static inline CodeMode
cache_mode(const CodeCache *cache, PyObject *key)
{
    if (cache->transformed) {
        return MODE_SKIP;
    }
    if (LIKELY(cache->all_keys == MODE_NONE && cache->num_modes == 0)) {
        return MODE_NONE;
    }
    return cache_mode_slow(cache, key);
}

/* ---- hook (hook.c, region.c) --------------------------------------------------------------------------------------------- */

extern PyTypeObject FrameInfo_Type; /* frame_info.c */
/* The failures of every entry are found out: guards are evaluated. */
PyObject *frame_info_new(PyObject *code, PyObject *func, const FrameView *view, CodeCache *cache, PyObject *key);
PyObject *frame_new(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyTypeObject Region_Type;
/* What a region without a callback calls (borrowed); NULL for every other object. */
PyObject *region_uncaptured_fn(PyObject *obj);
extern PyMethodDef hook_methods[];
extern PyMethodDef module_call_methods[]; /* module_call.c */
int hook_init(void);
/* Exchanges this thread's callback and key with the given references (NULL: capture off). */
void hook_swap_state(PyObject **callback, PyObject **key);
PyObject *hook_call_with_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *hook_call_in_place(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *hook_take_inputs(PyObject *module, PyObject *ignored);
PyObject *hook_call_with_inputs(PyObject *module, PyObject *fn);
PyObject *hook_get_callback(PyObject *module, PyObject *ignored);

/* ---- calls that leave the thread as it was (restoring.c) --------------------------------------------------------- */

extern PyMethodDef restoring_methods[];
PyObject *call_restoring(PyObject *fn, PyObject *const *args, size_t nargs);
/* Switches the other compiler that this thread's frames may have off; NULL: there is nothing to put back. */
PyObject *other_compiler_off(void);
/* Puts it back; consumes the reference. An exception that is set stays. */
void other_compiler_on(PyObject *before);

/* ---- native code that is watched (native_watch.c) -------------------------------------------------------------- */

extern PyMethodDef native_watch_methods[];

/* ---- running a frame's own code after all (rerun.c) -------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *arguments; /* list: the frame's raw arguments */
    PyObject *after;     /* callable or NULL */
} Rerun;

extern PyTypeObject Rerun_Type;
PyObject *rerun_ask(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
void rerun_done(PyObject *after, bool returned);
PyObject *rerun_prefer(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
bool cache_idles(CodeCache *cache, Entry *entry);
/* Whether the frame's own code, with capture off, is to run instead of an entry's; nothing stands against it. */
bool rerun_preferred(CodeCache *cache, Entry *entry, const FrameView *view);
bool rerun_unless(PyObject *unless); /* whether something stands against it; NULL: never */
/* Whether it is to run, going by the look of the call. */
bool rerun_at_sight(CodeCache *cache, const PyObject *key, const FrameView *view);

/* ---- a frame's own code timed beside an entry (timed.c) ----------------------------------------------------------- */

/* A run of an entry, or of the frame's own code where both are being timed. */
typedef struct {
    Entry *entry; /* strong; NULL: it is not watched */
    bool own;     /* the frame's own code is to run, with capture off */
    bool again;   /* although its own code was faster */
    uint64_t began, unknown, undecided, judged, faster, later, unless;
} Trial;
Trial trial_begin(Entry *entry);
PyObject *trial_end(Trial trial, PyObject *result);
void trial_note_unknown(void); /* something is done of which is not known what it gains */
bool timed_again(Entry *entry); /* whether an entry is to run although the frame's own code was faster */

/* ---- calls of which only the look is known (left_alone.c) -------------------------------------------------------- */

#define TRIED_AGAIN 64 /* calls until guards are tried again */
bool left_alone_now(CodeCache *cache, const PyObject *key, const FrameView *view);
void left_alone_note(CodeCache *cache, Entry *entry, const FrameView *view); /* a call that ran as eager's */
void left_alone_not(CodeCache *cache, const Entry *entry, const FrameView *view); /* one that is to run compiled */
void left_alone_forget(CodeCache *cache); /* when its entries change */

/* ---- guards (guards.c, guard_*.c) ---------------------------------------------------------- */

extern PyTypeObject GuardTree_Type;
/* inputs: where to put a tuple of the values that the tree collects (left alone when it collects none), or NULL.
 * 1: holds; 0: a guard failed; -1: an exception outside Exception. */
int guard_tree_match(PyObject *tree, const FrameView *view, PyObject **inputs);
/* The values to collect without evaluating guards: 1 with *inputs (NULL when there is nothing to collect), or -1. */
int guard_tree_collect(PyObject *tree, const FrameView *view, PyObject **inputs);
/* New reference: True or (index, label, detail); NULL with an exception outside Exception. */
PyObject *guard_tree_explain(PyObject *tree, const FrameView *view);
bool guard_tree_dead(PyObject *tree);
#define NUM_SIZE_CLASSES 64
/* How large the call is, in powers of two of the sizes that vary, whose guards held last, in whatever thread. */
int guard_size_class(void);
uint64_t state_at_sight(void); /* the grad mode, where torch's libraries tell */
bool state_bars_capture(void); /* whether torch's libraries tell of a mode of torch's in which nothing is captured */
int state_is_set(PyObject *asked); /* 1 if it answers something but None now; 0, or -1 with an exception */

/* ---- exact equality (equality.c) ------------------------------------------------------------------------------- */

int exact_equal(PyObject *a, PyObject *b);   /* 1, 0, or -1 with an exception */
bool is_base_value(PyObject *value);         /* an exact int, float, complex, str or bytes */
int base_value_equal(PyObject *obj, PyObject *value); /* value: as is_base_value says; 1, 0, or -1 with an exception */
PyObject *snapshot_value(PyObject *value);   /* private copy of the containers; TypeError where it cannot be made */
PyObject *short_repr(PyObject *value);       /* never fails for other reasons than memory */

/* ---- tensors (tensor_meta.c) ----------------------------------------------------------------------------------- */

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    int64_t *sizes;
    int64_t *strides;
    uint64_t byte_offset;
} TensorView; /* the layout of DLPack's DLTensor */

typedef int (*TensorViewFn)(void *py_object, TensorView *out);
extern TensorViewFn tensor_view_fn; /* NULL until set_exchange_api */
int tensor_type_ok(PyObject *obj);  /* is it of the registered tensor class? no exception */
int tensor_view(PyObject *obj, TensorView *out); /* 0, or -1 with TypeError/RuntimeError */

typedef struct TensorSpec TensorSpec;

/* A tensor whose check runs no Python code; the object is known to be alive. */
typedef struct {
    PyObject *obj; /* borrowed */
    PyTypeObject *type;
    const TensorSpec *spec; /* equal ones are one */
    int slot;  /* where its value is put, -1 */
    int input; /* its place among the inputs, -1 */
} TensorOp;

TensorSpec *tensor_spec_new(PyObject *const *args, Py_ssize_t nargs); /* the arguments after cls; NULL with exception */
TensorSpec *tensor_spec_shared(TensorSpec *spec); /* the same, to be freed once more; NULL stays NULL */
void tensor_spec_free(TensorSpec *spec);
int tensor_spec_visit(TensorSpec *spec, visitproc visit, void *arg);
int tensor_spec_match(const TensorSpec *spec, PyObject *obj);         /* obj is of the right class: 1, 0, -1 */
PyObject *tensor_spec_detail(const TensorSpec *spec, PyObject *obj);  /* new str or NULL with exception */
bool tensor_spec_pure(const TensorSpec *spec); /* the learnt layout serves this check */
bool tensor_spec_match_pure(const TensorSpec *spec, PyObject *obj); /* runs no Python code; false when in doubt */
bool tensor_spec_same(const TensorSpec *a, const TensorSpec *b);
typedef struct TensorRuns TensorRuns; /* tensor_runs.c: many tensors, in an order that suits memory */
TensorRuns *tensor_runs_new(TensorOp *ops, int count); /* sorts ops; NULL when memory is short, without an exception */
void tensor_runs_free(TensorRuns *runs);
bool tensor_runs_match(const TensorRuns *runs, PyObject *inputs); /* all of them; no Python code; fills inputs unless NULL */
enum { TENSOR_INFERENCE = 1, TENSOR_ANY_INFERENCE = 2 }; /* flags of a "tensor" check */
int tensor_init(void);
extern PyMethodDef tensor_methods[];

/* ---- launcher (launcher.c) ------------------------------------------------------------------------------------- */

extern PyTypeObject Kernel_Type;

/* ---- launches on a GPU (device_launcher.c) ------------------------------------------------------------------------- */

extern PyTypeObject DeviceKernel_Type;
extern PyTypeObject DeviceProduct_Type;

/* ---- small helpers --------------------------------------------------------------------------------------------- */

/* Takes the current exception out of the thread (owned reference to the instance, NULL when none) and puts it back. */
static inline PyObject *
take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &tb);
    if (tb != NULL) {
        PyException_SetTraceback(value, tb);
    }
    Py_XDECREF(tb);
    Py_DECREF(type);
    return value;
#endif
}

static inline void
put_exception(PyObject *exc)
{
    if (exc == NULL) {
        return;
    }
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, PyException_GetTraceback(exc));
#endif
}

/* What a weak or strong identity refers to: borrowed, NULL when dead. */
static inline PyObject *
identity_target(PyObject *ref, bool weak)
{
    if (!weak) {
        return ref;
    }
    PyObject *obj = ((PyWeakReference *)ref)->wr_object;
    return obj == Py_None ? NULL : obj;
}

#endif
