"""What the interpreter does where a symbolic number meets an operator, an attribute or native code."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from argand.capture.facts import callables
from argand.capture.facts.exceptions import CAPTURE_FOLDER, innermost_file
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder, Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.values.symbolic import (
    STANDS_FOR,
    SYMBOLIC,
    SymbolicBool,
    SymbolicInt,
    SymbolicNumber,
    SymbolicScalar,
    SymbolicSize,
    holds_symbols,
    is_number,
    size_of,
)
from argand.capture.sizes import (
    subclasses,
    symbolic_scalars,
    symbolic_state,
    symbolic_tensors,
    unbacked_ops,
)
from argand.capture.world import native_reads
from argand.errors import ConstraintViolation
from argand.graph.python_operators import ARITHMETIC, COMPARE, NEGATIVE, BinaryOperator, Comparison
from argand.graph.sizes.symbols import FUNCTIONS
from argand.graph.trees import rebuilt

_WHOLE: Final = ("gcd", "lcm")
Native = Callable[["Interpreter", Any, list[Any]], Any]

SIZES: Final = (torch.Size, SymbolicSize)
_KEPT: Final[frozenset[int]] = frozenset(
    id(fn)
    for fn in (
        isinstance, type, list, tuple, dict, slice, zip, enumerate, getattr, setattr, hasattr, id, callable, sorted,
        functools.partial, any, all, map, filter, reversed, iter, next, super, vars, bool, divmod, abs, round, sum,
        math.floor, math.ceil, math.trunc, operator.setitem, operator.getitem, functools.reduce, math.prod,
        builtins.print,
        *(op.native for op in (*ARITHMETIC.values(), *COMPARE.values(), NEGATIVE) if op.guard),
    )
)  # fmt: skip
"""Native code that stores its arguments, or uses only operators of symbolic numbers."""


# ---------------------------------------------------------------------- operators


def binary(interp: Interpreter, op: BinaryOperator, left: Any, right: object) -> object:
    """`left op right`, one of them symbolic, neither with Python-level operators of its own."""
    result, left, right = _of_scalars(interp, op, left, right)
    if result is not NotImplemented:
        return result
    if interp.is_tensor(left) or interp.is_tensor(right):
        state = interp.state
        if not interp.is_tensor(left):
            return interp.native(left.dynamics.with_tensor, op.name, left, right, False)
        method = getattr(torch.Tensor, op.inplace or op.method, None) or getattr(torch.Tensor, op.method)
        return interp.native(symbolic_state.recorded, state, method, (left, right), {})
    left, right = _beside_numpy(left, right)
    return interp.native(op.native, interp.plain(left), interp.plain(right))


def _of_scalars(
    interp: Interpreter, op: BinaryOperator | Comparison, left: object, right: object
) -> tuple[object, object, object]:
    """`left op right` where one is a scalar of numpy's that varies; NotImplemented with the operands, without such
    scalars, where there is none or it is not computed with."""
    left, right = _beside_tensor(interp, left, right)
    if SymbolicScalar not in (type(left), type(right)):
        return NotImplemented, left, right
    if isinstance(op, BinaryOperator):
        result = symbolic_scalars.binary(interp, op, left, right)
    else:
        result = symbolic_scalars.compare(interp, op, left, right)
    if result is not NotImplemented:
        return result, left, right
    return NotImplemented, plain(left), plain(right)


def _beside_tensor(interp: Interpreter, left: object, right: object) -> tuple[object, object]:
    """A scalar of numpy's that varies is its number where the other operand is a tensor."""
    if type(left) is SymbolicScalar and interp.is_tensor(right):
        return left.inner, right
    if type(right) is SymbolicScalar and interp.is_tensor(left):
        return left, right.inner
    return left, right


def _beside_numpy(left: object, right: object) -> tuple[object, object]:
    """Numbers of numpy's types decide the type of the result: they get the plain number."""
    if module_of(type(left)) == "numpy":
        return left, plain(right)
    return (plain(left), right) if module_of(type(right)) == "numpy" else (left, right)


def sizes(interp: Interpreter, op: BinaryOperator, left: Any, right: Any) -> tuple[Any, Any]:
    """The operands of an operator on a torch.Size: it only takes plain ints, its stand-in takes symbolic ones too."""
    if is_a(left, tuple) and is_a(right, tuple) and op.name == "add":
        left, right = interp.shadow(left), interp.shadow(right)
        if holds_symbols(left) or holds_symbols(right):
            return SymbolicSize(tuple.__iter__(left)), tuple(tuple.__iter__(right))
    return left, right


def compare(interp: Interpreter, op: Comparison, left: object, right: object) -> object:
    """The same for comparisons."""
    result, left, right = _of_scalars(interp, op, left, right)
    if result is not NotImplemented:
        return result
    if interp.is_tensor(left):
        return interp.native(symbolic_state.recorded, interp.state, getattr(torch.Tensor, op.method), (left, right), {})
    left, right = _beside_numpy(left, right)
    return interp.native(op.native, interp.plain(left), interp.plain(right))


def identical(interp: Interpreter, a: Any, b: Any) -> bool:
    """`a is b`, as it is in the call at hand; the guard is whether they are equal."""
    values = [x.number() if type(x) is SymbolicBool else x.hint if type(x) in SYMBOLIC else x for x in (a, b)]
    if type(values[0]) is not type(values[1]):
        return False
    interp.native(operator.eq, a, b)
    return values[0] is values[1]


def read(number: Any, name: str) -> object:
    """`number.name`."""
    if type(number) is SymbolicScalar:
        return symbolic_scalars.read(number, name)
    if name == "__class__":
        return number.__class__
    if name in ("real", "numerator") and type(number) is SymbolicInt:
        return number
    return getattr(number.number(), name)


# ---------------------------------------------------------------------- native code


def call(interp: Interpreter, fn: Any, args: list[Any], kwargs: Kwargs, native: bool) -> object:
    """A call in a capture that has symbols.

    Arguments:
        native: `fn` is native code that argand knows.

    Returns:
        The result, or NotImplemented after making plain what the native code would look into.
    """
    handler = _FUNCTIONS.get(id(fn))
    if handler is not None and not kwargs:
        result = handler(interp, fn, args)
        if result is not NotImplemented:
            return result
    if native and id(fn) not in _KEPT:
        plain_arguments(args, kwargs)
    return NotImplemented


def not_the_programs(interp: Interpreter, exc: BaseException) -> None:
    """Native code that stumbled over a symbolic number, or argand's own code did: all numbers are constants then.

    Raises:
        Restart: the exception is no business of the program's.
        ConstraintViolation: it is for the user.
    """
    if is_a(exc, ConstraintViolation):
        raise exc
    ours = "Symbolic" in str(exc)
    if not ours and is_a(exc, AttributeError | KeyError | NameError | AssertionError | IndexError | TypeError):
        filename = innermost_file(exc)
        ours = filename.startswith(CAPTURE_FOLDER) and os.path.basename(filename).startswith(("symbolic", "unbacked"))
    if ours:
        builder: GraphBuilder = interp.state.graph
        if (
            builder.dynamics is not None and builder.dynamics.table.symbols
        ):  # else no number is symbolic: it is the program's
            symbolic_tensors.give_up(builder, builder.dynamics.table.symbols)


def asserted(interp: Interpreter, frame: Frame, condition: object) -> bool:
    """`assert condition` of numbers that only the running program knows becomes a check in the graph.

    The graph then raises the AssertionError, so the program must not handle it; its message must be known. False where
    that is not so, or the jump is no assertion.
    """
    after = frame.program.instructions[frame.pc : frame.pc + 4]
    if after[0].opname != "LOAD_ASSERTION_ERROR":
        return False
    if any(f.instruction.handler is not None and not f.quiet for f in interp.frames):
        return False
    message: Args = ()
    if after[1].opname == "LOAD_CONST":
        message = (after[1].argval,)
    elif after[1].opname != "RAISE_VARARGS":
        return False
    builder: GraphBuilder = interp.state.graph
    return unbacked_ops.assertion(builder, condition, message)


def plain_arguments(args: list[Any], kwargs: Kwargs) -> None:
    """Make every symbolic number plain."""
    for i, arg in enumerate(args):
        if type(arg) in SYMBOLIC:
            args[i] = arg.number()
    for key, value in kwargs.items():
        if type(value) in SYMBOLIC:
            kwargs[key] = value.number()


def plain(value: Any) -> Any:
    """`value` with every symbolic number in it, at any depth, made plain."""
    if type(value) in SYMBOLIC:
        return value.number()
    return tuple(value) if type(value) is SymbolicSize else rebuilt(value, plain)


def torch_call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A torch call that may have symbolic numbers among its arguments; NotImplemented when it has none."""
    if not holds_symbols(args) and not holds_symbols(kwargs):
        return NotImplemented
    owner = callables.fact(fn, "__self__")
    if is_a(owner, torch.Tensor):
        fn, args = getattr(torch.Tensor, fn.__name__), (owner, *args)
    args, kwargs = symbolic_scalars.for_torch(state.interpreter, fn, args, kwargs)
    if not holds_symbols(args) and not holds_symbols(kwargs):
        return state.interpreter.reading(native_reads.TORCH, fn, *args, **kwargs)
    native_reads.check(state.interpreter, fn, (*args, *kwargs.values()), native_reads.TORCH)
    return state.interpreter.unread(symbolic_state.recorded, state, fn, args, kwargs)


def _apply(name: str) -> Native:
    def run(interp: Interpreter, fn: Function, args: list[Any]) -> object:
        if len(args) == 1 and type(args[0]) in SYMBOLIC:
            number = args[0].inner if type(args[0]) is SymbolicScalar else args[0]
            return interp.native(number.dynamics.apply, name, number)
        return NotImplemented

    return run


def _logarithm(interp: Interpreter, fn: Function, args: list[object]) -> object:
    if len(args) == 2 and holds_symbols(args) and all(map(is_number, args)):
        return interp.native(operator.truediv, *(interp.call(fn, (arg,)) for arg in args))
    return _apply("log")(interp, fn, args)


def _power(interp: Interpreter, fn: Function, args: list[object]) -> object:
    """`math.pow`: of a positive number it is the operator on floats; of others it raises what that does not, for a
    large result in other words."""
    if len(args) != 2 or not holds_symbols(args) or not all(map(is_number, args)):
        return NotImplemented
    if not interp.native(operator.gt, args[0], 0):
        return NotImplemented
    try:
        return interp.native(operator.pow, *(interp.call(float, (arg,)) for arg in args))
    except OverflowError:
        return NotImplemented


def _operator_power(interp: Interpreter, fn: Function, args: list[object]) -> object:
    return interp.native(operator.pow, *args) if len(args) == 2 and holds_symbols(args) else NotImplemented


def _of_several(name: str) -> Native:
    """A function of two numbers."""

    def run(interp: Interpreter, fn: Function, args: list[object]) -> object:
        symbolic = next((arg for arg in args if is_a(arg, SymbolicNumber)), None)
        if symbolic is None or len(args) != 2 or not all(map(is_number, args)):
            return NotImplemented
        if name in _WHOLE and not all(type(arg) in (SymbolicInt, int) for arg in args):
            return NotImplemented
        return interp.native(symbolic.dynamics.function, name, *args)

    return run


def _within(answer: bool, largest: float) -> Native:
    """Whether a float is nan, infinite or finite, which is guarded: one that varies is a number up to `largest`."""

    def run(interp: Interpreter, fn: Function, args: list[object]) -> object:
        if len(args) != 1 or not is_number(args[0]) or not is_a(args[0], SymbolicNumber):
            return NotImplemented
        for op, bound in (("le", largest), ("ge", -largest)):
            if not interp.native(args[0].dynamics.compare, op, args[0], bound):
                return NotImplemented
        return answer

    return run


def _index(interp: Interpreter, fn: Function, args: list[object]) -> object:
    number = args[0] if len(args) == 1 else None
    whole = type(number.inner if type(number) is SymbolicScalar else number) is SymbolicInt
    return _apply("int")(interp, fn, args) if whole else NotImplemented


def _length(interp: Interpreter, fn: Function, args: list[object]) -> Any:
    if len(args) == 1 and interp.is_tensor(args[0]):
        builder: GraphBuilder = interp.state.graph
        info = builder.tensors.get(id(subclasses.plain_of(builder, args[0])))
        with torch._C.DisableTorchFunction():
            if info is not None and info.dynamic is not None and info.tensor.dim() > 0:
                return symbolic_tensors.dim_number(builder, info, 0)
    return NotImplemented


def _select(name: str) -> Native:
    def run(interp: Interpreter, fn: Function, args: list[Any]) -> object:
        items = args
        if len(args) == 1 and type(args[0]) in (list, tuple, SymbolicSize) and not interp.is_outer(args[0]):
            items = list(tuple.__iter__(args[0])) if is_a(args[0], tuple) else list(args[0])
        if not items or (items is args and len(items) == 1):
            return NotImplemented
        if any(type(item) is SymbolicScalar for item in items):
            return symbolic_scalars.select(interp, name, items)
        if not all(map(is_number, items)):
            return NotImplemented
        symbolic = next((item for item in items if type(item) in SYMBOLIC), None)
        if symbolic is None:
            return NotImplemented
        best = items[0]
        for item in items[1:]:
            best = symbolic.dynamics.select(name, best, item)
        return best

    return run


def _of_scalar(answer: Callable[[Interpreter, SymbolicScalar], object]) -> Native:
    def run(interp: Interpreter, fn: Function, args: list[Any]) -> object:
        of_one = len(args) == 1 and type(args[0]) is SymbolicScalar
        return answer(interp, args[0]) if of_one else NotImplemented

    return run


def _torch_size(interp: Interpreter, fn: Function, args: list[object]) -> object:
    if len(args) == 1 and is_a(args[0], tuple | list):
        items = interp.shadow(args[0])
        if any(type(item) in SYMBOLIC for item in type(items).__iter__(items)):
            return size_of(type(items).__iter__(items))
    return NotImplemented


def _class_of(interp: Interpreter, fn: Function, args: list[object]) -> object:
    if len(args) == 1 and type(args[0]) in STANDS_FOR:
        return args[0].__class__
    return NotImplemented


def _product(interp: Interpreter, fn: Function, args: list[Any]) -> object:
    if len(args) == 1 and type(args[0]) in (list, tuple, SymbolicSize) and not interp.is_outer(args[0]):
        total: object = 1
        for item in tuple.__iter__(args[0]) if is_a(args[0], tuple) else args[0]:
            if not is_number(item):
                return NotImplemented
            total = interp.native(operator.mul, total, item)
        return total
    return NotImplemented


_FUNCTIONS: Final[dict[int, Native]] = {
    id(int): _apply("int"),
    id(float): _apply("float"),
    **{id(fn): _apply(name) for name, fn in FUNCTIONS.items() if getattr(math, name, None) is fn},
    id(math.log): _logarithm,
    id(pow): _operator_power,
    **{id(getattr(math, name)): _of_several(name) for name in ("gcd", "lcm", "atan2", "copysign")},
    id(math.isnan): _within(False, math.inf),
    id(math.isinf): _within(False, sys.float_info.max),
    id(math.isfinite): _within(True, sys.float_info.max),
    id(math.pow): _power,
    id(operator.index): _index,
    id(len): _length,
    id(min): _select("min"),
    id(max): _select("max"),
    id(type): _class_of,
    id(torch.Size): _torch_size,
    id(math.prod): _product,
    id(abs): _of_scalar(symbolic_scalars.absolute),
    id(round): _of_scalar(symbolic_scalars.rounded),
}
