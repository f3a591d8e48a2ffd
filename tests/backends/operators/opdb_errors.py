"""Calls that eager refuses: every error input of torch's op_db, compiled.

    python tests/backends/operators/opdb_errors.py [--backend NAME ...] [--every N] [--dynamic] [--warm] [NAME ...]

For each operator's `error_inputs` on the CPU, the call runs eagerly and under each backend, by itself and behind
other operations of the same graph, with its error caught inside the function, with inputs that require grad, and as the
method. Where eager raises, the compiled call must raise the same type with the same first line; where eager returns, it
must return. With `--warm`, valid samples of the operator are compiled before. Prints the differences and the counts; exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

import argand

BACKENDS = ("eager", "aot_eager", "native")


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def alone(op: Any, args: Any, kwargs: Any) -> Any:
    return op(*args, **kwargs)


def behind_others(op: Any, args: Any, kwargs: Any) -> Any:
    before = torch.ones(3) * 2
    result = op(*args, **kwargs)
    return result, before + 1


def caught(op: Any, args: Any, kwargs: Any) -> Any:
    before = torch.ones(3) * 2
    try:
        result = op(*args, **kwargs)
    except Exception as error:
        return before, type(error), str(error).partition("\n")[0]
    return result, before + 1


FORMS: tuple[Callable[..., Any], ...] = (alone, behind_others, caught)


def fresh(function: Any) -> Any:
    """A copy with its own code object: no entries, no cache limit."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def copied(value: Any) -> Any:
    """A copy of an argument; memory that several elements of a tensor share stays so."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return value
    if value.device.type != "cpu" or type(value) is not torch.Tensor:
        return value
    storage = value.detach().untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.size(), value.stride())
    return made.requires_grad_(value.requires_grad)


def outcome(call: Callable[..., Any], op: Any, args: Any, kwargs: Any) -> tuple[str, str]:
    """How the call ended: ("returned" or the exception's type, its first line)."""
    args, kwargs = _pytree.tree_map(copied, (args, kwargs))
    torch.manual_seed(0)
    try:
        result = call(op, args, kwargs)
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]
    if isinstance(result, tuple) and len(result) == 3 and isinstance(result[1], type):
        return f"caught {result[1].__name__}", result[2]
    return "returned", ""


def calls(names: Sequence[str], every: int) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(what, operator, callable, args, kwargs) of the chosen error inputs."""
    index = 0
    for op in op_db:
        if op.error_inputs_func is None or (names and op.name not in names):
            continue
        # not `op.error_inputs`, which looks at the stack and all modules for each of them
        for number, error_input in enumerate(op.error_inputs_func(op, "cpu")):
            index += 1
            if (index - 1) % every:
                continue
            sample = error_input.sample_input
            args = (sample.input, *sample.args)
            what = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} #{number}"
            yield what, op, op.op, args, sample.kwargs
            if op.method_variant is not None and isinstance(sample.input, torch.Tensor):
                yield f"{what} method", op, op.method_variant, args, sample.kwargs
            with_grad = _pytree.tree_map(_requiring_grad, (args, sample.kwargs))
            yield f"{what} with grad", op, op.op, *with_grad


def valid(info: Any) -> list[Any]:
    """A few samples that eager takes."""
    dtypes = info.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    return list(itertools.islice(info.sample_inputs_func(info, "cpu", dtype, False), 3))


def _requiring_grad(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return copied(value).detach().requires_grad_() if value.layout is torch.strided else value


def run(
    names: Sequence[str] = (),
    every: int = 1,
    backends: Sequence[str] = BACKENDS,
    dynamic: bool | None = None,
    warm: bool = False,
) -> Tally:
    """Compare the chosen calls."""
    tally = Tally()
    for what, info, op, args, kwargs in calls(names, every):
        argand.reset()
        before = valid(info) if warm else []
        for form in FORMS:
            want = outcome(form, op, args, kwargs)
            for backend in backends:
                compiled = argand.compile(fresh(form), backend=backend, dynamic=dynamic)
                for sample in before:
                    outcome(compiled, op, (sample.input, *sample.args), sample.kwargs)
                for attempt in ("", ", again"):
                    got = outcome(compiled, op, args, kwargs)
                    tally.counts["raised" if want[0] != "returned" else "returned"] += 1
                    if got != want:
                        tally.problems.append(f"{what}, {form.__name__}, {backend}{attempt}: {got}, eager {want}")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators (all)")
    parser.add_argument("--every", type=int, default=1, help="every N-th error input only")
    parser.add_argument("--backend", nargs="+", default=list(BACKENDS))
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols from the first call on")
    parser.add_argument("--warm", action="store_true", help="valid samples first")
    chosen = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = run(chosen.names, chosen.every, chosen.backend, True if chosen.dynamic else None, chosen.warm)
    print("\n".join(tally.problems))
    print(dict(tally.counts), len(tally.problems), "differences")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
