"""Outcomes of functions called with gradients: forward and backward of a later process, without capture or trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import argand
import warm
from outcomes.processes import STORED, Program

MODEL = """
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.norm, self.unused = torch.nn.BatchNorm1d(8), torch.nn.Linear(2, 2)
    def forward(self, x):
        hidden = self.norm(F.gelu(self.first(x)))
        return self.second(hidden), torch.tanh(x).sum(-1) * hidden.mean(-1)

DYNAMIC, SIZES, WAYS = None, [5], ["both"]

def both(net, f, x):
    one, two = f(x)
    (one.pow(2).sum() + two.sum()).backward()

def first(net, f, x):
    f(x)[0].pow(2).sum().backward()

def second(net, f, x):
    f(x)[1].sum().backward()

def one_after_the_other(net, f, x):
    one, two = f(x)
    one.sum().backward(retain_graph=True)
    two.sum().backward()

def batched(net, f, x):
    one, _ = f(x)
    directions = torch.eye(3).repeat(x.shape[0], 1, 1).transpose(0, 1)
    found = torch.autograd.grad(one, [x, net.first.weight], directions, is_grads_batched=True)
    x.grad = found[0].sum(0)
    net.first.weight.grad = found[1].sum(0)

def again(net, f, x):
    one, two = f(x)
    [gradient] = torch.autograd.grad(one.sum() + two.sum(), [x], create_graph=True)
    gradient.pow(2).sum().backward()

def without(net, f, x):
    with torch.no_grad():
        x.grad = f(x)[0].repeat(1, 2)

def found(way, make, size):
    torch.manual_seed(0)
    net = Net()
    x = torch.randn(size, 6, requires_grad=True)
    f = make(net)
    globals()[way](net, f, x)
    return [x.grad, *[p.grad for p in net.parameters()], *net.buffers()]

def check(compile):
    for way in WAYS:
        for size in SIZES:
            got, want = found(way, lambda net: compile(net, dynamic=DYNAMIC), size), found(way, lambda net: net, size)
            for one, other in zip(got, want, strict=True):
                assert (one is None) == (other is None), way
                if other is not None:
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield tmp_path / "cache" / "kernels"


@pytest.fixture
def model(tmp_path: Path) -> Program:
    return Program(tmp_path, MODEL)


def _ways(*ways: str) -> Any:
    return lambda module: setattr(module, "WAYS", list(ways))


def test_a_later_process_trains_what_was_stored(model: Program) -> None:
    assert model.run() == ["stored"]
    assert model.run() == ["hit"]
    assert model.run() == ["hit"]


WAYS = ("first", "second", "one_after_the_other", "batched", "again")


def test_gradients_that_the_first_process_was_not_asked_for(model: Program) -> None:
    model.run()
    for way in WAYS:
        assert model.run(_ways(way)) == ["hit"], way
    assert model.run(_ways("both", *WAYS)) == ["hit"]


def test_what_was_compiled_for_some_results_is_loaded_for_them(model: Program) -> None:
    assert model.run(_ways("first")) == ["stored"]
    compiled: list[str] = []
    note = argand.events.bus.subscribe(lambda event: compiled.append(event.data["span"]), ("span_begin",))
    try:
        assert model.run(_ways("first")) == ["hit"]
        assert "compile_backward" not in compiled
        assert model.run(_ways("both")) == ["hit"]
        assert "compile_backward" in compiled
    finally:
        note()


@pytest.mark.parametrize("way", ["both", "first"])
def test_sizes_that_vary(model: Program, way: str) -> None:
    def vary(module: ModuleType) -> None:
        module.DYNAMIC, module.SIZES, module.WAYS = True, [5, 7, 4], [way]

    assert model.run(vary) == ["stored"]
    assert model.run(vary) == ["hit"]
    assert model.run(lambda module: (vary(module), _ways(*WAYS)(module))) == ["hit"]
    assert model.run(lambda module: (vary(module), _ways("without")(module)))[-1] == "stored"
    assert model.run(lambda module: (vary(module), _ways("without")(module)))[-1] == "hit"


def test_an_edited_backward_is_captured_anew(model: Program) -> None:
    model.run()
    model.edit("F.gelu(self.first(x))", "F.gelu(self.first(x)).detach() + self.first(x)")
    assert model.run() == ["stored"]


def test_a_backward_that_is_gone_is_captured_anew(model: Program, own_cache: Path) -> None:
    model.run()
    for path in own_cache.glob("*.outcome"):
        if b"reached" in path.read_bytes():
            path.unlink()
    assert model.run() == ["mismatch", "stored"]
    assert model.run() == ["hit"]


def test_a_program_of_the_backward_that_is_gone_is_compiled_anew(model: Program, own_cache: Path) -> None:
    model.run()
    compiled = [path for path in own_cache.glob("*.program")]
    assert len(compiled) == 2
    for path in compiled:
        data, record = path.read_bytes(), path.with_suffix(".json").read_bytes()
        path.unlink()
        model.run()  # the forward's: captured anew; the backward's: made of its graph
        path.write_bytes(data)
        path.with_suffix(".json").write_bytes(record)


DROPPED = """
import torch
import torch.nn.functional as F
weight = torch.ones(64, requires_grad=True)
def main(x):
    return F.dropout(x * weight, 0.5).sum()
def curved(x):
    return F.dropout(x.pow(3) * weight, 0.5).sum()
def check(compile):
    found = []
    for f in (compile(main), main):
        torch.manual_seed(3)
        weight.grad = None
        for _ in range(3):
            f(torch.ones(64)).backward()
        found.append((weight.grad, torch.rand(1)))
    assert 0 < int((found[0][0] == 0).sum()) < 64
    torch.manual_seed(4)
    x = torch.ones(64, requires_grad=True)
    [gradient] = torch.autograd.grad(compile(curved)(x), [x], create_graph=True)
    gradient.sum().backward()
    assert torch.equal(gradient == 0, x.grad == 0) and 0 < int((x.grad == 0).sum()) < 64
    print([int(n) for n in found[0][0]], x.grad.tolist(), file=open({file!r}, "a"))
"""


def test_random_numbers_are_those_of_the_first_process(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = Program(tmp_path, DROPPED.replace("{file!r}", repr(str(told))))
    assert [program.run(), program.run()] == [["stored", "stored"], ["hit", "hit"]]
    first, second = told.read_text().splitlines()
    assert first == second


def test_a_second_process_imports_no_capture_or_tracing(model: Program, own_cache: Path) -> None:
    program = (
        "import stored_program, argand, sys; stored_program.check(argand.compile)\n"
        "parts = ('capture.interp.interpreter', 'capture.output.rerun', 'autograd.tracing.joint', 'backends.native')\n"
        "print([part for part in parts if f'argand.{part}' in sys.modules])"
    )
    settings = {"ARGAND_CACHE_DIR": str(own_cache.parent), "ARGAND_PROGRAM_CACHE": "1", "ARGAND_OUTCOME_CACHE": "1"}
    path = os.pathsep.join([str(model.folder), *sys.path])
    said = []
    for _ in range(2):
        done = warm.run(["-c", program], env={**os.environ, **settings, "PYTHONPATH": path})
        assert done.returncode == 0, done.stderr[-2000:]
        said.append(done.stdout.strip())
    assert said[0] != "[]" and said[1] == "[]"


LOOKED_AT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(6, 6) for _ in range(3))
    def forward(self, x):
        h = self.first(x).tanh()
        k = self.second(h) * x
        return h, k, (h * k * x).sum(), self.third(x)

WAYS = ["plain"]

def plain(net, f, x):
    f(x)[2].backward()
    return []

def hooked(net, f, x):
    seen = []
    h, k, loss, other = f(x)
    h.register_hook(lambda grad: seen.append(grad) or grad.clamp(-0.2, 0.1))
    k.retain_grad()
    (loss + k.sum()).backward()
    return [*seen, k.grad]

def asked(net, f, x):
    h, k, loss, other = f(x)
    return torch.autograd.grad(loss, [h, x, k], retain_graph=True) + torch.autograd.grad(loss, k)

def others(net, f, x):
    seen = [None] * 6
    for place, weight in enumerate(net.parameters()):
        weight.register_hook(lambda grad, place=place: seen.__setitem__(place, grad * 2))
    f(x)[3].sum().backward()
    return seen

def found(way, make):
    torch.manual_seed(0)
    net = Net()
    x = torch.randn(5, 6, requires_grad=True)
    made = globals()[way](net, make(net), x)
    return [*made, x.grad, *[p.grad for p in net.parameters()]]

def check(compile):
    for way in WAYS:
        for one, other in zip(found(way, compile), found(way, lambda net: net), strict=True):
            assert (one is None) == (other is None), way
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
"""


def test_gradients_of_results_that_others_are_computed_from(tmp_path: Path) -> None:
    program = Program(tmp_path, LOOKED_AT)
    assert program.run() == ["stored"]
    for way in ("hooked", "asked", "others"):
        assert program.run(_ways(way)) == ["hit"], way
    compiled: list[str] = []
    note = argand.events.bus.subscribe(lambda event: compiled.append(event.data["span"]), ("span_begin",))
    try:
        (tmp_path / "cache").rename(tmp_path / "old")
        assert program.run(_ways("plain", "hooked", "asked")) == ["stored"]
        assert "compile_backward" in compiled
        compiled.clear()
        assert program.run(_ways("hooked", "asked", "plain")) == ["hit"]
        assert "compile_backward" not in compiled
    finally:
        note()
