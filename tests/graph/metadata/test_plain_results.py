"""Rules for the results of frequent ops say what torch's meta kernels, corrected, say."""

from __future__ import annotations

import itertools

import pytest
import torch

from argand.graph.metadata import metas
from argand.graph.metadata.plain_results import RULES, plain_results
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.metadata.strides import contiguous_strides

aten = torch.ops.aten
CPU = torch.device("cpu")
TABLE = SpecTable()
SIZES = list(itertools.product((1, 3, 5), repeat=3))


def spec(size, dtype=torch.float32, stride=None) -> Spec:
    size = tuple(size)
    return TABLE.make(size, stride or contiguous_strides(size), 0, dtype, CPU)


def layouts(results):
    results = results if isinstance(results, (tuple, list)) else [results]
    return [(tuple(one.shape), one.stride(), one.dtype) for one in results]


def calls():
    for size in SIZES:
        for count in (1, 2, 3):
            shape = list(size[-count:])
            for weight in (None, spec(shape)):
                yield aten.native_layer_norm.default, (spec(size), shape, weight, weight, 1e-5), {}
        for dims in ([0], [1], [-1], [0, 1], [0, -1], [0, 1, 2]):
            for keepdim in (False, True):
                yield aten.var_mean.correction, (spec(size), dims), {"correction": 0, "keepdim": keepdim}
                yield aten.var_mean.correction, (spec(size, stride=(1, 15, 3)), dims), {"keepdim": keepdim}
        for dim, dtype in itertools.product((0, 1, -1), (torch.float64, torch.int64, torch.int32, torch.bool)):
            yield aten.cumsum.default, (spec(size, dtype), dim), {}
        rows, inner, columns = size
        for stride in ((columns, 1), (1, inner)):
            right = spec((inner, columns), stride=stride)
            yield aten.addmm.default, (spec((columns,)), spec((rows, inner)), right), {}


def test_rules_say_what_meta_kernels_say():
    answered = set()
    for func, args, kwargs in calls():
        quick = plain_results(func, args, kwargs)
        assert quick is not None
        answered.add(func)
        exact = metas._make(func, args, kwargs, metas._specs_in((args,)), CPU)
        assert layouts(quick) == layouts(exact), (func, args, kwargs)
    assert answered == set(RULES)


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.addmm.default, (spec((4,)), spec((2, 3)), spec((2, 4))), {}),
        (aten.addmm.default, (spec((3,)), spec((2, 3)), spec((3, 4))), {}),
        (aten.addmm.default, (spec((4,)), spec((2, 3)), spec((3, 4))), {"beta": 2}),
        (aten.addmm.default, (spec((4,), torch.float64), spec((2, 3)), spec((3, 4))), {}),
        (aten.addmm.default, (spec((4,)), spec((0, 3)), spec((3, 4))), {}),
        (aten.native_layer_norm.default, (spec((2, 3)), [2], None, None, 1e-5), {}),
        (aten.native_layer_norm.default, (spec((2, 3)), [3], spec((2,)), None, 1e-5), {}),
        (aten.native_layer_norm.default, (spec((2, 3), stride=(1, 2)), [3], None, None, 1e-5), {}),
        (aten.native_layer_norm.default, (spec((3,)), [2, 3], None, None, 1e-5), {}),
        (aten.var_mean.correction, (spec((2, 3)), [2]), {}),
        (aten.var_mean.correction, (spec((2, 3)), [1, -1]), {}),
        (aten.var_mean.correction, (spec((2, 3)), None), {}),
        (aten.cumsum.default, (spec((2, 3)), 2), {}),
        (aten.cumsum.default, (spec((2, 3)), 0), {"dtype": torch.float64}),
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_meta_kernels(func, args, kwargs):
    assert plain_results(func, args, kwargs) is None
