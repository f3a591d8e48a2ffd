"""Convolutions of sequences as those of images of one row: same values and strides as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pass_helpers import traced

import argand
from argand.autograd import wrap
from argand.backends.aot_eager import run_eagerly
from argand.passes import run_passes, verify
from argand.passes.channels_last import convolutions, lay_out
from argand.passes.one_dimension import as_images

aten = torch.ops.aten
X, W, P = torch.randn(2, 6, 40), torch.randn(8, 6, 3), torch.randn(8)
V, ONE = torch.randn(8, 8, 5), torch.randn(8, 8, 1)


def causal(x, w, p, v, one):
    y = F.relu(F.conv1d(x, w, p, padding=4, dilation=2)[..., :-4])
    return F.conv1d(F.conv1d(y, v, p, stride=2, padding=1), one), y


def gated(x, w, p, v, one):
    y = F.conv1d(F.pad(x, (2, 0)), w, p)
    return F.conv1d(y.tanh() * y.sigmoid(), one).transpose(1, 2) @ v[:, :, 0]


def grouped(x, w, p, v, one):
    y = F.conv1d(x, w[:, :3], p, groups=2)
    return F.conv_transpose1d(F.conv1d(y, v[:, :1], groups=8), v, p, stride=2, padding=1, output_padding=1)


def short(x, w, p, v, one):
    """One place, one sequence."""
    return F.conv1d(x[:1, :, :3], w, p), F.conv1d(x[:, :, :1].expand(2, 6, 3), w), F.conv1d(x, w[:1])


def turned(x, w, p, v, one):
    """Operands whose channels lie innermost, or whose places have gaps."""
    y = F.conv1d(x.transpose(1, 2).contiguous().transpose(1, 2), w, p)
    z = F.conv1d(y, v.transpose(1, 2).contiguous().transpose(1, 2)[..., ::2], padding=1)
    return z.view(2, -1), F.conv1d((y[..., ::2] * 2).transpose(0, 1).contiguous().transpose(0, 1), one), y


PROGRAMS = (causal, gated, grouped, short, turned)


@pytest.mark.parametrize("laid", [False, True], ids=["as they are", "channels innermost"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_strides(program, laid):
    args = (X, W, P, V, ONE)
    made = traced(program, *args)
    assert as_images(made) >= 2
    assert as_images(made) == 0
    if laid:
        lay_out(made, convolutions(made))
    run_passes(made)
    verify(made)
    for got, want in zip(
        torch.utils._pytree.tree_leaves(wrap(made, run_eagerly(made))(*args)),
        torch.utils._pytree.tree_leaves(program(*args)),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_gradients(program, monkeypatch):
    """Of forward and backward compiled, with the channels innermost wherever that can be."""
    monkeypatch.setattr(
        "argand.backends.layouts.choose_layouts", lambda made: lay_out(made, convolutions(made), weights=False)
    )

    def results(call):
        args = [each.clone().requires_grad_() for each in (X, W, P, V, ONE)]
        found = torch.utils._pytree.tree_leaves(call(*args))
        sum(each.square().sum() for each in found).backward()
        return [*found, *(each.grad for each in args if each.grad is not None)]

    with argand.config.patch(program_cache=False, outcome_cache=False):
        got = results(argand.compile(program))
    for one, other in zip(got, results(program), strict=True):
        near = 1e-4 * float(other.abs().max())  # of sums whose parts are as large as the largest
        torch.testing.assert_close(one, other, rtol=1e-3, atol=max(near, 1e-3))
        assert one.stride() == other.stride()


def test_images_and_volumes_are_left_alone():
    made = traced(lambda x, w: F.conv2d(x, w), torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    assert as_images(made) == 0
