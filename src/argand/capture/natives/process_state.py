"""Handlers of native code about the process as a whole: subclasses of a class, pickles, filters of warnings."""

from __future__ import annotations

import _hashlib
import _pickle
import _warnings
import contextvars
import hashlib
import types
import warnings
import weakref
from typing import Any

from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import held_items, is_a, mro_of
from argand.capture.facts.overlays import Shadow
from argand.capture.facts.sources import CallSource, ConstSource
from argand.capture.natives.builtin_methods import read_only
from argand.capture.objects.call_protocol.native_handlers import (
    Args,
    add_functions,
    add_methods,
    function,
    method,
    pure,
)
from argand.capture.record.tensor_attributes import any_held_back
from argand.capture.world import pending_effects
from argand.errors import GraphBreak, graph_break

_UNSET = object()


def held_in_context(variable: contextvars.ContextVar[object]) -> object:
    """What a variable holds in the context of the thread that asks, or `_UNSET` (a step of a source)."""
    return contextvars.ContextVar.get(variable, _UNSET)


def _not_in_context(name: str) -> GraphBreak:
    return graph_break(
        kind="call of a library that is not captured",
        context=f"ContextVar.{name}()",
        explanation="Variables of contexts are not captured.",
    )


class Variable:
    """A variable of contexts that the frame has set.

    Fields:
        before, value: what it held when the frame began, and what it holds now; `_UNSET` for nothing.
        tokens: those that may still be given back, by id, with what the variable held before each.
        effect: what sets it where the graph ends, in the list of all.
    """

    def __init__(self, before: object) -> None:
        self.before = self.value = before
        self.tokens: dict[int, tuple[object, object]] = {}
        self.effect: object = None

    def hold(self, state: CaptureState, owner: object, value: object) -> None:
        """It holds another value from here on."""
        self.value = value
        state.extra_effects[:] = [entry for entry in state.extra_effects if entry is not self.effect]
        self.effect = None
        if value is not self.before:
            state.extra_effects.append((contextvars.ContextVar.set, [owner, value], {}))
            self.effect = state.extra_effects[-1]


def _outside(interp: Interpreter, owner: object) -> object:
    """What a variable held when the frame began, which is guarded."""
    if any(fn is contextvars.ContextVar.reset and given[0] is owner for fn, given, _ in interp.state.extra_effects):
        raise _not_in_context("get")
    value = interp.unread(contextvars.ContextVar.get, owner, _UNSET)
    return interp.state.load_source(CallSource(interp.source(owner), held_in_context), value)


@method(contextvars.ContextVar, "get")
def _get_variable(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Read in the context of the call, like a global."""
    if not interp.is_outer(owner) or kwargs or len(args) > 1:
        return interp.native(contextvars.ContextVar.get, owner, *args, **kwargs)
    known = interp.state.variables.get(id(owner))
    value = _outside(interp, owner) if known is None else known.value
    if value is not _UNSET:
        return value
    if args:
        return args[0]
    default = interp.unread(contextvars.ContextVar.get, owner)  # which it was made with, or LookupError
    return interp.state.load_source(CallSource(interp.source(owner), contextvars.ContextVar.get), default)


@method(contextvars.ContextVar, "set")
def _set_variable(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """It is set where the graph ends, unless it was put back by then."""
    if not interp.is_outer(owner) or kwargs or len(args) != 1:
        raise _not_in_context("set")
    known = interp.state.variables.get(id(owner))
    if known is None:
        known = interp.state.variables[id(owner)] = Variable(_outside(interp, owner))
    context = contextvars.Context()  # whose token says what it would say
    if known.value is not _UNSET:
        interp.unread(context.run, contextvars.ContextVar.set, owner, known.value)
    token = interp.unread(context.run, contextvars.ContextVar.set, owner, args[0])
    known.tokens[id(token)] = (token, known.value)
    interp.born[id(token)] = (token, interp.number)  # one that is still there at a break cannot be made again
    known.hold(interp.state, owner, args[0])
    return token


@method(contextvars.ContextVar, "reset")
def _reset_variable(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
    """What was set before the frame, or before a graph break, is put back where the graph ends."""
    token = args[0] if len(args) == 1 and not kwargs else None
    known = interp.state.variables.get(id(owner))
    if known is not None and id(token) in known.tokens:
        known.hold(interp.state, owner, known.tokens.pop(id(token))[1])
        return None
    if type(token) is not contextvars.Token or not (interp.is_outer(owner) and interp.is_outer(token)):
        raise _not_in_context("reset")
    if known is not None or token.var is not owner or " used " in interp.unread(repr, token):
        raise _not_in_context("reset")
    interp.state.extra_effects.append((contextvars.ContextVar.reset, [owner, token], {}))
    return None


for _constructor in ("new", *(f"openssl_{name}" for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512"))):
    if hasattr(_hashlib, _constructor):
        add_functions(pure, getattr(_hashlib, _constructor))
_Digest: Any = type(hashlib.sha256())
add_methods(_Digest, read_only, "digest hexdigest copy")


@method(_Digest, "update")
def _update_digest(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    return interp.native(getattr(cls, name), owner, *[interp.plain(arg) for arg in args], **kwargs)


_ATOMS = frozenset((type(None), bool, int, float))
"""What is pickled the same wherever it stands; of equal strings, which of them are one object decides."""


class SameSubclasses:
    """A guard: the same classes derive from a class directly, in this order. It keeps none of them alive."""

    def __init__(self, cls: type, subclasses: list[type]) -> None:
        self.cls = weakref.ref(cls)
        self.subclasses = [weakref.ref(subclass) for subclass in subclasses]

    def __call__(self, _: object) -> bool:
        cls = self.cls()
        if cls is None:
            return False
        now: list[type] = type.__subclasses__(cls)
        return len(now) == len(self.subclasses) and all(a is b() for a, b in zip(now, self.subclasses))


@method(type, "__subclasses__")
def _subclasses(interp: Interpreter, cls: type, name: str, owner: Any, args: Args, kwargs: Kwargs) -> object:
    below: list[type] = interp.unread(type.__subclasses__, owner, *args, **kwargs)
    if any(id(subclass) in interp.local_classes for subclass in below):
        raise graph_break(
            kind="call of native code that is not known",
            context=f"{owner.__name__}.__subclasses__()",
            explanation="A class that the compiled function defines is among the subclasses of a class: each call "
            "would add one.",
            hints=("Define the class outside of the compiled function.",),
        )
    if id(owner) not in interp.local_classes:
        guard = CallSource(ConstSource(None), SameSubclasses(owner, below))
        interp.state.guards.add(guard, "id", True, shown=False)
    return below


def _is_plain(value: Any, remembered: list[object]) -> bool:
    """Whether a value is made of atoms, strings and containers alone; appends what pickles refer back to."""
    cls = type(value)
    if cls in _ATOMS:
        return True
    remembered.append(value)
    if cls in (str, bytes):
        return True
    return cls in (list, tuple, dict) and all(_is_plain(part, remembered) for part in held_items(value))


@function(_pickle.dumps)
def _dumps(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Of plain values that are each there once: what is there twice is pickled by which object it is."""
    given = [interp.plain(arg) for arg in args]
    remembered: list[object] = []
    plain = not kwargs and len(given) in (1, 2) and interp.is_constant(given[0]) and _is_plain(given[0], remembered)
    texts = [value for value in remembered if is_a(value, str | bytes)]
    if not plain or len(texts) != len(set(texts)) or len(remembered) != len(set(map(id, remembered))):
        raise graph_break(
            kind="call of a library that is not captured",
            context="pickle.dumps()",
            explanation="Pickling reads its argument as a whole, which is captured of plain values alone.",
        )
    return interp.unread(fn, *given)


@function(_warnings._filters_mutated)  # type: ignore[attr-defined]
def _filters_mutated(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> None:
    """What `catch_warnings` and `simplefilter` say after they wrote the filters, which happens where the graph ends."""
    interp.state.extra_effects.append((fn, list(args), dict(kwargs)))


def _diverted(interp: Interpreter) -> bool:
    """Whether the captured code has, for now, other filters of warnings or another way to show them than before."""
    state = interp.state
    namespace = vars(warnings)
    for place in (warnings, namespace):
        overlay = state.overlay.get(id(place))
        for name, value in overlay.values.items() if overlay is not None else ():
            if not interp.same_origin(value, namespace.get(name)):
                return True
    return any(
        entry.original is warnings.filters or entry.original is namespace
        for entry in pending_effects.pending(state)
        if is_a(entry, Shadow)
    )


def _action(interp: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """What the filters that captured code has put on do with a warning, whatever it says and wherever it is given."""
    message, category = args[0], _kind(args, kwargs)
    if type(message) is not str or not is_a(category, type):
        return None
    filters = interp.shadow(interp.getattr(warnings, "filters"))
    for entry in filters if type(filters) is list else ():
        if type(entry) is not tuple or len(entry) != 5:
            return None
        action, text, of, module, line = entry
        if is_a(of, type) and of in mro_of(category):
            return action if text is None and module is None and line == 0 else None
    return None


def _kind(args: Args, kwargs: Kwargs) -> object:
    category = kwargs.get("category", args[1])
    return UserWarning if category is None else category


def _is_recorded(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether a list of captured code's own gets what is shown (`catch_warnings(record=True)`); it then has it."""
    level = kwargs.get("stacklevel", 1 if args[2] is None else args[2])
    if type(level) is not int or not kwargs.keys() <= {"category", "stacklevel"} or args[3] is not None:
        return False
    frame = dict(enumerate(reversed(interp.frames), 1)).get(level)
    show, log = interp.getattr(warnings, "showwarning"), interp.getattr(warnings, "_showwarnmsg_impl")
    if frame is None or show is not warnings._showwarning_orig:  # type: ignore[attr-defined]
        return False
    if not is_a(log, types.BuiltinMethodType) or log.__name__ != "append" or interp.is_outer(log.__self__):
        return False
    kind = _kind(args, kwargs)
    message = interp.call(kind, [args[0]], {})
    entry = interp.call(warnings.WarningMessage, [message, kind, frame.code.co_filename, frame.lineno], {})
    interp.call(log, [entry], {})
    return True


@function(warnings.warn, warnings.warn_explicit)
def _warn(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> None:
    """Warnings are given where the graph ends, with the filters that hold then; those ignored here are none."""
    if _diverted(interp):
        given = [*args, *[None] * 4]
        action = _action(interp, given, kwargs) if fn is warnings.warn and args else None
        if action == "ignore" or (action == "always" and _is_recorded(interp, given, kwargs)):
            return
        raise graph_break(
            kind="native code that warns",
            context=fn.__name__,
            explanation="A warning is given while its filters, or what shows it, are others for a while.",
            hints=("Give the warning outside of `with warnings.catch_warnings():`.",),
        )
    if _is_heard(interp.state):
        raise graph_break(
            kind="native code that warns",
            context=fn.__name__,
            explanation="What shows warnings may read what captured code has written, or has been read by it.",
        )
    interp.say(fn, args, kwargs)


def _is_heard(state: CaptureState) -> bool:
    """Whether it matters to what is told of a warning, or to captured code, that it is given where the graph ends."""
    show, log = warnings.showwarning, vars(warnings)["_showwarnmsg_impl"]
    own = show is not warnings._showwarning_orig  # type: ignore[attr-defined]
    if not own and is_a(log, types.BuiltinMethodType) and log.__name__ == "append" and is_a(log.__self__, list):
        state.listener = log.__self__  # as `catch_warnings(record=True)` has it
        return state.is_touched(log.__self__)
    own = own or not is_a(log, types.FunctionType) or log.__module__ != warnings.__name__
    return own and any_held_back(state)
