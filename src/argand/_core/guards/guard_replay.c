/* Replaying a recording of a guard tree (see replay.h). */
#include "replay.h"

void
replay_free(Replay *replay)
{
    if (replay != NULL) {
        Lookups *lookups = replay->lookups.items;
        for (int i = 0; i < replay->lookups.count; i++) {
            tracked_end(&lookups[i].tracked);
        }
        tables_free(replay);
        roots_free(replay);
        tensor_runs_free(replay->tensors);
        PyMem_Free(replay->types.items);
        PyMem_Free(replay->collected.items);
        PyMem_Free(replay->roots.items);
        PyMem_Free(replay->ops.items);
        PyMem_Free(replay->layouts.items);
        PyMem_Free(replay->lookups.items);
        PyMem_Free(replay->slots.items);
        PyMem_Free(replay->items.items);
        PyMem_Free(replay->noisy.items);
        PyMem_Free(replay->impure.items);
        PyMem_Free(replay->late.items);
        PyMem_Free(replay);
    }
}

static inline bool
match_pure(const Check *check, PyObject *obj, Walk *walk)
{
    if (LIKELY(check->kind == CHECK_TYPE)) {
        return (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak);
    }
    return check_match(check, obj, walk) > 0;
}

/* A dict has changed: are the values that were looked up, and what was asked of the dict itself, still the same? Settles it
 * without Python code, so only for dicts whose keys are exact strings, and by the identity of keys. */
static bool
dict_unchanged_where_it_counts(const Replay *replay, int index, PyObject *dict, Walk *walk)
{
    const Item *items = replay->items.items;
    const GuardTree *tree = walk->tree;
    const Lookups *lookups = &((const Lookups *)replay->lookups.items)[index];
    int wanted = lookups->item_end - lookups->item_begin, matched = 0, next = lookups->item_begin;
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return false;
        }
        for (int i = 0; i < wanted && matched < wanted; i++) {
            const Item *item = &items[next];
            next = next + 1 == lookups->item_end ? lookups->item_begin : next + 1;
            if (item->key != key) {
                continue;
            }
            if (item->value != value) {
                return false;
            }
            const PlanNode *node = &tree->plan->nodes[item->node];
            for (int k = node->check_begin; k < node->check_end; k++) { /* it may be another object at the same address */
                const Check *check = &tree->checks[tree->plan->checks[k]];
                if (replay_check_settled(check, value) && check_match(check, value, walk) <= 0) {
                    return false;
                }
            }
            matched++;
            break;
        }
    }
    if (matched != wanted) {
        return false;
    }
    for (int k = lookups->own_begin; k < lookups->own_end; k++) {
        const Check *check = &tree->checks[tree->plan->checks[k]];
        if (replay_check_of_dict(check, dict) && check_match(check, dict, walk) <= 0) {
            return false;
        }
    }
    return true;
}

bool
replay_dict_holds(Replay *replay, int index, PyObject *dict, Walk *walk)
{
    Tracked *tracked = &((Lookups *)replay->lookups.items)[index].tracked;
    if (tracked_unchanged(tracked, dict)) {
        return true;
    }
    Tracked now;
    tracked_begin(&now, dict);
    bool same = dict_unchanged_where_it_counts(replay, index, dict, walk);
    if (same) {
        if (now.watch != tracked->watch) {
            replay->noisy.count = 0; /* of which it says nothing */
        }
        tracked_end(tracked);
        *tracked = now;
        replay->all_watched = replay->all_watched && now.watch != NULL;
    }
    else {
        tracked_end(&now);
    }
    return same;
}

static inline bool
dict_confirmed(Replay *replay, Op *op, PyObject *dict, Walk *walk)
{
    if (LIKELY(dict_version(dict) == op->version && dict_version_counts(dict))) {
        return true;
    }
    if (!replay_dict_holds(replay, op->index, dict, walk)) {
        return false;
    }
    op->version = dict_version(dict);
    return true;
}

static inline bool
member_confirmed(const Op *op, const Layout *layout)
{
    return Py_TYPE(op->obj) == layout->type && class_version_tag(layout->type) == layout->version &&
           *(PyObject **)((char *)op->obj + layout->where) == op->other;
}

static bool
types_known(const Replay *replay)
{
    const KnownType *types = replay->types.items;
    for (int i = 0; i < replay->types.count; i++) {
        if (identity_target(types[i].check->a, types[i].check->weak) != (PyObject *)types[i].type) {
            return false;
        }
    }
    return true;
}

static bool
ops_hold(Replay *replay, int begin, int end, bool quiet, Walk *walk)
{
    Op *ops = replay->ops.items;
    const Layout *layouts = replay->layouts.items;
    for (int i = begin; i < end; i++) {
        Op *op = &ops[i];
        __builtin_prefetch(op[REPLAY_AHEAD].obj); /* reads nothing: the address may be stale */
        bool same;
        switch (op->kind) {
        case OP_DICT:
            same = quiet || dict_confirmed(replay, op, op->obj, walk);
            break;
        case OP_MEMBER:
            same = member_confirmed(op, &layouts[op->layout]);
            break;
        case OP_SAME: {
            PyObject *value = node_fetch(&walk->tree->plan->nodes[op->index], op->obj);
            same = value == op->other;
            Py_XDECREF(value); /* never the last reference: whatever gave it holds it */
            break;
        }
        case OP_CHECK:
            same = match_pure(&walk->tree->checks[op->index], op->obj, walk);
            break;
        default: { /* OP_NUMBER */
            const NumberSlot *number = &walk->tree->numbers[op->index];
            const TensorSpec *spec = walk->tree->plan->spec_of[op->index];
            same = number_pure(number, spec) && number_read(number, spec, op->obj, &walk->numbers[op->index]) > 0;
            break;
        }
        }
        if (UNLIKELY(!same)) {
            return false;
        }
    }
    return true;
}

/* quiet: no watched dict is other than recorded. */
static bool
levels_hold(Replay *replay, bool quiet, Walk *walk)
{
    const Level *levels = replay->levels.items;
    Level from = {0, 0, 0};
    for (int i = 0; i < replay->levels.count; i++) {
        const Level *to = &levels[i];
        if (!instances_hold(replay, from.runs, to->runs, quiet, walk) ||
            !(quiet || dicts_hold(replay, from.dicts, to->dicts, walk)) || !ops_hold(replay, from.ops, to->ops, quiet, walk)) {
            return false;
        }
        from = *to;
    }
    return true;
}

#define MANY_NOISY 32

static bool
push_noisy(Replay *replay, const Watch *watch, int index)
{
    Noisy *noisy = array_push(&replay->noisy, sizeof(Noisy));
    if (noisy != NULL) {
        *noisy = (Noisy){watch, index};
    }
    return noisy != NULL;
}

/* Sees to it that the noisy ones say what the recording has of this watch. */
static bool
know_noisy(Replay *replay, const Watch *watch)
{
    const Noisy *noisy = replay->noisy.items;
    for (int i = 0; i < replay->noisy.count; i++) {
        if (noisy[i].watch == watch) {
            return true;
        }
    }
    if (replay->noisy.count >= MANY_NOISY) {
        replay->noisy.count = 0;
    }
    const Lookups *lookups = replay->lookups.items;
    int before = replay->noisy.count;
    for (int i = 0; i < replay->lookups.count; i++) {
        if (lookups[i].tracked.watch == watch && !push_noisy(replay, watch, i)) {
            return false;
        }
    }
    return replay->noisy.count > before || push_noisy(replay, watch, -1);
}

/* Whether the dicts that were changed since the last replay, if they are few, are as recorded where it counts: a program that
 * sets an attribute in every call does not have all others looked at again. */
static bool
is_quiet(Replay *replay, Walk *walk)
{
    uint64_t last = replay->epoch;
    if (last == 0 || watch_epoch - last > WATCH_REMEMBERED) {
        return false;
    }
    while (++last <= watch_epoch) {
        const Watch *watch = watch_changes[last % WATCH_REMEMBERED];
        if (!know_noisy(replay, watch)) {
            return false;
        }
        for (int i = 0; i < replay->noisy.count; i++) {
            Noisy noisy = ((Noisy *)replay->noisy.items)[i];
            if (noisy.watch == watch && noisy.index >= 0 && /* it is a use of ours, so the watch is there */
                (watch->dict == NULL || !replay_dict_holds(replay, noisy.index, watch->dict, walk))) {
                return false;
            }
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
        switch (held[i].kind) {
        case IMPURE_CHECK:
            status = check_match(&walk->tree->checks[held[i].index], held[i].obj, walk);
            break;
        case IMPURE_FETCH:
            status = walk_child(walk, held[i].index, held[i].obj);
            break;
        default:
            status = walk_number(walk, held[i].index, held[i].obj);
        }
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

static void
fill_slots(const Replay *replay, Walk *walk)
{
    const SlotValue *slots = replay->slots.items;
    for (int i = 0; i < replay->slots.count; i++) {
        Py_XSETREF(walk->slots[slots[i].slot], Py_NewRef(slots[i].value)); /* nothing was there, or what a root's walk found */
    }
}

/* What the recording borrows must be held before anything runs Python code. */
static void
collect_confirmed(const Replay *replay, Walk *walk)
{
    const Collected *collected = replay->collected.items;
    for (int k = 0; walk->inputs != NULL && k < replay->collected.count; k++) {
        if (collected[k].value != NULL) {
            PyTuple_SET_ITEM(walk->inputs, collected[k].input, Py_NewRef(collected[k].value));
        }
    }
}

static void
collect_walked(const Replay *replay, Walk *walk)
{
    const Collected *collected = replay->collected.items;
    for (int k = 0; walk->inputs != NULL && k < replay->collected.count; k++) {
        if (collected[k].value == NULL) {
            PyTuple_SET_ITEM(walk->inputs, collected[k].input, Py_NewRef(walk->slots[collected[k].slot]));
        }
    }
}

#define STACK_ROOTS 16

/* First the roots that are walked anew (the inputs: likeliest to differ), then the others are fetched and held. */
static int
run_roots(Replay *replay, Walk *walk, PyObject **held)
{
    const Root *roots = replay->roots.items;
    int known = roots_hold(replay, walk);
    if (UNLIKELY(known != 1)) {
        return known;
    }
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

/* Whether there is a value for each node that the checks of several nodes look at: a recording has none of what is made
 * anew by each walk. */
static bool
late_values_known(const Replay *replay, const Walk *walk)
{
    const GuardTree *tree = walk->tree;
    const int *late = replay->late.items;
    for (int k = 0; k < replay->late.count; k++) {
        const Check *check = &tree->checks[late[k]];
        for (int i = 0; i < check->num_nodes; i++) {
            if (walk->slots[tree->plan->slot_of[check->nodes[i]]] == NULL) {
                return false;
            }
        }
    }
    return true;
}

int
replay_run(Replay *replay, Walk *walk)
{
    PyObject *on_stack[STACK_ROOTS], **held = on_stack;
    int count = replay->roots.count;
    if (UNLIKELY(count > STACK_ROOTS)) {
        held = PyMem_Malloc(count * sizeof(PyObject *));
        if (held == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (int i = 0; i < count; i++) {
        held[i] = NULL;
    }
    int status = run_roots(replay, walk, held);
    if (status == 1) {
        status = 2;
        uint64_t epoch = watch_epoch;
        bool quiet = replay->epoch == epoch || is_quiet(replay, walk);
        if (types_known(replay) && levels_hold(replay, quiet, walk) && tensor_runs_match(replay->tensors, walk->inputs)) {
            replay->epoch = replay->all_watched ? epoch : 0;
            fill_slots(replay, walk);
            collect_confirmed(replay, walk);
            status = run_impure(replay, walk);
        }
        status = status == 0 ? 2 : status; /* the walk finds out which guard failed, in its own order */
    }
    if (status == 1) {
        replay->late_known = replay->late_known || late_values_known(replay, walk);
        status = replay->late_known ? walk_late(walk, replay->late.items, replay->late.count) : 2;
    }
    if (status == 1) {
        collect_walked(replay, walk);
    }
    for (int i = 0; i < count; i++) {
        Py_XDECREF(held[i]);
    }
    if (UNLIKELY(held != on_stack)) {
        PyMem_Free(held);
    }
    return status;
}
