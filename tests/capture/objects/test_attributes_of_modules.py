"""Attributes of module objects whose class has descriptors: they are asked before the module's own names."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import argand


class Doubling(types.ModuleType):
    """A module with a property."""

    kept: int

    @property
    def number(self) -> int:
        return self.kept

    @number.setter
    def number(self, value: int) -> None:
        self.kept = value * 2


class Counting:
    """A descriptor that notes how often it is asked."""

    def __get__(self, owner: Any, cls: object = None) -> Any:
        return self if owner is None else owner.__dict__.setdefault("_count", 0)

    def __set__(self, owner: Any, value: int) -> None:
        owner.__dict__["_count"] = value + 1


class Counted(types.ModuleType):
    """A module with a descriptor of Python code."""

    count: Any = Counting()


@pytest.mark.parametrize("shadowed", [False, True])
def test_written_and_read_through_descriptors(shadowed: bool) -> None:
    def run(compiled: bool) -> tuple[object, ...]:
        doubling, counted = Doubling("doubling"), Counted("counted")
        if shadowed:
            doubling.__dict__["number"], counted.__dict__["count"] = 70, 80

        def f(x: torch.Tensor) -> tuple[object, ...]:
            doubling.number = 3
            counted.count = 4
            first = doubling.number, counted.count
            counted.count += 1
            counted.plain = 5
            return x + 1, first, counted.count, counted.plain

        out = (argand.compile(f, backend="eager") if compiled else f)(torch.zeros(2))
        return *out[1:], *[{k: v for k, v in vars(m).items() if not k.startswith("__")} for m in (doubling, counted)]

    assert run(True) == run(False)


def test_settings_of_torch_backends_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)  # torch's test helpers forbid it

    def f(x: torch.Tensor, wanted: bool) -> tuple[object, ...]:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = wanted
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.use_deterministic_algorithms(wanted)
            inside = torch.backends.cudnn.benchmark, torch.backends.cuda.flash_sdp_enabled()
        return x + 1, before, inside, torch.backends.cuda.flash_sdp_enabled()

    try:
        compiled = argand.compile(f, backend="eager", fullgraph=True)
        for wanted in (True, False, True):
            torch.backends.cudnn.benchmark = not wanted
            torch.use_deterministic_algorithms(not wanted)
            assert compiled(torch.zeros(2), wanted)[1:] == (not wanted, (wanted, False), True)
            assert torch.backends.cudnn.benchmark is wanted
            assert torch.are_deterministic_algorithms_enabled() is wanted
    finally:
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(False)
