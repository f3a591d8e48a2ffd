"""What classes and arguments hold and how it may be read: changes in place are seen, and what is rebuilt is whole."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.capture.world.test_changed_between_calls import Agreeing

import argand

# ---- what a class holds --------------------------------------------------------------------------------------------


class _HoldsBase:
    weight = torch.zeros(2)
    table = [1, 2]


class _Holds(_HoldsBase):
    def by_super(self) -> Any:
        return super().weight.requires_grad, super().table[0]

    @classmethod
    def by_class_super(cls) -> Any:
        return super().weight.requires_grad, super().table[0]


@pytest.mark.parametrize(
    "read",
    [
        lambda: _Holds().by_super(),
        lambda: _Holds.by_class_super(),
        lambda: _HoldsBase.weight.requires_grad,
        lambda: (_Holds().weight.requires_grad, _Holds.table),
        lambda: _Holds.weight.shape,
    ],
    ids=["super", "super of a class", "class", "instance", "shape"],
)
def test_tensors_and_lists_of_a_class_change_in_place(read: Callable[[], Any]) -> None:
    agreeing = Agreeing(lambda x: (x + 1, read()))
    weight, table = _HoldsBase.weight, _HoldsBase.table
    try:
        for flag, size in ((True, 2), (False, 2), (True, 3), (False, 1)):
            weight.requires_grad, table[0] = flag, int(flag)
            weight.data = torch.zeros(size)
            agreeing()
    finally:
        weight.requires_grad, table[0] = False, 1


def test_id_of_numbers_that_vary() -> None:
    agreeing = Agreeing(lambda x, a, b: x + (id(a) == id(b)))
    for a, b in ((5, 3), (3, 3), (4, 4), (4, 3)):
        agreeing(a, b)


def test_a_size_of_what_became_a_float() -> None:
    agreeing = Agreeing(lambda x, given: (x, 2 in torch.Size(given)))
    for given in ((7, 4), (8, 4), (1.5, 3), (9, 2)):
        agreeing(given)


def test_attributes_of_an_ordered_dict_made_in_captured_code() -> None:
    def program(x: torch.Tensor) -> Any:
        made: Any = collections.OrderedDict(a=1)
        made.note = {"k": 2}
        made.inner = collections.OrderedDict()
        made.inner["q"] = made.note
        return x + 1, vars(made), made

    Agreeing(program)()
    module = torch.nn.LayerNorm(4)
    compiled = argand.compile(lambda x: (x + 1, module.state_dict()), backend="eager")
    assert vars(compiled(torch.ones(1))[1]) == vars(module.state_dict())


class _GetsWithDefault(dict[str, Any]):
    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default)


def test_mapping_pattern_asks_the_get_of_the_class() -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        match given:
            case {"k": k, "n": n}:
                return x, k, n
            case {"k": k}:
                return x, k
        return x

    agreeing = Agreeing(program)
    for given in (_GetsWithDefault(k=1), _GetsWithDefault(), _GetsWithDefault(k=1, n=2)):
        agreeing(given)


def test_class_pattern_of_what_is_no_class() -> None:
    number: Any = 2

    def program(x: torch.Tensor) -> Any:
        match x:
            case number():
                return 1
        return x

    Agreeing(program)()


class _OtherModule(types.ModuleType):
    pass


class _HoldsModule:
    module: Any = _OtherModule("first")


def test_class_of_a_module_is_assigned() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return x + _HoldsModule.module
        except TypeError as error:
            return x, str(error)

    agreeing = Agreeing(program)
    agreeing()
    _HoldsModule.module = types.ModuleType("held")
    agreeing()
    _HoldsModule.module.__class__ = _OtherModule
    agreeing()


class _ScaledModule(types.ModuleType):
    scale = 3.0

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = types.ModuleType.__hash__

    def __getattribute__(self, name: str) -> Any:
        return 9.0 if name == "value" else super().__getattribute__(name)


MODULE_READS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "isinstance": lambda x, m: x if isinstance(m, _ScaledModule) else x + 1,
    "attribute": lambda x, m: x + m.value,
    "equality": lambda x, m: x if m == 3 else x + 1,
    "hasattr": lambda x, m: x if hasattr(m, "scale") else x + 1,
    "getattr": lambda x, m: x + getattr(m, "scale", 1.0),
}


@pytest.mark.parametrize("read", MODULE_READS)
@pytest.mark.parametrize("where", ["argument", "class"])
def test_class_of_a_module_is_assigned_and_nothing_else_tells(where: str, read: str) -> None:
    """The module is guarded by which object it is, and nothing of its class is looked up."""

    class Holds:
        module: Any = types.ModuleType("held")

    program = MODULE_READS[read]

    def reading(x: torch.Tensor, m: Any) -> Any:
        return program(x, m if where == "argument" else Holds.module)

    Holds.module.value = 2.0
    compiled = argand.compile(reading, backend="eager")
    x = torch.ones(2)
    given = Holds.module if where == "argument" else None
    for cls in (types.ModuleType, _ScaledModule, types.ModuleType):
        Holds.module.__class__ = cls
        assert torch.equal(compiled(x, given), reading(x, given)), cls
