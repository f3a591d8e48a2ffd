"""Containers of very many values that captured code makes: rebuilt in time that the program would not notice."""

from __future__ import annotations

import collections
import copy
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand.bytecode.assemble import Assembler
from argand.capture.world import shadows

N = 120_000
SHARED: list[int] = []


def _grown(x: torch.Tensor) -> Any:
    SHARED.clear()
    SHARED.extend([7] * N)
    return x + 1


class Named(list[int]):
    pass


MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "list": lambda x: (x + 1, [0] * N),
    "mixed": lambda x: (x + 1, [0, 0.0, False, None, "a", b"a", -0.0, 1j] * (N // 8)),
    "tuple": lambda x: (x + 1, (0, 1.5) * N),
    "dict": lambda x: (x + 1, dict.fromkeys(range(N), 1)),
    "ordered dict": lambda x: (x + 1, collections.OrderedDict.fromkeys(range(N))),
    "deque": lambda x: (x + 1, collections.deque([1] * N, maxlen=N - 1)),
    "subclass": lambda x: (x + 1, Named([3] * N)),
    "list of tuples": lambda x: (x + 1, list(zip(range(N), range(N)))),
    "one list, many times": lambda x: (x + 1, [[1]] * N),
    "tensors": lambda x: (x + 1, [x * 2] * N),
}


def _plain(value: Any) -> Any:
    """Contents with types and signs, tensors as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), list(value.items())
    if isinstance(value, (list, tuple, collections.deque)):
        texts: dict[int, Any] = {}
        for item in value:
            if id(item) not in texts:
                texts[id(item)] = _plain(item)
        return type(value), [texts[id(item)] for item in value]
    return repr(value)


@pytest.mark.parametrize("name", MADE)
def test_many_values_are_rebuilt_in_little_time(name: str) -> None:
    program = MADE[name]
    x = torch.ones(2)
    want = _plain(program(x))
    compiled = argand.compile(program, backend="eager")
    begin = time.thread_time()
    made = [compiled(x) for _ in range(2)]
    assert time.thread_time() - begin < 4, "a million instructions take half a minute"
    assert all(_plain(value) == want for value in made)
    assert made[0][1] is not made[1][1], "each call makes its own"


def test_what_a_call_does_to_its_container_is_not_seen_by_the_next() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, [0] * 100, dict.fromkeys(range(100), 2)

    compiled = argand.compile(program, backend="eager")
    for _ in range(3):
        _, items, table = compiled(torch.ones(2))
        assert items == [0] * 100 and table == dict.fromkeys(range(100), 2)
        items.append(1)
        table[0] = 5


def test_same_objects_stay_the_same() -> None:
    def program(x: torch.Tensor) -> Any:
        big = int("1" * 30)
        nan = float("nan")
        return x + 1, [big, nan] * 50, [x * 2, big, nan] * 50

    _, plain, mixed = argand.compile(program, backend="eager")(torch.ones(2))
    assert plain[0] is plain[98] is mixed[1] and plain[1] is plain[99] is mixed[2]
    assert mixed[0] is mixed[147]


def test_a_list_from_outside_gets_many_values() -> None:
    argand.compile(_grown, backend="eager")(torch.ones(2))
    assert SHARED == [7] * N
    SHARED.clear()


def test_a_container_of_too_many_objects_is_made_where_the_program_makes_it() -> None:
    """The graph ends there: what comes before and after it is compiled."""

    def program(x: torch.Tensor) -> Any:
        y = x.sin()
        made = [(i,) for i in (1, 2)]
        made = made * N
        return y.cos(), made

    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    y, made = compiled(x)
    assert torch.equal(y, program(x)[0]) and made == [(1,), (2,)] * N
    assert made[0] is made[2] and copy.copy(made) == made


def test_few_instructions_for_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []
    emit = Assembler.emit

    def counted(self: Assembler, opname: str, *args: Any, **more: Any) -> Any:
        emitted.append(opname)
        return emit(self, opname, *args, **more)

    monkeypatch.setattr(Assembler, "emit", counted)
    argand.compile(lambda x: (x + 1, [0] * 5000), backend="eager")(torch.ones(2))
    assert len(emitted) < 500


BIG = list(range(2 * shadows.MOST_ELEMENTS))
TABLE = dict.fromkeys(BIG, 1)
NESTED = [[i] * 1000 for i in range(2000)]

READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sin() + sum(BIG) % 3,
    "max": lambda x: x.sin() + max(BIG) % 3,
    "copy": lambda x: (x.sin(), list(BIG)),
    "sorted": lambda x: (x.sin(), sorted(TABLE)[0]),
    "dict values": lambda x: x.sin() + sum(TABLE.values()) % 3,
    "one element": lambda x: x.sin() + BIG[5] + TABLE[7],
    "set": lambda x: (x.sin(), len(set(BIG))),
    "deque": lambda x: (x.sin(), DEQUE.count(3)),
}
DEQUE = collections.deque(BIG)


@pytest.mark.parametrize("name", READ)
def test_containers_of_very_many_elements_are_not_guarded(name: str) -> None:
    program, x = READ[name], torch.ones(2)
    compiled = argand.compile(program, backend="eager")
    begin = time.thread_time()
    for changed in (False, True):
        BIG[3], TABLE[3] = (11, 12) if changed else (3, 1)
        assert _plain(compiled(x)) == _plain(program(x))
    assert time.thread_time() - begin < 3


def test_a_list_that_grows_without_end() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        SHARED.extend([3] * shadows.MOST_ELEMENTS)
        return x.sin() + len(SHARED)

    SHARED.clear()
    compiled = argand.compile(program, backend="eager")
    begin = time.thread_time()
    made = [compiled(torch.ones(2)) for _ in range(4)]
    assert time.thread_time() - begin < 15
    want = [torch.ones(2).sin() + (n + 1) * shadows.MOST_ELEMENTS for n in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(made, want)) and SHARED == [3] * 4 * shadows.MOST_ELEMENTS
    SHARED.clear()


def test_guards_are_made_within_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list is short; two million guards would take a minute."""
    monkeypatch.setattr(shadows, "MOST_ELEMENTS", 10**9)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + sum(map(sum, NESTED)) % 7

    compiled = argand.compile(program, backend="eager")
    begin = time.thread_time()
    with argand.config.patch(capture_time_limit=0.5):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert time.thread_time() - begin < 6


def test_many_short_containers_are_not_guarded_either() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.sin() + torch.tensor(NESTED).sum() % 7

    compiled = argand.compile(program, backend="eager")
    begin = time.thread_time()
    for changed in (1, 5):
        NESTED[1999][3] = changed
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert time.thread_time() - begin < 6


COUNT = 10_000_000
FOLDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum of a range": lambda x: x + sum(range(COUNT)),
    "sum from a float": lambda x: x + sum(range(1, COUNT, 3), 0.5),
    "sum of a list": lambda x: x + sum([1.5] * COUNT),
    "product": lambda x: x + math.prod([1] * (COUNT // 2)),
    "max of a range": lambda x: x + max(range(COUNT)),
    "min or default": lambda x: x + min(range(0), default=3),
    "any": lambda x: x + any([0, "", None] * (COUNT // 10)),
    "all": lambda x: x + all(range(1, COUNT)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_many_plain_values_become_one_without_a_round_for_each(name: str) -> None:
    program, x = FOLDED[name], torch.ones(2)
    want = program(x)
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    begin = time.thread_time()
    assert torch.equal(compiled(x), want)
    assert time.thread_time() - begin < 1.5


def test_folding_stops_at_what_is_no_plain_value() -> None:
    def program(x: torch.Tensor, shown: list[str]) -> Any:
        class Told:
            def __bool__(self) -> bool:
                shown.append("asked")
                return True

            def __radd__(self, other: Any) -> Any:
                shown.append("added")
                return other + 1

        return x + any([0, Told(), Told()]) + sum([1, Told(), True], 2.0), all([1, x.shape[0] > 5, Told()])

    eager, compiled = [], []
    want = program(torch.ones(2), eager)
    made = argand.compile(program, backend="eager")(torch.ones(2), compiled)
    assert torch.equal(made[0], want[0]) and made[1] == want[1] and compiled == eager


TABLES: dict[str, Callable[[torch.Tensor], Any]] = {
    "floats": lambda x: torch.tensor([[1.5] * 1000] * 1000),
    "mixed": lambda x: torch.tensor([(True, 2, 2.5, 1j)] * 1000),
    "integers": lambda x: torch.as_tensor([list(range(500))] * 2, dtype=torch.float64),
    "one row": lambda x: torch.asarray([7] * 5000, dtype=torch.int16),
    "device": lambda x: torch.tensor([1.0] * 2000, device=x.device),
    "data by name": lambda x: torch.tensor(data=[1.0] * 2000),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_tensor_of_very_many_numbers_is_held_by_the_graph(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        made = TABLES[name](x)
        made.view(-1)[0] = 0
        return made, made * 2

    x = torch.ones(2)
    want = program(x)
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    begin = time.thread_time()
    for _ in range(2):  # what the program writes to is a copy
        for a, b in zip(compiled(x), want):
            assert torch.equal(a, b) and a.dtype is b.dtype and a.stride() == b.stride()
    assert time.thread_time() - begin < 2.5


def test_tables_that_torch_refuses() -> None:
    for table in (
        [[1] * 1000, [1] * 999],
        [1 << 70] * 2000,
        [[]] * 2000,
        [[1] * 20, [1] * 19],
        [1, [2]] * 20,
        [[1], 2],
    ):

        def program(x: torch.Tensor) -> Any:
            try:
                return x + 1, torch.tensor(table).shape  # noqa: B023
            except (ValueError, RuntimeError, TypeError, OverflowError) as error:
                return x + 1, str(error)

        assert argand.compile(program, backend="eager")(torch.ones(2))[1] == program(torch.ones(2))[1]


def test_a_table_has_the_default_dtype_and_device_of_its_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[1.5] * 1000] * 2)

    def on_meta(x: torch.Tensor) -> torch.Tensor:
        with torch.device("meta"):
            return torch.tensor([[1.5] * 1000] * 2)

    compiled, x = argand.compile(program, backend="eager"), torch.ones(2)
    assert compiled(x).dtype is torch.float32
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype is torch.float64 and compiled(x)[1, 3] == 1.5
    finally:
        torch.set_default_dtype(before)
    assert argand.compile(on_meta, backend="eager")(x).device.type == "meta"
