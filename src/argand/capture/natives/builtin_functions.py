"""Handlers of the builtin functions and types."""

from __future__ import annotations

import collections
import math
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from argand._core import _C
from argand.capture.facts import typefacts
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import NULL, LazyLocal
from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import ConstSource
from argand.capture.facts.values import tainted_values
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.metadata import numpy_scalars
from argand.capture.natives.rows import Native, enter_rows, kept, operation, plain
from argand.capture.objects import (
    attribute_writes,
    descriptors,
    generators,
    instance_checks,
    iteration,
    keys,
    names,
    operators,
    polyfills,
    stand_ins,
    text,
)
from argand.capture.objects.call_protocol import classes, native_handlers
from argand.capture.objects.call_protocol.native_handlers import (
    HELPER_FILES,
    ITERABLE_NEW,
    SAFE_NEW,
    STORING_NEW,
    Args,
    add_class_methods,
    add_functions,
    breaking,
    function,
    pure,
)
from argand.capture.record import size_tensors, tensor_attributes
from argand.capture.world import identity, native_reads
from argand.errors import graph_break
from argand.graph.python_operators import BINARY, DIVMOD

HELPER_FILES.update((polyfills.__file__, tainted_values.__file__))


# ---- attributes ----------------------------------------------------------------------------------------------------


def _attribute_name(interp: Interpreter, name: str) -> object:
    """The name of an attribute as a plain str; one that compares or hashes itself is left to CPython."""
    cls = type(name)
    if cls is str or not interp.is_outer(name):
        return name
    interp.note_class(cls)
    if interp.types.python_level(cls, "__eq__", "__hash__"):
        raise native_reads.unseen_object(name, getattr)
    native_reads.guard_base(interp, name)
    return native_reads.base_value(name)


def _by_name(fn: Function, least: int, most: int) -> Callable[[Function], Function]:
    """Enter a function of (object, name of an attribute, ...); with another kind of name, CPython raises."""

    def register(does: Function) -> Function:
        def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
            if kwargs or not least <= len(args) <= most or not is_a(args[1], str):
                return interp.native(fn, *[None if i == 0 else arg for i, arg in enumerate(args)], **kwargs)
            return does(interp, args[0], _attribute_name(interp, args[1]), *args[2:])

        add_functions(handler, fn)
        return does

    return register


@_by_name(getattr, 2, 3)
def _getattr(interp: Interpreter, obj: object, name: Any, default: object = NULL) -> object:
    if default is NULL:
        return interp.getattr(obj, name)
    value = interp.try_attr(obj, name)
    return default if value is NULL else value


_by_name(setattr, 3, 3)(attribute_writes.store_attr)
_by_name(delattr, 2, 2)(attribute_writes.delete_attr)


_by_name(hasattr, 2, 2)(lambda interp, obj, name: interp.try_attr(obj, name) is not NULL)


@operation(vars, counts=(0, 1))
def _vars(interp: Interpreter, *args: object) -> object:
    if not args:
        return _locals(interp)
    namespace = interp.try_attr(args[0], "__dict__")
    if namespace is NULL:
        raise interp.throw(TypeError("vars() argument must have __dict__ attribute"))
    return namespace


@operation(locals, counts=0)
def _locals(interp: Interpreter) -> object:
    frame = interp.frames[-1]
    if frame.locals is not None:
        return frame.locals
    namespace: dict[str, object] = {}
    for slot, (name, value) in enumerate(frame.locals_by_name().items()):
        if type(value) is LazyLocal:
            value = frame.fast[frame.program.names.index(name)] = interp.load_argument(value)
        if type(value) is types.CellType:
            value = names.read_cell(interp, value)
        if value is not NULL and slot >= 0:
            namespace[name] = value
    return namespace


@operation(globals, counts=0)
def _globals(interp: Interpreter) -> object:
    namespace = interp.frames[-1].globals
    interp.state.refuse_written_names(namespace)
    return interp.state.load_source(ConstSource(namespace), namespace)


operation(dir, counts=(0, 1))(lambda interp, *args: _names_of(interp, args[0]) if args else sorted(_locals(interp)))


def _names_of(interp: Interpreter, obj: object) -> object:
    """`dir(obj)`, of what was made here or of an object of Python: its names and those of its whole class."""
    cls = type(obj)
    if interp.is_tensor(obj):
        return _names_of_tensor(interp, obj)
    if type(interp.types.lookup(cls, "__dir__")) is not types.MethodDescriptorType:
        names = descriptors.call_special(interp, obj, "__dir__")
        return sorted(iteration.to_list(interp, names))
    if stand_ins.is_stand_in(obj):
        raise stand_ins.inspected("dir()")
    if is_a(obj, types.FunctionType) and id(obj) not in interp.local_functions:
        raise native_reads.unseen_object(obj, dir)  # what the program set on it
    interp.types.whole = True
    interp.note_class(obj if is_a(obj, type) else cls)
    if not interp.is_outer(obj) or cls in interp.settled or is_a(obj, type):
        return interp.unread(dir, interp.shadow(obj))
    if is_a(obj, types.ModuleType | types.MethodType) or typefacts.finds_attributes_its_own_way(cls):
        raise native_reads.unseen_object(obj, dir)
    own = interp.try_attr(obj, "__dict__")
    names = set(interp.plain(own)) if is_a(own, dict) else set()
    claimed = interp.try_attr(obj, "__class__")
    if claimed is not cls:
        raise native_reads.unseen_object(obj, dir)
    return sorted(names.union(type.__dir__(cls)))


def _names_of_tensor(interp: Interpreter, obj: object) -> object:
    """What the stand-in says, and what was set on the tensor before the frame."""
    if type(obj) not in interp.fast or not tensor_attributes.on_cpu(interp.state, obj):
        raise native_reads.unseen_object(obj, dir)
    own = interp.getattr(obj, "__dict__")
    interp.types.whole = True
    interp.note_class(type(obj))
    with interp.suspended():
        names = interp.unread(dir, obj)
    return names if own is object.__getattribute__(obj, "__dict__") else sorted([*names, *interp.plain(own)])


# ---- operators as functions ----------------------------------------------------------------------------------------


def _unary(name: str, fn: Function) -> None:
    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        cls = type(args[0]) if args else object
        if interp.types.python_level(cls, name) or (
            interp.is_tensor(args[0] if args else None) and cls not in interp.fast
        ):
            method = descriptors.lookup_special(interp, args[0], name)
            return interp.call(method, args[1:], kwargs)
        if args and numpy_scalars.is_scalar(args[0]):
            return interp.native(fn, *args, **kwargs)
        return pure(interp, fn, args, kwargs)

    add_functions(handler, fn)


_unary("__abs__", abs)
_unary("__round__", round)
_unary("__floor__", math.floor)
_unary("__ceil__", math.ceil)
_unary("__trunc__", math.trunc)


@function(divmod)
def _divmod(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2 and any(interp.types.python_level(type(a), "__divmod__", "__rdivmod__") for a in args):
        return operators.binary(interp, DIVMOD, *args)
    return pure(interp, fn, args, kwargs)


@function(pow)
def _pow(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2 and not kwargs:
        return operators.binary(interp, BINARY["**"], *args)
    if args and interp.types.python_level(type(args[0]), "__pow__"):
        return interp.call(descriptors.lookup_special(interp, args[0], "__pow__"), args[1:], kwargs)
    return pure(interp, fn, args, kwargs)


# ---- conversions ---------------------------------------------------------------------------------------------------


@function(str)
def _str(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and not kwargs:
        return text.to_str(interp, args[0])
    return pure(interp, fn, args, kwargs)


def _ascii(interp: Interpreter, value: object) -> str:
    shown: str = text.to_repr(interp, value)
    return shown.encode("ascii", "backslashreplace").decode("ascii")


_RESULTS: Final[dict[str, tuple[object, str]]] = {
    "__int__": (int, "int"), "__index__": (int, "int"), "__trunc__": (int, "int"), "__float__": (float, "float"),
    "__complex__": (complex, "complex"),
}  # fmt: skip


def _deprecated_conversion(fn: Function, value: object) -> BaseException:
    return graph_break(
        kind="native code that warns",
        context=f"{fn.__name__}() of a {type(value).__name__}",
        explanation="CPython warns of this conversion, which must name the program's line, at every call.",
        hints=("let the conversion method return exactly the wanted type",),
    )


def _number(fn: Function, *specials: str) -> None:
    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and not kwargs and not (fn is complex and is_a(args[0], str)):  # which complex looks at first
            for name in specials:
                if interp.types.lookup(type(args[0]), name) is NULL:
                    continue
                if not interp.types.python_level(type(args[0]), name):
                    break  # native code, which is asked first
                result = descriptors.call_special(interp, args[0], name)
                result = result.number() if type(result) in SYMBOLIC else result
                wanted, what = _RESULTS[name]
                if name == "__trunc__" or (is_a(result, wanted) and type(result) is not wanted):
                    raise _deprecated_conversion(fn, args[0])
                if is_a(result, wanted):
                    return interp.native(fn, result)
                got, owner = _C.type_name(type(result)), _C.type_name(type(args[0]))
                text = (
                    f"{owner}.{name} returned non-{what} (type {got})"
                    if name == "__float__"
                    else f"{name} returned non-{what} (type {got})"
                )
                raise interp.throw(TypeError(text))
            if interp.is_tensor(args[0]) and fn is not complex:
                number = interp.native(size_tensors.number, interp.state.graph, args[0])
                if type(number) not in SYMBOLIC:
                    number = interp.native(interp.state.graph.item, args[0])
                if number is not NotImplemented:
                    return number.dynamics.apply(fn.__name__, number)
        return interp.native(fn, *[interp.plain(arg) for arg in args], **kwargs)

    add_functions(handler, fn)


_number(int, "__int__", "__index__", "__trunc__")
_number(float, "__float__", "__index__")
_number(complex, "__complex__", "__float__", "__index__")


@function(bytes)
def _bytes(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and not kwargs and interp.types.lookup(type(args[0]), "__bytes__") is not NULL:
        if interp.types.python_level(type(args[0]), "__bytes__"):
            return descriptors.call_special(interp, args[0], "__bytes__")
        return interp.native(fn, interp.plain(args[0]))  # which is asked before `__iter__`
    return _byte_array(interp, fn, args, kwargs)


_NOT_ITERATED: Final = (str, bytes, *typefacts.BUFFERS)
"""What `bytes` and `bytearray` refuse or copy, whatever its `__iter__` says."""


@function(bytearray)
def _byte_array(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and not kwargs and interp.types.python_level(type(args[0]), "__iter__"):
        if not is_a(args[0], _NOT_ITERATED) and interp.types.lookup(type(args[0]), "__index__") is NULL:
            try:
                items = iteration.native_iterable(interp, args[0])
            except ObservedException as observed:
                if not is_a(observed.value, TypeError):  # whatever it says
                    raise
                text = f"cannot convert '{_C.type_name(type(args[0]))}' object to {fn.__name__}"
                raise interp.throw(TypeError(text)) from None
            return interp.native(fn, iteration.after_hint(interp, args[0], items) if fn is bytes else items)
    return pure(interp, fn, args, kwargs)


# ---- classes -------------------------------------------------------------------------------------------------------


@function(type)
def _type(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and not kwargs:
        return classes.type_of(args[0])
    if len(args) == 3 and is_a(args[1], tuple):
        meta = classes._winner(interp, type, args[1])
        if meta is not type:
            return classes.call_class(interp, meta, args, kwargs)
    if len(args) != 3:
        return interp.native(type, *args, **kwargs)
    return classes.new_type(interp, type, args, kwargs)


@function(super)
def _super(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if args:
        return interp.unread(fn, *args, **kwargs)
    frame = interp.frames[-1]
    if frame.code.co_argcount == 0:
        raise interp.throw(RuntimeError("super(): no arguments"))
    first = frame.fast[0]
    if type(first) is types.CellType and frame.program.names[0] in frame.code.co_cellvars:
        first = names.read_cell(interp, first)
    if type(first) is LazyLocal:
        first = frame.fast[0] = interp.load_argument(first)
    if first is NULL:
        raise interp.throw(RuntimeError("super(): arg[0] deleted"))
    if "__class__" not in frame.code.co_freevars:
        raise interp.throw(RuntimeError("super(): __class__ cell not found"))
    cls = names.read_cell(interp, frame.fast[frame.program.names.index("__class__")])
    if cls is NULL:
        raise interp.throw(RuntimeError("super(): empty __class__ cell"))
    return interp.unread(fn, cls, first)


# ---- what ends the graph -------------------------------------------------------------------------------------------

_MOVE: Final = "Move the call out of the compiled function."
_IO: Final = breaking(
    "input or output", "Files or the terminal are read or written, which must happen at each call.", _MOVE
)
_CODE: Final = breaking("dynamic code", "exec, eval and compile run code that is made while the program runs.", _MOVE)
_PRINT: Final = breaking(
    "print",
    "print() writes to the terminal, which must happen at each call.",
    "Move print out of the compiled function, or print the result after it.",
)


@function(__import__)
def _import(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    with interp.suspended():
        module = interp.unread(fn, *[interp.plain(arg) for arg in args], **kwargs)
    return names.load_called(interp, module, args)


# ---- sys -----------------------------------------------------------------------------------------------------------


@operation(sys.exc_info, counts=0)
def _exc_info(interp: Interpreter) -> object:
    exc = _handled(interp)
    return (None, None, None) if exc is None else (type(exc), exc, exc.__traceback__)


@operation(sys.exception, counts=0)
def _handled(interp: Interpreter) -> BaseException | None:
    """The exception being handled. Where captured code handles none, its caller may: that is guarded."""
    exc = interp.handled()
    if exc is None:
        if interp.handled_outside is not None:
            raise graph_break(kind="exception state from outside")
        interp.state.guards.add(None, "global_state", ((sys.exception, None),))
    return exc


def of_the_process(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A setting of the interpreter, read without arguments: guarded to be what it is."""
    try:
        value = interp.native(fn, *args, **kwargs)
    except ObservedException:
        raise native_handlers.unknown_native(fn) from None  # no guard tells whether it still raises
    interp.state.guards.add(None, "global_state", ((fn, value),))
    return value


enter_rows({
    "callable": Native(lambda interp, value: interp.is_callable(value), counts=1),
    "id": Native(identity.id_of, counts=1),
    "isinstance": Native(instance_checks.is_instance, counts=2),
    "issubclass": Native(instance_checks.is_subclass, counts=2),
    "len": Native(operators.length_that_may_vary, counts=1),
    "hash": Native(operators.to_hash, counts=1),
    "bool": Native(operators.truth, counts=1),
    "repr": Native(text.to_repr, counts=1),
    "ascii": Native(_ascii, counts=1),
    "format": Native(lambda interp, value, spec="": text.to_format(interp, value, spec), counts=(1, 2)),
    "bin hex oct": Native(takes=(keys.to_index,), reads=0),
    "chr ord memoryview sys.intern sys.getdefaultencoding sys.getfilesystemencoding": pure,
    "types.ModuleType": breaking("value cannot be rebuilt", "A module made here is a new one in each call.", _MOVE),
    "types.NoneType types.EllipsisType types.NotImplementedType": pure,
    "sys.getrecursionlimit sys.getswitchinterval sys.get_int_max_str_digits sys.is_finalizing": of_the_process,
    "_thread.get_ident _thread.get_native_id os.getpid os.getcwd os.cpu_count _abc.get_cache_token": of_the_process,
    "sys.exit": Native(takes=(plain,), counts=(0, 1)),  # which takes a tuple apart
    "__build_class__": classes.build_class,
    "print": _PRINT,
    "open input breakpoint": _IO,
    "aiter anext": breaking("async function", "An asynchronous iterator goes on when its event loop says so.", _MOVE),
    "exec eval compile types.CodeType": _CODE,
})  # fmt: skip


# ---- generators ----------------------------------------------------------------------------------------------------

_TRACED = generators.TracedGenerator


@function(_TRACED.send)
def _send(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 2 or kwargs:
        raise interp.throw(TypeError(f"generator.send() takes exactly one argument ({len(args) - 1} given)"))
    return generators.result(interp, *generators.resume(args[0], args[1]))


operation(_TRACED.__next__)(lambda interp, generator: generators.result(interp, *generators.resume(generator, None)))
function(_C.forward_alone)(lambda interp, fn, args, kwargs: None)  # what follows its question does the same
function(_TRACED.throw)(lambda interp, fn, args, kwargs: generators.result(interp, *generators.throw(*args)))


operation(_TRACED.__iter__)(kept)
operation(_TRACED.close, generators.close_in)(lambda interp, generator: generators.close_in(generator))


# ---- class methods and constructors --------------------------------------------------------------------------------

for _cls in (int, float, str, bytes, bytearray, complex, tuple, list, dict, set, frozenset, slice, property,
        staticmethod,
             classmethod, super, types.SimpleNamespace, enumerate, zip, map, filter, reversed,
             range):  # fmt: skip
    SAFE_NEW.add(_cls)
STORING_NEW.update(
    {tuple, list, dict, set, frozenset, slice, property, staticmethod, classmethod, super, types.SimpleNamespace,
     enumerate, collections.deque, collections.OrderedDict, collections.defaultdict}
)  # fmt: skip
ITERABLE_NEW.update({tuple, frozenset, enumerate})


for _cls, _names in (
    (int, "from_bytes"), (float, "fromhex __getformat__"), (bytes, "fromhex"), (bytearray, "fromhex"),
):  # fmt: skip
    add_class_methods(_cls, pure, _names)
add_functions(pure, str.maketrans, bytes.maketrans, bytearray.maketrans)  # which know no class


def _fromkeys(interp: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> object:
    if not 1 <= len(args) <= 2 or kwargs:
        return interp.native(fn, *args, **kwargs)
    cls = fn.__self__
    value = args[1] if len(args) == 2 else None
    result = {} if cls is dict else interp.call(cls)
    for key in iteration.each(interp, args[0]):
        operators.setitem(interp, result, key, value)
    return result


add_class_methods(dict, _fromkeys, "fromkeys")
