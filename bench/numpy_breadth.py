"""Graphs that argand and torch.compile make of small numpy functions, and whether the results are eager's.

    python bench/numpy_breadth.py [name ...] [--no-torch]

Prints one line per function: graphs of argand, graphs of torch.compile(backend="eager"), equality in values, dtypes and
types, argand's break reasons; then the totals.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.capture.arrays.numpy_programs import PROGRAMS

import argand


def same(want: Any, got: Any) -> bool:
    """Equal type, dtype, shape and values."""
    if type(want) is not type(got):
        return False
    if isinstance(want, np.ndarray | np.generic):
        near = np.allclose(want, got, rtol=1e-4 if want.dtype.itemsize > 2 else 1e-2, equal_nan=want.dtype.kind in "fc")
        return want.dtype == got.dtype and want.shape == got.shape and bool(near)
    if isinstance(want, torch.Tensor):
        return want.dtype == got.dtype and torch.allclose(want, got)
    if isinstance(want, list | tuple):
        return len(want) == len(got) and all(same(a, b) for a, b in zip(want, got))
    return bool(want == got)


class Counter:
    """A backend that counts graphs with operations."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.graphs += any(node.op.startswith("call") for node in gm.graph.nodes)
        return gm.forward


def measure(compile_fn: Any, fn: Any, args: Any) -> tuple[int, bool]:
    """(graphs, whether results and arguments are eager's) of one function."""
    counter = Counter()
    compiled = compile_fn(fn, backend=counter)
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    try:
        equal = same(fn(*theirs), compiled(*ours)) and same(theirs, ours)
    except Exception as e:
        print(f"  {type(e).__name__}: {str(e)[:100]}")
        return counter.graphs, False
    return counter.graphs, equal


def main() -> None:
    """See the module's docstring."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PROGRAMS)
    with_torch = "--no-torch" not in sys.argv
    totals = {"one graph": 0, "torch.compile one graph": 0, "wrong": 0}
    for name in names:
        fn, args = PROGRAMS[name]
        graphs, equal = measure(argand.compile, fn, args)
        reasons = [reason.explanation for reason in argand.explain(fn)(*copy.deepcopy(args)).break_reasons]
        line = f"{name:32} argand {graphs}"
        if with_torch:
            torch._dynamo.reset()
            other, _ = measure(torch.compile, fn, args)
            totals["torch.compile one graph"] += other == 1
            line += f"  torch {other}"
        totals["one graph"] += graphs == 1 and not reasons
        totals["wrong"] += not equal
        print(line, "" if equal else "WRONG", "; ".join(reasons)[:160], flush=True)
    print(len(names), "functions:", ", ".join(f"{key} {value}" for key, value in totals.items()))


if __name__ == "__main__":
    main()
