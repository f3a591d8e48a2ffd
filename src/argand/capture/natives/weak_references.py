"""Weak references: an object may be gone in eager that capture, and who called the frame, still hold."""

from __future__ import annotations

import gc
import types
import weakref

from torch import nn

from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import held_items, is_a, namespace, raw_items
from argand.capture.facts.sources import CallSource
from argand.capture.natives.builtin_methods import comparing
from argand.capture.objects.call_protocol import classes
from argand.capture.objects.call_protocol.native_handlers import (
    SAFE_NEW,
    STORING_NEW,
    Args,
    add_callable_objects,
    add_methods,
    function,
)
from argand.capture.world.pending_effects import may_be_gone, may_have_ended


def dereference(ref: Function) -> object:
    """What a weak reference refers to (a step of a source)."""
    return ref()


@function(weakref.ref)
def _ref(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    ref = interp.unread(fn, *classes.with_callback(interp, list(args)), **kwargs)
    if type(ref) is not weakref.ref or ref.__callback__ is not None:
        return ref
    if not interp.is_outer(args[0]) or interp.is_tensor(args[0]):
        return ref
    own = CallSource(interp.source(args[0]), weakref.ref)  # the one that it has, if any
    return interp.state.load_source(own, ref)


SAFE_NEW.add(weakref.ref)
STORING_NEW.add(weakref.ref)


def _is_held(interp: Interpreter, tensor: object) -> bool:
    """Whether a variable of the program, or what these hold, is a tensor that the graph computes: eager has it."""
    state = interp.state
    todo = [value for frame in interp.frames for value in (*frame.fast, *frame.stack)]
    seen = set[int]()
    while todo:
        value = todo.pop()
        if value is tensor:
            return True
        if id(value) in seen:
            continue
        seen.add(id(value))
        if (shadow := state.shadows.get(id(value))) is not None:
            value = shadow.shadow
        if (overlay := state.overlay.get(id(value)) or state.additions.get(id(value))) is not None:
            todo += overlay.values.values()
        elif is_a(value, dict):
            todo += [item for _, item in raw_items(value)]
        elif is_a(value, list | tuple | set | frozenset):
            todo += held_items(value)
        elif is_a(value, types.CellType):
            todo += gc.get_referents(value)
        if id(value) in state.local_objects or is_a(value, nn.Module):
            todo.append(namespace(value))
    return False


def _call_ref(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    referent = interp.unread(fn, *args, **kwargs)
    info = interp.state.tensors.get(id(referent))
    if info is not None and info.real is None:
        ended = not _is_held(interp, referent)
    else:
        outer = info is not None or interp.is_outer(referent) or interp.is_outer(fn)
        ended = outer and may_have_ended(interp.state, referent, None if info is None else info.real)
    if ended:
        raise may_be_gone(referent)
    if interp.is_outer(fn):
        return interp.state.load_source(CallSource(interp.source(fn), dereference), referent)
    return referent


add_callable_objects(_call_ref, weakref.ref, weakref.KeyedRef)
add_methods(weakref.ref, comparing, "__eq__ __ne__ __hash__")
add_methods(weakref.ref, lambda interp, cls, name, owner, args, kwargs: None, "__init__")
