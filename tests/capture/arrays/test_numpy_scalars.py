"""numpy's scalars given to torch, which reads some of them as no number is read."""

from __future__ import annotations

import enum
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import argand


class Counted(int):
    pass


class Weight(float):
    pass


class Level(enum.IntEnum):
    LOW = 1


SCALARS: dict[str, Any] = {
    **{
        name: getattr(np, name)(1)
        for name in (
            "float64 float32 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128 longdouble"
        ).split()
    },
    "bool": np.bool_(True),
    "int_subclass": Counted(1),
    "float_subclass": Weight(1.0),
    "enum_member": Level.LOW,
}
USES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "tensor": lambda x, a: torch.tensor(a),
    "tensor_of_list": lambda x, a: torch.tensor([[a], [2]]),
    "tensor_with_dtype": lambda x, a: torch.tensor(a, dtype=torch.float32),
    "as_tensor": lambda x, a: torch.as_tensor([a]) * x,
    "asarray": lambda x, a: torch.asarray([a, 1]),
    "scalar_tensor": lambda x, a: torch.scalar_tensor(a),
    "new_tensor": lambda x, a: x.new_tensor(a),
    "legacy_tensor": lambda x, a: torch.Tensor([a]),
    "known_value": lambda x, a: x * torch.tensor(a).item(),
    "full": lambda x, a: torch.full((2,), a),
    "new_full": lambda x, a: x.new_full((2,), a),
    "arange": lambda x, a: torch.arange(a),
    "linspace": lambda x, a: torch.linspace(0, a, 3),
    "index": lambda x, a: x[a],
    "index_of_tuple": lambda x, a: x[a, None],
    "index_of_list": lambda x, a: x[[a, 0]],
    "dimension": lambda x, a: x.sum(a),
    "size": lambda x, a: x.view(a, -1),
    "operators": lambda x, a: (x + a, a - x, x * a, a**x, x < a, a == x),
    "integers": lambda x, a: (x.long() + a, x.long() * a, torch.div(x.long(), a)),
    "where": lambda x, a: (torch.where(x > 0, a, 0), torch.where(x > 0, a, a)),
    "clamp": lambda x, a: x.clamp(max=a),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "setitem": lambda x, a: operator.setitem(x, 0, a) or x,
    "isin": lambda x, a: torch.isin(x, a),
    "result_type": lambda x, a: torch.result_type(x, a),
}


def outcome(fn: Callable[..., Any], value: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = fn(torch.ones(3, 3), value)
        except Exception as error:
            return type(error).__name__
    return [
        (t.dtype, t.tolist()) if isinstance(t, torch.Tensor) else t
        for t in (found if type(found) is tuple else [found])
    ]


@pytest.mark.parametrize("use", USES)
def test_scalar_is_read_as_torch_reads_it(use: str) -> None:
    for name, value in SCALARS.items():
        argand.reset()
        assert outcome(argand.compile(USES[use], backend="eager"), value) == outcome(USES[use], value), name


def test_scalar_that_changes() -> None:
    compiled = argand.compile(USES["as_tensor"], backend="eager")
    for value in (np.float64(2), np.float64(3), np.int32(3), np.float32(3), 3):
        assert outcome(compiled, value) == outcome(USES["as_tensor"], value)


def test_numbers_of_the_usual_types_do_not_break_the_graph() -> None:
    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x[b] * a + torch.tensor([a, 2]) + x.sum(b)

    x = torch.ones(2, 2)
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, np.float64(2), np.int64(1)), program(x, np.float64(2), np.int64(1)))


@pytest.mark.parametrize("kind", [np.longdouble, np.uint64, np.float16])
def test_numbers_of_unusual_types_alone(kind: Any) -> None:
    compiled = argand.compile(lambda x, a: (x * a, x.long() + a, x.clamp(max=a)), backend="eager", fullgraph=True)
    for number in (2.3, 2.3, 0):
        assert outcome(compiled, kind(number)) == outcome(
            lambda x, a: (x * a, x.long() + a, x.clamp(max=a)), kind(number)
        )


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.complex64])
def test_zeros_of_either_sign_are_told_apart(kind: Any) -> None:
    """Regression: the guard of a number compared by `==`, to which zeros are the same."""

    def signed(x: torch.Tensor, number: Any) -> torch.Tensor:
        return x * float(np.copysign(1.0, number.real))

    compiled = argand.compile(signed, backend="eager")
    for number in (
        kind(0.0),
        kind(-0.0),
        kind(0.0),
        kind(2),
        kind(complex(-0.0, 1) if kind is np.complex64 else "nan"),
    ):
        assert torch.equal(compiled(torch.ones(1), number), signed(torch.ones(1), number))
