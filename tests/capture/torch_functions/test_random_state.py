"""Seeds and states of torch's generators in the graph: they take effect in the program's order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand

BACKENDS = ["eager", "aot_eager", "native"]


def seeds_between_draws(x: torch.Tensor, seed: int) -> Any:
    first = torch.rand(3)
    torch.manual_seed(seed)
    second = torch.rand(3)
    return x + first + F.dropout(x, 0.5), second


def a_seed_and_nothing_random(x: torch.Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    return (x * 2,)


def state_saved_and_put_back(x: torch.Tensor, seed: int) -> Any:
    state = torch.get_rng_state()
    first = torch.randn(3)
    torch.random.set_rng_state(state)
    return x + first, x + torch.randn(3), state


def forked(x: torch.Tensor, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = F.dropout(x, 0.5)
    return first, F.dropout(x, 0.5)


def forked_when_it_raises(x: torch.Tensor, seed: int) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            x = x + torch.rand(3)
            raise ValueError("within")
    except ValueError:
        x = x * 2
    return x, torch.rand(3)


def in_a_loop(x: torch.Tensor, seed: int) -> Any:
    for i in range(3):
        torch.manual_seed(seed + i)
        x = x + torch.rand(3)
    return x, torch.rand(3)


def a_state_from_outside(x: torch.Tensor, seed: int, state: torch.Tensor | None = None) -> Any:
    torch.set_rng_state(STATE)
    return x + torch.rand(3), torch.get_rng_state()


def in_an_inlined_call_and_after_a_break(x: torch.Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    first = torch.rand(3)
    argand.graph_break()
    return x + first, *seeds_between_draws(x, seed + 1)


STATE = torch.Generator().manual_seed(77).get_state()
PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__]
WHOLE = [program for program in PROGRAMS if program is not in_an_inlined_call_and_after_a_break]


def outcome(fn: Callable[..., Any], seed: int) -> Any:
    """What comes, gradients, and where torch's generator is afterwards."""
    torch.manual_seed(5)
    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fn(x, seed)
    sum(part.sum() for part in found if part.requires_grad).backward()
    return [part.detach() for part in found], x.grad, torch.get_rng_state()


def same(want: Any, got: Any) -> None:
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_and_state_are_eagers(program: Callable[..., Any], backend: str) -> None:
    with argand.config.patch(fallback_random=True):
        compiled = argand.compile(program, backend=backend, fullgraph=program in WHOLE)
        for seed in (3, 3, 4, 9, -2):
            same(outcome(program, seed), outcome(compiled, seed))


@pytest.mark.parametrize("program", [seeds_between_draws, forked, in_a_loop])
def test_numbers_of_graphs_follow_from_the_seed(program: Callable[..., Any]) -> None:
    """The native backend draws numbers of its own: the same ones for the same seeds."""
    compiled = argand.compile(program, fullgraph=True)
    first, again, other = (outcome(compiled, seed) for seed in (3, 3, 4))
    same(first, again)
    drawn = 1 if program is seeds_between_draws else 0
    assert not torch.equal(first[0][drawn], other[0][drawn])


def test_a_graph_that_raises_leaves_the_state_of_eager() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> Any:
        torch.manual_seed(3)
        y = x + torch.rand(3)
        return F.embedding(index, y[:, None])

    x = torch.ones(3)
    states = []
    with argand.config.patch(fallback_random=True):
        compiled = argand.compile(program, fullgraph=True)
        compiled(x, torch.tensor([1]))
        for fn in (program, compiled):
            torch.manual_seed(5)
            with pytest.raises(IndexError):
                fn(x, torch.tensor([7]))
            states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_what_is_no_seed_is_refused_as_in_eager() -> None:
    def program(x: torch.Tensor, seed: Any) -> Any:
        torch.manual_seed(seed)
        return x + torch.rand(3)

    compiled = argand.compile(program, backend="eager")
    for seed in (2**63 + 5, torch.tensor(4), True):
        assert torch.equal(program(torch.ones(3), seed), compiled(torch.ones(3), seed))
    for seed in ("three", 2**70):
        errors = []
        for fn in (program, compiled):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                fn(torch.ones(3), seed)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]


def test_the_generator_that_a_seed_returns() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.manual_seed(3), x + torch.rand(3)

    generator, got = argand.compile(program, backend="eager")(torch.ones(3))
    assert generator is torch.default_generator and torch.equal(got, program(torch.ones(3))[1])
