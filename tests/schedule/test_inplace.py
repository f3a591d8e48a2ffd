"""Results that are stored where an input was."""

from dataclasses import replace

import torch
from loop_programs import Builder
from test_fusion import kernels, relu

from argand.ir.interpret import interpret
from argand.ir.target import cpu
from argand.schedule.inplace import write_inputs_in_place
from argand.schedule.pipeline import schedule
from argand.schedule.reference import run_schedule


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
