"""Random programs over numpy arrays and tensors that share memory: views that run forwards and backwards, writes,
functions of torch's and numpy's own, and what goes from one library to the other; against eager.

    python -m tests.capture.arrays.array_programs --count 300
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import argand

Pool = list[Any]
SHAPE = (3, 4)


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


VIEWS: dict[str, Callable[[Any], Any]] = {
    "a[::-1]": lambda a: a[::-1],
    "a[:, ::-1]": lambda a: a[:, ::-1],
    "np.flip(a)": np.flip,
    "a.T.T": lambda a: a.T.T,
    "a[...]": lambda a: a[...],
    "a.view()": lambda a: a.view(),
    "np.fliplr(a)": np.fliplr,
}
VALUES: dict[str, Callable[[Any], Any]] = {
    "a * 2": lambda a: a * 2,
    "a - a.mean(0)": lambda a: a - a.mean(0),
    "np.sort(a)": lambda a: np.sort(a, axis=1),
    "np.gradient(a)[0]": lambda a: np.gradient(a)[0],
    "np.cumsum(a, 1)": lambda a: np.cumsum(a, 1),
    "a.copy()": lambda a: a.copy(),
    "np.where(a > 1, a, 0)": lambda a: np.where(a > 1, a, np.float32(0)),
    "np.nan_to_num(a)": np.nan_to_num,
    "np.log1p(abs(t))": lambda a: np.log1p(torch.from_numpy(np.abs(a))).numpy(),
    "np.stack": lambda a: np.stack([a[0], a[1], a[2]]),
    "np.interp": lambda a: np.interp(a, [0.0, 2.0], [1.0, 3.0]).astype(np.float32),
}


def _put(a: Any) -> None:
    np.put(a, [1], [9])


def _fill_row(a: Any) -> None:
    a[1] = 3


def _add(a: Any) -> None:
    a += 1


def _masked(a: Any) -> None:
    a[a > 2] = 0


def _by_torch(a: Any) -> None:
    torch.from_numpy(a).mul_(2)


def _sort(a: Any) -> None:
    a.sort(axis=0)


def _at(a: Any) -> None:
    np.add.at(a, ([0, 0], [1, 1]), np.float32(1))


WRITES: dict[str, Callable[[Any], None]] = {
    "np.put": _put, "a[1] = 3": _fill_row, "a += 1": _add, "a[a > 2] = 0": _masked, "mul_": _by_torch, "sort": _sort,
    "np.add.at": _at,
}  # fmt: skip


def program(seed: int) -> tuple[list[tuple[str, int]], Callable[[Any, Any], Pool]]:
    """(its steps, a function of an array and a tensor that gives every value it met)."""
    choice = random.Random(seed)
    steps: list[tuple[str, int]] = []
    for size in range(2, 2 + choice.randint(3, 8)):
        table = choice.choice([VIEWS, VALUES, WRITES, VIEWS])
        steps.append((choice.choice(list(table)), choice.randrange(size)))

    def run(array: Any, tensor: torch.Tensor) -> Pool:
        pool: Pool = [array, tensor.numpy()]
        for name, place in steps:
            value = pool[place % len(pool)]
            if name in WRITES:
                WRITES[name](value)
                pool.append(value * 1)
            else:
                pool.append((VIEWS.get(name) or VALUES[name])(value))
        return pool

    return steps, run


def outcome(fn: Callable[[Any, Any], Pool]) -> Any:
    """The values, and which of them share memory; the class of an error, and what was written by then."""
    array = np.arange(12.0, dtype=np.float32).reshape(SHAPE) - 4
    tensor = torch.arange(12.0).reshape(SHAPE) * 0.5
    try:
        pool = fn(array, tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        return [type(error), array.tolist(), tensor.tolist()]
    values = [*pool, array, tensor.numpy()]
    shared = [np.may_share_memory(a, b) for a, b in itertools.combinations(values, 2)]
    return [[(v.dtype, v.shape, v.strides, v.flags.writeable, np.round(v, 4).tolist()) for v in values], shared]


def differs(seed: int, backend: str) -> bool:
    """Whether a program does otherwise than in eager, called twice."""
    _, run = program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(run)
        compiled = argand.compile(run, backend=backend)
        different = any(str(outcome(compiled)) != str(want) for _ in range(2))
    argand.reset()
    return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    wrong = [seed for seed in range(options.seed, options.seed + options.count) if differs(seed, options.backend)]
    for seed in wrong:
        print(seed, program(seed)[0])
    print(f"{options.count} programs, {len(wrong)} differ")
    sys.exit(bool(wrong))
