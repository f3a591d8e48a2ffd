"""What capture says that torch calls return, against what they return, over op_db's samples in many layouts.

    python tests/capture/metadata/outcomes_db.py [--every N] [--gradients] [NAME ...]

Every torch function that a sample calls is looked at: sizes, strides, dtype, whether the result requires grad. Where
capture breaks the graph there is nothing to compare. Exit status 1 if anything differs but what `KNOWN` lists.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "autograd"))

import opdb_layouts
from opdb_aot import load_op_db, samples

import forks
import sweeps
from argand import errors
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import metadata

KNOWN = {
    "max_pool1d": "without gradients eager has a kernel of its own, which torch hides from tensors without data",
    "__getitem__": "of empty tensors",
}
"""Functions whose results may have other strides than capture and the graph's trace say, and why."""

_CPU = torch.device("cpu")
_ALIASING = frozenset({"clone", "detach", "requires_grad_", "__setitem__", "__get__", "__set__"})


class Comparing(TorchFunctionMode):
    """Makes each call for real, and asks capture what it gives."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", func))
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        writes = "out" in kwargs or (name.endswith("_") and not name.endswith("__"))
        if writes or name in _ALIASING or not tensors or any(t.layout is not torch.strided for t in tensors):
            return func(*args, **kwargs)
        given, named = _pytree.tree_map_only(torch.Tensor, metadata.stand_in, (args, kwargs))
        infos = [
            TensorInfo(leaf, None, _CPU)  # type: ignore[arg-type]
            for leaf in _pytree.tree_leaves((given, named))
            if isinstance(leaf, torch.Tensor)
        ]
        result = func(*args, **kwargs)
        self._compare(name, described(result), (func, given, named, infos))
        return result

    def _compare(self, name: str, want: Any, call: Any) -> None:
        try:
            have = described(metadata.compute(*call))
        except errors.GraphBreak:
            self.found["breaks"] += 1
            return
        self.found["compared"] += 1
        if have != want:
            self.found["known" if name in KNOWN else f"{name}: {want}, capture says {have}"] += 1


def described(result: Any) -> Any:
    """Metadata of a result."""
    if isinstance(result, torch.Tensor):
        return tuple(result.shape), result.stride(), result.dtype, result.requires_grad
    return tuple(map(described, result)) if isinstance(result, tuple | list) else type(result)


def _of_op(op: Any, every: int, layouts: Sequence[Any], gradients: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    torch.manual_seed(1)
    for number, (call, leaves) in enumerate(samples(op, torch.float32)):
        for layout in layouts if number % every == 0 else ():
            try:
                given = [layout(t).detach() if t.layout is torch.strided else t for t in leaves]
                call(*[t.clone() for t in given])
            except Exception:
                continue  # of this size the op does not take them
            if gradients:
                given = [t.requires_grad_() if t.dtype.is_floating_point else t for t in given]
            try:
                with torch.set_grad_enabled(gradients), Comparing(found):
                    call(*given)
            except RuntimeError:
                found["raised"] += 1  # it writes to an expanded tensor, say
    return found


def compare(
    names: Sequence[str], every: int, gradients: bool, ops: int = 1, layouts: Any = opdb_layouts.LAYOUTS
) -> Counter[str]:
    """Every `every`-th sample of each `ops`-th op (or those named), each op in a process of its own: some kernels of
    torch's write past the end of an expanded or empty tensor."""
    total: Counter[str] = Counter()
    for op in load_op_db()[::ops]:
        if (names and op.name not in names) or not op.supports_dtype(torch.float32, "cpu"):
            continue
        total.update(forks.counted(lambda op=op: _of_op(op, every, layouts, gradients)))
    return total


def main() -> int:
    options = sweeps.parser(__doc__).parse_args()
    warnings.simplefilter("ignore")
    found = compare(options.names, options.every, options.gradients)
    return sweeps.told(found, ("breaks", "compared", "crashed", "known", "raised"))


if __name__ == "__main__":
    sys.exit(main())
