"""Guards on parts of a program that are like an earlier part: the guard tree repeats the checks of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from argand._core import _C
from argand.capture.facts.handlers import Args
from argand.capture.facts.interfaces import Guard
from argand.capture.facts.sources import Source
from argand.outcomes.guard_log import Log
from argand.quick_dataclasses import dataclass

_OF_ONE: Final = frozenset(
    ("type", "id", "equals", "base_value", "is_none", "not_none", "len", "dict_keys", "has_key", "not_has_key",
     "has_attr", "not_has_attr", "tensor", "same_object")
)  # fmt: skip
"""Kinds of checks that the tree repeats."""
Positions = dict[str, tuple[CodeType, int]]


@dataclass(frozen=True, slots=True)
class Run:
    """Guards that were added one after the other for one part of the program.

    Arguments:
        like: runs that have the same ask for the same at the same places.
        end: how many guards there were after it.
        sources: the places; the first is the part itself.
    """

    like: object
    end: int
    sources: Sequence[Source]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A run whose checks are in the tree.

    Arguments:
        checks: the first of them, and the one after the last.
        node: of the part; prefix: how labels of its checks begin.
        places: of each guard, the number of its source among the run's.
        positions: of the guards that have one, by the rest of the label.
        wanted: of places whose values are collected, the number and the node.
    """

    guards: Sequence[Guard]
    checks: tuple[int, int]
    node: int
    prefix: str
    places: Sequence[int]
    positions: Sequence[tuple[str, tuple[CodeType, int]]]
    wanted: Sequence[tuple[int, int]]

    def repeat(
        self,
        run: Run,
        guards: Sequence[Guard],
        tree: _C.GuardTree | Log,
        node: int,
        values: dict[Source, int],
        positions: Positions,
    ) -> bool:
        """Have the tree repeat the checks for a run; whether it is like this one.

        Arguments:
            guards: of the run.
            node: of its part.
            values: gets the nodes of places whose values are collected.
        """
        if len(guards) != len(self.guards) or node == self.node:
            return False
        sources = run.sources
        for place, guard, like in zip(self.places, guards, self.guards):
            if guard.source != sources[place] or not _ask_the_same(guard, like):
                return False
        prefix = prefix_of(sources[0])
        wanted = tuple([each for _, each in self.wanted])
        nodes = tree.repeat(*self.checks, self.node, node, wanted, self.prefix, prefix)
        values.update((sources[place], each) for (place, _), each in zip(self.wanted, nodes))
        for rest, position in self.positions:
            positions.setdefault(prefix + rest, position)
        return True


def pattern_of(
    run: Run,
    guards: Sequence[Guard],
    checks: tuple[int, int],
    nodes: Mapping[Source, int],
    collected: Collection[Source],
    labels: Sequence[str],
) -> Pattern | None:
    """What another run is compared with; None where its checks cannot be repeated.

    Arguments:
        checks: that were added for the run.
        nodes: of all sources so far.
        labels: of the guards.
    """
    numbers = {source: number for number, source in enumerate(run.sources)}
    prefix = prefix_of(run.sources[0])
    if checks[1] - checks[0] != len(guards) or run.sources[0] not in nodes:
        return None
    places, positions = [], []
    for guard, label in zip(guards, labels):
        if guard.kind not in _OF_ONE or guard.source not in numbers or not label.startswith(prefix):
            return None
        places.append(numbers[guard.source])
        if guard.position is not None:
            positions.append((label[len(prefix) :], guard.position))
    wanted = [(number, nodes[source]) for source, number in numbers.items() if source in collected and source in nodes]
    return Pattern(guards, checks, nodes[run.sources[0]], prefix, places, positions, wanted)


def prefix_of(source: Source) -> str:
    """How labels of guards on a source, and on what is found below it, begin."""
    return f"{source.kind} '{source.friendly()}"


def _ask_the_same(guard: Guard, like: Guard) -> bool:
    if guard.kind != like.kind or guard.label != like.label or guard.position != like.position:
        return False
    mine, others = guard.args, like.args
    if mine is others:
        return True
    if guard.kind == "tensor":
        return mine[0] is others[0] and mine[1:] == others[1:]
    return identity_of(mine) == identity_of(others)


BY_VALUE: Final = frozenset((str, int, bool, bytes, type(None)))


def identity_of(args: Args) -> object:
    """A hashable stand-in for guard arguments: by value where that is exact, else by identity."""
    return tuple([_one_identity(arg) for arg in args])


def _one_identity(arg: Any) -> object:
    cls = type(arg)
    if cls is float:
        return (cls, repr(arg))
    if cls in BY_VALUE or issubclass(cls, Source):  # a subclass of the program's may hash and compare as it likes
        return (cls, arg)
    if type(arg) in (tuple, list):
        return (type(arg), tuple(_one_identity(item) for item in arg))
    if cls is dict:
        return (dict, tuple((_one_identity(key), _one_identity(value)) for key, value in arg.items()))
    return id(arg)
