"""torch's op_db on a GPU: what `argand.compile` computes beside eager, gradients included.

    python tests/gpu/op_db.py [--ops REGEX] [--dtypes float32,...] [--samples N] [--shard K/N] [--no-gradients]
                              [--system argand|torch]

Prints each difference, then how many samples agreed; `--system torch` counts the same for `torch.compile`. Exit status 1 if any differs or fails. On a machine without a GPU the same
runs under Triton's interpreter: `TRITON_INTERPRET=1 python tests/gpu/op_db.py --on-cpu`.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen/cpp"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lower"))
from opdb_cpp import DTYPES, RANDOM, op_database

import argand
from argand import events
from argand.config import config


def leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def copied(value: Any, grad: bool) -> Any:
    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach().clone()
        return made.requires_grad_(grad and (made.is_floating_point() or made.is_complex()))

    return pytree.tree_map(copy, value)


def without_idle_strides(grad: torch.Tensor) -> torch.Tensor:
    """A gradient whose dimensions of size one have stride 1: autograd keeps the parameter's layout but for these."""
    if grad.layout is not torch.strided or 1 not in grad.shape:
        return grad
    return grad.as_strided(grad.shape, [1 if n == 1 else s for n, s in zip(grad.shape, grad.stride())])


def specified(name: str, sample: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Without what eager leaves uninitialised: the generator's state where attention drops nothing, and the fourth
    result of `_flash_attention_forward`, which nothing uses."""
    idle = set()
    if name.endswith(("_flash_attention_forward", "_efficient_attention_forward")):
        idle = {3} if "_flash_" in name else set()
        idle |= set() if sample.kwargs.get("dropout_p") else {2, 3}
    return [one for number, one in enumerate(found) if number not in idle]


def outcome(function: Any, sample: Any, grad: bool) -> list[torch.Tensor]:
    """Results of one call, and gradients of its inputs."""
    args, kwargs = copied((sample.input, *sample.args), grad), copied(sample.kwargs, grad)
    torch.manual_seed(0)
    found = leaves(function(*args, **kwargs))
    wanting = [t for t in found if t.requires_grad and t.is_floating_point()]
    if grad and wanting:
        sum(t.double().sum() for t in wanting).backward()
        found = [t.detach() for t in found] + [
            without_idle_strides(t.grad) for t in leaves((args, kwargs)) if t.grad is not None
        ]
    return [t.detach() for t in found]


def differs(want: list[torch.Tensor], got: list[torch.Tensor]) -> str:
    """What differs; empty when results agree as far as their dtype tells."""
    if len(want) != len(got):
        return f"{len(got)} tensors instead of {len(want)}"
    for one, two in zip(want, got):
        if one.layout is not torch.strided:
            one, two = one.to_dense(), two.to_dense()
        half = one.dtype in (torch.bfloat16, torch.float16)
        tolerance = {"rtol": 4e-2, "atol": 2e-2} if half else {"rtol": 1e-4, "atol": 1e-5}
        try:
            torch.testing.assert_close(two, one, equal_nan=True, check_stride=True, **tolerance)
        except AssertionError as error:
            return " ".join(str(error).split())
    return ""


def wide(value: Any) -> Any:
    """A sample with double numbers in place of 16-bit ones."""
    halves = (torch.bfloat16, torch.float16)
    return pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in halves else leaf, value
    )


def is_nearer(op: Any, sample: Any, grad: bool, want: list[torch.Tensor], got: list[torch.Tensor]) -> bool:
    """Whether results of 16-bit floats differ because eager rounds more often: no tensor is further from what doubles
    give than eager's."""
    if not any(leaf.dtype in (torch.bfloat16, torch.float16) for leaf in want):
        return False
    sample = types.SimpleNamespace(input=wide(sample.input), args=wide(sample.args), kwargs=wide(sample.kwargs))
    try:
        exact = specified(op.name, sample, outcome(op.op, sample, grad))
    except Exception:
        return False
    if len({len(want), len(got), len(exact)}) > 1 or any(a.shape != b.shape for a, b in zip(got, exact)):
        return False
    return all(
        bool((got[n].double() - true.double()).abs().max() <= (want[n].double() - true.double()).abs().max())
        for n, true in enumerate(exact)
        if true.numel()
    )


def check(op: Any, sample: Any, grad: bool, system: str) -> tuple[str, str]:
    """(what became of it, detail) of one sample."""
    try:
        want = outcome(op.op, sample, grad)
    except Exception:
        return "eager raises", ""
    counts: collections.Counter[str] = collections.Counter()
    leave = events.bus.subscribe(lambda event: counts.update((event.name,)), ("fallback", "graph", "kernel_code"))

    def call(*args: Any, **kwargs: Any) -> Any:  # a frame: many of the operators are builtins
        return op.op(*args, **kwargs)

    try:
        got = outcome((argand if system == "argand" else torch).compile(call), sample, grad)
    finally:
        leave()
        argand.reset() if system == "argand" else torch.compiler.reset()
    want, got = specified(op.name, sample, want), specified(op.name, sample, got)
    found = differs(want, got)
    if found and not is_nearer(op, sample, grad, want, got):
        return "differs", found
    if system == "torch":
        return "agrees", ""
    return ("compiled" if counts["kernel_code"] else "calls only" if counts["graph"] else "no graph"), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default="float32,bfloat16,int64")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--on-cpu", action="store_true")
    parser.add_argument("--system", default="argand", choices=("argand", "torch"))
    options = parser.parse_args()
    device = "cpu" if options.on_cpu else "cuda"
    config.triton.on_cpu = options.on_cpu
    part, parts = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    for number, op in enumerate(op_database()):
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if number % parts != part or not re.search(options.ops, name) or RANDOM.search(name):
            continue
        for dtype_name in options.dtypes.split(","):
            dtype = DTYPES[dtype_name]
            if dtype not in op.supported_dtypes(device):
                continue
            grad = dtype.is_floating_point and op.supports_autograd and not options.no_gradients
            for index, sample in enumerate(op.sample_inputs(device, dtype, requires_grad=False)):
                if index >= options.samples:
                    break
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found, detail = check(op, sample, grad, options.system)
                except Exception as error:
                    found, detail = "fails", f"{type(error).__name__}: {' '.join(str(error).split())}"
                counts[found] += 1
                if found in ("differs", "fails"):
                    print(f"{name} {dtype_name} #{index} {found}: {detail[:300]}", flush=True)
                    if "illegal memory" in detail or "device-side assert" in detail:
                        print(dict(counts))
                        return 2  # nothing runs in this process any more
    print(dict(counts))
    return 1 if counts["differs"] + counts["fails"] else 0


if __name__ == "__main__":
    sys.exit(main())
