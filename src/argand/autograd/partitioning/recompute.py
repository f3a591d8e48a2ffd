"""What the forward keeps for the backward: a minimum cut over bytes kept and work done twice.

The idea of choosing saved values by a minimum cut is from H. He, S. Yu, "Transcending runtime-memory tradeoffs in
checkpointing by being fusion aware", MLSys 2023. Here work done twice has a price as well (an edge from the source), so
that the cut weighs both, and the memory budget is a price per kept byte that is raised until the budget is met.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from argand.autograd.tracing.saved_values import is_saved
from argand.graph import compat
from argand.graph.metadata import layouts
from argand.graph.metadata.strides import lies_densely
from argand.graph.minimum_cut import INFINITE, FlowNetwork
from argand.graph.nodes.meta import is_view, viewed
from argand.graph.operators.aten_names import of_aten
from argand.graph.sizes.symbolic import SymbolicTensor, is_tensor
from argand.ir.operations import ELEMENTARY, cost

aten = torch.ops.aten

_CREATION = frozenset(of_aten(
    "full zeros ones arange arange.start arange.start_step scalar_tensor zeros_like ones_like full_like eye eye.m"
))  # fmt: skip
_MOVES = frozenset(of_aten(
    "clone _to_copy expand tril triu masked_fill.Scalar masked_fill.Tensor fill.Scalar"
))  # fmt: skip
_HEAVY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot", "linear", "lstm", "gru")


def reads_before(node: fx.Node) -> list[fx.Node]:
    """The memory that doing a node of the forward again would read, where the program may have written to it since.
    A checkpoint does read its inputs again, as eager's does."""
    if "backward" in node.meta or "recompute" in node.meta or is_view(node) or node.target is operator.getitem:
        return []
    return list(map(viewed, node.all_input_nodes))


def is_fusible(node: fx.Node) -> bool:
    """Doing the node again inside the backward's kernels costs next to no memory traffic."""
    return _fuses(node.target) or is_fixed_batch_norm(node)


@functools.lru_cache(maxsize=1 << 12)
def _fuses(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return (
        target in _CREATION or target in _MOVES or compat.is_view_op(target) or layouts.is_pointwise(target)
        or _makes_uniform(target)
    )  # fmt: skip


def is_fixed_batch_norm(node: fx.Node) -> bool:
    """A batch norm by statistics that it is given: pointwise."""
    if node.target is aten.native_batch_norm.default:
        return node.args[5] is False
    return node.target is aten._native_batch_norm_legit_no_training.default


def is_uniform(node: fx.Node) -> bool:
    """Random numbers made from a seed: the same ones whenever they are made."""
    return _makes_uniform(node.target)


@functools.lru_cache(maxsize=1 << 12)
def _makes_uniform(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.name() == "argand::uniform"


def is_random(node: fx.Node) -> bool:
    return compat.is_random(node.target)


def _inside_region(node: fx.Node, region: object | None = None) -> bool:
    """The node belongs to a checkpoint, and nothing else in the forward reads it, through views or not."""
    region = region or node.meta.get("recompute")
    if region is None:
        return False
    for user in node.users:
        if "backward" in user.meta:
            continue
        if is_view(user) or user.target is operator.getitem:
            if not _inside_region(user, region):
                return False
        elif user.meta.get("recompute") is not region:
            return False
    return True


def _drawn(node: fx.Node) -> bool:
    """A random value, or a part of one."""
    return is_random(node.args[0] if node.target is operator.getitem else node)


def bytes_of(node: fx.Node) -> int:
    """Bytes of the node's result: of what it holds if it is a tensor, else of all its tensors."""
    val: Any = node.meta.get("val")
    values = val if isinstance(val, (tuple, list)) else (val,)
    # Of a value with symbolic sizes the example, which has sizes near those of the call.
    tensors = [v.example if isinstance(v, SymbolicTensor) else v for v in values]
    return sum(v.numel() * v.element_size() for v in tensors if isinstance(v, torch.Tensor))


class Costs:
    """Prices of keeping and of recomputing each value, in bytes of memory traffic.

    Arguments:
        results: nodes that the forward returns to the user.
        written: placeholders that the call writes to, so that their old value is gone when the backward runs.
        strict: only what fuses may be done again; otherwise anything that is not random.
        loose: placeholders and results that the program may write to before the backward runs, unseen by autograd or
            without an objection of it: what the forward made of them is not made again.
        copies: nodes that copy inputs as they are when the forward runs, or stand for their data.
        handed: memory of results: what eager has saved of these and of inputs is read as it is by then.
    """

    def __init__(
        self,
        results: Iterable[fx.Node],
        written: Iterable[fx.Node],
        *,
        strict: bool,
        loose: Iterable[fx.Node] = (),
        copies: Iterable[fx.Node] = (),
        handed: Iterable[fx.Node] = (),
    ) -> None:
        self.results = frozenset(results)
        self.written = frozenset(written)
        self.strict = strict
        self.loose = frozenset(loose)
        self.copies = frozenset(copies)
        self.handed = frozenset(handed)
        self.seen = frozenset(node for node in handed if is_saved(node))
        self._kinds: dict[int, tuple[bool, bool]] = {}  # of functions that nodes call: whether views, whether they fuse

    def _kind(self, node: fx.Node) -> tuple[bool, bool]:
        """`is_view` and `is_fusible` of a node: operators, which hash themselves in Python, are asked once."""
        kind = self._kinds.get(id(node.target))
        if kind is None:
            kind = self._kinds[id(node.target)] = is_view(node), _fuses(node.target)
        return kind if kind[1] else (kind[0], is_fixed_batch_norm(node))

    def keep(self, node: fx.Node) -> int:
        """Price of keeping the node's result from forward to backward."""
        val = node.meta.get("val")
        if not is_tensor(val):
            return INFINITE
        if self._reads_saved(node):
            return INFINITE
        size = bytes_of(node) + 1
        if node.op == "placeholder":
            return 3 * size if node in self.written else 1 + size // 16  # it is alive anyway
        if node.target is aten.alias.default and node in self.copies:
            return 1 + size // 16
        if node.op == "get_attr":
            return 1
        view, fuses = self._kind(node)
        if view or (_inside_region(node) and not _drawn(node)):
            return INFINITE  # what it views is kept; checkpoints keep nothing
        if node not in self.results and not lies_densely(val.example if isinstance(val, SymbolicTensor) else val):
            return INFINITE  # kernels leave no holes in it (a scatter to a strided input), and readers are told of some
        in_memory = node in self.results or not fuses or not all(self._kind(user)[1] for user in node.users)
        return size if in_memory else 2 * size

    def _reads_saved(self, node: fx.Node) -> bool:
        """Whether eager's backward reads memory that the program sees, in which it may have written by then."""
        if "backward" not in node.meta:
            return False
        return any(source.op == "placeholder" or source in self.handed for source in map(viewed, node.all_input_nodes))

    def redo(self, node: fx.Node) -> int:
        """Price of computing the node again in the backward."""
        if node.op == "placeholder" or is_random(node) or compat.communicates(node.target):
            return INFINITE
        if node in self.copies or node in self.seen:
            return INFINITE
        if self._reads_saved(node):
            return 0
        view, fuses = self._kind(node)
        if node.op == "get_attr" or view or node.target is operator.getitem or (fuses and node.target in _CREATION):
            return 0
        if "recompute" in node.meta:
            return 0 if _inside_region(node) else INFINITE
        if self.loose and any(source in self.loose for source in reads_before(node)):
            return INFINITE
        if is_uniform(node):
            return bytes_of(node) // 2
        if fuses:
            return bytes_of(node) // _share(node.target)
        if self.strict:
            return INFINITE
        read = sum(bytes_of(source) for source in node.all_input_nodes)
        return (read + bytes_of(node)) * (64 if any(part in str(node.target) for part in _HEAVY) else 2)


@functools.lru_cache(maxsize=1 << 12)
def _share(target: Any) -> int:
    """Which part of its bytes an operation that fuses costs."""
    return 2 if cost(target._schema.name.rsplit("::", 1)[-1]) >= ELEMENTARY else 10


def choose_saved(
    needed: list[fx.Node],
    backward: frozenset[fx.Node],
    costs: Costs,
    price: int = 1,
    cheaper: tuple[int, int] = (0, 1),
) -> list[fx.Node] | None:
    """The values to keep.

    Arguments:
        needed: every node that the backward may want, outside `backward`, in graph order.
        backward: nodes that can only run in the backward (they depend on a tangent).
        price: weight of a kept byte against a byte of work.
        cheaper: (how many of the last nodes have a lower price, that price).

    Returns:
        Nodes in graph order; None when no choice is possible (a random value that is not a tensor, say).
    """
    network = FlowNetwork()
    source, sink = network.vertex(), network.vertex()
    ends: dict[fx.Node, tuple[int, int]] = {}
    for number, node in enumerate(needed):
        start, end = ends[node] = network.vertex(), network.vertex()
        keep, redo = costs.keep(node), costs.redo(node)
        weight = cheaper[1] if number >= len(needed) - cheaper[0] else price
        network.edge(start, end, keep if keep >= INFINITE else keep * weight)
        if redo:
            network.edge(source, start, redo)
        if node.op == "placeholder":
            network.edge(source, start, INFINITE)
        for argument in node.all_input_nodes:
            if argument in ends:
                network.edge(ends[argument][1], start, INFINITE)
        if any(user in backward for user in node.users):
            network.edge(end, sink, INFINITE)
    value, on_source_side = network.minimum_cut(source, sink)
    if value >= INFINITE:
        return None
    return [node for node, (start, end) in ends.items() if on_source_side[start] and not on_source_side[end]]


def within_budget(
    needed: list[fx.Node], backward: frozenset[fx.Node], costs: Costs, budget: float
) -> list[fx.Node] | None:
    """As `choose_saved`, for a memory budget between 0 and 1.

    1 keeps what costs least time. Below it the kept bytes are at most `budget` times that, where recomputation can
    achieve it: the price of a kept byte is raised until it does. Where many layers are alike, all of them change at
    one price; the last ones are then given the price below it, as many of them as the budget allows.
    """
    best = choose_saved(needed, backward, costs)
    if best is None or budget >= 1:
        return best
    limit = budget * _kept_bytes(best)
    costs.strict = False
    costs.loose = frozenset()  # as a checkpoint does, which reads its inputs again
    price = 1
    while _kept_bytes(best) > limit and price < 1 << 16:
        again = choose_saved(needed, backward, costs, price)
        if again is not None and _kept_bytes(again) < _kept_bytes(best):
            best = again
        price *= 4
    few, many = 0, len(needed)  # how many nodes have the lower price
    while few + 1 < many and price > 4 and _kept_bytes(best) <= limit:
        middle = (few + many) // 2
        mixed = choose_saved(needed, backward, costs, price // 4, (middle, price // 16))
        if mixed is not None and _kept_bytes(best) <= _kept_bytes(mixed) <= limit:
            few, best = middle, mixed
        else:
            many = middle
    return best


def _kept_bytes(nodes: list[fx.Node]) -> int:
    return sum(bytes_of(node) for node in nodes if node.op != "placeholder")
