"""What counts as a wrong result, and what does not."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from argand.debug.accuracy import TOLERANCE, compare, same
from argand.debug.trial.eager import in_float64, run_forward_backward, widened
from debug.minify_helpers import graph_for


def test_equal_results() -> None:
    x = torch.randn(4, 5)
    assert same([x, {"a": (x, 1, "b", None)}], [x.clone(), {"a": (x.clone(), 1, "b", None)}])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rounding_is_no_error_and_an_error_is(dtype: torch.dtype) -> None:
    x = torch.randn(1000, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    tolerance = TOLERANCE[dtype]
    assert same(x, (x * (1 + tolerance / 10)).to(dtype))
    assert not same(x, (x * (1 + tolerance * 30)).to(dtype))


def test_one_wrong_element_among_many_is_seen() -> None:
    x = torch.randn(1_000_000)
    y = x.clone()
    y[123456] += 0.1
    found = compare(x, y)
    assert found is not None and found.kind == "value" and "1 of 1000000" in found.text


def test_float64_decides() -> None:
    """Eager's float32 sum is off; a compiled result that is closer to the right one is no error."""
    right = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = (right * (1 + 3e-4)).float()
    assert not same(eager, right.float())
    assert same(eager, right.float(), right)
    assert not same(eager, (right * (1 + 9e-3)).float(), right)


def test_float64_of_something_else_is_ignored() -> None:
    x = torch.rand(1000)
    assert same(x, x.clone(), torch.rand(1000, dtype=torch.float64))
    assert not same(x, x + 0.1, torch.rand(1000, dtype=torch.float64))


def test_nan_and_infinity() -> None:
    x = torch.tensor([1.0, math.nan, math.inf])
    assert same(x, x.clone())
    assert not same(x, x.clone(), equal_nan=False)
    found = compare(x, torch.tensor([1.0, 2.0, math.inf]))
    assert found is not None and found.kind == "nan"
    found = compare(x, torch.tensor([1.0, math.nan, -math.inf]))
    assert found is not None and found.kind == "inf"
    # where float64 is finite too, eager's overflow is not required
    half = torch.tensor([math.inf, 1.0], dtype=torch.float16)
    assert same(half, torch.tensor([7e4, 1.0]).half(), torch.tensor([7e4, 1.0], dtype=torch.float64))


def test_whole_numbers_and_booleans_are_exact() -> None:
    assert not same(torch.tensor([1000000]), torch.tensor([1000001]))
    assert not same(torch.tensor([True]), torch.tensor([False]))
    assert same(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize(
    ("kind", "actual"),
    [
        ("shape", torch.zeros(3, 2)),
        ("dtype", torch.zeros(2, 3, dtype=torch.float64)),
        ("stride", torch.zeros(3, 2).t()),
        ("requires_grad", torch.zeros(2, 3, requires_grad=True)),
        ("type", [0.0]),
    ],
)
def test_metadata(kind: str, actual: object) -> None:
    found = compare(torch.zeros(2, 3), actual, strides=True)
    assert found is not None and found.kind == kind


def test_structure_names_the_place() -> None:
    found = compare({"a": [torch.zeros(2), torch.zeros(2)]}, {"a": [torch.zeros(2), torch.ones(2)]})
    assert found is not None and found.where == "['a'][1]"
    assert compare([1, 2], [1]) is not None and compare((1,), [1]) is not None


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert not same(torch.zeros(3), torch.ones(3))
    assert "Accuracy failed: the result: allclose not within tol=0.0001" in caplog.text


def test_graph_in_float64() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32).float() * torch.ones(3, dtype=torch.float32)

    gm, inputs = graph_for(f, torch.randn(3, dtype=torch.float32))
    [made] = in_float64(gm)(*map(widened, inputs))
    assert made.dtype is torch.float64


def test_forward_and_backward() -> None:
    x, w, n = torch.randn(3, requires_grad=True), torch.randn(3), 2
    result, gradients = run_forward_backward(lambda x, w, n: [x * w * n, w], [x, w, n])
    assert same(result, [x * w * 2, w]) and gradients[1] is None and gradients[2] is None
    assert gradients[0] is not None and not torch.equal(gradients[0][:1], gradients[0][1:2])
