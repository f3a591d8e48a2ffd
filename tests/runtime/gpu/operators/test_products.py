"""Products of matrices whose rows begin at odd places: the numbers, and what the library is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from argand.runtime.gpu.operators.products import MULTIPLE, aligned, padded_product


def matrix(rows: int, columns: int, by_columns: bool, gap: int = 0) -> torch.Tensor:
    rows, columns = (columns, rows) if by_columns else (rows, columns)
    made = torch.randn(rows, columns + gap)[:, :columns]
    return made.t() if by_columns else made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(40, 16, 24), (41, 16, 24), (40, 17, 24), (40, 16, 25), (41, 17, 25)])
@pytest.mark.parametrize("left_by_columns", [False, True])
@pytest.mark.parametrize("right_by_columns", [False, True])
@pytest.mark.parametrize("gap", [0, 3])
def test_padded_products(
    sizes: tuple[int, int, int],
    left_by_columns: bool,
    right_by_columns: bool,
    gap: int,
    bias: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    m, k, n = sizes
    left, right = matrix(m, k, left_by_columns, gap), matrix(k, n, right_by_columns, gap)
    row = torch.randn(n)
    expected = left @ right + (row if bias else 0)
    given: list[torch.Tensor] = []
    plain = {name: getattr(torch, name) for name in ("mm", "addmm")}
    for name, function in plain.items():

        def spy(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            given.extend(args[-2:])
            return function(*args, **kwargs)

        monkeypatch.setattr(torch, name, spy)
    out = torch.empty(m, n)
    padded_product(*([row] if bias else []), left, right, out=out)
    torch.testing.assert_close(out, expected)
    for each in given:
        assert 1 in each.stride() and max(each.stride()) % MULTIPLE == 0
    assert given[0].shape[1] % MULTIPLE == 0 and given[1].shape[1] % MULTIPLE == 0


def test_what_is_aligned_is_not_copied() -> None:
    for one in (torch.randn(3, 16), torch.randn(3, 16).t(), torch.randn(3, 24)[:, :5], torch.randn(4, 6, 2)[:, :, 0]):
        assert aligned(one) is one
    odd = torch.randn(9, 7)
    for one in (odd, odd.t()):
        made = aligned(one)
        assert torch.equal(made, one) and made.data_ptr() != one.data_ptr()
        assert (made.stride(0) == 1) is (one.stride(0) == 1)
