"""Run torch's op_db samples through trace_inference, lower and interpret, and compare with eager.

    PYTHONPATH=tests python tests/lower/opdb_lower.py [--ops REGEX] [--dtypes float32,int64] [--samples N] [--verbose]
                                                      [--passes] [--layouts]

With `--layouts` each sample runs with its tensors in every layout of `memory_layouts`, too: expanded, permuted, with
holes, of no elements. Samples after which eager's own kernels leave memory as it should not be are left out.

Prints, per kind of outcome, how many samples ended there: "lowered" (loops only), "mixed" (loops and ATen kernels),
"extern" (ATen kernels only), "untraced" (refused before lowering), "refused" (by lowering), "wrong", "crashed". Exit
status 1 if any of the last three occurs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from lowering_helpers import compare, copied, graph_of, is_closer, is_odd, op_database, run_lowered

from argand.errors import AutogradError, LoweringError
from argand.ir.loops import ExternNode, LoopNode, Program
from memory_layouts import LAYOUTS

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "complex64": torch.complex64,
    "bool": torch.bool,
}
# their results are not determined by their inputs: op_db seeds the generator inside the op, which tracing does not see
UNDETERMINED = re.compile(
    r"rand|dropout|empty|bernoulli|multinomial|^normal|rrelu|svd_lowrank|pca_lowrank|fractional_max_pool"
    r"|scaled_dot_product|multi_head_attention|to_sparse"
)


DAMAGING = re.compile(r"replicate_negative|^native_group_norm")  # eager reads or writes beyond some tensors


def kind_of(program: Program) -> str:
    """Whether loops, ATen kernels or both do the work."""
    loops = any(isinstance(node, LoopNode) for node in program.nodes)
    extern = any(isinstance(node, ExternNode) for node in program.nodes)
    return "mixed" if loops and extern else "extern" if extern else "lowered"


def check_sample(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], passes: bool = False) -> tuple[str, Any]:
    """(outcome, detail) of one call."""
    gm, tensors = graph_of(function, args, kwargs)
    torch.manual_seed(0)  # both runs draw the same numbers, in the same order
    try:
        expected = gm(*[copied(tensor) if not is_odd(tensor) else tensor for tensor in tensors])
    except Exception as error:
        return "eager raises", str(error)
    try:
        torch.manual_seed(0)
        run = run_lowered(gm, tensors, passes=passes)
    except AutogradError as error:
        return "untraced", str(error).splitlines()[0]
    except LoweringError as error:
        return "refused", str(error).splitlines()[0]
    program = run.program
    for spec, leaf in zip(run.traced.outputs, pytree.tree_leaves(expected)):
        if spec.kind != "value" or not isinstance(leaf, torch.Tensor):
            continue
        difference = compare(leaf, run.outputs[spec.index])
        if difference and not is_closer(gm, tensors, leaf, run.outputs[spec.index]):
            return "wrong", difference
    return kind_of(program), [
        f"{n.target}: {n.reason}" for n in program.nodes if isinstance(n, ExternNode) and n.reason
    ]


def _laid_out(sample: Any, layouts: bool) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A sample's arguments as they are, and in other layouts that they can have."""
    whole = ((sample.input, *sample.args), sample.kwargs)
    yield "", *whole
    for layout in LAYOUTS[1:] if layouts else ():
        with contextlib.suppress(RuntimeError):
            leaves, tree = pytree.tree_flatten(whole)
            moved = [layout(x) if isinstance(x, torch.Tensor) and not is_odd(x) else x for x in leaves]
            yield f" {layout.__name__}", *pytree.tree_unflatten(moved, tree)


def run(
    pattern: str,
    dtypes: list[str],
    limit: int,
    verbose: bool,
    passes: bool = False,
    layouts: bool = False,
    dealt: bool = False,
) -> int:
    """Check every op that matches; returns the number of failures.

    Arguments:
        dealt: each op is checked with one of the dtypes that it has, these in turn.
    """
    counts: collections.Counter[str] = collections.Counter()
    failures: dict[str, list[str]] = collections.defaultdict(list)
    externs: collections.Counter[str] = collections.Counter()  # ATen kernels, with the reason
    for at, op in enumerate(op_database()):
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not re.search(pattern, name) or UNDETERMINED.search(name) or (layouts and DAMAGING.search(name)):
            continue
        own = [each for each in dtypes if DTYPES[each] in op.supported_dtypes("cpu")]
        for dtype_name in own[at % len(own) :][:1] if dealt and own else own:
            dtype = DTYPES[dtype_name]
            samples = op.sample_inputs("cpu", dtype, requires_grad=False)
            for number, sample in enumerate(samples):
                if number >= limit:
                    break
                for layout, args, kwargs in _laid_out(sample, layouts):
                    try:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            outcome, detail = check_sample(op.op, args, kwargs, passes)
                    except Exception as error:
                        outcome, detail = "crashed", f"{type(error).__name__}: {error}"
                        if verbose:
                            traceback.print_exc()
                    counts[outcome] += 1
                    if outcome in ("wrong", "crashed", "refused"):
                        failures[f"{name} {dtype_name}"].append(f"#{number}{layout} {outcome}: {detail}")
                    elif outcome in ("extern", "mixed"):
                        externs.update(detail)
                    elif outcome == "untraced" and verbose:
                        print(f"{outcome} {name} {dtype_name}: {detail}")
    for label, lines in failures.items():
        print(f"{label}: {len(lines)} failures, first {lines[0][:400]}")
    if verbose:
        for label, count in sorted(externs.items()):
            print(f"ATen kernel: {label} ({count})")
    print(dict(counts))
    return counts["wrong"] + counts["crashed"] + counts["refused"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--passes", action="store_true", help="run the ATen passes before lowering")
    parser.add_argument("--layouts", action="store_true", help="each sample also in other memory layouts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtypes = options.dtypes.split(",")
    failed = run(options.ops, dtypes, options.samples, options.verbose, options.passes, options.layouts)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
