"""The body of a loop as a program of its own, and one node in a program in place of all rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from argand.graph import compat
from argand.graph.metadata.strides import is_contiguous
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, InputSpec, OutputSpec, spec_of
from argand.passes.rolling.results import builder_of, replace_results
from argand.passes.rolling.windows import Loop
from argand.quick_dataclasses import dataclass
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
        InputSpec(placeholder.name, "arg", number, spec_of(placeholder)) for number, placeholder in enumerate(inputs)
    ]
    outputs = [OutputSpec("value", number) for number in range(len(results))]
    made_program = AtenProgram(graph, specs, outputs, [], {}, None, num_args=len(inputs), model=program.model)
    eliminate_dead(graph)
    kept = frozenset(offset for offset, last in loop.seen.items() if not last)
    return Body(made_program, outside, over, carried, results, kept)


def _is_plain(node: fx.Node) -> bool:
    device = node.meta.get("device")
    return isinstance(node.meta.get("val"), torch.Tensor) and device is not None and device.type == "cpu"


def roll(program: AtenProgram, loop: Loop, body: Body, source: str, steps: Steps, inputs: Sequence[fx.Node]) -> None:
    """Put one node in place of a loop.

    Arguments:
        source, steps: the kernel and how it is called.
        inputs: as `steps` counts them.
    """
    builder = builder_of(program)
    after = loop.rounds[-1][-1].next
    with builder.at(after):
        results = builder(steps_ops().steps, named(source, steps), list(inputs))
    whose = {node: (number, offset) for number, each in enumerate(loop.rounds) for offset, node in enumerate(each)}
    replace_results(program, whose, dict(zip(body.results, results)), body.row)
    eliminate_dead(program.graph)
