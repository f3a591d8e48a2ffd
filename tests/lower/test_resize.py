"""Images and signals in other sizes, and the gradients of that."""

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

import argand
import sweeps
from argand.ir.interpret import same_layout

signal, image, volume = torch.randn(2, 3, 9), torch.randn(2, 4, 6, 9), torch.randn(2, 2, 4, 5, 6)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

CASES = [
    *((mode, signal, size) for mode in ("nearest", "nearest-exact", "linear") for size in (4, 9, 18, 25)),
    *(
        (mode, image, size)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        for size in ((12, 18), (5, 30), (6, 4), (1, 1), (13, 7))
    ),
    *((mode, volume, size) for mode in ("nearest", "trilinear") for size in ((8, 10, 12), (3, 5, 7))),
]
# Else about every second size of each mode.
TRIED = [case for number, case in enumerate(CASES) if sweeps.WHOLE or (number + number // 4) % 2]


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return y, *torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum(), x)


def same(function, x):
    argand.reset()
    compiled = argand.compile(function, fullgraph=True, dynamic=False)
    made, want = gradient(compiled, x), gradient(function, x)
    assert same_layout(want[0], made[0].stride())
    torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("mode", "x", "size"), TRIED)
def test_sizes(mode, x, size):
    corners = False if mode.endswith(("linear", "cubic")) else None
    same(lambda x: F.interpolate(x * 2, size, mode=mode, align_corners=corners) + 1, x)
    if x.dim() in LAST:
        x = x.to(memory_format=LAST[x.dim()])
        check(lambda x: F.interpolate(x, size, mode=mode, align_corners=corners), x)
        same(lambda x: F.interpolate(x, size, mode=mode, align_corners=corners), x)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_rows_of_what_lies_channel_by_channel(mode):
    """Eager's kernel would copy the argument first: its images share rows of channels."""
    x = torch.randn(1, 8, 6, 9).to(memory_format=torch.channels_last).as_strided((2, 4, 6, 9), (4, 1, 72, 8))
    check(lambda x: F.interpolate(x, (12, 20), mode=mode), x, loops_only=True)
    same(lambda x: F.interpolate(x, (12, 20), mode=mode) * 2, x)


@pytest.mark.parametrize(
    ("mode", "layout"),
    sweeps.chessboard(["bilinear", "bicubic"], [torch.contiguous_format, torch.channels_last]),
    ids=str,
)
def test_corners_and_factors(mode, layout):
    x = image.to(memory_format=layout)
    same(lambda x: F.interpolate(x, (11, 20), mode=mode, align_corners=True), x)
    same(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), x)
    same(lambda x: F.interpolate(x, scale_factor=(0.6, 2.3), mode=mode, recompute_scale_factor=True), x)
    same(lambda x: F.interpolate(x, (1, 20), mode=mode, align_corners=True), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_a_factor_that_changes_no_size(mode):
    """Eager's positions are the factor's, where it does not take the elements as they are."""
    check(lambda x: F.interpolate(x, scale_factor=1.3, mode=mode), torch.randn(1, 2, 3, 3))


def test_positions_in_long_rows_are_eagers():
    for size in (999, 1777, 3001):
        x = torch.randn(1, 2, 1000, 1).to(memory_format=torch.channels_last)
        for mode in ("nearest", "nearest-exact"):
            made, want = argand.compile(F.interpolate)(x, (size, 1), mode=mode), F.interpolate(x, (size, 1), mode=mode)
            assert torch.equal(made, want)
        row = x.view(1, 2, 1000)
        made, want = (f(row, size, mode="linear") for f in (argand.compile(F.interpolate), F.interpolate))
        torch.testing.assert_close(made, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_other_dtypes(dtype):
    x = (image * 50).to(dtype).to(memory_format=torch.channels_last)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        if dtype.is_floating_point or mode.startswith("nearest"):
            made, want = argand.compile(F.interpolate)(x, (9, 11), mode=mode), F.interpolate(x, (9, 11), mode=mode)
            exact = F.interpolate(x.double(), (9, 11), mode=mode)  # eager's 16-bit kernels for channels are less so
            error, allowed = (made - exact).abs().max(), (want - exact).abs().max()
            assert made.dtype is want.dtype and error <= allowed * 1.01 + 1e-6


def test_sizes_that_vary():
    argand.reset()
    compiled = argand.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), dynamic=True)
    for size in (5, 8, 11):
        x = torch.randn(1, 3, size, size)
        torch.testing.assert_close(compiled(x), F.interpolate(x, scale_factor=2, mode="bilinear"))


def test_gradients_on_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(4, 64, 16, 16)
        for one in (x, x.to(memory_format=torch.channels_last)):
            for mode in ("bicubic", "bilinear"):
                same(lambda x, mode=mode: F.interpolate(x, scale_factor=3, mode=mode), one)
    finally:
        torch.set_num_threads(before)


def test_gradients_of_enlargements_are_loops():
    """Also of rows that are looked up, with numbers that are none, and factors that sizes do not tell."""
    aten = torch.ops.aten
    linear, bilinear = aten.upsample_linear1d_backward.default, aten.upsample_bilinear2d_backward.default
    bicubic, trilinear = aten.upsample_bicubic2d_backward.default, aten.upsample_trilinear3d_backward.default
    nearest, exact = aten.upsample_nearest2d_backward.default, aten._upsample_nearest_exact2d_backward.default
    calls = [
        (bilinear, (1, 2, 5, 3), (6, 7), False), (bilinear, (1, 1, 4, 1), (4, 10), True),
        (bilinear, (1, 2, 3, 2), (7, 3), False, 2.5, 1.7), (bicubic, (1, 1, 3, 4), (5, 6), False),
        (bicubic, (1, 1, 2, 3), (4, 3), True), (linear, (1, 2, 3), (30,), False),
        (trilinear, (1, 1, 2, 1, 2), (3, 2, 4), False), (nearest, (1, 2, 3, 3), (5, 4)), (exact, (1, 2, 3, 3), (5, 4)),
        (bicubic, (1, 1, 3, 3), (3, 3), False, 1.3, 1.3), (exact, (1, 1, 3, 3), (3, 3), 1.3, 1.3),
    ]  # fmt: skip
    for turn, dtype in enumerate((torch.float32, torch.float64)):
        values = [torch.randn(*size[:2], *out, dtype=dtype) for _, size, out, *_ in calls]
        for value in values[turn::2]:
            value[0, 0].view(-1)[0], value[-1, -1].view(-1)[-1] = math.inf, math.nan
        check(
            lambda *values: [op(g, out, size, *rest) for g, (op, size, out, *rest) in zip(values, calls)],
            *values,
            loops_only=True,
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_infinities_beside_a_dimension_that_stays(mode):
    x = torch.zeros(1, 2, 6, 6)
    x[0, 0, 4, 2], x[0, 1, 1, 3] = float("inf"), float("nan")
    sizes = [(6, 4), (3, 6), (9, 6), (6, 6)][:: 1 if mode == "bilinear" else -1]  # the other half of the fields
    for size, layout in sweeps.chessboard(sizes, [torch.contiguous_format, torch.channels_last]):
        same(lambda x, size=size: F.interpolate(x, size, mode=mode), x.to(memory_format=layout))


def test_many_positions_that_are_looked_up():
    """Statement 64 looks up, and is no type of the generated source."""
    x = torch.randn(2, 8, 1, 4, 5, dtype=torch.float64)
    same(lambda x: F.interpolate(x, 16, mode="trilinear"), x)


@pytest.mark.parametrize(("mode", "corners"), sweeps.in_turn(["bilinear", "bicubic"], [False, True]))
def test_antialiased_sizes(mode, corners):
    """Enlargements are loops alone, and so are their gradients; where a size falls, eager's kernels run."""

    def function(x, y):
        options = {"mode": mode, "antialias": True, "align_corners": corners}
        sizes = [(16, 20), (9, 7), (10, 30), (40, 7)]
        results = [F.interpolate(x * 2, size=size, **options) + 1 for size in sizes]
        return [
            *results,
            F.interpolate(y * 2, scale_factor=(2.5, 1.5), **options),
            F.interpolate(y, size=(3, 2), **options),
        ]

    x, y = torch.randn(2, 3, 9, 7, dtype=torch.float64), torch.randn(1, 2, 6, 4).transpose(2, 3)
    x[0, 0, 4, 3], x[0, 1, 0, 0] = float("inf"), float("nan")
    argand.reset()
    sides = []
    for run in (function, argand.compile(function, fullgraph=True)):
        leaves = [each.detach().requires_grad_() for each in (x, y)]
        results = run(*leaves)
        sides.append([*results, *torch.autograd.grad([each.nan_to_num(0, 0, 0).sum() for each in results], leaves)])
    for want, made in zip(*sides):
        assert made.dtype is want.dtype and made.stride() == want.stride()
        torch.testing.assert_close(made, want, equal_nan=True, rtol=2e-5, atol=2e-5)
