"""Abstract base classes: that a class is none of theirs may change, as anybody can register it later."""

from __future__ import annotations

import abc
import sys
import types
import typing
from typing import Any

from argand import errors
from argand.capture.facts.abc_non_members import Unregistered
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, mro_of
from argand.capture.facts.sources import CallSource, ConstSource, DictItemSource, instance_dict
from argand.capture.facts.typefacts import is_heap
from argand.capture.objects import instances

_PROTOCOL: Any = type(typing.Protocol)


def is_protocol(cls: type) -> bool:
    """Whether instance checks ask for members, or refuse to."""
    return is_a(cls, _PROTOCOL) and bool(cls._is_protocol)


def answer(interp: Interpreter, question: Function, value: object, cls: object, base: Any) -> bool:
    """isinstance or issubclass (`question`) of `value`, which is of the class `cls` or that class itself."""
    if question is isinstance and is_protocol(base):
        _protocol(interp, value, base)
    if is_a(cls, type):
        interp.types.rely_on(cls)  # its bases decide
    if is_a(base, abc.ABCMeta):
        interp.types.namespaces.ask(base)
    result = bool(interp.unread(question, value, base))
    if type(base) is not type and is_a(cls, type):
        note(interp, cls, base, result)
    return result


def _protocol(interp: Interpreter, value: object, base: Any) -> None:
    """Guard which members of a runtime protocol an object has, in its class and in itself.

    Raises:
        GraphBreak: having a member cannot be told without running code of the program, or has changed in captured code.
    """
    cls = type(value)
    names = sorted(typing._get_protocol_attrs(base))  # type: ignore[attr-defined]
    lookup = interp.types.lookup
    metas = [lookup(cls, name) for name in names]
    if interp.is_tensor(value) or not is_heap(cls):
        return
    interp.note_class(cls)
    asked = sys.version_info < (3, 12)  # hasattr, which runs properties
    if asked and (lookup(cls, "__getattr__") is not NULL or any(type(meta) is property for meta in metas)):
        raise undecided(base, "asks an object with properties or __getattr__")
    if not interp.is_outer(value):
        return
    if any(name in interp.state.overlay_names(value) for name in names):
        raise undecided(base, "asks for an attribute that was set before")
    source = interp.source(value)
    for name, meta in zip(names, metas):
        if type(meta) is types.MemberDescriptorType:
            present = hasattr(value, name)
            interp.state.guard(source, "has_attr" if present else "not_has_attr", name)
    held = instances.own_dict(value)
    if held is not None:
        base_dict = instance_dict(interp.types, source, value)
        for name in names:
            interp.state.guard(base_dict, "has_key" if name in held else "not_has_key", name)
            if name in held:  # None does not count as a method
                item = DictItemSource(base_dict, name)
                interp.state.guard(item, "is_none" if held[name] is None else "not_none")


def undecided(base: type, why: str) -> errors.GraphBreak:
    """The graph break for an instance check that capture cannot answer."""
    return errors.graph_break(
        kind="instance check of a protocol",
        context=base.__name__,
        explanation=f"isinstance(..., {base.__name__}) {why}.",
    )


def note(interp: Interpreter, cls: type, base: Any, is_subclass: bool) -> None:
    """The program was told whether `cls` is a subclass of `base`."""
    if not issubclass(type(base), abc.ABCMeta):
        return
    if id(cls) in interp.local_classes or id(base) in interp.local_classes:
        return
    if is_subclass:
        pairs = interp.state.guards.registered
        if not any(base is one for one in mro_of(cls)) and not any(
            one is cls and other is base for one, other in pairs
        ):
            pairs.append((cls, base))
        return
    unregistered = interp.unregistered
    if unregistered is None:
        unregistered = interp.unregistered = Unregistered()
        interp.state.guards.add(CallSource(ConstSource(None), unregistered), "id", True, shown=False)
    if not any(one is cls and other is base for one, other in unregistered.pairs):
        unregistered.pairs.append((cls, base))


def by_mark(interp: Interpreter, meta: type, value: Any) -> bool:
    """Whether `isinstance(value, Parameter)`, or Buffer, is decided by an attribute that the tensor has or has not."""
    return meta.__module__ == "torch.nn.parameter" and interp.is_tensor(value)
