"""Reflection and replication padding, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

import argand
import sweeps

SHAPES = {1: (2, 3, 7), 2: (2, 3, 6, 9), 3: (2, 2, 5, 6, 7)}
PADS = {1: [(2, 3), (0, 4), (-1, 2), (6, 6)], 2: [(2, 1, 0, 3), (1, 1, 1, 1), (0, 0, -2, 1)], 3: [(1, 1, 1, 0, 0, 1)]}
CASES = [(mode, rank, pads) for mode in ("reflect", "replicate") for rank in PADS for pads in PADS[rank]]


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return y, *torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum(), x)


@pytest.mark.parametrize(("mode", "rank", "pads"), CASES)
def test_values_and_gradients(mode, rank, pads):
    x = torch.randn(SHAPES[rank])

    def function(x):
        return F.pad(x * 2, pads, mode) + 1

    check(function, x, loops_only=True)
    layouts = (x, x[0], x.transpose(0, 1).contiguous().transpose(0, 1))
    for one in layouts if sweeps.WHOLE else layouts[sum(map(abs, pads)) % 3 :][:1]:
        argand.reset()
        compiled = argand.compile(function, fullgraph=True)
        for made, want in zip(gradient(compiled, one), gradient(function, one)):
            assert made.stride() == want.stride()
            torch.testing.assert_close(made, want)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_layouts_dtypes_and_sizes_that_vary(mode):
    for x in (torch.randn(2, 3, 6, 9).to(memory_format=torch.channels_last), torch.randn(2, 3, 6, 9).bfloat16()):
        argand.reset()
        made, want = argand.compile(F.pad)(x, (2, 1, 3, 2), mode), F.pad(x, (2, 1, 3, 2), mode)
        assert torch.equal(made, want) and made.stride() == want.stride()
    argand.reset()
    compiled = argand.compile(lambda x: F.pad(x.sin(), (2, 3), mode), dynamic=True)
    for size in (7, 9, 64):
        x = torch.randn(2, 3, size)
        for made, want in zip(gradient(compiled, x), gradient(lambda x: F.pad(x.sin(), (2, 3), mode), x)):
            torch.testing.assert_close(made, want)


def test_what_is_read_of_a_padded_tensor():
    def function(x):
        y = F.pad(x, (2, 3), "reflect")
        return y.flip(-1)[..., 1:].cumsum(-1), y.mean(-1), torch.cat([y, y[..., :4]], -1).view(2, -1)

    check(function, torch.randn(2, 3, 8))
    for made, want in zip(argand.compile(function)(x := torch.randn(2, 3, 8)), function(x)):
        torch.testing.assert_close(made, want)
