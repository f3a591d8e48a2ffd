"""Values of programs that are described though no module has them under a name: numbers that vary, numpy's numbers, named tuples,
methods of classes that a function makes, torch's namespaces of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

import argand
from outcomes.processes import STORED, Program, asking

TEXT = """
import numpy
import torch
from collections import namedtuple

Both = namedtuple("Both", "first second", defaults=(2,))

class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
    def forward(self, x):
        self.count += 1
        return x * 2

def counting(compile):
    net = Counting()
    call = compile(net)
    return [call(torch.ones(3)) for _ in range(4)], net.count

def named(compile):
    def f(x):
        both = Both(x * 2)
        return both, both.first * both.second
    return [*compile(f)(torch.ones(3))]

def of_class(compile):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x
        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 2
    x = torch.ones(3, requires_grad=True)
    compile(lambda x: Own.apply(x) + 1)(x).sum().backward()
    return x.grad

def namespaces(compile):
    ops = torch.ops.aten
    return compile(lambda x: ops.mul(x, 2) + ops.sin(x))(torch.ones(3))

def grown(compile):
    call = compile(lambda x, n: (x * 2, min(n * 2 + 1, 50)))
    return [call(torch.ones(3), n) for n in (3, 5, 30)]

def arrays(compile):
    return compile(lambda x: torch.from_numpy(numpy.sin(x.numpy()) + numpy.mean(x.numpy())))(torch.ones(3))

SCALE, SHIFT = numpy.int64(3), numpy.float32(0.5)

def scalars(compile):
    return compile(lambda x: (x * SCALE + SHIFT).expand(SCALE - 1, 3))(torch.ones(3))

WHAT = "counting"

def check(compile):
    torch.testing.assert_close(globals()[WHAT](compile), globals()[WHAT](lambda fn: fn))
"""
KINDS = ("counting", "named", "of_class", "namespaces", "grown", "arrays", "scalars")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    with argand.config.patch({**STORED, "cache_dir": str(folder / "cache")}):
        yield Program(folder, TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_process_captures_nothing(program: Program, kind: str) -> None:
    said = program.run(asking(kind))
    assert "stored" in said and "bypass" not in said, program.reasons
    said = program.run(asking(kind))
    assert "hit" in said and set(said) <= {"hit", "mismatch"}, program.reasons


def _other_default(module: Any) -> None:
    module.Both.__new__.__defaults__ = (5,)


def _other_method(module: Any) -> None:
    module.Both.__new__ = lambda cls, first: tuple.__new__(cls, (first, first))


def _other_name(module: Any) -> None:
    module.Both.__new__.__globals__["_tuple_new"] = lambda cls, items: tuple.__new__(cls, (items[0], 7))


@pytest.mark.parametrize("change", [_other_default, _other_method, _other_name])
def test_another_named_tuple_is_captured_anew(program: Program, change: Callable[[Any], None]) -> None:
    program.run(asking("named"))

    def both(module: ModuleType) -> None:
        asking("named")(module)
        change(module)

    assert "hit" not in program.run(both)


@pytest.mark.parametrize(
    ("name", "value"), [("SCALE", numpy.int64(4)), ("SCALE", numpy.int32(3)), ("SHIFT", numpy.float32(-0.0))]
)
def test_another_number_of_numpy_is_captured_anew(program: Program, name: str, value: object) -> None:
    program.run(asking("scalars"))

    def scalars(module: ModuleType) -> None:
        asking("scalars")(module)
        setattr(module, name, value)

    assert "hit" not in program.run(scalars)


@pytest.mark.parametrize(
    ("kind", "old", "new"), [("of_class", "saved_tensors[0] * 2", "saved_tensors[0] * 3"), ("grown", "min(n", "max(n")]
)
def test_an_edited_method_is_captured_anew(program: Program, kind: str, old: str, new: str) -> None:
    program.run(asking(kind))
    program.edit(old, new)
    assert "hit" not in program.run(asking(kind))
