"""Schedules of graphs that communicate: starts in order, ends late, and memory left alone in between."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # says what the operators give
from torch import fx

from argand.autograd.tracing.trace import trace_inference
from argand.backends.programs.generation import schedule_program
from argand.codegen.host.memory import MemoryPlan, nbytes, plan_memory
from argand.errors import InternalError
from argand.ir.kernel import Schedule, memory_of
from argand.ir.loops import ExternNode
from argand.passes.pipeline import run_passes
from argand.schedule import collectives
from argand.schedule.access import touched
from argand.schedule.collectives import is_end, is_start, overlap, verify_collectives
from memory_plans import check_plan

OPS = torch.ops._c10d_functional
SIZE = 2


@pytest.fixture(autouse=True)
def no_size_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "SMALL", 0)


def scheduled(function: Any, *inputs: torch.Tensor) -> Schedule:
    program = trace_inference(fx.symbolic_trace(function), list(inputs))
    return schedule_program(run_passes(program))


def kinds(made: Schedule) -> list[str]:
    """The steps, by what they are."""
    return ["end" if is_end(s) else str(s.target) if isinstance(s, ExternNode) else "kernel" for s in made.steps]


class Random:
    """A program of collectives and computations, the same for a seed; it notes the collectives in its order."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.order: list[str] = []

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        waiting: list[torch.Tensor] = []
        for _ in range(self.draw.randint(6, 20)):
            values += self.step(values, waiting)
        return tuple(self.draw.sample(values, 3))

    def step(self, values: list[Any], waiting: list[Any]) -> list[Any]:
        a, b = self.draw.choice(values), self.draw.choice(values)
        what = self.draw.randrange(10)
        if what < 2:
            return [(a.exp() + b).cos()]
        if what == 2:
            return [a @ b.t() @ a]
        if what == 3:
            return [a * b.sum(0, keepdim=True)]
        if what == 4 and waiting:
            return [OPS.wait_tensor(waiting.pop(self.draw.randrange(len(waiting))))]
        if what == 5:
            return [(a + 1).t().contiguous().t()]
        return self.collective(a, b, waiting)

    def collective(self, a: Any, b: Any, waiting: list[Any]) -> list[Any]:
        kind = self.draw.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "coalesced"))
        self.order.append(kind)
        if kind == "all_reduce":
            made = OPS.all_reduce(a, "sum", "0")
        elif kind == "all_gather":
            return [OPS.wait_tensor(OPS.all_gather_into_tensor(a.sin(), SIZE, "0"))[:8]]
        elif kind == "reduce_scatter":
            half = OPS.wait_tensor(OPS.reduce_scatter_tensor(a * 2, "sum", SIZE, "0"))
            return [torch.cat([half, half])]
        elif kind == "all_to_all":
            made = OPS.all_to_all_single(a.relu(), [4, 4], [4, 4], "0")
        elif kind == "broadcast":
            made = OPS.broadcast(a, 0, "0")
        else:
            one, two = OPS.all_reduce_coalesced([a, b], "sum", "0")
            waiting.append(one)
            return [OPS.wait_tensor(two)]
        if self.draw.random() < 0.5:
            waiting.append(made)
            return [made] if self.draw.random() < 0.3 else []  # what is read too early is waited for then
        return [OPS.wait_tensor(made)]


NAMES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single", "broadcast": "broadcast", "coalesced": "all_reduce_coalesced",
}  # fmt: skip


def region(made: Schedule, plan: MemoryPlan, name: str) -> tuple[str, int, int]:
    """Where a buffer lies: a piece of the arena, or memory of its own."""
    root = memory_of(plan.same_as, name)
    if root in plan.offsets:
        start = plan.offsets[root]
        return "arena", start, start + (nbytes(made.buffers[root]) or 0)
    return root, 0, 1


def meet(one: tuple[str, int, int], two: tuple[str, int, int]) -> bool:
    return one[0] == two[0] and one[1] < two[2] and two[1] < one[2]


def faults(made: Schedule) -> list[str]:
    """What is wrong with when, and in which memory, collectives of a schedule run. Nothing is taken from what made it."""
    plan = plan_memory(made)
    check_plan(plan, made)
    given = {*made.inputs, *made.constants}
    found = []
    ends = {step.args[0].buffer: number for number, step in enumerate(made.steps) if is_end(step)}
    for number, step in enumerate(made.steps):
        if not is_start(step):
            continue
        reads, pendings = touched(step)
        for pending in pendings:
            end = ends.get(pending)
            if end is None or end < number:
                found.append(f"{pending} has no end")
                continue
            held = [region(made, plan, name) for name in reads]
            for between in range(number + 1, end + 1):
                other = made.steps[between]
                if pending in touched(other)[0] and between != end:
                    found.append(f"{pending} is read before its end")
                for name in touched(other)[1] - {pending}:
                    if any(meet(region(made, plan, name), each) for each in held):
                        found.append(f"step {between} writes over what step {number} sends")
                freed = {memory_of(plan.same_as, name) for name in plan.frees.get(between, ()) if between < end}
                if freed & {pending, *(memory_of(plan.same_as, name) for name in reads - given)}:
                    found.append(f"step {between} frees what step {number} sends or receives")
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    program = Random(seed)
    made = scheduled(lambda x, y: program(x, y), torch.randn(8, 8), torch.randn(8, 8))
    started = [kind.replace("_.", ".") for kind in kinds(made) if "_c10d_functional" in kind]
    assert started == [f"_c10d_functional.{NAMES[kind]}.default" for kind in program.order]
    assert sum(kind == "end" for kind in kinds(made)) == len(started) + program.order.count("coalesced")
    assert faults(made) == []


def test_the_check_finds_what_is_wrong() -> None:
    """Ends that name nothing they hold, as operators of torch's do: memory is used again while it is read."""
    wrong = 0
    for seed in range(20):
        program = Random(seed)
        made = scheduled(lambda x, y: program(x, y), torch.randn(8, 8), torch.randn(8, 8))  # noqa: B023
        for number, step in enumerate(made.steps):
            if is_end(step):
                made.steps[number] = replace(step, args=(step.args[0], []))
        wrong += bool(faults(made))
    assert wrong


def test_computing_goes_on_while_data_is_on_its_way() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = OPS.wait_tensor(OPS.all_reduce(x, "sum", "0"))
        used = first @ w
        second = OPS.wait_tensor(OPS.all_gather_into_tensor(w, SIZE, "0"))
        other = x @ x @ x
        return used, other, second @ w

    made = kinds(scheduled(program, torch.randn(8, 8), torch.randn(8, 8)))
    product = "aten.mm.default"
    assert made == [
        "_c10d_functional.all_reduce.default", "_c10d_functional.all_gather_into_tensor.default",
        product, product, "end", product, "end", product,
    ]  # fmt: skip


def test_memory_bounds_what_is_on_its_way() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ends = [OPS.wait_tensor(OPS.all_gather_into_tensor(x + n, SIZE, "0")) for n in range(4)]
        return (x @ w, *ends)

    made = scheduled(program, torch.randn(8, 8), torch.randn(8, 8))
    all_at_once = [is_end(step) for step in made.steps]
    assert all_at_once[-4:] == [True] * 4

    def most(steps: list[Any]) -> int:
        now, most = 0, 0
        for step in steps:
            now += is_start(step) - is_end(step)
            most = max(most, now)
        return most

    assert most(made.steps) == 4
    tight = overlap(made.steps, made.buffers, limit=2 * 3 * 256)  # two of what is sent, and arrives
    assert most(tight) == 2
    assert sorted(map(id, tight)) == sorted(map(id, made.steps))


def _sends_in_place(program: Any) -> bool:
    made = scheduled(program, torch.randn(8, 8), torch.randn(8, 8))
    assert faults(made) == []
    (start,) = [str(step.target) for step in made.steps if is_start(step)]
    return start.endswith("_.default")


@pytest.mark.parametrize("start", [lambda x: OPS.all_reduce(x, "sum", "0"), lambda x: OPS.broadcast(x, 0, "0")])
def test_data_arrives_in_the_place_of_what_nobody_needs_any_more(start: Any) -> None:
    def received(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = OPS.wait_tensor(start(x))
        return result

    def also_read(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x.exp()
        return received(y) + y

    def also_returned(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x.exp()
        return received(y), y

    def product(x: torch.Tensor, w: torch.Tensor) -> Any:
        z = received(x @ w)
        return (z + w).relu(), (x + 1).sin() @ w, z

    assert _sends_in_place(product)
    assert _sends_in_place(lambda x, w: received(torch.cat([x.sin(), w.cos()]).flatten()))
    assert _sends_in_place(lambda x, w: received(x.exp()).sum() + (x @ w).sum())
    assert not any(map(_sends_in_place, (also_read, also_returned)))
    assert not _sends_in_place(lambda x, w: received(x) + w)
    assert not _sends_in_place(lambda x, w: received((x @ w)[2:5].contiguous()[1:]) + 1)


def test_what_is_sent_or_arrives_is_not_touched() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return OPS.wait_tensor(OPS.all_gather_into_tensor(y, SIZE, "0")), x.sin()

    made = scheduled(program, torch.randn(8, 8))
    verify_collectives(made)
    start = next(n for n, step in enumerate(made.steps) if is_start(step))
    end = next(n for n, step in enumerate(made.steps) if is_end(step))
    lost = replace_steps(made, [step for n, step in enumerate(made.steps) if n != end])
    with pytest.raises(InternalError, match="nothing waits"):
        verify_collectives(lost)
    again = made.steps[: start + 1] + made.steps[:start] + made.steps[start + 1 :]
    with pytest.raises(InternalError, match="writes over"):
        verify_collectives(replace_steps(made, again))


def replace_steps(made: Schedule, steps: list[Any]) -> Schedule:
    return replace(made, steps=steps)


def test_what_a_later_start_needs_or_is_small_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs; large things that nobody needs to go on are on their way beside kernels."""

    def layers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = OPS.wait_tensor(OPS.all_reduce(x.exp(), "sum", "0"))
        beside = y @ y
        two = OPS.wait_tensor(OPS.all_reduce(one.sin(), "sum", "0"))
        return two.cos(), beside @ y

    def buckets(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = OPS.wait_tensor(OPS.all_reduce(x.exp(), "sum", "0"))
        beside = y @ y
        two = OPS.wait_tensor(OPS.all_reduce(beside.sin(), "sum", "0"))
        return two, one

    def parts(program: Any) -> list[str]:
        steps = kinds(scheduled(program, torch.ones(8, 8), torch.ones(8, 8)))
        return ["start" if "all_reduce" in step else step for step in steps]

    chain = parts(layers)
    assert chain[chain.index("start") + 1] == "end" and chain.count("end") == 2
    assert parts(buckets)[-2:] == ["end", "end"]
    monkeypatch.setattr(collectives, "SMALL", 2 * 256)  # sent, and arrives
    small = parts(buckets)
    assert all(small[n + 1] == "end" for n, step in enumerate(small) if step == "start")
