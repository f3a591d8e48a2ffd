"""Operators of the program's own: what an earlier process traced of one is for the same operator alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import argand
from outcomes.processes import STORED, Program

TEXT = """
import own_operators
import torch

def main(x):
    ops = torch.ops.argand_own
    with torch.no_grad():
        y = x * 2
        ops.grown_(y)
        z = ops.plus(ops.composed(x), y)
    return ops.scaled(x, 3.0) + z + torch.vmap(lambda row: ops.scaled(row, 2.0))(x)

def results(fn):
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    y = fn(x)
    y.sum().backward()
    return y, y.stride(), x.grad

def check(compile):
    torch.testing.assert_close(results(compile(main)), results(main))
"""
OPERATORS = """
import torch
from own_parts import NUMBER, factor, which

SHIFT = NUMBER
BEFORE

def scaled(x, by):
    return x * by

def scaled_again(x, by):
    return x * by - 1

def fake(x, by):
    return x.new_empty(x.shape)

def transposed(x, by):
    return x.new_empty(x.shape[::-1]).t()

def in_order(x, by):
    return (x * by).t().contiguous().t()

def context(ctx, inputs, output):
    ctx.by = inputs[1] * SHIFT

def other_context(ctx, inputs, output):
    ctx.by = -inputs[1]

def backward(ctx, grad):
    return grad * ctx.by * factor() * torch.hypot(grad, grad.logsumexp(0)), None

def other_backward(ctx, grad):
    return grad * ctx.by * factor() * 2, None

def rule(info, dims, x, by):
    return SCALED(x, by) * 1.0, dims[0]

def other_rule(info, dims, x, by):
    return SCALED(x, by) * 2.0, dims[0]

def composed(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2

def composed_again(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2

ordered = which("fake", False, True)
kernel = in_order if ordered else which("implementation", scaled, scaled_again)
SCALED = torch.library.custom_op(
    "argand_own::scaled", kernel, mutates_args=(), schema="(Tensor x, float by) -> Tensor"
)
SCALED.register_fake(transposed if ordered else fake)
SCALED.register_autograd(
    which("formula", backward, other_backward), setup_context=which("context", context, other_context)
)
SCALED.register_vmap(which("rule for vmap", rule, other_rule))
COMPOSED = torch.library.triton_op(
    "argand_own::composed",
    which("what it is made of", composed, composed_again),
    mutates_args=(),
)
GROWN = torch.library.custom_op(
    "argand_own::grown_",
    which("what it writes", lambda x: (x.mul_(2), None)[1], lambda x: (x.add_(2), None)[1]),
    mutates_args=("x",),
    schema="(Tensor(a!) x) -> ()",
)
LIBRARY = torch.library.Library("argand_own", "FRAGMENT")
LIBRARY.define("plus(Tensor x, Tensor y" + which("schema", "", ", int z=1") + ") -> Tensor")
LIBRARY.impl("plus", lambda x, y, z=1: x + y * z, "CompositeExplicitAutograd")
torch.library.register_fake(
    "argand_own::plus",
    which("fake of a library", lambda x, y: torch.empty_like(x), lambda x, y: torch.empty_like(y)),
    lib=LIBRARY,
)
"""
PARTS = """
NUMBER = 1.0
HALF = 0.5

def which(name, first, other):
    return other if name == "" else first

def factor():
    return HALF + 0.5
"""
EDITS = {
    "implementation": ('""', '"implementation"'),
    "fake": ('""', '"fake"'),
    "formula": ('""', '"formula"'),
    "context": ('""', '"context"'),
    "rule for vmap": ('""', '"rule for vmap"'),
    "what it is made of": ('""', '"what it is made of"'),
    "what it writes": ('""', '"what it writes"'),
    "schema": ('""', '"schema"'),
    "fake of a library": ('""', '"fake of a library"'),
    "a number": ("NUMBER = 1.0", "NUMBER = 2.0"),
    "a number of another module's": ("HALF = 0.5", "HALF = 0.25"),
}
NO_WORDS = {
    "an object of the program's": ("SHIFT", "OBJECT.by", "class Of:\n    by = 1.0\nOBJECT = Of()"),
    "what only the dispatcher knows": ("* factor()", "* torch.ops.argand_own.hidden(grad)", """
HIDDEN = torch.library.Library("argand_own", "FRAGMENT")
HIDDEN.define("hidden(Tensor x) -> Tensor")
HIDDEN.impl("hidden", torch.ones_like)
"""),
    "what says something else each time": ("x.new_empty(x.shape)", "x.new_empty(x.shape if time.time() else 0)", "import time"),
    "a name as text": ("factor()", "getattr(own_parts, 'factor')()", "import own_parts"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        yield


@pytest.fixture
def program(tmp_path: Path) -> Program:
    write(tmp_path, "operators", OPERATORS.replace("BEFORE", ""))
    write(tmp_path, "parts", PARTS)
    return Program(tmp_path, TEXT)


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"own_{name}.py").write_text(text)


def run(program: Program) -> list[str]:
    """As `Program.run`; operators end with the process, and so do modules that nothing is inlined of."""
    try:
        with program.process() as (module, said):
            module.check(argand.compile)
            return said
    finally:
        operators = sys.modules.pop("own_operators")
        sys.modules.pop("own_parts")
        operators.LIBRARY._destroy()


def test_operators_are_stored_by_what_they_are_made_of(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(program) == ["stored"], program.reasons
    assert run(program) == ["hit"], program.reasons
    with monkeypatch.context() as patched:  # what the formula calls, and nothing that is inlined
        patched.setattr(torch.Tensor, "logsumexp", torch.Tensor.amax)
        patched.setattr(torch, "hypot", torch.add)
        assert run(program)[-1] == "stored"
    for what, (old, new) in EDITS.items():
        assert old in PARTS
        write(program.folder, "parts", PARTS.replace(old, new))
        said = run(program)
        assert said[-1] == "stored" and "hit" not in said, what
    write(program.folder, "parts", PARTS)
    assert run(program)[-1] == "hit"


@pytest.mark.parametrize("what", NO_WORDS)
def test_operators_that_have_no_words_are_stored_for_nobody(program: Program, what: str) -> None:
    old, new, before = NO_WORDS[what]
    assert old in OPERATORS
    head, tail = OPERATORS.split("BEFORE")
    write(program.folder, "operators", head + before + tail.replace(old, new))
    assert run(program) == ["bypass"], program.reasons
