"""What capture tells the program of results is what eager gives, and what the graph's trace will say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.capture.metadata import outcomes_db

import argand
import sweeps
from argand.capture.metadata import kinds, outcomes, rules
from helpers import assert_same

FIGURES = {"breaks", "compared", "crashed", "known", "raised"}


@pytest.mark.parametrize("gradients", [False, True])
def test_a_share_of_op_db_in_all_layouts(gradients: bool) -> None:
    found = outcomes_db.compare((), every=60, gradients=gradients, ops=12 if sweeps.WHOLE else 48)
    assert not set(found) - FIGURES
    assert found["compared"] > (250 if sweeps.WHOLE else 100)


def strides(x: torch.Tensor) -> list[tuple[int, ...]]:
    """Of results whose layout torch's own metadata has otherwise than its kernels, or that has none."""
    return [
        torch.linalg.svd(x)[2].stride(),
        torch.geqrf(x)[0].stride(),
        torch.histogram(x, 3)[0].stride(),
        torch.rad2deg(x[:1].t()).stride(),
        torch.nn.functional.relu6(x[:, ::2][:1]).stride(),
        torch.diff(x.t()).stride(),
    ]


def under_autocast(x: torch.Tensor) -> list[torch.dtype]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = torch.nn.functional.linear(x, x)
        return [w.dtype, (w @ w).dtype, torch.nn.functional.mse_loss(w, w).dtype, torch.cat([w, w.float()]).dtype,
                torch.nn.functional.gumbel_softmax(w).dtype, torch.einsum("ij,kj->ik", x, x).dtype]  # fmt: skip


@pytest.mark.parametrize("read", [strides, under_autocast])
def test_programs_read_what_eager_gives(read: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(4, 6)
    assert_same(read(x), argand.compile(read, backend="eager", fullgraph=True)(x))


def test_views_and_writes_are_left_to_torch() -> None:
    x = torch.empty(2, 3, device="meta")
    for func, args in (
        (torch.Tensor.reshape, (x, (3, 2))),
        (torch.Tensor.add_, (x, 1)),
        (torch.dropout, (x, 0.5, False)),
    ):
        with pytest.raises(outcomes.NotNew):
            outcomes.stand_ins(func, kinds.of_call(args, {}), ())


def test_stand_ins_count_what_a_call_writes_that_makes_something_too() -> None:
    x, mean, var, weight = (torch.empty(size, device="meta") for size in ((2, 3, 4), 3, 3, 3))
    args, kwargs = (x, mean, var), {"weight": weight, "training": True}
    made = outcomes.stand_ins(torch.nn.functional.batch_norm, kinds.of_call(args, kwargs), (), args, kwargs)
    assert tuple(made.shape) == (2, 3, 4)
    assert [tensor._version for tensor in (x, mean, var, weight)] == [0, 1, 1, 0]


def test_what_looks_at_values_is_not_traced() -> None:
    x = torch.empty(3, device="meta")
    with pytest.raises(outcomes.Untraceable):
        outcomes.stand_ins(torch.nonzero, kinds.of_call((x,), {}), ())


def test_kinds_tell_modes_and_numbers_apart() -> None:
    x = torch.empty(2, device="meta", dtype=torch.int64)
    one, whole = (outcomes.stand_ins(torch.add, kinds.of_call((x, n), {}), ()) for n in (1.0, 1))
    assert (one.dtype, whole.dtype) == (torch.float32, torch.int64)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert outcomes.stand_ins(torch.add, kinds.of_call((x, 1.0), {}), ()).dtype is torch.float64
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("function", [F.hardswish, F.hardsigmoid, F.relu6, F.mish, F.selu, F.hardtanh])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_activations_in_place_are_told_as_torch_tells_them(function: Any, requires_grad: bool) -> None:
    for rest in ((), (0.0, 6)) if function is F.hardtanh else ((),):
        told = []
        for run in (rules.RULES[function], function):
            base = torch.empty(2, 3, device="meta", requires_grad=requires_grad) * 1
            x = base[:1]
            result = run(x, *rest, inplace=True)
            told.append((result is x, base._version, result.requires_grad, result.is_leaf, tuple(result.shape)))
            if requires_grad:
                with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
                    run(torch.empty(2, device="meta", requires_grad=True), *rest, inplace=True)
        assert told[0] == told[1]
    for x, inplace in ((torch.empty(2, device="meta"), False), (torch.empty(2, dtype=torch.int64), True)):
        with pytest.raises(rules.Unknown):
            rules.RULES[function](x, inplace=inplace)
