"""Inferred metadata against what eager's kernels really make, for every ATen call that op_db's samples reach.

`python tests/autograd/opdb_layouts.py [--every N] [--dtype float32] [names ...]`. Each sample runs with its tensors as they are, and
again in other memory layouts (`LAYOUTS`: permuted, with holes, expanded, of size 1 or 0), all tensors or only the first.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from opdb_aot import load_op_db, samples
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import forks
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata import metas
from argand.graph.metadata.specs import Spec, SpecTable
from memory_layouts import LAYOUTS, Layout

aten = torch.ops.aten


@dataclass
class Found:
    """What was compared.

    Arguments:
        problems: what differs, and how often.
        examples: of a stride that differs, the first: shape, stride, inferred stride, inputs.
    """

    problems: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        self.problems += other.problems
        self.counts += other.counts
        self.examples = {**other.examples, **self.examples}


class Comparing(TorchDispatchMode):
    """Runs each op for real and compares the result's metadata with what is inferred."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.problems, self.counts, self.examples = found.problems, found.counts, found.examples
        self.table = SpecTable()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        real = func(*args, **kwargs)
        if func._schema.is_mutable or not func._schema.returns or func in SKIPPED:
            return real
        tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not all(compat.is_plain_tensor(t) for t in tensors):
            return real
        spec_args, spec_kwargs = _pytree.tree_map_only(torch.Tensor, self._spec, (args, kwargs))
        try:
            made = metas.infer(self.table, func, spec_args, spec_kwargs)
        except AutogradError:
            self.counts["refused"] += 1
            return real
        except Exception as error:
            self.problems[f"{func}: infer raised {type(error).__name__}: {str(error)[:150]}"] += 1
            return real
        self._compare(func, made, real, args)
        return real

    def _spec(self, t: torch.Tensor) -> Spec:
        return self.table.make(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device)

    def _compare(self, func: Any, made: Any, real: Any, args: Any) -> None:
        items = made.items if made.__class__ is metas.Many else (made,)
        reals = real if isinstance(real, (tuple, list)) else (real,)
        self.counts["compared"] += 1
        if len(items) != len(reals):
            self.problems[f"{func}: {len(items)} results, not {len(reals)}"] += 1
            return
        for position, (item, tensor) in enumerate(zip(items, reals)):
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                continue
            if item.__class__ is not Spec:
                self.problems[f"{func}: result {position} inferred as {item!r}"] += 1
                continue
            want = (tuple(tensor.shape), tensor.dtype, tensor.stride())
            have = (item.size, item.dtype, item.stride)
            if want[:2] != have[:2]:
                self.problems[f"{func}: result {position} is {want[:2]}, inferred {have[:2]}"] += 1
            elif want[2] != have[2]:
                wide = any(n != 1 and a != b for n, a, b in zip(want[0], want[2], have[2]))
                kind = "stride of no elements" if not tensor.numel() else "stride" if wide else "stride of size 1"
                inputs = [
                    (tuple(t.shape), t.stride()) for t in _pytree.tree_leaves(args) if isinstance(t, torch.Tensor)
                ]
                self.problems[f"{func}: result {position} {kind}"] += 1
                self.examples.setdefault(f"{func} {position} {kind}", (want[0], want[2], have[2], inputs))


SKIPPED = {aten.lift_fresh.default, aten._local_scalar_dense.default}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = compare(options.names, getattr(torch, options.dtype), options.every)
    for text, count in sorted(found.problems.items()):
        print(f"x{count} {text}")
    for name, example in found.examples.items():
        print(name, example)
    print(dict(found.counts))
    return 1 if found.problems else 0


def compare(
    names: list[str], dtype: torch.dtype, every: int, ops: int = 1, layouts: Sequence[Layout] = LAYOUTS
) -> Found:
    """Every `every`-th sample of each `ops`-th op (or those named), in all layouts.

    Each op runs in a process of its own: some of torch's kernels write past the end of an expanded or empty tensor.
    """
    total = Found()
    for op in load_op_db()[::ops]:
        if (names and op.name not in names) or not op.supports_dtype(dtype, "cpu"):
            continue
        begin = 0
        while begin is not None:
            begin = _forked(op, dtype, every, layouts, begin, total)
    return total


def _forked(op: Any, dtype: torch.dtype, every: int, layouts: Sequence[Layout], begin: int, total: Found) -> int | None:
    """Add to `total` what a child finds from sample `begin` on; returns the next sample if torch crashes on one."""
    source, sink = os.pipe()
    child = forks.fork()
    if child == 0:
        os.close(source)
        faulthandler.disable()  # of torch's crashes nobody needs a dump
        with os.fdopen(sink, "wb", buffering=0) as pipe:
            for number, found in _of_samples(op, dtype, every, layouts, begin):
                pipe.write(pickle.dumps((number, found)))
            pipe.write(pickle.dumps((-1, Found())))
        os._exit(0)
    os.close(sink)
    begin -= 1
    done = False
    with os.fdopen(source, "rb") as pipe, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while not done:
            number, found = pickle.load(pipe)
            total.add(found)
            done = number < 0
            begin = max(begin, number)
    os.waitpid(child, 0)
    if done:
        return None
    total.counts["crashed"] += 1
    return begin + every + 1


def _of_samples(
    op: Any, dtype: torch.dtype, every: int, layouts: Sequence[Layout], begin: int
) -> Iterator[tuple[int, Found]]:
    torch.manual_seed(1)
    for number, (call, leaves) in enumerate(samples(op, dtype)):
        if number < begin or number % every:
            continue
        found = Found()
        strided = [t.layout is torch.strided for t in leaves]
        for layout, only in [(each, None) for each in layouts] + [(each, 0) for each in layouts[1:]]:
            chosen = [fits and only in (None, place) for place, fits in enumerate(strided)]
            if only is not None and sum(strided) < 2:
                break
            _in_layout(call, leaves, chosen, layout, found)
        yield number, found


def _in_layout(call: Any, leaves: list[Any], chosen: list[bool], layout: Layout, found: Found) -> None:
    try:
        call(*[layout(t).clone() if laid else t.clone() for t, laid in zip(leaves, chosen)])
    except Exception:
        return  # of this size the op does not take them
    inputs = [layout(t) if laid else t for t, laid in zip(leaves, chosen)]
    with torch.no_grad(), Comparing(found), contextlib.suppress(RuntimeError):
        call(*inputs)  # writing to an expanded tensor raises


if __name__ == "__main__":
    sys.exit(main())
