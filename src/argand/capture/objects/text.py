"""str, repr and format as the interpreted program sees them."""

from __future__ import annotations

import importlib
import types
from typing import Any, Final

from argand._core import _C
from argand.capture.facts import callables
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.typefacts import CONTAINERS
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicNumber, SymbolicSize
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.objects import descriptors
from argand.capture.world import native_reads
from argand.outcomes.fingerprints import alike_everywhere

_MODULE_TEXT: Final = importlib._bootstrap._module_repr  # type: ignore[attr-defined]
"""What a module's `__repr__`, which is C code, calls: it reads attributes of the module and of its spec."""


# ---- text ----------------------------------------------------------------------------------------------------------


def to_str(interp: Interpreter, value: object) -> object:
    """`str(value)`."""
    cls = type(value)
    if cls is str or cls is TaintedText:
        return value
    if cls in interp.fast:
        return interp.taint() if interp.is_tensor(value) else str(interp.native(str, value))
    interp.note_class(cls)  # whose text methods, or lack of them, decide
    if interp.types.python_level(cls, "__str__"):
        return _text(interp, "__str__", descriptors.call_special(interp, value, "__str__"))
    if interp.types.lookup(cls, "__str__") is object.__str__ or interp.is_tensor(value):
        return to_repr(interp, value)
    if is_a(value, BaseException):
        return descriptors.call_special(interp, value, "__str__")
    return str(interp.native(str, interp.plain(value)))


def to_repr(interp: Interpreter, value: object) -> Any:
    """`repr(value)`."""
    cls = type(value)
    if interp.is_tensor(value) and not interp.types.python_level(cls, "__repr__"):
        return interp.taint()
    if interp.types.python_level(cls, "__repr__"):
        return _text(interp, "__repr__", descriptors.call_special(interp, value, "__repr__"))
    if is_a(value, BaseException):
        return descriptors.call_special(interp, value, "__repr__")
    if is_a(value, types.ModuleType) and interp.types.lookup(cls, "__repr__") is types.ModuleType.__repr__:
        return interp.call(_MODULE_TEXT, (value,))
    if is_a(value, type):
        for name in ("__module__", "__qualname__"):  # what the text is made of
            interp.try_attr(value, name)
    if not is_a(value, CONTAINERS):
        interp.pin(value)  # its address may be in the text
    if not alike_everywhere(value):
        interp.state.guards.of_process = "the text of an object"
    return str(
        interp.reading("text", repr, interp.textual_items(value) if is_a(value, CONTAINERS) else interp.plain(value))
    )


def _text(interp: Interpreter, method: str, result: object) -> object:
    if not is_a(result, str) and type(result) is not TaintedText:
        raise interp.throw(TypeError(f"{method} returned non-string (type {_C.type_name(type(result))})"))
    return result


def to_format(interp: Interpreter, value: object, spec: object) -> object:
    """`format(value, spec)`."""
    cls = type(value)
    if interp.dynamic and (cls in SYMBOLIC or cls is SymbolicSize):
        unread = _of_numbers(interp, value, spec)
        if unread is not None:
            return unread
    if cls in interp.fast:
        return interp.taint() if interp.is_tensor(value) else str(interp.native(format, value, spec))
    if cls is TaintedText:
        return value
    interp.note_class(cls)
    if interp.types.python_level(cls, "__format__"):
        result = descriptors.call_special(interp, value, "__format__", spec)
        if not is_a(result, str) and type(result) is not TaintedText:
            raise interp.throw(TypeError(f"__format__ must return a str, not {_C.type_name(type(result))}"))
        return result
    if interp.is_tensor(value):
        return interp.taint()  # Tensor.__format__ looks at the values of what has one element
    if type(spec) is str and spec == "":
        return to_str(interp, value)
    return str(interp.native(format, interp.plain(value), spec))


def _of_numbers(interp: Interpreter, value: object, spec: object) -> TaintedText | None:
    """A text that nobody may look at, of a number that varies or a size, where formatting does not raise."""
    items = tuple.__iter__(value) if is_a(value, SymbolicSize) else (value,)
    numbers = [item for item in items if is_a(item, SymbolicNumber)]
    dynamics = interp.state.graph.dynamics
    if dynamics is None or dynamics.unbacked is not None or type(spec) is not str:
        return None
    if spec and is_a(value, SymbolicSize):
        return None
    try:
        interp.native(format, numbers[0].hint, spec)
    except ObservedException:
        return None
    return interp.taint(numbers=numbers)


# ---- names -----------------------------------------------------------------------------------------------------------


def callable_name(fn: Any) -> str:
    """How CPython names a callable in messages about its arguments.

    Raises:
        GraphBreak: it would ask code of the program for that.
    """
    name = callables.spoken(fn)
    if name is None:
        raise native_reads.unseen_object(fn)
    return name
