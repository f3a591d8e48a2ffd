"""Graphs with several results of which a backward reaches some: hooks of the others are not called, as in eager."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand import events
from helpers import assert_same

Call = Callable[..., Any]

OPERATIONS: list[Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = [
    lambda a, b: (a * b,),
    lambda a, b: (a.sin() + b,),
    lambda a, b: ((a @ b).tanh(),),
    lambda a, b: torch.var_mean(a * b, dim=1, keepdim=True),  # two results of one node
    lambda a, b: torch.std_mean(a - b, dim=0, keepdim=True),
    lambda a, b: (a.exp().sum(0, keepdim=True),),
    lambda a, b: (torch.sort(a, 1)[0] * b,),
]


def program(seed: int, chained: bool = False) -> Call:
    """A function of two matrices with several results, which may be computed from each other when `chained`."""
    rng = random.Random(seed)
    sources = [rng.random() < 0.6 and chained for _ in range(4)]
    chosen = [(rng.choice(OPERATIONS), rng.random() < 0.5) for _ in range(rng.randint(2, 4))]
    constant = rng.random() < 0.3

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        trunk = (x * w).sigmoid()
        results: list[torch.Tensor] = []
        for (operation, swapped), from_result in zip(chosen, sources):
            source = results[-1] + trunk if from_result and results else trunk
            results += operation(w, source) if swapped else operation(source, w)
        if constant:
            results.insert(1, trunk.detach() * 2)
        return tuple(results)

    return function


def hooked(kind: str, results: dict[int, torch.Tensor], calls: list[Any]) -> Callable[[], None]:
    """Puts hooks of a kind on all results; what it returns notes what they left behind."""
    for place, result in results.items():

        def note(grad: torch.Tensor | None, place: int = place) -> torch.Tensor | None:
            calls.append((place, None if grad is None else grad.clone()))
            return grad * 2 if kind == "changing" and grad is not None else None

        if kind in ("hook", "changing"):
            result.register_hook(note)
        elif kind == "retained":
            result.retain_grad()
        elif kind == "node":
            result.grad_fn.register_prehook(lambda grads, place=place: calls.append((place, len(grads) > 0)))
    if kind == "several":
        torch.autograd.graph.register_multi_grad_hook(
            list(results.values()), lambda grads: calls.append([None if g is None else g.clone() for g in grads])
        )
    return lambda: calls.extend(sorted((p, r.grad) for p, r in results.items()) if kind == "retained" else ())


def outcome(function: Call, seed: int, kind: str, chained: bool = False) -> list[Any]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2))
    calls: list[Any] = []
    results = dict(enumerate(function(x, w)))
    results = {place: result for place, result in results.items() if result.requires_grad}
    finish = hooked(kind, results, calls)
    used = rng.sample(sorted(results), rng.randint(1, len(results)))
    for round in range(2):
        calls.append(("round", round))
        torch.autograd.backward([results[place].sum() for place in used], retain_graph=round == 0)
    finish()
    unused = [place for place in results if place not in used]
    if unused and kind == "hook" and not chained:  # what a gradient does not come to has none
        again = function(x, w)
        loss = torch.stack([again[place].sum() for place in used]).sum()
        calls.append(torch.autograd.grad(loss, [again[place] for place in unused], allow_unused=True))
        with pytest.raises(RuntimeError, match="not have been used"):
            again = function(x, w)
            torch.autograd.grad(again[used[0]].sum(), [again[unused[0]]])
    return [sorted(map(str, calls)) if kind == "node" else calls, x.grad, w.grad]


@pytest.mark.parametrize(
    ("chained", "kind", "backend"),
    sweeps.combinations([False, True], ["hook", "changing", "retained", "node", "several"], ["aot_eager", "native"]),
)
def test_as_eager(kind: str, backend: str, chained: bool) -> None:
    for seed in range(sweeps.part(12) if backend == "aot_eager" else 3):
        argand.reset()
        function = program(seed, chained)
        want = outcome(function, seed, kind, chained)
        got = outcome(argand.compile(function, backend=backend, fullgraph=True), seed, kind, chained)
        torch.testing.assert_close(_flat(got), _flat(want), rtol=1e-4, atol=1e-5, msg=lambda m, s=seed: f"{s}: {m}")


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_of_results_that_others_are_computed_from(backend: str) -> None:
    """`torch.autograd.grad` by some of the results and inputs, as eager answers it."""
    for seed in range(sweeps.part(12) if backend == "aot_eager" else 3):
        argand.reset()
        function = program(seed, True)
        answers = []
        for run in (function, argand.compile(function, backend=backend, fullgraph=True)):
            generator = torch.Generator().manual_seed(seed)
            given = [torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2)]
            results = [result for result in run(*given) if result.requires_grad]
            for wanted in (results[:1], results[:-1], [results[0], given[0]], given, [*results[1:], *given]):
                found = torch.autograd.grad(results[-1].sum(), wanted, allow_unused=True, retain_graph=True)
                answers.append(found)
        half = len(answers) // 2
        torch.testing.assert_close(_flat(answers[half:]), _flat(answers[:half]), rtol=1e-4, atol=1e-5)


@pytest.fixture
def fallbacks() -> Any:
    argand.reset()
    found: list[Any] = []
    stop = events.bus.subscribe(lambda event: found.append(event) if event.name == "fallback" else None)
    yield found
    stop()


def test_features_beside_a_score(fallbacks: list[Any]) -> None:
    """Grad-CAM: the gradient of a score by features that the compiled model returns too; dropout does not matter."""

    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.nn.functional.dropout((x @ w).relu(), 0.5)
        return features, features.square().mean(0)

    x, w = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True)
    features, scores = argand.compile(model)(x, w)
    (grad,) = torch.autograd.grad(scores[1], features, retain_graph=True)
    want = torch.zeros(4, 5)
    want[:, 1] = features.detach()[:, 1] / 2
    torch.testing.assert_close(grad, want)
    features.retain_grad()
    scores[1].backward()
    torch.testing.assert_close(features.grad, want)
    assert fallbacks == []


def test_gradients_of_such_results_are_differentiated_again() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = (x @ w).tanh()
        k = h.exp() * w
        return h, k, (h * k * x).sum()

    answers = []
    for run in (function, argand.compile(function, backend="aot_eager")):
        x = torch.linspace(-1, 1, 9).view(3, 3)
        w = torch.linspace(0, 2, 9).view(3, 3).requires_grad_()
        h, k, loss = run(x, w)
        grads = torch.autograd.grad(loss, [h, k, w], create_graph=True)
        torch.stack([grad.square().sum() for grad in grads]).sum().backward()
        answers.append([*grads, w.grad])
    torch.testing.assert_close(answers[1], answers[0])


def test_hooks_outlive_the_results() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.sin()
        return h, (h * h * 1e20).sum()

    def hooked(run: Call, x: torch.Tensor) -> torch.Tensor:
        h, loss = run(x)
        h.register_hook(lambda grad: grad.clamp(-1, 1))  # what it puts in the gradient's place is not lost in it
        return loss

    answers = []
    for run in (function, argand.compile(function)):
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        hooked(run, x).backward()
        answers.append(x.grad)
    torch.testing.assert_close(answers[1], answers[0])


def test_a_hook_that_differentiates_the_same_call() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.sin()
        return h, (h * h).sum(), (h * w).sum()

    answers = []
    for run in (function, argand.compile(function, backend="aot_eager")):
        x, w = (torch.linspace(-1, 1, 6, requires_grad=True) for _ in range(2))
        h, loss, other = run(x, w)
        inner: list[Any] = []

        def hook(_: torch.Tensor, inner: list[Any] = inner, of: Any = (other, h, x, w)) -> None:
            if not inner:
                inner.append(None)  # the gradient that is asked for here passes the hook, too
                inner.append(torch.autograd.grad(of[0], of[1:], retain_graph=True))

        h.register_hook(hook)
        (loss + other).backward(retain_graph=True)
        answers.append([*inner[1], x.grad, w.grad])
    torch.testing.assert_close(answers[1], answers[0])


def test_results_may_be_written_to() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.sin()
        return h, (h * h) * 2 + h, *torch.var_mean(x, dim=0)

    answers = []
    for run in (function, argand.compile(function, backend="aot_eager")):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        results = run(x)
        for result in results[1:]:
            result.mul_(3)
        torch.stack([result.sum() for result in results]).sum().backward()
        answers.append([x.grad, *[r.detach() for r in results], torch.tensor([r._is_view() for r in results])])
    torch.testing.assert_close(answers[1], answers[0])


def _flat(value: Any) -> list[Any]:
    """Tensors of nested tuples, and the text of all else, so that None and numbers are compared too."""
    if isinstance(value, list | tuple):
        return [one for item in value for one in _flat(item)]
    return [value if isinstance(value, torch.Tensor) else torch.tensor(list(str(value).encode()))]


def test_a_hook_that_wants_a_tensor() -> None:
    """Pyro warns of gradients that are not finite, by hooks on each log density."""

    def densities(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * x).sum(), x.exp().sum()

    x = torch.ones(3, requires_grad=True)
    one, two = argand.compile(densities)(x)
    two.register_hook(lambda g: g * torch.isfinite(g))
    one.backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_gradcheck_of_several_results() -> None:
    compiled = argand.compile(lambda x, w: (x.sin() * w, (x * w).exp().sum(0), *torch.var_mean(w, dim=0)))
    given = [torch.randn(2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(compiled, given) and torch.autograd.gradgradcheck(compiled, given)


def test_nodes_where_torch_has_no_operation_that_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argand.graph.compat.node_adder", lambda: None)
    for kind in ("hook", "retained"):
        function = program(5)
        want = outcome(function, 5, kind)
        got = outcome(argand.compile(function, backend="aot_eager"), 5, kind)
        torch.testing.assert_close(_flat(got), _flat(want))


def test_hooks_after_accumulation_of_leaves_that_no_gradient_comes_to() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), (x * w).cos()

    x, w = (torch.linspace(-1, 1, 6, requires_grad=True) for _ in range(2))
    seen: list[Any] = []
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
    compiled = argand.compile(function, backend="aot_eager")
    compiled(x, w)[0].sum().backward()
    assert seen == [] and w.grad is None
    compiled(x, w)[1].sum().backward()
    assert len(seen) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_complex_results_of_real_inputs(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (y * x).to(torch.complex64), x * 2

    def run(fn: Any) -> Any:
        x, y = torch.randn(3, generator=torch.manual_seed(0)).requires_grad_(), torch.ones(3, requires_grad=True)
        z, w = fn(x, y)
        z.register_hook(lambda grad: grad * 3)
        (z.abs().sum() + w.sum()).backward()
        return z, w, x.grad, y.grad

    torch.testing.assert_close(run(argand.compile(program, backend=backend)), run(program))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_hooks_put_on_a_result_run_behind_those_of_captured_code(backend: str, broken: bool, whole: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        y.register_hook(lambda grad: grad * 2)
        if broken:
            argand.graph_break()
            y.register_hook(lambda grad: grad - 3)
        return (y, y.sum()) if whole else (y, None)

    def outcome(run: Any) -> Any:
        x = torch.ones(3, requires_grad=True)
        y, total = run(x)
        y.register_hook(lambda grad: grad + 1)
        y.retain_grad()
        (y.sum() if total is None else total).backward()
        return x.grad, y.grad

    assert_same(outcome(f), outcome(argand.compile(f, backend=backend)))


class _Second(torch.autograd.Function):
    """Gives its first argument no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return None, grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("leaf", [False, True])
def test_no_gradient_of_a_function_is_none(backend: str, leaf: bool) -> None:
    def outcome(run: Any) -> Any:
        seen: list[Any] = []
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        given = x if leaf else x * 2
        given.register_hook(seen.append)
        run(given, y).backward()
        return seen, x.grad, y.grad

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _Second.apply(x, y).sum()

    want = outcome(f)
    assert want[1] is None
    assert_same(want, outcome(argand.compile(f, backend=backend)))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("retained", [False, True])
def test_what_is_written_to_retains_the_gradient_of_its_new_value(backend: str, retained: bool) -> None:
    def write(y: torch.Tensor) -> torch.Tensor:
        return (y.mul_(3) * 2).sum()

    def gradients(fn: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        seen = []
        for kept in (retained, True, False):
            x = torch.ones(4, requires_grad=True)
            y = x * 2
            if kept:
                y.retain_grad()
            fn(y).backward()
            seen += [x.grad, y.grad if kept else None]
        return seen

    assert_same(gradients(write), gradients(argand.compile(write, backend=backend)))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_hooks_of_a_graphs_node_see_gradients_of_its_results_alone(backend: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    x, seen = torch.randn(4, 8), []

    def gradient(run: Any) -> torch.Tensor:
        y = run(x)
        y.grad_fn.register_prehook(lambda grads: (seen.append(len(grads)), (grads[0] * 2,))[1])
        y.grad_fn.register_hook(lambda given, grads: seen.append(len(grads)))
        return torch.autograd.grad(y.square().sum(), model[0].weight)[0]

    torch.testing.assert_close(gradient(argand.compile(model, backend=backend)), gradient(model))
    assert seen == [1] * 4


def test_the_graphs_node_dies_with_its_results() -> None:
    f = argand.compile(lambda x, y: (x.tanh().exp(), y.sin().exp()), backend="native")
    x = torch.randn(3, requires_grad=True)
    first, second = f(x * 1, x * 2)
    node = weakref.ref(first.grad_fn.node)
    torch.autograd.grad([first.sum(), second.sum()], x)
    del first, second
    gc.collect()
    assert node() is None
