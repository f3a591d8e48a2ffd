"""Functions that differentiate, step an optimizer or call custom Functions: stored, and checked like any other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import argand
from argand.backends.stored_functions import exact_sizes
from argand.graph.nodes import codec
from argand.outcomes.resolver import Late, run_graph
from outcomes.processes import SQUARE, STORED, Program, asking

STEPS = (
    """
import copy
import functools
import torch

RATE = 0.1
FACTOR = torch.tensor([2.0, 3.0])
"""
    + SQUARE
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
    def forward(self, x):
        return Square.apply(self.linear(x)) * torch.tensor([2.0, 3.0])

def times(number):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args) * number
        return wrapper
    return decorate

@times(3)
def loss_of(net, x):
    return net(x).mean()

def by_hand(net, x):
    loss = loss_of(net, x)
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= RATE * p.grad
            p.grad = None
    return loss.detach()

def with_optimizer(net, optimizer, x):
    optimizer.zero_grad()
    loss = loss_of(net, x)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    return loss, loss.detach()

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=0.9)}
WHAT = "by hand"

def main(compile):
    torch.manual_seed(0)
    net = Net()
    x = torch.randn(4, 3)
    if WHAT == "by hand":
        fn = functools.partial(compile(by_hand), net)
    elif WHAT == "custom":
        call = compile(net)
        def fn(x):
            net.zero_grad()
            call(x).sum().backward()
            return net.linear.weight.grad.clone()
    else:
        optimizer = OPTIMIZERS[WHAT](net.parameters(), lr=RATE)
        fn = functools.partial(compile(with_optimizer), net, optimizer)
    results = [fn(x) for _ in range(3)]
    if type(results[-1]) is tuple:  # the gradient of the loss was taken
        try:
            results[-1][0].backward()
        except RuntimeError as error:
            results.append(torch.tensor("second time" in str(error)))
    return results, [p.detach() for p in net.parameters()]

def check(compile):
    torch.testing.assert_close(main(compile), main(lambda fn: fn))
"""
)
KINDS = ("by hand", "custom", "adamw", "sgd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Program, str]]:
    """The program, and of which of its functions outcomes are stored."""
    with argand.config.patch({**STORED, "cache_dir": str(folder / "cache")}):
        program = Program(folder, STEPS)
        said = program.run(asking(request.param))
        assert "bypass" not in said, program.reasons
        yield program, request.param


def test_a_later_process_captures_nothing(stored: tuple[Program, str]) -> None:
    program, kind = stored
    assert set(program.run(asking(kind))) <= {"hit", "mismatch"}, program.reasons


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return grad * 2 * x", "return grad * 3 * x"),
        ("return x * x", "return x * x + 1"),
        ("torch.tensor([2.0, 3.0])\n\ndef times", "torch.tensor([2.0, 4.0])\n\ndef times"),
    ],
)
def test_an_edited_part_is_captured_anew(stored: tuple[Program, str], old: str, new: str) -> None:
    program, kind = stored
    program.edit(old, new)
    assert "hit" not in program.run(asking(kind))


def _other_backward(module: ModuleType) -> None:
    module.Square.backward = staticmethod(lambda ctx, grad: grad * 5 * ctx.saved_tensors[0])  # type: ignore[attr-defined]


def _other_decorator(module: ModuleType) -> None:
    module.loss_of = module.times(4)(module.loss_of.__wrapped__)  # type: ignore[attr-defined]


def _other_rate(module: ModuleType) -> None:
    module.RATE = 0.2  # type: ignore[attr-defined]


def _other_settings(module: ModuleType) -> None:
    module.OPTIMIZERS = {  # type: ignore[attr-defined]
        "adamw": functools.partial(torch.optim.AdamW, betas=(0.5, 0.6)), "sgd": torch.optim.SGD,
    }  # fmt: skip


def _other_optimizers(module: ModuleType) -> None:
    module.OPTIMIZERS = {"adamw": torch.optim.Adamax, "sgd": torch.optim.RMSprop}  # type: ignore[attr-defined]


# What each kind of program reads; a backward and a decorator are read in the same way by a loop with any optimizer.
READ = {
    "by hand": (_other_backward, _other_decorator, _other_rate),
    "custom": (_other_backward,),
    "adamw": (_other_decorator, _other_settings, _other_optimizers),
    "sgd": (_other_backward, _other_rate, _other_settings, _other_optimizers),
}


def test_what_changes_without_an_edit_is_seen(stored: tuple[Program, str]) -> None:
    program, kind = stored

    def other(change: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def both(module: ModuleType) -> None:
            asking(kind)(module)
            change(module)

        return both

    for change in READ[kind]:
        program.run(other(change))  # compares with eager


def test_a_graph_for_many_sizes_compiles_for_those_that_its_program_is_not_for(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(0) * x.shape[0]

    objects: list[Any] = []

    def row(obj: Any) -> int:
        objects.append(obj)
        return len(objects) - 1

    encoded = codec.encode(torch.fx.symbolic_trace(fn), row)
    call = exact_sizes(run_graph(Late(encoded, dict(enumerate(objects))), ()))
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path)}), torch.no_grad():
        for rows in (3, 1, 3, 0):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(call(x), fn(x))


DYNAMIC = """
import torch
SIZES = [4, 6]
def main(x, w):
    w.add_(x.sum(0))
    return x[::2] * w
def check(compile):
    with torch.no_grad():
        compiled = compile(main, dynamic=True)
        for n in SIZES:
            x, w = torch.randn(n, 3), [torch.ones(3), torch.ones(3)]
            torch.testing.assert_close(compiled(x, w[0]), main(x, w[1]))
            torch.testing.assert_close(*w)
"""


def test_graphs_for_many_sizes(tmp_path: Path) -> None:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(tmp_path, DYNAMIC)
        assert set(program.run()) == {"stored"}, program.reasons

        def more(module: ModuleType) -> None:
            module.SIZES.extend([5, 9, 1])

        said = program.run(more)
        assert said[0] == "hit" and "bypass" not in said, program.reasons
