/* The "global_state" check: Python functions without arguments give the answers that they gave.
 *
 * Some of them have a stand-in in torch's libraries (state_reads.py), whose number is read in a few nanoseconds. The number
 * that went with an answer that held is remembered with the check; while it is read again, the answer is the same. So it is
 * with a function whose attribute "variable" is a context variable: it answers by what that holds, which is only ever
 * replaced. With anything else, and for functions without a stand-in, the Python function is asked. */
#include "guards.h"

enum { READ_PLAIN, READ_POINTED, READ_OF_OBJECT, READ_OF_NUMBER }; /* as in state_reads.py */

typedef struct {
    PyObject *asked; /* strong */
    int kind;
    uint64_t mask;   /* of the bits that count */
    uintptr_t address, argument;
    int64_t certain; /* the number that means one answer only; -1: each does */
    int bars;        /* nothing is captured while it is not 0 */
} StateRead;

#define MAX_READS 16
static StateRead reads[MAX_READS];
static int num_reads = -1; /* not learnt yet */

struct StateTable {
    Py_ssize_t count;
    struct {
        const StateRead *read; /* NULL: ask Python */
        bool known;
        uint64_t held; /* what was read when the answer held */
        PyObject *variable, *value; /* strong or NULL: a context variable, and what it held then */
    } entries[];
};

static uint64_t
read_now(const StateRead *read)
{
    switch (read->kind) {
    case READ_PLAIN:
        return ((uint64_t(*)(void))read->address)() & read->mask;
    case READ_POINTED:
        return (uint64_t)(uintptr_t)*((void **(*)(void))read->address)();
    case READ_OF_OBJECT:
        return ((uint64_t(*)(const void *))read->address)((const void *)read->argument) & read->mask;
    default: /* READ_OF_NUMBER */
        return ((uint64_t(*)(uint64_t))read->address)((uint64_t)read->argument) & read->mask;
    }
}

static int
learn_one(PyObject *row, StateRead *read)
{
    int bits;
    unsigned long long address, argument;
    long long certain;
    if (!PyArg_ParseTuple(row, "OiiKKLp", &read->asked, &read->kind, &bits, &address, &argument, &certain, &read->bars)) {
        return -1;
    }
    Py_INCREF(read->asked);
    read->mask = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    read->address = (uintptr_t)address;
    read->argument = (uintptr_t)argument;
    read->certain = certain;
    return 0;
}

/* Once a process. Nothing is trusted when this fails. -1 with an exception that is none of its own (Ctrl-C). */
static int
learn(void)
{
    num_reads = 0;
    PyObject *module = PyImport_ImportModule("argand._core.state_reads");
    PyObject *rows = module == NULL ? NULL : PyObject_CallMethod(module, "reads", NULL);
    for (Py_ssize_t i = 0; rows != NULL && PyList_Check(rows) && i < PyList_GET_SIZE(rows) && num_reads < MAX_READS; i++) {
        if (learn_one(PyList_GET_ITEM(rows, i), &reads[num_reads]) < 0) {
            break;
        }
        num_reads++;
    }
    Py_XDECREF(rows);
    Py_XDECREF(module);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) {
        num_reads = -1; /* again next time */
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static const StateRead *
read_of(PyObject *asked)
{
    for (int i = 0; i < num_reads; i++) {
        if (reads[i].asked == asked) {
            return &reads[i];
        }
    }
    return NULL;
}

/* New reference or NULL, without an exception. */
static PyObject *
variable_of(PyObject *asked)
{
    PyObject *names = PyFunction_Check(asked) ? ((PyFunctionObject *)asked)->func_dict : NULL;
    PyObject *variable = names == NULL ? NULL : PyDict_GetItemString(names, "variable");
    return variable != NULL && PyContextVar_CheckExact(variable) ? Py_NewRef(variable) : NULL;
}

/* What the variable of an entry holds now: a new reference, NULL without an exception. */
static PyObject *
variable_now(PyObject *variable)
{
    PyObject *value = NULL;
    if (variable != NULL && PyContextVar_Get(variable, NULL, &value) < 0) {
        PyErr_Clear();
    }
    return value;
}

/* For a tuple of (callable, expected). NULL with an exception. */
StateTable *
state_table_new(PyObject *pairs)
{
    if (num_reads < 0 && learn() < 0) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    StateTable *table = PyMem_Calloc(1, sizeof(StateTable) + count * sizeof(table->entries[0]));
    if (table == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    table->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *asked = PyTuple_GET_ITEM(PyTuple_GET_ITEM(pairs, i), 0);
        table->entries[i].read = read_of(asked);
        table->entries[i].variable = variable_of(asked);
    }
    return table;
}

void
state_table_free(StateTable *table)
{
    for (Py_ssize_t i = 0; table != NULL && i < table->count; i++) {
        Py_XDECREF(table->entries[i].variable);
        Py_XDECREF(table->entries[i].value);
    }
    PyMem_Free(table);
}

/* Index of the first pair that does not hold, the number of pairs when all hold, -1 with an exception. */
Py_ssize_t
check_first_changed_state(const Check *check)
{
    StateTable *table = check->state;
    for (Py_ssize_t i = 0; i < table->count; i++) {
        const StateRead *read = table->entries[i].read;
        uint64_t now = read == NULL ? 0 : read_now(read);
        if (LIKELY(read != NULL && table->entries[i].known && table->entries[i].held == now)) {
            continue;
        }
        PyObject *value = variable_now(table->entries[i].variable);
        if (value != NULL && value == table->entries[i].value) {
            Py_DECREF(value);
            continue;
        }
        PyObject *pair = PyTuple_GET_ITEM(check->a, i);
        int status = compare_result(PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0)), PyTuple_GET_ITEM(pair, 1));
        if (status <= 0) {
            Py_XDECREF(value);
            return status < 0 ? -1 : i;
        }
        Py_XSETREF(table->entries[i].value, value);
        if (read != NULL && (read->certain < 0 || (uint64_t)read->certain == now) && read_now(read) == now) {
            table->entries[i].held = now;
            table->entries[i].known = true;
        }
    }
    return table->count;
}

uint64_t
state_at_sight(void)
{
    return num_reads > 0 ? read_now(&reads[0]) : 0; /* state_reads.py has the grad mode first; each read takes memory */
}

bool
state_bars_capture(void)
{
    for (int i = 0; i < num_reads; i++) {
        if (reads[i].bars && read_now(&reads[i]) != 0) {
            return true;
        }
    }
    return false;
}

int
state_is_set(PyObject *asked)
{
    static const StateRead *read;
    if (UNLIKELY(read == NULL || read->asked != asked)) {
        read = read_of(asked);
        if (read == NULL) {
            int is_none = compare_result(PyObject_CallNoArgs(asked), Py_None);
            return is_none < 0 ? -1 : !is_none;
        }
    }
    return read_now(read) != (uint64_t)read->certain;
}
