"""Functions with a break of the graph in each kind of place, as text: `BREAK` is replaced by the thing that breaks.

Each function takes a tensor x and a list log. In the text `y` is a live tensor at the break.
"""

from __future__ import annotations

from . import break_places_contexts, break_places_flow, break_places_functions

PRELUDE = '''\
import contextlib
import functools
import sys
import torch
import argand

STATE = {"entered": 0, "left": 0}


@argand.disable
def real(value):
    """Runs for real: ends the graph."""
    return value


@argand.disable
def boom(value):
    raise ValueError("boom", 1)


@argand.disable
def boom_if(value, limit):
    if float(value.sum()) > limit:
        raise KeyError("limit")
    return value


class Manager:
    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        STATE["entered"] += 1
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, str(value), traceback is not None))
        STATE["left"] += 1
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(log, swallow=()):
    log.append("before")
    try:
        yield len(log)
    except swallow as error:
        log.append(("swallowed", repr(error)))
    finally:
        log.append("after")


def numbers(log, n):
    try:
        for i in range(n):
            log.append(("number", i))
            yield i
    finally:
        log.append("numbers closed")


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration
        return self.n


class Thing:
    def __init__(self, log, read):
        self.log, self.read = log, read

    @property
    def prop(self):
        self.log.append("prop")
        y = self.read * 1
        BREAK
        return y * 2

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        y = self.read * 1
        BREAK
        return name


'''

KINDS = {
    "request": "argand.graph_break()",
    "item": "log.append(round(y.sum().item(), 3))",
    "branch": "if y.sum() > 0: log.append('positive')",
    "not": "log.append(not (y.sum() < 0))",
    "disabled": "y = real(y)",
    "print": "print(end='')",
    "raises": "boom(y)",
}
"""What breaks the graph."""

PLACES = break_places_flow.PLACES | break_places_contexts.PLACES | break_places_functions.PLACES
"""Place of the break -> body of the function."""


def source(place: str, kind: str) -> str:
    """Text of a module with the function `f(x, log)`."""
    text = (
        PRELUDE
        + "def f(x, log):\n"
        + "".join(f"    {line}\n" if line else "\n" for line in PLACES[place].strip().split("\n"))
    )
    text = "\n".join(line for line in text.replace("BREAK", KINDS[kind]).split("\n"))
    # Only f itself has `log`; elsewhere a break that wants it finds this one.
    return text.replace("class Thing:", "log = []\n\n\nclass Thing:")
