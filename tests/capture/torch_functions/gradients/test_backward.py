"""`backward()` in compiled functions: in the graph; gradients, parameters, states, hooks and errors are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import argand
import sweeps
from argand.capture.torch_functions.gradients import engine_runs
from helpers import CountingBackend, assert_same, collected

BACKENDS = ["eager", "aot_eager", "native"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.frozen(torch.nn.functional.gelu(self.hidden(self.norm(x))))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, seed_tokens: torch.Tensor) -> torch.Tensor:
    logits = model(seed_tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), seed_tokens.flatten())


def plain(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped(model: Any, optimizer: Any, x: Any) -> Any:
    loss = loss_of(model, x)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach(), norm


def kept(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad(set_to_none=False)
    loss = loss_of(model, x)
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    optimizer.step()
    return loss.detach()


def micro_batches(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad()
    total = 0.0
    for part in x.split(1):
        loss = loss_of(model, part) / 2
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


def several_losses(model: Any, optimizer: Any, x: Any) -> Any:
    logits = model(x)
    first, second = logits.square().mean(), logits.logsumexp(-1).mean()
    first.backward(retain_graph=True)
    second.backward()
    third, fourth = loss_of(model, x), model.hidden.weight.abs().sum()
    torch.autograd.backward([third, fourth], [torch.tensor(0.5, dtype=torch.float64), None])
    optimizer.step()
    optimizer.zero_grad()
    return first.detach(), second.detach()


def seeded(model: Any, optimizer: Any, x: Any) -> Any:
    logits = model(x)
    logits.backward(gradient=torch.full_like(logits, 0.1))
    optimizer.step()
    optimizer.zero_grad()
    return logits.detach()


def of_some(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad()
    loss_of(model, x).backward(inputs=[model.hidden.weight, model.norm.bias])
    optimizer.step()


def checkpointed(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad()
    h = checkpoint(lambda t: torch.tanh(model.hidden(model.norm(t))), model.embed(x), use_reentrant=False)
    h.square().sum().backward()
    optimizer.step()


STEPS = [plain, clipped, kept, micro_batches, several_losses, seeded, of_some, checkpointed]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
}


def trained(step: Any, make: Any, backend: str | None, count: int = 4) -> Any:
    torch.manual_seed(0)
    model = Net().double()
    optimizer = make(model.parameters())
    run = step if backend is None else argand.compile(step, backend=backend, fullgraph=True)
    results = [run(model, optimizer, tokens(i)) for i in range(count)]
    state = optimizer.state_dict()["state"]
    return results, list(model.state_dict().values()), [p.grad for p in model.parameters()], state


@pytest.mark.parametrize(
    ("step", "backend"), sweeps.chessboard(STEPS, BACKENDS), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_training_step_is_one_graph(step: Any, backend: str) -> None:
    with collected("fallback", "graph_break") as seen:
        got = trained(step, OPTIMIZERS["sgd"], backend)
    assert not seen
    assert_same(trained(step, OPTIMIZERS["sgd"], None), got)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_optimizers_that_keep_state(name: str, backend: str) -> None:
    def leaves(backend: str | None) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        run = step if backend is None else argand.compile(step, backend=backend, fullgraph=True)
        losses = [run(torch.linspace(-1, 1, 8).view(2, 4) * i).detach() for i in range(1, 6)]
        return losses, list(model.parameters()), optimizer.state_dict()["state"]

    assert_same(leaves(None), leaves(backend))


def test_a_step_is_one_graph_without_fullgraph_too() -> None:
    backend = CountingBackend()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = argand.compile(plain, backend=backend)
    with collected("graph_break") as seen:
        run(model, optimizer, tokens(0))
        run(model, optimizer, tokens(1))
    assert not seen
    assert len(backend.graphs) == 1  # without gradients at the beginning, and with


# ---------------------------------------------------------------------- one call, by its effects

X = torch.arange(8.0, dtype=torch.float64).view(2, 4) / 8
Run = Callable[[Any], Any]


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def again(result: torch.Tensor) -> str:
    try:
        result.sum().backward(retain_graph=True)
    except RuntimeError as error:
        return str(error)
    return "differentiated"


def returned_loss(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        y = m(x)
        loss = y.square().sum()
        loss.backward()
        return loss, y, (y * 2).sum(), loss * 3, y[0]

    results = run(step)(X)
    return [t.detach() for t in results], [t.requires_grad for t in results], [again(t) for t in results]


def retained_and_returned(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        loss = m(x).square().sum()
        loss.backward(retain_graph=True)
        return loss

    return again(run(step)(X))


def input_leaf(m: Any, run: Run) -> Any:
    def step(x: Any, w: Any) -> Any:
        (m(x * w)).sum().backward()
        return w.grad * 2

    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    step = run(step)
    first = step(X, w), w.grad
    second = step(X, w)
    return first, second, first[1] is w.grad


def local_leaf(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        d = torch.zeros_like(x, requires_grad=True)
        m(x + d).sum().backward()
        return x + d.grad.sign(), d

    moved, leaf = run(step)(X)
    return moved, leaf.detach(), leaf.grad, leaf.requires_grad


def hooks_of_leaves(m: Any, run: Run) -> Any:
    seen: list[Any] = []
    m[0].weight.register_hook(lambda g: g * 2)
    m[2].weight.register_hook(lambda g: seen.append(g.sum()))
    m[2].bias.register_hook(lambda g: g + m[2].bias)
    m[2].bias.register_hook(lambda g: g.mul_(3))
    step = run(lambda x: m(x).sum().backward())
    step(X)
    step(X)
    m[0].bias.register_hook(lambda g: g * 5)
    step(X)
    return seen, m[2].bias.grad.requires_grad


def optimizer_in_the_backward(m: Any, run: Run) -> Any:
    seen: list[int] = []

    def register(i: int, p: Any) -> None:
        def hook(p: Any) -> None:
            seen.append(i)
            with torch.no_grad():
                p -= 0.1 * p.grad
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)

    for i, p in enumerate(m.parameters()):
        register(i, p)
    step = run(lambda x: m(x).square().sum().backward())
    step(X)
    step(X)
    return seen


def hook_in_the_graph(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        y = m(x)
        y.register_hook(lambda g: g * 3)
        y.square().sum().backward()

    run(step)(X)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        ctx.save_for_backward(t)
        return t * t

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0] * 5


def own_function(m: Any, run: Run) -> Any:
    step = run(lambda x: Scaled.apply(m(x)).sum().backward())
    step(X)
    step(X)


def penalty(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        m(x).square().sum().backward(create_graph=True)
        total = sum(p.grad.square().sum() for p in m.parameters())
        for p in m.parameters():
            p.grad = None
        total.backward()
        return total.detach()

    return run(step)(X)


def under_no_grad(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        loss = m(x).sum()
        with torch.no_grad():
            loss.backward()
            for p in m.parameters():
                p.sub_(p.grad)

    run(step)(X)


def one_gradient_for_two(m: Any, run: Run) -> Any:
    a, b = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def step() -> Any:
        c = a + b
        seed = torch.ones_like(c)
        c.backward(seed)
        a.grad.mul_(2)
        return a.grad, b.grad, seed

    return run(step)(), a.grad is b.grad


def layouts(m: Any, run: Run) -> Any:
    a = nn.Parameter(torch.ones(2, 3, dtype=torch.float64).t())
    b = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    c = torch.ones(6, 2, dtype=torch.float64)[::2].requires_grad_()

    def step(x: Any) -> Any:
        ((x[:, :3] @ a).sum() + b.t().sum() + (c * 2).sum()).backward()
        return [t.grad.stride() for t in (a, b, c)]

    return run(step)(X), a.grad, b.grad, c.grad


def what_changes_between_calls(m: Any, run: Run) -> Any:
    step = run(lambda x: m(x).sum().backward())
    step(X)
    m[0].weight.requires_grad_(False)
    step(X)
    m[0].weight.grad = m[2].bias.grad = None
    step(X)
    m[2].weight = m[2].weight
    m[0].weight = nn.Parameter(m[0].weight.detach() * 2)
    step(X)


def gradients_of_ones_own(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        for p in m.parameters():
            p.grad = torch.zeros_like(p)
        m(x).sum().backward()
        return m[0].weight.grad

    result = run(step)(X)
    return result, result is m[0].weight.grad


def raising_later(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        m(x).sum().backward()
        raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        run(step)(X)


def one_tensor_in_two_places(m: Any, run: Run) -> Any:
    step = run(lambda a, b: (a * b * a).sum().backward())
    a, b = [torch.full((3,), n, requires_grad=True) for n in (2.0, 3.0)]
    step(a, b)
    step(a, a)
    step(b, b)
    return a.grad, b.grad


def sizes_that_vary(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        for p in m.parameters():
            p.grad = None
        loss = m(x).square().sum()
        loss.backward()
        return loss.detach()

    step = run(step)
    return [(step(torch.ones(n, 4, dtype=torch.float64)), m[0].weight.grad) for n in (2, 3, 5, 7)]


def a_loop_of_steps(m: Any, run: Run) -> Any:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)

    def fit(x: Any) -> Any:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = m(x).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return run(fit)(X)


def mode_outside(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        with torch.enable_grad():
            loss = m(x).square().sum()
            loss.backward()
        return loss

    with torch.no_grad():
        return run(step)(X).requires_grad


CASES = [
    returned_loss, retained_and_returned, input_leaf, local_leaf, hooks_of_leaves, optimizer_in_the_backward,
    hook_in_the_graph, own_function, penalty, under_no_grad, one_gradient_for_two, layouts, what_changes_between_calls,
    gradients_of_ones_own, raising_later, one_tensor_in_two_places, sizes_that_vary, a_loop_of_steps, mode_outside,
]  # fmt: skip


def state_after(case: Any, run: Run) -> Any:
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a backward that keeps its graph
        result = case(model, run)
    return result, list(model.state_dict().values()), [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    ("case", "backend"), sweeps.chessboard(CASES, BACKENDS), ids=lambda value: getattr(value, "__name__", value)
)
def test_effects(case: Any, backend: str) -> None:
    argand.reset()
    with collected("fallback", "graph_break") as seen:
        got = state_after(case, lambda fn: argand.compile(fn, backend=backend, fullgraph=True))
    assert not seen
    assert_same(state_after(case, lambda fn: fn), got)


# ---------------------------------------------------------------------- what is not captured


def outer_history(m: Any, run: Run) -> Any:
    step = run(lambda h: h.sum().backward())
    step(m(X))
    step(m(X))


def gradient_in_the_memory_of_its_seed(m: Any, run: Run) -> Any:
    a, seed = torch.ones(2, 3, dtype=torch.float64, requires_grad=True), torch.ones(6, dtype=torch.float64)

    def step() -> Any:
        a.view(-1).backward(seed)
        a.grad.mul_(2)

    run(step)()
    return a.grad, seed


def behind_a_break(m: Any, run: Run) -> Any:
    def step(x: Any) -> Any:
        loss = m(x).sum()
        argand.graph_break()
        loss.backward()
        return loss.detach()

    return run(step)(X)


def hooks_of_modules(m: Any, run: Run) -> Any:
    seen: list[Any] = []
    m[0].register_full_backward_hook(lambda module, gi, go: seen.append(go))
    m[2].register_full_backward_pre_hook(lambda module, go: (go[0] * 2,))
    step = run(lambda x: m(x).square().sum().backward())
    step(X)
    step(X)
    return seen


@pytest.mark.parametrize(("case", "backend"), [
    (outer_history, "native"), (gradient_in_the_memory_of_its_seed, "eager"), (behind_a_break, "native"),
    (hooks_of_modules, "eager"), (hooks_of_modules, "native"),
])  # fmt: skip
def test_breaks(case: Any, backend: str) -> None:
    argand.reset()
    got = state_after(case, lambda fn: argand.compile(fn, backend=backend))
    assert_same(state_after(case, lambda fn: fn), got)
    with pytest.raises(argand.errors.Unsupported):
        state_after(case, lambda fn: argand.compile(fn, backend=backend, fullgraph=True))


def twice(x: Any) -> None:
    y = (x * x).sum()
    y.backward()
    y.backward()


@pytest.mark.parametrize(
    "fn",
    [
        twice,
        lambda x: (x * 2).backward(),
        lambda x: x.detach().sum().backward(),
        lambda x: x.sum().backward(torch.ones(2)),
        lambda x: setattr(x, "grad", torch.ones(7)),
        lambda x: setattr(x, "grad", 3),
    ],
)
def test_errors_of_the_program(fn: Any) -> None:
    want, got = [torch.ones(3, requires_grad=True) for _ in range(2)]
    with pytest.raises((RuntimeError, TypeError)) as expected:
        fn(want)
    with pytest.raises(expected.type) as found:
        argand.compile(fn, backend="eager")(got)
    assert str(found.value) == str(expected.value)
    assert_same(want.grad, got.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_on_saved_tensors_see_what_eager_saves(backend: str) -> None:
    def run(wrap: Run) -> Any:
        m, seen = network(), []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(tensor.shape)
            return tensor

        step = wrap(lambda x: m(x).square().sum().backward())
        step(X)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2):
            step(X)
        return len(seen), [p.grad for p in m.parameters()]

    assert_same(run(lambda fn: fn), run(lambda fn: argand.compile(fn, backend=backend, fullgraph=True)))


def test_many_backwards_run_each_operation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gradient looks like is told by a run of the graph so far, which goes on where the last one ended."""
    ran: list[str] = []
    value = engine_runs._value

    def counted(builder: Any, node: Any, *rest: Any) -> Any:
        ran.append(node.name)
        return value(builder, node, *rest)

    monkeypatch.setattr(engine_runs, "_value", counted)

    def program(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for step in range(6):
            loss = ((x * weight).sin() * (step + 1)).sum()
            if step % 2:
                with torch.no_grad():
                    x = x + 1
                loss.backward(retain_graph=step == 3)
            else:
                (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
                (grad * weight).sum().backward()
            total = total + loss.detach()
        return total

    outcomes = []
    for run in (program, argand.compile(program, backend="eager")):
        weight = torch.arange(4.0).requires_grad_()
        outcomes.append((run(weight, torch.ones(4)), weight.grad))
    assert_same(outcomes[0], outcomes[1], exact=True)
    assert len(ran) == len(set(ran)) > 40


def test_inputs_that_no_gradient_comes_to_are_leaves_or_none() -> None:
    """Eager keeps the gradients, from then on, of those that are none."""

    def differentiated(x: torch.Tensor, p: torch.Tensor) -> None:
        p.sum().backward(inputs=[x, p])

    compiled = argand.compile(differentiated, backend="eager")
    for leaf in (True, True, False, True):
        x, p = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        x = x if leaf else x * 1
        compiled(x, p)
        assert x.retains_grad is not leaf and p.grad is not None
