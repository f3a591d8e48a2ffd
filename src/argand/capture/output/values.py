"""What emits values in transformed code: the containers, the order, what is known to be there already."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from argand import errors
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import is_a, raw_items
from argand.capture.facts.sources import ConstSource, Source
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicBool
from argand.capture.interp.state import CaptureState
from argand.capture.objects.generators import TracedGenerator
from argand.capture.output import rebuild
from argand.capture.output.emit import Emitter
from argand.graph.dtensors import Repeated

_MANY: Final = 64
"""From so many plain values on they are a constant; fewer are instructions."""
_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes, type(...)))


def unreconstructable(obj: object, why: str = "") -> errors.GraphBreak:
    """The frame needs an object after the graph that cannot be made by transformed code."""
    cls = types.GeneratorType if type(obj) is TracedGenerator else type(obj)
    stop = errors.graph_break(
        kind="value cannot be rebuilt",
        context=f"{cls.__module__}.{cls.__qualname__}{': ' + why if why else ''}",
        explanation=f"A {cls.__qualname__} made in the captured code is needed after it and cannot be rebuilt.",
        skip_frame=True,
    )
    stop.needed = obj  # the graph may break where it was made instead
    return stop


class Again(Exception):
    """The dry run found a cycle and starts again."""


class Plan:
    """What a dry run finds out.

    Fields:
        outputs: stand-ins that the graph must return, in order; `output_names` the temporaries that hold them.
        uses: how often each source (and each prefix of one) is needed.
        cyclic: ids of containers that contain themselves.
        memory: where tensors that leave the graph have their memory -> the first of them; `shared`, where several do.
        origins: what a dry run found `dtensors.origin` of such a tensor to be: later, nodes that nobody reads are gone.
    """

    def __init__(self) -> None:
        self.outputs: list[object] = []
        self.output_names: dict[object, str] = {}
        self.uses: collections.Counter[Source] = collections.Counter()
        self.cyclic: set[int] = set()
        self.memory: dict[int, torch.Tensor] = {}
        self.shared: set[int] = set()
        self.origins: dict[int, tuple[torch.Tensor, Repeated] | None] = {}

    def count(self, source: Source) -> None:
        """One more load of `source`: its prefixes are loaded once per distinct extension."""
        for step in source.steps():
            if is_a(step, ConstSource):
                return
            self.uses[step] += 1
            if self.uses[step] > 1:
                return


class Values:
    """Emits values, each once: `push` is the entry, the rest is for those who say how an object is made.

    One dry run finds outputs, shared objects and cycles; a second run emits for good.

    Arguments:
        state: the finished capture.
        emitter: where instructions go.
        plan: what the dry run found; None for the dry run.
    """

    def __init__(self, state: CaptureState, emitter: Emitter, plan: Plan | None = None) -> None:
        self.state = state
        self.emitter = emitter
        self.asm = emitter.asm
        self.plan = plan or Plan()
        self.dry = plan is None
        self.temps: dict[int, str] = {}
        self._keep: list[object] = []
        self.root_cells: dict[int, str] = {}
        self.used_cells: set[str] = set()
        self.positions: list[tuple[object, int]] = []

    def push(self, obj: object) -> None:
        """-> the value that `obj` stands for.

        Raises:
            GraphBreak: it cannot be rebuilt (the frame is then skipped).
        """
        raise NotImplementedError

    def push_outer(self, source: Source) -> None:
        """-> what a source has."""
        if self.dry:
            self.plan.count(source)
        self.emitter.load_source(source)

    def graph_output(self, value: Any) -> None:
        """-> what the graph returns for a stand-in, or for a symbolic number that only the graph can tell."""
        key: Any = id(value)
        if type(value) in SYMBOLIC:
            key = value.relation if type(value) is SymbolicBool else value.expr
        name = self.plan.output_names.get(key)
        if name is None:
            self.plan.output_names[key] = name = f"___out_{len(self.plan.outputs)}"
            self.plan.outputs.append(value)
        self.asm.load_fast(name)

    def remember(self, obj: object) -> None:
        """value -> value; it can be loaded again."""
        self.asm.dup()
        self.temps[id(obj)] = self.emitter.store_temp("o")
        self._keep.append(obj)  # parts that `__reduce__` made live on, so that no other object takes their id

    def fill(self, helper: Function, obj: object, push_value: Callable[[], object]) -> None:
        """made -> made; calls helper(made, value) for what `push_value` pushes."""
        push_value()
        value = self.emitter.store_temp("f")
        self.asm.load_const_callable(helper)
        self.asm.load_fast(self.temps[id(obj)])
        self.asm.load_fast(value)
        self.asm.call(2)
        self.asm.pop_top()

    def place_iterators(self) -> None:
        """Move list iterators to where they are: to be emitted when lists have their final contents, because a position
        behind a list's end is forgotten."""
        for obj, position in self.positions:
            self.fill(rebuild.set_state, obj, functools.partial(self.asm.load_const, position))

    # ---------------------------------------------------------------- containers

    def push_each(self, items: Iterable[object]) -> int:
        """-> each of the items; how many there are."""
        every = list(items)
        for item in every:
            self.push(item)
        return len(every)

    def push_list(self, items: Iterable[object]) -> None:
        """-> a new list of the items."""
        self._push_sequence(list, self.asm.build_list, items)

    def push_tuple(self, items: Iterable[object]) -> None:
        """-> a new tuple of the items."""
        self._push_sequence(tuple, self.asm.build_tuple, items)

    def _push_sequence(self, kind: type, build: Function, items: Iterable[object]) -> None:
        every = list(items)
        if self._are_plain(every):
            self._push_copies(kind, every)
        else:
            build(self.push_each(every))

    def push_map(self, obj: dict[Any, object]) -> None:
        """-> a new dict of what a mapping holds."""
        items = list(raw_items(obj))
        if len(items) >= _MANY and self._are_plain([part for item in items for part in item]):
            self._push_copies(dict, dict(items))
            return
        for key, value in items:
            self.push(key)
            self.push(value)
        self.asm.build_map(len(items))

    def _are_plain(self, items: list[object]) -> bool:
        """Whether one constant can hold them: many, without parts, and the same in every call, as a NaN that the
        captured code makes is not."""
        if len(items) < _MANY or not _PLAIN.issuperset(map(type, items)):
            return False
        return all(map(operator.eq, items, items)) or all(
            item == item or id(item) in self.state.outer for item in items
        )

    def _push_copies(self, kind: type, values: list[object] | dict[object, object]) -> None:
        self.asm.load_const_callable(PlainValues(kind, values))
        self.asm.call(0)


class PlainValues:
    """What gives a new container of the same plain values each time that transformed code calls it: a list of a million
    numbers is not rebuilt by a million instructions.

    Arguments:
        kind: list, tuple or dict.
        values: a list, or a dict.
    """

    __slots__ = ("kind", "values")

    def __init__(self, kind: type, values: list[object] | dict[object, object]) -> None:
        self.kind = kind
        self.values = values

    def __call__(self) -> object:
        return self.kind(self.values)

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} of {len(self.values):,} values>"
