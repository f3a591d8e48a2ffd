"""Results that are stored where an input was."""

import torch
from loop_programs import Builder
from test_fusion import kernels, relu

from argand.ir.interpret import interpret
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
