"""Whatever a program changes, compiled code follows eager; what it does not look at may change without a recompile.

(kind of mutation) x (guards walked, or replayed from a recording) x (same thread, or another one).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import argand  # noqa: E402
import sweeps  # noqa: E402

FACTOR = 2.0
SWITCHES = {"bias": True}


class Block(torch.nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.drop = torch.nn.Dropout(0.0)
        self.scale = 0.5
        self.listed = [1.0, 2.0]
        self.register_buffer("shift", torch.ones(3))

    def act(self, x: Any) -> Any:
        return torch.relu(x)

    def forward(self, x: Any) -> Any:
        x = self.linear(x) * self.scale + self.shift * self.gain
        if self.training:
            x = x + 1
        return self.act(self.drop(x)) * self.listed[1]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x * FACTOR if SWITCHES["bias"] else x


def plain(cls: type, name: str, value: Any) -> Callable[[], None]:
    """Sets a class attribute; what it gives undoes that."""
    missing = object()
    old = cls.__dict__.get(name, missing)
    setattr(cls, name, value)
    return lambda: delattr(cls, name) if old is missing else setattr(cls, name, old)


def global_set(name: str, value: Any) -> Callable[[], None]:
    old = globals()[name]
    globals()[name] = value
    return lambda: globals().__setitem__(name, old)


def new_linear() -> Any:
    torch.manual_seed(5)
    return torch.nn.Linear(3, 3)


def hooked(module: Any, args: Any, output: Any) -> Any:
    return output + 3


def become(module: Any) -> None:
    module.__class__ = type("Other", (Block,), {"act": lambda self, x: torch.tanh(x)})


def no_grad_fill(tensor: Any, value: float) -> None:
    with torch.no_grad():
        tensor.fill_(value)


# Each takes the model and may give a function that undoes it.
CHANGES: dict[str, Callable[[Model], Any]] = {
    "weight swapped": lambda m: setattr(m.blocks[1].linear, "weight", new_linear().weight),
    "weight set in _parameters": lambda m: m.blocks[1].linear._parameters.update(weight=new_linear().weight),
    "weight filled": lambda m: no_grad_fill(m.blocks[0].linear.weight, 0.25),
    "weight data": lambda m: setattr(m.blocks[2].linear.weight, "data", torch.ones(3, 3)),
    "weight data, other dtype": lambda m: [
        setattr(p, "data", p.data.double()) for p in (*m.parameters(), *m.buffers())
    ],
    "weight data, other strides": lambda m: setattr(m.blocks[2].linear.weight, "data", torch.rand(3, 3).t()),
    "requires_grad_": lambda m: m.blocks[0].linear.weight.requires_grad_(False),
    "bias removed": lambda m: setattr(m.blocks[0].linear, "bias", None),
    "buffer replaced": lambda m: setattr(m.blocks[0], "shift", torch.full((3,), 7.0)),
    "buffer resized": lambda m: m.blocks[0].shift.resize_(1),
    "to double": lambda m: m.to(torch.float64),
    "to strides": lambda m: m.half().float(),
    "forward hook": lambda m: m.blocks[1].linear.register_forward_hook(hooked).remove,
    "hook on a block": lambda m: m.blocks[2].register_forward_pre_hook(lambda mod, args: (args[0] - 1,)).remove,
    "submodule replaced": lambda m: setattr(m.blocks[1], "linear", new_linear()),
    "submodule of another class": lambda m: setattr(m.blocks[1], "drop", torch.nn.Sigmoid()),
    "block appended": lambda m: m.blocks.append(Block()),
    "blocks reversed": lambda m: m.blocks._modules.update(dict(zip("012", list(m.blocks)[::-1], strict=True))),
    "training off": lambda m: m.eval(),
    "training off in one": lambda m: setattr(m.blocks[1], "training", False),
    "attribute": lambda m: setattr(m.blocks[1], "scale", 0.75),
    "attribute in __dict__": lambda m: m.blocks[1].__dict__.update(scale=0.25),
    "attribute hides a class attribute": lambda m: setattr(m.blocks[1], "gain", 4.0),
    "method on the instance": lambda m: setattr(m.blocks[1], "act", torch.sigmoid),
    "forward on the instance": lambda m: setattr(m.blocks[1], "forward", lambda x: x - 1),
    "list item": lambda m: m.blocks[1].listed.__setitem__(1, 5.0),
    "__dict__ replaced": lambda m: setattr(m.blocks[1], "__dict__", {**m.blocks[1].__dict__, "scale": 3.0}),
    "__class__ assigned": lambda m: become(m.blocks[1]),
    "class attribute": lambda m: plain(Block, "gain", 3.0),
    "class method": lambda m: plain(Block, "act", lambda self, x: torch.sigmoid(x)),
    "class of the library": lambda m: plain(torch.nn.Linear, "forward", lambda self, x: x * 2),
    "global rebound": lambda m: global_set("FACTOR", 5.0),
    "item of a global dict": lambda m: (SWITCHES.update(bias=False), lambda: SWITCHES.update(bias=True))[1],
    "global hook": lambda m: torch.nn.modules.module.register_module_forward_hook(hooked).remove,
}
IRRELEVANT: dict[str, Callable[[Model], Any]] = {
    "attribute of a module": lambda m: setattr(m.blocks[1], "step", 3),
    "attribute of every module": lambda m: [setattr(x, "step", 3) for x in m.modules()],
    "attribute set and deleted": lambda m: (setattr(m.blocks[1], "step", 3), delattr(m.blocks[1], "step"))[2:],
    "attribute there and back": lambda m: (setattr(m.blocks[1], "scale", 9.0), setattr(m.blocks[1], "scale", 0.5))[2:],
    "the same value": lambda m: setattr(m.blocks[1], "scale", 0.5),
    "__dict__ copied": lambda m: setattr(m.blocks[1], "__dict__", dict(m.blocks[1].__dict__)),
    "class attribute": lambda m: plain(Block, "counter", 7),
    "class attribute of a base": lambda m: plain(torch.nn.Module, "counter", 7),
    "class attribute set again": lambda m: plain(Block, "gain", 1.0),
    "global": lambda m: globals().__setitem__("UNRELATED", object()),
    "item of a global dict": lambda m: (SWITCHES.update(other=1), lambda: SWITCHES.pop("other"))[1],
    "weight filled": lambda m: no_grad_fill(m.blocks[0].linear.weight, 0.25),
    "weight of the same kind": lambda m: setattr(m.blocks[1].linear, "weight", new_linear().weight),
    "hook added and removed": lambda m: m.blocks[1].register_forward_hook(hooked).remove(),
}


def run_in(thread: bool, change: Callable[[], Any]) -> Any:
    if not thread:
        return change()
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(change()))
    worker.start()
    worker.join()
    assert results, "the change raised"
    return results[0]


class Compiled:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.compiles = 0
        model = self.model  # in a function: a compiled module is a module, for which global hooks run as well
        self.fn = argand.compile(lambda x: model(x), backend=self.backend)

    def backend(self, gm: Any, inputs: Any) -> Any:
        self.compiles += 1
        return gm.forward  # not the module: global module hooks are not for the graph

    def follows(self) -> None:
        dtype = next(self.model.parameters()).dtype
        x = torch.linspace(-1, 1, 6, dtype=dtype).view(2, 3)
        try:
            expected = self.model(x)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                self.fn(x)
            return
        found = self.fn(x)
        assert torch.equal(found, expected) and found.requires_grad == expected.requires_grad


@pytest.mark.parametrize(("thread", "calls", "name"), sweeps.combinations([False, True], [1, 6], CHANGES))
def test_compiled_code_follows_every_change(name: str, calls: int, thread: bool) -> None:
    compiled = Compiled()
    for _ in range(calls):
        compiled.follows()
    undo = run_in(thread, lambda: CHANGES[name](compiled.model))
    try:
        for _ in range(4):
            compiled.follows()
    finally:
        if callable(undo) and not isinstance(undo, torch.nn.Module):
            undo()
    for _ in range(4):
        compiled.follows()


@pytest.mark.parametrize(("thread", "calls", "name"), sweeps.combinations([False, True], [1, 6], IRRELEVANT))
def test_what_is_not_looked_at_may_change(name: str, calls: int, thread: bool) -> None:
    compiled = Compiled()
    for _ in range(calls):
        compiled.follows()
    assert compiled.compiles == 1
    undo = run_in(thread, lambda: IRRELEVANT[name](compiled.model))
    try:
        for _ in range(4):
            compiled.follows()
    finally:
        if callable(undo):
            undo()
            compiled.follows()
    assert compiled.compiles == 1
