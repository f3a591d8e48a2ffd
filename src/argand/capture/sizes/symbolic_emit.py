"""Symbolic numbers leaving capture: as graph nodes, as guards, as bytecode, as text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from argand._core import _C
from argand.capture.facts import compat
from argand.capture.facts.handlers import Function
from argand.capture.facts.input_names import free_name
from argand.capture.facts.interfaces import Dynamics, GraphBuilder
from argand.capture.facts.sources import Source
from argand.capture.facts.values.symbols import Origin, Place
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.errors import InternalError, graph_break
from argand.graph.python_operators import ARITHMETIC, NEGATIVE
from argand.graph.sizes.expr import Const, Expr, FloorDiv, Sym
from argand.graph.sizes.relations import Bounds, Relation, single
from argand.graph.sizes.symbols import FUNCTIONS, number_function
from argand.runtime.recipes import with_recipe

# ---------------------------------------------------------------------- text


def text(dynamics: Dynamics, value: object) -> str:
    """An expression or condition with the user's names for symbols: `L['x'].size()[0] >= 2`."""
    names = {sym: str(place) for sym, place in dynamics.places.items()}
    if dynamics.unbacked is not None:
        names.update((sym, sym.name) for sym in dynamics.unbacked.origins)
    if isinstance(value, Relation):
        left, right = (_bare(spell(dynamics, side, names)) for side in (value.left, value.right))
        return f"{left} {value.sign} {right}"
    return spell(dynamics, value, names)


def _bare(written: str) -> str:
    """Without parentheses around the whole."""
    depth = 0
    for i, char in enumerate(written):
        depth += (char == "(") - (char == ")")
        if depth == 0 and i < len(written) - 1:
            return written
    return written[1:-1] if written.startswith("(") else written


def spell(dynamics: Dynamics, value: object, names: Mapping[Sym, str], functions: str = "{}") -> str:
    """Python source of an expression.

    Arguments:
        names: what to write for input symbols; others are spelled as their definitions.
        functions: how the name of a function is written.
    """
    if not isinstance(value, Expr):
        return repr(value)
    terms: list[str] = []
    for monomial, scale in value.poly:
        factors = [_spell_atom(dynamics, atom, names, functions) for atom in monomial]
        if scale != 1 or not factors:
            factors.insert(0, str(abs(scale)) if terms else str(scale))
            if abs(scale) == 1 and len(factors) > 1:
                factors[:2] = [("-" if scale < 0 and not terms else "") + factors[1]]
        joined = "*".join(factors)
        terms.append(joined if not terms else f" - {joined}" if scale < 0 else f" + {joined}")
    return "".join(terms) or "0"


def _spell_atom(dynamics: Dynamics, atom: Expr, names: Mapping[Sym, str], functions: str) -> str:
    if isinstance(atom, Sym):
        definition = dynamics.table.definitions.get(atom)
        if definition is None:
            return names[atom]
        args = ", ".join(spell(dynamics, arg, names, functions) for arg in definition.args)
        return f"{functions.format(definition.op)}({args})"
    left, right = (_grouped(dynamics, arg, names, functions) for arg in atom.args)
    return f"({left} {'//' if isinstance(atom, FloorDiv) else '%'} {right})"


def _grouped(dynamics: Dynamics, value: Expr, names: Mapping[Sym, str], functions: str) -> str:
    written = spell(dynamics, value, names, functions)
    return written if len(value.poly) <= 1 and not written.startswith("-") and "*" not in written else f"({written})"


# ---------------------------------------------------------------------- graph nodes


class Nodes:
    """The scalar nodes of a graph: each symbol read once, each expression computed once."""

    def __init__(self, dynamics: Dynamics, builder: GraphBuilder) -> None:
        self.dynamics = dynamics
        self.builder = builder
        self._nodes: dict[Expr, fx.Node] = {}
        self._outside: dict[Expr, TensorInfo] = {}

    def outside(self, value: Expr) -> TensorInfo:
        """An expression as what a subgraph takes from outside."""
        if value not in self._outside:
            node = self.of(value)
            self._outside[value] = TensorInfo(node.meta["example_value"], node, torch.device("cpu"))
        return self._outside[value]

    def of(self, value: Any) -> Any:
        """The node of an expression; a plain number as it is."""
        if not isinstance(value, Expr):
            return value
        if isinstance(value, Const):
            return value.value
        node = self._nodes.get(value)
        if node is None:
            node = self._nodes[value] = self._make(value)
        return node

    def condition(self, relation: Relation) -> fx.Node:
        """The node of a comparison."""
        sides = [self.of(side) for side in (relation.left, relation.right)]
        function = getattr(operator, relation.op)
        return compat.new_node(self.builder.root, "call_function", function, tuple(sides), {})

    def _make(self, value: Expr) -> fx.Node:
        if isinstance(value, Sym):
            definition = self.dynamics.table.definitions.get(value)
            if definition is None:
                return self._input(value)
            return self._call(FUNCTIONS[definition.op], [self.of(arg) for arg in definition.args], value)
        if len(value.poly) == 1 and value.poly[0][1] == 1 and len(value.poly[0][0]) == 1:
            name = "floordiv" if isinstance(value, FloorDiv) else "mod"
            return self._call(FUNCTIONS[name], [self.of(arg) for arg in value.args], value)
        total: object = None
        so_far: Any = 0
        for monomial, scale in value.poly:
            term: object = None
            product: Any = 1
            for atom in monomial:
                product = product * atom
                term = self.of(atom) if term is None else self._known("mul", term, self.of(atom), product)
            if term is None:
                term = scale
            elif scale != 1:
                term = self._known("mul", term, scale, product * scale)
            so_far = so_far + product * scale
            total = term if total is None else self._known("add", total, term, so_far)
        node: fx.Node = total
        return node

    def _known(self, name: str, left: Any, right: Any, value: Expr) -> object:
        node = self._nodes.get(value)
        if node is None:
            node = self._nodes[value] = self._call(FUNCTIONS[name], [left, right], value)
        return node

    def _call(self, function: Function, args: list[object], value: Expr) -> fx.Node:
        return self._annotated(compat.new_node(self.builder.root, "call_function", function, tuple(args), {}), value)

    def _annotated(self, node: fx.Node, value: Expr) -> fx.Node:
        node.meta["example_value"] = self.dynamics.table.evaluate(value, self.dynamics.table.hints)
        node.meta["expr"] = value
        return node

    def _input(self, sym: Sym) -> fx.Node:
        builder = self.builder
        if self.dynamics.unbacked is not None and sym in self.dynamics.unbacked.origins:
            return self._observed(sym, self.dynamics.unbacked.origins[sym])
        place = self.dynamics.places[sym]
        if place.what in ("size", "stride"):
            stand_in = next(info for info in builder.inputs if info.source == place.source)
            node = compat.new_node(builder.root, "call_method", place.what, (stand_in.node, place.dim), {})
            stand_in.node.append(node)
            return self._annotated(node, sym)
        return self._annotated(new_number(builder, place.source, self.dynamics.table.hints[sym]), sym)

    def _observed(self, sym: Sym, origin: Origin) -> fx.Node:
        if origin.node is None:
            raise InternalError(f"nothing computes {sym}: {origin.words}")
        if origin.dim < 0:
            return origin.node
        node = compat.new_node(self.builder.root, "call_method", "size", (origin.node, origin.dim), {})
        origin.node.append(node)
        return self._annotated(node, sym)


def new_number(builder: GraphBuilder, source: Source, value: object) -> fx.Node:
    """A placeholder for a Python number."""
    node = builder.root.placeholder(free_name(source, builder.input_names))
    node.meta["source"] = source
    builder.inputs.append(TensorInfo(value, node, torch.device("cpu"), source, value))
    return node


# ---------------------------------------------------------------------- bytecode


def function(dynamics: Dynamics, value: Any, inputs: list[Sym]) -> Callable[..., Any]:
    """A Python function of the objects at the symbols' places that computes an expression or condition."""
    names = {sym: _reading(f"a{i}", dynamics.places[sym]) for i, sym in enumerate(inputs)}
    if isinstance(value, Relation):
        sides = [spell(dynamics, side, names, "_{}") for side in (value.left, value.right)]
        body = f"{sides[0]} {value.sign} {sides[1]}"
    else:
        body = spell(dynamics, value, names, "_{}")
    arguments = ", ".join(f"a{i}" for i in range(len(inputs)))
    text = f"lambda {arguments}: {body}"
    return with_recipe(number_function(text), "number", lambda: (text,))


def _reading(name: str, place: Place) -> str:
    return f"{name}.{place.what}({place.dim})" if place.dim >= 0 else name


# ---------------------------------------------------------------------- guards

_PROGRAM_OPS = frozenset(
    (*(op.name for op in (*ARITHMETIC.values(), NEGATIVE) if op.guard),
     "min", "max", "abs", "float", "sqrt", "floor", "ceil", "trunc", "round")
)  # fmt: skip


class _NoProgram(Exception):
    """The C guard tree has no operator for it."""


def conditions(dynamics: Dynamics) -> list[tuple[Relation, object]]:
    """The conditions to guard and their positions, without those that others imply."""
    tightest = Bounds(dynamics.table.kinds, dynamics.table.maximum)
    for relation in dynamics.required:
        tightest.add(relation)
    kept = []
    done: set[object] = set()
    for relation, position in dynamics.required.items():
        bound = single(relation)
        if bound is not None and dynamics.table.kinds.get(bound[0]) == "int":
            sym, (low, high) = bound
            least, greatest = tightest.ranges[sym]
            if (low is not None and low != least) or (high is not None and high != greatest) or bound in done:
                continue
            done.add(bound)
            relation = Relation("ge", sym, low) if low is not None else Relation("le", sym, high or 0)
        elif tightest.implied(relation):
            continue
        kept.append((relation, position))
    return kept


def build(dynamics: Dynamics, tree: _C.GuardTree, node_of: Callable[[Source], int], positions: dict[str, Any]) -> None:
    """Add the conditions to a guard tree; `positions` is told the user's line that needed each."""
    for relation, position in conditions(dynamics):
        label = text(dynamics, relation)
        if position is not None:
            positions.setdefault(label, position)
        program: list[Any] = []
        try:
            _program(dynamics, relation.left, tree, node_of, program)
            _program(dynamics, relation.right, tree, node_of, program)
        except _NoProgram:
            symbols = dynamics.table.inputs(relation.left) | dynamics.table.inputs(relation.right)
            inputs = sorted(symbols, key=lambda sym: sym.name)
            check = function(dynamics, relation, inputs)
            tree.check(0, "python", check, [node_of(dynamics.places[s].source) for s in inputs], label=label)
            continue
        try:
            tree.check_expr((*program, relation.op), label=label)
        except OverflowError:
            raise graph_break(kind="number too large", context=label, skip_frame=True) from None


def _slot(dynamics: Dynamics, sym: Sym, tree: _C.GuardTree, node_of: Any) -> object:
    place = dynamics.places[sym]
    node = node_of(place.source)
    hint = dynamics.table.hints.get(sym)
    dim = (place.dim,) if place.dim >= 0 else ()
    return ("slot", tree.slot(node, place.what, *dim, name=str(place), hint=hint))


def _program(dynamics: Dynamics, value: object, tree: _C.GuardTree, node_of: object, out: list[object]) -> None:
    if not isinstance(value, Expr):
        out.append(value)
        return
    first = True
    for monomial, scale in value.poly:
        started = False
        for atom in monomial:
            _program_atom(dynamics, atom, tree, node_of, out)
            if started:
                out.append("mul")
            started = True
        if not started:
            out.append(scale)
        elif scale != 1:
            out += [scale, "mul"]
        if not first:
            out.append("add")
        first = False
    if first:
        out.append(0)


def _program_atom(dynamics: Dynamics, atom: Expr, tree: _C.GuardTree, node_of: object, out: list[object]) -> None:
    if isinstance(atom, Sym):
        definition = dynamics.table.definitions.get(atom)
        if definition is None:
            out.append(_slot(dynamics, atom, tree, node_of))
            return
        if definition.op not in _PROGRAM_OPS:
            raise _NoProgram
        if definition.op in ("min", "max", "round") and len(definition.args) != 1 + (definition.op != "round"):
            raise _NoProgram
        for arg in definition.args:
            _program(dynamics, arg, tree, node_of, out)
        out.append(definition.op)
        return
    for arg in atom.args:
        _program(dynamics, arg, tree, node_of, out)
    out.append("floordiv" if isinstance(atom, FloorDiv) else "mod")


def listing(dynamics: Dynamics) -> list[str]:
    """The conditions as the list of guards prints them."""
    return [f"- {text(dynamics, relation)}" for relation, _ in conditions(dynamics)]
