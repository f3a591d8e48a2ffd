"""aot_eager against eager over torch's op_db: `python tests/autograd/opdb_aot.py [--every N] [--dtype float32] [names ...]`.

For each sample the op is one node of a graph; the compiled callable must give eager's values, dtypes, shapes and strides, or both
must raise. Prints the differences and the counts; exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree

from argand import events
from argand.backends.aot_eager import aot_eager

# Ops whose result is uninitialised memory: values are not compared.
UNDEFINED = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}


@dataclass
class Tally:
    counts: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    fallbacks: Counter = field(default_factory=Counter)


def graph_of(fn, leaves: list[Any]) -> fx.GraphModule:
    """A graph that calls `fn` on its placeholders."""
    graph = fx.Graph()
    names = [graph.placeholder(f"x{i}") for i in range(len(leaves))]
    graph.output(graph.call_function(fn, tuple(names)))
    return fx.GraphModule(torch.nn.Module(), graph)


def fresh(value: Any) -> Any:
    """A copy of a tensor with the same layout."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_quantized:
        return value.clone()
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if 0 in value.stride():
        return value.detach().clone()
    return made.copy_(value.detach())


def attempt(fn, leaves: list[Any]) -> tuple[str, Any]:
    torch.manual_seed(0)
    try:
        return "ok", fn(*leaves)
    except Exception as error:
        return "raised", error


def differences(got: Any, want: Any, values: bool = True, rtol: float = 1e-6, atol: float = 1e-7) -> str:
    """Empty when equal."""
    got_leaves, got_tree = _pytree.tree_flatten(got)
    want_leaves, want_tree = _pytree.tree_flatten(want)
    if len(got_leaves) != len(want_leaves) or got_tree != want_tree:
        return f"structure {got_tree} != {want_tree}"
    for position, (a, b) in enumerate(zip(got_leaves, want_leaves)):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return f"output {position}: {type(a)} != {type(b)}"
        if not isinstance(b, torch.Tensor):
            if a != b and not (a != a and b != b):
                return f"output {position}: {a!r} != {b!r}"
            continue
        if b.layout is not torch.strided:
            continue
        for name in ("dtype", "shape", "device"):
            if getattr(a, name) != getattr(b, name):
                return f"output {position}: {name} {getattr(a, name)} != {getattr(b, name)}"
        if a.stride() != b.stride():
            return f"output {position}: stride {a.stride()} != {b.stride()} of shape {tuple(a.shape)}"
        if values:
            try:
                torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                return f"output {position}: {str(error).splitlines()[0]}"
    return ""


def check(name: str, fn, leaves: list[Any], tally: Tally, backend=aot_eager) -> None:
    """One sample, compared and counted."""
    example = [fresh(leaf) for leaf in leaves]
    module = graph_of(fn, leaves)
    expected_inputs, got_inputs = [fresh(leaf) for leaf in leaves], [fresh(leaf) for leaf in leaves]
    status, want = attempt(fn, expected_inputs)
    reasons: list[str] = []
    remove = events.bus.subscribe(lambda e: reasons.append(e.data["reason"]) if e.name == "fallback" else None)
    try:
        got_status, got = attempt(lambda *a: backend(module, example)(*a), got_inputs)
    finally:
        remove()
    key = "raised" if status == "raised" else "fallback" if reasons else "compiled"
    if got_status != status:
        tally.problems.append(
            f"{name}: eager {status}, compiled {got_status}: {str(got if got_status == 'raised' else want)[:300]}"
        )
        key = "different"
    elif status == "ok":
        values = name.split(".")[-1] not in UNDEFINED and name not in UNDEFINED
        text = differences(got, want, values) or differences(got_inputs, expected_inputs, values)
        if text:
            tally.problems.append(f"{name}: {text}")
            key = "different"
    if reasons and key == "fallback":
        tally.fallbacks[f"{name}: {reasons[0].splitlines()[0][:150]}"] += 1
    tally.counts[key] += 1


def samples(op, dtype: torch.dtype) -> Iterator[tuple[Any, list[Any]]]:
    """(callable of the tensor leaves, leaves) of each sample input."""
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, tree = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(*tensors, leaves=leaves, where=where, tree=tree):
            filled = list(leaves)
            for position, tensor in zip(where, tensors):
                filled[position] = tensor
            first, args, kwargs = _pytree.tree_unflatten(filled, tree)
            return op.op(first, *args, **kwargs)

        yield call, [leaves[i] for i in where]


def load_op_db() -> list[Any]:
    """torch's op_db; `expecttest`, which its test module imports and op_db does not use, may be absent."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        stand_in.assert_expected_inline = None
        sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal import common_methods_invocations as invocations

    # It would set the seed while tracing, not while running.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return invocations.op_db


def run(names: list[str], dtype: torch.dtype, every: int, backend=aot_eager, ops: int = 1) -> Tally:
    """Every `ops`-th op (or those named), every `every`-th of their samples."""
    tally = Tally()
    number = 0
    for op in load_op_db()[::ops]:
        full = op.name if not op.variant_test_name else f"{op.name}.{op.variant_test_name}"
        if names and op.name not in names and full not in names:
            continue
        if not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(1)
        for call, leaves in samples(op, dtype):
            number += 1
            if number % every == 0:
                check(full, call, leaves, tally, backend)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--fallbacks", action="store_true", help="list what ran eagerly, and why")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tally = run(options.names, getattr(torch, options.dtype), options.every)
    for problem in tally.problems:
        print(problem)
    if options.fallbacks:
        for text, count in tally.fallbacks.most_common():
            print(f"fallback x{count} {text}")
    print(dict(tally.counts))
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
