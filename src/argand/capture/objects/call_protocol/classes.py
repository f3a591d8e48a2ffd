"""Making things: functions, classes, instances; the compiler's intrinsics."""

from __future__ import annotations

import functools
import types
import typing
import weakref
from typing import Any, Final, cast

from argand._core import _C
from argand.capture.facts.frames import NULL, Frame
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import answers_itself, is_a, module_of
from argand.capture.facts.values.array_value import Method, Traced
from argand.capture.facts.values.symbolic import STANDS_FOR
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.objects import descriptors, generators, iteration, operators
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.objects.raising import prepare_reraise_star
from argand.capture.sizes import wrappers
from argand.capture.world import native_reads
from argand.errors import graph_break
from argand.graph.python_operators import POSITIVE
from argand.graph.wrappers import is_wrapper

# ---- functions -----------------------------------------------------------------------------------------------------


def make_function(
    interp: Interpreter, frame: Frame, code: types.CodeType, closure: tuple[Any, ...] | None
) -> types.FunctionType:
    """MAKE_FUNCTION: a real function object over real cells."""
    if closure is None and code.co_freevars:
        closure = tuple(types.CellType() for _ in code.co_freevars)  # 3.13 sets the real one afterwards
    function = types.FunctionType(code, frame.globals, code.co_name, None, closure)
    function.__qualname__ = code.co_qualname
    interp.note_local_function(function)
    return function


def with_closure(
    interp: Interpreter, function: types.FunctionType, closure: tuple[types.CellType, ...]
) -> types.FunctionType:
    """SET_FUNCTION_ATTRIBUTE with a closure: a function object cannot get one later, so a new one is made."""
    code = function.__code__
    closed = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, closure)
    closed.__qualname__ = code.co_qualname
    closed.__kwdefaults__ = function.__kwdefaults__
    closed.__annotations__ = function.__annotations__
    interp.note_local_function(closed)
    return closed


def set_function_attribute(function: types.FunctionType, flag: int, value: Any) -> None:
    """One of the optional parts of a function."""
    if flag == 1:
        function.__defaults__ = value
    elif flag == 2:
        function.__kwdefaults__ = value
    elif flag == 4:
        function.__annotations__ = value if is_a(value, dict) else dict(zip(value[::2], value[1::2]))


# ---- class statements ----------------------------------------------------------------------------------------------


def build_class(interp: Interpreter, fn: object, args: list[Any], kwargs: dict[str, object]) -> object:
    """`__build_class__(func, name, *bases, metaclass=..., **kwargs)`."""
    func, name, *given = args
    kwargs = dict(kwargs)
    bases = _resolve_bases(interp, tuple(given))
    explicit = kwargs.pop("metaclass", NULL)
    meta: object = explicit if explicit is not NULL else (type(bases[0]) if bases else type)
    if is_a(meta, type):
        meta = _winner(interp, meta, bases)
    prepare = interp.try_attr(meta, "__prepare__")
    namespace = {} if prepare is NULL else interp.call(prepare, (name, bases), kwargs)
    if not is_a(namespace, dict) and interp.types.lookup(type(namespace), "__getitem__") is NULL:
        shown = meta.__name__ if is_a(meta, type) else "<metaclass>"
        text = f"{shown}.__prepare__() must return a mapping, not {_C.type_name(type(namespace))}"
        raise interp.throw(TypeError(text))
    cell = _run_body(interp, func, namespace)
    if bases != tuple(given):
        operators.setitem(interp, namespace, "__orig_bases__", tuple(given))
    cls = interp.call(meta, (name, bases, namespace), kwargs)
    if is_a(cls, type) and is_a(cell, types.CellType):
        _check_class_cell(interp, cell, cls)
    return cls


def _check_class_cell(interp: Interpreter, cell: types.CellType, cls: type) -> None:
    try:
        inside = cell.cell_contents
    except ValueError:
        text = f"__class__ not set defining {cls.__name__!r} as {cls!r}. Was __classcell__ propagated to type.__new__?"
        raise interp.throw(RuntimeError(text)) from None
    if inside is not cls:
        raise interp.throw(TypeError(f"__class__ set to {inside!r} defining {cls.__name__!r} as {cls!r}"))


def _run_body(interp: Interpreter, func: types.FunctionType, namespace: object) -> object:
    program = interp.session.program(func.__code__)
    body: Any = func  # (whether types.FunctionType has __builtins__ depends on what else mypy checks)
    frame = Frame(
        program,
        [NULL] * program.nslots,
        func.__globals__,
        body.__builtins__,
        interp.frames[-1].exc if interp.frames else interp.base_exc,
        func,
    )
    frame.locals = namespace
    interp.run(frame)
    return frame.result


def _resolve_bases(interp: Interpreter, given: tuple[object, ...]) -> tuple[object, ...]:
    bases: list[object] = []
    for base in given:
        if not is_a(base, type):
            entries = interp.try_attr(base, "__mro_entries__")
            if entries is not NULL:
                resolved = interp.call(entries, (given,))
                if not is_a(resolved, tuple):
                    raise interp.throw(TypeError("__mro_entries__ must return a tuple"))
                bases.extend(resolved)
                continue
        bases.append(base)
    return tuple(bases)


def _winner(interp: Interpreter, meta: type, bases: tuple[object, ...]) -> type:
    for base in bases:
        kind = type(base)
        if issubclass(meta, kind):
            continue
        if issubclass(kind, meta):
            meta = kind
            continue
        raise interp.throw(
            TypeError(
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the "
                "metaclasses of all its bases"
            )
        )
    return meta


_SAFE_HOOK_MODULES: Final = frozenset(
    {"builtins", "typing", "abc", "enum", "collections.abc", "functools", "dataclasses"}
)


def new_type(interp: Interpreter, meta: type, args: list[Any], kwargs: dict[str, object]) -> object:
    """`type.__new__(meta, name, bases, namespace, **kwargs)`: native, where it runs no Python code behind our back."""
    if len(args) != 3:
        return interp.native(type.__new__, meta, *args, **kwargs)
    name, bases, namespace = args
    if is_a(interp.types.lookup(meta, "mro"), types.FunctionType):
        raise graph_break(
            kind="class definition",
            context=name if type(name) is str else "?",
            explanation="A metaclass with an mro() of its own runs while the class is made.",
        )
    plain = interp.plain(namespace)
    pending = []
    for key, value in list(plain.items()) if is_a(plain, dict) else []:
        hook = interp.types.lookup(type(value), "__set_name__")
        if is_a(hook, types.FunctionType) and module_of(type(value)) not in _SAFE_HOOK_MODULES:
            pending.append((key, value, hook))
    hook = _init_subclass_of(interp, bases)
    if pending or hook is not None:
        return _new_type_with_hooks(interp, meta, name, bases, plain, kwargs, pending, hook)
    cls = interp.unread(type.__new__, meta, name, bases, plain, **kwargs)
    interp.note_local_class(cls)
    return cls


def _init_subclass_of(interp: Interpreter, bases: object) -> object:
    for base in bases if is_a(bases, tuple) else ():
        if is_a(base, type):
            hook = interp.types.lookup(base, "__init_subclass__")
            func = getattr(hook, "__func__", None)
            if is_a(func, types.FunctionType) and func.__module__ not in _SAFE_HOOK_MODULES:
                return hook
    return None


def _new_type_with_hooks(
    interp: Interpreter,
    meta: object,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, object],
    kwargs: dict[str, object],
    pending: list[tuple[str, object, Any]],
    hook: object,
) -> object:
    """As `type.__new__`, with `__set_name__` and `__init_subclass__` interpreted."""
    held = dict(namespace)
    for key, _value, _hook in pending:
        held[key] = None
    if hook is not None:
        cls = _new_quietly(meta, name, bases, held)
    else:
        cls = interp.unread(type.__new__, meta, name, bases, held, **kwargs)
    interp.note_local_class(cls)
    for key, value, _hook in pending:
        type.__setattr__(cls, key, value)
    for key, value, set_name in pending:
        interp.call(set_name, (value, cls, key))
    if hook is not None:
        parent = interp.call(super, (cls, cls))
        interp.call(interp.getattr(parent, "__init_subclass__"), (), kwargs)
    return cls


class _Quiet:
    """First of the bases while a class is made, so that its bases' `__init_subclass__` does not run natively."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Nothing: the real one is interpreted afterwards."""


class _QuietSlots:
    """The same for bases whose instances have no dict."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Nothing: the real one is interpreted afterwards."""


def _new_quietly(meta: Any, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> type:
    """`type.__new__` without `__init_subclass__`: with another first base, that is removed once the class exists."""
    for quiet in (_Quiet, _QuietSlots):
        try:
            cls = type.__new__(meta, name, (quiet, *bases), dict(namespace))
            cls.__bases__ = bases
        except TypeError:
            continue
        return cls
    raise graph_break(
        kind="class definition",
        context=name,
        explanation="A class whose bases define __init_subclass__ cannot be made while capturing.",
    )


# ---- instances -----------------------------------------------------------------------------------------------------


def call_class(interp: Interpreter, cls: type, args: list[object], kwargs: dict[str, object]) -> object:
    """`cls(*args, **kwargs)`."""
    if cls is type and len(args) == 1 and not kwargs:
        return type_of(args[0])
    meta = type(cls)
    if meta is not type:
        hook = interp.types.lookup(meta, "__call__")
        if is_a(hook, types.FunctionType):
            result = interp.torch_call(cls, args, kwargs)
            if result is not NotImplemented:
                return result
            return interp.call(hook, [cls, *args], kwargs)
        if not is_a(hook, types.WrapperDescriptorType):  # a static or class method, a callable object of any kind
            return interp.call(descriptors.bind(interp, hook, cls, meta), tuple(args), kwargs)
    if interp.is_torch_class(cls):
        result = interp.torch_call(cls, args, kwargs)
        if result is not NotImplemented:
            return result
    return type_call(interp, cls, args, kwargs)


def type_of(value: object) -> type:
    """`type(value)`."""
    if type(value) is TaintedText:
        return float if value.like == 0.0 else str
    if type(value) in STANDS_FOR or type(value) is Traced or type(value) is Method:
        return value.__class__
    return types.GeneratorType if type(value) is generators.TracedGenerator else type(value)


def type_call(interp: Interpreter, cls: type, args: list[object], kwargs: dict[str, object]) -> object:
    """What `type.__call__` does: `__new__`, then `__init__`."""
    if answers_itself(cls):
        raise graph_break(
            kind="class that its metaclass compares or reads",
            explanation="A class is called whose metaclass has an __eq__, __hash__ or __getattribute__ of its own.",
        )
    interp.note_class(cls)
    facts = interp.types
    if is_wrapper(cls):
        wrapper = wrappers.new_wrapper(interp.state, cls, tuple(args), kwargs)
        if wrapper is not NotImplemented:
            return wrapper
    if facts.lookup(cls, "__del__") is not NULL:
        raise has_finalizer(cls)
    new = facts.lookup(cls, "__new__")
    if is_a(new, staticmethod):
        new = new.__func__
    init = facts.lookup(cls, "__init__")
    if is_a(new, types.FunctionType):
        instance = interp.call(new, [cls, *args], kwargs)
    elif new is object.__new__ and init is not object.__init__:
        instance = native_handlers.new_in_this_call(interp, interp.unread(object.__new__, cls))
    elif is_a(new, types.BuiltinFunctionType):
        instance = native_new(interp, cast(type, new.__self__), [cls, *args], kwargs)
    else:
        instance = interp.call(descriptors.bind(interp, new, NULL, cls), [cls, *args], kwargs)
    if cls not in type(instance).__mro__:  # what `__subclasscheck__` says does not matter
        return instance
    if cls is not type(instance):
        init = facts.lookup(type(instance), "__init__")
    if is_a(init, types.FunctionType):
        result = interp.call(init, [instance, *args], kwargs)
        if result is not None:
            raise interp.throw(TypeError(f"__init__() should return None, not '{_C.type_name(type(result))}'"))
    elif init is not object.__init__:
        interp.call(descriptors.bind(interp, init, instance, cls), args, kwargs)
    elif new is object.__new__ and (args or kwargs):
        interp.unread(object.__init__, instance, *args, **kwargs)
    return instance


def has_finalizer(cls: type) -> BaseException:
    """The graph break for making an object that runs code when it dies, which must happen once and at its time."""
    return graph_break(
        kind="object with a finalizer",
        context=cls.__name__,
        explanation=f"{cls.__name__} has a __del__ method, which would run while the function is captured.",
    )


def native_new(interp: Interpreter, owner: type, args: list[Any], kwargs: dict[str, object]) -> object:
    """`owner.__new__(cls, ...)` of a C class."""
    if owner is type:
        return new_type(interp, args[0], args[1:], kwargs)
    if args and is_a(args[0], type) and interp.types.lookup(args[0], "__del__") is not NULL:
        raise has_finalizer(args[0])
    if owner in native_handlers.SAFE_NEW or issubclass(owner, BaseException):
        if owner in native_handlers.ITERABLE_NEW and len(args) > 1:
            take = iteration.native_elements if owner is frozenset else iteration.native_iterable
            args = [args[0], take(interp, args[1], owner is tuple), *args[2:]]
        elif owner not in native_handlers.STORING_NEW and not issubclass(owner, BaseException):
            args = [args[0], *[interp.plain(arg) for arg in args[1:]]]
            return interp.native(owner.__new__, *args, **kwargs)
        if owner is functools.partial and len(args) > 1:
            refuse_nested_partial(interp, args[1])
        if owner is weakref.ref:
            args = [args[0], *with_callback(interp, args[1:])]
        return native_handlers.new_in_this_call(interp, interp.unread(owner.__new__, *args, **kwargs))
    if args and is_a(args[0], type):
        handler = native_handlers.FUNCTIONS.get(id(owner))
        if handler is not None and args[0] is owner:
            return handler(interp, owner, args[1:], kwargs)
    return native_handlers.native_fallback(interp, owner.__new__, args, kwargs)


class LaterCallback:
    """In the place of the callback of a weak reference: what the graph's code makes the reference with.

    An object from outside does not die before; one of the captured code may, and where it dies as the code is
    interpreted, the callback is interpreted there.
    """

    __slots__ = ("fn", "interp")

    def __init__(self, interp: Interpreter, fn: Function) -> None:
        self.interp, self.fn = interp, fn

    def __call__(self, ref: object) -> None:
        if vars(self.interp).get("frames"):
            self.interp.enter(self.fn, (ref,), {})


def with_callback(interp: Interpreter, args: list[object]) -> list[object]:
    """Arguments of `weakref.ref`, with a callback that is called as the program expects."""
    callback = args[1] if len(args) > 1 else None
    info = interp.state.tensors.get(id(args[0])) if args else None
    if callback is not None and info is not None and info.real is None:
        raise graph_break(
            kind="object dropped",
            context="weakref.ref",
            explanation="A weak reference calls back when nothing else refers to a tensor that the graph computes.",
        )
    interp.state.called_at_end |= callback is not None
    if callback is None or not interp.is_callable(callback):
        return args
    return [args[0], LaterCallback(interp, cast(Function, callback)), *args[2:]]


def refuse_nested_partial(interp: Interpreter, function: object) -> None:
    """`functools.partial` takes another one apart that it is given, unless that has attributes."""
    if is_a(function, functools.partial) and interp.is_outer(function):
        raise native_reads.unseen_object(function, functools.partial)


# ---- intrinsics ----------------------------------------------------------------------------------------------------


def intrinsic_1(interp: Interpreter, name: str, value: Any) -> object:
    """CALL_INTRINSIC_1."""
    if name == "INTRINSIC_LIST_TO_TUPLE":
        return tuple(interp.shadow(value))
    if name == "INTRINSIC_STOPITERATION_ERROR":
        return generators.stop_iteration_error(value)
    if name == "INTRINSIC_UNARY_POSITIVE":
        return operators.unary(interp, POSITIVE, value)
    if name == "INTRINSIC_TYPEVAR":
        return typing.TypeVar(value, infer_variance=True)  # type: ignore[call-arg]
    if name == "INTRINSIC_PARAMSPEC":
        return typing.ParamSpec(value, infer_variance=True)  # type: ignore[call-arg]
    if name == "INTRINSIC_TYPEVARTUPLE":
        return typing.TypeVarTuple(value)
    if name == "INTRINSIC_SUBSCRIPT_GENERIC":
        return interp.unread(lambda: typing.Generic[value])  # type: ignore[index]
    raise _unsupported_intrinsic(name)


def intrinsic_2(interp: Interpreter, name: str, first: Any, second: Any) -> object:
    """CALL_INTRINSIC_2."""
    if name == "INTRINSIC_PREP_RERAISE_STAR":
        return prepare_reraise_star(interp, first, second)
    if name == "INTRINSIC_SET_FUNCTION_TYPE_PARAMS":
        first.__type_params__ = second
        return first
    raise _unsupported_intrinsic(name)


def _unsupported_intrinsic(name: str) -> BaseException:
    return graph_break(
        kind="unsupported Python construct",
        context=name,
        explanation="This construct (a lazily evaluated type parameter or an interactive one) is not captured.",
    )
