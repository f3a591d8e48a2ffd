/* Recording what an evaluation of a guard tree found, for replaying (see replay.h). */
#include "replay.h"

void *
array_push(Array *array, size_t size)
{
    if (array->count == array->cap) {
        int cap = array->cap == 0 ? 4 : array->cap * 2;
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

/* ---- recording -------------------------------------------------------------------------------------------------------- */

typedef struct {
    Replay *replay;
    Walk *walk;
    PyObject *keep;   /* list: holds every object met until the recording is done */
    Array tensors;    /* TensorOp */
    Array instances;  /* Instance */
    Array leaves;     /* Leaf */
    int level;        /* of the objects that are looked at */
    PyObject **slot_known; /* per slot: the object, borrowed, when it is one that a replay confirms */
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
    op->level = (uint16_t)r->level;
    return op;
}

/* How many entries there are. */
static int
entries(const Recorder *r)
{
    return r->replay->ops.count + r->instances.count + r->leaves.count;
}

/* The version of a dict as it is now, and a place for its Lookups, which is returned; -1: memory is short. */
static int
push_lookups(Recorder *r, PyObject *dict)
{
    Lookups *lookups = array_push(&r->replay->lookups, sizeof(Lookups));
    if (lookups == NULL) {
        r->out_of_memory = true;
        return -1;
    }
    tracked_begin(&lookups->tracked, dict);
    r->replay->all_watched = r->replay->all_watched && lookups->tracked.watch != NULL;
    return r->replay->lookups.count - 1;
}

static int
push_impure(Recorder *r, ImpureKind kind, int index, PyObject *obj)
{
    Impure *impure = array_push(&r->replay->impure, sizeof(Impure));
    if (impure == NULL) {
        r->out_of_memory = true;
        return 0;
    }
    *impure = (Impure){kind, index, obj};
    return 1;
}

static bool
keep(Recorder *r, PyObject *obj)
{
    return PyList_Append(r->keep, obj) == 0;
}

static bool
has_instance_dict(const Plan *plan, int at)
{
    for (int child = at + 1; child < plan->nodes[at].end; child = plan->nodes[child].end) {
        if (plan->nodes[child].accessor == ACC_INSTANCE_DICT) {
            return true;
        }
    }
    return false;
}

static bool
know_type(Recorder *r, const Check *check, PyObject *obj)
{
    const KnownType *types = r->replay->types.items;
    for (int i = 0; i < r->replay->types.count; i++) {
        if (types[i].type == Py_TYPE(obj)) {
            return true;
        }
    }
    KnownType *type = array_push(&r->replay->types, sizeof(KnownType));
    if (type != NULL) {
        *type = (KnownType){check, Py_TYPE(obj)};
    }
    return type != NULL;
}

#define SPECS_SEARCHED 64

/* Models repeat their layers: equal expectations are compared with from one place in memory. */
static bool
push_tensor(Recorder *r, const Check *check, PyObject *obj)
{
    const TensorOp *tensors = r->tensors.items;
    const TensorSpec *spec = check->tensor;
    int count = r->tensors.count, first = count > SPECS_SEARCHED ? count - SPECS_SEARCHED : 0;
    for (int i = count - 1; i >= first; i--) {
        if (tensor_spec_same(tensors[i].spec, spec)) {
            spec = tensors[i].spec;
            break;
        }
    }
    TensorOp *tensor = know_type(r, check, obj) ? array_push(&r->tensors, sizeof(TensorOp)) : NULL;
    if (tensor != NULL) {
        *tensor = (TensorOp){obj, Py_TYPE(obj), spec, r->walk->tree->plan->slot_of[check->node], -1};
    }
    return tensor != NULL;
}

/* versioned: the object is the same one for certain, not only one at the same address. */
static int
record_checks(Recorder *r, int at, PyObject *obj, bool versioned)
{
    const Plan *plan = r->walk->tree->plan;
    for (int k = plan->nodes[at].check_begin; k < plan->nodes[at].check_end; k++) {
        int index = plan->checks[k];
        const Check *check = &r->walk->tree->checks[index];
        bool of_dict = replay_check_of_dict(check, obj);
        if (!of_dict && !replay_check_pure(check, obj)) {
            if (!push_impure(r, IMPURE_CHECK, index, obj)) {
                return 0;
            }
            continue;
        }
        int status = check_match(check, obj, r->walk);
        if (status <= 0) {
            return status;
        }
        if (of_dict || (versioned && replay_check_settled(check, obj))) {
            continue; /* the entry for the dict looks after it; nothing can change */
        }
        if (check->kind == CHECK_TYPE && has_instance_dict(plan, at)) {
            if (!know_type(r, check, obj)) {
                return 0;
            }
            continue; /* the entry for its __dict__ compares the type */
        }
        if (check->kind == CHECK_TENSOR) {
            if (!push_tensor(r, check, obj)) {
                return 0;
            }
            continue;
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
record_items(Recorder *r, int at, PyObject *dict, int lookups_index)
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
    if (r->level == MAX_LEVEL) {
        return 0;
    }
    int end = r->replay->items.count;
    Lookups *lookups = (Lookups *)r->replay->lookups.items + lookups_index;
    *lookups = (Lookups){lookups->tracked, begin, end, node->check_begin, node->check_end};
    int status = 1;
    r->level++;
    for (int i = begin; status > 0 && i < end; i++) {
        Item item = ((Item *)r->replay->items.items)[i];
        status = record_node(r, item.node, item.value, true);
    }
    r->level--;
    return status;
}

/* Returns its place, or -1. */
static int
know_layout(Recorder *r, PyTypeObject *type, Py_ssize_t where, unsigned version)
{
    const Layout *layouts = r->replay->layouts.items;
    int count = r->replay->layouts.count;
    for (int i = count - 1; i >= 0; i--) {
        if (layouts[i].type == type && layouts[i].where == where && layouts[i].version == version) {
            return i;
        }
    }
    Layout *layout = count <= UINT16_MAX ? array_push(&r->replay->layouts, sizeof(Layout)) : NULL;
    if (layout == NULL) {
        return -1;
    }
    *layout = (Layout){type, where, version};
    return count;
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
    int index = push_lookups(r, dict), layout = know_layout(r, Py_TYPE(obj), (char *)where - (char *)obj, 0);
    Instance *instance = index < 0 || layout < 0 ? NULL : array_push(&r->instances, sizeof(Instance));
    if (instance == NULL) {
        return 0;
    }
    *instance = (Instance){obj, dict, dict_version(dict), index, (uint16_t)layout, (uint16_t)r->level};
    int status = record_checks(r, child, dict, true);
    return status <= 0 ? status : record_items(r, child, dict, index);
}

/* The value in a slot (`__slots__`) of the object, which its class gives for the name. 1; 0: it is none; -1: memory is short. */
static int
record_member(Recorder *r, int child, PyObject *obj)
{
    const PlanNode *node = &r->walk->tree->plan->nodes[child];
    Py_ssize_t where = node->accessor == ACC_ATTR ? replay_slot_of(obj, node->arg) : 0;
    PyObject *value = where == 0 ? NULL : *(PyObject **)((char *)obj + where);
    unsigned version = class_version_tag(Py_TYPE(obj));
    if (value == NULL || version == 0) {
        return 0;
    }
    int layout = know_layout(r, Py_TYPE(obj), where, version);
    Op *op = layout >= 0 && keep(r, value) ? push_op(r, OP_MEMBER, obj) : NULL;
    if (op == NULL) {
        return -1;
    }
    op->layout = (uint16_t)layout;
    op->other = value;
    return 1;
}

/* What is below a value that the last entry compares. */
static int
record_below(Recorder *r, int child)
{
    const Op *op = (Op *)r->replay->ops.items + r->replay->ops.count - 1;
    if (r->level == MAX_LEVEL) {
        return 0;
    }
    r->level++;
    int status = record_node(r, child, op->other, false);
    r->level--;
    return status;
}

static int
record_fetch(Recorder *r, int child, PyObject *obj)
{
    const PlanNode *node = &r->walk->tree->plan->nodes[child];
    int member = record_member(r, child, obj);
    if (member != 0) {
        return member < 0 ? 0 : record_below(r, child);
    }
    if (!replay_accessor_pure(node->accessor, obj)) {
        return push_impure(r, IMPURE_FETCH, child, obj);
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
    op->other = value;
    return record_below(r, child);
}

/* Numbers are read anew in each replay: every evaluation has its own. */
static int
record_numbers(Recorder *r, const PlanNode *node, PyObject *obj)
{
    const Plan *plan = r->walk->tree->plan;
    for (int k = node->number_begin; k < node->number_end; k++) {
        int slot = plan->numbers[k];
        if (!number_pure(&r->walk->tree->numbers[slot], plan->spec_of[slot])) {
            if (!push_impure(r, IMPURE_NUMBER, slot, obj)) {
                return 0;
            }
            continue;
        }
        Op *op = push_op(r, OP_NUMBER, obj);
        if (op == NULL) {
            return 0;
        }
        op->index = slot;
    }
    return 1;
}

static int
record_node(Recorder *r, int at, PyObject *obj, bool versioned)
{
    const Plan *plan = r->walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    bool dict_entry = false;
    if (PyDict_Check(obj)) { /* its version first: what is read after it can only be newer */
        for (int k = node->check_begin; k < node->check_end && !dict_entry; k++) {
            dict_entry = replay_check_of_dict(&r->walk->tree->checks[plan->checks[k]], obj);
        }
        for (int child = at + 1; child < node->end && !dict_entry; child = plan->nodes[child].end) {
            dict_entry = plan->nodes[child].accessor == ACC_DICT_ITEM;
        }
    }
    int lookups = -1, own = r->leaves.count;
    if (dict_entry) {
        uint64_t version = dict_version(obj);
        lookups = push_lookups(r, obj);
        Leaf *leaf = lookups < 0 ? NULL : array_push(&r->leaves, sizeof(Leaf));
        if (leaf == NULL) {
            return 0;
        }
        *leaf = (Leaf){obj, version, lookups, (uint16_t)r->level};
    }
    int before = entries(r);
    int status = record_checks(r, at, obj, versioned);
    if (status > 0) {
        status = record_numbers(r, node, obj);
    }
    if (status > 0 && node->slot >= 0) {
        SlotValue *value = array_push(&r->replay->slots, sizeof(SlotValue));
        if (value == NULL) {
            return 0;
        }
        *value = (SlotValue){obj, node->slot};
        r->slot_known[node->slot] = obj;
    }
    if (status > 0 && lookups >= 0) {
        status = record_items(r, at, obj, lookups);
    }
    for (int child = at + 1; status > 0 && child < node->end; child = plan->nodes[child].end) {
        Accessor accessor = plan->nodes[child].accessor;
        if (accessor == ACC_DICT_ITEM && dict_entry) {
            continue;
        }
        status = accessor == ACC_INSTANCE_DICT ? record_instance_dict(r, child, obj) : record_fetch(r, child, obj);
    }
    if (lookups >= 0 && before == entries(r)) {
        ((Leaf *)r->leaves.items)[own].level = LEAF_LEVEL;
    }
    return status;
}

#define SMALL_ROOT 6 /* nodes: as quick to walk as to replay */

/* A dict that the tree itself holds: as quick to replay as its version is read. */
static bool
is_constant_dict(const Plan *plan, int at, PyObject *value)
{
    bool simple = plan->nodes[at].accessor == ACC_CONST && PyDict_CheckExact(value);
    for (int child = at + 1; simple && child < plan->nodes[at].end; child++) {
        simple = plan->nodes[child].accessor == ACC_DICT_ITEM && plan->nodes[child].end == child + 1;
    }
    return simple;
}

static int
record_root(Recorder *r, int child)
{
    const Plan *plan = r->walk->tree->plan;
    const PlanNode *node = &plan->nodes[child];
    PyObject *value = node_fetch_root(node, r->walk);
    if (value == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    bool kept = keep(r, value);
    Py_DECREF(value);
    int taken = kept ? roots_take(r->replay, r->walk, child, value) : -1;
    if (taken != 0) {
        return taken > 0;
    }
    if (is_constant_dict(plan, child, value)) {
        return record_node(r, child, value, true);
    }
    Root *root = array_push(&r->replay->roots, sizeof(Root));
    if (root == NULL) {
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
            settled = settled && r->slot_known[tree->plan->slot_of[check->nodes[i]]] != NULL;
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
    SlotValue *slots = r->replay->slots.items;
    int kept = 0;
    for (int i = 0; i < r->replay->slots.count; i++) {
        if (needed[slots[i].slot]) {
            slots[kept++] = slots[i];
        }
    }
    r->replay->slots.count = kept;
    PyMem_Free(needed);
    return status;
}

/* Tensors hand themselves over when they are looked at; what else is collected is listed. */
static bool
record_collected(Recorder *r)
{
    const GuardTree *tree = r->walk->tree;
    int *input_of = PyMem_Calloc(tree->plan->num_slots + 1, sizeof(int)); /* per slot, + 1; 0: none or taken */
    bool ok = input_of != NULL;
    for (int k = 0; ok && k < tree->num_collect; k++) {
        int slot = tree->plan->slot_of[tree->collect[k]];
        if (input_of[slot] == 0) {
            input_of[slot] = k + 1;
        }
    }
    TensorOp *tensors = r->tensors.items;
    for (int i = 0; ok && i < r->tensors.count; i++) {
        if (tensors[i].slot >= 0 && input_of[tensors[i].slot] > 0 && r->slot_known[tensors[i].slot] == tensors[i].obj) {
            tensors[i].input = input_of[tensors[i].slot] - 1;
            input_of[tensors[i].slot] = -1 - tensors[i].input;
        }
    }
    for (int k = 0; ok && k < tree->num_collect; k++) {
        int slot = tree->plan->slot_of[tree->collect[k]];
        if (input_of[slot] == -1 - k) {
            continue;
        }
        Collected *to = array_push(&r->replay->collected, sizeof(Collected));
        ok = to != NULL;
        if (ok) {
            *to = (Collected){r->slot_known[slot], slot, k};
        }
    }
    PyMem_Free(input_of);
    return ok;
}

#define WORTH_RECORDING 4 /* nodes */

Replay *
replay_record(Walk *walk)
{
    const Plan *plan = walk->tree->plan;
    if (plan->num_nodes < WORTH_RECORDING) {
        return NULL;
    }
    Recorder r = {.walk = walk};
    r.replay = PyMem_Calloc(1, sizeof(Replay));
    uint64_t epoch = watch_epoch;
    if (r.replay != NULL) {
        r.replay->all_watched = true;
    }
    r.keep = PyList_New(0);
    r.slot_known = PyMem_Calloc(plan->num_slots + 1, sizeof(PyObject *));
    int status = r.replay != NULL && r.keep != NULL && r.slot_known != NULL;
    if (status > 0) {
        roots_begin(r.replay, walk);
    }
    for (int child = 1; status > 0 && child < plan->num_nodes; child = plan->nodes[child].end) {
        status = record_root(&r, child);
    }
    if (status > 0) {
        status = record_late(&r) > 0 && record_collected(&r) && tables_make(r.replay, &r.instances, &r.leaves) ? 1 : 0;
    }
    if (status > 0) {
        r.replay->tensors = tensor_runs_new(r.tensors.items, r.tensors.count);
        status = r.replay->tensors != NULL;
    }
    PyMem_Free(r.tensors.items);
    PyMem_Free(r.instances.items);
    PyMem_Free(r.leaves.items);
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
    r.replay->epoch = r.replay->all_watched ? epoch : 0;
    return r.replay;
}
