"""Random programs: compiled equals eager in values, side effects, exceptions and aliasing."""

from __future__ import annotations

import argparse
import collections
import itertools
import random
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz" / "operations"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz" / "language"))

import between
import derivatives
import differential
import draws
import extremes
import features
import fused
import lives
import mutated
import mutations
import programs
import reads
import reduction
import signatures
import snapshots
import varying
import worlds

import argand
import sweeps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("batch", range(20))
def test_seeded_programs(batch: int) -> None:
    """40 or 500 programs, each called with two sizes; every second batch with symbolic sizes from the start."""
    for seed in range(batch * 25, batch * 25 + sweeps.part(25, 13)):
        source = programs.program(random.Random(seed).randrange)
        found = differential.difference(source, calls=3, dynamic=True if batch % 2 else None)
        assert found is None, f"seed {seed}\n{source[len(programs.PRELUDE) :]}\n{found}"


def test_programs_are_called_with_several_sizes() -> None:
    module = differential.load(programs.program(random.Random(0).randrange))
    sizes = {differential.arguments(module, call)[0].shape[0] for call in range(3)}
    assert len(sizes) >= 2


@settings(max_examples=sweeps.part(40, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_programs(data: st.DataObject) -> None:
    source = programs.program(lambda k: data.draw(st.integers(0, k - 1)), size=6)
    assert differential.difference(source) is None, source[len(programs.PRELUDE) :]


@pytest.mark.parametrize("batch", range(2))
def test_seeded_programs_on_native(batch: int) -> None:
    for seed in range(1000 + batch * 10, 1000 + batch * 10 + sweeps.part(10)):
        source = programs.program(random.Random(seed).randrange, size=6)
        assert differential.difference(source, backend="native") is None, (
            f"seed {seed}\n{source[len(programs.PRELUDE) :]}"
        )


def mutating(backend: str = "mixed") -> argparse.Namespace:
    return argparse.Namespace(backend=backend, dynamic=False, calls=6)


@pytest.mark.parametrize("batch", range(sweeps.part(4)))
def test_worlds_that_change_between_calls(batch: int) -> None:
    """20 or 40 programs of `differential.py --mutate`, without those on native, whose kernels take seconds."""
    dropped = seen = 0
    for seed in range(batch * 10, batch * 10 + 10):
        case, want = mutated.generate(seed, mutating("aot_eager" if seed % 8 == 0 else "eager"))
        verdict = mutated.check(case, want)
        assert verdict.difference is None, f"seed {seed}: {verdict.difference}\n{reduction.script(case)}"
        dropped += bool(verdict.dropped)
        seen += verdict.counts["seen"]
    assert dropped <= 1
    assert seen >= 5, "too few of the changes were visible"


def stale(fn: Any, **options: Any) -> Any:
    """What a compiler without guards would do: answer as at the first call."""
    kept: list[Any] = []

    def first_answer(*args: Any) -> Any:
        if not kept:
            kept.append(fn(*args))
        return kept[0]

    return first_answer


def test_a_compiler_without_guards_is_caught_and_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argand, "compile", stale)
    checked = [mutated.check(*mutated.generate(seed, mutating("eager"))) for seed in range(12)]
    wrong = [verdict.case for verdict in checked if verdict.difference is not None]
    assert len(wrong) >= 8
    small = reduction.reduce(min(wrong, key=lambda case: len(case.world.source())))
    assert len(small.world.body) <= 1 and sum(map(len, small.steps)) == 1
    shown = reduction.script(small)
    compile(shown, "script", "exec")
    assert len(shown.splitlines()) < 80


def test_changes_are_taken_back() -> None:
    """After a case the process is as it was, and a second run of it sees the same."""
    for seed in range(20, 26):
        case, want = mutated.generate(seed, mutating("eager"))
        before = (sys.getrecursionlimit(), torch.is_grad_enabled(), torch.get_default_dtype(), list(sys.path))
        assert mutated.differing(want, mutated.replay(case)) is None
        assert before == (sys.getrecursionlimit(), torch.is_grad_enabled(), torch.get_default_dtype(), list(sys.path))


def made_in_a_world(part: mutated.Part) -> list[Any]:
    """Every object of a part, made as a world makes it."""
    filler = worlds.Filler(random.Random(0), few=False)
    module = worlds.load(worlds.PRELUDE + filler.fill(part.text, 0))
    return [eval(filler.fill(text, 0), module.__dict__) for text in part.objects]


@pytest.mark.parametrize("part", mutated.PARTS, ids=lambda part: part.name)
def test_iterators_of_worlds_end(part: mutated.Part) -> None:
    """`list` or `in` over an endless one takes all memory or all time, in C, where no signal reaches Python."""
    for value in made_in_a_world(part):
        if hasattr(type(value), "__next__") and not isinstance(value, weakref.ProxyTypes):
            assert len(list(itertools.islice(value, 100))) < 100, repr(value)


def test_a_class_that_becomes_an_iterator_ends() -> None:
    filler = worlds.Filler(random.Random(0), few=False)
    added = eval(filler.fill(dict(mutations.DUNDERS)["__next__"], 0))
    endless = type("Endless", (), {"__iter__": lambda s: s, "__next__": added})
    assert len(list(itertools.islice(endless(), 100))) == 2


def test_no_change_ends_the_process_in_eager() -> None:
    """Torch's C code takes `_backward_cls` for a class of its own, and makes a tensor in shared memory larger in place: both are segmentation faults."""

    class Twice(torch.autograd.Function):
        pass

    Twice.__module__ = "fuzz_world"
    rng = random.Random(0)
    nodes = mutations.walk("Twice", Twice, "put(M, 'Twice', {})")
    offered = {text for node in nodes for _ in range(50) for text in mutations.generic_changes(rng, *node)}
    assert any("Twice" in text for text in offered)
    assert not [text for text in offered if "_backward_cls" in text]
    larger = [c for part in mutated.PARTS for c in part.changes if "resize_(" in c and "resize_(0)" not in c]
    assert not larger
    assert {"resize_", "resize_as_"} <= reads.DANGEROUS


def test_a_program_that_takes_all_memory_is_no_case() -> None:
    huge = mutated.Part("huge", "", ("[1]",), ("bytearray(1 << 60)", "len($o)"), ())
    for seed in range(20):
        assert "1 << 60" not in worlds.world(random.Random(seed), parts=(huge,)).source()
    case = mutated.Case(0, worlds.World(body=["bytearray(1 << 60)"]))
    assert mutated.first_run(case, random.Random(0), worlds.Filler(random.Random(0), few=False), 6) == []


def test_histories_in_a_deque_are_not_compared_by_name() -> None:
    """A compiled result's grad_fn is another than eager's, wherever the result lies."""
    x = torch.ones(2, requires_grad=True)
    found, other = (snapshots.snapshot(collections.deque([x])) for x in (x[0], x.as_strided((), ())))
    assert snapshots.differing(found, other) is None
    changed = snapshots.snapshot(collections.deque([x[0] + 1]))
    assert snapshots.differing(found, changed) is not None


@pytest.mark.parametrize("seed", [6833, 8801, 17894])
def test_worlds_that_differed(seed: int) -> None:
    differential.load_all()  # one of them looks at `sys.modules`, before and after
    verdict = mutated.check_seed(seed, mutating())
    assert verdict.difference is None, verdict.difference


@pytest.mark.parametrize("batch", range(2))
def test_sizes_and_layouts_that_vary_from_call_to_call(batch: int) -> None:
    for seed in range(20 * batch, 20 * batch + sweeps.part(20, 5)):
        text = varying.program(seed)
        assert varying.difference(text, seed, ("eager", "aot_eager")[batch]) is None, text


def test_random_numbers_and_states_of_generators() -> None:
    for seed in range(sweeps.part(20, 8)):
        text = draws.program(seed)
        assert draws.difference(text, seed, "aot_eager") is None, text


def test_arithmetic_of_extreme_numbers() -> None:
    for seed in range(sweeps.part(8, 8)):
        assert not [*extremes.differences(seed)]


def test_calls_by_schemas_with_keywords_in_all_combinations() -> None:
    for seed in range(sweeps.part(8, 4)):
        assert not signatures.differences(seed, 30, "aot_eager", signatures.functions())


def assert_none_differs(generator: Any, count: int, backend: str) -> None:
    """The first programs of a generator do as in eager."""
    for seed in range(count):
        text = generator.program(seed)
        assert generator.difference(text, seed, backend) is None, text


def test_first_and_second_derivatives_of_compositions() -> None:
    assert_none_differs(derivatives, sweeps.part(12, 6), "aot_eager")


def test_loops_that_share_kernels() -> None:
    assert_none_differs(fused, sweeps.part(12, 2), "native")


def test_writes_between_forward_and_backward() -> None:
    assert_none_differs(between, sweeps.part(60, 5), "aot_eager")


def test_classes_and_libraries_of_python_around_tensors() -> None:
    for seed in range(sweeps.part(20, 4)):
        text = features.program(seed)
        assert features.difference(text, "eager", None) is None, text


def test_objects_that_live_across_breaks_and_calls() -> None:
    for seed in range(sweeps.part(40, 6)):
        text = lives.program(seed)
        assert lives.difference(text, "eager", None) is None, text
