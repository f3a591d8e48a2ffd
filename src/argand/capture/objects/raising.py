"""Raising and matching exceptions, exception groups, the two methods of a context manager."""

from __future__ import annotations

from typing import Any

from argand._core import _C
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, Frame
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.objects import descriptors, text
from argand.errors import GraphBreak, graph_break

NO_CAUSE = object()


def is_exception_class(obj: object) -> bool:
    return is_a(obj, type) and issubclass(obj, BaseException)


def _check_pattern(interp: Interpreter, pattern: object) -> None:
    for item in pattern if is_a(pattern, tuple) else (pattern,):
        if not is_exception_class(item):
            raise interp.throw(TypeError("catching classes that do not inherit from BaseException is not allowed"))


def matches(interp: Interpreter, exc: BaseException, pattern: object) -> bool:
    """`except pattern:` for an exception."""
    pattern = interp.plain(pattern)
    _check_pattern(interp, pattern)
    mro = type(exc).__mro__
    return any(_in_mro(item, mro) for item in (pattern if is_a(pattern, tuple) else (pattern,)))


def _in_mro(cls: object, mro: tuple[type, ...]) -> bool:
    return any(cls is item for item in mro)


def match_group(interp: Interpreter, exc: BaseException, pattern: object) -> tuple[object, Any]:
    """`except* pattern:`: (what does not match, what does)."""
    pattern = interp.plain(pattern)
    _check_pattern(interp, pattern)
    for item in pattern if is_a(pattern, tuple) else (pattern,):
        if issubclass(item, BaseExceptionGroup):
            raise interp.throw(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead."))
    if exc is None:
        return None, None
    if matches(interp, exc, pattern):
        if is_a(exc, BaseExceptionGroup):
            return None, exc
        group = interp.unread(BaseExceptionGroup, "", [exc])
        group.__traceback__ = exc.__traceback__
        return None, group
    if is_a(exc, BaseExceptionGroup):
        matching, rest = interp.native(exc.split, pattern)
        return rest, matching
    return exc, None


def _same_metadata(a: BaseException, b: BaseException) -> bool:
    return (
        is_a(a, BaseExceptionGroup)
        and is_a(b, BaseExceptionGroup)
        and getattr(a, "__notes__", None) is getattr(b, "__notes__", None)
        and a.__traceback__ is b.__traceback__
        and a.__cause__ is b.__cause__
        and a.__context__ is b.__context__
    )


def _leaf_ids(exc: BaseException, into: set[int]) -> None:
    if is_a(exc, BaseExceptionGroup):
        for item in exc.exceptions:
            _leaf_ids(item, into)
    else:
        into.add(id(exc))


def prepare_reraise_star(interp: Interpreter, original: BaseException, excs: list[Any]) -> object:
    """What leaves a `try ... except*` statement: the exceptions raised in its handlers and what was not handled."""
    if not excs:
        return None
    if not is_a(original, BaseExceptionGroup):
        return excs[0]
    raised: list[BaseException] = []
    unhandled: set[int] = set()
    for exc in excs:
        if exc is None:
            continue
        if _same_metadata(exc, original):
            _leaf_ids(exc, unhandled)
        else:
            raised.append(exc)
    rest = original.split(lambda e: id(e) in unhandled)[0] if unhandled else None
    if not raised:
        return rest
    if rest is not None:
        raised.append(rest)
    return raised[0] if len(raised) == 1 else interp.unread(BaseExceptionGroup, "", raised)


def _instantiate(interp: Interpreter, cls: object) -> BaseException:
    value = interp.call(cls)
    if not is_a(value, BaseException):
        raise interp.throw(
            TypeError(
                f"calling {text.to_repr(interp, cls)} should have returned an instance of BaseException, "
                f"not {text.to_repr(interp, type(value))}"
            )
        )
    return value


def do_raise(interp: Interpreter, exc: object, cause: object) -> ObservedException:
    """`raise exc` or `raise exc from cause`."""
    if is_exception_class(exc):
        value = _instantiate(interp, exc)
    elif is_a(exc, BaseException):
        value = exc
    else:
        return interp.throw(TypeError("exceptions must derive from BaseException"))
    if interp.is_outer(value):
        raise _raises_outer(value)
    if cause is not NO_CAUSE:
        if is_exception_class(cause):
            cause = _instantiate(interp, cause)
        elif cause is not None and not is_a(cause, BaseException):
            return interp.throw(TypeError("exception causes must derive from BaseException"))
        value.__cause__ = cause
    return interp.throw(value)


def _raises_outer(exc: BaseException) -> GraphBreak:
    """Raising changes the exception (traceback, context): one that existed before is raised for real."""
    stop = graph_break(kind="raise of an exception from outside", context=type(exc).__name__)
    stop.exception = exc
    return stop


def reraise_current(interp: Interpreter, frame: Frame) -> ObservedException:
    """`raise` without arguments."""
    exc = frame.exc.topmost()
    if exc is None:
        return interp.throw(RuntimeError("No active exception to reraise"))
    return ObservedException(exc)


def context_methods(interp: Interpreter, manager: object) -> tuple[object, object]:
    """Bound `__enter__` and `__exit__`, looked up on the type."""
    name = _C.type_name(type(manager))
    enter = descriptors.lookup_special(interp, manager, "__enter__")
    if enter is NULL:
        raise interp.throw(TypeError(f"'{name}' object does not support the context manager protocol"))
    leave = descriptors.lookup_special(interp, manager, "__exit__")
    if leave is NULL:
        raise interp.throw(
            TypeError(f"'{name}' object does not support the context manager protocol (missed __exit__ method)")
        )
    return enter, leave
