"""Bindings by which host modules call ATen: they dispatch the very operator, with the very arguments."""

from __future__ import annotations

import operator
import sys

import numpy
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import argand
from argand.codegen.host.calls import BINDINGS

# operators of op_db whose samples call them
SOURCES = """mm bmm addmm baddbmm mv dot vdot nn.functional.conv2d nn.functional.conv_transpose1d nn.functional.embedding
    nn.functional.embedding_bag fft.fft fft.irfft fft.rfft nn.functional.layer_norm nn.functional.group_norm
    nn.functional.batch_norm nn.functional.grid_sample multinomial index_put index_add scatter_add gather
    unique bincount count_nonzero cholesky_solve cholesky_inverse linalg.solve ormqr
    triangular_solve softmax log_softmax nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.max_unpool2d
    nn.functional.max_unpool3d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.adaptive_max_pool2d
    nn.functional.unfold nn.functional.interpolate nn.functional.upsample_bilinear linalg.solve_triangular
    linalg.lu_solve linalg.lstsq nonzero nonzero_static masked_select unique_consecutive topk kthvalue mode median
    histc cummax cummin bernoulli cholesky linalg.det linalg.slogdet linalg.eigh linalg.svd lu_unpack geqrf linalg.lu_factor_ex
    linalg.cholesky_ex linalg.inv_ex linalg.qr linalg.eig linalg.householder_product linalg.ldl_factor_ex
    linalg.ldl_solve sort matrix_exp linalg.lu masked_scatter nanmedian""".split()
ELSEWHERE = {  # for a GPU, for programs with gradients that have no sample here, and of a kind that samples do not have
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._upsample_bilinear2d_aa.default",
}


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def bound(func, args, kwargs):
    """The value of each argument: those left out have their defaults."""
    arguments = func._schema.arguments
    values = {each.name: each.default_value for each in arguments}
    return values | {each.name: value for each, value in zip(arguments, args)} | kwargs


def same(left, right) -> bool:
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True)
    return all(x is y if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


def sample_calls(op):
    """Calls of ATen that samples make, forward and backward."""
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    for requires_grad in (False, op.supports_autograd):
        for sample in list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))[::4][:2]:
            with Calls() as seen:
                results = pytree.tree_leaves(op.op(sample.input, *sample.args, **sample.kwargs))
                ends = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
                if ends:
                    torch.autograd.backward([t.abs().sum() for t in ends])
            yield from seen.calls


def test_bindings_dispatch_the_operators_they_stand_for():
    seen = set()
    with Calls() as attention:  # whose samples are not of four dimensions, or have masks
        torch.nn.functional.scaled_dot_product_attention(*torch.rand(3, 1, 2, 4, 8), scale=0.5)
    sampled = (op for op in op_db if op.name in SOURCES and op.dtypes)
    for func, args, kwargs in (*attention.calls, *(call for op in sampled for call in sample_calls(op))):
        if str(func) not in BINDINGS:
            continue
        with Calls() as again, torch.no_grad():
            operator.attrgetter(BINDINGS[str(func)].removeprefix("torch."))(torch)(*args, **kwargs)
        ((called, got, named),) = again.calls
        assert called is func, (func, called)
        assert same(bound(func, args, kwargs), bound(func, got, named)), (func, args, kwargs, got, named)
        seen.add(str(func))
    assert set(BINDINGS) - seen <= ELSEWHERE, set(BINDINGS) - seen - ELSEWHERE


POSITIONS = {
    "first": lambda x, i: x[i, i] * 2,
    "last": lambda x, i: x[..., i] * 2,
    "middle": lambda x, i: x[:, i] * 2,
    "last_two": lambda x, i: x[:, i, i] * 2,
    "apart": lambda x, i: x[i, :, i] * 2,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_gradients_of_positions_in_any_of_the_dimensions(name):
    """Half floats, whose sums at places are ATen's, called with None for dimensions that have no positions."""
    fn = POSITIONS[name]
    grads = []
    for each in (fn, argand.compile(fn, backend="native", dynamic=True)):
        x = torch.arange(60.0).view(3, 5, 4).half().requires_grad_()
        each(x, torch.tensor([0, 2, 0])).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_numpy_is_called_past_the_dispatcher():
    def f(x):
        return torch.from_numpy(numpy.interp(x.numpy(), numpy.array([-2.0, 0.0, 2.0]), numpy.array([0.0, 1.0, 0.5])))

    called = []
    compiled, x = argand.compile(f), torch.linspace(-1, 1, 12).view(4, 3)
    compiled(x)
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        got = compiled(x)
    finally:
        sys.setprofile(None)
    assert torch.equal(got, f(x))
    assert "call_numpy" in called and "OpOverload.__call__" not in called
