"""What traces at several sizes and numbers must agree with: what capture saw, and numbers elsewhere."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from argand.graph.compat import storage_address
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.expr import Expr, Sym, evaluate, free_symbols
from argand.graph.sizes.fitting import Fitter
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbols import SymbolTable
from argand.passes.generalise import NotGeneral

_SCALES: Final = (1.0, -1.0, 1e-6, 1e-3, 1e3, 1e9, 1e30)
"""Of the floats of the call, at which two numbers that the traces do not tell apart are computed."""


def floats_of(
    table: SymbolTable, known: Iterable[Any], unused: frozenset[Sym], assignments: Sequence[Mapping[Sym, Any]]
) -> dict[tuple[float, ...], Sym]:
    """Values in the traces -> the number that has them.

    Arguments:
        known: the expressions that the graph computes; unused: symbols that it does not depend on.

    Raises:
        NotGeneral: two have the same, and differ elsewhere, or one has the same in all.
    """
    read = {sym for expr in known if isinstance(expr, Expr) for sym in free_symbols(expr)}
    floats: dict[tuple[float, ...], Sym] = {}
    for sym in table.symbols:
        if table.kinds[sym] == "float" and sym not in unused:
            values = tuple([assignment[sym] for assignment in assignments])
            if sym in read and len(set(values)) == 1:  # as a function has that is flat for large numbers
                raise NotGeneral(f"{sym} is a constant in all traces")
            other = floats.setdefault(values, sym)
            if other is not sym and sym in read and not _are_one(table, sym, other):
                raise NotGeneral(f"{sym} and {other} are equal in all traces")
    return floats


def _are_one(table: SymbolTable, *symbols: Sym) -> bool:
    """Whether numbers are equal wherever they can be computed."""
    for scale in _SCALES:
        row = {
            sym: hint * scale if isinstance(hint, float) else hint
            for sym, hint in table.hints.items()
            if sym not in table.definitions
        }
        with contextlib.suppress(ArithmeticError, ValueError):
            if len({table.evaluate(sym, row) for sym in symbols}) > 1:
                return False
    return True


_FROM_NUMBERS: Final = frozenset((torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, "new_tensor"))


def rounds(table: SymbolTable, node: fx.Node, assignments: Sequence[Mapping[Sym, Any]]) -> bool:
    """Whether an operation makes a tensor of a number that varies, which its dtype rounds, or a function that is flat
    there, to one constant in all traces; what is put into a part of a tensor becomes one."""
    if node.target is operator.setitem:
        parts, inputs = node.args[0], [each for each in node.args[2:] if isinstance(each, fx.Node)]
    elif node.target in _FROM_NUMBERS:
        parts, inputs = node, node.all_input_nodes
    else:
        return False
    given = [one.meta["expr"] for one in inputs if "expr" in one.meta]
    if not given or not isinstance(parts, fx.Node):
        return False
    dtype = parts.meta["example_value"].dtype
    columns = ([float(table.evaluate(expr, row)) for row in assignments] for expr in given)
    return any(
        len({*torch.tensor(column, dtype=torch.float64, device="cpu").to(dtype).tolist()}) == 1 for column in columns
    )


def extrema(table: SymbolTable) -> list[Sym]:
    """The symbols that are the least or greatest of two numbers."""
    return [sym for sym, definition in table.definitions.items() if definition.op in ("min", "max")]


def told_apart(table: SymbolTable, rows: Sequence[Mapping[Sym, Any]]) -> int:
    """How many of them are not one of the two in all rows."""
    count = 0
    for sym in extrema(table):
        columns = [[table.evaluate(number, row) for row in rows] for number in table.definitions[sym].args]
        count += [table.evaluate(sym, row) for row in rows] not in columns
    return count


def keep_coincidences(
    table: SymbolTable, assignments: Sequence[Mapping[Sym, Any]], known: Iterable[Any], conditions: dict[Relation, None]
) -> None:
    """Where a quotient, a remainder or a whole number that is no formula (the least of two) is, at the sizes of all
    traces, what a formula of other numbers says too, the program may compute that: it holds where the two are one."""
    fitter = Fitter(assignments)
    for expr in dict.fromkeys(known):
        if not isinstance(expr, Expr) or not (expr.has_divmod or not free_symbols(expr).isdisjoint(table.definitions)):
            continue
        if not all(sym in assignments[0] for sym in free_symbols(expr)):
            continue
        other = fitter.fit(fitter.vector(expr))
        if isinstance(other, Expr) and other != expr and not other.has_divmod:
            conditions[Relation("eq", expr - other)] = None


def check_results(gm: fx.GraphModule, program: AtenProgram, hints: Mapping[str, int]) -> None:
    """The results have the sizes that capture saw, and begin in memory where it saw views of arguments begin.

    Raises:
        NotGeneral: they have, or do, not: the traces are on another side of some bound.
    """
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    given = output.args[0]
    if not isinstance(given, (tuple, list)) or len(given) != len(program.outputs):
        return
    nodes = program.graph.output_node().args[0]
    begins = {
        storage_address(value): value.storage_offset()
        for value in [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
    }
    for node, spec in zip(given, program.outputs):
        seen = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if not isinstance(seen, torch.Tensor):
            continue
        places: tuple[int, ...] = ()
        if spec.view is not None:
            sizes = spec.view.size
            if spec.kind == "alias_of_input" and (memory := storage_address(seen)) in begins:
                sizes = (*sizes, spec.view.offset)
                places = (seen.storage_offset() - begins[memory],)
        elif spec.kind == "value":
            sizes = nodes[spec.index].meta["val"].shape
        else:
            continue
        try:
            computed = tuple([int(evaluate(size, hints)) for size in sizes])
        except (KeyError, ArithmeticError):
            continue
        if computed != (*seen.shape, *places):
            raise NotGeneral("the sizes of this call are a special case")
