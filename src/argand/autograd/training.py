"""From a partitioned program to what runs it: the plan of its moves, and its backward, compiled when it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from argand import events, garbage_collection
from argand._core import _C
from argand._core.calls import uncaptured
from argand.autograd.double_backward import draws_as_eager, kept_before, let_go
from argand.autograd.partitioning.partial_backward import BackwardPart, backward_part
from argand.autograd.partitioning.partition import Partition, is_read_itself
from argand.autograd.partitioning.passed_results import Backward, cut_at_results, tape_of
from argand.autograd.recording.leaves import data_of_results
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.tape import Tape
from argand.errors import ArgandError
from argand.graph import compat
from argand.graph.nodes.meta import distinct_lines
from argand.graph.nodes.printing import graph_function
from argand.graph.nodes.program import Arrivals, AtenProgram, TensorSpec, copied, general
from argand.graph.operators.collectives import starts
from argand.graph.sizes.expr import Expr
from argand.locks import fork_safe_lock
from argand.runtime import late_modules
from argand.runtime.tape.plan import Group, Kind, Plan, Slot, Tangent

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]


class LazyBackward:
    """The compiled backward, for the results that got a gradient: made when such gradients first come.

    Arguments:
        make: compiles a program.

    Fields:
        compiled: per results that got a gradient, the compiled graph.
        told: called when there is one more of these.
    """

    def __init__(self, cut: Backward, tape: Tape, make: Callable[[AtenProgram], Boxed]) -> None:
        self.cut = cut
        self.tape = tape
        self._make = make
        self._parts: dict[tuple[bool, ...], BackwardPart] = {}
        self.compiled: dict[tuple[bool, ...], Boxed] = {}
        self.told: Callable[[], None] | None = None
        self._eager: dict[tuple[bool, ...], Boxed] = {}
        self._begun: dict[tuple[bool, ...], tuple[Boxed, late_modules.Scope]] = {}
        self._lock = fork_safe_lock()
        self.kinds: dict[Kind, LazyBackward] = {"whole": self}

    def of_kind(self, kind: Kind) -> LazyBackward:
        """The backward of a kind."""
        backward = self.kinds.get(kind)
        if backward is None:
            half = uncaptured(cut_at_results, self.cut, kind)
            backward = LazyBackward(half, tape_of(self.tape, kind, self.cut.passed), self._make)
            backward.told = self._tell
            backward = self.kinds.setdefault(kind, backward)
        return backward

    def _tell(self) -> None:
        if self.told is not None:
            self.told()

    def part(self, given: tuple[bool, ...]) -> BackwardPart:
        """The graph for the results that are `given`, and what it reads."""
        part = self._parts.get(given)
        if part is None:
            part = self._parts[given] = uncaptured(backward_part, self.cut, self.tape, given)
        return part

    def run(self, given: tuple[bool, ...]) -> Boxed:
        """The compiled graph for the results that are `given`."""
        run = self.compiled.get(given)
        if run is None:
            run = uncaptured(_C.call_locked, self._lock, _C.call_restoring, self._compile, given)
        return run

    def prepare(self) -> Boxed:
        """The compiled backward for all results."""
        return self.run((True,) * len(self.tape.conflicts))

    def is_compiled(self) -> bool:
        """Whether the backward for all results is, as somebody asked for it."""
        return (True,) * len(self.tape.conflicts) in self.compiled

    def begin(self) -> None:
        """Compile the backward for all results, of which there is one, except for what the C++ compiler does: `run`
        waits for that, if it is ever asked."""
        if len(self.tape.conflicts) == 1:
            uncaptured(_C.call_locked, self._lock, _C.call_restoring, self._begin, (True,))

    def _begin(self, given: tuple[bool, ...]) -> None:
        if given in self.compiled or given in self._begun:
            return
        with compat.without_default_device(), late_modules.gathered() as late, contextlib.suppress(ArgandError):
            self._begun[given] = self._compiled_for(given), late  # what fails is told to who asks for it

    def _compiled_for(self, given: tuple[bool, ...]) -> Boxed:
        with garbage_collection.paused():
            program = self.part(given).program
            return self._make(program if program.rewritten else copied(program))  # passes change it

    def _finished(self, given: tuple[bool, ...]) -> Boxed | None:
        """The backward that was begun; None where there is none, or the compiler refused its kernels."""
        run, late = self._begun.pop(given, (None, None))
        try:
            if late is not None:
                late.finish()
        except ArgandError:
            return None
        return run

    def _compile(self, given: tuple[bool, ...]) -> Boxed:
        run = self.compiled.get(given)
        if run is None and (run := self._finished(given)) is not None:
            self.compiled[given] = run
            self._tell()
        if run is None:
            if len(self.compiled) >= _MOST_PARTS:
                return self.run_eagerly(given, f"{_MOST_PARTS} combinations of results were differentiated before")
            with compat.without_default_device():
                run = self.compiled[given] = self._compiled_for(given)
            self._tell()
        return run

    def run_eagerly(self, given: tuple[bool, ...], reason: str) -> Boxed:
        """As `run`, with eager's kernels."""
        if given not in self._eager:
            events.emit("fallback", "autograd", reason, reason=reason, scope="backward")
        return self.operations(given)

    def operations(self, given: tuple[bool, ...]) -> Boxed:
        """As `run`, by calls of the ATen operations."""
        run = self._eager.get(given)
        if run is None:
            program = self.part(given).program
            function = graph_function(program.graph, program.constants)
            run = self._eager[given] = lambda args: function(*args)
        return run

    def read_by(self, results: int) -> set[Slot]:
        """What is read when any of the results (bit `1 << k` for result k) is differentiated."""
        count = len(self.tape.conflicts)
        alone = [tuple([i == k for i in range(count)]) for k in range(count) if results >> k & 1]
        return {slot for given in alone for slot in self.part(given).arguments}


_MOST_PARTS = 8  # compiled backwards of one graph; programs that differentiate more combinations run eager's kernels


def arriving_together(
    joint: JointProgram, cut: Partition, groups: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Positions of inputs whose gradients the backward is to give together before its end, in order.

    Arguments:
        groups: the arguments of the call whose gradients are to arrive together, in order; the last ones do at the end.
    """
    values = [slot.index for slot in cut.gradients.values() if slot.kind == "value"]
    single = {p for p, slot in cut.gradients.items() if slot.kind == "value" and values.count(slot.index) == 1}
    place = {spec.index: p for p, spec in enumerate(joint.forward_inputs) if spec.kind == "arg" and p in single}
    arriving = [tuple([place[index] for index in group if index in place]) for group in groups]
    return tuple([group for group in arriving if group])[:-1]


def leaving(cut: Partition, groups: Sequence[Sequence[int]]) -> Arrivals:
    """`AtenProgram.arrivals` of the backward that gives the gradients of such groups of inputs."""
    read = {slot.index: place for place, slot in enumerate(cut.arguments) if slot.kind in ("input", "data")}
    return tuple([
        (tuple([cut.gradients[p].index for p in group]), tuple([read[p] for p in group if p in read]))
        for group in groups
    ])  # fmt: skip


def plan_of(joint: JointProgram, cut: Partition, arrivals: tuple[tuple[int, ...], ...] = ()) -> Plan:
    """What moves where around the two compiled graphs; `arrivals` as `arriving_together` gives them."""
    held = _held(cut)
    written = [one for one in cut.forward.mutations if not one.differentiable or one.input in held]
    again = [mutation.input for mutation in written for _ in range(mutation.raises - 1)]
    recorded = {mutation.output for mutation in cut.forward.mutations if mutation.differentiable}
    gone = {mutation.output for mutation in written} - recorded
    leaves = data_of_results(cut.forward.leaves)
    numbers = [position for position, spec in enumerate(joint.forward_inputs) if spec.kind == "scalar"]
    groups, classes, unreached = _groups(joint, cut)
    changed = {mutation.input for mutation in written}
    kept, given = _kept(cut, {result: position for position, result in leaves}, held), joint.forward_inputs
    itself, data = set(joint.tape.itself), set(joint.tape.data)
    apart = (data - itself).difference(joint.differentiable)  # of the others autograd saves no tensor, but its data
    kept = [("apart", i) if how == "output" and i in apart else (how, i) for how, i in kept]
    looked_up = {k: i for k, (how, i) in enumerate(kept) if how == "output" and i in itself - data}
    nodes, weak = cut.forward.placeholders, let_go(cut)
    read = [one for one in zip(cut.arguments, cut.backward.inputs, cut.backward.placeholders) if one[0].is_saved]
    return Plan(
        inputs=len(joint.forward_inputs),
        results=cut.results,
        written=tuple([(mutation.input, mutation.output, mutation.unseen) for mutation in written]),
        raised=(*again, *(position for base in cut.forward.bases for position in base.written)),
        plain=tuple([i for i in range(cut.results) if i not in joint.differentiable and i not in gone]),
        handed_over=tuple(["none" if i in gone else "same" if i in recorded else "fresh" for i in range(cut.results)]),
        leaves=tuple(leaves),
        kept=(*kept, *(place for place in joint.tape.watched if place not in kept)),
        saved=tuple(cut.saved),
        numbers=tuple(numbers),
        names=tuple([joint.forward_inputs[position].name for position in numbers]),
        differentiable=tuple(joint.differentiable),
        tangents=tuple([_tangent(one.spec) for one in joint.tangents]),
        conflicts=tuple(joint.tape.conflicts),
        seeds=tuple(cut.seeds),
        groups=groups,
        passed=tuple(cut.passed),
        opaque=cut.opaque,
        classes=classes,
        unreached=unreached,
        weak=tuple([(at, _tangent(general(given[at].spec, nodes[at])), given[at].spec.requires_grad) for at in weak]),
        before=kept_before(cut),
        draws=draws_as_eager(cut),
        counted=joint.counted,
        arrivals=arrivals,
        sends=distinct_lines(node for node in cut.backward.graph.nodes if starts(node.target)),
        larger=tuple(_larger(joint)),
        laid_out=tuple(
            [
                (k, _tangent(general(spec.spec, node)))
                for k, ((how, i), (_, spec, node)) in enumerate(zip(kept, read))
                if k in looked_up or ((how == "input" or (how == "data" and i in changed)) and given[i].kind == "arg")
            ]
        ),
        seen=tuple(
            [(k, slot.index) for k, slot in enumerate(cut.saved) if slot.kind == "input" and slot.index in held]
        ),
        handed=tuple([i for i in joint.differentiable if ("output", i) in kept and i not in data - itself]),
        itself=tuple(looked_up.items()),
    )


def _larger(joint: JointProgram) -> Iterator[tuple[int, torch.Size]]:
    outputs: Any = joint.program.output_node.args[0]
    for position, node in zip(joint.gradients, outputs[joint.results :]):
        size, given = joint.forward_inputs[position].spec.size, node.meta["val"].shape
        if len(given) != len(size) or any(isinstance(n, int) and n > of for n, of in zip(given, size)):
            yield position, torch.Size(size)


def _groups(
    joint: JointProgram, cut: Partition
) -> tuple[tuple[Group, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Of a plan: the results by eager's nodes that made them, and the inputs by the results that lead to them."""
    tape = joint.tape
    by_node: dict[int, list[int]] = {}
    for node, number in sorted((node, number) for number, node in enumerate(tape.nodes)):
        by_node.setdefault(node, []).append(number)
    handed = ("value", "alias_of_output")
    seen = {spec.index for spec in joint.program.outputs if spec.kind in handed and spec.view is None}
    classes: dict[frozenset[int], list[int]] = {}
    unreached = []
    for position, spec in enumerate(joint.forward_inputs):
        leading = frozenset(node for node, on in by_node.items() if any(position in tape.reached[n] for n in on))
        if leading or position in cut.gradients:
            classes.setdefault(leading or frozenset(by_node), []).append(position)
        elif spec.spec.requires_grad:
            unreached.append(position)
    groups = []
    for node, numbers in by_node.items():
        passed = sorted(frozenset().union(*[tape.passed[number] for number in numbers]).intersection(cut.passed))
        led_to = [place for place, leading in enumerate(classes) if node in leading]
        is_seen = any(joint.differentiable[number] in seen for number in numbers)
        groups.append(Group(tuple(numbers), is_seen, tuple(passed), tuple(led_to)))
    return tuple(groups), tuple(map(tuple, classes.values())), tuple(unreached)


def _held(cut: Partition) -> frozenset[int]:
    """Inputs whose history the forward writes, and whose memory the backward reads."""
    read = {slot.index for slot in cut.saved if slot.kind in ("input", "data")}
    return frozenset(one.input for one in cut.forward.mutations if one.differentiable and one.input in read)


def _kept(cut: Partition, holders: dict[int, int], held: frozenset[int]) -> list[tuple[str, int]]:
    """Where what is saved is found.

    Arguments:
        holders: output of the forward -> the input that holds it behind the call, and that eager's backward reads.
        held: inputs whose history leads to the call, which must not hold them.
    """
    kept: list[tuple[str, int]] = []
    for slot, node in zip(cut.arguments, cut.backward.placeholders):
        if slot.kind == "output" and slot.index in holders:
            kept.append(("input" if is_read_itself(node) else "data", holders[slot.index]))
        elif slot.is_saved:
            kept.append(("data" if slot.index in held and slot.kind == "input" else slot.kind, slot.index))
    return kept


def _tangent(spec: TensorSpec) -> Tangent:
    if not any(isinstance(n, Expr) for n in (*spec.size, *spec.stride)):
        return Tangent(tuple(spec.size), tuple(spec.stride), spec.dtype, spec.device)
    size, stride = (f"({' '.join(f'{n},' for n in dims)})" for dims in (spec.size, spec.stride))
    return Tangent((), (), spec.dtype, spec.device, f"({size}, {stride})")


def recorded_program(cut: Partition) -> AtenProgram:
    """The forward's plan for the runtime wrapper around `training_function`, which has written to plain inputs, and to
    those that the backward reads."""
    held = _held(cut)
    recorded = [replace(one, held=one.input in held) for one in cut.forward.mutations if one.differentiable]
    return replace(cut.forward, mutations=recorded)
