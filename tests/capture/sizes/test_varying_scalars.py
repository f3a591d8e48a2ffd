"""Scalars of numpy's that vary from call to call: one graph for all values, with numpy's types, values and errors."""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand
import sweeps
from helpers import CountingBackend

X = torch.arange(12.0).reshape(3, 4)
KINDS = [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64]


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """(types and values of what comes, warnings)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = fn(*args)
        except Exception as error:
            return type(error).__name__, str(error)
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return [(type(v), repr(v.tolist() if isinstance(v, torch.Tensor) else v)) for v in found], said


def graphs_for(program: Callable[..., Any], values: list[Any]) -> int:
    """Compares with eager for each value; how many graphs there were."""
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for value in values:
        assert outcome(compiled, X, value) == outcome(program, X, value), value
    return len(backend.graphs)


@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_for_all_values_that_torch_gets(kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * n + x, n, int(n), float(n), n.item(), n.dtype.name, n.shape, isinstance(n, np.integer), type(n)

    assert graphs_for(program, [kind(value) for value in range(2, 9)]) == 2


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_one_graph_with_arithmetic_and_comparisons(kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        m = -(n * 3 - 1) + n
        if n > 1 and not n == 77:
            x = x + m
        return x, m, n == 3.5, min(n, 50), max(n, kind(1), 0), n / 2

    assert graphs_for(program, [kind(value) for value in range(2, 9)]) == 2


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda n: np.sqrt(n),
    "abs": lambda n: np.abs(n) + np.absolute(n),
    "floor": lambda n: np.floor(n / 2) + np.floor(n),
    "ceil": lambda n: int(np.ceil(n / 2)) + np.ceil(n),
    "trunc": lambda n: np.trunc(n * 0.7),
    "arithmetic": lambda n: np.add(n, 2) * np.subtract(n, 0.5) + np.multiply(n, n) / np.divide(n, 4),
    "whole division": lambda n: np.floor_divide(n, 3) + np.remainder(n, 3),
    "product": lambda n: np.prod([n, 3, n]) + np.prod((n,)),
    "sum": lambda n: np.sum([n, 3, 4]),
    "largest": lambda n: np.maximum(n, 3) + np.max([3, n]) - np.minimum(5, n) - np.min((n, 5)),
}


@pytest.mark.parametrize("kind", [int, float, np.int64, np.int32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_numpys_on_numbers(name: str, kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        result = FUNCTIONS[name](n)
        return x * result, result, isinstance(result, np.generic)

    graphs = graphs_for(program, [kind(value) for value in (5, 6, 7, 8, 9, 11)])
    if kind is int or (kind is float and name in ("sqrt", "abs", "floor", "ceil", "trunc", "arithmetic")):
        assert graphs == 2
    with contextlib.suppress(ValueError, OverflowError):  # where the kind has no such number
        for value in (0, -3, 2**62, -0.5, -0.0, 1e308, float("inf"), float("nan")):
            other = kind(value)
            compiled = argand.compile(program, backend="eager")  # where numpy warns, the graph ends
            for n in (kind(4), kind(5), other):
                assert outcome(compiled, X, n) == outcome(program, X, n), n


def test_functions_of_numpys_on_sizes() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        y = x[:n]
        return y / np.sqrt(y.shape[0]), np.prod(y.shape), int(np.prod(y.shape[1:])), np.sum(y.size()), np.max(y.shape)

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for n in (5, 6, 7, 9):
        x = torch.ones(n, 4)
        assert outcome(compiled, x, n) == outcome(program, x, n)
    assert len(backend.graphs) == 2


def test_sizes_and_slices() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x.reshape(-1)[:n], torch.zeros(n), torch.arange(n), x.new_ones((n, 2)), torch.full((2,), n)

    assert graphs_for(program, [np.int64(value) for value in range(2, 9)]) == 2


def test_an_attribute_that_counts() -> None:
    class Counter:
        def __init__(self) -> None:
            self.steps = np.int64(2)

    def program(counter: Any, x: torch.Tensor) -> Any:
        counter.steps = counter.steps + 1
        return (x * counter.steps,)

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    ours, eagers = Counter(), Counter()
    for _ in range(6):
        assert outcome(compiled, ours, X) == outcome(program, eagers, X)
        assert (type(ours.steps), ours.steps) == (np.int64, eagers.steps)
    assert len(backend.graphs) == 2


def test_constructors_have_the_dtype_of_the_scalar() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        made = [torch.tensor(n), torch.as_tensor([n, n]), torch.scalar_tensor(n), x.new_tensor([n])]
        return (*made, *[t.dtype for t in made])

    for kind in KINDS:
        compiled = argand.compile(program, backend="eager")
        for value in (2, 3, 4):
            assert outcome(compiled, X, kind(value)) == outcome(program, X, kind(value))


def test_the_type_is_guarded() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x + n, n + n

    compiled = argand.compile(program, backend="eager")
    for value in (np.int64(2), np.int64(3), 3, np.int32(3), 3.0, np.float64(3), np.int64(4), np.int32(4), True):
        assert outcome(compiled, X, value) == outcome(program, X, value)


OPERATORS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow)
COMPARISONS = (operator.lt, operator.eq, operator.ge)
VALUES = {
    np.int8: [2, 3, 100, -7, 127],
    np.uint8: [2, 3, 200, 255, 5],
    np.int32: [2, 3, 2**30, -9, 2**31 - 1],
    np.int64: [2, 3, 2**55 + 1, -(2**62), 2**63 - 1],
    np.float32: [2.5, 0.1, 16777217.0, -3e38, 1e-40],
    np.float64: [2.5, 0.1, 2.0**53, -1.7e308, 1e-310],
}


@pytest.mark.parametrize("kind", KINDS)
def test_operators_with_every_other_number(kind: Any) -> None:
    """Python's numbers, constants of numpy's, and others that vary: overflow, rounding and warnings are numpy's.

    Each function with every third of the others, which are not the same for the next kind.
    """
    others: list[Any] = [3, -2, 0.1, True, 300, np.int32(7), np.float32(0.1), np.float64(0.1), np.uint8(200)]
    place = list(KINDS).index(kind)
    for number, function in enumerate((*OPERATORS, *COMPARISONS)):
        tried = others if sweeps.WHOLE else others[(number + place) % 3 :: 3]

        def program(x: torch.Tensor, n: Any, other: Any, function: Any = function) -> Any:
            return x + 1, function(n, other), function(other, n), function(n, n)

        with argand.config.patch(cache_size_limit=1000):
            compiled = argand.compile(program, backend="eager")
            for other, value in itertools.product(tried, VALUES[kind]):
                given = X, kind(value), other
                assert outcome(compiled, *given) == outcome(program, *given), (function.__name__, given[1:])


def test_both_vary() -> None:
    def program(x: torch.Tensor, n: Any, m: Any) -> Any:
        return x * (n + m), n + m, n * m, n - m, n < m, m / 3, (n if n > m else m), n in (5, 6), {5: "five"}.get(m)

    compiled = argand.compile(program, backend="eager")
    for a, b in itertools.product((2, 3, 5), (4, 5, 6, 250)):
        for left, right in ((np.uint8, np.int32), (np.int64, np.float64), (np.uint8, int), (float, np.int64)):
            assert outcome(compiled, X, left(a), right(b)) == outcome(program, X, left(a), right(b))


def test_after_a_graph_break_and_in_a_loop() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        for _ in range(2):
            x = x * n
            argand.graph_break()
            n = n + 1
        return x, n

    compiled = argand.compile(program, backend="eager")
    for value in range(2, 7):
        assert outcome(compiled, X, np.int64(value)) == outcome(program, X, np.int64(value))


def test_errors_that_raise_are_numpys() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x + 1, n * n

    compiled = argand.compile(program, backend="eager")
    for value in (np.float64(2), np.float64(3), np.float64(4)):
        assert outcome(compiled, X, value) == outcome(program, X, value)
    with np.errstate(all="raise"):
        for value in (np.float64(1e200), np.float64(1e-200), np.float64(5)):
            assert outcome(compiled, X, value) == outcome(program, X, value)


def test_gradients_on_the_native_backend() -> None:
    def program(x: torch.Tensor, n: Any, f: Any) -> Any:
        return ((x * n).sin() * f).sum()

    compiled = argand.compile(program, fullgraph=True)
    for value in range(2, 6):
        grads = []
        for fn in (program, compiled):
            x = X.clone().requires_grad_()
            fn(x, np.int64(value), np.float32(value + 0.5)).backward()
            grads.append(x.grad)
        torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64, np.float32])
def test_absolute_and_rounded(kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * abs(n), abs(n), round(n) if kind is np.int64 else 0

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for number in (2, 3, 7, -5, -6, 4, -9, 0):
        want, got = program(torch.arange(3.0), kind(number)), compiled(torch.arange(3.0), kind(number))
        assert repr(got) == repr(want)
        assert list(map(type, got)) == list(map(type, want))
    assert len(backend.graphs) <= 6  # of numbers of each sign, of zero, and of the first
