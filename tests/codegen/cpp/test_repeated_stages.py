"""Stages of a kernel that do the same to other buffers stand in its text once, and run in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from cpp_kernels import body, buffer, check, compile_plan, plan, sample

from argand.ir.kernel import KernelPlan
from argand.ir.loops import LoopBody
from argand.lower.recorder import Recorder

_Record = Callable[..., None]


def _steps(source: str, target: str, dtype: torch.dtype, size: int, op: str = "neg") -> LoopBody:
    def record(ops: Recorder, x: object) -> None:
        ops.store(target, x, getattr(ops, op)(ops.load(source, x, dtype)))  # type: ignore[arg-type]

    return body([size], record)


def _plan(pairs: Sequence[tuple[str, str, str]], size: int = 37, dtype: torch.dtype = torch.float32) -> KernelPlan:
    """A kernel of stages: what each reads, writes and does."""
    stages = [_steps(source, target, dtype, size, op) for source, target, op in pairs]
    written = list(dict.fromkeys(target for _, target, _ in pairs))
    read = list(dict.fromkeys(source for source, _, _ in pairs if source not in written))
    return plan(stages, [buffer(n, dtype, [size]) for n in read], [buffer(n, dtype, [size]) for n in written])


def _checked(made: KernelPlan, dtype: torch.dtype = torch.float32, size: int = 37) -> str:
    inputs = [sample([size], dtype, seed) for seed in range(len(made.inputs))]
    return check(made, inputs, [torch.zeros(size, dtype=dtype) for _ in made.outputs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
def test_equal_stages_are_one_loop_over_a_table(dtype: torch.dtype) -> None:
    few, many = (_plan([(f"a{n}", f"b{n}", "neg") for n in range(count)], 37, dtype) for count in (3, 40))
    texts = [_checked(made, dtype) for made in (few, many)]
    assert [text.count("static const i64 rows[") for text in texts] == [1, 1]
    assert texts[0].count("store(") == texts[1].count("store(")
    assert all(f"{{{n}, {n + 40}}}," in texts[1] for n in range(40))


def test_two_stages_and_unlike_ones_stand_by_themselves() -> None:
    assert "rows[" not in _checked(_plan([("a0", "b0", "neg"), ("a1", "b1", "neg")]))
    mixed = _plan([(f"a{n}", f"b{n}", ("neg", "abs")[n % 2]) for n in range(6)])
    assert "rows[" not in _checked(mixed)


def test_stages_that_read_what_the_one_before_wrote_run_in_order() -> None:
    chain = _plan([("a", "b0", "neg"), *((f"b{n}", f"b{n + 1}", "neg") for n in range(5)), ("a", "b0", "abs")])
    assert "rows[5][2]" in _checked(chain)


def test_a_table_between_other_stages() -> None:
    alike = [(f"a{n}", f"b{n}", "neg") for n in range(4)]
    text = _checked(_plan([("c", "d", "abs"), *alike, ("d", "e", "abs"), *[(t, f"f{t}", "abs") for _, t, _ in alike]]))
    assert [text.count(f"rows[{count}][2]") for count in (4, 5)] == [1, 1]  # d is read as the four are


def test_stages_of_two_dtypes_are_no_table() -> None:
    first, last = torch.float32, torch.float64
    pairs = [(f"a{n}", f"b{n}", (first, last)[n % 2]) for n in range(6)]
    stages = [_steps(source, target, dtype, 8) for source, target, dtype in pairs]
    made = plan(
        stages, [buffer(a, dtype, [8]) for a, _, dtype in pairs], [buffer(b, dtype, [8]) for _, b, dtype in pairs]
    )
    assert "rows[" not in compile_plan(made)[1]
