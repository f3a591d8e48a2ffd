"""Joins kernels that have equal loops and need nothing of each other into one.

A device that takes long to start a kernel runs many small ones of a training step: the second halves of split
reductions, gradients of small parameters, copies of them. Such a kernel waits until something needs what it writes (or
writes what it reads); what has equal loops by then is one kernel, each of whose points does the work of all. A large
kernel would keep memory from being freed while it waits; it runs earlier instead, with one like it that was there when
all that it reads had been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from argand.graph.sizes.expr import ONE, Expr, coefficient
from argand.ir.kernel import KernelPlan, Stage, Step
from argand.ir.loops import ExternNode, LoopBody, Value, aliases_arguments, statements_of
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.access import has_effect, hint_bytes, touched
from argand.schedule.copier import Copier
from argand.schedule.fusion.emit import arrange
from argand.schedule.joining.segments import taken_by_segments

if TYPE_CHECKING:
    import torch

MOST_ARGUMENTS = 64  # of a joined kernel


@dataclass(slots=True)
class _Batch:
    """Kernels that will be one."""

    members: list[KernelPlan] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    statements: int = 0

    def fits(self, plan: KernelPlan, target: Target) -> bool:
        """Whether one kernel can do the work of `plan` too."""
        arguments = self.reads | self.writes | {*plan.inputs, *plan.outputs}
        statements = self.statements + len(statements_of(plan.stages[0].body))
        return (
            len(self.members) < target.joined_members
            and len(arguments) <= MOST_ARGUMENTS
            and statements <= target.max_statements
        )

    def add(self, plan: KernelPlan) -> None:
        self.members.append(plan)
        self.reads.update(plan.inputs)
        self.writes.update(plan.outputs)
        self.statements += len(statements_of(plan.stages[0].body))


def join_alike(steps: list[Step], targets: Mapping[torch.device, Target]) -> list[Step]:
    """The steps, those of equal loops joined where the device's target wants that."""
    if not any(target.joined_members > 1 for target in targets.values()):
        return steps
    joiner = _Joiner(targets, taken_by_segments(steps, targets))
    for step in steps:
        joiner.take(step)
    joiner.flush(lambda batch: True)
    return [_joined(each.members) if isinstance(each, _Batch) else each for each in joiner.placed]


class _Joiner:
    """Places steps one after the other.

    `placed` has the steps in their new order, `waiting` what comes later. `_written` says at which place a buffer got
    its contents, `_latest` where the last large kernel of a kind is, `_barrier` the place that nothing is moved across.
    `_alone` are kernels (by id) that are joined otherwise.
    """

    def __init__(self, targets: Mapping[torch.device, Target], alone: set[int]) -> None:
        self._targets = targets
        self._alone = alone
        self._waiting: dict[Any, _Batch] = {}
        self._latest: dict[Any, int] = {}
        self._written: dict[str, int] = {}
        self._barrier = -1
        self.placed: list[Step | _Batch] = []

    def take(self, step: Step) -> None:
        """Place a step, or let it wait for others like it."""
        reads, writes = touched(step)
        self.flush(lambda batch: not (batch.writes.isdisjoint(reads | writes) and batch.reads.isdisjoint(writes)))
        key = self._key(step)
        if key is None or not isinstance(step, KernelPlan):
            opaque = isinstance(step, ExternNode) and (step.mutates or has_effect(step) or aliases_arguments(step))
            if opaque:  # it may touch memory under another name
                self.flush(lambda batch: True)
                self._barrier = len(self.placed)
            self._place(step, writes)
            return
        target = self._targets[step.device]
        written = sum(hint_bytes(step.buffers[name]) for name in step.outputs)
        if written + sum(hint_bytes(step.buffers[name]) for name in step.inputs) > target.joined_bytes:
            self._raise(step, key, target, written > target.joined_bytes)
            return
        batch = self._waiting.get(key)
        if batch is not None and not batch.fits(step, target):
            self._place(self._waiting.pop(key), batch.writes)
            batch = None
        if batch is None:
            batch = self._waiting[key] = _Batch()
        batch.add(step)

    def flush(self, which: Callable[[_Batch], bool]) -> None:
        """Place what waits and `which` holds for, the oldest first."""
        for key in [key for key, batch in self._waiting.items() if which(batch)]:
            batch = self._waiting.pop(key)
            self._place(batch, batch.writes)

    def _place(self, step: Step | _Batch, writes: set[str]) -> None:
        self._written.update(dict.fromkeys(writes, len(self.placed)))
        self.placed.append(step)

    def _raise(self, plan: KernelPlan, key: Any, target: Target, near: bool) -> None:
        """Place a large kernel: in an earlier one, if it can be, whose results may be there earlier (not if `near`)."""
        place = self._latest.get(key, -1)
        batch = self.placed[place] if place > self._barrier else None
        ready = self._written.keys().isdisjoint(plan.outputs)
        ready = ready and all(self._written.get(name, -1) < place for name in plan.inputs)
        if isinstance(batch, _Batch) and ready and batch.fits(plan, target):
            if not near or all(isinstance(each, _Batch) for each in self.placed[place:]):
                batch.add(plan)
                self._written.update(dict.fromkeys(plan.outputs, place))
                return
        alone = _Batch()
        alone.add(plan)
        self._latest[key] = len(self.placed)
        self._place(alone, alone.writes)

    def _key(self, step: Step) -> Any:
        """What kernels that can be joined have in common; None for a step that stands alone."""
        if not isinstance(step, KernelPlan) or self._targets[step.device].joined_members < 2:
            return None
        if id(step) in self._alone or len(step.stages) != 1 or step.outer or step.scratch or step.registers:
            return None
        body = step.stages[0].body
        statements = statements_of(body)
        stores = [each for each in statements if each.op == "store"]
        if any(any(each.args[3:]) for each in stores):
            return None  # it adds to what is there
        if not step.buffers.keys() - set(step.outputs) >= {s.args[0] for s in statements if s.op == "load"}:
            return None  # in place
        if any(each.op == "scan" or each.args[:1] in (("argmax",), ("argmin",)) for each in statements):
            return None  # depends on the order of its loops
        return step.device, body.sizes, body.reduction_sizes, _ways(body)


def _ways(body: LoopBody) -> tuple[bool, ...]:
    """Of each loop whether memory is contiguous along it: kernels that walk memory in the same way can share blocks."""
    indices: list[Expr] = [each.args[1] for each in statements_of(body) if each.op in ("load", "store")]
    return tuple(any(coefficient(index, var) is ONE for index in indices) for var in (*body.vars, *body.reduction_vars))


def _joined(members: list[KernelPlan]) -> KernelPlan:
    """One kernel that does the work of all."""
    first = members[0]
    if len(members) == 1:
        return first
    body = first.stages[0].body
    loops = (*body.vars, *body.reduction_vars)
    copier = Copier({})
    for plan in members:
        mine = plan.stages[0].body
        copier.index = dict(zip((*mine.vars, *mine.reduction_vars), loops))
        copier.known = {}
        copier.copy(mine.statements, copier.statements)
    statements: list[Value] = arrange(copier.statements, set(body.reduction_vars))
    names = " ".join(plan.stages[0].node for plan in members)
    stage = Stage(replace(body, statements=statements), first.stages[0].inner, names)
    outputs = _unique(name for plan in members for name in plan.outputs)
    return replace(
        first,
        stages=(stage,),
        inputs=_unique(name for plan in members for name in plan.inputs),
        outputs=outputs,
        symbols=tuple(sorted({name for plan in members for name in plan.symbols})),
        buffers={name: buffer for plan in members for name, buffer in plan.buffers.items()},
        origins=_unique(origin for plan in members for origin in plan.origins),
    )


def _unique(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
