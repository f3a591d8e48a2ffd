"""What autograd knows of the tensors of a program is eager's, whatever the program does to it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

import tape_programs

import argand
import sweeps
from helpers import assert_same

T = torch.Tensor


@pytest.mark.parametrize("batch", range(2))
def test_random_programs(batch: int) -> None:
    """The command of `tape_programs.py` tries more."""
    for seed in range(batch * 1000, batch * 1000 + sweeps.part(40, 8)):
        text = tape_programs.program(seed)
        how = tape_programs.difference(text, seed, "eager")
        assert how is None, f"seed {seed}: {how}\n{text}"


def test_a_difference_is_seen() -> None:
    text = "def f(x, y, p, n):\n    out = []\n    return out, x * 2, y, p\n"
    want = tape_programs.seen(tape_programs.loaded(text), 0, 1, 2)
    detached = text.replace("x * 2", "x.detach() * 2")
    assert tape_programs.differing(want, tape_programs.seen(tape_programs.loaded(detached), 0, 1, 2)) is not None


def written_after_data_is_set(x: T, y: T, log: list[Any]) -> Any:
    x.data = y.softmax(-1)
    x[0:1] = 1.0
    return x + 1


def data_of_an_input(x: T, y: T, log: list[Any]) -> Any:
    x.data = y
    y.add_(1)
    x.mul_(2)
    return x + 1


def forward_mode_twice(x: T, y: T, log: list[Any]) -> Any:
    with forward_ad.dual_level():
        return torch.func.jvp(torch.sin, (x,), (y,))[1]


def forward_mode_of_all_columns(x: T, y: T, log: list[Any]) -> Any:
    with forward_ad.dual_level():
        return torch.func.jacfwd(torch.sin)(x)


def gradient_of_no_leaf(x: T, y: T, log: list[Any]) -> Any:
    try:
        torch.func.jvp(torch.sin, (x,), (y,))[1].sum().backward(inputs=[x, y])
    except RuntimeError as error:
        log.append(str(error))


def written_over_itself(x: T, y: T, log: list[Any]) -> Any:
    x.add_(1)
    log.append("before")
    y.copy_(y.t())
    log.append("after")


def shifted_over_itself(x: T, y: T, log: list[Any]) -> Any:
    log.append("before")
    x.data = y * 2
    flat = y.view(-1)
    flat[1:].add_(flat[:-1])
    log.append("after")


def refused_write(x: T, view: T, leaf: T, log: list[Any]) -> Any:
    x.copy_(leaf)
    try:
        view.zero_()
    except RuntimeError as error:
        log.append(str(error))


def view_of_new_data(x: T, y: T, log: list[Any]) -> Any:
    x.data = y.softmax(-1)
    view = x[0]
    log.append(view._version)
    return view


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "program",
    [written_after_data_is_set, data_of_an_input, forward_mode_twice, forward_mode_of_all_columns, gradient_of_no_leaf,
     written_over_itself, shifted_over_itself, view_of_new_data],
)  # fmt: skip
def test_programs_that_differed(program: Callable[..., Any], backend: str) -> None:
    def seen(fn: Callable[..., Any]) -> Any:
        x, y, log = torch.ones(2, 2), torch.arange(4.0).view(2, 2), []
        try:
            result = repr(fn(x, y, log))
        except RuntimeError as error:
            result = str(error)
        return result, x.tolist(), y.tolist(), log, x._version > 0, y._version > 0

    fn = argand.compile(program, backend=backend)
    want = seen(program)
    assert [seen(fn), seen(fn)] == [want, want]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_hooks_that_are_forbidden(backend: str) -> None:
    """A checkpoint puts one up: what it raises is caught where the program catches it, also once they are forbidden later."""

    def program(x: T, log: list[str]) -> Any:
        try:
            return checkpoint(lambda q: (q * x).sin(), x, use_reentrant=False)
        except RuntimeError as error:
            log.append(str(error))
            return x

    fn = argand.compile(program, backend=backend)
    for forbidden in (False, True, False):
        logs: list[list[str]] = [[], []]
        for one, log in zip((program, fn), logs):
            with torch.autograd.graph.disable_saved_tensors_hooks("no") if forbidden else contextlib.nullcontext():
                one(torch.ones(2, requires_grad=True), log)
        assert logs[0] == logs[1] == ["no"] * forbidden


@pytest.mark.parametrize("dynamic", [False, True])
def test_data_set_before_the_backward(dynamic: bool) -> None:
    """The backward reads what a saved tensor's data is by then, however that lies, as eager's does."""

    def multiplied(x: T, p: T) -> T:
        return x * p

    def made_again(x: T, p: T) -> T:
        return (x * p.t()).sin() * p

    def turned_twice(x: T, p: T) -> T:
        return (x @ p.t()).sin() @ p

    def gradients(fn: Callable[[T, T], T], set_data: Callable[[T], Any], n: int) -> Any:
        x, p = (torch.linspace(-2, k, n * n).reshape(n, n).requires_grad_() for k in (1, 3))
        y = fn(x, p)
        p.data = set_data(p.data)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return type(error)
        return x.grad, p.grad

    compiled = argand.compile(multiplied, backend="native", dynamic=dynamic)
    again = argand.compile(made_again, backend="native", dynamic=dynamic)
    for change in (torch.neg, torch.Tensor.neg_):
        assert_same(gradients(again, change, 4), gradients(made_again, change, 4))
    assert_same(gradients(again, torch.neg, 200), gradients(made_again, torch.neg, 200))
    turned = argand.compile(turned_twice, backend="native", dynamic=dynamic)
    assert_same(gradients(turned, torch.neg, 4), gradients(turned_twice, torch.neg, 4))
    for set_data in (
        torch.neg,
        lambda p: p.t() * 2,
        lambda p: p[0].expand_as(p),
        T.double,
        lambda p: p[:1],
        lambda p: p[:2],
    ):
        for n in (4, 5):
            assert_same(gradients(compiled, set_data, n), gradients(multiplied, set_data, n))


def test_data_set_of_what_was_computed() -> None:
    def sines(x: T, p: T) -> T:
        q = p * x
        v = q.sin()
        q.data = x * 2
        return v

    x, (p, w) = torch.randn(2, 2), (torch.ones(2, 2, requires_grad=True) for _ in range(2))
    argand.compile(sines, backend="native")(x, p).sum().backward()
    sines(x, w).sum().backward()
    assert_same(p.grad, w.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_tangents_lie_as_what_they_are_of(backend: str) -> None:
    def tangent(x: T, p: T) -> Any:
        pushed = torch.func.jvp(torch.sin, (x,), (p,))[1]
        return pushed, pushed.as_strided((6,), (1,))

    x, p = torch.arange(6.0).view(3, 2).t(), torch.arange(6.0).view(2, 3)
    assert_same(tangent(x, p), argand.compile(tangent, backend=backend)(x, p))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_view_of_what_comes_to_require_gradients(backend: str) -> None:
    def seen(fn: Callable[..., Any]) -> Any:
        x, log = torch.ones(2, 2), []
        fn(x, x.view(2, 2), torch.nn.Parameter(torch.full((2, 2), 3.0)), log)
        return log, x.tolist()

    assert seen(argand.compile(refused_write, backend=backend)) == seen(refused_write)


@argand.disable
def doubled(x: T) -> T:
    return x * 2


def local_name(x: T, p: T, box: Any) -> T:
    v = doubled(x)
    return checkpoint(lambda q: (q * v).sin(), p, use_reentrant=False)


def item_of_a_list(x: T, p: T, box: Any) -> T:
    ITEMS[0] = x * 3
    return checkpoint(lambda q: (q * ITEMS[0]).sin(), p, use_reentrant=False)


def global_name(x: T, p: T, box: Any) -> T:
    global VALUE
    VALUE = x * 3
    return checkpoint(lambda q: (q * VALUE).sin(), p, use_reentrant=False)


def attribute(x: T, p: T, box: Any) -> T:
    box.value = x * 3
    y = checkpoint(lambda q: (q * box.value).sin(), p, use_reentrant=False)
    argand.graph_break()
    return y


def name_that_goes(x: T, p: T, box: Any) -> T:
    v = doubled(x)
    y = checkpoint(lambda q: (q * v).sin(), p, use_reentrant=False)  # noqa: F821
    del v
    return y


ITEMS, VALUE = [torch.ones(2)], torch.ones(2)


@pytest.mark.parametrize("program", [local_name, item_of_a_list, global_name, attribute, name_that_goes])
def test_a_checkpoint_that_reads_what_was_set_before(program: Callable[..., Any]) -> None:
    """What it reads is noted when it is there: it was taken for a change before the backward."""

    def seen(fn: Callable[..., Any]) -> Any:
        p = torch.ones(2, requires_grad=True)
        try:
            fn(torch.ones(2), p, types.SimpleNamespace()).sum().backward()
        except NameError as error:
            return str(error)
        return p.grad.tolist()

    fn = argand.compile(program, backend="eager")
    want = seen(program)
    assert [seen(fn), seen(fn)] == [want, want]
