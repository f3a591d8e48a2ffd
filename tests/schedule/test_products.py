"""Kernels that may take the place of products and what reads them: each program computes the same with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from loop_programs import Builder
from product_programs import ALONE, FUSED, MEMORY, OPERANDS, Products, activation, gated, half, needed_twice, plain

import argand
from argand import events
from argand.codegen.host.library_products import literal_of
from argand.ir.interpret import interpret
from argand.ir.kernel import KernelPlan, Tile
from argand.ir.loops import ExternNode
from argand.ir.target import cpu, gpu
from argand.lower.registry import REGISTRY
from argand.schedule.pipeline import schedule
from argand.schedule.products import rules as product_rules
from argand.schedule.products.kernels import TILES, adopt, named, product_names, proposals, tiles_for, with_tile
from argand.schedule.products.operands import with_operands
from argand.schedule.products.rules import ACTIVATED, choose_by_rule
from argand.schedule.reference import run_schedule
from argand.schedule.verify import verify

TILE = Tile(64, 64, 32, 4, 2)


def scheduled(p, outputs):
    program = p.b.program(*outputs)
    return program, schedule(program, targets=lambda _: gpu(132))


def adopted(made):
    found = proposals(made, "ieee")
    names = product_names(made)
    adopt(made, [(proposal, named(with_tile(proposal, TILE), names)) for proposal in found])
    verify(made)
    return found


def same(program, made, inputs):
    wanted, got = interpret(program, inputs), run_schedule(made, inputs)
    for one, two in zip(wanted, got, strict=True):
        torch.testing.assert_close(two, one, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FUSED, *ALONE], ids=lambda fn: fn.__name__)
def test_products_and_their_readers(name, dtype):
    p = Products(dtype)
    program, made = scheduled(p, name(p))
    inputs = [x / 4 for x in p.b.example()]
    kernels = len(made.steps)
    found = adopted(made)
    fused = [proposal for proposal in found if len(proposal.replaced) == 2]
    assert bool(fused) is (name in FUSED)
    assert len(made.steps) == kernels - len(fused)
    same(program, made, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*OPERANDS, *MEMORY], ids=lambda fn: fn.__name__)
def test_operands_that_the_kernel_computes(name, dtype):
    p = Products(dtype)
    program, made = scheduled(p, name(p))
    inputs = [x / 4 for x in p.b.example()]
    before = len(made.steps)
    names, chosen = product_names(made), []
    for proposal in proposals(made, "ieee"):
        more = with_operands(made, proposal)
        chosen.append((more or proposal, named(with_tile(more or proposal, TILE), names)))
        assert (more is not None) is (name in OPERANDS)
    gone = sum(len(proposal.replaced) - 1 for proposal, _ in chosen)
    adopt(made, chosen)
    verify(made)
    assert len(made.steps) == before - gone
    same(program, made, inputs)


def test_the_memory_of_an_operand_is_not_written_over():
    """A kernel of many programs that do not wait for each other may not write to what all of them read."""
    from product_programs import over_its_operand

    p = Products(torch.bfloat16)
    _, made = scheduled(p, over_its_operand(p))
    assert made.aliases  # else there is nothing to be tested
    (proposal,) = proposals(made, "ieee")
    assert len(proposal.replaced) == 1


def test_of_two_products_that_one_kernel_reads_the_later_takes_it():
    p = Products(torch.bfloat16)
    _, made = scheduled(p, gated(p))
    first, second = proposals(made, "ieee")
    assert (len(first.replaced), len(second.replaced)) == (1, 2)
    assert first.plan.outputs[0] in second.plan.inputs


def test_a_product_that_others_need_is_stored_too():
    p = Products(torch.bfloat16)
    _, made = scheduled(p, needed_twice(p))
    (proposal,) = proposals(made, "ieee")
    assert len(proposal.plan.outputs) == 2


def test_kernels_that_do_the_same_share_a_name():
    b = Products(torch.bfloat16)
    x = b.input(b.m, b.m)
    outputs = [b.mm(x, b.input(b.m, b.m)) for _ in range(3)]
    _, made = scheduled(b, outputs)
    adopted(made)
    assert len(made.steps) == 3 and len(made.kernels()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kwargs": {"beta": 2}},
        {"out_variant": None},
        {"target": torch.ops.aten.baddbmm.default},
    ],
    ids=str,
)
def test_other_calls_stay(change):
    p = Products(torch.bfloat16)
    _, made = scheduled(p, plain(p))
    made.steps[0] = replace(made.steps[0], **change)
    assert proposals(made, "ieee") == []


@pytest.mark.parametrize("sizes", [{"m": 8}, {"k": 8}, {"n": 8}], ids=str)
def test_thin_products_stay(sizes):
    p = Products(torch.bfloat16, **sizes)
    _, made = scheduled(p, plain(p))
    assert proposals(made, "ieee") == []


def test_products_of_integers_and_doubles_and_of_a_cpu_stay():
    for dtype in (torch.float64, torch.int64):
        p = Products(dtype)
        _, made = scheduled(p, plain(p))
        assert proposals(made, "ieee") == []
    p = Products(torch.float32)
    made = schedule(p.b.program(*plain(p)), targets=lambda _: cpu(4))
    assert proposals(made, "ieee") == [] and choose_by_rule(made) == 0


def test_products_of_sizes_that_vary_stay():
    from argand.graph.sizes.expr import Sym

    p = Products(torch.bfloat16)
    _, made = scheduled(p, [p.mm(p.input(Sym("s0"), p.k))])
    assert proposals(made, "ieee") == []


def test_tiles_fit_the_memory_of_a_program():
    p = Products(torch.bfloat16, 4096, 768, 3072)
    _, made = scheduled(p, plain(p))
    (proposal,) = proposals(made, "ieee")
    assert tiles_for(proposal.plan, gpu(132))[0] == TILES["half"][0]
    small = tiles_for(proposal.plan, gpu(132, 64 << 10))
    assert small and all((t.rows + t.columns) * t.inner * 2 * t.stages <= 64 << 10 for t in small)


# ----------------------------------------------------------------------- by rule


def gelu(o, x):
    constant = lambda value: o.constant(value, torch.float32)
    inner = o.add(x, o.mul(constant(0.044715), o.mul(o.mul(x, x), x)))
    return o.mul(o.mul(constant(0.5), x), o.add(constant(1.0), o.tanh(o.mul(constant(0.7978845608028654), inner))))


def relu(o, x):
    return o.maximum(o.constant(0.0, torch.float32), x)


def down(p, x):
    return p.mm(x, p.input(p.n, p.k))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("function", [gelu, relu, lambda o, x: o.mul(gelu(o, x), x)], ids=["gelu", "relu", "more"])
def test_activations_are_the_librarys(bias, function):
    p = Products(torch.bfloat16)
    hidden = half(p.b, function, p.mm(bias=bias).view(4, p.m // 4, p.n))
    program, made = scheduled(p, [down(p, hidden.view(p.m, p.n))])
    count = choose_by_rule(made)
    verify(made)
    calls = [step for step in made.steps if isinstance(step, ExternNode) and step.out_variant == ACTIVATED]
    assert count == len(calls) == (1 if bias and function in (gelu, relu) else 0)
    if calls:
        assert calls[0].kwargs == {"use_gelu": function is gelu} and len(made.steps) == 2
        assert tuple(map(int, made.buffers[calls[0].outputs[0]].size)) == (p.m, p.n)


def test_activated_products_go_past_aten():
    p = Products(torch.bfloat16)
    hidden = half(p.b, relu, p.mm(bias=True))
    made = schedule(p.b.program(down(p, hidden)), targets=lambda _: gpu(132, direct_products=True))
    assert choose_by_rule(made) == 1
    node = made.steps[0]
    assert literal_of(node, made)[-2:] == (True, "relu")
    assert literal_of(replace(node, kwargs={"use_gelu": True}), made)[-1] == "gelu"
    assert literal_of(replace(node, kwargs={}), made) is None


def test_a_result_of_the_program_keeps_its_own_gelu():
    """Its shape is the user's."""
    p = Products(torch.bfloat16)
    _, made = scheduled(p, [half(p.b, gelu, p.mm(bias=True))])
    assert choose_by_rule(made) == 0
    other = replace(gpu(132), activated_products=False)
    p = Products(torch.bfloat16)
    made = schedule(p.b.program(down(p, half(p.b, gelu, p.mm(bias=True)))), targets=lambda _: other)
    assert choose_by_rule(made) == 0


def test_products_with_uneven_rows_of_results_are_kernels(monkeypatch):
    monkeypatch.setattr(product_rules, "_UNEVEN_LEAST_TERMS", 1)
    p = Products(torch.bfloat16, 64, 64, 69)
    program, made = scheduled(p, [half(p.b, lambda o, x: o.mul(x, x), p.mm())])
    assert choose_by_rule(made) == 1
    verify(made)
    (plan,) = made.steps
    assert isinstance(plan, KernelPlan) and plan.product is not None
    same(program, made, [x / 4 for x in p.b.example()])


@pytest.mark.parametrize(
    "dtype, sizes", [(torch.float32, (64, 64, 69)), (torch.bfloat16, (64, 64, 72)), (torch.bfloat16, (64, 65, 69))]
)
def test_other_products_are_not(monkeypatch, dtype, sizes):
    monkeypatch.setattr(product_rules, "_UNEVEN_LEAST_TERMS", 1)
    p = Products(dtype, *sizes)
    _, made = scheduled(p, plain(p))
    assert choose_by_rule(made) == 0


@pytest.mark.parametrize("activation", [lambda x: F.gelu(x, approximate="tanh"), F.relu], ids=["gelu", "relu"])
def test_a_builder_of_this_file_makes_what_lowering_does(activation, monkeypatch):
    """The text by which an activation is known is that of its lowering."""
    monkeypatch.delitem(REGISTRY.entries, torch.ops.aten.addmm.default)  # as for a GPU
    seen = []
    remove = events.bus.subscribe(seen.append, ("fused_graph",))
    try:
        args = torch.randn(32, 32), torch.randn(48, 32), torch.randn(48), torch.randn(16, 48)
        with argand.config.patch(reuse_graphs=False):
            argand.compile(lambda *a: F.linear(activation(F.linear(*a[:3])), a[3]))(*args)
    finally:
        remove()
    made = seen[-1].data["schedule"]
    made.targets = {torch.device("cpu"): gpu(132)}
    assert choose_by_rule(made) == 1


def test_programs_without_products_are_left_alone():
    b = Builder()
    made = schedule(b.program(b.pointwise(lambda o, x: o.mul(x, x), b.input(64))), targets=lambda _: gpu(132))
    assert proposals(made, "ieee") == [] and choose_by_rule(made) == 0
    p = Products(torch.bfloat16)
    made = schedule(p.b.program(*activation(p)), targets=lambda _: gpu(132), fusion=False)
    assert len(proposals(made, "ieee")) == 1
