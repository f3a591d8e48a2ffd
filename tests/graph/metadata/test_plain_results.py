"""Rules for the results of frequent ops say what torch's meta kernels, corrected, say."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from argand.graph.metadata import metas
from argand.graph.metadata.plain_results import RULES, plain_results
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.metadata.strides import channels_last_strides, contiguous_strides

aten = torch.ops.aten
CPU = torch.device("cpu")
TABLE = SpecTable()
SIZES = list(itertools.product((1, 3, 5), repeat=3))


def spec(size, dtype=torch.float32, stride=None) -> Spec:
    size = tuple(size)
    return TABLE.make(size, stride or contiguous_strides(size), 0, dtype, CPU)


IMAGE = spec((2, 4, 8, 8))
LAST = spec((2, 4, 8, 8), stride=(256, 1, 32, 4))


def layouts(results):
    results = results if isinstance(results, (tuple, list)) else [results]
    return [None if one is None else (tuple(one.shape), one.stride(), one.dtype) for one in results]


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


def more_calls():
    for size in SIZES:
        for dims, keepdim in itertools.product(([0], [-2], [0, 2], [0, 1, 2]), (False, True)):
            for func in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default):
                yield func, (spec(size), dims, keepdim), {}
        for dim in (0, 1, -1):
            yield aten._softmax.default, (spec(size), dim, False), {}
            yield aten._log_softmax.default, (spec(size), dim, False), {}
            yield aten.cat.default, ([spec(size), spec(size), spec(size)], dim), {}
        for mask in (size, size[1:], (1, *size[1:]), ()):
            yield aten.masked_fill.Scalar, (spec(size), spec(mask, torch.bool), 2.5), {}
            yield aten.masked_fill.Tensor, (spec(size), spec(mask, torch.bool), spec(())), {}
        yield aten.tril.default, (spec(size), 1), {}
        yield aten.triu.default, (spec(size[1:]),), {}
        many, rows, inner = size
        for stride in ((inner * 2, 2, 1), (inner * 2, 1, inner)):
            yield aten.bmm.default, (spec(size), spec((many, inner, 2), stride=stride)), {}
            yield aten.mm.default, (spec((rows, inner)), spec((inner, 2), stride=stride[1:])), {}
        yield aten.embedding.default, (spec((7, 4)), spec(size, torch.int64)), {}
        yield aten.embedding.default, (spec((7, 4), stride=(1, 7)), spec(size, torch.int32), 1), {}


def image_calls():
    for size in SIZES:
        for dim in (0, 1, -1):
            yield aten.stack.default, ([spec(size[:2])] * 3, dim), {}
        for high, groups in itertools.product((1, 2, 3), (1, 2)):
            if size[0] == high == 1:  # a layout that fits all formats is left to the meta kernel
                continue
            x, weight = spec((2, 4, *size[:2])), spec((6, 4 // groups, high, size[2]))
            for bias, (step, pad, apart) in itertools.product((None, spec((6,))), ((1, 5, 1), (2, 9, 2))):
                wide = ([step, step], [pad, pad], [apart, apart], False, [0, 0], groups)
                yield aten.convolution.default, (x, weight, bias, *wide), {}
        for step, pad, apart in ((1, 0, 1), (2, 1, 1), (3, 1, 2)):
            image = spec((2, 4, size[0] + 4, size[1] + 4))
            yield aten.max_pool2d_with_indices.default, (image, [3, 2], [step, step], [pad], [apart]), {}
            yield aten.max_pool2d_with_indices.default, (image, [step]), {}
        x, one = spec((2, 6, *size)), spec((6,))
        for weight, training in itertools.product((None, one), (False, True)):
            yield aten.native_batch_norm.default, (x, weight, weight, one, one, training, 0.1, 1e-5), {}
        yield aten._native_batch_norm_legit_functional.default, (x, one, one, one, one, True, 0.1, 1e-5), {}
        for groups, weight in itertools.product((1, 2, 6), (None, one)):
            yield aten.native_group_norm.default, (x, weight, weight, 2, 6, math.prod(size), groups, 1e-5), {}


def last(size, dtype=torch.float32) -> Spec:
    return spec(size, dtype, channels_last_strides(size))


def laid_out_calls():
    one = spec((6,))
    for laid, size in itertools.product((spec, last), ((2, 6, 5, 3), (1, 6, 1, 3), (3, 6, 4, 4))):
        x = laid(size)
        for func, rest in (
            (aten.hardswish.default, ()),
            (aten.hardswish_backward.default, (x,)),
            (aten.hardsigmoid_backward.default, (x,)),
            (aten.hardtanh.default, (0.0, 6)),
            (aten.hardtanh_backward.default, (x, 0.0, 6.0)),
            (aten.leaky_relu_backward.default, (x, 0.1, True)),
            (aten.elu_backward.default, (1, 1.0, 1, False, x)),
            (aten.threshold_backward.default, (x, 0)),
            (aten._adaptive_avg_pool2d.default, ([2, 7],)),
        ):
            yield func, (x, *rest), {}
        for grad in ((2, 6, 1, 1), (2, 6, 3, 2)):
            yield aten._adaptive_avg_pool2d_backward.default, (laid(grad), x), {}
        for weight, training in itertools.product((None, one), (False, True)):
            yield aten.native_batch_norm.default, (x, weight, weight, one, one, training, 0.1, 1e-5), {}
            saved = (one, one) if training else (spec((0,)), spec((0,)))
            for other, wanted in itertools.product((spec(size), last(size)), ([True] * 3, [True, False, False])):
                rest = (weight, one, one, *saved, training, 1e-5, wanted)
                yield aten.native_batch_norm_backward.default, (other, x, *rest), {}
        yield aten._native_batch_norm_legit_functional.default, (x, one, one, one, one, True, 0.1, 1e-5), {}
        if min(size[2:]) > 2:
            part = spec((size[0], 20, *size[2:])).stride
            for grad in (spec(size), last(size), spec(size, stride=part), spec(size, stride=(0, 0, 0, 0))):
                yield aten.threshold_backward.default, (grad, x, 0), {}
            for step, pad, apart in ((1, 0, 1), (2, 1, 1)):
                window = [3, 2], [step, step], [pad, pad], [apart, apart]
                yield aten.max_pool2d_with_indices.default, (x, *window), {}
                out = plain_results(aten.max_pool2d_with_indices.default, (x, *window), {})[0].shape
                back = aten.max_pool2d_with_indices_backward.default
                yield back, (spec(out), x, *window, False, spec(out, torch.int64)), {}
        for groups, wanted in itertools.product((1, 2), ([True] * 3, [False, True, False], [True, False, True])):
            rest = ([4] if wanted[2] else None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, wanted)
            grad, weight = laid((*size[:1], 4, *size[2:])), laid((4, 6 // groups, 3, 3))
            yield aten.convolution_backward.default, (grad, x, weight, *rest), {}


def test_rules_say_what_meta_kernels_say():
    answered = set()
    for func, args, kwargs in (*calls(), *more_calls(), *image_calls(), *laid_out_calls()):
        quick = plain_results(func, args, kwargs)
        assert quick is not None, (func, args)
        answered.add(func)
        exact = metas._make(func, args, kwargs, metas._specs_in((args,)), CPU)
        assert layouts(quick) == layouts(exact), (func, args, kwargs)
    assert answered == set(RULES)


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.addmm.default, (spec((3,)), spec((2, 3)), spec((3, 4))), {}),
        (aten.addmm.default, (spec((4,)), spec((2, 3)), spec((3, 4))), {"beta": 2}),
        (aten.addmm.default, (spec((4,), torch.float64), spec((2, 3)), spec((3, 4))), {}),
        (aten.addmm.default, (spec((4,)), spec((0, 3)), spec((3, 4))), {}),
        (aten.native_layer_norm.default, (spec((2, 3)), [3], spec((2,)), None, 1e-5), {}),
        (aten.native_layer_norm.default, (spec((2, 3), stride=(1, 2)), [3], None, None, 1e-5), {}),
        (aten.var_mean.correction, (spec((2, 3)), [2]), {}),
        (aten.var_mean.correction, (spec((2, 3)), [1, -1]), {}),
        (aten.var_mean.correction, (spec((2, 3)), None), {}),
        (aten.mm.default, (spec((5, 2, 3)), spec((5, 3, 4))), {}),
        (aten.sum.dim_IntList, (spec((2, 3), stride=(1, 2)), [0]), {}),
        (aten.sum.dim_IntList, (spec((2, 3), torch.int32), [0]), {}),
        (aten.sum.dim_IntList, (spec((2, 3)), [0]), {"dtype": torch.float64}),
        (aten._softmax.default, (spec((2, 3)), 2, False), {}),
        (aten.cat.default, ([spec((2, 3)), spec((2, 4))], 0), {}),
        (aten.cat.default, ([spec((2, 3)), spec((2, 3), torch.float64)], 0), {}),
        (aten.embedding.default, (spec((7, 4)), spec((3,), torch.float32)), {}),
        (aten.masked_fill.Scalar, (spec((2, 3)), spec((2, 2, 3), torch.bool), 0), {}),
        (aten.masked_fill.Scalar, (spec((2, 1)), spec((2, 3), torch.bool), 0), {}),
        (aten.tril.default, (spec((3,)),), {}),
        (aten.stack.default, ([spec((2, 3)), spec((3, 2))],), {}),
        (aten.stack.default, ([spec((2, 3)), spec((2, 3))], 3), {}),
        (aten.convolution.default, (IMAGE, spec((6, 4, 9, 3)), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.convolution.default, (IMAGE, spec((6, 4, 3, 3)), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1), {}),
        (aten.convolution.default, (LAST, spec((6, 4, 3, 3)), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.native_batch_norm.default, (IMAGE, None, None, spec((5,)), spec((4,)), True, 0.1, 1e-5), {}),
        (aten.native_batch_norm.default, (IMAGE, None, None, None, None, True, 0.1, 1e-5), {}),
        (aten.native_group_norm.default, (IMAGE, None, None, 2, 4, 64, 3, 1e-5), {}),
        (aten.native_group_norm.default, (LAST, None, None, 2, 4, 64, 2, 1e-5), {}),
        (aten.max_pool2d_with_indices.default, (spec((2, 4, 8, 8), stride=(512, 1, 64, 8)), [2]), {}),
        (aten.max_pool2d_with_indices_backward.default, (IMAGE, IMAGE, [2], [], [0], [1], False, IMAGE), {}),
        (aten.hardswish.default, (spec((2, 3), stride=(4, 1)),), {}),
        (aten.hardswish.default, (spec((2, 3), torch.float16),), {}),
        (aten.hardswish_backward.default, (IMAGE, LAST), {}),
        (aten.threshold_backward.default, (spec((4, 8, 8)), IMAGE, 0), {}),
        (aten._adaptive_avg_pool2d.default, (spec((4, 8, 8)), [1, 1]), {}),
        (
            aten.native_batch_norm_backward.default,
            (IMAGE, IMAGE, None, None, None, None, None, True, 1e-5, [True] * 3),
            {},
        ),
        (aten.max_pool2d_with_indices.default, (IMAGE, [9]), {}),
        (aten.max_pool2d_with_indices.default, (IMAGE, [2], [0]), {}),
        (aten.max_pool2d_with_indices.default, (IMAGE, [2], [2], [2]), {}),
        (aten.max_pool2d_with_indices.default, (IMAGE, [3], [2], [0], [1], True), {}),
        (aten.max_pool2d_with_indices.default, (spec((4, 8, 8)), [2]), {}),
        (aten.cumsum.default, (spec((2, 3)), 2), {}),
        (aten.cumsum.default, (spec((2, 3)), 0), {"dtype": torch.float64}),
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_meta_kernels(func, args, kwargs):
    assert plain_results(func, args, kwargs) is None


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.addmm.default, (spec((4,)), spec((2, 3)), spec((2, 4)))),
        (aten.native_layer_norm.default, (spec((2, 3)), [2], None, None, 1e-5)),
        (aten.native_layer_norm.default, (spec((3,)), [2, 3], None, None, 1e-5)),
        (aten.native_layer_norm.default, (spec((1 << 20, 1 << 20)), [3], spec((3,)), spec((3,)), 1e-5)),
        (aten.mm.default, (spec((1 << 20, 1 << 20)), spec((4, 3)))),
        (aten.bmm.default, (spec((5, 2, 3)), spec((4, 3, 4)))),
        (aten.convolution.default, (IMAGE, spec((6, 3, 3, 3)), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ],
)
def test_of_sizes_that_do_not_fit_eagers_kernel_says_what_is_wrong(func, args):
    real = [torch.zeros(()).expand(arg.size) if isinstance(arg, Spec) else arg for arg in args]
    with pytest.raises(RuntimeError) as eager:
        func(*real)
    with pytest.raises(RuntimeError) as quick:
        plain_results(func, args, {})
    assert str(quick.value) == str(eager.value)
