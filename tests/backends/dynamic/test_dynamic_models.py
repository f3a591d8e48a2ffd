"""Models of the demo, captured and compiled once for every batch and length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench.models import MODELS
from tests.helpers import collected

import argand

SHAPES = [(2, 24), (3, 17), (5, 40), (2, 65)]


def _inputs(example: dict[str, torch.Tensor], batch: int, length: int) -> dict[str, torch.Tensor]:
    made: dict[str, Any] = {}
    for name, value in example.items():
        if value.dim() == 4:
            made[name] = torch.randn(batch, *value.shape[1:])
        elif "ids" in name:
            made[name] = torch.randint(5, 1000, (batch, length))
        else:
            made[name] = torch.ones(batch, length, dtype=torch.long)
            made[name][-1, length // 2 :] = 0
    return made


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_model(name: str) -> None:
    model, example = MODELS[name](short=True)
    with torch.no_grad(), collected("aot_inference_graph", "fallback") as seen:
        compiled = argand.compile(model, dynamic=True)
        for batch, length in SHAPES:
            inputs = _inputs(example, batch, length)
            want, got = model(**inputs)[0], compiled(**inputs)[0]
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
    assert sum(event.name == "aot_inference_graph" for event in seen) == 1
    assert not [event for event in seen if event.data.get("scope") in ("sizes", "graph")]


def test_a_convolution_of_images_of_any_size() -> None:
    """Each stage halves the image: strides of channels_last results were taken for another function of the size."""
    model, _ = MODELS["ConvNeXt"](short=True)
    with torch.no_grad():
        compiled = argand.compile(model, dynamic=True)
        for size in (64, 96, 128, 80):
            image = torch.randn(2, 3, size, size)
            want, got = model(image)[0], compiled(image)[0]
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
