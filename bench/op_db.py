"""Every operator of torch's own test database (`op_db`), compiled by backend "native" and compared with eager.

    python bench/op_db.py [--ops NAME ...] [--dtype float32|other|NAME] [--every N] [--samples N] [--shard I/N]
                          [--json OUT] [--torch] [--direct] [--backend NAME] [--time-limit S] [--verbose]

For each operator, float32 and one more dtype (chosen by the operator's name among those of float64, int64, bool,
bfloat16 and complex64 that it supports), every CPU sample runs eagerly and compiled. Compared: values, dtype, shape and
strides of the results, and, where the operator is differentiable, of the gradients of all its inputs for random
cotangents; or the sample must raise both ways. A value counts as equal within torch.testing's tolerance of its dtype,
or when it lies as near to the float64 result as eager's does. Each operator runs in a forked process: a crash or an
endless loop is a failure of one sample. `--torch` runs the same samples under torch.compile too. Exits with 1 when
anything differs.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import argand
from op_db_eager import NOT_COMPARED, fresh, full_name, operators
from op_db_samples import BAD, OUTCOMES, Sample, call_operator, check_sample, seed

SECOND = (torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


@dataclass(slots=True)
class Tally:
    """The samples of one operator in one dtype under one compiler."""

    name: str
    dtype: str
    system: str
    samples: list[Sample] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(sample.outcome for sample in self.samples)


# ---------------------------------------------------------------------- compilers


def captured(backend: str) -> Callable[..., Any]:
    """The sample's function compiled by argand.compile."""
    return lambda op, args, kwargs: argand.compile(fresh(call_operator), backend=backend)(op, args, kwargs)


def direct(backend: str) -> Callable[..., Any]:
    """The backend on a graph of the one call, without capture."""
    from argand.backends import registry

    compiler = registry.lookup_backend(backend)

    def call(op: Any, args: Any, kwargs: Any) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        graph = torch.fx.Graph()
        nodes = tuple(graph.placeholder(f"x{number}") for number in range(len(given)))
        shape: list[Any] = []

        def body(*flat: Any) -> Any:
            values = iter(flat)
            full = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            positional, named = pytree.tree_unflatten(full, tree)
            return op(*positional, **named)

        graph.output(graph.call_function(body, nodes))
        shape.append(compiler(torch.fx.GraphModule(torch.nn.Module(), graph), given))
        return shape[0](*given)

    return call


def unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of op_db's own wrapper, which seeds inside the operator, where tracing does not see it."""
    return op(*args, **kwargs)


def by_torch(op: Any, args: Any, kwargs: Any) -> Any:
    """torch.compile, for comparison."""
    return torch.compile(fresh(call_operator))(op, args, kwargs)


def set_up_torch() -> None:
    """Eager's random numbers, and no compile workers, which a forked process cannot have."""
    from torch._inductor import config

    config.compile_threads = 1
    config.fallback_random = True


@dataclass(slots=True)
class Together:
    """Several samples as one: their operator is called once for each."""

    input: list[Any]
    args: tuple[Any, ...]
    process: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def output_process_fn_grad(self, results: list[Any]) -> list[Any]:
        return [process(result) for process, result in zip(self.process, results)]


def _batches(
    call: Callable[..., Any], op: Any, samples: list[Any], differentiable: bool, values: bool, options: Any
) -> Iterator[Sample]:
    """`--batch` samples in one graph; one by one where that graph differs from eager."""

    def every(inputs: list[Any], rest: list[Any]) -> list[Any]:
        return [op(each, *args, **kwargs) for each, (args, kwargs) in zip(inputs, rest)]

    for at in range(0, len(samples), options.batch):
        group = samples[at : at + options.batch]
        rest = [(sample.args, sample.kwargs) for sample in group]
        sample = Together([s.input for s in group], (rest,), [s.output_process_fn_grad for s in group])
        made = check_sample(call, every, sample, differentiable, values)
        argand.reset()
        if made.outcome == "equal" and "eager graph" not in made.kinds:
            yield from (Sample("equal", "", made.gradients // len(group), made.kinds, made.reasons) for _ in group)
            continue
        for number, sample in enumerate(group, at):
            made = check_sample(call, op, sample, differentiable, values)
            made.detail = f"sample {number} of those chosen: {made.detail}" if made.outcome in BAD else ""
            yield made
            argand.reset()


# ---------------------------------------------------------------------- operators, dtypes, samples


def dtypes_of(op: Any, wanted: str | None) -> list[torch.dtype]:
    """float32 and one more, as far as the operator supports them."""
    supported = op.supported_dtypes("cpu")
    others = [dtype for dtype in SECOND if dtype in supported]
    second = [others[zlib.crc32(full_name(op).encode()) % len(others)]] if others else []
    if wanted == "other":
        return second
    if wanted is not None:
        dtype = getattr(torch, wanted)
        return [dtype] if dtype in supported else []
    return [torch.float32] * (torch.float32 in supported) + second


def samples_of(op: Any, dtype: torch.dtype) -> tuple[list[Any], bool]:
    """The operator's samples, and whether gradients are compared."""
    differentiable = bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))
    seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(op.sample_inputs("cpu", dtype, requires_grad=differentiable)), differentiable


def chosen(options: argparse.Namespace) -> list[Any]:
    found = [op for op in operators() if op.supported_dtypes("cpu")]
    if options.inplace:
        found = [op for op in found if op.inplace_variant is not None]
    if options.ops:
        return [op for op in found if op.name in options.ops or full_name(op) in options.ops]
    return found[options.offset :: options.every][options.shard[0] :: options.shard[1]]


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` of the positions below `count`, evenly spread."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted({(2 * i + 1) * count // (2 * limit) for i in range(limit)})


def in_place(method: Callable[..., Any], differentiable: bool) -> Callable[..., Any]:
    """The writing form of an operator, on a copy where its input is a leaf of the gradient's graph."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        target = x.clone() if differentiable else x
        return method(target, *args, **kwargs), target

    return call


# ---------------------------------------------------------------------- a process per operator


def check_operator(op: Any, dtype: torch.dtype, system: str, options: argparse.Namespace) -> Tally:
    """The samples of an operator in forked processes; a new one begins after the sample that ended the last."""
    tally = Tally(full_name(op), str(dtype).removeprefix("torch."), system)
    timeouts = 0
    while True:
        before = len(tally.samples)
        end = _forked(tally, functools.partial(work, op, dtype, system, options, before), options.time_limit)
        if end == "done":
            return tally
        if options.batch > 1:
            options = argparse.Namespace(**{**vars(options), "batch": 1})  # finds the sample
            continue
        tally.samples.append(Sample(end if end == "timeout" else "crash", end))
        timeouts += end == "timeout"
        if timeouts == 2:
            return tally


def work(op: Any, dtype: torch.dtype, system: str, options: argparse.Namespace, start: int = 0) -> Iterator[Sample]:
    """The operator's samples from the `start`-th chosen one on."""
    warnings.simplefilter("ignore")
    samples, differentiable = samples_of(op, dtype)
    values = op.name not in NOT_COMPARED
    if system == "torch":
        call: Callable[..., Any] = by_torch
    else:
        call = direct(options.backend) if options.direct else captured(options.backend)
    function = op.op
    if options.inplace:
        function = in_place(op.inplace_variant, differentiable)
    positions = spread(len(samples), options.samples)[start:]
    if options.direct and options.batch > 1:
        yield from _batches(
            call, function, [samples[position] for position in positions], differentiable, values, options
        )
        return
    for position in positions:
        made = check_sample(call, function, samples[position], differentiable, values)
        if made.outcome in BAD:
            made.detail = f"sample {position}: {made.detail}"
        yield made
        if system == "torch":
            torch.compiler.reset()
        else:
            argand.reset()


def warm_up(options: argparse.Namespace, systems: list[str]) -> None:
    """What every child would import, imported before the first fork."""
    op = next(op for op in operators() if op.name == "tanh")
    for system in systems:
        for _ in work(op, torch.float32, system, options):
            pass


def _forked(tally: Tally, job: Callable[[], Iterator[Sample]], limit: float) -> str:
    """Run `job` in a child, adding the samples that it sends; returns "done", "timeout" or how the child ended."""
    sys.stdout.flush()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        _child(source, sink, job)
    os.close(sink)
    try:
        with os.fdopen(source, "rb", buffering=0) as pipe:
            while True:
                ready, _, _ = select.select([pipe], [], [], limit)
                if not ready:
                    os.kill(child, signal.SIGKILL)
                    return "timeout"
                header = _read(pipe, 4)
                if len(header) < 4:
                    break
                made = pickle.loads(_read(pipe, struct.unpack("I", header)[0]))
                if made is None:
                    return "done"
                tally.samples.append(made)
    finally:
        _, status = os.waitpid(child, 0)
    return f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"ended with status {status >> 8}"


def _read(pipe: Any, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        more = pipe.read(count - len(parts))
        if not more:
            break
        parts += more
    return parts


def _child(source: int, sink: int, job: Callable[[], Iterator[Sample]]) -> None:
    status = 1
    try:
        os.close(source)
        with os.fdopen(sink, "wb", buffering=0) as pipe:
            for made in job():
                data = pickle.dumps(made)
                pipe.write(struct.pack("I", len(data)) + data)
            data = pickle.dumps(None)
            pipe.write(struct.pack("I", len(data)) + data)
        status = 0
    except BaseException as error:
        print(f"the child stopped: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


# ---------------------------------------------------------------------- the command


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", default=[], help="names of operators (default: all)")
    parser.add_argument("--dtype", help='only this one; "other" for the second one of each (default: both)')
    parser.add_argument("--every", type=int, default=1, help="only every N-th operator")
    parser.add_argument("--offset", type=int, default=0, help="the first operator of --every")
    parser.add_argument("--samples", type=int, help="at most N samples of an operator and dtype, spread evenly")
    parser.add_argument("--shard", default="0/1", help="I/N: the I-th of N parts")
    parser.add_argument("--json", metavar="OUT", help="write everything there")
    parser.add_argument("--inplace", action="store_true", help="the form that writes to its first argument")
    parser.add_argument("--torch", action="store_true", help="the same samples under torch.compile too")
    parser.add_argument("--direct", action="store_true", help="hand each call to the backend without capture")
    parser.add_argument("--batch", type=int, default=1, help="with --direct: so many samples in one graph")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds of one sample")
    parser.add_argument("--verbose", action="store_true", help="print a line per operator, and fallbacks")
    options = parser.parse_args(arguments)
    first, _, count = options.shard.partition("/")
    options.shard = (int(first), int(count or 1))
    return options


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    argand.config.fallback_random = True
    argand.config.log_level = logging.ERROR  # breaks are counted
    if options.direct:
        common_methods_invocations.wrapper_set_seed = unseeded
    tallies: list[Tally] = []
    systems = ["argand", "torch"] if options.torch else ["argand"]
    if options.torch:
        set_up_torch()
    warm_up(options, systems)
    for op in chosen(options):
        for dtype in dtypes_of(op, options.dtype):
            for system in systems:
                begun = time.perf_counter()
                tally = check_operator(op, dtype, system, options)
                tallies.append(tally)
                report(tally, time.perf_counter() - begun, options.verbose)
    for system in systems:
        print_summary([tally for tally in tallies if tally.system == system], system)
    if options.json:
        with open(options.json, "w") as out:
            json.dump([asdict(tally) for tally in tallies], out, indent=1)
    return 1 if any(s.outcome in BAD for t in tallies if t.system == "argand" for s in t.samples) else 0


def report(tally: Tally, seconds: float, verbose: bool) -> None:
    """Lines about one operator."""
    label = f"{tally.system} {tally.name} {tally.dtype}"
    if verbose:
        counts = ", ".join(f"{count} {name}" for name, count in tally.counts().items())
        print(f"{label}: {counts} ({seconds:.1f} s)", flush=True)
        for text, count in Counter(r for s in tally.samples for r in s.reasons).most_common(3):
            print(f"    {count} x {text}", flush=True)
    shown: Counter[str] = Counter()
    for sample in tally.samples:
        if sample.outcome in BAD:
            shown[sample.outcome] += 1
            if shown[sample.outcome] <= 3:
                print(f"{sample.outcome.upper()} {label}, {sample.detail}", flush=True)


def print_summary(tallies: list[Tally], system: str) -> None:
    """The counts."""
    every = [sample for tally in tallies for sample in tally.samples]
    counts = Counter(sample.outcome for sample in every)
    ops = len({tally.name for tally in tallies})
    parts = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES)
    print(f"{system}: {ops} ops, {len(every)} samples: {parts}; {sum(s.gradients for s in every)} gradients compared")
    if system == "argand":
        kinds = Counter(kind for sample in every for kind in sample.kinds)
        print("  samples " + ", ".join(
            f"with {name}: {kinds[key]}"
            for name, key in (("native kernels", "native"), ("fallback kernels", "fallback"),
                              ("a graph run eagerly", "eager graph"), ("graph breaks", "graph break"))
        ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
