"""numpy's settings of the thread, which its C code reads past every source: what it does about floating-point errors,
and how it writes arrays.

Wherever capture computes with numpy, or has it write a text, these settings become a guard. Where an error would be
more than a warning the graph ends: what the graph computes raises nothing and calls nobody.

Nothing here imports numpy before the program has.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import module_of, per_class
from argand.capture.facts.optional_packages import numpy
from argand.errors import graph_break

_QUIET = frozenset(("ignore", "warn"))


@per_class
def of_numpy(cls: type) -> bool:
    """Whether C code that gets an object of this class may run numpy's."""
    return any(module_of(base).partition(".")[0] == "numpy" for base in cls.__mro__)


def errors() -> tuple[object, ...]:
    """What is done about floating-point errors now."""
    return tuple(sorted(numpy.geterr().items())), numpy.geterrcall(), numpy.getbufsize()


def texts() -> tuple[object, ...]:
    """How arrays are written now."""
    return tuple(sorted(numpy.get_printoptions().items()))


def formatters() -> object:
    """Functions that write numbers: a dictionary of the program's, which it may change in place."""
    return numpy.get_printoptions()["formatter"]


def rely(state: CaptureState, context: str) -> None:
    """Guard the settings: numpy runs while capturing, or a graph does what it would do.

    Arguments:
        context: what runs, for the message.

    Raises:
        GraphBreak: a floating-point error would raise or call a function.
    """
    if not _QUIET.issuperset(numpy.geterr().values()):
        raise graph_break(kind="numpy's error settings", context=context)
    for settings in (errors, texts) if formatters() is None else (errors, texts, formatters):
        state.guards.add(None, "global_state", ((settings, settings()),), label="GLOBAL_STATE")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """numpy and `torch._numpy` run on made-up values: nobody wants to hear of errors."""
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _note_variables() -> None:
    """Where numpy keeps these settings in context variables, guards look at them (`_core/guards/guard_state.c`)."""
    _note_variable(errors, "umath", "_extobj_contextvar", numpy.errstate(over="ignore", under="warn"))
    _note_variable(texts, "printoptions", "format_options", numpy.printoptions(precision=3))


def _note_variable(
    settings: Callable[[], object], module: str, name: str, changed: AbstractContextManager[object]
) -> None:
    variable = getattr(sys.modules.get(f"numpy._core.{module}"), name, None)
    if isinstance(variable, contextvars.ContextVar):
        before = variable.get()
        with changed:
            if variable.get() is not before:
                vars(settings)["variable"] = variable


if numpy is not None:
    _note_variables()
