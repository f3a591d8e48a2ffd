"""Schedules for devices that are not the CPU: which plans they may hold, and what runs where."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder, layer_norm, scheduled, softmax
from test_fusion import add, kernels, random_program, relu

import sweeps
from argand.errors import InternalError
from argand.ir.target import cpu, gpu, on_cpu
from argand.schedule.pipeline import schedule
from argand.schedule.verify import verify, verify_legal

GPU = gpu(4)
ELSEWHERE = torch.device("meta")


def check(builder, *outputs, target=GPU):
    """Schedule for `target`, verify, compare with the unfused program; returns the schedule."""
    return scheduled(builder, *outputs, targets=lambda _: target)


def on(builder, device, *tensors):
    """Put the buffers of `tensors` on another device."""
    for each in tensors:
        builder.buffers[each.buffer] = replace(builder.buffers[each.buffer], device=device)


def test_kernels_are_named_after_their_target():
    b = Builder()
    y = b.pointwise(relu, b.input(8, 8))
    assert kernels(check(b, y))[0].name.startswith("triton_fused_pw")
    assert kernels(schedule(b.program(y)))[0].name.startswith("cpp_fused_pw")


@pytest.mark.parametrize("rows", [3, 64])
def test_softmax_and_layer_norm_are_one_kernel_of_few_rows_too(rows):
    for make in (softmax, lambda b, x: layer_norm(b, x, b.input(512), b.input(512))):
        b = Builder()
        (kernel,) = kernels(check(b, make(b, b.input(rows, 512))))
        assert len(kernel.stages) == 3 and len(kernel.outer) == 1


def test_few_rows_that_are_long_are_several_kernels():
    b = Builder()
    assert len(kernels(check(b, softmax(b, b.input(2, 1 << 16)), target=replace(GPU, split_reduction=0)))) > 1


@pytest.mark.parametrize(("taps", "columns", "count"), [(3, True, 1), (9, True, 2), (9, False, 1)])
def test_windows_are_computed_before_sums_of_columns(taps, columns, count):
    """Not on the way; in sums of rows, along which they read memory, they are."""
    b = Builder()
    x = b.input(64 + taps, 256)

    def added(ops, first, *rest):
        for each in rest:
            first = ops.add(first, each)
        return first

    y = b.pointwise(added, *[x.narrow(0, tap, 64) for tap in range(taps)])
    assert len(kernels(check(b, y, b.reduce("sum", y, [0 if columns else 1])))) == count


def test_columns_share_the_contiguous_loop():
    b = Builder()
    (kernel,) = kernels(check(b, softmax(b, b.input(64, 96), 0)))
    assert [int(size) for _, size in kernel.outer] == [96] and len(kernel.stages) == 3


def test_stages_without_shared_loops_are_kernels_of_their_own():
    b = Builder()
    x = b.input(16, 16)
    total = b.reduce("sum", x, [0, 1])
    y = b.pointwise(add, x, b_scalar(b, total, x))
    assert len(kernels(check(b, y))) == 2
    assert len(kernels(check(b, y, target=cpu(1)))) == 1


def b_scalar(b, total, like):
    from argand.graph.sizes.expr import ZERO

    return type(total)(b, total.buffer, like.size, [ZERO] * len(like.size))


def test_small_kernels_are_not_joined():
    b = Builder()
    outs = [b.pointwise(relu, b.input(7)), b.pointwise(relu, b.input(11))]
    assert len(kernels(check(b, *outs))) == 2


def test_a_plan_that_the_target_cannot_run_is_refused():
    b = Builder()
    x = b.input(16, 16)
    total = b.reduce("sum", x, [0, 1])
    made = schedule(b.program(b.pointwise(add, x, b_scalar(b, total, x))))
    (kernel,) = kernels(made)
    verify_legal(kernel, cpu(1))
    with pytest.raises(InternalError, match="without shared loops"):
        verify_legal(kernel, GPU)
    made.targets = {kernel.device: GPU}
    with pytest.raises(InternalError, match="without shared loops"):
        verify(made)


def test_tensors_of_two_devices_are_one_program_of_kernels_on_each():
    b = Builder()
    x, y = b.input(64, 64), b.input(64, 64)
    one = b.pointwise(relu, x)
    two = b.pointwise(relu, y)
    three = b.pointwise(relu, two)
    on(b, ELSEWHERE, y, two, three)
    made = schedule(b.program(one, three), targets=lambda d: GPU if d == ELSEWHERE else cpu(1))
    verify(made)
    assert [(k.device.type, k.name.split("_")[0]) for k in kernels(made)] == [("cpu", "cpp"), ("meta", "triton")]
    assert made.in_host_memory(x.buffer) and not made.in_host_memory(y.buffer)


def test_a_device_without_target_and_a_node_on_two_devices_are_errors():
    b = Builder()
    x = b.input(8)
    y = b.pointwise(relu, x)
    on(b, ELSEWHERE, x, y)
    with pytest.raises(InternalError, match="no code is generated for meta"):
        schedule(b.program(y))
    on(b, torch.device("cpu"), x)
    with pytest.raises(InternalError, match="are on cpu, meta"):
        schedule(b.program(y), targets=lambda _: GPU)


def test_equal_kernels_of_two_devices_do_not_share_a_name():
    b = Builder()
    x, y = b.input(64), b.input(64)
    one, two = b.pointwise(relu, x), b.pointwise(relu, y)
    on(b, ELSEWHERE, y, two)
    made = schedule(b.program(one, two), targets=lambda _: GPU)
    assert len({k.name for k in kernels(made)}) == 2


@settings(max_examples=sweeps.part(150, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    b, outputs = random_program(data)
    targets = [gpu(1), GPU, replace(GPU, serial_bytes=0, threads=2), replace(GPU, split_reduction=2, threads=100)]
    check(b, *outputs, target=data.draw(st.sampled_from(targets)))


def test_the_default_is_a_cpu_of_one_thread():
    b = Builder()
    y = b.pointwise(relu, b.input(8))
    assert schedule(b.program(y)).targets == schedule(b.program(y), targets=on_cpu(1)).targets == {CPU: cpu(1)}


CPU = torch.device("cpu")


def test_few_points_side_by_side_are_one_program():
    """What each column needs is computed apart, where a program has many columns: 128 of them would be two programs."""

    def scaled(columns_inside):
        b = Builder()
        variance = b.input(128)
        scale = b.pointwise(lambda o, v: o.rsqrt(v), variance)
        shape = (8000, 128) if columns_inside else (128, 8000)
        x = b.input(*shape)
        spread = scale.view(1, 128).expand(*shape) if columns_inside else scale.view(128, 1).expand(*shape)
        out = b.pointwise(lambda o, v, s: o.mul(v, s), x, spread)
        return schedule(b.program(out), targets=lambda _: gpu(132)).kernels()

    assert len(scaled(columns_inside=True)) == 2
    assert len(scaled(columns_inside=False)) == 1  # each row is a program's
