"""Classes of tensors with `__torch_dispatch__`, torch's nested ones among them: the graph breaks once where they are
met, the program runs as in eager, and nothing is compiled of what operations on them do. What is asked of wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import argand
from argand.capture.driver.explain import Findings

SEEN: list[str] = []


def _unwrapped(tensor: Any) -> Any:
    return tensor.inner


class Wrapped(torch.Tensor):
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(func))
        args, kwargs = pytree.tree_map_only(Wrapped, _unwrapped, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Wrapped, func(*args, **kwargs))


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(func))
        return func(*args, **(kwargs or {}))


def given(x: torch.Tensor, t: Wrapped) -> Any:
    y = x * 2
    return y, ((t * 2).sin() + 1).sum(1).inner


def made(x: torch.Tensor, t: Wrapped) -> Any:
    return x + 1, (Wrapped(x) * 2).sin().inner


def in_a_loop(x: torch.Tensor, t: Wrapped) -> Any:
    for i in range(3):
        x = x + i
        t = torch.relu(t) + i
    return x, t.inner


def under_a_mode(x: torch.Tensor, t: Wrapped) -> Any:
    with Counting():
        y = x * 2 + 1
    return y, y.sin()


def outcome(fn: Callable[..., Any]) -> Any:
    """Results, what the class and the modes were told, for two calls."""
    found: list[Any] = []
    for seed in (1, 2):
        x = torch.arange(12.0).reshape(3, 4) * seed
        SEEN.clear()
        found += [part.tolist() for part in fn(x, Wrapped(x + 1))]
        found.append([*SEEN])
    return found


@pytest.mark.parametrize("program", [given, made, in_a_loop, under_a_mode])
def test_as_eager(program: Callable[..., Any]) -> None:
    assert outcome(argand.compile(program, backend="eager")) == outcome(program)


def test_what_an_operation_does_is_not_compiled() -> None:
    findings = Findings()
    with findings.listening():
        argand.compile(lambda t: ((t * 2).sin() + 1).sum(1), backend="eager")(Wrapped(torch.ones(3, 4)))
    assert len(findings.breaks) == 1 and not findings.graphs


def test_gradients() -> None:
    def program(x: torch.Tensor) -> Any:
        return (Wrapped(x * 2) * x).sin().sum()

    grads = []
    for fn in (program, argand.compile(program, backend="eager")):
        x = torch.arange(4.0).requires_grad_()
        fn(x).backward()
        grads.append(x.grad)
    assert torch.equal(*(getattr(grad, "inner", grad) for grad in grads))


def test_nested_tensors() -> None:
    layer = torch.nn.Linear(4, 4)

    def program(n: torch.Tensor, scale: float) -> Any:
        y = torch.relu(layer(n * scale + 1))
        return [part.detach() for part in y.unbind()], y.sum(-1).unbind(), torch.nested.to_padded_tensor(y, 0.0)

    compiled = argand.compile(program, backend="eager")
    for lengths in ((2, 3, 1), (4, 1), (2, 3, 1)):
        nested = torch.nested.nested_tensor([torch.ones(n, 4) * n for n in lengths], layout=torch.jagged)
        torch.testing.assert_close(compiled(nested, 0.5), program(nested, 0.5))


class Inherited(TwoTensor):
    """Does not say how it is made of its parts: TwoTensor does, which makes one of its own class."""

    __torch_function__ = torch.Tensor.__torch_function__


class Counted(TwoTensor):
    """Counts what it is asked."""

    asked: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Counted(inner["a"], inner["b"])


def test_a_class_stays_what_it_is() -> None:
    for requires in (False, True):
        whole = Inherited(torch.ones(3, 2), torch.ones(3, 2)).requires_grad_(requires)
        for program in (lambda w: w.sin(), lambda w: (w.t(), Inherited(w.a, w.b))[-1]):
            assert type(argand.compile(program, backend="eager")(whole)) is type(program(whole)) is Inherited


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_guards_and_graphs_ask_the_class_nothing(backend: str) -> None:
    compiled = argand.compile(lambda w: w.sin(), backend=backend, dynamic=True)
    for requires in (False, True):
        for rows in (3, 4, 5):
            whole = Counted(torch.ones(rows, 2), torch.ones(rows, 2)).requires_grad_(requires)
            Counted.asked.clear()
            compiled(whole)
            assert Counted.asked == ["sin"]
