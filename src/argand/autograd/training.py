"""Running a partitioned program: an autograd function whose forward and backward are compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from argand import events
from argand._core import _C
from argand._core.calls import uncaptured
from argand.autograd.differentiable import Differentiable, Inputs, NotAgain
from argand.autograd.partitioning.moves import Left, Moves
from argand.autograd.partitioning.partition import Partition, Slot
from argand.autograd.partitioning.parts import BackwardPart, backward_part
from argand.autograd.recording.leaves import data_of_results
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.tape import Tape
from argand.graph import compat
from argand.graph.nodes.printing import graph_function
from argand.graph.nodes.program import AtenProgram, MutationSpec
from argand.locks import fork_safe_lock

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]


class LazyBackward:
    """The compiled backward, for the results that got a gradient: made when such gradients first come.

    Arguments:
        make: compiles a program.
    """

    def __init__(self, cut: Partition, tape: Tape, make: Callable[[AtenProgram], Boxed]) -> None:
        self.cut = cut
        self.tape = tape
        self._make = make
        self._parts: dict[tuple[bool, ...], BackwardPart] = {}
        self._runs: dict[tuple[bool, ...], Boxed] = {}
        self._eager: dict[tuple[bool, ...], Boxed] = {}
        self._lock = fork_safe_lock()

    def part(self, given: tuple[bool, ...]) -> BackwardPart:
        """The graph for the results that are `given`, and what it reads."""
        found = self._parts.get(given)
        if found is None:
            found = self._parts[given] = uncaptured(backward_part, self.cut, self.tape, given)
        return found

    def run(self, given: tuple[bool, ...]) -> Boxed:
        """The compiled graph for the results that are `given`."""
        run = self._runs.get(given)
        if run is None:
            run = uncaptured(_C.call_locked, self._lock, _C.call_restoring, self._compile, given)
        return run

    def prepare(self) -> Boxed:
        """The compiled backward for all results."""
        return self.run((True,) * len(self.tape.conflicts))

    def _compile(self, given: tuple[bool, ...]) -> Boxed:
        run = self._runs.get(given)
        if run is None:
            if len(self._runs) >= _MOST_PARTS:
                return self.run_eagerly(given, f"{_MOST_PARTS} combinations of results were differentiated before")
            program = backward_part(self.cut, self.tape, given).program  # compiling changes it
            with compat.without_default_device():
                run = self._runs[given] = self._make(program)
        return run

    def run_eagerly(self, given: tuple[bool, ...], reason: str) -> Boxed:
        """As `run`, with eager's kernels."""
        run = self._eager.get(given)
        if run is None:
            program = self.part(given).program
            function = graph_function(program.graph, program.constants)
            events.emit("fallback", "autograd", reason, reason=reason, scope="backward")
            run = self._eager[given] = lambda args: function(*args)
        return run

    def read_by(self, results: int) -> set[Slot]:
        """What is read when any of the results (bit `1 << k` for result k) is differentiated."""
        count = len(self.tape.conflicts)
        alone = [tuple([i == k for i in range(count)]) for k in range(count) if results >> k & 1]
        return {slot for given in alone for slot in self.part(given).arguments}


_MOST_PARTS = 8  # compiled backwards of one graph; programs that differentiate more combinations run eager's kernels


def _gradients(
    moves: Moves, again: Differentiable, given: Any, saved: Any, anchor: torch.Tensor | None, grads: Any, ctx: Any
) -> Any:
    if not torch.is_grad_enabled():
        return moves.gradients(given, saved, grads, ctx.numbers)
    try:
        return again.gradients(ctx.inputs, grads)
    except NotAgain as refused:
        reason = str(refused)
    if anchor is None:
        raise RuntimeError(_TWICE.format(reason=reason))
    with torch.no_grad():
        found = moves.gradients(given, saved, grads, ctx.numbers)
    return _once(found, (anchor, *grads), reason)


def training_function(
    joint: JointProgram,
    cut: Partition,
    forward: Boxed,
    backward: LazyBackward,
    graph: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A callable that takes the forward's inputs positionally and returns the forward's results, on autograd's tape.

    Arguments:
        forward: the compiled forward; takes a list (which it empties), returns results and kept values.
        backward: makes the compiled backward; the same calling convention.
        graph: the captured graph as a function of its arguments, for gradients that are to be differentiated again.
    """
    plan = _Plan(joint, cut)
    moves = Moves(joint, cut, backward)
    again = Differentiable(graph, joint, cut)

    class CompiledFunction(torch.autograd.Function):
        """One call of the compiled graph. Its last result is empty: it stands for all that gradients depend on."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out = forward(list(inputs))
            if plan.written:
                _write_back(plan.written, plan.raised, inputs, out)
            for position, result in plan.leaves:  # before anything is saved: what is saved of a leaf is the leaf itself
                inputs[position].data = out[result]
            ctx.inputs = Inputs(inputs, [out[i] for i in plan.seeds])
            ctx.numbers = tuple([inputs[i] for i in plan.numbers])
            ctx.left = None
            if compat.saved_tensor_hooks_active():
                out = [*out[: plan.results], *map(_alone, out[plan.results :])]
            anchor = torch.empty(0, device="cpu")
            ctx.save_for_backward(*plan.kept(inputs, out), anchor)
            ctx.set_materialize_grads(False)
            results = plan.result_tensors(out)
            if plan.plain:
                ctx.mark_non_differentiable(*[results[i] for i in plan.plain])
            return (*results, anchor)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            given = moves.given(grads)
            left: Left | None = ctx.left
            spent = 0 if left is None else left.spent
            if left is None or any(one and spent >> k & 1 for k, one in enumerate(given)):  # autograd says: freed
                *saved, anchor = ctx.saved_tensors
            else:
                saved, anchor = left.tensors(), None
            if not compat.keeps_graph():
                spent |= moves.conflicts(given)
                ctx.left = moves.left(saved, spent)
                ctx.maybe_clear_saved_tensors()
            left = None
            # The user's `backward()` may be called by a frame that is watched.
            return uncaptured(_gradients, moves, again, given, saved, anchor, grads, ctx)

    return _with_own_nodes(CompiledFunction.apply, plan.apart) if plan.apart else CompiledFunction.apply


class _Together(torch.autograd.Function):
    """Stands for an operation with several results: hooks of all are called when a gradient comes to one."""

    @staticmethod
    def forward(ctx: Any, *results: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def _with_own_nodes(apply: Callable[..., Any], apart: list[tuple[int, ...]]) -> Callable[..., Any]:
    """The results on nodes of their own, which a backward that does not come to them leaves alone, with their hooks.

    Arguments:
        apart: positions of the results that share a node.
    """
    add = compat.node_adder()

    def call(*inputs: Any) -> Any:
        out = list(apply(*inputs))
        for group in apart:  # in eager's order, in which hooks run
            if add is not None and len(group) == 1:
                add(out[group[0]])
            else:
                for position, result in zip(group, _Together.apply(*[out[i] for i in group])):
                    out[position] = result
        return out

    return call


def recorded_program(forward: AtenProgram) -> AtenProgram:
    """The forward's plan for the runtime wrapper around `training_function`, which has written to plain inputs."""
    return replace(forward, mutations=[mutation for mutation in forward.mutations if mutation.differentiable])


def without_base(result: torch.Tensor) -> torch.Tensor:
    """A result that the graph's kernels made as a view of something that nobody else sees may be written to."""
    return result.detach() if result._is_view() else result


def _write_back(
    written: list[MutationSpec], raised: tuple[int, ...], inputs: Sequence[Any], out: Sequence[torch.Tensor]
) -> None:
    """Give inputs their new values. Before anything is saved: what the backward reads may be such an input itself."""
    stored = [inputs[position] for position in raised]
    for mutation in written:
        target, new = inputs[mutation.input], out[mutation.output]
        if new is not target:
            (target.data if mutation.unseen else target).copy_(new)
        elif not mutation.unseen:
            stored.append(target)
    compat.written_in_place(stored)


def _alone(kept: torch.Tensor) -> torch.Tensor:
    """A kept tensor that shares no memory with others: hooks may write its storage to a file, say."""
    dense = kept.numel() * kept.element_size() == kept.untyped_storage().nbytes()
    return kept if dense else kept.clone()


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again; whoever tries is told so."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.reason = reason
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_TWICE.format(reason=ctx.reason))


def _once(found: tuple[Any, ...], sources: tuple[Any, ...], reason: str) -> tuple[Any, ...]:
    """Gradients computed under `create_graph=True`. They depend on what the graph read, as nobody recorded, and on the
    gradients that came in: `sources` lead autograd to all of these, which would else be taken for constants."""
    given = [grad for grad in found if grad is not None]
    if not given:
        return found
    leading = [source for source in sources if source is not None and source.requires_grad]
    marked = iter(_Once.apply(reason, len(given), *given, *leading))
    return tuple([None if grad is None else next(marked) for grad in found])


_TWICE = (
    "argand: a gradient of a gradient was asked for (create_graph=True) through a compiled graph that cannot run once "
    "more for it: {reason}. Keep the part that needs second derivatives out of the compiled function, or run it with "
    'backend="eager".'
)


def _apart(joint: JointProgram) -> list[tuple[int, ...]]:
    """The results that the program sees, by eager's nodes that made them; none where all are of one node, as here."""
    by_node: dict[int, list[int]] = {}
    for node, position in sorted(zip(joint.tape.nodes, joint.differentiable)):
        by_node.setdefault(node, []).append(position)
    handed = ("value", "alias_of_output")
    seen = {spec.index for spec in joint.program.outputs if spec.kind in handed and spec.view is None}
    groups = [tuple([position for position in group if position in seen]) for group in by_node.values()]
    return [group for group in groups if group] if len(groups) > 1 else []


class _Plan:
    """What moves where around the two compiled graphs."""

    def __init__(self, joint: JointProgram, cut: Partition) -> None:
        self.results = cut.results
        self.written = [mutation for mutation in cut.forward.mutations if not mutation.differentiable]
        self.raised = tuple([position for base in cut.forward.bases for position in base.written])
        gone = {mutation.output for mutation in self.written}
        self.plain = [i for i in range(cut.results) if i not in joint.differentiable and i not in gone]
        recorded = {mutation.output for mutation in cut.forward.mutations} - gone
        self.handed_over = ["none" if i in gone else "same" if i in recorded else "fresh" for i in range(cut.results)]
        self.leaves = data_of_results(cut.forward.leaves)
        leaf_of = {result: position for position, result in self.leaves}
        slots = [(slot.kind, slot.index) for slot in cut.saved]
        self.saved = [("input", leaf_of[i]) if kind == "output" and i in leaf_of else (kind, i) for kind, i in slots]
        views = [kind == "input" and i in cut.through_views for kind, i in self.saved]
        self.saved = [("view" if view else kind, i) for (kind, i), view in zip(self.saved, views)]
        self.numbers = [position for position, spec in enumerate(joint.forward_inputs) if spec.kind == "scalar"]
        self.seeds = cut.seeds
        self.apart = _apart(joint)

    def kept(self, inputs: Sequence[Any], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the backward reads."""
        return [
            out[i] if kind == "output" else inputs[i] if kind == "input" else inputs[i].detach()
            for kind, i in self.saved
        ]

    def result_tensors(self, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """The results for autograd; None for those that are written to inputs already."""
        made: list[torch.Tensor | None] = []
        for how, result in zip(self.handed_over, out):
            made.append(None if how == "none" else without_base(result) if how == "fresh" else result)
        return tuple(made)
