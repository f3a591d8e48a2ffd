"""Rows: what a native callable does to the interpreter's world, as data; one driver makes the handlers of them.

A table has paths as text and a row each: `"math.prod": Native(does=product, options="start")`. Where a ready-made
handler says it all (`pure`, `constructor`, `breaking(...)`), it stands in the row's place. A path that only some
versions have says so: `itertools.batched[python>=3.12]`.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from argand.capture.facts.handlers import ABSENT, Function, Kwargs, names_here
from argand.capture.facts.interfaces import Interpreter
from argand.capture.objects import iteration, keys
from argand.capture.objects.call_protocol.native_handlers import (
    Args,
    Handler,
    MethodHandler,
    add_class_methods,
    add_functions,
    add_methods,
)
from argand.capture.world import native_reads
from argand.quick_dataclasses import dataclass

Use = Callable[[Interpreter, Any], object]
"""What native code gets for an argument of the program's."""
OPTIONS: Final = 1 << 30
"""Behind all positional arguments (`Native.reads`)."""


@dataclass(frozen=True, slots=True)
class Native:
    """What a native callable does. Calls that it refuses are made natively: it refuses them in its own words.

    Arguments:
        does: the operation of the interpreter that runs in its place, on `given` and the arguments as they are.
        counts: how many positional arguments there may be: at least and at most, or the one number.
        options: the keyword arguments that `does` takes.
        itself: `does` gets the callable before `given`.
        takes: where the native code itself runs: what it gets for each positional argument; the last use holds for
            all that follow.
        named: the same for keyword arguments; others are handed over as they are.
        reads: the position from which on native code looks into what it gets, and into keyword arguments that `named`
            lacks; None where it only stores, moves, counts or hands on.
    """

    does: Function | None = None
    given: tuple[object, ...] = ()
    counts: int | tuple[int, int] | None = None
    options: str = ""
    itself: bool = False
    takes: tuple[Use, ...] = ()
    named: Mapping[str, Use] = field(default_factory=dict)
    reads: int | None = None

    def handler(self) -> Handler:
        """What runs the row."""
        if self.does is None:
            return _of_native_code(self)
        if self.counts == 1 and not (self.given or self.options or self.itself):
            return _of_one_argument(self.does)
        return _of_operation(self, self.does)

    def method(self) -> MethodHandler:
        """The same for a method."""
        assert self.does is not None
        return _of_method(self, self.does)

    def limits(self) -> tuple[int, int]:
        """`counts` as at least and at most."""
        counts = (0, OPTIONS) if self.counts is None else self.counts
        return counts if isinstance(counts, tuple) else (counts, counts)


def enter_rows(table: Mapping[str, Native | Handler]) -> None:
    """Enter the callables that a table names, several to a row where they do the same."""
    for paths, row in table.items():
        add_functions(row.handler() if isinstance(row, Native) else row, *resolved(paths))


def operation(
    *fns: object, given: tuple[object, ...] = (), counts: int | tuple[int, int] = 1, options: str = ""
) -> Callable[[Function], Function]:
    """The row of callables whose operation is the function below."""

    def register(does: Function) -> Function:
        add_functions(Native(does, given, counts, options).handler(), *fns)
        return does

    return register


def resolved(paths: str) -> list[Any]:
    """What paths name: builtins, and `module.name` of the standard library. One that is not there is noted as such."""
    values = []
    for path in names_here(paths):
        module, _, name = path.rpartition(".")
        owner = importlib.import_module(module) if module else builtins
        if hasattr(owner, name):
            values.append(getattr(owner, name))
        else:
            ABSENT.append(path)
    return values


def enter_methods(table: Mapping[str, tuple[Native | MethodHandler, str]]) -> None:
    """Enter methods of C classes: paths of classes, what is done (`does` of a row gets the object first), the names."""
    for paths, (row, methods) in table.items():
        for cls in resolved(paths):
            add_methods(cls, row.method() if isinstance(row, Native) else row, methods)


def operation_of(paths: str, names: str, *, counts: int | tuple[int, int] = 0) -> Callable[[Function], Function]:
    """The row of methods of C classes whose operation is the function below."""

    def register(does: Function) -> Function:
        enter_methods({paths: (Native(does, counts=counts), names)})
        return does

    return register


def enter_class_methods(table: Mapping[str, tuple[Handler, str]]) -> None:
    """The same for methods that are called on the class."""
    for paths, (handler, methods) in table.items():
        for cls in resolved(paths):
            add_class_methods(cls, handler, methods)


# ---- the driver ----------------------------------------------------------------------------------------------------


def _of_one_argument(does: Function) -> Handler:
    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs:
            return interp.native(fn, *args, **kwargs)
        return does(interp, args[0])

    return handler


def _of_operation(row: Native, does: Function) -> Handler:
    least, most = row.limits()
    given, options = row.given, frozenset(row.options.split())

    def with_options(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if not least <= len(args) <= most or not options.issuperset(kwargs):
            return interp.native(fn, *args, **kwargs)
        return does(interp, *given, *args, **kwargs)

    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if not least <= len(args) <= most or kwargs:
            return interp.native(fn, *args, **kwargs)
        return does(interp, *given, *args) if given else does(interp, *args)

    def with_itself(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if not least <= len(args) <= most or not options.issuperset(kwargs):
            return interp.native(fn, *args, **kwargs)
        return does(interp, fn, *given, *args, **kwargs)

    return with_itself if row.itself else with_options if options else handler


def _of_method(row: Native, does: Function) -> MethodHandler:
    least, most = row.limits()

    def handler(interp: Interpreter, cls: type, name: str, owner: object, args: Args, kwargs: Kwargs) -> object:
        if not least <= len(args) <= most or kwargs:
            return interp.unread(getattr(cls, name), owner, *args, **kwargs)  # raises
        return does(interp, owner, *args)

    return handler


def _of_native_code(row: Native) -> Handler:
    least, most = row.limits()
    takes, named, reads = row.takes or (kept,), row.named, row.reads
    first, rest = takes[:-1], takes[-1]

    def handler(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if not least <= len(args) <= most:
            return interp.native(fn, *args, **kwargs)
        uses = itertools.chain(first, itertools.repeat(rest))
        args = [use(interp, arg) for use, arg in zip(uses, args)]
        if named:
            kwargs = {name: named.get(name, kept)(interp, value) for name, value in kwargs.items()}
        if reads == 0:
            return interp.native(fn, *args, **kwargs)
        if reads is not None:
            options = [value for name, value in kwargs.items() if name not in named]
            native_reads.check(interp, fn, (*args[reads:], *options))
        return interp.unread(fn, *args, **kwargs)

    return handler


# ---- what native code gets for an argument -------------------------------------------------------------------------


def kept(interp: Interpreter, arg: object) -> object:
    """Itself."""
    return arg


def plain(interp: Interpreter, arg: object) -> object:
    """It is read."""
    return interp.plain(arg)


def shadowed(interp: Interpreter, arg: object) -> object:
    """It is changed, or read when it is used."""
    return interp.shadow(arg)


def called(interp: Interpreter, arg: Function | None) -> object:
    """It is called, unless it is None or no callable."""
    return None if arg is None else interp.trampoline(arg)


def tested(interp: Interpreter, arg: Function | None) -> object:
    """It is called for an answer that is true or not; None asks the element itself."""
    return interp.trampoline(bool if arg is None else arg)


def iterated(interp: Interpreter, arg: object) -> object:
    """It is iterated over, element by element."""
    return iteration.native_iterable(interp, arg)


def iterated_or_refused(interp: Interpreter, arg: object) -> object:
    """The same; what is not iterable goes to the native code, which refuses it."""
    return iteration.native_iterable(interp, arg) if iteration.is_iterable(interp, arg) else arg


def iterated_later(interp: Interpreter, arg: object) -> object:
    """It is asked for an iterator when its turn comes."""
    return iteration.native_iterable_later(interp, arg) if iteration.is_iterable(interp, arg) else arg


def listed(interp: Interpreter, arg: object) -> object:
    """All its elements are taken at once, after it was asked how many there will be."""
    return iteration.to_list(interp, arg, hint=True) if iteration.is_iterable(interp, arg) else arg


def position(interp: Interpreter, arg: object) -> object:
    """It is a position: as an int, where a method of the program says which."""
    return keys.to_index(interp, arg) if interp.types.python_level(type(arg), "__index__") else arg
