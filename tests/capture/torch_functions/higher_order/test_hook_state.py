"""Hooks on tensors see what is so when they run, not when they were put there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import argand


def _loop_variable(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for factor in (2.0, 3.0):
        y.register_hook(lambda grad: grad * factor)  # noqa: B023 - the variable's last value counts
    return y.sin()


def _assigned_later(x: torch.Tensor) -> torch.Tensor:
    factor = 2.0
    y = x * 2
    y.register_hook(lambda grad: grad * factor)
    z = y.sin()
    factor = 5.0
    return z


def _list_filled_later(x: torch.Tensor) -> torch.Tensor:
    factors = [2.0]
    y = x * 2
    y.register_hook(lambda grad: grad * sum(factors))
    factors.append(4.0)
    return y.sin()


def _two_that_talk(x: torch.Tensor) -> torch.Tensor:
    """What captum's DeepLift does: one hook hands the gradient to another."""
    seen: dict[str, torch.Tensor] = {}

    def first(grad: torch.Tensor) -> None:
        seen["grad"] = grad

    y = x * 2
    y.register_hook(lambda grad: grad * seen["grad"] if seen else None)
    z = y.sin()
    z.register_hook(first)
    return z * 3


class Holder:
    factor = 2.0


def _instance_changed_later(x: torch.Tensor) -> torch.Tensor:
    holder = Holder()
    y = x * 2
    y.register_hook(lambda grad: grad * holder.factor)
    holder.factor = 7.0
    return y.sin()


def _gradient_inside(x: torch.Tensor) -> torch.Tensor:
    factors = [2.0]
    y = x * 2
    y.register_hook(lambda grad: grad * sum(factors))
    factors.append(4.0)
    return torch.autograd.grad(y.sin().sum(), x)[0]


def _still(x: torch.Tensor) -> torch.Tensor:
    factors, holder = (2.0, 3.0), Holder()
    holder.factor = 4.0
    y = x * 2
    y.register_hook(lambda grad: grad * sum(factors) * holder.factor)
    return y.sin()


def _gradient(f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = torch.linspace(0.1, 1.0, 3).requires_grad_()
    result = f(x)
    if result.requires_grad:
        result.sum().backward()
        assert x.grad is not None
        return x.grad
    return result


@pytest.mark.parametrize(
    "f",
    [_loop_variable, _assigned_later, _list_filled_later, _two_that_talk, _instance_changed_later, _gradient_inside,
     _still],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_as_eager(f: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    want, compiled = _gradient(f), argand.compile(f, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(_gradient(compiled), want)


def test_what_does_not_change_stays_in_one_graph() -> None:
    assert torch.equal(_gradient(argand.compile(_still, fullgraph=True, backend="eager")), _gradient(_still))


def test_container_from_outside() -> None:
    """It is filled by a hook of a part that is not compiled."""
    seen: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * seen[-1] if seen else None)
        return y.sin()

    def gradient(call: Callable[..., Any]) -> torch.Tensor:
        seen.clear()
        x = torch.linspace(0.1, 1.0, 3).requires_grad_()
        z = call(x)
        z.register_hook(seen.append)
        (z * 3).sum().backward()
        assert x.grad is not None
        return x.grad

    want, compiled = gradient(f), argand.compile(f, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(gradient(compiled), want)


def test_attribute_written_after_the_hook_was_put() -> None:
    holder = Holder()

    def f(x: torch.Tensor) -> torch.Tensor:
        holder.factor = 2.0
        y = x * 2
        y.register_hook(lambda grad: grad * holder.factor)
        holder.factor = 3.0
        return y.sin()

    want, compiled = _gradient(f), argand.compile(f, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(_gradient(compiled), want)


def _function(backward: Callable[..., Any]) -> Any:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, kept: Any) -> torch.Tensor:
            ctx.kept = kept
            return x * 2

    Scaled.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Scaled


def test_backward_sees_what_is_so_when_it_runs() -> None:
    holder = Holder()
    by_list = _function(lambda ctx, grad: (grad * sum(ctx.kept), None))
    by_holder = _function(lambda ctx, grad: (grad * holder.factor, None))

    def f(x: torch.Tensor) -> torch.Tensor:
        factors = [2.0]
        y = by_list.apply(x, factors)
        factors.append(4.0)
        return y.sin()

    def g(x: torch.Tensor) -> torch.Tensor:
        holder.factor = 2.0
        y = by_holder.apply(x, None)
        holder.factor = 5.0
        return y.sin()

    for program in (f, g):
        want, compiled = _gradient(program), argand.compile(program, backend="eager")
        for _ in range(3):
            torch.testing.assert_close(_gradient(compiled), want)


def test_backward_whose_context_stays_is_in_one_graph() -> None:
    by_list = _function(lambda ctx, grad: (grad * sum(ctx.kept), None))

    def f(x: torch.Tensor) -> torch.Tensor:
        return by_list.apply(x, [2.0, 3.0]).sin()

    assert torch.equal(_gradient(argand.compile(f, fullgraph=True, backend="eager")), _gradient(f))


# ---- what changes after the compiled function has returned, before the backward

current_factor = 2.0


class Options:
    factor = 2.0


def _changed_later() -> dict[str, tuple[Callable[..., Any], Callable[[float], object]]]:
    """Hooks, and what changes what they read."""
    holder, inner, factors, factor = Holder(), Holder(), [2.0], 2.0
    holder.inner, holder.tensor = inner, torch.full((3,), 2.0)  # type: ignore[attr-defined]
    holder.factor, Options.factor = 2.0, 2.0
    globals()["current_factor"] = 2.0

    def rebind(value: float) -> None:
        nonlocal factor
        factor = value

    def set_tensor(value: float) -> None:
        holder.tensor = torch.full((3,), value)  # type: ignore[attr-defined]

    return {
        "attribute": (lambda grad: grad * holder.factor, lambda value: setattr(holder, "factor", value)),
        "inner attribute": (lambda grad: grad * holder.inner.factor, lambda value: setattr(inner, "factor", value)),  # type: ignore[attr-defined]
        "missing attribute": (
            lambda grad: grad * getattr(holder, "other", 3.0),
            lambda value: setattr(holder, "other", value),
        ),
        "tensor": (lambda grad: grad * holder.tensor, set_tensor),  # type: ignore[attr-defined]
        "global": (lambda grad: grad * current_factor, lambda value: globals().update(current_factor=value)),
        "free variable": (lambda grad: grad * factor, rebind),
        "attribute of a class": (lambda grad: grad * Options.factor, lambda value: setattr(Options, "factor", value)),
        "list": (lambda grad: grad * factors[0], lambda value: factors.__setitem__(0, value)),
        "read before, too": (
            lambda grad: grad * current_factor * factor,
            lambda value: (rebind(value), globals().update(current_factor=value)),
        ),
    }


def _later_gradients(name: str, by_function: bool, compile: Callable[[Any], Any]) -> list[torch.Tensor]:
    hook, change = _changed_later()[name]
    scaled = _function(lambda ctx, grad: (hook(grad), None))

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if name == "read before, too":
            y = hook(y)
        if by_function:
            y = scaled.apply(y, None)
        else:
            y.register_hook(hook)
        return y.sin()

    call, gradients = compile(f), []
    for number in range(2):
        x = torch.linspace(0.1, 1.0, 3).requires_grad_()
        result = call(x)
        change(5.0 + number)
        result.sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    return gradients


@pytest.mark.parametrize("by_function", [False, True], ids=["hook", "function"])
@pytest.mark.parametrize("name", list(_changed_later()))
def test_changed_between_the_call_and_the_backward(name: str, by_function: bool) -> None:
    want = _later_gradients(name, by_function, lambda f: f)
    for backend in ("eager", "native"):
        got = _later_gradients(name, by_function, lambda f: argand.compile(f, backend=backend))  # noqa: B023
        torch.testing.assert_close(got, want)


def test_what_runs_within_the_graph_stays_in_it() -> None:
    """No result leads to the hook any more."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * Options.factor)
        return torch.autograd.grad(y.sin().sum(), x)[0]

    compiled = argand.compile(f, fullgraph=True, backend="eager")
    for factor in (2.0, 3.0):
        Options.factor = factor
        assert torch.equal(_gradient(compiled), _gradient(f))


_SCALE = 3.0


class _Scaled(torch.autograd.Function):
    FACTOR = 2.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * _SCALE * _Scaled.FACTOR


def test_constants_of_a_module_break_nothing() -> None:
    x = torch.ones(3, requires_grad=True)
    argand.compile(lambda x: _Scaled.apply(x) * 2, backend="eager", fullgraph=True)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [12.0] * 3


_ELSEWHERE = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.pi
"""


def test_constants_of_a_library_that_another_module_found_first() -> None:
    space: dict[str, Any] = {"torch": torch, "__name__": "elsewhere"}
    exec(_ELSEWHERE, space)
    scaled = space["Scaled"]
    x = torch.ones(3, requires_grad=True)
    argand.compile(lambda x: scaled.apply(torch.sin(x)), backend="eager", fullgraph=True)(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(3).cos() * torch.pi)


_PADDED = """
import torch

class Padded(torch.autograd.Function):
    count = 1

    @classmethod
    def forward(cls, ctx, x, n):
        return x.clone()

    @classmethod
    def backward(cls, ctx, grad):
        return (grad * 3, *[None] * cls.count)
"""


@pytest.mark.parametrize("assigned", (False, True))
def test_attributes_of_an_installed_function_last_where_its_file_assigns_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assigned: bool
) -> None:
    (tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    name = f"padded_{assigned}".lower()
    change = "\ndef widen(function):\n    function.count += 1\n" if assigned else ""
    (tmp_path / "site-packages" / f"{name}.py").write_text(_PADDED + change)
    padded = importlib.import_module(name).Padded
    x = torch.ones(3, requires_grad=True)
    explanation = argand.explain(lambda x: padded.apply(x, 2) * 2)(x)
    assert bool(explanation.break_reasons) == assigned
    argand.compile(lambda x: padded.apply(x, 2) * 2, backend="eager", fullgraph=not assigned)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0] * 3
