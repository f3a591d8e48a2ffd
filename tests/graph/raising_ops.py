"""The facts behind `argand.graph.operators.data_checks`: which operators raise for other values of the same sizes and dtypes.

`python -m tests.graph.raising_ops` runs the samples of torch's operator database with spoilt data (positions far out of
bounds, NaN, numbers of the wrong sign), each operator in a process of its own, and prints the ATen operators that raise
and are not in the table. "python:" are checks that torch makes in Python, with a number that breaks the graph.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from argand.graph import compat
from argand.graph.operators import data_checks

SAMPLES = 6
WHOLE = (torch.int64, torch.int32)
SPOILT: list[tuple[tuple[torch.dtype, ...], Any]] = [
    (WHOLE, 10**6), (WHOLE, -(10**6)), (WHOLE, 0),
    *(((torch.float32,), number) for number in (float("nan"), -5, 0, 5)),
    ((torch.bool,), True), ((torch.bool,), False),
]  # fmt: skip


class _First(TorchDispatchMode):
    """Remembers the innermost operator that raised."""

    found: tuple[str, str] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.found = self.found or (str(func), str(error).partition("\n")[0])
            raise


def raising(op: Any) -> dict[str, str]:
    """Operators that raise for spoilt samples of an entry of the database, and what they say."""
    found: dict[str, str] = {}
    for dtype in {torch.float32, torch.int64} & op.dtypes:
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
            for dtypes, number in SPOILT:

                def spoil(value: Any, dtypes: Any = dtypes, number: Any = number) -> Any:
                    fits = isinstance(value, torch.Tensor) and value.dtype in dtypes
                    return torch.full_like(value.detach(), number) if fits else value

                first = _First()
                given, args, kwargs = tree_map(spoil, (sample.input, sample.args, sample.kwargs))
                try:
                    with first:
                        op(given, *args, **kwargs)
                except Exception as error:
                    name, text = first.found or (f"python:{op.name}", str(error).partition("\n")[0])
                    found.setdefault(name, text)
    return found


def is_known(name: str) -> bool:
    """Whether the table, or what is said of effects, has an operator."""
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    func = getattr(getattr(getattr(torch.ops, space), packet), overload)
    return data_checks.kind(func) != "" or compat.is_random(func) or not func._schema.returns


def apart(op: Any) -> dict[str, str]:
    """`raising` in a process of its own: some operators crash on such data, or take all memory."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        try:
            os.write(write, json.dumps(raising(op)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    result: dict[str, str] = json.loads(text) if text.endswith("}") else {}
    return result


def main() -> None:
    """Print what the table lacks."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    for op in op_db:
        found = {**apart(op), **found}
    for name, text in sorted(found.items()):
        if name.startswith("python:") or not is_known(name):
            print(name, text, sep="\t")


if __name__ == "__main__":
    main()
