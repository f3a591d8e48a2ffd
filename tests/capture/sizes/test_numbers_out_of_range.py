"""Numbers that vary, of which a function raises or overflows in a later call: the error comes where eager's does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

FLOATS = (1.5, 2.5, 3.25, float("inf"), -2.5, float("-inf"), float("nan"), 1e200, 0.5)
WHOLE = (2, 3, 1 << 40, -7, 1 << 62, 1 << 63, 5)
OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "sin": math.sin,
    "tan": lambda v: math.tan(v * 1e200),
    "floor": math.floor,
    "int": lambda v: int(v * 3),
    "round": round,
    "power": lambda v: abs(v) ** 3.5,
    "math.pow": lambda v: math.pow(2.0, v),
}
OF_WHOLE: dict[str, Callable[[Any], Any]] = {
    "product": lambda v: v * v,
    "power": lambda v: v**7,
    "difference": lambda v: v - (1 << 63),
}


def outcome(fn: Callable[..., Any], number: Callable[[Any], Any], value: object, used: bool) -> object:
    said: list[str] = []
    try:
        result = repr(fn(torch.ones(2), number, value, said, used))
    except (ArithmeticError, ValueError) as error:
        result = repr(error)
    return result, said


def program(x: torch.Tensor, number: Callable[[Any], Any], value: Any, said: list[str], used: bool) -> torch.Tensor:
    said.append("before")
    computed = number(value)
    said.append("computed")
    x = x * 2 + computed if used else x * 2
    said.append("after")
    return x


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    ("number", "values"),
    [*((fn, FLOATS) for fn in OF_FLOATS.values()), *((fn, WHOLE) for fn in OF_WHOLE.values())],
    ids=[*OF_FLOATS, *(f"whole {name}" for name in OF_WHOLE)],
)
@argand.config.patch(cache_size_limit=64)
def test_the_error_comes_after_what_was_done_before(
    number: Callable[[Any], Any], values: tuple[Any, ...], used: bool
) -> None:
    compiled = argand.compile(program, backend="eager", dynamic=True)
    for value in values:
        assert outcome(compiled, number, value, used) == outcome(program, number, value, used)


EQUALS = (0.0, -0.0, 1.0, 1, True, 0, -1.0, 2)
CHOICES: dict[str, Callable[[Any, Any], object]] = {
    "max": lambda a, b: max(a, b),
    "min": lambda a, b: min(a, b),
    "max of a constant": lambda a, b: max(-0.0, a * 2.5, b),
    "min of a list": lambda a, b: min([0.0, a, b]),
}


@pytest.mark.parametrize("name", CHOICES)
@argand.config.patch(cache_size_limit=64)
def test_of_equal_numbers_the_first_is_chosen(name: str) -> None:
    def choose(x: torch.Tensor, a: float, b: float) -> Any:
        return x + 1, CHOICES[name](a, b)

    x = torch.ones(1)
    compiled = argand.compile(choose, backend="eager", dynamic=True)
    for a, b in itertools.product(EQUALS, repeat=2):
        assert repr(compiled(x, a, b)) == repr(choose(x, a, b))


def put(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x + 1
    y[:1] = math.erf(n * 0.5)
    return y


FROM_NUMBERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "tensor": lambda x, n: torch.tensor([2, n], dtype=torch.float32),
    "scalar": lambda x, n: torch.tensor(float(n)),
    "new": lambda x, n: x.new_tensor(n),
    "half": lambda x, n: torch.tensor([[n]], dtype=torch.bfloat16),
    "flat": lambda x, n: torch.tensor(math.tanh(n + 0.1)),
    "factor": lambda x, n: (x + 1) * math.erf(n * 0.6),
}


@pytest.mark.parametrize("name", FROM_NUMBERS)
def test_tensors_of_numbers_that_their_dtype_rounds(name: str) -> None:
    """Numbers near a large one make the same tensor, which is no constant."""
    make, x = FROM_NUMBERS[name], torch.zeros(2)
    compiled = argand.compile(make, backend="native", dynamic=True)
    for number in (1 << 40, 77, 1 << 41, 5, 2, 3):
        assert torch.equal(compiled(x, number), make(x, number))


@pytest.mark.parametrize("name", ["flat", "part"])
def test_numbers_that_are_flat_in_all_traces(name: str) -> None:
    make, x = {**FROM_NUMBERS, "part": put}[name], torch.zeros(2)
    compiled = argand.compile(make, backend="aot_eager", dynamic=True)
    for number in (5, 3, 2):
        assert torch.equal(compiled(x, number), make(x, number))


def test_infinities_among_what_is_computed() -> None:
    """Numbers that a call returns are computed by a text, in which infinities have names."""

    def compute(x: torch.Tensor, a: int) -> tuple[torch.Tensor, float]:
        return x + a, 1.5 - math.erf(a) / math.inf

    compiled = argand.compile(compute, backend="eager", dynamic=True)
    for number in (2, 3, 7):
        assert repr(compiled(torch.ones(1), number)) == repr(compute(torch.ones(1), number))


OF_DTYPES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "full": lambda x, a: torch.full((2,), a),
    "half": lambda x, a: torch.full((2,), a, dtype=torch.float16),
    "whole": lambda x, a: torch.full((2,), a, dtype=torch.int64),
    "clamp": lambda x, a: torch.clamp(x, max=a),
    "scaled": lambda x, a: torch.add(x, x, alpha=a),
    "product": lambda x, a: x * a,
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@argand.config.patch(cache_size_limit=64)
def test_numbers_that_a_dtype_cannot_hold(backend: str) -> None:
    """Eager refuses to convert them, when all before is done."""

    def filled(x: torch.Tensor, name: str, a: float, said: list[str]) -> torch.Tensor:
        said.append("before")
        return OF_DTYPES[name](x, a)

    def outcome(fn: Callable[..., Any], name: str, a: float) -> object:
        said: list[str] = []
        try:
            return repr(fn(torch.ones(2), name, a, said)), said
        except RuntimeError as error:
            return str(error), said

    compiled = argand.compile(filled, backend=backend)
    for name in OF_DTYPES:
        for a in (1.5, 2.5, 7e4, -1e308):
            assert outcome(compiled, name, a) == outcome(filled, name, a), (name, a)


@pytest.mark.filterwarnings("error:argand. capturing")
def test_limits_of_more_than_64_bits() -> None:
    def cut(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
        return x[max(m, n) :] + 1

    compiled = argand.compile(cut, backend="eager")
    for n, m in ((1, 2), (2, 3), (7, 1 << 63), (2, 1 << 62), (3, -(1 << 63))):
        assert torch.equal(compiled(torch.ones(3), n, m), cut(torch.ones(3), n, m))
