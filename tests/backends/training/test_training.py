"""Forward and backward of compiled graphs against eager: values, gradients, aliasing, mutation, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
import sweeps
from argand import events
from argand.backends import eager_contest

BACKENDS = ("aot_eager", "native")


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def fallbacks() -> Iterator[list[str]]:
    """Texts of the graphs that ran eagerly."""
    found: list[str] = []
    stop = events.bus.subscribe(
        lambda e: found.append(e.text()) if e.name == "fallback" and e.data.get("scope") == "graph" else None
    )
    yield found
    stop()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def twins(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs
    )


def leaves(value: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [x for x in _pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def loss_of(out: Any) -> torch.Tensor:
    parts = [x.float().pow(2).sum() for x in leaves(out) if x.requires_grad]
    return sum(parts[1:], parts[0])


def check(fn: Callable[..., Any], *inputs: Any, backend: str, calls: int = 2, tolerance: float = 1e-4) -> None:
    """Outputs, which of them require grad, mutated inputs and gradients are eager's."""
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for _ in range(calls):
        one, two = twins(inputs), twins(inputs)
        want, got = fn(*one), compiled(*two)
        for a, b in zip(leaves(want), leaves(got), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
            assert a.requires_grad == b.requires_grad
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
        if any(x.requires_grad for x in leaves(want)):
            loss_of(want).backward()
            loss_of(got).backward()
        for a, b in zip(one, two):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b.detach(), a.detach(), rtol=tolerance, atol=tolerance)
                assert a.is_leaf == b.is_leaf
                if not a.is_leaf:
                    continue
                assert (a.grad is None) == (b.grad is None)
                if a.grad is not None:
                    torch.testing.assert_close(b.grad, a.grad, rtol=tolerance, atol=tolerance)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda x, y: (x * y).tanh() + x.exp(), (leaf(3, 5), leaf(3, 5))),
    "broadcast": (lambda x, y: x * y + y, (leaf(4, 1, 5), leaf(3, 1))),
    "one input without gradient": (lambda x, y: x * y.sin(), (leaf(4), torch.randn(4))),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (leaf(5, 4), leaf(6, 4), leaf(6))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (leaf(5, 6), leaf(6), leaf(6))),
    "softmax": (lambda x: x.softmax(-1).log(), (leaf(5, 6),)),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (leaf(5, 6), torch.tensor([0, 5, 2, -100, 3]))),
    "embedding": (lambda w, i: F.embedding(i, w).relu(), (leaf(7, 4), torch.tensor([[0, 6, 6], [1, 1, 2]]))),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (leaf(2, 3, 6, 6), leaf(4, 3, 3, 3), leaf(4))),
    "max pool": (lambda x: F.max_pool2d(x * 2, 2), (leaf(2, 3, 6, 6),)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (leaf(2, 2, 5, 8),) * 1 + (leaf(2, 2, 5, 8), leaf(2, 2, 5, 8))),
    "views": (lambda x: x.t()[1:].reshape(-1) * 2, (leaf(4, 3),)),
    "view of an input": (lambda x: (x.t(), x * 2), (leaf(4, 3),)),
    "input itself": (lambda x: (x, x * 2), (leaf(4, 3),)),
    "detached": (lambda x: (x * 2, (x * 3).detach(), x.detach()), (leaf(4, 3),)),
    "two views of one result": (lambda x: (x * 2).unbind(0), (leaf(2, 3),)),
    "result and its view": (lambda x: (lambda y: (y, y[0]))(x * 2), (leaf(2, 3),)),
    "same result twice": (lambda x: (lambda y: (y, y))(x * 2), (leaf(2, 3),)),
    "integers beside": (lambda x: (x * 2, x.argmax(-1)), (leaf(2, 3),)),
    "write in between": (lambda x: (x * 2).add_(1).mul_(x), (leaf(2, 3),)),
    "write to a slice": (lambda x: _write_slice(x), (leaf(4, 3),)),
    "setitem with a mask": (lambda x: torch.where(x > 0, x, x * 0.1), (leaf(4, 3),)),
    "input written": (lambda x, y: _add_to(x, y), (torch.zeros(3), leaf(3))),
    "input written with a constant": (lambda x, y: (x.add_(1), y * 2)[1], (torch.zeros(3), leaf(3))),
    "under no_grad": (lambda x: _partly_no_grad(x), (leaf(3),)),
    "gather": (lambda x, i: x.gather(1, i), (leaf(3, 4), torch.tensor([[0, 0], [3, 1], [2, 2]]))),
    "index": (lambda x, i: x[i] * 2, (leaf(5, 4), torch.tensor([0, 4, 4]))),
    "cat and split": (lambda x, y: torch.cat([x, y], 1).split(2, 1)[1].exp(), (leaf(2, 3), leaf(2, 3))),
    "cumsum": (lambda x: x.cumsum(0) * x, (leaf(5),)),
    "norms": (lambda x: x.norm() + x.std() + x.var(0).sum(), (leaf(5, 3),)),
    "min and max": (lambda x: x.amax(0) + x.min() + x.max(1).values.sum(), (leaf(5, 3),)),
    "expand": (lambda x: x.expand(4, 3), (leaf(1, 3),)),
    "no gradient at all": (lambda x: x > 0, (leaf(4),)),
    "double": (lambda x, y: torch.linalg.vector_norm(x @ y), (leaf(3, 4, dtype=torch.float64), leaf(4, 2, dtype=torch.float64))),
    "bfloat16": (lambda x, y: (x * y).sum(0), (leaf(3, 4, dtype=torch.bfloat16), leaf(3, 4, dtype=torch.bfloat16))),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j).sin(), (leaf(3, 2),)),
}  # fmt: skip


def _write_slice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1:3] = x[0].sin()
    y[0, 0] = 5.0
    return y.exp()


def _add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * y


def _partly_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.sum()
    return x * scale


@pytest.mark.parametrize(("name", "backend"), sweeps.chessboard(FUNCTIONS, BACKENDS))
def test_function(name: str, backend: str, fallbacks: list[str]) -> None:
    fn, inputs = FUNCTIONS[name]
    torch.manual_seed(0)
    check(fn, *inputs, backend=backend, tolerance=2e-2 if name == "bfloat16" else 1e-4)
    assert fallbacks == []


def test_views_of_a_result_share_memory(backend: str) -> None:
    compiled = argand.compile(lambda x: (x * 2).unbind(0), backend=backend)
    a, b = compiled(leaf(2, 3))
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def train(model: nn.Module, call: Any, steps: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_training_steps_of_a_module(backend: str, fallbacks: list[str]) -> None:
    torch.manual_seed(0)
    one = Net()
    two = copy.deepcopy(one)
    want, got = train(one, one), train(two, argand.compile(two, backend=backend, fullgraph=True))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(two.named_buffers()), dict(one.named_buffers()), rtol=1e-4, atol=1e-5)
    assert fallbacks == []


def test_gradients_accumulate_over_calls(backend: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    compiled = argand.compile(layer, backend=backend)
    x = torch.randn(2, 3)
    (compiled(x).sum() + compiled(x * 2).sum()).backward()
    got = layer.weight.grad.clone()
    layer.weight.grad = None
    (layer(x).sum() + layer(x * 2).sum()).backward()
    torch.testing.assert_close(got, layer.weight.grad)


def test_frozen_parameters_get_no_gradient(backend: str) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[0].requires_grad_(False)
    argand.compile(net, backend=backend)(torch.randn(2, 3)).sum().backward()
    assert net[0].weight.grad is None and net[1].weight.grad is not None


def test_a_call_under_no_grad_after_training(backend: str) -> None:
    layer = nn.Linear(3, 3)
    compiled = argand.compile(layer, backend=backend)
    x = torch.randn(2, 3)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    torch.testing.assert_close(compiled(x), layer(x))


def test_a_gradient_of_a_gradient_is_refused_clearly() -> None:
    """Numbers that argand draws itself cannot be drawn again, those of torch's generator can (`aot_eager`)."""
    x, backend = leaf(3), "native"
    y = argand.compile(lambda x: F.dropout(x, 0.5).sin() * x * x.detach(), backend=backend)(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert g.requires_grad
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        (g + x.detach()).pow(2).sum().backward()


def test_a_gradient_that_could_be_differentiated_and_is_not(backend: str) -> None:
    results = []
    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend)):
        model = nn.Linear(3, 2)
        with torch.no_grad():
            model.weight.fill_(0.5), model.bias.fill_(0.1)
        wrap(model)(torch.ones(2, 3)).pow(2).sum().backward(create_graph=True)
        assert model.weight.grad is not None and model.bias.grad is not None
        assert model.weight.grad.requires_grad
        results.append([model.weight.grad.detach(), model.bias.grad.detach()])
    torch.testing.assert_close(results[1], results[0])


def test_a_penalty_on_the_gradient_of_a_compiled_part_is_never_silently_missing(backend: str) -> None:
    x, w = leaf(3), leaf(3)
    for part in (lambda x: x.sin() * 2, lambda x: F.dropout(x, 0.5).sin() * x.detach()):
        y = argand.compile(part, backend=backend)(x)
        (g,) = torch.autograd.grad((y * w + x**3).sum(), x, create_graph=True)
        if part.__code__.co_names[0] != "sin" and backend != "native":
            (g**2).sum().backward()
            assert x.grad is not None
        elif part.__code__.co_names[0] == "sin":
            (g**2).sum().backward()
            want = (2 * (x.cos() * 2 * w + 3 * x**2) * (6 * x - x.sin() * 2 * w)).detach()
            torch.testing.assert_close(x.grad, want)
        else:
            with pytest.raises(RuntimeError, match='backend="eager"'):
                (g**2).sum().backward()


def test_backward_twice_is_eagers_error(backend: str) -> None:
    x = leaf(3)
    loss = argand.compile(lambda x: (x.sin() * x).sum(), backend=backend)(x)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_backward_twice_with_retain_graph(backend: str) -> None:
    x = leaf(3)
    loss = argand.compile(lambda x: (x.sin() * x).sum(), backend=backend)(x)
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_a_saved_input_that_is_written_to_afterwards_is_noticed(backend: str) -> None:
    x, w = torch.randn(3), leaf(3)
    y = argand.compile(lambda x, w: x * w, backend=backend)(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_non_leaf_input_that_is_written_to(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        return x + 1

    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    results = []
    for call in (fn, compiled):
        torch.manual_seed(0)
        a, y = leaf(3), leaf(3)
        x = a * 2
        out = call(x, y)
        (out.sum() + x.exp().sum()).backward()
        results.append((out.detach(), x.detach(), a.grad, y.grad))
    torch.testing.assert_close(results[1], results[0])


def test_the_backward_is_compiled_when_it_is_needed(backend: str) -> None:
    names: list[str] = []
    stop = events.bus.subscribe(lambda e: names.append(e.name) if e.name.startswith(("aot_", "output_code")) else None)
    try:
        y = argand.compile(lambda x: (x * 2).sin(), backend=backend)(leaf(300))
        before = names.count("output_code")
        y.sum().backward()
    finally:
        stop()
    assert {"aot_joint_graph", "aot_forward_graph", "aot_backward_graph"} <= set(names)
    assert names.count("output_code") == before + (backend == "native")


def test_gradcheck(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.layer_norm(x @ w, (4,)), -1).tanh()

    inputs = (leaf(3, 5, dtype=torch.float64), leaf(5, 4, dtype=torch.float64))
    assert torch.autograd.gradcheck(argand.compile(fn, backend=backend), inputs)


def test_autocast_in_the_forward(backend: str) -> None:
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x).relu()

    results = []
    for call in (fn, argand.compile(fn, backend=backend)):
        layer.zero_grad()
        out = call(x)
        out.float().sum().backward()
        assert out.dtype is torch.bfloat16 and layer.weight.grad.dtype is torch.float32
        results.append((out.detach(), layer.weight.grad.clone()))
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_memory_budget(budget: float, backend: str) -> None:
    """Less is kept with a smaller budget; the gradients stay."""
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())])
    x = torch.randn(4, 8)
    net(x).sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    kept = []
    stop = events.bus.subscribe(lambda e: kept.append(e.text()) if e.name == "aot_forward_graph_fw_metadata" else None)
    try:
        with argand.config.patch(activation_memory_budget=budget):
            argand.compile(net, backend=backend)(x).sum().backward()
    finally:
        stop()
    torch.testing.assert_close([p.grad for p in net.parameters()], want, rtol=1e-4, atol=1e-5)
    count = int(kept[0].split("kept for the backward: ")[1].split(" ")[0])
    assert count == 0 if budget == 0.0 else count > 0


def test_dropout_drops_the_same_elements_in_backward(backend: str) -> None:
    x = leaf(1000)
    y = argand.compile(lambda x: F.dropout(x, 0.5), backend=backend)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0).float() * 2)
    assert 300 < int((y != 0).sum()) < 700


@pytest.mark.parametrize(("layers", "rows", "left"), [(1, 2, True), (1, 2000, False), (6, 2, False)])
def test_small_graphs_that_draw_are_eagers(
    layers: int, rows: int, left: bool, fallbacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first call on: what is drawn does not depend on times."""
    monkeypatch.setattr(eager_contest, "_TAPE", 10)
    model = nn.Sequential(*[nn.Linear(4, 4), nn.Dropout(0.5)] * layers)
    step: Any = argand.compile(model)
    results = []
    for call in (model, step):
        torch.manual_seed(0)
        results.append([call(torch.ones(rows, 4)) for _ in range(5)])
    assert all(map(torch.equal, *results)) == left
    assert len(fallbacks) == left
    results[1][-1].sum().backward()
