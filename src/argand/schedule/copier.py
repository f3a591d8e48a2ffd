"""Copies statements from one loop body into another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from argand.graph.sizes.expr import Expr, Var, substitute
from argand.ir.loops import LoopBlock, Origin, Value
from argand.quick_dataclasses import dataclass

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Copier:
    """Copies statements into a new body.

    Arguments:
        index: what takes the place of loop variables.
        statements: of the new body.
        known: old id -> copy.
        count: statements that were made.
    """

    index: dict[Var, Expr]
    statements: list[Value] = field(default_factory=list)
    known: dict[int, Value] = field(default_factory=dict)
    count: int = 0

    def add(
        self, op: str, args: tuple[Any, ...], like: Value, dtype: torch.dtype, into: list[Value] | None = None
    ) -> Value:
        """A new statement, at the end of the body (or of a block); it stands where `like` stood in the program."""
        copied = Value(self.count, op, args, dtype, like.origin)
        self.count += 1
        (self.statements if into is None else into).append(copied)
        return copied

    def copy(self, source: Iterable[Value], into: list[Value]) -> None:
        """Copy statements to the end of `into`."""
        for old in source:
            copied = self.add(old.op, tuple(map(self._arg, old.args)), old, old.dtype, into)
            self.known[old.id] = copied
            if old.op == "indirect":
                self.index[Var(f"i{old.id}")] = Var(f"i{copied.id}")

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.known[arg.id]
        if isinstance(arg, Expr):
            return substitute(arg, self.index)
        if isinstance(arg, LoopBlock):
            inner: list[Value] = []
            self.copy(arg.statements, inner)
            return LoopBlock(inner, self.known[arg.result.id])
        if isinstance(arg, (tuple, list)):
            return tuple(map(self._arg, arg))
        return arg


def renamed(
    statements: Sequence[Value],
    names: Mapping[str, str],
    origins: Mapping[int, Origin | None] | None = None,
    known: dict[int, Value] | None = None,
) -> list[Value]:
    """Copies of statements, with the same ids, that load from and store to other buffers.

    Arguments:
        names: of buffers that are called otherwise now.
        origins: by the id of a statement's origin that of its copy; without them they stay.
        known: gets the copies by their ids.
    """
    known = {} if known is None else known
    result = []
    for old in statements:
        args: list[Any] = [
            known[arg.id]
            if isinstance(arg, Value)
            else LoopBlock(renamed(arg.statements, names, origins, known), known[arg.result.id])
            if isinstance(arg, LoopBlock)
            else arg
            for arg in old.args
        ]
        if old.op in ("load", "store"):
            args[0] = names.get(args[0], args[0])
        origin = old.origin if origins is None else origins[id(old.origin)]
        known[old.id] = copied = Value(old.id, old.op, tuple(args), old.dtype, origin)
        result.append(copied)
    return result
