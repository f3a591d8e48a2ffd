"""Depthwise convolutions and their gradients as loops, against eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering_helpers import compare, graph_of

from argand.autograd import trace_inference
from argand.graph.metadata.layouts import may_read_padding_only
from argand.ir.interpret import interpret
from argand.ir.loops import ExternNode
from argand.ir.target import cpu, gpu
from argand.lower import lower
from argand.lower.lowerings.depthwise import becomes_loops, is_depthwise

aten = torch.ops.aten
# Of larger windows, and of weights, than are faster so.
EVERY = replace(gpu(132), depthwise_taps=49, depthwise_weights=True)
SWEEP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def lowered(function: Any, *args: Any, target: Any) -> tuple[list[Any], int]:
    """What the loops compute, and how many calls of ATen there are."""
    gm, tensors = graph_of(function, args, {})
    traced = trace_inference(gm, tensors)
    program = lower(traced, targets=lambda _: target, check=True)
    inputs = [tensors[spec.index] for spec in traced.inputs]
    return interpret(program, inputs), sum(isinstance(node, ExternNode) for node in program.nodes)


def close(made: torch.Tensor, expected: torch.Tensor) -> None:
    assert not (difference := compare(expected, made)), difference


@st.composite
def convolutions(draw: Any) -> dict[str, Any]:
    """Sizes and arguments of a depthwise convolution that has a result."""
    rank = draw(st.integers(1, 2))
    stride, padding, dilation, window, extent = [], [], [], [], []
    for _ in range(rank):
        stride.append(draw(st.integers(1, 3)))
        padding.append(draw(st.integers(0, 3)))
        dilation.append(draw(st.integers(1, 2)))
        window.append(draw(st.integers(1, 5 if rank == 2 else 9)))
        reach = dilation[-1] * (window[-1] - 1) + 1
        extent.append(
            draw(st.integers(max(1, reach - 2 * padding[-1]), 12)) if reach - 2 * padding[-1] <= 12 else reach
        )
    return {
        "x": (draw(st.integers(1, 3)), draw(st.integers(1, 7)), *extent),
        "window": tuple(window),
        "args": (stride, padding, dilation),
        "dtype": draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])),
        "last": draw(st.booleans()),
        "bias": draw(st.booleans()),
    }


@contextlib.contextmanager
def eager(case: dict[str, Any]) -> Iterator[bool]:
    """Inside, eager computes a convolution: without oneDNN (False) where a window may read nothing but padding, as that
    calls kernels there which it has not made (signal 11, `brgemm_convolution_fwd_t::perform_outwork`)."""
    _, padding, dilation = case["args"]
    may = not may_read_padding_only(case["x"][2:], case["window"], padding, dilation)
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(may)
    try:
        yield may
    finally:
        torch._C._set_mkldnn_enabled(before)


def operands(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    torch.manual_seed(sum(case["x"]))
    channels = case["x"][1]
    x = torch.randn(case["x"], dtype=torch.float64).to(case["dtype"])
    if case["last"] and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    elif case["last"]:
        x = x.mT.contiguous().mT
    weight = torch.randn(channels, 1, *case["window"], dtype=torch.float64).to(case["dtype"])
    return x, weight, torch.randn(channels).to(case["dtype"]) if case["bias"] else None


@SWEEP
@given(convolutions())
def test_results(case: dict[str, Any]) -> None:
    x, weight, bias = operands(case)
    zeros, groups = [0] * len(case["window"]), x.shape[1]

    def function(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> Any:
        return F.relu(aten.convolution(x, weight, bias, *case["args"], False, zeros, groups))

    made, calls = lowered(function, x, weight, bias, target=EVERY)
    assert calls == 0
    with eager(case) as as_laid_out:
        expected = function(x, weight, bias)
    close(made[0], expected if as_laid_out else torch.empty_like(made[0]).copy_(expected))


@SWEEP
@given(convolutions(), st.sampled_from([(True, True, True), (True, False, False), (True, False, True)]))
def test_gradients(case: dict[str, Any], mask: tuple[bool, bool, bool]) -> None:
    x, weight, _ = operands(case)
    zeros, groups = [0] * len(case["window"]), x.shape[1]
    with eager(case):
        result = aten.convolution(x, weight, None, *case["args"], False, zeros, groups)
    grad = torch.randn(result.shape).to(result).contiguous(memory_format=torch.preserve_format)
    grad = torch.empty_like(result).copy_(grad)

    def function(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        made = aten.convolution_backward(grad, x, weight, [groups], *case["args"], False, zeros, groups, mask)
        return [one for one, wanted in zip(made, mask) if wanted]

    made, calls = lowered(function, grad, x, weight, target=EVERY)
    assert calls == 0
    wide = [t.double() for t in (grad, x, weight)]
    with eager(case) as as_laid_out:
        results, exacts = function(grad, x, weight), function(*wide)
    for got, near, exact in zip(made, results, exacts):
        assert got.dtype is near.dtype and got.shape == near.shape
        assert not as_laid_out or [got.stride(d) for d, n in enumerate(got.shape) if n > 1] == [
            near.stride(d) for d, n in enumerate(near.shape) if n > 1
        ]
        away, allowed = (got - exact).abs().max(), (near - exact).abs().max()
        assert away <= 2 * allowed + 1e-5 * exact.abs().max()


@pytest.mark.parametrize("last", [True, False])
def test_what_lies_outside_contributes_nothing(last: bool) -> None:
    """Numbers that are not finite reach the results whose windows they are in, and no others."""
    x = torch.randn(2, 4, 6, 7)
    x[0, 1, 2, 3], x[1, 2, 0, 0] = float("nan"), float("inf")
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    weight = torch.randn(4, 1, 3, 3)
    (made,), _ = lowered(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 4), x, weight, target=EVERY)
    close(made, F.conv2d(x, weight, None, 1, 1, 1, 4))
    weight[3, 0, 0, 1] = float("inf")  # an element that the first row of windows has outside
    (made,), _ = lowered(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 4), torch.ones(1, 4, 5, 5), weight, target=EVERY)
    assert made[0, 3, 0].isfinite().all() and made[0, 3, 1:].isinf().all() and made[0, :3].isfinite().all()


def conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, weight, None, 1, weight.shape[-1] // 2, 1, x.shape[1])


def test_a_cpu_has_loops_where_they_are_faster() -> None:
    """Small windows with the channels innermost, of floats that are not rounded."""
    x = torch.randn(2, 16, 9, 9)
    laid = x.contiguous(memory_format=torch.channels_last)
    calls = [
        lowered(conv, *args, target=cpu(2))[1]
        for args in (
            (laid, torch.randn(16, 1, 3, 3)),
            (x, torch.randn(16, 1, 3, 3)),
            (laid, torch.randn(16, 1, 5, 5)),
            (laid.bfloat16(), torch.randn(16, 1, 3, 3).bfloat16()),
        )
    ]
    assert calls == [0, 1, 1, 1]


def test_rows_are_loops_in_any_layout() -> None:
    """The library lays them out anew; rows whose channels are neighbours are what a linear layer leaves."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x.mT, weight, None, 1, 3, 1, 16)

    def as_image(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.mT[:, :, None], weight[:, :, None], None, 1, (0, 3), 1, 16)

    x = torch.randn(2, 40, 16)
    of_channels = x.mT.contiguous().mT
    cases = [(x, 4), (x, 31), (x, 33), (of_channels, 4), (of_channels, 31), (x.bfloat16(), 4)]
    for way in (function, as_image):
        calls = []
        for rows, taps in cases:
            weight = torch.randn(16, 1, taps).to(rows)
            (made,), count = lowered(way, rows, weight, target=cpu(2))
            close(made, way(rows, weight))
            calls.append(count)
        assert calls == [0, 0, 1, 0, 0, 1]


def test_images_of_few_channels_are_loops_in_any_layout() -> None:
    """The library computes sixteen channels where there are three."""
    calls = []
    for channels, side in ((1, 3), (3, 3), (3, 11), (3, 12), (8, 5), (8, 6), (16, 3)):
        x, weight = torch.randn(2, channels, 14, 17), torch.randn(channels, 1, side, side)
        (made,), count = lowered(conv, x, weight, target=cpu(2))
        close(made, conv(x, weight))
        calls.append(count)
    assert calls == [0, 0, 0, 1, 0, 1, 1]


def test_a_gradient_is_shared_with_the_library() -> None:
    """On a CPU ATen computes those of weight and bias, by one call."""
    x = torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(8, 1, 3, 3)

    def function(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution_backward(
            grad, x, weight, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 8, [True, True, True]
        )

    grad = torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    made, calls = lowered(function, grad, x, weight, target=cpu(2))
    assert calls == 1
    for got, expected in zip(made, function(grad, x, weight)):
        close(got, expected)


def test_what_is_left_to_the_library() -> None:
    assert is_depthwise((2, 8, 9, 9), (8, 1, 3, 3), False, 8)
    assert not is_depthwise((2, 8, 9, 9), (8, 1, 3, 3), True, 8)  # transposed
    assert not is_depthwise((2, 8, 9, 9), (16, 1, 3, 3), False, 8)  # two results a channel
    assert not is_depthwise((2, 8, 9, 9), (8, 2, 3, 3), False, 4)
    assert is_depthwise((2, 1, 9, 9), (1, 1, 3, 3), False, 1)
    assert not is_depthwise((2, 1, 9, 9), (3, 1, 3, 3), False, 1)
    assert not is_depthwise((2, 3, 9, 9), (1, 3, 3, 3), False, 1)
    assert not is_depthwise((0, 8, 9, 9), (8, 1, 3, 3), False, 8)
    assert becomes_loops(EVERY, torch.bfloat16, (7, 7), False)
    assert becomes_loops(gpu(132), torch.bfloat16, (5, 5), False)
    assert not becomes_loops(gpu(132), torch.bfloat16, (7, 7), False)
    assert not becomes_loops(EVERY, torch.bfloat16, (9, 9), True)
    assert not becomes_loops(None, torch.float32, (3, 3), True)
