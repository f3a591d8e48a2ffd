"""Numbers and sizes that vary from the first time on: what a graph break has read from data, what is counted in the
loop around it, and what varied before it. Seen once, each would be taken for a constant, and all of them compiled again
with the second round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from argand.bytecode.instruction import Instruction
from argand.capture.facts.frames import NULL
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import LocalSource, SequenceItemSource, Source
from argand.capture.facts.values.symbolic import SymbolicNumber, SymbolicSize
from argand.capture.facts.values.symbols import Place
from argand.capture.facts.values.tensor_info import TensorInfo

_OF_DATA = frozenset(("data-dependent value", "random number of Python's", "call of a library that is not captured"))
_DEPTH, _MOST = 3, 8


def after_break(
    instructions: Sequence[Instruction],
    at: int,
    stack: Iterable[object],
    values: Mapping[str, object],
    passed: Sequence[str],
    kind: str,
) -> set[str]:
    """Parameters of a resume function that hold such numbers, by themselves or in lists and tuples.

    Arguments:
        at: the place of the instruction at which the graph broke.
        stack, values: what is on its stack, and in its locals.
        passed: the parameters that carry the stack behind it.
        kind: why the graph broke.
    """
    moving = {name for name, value in _held(stack, values, passed) if _varies(value)}
    place = {id(inst): number for number, inst in enumerate(instructions)}
    for end, inst in enumerate(instructions[at:], at):
        if inst.target is not None and place[id(inst.target)] <= at:
            moving.update(*map(stored_by, instructions[place[id(inst.target)] : end]))
    if kind in _OF_DATA or instructions[at].opname == "FOR_ITER":
        moving.update(passed[-1:], *map(stored_by, instructions[at + 1 : at + 2]))
    return moving


def sizes_after_break(
    stack: Iterable[object], values: Mapping[str, object], passed: Sequence[str], tensors: Mapping[int, TensorInfo]
) -> set[str]:
    """The places of sizes that vary, of tensors in parameters of a resume function; arguments as for `after_break`.

    Arguments:
        tensors: what is known of stand-ins, by id.
    """
    held = _held(stack, values, passed)
    return {str(place) for name, value in held for place in _sizes(LocalSource(name), value, tensors)}


def still_varying(before: Iterable[tuple[str, object]], values: Mapping[str, object], varying: set[str]) -> set[str]:
    """Those of a frame's places that vary which are in the same object behind a break.

    Arguments:
        before: the frame's arguments.
    """
    same = tuple(LocalSource(name).name() for name, value in before if values.get(name) is value)
    return {place for place in varying if place.startswith(same)}


def _held(stack: Iterable[object], values: Mapping[str, object], passed: Sequence[str]) -> Iterator[tuple[str, object]]:
    yield from values.items()
    yield from zip(passed, (each for each in stack if each is not NULL))


def stored_by(inst: Instruction) -> set[str]:
    """The locals that an instruction assigns."""
    if inst.opname in ("STORE_FAST", "STORE_FAST_LOAD_FAST"):
        return {inst.argval if isinstance(inst.argval, str) else inst.argval[0]}
    return set(inst.argval) if inst.opname == "STORE_FAST_STORE_FAST" else set()


def is_one(moving: set[str], source: Source) -> bool:
    """Whether a number from outside is among them; of a long list those in front are."""
    while type(source) is SequenceItemSource and source.key < _MOST:
        source = source.parent
    return type(source) is LocalSource and source.key in moving


def _varies(value: object, depth: int = _DEPTH) -> bool:
    held = value[:_MOST] if type(value) is list or type(value) is tuple or type(value) is SymbolicSize else ()
    return is_a(value, SymbolicNumber) or (depth > 0 and any(_varies(each, depth - 1) for each in held))


def _sizes(source: Source, value: object, tensors: Mapping[int, TensorInfo], depth: int = _DEPTH) -> Iterator[Place]:
    if depth and (type(value) is list or type(value) is tuple):
        for number, each in enumerate(value[:_MOST]):
            yield from _sizes(SequenceItemSource(source, number), each, tensors, depth - 1)
    info = tensors.get(id(value))
    for dim, size in enumerate(info.dynamic.sizes if info is not None and info.dynamic is not None else ()):
        if type(size) is not int:
            yield Place(source, "size", dim)
