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

typedef struct {
    void *items;
    int count, cap;
} Array;

typedef enum {
    OP_DICT,   /* dict of this version, which has no place in the table */
    OP_MEMBER, /* object of this type in this version, whose slot holds the same object */
    OP_SAME,   /* fetching the node from the object gives the same object */
    OP_CHECK,  /* a check that runs no Python code */
    OP_NUMBER, /* a number that an expression computes with; reading it runs no Python code */
} OpKind;

typedef struct {
    PyObject *obj;    /* borrowed, see above */
    PyObject *other;  /* member, same: the value */
    uint64_t version; /* dict: its own, also of a watched one */
    int index;        /* plan node (same), check, number; dict: the Lookups */
    uint16_t layout;  /* member */
    uint16_t level;
    uint8_t kind;
} Op;

/* An object of a type (or one laid out like it) whose __dict__ has this version. */
typedef struct {
    PyObject *obj, *dict; /* borrowed */
    uint64_t version;     /* the dict's own, also of a watched one */
    int index;            /* its Lookups */
    uint16_t layout, level;
} Instance;

/* What instances are compared with, and where they keep their __dict__ or the value of a slot, in bytes from the object. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t where;
    unsigned version; /* of the type; 0: any */
} Layout;

/* Instances of one layout and level. */
typedef struct {
    const Layout *layout;
    int end;
} Run;

/* What is confirmed together: all that is alive because of what the levels before have confirmed. Where each table ends. */
typedef struct {
    int runs, dicts, ops;
} Level;

#define MAX_LEVEL (UINT16_MAX - 1)
#define LEAF_LEVEL UINT16_MAX /* while recording: the last one, of dicts below which there is nothing but tensors to look at */

/* A dict. */
typedef struct {
    PyObject *dict;   /* borrowed */
    uint64_t version; /* the dict's own, also of a watched one */
    int index;        /* its Lookups */
    uint16_t level;
} Leaf;

/* Where the dict is, from a base in units of LEAF_UNIT bytes, and its version, from the oldest one. */
typedef struct {
    uint32_t at, version;
} LeafDict;

#define LEAF_UNIT 8

/* There are thousands, most of them leaves, so what is read of each in every replay is kept small. */
typedef struct {
    LeafDict *dicts; /* room to look ahead of the last one */
    Leaf *rest;      /* read only when the version is another */
    int count;
    uintptr_t base;
    uint64_t oldest;
} Leaves;

/* A class that instances are compared with by address: the check whose weak reference says that it still is that class. */
typedef struct {
    const Check *check;
    PyTypeObject *type;
} KnownType;

/* A root: a class of which only its version is asked. */
typedef struct {
    const Check *check;
    PyTypeObject *type;
    unsigned version;
    int node;
} KnownClass;

/* A root: a dict that the tree holds; what is asked of it and of its items is settled while it has this version. */
typedef struct {
    PyObject *dict;
    uint64_t version;
    int node;
} KnownDict;

/* A root: an argument of which only a tensor's properties are asked, those that are read without Python code. */
typedef struct {
    const Check *check;
    int node;
} KnownTensor;

/* Roots in globals or builtins whose values are settled while the dict has this version. */
typedef struct {
    PyObject *dict; /* compared only; NULL: no such roots */
    uint64_t version;
    Array nodes; /* int, of the plan */
} KnownNames;

typedef struct {
    PyObject *key;   /* borrowed from the guard tree's node */
    PyObject *value; /* borrowed */
    int node;        /* of the plan */
} Item;

/* What is done again when a dict has another version: kept apart, it is seldom read. */
typedef struct {
    Tracked tracked;
    int item_begin, item_end; /* what was looked up in the dict */
    int own_begin, own_end;   /* checks on the dict itself, in plan.checks */
} Lookups;

/* A watched dict that changed between replays, and one of its Lookups, or -1: none of the recording's. */
typedef struct {
    const Watch *watch; /* compared only */
    int index;
} Noisy;

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

/* A value to collect: what the replay confirms, or (NULL) what a walk put into the slot. */
typedef struct {
    PyObject *value; /* borrowed */
    int slot;
    int input; /* where to put it */
} Collected;

/* A value that a late check compares. */
typedef struct {
    PyObject *value; /* borrowed */
    int slot;
} SlotValue;

struct Replay {
    Array collected, types;
    TensorRuns *tensors; /* after the other entries, when each is known to be alive */
    Leaves leaves;
    Array instances, runs, levels;
    Array noisy;         /* Noisy */
    Array classes;       /* KnownClass */
    Array dicts;         /* KnownDict */
    Array inputs;        /* KnownTensor */
    KnownNames names[2]; /* globals, builtins */
    uint64_t epoch;   /* of the watchers, when the dicts were last all found to be as recorded; 0: not all are watched */
    bool all_watched;
    bool late_known;  /* every replay fills the slots that the late checks look at: the first that held has shown it */
    Array roots, ops, layouts, lookups, items, slots, impure, late;
};

/* guard_tables.c */
bool tables_make(Replay *replay, Array *instances, Array *dicts); /* false: memory is short */
void tables_free(Replay *replay);
bool instances_hold(Replay *replay, int begin_run, int end_run, bool quiet, Walk *walk);
bool dicts_hold(Replay *replay, int begin, int end, Walk *walk);

/* guard_roots.c */
void roots_begin(Replay *replay, const Walk *walk);                       /* before any root is looked at */
int roots_take(Replay *replay, Walk *walk, int at, PyObject *value);      /* 1: taken over; 0; -1: memory is short */
int roots_hold(Replay *replay, Walk *walk);                               /* as replay_run */
void roots_free(Replay *replay);

/* guard_replay.c */
bool replay_dict_holds(Replay *replay, int index, PyObject *dict, Walk *walk);

/* guard_record.c: room for one more, zeroed; NULL when memory is short */
void *array_push(Array *array, size_t size);

/* The answer cannot change while the object is the same, and asking runs no Python code. */
bool replay_check_settled(const Check *check, PyObject *obj);
/* The answer depends on the contents of this dict only, and asking runs no Python code. */
bool replay_check_of_dict(const Check *check, PyObject *obj);
/* Asking runs no Python code. */
bool replay_check_pure(const Check *check, PyObject *obj);
bool replay_accessor_pure(Accessor accessor, PyObject *obj);
Py_ssize_t replay_slot_of(PyObject *obj, PyObject *name);

#endif
