"""Differences from eager that models of the zoo, and what is like them, once showed. Each was found, then fixed."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import CountingBackend, check


def test_iterator_over_a_list_that_grew_keeps_its_place() -> None:
    """qwen2_5_vl: the list comes from before the break, was filled after it, and the second break is inside its loop."""

    def fn(t: torch.Tensor, k: list[int]) -> list[torch.Tensor]:
        groups: list[int] = []
        argand.graph_break()
        for key, _ in itertools.groupby(k):
            groups.append(key)
        found = []
        for m in groups:
            found.append(t + m)
            if m:
                argand.graph_break()
        return found

    check(fn, torch.ones(2), [0, 0, 1, 1, 0])


def test_reversed_iterator_over_a_list_that_grew_keeps_its_place() -> None:
    def fn(t: torch.Tensor, k: list[int]) -> list[torch.Tensor]:
        k.extend(range(3))
        found = []
        for i in reversed(k):
            found.append(t + i)
            if i == 1:
                argand.graph_break()
        return found

    check(fn, torch.ones(2), [])


def test_iterator_over_a_deque_that_grew() -> None:
    def fn(t: torch.Tensor, d: Any) -> Any:
        d.extend(range(3))
        it = iter(d)
        next(it)
        u = t + 1
        argand.graph_break()
        return u, list(it)

    check(fn, torch.ones(2), collections.deque())


def test_defaults_of_functions_of_one_code_are_guarded() -> None:
    """LBFGS with `lambda i=i: loss(i)`: the closure of each call is of the same code, with another default."""
    given = torch.arange(10.0)

    def step(closure: Any) -> Any:
        return closure(), closure() + 1

    compiled = argand.compile(step, backend="eager")
    for i in (0, 1, 2, 5):
        assert compiled(lambda i=i: given[i]) == (given[i], given[i] + 1)
        assert compiled(lambda *, i=i: given[i]) == (given[i], given[i] + 1)
    for scale in (1.0, None, 2.0, True):
        assert compiled(lambda s=scale: given[1] if s is None else given[1] * s)[0] == (scale or 1.0)


# ---------------------------------------------------------------------- encoders over padded batches

LENGTHS = {
    "at the end": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]],
    "none": [[1, 1, 1, 1, 1]] * 3,
    "one all of padding": [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]],
    "everywhere": [[1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]],
}


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder(norm=nn.LayerNorm(8, bias=True))

    def forward(self, x: torch.Tensor, src_key_padding_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x * 2, src_key_padding_mask=src_key_padding_mask).sum(-1)


class Doubling(nn.TransformerEncoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(*args, **kwargs) * 2


def padding(name: str, kind: type = bool) -> torch.Tensor:
    mask = torch.tensor(LENGTHS[name]) == 0
    return mask if kind is bool else torch.zeros(mask.shape).masked_fill(mask, float("-inf"))


def compare(model: nn.Module, mask: torch.Tensor, compiled: Any) -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    got, eager = compiled(x, src_key_padding_mask=mask), model(x, src_key_padding_mask=mask)
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [bool, float])
@pytest.mark.parametrize("make", [encoder, Model])
def test_one_graph_for_all_masks(make: Any, kind: type) -> None:
    model, backend = make(), CountingBackend()
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for name in LENGTHS:
            compare(model, padding(name, kind), compiled)
    assert len(backend.graphs) == 1


def test_where_gradients_are_recorded() -> None:
    model = encoder()
    compiled = argand.compile(model, backend="eager", fullgraph=True)
    compare(model, padding("at the end"), compiled)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    compare(model, padding("at the end"), compiled)


def test_compiled() -> None:
    model = encoder()
    with torch.no_grad():
        compare(model, padding("at the end"), argand.compile(model))


def test_layers_of_the_program_and_masks_that_are_not_checked() -> None:
    layer = Doubling(8, 2, 16, batch_first=True)
    models = [nn.TransformerEncoder(layer, 2).eval(), encoder(mask_check=False), encoder(enable_nested_tensor=False)]
    with torch.no_grad():
        for model in models:
            compare(model, padding("at the end"), argand.compile(model, backend="eager"))
