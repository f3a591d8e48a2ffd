"""flex_attention on a GPU: milliseconds and errors of eager, torch.compile and argand.

    python bench/flex_attention.py [--lengths 1024 4096] [--widths 64 128] [--only argand]

Causal block mask, 4 batches of 16 heads, bfloat16; "forward" without gradients, "training" with those of query, key
and value. An error is the greatest difference to eager's result in float64, relative to its greatest value (lengths up
to 1,024: it holds all scores).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import argand

BATCH, HEADS = 4, 16


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 20) * 20


def milliseconds(call: Callable[[], Any], least: float = 0.2) -> float:
    """Of one call: the best of three rounds."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(2, int(least / 3 / max(time.perf_counter() - begin, 1e-6)))
    best = float("inf")
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / count)
    return best


def run(function: Any, tensors: list[torch.Tensor], mask: Any, grad: torch.Tensor) -> list[torch.Tensor]:
    made = function(*tensors, mask)
    return [made, *torch.autograd.grad(made, tensors, grad.to(made.dtype))]


def error(have: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(have, exact))


def measure(length: int, width: int, mod: Any, only: str) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    options: dict[str, Any] = {"device": "cuda", "generator": generator}
    tensors = [torch.randn(BATCH, HEADS, length, width, **options).bfloat16().requires_grad_() for _ in range(3)]
    grad = torch.randn(BATCH, HEADS, length, width, **options).bfloat16()
    plain = [tensor.detach() for tensor in tensors]
    mask = create_block_mask(causal, None, None, length, length, device="cuda")

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, score_mod=mod, block_mask=mask)

    torch._dynamo.reset()
    ways = {
        "eager": attend,
        "torch.compile": torch.compile(attend, fullgraph=True, dynamic=False),
        "argand": argand.compile(attend, fullgraph=True, dynamic=False),
    }
    exact = None
    if length <= 1024:
        exact = run(attend, [tensor.detach().double().requires_grad_() for tensor in tensors], mask, grad)
    what = "" if mod is None else mod.__name__
    for name, function in ways.items():
        if only and name != only:
            continue
        begin = time.perf_counter()
        made = run(function, tensors, mask, grad)
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        difference = "" if exact is None else f"{error(made, exact):.4f}"
        forward = milliseconds(lambda f=function: f(*plain, mask))
        training = milliseconds(lambda f=function: run(f, tensors, mask, grad))
        print(
            f"{length:6} {width:5} {what:9} {name:14} {forward:9.3f} {training:9.3f} {first:8.1f} {difference:>8}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--functions", nargs="*", default=["none", "soft_cap"], choices=["none", "soft_cap"])
    parser.add_argument("--only", default="", help="eager, torch.compile or argand")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("length width function  way              forward  training  first s    error")
    for mod in [soft_cap if name == "soft_cap" else None for name in given.functions]:
        for length in given.lengths:
            for width in given.widths:
                measure(length, width, mod, given.only)


if __name__ == "__main__":
    main()
