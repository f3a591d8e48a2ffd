"""Where a backward begins and ends, recorded or not: first gradients of other dtypes, callbacks that the engine calls
when all is done, what leaves take, what functions of the program's give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Variable

import argand
from argand.engine.entries import Trial
from helpers import assert_same

Log = list[Any]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "is_engines_turn", lambda self: False)


def queue(callback: Callable[[], object]) -> None:
    Variable._execution_engine.queue_callback(callback)


def from_a_hook(w: torch.Tensor, log: Log) -> None:
    h = w.sin()
    h.register_hook(lambda grad: queue(lambda: log.append(w.grad.clone())))
    h.exp().sum().backward()


def from_a_callback(w: torch.Tensor, log: Log) -> None:
    h = w.sin()
    h.register_hook(lambda grad: queue(lambda: queue(lambda: log.append(w.grad.clone()))))
    h.exp().sum().backward()


def from_a_backward_within(w: torch.Tensor, log: Log) -> None:
    v = w.detach().requires_grad_()

    def hook(grad: torch.Tensor) -> None:
        u = v * 2
        u.register_hook(lambda grad: queue(lambda: log.append(("inner", w.grad is None))))
        u.sum().backward()
        log.append("behind the inner one")

    h = w.sin()
    h.register_hook(lambda grad: queue(lambda: log.append(("outer", w.grad is None))))
    h.register_hook(hook)
    h.exp().sum().backward()


def backward_in_a_callback(w: torch.Tensor, log: Log) -> None:
    h = w.sin()
    h.register_hook(lambda grad: queue(lambda: (w * 3).sum().backward()))
    w.register_hook(lambda grad: log.append(grad.clone()))
    h.exp().sum().backward()


def raising(w: torch.Tensor, log: Log) -> None:
    def callback() -> None:
        raise ValueError("of the callback")

    h = w.sin()
    h.register_hook(lambda grad: queue(callback))
    h.exp().sum().backward()


class Number(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gives: Any) -> torch.Tensor:
        ctx.gives = gives
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.gives or grad * 2, None


def function_gives_a_text(w: torch.Tensor, log: Log) -> None:
    log.append(0)
    Number.apply(w, "text" if w[0] > 2 else None).sum().backward()


def other_dtype(w: torch.Tensor, log: Log) -> None:
    log += torch.autograd.grad(w.sin().sum(), w, torch.tensor(0.1, dtype=torch.float64))
    w.sin().backward(torch.full((3,), 0.1, dtype=torch.float16))


def too_few_gradients(w: torch.Tensor, log: Log) -> None:
    torch.autograd.backward([w.sum(), w.prod()], [None])


def other_gradients_dtype(w: torch.Tensor, log: Log) -> None:
    p = w.detach().bfloat16().requires_grad_()
    if hasattr(p, "grad_dtype"):
        p.grad_dtype = torch.float32
    for _ in range(2):
        (p * w.detach()).sin().sum().backward()
    log.append(p.grad)


PROGRAMS = [
    from_a_hook, from_a_callback, from_a_backward_within, backward_in_a_callback, raising, function_gives_a_text,
    other_dtype, too_few_gradients, other_gradients_dtype,
]  # fmt: skip


def outcome(program: Callable[[torch.Tensor, Log], None], backend: str | None, whole: bool) -> list[Any]:
    seen: list[Any] = []
    run = argand.compile(program, backend=backend) if backend and whole else program
    for step in range(4):
        w, log = (torch.arange(3.0) + step).requires_grad_(), Log()
        try:
            if backend and not whole:
                with argand.compiled_autograd(backend=backend):
                    run(w, log)
            else:
                run(w, log)
        except (RuntimeError, ValueError) as error:
            log.append(type(error).__name__)
        seen.append((list(log), w.grad))
    return seen


@pytest.mark.parametrize("whole", [False, True], ids=["recorded", "captured"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_as_in_eager(program: Callable[[torch.Tensor, Log], None], whole: bool) -> None:
    assert_same(outcome(program, None, whole), outcome(program, "eager", whole), exact=True)


def test_the_engine_is_put_back() -> None:
    engine = Variable._execution_engine
    with argand.compiled_autograd(backend="eager"):
        assert Variable._execution_engine is not engine
        assert Variable._execution_engine.is_checkpoint_valid()
    assert Variable._execution_engine is engine


def test_sparse_gradient_of_a_compiled_result() -> None:
    w = torch.ones(3, requires_grad=True)
    argand.compile(lambda w: w * 2, backend="native")(w).backward(torch.arange(3.0).to_sparse())
    assert_same(torch.arange(3.0) * 2, w.grad)


def test_strides_of_one_element() -> None:
    def step(w: torch.Tensor) -> None:
        (w + 1).sum().backward()

    w, v = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    step(w)
    argand.compile(step, backend="eager")(v)
    assert w.grad.stride() == v.grad.stride()
