"""Memory planning: buffers alive at the same time never share bytes, and bytes are reused."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import Builder

import argand
from argand._core import _C
from argand.codegen.host.memory import plan_memory
from argand.runtime import arena
from argand.runtime.arena import KeptBlocks, kept_blocks
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


def test_what_lives_long_keeps_its_place_beside_many_that_live_short():
    b, x = chain(1)
    long_lived = x
    for _ in range(70):
        x = b.extern(MM, x, long_lived, size=(64, 64), out_variant="torch.mm")
    last = b.extern(MM, x, long_lived, size=(64, 64), out_variant="torch.mm")
    made = schedule(b.program(last))
    plan = plan_memory(made)
    check_plan(plan, made)
    assert plan.nbytes == 3 * 64 * 64 * 4
    taken = [plan.offsets[name] for name in plan.offsets if name != long_lived.buffer]
    assert len(taken) == 70 and plan.offsets[long_lived.buffer] not in taken


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


def held_blocks() -> int:
    return sum(len(blocks) for blocks in kept_blocks._blocks.values())


def kept_chain() -> tuple[torch.nn.Module, Callable[..., torch.Tensor], torch.Tensor]:
    """A network that keeps 0.8 MB for its backward, the same compiled, an input."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.Softplus())))
    kept_blocks.clear()
    return module, argand.compile(copy.deepcopy(module), fullgraph=True), torch.randn(1024, 64)


def test_what_a_forward_keeps_takes_the_same_memory_in_each_step() -> None:
    module, compiled, x = kept_chain()
    for _ in range(3):
        x = torch.randn_like(x).requires_grad_()
        want, got = (torch.autograd.grad(call(x).square().sum(), x)[0] for call in (module, compiled))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert held_blocks() == 1


def test_forwards_whose_backwards_come_later_have_memory_of_their_own() -> None:
    module, compiled, x = kept_chain()
    inputs = [torch.randn_like(x).requires_grad_() for _ in range(3)]
    results = [compiled(each) for each in inputs]
    assert held_blocks() == 3
    for each, result in reversed([*zip(inputs, results)]):
        (want,) = torch.autograd.grad(module(each).square().sum(), each)
        for _ in range(2):
            (got,) = torch.autograd.grad(result.square().sum(), each, retain_graph=True)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    del result, results
    compiled(x)
    assert held_blocks() == 3


@pytest.mark.parametrize("storages", [False, True])
def test_kept_tensors_that_a_program_holds_are_not_written_over(storages: bool) -> None:
    _, compiled, x = kept_chain()
    held: list[torch.Tensor | torch.UntypedStorage] = []

    def hold(each: torch.Tensor) -> torch.Tensor:
        held.append(each.untyped_storage() if storages else each)
        return each

    def contents() -> list[torch.Tensor]:
        found = [each if isinstance(each, torch.UntypedStorage) else each.untyped_storage() for each in held]
        return [torch.empty(0, dtype=torch.uint8).set_(each).clone() for each in found]

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda each: each):
        compiled(x.requires_grad_()).sum().backward()
    before = contents()
    for _ in range(2):
        compiled(torch.randn_like(x)).sum().backward()
    assert held and all(torch.equal(*pair) for pair in zip(contents(), before))


def test_blocks_that_lost_their_memory_and_too_many_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = KeptBlocks()
    first = blocks.take(1 << 20)
    first.resize_(0)
    blocks.give(first, 1 << 20)
    assert blocks.take(1 << 20) is not first
    monkeypatch.setattr(arena, "MOST_KEPT", 3 << 20)
    for nbytes in (1 << 20, 2 << 20):
        blocks.give(blocks.take(nbytes), nbytes)
    blocks.give(blocks.take(3 << 20), 3 << 20)
    assert [*blocks._blocks] == [3 << 20]


def test_blocks_are_used_again_while_frames_are_captured() -> None:
    """CPython calls functions another way then, and holds what they are given once more."""
    blocks = KeptBlocks()
    first = blocks.take(1 << 20)
    place = id(first)
    blocks.give(first, 1 << 20)
    del first
    before = _C.set_callback(lambda *frame: _C.SKIP, "nothing")
    try:
        again = blocks.take(1 << 20)
    finally:
        _C.set_callback(*before)
    assert id(again) == place
