"""What is known of layouts without running the op is what eager's CPU kernels do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from argand.graph.metadata import layouts

aten = torch.ops.aten
BATCHES: list[tuple[int, ...]] = [(), (2, 3), (1,), (0,)]


def described(results: Any) -> list[object]:
    return [(one.shape, one.stride(), one.dtype) for one in results]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_factors_of_matrices(batch: tuple[int, ...], transposed: bool) -> None:
    """Regression: a singular value decomposition was tried out on zeros, which took 26 s for the sizes of a dynamic graph."""
    for rows, columns in itertools.product((0, 1, 2, 5), repeat=2):
        x = torch.randn(*batch, columns, rows).mT if transposed else torch.randn(*batch, rows, columns)
        calls: list[tuple[Any, tuple[bool, ...]]] = [
            (aten._linalg_svd.default, how) for how in itertools.product((False, True), repeat=2)
        ]
        calls += [(aten.linalg_eig.default, ())] if rows == columns else []
        for op, how in calls:
            known = layouts.RULES[op](op(x.to("meta"), *how), x, *how)
            assert described(known) == described(op(x, *how)), (op, x.shape, x.stride(), how)
            assert op not in layouts.PROBED


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 1), (2, 1, 1), (1, 3), (0, 1)])
def test_norms_over_dims_of_one_element(shape: tuple[int, ...]) -> None:
    """Regression: torch 2.11's meta kernel keeps such a dim where it is counted from the end."""
    for dim, keepdim, order in itertools.product(([-1], [0], [-1, 0], [-2, -1], [], None), (False, True), (2, 1, 3, 0)):
        if dim and (len(shape) < 2 and dim != [-1]):
            continue
        x = torch.randn(shape)
        ops = (aten.linalg_vector_norm.default, *([aten.norm.ScalarOpt_dim] if dim is not None else []))
        for op in ops:
            known = layouts.RULES[op](op(x.to("meta"), order, dim, keepdim), x, order, dim, keepdim)
            assert described([known]) == described([op(x, order, dim, keepdim)]), (op, dim, keepdim, order)
