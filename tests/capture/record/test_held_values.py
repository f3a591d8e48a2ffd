"""Small tensors that the program keeps: known by their values, under a guard, where captured code asks for them."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import CountingBackend

import argand


class Schedule:
    def __init__(self) -> None:
        self.steps = torch.tensor([4.0, 2.0, 1.0])
        self.count = torch.zeros((), dtype=torch.int64)
        self.ready = torch.tensor(False)


def test_branches_on_a_table_are_in_one_graph() -> None:
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        for step in schedule.steps:
            if step > 1.5:
                x = x * step
        position = (schedule.steps == 2.0).nonzero()[0].item()
        return x + schedule.steps[position:].sum() + len(schedule.steps.unique())

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), f(x))


def test_written_between_calls() -> None:
    """The first change is compiled anew, from then on the graph breaks at the branch: no further graph for a value."""
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        if schedule.steps.sum() > 6:
            return x * 2
        return x * 3

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    x = torch.ones(2)
    for value in (4.0, 4.0, 1.0, 7.0, 0.5, 9.0, -3.0, 5.0):
        schedule.steps[0] = value
        assert torch.equal(compiled(x), f(x))
    assert len(backend.graphs) <= 4


def test_another_tensor_with_the_same_values() -> None:
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if schedule.steps[0] > 3 else x

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    for _ in range(3):
        schedule.steps = schedule.steps.clone()
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(backend.graphs) == 1


def test_a_flag_may_take_both_its_values() -> None:
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if schedule.ready else x * 3

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    for flag in (False, True, False, True):
        schedule.ready.fill_(flag)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0 if flag else 3.0))
    assert len(backend.graphs) == 2


def test_written_in_the_graph() -> None:
    """A count that the function itself writes to is not what it was when the frame began."""
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        schedule.count.add_(1)
        return x * 2 if schedule.count > 2 else x

    compiled = argand.compile(f, backend="eager")
    results = [compiled(torch.ones(1)).item() for _ in range(4)]
    assert results == [1.0, 1.0, 2.0, 2.0]


def test_written_through_another_tensor_of_the_same_memory() -> None:
    schedule, other = Schedule(), Schedule()
    other.steps = schedule.steps[:1]

    def f(x: torch.Tensor) -> torch.Tensor:
        first = schedule.steps[0] + 0
        other.steps.add_(x)
        return x * 2 if schedule.steps[0] > 5 else x * first

    compiled = argand.compile(f, backend="eager")
    for _ in range(3):
        schedule.steps[0] = 4.0
        want = f(torch.ones(1))
        schedule.steps[0] = 4.0
        assert torch.equal(compiled(torch.ones(1)), want)


@pytest.mark.parametrize("zero", [0.0, -0.0, float("nan")])
def test_values_are_compared_bit_by_bit(zero: float) -> None:
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * (1 if torch.signbit(schedule.steps[0]) else 2)

    compiled = argand.compile(f, backend="eager")
    for value in (0.0, zero, zero):
        schedule.steps[0] = value
        assert torch.equal(compiled(torch.ones(1)), f(torch.ones(1)))


def test_arguments_are_data() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(argand.errors.Unsupported):
        argand.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


def test_known_tensors_as_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        table = numpy.array(schedule.steps**0.5)
        halves = numpy.interp(numpy.array([0.5, 1.5]), numpy.arange(3), table)
        steps = torch.from_numpy(halves)
        return x * steps[0] if steps[0].item() > steps[1].item() else x

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), f(torch.ones(2)))


def test_a_count_is_compiled_once() -> None:
    """What the function itself writes to is taken for what varies from the beginning."""
    schedule = Schedule()

    def f(x: torch.Tensor) -> torch.Tensor:
        if schedule.count >= 3:
            x = x * 2
        schedule.count += 1
        return x + 1

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    results = [compiled(torch.ones(1)).item() for _ in range(6)]
    assert results == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    assert len(backend.graphs) <= 3


def test_an_argument_that_is_a_size() -> None:
    """A tensor of one integer in the place of a size is guarded like the size; once it varies, the graph breaks."""

    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(n, 2)
        return torch.cat([zeros, x[:n]]).view(2 * n, 2).narrow(0, 0, n) + x.sum()

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    x = torch.arange(20.0).view(10, 2)
    for size in (3, 3, 3):
        assert torch.equal(compiled(x, torch.tensor(size)), f(x, torch.tensor(size)))
    assert len(backend.graphs) == 1
    for size in (4, 2, 7, 1, 10, 3):
        assert torch.equal(compiled(x, torch.tensor(size)), f(x, torch.tensor(size)))


def test_an_argument_is_not_asked_for_a_branch() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * 2 if n > 2 else x

    with pytest.raises(argand.errors.Unsupported):
        argand.compile(f, backend="eager", fullgraph=True)(torch.ones(2), torch.tensor(3))
