/* Evaluating a guard tree: by walking it, or by replaying what the last walk found. */
#include "guards.h"

/* An exception of user code is a failed guard; what is not an Exception (KeyboardInterrupt, SystemExit) goes through.
 * Returns 0 (cleared, detail set when explaining) or -1. */
static int
absorb_exception(Walk *walk)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    if (!walk->explain) {
        PyErr_Clear();
        return 0;
    }
    PyObject *exc = take_exception();
    PyObject *text = PyObject_Str(exc);
    if (text == NULL) {
        PyErr_Clear();
        text = PyUnicode_FromString("?");
    }
    if (text != NULL) {
        Py_XSETREF(walk->detail, PyUnicode_FromFormat("%s: %.200U", Py_TYPE(exc)->tp_name, text));
    }
    Py_XDECREF(text);
    Py_DECREF(exc);
    PyErr_Clear();
    return 0;
}

/* What failed, in words (taken over, NULL with an exception set), is the walk's answer. Returns 0 or -1. */
static int
set_detail(Walk *walk, PyObject *detail)
{
    walk->detail = detail;
    return detail == NULL ? absorb_exception(walk) : 0;
}

/* Returns 0 or -1; on 0 the failure is recorded. */
static int
fail_check(Walk *walk, int index, PyObject *obj, int status)
{
    walk->failed = index;
    if (status < 0) {
        return absorb_exception(walk);
    }
    return walk->explain ? set_detail(walk, check_detail(&walk->tree->checks[index], obj, walk)) : 0;
}

static int
fail_fetch(Walk *walk, const PlanNode *node, PyObject *parent)
{
    walk->failed = node->first_check;
    if (PyErr_Occurred()) {
        return absorb_exception(walk);
    }
    return walk->explain ? set_detail(walk, node_missing_detail(node, parent)) : 0;
}

int
walk_number(Walk *walk, int slot, PyObject *obj)
{
    const Plan *plan = walk->tree->plan;
    const NumberSlot *number = &walk->tree->numbers[slot];
    int status = number_read(number, plan->spec_of[slot], obj, &walk->numbers[slot]);
    if (LIKELY(status > 0)) {
        return 1;
    }
    walk->failed = plan->user_of[slot];
    if (status < 0) {
        return absorb_exception(walk);
    }
    return walk->explain ? set_detail(walk, number_missing_detail(number, obj)) : 0;
}

int
walk_node(Walk *walk, int at, PyObject *obj)
{
    const Plan *plan = walk->tree->plan;
    const PlanNode *node = &plan->nodes[at];
    for (int k = node->check_begin; k < node->check_end; k++) {
        int index = plan->checks[k];
        int status = check_match(&walk->tree->checks[index], obj, walk);
        if (UNLIKELY(status <= 0)) {
            return fail_check(walk, index, obj, status);
        }
    }
    for (int k = node->number_begin; k < node->number_end; k++) {
        int status = walk_number(walk, plan->numbers[k], obj);
        if (UNLIKELY(status <= 0)) {
            return status;
        }
    }
    if (UNLIKELY(node->slot >= 0)) {
        Py_XSETREF(walk->slots[node->slot], Py_NewRef(obj));
    }
    for (int child = at + 1; child < node->end; child = plan->nodes[child].end) {
        int status = walk_child(walk, child, obj);
        if (UNLIKELY(status <= 0)) {
            return status;
        }
    }
    return 1;
}

int
walk_child(Walk *walk, int child, PyObject *parent)
{
    const PlanNode *node = &walk->tree->plan->nodes[child];
    PyObject *value = parent == NULL ? node_fetch_root(node, walk) : node_fetch(node, parent);
    if (UNLIKELY(value == NULL)) {
        return fail_fetch(walk, node, parent);
    }
    int status = walk_node(walk, child, value);
    Py_DECREF(value);
    return status;
}

int
walk_late(Walk *walk, const int *late, int count)
{
    for (int k = 0; k < count; k++) {
        int status = check_match(&walk->tree->checks[late[k]], NULL, walk);
        if (UNLIKELY(status <= 0)) {
            return fail_check(walk, late[k], NULL, status);
        }
    }
    return 1;
}

/* Puts what was collected into the tuple. Runs no Python code. */
static void
fill_inputs(Walk *walk)
{
    const GuardTree *tree = walk->tree;
    for (int k = 0; walk->inputs != NULL && k < tree->num_collect; k++) {
        PyTuple_SET_ITEM(walk->inputs, k, Py_NewRef(walk->slots[tree->plan->slot_of[tree->collect[k]]]));
    }
}

static int
walk_all(Walk *walk)
{
    const Plan *plan = walk->tree->plan;
    for (int child = 1; child < plan->num_nodes; child = plan->nodes[child].end) {
        int status = walk_child(walk, child, NULL);
        if (UNLIKELY(status <= 0)) {
            return status;
        }
    }
    int status = walk_late(walk, plan->late, plan->num_late);
    if (status > 0) {
        fill_inputs(walk);
    }
    return status;
}

/* So many recordings that could not tell are replaced at once. After more, walks pass by first: 64, then twice as many each
 * time, so that what was useless for a while (another compiler at work on the same modules, say) is not given up for good. */
#define MAX_FAILED_REPLAYS 16
#define LONGEST_PAUSE 10

static int
pause_after(int replays_failed)
{
    int further = replays_failed - MAX_FAILED_REPLAYS;
    return further < 0 ? 0 : 64 << (further < LONGEST_PAUSE ? further : LONGEST_PAUSE);
}

/* After a walk that held: records anew, unless recordings have been useless lately. Only while no other evaluation of this
 * tree, further up the stack or in another thread, may be using the recording. Returns 1 or -1. */
static int
record_success(Walk *walk, bool replay_failed)
{
    GuardTree *tree = walk->tree;
    if (tree->in_use != 1) {
        return 1;
    }
    if (replay_failed) {
        replay_free(tree->replay);
        tree->replay = NULL;
        int pause = pause_after(++tree->replays_failed);
        tree->successes = pause > 0 ? -pause : tree->successes;
    }
    if (tree->replay == NULL && ++tree->successes >= 2) {
        Replay *replay = replay_record(walk);
        if (replay == NULL && PyErr_Occurred()) {
            return -1;
        }
        tree->replay = replay; /* still NULL: nobody else records while we are in here */
    }
    return 1;
}

/* Answers from the last recording where there is one, otherwise walks. */
static int
walk_or_replay(Walk *walk)
{
    GuardTree *tree = walk->tree;
    if (walk->explain) {
        return walk_all(walk);
    }
    bool replay_failed = false;
    if (tree->replay != NULL) {
        int status = replay_run(tree->replay, walk);
        if (LIKELY(status != 2)) {
            if (UNLIKELY(tree->replays_failed > 0) && ++tree->replays_held % 4 == 0) {
                tree->replays_failed--;
            }
            return status;
        }
        replay_failed = true;
        for (int i = 0; i < tree->plan->num_slots; i++) {
            Py_CLEAR(walk->slots[i]);
        }
        for (int k = 0; walk->inputs != NULL && k < tree->num_collect; k++) {
            PyObject *item = PyTuple_GET_ITEM(walk->inputs, k);
            PyTuple_SET_ITEM(walk->inputs, k, NULL);
            Py_XDECREF(item);
        }
    }
    int status = walk_all(walk);
    return status > 0 ? record_success(walk, replay_failed) : status;
}

#define STACK_SLOTS 32
#define STACK_NUMBERS 32

#define MOST_MEASURED 8
static int last_size_class;

/* How large a call is whose guards held: the different sizes and whole numbers that these compare, in bits. */
static int
measure(const Walk *walk)
{
    const Plan *plan = walk->tree->plan;
    int bits = 0;
    for (int i = 0; i < plan->num_numbers && i < MOST_MEASURED; i++) {
        SlotKind kind = walk->tree->numbers[plan->numbers[i]].kind;
        int64_t value = walk->numbers[plan->numbers[i]].i;
        bool counts = (kind == SLOT_SIZE || kind == SLOT_INT) && value > 0;
        for (int k = 0; k < i && counts; k++) {
            counts = walk->numbers[plan->numbers[k]].i != value;
        }
        bits += counts ? 64 - __builtin_clzll((unsigned long long)value) : 0;
    }
    return bits < NUM_SIZE_CLASSES ? bits : NUM_SIZE_CLASSES - 1;
}

int
guard_size_class(void)
{
    return last_size_class;
}

/* walk_or_replay with room for the numbers of this evaluation. */
static int
walk_with_numbers(Walk *walk)
{
    int count = walk->tree->num_numbers;
    if (LIKELY(count == 0)) {
        walk->numbers = NULL;
        last_size_class = 0;
        return walk_or_replay(walk);
    }
    Number on_stack[STACK_NUMBERS];
    walk->numbers = on_stack;
    if (UNLIKELY(count > STACK_NUMBERS)) {
        walk->numbers = PyMem_Malloc(count * sizeof(Number));
        if (walk->numbers == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    int status = walk_or_replay(walk);
    last_size_class = status > 0 ? measure(walk) : last_size_class;
    if (UNLIKELY(walk->numbers != on_stack)) {
        PyMem_Free(walk->numbers);
    }
    return status;
}

static int
walk_tree(GuardTree *tree, const FrameView *view, Walk *walk)
{
    if (UNLIKELY(tree->plan == NULL)) {
        if (tree->cleared) {
            return 0;
        }
        if (make_plan(tree) < 0) {
            return -1;
        }
    }
    int num_slots = tree->plan->num_slots;
    PyObject *on_stack[STACK_SLOTS];
    PyObject **slots = on_stack;
    if (UNLIKELY(num_slots > STACK_SLOTS)) {
        slots = PyMem_Malloc(num_slots * sizeof(PyObject *));
        if (slots == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (int i = 0; i < num_slots; i++) {
        slots[i] = NULL;
    }
    walk->tree = tree;
    walk->view = view;
    walk->slots = slots;
    tree->in_use++;
    int status = walk_with_numbers(walk);
    tree->in_use--;
    for (int i = 0; i < num_slots; i++) {
        Py_XDECREF(slots[i]);
    }
    if (UNLIKELY(slots != on_stack)) {
        PyMem_Free(slots);
    }
    return status;
}

int
guard_tree_match(PyObject *obj, const FrameView *view, PyObject **inputs)
{
    GuardTree *tree = (GuardTree *)obj;
    Walk walk = {.explain = false};
    if (inputs != NULL && tree->num_collect > 0) { /* first: allocating may start the garbage collector */
        walk.inputs = PyTuple_New(tree->num_collect);
        if (walk.inputs == NULL) {
            return -1;
        }
    }
    int status = walk_tree(tree, view, &walk);
    if (walk.inputs != NULL && status > 0) {
        *inputs = walk.inputs;
    }
    else {
        Py_XDECREF(walk.inputs);
    }
    return status;
}

int
guard_tree_collect(PyObject *obj, const FrameView *view, PyObject **inputs)
{
    GuardTree *tree = (GuardTree *)obj;
    *inputs = NULL;
    last_size_class = 0; /* nothing is measured of the call that was captured */
    if (!Py_IS_TYPE(obj, &GuardTree_Type) || tree->num_collect == 0) {
        return 1;
    }
    PyObject *tuple = PyTuple_New(tree->num_collect);
    PyObject **values = PyMem_Calloc(tree->num_nodes, sizeof(PyObject *));
    char *wanted = PyMem_Calloc(tree->num_nodes, 1);
    bool ok = tuple != NULL && values != NULL && wanted != NULL;
    for (int k = 0; ok && k < tree->num_collect; k++) {
        for (int node = tree->collect[k]; node > 0; node = tree->nodes[node].parent) {
            wanted[node] = 1;
        }
    }
    Walk walk = {.tree = tree, .view = view};
    tree->in_use++;
    for (int i = 1; ok && i < tree->num_nodes; i++) { /* parents come first */
        const Node *from = &tree->nodes[i];
        if (wanted[i]) {
            PlanNode node = {.accessor = from->accessor, .index = from->index, .hash = from->hash, .arg = from->arg};
            values[i] = from->parent == 0 ? node_fetch_root(&node, &walk) : node_fetch(&node, values[from->parent]);
            ok = values[i] != NULL;
        }
    }
    for (int k = 0; ok && k < tree->num_collect; k++) {
        PyTuple_SET_ITEM(tuple, k, Py_NewRef(values[tree->collect[k]]));
    }
    for (int i = 0; values != NULL && i < tree->num_nodes; i++) {
        Py_XDECREF(values[i]);
    }
    tree->in_use--;
    PyMem_Free(values);
    PyMem_Free(wanted);
    if (!ok) {
        Py_XDECREF(tuple);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "an input of the compiled graph is gone since its guards were made");
        }
        return -1;
    }
    *inputs = tuple;
    return 1;
}

PyObject *
guard_tree_explain(PyObject *obj, const FrameView *view)
{
    GuardTree *tree = (GuardTree *)obj;
    Walk walk = {.explain = true};
    int status = walk_tree(tree, view, &walk);
    PyObject *result = NULL;
    if (status > 0) {
        result = Py_NewRef(Py_True);
    }
    else if (status == 0 && tree->cleared) {
        result = Py_BuildValue("(iss)", -1, "<cleared>", "the guards were garbage collected");
    }
    else if (status == 0) {
        result = Py_BuildValue("(iOO)", walk.failed, tree->checks[walk.failed].label,
                               walk.detail == NULL ? Py_None : walk.detail);
    }
    Py_XDECREF(walk.detail);
    return result;
}

bool
guard_tree_dead(PyObject *obj)
{
    GuardTree *tree = (GuardTree *)obj;
    for (int i = 0; i < tree->num_checks; i++) {
        if (check_dead(&tree->checks[i])) {
            return true;
        }
    }
    return false;
}
