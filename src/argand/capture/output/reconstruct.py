"""Rebuilds, in transformed code, the values that the interpreter left: constants, graph outputs, outer objects by
source, and what the captured code made (`local_objects`). Each is emitted once and remembered.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch

from argand._core import _C
from argand.capture.facts import classify
from argand.capture.facts.frames import LazyLocal
from argand.capture.facts.kinds import is_a, raw_length
from argand.capture.facts.sources import ClosureSource, ImportedSource, LocalSource, root_of
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicBool, SymbolicNumber, SymbolicScalar
from argand.capture.facts.values.tensor_info import Dressed
from argand.capture.interp.state import CaptureState
from argand.capture.objects.call_protocol import lru_caches
from argand.capture.objects.generators import METHODS
from argand.capture.output import local_objects, rebuild
from argand.capture.output.emit import Emitter
from argand.capture.output.values import Again, Plan, Values, unreconstructable
from argand.capture.sizes import dtensors, symbolic_emit, wrappers
from argand.capture.torch_functions.nested import stand_ins
from argand.capture.world import shadows
from argand.graph.dtensors import is_sharded, made_of, only_read, refuses_writes
from argand.graph.nested_tensors import Jagged, is_jagged, nested
from argand.graph.wrappers import KNOWN

_FLEETING = LocalSource | ClosureSource | ImportedSource
_WITH_PARTS = type | types.ModuleType | types.BuiltinFunctionType


class Reconstructor(Values):
    """How an object is reached: by a temporary, a constant, a source, the graph, or instructions that make it."""

    def __init__(self, state: CaptureState, emitter: Emitter, plan: Plan | None = None) -> None:
        super().__init__(state, emitter, plan)
        self._open: dict[int, object] = {}
        self._pushed = 0

    def push(self, obj: Any) -> None:
        self._pushed += 1
        if self._pushed > shadows.MOST_ELEMENTS:
            raise unreconstructable(_largest(self._open.values()), f"more than {shadows.MOST_ELEMENTS:,} values")
        if is_a(obj, LazyLocal):
            self.emitter.load_local(obj.name)
            return
        if is_a(obj, torch.Tensor):
            self._tensor(obj)
            return
        if type(obj) in SYMBOLIC:
            self._number(obj)
            return
        obj = shadows.origin(self.state, obj)
        if type(obj) is types.FunctionType:
            obj = METHODS.get(obj, obj)
        name = self.temps.get(id(obj))
        if name is not None:
            self.asm.load_fast(name)
            return
        if id(obj) in self.root_cells:
            self.used_cells.add(self.root_cells[id(obj)])
            self.asm.load_closure(self.root_cells[id(obj)])
            return
        source = self.state.outer.get(id(obj))
        if classify.is_constant(obj) and id(obj) not in self.state.local_objects:
            if source is not None and is_a(obj, _WITH_PARTS) and is_a(root_of(source), _FLEETING):
                self.push_outer(source)  # as a constant the code would keep it alive
            elif source is None and is_a(obj, float | complex) and obj != obj:
                self._not_a_number(obj)
            else:
                self.asm.load_const(obj)
            return
        if source is not None:
            self.push_outer(source)
            return
        if id(obj) in self.state.namespaces:
            self.push(self.state.namespaces[id(obj)])
            self.emitter.call_helper(rebuild.namespace_of)
            self.remember(obj)
            return
        if id(obj) in self._open:
            self.plan.cyclic.add(id(obj))
            raise Again
        lru_caches.check_kept(self.state, obj)
        self._open[id(obj)] = obj
        try:
            local_objects.push(self, obj)
        finally:
            del self._open[id(obj)]

    def _not_a_number(self, obj: object) -> None:
        """What each call computes is a key of its own."""
        self.asm.load_const(obj)
        self.emitter.call_helper(rebuild.another)
        self.remember(obj)

    def _tensor(self, tensor: torch.Tensor) -> None:
        worn = self.state.graph.dressed.get(id(tensor))
        if worn is not None and self.state.source_of(tensor) is None:
            self._subclass(worn)
            return
        info = self.state.tensor_info(tensor)
        if info.source is not None:
            self.push_outer(info.source)
            return
        name = self.temps.get(id(tensor))
        if name is not None:
            self.asm.load_fast(name)
        elif self.state.graph.sharded and self._again(tensor):
            pass
        elif is_sharded(type(tensor)):
            self._sharded(tensor)
        elif is_jagged(type(tensor)):
            self._nested(tensor)
        elif type(tensor) in KNOWN:
            self._wrapper(tensor)
        elif type(tensor) is torch.nn.Parameter:
            self._parameter(tensor)
        else:
            self.graph_output(tensor)
            if self.state.graph.sharded and refuses_writes(tensor):
                self.emitter.call_helper(only_read)
                self.remember(tensor)

    def _again(self, tensor: torch.Tensor) -> bool:
        """Make a tensor by what the program called, where it has the memory of another one that comes from outside, or
        leaves the graph too, and one of them is a DTensor or wraps others: to autograd a view of it, as in eager.
        """
        if id(tensor) not in self.plan.origins:
            self.plan.origins[id(tensor)] = dtensors.origin(self.state.graph, tensor)
        begun = self.plan.origins[id(tensor)]
        outside = begun is not None and self.state.graph.tensors[id(begun[0])].source is not None
        for place in () if outside else dtensors.storages_of(tensor):
            if self.plan.memory.setdefault(place, tensor) is not tensor and place not in self.plan.shared:
                self.plan.shared.add(place)
                self.plan.outputs.clear()
                self.plan.output_names.clear()
                raise Again
            outside |= place in self.plan.shared
        if begun is None or not outside or begun[0] is tensor:
            return False
        self._tensor(begun[0])
        self.emitter.call_helper(_C.Region(None, None, begun[1]))
        self.remember(tensor)
        return True

    def _parameter(self, parameter: torch.Tensor) -> None:
        """One that captured code made: the leaf that the graph returns."""
        self.graph_output(parameter)
        self.emitter.call_helper(rebuild.as_parameter)
        self.remember(parameter)

    def _sharded(self, tensor: Any) -> None:
        """A DTensor over the local part, which the graph returns."""
        self.graph_output(dtensors.local_output(self.state.graph, tensor))
        self.emitter.call_helper(made_of, (tensor._spec,))
        self.remember(tensor)

    def _wrapper(self, tensor: torch.Tensor) -> None:
        """A tensor over parts, which the graph returns."""
        whole, parts = wrappers.outputs(self.state.graph, tensor)
        for part in parts:
            source = self.state.tensor_info(part).source
            self.graph_output(part) if source is None else self.push_outer(source)
        self.emitter.call_on(_C.Region(None, None, whole), len(parts))  # code of the program, not captured
        self.remember(tensor)

    def _nested(self, tensor: Jagged) -> None:
        """A nested tensor of parts that the graph, or the program, has."""
        for part in stand_ins.parts(tensor):
            if part is None:
                self.asm.load_const(None)
            else:
                self._tensor(part)
        self.asm.load_const(tensor._ragged_idx)
        self.emitter.call_on(nested, 6)
        self.remember(tensor)

    def _subclass(self, worn: Dressed) -> None:
        """A tensor of the program's class, with its attributes, over what the graph returns."""
        name = self.temps.get(id(worn.tensor))
        if name is not None:
            self.asm.load_fast(name)
            return
        self._tensor(worn.plain)
        if classify.awaits(type(worn.tensor)):
            self.emitter.call_helper(rebuild.awaiting, (worn.tensor.completed,))
        else:
            self.emitter.call_helper(rebuild.as_subclass, (type(worn.tensor),))
        self.remember(worn.tensor)
        attributes = vars(worn.tensor)
        if attributes:
            self.fill(rebuild.set_slots, worn.tensor, lambda: self.push_map(attributes))

    def _number(self, number: SymbolicNumber) -> None:
        """-> the plain number, computed from the frame's inputs."""
        if type(number) is SymbolicScalar:
            if number.source is not None:
                self.push_outer(number.source)
            else:
                self._number(number.inner)
                self.emitter.call_helper(number.kind)
            return
        dynamics = self.state.graph.dynamics
        assert dynamics is not None
        if type(number) is SymbolicBool or (dynamics.unbacked is not None and dynamics.unbacked.among(number.expr)):
            self.graph_output(number)
            return
        inputs = sorted(dynamics.table.inputs(number.expr), key=lambda sym: sym.name)
        for sym in inputs:
            self.push_outer(dynamics.places[sym].source)
        self.emitter.call_on(symbolic_emit.function(dynamics, number.expr, inputs), len(inputs))


def _largest(objects: Iterable[object]) -> object:
    """The container that holds most; None where there is none."""
    return max(objects, key=lambda obj: raw_length(obj) if is_a(obj, CONTAINERS) else 0, default=None)
