"""Reflection and replication padding, and their gradients."""

import pytest
import torch
import torch.nn.functional as F
from lowering_helpers import check

import argand
import sweeps
from helpers import collected

SHAPES = {1: (2, 3, 7), 2: (2, 3, 6, 9), 3: (2, 2, 5, 6, 7)}
PADS = {1: [(2, 3), (0, 4), (-1, 2), (6, 6)], 2: [(2, 1, 0, 3), (1, 1, 1, 1), (0, 0, -2, 1)], 3: [(1, 1, 1, 0, 0, 1)]}
CASES = sweeps.chessboard([(rank, pads) for rank in PADS for pads in PADS[rank]], ("reflect", "replicate"))


def gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return y, *torch.autograd.grad((y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum(), x)


@pytest.mark.parametrize(("given", "mode"), CASES)
def test_values_and_gradients(given, mode):
    rank, pads = given
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


PARTS = {
    "zeros at the end": (lambda x: F.pad(x, (0, 3)), True),
    "zeros around": (lambda x: F.pad(x, (7, 5, 1, 0), value=2.0), True),
    "cut and padded": (lambda x: F.pad(x, (-3, 4, 2, -1)), True),
    "nothing of it is left": (lambda x: F.pad(x, (-9, -1)), True),
    "written once": (lambda x: torch.slice_scatter(x, x[..., :3] * 2, -1, 4, 7), True),
    "written often": (lambda x: written(x), False),
    "written where it is broadcast": (lambda x: torch.slice_scatter(x, x[:, :1, :1].expand(-1, 6, 4), -1, 0, 4), True),
    "every second": (lambda x: torch.slice_scatter(x, x[..., :5] * 2, -1, 0, 10, 2), False),
}


def written(x):
    y = x.clone()
    y[..., 2:5] = 1.0
    y[..., 4:] *= 2
    y[..., :9] += y[..., 1:]
    return y


@pytest.mark.parametrize(
    ("name", "dtype"), sweeps.chessboard(PARTS, [torch.float32, torch.bfloat16, torch.int64]), ids=str
)
def test_rows_that_are_stored_in_parts(name, dtype):
    function = PARTS[name][0]
    x = (torch.randn(4, 6, 10) * 5).to(dtype)
    with collected("output_code") as events:
        made, want = argand.compile(function, fullgraph=True, dynamic=False)(x), function(x)
    assert torch.equal(made, want)
    assert made.stride() == want.stride()
    if PARTS[name][1]:
        assert not any("_masked<" in line for event in events for line in event.payload.split("\n") if "auto" in line)
    argand.reset()
    consumer = argand.compile(lambda x: function(x).relu().sum(-1), dynamic=True)
    for rows in (4, 5, 7):
        x = (torch.randn(rows, 6, 10) * 5).to(dtype)
        torch.testing.assert_close(consumer(x), function(x).relu().sum(-1))


@pytest.mark.parametrize(
    ("size", "pads"),
    [((2, 3, 6), (2, 1)), ((2, 6, 6), (6, 6)), ((2, 3, 6), (0, 0)), ((2, 3, 6), (-1, 2)), ((2, 3, 6, 7), (1, 2, 0, 6))]
    + [((2, 3, 4, 5, 6), (1, 1, 2, 2, 0, 3))],
)
def test_what_goes_round(size, pads):
    layouts = [torch.contiguous_format] + [torch.channels_last] * (len(size) == 4)
    for layout in layouts:
        x = torch.randn(size).to(memory_format=layout)

        def function(x):
            return F.pad(x, pads, "circular"), F.pad(x.mT, pads, mode="circular") + 1

        argand.reset()
        for made, want in zip(argand.compile(function, fullgraph=True)(x), function(x), strict=True):
            assert torch.equal(made, want)
            assert made.stride() == want.stride()
        argand.reset()
        compiled = argand.compile(lambda x: F.pad(x.sin(), pads, "circular"), fullgraph=True)
        for made, want in zip(gradient(compiled, x), gradient(lambda x: F.pad(x.sin(), pads, "circular"), x)):
            torch.testing.assert_close(made, want)


def test_what_goes_round_more_than_once():
    with pytest.raises(RuntimeError, match="more than once"):
        argand.compile(F.pad)(torch.randn(2, 3, 6), (7, 0), "circular")
