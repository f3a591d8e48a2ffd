"""Programs whose graphs run as Triton kernels on CPU tensors, compared with eager: `TRITON_INTERPRET=1` must be set.

TRITON_INTERPRET=1 python tests/backends/interpreted_programs.py
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

import argand
from argand.backends import autotune, targets
from argand.ir.target import gpu
from argand.runtime.gpu.kernels import variants

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import collected
from sweeps import WHOLE, part

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def program(*args: Any) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = (function, args)
        return function

    return add


@program(torch.randn(30, 40), torch.randn(40))
def broadcast(x: Any, y: Any) -> Any:
    return (x + y).relu(), x.t() * 2


@program(torch.randn(3, 70), torch.randn(20, 5))
def softmaxes(x: Any, y: Any) -> Any:
    return torch.softmax(x, -1), torch.log_softmax(y, 0)


@program(torch.randn(2, 33001))
def long_reductions(x: Any) -> Any:
    return x.sum(1), x[:, :40].amax(0), x.var(), (x * 2).sum(), (x > 4).any(), x.double().prod()


@program(torch.randn(8, 96), torch.randn(96, 64), torch.randn(64))
def products(x: Any, y: Any, bias: Any) -> Any:
    return F.gelu(torch.addmm(bias, x, y)) + 1


@program(torch.randn(7, 16), torch.randint(0, 7, (11,)))
def looked_up(x: Any, i: Any) -> Any:
    return x[i] * 2, x.argmax(-1), x.argmax(), x.cumsum(0)


@program(torch.randn(6, 9), torch.randn(13).sort()[0], torch.rand(6, 9) < 0.5, torch.randn(6, 9))
def searches(x: Any, limits: Any, mask: Any, values: Any) -> Any:
    return torch.searchsorted(limits, x), torch.bucketize(0.5, limits, right=True), x.masked_scatter(mask, values)


@program(torch.randn(6, 32, dtype=torch.bfloat16), torch.arange(12))
def dtypes(x: Any, i: Any) -> Any:
    return F.layer_norm(x, (32,)), i * 3 // 2, (i > 4) & (i < 9), x.float().to(torch.float64).mean()


@program(torch.randn(2, 6, 9, 9))
def images(x: Any) -> Any:
    return F.max_pool2d(x, 3), F.avg_pool2d(x, 2), F.group_norm(x, 3), F.interpolate(x, scale_factor=2)


@program(torch.randn(2, 6, 9, 7), torch.randn(6, 1, 3, 3), torch.randn(2, 6, 12), torch.randn(6, 1, 5), torch.randn(6))
def depthwise(x: Any, weight: Any, row: Any, taps: Any, bias: Any) -> Any:
    laid = x.contiguous(memory_format=torch.channels_last)
    made = F.hardswish(F.conv2d(x, weight, bias, 1, 1, 1, 6)) + x
    return made, F.conv2d(laid, weight, None, 2, 2, 2, 6), F.conv1d(row, taps, bias, 2, 3, 1, 6).relu()


def compare(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4, equal_nan=True)


def inference() -> None:
    ways = ((False, variants.NARROW), (True, variants.NARROW), (True, 0))
    for number, (function, args) in enumerate(PROGRAMS.values()):
        for dynamic, narrow in ways if WHOLE else (ways[number % 3],):
            with patch.object(variants, "NARROW", narrow):  # 0: all positions have 64 bits
                compare(argand.compile(function, dynamic=dynamic)(*args), function(*args))
            argand.reset()


def scans() -> None:
    """Cumulative sums and products: of rows and columns, fused with what is around them; eager's where rows are long."""

    def function(x: Any, i: Any) -> Any:
        probabilities = torch.softmax(x, -1).cumsum(-1)
        ranks = (i > 3).cumsum(0) - 1
        return probabilities > 0.5, probabilities, ranks, (x * 0.1 + 1).cumprod(1) * 2, x.double().cumsum(0).sum(0)

    def of_integers(i: Any) -> Any:
        return i.cumsum(-1), i.to(torch.int8).cumprod(0), i.cumsum(0, dtype=torch.float64), i.flip(1).cumsum(1).flip(1)

    def left_out(x: Any) -> Any:
        return x.cumsum(1), x[:1].cumsum(0), x.sum().cumsum(0), x.cummax(0).values

    def of_halves(x: Any) -> Any:
        return (x * 2).cumsum(1)

    x = torch.randn(5, 60).bfloat16()
    with collected("output_code") as seen:  # sums are exact until they are rounded
        torch.testing.assert_close(argand.compile(of_halves)(x), of_halves(x.double()).bfloat16(), rtol=1e-2, atol=1e-6)
    assert "associative_scan" in seen[-1].text()
    for function_, args, kernels in (
        (function, (torch.randn(6, 50), torch.randint(0, 9, (50, 3))), True),
        (function, (torch.randn(3, 1024), torch.randint(0, 9, (7, 300))), True),
        (of_integers, (torch.randint(-3, 4, (20, 33)),), True),
        (left_out, (torch.randn(3, 9000),), False),
    ):
        with collected("output_code") as seen:
            for one, two in zip(argand.compile(function_)(*args), function_(*args), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        assert ("associative_scan" in seen[-1].text()) is kernels
        assert ("aten.cum" in seen[-1].text().split("def call")[1]) is not kernels
        argand.reset()


def many_sizes() -> None:
    """One graph, variants of its kernels by what holds of the sizes."""

    def function(x: Any, y: Any) -> Any:
        wide = x + torch.arange(x.shape[0] * x.shape[1]).view(x.shape)
        return torch.softmax(x * 2 + y, -1), wide, F.pad(x.flip(0), (1, 2)), x.sum(0) * x.shape[0]

    compiled = argand.compile(function, dynamic=True)
    with collected("output_code") as seen:
        for rows, columns in ((5, 7), (16, 32), (33, 48), (64, 9), (2, 16)):
            x, y = torch.randn(rows, columns), torch.randn(columns)
            compare(compiled(x, y), function(x, y))
    assert len(seen) == 1 and "TritonVariants(" in seen[0].text()
    argand.reset()


def training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8),
    )  # fmt: skip
    other = copy.deepcopy(model)
    compiled = argand.compile(model)
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 8, (4,))
    for _ in range(2):
        compare(F.cross_entropy(compiled(x), y).backward(), F.cross_entropy(other(x), y).backward())
        for one, two in zip((*model.parameters(), *model.buffers()), (*other.parameters(), *other.buffers())):
            compare(one, two)
            compare(one.grad, two.grad)


def tuned() -> None:
    """Products as kernels of argand's, in every way to cut them: the times are made up."""

    def net(x: Any, w: Any, b: Any, v: Any) -> Any:
        hidden = F.gelu(F.linear(x.view(2, 24, -1), w, b))
        return F.linear(hidden, v) + x.view(2, 24, -1), hidden.sum()

    def gated(x: Any, w: Any, b: Any, v: Any) -> Any:
        return F.silu(F.linear(x, w)) * F.linear(x, w, b), torch.bmm(x.view(3, 16, -1), v[:, :40].expand(3, -1, -1))

    for dtype in (torch.float32, torch.bfloat16) if WHOLE else (torch.bfloat16,):
        args = [(torch.randn(size) / 4).to(dtype) for size in ((48, 40), (72, 40), (72,), (40, 72))]
        for way, function in enumerate((net, gated, net, gated)):

            def times(calls: Any, device: Any, way: int = way) -> list[float]:
                return [100.0] + [50.0 - (place == way) for place in range(len(calls) - 1)]

            argand.reset()
            with patch.object(autotune, "time_calls", times), collected("autotuning", "output_code") as seen:
                got = argand.compile(function, mode="max-autotune-no-cudagraphs")(*args)
            for one, two in zip(got, function(*args)):
                torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)
                assert one.stride() == two.stride()
            assert [event for event in seen if event.name == "autotuning" and event.data["chosen"] != "ATen"]
            assert "triton_product_" in next(event.text() for event in seen if event.name == "output_code")
    argand.reset()


def in_chunks() -> None:
    """Short reductions that a small GPU would split."""
    small = replace(gpu(4), split_reduction=64)

    def sums(x: Any, y: Any) -> Any:
        return x.sum(), (x > 2.5).any(), y.prod(1), y.amax(1), y.var(1), torch.softmax(y, 1)

    def places(x: Any, y: Any) -> Any:
        return x.argmax(), y.argmin(1), y.argmax(1), y.max(1)

    x, y = torch.randn(509), torch.randn(3, 211)
    y[1, 77] = y[1, 100] = float("nan")
    with patch.object(targets, "gpu", lambda processors: small):
        for function in (sums, places):
            for dynamic in (False, True):
                compare(argand.compile(function, dynamic=dynamic)(x, y), function(x, y))
    argand.reset()


def optimizers() -> None:
    """Steps of many parameters: few kernels, results and states as eager's."""
    sizes = [(3 + n, 16) if n % 3 else (5 + n,) for n in range(part(30, 3))]
    made: dict[str, Callable[[Any], Any]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    }
    for name, make in list(made.items())[: len(made) if WHOLE else 2]:
        torch.manual_seed(0)
        one = [nn.Parameter(torch.randn(size)) for size in sizes]
        two = [nn.Parameter(p.detach().clone()) for p in one]
        first, second = make(one), make(two)
        step = argand.compile(first.step)
        with collected("output_code") as seen:
            for _ in range(part(4)):
                for p, q in zip(one, two):
                    p.grad = torch.randn_like(p)
                    q.grad = p.grad.clone()
                step(), second.step()
                for p, q in zip(one, two):
                    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        for p, q in zip(one, two):
            assert first.state[p].keys() == second.state[q].keys()
            for key, value in second.state[q].items():
                torch.testing.assert_close(first.state[p][key], value, rtol=1e-5, atol=1e-6)
        last = seen[-1].text().split("def call")[1]
        over_parameters = [
            line for line in last.splitlines() if line.strip().startswith("triton_") and "arg0_1" in line
        ]
        launches = [line for line in last.splitlines() if line.strip().startswith("triton_")]
        assert len(over_parameters) <= 1 and (name != "sgd" or len(launches) == 2), (name, len(launches))
        argand.reset()


def the_same_graph_for_both_targets() -> None:
    """One process may have both kinds of code: graphs are not mixed up."""

    def function(x: Any) -> Any:
        return x.exp() + 1

    for wanted in (True, False, True):
        argand.config.triton.on_cpu = wanted
        argand.reset()
        with collected("output_code", "cache") as seen:
            compare(argand.compile(function)(torch.ones(4)), function(torch.ones(4)))
        for event in seen:
            assert event.name == "cache" or ("triton_fused" in event.text()) is wanted


def main() -> None:
    argand.config.triton.on_cpu = True
    argand.config.verify_ir = True
    with tempfile.TemporaryDirectory() as folder, collected("output_code") as seen:
        argand.config.cache_dir = folder  # times are kept there
        with torch.no_grad():
            inference()
            many_sizes()
            scans()
            tuned()
            in_chunks()
        training()
        optimizers()
    texts = [event.text() for event in seen]
    assert not [text for text in texts if "load_kernels(kernel_source" in text]
    assert sum("triton_source = " in text for text in texts) > len(PROGRAMS)
    the_same_graph_for_both_targets()
    print(f"{len(texts)} graphs agree")


if __name__ == "__main__":
    main()
