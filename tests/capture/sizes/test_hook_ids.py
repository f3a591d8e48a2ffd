"""Hooks put on and removed by captured code: their ids differ from call to call, which is no reason to compile anew."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

import argand
from argand.capture.driver.explain import Findings

MODEL = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
FIRST: Any = MODEL[0]


@pytest.fixture(autouse=True)
def without_hooks() -> Iterator[None]:
    yield
    for module in MODEL.modules():
        module._forward_hooks.clear(), module._forward_pre_hooks.clear()


def keeps_outputs(x: torch.Tensor) -> Any:
    seen: list[torch.Tensor] = []
    handle = FIRST.register_forward_hook(lambda module, given, out: seen.append(out * 2))
    y = MODEL(x)
    handle.remove()
    return y + seen[0]


def removes_at_last(x: torch.Tensor) -> Any:
    handle = FIRST.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    try:
        return MODEL(x)
    finally:
        handle.remove()


def puts_on_several(x: torch.Tensor) -> Any:
    one = FIRST.register_forward_hook(lambda module, given, out: out * 2)
    two = FIRST.register_forward_hook(lambda module, given, kwargs, out: out + 1, with_kwargs=True)
    three = FIRST.register_forward_hook(lambda module, given, out: out - 3, prepend=True)
    y = MODEL(x)
    two.remove()
    y = y + MODEL(x)
    one.remove(), three.remove()
    return y, three.id - one.id, one.id - RemovableHandle.next_id


def goes_on_behind_a_break(x: torch.Tensor) -> Any:
    handle = FIRST.register_forward_hook(lambda module, given, out: out * 2)
    argand.graph_break()
    y = MODEL(x)
    handle.remove()
    return y + 1


def in_contexts(x: torch.Tensor) -> Any:
    with FIRST.register_forward_hook(lambda module, given, out: out * 2):
        with register_module_forward_hook(lambda module, given, out: out + 1):
            return MODEL(x)


def leaves_one(x: torch.Tensor) -> Any:
    handle = FIRST.register_forward_hook(lambda module, given, out: out * 2)
    y = MODEL(x)
    return y, handle


@pytest.mark.parametrize("fn", [keeps_outputs, removes_at_last, puts_on_several, in_contexts, leaves_one])
def test_ids_differ_and_nothing_is_compiled_anew(fn: Callable[..., Any]) -> None:
    findings = Findings()
    with findings.listening():
        compiled = argand.compile(fn, backend="eager", fullgraph=True)
        for i in range(4):
            results = []
            for run in (fn, compiled):
                before = RemovableHandle.next_id
                found = run(torch.ones(2, 3) * i)
                if fn is leaves_one:
                    y, handle = found
                    assert list(FIRST._forward_hooks) == [handle.id] == [before]
                    found = y, torch.equal(MODEL(torch.ones(2, 3) * i), y)
                    handle.remove()
                assert not FIRST._forward_hooks and not FIRST._forward_pre_hooks
                results.append((repr(found), RemovableHandle.next_id - before))
            assert results[0] == results[1]
    assert not findings.recompiles


def test_a_hook_that_is_taken_off_behind_a_break_is_compiled_twice() -> None:
    """Once for an id that is a constant, and then with a break where it is taken off."""
    findings = Findings()
    compiled = argand.compile(goes_on_behind_a_break, backend="eager")
    with findings.listening():
        for i in range(5):
            x = torch.ones(2, 3) * i
            assert torch.equal(compiled(x), goes_on_behind_a_break(x)) and not FIRST._forward_hooks
    assert (len(findings.recompiles), len(findings.breaks)) == (1, 2)


def by_hash(handle: Any, hooks: Any) -> Any:
    return hash(handle.id) - handle.id, {handle.id: 2}[handle.id], {(handle.id, 1): 3}[handle.id, 1]


def as_text(handle: Any, hooks: Any) -> Any:
    return f"{handle.id}", [10, 20][handle.id % 2]


def compared(handle: Any, hooks: Any) -> Any:
    return handle.id == 3, handle.id < 5, handle.id in [4, 6], handle.id in {4, 6}


def looked_up(handle: Any, hooks: Any) -> Any:
    return 3 in hooks, hooks.get(4) is None, handle.id in hooks, len(hooks)


def copied(handle: Any, hooks: Any) -> Any:
    return [3 in made(hooks) for made in (dict, set, list, frozenset, dict.fromkeys)], 4 in {**hooks}, 5 in hooks.copy()


@pytest.mark.parametrize("use", [by_hash, as_text, compared, looked_up, copied])
@pytest.mark.parametrize("planted", [(), (4,), (2, 5)], ids=repr)
def test_an_id_that_is_looked_at(use: Callable[..., Any], planted: tuple[int, ...], monkeypatch: Any) -> None:
    """The answer is that of the id of the call, also where a program has keys of its own among the hooks."""

    def fn(x: torch.Tensor) -> Any:
        handle = FIRST.register_forward_hook(lambda module, given, out: out * 2)
        told = use(handle, FIRST._forward_hooks)
        y = MODEL(x)
        handle.remove()
        return y, told, list(FIRST._forward_hooks)

    monkeypatch.setattr(RemovableHandle, "next_id", 0)
    compiled = argand.compile(fn, backend="eager")
    for count in (2, 3, 4, 5, 6, 7, 4, 3):
        results = []
        for run in (fn, compiled):
            FIRST._forward_hooks.clear()
            FIRST._forward_hooks.update({key: lambda module, given, out: out + 1 for key in planted})
            RemovableHandle.next_id = count
            results.append((repr(run(torch.ones(2, 3))), RemovableHandle.next_id))
        assert results[0] == results[1], count


def test_a_count_that_is_written(monkeypatch: Any) -> None:
    def fn(x: torch.Tensor, to: int) -> Any:
        RemovableHandle.next_id = to
        one = FIRST.register_forward_hook(lambda module, given, out: out * 2)
        RemovableHandle.next_id += 2
        two = FIRST.register_forward_hook(lambda module, given, out: out + 2)
        y = MODEL(x)
        one.remove(), two.remove()
        return y, one.id, two.id, RemovableHandle.next_id

    monkeypatch.setattr(RemovableHandle, "next_id", 0)
    compiled = argand.compile(fn, backend="eager")
    for to in (5, 6, 5, 9):
        wanted = repr(fn(torch.ones(2, 3), to))
        assert repr(compiled(torch.ones(2, 3), to)) == wanted
        assert RemovableHandle.next_id == to + 4


def _doubled(module: Any, given: Any) -> Any:
    return given[0] * 2


def _named(module: Any, given: Any, named: Any) -> Any:
    return (given[0] + named["shift"],), {}


def _lowered(module: Any, given: Any, out: Any) -> Any:
    return out - 3


def _told(module: Any, given: Any, named: Any, out: Any) -> Any:
    return out + len(given) + 10 * len(named)


class Shifted(torch.nn.Module):
    def __init__(self, *hooks: Any) -> None:
        super().__init__()
        for hook in hooks:
            behind = hook in (_lowered, _told)
            put_on: Any = self.register_forward_hook if behind else self.register_forward_pre_hook
            put_on(hook, with_kwargs=hook in (_named, _told))

    def forward(self, x: torch.Tensor, shift: float = 0.5) -> torch.Tensor:
        return x.sin() + shift


def _calls(module: Any, x: torch.Tensor) -> Any:
    return module(x, shift=2.0) * 3


def test_modules_with_the_same_hooks_are_compiled_once() -> None:
    """Hooks are called by their places; the ids under which they are kept are others in each module."""
    findings = Findings()
    with findings.listening():
        for hooks in ((_doubled, _lowered), (_named, _doubled, _told, _lowered)):
            compiled = argand.compile(_calls, backend="eager", fullgraph=True)
            for i in range(4):
                module = Shifted(*hooks)
                assert torch.equal(compiled(module, torch.ones(2) * i), _calls(module, torch.ones(2) * i))
            argand.reset()
    assert not findings.recompiles


@argand.config.patch(cache_size_limit=64)
def test_changes_of_hooks_are_seen() -> None:
    """Order, number, what they take, and which are called whatever happens."""
    compiled = argand.compile(_calls, backend="eager")
    module = Shifted(_doubled, _lowered)
    x = torch.arange(3.0)

    def flips(module: Any) -> None:
        module._forward_hooks.move_to_end(next(iter(module._forward_hooks)))

    def takes_no_names(module: Any) -> None:
        module._forward_hooks_with_kwargs.clear()
        module._forward_hooks = collections.OrderedDict.fromkeys(module._forward_hooks, _lowered)

    changes: list[Callable[[Any], object]] = [
        lambda module: None,
        lambda module: module.register_forward_hook(_told, with_kwargs=True),
        flips,
        flips,
        lambda module: module.register_forward_hook(_lowered, prepend=True),
        lambda module: module.register_forward_pre_hook(_named, with_kwargs=True, prepend=True),
        lambda module: module._forward_pre_hooks.popitem(),
        takes_no_names,
        lambda module: module.register_forward_hook(lambda module, given, out: out * 7, always_call=True),
        lambda module: module._forward_hooks.clear(),
        lambda module: module.register_full_backward_hook(lambda module, given, out: None),
    ]
    for change in changes:
        change(module)
        for _ in range(2):
            assert torch.equal(compiled(module, x), _calls(module, x)), changes.index(change)


def test_hooks_that_change_hooks() -> None:
    """One that removes itself; one that forward puts on, and is called behind it; answers that are no arguments."""

    class Changing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.register_forward_hook(_lowered)
            return x * 2

    def once() -> Any:
        module: Any = Shifted(_doubled)
        handle = module.register_forward_hook(lambda module, given, out: handle.remove() or out * 5)
        return module

    def answers_badly() -> Any:
        module: Any = Shifted()
        module.register_forward_pre_hook(lambda module, given, named: given, with_kwargs=True)
        return module

    for make in (once, Changing, lambda: Shifted(_named, _named), answers_badly):
        told = []
        for run in (lambda module, x: module(x), argand.compile(lambda module, x: module(x), backend="eager")):
            module, counts = make(), []
            for _ in range(3):
                try:
                    counts.append(repr(run(module, torch.ones(2))))
                except (RuntimeError, KeyError) as error:
                    counts.append(f"{type(error).__name__}: {error}")
                counts.append(str(len(module._forward_hooks)))
            told.append(counts)
        assert told[0] == told[1]
