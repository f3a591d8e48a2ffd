"""What happens when C code that capture runs for the program calls a Python function.

The interpreter runs methods of the program itself, so that what they do can be recorded, undone and repeated. C code
calls them behind its back: their effects would come once now and once more when the captured code runs. So before such
a function runs it is judged here (`_C.call_watched`), and the graph breaks instead: then Python runs the operation.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import sysconfig
import types
import weakref
from typing import Final

from argand.capture.facts.code import skip
from argand.capture.facts.handlers import Args, Function
from argand.capture.facts.kinds import mro_of
from argand.errors import GraphBreak, graph_break
from argand.own_code import OWN_FOLDER

_OWN: Final = OWN_FOLDER + os.sep
_namespace: Function = type.__dict__["__dict__"].__get__
_STDLIB: Final = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARIES: Final = frozenset(("numpy",))
"""Packages whose Python code only computes."""


def judge(function: types.FunctionType, args: Args) -> bool | GraphBreak | None:
    """What becomes of a Python function that native code calls: see `_C.call_watched`."""
    code = function.__code__
    if _unasked(function, args):
        return None
    if trusted(code.co_filename):
        return None
    if _of_a_library(code.co_filename) or skip.makes_named_tuple(code) or is_read_only(function):
        return True
    return graph_break(
        kind="Python object used by native code",
        context=code.co_qualname,
        explanation=f"Native code would call {code.co_qualname}, which is Python code, unseen.",
    )


@functools.lru_cache(maxsize=4096)
def trusted(filename: str) -> bool:
    """Whether code is argand's or torch's: what it calls in turn it calls on purpose."""
    return filename.startswith((_OWN, "<eval_with_key>", "<frozen", "<argand ")) or skip.is_torch(filename)


@functools.lru_cache(maxsize=4096)
def _of_a_library(filename: str) -> bool:
    library = skip.library_of(filename)
    return library in _LIBRARIES or (library != "" and filename.startswith(_STDLIB) and "-packages" not in filename)


def _unasked(function: types.FunctionType, args: Args) -> bool:
    """Whether the interpreter calls the function by itself, whatever the native code is: for an object that dies, for
    the garbage collector, for a signal."""
    if not args:
        return False
    first = args[0]
    if any(isinstance(arg, weakref.ReferenceType) and arg() is None for arg in args):
        return True
    if len(args) == 2 and (isinstance(args[1], types.FrameType) or (type(first) is str and first in ("start", "stop"))):
        return True
    return any(_namespace(klass).get("__del__") is function for klass in mro_of(type(first)))


# ---- functions that do nothing but read ------------------------------------------------------------------------------

_PURE: Final = frozenset((
    hash, isinstance, issubclass, type, id, len, tuple, frozenset, str, repr, int, float, bool, abs, round, min,
    max, sum, getattr, hasattr, super, format, sorted, all, any, zip, list, set, dict, range, ord, bytes, divmod,
    pow, callable, enumerate, map, object,
))  # fmt: skip
_READING_METHODS: Final = frozenset((
    "__hash__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__len__", "__bool__",
    "__repr__", "__str__", "__format__", "__index__", "lower", "upper", "casefold", "strip", "items",
    "keys", "values", "encode", "startswith", "endswith", "as_integer_ratio", "is_integer", "copy", "union",
    "join", "format", "count", "index",
))  # fmt: skip
_EFFECTS: Final = frozenset((
    "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_ATTR",
    "DELETE_SUBSCR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_DEREF", "IMPORT_NAME", "IMPORT_STAR", "SEND",
    "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "LOAD_BUILD_CLASS", "BEFORE_WITH", "BEFORE_ASYNC_WITH",
    "EXEC", "PUSH_NULL", "PRINT_EXPR", "SETUP_ANNOTATIONS",
))  # fmt: skip


def is_read_only(function: types.FunctionType) -> bool:
    """Whether a function only reads, as far as its own code goes; the Python functions that it calls are not looked at.

    Calls are known by what is called: a builtin that is a name of the code, or a method by its name.
    """
    shape = _shape(function.__code__)
    return shape is not None and all(
        name not in function.__globals__ and getattr(builtins, name, None) in _PURE for name in shape
    )


@functools.lru_cache(maxsize=4096)
def _shape(code: types.CodeType) -> frozenset[str] | None:
    """Names that must be builtins for the code to be without effects; None if it has some."""
    called = set()
    for part in _parts(code):
        receiver = ""
        for op in dis.get_instructions(part):
            if op.opname in _EFFECTS or (op.opname == "BINARY_OP" and op.argrepr.endswith("=")):
                return None
            method = op.opname in ("LOAD_METHOD", "LOAD_SUPER_ATTR") or (
                op.opname == "LOAD_ATTR" and "NULL" in op.argrepr
            )
            if method and op.argval not in _READING_METHODS and (receiver, op.argval) != ("__dict__", "get"):
                return None
            receiver = op.argval if op.opname == "LOAD_ATTR" else ""
            if op.opname == "LOAD_GLOBAL" and "NULL" in op.argrepr:
                called.add(op.argval)
    return frozenset(called)


def _parts(code: types.CodeType) -> list[types.CodeType]:
    """The code and that of the functions in it."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [code, *[part for constant in inner for part in _parts(constant)]]
