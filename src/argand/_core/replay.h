/* Replaying guards: answering "still the same?" without walking the tree again.
 *
 * Most guards of a model ask for things behind dicts that hardly ever change: attributes, submodules, parameters. CPython
 * gives every state of every dict a version number of its own (`ma_version_tag`), so as long as a dict's version is the one
 * seen when the guards last held, each lookup in it gives the object it gave then, and what was found about an object that
 * cannot change needs no second look. A recording lists, parents before children, what is left to look at: versions, types,
 * items of lists, tensors.
 *
 * Soundness rests on two rules. The recording borrows its objects: one is only touched after the entry that proves it alive
 * (the version of the dict that holds it, the comparison with what a list holds now) was confirmed in the same replay, and
 * nothing that could run Python code comes between; such checks come last, on objects held for them. And a pointer that was
 * only compared, not proved unchanged by a version, may be another object at a reused address: then everything about it is
 * looked at again. A replay that cannot confirm everything says so, and the tree is walked as if there were no recording. */
#ifndef ARGAND_REPLAY_H
#define ARGAND_REPLAY_H

#include "guards.h"
#include "watch.h"

typedef enum {
    OP_INSTANCE, /* object of this type (or one laid out like it) whose __dict__ has this version */
    OP_DICT,     /* dict of this version */
    OP_SAME,  /* fetching the node from the object gives the same object */
    OP_CHECK, /* a check that runs no Python code */
    OP_SLOT,  /* a value that a late check compares */
    OP_NUMBER, /* a number that an expression computes with; reading it runs no Python code */
} OpKind;

typedef struct {
    uint8_t kind;
    int16_t where; /* instance: from the object to where it keeps its __dict__, in bytes */
    int index;     /* plan node (same), check, slot; of a dict: its Lookups */
    PyObject *obj; /* borrowed, see above */
    union {
        PyObject *value;    /* same */
        PyTypeObject *type; /* instance */
    };
    Tracked tracked; /* instance, dict */
} Op;

/* A dict below which there is nothing but tensors to look at: they come after the other entries, close together. */
typedef struct {
    PyObject *dict; /* borrowed */
    uint64_t version; /* the dict's own, also of a watched one */
    int rest;         /* its LeafRest: read only when the version is another */
} LeafDict;

typedef struct {
    Tracked tracked;
    int index; /* its Lookups */
} LeafRest;

/* A class that instances are compared with by address: the check whose weak reference says that it still is that class. */
typedef struct {
    const Check *check;
    PyTypeObject *type;
} KnownType;

typedef struct {
    PyObject *key;   /* borrowed from the guard tree's node */
    PyObject *value; /* borrowed */
    int node;        /* of the plan */
} Item;

/* What is done again when a dict has another version: kept apart, it is seldom read. */
typedef struct {
    int item_begin, item_end; /* what was looked up in the dict */
    int own_begin, own_end;   /* checks on the dict itself, in plan.checks */
} Lookups;

/* A root whose value is expected to be the same object, or (value NULL) is walked anew every time. */
typedef struct {
    int node;
    PyObject *value; /* borrowed, compared only */
} Root;

/* What may run Python code: a check of an object, fetching and walking a node below it, or reading a number. */
typedef enum { IMPURE_CHECK, IMPURE_FETCH, IMPURE_NUMBER } ImpureKind;

typedef struct {
    ImpureKind kind;
    int index;
    PyObject *obj;
} Impure;

#define REPLAY_AHEAD 10 /* entries between asking for memory and reading it */

typedef struct {
    void *items;
    int count, cap;
} Array;

/* A value to collect: what the replay confirms, or (NULL) what a walk put into the slot. */
typedef struct {
    PyObject *value; /* borrowed */
    int slot;
} Collected;

struct Replay {
    Array collected, tensors /* TensorOp: after the other entries, when each is known to be alive */, leaves, leaf_rests, types;
    uint64_t epoch;   /* of the watchers, when the dicts were last all found to be as recorded; 0: not all are watched */
    bool all_watched;
    Array roots, ops, lookups, items, impure, late;
};

/* The answer cannot change while the object is the same, and asking runs no Python code. */
bool replay_check_settled(const Check *check, PyObject *obj);
/* The answer depends on the contents of this dict only, and asking runs no Python code. */
bool replay_check_of_dict(const Check *check, PyObject *obj);

#endif
