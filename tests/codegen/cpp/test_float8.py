"""Floats of eight bits in kernels: every byte, and floats of every size, bit for bit as eager converts them."""

import math

import pytest
import torch

import argand
import argand.events

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)


def floats():
    """Any bits, sizes that round to each byte, and what is at the ends."""
    torch.manual_seed(0)
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, 448, 464, 464.1, 480, 57344, 61439, 61440, 65535, 65536, 1e9]
    small = [2.0**-power for power in (6, 9, 10, 14, 16, 17, 18)]
    halves = torch.arange(65536).to(torch.int32).to(torch.int16).view(torch.float16).float()
    anything = torch.randint(-(2**31), 2**31 - 1, (100_003,)).to(torch.int32).view(torch.float32)
    return torch.cat((anything, halves, torch.tensor(ends + small)))


def compiled(function, *args):
    """The result of loops: no kernel of eager's converts."""
    fallbacks = []
    unsubscribe = argand.events.bus.subscribe(fallbacks.append, ["fallback"])
    result = argand.compile(function, fullgraph=True, dynamic=False)(*args)
    unsubscribe()
    assert not fallbacks
    return result


@pytest.mark.parametrize("dtype", FORMATS)
def test_floats_become_bytes(dtype):
    def function(x):
        return (
            x.to(dtype),
            x.to(torch.bfloat16).to(dtype),
            x.to(torch.float64).to(dtype),
            x[:999].view(27, 37).t().to(dtype),
        )

    x = floats()
    for a, b in zip(function(x), compiled(function, x), strict=True):
        assert a.dtype is b.dtype and a.stride() == b.stride()
        nan = a.float().isnan()
        assert torch.equal(nan, b.float().isnan())  # of which there are two
        assert torch.equal(a.view(torch.uint8)[~nan], b.view(torch.uint8)[~nan])


@pytest.mark.parametrize("dtype", FORMATS)
def test_bytes_become_numbers(dtype):
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    whole = x[torch.isfinite(x.float())]
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for a, b in zip([x.to(kind) for kind in kinds], compiled(lambda x: [x.to(kind) for kind in kinds], x), strict=True):
        assert a.dtype is b.dtype and torch.equal(a.isnan(), b.isnan()) and torch.equal(a[~a.isnan()], b[~a.isnan()])
    assert torch.equal(whole.to(torch.int32), compiled(lambda x: x.to(torch.int32), whole))


def test_scaled_and_back():
    def function(x):
        scale = x.abs().amax(-1, keepdim=True) / 448
        return (x / scale).to(torch.float8_e4m3fn).float() * scale, (x.sum(0) > 0).to(torch.float8_e5m2)

    x = torch.randn(33, 70)
    for a, b in zip(function(x), compiled(function, x), strict=True):
        assert a.dtype is b.dtype and torch.equal(a.float(), b.float())


def test_arithmetic_that_eager_does_not_have_raises_as_it_does():
    x = torch.randn(4).to(torch.float8_e5m2)
    with pytest.raises(Exception) as wanted:
        _ = x + x
    with pytest.raises(type(wanted.value)):
        argand.compile(lambda x: x + x)(x)
