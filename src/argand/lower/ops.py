"""The vocabulary of loop bodies: every op documented once, as a method of `Ops`.

A loop body is a Python function over an `Ops` handler ("define by run"): lowering calls `ops.load(...)`,
`ops.add(...)`; the recorder (`lower.recorder`) writes each call down as one `ir.Value`. `ir.interpret` runs what it
wrote, code generators print it.

Rules that hold for every recorded statement:

- Operands of a pointwise op have one dtype, which is the result's; comparisons and predicates give bool. Conversions
  are explicit `to_dtype` statements. Float16 and bfloat16 are for storage: arithmetic on them does not occur, values
  are converted to float32 first and rounded back by `to_dtype` where eager rounds.
- Integers wrap around. Bools take part in logical_*, comparisons, `where`, `any` and conversions only.
- NaN: comparisons with NaN are false (`ne` true); `maximum`, `minimum`, and reductions `max`, `min`, `argmax`, `argmin`
  propagate it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr
from argand.ir.loops import LoopBlock, Value

Number = int | float | bool

REDUCTIONS = ("sum", "prod", "max", "min", "any", "argmax", "argmin")
SCANS = ("sum", "prod")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
PREDICATES = ("isnan", "isinf", "isfinite", "signbit")
UNARY = [
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "bitwise_not",
    "logical_not",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "truncdiv",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "atan2",
    "copysign",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "lshift",
    "rshift",
]


class Ops:
    """What a loop body may call. A handler overrides `emit`, or single methods."""

    def emit(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> Value:
        """Every method below ends here: `op` with `args` makes a value of `dtype`."""
        raise NotImplementedError

    # --- memory and indices

    def load(self, buffer: str, index: Expr, dtype: torch.dtype) -> Value:
        """The element of `buffer` at flat element offset `index`; args (buffer, index)."""
        return self.emit("load", (buffer, index), dtype)

    def store(self, buffer: str, index: Expr, value: Value, mode: str | None = None) -> Value:
        """Write `value` to `buffer[index]`, or add it there (mode "add"); args (buffer, index, value, mode)."""
        return self.emit("store", (buffer, index, value, mode), value.dtype)

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        """The number `value`, rounded to `dtype`; may be inf or nan; args (value, dtype)."""
        return self.emit("constant", (value, dtype), dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        """An index expression as a value; computed in int64, then converted; args (expr, dtype)."""
        return self.emit("index_expr", (expr, dtype), dtype)

    def indirect(self, value: Value, size: Expr, wrap: bool) -> Value:
        """Makes the int64 `value` usable in index expressions, as `Var(f"i{result.id}")`; args (value, size, wrap).

        It must be in `[-size, size)` when `wrap` (negative counts from the end), else in `[0, size)`; otherwise the
        kernel reports an index error. Only evaluated where every enclosing `masked` is true.
        """
        return self.emit("indirect", (value, size, wrap), torch.int64)

    # --- conversions

    def to_dtype(self, value: Value, dtype: torch.dtype) -> Value:
        """`value` converted as by `Tensor.to`: floats truncate to integers, to bool is `!= 0`; args (value, dtype)."""
        if value.dtype is dtype:
            return value
        return self.emit("to_dtype", (value, dtype), dtype)

    def bitcast(self, value: Value, dtype: torch.dtype) -> Value:
        """The bits of `value` as another dtype of the same width; args (value, dtype)."""
        return self.emit("bitcast", (value, dtype), dtype)

    # --- control

    def masked(self, mask: Value, block: Callable[[], Value], other: Number) -> Value:
        """`block()` where `mask` is true, else `other`; what `block` calls (loads, indirect) happens only where it is
        true; args (mask, LoopBlock, other)."""
        raise NotImplementedError

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the bool `condition` is true, else `b`; both are evaluated."""
        self._same("where", a, b)
        return self.emit("where", (condition, a, b), a.dtype)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c (floats), rounded once where the CPU can: where eager's kernel is compiled to that"""
        self._same("fma", a, b)
        self._same("fma", a, c)
        return self.emit("fma", (a, b, c), a.dtype)

    def reduction(self, kind: str, value: Value) -> Value:
        """`value` reduced over all reduction variables; args (kind, value).

        Kinds: sum, prod, max, min, any (bool), argmax, argmin (int64: position of the first extremum, or of the first
        NaN, counting the reduction variables row-major in the order in which the body lists them). Accumulates in
        the value's dtype. Over an empty range: 0, 1, -inf (or the least integer), +inf (or the greatest), False, 0, 0.
        """
        if kind not in REDUCTIONS:
            raise InternalError(f"unknown reduction {kind!r}")
        dtype = torch.int64 if kind in ("argmax", "argmin") else value.dtype
        return self.emit("reduction", (kind, value), dtype)

    def scan(self, kind: str, value: Value) -> Value:
        """`value` reduced over this point of the reduction variables and all before it, row-major; args (kind, value).

        Kinds: sum, prod. It belongs in the reduction loops, and so does what uses it. Accumulates in the value's dtype.
        """
        if kind not in SCANS:
            raise InternalError(f"unknown scan {kind!r}")
        return self.emit("scan", (kind, value), value.dtype)

    # --- pointwise

    def _same(self, op: str, a: Value, b: Value) -> None:
        if a.dtype is not b.dtype:
            raise InternalError(f"ops.{op}: operands of {a.dtype} and {b.dtype}")

    def unary(self, op: str, a: Value) -> Value:
        """Any op of `UNARY`."""
        return self.emit(op, (a,), a.dtype)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Any op of `BINARY`."""
        self._same(op, a, b)
        return self.emit(op, (a, b), a.dtype)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """Any op of `COMPARISONS`."""
        self._same(op, a, b)
        return self.emit(op, (a, b), torch.bool)

    def add(self, a: Value, b: Value) -> Value:
        """a + b"""
        return self.binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """a - b"""
        return self.binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """a * b"""
        return self.binary("mul", a, b)

    def truediv(self, a: Value, b: Value) -> Value:
        """a / b, floats only"""
        return self.binary("truediv", a, b)

    def floordiv(self, a: Value, b: Value) -> Value:
        """Integer division rounding down; b is a constant, neither 0 nor -1"""
        return self.binary("floordiv", a, b)

    def truncdiv(self, a: Value, b: Value) -> Value:
        """Integer division rounding towards zero; b is a constant, neither 0 nor -1"""
        return self.binary("truncdiv", a, b)

    def remainder(self, a: Value, b: Value) -> Value:
        """Integer remainder with the sign of b; b is a constant, neither 0 nor -1"""
        return self.binary("remainder", a, b)

    def fmod(self, a: Value, b: Value) -> Value:
        """C's fmod (floats) or % (integers; b is then a constant, neither 0 nor -1): the sign of a"""
        return self.binary("fmod", a, b)

    def pow(self, a: Value, b: Value) -> Value:
        """a ** b, floats only, as C's pow"""
        return self.binary("pow", a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """The greater; NaN if either is"""
        return self.binary("maximum", a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller; NaN if either is"""
        return self.binary("minimum", a, b)

    def atan2(self, a: Value, b: Value) -> Value:
        """Angle of the point (b, a)"""
        return self.binary("atan2", a, b)

    def copysign(self, a: Value, b: Value) -> Value:
        """Magnitude of a, sign of b (floats)"""
        return self.binary("copysign", a, b)

    def lshift(self, a: Value, b: Value) -> Value:
        """a << b for integers; b is a constant in [0, bits)"""
        return self.binary("lshift", a, b)

    def rshift(self, a: Value, b: Value) -> Value:
        """a >> b for integers, arithmetic; b is a constant in [0, bits)"""
        return self.binary("rshift", a, b)

    def bitwise_and(self, a: Value, b: Value) -> Value:
        """a & b, integers"""
        return self.binary("bitwise_and", a, b)

    def bitwise_or(self, a: Value, b: Value) -> Value:
        """a | b, integers"""
        return self.binary("bitwise_or", a, b)

    def bitwise_xor(self, a: Value, b: Value) -> Value:
        """a ^ b, integers"""
        return self.binary("bitwise_xor", a, b)

    def bitwise_not(self, a: Value) -> Value:
        """~a, integers"""
        return self.unary("bitwise_not", a)

    def logical_and(self, a: Value, b: Value) -> Value:
        """Both, bools"""
        return self.binary("logical_and", a, b)

    def logical_or(self, a: Value, b: Value) -> Value:
        """Either, bools"""
        return self.binary("logical_or", a, b)

    def logical_xor(self, a: Value, b: Value) -> Value:
        """Exactly one, bools"""
        return self.binary("logical_xor", a, b)

    def logical_not(self, a: Value) -> Value:
        """Not, bool"""
        return self.unary("logical_not", a)

    def eq(self, a: Value, b: Value) -> Value:
        """a == b"""
        return self.compare("eq", a, b)

    def ne(self, a: Value, b: Value) -> Value:
        """a != b"""
        return self.compare("ne", a, b)

    def lt(self, a: Value, b: Value) -> Value:
        """a < b"""
        return self.compare("lt", a, b)

    def le(self, a: Value, b: Value) -> Value:
        """a <= b"""
        return self.compare("le", a, b)

    def gt(self, a: Value, b: Value) -> Value:
        """a > b"""
        return self.compare("gt", a, b)

    def ge(self, a: Value, b: Value) -> Value:
        """a >= b"""
        return self.compare("ge", a, b)

    def isnan(self, a: Value) -> Value:
        """Whether a is NaN (floats)"""
        return self.emit("isnan", (a,), torch.bool)

    def isinf(self, a: Value) -> Value:
        """Whether a is plus or minus infinity (floats)"""
        return self.emit("isinf", (a,), torch.bool)

    def isfinite(self, a: Value) -> Value:
        """Whether a is neither infinite nor NaN (floats)"""
        return self.emit("isfinite", (a,), torch.bool)

    def signbit(self, a: Value) -> Value:
        """Whether the sign bit is set (also of -0.0 and NaN), or an integer is negative"""
        return self.emit("signbit", (a,), torch.bool)

    def neg(self, a: Value) -> Value:
        """-a"""
        return self.unary("neg", a)

    def abs(self, a: Value) -> Value:
        """|a|; the least integer stays itself"""
        return self.unary("abs", a)

    def sign(self, a: Value) -> Value:
        """-1, 0 or 1; 0 for NaN"""
        return self.unary("sign", a)

    def floor(self, a: Value) -> Value:
        """Greatest integer not above a (floats)"""
        return self.unary("floor", a)

    def ceil(self, a: Value) -> Value:
        """Least integer not below a (floats)"""
        return self.unary("ceil", a)

    def round(self, a: Value) -> Value:
        """Nearest integer, halves to even (floats)"""
        return self.unary("round", a)

    def trunc(self, a: Value) -> Value:
        """a without its fraction (floats)"""
        return self.unary("trunc", a)

    def reciprocal(self, a: Value) -> Value:
        """1 / a (floats)"""
        return self.unary("reciprocal", a)

    def sqrt(self, a: Value) -> Value:
        """Square root, correctly rounded (floats)"""
        return self.unary("sqrt", a)

    def rsqrt(self, a: Value) -> Value:
        """1 / sqrt(a), both correctly rounded (floats)"""
        return self.unary("rsqrt", a)

    def exp(self, a: Value) -> Value:
        """e ** a (floats)"""
        return self.unary("exp", a)

    def log(self, a: Value) -> Value:
        """Natural logarithm (floats); `unary` has exp2, expm1, log2, log10, log1p and the trigonometric functions"""
        return self.unary("log", a)

    def tanh(self, a: Value) -> Value:
        """Hyperbolic tangent (floats)"""
        return self.unary("tanh", a)

    def erf(self, a: Value) -> Value:
        """Error function (floats)"""
        return self.unary("erf", a)

    def sigmoid(self, a: Value) -> Value:
        """1 / (1 + exp(-a)) (floats)"""
        return self.unary("sigmoid", a)

    def log1p(self, a: Value) -> Value:
        """log(1 + a), exact near 0 (floats)"""
        return self.unary("log1p", a)

    def expm1(self, a: Value) -> Value:
        """exp(a) - 1, exact near 0 (floats)"""
        return self.unary("expm1", a)


__all__ = ["BINARY", "COMPARISONS", "PREDICATES", "REDUCTIONS", "UNARY", "LoopBlock", "Number", "Ops"]
