"""Gradients of gradients through compiled graphs, against eager's; and what is refused."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import argand
import sweeps
from helpers import texts_of

Wrap = Callable[[Any], Any]
SHARE = 1 if sweeps.WHOLE else 24


BACKENDS = ["aot_eager", "native"]


@pytest.fixture(params=BACKENDS)
def wrap(request: pytest.FixtureRequest) -> Wrap:
    return lambda function: argand.compile(function, backend=request.param)


def close(want: list[Any], got: list[Any]) -> None:
    assert len(want) == len(got)
    for a, b in zip(want, got):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True)


def penalty(model: nn.Module, wrap: Wrap) -> list[Any]:
    """The gradient penalty of WGAN-GP."""
    model = copy.deepcopy(model)
    x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(wrap(model)(x).sum(), x, create_graph=True)
        ((grad.norm(dim=1) - 1) ** 2).mean().backward()
    return [x.grad, *[p.grad for p in model.parameters()], *model.buffers()]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)),
    "frozen batch norm": lambda: nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 1)
    ).eval(),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(8, 1)
    ),
    "one weight twice": lambda: Tied(),
}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x).tanh()).square().sum(-1)


@pytest.mark.parametrize(("name", "wrap"), sweeps.chessboard(MODELS, BACKENDS), indirect=["wrap"])
def test_gradient_penalty(name: str, wrap: Wrap) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    close(penalty(model, lambda f: f), penalty(model, wrap))


def derivatives(function: Any, x: torch.Tensor, order: int) -> list[torch.Tensor]:
    out, found = function(x).sum(), []
    for _ in range(order):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        found.append(out.detach())
    return found


def detached(x: torch.Tensor) -> torch.Tensor:
    """A straight-through estimator: what is detached is constant in all derivatives."""
    with torch.no_grad():
        scale = x.exp()
    return x * x.detach() + (x + (x.round() - x).detach()) ** 3 * scale


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3.5 * x**2  # not what autograd would find


FUNCTIONS: dict[str, Any] = {
    "smooth": lambda x: x.sin() * x.exp(),
    "detached": detached,
    "a function's own backward": lambda x: Cube.apply(x) * x,
    "attention": lambda x: F.softmax(x @ x.T, -1) @ x,
    "break": lambda x: (argand.graph_break(), (x * 2).sin() * x)[1],
    "in place on what it made": lambda x: (x * 2).sin_().mul_(x),
}


@pytest.mark.parametrize(("name", "dynamic"), sweeps.chessboard(FUNCTIONS, [False, True]))
def test_higher_orders(name: str, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    for rows in (3, 4):
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows), requires_grad=True)
        compiled = argand.compile(function, dynamic=dynamic)
        close(derivatives(function, x, 3), derivatives(compiled, x, 3))


def test_a_factor_that_is_computed_from_a_number_of_the_call() -> None:
    """The graph that runs again gets that number, not the one that it was traced with."""

    def scaled(x: torch.Tensor, k: int) -> torch.Tensor:
        return x.square() * (k / 4)

    compiled = argand.compile(scaled, backend="aot_eager", dynamic=True)
    for k in (3, 1, 6):
        orders = []
        for function in (scaled, compiled):
            x = torch.linspace(-1, 1, 4).requires_grad_()
            (first,) = torch.autograd.grad(function(x, k).square().sum(), x, create_graph=True)
            orders.append([first, *torch.autograd.grad(first.sin().sum(), x)])
        close(*orders)


def test_gradients_that_the_graph_turns_on() -> None:
    """What comes before is constant then, as it was when the graph ran."""

    def function(x: torch.Tensor) -> torch.Tensor:
        scale = x.exp()
        with torch.enable_grad():
            return (scale * x * x).sin()

    def called(run: Any) -> Any:
        def call(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return run(x)

        return call

    x = torch.randn(4, requires_grad=True)
    close(derivatives(called(function), x, 3), derivatives(called(argand.compile(function)), x, 3))


def test_the_same_tensor_twice(wrap: Wrap) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * a * b).sum()

    results = []
    for run in (function, wrap(function)):
        x = torch.tensor([2.0, 3.0], requires_grad=True)
        (g,) = torch.autograd.grad(run(x, x), x, create_graph=True)
        (gg,) = torch.autograd.grad(g.sum(), x)
        results.append([g.detach(), gg])
    close(*results)


def test_functionals(wrap: Wrap) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x, v = torch.randn(3), torch.randn(3)
    compiled = wrap(function)
    for name, args in (("hvp", (v,)), ("vhp", (v,)), ("hessian", ()), ("jvp", (v,))):
        want = getattr(torch.autograd.functional, name)(function, x, *args)
        close(
            pytree.tree_leaves(want), pytree.tree_leaves(getattr(torch.autograd.functional, name)(compiled, x, *args))
        )


def test_learning_to_learn(wrap: Wrap) -> None:
    """Steps of an inner optimizer that the outer loss is differentiated through (MAML)."""

    def loss(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.tanh(x @ w + b), y)

    results = []
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(8, 2)
    for run in (loss, wrap(loss)):
        start = [torch.full((3, 2), 0.3, requires_grad=True), torch.zeros(2, requires_grad=True)]
        weights = list(start)
        for _ in range(3):
            steps = torch.autograd.grad(run(*weights, x, y), weights, create_graph=True)
            weights = [w - 0.1 * g for w, g in zip(weights, steps)]
        run(*weights, x, y).backward()
        results.append([w.grad for w in start])
    close(*results)


def dropped(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, masks: list[torch.Tensor] | None) -> Any:
    """A small network, what two dropouts made in it, and which the masks make."""
    first = F.layer_norm(x @ w, (8,)).tanh()
    one = F.dropout(first, 0.5) if masks is None else first * masks[0]
    second = one @ v
    two = F.dropout(second, 0.25) if masks is None else second * masks[1]
    return two.sin() * two.sum(), one, two


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradient_penalty_under_dropout(dynamic: bool | None) -> None:
    """The second run draws the numbers of the first: as eager does with the masks of the compiled call."""
    compiled = argand.compile(dropped, dynamic=dynamic)
    for rows in (3, 4):
        torch.manual_seed(rows)  # second derivatives of sines of some numbers are many roundings apart
        x, w, v = (torch.randn(*size, requires_grad=True) for size in ((rows, 4), (4, 8), (8, 5)))
        results = []
        masks: list[torch.Tensor] = []
        for number in range(2):
            out, one, two = (compiled if number == 0 else dropped)(x, w, v, None if number == 0 else masks)
            if number == 0:
                torch.rand(3)  # somebody else draws in between
                masks = [(one != 0).float() * 2.0, (two != 0).float() / 0.75]
            (grad,) = torch.autograd.grad(out.sum() + one.square().sum(), x, create_graph=True)
            penalty = ((grad.norm(dim=1) - 1) ** 2).mean()
            results.append([grad.detach(), *torch.autograd.grad(penalty, [x, w, v])])
        close(results[1], results[0])


class Critic(nn.Module):
    """Draws random numbers, or writes to what its gradients depend on."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(4, 8), nn.Linear(8, 1)
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).sin()
        if self.kind == "dropout":
            h = F.dropout(h, 0.4) + F.dropout(h, 0.2)
        elif self.kind == "noise":
            h = h * torch.rand(8)
        elif self.kind == "checkpoint":
            h = checkpoint(lambda h: F.dropout(h.exp(), 0.4), h, use_reentrant=False)
        elif self.kind == "read and written":
            h = h * self.state.cos()
            self.state.add_(1)
        elif self.kind == "written and read":
            with torch.no_grad():
                self.state.mul_(0.9).add_(h.mean(0))
            h = h * self.state
        elif self.kind == "in place":
            h = F.leaky_relu_(h * 2, 0.2).mul(2)
            h[:, 1:3] = x[:, 3:] ** 2
        return self.b(h)


@pytest.mark.parametrize(
    ("kind", "wrap"),
    sweeps.chessboard(["dropout", "noise", "checkpoint", "read and written", "written and read", "in place"], BACKENDS),
    indirect=["wrap"],
)
def test_critics(kind: str, wrap: Wrap) -> None:
    """A penalty on a critic's gradient, and gradients of its parameters that are differentiated: the second run draws
    and reads what the first did."""

    def steps(wrap: Wrap) -> list[Any]:
        torch.manual_seed(0)
        critic = Critic(kind)
        run, results = wrap(critic), []
        for r in range(3):
            torch.manual_seed(r)
            x = torch.randn(3, 4, requires_grad=True)
            y = run(x)
            torch.rand(3)  # somebody else draws in between
            (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            state = torch.random.get_rng_state()
            (((grad.norm(2, 1) - 1) ** 2).mean() + y.mean()).backward()
            assert torch.equal(state, torch.random.get_rng_state())
            grads = torch.autograd.grad(run(x).square().mean(), list(critic.parameters()), create_graph=True)
            sum(one.square().sum() for one in grads).backward()
            results += [grad.detach(), *[one.grad.clone() for one in critic.parameters()], critic.state.clone()]
            critic.zero_grad()
        return results

    with argand.config.patch(fallback_random=True):
        close(steps(lambda critic: critic), steps(wrap))


@pytest.mark.parametrize("kind", ["dropout", "noise", "checkpoint"])
def test_random_numbers_are_the_calls_own(kind: str) -> None:
    """Those that kernels draw from seeds: gradients with a history are those without, or refuse to be differentiated."""
    critic = Critic(kind)
    run = argand.compile(critic)
    for _ in range(3):
        y = run(torch.randn(3, 4)).sum()
        parameters = list(critic.parameters())
        want = torch.autograd.grad(y, parameters, retain_graph=True)
        close(list(want), [one.detach() for one in torch.autograd.grad(y, parameters, create_graph=True)])


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.exp()
    return x * x * scale


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    y.register_hook(lambda grad: grad * 2)
    return y * x


OFF_THE_TAPE: dict[str, Any] = {
    "detached": lambda x: x * x * x.detach(),
    "data": lambda x: x * x * x.data,
    "no_grad": without_gradients,
    "own backward": lambda x: Cube.apply(x) * x,
    "inside of torch": lambda x: F.gumbel_softmax(x, hard=True) * x * x,
    "hook": hooked,
}


@pytest.mark.parametrize("name", OFF_THE_TAPE)
def test_what_autograd_does_not_record_is_refused_under_dropout(name: str) -> None:
    """The functional graph does not show it."""
    function = argand.compile(lambda x: F.dropout(OFF_THE_TAPE[name](x), 0.5))
    x = torch.ones(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        grad.sum().backward()


def test_under_autocast(wrap: Wrap) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
    results = []
    for run in (model, wrap(model)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(x).float().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        results.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), list(model.parameters())[:1])])
    for want, got in zip(*results):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.01)


def test_inputs_that_were_written_to(wrap: Wrap) -> None:
    w, bias = torch.ones(3, requires_grad=True), torch.zeros(3)
    x = torch.randn(3, requires_grad=True)
    y = wrap(lambda x, w, bias: ((x + bias) * w).sin().sum())(x, w, bias)
    bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


def _of_values_in_between(x: torch.Tensor, run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, Any]:
    """A result of inputs that nobody else has, and a weak reference to one of them."""
    other = torch.linspace(0, 1, 3)
    return run(x * 2, other), weakref.ref(other)


def test_inputs_that_the_program_has_let_go_of(wrap: Wrap) -> None:
    """They are kept for a second derivative as long as what was saved is, and no longer."""

    def function(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x - other).square().exp() * other

    x = torch.linspace(-1, 1, 3, requires_grad=True)
    seconds = []
    for run in (function, wrap(function)):
        y, _ = _of_values_in_between(x, run)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(grad.sum(), x)[0])
    torch.testing.assert_close(seconds[1], seconds[0])
    y, alive = _of_values_in_between(x, wrap(function))
    y.sum().backward()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(("dynamic", "wrap"), sweeps.chessboard([True, False], BACKENDS[::-1]), indirect=["wrap"])
def test_inputs_that_eager_does_not_keep(dynamic: bool, wrap: Wrap) -> None:
    """Gradients do not depend on what they are: something else stands for them when the graph runs again."""
    w = torch.linspace(-1, 1, 9).view(3, 3)
    scale = torch.linspace(1, 2, 3, requires_grad=True)
    blocks = [
        lambda x: x + x @ w,
        lambda x: x.sigmoid(),
        lambda x: torch.cat([x * scale.detach(), x]).sum(0) + scale.sin(),
    ]
    for rows in (3, 4):
        x = torch.linspace(-1, 1, rows * 3).view(rows, 3).requires_grad_()
        found = []
        for runs in (blocks, [argand.compile(block, dynamic=dynamic) for block in blocks], [*map(wrap, blocks)]):
            y = x * 2
            for run in runs:
                y = run(y)
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), [x, scale])])
        close(found[0], found[1])
        close(found[0], found[2])


def test_dropout_of_an_input_that_is_gone() -> None:
    x = torch.linspace(-1, 1, 24).requires_grad_()
    y = argand.compile(lambda x: F.dropout(x, 0.5, True) + 1)(x.exp() * 1)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    kept = (grad != 0) & (y.detach() != 1)
    inner = torch.where(kept, 2 * x.exp(), 0)
    close([(2 * (inner + 1) * inner).detach()], [grad.detach()])
    (second,) = torch.autograd.grad(grad.sum(), x)
    close([(4 * inner * inner + 2 * inner).detach()], [second])


def test_a_graph_break_between_operations_that_are_differentiated_twice() -> None:
    w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = x @ w
        argand.graph_break()
        return (hidden - 1).square().sum()

    results = []
    for run in (function, argand.compile(function)):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        (grad,) = torch.autograd.grad(run(x), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), (x, w)))
    for want, got in zip(*results):
        torch.testing.assert_close(got, want)


def test_what_the_graph_writes(wrap: Wrap) -> None:
    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return (x * x).sin()

    x, count = torch.randn(3, requires_grad=True), torch.zeros(())
    close(
        derivatives(lambda x: function(x, torch.zeros(())), x, 2), derivatives(lambda x: wrap(function)(x, count), x, 2)
    )
    assert count == 1


SAMPLED = [op for op in op_db if op.supports_gradgrad and torch.float64 in op.dtypes]
CHOSEN = SAMPLED if SHARE == 1 else random.Random(7).sample(SAMPLED, len(SAMPLED) // SHARE)


@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip("."))
def test_operators(op: Any) -> None:
    """The first sample of each operator of torch's test database; all of them with `SWEEPS=whole`."""
    sample = next(iter(op.sample_inputs("cpu", torch.float64, requires_grad=True)), None)
    if sample is None:
        pytest.skip("it has no sample")

    def function(*args: Any) -> Any:
        given, kwargs = pytree.tree_unflatten(args, spec)
        out = op(*given, **kwargs)
        return sample.output_process_fn_grad(out)

    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    try:
        want = _second(function, leaves)
    except RuntimeError as error:
        pytest.skip(f"eager raises {error}")
    torch.manual_seed(0)
    argand.reset()
    try:
        with argand.config.patch(fallback_random=True):  # some drop
            got = _second(argand.compile(function), leaves)
    except RuntimeError as error:
        assert "gradient of a gradient" in str(error) or want is None
        return
    if want is not None:
        close(want, got or [])


def _second(function: Any, leaves: list[Any]) -> list[Any] | None:
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    results = [r for r in pytree.tree_leaves(function(*leaves)) if isinstance(r, torch.Tensor) and r.requires_grad]
    if not results:
        return None
    grads = torch.autograd.grad([r.abs().square().sum() for r in results], inputs, create_graph=True, allow_unused=True)
    again = [g.abs().square().sum() for g in grads if g is not None and g.requires_grad]
    second = torch.autograd.grad(again, inputs, allow_unused=True) if again else ()
    return [None if g is None else g.detach() for g in (*grads, *second)]


@pytest.mark.parametrize(("twice", "eager"), [(1, True), (2, False), (0, False)])
def test_a_graph_most_of_whose_calls_run_it_once_more_runs_by_eagers_kernels(twice: int, eager: bool) -> None:
    """Of every `twice` calls one has its gradient differentiated (0: none)."""

    def steps(function: Any) -> list[Any]:
        model = nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-1, 1, 3)[None])
            model.bias.zero_()
        compiled = function(lambda x: model(x).tanh().square().sum())
        grads = []
        for number in range(40):
            x = torch.linspace(0, 1 + number / 40, 3).requires_grad_()
            again = twice > 0 and number % twice == 0
            (grad,) = torch.autograd.grad(compiled(x), x, create_graph=again)
            if again:
                grad.square().sum().backward()
            grads += [grad.detach(), x.grad]
        return [*grads, model.weight.grad]

    with texts_of("fallback") as told:
        got = steps(argand.compile)
    close(steps(lambda function: function), got)
    assert len([text for text in told if "differentiated again" in text]) == eager
