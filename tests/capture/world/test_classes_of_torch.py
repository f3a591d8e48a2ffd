"""torch.Tensor and nn.Module get, change and lose attributes between calls."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argand
from helpers import collected

FACTOR = [3.0]
MISSING: Any = object()
LINEAR = nn.Linear(2, 2)
SEQUENCE = nn.Sequential(LINEAR, nn.ReLU())

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda x: x * getattr(x, "scale", 9.0),
    "hasattr": lambda x: x * (2 if hasattr(x, "scale") else 3),
    "method": lambda x: x.sin(),
    "method or not": lambda x: x.made() if hasattr(x, "made") else x.cos(),
    "operators": lambda x: abs(-x) - x + 1,
    "module": lambda x: SEQUENCE(x),
    "parameters": lambda x: x * sum(p.sum() for p in LINEAR.parameters()),
}
_GETATTR = nn.Module.__getattr__
CHANGES: dict[str, tuple[type, str, tuple[Any, ...]]] = {
    "value": (torch.Tensor, "scale", (3.0, 4.0)),
    "property": (torch.Tensor, "scale", (property(lambda self: FACTOR[0]), property(lambda self: self.shape[0] + 5))),
    "replaced": (torch.Tensor, "sin", (lambda self: self * FACTOR[0], lambda self: self + FACTOR[0])),
    "method": (torch.Tensor, "made", (lambda self: self * FACTOR[0], lambda self: self + FACTOR[0], 5.0)),
    "operator": (torch.Tensor, "__sub__", (lambda self, other: self.mul(7), lambda self, other: self.mul(8))),
    "getattr": (nn.Module, "__getattr__", (lambda self, name: torch.full((2, 2), FACTOR[0]) if name == "weight" else _GETATTR(self, name),)),
    "call": (nn.Module, "__call__", (lambda self, x: x * FACTOR[0],)),
}  # fmt: skip


def outcome(fn: Callable[[Any], Any]) -> Any:
    try:
        return repr(fn(torch.ones(2)))
    except (AttributeError, TypeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_change(program: str, change: str) -> None:
    fn = PROGRAMS[program]
    owner, name, values = CHANGES[change]
    compiled = argand.compile(fn, backend="eager")
    original = vars(owner).get(name, MISSING)
    try:
        for value in (MISSING, *values, MISSING, *values):
            _set(owner, name, original if value is MISSING else value)
            for factor in (3.0, 4.0) if name != "__sub__" else (3.0,):
                FACTOR[0] = factor
                assert outcome(compiled) == outcome(fn)
    finally:
        _set(owner, name, original)


def _set(owner: type, name: str, value: Any) -> None:
    if value is not MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def test_code_of_a_method_of_tensors() -> None:
    def doubled(self: Any) -> Any:
        return self * 2

    def fn(x: Any) -> Any:
        return x.doubled()

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    torch.Tensor.doubled = doubled  # type: ignore[attr-defined]
    try:
        assert outcome(compiled) == outcome(fn)
        doubled.__code__ = (lambda self: self * 3).__code__
        assert outcome(compiled) == outcome(fn)
    finally:
        del torch.Tensor.doubled  # type: ignore[attr-defined]


def test_a_first_copy_of_a_tensor_recompiles_nothing() -> None:
    """copyreg notes the slots of a class in the class when an object of it is first pickled."""
    compiled = argand.compile(lambda x: x.relu() + 1, backend="eager")
    noted = vars(torch.Tensor).get("__slotnames__")
    if noted is not None:
        del torch.Tensor.__slotnames__  # type: ignore[attr-defined]
    x = torch.ones(3)
    with collected("recompiles") as seen:
        compiled(x)
        pickle.dumps(x)
        assert "__slotnames__" in vars(torch.Tensor)
        compiled(x)
    assert not seen
