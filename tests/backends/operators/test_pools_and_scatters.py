"""Pooling and sums at looked-up positions in generated kernels: values, layouts, gradients, errors as eager's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import argand
import sweeps

aten = torch.ops.aten
SETTINGS = settings(
    max_examples=sweeps.part(25, 4), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def same(fn: Callable[..., Any], *args: Any, exact: bool = True) -> None:
    """Equal results in equal layouts, or an error of eager's class."""
    argand.reset()
    try:
        want = fn(*args)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            argand.compile(fn)(*args)
        return
    got = argand.compile(fn)(*args)
    for a, b in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,)):
        assert a.stride() == b.stride() and a.dtype is b.dtype
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(b, a, equal_nan=True, **tolerance)


@SETTINGS
@given(st.data())
def test_max_pool2d(data: Any) -> None:
    draw = data.draw
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = tuple(draw(st.integers(0, n // 2)) for n in size)
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    ceil = draw(st.booleans())
    height, width = draw(st.integers(5, 19)), draw(st.integers(5, 40))
    assume((size[0] - 1) * dilation[0] < height and (size[1] - 1) * dilation[1] < width)
    torch.manual_seed(draw(st.integers(0, 99)))
    x = torch.randint(-4, 5, (2, 3, height, width)).to(draw(st.sampled_from([torch.float32, torch.float64])))
    if draw(st.booleans()):
        x[torch.rand_like(x) < 0.1] = float("nan")
        x[torch.rand_like(x) < 0.5] = -float("inf")
    x = x.contiguous(memory_format=draw(st.sampled_from(LAYOUTS)))
    args = (size, stride, padding, dilation, ceil)
    same(lambda x: F.max_pool2d(x, *args, return_indices=True), x)
    same(lambda x: F.max_pool2d(x[0], *args), x)
    _, places = F.max_pool2d(x, *args, return_indices=True)
    grad = torch.randint(-9, 9, places.shape).to(x.dtype)
    same(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *args, i), grad, x, places)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_avg_pool2d(layout: torch.memory_format) -> None:
    x = torch.randn(2, 5, 13, 18).contiguous(memory_format=layout)
    same(lambda x: F.avg_pool2d(x, 3, 2), x, exact=False)
    same(lambda x: F.avg_pool2d(x, (2, 3), padding=1), x, exact=False)
    same(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), x, exact=False)
    same(lambda x: F.avg_pool2d(x[0], 2, divisor_override=3), x, exact=False)
    same(lambda x: F.avg_pool2d(x, 2), x.bfloat16(), exact=False)


def test_training_through_pools_runs_in_kernels(seen: Counter[str]) -> None:
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    argand.compile(lambda x: F.max_pool2d(x.sin(), 3, 2, 1))(x).sum().backward()
    want = torch.autograd.grad(F.max_pool2d(x.sin(), 3, 2, 1).sum(), x)[0]
    torch.testing.assert_close(x.grad, want)
    assert not seen["fallback op"]


def places(draw: Any, limit: int, *shape: int, wrap: bool = False) -> torch.Tensor:
    """Positions with duplicates; sometimes one is out of range."""
    made = torch.randint(-limit if wrap else 0, limit, shape, dtype=draw(st.sampled_from([torch.int64, torch.int32])))
    bad = draw(st.sampled_from([None, None, None, limit, -limit - 1, -1]))
    if bad is not None and made.numel():
        made.view(-1)[draw(st.integers(0, made.numel() - 1))] = bad
    return made


def operand(draw: Any, *shape: int) -> torch.Tensor:
    """Small integers, so that sums are exact in any order, in some layout and dtype."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16]))
    order = draw(st.permutations(range(len(shape))))
    made = torch.randint(-3, 4, [shape[d] for d in order]).to(dtype)
    return made.permute([order.index(d) for d in range(len(shape))])


@SETTINGS
@given(st.data())
def test_index_add_and_scatter_add(data: Any) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 99)))
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 3, 256])))
    dim = draw(st.integers(-3, 2))
    x, count = operand(draw, *shape), draw(st.integers(1, 20))
    size = list(shape)
    size[dim] = count
    index = places(draw, shape[dim], count)
    same(lambda x, i, s: x.index_add(dim, i, s), x, index, operand(draw, *size).to(x.dtype))
    wide = places(draw, shape[dim], *size).long()
    same(lambda x, i, s: x.scatter_add(dim, i, s), x, wide, operand(draw, *[n + 1 for n in size]).to(x.dtype))


@SETTINGS
@given(st.data())
def test_index_put(data: Any) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 99)))
    x = operand(draw, 5, 7, draw(st.sampled_from([2, 256])))
    last = x.shape[2]
    i, j = places(draw, 5, 4, 3, wrap=True).long(), places(draw, 7, 3, wrap=True).long()
    same(lambda x, i, s: x.index_put((i,), s, accumulate=True), x, i, operand(draw, 4, 3, 7, last).to(x.dtype))
    same(lambda x, i, j, s: x.index_put((i, j), s, accumulate=True), x, i, j, operand(draw, last).to(x.dtype))
    same(lambda x, j, s: aten.index_put(x, [None, j], s, True), x, j, operand(draw, 1).to(x.dtype))
    same(lambda x, i, j, s: aten.index_put(x, [i, None, j % 2], s, True), x, i, j, operand(draw, 1).to(x.dtype))


@pytest.mark.parametrize("width", [3, 64, 256])
@pytest.mark.parametrize("padding", [-1, 4])
def test_embedding_gradient(width: int, padding: int, seen: Counter[str]) -> None:
    weight, index = torch.randn(9, width, requires_grad=True), torch.randint(0, 9, (5, 6))
    grad = torch.randint(-3, 4, (5, 6, width)).float()
    call = argand.compile(lambda i, w: F.embedding(i, w, padding_idx=padding if padding >= 0 else None))
    call(index, weight).backward(grad)
    want = aten.embedding_dense_backward(grad, index, 9, padding, False)
    assert torch.equal(weight.grad, want) and not seen["fallback op"]


def test_threads_share_scatters_only_where_nothing_collides() -> None:
    """The planes of a pool's gradient are apart, the rows of an embedding's are not."""
    from argand import events

    texts: list[str] = []
    argand.reset()
    stop = events.bus.subscribe(lambda e: texts.append(e.text()) if e.name == "kernel_code" else None)
    try:
        pool = aten.max_pool2d_with_indices_backward
        _, index = F.max_pool2d(torch.randn(4, 8, 64, 64), 2, return_indices=True)
        grad, x = torch.randn(4, 8, 32, 32), torch.randn(4, 8, 64, 64)
        argand.compile(lambda g, x, i: pool(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i))(grad, x, index)
        rows = torch.randint(0, 50, (4000,))
        argand.compile(lambda x, i, s: x.index_add(0, i, s))(torch.randn(50, 36), rows, torch.randn(4000, 36))
    finally:
        stop()
    scatters = [text.split('extern "C"')[-1] for text in texts]
    assert "#pragma omp parallel for" in scatters[0] and "#pragma omp" not in scatters[1]


def test_a_lookup_whose_value_nobody_needs_still_checks_its_position():
    table = argand.compile(lambda x, n: torch.ones(8)[(x + n).int()], fullgraph=True)
    assert torch.equal(table(torch.zeros(1), 1), torch.ones(1))
    with pytest.raises(IndexError):
        table(torch.full((1,), 100.0), 1)
