"""Layers that do the same are lowered and scheduled once: the code is that of a program whose every layer was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.backends.programs.random_layers import WIDTH, RandomLayers
from tests.helpers import assert_same
from torch import nn
from torch.nn import functional as F

import argand
import sweeps
from argand import events
from argand.autograd.tracing.dynamic import trace_dynamic
from argand.autograd.tracing.trace import trace_inference
from argand.backends.programs import generation
from argand.backends.programs.like_layers import cutting, layers
from argand.backends.programs.like_layers.layers import Unlike
from argand.config import config
from argand.graph.nodes.program import AtenProgram
from argand.ir.kernel import Schedule
from argand.passes.pipeline import run_passes


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended = (torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Convolution(nn.Module):
    """A layer of a residual network."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.convolution(x)))


class Gated(nn.Module):
    """A layer that reads the same mask as the others, and what no loop computes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("scale", torch.rand(width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        order = torch.kthvalue(self.linear(x), 2, -1, keepdim=True)[0]
        return torch.where(mask, self.linear(x) * self.scale, x.sin()) + order * 0.01


class Stack(nn.Module):
    """Layers, between what comes before and behind them.

    Arguments:
        every: return what each layer gives, too.
        tied: the last product reads what the first one read.
    """

    def __init__(self, make: Callable[[], nn.Module], count: int, *, every: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(count))
        self.every, self.tied = every, tied
        self.table = nn.Parameter(torch.rand(16, 16)) if tied else None

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        x = x.cos() * 2 if self.table is None else x @ self.table
        states = []
        for layer in self.layers:
            x = layer(x, *more)
            states.append(x)
        x = x.tanh() if self.table is None else x @ self.table.t()
        return (x, *states) if self.every else x


class Odd(Stack):
    """One layer in the middle is another one."""

    def __init__(self, count: int) -> None:
        super().__init__(Block, count)
        self.layers[count // 2].down = nn.Linear(32, 16, bias=False)


class Dense(nn.Module):
    """Each layer reads what all before it gave."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x
        for layer in self.layers:
            total = total + torch.relu(layer(total)) * x
        return total


class Returning(Stack):
    """What one of the layers gave, or the first one got (0), is added in the end."""

    def __init__(self, which: int) -> None:
        super().__init__(Block, 9)
        self.which = which

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        states = [torch.softmax(x, -1)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return torch.relu(states[-1]) + states[self.which]


class Averages(nn.Module):
    """A layer that writes to a buffer of its own."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x)) - self.mean
        self.mean.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        return x + y


def _tokens() -> torch.Tensor:
    return torch.rand(2, 16, 16)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]], bool]] = {
    "transformer": (lambda: Stack(Block, 9), lambda: (_tokens(),), True),
    "as few as are shared": (lambda: Stack(Block, layers.LEAST + 1), lambda: (_tokens(),), True),
    "convolutions": (lambda: Stack(Convolution, 10).eval(), lambda: (torch.rand(1, 4, 6, 6),), True),
    "every state": (lambda: Stack(Block, 9, every=True), lambda: (_tokens(),), True),
    "tied weights": (lambda: Stack(Block, 9, tied=True), lambda: (_tokens(),), True),
    "shared mask": (lambda: Stack(Gated, 9), lambda: (torch.rand(3, 8), torch.rand(3, 8) > 0.4), True),
    "all read the input": (lambda: Dense(12), lambda: (_tokens(),), True),
    "one layer is odd": (lambda: Odd(9), lambda: (_tokens(),), False),
    "two runs of layers": (
        lambda: nn.Sequential(Stack(Block, 9), Stack(lambda: nn.Linear(16, 16), 8)),
        lambda: (_tokens(),),
        True,
    ),
    "the second layer is read in the end": (lambda: Returning(2), lambda: (_tokens(),), False),
    "what the first layer gets is read in the end": (lambda: Returning(0), lambda: (_tokens(),), False),
    "few layers": (lambda: Stack(Block, 4), lambda: (_tokens(),), False),
}


VARYING = ("every state", "shared mask", "one layer is odd", "transformer", "convolutions")
"""Those of which programs for many sizes are made, too."""
SEEDS = (0, 1, 6, 8, 15, 22, 24)


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    with config.patch(verify_ir=True):
        yield


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each program whose layers were cut out whether they were put back."""
    told: list[bool] = []
    whole = generation.with_all_layers

    def spy(schedule: Schedule, cut: cutting.Cut) -> Schedule:
        try:
            result = whole(schedule, cut)
        except Unlike:
            told.append(False)
            raise
        told.append(True)
        return result

    monkeypatch.setattr(generation, "with_all_layers", spy)
    return told


def _text(model: nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: bool = False) -> str:
    """The host module of a model without gradients; `dynamic`: for many sizes."""
    programs: list[AtenProgram] = []

    def keep(gm: torch.fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        if dynamic:
            programs.append(trace_dynamic(gm, given, run_passes))
            assert programs[-1].scalars
        else:
            programs.append(trace_inference(gm, given, bases=True))
        return gm.forward

    with torch.no_grad():
        argand.compile(model, backend=keep, fullgraph=True, dynamic=dynamic)(*inputs)
    argand.reset()
    return "\n".join(generation.host_text(generation.schedule_program(program)) for program in programs)


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in MODELS), *((name, True) for name in VARYING[: sweeps.part(5)])]
)
def test_the_code_is_the_same(name: str, dynamic: bool, shared: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs, expected = MODELS[name]
    torch.manual_seed(0)
    model, given = make(), inputs()
    text = _text(model, given, dynamic)
    assert any(shared) == expected
    monkeypatch.setattr(generation, "cut_layers", lambda program: None)
    assert text == _text(model, given, dynamic)


@pytest.mark.parametrize(
    ("seed", "dynamic"), [*((seed, False) for seed in SEEDS), *((seed, True) for seed in SEEDS[:3])]
)
def test_the_code_of_random_layers_is_the_same(seed: int, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RandomLayers(seed)
    given = torch.rand(2, 3, WIDTH), torch.rand(2, 3, WIDTH) > 0.3
    text = _text(model, given, dynamic)
    monkeypatch.setattr(generation, "cut_layers", lambda program: None)
    assert text == _text(model, given, dynamic)


@pytest.mark.parametrize("name", ["every state", "convolutions", "shared mask", "all read the input"])
def test_results_are_eagers(name: str, shared: list[bool]) -> None:
    make, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    model, given = make(), inputs()
    compiled = argand.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            given = tuple(part.clone() for part in given)
            assert_same(model(*given), compiled(*given))
    assert shared == [True]


def test_layers_that_write_to_buffers_of_their_own(shared: list[bool]) -> None:
    torch.manual_seed(0)
    model, twin = Stack(Averages, 9), Stack(Averages, 9)
    twin.load_state_dict(model.state_dict())
    compiled = argand.compile(twin, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            x = _tokens()
            assert_same(model(x), compiled(x))
    assert shared == [True]
    for want, got in zip(model.buffers(), twin.buffers()):
        assert_same(want, got)


def test_what_layers_fall_back_to_is_told(shared: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs, _ = MODELS["shared mask"]
    model, given = make(), inputs()
    told = _fallbacks(model, given)
    assert shared == [True]
    monkeypatch.setattr(generation, "cut_layers", lambda program: None)
    assert sorted(told) == sorted(_fallbacks(model, given)) != []


def _fallbacks(model: nn.Module, given: tuple[torch.Tensor, ...]) -> list[str]:
    """The nodes that have no lowering, as events tell."""
    nodes: list[str] = []
    stop = events.bus.subscribe(lambda event: nodes.append(event.data["node"]), ("fallback",))
    try:
        _text(model, given)
    finally:
        stop()
    return nodes


@pytest.mark.parametrize("every", [False, True])
def test_training_steps(every: bool, shared: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Stack(Block, 9, every=every), _tokens()
    texts: list[str] = []
    host_text = generation.host_text
    monkeypatch.setattr(generation, "host_text", lambda *args: texts.append(host_text(*args)) or texts[-1])

    def step(call: Callable[..., Any]) -> list[torch.Tensor | None]:
        model.zero_grad()
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        sum((result.sin() * (number + 1)).mean() for number, result in enumerate(results)).backward()
        return [*(result.detach() for result in results), *(p.grad for p in model.parameters())]

    with config.patch({"cpp.own_products": False}):
        assert_same(step(model), step(argand.compile(model, fullgraph=True)))
        assert shared == [True, True] and len(texts) == 2
        with_layers = list(texts)
        texts.clear()
        argand.reset()
        monkeypatch.setattr(generation, "cut_layers", lambda program: None)
        step(argand.compile(model, fullgraph=True))
    assert texts == with_layers
