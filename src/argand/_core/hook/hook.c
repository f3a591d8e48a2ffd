/* The PEP 523 frame hook: which frames are looked up, what happens on a hit and on a miss, and regions. */
#include "hook_compat.h"

#include "core.h"
#include "hook_frame.h"
#include "hook_place.h"
#include "native_watch.h"
#include "profile.h"

#include <pthread.h>

/* ---- thread state ---------------------------------------------------------------------------------------------- */

/* Arguments of a call under way that their owner gives up as soon as the callee's frame holds its own references, so that
 * they die when the callee lets them die and not when it returns. */
typedef struct {
    PyObject *func;   /* borrowed; NULL: nothing to give up */
    PyObject **args;  /* strong references, replaced by NULL */
    Py_ssize_t nargs;
    bool uncaptured;  /* capture is off while the frame runs */
    PyObject *whole;  /* strong or NULL: a tuple to be all arguments of a function of `*args`, which is called without any */
} Handover;

typedef struct {
    PyObject *callback; /* strong; NULL: nothing is captured in this thread */
    PyObject *key;      /* strong; NULL with callback */
    void *forwarding;   /* the frame that was handed to the eval function below ours */
    int busy;           /* guards are being evaluated: frames that they start run untouched */
    Handover handover;  /* of the call that is about to start its frame */
    PyObject *inputs;   /* strong or NULL: what the guards of the entry that is starting have collected */
    int depth;          /* hooked frames under way: each is a nested call of the interpreter on the C stack */
} ThreadState;

static _Thread_local ThreadState tls;

/* Exchanges the thread's callback and key with the given references. */
void
hook_swap_state(PyObject **callback, PyObject **key)
{
    PyObject *old_callback = tls.callback, *old_key = tls.key;
    tls.callback = *callback;
    tls.key = *key;
    *callback = old_callback;
    *key = old_key;
    if ((old_callback != NULL) != (tls.callback != NULL)) {
        if (old_callback == NULL) {
            hook_enter_active();
        }
        else {
            hook_leave_active();
        }
    }
}

static void
after_fork_in_child(void)
{
    hook_active_threads = (tls.callback != NULL) + native_watch_on(); /* the other threads are gone */
}

/* ---- handing arguments over ------------------------------------------------------------------------------------ */

static void
hand_over(InterpreterFrame *frame)
{
    Handover given = tls.handover;
    tls.handover.func = NULL;
    if (given.whole != NULL) {
        PyObject_GC_Track(given.whole);
        Py_SETREF(frame->localsplus[0], given.whole);
    }
    for (Py_ssize_t i = 0; i < given.nargs; i++) {
        Py_CLEAR(given.args[i]);
    }
}

/* The Python function that a call of this object starts at once, or NULL. */
static PyObject *
function_started_by(PyObject *callable)
{
    if (PyMethod_Check(callable)) {
        callable = PyMethod_GET_FUNCTION(callable);
    }
    return PyFunction_Check(callable) ? callable : NULL;
}

#define REFUSE_FLAGS (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)

static vectorcallfunc function_vectorcall; /* of functions as they are made */

/* Whether the hook will see the frame that a call of this object starts at once, and the frame's only arguments are `*args`:
 * then they need not be copied. */
static bool
takes_whole(PyObject *callable)
{
    PyCodeObject *code = PyFunction_Check(callable) ? (PyCodeObject *)PyFunction_GET_CODE(callable) : NULL;
    return code != NULL && code->co_argcount == 0 && code->co_kwonlyargcount == 0 &&
           (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS | REFUSE_FLAGS)) == CO_VARARGS &&
           ((PyFunctionObject *)callable)->vectorcall == function_vectorcall && hook_probe == NULL && !native_watch_on() &&
           _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook_eval_frame;
}

/* Calls anything; the references in args go to the frame of a Python function, also one in a region without a callback.
 * Those that are left afterwards are still the caller's.
 * whole: a tuple that holds args, or NULL; where it becomes the frame's own, it is replaced by NULL and args are left alone. */
static PyObject *
call_handing_over(PyObject *callable, PyObject **args, Py_ssize_t nargs, PyObject **whole)
{
    PyObject *inner = tls.callback == NULL ? NULL : region_uncaptured_fn(callable);
    if (inner != NULL && function_started_by(inner) != NULL &&
        _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook_eval_frame) {
        callable = inner; /* the hook is needed for its frame: capture goes off there and not here */
    }
    else {
        inner = NULL;
    }
    Py_INCREF(callable); /* a region may go before what it calls returns */
    Handover outer = tls.handover;
    tls.handover = (Handover){function_started_by(callable), args, nargs, inner != NULL, NULL};
    if (whole != NULL && takes_whole(callable)) {
        tls.handover.whole = *whole;
        nargs = tls.handover.nargs = 0;
    }
    PyObject *result = PyObject_Vectorcall(callable, args, nargs, NULL);
    if (tls.handover.whole != NULL && tls.handover.func == NULL) {
        *whole = NULL;
    }
    tls.handover = outer;
    Py_DECREF(callable);
    return result;
}

/* call_with_list(fn, arguments): empties the list. */
PyObject *
hook_call_with_list(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyCallable_Check(args[0]) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "call_with_list takes a callable and a list");
        return NULL;
    }
    PyListObject *list = (PyListObject *)args[1];
    PyObject **items = list->ob_item;
    Py_ssize_t count = Py_SIZE(list);
    list->ob_item = NULL;
    list->allocated = 0;
    Py_SET_SIZE(list, 0);
    PyObject *result = call_handing_over(args[0], items, count, NULL);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(items[i]);
    }
    PyMem_Free(items);
    return result;
}

/* call_in_place(fn, arguments): as call_with_list; until it returns the frame that calls is not on the stack. */
PyObject *
hook_call_in_place(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyThreadState *tstate = PyThreadState_Get();
    InterpreterFrame *caller = TOP_FRAME(tstate);
    TOP_FRAME(tstate) = caller->previous;
    PyObject *result = hook_call_with_list(module, args, nargs);
    TOP_FRAME(tstate) = caller;
    return result;
}

/* call_with_inputs(fn): fn of the inputs that the guards have collected. */
PyObject *
hook_call_with_inputs(PyObject *module, PyObject *fn)
{
    PyObject *inputs = hook_take_inputs(module, NULL);
    if (inputs == NULL) {
        return NULL;
    }
    PyObject_GC_UnTrack(inputs); /* nobody else is to see it while its items go */
    PyObject *result = call_handing_over(fn, ((PyTupleObject *)inputs)->ob_item, PyTuple_GET_SIZE(inputs), &inputs);
    Py_XDECREF(inputs);
    return result;
}

/* ---- running frames -------------------------------------------------------------------------------------------- */

static PyObject *
run_frame(PyThreadState *tstate, InterpreterFrame *frame, int throwflag)
{
    if (LIKELY(hook_base == _PyEval_EvalFrameDefault || hook_base == NULL)) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    if (tls.forwarding == frame) { /* the function below ours came back to us with the same frame */
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    void *outer = tls.forwarding;
    tls.forwarding = frame;
    PyObject *result = hook_base(tstate, frame, throwflag);
    tls.forwarding = outer;
    return result;
}

/* With a hook, CPython cannot run a Python-to-Python call in the same C frame. So that deep recursion does not end where it
 * would not without us (3.12 allows some 750 such calls, 3.11 runs out of C stack), frames below this depth run unhooked. */
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#define MAX_DEPTH 400
#else
#define MAX_DEPTH 2000
#endif

/* Runs the frame with capture off in this thread until it returns. */
static PyObject *
run_frame_disabled(PyThreadState *tstate, InterpreterFrame *frame)
{
    PyObject *callback = NULL, *key = NULL;
    hook_swap_state(&callback, &key);
    PyObject *result = run_frame(tstate, frame, 0);
    hook_swap_state(&callback, &key);
    Py_XDECREF(callback);
    Py_XDECREF(key);
    return result;
}

/* Runs the frame with the frames that it calls hooked. */
static PyObject *
run_frame_hooked(PyThreadState *tstate, InterpreterFrame *frame)
{
    ThreadState *t = &tls;
    if (UNLIKELY(t->depth >= MAX_DEPTH)) {
        return run_frame_disabled(tstate, frame);
    }
    t->depth++;
    PyObject *result = run_frame(tstate, frame, 0);
    t->depth--;
    return result;
}

/* Runs a frame that is said to raise. Where it returns instead, returned() is called, which may raise. Consumes returned. */
static PyObject *
run_frame_that_raises(PyThreadState *tstate, InterpreterFrame *frame, PyObject *returned)
{
    PyObject *result = run_frame_hooked(tstate, frame);
    if (result != NULL) {
        PyObject *callback = NULL, *key = NULL;
        hook_swap_state(&callback, &key);
        PyObject *told = PyObject_CallNoArgs(returned);
        hook_swap_state(&callback, &key);
        Py_XDECREF(callback);
        Py_XDECREF(key);
        if (told == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(told);
    }
    Py_DECREF(returned);
    return result;
}

static PyFunctionObject *
make_function(PyObject *code, PyFunctionObject *original)
{
    PyFunctionObject *func = (PyFunctionObject *)PyFunction_New(code, original->func_globals);
    if (func == NULL) {
        return NULL;
    }
    function_vectorcall = func->vectorcall;
    if (func->func_builtins != original->func_builtins) {
        Py_SETREF(func->func_builtins, Py_NewRef(original->func_builtins));
    }
    if (original->func_closure != NULL) {
        func->func_closure = Py_NewRef(original->func_closure);
    }
    return func;
}

static PyFunctionObject *
entry_function(Entry *entry, PyFunctionObject *original)
{
    PyFunctionObject *func = (PyFunctionObject *)entry->func;
    if (LIKELY(func != NULL && func->func_globals == original->func_globals &&
               func->func_closure == original->func_closure && func->func_builtins == original->func_builtins)) {
        return (PyFunctionObject *)Py_NewRef(func);
    }
    func = make_function(entry->code, original);
    /* Only functions without closure are kept: a kept closure would prolong the life of what its cells hold. */
    if (func != NULL && original->func_closure == NULL && globals_of_module(original->func_globals)) {
        Py_XSETREF(entry->func, Py_NewRef(func));
    }
    return func;
}

static bool
code_fits_frame(PyCodeObject *code, PyCodeObject *original)
{
    return code->co_argcount == code_total_args(original) && code->co_nfreevars == original->co_nfreevars;
}

/* The entry's graph raised before anything was done: runs the frame itself, capture off. Consumes the reference to asked. */
static PyObject *
run_original(PyThreadState *tstate, InterpreterFrame *frame, Py_ssize_t nargs, Rerun *asked)
{
    PyObject *after = Py_XNewRef(asked->after);
    bool fits = PyList_GET_SIZE(asked->arguments) == nargs;
    for (Py_ssize_t i = 0; fits && i < nargs; i++) {
        Py_XSETREF(frame->localsplus[i], Py_NewRef(PyList_GET_ITEM(asked->arguments, i)));
    }
    Py_DECREF(asked);
    PyObject *result = NULL;
    if (fits) {
        result = run_frame_disabled(tstate, frame);
    }
    else {
        PyErr_SetString(PyExc_SystemError, "run_original: not the arguments of the frame");
        discard_frame(tstate, frame);
    }
    if (after != NULL) {
        rerun_done(after, result != NULL);
        Py_DECREF(after);
    }
    return result;
}

/* Runs an entry in place of the frame and gives the frame up. Consumes the references to entry and inputs (or NULL). */
static PyObject *
run_entry(PyThreadState *tstate, InterpreterFrame *frame, Entry *entry, Py_ssize_t nargs, PyObject *inputs)
{
    PyObject *result = NULL;
    PyFunctionObject *func = entry_function(entry, FRAME_FUNC(frame));
    PyObject *range = NULL;
    if (UNLIKELY(profiler_runs()) && entry->label != NULL) {
        range = range_begin(entry->label, NULL, 0);
    }
    Py_DECREF(entry);
    if (func != NULL) {
        PyObject *outer = tls.inputs;
        tls.inputs = inputs;
        result = call_handing_over((PyObject *)func, frame->localsplus, nargs, NULL);
        inputs = tls.inputs;
        tls.inputs = outer;
        Py_DECREF(func);
    }
    Py_XDECREF(inputs);
    if (UNLIKELY(range != NULL)) {
        range_end(range);
    }
    if (UNLIKELY(result != NULL && Py_IS_TYPE(result, &Rerun_Type))) {
        return run_original(tstate, frame, nargs, (Rerun *)result);
    }
    discard_frame(tstate, frame);
    return result;
}

/* ---- a miss ---------------------------------------------------------------------------------------------------- */

/* Takes in what the callback answered. 1: *entry (new reference) is to run; 0: run the frame; -1: exception. */
static int
accept_answer(PyCodeObject *code, PyObject *key, PyObject *answer, Entry **entry, CodeMode *mode)
{
    *mode = MODE_NONE;
    if (answer == Py_None || PyFunction_Check(answer)) {
        return 0;
    }
    if (Py_IS_TYPE(answer, &Sentinel_Type)) {
        *mode = (CodeMode)sentinel_mode(answer);
        CodeCache *cache = cache_get_or_create(code);
        return cache == NULL ? -1 : cache_set_mode(cache, key, *mode);
    }
    if (!Py_IS_TYPE(answer, &Entry_Type)) {
        PyErr_Format(PyExc_TypeError, "the callback must return None, SKIP, SKIP_RECURSIVE, RUN_ONLY or an Entry, not %.100s",
                     Py_TYPE(answer)->tp_name);
        return -1;
    }
    Entry *compiled = (Entry *)answer;
    PyCodeObject *transformed = (PyCodeObject *)compiled->code;
    if (!code_fits_frame(transformed, code)) {
        PyErr_Format(PyExc_TypeError,
                     "transformed code of %U takes %d arguments and %d free variables; the frame has %zd and %d",
                     code->co_qualname, transformed->co_argcount, (int)transformed->co_nfreevars, code_total_args(code),
                     (int)code->co_nfreevars);
        return -1;
    }
    if (compiled->guards != Py_None) {
        CodeCache *cache = cache_get_or_create(code);
        if (cache == NULL || cache_insert(cache, compiled) < 0) {
            return -1;
        }
    }
    *entry = (Entry *)Py_NewRef(compiled);
    return 1;
}

/* Asks the callback about a frame that no entry matched. Same results as accept_answer. */
static int
ask_callback(InterpreterFrame *frame, const FrameView *view, CodeCache *cache, Entry **entry, CodeMode *mode,
             PyObject **returned)
{
    /* Capture is off while guards are explained and while the callback runs; the references kept here keep both alive.
     * Another compiler is off too: whichever hook is on top goes first and comes back last. */
    PyObject *off_callback = NULL, *off_key = NULL;
    bool on_top = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook_eval_frame;
    PyObject *others = on_top ? NULL : other_compiler_off();
    hook_swap_state(&off_callback, &off_key);
    if (on_top) {
        others = other_compiler_off();
    }
    int status = -1;
    PyObject *info = frame_info_new((PyObject *)FRAME_CODE(frame), (PyObject *)FRAME_FUNC(frame), view, cache, off_key);
    if (info != NULL) {
        PyObject *answer = call_restoring(off_callback, &info, 1);
        Py_DECREF(info);
        if (answer != NULL) {
            status = accept_answer(FRAME_CODE(frame), off_key, answer, entry, mode);
            if (PyFunction_Check(answer)) {
                *returned = Py_NewRef(answer);
            }
            Py_DECREF(answer);
        }
    }
    if (on_top) {
        other_compiler_on(others);
    }
    hook_swap_state(&off_callback, &off_key);
    if (!on_top) {
        other_compiler_on(others);
    }
    Py_XDECREF(off_callback); /* what the callback left behind, if it set anything */
    Py_XDECREF(off_key);
    return status;
}

/* ---- the hook -------------------------------------------------------------------------------------------------- */
#define CAPTURE_FLAGS (CO_OPTIMIZED | CO_NEWLOCALS)

static PyObject *
look_up_frame(PyThreadState *tstate, InterpreterFrame *frame, CodeCache *cache, CodeMode mode)
{
    PyCodeObject *code = FRAME_CODE(frame);
    PyFunctionObject *func = FRAME_FUNC(frame);
    FrameView view = {
        .args = frame->localsplus,
        .nargs = code_total_args(code),
        .globals = frame->f_globals,
        .builtins = frame->f_builtins,
        .closure = func->func_closure,
    };
    Entry *entry = NULL;
    PyObject *inputs = NULL;
    int status = 0;
    if (cache != NULL && cache->head != NULL) {
        if (rerun_at_sight(cache, tls.key, &view)) {
            return run_frame_disabled(tstate, frame);
        }
        PyObject *key = Py_NewRef(tls.key); /* a guard may run code that changes the thread's state */
        tls.busy++;
        status = cache_lookup(cache, key, &view, &entry, &inputs);
        tls.busy--;
        Py_DECREF(key);
        if (LIKELY(status > 0)) {
            bool idles = cache_idles(cache, entry), slower = rerun_preferred(cache, entry, &view);
            Trial trial = {NULL};
            if (LIKELY(!idles && !slower)) {
                trial = trial_begin(entry);
                if (LIKELY(!trial.own)) {
                    return trial_end(trial, run_entry(tstate, frame, entry, view.nargs, inputs));
                }
            }
            Py_DECREF(entry);
            Py_XDECREF(inputs);
            bool alone = slower || trial.own;
            return trial_end(trial, alone ? run_frame_disabled(tstate, frame) : run_frame_hooked(tstate, frame));
        }
    }
    if (status == 0 && (mode == MODE_RUN_ONLY || tls.callback == NULL || state_bars_capture())) {
        return run_frame_hooked(tstate, frame);
    }
    CodeMode answered = MODE_NONE;
    PyObject *returned = NULL; /* to be called when the frame, which is said to raise, does not */
    if (status == 0) {
        status = ask_callback(frame, &view, cache, &entry, &answered, &returned);
    }
    if (status > 0 && guard_tree_collect(entry->guards, &view, &inputs) < 0) {
        Py_DECREF(entry);
        status = -1;
    }
    if (status < 0) {
        discard_frame(tstate, frame);
        return NULL;
    }
    if (status > 0) {
        return run_entry(tstate, frame, entry, view.nargs, inputs);
    }
    if (UNLIKELY(returned != NULL)) {
        return run_frame_that_raises(tstate, frame, returned);
    }
    return answered == MODE_SKIP_RECURSIVE ? run_frame_disabled(tstate, frame) : run_frame_hooked(tstate, frame);
}

/* Runs a frame that native code started while it was watched, or refuses it. */
static __attribute__((noinline)) PyObject * /* so that each hooked frame takes no more of the C stack for it */
run_watched_frame(PyThreadState *tstate, InterpreterFrame *frame)
{
    PyCodeObject *code = FRAME_CODE(frame);
    NativeWatch suspended = native_watch;
    switch (native_watch_judge((PyObject *)FRAME_FUNC(frame), frame->localsplus, code->co_argcount)) {
    case WATCH_REFUSED:
        discard_frame(tstate, frame);
        return NULL;
    case WATCH_ON:
        return run_frame(tstate, frame, 0);
    default:
        native_watch.judge = NULL;
        hook_leave_active();
        PyObject *result = run_frame(tstate, frame, 0);
        hook_enter_active();
        native_watch.judge = suspended.judge;
        return result;
    }
}

PyObject *
hook_eval_frame(PyThreadState *tstate, InterpreterFrame *frame, int throwflag)
{
    ThreadState *t = &tls;
    if (UNLIKELY(hook_probe != NULL)) {
        hook_probe = NULL;
        return run_frame(tstate, frame, throwflag);
    }
    if (UNLIKELY(native_watch_on()) && !throwflag && !tstate->tracing && frame->owner == FRAME_OWNED_BY_THREAD &&
        frame != t->forwarding) {
        return run_watched_frame(tstate, frame);
    }
    if (t->handover.func != NULL && t->handover.func == (PyObject *)FRAME_FUNC(frame)) {
        bool uncaptured = t->handover.uncaptured;
        hand_over(frame);
        if (uncaptured) {
            return run_frame_disabled(tstate, frame);
        }
    }
    /* Tracing: the frame is a trace, profile or audit function, not the program's. */
    if (t->callback == NULL || throwflag || t->busy || tstate->tracing || frame == t->forwarding) {
        if (UNLIKELY(hook_active_threads == 0)) {
            hook_uninstall(tstate->interp); /* a hook that was on top of ours has put us back after we had left */
        }
        return run_frame(tstate, frame, throwflag);
    }
    PyCodeObject *code = FRAME_CODE(frame);
    if ((code->co_flags & (CAPTURE_FLAGS | REFUSE_FLAGS)) != CAPTURE_FLAGS || frame->owner != FRAME_OWNED_BY_THREAD) {
        return run_frame_hooked(tstate, frame);
    }
    CodeCache *cache = cache_get(code);
    CodeMode mode = MODE_NONE;
    if (LIKELY(cache != NULL)) {
        mode = cache_mode(cache, t->key);
        if (mode == MODE_SKIP) {
            return run_frame_hooked(tstate, frame);
        }
        if (mode == MODE_SKIP_RECURSIVE) {
            return run_frame_disabled(tstate, frame);
        }
    }
    return look_up_frame(tstate, frame, cache, mode);
}
/* ---- asking about it -------------------------------------------------------------------------------------------------- */

PyObject *
hook_take_inputs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *inputs = tls.inputs;
    tls.inputs = NULL;
    if (inputs == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "take_inputs: no entry whose guards collect inputs is starting");
    }
    return inputs;
}

PyObject *
hook_get_callback(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyTuple_Pack(2, tls.callback == NULL ? Py_None : tls.callback, tls.key == NULL ? Py_None : tls.key);
}

int
hook_init(void)
{
    if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
        PyErr_SetString(PyExc_OSError, "pthread_atfork failed");
        return -1;
    }
    bool failed = PyType_Ready(&FrameInfo_Type) < 0 || PyType_Ready(&Region_Type) < 0 || PyType_Ready(&Rerun_Type) < 0;
    return failed ? -1 : hook_place_init();
}
