"""Objects from outside whose end runs code of the program: generators in a `finally`, classes with `__del__`.

A list or an attribute may hold the last reference to one. What runs when the captured code takes it away happens at
that place in eager. It would run between effects that are written back after the graph, and one could undo what it did.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Container

from argand.capture.facts.frames import Frame, LazyLocal
from argand.capture.facts.kinds import is_a, namespace
from argand.capture.interp.state import CaptureState
from argand.capture.objects import generators
from argand.capture.output.values import unreconstructable
from argand.capture.world.pending_effects import HOLDERS, ITERATORS, may_end_visibly, may_hold, pending, taken_away
from argand.errors import graph_break

_LOOKED_AT = 32  # items of a list


def check(state: CaptureState) -> None:
    """Refuse a capture whose effects take such an object away from where it was.

    Raises:
        GraphBreak: (skip_frame) the frame runs eagerly.
    """
    for entry in pending(state):
        for obj in taken_away(entry):
            if may_end_visibly(obj) or (state.called_at_end and may_hold(obj)):
                raise graph_break(
                    kind="object dropped",
                    context=type(obj).__qualname__,
                    explanation=f"A {type(obj).__name__} that existed before the compiled function is taken away from "
                    "where it was, and its end may run code: a `finally` of the generator, or __del__.",
                    skip_frame=True,
                )


def suspended(state: CaptureState) -> list[generators.TracedGenerator]:
    """The generators that the captured code has begun, and that are not over."""
    return [obj for obj in state.interpreter.generators if generators.is_suspended(obj)]


def check_generators(state: CaptureState, rebuilt: Container[int]) -> None:
    """Refuse to give up a generator that the captured code has begun, and whose end runs code of the program.

    In eager it ends with the frame, or with what holds it; here it would never.

    Arguments:
        rebuilt: ids of what transformed code makes anew.

    Raises:
        GraphBreak: it was made too late, as of a value that cannot be rebuilt.
    """
    interp = state.interpreter
    begun = [obj for obj in suspended(state) if id(obj) not in rebuilt and generators.ends_visibly(obj)]
    if begun:
        first = min(begun, key=lambda obj: interp.born.get(id(obj), (None, 0))[1])
        raise unreconstructable(first, first.__qualname__)


def seen_ending(state: CaptureState, frame: Frame, real_frame: bool) -> frozenset[str]:
    """Locals of a frame whose end is seen: they must live as long as in eager, though nothing reads them again.

    Iterators of the language hold others, which may be generators.

    Arguments:
        real_frame: the frame holds what the program's own instructions have made.
    """
    names = set()
    for name, held in zip(frame.program.names, frame.fast):
        value = held.value if type(held) is LazyLocal else held
        real = real_frame or type(held) is LazyLocal or state.is_outer(value)
        counted = type(value) is weakref.ref  # what it refers to is asked for its weak references
        iterator = real and id(type(value)) in ITERATORS  # which may hold generators of captured code
        if (
            counted
            or iterator
            or ((real or id(type(value)) in HOLDERS) and may_end_visibly(value))
            or _has_generator(value)
        ):
            names.add(name)
    return frozenset(names)


def _has_generator(value: object) -> bool:
    """Whether an object keeps a generator that is not over, as what a `contextmanager` makes does."""
    attributes = namespace(value)
    if not is_a(attributes, dict):
        return False
    held = itertools.islice(attributes.values(), _LOOKED_AT)
    return any(
        type(part) is types.GeneratorType or (generators.ends_visibly(part) and generators.is_suspended(part))
        for part in held
    )
