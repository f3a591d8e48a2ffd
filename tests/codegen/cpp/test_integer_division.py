"""Integers divided in vectors, by numbers and by tensors that may hold 0, and conversions of small integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
import sweeps
from helpers import collected

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def whole(dtype: torch.dtype, count: int = 203) -> torch.Tensor:
    """Numbers of all sizes, among them the greatest."""
    info = torch.iinfo(dtype)
    x = torch.randint(max(info.min + 1, -(2**62)), min(info.max, 2**62), (count,)).to(dtype)
    x[::3] = torch.randint(max(info.min, -100), 100, x[::3].shape).to(dtype)
    x[:3] = torch.tensor([info.max, info.max - 1, max(info.min + 1, 0)], dtype=dtype)
    return x[torch.randperm(count)]


def quotients(a: Any, b: Any) -> tuple[Any, ...]:
    return a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")


@pytest.mark.parametrize(("dtype", "bits"), sweeps.chessboard(DTYPES, (-1, 256)))
def test_by_tensors_and_by_numbers(dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(0)
    a, b = whole(dtype), whole(dtype)
    near = [x.clamp(-(2**40), 2**40) if dtype is torch.int64 else x for x in (a, b)]  # doubles hold those
    numbers = [n for n in (1, 7, 64, -3, -64) if n > 0 or dtype.is_signed]

    def fn(a: Any, b: Any, c: Any, d: Any) -> list[Any]:
        by = [quotients(a, torch.where(b == 0, 5, b)), quotients(c, torch.where(d == 0, 5, d)), (a // (b[:1] | 1),)]
        return [*by, *(quotients(x, n) for n in numbers for x in ((a, c) if dtype is torch.int64 else (a,)))]

    with argand.config.patch({"cpp.simdlen": bits}), collected("output_code") as seen:
        got = argand.compile(fn, fullgraph=True)(a, b, *near)
    for one, two in zip(got, fn(a, b, *near), strict=True):
        assert all(map(torch.equal, one, two))
    assert "remainder_by<" in seen[-1].text() and "aten_remainder" not in seen[-1].text()


def test_positions_beside_numbers_of_64_bits() -> None:
    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        by = torch.arange(1, 12)
        far = torch.arange(-(2**31), -(2**31) + 11)
        sides = [quotients(a, by) for a in (x, y, torch.tensor(8), by + 3)] + [quotients(by, x), quotients(by, y)]
        return *(part for side in sides for part in side), *quotients(far, by - 12), by[torch.tensor(8) % by == 0]

    x, y = torch.tensor(2**40 + 3), torch.arange(5, 16) * 2**33
    assert all(map(torch.equal, argand.compile(fn)(x, y), fn(x, y)))


def test_the_least_number_of_32_bits_divided_as_64() -> None:
    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        a, b = x.long(), y.long()
        return *quotients(a, b), *quotients(a, -1), *quotients(a, 3), *quotients(b, a), -a, abs(a)

    x, y = torch.tensor([-(2**31)] * 9 + [5] * 20).int(), torch.tensor([-1, 1, 2] * 9 + [-1, 7]).int()
    assert all(map(torch.equal, argand.compile(fn)(x, y), fn(x, y)))


@pytest.mark.parametrize("count", (1, 5, 100))
def test_a_divisor_0_raises_where_eager_does(count: int) -> None:
    x, by = torch.arange(count), torch.ones(count, dtype=torch.int64)
    compiled = [
        argand.compile(fn) for fn in (lambda a, b: a // b, lambda a, b: a % b + 1, lambda a, b: torch.fmod(a, b))
    ]
    for run in compiled:
        run(x, by)
    by[-1] = 0
    for run in compiled:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, by)
        by[-1] = 3
        run(x, by)
        by[-1] = 0

    @argand.compile
    def guarded(a: Any, b: Any) -> Any:
        try:
            return a // b
        except RuntimeError:
            return a - 1

    assert torch.equal(guarded(x, by), x - 1)


def test_divisors_where_nothing_is_divided_are_not_looked_at() -> None:
    x, by = torch.arange(40).reshape(5, 8), torch.ones(40, dtype=torch.int64).reshape(5, 8)
    by[2:] = 0

    def fn(a: Any, b: Any) -> Any:
        return torch.cat([a[:2] // b[:2], a[2:]])

    assert torch.equal(argand.compile(fn, fullgraph=True)(x, by), fn(x, by))


@pytest.mark.parametrize("bits", (-1, 256))
@pytest.mark.parametrize("count", (13, 203))
def test_conversions_between_all_sizes(count: int, bits: int) -> None:
    torch.manual_seed(0)
    dtypes = (*DTYPES, torch.bool, torch.float32, torch.float64, torch.bfloat16)
    given = [whole(dtype, count) for dtype in DTYPES] + [torch.rand(count) > 0.5]
    given += [torch.rand(count).mul(120).to(dtype) for dtype in dtypes[6:]]

    def fn(*given: Any) -> list[Any]:
        wide = [x.to(dtype) for x in given for dtype in dtypes]
        return [*wide, *((x.to(torch.float32) * 0.5).to(x.dtype) for x in given if x.dtype.itemsize <= 2)]

    with argand.config.patch({"cpp.simdlen": bits}):
        got = argand.compile(fn, fullgraph=True)(*given)
    assert all(torch.equal(one, two) and one.dtype is two.dtype for one, two in zip(got, fn(*given), strict=True))
