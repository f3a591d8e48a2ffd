/* Inside of a guard tree; shared by the guard*.c files. */
#ifndef ARGAND_GUARDS_H
#define ARGAND_GUARDS_H

#include "core.h"

typedef enum {
    ACC_ROOT = 0,
    ACC_LOCAL,
    ACC_GLOBAL,
    ACC_BUILTIN,
    ACC_CLOSURE,
    ACC_CONST,
    ACC_ATTR,
    ACC_TYPE,
    ACC_TYPE_ATTR,
    ACC_INSTANCE_DICT,
    ACC_DICT_ITEM,
    ACC_DICT_KEY,
    ACC_DICT_VALUE,
    ACC_SEQUENCE_ITEM,
    ACC_GETITEM,
    ACC_CALL,
    ACC_FUNC_CODE,
    ACC_FUNC_DEFAULTS,
    ACC_FUNC_KWDEFAULTS,
    ACC_FUNC_CLOSURE,
    ACC_CELL_CONTENTS,
    ACC_METHOD_SELF,
    ACC_METHOD_FUNC,
    NUM_ACCESSORS
} Accessor;

typedef enum { ARG_NONE, ARG_INDEX, ARG_NAME, ARG_OBJECT, ARG_CALLABLE } ArgKind;

typedef struct {
    const char *name;
    ArgKind arg;
    bool on_root; /* must hang on the root (the others must not) */
    int cost;     /* rough nanoseconds, for the order of siblings */
} AccessorInfo;

extern const AccessorInfo accessor_table[NUM_ACCESSORS];

typedef struct {
    Accessor accessor;
    int parent;
    int last_check;   /* the check added last on this node, -1 */
    Py_ssize_t index; /* ARG_INDEX */
    Py_hash_t hash;   /* of a dict key */
    PyObject *arg;    /* strong or NULL */
} Node;

typedef enum {
    CHECK_TYPE = 0,
    CHECK_ID,
    CHECK_EQUALS,
    CHECK_BASE_VALUE,
    CHECK_IS_NONE,
    CHECK_NOT_NONE,
    CHECK_LEN,
    CHECK_DICT_KEYS,
    CHECK_HAS_KEY,
    CHECK_NOT_HAS_KEY,
    CHECK_HAS_ATTR,
    CHECK_NOT_HAS_ATTR,
    CHECK_TYPE_VERSION,
    CHECK_CALL,
    CHECK_GLOBAL_STATE,
    CHECK_FUNCTIONS,
    CHECK_TENSOR,
    CHECK_SAME_OBJECT, /* from here on: relational, evaluated when every node has been reached */
    CHECK_DISTINCT,
    CHECK_PYTHON,
    CHECK_EXPR,
    NUM_KINDS
} CheckKind;

static inline bool
is_relational(CheckKind kind)
{
    return kind >= CHECK_SAME_OBJECT;
}

typedef struct {
    const char *name;
    int min_args, max_args;
    int cost;
} KindInfo;

extern const KindInfo kind_table[NUM_KINDS];

typedef enum { SLOT_SIZE, SLOT_STRIDE, SLOT_INT, SLOT_FLOAT, NUM_SLOT_KINDS } SlotKind;

typedef union {
    int64_t i;
    double d;
} Number;

/* A number that expressions compute with (guard_numbers.c). */
typedef struct {
    SlotKind kind;
    int node;
    int dim;
    bool hinted;
    Number hint;    /* what it was when the guards were made */
    PyObject *name; /* what people call it: strong or NULL */
} NumberSlot;

typedef struct Program Program;       /* guard_expr.c */
typedef struct ClassNames ClassNames; /* guard_class.c */
typedef struct FunctionTable FunctionTable; /* guard_functions.c */
typedef struct StateTable StateTable;       /* guard_state.c */

typedef struct {
    CheckKind kind;
    bool weak; /* a is a weak reference to the object meant */
    int node;
    int prev_on_node; /* the check added before this one on the same node, -1 */
    int num_nodes;
    int *nodes; /* relational: the nodes compared */
    unsigned int version_tag;
    Py_ssize_t length; /* len */
    Py_hash_t hash;
    PyObject *a, *b; /* strong or NULL */
    PyObject *label;
    TensorSpec *tensor;
    Program *program;
    ClassNames *names; /* type_version: what may not change when the version has; NULL: nothing may */
    FunctionTable *functions;
    StateTable *state;
} Check;

/* One node as evaluated: nodes in depth-first order, their checks next to each other. */
typedef struct {
    Accessor accessor;
    int end;         /* index after the subtree */
    int check_begin; /* into plan.checks */
    int check_end;
    int slot;        /* where a relational check finds the value; -1 */
    int first_check; /* the guard to name when this node cannot be fetched */
    int number_begin, number_end; /* into plan.numbers */
    Py_ssize_t index;
    Py_hash_t hash;
    PyObject *arg; /* borrowed from the node */
} PlanNode;

typedef struct {
    PlanNode *nodes;
    int num_nodes;
    int *checks; /* indices into tree->checks, grouped by plan node */
    int num_checks;
    int *late; /* global_state and relational checks, in order of cost */
    int num_late;
    int *slot_of; /* per tree node, -1 when it has none */
    int num_slots;
    int *numbers; /* the number slots that expressions use, grouped by plan node */
    int num_numbers;
    int *user_of;              /* per number slot: the first check that uses it, INT_MAX */
    const TensorSpec **spec_of; /* per number slot: the tensor check of its node, or NULL */
} Plan;

typedef struct Replay Replay; /* replay.h */

typedef struct {
    PyObject_HEAD
    Node *nodes;
    int num_nodes, cap_nodes;
    Check *checks;
    int num_checks, cap_checks;
    NumberSlot *numbers;
    int num_numbers, cap_numbers;
    int *collect; /* nodes whose values an evaluation that holds hands over, in order */
    int num_collect;
    PyObject *node_index; /* dict: (parent, accessor, arg key) -> node */
    Plan *plan;           /* NULL: must be made again */
    Replay *replay;       /* what was found when the guards held last, or NULL */
    int successes;        /* full walks that held since the plan was made */
    int replays_failed;   /* how often the guards held although the recording could not tell; paid off by replays_held */
    unsigned replays_held;
    bool cleared;         /* by the garbage collector: never holds again */
    int in_use;           /* evaluations under way: no building meanwhile */
} GuardTree;

/* One evaluation. */
typedef struct {
    GuardTree *tree;
    const FrameView *view;
    PyObject **slots; /* owned references */
    Number *numbers;
    PyObject *inputs; /* a tuple for the values to collect, NULL when nobody wants them */
    bool explain;
    int failed;       /* index of the guard that failed */
    PyObject *detail; /* when explaining: owned str */
} Walk;

/* guards.c */
int node_from_object(GuardTree *tree, PyObject *obj);                        /* -1 with an exception */
PyObject *tree_place_node(GuardTree *tree, Node node, PyObject *arg);
PyObject *tree_add_check(GuardTree *tree, Check check);

/* guard_repeat.c */
PyObject *tree_repeat(GuardTree *tree, PyObject *const *args, Py_ssize_t nargs);

/* guard_plan.c */
int make_plan(GuardTree *tree); /* 0 or -1 with an exception */
void plan_free(Plan *plan);

/* guard_walk.c */
int walk_node(Walk *walk, int at, PyObject *obj);              /* 1, 0 (recorded in walk), -1 with an exception */
int walk_child(Walk *walk, int child, PyObject *parent);       /* fetches and walks; parent NULL for the root */
int walk_late(Walk *walk, const int *late, int count);
int walk_number(Walk *walk, int slot, PyObject *obj);          /* likewise */

/* guard_replay.c: 1 the guards hold; 0 a guard of a root walked anew failed (recorded in walk); 2 cannot tell; -1 exception */
int replay_run(Replay *replay, Walk *walk);
void replay_free(Replay *replay);

/* guard_record.c */
Replay *replay_record(Walk *walk); /* NULL without an exception when there is nothing to gain or to hold on to */

/* guard_nodes.c */
int node_parse(Node *node, PyObject *arg);                    /* 0 or -1 with exception */
PyObject *node_fetch_root(const PlanNode *node, Walk *walk);  /* new reference, or NULL with or without exception */
PyObject *node_fetch(const PlanNode *node, PyObject *parent); /* likewise */
PyObject *node_missing_detail(const PlanNode *node, PyObject *parent);
PyObject *node_source(const GuardTree *tree, int index);

/* guard_parse.c */
int check_parse(GuardTree *tree, Check *check, PyObject *const *args, Py_ssize_t nargs); /* 0 or -1 */
void check_release(Check *check);
bool check_same(const Check *a, const Check *b);

/* guard_checks.c */
int check_match(const Check *check, PyObject *obj, Walk *walk); /* 1, 0, -1 with exception */
int check_distinct(const Check *check, const Walk *walk, int *first, int *second);
PyObject *dict_key_list(PyObject *dict); /* a new list in its own order, whatever methods its class has */
int compare_result(PyObject *result, PyObject *expected); /* 1, 0, -1 with an exception; steals result */
Py_ssize_t check_first_changed_state(const Check *check);
StateTable *state_table_new(PyObject *pairs);
void state_table_free(StateTable *table);
unsigned int class_version_tag(PyTypeObject *type);
unsigned int class_assign_version_tag(PyTypeObject *type);

/* guard_numbers.c */
bool number_is_float(const NumberSlot *slot);
int number_slot_parse(NumberSlot *slot, PyObject *kind, PyObject *dim, PyObject *name, PyObject *hint); /* 0 or -1 */
bool number_slot_same(const NumberSlot *a, const NumberSlot *b);
bool number_pure(const NumberSlot *slot, const TensorSpec *spec); /* reading runs no Python code */
int number_read(const NumberSlot *slot, const TensorSpec *spec, PyObject *obj, Number *out); /* 1, 0, -1 */
PyObject *number_missing_detail(const NumberSlot *slot, PyObject *obj);
PyObject *number_detail(const GuardTree *tree, const NumberSlot *slot, Number value);

/* guard_expr.c */
Program *program_parse(const GuardTree *tree, PyObject *items); /* NULL with an exception */
void program_free(Program *program);
bool program_same(const Program *a, const Program *b);
int program_slots(const Program *program, const int **slots);
bool program_holds(const Program *program, const Number *numbers);
PyObject *program_detail(const Program *program, const Walk *walk);

/* guard_class.c */
ClassNames *class_names_new(PyTypeObject *type, PyObject *wanted); /* NULL with an exception */
void class_names_free(ClassNames *names);
int class_names_visit(ClassNames *names, visitproc visit, void *arg);
bool class_names_hold(const ClassNames *names, PyTypeObject *type, PyObject **name);

/* guard_functions.c */
FunctionTable *function_table_new(PyObject *functions); /* NULL with an exception */
void function_table_free(FunctionTable *table);
int function_table_visit(FunctionTable *table, visitproc visit, void *arg);
Py_ssize_t function_table_changed(const FunctionTable *table);
PyObject *function_table_at(const FunctionTable *table, Py_ssize_t i);
Py_ssize_t function_table_size(const FunctionTable *table);

/* guard_details.c */
PyObject *check_detail(const Check *check, PyObject *obj, Walk *walk);

static inline bool
check_dead(const Check *check)
{
    return check->weak && identity_target(check->a, true) == NULL;
}

#endif
