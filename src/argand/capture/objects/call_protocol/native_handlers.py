"""What native code argand knows: registries of handlers that the `natives_*` modules fill, and policies of functions.

A handler decides how a native callable is run so that nothing it does escapes capture: it may run it on resolved
arguments, emulate it, or end the graph. What has no handler is not called at all.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

from argand.capture.facts import callables, classify
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import ABSENT, Function, Kwargs, enter, names_here
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.facts.values.symbolic import STANDS_FOR
from argand.capture.objects import abstract_classes, names, text
from argand.capture.objects.call_protocol import lru_caches
from argand.capture.record import numpy_functions
from argand.capture.sizes import symbolic_ops
from argand.errors import graph_break

Args = list[Any]
"""Arguments of native code that is emulated: a list of the handler's own."""
Handler = Callable[["Interpreter", Function, Args, Kwargs], object]
"""(interpreter, callable, positional arguments, keyword arguments) -> result."""
MethodHandler = Callable[["Interpreter", type, str, object, Args, Kwargs], object]
"""(interpreter, class that has the method, its name, self, positional arguments, keyword arguments) -> result."""

FUNCTIONS: Final[dict[int, Handler]] = {}
"""By id of the callable (kept in KEEP): builtins, C functions, classes, and Python functions with special treatment."""
METHODS: Final[dict[tuple[int, str], MethodHandler]] = {}
"""By (id of class, name): methods of C classes."""
CLASS_METHODS: Final[dict[tuple[int, str], Handler]] = {}
"""By (id of class, name): methods called on the class, such as dict.fromkeys."""
CALLABLE_OBJECTS: Final[dict[type, Handler]] = {}
"""By type of the callable object: operator.itemgetter and the like."""
KEEP: Final[list[object]] = []
SAFE_NEW: Final[set[type]] = {object}
"""C classes whose `__new__` touches nothing but its arguments."""
STORING_NEW: Final[set[type]] = {object}
"""Of these, those whose `__new__` and `__init__` only store their arguments, or take them one by one."""
ITERABLE_NEW: Final[set[type]] = set()
"""Of these, those whose `__new__`, and not `__init__`, iterates over its first argument."""
OF_PACKAGES: Final[dict[str, Handler]] = {}
"""By module and name: C++ functions of packages, which may be imported later."""
PURE_MODULES: Final[set[str]] = set()
"""Python modules whose functions only compute on their arguments: called natively on constants."""
BREAK_MODULES: Final[dict[str, str]] = {}
"""Modules whose functions are not inlined, and whose native code is not called, with the reason."""
HELPER_FILES: Final[set[str]] = set()
"""Files of argand's own interpreted helpers."""


def INLINE(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """The policy of ordinary Python functions (never called)."""
    return NotImplemented


def function(*fns: object) -> Callable[[Handler], Handler]:
    """Register the handler of callables."""

    def register(handler: Handler) -> Handler:
        add_functions(handler, *fns)
        return handler

    return register


def method(cls: type, *names: str) -> Callable[[MethodHandler], MethodHandler]:
    """Register the handler of methods of a C class."""

    def register(handler: MethodHandler) -> MethodHandler:
        add_methods(cls, handler, " ".join(names))
        return handler

    return register


def add_methods(cls: type, handler: MethodHandler, names: str) -> None:
    """Register one handler for several methods; some may be marked as of some versions (`handlers.names_here`)."""
    for name in _methods_here(cls, names):
        enter(METHODS, (id(cls), name), handler)


def add_class_methods(cls: type, handler: Handler, names: str) -> None:
    """Register one handler for methods that are called on the class, such as `dict.fromkeys`."""
    for name in _methods_here(cls, names):
        enter(CLASS_METHODS, (id(cls), name), handler)


def _methods_here(cls: type, names: str) -> list[str]:
    KEEP.append(cls)
    listed = names_here(names)
    present = [name for name in listed if any(name in vars(klass) for klass in cls.__mro__)]
    ABSENT.extend(f"{cls.__name__}.{name}" for name in listed if name not in present)
    return present


def other_methods(cls: type, handler: MethodHandler, without: Collection[str] = ()) -> None:
    """Register one handler for all methods of a class that have none yet."""
    KEEP.append(cls)
    for name in dir(cls):
        if name not in without:
            METHODS.setdefault((id(cls), name), handler)


def add_functions(handler: Handler, *fns: object) -> None:
    """Register one handler for several callables."""
    for fn in fns:
        KEEP.append(fn)
        enter(FUNCTIONS, id(fn), handler)


def add_callable_objects(handler: Handler, *classes: type) -> None:
    """Register one handler for calls of the objects of several classes."""
    for cls in classes:
        enter(CALLABLE_OBJECTS, cls, handler)


def replace_function(fn: object, handler: Handler) -> None:
    """The handler of a callable from now on, whatever it was."""
    KEEP.append(fn)
    FUNCTIONS[id(fn)] = handler


# ---- ready-made handlers -------------------------------------------------------------------------------------------


def pure(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """Call natively: nothing but the arguments is read. Ends the graph if one has Python-level special methods."""
    args = [interp.plain(arg) for arg in args]
    kwargs = {name: interp.plain(value) for name, value in kwargs.items()}
    for arg in (*args, *kwargs.values()):
        if not interp.benign(arg):
            raise python_object_in_native(fn, arg)
    return interp.native(fn, *args, **kwargs)


def constructor(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """Call natively and do not look into the arguments: they are only stored."""
    return new_in_this_call(interp, interp.unread(fn, *args, **kwargs))


def new_in_this_call(interp: Interpreter, instance: object) -> object:
    """What a C class has made: noted, where another call of transformed code makes another one."""
    if type(instance) in classify.OF_ONE_CALL or is_a(instance, property):
        interp.state.note_local(instance)
    return instance


def python_object_in_native(fn: object, arg: object) -> BaseException:
    """The graph break for native code that would run Python methods of an argument."""
    return graph_break(
        kind="Python object used by native code",
        context=f"{text.callable_name(fn)} on {type(arg).__name__}",
        explanation=f"{text.callable_name(fn)} is native code and would call Python methods of {type(arg).__name__}.",
    )


def breaking(kind: str, explanation: str, hint: str) -> Handler:
    """A handler that ends the graph."""

    def handler(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
        raise graph_break(kind=kind, context=text.callable_name(fn), explanation=explanation, hints=(hint,))

    return handler


def native_fallback(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """A native callable without a handler: torch's own, or the end of the graph."""
    if interp.dynamic and callables.text_of(fn, "__module__").startswith("numpy"):
        symbolic_ops.plain_arguments(args, kwargs)
    result = numpy_functions.call(interp, fn, args, kwargs)
    if result is NotImplemented:
        result = interp.torch_call(fn, args, kwargs)
    if result is not NotImplemented:
        return result
    handler = OF_PACKAGES.get(f"{callables.text_of(fn, '__module__')}.{callables.text_of(fn, '__name__')}")
    if handler is not None:
        return handler(interp, fn, args, kwargs)
    raise unknown_native(fn)


def _of_library(name: str, reason: str) -> BaseException:
    return graph_break(kind="call of a library that is not captured", context=name, explanation=reason)


def _break_for(reason: str) -> Handler:
    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        raise _of_library(text.callable_name(fn), reason)

    return handler


def module_of_native(fn: Function) -> str:
    """The module that a native callable comes from: a function's own, a method's that of its class."""
    module = callables.text_of(fn, "__module__")
    if module:
        return module
    owner = callables.fact(fn, "__objclass__") or callables.fact(fn, "__self__")
    return module_of(owner if is_a(owner, type) else type(owner))


def unknown_native(fn: Function) -> BaseException:
    """The graph break for a native callable that no row says how to run."""
    name = callables.spoken(fn) or type(fn).__name__
    reason = BREAK_MODULES.get(module_of_native(fn))
    if reason is not None:
        return _of_library(name, reason)
    return graph_break(
        kind="call of native code that is not known",
        context=name,
        explanation=f"{name} is native code (C or C++) that may read or change anything.",
    )


# ---- policy of Python functions ------------------------------------------------------------------------------------


def policy_of(interp: Interpreter, fn: types.FunctionType) -> Handler:
    """What is done with calls of a Python function; decided once per code object."""
    handler = FUNCTIONS.get(id(fn))
    if handler is not None:
        return handler
    if fn.__code__.co_filename in HELPER_FILES:
        return INLINE
    module = fn.__module__
    if not is_a(module, str):
        module = str(fn.__globals__.get("__name__", ""))
    if interp.wants_torch_call(fn, module):
        return lambda interp, fn, args, kwargs: interp.torch_call(fn, args, kwargs)
    root = module.partition(".")[0]
    reason = BREAK_MODULES.get(module) or BREAK_MODULES.get(root)
    if reason is not None:
        return _break_for(reason)
    if module in PURE_MODULES:
        return native_on_constants
    if hasattr(fn, "dispatch") and fn.__code__.co_filename == functools.__file__:
        return _singledispatch
    return INLINE


_WITH_ATTRIBUTES: Final = (types.FunctionType, types.ModuleType)
"""Guarded by which object they are: what code reads of their attributes is not."""


def native_on_constants(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """A Python function that only computes: natively if all it gets is constant, else inlined."""
    values = [*args, *kwargs.values()]
    if all(interp.is_constant(value) and not is_a(value, _WITH_ATTRIBUTES) for value in values):
        args = [interp.plain(arg) for arg in args]
        kwargs = {name: interp.plain(value) for name, value in kwargs.items()}
        return interp.native(fn, *args, **kwargs)
    return NotImplemented


def _singledispatch(interp: Interpreter, fn: Function, args: list[object], kwargs: dict[str, object]) -> object:
    """functools.singledispatch: the implementation is looked up in the guarded registry, past the dispatch cache."""
    dispatch = names.closed_over(interp, fn, "dispatch")
    registry = names.closed_over(interp, dispatch, "registry") if is_a(dispatch, types.FunctionType) else NULL
    if not args or not is_a(registry, dict):
        return NotImplemented
    if type(names.closed_over(interp, dispatch, "dispatch_cache")) is not weakref.WeakKeyDictionary:
        return NotImplemented  # a cache of the program's own wants to be asked
    known = interp.shadow(registry)
    cls = args[0].__class__ if type(args[0]) in STANDS_FOR else type(args[0])
    implementation = known.get(cls, NULL)
    if implementation is NULL:
        implementation = interp.unread(functools._find_impl, cls, known)  # type: ignore[attr-defined]
        for base in known:
            if is_a(base, type):
                abstract_classes.note(interp, cls, base, issubclass(cls, base))
    return interp.call(implementation, args, kwargs)


def call_lru_wrapper(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    """`functools.lru_cache`: see lru_caches.py."""
    handler = FUNCTIONS.get(id(fn))
    if handler is not None:
        return handler(interp, fn, args, kwargs)
    module = str(lru_caches.behind(interp, fn).__module__)
    if interp.wants_torch_call(fn.__wrapped__, module):
        result = interp.torch_call(fn, args, kwargs)
        if result is not NotImplemented:
            return result
    if module in PURE_MODULES and all(interp.is_constant(v) for v in (*args, *kwargs.values())):
        return interp.native(fn, *args, **kwargs)
    return lru_caches.call(interp, fn, args, kwargs)
