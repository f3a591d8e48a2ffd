"""Programs that other processes compiled: loaded where everything that matters is equal, and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
import warm
from argand import events
from argand.backends.programs import generation
from argand.codegen.cpp import overrides
from argand.lower.registry import REGISTRY
from argand.runtime import cache, environment, toolchain
from helpers import assert_same

STORED = {"program_cache": True, "outcome_cache": False, "verify_ir": False}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path)}):
        yield tmp_path / "kernels"


@contextlib.contextmanager
def listening(*names: str) -> Iterator[list[events.Event]]:
    """Events of these names, by a listener that asks for no others."""
    seen: list[events.Event] = []
    remove = events.bus.subscribe(seen.append, names)
    try:
        yield seen
    finally:
        remove()


def outcomes(call: Callable[[], Any]) -> list[str]:
    """What the cache of programs said in a call, as in a process of its own."""
    argand.reset()
    with listening("cache") as seen:
        call()
    programs = [event for event in seen if str(event.data.get("path", "")).endswith(".program")]
    bypassed = [event for event in seen if event.data["outcome"] == "bypass"]
    return [event.data["outcome"] for event in (*programs, *bypassed)]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).sum(-1)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and torch.allclose(got, want, atol=1e-5)


def compiled(x: torch.Tensor) -> Any:
    return argand.compile(softmax)(x)


def test_a_program_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 33)
    assert outcomes(lambda: compiled(x)) == ["miss"]
    monkeypatch.setattr(generation, "build", lambda *_, **__: pytest.fail("built again"))
    assert outcomes(lambda: close(compiled(x), softmax(x))) == ["hit"]


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another torch": lambda patch: patch.setattr(torch, "__version__", "9.9.9"),
    "another processor": lambda patch: patch.setattr(
        toolchain, "cpu_isa", lambda isa=toolchain.cpu_isa(): replace(isa, vector_bytes=16, flags=())
    ),
    "another argand or processor": lambda patch: patch.setattr(environment, "_installation", lambda: "other"),
    "a setting": lambda patch: setattr(argand.config, "fusion", False),
    "a setting of a section": lambda patch: setattr(argand.config.cpp, "min_parallel_work", 17),
    "oneDNN": lambda patch: patch.setattr(torch.backends.mkldnn, "is_available", lambda: False),
    "products": lambda patch: torch.set_float32_matmul_precision("medium"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_compiled_anew(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    x = torch.randn(4, 33)
    precision = torch.get_float32_matmul_precision()
    assert outcomes(lambda: compiled(x)) == ["miss"]
    try:
        with argand.config.patch(fusion=True), argand.config.patch({"cpp.min_parallel_work": 32768}):
            CHANGES[change](monkeypatch)
            if change == "another torch":
                environment._installation.cache_clear()
            assert outcomes(lambda: close(compiled(x), softmax(x))) == ["miss"]
    finally:
        torch.set_float32_matmul_precision(precision)
        monkeypatch.undo()
        environment._installation.cache_clear()
    assert outcomes(lambda: compiled(x)) == ["hit"]


def test_threads_and_layouts_have_programs_of_their_own() -> None:
    threads = torch.get_num_threads()
    x = torch.randn(64, 33)
    assert outcomes(lambda: compiled(x)) == ["miss"]
    try:
        torch.set_num_threads(threads + 1)
        assert outcomes(lambda: compiled(x)) == ["miss"]
    finally:
        torch.set_num_threads(threads)
    for other in (x.double(), x.t().contiguous().t(), x[:, :32], x[:, ::2]):
        assert outcomes(lambda y=other: close(compiled(y), softmax(y))) == ["miss"]
        assert outcomes(lambda y=other: close(compiled(y), softmax(y))) == ["hit"]


@pytest.mark.parametrize("damage", ["text", "record", "no record", "other key"])
def test_damaged_entries_are_set_aside(own_cache: Path, damage: str) -> None:
    x = torch.randn(4, 33)
    compiled(x)
    [path] = own_cache.glob("*.program")
    record = path.with_suffix(".json")
    if damage == "text":
        path.write_bytes(path.read_bytes().replace(b"def call", b"def cell"))
    elif damage == "record":
        record.write_text("{")
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text(json.dumps({**json.loads(record.read_text()), "key": "0" * 40}))
    assert outcomes(lambda: close(compiled(x), softmax(x))) == ["corrupt", "miss"]
    assert outcomes(lambda: close(compiled(x), softmax(x))) == ["hit"]


def test_an_entry_that_does_not_load_is_compiled_anew() -> None:
    x = torch.randn(4, 33)
    with listening("cache") as seen:
        compiled(x)
    [key] = [event.data["key"] for event in seen if str(event.data.get("path", "")).endswith(".program")]
    for text in ("raise RuntimeError('no')", "call = None +", "x = 1"):
        cache.keep(key, json.dumps({"text": text, "events": []}).encode(), cache.PROGRAM)
        assert outcomes(lambda: close(compiled(x), softmax(x))) == ["hit"]
    assert outcomes(lambda: close(compiled(x), softmax(x))) == ["hit"]


def test_who_listens_to_stages_gets_them() -> None:
    x = torch.randn(4, 33)
    compiled(x)
    argand.reset()
    with listening("output_code") as seen:
        compiled(x)
    assert len(seen) == 1
    with argand.config.patch(verify_ir=True):
        assert outcomes(lambda: compiled(x)) == ["bypass"]


def test_counts_and_fallbacks_are_told_again() -> None:
    x = torch.randn(4, 33)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x[:, :4]).sin() + 1

    told = []
    for _ in range(2):
        argand.reset()
        with listening("schedule", "fallback") as seen:
            argand.compile(function)(x)
        told.append([(event.name, event.stage, event.data, event.text()) for event in seen])
    assert told[0] == told[1] and told[0]


def test_replaced_expressions_and_rules_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 33)
    compiled(x)
    monkeypatch.setattr(overrides, "mul", lambda a, b: f"({a} * {b} * 3)")
    assert outcomes(lambda: compiled(x)) == ["bypass"]
    monkeypatch.undo()
    monkeypatch.setitem(
        REGISTRY.entries, torch.ops.aten.mul.Tensor, REGISTRY.entries[torch.ops.aten.add.Tensor]
    )  # one of argand's own
    assert outcomes(lambda: compiled(x)) == ["bypass"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_training(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def step(call: Any, rows: int) -> list[torch.Tensor]:
        model.zero_grad()
        loss = F.cross_entropy(call(torch.ones(rows, 8)), torch.zeros(rows, dtype=torch.long))
        loss.backward()
        return [loss.detach(), *[p.grad.clone() for p in model.parameters()]]

    for outcome in ("miss", "hit"):
        for rows in (5, 7):
            got: list[Any] = []
            seen = outcomes(lambda n=rows, into=got: into.extend(step(argand.compile(model, dynamic=dynamic), n)))
            for one, want in zip(got, step(model, rows), strict=True):
                assert torch.allclose(one, want, atol=1e-5, rtol=1e-4)
            assert set(seen) == {"hit" if dynamic and rows == 7 else outcome}, (seen, rows)


def test_mutation_views_and_random_numbers() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(x.sum())
        noise = torch.rand_like(x)
        return x.t()[1:], y.view(-1), F.dropout(x, 0.5) + noise

    def call(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x, y = torch.arange(12.0).view(3, 4), torch.ones(2, 2)
        return [*run(x, y), y]

    with argand.config.patch(fallback_random=True):
        want = call(function)
        for _ in range(2):
            assert outcomes(lambda: assert_same(call(argand.compile(function)), want)) in (["miss"], ["hit"])


PROGRAM = """
import sys
import torch, argand
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).eval()
x = torch.randn(5, 8)
with torch.no_grad():
    assert torch.allclose(argand.compile(model)(x), model(x), atol=1e-6)
upper = [f"argand.{part}" for part in ("lower", "schedule", "codegen")]
print("compiler", "imported" if any(name in sys.modules for name in upper) else "left out")
"""


def test_a_second_process_leaves_the_compiler_out(own_cache: Path) -> None:
    environment = {
        **os.environ,
        "ARGAND_CACHE_DIR": str(own_cache.parent),
        "ARGAND_PROGRAM_CACHE": "1",
        "ARGAND_OUTCOME_CACHE": "0",
    }
    for said in ("imported", "left out"):
        done = warm.run(["-c", PROGRAM], env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"compiler {said}" in done.stdout
