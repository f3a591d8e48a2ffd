"""Which sizes and numbers become symbolic, and how a graph input with symbolic sizes is set up."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch

from argand import errors
from argand.capture.facts.code import directives, moving_numbers
from argand.capture.facts.interfaces import CaptureState, Dynamics
from argand.capture.facts.sources import (
    AttrSource,
    DictItemSource,
    SequenceItemSource,
    Source,
    is_attribute,
)
from argand.capture.facts.values.symbolic import size_of
from argand.capture.facts.values.symbols import Place
from argand.capture.sizes import symbolic_state, symbolic_tensors
from argand.config import config
from argand.graph.sizes.expr import Expr, Sym, free_symbols
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbols import LARGE
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass

_MISSING = object()
_CAPTURES = 16  # whose sizes are remembered


@dataclass(slots=True)
class History:
    """What earlier calls of a code object were like, as far as they were looked at (that is: captured).

    Keys are names of sources and places, so that nothing of the program is kept alive.

    Fields:
        sizes, strides, numbers: what the last capture saw.
        varying: places seen with different values.
        signs: places of integers that were seen with both signs.
        moving: locals with numbers that vary, be they seen once (`moving_numbers`).
        fixed: numbers that the program turned out to need as constants.
        shapes: sizes by source, of each of the last captures.
        values: contents of small tensors that were asked for; changing: those that vary (`record.held_values`).
        exact: everything is a constant: sizes come to DTensors.
    """

    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)
    signs: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    shapes: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    values: dict[str, set[bytes]] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)
    exact: bool = False


class Policy:
    """Decides for one frame.

    Arguments:
        history: of the frame's code.
        dynamic: what `argand.compile(dynamic=...)` said (True or None).
        shapes: of the inputs of this capture, as its attempts come to see them.
    """

    def __init__(self, history: History, dynamic: bool | None, shapes: dict[str, tuple[int, ...]]) -> None:
        self.history = history
        if not history.shapes or history.shapes[-1] is not shapes:
            history.shapes = [*history.shapes[1 - _CAPTURES :], shapes]
        self.everything = dynamic is True or not config.assume_static_by_default
        self.automatic = self.everything or config.automatic_dynamic_shapes

    def dims(self, source: Source, real: torch.Tensor) -> dict[int, tuple[int | None, int | None] | None]:
        """The dims of a graph input that are to be symbolic, with the range that the user gave."""
        own = real.__dict__ if hasattr(real, "__dict__") else {}
        marked = own.get(directives.DYNAMIC)
        module_owned = type(real) is torch.nn.Parameter or _of_module(source)
        if self.history.exact or (marked is None and type(real) is torch.nn.Parameter):
            return {}
        shape = tuple(real.shape)
        self._watch(source, "size", self.history.sizes, shape)
        self.history.shapes[-1][source.name()] = shape
        self._watch(source, "stride", self.history.strides, real.stride())
        static = own.get(directives.STATIC) or ()
        ranges: dict[int, tuple[int | None, int | None] | None] = {}
        for dim, size in enumerate(shape):
            if marked is not None and dim in marked:
                ranges[dim] = marked[dim]
            elif dim in static or size < 2:
                continue
            elif self._varies(source, dim, self.everything and not module_owned):
                ranges[dim] = None
        return ranges

    def unequal(self, left: Place, right: Place) -> bool:
        """Whether two sizes differed in one of the last captures."""
        first, second = left.source.name(), right.source.name()
        for shapes in self.history.shapes:
            one, other = shapes.get(first, ())[left.dim :], shapes.get(second, ())[right.dim :]
            if one and other and one[0] != other[0]:
                return True
        return False

    def strides(self, source: Source, real: torch.Tensor) -> frozenset[int]:
        """The dims of a graph input whose strides may be symbols of their own: they varied."""
        if self.history.exact or not self.history.varying or type(real) is torch.nn.Parameter:
            return frozenset()
        return frozenset(
            dim for dim, step in enumerate(real.stride()) if step and self._varies(source, dim, False, "stride")
        )

    def _varies(self, source: Source, dim: int, given: bool, what: str = "size") -> bool:
        varying = self.history.varying
        return given or (bool(varying) and str(Place(source, what, dim)) in varying)

    def _watch(self, source: Source, what: str, last: dict[str, tuple[int, ...]], numbers: tuple[int, ...]) -> None:
        name = source.name()
        before = last.get(name)
        last[name] = numbers
        if before is None or before == numbers or not self.automatic or len(before) != len(numbers):
            return
        for dim, (old, new) in enumerate(zip(before, numbers)):
            if old != new:
                self.history.varying.add(str(Place(source, what, dim)))

    def is_settled(self, source: Source, value: object) -> bool:
        """Whether a value found outside is no symbol, and nothing of one varies; asking changes nothing."""
        history = self.history
        if type(value) in (int, float):
            place = f"{source.name()}: {'int' if type(value) is int else 'float'}"
            before = history.numbers.get(place, value)
            given = self.everything and _is_argument(source)
            varies = place in history.varying or moving_numbers.is_one(history.moving, source)
            return not given and before == value and not varies
        if isinstance(value, torch.Size):
            return all(self.is_settled(SequenceItemSource(source, i), size) for i, size in enumerate(value))
        if not isinstance(value, torch.Tensor):
            return True
        if value.__dict__:
            return False
        if type(value) is torch.nn.Parameter or history.exact:
            return True
        shape, strides = tuple(value.shape), value.stride()
        name = source.name()
        if history.sizes.get(name, shape) != shape or history.strides.get(name, strides) != strides:
            return False
        given = self.everything and not _of_module(source)
        if self.strides(source, value):
            return False
        return not any(size >= 2 and self._varies(source, dim, given) for dim, size in enumerate(shape))

    def number(self, source: Source, value: Any) -> bool:
        """Whether a Python int or float is to be symbolic."""
        history = self.history
        what = "int" if type(value) is int else "float"
        if config.specialize_int if what == "int" else config.specialize_float:
            return False
        place = f"{source.name()}: {what}"
        before = history.numbers.get(place, _MISSING)
        history.numbers[place] = value
        other = before is not value and before is not _MISSING and before != value
        if other or (history.moving and moving_numbers.is_one(history.moving, source)):
            history.varying.add(place)
        if what == "int" and type(before) is int and (before < 0) != (value < 0):
            history.signs.add(place)
        if what == "float" and not (value == value and abs(value) < 1e300):
            return False
        if what == "int" and not -LARGE < value < LARGE:
            return False
        if history.exact or place in history.fixed:
            return False
        if what == "int" and value in (0, 1):  # a count that has begun; what is a size is a constant (`ProbedCall`)
            return self.automatic and place in history.varying
        return (self.automatic and place in history.varying) or (self.everything and _is_argument(source))


def _is_argument(source: Source) -> bool:
    """An argument of the frame, or an item of one."""
    return source.kind == "local" and not is_attribute(source)


def _of_module(source: Source) -> bool:
    tables = (step for step in source.steps() if isinstance(step, DictItemSource | AttrSource))
    return any(table.key in ("_parameters", "_buffers") for table in tables)


# ---------------------------------------------------------------------- inputs


def dynamics_of(state: CaptureState) -> Dynamics:
    """The symbols of a capture, made when the first is needed."""
    builder = state.graph
    if builder.dynamics is None:
        builder.dynamics = state.guards.dynamics = symbolic_state.Dynamics(state, state.memory)
        state.interpreter.dynamic = True
    return builder.dynamics


def number_input(state: CaptureState, source: Source, value: Any) -> object:
    """The symbolic number for a Python number found outside; the number itself where it is a constant after all."""
    dynamics = dynamics_of(state)
    what = "int" if type(value) is int else "float"
    place = Place(source, what)
    both = state.policy is not None and f"{source.name()}: {what}" in state.policy.history.signs
    low, high = (None, None) if what == "float" else (None, -1) if value < 0 else (0, None)
    if both and not dynamics.memory.one_sign:
        dynamics.of_both_signs, low, high = True, None, None
    expr = dynamics.symbol(place, value, low=low, high=high)
    if not isinstance(expr, Expr):
        counts = any(constant in (0, 1) for constant in dynamics.memory.constants.values())
        if not counts and place not in dynamics.memory.narrow:  # where nothing is empty, say, the program may take more
            state.note_constant(f"{source.name()}: {what}")
        return value
    if what == "float":
        state.guard(source, "type", float)
    elif low is None and high is None:  # a guard that reads it says that it is an integer, of 64 bits
        dynamics.record(Relation("ge", expr, -LARGE))
    return dynamics.wrap(expr, value)


def size_input(state: CaptureState, source: Source, value: torch.Size) -> object:
    """A `torch.Size` found outside of which numbers vary; NotImplemented where none does."""
    places = [SequenceItemSource(source, i) for i in range(len(value))]
    policy = state.policy
    varying = [] if policy is None else [policy.number(place, n) for place, n in zip(places, value)]
    if not any(varying):
        return NotImplemented
    state.guard(source, "type", torch.Size)
    state.guard(source, "len", len(value))
    return size_of(state.load_source(place, n) for place, n in zip(places, value))


def tensor_input(state: CaptureState, source: Source, real: torch.Tensor, dims: Any) -> tuple[list[int], list[int]]:
    """Make the sizes of a graph input symbolic.

    Arguments:
        dims: dim -> the user's range or None, as `Policy.dims` says.

    Returns:
        The dims whose size, and those whose stride, the tensor's guard leaves open.
    """
    dynamics = dynamics_of(state)
    sizes: list[Any] = list(real.shape)
    for dim, given in dims.items():
        sizes[dim] = _size(dynamics, Place(source, "size", dim), sizes[dim], given)
    stand_in = state.inputs_by_real[id(real)]
    info = state.tensors[id(stand_in)]
    opened = [dim for dim, size in enumerate(sizes) if isinstance(size, Expr)]
    free = state.policy.strides(source, real) if state.policy is not None else frozenset()
    if not opened and not free:
        return [], []
    strides = _strides(dynamics, source, sizes, real, free)
    open_strides = [dim for dim, stride in enumerate(strides) if isinstance(stride, Expr)]
    if not opened and not open_strides:
        return [], []
    for dim in open_strides:
        place = Place(source, "stride", dim)
        if dynamics.places.get(strides[dim]) != place:  # it may be the symbol of a size
            pin(dynamics, place, strides[dim])
    try:
        info.dynamic = symbolic_tensors.input_siblings(dynamics, real, sizes, strides)
    except Exception as error:  # too many elements at the probes, or what is known of the sizes does not hold there
        let_pass(error)
        dynamics.nearer()
        symbolic_tensors.give_up(
            state.graph, {sym for size in sizes if isinstance(size, Expr) for sym in free_symbols(size)}
        )
    info.node.meta["sizes"], info.node.meta["strides"] = tuple(sizes), tuple(strides)
    return opened, open_strides


def pin(dynamics: Dynamics, place: Place, value: Expr) -> None:
    """Guard that what is found at `place` is `value`."""
    alias = Sym(dynamics.memory.name(place), None)
    dynamics.places[alias] = place
    dynamics.record(Relation("eq", alias, value))


def _size(dynamics: Dynamics, place: Place, hint: int, given: tuple[int | None, int | None] | None) -> object:
    if given is None:
        return dynamics.symbol(place, hint)
    low, high = given
    dynamics.memory.marked[place] = given
    if hint < 2 or (low is not None and hint < low) or (high is not None and hint > high):
        limits = f"between {max(low or 2, 2)} and {'any size' if high is None else high}"
        raise errors.ConstraintViolation(
            f"{place} was marked with mark_dynamic as {limits}, and is {hint} in this call",
            remedy="mark another range, or leave calls of this size to another compiled function",
            where=dynamics.state.user_stack(),
        )
    return dynamics.symbol(place, hint, low=max(low or 2, 2), high=high)


def _strides(
    dynamics: Dynamics, source: Source, sizes: list[object], real: torch.Tensor, free: frozenset[int]
) -> list[Any]:
    """The strides as expressions of the sizes, where the tensor is dense in some order of its dims; of those that are
    free (of a part of a larger tensor), symbols of their own."""
    hints, strides = tuple(real.shape), real.stride()
    steps: list[Any] = list(strides)
    step: Any = 1
    step_hint = 1
    last = -1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], hints[d] != 1, -d)):
        alone = hints[dim] == 1
        if strides[dim] == step_hint:
            steps[dim] = step
        elif dim in free and (alone or strides[dim] > step_hint):
            floor, floor_hint = (step, step_hint) if not alone else (0, 0) if last < 0 else (steps[last], strides[last])
            steps[dim] = dynamics.symbol(Place(source, "stride", dim), strides[dim], low=1, above=floor + 1)
            if isinstance(steps[dim], Expr):  # whose elements lie further apart is part of the layout
                dynamics.require(Relation("gt" if strides[dim] > floor_hint else "eq", steps[dim], floor))
        elif not alone:
            break  # not dense from here on: these strides are guarded as they are
        last = dim
        if not alone:
            step, step_hint = steps[dim] * sizes[dim], strides[dim] * hints[dim]
    return steps
