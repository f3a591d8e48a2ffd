/* Dict watchers (see watch.h). */
#include "watch.h"

uint64_t watch_epoch = 1;
const Watch *watch_changes[WATCH_REMEMBERED];

#if PY_VERSION_HEX >= 0x030C0000

static int watcher = -1; /* one of the eight ids of the interpreter; -1: none was left */
static Watch **buckets = NULL;
static size_t num_buckets = 0, num_watches = 0;

static inline size_t
bucket_of(PyObject *dict)
{
    return ((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15u >> 20 & (num_buckets - 1);
}

static Watch *
find_watch(PyObject *dict)
{
    Watch *watch = num_buckets == 0 ? NULL : buckets[bucket_of(dict)];
    while (watch != NULL && watch->dict != dict) {
        watch = watch->next;
    }
    return watch;
}

static void
unlink_watch(Watch *watch)
{
    Watch **link = &buckets[bucket_of(watch->dict)];
    while (*link != watch) {
        link = &(*link)->next;
    }
    *link = watch->next;
    watch->dict = NULL;
    num_watches--;
}

/* Called by CPython before the change, which follows without Python code in between. */
static int
on_change(PyDict_WatchEvent event, PyObject *dict, PyObject *Py_UNUSED(key), PyObject *Py_UNUSED(value))
{
    Watch *watch = find_watch(dict);
    if (watch != NULL) {
        watch->version++;
        watch_changes[++watch_epoch % WATCH_REMEMBERED] = watch;
        if (event == PyDict_EVENT_DEALLOCATED) {
            unlink_watch(watch); /* who uses it frees it */
        }
    }
    return 0;
}

static bool
grow_buckets(void)
{
    size_t wanted = num_buckets == 0 ? 256 : num_buckets * 2;
    Watch **grown = PyMem_Calloc(wanted, sizeof(Watch *)), **old = buckets;
    if (grown == NULL) {
        return false;
    }
    size_t count = num_buckets;
    buckets = grown;
    num_buckets = wanted;
    for (size_t i = 0; i < count; i++) {
        for (Watch *watch = old[i], *next; watch != NULL; watch = next) {
            next = watch->next;
            Watch **bucket = &buckets[bucket_of(watch->dict)];
            watch->next = *bucket;
            *bucket = watch;
        }
    }
    PyMem_Free(old);
    return true;
}

/* Since 3.13 a __dict__ may share its values with its object. Whether CPython tells of attributes set on such an object
 * depends on the version (3.13.0 does not): watch_init finds out. */
static bool shared_values_told = true;

/* Sees to it that the dict will tell of every change. Where those of shared values are not told, taking the last item out
 * makes the dict a table of its own; putting it back, for which there is room, leaves it as it was, its order and the
 * iterators over it too. No Python code runs in between, so no other thread can see it. */
static bool
tells_all(PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    if (shared_values_told || ((PyDictObject *)dict)->ma_values == NULL) {
        return true;
    }
    if (!PyDict_CheckExact(dict) || PyDict_GET_SIZE(dict) == 0) {
        return false;
    }
    PyObject *item = PyObject_CallMethod(dict, "popitem", NULL);
    if (item == NULL || PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(item);
    return dict_version_counts(dict);
#else
    return shared_values_told;
#endif
}

static Watch *
use_watch(PyObject *dict)
{
    if (!tells_all(dict)) {
        return NULL;
    }
    Watch *watch = find_watch(dict);
    if (watch != NULL) {
        watch->users++;
        return watch;
    }
    if (watcher < 0 || (num_watches >= num_buckets && !grow_buckets())) {
        return NULL;
    }
    watch = PyMem_Calloc(1, sizeof(Watch));
    if (watch == NULL) {
        return NULL;
    }
    if (PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        PyMem_Free(watch);
        return NULL;
    }
    Watch **bucket = &buckets[bucket_of(dict)];
    *watch = (Watch){.version = 1, .dict = dict, .users = 1, .next = *bucket};
    *bucket = watch;
    num_watches++;
    return watch;
}

static void
drop_watch(Watch *watch)
{
    if (--watch->users == 0) {
        if (watch->dict != NULL) { /* CPython goes on telling of it: nobody listens */
            unlink_watch(watch);
        }
        PyMem_Free(watch);
    }
}

#if PY_VERSION_HEX >= 0x030D0000
#define PROBE_ROUNDS 64 /* enough for the interpreter to specialise the store */

/* Whether each attribute that is changed, added and deleted on an object is told, its __dict__ sharing its values. */
static bool
probe_shared_values(void)
{
    static const char text[] = "class Probe: pass\n"
                               "probe = Probe()\n"
                               "probe.value = None\n"
                               "space = probe.__dict__\n"
                               "def change(rounds):\n"
                               "    for number in range(rounds):\n"
                               "        probe.value = number\n"
                               "        probe.other = number\n"
                               "        del probe.other\n";
    PyObject *globals = Py_BuildValue("{ss}", "__name__", "argand._core.probe");
    PyObject *done = globals == NULL ? NULL : PyRun_String(text, Py_file_input, globals, globals);
    PyObject *space = done == NULL ? NULL : PyDict_GetItemString(globals, "space");
    Watch *watch = space == NULL ? NULL : use_watch(space);
    bool told = false;
    if (watch != NULL) {
        uint64_t before = watch->version;
        PyObject *changed = PyObject_CallFunction(PyDict_GetItemString(globals, "change"), "i", PROBE_ROUNDS);
        told = changed != NULL && watch->version == before + 3 * PROBE_ROUNDS;
        Py_XDECREF(changed);
        drop_watch(watch);
    }
    PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(globals);
    return told;
}
#endif

void
watch_init(void)
{
    watcher = PyDict_AddWatcher(on_change);
    if (watcher < 0) {
        PyErr_Clear();
    }
#if PY_VERSION_HEX >= 0x030D0000
    shared_values_told = watcher >= 0 && probe_shared_values();
#endif
}

#else

static Watch *
use_watch(PyObject *Py_UNUSED(dict))
{
    return NULL;
}

static void
drop_watch(Watch *Py_UNUSED(watch))
{
}

void
watch_init(void)
{
}

#endif

void
tracked_begin(Tracked *tracked, PyObject *dict)
{
    tracked->watch = use_watch(dict);
    tracked->version = tracked->watch != NULL ? tracked->watch->version : dict_version(dict);
}

void
tracked_end(Tracked *tracked)
{
    if (tracked->watch != NULL) {
        drop_watch(tracked->watch);
        tracked->watch = NULL;
    }
}
