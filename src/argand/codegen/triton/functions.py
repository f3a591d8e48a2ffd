"""One Triton expression per op of `lower.ops`, and the helper functions that some of them call.

In: operand texts and their dtype. Out: an expression that holds for blocks of any shape. Floats go through CUDA's
libdevice, which eager's kernels use too, so that results agree to the bit in most cases (but for `erf_beside_one`);
divisions and square roots round correctly.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from argand.codegen.analysis import is_half
from argand.errors import InternalError

Printer = Callable[[torch.dtype, list[str]], str]


def _infix(operator: str) -> Printer:
    return lambda dtype, args: f"({args[0]} {operator} {args[1]})"


def _library(name: str) -> Printer:
    return lambda dtype, args: f"libdevice.{name}({', '.join(args)})"


def _helper(name: str) -> Printer:
    return lambda dtype, args: f"{name}({', '.join(args)})"


def _quotient(dtype: torch.dtype, args: list[str]) -> str:
    return f"tl.div_rn({args[0]}, {args[1]})" if dtype is torch.float32 else f"({args[0]} / {args[1]})"


def _root(dtype: torch.dtype, args: list[str]) -> str:
    return f"tl.sqrt_rn({args[0]})" if dtype is torch.float32 else f"tl.sqrt({args[0]})"


def _float_or_int(of_floats: Printer, of_ints: Printer) -> Printer:
    return lambda dtype, args: (of_floats if dtype.is_floating_point else of_ints)(dtype, args)


_LIBRARY = (
    "exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "trunc pow atan2 copysign"
)
TABLE: dict[str, Printer] = {name: _library(name) for name in _LIBRARY.split()}
TABLE.update(
    add=_infix("+"),
    sub=_infix("-"),
    mul=_infix("*"),
    truediv=_quotient,
    floordiv=_helper("floor_quotient"),
    truncdiv=_infix("//"),
    remainder=_helper("floor_remainder"),
    fmod=_float_or_int(_library("fmod"), _infix("%")),
    maximum=_float_or_int(_helper("nan_maximum"), _helper("tl.maximum")),
    minimum=_float_or_int(_helper("nan_minimum"), _helper("tl.minimum")),
    logical_and=_infix("&"),
    logical_or=_infix("|"),
    logical_xor=_infix("^"),
    bitwise_and=_infix("&"),
    bitwise_or=_infix("|"),
    bitwise_xor=_infix("^"),
    lshift=_infix("<<"),
    rshift=_infix(">>"),
    eq=_infix("=="),
    ne=_infix("!="),
    lt=_infix("<"),
    le=_infix("<="),
    gt=_infix(">"),
    ge=_infix(">="),
    neg=lambda dtype, args: f"(-{args[0]})",
    abs=_helper("tl.abs"),
    sign=lambda dtype, args: f"sign({args[0]})",
    floor=_helper("tl.floor"),
    ceil=_helper("tl.ceil"),
    round=_library("rint"),
    sqrt=_root,
    reciprocal=lambda dtype, args: _quotient(dtype, ["1.0", args[0]]),
    sigmoid=lambda dtype, args: _quotient(dtype, ["1.0", f"(1.0 + libdevice.exp(-{args[0]}))"]),
    bitwise_not=lambda dtype, args: f"(~{args[0]})",
    logical_not=lambda dtype, args: f"({args[0]} == 0)",
    isnan=lambda dtype, args: f"({args[0]} != {args[0]})",
    isinf=lambda dtype, args: f"(tl.abs({args[0]}) == float('inf'))",
    isfinite=lambda dtype, args: f"(tl.abs({args[0]}) < float('inf'))",
    signbit=lambda dtype, args: _sign_bit(dtype, args[0]),
    fma=_helper("tl.fma"),
    where=_helper("tl.where"),
)


def _sign_bit(dtype: torch.dtype, text: str) -> str:
    if not dtype.is_floating_point:
        return f"({text} < 0)"
    width = "tl.int32" if dtype is torch.float32 else "tl.int64"
    return f"({text}.to({width}, bitcast=True) < 0)"


def expression(op: str, dtype: torch.dtype, args: list[str]) -> str:
    """The expression of `op` on operands of `dtype` (of a `where`: of its branches).

    Raises:
        InternalError: there is no such op.
    """
    printer = TABLE.get(op)
    if printer is None:
        raise InternalError(f"the Triton code generator does not know the op {op!r}")
    if is_half(dtype) and op not in ("where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "neg", "abs"):
        raise InternalError(f"{op} of {dtype}: values are widened before they are computed with")
    return printer(dtype, args)


# Text of functions that kernels call; each may call those before it.
HELPERS = {
    "floor_quotient": '''
@triton.jit
def floor_quotient(a, b):
    """Integer division, rounding down."""
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
''',
    "floor_remainder": '''
@triton.jit
def floor_remainder(a, b):
    """Remainder of integers with the sign of the divisor."""
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)
''',
    "nan_maximum": '''
@triton.jit
def nan_maximum(a, b):
    """The greater; NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)
''',
    "nan_minimum": '''
@triton.jit
def nan_minimum(a, b):
    """The smaller; NaN if either is."""
    return tl.where((a < b) | (a != a), a, b)
''',
    "int_maximum": '''
@triton.jit
def int_maximum(a, b):
    return tl.maximum(a, b)
''',
    "int_minimum": '''
@triton.jit
def int_minimum(a, b):
    return tl.minimum(a, b)
''',
    "add": '''
@triton.jit
def add(a, b):
    return a + b
''',
    "product": '''
@triton.jit
def product(a, b):
    return a * b
''',
    "first_maximum": '''
@triton.jit
def first_maximum(a, i, b, j):
    """The greater of two values (a NaN is greater than all), the earlier one of equals, with its position."""
    better = (a > b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    take = better | (equal & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
''',
    "first_minimum": '''
@triton.jit
def first_minimum(a, i, b, j):
    """The smaller of two values (a NaN is smaller than all), the earlier one of equals, with its position."""
    better = (a < b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    take = better | (equal & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
''',
    "erf_beside_one": '''
@triton.jit
def erf_beside_one(a):
    """The error function up to 1e-7: as 1 - 2 ** (-t * p(t)), where p is a polynomial, for |a| = t."""
    t = tl.minimum(tl.abs(a), 4.0, propagate_nan=tl.PropagateNan.ALL)
    p = tl.fma(t, tl.full([], 4.535860352916643e-05, tl.float32), -0.00044550769962370396)
    p = tl.fma(p, t, 0.001489441841840744)
    p = tl.fma(p, t, 0.0007746292394585907)
    p = tl.fma(p, t, -0.02825368009507656)
    p = tl.fma(p, t, 0.1484816074371338)
    p = tl.fma(p, t, 0.9184163808822632)
    p = tl.fma(p, t, 1.6279085874557495)
    return libdevice.copysign(1.0 - tl.exp2(-p * t), a)
''',
    "sign": '''
@triton.jit
def sign(a):
    """-1, 0 or 1; 0 for NaN."""
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)
''',
}  # fmt: skip


def helpers_of(text: str) -> str:
    """The text of every helper function that `text` calls."""
    used = [source for name, source in HELPERS.items() if re.search(rf"(?<![.\w]){name}\b(?! =)", text)]
    return "\n".join(used)
