"""Results that are views, detached, or made where gradients are switched: what carries a gradient is what does in eager."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand import events


@pytest.fixture(params=["aot_eager", "native"])
def backend(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def seen() -> Iterator[Counter[str]]:
    found: Counter[str] = Counter()
    stop = events.bus.subscribe(lambda e: found.update([e.name]))
    yield found
    stop()


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def facts(call: Callable[..., Any], make: Callable[[], tuple[torch.Tensor, ...]]) -> Any:
    """Results, which of them require grad, and the gradients of the inputs after a backward from all that do."""
    torch.manual_seed(0)
    inputs = make()
    out = call(*inputs)
    flags = [t.requires_grad for t in out]
    sum(t.sum() * (k + 1) for k, t in enumerate(out) if t.requires_grad).backward()
    return [t.detach().clone() for t in out], flags, [t.grad if t.is_leaf else None for t in inputs]


def check(fn: Callable[..., Any], make: Callable[[], tuple[torch.Tensor, ...]], backend: str) -> None:
    want = facts(fn, make)
    got = facts(argand.compile(fn, backend=backend), make)
    torch.testing.assert_close(got[0], want[0])
    assert got[1] == want[1]
    for a, b in zip(got[2], want[2]):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


# ---------------------------------------------------------------------- gradients switched inside


def test_a_graph_that_begins_under_no_grad_and_ends_it(backend: str) -> None:
    """A break inside `no_grad`: what follows the block is recorded, views of inputs too."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            a = x * 2
            argand.graph_break()
            b = a + 1
        return b * w, w.view(-1)

    check(fn, lambda: (torch.randn(2, 2), leaf(2, 2)), backend)


def test_a_graph_that_enables_gradients_where_the_caller_disabled_them(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.enable_grad():
            y = x * w
        return y, x + w

    def use(call: Any, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return call(*inputs)

    compiled = argand.compile(fn, backend=backend)
    make = lambda: (torch.randn(2), leaf(2))  # noqa: E731
    want, got = facts(lambda *a: use(fn, *a), make), facts(lambda *a: use(compiled, *a), make)
    assert got[1] == want[1] == [True, False]
    torch.testing.assert_close(got[2][1], want[2][1])


def test_a_loop_over_experts_keeps_the_gradients_of_views_of_parameters(backend: str) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4))

    def fn(h: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(h)
        with torch.no_grad():
            hit = F.one_hot(index, 3).sum((0, 1)).nonzero()
        for e in hit:
            with torch.no_grad():
                rows = torch.where((index == e).any(1))[0]
            w = weight.view(3, 2, 4)[e[0]]
            out.index_add_(0, rows, h[rows].matmul(w.t()).matmul(w))
        return out

    h, index = torch.randn(5, 4), torch.randint(3, (5, 2))
    (want,) = torch.autograd.grad(fn(h, index).pow(2).sum(), weight)
    (got,) = torch.autograd.grad(argand.compile(fn, backend=backend)(h, index).pow(2).sum(), weight)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_view_of_a_leaf_made_under_no_grad_hands_no_gradient_on(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            v = x.view(-1)
        return v, x.sum()

    check(fn, lambda: (leaf(2, 2),), backend)


def test_a_view_of_a_view_of_a_result_that_was_made_under_no_grad_hands_no_gradient_on(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        with torch.no_grad():
            v = y.view(-1)
        return y, v[::2]

    check(fn, lambda: (leaf(2, 2),), backend)


def test_a_view_made_under_no_grad_by_a_graph_that_records_nothing(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return (x.view(-1),)

    check(fn, lambda: (leaf(2, 2),), backend)


def test_strides_that_reach_out_of_a_view(backend: str) -> None:
    """Autograd gives no gradient of what lies outside of it."""
    check(lambda x: (x[1:3].as_strided((5,), (2,)),), lambda: (leaf(4, 4),), backend)


# ---------------------------------------------------------------------- detached and viewed results


def _write_through_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    v = y[0]
    v.add_(1)
    return v, y.detach(), y


def _detached_first(x: torch.Tensor) -> Any:
    y = x * 2
    return y.detach(), y


def _detached_between(x: torch.Tensor) -> Any:
    y = x * 2
    return y.detach(), y[0], y.detach()[1], y


@pytest.mark.parametrize("fn", [_write_through_a_view, _detached_first, _detached_between])
def test_a_detached_result_carries_no_gradient(fn: Callable[..., Any], backend: str, seen: Counter[str]) -> None:
    check(fn, lambda: (leaf(2, 3),), backend)
    assert seen["fallback"] == 0


def test_a_result_that_was_computed_as_a_view_may_be_written_to(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin().transpose(1, 2)

    def use(call: Any) -> Any:
        torch.manual_seed(0)
        x = leaf(2, 3, 4)
        y = call(x)
        y[0] = 0.0
        y.mul_(3).sum().backward()
        return y.detach(), x.grad

    torch.testing.assert_close(use(argand.compile(fn, backend=backend)), use(fn), rtol=1e-4, atol=1e-5)


def test_a_view_of_an_input_without_a_gradient_stays_its_view(backend: str) -> None:
    """Multiplied in place by something with a gradient, it gives the input one."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return y[0], x.sum()

    def use(call: Any) -> Any:
        x, y, w = torch.ones(2, requires_grad=True), torch.ones(2, 2), torch.full((2,), 3.0, requires_grad=True)
        call(x, y)[0].mul_(w)
        (y * 2).sum().backward()
        return w.grad

    torch.testing.assert_close(use(argand.compile(fn, backend=backend)), use(fn))


# ---------------------------------------------------------------------- scalers, fused optimizers, attributes


def train(wrap: Callable[[Any], Any], fused: bool, half: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if not fused:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run = wrap(step)
    losses = [run(torch.randn(8, 6), torch.randint(4, (8,))) for _ in range(5)]
    return [*losses, torch.tensor(scaler.get_scale()), *[p.detach().clone() for p in model.parameters()]]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_a_whole_step_with_a_gradient_scaler(fused: bool, half: bool) -> None:
    gc.collect()
    want, got = train(lambda f: f, fused, half), train(argand.compile, fused, half)
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-4 if half else 2e-5)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers(cls: Any, backend: str) -> None:
    def steps(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        optimizer = cls(layer.parameters(), lr=0.01, fused=True)
        run = wrap(optimizer.step)
        for _ in range(3):
            layer(torch.randn(2, 3)).pow(2).sum().backward()
            run()
        return [p.detach().clone() for p in layer.parameters()]

    want, got = steps(lambda f: f), steps(lambda f: argand.compile(f, backend=backend))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_graph_without_gradients_gives_results_without(backend: str) -> None:
    """Found by reading: operations run as calls of eager's kernels recorded gradients that the program had switched off."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return x @ w, torch.linalg.matrix_exp(x).cos()

    x, w = leaf(3, 3), leaf(3, 2)
    ours = argand.compile(program, backend=backend, fullgraph=True)(x, w)
    assert [y.requires_grad for y in ours] == [y.requires_grad for y in program(x, w)] == [False, False]
    torch.testing.assert_close(ours, program(x, w))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_write_in_inference_mode_before_a_break(backend: str) -> None:
    def count(seen: torch.Tensor) -> float:
        seen.add_(1)
        return float(seen)

    seen, compiled = torch.zeros(()), argand.compile(count, backend=backend)
    for number in (1.0, 2.0):
        with torch.inference_mode():
            assert compiled(seen) == number
    assert seen == 2 and not seen.is_inference()


def test_a_view_made_under_no_grad_of_what_is_written_to_later() -> None:
    """Autograd says no history of it: the graph runs eagerly, and no graph has it as an input."""

    def written(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            view = x.T
        x.detach().add_(1)
        return view

    def broken(x: torch.Tensor) -> torch.Tensor:
        view = written(x)
        argand.graph_break()
        return view

    warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
    for call in (written, argand.compile(written, backend="aot_eager"), argand.compile(broken, backend="aot_eager")):
        x = torch.zeros(2, 3).requires_grad_()
        torch.testing.assert_close(call(x).detach(), torch.ones(3, 2))
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            assert call(x).grad_fn


@pytest.mark.parametrize("written", ["view", "base", "before"])
@pytest.mark.parametrize("several", [True, False])
def test_views_that_autograd_refuses_once_they_are_written_to(several: bool, written: str, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(several):
            view = x.chunk(2)[1] if several else x[2:]
        if written != "before":
            argand.graph_break()
        with torch.no_grad():
            (x if written == "base" else view).fill_(2)
        if written == "before":
            argand.graph_break()
        return view.sin()

    for call in (program, argand.compile(program, backend=backend)):
        with pytest.raises(RuntimeError, match="modified inplace"):
            call(leaf(4, 6))


def test_a_view_of_several_that_is_written_to_under_no_grad_and_returned(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = y.reshape(-1)
        with torch.no_grad():
            view.div_(view.sum())
        return view

    for call in (program, argand.compile(program, backend=backend)):
        x = torch.ones(4, 4, requires_grad=True).unbind(0)[0]
        torch.testing.assert_close(call(x, x.view(-1)).detach(), torch.full((4,), 0.25))


def test_integers_that_autograd_has_given_a_history() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int16)
        bits.masked_fill_(bits > 0, x.sum())
        argand.graph_break()
        return bits

    warnings.filterwarnings("error", message="argand: capturing .* failed inside argand")
    for call in (program, argand.compile(program, backend="aot_eager")):
        assert call(leaf(2, 2) * 1).requires_grad
