"""Rebuilds, in transformed code, the values that the interpreter left: constants, graph outputs, outer objects by
source, local objects piece by piece with their identities kept.

Each is emitted once and remembered; mutable objects that refer to themselves are made empty first, filled then.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import gc
import itertools
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from argand import errors
from argand.capture.facts import classify
from argand.capture.facts.array_value import Method, Traced
from argand.capture.facts.frames import LazyLocal
from argand.capture.facts.kinds import is_a, module_of, namespace
from argand.capture.facts.sources import ClosureSource, ConstSource, ImportedSource, LocalSource, Source, root_of
from argand.capture.facts.symbolic import SYMBOLIC, SymbolicBool, SymbolicSize
from argand.capture.facts.tainted import TaintedText, formatted_tensor
from argand.capture.facts.typefacts import is_native
from argand.capture.interp.interpreter import Trampoline
from argand.capture.objects.generators import TracedGenerator
from argand.capture.objects.iteration import NativeIterator
from argand.capture.output import positions, rebuild
from argand.capture.output.emit import Emitter
from argand.capture.record.deferred_text import DeferredText, Piece
from argand.capture.sizes import symbolic_emit
from argand.capture.world import bulk_rebuild, identity, shadows
from argand.capture.world.pending import changed_shadows

if TYPE_CHECKING:
    from argand.capture.interp.state import CaptureState
    from argand.capture.sizes.subclasses import Dressed

_IMMUTABLE: tuple[type, ...] = (
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    torch.device,
    torch.dtype,
    torch.Size,
)
_FLEETING = LocalSource | ClosureSource | ImportedSource
_WITH_PARTS = type | types.ModuleType | types.BuiltinFunctionType
_ITERATED: tuple[Any, ...] = (
    [], (), range(0), range(1 << 70), "", b"", bytearray(),
)  # fmt: skip
_REDUCIBLE: frozenset[type] = frozenset(
    {type(iter(x)) for x in _ITERATED}
    | {
        enumerate, zip, map, filter, reversed, type(reversed([])), types.SimpleNamespace,
        itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice, itertools.accumulate,
        itertools.zip_longest, itertools.product, itertools.permutations, itertools.combinations, itertools.starmap,
        itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.filterfalse, itertools.pairwise,
        type(iter(collections.deque())), bytearray, collections.Counter,
    }
)  # fmt: skip
_POSITIONED: frozenset[type] = frozenset({type(iter([])), type(reversed([])), type(iter(bytearray()))})
_OVER_DEQUES: frozenset[type] = frozenset({type(iter(collections.deque())), type(reversed(collections.deque()))})
_VIEWS: dict[type, str] = {
    type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items",
    type(collections.OrderedDict().keys()): "keys", type(collections.OrderedDict().values()): "values",
    type(collections.OrderedDict().items()): "items",
}  # fmt: skip
_ORDERED_VIEWS: tuple[type, ...] = tuple(cls for cls in _VIEWS if "odict" in cls.__name__)


def unreconstructable(obj: Any, why: str = "") -> errors.GraphBreak:
    """The frame needs an object after the graph that cannot be made by transformed code."""
    cls = types.GeneratorType if type(obj) is TracedGenerator else type(obj)
    found = errors.graph_break(
        kind="value cannot be rebuilt",
        context=f"{cls.__module__}.{cls.__qualname__}{': ' + why if why else ''}",
        explanation=f"A {cls.__qualname__} made in the captured code is needed after it and cannot be rebuilt.",
        hints=("make it outside the compiled function, or do not let it outlive the captured part",),
        skip_frame=True,
    )
    found.needed = obj  # the graph may break where it was made instead
    return found


class Reconstructor:
    """Emits values. One dry run finds outputs, shared objects and cycles; a second run emits for good.

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
        self._made: dict[int, str] = {}
        self._open: dict[int, Any] = {}
        self._pushed = 0
        self._keep: list[Any] = []
        self.root_cells: dict[int, str] = {}
        self.used_cells: set[str] = set()
        self._positions: list[tuple[Any, int]] = []

    # ---------------------------------------------------------------- the entry

    def push(self, obj: Any) -> None:
        """-> the value that `obj` stands for.

        Raises:
            GraphBreak: it cannot be rebuilt (the frame is then skipped).
        """
        self._pushed += 1
        if self._pushed > bulk_rebuild.MOST:
            raise unreconstructable(
                bulk_rebuild.largest(self._open.values()), f"more than {bulk_rebuild.MOST:,} values"
            )
        if is_a(obj, LazyLocal):
            self.emitter.load_local(obj.name, obj.index)
            return
        if is_a(obj, torch.Tensor):
            self._tensor(obj)
            return
        if type(obj) in SYMBOLIC:
            symbolic_emit.push(self, obj)
            return
        obj = shadows.origin(self.state, obj)
        name = self._made.get(id(obj))
        if name is not None:
            self.asm.load_fast(name)
            return
        if id(obj) in self.root_cells:
            self.used_cells.add(self.root_cells[id(obj)])
            self.asm.load_closure(self.root_cells[id(obj)])
            return
        source = self.state.outer.get(id(obj))
        if classify.is_constant(obj) and not self._is_local(obj):
            if source is not None and is_a(obj, _WITH_PARTS) and is_a(root_of(source), _FLEETING):
                self._outer(source)  # as a constant the code would keep it alive
            else:
                self.asm.load_const(obj)
            return
        if source is not None:
            self._outer(source)
            return
        if id(obj) in self._open:
            self.plan.cyclic.add(id(obj))
            raise Again
        self._open[id(obj)] = obj
        try:
            self._local(obj)
        finally:
            del self._open[id(obj)]

    def _is_local(self, obj: Any) -> bool:
        return is_a(obj, type) and id(obj) in self.state.local_objects

    def _outer(self, source: Source) -> None:
        if self.dry:
            self.plan.count(source)
        self.emitter.load_source(source)

    def _remember(self, obj: Any) -> None:
        """value -> value; it can be loaded again."""
        self.asm.dup()
        self._made[id(obj)] = self.emitter.store_temp("o")
        self._keep.append(obj)  # parts that `__reduce__` made live on, so that no other object takes their id

    def _tensor(self, tensor: torch.Tensor) -> None:
        worn = self.state.graph.dressed.get(id(tensor))
        if worn is not None and self.state.source_of(tensor) is None:
            self._subclass(worn)
            return
        info = self.state.tensor_info(tensor)
        if info.source is not None:
            self._outer(info.source)
            return
        self.graph_output(tensor)

    def _subclass(self, worn: Dressed) -> None:
        """A tensor of the program's class, with its attributes, over what the graph returns."""
        name = self._made.get(id(worn.tensor))
        if name is not None:
            self.asm.load_fast(name)
            return
        self._tensor(worn.plain)
        self.emitter.call_helper(rebuild.as_subclass, (type(worn.tensor),))
        self._remember(worn.tensor)
        attributes = vars(worn.tensor)
        if attributes:
            self._fill(rebuild.set_tensor_attributes, worn.tensor, lambda: bulk_rebuild.push_map(self, attributes))

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

    # ---------------------------------------------------------------- numpy

    def _array(self, array: Traced) -> None:
        """The tensor's memory as an array; an array that was there before is loaded."""
        if array._a_source is not None:
            self._outer(array._a_source)
            return
        self._tensor(array._a_tensor)
        scalar = array.__class__.__name__ != "ndarray"
        writeable = scalar or bool(array._a_dummy.flags.writeable)
        self.emitter.call_helper(rebuild.array_of, (scalar, writeable, tuple(array._a_dummy.strides)))
        self._remember(array)

    def _array_method(self, method: Method) -> None:
        self.push(method._a_of)
        self.asm.load_attr(method._a_name)

    # ---------------------------------------------------------------- local objects

    def _local(self, obj: Any) -> None:
        if type(obj) is TaintedText:
            raise formatted_tensor(obj)
        maker = _MAKERS.get(type(obj))
        if maker is not None:
            maker(self, obj)
            return
        if type(obj) is Trampoline:
            self.push(obj.fn)
        elif type(obj) is NativeIterator:
            self.push(obj.iterator)
        elif type(obj) is TracedGenerator:
            raise unreconstructable(obj, obj.__qualname__)
        elif type(obj) in positions.TYPES:
            self._iterator(obj)
        elif type(obj) in _REDUCIBLE:
            self._reduced(obj)
        elif type(obj) in _VIEWS:
            self._view(obj)
        elif is_a(obj, _IMMUTABLE) or (module_of(type(obj)) == "numpy" and classify.handling(obj) != "object"):
            self.asm.load_const(obj)
        elif is_a(obj, type):
            raise unreconstructable(obj, "a class defined in the captured code")
        elif is_a(obj, tuple) and module_of(type(obj)) == "torch.return_types":
            bulk_rebuild.push_tuple(self, obj)
            self.emitter.call_helper(rebuild.new_tuple, (type(obj),))
            self._remember(obj)
        elif is_a(obj, enum.Enum):
            self.asm.load_const(obj)
        else:
            self._instance(obj)

    def push_each(self, items: Any) -> int:
        """-> each of the items; how many there are."""
        found = list(items)
        for item in found:
            self.push(item)
        return len(found)

    def _list(self, obj: list[Any]) -> None:
        if id(obj) in self.plan.cyclic:
            self.asm.build_list(0)
            self._remember(obj)
            self._fill(rebuild.fill_list, obj, lambda: bulk_rebuild.push_list(self, obj))
            return
        bulk_rebuild.push_list(self, obj)
        self._remember(obj)

    def _tuple(self, obj: tuple[Any, ...]) -> None:
        bulk_rebuild.push_tuple(self, obj)
        if obj:
            self._remember(obj)

    def _size(self, obj: SymbolicSize) -> None:
        bulk_rebuild.push_tuple(self, tuple.__iter__(obj))
        self.emitter.call_helper(torch.Size)
        self._remember(obj)

    def _dict(self, obj: dict[Any, Any]) -> None:
        if id(obj) in self.plan.cyclic:
            self.asm.build_map(0)
            self._remember(obj)
            self._fill(rebuild.fill_dict, obj, lambda: bulk_rebuild.push_map(self, obj))
            return
        bulk_rebuild.push_map(self, obj)
        self._remember(obj)

    def _set(self, obj: Any) -> None:
        if len(obj) > 1 and all(map(classify.is_constant, obj)) and not positions.keeps_order(obj):
            if not positions.copy_keeps_order(obj):
                raise unreconstructable(obj, "a set whose order depends on how it was filled")
            self.asm.load_const(frozenset(obj))
            self.emitter.call_helper(type(obj))
        elif type(obj) is set:
            self.asm.build_set(self.push_each(obj))
        else:
            bulk_rebuild.push_list(self, obj)
            self.emitter.call_helper(rebuild.new_set, (type(obj),))
        self._remember(obj)

    def _slice(self, obj: slice) -> None:
        self.asm.build_slice(self.push_each((obj.start, obj.stop, obj.step)))

    def _fill(self, helper: Any, obj: Any, push_value: Any) -> None:
        """made -> made; calls helper(made, value) for what `push_value` pushes."""
        push_value()
        value = self.emitter.store_temp("f")
        self.asm.load_const_callable(helper)
        self.asm.load_fast(self._made[id(obj)])
        self.asm.load_fast(value)
        self.asm.call(2)
        self.asm.pop_top()

    def _cell(self, obj: types.CellType) -> None:
        self.asm.load_const_callable(rebuild.new_cell)
        self.asm.call(0)
        self._remember(obj)
        try:
            contents = obj.cell_contents
        except ValueError:
            return
        self._fill(rebuild.fill_cell, obj, lambda: self.push(contents))

    def _function(self, obj: types.FunctionType) -> None:
        if identity.is_settled(self.state, obj):
            self.asm.load_const(obj)
            return
        self.asm.load_const(obj.__code__)
        self.asm.load_const(obj.__globals__)
        self.asm.load_const(obj.__name__)
        self.asm.load_const(obj.__qualname__)
        self.push(obj.__defaults__)
        self.push(obj.__kwdefaults__)
        self.push(obj.__closure__)
        attributes: dict[str, Any] = dict(obj.__dict__)
        attributes["__module__"] = obj.__module__
        if obj.__doc__ is not None:
            attributes["__doc__"] = obj.__doc__
        if obj.__annotations__:
            attributes["__annotations__"] = obj.__annotations__
        bulk_rebuild.push_map(self, attributes)
        self.emitter.call_on(rebuild.new_function, 8)
        self._remember(obj)

    def _method(self, obj: types.MethodType) -> None:
        self.push(obj.__func__)
        self.push(obj.__self__)
        self.emitter.call_on(types.MethodType, 2)
        self._remember(obj)

    def _bound_builtin(self, obj: Any) -> None:
        if obj.__self__ is None or is_a(obj.__self__, types.ModuleType | type):
            self.asm.load_const(obj)
            return
        self.push(obj.__self__)
        found = (vars(cls)[obj.__name__] for cls in type(obj.__self__).__mro__ if obj.__name__ in vars(cls))
        first = next(found, None)
        if is_a(first, types.FunctionType):  # `super().method`: not what the object's own class says
            meant = next((f for f in found if hasattr(f, "__objclass__") and f.__get__(obj.__self__) == obj), None)
            if meant is None:
                raise unreconstructable(obj, "a method of a base class")
            self.emitter.call_helper(rebuild.bound, (meant,))
            return
        self.asm.load_attr(obj.__name__)

    def _partial(self, obj: Any) -> None:
        self.push(obj.func)
        self.push(obj.args)
        bulk_rebuild.push_map(self, obj.keywords)
        self.asm.load_const(type(obj))
        self.emitter.call_on(rebuild.new_partial, 4)
        self._remember(obj)
        self._attributes(obj)

    def _deque(self, obj: Any) -> None:
        bulk_rebuild.push_list(self, list(obj))
        self.emitter.call_helper(rebuild.new_deque, (obj.maxlen, type(obj)))
        self._remember(obj)

    def _defaultdict(self, obj: Any) -> None:
        bulk_rebuild.push_map(self, obj)
        self.push(obj.default_factory)
        self.asm.load_const(type(obj))
        self.emitter.call_on(rebuild.new_defaultdict, 3)
        self._remember(obj)

    def _weakref(self, obj: Any) -> None:
        target = obj()
        if target is None:
            raise unreconstructable(obj, "dead weak reference")
        if obj.__callback__ is not None:
            raise unreconstructable(obj, "a weak reference with a callback")
        self.push(target)
        self.emitter.call_helper(weakref.ref)
        self._remember(obj)

    def _view(self, obj: Any) -> None:
        owner = gc.get_referents(obj)[0]
        self.push(owner)
        kind = collections.OrderedDict if is_a(obj, _ORDERED_VIEWS) else dict
        self.emitter.call_helper(getattr(kind, _VIEWS[type(obj)]))  # and not that of the program's class

    def _proxy(self, obj: Any) -> None:
        self.push(gc.get_referents(obj)[0])
        self.emitter.call_helper(types.MappingProxyType)

    def _text(self, obj: DeferredText) -> None:
        for part in obj.parts:
            if not is_a(part, Piece):
                self.asm.load_const(part)
                continue
            self.push(part.value)
            if part.conversion:
                self.emitter.call_helper({"s": str, "r": repr, "a": ascii}[part.conversion])
            self.emitter.call_helper(format, (part.spec,))
        self.asm.build_string(len(obj.parts))
        self._remember(obj)

    def _iterator(self, obj: Any) -> None:
        if why := positions.push(self, obj):
            raise unreconstructable(obj, why)
        self._remember(obj)

    def _reduced(self, obj: Any) -> None:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # itertools' __reduce__ in 3.12+
            function, args, *more = obj.__reduce__()
        if len(more) > 1 and any(part is not None for part in more[1:]):
            raise unreconstructable(obj)
        if type(obj) in _OVER_DEQUES and any(entry.shadow is args[0] for entry in changed_shadows(self.state)):
            raise unreconstructable(obj, "over a deque that has changed")  # it would be made before the deque changes
        self.push(function)
        self.push(args)
        self.emitter.call_on(rebuild.call_reduced, 2)
        self._remember(obj)
        if more and more[0] is not None:
            if is_a(obj, types.SimpleNamespace):
                self._fill(rebuild.set_attributes, obj, lambda: bulk_rebuild.push_map(self, more[0]))
            elif type(obj) in _POSITIONED:
                self._positions.append((obj, more[0]))
            else:
                self._fill(rebuild.set_state, obj, lambda: self.push(more[0]))

    def place_iterators(self) -> None:
        """Move list iterators to where they are: to be emitted when lists have their final contents, because a position
        behind a list's end is forgotten."""
        for obj, position in self._positions:
            self._fill(rebuild.set_state, obj, lambda position=position: self.asm.load_const(position))

    # ---------------------------------------------------------------- instances of classes

    def _instance(self, obj: Any) -> None:
        cls = type(obj)
        if "argand_temporary" in cls.__dict__:
            raise unreconstructable(obj)
        if is_native(cls):  # C state that nobody here knows
            raise unreconstructable(obj)
        base = next(b for b in cls.__mro__ if is_native(b))
        self._shell(obj, cls, base)
        self._remember(obj)
        self._attributes(obj)

    def _shell(self, obj: Any, cls: type, base: type) -> None:
        """The object with the state that its C base keeps."""
        if base is object:
            self.asm.load_const_callable(rebuild.new_object)
            self.push(cls)
            self.asm.call(1)
        elif base is collections.defaultdict:
            self._defaultdict(obj)
        elif issubclass(base, dict):
            bulk_rebuild.push_map(self, obj)
            self.emitter.call_helper(rebuild.new_dict, (cls,))
        elif base is list:
            bulk_rebuild.push_list(self, list.__iter__(obj))
            self.emitter.call_helper(rebuild.new_list, (cls,))
        elif issubclass(base, tuple):
            bulk_rebuild.push_tuple(self, tuple.__iter__(obj))
            self.emitter.call_helper(rebuild.new_tuple, (cls,))
        elif base is set or base is frozenset:
            bulk_rebuild.push_list(self, base.__iter__(obj))
            self.emitter.call_helper(rebuild.new_set, (cls,))
        elif base is collections.deque:
            bulk_rebuild.push_list(self, list(base.__iter__(obj)))
            self.emitter.call_helper(rebuild.new_deque, (base.maxlen.__get__(obj), cls))
        elif issubclass(base, BaseException):
            self.push(vars(BaseException)["args"].__get__(obj))
            self.emitter.call_helper(rebuild.new_exception, (cls,))
        elif base in (int, float, str, bytes, complex):
            self.asm.load_const(rebuild.plain_value(obj, base))
            self.emitter.call_helper(rebuild.new_value, (cls,))
        else:
            raise unreconstructable(obj, f"derived from {base.__qualname__}")

    def _exception(self, obj: BaseException) -> None:
        self.push(obj.args)
        self.emitter.call_helper(rebuild.new_exception, (type(obj),))
        self._remember(obj)
        self._attributes(obj)

    def _attributes(self, obj: Any) -> None:
        """made -> made, with its `__dict__` and slots."""
        attributes = namespace(obj)
        if is_a(attributes, dict) and attributes:
            self._fill(rebuild.set_attributes, obj, lambda: bulk_rebuild.push_map(self, attributes))
        slots = rebuild.slots_of(obj)
        if slots is None:
            raise unreconstructable(obj, "a subclass hides one of its slots")
        if is_a(obj, BaseException):
            for name in ("__cause__", "__context__", "__suppress_context__"):
                slots[name] = vars(BaseException)[name].__get__(obj)
            slots = {key: value for key, value in slots.items() if value is not None and value is not False}
            slots.update(rebuild.exception_members(obj))
        if slots:
            self._fill(rebuild.set_slots, obj, lambda: bulk_rebuild.push_map(self, slots))


class Again(Exception):
    """The dry run found a cycle and starts again."""


class Plan:
    """What a dry run finds out.

    Fields:
        outputs: stand-ins that the graph must return, in order; `output_names` the temporaries that hold them.
        uses: how often each source (and each prefix of one) is needed.
        cyclic: ids of containers that contain themselves.
    """

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.output_names: dict[Any, str] = {}
        self.uses: collections.Counter[Source] = collections.Counter()
        self.cyclic: set[int] = set()

    def count(self, source: Source) -> None:
        """One more load of `source`: its prefixes are loaded once per distinct extension."""
        step: Source | None = source
        while step is not None and not is_a(step, ConstSource):
            self.uses[step] += 1
            if self.uses[step] > 1:
                return
            step = step.base


def _ordered(self: Reconstructor, obj: Any) -> None:
    bulk_rebuild.push_map(self, obj)
    self.emitter.call_helper(rebuild.new_dict, (type(obj),))
    self._remember(obj)
    self._attributes(obj)


def _id(self: Reconstructor, obj: identity.LocalId) -> None:
    self.push(obj.of)
    self.emitter.call_helper(id)


_MAKERS: dict[type, Any] = {
    identity.LocalId: _id,
    SymbolicSize: Reconstructor._size,
    list: Reconstructor._list,
    tuple: Reconstructor._tuple,
    dict: Reconstructor._dict,
    set: Reconstructor._set,
    frozenset: Reconstructor._set,
    slice: Reconstructor._slice,
    collections.deque: Reconstructor._deque,
    collections.defaultdict: Reconstructor._defaultdict,
    types.CellType: Reconstructor._cell,
    types.FunctionType: Reconstructor._function,
    types.MethodType: Reconstructor._method,
    types.BuiltinMethodType: Reconstructor._bound_builtin,
    types.MethodWrapperType: Reconstructor._bound_builtin,
    types.MappingProxyType: Reconstructor._proxy,
    functools.partial: Reconstructor._partial,
    weakref.ReferenceType: Reconstructor._weakref,
    collections.OrderedDict: _ordered,
    DeferredText: Reconstructor._text,
    Traced: Reconstructor._array,
    Method: Reconstructor._array_method,
}

for _cls in vars(__import__("builtins")).values():
    if is_a(_cls, type) and issubclass(_cls, BaseException):
        _MAKERS[_cls] = Reconstructor._exception
