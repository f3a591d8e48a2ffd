/* The "expr" check: a small postfix program over number slots and constants, with Python's semantics. What an int64 cannot
 * hold and what Python would raise for is a failed guard. */
#include "guards.h"

#include <math.h>

typedef enum {
    EX_ADD, EX_SUB, EX_MUL, EX_FLOORDIV, EX_MOD, EX_TRUEDIV, EX_MIN, EX_MAX, /* two numbers -> number */
    EX_EQ, EX_NE, EX_LT, EX_LE, EX_GT, EX_GE,                                /* two numbers -> bool */
    EX_AND, EX_OR,                                                          /* two bools -> bool */
    EX_NOT,                                                                 /* bool -> bool */
    EX_NEG, EX_ABS, EX_FLOAT, EX_SQRT,                                      /* number -> number */
    EX_FLOOR, EX_CEIL, EX_TRUNC, EX_ROUND,                                  /* number -> int */
    EX_CONST, EX_SLOT,
    NUM_EXPR_OPS = EX_CONST
} ExprOp;

static const char *const op_names[NUM_EXPR_OPS] = {
    "add", "sub", "mul", "floordiv", "mod", "truediv", "min", "max", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "not", "neg", "abs", "float", "sqrt", "floor", "ceil", "trunc", "round",
};

typedef enum { KIND_INT, KIND_FLOAT, KIND_BOOL } NumberKind;

typedef struct {
    uint8_t op;
    uint8_t left_float, right_float; /* of two operands; of one: right */
    int slot;
    Number value;
} Instruction;

struct Program {
    int count, depth;
    int num_slots;
    int *slots; /* those used, each once */
    Instruction *code;
};

#define MAX_DEPTH 128

void
program_free(Program *program)
{
    if (program != NULL) {
        PyMem_Free(program->slots);
        PyMem_Free(program->code);
        PyMem_Free(program);
    }
}

bool
program_same(const Program *a, const Program *b)
{
    return a->count == b->count && memcmp(a->code, b->code, a->count * sizeof(Instruction)) == 0;
}

int
program_slots(const Program *program, const int **slots)
{
    *slots = program->slots;
    return program->num_slots;
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

typedef struct {
    const GuardTree *tree;
    Program *program;
    NumberKind stack[MAX_DEPTH];
    int depth;
} Parser;

static int
push_kind(Parser *p, NumberKind kind)
{
    if (p->depth == MAX_DEPTH) {
        PyErr_Format(PyExc_ValueError, "an expression can hold at most %d values at a time", MAX_DEPTH);
        return -1;
    }
    p->stack[p->depth++] = kind;
    p->program->depth = p->depth > p->program->depth ? p->depth : p->program->depth;
    return 0;
}

static int
parse_constant(Parser *p, Instruction *to, PyObject *item)
{
    to->op = EX_CONST;
    if (PyBool_Check(item)) {
        to->value.i = item == Py_True;
        return push_kind(p, KIND_BOOL);
    }
    if (PyLong_CheckExact(item)) {
        to->value.i = PyLong_AsLongLong(item);
        return PyErr_Occurred() ? -1 : push_kind(p, KIND_INT);
    }
    if (PyFloat_CheckExact(item)) {
        to->value.d = PyFloat_AS_DOUBLE(item);
        return push_kind(p, KIND_FLOAT);
    }
    PyErr_Format(PyExc_TypeError, "an expression is made of numbers, operator names and (\"slot\", number), not %.100s",
                 Py_TYPE(item)->tp_name);
    return -1;
}

static int
parse_slot(Parser *p, Instruction *to, PyObject *pair)
{
    bool ok = PyTuple_GET_SIZE(pair) == 2 && PyUnicode_Check(PyTuple_GET_ITEM(pair, 0)) &&
              PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(pair, 0), "slot") == 0;
    long slot = ok ? PyLong_AsLong(PyTuple_GET_ITEM(pair, 1)) : -1;
    if (slot < 0 || slot >= p->tree->num_numbers) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "%R is no slot of this tree", pair);
        }
        return -1;
    }
    to->op = EX_SLOT;
    to->slot = (int)slot;
    Program *program = p->program;
    bool known = false;
    for (int i = 0; i < program->num_slots; i++) {
        known = known || program->slots[i] == to->slot;
    }
    if (!known) {
        program->slots[program->num_slots++] = to->slot;
    }
    return push_kind(p, number_is_float(&p->tree->numbers[slot]) ? KIND_FLOAT : KIND_INT);
}

static int
wrong_operands(ExprOp op)
{
    PyErr_Format(PyExc_TypeError, "operator \"%s\" cannot have these operands", op_names[op]);
    return -1;
}

static int
parse_operator(Parser *p, Instruction *to, PyObject *name)
{
    int op = 0;
    while (op < NUM_EXPR_OPS && PyUnicode_CompareWithASCIIString(name, op_names[op]) != 0) {
        op++;
    }
    if (op == NUM_EXPR_OPS) {
        PyErr_Format(PyExc_ValueError, "unknown operator %R", name);
        return -1;
    }
    int operands = op >= EX_NOT ? 1 : 2;
    if (p->depth < operands) {
        PyErr_Format(PyExc_ValueError, "operator \"%s\" finds fewer than %d operands", op_names[op], operands);
        return -1;
    }
    NumberKind right = p->stack[p->depth - 1], left = operands == 2 ? p->stack[p->depth - 2] : right;
    bool logical = op == EX_AND || op == EX_OR || op == EX_NOT;
    if (logical != (left == KIND_BOOL) || logical != (right == KIND_BOOL) ||
        ((op == EX_MIN || op == EX_MAX) && left != right)) {
        return wrong_operands((ExprOp)op);
    }
    p->depth -= operands;
    to->op = (uint8_t)op;
    to->left_float = left == KIND_FLOAT;
    to->right_float = right == KIND_FLOAT;
    if (logical || (op >= EX_EQ && op <= EX_GE)) {
        return push_kind(p, KIND_BOOL);
    }
    if (op >= EX_FLOOR) {
        return push_kind(p, KIND_INT);
    }
    bool to_float = left == KIND_FLOAT || right == KIND_FLOAT || op == EX_TRUEDIV || op == EX_FLOAT || op == EX_SQRT;
    return push_kind(p, to_float ? KIND_FLOAT : KIND_INT);
}

Program *
program_parse(const GuardTree *tree, PyObject *items)
{
    if (!PyTuple_Check(items)) {
        PyErr_Format(PyExc_TypeError, "an expression is a tuple, not %.100s", Py_TYPE(items)->tp_name);
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    Program *program = count > INT_MAX ? NULL : PyMem_Calloc(1, sizeof(Program));
    Parser p = {.tree = tree, .program = program};
    if (program != NULL) {
        program->count = (int)count;
        program->slots = PyMem_Calloc(count + 1, sizeof(int));
        program->code = PyMem_Calloc(count + 1, sizeof(Instruction));
    }
    if (program == NULL || program->slots == NULL || program->code == NULL) {
        program_free(program);
        PyErr_NoMemory();
        return NULL;
    }
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        Instruction *to = &program->code[i];
        status = PyTuple_Check(item)     ? parse_slot(&p, to, item)
                 : PyUnicode_Check(item) ? parse_operator(&p, to, item)
                                         : parse_constant(&p, to, item);
    }
    if (status == 0 && (p.depth != 1 || p.stack[0] != KIND_BOOL)) {
        PyErr_SetString(PyExc_ValueError, "an expression must leave one truth value");
        status = -1;
    }
    if (status < 0) {
        program_free(program);
        return NULL;
    }
    return program;
}

/* ---- computing ------------------------------------------------------------------------------------------------- */

typedef enum { RUN_OK, RUN_OVERFLOW, RUN_ZERO_DIVISION, RUN_UNDEFINED } RunStatus;

#define EXACT_DOUBLE (1LL << 53) /* up to here every integer is a double, and so dividing doubles rounds as dividing ints does */

static RunStatus
divide_int(ExprOp op, int64_t a, int64_t b, Number *out)
{
    if (b == 0) {
        return RUN_ZERO_DIVISION;
    }
    if (op == EX_TRUEDIV) {
        bool exact = a >= -EXACT_DOUBLE && a <= EXACT_DOUBLE && b >= -EXACT_DOUBLE && b <= EXACT_DOUBLE;
        out->d = exact ? (double)a / (double)b : 0.0;
        return exact ? RUN_OK : RUN_OVERFLOW;
    }
    if (b == -1) { /* the one quotient that may not fit */
        out->i = 0;
        return op == EX_MOD || !__builtin_sub_overflow(0, a, &out->i) ? RUN_OK : RUN_OVERFLOW;
    }
    int64_t quotient = a / b, rest = a % b; /* towards zero: one less where the signs differ */
    bool down = rest != 0 && (rest < 0) != (b < 0);
    out->i = op == EX_MOD ? rest + (down ? b : 0) : quotient - down;
    return RUN_OK;
}

static RunStatus
compute_int(ExprOp op, int64_t a, int64_t b, Number *out)
{
    switch (op) {
    case EX_ADD:
        return __builtin_add_overflow(a, b, &out->i) ? RUN_OVERFLOW : RUN_OK;
    case EX_SUB:
        return __builtin_sub_overflow(a, b, &out->i) ? RUN_OVERFLOW : RUN_OK;
    case EX_MUL:
        return __builtin_mul_overflow(a, b, &out->i) ? RUN_OVERFLOW : RUN_OK;
    case EX_MIN:
        out->i = b < a ? b : a;
        return RUN_OK;
    case EX_MAX:
        out->i = b > a ? b : a;
        return RUN_OK;
    default:
        return divide_int(op, a, b, out);
    }
}

/* Floor division and the rest with the sign of the divisor, as Python rounds them. */
static void
divide_float(double a, double b, double *quotient, double *rest)
{
    double r = fmod(a, b), q = (a - r) / b;
    if (r != 0.0) {
        if ((b < 0.0) != (r < 0.0)) {
            r += b;
            q -= 1.0;
        }
    }
    else {
        r = copysign(0.0, b);
    }
    if (q != 0.0) {
        double low = floor(q);
        q = q - low > 0.5 ? low + 1.0 : low;
    }
    else {
        q = copysign(0.0, a / b);
    }
    *quotient = q;
    *rest = r;
}

static RunStatus
compute_float(ExprOp op, double a, double b, Number *out)
{
    double quotient, rest;
    switch (op) {
    case EX_ADD:
        out->d = a + b;
        return RUN_OK;
    case EX_SUB:
        out->d = a - b;
        return RUN_OK;
    case EX_MUL:
        out->d = a * b;
        return RUN_OK;
    case EX_MIN:
        out->d = b < a ? b : a;
        return RUN_OK;
    case EX_MAX:
        out->d = b > a ? b : a;
        return RUN_OK;
    default:
        if (b == 0.0) {
            return RUN_ZERO_DIVISION;
        }
        if (op == EX_TRUEDIV) {
            out->d = a / b;
            return RUN_OK;
        }
        divide_float(a, b, &quotient, &rest);
        out->d = op == EX_MOD ? rest : quotient;
        return RUN_OK;
    }
}

typedef enum { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8 } Order;

static Order
order_int(int64_t a, int64_t b)
{
    return a < b ? LESS : a > b ? GREATER : EQUAL;
}

static Order
order_float(double a, double b)
{
    return a < b ? LESS : a > b ? GREATER : a == b ? EQUAL : UNORDERED;
}

/* Exact, as Python compares an int with a float. */
static Order
order_mixed(int64_t a, double b)
{
    if (isnan(b)) {
        return UNORDERED;
    }
    if (b >= 0x1p63) {
        return LESS;
    }
    if (b < -0x1p63) {
        return GREATER;
    }
    int64_t whole = (int64_t)b;
    return a != whole ? order_int(a, whole) : order_float(0.0, b - (double)whole);
}

static Order
order_of(const Instruction *at, Number a, Number b)
{
    if (at->left_float == at->right_float) {
        return at->left_float ? order_float(a.d, b.d) : order_int(a.i, b.i);
    }
    if (at->right_float) {
        return order_mixed(a.i, b.d);
    }
    Order order = order_mixed(b.i, a.d);
    return order == LESS ? GREATER : order == GREATER ? LESS : order;
}

static bool
compare(const Instruction *at, Number a, Number b)
{
    static const int holds[] = {EQUAL, LESS | GREATER | UNORDERED, LESS, LESS | EQUAL, GREATER, GREATER | EQUAL};
    return (order_of(at, a, b) & holds[at->op - EX_EQ]) != 0;
}

static RunStatus
whole_number(ExprOp op, double value, Number *out)
{
    double whole = op == EX_FLOOR  ? floor(value)
                   : op == EX_CEIL ? ceil(value)
                   : op == EX_TRUNC ? trunc(value)
                                    : rint(value); /* half to even, the mode that a process starts with */
    if (!(whole >= -0x1p63 && whole < 0x1p63)) {
        return RUN_OVERFLOW;
    }
    out->i = (int64_t)whole;
    return RUN_OK;
}

static RunStatus
compute_unary(const Instruction *at, Number *value)
{
    bool is_float = at->right_float;
    switch ((ExprOp)at->op) {
    case EX_NOT:
        value->i = !value->i;
        return RUN_OK;
    case EX_NEG:
    case EX_ABS:
        if (is_float) {
            value->d = at->op == EX_NEG ? -value->d : fabs(value->d);
            return RUN_OK;
        }
        if (at->op == EX_ABS && value->i >= 0) {
            return RUN_OK;
        }
        return __builtin_sub_overflow(0, value->i, &value->i) ? RUN_OVERFLOW : RUN_OK;
    case EX_FLOAT:
        value->d = is_float ? value->d : (double)value->i;
        return RUN_OK;
    case EX_SQRT:
        value->d = is_float ? value->d : (double)value->i;
        if (value->d < 0.0) {
            return RUN_UNDEFINED;
        }
        value->d = sqrt(value->d);
        return RUN_OK;
    default:
        return is_float ? whole_number((ExprOp)at->op, value->d, value) : RUN_OK;
    }
}

static RunStatus
run_program(const Program *program, const Number *numbers, Number *result)
{
    Number stack[MAX_DEPTH];
    int depth = 0;
    for (int k = 0; k < program->count; k++) {
        const Instruction *at = &program->code[k];
        RunStatus status = RUN_OK;
        if (at->op >= EX_CONST) {
            stack[depth++] = at->op == EX_CONST ? at->value : numbers[at->slot];
            continue;
        }
        if (at->op >= EX_NOT) {
            status = compute_unary(at, &stack[depth - 1]);
        }
        else {
            Number right = stack[--depth], left = stack[depth - 1], *to = &stack[depth - 1];
            if (at->op == EX_AND || at->op == EX_OR) {
                to->i = at->op == EX_AND ? left.i && right.i : left.i || right.i;
            }
            else if (at->op >= EX_EQ) {
                to->i = compare(at, left, right);
            }
            else if (at->left_float || at->right_float) {
                status = compute_float((ExprOp)at->op, at->left_float ? left.d : (double)left.i,
                                       at->right_float ? right.d : (double)right.i, to);
            }
            else {
                status = compute_int((ExprOp)at->op, left.i, right.i, to);
            }
        }
        if (status != RUN_OK) {
            return status;
        }
    }
    *result = stack[0];
    return RUN_OK;
}

bool
program_holds(const Program *program, const Number *numbers)
{
    Number result;
    return run_program(program, numbers, &result) == RUN_OK && result.i;
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

/* "L['x'].size()[0] was 8, is 10; L['n'] is 0: division by zero" */
PyObject *
program_detail(const Program *program, const Walk *walk)
{
    static const char *const trouble[] = {"", ": a number beyond 64 bits", ": division by zero", ": square root of a negative"};
    Number result;
    RunStatus status = run_program(program, walk->numbers, &result);
    PyObject *parts = PyList_New(0);
    for (int i = 0; parts != NULL && i < program->num_slots; i++) {
        int slot = program->slots[i];
        PyObject *part = number_detail(walk->tree, &walk->tree->numbers[slot], walk->numbers[slot]);
        if (part == NULL || PyList_Append(parts, part) < 0) {
            Py_CLEAR(parts);
        }
        Py_XDECREF(part);
    }
    PyObject *joint = parts == NULL ? NULL : PyUnicode_FromString("; ");
    PyObject *values = joint == NULL ? NULL : PyUnicode_Join(joint, parts);
    PyObject *text = values == NULL ? NULL : PyUnicode_FromFormat("%U%s", values, trouble[status]);
    Py_XDECREF(parts);
    Py_XDECREF(joint);
    Py_XDECREF(values);
    return text;
}
