"""Reductions in two kernels: when they are, and that they compute the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder
from test_fusion import add, kernels, relu

import sweeps
from argand.graph.sizes.expr import Sym, Var
from argand.ir.interpret import interpret
from argand.ir.loops import LoopBody, LoopNode, identity
from argand.ir.target import cpu, gpu
from argand.lower.recorder import Recorder
from argand.schedule.access import has_effect
from argand.schedule.pipeline import schedule
from argand.schedule.reference import run_schedule
from argand.schedule.split import KINDS, POSITIONS, split_reductions
from argand.schedule.verify import verify

TARGET = replace(gpu(4), split_reduction=16)
DTYPES = {"sum": torch.float64, "prod": torch.float64, "max": torch.float32, "min": torch.int64, "any": torch.bool}
DTYPES.update(argmax=torch.float32, argmin=torch.int64)


def compared(program, inputs, target=TARGET):
    """The schedule of a program whose results are as without it."""
    made = schedule(program, targets=lambda _: target)
    verify(made)
    for one, two in zip(interpret(program, inputs), run_schedule(made, inputs), strict=True):
        torch.testing.assert_close(two, one, equal_nan=True)
    return made


def values(size, dtype):
    if dtype is torch.bool:
        return torch.rand(size) < 0.02
    if dtype is torch.int64:
        return torch.randint(-1000, 1000, size)
    return torch.rand(size, dtype=dtype) + 0.5


@pytest.mark.parametrize(("kind", "size"), sweeps.chessboard(KINDS, [(4096,), (1009,), (3, 211), (2, 2, 500), (7, 1)]))
def test_every_kind_with_and_without_a_remainder(kind, size):
    b = Builder()
    x = b.input(*size, dtype=DTYPES[kind])
    made = compared(b.program(b.reduce(kind, x, list(range(len(size))))), [values(size, DTYPES[kind])])
    assert len(kernels(made)) == (1 if size == (7, 1) else 3 if kind in POSITIONS else 2)


def test_nan_and_infinities_go_through():
    for kind in ("max", "min", "sum"):
        for special in (float("nan"), float("inf"), float("-inf")):
            b = Builder()
            x = torch.randn(997)
            x[500] = special
            compared(b.program(b.reduce(kind, b.input(997), [0])), [x])
            compared(b.program(b.reduce(kind, b.input(997), [0])), [x, torch.full((997,), special)])


def test_chunks_divide_the_loop_where_they_can():
    b = Builder()
    first, second = kernels(compared(b.program(b.reduce("sum", b.input(6000), [0])), [torch.randn(6000)]))
    (count,) = map(int, first.stages[0].body.sizes)
    assert count >= TARGET.threads and 6000 % count == 0 and int(second.stages[0].body.reduction_sizes[0]) == count
    assert all(statement.op != "masked" for statement in first.stages[0].body.statements)


def test_few_columns_are_split_and_many_are_not():
    for columns, count in ((40, 2), (4096, 1)):
        b = Builder()
        made = compared(b.program(b.reduce("sum", b.input(600, columns), [0])), [torch.randn(600, columns)])
        assert len(kernels(made)) == count


def test_the_default_target_splits_what_keeps_one_processor_long():
    b = Builder()
    outputs = [b.reduce("sum", b.input(1 << 20), [0]), b.reduce("sum", b.input(1 << 14), [0])]
    outputs += [b.reduce("sum", b.input(8192, 768), [0]), b.reduce("sum", b.input(8192, 768), [1])]
    program = b.program(*outputs)
    split = split_reductions(program, {torch.device("cpu"): gpu(132)})
    assert [node.name for node in split.nodes] == ["op0_chunks", "op0", "op1", "op2_chunks", "op2", "op3"]
    for threads, names in ((4, ["op0", "op1", "op2_chunks", "op2", "op3"]), (256, ["op0", "op1", "op2", "op3"])):
        columns = split_reductions(program, {torch.device("cpu"): cpu(threads)})
        assert [node.name for node in columns.nodes] == names


def test_what_follows_and_precedes_a_reduction_is_kept():
    b = Builder()
    x, w = b.input(2, 999), b.input(2, 999)
    mean = b.reduce(
        "sum", x, [1], fn=lambda o, v, c: o.mul(o.exp(v), c), post=lambda o, v: o.sqrt(o.abs(v)), extra=(w,)
    )
    y = b.pointwise(add, mean, b.pointwise(relu, mean))
    compared(b.program(y, mean), [torch.randn(2, 999), torch.randn(2, 999)])


def test_producers_fuse_with_the_chunks():
    b = Builder()
    t = b.pointwise(relu, b.input(32, 64))
    made = compared(b.program(b.reduce("sum", t, [0, 1])), [torch.randn(32, 64)])
    assert len(kernels(made)) == 2


def several(size, kinds, rows=2):
    """A node of several reductions that share a position looked up inside, and one outside, of the loops."""
    b = Builder()
    x, places, scale = b.input(rows, 50), b.input(size, dtype=torch.int64), b.input(rows)
    out = b.buffer((len(kinds), rows))
    row, r = Var("z0"), Var("r0")
    ops = Recorder({row: out.size[1], r: x.size[1]})
    factor = ops.load(scale.buffer, row, torch.float32)
    place = ops.indirect(ops.load(places.buffer, r, torch.int64), x.size[1], True)
    value = ops.mul(ops.load(x.buffer, row * 50 + Var(f"i{place.id}"), torch.float32), factor)
    ops.store(out.buffer, row, factor)
    for number, kind in enumerate(kinds):
        ops.store(out.buffer, row + number * rows, ops.add(ops.reduction(kind, value), factor))
    body = LoopBody((row,), (out.size[1],), (r,), (places.size[0],), ops.statements)
    b.nodes.append(LoopNode("op", body, (out.buffer,)))
    return b, out


@pytest.mark.parametrize("size", [512, 509])
def test_several_reductions_over_looked_up_elements(size):
    b, out = several(size, ["sum", "max", "sum"])
    inputs = [torch.randn(2, 50), torch.randint(-50, 50, (size,)), torch.randn(2)]
    assert len(kernels(compared(b.program(out), inputs))) == 2
    inputs[1][-1] = 50
    with pytest.raises(IndexError):
        run_schedule(schedule(b.program(out), targets=lambda _: TARGET), inputs)


SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0]


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("size", [(4096,), (1009,), (3, 211), (2, 2, 500)])
def test_positions_are_those_of_the_first_extremum(kind, size):
    """Also among equals, infinities and NaN, of which the first wins."""
    count = torch.Size(size).numel()
    for value in SPECIAL:
        for places in ([], [0], [count - 1], [count // 2, count // 3], list(range(count))):
            b = Builder()
            x = torch.randint(-3, 4, size).float()
            x.view(-1)[places] = value
            made = compared(b.program(b.reduce(kind, b.input(*size), list(range(len(size))))), [x])
            assert len(made.steps) == 3
            if not torch.isnan(x).any():
                (got,) = run_schedule(made, [x])
                assert int(got) == int((x if kind == "argmax" else -x).argmax())
            else:
                (got,) = run_schedule(made, [x])
                assert int(got) == int(torch.isnan(x).view(-1).int().argmax())


def test_positions_beside_other_reductions():
    b, out = several(509, ["sum", "max"])
    b2 = Builder()
    x = b2.input(2, 999, dtype=torch.int64)
    compared(b2.program(b2.reduce("argmin", x, [1]), b2.reduce("min", x, [1])), [torch.randint(-5, 5, (2, 999))])
    compared(b.program(out), [torch.randn(2, 50), torch.randint(-50, 50, (509,)), torch.randn(2)])


def test_positions_of_half_precision_are_left_alone():
    b = Builder()
    made = compared(
        b.program(b.reduce("argmax", b.input(4096, dtype=torch.bfloat16), [0])), [torch.randn(4096).bfloat16()]
    )
    assert len(made.steps) == 1


def test_values_stored_inside_the_loops_are_left_alone():
    b = Builder()
    x, out, total = b.input(512), b.buffer((512,)), b.buffer(())
    r = Var("r0")
    ops = Recorder({r: x.size[0]})
    value = ops.exp(ops.load(x.buffer, r, torch.float32))
    ops.store(out.buffer, r, value)
    ops.store(total.buffer, x.offset, ops.reduction("sum", value))
    b.nodes.append(LoopNode("op", LoopBody((), (), (r,), x.size, ops.statements), (out.buffer, total.buffer)))
    assert len(kernels(compared(b.program(out, total), [torch.randn(512)]))) == 1


@pytest.mark.parametrize("actual", [0, 1, 5, 95, 96, 97, 1000])
def test_sizes_that_vary(actual):
    n = Sym("s0", 0)
    for kind in KINDS:
        b = Builder()
        x = b.input(3, n, dtype=DTYPES[kind])
        program = b.program(b.reduce(kind, x, [1]))
        program.input_symbols = [("s0", x.buffer, 1)]
        made = compared(program, [values((3, actual), DTYPES[kind])])
        assert len(made.steps) == 2 and not any(map(has_effect, split_reductions(program, made.targets).nodes))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_reductions(data):
    size = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    dims = data.draw(st.lists(st.integers(0, len(size) - 1), min_size=1, unique=True))
    kind = data.draw(st.sampled_from(KINDS))
    target = replace(gpu(data.draw(st.integers(1, 8))), split_reduction=data.draw(st.sampled_from([1, 8, 64])))
    b = Builder()
    x = b.input(*size, dtype=DTYPES[kind])
    order = data.draw(st.permutations(range(len(size))))
    y = b.reduce(kind, x.permute(*order), dims)
    compared(b.program(y), [values(size, DTYPES[kind])], target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.int64, torch.uint8])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_identities_change_nothing(kind, dtype):
    number = torch.tensor(identity(kind, dtype), dtype=dtype)
    combine = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}[kind]
    x = torch.tensor([0, 1, 100], dtype=dtype)
    assert torch.equal(combine(x, number), x)
