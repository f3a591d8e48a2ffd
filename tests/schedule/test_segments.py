"""Kernels that do the same to different buffers become one with segments: which, in what order, and what they compute."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder, T
from test_fusion import add, kernels, random_program, relu

from argand.errors import InternalError
from argand.ir.interpret import interpret
from argand.ir.kernel import Segment
from argand.ir.target import cpu, gpu
from argand.schedule.pipeline import join_kernels, schedule
from argand.schedule.reference import run_schedule
from argand.schedule.signature import signature
from argand.schedule.verify import verify, verify_kernel

GPU = gpu(4)


def check(builder, *outputs, target=GPU, inputs=None):
    """Schedule, join, verify, compare with the unfused program; returns the schedule."""
    program = builder.program(*outputs)
    made = schedule(program, targets=lambda _: target)
    join_kernels(made)
    verify(made)
    inputs = builder.example() if inputs is None else inputs
    for one, two in zip(interpret(program, inputs), run_schedule(made, inputs), strict=True):
        torch.testing.assert_close(two, one, equal_nan=True)
    return made


def updates(b, sizes, dtype=torch.float32):
    """What an optimizer does: two results of three tensors, for each size."""
    outs = []
    for size in sizes:
        p, g, m = [b.input(*size, dtype=dtype) for _ in range(3)]
        average = b.pointwise(lambda o, m, g: o.add(o.mul(m, o.constant(0.9, m.dtype)), g), m, g)
        outs += [average, b.pointwise(lambda o, p, m: o.sub(p, o.mul(m, o.constant(0.1, m.dtype))), p, average)]
    return outs


SIZES = [(16, 4), (3, 5), (32,), (7,), (64, 2), (1,), (4, 4, 4), ()]


def test_updates_of_tensors_of_all_sizes_are_few_kernels():
    b = Builder()
    made = check(b, *updates(b, SIZES))
    # multiples of 16 points, whose accesses are wide; others; and a single point, which has no loop
    assert sorted(len(plan.segments) for plan in kernels(made)) == [2, 2, 4]
    assert all(len(plan.inputs) == 3 * len(plan.segments) for plan in kernels(made))


def test_nothing_is_joined_where_the_target_says_so():
    b = Builder()
    made = check(b, *updates(b, SIZES), target=cpu(2))
    assert not any(plan.segments for plan in kernels(made))
    b = Builder()
    made = check(b, *updates(b, SIZES), target=replace(GPU, segments=3))
    assert max(len(plan.segments) for plan in kernels(made)) == 3
    b = Builder()
    made = check(b, *updates(b, [(16, n) for n in range(1, 9)]), target=replace(GPU, pointers=12))
    assert [len(plan.segments) for plan in kernels(made)] == [2] * 4
    b = Builder()
    made = check(b, *updates(b, [(16, 4), (32, 4), (512,)]), target=replace(GPU, segment_points=200))
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 2]


def test_kernels_that_wait_for_each_other_are_not_joined():
    b = Builder()
    first, second = b.pointwise(relu, b.input(64)), b.pointwise(relu, b.input(48))
    called = b.extern(torch.ops.aten.neg.default, first, size=[64])
    last = b.pointwise(relu, called)
    made = check(b, first, second, called, last)
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 2]
    b = Builder()  # two pairs that wait for each other crosswise: one may be joined, not both
    x, y = b.pointwise(relu, b.input(64)), b.pointwise(add, b.input(48), b.input(48))
    more = b.extern(torch.ops.aten.neg.default, x, size=[64]), b.extern(torch.ops.aten.neg.default, y, size=[48])
    made = check(b, x, y, *more, b.pointwise(add, more[0], b.input(64)), b.pointwise(relu, more[1]))
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 0, 2]


def test_other_operations_numbers_dtypes_and_shared_reads():
    b = Builder()
    shared = b.input(1)
    outs = []
    for size, dtype, factor in ((64, torch.float32, 2.0), (32, torch.float32, 2.0), (32, torch.float64, 2.0)):
        x = b.input(size, dtype=dtype)
        outs.append(b.pointwise(lambda o, v, f=factor: o.mul(v, o.constant(f, v.dtype)), x))
    outs.append(b.pointwise(lambda o, v: o.mul(v, o.constant(3.0, v.dtype)), b.input(16)))
    outs += [b.pointwise(add, b.input(n), shared.expand(n)) for n in (16, 48)]
    made = check(b, *outs)
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 0, 2, 2]
    both = next(plan for plan in kernels(made) if "arg0" in plan.inputs and plan.segments)
    assert len(both.inputs) == 3


def test_temporaries_that_would_live_for_long_keep_kernels_apart():
    for limit, joined in ((1 << 20, True), (1 << 10, False)):
        b = Builder()
        outs = []
        for size in (512, 1024):
            wide = b.pointwise(relu, b.input(size))
            outs.append(b.extern(torch.ops.aten.neg.default, wide, size=[size]))
        made = check(b, *outs, target=replace(GPU, segment_bytes=limit))
        assert any(plan.segments for plan in kernels(made)) is joined


def test_parts_of_one_buffer_are_written_by_one_kernel():
    """As the norms of an optimizer's gradients are: numbers that are put into one vector."""
    b = Builder()
    total = b.buffer([40])
    for number, size in enumerate((8, 4, 4, 8)):
        b.pointwise(relu, b.input(size), out=total.narrow(0, 10 * number, size))
    made = check(b, b.pointwise(relu, total), inputs=[torch.randn(n) for n in (8, 4, 4, 8)])
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 0, 3]  # the first part has no offset
    b = Builder()
    total, numbers = b.buffer([6]), [b.input() for _ in range(6)]
    for place, each in enumerate(numbers):
        b.pointwise(relu, T(b, each.buffer, [1], [1]), out=total.narrow(0, place, 1))
    made = check(b, total)
    assert [len(plan.segments) for plan in kernels(made)] == [6]
    b = Builder()  # columns, between which those of others lie: one after the other
    total = b.buffer([4, 6])
    for number in range(3):
        b.pointwise(relu, b.input(4, 2), out=total.narrow(1, 2 * number, 2))
    made = check(b, total)
    assert not any(plan.segments for plan in kernels(made))
    b = Builder()  # what is written twice is written in order
    total = b.buffer([12])
    for number in range(3):
        b.pointwise(relu, b.input(8), out=total.narrow(0, 2 * number, 8))
    assert not any(plan.segments for plan in kernels(check(b, total)))


def test_a_part_that_was_read_before_is_written_after():
    b = Builder()
    total = b.buffer([48])
    for place in range(3):
        b.pointwise(relu, b.input(16), out=total.narrow(0, 16 * place, 16))
    early = b.extern(torch.ops.aten.neg.default, total, size=[48])
    b.pointwise(relu, b.input(16), out=total.narrow(0, 16, 16))
    made = check(b, early, total)
    assert sorted(len(plan.segments) for plan in kernels(made)) == [0, 0, 2]


def test_reductions_of_rows_of_all_lengths():
    b = Builder()
    made = check(
        b, *[b.reduce("sum", b.input(3, n), [1]) for n in (16, 32, 48)], target=replace(GPU, split_reduction=0)
    )
    (plan,) = kernels(made)
    assert len(plan.segments) == 3 and len(plan.segments[0].numbers) == 1


def test_segments_are_part_of_what_a_kernel_is():
    b = Builder()
    (one,) = kernels(check(b, *updates(b, [(16, 4), (32, 4)])))
    b = Builder()
    (two,) = kernels(check(b, *updates(b, [(16, 4), (48, 4)])))
    assert signature(one) != signature(two)


def test_segments_that_touch_each_other_are_refused():
    b = Builder()
    (plan,) = kernels(check(b, *updates(b, [(16, 4), (32, 4)])))
    first, second = plan.segments
    plan.segments = (first, Segment({**second.buffers, plan.outputs[0]: plan.outputs[0]}, second.numbers))
    with pytest.raises(InternalError, match="is in two segments"):
        verify_kernel(plan)


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    b, outputs = random_program(data)
    check(b, *outputs)
