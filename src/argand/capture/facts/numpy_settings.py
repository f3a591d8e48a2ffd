"""numpy's settings of the thread, which its C code reads past every source: what it does about floating-point errors,
and how it writes arrays.

Wherever capture computes with numpy, or has it write a text, these settings become a guard. Where an error would be
more than a warning the graph ends: what the graph computes raises nothing and calls nobody.

Nothing here imports numpy before the program has.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import module_of, per_class
from argand.capture.facts.optional_packages import numpy
from argand.errors import graph_break

_QUIET = frozenset(("ignore", "warn"))


@per_class
def of_numpy(cls: type) -> bool:
    """Whether C code that gets an object of this class may run numpy's."""
    return any(module_of(base).partition(".")[0] == "numpy" for base in cls.__mro__)


def errors_and_texts() -> tuple[Any, ...]:
    """The settings now, those for errors first."""
    errors, texts = (tuple(sorted(settings.items())) for settings in (numpy.geterr(), numpy.get_printoptions()))
    return errors, texts, numpy.geterrcall(), numpy.getbufsize()


def rely(state: CaptureState, context: str) -> None:
    """Guard the settings: numpy runs while capturing, or a graph does what it would do.

    Arguments:
        context: what runs, for the message.

    Raises:
        GraphBreak: a floating-point error would raise or call a function.
    """
    now = errors_and_texts()
    if not _QUIET.issuperset(dict(now[0]).values()):
        raise graph_break(kind="numpy's error settings", context=context)
    state.guards.add(None, "global_state", ((errors_and_texts, now),), label="GLOBAL_STATE")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """numpy and `torch._numpy` run on made-up values: nobody wants to hear of errors."""
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
