"""Run torch's op_db samples through trace_inference, lower and interpret, and compare with eager.

    python tests/lower/opdb_lower.py [--ops REGEX] [--dtypes float32,int64] [--samples N] [--verbose]

Prints, per kind of outcome, how many samples ended there: "lowered" (loops only), "mixed" (loops and ATen kernels),
"extern" (ATen kernels only), "untraced" (refused before lowering), "wrong", "crashed". Exit status 1 if any is wrong or
crashed.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import traceback
import types
import unittest
import warnings
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from argand.autograd import trace_inference
from argand.errors import ArgandError, LoweringError
from argand.lower import lower
from argand.lower.interpret import interpret, same_layout
from argand.lower.ir import ExternNode, LoopNode, Program

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
# their results are not determined by their inputs: op_db seeds the generator inside the op, which tracing does not see
# eager's own kernels round intermediate results in reduced precision
TOLERANCES = {torch.bfloat16: (1.6e-2, 5e-3), torch.float16: (2e-3, 1e-3)}
UNDETERMINED = re.compile(
    r"rand|dropout|empty|bernoulli|multinomial|^normal|rrelu|svd_lowrank|pca_lowrank|fractional_max_pool"
    r"|scaled_dot_product|multi_head_attention|to_sparse"
)


def graph_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph module that calls `function`, with one placeholder per tensor among its arguments."""
    graph = fx.Graph()
    tensors: list[torch.Tensor] = []
    leaves, tree = pytree.tree_flatten((args, kwargs))
    nodes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            nodes.append(graph.placeholder(f"x{len(tensors)}"))
        else:
            nodes.append(leaf)

    def call(*flat: Any) -> Any:
        values = iter(flat)
        full = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        positional, named = pytree.tree_unflatten(full, tree)
        return function(*positional, **named)

    graph.output(graph.call_function(call, tuple(node for node in nodes if isinstance(node, fx.Node))))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def compare(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """What differs, or ""."""
    if expected.dtype is not actual.dtype or expected.shape != actual.shape:
        return f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not same_layout(expected, actual.stride()):
        return f"strides {actual.stride()} instead of {expected.stride()} (size {tuple(expected.shape)})"
    try:
        rtol, atol = TOLERANCES.get(expected.dtype, (None, None))
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=rtol, atol=atol)
    except AssertionError as error:
        return str(error).split("\n\n")[0] + " " + str(error).split("\n\n")[-1][:200].replace("\n", " ")
    return ""


def kind_of(program: Program) -> str:
    """Whether loops, ATen kernels or both do the work."""
    loops = any(isinstance(node, LoopNode) for node in program.nodes)
    extern = any(isinstance(node, ExternNode) for node in program.nodes)
    return "mixed" if loops and extern else "extern" if extern else "lowered"


def check_sample(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """(outcome, detail) of one call."""
    gm, tensors = graph_of(function, args, kwargs)
    torch.manual_seed(0)  # both runs draw the same numbers, in the same order
    try:
        expected = gm(*[tensor.clone() if not _odd(tensor) else tensor for tensor in tensors])
    except Exception as error:
        return "eager raises", str(error)
    try:
        traced = trace_inference(gm, tensors)
    except ArgandError as error:
        return "untraced", str(error).splitlines()[0]
    try:
        program = lower(traced, check=True)
    except LoweringError as error:
        return "refused", str(error).splitlines()[0]
    sources = {spec.name: spec for spec in traced.inputs}
    inputs = [
        tensors[sources[name].index] if sources[name].kind == "arg" else traced.constants[name]
        for name in program.inputs
    ]
    inputs = [tensor.clone() if _is_mutated(traced, name) else tensor for name, tensor in zip(program.inputs, inputs)]
    torch.manual_seed(0)
    outputs = interpret(program, inputs)
    leaves = pytree.tree_leaves(expected)
    for spec, leaf in zip(traced.outputs, leaves):
        if spec.kind != "value" or not isinstance(leaf, torch.Tensor):
            continue
        difference = compare(leaf, outputs[spec.index])
        if difference:
            return "wrong", difference
    return kind_of(program), [f"{n.target}: {n.reason}" for n in program.nodes if isinstance(n, ExternNode) and n.reason]


def _odd(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def _is_mutated(traced: Any, name: str) -> bool:
    return any(traced.inputs[mutation.input].name == name for mutation in traced.mutations)


def op_database() -> list[Any]:
    """torch's descriptions of its operators with sample inputs."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # torch's own test base class wants it, the descriptions do not
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def run(pattern: str, dtypes: list[str], limit: int, verbose: bool) -> int:
    """Check every op that matches; returns the number of failures."""
    counts: collections.Counter[str] = collections.Counter()
    failures: dict[str, list[str]] = collections.defaultdict(list)
    externs: collections.Counter[str] = collections.Counter()  # ATen kernels, with the reason
    for op in op_database():
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not re.search(pattern, name) or UNDETERMINED.search(name):
            continue
        for dtype_name in dtypes:
            dtype = DTYPES[dtype_name]
            if dtype not in op.supported_dtypes("cpu"):
                continue
            samples = op.sample_inputs("cpu", dtype, requires_grad=False)
            for number, sample in enumerate(samples):
                if number >= limit:
                    break
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        args = (sample.input, *sample.args)
                        outcome, detail = check_sample(op.op, args, sample.kwargs)
                except Exception as error:
                    outcome, detail = "crashed", f"{type(error).__name__}: {error}"
                    if verbose:
                        traceback.print_exc()
                counts[outcome] += 1
                if outcome in ("wrong", "crashed"):
                    failures[f"{name} {dtype_name}"].append(f"#{number} {outcome}: {detail}")
                elif outcome in ("extern", "mixed"):
                    externs.update(detail)
                elif outcome == "untraced" and verbose:
                    print(f"untraced {name} {dtype_name}: {detail}")
    for label, lines in failures.items():
        print(f"{label}: {len(lines)} failures, first {lines[0][:400]}")
    if verbose:
        for label, count in sorted(externs.items()):
            print(f"ATen kernel: {label} ({count})")
    print(dict(counts))
    return counts["wrong"] + counts["crashed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = run(options.ops, options.dtypes.split(","), options.samples, options.verbose)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
