"""Python's operators, one row each: how they are written, which methods answer, what they are to the rest of argand.

What else is known of an operator is read from here: the interpreter's protocol, numbers that vary and the conditions on
them, how torch and numpy spell it, what the guards' C code computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from argand.quick_dataclasses import dataclass

Numbers: TypeAlias = Literal["", "int", "any"]
RightOperand: TypeAlias = Literal["", "divisor", "exponent"]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """What all operators have.

    Arguments:
        symbol: as the program and its bytecode write it.
        name: of its methods and functions.
        native: the function that is the operator.
        ufunc: numpy's name.
        torch: names of the tensor methods as which torch hands it over.
        guard: the C code of guards computes it, under its name.
        method: what the (left) operand's class defines.
    """

    symbol: str
    name: str
    native: Callable[..., Any]
    ufunc: str = ""
    torch: tuple[str, ...] = ()
    guard: bool = False
    method: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", f"__{self.name}__")


@dataclass(frozen=True, slots=True, eq=False)
class BinaryOperator(Operator):
    """An operator of arithmetic.

    Arguments:
        numbers: which numbers that vary answer it with one: "int", "any", or none.
        right: what numbers on the right may be: a "divisor" not zero, an "exponent" or a count of bits not large.
        moves: of lists and tuples, it only copies references to the items.
        reflected: the method of the right operand.
        inplace: the method that is tried first in an augmented assignment, for which the symbol ends in "=".
    """

    numbers: Numbers = ""
    right: RightOperand = ""
    moves: bool = False
    reflected: str = field(init=False)
    inplace: str = field(init=False)

    def __post_init__(self) -> None:
        Operator.__post_init__(self)
        object.__setattr__(self, "reflected", f"__r{self.name}__")
        object.__setattr__(self, "inplace", f"__i{self.name}__" if self.symbol.endswith("=") else "")


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Operator):
    """A comparison.

    Arguments:
        mirror: name of the comparison with the operands changed.
        opposite: name of the one that holds where this one does not, of numbers that are not NaN.
        reflected: the method of the right operand.
    """

    mirror: str = ""
    opposite: str = ""
    reflected: str = field(init=False)

    def __post_init__(self) -> None:
        Operator.__post_init__(self)
        object.__setattr__(self, "reflected", f"__{self.mirror}__")


@dataclass(frozen=True, slots=True, eq=False)
class UnaryOperator(Operator):
    """An operator of one operand.

    Arguments:
        opcode: of its own; Python 3.12 has none for "+".
    """

    opcode: str = ""


def _binary(
    symbol: str,
    name: str,
    ufunc: str,
    torch: str = "",
    numbers: Numbers = "any",
    right: RightOperand = "",
    guard: bool = False,
    moves: bool = False,
) -> tuple[BinaryOperator, BinaryOperator]:
    """The operator and its augmented assignment."""
    native: Callable[..., Any] = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    assignment: Callable[..., Any] = getattr(operator, f"i{name}")
    methods = tuple(method for method in torch.split() if not method.endswith("_"))
    inplace = tuple(method for method in torch.split() if method.endswith("_"))
    rules = (numbers, right, moves)
    return (
        BinaryOperator(symbol, name, native, ufunc, methods, guard, *rules),
        BinaryOperator(f"{symbol}=", name, assignment, ufunc, inplace, guard, *rules),
    )


_BINARY: Final = (
    _binary("+", "add", "add", "add add_", guard=True, moves=True),
    _binary("-", "sub", "subtract", "sub sub_", guard=True),
    _binary("*", "mul", "multiply", "mul mul_", guard=True, moves=True),
    _binary("/", "truediv", "true_divide", "div true_divide div_", right="divisor", guard=True),
    _binary("//", "floordiv", "floor_divide", "floor_divide", right="divisor", guard=True),
    _binary("%", "mod", "remainder", "remainder", right="divisor", guard=True),
    _binary("**", "pow", "power", "pow pow_", right="exponent"),
    _binary("@", "matmul", "matmul", "matmul", numbers=""),
    _binary("<<", "lshift", "left_shift", numbers="int", right="exponent"),
    _binary(">>", "rshift", "right_shift", numbers="int", right="exponent"),
    _binary("&", "and", "bitwise_and", numbers="int"),
    _binary("|", "or", "bitwise_or", numbers="int"),
    _binary("^", "xor", "bitwise_xor", numbers="int"),
)

ARITHMETIC: Final[MappingProxyType[str, BinaryOperator]] = MappingProxyType({plain.name: plain for plain, _ in _BINARY})
"""By name, those that are no augmented assignment."""
BINARY: Final[MappingProxyType[str, BinaryOperator]] = MappingProxyType(
    {op.symbol: op for operators in zip(*_BINARY, strict=True) for op in operators}
)
"""By symbol."""
DIVMOD: Final = BinaryOperator("divmod()", "divmod", divmod, "divmod")
"""No operator of the syntax, but one to methods."""

COMPARISONS: Final[MappingProxyType[str, Comparison]] = MappingProxyType(
    {
        name: Comparison(symbol, name, getattr(operator, name), ufunc, (name,), True, mirror, opposite)
        for symbol, name, ufunc, mirror, opposite in (
            ("<", "lt", "less", "gt", "ge"),
            ("<=", "le", "less_equal", "ge", "gt"),
            ("==", "eq", "equal", "eq", "ne"),
            ("!=", "ne", "not_equal", "ne", "eq"),
            (">", "gt", "greater", "lt", "le"),
            (">=", "ge", "greater_equal", "le", "lt"),
        )
    }
)
"""By name."""
COMPARE: Final[MappingProxyType[str, Comparison]] = MappingProxyType({op.symbol: op for op in COMPARISONS.values()})
"""By symbol."""

NEGATIVE: Final = UnaryOperator("-", "neg", operator.neg, "negative", ("neg",), True, "UNARY_NEGATIVE")
POSITIVE: Final = UnaryOperator("+", "pos", operator.pos, "positive", (), False, "UNARY_POSITIVE")
INVERT: Final = UnaryOperator("~", "invert", operator.invert, "invert", ("bitwise_not",), False, "UNARY_INVERT")
UNARY: Final = (NEGATIVE, POSITIVE, INVERT)
