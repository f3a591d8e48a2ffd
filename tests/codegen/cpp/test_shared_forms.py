"""Kernels that differ only in sizes, strides and offsets share a function; those that differ in more do not."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest
import torch
from cpp_kernels import body, buffer, plan

import argand
from argand import events
from argand.codegen import cpp
from argand.codegen.cpp.numbers_apart import MARK, without_numbers
from argand.ir.kernel import KernelPlan
from argand.lower.recorder import Recorder
from argand.runtime import toolchain


def _rows(name: str, rows: int, columns: int, start: int, op: str = "neg") -> KernelPlan:
    """A kernel that reads a matrix and writes to rows of a larger one, from one on."""

    def record(ops: Recorder, x: object, y: object) -> None:
        value = getattr(ops, op)(ops.load("a", x * columns + y, torch.float32))  # type: ignore[operator]
        ops.store("b", (x + start) * columns + y, value)  # type: ignore[operator]

    a, b = buffer("a", torch.float32, [rows, columns]), buffer("b", torch.float32, [rows + start, columns])
    return plan([body([rows, columns], record)], [a], [b], name=name)


def _run(plans: Sequence[KernelPlan]) -> tuple[list[torch.Tensor], str]:
    """What each kernel makes of a matrix of numbers, and the text of all."""
    source = cpp.generate(plans, toolchain.isa_for(-1))
    library, results = toolchain.load_text(source.text), []
    for made in plans:
        x, y = (torch.zeros([int(str(n)) for n in made.buffers[name].size]) for name in (*made.inputs, *made.outputs))
        x.view(-1).copy_(torch.arange(x.numel()))
        pointers = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
        library.function(source.kernel_symbols[made.name])(ctypes.addressof(pointers), None)
        results.append(y)
    return results, source.text


def _wanted(rows: int, columns: int, start: int) -> torch.Tensor:
    x = -torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    return torch.cat([torch.zeros(start, columns), x])


def test_kernels_that_differ_in_sizes_and_offsets_share_a_function() -> None:
    shapes = [(9, 256, 0), (30, 256, 3), (9, 512, 7), (30, 256, 5)]
    results, text = _run([_rows(f"rows{n}", *shape) for n, shape in enumerate(shapes)])
    for result, shape in zip(results, shapes):
        assert torch.equal(result, _wanted(*shape))
    assert text.count("store(out_ptr0") == 2  # with an offset, and without
    assert text.count("rows1_and_like(") == 1 + 3


def test_other_rests_of_vectors_and_other_operations_are_other_functions() -> None:
    plans = [_rows("a", 9, 256, 1), _rows("b", 9, 259, 1), _rows("c", 9, 256, 1, "abs"), _rows("d", 9, 260, 1)]
    results, text = _run(plans)
    assert "_and_like" not in text
    assert torch.equal(results[1], _wanted(9, 259, 1))


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("for (i64 y0 = 0; y0 < 30; ++y0)", ["0", "30"]),
        ("for (i64 y0 = 0; y0 < 7; ++y0) {", []),  # short
        ("for (i64 y1 = 0; y1 < 256; y1 += 16) {", ["0", "256"]),
        ("for (i64 y1 = 0; y1 < 64; y1 += 16) {", []),  # short
        ("for (i64 y1_begin = 0; y1_begin < 4096; y1_begin += 512) {", ["0", "4096", "512"]),
        ("const i64 y1_end = min_i64(y1_begin + 1376, 6272);", ["1376", "6272"]),
        ("const i64 y1 = 192;", ["192"]),
        ("const i64 y1 = 0;", []),
        ("const i64 y1_rest = y1_end - y1;", []),
        ("auto tmp0 = load<f32x16>(in_ptr0 + 96*y0 + y1 - 4096);", ["96", "4096"]),
        ("auto tmp0 = load_tail<f32x16>(in_ptr0 + 96*y0, 4);", ["96"]),
        ("auto tmp0 = in_ptr0[3000000000LL*y0 + 5];", ["3000000000LL", "5"]),
        ("auto tmp0 = in_ptr0[(y0 / 7) + 5];", []),  # divisors are best known
        ("auto tmp0 = each<f32x16>([&](int l) { return in_ptr0[3*y0 + 3*l]; });", []),
        ("auto tmp1 = tmp0 + splat<f32x16>(3.0);", []),
        ("auto tmp1 = in_ptr0[9*y0] + in_ptr0[9*y0 + 1];", []),  # neighbours
        ("auto tmp1 = 30*y0 + 5;", []),  # no place of a buffer
        ("f32 part[64];  // in_ptr0 + 3*y0", []),
    ],
)
def test_numbers_that_may_be_parameters(line: str, numbers: list[str]) -> None:
    parts = without_numbers(f"  {line}")
    assert list(parts.numbers) == numbers and parts.text.count(MARK) == len(numbers)
    assert parts.filled(numbers) == f"  {line}"


def test_a_densely_connected_network_has_few_functions() -> None:
    torch.manual_seed(0)
    convs = [torch.randn(8, width, 1, 1) / width for width in range(8, 72, 8)]

    def network(x: torch.Tensor) -> torch.Tensor:
        for conv in convs:
            mean = x.mean((0, 2, 3), keepdim=True)
            x = torch.cat((x, torch.conv2d((x - mean).relu() * 2, conv)), 1)
        return x

    x = torch.randn(2, 8, 16, 16)
    texts: list[str] = []
    remove = events.bus.subscribe(lambda event: texts.append(event.text()), ["kernel_code"])
    try:
        torch.testing.assert_close(argand.compile(network)(x), network(x), rtol=1e-4, atol=1e-4)
    finally:
        remove()
    (text,) = texts
    assert text.count('extern "C"') > 2 * text.count("_and_like(void**")
