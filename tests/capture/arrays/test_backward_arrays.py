"""numpy arrays that run backwards through their memory: no tensor does."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.capture.arrays import array_programs

import argand

_X = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


def _written_behind(x: Any) -> Any:
    y = x[::-1]
    before = y * 1
    x += 1
    return before, y * 1


def _written_through(x: Any) -> Any:
    y = x[:, ::-1]
    y[0] = 7
    return x * 2


def _given_to_torch(x: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x[..., ::-1])) + torch.from_numpy(x[::-1].copy())


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "flip": lambda x: (np.flip(x), np.flip(x, 1), np.flipud(x), np.fliplr(x)),
    "slices": lambda x: (x[::-1], x[:, ::-2], x[..., 2::-1, None], x[1, ::-1], x[:0:-1]),
    "twice": lambda x: (x[::-1][::-1], np.flip(x[:, ::-1], 1)),
    "colours": lambda x: x[..., ::-1].transpose(2, 0, 1),
    "computed": lambda x: (x[::-1] * 2 + x, np.exp(x[:, ::-1] / 10).sum(axis=1)),
    "parts of it": lambda x: x[::-1][0],
    "sorted": lambda x: np.sort(x)[..., ::-1],
    "reshaped": lambda x: x[::-1].reshape(-1),
    "written behind": _written_behind,
    "written through": _written_through,
    "given to torch": _given_to_torch,
    "refused by torch": lambda x: torch.from_numpy(x[::-1]),
}
ONE_GRAPH = sorted(set(PROGRAMS) - {"parts of it", "written through", "refused by torch"})


def _outcome(fn: Callable[[Any], Any], x: Any) -> list[Any]:
    try:
        results = fn(x)
    except ValueError as error:
        return [type(error)]
    return [*results, x] if isinstance(results, tuple) else [results, x]


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_that_run_backwards(name: str) -> None:
    fn = argand.compile(PROGRAMS[name], backend="eager", fullgraph=name in ONE_GRAPH)
    for x in (_X, _X + 1):
        theirs, ours = _outcome(PROGRAMS[name], copy.copy(x)), _outcome(fn, copy.copy(x))
        assert len(theirs) == len(ours)
        for want, got in zip(theirs, ours):
            assert type(want) is type(got)
            if isinstance(want, type):
                assert want is got
                continue
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
            if isinstance(want, np.ndarray):
                assert want.strides == got.strides and want.flags.writeable == got.flags.writeable
        for i, j in itertools.combinations(range(len(theirs)), 2):
            if isinstance(theirs[i], np.ndarray) and isinstance(theirs[j], np.ndarray):
                assert np.may_share_memory(theirs[i], theirs[j]) == np.may_share_memory(ours[i], ours[j])


def test_random_slices() -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        steps = [int(step) for step in random.choice([-2, -1, 1, 2], 3)]
        starts = [None if random.random() < 0.6 else int(random.integers(-4, 4)) for _ in range(3)]
        key = tuple(slice(start, None, step) for start, step in zip(starts, steps))
        key = random.choice([0, 1, 2]) and (*key[:1], ..., *key[2:]) or key

        def fn(x: Any, key: Any = key) -> Any:
            return x[key], np.cumsum(x[key], axis=0)

        x = _X.copy()
        for want, got in zip(fn(x), argand.compile(fn, backend="eager")(x)):
            np.testing.assert_array_equal(want, got)
            assert want.size < 2 or want.strides == got.strides
            assert np.may_share_memory(want, x) == np.may_share_memory(got, x)
        argand.reset()  # a version for each, however many


def test_random_programs_over_arrays_that_share_memory() -> None:
    assert not [seed for seed in range(30) if array_programs.differs(seed, "eager")]
