/* The GuardTree type: building a tree and asking it. */
#include "guards.h"

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

int
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

/* The number of a node, which is there from now on; takes over the node's `arg`. */
PyObject *
tree_place_node(GuardTree *self, Node node, PyObject *arg)
{
    PyObject *identity = child_identity(node.parent, &node, arg);
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
    return tree_place_node(self, node, arg);
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

/* The index of a check, which is there from now on; takes over what the check holds. */
PyObject *
tree_add_check(GuardTree *self, Check check)
{
    int node = check.node;
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
    bool rootless = kind == CHECK_GLOBAL_STATE || kind == CHECK_FUNCTIONS || kind == CHECK_DISTINCT || kind == CHECK_PYTHON || kind == CHECK_EXPR;
    if (node == 0 && !rootless) {
        return PyErr_Format(PyExc_ValueError, "check \"%s\" needs a value: it cannot be put on the root node", info->name);
    }
    Check check = {.kind = (CheckKind)kind, .node = node};
    if (check_parse(self, &check, args + 2, nargs - 2) < 0) {
        check_release(&check);
        return NULL;
    }
    check.label = Py_NewRef(label);
    return tree_add_check(self, check);
}

/* Expressions read best with their own method: check_expr(program, label=...) is check(0, "expr", program, label=...). */
static PyObject *
tree_check_expr(GuardTree *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (nargs != 1 || named > 1) {
        return PyErr_Format(PyExc_TypeError, "check_expr takes one argument and label");
    }
    PyObject *zero = PyLong_FromLong(0), *kind = PyUnicode_InternFromString(kind_table[CHECK_EXPR].name), *result = NULL;
    if (zero != NULL && kind != NULL) {
        PyObject *const full[] = {zero, kind, args[0], named > 0 ? args[1] : NULL};
        result = tree_check(self, full, 3, kwnames);
    }
    Py_XDECREF(zero);
    Py_XDECREF(kind);
    return result;
}

static PyObject *
add_number(GuardTree *self, NumberSlot *slot)
{
    for (int i = 0; i < self->num_numbers; i++) {
        if (number_slot_same(&self->numbers[i], slot)) {
            Py_XDECREF(slot->name);
            return PyLong_FromLong(i);
        }
    }
    NumberSlot *numbers = may_build(self) ? grow(self->numbers, self->num_numbers, &self->cap_numbers, sizeof(NumberSlot)) : NULL;
    if (numbers == NULL) {
        Py_XDECREF(slot->name);
        return NULL;
    }
    self->numbers = numbers;
    numbers[self->num_numbers] = *slot;
    return PyLong_FromLong(self->num_numbers++);
}

static PyObject *
tree_slot(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", "name", "hint", NULL};
    PyObject *node, *kind, *dim = NULL, *name = NULL, *hint = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OU|O$OO:slot", names, &node, &kind, &dim, &name, &hint)) {
        return NULL;
    }
    NumberSlot slot = {.node = node_from_object(self, node)};
    if (slot.node == 0) {
        return PyErr_Format(PyExc_ValueError, "a slot needs a value: it cannot be put on the root node");
    }
    return slot.node < 0 || number_slot_parse(&slot, kind, dim, name, hint) < 0 ? NULL : add_number(self, &slot);
}

static PyObject *
tree_collect(GuardTree *self, PyObject *nodes)
{
    PyObject *list = PySequence_Fast(nodes, "nodes must be a sequence of ints");
    if (list == NULL || !may_build(self)) {
        Py_XDECREF(list);
        return NULL;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
    int *collect = PyMem_Calloc(count + 1, sizeof(int));
    bool ok = collect != NULL;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        collect[i] = node_from_object(self, PySequence_Fast_GET_ITEM(list, i));
        ok = collect[i] > 0 && self->nodes[collect[i]].last_check >= 0;
        if (!ok && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "only values with a check of their own can be collected");
        }
    }
    Py_DECREF(list);
    if (!ok) {
        PyMem_Free(collect);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    PyMem_Free(self->collect);
    self->collect = collect;
    self->num_collect = (int)count;
    Py_RETURN_NONE;
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
    int status = guard_tree_match(self, &view, NULL);
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
        const Check *check = &self->checks[i];
        int status = check->names == NULL ? 0 : class_names_visit(check->names, visit, arg);
        if (status == 0 && check->functions != NULL) {
            status = function_table_visit(check->functions, visit, arg);
        }
        if (status == 0 && check->tensor != NULL) {
            status = tensor_spec_visit(check->tensor, visit, arg);
        }
        if (status != 0) {
            return status;
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
    NumberSlot *numbers = self->numbers;
    int num_numbers = self->num_numbers;
    self->numbers = NULL;
    self->num_nodes = self->num_checks = self->cap_nodes = self->cap_checks = self->num_numbers = self->cap_numbers = 0;
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
    for (int i = 0; i < num_numbers; i++) {
        Py_XDECREF(numbers[i].name);
    }
    PyMem_Free(nodes);
    PyMem_Free(checks);
    PyMem_Free(numbers);
    PyMem_Free(self->collect);
    self->collect = NULL;
    self->num_collect = 0;
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
    {"repeat", (PyCFunction)(void (*)(void))tree_repeat, METH_FASTCALL,
     "repeat(first, last, node, other, wanted, old, new, /)\n--\n\nAdds checks like earlier ones, of another node."},
    {"check_expr", (PyCFunction)(void (*)(void))tree_check_expr, METH_FASTCALL | METH_KEYWORDS,
     "check_expr(program, /, *, label)\n--\n\nAdds a check of an expression over slots and returns its index."},
    {"collect", (PyCFunction)tree_collect, METH_O,
     "collect(nodes, /)\n--\n\nHands the values of these nodes to the transformed code (take_inputs)."},
    {"slot", (PyCFunction)(void (*)(void))tree_slot, METH_VARARGS | METH_KEYWORDS,
     "slot(node, kind, dim, /, *, name=None, hint=None)\n--\n\nThe slot of a number: a size, a stride, an int or a float."},
    {"evaluate", (PyCFunction)(void (*)(void))tree_evaluate, METH_VARARGS | METH_KEYWORDS,
     "evaluate(args, globals=None, builtins=None, closure=None)\n--\n\nTrue, or (guard index, label, detail)."},
    {"matches", (PyCFunction)(void (*)(void))tree_matches, METH_VARARGS | METH_KEYWORDS,
     "matches(args, globals=None, builtins=None, closure=None)\n--\n\nWhether every guard holds."},
    {"describe", (PyCFunction)tree_describe, METH_NOARGS, "describe()\n--\n\nThe labels of the checks."},
    {"source", (PyCFunction)tree_source, METH_O, "source(node, /)\n--\n\nA readable path of a node."},
    {"checks_of", (PyCFunction)tree_checks_of, METH_O, "checks_of(node, /)\n--\n\n(index, kind) of the checks on a node."},
    {NULL},
};

static PyMemberDef tree_members[] = {
    {"num_guards", T_INT, offsetof(GuardTree, num_checks), READONLY, NULL},
    {"num_nodes", T_INT, offsetof(GuardTree, num_nodes), READONLY, NULL},
    {NULL},
};

static PyGetSetDef tree_getset[] = {{"dead", (getter)tree_dead, NULL, NULL, NULL}, {NULL}};

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
    .tp_members = tree_members,
    .tp_getset = tree_getset,
};
