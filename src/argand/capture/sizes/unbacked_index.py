"""Indexing with masks, with unbacked numbers, and of tensors whose sizes are unbacked."""

from __future__ import annotations

import itertools
import operator
from typing import Any, TypeGuard

import torch
from torch import fx

from argand.capture.facts.handlers import Args, Function
from argand.capture.facts.interfaces import GraphBuilder, Unbacked
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.metadata import data_errors
from argand.capture.sizes import unbacked_ops
from argand.graph.compat import storage_address
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.relations import Relation

_T = torch.Tensor


def with_positions(builder: GraphBuilder, func: Function, args: Args) -> Args:
    """The arguments of `x[index]`, where the index holds tensors of no dimension: the numbers that the graph reads.

    Eager asks such a tensor for its number too, so that what it selects is a view. The same arguments where there is
    none, or where no number can be had.
    """
    items = args[1] if type(args[1]) is tuple else (args[1],)
    numbers = tuple([_position(builder, item) for item in items])
    if all(number is item for number, item in zip(numbers, items)):
        return args
    data_errors.check(builder, func, args, [builder.tensors[id(args[0])]])
    return (args[0], numbers if type(args[1]) is tuple else numbers[0], *args[2:])


def _position(builder: GraphBuilder, item: object) -> object:
    """What stands for an item of an index: itself, or the number that a tensor holds."""
    if not is_position(item):
        return item
    with torch._C.DisableTorchFunction():
        number = unbacked_ops.item(builder, item, unseen=True)
    return item if number is NotImplemented else number


def is_position(item: object) -> bool:
    """Whether an item of an index is a tensor that stands for one number."""
    if not isinstance(item, _T):
        return False
    with torch._C.DisableTorchFunction():
        return not item.dim() and item.dtype in _POSITIONS


_POSITIONS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
"""Kinds of tensors of no dimension that are a number in an index; others are masks, or not allowed."""


def depends(builder: GraphBuilder, args: Args) -> bool:
    """Whether an index, or a tensor that is indexed or written, depends on unbacked symbols."""
    if builder.dynamics is None or builder.dynamics.unbacked is None:
        return False
    return bool(builder.dynamics.unbacked.among(*_exprs(builder, args)))


def _exprs(builder: GraphBuilder, value: Any) -> list[object]:
    if isinstance(value, _T):
        info = builder.tensors.get(id(value))
        return [] if info is None or info.dynamic is None else [s for s in info.dynamic.sizes if isinstance(s, Expr)]
    if type(value) in SYMBOLIC:
        return [value.expr]
    if type(value) in (tuple, list):
        return [expr for item in value for expr in _exprs(builder, item)]
    if type(value) is slice:
        return _exprs(builder, (value.start, value.stop, value.step))
    return []


def getitem(builder: GraphBuilder, func: Function, args: Args) -> object:
    """`x[index]` where the index holds a mask, or something depends on unbacked symbols; else NotImplemented."""
    tensor, index = args
    items = list(index) if type(index) is tuple else [index]
    masks = [item for item in items if isinstance(item, _T) and item.dtype is torch.bool]
    if any(isinstance(item, _T) and item.dtype is torch.uint8 for item in items):
        return NotImplemented
    if masks and not (builder.state.data_sizes and builder.graph is builder.root):
        return NotImplemented
    if not masks and not depends(builder, args):
        return NotImplemented
    with torch._C.DisableTorchFunction():
        plan = _Index(builder, tensor, items).convert()
        if plan is None:
            return NotImplemented
        return unbacked_ops.record(builder, func, args, {}, plan)


# ---------------------------------------------------------------------- numbers that only select


def copy_selected(builder: GraphBuilder) -> None:
    """Have the finished graph index by tensors where it reads numbers for that alone, and nothing tells a copy of what
    is selected from a view: code can be made of the whole graph then, and the numbers are read where they are used.

    All numbers are replaced, or none: one that stays has the graph run in parts.
    """
    root = builder.root
    telling = [node for node in root.nodes if "unbacked" in node.meta]
    order = {node: number for number, node in enumerate(root.nodes)}
    reads = {node: _indexings(builder, node, order) for node in telling}
    if not telling or not all(reads.values()):
        return
    for node in dict.fromkeys(user for users in reads.values() for user in users):
        _index_by_tensors(root, node)
    for node in telling:
        root.erase_node(node)


def _indexings(builder: GraphBuilder, read: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """The indexings that a number is read for; none where it, or what it selects, has to stay what it is."""
    if read.target != "item" or read.op != "call_method":
        return []
    (position,) = read.all_input_nodes
    users = list(read.users)
    if _example(position).dtype not in (torch.int64, torch.int32) or not all(_copies(builder, u, order) for u in users):
        return []
    last = max(order[user] for user in users)
    return [] if _is_written(builder, position, order, order[read], last) else users


def _copies(builder: GraphBuilder, node: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether an indexing by numbers may be one by tensors, which come first in it: what it gives is laid out like a
    copy, and neither that nor what it is of is written to or returned."""
    if node.target not in (operator.getitem, operator.setitem):
        return False
    tensor, index, *given = node.args
    items = list(index) if isinstance(index, tuple) else [index]
    first = list(itertools.takewhile(lambda item: isinstance(item, fx.Node), items))
    of, taken = _example(tensor), [_example(item) for item in first]
    plain = all(type(each) in (_T, torch.nn.Parameter) for each in (of, *filter(_is_tensor, taken)))
    rest = items[len(first) :]
    info = builder.tensors.get(id(of))
    if not plain or "sizes" in tensor.meta or info is None or info.device.type != "cpu":
        return False
    if any(_is_tensor(each) and each.dtype not in (torch.int64, torch.int32) for each in taken):
        return False
    if any(isinstance(item, fx.Node | torch.Tensor | list) or item is Ellipsis for item in rest):
        return False
    if of.requires_grad:  # its backward would look at the tensors, which may be written to until then
        return False
    if given:
        return not rest and _assigns_alike(of, given[0])
    if not of.is_contiguous() or "sizes" in node.meta or (rest and any(map(_is_tensor, taken))):
        return False
    memory = storage_address(of)
    views = [other for other in order if order[other] >= order[node] and _is_at(_example(other), memory)]
    unseen = not any(user.op == "output" or user.target in _LOOKS_BEYOND for view in views for user in view.users)
    return unseen and not _is_written(builder, tensor, order, order[node], len(order))


def _assigns_alike(of: torch.Tensor, value: object) -> bool:
    """Whether `x[tensor] = value` and `x[number] = value` do the same: of numbers, and tensors of the same dtype."""
    if not isinstance(value, fx.Node):
        return type(value) in (bool, int, float)
    given = _example(value)
    if not _is_tensor(given) or type(given) is not _T or _is_at(given, storage_address(of)):
        return False
    return given.dtype is of.dtype and not given.dim() and not given.requires_grad


def _is_written(builder: GraphBuilder, node: fx.Node, order: dict[fx.Node, int], begin: int, end: int) -> bool:
    """Whether the memory of a tensor is written to between two places of the graph, or may be."""
    memory = storage_address(_example(node))
    written = [into for user, into in builder.writing.items() if begin < order.get(user, -1) < end]
    return any(not isinstance(each, fx.Node) or _is_at(_example(each), memory) for into in written for each in into)


def _is_at(example: object, memory: int) -> bool:
    return _is_tensor(example) and storage_address(example) == memory


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, _T)


def _example(node: fx.Node) -> torch.Tensor:
    """Or a number, or None."""
    return node.meta.get("example_value")


_LOOKS_BEYOND = frozenset(("as_strided", "storage_offset", torch.as_strided))
"""Operations that see more of the memory of a view than the view."""


def _index_by_tensors(graph: fx.Graph, node: fx.Node) -> None:
    """`x[numbers]` or `x[numbers] = value` as one operation by the tensors that hold the numbers."""
    tensor, index, *given = node.args
    items = list(index) if isinstance(index, tuple) else [index]
    places = [item.args[0] if "unbacked" in item.meta else item for item in items if isinstance(item, fx.Node)]
    rest = tuple(items[len(places) :])
    with graph.inserting_before(node):
        if given:
            value = given[0]
            if not isinstance(value, fx.Node):
                dtype = _example(tensor).dtype
                value = graph.call_function(torch.full, ((), value), {"dtype": dtype, "device": "cpu"})
            new = graph.call_function(torch.ops.aten.index_put_.default, (tensor, places, value))
        else:
            new = graph.call_function(torch.ops.aten.index.Tensor, (tensor, places))
        new.meta = dict(node.meta)
        if rest:
            last = graph.call_function(operator.getitem, (new, rest))
            last.meta, new = new.meta, last
    node.replace_all_uses_with(new)
    graph.erase_node(node)


class _Index:
    """An index, converted to one whose metadata torch can tell."""

    def __init__(self, builder: GraphBuilder, tensor: Any, items: list[object]) -> None:
        self.builder = builder
        self.unbacked: Unbacked = unbacked_ops.of(builder)
        self.tensor = tensor
        self.items = items
        self.sizes = unbacked_ops._sizes(builder, tensor)
        self.cut = False

    def convert(self) -> tuple[object, object] | None:
        """(stand-in, index); None for an index that is refused."""
        taken = sum(_dims_of(item) for item in self.items)
        if taken > len(self.sizes) or None in self.sizes or sum(item is Ellipsis for item in self.items) > 1:
            return None
        dim = 0
        converted: list[object] = []
        for item in self.items:
            if item is Ellipsis:
                dim += len(self.sizes) - taken
                converted.append(item)
                continue
            parts = self._item(item, dim)
            if parts is None:
                return None
            converted += parts
            dim += _dims_of(item)
        tensor = unbacked_ops.temporary(self.builder, self.sizes, self.tensor) if self.cut else self.tensor
        return tensor, tuple(converted)

    def _item(self, item: Any, dim: int) -> list[Any] | None:
        if isinstance(item, _T):
            return self._mask(item, dim) if item.dtype is torch.bool else [item]
        if type(item) in SYMBOLIC:
            return [0] if self.unbacked.among(item.expr) else [item]
        if type(item) is slice:
            return [self._slice(item, dim)]
        if item is None or type(item) is int or (type(item) is list and all(type(each) is int for each in item)):
            return [item]
        return None

    def _mask(self, mask: object, dim: int) -> list[object] | None:
        sizes = unbacked_ops._sizes(self.builder, mask)
        if sizes != self.sizes[dim : dim + len(sizes)] or not sizes:
            return None
        words = f"the count of elements that {unbacked_ops._name(self.builder, mask)} selects"
        count = unbacked_ops._count(self.builder, words, ("nonzero", id(mask)))
        unbacked_ops._bound(self.builder, count, unbacked_ops._numel(self.builder, mask))
        return [unbacked_ops.temporary(self.builder, [count], mask, torch.int64) for _ in sizes]

    def _slice(self, item: slice, dim: int) -> slice:
        size = self.sizes[dim]
        parts = [unbacked_ops.expr_of(part) for part in (item.start, item.stop, item.step)]
        if parts == [None, None, None] or not self.unbacked.among(*[p for p in (*parts, size) if isinstance(p, Expr)]):
            return item
        if type(item.step) in SYMBOLIC:
            item.step.number()
        self.cut = True
        self.sizes[dim] = self._length(parts[0], parts[1], parts[2], size)
        return slice(None)

    def _length(self, start: Any, stop: Any, step: object, size: Any) -> object:
        proven = self.unbacked.proven
        start = 0 if start is None else start
        stop = size if stop is None else stop
        if step in (None, 1):
            in_order = ((0, start), (start, stop), (stop, size))
            if all(a == b or proven(Relation("le", a, b)) for a, b in in_order):
                return self._as_size(stop - start)
        length = self.unbacked.new("the size of a slice", low=0)
        self.unbacked.learn(Relation("le", length, size))
        if isinstance(stop, int) and stop >= 0 and isinstance(start, int) and start >= 0:
            self.unbacked.learn(Relation("le", length, max(stop - start, 0)))
        return length

    def _as_size(self, length: Any) -> object:
        """A length; where the stand-ins contradict what is known of it (they are large), a symbol that equals it."""
        if all(value >= 0 for value in self.unbacked.dynamics.table.vector(length)):
            return length
        size = self.unbacked.new("the size of a slice", low=0)
        self.unbacked.learn(Relation("eq", size, length))
        return size


def _dims_of(item: Any) -> int:
    """How many dims an item of an index consumes."""
    if item is None or item is Ellipsis:
        return 0
    return int(item.dim()) if isinstance(item, _T) and item.dtype is torch.bool else 1
