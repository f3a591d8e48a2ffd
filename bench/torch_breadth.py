"""Captured in one graph: small programs over the breadth of torch, argand beside torch.compile, backend "eager" both.

    python bench/torch_breadth.py [NAME ...] [--no-torch] [--backend eager]

Each program runs eagerly and captured, with and without gradients: results, gradients and random numbers must be equal.
Prints a line per program and the counts. Exits with 1 when a result differs, or torch.compile captured more.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import argand
from torch_snippets import SNIPPETS


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Two (3, 4) leaves that require grad, the same ones each time."""
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(3, 4, generator=generator).requires_grad_() for _ in range(2))  # type: ignore[return-value]


def outcome(fn: Callable[..., Any], grad: bool) -> Any:
    """(results, gradients, the next random number), or the exception's type."""
    torch.manual_seed(0)
    x, y = inputs()
    if not grad:
        x, y = x.detach(), y.detach()
    try:
        result = fn(x, y)
        leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        differentiable = [t for t in leaves if t.requires_grad and not t.is_inference()]
        if grad and differentiable:
            total = sum((t.abs() * (i + 1)).sum() for i, t in enumerate(differentiable))
            total.backward()  # type: ignore[union-attr]
        return leaves, pytree.tree_leaves(result), x.grad, y.grad, torch.rand(1)
    except Exception as error:
        return type(error).__name__


def same(want: Any, got: Any, exact: bool = True) -> bool:
    """Whether two outcomes are equal: to the bit and the stride, or nearly."""
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        if not exact:
            described = [(t.dtype, t.shape, t.requires_grad) for t in (want, got)]
            near = torch.allclose(want.detach(), got.detach(), 1e-4, 1e-5, equal_nan=True)
            return described[0] == described[1] and near
        described = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (want, got)]
        return described[0] == described[1] and torch.equal(want.detach(), got.detach())
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        return len(want) == len(got) and all(same(a, b, exact) for a, b in zip(want, got))
    return type(want) is type(got) and bool(want == got)


def captured_whole(compile: Callable[..., Any], fn: Callable[..., Any], grad: bool, verbose: bool) -> bool:
    """Whether the program is one graph, without breaks."""
    x, y = inputs()
    if not grad:
        x, y = x.detach(), y.detach()
    try:
        compile(copy.copy(fn), backend="eager", fullgraph=True)(x, y)
    except Exception as error:
        if verbose:
            print("   ", type(error).__name__, str(error).splitlines()[0][:200])
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--no-torch", action="store_true", help="argand only")
    parser.add_argument("--backend", default="eager", help="argand's backend for the comparison with eager")
    parser.add_argument("--verbose", action="store_true", help="say why a program is not one graph")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = {"argand": 0, "torch": 0, "different": 0, "behind": 0}
    for name in options.names or SNIPPETS:
        for grad in (True, False):
            fn = SNIPPETS[name]
            equal = same(
                outcome(fn, grad),
                outcome(argand.compile(fn, backend=options.backend), grad),
                options.backend == "eager",
            )
            argand.reset()
            ours = captured_whole(argand.compile, fn, grad, options.verbose)
            argand.reset()
            theirs = not options.no_torch and captured_whole(torch.compile, fn, grad, False)
            if not options.no_torch:
                torch._dynamo.reset()
            counts["argand"] += ours
            counts["torch"] += theirs
            counts["different"] += not equal
            counts["behind"] += theirs and not ours
            mine, other = ("one graph" if whole else "-" for whole in (ours, theirs))
            label = f"{name} (grad)" if grad else name
            print(f"{label}: argand {mine}, torch.compile {other}{'' if equal else '  DIFFERS'}", flush=True)
    total = 2 * len(options.names or SNIPPETS)
    print(f"{total} programs: argand {counts['argand']} in one graph, torch.compile {counts['torch']}; "
          f"{counts['behind']} where torch.compile alone has one, {counts['different']} differ from eager")  # fmt: skip
    return 1 if counts["different"] or counts["argand"] < counts["torch"] else 0


if __name__ == "__main__":
    sys.exit(main())
