"""What C code keeps of a callable (its name, its owner), read past every attribute lookup of the program's own.

`getattr` on an object of the program's classes would run its `__getattr__` or a property, unseen.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Final

from argand.capture.facts.handlers import Function
from argand.capture.facts.kinds import is_a, module_of, mro_of, namespace, per_class
from argand.capture.facts.typefacts import BOUND_METHODS, is_native

_PLAIN: Final = BOUND_METHODS | {
    types.FunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
}
_OF_CLASS: Final[dict[str, Any]] = {
    "__name__": vars(type)["__name__"].__get__,
    "__qualname__": vars(type)["__qualname__"].__get__,
    "__module__": module_of,
}


@per_class
def _only_c(cls: type) -> bool:
    """Attributes of objects of a class are found by C code that runs none of the program's."""
    if cls in _PLAIN:
        return True
    if not is_native(cls):
        return False
    spaces = [vars(type)["__dict__"].__get__(each) for each in mro_of(cls)]
    lookups = [space["__getattribute__"] for space in spaces if "__getattribute__" in space]
    if lookups[0] is vars(object)["__getattribute__"]:
        return not any("__getattr__" in space for space in spaces)
    return module_of(cls).partition(".")[0] in ("torch", "numpy", "functools")


def fact(fn: object, name: str) -> Any:
    """`fn.<name>` if that is a fact that C code keeps, else None."""
    if is_a(fn, type):
        read = _OF_CLASS.get(name)
        return None if read is None else read(fn)
    if type(fn) is types.MethodType:
        return fn.__self__ if name == "__self__" else fact(fn.__func__, name)
    return getattr(fn, name, None) if _only_c(type(fn)) else None


def text_of(fn: object, name: str) -> str:
    """`fact`, where it is a string; else ""."""
    text = fact(fn, name)
    return text if type(text) is str else ""


def spoken(fn: Function) -> str | None:
    """How CPython names a callable in messages about its arguments; None where it would ask the program's code."""
    qualname = text_of(fn, "__qualname__")
    if qualname:
        module = fact(fn, "__module__")
        return f"{module}.{qualname}()" if type(module) is str and module != "builtins" else f"{qualname}()"
    if type(fn) is functools.partial and not namespace(fn):
        inner = spoken(fn.func)
        return None if inner is None else f"partial of {inner}"
    return None
