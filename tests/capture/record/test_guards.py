"""Guards: collected once, printed as the reference prints them, and enough to notice what changed."""

from __future__ import annotations

import copy

import torch
from torch import nn

import argand
from argand.capture.facts.sources import ConstSource, GlobalSource, LocalSource
from argand.capture.record.guards import GuardSet
from helpers import CountingBackend, assert_same


def test_listing() -> None:
    guards = GuardSet()
    guards.add(GlobalSource("torch"), "id", torch, label="FUNCTION_MATCH")
    guards.add(LocalSource("a", 0), "type", int)
    guards.add(LocalSource("a", 0), "type", int)
    guards.add(ConstSource(torch.nn), "type", type(torch.nn))
    assert len(guards) == 3
    assert str(guards).splitlines() == ["- local 'a' TYPE_MATCH", "- global 'torch' FUNCTION_MATCH"]


def test_guard_arguments_tell_apart() -> None:
    guards = GuardSet()
    guards.add(LocalSource("a", 0), "equals", 0.0)
    guards.add(LocalSource("a", 0), "equals", -0.0)
    guards.add(LocalSource("a", 0), "equals", 0)
    assert len(guards) == 3
    assert guards.build().evaluate((0,)) is not True


def test_module_changes_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(2, 3)

    def check() -> None:
        torch.manual_seed(0)
        want = model(x)
        torch.manual_seed(0)
        assert_same(want, compiled(x))

    check()
    model.eval()
    check()
    model[0].weight = nn.Parameter(torch.randn(3, 3))
    check()
    model[2] = nn.Linear(3, 5)
    check()
    handle = model[0].register_forward_hook(lambda module, args, out: out * 2)
    check()
    handle.remove()
    check()
    model[2].bias = None
    check()
    model.train()
    check()


def test_patched_forward_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    compiled = argand.compile(model, backend="eager")
    x = torch.randn(2, 3)
    assert_same(model(x), compiled(x))
    model[0].forward = lambda x: x + 1
    assert_same(model(x), compiled(x))


def test_globals_and_closures_are_guarded() -> None:
    scale = 2

    def f(x):
        return x * scale + OFFSET

    global OFFSET
    OFFSET = 1
    compiled = argand.compile(f, backend="eager")
    x = torch.ones(2)
    assert_same(f(x), compiled(x))
    OFFSET = 5
    assert_same(f(x), compiled(x))
    scale = 7
    assert_same(f(x), compiled(x))


def test_same_object_twice() -> None:
    def f(a, b, x):
        a.append(x + 1)
        b.append(x + 2)
        return len(a)

    compiled = argand.compile(f, backend="eager")
    x = torch.ones(2)
    for first, second in (([], []), (shared := [], shared), ([1], [2])):
        one, other = copy.deepcopy((first, second))
        assert f(one, other, x) == compiled(first, second, x)
        assert_same((one, other), (first, second))


def test_same_tensor_twice() -> None:
    def f(x, y):
        x.add_(1)
        return x * y, x is y

    compiled = argand.compile(f, backend="eager")
    for same in (False, True, False):
        x, y = torch.ones(2), torch.full((2,), 3.0)
        if same:
            y = x
        x2, y2 = x.clone(), y.clone()
        if same:
            y2 = x2
        assert_same(f(x, y), compiled(x2, y2))


def test_grad_mode_is_guarded() -> None:
    backend = CountingBackend()
    compiled = argand.compile(lambda x: x * 2, backend=backend)
    x = torch.ones(2, requires_grad=True)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    assert len(backend.graphs) == 2
