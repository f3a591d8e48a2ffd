"""Settings of torch that a function writes: also where a call finds the value that the first one found written already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
SETTINGS: dict[str, tuple[Callable[[Any], object], Callable[[], object], tuple[object, object]]] = {
    "grad mode": (torch.set_grad_enabled, torch.is_grad_enabled, (False, True)),
    "default dtype": (torch.set_default_dtype, torch.get_default_dtype, (torch.float64, torch.float32)),
    "autocast": (
        lambda v: torch.set_autocast_enabled("cpu", v),
        lambda: torch.is_autocast_enabled("cpu"),
        (True, False),
    ),
    "autocast's cache": (torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, (False, True)),
    "determinism": (torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, (True, False)),
    "products": (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, ("high", "highest")),
    "attention": (torch.backends.cuda.enable_math_sdp, torch.backends.cuda.math_sdp_enabled, (False, True)),
    "cudnn": (lambda v: setattr(cudnn, "benchmark", v), lambda: cudnn.benchmark, (True, False)),
    "tf32": (lambda v: setattr(matmul, "allow_tf32", v), lambda: matmul.allow_tf32, (True, False)),
    "anomalies": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled, (True, False)),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("first", [0, 1])
def test_each_call_writes(name: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)  # torch's test helpers forbid it
    write, read, values = SETTINGS[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        write(values[0])
        return x + 1

    compiled = argand.compile(f, backend="eager")
    try:
        for found in (values[first], values[1 - first], values[first]):
            write(found)
            compiled(torch.zeros(2))
            assert read() == values[0]
    finally:
        write(values[1])
