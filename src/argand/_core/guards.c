/* Guard trees: building them, planning the order of evaluation, walking them. */
#include "guards.h"

/* ---- planning -------------------------------------------------------------------------------------------------- */

static void
plan_free(Plan *plan)
{
    if (plan != NULL) {
        PyMem_Free(plan->nodes);
        PyMem_Free(plan->checks);
        PyMem_Free(plan->late);
        PyMem_Free(plan->slot_of);
        PyMem_Free(plan);
    }
}

typedef struct {
    GuardTree *tree;
    Plan *plan;
    int *first_check; /* per node: smallest guard index in or about its subtree, INT_MAX when none */
    long *cost;       /* per node: of its subtree */
    int *child_begin; /* per node, into children */
    int *children;    /* grouped by parent, cheapest subtree first */
} Planner;

static bool
check_is_late(const Check *check)
{
    return is_relational(check->kind) || check->kind == CHECK_GLOBAL_STATE;
}

static void
plan_measure(Planner *p)
{
    GuardTree *tree = p->tree;
    for (int i = 0; i < tree->num_nodes; i++) {
        p->first_check[i] = INT_MAX;
        p->cost[i] = accessor_table[tree->nodes[i].accessor].cost;
        p->plan->slot_of[i] = -1;
    }
    for (int c = tree->num_checks - 1; c >= 0; c--) {
        Check *check = &tree->checks[c];
        if (!check_is_late(check)) {
            p->first_check[check->node] = c;
            p->cost[check->node] += kind_table[check->kind].cost;
        }
        for (int k = 0; k < check->num_nodes; k++) {
            int node = check->nodes[k];
            if (p->plan->slot_of[node] < 0) {
                p->plan->slot_of[node] = p->plan->num_slots++;
            }
            if (c < p->first_check[node]) {
                p->first_check[node] = c;
            }
        }
    }
    for (int i = tree->num_nodes - 1; i > 0; i--) { /* children come after their parents */
        int parent = tree->nodes[i].parent;
        p->cost[parent] += p->cost[i];
        if (p->first_check[i] < p->first_check[parent]) {
            p->first_check[parent] = p->first_check[i];
        }
    }
}

static void
plan_group_children(Planner *p)
{
    GuardTree *tree = p->tree;
    for (int i = 1; i < tree->num_nodes; i++) {
        p->child_begin[tree->nodes[i].parent + 1]++;
    }
    for (int i = 0; i < tree->num_nodes; i++) {
        p->child_begin[i + 1] += p->child_begin[i];
    }
    /* Insertion keeps siblings sorted by cost; equal ones stay in the order of building. child_begin[parent] serves as the
     * end of what is filled so far and is shifted back afterwards. */
    int *filled = p->child_begin;
    int *start = PyMem_Calloc(tree->num_nodes + 1, sizeof(int));
    if (start == NULL) {
        return;
    }
    memcpy(start, p->child_begin, (tree->num_nodes + 1) * sizeof(int));
    for (int i = 1; i < tree->num_nodes; i++) {
        int parent = tree->nodes[i].parent;
        int at = filled[parent]++;
        while (at > start[parent] && p->cost[p->children[at - 1]] > p->cost[i]) {
            p->children[at] = p->children[at - 1];
            at--;
        }
        p->children[at] = i;
    }
    memcpy(p->child_begin, start, (tree->num_nodes + 1) * sizeof(int));
    PyMem_Free(start);
}

/* Appends the checks of a node, cheapest first. */
static void
plan_checks_of(Planner *p, int node, const int *by_node_begin, const int *by_node)
{
    Plan *plan = p->plan;
    int begin = plan->num_checks;
    for (int k = by_node_begin[node]; k < by_node_begin[node + 1]; k++) {
        int c = by_node[k], at = plan->num_checks++;
        while (at > begin && kind_table[p->tree->checks[plan->checks[at - 1]].kind].cost >
                                 kind_table[p->tree->checks[c].kind].cost) {
            plan->checks[at] = plan->checks[at - 1];
            at--;
        }
        plan->checks[at] = c;
    }
}

static void
plan_emit(Planner *p, int node, const int *by_node_begin, const int *by_node)
{
    Plan *plan = p->plan;
    const Node *from = &p->tree->nodes[node];
    int at = plan->num_nodes++;
    PlanNode *to = &plan->nodes[at];
    *to = (PlanNode){.accessor = from->accessor,
                     .slot = plan->slot_of[node],
                     .first_check = p->first_check[node],
                     .index = from->index,
                     .hash = from->hash,
                     .arg = from->arg,
                     .check_begin = plan->num_checks};
    plan_checks_of(p, node, by_node_begin, by_node);
    to->check_end = plan->num_checks;
    for (int k = p->child_begin[node]; k < p->child_begin[node + 1]; k++) {
        if (p->first_check[p->children[k]] != INT_MAX) { /* nothing is asked below the others */
            plan_emit(p, p->children[k], by_node_begin, by_node);
        }
    }
    plan->nodes[at].end = plan->num_nodes;
}

/* Groups the early checks by node: by_node_begin has num_nodes + 1 places, by_node num_checks. */
static void
plan_group_checks(GuardTree *tree, Plan *plan, int *by_node_begin, int *by_node, int *cursor)
{
    for (int c = 0; c < tree->num_checks; c++) {
        if (!check_is_late(&tree->checks[c])) {
            by_node_begin[tree->checks[c].node + 1]++;
        }
    }
    for (int i = 0; i < tree->num_nodes; i++) {
        by_node_begin[i + 1] += by_node_begin[i];
    }
    memcpy(cursor, by_node_begin, (tree->num_nodes + 1) * sizeof(int));
    for (int c = 0; c < tree->num_checks; c++) {
        if (!check_is_late(&tree->checks[c])) {
            by_node[cursor[tree->checks[c].node]++] = c;
            continue;
        }
        int at = plan->num_late++;
        while (at > 0 &&
               kind_table[tree->checks[plan->late[at - 1]].kind].cost > kind_table[tree->checks[c].kind].cost) {
            plan->late[at] = plan->late[at - 1];
            at--;
        }
        plan->late[at] = c;
    }
}

static int
make_plan(GuardTree *tree)
{
    int nodes = tree->num_nodes, checks = tree->num_checks;
    Plan *plan = PyMem_Calloc(1, sizeof(Plan));
    Planner p = {.tree = tree, .plan = plan};
    p.first_check = PyMem_Calloc(nodes, sizeof(int));
    p.cost = PyMem_Calloc(nodes, sizeof(long));
    p.child_begin = PyMem_Calloc(nodes + 1, sizeof(int));
    p.children = PyMem_Calloc(nodes + 1, sizeof(int));
    int *by_node_begin = PyMem_Calloc(nodes + 1, sizeof(int));
    int *by_node = PyMem_Calloc(checks + 1, sizeof(int));
    int *cursor = PyMem_Calloc(nodes + 1, sizeof(int));
    bool ok = plan && p.first_check && p.cost && p.child_begin && p.children && by_node_begin && by_node && cursor;
    if (ok) {
        plan->nodes = PyMem_Calloc(nodes, sizeof(PlanNode));
        plan->checks = PyMem_Calloc(checks + 1, sizeof(int));
        plan->late = PyMem_Calloc(checks + 1, sizeof(int));
        plan->slot_of = PyMem_Calloc(nodes, sizeof(int));
        ok = plan->nodes && plan->checks && plan->late && plan->slot_of;
    }
    if (ok) {
        plan_measure(&p);
        plan_group_children(&p);
        plan_group_checks(tree, plan, by_node_begin, by_node, cursor);
        plan_emit(&p, 0, by_node_begin, by_node);
        tree->plan = plan;
    }
    PyMem_Free(p.first_check);
    PyMem_Free(p.cost);
    PyMem_Free(p.child_begin);
    PyMem_Free(p.children);
    PyMem_Free(by_node_begin);
    PyMem_Free(by_node);
    PyMem_Free(cursor);
    if (!ok) {
        plan_free(plan);
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* ---- walking --------------------------------------------------------------------------------------------------- */

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

/* Returns 0 or -1; on 0 the failure is recorded. */
static int
fail_check(Walk *walk, int index, PyObject *obj, int status)
{
    walk->failed = index;
    if (status < 0) {
        return absorb_exception(walk);
    }
    if (walk->explain) {
        walk->detail = check_detail(&walk->tree->checks[index], obj, walk);
        if (walk->detail == NULL) {
            return absorb_exception(walk);
        }
    }
    return 0;
}

static int
fail_fetch(Walk *walk, const PlanNode *node, PyObject *parent)
{
    walk->failed = node->first_check;
    if (PyErr_Occurred()) {
        return absorb_exception(walk);
    }
    if (walk->explain) {
        walk->detail = node_missing_detail(node, parent);
        if (walk->detail == NULL) {
            return absorb_exception(walk);
        }
    }
    return 0;
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
    return walk_late(walk, plan->late, plan->num_late);
}

#define MAX_FAILED_REPLAYS 16

/* After a walk that held: records anew, unless recordings have mostly been useless here. Only while no other evaluation of
 * this tree, further up the stack or in another thread, may be using the recording. Returns 1 or -1. */
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
        tree->replays_failed++;
    }
    if (tree->replay == NULL && ++tree->successes >= 2 && tree->replays_failed < MAX_FAILED_REPLAYS) {
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
    }
    int status = walk_all(walk);
    return status > 0 ? record_success(walk, replay_failed) : status;
}

#define STACK_SLOTS 32

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
    int status = walk_or_replay(walk);
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
guard_tree_match(PyObject *tree, const FrameView *view)
{
    Walk walk = {.explain = false};
    return walk_tree((GuardTree *)tree, view, &walk);
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

/* ---- building -------------------------------------------------------------------------------------------------- */

static bool
may_build(GuardTree *tree)
{
    if (tree->in_use > 0) {
        PyErr_SetString(PyExc_RuntimeError, "a guard tree cannot be changed while it is evaluated");
        return false;
    }
    plan_free(tree->plan);
    replay_free(tree->replay);
    tree->plan = NULL;
    tree->replay = NULL;
    tree->successes = tree->replays_failed = 0;
    return true;
}

static int
node_from_object(GuardTree *tree, PyObject *obj)
{
    if (!PyLong_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "a node is an int, not %.100s", Py_TYPE(obj)->tp_name);
        return -1;
    }
    long node = PyLong_AsLong(obj);
    if (node < 0 || node >= tree->num_nodes) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "no node %ld in a tree of %d nodes", node, tree->num_nodes);
        }
        return -1;
    }
    return (int)node;
}

static void *
grow(void *items, int count, int *cap, size_t size)
{
    if (count < *cap) {
        return items;
    }
    int wanted = *cap == 0 ? 16 : *cap * 2;
    void *grown = PyMem_Realloc(items, wanted * size);
    if (grown == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *cap = wanted;
    return grown;
}

static int
accessor_from_name(PyObject *name)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        PyErr_SetString(PyExc_TypeError, "an accessor is named by a str");
        return -1;
    }
    if (strcmp(text, "module_dict") == 0) {
        return ACC_INSTANCE_DICT;
    }
    for (int i = 1; i < NUM_ACCESSORS; i++) {
        if (strcmp(text, accessor_table[i].name) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown accessor %R", name);
    return -1;
}

/* What makes two children the same: exact for names and indices, by identity for objects (equal keys of one exact builtin
 * type are the same too). */
static PyObject *
child_identity(int parent, const Node *node, PyObject *arg)
{
    switch (accessor_table[node->accessor].arg) {
    case ARG_INDEX:
        return Py_BuildValue("(iin)", parent, node->accessor, node->index);
    case ARG_NAME:
        return Py_BuildValue("(iiO)", parent, node->accessor, arg);
    case ARG_NONE:
        return Py_BuildValue("(ii)", parent, node->accessor);
    default:
        if (PyUnicode_CheckExact(arg) || PyLong_CheckExact(arg)) {
            return Py_BuildValue("(iiOO)", parent, node->accessor, Py_TYPE(arg), arg);
        }
        return Py_BuildValue("(iiN)", parent, node->accessor, PyLong_FromVoidPtr(arg));
    }
}

static PyObject *
tree_child(GuardTree *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || nargs > 3) {
        return PyErr_Format(PyExc_TypeError, "child takes 2 or 3 arguments (%zd given)", nargs);
    }
    int parent = node_from_object(self, args[0]);
    int accessor = parent < 0 ? -1 : accessor_from_name(args[1]);
    if (accessor < 0) {
        return NULL;
    }
    const AccessorInfo *info = &accessor_table[accessor];
    if (info->on_root != (parent == 0)) {
        return PyErr_Format(PyExc_ValueError, "accessor \"%s\" %s hang on the root node", info->name,
                            info->on_root ? "must" : "cannot");
    }
    if ((info->arg == ARG_NONE) != (nargs == 2)) {
        return PyErr_Format(PyExc_TypeError, "accessor \"%s\" takes %s argument", info->name,
                            info->arg == ARG_NONE ? "no" : "one");
    }
    Node node = {.accessor = (Accessor)accessor, .parent = parent, .last_check = -1};
    PyObject *arg = nargs > 2 ? args[2] : NULL;
    if (node_parse(&node, arg) < 0) {
        return NULL;
    }
    PyObject *identity = child_identity(parent, &node, arg);
    PyObject *known = identity == NULL ? NULL : PyDict_GetItemWithError(self->node_index, identity);
    if (identity == NULL || known != NULL || PyErr_Occurred() || !may_build(self)) {
        Py_XDECREF(identity);
        Py_XDECREF(node.arg);
        return Py_XNewRef(known);
    }
    Node *nodes = grow(self->nodes, self->num_nodes, &self->cap_nodes, sizeof(Node));
    PyObject *index = nodes == NULL ? NULL : PyLong_FromLong(self->num_nodes);
    if (nodes != NULL) {
        self->nodes = nodes;
    }
    if (index == NULL || PyDict_SetItem(self->node_index, identity, index) < 0) {
        Py_DECREF(identity);
        Py_XDECREF(node.arg);
        Py_XDECREF(index);
        return NULL;
    }
    Py_DECREF(identity);
    self->nodes[self->num_nodes++] = node;
    return index;
}

static int
kind_from_name(PyObject *name)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        PyErr_SetString(PyExc_TypeError, "a kind of check is named by a str");
        return -1;
    }
    for (int i = 0; i < NUM_KINDS; i++) {
        if (strcmp(text, kind_table[i].name) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown kind of check %R", name);
    return -1;
}

static PyObject *
tree_check(GuardTree *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *label = nargs > 1 ? args[1] : NULL;
    if (nargs < 2) {
        return PyErr_Format(PyExc_TypeError, "check takes a node and a kind");
    }
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) {
        if (PyTuple_GET_SIZE(kwnames) != 1 ||
            PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "label") != 0) {
            return PyErr_Format(PyExc_TypeError, "check takes no keyword argument but label");
        }
        label = args[nargs];
    }
    if (!PyUnicode_Check(label)) {
        return PyErr_Format(PyExc_TypeError, "label must be a str, not %.100s", Py_TYPE(label)->tp_name);
    }
    int node = node_from_object(self, args[0]);
    int kind = node < 0 ? -1 : kind_from_name(args[1]);
    if (kind < 0) {
        return NULL;
    }
    const KindInfo *info = &kind_table[kind];
    if (nargs - 2 < info->min_args || nargs - 2 > info->max_args) {
        return PyErr_Format(PyExc_TypeError, "check \"%s\" takes %d to %d arguments (%zd given)", info->name,
                            info->min_args, info->max_args, nargs - 2);
    }
    bool rootless = kind == CHECK_GLOBAL_STATE || kind == CHECK_DISTINCT || kind == CHECK_PYTHON;
    if (node == 0 && !rootless) {
        return PyErr_Format(PyExc_ValueError, "check \"%s\" needs a value: it cannot be put on the root node", info->name);
    }
    Check check = {.kind = (CheckKind)kind, .node = node};
    if (check_parse(self, &check, args + 2, nargs - 2) < 0) {
        check_release(&check);
        return NULL;
    }
    check.label = Py_NewRef(label);
    for (int i = self->nodes[node].last_check; i >= 0; i = self->checks[i].prev_on_node) {
        if (check_same(&self->checks[i], &check)) {
            check_release(&check);
            return PyLong_FromLong(i);
        }
    }
    Check *checks = may_build(self) ? grow(self->checks, self->num_checks, &self->cap_checks, sizeof(Check)) : NULL;
    if (checks == NULL) {
        check_release(&check);
        return NULL;
    }
    self->checks = checks;
    check.prev_on_node = self->nodes[node].last_check;
    self->nodes[node].last_check = self->num_checks;
    self->checks[self->num_checks] = check;
    return PyLong_FromLong(self->num_checks++);
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

static bool
parse_view(PyObject *args, PyObject *kwargs, FrameView *view)
{
    static char *names[] = {"args", "globals", "builtins", "closure", NULL};
    PyObject *locals, *globals = Py_None, *builtins = Py_None, *closure = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OOO", names, &PyTuple_Type, &locals, &globals, &builtins, &closure)) {
        return false;
    }
    if ((globals != Py_None && !PyDict_Check(globals)) || (builtins != Py_None && !PyDict_Check(builtins)) ||
        (closure != Py_None && !PyTuple_Check(closure))) {
        PyErr_SetString(PyExc_TypeError, "globals and builtins must be dicts or None, closure a tuple of cells or None");
        return false;
    }
    for (Py_ssize_t i = 0; closure != Py_None && i < PyTuple_GET_SIZE(closure); i++) {
        if (!PyCell_Check(PyTuple_GET_ITEM(closure, i))) {
            PyErr_SetString(PyExc_TypeError, "closure must be a tuple of cells or None");
            return false;
        }
    }
    *view = (FrameView){.args = ((PyTupleObject *)locals)->ob_item,
                        .nargs = PyTuple_GET_SIZE(locals),
                        .globals = globals == Py_None ? NULL : globals,
                        .builtins = builtins == Py_None ? NULL : builtins,
                        .closure = closure == Py_None ? NULL : closure};
    return true;
}

static PyObject *
tree_evaluate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    FrameView view;
    return parse_view(args, kwargs, &view) ? guard_tree_explain(self, &view) : NULL;
}

static PyObject *
tree_matches(PyObject *self, PyObject *args, PyObject *kwargs)
{
    FrameView view;
    if (!parse_view(args, kwargs, &view)) {
        return NULL;
    }
    int status = guard_tree_match(self, &view);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

static PyObject *
tree_describe(GuardTree *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(self->num_checks);
    for (int i = 0; list != NULL && i < self->num_checks; i++) {
        PyList_SET_ITEM(list, i, Py_NewRef(self->checks[i].label));
    }
    return list;
}

static PyObject *
tree_source(GuardTree *self, PyObject *arg)
{
    int node = node_from_object(self, arg);
    return node < 0 ? NULL : node_source(self, node);
}

static PyObject *
tree_checks_of(GuardTree *self, PyObject *arg)
{
    int node = node_from_object(self, arg);
    PyObject *list = node < 0 ? NULL : PyList_New(0);
    for (int i = 0; list != NULL && i < self->num_checks; i++) {
        if (self->checks[i].node != node) {
            continue;
        }
        PyObject *item = Py_BuildValue("(is)", i, kind_table[self->checks[i].kind].name);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

/* ---- the type -------------------------------------------------------------------------------------------------- */

static PyObject *
tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":GuardTree", names)) {
        return NULL;
    }
    GuardTree *self = (GuardTree *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->node_index = PyDict_New();
    self->nodes = grow(NULL, 0, &self->cap_nodes, sizeof(Node));
    if (self->node_index == NULL || self->nodes == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->nodes[0] = (Node){.accessor = ACC_ROOT, .parent = -1, .last_check = -1};
    self->num_nodes = 1;
    return (PyObject *)self;
}

static int
tree_traverse(GuardTree *self, visitproc visit, void *arg)
{
    Py_VISIT(self->node_index);
    for (int i = 0; i < self->num_nodes; i++) {
        Py_VISIT(self->nodes[i].arg);
    }
    for (int i = 0; i < self->num_checks; i++) {
        Py_VISIT(self->checks[i].a);
        Py_VISIT(self->checks[i].b);
        if (self->checks[i].tensor != NULL) {
            int status = tensor_spec_visit(self->checks[i].tensor, visit, arg);
            if (status != 0) {
                return status;
            }
        }
    }
    return 0;
}

static void
tree_release(GuardTree *self)
{
    Node *nodes = self->nodes;
    Check *checks = self->checks;
    int num_nodes = self->num_nodes, num_checks = self->num_checks;
    self->nodes = NULL;
    self->checks = NULL;
    self->num_nodes = self->num_checks = self->cap_nodes = self->cap_checks = 0;
    plan_free(self->plan);
    replay_free(self->replay);
    self->plan = NULL;
    self->replay = NULL;
    for (int i = 0; i < num_nodes; i++) {
        Py_XDECREF(nodes[i].arg);
    }
    for (int i = 0; i < num_checks; i++) {
        check_release(&checks[i]);
    }
    PyMem_Free(nodes);
    PyMem_Free(checks);
}

static int
tree_clear(GuardTree *self)
{
    if (self->in_use > 0) {
        return 0; /* reachable after all: the evaluation on the stack holds it */
    }
    tree_release(self);
    self->cleared = true; /* who still finds it must not take it for a match */
    return 0;
}

static void
tree_dealloc(GuardTree *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->node_index);
    tree_release(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
tree_num_guards(GuardTree *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->num_checks);
}

static PyObject *
tree_num_nodes(GuardTree *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->num_nodes);
}

static PyObject *
tree_dead(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(guard_tree_dead(self));
}

static PyObject *
tree_repr(GuardTree *self)
{
    return PyUnicode_FromFormat("<GuardTree of %d guards on %d nodes>", self->num_checks, self->num_nodes);
}

static PyMethodDef tree_methods[] = {
    {"child", (PyCFunction)(void (*)(void))tree_child, METH_FASTCALL,
     "child(parent, accessor, arg=None, /)\n--\n\nThe node reached from parent by accessor."},
    {"check", (PyCFunction)(void (*)(void))tree_check, METH_FASTCALL | METH_KEYWORDS,
     "check(node, kind, /, *args, label)\n--\n\nAdds a check and returns its index."},
    {"evaluate", (PyCFunction)(void (*)(void))tree_evaluate, METH_VARARGS | METH_KEYWORDS,
     "evaluate(args, globals=None, builtins=None, closure=None)\n--\n\nTrue, or (guard index, label, detail)."},
    {"matches", (PyCFunction)(void (*)(void))tree_matches, METH_VARARGS | METH_KEYWORDS,
     "matches(args, globals=None, builtins=None, closure=None)\n--\n\nWhether every guard holds."},
    {"describe", (PyCFunction)tree_describe, METH_NOARGS, "describe()\n--\n\nThe labels of the checks."},
    {"source", (PyCFunction)tree_source, METH_O, "source(node, /)\n--\n\nA readable path of a node."},
    {"checks_of", (PyCFunction)tree_checks_of, METH_O, "checks_of(node, /)\n--\n\n(index, kind) of the checks on a node."},
    {NULL},
};

static PyGetSetDef tree_getset[] = {
    {"num_guards", (getter)tree_num_guards, NULL, NULL, NULL},
    {"num_nodes", (getter)tree_num_nodes, NULL, NULL, NULL},
    {"dead", (getter)tree_dead, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject GuardTree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "argand._core._C.GuardTree",
    .tp_doc = "GuardTree()\n--\n\nWhere guarded values come from and what must hold of them.",
    .tp_basicsize = sizeof(GuardTree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_traverse = (traverseproc)tree_traverse,
    .tp_clear = (inquiry)tree_clear,
    .tp_dealloc = (destructor)tree_dealloc,
    .tp_repr = (reprfunc)tree_repr,
    .tp_methods = tree_methods,
    .tp_getset = tree_getset,
};
