"""Results that are stored where an input was."""

from dataclasses import replace

import pytest
import torch
from loop_programs import Builder
from test_fusion import kernels, relu

import argand
from argand.errors import InternalError
from argand.ir.interpret import interpret
from argand.ir.target import cpu
from argand.schedule.inplace import write_inputs_in_place
from argand.schedule.pipeline import name_kernels, schedule
from argand.schedule.reference import run_schedule
from argand.schedule.verify import verify


def test_a_result_that_later_stages_read_is_stored_in_its_input():
    """An optimizer's counters: each is raised by one, and the new value goes into a vector of all."""
    b = Builder()
    outs = [b.pointwise(lambda o, v: o.add(v, o.constant(1.0, v.dtype)), b.input(5)) for _ in range(4)]
    total = b.buffer([20])
    for number, each in enumerate(outs):  # parts of one buffer: stages of their own
        b.pointwise(relu, each, out=total.narrow(0, 5 * number, 5))
    program = b.program(*outs, total)
    made = schedule(program)
    (plan,) = kernels(made)
    assert len(plan.stages) > 1
    write_inputs_in_place(made, [(f"arg{n}", n) for n in range(4)])
    assert made.aliases == {out.buffer: f"arg{n}" for n, out in enumerate(outs)} and not plan.inputs
    inputs = b.example()
    for one, two in zip(interpret(program, inputs), run_schedule(made, inputs), strict=True):
        torch.testing.assert_close(two, one)


def test_a_result_that_several_kernels_store_takes_no_memory_of_an_input():
    """The first of them would overwrite what the others read."""
    b = Builder()
    x = b.pointwise(relu, b.input(20))
    total = b.buffer([20])
    for number in range(4):
        part = b.pointwise(lambda o, v: o.add(v, o.constant(1.0, v.dtype)), x.narrow(0, 15 - 5 * number, 5))
        both = (part, x.narrow(0, 5 * number, 5))
        b.pointwise(lambda o, u, v: o.mul(u, v), *both, out=total.narrow(0, 5 * number, 5))
    program = b.program(b.pointwise(relu, total))
    made = schedule(program, targets=lambda device: replace(cpu(2), max_members=2, small_points=0))
    assert sum(total.buffer in plan.outputs for plan in kernels(made)) > 1
    assert total.buffer not in made.aliases
    inputs = b.example()
    for one, two in zip(interpret(program, inputs), run_schedule(made, inputs), strict=True):
        torch.testing.assert_close(two, one)


def test_a_result_that_is_written_in_parts_takes_over_no_memory_that_is_still_read():
    """The first part is written while another kernel has yet to read the buffer that dies with the second one."""
    b = Builder()
    x = b.input(16)
    dying = b.extern(torch.ops.aten.sin.default, x, size=[16])
    total = b.buffer([16])
    b.pointwise(relu, x.narrow(0, 0, 8), out=total.narrow(0, 0, 8))
    read = b.extern(torch.ops.aten.add.Tensor, total.narrow(0, 0, 8), dying.narrow(0, 0, 8), size=[8])
    b.pointwise(lambda o, u, v: o.add(u, v), dying.narrow(0, 8, 8), read, out=total.narrow(0, 8, 8))
    program = b.program(b.extern(torch.ops.aten.neg.default, total, size=[16]))
    inputs = b.example()
    for one, two in zip(interpret(program, inputs), run_schedule(schedule(program), inputs), strict=True):
        torch.testing.assert_close(two, one)


def test_parts_of_a_gradient_that_two_kernels_write():
    x = torch.linspace(-1, 1, 8).view(2, 2, 2).mT.contiguous().mT
    tau, y = torch.linspace(0.1, 0.4, 4).view(2, 2), torch.linspace(1, 2, 8).view(2, 2, 2)

    def function(x, tau, y):
        return torch.ormqr(x, tau, y, left=True, transpose=True)

    def gradients(made):
        given = [one.clone().requires_grad_() for one in (x, tau, y)]
        return torch.autograd.grad(made(*given).sin().sum(), given)

    for one, two in zip(gradients(function), gradients(argand.compile(function)), strict=True):
        torch.testing.assert_close(two, one)


@pytest.mark.parametrize("first", ["a", "b", None])
@pytest.mark.parametrize("second", ["a", "b", None])
def test_kernels_that_did_the_same_until_one_was_to_store_in_an_input(first, second):
    """They shared a compiled function, whose arguments are another number or in another order now."""

    def function(x, y, product):
        one = x["a"] - x["b"]
        if first:
            x[first].copy_(one)
        product = product @ product
        two = y["a"] - y["b"]
        if second:
            y[second].copy_(two)
        return product, *(each for each, name in ((one, first), (two, second)) if name is None)

    def given():
        torch.manual_seed(0)
        return [*({name: torch.randn(8, 8) for name in "ab"} for _ in range(2)), torch.randn(8, 8)]

    ours, theirs = given(), given()
    torch.testing.assert_close(argand.compile(function)(*ours), function(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_the_verifier_tells_kernels_of_one_name_that_differ():
    b = Builder()
    one, two = (b.pointwise(lambda o, u, v: o.sub(u, v), b.input(5), b.input(5)) for _ in range(2))
    outs = [one, b.extern(torch.ops.aten.neg.default, one, size=[5]), two]
    made = schedule(b.program(*outs), targets=lambda device: replace(cpu(1), max_members=1, small_points=0))
    assert len({plan.name for plan in kernels(made)}) == 1
    assert write_inputs_in_place(made, [("arg0", 0), ("arg3", 2)])
    with pytest.raises(InternalError, match="two kernels that differ"):
        verify(made)
    name_kernels(made)
    verify(made)
    assert len({plan.name for plan in kernels(made)}) == 2
