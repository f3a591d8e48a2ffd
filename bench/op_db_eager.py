"""Every operator of torch's own test database (`op_db`), captured with backend "eager" and compared with eager.

    python bench/op_db_eager.py [--op NAME ...] [--stride N] [--limit N] [--json OUT] [--verbose]

For each operator, its float32 CPU samples (another dtype where float32 is unsupported) run as the function, and where
the operator has them as the in-place method, as the out= form (with a fitting, and with an empty out) and with
gradients recorded. Compared: values, dtype, shape and strides of the results and of the arguments afterwards, what
captured code reads of the results' metadata, which results are or alias which arguments, or the type of the
exception. Exits with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import argand
from argand import events

SEED = 20

NOT_COMPARED: dict[str, str] = {
    "empty": "memory is not initialized",
    "empty_like": "memory is not initialized",
    "empty_permuted": "memory is not initialized",
    "empty_strided": "memory is not initialized",
    "new_empty": "memory is not initialized",
    "new_empty_strided": "memory is not initialized",
}
"""Operators of which only metadata are compared."""


@dataclass(slots=True)
class Tally:
    """What one operator's samples did."""

    name: str
    samples: int = 0
    one_graph: int = 0
    breaks: int = 0
    eager: int = 0
    raised: int = 0
    differences: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


# ---------------------------------------------------------------------- the captured functions


def described(result: Any) -> Any:
    """What a program can read of a result without its values."""
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided:
            return (result.dtype, result.shape)
        strides = result.stride() if result.numel() else None
        return (result.dtype, result.shape, strides, result.requires_grad, result.is_contiguous(), result.device)
    if isinstance(result, (tuple, list)):
        return [described(item) for item in result]
    return type(result)


def _function(op: Any, args: Any, kwargs: Any) -> Any:
    result = op(*args, **kwargs)
    return result, described(result)


def _out(op: Any, args: Any, kwargs: Any, out: Any) -> Any:
    result = op(*args, **kwargs, out=out)
    return result, described(result)


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with its own code object: no entries, no cache limit."""
    code = function.__code__.replace()
    return types.FunctionType(code, function.__globals__, function.__name__)


# ---------------------------------------------------------------------- comparison


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def aliases(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    """For each result: the inputs that it is, and those (and the earlier results) whose memory it shares."""
    found = []
    for i, result in enumerate(results):
        own = _storage(result)
        shared = [j for j, t in enumerate([*inputs, *results[:i]]) if own is not None and _storage(t) == own]
        found.append(([j for j, t in enumerate([*inputs, *results[:i]]) if t is result], shared))
    return found


def same_tensor(want: torch.Tensor, got: torch.Tensor, values: bool) -> str | None:
    """What differs, or None."""
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(want, name) != getattr(got, name):
            return f"{name} {getattr(got, name)}, eager {getattr(want, name)}"
    if type(want) is not type(got):
        return f"type {type(got).__name__}, eager {type(want).__name__}"
    if want.layout is torch.strided and want.numel() and want.stride() != got.stride():
        return f"strides {got.stride()}, eager {want.stride()}"
    if (want.is_conj(), want.is_neg()) != (got.is_conj(), got.is_neg()):
        return "conjugate or negative bit"
    if not values or want.is_meta:
        return None
    a, b = want.detach(), got.detach()
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_quantized:
        a, b = a.dequantize(), b.dequantize()
    if a.dtype is torch.complex32:
        a, b = a.to(torch.complex64), b.to(torch.complex64)
    if not torch.equal(a, b) and not torch.allclose(a, b, rtol=0, atol=0, equal_nan=True):
        return "values"
    return None


def difference(want: Any, got: Any, values: bool) -> str | None:
    """What differs between two results of any structure, or None."""
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return same_tensor(want, got, values)
    if type(want) is not type(got):
        return f"type {type(got).__name__}, eager {type(want).__name__}"
    if isinstance(want, (tuple, list)):
        if len(want) != len(got):
            return f"{len(got)} items, eager {len(want)}"
        for i, (a, b) in enumerate(zip(want, got)):
            found = difference(a, b, values)
            if found:
                return f"[{i}] {found}"
        return None
    if isinstance(want, dict):
        return difference(list(want.items()), list(got.items()), values)
    if want == got or (want != want and got != got) or isinstance(want, torch.nn.Module):
        return None
    return f"{got!r}, eager {want!r}" if values or not isinstance(want, float) else None


@dataclass(slots=True)
class Outcome:
    """One run: results or exception, and the arguments afterwards."""

    result: Any
    error: BaseException | None
    arguments: Any
    aliases: list[Any]


def run(function: Callable[..., Any], op: Any, arguments: tuple[Any, ...]) -> Outcome:
    """Call on a copy of `arguments`, always with the same random numbers."""
    arguments = copied(arguments)
    torch.manual_seed(SEED)
    random.seed(SEED)
    try:
        result = function(op, *arguments)
    except Exception as error:
        return Outcome(None, error, arguments, [])
    return Outcome(result, None, arguments, aliases(leaves(result), leaves(arguments)))


def copied(tree: Any) -> Any:
    """A copy in which tensors that shared memory share memory, leaves are leaves, and views are views."""
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
        return copy.deepcopy(tree)

    def one(value: Any) -> Any:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(one, tree)


def compare(tally: Tally, label: str, function: Callable[..., Any], op: Any, arguments: tuple[Any, ...]) -> Outcome:
    """One sample both ways; adds what happened to `tally`. Returns eager's outcome."""
    values = tally.name not in NOT_COMPARED
    want = run(function, op, arguments)
    graphs: list[Any] = []
    reasons: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def listen(event: events.Event) -> None:
        if event.name == "graph_breaks":
            reason = event.data["reason"]
            reasons.append(f"{reason.kind}: {reason.context}")

    remove = events.bus.subscribe(listen)
    try:
        got = run(argand.compile(fresh(function), backend=backend), op, arguments)
    finally:
        remove()
    tally.samples += 1
    found = _outcome_difference(want, got, values)
    if found is not None and values and _unstable(want, function, op, arguments):
        found = _outcome_difference(want, got, False)
    if found:
        tally.differences.append(f"{label}: {found}")
    if want.error is not None:
        tally.raised += 1
    elif graphs and not reasons:
        tally.one_graph += 1
    elif graphs:
        tally.breaks += 1
    else:
        tally.eager += 1
    if want.error is None:
        tally.reasons.update(reasons[:1])
    return want


def _unstable(want: Outcome, function: Callable[..., Any], op: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether eager itself gives other values from one run to the next (memory that it does not initialize)."""
    for size in range(1, 6):
        litter = [torch.full((n,), float(size)) for n in range(64)]
        if _outcome_difference(want, run(function, op, arguments), True) is not None:
            return True
        del litter
    return False


def _outcome_difference(want: Outcome, got: Outcome, values: bool) -> str | None:
    if type(want.error) is not type(got.error):
        return f"{_short(got)}; eager {_short(want)}"
    if want.error is not None:
        return None
    found = difference(want.result, got.result, values)
    if found:
        return f"result{found if found.startswith('[') else ' ' + found}"
    found = difference(want.arguments, got.arguments, values)
    if found:
        return f"argument afterwards{found}"
    if want.aliases != got.aliases:
        return f"aliases {got.aliases}, eager {want.aliases}"
    return None


def _short(outcome: Outcome) -> str:
    if outcome.error is None:
        return "returned"
    text = str(outcome.error).splitlines()
    return f"raised {type(outcome.error).__name__}: {text[0][:160] if text else ''}"


# ---------------------------------------------------------------------- operators and samples


def operators() -> list[Any]:
    """The entries of op_db, in their order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _dtype(op: Any) -> torch.dtype:
    supported = op.supported_dtypes("cpu")
    if torch.float32 in supported:
        return torch.float32
    return sorted(supported, key=str)[0]


def samples_of(op: Any, requires_grad: bool) -> Iterator[Any]:
    """The operator's samples; those that cannot be made end the iteration."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    yield from op.sample_inputs("cpu", _dtype(op), requires_grad=requires_grad)


def check_operator(op: Any, limit: int | None = None) -> Tally:
    """All forms of one operator.

    Arguments:
        op: an OpInfo.
        limit: at most so many samples of it, spread evenly (None: all).
    """
    tally = Tally(full_name(op))
    samples = list(samples_of(op, False))
    for i in spread(len(samples), limit):
        sample = samples[i]
        label = f"sample {i}"
        arguments = ((sample.input, *sample.args), sample.kwargs)
        want = compare(tally, label, _function, op.op, arguments)
        inplace = op.inplace_variant
        if inplace is not None:
            compare(tally, f"{label} in place", _function, inplace, arguments)
        if op.supports_out and want.error is None and _dense(want.result):
            _check_out(tally, label, op, arguments, want)
    if op.supports_autograd and _dtype(op).is_floating_point:
        samples = list(samples_of(op, True))
        for i in spread(len(samples), 4 if limit is None else 1):
            sample = samples[i]
            compare(tally, f"grad sample {i}", _function, op.op, ((sample.input, *sample.args), sample.kwargs))
    return tally


def _dense(result: Any) -> bool:
    found = leaves(result)
    return bool(found) and all(t.layout is torch.strided and not t.is_quantized and not t.is_nested for t in found)


def _check_out(tally: Tally, label: str, op: Any, arguments: Any, want: Outcome) -> None:
    result = want.result[0]
    fitting = pytree.tree_map(lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) else t, result)
    empty = pytree.tree_map(lambda t: t.new_empty(0) if isinstance(t, torch.Tensor) else t, result)
    for name, out in (("out=", fitting), ("out= resized", empty)):
        if isinstance(out, tuple):
            out = tuple(out)
        compare(tally, f"{label} {name}", _out, op.op, (*arguments, out))


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` indices out of `count`, evenly spread."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)})


def chosen(names: list[str], stride: int, offset: int = 0) -> list[Any]:
    """The operators to look at: by name, or every `stride`-th."""
    found = [op for op in operators() if op.supported_dtypes("cpu")]
    if names:
        return [op for op in found if op.name in names or full_name(op) in names]
    return found[offset::stride]


# ---------------------------------------------------------------------- the command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", nargs="*", default=[], help="names of operators (default: all)")
    parser.add_argument("--stride", type=int, default=1, help="only every N-th operator")
    parser.add_argument("--offset", type=int, default=0, help="the first operator of a --stride")
    parser.add_argument("--limit", type=int, default=None, help="at most N samples of an operator")
    parser.add_argument("--json", metavar="OUT", help="write everything there")
    parser.add_argument("--verbose", action="store_true", help="print a line per operator")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tallies = []
    for op in chosen(options.op, options.stride, options.offset):
        tally = check_operator(op, options.limit)
        tallies.append(tally)
        argand.reset()
        if options.verbose:
            reason = "".join(f"  [{text}]" for text, _ in tally.reasons.most_common(1))
            print(f"{tally.name}: {tally.samples} samples, {tally.one_graph} in one graph, {tally.breaks} with breaks, "
                  f"{tally.eager} eager, {tally.raised} raise{reason}", flush=True)  # fmt: skip
        for text in tally.differences[:4]:
            print(f"DIFFERENCE {tally.name}, {text}", flush=True)
    print_summary(tallies)
    if options.json:
        with open(options.json, "w") as out:
            json.dump([as_dict(tally) for tally in tallies], out, indent=1)
    return 1 if any(tally.differences for tally in tallies) else 0


def as_dict(tally: Tally) -> dict[str, Any]:
    """For --json."""
    return {name: getattr(tally, name) for name in Tally.__slots__} | {"reasons": dict(tally.reasons)}


def print_summary(tallies: list[Tally]) -> None:
    """The counts."""

    def total(name: str) -> int:
        return sum(getattr(tally, name) for tally in tallies)

    different = sum(len(tally.differences) for tally in tallies)
    whole = sum(tally.one_graph > 0 and tally.breaks + tally.eager == 0 for tally in tallies)
    print(
        f"{len(tallies)} operators, {total('samples')} samples: {total('one_graph')} in one graph, "
        f"{total('breaks')} with graph breaks, {total('eager')} eager, {total('raised')} raise as eager does; "
        f"{different} differences in {sum(bool(t.differences) for t in tallies)} operators; "
        f"{whole} operators always in one graph"
    )


if __name__ == "__main__":
    sys.exit(main())
