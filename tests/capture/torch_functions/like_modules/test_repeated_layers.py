"""Modules that are like an earlier one are repeated: graphs and guards are those of interpreting each, whatever differs."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import argand
import sweeps
from argand.capture.driver.explain import Explanation, Findings
from argand.capture.record.guard_runs import Pattern
from argand.capture.record.guards import GuardSet
from argand.capture.torch_functions.like_modules import calls, repeating
from helpers import assert_same

X = torch.randn(3, 4)


class Layer(nn.Module):
    """A layer of several modules, of which tests change one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.act = nn.functional.gelu
        self.scale = 2.0
        self.count = 3
        self.register_buffer("steps", torch.tensor(1))

    def forward(self, x, mask=None):
        y = self.drop(self.act(self.linear(self.norm(x)))) * self.scale
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return x + y * self.count


class Stack(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = Layer, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList([make() for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def frozen(stack: Any) -> None:
    stack.layers[4].requires_grad_(False)


def other_constant(stack: Any) -> None:
    stack.layers[4].scale = 3.0


def other_count(stack: Any) -> None:
    stack.layers[4].count = 4


def other_function(stack: Any) -> None:
    stack.layers[4].act = torch.relu


def other_epsilon(stack: Any) -> None:
    stack.layers[4].norm.eps = 0.5


def other_dtype_inside(stack: Any) -> None:
    stack.layers[4].linear = nn.Linear(4, 4, bias=False)


def training_one(stack: Any) -> None:
    stack.layers[4].train()


def hooked(stack: Any) -> None:
    stack.layers[4].linear.register_forward_hook(lambda module, args, result: result * 5)


def hooked_before(stack: Any) -> None:
    stack.layers[5].register_forward_pre_hook(lambda module, args: (args[0] * 5,))


def own_forward(stack: Any) -> None:
    layer = stack.layers[4]
    layer.forward = lambda x: x * 7


def tied(stack: Any) -> None:
    stack.layers[4].linear.weight = stack.layers[0].linear.weight


def tied_inside(stack: Any) -> None:
    stack.layers[4].norm.weight = stack.layers[4].norm.bias


def shared_part(stack: Any) -> None:
    for layer in stack.layers[1:]:
        layer.norm = stack.layers[0].norm


def one_twice(stack: Any) -> None:
    stack.layers[5] = stack.layers[1]


def marked_parameter(stack: Any) -> None:
    stack.layers[4].linear.weight.note = "odd"


CHANGES = (
    frozen, other_constant, other_count, other_function, other_epsilon, other_dtype_inside, training_one, hooked,
    hooked_before, own_forward, tied, tied_inside, shared_part, one_twice, marked_parameter,
)  # fmt: skip


class Masked(Stack):
    """Arguments that differ: none, a mask that two share, another one by name."""

    def forward(self, x):
        mask = torch.ones(4, 4, dtype=torch.bool).triu()[1]
        other = x.sum(0) > 0
        a, b, c, d, e, f = self.layers
        return f(e(d(c(b(a(x), mask), mask), mask), mask), mask=other)


class Written(Stack):
    """Captured code changes a layer before it is called."""

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            layer.scale = number + 0.5
            x = layer(x)
        return x


class WrittenBelow(Stack):
    def forward(self, x):
        for layer in self.layers[:4]:
            x = layer(x)
        self.layers[4].norm.eps = 0.25
        return self.layers[5](self.layers[4](x))


class Hooking(Stack):
    """Captured code hooks a layer, and takes the hook away."""

    def forward(self, x):
        for layer in self.layers[:4]:
            x = layer(x)
        handle = self.layers[4].linear.register_forward_hook(lambda module, args, result: result + 3)
        x = self.layers[4](x)
        handle.remove()
        return self.layers[5](x)


class WithoutGradients(Stack):
    def forward(self, x):
        for layer in self.layers[:4]:
            x = layer(x)
        with torch.no_grad():
            y = self.layers[4](x)
        return self.layers[5](x) + y


class Asking(Stack):
    """Something of a layer is looked at before it is called."""

    def forward(self, x):
        for layer in self.layers:
            if layer.norm.eps < 1 and layer.linear.weight.shape[0] == 4:
                x = layer(x)
        return x


class AskingSome(Stack):
    """The same, for some of them: what was known of the others is not known of these."""

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number < 3:
                x = x.to(layer.norm.weight.dtype) * layer.count
            x = layer(x)
        y = x
        for number, layer in enumerate(self.layers):
            y = layer.norm(y).to(layer.norm.weight.dtype) + layer.norm.eps
        return y


class Counter(nn.Module):
    """Side effects: each call is done."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.shape[0])
        return self.linear(x)


class Appending(nn.Module):
    """A side effect on a list that all layers share."""

    log: list[int] = []  # noqa: RUF012

    def forward(self, x):
        self.log.append(len(self.log))
        return x + len(self.log)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total += x.detach().sum(0)
        return nn.functional.relu(self.norm(x), inplace=True) + self.total


@functools.lru_cache(maxsize=None)
def slope(number: int) -> float:
    return number / 4


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = 3

    def forward(self, x):
        return x * slope(self.number) + slope(x.shape[0])


class Reading(nn.Module):
    """The value of a buffer decides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(2))

    def forward(self, x):
        return x + 1 if self.steps.item() > 1 else x - 1


class Comparing(nn.Module):
    """Which objects they are decides."""

    first: nn.Module | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.weight = nn.Parameter(torch.ones(4))
        Comparing.first = Comparing.first or self.inner

    def forward(self, x):
        return x * self.weight if self.inner is Comparing.first else self.inner(x) * 2


class Drawn(nn.Module):
    """Random numbers, views of a parameter, and a list that it gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.Identity()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        a, b = self.weight.chunk(2)
        return [nn.functional.dropout(x @ a, 0.5, True), x @ b.t()]


class Pairs(Stack):
    def __init__(self) -> None:
        super().__init__(Drawn)

    def forward(self, x):
        for layer in self.layers:
            parts = layer(x)
            parts.append(x)
            x = parts[0] + parts[1] * len(parts)
        return x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x):
        x = self.parts(x)
        return torch.cat([head(x) for head in self.heads], -1)


class Heads(nn.Module):
    """Views by sizes: heads taken apart, a half of the rows, a product of sizes, and a tensor made of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        rows = x.shape[0]
        q = self.query(x).view(rows, 2, -1).transpose(0, 1)
        v = self.value(x).reshape(*x.shape[:-1], 2, 2).permute(1, 0, 2)
        weights = (q @ q.transpose(-1, -2)) / (rows + 1) + torch.zeros(rows, rows)
        y = (weights.softmax(-1) @ v).transpose(0, 1).contiguous().view(x.size())
        half = y[: rows // 2] * 2
        return torch.cat([half, y[half.size(0) :]]) + x.numel() + x.sum()


class Told(Stack):
    """Layers that get numbers and sizes, and give sizes back."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, rows, size, options):
            if rows > 2 and options["scale"] > 1.0:
                x = self.linear(x).view(size) / rows
            return x.t(), x.size(), rows * 2

    def __init__(self) -> None:
        super().__init__(Told.Layer, 5)

    def forward(self, x):
        rows = x.size(0)
        for layer in self.layers:
            y, size, twice = layer(x, rows, x.shape, {"scale": rows / 2})
            y, size, twice = layer(y.t().clone(), rows, tuple(size), options={"scale": rows / 2})
            x = y.t().expand(size) + twice
        return x


class Turned(nn.Module):
    """Writes to what has sizes that vary, and turns it in place; a result whose sizes depend on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        y.t_()
        y.t_().mul_(2)
        first = y[0]
        y[1:].add_(1)
        return y.clamp_(min=0) + first + y.sum(0)


class TurnedAfterwards(Stack):
    """The program turns the result of a layer in place, which looked otherwise when the layer made it."""

    def forward(self, x):
        x = x[:, :, None].expand(-1, -1, 2).contiguous()
        for layer in self.layers:
            x = layer(x)
            rows = x.shape[0]
            x.transpose_(0, 1)
            x = x.transpose(0, 1).squeeze(-1).contiguous() * rows
        return x


class Growing(Stack):
    """Each layer gets another size, which no layer before got."""

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([layer(x), x[:1]])
        return x


PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    **{change.__name__: functools.partial(Stack) for change in CHANGES},
    "plain": Stack, "masked": Masked, "written": Written, "written below": WrittenBelow, "hooking": Hooking,
    "without gradients": WithoutGradients, "asking": Asking, "asking some": AskingSome, "counter": lambda: Stack(Counter),
    "appending": lambda: Stack(Appending), "in place": lambda: Stack(InPlace), "cached": lambda: Stack(Cached),
    "reading": lambda: Stack(Reading), "comparing": lambda: Stack(Comparing), "pairs": Pairs,
    "nested": lambda: Stack(Nested), "convolutions": lambda: Stack(lambda: nn.Sequential(nn.Conv1d(3, 3, 1))),
    "heads": lambda: Stack(Heads), "told": Told, "turned": lambda: Stack(Turned), "growing": Growing,
    "turned afterwards": lambda: TurnedAfterwards(lambda: nn.Sequential(nn.Tanh(), nn.Unflatten(-1, (2, 1)))),
}  # fmt: skip
REPEATED = {
    "plain": 3,
    "masked": 2,
    "asking": 2,
    "pairs": 2,
    "nested": 2,
    "convolutions": 2,
    "one_twice": 2,
    "heads": 3,
}
"""Programs of which layers must be repeated, and how many. (The first is called with an input of
the graph, and the second is the first of its kind.)"""


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    Comparing.first = None
    module = PROGRAMS[name]().eval()
    for change in CHANGES:
        if change.__name__ == name:
            change(module)
    return module


def inputs(name: str, varying: bool) -> list[torch.Tensor]:
    """Of three calls."""
    rows = [torch.cat([X, X + 1, X * 2])[:count] for count in ((3, 5, 8) if varying else (3, 3, 3))]
    return [x[:, None].expand(-1, 3, 4).contiguous() for x in rows] if name == "convolutions" else rows


def captured(
    module: nn.Module, given: list[torch.Tensor], monkeypatch: Any, repeating_on: bool, dynamic: bool | None
) -> tuple[list[Any], str]:
    """Results of calls, and what capture says of graphs, sizes, guards and breaks."""
    findings, results, graphs = Findings(), [], []

    def noting(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        for node in gm.graph.nodes:
            graphs.append(f"{node.format_node()} {node.meta.get('sizes')} {node.meta.get('expr')}")
        return gm.forward

    Appending.log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(findings.listening())
        if not repeating_on:
            patch = stack.enter_context(monkeypatch.context())
            patch.setattr(calls, "_may_be_repeated", lambda state: False)
        compiled = argand.compile(module, backend=noting, dynamic=dynamic)
        for x in given:
            torch.manual_seed(1)
            results.append(compiled(x))
    argand.reset()
    explanation = Explanation.of(findings)
    explanation.compile_times = {}
    return results, "\n".join([explanation.details(), *graphs])


def shape(tree: Any) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The labels of a tree's guards, and the kinds of checks of each node."""
    nodes = [(tree.source(node), [kind for _, kind in tree.checks_of(node)]) for node in range(tree.num_nodes)]
    return sorted(tree.describe()), sorted(nodes)


@pytest.fixture(autouse=True)
def trees(monkeypatch: Any) -> None:
    """Each guard tree is compared with one that is built guard by guard."""
    build = GuardSet.build

    def compared(guards: GuardSet, collected: Any = (), log: Any = None) -> Any:
        tree = build(guards, collected, log)
        positions, runs, guards.positions, guards.runs = guards.positions, guards.runs, {}, {}
        assert shape(build(guards, collected)) == shape(tree)
        assert guards.positions == positions
        guards.runs = runs
        return tree

    monkeypatch.setattr(GuardSet, "build", compared)


@pytest.fixture
def repeats(monkeypatch: Any) -> Iterator[list[str]]:
    """Classes of the modules that were repeated."""
    seen: list[str] = []
    values = repeating.values

    def noting(state: Any, template: Any, module: Any, sources: Any) -> Any:
        found = values(state, template, module, sources)
        if found is not None:
            seen.append(type(module).__name__)
        return found

    monkeypatch.setattr(repeating, "values", noting)
    yield seen


def plainly(text: str) -> str:
    """Without addresses."""
    return re.sub(r"0x[0-9a-f]{6,}|\b\d{12,}\b", "...", text)


@pytest.mark.parametrize(("name", "sizes"), sweeps.chessboard(PROGRAMS, ["same", "all vary", "varying"]))
def test_as_when_each_is_interpreted(name: str, sizes: str, monkeypatch: Any, repeats: list[str]) -> None:
    module, given = build(name), inputs(name, sizes != "same")
    copied = copy.deepcopy if name != "comparing" else lambda module: module
    eager, one, other = copied(module), copied(module), copied(module)
    wanted = []
    Appending.log = []
    for x in given:
        torch.manual_seed(1)
        wanted.append(eager(x))
    dynamic = True if sizes == "all vary" else None
    results, text = captured(one, given, monkeypatch, True, dynamic)
    repeated = [cls for cls in repeats if cls in ("Layer", "Drawn", "Nested", "Sequential", "Heads")]
    apart, plain_text = captured(other, given, monkeypatch, False, dynamic)
    assert_same(wanted, results)
    assert_same(wanted, apart)
    assert_same(eager.state_dict(), one.state_dict())
    assert plainly(text) == plainly(plain_text)
    assert len(repeated) >= REPEATED.get(name, 0) * (2 if sizes == "varying" else 1)


@pytest.mark.parametrize("change", CHANGES)
def test_layers_that_change_afterwards_are_captured_anew(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    module = Stack().eval()
    compiled = argand.compile(module, backend="eager")
    compiled(X)
    change(module)
    torch.manual_seed(1)
    want = copy.deepcopy(module)(X)
    torch.manual_seed(1)
    assert_same(want, compiled(X))
    want.sum().backward()


def test_gradients_reach_every_layer() -> None:
    torch.manual_seed(0)
    module = Stack()
    eager = copy.deepcopy(module)
    for model, call in ((module, argand.compile(module, backend="aot_eager")), (eager, eager)):
        model.eval()
        call(X).sum().backward()
    assert_same([p.grad for p in eager.parameters()], [p.grad for p in module.parameters()])
    assert all(p.grad is not None for p in module.parameters())


def test_layers_that_break_are_not_repeated(repeats: list[str]) -> None:
    class Broken(Layer):
        def forward(self, x, mask=None):
            x = super().forward(x)
            print(end="")  # nothing, at each layer
            return x

    torch.manual_seed(0)
    module = Stack(Broken).eval()
    assert_same(module(X), argand.compile(module, backend="eager")(X))
    assert "Layer" not in repeats and "Broken" not in repeats


def test_guards_of_repeated_layers_are_repeated(monkeypatch: Any) -> None:
    repeated: list[bool] = []
    repeat = Pattern.repeat

    def noting(*args: Any) -> bool:
        repeated.append(repeat(*args))
        return repeated[-1]

    monkeypatch.setattr(Pattern, "repeat", noting)
    module = build("plain")
    assert_same(module(X), argand.compile(module, backend="eager")(X))
    assert repeated == [True] * 2  # of six: one gets the input, one is interpreted, one noted, one built guard by guard
