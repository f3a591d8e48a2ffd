"""Abstract base classes: that a class is none of theirs may change, as anybody can register it later."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from argand.capture.kinds import is_a
from argand.capture.sources import CallSource, ConstSource

if TYPE_CHECKING:
    from argand.capture.interpreter import Interpreter


class Unregistered:
    """A guard: none of these classes has been registered with the abstract one beside it.

    Registrations anywhere in the process are counted by `abc`; nothing is looked at while that number stays.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[type, type]] = []
        self.token = abc.get_cache_token()

    def __call__(self, _: object) -> bool:
        token = abc.get_cache_token()
        if token == self.token:
            return True
        if any(issubclass(cls, base) for cls, base in self.pairs):
            return False
        self.token = token
        return True


def answer(interp: Interpreter, question: Any, value: Any, cls: Any, base: Any) -> bool:
    """isinstance or issubclass (`question`) of `value`, which is of the class `cls` or that class itself."""
    found = bool(interp.native(question, value, base))
    if not found and type(base) is not type and is_a(cls, type):
        note(interp, cls, base)
    return found


def note(interp: Interpreter, cls: type, base: Any) -> None:
    """The program was told that `cls` is no subclass of `base`."""
    if interp.concrete or not issubclass(type(base), abc.ABCMeta):
        return
    if id(cls) in interp.local_classes or id(base) in interp.local_classes:
        return
    found = interp.unregistered
    if found is None:
        found = interp.unregistered = Unregistered()
        interp.state.guards.add(CallSource(ConstSource(None), found), "id", True, shown=False)
    if (cls, base) not in found.pairs:
        found.pairs.append((cls, base))
