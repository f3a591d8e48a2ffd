"""Inferred metadata against what eager's kernels really make, for every ATen call that op_db's samples reach.

`python tests/autograd/opdb_layouts.py [--every N] [--dtype float32] [names ...]`. Each sample runs with its tensors as they are, and
again in other memory layouts (channels last, reversed dimensions, every second element of a larger tensor).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from opdb_aot import load_op_db, samples
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata import metas
from argand.graph.metadata.specs import Spec, SpecTable

aten = torch.ops.aten


def reversed_dims(x: torch.Tensor) -> torch.Tensor:
    """The same values, first dimension innermost."""
    dims = list(range(x.dim()))[::-1]
    return x.permute(dims).contiguous().permute(dims)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if x.dim() == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() == 3 else x


def with_holes(x: torch.Tensor) -> torch.Tensor:
    """The same values in every second place of a larger tensor."""
    if not x.dim():
        return x
    large = x.new_empty((*x.shape, 2)).zero_()
    large[..., 0] = x
    return large[..., 0]


def whole(x: torch.Tensor) -> torch.Tensor:
    return x


LAYOUTS = (whole, reversed_dims, channels_last, with_holes)


class Comparing(TorchDispatchMode):
    """Runs each op for real and compares the result's metadata with what is inferred."""

    def __init__(self, problems: Counter, counts: Counter) -> None:
        super().__init__()
        self.problems, self.counts = problems, counts
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
            elif want[2] != have[2] and tensor.numel():
                wide = any(n != 1 and a != b for n, a, b in zip(want[0], want[2], have[2]))
                kind = "stride" if wide else "stride of size 1"
                inputs = [
                    (tuple(t.shape), t.stride()) for t in _pytree.tree_leaves(args) if isinstance(t, torch.Tensor)
                ]
                self.problems[f"{func}: result {position} {kind}"] += 1
                self.examples.setdefault(f"{func} {position} {kind}", (want[0], want[2], have[2], inputs))

    examples: dict[str, Any] = {}


SKIPPED = {aten.lift_fresh.default, aten._local_scalar_dense.default}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    problems, counts = compare(options.names, getattr(torch, options.dtype), options.every)
    for text, count in sorted(problems.items()):
        print(f"x{count} {text}")
    for name, example in Comparing.examples.items():
        print(name, example)
    print(dict(counts))
    return 1 if problems else 0


def compare(names: list[str], dtype: torch.dtype, every: int, ops: int = 1) -> tuple[Counter, Counter]:
    problems: Counter = Counter()
    counts: Counter = Counter()
    number = 0
    for op in load_op_db()[::ops]:
        if (names and op.name not in names) or not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(1)
        for call, leaves in samples(op, dtype):
            number += 1
            if number % every:
                continue
            for layout in LAYOUTS:
                inputs = [layout(t) if t.layout is torch.strided and t.dim() else t for t in leaves]
                try:
                    call(*[t.clone() if layout is whole else t for t in inputs])
                except Exception:
                    continue
                inputs = [layout(t) if t.layout is torch.strided and t.dim() else t for t in leaves]
                with torch.no_grad(), Comparing(problems, counts):
                    call(*inputs)
    return problems, counts


if __name__ == "__main__":
    sys.exit(main())
