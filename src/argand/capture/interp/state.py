"""What one capture knows: inputs, guards, objects that existed before the frame, pending side effects.

The interpreter asks `load_source` for every value that it finds outside; `resolve`/`shadow` for containers that existed
before; `read_overlay`/`write_overlay` for attributes of such objects. Nothing that existed before is ever mutated here:
`effects.py` replays the differences at the end of the graph.
"""

from __future__ import annotations

import enum
import types
from typing import Any, cast

import torch

from argand import errors
from argand._core import _C
from argand.capture.arrays import tensor_arguments, traced_arrays
from argand.capture.facts import classify
from argand.capture.facts.code.stack_text import line_of_code
from argand.capture.facts.frames import CodePlace
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Journal, Variable
from argand.capture.facts.kinds import answers_itself, is_a, module_of, namespace
from argand.capture.facts.overlays import DELETED, UNSET, Overlay, Shadow
from argand.capture.facts.sources import (
    AttrSource,
    ConstSource,
    DictItemSource,
    FuncCodeSource,
    InstanceDictSource,
    MethodFuncSource,
    MethodSelfSource,
    RawDictItemSource,
    RawSequenceItemSource,
    SequenceItemSource,
    Source,
)
from argand.capture.facts.typefacts import is_foreign_value
from argand.capture.facts.values.symbols import Memory
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.objects.call_protocol.binding import guarded_by_code
from argand.capture.record import held_values
from argand.capture.record.guards import GuardSet
from argand.capture.record.tensors import GraphBuilder
from argand.capture.sizes import dtensors, subclasses, symbolic_policy, symbolic_scalars, wrappers
from argand.capture.sizes.symbolic_policy import Policy
from argand.capture.torch_functions import torch_calls
from argand.capture.torch_functions.nested import stand_ins
from argand.capture.world import additions, identity, shadows, views
from argand.capture.world.pending_effects import whole_globals
from argand.config import Section
from argand.graph.dtensors import is_sharded
from argand.graph.nested_tensors import is_jagged
from argand.graph.wrappers import is_wrapper

_WHICH_OBJECT = frozenset(("id", "is_none"))
"""Guards that a constant of the transformed code meets for ever; what such an object holds may change."""


class CaptureState:
    """All that is known while one frame is being captured. See the module's docstring.

    Arguments:
        code: code object of the root frame.
        globals_, builtins, closure, args: of the root frame; `args` as `FrameInfo.args`.
        config: `argand.config`.
        graph: where tensor operations are recorded.
    """

    def __init__(
        self,
        code: types.CodeType,
        globals_: dict[str, object],
        builtins: dict[str, object],
        closure: tuple[types.CellType, ...] | None,
        args: tuple[object, ...],
        config: Section,
        graph: GraphBuilder,
    ) -> None:
        self.code = code
        self.globals = globals_
        self.builtins = builtins
        self.closure = closure or ()
        self.args = args
        self.config = config
        self.graph = graph
        graph.state = self
        self.guards = GuardSet()
        self.guards.locate = self.position
        self.interpreter: Any
        """The `Interpreter` of this state, which says so when it is made."""
        self.outer: dict[int, Source] = {}
        self.compared: dict[Source, type] = {}  # see identity.py
        self.shadows: dict[int, Shadow] = {}
        self.shadow_origin: dict[int, Shadow] = {}
        self.elements = 0  # of the containers in `shadows`
        self.value_sources: dict[int, tuple[Any, list[Source]]] = {}
        self.overlay: dict[int, Overlay] = {}
        self.additions: dict[int, Overlay] = {}
        self.effect_order: list[Shadow | Overlay] = []
        self.tensors: dict[int, TensorInfo] = graph.tensors
        self.inputs_by_real: dict[int, torch.Tensor] = {}
        self.loads: list[tuple[Source, object]] | None = None
        self.journal: Journal | None = None
        self.like_modules: object = None
        self.batching: object = None
        self.told_compiling = self.nested_regions = False
        self.stopped: errors.BreakReason | None = None
        self._loaded: dict[Source, tuple[object, object]] = {}
        self._object_at: dict[Source, object] = {}
        self._outer_objects: dict[int, object] = {}
        self.dict_shadows: dict[int, dict[str, object]] = {}
        self._keep: list[object] = []
        self.local_objects: set[int] = set()
        self.namespaces: dict[int, object] = {}
        self.extra_effects: list[tuple[object, list[object], Kwargs]] = []
        self.said: list[tuple[object, list[object], Kwargs, tuple[CodePlace, ...]]] = []
        self.called_at_end = False
        self.listener: list[object] | None = None
        self.variables: dict[int, Variable] = {}
        self.generators: dict[int, torch.Tensor] = {}
        self.begun: dict[int, tuple[object, object, int]] = {}
        self.arrays: object = None
        self.autocast: tuple[object, ...] = ()  # `modes.autocast_state` at the frame's entry
        self.policy: Policy | None = None
        self.memory = Memory()
        self.data_numbers, self.data_sizes = config.capture_scalar_outputs, config.capture_dynamic_output_shape_ops
        self.open_modes: list[tuple[int, Any, object]] = []
        self.overriding = torch._C._is_torch_function_enabled()

    @property
    def alike(self) -> int:
        return 0 if self.told_compiling or self.nested_regions else 2

    # ---------------------------------------------------------------- positions

    def position(self) -> tuple[types.CodeType, int]:
        """(code, line) of the innermost interpreted frame."""
        frames = self.interpreter.frames
        if not frames:
            return (self.code, self.code.co_firstlineno)
        frame = frames[-1]
        return (frame.code, frame.lineno)

    def user_stack(self) -> tuple[errors.UserLine, ...]:
        """The user's lines being interpreted, outermost first."""
        return tuple(line_of_code(frame.code, frame.lineno) for frame in self.interpreter.frames)

    # ---------------------------------------------------------------- loading from outside

    def load_source(self, source: Source, value: object) -> object:
        """Install the guards that make `value`, found at `source`, predictable; returns what goes on the stack.

        Arguments:
            source: where the value was found. The same source always gives the same answer during one capture.
            value: the real value.

        Raises:
            GraphBreak: a value that cannot be an input (tensor subclass, symbolic int...).
        """
        if self.loads is not None:
            self.loads.append((source, value))
        if self.journal is not None and not self.journal.busy:
            return self.journal.load(source, value)
        hit = self._loaded.get(source)
        if hit is not None and hit[0] is value:
            return hit[1]
        if id(value) in self.tensors or id(value) in self.graph.dressed:
            return value  # reached through a shadow or overlay: already a stand-in
        if is_a(value, torch.Tensor):
            with torch._C.DisableTorchFunction():  # looking at a real tensor is none of the program's operations
                result = self._load(source, value)
        else:
            result = self._load(source, value)
        self._loaded[source] = (value, result)
        return result

    def note_loaded(self, source: Source, value: object, own: bool) -> None:
        """`value` was found at `source`, and is guarded. `own`: objects are not found elsewhere before."""
        if source not in self._loaded:
            self._loaded[source] = (value, value)
            if own or value is None or type(value) is bool:
                self._register(source, value, keep_first=True)

    def _load(self, source: Source, value: Any) -> object:
        if answers_itself(type(value)) or (is_a(value, type) and answers_itself(value)):
            raise errors.graph_break(
                kind="class that its metaclass compares or reads",
                context=source.name(),
                explanation=f"The metaclass behind {source.friendly()} has an __eq__, __hash__ or __getattribute__ of "
                "its own, which capture would run whenever it looks at the class.",
            )
        handling = classify.handling(value)
        if handling == "tensor":
            return self.new_input(source, value)
        if handling == "refuse":
            if is_a(value, torch.Tensor):
                raise subclasses.refused(source.friendly(), value)
            raise errors.graph_break(
                kind="input that a graph cannot hold",
                context=f"{source.name()}: {type(value).__name__}",
                explanation=f"{source.friendly()} is a {type(value).__name__}, which cannot be a graph input.",
            )
        constant_root = is_a(source, ConstSource)
        if classify.is_bound_builtin(value):
            return self._load_bound(source, value)
        if handling == "equals":
            return self._load_value(source, value, constant_root)
        if handling == "identity":
            if not constant_root:
                self._guard_identity(source, value)
            self._register(source, value, keep_first=True)
            if is_a(value, enum.Enum):
                self._guard_member(value)
            return value
        if handling == "function":
            self._load_function(source, value)
            return value
        if module_of(type(value)) == "numpy":
            traced = traced_arrays.load(self, source, value)
            if traced is not NotImplemented:
                return traced
        self._load_object(source, value, constant_root)
        if type(value) in views.MAKERS:
            return views.load(self, source, value)
        if type(value) is types.MethodType:
            self.load_source(MethodFuncSource(source), value.__func__)
            self.load_source(MethodSelfSource(source), value.__self__)
        return value

    def _load_value(self, source: Source, value: object, constant_root: bool) -> object:
        """What is guarded by its value, unless that varies."""
        varying: object = NotImplemented
        if constant_root:
            pass
        elif type(value) in (int, float):
            if self.policy is not None and value == value and self.policy.number(source, value):
                varying = symbolic_policy.number_input(self, source, value)
        elif type(value) is torch.Size:
            varying = symbolic_policy.size_input(self, source, cast("torch.Size", value))
        elif module_of(type(value)) == "numpy":
            varying = symbolic_scalars.load(self, source, value)
        if varying is not NotImplemented and varying is not value:
            return varying
        same = value == value  # a NaN is equal to none but itself: as a key, and in lists, which one it is decides
        if not same:
            self._register(source, value, keep_first=True)
        if not constant_root:
            self.guard(source, "equals" if same else "id", value)
            identity.note_value(self, source, value)
        return value

    def call_numpy(self, fn: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """A function of numpy's on arrays that the graph computes, or tensors; NotImplemented without these."""
        return tensor_arguments.call(self, fn, args, kwargs)

    def _load_bound(self, source: Source, value: types.BuiltinMethodType) -> object:
        """A method of a C class bound to an object: a new method object each time, of an object that is loaded."""
        self.guard(source, "type", type(value))
        self.guard(AttrSource(source, "__name__"), "equals", value.__name__)
        if type(value.__self__) in (int, float):  # not to become a symbol, whose methods are others
            self.guard(AttrSource(source, "__self__"), "equals", value.__self__)
            return value
        owner = self.load_source(AttrSource(source, "__self__"), value.__self__)
        return value if owner is value.__self__ else getattr(owner, value.__name__)

    def _guard_identity(self, source: Source, value: Any) -> None:
        label = None
        if callable(value) and not is_a(value, type):
            label = "FUNCTION_MATCH"
        elif is_a(value, types.ModuleType):
            label = "FUNCTION_MATCH"  # the name under which the reference lists a module's guard
            self.guards.add(source, "type", type(value), shown=False)  # to which `__class__` may be assigned
        elif value is None or is_a(value, bool):
            label = "CONSTANT_MATCH"
        if value is None:
            self.guards.add(source, "is_none", label=label)
        else:
            self.guards.add(source, "id", value, label=label)

    def _guard_member(self, member: enum.Enum) -> None:
        """Native code reads the name and the value of an enum's member, for comparisons, hashes and texts."""
        own = namespace(member) or {}
        base = InstanceDictSource(ConstSource(member))
        for name in ("_value_", "_name_"):
            if name in own and classify.handling(own[name]) == "equals":  # never an input: native code has the value
                self.guards.add(DictItemSource(base, name), "equals", own[name])
            elif name in own:
                self.load_source(DictItemSource(base, name), own[name])

    def _load_function(self, source: Source, value: types.FunctionType) -> None:
        """By identity where it is defined once; by code where each call may bring a new closure of the same code."""
        if id(value) in self.outer and source.kind in ("local", "closure"):
            self._load_object(source, value, False)
            return
        if not is_a(source, ConstSource):
            if guarded_by_code(source, value):
                self.guards.add(source, "type", types.FunctionType)
                code = FuncCodeSource(source)
                self.guards.add(code, "id", value.__code__, label="FUNCTION_MATCH")
            else:
                self._guard_identity(source, value)
        self._register(source, value, keep_first=True)

    def _load_object(self, source: Source, value: Any, constant_root: bool) -> None:
        first = self.outer.get(id(value))
        if first is not None and first != source:
            if constant_root or classify.is_cell(value):
                return
            if is_a(first, ConstSource):
                self.guards.add(source, "id", value)
            else:
                self.guards.add(source, "same_object", first)
            return
        if not constant_root and not classify.is_cell(value):
            self.guards.add(source, "type", type(value))
            if is_foreign_value(type(value)):
                self.guards.add(source, "id", value)
        self._register(source, value)

    def _register(self, source: Source, value: object, keep_first: bool = False) -> None:
        if id(value) not in self.outer or not keep_first:
            self.outer[id(value)] = source
        self._object_at[source] = value
        self._outer_objects[id(value)] = value

    def new_input(self, source: Source, real: torch.Tensor) -> torch.Tensor:
        """The stand-in of a tensor that existed before the frame; the same tensor gets the same stand-in."""
        known_input = self.inputs_by_real.get(id(real))
        if known_input is not None:
            first = self.tensors[id(known_input)].source
            if first is not None and first != source:
                if is_a(first, ConstSource):
                    self.guards.add(source, "id", real)
                elif not is_a(source, ConstSource):
                    self.guards.add(source, "same_object", first)
            return subclasses.shown(self.graph, known_input)
        if is_sharded(type(real)) or is_jagged(type(real)) or is_wrapper(type(real)):
            room = dtensors if is_sharded(type(real)) else stand_ins if is_jagged(type(real)) else wrappers
            shown = room.new_input(self, source, real)
            self.inputs_by_real[id(real)] = shown
            self._keep.append(real)
            return shown
        if type(real) not in subclasses.PLAIN:
            subclasses.check_shape(source, real)
        stand_in = self.graph.new_input(source, real)
        self.inputs_by_real[id(real)] = stand_in
        self._keep.append(real)
        if not is_a(source, ConstSource):
            if not _C.has_exchange_api():  # where nothing was compiled yet
                _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
            dims = self.policy.dims(source, real) if self.policy is not None else {}
            varies = bool(dims) or (self.policy is not None and bool(self.policy.strides(source, real)))
            opened = symbolic_policy.tensor_input(self, source, real, dims) if varies else ((), ())
            self.guards.add(source, "tensor", *_C.tensor_guard_args(real, *opened))
            if self.policy is not None:
                held_values.offer(self, self.policy.history, self.tensors[id(stand_in)])
        return stand_in if type(real) in subclasses.PLAIN else subclasses.from_outside(self, stand_in, real)

    def note_constant(self, place: str) -> None:
        """A number that varies turned out to be needed as a constant: it is one from the beginning next time."""
        if self.policy is not None:
            self.policy.history.fixed.add(place)

    # ---------------------------------------------------------------- questions

    def source_of(self, obj: object) -> Source | None:
        """Where `obj` came from, if it existed before the frame (a shadow or a stand-in answers for its original)."""
        source = self.outer.get(id(obj))
        if source is not None:
            return source
        shadow = self.shadow_origin.get(id(obj))
        if shadow is not None:
            return shadow.source
        worn = self.graph.dressed.get(id(obj))
        info = self.tensors.get(id(obj) if worn is None else id(worn.plain))
        return info.source if info is not None else None

    def is_outer(self, obj: object) -> bool:
        """Whether `obj` itself (not its shadow) existed before the frame and was loaded by `load_source`."""
        return id(obj) in self.outer

    def tensor_info(self, tensor: torch.Tensor) -> TensorInfo:
        """What is known of a stand-in.

        Raises:
            GraphBreak: a real tensor that did not come in through `load_source`.
        """
        info = self.tensors.get(id(tensor))
        if info is None and id(tensor) in self.graph.dressed:
            info = self.tensors[id(self.graph.dressed[id(tensor)].plain)]
        if info is None:
            raise errors.graph_break(
                kind="tensor of unknown origin",
                context=f"{type(tensor).__name__}{tuple(tensor.shape)}",
                explanation="A tensor that capture did not see being made reached an operation.",
            )
        return info

    def object_by_id(self, obj_id: int) -> object:
        """The registered outer object with this id."""
        return self._outer_objects[obj_id]

    def guard(self, source: Source | None, kind: str, *args: object, label: str | None = None) -> None:
        """Require `kind(*args)` of `source` (kinds: `_core/_C.pyi`, GuardTree.check). Sources may be arguments."""
        if is_a(source, ConstSource) and kind in _WHICH_OBJECT:
            return
        self.guards.add(source, kind, *args, label=label)

    # ---------------------------------------------------------------- containers that existed before

    def refuse_written_names(self, container: object) -> None:
        """End the graph before a container is read that is written otherwise than by its shadow.

        Globals are, of which names have been written, and a list that is told of warnings.
        """
        if type(container) is dict and id(container) in self.overlay:
            raise whole_globals()
        if container is self.listener:
            raise errors.graph_break(
                kind="native code that warns", explanation="A list is read that is told of the warnings given before."
            )

    def resolve(self, obj: object) -> object:
        """The shadow of `obj` if it has one, else `obj`."""
        return self.shadow(obj) if id(obj) in self.shadows or id(obj) in self.additions else obj

    def is_touched(self, obj: object) -> bool:
        """Whether a shadow stands for an outer container: it was changed, or walked."""
        if id(obj) in self.additions:
            self.shadow(obj)
        return id(obj) in self.shadows

    def shadow(self, obj: object) -> object:
        """The shadow of an outer container, made now if need be; any other object as it is."""
        entry = self.shadows.get(id(obj))
        if entry is not None:
            return entry.shadow
        source = self.outer.get(id(obj))
        if source is None or not classify.is_container(obj):
            return obj
        self.refuse_written_names(obj)
        owner = self._object_at.get(source.base) if is_a(source, InstanceDictSource) and source.base else None
        added = self.additions.get(id(obj))
        replaced = added.values if added is not None and added.kind == "places" else ()
        shadow = shadows.make(self, obj, source, replaced)
        entry = Shadow(obj, shadow, shadows.contents(shadow), source, shadows.probe(shadow))
        self.shadows[id(obj)] = entry
        self.shadow_origin[id(shadow)] = entry
        self._keep.append(shadow)
        if added is None:
            if type(shadow) is not tuple:  # which nobody changes
                self.effect_order.append(entry)
        else:
            del self.additions[id(obj)]
            self.effect_order[self.effect_order.index(added)] = entry
            additions.put(shadow, added)
        if owner is not None:
            self._adopt_instance_dict(owner, shadow)
        return shadow

    def _adopt_instance_dict(self, owner: object, shadow: dict[str, object]) -> None:
        """From now on attribute writes to `owner` go to the shadow of its `__dict__`."""
        self.dict_shadows[id(owner)] = shadow
        pending = self.overlay.get(id(owner))
        if pending is None:
            return
        for name, value in list(pending.values.items()):
            if classify.is_slot(type(owner), name):
                continue
            if value is DELETED:
                shadow.pop(name, None)
            else:
                shadow[name] = value
            del pending.values[name]

    def deep_resolve(self, obj: object) -> object:
        """`obj` with every outer container in it, at any depth, replaced by its shadow (for native calls)."""
        if classify.is_plain_atom(obj):
            return obj
        return shadows.deep_resolve(self, obj)

    def item(self, container: Any, key: object) -> object:
        """Element `key` of an outer list, tuple or dict that has no shadow, loaded through its item source."""
        self.refuse_written_names(container)
        source = self.outer[id(container)]
        if is_a(container, dict):
            value = dict.__getitem__(container, key)
            raw = type(container).__getitem__ is not dict.__getitem__
            step = RawDictItemSource(source, key) if raw else DictItemSource(source, key)
            return self.load_source(step, value)
        base: Any = list if is_a(container, list) else tuple
        place = SequenceItemSource if type(container).__getitem__ is base.__getitem__ else RawSequenceItemSource
        return self.load_source(place(source, key), base.__getitem__(container, key))

    # ---------------------------------------------------------------- pending writes

    def _overlay_of(self, obj: Any, kind: str) -> Overlay:
        overlay = self.overlay.get(id(obj))
        if overlay is None:
            overlay = self.overlay[id(obj)] = Overlay(obj, kind)
            self.effect_order.append(overlay)
            self._keep.append(obj)
        return overlay

    def read_overlay(self, obj: object, name: str) -> object:
        """The value written to attribute `name` of an outer object during capture, DELETED, or UNSET."""
        adopted = self.dict_shadows.get(id(obj))
        if adopted is not None and name in adopted:
            return adopted[name]
        overlay = self.overlay.get(id(obj))
        if overlay is not None and name in overlay.values:
            return overlay.values[name]
        if adopted is not None and classify.in_instance_dict(obj, name):
            return DELETED  # was there, and the shadow of __dict__ no longer has it
        return UNSET

    def write_overlay(self, obj: object, name: str, value: object) -> None:
        """Pending `object.__setattr__(obj, name, value)`."""
        adopted = self.dict_shadows.get(id(obj))
        if adopted is not None and not classify.is_slot(type(obj), name):
            adopted[name] = value
            return
        self._overlay_of(obj, "attr").values[name] = value

    def delete_overlay(self, obj: object, name: str) -> None:
        """Pending `object.__delattr__(obj, name)`; the caller has checked that the attribute exists."""
        adopted = self.dict_shadows.get(id(obj))
        if adopted is not None and name in adopted:
            del adopted[name]
            return
        self._overlay_of(obj, "attr").values[name] = DELETED

    def overlay_names(self, obj: object) -> dict[str, object]:
        """All pending attribute writes of `obj`."""
        overlay = self.overlay.get(id(obj))
        return {} if overlay is None else overlay.values

    def _owner_of(self, container: object) -> object:
        """The outer object whose `__dict__` a dict is, while there are pending writes; else None."""
        source = self.outer.get(id(container)) if self.overlay else None
        if not is_a(source, InstanceDictSource) or source.base is None:
            return None
        return self._object_at.get(source.base)

    def pending_item(self, container: object, key: object) -> object:
        """As `read_overlay`, for an item of a dict without a shadow that is the `__dict__` of an outer object."""
        owner = self._owner_of(container)
        if owner is None or type(key) is not str or classify.is_slot(type(owner), key):
            return UNSET
        return self.overlay_names(owner).get(key, UNSET)

    def has_pending_names(self, container: object) -> bool:
        """Whether attributes of the object whose `__dict__` this is were written to."""
        return bool(self.overlay_names(self._owner_of(container)))

    def write_global(self, globals_: dict[str, object], name: str, value: object) -> None:
        """Pending `globals_[name] = value` (DELETED deletes)."""
        shadow = self.shadows.get(id(globals_))
        if shadow is not None:
            if value is DELETED:
                shadow.shadow.pop(name, None)
            else:
                shadow.shadow[name] = value
            return
        self._overlay_of(globals_, "global").values[name] = value

    def write_cell(self, cell: types.CellType, value: object) -> None:
        """Pending `cell.cell_contents = value` of an outer cell (DELETED empties it)."""
        self._overlay_of(cell, "cell").values["cell_contents"] = value

    # ---------------------------------------------------------------- torch

    def torch_call(self, fn: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call something of torch's; NotImplemented when it is plain Python to be interpreted (see torch_calls)."""
        return torch_calls.torch_call(self, fn, args, kwargs)

    def note_local(self, obj: object) -> None:
        """`obj` (a function or class) was made by the captured code itself."""
        self.local_objects.add(id(obj))
        self._keep.append(obj)

    def keep(self, obj: object) -> None:
        """Keep `obj` alive as long as the capture: its id is in use."""
        self._keep.append(obj)
