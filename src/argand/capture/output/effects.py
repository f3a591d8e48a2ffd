"""Side effects that capture held back, replayed by transformed code after the graph: what the program says in logs and
warnings, then writes, in the order of first touch, and other calls."""

from __future__ import annotations

import collections
from typing import Any

from argand._core import _C
from argand.capture.facts.frames import CodePlace
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.overlays import ADDED, DELETED, Overlay, Shadow
from argand.capture.facts.sources import ClosureCellSource, Source
from argand.capture.interp.state import CaptureState
from argand.capture.output import rebuild
from argand.capture.output.values import Values
from argand.capture.record import tensor_attributes
from argand.capture.sizes import subclasses
from argand.capture.world import shadows
from argand.capture.world.pending_effects import pending


class Replay:
    """Emits the effects in two steps: first every value is evaluated, then the writes are made.

    Between the two nothing that existed before has changed, so every source still means what it meant at entry.
    """

    def __init__(self, state: CaptureState, values: Values) -> None:
        self.state = state
        self.values = values
        self.asm = values.asm
        self.emitter = values.emitter
        self._writes: list[Any] = []

    def evaluate(self) -> None:
        """Emit the evaluation of all new values and targets into temporaries."""
        for function, args, kwargs, places in self.state.said:
            self._evaluate_call(function, args, kwargs, places)
        for entry in pending(self.state):
            if isinstance(entry, Shadow):
                self._evaluate_shadow(entry)
            else:
                self._evaluate_overlay(entry)
        self._tensor_attributes()
        for function, args, kwargs in self.state.extra_effects:
            self._evaluate_call(function, args, kwargs)

    def write(self) -> None:
        """Emit the writes, which then are no more: with each other they would hold what the program made."""
        while self._writes:
            self._writes.pop(0)()
        self.values.place_iterators()

    def _temp(self) -> str:
        return self.emitter.store_temp("e")

    def _target(self, obj: object) -> str:
        self.values.push(obj)
        return self._temp()

    def _evaluate_shadow(self, entry: Shadow) -> None:
        before, after = entry.snapshot, shadows.contents(entry.shadow)
        target = self._target(entry.original)
        shadow = entry.shadow
        if not shadows.same_contents(self.state, (before[0], None, None), (after[0], None, None)):
            if isinstance(shadow, dict):
                self.values.push_map(shadow)
                helper: Any = rebuild.write_dict
            else:
                self.values.push_list(after[0])
                helper = {list: rebuild.write_list, set: rebuild.write_set, collections.deque: rebuild.write_deque}[
                    next(base for base in (list, set, collections.deque) if isinstance(shadow, base))
                ]
            self._later(helper, target, self._temp())
        if shadows.reinserted(entry):
            self.asm.load_fast(target)
            self._later(rebuild.reinsert_last, target, self._temp())
        if before[1] is not None and before[1] != after[1]:
            self.values.push_map(dict(after[1] or ()))
            new = self._temp()
            self.asm.load_fast(target)
            self.asm.load_attr("__dict__")
            self._later(rebuild.write_dict, self._temp(), new)
        if before[2] is not after[2]:
            self.values.push(after[2])
            self._later(rebuild.write_attribute, target, self._temp(), "default_factory")

    def _later(self, helper: Function, target: str, value: str | None, *extra: object) -> None:
        held = [name for name in (target, value) if name is not None]

        def emit() -> None:
            self.asm.load_const_callable(helper)
            for name in held:
                self.asm.load_fast(name)
            for item in extra:
                self.asm.load_const(item)
            self.asm.call(len(held) + len(extra))
            self.asm.pop_top()

        self._writes.append(emit)

    def _evaluate_call(
        self, function: object, args: list[Any], kwargs: Kwargs, places: tuple[CodePlace, ...] = ()
    ) -> None:
        """A call that happens at each run; its arguments are constants. Of `places` the first is the frame itself."""
        self.values.push(function)
        target = self._temp()
        for place in reversed(places[1:]):
            self.asm.load_const_callable(rebuild.called_at)
            self.asm.load_fast(target)
            self.asm.load_const(place.globals)
            for name in (place.code.co_filename, place.code.co_name, place.line):
                self.asm.load_const(name)
            self.asm.call(5)
            target = self._temp()
        self.values.push(tuple(args))
        held = self._temp()
        self.values.push_map(kwargs)
        named = self._temp()

        call = self._call_uncaptured if places else self._call

        def emit() -> None:
            with self.asm.at_line(places[0].line if places else None):
                call(target, held, named)
            self.asm.pop_top()

        self._writes.append(emit)

    def _call(self, function: str, args: str, kwargs: str) -> None:
        self.asm.push_null_before()
        self.asm.load_fast(function)
        self.asm.push_null_after()
        self.asm.load_fast(args)
        self.asm.load_fast(kwargs)
        self.asm.call_function_ex(True)

    def _call_uncaptured(self, function: str, args: str, kwargs: str) -> None:
        """Who listens to messages is no part of what is captured."""
        self.asm.load_const_callable(_C.run_with_callback)
        self.asm.load_const(None)
        self.asm.load_const(None)
        for name in (function, args, kwargs):
            self.asm.load_fast(name)
        self.asm.call(5)

    def _evaluate_overlay(self, entry: Overlay) -> None:
        if entry.kind == "global":
            self._evaluate_globals(entry)
            return
        if entry.kind == "cell":
            self._evaluate_cell(entry)
            return
        if entry.kind in ADDED:
            self._evaluate_additions(entry)
            return
        target = self._target(entry.obj)
        for name, value in entry.values.items():
            if value is DELETED:
                self._later(rebuild.delete_attribute, target, None, name)
            else:
                self.values.push(value)
                self._later(rebuild.write_attribute, target, self._temp(), name)

    def _evaluate_additions(self, entry: Overlay) -> None:
        target = self._target(entry.obj)
        if entry.kind in ("items", "places"):
            self.values.push_map(entry.values)
        else:
            self.values.push_list(entry.values if entry.kind == "elements" else entry.values.values())
        helpers: dict[str, Function] = {"items": rebuild.fill_dict, "places": rebuild.replace_elements}
        self._later(helpers.get(entry.kind, rebuild.extend), target, self._temp())

    def _evaluate_globals(self, entry: Overlay) -> None:
        own = entry.obj is self.state.globals
        for name, value in entry.values.items():
            if value is DELETED:
                self._writes.append(lambda name=name: self._delete_global(entry.obj, own, name))
                continue
            self.values.push(value)
            held = self._temp()
            self._writes.append(lambda name=name, held=held: self._store_global(entry.obj, own, name, held))

    def _store_global(self, globals_: dict[str, object], own: bool, name: str, held: str) -> None:
        self.asm.load_fast(held)
        self._put_global(globals_, own, name)

    def _put_global(self, globals_: dict[str, object], own: bool, name: str) -> None:
        """value -> ; it is in the globals."""
        if own:
            self.asm.store_global(name)
            return
        self.asm.load_const(globals_)
        self.asm.load_const(name)
        self.asm.store_subscr()

    def _delete_global(self, globals_: dict[str, object], own: bool, name: str) -> None:
        # Captured code may have been what made it, and then there is none yet.
        self.asm.load_const(None)
        self._put_global(globals_, own, name)
        if own:
            self.asm.delete_global(name)
            return
        self.asm.load_const(globals_)
        self.asm.load_const(name)
        self.asm.delete_subscr()

    def _evaluate_cell(self, entry: Overlay) -> None:
        source: Source | None = self.state.outer.get(id(entry.obj))
        value = entry.values["cell_contents"]
        root = source.key if isinstance(source, ClosureCellSource) else None
        target = "" if root else self._target(entry.obj)
        if value is DELETED:
            self._writes.append(lambda: self._delete_cell(root, target))
            return
        self.values.push(value)
        held = self._temp()
        self._writes.append(lambda: self._store_cell(root, target, held))

    def _store_cell(self, root: str | None, target: str, held: str) -> None:
        self.asm.load_fast(held)
        if root:
            self.asm.store_deref(root)
        else:
            self.asm.load_fast(target)
            self.asm.store_attr("cell_contents")

    def _delete_cell(self, root: str | None, target: str) -> None:
        if root:
            self.asm.load_closure(root)
        else:
            self.asm.load_fast(target)
        self.asm.delete_attr("cell_contents")  # which a cell that is empty already does not mind

    def _tensor_attributes(self) -> None:
        """Python attributes that the program set on stand-ins, where the tensor outlives the graph."""
        for info in list(self.state.tensors.values()):
            tensor = subclasses.shown(self.state.graph, info.tensor)
            attributes = tensor_attributes.written(tensor)
            if id(tensor) in self.state.graph.gradients:
                attributes = {**attributes, "grad": self.state.graph.gradients[id(tensor)]}
            if not attributes or (info.source is None and id(tensor) not in self.values.plan.output_names):
                continue  # those of subclasses are set where they are made
            target = self._target(tensor)
            for name, value in attributes.items():
                self.values.push(value)
                self._later(rebuild.write_attribute, target, self._temp(), name)
