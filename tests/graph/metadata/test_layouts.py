"""What is known of layouts without running the op is what eager's CPU kernels do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from argand.graph.metadata import layouts
from argand.graph.metadata.metas import Many, infer
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import elements_spanned

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


def _laid(tensor: torch.Tensor, innermost: bool) -> torch.Tensor:
    """The same with the second dimension innermost."""
    return tensor.transpose(1, -1).contiguous().transpose(1, -1) if innermost else tensor


@pytest.mark.parametrize("op", ["mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"])
@pytest.mark.parametrize("innermost", list(itertools.product((False, True), repeat=2)))
def test_gradients_of_losses(op: str, innermost: tuple[bool, bool]) -> None:
    """Regression: a codebook's loss in training raised under "aot_eager", where a view was made of a gradient that lies
    otherwise."""
    operands = [_laid(torch.randn(2, 3, 4, 5), each) for each in innermost]
    _check(getattr(aten, op).default, torch.ones(()), *operands, 1, *([1.0] if op != "mse_loss_backward" else []))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions_and_norms(rank: int, transposed: bool) -> None:
    for innermost in itertools.product((False, True), repeat=3):
        x, weight = torch.randn(2, 4, *[6] * rank), torch.randn(4, 4, *[3] * rank)
        grad = torch.randn(2, 4, *[8 if transposed else 4] * rank)
        laid = [_laid(each, how) for each, how in zip((grad, x, weight), innermost)]
        rest = [[4], [1] * rank, [0] * rank, [1] * rank, transposed, [0] * rank, 1, [True] * 3]
        _check(aten.convolution_backward.default, *laid, *rest)
        one = torch.ones(4)
        saved = (one, one, one, one, one, True, 1e-5, [True] * 3)
        _check(aten.native_batch_norm_backward.default, _laid(x, innermost[0]), laid[1], *saved)
        _check(aten._log_softmax_backward_data.default, _laid(x, innermost[0]), laid[1], 1, torch.float32)


def _check(op: Any, *args: Any) -> None:
    """What is inferred of results is what they are."""
    table = SpecTable()
    specs = [
        table.of_meta(torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta"), each.device)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    ]
    inferred, real = infer(table, op, tuple(specs), {}), op(*args)
    known, results = (inferred.items, real) if isinstance(inferred, Many) else ([inferred], [real])
    assert [(spec.size, spec.stride, spec.dtype) for spec in known] == described(results), (op, args)


@pytest.mark.parametrize(
    ("size", "stride", "count"),
    [((), (), 1), ((3,), (1,), 3), ((2, 3), (0, 4), 9), ((2, 2), (10, 3), 14), ((2, 0), (1, 1), 0), ((1,), (7,), 1)],
)
def test_elements_spanned_are_the_fewest_a_memory_may_have(
    size: tuple[int, ...], stride: tuple[int, ...], count: int
) -> None:
    assert elements_spanned(size, stride) == count
    torch.zeros(count).as_strided(size, stride)
    if count > 1:
        with pytest.raises(RuntimeError, match="storage"):
            torch.zeros(count - 1).as_strided(size, stride)
