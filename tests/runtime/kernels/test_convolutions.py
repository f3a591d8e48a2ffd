"""Convolutions that are products: eager's results, whoever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import argand
import sweeps
from argand.backends import layouts
from argand.codegen.host import convolutions as choice
from argand.runtime.kernels import convolutions, products, timed_choice
from helpers import texts_of

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Host modules written; convolutions of any size may go to oneDNN."""
    monkeypatch.setattr(choice, "LEAST_TERMS", 1)
    argand.reset()
    rivals = (convolutions.WINDOWS, convolutions.POINTS, convolutions.VOLUMES, convolutions.OWN)
    for each in rivals:
        each.forget()
    with argand.config.patch({"cache_dir": str(tmp_path)}), texts_of("output_code") as texts:
        yield texts
    for each in rivals:
        each.forget()


@pytest.mark.parametrize("faster", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("window", "stride", "padding", "dilation"), [(3, 1, 1, 1), ((1, 3), (2, 1), 0, (1, 2))])
def test_small_convolutions(
    window: int, stride: int, padding: int, dilation: int, bias: bool, faster: bool, code: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(convolutions.WINDOWS, "_gain", 1e9 if faster else 0.0)
    monkeypatch.setattr(timed_choice, "_KINDS", 1)
    conv = torch.nn.Conv2d(12, 20, window, stride, padding, dilation, bias=bias)
    x = torch.randn(1, 12, 18, 18)
    compiled = argand.compile(lambda x: torch.relu(conv(x.sin())))
    with torch.no_grad():
        want = torch.relu(conv(x.sin()))
        for _ in range(12):  # both ways, then the faster
            got = compiled(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
        assert "measured_convolution" in code[-1] and convolutions.WINDOWS.known() is faster
        argand.reset()
        torch.testing.assert_close(argand.compile(lambda x: torch.relu(conv(x.sin())))(x), want)
        assert ("measured_convolution" in code[-1]) == faster
    x.requires_grad_()
    got = torch.autograd.grad(argand.compile(conv)(x).square().sum(), [x, *conv.parameters()])
    want = torch.autograd.grad(conv(x).square().sum(), [x, *conv.parameters()])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("padding", "measured"), [((0, 1), True), ((1, 1), False)])
def test_windows_in_the_padding_are_not_onednns(padding: tuple[int, int], measured: bool, code: list[str]) -> None:
    """Where eager would not call it: its kernels end the process there."""
    conv, x = torch.nn.Conv2d(12, 20, (1, 3), padding=padding), torch.randn(1, 12, 18, 18)
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(lambda x: conv(x.sin()))(x), conv(x.sin()))
    assert any("measured_convolution" in text for text in code) is measured


VOLUMES = [
    ((3, 3, 3), 1, 1, 1),
    ((3, 1, 2), (2, 1, 2), (0, 0, 1), (1, 2, 1)),
    ((2, 3, 3), (1, 3, 2), (1, 0, 2), (2, 1, 1)),
]


@pytest.mark.parametrize(
    ("faster", "size", "window"),
    sweeps.combinations([False, True], [(6, 7, 9), (7, 8, 9), (9, 7, 8)], VOLUMES),
    ids=str,
)
def test_volumes(window: tuple, size: tuple, faster: bool, code: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients of one, by both ways, then by the faster."""
    monkeypatch.setattr(convolutions.VOLUMES, "_gain", 1e9 if faster else 0.0)
    conv = torch.nn.Conv3d(5, 8, *window)
    x = torch.randn(1, 5, *size, requires_grad=True)
    compiled = argand.compile(lambda x: conv(x.sin()).square().sum())
    for _ in range(3):
        got, want = compiled(x), conv(x.sin()).square().sum()
        torch.testing.assert_close(got, want)
        leaves = [x, *conv.parameters()]
        for one, two in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
            assert one.stride() == two.stride()
    points = conv(x).shape[2:]
    assert any("measured_convolution" in text for text in code)
    assert any("measured_volume_gradient" in text for text in code) == any(n % 2 == 0 for n in points)


def test_single_points_on_one_thread(code: list[str]) -> None:
    """With the channels innermost."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        conv = torch.nn.Conv2d(32, 24, 1).to(memory_format=torch.channels_last)
        x = torch.randn(3, 32, 30, 30).to(memory_format=torch.channels_last)
        with torch.no_grad():
            torch.testing.assert_close(argand.compile(conv)(x), conv(x))
            assert argand.compile(conv)(x).stride() == conv(x).stride()
        assert "measured_convolution" in code[-1]
    finally:
        torch.set_num_threads(before)


SIGNALS = [  # features, points, window, stride, padding, dilation
    (3, 5, 40, 1, 1, 0, 1), (48, 96, 200, 2, 1, 0, 32), (7, 20, 77, 3, 1, 1, 1), (5, 33, 91, 10, 5, 3, 1),
    (64, 64, 50, 3, 2, 2, 2), (1, 16, 100, 9, 1, 4, 1), (600, 40, 33, 3, 1, 1, 1), (4, 4, 20, 5, 3, 9, 2),
    (16, 15, 1100, 1, 1, 0, 1), (8, 9, 5, 3, 1, 6, 4), (8, 33, 40, 1, 3, 2, 1),
]  # fmt: skip
needs_products = pytest.mark.skipif(not products.available(), reason="needs AVX-512 and GCC")


@needs_products
@pytest.mark.parametrize(("channels", "features", "points", "window", "stride", "padding", "dilation"), SIGNALS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_signals(
    channels: int, features: int, points: int, window: int, stride: int, padding: int, dilation: int, batch: int
) -> None:
    """Within rounding of the largest result, of signals of any strides."""
    weight = torch.randn(features, channels, window)
    for x in (
        torch.randn(batch, channels, points),
        torch.randn(channels, batch, points + 3).transpose(0, 1)[..., 2:-1],
        torch.randn(batch, points, channels).transpose(1, 2),
    ):
        for bias in (None, torch.randn(features)):
            got = products.convolution(x, weight, bias, stride, padding, dilation)
            want = torch.conv1d(
                x.double(), weight.double(), None if bias is None else bias.double(), stride, padding, dilation
            )
            assert got is not None and got.shape == want.shape
            assert float((got - want).abs().max()) <= 1e-6 * float(want.abs().max())


@needs_products
@pytest.mark.parametrize(
    ("given", "faster"),
    sweeps.chessboard(
        [
            (torch.nn.Conv1d(12, 20, 3, padding=2, dilation=2), (2, 12, 90)),
            (torch.nn.Conv1d(12, 20, 4, stride=3, bias=False), (2, 12, 90)),
            (torch.nn.Conv2d(12, 20, 1), (3, 12, 9, 10)),
            (torch.nn.Conv3d(12, 20, 1), (3, 12, 3, 9, 10)),
            (torch.nn.Conv1d(12, 20, 1), (2, 90, 12)),
            (torch.nn.Conv1d(12, 20, 1, stride=2), (2, 90, 12)),
            (torch.nn.Conv2d(12, 20, 1, bias=False), (2, 12, 9, 10)),
        ],
        [False, True, None],
    ),
    ids=str,
)
def test_products_in_programs(
    given: tuple[torch.nn.Module, tuple[int, ...]],
    faster: bool | None,
    code: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By both ways, then by the faster; where a setting says so, by argand's own."""
    conv, shape = given
    monkeypatch.setattr(timed_choice, "_SHORT", 1e9)  # one call decides
    monkeypatch.setattr(choice, "OWN_LEAST_TERMS", 1)
    monkeypatch.setattr(layouts, "can_time", lambda: False)
    monkeypatch.setattr(convolutions.OWN, "_gain", 1e9 if faster else 0.0)
    products._compiled().result()
    x = torch.randn(shape) if shape[1] == 12 else torch.randn(shape).movedim(-1, 1)  # the channels innermost
    with torch.no_grad(), argand.config.patch({"cpp.own_products": True if faster is None else None}):
        compiled = argand.compile(lambda x: torch.relu(conv(x.sin())))
        want = torch.relu(conv(x.sin()))
        for _ in range(3):
            got = compiled(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
        torch.testing.assert_close(compiled(-x), torch.relu(conv(x.neg().sin())))
    assert ("product_convolution" if faster is None else "MeasuredConvolution(") in code[-1]
    assert convolutions.OWN.known() is (True if faster else None)


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (torch.nn.Conv2d(12, 20, 3), (2, 12, 18, 18)),
        (torch.nn.Conv2d(12, 20, 3), (1, 12, 60, 60)),
        (torch.nn.Conv2d(12, 20, 5), (1, 12, 18, 18)),
        (torch.nn.Conv2d(12, 24, 3, groups=2), (1, 12, 18, 18)),
        (torch.nn.Conv2d(12, 20, 3), (1, 12, 6, 6)),
        (torch.nn.ConvTranspose2d(12, 20, 3), (1, 12, 18, 18)),
        (torch.nn.Conv1d(12, 20, 3, groups=2), (1, 12, 90)),
        (torch.nn.ConvTranspose1d(12, 20, 3), (1, 12, 90)),
        (torch.nn.Conv1d(12, 20, 3).double(), (1, 12, 90)),
        (torch.nn.Conv2d(12, 20, 1, stride=2), (2, 12, 18, 18)),
        (torch.nn.Conv2d(12, 20, 3).double(), (1, 12, 18, 18)),
        (torch.nn.Conv3d(4, 6, 3), (2, 4, 8, 8, 8)),
        (torch.nn.Conv3d(4, 6, 3, groups=2), (1, 4, 8, 8, 8)),
        (torch.nn.Conv3d(4, 6, 5), (1, 4, 8, 8, 8)),
        (torch.nn.ConvTranspose3d(4, 6, 3), (1, 4, 8, 8, 8)),
    ],
    ids=str,
)
def test_others_are_eagers(
    conv: torch.nn.Module, shape: tuple[int, ...], code: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "OWN_LEAST_TERMS", 1)
    x = torch.randn(shape, dtype=next(conv.parameters()).dtype)
    with torch.no_grad():
        torch.testing.assert_close(argand.compile(conv)(x), conv(x))
    assert not any("measured_convolution" in text or "MeasuredConvolution(" in text for text in code)
