"""searchsorted and bucketize as loops: what eager's kernels find, also in what is not sorted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_helpers import check

nan, inf = float("nan"), float("inf")
VALUES = torch.tensor([[nan, inf, -inf, 0.0, -0.0], [0.5, 1.0, -1.0, 2.0, 7.0]])
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("options", [{}, {"right": True}, {"side": "right"}, {"out_int32": True}], ids=str)
def test_places_among_any_number_of_boundaries(count: int, options: dict[str, Any]) -> None:
    torch.manual_seed(count)
    whole = torch.randint(-3, 4, (count,)).float()  # several times the same
    for sequence in (whole.sort()[0], whole, torch.cat([whole, torch.tensor([nan])])):
        check(lambda s, x: torch.searchsorted(s, x, **options), sequence, VALUES, loops_only=True, exact=True)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_dtypes_and_layouts(dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (4, 6)).to(dtype)
    rows = torch.randint(0, 9, (4, 12)).to(dtype).sort(-1)[0]
    for values in (x, x[:, ::2], x.t().contiguous().t(), x[:1].expand(4, 6)):
        check(lambda s, x: (torch.searchsorted(s, x), torch.searchsorted(s[:, ::3], x)), rows, values, loops_only=True)
        check(lambda s, x: torch.bucketize(x, s, right=True), rows[0, ::2], values, loops_only=True)
    check(lambda s, x: torch.bucketize(x, s), rows[0], x[0, 0], loops_only=True)


def test_values_of_two_dtypes_are_compared_as_eager_compares_them() -> None:
    x, whole = torch.randn(4, 6), torch.arange(-3, 4)
    for one, two in (
        (x, whole),
        (x.half(), whole),
        (x, whole.double()),
        (x[0, 0].double(), whole.float()),
        (whole, x[0]),
    ):
        check(lambda a, b: torch.bucketize(a, b), one, two, loops_only=True)


@pytest.mark.parametrize("number", [0.1, 2, -inf, nan, 1e300], ids=str)
def test_a_number_is_searched_for(number: float) -> None:
    sequence = torch.randn(9).sort()[0]
    check(lambda s: (torch.searchsorted(s, number), torch.bucketize(number, s, right=True)), sequence, loops_only=True)
    check(lambda s: torch.searchsorted(s.to(torch.int32), number), sequence, loops_only=True)


def test_an_order_is_followed() -> None:
    x = torch.randn(4, 9)
    check(lambda x, v: torch.searchsorted(x, v, sorter=x.argsort(-1)), x, torch.randn(4, 5))


def test_nothing_is_found_among_nothing() -> None:
    check(lambda s, x: torch.searchsorted(s, x), torch.randn(0), torch.randn(5))
    check(lambda s, x: torch.searchsorted(s, x), torch.randn(4), torch.randn(0, 5), loops_only=True)
