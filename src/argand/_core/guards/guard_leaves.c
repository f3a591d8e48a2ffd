/* The dicts of a recording below which there is nothing more to look at, most of them empty: hooks, buffers, submodules. */
#include "replay.h"

#define BLOCK 8  /* dicts whose versions are compared before anything is decided */
#define AHEAD 32 /* dicts between asking for memory and reading it */

static int
by_address(const void *a, const void *b)
{
    const Leaf *left = a, *right = b;
    return left->dict < right->dict ? -1 : left->dict > right->dict;
}

static inline bool
fits(const Leaves *to, const Leaf *leaf)
{
    uint64_t distance = (uint64_t)((char *)leaf->dict - to->base);
    return distance % LEAF_UNIT == 0 && distance / LEAF_UNIT <= UINT32_MAX && leaf->version - to->oldest <= UINT32_MAX;
}

bool
leaves_make(Replay *replay, Array *leaves)
{
    Leaves *to = &replay->leaves;
    Leaf *from = leaves->items;
    int count = leaves->count, kept = 0;
    if (count == 0) {
        return true;
    }
    qsort(from, count, sizeof(Leaf), by_address); /* any order will do: memory's own is the fastest */
    to->base = (char *)from[0].dict;
    to->oldest = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        to->oldest = from[i].version < to->oldest ? from[i].version : to->oldest;
    }
    to->dicts = PyMem_Calloc(count + AHEAD + BLOCK, sizeof(LeafDict));
    to->rest = PyMem_Calloc(count, sizeof(Leaf));
    if (to->dicts == NULL || to->rest == NULL) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!fits(to, &from[i])) {
            from[kept++] = from[i];
            continue;
        }
        to->rest[to->count] = from[i];
        to->dicts[to->count++] = (LeafDict){
            (uint32_t)(((char *)from[i].dict - to->base) / LEAF_UNIT),
            (uint32_t)(from[i].version - to->oldest),
        };
    }
    leaves->count = kept;
    return true;
}

void
leaves_free(Leaves *leaves)
{
    PyMem_Free(leaves->dicts);
    PyMem_Free(leaves->rest);
}

static inline PyObject *
dict_of(const Leaves *leaves, const LeafDict *leaf)
{
    return (PyObject *)(leaves->base + (size_t)leaf->at * LEAF_UNIT);
}

/* 0 when the dict has the version that it had. */
static inline uint64_t
changed(const Leaves *leaves, const LeafDict *leaf)
{
    PyObject *dict = dict_of(leaves, leaf);
    return (dict_version(dict) - leaves->oldest - leaf->version) | !dict_version_counts(dict);
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
leaves_hold(Replay *replay, Walk *walk)
{
    const Leaves *leaves = &replay->leaves;
    int i = 0;
    for (; i + BLOCK <= leaves->count; i += BLOCK) {
        const LeafDict *block = &leaves->dicts[i];
        uint64_t any = 0;
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
    for (; i < leaves->count; i++) {
        if (!look_closer(replay, i, walk)) {
            return false;
        }
    }
    return true;
}
