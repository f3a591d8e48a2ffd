/* FrameInfo: what the callback is told about a frame that matched no entry. */
#include "core.h"

#include <frameobject.h>

typedef struct {
    PyObject_HEAD
    union {
        struct {
            PyObject *code, *func, *globals, *builtins, *closure, *args, *failures;
        };
        PyObject *objects[7]; /* all of them */
    };
    Py_ssize_t entries, wasted;
} FrameInfo;

static PyMemberDef frame_info_members[] = {
    {"code", T_OBJECT, offsetof(FrameInfo, code), READONLY, NULL},
    {"func", T_OBJECT, offsetof(FrameInfo, func), READONLY, NULL},
    {"globals", T_OBJECT, offsetof(FrameInfo, globals), READONLY, NULL},
    {"builtins", T_OBJECT, offsetof(FrameInfo, builtins), READONLY, NULL},
    {"closure", T_OBJECT, offsetof(FrameInfo, closure), READONLY, NULL},
    {"args", T_OBJECT, offsetof(FrameInfo, args), READONLY, NULL},
    {"failures", T_OBJECT, offsetof(FrameInfo, failures), READONLY, NULL},
    {"entries", T_PYSSIZET, offsetof(FrameInfo, entries), READONLY, NULL},
    {"wasted", T_PYSSIZET, offsetof(FrameInfo, wasted), READONLY, NULL},
    {NULL},
};

static int
frame_info_traverse(FrameInfo *self, visitproc visit, void *arg)
{
    for (int i = 0; i < 7; i++) {
        Py_VISIT(self->objects[i]);
    }
    return 0;
}

static int
frame_info_clear(FrameInfo *self)
{
    for (int i = 0; i < 7; i++) {
        Py_CLEAR(self->objects[i]);
    }
    return 0;
}

static void
frame_info_dealloc(FrameInfo *self)
{
    PyObject_GC_UnTrack(self);
    frame_info_clear(self);
    PyObject_GC_Del(self);
}

PyTypeObject FrameInfo_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.FrameInfo",
    .tp_doc = "What the callback is told about a frame that matched no entry.",
    .tp_basicsize = sizeof(FrameInfo),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)frame_info_traverse,
    .tp_clear = (inquiry)frame_info_clear,
    .tp_dealloc = (destructor)frame_info_dealloc,
    .tp_members = frame_info_members,
};

PyObject *
frame_info_new(PyObject *code, PyObject *func, const FrameView *view, CodeCache *cache, PyObject *key)
{
    trial_note_unknown();
    PyObject *args = PyTuple_New(view->nargs), *failures = NULL;
    Py_ssize_t live = 0, wasted = 0;
    if (args == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < view->nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_XNewRef(view->args[i]));
    }
    failures = cache == NULL ? PyTuple_New(0) : cache_explain(cache, key, view, &live, &wasted);
    FrameInfo *info = failures == NULL ? NULL : PyObject_GC_New(FrameInfo, &FrameInfo_Type);
    if (info == NULL) {
        Py_DECREF(args);
        Py_XDECREF(failures);
        return NULL;
    }
    info->code = Py_NewRef(code);
    info->func = Py_NewRef(func);
    info->globals = Py_XNewRef(view->globals);
    info->builtins = Py_XNewRef(view->builtins);
    info->closure = Py_XNewRef(view->closure);
    info->args = args;
    info->failures = failures;
    info->entries = live;
    info->wasted = wasted;
    PyObject_GC_Track(info);
    return (PyObject *)info;
}

/* new_frame(code, globals): a frame for tracebacks to show, which never runs and has no caller. */
PyObject *
frame_new(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyCode_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "new_frame takes a code object and a dict");
        return NULL;
    }
    return (PyObject *)PyFrame_New(PyThreadState_Get(), (PyCodeObject *)args[0], args[1], NULL);
}
