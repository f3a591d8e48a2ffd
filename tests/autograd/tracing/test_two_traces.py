"""Programs for many sizes from two traces are those from four and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand.autograd.tracing.dynamic import Assignment, Tracing
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.expr import Sym


def described(program: AtenProgram) -> list[str]:
    """A program in words: its operations with the sizes of what they make, its results, and when it holds."""
    lines = []
    for node in program.graph.nodes:
        val = node.meta.get("val")
        made = [(tuple(v.shape), v.stride()) if hasattr(v, "stride") else v for v in _items(val)]
        lines.append(f"{node.name} = {node.target} {node.args} {node.kwargs} {made}")
    lines += [str(output) for output in program.outputs]
    return [*lines, *sorted(str(condition) for condition in program.conditions)]


def _items(val: Any) -> tuple[Any, ...]:
    return tuple(val) if isinstance(val, (tuple, list)) else (val,)


@pytest.fixture
def two_ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Programs are made from four traces or more too, and must be the same; how many traces each of them took."""
    traced, prepared = Tracing._trace, Tracing._prepared
    counts: list[int] = []
    different: list[tuple[list[str], list[str]]] = []

    def trace(self: Tracing, assignments: list[Assignment], pinned: frozenset[Sym]) -> AtenProgram:
        counts.append(0)
        program = traced(self, assignments, pinned)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tracing, "_from_two", lambda *_: None)
            patch.setattr(Tracing, "_prepared", prepared)
            other = type(self)(self.gm, self.examples, self.prepare)
            ways = described(program), described(traced(other, assignments, pinned))
        if ways[0] != ways[1]:  # an error here would be a reason to compile for exact sizes
            different.append(ways)
        return program

    def prepare(self: Tracing, assignment: Assignment) -> Any:
        counts[-1] += 1
        return prepared(self, assignment)

    monkeypatch.setattr(Tracing, "_trace", trace)
    monkeypatch.setattr(Tracing, "_prepared", prepare)
    yield counts
    assert not different


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        made = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.1 if self.training else 0.0)
        weights = F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.1, self.training)
        made = (made + weights @ v).transpose(1, 2).reshape(batch, length, 16)
        return x + F.relu(self.out(made)) + F.hardswish(made) + F.leaky_relu(made)


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "sums": lambda x: (x + 1).sum(1) / x.shape[0] * (2 * x.shape[1] + 3),
    "joined": lambda x: torch.cat([x, x[1:] * 2]).flatten(0, 1),
    "matrix of both": lambda x: torch.einsum("ijk,lmk->il", x, x).reshape(-1),
    "padded": lambda x: F.pad(x, (1, 2, 3, 0)).transpose(0, 1).contiguous()[:, :-1],
    "written": lambda x: torch.zeros(x.shape[1] + 5, x.shape[0]).index_fill_(0, torch.tensor([0]), 1.0) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_the_same(name: str, two_ways: list[int]) -> None:
    program, x = PROGRAMS[name], torch.randn(4, 6, 16)
    compiled = argand.compile(program, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x), program(x))
    torch.testing.assert_close(compiled(x[:3, :5]), program(x[:3, :5]))
    assert two_ways


@pytest.mark.parametrize("train", [False, True])
def test_attention_is_traced_twice(train: bool, two_ways: list[int]) -> None:
    model = Attention().train(train).requires_grad_(train)
    compiled = argand.compile(model, backend="aot_eager", dynamic=True)
    loss = compiled(torch.randn(3, 7, 16)).square().mean()
    if train:
        loss.backward()
    assert two_ways == [2]


@pytest.mark.parametrize("train", [False, True])
def test_sizes_that_are_divided_take_more_traces(train: bool, two_ways: list[int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)).train(train).requires_grad_(train)
    compiled = argand.compile(model, backend="aot_eager", dynamic=True)
    compiled(torch.randn(2, 3, 17, 19))
    assert min(two_ways) >= 4


def test_other_operations_at_other_sizes_are_not_looked_for_twice(two_ways: list[int]) -> None:
    """A large matrix times few columns becomes another product: some sizes are on that side, and some are not."""

    weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)

    def attended(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ (x @ weight)

    compiled = argand.compile(attended, fullgraph=True, dynamic=True)
    for batch, length in ((2, 3), (5, 40), (3, 200)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(attended(x), compiled(x))
    assert two_ways == [2, 4]  # those above differ, and there are none below; those with common divisors agree


@pytest.mark.parametrize("size", [18, 16])
def test_padding_to_a_multiple_holds_for_sizes_with_the_remainder_of_the_call(two_ways: list[int], size: int) -> None:
    """Where a multiple needs no padding, there is no operation that pads."""
    projection = nn.Linear(3, 3)

    def windows(x: torch.Tensor) -> torch.Tensor:
        batch, height, width = x.shape
        y = F.pad(x, (0, 0, 0, (4 - height % 4) % 4)).roll(-2, 1)
        y = projection(y.view(batch, y.shape[1] // 4, 4, width).transpose(1, 2))
        return y.flatten(1, 2)[:, :height] + x

    told: list[int] = []
    compiled = argand.compile(windows, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, height in ((2, size), (3, size + 4), (5, size + 16), (4, size + 1), (2, size + 3)):
            x = torch.randn(batch, height, 3)
            torch.testing.assert_close(compiled(x), windows(x))
            told.append(len(two_ways))
    assert 0 < sum(two_ways) <= 16 and told[2] == told[0]
