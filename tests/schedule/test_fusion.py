"""Fusion: what is fused, and that a fused schedule computes what the nodes one by one compute."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder, layer_norm, scheduled, softmax

import sweeps
from argand.ir.kernel import KernelPlan
from argand.ir.target import on_cpu


def check(builder, *outputs, threads=2):
    """Schedule, verify, and compare with the unfused program; returns the schedule."""
    return scheduled(builder, *outputs, targets=on_cpu(threads))


def kernels(made):
    return [step for step in made.steps if isinstance(step, KernelPlan)]


def add(o, a, b):
    return o.add(a, b)


def relu(o, a):
    import torch as t

    return o.maximum(a, o.constant(0, t.float32))


def positive(o, a):
    return o.gt(a, o.constant(0, torch.float32))


def test_softmax_is_one_kernel_of_three_stages():
    b = Builder()
    made = check(b, softmax(b, b.input(64, 512)))
    (kernel,) = kernels(made)
    assert [len(stage.body.reduction_vars) for stage in kernel.stages] == [1, 1, 0]
    assert len(kernel.outer) == 1 and list(kernel.scratch) == ["buf1"] and kernel.registers == {"buf0", "buf2"}
    assert kernel.inputs == ("arg0",) and len(kernel.outputs) == 1


def test_residual_add_layer_norm_and_activation_are_one_kernel():
    b = Builder()
    x, r, w, bias = b.input(4, 16, 512), b.input(64, 512), b.input(512), b.input(512)
    s = b.pointwise(add, x.view(64, 512), r)
    y = layer_norm(b, s.view(4, 16, 512), w, bias)
    z = b.pointwise(lambda o, a, c: o.mul(o.tanh(a), c), y, s.view(4, 16, 512))
    (kernel,) = kernels(check(b, z, s))
    assert len(kernel.stages) == 3
    first = kernel.stages[0].body
    assert any(v.op == "store" and v.args[0] == "buf0" for v in first.statements)  # the sum is stored on the way
    assert sum(v.op == "load" for v in first.statements) == 2


def test_contiguous_pointwise_loops_become_one():
    b = Builder()
    y = b.pointwise(add, b.input(8, 128, 512), b.input(8, 128, 512))
    (kernel,) = kernels(check(b, y))
    assert [int(s) for s in kernel.stages[0].body.sizes] == [8 * 128 * 512]


def test_innermost_loop_is_the_contiguous_one():
    b = Builder()
    x = b.input(32, 48).permute(1, 0)
    out = b.buffer((48, 32), stride=(1, 48))  # the same layout as x
    b.pointwise(relu, x, out=out)
    (kernel,) = kernels(check(b, out))
    assert [int(s) for s in kernel.stages[0].body.sizes] == [48 * 32]


def test_vertical_reduction_keeps_the_contiguous_loop_innermost():
    b = Builder()
    (kernel,) = kernels(check(b, softmax(b, b.input(4, 96, 14, 14), 1)))
    assert [int(size) for _, size in kernel.outer] == [4]
    assert int(kernel.stages[0].body.sizes[-1]) == 196


def test_different_shapes_of_one_buffer_fuse():
    b = Builder()
    x = b.pointwise(relu, b.input(6, 8))
    y = b.pointwise(relu, x.view(2, 3, 8))
    (kernel,) = kernels(check(b, y))
    assert kernel.inputs == ("arg0",) and len(kernel.outputs) == 1


def test_a_transposed_reader_fuses():
    b = Builder()
    x = b.pointwise(relu, b.input(200, 80))
    y = b.pointwise(lambda o, a: o.exp(a), x.permute(1, 0))
    (kernel,) = kernels(check(b, y))
    assert len(kernel.stages) == 1


def test_what_reads_two_kernels_at_transposed_places_is_not_put_between_them():
    """The sum runs with the first, whose result it reads as that was written; the third alternates with the two."""
    b = Builder()
    x, y = b.input(3, 3), b.input(3, 3)
    product = b.pointwise(lambda o, a, c: o.mul(a, c), x, y)
    mask = b.pointwise(positive, x)
    check(b, b.pointwise(lambda o, m, a, c: o.where(m, a, c), mask, product.permute(1, 0), y), mask, product)


def test_a_reader_of_other_rows_does_not_share_the_row_loop():
    b = Builder()
    x = b.pointwise(relu, b.input(100, 300))
    y = b.pointwise(add, x.narrow(0, 1, 99), x.narrow(0, 0, 99))
    for kernel in kernels(check(b, y, x)):
        assert not kernel.outer


def test_a_reader_of_part_of_the_row_shares_the_row_loop():
    b = Builder()
    x = b.pointwise(relu, b.input(300, 128))
    half = b.pointwise(add, x.narrow(1, 0, 64), x.narrow(1, 64, 64))
    (kernel,) = kernels(check(b, half))
    assert len(kernel.outer) == 1 and kernel.scratch


def test_an_extern_call_between_two_nodes_keeps_them_apart():
    b = Builder()
    x = b.pointwise(relu, b.input(64, 64))
    y = b.extern(torch.ops.aten.mm.default, x, x, size=(64, 64))
    z = b.pointwise(add, x, y)
    made = check(b, z)
    assert [isinstance(step, KernelPlan) for step in made.steps] == [True, False, True]


def test_full_reduction_with_a_large_input_is_a_kernel_of_its_own():
    b = Builder()
    x = b.input(1 << 20)
    total = b.reduce("sum", x, [0], keepdim=True)
    y = b.pointwise(lambda o, a, t: o.truediv(a, t), x, total.expand(1 << 20))
    assert len(kernels(check(b, y))) == 2


def test_reductions_over_the_same_loops_share_them():
    b = Builder()
    x = b.input(128, 256)
    s = b.reduce("sum", x, [1])
    q = b.reduce("sum", x, [1], fn=lambda o, v: o.mul(v, v))
    m = b.reduce("max", x, [1])
    (kernel,) = kernels(check(b, s, q, m))
    (stage,) = kernel.stages
    assert sum(v.op == "load" for v in stage.body.statements) == 1


def test_dead_nodes_are_dropped():
    b = Builder()
    x = b.input(8, 8)
    b.pointwise(relu, x)
    y = b.pointwise(lambda o, a: o.exp(a), x)
    (kernel,) = kernels(check(b, y))
    assert all(v.op != "maximum" for v in kernel.stages[0].body.statements)


def test_in_place_reuse_of_a_dying_extern_result():
    b = Builder()
    w = b.input(64, 64)
    x = b.extern(torch.ops.aten.mm.default, w, w, size=(64, 64))
    y = b.pointwise(relu, x)
    made = check(b, y)
    assert made.aliases == {"buf1": "buf0"}
    (kernel,) = kernels(made)
    assert kernel.inputs == () and kernel.outputs == ("buf1",)


def test_a_row_kernel_writes_over_the_row_that_it_read():
    b = Builder()
    w, scale, bias = b.input(64, 256), b.input(256), b.input(256)
    x = b.extern(torch.ops.aten.neg.default, w, size=(64, 256))
    made = check(b, layer_norm(b, x, scale, bias))
    (kernel,) = kernels(made)
    assert len(kernel.stages) == 3 and set(made.aliases.values()) == {x.buffer}


def test_no_in_place_reuse_when_a_later_stage_still_reads():
    b = Builder()
    w = b.input(64, 256)
    x = b.extern(torch.ops.aten.neg.default, w, size=(64, 256))
    y = b.pointwise(relu, x)
    total = b.reduce("sum", y, [1], keepdim=True)
    z = b.pointwise(lambda o, v, t: o.sub(v, t), x, total.expand(64, 256))
    made = check(b, y, z)
    assert made.aliases.get(y.buffer) != x.buffer  # z, in a later stage, reads x


def test_no_in_place_reuse_when_the_index_differs():
    b = Builder()
    w = b.input(64, 64)
    x = b.extern(torch.ops.aten.mm.default, w, w, size=(64, 64))
    y = b.pointwise(relu, x.permute(1, 0))
    assert check(b, y).aliases == {}


def test_equal_kernels_share_a_name():
    b = Builder()
    x = b.input(64, 64)
    for _ in range(3):
        x = b.extern(torch.ops.aten.mm.default, b.pointwise(relu, x), x, size=(64, 64))
    made = check(b, x)
    assert len(kernels(made)) == 3 and len(made.kernels()) == 1


def test_constants_and_masks_run_just_before_their_first_use():
    b = Builder()
    x, m = b.input(64, 64), b.input(32, 32)
    mask = b.pointwise(relu, m)
    y = b.extern(torch.ops.aten.mm.default, x, x, size=(64, 64))
    z = b.extern(torch.ops.aten.mm.default, mask, mask, size=(32, 32))
    made = check(b, y, z)
    assert [isinstance(step, KernelPlan) for step in made.steps] == [False, True, False]


def test_small_kernels_are_joined():
    b = Builder()
    outs = [b.pointwise(relu, b.input(7)), b.pointwise(relu, b.input(11)), b.pointwise(relu, b.input(13))]
    assert len(kernels(check(b, *outs))) == 1


def test_argmax_keeps_the_order_of_its_loops():
    b = Builder()
    x = b.input(5, 6, 7, dtype=torch.int64)
    y = b.reduce("argmax", x.permute(2, 0, 1), [1, 2])
    z = b.reduce("argmax", x.permute(2, 1, 0), [1, 2])
    check(b, y, z)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (1, 1), (1, 5)])
def test_empty_and_single_element_loops(sizes):
    b = Builder()
    x = b.input(*sizes)
    y = b.pointwise(relu, x)
    check(b, y, b.reduce("sum", y, [1]), b.reduce("sum", y, [0, 1]))


# --- random programs

# Shapes of as many elements each, of one program. Where loops are as long as others, those of two nests can be matched
# in several ways; reads of the larger ones are worth sharing.
SHAPES = [
    [(4, 6), (2, 2, 6), (4, 2, 3), (24,), (6, 4), (2, 3, 4)],
    [(4, 4), (4, 4), (2, 2, 4), (16,)],
    [(20, 20), (20, 20), (400,)],
    [(3, 3, 3), (9, 3), (3, 9)],
]


def views(data, b, x, shapes):
    """A random view of x with all of its elements, or part of them."""
    kind = data.draw(st.sampled_from(["same", "permute", "view", "narrow", "same"]))
    if kind == "permute":
        return x.permute(*data.draw(st.permutations(range(len(x.size)))))
    contiguous = [int(s) for s in x.stride] == [int(s) for s in b.buffers[x.buffer].stride]
    numel = 1
    for n in x.size:
        numel *= int(n)
    if kind == "view" and contiguous and numel == math.prod(shapes[0]):
        return x.view(*data.draw(st.sampled_from(shapes)))
    if kind == "narrow":
        dim = data.draw(st.integers(0, len(x.size) - 1))
        if int(x.size[dim]) > 1:
            start = data.draw(st.integers(0, 1))
            return x.narrow(dim, start, int(x.size[dim]) - 1)
    return x


def random_program(data):
    """A builder, and what it is asked for."""
    b = Builder()
    shapes = data.draw(st.sampled_from(SHAPES))
    pool = [b.input(*data.draw(st.sampled_from(shapes))) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 9))):
        x = views(data, b, data.draw(st.sampled_from([t for t in pool if t.size])), shapes)
        kind = data.draw(st.sampled_from(["unary", "binary", "binary", "mask", "reduce", "normalise", "extern"]))
        if kind in ("unary", "binary", "mask"):
            order = data.draw(st.permutations(range(len(x.size))))
            out = b.buffer([x.size[d] for d in order]).permute(*(order.index(d) for d in range(len(order))))
        if kind == "unary":
            y = b.pointwise(relu, x, out=out)
        elif kind == "binary":
            same = [t for t in pool if t.size == x.size] or [x]
            other = views(data, b, data.draw(st.sampled_from(same)), shapes)
            y = b.pointwise(add, x, other if other.size == x.size else same[0], out=out)
        elif kind == "mask":
            mask = b.pointwise(positive, data.draw(st.sampled_from([t for t in pool if t.size == x.size] or [x])))
            y = b.pointwise(lambda o, m, v: o.where(m, v, o.constant(0, torch.float32)), mask, x, out=out)
        elif kind == "reduce":
            dims = data.draw(st.lists(st.integers(0, len(x.size) - 1), min_size=1, unique=True))
            y = b.reduce(data.draw(st.sampled_from(["sum", "max", "argmax"])), x, dims)
            if b.buffers[y.buffer].dtype is torch.int64:
                y = b.pointwise(lambda o, v: o.to_dtype(v, torch.float32), y)
        elif kind == "normalise":
            dim = data.draw(st.integers(0, len(x.size) - 1))
            total = b.reduce("sum", x, [dim], keepdim=True)
            y = b.pointwise(lambda o, v, t: o.sub(v, t), x, total.expand(*x.size))
        else:
            y = b.extern(torch.ops.aten.neg.default, x, size=[int(n) for n in x.size])
        pool.append(y)
    return b, data.draw(st.lists(st.sampled_from(pool[2:]), min_size=1, max_size=3, unique_by=id))


@settings(max_examples=sweeps.part(250, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    b, outputs = random_program(data)
    check(b, *outputs, threads=data.draw(st.sampled_from([1, 2])))
