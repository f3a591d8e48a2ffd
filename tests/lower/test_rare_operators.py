"""Operators that models hardly ever call, by their ATen names, against eager."""

import pytest
import torch
from lowering_helpers import check

aten, prims = torch.ops.aten, torch.ops.prims

PROGRAMS = {
    "logit_backward": lambda x: aten.logit_backward(x, x.sigmoid()),
    "logit_backward, eps": lambda x: aten.logit_backward(x, x.sigmoid(), 0.2),
    "batch norm, statistics": lambda x: aten._native_batch_norm_legit_no_training(
        x, None, None, x[0], x[1] ** 2, 0.1, 1e-5
    )[0],
    "batch norm, none": lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0],
    "norm": lambda x: (aten.norm.ScalarOpt_dim(x, None, [0], True), aten.norm.ScalarOpt_dim(x, 3, [0])),
    "dropout's gradient": lambda x: aten.native_dropout_backward(x, x > 0, 2.0),
    "fill": lambda x: (aten.fill.Scalar(x, 2.0), aten.fill.Tensor(x, x.sum()) + 1),
    "iota": lambda x: (
        x.new_ones(5) + prims.iota(5, start=1, step=2, dtype=torch.int64, device=x.device, requires_grad=False)
    ),
    "convert_element_type": lambda x: prims.convert_element_type(x * 2, torch.float64),
    "copy": lambda x: aten.copy(x.long(), x + 1),
    "cat of dtypes": lambda x: torch.cat([x, x.double(), (x * 2).int(), x > 0]),
    "stack of dtypes": lambda x: torch.stack([x + 1, x.half()], 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operator(name):
    check(PROGRAMS[name], torch.randn(4, 6), loops_only=True, passes=True)


@pytest.mark.parametrize("p, train", [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing(p, train):
    check(lambda x: torch.native_dropout(x, p, train), torch.randn(4, 6), loops_only=True, passes=True)
