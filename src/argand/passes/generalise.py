"""Anti-unification: programs traced for several assignments of the size symbols become one program for all sizes.

The programs are walked side by side. What is equal in all of them stays; a number that varies becomes the expression
over the symbols that has its values; anything else that varies is refused. The structure comes from the probes, never
from the sizes of the call at hand, so that no coincidence of those sizes is taken for a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any

import torch
from torch import fx

from argand.errors import AutogradError
from argand.graph import time_limit
from argand.graph.metadata.strides import memory_order
from argand.graph.nodes.program import AtenProgram, LeafSpec, OutputSpec, ViewReplay
from argand.graph.sizes.expr import Expr, FloorDiv, Mod, Sym, as_expr, as_int, product, substitute
from argand.graph.sizes.fitting import Fitter
from argand.graph.sizes.layout_relations import layout_relations
from argand.graph.sizes.relations import Relation, at_least, require, split_constant
from argand.graph.sizes.symbolic import SymbolicTensor, is_tensor, plain_dims
from argand.graph.trees import leaves

aten = torch.ops.aten

_NO_END = 1 << 60  # a slice bound that means "to the end"


class NotGeneral(AutogradError):
    """The programs differ in more than sizes."""


class OperationsDiffer(NotGeneral):
    """The programs have other operations: further sizes do not make these equal."""


def generalise(
    programs: Sequence[AtenProgram],
    fitter: Fitter,
    floats: Mapping[tuple[float, ...], Sym],
    conditions: dict[Relation, None],
    hints: Mapping[Sym, Any],
) -> AtenProgram:
    """One program for every size; `programs[0]` is rewritten and returned.

    Arguments:
        programs: traces of one graph, one per assignment of the fitter.
        fitter: knows the assignments.
        floats: numbers that the graph computes outside of tensors: their values -> the symbol.
        conditions: receives what sizes must satisfy for the program to be right.
        hints: the symbols' values in the call at hand.

    Raises:
        NotGeneral: the programs differ in more than sizes, or in sizes that no expression describes.
    """
    program = _Generaliser(programs, fitter, floats, conditions).run()
    conditions.update(fitter.conditions)
    _divide_symbols(program, conditions, hints)
    return program


class _Generaliser:
    def __init__(
        self,
        programs: Sequence[AtenProgram],
        fitter: Fitter,
        floats: Mapping[tuple[float, ...], Sym],
        conditions: dict[Relation, None],
    ) -> None:
        self.programs = programs
        self.fitter = fitter
        self.floats = floats
        self.conditions = conditions
        self.place: dict[fx.Node, int] = {}
        self.sizes: dict[Expr, None] = {}
        self.layouts: dict[tuple[Any, ...], tuple[tuple[Any, ...], tuple[Any, ...], Any]] = {}
        self.where = ""

    def run(self) -> AtenProgram:
        first = self.programs[0]
        lists = [list(program.graph.nodes) for program in self.programs]
        if len({len(nodes) for nodes in lists}) != 1:
            raise OperationsDiffer("the number of operations depends on the sizes")
        for position, nodes in enumerate(zip(*lists)):
            self.where = nodes[0].name
            time_limit.check()
            for node in nodes:
                self.place[node] = position
            self._node(nodes)
        self._frame(first)
        self._orders()
        for size in self.sizes:
            # with sizes 0 and 1 broadcasting, squeezing and strides follow other rules
            if not all(require(self.conditions, part, least) for part, least in _factors(size)):
                raise NotGeneral(f"a size is {size}")
        return first

    def _orders(self) -> None:
        """What the passes took from the order of two numbers holds for sizes at which they are in that order."""
        if len({len(program.orders) for program in self.programs}) != 1:
            raise OperationsDiffer("the order of numbers depends on the sizes")
        for pairs in zip(*(program.orders for program in self.programs)):
            low, high = self._tree(list(pairs))
            if not require(self.conditions, high - low):
                raise NotGeneral(f"{low} may be more than {high}")

    # --- nodes

    def _node(self, nodes: tuple[fx.Node, ...]) -> None:
        first = nodes[0]
        if any(node.op != first.op for node in nodes) or any(node.target != first.target for node in nodes):
            if first.op != "placeholder" or any(node.op != "placeholder" for node in nodes):
                raise OperationsDiffer(f"which operations run depends on the sizes (at {self.where})")
        if first.op == "get_attr":
            self._constant(nodes)
        if first.op == "output":
            first.args = (self._tree([node.args[0] for node in nodes]),)
            first.meta["val"] = tuple(n.meta["val"] if isinstance(n, fx.Node) else n for n in first.args[0])
            return
        args = self._tree([node.args for node in nodes])
        kwargs = {name: self._tree([node.kwargs.get(name) for node in nodes]) for name in first.kwargs}
        if any(node.kwargs.keys() != first.kwargs.keys() for node in nodes):
            raise NotGeneral(f"arguments differ at {self.where}")
        rule = _RULES.get(first.target) if first.op == "call_function" else None
        if rule is not None:
            args = rule(self, nodes, args, kwargs)
        first.meta["val"] = self._val([node.meta.get("val") for node in nodes])
        if any(node.meta.get("device") != first.meta.get("device") for node in nodes):
            raise NotGeneral(f"devices differ at {self.where}")
        if first.op == "call_function":
            first.args, first.kwargs = args, kwargs
            self._check_view(first)

    def _constant(self, nodes: tuple[fx.Node, ...]) -> None:
        tensors = [program.constants[str(node.target)] for program, node in zip(self.programs, nodes)]
        one = tensors[0]
        for other in tensors[1:]:
            same = other is one or (
                other.shape == one.shape and other.stride() == one.stride() and other.dtype is one.dtype
            )
            if not same or (other is not one and not torch.equal(other, one)):
                raise NotGeneral(f"the constant {self.where} depends on the sizes")

    def _check_view(self, node: fx.Node) -> None:
        """A reshape keeps the number of elements: at every size, not only at the probes."""
        if node.target not in _RESHAPES:
            return
        source, view = node.args[0].meta["val"], node.meta["val"]
        gap = product(source.shape) - product(view.shape)
        if gap != 0:
            self.conditions[Relation("eq", gap)] = None

    # --- arguments

    def _tree(self, items: Sequence[Any]) -> Any:
        """The common generalisation of one argument in all programs."""
        first = items[0]
        if isinstance(first, fx.Node):
            place = self.place.get(first)
            if any(not isinstance(item, fx.Node) or self.place.get(item) != place for item in items):
                raise NotGeneral(f"an argument of {self.where} depends on the sizes")
            return first
        if isinstance(first, (tuple, list)):
            if any(not isinstance(item, (tuple, list)) or len(item) != len(first) for item in items):
                raise NotGeneral(f"the length of an argument of {self.where} depends on the sizes")
            parts = [self._tree([item[k] for item in items]) for k in range(len(first))]
            return tuple(parts) if isinstance(first, tuple) else parts
        if type(first) is int and all(type(item) is int for item in items):
            return self.number(items)
        if any(type(item) is not type(first) for item in items):
            raise NotGeneral(f"an argument of {self.where} changes its type with the sizes")
        if type(first) is float:
            return self._float(items)
        if any(item != first for item in items):
            raise NotGeneral(f"an argument of {self.where} depends on the sizes")
        return first

    def number(self, values: Sequence[int]) -> int | Expr:
        """An integer that may vary."""
        fitted = self.fitter.fit(values)
        if fitted is None:
            raise NotGeneral(f"the numbers {list(values)} at {self.where} are no simple function of the sizes")
        return fitted

    def _float(self, values: Sequence[float]) -> Any:
        if all(value == values[0] or (value != value and values[0] != values[0]) for value in values):
            return values[0]
        known = self.floats.get(tuple(values))
        if known is not None:
            return known
        if all(value.is_integer() for value in values) and all(abs(value) < 1 << 53 for value in values):
            return self.number([int(value) for value in values])
        raise NotGeneral(f"the numbers {list(values)} at {self.where} are no simple function of the sizes")

    # --- metadata

    def _val(self, vals: Sequence[Any]) -> Any:
        first = vals[0]
        if isinstance(first, torch.Tensor):
            return self._tensor(vals)
        if isinstance(first, (tuple, list)):
            if any(len(val) != len(first) for val in vals):
                raise NotGeneral(f"the number of results of {self.where} depends on the sizes")
            return type(first)([self._val([val[k] for val in vals]) for k in range(len(first))])
        return first

    def _tensor(self, vals: Sequence[torch.Tensor]) -> torch.Tensor | SymbolicTensor:
        first = vals[0]
        if any(val.dim() != first.dim() or val.dtype is not first.dtype for val in vals):
            raise NotGeneral(f"the rank or dtype of {self.where} depends on the sizes")
        seen = tuple([part for val in vals for part in (val.shape, val.stride(), val.storage_offset())])
        layout = self.layouts.get(seen)
        if layout is None:
            layout = self.layouts[seen] = self._layout(vals)
        shape, strides, offset = layout
        if not any(isinstance(n, Expr) for n in (*shape, *strides, offset)):
            return first
        return SymbolicTensor(first, shape, strides, offset)

    def _layout(self, vals: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
        shape = tuple([self.number(column) for column in zip(*[val.shape for val in vals])])
        for size in shape:
            if isinstance(size, Expr):
                self.sizes[size] = None
                self.fitter.learn(size)
        return shape, self._strides(vals, shape), self.number([val.storage_offset() for val in vals])

    def _strides(self, vals: Sequence[torch.Tensor], shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of a dense tensor follow from its sizes and the order of its dimensions; others are fitted."""
        columns = list(zip(*[val.stride() for val in vals]))
        order = memory_order(tuple(vals[0].shape), vals[0].stride())
        strides: list[Any] = [None] * len(shape)
        step: Any = 1
        for dim in reversed(order):
            if shape[dim] == 1:
                strides[dim] = self.number(columns[dim])
                continue
            strides[dim] = step
            step = step * shape[dim]
            self.fitter.learn(step)
        if all(shape[dim] == 1 or self.fitter.vector(strides[dim]) == columns[dim] for dim in order):
            return tuple(strides)
        strides = [self.number(column) for column in columns]
        for relation in layout_relations(shape, strides, vals[0].shape, vals[0].stride()):
            self.conditions[relation] = None
        return tuple(strides)

    # --- what surrounds the graph

    def _frame(self, first: AtenProgram) -> None:
        """Inputs, outputs and mutations of the program."""
        self.where = "the results"
        for program in self.programs[1:]:
            same = [i.name for i in program.inputs] == [i.name for i in first.inputs]
            same = same and [leaf.input for leaf in program.leaves] == [leaf.input for leaf in first.leaves]
            if not same or program.mutations != first.mutations or len(program.outputs) != len(first.outputs):
                raise NotGeneral("what is read or written depends on the sizes")
        first.outputs = [self._output(outputs) for outputs in zip(*[p.outputs for p in self.programs])]
        first.leaves = [self._leaf(leaves) for leaves in zip(*[p.leaves for p in self.programs])]
        given = [program.specialised for program in self.programs]
        first.specialised = {
            at: value
            for at, value in first.specialised.items()
            if all(one[at] is value or one[at] == value for one in given)
        }

    def _leaf(self, leaves: tuple[LeafSpec, ...]) -> LeafSpec:
        data = tuple([leaf.data for leaf in leaves if leaf.data is not None])
        return replace(leaves[0], data=self._output(data)) if data else leaves[0]

    def _output(self, outputs: tuple[OutputSpec, ...]) -> OutputSpec:
        first = outputs[0]
        if any((o.kind, o.index, o.view is None) != (first.kind, first.index, first.view is None) for o in outputs):
            raise NotGeneral("which results alias which depends on the sizes")
        if first.kind == "constant":
            return OutputSpec("constant", value=self._tree([o.value for o in outputs]))
        if first.view is None:
            return first
        views = [output.view for output in outputs if output.view is not None]
        size, stride, offset = self._tree([(view.size, view.stride, view.offset) for view in views])
        self.sizes.update(dict.fromkeys(n for n in size if isinstance(n, Expr)))
        chain = self._tree([tuple(args for _, args in view.chain) for view in views])
        if _has_expr(chain):
            raise NotGeneral("a returned view of another dtype depends on the sizes")
        return replace(first, view=ViewReplay(size, stride, offset, views[0].chain))


def _factors(size: Expr) -> list[tuple[Expr, int]]:
    """What must be how large for `size` to be at least 2."""
    if len(size.poly) != 1:
        return [(size, 2)]
    monomial, scale = size.poly[0]
    least = 2 if scale == 1 else 1
    return [(atom, least) for atom in monomial] if scale > 0 else [(size, 2)]


def _has_expr(tree: Any) -> bool:
    return any(isinstance(leaf, Expr) for leaf in leaves(tree))


_RESHAPES = frozenset((aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default))

Rule = Callable[[_Generaliser, tuple[fx.Node, ...], tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]
_RULES: dict[Any, Rule] = {}


def _rule(*ops: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def _clamped(g: _Generaliser, raw: Any, extent: Any, values: Sequence[int], extents: Sequence[int]) -> Any:
    """A slice bound as Python clamps it, with the conditions under which it is clamped so at other sizes."""
    if all(value >= _NO_END for value in values):
        return extent
    placed = [value + n if value < 0 else value for value, n in zip(values, extents)]
    low = all(value < 0 for value in placed)
    high = all(value > n for value, n in zip(placed, extents))
    inside = all(0 <= value <= n for value, n in zip(placed, extents))
    negative = all(value < 0 for value in values)
    if not (negative or all(value >= 0 for value in values)) or not (low or high or inside):
        raise NotGeneral(f"where {g.where} is cut depends on the sizes")
    at = as_expr(raw) + extent if negative else as_expr(raw)
    checks = [(-as_expr(raw) - 1) if negative else as_expr(raw)]
    checks += [-at] if low else [at - extent] if high else [at, as_expr(extent) - at]
    for check in checks:
        if not require(g.conditions, check):
            raise NotGeneral(f"where {g.where} is cut depends on the sizes")
    return 0 if low else extent if high else at


@_rule(aten.slice.Tensor, aten.slice_scatter.default)
def _slice(g: _Generaliser, nodes: tuple[fx.Node, ...], args: Any, kwargs: Any) -> Any:
    """Bounds of a slice, as positions between 0 and the size."""
    lead = 2 if nodes[0].target is aten.slice_scatter.default else 1
    source = args[0].meta["val"]
    if not isinstance(source, SymbolicTensor) and not _has_expr(args[lead:]):
        return args
    if kwargs:
        raise NotGeneral(f"{g.where} has keyword arguments")
    dim = args[lead] if len(args) > lead else 0
    given = list(args[lead + 1 :])
    start, end, step = given + [None, None, 1][len(given) :]
    extent = source.shape[dim]
    extents = [int(size) for size in g.fitter.vector(extent)]
    bounds = []
    for place, raw, default in ((lead + 1, start, 0), (lead + 2, end, extent)):
        if raw is None:
            bounds.append(default)
            continue
        values: Any = [node.args[place] for node in nodes]
        bounds.append(_clamped(g, raw, extent, values, extents))
    bounds = list(plain_dims([as_expr(bound) for bound in bounds]))
    if not require(g.conditions, as_expr(bounds[1]) - bounds[0]):
        raise NotGeneral(f"where {g.where} is cut depends on the sizes")
    return (*args[:lead], dim, bounds[0], bounds[1], step)


@_rule(aten.select.int, aten.select_scatter.default)
def _select(g: _Generaliser, nodes: tuple[fx.Node, ...], args: Any, kwargs: Any) -> Any:
    """The position must exist at other sizes."""
    lead = 2 if nodes[0].target is aten.select_scatter.default else 1
    source = args[0].meta["val"]
    extent, raw = source.shape[args[lead]], args[lead + 1]
    if not isinstance(extent, Expr) and not isinstance(raw, Expr):
        return args
    values = [node.args[lead + 1] for node in nodes]
    negative = all(value < 0 for value in values)
    at = as_expr(raw) + extent if negative else as_expr(raw)
    for check in (at, as_expr(extent) - at - 1):
        if not require(g.conditions, check):
            raise NotGeneral(f"the position that {g.where} selects depends on the sizes")
    return (*args[: lead + 1], *plain_dims([at]))


@_rule(aten.convolution.default)
def _convolution(g: _Generaliser, nodes: tuple[fx.Node, ...], args: Any, kwargs: Any) -> Any:
    x, weight = args[0].meta["val"], args[1].meta["val"]
    stride, padding, dilation, transposed = args[3:7]
    if not transposed:
        for k in range(len(x.shape) - 2):
            _window(g, x.shape[2 + k], weight.shape[2 + k], *(_at(v, k) for v in (stride, padding, dilation)))
    return args


@_rule(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten.max_pool3d_with_indices.default)
def _pool(g: _Generaliser, nodes: tuple[fx.Node, ...], args: Any, kwargs: Any) -> Any:
    x = args[0].meta["val"]
    kernel = args[1]
    rank = len(kernel)
    stride = args[2] if len(args) > 2 and args[2] else kernel
    padding = args[3] if len(args) > 3 else [0]
    dilation = args[4] if len(args) > 4 and "max" in str(nodes[0].target) else [1]
    for k in range(rank):
        window = [_at(v, k) for v in (kernel, stride, padding, dilation)]
        _window(g, x.shape[len(x.shape) - rank + k], *window)
    return args


@_rule(aten.linalg_cross.default)
def _cross(g: _Generaliser, nodes: tuple[fx.Node, ...], args: Any, kwargs: Any) -> Any:
    """`torch.cross` takes the first dimension of size 3, which another one might be at other sizes."""
    x = args[0].meta["val"]
    for size in x.shape[: kwargs.get("dim", -1)]:
        if isinstance(size, Expr):
            g.conditions[Relation("ne", size, 3)] = None
    return args


def _at(values: Sequence[Any], k: int) -> Any:
    return values[k] if len(values) > 1 else values[0]


def _window(g: _Generaliser, extent: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    """How many windows fit along a dimension."""
    if isinstance(stride, Expr):  # that many may fit in all traces by chance
        raise NotGeneral(f"the steps of {g.where} depend on the sizes")
    whole = extent + (2 * padding - dilation * (kernel - 1) - 1)
    if isinstance(whole, Expr):
        for count in (whole // stride + 1, (whole + stride - 1) // stride + 1):  # the other one is rounded up
            g.fitter.learn(count)
        g.conditions[Relation("ge", whole)] = None


# ---------------------------------------------------------------------- exact divisions


def _divide_symbols(program: AtenProgram, conditions: dict[Relation, None], hints: Mapping[Sym, Any]) -> None:
    """Where the conditions say that d divides a symbol s, write s as d times a new symbol: divisions disappear.

    The condition stays, and the new symbol is computed by whoever calls the program: see `divided`.
    """
    factors: dict[Sym, int] = {}
    for condition in conditions:
        if condition.op != "eq":
            continue
        for sym in condition.symbols:
            divisor = _needed_divisor(condition.gap, sym)
            if divisor > 1 and hints.get(sym, 0) % divisor == 0:
                _combine(factors, sym, divisor)
    mapping = {sym: divided(sym, factor) * factor for sym, factor in factors.items()}
    if not mapping:
        _drop_implied(conditions)
        return
    divided_ones = [Relation(condition.op, substitute(condition.gap, mapping)) for condition in conditions]
    conditions.clear()
    conditions.update((each, None) for each in divided_ones if each.op != "eq" or each.gap != 0)
    for sym, factor in factors.items():
        conditions[Relation("eq", sym % factor)] = None
    _drop_implied(conditions)
    _substitute_program(program, mapping)


def _drop_implied(conditions: dict[Relation, None]) -> None:
    """Of conditions that differ in a constant, the strongest implies the others; and some hold always."""
    strongest: dict[Expr, int] = {}
    for condition in conditions:
        if condition.op == "ge":
            rest, constant = split_constant(condition.gap)
            strongest[rest] = min(strongest.get(rest, constant), constant)
    for condition in list(conditions):
        if condition.op == "ge":
            rest, constant = split_constant(condition.gap)
            if strongest[rest] < constant or at_least(condition.gap, 0):
                del conditions[condition]


def divided(sym: Sym, factor: int) -> Sym:
    """The symbol for `sym / factor`."""
    least = None if sym.minimum is None else -(-sym.minimum // factor)
    return Sym(f"{sym.name}_by_{factor}", least)


def parts_of(sym: Sym) -> tuple[str, int]:
    """Name and divisor that `generalise.divided` was given."""
    base, _, factor = sym.name.rpartition("_by_")
    return base, int(factor)


def _combine(factors: dict[Sym, int], sym: Sym, divisor: int) -> None:
    factors[sym] = lcm(factors.get(sym, 1), divisor)


def _needed_divisor(expr: Expr, sym: Sym) -> int:
    """The least divisor of `sym` that makes `expr` vanish, or else its quotients exact; 1 if there is none."""
    needed = 1
    for monomial, _ in expr.poly:
        for atom in monomial:
            if not isinstance(atom, (FloorDiv, Mod)):
                continue
            divisor = as_int(atom.args[1])
            if divisor is None or atom.args[0].free != frozenset((sym,)) or divisor > 1 << 16:
                continue
            trial = {sym: divided(sym, divisor) * divisor}
            if substitute(expr, trial) == 0 or not substitute(atom, trial).has_divmod:
                needed = max(needed, divisor)
    return needed


def _substitute_program(program: AtenProgram, mapping: Mapping[Any, Any]) -> None:
    def convert(tree: Any) -> Any:
        if isinstance(tree, Expr):
            return plain_dims([substitute(tree, mapping)])[0]
        if isinstance(tree, (tuple, list)):
            return type(tree)([convert(item) for item in tree])
        if isinstance(tree, SymbolicTensor):
            return SymbolicTensor(
                tree.example, convert(tree.shape), convert(tree.strides), plain_dims([convert(tree.offset)])[0]
            )
        return tree

    for node in program.graph.nodes:
        val = node.meta.get("val")
        if is_tensor(val) or isinstance(val, (tuple, list)):
            node.meta["val"] = convert(val)
        if node.op == "call_function" and (_has_expr(node.args) or _has_expr(tuple(node.kwargs.values()))):
            node.args = convert(node.args)
            node.kwargs = {name: convert(value) for name, value in node.kwargs.items()}

    def result(output: OutputSpec) -> OutputSpec:
        if output.kind == "constant":
            return replace(output, value=convert(output.value))
        view = output.view
        if view is None:
            return output
        replay = ViewReplay(convert(view.size), convert(view.stride), convert(view.offset), view.chain)
        return replace(output, view=replay)

    program.outputs = [result(output) for output in program.outputs]
    program.leaves = [
        replace(leaf, data=result(leaf.data)) if leaf.data is not None else leaf for leaf in program.leaves
    ]
