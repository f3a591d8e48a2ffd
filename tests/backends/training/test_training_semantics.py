"""What surrounds compiled gradients: hooks, layouts, checkpoints, memory, threads, copies, refusals."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import argand
from argand import events
from helpers import as_torchs


@pytest.fixture(params=["aot_eager", "native"])
def backend(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def texts() -> Iterator[dict[str, list[str]]]:
    """Texts of events, by name."""
    found: dict[str, list[str]] = {}
    names = ("aot_forward_graph", "aot_backward_graph", "aot_forward_graph_fw_metadata", "fallback", "output_code")
    stop = events.bus.subscribe(lambda e: found.setdefault(e.name, []).append(e.text()) if e.name in names else None)
    yield found
    stop()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def both(fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]], use: Callable[..., Any], backend: str) -> None:
    """`use(call, *inputs)` gives the same for the function and for the compiled function."""
    results = []
    for call in (fn, argand.compile(fn, backend=backend)):
        torch.manual_seed(0)
        results.append(use(call, *make()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- hooks


def test_hooks_on_inputs_and_results(backend: str) -> None:
    def use(call: Any, x: torch.Tensor) -> Any:
        seen = []
        x.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        y = call(x)
        y.register_hook(lambda g: seen.append(g.clone()) or g * 3)
        y.sum().backward()
        return [*seen, x.grad]

    both(lambda x: x.sin() * x, lambda: (leaf(4),), use, backend)


def test_hooks_that_run_when_a_gradient_was_accumulated(backend: str) -> None:
    layer = nn.Linear(3, 3)
    stepped: list[str] = []
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: stepped.append(name))
    argand.compile(layer, backend=backend)(torch.randn(2, 3)).sum().backward()
    assert sorted(stepped) == ["bias", "weight"]


def test_full_backward_hook_of_a_module(backend: str) -> None:
    def use(call: Any) -> Any:
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        seen: list[torch.Tensor] = []
        net[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
        x = torch.randn(2, 3, requires_grad=True)
        (argand.compile(net, backend=backend) if call else net)(x).sum().backward()
        return [*seen, net[0].weight.grad, x.grad]

    torch.manual_seed(0)
    want = use(False)
    torch.manual_seed(0)
    torch.testing.assert_close(use(True), want)


@pytest.mark.parametrize("torchs", [True, False])
def test_saved_tensor_hooks(backend: str, torchs: bool) -> None:
    """Hooks of torch's see what the compiled forward keeps; others, which may change it, what eager's does."""
    packed: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(x.numel())
        return x.clone()

    x = leaf(5)
    compiled = argand.compile(lambda x: x.sin().exp(), backend=backend)
    compiled(x)
    unpack = (lambda x: x) if torchs else (lambda x: x * 2)
    with torch.autograd.graph.saved_tensors_hooks(as_torchs(pack) if torchs else pack, unpack):
        y = compiled(x)
    y.sum().backward()
    assert packed
    want = x.detach().cos() * x.detach().sin().exp() if torchs else (x.detach() * 2).cos() * x.detach().sin().exp() * 2
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("whole", [False, True])
def test_what_hooks_on_saved_tensors_lose_is_lost(backend: str, whole: bool) -> None:
    """Rounded to halves, within captured code."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
            y = (x * w).sin() * w
        if not whole:
            argand.graph_break()
        y.square().sum().backward()
        return y.detach()

    found = []
    for run in (step, argand.compile(step, backend=backend)):
        x, w = torch.linspace(0, 1, 7), torch.linspace(1, 2, 7).requires_grad_()
        found.append((run(x, w), w.grad))
    torch.testing.assert_close(*found)


# ---------------------------------------------------------------------- what requires grad


def test_which_results_require_grad(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, y * 2, (x * y).detach(), x > 0, y.clone()

    got = argand.compile(fn, backend=backend)(leaf(3), torch.randn(3))
    assert [t.requires_grad for t in got] == [True, False, False, False, False]


def test_inputs_without_influence_have_no_gradient(backend: str) -> None:
    x, y, z = leaf(3), leaf(3), leaf(3)
    argand.compile(lambda x, y, z: (x * 2 + y.detach()).sum(), backend=backend)(x, y, z).backward()
    assert x.grad is not None and y.grad is None and z.grad is None


def test_requires_grad_inside(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.detach().requires_grad_()
        return (y * y).sum() + x.sum()

    both(fn, lambda: (leaf(3),), lambda call, x: (call(x).backward(), x.grad)[1], backend)


def test_a_gradient_asked_for_inside(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        (g,) = torch.autograd.grad((x**3).sum(), x)
        return g * 2

    both(fn, lambda: (leaf(3),), lambda call, x: call(x), backend)


def test_gradients_of_some_inputs_only(backend: str) -> None:
    x, y = leaf(3), leaf(3)
    out = argand.compile(lambda x, y: (x * y).sum(), backend=backend)(x, y)
    (g,) = torch.autograd.grad(out, [y])
    torch.testing.assert_close(g, x.detach())
    assert x.grad is None


def test_inputs_that_share_memory_while_one_is_written(backend: str) -> None:
    """The graph may run eagerly; what it computes is eager's."""

    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (y * w).sum()

    def use(call: Any, base: torch.Tensor, w: torch.Tensor) -> Any:
        out = call(base[:4], base[2:], w)
        out.backward()
        return out.detach(), w.grad, base

    both(fn, lambda: (torch.randn(6), leaf(4)), use, backend)


def test_views_of_one_leaf_as_inputs(backend: str) -> None:
    def use(call: Any, base: torch.Tensor) -> Any:
        call(base[:3], base[3:]).backward()
        return base.grad

    both(lambda x, y: (x * y).sum(), lambda: (leaf(6),), use, backend)


def test_resized_and_replaced_storage(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.empty(0)
        y.resize_(3)
        y.copy_(x)
        return (y * w).sum()

    both(fn, lambda: (torch.randn(3), leaf(3)), lambda call, x, w: (call(x, w).backward(), w.grad)[1], backend)


# ---------------------------------------------------------------------- checkpoints


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.gelu(self.one(x)))


class Deep(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return x


def test_checkpointed_regions_are_computed_again(backend: str, texts: dict[str, list[str]]) -> None:
    torch.manual_seed(0)
    plain = Deep(False)
    marked = Deep(True)
    marked.load_state_dict(plain.state_dict())
    x = torch.randn(4, 16)
    plain(x).sum().backward()
    argand.compile(marked, backend=backend)(x).sum().backward()
    for a, b in zip(plain.parameters(), marked.parameters()):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    [metadata] = texts["aot_forward_graph_fw_metadata"]
    [backward] = texts["aot_backward_graph"]
    # two of each block's products are needed for its gradients; the hidden one is made again, not kept
    assert "f32[4, 64]" not in backward.split(":", 1)[0]
    assert int(metadata.split("kept for the backward: ")[1].split(" ")[0]) <= 4
    assert "fallback" not in texts or not any("checkpoint" in text for text in texts["fallback"])


def test_dropout_in_a_checkpointed_region(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: F.dropout(t.sin(), 0.5), x, use_reentrant=False)

    x = leaf(2000)
    y = argand.compile(fn, backend=backend)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y.detach() != 0, 2 * x.detach().cos(), 0.0))


# ---------------------------------------------------------------------- mixed precision


def test_autocast_forward_and_backward(backend: str) -> None:
    def use(call: Any) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        run = argand.compile(net, backend=backend) if call else net
        for _ in range(2):
            net.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(run(torch.ones(6, 8)), torch.arange(6) % 4)
            loss.backward()
        return [p.grad for p in net.parameters()]

    torch.testing.assert_close(use(True), use(False), rtol=3e-2, atol=3e-2)


# ---------------------------------------------------------------------- lifetimes


def test_kept_values_die_with_the_result(backend: str) -> None:
    x, w = torch.randn(1000), leaf(1000)
    compiled = argand.compile(lambda x, w: (x * w).exp().sin(), backend=backend)
    y = compiled(x, w)
    alive = weakref.ref(x)
    del x
    del y
    gc.collect()
    assert alive() is None


def test_kept_values_die_in_the_backward(backend: str) -> None:
    """A gradient hook that runs after the backward finds nothing alive that it kept."""
    x, w = torch.randn(1000), leaf(1000)
    compiled = argand.compile(lambda x, w: x * w, backend=backend)
    y = compiled(x, w)
    alive = weakref.ref(x)
    del x
    seen: list[bool] = []
    w.register_hook(lambda g: seen.append(alive() is None))
    y.sum().backward()
    assert seen == [True]


def test_backward_after_reset(backend: str) -> None:
    x = leaf(5)
    y = argand.compile(lambda x: x.sin() * x, backend=backend)(x)
    argand.reset()
    y.sum().backward()
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


def test_backward_in_threads(backend: str) -> None:
    compiled = argand.compile(lambda x: (x.sin() * x).exp().sum(), backend=backend)
    inputs = [leaf(300) for _ in range(6)]
    outputs = [compiled(x) for x in inputs]
    errors: list[BaseException] = []

    def run(y: torch.Tensor) -> None:
        try:
            y.backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(y,)) for y in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for x in inputs:
        (want,) = torch.autograd.grad((x.sin() * x).exp().sum(), x)
        torch.testing.assert_close(x.grad, want, rtol=1e-4, atol=1e-5)


def test_copies_and_pickles_of_a_trained_model(backend: str) -> None:
    model = nn.Linear(3, 3)
    compiled = argand.compile(model, backend=backend)
    x = torch.randn(2, 3)
    compiled(x).sum().backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), compiled(x))
        torch.testing.assert_close(argand.compile(other, backend=backend)(x), compiled(x))


def test_retained_graph_and_other_tangents(backend: str) -> None:
    x = leaf(3)
    y = argand.compile(lambda x: x.sin() * x, backend=backend)(x)
    one = torch.autograd.grad(y, x, torch.ones(3), retain_graph=True)[0]
    two = torch.autograd.grad(y, x, torch.full((3,), 2.0))[0]
    torch.testing.assert_close(two, 2 * one)


def test_frames_that_the_backward_runs_are_not_captured(texts: dict[str, list[str]]) -> None:
    """`backward()` inside a compiled function: the compiler's own frames, run by the engine, were captured."""
    layer = nn.Linear(4, 4)
    graphs: list[str] = []
    stop = events.bus.subscribe(lambda e: graphs.append(e.name) if e.name == "graph" else None)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).exp().sum()
        loss.backward()
        return loss.detach() * 2

    try:
        compiled = argand.compile(step, backend="native")
        for _ in range(3):
            compiled(torch.randn(2, 4))
    finally:
        stop()
    assert len(graphs) == 2  # before the backward and after it


GRADCHECKED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda x, w, b: F.linear(x, w, b).tanh(), ((3, 4), (2, 4), (2,))),
    "conv": (lambda x, w: F.conv2d(x, w, stride=2, padding=1).sigmoid(), ((1, 2, 5, 5), (3, 2, 3, 3))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), ((3, 4), (4,), (4,))),
    "group norm": (lambda x: F.group_norm(x, 2), ((2, 4, 3),)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), ((4, 3),)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((1, 3, 4),) * 3),
    "log softmax": (lambda x: F.log_softmax(x, -1), ((3, 5),)),
    "norms": (lambda x: x.norm(dim=0) + x.var(0) + x.std(0), ((5, 3),)),
    "cumulative": (lambda x: x.cumsum(0) * x.cumprod(1), ((3, 3),)),
    "pooling": (lambda x: F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 2), ((1, 2, 4, 4),)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), ((2, 3, 2), (2, 2, 3))),
    "indexing": (lambda x: x[[0, 2, 2]] * x[1:4].flip(0), ((4, 3),)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ((1, 1, 3, 3),)),
    "losses": (lambda x, y: F.smooth_l1_loss(x, y) + F.mse_loss(x, y) + F.kl_div(x, y.exp()), ((3, 2), (3, 2))),
    "padding": (lambda x: F.pad(x, (1, 2), mode="reflect") * 2, ((2, 4),)),
    "matrix functions": (lambda x: torch.linalg.det(x @ x.t() + torch.eye(3, dtype=x.dtype)), ((3, 3),)),
}


@pytest.mark.parametrize("name", GRADCHECKED)
def test_gradcheck(name: str) -> None:
    torch.manual_seed(0)
    fn, shapes = GRADCHECKED[name]
    inputs = tuple(leaf(*shape, dtype=torch.float64) for shape in shapes)
    assert torch.autograd.gradcheck(argand.compile(fn, backend="native"), inputs)


def squared_before_it_is_written(x: torch.Tensor, strided: torch.Tensor) -> torch.Tensor:
    strided[:, 0] = x.detach()[:, 0]
    squared = strided * strided
    strided.mul_(3)
    return x * squared


def scattered(x: torch.Tensor, strided: torch.Tensor) -> torch.Tensor:
    return x * torch.select_scatter(strided, x.detach()[:, 0], 1, 0)


@pytest.mark.parametrize("f", [squared_before_it_is_written, scattered])
def test_what_is_kept_of_a_tensor_with_holes(f: Any) -> None:
    """Kernels leave none in what they make of it."""
    got = []
    for call in (f, argand.compile(f)):
        x, strided = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.arange(18.0).view(3, 6)[:, ::2]
        call(x, strided).sum().backward()
        got.append(x.grad)
    torch.testing.assert_close(*got)


def test_zeros_without_memory() -> None:
    """The gradient of `sgn` is such a tensor, which kernels cannot read: what a backward keeps, gives or is given."""
    x = torch.linspace(-2, 2, 40).requires_grad_()

    def step(y: torch.Tensor) -> torch.Tensor:
        (g,) = torch.autograd.grad(y.sgn().sum(), y)
        return (g + y.sgn()) * 2 + y.sin()

    argand.compile(step, backend="native")(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    x.grad = None
    doubled = argand.compile(lambda y: y.exp() * 2, backend="native")
    doubled(x).sgn().sum().backward()
    assert x.grad is not None and not x.grad.any()
    (g,) = torch.autograd.grad(x.sgn().sum(), x)
    assert (doubled(g) == 2).all()
