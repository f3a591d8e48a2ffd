"""Complex numbers as pairs of real ones, compiled, against eager: values, gradients, layouts, dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from helpers import collected

COMPLEX = [torch.complex64, torch.complex128]
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 1e30, 1e-30]


def tensors(*sizes: Any, dtype: torch.dtype = torch.complex64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    return [torch.randn(size, dtype=dtype, generator=generator) for size in sizes]


def compare(
    function: Callable[..., Any], *given: torch.Tensor, loops_only: bool = True, gradients: bool = True
) -> None:
    """Results and gradients of the compiled function against eager's; no operation of its own left to ATen."""
    with collected("fallback") as seen:
        compiled = argand.compile(function, fullgraph=True, backend="native")
        for with_gradients in (False, True) if gradients else (False,):
            torch.testing.assert_close(
                _outcome(compiled, given, with_gradients), _outcome(function, given, with_gradients), equal_nan=True
            )
    if loops_only:
        assert not [event.data for event in seen]


def _outcome(function: Callable[..., Any], given: tuple[torch.Tensor, ...], gradients: bool) -> list[Any]:
    differentiable = [x.is_floating_point() or x.is_complex() for x in given]
    fresh = [x.detach().requires_grad_(gradients and each) for x, each in zip(given, differentiable)]
    results = function(*fresh)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    if not gradients:
        return [(torch.view_as_real(x.resolve_conj()) if x.is_complex() else x, x.stride()) for x in results]
    torch.manual_seed(0)
    ends = [x for x in results if x.requires_grad]
    wanted = [x for x in fresh if x.requires_grad]
    return list(torch.autograd.grad(ends, wanted, [torch.randn_like(x) for x in ends], allow_unused=True))


def rotary(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """As reference code for Llama has it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


@pytest.mark.parametrize(
    ("dtype", "width"), sweeps.in_turn([torch.float32, torch.bfloat16, torch.float16], [6, 32, 66])
)
def test_rotary_embeddings(dtype, width):
    x = torch.randn(2, 5, 3, width).to(dtype)
    turns = torch.polar(torch.ones(5, width // 2), torch.randn(5, width // 2))
    compare(rotary, x, turns)


def test_rotary_embeddings_of_any_length():
    compiled = argand.compile(rotary, fullgraph=True, dynamic=True)
    for length in (4, 7, 16):
        x, turns = torch.randn(2, length, 3, 16), torch.polar(torch.ones(length, 8), torch.randn(length, 8))
        torch.testing.assert_close(compiled(x, turns), rotary(x, turns))


FIRST = torch.tensor([0, 0, 1])
ARITHMETIC = {
    "products and conjugates": lambda x, y: x * y + x.conj() * 2 - y * 1j,
    "quotients": lambda x, y: x / y + 1 / x + x / 2.5 + y.reciprocal(),
    "sums scaled": lambda x, y: torch.add(x, y, alpha=3) - torch.sub(y, x, alpha=2 + 1j),
    "of real tensors": lambda x, y: x * y.real + x.imag - y.abs() / x,
    "parts": lambda x, y: torch.view_as_real(x * y).sum(-1) + (x - y).real * x.imag,
    "angles and lengths": lambda x, y: torch.polar(x.abs(), y.angle()) + x.sgn(),
    "parts put together": lambda x, y: torch.complex(x.real * 2, y.imag) ** 2,
    "parts of conjugates": lambda x, y: x.conj().real * y.mH.t().imag + torch.imag(x.conj()) * y.conj().isfinite(),
    "products of vectors": lambda x, y: torch.vdot(x[0], y[0]) * 2 + x[1].dot(y[1]) + x[2].conj() @ y[2],
    "sums at places": lambda x, y: (
        (x * y).index_put((FIRST,), y[:3], accumulate=True)
        + x.scatter_add(0, FIRST.view(-1, 1).expand(3, 21), y[:3] * 2)
    ),
    "choices": lambda x, y: torch.where(x.real > 0, x, y * 2),
    "comparisons": lambda x, y: (x == y) | (x != x.conj()) | torch.isnan(x) | torch.isfinite(y),
    "comparisons of real ones": lambda x, y: [x.real == y, y != x.real, x == y.imag, x != 2],
    "joined and cut": lambda x, y: torch.cat([x * y, y], 1)[:, 1::2].flip(0) * x[:, :1],
    "joined with real ones": lambda x, y: torch.cat([x.real, x * y, y.imag * 2], 1) * 2,
    "with a diagonal": lambda x, y: torch.diagonal_scatter(x * y, y[:, 0] * 2) + x,
    "sums and means": lambda x, y: (x * y).sum(1) + (x - y).mean(1) + y.sum(),
    "moved": lambda x, y: (x.t() * y.t()).reshape(-1).unsqueeze(0) * 2,
    "split": lambda x, y: [a * b for a, b in zip(x.split(3), y.split(3))],
    "of one number": lambda x, y: x * x[0, 0] + y[1, 1],
}


@pytest.mark.parametrize(("name", "dtype"), sweeps.chessboard(ARITHMETIC, COMPLEX))
def test_arithmetic(name, dtype):
    x, y = tensors((6, 21), (6, 21), dtype=dtype)
    lengths = dtype is torch.complex128 and name in ("angles and lengths", "of real tensors")  # the library's
    compare(ARITHMETIC[name], x, y, loops_only=not lengths, gradients="comparisons" not in name)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_on_other_layouts(name):
    x, y = tensors((21, 12), (6, 42))
    plain, conjugated = (x.t()[::2], y[:, ::2]), (x.t()[::2].conj(), y[:, ::2].resolve_conj())
    for given in (plain, conjugated) if sweeps.WHOLE or "conj" in name else (conjugated,):
        compare(ARITHMETIC[name], *given, loops_only=False, gradients=False)


def test_two_precisions_and_promotion():
    x, (y,) = torch.randn(5, 7, dtype=torch.complex128), tensors((7,))
    compare(lambda a, b: a * b + b, x, y)
    compare(lambda a, b: a.to(torch.complex64) * b + torch.arange(7), x, y)


def test_nothing_and_one_number():
    compare(lambda a, b: a * b + a.conj(), *tensors((0, 3), (0, 3)))
    compare(lambda a, b: a * b + a.conj(), *tensors((), ()))


ON_SPECIAL = {
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "reciprocal": lambda a, b: a.reciprocal(),
    "by zero": lambda a, b: a / 0.0,
    "by a real tensor": lambda a, b: a * b.real,
    "length": lambda a, b: a.abs(),
    "angle": lambda a, b: a.angle(),
    "sums": lambda a, b: a + 2.0 - b,
    "tests": lambda a, b: torch.isnan(a) | torch.isinf(b),
    "means": lambda a, b: [torch.stack([a, a]).mean(0), a[:20].mean(), b.unflatten(0, (3, -1)).mean(0, keepdim=True)],
}


@pytest.mark.parametrize(("name", "dtype"), sweeps.chessboard(ON_SPECIAL, COMPLEX))
def test_special_values(name, dtype):
    parts = torch.tensor(SPECIAL, dtype=dtype.to_real())
    count = len(SPECIAL)
    x = torch.complex(parts.repeat_interleave(count), parts.repeat(count))
    y = x.flip(0)[torch.arange(count**2).roll(7)]
    compare(ON_SPECIAL[name], x, y, loops_only=False, gradients=False)


def test_functions_of_floats():
    parts = torch.tensor([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 30.0, 88.9])
    x = torch.complex(parts.repeat_interleave(9), parts.repeat(9))
    compare(lambda a: a.exp(), x, gradients=False)
    compare(lambda a: a.log(), x, gradients=False)
    compare(lambda a: a.exp() + a.log(), tensors((3, 40))[0])
    tall = torch.complex(torch.full((20,), 89.5), torch.linspace(1e-4, 1e-2, 20))  # e^re alone is not in range
    compare(lambda a: a.exp(), tall, gradients=False)


FUNCTIONS = ["sin", "cos", "sinh", "cosh", "sqrt", "rsqrt", "log2", "log10"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_the_ends(name):
    """The C library's values, where a part is none, infinite or zero: of those whose sign it leaves open, any."""
    parts = torch.tensor([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 30.0, -88.9, 1e-30, 1e30])
    x = torch.complex(parts.repeat_interleave(11), parts.repeat(11))
    want = getattr(torch, name)(x)
    made = argand.compile(getattr(torch, name), fullgraph=True)(x)
    signless = want.isinf() & want.isnan()  # an infinity beside what is no number
    made, want = (torch.where(signless, torch.complex(x.real.abs(), x.imag.abs()), x) for x in (made, want))
    for one, other in ((made.real, want.real), (made.imag, want.imag)):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=2e-6, atol=0.0)
    if name == "sqrt":  # which side of its cut
        assert torch.equal(made.imag.signbit() | want.imag.isnan(), want.imag.signbit() | want.imag.isnan())


def test_functions_and_their_gradients():
    def function(x):
        y = x * 1.5
        return [getattr(y, name)() for name in FUNCTIONS] + [y**3, (y**2).sqrt() * y.sin()]

    compare(function, tensors((7, 40))[0])
    compare(function, tensors((40, 7))[0].t()[:, ::2], gradients=False)
    compare(lambda x: (x * 2).sin() + (x + 1).sqrt(), tensors((5, 3), dtype=torch.complex128)[0], loops_only=False)
    small = tensors((3, 40))[0] * 1e-6
    compare(lambda x: (x.sinh() * 1, x.sin() * 1, x.sqrt() * 1), small, gradients=False)


def test_between_kernels_of_libraries():
    x, y, w = tensors((4, 6), (6, 4), (4, 4))
    compare(lambda a, b, c: ((a @ b) * c).t() @ (a * 2), x, y, w, loops_only=False)
    compare(
        lambda a, b: torch.fft.irfft(torch.fft.rfft(a) * torch.fft.rfft(b), n=6),
        *torch.randn(2, 3, 6),
        loops_only=False,
    )
    compare(lambda a, b: torch.fft.fft(torch.fft.fft(a) * b).abs(), x, y.t().resolve_conj(), loops_only=False)
    compare(lambda a, b: torch.linalg.solve(a * 1j, b), w, w, loops_only=False)


def test_results_have_eagers_layout():
    x, y = tensors((3, 4, 5, 2), (3, 4, 5, 2))
    last = [each.to(memory_format=torch.channels_last) for each in (x, y)]
    compare(lambda a, b: a * b, *last)
    compare(lambda a, b: torch.view_as_real(a * b), *last)
    compare(lambda a, b: (a.permute(2, 0, 1, 3) * b.permute(2, 0, 1, 3)).contiguous(), x, y)


def test_the_largest_length_is_found_again():
    compare(
        lambda x: torch.linalg.vector_norm(x, INF, dim=1), torch.randn(9, 30, dtype=torch.complex128), loops_only=False
    )
    compare(
        lambda x: torch.linalg.vector_norm(x, INF, dim=1), torch.randn(9, 30, dtype=torch.complex64), loops_only=False
    )


def test_what_is_written_to():
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x *= y
        torch.view_as_real(x)[..., 0] += 1
        return x[:, 1] * 2

    given = tensors((3, 5), (3, 5))
    ours, eagers = ([x.clone() for x in given] for _ in range(2))
    torch.testing.assert_close(argand.compile(step, fullgraph=True)(*ours), step(*eagers))
    torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_a_backward_checks_is_no_part_of_the_forward(dynamic):
    """A part that is made for the backward says so, whatever was taken apart for it on the way."""

    def rows(z):
        return z.index_select(0, torch.tensor([1, 1])) * 2, z[torch.tensor([2, 0])].conj()

    compiled = argand.compile(rows, fullgraph=True, dynamic=dynamic)
    for size in (4, 5):
        z = torch.randn(size, 6, dtype=torch.complex64, requires_grad=True)
        want, got = (torch.autograd.grad([part.abs().sum() for part in call(z)], z)[0] for call in (rows, compiled))
        torch.testing.assert_close(got, want)
