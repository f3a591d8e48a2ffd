/* Telling whether a dict was changed since it was looked at.
 *
 * CPython 3.12 and later tell of each change of a dict that is watched: then dicts of which nothing was heard need not be
 * looked at at all. Earlier ones, and a process whose few watcher ids are taken, have the version number in the dict. */
#ifndef ARGAND_WATCH_H
#define ARGAND_WATCH_H

#include "core.h"

typedef struct Watch {
    uint64_t version; /* grows with each change */
    PyObject *dict;   /* borrowed; NULL once it is gone */
    int users;
    struct Watch *next; /* in its bucket */
} Watch;

/* A dict in a certain state. */
typedef struct {
    Watch *watch; /* a use of it, or NULL: the version is the one in the dict */
    uint64_t version;
} Tracked;

extern uint64_t watch_epoch; /* grows with each change of any watched dict */

/* The last changes, each at its epoch's place. Only to be compared with: a watch may be gone. */
#define WATCH_REMEMBERED 64
extern const Watch *watch_changes[WATCH_REMEMBERED];

void watch_init(void);
void tracked_begin(Tracked *tracked, PyObject *dict);
void tracked_end(Tracked *tracked);

/* CPython keeps other things than the version in the lowest bits. */
#if PY_VERSION_HEX >= 0x030D0000
#define DICT_VERSION_SHIFT 12
#elif PY_VERSION_HEX >= 0x030C0000
#define DICT_VERSION_SHIFT 8
#else
#define DICT_VERSION_SHIFT 0
#endif

static inline uint64_t
dict_version(PyObject *dict)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ((PyDictObject *)dict)->ma_version_tag >> DICT_VERSION_SHIFT;
#pragma GCC diagnostic pop
}

/* In 3.13 a dict that shares its values with an object does not get a new version when the object's attributes change. */
static inline bool
dict_version_counts(PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    return ((PyDictObject *)dict)->ma_values == NULL;
#else
    (void)dict;
    return true;
#endif
}

static inline bool
tracked_unchanged(const Tracked *tracked, PyObject *dict)
{
    if (tracked->watch != NULL) {
        return tracked->watch->dict == dict && tracked->watch->version == tracked->version;
    }
    return dict_version(dict) == tracked->version && dict_version_counts(dict);
}

#endif
