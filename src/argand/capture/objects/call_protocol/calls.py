"""The call protocol: Python functions are inlined, classes and callables taken apart, native code allowed by name."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final

from argand._core import _C
from argand.capture.facts import callables
from argand.capture.facts.code import effort_limits
from argand.capture.facts.frames import GENERATOR, NULL, Frame
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import c_part, is_a, mro_of
from argand.capture.facts.sources import AttrSource, CallSource
from argand.capture.facts.typefacts import BUILTIN_METHODS
from argand.capture.objects import attributes, descriptors, generators, iteration, stand_ins, text
from argand.capture.objects.call_protocol import binding, classes, native_handlers
from argand.capture.sizes import symbolic_ops

_DESCRIPTORS: Final = frozenset(
    {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
)
_STORING: Final = frozenset({"append", "insert", "__setitem__", "setdefault"})
_PARTS: Final[dict[str, Function]] = {
    name: vars(functools.partial)[name].__get__ for name in ("func", "args", "keywords")
}
_LRU: Final = type(functools.lru_cache(maxsize=None)(len))


def call(interp: Interpreter, fn: Any, args: Any = (), kwargs: dict[str, object] | None = None) -> object:
    """`fn(*args, **kwargs)`.

    Arguments:
        args: a list or tuple of positional arguments; never kept.
    """
    cls = type(fn)
    if cls is types.FunctionType:
        return call_function(interp, fn, args, kwargs)
    if cls is types.MethodType:
        func, owner = attributes.method_parts(interp, fn)
        return call(interp, func, [owner, *args], kwargs)
    if interp.tainted and fn is not isinstance and fn is not type:
        _refuse_tainted(interp, fn, args, kwargs)
    handler = native_handlers.FUNCTIONS.get(id(fn))
    if interp.dynamic:
        args, kwargs = list(args), dict(kwargs or {})
        result = symbolic_ops.call(interp, fn, args, kwargs, handler is not None)
        if result is not NotImplemented:
            return result
    if handler is not None:
        return by_handler(fn, handler, interp, fn, list(args), kwargs or {})
    if cls in BUILTIN_METHODS:
        return _call_builtin(interp, fn, list(args), kwargs or {})
    if cls in _DESCRIPTORS:
        return _call_descriptor(interp, fn, list(args), kwargs or {})
    if cls is types.MethodWrapperType:
        return _call_method(interp, fn, fn.__self__, fn.__name__, list(args), kwargs or {})
    if is_a(fn, type):
        return classes.call_class(interp, fn, list(args), kwargs or {})
    return _call_instance(interp, fn, list(args), kwargs or {})


def _refuse_tainted(interp: Interpreter, fn: object, args: list[object], kwargs: dict[str, object] | None) -> None:
    """The text of a tensor may be stored by native code, not used by it."""
    if is_a(fn, type) and issubclass(fn, BaseException):
        return
    owner = callables.fact(fn, "__self__")
    if type(owner) in (list, dict, set) and callables.text_of(fn, "__name__") in _STORING:
        return
    interp.refuse_tainted((*args, *(kwargs or {}).values()))
    interp.refuse_tainted((owner,))


# ---- Python functions ----------------------------------------------------------------------------------------------


def call_function(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object] | None) -> object:
    """Inline a Python function, unless a handler, torch or the skip list says otherwise."""
    code = fn.__code__
    known = interp.policies.get(id(code))
    if known is None:
        tedious = code in interp.session.tedious and not interp.patience.endless
        known = interp.policies[id(code)] = (
            effort_limits.break_off if tedious else native_handlers.policy_of(interp, fn),
            code,
        )
    policy = known[0]
    if policy is not native_handlers.INLINE:
        result = policy(interp, fn, list(args), kwargs or {})
        if result is not NotImplemented:
            return result
    program = interp.programs.get(code)
    if program is None:
        program = interp.session.program(code)
    interp.inlined[id(fn)] = fn
    fast = binding.bind_arguments(interp, fn, program, args, kwargs)
    back = interp.frames[-1] if interp.frames else None
    frame = Frame(program, fast, fn.__globals__, fn.__builtins__, back.exc if back is not None else interp.base_exc, fn)
    interp.count_round()
    frame.quiet = policy is native_handlers.INLINE and code.co_filename in native_handlers.HELPER_FILES
    signal = interp.run(frame)
    if signal is GENERATOR:
        generator, frame.result = frame.result, None
        return generator
    return frame.result


def by_handler(fn: Function, handler: Callable[..., object], *given: object) -> object:
    """Run a handler of `fn`. Arguments that it does not know how to take (too many, too few, of another kind) are left
    to CPython, which refuses them or not."""
    try:
        return handler(*given)
    except (TypeError, IndexError, ValueError) as error:
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if inner is None or inner.tb_next is not None:  # not the handler itself, and none of its calls of helpers
            raise
    raise native_handlers.unknown_native(fn)


# ---- native callables ----------------------------------------------------------------------------------------------


def _call_builtin(
    interp: Interpreter, fn: types.BuiltinMethodType, args: list[object], kwargs: dict[str, object]
) -> object:
    owner = fn.__self__
    if owner is not None and not is_a(owner, types.ModuleType):
        return _call_method(interp, fn, owner, fn.__name__, args, kwargs)
    return native_handlers.native_fallback(interp, fn, args, kwargs)


def _call_descriptor(
    interp: Interpreter, fn: types.MethodDescriptorType, args: list[object], kwargs: dict[str, object]
) -> object:
    """An unbound method of a C class: `list.append(x, 1)`."""
    if args:
        stand_ins.refuse_inspection(fn, args[0])
    handler = native_handlers.METHODS.get((id(fn.__objclass__), fn.__name__))
    if handler is None:
        return native_handlers.native_fallback(interp, fn, args, kwargs)
    if not args:
        return interp.native(fn, *args, **kwargs)
    if not is_a(args[0], fn.__objclass__) and type(args[0]) is not generators.TracedGenerator:
        return interp.native(fn, *args, **kwargs)  # raises as CPython does
    return by_handler(fn, handler, interp, fn.__objclass__, fn.__name__, args[0], args[1:], kwargs)


def _call_method(
    interp: Interpreter, fn: Function, owner: object, name: str, args: list[object], kwargs: dict[str, object]
) -> object:
    """A bound method of an object of a C class, or of a class that derives from one."""
    if is_a(owner, type):
        handler = native_handlers.CLASS_METHODS.get((id(owner), name))
        if handler is None and fn.__name__ == "__new__" and type(fn) is types.BuiltinFunctionType:
            return by_handler(fn, classes.native_new, interp, owner, args, kwargs)
        if handler is None:
            for klass in (mro_of(owner) or ())[1:]:  # none while its metaclass's mro() runs
                handler = native_handlers.CLASS_METHODS.get((id(klass), name))
                if handler is not None:
                    break
        if handler is not None:
            return by_handler(fn, handler, interp, fn, args, kwargs)
        if name.startswith("__"):
            metaclass: type = type(owner)
            for klass in metaclass.__mro__ or ():
                of_metaclass = native_handlers.METHODS.get((id(klass), name))
                if of_metaclass is not None:
                    return by_handler(fn, of_metaclass, interp, klass, name, owner, args, kwargs)
        return native_handlers.native_fallback(interp, fn, args, kwargs)
    klass = _defining_class(fn, type(owner), name)
    of_class = native_handlers.METHODS.get((id(klass), name))
    if of_class is not None:
        return by_handler(fn, of_class, interp, klass, name, owner, args, kwargs)
    return native_handlers.native_fallback(interp, fn, args, kwargs)


def _defining_class(fn: Function, cls: type, name: str) -> type:
    """The C class that a bound method comes from (a super() call may skip classes that also have one)."""
    owner = callables.fact(fn, "__objclass__")
    if owner is not None:
        return owner
    wanted = fn.__qualname__.rpartition(".")[0]
    candidates = [k for k in cls.__mro__ if name in k.__dict__ and type(k.__dict__[name]) is not types.FunctionType]
    for klass in candidates:
        if klass.__name__ == wanted:
            return klass
    return candidates[0] if candidates else object


# ---- callable objects ----------------------------------------------------------------------------------------------


def _call_instance(interp: Interpreter, fn: Any, args: list[object], kwargs: dict[str, object]) -> object:
    cls = type(fn)
    if cls is functools.partial:
        return call_partial(interp, fn, args, kwargs)
    if cls is staticmethod:
        return call(interp, fn.__func__, args, kwargs)
    if cls is _LRU:
        result = native_handlers.call_lru_wrapper(interp, fn, args, kwargs)
        return call(interp, fn.__wrapped__, args, kwargs) if result is NotImplemented else result
    if cls is interp.trampoline_type:
        return call(interp, fn.fn, args, kwargs)
    method = interp.types.lookup(cls, "__call__")
    if method is NULL:
        raise interp.throw(TypeError(f"'{_C.type_name(cls)}' object is not callable"))
    result = interp.special_call(fn, args, kwargs)
    if result is not NotImplemented:
        return result
    if type(method) is types.FunctionType:
        interp.note_class(cls)
        return call_function(interp, method, [fn, *args], kwargs)
    if type(method) is types.WrapperDescriptorType:
        if method is vars(functools.partial)["__call__"]:
            interp.note_class(cls)
            return call_partial(interp, fn, args, kwargs)
        handler = native_handlers.CALLABLE_OBJECTS.get(cls)
        if handler is not None:
            return by_handler(fn, handler, interp, fn, args, kwargs)
        return native_handlers.native_fallback(interp, fn, args, kwargs)
    return call(interp, descriptors.bind(interp, method, fn, cls), args, kwargs)


def call_partial(
    interp: Interpreter, fn: functools.partial[object], args: list[object], kwargs: dict[str, object]
) -> object:
    """A call of a `functools.partial`, or of an object of a class that derives from it, whatever that one's attributes
    are: C code has the parts."""
    parts: list[Any] = [c_part(functools.partial, fn, name) for name in _PARTS]
    func, first, named = parts
    if interp.is_outer(fn):
        source, load = interp.source(fn), interp.state.load_source
        plain = type(fn) is functools.partial
        sources = [AttrSource(source, name) if plain else CallSource(source, read) for name, read in _PARTS.items()]
        func = load(sources[0], func)
        first, named = interp.shadow(load(sources[1], first)), interp.shadow(load(sources[2], named))
    return call(interp, func, [*first, *args], {**named, **kwargs})


# ---- f(*args, **kwargs) --------------------------------------------------------------------------------------------


def star_arguments(interp: Interpreter, fn: object, args: object) -> object:
    """The positional arguments of `f(*args)`."""
    if type(args) is tuple or type(args) is list:
        return interp.shadow(args)
    if not iteration.has_iterator(interp, args):
        name = text.callable_name(fn)
        raise interp.throw(TypeError(f"{name} argument after * must be an iterable, not {_C.type_name(type(args))}"))
    return iteration.to_list(interp, args, hint=True)


def star_keywords(interp: Interpreter, fn: object, kwargs: object) -> dict[str, object]:
    """The keyword arguments of `f(**kwargs)`."""
    if kwargs is None:
        return {}
    if type(kwargs) is dict:
        items = interp.shadow(kwargs)
    else:
        items = {}
        iteration.dict_merge(interp, items, kwargs, fn)
    for key in items:
        if not is_a(key, str):
            raise interp.throw(TypeError("keywords must be strings"))
    return dict(items)
