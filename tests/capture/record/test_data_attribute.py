"""`leaf.data = tensor` in compiled functions: the leaf is the tensor's memory from then on, in the graph and outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand

T = torch.Tensor
Program = Callable[[Any, T], Any]


class Holder(nn.Module):
    """A buffer, and a parameter."""

    b: T

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.arange(4.0))
        self.w = nn.Parameter(torch.ones(4))
        self.v = nn.Parameter(torch.arange(4.0) / 5)


def averaged(m: Any, x: T) -> Any:
    m.b.data = m.b * 0.9 + x.detach().mean(0) * 0.1
    return (x - m.b) * m.w


def returned(m: Any, x: T) -> Any:
    mean = x.detach().mean(0)
    m.b.data = mean
    return mean, m.b, int(m.b is mean)


def twice(m: Any, x: T) -> Any:
    m.b.data = x.detach()[0] * 2
    first = m.b + 1
    m.b.data = m.b * 3
    return first, m.b * m.w


def viewed_before(m: Any, x: T) -> Any:
    view = m.b[1:]
    before = m.b * 1
    m.b.data = x.detach()[1] + 1
    return view, before, m.b[1:]


def written_after(m: Any, x: T) -> Any:
    value = x.detach()[1] + 1
    m.b.data = value
    m.b.add_(5)
    value.mul_(2)
    return value, m.b * 1


def of_an_input(m: Any, x: T) -> Any:
    row = x.detach()[0]
    m.b.data = row
    return m.b * 2


def read_after(m: Any, x: T) -> Any:
    m.b.data = x.detach().sum(0)
    return m.b.data + 1, m.b.detach() * m.w


def itself(m: Any, x: T) -> Any:
    m.b.data = m.b
    return x * m.b


def its_own(m: Any, x: T) -> Any:
    """As losses do to have their weights on the device and of the dtype of what they are given."""
    y = (x * m.w).sum()
    m.w.data = m.w.data.to(device=x.device, dtype=x.dtype)
    m.b.data = m.b[:]
    m.b.add_(1)
    return y * (m.w * m.v).sum(), m.b * 1


def of_a_parameter(m: Any, x: T) -> Any:
    m.w.data = m.w.data.clamp(0, 0.5) + x.detach()[0]
    return x * 2, m.w.detach() + 1


def of_a_result_with_gradients(m: Any, x: T) -> Any:
    m.w.data = (m.w * x).sum(0)
    return x * 2


def descended(m: Any, x: T) -> Any:
    with torch.no_grad():
        loss = (m.w * x).sum()
        for _ in range(3):
            m.w.data = m.w - 0.1 * x[0] * loss
            m.w.data = m.w.data * 0.5
    return m.w.data * 1


@torch.no_grad()
def swapped(m: Any, x: T) -> Any:
    m.w.data, m.v.data = m.v.data, m.w.data
    return m.w * x, m.v.data.mul_(2) + 0


@torch.no_grad()
def shared(m: Any, x: T) -> Any:
    m.w.data = m.v.data
    m.v.data.add_(x[0])
    return m.w * x


def written_before(m: Any, x: T) -> Any:
    m.b.add_(1)
    m.b.data = x.detach()[0] * 2
    return m.b * m.w


@torch.no_grad()
def stepped(m: Any, x: T) -> Any:
    before = m.w.data
    view = m.w.data[1:]
    m.w.add_(x[0], alpha=0.5)
    torch._foreach_mul_([m.w, m.v], 0.5)
    m.w.data = m.w.data.clamp(-0.3, 0.3)
    before.mul_(2)
    view.sub_(1)
    m.v.data.mul_(3)
    torch._foreach_addcmul_([m.v], [m.w.data], [x[0]])
    m.v.data = before * 1
    return m.w * x, before, view, m.v + 1


def perturbed(m: Any, x: T) -> Any:
    """As sharpness-aware steps do: a gradient where the parameter was moved to, a step from where it was."""
    (m.w * x).square().sum().backward()
    with torch.no_grad():
        old = m.w.data.clone()
        m.w.add_(m.w.grad * 0.05)
    m.w.grad = None
    loss = (m.w * x).square().sum()
    loss.backward()
    with torch.no_grad():
        m.w.data = old
        m.w.sub_(m.w.grad * 0.1)
    m.w.grad = None
    return loss.detach() * 2, old


def perturbed_and_returned(m: Any, x: T) -> Any:
    y = m.w * x
    with torch.no_grad():
        old = m.w.data.clone()
        m.w.add_(1)
        m.w.data = old
    return y


def perturbed_before_its_gradient(m: Any, x: T) -> Any:
    y = (m.w * x.detach()).square().sum()
    with torch.no_grad():
        old = m.w.data.clone() + 1
        m.w.data = old
    (grad,) = torch.autograd.grad(y, m.w)
    return grad


ONE_GRAPH: list[Program] = [
    stepped, perturbed, averaged, returned, read_after, itself, its_own, of_a_parameter, descended, swapped, shared,
]  # fmt: skip


def used_with_gradients(m: Any, x: T) -> Any:
    y = m.b * m.w
    m.b.data = m.b * 2
    return y.sum() + m.b.sum()


def used_before(m: Any, x: T) -> Any:
    y = x * m.w
    m.w.data = m.w.data.clamp(0, 0.5)
    return y + m.w


def used_behind(m: Any, x: T) -> Any:
    m.w.data = torch.renorm(m.w.data[None], 2, 0, 1.0)[0]
    return m.w * x


def between(m: Any, x: T) -> Any:
    kept = m.w.data
    m.w.data = x.detach()[0] * 2
    y = m.w * x
    m.w.data = kept
    return y


@torch.no_grad()
def added_to(m: Any, x: T) -> Any:
    m.w.data = x[0] * 2
    m.w.add_(1)
    return m.w._version > 0


def differentiated(m: Any, x: T) -> Any:
    m.w.data = x.detach()[0] * 2
    (grad,) = torch.autograd.grad((m.w * x).exp().sum(), m.w)
    m.w.data = m.w.data - 0.1 * grad
    return grad


def of_another_size(m: Any, x: T) -> Any:
    m.b.data = x.detach().mean(0)[:2] * 1
    return m.b * 2


def asked(m: Any, x: T) -> Any:
    m.b.data = x.detach().mean(0)
    return m.b + 1 if m.b.sum() > 0 else m.b - 1


def set_twice(m: Any, x: T) -> Any:
    m.b.data = x.detach()[0] * 2
    result = m.b * m.w
    m.b.data = x.detach()[1] * 3
    return result


def broken_after(m: Any, x: T) -> Any:
    m.b.data = x.detach().mean(0)
    argand.graph_break()
    return m.b + x


ELSEWHERE: list[Program] = [
    viewed_before, written_after, of_an_input, used_with_gradients, used_before, used_behind, between, added_to, differentiated,
    of_a_result_with_gradients, set_twice, twice, written_before, of_another_size, asked, broken_after, perturbed_before_its_gradient,
]  # fmt: skip


def _memory(tensor: T) -> int:
    return tensor.untyped_storage()._cdata


def outcome(program: Program) -> list[Any]:
    model, seen = Holder(), []
    same = [*model.buffers(), *model.parameters()]
    for step in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).requires_grad_()
        versions = [each._version for each in same]
        results = program(model, x)
        results = list(results) if isinstance(results, tuple) else [results]
        tensors = [item for item in results if isinstance(item, torch.Tensor)]
        for item in tensors:
            if item.requires_grad:
                item.sum().backward()
        shared = [int(_memory(a) == _memory(b)) for a in (*tensors, *same, x) for b in same]
        seen += [item.detach().clone() if isinstance(item, torch.Tensor) else item for item in results]
        seen += [each.detach().clone() for each in same]
        seen += [model.b is same[0], model.w is same[1], *shared, x.grad, *(each.grad for each in same)]
        seen += [each._version > before for each, before in zip(same, versions)]
    return [int(item) if isinstance(item, bool) else item for item in seen if item is not None]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_one_graph(program: Program, backend: str) -> None:
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(outcome(compiled), outcome(program))


def test_native() -> None:
    torch.testing.assert_close(outcome(argand.compile(averaged, fullgraph=True)), outcome(averaged))


def test_a_history_that_is_used_behind() -> None:
    """Eager refuses it: the graph of the history is another one."""
    for call in (perturbed_and_returned, argand.compile(perturbed_and_returned, backend="eager")):
        m, x = Holder(), torch.ones(3, 4, requires_grad=True)
        y = call(m, x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("program", ELSEWHERE, ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    for backend in ("eager", "aot_eager"):
        torch.testing.assert_close(outcome(argand.compile(program, backend=backend)), outcome(program))


def test_data_made_in_inference_mode() -> None:
    def program(p: T) -> T:
        with torch.inference_mode():
            value = p * 2
            try:
                p.data = value
            except RuntimeError:
                value = p
        return value

    for call in (program, argand.compile(program, backend="eager")):
        p = torch.ones(2)
        call(p)
        assert p.is_inference() and p.tolist() == [2, 2]
