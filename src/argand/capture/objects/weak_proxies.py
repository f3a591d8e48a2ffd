"""`weakref.proxy` of an object: its attributes are those of the object, which is read under guards of its own."""

from __future__ import annotations

import weakref
from typing import Any, Final

from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import held_items, is_a
from argand.capture.facts.sources import CallSource
from argand.capture.world.pending_effects import may_be_gone, may_have_ended

PROXIES: Final = frozenset((weakref.ProxyType, weakref.CallableProxyType))
CONTAINERS: Final = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class _Catcher:
    """C code of proxies hands what is behind one to the operator of the other operand, and runs nothing of it."""

    def __add__(self, other: object) -> object:
        return NotImplemented if type(other) in PROXIES else (other,)


_CATCHER: Any = _Catcher()


def referent_of(proxy: object) -> object:
    """The object behind a proxy (a step of a source); NULL where there is none any more."""
    try:
        return (_CATCHER + proxy)[0] if type(proxy) in PROXIES else NULL
    except ReferenceError:
        return NULL


def behind(interp: Interpreter, proxy: object) -> object:
    """What stands for the object behind a proxy from before the frame; the proxy itself where that is not known."""
    if not interp.is_outer(proxy):
        return proxy
    owner = interp.unread(referent_of, proxy)
    if owner is NULL:
        return proxy
    if may_have_ended(interp.state, owner):
        raise may_be_gone(owner)
    return interp.state.load_source(CallSource(interp.source(proxy), referent_of), owner)


def check_held(interp: Interpreter, references: object) -> None:
    """End the graph where something that a weak container from before the frame refers to may be gone by now."""
    held = held_items(references) if is_a(references, dict | set) else ()  # else the program has put it there
    referents = [item() for item in held if is_a(item, weakref.ref)]
    alive = [referent for referent in referents if referent is not None]
    if may_have_ended(interp.state, *alive):
        raise may_be_gone(alive[0])
