"""`torch.Generator`s of the program in the graph: what is drawn, and the states that they are left in, are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings

BACKENDS = ["eager", "aot_eager", "native"]
KEPT = torch.Generator().manual_seed(5)


def handed_in(x: torch.Tensor, g: torch.Generator) -> Any:
    first = torch.randn(2, 3, generator=g, dtype=torch.float64)
    return x + first, torch.rand((3,), generator=g, device=x.device), torch.randint(2, 9, (4,), generator=g)


def every_function(x: torch.Tensor, g: torch.Generator) -> Any:
    p = x.detach().sigmoid()
    return (
        torch.randperm(5, generator=g), torch.normal(0.5, 2.0, (3,), generator=g), torch.bernoulli(p, generator=g),
        torch.normal(p, 1.0, generator=g), torch.multinomial(p, 2, generator=g), p.multinomial(1, generator=g),
        torch.poisson(p * 9, generator=g), p.bernoulli(generator=g),
    )  # fmt: skip


def every_fill(x: torch.Tensor, g: torch.Generator) -> Any:
    t = torch.empty(4, 6).t()
    return (
        t.clone().normal_(1.0, 2.0, generator=g), t.clone().uniform_(generator=g), t.clone().exponential_(generator=g),
        t.clone().bernoulli_(0.25, generator=g), torch.empty(5, dtype=torch.int64).random_(3, 70, generator=g),
        t.clone().geometric_(0.5, generator=g), t.clone().log_normal_(generator=g), t.clone().cauchy_(generator=g),
    )  # fmt: skip


def filled_in_place(x: torch.Tensor, g: torch.Generator) -> Any:
    large = torch.zeros(8, 8)
    part = large[::2].uniform_(2.0, 3.0, generator=g)
    torch.nn.init.xavier_uniform_(large, generator=g)
    return large, part


def made_within(x: torch.Tensor, g: torch.Generator) -> Any:
    own = torch.Generator(device="cpu")
    first = torch.rand(3, generator=own)
    own.manual_seed(7)
    return first, torch.rand(3, generator=own), x + torch.rand(3, generator=torch.Generator().manual_seed(3))


def given_back(x: torch.Tensor, g: torch.Generator) -> Any:
    own = torch.Generator().manual_seed(9)
    torch.rand(3, generator=own)
    return own, x * 2


def states(x: torch.Tensor, g: torch.Generator) -> Any:
    before = g.get_state()
    first = torch.rand(3, generator=g)
    assert g.set_state(before) is g
    other = torch.Generator()
    other.set_state(before)
    return first, torch.rand(3, generator=g), torch.rand(3, generator=other), before


def seeded_anew(x: torch.Tensor, g: torch.Generator) -> Any:
    torch.rand(3, generator=g)
    return torch.rand(3, generator=g.manual_seed(4)), g.device.type == "cpu"


def across_a_break(x: torch.Tensor, g: torch.Generator) -> Any:
    own = torch.Generator().manual_seed(1)
    first = torch.rand(3, generator=g) + torch.rand(3, generator=own)
    argand.graph_break()
    return first, torch.rand(3, generator=g), torch.rand(3, generator=own)


def torchs_own(x: torch.Tensor, g: torch.Generator) -> Any:
    first = torch.rand(3, generator=torch.default_generator)
    torch.default_generator.manual_seed(2)
    state = torch.default_generator.get_state()
    second = torch.rand(3)
    torch.default_generator.set_state(state)
    return first, second, torch.rand(3)


def its_seed(x: torch.Tensor, g: torch.Generator) -> Any:
    return x + g.initial_seed()


def kept_and_listed(x: torch.Tensor, g: torch.Generator) -> Any:
    return torch.cat([torch.randn(1, 3, generator=each) for each in [g, KEPT, g]])


PROGRAMS = [
    handed_in, every_function, every_fill, filled_in_place, made_within, given_back, states, seeded_anew,
    across_a_break, torchs_own, its_seed, kept_and_listed,
]  # fmt: skip


def outcome(fn: Callable[..., Any], seed: int) -> Any:
    torch.manual_seed(seed + 1)
    KEPT.manual_seed(seed + 2)
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    found = fn(x, generator)
    for part in found:
        if isinstance(part, torch.Tensor) and part.requires_grad:
            part.sum().backward(retain_graph=True)
    told = [part.get_state() if isinstance(part, torch.Generator) else part for part in found]
    return told, x.grad, generator.get_state(), KEPT.get_state(), torch.get_rng_state()


def same(want: Any, got: Any) -> None:
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_draws_and_states_are_eagers(program: Callable[..., Any], backend: str) -> None:
    found = Findings()
    with argand.config.patch(fallback_random=True), found.listening():
        compiled = argand.compile(program, backend=backend, fullgraph=program is not across_a_break)
        for seed in (3, 3, 4, 9):  # a new generator each time
            same(outcome(program, seed), outcome(compiled, seed))
    assert len(found.recompiles) <= (program is its_seed)  # a number that varies


def test_numbers_are_eagers_without_asking_for_them() -> None:
    compiled = argand.compile(handed_in, fullgraph=True)
    same(outcome(handed_in, 3), outcome(compiled, 3))


def test_sizes_and_seeds_that_vary() -> None:
    def fn(x: torch.Tensor, seed: int) -> Any:
        g = torch.Generator().manual_seed(seed)
        return x + torch.randn(x.shape, generator=g), torch.empty_like(x).uniform_(generator=g)

    compiled = argand.compile(fn, dynamic=True, fullgraph=True)
    for size, seed in ((3, 5), (4, 6), (7, 8), (30, 9)):
        same(fn(torch.ones(size), seed), compiled(torch.ones(size), seed))


def test_one_generator_under_two_names() -> None:
    def fn(a: torch.Generator, b: torch.Generator) -> Any:
        return torch.rand(3, generator=a), torch.rand(3, generator=b)

    compiled = argand.compile(fn, fullgraph=True)
    for calls in (("first", "second"), ("first", "first"), ("second", "first")):
        both = [{name: torch.Generator().manual_seed(len(name)) for name in ("first", "second")} for _ in range(2)]
        same(fn(*(both[0][name] for name in calls)), compiled(*(both[1][name] for name in calls)))
        for name in calls:
            same(both[0][name].get_state(), both[1][name].get_state())


def test_torchs_own_generator_is_told_from_others() -> None:
    def fn(g: torch.Generator) -> Any:
        return torch.rand(3, generator=g)

    with argand.config.patch(fallback_random=True):
        compiled = argand.compile(fn, fullgraph=True)
        for own in (False, True, False):
            results = []
            for call in (fn, compiled):
                torch.manual_seed(8)
                g = torch.default_generator if own else torch.Generator().manual_seed(6)
                results.append((call(g), torch.get_rng_state(), g.get_state()))
            same(*results)


def test_a_graph_that_raises_leaves_the_generator_as_eager_does() -> None:
    def fn(p: torch.Tensor, g: torch.Generator) -> Any:
        first = torch.rand(3, generator=g)
        return first + torch.multinomial(p, 3, generator=g)

    compiled = argand.compile(fn)
    for p in (torch.ones(3), torch.tensor([1.0, -1.0, 1.0])):
        states = []
        for call in (fn, compiled):
            g = torch.Generator().manual_seed(2)
            try:
                call(p, g)
            except RuntimeError as error:
                states.append((str(error), g.get_state()))
            else:
                states.append(("", g.get_state()))
        assert states[0][0] == states[1][0]
        same(states[0][1], states[1][1])


def test_gradients_flow_past_a_draw() -> None:
    def fn(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        y = x * 2
        y.normal_(generator=g)  # forgets what y was
        return (y * x).sum()

    results = []
    for call in (fn, argand.compile(fn)):
        x = torch.ones(3, requires_grad=True)
        call(x, torch.Generator().manual_seed(1)).backward()
        results.append(x.grad)
    same(*results)


def test_within_a_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    def fn(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return checkpoint(lambda x: x + torch.rand(3, generator=g), x, use_reentrant=False)

    results = []
    for call in (fn, argand.compile(fn)):
        g = torch.Generator().manual_seed(1)
        results.append((call(torch.ones(3), g), g.get_state()))
    same(*results)


def test_the_seed_of_torchs_own_generator_is_that_of_before() -> None:
    def seed_then_another(n: int) -> Any:
        seed = torch.default_generator.initial_seed()
        torch.manual_seed(n)
        return seed, torch.rand(2)

    fn = argand.compile(seed_then_another, backend="eager")
    for n in (3, 4, 5):
        torch.manual_seed(2 * n)
        want = seed_then_another(n)
        torch.manual_seed(2 * n)
        got = fn(n)
        assert want[0] == got[0] == 2 * n and torch.equal(want[1], got[1])
