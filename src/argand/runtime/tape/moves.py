"""What moves where around a compiled backward: saved tensors and gradients in, gradients of the inputs out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from argand.graph import compat
from argand.graph.dtensors import carried
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.arrivals import Arrivals
from argand.runtime.tape.plan import Kind, Part, Plan, Slot, Tangent

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]
Given = tuple[bool, ...]
Layouts = list[Callable[..., Any] | None] | None


class Backwards(Protocol):
    """The compiled backwards of a graph, by which results got a gradient."""

    def part(self, given: Given) -> Part: ...
    def run(self, given: Given) -> Boxed: ...
    def run_eagerly(self, given: Given, reason: str) -> Boxed: ...
    def operations(self, given: Given) -> Boxed: ...
    def read_by(self, results: int) -> set[Slot]: ...
    def of_kind(self, kind: Kind) -> Backwards: ...


@dataclass(slots=True, eq=False)
class Left:
    """What a call's backward left for results that can still be differentiated, after autograd freed what was saved.

    Arguments:
        spent: results that cannot (bit `1 << k` for result k).
        held: the saved tensors, None where none of the others reads one, with their versions.
    """

    spent: int
    held: list[tuple[torch.Tensor, int] | None]

    def tensors(self) -> list[torch.Tensor | None]:
        """The saved tensors.

        Raises:
            RuntimeError: one was written to since.
        """
        for one in self.held:
            if one is not None and version(one[0]) != one[1]:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{one[0].type()} {list(one[0].shape)}, which a compiled graph saved, is at version "
                    f"{version(one[0])}; expected version {one[1]} instead."
                )
        return [None if one is None else one[0] for one in self.held]


class Moves:
    """The backward's side of a compiled graph.

    Arguments:
        backwards: makes the compiled backwards.
        kind: of these.
    """

    def __init__(self, plan: Plan, backwards: Backwards, kind: Kind = "whole") -> None:
        self.backwards = backwards.of_kind(kind)
        self.plan = plan
        self._count = len(plan.passed) if kind == "passed" else plan.inputs
        self._larger = () if kind == "passed" else plan.larger
        self.differentiable = plan.differentiable
        self.saved = plan.saved
        self._parts: dict[Given, _Part] = {}
        self._spent: dict[Given, int] = {}
        self._read: dict[int, frozenset[int]] = {}

    def given(self, grads: Sequence[Any]) -> Given:
        """Which results got a gradient."""
        return tuple([grads[position] is not None for position in self.differentiable])

    def conflicts(self, given: Given) -> int:
        """The results that cannot be differentiated any more after those that are given."""
        conflicts = self._spent.get(given)
        if conflicts is None:
            conflicts = self._spent[given] = self.plan.spent(given)
        return conflicts

    def left(self, saved: Sequence[torch.Tensor | None], spent: int) -> Left | None:
        """What must be kept when autograd frees what was saved; None when nothing can be differentiated any more."""
        alive = ((1 << len(self.differentiable)) - 1) & ~spent
        if not alive:
            return None
        read = self._read.get(alive)
        if read is None:
            slots = self.backwards.read_by(alive)
            read = self._read[alive] = frozenset(i for i, slot in enumerate(self.saved) if slot in slots)
        # A saved result would keep its own history, which is what holds this.
        unread = set(range(len(self.saved))) - read
        kept = [None if one is None or i in unread else one.detach() for i, one in enumerate(saved)]
        return Left(spent, [None if one is None else (one, version(one)) for one in kept])

    def part_of(self, given: Given) -> _Part:
        """What moves around the backward of these results."""
        part = self._parts.get(given)
        if part is None:
            part = self._parts[given] = _Part(self, self.backwards.part(given))
        return part

    def gradients(
        self,
        given: Given,
        saved: list[Any],
        grads: tuple[Any, ...],
        numbers: tuple[Any, ...],
        by_operations: bool = False,
        arrivals: Arrivals | None = None,
    ) -> tuple[Any, ...]:
        """One gradient, or None, per input of the forward, or passed result. Takes what is in `saved` out of it.

        Arguments:
            by_operations: by ATen operations that a dispatch mode sees.
            arrivals: gets those gradients that are not computed yet; None where all are to be.
        """
        gradients: list[Any] = [None] * self._count
        if not any(given):
            return tuple(gradients)
        part = self.part_of(given)
        if part.lay_out(saved, numbers):
            run = self.backwards.run_eagerly(given, "the data of a tensor that was saved has been set to another's")
        elif any(grad is not None and compat.is_transformed(grad) for grad in grads):
            run = self.backwards.run_eagerly(given, "gradients are batched (is_grads_batched, vmap) or transformed")
        else:
            run = self.backwards.operations(given) if by_operations else self.backwards.run(given)
        passed: dict[int, torch.Tensor] = {}
        for index, spec in _sized(part.tangents, part.layouts, numbers):
            passed[index] = as_expected(grads[self.differentiable[index]], spec)
        arguments = [saved[k] for k in part.saved]
        through = {slot: saved[k] for slot, k in part.handed.items()}
        saved.clear()  # kept tensors die as the backward uses them up
        arguments.extend(passed[index] for index, _ in part.tangents)
        arguments.extend(numbers[k] for k in part.taken)
        out = _without_autocast(run, arguments)
        steps = out if isinstance(out, Generator) else None
        for position, slot in part.gradients:
            if slot.kind != "value":
                gradients[position] = passed[slot.index] if slot.kind == "tangent" else through[slot]
            elif steps is None:
                gradients[position] = out[slot.index]
        if steps is not None:
            given_late = arrivals or Arrivals(self.plan.arrivals)
            given_late.begin(gradients, steps, part.at_end)
            if arrivals is None:
                given_late.finish()
        for position, size in self._larger:
            if gradients[position] is not None:
                gradients[position] = carried(gradients[position], size)
        return tuple(gradients)


class _Part:
    """What moves around the backward of some results."""

    def __init__(self, moves: Moves, part: Part) -> None:
        self.gradients = list(part.gradients.items())
        place = {slot: index for index, slot in reversed(list(enumerate(moves.saved)))}
        self.saved = [place[slot] for slot in part.arguments if slot in place]
        # gradients that are kept values themselves: where each is found among these
        handed = {slot for slot in part.gradients.values() if slot in place}
        self.handed = {slot: place[slot] for slot in handed}
        indices = [slot.index for slot in part.arguments if slot.kind == "tangent"]
        self.tangents = [(index, moves.plan.tangents[index]) for index in indices]
        self.taken = [moves.plan.numbers.index(slot.index) for slot in part.arguments if slot.kind == "number"]
        early = {position for group in moves.plan.arrivals for position in group}
        values = [(position, slot.index) for position, slot in self.gradients if slot.kind == "value"]
        self.at_end = [(position, index) for position, index in values if position not in early]
        self.layouts = _layout_functions(moves.plan, self.tangents)
        self._inputs = [(k, spec) for k, spec in moves.plan.laid_out if k in self.saved]
        self._input_layouts = _layout_functions(moves.plan, self._inputs)

    def lay_out(self, saved: list[Any], numbers: tuple[Any, ...]) -> bool:
        """Since the forward the program may have set the data of a tensor that was saved, which is what autograd reads
        then: make it lie as compiled code reads it; or say that it cannot."""
        for k, spec in _sized(self._inputs, self._input_layouts, numbers):
            one = saved[k]
            if one.shape != spec.size or one.dtype is not spec.dtype or one.device.type != spec.device.type:
                return True
            if one.stride() != spec.stride:
                if 0 in spec.stride:
                    return True
                saved[k] = as_expected(one, spec)
        return False

    def usual(self, saved: Sequence[Any], grads: Sequence[Any]) -> set[int] | None:
        """Which of the saved tensors a call looks at before it hands them on; None where these or gradients lie
        otherwise than the backward was compiled for, or sizes vary.

        Arguments:
            grads: those that the backward reads, in its order.
        """
        looked_at = list(saved)
        if self.layouts or self._input_layouts or self.lay_out(looked_at, ()):
            return None
        same = all(one is other for one, other in zip(saved, looked_at))
        for grad, (_, spec) in zip(grads, self.tangents):
            same = same and as_expected(grad, spec) is grad and not compat.is_transformed(grad)
        return {k for k, _ in self._inputs} if same else None


def _sized(specs: list[tuple[int, Tangent]], layouts: Layouts, numbers: tuple[Any, ...]) -> list[tuple[int, Tangent]]:
    """The layouts in a call of these sizes."""
    if layouts is None:
        return specs
    sized = []
    for (index, spec), layout in zip(specs, layouts):
        if layout is not None:
            size, stride = layout(*numbers)
            spec = replace(spec, size=size, stride=stride)
        sized.append((index, spec))
    return sized


def _layout_functions(plan: Plan, specs: list[tuple[int, Tangent]]) -> Layouts:
    """None where no layout depends on numbers."""
    layouts = [layout_function(plan.names, spec.layout) for _, spec in specs]
    return layouts if any(layouts) else None


def version(tensor: torch.Tensor) -> int:
    """Autograd's count of writes to a tensor; 0 where it counts none."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _without_autocast(run: Boxed, arguments: list[Any]) -> Sequence[torch.Tensor]:
    if not compat.autocast_active():
        return run(arguments)
    guard = compat.disabled_autocast()
    try:
        return run(arguments)
    finally:
        del guard


def layout_function(names: Sequence[str], layout: str) -> Callable[..., Any] | None:
    """Size and stride as a function of the program's numbers; None when they depend on none."""
    if not layout:
        return None
    text = compile(f"lambda {', '.join(names)}: {layout}", "<argand layout>", "eval")
    function: Callable[..., Any] = eval(text, {})
    return function


def as_expected(grad: torch.Tensor | None, spec: Tangent) -> torch.Tensor:
    """A gradient in the layout that the backward was compiled for; zeros where autograd has none."""
    if grad is None:
        return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device).zero_()
    if grad.stride() == spec.stride and grad.dtype is spec.dtype and type(grad) is torch.Tensor:
        if not (grad.is_neg() or grad.is_conj() or grad._is_zerotensor()):  # which no kernel looks at
            return grad
    if compat.is_transformed(grad):  # many gradients that look like one
        order = sorted(range(grad.dim()), key=lambda dim: -spec.stride[dim])
        back = [order.index(dim) for dim in range(grad.dim())]
        return grad.to(spec.dtype).permute(order).contiguous().permute(back)
    laid_out = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device)
    return laid_out.copy_(grad if grad.layout is torch.strided else grad.to_dense())
