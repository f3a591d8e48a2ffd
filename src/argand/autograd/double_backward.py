"""What is known of a captured graph that may run again for gradients of gradients (`runtime.tape.double_backward`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.partition import Partition
from argand.autograd.partitioning.replay import Replay, replay_of, unread_arguments
from argand.autograd.tracing.joint import JointProgram
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.random_ops import draws_seed
from argand.runtime.tape.double_backward import Facts, NotAgain

_ARGUMENT = re.compile(r"args\[(\d+)\]")


class RunsAgain:
    """What is known of one captured graph, found out when it is first asked for.

    Arguments:
        graph: there is one at hand.
    """

    def __init__(self, joint: JointProgram, cut: Partition, *, graph: bool) -> None:
        self.cut = cut
        self.differentiable = joint.differentiable
        self.began_with_grad = torch.is_grad_enabled() or not joint.enables_grad
        self.refused = "" if graph else "it is not at hand"
        if compat.autocast_active():
            self.refused = "autocast was on around the code"
        # Only what may be run again in this way is kept.
        self._joint = joint if joint.plain and (cut.seeds or self.refused) else None
        self.replay: Replay | None = None

    def facts(self) -> Facts:
        """What is known of the graph."""
        program = self.cut.forward
        try:
            needed = self._checked()
        except NotAgain as refused:
            return Facts(refused.cause)
        numbers = {scalar.sym.name: scalar.source for scalar in program.scalars}
        placed = [
            (position, int(place[1]))
            for position, spec in enumerate(program.inputs)
            if spec.kind == "scalar" and (place := _ARGUMENT.fullmatch(numbers[spec.name]))
        ]
        return Facts(
            refused="",
            began_with_grad=self.began_with_grad,
            needed=tuple(sorted(needed)),
            tensors=tuple([(place, spec.index) for place, spec in enumerate(program.inputs) if spec.kind == "arg"]),
            numbers=tuple(placed),
            copied=tuple([mutation.input for mutation in program.mutations]),
            specialised=tuple(program.specialised.items()),
            count=program.num_args,
            places=tuple([(spec.index, place) for place, spec in enumerate(program.outputs) if _is_plain(spec)]),
            replayed=self.replay is not None,
            passed=() if self.replay is None else tuple(sorted(self.replay.passed)),
        )

    def run(self) -> Callable[..., Any]:
        """The functional graph, where the facts say that this runs."""
        assert self.replay is not None
        return self.replay.run

    def _checked(self) -> frozenset[int]:
        """Positions of the inputs that gradients depend on.

        Raises:
            NotAgain: the graph cannot run twice.
        """
        forward = self.cut.forward
        if forward.bases or forward.leaves:
            raise NotAgain("its inputs share memory, or it makes tensors that require grad")
        if self.refused or (_draws(self.cut) and not draws_as_eager(self.cut)):
            return self._replayed(self.refused or "it draws random numbers, and would draw others")
        needed = _read_for_gradients(self.cut)
        written = {mutation.input for mutation in forward.mutations}.difference(kept_before(self.cut))
        plain = {spec.index for spec in forward.outputs if _is_plain(spec)}
        if written & needed or any(mutation.differentiable for mutation in forward.mutations):
            raise NotAgain("it writes to a tensor that its gradients depend on")
        if not plain.issuperset(self.differentiable):
            raise NotAgain("a result is only seen through views of it")
        return needed

    def _replayed(self, reason: str) -> frozenset[int]:
        """As `_checked`, for the functional graph."""
        replay = None if self._joint is None else replay_of(self._joint)
        if replay is None:
            raise NotAgain(reason)
        kept = kept_before(self.cut)
        if any(mutation.input in replay.read and mutation.input not in kept for mutation in self.cut.forward.mutations):
            raise NotAgain("it writes to a tensor that it reads")
        self.replay = replay
        return replay.read & _read_for_gradients(self.cut)


def let_go(cut: Partition) -> tuple[int, ...]:
    """Positions of the inputs that a call does not keep alive, and zeros may stand for: gradients do not depend on what
    they are, or the graph does not run again."""
    forward = cut.forward
    read = frozenset[int]() if forward.bases or forward.leaves else _read_for_gradients(cut)
    inputs = [(at, spec.spec.dtype) for at, spec in enumerate(forward.inputs) if spec.kind == "arg" and at not in read]
    return tuple([at for at, dtype in inputs if dtype.is_floating_point or dtype.is_complex])


_SMALL = 1 << 16  # elements


def kept_before(cut: Partition) -> tuple[int, ...]:
    """Positions of the inputs that a call writes to, and keeps a copy of: gradients depend on them."""
    forward = cut.forward
    if not forward.mutations or forward.bases or forward.leaves:
        return ()
    read = _read_for_gradients(cut)
    written = [one.input for one in forward.mutations if one.input in read and not one.differentiable]
    specs = [(position, forward.inputs[position]) for position in written]
    return tuple([
        position
        for position, spec in specs
        if spec.kind == "arg"
        and not spec.spec.requires_grad
        and all(isinstance(size, int) for size in spec.spec.size)
        and math.prod(spec.spec.size) <= _SMALL
    ])  # fmt: skip


def _draws(cut: Partition) -> bool:
    return any(compat.is_random(node.target) for node in cut.forward.graph.nodes)


def draws_as_eager(cut: Partition) -> bool:
    """Whether a graph draws random numbers from torch's generators, as the captured graph does: it has no seeds."""
    return _draws(cut) and not any(draws_seed(node.target) for node in cut.forward.graph.nodes)


def _read_for_gradients(cut: Partition) -> frozenset[int]:
    forward: AtenProgram = cut.forward
    outputs: Any = forward.output_node.args[0]
    seen: set[fx.Node] = set()
    direct = {slot.index for slot in cut.arguments if slot.kind in ("input", "data")}
    held = {one.input: one.output for one in forward.mutations if one.input in direct}  # read as they are by then
    work = [outputs[slot.index] for slot in cut.arguments if slot.kind == "output"]
    work += [outputs[output] for output in held.values()]
    while work:
        node = work.pop()
        if node not in seen:
            seen.add(node)
            unread = unread_arguments(node)
            work.extend(given for given in node.all_input_nodes if given not in unread)
    placed = enumerate(forward.placeholders)
    return frozenset((direct - held.keys()) | {position for position, node in placed if node in seen})


def _is_plain(spec: Any) -> bool:
    """Whether a result is handed over as it is."""
    return bool(spec.kind == "value" or (spec.kind == "alias_of_output" and spec.view is None))
