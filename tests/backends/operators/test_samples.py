"""Images looked up at places of a grid, natively: every mode against eager, places outside and that are no numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps
from helpers import collected

pytestmark = pytest.mark.slow

nan, inf = float("nan"), float("inf")
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS, CORNERS, DTYPES = ("zeros", "border", "reflection"), (False, True), (torch.float32, torch.float64)


def places(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """A grid with coordinates inside and outside, at the borders, between two elements, and that are no numbers."""
    grid = torch.rand(*size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4 - 2
    special = torch.tensor([-1.0, 1.0, 0.0, nan, inf, -inf, 1e30, -1.2, 0.2, -0.6, 1.4, 3.0], dtype=torch.float64)
    flat = grid.view(-1)
    flat[: 2 * len(special) : 2] = special
    flat[-len(special) :] = special
    return grid.to(dtype)


def sampled(x: Any, grid: Any, mode: str, padding: str, corners: bool) -> Any:
    return F.grid_sample(x * 2, grid, mode, padding, corners) + 1


@pytest.mark.parametrize(
    ("mode", "padding", "corners", "dtype"),
    sweeps.combinations(MODES, PADDINGS, CORNERS, DTYPES),
    ids=str,
)
def test_images(mode: str, padding: str, corners: bool, dtype: torch.dtype) -> None:
    how = mode, padding, corners
    x, grid = torch.randn(2, 3, 5, 6, dtype=dtype), places(2, 4, 9, 2, dtype=dtype)
    x[0, 0, 1, 1] = inf
    turned = grid.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)  # as a network makes it
    one = torch.randn(1, 1, 1, 7, dtype=dtype)

    def program(x: torch.Tensor, grid: torch.Tensor, turned: torch.Tensor, one: torch.Tensor) -> list[torch.Tensor]:
        images = [(x, grid), (x, turned), (x.mT, grid[:, ::2]), (one, grid[:1])]
        # what is looked up at 16 places each takes a compiler long; how images lie has to do with no mode
        return [sampled(*each, *how) for each in (images if mode != "bicubic" or sweeps.WHOLE else images[1:3])]

    with collected("fallback") as seen:
        got = argand.compile(program)(x, grid, turned, one)
    want = program(x, grid, turned, one)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert not seen


@pytest.mark.parametrize("mode", sweeps.in_turn(("bilinear", "nearest"), PADDINGS, CORNERS[::-1]), ids=str)
def test_volumes_and_their_gradients(mode: tuple[str, str, bool]) -> None:
    x, grid = torch.randn(2, 3, 4, 5, 6), places(2, 3, 4, 5, 3, dtype=torch.float32)
    torch.testing.assert_close(
        argand.compile(sampled)(x, grid, *mode), sampled(x, grid, *mode), rtol=1e-4, atol=1e-5, equal_nan=True
    )
    grid = grid.nan_to_num(0.1, 0.3, 0.4).clamp(-3, 3)
    assert same_gradients(x, grid, mode)


@pytest.mark.parametrize(("padding", "corners", "dtype"), sweeps.in_turn(PADDINGS, CORNERS, DTYPES), ids=str)
def test_gradients(padding: str, corners: bool, dtype: torch.dtype) -> None:
    x, grid = (
        torch.randn(2, 3, 5, 6, dtype=dtype),
        places(2, 4, 9, 2, dtype=dtype).nan_to_num(0.1, 0.3, 0.4).clamp(-3, 3),
    )
    assert same_gradients(x, grid, ("bilinear", padding, corners))


def same_gradients(x: torch.Tensor, grid: torch.Tensor, mode: tuple[str, str, bool]) -> bool:
    """Whether both gradients are eager's, without a call of its kernels."""
    weight = torch.randn(sampled(x, grid, *mode).shape, dtype=x.dtype)
    results = []
    with collected("fallback") as seen:
        for run in (sampled, argand.compile(sampled)):
            leaves = x.detach().requires_grad_(), grid.detach().requires_grad_()
            results.append(torch.autograd.grad(run(*leaves, *mode), leaves, weight))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert mine.stride() == theirs.stride()
    return not seen


@pytest.mark.parametrize(("padding", "corners", "layout"), sweeps.in_turn(PADDINGS, CORNERS, range(3)), ids=str)
def test_gradients_of_many_channels(padding: str, corners: bool, layout: int) -> None:
    """They are added up in an image whose channels are innermost, whatever the layout of the one that is looked up."""
    x, grid = torch.randn(2, 21, 5, 6), places(2, 4, 9, 2, dtype=torch.float32).nan_to_num(0.1, 0.3, 0.4).clamp(-3, 3)
    image = (x, x.to(memory_format=torch.channels_last), x.mT)[layout]
    assert same_gradients(image, grid, ("bilinear", padding, corners))


@pytest.mark.parametrize(("mode", "padding", "corners"), sweeps.in_turn(MODES, PADDINGS[::-1], CORNERS), ids=str)
def test_many_channels(mode: str, padding: str, corners: bool) -> None:
    """All of them are looked up at once: in an image that lies channel by channel, in one that does not, and in one of
    other sizes, whose result is read in another order."""
    how = mode, padding, corners
    x, grid = torch.randn(2, 40, 5, 6), places(2, 4, 9, 2, dtype=torch.float32)
    x[0, 0, 1, 1] = inf
    last = x.to(memory_format=torch.channels_last)

    def program(x: torch.Tensor, last: torch.Tensor, grid: torch.Tensor) -> Any:
        return (
            sampled(x, grid, *how),
            sampled(last, grid, *how),
            F.grid_sample(x[:, 3:37], grid, *how).permute(3, 0, 2, 1),
        )

    with collected("fallback") as seen:
        got = argand.compile(program)(x, last, grid)
    for mine, theirs in zip(got, program(x, last, grid), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert mine.stride() == theirs.stride()
    assert not seen


def reason_of(x: torch.Tensor, grid: torch.Tensor) -> list[str]:
    """Why a call is eager's; the result is eager's in any case."""
    with collected("fallback") as seen:
        got = argand.compile(sampled, dynamic=False)(x, grid, "bilinear", "zeros", False)
    torch.testing.assert_close(got, sampled(x, grid, "bilinear", "zeros", False), equal_nan=True)
    return [event.data["reason"] for event in seen]


def test_some_channels_and_few_places_are_eagers() -> None:
    grid = places(1, 4, 9, 2, dtype=torch.float32)
    some = ["some channels, whose places eager computes once"]
    assert reason_of(torch.randn(1, 7, 5, 6), grid) == some
    image = torch.randn(1, 40, 9, 9)
    assert reason_of(image, grid) == some  # the image would be copied
    assert not reason_of(image.to(memory_format=torch.channels_last), grid)
    assert not same_gradients(image, grid.nan_to_num(0.1, 0.3, 0.4), ("bilinear", "zeros", False))


def test_channels_are_looked_up_some_at_a_time() -> None:
    """Places and weights are computed once for those; here 4, 3 and 5 channels, in 3, 1 and 1 groups."""
    torch.manual_seed(0)
    ways = (3, "bilinear"), (12, "bicubic"), (5, "nearest")
    for (channels, mode), layout in sweeps.chessboard(ways, (torch.contiguous_format, torch.channels_last)):
        x = torch.randn(2, channels, 5, 6).to(memory_format=layout)
        grid = places(2, 4, 9, 2, dtype=torch.float32).nan_to_num(0.1)
        got = argand.compile(sampled)(x, grid.tanh(), mode, "zeros", False)
        want = sampled(x, grid.tanh(), mode, "zeros", False)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_affine_grids_are_as_exact_as_eagers() -> None:
    torch.manual_seed(0)
    for size in ((2, 3, 7, 9), (1, 2, 1, 5), (2, 1, 3, 4, 5)):
        theta = torch.randn(size[0], len(size) - 2, len(size) - 1)
        for corners in CORNERS:
            with collected("fallback") as seen:
                got = argand.compile(F.affine_grid, dynamic=False)(theta, size, align_corners=corners)
            exact = F.affine_grid(theta.double(), size, align_corners=corners)
            assert not seen and got.stride() == exact.stride()
            torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)
