/* What there are thousands of in a recording: instances, and dicts, most of them empty (hooks, buffers, submodules). */
#include "replay.h"

#define BLOCK 8  /* dicts whose versions are compared before anything is decided */
#define AHEAD 32 /* dicts between asking for memory and reading it */

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int
by_layout(const void *a, const void *b)
{
    const Instance *left = a, *right = b;
    if (left->level != right->level) {
        return left->level - right->level;
    }
    if (left->layout != right->layout) {
        return left->layout - right->layout;
    }
    return left->obj < right->obj ? -1 : left->obj > right->obj;
}

static bool
make_instances(Replay *replay, Array *instances)
{
    Instance *items = instances->items;
    if (instances->count > 1) {
        qsort(items, instances->count, sizeof(Instance), by_layout);
    }
    const Layout *layouts = replay->layouts.items;
    Level *levels = replay->levels.items;
    for (int begin = 0, end; begin < instances->count; begin = end) {
        for (end = begin; end < instances->count && items[end].level == items[begin].level &&
                          items[end].layout == items[begin].layout;
             end++) {
        }
        Run *run = array_push(&replay->runs, sizeof(Run));
        if (run == NULL) {
            return false;
        }
        *run = (Run){&layouts[items[begin].layout], end};
        levels[items[begin].level].runs = replay->runs.count;
    }
    replay->instances = *instances;
    *instances = (Array){NULL, 0, 0};
    return true;
}

static int
by_address(const void *a, const void *b)
{
    const Leaf *left = a, *right = b;
    if (left->level != right->level) {
        return left->level < right->level ? -1 : 1;
    }
    return left->dict < right->dict ? -1 : left->dict > right->dict;
}

static inline bool
fits(const Leaves *to, const Leaf *leaf)
{
    uint64_t distance = (uintptr_t)leaf->dict - to->base;
    return distance % LEAF_UNIT == 0 && distance / LEAF_UNIT <= UINT32_MAX && leaf->version - to->oldest <= UINT32_MAX;
}

/* Takes over what it can and leaves the rest. */
static bool
make_dicts(Replay *replay, Array *leaves)
{
    Leaves *to = &replay->leaves;
    Leaf *from = leaves->items;
    int count = leaves->count, kept = 0;
    if (count == 0) {
        return true;
    }
    qsort(from, count, sizeof(Leaf), by_address); /* within a level any order will do: memory's own is the fastest */
    to->base = (uintptr_t)from[count / 2].dict - (uintptr_t)UINT32_MAX / 2 * LEAF_UNIT; /* most lie around it */
    to->oldest = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        to->oldest = from[i].version < to->oldest ? from[i].version : to->oldest;
    }
    to->dicts = PyMem_Calloc(count + AHEAD + BLOCK, sizeof(LeafDict));
    to->rest = PyMem_Calloc(count, sizeof(Leaf));
    if (to->dicts == NULL || to->rest == NULL) {
        return false;
    }
    Level *levels = replay->levels.items;
    for (int i = 0; i < count; i++) {
        if (!fits(to, &from[i])) {
            from[kept++] = from[i];
            continue;
        }
        to->rest[to->count] = from[i];
        to->dicts[to->count++] = (LeafDict){
            (uint32_t)(((uintptr_t)from[i].dict - to->base) / LEAF_UNIT),
            (uint32_t)(from[i].version - to->oldest),
        };
        levels[from[i].level].dicts = to->count;
    }
    leaves->count = kept;
    return true;
}

/* By level, within one in the order of the tree, with room to look ahead of the last one. */
static bool
order_ops(Replay *replay)
{
    const Op *from = replay->ops.items;
    int count = replay->ops.count, next = 0;
    Op *to = PyMem_Calloc(count + REPLAY_AHEAD, sizeof(Op));
    if (to == NULL) {
        return false;
    }
    Level *levels = replay->levels.items;
    for (int level = 0; level < replay->levels.count; level++) {
        for (int i = 0; next < count && i < count; i++) {
            if (from[i].level == level) {
                to[next++] = from[i];
            }
        }
        levels[level].ops = next;
        if (level > 0) {
            levels[level].runs = Py_MAX(levels[level].runs, levels[level - 1].runs);
            levels[level].dicts = Py_MAX(levels[level].dicts, levels[level - 1].dicts);
        }
    }
    PyMem_Free(replay->ops.items);
    replay->ops.items = to;
    return true;
}

/* Leaves come last. Returns false when memory is short. */
static bool
make_levels(Replay *replay, const Array *instances, Array *leaves)
{
    const Instance *each = instances->items;
    const Op *ops = replay->ops.items;
    Leaf *dicts = leaves->items;
    int deepest = 0;
    for (int i = 0; i < instances->count; i++) {
        deepest = Py_MAX(deepest, each[i].level);
    }
    for (int i = 0; i < replay->ops.count; i++) {
        deepest = Py_MAX(deepest, ops[i].level);
    }
    for (int i = 0; i < leaves->count; i++) {
        deepest = dicts[i].level == LEAF_LEVEL ? deepest : Py_MAX(deepest, dicts[i].level);
    }
    for (int i = 0; i < leaves->count; i++) {
        dicts[i].level = dicts[i].level == LEAF_LEVEL ? (uint16_t)(deepest + 1) : dicts[i].level;
    }
    bool ok = true;
    for (int i = 0; ok && i <= deepest + 1; i++) {
        ok = array_push(&replay->levels, sizeof(Level)) != NULL;
    }
    return ok;
}

/* Takes the instances over. A dict that has no place in the table is an entry of its own. */
bool
tables_make(Replay *replay, Array *instances, Array *dicts)
{
    bool ok = make_levels(replay, instances, dicts) && make_instances(replay, instances) && make_dicts(replay, dicts);
    const Leaf *left = dicts->items;
    for (int i = 0; ok && i < dicts->count; i++) {
        Op *op = array_push(&replay->ops, sizeof(Op));
        ok = op != NULL;
        if (ok) {
            *op = (Op){.kind = OP_DICT, .obj = left[i].dict, .version = left[i].version, .index = left[i].index, .level = left[i].level};
        }
    }
    ok = ok && order_ops(replay);
    if (replay->ops.count == 0 && replay->runs.count == 0 && replay->leaves.count == 0) {
        replay->levels.count = 0;
    }
    return ok;
}

void
tables_free(Replay *replay)
{
    PyMem_Free(replay->instances.items);
    PyMem_Free(replay->runs.items);
    PyMem_Free(replay->levels.items);
    PyMem_Free(replay->leaves.dicts);
    PyMem_Free(replay->leaves.rest);
}

/* ---- instances --------------------------------------------------------------------------------------------------- */

static inline PyObject *
dict_in(const Layout *layout, PyObject *obj)
{
    return *(PyObject **)((char *)obj + layout->where);
}

/* What is not as recorded. */
static bool
instance_holds(Replay *replay, const Layout *layout, Instance *item, Walk *walk)
{
    if (Py_TYPE(item->obj) != layout->type) {
        return false;
    }
    PyObject *dict = dict_in(layout, item->obj);
    if (dict == NULL || ((uintptr_t)dict & 7) != 0 || !replay_dict_holds(replay, item->index, dict, walk)) {
        return false; /* 3.12 marks inline values in the same place */
    }
    item->dict = dict;
    item->version = dict_version(dict);
    return true;
}

/* quiet: each __dict__ is as recorded if it is the same. The addresses are all in the table, so the processor reads ahead of
 * branches that it expects, and waits for the memory of many instances at once. */
bool
instances_hold(Replay *replay, int begin_run, int end_run, bool quiet, Walk *walk)
{
    const Run *runs = replay->runs.items;
    Instance *item = (Instance *)replay->instances.items + (begin_run == 0 ? 0 : runs[begin_run - 1].end);
    for (const Run *run = &runs[begin_run]; run < &runs[end_run]; run++) {
        const Layout layout = *run->layout;
        for (const Instance *end = (Instance *)replay->instances.items + run->end; item < end; item++) {
            if (LIKELY(Py_TYPE(item->obj) == layout.type && dict_in(&layout, item->obj) == item->dict &&
                       (quiet || (dict_version(item->dict) == item->version && dict_version_counts(item->dict))))) {
                continue;
            }
            if (!instance_holds(replay, &layout, item, walk)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- dicts ------------------------------------------------------------------------------------------------------- */

static inline PyObject *
dict_of(const Leaves *leaves, const LeafDict *leaf)
{
    return (PyObject *)(leaves->base + (uintptr_t)leaf->at * LEAF_UNIT);
}

/* 0 when the dict has the version that it had. */
static inline uint64_t
changed(const Leaves *leaves, const LeafDict *leaf)
{
    PyObject *dict = dict_of(leaves, leaf);
    return (leaves->oldest + leaf->version - dict_version(dict)) | !dict_version_counts(dict);
}

static bool
look_closer(Replay *replay, int i, Walk *walk)
{
    Leaves *leaves = &replay->leaves;
    Leaf *rest = &leaves->rest[i];
    if (changed(leaves, &leaves->dicts[i]) == 0) {
        return true;
    }
    if (!replay_dict_holds(replay, rest->index, rest->dict, walk)) {
        return false;
    }
    uint64_t newer = dict_version(rest->dict) - leaves->oldest;
    leaves->dicts[i].version = (uint32_t)newer;
    return newer <= UINT32_MAX; /* otherwise everything is recorded anew, from a later version on */
}

bool
dicts_hold(Replay *replay, int begin, int end, Walk *walk)
{
    const Leaves *leaves = &replay->leaves;
    int i = begin;
    for (; i + BLOCK <= end; i += BLOCK) {
        const LeafDict *block = &leaves->dicts[i];
        uint64_t any = 0;
#pragma GCC unroll 8
        for (int k = 0; k < BLOCK; k++) {
            __builtin_prefetch(dict_of(leaves, &block[k + AHEAD]));
            any |= changed(leaves, &block[k]);
        }
        for (int k = 0; UNLIKELY(any != 0) && k < BLOCK; k++) {
            if (!look_closer(replay, i + k, walk)) {
                return false;
            }
        }
    }
    for (; i < end; i++) {
        if (!look_closer(replay, i, walk)) {
            return false;
        }
    }
    return true;
}
