"""Generators that captured code has begun and that go on behind a graph break: `with` over `contextmanager`s, `next`,
`send`, `throw`, `close`; values, the order of effects, exceptions and the lines of tracebacks as in eager."""

from __future__ import annotations

import contextlib
import linecache
import random
import textwrap
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings
from helpers import try_seeds

T = torch.Tensor
Log = list[object]


@contextlib.contextmanager
def noted(log: Log, name: str) -> Iterator[str]:
    log.append(f"enter {name}")
    try:
        yield name
    except ValueError as error:
        log.append(f"error {name} {error}")
    finally:
        log.append(f"leave {name}")


def doubled(x: T, count: int, log: Log) -> Iterator[T]:
    scale = 2.0
    given = None
    for number in range(count):
        log.append(number)
        given = yield x * scale + number
        if given is not None:
            scale = given


def broken(log: Log) -> None:
    log.append("break")
    print(end="")


def a_manager(x: T, log: Log) -> T:
    with noted(log, "a") as name:
        x = x.sin()
        broken(log)
        x = x.cos() + len(name)
    return x * 2


def two_managers(x: T, log: Log) -> T:
    with noted(log, "a"), noted(log, "b"):
        x = x.sin()
        print(end="")
        x = x.cos()
    return x * 2


def an_error_inside(x: T, log: Log) -> T:
    with noted(log, "a"):
        x = x.sin()
        print(end="")
        x = x.cos()
        raise ValueError("inside")
    return x * 2


def a_stack_of_managers(x: T, log: Log) -> T:
    with contextlib.ExitStack() as stack:
        stack.enter_context(noted(log, "a"))
        x = x.sin()
        print(end="")
        stack.callback(log.append, "called")
        stack.enter_context(noted(log, "b"))
        x = x.cos()
    return x * 2


def no_gradients(x: T, log: Log) -> T:
    @contextlib.contextmanager
    def without() -> Iterator[None]:
        with torch.no_grad():
            log.append(torch.is_grad_enabled())
            yield
        log.append(torch.is_grad_enabled())

    with without():
        y = x.sin()
        print(end="")
        y = y * 2
    return y.cos() + x * torch.is_grad_enabled()


def nothing_recorded_before(x: T, log: Log) -> T:
    with noted(log, "a"):
        print(end="")
        x = x.cos()
    return x


@pytest.mark.parametrize(
    "program",
    [a_manager, two_managers, an_error_inside, a_stack_of_managers, no_gradients, nothing_recorded_before],
)
def test_a_manager_is_one_break(program: Callable[[T, Log], T]) -> None:
    findings, compiled = Findings(), argand.compile(program, backend="eager")
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        ours: Log = []
        theirs: Log = []
        with findings.listening():
            got = compiled(x, ours)
        want = program(x, theirs)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.requires_grad == want.requires_grad
        assert ours == theirs
    assert len({(reason.id, reason.where[-1].lineno) for reason in findings.breaks}) == 1


def walked(x: T, log: Log) -> T:
    for value in doubled(x, 3, log):
        x = x + value
        print(end="")
    return x


def sent(x: T, log: Log) -> T:
    values = doubled(x, 4, log)
    x = x + next(values)
    print(end="")
    x = x + values.send(5.0)
    print(end="")
    x = x + next(values)
    values.close()
    return x + len(list(values))


def ended(x: T, log: Log) -> T:
    values = doubled(x, 1, log)
    x = x + next(values)
    print(end="")
    return x + len(list(values))


def thrown(x: T, log: Log) -> T:
    values = doubled(x, 4, log)
    x = x + next(values)
    print(end="")
    try:
        values.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error))
    return x + len(list(values))


def by_bound_methods(x: T, log: Log) -> T:
    values = doubled(x, 4, log)
    x = x + next(values)
    send, step = values.send, values.__next__
    print(end="")
    return x + send(3.0) + step() + len(type(send).__name__)


def called_at_the_break(x: T, log: Log) -> T:
    values = doubled(x, 4, log)
    x = x + next(values)
    try:
        values.throw(KeyError("k"))
    except KeyError:
        print(end="")
    return x + len(list(values))


def handed_back(x: T, log: Log) -> object:
    values = doubled(x, 3, log)
    return next(values), values


@pytest.mark.parametrize("program", [walked, sent, ended, thrown, by_bound_methods, called_at_the_break])
def test_generators_by_hand(program: Callable[[T, Log], T]) -> None:
    compiled, x = argand.compile(program, backend="eager"), torch.randn(3)
    for _ in range(3):
        ours: Log = []
        theirs: Log = []
        torch.testing.assert_close(compiled(x, ours), program(x, theirs), rtol=0, atol=0)
        assert ours == theirs


def test_a_generator_that_leaves_the_graph() -> None:
    x, log = torch.randn(3), list[object]()
    first, values = argand.compile(handed_back, backend="eager")(x, log)
    torch.testing.assert_close(first, x * 2)
    assert type(values).__name__ == "generator" and values.__qualname__ == "doubled"
    torch.testing.assert_close(values.send(4.0), x * 4 + 1)
    assert [len(item) for item in values] == [3]
    assert log == [0, 1, 2]


# ---- random programs -------------------------------------------------------------------------------------------------

HEAD = """
import contextlib
import torch

@contextlib.contextmanager
def manager(log, name, swallow):
    log.append(('in', name))
    try:
        yield name
    except swallow as error:
        log.append(('caught', name, str(error)))
    finally:
        log.append(('out', name))

@contextlib.contextmanager
def setting(obj, value):
    old, obj.value = obj.value, value
    try:
        yield obj
    finally:
        obj.value = old

class Plain:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log.append('plain in')
        return self
    def __exit__(self, kind, error, tb):
        self.log.append(('plain out', None if kind is None else kind.__name__))

def counted(x, log, count):
    total = 0
    try:
        for number in range(count):
            got = yield x * number + total
            total = total + (got or 1)
            log.append(('total', total))
    finally:
        log.append('counted out')

def pairs(x, log):
    log.append('first')
    yield x + 1
    log.append('second')
    yield x.sin()
    log.append('third')

def helper(x, log, obj):
    log.append('helper')
    print(end='')
    return x * obj.value

def raising(x, log, obj, number):
    if number == 0:
        raise ValueError('zero')
    if number == 1:
        raise KeyError('one')
    return x.cos() + number
"""

STEPS = (
    "x = x.sin()", "x = x * obj.value + 1", "print(end='')", "print(end='')", "log.append(len(log))",
    "log.append('said')", "x = helper(x, log, obj)", "x = raising(x, log, obj, {n})", "obj.value = {n} + 1",
    "x = x + next(g, 7)", "x = x + (next(g) if g is not None else 0)", "g = pairs(x, log)", "g = counted(x, log, {n})",
    "x = x + g.send(None)", "g.close()", "log.append(type(g).__name__)", "obj.count += 1", "log.append(x.dim())",
    "x = x + len(list(g or ()))", "g.throw(ValueError('thrown'))", "held = stack.enter_context(manager(log, 's{n}', KeyError))",
    "log.extend([x.shape[0], {n}])", "g = iter([1, 2, 3])",
)  # fmt: skip
BLOCKS = (
    "with manager(log, 'w{n}', ValueError) as name:", "with manager(log, 'k{n}', KeyError):", "with setting(obj, {n} + 2):",
    "with Plain(log) as plain:", "for step in range({n}):", "for value in pairs(x, log):", "with torch.no_grad():",
    "with contextlib.suppress(ValueError):", "for value in counted(x, log, {n}):", "if x.shape[0] == 2:",
    "with manager(log, 'a', ValueError), manager(log, 'b', KeyError):",
)  # fmt: skip


def block(rng: random.Random, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(rng.randint(1, 4)):
        kind, n = rng.random(), rng.randint(0, 3)
        if depth < 3 and kind < 0.35:
            lines += [rng.choice(BLOCKS).format(n=n), *inner(rng, depth)]
        elif depth < 3 and kind < 0.5:
            lines += ["try:", *inner(rng, depth)]
            handlers = rng.random()
            if handlers < 0.6:
                caught = rng.choice(("ValueError", "KeyError", "(StopIteration, AttributeError)", "Exception"))
                lines += [f"except {caught} as error:", "    log.append(repr(error))", *inner(rng, depth)]
            if handlers > 0.3:
                lines += ["finally:", "    log.append('finally')", *inner(rng, depth)]
        else:
            lines.append(rng.choice(STEPS).format(n=n))
    return lines


def inner(rng: random.Random, depth: int) -> list[str]:
    return ["    " + line for line in block(rng, depth + 1)]


def random_program(number: int) -> str:
    rng = random.Random(number)
    body = ["g = None", "with contextlib.ExitStack() as stack:", *inner(rng, 0), "return x, obj.value"]
    return HEAD + "\ndef program(x, log, obj):\n" + textwrap.indent("\n".join(body), "    ") + "\n"


class Settings:
    def __init__(self) -> None:
        self.value = 2
        self.count = 0


def ran(program: Callable[..., object], x: T, obj: Settings, filename: str) -> list[object]:
    """What the program gave or raised, and from which of its lines; its log; its settings."""
    log: list[object] = []
    try:
        result: object = program(x, log, obj)
    except Exception as error:
        lines = [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == filename]  # fmt: skip
        context = type(error.__context__).__name__, type(error.__cause__).__name__
        result = repr(error), lines, context
    return [repr(result), repr(log), obj.value, obj.count, torch.is_grad_enabled()]


def disagreement(number: int) -> str:
    text, filename = random_program(number), f"<program {number}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    made: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), made)
    compiled, ours, theirs = argand.compile(made["program"], backend="eager"), Settings(), Settings()
    for call in range(4):
        x = torch.full((call // 2 % 2 + 2,), 0.5)
        got, want = ran(compiled, x, ours, filename), ran(made["program"], x, theirs, filename)
        if got != want:
            shown = text[len(HEAD) :]
            return f"{number}, call {call}:\n" + "\n".join(f"{a}\n{b}" for a, b in zip(got, want) if a != b) + shown
    return ""


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    argand.reset()
    assert not disagreement(seed)


if __name__ == "__main__":  # PYTHONPATH=tests python tests/capture/objects/test_generators_across_breaks.py FIRST LAST
    try_seeds(disagreement)
