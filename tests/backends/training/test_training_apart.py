"""Results of one graph that are differentiated apart: works where it works in eager, with eager's gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef

import argand
from argand.autograd.tracing.tape import read_tape

PROGRAMS: dict[str, Callable[..., Any]] = {
    "nothing in common": lambda x, w: (x.sin(), w.exp()),
    "an input in common": lambda x, w: (x.sin(), x.exp() * w),
    "a saved value in common": lambda x, w: ((h := x.sin()).exp(), h.cos() * w),
    "nothing saved": lambda x, w: (x + 1, w * 2),
    "a value in common of which nothing is saved": lambda x, w: ((h := x + 1).exp(), h * w),
    "an infinity behind a result": lambda x, w: (x * 2, (x - x).log() * w),
    "three in a chain": lambda x, w: (x.sin(), x.sin().exp() * (q := w.exp()), q.cos()),
    "views of a result": lambda x, w: ((h := x.exp())[0], h[1:], w.sum(0)),
    "parts of one": lambda x, w: ((h := x * w).unbind(0)[0].exp(), h.softmax(-1), F.layer_norm(h, (4,)).sum(0)),
    "constants": lambda x, w: (
        h := (x * w).index_select(1, torch.tensor([0, 2, 2])),
        h.exp() * torch.tensor([1.0, 2, 3]),
    ),
    "products": lambda x, w: ((x @ w.t()).relu(), (x @ w.t()).mean()),
}
ORDERS = [[(0,), (1,)], [(1,), (0,)], [(0, 1), (0,)], [(0,), (0,)], [(2,), (0, 1)], [(1,), (2,), (0,)]]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 4, generator=generator), torch.randn(4, 3, generator=generator)
    return x.requires_grad_(), w.t().requires_grad_()


def outcomes(fn: Callable[..., Any], order: list[tuple[int, ...]], retain: bool) -> list[Any]:
    """Gradients (or that the graph was freed) of one backward after the other."""
    x, w = inputs()
    results, found = fn(x, w), []
    for chosen in order:
        x.grad = w.grad = None
        try:
            sum((results[i % len(results)] * (i + 1)).sum() for i in chosen).backward(retain_graph=retain)
            found.append((x.grad, w.grad))
        except RuntimeError as error:
            found.append("freed" if "second time" in str(error) else str(error))
    return found


def check(fn: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for retain in (False, True):
        for order in ORDERS:
            got, want = outcomes(compiled, order, retain), outcomes(fn, order, retain)
            for one, two in zip(got, want):
                if isinstance(one, str) or isinstance(two, str):
                    assert one == two, (order, retain)
                    continue
                for mine, eagers in zip(one, two):
                    assert (mine is None) == (eagers is None), (order, retain)
                    if mine is not None:
                        torch.testing.assert_close(mine, eagers, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_backwards_of_single_results_are_eagers(name: str) -> None:
    check(PROGRAMS[name], argand.compile(PROGRAMS[name], backend="aot_eager", fullgraph=True))


@pytest.mark.parametrize("name", ["an infinity behind a result", "constants", "parts of one", "products"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_backwards_of_single_results_are_eagers_natively(name: str, dynamic: bool | None) -> None:
    check(PROGRAMS[name], argand.compile(PROGRAMS[name], backend="native", fullgraph=True, dynamic=dynamic))


def test_a_write_between_two_backwards_is_noticed() -> None:
    c = torch.ones(3, 4)
    results = argand.compile(lambda x, w: (x * c, w * c), backend="aot_eager")(*inputs())
    results[0].sum().backward()
    c.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results[1].sum().backward()


def held_after(fn: Callable[..., Any], use: Callable[..., Any]) -> int:
    """How many of three saved tensors live on after `use` of the results, which are still held."""
    saved = [torch.randn(3, 4) for _ in range(3)]
    seen = [StorageWeakRef(one.untyped_storage()) for one in saved]
    x, w = inputs()
    results = fn(x, w, *saved)
    del saved
    use(*results)
    gc.collect()
    alive = sum(not one.expired() for one in seen)
    del results
    return alive


@pytest.mark.parametrize(
    "use",
    [
        lambda a, b, c: (a.sum() + b.sum() + c.sum()).backward(),
        lambda a, b, c: c.sum().backward(),  # which all others lead to
        lambda a, b, c: (a.sum().backward(), b.sum().backward()),
    ],
)
def test_nothing_is_held_after_what_eager_holds_nothing_after(use: Callable[..., Any]) -> None:
    def fn(x: Any, w: Any, p: Any, q: Any, r: Any) -> Any:
        a, b = x * p, w * q
        return a, b, a * b * r

    compiled = argand.compile(fn, backend="aot_eager")
    assert held_after(fn, use) >= held_after(compiled, use)
    assert held_after(compiled, lambda a, b, c: c.sum().backward()) == 0


def test_what_the_others_read_is_held_and_no_more() -> None:
    compiled = argand.compile(lambda x, w, p, q, r: (x * p, w * q * r), backend="aot_eager")
    assert held_after(compiled, lambda a, b: a.sum().backward()) <= 2
    assert held_after(compiled, lambda a, b: b.sum().backward()) == 1


def test_many_combinations_of_results_are_compiled_up_to_a_limit() -> None:
    compiled = argand.compile(lambda x, w: tuple([x.sin() * i for i in range(1, 12)]), backend="aot_eager")
    x, w = inputs()
    for k in range(11):
        results = compiled(x, w)
        (got,) = torch.autograd.grad(results[k].sum(), x)
        torch.testing.assert_close(got, x.cos() * (k + 1))


def test_the_tape_knows_what_is_saved() -> None:
    x, w, b = (torch.randn(3, 3).requires_grad_() for _ in range(3))
    h = torch.addmm(b, x.detach(), w.detach())  # saves nothing
    tape = read_tape([h, h + 1, h.exp(), h.exp() * w], [(5, b), (7, w)])
    assert tape.conflicts == (0, 0, 0b100, 0b1000)
    assert tape.reached == ({5}, {5}, {5}, {5, 7})
