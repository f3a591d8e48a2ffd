"""Cumulative sums and products in kernels with others."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder, scan, softmax
from test_fusion import add, kernels, relu

from argand.errors import InternalError
from argand.ir.interpret import interpret
from argand.ir.target import cpu, gpu
from argand.schedule.pipeline import join_kernels, schedule
from argand.schedule.reference import run_schedule
from argand.schedule.verify import verify, verify_legal

GPU = gpu(4)


def check(b, *outputs):
    program = b.program(*outputs)
    made = schedule(program, targets=lambda _: GPU)
    join_kernels(made)
    verify(made)
    inputs = b.example()
    for one, two in zip(interpret(program, inputs), run_schedule(made, inputs), strict=True):
        torch.testing.assert_close(two, one, equal_nan=True)
    return made


def test_a_scan_is_fused_with_what_it_takes_and_with_what_takes_it():
    b = Builder()
    x = b.input(8, 40)
    total = scan(b, "sum", b.pointwise(relu, x), 1)
    made = check(b, b.pointwise(add, total, x))
    assert len(kernels(made)) == 1 and len(kernels(made)[0].stages) == 1
    inputs = [torch.randn(8, 40)]
    (result,) = run_schedule(made, inputs)
    torch.testing.assert_close(result, inputs[0].relu().cumsum(1) + inputs[0])


def test_rows_that_are_normalised_and_summed_up_are_one_kernel():
    b = Builder()
    made = check(b, scan(b, "sum", softmax(b, b.input(16, 64)), 1))
    assert len(kernels(made)) == 1


def test_what_reads_other_places_of_a_row_is_a_stage_of_its_own():
    b = Builder()
    total = scan(b, "prod", b.input(16, 64), 1)
    last = total.narrow(1, 63, 1).expand(16, 64)
    made = check(b, b.pointwise(add, total, last))
    assert all(len(plan.stages) != 1 for plan in kernels(made)) or len(kernels(made)) == 2


def test_long_scans_are_not_cut_into_chunks():
    b = Builder()
    assert len(kernels(check(b, scan(b, "sum", b.input(1, 1 << 17), 1)))) == 1


def test_targets_without_scans_refuse_them():
    b = Builder()
    (plan,) = kernels(check(b, scan(b, "sum", b.input(4, 8), 1)))
    with pytest.raises(InternalError, match="a scan"):
        verify_legal(plan, replace(cpu(1), scan_length=0))


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    check(*random_scans(data))


def random_scans(data):
    """Scans, sums and sums of two along the dimensions of one shape, in a random order."""
    b = Builder()
    shape = data.draw(st.sampled_from([(4, 6), (3, 4, 5), (7, 1), (2, 16)]))
    pool = [b.input(*shape)]
    outs = []
    for _ in range(data.draw(st.integers(1, 6))):
        x, dim = data.draw(st.sampled_from(pool)), data.draw(st.integers(0, len(shape) - 1))
        kind = data.draw(st.sampled_from(["scan", "scan", "add", "relu", "reduce"]))
        if kind == "scan":
            pool.append(scan(b, data.draw(st.sampled_from(["sum", "prod"])), x, dim))
        elif kind == "add":
            pool.append(b.pointwise(add, x, data.draw(st.sampled_from(pool))))
        elif kind == "relu":
            pool.append(b.pointwise(relu, x))
        else:
            total = b.reduce("sum", x, [dim], keepdim=True)
            pool.append(b.pointwise(add, x, total.expand(*shape)))
        outs.append(pool[-1])
    return b, *outs
