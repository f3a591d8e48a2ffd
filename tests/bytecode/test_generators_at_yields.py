"""Generators made anew at a yield: they go on, end and raise as the ones that they stand for."""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from argand.bytecode import generators_at_yields
from argand.bytecode.decode import decode

LOG: list[object] = []


def numbers(count: int, more: int) -> Iterator[int]:
    factor = 5

    def total() -> int:
        return factor + more

    try:
        for number in range(count):
            try:
                got = yield number * factor + total()
                LOG.append((got, total()))
                factor += 1
            except ValueError as error:
                LOG.append((str(error), number))
    finally:
        LOG.append("out")


def real() -> Any:
    generator = numbers(4, 1)
    next(generator)
    return generator


def anew() -> Any:
    """As `real` is: before the second number."""
    code = numbers.__code__
    instructions = decode(code)
    at = next(i for i, inst in enumerate(instructions) if inst.opname == "RESUME" and i and inst.arg and inst.arg & 1)
    cells = {"factor": types.CellType(5), "more": types.CellType(1)}
    body = next(const for const in code.co_consts if isinstance(const, types.CodeType))
    total = types.FunctionType(body, globals(), "total", None, tuple(cells[name] for name in body.co_freevars))
    code_there = generators_at_yields.suspended_code(code, instructions, at, 1, ("count", "total", "number"))
    assert code_there is not None
    closure = tuple(cells[name] for name in generators_at_yields.cells_of(code))
    held = (iter(range(1, 4)), 4, total, 0)
    return generators_at_yields.make(code_there, globals(), "numbers", "numbers", closure, held)


def thrown(generator: Any, error: BaseException) -> object:
    try:
        return generator.throw(error), list(generator)
    except Exception as caught:
        frames = traceback.extract_tb(caught.__traceback__)[1:]
        return repr(caught), [(frame.name, frame.lineno) for frame in frames]


USES: list[Callable[[Any], object]] = [
    lambda generator: (next(generator), generator.send("sent"), list(generator)),
    lambda generator: thrown(generator, ValueError("v")),
    lambda generator: thrown(generator, KeyError("k")),
    lambda generator: thrown(generator, StopIteration("s")),
    lambda generator: generator.close(),
    lambda generator: (generator.__name__, generator.gi_frame.f_lineno, generator.gi_yieldfrom),
    lambda generator: None,  # which drops it
]


@pytest.mark.parametrize("number", range(len(USES)))
def test_goes_on_as_the_one_that_it_stands_for(number: int) -> None:
    outcomes = []
    for start in (real, anew):
        LOG.clear()
        result = USES[number](start())
        outcomes.append((result, list(LOG)))
    assert outcomes[0] == outcomes[1]


def test_is_known_while_it_stands_there() -> None:
    LOG.clear()
    generator = anew()
    assert generators_at_yields.origin(generator) is not None
    assert generators_at_yields.held(generator)[1] == 4
    next(generator)
    assert generators_at_yields.origin(generator) is None
    other = anew()
    LOG.clear()
    generators_at_yields.finish(other)
    assert not LOG and list(other) == []
