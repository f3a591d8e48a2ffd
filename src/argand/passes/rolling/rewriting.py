"""The body of a loop as a program of its own, and one node in a program in place of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from argand.graph import compat
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import is_contiguous
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, InputSpec, OutputSpec, TensorSpec
from argand.passes.rolling.windows import Loop
from argand.runtime.kernels.steps import Steps, named, steps_ops

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Body:
    """What a round computes.

    Arguments:
        program: of a round. Its inputs are `outside`, the slices of `over`, and results of the round before.
        outside: nodes that all rounds read.
        over: places of the slices.
        carried: places whose results the next round reads.
        results: places of its results.
        kept: those of which every round's result is kept; of others the last.
    """

    program: AtenProgram
    outside: Sequence[fx.Node]
    over: Sequence[int]
    carried: Sequence[int]
    results: Sequence[int]
    kept: frozenset[int]

    def rows(self, offset: int, count: int) -> int:
        """Results that there is room for: of what is carried, the first round reads one."""
        carried = offset in self.carried
        return count + carried if offset in self.kept else 1 + carried

    def row(self, offset: int, number: int) -> int:
        """Where a round's result is."""
        carried = offset in self.carried
        return number + carried if offset in self.kept else (number + 1) % 2 * carried


def body_of(loop: Loop, program: AtenProgram) -> Body | None:
    """The body of a loop; None where values of other kinds than tensors on the CPU go in or out."""
    nodes = loop.rounds[1]
    place = {node: offset for offset, node in enumerate(nodes)}
    before = {node: offset for offset, node in enumerate(loop.rounds[0])}
    reads = dict.fromkeys(
        read for offset, node in enumerate(nodes) if offset not in loop.over for read in node.all_input_nodes
    )
    outside = [read for read in reads if read not in place and read not in before]
    over, carried = sorted(loop.over), sorted(loop.carried)
    results = sorted({*carried, *loop.seen})
    given = [*outside, *(nodes[offset] for offset in over), *(loop.rounds[0][offset] for offset in carried)]
    if not results or not all(_is_plain(node) for node in (*given, *(nodes[offset] for offset in results))):
        return None
    if not all(is_contiguous(tuple(nodes[o].meta["val"].shape), nodes[o].meta["val"].stride()) for o in results):
        return None
    graph = fx.Graph()
    inputs = [graph.placeholder(f"in{number}") for number in range(len(given))]
    env = dict(zip(given, inputs))
    for placeholder, node in zip(inputs, given):
        placeholder.meta.update({key: node.meta[key] for key in ("val", "device", "origin") if key in node.meta})
    for offset, node in enumerate(nodes):
        if offset not in loop.over:
            env[node] = compat.copy_node(graph, node, env.__getitem__)
    graph.output(tuple(env[nodes[offset]] for offset in results))
    specs = [
        InputSpec(placeholder.name, "arg", number, _spec(placeholder)) for number, placeholder in enumerate(inputs)
    ]
    outputs = [OutputSpec("value", number) for number in range(len(results))]
    made_program = AtenProgram(graph, specs, outputs, [], {}, None, num_args=len(inputs), model=program.model)
    eliminate_dead(graph)
    kept = frozenset(offset for offset, last in loop.seen.items() if not last)
    return Body(made_program, outside, over, carried, results, kept)


def _is_plain(node: fx.Node) -> bool:
    device = node.meta.get("device")
    return isinstance(node.meta.get("val"), torch.Tensor) and device is not None and device.type == "cpu"


def _spec(node: fx.Node) -> TensorSpec:
    val: Any = node.meta["val"]
    return TensorSpec(tuple(val.shape), tuple(val.stride()), 0, val.dtype, node.meta["device"])


def layout_of(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and strides of a node's result."""
    val: Any = node.meta["val"]
    return tuple(val.shape), tuple(val.stride())


def roll(program: AtenProgram, loop: Loop, body: Body, source: str, steps: Steps, inputs: Sequence[fx.Node]) -> None:
    """Put one node in place of a loop.

    Arguments:
        source, steps: the kernel and how it is called.
        inputs: as `steps` counts them.
    """
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="roll")
    after = loop.rounds[-1][-1].next
    with builder.at(after):
        results = builder(steps_ops().steps, named(source, steps), list(inputs))
    result_of = dict(zip(body.results, results))
    whose = {node: (number, offset) for number, each in enumerate(loop.rounds) for offset, node in enumerate(each)}
    for user in _outside_users(loop, whose):
        if user.target in (aten.cat.default, aten.stack.default):
            _joined(builder, user, whose, result_of, body)
    for node, (number, offset) in whose.items():
        if offset in result_of and any(user not in whose for user in node.users):
            with builder.at(results[-1].next):
                picked = builder(aten.select.int, result_of[offset], 0, body.row(offset, number))
            node.replace_all_uses_with(picked, delete_user_cb=lambda user: user not in whose)
    eliminate_dead(program.graph)


def _outside_users(loop: Loop, whose: dict[fx.Node, tuple[int, int]]) -> list[fx.Node]:
    """What joins results of rounds, as they are or with a dimension more."""
    users: dict[fx.Node, None] = {}
    for node in loop.rounds[1]:
        for user in node.users:
            if user not in whose:
                users[user] = None
                users.update(dict.fromkeys(user.users if user.target is aten.unsqueeze.default else ()))
    return [node for node in users if node.op == "call_function"]


def _joined(
    builder: Builder, user: fx.Node, whose: dict[fx.Node, tuple[int, int]], result_of: dict[int, Any], body: Body
) -> None:
    """Read results of consecutive rounds that are joined along a dimension of their own where they lie."""
    parts: Any = user.args[0]
    rank = len(user.meta["val"].shape)
    dim = int(user.args[1]) % rank if len(user.args) > 1 else 0
    stacked = user.target is aten.stack.default
    sources = [_Part(part, False) if stacked else _part(part, dim, rank, whose) for part in parts]
    places = [whose.get(source.node) if source is not None else None for source in sources]
    pieces: list[Any] = []
    number = 0
    with builder.at(user):
        while number < len(parts):
            first, source, end = places[number], sources[number], number + 1
            if source is None or first is None or first[1] not in result_of:
                pieces.append(builder(aten.unsqueeze.default, parts[number], dim) if stacked else parts[number])
                number = end
                continue
            while end < len(parts) and places[end] == (first[0] + end - number, first[1]):
                end += 1
            begin = body.row(first[1], first[0])
            rows = builder(aten.slice.Tensor, result_of[first[1]], 0, begin, begin + end - number)
            rows = builder(aten.squeeze.dim, rows, dim + 1) if source.has_dimension else rows
            pieces.append(builder(aten.permute.default, rows, [*range(1, dim + 1), 0, *range(dim + 1, rank)]))
            number = end
        if len(pieces) == 1:
            joined = builder(aten.clone.default, pieces[0], memory_format=torch.contiguous_format)
        else:
            joined = builder(aten.cat.default, pieces, dim)
    if len(pieces) == len(parts) or layout_of(joined) != layout_of(user):
        return
    user.replace_all_uses_with(joined)
    builder.graph.erase_node(user)
    for part in dict.fromkeys(parts):
        if part.target is aten.unsqueeze.default and not part.users and part not in whose:
            builder.graph.erase_node(part)


@dataclass(frozen=True, slots=True)
class _Part:
    """A result that is joined with others; `has_dimension`: with the one of one element along which that is done."""

    node: fx.Node
    has_dimension: bool


def _part(part: fx.Node, dim: int, rank: int, whose: dict[fx.Node, tuple[int, int]]) -> _Part | None:
    """What a part of a `cat` is; None where it is none of one element along `dim`."""
    if part in whose:
        return _Part(part, True) if part.meta["val"].shape[dim] == 1 else None
    if part.target is not aten.unsqueeze.default or int(part.args[1]) % rank != dim:
        return None
    return _Part(part.args[0], False)
