"""Objects that the captured code made, made again by transformed code, piece by piece with their identities kept.

Each function pushes an object of one kind; mutable objects that refer to themselves are made empty first, filled then.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import enum
import fractions
import functools
import gc
import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from argand.bytecode import generators_at_yields
from argand.capture.facts import classify
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import is_a, module_of, namespace
from argand.capture.facts.typefacts import is_native, is_tree_structure
from argand.capture.facts.values import ragged_sizes
from argand.capture.facts.values.array_value import Method, Traced
from argand.capture.facts.values.symbolic import SymbolicSize
from argand.capture.facts.values.tainted_values import TaintedText, formatted_tensor
from argand.capture.interp.interpreter import Trampoline
from argand.capture.objects import generators, polyfills
from argand.capture.objects.call_protocol.classes import LaterCallback
from argand.capture.objects.generators import TracedGenerator
from argand.capture.objects.iteration import NativeIterator
from argand.capture.output import iterator_positions, rebuild
from argand.capture.output.values import Values, unreconstructable
from argand.capture.record.deferred_text import DeferredText, Piece
from argand.capture.world import identity
from argand.capture.world.pending_effects import changed_shadows
from argand.graph.nested_tensors import ragged_size

_IMMUTABLE: tuple[type, ...] = (
    decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
    torch.device, torch.dtype, torch.Size,
)  # fmt: skip
_ITERATED: tuple[Iterable[object], ...] = (
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


def push(values: Values, obj: object) -> None:
    """-> a new object like one that the captured code made.

    Raises:
        GraphBreak: it cannot be made by transformed code.
    """
    if type(obj) is TaintedText:
        raise formatted_tensor(obj)
    maker = _MAKERS.get(type(obj))
    if maker is not None:
        maker(values, obj)
        return
    if (
        is_a(obj, _IMMUTABLE)
        or is_tree_structure(type(obj))
        or (module_of(type(obj)) == "numpy" and classify.handling(obj) != "object")
    ):
        values.asm.load_const(obj)
    elif is_a(obj, type):
        raise unreconstructable(obj, "a class defined in the captured code")
    elif is_a(obj, tuple) and module_of(type(obj)) == "torch.return_types":
        values.push_tuple(obj)
        values.emitter.call_helper(rebuild.new_tuple, (type(obj),))
        values.remember(obj)
    elif is_a(obj, enum.Enum):
        values.asm.load_const(obj)
    else:
        _instance(values, obj)


def _list(values: Values, obj: list[object]) -> None:
    _container(values, obj, lambda: values.push_list(obj), values.asm.build_list, rebuild.fill_list)


def _container(values: Values, obj: object, push: Function, build: Function, fill: Function) -> None:
    """A list or dict; one that contains itself is made empty, and filled with what a copy of it holds."""
    if id(obj) in values.plan.cyclic:
        build(0)
        values.remember(obj)
        values.fill(fill, obj, push)
        return
    push()
    values.remember(obj)


def _tuple(values: Values, obj: tuple[object, ...]) -> None:
    values.push_tuple(obj)
    if obj:
        values.remember(obj)


def _random_numbers(values: Values, obj: torch.Generator) -> None:
    state = values.state.generators.get(id(obj))
    if state is None:
        raise unreconstructable(obj)
    values.push(state)
    values.emitter.call_helper(rebuild.new_generator)
    values.remember(obj)


def _ragged_size(values: Values, obj: torch.SymInt) -> None:
    """That of a nested tensor in its ragged dim, by the offsets, or lengths, that it is of."""
    number = obj.node
    offsets = values.state.graph.ragged_sizes.get(number.nested_int())
    if offsets is None or number.nested_int_coeff() != 1:
        raise ragged_sizes.refused("what goes on after the graph")
    values.push(offsets)
    values.emitter.call_helper(ragged_size)


def _size(values: Values, obj: SymbolicSize | torch.Size) -> None:
    values.push_tuple(tuple.__iter__(obj))
    values.emitter.call_helper(torch.Size)
    values.remember(obj)


def _dict(values: Values, obj: dict[object, object]) -> None:
    _container(values, obj, lambda: values.push_map(obj), values.asm.build_map, rebuild.fill_dict)


def _set(values: Values, obj: set[object] | frozenset[object]) -> None:
    if len(obj) > 1 and all(map(classify.is_constant, obj)) and not iterator_positions.keeps_order(obj):
        if not iterator_positions.copy_keeps_order(obj):
            raise unreconstructable(obj, "a set whose order depends on how it was filled")
        values.asm.load_const(frozenset(obj))
        values.emitter.call_helper(type(obj))
    elif type(obj) is set:
        values.asm.build_set(values.push_each(obj))
    else:
        values.push_list(obj)
        values.emitter.call_helper(rebuild.new_set, (type(obj),))
    values.remember(obj)


def _slice(values: Values, obj: slice) -> None:
    values.asm.build_slice(values.push_each((obj.start, obj.stop, obj.step)))


def _cell(values: Values, obj: types.CellType) -> None:
    values.asm.load_const_callable(rebuild.new_cell)
    values.asm.call(0)
    values.remember(obj)
    try:
        contents = obj.cell_contents
    except ValueError:
        return
    values.fill(rebuild.fill_cell, obj, lambda: values.push(contents))


def _function(values: Values, obj: types.FunctionType) -> None:
    if identity.is_settled(values.state, obj):
        values.asm.load_const(obj)
        return
    values.asm.load_const(obj.__code__)
    values.asm.load_const(obj.__globals__)
    values.asm.load_const(obj.__name__)
    values.asm.load_const(obj.__qualname__)
    values.push(obj.__defaults__)
    values.push(obj.__kwdefaults__)
    values.push(obj.__closure__)
    attributes: dict[str, object] = dict(obj.__dict__)
    attributes["__module__"] = obj.__module__
    if obj.__doc__ is not None:
        attributes["__doc__"] = obj.__doc__
    if obj.__annotations__:
        attributes["__annotations__"] = obj.__annotations__
    values.push_map(attributes)
    values.emitter.call_on(rebuild.new_function, 8)
    values.remember(obj)


def _method(values: Values, obj: types.MethodType) -> None:
    if type(obj.__self__) is TracedGenerator:
        values.push(obj.__self__)
        values.asm.load_attr(obj.__name__)
        return
    values.push(obj.__func__)
    values.push(obj.__self__)
    values.emitter.call_on(types.MethodType, 2)
    values.remember(obj)


def _bound_builtin(values: Values, obj: types.BuiltinMethodType) -> None:
    if obj.__self__ is None or is_a(obj.__self__, types.ModuleType | type):
        values.asm.load_const(obj)
        return
    values.push(obj.__self__)
    candidates = (vars(cls)[obj.__name__] for cls in type(obj.__self__).__mro__ if obj.__name__ in vars(cls))
    first = next(candidates, None)
    if is_a(first, types.FunctionType):  # `super().method`: not what the object's own class says
        meant = next((f for f in candidates if hasattr(f, "__objclass__") and f.__get__(obj.__self__) == obj), None)
        if meant is None:
            raise unreconstructable(obj, "a method of a base class")
        values.emitter.call_helper(rebuild.bound, (meant,))
        return
    values.asm.load_attr(obj.__name__)


def _partial(values: Values, obj: functools.partial[object]) -> None:
    values.push(obj.func)
    values.push(obj.args)
    values.push_map(obj.keywords)
    values.asm.load_const(type(obj))
    values.emitter.call_on(rebuild.new_partial, 4)
    values.remember(obj)
    _attributes(values, obj)


def _object(values: Values, obj: object) -> None:
    values.asm.load_const_callable(object)
    values.asm.call(0)
    values.remember(obj)


def _property(values: Values, obj: property) -> None:
    given = obj.__doc__ if obj.__doc__ != getattr(obj.fget, "__doc__", None) else None
    for part in (obj.fget, obj.fset, obj.fdel, given):
        values.push(part)
    values.emitter.call_on(property, 4)
    values.remember(obj)


def _bound_to_nothing(values: Values, obj: staticmethod[..., object] | classmethod[object, ..., object]) -> None:
    values.push(obj.__func__)
    values.emitter.call_helper(type(obj))
    values.remember(obj)
    _attributes(values, obj)


def _deque(values: Values, obj: collections.deque[object]) -> None:
    values.push_list(list(obj))
    values.emitter.call_helper(rebuild.new_deque, (obj.maxlen, type(obj)))
    values.remember(obj)


def _defaultdict(values: Values, obj: collections.defaultdict[object, object]) -> None:
    values.push_map(obj)
    values.push(obj.default_factory)
    values.asm.load_const(type(obj))
    values.emitter.call_on(rebuild.new_defaultdict, 3)
    values.remember(obj)


def _weakref(values: Values, obj: weakref.ref[object]) -> None:
    target = obj()
    if target is None:
        raise unreconstructable(obj, "dead weak reference")
    callback = obj.__callback__
    if callback is None:
        values.push(target)
        values.emitter.call_helper(weakref.ref)
    elif type(callback) is LaterCallback:
        values.push(target)
        values.push(callback.fn)
        if is_a(obj, weakref.KeyedRef):
            values.push(obj.key)
        values.emitter.call_on(type(obj), 3 if is_a(obj, weakref.KeyedRef) else 2)
    else:
        raise unreconstructable(obj, "a weak reference with a callback that cannot be called")
    values.remember(obj)


def _view(values: Values, obj: object) -> None:
    owner = gc.get_referents(obj)[0]
    values.push(owner)
    kind = collections.OrderedDict if is_a(obj, _ORDERED_VIEWS) else dict
    values.emitter.call_helper(getattr(kind, _VIEWS[type(obj)]))  # and not that of the program's class


def _proxy(values: Values, obj: object) -> None:
    values.push(gc.get_referents(obj)[0])
    values.emitter.call_helper(types.MappingProxyType)


def _text(values: Values, obj: DeferredText) -> None:
    for part in obj.parts:
        if not is_a(part, Piece):
            values.asm.load_const(part)
            continue
        values.push(part.value)
        if part.conversion:
            values.emitter.call_helper({"s": str, "r": repr, "a": ascii}[part.conversion])
        values.emitter.call_helper(format, (part.spec,))
    values.asm.build_string(len(obj.parts))
    values.remember(obj)


def _trampoline(values: Values, obj: Trampoline) -> None:
    values.push(obj.fn)


def _native_iterator(values: Values, obj: NativeIterator) -> None:
    values.push(obj.iterator)


_STAND_FOR: dict[types.CodeType, tuple[Function, tuple[str, ...]]] = {
    polyfills.iterate_by_index.__code__: (rebuild.iterator_by_index, ("obj", "i")),
    polyfills.iterate_sentinel.__code__: (iter, ("fn", "sentinel")),
}
"""Code that runs in the place of an iterator of C -> what makes that one, of which variables."""


def _generator(values: Values, obj: TracedGenerator) -> None:
    frame = obj._frame
    late = generators.ends_visibly(obj) and _is_held_by_call(values.state.interpreter.root, obj)
    parts = None if late or id(obj) in values.plan.cyclic else generators.parts_at_yield(obj)
    stands_for = _STAND_FOR.get(frame.code)
    if parts is not None and stands_for is not None:
        helper, names_of_parts = stands_for
        for name in names_of_parts:
            values.push(parts.variables[name])
        values.emitter.call_on(helper, len(names_of_parts))
        values.remember(obj)
        return
    code = None
    if parts is not None and frame.code is not polyfills.iterate_reversed.__code__:
        stack, names = len(parts.stack), tuple(parts.variables)
        code = generators_at_yields.suspended_code(frame.code, frame.program.instructions, frame.pc, stack, names)
    if parts is None or code is None:
        raise unreconstructable(obj, obj.__qualname__)
    for part in (code, frame.globals, obj.__name__, obj.__qualname__):
        values.asm.load_const(part)
    values.push_tuple([parts.cells[name] for name in generators_at_yields.cells_of(frame.code)])
    values.push_tuple([*parts.stack, *parts.variables.values()])
    values.emitter.call_on(rebuild.suspended_generator, 6)
    values.remember(obj)


def _is_held_by_call(root: Frame, obj: TracedGenerator) -> bool:
    """Whether the call of the resume function would hold on to a generator, and end it later than eager: a variable has
    it, or the object that keeps it, as where a manager is entered by hand."""
    if any(value is obj for value in (*root.stack, *root.fast)):
        return True
    attributes = [namespace(value) for value in root.fast]
    return any(part is obj for held in attributes if is_a(held, dict) for part in held.values())


def _iterator(values: Values, obj: object) -> None:
    if why := iterator_positions.push(values, obj):
        raise unreconstructable(obj, why)
    values.remember(obj)


def _reduced(values: Values, obj: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # itertools' __reduce__ in 3.12+
        function, args, *more = obj.__reduce__()
    if len(more) > 1 and any(part is not None for part in more[1:]):
        raise unreconstructable(obj)
    if type(obj) in _OVER_DEQUES and any(entry.shadow is args[0] for entry in changed_shadows(values.state)):
        raise unreconstructable(obj, "over a deque that has changed")  # it would be made before the deque changes
    values.push(function)
    values.push(args)
    values.emitter.call_on(rebuild.call_reduced, 2)
    values.remember(obj)
    if more and more[0] is not None:
        if is_a(obj, types.SimpleNamespace):
            values.fill(rebuild.set_attributes, obj, lambda: values.push_map(more[0]))
        elif type(obj) in _POSITIONED:
            values.positions.append((obj, more[0]))
        else:
            values.fill(rebuild.set_state, obj, lambda: values.push(more[0]))


# ---------------------------------------------------------------------- instances of classes


def _instance(values: Values, obj: object) -> None:
    cls = type(obj)
    if "argand_temporary" in cls.__dict__:
        raise unreconstructable(obj)
    if is_native(cls):  # C state that nobody here knows
        raise unreconstructable(obj)
    base = next(b for b in cls.__mro__ if is_native(b))
    _shell(values, obj, cls, base)
    values.remember(obj)
    _attributes(values, obj)


def _shell(values: Values, obj: Any, cls: type, base: type) -> None:
    """The object with the state that its C base keeps."""
    if base is object:
        values.asm.load_const_callable(rebuild.new_object)
        values.push(cls)
        values.asm.call(1)
    elif base is collections.defaultdict:
        _defaultdict(values, obj)
    elif issubclass(base, dict):
        values.push_map(obj)
        values.emitter.call_helper(rebuild.new_dict, (cls,))
    elif base is list:
        values.push_list(list.__iter__(obj))
        values.emitter.call_helper(rebuild.new_list, (cls,))
    elif issubclass(base, tuple):
        values.push_tuple(tuple.__iter__(obj))
        values.emitter.call_helper(rebuild.new_tuple, (cls,))
    elif base is set or base is frozenset:
        values.push_list(base.__iter__(obj))
        values.emitter.call_helper(rebuild.new_set, (cls,))
    elif base is collections.deque:
        values.push_list(list(base.__iter__(obj)))
        values.emitter.call_helper(rebuild.new_deque, (base.maxlen.__get__(obj), cls))
    elif issubclass(base, BaseException):
        values.push(vars(BaseException)["args"].__get__(obj))
        values.emitter.call_helper(rebuild.new_exception, (cls,))
    elif base in (int, float, str, bytes, complex):
        values.asm.load_const(rebuild.plain_value(obj, base))
        values.emitter.call_helper(rebuild.new_value, (cls,))
    else:
        raise unreconstructable(obj, f"derived from {base.__qualname__}")


def _exception(values: Values, obj: BaseException) -> None:
    values.push(obj.args)
    values.emitter.call_helper(rebuild.new_exception, (type(obj),))
    values.remember(obj)
    _attributes(values, obj)


def _attributes(values: Values, obj: Any) -> None:
    """made -> made, with its `__dict__` and slots."""
    attributes = namespace(obj)
    if is_a(attributes, dict) and attributes:
        values.fill(rebuild.set_attributes, obj, lambda: values.push_map(attributes))
    slots = rebuild.slots_of(obj)
    if slots is None:
        raise unreconstructable(obj, "a subclass hides one of its slots")
    if is_a(obj, BaseException):
        for name in ("__cause__", "__context__", "__suppress_context__"):
            slots[name] = vars(BaseException)[name].__get__(obj)
        slots = {key: value for key, value in slots.items() if value is not None and value is not False}
        slots.update(rebuild.exception_members(obj))
    if slots:
        values.fill(rebuild.set_slots, obj, lambda: values.push_map(slots))


def _array(values: Values, array: Traced) -> None:
    """The tensor's memory as an array; an array that was there before is loaded."""
    if array._a_source is not None:
        values.push_outer(array._a_source)
        return
    values.push(array._a_memory)
    scalar = array.__class__.__name__ != "ndarray"
    writeable = scalar or bool(array._a_dummy.flags.writeable)
    values.emitter.call_helper(rebuild.array_of, (scalar, writeable, tuple(array._a_dummy.strides)))
    values.remember(array)


def _array_method(values: Values, method: Method) -> None:
    values.push(method._a_of)
    values.asm.load_attr(method._a_name)


def _ordered(values: Values, obj: dict[object, object]) -> None:
    values.push_map(obj)
    values.emitter.call_helper(rebuild.new_dict, (type(obj),))
    values.remember(obj)
    _attributes(values, obj)


def _id(values: Values, obj: identity.LocalId) -> None:
    values.push(obj.of)
    values.emitter.call_helper(id)


_MAKERS: dict[type, Callable[[Values, Any], None]] = {
    identity.LocalId: _id,
    SymbolicSize: _size,
    torch.Size: _size,
    torch.SymInt: _ragged_size,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _set,
    slice: _slice,
    collections.deque: _deque,
    collections.defaultdict: _defaultdict,
    types.CellType: _cell,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinMethodType: _bound_builtin,
    types.MethodWrapperType: _bound_builtin,
    types.MappingProxyType: _proxy,
    functools.partial: _partial,
    object: _object,
    property: _property,
    staticmethod: _bound_to_nothing,
    classmethod: _bound_to_nothing,
    weakref.ReferenceType: _weakref,
    weakref.KeyedRef: _weakref,
    collections.OrderedDict: _ordered,
    DeferredText: _text,
    Traced: _array,
    Method: _array_method,
    Trampoline: _trampoline,
    NativeIterator: _native_iterator,
    TracedGenerator: _generator,
    torch.Generator: _random_numbers,
    **dict.fromkeys(iterator_positions.TYPES, _iterator),
    **dict.fromkeys(_REDUCIBLE, _reduced),
    **dict.fromkeys(_VIEWS, _view),
    **{cls: _exception for cls in vars(builtins).values() if is_a(cls, type) and issubclass(cls, BaseException)},
}
