"""Strides of results, as they are and as a program reads them, of arguments in all kinds of layouts."""

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps

whole = torch.randn(9, 9, 9, 9)
gaps = whole[1:7:2, 1:8:3, 2:6, ::3]
first = torch.tensor([0])
LAYOUTS = {
    "permuted": torch.randn(2, 3, 4, 5).permute(3, 0, 2, 1),
    "gaps": gaps,
    "gaps, permuted": gaps.permute(3, 1, 0, 2),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": torch.randn(2, 1, 4, 1).expand(2, 3, 4, 5).permute(2, 3, 0, 1),
    "sizes of one": torch.randn(1, 3, 1, 5).permute(3, 0, 1, 2),
}
FUNCTIONS = {
    "isin": lambda x: torch.isin(x, x[0]),
    "isin of a number": lambda x: torch.isin(x, 1.0),
    "unfold": lambda x: F.unfold(x, 1),
    "index_fill": lambda x: x.index_fill(1, first, 1.0),
    "index_fill by a tensor": lambda x: x.index_fill(1, first, torch.tensor(1.0)),
    "index_copy": lambda x: x.index_copy(1, first, x.narrow(1, 0, 1)),
    "slice_scatter": lambda x: torch.slice_scatter(x, x.narrow(1, 0, 1) * 2, 1, 0, 1),
    "select_scatter": lambda x: torch.select_scatter(x, x.select(1, 0) * 2, 1, 0),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x.diagonal() * 2),
    "bilinear": lambda x: F.interpolate(x, (4, 4), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, (4, 4), mode="bicubic"),
    "matrix_exp": lambda x: torch.matrix_exp(x[..., :1, :1]),
    "power of a number": lambda x: 2**x,
    "rrelu": lambda x: F.rrelu(x),
    "expanded by one": lambda x: (x * 2).expand(1, 1, *x.shape),
    "poisson": lambda x: torch.poisson(x * 0),
    "normal": lambda x: torch.normal(1.0, x * 0),
    "nearest": lambda x: F.interpolate(x, (4, 4)),
}


@pytest.mark.parametrize(("layout", "backend"), sweeps.chessboard(LAYOUTS, ["native", "eager"]))
def test_as_in_eager(layout, backend):
    def function(x):
        made = [each(x) for each in FUNCTIONS.values()]
        return [(each, each.stride(), each * 2) for each in made]

    x = LAYOUTS[layout]
    got = argand.compile(function, backend=backend)(x)
    for name, want, made in zip(FUNCTIONS, function(x), got, strict=True):
        assert (want[0].stride(), want[1], want[2].stride()) == (made[0].stride(), made[1], made[2].stride()), name
        torch.testing.assert_close(made[0], want[0], equal_nan=True)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_pools_of_one_dimension(needs_gradient):
    def function(x):
        made = (
            F.max_pool1d(x, 1),
            torch.max_pool1d(x, 2),
            F.max_pool1d(x, 1, return_indices=True)[1],
            F.avg_pool1d(x, 1),
        )
        return [(each, each.stride()) for each in made]

    x = torch.randn(2, 3, 4, 5).permute(3, 0, 2, 1)[0].detach().requires_grad_(needs_gradient)
    for (want, told), (made, also) in zip(function(x), argand.compile(function)(x), strict=True):
        assert want.stride() == told == made.stride() == also
        torch.testing.assert_close(made, want)


AMBIGUOUS = {
    "one pixel": ((2, 3, 1, 1), (3, 1, 3, 3)),
    "one channel": ((2, 1, 4, 5), (20, 1, 5, 1)),
    "a batch of one": ((1, 3, 2, 1), (1, 1, 3, 1)),
}


@pytest.mark.parametrize("layout", AMBIGUOUS)
def test_formats_that_fit_others_too(layout):
    """Operators of images choose a memory format each in its own way."""

    def function(x):
        zeros, ones, gaps = torch.zeros(x.shape[1]), torch.ones(x.shape[1]), torch.ones(x.shape[1], 2)[:, 0]
        return (
            F.batch_norm(x, zeros, ones),
            F.batch_norm(x, zeros, ones, gaps),
            F.group_norm(x, 1),
            F.group_norm(x.flatten(2), 1),
            F.interpolate(x, x.shape[2:]),
            F.interpolate(x, x.shape[2:], mode="nearest-exact"),
        )

    size, stride = AMBIGUOUS[layout]
    x = torch.randn(40).as_strided(size, stride)
    for place, (want, got) in enumerate(zip(function(x), argand.compile(function)(x), strict=True)):
        assert want.stride() == got.stride(), place
        torch.testing.assert_close(got, want)
