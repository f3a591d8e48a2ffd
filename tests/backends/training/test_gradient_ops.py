"""Gradients of activation functions and losses in generated kernels, at and around the points where they bend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
from argand import events

INF, NAN = float("inf"), float("nan")
POINTS = [
    -INF, -30.0, -3.5, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 3.5, 6.0, 21.0, 30.0, INF, NAN
]  # fmt: skip

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": lambda x: F.elu(x, 1.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -1.0, 2.0),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softplus": lambda x: F.softplus(x, 2.0, 10.0),
    "mish": F.mish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "logsigmoid": F.logsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
}


def gradients(fn: Callable[..., Any], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = fn(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    return [*out, *torch.autograd.grad(out, wanted, cotangents)]


@pytest.fixture
def fallbacks() -> Any:
    found: list[str] = []
    stop = events.bus.subscribe(lambda e: found.append(str(e.data.get("op"))) if e.name == "fallback" else None)
    yield found
    stop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_activations_where_they_bend(dtype: torch.dtype, fallbacks: list[str]) -> None:
    names = list(ACTIVATIONS)

    def every(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [ACTIVATIONS[name](x) for name, x in zip(names, inputs)]

    x = torch.tensor(POINTS, dtype=dtype)
    inputs = [x] * len(names)
    cotangents = [torch.linspace(0.5, 2.0, len(POINTS)).to(dtype)] * len(names)
    close = {"rtol": 1e-11, "atol": 1e-16} if dtype is torch.float64 else {}  # constants of eager's may be floats
    want = gradients(every, inputs, cotangents)
    got = gradients(argand.compile(every, backend="native", fullgraph=True), inputs, cotangents)
    for position, (a, b) in enumerate(zip(want, got)):
        name = names[position % len(names)]
        if name == "gelu" and position < len(names):  # of infinity eager's kernel gives NaN, but infinity where it goes
            a[x == INF] = INF  # from element to element
        torch.testing.assert_close(b, a, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}", **close)
    assert not fallbacks


def test_gradients_of_losses(fallbacks: list[str]) -> None:
    def losses(x: torch.Tensor, p: torch.Tensor, t: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for reduction in ("mean", "sum", "none"):
            made += [
                F.mse_loss(x, t, reduction=reduction),
                F.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
                F.huber_loss(x, t, reduction=reduction, delta=0.6),
                F.soft_margin_loss(x, t.detach().sign(), reduction=reduction),
                F.binary_cross_entropy(p.sigmoid(), t.sigmoid(), reduction=reduction),
            ]
        return made

    inputs = [torch.randn(6, 7, dtype=torch.float64) for _ in range(3)]
    inputs[2] = (inputs[0] + torch.randint(-1, 2, (6, 7)) * 0.6).detach()
    cotangents = [torch.randn(()).double()] * 10 + [torch.randn(6, 7).double()] * 5
    want = gradients(losses, inputs, cotangents)
    got = gradients(argand.compile(losses, backend="native", fullgraph=True), inputs, cotangents)
    for a, b in zip(want, got):
        torch.testing.assert_close(b, a)
    assert not any("backward" in name or "soft" in name for name in fallbacks)


def test_margins_of_classes(fallbacks: list[str]) -> None:
    classes, weight = torch.tensor([1, 0, 4, 4, 2, 3]), torch.rand(5)

    def losses(x: torch.Tensor) -> list[torch.Tensor]:
        given = [{"p": 1}, {"p": 2}, {"p": 2, "weight": weight, "margin": 0.5}, {"weight": weight}]
        ways = [*zip(given, ("mean", "sum", "none", "mean")), *zip(given, ("none", "mean", "sum", "none"))]
        return [F.multi_margin_loss(x, classes, reduction=reduction, **options) for options, reduction in ways]

    x = torch.randn(6, 5)
    x[1, 2], x[2, 3], x[3, 1], x[0, 0] = INF, -INF, NAN, x[0, 1] - 1  # just at the margin
    cotangents = [torch.linspace(0.5, 2, loss.numel()).view_as(loss) for loss in losses(x)]
    want = gradients(losses, [x], cotangents)
    got = gradients(argand.compile(losses, backend="native", fullgraph=True), [x], cotangents)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert not fallbacks


def test_prelu_with_a_weight_per_channel() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [F.prelu(x, w)]

    inputs, cotangents = [torch.randn(2, 3, 5), torch.rand(3)], [torch.randn(2, 3, 5)]
    for a, b in zip(gradients(f, inputs, cotangents), gradients(argand.compile(f), inputs, cotangents)):
        torch.testing.assert_close(b, a)


# Found by bench/op_db.py.


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_gradient_that_no_tangent_reaches(backend: str) -> None:
    """copysign's gradient by the second number is zeros, whatever comes back."""

    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.copysign(x, y)]

    inputs, cotangents = [torch.randn(5), torch.randn(())], [torch.randn(5)]
    want = gradients(f, inputs, cotangents)
    for a, b in zip(want, gradients(argand.compile(f, backend=backend), inputs, cotangents)):
        torch.testing.assert_close(b, a)


def test_a_result_that_requires_grad_where_no_input_has_a_gradient() -> None:
    x = torch.randn(4, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 0)

    out = argand.compile(f, backend="native")(x)
    assert out.requires_grad and torch.equal(out, f(x))
    out.backward()
    assert x.grad is None


def test_elu_in_its_gradient_reads_the_layout_of_its_last_argument() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.elu(x.transpose(0, 1))]

    inputs, cotangents = [torch.randn(3, 4)], [torch.randn(4, 3)]
    messages: list[str] = []
    stop = events.bus.subscribe(lambda e: messages.append(e.text()) if e.name == "fallback" else None)
    got = gradients(argand.compile(f, backend="aot_eager"), inputs, cotangents)
    stop()
    for a, b in zip(gradients(f, inputs, cotangents), got):
        torch.testing.assert_close(b, a)
    assert not messages


def test_a_conjugate_of_an_expanded_tensor() -> None:
    """The view's strides overlap, so that a result cannot be copied into them."""

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.linalg.vander(x)]

    inputs, cotangents = [torch.randn(5, dtype=torch.complex64)], [torch.randn(5, 5, dtype=torch.complex64)]
    for x in inputs:
        x.requires_grad_()

    def both(fn: Callable[..., Any]) -> list[torch.Tensor]:
        out = fn(*inputs)
        return [*out, *torch.autograd.grad(out, inputs, cotangents)]

    for a, b in zip(both(f), both(argand.compile(f, backend="native"))):
        torch.testing.assert_close(b, a)


def test_a_copy_in_overlapping_strides() -> None:
    from argand.runtime.host import restrided

    x = torch.arange(3.0).view(3, 1, 1).expand(3, 4, 2).contiguous()
    made = restrided(x, (3, 4, 2), (2, 0, 1))
    assert made.stride() == (2, 0, 1) and torch.equal(made, x)
