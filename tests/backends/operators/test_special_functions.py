"""Special functions are loops of argand's: values, infinities and NaNs as eager's, gradients, and what stays the library's."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import argand
from argand import events

nan, inf = math.nan, math.inf
NUMBERS = [
    nan,
    inf,
    -inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    1e-38,
    -1e-45,
    3e38,
    88.8,
    -104.0,
    2.0,
    7.5,
    8.0,
    -7.3,
    0.9999,
]
special = torch.special
OF_FLOATS = {
    "lgamma": torch.lgamma, "digamma": torch.digamma, "erfinv": torch.erfinv, "erfcx": special.erfcx,
    "ndtri": special.ndtri, "log_ndtr": special.log_ndtr, "i0": torch.i0, "i0e": special.i0e, "i1": special.i1,
    "i1e": special.i1e, "trigamma": lambda x: torch.polygamma(1, x), "modified_bessel_i0": special.modified_bessel_i0,
    "modified_bessel_i1": special.modified_bessel_i1,
}  # fmt: skip
COMBINED = {
    "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "hypot": torch.hypot, "xlog1py": special.xlog1py,
    "entr": lambda x, y: special.entr(x), "decimals": lambda x, y: torch.round(x, decimals=1),
    "decimals of tens": lambda x, y: torch.round(x, decimals=-1),
}  # fmt: skip


def fallbacks_of(function, *args):
    """What the compiled function gives, and why it calls kernels of eager's."""
    said: list[str] = []
    remove = events.bus.subscribe(lambda event: said.append(event.text()), ["fallback"])
    try:
        return argand.compile(function)(*args), said
    finally:
        remove()


@pytest.mark.parametrize("name", OF_FLOATS)
def test_special_functions_of_floats(name):
    function = OF_FLOATS[name]
    x = torch.cat([torch.tensor(NUMBERS), torch.linspace(-12, 12, 1001), torch.logspace(-30, 30, 501)])
    halves = ("lgamma", "digamma", "erfinv", "i0", "i0e")  # that eager has, too
    for given in (x, x.bfloat16())[: 1 + (name in halves)]:
        result, said = fallbacks_of(lambda x: function(x) * 1.0, given)
        exact = function(given.double()).to(given.dtype)
        exact = torch.where(function(given).isinf(), function(given), exact)  # where an exponential overflows first
        if name == "trigamma":  # at a pole eager has the square of a sine that is not quite 0
            exact = torch.where((given < 0) & (given == given.round()) & given.isfinite(), inf, exact)
        assert not said
        torch.testing.assert_close(result, exact, rtol=3e-7 if given is x else 0.0, atol=2e-45, equal_nan=True)
        assert torch.equal(result.signbit() & ~result.isnan(), exact.signbit() & ~exact.isnan())


def test_doubles_are_the_librarys():
    x = torch.rand(1000, dtype=torch.float64)
    result, said = fallbacks_of(lambda x: torch.lgamma(x) * 1.0, x)
    assert said == ["lgamma of doubles is the library's"] and torch.equal(result, torch.lgamma(x))


def test_special_functions_of_integers_are_of_floats():
    x = torch.arange(-3, 40)
    result, said = fallbacks_of(lambda x: torch.lgamma(x) + torch.i0(x), x)
    assert not said
    torch.testing.assert_close(result, torch.lgamma(x) + torch.i0(x), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_elementary_ones(name, dtype):
    pairs = torch.tensor(list(itertools.product(NUMBERS, NUMBERS)), dtype=dtype)
    x, y = pairs.unbind(1)
    result, said = fallbacks_of(lambda x, y: COMBINED[name](x, y) * 1.0, x, y)
    assert not said
    precise = torch.finfo(dtype).eps
    torch.testing.assert_close(result, COMBINED[name](x, y), rtol=4 * precise, atol=precise, equal_nan=True)


def test_hypot_of_doubles_whose_squares_are_not_finite():
    x = torch.tensor([1e300, 1e-300, 3e-310, 1e300, 4.0, 5e-324], dtype=torch.float64)
    y = torch.tensor([1e300, 1e-300, 4e-310, 1.0, 3.0, 0.0], dtype=torch.float64)
    result, _ = fallbacks_of(torch.hypot, x, y)
    torch.testing.assert_close(result, torch.hypot(x, y), rtol=4e-16, atol=0.0)


def test_gradients_of_densities():
    def loss(a, b, x):
        normal = torch.distributions.Normal(0.0, 1.0)
        beta = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) + special.xlog1py(b - 1, -x)
        turned = torch.log(special.i0e(a)) + special.entr(x) + torch.logaddexp(a, b) + torch.hypot(a, b)
        return (beta + turned + normal.icdf(x) + special.log_ndtr(a) + special.erfcx(x)).sum()

    given = [torch.rand(300) * 3 + 0.1, torch.rand(300) * 3 + 0.1, torch.rand(300) * 0.9 + 0.05]
    wanted, seen = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    loss(*wanted).backward()
    result, said = fallbacks_of(loss, *seen)
    result.backward()
    assert not said
    for a, b in zip(seen, wanted):
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-5, atol=2e-5)
