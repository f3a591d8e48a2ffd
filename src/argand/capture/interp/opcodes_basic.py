"""Opcodes that move values: stack, constants, locals, globals, cells, names, attributes, operators, calls."""

from __future__ import annotations

from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import PY312, PY313
from argand.capture.facts.frames import NULL, RETURN, Frame, LazyLocal
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.sources import ConstSource
from argand.capture.facts.values.symbolic import SymbolicBool
from argand.capture.interp.optable import enter, opcode, root_opcode
from argand.capture.objects import attribute_writes, attributes, names, operators
from argand.capture.objects.call_protocol import calls, classes
from argand.capture.world import pending_effects
from argand.graph.python_operators import BINARY, COMPARE, INVERT, NEGATIVE, POSITIVE, BinaryOperator, Comparison

# ---- no effect -----------------------------------------------------------------------------------------------------


@opcode("NOP", "RESUME")
@opcode("PRECALL", until=(3, 11))
def nothing(interp: Interpreter, frame: Frame, arg: object) -> None:
    """Nothing to do here."""


# ---- stack ---------------------------------------------------------------------------------------------------------


@opcode("POP_TOP")
@opcode("END_FOR", since=(3, 13))
def pop_top(interp: Interpreter, frame: Frame, arg: object) -> None:
    top = frame.stack.pop()
    if id(type(top)) in pending_effects.ITERATORS and interp.is_outer(top):
        pending_effects.refuse_drop(top)


@opcode("END_FOR", since=(3, 12), until=(3, 12))
def end_for_312(interp: Interpreter, frame: Frame, arg: object) -> None:
    del frame.stack[-2:]


@opcode("SWAP")
def swap(interp: Interpreter, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-arg], stack[-1] = stack[-1], stack[-arg]


@opcode("RETURN_VALUE")
def return_value(interp: Interpreter, frame: Frame, arg: object) -> object:
    frame.result = frame.stack.pop()
    return RETURN


@opcode("RETURN_CONST", since=(3, 12))
def return_const(interp: Interpreter, frame: Frame, arg: object) -> object:
    frame.result = _of_code(interp, arg)
    return RETURN


enter({
    "PUSH_NULL": lambda interp, frame, arg: frame.stack.append(NULL),
    "COPY": lambda interp, frame, arg: frame.stack.append(frame.stack[-arg]),
    "LOAD_CONST": lambda interp, frame, arg: frame.stack.append(_of_code(interp, arg)),
    "LOAD_CLOSURE": lambda interp, frame, arg: frame.stack.append(frame.fast[arg]),
})  # fmt: skip


def _of_code(interp: Interpreter, value: object) -> object:
    """A constant; a NaN is the same one in each call."""
    if value.__class__ is float and value != value:
        interp.state.load_source(ConstSource(value), value)
    return value


# ---- fast locals ---------------------------------------------------------------------------------------------------


def unbound_local(interp: Interpreter, frame: Frame, slot: int) -> BaseException:
    name = frame.program.names[slot]
    return interp.throw(
        UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    )


@opcode("LOAD_FAST")
@opcode("LOAD_FAST_CHECK", since=(3, 12))
def load_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.fast[arg]
    if value is NULL:
        raise unbound_local(interp, frame, arg)
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR", since=(3, 12))
def load_fast_and_clear(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.stack.append(read_argument(interp, frame, arg))
    frame.fast[arg] = NULL


@opcode("LOAD_FAST_LOAD_FAST", since=(3, 13))
def load_fast_load_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    frame.stack.append(frame.fast[arg[0]])
    frame.stack.append(frame.fast[arg[1]])


@opcode("STORE_FAST")
def store_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.fast[arg] = frame.stack.pop()


@opcode("STORE_FAST_LOAD_FAST", since=(3, 13))
def store_fast_load_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    frame.fast[arg[0]] = frame.stack.pop()
    frame.stack.append(frame.fast[arg[1]])


@opcode("STORE_FAST_STORE_FAST", since=(3, 13))
def store_fast_store_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    frame.fast[arg[0]] = frame.stack.pop()
    frame.fast[arg[1]] = frame.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    if frame.fast[arg] is NULL:
        raise unbound_local(interp, frame, arg)
    frame.fast[arg] = NULL


# The root frame's arguments are read, and guarded, when they are first needed.


def read_argument(interp: Interpreter, frame: Frame, slot: int) -> object:
    value = frame.fast[slot]
    if type(value) is LazyLocal:
        value = frame.fast[slot] = interp.load_argument(value)
    return value


def _drop(interp: Interpreter, frame: Frame, slot: int) -> None:
    """A variable of the root frame lets go of what it holds."""
    held = frame.fast[slot]
    if type(held) is LazyLocal or (held is not NULL and interp.is_outer(held)):
        obj = held.value if type(held) is LazyLocal else held
        others = [*frame.stack, *frame.fast[:slot], *frame.fast[slot + 1 :]]  # a resume function moves what it is given
        if not any((other.value if type(other) is LazyLocal else other) is obj for other in others):
            pending_effects.refuse_drop(obj)


@root_opcode("DELETE_FAST")
def root_delete_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    _drop(interp, frame, arg)
    delete_fast(interp, frame, arg)


@root_opcode("STORE_FAST")
def root_store_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    _drop(interp, frame, arg)
    frame.fast[arg] = frame.stack.pop()


@root_opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def root_load_fast(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = read_argument(interp, frame, arg)
    if value is NULL:
        raise unbound_local(interp, frame, arg)
    frame.stack.append(value)


@root_opcode("LOAD_FAST_LOAD_FAST")
def root_load_fast_load_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    frame.stack.append(read_argument(interp, frame, arg[0]))
    frame.stack.append(read_argument(interp, frame, arg[1]))


@root_opcode("STORE_FAST_LOAD_FAST")
def root_store_fast_load_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    _drop(interp, frame, arg[0])
    frame.fast[arg[0]] = frame.stack.pop()
    frame.stack.append(read_argument(interp, frame, arg[1]))


@root_opcode("STORE_FAST_STORE_FAST")
def root_store_fast_store_fast(interp: Interpreter, frame: Frame, arg: tuple[int, int]) -> None:
    for slot in arg:
        _drop(interp, frame, slot)
    store_fast_store_fast(interp, frame, arg)


# ---- cells ---------------------------------------------------------------------------------------------------------


@opcode("MAKE_CELL")
def make_cell(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.fast[arg] = names.new_cell(interp, read_argument(interp, frame, arg))


enter({
    "COPY_FREE_VARS": names.bind_free_variables,
    "STORE_DEREF": lambda interp, frame, arg: names.write_cell(interp, frame.fast[arg], frame.stack.pop()),
})  # fmt: skip


@opcode("LOAD_DEREF")
def load_deref(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = names.read_cell(interp, frame.fast[arg])
    if value is NULL:
        raise names.unbound_cell(interp, frame, arg)
    frame.stack.append(value)


@opcode("DELETE_DEREF")
def delete_deref(interp: Interpreter, frame: Frame, arg: int) -> None:
    cell = frame.fast[arg]
    if names.read_cell(interp, cell) is NULL:
        raise names.unbound_cell(interp, frame, arg)
    names.write_cell(interp, cell, NULL)


@opcode("LOAD_CLASSDEREF", until=(3, 11))
@opcode("LOAD_FROM_DICT_OR_DEREF", since=(3, 12))
def load_class_deref(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = names.lookup_in(interp, frame.stack.pop() if PY312 else frame.locals, frame.program.names[arg])
    if value is NULL:
        load_deref(interp, frame, arg)
    else:
        frame.stack.append(value)


# ---- globals and names ---------------------------------------------------------------------------------------------


def _push_name(interp: Interpreter, frame: Frame, mapping: object, name: str) -> None:
    value = names.lookup_in(interp, mapping, name)
    frame.stack.append(names.load_global(interp, frame, name) if value is NULL else value)


enter({
    "STORE_GLOBAL": lambda interp, frame, arg: names.store_global(interp, frame.globals, arg, frame.stack.pop()),
    "DELETE_GLOBAL": names.delete_global,
    "LOAD_NAME": lambda interp, frame, arg: _push_name(interp, frame, frame.locals, arg),
    "STORE_NAME": lambda interp, frame, arg: operators.setitem(interp, frame.locals, arg, frame.stack.pop()),
    "DELETE_NAME": names.delete_name,
    "LOAD_BUILD_CLASS":
        lambda interp, frame, arg: frame.stack.append(names.load_builtin(interp, frame, "__build_class__")),
    "LOAD_ASSERTION_ERROR": lambda interp, frame, arg: frame.stack.append(AssertionError),
    "IMPORT_FROM": lambda interp, frame, arg: frame.stack.append(names.import_from(interp, frame.stack[-1], arg)),
    "DELETE_ATTR": lambda interp, frame, arg: attribute_writes.delete_attr(interp, frame.stack.pop(), arg),
})  # fmt: skip
enter({
    "LOAD_LOCALS": lambda interp, frame, arg: frame.stack.append(frame.locals),
    "LOAD_FROM_DICT_OR_GLOBALS": lambda interp, frame, arg: _push_name(interp, frame, frame.stack.pop(), arg),
}, since=(3, 12))  # fmt: skip


def _prepare_load_global(inst: Instruction, index: dict[Instruction, int]) -> tuple[str, bool]:
    return inst.argval, inst.push_null


@opcode("LOAD_GLOBAL", since=(3, 13), prepare=_prepare_load_global)
def load_global_313(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    frame.stack.append(names.load_global(interp, frame, arg[0]))
    if arg[1]:
        frame.stack.append(NULL)


@opcode("LOAD_GLOBAL", until=(3, 12), prepare=_prepare_load_global)
def load_global(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    if arg[1]:
        frame.stack.append(NULL)
    frame.stack.append(names.load_global(interp, frame, arg[0]))


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(interp: Interpreter, frame: Frame, arg: object) -> None:
    if names.lookup_in(interp, frame.locals, "__annotations__") is NULL:
        operators.setitem(interp, frame.locals, "__annotations__", {})


# ---- imports -------------------------------------------------------------------------------------------------------


@opcode("IMPORT_NAME")
def import_name(interp: Interpreter, frame: Frame, arg: str) -> None:
    fromlist = frame.stack.pop()
    level = frame.stack.pop()
    frame.stack.append(names.import_module(interp, frame, arg, fromlist, level))


# ---- attributes ----------------------------------------------------------------------------------------------------


def _push_method(frame: Frame, method: object, owner: object) -> None:
    """(function, self) for a method, (NULL, value) for anything else; on 3.13 the callable comes first."""
    if owner is NULL and not PY313:
        frame.stack.append(NULL)
        frame.stack.append(method)
    else:
        frame.stack.append(method)
        frame.stack.append(owner)


@opcode("LOAD_METHOD", until=(3, 11))
def load_method(interp: Interpreter, frame: Frame, arg: str) -> None:
    method, owner = attributes.load_method(interp, frame.stack.pop(), arg)
    _push_method(frame, method, owner)


def _prepare_load_attr(inst: Instruction, index: dict[Instruction, int]) -> tuple[str, bool]:
    return inst.argval, inst.is_method


@opcode("LOAD_ATTR", since=(3, 12), prepare=_prepare_load_attr)
def load_attr(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    if arg[1]:
        method, owner = attributes.load_method(interp, frame.stack.pop(), arg[0])
        _push_method(frame, method, owner)
    else:
        frame.stack[-1] = interp.getattr(frame.stack[-1], arg[0])


@opcode("LOAD_ATTR", until=(3, 11))
def load_attr_311(interp: Interpreter, frame: Frame, arg: str) -> None:
    frame.stack[-1] = interp.getattr(frame.stack[-1], arg)


def _prepare_super(inst: Instruction, index: dict[Instruction, int]) -> tuple[str, bool, bool]:
    return inst.argval, inst.is_method, inst.is_two_arg_super


@opcode("LOAD_SUPER_ATTR", since=(3, 12), prepare=_prepare_super)
def load_super_attr(interp: Interpreter, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, is_method, _two = arg
    obj = frame.stack.pop()
    cls = frame.stack.pop()
    make = frame.stack.pop()
    proxy = interp.call(make, (cls, obj))
    if is_method:
        method, owner = attributes.load_method(interp, proxy, name)
        _push_method(frame, method, owner)
    else:
        frame.stack.append(interp.getattr(proxy, name))


@opcode("STORE_ATTR")
def store_attr(interp: Interpreter, frame: Frame, arg: str) -> None:
    obj = frame.stack.pop()
    value = frame.stack.pop()
    interp.setattr(obj, arg, value)


# ---- operators -----------------------------------------------------------------------------------------------------


@opcode("BINARY_OP", prepare=lambda inst, index: BINARY[inst.argval])
def binary_op(interp: Interpreter, frame: Frame, arg: BinaryOperator) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.stack.append(operators.binary(interp, arg, left, right))


@opcode("BINARY_SUBSCR")
def binary_subscr(interp: Interpreter, frame: Frame, arg: object) -> None:
    key = frame.stack.pop()
    frame.stack[-1] = interp.getitem(frame.stack[-1], key)


@opcode("STORE_SUBSCR")
def store_subscr(interp: Interpreter, frame: Frame, arg: object) -> None:
    key = frame.stack.pop()
    container = frame.stack.pop()
    operators.setitem(interp, container, key, frame.stack.pop())


@opcode("DELETE_SUBSCR")
def delete_subscr(interp: Interpreter, frame: Frame, arg: object) -> None:
    key = frame.stack.pop()
    operators.delitem(interp, frame.stack.pop(), key)


@opcode("BINARY_SLICE", since=(3, 12))
def binary_slice(interp: Interpreter, frame: Frame, arg: object) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    frame.stack[-1] = interp.getitem(frame.stack[-1], slice(start, stop))


@opcode("STORE_SLICE", since=(3, 12))
def store_slice(interp: Interpreter, frame: Frame, arg: object) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    container = frame.stack.pop()
    operators.setitem(interp, container, slice(start, stop), frame.stack.pop())


enter({
    "UNARY_NEGATIVE": lambda interp, value, arg: operators.unary(interp, NEGATIVE, value),
    "UNARY_INVERT": lambda interp, value, arg: operators.unary(interp, INVERT, value),
    "UNARY_NOT": lambda interp, value, arg: not interp.truth(value),
}, on_top=True)  # fmt: skip
enter(
    {"UNARY_POSITIVE": lambda interp, value, arg: operators.unary(interp, POSITIVE, value)}, until=(3, 11), on_top=True
)


def _prepare_compare(inst: Instruction, index: dict[Instruction, int]) -> tuple[Comparison, bool]:
    return COMPARE[inst.argval], inst.to_bool


@opcode("COMPARE_OP", prepare=_prepare_compare)
def compare_op(interp: Interpreter, frame: Frame, arg: tuple[Comparison, bool]) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    result = operators.compare(interp, arg[0], left, right)
    # A tensor stays what it is: the jump that follows is where the graph breaks, or goes on under a check.
    if arg[1] and type(result) is not bool and type(result) is not SymbolicBool and not interp.is_tensor(result):
        result = interp.truth(result)
    frame.stack.append(result)


@opcode("IS_OP")
def is_op(interp: Interpreter, frame: Frame, arg: str) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    same = operators.identical(interp, left, right)
    frame.stack.append(same if arg == "is" else not same)


@opcode("CONTAINS_OP")
def contains_op(interp: Interpreter, frame: Frame, arg: str) -> None:
    container = frame.stack.pop()
    contained = operators.contains(interp, container, frame.stack.pop())
    frame.stack.append(contained if arg == "in" else not contained)


# ---- calls ---------------------------------------------------------------------------------------------------------


@opcode("KW_NAMES", until=(3, 12))
def kw_names(interp: Interpreter, frame: Frame, arg: tuple[str, ...]) -> None:
    frame.kw_names = arg


def _do_call(interp: Interpreter, frame: Frame, count: int, names_: tuple[str, ...]) -> None:
    stack = frame.stack
    args = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    second = stack.pop()
    first = stack.pop()
    if PY313:
        fn = first
        if second is not NULL:
            args.insert(0, second)
    elif first is NULL:
        fn = second
    else:
        fn = first
        args.insert(0, second)
    kwargs: dict[str, object] | None = None
    if names_:
        split = len(args) - len(names_)
        kwargs = dict(zip(names_, args[split:]))
        del args[split:]
    stack.append(interp.call(fn, args, kwargs))


@opcode("CALL")
def call(interp: Interpreter, frame: Frame, arg: int) -> None:
    names_ = frame.kw_names
    frame.kw_names = ()
    _do_call(interp, frame, arg, names_)


@opcode("CALL_KW", since=(3, 13))
def call_kw(interp: Interpreter, frame: Frame, arg: int) -> None:
    names_ = frame.stack.pop()
    _do_call(interp, frame, arg, names_)


@opcode("CALL_FUNCTION_EX")
def call_function_ex(interp: Interpreter, frame: Frame, arg: int) -> None:
    stack = frame.stack
    kwargs = stack.pop() if arg & 1 else None
    args = stack.pop()
    if PY313:
        stack.pop()
        fn = stack.pop()
    else:
        fn = stack.pop()
        stack.pop()
    args = calls.star_arguments(interp, fn, args)
    kwargs = calls.star_keywords(interp, fn, kwargs)
    stack.append(interp.call(fn, args, kwargs))


enter({"CALL_INTRINSIC_1": lambda interp, value, arg: classes.intrinsic_1(interp, arg, value)}, (3, 12), on_top=True)


@opcode("CALL_INTRINSIC_2", since=(3, 12))
def call_intrinsic_2(interp: Interpreter, frame: Frame, arg: str) -> None:
    second = frame.stack.pop()
    frame.stack[-1] = classes.intrinsic_2(interp, arg, frame.stack[-1], second)
