"""Functions marked with `assume_constant_result`: called once, on real values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import argand
from argand import errors
from argand.backends.registry import lookup_backend

CALLS: list[Any] = []


@argand.assume_constant_result
def largest(x: torch.Tensor) -> float:
    CALLS.append(x)
    return float(x.abs().max())


@argand.assume_constant_result
def positive(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(x)
    return (x > 0).float()


@argand.assume_constant_result
def table() -> dict[str, Any]:
    CALLS.append(None)
    return {"scale": torch.arange(3.0), "parts": [torch.ones(3), 2]}


@argand.assume_constant_result
def of_all(xs: list[torch.Tensor], *, weight: torch.Tensor) -> float:
    CALLS.append(xs)
    return float(sum(xs).sum() * weight.sum())


@argand.assume_constant_result
def refuses(x: torch.Tensor) -> float:
    raise ValueError(f"no {x.tolist()}")


def number(x: torch.Tensor) -> torch.Tensor:
    return x * largest(x)


def tensor(x: torch.Tensor) -> torch.Tensor:
    return x + positive(x)


def intermediate(x: torch.Tensor) -> torch.Tensor:
    y = (x + 1).sin()
    return y * positive(y) + largest(y - x)


def containers(x: torch.Tensor) -> torch.Tensor:
    found = table()
    return x * found["scale"] + found["parts"][0] * found["parts"][1] + of_all([x, x * 2], weight=x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [number, tensor, intermediate, containers])
def test_function_is_called_once_on_real_values(program: Any, backend: str) -> None:
    first = torch.tensor([1.0, 2.0, -3.0])
    expected = program(first)
    graphs: list[Any] = []

    def counting(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return lookup_backend(backend)(gm, inputs)

    compiled = argand.compile(program, backend=counting, fullgraph=True)
    CALLS.clear()
    for _ in range(4):
        torch.testing.assert_close(compiled(first), expected)
    before = len(CALLS)
    compiled(torch.tensor([-1.0, 2.0, 30.0]))  # the constants stay, though they are others' now
    assert len(CALLS) == before <= 2
    assert len(graphs) == 1


def test_constant_of_the_first_call_stays() -> None:
    compiled = argand.compile(tensor, backend="eager", fullgraph=True)
    assert compiled(torch.tensor([1.0, -1.0])).tolist() == [2, -1]
    assert compiled(torch.tensor([-5.0, 5.0])).tolist() == [-4, 5]


def test_what_it_raises_is_the_programs() -> None:
    compiled = argand.compile(lambda x: x + refuses(x), backend="eager", fullgraph=True)
    with pytest.raises(ValueError, match=r"no \[1.0\]"):
        compiled(torch.ones(1))


def test_unknown_values_break_the_graph() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * largest(x)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x * largest(torch.rand(3))

    assert argand.compile(written, backend="eager")(torch.ones(2)).tolist() == [4, 4]
    for program in (written, drawn):
        with pytest.raises(errors.Unsupported, match="of unknown value"):
            argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
