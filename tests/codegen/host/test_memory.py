"""Memory planning: buffers alive at the same time never share bytes, and bytes are reused."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder

from argand.codegen.host.memory import plan_memory
from argand.schedule.pipeline import schedule
from memory_plans import check_plan

MM = torch.ops.aten.mm.default


def relu(o, a):
    return o.maximum(a, o.constant(0, torch.float32))


def chain(length):
    b = Builder()
    w = b.input(64, 64)
    x = w
    for _ in range(length):
        x = b.extern(MM, x, w, size=(64, 64), out_variant="torch.mm")
    return b, x


def test_a_chain_needs_two_buffers():
    b, x = chain(6)
    plan = plan_memory(schedule(b.program(x)))
    assert plan.nbytes == 2 * 64 * 64 * 4
    assert list(plan.allocated) == [x.buffer]  # the caller's result is not in the arena


def test_without_arena_buffers_are_allocated_and_freed():
    b, x = chain(4)
    plan = plan_memory(schedule(b.program(x)), arena=False)
    assert plan.nbytes == 0 and len(plan.allocated) == 4
    freed = [name for names in plan.frees.values() for name in names]
    assert sorted(freed) == ["arg0", "buf0", "buf1", "buf2"]  # the input too: the caller may have given it up


def test_results_that_may_be_views_keep_their_arguments_alive():
    b = Builder()
    x = b.input(8, 8)
    y = b.extern(MM, x, x, size=(8, 8), out_variant="torch.mm")
    v = b.extern(torch.ops.aten.t.default, y, size=(8, 8))
    z = b.extern(MM, x, x, size=(8, 8), out_variant="torch.mm")
    w = b.extern(MM, v, z, size=(8, 8), out_variant="torch.mm")
    plan = plan_memory(schedule(b.program(w)))
    check_plan(plan, schedule(b.program(w)))
    assert plan.live["buf0"].last == plan.live["buf1"].last


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs_never_overlap(data):
    b = Builder()
    pool = [b.input(8, 8)]
    for _ in range(data.draw(st.integers(1, 14))):
        x, y = (data.draw(st.sampled_from(pool)) for _ in range(2))
        kind = data.draw(st.sampled_from(["out", "returned", "loop"]))
        if kind == "loop":
            pool.append(b.pointwise(lambda o, p, q: o.add(p, q), x, y))
        else:
            pool.append(b.extern(MM, x, y, size=(8, 8), out_variant="torch.mm" if kind == "out" else None))
    outputs = data.draw(st.lists(st.sampled_from(pool[1:]), min_size=1, max_size=3, unique_by=id))
    made = schedule(b.program(*outputs))
    plan = plan_memory(made)
    check_plan(plan, made)
    for name in [o.buffer for o in outputs]:
        root = name
        while root in plan.same_as:
            root = plan.same_as[root]
        assert root not in plan.offsets
