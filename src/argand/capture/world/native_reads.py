"""What native code may be given: the check at the one door through which capture runs C code for the program.

C code reads the state of what it gets past every source and guard. So an object that existed before the frame goes in
only if its state is guarded (a value, or a stand-in), if it is a container's shadow, or if what the code reads of it is
spelled out at the call (`Interpreter.reading`, `Interpreter.unread`). Anything else ends the graph.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch

from argand.capture.facts import callables, classify, numpy_settings
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Access
from argand.capture.facts.kinds import is_a, namespace, per_class, raw_items, raw_iter
from argand.capture.facts.typefacts import (
    BOUND_METHODS,
    CONTAINERS,
    is_foreign_value,
    is_immutable_base,
    is_native,
)
from argand.capture.facts.values import ragged_sizes
from argand.capture.world import identity
from argand.errors import GraphBreak, graph_break
from argand.graph.python_operators import COMPARE

VALUE: Final = "value"
"""Guarded as a whole when it was loaded."""
BASE: Final = "base"
"""Of a Python subclass of a number, str or bytes: C code reads what it holds as one of those."""
CONTAINER: Final = "container"
INSTANCE: Final = "instance"
"""Of a Python class over `object`: C code sees its class and which object it is, attributes by name only."""
OPAQUE: Final = "opaque"
"""Holds what C code put there."""

TORCH: Final = "torch"
"""How functions of torch read objects: those with `__torch_function__` answer themselves."""

_MOVE_SIZES: Final[frozenset[object]] = frozenset((torch.Size, tuple, list, operator.getitem, isinstance, type, id))
"""What hands on the sizes of nested tensors, and looks at none."""

READS: Final[dict[str, tuple[str, ...]]] = {
    "compare": tuple(op.method for op in COMPARE.values()),
    "hash": ("__hash__", "__eq__"),
    "text": ("__str__", "__repr__", "__format__"),
}
"""Kinds of reading -> the special methods that do it. Where they are `object`'s own, all they read is which object
it is."""

_BASES: Final[tuple[tuple[type, object], ...]] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
)


@per_class
def kind(cls: type) -> str:
    """Which of the kinds above objects of a class are that existed before the frame."""
    if classify.handling_of_type(cls) not in ("object", "function") or is_foreign_value(cls):
        return VALUE
    if issubclass(cls, CONTAINERS):
        return CONTAINER
    if cls in (types.FunctionType, types.MethodType):
        return INSTANCE
    natives = [base for base in cls.__mro__ if base is not object and is_native(base)]
    if natives and all(is_immutable_base(base) for base in natives):
        return BASE
    return OPAQUE if natives else INSTANCE


def base_value(obj: object) -> object:
    """What an object of a subclass of a number, str or bytes holds as one, past any method of the subclass."""
    for base, value_of in _BASES:
        if is_a(obj, base):
            return value_of(obj)
    raise TypeError(f"{type(obj).__name__} derives from no builtin value")


def refuse_python_sequence(interp: Access, cls: type) -> None:
    """End the graph if a list or tuple given to torch counts or gives its items in Python: some of torch's functions
    ask these methods, others look into the list itself."""
    interp.note_class(cls)
    if any(interp.types.python_level(cls, name) for name in ("__len__", "__getitem__", "__iter__")):
        raise graph_break(
            kind="Python object used by native code",
            context=cls.__name__,
            explanation=f"torch would call the Python methods of {cls.__name__}, a kind of list, unseen.",
        )


def guard_base(interp: Access, obj: object) -> None:
    """Require that an outer object of kind BASE holds what it holds now."""
    interp.state.guard(interp.outer[id(obj)], "base_value", base_value(obj))


def check(interp: Access, fn: Any, values: Iterable[object], reads: str = "") -> None:
    """End the graph if native code would get an object from outside whose state it may read unseen.

    Arguments:
        fn: the native callable.
        values: its arguments.
        reads: what it reads of objects, a key of READS; "": anything.
    """
    settled = interp.settled
    for value in values:
        if type(value) not in settled:
            _check(interp, fn, value, reads, None)
    if type(fn) in BOUND_METHODS and type(fn.__self__) not in settled:
        _check(interp, fn, fn.__self__, reads, None)


def _check(interp: Access, fn: Function, obj: object, reads: str, seen: set[int] | None) -> None:
    if numpy_settings.of_numpy(type(obj)):
        numpy_settings.rely(interp.state, callables.text_of(fn, "__name__"))
    if id(obj) in interp.outer and not (is_a(obj, CONTAINERS) and kind(type(obj)) == VALUE):
        _check_outer(interp, fn, obj, reads)
        return
    parts = held(obj)
    if parts is None:
        if (
            type(obj) is ragged_sizes.RAGGED
            and reads not in ("compare", TORCH)
            and not any(fn is moves for moves in _MOVE_SIZES)
        ):
            raise ragged_sizes.refused(callables.text_of(fn, "__qualname__"))
        return
    seen = set() if seen is None else seen
    if id(obj) in seen:
        return
    seen.add(id(obj))
    settled = interp.settled
    for part in parts:
        if type(part) not in settled:
            _check(interp, fn, part, reads, seen)


def _check_outer(interp: Access, fn: Function, obj: Any, reads: str) -> None:
    cls = type(obj)
    sort = kind(cls)
    if reads == TORCH:
        if interp.types.lookup(cls, "__torch_function__") is not NULL:  # which is asked first, and interpreted
            return
        reads = ""
    if cls in BOUND_METHODS:
        if not is_a(obj.__self__, types.ModuleType | type | None):
            _check(interp, fn, obj.__self__, reads, None)
        return
    if cls is types.MethodType and reads:
        _check(interp, fn, obj.__func__, reads, None)
        _check(interp, fn, obj.__self__, reads, None)
        return
    if sort == VALUE:
        if is_a(obj, enum.Enum):
            _check_member(interp, fn, obj, reads)
        return
    if sort == BASE:
        interp.note_class(cls)  # it may gain what this code asks for
        guard_base(interp, obj)
        return
    if cls is weakref.ref and reads == "hash":  # it is hashed and compared as what it refers to
        referent = obj()
        if id(referent) in interp.outer:
            _check_outer(interp, fn, referent, reads)
            return
    if sort == CONTAINER and interp.shadow(obj) is obj:  # () is its own shadow
        return
    if sort != CONTAINER and reads and identity_decides(interp, cls, reads):
        interp.note_class(cls)
        if reads == "compare":
            identity.compared(interp.state, obj)
        else:
            interp.pin(obj)
        return
    raise unseen_object(obj, fn)


def _check_member(interp: Access, fn: Function, member: enum.Enum, reads: str) -> None:
    """A member of an enum is a value as far as its name and value are: C code may get at what those hold.

    Comparing reads neither of them (a number or text that the member itself is cannot change), hashing the name alone.
    """
    if reads == "compare":
        return
    own = namespace(member) or {}
    todo = [own.get(name) for name in (("_name_",) if reads == "hash" else ("_name_", "_value_"))]
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if type(part) is str or id(part) in seen or part is member:
            continue
        part = interp.plain(part)
        seen.add(id(part))
        if is_a(part, CONTAINERS):
            todo.extend(held(part) or ())
        elif id(part) in interp.outer:
            _check_outer(interp, fn, part, reads)
        elif not classify.is_constant(part):  # the code gets the object itself: no stand-in, no symbolic number
            raise unseen_object(part, fn)


def identity_decides(interp: Access, cls: type, reads: str) -> bool:
    """Whether comparing, hashing or printing objects of a class reads nothing but which object it is."""
    own = vars(object)
    return all(interp.types.lookup(cls, name) is own[name] for name in READS[reads])


def held(obj: Any) -> Iterable[object] | None:
    """What native code that gets a local object reaches through it; None: nothing."""
    cls = type(obj)
    if is_a(obj, CONTAINERS):
        if is_a(obj, dict):
            return [part for item in raw_items(obj) for part in item]
        return raw_iter(obj)
    if cls is slice:
        return (obj.start, obj.stop, obj.step)
    if is_a(obj, functools.partial):
        return (obj.func, obj.args, obj.keywords)
    if is_a(obj, BaseException):
        return (vars(BaseException)["args"].__get__(obj),)
    if is_a(obj, types.SimpleNamespace):
        return (namespace(obj),)
    if cls is types.MethodType:
        return (obj.__self__,)
    return None


def unseen_object(obj: object, fn: Function | None = None) -> GraphBreak:
    """The graph break for native code that would look into an outer object that no guard can follow."""
    cls = type(obj)
    name = callables.text_of(fn, "__qualname__")
    called = f" by {name}()" if name else ""
    return graph_break(
        kind="iterator from outside" if hasattr(cls, "__next__") else "native object from outside",
        context=f"{cls.__name__}{called}" if called else cls.__name__,
        explanation=f"A {cls.__name__} that existed before the compiled function would be used unseen{called}.",
        hints=("Pass a list or tuple instead.",),
    )
