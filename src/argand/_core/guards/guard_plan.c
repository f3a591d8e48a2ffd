/* The order in which a guard tree is evaluated: cheap and likely-to-fail things first, values before what is below them. */
#include "guards.h"

void
plan_free(Plan *plan)
{
    if (plan != NULL) {
        PyMem_Free(plan->nodes);
        PyMem_Free(plan->checks);
        PyMem_Free(plan->late);
        PyMem_Free(plan->slot_of);
        PyMem_Free(plan->numbers);
        PyMem_Free(plan->user_of);
        PyMem_Free(plan->spec_of);
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
    return is_relational(check->kind) || check->kind == CHECK_GLOBAL_STATE || check->kind == CHECK_FUNCTIONS;
}

/* What the expressions use: their slots' nodes are fetched, and a slot that cannot be filled fails the first expression. */
static void
plan_measure_numbers(Planner *p)
{
    GuardTree *tree = p->tree;
    for (int i = 0; i < tree->num_numbers; i++) {
        p->plan->user_of[i] = INT_MAX;
    }
    for (int c = tree->num_checks - 1; c >= 0; c--) {
        const Check *check = &tree->checks[c];
        const int *slots;
        int count = check->program == NULL ? 0 : program_slots(check->program, &slots);
        for (int k = 0; k < count; k++) {
            int node = tree->numbers[slots[k]].node;
            p->plan->user_of[slots[k]] = c;
            p->first_check[node] = c < p->first_check[node] ? c : p->first_check[node];
        }
    }
    for (int c = 0; c < tree->num_checks; c++) {
        for (int i = 0; tree->checks[c].tensor != NULL && i < tree->num_numbers; i++) {
            if (tree->numbers[i].node == tree->checks[c].node) {
                p->plan->spec_of[i] = tree->checks[c].tensor;
            }
        }
    }
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
    plan_measure_numbers(p);
    for (int k = 0; k < tree->num_collect; k++) {
        int node = tree->collect[k];
        if (p->plan->slot_of[node] < 0) {
            p->plan->slot_of[node] = p->plan->num_slots++;
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
    to->number_begin = plan->num_numbers;
    for (int i = 0; i < p->tree->num_numbers; i++) {
        if (p->tree->numbers[i].node == node && plan->user_of[i] != INT_MAX) {
            plan->numbers[plan->num_numbers++] = i;
        }
    }
    to->number_end = plan->num_numbers;
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

int
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
        plan->numbers = PyMem_Calloc(tree->num_numbers + 1, sizeof(int));
        plan->user_of = PyMem_Calloc(tree->num_numbers + 1, sizeof(int));
        plan->spec_of = PyMem_Calloc(tree->num_numbers + 1, sizeof(TensorSpec *));
        ok = plan->nodes && plan->checks && plan->late && plan->slot_of && plan->numbers && plan->user_of && plan->spec_of;
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
