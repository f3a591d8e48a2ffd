"""A graph of an earlier process, as this process would have captured or traced it: compiled for whatever is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from argand.autograd.partitioning.passed_results import Half
from argand.autograd.tracing.tape import Tape
from argand.autograd.training import LazyBackward
from argand.backends.compile_watchers import Compiler
from argand.backends.dynamic import ExactSizes
from argand.backends.native import compile_program, native
from argand.backends.training import compile_backward
from argand.graph.nodes.printing import graph_function
from argand.graph.nodes.program_codec import decode_program
from argand.runtime.tape.plan import Slot, slots


def backward_of(entry: dict[str, Any]) -> LazyBackward:
    """The backward that an entry of `backward_entries` tells of."""
    gradients, passed = (
        {position: Slot(kind, index) for position, kind, index in entry[name]} for name in ("gradients", "passed")
    )
    half = Half(decode_program(entry["graph"]), list(slots(entry["arguments"])), gradients, passed)
    conflicts, *sets = entry["reached"]
    reached, through, alone = (tuple(map(frozenset, each)) for each in sets)
    tape = Tape(conflicts, reached, passed=through, alone=alone)
    compiler = Compiler("native", compile_program, boxed=True)
    return LazyBackward(half, tape, lambda program: compile_backward(program, compiler))


def replay_of(entry: dict[str, Any]) -> Callable[..., Any]:
    """The forward as a function that eager's autograd can record (`partitioning.replay`)."""
    program = decode_program(entry["again"])
    return graph_function(program.graph, program.constants, "replay")


def for_sizes(module: fx.GraphModule) -> Callable[..., Any]:
    """A captured graph, compiled for each of the few sizes that it is called with."""
    return ExactSizes(module, lambda args: native(module, args), "native").function()
