/* Checks like earlier ones, of another node and of what is found below it: like parts of a program are guarded alike. */
#include "guards.h"

/* The node that is to another node what `number` is to the first one; `number` itself where it is not below that.
 * `map` has those that are known, -1 for the others. Returns -1 with an exception. */
static int
mapped_node(GuardTree *tree, int *map, int number)
{
    if (map[number] >= 0) {
        return map[number];
    }
    int parent = tree->nodes[number].parent;
    int moved = parent < 0 ? parent : mapped_node(tree, map, parent);
    if (moved < 0 && parent >= 0) {
        return -1;
    }
    if (moved == parent) {
        return map[number] = number;
    }
    Node node = tree->nodes[number];
    node.parent = moved;
    node.last_check = -1;
    Py_XINCREF(node.arg);
    PyObject *index = tree_place_node(tree, node, node.arg);
    if (index == NULL) {
        return -1;
    }
    map[number] = (int)PyLong_AsLong(index);
    Py_DECREF(index);
    return map[number];
}

/* `label` with another beginning. */
static PyObject *
mapped_label(PyObject *label, PyObject *old, PyObject *new)
{
    if (PyUnicode_Tailmatch(label, old, 0, PY_SSIZE_T_MAX, -1) != 1) {
        return PyErr_Format(PyExc_ValueError, "label %R does not begin with %R", label, old);
    }
    PyObject *rest = PyUnicode_Substring(label, PyUnicode_GET_LENGTH(old), PyUnicode_GET_LENGTH(label));
    PyObject *text = rest == NULL ? NULL : PyUnicode_Concat(new, rest);
    Py_XDECREF(rest);
    return text;
}

static int
repeat_check(GuardTree *tree, int *map, const Check *from, PyObject *old, PyObject *new)
{
    if (from->names != NULL || from->functions != NULL || from->state != NULL || from->program != NULL || from->node == 0) {
        PyErr_Format(PyExc_ValueError, "check \"%s\" cannot be repeated", kind_table[from->kind].name);
        return -1;
    }
    Check check = *from;
    check.label = mapped_label(from->label, old, new);
    check.node = check.label == NULL ? -1 : mapped_node(tree, map, check.node);
    check.nodes = check.node < 0 || check.num_nodes == 0 ? NULL : PyMem_Malloc(check.num_nodes * sizeof(int));
    bool ok = check.node >= 0 && (check.nodes != NULL || check.num_nodes == 0);
    for (int i = 0; ok && i < check.num_nodes; i++) {
        check.nodes[i] = mapped_node(tree, map, from->nodes[i]);
        ok = check.nodes[i] >= 0;
    }
    if (!ok) {
        Py_XDECREF(check.label);
        PyMem_Free(check.nodes);
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    }
    Py_XINCREF(check.a);
    Py_XINCREF(check.b);
    check.tensor = tensor_spec_shared(check.tensor);
    PyObject *index = tree_add_check(tree, check);
    Py_XDECREF(index);
    return index == NULL ? -1 : 0;
}

static PyObject *
wanted_nodes(GuardTree *tree, int *map, PyObject *wanted, int known)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(wanted); i++) {
        int number = node_from_object(tree, PyTuple_GET_ITEM(wanted, i));
        if (number >= known) {
            PyErr_Format(PyExc_ValueError, "node %d is not among the earlier ones", number);
        }
        number = number < 0 || number >= known ? -1 : mapped_node(tree, map, number);
        PyObject *item = number < 0 ? NULL : PyLong_FromLong(number);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

PyObject *
tree_repeat(GuardTree *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7 || !PyLong_Check(args[0]) || !PyLong_Check(args[1]) || !PyTuple_Check(args[4]) || !PyUnicode_Check(args[5]) ||
        !PyUnicode_Check(args[6])) {
        return PyErr_Format(PyExc_TypeError, "repeat takes two ints, two nodes, a tuple of nodes and two strs");
    }
    long first = PyLong_AsLong(args[0]), last = PyLong_AsLong(args[1]);
    int node = node_from_object(self, args[2]), other = node < 0 ? -1 : node_from_object(self, args[3]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (first < 0 || last < first || last > self->num_checks || node == 0 || other == 0 || node == other) {
        return PyErr_Format(PyExc_ValueError, "there are no such checks, or no two such nodes");
    }
    int known = self->num_nodes;
    int *map = PyMem_Malloc(known * sizeof(int));
    if (map == NULL) {
        return PyErr_NoMemory();
    }
    memset(map, -1, known * sizeof(int));
    map[0] = 0;
    map[node] = other;
    bool ok = true;
    for (long i = first; ok && i < last; i++) {
        Check from = self->checks[i]; /* which adding may move */
        ok = repeat_check(self, map, &from, args[5], args[6]) == 0;
    }
    PyObject *list = ok ? wanted_nodes(self, map, args[4], known) : NULL;
    PyMem_Free(map);
    return list;
}
