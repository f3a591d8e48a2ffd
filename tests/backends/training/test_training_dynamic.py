"""Training with sizes that vary: one program for many sizes, forward and backward, with eager's gradients."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
import sweeps
from argand import events
from argand.autograd.tracing.size_columns import chosen
from argand.backends.dynamic import ExactSizes


@pytest.fixture(params=["aot_eager", "native"])
def backend(request: Any) -> str:
    return str(request.param)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.norm = nn.LayerNorm(16)
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True)
        self.out = nn.Linear(16, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embed(x))
        h = (h + self.attend(h, h, h, need_weights=False)[0])[:, :-1]
        return F.cross_entropy(self.out(F.gelu(h)).flatten(0, 1), x[:, 1:].flatten())


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3))).logsumexp(-1).mean()


def compare(model: nn.Module, inputs: list[torch.Tensor], backend: str) -> None:
    """Losses, gradients and buffers of every call are eager's."""
    other = copy.deepcopy(model)
    compiled = argand.compile(other, backend=backend)
    for x in inputs:
        model.zero_grad()
        other.zero_grad()
        want, got = model(x), compiled(x)
        want.backward()
        got.backward()
        torch.testing.assert_close(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
        for a, b in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(dict(other.named_buffers()), dict(model.named_buffers()), rtol=1e-4, atol=1e-5)


def test_batch_sizes_of_a_language_model(backend: str, seen: Counter[str]) -> None:
    torch.manual_seed(0)
    compare(Tokens(), [torch.randint(30, (n, 9)) for n in (4, 7, 3, 12, 21)], backend)
    assert seen["aot_joint_graph"] == 2  # the first size, then all of them
    assert seen["recompiles"] == 1 and seen["fallback sizes"] == 0 and seen["fallback graph"] == 0


def test_batch_and_length_vary(backend: str, seen: Counter[str]) -> None:
    torch.manual_seed(0)
    sizes = ((4, 9), (5, 11), (9, 4), (3, 17), (6, 8))
    compare(Tokens(), [torch.randint(30, size) for size in sizes], backend)
    assert seen["aot_joint_graph"] == 2 and seen["fallback sizes"] == 0


def test_batch_sizes_of_a_convolution(backend: str, seen: Counter[str]) -> None:
    torch.manual_seed(0)
    compare(Images(), [torch.randn(n, 3, 8, 8) for n in (4, 6, 3, 9)], backend)
    assert seen["aot_joint_graph"] == 2 and seen["fallback sizes"] == 0


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum over the varying dimension": lambda x: (x * x.mean(0)).sum(),
    "broadcast": lambda x: (x + x[0]).tanh().sum(),
    "slice": lambda x: (x[1:] * x[:-1]).sum(),
    "softmax over it": lambda x: (x.softmax(0) * x).sum(),
    "matrix product over it": lambda x: (x.t() @ x).sin().sum(),
    "number of rows": lambda x: (x / x.shape[0]).exp().sum(),
    "cumulative sum": lambda x: x.cumsum(0).sin().sum(),
    "concatenation": lambda x: torch.cat([x, x * 2]).sin().sum(),
    "select the last": lambda x: x[-1].exp().sum() + x[2].sum(),
    "several results": lambda x: torch.stack([x.sum(0), x.amax(0)]).prod(0).sum(),
    "reshape": lambda x: (x.reshape(-1) * 2).sin().sum(),
    "flip and gather": lambda x: x.flip(0).gather(0, x.argsort(0)).sin().sum(),
}


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(FUNCTIONS, ("native", "aot_eager")))
def test_gradients_of_a_function(name: str, backend: str, seen: Counter[str]) -> None:
    fn = FUNCTIONS[name]
    compiled = argand.compile(fn, backend=backend, dynamic=True)
    for rows in (6, 9, 4, 13):
        torch.manual_seed(rows)
        a = torch.randn(rows, 3, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        want, got = fn(a), compiled(b)
        want.backward()
        got.backward()
        torch.testing.assert_close(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    assert seen["aot_joint_graph"] == 1 and seen["fallback sizes"] == 0


def test_an_output_without_a_gradient_gets_zeros_of_the_calls_size(backend: str) -> None:
    """Autograd hands None for a result that the loss does not use."""
    compiled = argand.compile(lambda x: (x.sin(), x.exp()), backend=backend, dynamic=True)
    for rows in (5, 8, 3):
        x = torch.randn(rows, 2, requires_grad=True)
        compiled(x)[1].sum().backward()
        torch.testing.assert_close(x.grad, x.detach().exp())


def test_a_gradient_in_another_layout(backend: str) -> None:
    compiled = argand.compile(lambda x: x * 3, backend=backend, dynamic=True)
    for rows in (5, 8):
        x = torch.randn(rows, 4, requires_grad=True)
        grad = torch.randn(4, rows).t()
        compiled(x).backward(grad)
        torch.testing.assert_close(x.grad, grad * 3)


def test_sizes_that_no_program_covers_are_compiled_by_themselves(backend: str) -> None:
    """How many operations run depends on the size."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        total = x[0]
        for part in x.split(2):
            total = total * part.sum(0)
        return total.sum()

    compiled = argand.compile(fn, backend=backend, dynamic=True)
    for rows in (4, 6, 8):
        a = torch.randn(rows, 3, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        fn(a).backward()
        compiled(b).backward()
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """Has a number that the program counts, and that no operation uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x).tanh()


@pytest.mark.parametrize("training", [True, False])
def test_number_that_the_graph_does_not_use(backend: str, training: bool, seen: Counter[str]) -> None:
    """Found in a log: a symbol for such a number had every size compiled by itself."""
    module = Counting()
    compiled = argand.compile(module, backend=backend)
    for rows in (4, 5, 6, 7, 8):
        x = torch.randn(rows, 3)
        with torch.set_grad_enabled(training):
            got = compiled(x)
        assert got.requires_grad == training
        torch.testing.assert_close(got.detach(), module.layer(x).tanh().detach(), rtol=1e-4, atol=1e-5)
    assert module.calls == 5 and seen["fallback sizes"] == 0 and seen["recompiles"] == 1


def test_what_is_compiled_for_one_size_belongs_to_its_frame() -> None:
    """Found in a log: what a call compiled later had no compile id."""
    ids: list[object] = []

    def compile_exact(args: Any) -> Any:
        ids.append(events.bus.compile_id)
        return lambda *args: args

    with events.bus.compiling(events.CompileId(3, 1)):
        exact = ExactSizes(torch.fx.symbolic_trace(nn.Identity()), compile_exact, "native")
    exact.prepare((torch.ones(2),))
    assert ids == [events.CompileId(3, 1)] and events.bus.compile_id is None


def test_functions_that_compute_sizes_are_not_captured() -> None:
    """Found in a log: argand captured its own functions of sizes, and compiled them again for each value."""
    argand.reset()

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, x.shape[0] * 3 + 1

    compiled = argand.compile(fn)
    frames: list[str] = []
    stop = events.bus.subscribe(lambda event: frames.append(event.data["function"].rpartition(".")[2]), ["frame_start"])
    try:
        results = [compiled(torch.ones(rows, requires_grad=True)) for rows in (4, 5, 6, 7)]
        for result, _ in results:
            result.sum().backward()
    finally:
        stop()
    assert [number for _, number in results] == [13, 16, 19, 22] and frames == ["fn", "fn"]


def test_no_grad_calls_between_training_calls(backend: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    compiled = argand.compile(layer, backend=backend, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        assert compiled(x).requires_grad
        with torch.no_grad():
            got = compiled(x)
        assert not got.requires_grad
        torch.testing.assert_close(got, layer(x).detach())


def test_the_backward_of_a_dynamic_graph_takes_sizes(seen: Counter[str]) -> None:
    """The size of an expanded gradient is found in no saved tensor."""
    compiled = argand.compile(lambda x: x.sum(0) * 2, backend="native", dynamic=True)
    for rows in (5, 70, 3):
        x = torch.randn(rows, 2, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((rows, 2), 2.0))
    assert seen["output_code"] <= 2 and seen["fallback sizes"] == 0


def spectra(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The backward of irfft reads a slice of rounded length beside windows of stft, whose count is rounded otherwise."""
    length = x.shape[-1] + kernel.shape[-1] - 1
    filtered = torch.fft.irfft(torch.fft.rfft(x, length) * torch.fft.rfft(kernel, length).conj(), length)
    windows = torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True)
    return filtered.sin().sum() + windows.abs().log1p().sum()


def test_lengths_that_are_rounded_in_two_ways(backend: str) -> None:
    compiled = argand.compile(spectra, backend=backend)
    kernel = torch.randn(5)
    for length in (32, 48, 33, 47, 50):
        x = torch.randn(2, length, requires_grad=True)
        wanted = torch.autograd.grad(spectra(x, kernel), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, kernel), x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hint", [7, 32, 48, 129, 1000])
def test_sizes_that_are_compared_tell_rounded_quotients_apart(hint: int) -> None:
    for number in range(6):
        column = chosen(hint, 3, 4 * hint + 256, "above", number, set())
        assert column is not None
        for divisor in (2, 3, 4):
            assert {n % divisor for n in column} == set(range(divisor)), column
