/* The roots of a recording that need not be walked anew: classes by their version, names by the version of their dict,
 * tensors by their properties. */
#include "replay.h"

static bool
asks_nothing_else(const PlanNode *node, int at)
{
    return node->end == at + 1 && node->slot < 0 && node->number_begin == node->number_end;
}

/* A class of which nothing but its version is asked. 1: taken; 0: not such a root; -1: memory is short. */
static int
take_class(Replay *replay, const Walk *walk, int at, PyObject *value)
{
    const Plan *plan = walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    if (node->accessor != ACC_CONST || node->check_end != node->check_begin + 1 || !PyType_Check(value)) {
        return 0;
    }
    const Check *check = &walk->tree->checks[plan->checks[node->check_begin]];
    unsigned version = class_version_tag((PyTypeObject *)value);
    if (check->kind != CHECK_TYPE_VERSION || identity_target(check->a, check->weak) != value || version == 0 ||
        version != check->version_tag) {
        return 0;
    }
    KnownClass *known = array_push(&replay->classes, sizeof(KnownClass));
    if (known == NULL) {
        return -1;
    }
    *known = (KnownClass){check, (PyTypeObject *)value, version, at};
    return 1;
}

/* What is asked of the value of a name cannot change while it is the same object. */
static bool
name_settled(Walk *walk, int at, PyObject *value)
{
    const Plan *plan = walk->tree->plan;
    for (int k = plan->nodes[at].check_begin; k < plan->nodes[at].check_end; k++) {
        const Check *check = &walk->tree->checks[plan->checks[k]];
        if (!replay_check_settled(check, value) || check_match(check, value, walk) <= 0) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static PyObject *
dict_of_names(const Walk *walk, int kind)
{
    return kind == 0 ? walk->view->globals : walk->view->builtins;
}

static int
take_name(Replay *replay, Walk *walk, int at, PyObject *value)
{
    Accessor accessor = walk->tree->plan->nodes[at].accessor;
    if ((accessor != ACC_GLOBAL && accessor != ACC_BUILTIN) || !name_settled(walk, at, value)) {
        return 0;
    }
    KnownNames *known = &replay->names[accessor == ACC_BUILTIN];
    if (known->dict == NULL) {
        return 0;
    }
    int *node = array_push(&known->nodes, sizeof(int));
    if (node != NULL) {
        *node = at;
    }
    return node != NULL ? 1 : -1;
}

/* Likewise of a dict that the tree itself holds, and of its items. */
static bool
dict_settled(Walk *walk, int at, PyObject *dict)
{
    const Plan *plan = walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    for (int k = node->check_begin; k < node->check_end; k++) {
        const Check *check = &walk->tree->checks[plan->checks[k]];
        if ((!replay_check_of_dict(check, dict) && !replay_check_settled(check, dict)) || check_match(check, dict, walk) <= 0) {
            PyErr_Clear();
            return false;
        }
    }
    for (int child = at + 1; child < node->end; child++) {
        const PlanNode *item = &plan->nodes[child];
        if (item->accessor != ACC_DICT_ITEM || !PyUnicode_CheckExact(item->arg) || !asks_nothing_else(item, child)) {
            return false;
        }
        PyObject *value = node_fetch(item, dict);
        bool settled = value != NULL && name_settled(walk, child, value);
        Py_XDECREF(value);
        if (!settled) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static int
take_dict(Replay *replay, Walk *walk, int at, PyObject *value)
{
    const PlanNode *node = &walk->tree->plan->nodes[at];
    if (node->accessor != ACC_CONST || node->slot >= 0 || node->number_begin != node->number_end || !PyDict_CheckExact(value) ||
        !dict_version_counts(value)) {
        return 0;
    }
    uint64_t version = dict_version(value);
    if (!dict_settled(walk, at, value)) {
        return 0;
    }
    KnownDict *known = array_push(&replay->dicts, sizeof(KnownDict));
    if (known == NULL) {
        return -1;
    }
    *known = (KnownDict){value, version, at};
    return 1;
}

static int
take_input(Replay *replay, const Walk *walk, int at)
{
    const Plan *plan = walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    if (node->accessor != ACC_LOCAL || node->check_end != node->check_begin + 1 || node->end != at + 1 ||
        node->number_begin != node->number_end) {
        return 0;
    }
    const Check *check = &walk->tree->checks[plan->checks[node->check_begin]];
    if (check->kind != CHECK_TENSOR) {
        return 0;
    }
    KnownTensor *known = array_push(&replay->inputs, sizeof(KnownTensor));
    if (known == NULL) {
        return -1;
    }
    *known = (KnownTensor){check, at};
    return 1;
}

void
roots_begin(Replay *replay, const Walk *walk)
{
    for (int kind = 0; kind < 2; kind++) {
        PyObject *dict = dict_of_names(walk, kind);
        if (dict != NULL && PyDict_CheckExact(dict) && dict_version_counts(dict)) {
            replay->names[kind].dict = dict;
            replay->names[kind].version = dict_version(dict);
        }
    }
}

int
roots_take(Replay *replay, Walk *walk, int at, PyObject *value)
{
    int status = take_input(replay, walk, at);
    status = status != 0 ? status : take_dict(replay, walk, at, value);
    if (status != 0 || !asks_nothing_else(&walk->tree->plan->nodes[at], at)) {
        return status;
    }
    status = take_class(replay, walk, at, value);
    return status != 0 ? status : take_name(replay, walk, at, value);
}

void
roots_free(Replay *replay)
{
    PyMem_Free(replay->classes.items);
    PyMem_Free(replay->dicts.items);
    PyMem_Free(replay->inputs.items);
    PyMem_Free(replay->names[0].nodes.items);
    PyMem_Free(replay->names[1].nodes.items);
}

static int
classes_hold(Replay *replay, Walk *walk)
{
    KnownClass *classes = replay->classes.items;
    for (int i = 0; i < replay->classes.count; i++) {
        KnownClass *known = &classes[i];
        PyObject *cls = identity_target(known->check->a, known->check->weak);
        if (LIKELY(cls == (PyObject *)known->type && class_version_tag(known->type) == known->version)) {
            continue;
        }
        int status = walk_child(walk, known->node, NULL); /* changed, but perhaps not where it counts */
        if (status <= 0) {
            return status;
        }
        if (identity_target(known->check->a, known->check->weak) != (PyObject *)known->type || known->check->version_tag == 0) {
            return 2;
        }
        known->version = known->check->version_tag; /* what has just been found to hold */
    }
    return 1;
}

static int
known_dicts_hold(Replay *replay, Walk *walk)
{
    KnownDict *dicts = replay->dicts.items;
    for (int i = 0; i < replay->dicts.count; i++) {
        KnownDict *known = &dicts[i];
        if (LIKELY(dict_version(known->dict) == known->version && dict_version_counts(known->dict))) {
            continue;
        }
        uint64_t version = dict_version(known->dict);
        int status = walk_child(walk, known->node, NULL);
        if (status <= 0) {
            return status;
        }
        if (!dict_version_counts(known->dict) || !dict_settled(walk, known->node, known->dict)) {
            return 2;
        }
        known->version = version;
    }
    return 1;
}

static int
names_hold(KnownNames *known, PyObject *dict, Walk *walk)
{
    if (known->nodes.count == 0 ||
        LIKELY(dict == known->dict && dict_version(dict) == known->version && dict_version_counts(dict))) {
        return 1;
    }
    if (dict == NULL || !PyDict_CheckExact(dict) || !dict_version_counts(dict)) {
        return 2;
    }
    uint64_t version = dict_version(dict);
    const int *nodes = known->nodes.items;
    for (int i = 0; i < known->nodes.count; i++) {
        int status = walk_child(walk, nodes[i], NULL);
        if (status <= 0) {
            return status;
        }
        PyObject *value = node_fetch_root(&walk->tree->plan->nodes[nodes[i]], walk);
        bool settled = value != NULL && name_settled(walk, nodes[i], value);
        Py_XDECREF(value);
        if (!settled) {
            PyErr_Clear();
            return 2;
        }
    }
    known->dict = dict;
    known->version = version;
    return 1;
}

/* Arguments of different kinds are what calls differ by most, and they are asked first. */
static int
inputs_hold(Replay *replay, Walk *walk)
{
    const KnownTensor *inputs = replay->inputs.items;
    for (int i = 0; i < replay->inputs.count; i++) {
        const Check *check = inputs[i].check;
        const PlanNode *node = &walk->tree->plan->nodes[inputs[i].node];
        PyObject *obj = LIKELY(node->index < walk->view->nargs) ? walk->view->args[node->index] : NULL;
        if (LIKELY(obj != NULL && (PyObject *)Py_TYPE(obj) == identity_target(check->a, check->weak) &&
                   tensor_spec_match_pure(check->tensor, obj))) {
            if (UNLIKELY(node->slot >= 0)) {
                Py_XSETREF(walk->slots[node->slot], Py_NewRef(obj));
            }
            continue;
        }
        int status = walk_child(walk, inputs[i].node, NULL); /* torch may have to be asked */
        if (status <= 0) {
            return status;
        }
    }
    return 1;
}

int
roots_hold(Replay *replay, Walk *walk)
{
    int status = inputs_hold(replay, walk);
    status = status == 1 ? classes_hold(replay, walk) : status;
    if (status == 1) {
        status = known_dicts_hold(replay, walk);
    }
    for (int kind = 0; status == 1 && kind < 2; kind++) {
        status = names_hold(&replay->names[kind], dict_of_names(walk, kind), walk);
    }
    return status;
}
