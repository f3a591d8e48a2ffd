"""Writes the calls of a define-by-run loop body down as straight-line SSA, each common subexpression once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from argand.graph.sizes.expr import Const, Expr, Simplifier, Var, sum_of
from argand.ir.loops import CHECKS, LoopBlock, Origin, TensorRef, Value
from argand.lower.ops import Number, Ops
from argand.lower.registry import NoLowering

_FAR = 1 << 62  # index arithmetic below this cannot overflow


class _Scope:
    """Statements of the body or of one `masked` block, and what is already computed there."""

    __slots__ = ("memo", "seen", "statements")

    def __init__(self) -> None:
        self.statements: list[Value] = []
        self.seen: dict[Any, Value] = {}
        self.memo: dict[Any, Value] = {}


class Recorder(Ops):
    """Records one loop body.

    Arguments:
        ranges: loop variable -> size; grows by one entry per `indirect` statement.

    Attributes:
        origin: given to the statements recorded from now on.
        simplifier: simplifies index expressions under the loop's ranges.
        reads: buffers loaded.
        folded: whether statements may have been left behind that nothing uses.
    """

    def __init__(self, ranges: dict[Var, Expr]) -> None:
        self.ranges = ranges
        self.simplifier = Simplifier(ranges)
        self.origin: Origin | None = None
        self.reads: dict[str, None] = {}
        self._scopes = [_Scope()]
        self.folded = False
        self._next = 0

    @property
    def statements(self) -> list[Value]:
        return self._scopes[0].statements

    def emit(self, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> Value:
        if op == "constant" and isinstance(args[0], Expr):
            raise NoLowering("a number that varies from call to call stands where a loop has a constant")
        # repr keeps 0, 0.0, -0.0 and False apart, and finds nan equal to itself
        key = (op, repr(args[0]), dtype) if op == "constant" else (op, args, dtype)
        for scope in self._scopes:
            recorded = scope.seen.get(key)
            if recorded is not None:
                return recorded
        value = Value(self._next, op, args, dtype, self.origin)
        self._next += 1
        scope = self._scopes[-1]
        scope.statements.append(value)
        if op != "store":
            scope.seen[key] = value
        return value

    def load(self, buffer: str, index: Expr, dtype: torch.dtype) -> Value:
        self.reads[buffer] = None
        return self.emit("load", (buffer, self.simplifier.simplify(index)), dtype)

    def load_ref(self, ref: TensorRef, index: tuple[Expr, ...], dtype: torch.dtype) -> Value:
        """The element of a strided view at a logical index."""
        terms = [position * stride for position, stride in zip(index, ref.stride)]
        return self.load(ref.buffer, sum_of([*terms, ref.offset]), dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        if dtype.is_floating_point:  # by way of integers, which 32 bits may hold
            return self.to_dtype(self.index_expr(expr, torch.int64), dtype)
        return self.emit("index_expr", (self.simplifier.simplify(expr), dtype), dtype)

    def binary(self, op: str, a: Value, b: Value) -> Value:
        # arithmetic on loop indices stays index arithmetic: a load at such an index is then no indirect one
        if a.dtype is torch.int64 and op in ("add", "sub", "mul"):
            left, right = index_of(a), index_of(b)
            if left is not None and right is not None:
                exact = left + right if op == "add" else left - right if op == "sub" else left * right
                low, high = self.simplifier.bounds(exact)
                if low is not None and high is not None and -_FAR < low <= high < _FAR:
                    self.folded = True
                    return self.index_expr(exact, torch.int64)
        return super().binary(op, a, b)

    def masked(self, mask: Value, block: Callable[[], Value], other: Number | Value) -> Value:
        self._scopes.append(_Scope())
        try:
            result = block()
        finally:
            scope = self._scopes.pop()
        return self.emit("masked", (mask, LoopBlock(scope.statements, result), other), result.dtype)

    def indirect_var(self, value: Value, size: Expr, wrap: bool) -> Expr:
        """`indirect`, as what stands for it in index expressions: a variable, or the position itself when it is one."""
        known = index_of(value)
        if known is not None and self.simplifier.between(known, size):
            self.folded = True
            return known
        var = Var(f"i{self.indirect(value, size, wrap).id}")
        self.ranges[var] = size
        return var

    def recall(self, key: Any) -> Value | None:
        """What `remember` stored under `key` in this scope or an enclosing one."""
        for scope in self._scopes:
            remembered = scope.memo.get(key)
            if remembered is not None:
                return remembered
        return None

    def remember(self, key: Any, value: Value) -> None:
        self._scopes[-1].memo[key] = value


def index_of(value: Value) -> Expr | None:
    """The index expression that an int64 value is, if it is one."""
    if value.dtype is torch.int64:
        if value.op == "index_expr":
            expr: Expr = value.args[0]
            return expr
        if value.op == "constant":
            return Const(value.args[0])
    return None


def without_dead(statements: list[Value]) -> list[Value]:
    """The statements that a store or a check needs."""
    used: set[int] = set()
    kept: list[Value] = []

    def need(value: Value) -> None:
        for arg in value.args:
            if isinstance(arg, Value):
                used.add(arg.id)
            elif isinstance(arg, LoopBlock):
                used.add(arg.result.id)
                for inner in arg.statements:
                    need(inner)

    for value in reversed(statements):
        if value.id in used or value.op in ("store", *CHECKS):
            kept.append(value)
            need(value)
    return kept[::-1]
