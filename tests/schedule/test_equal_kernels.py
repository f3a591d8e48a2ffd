"""Kernels of equal loops in one: which are joined, where they run, and that they compute the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder, scheduled
from test_fusion import add, kernels, random_program, relu

import sweeps
from argand.graph.sizes.expr import Sym
from argand.ir.kernel import KernelPlan
from argand.ir.loops import ExternNode
from argand.ir.target import cpu, gpu
from argand.schedule.joining.equal_kernels import MOST_ARGUMENTS, join_alike
from argand.schedule.pipeline import schedule

GPU = replace(gpu(4), segments=0)  # kernels of one text are left to segments otherwise (test_segments.py)
SMALL = replace(GPU, joined_bytes=1 << 10)  # 256 floats: what reads and writes more is large


def check(builder, *outputs, target=GPU):
    """The schedule for `target`, which computes what the program does without it."""
    return scheduled(builder, *outputs, targets=lambda _: target)


def order(made):
    return ["kernel" if isinstance(step, KernelPlan) else step.name for step in made.steps]


def twice(ops, a):
    return ops.add(a, a)


def test_small_kernels_wait_for_others_of_equal_loops():
    b = Builder()
    results = []
    for _ in range(3):
        results.append(b.pointwise(relu, b.input(96)))
        results.append(b.extern(torch.ops.aten.neg.default, b.input(4, 4), size=(4, 4)))
    results.append(b.pointwise(relu, b.input(97)))
    made = check(b, *results)
    assert order(made) == ["op1", "op3", "op5", "kernel", "kernel"]
    assert [len(kernel.outputs) for kernel in kernels(made)] == [3, 1]


def test_what_is_needed_does_not_wait():
    b = Builder()
    x, y = b.input(96), b.input(96)
    first = b.pointwise(relu, x)
    used = b.extern(torch.ops.aten.neg.default, first, size=(96,))
    second = b.pointwise(relu, y)
    again = b.pointwise(twice, used)
    made = check(b, used, second, again)
    assert order(made) == ["kernel", "op1", "kernel"]
    assert [len(kernel.outputs) for kernel in kernels(made)] == [1, 2]


def test_one_that_needs_another_is_not_in_its_kernel():
    b = Builder()
    first = b.reduce("sum", b.input(8, 96), [0])
    flipped = b.extern(torch.ops.aten.flip.default, first, [0], size=(96,))
    made = check(b, first, b.reduce("sum", b.input(8, 96), [0]), b.pointwise(relu, flipped), flipped)
    assert [len(kernel.outputs) for kernel in kernels(made)] == [1, 1, 1]


def test_reductions_are_joined_by_what_they_reduce_and_how_memory_lies():
    b = Builder()
    columns = [b.reduce("sum", b.input(8, 96), [0]) for _ in range(3)]
    rows = [b.reduce("sum", b.input(96, 8), [1]) for _ in range(2)]
    other = b.reduce("max", b.input(8, 96), [0])
    made = check(b, *columns, *rows, other)
    assert sorted(len(kernel.outputs) for kernel in kernels(made)) == [2, 4]


def test_large_kernels_run_where_the_first_of_them_does_and_not_later():
    b = Builder()
    source = b.extern(torch.ops.aten.neg.default, b.input(64, 96), size=(64, 96))
    xs = [b.extern(torch.ops.aten.neg.default, source, size=(64, 96)) for _ in range(3)]
    results = []
    for x in xs:
        results.append(b.reduce("sum", x, [0]))
        results.append(b.extern(torch.ops.aten.abs.default, x, size=(64, 96)))
    late = b.extern(torch.ops.aten.neg.default, results[1], size=(64, 96))
    results.append(b.reduce("sum", late, [0]))
    made = check(b, *results, target=SMALL)
    assert order(made) == ["op0", "op1", "op2", "op3", "kernel", "op5", "op7", "op9", "op10", "kernel"]
    assert [len(kernel.outputs) for kernel in kernels(made)] == [3, 1]


def test_large_results_are_not_made_earlier_but_neighbours_are_one_kernel():
    for between, count in ((False, 1), (True, 2)):
        b = Builder()
        results = [b.pointwise(relu, b.input(64, 96))]
        if between:
            results.append(b.extern(torch.ops.aten.neg.default, b.input(4), size=(4,)))
        results.append(b.pointwise(relu, b.input(64, 96)))
        assert len(kernels(check(b, *results, target=SMALL))) == count


def test_nothing_is_moved_across_a_step_that_may_touch_memory_under_another_name():
    for target, args, count in (
        (torch.ops.aten.neg.default, (), 1),
        (torch.ops.aten.t.default, (), 2),
        (torch.ops.aten.bernoulli.default, (), 2),
    ):
        for size, limit in (((9, 9), GPU), ((64, 96), SMALL)):
            b = Builder()
            results = [b.reduce("sum", b.input(*size), [0])]
            other = b.extern(target, b.input(4, 4), *args, size=(4, 4))
            results += [other, b.reduce("sum", b.input(*size), [0])]
            made = schedule(b.program(*results), targets=lambda _, limit=limit: limit)
            assert len(kernels(made)) == count, target


def test_writes_by_other_steps_come_before_or_after_as_in_the_program():
    b = Builder()
    x, y = b.input(96), b.input(96)
    one, two = b.pointwise(relu, x), b.pointwise(relu, y)
    made = schedule(b.program(one, two), targets=lambda _: replace(GPU, joined_members=0))
    first, second = made.steps
    write = ExternNode("write", torch.ops.aten.relu_.default, (x.ref,), {}, (), None, (x.buffer,))
    steps = join_alike([first, write, second], {made.steps[0].device: GPU})
    assert [step.name for step in steps] == [first.name, "write", second.name]


def test_parts_of_one_buffer_are_filled_in_order():
    b = Builder()
    whole = b.buffer((8, 96))
    for part in range(4):
        b.pointwise(relu, b.input(2, 96), out=whole.narrow(0, 2 * part, 2))
    check(b, whole)
    check(b, whole, target=SMALL)


def test_joined_kernels_have_limits():
    b = Builder()
    made = check(b, *[b.pointwise(relu, b.input(96)) for _ in range(40)])
    assert [len(kernel.outputs) for kernel in kernels(made)] == [16, 16, 8]
    assert len({kernel.name for kernel in kernels(made)}) == 2
    b = Builder()
    wide = [b.pointwise(lambda o, *vs: add(o, *vs[:2]), *[b.input(96) for _ in range(9)]) for _ in range(9)]
    for kernel in kernels(check(b, *wide)):
        assert len({*kernel.inputs, *kernel.outputs}) <= MOST_ARGUMENTS
    b = Builder()
    many = [b.pointwise(relu, b.input(96)) for _ in range(8)]
    assert len(check(b, *many, target=replace(GPU, max_statements=10)).steps) > 1


def test_other_devices_and_positions_of_extrema_stay_apart():
    b = Builder()
    results = [b.pointwise(relu, b.input(96)) for _ in range(2)]
    assert len(check(b, *results, target=replace(cpu(1), small_points=0)).steps) == 2
    b = Builder()
    results = [b.reduce("argmax", b.input(8, 96), [0]) for _ in range(2)]
    assert len(check(b, *results).steps) == 2


def test_sizes_that_are_symbols():
    b = Builder()
    n = Sym("s0")
    results = [b.pointwise(relu, b.input(n, 8)) for _ in range(3)] + [b.pointwise(relu, b.input(n + 1, 8))]
    program = b.program(*results)
    program.inputs.append("s0")
    program.input_symbols = [("s0", "", 0)]
    made = schedule(program, targets=lambda _: GPU)
    assert [(len(kernel.outputs), kernel.symbols) for kernel in kernels(made)] == [(3, ("s0",)), (1, ("s0",))]


@pytest.mark.parametrize("target", [GPU, SMALL, replace(SMALL, joined_bytes=0)])
@settings(max_examples=sweeps.part(40, 4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_programs_compute_the_same(target, data):
    b, outputs = random_program(data)
    check(b, *outputs, target=target)
