"""Pools of one, two and three dimensions, adaptive ones, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

import argand
import sweeps

NAN, INF = float("nan"), float("inf")
image, signal, volume = torch.randn(2, 4, 9, 11), torch.randn(2, 4, 13), torch.randn(2, 3, 6, 7, 8)

POOLS = {
    "average": (lambda x: F.avg_pool2d(x, 2), image),
    "average, padded": (lambda x: F.avg_pool2d(x, 3, 1, 1), image),
    "average, padding not counted": (lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False), image),
    "average, over the end": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), image),
    "average, both": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), image),
    "average, divided by": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), image),
    "average of rows": (lambda x: F.avg_pool1d(x, 4, 2, 1), signal),
    "average of volumes": (lambda x: F.avg_pool3d(x, 2, 2, 1, count_include_pad=False), volume),
    "average, gaps between windows": (lambda x: F.avg_pool2d(x, 2, 3), image),
    "average of large windows": (lambda x: F.avg_pool2d(x * 2, (8, 7), (1, 2)), image),
    "average of large windows side by side": (lambda x: F.avg_pool2d(x, (4, 5)), image),
    "average of all in large windows": (lambda x: F.avg_pool2d(x[..., :8, :10], (4, 5)), image),
    "average of long rows": (lambda x: F.avg_pool1d(x, 11), signal),
    "maximum of rows": (lambda x: F.max_pool1d(x, 3, 2, 1), signal),
    "maximum of volumes": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True)[0], volume),
    "maximum of volumes, far apart": (lambda x: F.max_pool3d(x, 2, 2, 0, dilation=2, ceil_mode=True), volume),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), image),
    "adaptive, to more": (lambda x: F.adaptive_avg_pool2d(x, (12, 20)), image),
    "adaptive, even": (lambda x: F.adaptive_avg_pool2d(x[..., :8, :10], (4, 5)), image),
    "adaptive, large windows": (lambda x: F.adaptive_avg_pool2d(x[..., :8, :10], (1, 2)), image),
    "adaptive, large windows of volumes": (lambda x: F.adaptive_avg_pool3d(x.exp(), (2, 1, 4)), volume),
    "adaptive of rows": (lambda x: F.adaptive_avg_pool1d(x, 5), signal),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, (4, 5)), image),
    "adaptive maximum, to more": (lambda x: F.adaptive_max_pool2d(x, (12, 20), return_indices=True)[0], image),
    "adaptive maximum, even": (lambda x: F.adaptive_max_pool2d(x[0, :, :8, :10], (4, 5)), image),
    "adaptive maximum of rows": (lambda x: F.adaptive_max_pool1d(x, 5), signal),
    "adaptive maximum of volumes": (lambda x: F.adaptive_max_pool3d(x, (4, 3, 5)), volume),
    "adaptive of volumes": (lambda x: F.adaptive_avg_pool3d(x, (4, 3, 5)), volume),
    "windows": (lambda x: x.unfold(2, 5, 2) * 2, signal),
    "windows of windows": (lambda x: x.unfold(2, 4, 4).unfold(3, 4, 3) * 2, image),
    "windows far apart": (lambda x: x.unfold(-1, 2, 5) * 2, signal),
    "windows added up": (lambda x: torch.ops.aten.unfold_backward(x * 1, [2, 4, 15], 2, 11, 3), image[:, :, :2]),
    "blocks added up": (lambda x: F.fold(x, (5, 6), (4, 2), stride=(1, 2), padding=(0, 2)), torch.randn(3, 8, 10)),
    "blocks added up to rows": (lambda x: F.fold(x, (1, 40), (1, 8), stride=(1, 4)), torch.randn(2, 8, 9)),
}


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return y, *torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum(), x)


@pytest.mark.parametrize("name", POOLS)
def test_values_and_gradients(name):
    function, x = POOLS[name]
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}
    layouts = [x, *([x.contiguous(memory_format=channels_last[x.dim()])] if x.dim() in channels_last else [])]
    check(function, x, loops_only=True)
    number = [*POOLS].index(name)
    for one in layouts if sweeps.WHOLE else [layouts[number % len(layouts)]]:
        argand.reset()
        compiled = argand.compile(function, fullgraph=True)
        for made, want in zip(gradient(compiled, one), gradient(function, one)):
            assert made.stride() == want.stride()
            torch.testing.assert_close(made, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_and_numbers_that_are_none(dtype):
    for name in ("average, both", "maximum of volumes", "adaptive", "adaptive maximum"):
        function, x = POOLS[name]
        x = x.to(dtype)
        x.view(-1)[::17] = torch.tensor(NAN, dtype=dtype)
        x.view(-1)[::13] = torch.tensor(-INF, dtype=dtype)
        torch.testing.assert_close(argand.compile(function)(x), function(x), equal_nan=True)


def test_sizes_that_vary():
    for name in ("average, both", "average of volumes", "maximum of rows"):
        function, x = POOLS[name]
        argand.reset()
        compiled = argand.compile(function, dynamic=True)
        for size in (x.shape[-1], 14, 21):
            y = torch.randn(*x.shape[:-1], size)
            for made, want in zip(gradient(compiled, y), gradient(function, y)):
                torch.testing.assert_close(made, want)


@pytest.mark.parametrize("value", [NAN, -INF])
def test_where_adaptive_maxima_are_is_where_eager_finds_them(value):
    x = torch.randn(2, 3, 9, 11)
    x[:, 0], x[:, 1, ::2, ::3] = value, value

    def function(x):
        return F.adaptive_max_pool2d(x, (4, 5), return_indices=True)

    for one, two in zip(argand.compile(function)(x), function(x)):
        torch.testing.assert_close(one, two, equal_nan=True, rtol=0, atol=0)


def test_a_volume_of_infinities_has_its_maximum_where_eager_finds_it():
    x = torch.full((1, 1, 4, 4, 4), -INF)

    def function(x):
        return F.max_pool3d(x, 3, 2, 1, return_indices=True)

    assert torch.equal(argand.compile(function)(x)[1], function(x)[1])
