"""Helpers that transformed code calls at run time to rebuild objects. Plain functions of plain arguments."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import torch

from argand._core import _C
from argand.bytecode import generators_at_yields
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a, is_struct_sequence, namespace
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.typefacts import is_native
from argand.capture.metadata import refused_writes
from argand.capture.torch_functions import hops
from argand.graph.dtensors import awaited

_WRITTEN_THEIR_WAY: Final = (type, types.ModuleType, types.FunctionType, torch.Generator)
_read: Final[Function] = object.__getattribute__  # names of the module's own: calls ask for them each time
_write: Final[Function] = object.__setattr__
_put_in_order: Final[Function] = collections.OrderedDict.__setitem__


def new_tuple(items: tuple[object, ...], cls: type) -> object:
    """A tuple of a subclass, without running its constructor."""
    if cls is torch.Size:
        return torch.Size(items)
    if is_struct_sequence(cls):
        return cls(items)
    return tuple.__new__(cls, items)


def new_dict(items: dict[object, object], cls: type) -> object:
    """A dict of a subclass, without running its constructor."""
    if not issubclass(cls, collections.OrderedDict):
        plain: dict[object, object] = dict.__new__(cast(Any, cls))
        dict.update(plain, items)
        return plain
    mapping: Any = collections.OrderedDict.__new__(cls)
    for key, value in items.items():
        _put_in_order(mapping, key, value)
    return mapping


def new_defaultdict(items: dict[object, object], factory: Callable[[], object] | None, cls: type) -> object:
    mapping: collections.defaultdict[object, object] = collections.defaultdict.__new__(cls)
    mapping.default_factory = factory
    dict.update(mapping, items)
    return mapping


def new_list(items: list[object], cls: type) -> object:
    sequence: list[object] = list.__new__(cls)
    list.extend(sequence, items)
    return sequence


def new_set(items: list[object], cls: type) -> object:
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, items)
    elements: Any = set.__new__(cls)
    set.update(elements, items)
    return elements


def new_deque(items: list[object], maxlen: int | None, cls: type) -> object:
    sequence: collections.deque[object] = collections.deque.__new__(cls)
    collections.deque.__init__(sequence, items, maxlen)
    return sequence


def bound(owner: object, descriptor: types.MethodDescriptorType) -> object:
    """A method of a C class bound to an object of a class that overrides it."""
    return descriptor.__get__(owner)


def new_object(cls: type) -> object:
    """An instance without state."""
    return object.__new__(cls)


def new_exception(args: Args, cls: type[BaseException]) -> BaseException:
    """An exception with what C code keeps in it, as far as that comes from `args`; no code of the user's runs."""
    base: Any = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    exception: BaseException = base.__new__(cls, *args)
    with contextlib.suppress(TypeError, ValueError):  # args that the program has set, and base takes others
        base.__init__(exception, *args)
    exception.args = args
    return exception


_HEAP_TYPE = 1 << 9


def exception_members(obj: BaseException) -> dict[str, object]:
    """Fields of an exception that `new_exception` does not make as they are: `name` of an ImportError, say."""
    if is_a(obj, BaseExceptionGroup):
        return {}
    plain = new_exception(vars(BaseException)["args"].__get__(obj), type(obj))
    members = {
        name: kind
        for cls in type(obj).__mro__
        if not cls.__flags__ & _HEAP_TYPE
        for name, kind in vars(cls).items()
        if isinstance(kind, types.MemberDescriptorType) and not name.startswith("__")
    }

    def differs(member: types.MemberDescriptorType) -> bool:
        return member.__get__(obj) is not member.__get__(plain)

    return {name: member.__get__(obj) for name, member in sorted(members.items()) if differs(member)}


def slots_of(obj: object) -> dict[str, object] | None:
    """What the members hold that `__slots__` of its classes made; None if one cannot be set by its name."""
    slots: dict[str, object] = {}
    seen: set[str] = set()
    for base in type(obj).__mro__:
        for name, member in namespace(base).items() if not is_native(base) else ():
            if type(member) is types.MemberDescriptorType:
                try:
                    value = member.__get__(obj)
                except AttributeError:
                    continue
                if name in seen:
                    return None
                slots[name] = value
        seen.update(namespace(base))
    return slots


def plain_value(obj: Any, base: Any) -> object:
    """What an instance of a subclass of int, float, str, bytes or complex holds, past the methods of the subclass."""
    if base is bytes:
        return base.__getitem__(obj, slice(None))
    return getattr(base, f"__{base.__name__}__")(obj)


def new_value(value: Any, cls: type) -> object:
    """An instance of a subclass of int, float, str or bytes."""
    base = next(base for base in (int, float, str, bytes, complex) if issubclass(cls, base))
    return base.__new__(cls, value)


def new_function(
    code: types.CodeType,
    globals_: dict[str, object],
    name: str,
    qualname: str,
    defaults: tuple[object, ...] | None,
    kwdefaults: dict[str, object] | None,
    closure: tuple[types.CellType, ...] | None,
    attributes: dict[str, object],
) -> types.FunctionType:
    function = types.FunctionType(code, globals_, name, defaults, closure)
    function.__kwdefaults__ = kwdefaults
    function.__qualname__ = qualname
    for key, value in attributes.items():
        if key in ("__doc__", "__module__", "__annotations__"):
            setattr(function, key, value)
        else:
            function.__dict__[key] = value
    return function


def called_at(
    function: Callable[..., object], globals_: dict[str, object], filename: str, name: str, line: int
) -> types.FunctionType:
    """What calls a function from a line of the program's: warnings and logs that ask who says it are told of that."""

    def caller(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    code = caller.__code__.replace(co_filename=filename, co_name=name, co_firstlineno=line - 1)  # it calls a line below
    return types.FunctionType(code, globals_, name, None, caller.__closure__)


def new_cell() -> types.CellType:
    return types.CellType()


def suspended_generator(*args: object) -> object:
    """See `generators_at_yields.make`; to start it is no part of what is captured."""
    return _C.run_with_callback(None, None, generators_at_yields.make, args)


def fill_cell(cell: types.CellType, value: object) -> None:
    cell.cell_contents = value


def fill_list(sequence: list[object], items: list[object]) -> None:
    list.extend(sequence, items)


def extend(container: list[object] | collections.deque[object] | set[object], items: list[object]) -> None:
    """Add to a list or deque at its end, or to a set."""
    (container.update if isinstance(container, set) else container.extend)(items)


def fill_dict(mapping: dict[object, object], items: dict[object, object]) -> None:
    put = collections.OrderedDict.__setitem__ if isinstance(mapping, collections.OrderedDict) else dict.__setitem__
    for key, value in items.items():
        put(mapping, key, value)


def replace_elements(elements: list[object], items: dict[int, object]) -> None:
    for index, value in items.items():
        elements[index] = value


def set_attributes(obj: object, attributes: dict[str, object]) -> None:
    """Into the instance's `__dict__`, which `namespace` has found before: no class hides it."""
    if not _C.set_in_object(obj, attributes):
        _read(obj, "__dict__").update(attributes)


def namespace_of(obj: object) -> object:
    """Its `__dict__`, past any `__getattribute__` of the class."""
    return _read(obj, "__dict__")


def set_slots(obj: object, attributes: dict[str, object]) -> None:
    """Slots, C-level attributes and those of a tensor, past any `__setattr__` of the class."""
    for key, value in attributes.items():
        object.__setattr__(obj, key, value)


def new_partial(func: Function, args: Args, kwargs: Kwargs, cls: type) -> object:
    return cls(func, *args, **kwargs)


def call_reduced(function: Function, args: Args) -> object:
    return function(*args)


def set_state(obj: Any, state: object) -> None:
    obj.__setstate__(state)


def iterator_by_index(obj: Iterable[object], last: int) -> object:
    """The iterator of an object that has `__getitem__` alone, behind the element `last`."""
    iterator = iter(obj)
    set_state(iterator, last + 1)
    return iterator


def _iterated(owner: Any, kind: str, backwards: bool) -> Iterator[object]:
    """An iterator over a set ("") or over a view of a dict ("keys") or of an OrderedDict ("odict keys")."""
    if not kind:
        return (frozenset if isinstance(owner, frozenset) else set).__iter__(owner)
    *ordered, name = kind.split()
    view = getattr(collections.OrderedDict if ordered else dict, name)(owner)
    return reversed(view) if backwards else iter(view)


def iterator_at(owner: object, kind: str, backwards: bool, consumed: int) -> object:
    """An iterator over a dict or set that has given `consumed` elements."""
    iterator = _iterated(owner, kind, backwards)
    for _ in range(consumed):
        next(iterator)
    return iterator


def exhausted(iterator: Iterator[object]) -> Iterator[object]:
    """The iterator, which is empty, after it has said so."""
    next(iterator, None)
    return iterator


def all_of(owner: object, kind: str, backwards: bool) -> list[object]:
    """All that `iterator_at(owner, kind, backwards, 0)` gives."""
    return list(_iterated(owner, kind, backwards))


# ---------------------------------------------------------------------- effects on objects that existed before


def write_list(original: list[object], items: list[object]) -> None:
    list.__setitem__(original, slice(None), items)


def write_dict(original: dict[object, object], items: dict[object, object]) -> None:
    """Only what changed is touched, unless the order of keys did."""
    ordered = isinstance(original, collections.OrderedDict)
    base: type[dict[object, object]] = collections.OrderedDict if ordered else dict
    kept = [key for key in base.keys(original) if key in items]
    new = list(items)
    if kept == new[: len(kept)]:
        for key in [key for key in base.keys(original) if key not in items]:
            base.__delitem__(original, key)
    else:
        base.clear(original)
    for key, value in items.items():
        if not dict.__contains__(original, key) or dict.__getitem__(original, key) is not value:
            base.__setitem__(original, key, value)


def reinsert_last(original: dict[object, object], _: object) -> None:
    """What iterators over a dict see when keys were deleted and set again: more elements than there were."""
    base: type[dict[object, object]] = (
        collections.OrderedDict if isinstance(original, collections.OrderedDict) else dict
    )
    if original:
        key = next(base.__reversed__(original))
        value = base.pop(original, key)
        base.__setitem__(original, key, value)


def write_set(original: set[object], items: list[object]) -> None:
    wanted = set(items)
    set.difference_update(original, [item for item in set.__iter__(original) if item not in wanted])
    set.update(original, items)
    if any(one is not other for one, other in zip(set.__iter__(original), items)):
        set.clear(original)  # the order of a set depends on how it was filled
        set.update(original, items)


def write_deque(original: collections.deque[object], items: list[object]) -> None:
    if len(original) == len(items):  # elements set, which iterators over it do not mind
        for i, (old, new) in enumerate(zip(list(collections.deque.__iter__(original)), items)):
            if old is not new:
                collections.deque.__setitem__(original, i, new)
        return
    collections.deque.clear(original)
    collections.deque.extend(original, items)


def write_attribute(original: object, value: object, name: str) -> None:
    """At the level of object.__setattr__ (classes: type.__setattr__); of a generator of random numbers, its state."""
    if not issubclass(type(original), _WRITTEN_THEIR_WAY):
        _write(original, name, value)
    elif isinstance(original, type):
        type.__setattr__(original, name, value)
    elif isinstance(original, torch.Generator):
        original.set_state(value)
    else:
        setattr(original, name, value)


def as_parameter(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf itself, which gradients flow to, as a Parameter."""
    leaf.__class__ = torch.nn.Parameter
    return leaf


def new_generator(state: torch.Tensor) -> torch.Generator:
    """A generator of random numbers in this state."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def delete_attribute(original: object, name: str) -> None:
    """The object has no such attribute afterwards; captured code may have been what made it, and then there is none."""
    with contextlib.suppress(AttributeError):
        if isinstance(original, type):
            type.__delattr__(original, name)
        else:
            object.__delattr__(original, name)


def another(value: complex) -> complex:
    """An object of its own that holds the same number."""
    return type(value)(value.real, value.imag) if isinstance(value, complex) else value * 1.0


def as_subclass(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """A result of the graph as an instance of the program's class of tensors."""
    if tensor.is_leaf and tensor.requires_grad:  # one that the graph made: another object would be none
        tensor.__class__ = cls
        return tensor
    return torch.Tensor.as_subclass(tensor, cls)


def helpers_of(builder: GraphBuilder, value: object) -> list[Function]:
    """What is called on a result of the graph, as the graph gives it, for what autograd knows of it."""
    helpers = [of_inference_mode] if refused_writes.leaves_inference_mode(builder.tensors, value) else []
    return [*helpers, passed_on] if id(value) in builder.passed_on else helpers


def of_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    """A result of the graph that the program made in inference mode: in the same memory, if the backend did not."""
    if tensor.is_inference() or tensor.layout is not torch.strided:
        return tensor
    with torch.inference_mode():
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def passed_on(tensor: torch.Tensor) -> torch.Tensor:
    """A result of the graph that an autograd.Function of the program gave back as it was given."""
    return hops.passed_on(tensor)[0]


def awaiting(tensor: torch.Tensor, completed: bool) -> torch.Tensor:
    """A result of the graph as what a functional collective gives; nothing is left to wait for."""
    wrapped = awaited(tensor)
    wrapped.completed = completed
    return wrapped


def array_of(tensor: torch.Tensor, scalar: bool, writeable: bool, strides: tuple[int, ...]) -> object:
    """The array that shares the memory of a tensor, or the numpy scalar (called by transformed code).

    Arguments:
        strides: numpy's, which differ from torch's where there is no second item to step to.
    """
    array = tensor.detach().numpy()
    if scalar:
        return array[()]
    if min(strides, default=0) < 0:
        array = array[tuple([slice(None, None, -1 if step < 0 else 1) for step in strides])]
    if array.strides != strides:
        array = numpy.lib.stride_tricks.as_strided(array, array.shape, strides)
    if not writeable:
        array.flags.writeable = False
    return array
