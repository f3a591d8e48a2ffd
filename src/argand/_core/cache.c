/* Per-code storage: remembered answers and the list of entries, most recently hit first. */
#include "hook_compat.h"

#include "core.h"

static Py_ssize_t extra_index = -1;
static CodeCache registry = {.reg_prev = &registry, .reg_next = &registry}; /* ring of every cache that exists */

/* ---- sentinels ------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    CodeMode mode;
    const char *name;
} Sentinel;

static const char *const sentinel_names[4] = {NULL, "SKIP", "SKIP_RECURSIVE", "RUN_ONLY"};
PyObject *sentinels[4];

static PyObject *
sentinel_repr(Sentinel *self)
{
    return PyUnicode_FromFormat("argand._core._C.%s", self->name);
}

static PyObject *
sentinel_reduce(Sentinel *self, PyObject *Py_UNUSED(ignored))
{
    return PyUnicode_FromString(self->name);
}

static PyMemberDef sentinel_members[] = {{"name", T_STRING, offsetof(Sentinel, name), READONLY, NULL}, {NULL}};
static PyMethodDef sentinel_methods[] = {{"__reduce__", (PyCFunction)sentinel_reduce, METH_NOARGS, NULL}, {NULL}};

PyTypeObject Sentinel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.Sentinel",
    .tp_basicsize = sizeof(Sentinel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = (reprfunc)sentinel_repr,
    .tp_members = sentinel_members,
    .tp_methods = sentinel_methods,
};

int
sentinel_mode(PyObject *obj)
{
    return Py_IS_TYPE(obj, &Sentinel_Type) ? (int)((Sentinel *)obj)->mode : (int)MODE_NONE;
}

/* ---- the cache of a code object -------------------------------------------------------------------------------- */

/* Lets go of entries and modes that no cache has any more, or that nobody can reach. */
static void
free_contents(Entry *entry, KeyMode *modes, int num_modes)
{
    while (entry != NULL) {
        Entry *next = entry->next;
        entry->owner = NULL;
        entry->next = NULL;
        Py_DECREF(entry);
        entry = next;
    }
    for (int i = 0; i < num_modes; i++) {
        Py_DECREF(modes[i].key);
    }
    PyMem_Free(modes);
}

static void
free_cache(void *extra)
{
    CodeCache *cache = extra;
    if (cache == NULL) {
        return;
    }
    cache->reg_prev->reg_next = cache->reg_next;
    cache->reg_next->reg_prev = cache->reg_prev;
    PyObject *pending = take_exception(); /* called from a destructor: whatever is in flight stays */
    free_contents(cache->head, cache->modes, cache->num_modes);
    left_alone_forget(cache);
    PyMem_Free(cache->left_alone);
    put_exception(pending);
    PyMem_Free(cache);
}

CodeCache *
cache_get(PyCodeObject *code)
{
    void *extra = NULL;
    if (CODE_GET_EXTRA((PyObject *)code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

CodeCache *
cache_get_or_create(PyCodeObject *code)
{
    CodeCache *cache = cache_get(code);
    if (cache != NULL) {
        return cache;
    }
    cache = PyMem_Calloc(1, sizeof(CodeCache));
    if (cache == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    cache->code = code;
    cache->reg_prev = &registry;
    cache->reg_next = registry.reg_next;
    registry.reg_next->reg_prev = cache;
    registry.reg_next = cache;
    if (CODE_SET_EXTRA((PyObject *)code, extra_index, cache) < 0) {
        free_cache(cache);
        return NULL;
    }
    return cache;
}

CodeMode
cache_mode_slow(const CodeCache *cache, PyObject *key)
{
    if (cache->all_keys != MODE_NONE) {
        return cache->all_keys;
    }
    for (int i = 0; i < cache->num_modes; i++) {
        if (cache->modes[i].key == key) {
            return cache->modes[i].mode;
        }
    }
    return MODE_NONE;
}

int
cache_set_mode(CodeCache *cache, PyObject *key, CodeMode mode)
{
    for (int i = 0; i < cache->num_modes; i++) {
        if (cache->modes[i].key == key) {
            cache->modes[i].mode = mode;
            return 0;
        }
    }
    KeyMode *grown = PyMem_Realloc(cache->modes, (cache->num_modes + 1) * sizeof(KeyMode));
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    cache->modes = grown;
    grown[cache->num_modes++] = (KeyMode){Py_NewRef(key), mode};
    return 0;
}

int
cache_insert(CodeCache *cache, Entry *entry)
{
    if (entry->owner != NULL) {
        PyErr_SetString(PyExc_ValueError, "this Entry is already stored with a code object");
        return -1;
    }
    entry->owner = cache;
    entry->next = cache->head;
    cache->head = (Entry *)Py_NewRef(entry);
    cache->version++;
    left_alone_forget(cache);
    return 0;
}

/* Takes the entry out of its list, whose reference is the caller's then; false if it is not in it. */
static bool
take_out(CodeCache *cache, Entry *entry)
{
    for (Entry **link = &cache->head; *link != NULL; link = &(*link)->next) {
        if (*link == entry) {
            *link = entry->next;
            entry->next = NULL;
            cache->version++;
            return true;
        }
    }
    return false;
}

static void
cache_remove(CodeCache *cache, Entry *entry)
{
    if (take_out(cache, entry)) {
        entry->owner = NULL;
        Py_DECREF(entry);
    }
}

static void
move_to_front(CodeCache *cache, Entry *entry)
{
    if (take_out(cache, entry)) {
        entry->next = cache->head;
        cache->head = entry;
    }
}

#define MISSES_A_LOOK 8

/* Where nothing is compiled any more, entries whose objects are gone, which never match again, are dropped one by one. */
static int
missed(CodeCache *cache, PyObject *key)
{
    if (cache_mode(cache, key) == MODE_RUN_ONLY && ++cache->misses % MISSES_A_LOOK == 0) {
        Entry *entry = cache->head;
        while (entry != NULL && !guard_tree_dead(entry->guards)) {
            entry = entry->next;
        }
        if (entry != NULL) {
            cache_remove(cache, entry);
        }
    }
    return 0;
}

#define MAX_RESTARTS 4

/* Functions may share their code and not their globals. */
static inline bool
fits_globals(const Entry *entry, const FrameView *view)
{
    return entry->globals == NULL || entry->globals == view->globals;
}

int
cache_lookup(CodeCache *cache, PyObject *key, const FrameView *view, Entry **match, PyObject **inputs)
{
    for (int attempt = 0; attempt < MAX_RESTARTS; attempt++) {
        unsigned version = cache->version;
        Entry *entry = cache->head;
        while (entry != NULL) {
            if (entry->key != key || !fits_globals(entry, view)) {
                entry = entry->next;
                continue;
            }
            Py_INCREF(entry); /* guards may run code that resets or reorders the list */
            int status = guard_tree_match(entry->guards, view, inputs);
            if (LIKELY(status > 0)) {
                entry->hits++;
                if (entry != cache->head && entry->owner == cache) {
                    move_to_front(cache, entry);
                }
                *match = entry;
                return 1;
            }
            Entry *next = entry->next;
            Py_DECREF(entry);
            if (status < 0) {
                return -1;
            }
            if (cache->version != version) {
                break;
            }
            entry = next;
        }
        if (entry == NULL) {
            return missed(cache, key);
        }
    }
    return 0; /* the list never stood still: as good as a miss */
}

/* New list of strong references to the entries of a key (key NULL: all). */
static PyObject *
list_entries(const CodeCache *cache, PyObject *key)
{
    PyObject *list = PyList_New(0);
    for (Entry *entry = cache->head; list != NULL && entry != NULL; entry = entry->next) {
        if ((key == NULL || entry->key == key) && PyList_Append(list, (PyObject *)entry) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *
cache_explain(CodeCache *cache, PyObject *key, const FrameView *view, Py_ssize_t *live, Py_ssize_t *wasted)
{
    PyObject *entries = list_entries(cache, key);
    PyObject *failures = entries == NULL ? NULL : PyTuple_New(PyList_GET_SIZE(entries));
    *live = *wasted = 0;
    for (Py_ssize_t i = 0; failures != NULL && i < PyList_GET_SIZE(entries); i++) {
        Entry *entry = (Entry *)PyList_GET_ITEM(entries, i);
        PyObject *why = fits_globals(entry, view)
                            ? guard_tree_explain(entry->guards, view)
                            : Py_BuildValue("(iss)", -1, "globals", "another function with this code has other globals");
        if (why == Py_True) { /* only a guard with side effects can do this */
            Py_SETREF(why, Py_BuildValue("(iss)", -1, "<none>", "the guards failed, then held when evaluated again"));
        }
        PyObject *failure = why == NULL ? NULL
                                        : PyTuple_Pack(3, PyTuple_GET_ITEM(why, 0), PyTuple_GET_ITEM(why, 1),
                                                       PyTuple_GET_ITEM(why, 2));
        PyObject *index = failure == NULL ? NULL : PyLong_FromSsize_t(i);
        if (index == NULL) {
            Py_XDECREF(why);
            Py_XDECREF(failure);
            Py_CLEAR(failures);
            break;
        }
        Py_SETREF(PyTuple_GET_ITEM(failure, 0), index);
        PyTuple_SET_ITEM(failures, i, failure);
        Py_XSETREF(entry->last_failure, why);
        if (guard_tree_dead(entry->guards)) {
            *wasted += entry->hits == 0;
            cache_remove(cache, entry);
        }
        else {
            ++*live;
        }
    }
    Py_XDECREF(entries);
    return failures;
}

/* ---- Entry ----------------------------------------------------------------------------------------------------- */

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "guards", "key", "payload", "label", "globals", "graph", "resumed", "whole", NULL};
    PyObject *code, *guards, *key, *payload = Py_None, *label = NULL, *globals = NULL;
    int graph = 0, resumed = 0, whole = NOT_ALIKE;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|OUO!ppi:Entry", names, &PyCode_Type, &code, &guards, &key, &payload,
                                     &label, &PyDict_Type, &globals, &graph, &resumed, &whole)) {
        return NULL;
    }
    if (whole < NOT_ALIKE || whole > IN_PART) {
        return PyErr_Format(PyExc_ValueError, "whole must be 0, 1 or 2, not %d", whole);
    }
    if (guards != Py_None && !Py_IS_TYPE(guards, &GuardTree_Type)) {
        return PyErr_Format(PyExc_TypeError, "guards must be a GuardTree or None, not %.100s", Py_TYPE(guards)->tp_name);
    }
    PyCodeObject *co = (PyCodeObject *)code;
    const int need = CO_OPTIMIZED | CO_NEWLOCALS;
    const int refuse =
        CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if ((co->co_flags & (need | refuse)) != need || co->co_kwonlyargcount != 0) {
        return PyErr_Format(PyExc_TypeError,
                            "transformed code of %U must be a plain function body with positional parameters only",
                            co->co_qualname);
    }
    CodeCache *own = cache_get_or_create(co);
    Entry *self = own == NULL ? NULL : (Entry *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    own->transformed = true;
    self->code = Py_NewRef(code);
    self->guards = Py_NewRef(guards);
    self->key = Py_NewRef(key);
    self->payload = Py_NewRef(payload);
    self->label = Py_XNewRef(label);
    self->globals = globals;
    self->graph = graph;
    self->resumed = resumed;
    self->whole = whole;
    self->own = own;
    own->stands_for = self;
    return (PyObject *)self;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->code);
    Py_VISIT(self->guards);
    Py_VISIT(self->key);
    Py_VISIT(self->payload);
    Py_VISIT(self->last_failure);
    Py_VISIT(self->func);
    Py_VISIT(self->unless);
    return 0;
}

static int
entry_clear(Entry *self)
{
    /* code, guards and key stay valid for a finalizer that gets at the entry; they are freed with it. */
    Py_CLEAR(self->payload);
    Py_CLEAR(self->label);
    Py_CLEAR(self->last_failure);
    Py_CLEAR(self->func);
    Py_CLEAR(self->unless);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    if (self->own->stands_for == self) {
        self->own->stands_for = NULL;
    }
    entry_clear(self);
    Py_CLEAR(self->guards);
    Py_CLEAR(self->key);
    Py_CLEAR(self->code);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
entry_last_failure(Entry *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->last_failure == NULL ? Py_None : self->last_failure);
}

static PyObject *
entry_alive(Entry *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->guards == Py_None || !guard_tree_dead(self->guards));
}

static PyObject *
entry_repr(Entry *self)
{
    return PyUnicode_FromFormat("<argand entry %U, %llu hits>", ((PyCodeObject *)self->code)->co_qualname, self->hits);
}

static PyMemberDef entry_members[] = {
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, NULL},
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, NULL},
    {"key", T_OBJECT, offsetof(Entry, key), READONLY, NULL},
    {"payload", T_OBJECT, offsetof(Entry, payload), READONLY, NULL},
    {"label", T_OBJECT, offsetof(Entry, label), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, NULL},
    {NULL},
};

static PyGetSetDef entry_getset[] = {
    {"last_failure", (getter)entry_last_failure, NULL, NULL, NULL},
    {"alive", (getter)entry_alive, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.Entry",
    .tp_doc = "Entry(code, guards, key, payload=None, label=...)\n--\n\nA transformed code object and the guards under which it may run.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_repr = (reprfunc)entry_repr,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
};

/* ---- maintenance ----------------------------------------------------------------------------------------------- */

static bool
check_code(PyObject *obj)
{
    if (!PyCode_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, not %.100s", Py_TYPE(obj)->tp_name);
        return false;
    }
    return true;
}

static PyObject *
code_entries(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!check_code(code)) {
        return NULL;
    }
    CodeCache *cache = cache_get((PyCodeObject *)code);
    return cache == NULL ? PyList_New(0) : list_entries(cache, NULL);
}

static PyObject *
code_mode(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "code_mode takes 2 arguments (%zd given)", nargs);
    }
    if (!check_code(args[0])) {
        return NULL;
    }
    CodeCache *cache = cache_get((PyCodeObject *)args[0]);
    CodeMode mode = cache == NULL ? MODE_NONE : cache_mode(cache, args[1]);
    return Py_NewRef(mode == MODE_NONE ? Py_None : sentinels[mode]);
}

/* Returns whether anything was forgotten. The code must be held by the caller. */
static bool
reset_cache(CodeCache *cache)
{
    bool any = cache->head != NULL || cache->num_modes > 0 || cache->all_keys != MODE_NONE;
    Entry *entry = cache->head;
    KeyMode *modes = cache->modes;
    int num_modes = cache->num_modes;
    cache->head = NULL;
    cache->modes = NULL;
    cache->num_modes = 0;
    cache->all_keys = MODE_NONE;
    cache->version++;
    left_alone_forget(cache);
    free_contents(entry, modes, num_modes); /* the list is ours now: destructors cannot reach it */
    return any;
}

static PyObject *
reset_code(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!check_code(code)) {
        return NULL;
    }
    CodeCache *cache = cache_get((PyCodeObject *)code);
    if (cache != NULL) {
        reset_cache(cache);
    }
    Py_RETURN_NONE;
}

static PyObject *
reset_all(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *codes = PyList_New(0);
    if (codes == NULL) {
        return NULL;
    }
    for (CodeCache *cache = registry.reg_next; cache != &registry; cache = cache->reg_next) {
        /* A code object in its destructor is still listed; it must not be revived. */
        if (Py_REFCNT(cache->code) > 0 && PyList_Append(codes, (PyObject *)cache->code) < 0) {
            Py_DECREF(codes);
            return NULL;
        }
    }
    long count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(codes); i++) {
        CodeCache *cache = cache_get((PyCodeObject *)PyList_GET_ITEM(codes, i));
        count += cache != NULL && reset_cache(cache);
    }
    Py_DECREF(codes);
    return PyLong_FromLong(count);
}

static PyObject *
skip_code(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "recursive", NULL};
    PyObject *code;
    int recursive = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|p:skip_code", names, &PyCode_Type, &code, &recursive)) {
        return NULL;
    }
    CodeCache *cache = cache_get_or_create((PyCodeObject *)code);
    if (cache == NULL) {
        return NULL;
    }
    cache->all_keys = recursive ? MODE_SKIP_RECURSIVE : MODE_SKIP;
    Py_RETURN_NONE;
}

PyMethodDef cache_methods[] = {
    {"code_entries", code_entries, METH_O, "code_entries(code, /)\n--\n\nThe stored entries, in the order they are tried."},
    {"code_mode", (PyCFunction)(void (*)(void))code_mode, METH_FASTCALL,
     "code_mode(code, key, /)\n--\n\nSKIP, SKIP_RECURSIVE or RUN_ONLY where remembered, else None."},
    {"reset_code", reset_code, METH_O, "reset_code(code, /)\n--\n\nForgets entries and remembered answers of a code object."},
    {"reset_all", reset_all, METH_NOARGS, "reset_all()\n--\n\nreset_code for every code object seen; how many held anything."},
    {"skip_code", (PyCFunction)(void (*)(void))skip_code, METH_VARARGS | METH_KEYWORDS,
     "skip_code(code, /, recursive=False)\n--\n\nNever capture this code under any key, until reset_code."},
    {NULL},
};

int
cache_init(void)
{
    if (PyType_Ready(&Sentinel_Type) < 0 || PyType_Ready(&Entry_Type) < 0) {
        return -1;
    }
    extra_index = REQUEST_CODE_EXTRA(free_cache);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "CPython has no free code extra slot left for argand");
        return -1;
    }
    for (int mode = MODE_SKIP; mode <= MODE_RUN_ONLY; mode++) {
        Sentinel *s = PyObject_New(Sentinel, &Sentinel_Type);
        if (s == NULL) {
            return -1;
        }
        s->mode = (CodeMode)mode;
        s->name = sentinel_names[mode];
        sentinels[mode] = (PyObject *)s;
    }
    return 0;
}
