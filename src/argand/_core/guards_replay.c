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
#include "guards.h"

typedef enum {
    OP_INSTANCE, /* object of this type (or one laid out like it) whose __dict__ has this version */
    OP_DICT,     /* dict of this version */
    OP_SAME,  /* fetching the node from the object gives the same object */
    OP_CHECK, /* a check that runs no Python code */
    OP_SLOT,  /* a value that a late check compares */
} OpKind;

typedef struct {
    OpKind kind;
    int index;                /* plan node (same), check, slot */
    int item_begin, item_end; /* of a dict: what was looked up in it */
    int own_begin, own_end;   /* of a dict: checks on the dict itself, in plan.checks */
    PyObject *obj;            /* borrowed, see above */
    union {
        PyObject *value;    /* same */
        PyTypeObject *type; /* instance */
    };
    PyObject **where; /* instance: where the object keeps its __dict__ */
    uint64_t version; /* instance, dict */
} Op;

typedef struct {
    PyObject *key;   /* borrowed from the guard tree's node */
    PyObject *value; /* borrowed */
    int node;        /* of the plan */
} Item;

/* A root whose value is expected to be the same object, or (value NULL) is walked anew every time. */
typedef struct {
    int node;
    PyObject *value; /* borrowed, compared only */
} Root;

/* What may run Python code: a check of an object, or fetching and walking a node below it. */
typedef struct {
    bool is_check;
    int index;
    PyObject *obj;
} Impure;

typedef struct {
    void *items;
    int count, cap;
} Array;

struct Replay {
    Array roots, ops, items, impure, late;
};

static void *
array_push(Array *array, size_t size)
{
    if (array->count == array->cap) {
        int cap = array->cap == 0 ? 32 : array->cap * 2;
        void *grown = PyMem_Realloc(array->items, cap * size);
        if (grown == NULL) {
            return NULL;
        }
        array->items = grown;
        array->cap = cap;
    }
    void *place = (char *)array->items + array->count++ * size;
    memset(place, 0, size);
    return place;
}

void
replay_free(Replay *replay)
{
    if (replay != NULL) {
        PyMem_Free(replay->roots.items);
        PyMem_Free(replay->ops.items);
        PyMem_Free(replay->items.items);
        PyMem_Free(replay->impure.items);
        PyMem_Free(replay->late.items);
        PyMem_Free(replay);
    }
}

/* ---- which checks need a second look --------------------------------------------------------------------------- */

static bool
is_atom(PyObject *obj)
{
    return obj == Py_None || PyBool_Check(obj) || PyLong_CheckExact(obj) || PyFloat_CheckExact(obj) || PyUnicode_CheckExact(obj) ||
           PyBytes_CheckExact(obj) || PyComplex_CheckExact(obj);
}

/* Whether `__class__` of the object may be assigned. */
static bool
type_may_change(PyObject *obj)
{
    return (Py_TYPE(obj)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(obj);
}

/* The answer cannot change while the object is the same. Runs no Python code either. */
static bool
check_settled(const Check *check, PyObject *obj)
{
    switch (check->kind) {
    case CHECK_ID:
    case CHECK_NOT_ID:
    case CHECK_IS_NONE:
    case CHECK_NOT_NONE:
        return true;
    case CHECK_EQUALS:
    case CHECK_TRUTH:
    case CHECK_INT_RANGE:
        return is_atom(obj);
    case CHECK_TYPE:
        return !type_may_change(obj);
    default:
        return false;
    }
}

/* The answer depends on the object and, for a dict, on its contents only, and asking runs no Python code. */
static bool
check_of_dict(const Check *check, PyObject *obj)
{
    if (!PyDict_CheckExact(obj)) {
        return false;
    }
    switch (check->kind) {
    case CHECK_LEN:
    case CHECK_DICT_KEYS:
        return true;
    case CHECK_HAS_KEY:
    case CHECK_NOT_HAS_KEY:
        return PyUnicode_CheckExact(check->a);
    default:
        return false;
    }
}

static bool
check_pure(const Check *check, PyObject *obj)
{
    switch (check->kind) {
    case CHECK_TYPE:
    case CHECK_TYPE_VERSION:
        return true;
    case CHECK_LEN:
        return PyList_CheckExact(obj) || PyTuple_CheckExact(obj) || PyDict_CheckExact(obj);
    case CHECK_TENSOR:
        return tensor_spec_pure(check->tensor);
    default:
        return check_settled(check, obj);
    }
}

static bool
accessor_pure(Accessor accessor, PyObject *obj)
{
    switch (accessor) {
    case ACC_TYPE:
    case ACC_SEQUENCE_ITEM:
    case ACC_TYPE_ATTR:
    case ACC_DICT_KEY:
    case ACC_FUNC_CODE:
    case ACC_FUNC_DEFAULTS:
    case ACC_FUNC_KWDEFAULTS:
    case ACC_FUNC_GLOBALS:
    case ACC_FUNC_CLOSURE:
    case ACC_CELL_CONTENTS:
    case ACC_METHOD_SELF:
    case ACC_METHOD_FUNC:
        return true;
    default:
        return false;
    }
}

static inline bool
match_pure(const Check *check, PyObject *obj, Walk *walk)
{
    if (LIKELY(check->kind == CHECK_TENSOR)) {
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak) && tensor_spec_match_pure(check->tensor, obj);
    }
    return check_match(check, obj, walk) > 0;
}

/* ---- recording ------------------------------------------------------------------------------------------------- */

typedef struct {
    Replay *replay;
    Walk *walk;
    PyObject *keep;   /* list: holds every object met until the recording is done */
    char *slot_known; /* per slot: its object is one that a replay confirms */
    bool out_of_memory;
} Recorder;

static int record_node(Recorder *r, int at, PyObject *obj, bool versioned);

static Op *
push_op(Recorder *r, OpKind kind, PyObject *obj)
{
    Op *op = array_push(&r->replay->ops, sizeof(Op));
    if (op == NULL) {
        r->out_of_memory = true;
        return NULL;
    }
    op->kind = kind;
    op->obj = obj;
    return op;
}

static int
push_impure(Recorder *r, bool is_check, int index, PyObject *obj)
{
    Impure *impure = array_push(&r->replay->impure, sizeof(Impure));
    if (impure == NULL) {
        r->out_of_memory = true;
        return 0;
    }
    *impure = (Impure){is_check, index, obj};
    return 1;
}

static bool
keep(Recorder *r, PyObject *obj)
{
    return PyList_Append(r->keep, obj) == 0;
}

/* versioned: the object is the same one for certain, not only one at the same address. */
static int
record_checks(Recorder *r, int at, PyObject *obj, bool versioned)
{
    const Plan *plan = r->walk->tree->plan;
    for (int k = plan->nodes[at].check_begin; k < plan->nodes[at].check_end; k++) {
        int index = plan->checks[k];
        const Check *check = &r->walk->tree->checks[index];
        bool of_dict = check_of_dict(check, obj);
        if (!of_dict && !check_pure(check, obj)) {
            if (!push_impure(r, true, index, obj)) {
                return 0;
            }
            continue;
        }
        int status = check_match(check, obj, r->walk);
        if (status <= 0) {
            return status;
        }
        if (of_dict || (versioned && check_settled(check, obj))) {
            continue; /* the entry for the dict looks after it; nothing can change */
        }
        Op *op = push_op(r, OP_CHECK, obj);
        if (op == NULL) {
            return 0;
        }
        op->index = index;
    }
    return 1;
}

/* The lookups in a dict: all values first, so that they stand next to each other, then what is below them. */
static int
record_items(Recorder *r, int at, PyObject *dict, int op_index)
{
    const Plan *plan = r->walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    int begin = r->replay->items.count;
    for (int child = at + 1; child < node->end; child = plan->nodes[child].end) {
        if (plan->nodes[child].accessor != ACC_DICT_ITEM) {
            continue;
        }
        PyObject *value = node_fetch(&plan->nodes[child], dict);
        if (value == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        Item *item = array_push(&r->replay->items, sizeof(Item));
        bool kept = item != NULL && keep(r, value);
        Py_DECREF(value);
        if (!kept) {
            r->out_of_memory = true;
            return 0;
        }
        *item = (Item){plan->nodes[child].arg, value, child};
    }
    int end = r->replay->items.count;
    Op *op = &((Op *)r->replay->ops.items)[op_index];
    op->item_begin = begin;
    op->item_end = end;
    op->own_begin = node->check_begin;
    op->own_end = node->check_end;
    for (int i = begin; i < end; i++) {
        Item item = ((Item *)r->replay->items.items)[i];
        int status = record_node(r, item.node, item.value, true);
        if (status <= 0) {
            return status;
        }
    }
    return 1;
}

/* The object's __dict__; its type is part of the entry. */
static int
record_instance_dict(Recorder *r, int child, PyObject *obj)
{
    PyObject *dict = node_fetch(&r->walk->tree->plan->nodes[child], obj);
    if (dict == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    bool kept = keep(r, dict);
    Py_DECREF(dict);
    PyObject **where = _PyObject_GetDictPtr(obj);
    if (!kept || where == NULL || *where != dict || !PyDict_Check(dict) || Py_TYPE(obj)->tp_itemsize != 0) {
        return 0;
    }
    Op *op = push_op(r, OP_INSTANCE, obj);
    if (op == NULL) {
        return 0;
    }
    op->type = Py_TYPE(obj);
    op->where = where;
    op->version = dict_version(dict);
    int index = r->replay->ops.count - 1;
    int status = record_checks(r, child, dict, true);
    return status <= 0 ? status : record_items(r, child, dict, index);
}

static int
record_fetch(Recorder *r, int child, PyObject *obj)
{
    const PlanNode *node = &r->walk->tree->plan->nodes[child];
    if (!accessor_pure(node->accessor, obj)) {
        return push_impure(r, false, child, obj);
    }
    PyObject *value = node_fetch(node, obj);
    if (value == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    bool kept = keep(r, value);
    bool sole_owner = Py_REFCNT(value) == 2; /* made by the fetch: nothing would keep it alive */
    Py_DECREF(value);
    Op *op = kept && !sole_owner ? push_op(r, OP_SAME, obj) : NULL;
    if (op == NULL) {
        return 0;
    }
    op->index = child;
    op->value = value;
    return record_node(r, child, value, false);
}

static int
record_node(Recorder *r, int at, PyObject *obj, bool versioned)
{
    const Plan *plan = r->walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    bool dict_entry = false;
    if (PyDict_Check(obj)) { /* its version first: what is read after it can only be newer */
        for (int k = node->check_begin; k < node->check_end && !dict_entry; k++) {
            dict_entry = check_of_dict(&r->walk->tree->checks[plan->checks[k]], obj);
        }
        for (int child = at + 1; child < node->end && !dict_entry; child = plan->nodes[child].end) {
            dict_entry = plan->nodes[child].accessor == ACC_DICT_ITEM;
        }
    }
    int dict_op = -1;
    if (dict_entry) {
        Op *op = push_op(r, OP_DICT, obj);
        if (op == NULL) {
            return 0;
        }
        op->version = dict_version(obj);
        dict_op = r->replay->ops.count - 1;
    }
    int status = record_checks(r, at, obj, versioned);
    if (status > 0 && node->slot >= 0) {
        Op *op = push_op(r, OP_SLOT, obj);
        if (op == NULL) {
            return 0;
        }
        op->index = node->slot;
        r->slot_known[node->slot] = 1;
    }
    if (status > 0 && dict_op >= 0) {
        status = record_items(r, at, obj, dict_op);
    }
    for (int child = at + 1; status > 0 && child < node->end; child = plan->nodes[child].end) {
        Accessor accessor = plan->nodes[child].accessor;
        if (accessor == ACC_DICT_ITEM && dict_entry) {
            continue;
        }
        status = accessor == ACC_INSTANCE_DICT ? record_instance_dict(r, child, obj) : record_fetch(r, child, obj);
    }
    return status;
}

#define SMALL_ROOT 6 /* nodes: as quick to walk as to replay */

static int
record_root(Recorder *r, int child)
{
    const PlanNode *node = &r->walk->tree->plan->nodes[child];
    PyObject *value = node_fetch_root(node, r->walk);
    if (value == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    Root *root = array_push(&r->replay->roots, sizeof(Root));
    bool kept = root != NULL && keep(r, value);
    Py_DECREF(value);
    if (!kept) {
        return 0;
    }
    root->node = child;
    if (node->end - child < SMALL_ROOT) {
        return 1;
    }
    root->value = value;
    return record_node(r, child, value, false);
}

/* A late check among values that a replay confirms to be the same objects needs no second look. */
static int
record_late(Recorder *r)
{
    const GuardTree *tree = r->walk->tree;
    char *needed = PyMem_Calloc(tree->plan->num_slots + 1, 1);
    if (needed == NULL) {
        return 0;
    }
    int status = 1;
    for (int k = 0; status > 0 && k < tree->plan->num_late; k++) {
        const Check *check = &tree->checks[tree->plan->late[k]];
        bool settled = check->kind == CHECK_DISTINCT || check->kind == CHECK_SAME_OBJECT;
        for (int i = 0; i < check->num_nodes; i++) {
            settled = settled && r->slot_known[tree->plan->slot_of[check->nodes[i]]];
        }
        if (settled) {
            continue;
        }
        for (int i = 0; i < check->num_nodes; i++) {
            needed[tree->plan->slot_of[check->nodes[i]]] = 1;
        }
        int *late = array_push(&r->replay->late, sizeof(int));
        status = late != NULL;
        if (late != NULL) {
            *late = tree->plan->late[k];
        }
    }
    Op *ops = r->replay->ops.items;
    int kept = 0;
    for (int i = 0; i < r->replay->ops.count; i++) {
        if (ops[i].kind != OP_SLOT || needed[ops[i].index]) {
            ops[kept++] = ops[i];
        }
    }
    r->replay->ops.count = kept;
    PyMem_Free(needed);
    return status;
}

#define WORTH_RECORDING 12 /* nodes */

Replay *
replay_record(Walk *walk)
{
    const Plan *plan = walk->tree->plan;
    if (plan->num_nodes < WORTH_RECORDING) {
        return NULL;
    }
    Recorder r = {.walk = walk};
    r.replay = PyMem_Calloc(1, sizeof(Replay));
    r.keep = PyList_New(0);
    r.slot_known = PyMem_Calloc(plan->num_slots + 1, 1);
    int status = r.replay != NULL && r.keep != NULL && r.slot_known != NULL;
    for (int child = 1; status > 0 && child < plan->num_nodes; child = plan->nodes[child].end) {
        status = record_root(&r, child);
    }
    if (status > 0) {
        status = record_late(&r);
    }
    Py_XDECREF(r.keep);
    PyMem_Free(r.slot_known);
    if (status <= 0) {
        walk->tree->successes = -64; /* not soon again */
        if (PyErr_Occurred() && (status == 0 || PyErr_ExceptionMatches(PyExc_Exception))) {
            PyErr_Clear();
        }
        replay_free(r.replay);
        return NULL;
    }
    return r.replay;
}

/* ---- replaying ------------------------------------------------------------------------------------------------- */

/* A dict has changed: are the values that were looked up, and what was asked of the dict itself, still the same? Settles it
 * without Python code, so only for dicts whose keys are exact strings, and by the identity of keys. */
static bool
dict_unchanged_where_it_counts(const Replay *replay, const Op *op, PyObject *dict, Walk *walk)
{
    const Item *items = replay->items.items;
    const GuardTree *tree = walk->tree;
    int wanted = op->item_end - op->item_begin, found = 0, next = op->item_begin;
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return false;
        }
        for (int i = 0; i < wanted && found < wanted; i++) {
            const Item *item = &items[next];
            next = next + 1 == op->item_end ? op->item_begin : next + 1;
            if (item->key != key) {
                continue;
            }
            if (item->value != value) {
                return false;
            }
            const PlanNode *node = &tree->plan->nodes[item->node];
            for (int k = node->check_begin; k < node->check_end; k++) { /* it may be another object at the same address */
                const Check *check = &tree->checks[tree->plan->checks[k]];
                if (check_settled(check, value) && check_match(check, value, walk) <= 0) {
                    return false;
                }
            }
            found++;
            break;
        }
    }
    if (found != wanted) {
        return false;
    }
    for (int k = op->own_begin; k < op->own_end; k++) {
        const Check *check = &tree->checks[tree->plan->checks[k]];
        if (check_of_dict(check, dict) && check_match(check, dict, walk) <= 0) {
            return false;
        }
    }
    return true;
}

static inline bool
dict_confirmed(const Replay *replay, Op *op, PyObject *dict, Walk *walk)
{
    if (LIKELY(dict_version(dict) == op->version && dict_version_counts(dict))) {
        return true;
    }
    uint64_t version = dict_version(dict);
    if (!dict_unchanged_where_it_counts(replay, op, dict, walk)) {
        return false;
    }
    op->version = version;
    return true;
}

static inline PyObject *
dict_at(PyObject **where)
{
    PyObject *dict = *where;
    return ((uintptr_t)dict & 7) != 0 ? NULL : dict; /* 3.12 marks inline values in the same place */
}

static bool
run_ops(Replay *replay, Walk *walk)
{
    Op *ops = replay->ops.items;
    for (int i = 0; i < replay->ops.count; i++) {
        Op *op = &ops[i];
        bool same;
        switch (op->kind) {
        case OP_INSTANCE: {
            PyObject *dict = Py_TYPE(op->obj) == op->type ? dict_at(op->where) : NULL;
            same = dict != NULL && dict_confirmed(replay, op, dict, walk);
            break;
        }
        case OP_DICT:
            same = dict_confirmed(replay, op, op->obj, walk);
            break;
        case OP_SAME: {
            PyObject *value = node_fetch(&walk->tree->plan->nodes[op->index], op->obj);
            same = value == op->value;
            Py_XDECREF(value); /* never the last reference: whatever gave it holds it */
            break;
        }
        case OP_CHECK:
            same = match_pure(&walk->tree->checks[op->index], op->obj, walk);
            break;
        default: /* OP_SLOT */
            Py_XSETREF(walk->slots[op->index], Py_NewRef(op->obj));
            same = true;
        }
        if (UNLIKELY(!same)) {
            return false;
        }
    }
    return true;
}

static int
run_impure(Replay *replay, Walk *walk)
{
    int count = replay->impure.count;
    if (count == 0) {
        return 1;
    }
    Impure *held = PyMem_Malloc(count * sizeof(Impure));
    if (held == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(held, replay->impure.items, count * sizeof(Impure));
    for (int i = 0; i < count; i++) {
        Py_INCREF(held[i].obj);
    }
    int status = 1;
    for (int i = 0; status > 0 && i < count; i++) {
        status = held[i].is_check ? check_match(&walk->tree->checks[held[i].index], held[i].obj, walk)
                                  : walk_child(walk, held[i].index, held[i].obj);
    }
    if (status < 0 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        status = 0;
    }
    for (int i = 0; i < count; i++) {
        Py_DECREF(held[i].obj);
    }
    PyMem_Free(held);
    return status;
}

#define STACK_ROOTS 16

/* First the roots that are walked anew (the inputs: likeliest to differ), then the others are fetched and held. */
static int
run_roots(Replay *replay, Walk *walk, PyObject **held)
{
    const Root *roots = replay->roots.items;
    for (int i = 0; i < replay->roots.count; i++) {
        if (roots[i].value == NULL) {
            int status = walk_child(walk, roots[i].node, NULL);
            if (status <= 0) {
                return status;
            }
        }
    }
    for (int i = 0; i < replay->roots.count; i++) {
        if (roots[i].value != NULL) {
            held[i] = node_fetch_root(&walk->tree->plan->nodes[roots[i].node], walk);
            if (held[i] != roots[i].value) {
                PyErr_Clear();
                return 2;
            }
        }
    }
    return 1;
}

int
replay_run(Replay *replay, Walk *walk)
{
    PyObject *on_stack[STACK_ROOTS] = {NULL}, **held = on_stack;
    int count = replay->roots.count;
    if (UNLIKELY(count > STACK_ROOTS)) {
        held = PyMem_Calloc(count, sizeof(PyObject *));
        if (held == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    int status = run_roots(replay, walk, held);
    if (status == 1) {
        status = run_ops(replay, walk) ? run_impure(replay, walk) : 2;
        status = status == 0 ? 2 : status; /* the walk finds out which guard failed, in its own order */
    }
    if (status == 1) {
        status = walk_late(walk, replay->late.items, replay->late.count);
    }
    for (int i = 0; i < count; i++) {
        Py_XDECREF(held[i]);
    }
    if (UNLIKELY(held != on_stack)) {
        PyMem_Free(held);
    }
    return status;
}
