"""Torch calls whose sizes depend on data: metadata that hold whatever the sizes turn out to be.

A call is computed at the stand-ins, fitted, and compared with what it gives at sizes 0, 1, 2, 3, ... A size that
differs anywhere from its formula becomes a symbol of its own, which is read from the result when the graph runs.
A call that works only when sizes agree (`a + b`) is computed with agreeing sizes; others must raise or give the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Unbacked
from argand.capture.facts.name_tables import callable_words, words
from argand.capture.facts.values.symbolic import SymbolicInt
from argand.capture.metadata import data_errors, meta_tensors, metadata
from argand.capture.sizes import symbolic_tensors
from argand.capture.sizes.symbolic_calls import ProbedCall
from argand.graph.sizes.expr import Const, Expr, Sym
from argand.graph.sizes.relations import Number, Relation, Value
from argand.graph.trees import tensors_of

_Tensor = torch.Tensor
_FAILURES = (errors.GraphBreak, Exception)
Small = tuple[dict[Sym, Number], Any]


def compute(probed: ProbedCall) -> tuple[Any, list[Any]]:
    """(result at the hint, results at the probes) of a call that depends on unbacked symbols.

    Raises:
        GraphBreak: what the call gives is not known for all values.
    """
    return _Call(probed).compute()


class _Call:
    """One call, tried at several assignments of the symbols."""

    def __init__(self, probed: ProbedCall) -> None:
        self.probed = probed
        self.dynamics = probed.dynamics
        self.table = probed.dynamics.table
        self.unbacked: Unbacked = probed.dynamics.unbacked  # type: ignore[assignment]
        self.symbols = self.unbacked.among(*probed.symbols)
        self.name = callable_words(probed.func)
        self.sizes_unsure = False
        self.may_raise = False  # for some of the sizes
        self.arguments = tensors_of((probed.args, probed.kwargs))

    def compute(self) -> tuple[Any, list[Any]]:
        probed = self.probed
        self.sizes_unsure = self._may_be_negative()
        try:
            meta = probed.run(*probed.arguments_at(0))
            siblings = [self._quietly(lambda i=i: probed.run(*probed.arguments_at(i))) for i in (1, 2)]  # type: ignore[misc]
            varied: list[Sym] = []
            if not all(symbolic_tensors.same_structure(meta, sibling) for sibling in siblings):
                raise ValueError("another structure")
        except _FAILURES:
            agreeing = self._where_sizes_agree()
            if agreeing is None:
                raise self.unbacked.unfitted(self.name, *self.symbols) from None
            meta, siblings, varied = agreeing
            self.may_raise = True
        tried = list(self._small(varied))
        result = self._settled(meta, siblings, tried)
        self._learn_sizes()
        if self.may_raise:
            data_errors.raises(probed.builder, self.name)
        return result

    def _quietly(self, run: Callable[[], Any]) -> object:
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return run()
        finally:
            torch._C._set_grad_enabled(grad)

    def _under(self, assignment: dict[Sym, Number]) -> object:
        probed = self.probed
        return probed.run(probed._at(probed.args, assignment), probed._at(probed.kwargs, assignment))

    def _base(self, index: int) -> dict[Sym, Number]:
        table = self.table
        return {sym: v for sym, v in table.assignments[index].items() if sym not in table.definitions}

    # ---------------------------------------------------------------- what sizes must be

    def _may_be_negative(self) -> bool:
        """Whether a size is given that may be -1, which means something else in these calls."""
        if getattr(self.probed.func, "__name__", "") not in _WITH_SPECIAL_SIZES:
            return False
        return any(
            self.unbacked.among(number.expr) and not self.unbacked.proven(Relation("ge", number.expr, 0))
            for number in _numbers((self.probed.args[1:], self.probed.kwargs))
        )

    def _learn_sizes(self) -> None:
        """A call that makes a tensor raises where a size is negative."""
        name, args = getattr(self.probed.func, "__name__", ""), self.probed.args
        if name in ("full", "new_full"):
            args = args[: 1 + (name == "new_full")]
        elif name not in _SIZED and not (name == "arange" and len(args) == 1):
            return
        for number in _numbers(args):
            if self.unbacked.among(number.expr):
                sizes = Relation("ge", number.expr, 0)
                self.may_raise = self.may_raise or not self.unbacked.proven(sizes)
                self.unbacked.learn(sizes)

    # ---------------------------------------------------------------- sizes that must agree

    def _where_sizes_agree(self) -> tuple[Any, list[Any], list[Sym]] | None:
        """The results where one symbol equals another size of the call; with the symbols that this ties."""
        for sym in self.symbols:
            for expr in dict.fromkeys(expr for expr, _ in self.probed.exprs):
                if self.table.kinds[sym] != "int" or (isinstance(expr, Expr) and sym in self.table.inputs(expr)):
                    continue
                results = self._with(sym, expr)
                if results is not None:
                    return *results, [sym, *self.unbacked.among(expr)]
        return None

    def _with(self, sym: Sym, expr: Any) -> tuple[object, list[object]] | None:
        results = []
        probed = self.probed
        for i, index in enumerate((0, *symbolic_tensors.PROBED)):
            assignment = self._base(index)
            try:
                assignment[sym] = self.table.evaluate(expr, assignment)
                probed.grad = i == 0
                run = functools.partial(self._under, assignment)
                results.append(run() if i == 0 else self._quietly(run))
            except _FAILURES:
                return None
            finally:
                probed.grad = False
        meta, *siblings = results
        if not all(symbolic_tensors.same_structure(meta, sibling) for sibling in siblings):
            return None
        if _writes(probed.func, probed.kwargs) and meta is not None and meta is not probed.args[0]:
            return None
        return meta, siblings

    # ---------------------------------------------------------------- small sizes

    def _small(self, varied: list[Sym]) -> Iterator[Small]:
        """The call's results at small sizes, where it does not raise."""
        base = self._base(0)
        symbols = self.symbols
        assignments: list[dict[Sym, Number]] = [{**base, **dict.fromkeys(symbols, k)} for k in (0, 1, 2, 3, 7)]
        if len(symbols) > 1:
            assignments.append({**base, **{sym: 2 + i for i, sym in enumerate(symbols)}})
            assignments += [{**base, sym: k} for sym in symbols[:4] for k in (0, 1, 3)]
        if varied:
            assignments.append(base)
        for assignment in assignments:
            for sym in symbols:
                if self.table.kinds[sym] == "float":
                    assignment[sym] = base[sym]
            if not self.unbacked.possible(assignment, symbols):
                continue
            try:
                result = self._quietly(lambda a=assignment: self._under(a))  # type: ignore[misc]
            except _FAILURES:
                self.may_raise = True
                continue
            yield assignment, result

    # ---------------------------------------------------------------- results

    def _settled(self, meta: object, siblings: list[Any], tried: list[Small]) -> tuple[object, list[object]]:
        """The results, with new stand-ins for tensors that have a size without formula."""
        if not all(symbolic_tensors.same_structure(meta, result) for _, result in tried):
            raise self.unbacked.unfitted(self.name, *self.symbols)
        if isinstance(meta, _Tensor):
            return self._tensor(meta, siblings, tried)
        if isinstance(meta, tuple | list):
            parts = [
                self._settled(part, [s[i] for s in siblings], [(a, result[i]) for a, result in tried])
                for i, part in enumerate(meta)
            ]
            if all(new is old for (new, _), old in zip(parts, meta)):
                return meta, siblings
            return _again(meta, [new for new, _ in parts]), [
                _again(meta, [others[i] for _, others in parts]) for i in range(len(siblings))
            ]
        if type(meta) is int and self._formula((meta, *siblings), tried) is None:
            raise self.unbacked.unfitted(self.name, *self.symbols)
        return meta, siblings

    def _tensor(self, meta: torch.Tensor, siblings: list[Any], tried: list[Small]) -> tuple[object, list[object]]:
        if any(meta is argument for argument in self.arguments):
            return meta, siblings
        sizes: list[Any] = []
        fresh = False
        for dim, size in enumerate(meta.shape):
            values = (size, *[s.shape[dim] for s in siblings])
            expr = self._formula(values, [(a, result.shape[dim]) for a, result in tried])
            if expr is None:
                fresh = True
                expr = self.unbacked.new(f"a size of what {self.name} gives", low=0)
            sizes.append(expr)
        if not fresh:
            return meta, siblings
        stand_in, others = stand_ins(self.unbacked, sizes, meta.dtype, meta.requires_grad)
        metadata.note_unsure(self.probed.builder.unsure, stand_in)
        return stand_in, list(others)

    def _formula(self, values: tuple[int, ...], tried: list[tuple[dict[Sym, Number], Any]]) -> object:
        """The expression for a size, if it is right for small sizes too."""
        expr = self.table.fit(values, at=(0, *symbolic_tensors.PROBED))
        if expr is None:
            return None
        if isinstance(expr, Const):
            return expr.value if all(size == expr.value for _, size in tried) else None
        if self.sizes_unsure or not self.unbacked.proven(Relation("ge", expr, 0)):
            return None
        for assignment, size in tried:
            try:
                if self.table.evaluate(expr, assignment) != size:
                    return None
            except (ArithmeticError, ValueError):
                return None
        return expr


def stand_ins(
    unbacked: Unbacked, sizes: list[Value], dtype: torch.dtype, grad: bool, strides: Sequence[Value] | None = None
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """New stand-ins of these sizes, contiguous or laid out so: at the hint, and at the probes."""
    table = unbacked.dynamics.table
    tensors = []
    for index in (0, *symbolic_tensors.PROBED):
        assignment = table.assignments[index]
        shape = tuple([int(table.evaluate(size, assignment)) for size in sizes])
        if min(shape, default=0) < 0:
            raise unbacked.unfitted("this operation", *[size for size in sizes if isinstance(size, Expr)])
        steps = meta_tensors.contiguous(shape)
        if strides is not None:
            steps = tuple([int(table.evaluate(step, assignment)) for step in strides])
        tensors.append(meta_tensors.new(shape, steps, dtype, grad and index == 0))
    return tensors[0], tuple(tensors[1:])


_WITH_SPECIAL_SIZES = frozenset(("view", "reshape", "expand", "unflatten", "broadcast_to", "view_copy", "expand_copy"))
_SIZED = frozenset(
    ("zeros", "ones", "empty", "rand", "randn", "eye", "randperm", "new_zeros", "new_ones", "new_empty")
)  # fmt: skip


def _writes(func: Function, kwargs: Kwargs) -> bool:
    name = getattr(func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
    return in_place or "out" in kwargs


_IN_PLACE = frozenset(
    f"__i{name}__" for name in words("add sub mul truediv floordiv mod pow and or xor lshift rshift div")
)


def _again(like: Any, parts: list[object]) -> object:
    if hasattr(like, "_fields"):
        return type(like)(*parts)
    return type(like)(parts)


def _numbers(value: object) -> Iterator[Any]:
    if type(value) is SymbolicInt:
        yield value
    elif isinstance(value, tuple | list):
        for item in tuple.__iter__(value) if isinstance(value, tuple) else value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
