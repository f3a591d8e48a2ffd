"""What captured code only adds to containers from before the frame: no guard on what they hold, and eager's contents."""

from __future__ import annotations

import collections
import random
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings
from helpers import try_seeds

Program = Callable[..., object]


def appended(held: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    held["list"].append(tuple(y.shape))
    held["list"] += [y.dim()]
    held["list"].extend(("a", "b"))
    held["list"] += held["tuple"]
    return y + 1


def to_a_deque(held: Any, x: torch.Tensor) -> torch.Tensor:
    held["deque"].append(x.shape[0])
    held["deque"].extend([1, 2])
    return x.sin()


def counted(held: Any, x: torch.Tensor) -> torch.Tensor:
    held["counter"]["calls"] += 1
    held["numbers"]["calls"] += 2
    held["counter"]["calls"] += 1
    return x.sin()


def looked_up_by_key(held: Any, x: torch.Tensor) -> torch.Tensor:
    held["lists"]["log"].append(x.dim())
    held["dict"].setdefault("log", []).append(x.dim())
    held["dict"]["last"] = x.dim()
    return x * held["dict"]["last"] if "last" in held["dict"] else x


def to_a_set(held: Any, x: torch.Tensor) -> torch.Tensor:
    held["set"].add("seen")
    return x.sin() if "seen" in held["set"] else x


def asked_for_its_length(held: Any, x: torch.Tensor) -> torch.Tensor:
    held["other"].append(x.dim())
    if len(held["other"]) > 100:
        held["other"].pop(0)
    return x * len(held["other"])


def fresh() -> dict[str, Any]:
    return {
        "list": [], "tuple": (3, 4), "deque": collections.deque(maxlen=5), "counter": collections.Counter(),
        "numbers": collections.defaultdict(int), "lists": collections.defaultdict(list), "dict": {}, "set": set(),
        "other": [], "places": [0, 1, 2],
    }  # fmt: skip


def shown(held: dict[str, Any]) -> dict[str, Any]:
    """Contents in their order."""
    return {name: list(value.items()) if isinstance(value, dict) else list(value) for name, value in held.items()}


@pytest.mark.parametrize(
    ("program", "graphs"),
    [(appended, 1), (to_a_deque, 1), (counted, 3), (looked_up_by_key, 2), (to_a_set, 1), (asked_for_its_length, 3)],
)
def test_no_graph_for_each_length(program: Program, graphs: int) -> None:
    findings, compiled = Findings(), argand.compile(program, backend="eager")
    ours, theirs = fresh(), fresh()
    with findings.listening():
        for others in range(9):
            for held in (ours, theirs):  # what else they hold is of no interest
                held["list"].insert(0, others)
                held["set"].add(-others)
            x = torch.randn(3)
            torch.testing.assert_close(compiled(ours, x), program(theirs, x), rtol=0, atol=0)
            assert shown(ours) == shown(theirs)
    assert not findings.breaks
    assert len(findings.graphs) <= graphs


def test_elements_that_are_replaced_are_not_guarded() -> None:
    def program(held: list[Any], x: torch.Tensor) -> torch.Tensor:
        held[0], held[-1], held[1] = x.sin(), 0, None
        return x + len(held) + sum(item is None for item in held) + held[0]

    findings, compiled, x = Findings(), argand.compile(program, backend="eager", fullgraph=True), torch.randn(3)
    with findings.listening():
        for each in (torch.ones(1), torch.ones(2, 2), None, 0, 5, [1]):
            ours, theirs = ([each, each, each] for _ in range(2))
            torch.testing.assert_close(compiled(ours, x), program(theirs, x), rtol=0, atol=0)
            assert ours[1:] == theirs[1:] and torch.equal(ours[0], theirs[0])
    assert len(findings.graphs) == 1


def test_hooks_that_collect() -> None:
    model, kept = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)), []
    for layer in model:
        layer.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    findings, compiled = Findings(), argand.compile(model, backend="eager")
    with findings.listening():
        for count in range(1, 6):
            x = torch.randn(2, 3)
            out = compiled(x)
            assert len(kept) == 3 * count
            torch.testing.assert_close(kept[-1], out, rtol=0, atol=0)
            torch.testing.assert_close(kept[-2], kept[-3].relu(), rtol=0, atol=0)
    assert len(findings.graphs) == 1


def test_two_names_of_one_list() -> None:
    def program(a: list[object], b: list[object], x: torch.Tensor) -> torch.Tensor:
        a.append(1)
        b.append(2)
        a.append(3)
        return x.sin()

    compiled, x = argand.compile(program, backend="eager"), torch.randn(3)
    one: list[object] = []
    two: list[object] = []
    compiled(one, two, x)
    assert (one, two) == ([1, 3], [2])
    both: list[object] = []
    compiled(both, both, x)
    assert both == [1, 2, 3]
    compiled(one, two, x)
    assert (one, two) == ([1, 3, 1, 3], [2, 2])


def test_a_list_that_gets_itself() -> None:
    def program(held: list[object], x: torch.Tensor) -> torch.Tensor:
        held.append(held)
        held.extend(held)
        return x + len(held)

    ours: list[object] = []
    theirs: list[object] = []
    compiled, x = argand.compile(program, backend="eager"), torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours, x), program(theirs, x))
        assert len(ours) == len(theirs)
        assert all(item is ours for item in ours)


def test_what_was_added_before_an_error_stays() -> None:
    def program(held: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        held["list"].append(1)
        held["dict"]["a"] = 1
        return x @ torch.ones(7)

    compiled = argand.compile(program, backend="eager")
    ours, theirs = fresh(), fresh()
    for _ in range(2):
        for run, held in ((compiled, ours), (program, theirs)):
            with pytest.raises(RuntimeError):
                run(held, torch.randn(3))
        assert shown(ours) == shown(theirs)


# ---- random programs -------------------------------------------------------------------------------------------------

ADDS = (
    'held["list"].append({n})', 'held["list"] += [{n}, {n}]', 'held["list"].extend((x.dim(), {n}))',
    'held["deque"].append({n})', 'held["deque"].extend([{n}, 9])', 'held["set"].add({k!r})', 'held["set"].add({n})',
    'held["counter"][{k!r}] += {n}', 'held["numbers"][{k!r}] += 1', 'held["lists"][{k!r}].append({n})',
    'held["dict"].setdefault({k!r}, []).append({n})', 'held["dict"][{k!r}] = [{n}]', 'held["other"].append(held["list"])',
    'held["list"].append({n}.0)', 'held["numbers"][({k!r}, {n})] = x.shape[0]', 'held["numbers"][{n}] = {n}',
    'held["places"][{n}] = {k!r}', 'held["places"][-1] = {n}', 'held["places"][1 - {n}] = held["places"][-{n}]',
    'held["list"].append(held["dict"].get({k!r}))', 'held["other"] += held["list"]',
)  # fmt: skip
LOOKS = (
    'x = x + len(held["list"])', 'x = x * (2 if {k!r} in held["set"] else 3)', 'x = x + len(held["counter"])',
    'x = x + held["counter"][{k!r}]', 'x = x + len(held["dict"].get({k!r}, ()))', 'held["list"].pop()',
    'x = x + held["numbers"].get({n}.0, 5)', 'x = x + sum(1 for _ in held["numbers"])', 'held["list"].insert(0, {n})',
    'x = x + len(held["lists"][{k!r}])', 'held["dict"].pop({k!r}, None)', 'x = x + held["list"].count({n})',
    'held["other"].clear()', 'x = x + len(held["deque"])', 'held["set"].discard({k!r})', 'x = x + bool(held["list"])',
    'del held["numbers"][{k!r}]', 'held["list"][-1] = {n}', 'held["list"].extend(v for v in range({n}))',
    'x = x + len(held["places"]) + ({n} in held["places"])', 'held["list"] += held["places"]', 'del held["places"][{n}]',
    'held["places"].append({n})', 'x = x + sum(v == {n} for v in held["places"])', 'held["places"].reverse()',
    'x = x + (True in held["numbers"])', 'held["dict"].update({k}={n})', 'held["list"].sort(key=str)',
)  # fmt: skip


def random_program(number: int) -> str:
    rng = random.Random(number)
    lines = []
    for _ in range(rng.randint(2, 9)):
        line = rng.choice(ADDS if rng.random() < 0.7 else LOOKS).format(n=rng.randint(0, 3), k=rng.choice("abc"))
        kind = rng.random()
        if kind < 0.1:
            line = f"try:\n    {line}\nexcept (KeyError, IndexError) as e:\n    held['other'].append(repr(e))"
        elif kind < 0.2:
            line = f"{line}\nprint(end='')"
        elif kind < 0.3:
            line = f"if x.dim() == 1:\n    {line}\n    x = x.cos()"
        lines.append(line)
    body = textwrap.indent("\n".join(lines), "    ")
    return f"def program(held, x):\n    x = x.sin()\n{body}\n    return x\n"


def disagreement(number: int) -> str:
    text = random_program(number)
    made: dict[str, Any] = {}
    exec(text, made)
    compiled, ours, theirs = argand.compile(made["program"], backend="eager"), fresh(), fresh()
    for call in range(5):
        x = torch.full((call // 3 + 2,), 0.5)
        results: list[object] = []
        for run, held in ((compiled, ours), (made["program"], theirs)):
            try:
                results.append(run(held, x))
            except Exception as error:
                results.append(repr(error))
        if repr(results[0]) != repr(results[1]) or repr(shown(ours)) != repr(shown(theirs)):
            return f"{number}, call {call}: {results}\n{shown(ours)}\n{shown(theirs)}\n{text}"
    return ""


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    argand.reset()
    assert not disagreement(seed)


if __name__ == "__main__":  # PYTHONPATH=tests python tests/capture/output/test_additions.py FIRST LAST
    try_seeds(disagreement)


class Replay:
    def __init__(self, most: int | None) -> None:
        self.kept: collections.deque[torch.Tensor] = collections.deque([], maxlen=most)

    def push(self, x: torch.Tensor) -> None:
        self.kept.append(x)

    def __len__(self) -> int:
        return len(self.kept)


@pytest.mark.parametrize("most", [None, 9])
def test_lengths_of_deques_that_grow(most: int | None) -> None:
    """As of a replay memory: one deque after the other, with and without room for more."""

    def learn(x: torch.Tensor, memory: Replay) -> torch.Tensor:
        memory.push(x)
        return x if len(memory) < 4 else x * len(memory)

    compiled = argand.compile(learn, backend="eager")
    findings = Findings()
    with findings.listening():
        for limit in (most, 11):
            mine, eagers = Replay(limit), Replay(limit)
            for number in range(14):
                x = torch.ones(2) + number
                assert torch.equal(compiled(x, mine), learn(x, eagers)) and len(mine) == len(eagers)
    assert len(findings.recompiles) <= 5
