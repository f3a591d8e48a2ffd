"""A training graph with many like layers is traced, differentiated and cut in two with five of them: the same comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests import sweeps
from tests.backends.programs import nearly_alike, same_programs
from tests.backends.programs.nearly_alike import ODD, PLACES, Nearly
from tests.backends.programs.random_layers import WIDTH, RandomLayers
from tests.backends.programs.test_like_layers import MODELS
from tests.helpers import assert_same
from torch import fx, nn

import argand
from argand.autograd.partitioning.partition import Partition, partition
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.trace import trace_inference, trace_joint
from argand.backends import training
from argand.backends.programs.like_layers.five_layers import shorter
from argand.backends.programs.like_layers.halves import halves_of_all
from argand.backends.programs.like_layers.layers import Unlike, find_layers, known_layers
from argand.backends.programs.like_layers.whole_forward import program_of_all
from argand.backends.programs.preparation import prepare_joint
from argand.graph.nodes.program import AtenProgram
from argand.passes import run_passes

Rewrite = Callable[[AtenProgram], AtenProgram]


def _rewritten(program: AtenProgram) -> AtenProgram:
    program.rewritten = True
    return run_passes(program)


def _assert_layers_known(*programs: AtenProgram) -> None:
    """The layers that come with a program are those that are found in it."""
    for program in programs:
        if program.layers is not None:
            assert known_layers(program) == find_layers(program)


def _halves(gm: fx.GraphModule, given: Sequence[Any], rewrite: Rewrite) -> tuple[JointProgram, Partition]:
    joint = trace_joint(gm, given, bases=True)
    prepare_joint(joint.program)
    cut = partition(joint)
    cut.forward, cut.backward = rewrite(cut.forward), rewrite(cut.backward)
    return joint, cut


def _compared(
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    gradients: bool = True,
    rewrite: Rewrite = lambda program: program,
) -> list[bool]:
    """For each graph whether it was made from five layers; then it is what the whole became.

    Arguments:
        rewrite: what is done to programs, of five layers and of all.
    """
    told: list[bool] = []

    def compare(gm: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        short = shorter(gm, given)
        told.append(False)
        with contextlib.suppress(Unlike):
            if short is not None and gradients:
                joint, cut = halves_of_all(*_halves(short.gm, short.inputs, rewrite), short)
                _assert_layers_known(cut.forward, cut.backward)
                mine = same_programs.of_halves(joint, cut)
                whole = same_programs.of_halves(*_halves(gm, given, rewrite))
                assert mine.keys() == whole.keys()
                for name, part in whole.items():
                    assert mine[name] == part, name
                told[-1] = True
            elif short is not None:
                program = program_of_all(rewrite(trace_inference(short.gm, short.inputs, bases=True)), short)
                _assert_layers_known(program)
                assert same_programs.of_program(program) == same_programs.of_program(
                    rewrite(trace_inference(gm, given, bases=True))
                )
                told[-1] = True
        return gm.forward

    with torch.set_grad_enabled(gradients):
        argand.compile(model, backend=compare)(*inputs)
    argand.reset()
    return told


REWRITES: dict[str, Rewrite] = {"as they are traced": lambda program: program, "behind the passes": _rewritten}

MADE = (
    "transformer",
    "as few as are shared",
    "tied weights",
    "two runs of layers",
    "all read the input",
    "what the first layer gets is read in the end",
)
"""Models whose training graphs are made from five layers."""
MADE_WITHOUT_GRADIENTS = (*MADE, "convolutions", "shared mask")


@pytest.mark.parametrize(("name", "gradients", "rewrite"), sweeps.combinations(MODELS, [True, False], REWRITES))
def test_models(name: str, gradients: bool, rewrite: str) -> None:
    make, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    made = name in (MADE if gradients else MADE_WITHOUT_GRADIENTS)
    assert _compared(make(), inputs(), gradients=gradients, rewrite=REWRITES[rewrite]) == [made]


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("gradients", [True, False])
def test_random_layers(gradients: bool, rewrite: str) -> None:
    inputs = torch.rand(2, 3, WIDTH), torch.rand(2, 3, WIDTH) > 0.3
    seeds = range(44, 44 + sweeps.part(60, 8))
    made = [_compared(RandomLayers(seed), inputs, gradients=gradients, rewrite=REWRITES[rewrite])[0] for seed in seeds]
    assert any(made)


@pytest.mark.parametrize("odd", ODD)
def test_one_layer_is_odd(odd: str) -> None:
    """What is made of five layers is what the whole becomes, and computes what eager does."""
    number = [*ODD].index(odd)
    places = PLACES[number % len(PLACES)], PLACES[(number + 3) % len(PLACES)]
    for place in places[: sweeps.part(2)]:
        made = _compared(Nearly(odd, place), [torch.rand(3, 8)])
        assert made == [True] or odd != "nothing"
    if sweeps.WHOLE or number % 2:
        _compared(Nearly(odd, -1), [torch.rand(3, 8)], gradients=False)
    model, twin = Nearly(odd, place), Nearly(odd, place)
    assert_same(_step(twin, twin), _step(model, argand.compile(model, backend="aot_eager")))
    for want, got in zip(twin.buffers(), model.buffers()):
        assert_same(want, got)


def _step(model: Nearly, call: Callable[..., Any]) -> list[Any]:
    results = []
    for seed in range(2):
        torch.manual_seed(seed)
        given = call(torch.rand(3, 8))
        parts = given if isinstance(given, tuple) else (given,)
        sum(part.sin().sum() for part in parts).backward()
        results += [part.detach() for part in parts]
    return [*results, *(p.grad for p in model.parameters()), *model.seen]


class Dropping(Nearly):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize("drops", [True, False])
def test_what_draws_seeds_is_traced_once(drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    real = training._traced
    monkeypatch.setattr(training, "_traced", lambda *given: traces.append(given) or real(*given))
    model = Dropping("nothing", 0).train(drops)
    argand.compile(model)(torch.rand(3, 8))
    assert len(traces) == 1


def test_training_graphs_are_made_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    real = training.halves_of_all
    monkeypatch.setattr(training, "halves_of_all", lambda *given: counts.append(given[2].gap) or real(*given))
    model, twin = Nearly("nothing", 0), Nearly("nothing", 0)
    assert_same(_step(twin, twin), _step(model, argand.compile(model)))
    assert counts == [nearly_alike.COUNT - 5]
