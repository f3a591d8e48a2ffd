"""Integers of 64 bits that are computed in 32 where these hold them, and positions that are not checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
from helpers import collected


def test_integers_that_come_from_32_bits_do_not_overflow_there() -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(-(2**31), 2**31 - 1, (100,), dtype=torch.int32) for _ in range(2))

    def fn(a: Any, b: Any) -> Any:
        x, y = a.long(), b.long()
        pointwise = x + y, x * y, x - y, -x, x.abs(), x % 7, x // 3, x << 3, x >> 3, x >> 40, x & y, ~x
        reduced = a.sum(), (x * 2).sum(), a.prod(), x.cumsum(0), x.argmax(), x.max(), (a > 0).sum()
        return *pointwise, *reduced, torch.maximum(x, y), x.clamp(-5, 2**33), torch.where(a > 0, x, y * 2), x > y

    for one, two in zip(argand.compile(fn)(a, b), fn(a, b), strict=True):
        assert torch.equal(one, two)


def test_comparisons_with_numbers_are_computed_in_32_bits_where_these_hold_them() -> None:
    least, most = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    a = torch.tensor([least, least + 1, -1, 0, 1, most - 1, most] * 9, dtype=torch.int32)

    def fn(a: Any) -> Any:
        x = a.long()
        numbers = least - 1, least, 0, 1, most, most + 1
        return [each for n in numbers for each in (x > n, x >= n, n < x, x <= n, x == n, x != n, (x + 1) > n)]

    with collected("output_code") as seen:
        got = argand.compile(fn)(a)
        argand.compile(lambda x: torch.nn.functional.max_pool1d(x, 3, 1, 1))(torch.randn(1, 2, 99))
    assert all(map(torch.equal, got, fn(a)))
    assert "i64x" not in seen[-1].text().split("extern")[-1]


def test_positions_that_are_bounded_are_not_checked() -> None:
    x, at = torch.randn(50), torch.randint(-9, 99, (64,))
    with collected("output_code") as seen:
        got = argand.compile(lambda x, at: x[at.clamp(0, 49)] + 1)(x, at)
    torch.testing.assert_close(got, x[at.clamp(0, 49)] + 1)
    assert "check_ind" not in seen[-1].text().split("extern")[-1]
    argand.reset()
    with collected("output_code") as seen:
        argand.compile(lambda x, at: x[at.clamp(0, 50) % 50] + 1)(x, at)
    assert "check_ind" in seen[-1].text().split("extern")[-1]


def test_bytes_are_positions_that_fit() -> None:
    table, at = torch.randn(256), torch.randint(0, 255, (300,), dtype=torch.uint8)
    for size, checked in ((256, False), (255, True)):
        argand.reset()
        with collected("output_code") as seen:
            got = argand.compile(lambda t, at: t[at.long()] * 2, dynamic=False)(table[:size], at)
        assert torch.equal(got, table[at.long()] * 2)
        assert ("check_ind" in seen[-1].text().split("extern")[-1]) == checked


def test_every_second_element_and_looked_up_vectors() -> None:
    for count in (1, 3, 8, 16, 17, 33, 64, 100):
        x, at = torch.randn(3, 2 * count), torch.randint(0, 9, (count,))
        table = torch.randn(9, 7)

        def fn(x: Any, at: Any, table: Any) -> Any:
            rows, half = table.t()[:, at.clamp(0, 8)], x.to(torch.bfloat16)
            return x[:, ::2] * 2, x[:, 1::2] + 1, half[:, 1::2] * 2, x.double()[:, ::2].neg(), rows * 2, x[:, ::2] > 0

        argand.reset()
        for one, two in zip(argand.compile(fn, dynamic=False)(x, at, table), fn(x, at, table), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_shifts_by_any_number(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([0, 1, 5, most, least, most // 3, 77], dtype=dtype)[:, None]
    by = torch.tensor([0, 1, 5, 6, 7, 8, 15, 16, 31, 32, 63, 64, 100, most, least], dtype=torch.int64).clamp(
        least, most
    )

    def fn(x: Any, by: Any) -> Any:
        numbers = [(x << n, x >> n) for n in (0, 7, 15, 31, 63, 64, -1, 100) if n >= least]
        return x << by, x >> by, 3 << by, torch.bitwise_right_shift(5, by), *(one for pair in numbers for one in pair)

    with collected("fallback") as seen:
        got = argand.compile(fn)(x, by.to(dtype))
    for one, two in zip(got, fn(x, by.to(dtype)), strict=True):
        assert torch.equal(one, two) and one.dtype is two.dtype
    assert not seen


def test_absolute_values_of_positions_need_no_check() -> None:
    def fn(x: Any) -> Any:
        return torch.nn.functional.pad(x, (2, 2, 3, 3), "reflect")

    x = torch.randn(6, 40, 50)
    with collected("output_code") as events:
        assert torch.equal(argand.compile(fn, dynamic=False)(x), fn(x))
    assert not any("= check_ind" in event.payload for event in events)
