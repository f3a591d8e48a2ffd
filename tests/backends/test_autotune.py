"""Which products become kernels, by times that the tests make up; programs with such kernels are in `interpreted_programs.py`."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import warm
from argand import events
from argand.backends import autotune
from argand.codegen.triton.spec import KernelSpec, TritonSource
from argand.config import config
from argand.ir.kernel import KernelPlan
from argand.ir.target import gpu
from argand.schedule.pipeline import schedule
from argand.schedule.reference import run_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "schedule"))
from product_programs import (
    Products,
    activation,
    both_operands,
    cast_weight,
    half,
    operand_that_dies,
    plain,
    product_that_dies,
    residual,
    residual_that_dies,
    silu,
    used,
)

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
TARGET = replace(gpu(132), activated_products=False)


class Timer:
    """Gives the k-th way of each product the k-th time; counts."""

    def __init__(self, *times):
        self.times, self.asked = times, 0

    def __call__(self, calls, device):
        self.asked += 1
        for call in calls:
            call()
        return [self.times[min(place, len(self.times) - 1)] for place in range(len(calls))]


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Kernels that do nothing, taken for right."""
    launched = []

    def load(text, specs, device):
        return [lambda *args, name=name: launched.append(name) for name in specs]

    monkeypatch.setattr(autotune, "load_triton_kernels", load)
    monkeypatch.setattr(autotune._Trial, "_agrees", lambda *args: True)
    with config.patch(cache_dir=str(tmp_path / "cache")):
        from argand.runtime import cache

        cache.reset()
        yield launched
        cache.reset()


def made(program, dtype=torch.bfloat16):
    p = Products(dtype)
    return schedule(p.b.program(*program(p)), targets=lambda _: TARGET)


def kernels(schedule):
    return [step for step in schedule.steps if isinstance(step, KernelPlan) and step.product is not None]


def heard(run):
    seen = []
    remove = events.bus.subscribe(seen.append, ("autotuning",))
    try:
        result = run()
    finally:
        remove()
    return result, seen


def test_the_fastest_way_is_taken_and_told(fake):
    (found, precision), seen = heard(lambda: autotune.tuned_schedule(made(activation), Timer(100.0, 50.0, 40.0, 60.0)))
    (plan,) = kernels(found)
    assert precision is None and len(found.steps) == 1
    (event,) = seen
    tile = str(plan.product.tile)
    assert event.data["chosen"] == tile and event.data["times"]["ATen"] == 100.0
    assert tile in event.text() and "40.0 us" in event.text() and "silu" not in plan.name.split("_")[0]


def test_operands_may_be_computed_too(fake):
    """Each way with and without them; what is slower stays a kernel of its own."""

    def later_is_faster(calls, device):
        return [100.0 - place for place in range(len(calls))]

    def earlier_is_faster(calls, device):
        return [100.0] + [50.0 + place for place in range(1, len(calls))]

    before = made(both_operands)
    (found, _), seen = heard(lambda: autotune.tuned_schedule(before, later_is_faster))
    assert len(found.steps) == 1 and seen[0].data["chosen"].startswith("operands computed")
    before = made(cast_weight)
    found, _ = autotune.tuned_schedule(before, earlier_is_faster)
    assert len(found.steps) == len(before.steps) - 1 == 2  # the cast, and the product with its activation


def test_a_kernel_must_be_clearly_faster(fake):
    before = made(activation)
    (found, _), seen = heard(lambda: autotune.tuned_schedule(before, Timer(100.0, 99.0)))
    assert kernels(found) == [] and len(found.steps) == len(before.steps)
    assert seen[0].data["chosen"] == "ATen"


def test_the_given_schedule_stays(fake):
    before = made(residual)
    steps, buffers, aliases = list(before.steps), dict(before.buffers), dict(before.aliases)
    autotune.tuned_schedule(before, Timer(100.0, 1.0))
    assert (before.steps, before.buffers, before.aliases) == (steps, buffers, aliases)


def test_times_are_kept(fake):
    timer = Timer(100.0, 50.0)
    first, _ = autotune.tuned_schedule(made(activation), timer)
    (second, _), seen = heard(lambda: autotune.tuned_schedule(made(activation), timer))
    assert timer.asked == 1 and seen[0].data["cached"] and "(known)" in seen[0].text()
    assert kernels(first)[0].product.tile == kernels(second)[0].product.tile
    autotune.tuned_schedule(made(residual), timer)  # something else
    autotune.tuned_schedule(made(activation, torch.float16), timer)
    assert timer.asked == 3


def test_equal_products_are_timed_once(fake):
    def several(p):
        x = p.input(p.m, p.k)
        for _ in range(3):
            x = half(p.b, silu, p.mm(x, p.input(p.k, p.k), bias=True))
        return [used(p, x)]

    timer = Timer(100.0, 50.0)
    found, _ = autotune.tuned_schedule(made(several), timer)
    assert timer.asked == 1 and len(kernels(found)) == 3 and len({plan.name for plan in kernels(found)}) == 1


def test_a_note_that_is_none_is_not_believed(fake):
    from argand.runtime import cache

    timer = Timer(100.0, 50.0)
    autotune.tuned_schedule(made(activation), timer)
    for path in cache.directory().glob("product-*.note"):
        path.write_text("{}")
    autotune.tuned_schedule(made(activation), timer)
    assert timer.asked == 2


@pytest.mark.parametrize(
    "program", [plain, residual_that_dies, product_that_dies, operand_that_dies], ids=lambda fn: fn.__name__
)
@pytest.mark.parametrize("right", [True, False])
def test_kernels_that_compute_something_else_are_not_taken(fake, monkeypatch, program, right):
    """Each is compared with ATen's steps, also where these write over what they read."""
    monkeypatch.undo()
    before = made(program)
    plans = {}

    def generate(wanted, processors):
        plans.update({plan.name: plan for plan in wanted})
        return TritonSource("", {plan.name: KernelSpec(plan.name, (), (), 4, 1, (), ()) for plan in wanted})

    def load(text, specs, device):
        return [functools.partial(run, plans[name]) for name in specs]

    def run(plan, *args):
        """The kernel, by its definition; a wrong one writes nothing."""
        names = (*plan.inputs, *plan.outputs)
        memory = {name: arg.as_strided((arg.numel(),), (1,)) for name, arg in zip(names, args[3:])}
        if right or plan.product is None:
            run_kernel(plan, {}, memory)

    monkeypatch.setattr(autotune, "generate", generate)
    monkeypatch.setattr(autotune, "load_triton_kernels", load)
    found, _ = autotune.tuned_schedule(before, Timer(100.0, 50.0))
    assert bool(kernels(found)) is right


def test_a_refused_kernel_is_left_out(fake, monkeypatch):
    from argand.errors import GpuError

    inner = autotune.load_triton_kernels

    def load(text, specs, device):
        if any(name.endswith("_0") for name in specs):
            raise GpuError("out of shared memory")
        return inner(text, specs, device)

    monkeypatch.setattr(autotune, "load_triton_kernels", load)
    timer = Timer(100.0, 50.0)
    found, _ = autotune.tuned_schedule(made(plain), timer)
    assert len(kernels(found)) == 1


def test_float32_products_are_bound_to_the_setting(fake):
    from argand.backends.programs.generation import _with_precision

    _, precision = autotune.tuned_schedule(made(activation, torch.float32), Timer(100.0, 50.0))
    assert precision == "ieee"
    calls = []
    run = _with_precision(
        lambda args: calls.append("own") or (), "ieee", lambda: lambda args: calls.append("ATen") or ()
    )
    matmul = torch.backends.cuda.matmul
    run([])
    before = matmul.allow_tf32
    try:
        matmul.allow_tf32 = True
        run([])
    finally:
        matmul.allow_tf32 = before
    run([])
    assert calls == ["own", "ATen", "own"]


def test_numbers_for_timing_are_not_the_programs(fake):
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    autotune.tuned_schedule(made(activation), Timer(100.0, 50.0))
    assert torch.equal(torch.rand(4), wanted)


def test_only_the_modes_that_say_so_are_tuned():
    """Nothing of it is imported in the others."""
    code = (
        "import torch, argand, sys\n"
        "argand.compile(lambda x: torch.relu(x @ x))(torch.randn(8, 8))\n"
        "assert not any(name in sys.modules for name in ('argand.backends.autotune', 'argand.backends.layouts'))"
    )
    warm.run(["-c", code], check=True)
