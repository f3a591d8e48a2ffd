"""Checkpoints whose backward is captured with them: eager calls their function again, with what it finds by then."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import argand
import sweeps
from argand import events
from argand.capture.driver.explain import Findings
from helpers import CountingBackend, assert_same, texts_of

BACKENDS = ["eager", "aot_eager", "native"]
Make = Callable[[], tuple[nn.Module, Callable[[torch.Tensor], Any]]]


class Net(nn.Module):
    """What checkpoints read is changed between forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.w = nn.Linear(6, 6), nn.Dropout(0.4), nn.Parameter(torch.ones(6))
        self.register_buffer("offset", torch.zeros(6))
        self.factor, self.row = 2.0, [3.0]

    def inner(self, h: torch.Tensor) -> torch.Tensor:
        return (self.drop(self.a(h)) * self.w * self.factor * self.row[-1] + self.offset).tanh()


def attribute(net: Net) -> None:
    net.factor += 1


def attribute_put_back(net: Net) -> None:
    net.factor += 1
    net.factor -= 1


def item(net: Net) -> None:
    net.row.append(net.row[-1] + 1)


def mode(net: Net) -> None:
    net.train(not net.training)


def data(net: Net) -> None:
    net.w.data.mul_(2)


def parameter(net: Net) -> None:
    with torch.no_grad():
        net.w.mul_(2)


def buffer(net: Net) -> None:
    net.offset.add_(1)


def another_tensor(net: Net) -> None:
    net.offset = net.offset + 1


def nothing(net: Net) -> None:
    pass


def outcome(change: Callable[[Net], None], backend: str | None, how: str) -> list[Any]:
    torch.manual_seed(0)
    net = Net()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(net.inner, net.a(x), use_reentrant=False).square().mean()
        z = checkpoint(lambda h: checkpoint(net.inner, h, use_reentrant=False).exp(), x, use_reentrant=False).mean()
        if how == "grad":
            change(net)
            grads = torch.autograd.grad(y + z, [net.a.weight, net.w])
            return torch.cat([one.flatten() for one in grads])
        if how == "break":
            change(net)
            argand.graph_break()
        if how == "two":
            y.backward()
            change(net)
            z.backward()
        else:
            if how == "backward":
                change(net)
            (y + z).backward()
        return y.detach()

    run = argand.compile(step, backend=backend) if backend else step
    seen: list[Any] = []
    for r in range(3):
        torch.manual_seed(r)
        try:
            seen.append(run(torch.randn(4, 6)))
        except CheckpointError:
            seen.append("refused")
        seen += [None if one.grad is None else one.grad.clone() for one in net.parameters()]
    return seen


CHANGES = [attribute, attribute_put_back, item, mode, data, parameter, buffer, another_tensor, nothing]


@pytest.mark.parametrize(
    ("change", "how"),
    sweeps.chessboard(CHANGES, ["backward", "grad", "two", "break"]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_read_is_that_of_the_backward(change: Callable[[Net], None], how: str) -> None:
    with argand.config.patch(fallback_random=True):
        want = outcome(change, None, how)
        for backend in BACKENDS:
            with texts_of("graph_breaks") as breaks:
                assert_same(want, outcome(change, backend, how))
            if change in (nothing, attribute_put_back) and how != "break":
                assert not breaks
            argand.reset()


def test_autocast_is_that_of_the_forward() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = checkpoint(lambda h: net(h) * 2 if net(h).dtype is torch.bfloat16 else net(h), x, use_reentrant=False)
        y.sum().backward()

    x, grads = torch.randn(4, 6), []
    for run in (step, argand.compile(step, backend="eager", fullgraph=True)):
        net.zero_grad()
        run(x)
        grads.append([one.grad for one in net.parameters()])
    assert_same(*grads)


@pytest.mark.parametrize("kind", ["no_grad", "hook", "asks", "plain"])
def test_a_reentrant_checkpoint_is_computed_again_with_gradients(kind: str) -> None:
    """Its forward runs without, where blocks without gradients and hooks of modules are nothing."""

    def outcome(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net, calls = nn.Linear(6, 6), []
        if kind == "hook":
            net.register_full_backward_hook(lambda module, given, result: calls.append("called"))

        def inner(h: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(kind != "no_grad" and torch.is_grad_enabled()):
                scale = net.weight.sum().exp()
            if kind == "asks" and torch.is_grad_enabled():
                scale = scale * 2
            return net(h).tanh() * scale

        def step(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, net(x), use_reentrant=True).square().mean()

        run = argand.compile(step, backend="eager") if compiled else step
        for r in range(2):
            torch.manual_seed(r)
            run(torch.randn(4, 6)).backward()
        return [net.weight.grad, net.bias.grad, calls]

    assert_same(outcome(False), outcome(True))


@pytest.mark.parametrize("hooked", ["never", "before", "later"])
def test_hooks_of_what_a_reentrant_checkpoint_reads_are_called_for_each_use(hooked: str) -> None:
    def outcome(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net, seen = nn.Linear(6, 6), list[torch.Tensor]()
        net.weight.register_hook(lambda grad: None).remove()

        def step(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda h: net(h).tanh(), net(x), use_reentrant=True).square().mean()

        run = argand.compile(step, backend="eager") if compiled else step
        for r in range(4):
            if r == {"before": 0, "later": 2}.get(hooked):
                net.bias.register_hook(lambda grad: seen.append(grad.clone()))
                net.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
            torch.manual_seed(r)
            run(torch.randn(4, 6)).backward()
        return [net.weight.grad, net.bias.grad, seen]

    argand.config.log_level = 40
    with texts_of("graph_breaks") as breaks:
        assert_same(outcome(False), outcome(True))
    assert bool(breaks) == (hooked != "never")


# ------------------------------------------------------------------ what others change after the compiled forward

SCALE = [1.0]
factor = 2.0


class Block(nn.Module):
    kind = "tanh"

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.sizes = nn.Linear(6, 6), 3.0, (1, 2)
        self.offset = torch.zeros(6)

    def inner(self, h: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.layer(h), 0.5, self.training) * self.scale * SCALE[0] * factor * len(self.sizes)
        return h.tanh() if self.kind == "tanh" else h + self.offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=self.sizes == (3,))


def put_back(block: Block) -> None:
    block.scale, block.sizes = float("3.0"), (*[1, 2],)
    block.offset = block.offset.clone()
    block.eval().train()


CHANGES: dict[str, Callable[[Block], object]] = {
    "scale": lambda block: setattr(block, "scale", 4.0),
    "training": lambda block: block.eval(),
    "SCALE[0]": lambda block: SCALE.__setitem__(0, 2.0),
    "factor": lambda block: globals().__setitem__("factor", 5.0),
    "kind": lambda block: setattr(block, "kind", "none"),
    "layer": lambda block: setattr(block, "layer", nn.Linear(6, 6)),
    "weight": lambda block: setattr(block.layer, "weight", nn.Parameter(torch.ones(6, 6))),
    "nothing": lambda block: None,
    "put back": put_back,
}


@pytest.fixture
def globals_are_put_back() -> Iterator[None]:
    yield
    globals()["factor"] = 2.0
    SCALE[0] = 1.0


@pytest.mark.usefixtures("globals_are_put_back")
@pytest.mark.parametrize(("change", "backend", "recorded"), sweeps.combinations(CHANGES, BACKENDS, [False, True]))
def test_what_others_change_before_the_backward_is_told(change: str, backend: str, recorded: bool) -> None:
    model = nn.Sequential(Block(), Block(), Block())
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(4, 6)
    with argand.compiled_autograd(backend=backend) if recorded else contextlib.nullcontext():
        for _ in range(3):
            compiled(x).sum().backward()
        loss = compiled(x).sum()
        CHANGES[change](model[2])
        told = change not in ("nothing", "put back")
        with pytest.raises(RuntimeError, match="in the forward") if told else contextlib.nullcontext():
            loss.backward()


def test_what_the_graph_writes_behind_a_checkpoint_is_what_its_second_run_reads() -> None:
    def data_set(x: torch.Tensor, w: torch.Tensor, reentrant: bool) -> torch.Tensor:
        y = checkpoint(lambda x, w: (x @ w).sin().exp(), x, w, use_reentrant=reentrant)
        w.data = w.data * 2
        return y

    def written_to_data(x: torch.Tensor, w: torch.Tensor, reentrant: bool) -> torch.Tensor:
        y = checkpoint(lambda x, w: (x @ w).sin().exp(), x, w, use_reentrant=reentrant)
        x.data.mul_(2)
        return y * x

    for f in (data_set, written_to_data):
        for reentrant in (False, True):
            seen = []
            for call in (f, argand.compile(f, backend="aot_eager")):
                x, w = (torch.linspace(-n, 1, 9).view(3, 3).requires_grad_() for n in (1, 2))
                call(x, w, reentrant).sum().backward()
                seen.append([x, w, x.grad, w.grad])
            assert_same(*seen)


class Counting(nn.Module):
    """A block whose forward writes to buffers, as its second run does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(6))
        self.register_buffer("ends", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[1:] += 1
        y = (self.norm(self.a(x)) * self.calls).relu()
        self.ends.add_(1)  # eager's second run has all that it needs before
        return y


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_are_written_to_by_both_runs(backend: str, reentrant: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = checkpoint(block, x.sin(), use_reentrant=reentrant) + block.calls
        return x.square().mean()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = program(x)
        loss.backward()
        return loss

    outcomes = []
    for ours in (False, True):
        torch.manual_seed(0)
        blocks = nn.ModuleList([Counting(), Counting()]).double()
        run = argand.compile(program, backend=backend, fullgraph=True) if ours else program
        whole = argand.compile(step, backend="eager") if ours else step
        for size in (4, 4, 5):
            x = torch.linspace(-1, 1, size * 6, dtype=torch.double).view(size, 6).requires_grad_()
            run(x).backward()
            whole(x)
        outcomes.append([x.grad, *blocks.buffers(), *(p.grad for p in blocks.parameters())])
    assert_same(*outcomes)


@pytest.mark.parametrize("write", ["self.w.data.mul_(0.5)", "self.n.add_(x.mean(0))", "self.n.resize_(8)"])
def test_only_buffers_without_a_history_are_written_to(write: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def inner(self, x):\n    {write}\n    return x * self.w + self.n[:6]", namespace)
    net, findings = nn.Module(), Findings()
    net.w, net.n = nn.Parameter(torch.ones(6)), torch.zeros(6)
    inner = functools.partial(namespace["inner"], net)
    x = torch.ones(2, 6, requires_grad=True)
    with findings.listening(), contextlib.suppress(RuntimeError):
        argand.compile(lambda x: checkpoint(inner, x, use_reentrant=False).sum(), backend="eager")(x)
    assert findings.breaks


def test_what_others_change_before_the_backward_of_a_reentrant_checkpoint_is_told() -> None:
    block = Block()
    block.sizes = (3,)
    compiled = argand.compile(block, backend="native", fullgraph=True)
    compiled(torch.randn(4, 6, requires_grad=True)).sum().backward()
    loss = compiled(torch.randn(4, 6, requires_grad=True)).sum()
    block.scale = 4.0
    with pytest.raises(RuntimeError, match="scale is another than in the forward"):
        loss.backward()


@pytest.mark.parametrize("name", ["factor", "training"])
def test_what_is_put_back_behind_a_checkpoint_does_not_end_the_graph(name: str) -> None:
    """As transformers' models set an option of their config for the time of their forward: what is read is another then."""

    def norm(net: Net, h: torch.Tensor) -> torch.Tensor:
        wide = h.to(torch.float64)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + net.factor)).to(h.dtype) * net.w

    def program(net: Net, x: torch.Tensor) -> torch.Tensor:
        before = getattr(net, name)
        setattr(net, name, 5.0)
        try:
            h = checkpoint(lambda h: norm(net, h), x, use_reentrant=False)
            return checkpoint(lambda h: norm(net, h), h * 2, use_reentrant=False)
        finally:
            setattr(net, name, before)

    backend = CountingBackend()
    gradients = []
    for run in (program, argand.compile(program, backend=backend, fullgraph=name == "training")):
        torch.manual_seed(0)
        net, x = Net(), torch.arange(12.0).view(2, 6).requires_grad_()
        run(net, x).sum().backward()
        gradients.append((x.grad, net.w.grad, net.factor))
    assert_same(*gradients)
    assert len(backend.graphs) == 1 or name == "factor"


def _products_alone(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = op is torch.ops.aten.mm.default and not context.is_recompute
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _kept(contexts: dict[str, Any], backend: str) -> tuple[list[torch.Tensor], int]:
    """Gradients, and the products in the graph of the backward."""
    torch.manual_seed(0)
    x, a, b = (torch.randn(8, 8, requires_grad=True) for _ in range(3))

    def two_products(x: torch.Tensor) -> torch.Tensor:
        return (torch.mm(torch.mm(x, a).sin(), b).cos() * 2).exp()

    def step(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(two_products, x, use_reentrant=False, **contexts)  # type: ignore[no-any-return]

    seen: list[Any] = []
    stop = events.bus.subscribe(seen.append, ("aot_forward_graph", "aot_backward_graph"))
    argand.compile(step, backend=backend, fullgraph=True)(x).sum().backward()
    stop()
    gradients = [one.grad for one in (x, a, b)]
    eager = torch.autograd.grad(checkpoint(two_products, x, use_reentrant=False, **contexts).sum(), (x, a, b))
    assert all(torch.allclose(one, other, rtol=1e-4) for one, other in zip(gradients, eager))
    return gradients, sum(event.text().count("mm.default") for event in seen)


def _every_other_product() -> Any:
    """A policy of its own for each call."""
    products = {True: 0, False: 0}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        products[context.is_recompute] += op is torch.ops.aten.mm.default
        return op is torch.ops.aten.mm.default and products[context.is_recompute] % 2 == 1

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_selective_checkpoints_keep_what_they_say(backend: str) -> None:
    """A list of operations, a policy, functions that give contexts for one; others are computed again."""
    listed = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    policy = functools.partial(create_selective_checkpoint_contexts, _products_alone)
    other = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    chosen = (listed, policy, other, lambda: listed(), _every_other_product, lambda: (contextlib.nullcontext(),) * 2)
    products = [_kept(given, backend)[1] for given in ({}, *({"context_fn": one} for one in chosen))]
    assert backend == "eager" or products == [8, 6, 6, 7, 6, 7, 8]  # of which 6 are no second ones


class Scale:
    factor = 2.0


def _applied(module: Any, x: torch.Tensor, scale: Any = None, then: Any = torch.sin) -> torch.Tensor:
    return then(module(x) if scale is None else module(x) * scale.factor)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("backend", "reentrant"), [("eager", True), ("aot_eager", False), ("native", True)])
def test_arguments_that_are_objects(backend: str, reentrant: bool) -> None:
    """Modules, functions and objects are what they are to any call; what they hold is guarded, and is looked at again."""
    layer, scale = nn.Linear(4, 4), Scale()

    def program(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(_applied, layer, x, scale, torch.cos, use_reentrant=reentrant)
        return checkpoint(_applied, layer, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    compiled = argand.compile(program, backend=backend, fullgraph=True)
    for factor in (2.0, 3.0):
        scale.factor, gradients = factor, []
        for run in (program, compiled):
            x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
            layer.zero_grad()
            run(x).sum().backward()
            gradients.append((x.grad, layer.weight.grad, layer.bias.grad))
        assert_same(*gradients)


def of_sizes(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    rows, length, width = x.shape
    y = net(x).view(rows, length, 2, width // 2).transpose(1, 2) + torch.arange(length)[:, None]
    return y.transpose(1, 2).reshape(x.shape) * length + torch.zeros(rows, length, width), length


@pytest.mark.parametrize(("backend", "reentrant"), [("eager", True), ("aot_eager", False), ("native", False)])
def test_sizes_vary_in_checkpoints_that_use_them(backend: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 6)

    def program(x: torch.Tensor) -> torch.Tensor:
        whole, length = checkpoint(of_sizes, net, x, use_reentrant=False)
        return checkpoint(lambda h: of_sizes(net, h.sin())[0], whole, use_reentrant=reentrant) / length

    findings, compiled = Findings(), argand.compile(program, backend=backend)
    with findings.listening():
        for length in (5, 4, 9, 2):
            x, results = torch.randn(2, length, 6), []
            for f in (program, compiled):
                given = x.clone().requires_grad_()
                result = f(given)
                result.sin().sum().backward()
                results.append((result.detach(), given.grad, net.weight.grad))
                net.zero_grad()
            assert_same(*results)
    assert len(findings.graphs) == 2 and not findings.breaks
