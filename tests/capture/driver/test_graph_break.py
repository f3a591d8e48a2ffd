"""Graph breaks: where they may be, that they leave the program's meaning alone, and what they say."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import argand
from argand import errors
from argand.capture.driver.explain import Findings
from helpers import CountingBackend, assert_same, check, collected

X = torch.arange(1.0, 4.0)


def in_call_arguments(x):
    return torch.add(x * 2, (argand.graph_break(), x * 3)[1])


def keyword_call(x):
    def native(a, *, b, c=1):
        print(end="")
        return a + b + c

    return native(x, b=x * 2, c=3) * native(x, b=1)


def branch(x):
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    return y * 2


def boolean_value(x):
    return (x.sum() > 100 or x.sum() > 1) and x * 2


def in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        argand.graph_break()
        y = y * 3
    return y, torch.is_grad_enabled()


def in_try(x):
    log = []
    try:
        y = x + 1
        argand.graph_break()
        if y.sum() > -1e9:
            raise KeyError("a")
    except KeyError as error:
        log.append(str(error))
        y = y * 2
    finally:
        log.append("finally")
    return y, log


def breaking_call_raises(x):
    try:
        y = x * 2
        y = y + int("no number" if x.sum() > 0 else "1")
    except ValueError:
        y = x * 5
    return y


def with_closure(x):
    total = x * 2

    def add(y):
        return y + total

    argand.graph_break()
    total = total + 1
    return add(x)


def live_containers(x):
    items = [x + 1]
    table = {"items": items}
    argand.graph_break()
    items.append(x)
    return table, len(table["items"])


def nested_inline(x):
    def inner(y):
        y = y + 1
        argand.graph_break()
        return y * 2

    return inner(x) + inner(x * 2)


FUNCTIONS = [
    in_call_arguments, keyword_call, branch, boolean_value, in_no_grad, in_try, breaking_call_raises, with_closure,
    live_containers, nested_inline,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_meaning(fn) -> None:
    check(fn, X)
    check(fn, -X)


def test_break_in_a_loop_compiles_each_part_once() -> None:
    def f(x):
        for _ in range(50):
            x = x.sin() + 1
            if x.sum() > 1e9:
                break
        return x * 2

    backend = CountingBackend()
    assert_same(f(X), argand.compile(f, backend=backend)(X))
    assert len(backend.graphs) <= 4  # up to the first break, from the next item to the break, behind the loop


def test_long_loop_does_not_nest_calls() -> None:
    def f(x):
        while x.sum() < 5000:
            x = x + 1
        return x

    backend = CountingBackend()
    assert_same(f(X[:1]), argand.compile(f, backend=backend)(X[:1]))
    assert len(backend.graphs) <= 3  # the bytecode of a while loop tests once more before its body from 3.12 on


def test_reason_names_the_line() -> None:
    with collected("graph_breaks") as events:
        argand.compile(branch, backend="eager")(X)
    (event,) = events
    reason = event.data["reason"]
    assert reason.where[-1].text == "if x.sum() > 0:" and reason.hints
    with pytest.raises(errors.Unsupported, match="data-dependent") as info:
        argand.compile(branch, backend="eager", fullgraph=True)(X)
    assert "if x.sum() > 0:" in str(info.value)


def test_disabled_function() -> None:
    @argand.disable
    def eager_only(x):
        return x + 1 if x.sum() > 0 else x

    check(lambda x: eager_only(x * 2) * 3, X)


def test_wrong_shapes_raise_as_eager() -> None:
    for fullgraph in (False, True):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            argand.compile(lambda x: x @ x, backend="eager", fullgraph=fullgraph)(torch.ones(2, 3))


def test_unsupported_input_runs_eagerly() -> None:
    x = torch.eye(3).to_sparse()
    got = argand.compile(lambda x: x @ torch.ones(3, 3), backend="eager")(x)
    assert torch.equal(got, torch.ones(3, 3))


def test_state_of_torch_is_restored_when_capture_fails() -> None:
    def f(x):
        with torch.no_grad():
            raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        argand.compile(f, backend="eager")(X)
    assert torch.is_grad_enabled() and not torch._C._is_any_autocast_enabled()


_KINDS: dict[type, str] = {}


class _Pair:
    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b


def _flatten(pair: _Pair) -> tuple[list[torch.Tensor], None]:
    _KINDS.setdefault(type(pair), "pair")
    return [pair.a, pair.b], None


pytree.register_pytree_node(_Pair, _flatten, lambda tensors, _: _Pair(*tensors))


def test_a_table_that_is_full_after_the_first_look() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        known = len(_KINDS) < 9
        product = torch.vmap(lambda pair: pair.a * pair.b)(_Pair(x, x + 1))
        return product * 2 if known else product

    _KINDS.clear()
    findings, x = Findings(), torch.randn(3, 4)
    with findings.listening():
        torch.testing.assert_close(argand.compile(fn, backend="eager")(x), x * (x + 1) * 2)
    assert not findings.breaks
