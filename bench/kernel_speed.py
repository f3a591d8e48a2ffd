"""Generated CPU kernels against eager's ATen kernels: time, memory traffic and ratio.

    python bench/kernel_speed.py [--only REGEX] [--threads N] [--show]

Each line is one function on tensors of model-like sizes, compiled alone. "GB/s" counts inputs and outputs once.
"ratio" is eager's time over ours: above 1 is faster. `--show` prints the generated code.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from argand.backends.native import native
from argand.config import config

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def case(*shapes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with the shapes (or tensors) of its inputs."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = (function, shapes)
        return function

    return register


@case((96, 128, 128))
def softmax(x):
    return torch.softmax(x, -1)


@case((8, 12, 128, 128), (8, 1, 1, 128))
def masked_softmax(x, mask):
    return torch.softmax(x / 8.0 + mask, -1)


@case((1024, 768), (768,), (768,))
def layer_norm(x, w, b):
    return F.layer_norm(x, (768,), w, b)


@case((1024, 768), (1024, 768), (768,), (768,), (768,))
def bias_residual_layer_norm(x, r, bias, w, b):
    return F.layer_norm(x + bias + r, (768,), w, b)


@case((1024, 3072))
def gelu(x):
    return F.gelu(x)


@case((1024, 3072))
def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


@case((1024, 3072), (1024, 3072))
def swiglu(x, y):
    return F.silu(x) * y


@case((1024, 768), (768,))
def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


@case((1024, 3072), (3072,))
def bias_relu(x, b):
    return F.relu(x + b)


@case((2048, 2048), (2048, 2048))
def add(x, y):
    return x + y


@case((8, 128, 12, 64))
def permute_heads(x):
    return x.permute(0, 2, 1, 3).contiguous()


@case((1024, 1024))
def transpose(x):
    return x.t().contiguous()


@case((16, 256, 512))
def batch_transpose(x):
    return x.transpose(1, 2).contiguous()


@case((16, 64, 56, 56))
def to_channels_last(x):
    return x.to(memory_format=torch.channels_last)


@case((30522, 768), torch.randint(0, 30522, (8, 128)))
def embedding(w, i):
    return F.embedding(i, w)


@case((8, 128, 384), (8, 128, 384), (8, 128, 128))
def cat(x, y, z):
    return torch.cat([x, y, z], -1)


@case((8, 128, 384), (8, 64, 384))
def cat_dim1(x, y):
    return torch.cat([x, y], 1)


@case((8192, 768))
def column_sum(x):
    return x.sum(0)


@case((1024, 768))
def column_sum_small(x):
    return x.sum(0)


@case((4096, 1024))
def row_sum(x):
    return x.sum(-1)


@case((4096, 1024))
def total_mean(x):
    return x.mean()


@case((4096, 1024))
def row_max(x):
    return x.amax(-1)


@case((1024, 1000))
def argmax(x):
    return x.argmax(-1)


@case((1024, 32000))
def log_softmax(x):
    return torch.log_softmax(x, -1)


@case((16, 64, 56, 56), (64,), (64,), (64,), (64,))
def batch_norm_relu(x, m, v, w, b):
    return F.relu(F.batch_norm(x, m, v.abs(), w, b))


@case((8, 32, 64, 64), (32,), (32,))
def group_norm(x, w, b):
    return F.group_norm(x, 8, w, b)


@case((16, 64, 28, 28))
def pad(x):
    return F.pad(x, (1, 1, 1, 1))


@case((64, 197, 197))
def softmax_197(x):
    return torch.softmax(x, -1)


@case((1024, 1024), torch.randn(1024, 1024).to(torch.bfloat16))
def mixed_bf16(x, y):
    return (x + y) * 2


@case(torch.randn(1024, 3072).to(torch.bfloat16))
def gelu_bf16(x):
    return F.gelu(x)


@case((1, 12, 128, 128))
def causal_mask_softmax(x):
    row, column = torch.arange(128)[:, None], torch.arange(128)[None, :]
    return torch.softmax(torch.where(column <= row, x, float("-inf")), -1)


@case((1024, 768), (1024, 768), (768,))
def layer_norm_backward_like(g, x, w):
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    n = (x - mean) * rstd
    gw = g * w
    return (gw - gw.mean(-1, keepdim=True) - n * (gw * n).mean(-1, keepdim=True)) * rstd, (g * n).sum(0), g.sum(0)


def seconds(function: Callable[[], Any], budget: float = 0.15) -> float:
    """The least time of one call within a budget."""
    function()
    best, start = 1e9, time.perf_counter()
    count = 0
    while time.perf_counter() - start < budget or count < 7:
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
        count += 1
    return best


def traffic(values: Any) -> int:
    """Bytes of the tensors in a nest of tuples."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    return sum(map(traffic, values)) if isinstance(values, (tuple, list)) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{'kernel':28}{'ours us':>10}{'eager us':>10}{'ratio':>8}{'GB/s':>8}")
    product, count = 1.0, 0
    for name, (function, shapes) in CASES.items():
        if not re.search(options.only, name):
            continue
        inputs = [shape if isinstance(shape, torch.Tensor) else torch.randn(shape) for shape in shapes]
        gm = fx.symbolic_trace(function)
        with config.patch({"output_code": options.show}):
            compiled = native(gm, inputs)
        with torch.no_grad():
            expected, actual = function(*inputs), compiled(*inputs)
            single = isinstance(actual, (list, tuple)) and not isinstance(expected, tuple)
            torch.testing.assert_close(actual[0] if single else actual, expected, rtol=2e-4, atol=2e-4)
            ours, eager = 1e9, 1e9
            for _ in range(3):
                ours = min(ours, seconds(partial(compiled, *inputs)))
                eager = min(eager, seconds(partial(function, *inputs)))
        moved = traffic(inputs) + traffic(expected) if name != "embedding" else 2 * traffic(expected)
        product, count = product * eager / ours, count + 1
        print(f"{name:28}{ours * 1e6:10.1f}{eager * 1e6:10.1f}{eager / ours:8.2f}{moved / ours / 1e9:8.1f}", flush=True)
    if count:
        print(f"geometric mean of {count}: {product ** (1 / count):.2f}")


if __name__ == "__main__":
    main()
