"""Normalisation layers, losses, and gradients that reach lowering whole."""

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layer_norm(dtype):
    x, w, b = torch.randn(3, 4, 16).to(dtype), torch.randn(16).to(dtype), torch.randn(16).to(dtype)
    check(lambda a, p, q: F.layer_norm(a, (16,), p, q), x, w, b, loops_only=True, passes=True)
    check(lambda a: F.layer_norm(a, (4, 16)), x, loops_only=True, passes=True)
    check(lambda a, p: F.rms_norm(a, (16,), p), x, w, loops_only=True, passes=True)
    # of a residual sum: computed once, read three times
    run = check(lambda a, c, p, q: F.layer_norm(a + c, (16,), p, q), x, x * 2, w, b, loops_only=True, passes=True)
    assert sum(s.op == "add" and not node.body.reduction_vars for node in run.loops for s in node.body.statements) <= 3


def test_group_norm():
    x, w, b = torch.randn(2, 6, 4, 3), torch.randn(6), torch.randn(6)
    for layout in (x, x.to(memory_format=torch.channels_last)):
        check(lambda a, p, q: F.group_norm(a, 3, p, q), layout, w, b, loops_only=True, passes=True)
        check(lambda a: F.group_norm(a, 2), layout, loops_only=True, passes=True)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 6), (2, 5, 4, 3)])
def test_batch_norm_inference(shape, passes):
    x, (w, b, m) = torch.randn(shape), torch.randn(3, 5)
    v = torch.rand(5) + 0.5
    check(lambda a, *p: F.batch_norm(a, p[2], p[3], p[0], p[1]), x, w, b, m, v, loops_only=True, passes=passes)
    check(lambda a, *p: F.batch_norm(a, p[0], p[1]), x, m, v, loops_only=True, passes=passes)
    check(lambda a, *p: F.batch_norm(a.relu(), *p).relu(), x, m, v, w, b, loops_only=True, passes=passes)


def test_batch_norm_training():
    x, w, b = torch.randn(4, 5, 6), torch.randn(5), torch.randn(5)
    m, v = torch.zeros(5), torch.ones(5)
    op = aten._native_batch_norm_legit_functional.default
    check(lambda *p: op(*p, True, 0.1, 1e-5), x, w, b, m, v, loops_only=True)
    check(lambda a: F.batch_norm(a, None, None, training=True), x, loops_only=True)


@pytest.mark.parametrize("function", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(function, reduction):
    x, y = torch.randn(4, 5) * 2, torch.randn(4, 5)
    check(lambda a, b: function(a, b, reduction=reduction), x, y, loops_only=True, passes=True)
    for weights in ((None, None), (x, None), (x[0], y[:, :1]), (None, y[0])):
        given = [each for each in weights if each is not None]

        def weighted(a, b, *rest, weights=weights):
            taken = iter(rest)
            names = ("weight", "pos_weight")
            options = {name: None if each is None else next(taken) for name, each in zip(names, weights)}
            return F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction=reduction, **options)

        check(weighted, x, y, *given, loops_only=True)


def test_cross_entropy():
    x, y = torch.randn(6, 10), torch.tensor([1, 9, -100, 3, 0, 0])
    check(lambda a, b: F.cross_entropy(a, b), x, y, passes=True)
    total = torch.tensor(5.0)
    grad = torch.tensor(1.5)
    check(lambda a, b, g, t: aten.nll_loss_backward(g, a, b, None, 1, -100, t), x, y, grad, total, loops_only=True)
    check(lambda a, b, g: aten.nll_loss_backward(g, a, b, None, 0, -100, a[0, 0]), x, y, torch.randn(6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_gradients(dtype):
    x, g = torch.randn(4, 7).to(dtype), torch.randn(4, 7).to(dtype)
    check(lambda a, b: aten._softmax_backward_data(b, a.softmax(-1), -1, dtype), x, g, loops_only=True, passes=True)
    check(
        lambda a, b: aten._log_softmax_backward_data(b, a.log_softmax(-1), -1, dtype),
        x,
        g,
        loops_only=True,
        passes=True,
    )


def test_norm_gradients():
    x, g, w, b = torch.randn(6, 8), torch.randn(6, 8), torch.randn(8), torch.randn(8)
    mean, scale = x.mean(1, keepdim=True), (x.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()
    mask = [True, True, True]
    check(lambda *p: aten.native_layer_norm_backward(p[0], p[1], [8], *p[2:], mask), g, x, mean, scale, w, b)
    x, g = torch.randn(4, 8, 3), torch.randn(4, 8, 3)
    mean, scale = x.mean((0, 2)), (x.var((0, 2), correction=0) + 1e-5).rsqrt()
    for train in (True, False):
        check(
            lambda *p: aten.native_batch_norm_backward(*p, train, 1e-5, mask),
            *(g, x, w, torch.randn(8), torch.rand(8) + 1, mean, scale),
            loops_only=True,
        )
