"""Products of rows of floats with weights of 8 bits, of each kind of processor that this one can be."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

import sweeps
from argand.runtime import toolchain
from argand.runtime.kernels import int8, texts
from argand.runtime.launch import make_kernel

BUILDS = {"as chosen": None, "no products of bytes": -1, "256 bits": 256, "128 bits": 128, "torch": 0}
SIZES = [(1, 64, 64), (2, 65, 33), (3, 127, 100), (7, 300, 31), (13, 770, 129), (31, 33, 97), (5, 3, 40), (1, 1, 1)]


@pytest.fixture(scope="module", params=list(BUILDS))
def build(request):
    """The kernels, compiled for a width of vectors."""
    bits = BUILDS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if bits is not None:
            kernels = Future()
            kernels.set_result(_compiled(bits) if bits else {})
            patch.setattr(int8, "_compiled", lambda: kernels)
        elif not int8._compiled().result():
            pytest.skip("the kernels do not compile here")
        yield request.param


def _compiled(bits):
    text = texts.text_of("int8")
    library = toolchain.load_text(text, toolchain.isa_for(bits), name="int8")
    return {name: make_kernel(library.address(name), name, *counts) for name, counts in int8._FUNCTIONS.items()}


def computed(x, weight, dynamic, bias=None, other=None, activation="none"):
    scales = int8.scales_of(weight)
    packed = int8.packed(weight, scales, dynamic)
    assert packed.shape == int8.packed_size(weight, scales, dynamic).shape
    args = (x, packed, scales, bias, other, weight.shape[1], dynamic, activation)
    out = torch.full((x.shape[0] + 1, weight.shape[1] + 3), 7.0, dtype=x.dtype)
    int8.int8_linear(*args, out=out[:-1, :-3])
    assert (out[-1] == 7).all() and (out[:, -3:] == 7).all()
    return out[:-1, :-3], int8._by_torch(*args[:3], *(each.double() if each is not None else None for each in args[3:5]),
                                         *args[5:]), args  # fmt: skip


@pytest.mark.parametrize(("dtype", "dynamic"), sweeps.chessboard([torch.float32, torch.bfloat16], [False, True]))
def test_products_are_exact_to_rounding(build, dynamic, dtype):
    torch.manual_seed(0)
    for rows, terms, columns in SIZES:
        for activation in int8.ACTIVATIONS:
            x = torch.randn(rows, terms + 2).to(dtype)[:, :terms]
            weight = torch.randn(columns, terms).to(dtype).t()
            bias = torch.randn(columns).to(dtype) if activation != "silu" else None
            other = torch.randn(rows, columns).to(dtype) if activation != "relu" else None
            got, want, _ = computed(x, weight, dynamic, bias, other, activation)
            sums = x.double().abs() @ weight.double().abs() + (0 if bias is None else bias.double().abs())
            sums = sums + (0 if other is None else other.double().abs())
            error = (got.double() - want.double()).abs()
            assert (error <= 4e-6 * sums + torch.finfo(dtype).eps * want.double().abs() + 1e-6).all()


@pytest.mark.parametrize("dynamic", [False, True], ids=["weight only", "dynamic"])
def test_sums_of_integers_are_exact(build, dynamic):
    """Weights and rows that 8 bits hold, the longest sums at the largest numbers."""
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (700, 40)).float()
    weight[0], weight[:, 1] = 127.0, 127.0
    x = torch.randint(-127, 128, (6, 700)).float()
    x[:, 0], x[1], x[2] = 127.0, 127.0, -127.0
    got, _, _ = computed(x, weight, dynamic)
    assert torch.equal(got, (x.double() @ weight.double()).float())


def test_rows_that_are_odd(build):
    weight = torch.randn(64, 40)
    x = torch.randn(6, 64)
    x[0], x[1, 3], x[2, 5], x[3] = 0.0, float("nan"), float("inf"), 1e-42
    x[4] *= 1e30
    got, _, _ = computed(x, weight, True, torch.ones(40))
    assert torch.equal(got[0], torch.ones(40)) and got[1].isnan().all() and got[2].isnan().all()
    assert torch.equal(got[3], torch.ones(40)) and got[4].isfinite().all()
    got, _, _ = computed(x, weight, False, torch.ones(40))
    assert torch.equal(got[0], torch.ones(40)) and got[1].isnan().all() and not got[2].isfinite().any()


def test_weights_that_are_odd(build):
    weight = torch.randn(64, 40)
    weight[:, 0], weight[3, 1], weight[4, 2] = 0.0, float("nan"), float("inf")
    for dynamic in (False, True):
        got, _, _ = computed(torch.randn(3, 64), weight, dynamic)
        assert (got[:, 0] == 0).all() and got[:, 1].isnan().all() and not got[:, 2].isfinite().any()
        assert got[:, 3:].isfinite().all()


def test_many_rows_and_threads(build):
    if build == "torch":
        pytest.skip("nothing of it depends on threads")
    weight, threads = torch.randn(256, 200), torch.get_num_threads()
    x = torch.randn(1100, 256)
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found += [computed(x, weight, dynamic)[0].clone() for dynamic in (False, True)]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert (found[1] - x @ weight).norm() < 0.02 * (x @ weight).norm()


def test_what_lies_otherwise_is_copied():
    x, weight = torch.randn(64, 5).t(), torch.randn(64, 40)
    other, bias = torch.randn(40, 5).t(), torch.randn(80)[::2]
    got, want, _ = computed(x, weight, True, bias, other)
    torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-4)
