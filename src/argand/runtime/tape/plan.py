"""What moves where around a compiled forward and its backward, in plain values that another process understands."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, Protocol

import torch

from argand.quick_dataclasses import dataclass

Kind = Literal["whole", "passed", "apart"]
"""Which backward: "whole" gives the inputs' gradients; "passed" what results contribute to the gradients of those that
they are computed from; "apart" the inputs' gradients where these have met at the results."""


@dataclass(frozen=True, slots=True)
class Group:
    """Results of one operation of eager's.

    Arguments:
        numbers: of the results, among those that are differentiable.
        seen: one of them is a result that the program sees.
        passed: numbers of the results that lie next on their way to the inputs.
        classes: places of the plan's `classes` that they lead to.
    """

    numbers: tuple[int, ...]
    seen: bool
    passed: tuple[int, ...]
    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value is found when the backward is called.

    Arguments:
        kind: "input": input `index` of the forward; "data": the same with the data that it had, whatever the program
            sets it to afterwards; "output": output `index` of the forward's graph;
            "tangent": the gradient of the differentiable result `index`; "value": output `index` of the backward;
            "number": input `index` of the forward, which is a number.
    """

    kind: Literal["input", "data", "output", "tangent", "value", "number"]
    index: int

    @property
    def is_saved(self) -> bool:
        """Whether the forward saves the value."""
        return self.kind in ("input", "data", "output")


@dataclass(frozen=True, slots=True)
class Tangent:
    """The layout of a gradient that the backward was compiled for.

    Arguments:
        layout: where sizes vary, the text of a function of the plan's numbers that gives size and stride; else "".
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What moves where.

    Arguments:
        inputs: how many the forward has.
        results: how many of the forward's outputs are results; the others are kept for the backward.
        written: (input, output, whether autograd does not notice) of inputs that get their new values here.
        raised: inputs whose versions eager raises.
        plain: results that carry no gradient.
        handed_over: per result, how autograd gets it.
        leaves: (input, output) of leaves whose data is a result.
        kept: per saved value, "input", "data" (of an input), "output" or "apart" (the data of an output), and which;
            behind those that the backward reads, others that may not be written to before it.
        saved: where the backward finds these.
        laid_out: (saved value, its layout) of arguments that are saved themselves: the program may set their data.
        numbers, names: positions and names of the inputs that are numbers.
        differentiable: results that have a gradient, in the order of the tangents.
        tangents: the layouts of their gradients.
        conflicts: per gradient, the results (bit `1 << k` for result k) that cannot be differentiated any more.
        seeds: outputs of the forward that are the seeds it drew.
        groups: the results by eager's nodes that made them, in their order.
        passed: numbers of the results that others are computed from, in the order of their backward's gradients.
        opaque: numbers of such results whose gradient is not known on the way.
        classes: positions of the inputs that require grad, together where the same results lead to them.
        unreached: positions of those that no result leads to.
        weak: (position, layout, whether it requires grad) of inputs that a call does not keep alive for gradients of
            gradients.
        before: positions of those that it writes to, and keeps a copy of from before that.
        draws: random numbers are torch's generators', and a call keeps what state these were in.
        counted: results to which writes are counted together.
        arrivals: positions of the inputs whose gradients leave the backward together before its end, in their order.
        sends: lines of the program whose gradients other processes are asked for.
        larger: (position, size) of inputs, parts of DTensors, whose gradient is larger.
        seen: (saved value, input) where eager's backward reads an input whose history the call writes, whatever data
            it has by then.
        handed: results with a history of which the backward reads the tensor that the program gets.
        itself: (saved value, result) of those of which it reads nothing else.
    """

    inputs: int
    results: int
    written: tuple[tuple[int, int, bool], ...]
    raised: tuple[int, ...]
    plain: tuple[int, ...]
    handed_over: tuple[str, ...]
    leaves: tuple[tuple[int, int], ...]
    kept: tuple[tuple[str, int], ...]
    saved: tuple[Slot, ...]
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    differentiable: tuple[int, ...]
    tangents: tuple[Tangent, ...]
    conflicts: tuple[int, ...]
    seeds: tuple[int, ...]
    groups: tuple[Group, ...]
    passed: tuple[int, ...]
    opaque: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    unreached: tuple[int, ...]
    weak: tuple[tuple[int, Tangent, bool], ...]
    before: tuple[int, ...]
    draws: bool
    counted: tuple[tuple[int, ...], ...] = ()
    arrivals: tuple[tuple[int, ...], ...] = ()
    sends: tuple[str, ...] = ()
    larger: tuple[tuple[int, torch.Size], ...] = ()
    laid_out: tuple[tuple[int, Tangent], ...] = ()
    seen: tuple[tuple[int, int], ...] = ()
    handed: tuple[int, ...] = ()
    itself: tuple[tuple[int, int], ...] = ()

    def spent(self, given: tuple[bool, ...]) -> int:
        """The results that cannot be differentiated any more after those that are `given`."""
        spent = 0
        for conflicts, one in zip(self.conflicts, given):
            if one:
                spent |= conflicts
        return spent

    def described(self) -> tuple[Any, ...]:
        """The plan as tuples."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["saved"] = pairs(self.saved)
        values["groups"] = tuple([(one.numbers, one.seen, one.passed, one.classes) for one in self.groups])
        values["tangents"] = tuple(map(_layout, self.tangents))
        values["laid_out"] = tuple([(one, _layout(spec)) for one, spec in self.laid_out])
        values["weak"] = tuple([(one, _layout(spec), grad) for one, spec, grad in self.weak])
        return tuple(values.values())


def _layout(one: Tangent) -> tuple[Any, ...]:
    return (one.size, one.stride, one.dtype, one.device, one.layout)


def plan_of(described: tuple[Any, ...]) -> Plan:
    """The plan again."""
    values = dict(zip([field.name for field in fields(Plan)], described))
    values["saved"] = slots(values["saved"])
    values["groups"] = tuple([Group(*one) for one in values["groups"]])
    values["tangents"] = tuple([Tangent(*one) for one in values["tangents"]])
    values["laid_out"] = tuple([(one, Tangent(*spec)) for one, spec in values["laid_out"]])
    values["weak"] = tuple([(one, Tangent(*spec), grad) for one, spec, grad in values["weak"]])
    return Plan(**values)


def pairs(held: Any) -> tuple[tuple[str, int], ...]:
    """Slots as tuples."""
    return tuple([(slot.kind, slot.index) for slot in held])


def slots(held: Any) -> tuple[Slot, ...]:
    """Slots of tuples."""
    return tuple([Slot(kind, index) for kind, index in held])


class Part(Protocol):
    """A backward for some gradients: what it is called with, and per input with a gradient, where that is found."""

    @property
    def arguments(self) -> list[Slot]: ...
    @property
    def gradients(self) -> dict[int, Slot]: ...


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of which an earlier process tells."""

    arguments: list[Slot]
    gradients: dict[int, Slot]
