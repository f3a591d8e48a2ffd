"""Run torch's op_db samples through the whole native compiler (trace, passes, lower, schedule, C++) and compare with eager.

    python tests/codegen/cpp/opdb_cpp.py [--ops REGEX] [--dtypes float32,int64] [--samples N] [--simdlen BITS] [--out FILE]

Prints how many samples ended in generated kernels ("kernel"), in ATen calls only ("extern"), were refused ("untraced"), are
"wrong" or "crashed". Exit status 1 if any is wrong or crashed. Not a test: it takes minutes.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[2] / "lower"))
from lowering_helpers import compare, given_inputs, graph_of, is_closer, is_odd, op_database

from argand.autograd import trace_inference
from argand.backends.programs.generation import host_text, schedule_program
from argand.config import config
from argand.errors import AutogradError, LoweringError
from argand.runtime.host import load_module

DTYPES = {
    name: getattr(torch, name) for name in "float32 float64 bfloat16 float16 int64 int32 int16 int8 uint8 bool".split()
}
# their results are not determined by their inputs
RANDOM = re.compile(
    r"rand|dropout|empty|bernoulli|multinomial|^normal|poisson|rrelu|exponential|geometric|cauchy|uniform|svd_lowrank"
    r"|pca_lowrank|fractional_max_pool|log_normal|scaled_dot_product|multi_head"
)


def check_sample(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    """(outcome, detail) of one call."""
    gm, tensors = graph_of(function, args, kwargs)
    torch.manual_seed(0)
    try:
        expected = gm(*[tensor.clone() if not is_odd(tensor) else tensor for tensor in tensors])
    except Exception as error:
        return "eager raises", str(error)
    try:
        traced = trace_inference(gm, tensors)
        made = schedule_program(traced)
    except (AutogradError, LoweringError) as error:
        return "untraced", str(error).splitlines()[0]
    if not made.kernels():
        return "extern", ""
    call = load_module(host_text(made), made.constants).call
    outputs = call(given_inputs(traced, made.inputs, tensors))
    for spec, leaf in zip(traced.outputs, pytree.tree_leaves(expected)):
        if spec.kind != "value" or not isinstance(leaf, torch.Tensor):
            continue
        difference = compare(leaf, outputs[spec.index])
        if difference and not is_closer(gm, tensors, leaf, outputs[spec.index]):
            return "wrong", difference
    return "kernel", ""


def run(pattern: str, dtypes: list[str], limit: int, verbose: bool) -> int:
    """Check every op that matches; returns the number of failures."""
    counts: collections.Counter[str] = collections.Counter()
    for op in op_database():
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not re.search(pattern, name) or RANDOM.search(name):
            continue
        for dtype_name in dtypes:
            if DTYPES[dtype_name] not in op.supported_dtypes("cpu"):
                continue
            samples = op.sample_inputs("cpu", DTYPES[dtype_name], requires_grad=False)
            for number, sample in enumerate(samples):
                if number >= limit:
                    break
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        outcome, detail = check_sample(op.op, (sample.input, *sample.args), sample.kwargs)
                except Exception as error:
                    outcome, detail = "crashed", f"{type(error).__name__}: {error}"
                    if verbose:
                        traceback.print_exc()
                counts[outcome] += 1
                if outcome in ("wrong", "crashed"):
                    print(f"{name} {dtype_name} #{number} {outcome}: {detail[:600]}", flush=True)
    print(dict(counts))
    return counts["wrong"] + counts["crashed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default="float32,int64,bfloat16,bool,uint8")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--simdlen", type=int, default=-1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config.cpp.simdlen = options.simdlen
    sys.exit(1 if run(options.ops, options.dtypes.split(","), options.samples, options.verbose) else 0)


if __name__ == "__main__":
    main()
