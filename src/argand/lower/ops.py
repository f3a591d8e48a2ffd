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
from argand.ir.loops import Value
from argand.ir.operations import COMPARISONS

Number = int | float | bool

REDUCTIONS = ("sum", "prod", "max", "min", "any", "argmax", "argmin")
SCANS = ("sum", "prod", "logaddexp", "max", "min")


def _unary(op: str, doc: str) -> Callable[[Ops, Value], Value]:
    """A method of `Ops` for one op of `UNARY`."""

    def method(self: Ops, a: Value) -> Value:
        return self.unary(op, a)

    method.__doc__ = doc
    return method


def _binary(op: str, doc: str) -> Callable[[Ops, Value, Value], Value]:
    """A method of `Ops` for one op of `BINARY` or `COMPARISONS`."""

    def method(self: Ops, a: Value, b: Value) -> Value:
        return self.compare(op, a, b) if op in COMPARISONS else self.binary(op, a, b)

    method.__doc__ = doc
    return method


def _predicate(op: str, doc: str) -> Callable[[Ops, Value], Value]:
    """A method of `Ops` for one op of `PREDICATES`."""

    def method(self: Ops, a: Value) -> Value:
        return self.emit(op, (a,), torch.bool)

    method.__doc__ = doc
    return method


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
        """Write `value` to `buffer[index]`, or combine it with what is there; args (buffer, index, value, mode).

        Modes: None, and add, mul, max, min (both propagate NaN). Of several values written to
        one place, without a mode, the last in the order of the loops stays.
        """
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

    def divisor(self, value: Value) -> Value:
        """The integer `value`, by which others are divided; a kernel that meets a 0 reports an error; args (value,)."""
        return self.emit("divisor", (value,), value.dtype)

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

    def masked(self, mask: Value, block: Callable[[], Value], other: Number | Value) -> Value:
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

        Kinds: sum, prod, logaddexp (log of the sum of exponentials), max and min (both propagate NaN). It belongs in
        the reduction loops, and so does what uses it. Accumulates in the value's dtype.
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

    add = _binary("add", "a + b")
    sub = _binary("sub", "a - b")
    mul = _binary("mul", "a * b")
    truediv = _binary("truediv", "a / b, floats only")
    floordiv = _binary("floordiv", "Integer division rounding down; b is a constant, neither 0 nor -1")
    truncdiv = _binary("truncdiv", "Integer division rounding towards zero; b is a constant, neither 0 nor -1")
    remainder = _binary("remainder", "Integer remainder with the sign of b; b is a constant, neither 0 nor -1")
    fmod = _binary("fmod", "C's fmod (floats) or % (integers; b is then a constant, neither 0 nor -1): the sign of a")
    pow = _binary("pow", "a ** b, floats only, as C's pow")
    maximum = _binary("maximum", "The greater; NaN if either is")
    minimum = _binary("minimum", "The smaller; NaN if either is")
    atan2 = _binary("atan2", "Angle of the point (b, a)")
    copysign = _binary("copysign", "Magnitude of a, sign of b (floats)")
    lshift = _binary("lshift", "a << b for integers; b is in [0, bits)")
    rshift = _binary("rshift", "a >> b for integers, arithmetic; b is in [0, bits)")
    bitwise_and = _binary("bitwise_and", "a & b, integers")
    bitwise_or = _binary("bitwise_or", "a | b, integers")
    bitwise_xor = _binary("bitwise_xor", "a ^ b, integers")
    bitwise_not = _unary("bitwise_not", "~a, integers")
    logical_and = _binary("logical_and", "Both, bools")
    logical_or = _binary("logical_or", "Either, bools")
    logical_xor = _binary("logical_xor", "Exactly one, bools")
    logical_not = _unary("logical_not", "Not, bool")
    eq = _binary("eq", "a == b")
    ne = _binary("ne", "a != b")
    lt = _binary("lt", "a < b")
    le = _binary("le", "a <= b")
    gt = _binary("gt", "a > b")
    ge = _binary("ge", "a >= b")
    isnan = _predicate("isnan", "Whether a is NaN (floats)")
    isinf = _predicate("isinf", "Whether a is plus or minus infinity (floats)")
    isfinite = _predicate("isfinite", "Whether a is neither infinite nor NaN (floats)")
    signbit = _predicate("signbit", "Whether the sign bit is set (also of -0.0 and NaN), or an integer is negative")
    neg = _unary("neg", "-a")
    abs = _unary("abs", "|a|; the least integer stays itself")
    sign = _unary("sign", "-1, 0 or 1; 0 for NaN")
    floor = _unary("floor", "Greatest integer not above a (floats)")
    ceil = _unary("ceil", "Least integer not below a (floats)")
    round = _unary("round", "Nearest integer, halves to even (floats)")
    trunc = _unary("trunc", "a without its fraction (floats)")
    reciprocal = _unary("reciprocal", "1 / a (floats)")
    sqrt = _unary("sqrt", "Square root, correctly rounded (floats)")
    rsqrt = _unary("rsqrt", "1 / sqrt(a), both correctly rounded (floats)")
    exp = _unary("exp", "e ** a (floats)")
    log = _unary(
        "log", "Natural logarithm (floats); `unary` has exp2, expm1, log2, log10, log1p and the trigonometric functions"
    )
    tanh = _unary("tanh", "Hyperbolic tangent (floats)")
    erf = _unary("erf", "Error function (floats)")
    sigmoid = _unary("sigmoid", "1 / (1 + exp(-a)) (floats)")
    log1p = _unary("log1p", "log(1 + a), exact near 0 (floats)")
    expm1 = _unary("expm1", "exp(a) - 1, exact near 0 (floats)")
