"""A deterministic part of torch's op_db: aot_eager against eager, and inferred metadata against eager's kernels."""

from __future__ import annotations

import warnings

import pytest
import torch
from opdb_aot import run
from opdb_layouts import Comparing, Found, compare

import sweeps
from argand.graph.metadata import metas
from argand.graph.metadata.specs import SpecTable
from argand.graph.metadata.strides import iterator_strides

# Eager picks another LAPACK path when it sees no tensor subclass: equal to about 1e-5 only.
INEXACT = ("linalg.svdvals", "linalg.cond", "linalg.norm")


def test_a_fraction_of_op_db_equals_eager():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = run([], torch.float32, 4, ops=10 if sweeps.WHOLE else 40)
    problems = [text for text in tally.problems if not text.startswith(INEXACT)]
    assert problems == []
    assert tally.counts["compiled"] > 10 * tally.counts["fallback"]


def test_inferred_metadata_is_what_kernels_make():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare([], torch.float32, 20, ops=6 if sweeps.WHOLE else 40)
    # Where inference raises, the graph runs eagerly.
    problems = [text for text in found.problems if "infer raised" not in text or "no elements" in text]
    assert problems == [], found.examples
    assert found.counts["compared"] > (600 if sweeps.WHOLE else 300)


@pytest.mark.parametrize("name", ["sort", "zeros_like", "masked_fill", "triu", "nn.functional.binary_cross_entropy"])
def test_layouts_of_expanded_narrowed_and_empty_arguments(name):
    """Of dimensions of size 1 and of tensors without elements too the strides are eager's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare([name], torch.float32, 4)
    assert not found.problems, found.examples
    assert found.counts["compared"] > 20


def test_layout_of_operands_that_are_converted_first():
    found = Found()
    row, column = torch.ones(5, dtype=torch.int32).expand(5, 5), torch.ones(5, 1, dtype=torch.int32).expand(5, 5)
    other = torch.randn(5, 5).t()
    with Comparing(found):
        for x in (row, column, row.t(), column.t()):
            for y in (other, other.t(), other.double(), other.bool(), other[:, :1]):
                for made in (x * y, y * x, x / y, x < y, torch.where(x > 0, x, y), torch.maximum(x, y), x.pow(y)):
                    assert made.shape == (5, 5)
    assert not found.problems, found.examples


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution_layouts(dims, groups, dtype):
    table = SpecTable()
    spec = lambda t: table.make(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device)
    convolution = torch.ops.aten.convolution.default
    for batch in (1, 2):
        for kernel in (1, 3):
            for last_x in (False, True):
                for last_w in (False, True):
                    x = torch.randn((batch, 8, *[9] * dims), dtype=dtype)
                    w = torch.randn((8, 8 // groups, *[kernel] * dims), dtype=dtype)
                    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last_x else x
                    w = w.movedim(1, -1).contiguous().movedim(-1, 1) if last_w else w
                    rest = (None, [1] * dims, [0] * dims, [1] * dims, False, [0] * dims, groups)
                    made = metas.infer(table, convolution, (spec(x), spec(w), *rest), {})
                    assert made.stride == convolution(x, w, *rest).stride(), (x.stride(), w.stride())


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_convolution_layouts_on_a_gpu(dims, dtype):
    """cuDNN's, by its rule: channels last where either operand is, but for doubles. `gpu_layouts.py` asks a GPU."""
    gpu = torch.device("cuda", 0)
    table = SpecTable()
    spec = lambda t: table.make(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, gpu)
    aten = torch.ops.aten
    for last_x in (False, True):
        for last_w in (False, True):
            x, w = torch.randn((2, 8, *[9] * dims), dtype=dtype), torch.randn((8, 8, *[3] * dims), dtype=dtype)
            x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last_x else x
            w = w.movedim(1, -1).contiguous().movedim(-1, 1) if last_w else w
            rest = ([1] * dims, [0] * dims, [1] * dims, False, [0] * dims, 1)
            made = metas.infer(table, aten.convolution.default, (spec(x), spec(w), None, *rest), {})
            last = dtype is not torch.float64 and (last_w or (last_x and dims == 2))  # of 1-d ones x is made contiguous
            assert (made.meta.stride(1) == 1) is last
            grad = made.meta.contiguous()
            args = (spec(grad), spec(x), spec(w), [8], *rest, [True, True, False])
            gradients = metas.infer(table, aten.convolution_backward.default, args, {})
            for one in gradients.items[:2]:
                assert (one.meta.stride(1) == 1) is last


def test_iterator_strides_with_a_number_operand():
    """A number among the operands takes the general path, which orders size-1 dimensions by size."""
    x = torch.empty_strided((1, 3, 2), (2, 2, 1))
    assert iterator_strides((1, 3, 2), ((tuple(x.shape), x.stride()), None)) == (x * 2).stride()
