"""Writes, views and aliases: the functional program must leave every tensor, and who shares memory with whom, as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opdb_aot import differences, graph_of
from torch.utils import _pytree

import argand
from argand import events
from argand.autograd import wrap
from argand.autograd.tracing.trace import trace_inference
from argand.backends.aot_eager import aot_eager, run_eagerly
from argand.backends.common import compile_inference
from argand.backends.compile_watchers import Compiler
from argand.passes import run_passes


def with_passes(gm, example_inputs):
    return compile_inference(gm, example_inputs, Compiler("with_passes", lambda p: run_eagerly(run_passes(p))))


def relations(*trees: Any) -> list[Any]:
    """Which tensors are one object, and which share storage."""
    tensors = [t for t in _pytree.tree_leaves(trees) if isinstance(t, torch.Tensor)]
    same = [[a is b for b in tensors] for a in tensors]
    shared = [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for b in tensors] for a in tensors]
    return [same, shared]


def outcome(fn: Callable[..., Any], args: list[Any]) -> Any:
    torch.manual_seed(0)
    try:
        return fn(*args)
    except Exception as error:
        return error


def seeded(make: Callable[[], list[Any]]) -> list[Any]:
    torch.manual_seed(1)
    return make()


def compare(backend: Any, fn: Callable[..., Any], make: Callable[[], list[Any]]) -> list[str]:
    """Run eagerly and compiled on equal inputs; returns the reasons of fallbacks."""
    example, got_args, want_args = [seeded(make) for _ in range(3)]
    reasons: list[str] = []
    remove = events.bus.subscribe(lambda e: reasons.append(e.data["reason"]) if e.name == "fallback" else None)
    try:
        want = outcome(fn, want_args)
        compiled = backend(graph_of(fn, example), example)
        got = outcome(compiled, got_args)
    finally:
        remove()
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert type(want) is type(got), f"eager {want!r}, compiled {got!r}"
        return reasons
    assert differences(got, want) == ""
    assert differences(got_args, want_args) == ""
    assert relations(got, got_args) == relations(want, want_args)
    assert [arg._version > 0 for arg in got_args] == [arg._version > 0 for arg in want_args]
    return reasons


def f32(*size: int) -> torch.Tensor:
    return torch.randn(size)


def scatter_through_strides(x):
    part = x.as_strided((2, 3), (1, 2))
    x[:, 1:].index_fill_(0, torch.tensor([1]), 0.5)
    return part.scatter_(0, torch.zeros(2, 3, dtype=torch.int64), 2).sum(0)


def view_chain(x):
    x = x.clone()
    x.view(2, 6)[:, 1:4].t().add_(1)
    return x


def write_base_read_view(x):
    y = x * 1
    v = y[1]
    y.mul_(2)
    return v + 1


def two_overlapping_views(x):
    y = x * 1
    a, b = y[:2], y[1:]
    a.add_(1)
    b.mul_(3)
    return y, a * 1


def write_input_view(x):
    x[0].zero_()
    return x.sum()


def write_input_with_holes(x):
    x.add_(1)
    return x.view(3, 2, 2) * 2


def write_transposed_input(x):
    x.mul_(2)
    return x.t().contiguous()


def transpose_in_place(x):
    y = x + 1
    y.t_()
    return y


def unsqueeze_then_write(x):
    y = x + 1
    v = y[0]
    y.unsqueeze_(0)
    y.mul_(2)
    return v, y


def views_of_intermediate(x):
    y = x + 1
    return y, y.t(), y[1:]


def views_of_hidden_intermediate(x):
    y = x + 1
    return y.t(), y[1:]


def same_tensor_twice(x):
    y = x + 1
    return y, y


def set_items(x):
    x[[0, 2]] = 5.0
    x[x > 0] = 0.0
    return x


def foreach(x, y):
    torch._foreach_add_([x, y], 1)
    return torch._foreach_mul([x, y], 2)


def foreach_of_negatives(x, y):
    z, w, v = torch.complex(x, y), x._neg_view(), y._neg_view()
    torch._foreach_add_([x, x, z, z], [w, w, z.conj(), z.conj()])
    torch._foreach_addcmul_([x, x], [x, x], [w, w], 0.5)
    torch._foreach_copy_([y, y], [v, v])
    return z.real


def copy_within(x):
    y = x * 1
    y[0].copy_(y[1])
    return y


def written_diagonal(x):
    y = x * 1
    y.diagonal().fill_(7)
    return y


def written_unfold(x):
    y = x * 1
    y.unfold(0, 2, 2).mul_(3)
    return y


def written_as_strided(x):
    y = x * 1
    y.as_strided((2, 2), (4, 1), 1).zero_()
    return y


def written_through_dtype(x):
    y = x * 1
    y.view(torch.int32).bitwise_xor_(1)
    return y


def written_real(x):
    y = torch.complex(x, x)
    y.real.mul_(2)
    return y


def written_split(x):
    y = x * 1
    first, second = y.split(2, 1)
    first.add_(1)
    second.zero_()
    y.unbind(0)[1].add_(1)
    y.chunk(2, 1)[0].mul_(2)
    return y


def written_literal(x):
    t = torch.tensor([1.0, 2.0])
    t.add_(x[:2])
    return t


def literals(x):
    return torch.tensor([1.0, 2.0]), torch.tensor(3) * x


def batch_norm_training(x, mean, var):
    return F.batch_norm(x, mean, var, training=True)


def random_draws(x):
    return torch.rand(3), x.clone().uniform_(), torch.randn_like(x), torch.bernoulli(x.sigmoid())


def unread_draw(x):
    torch.rand(3)
    return torch.rand(2)


def bernoulli_transposed(x):
    return x.t().clone().bernoulli_(0.3)


def autocast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, w), F.softmax(F.linear(x, w), -1), x @ w.t()


def assert_metadata(x):
    torch.ops.aten._assert_tensor_metadata(x, [3], None, torch.float32)
    return x + 1


COMPILED = {
    "view chain": (view_chain, lambda: [f32(3, 4)]),
    "write base, read view": (write_base_read_view, lambda: [f32(3, 4)]),
    "overlapping views": (two_overlapping_views, lambda: [f32(3, 4)]),
    "input written": (lambda x: x.add_(1), lambda: [f32(3, 4)]),
    "input written by view": (write_input_view, lambda: [f32(3, 4)]),
    "input with holes written": (write_input_with_holes, lambda: [torch.randn(3, 8)[:, :4]]),
    "transposed input written": (write_transposed_input, lambda: [torch.randn(3, 8).t()]),
    "inputs returned": (lambda x: (x, x, x + 1), lambda: [f32(3)]),
    "views of input returned": (lambda x: (x.t(), x[0], x.view(-1)), lambda: [f32(3, 4)]),
    "view of input with offset": (lambda x: x[1:], lambda: [torch.randn(9)[2:]]),
    "detach returned": (lambda x: x.detach(), lambda: [f32(3)]),
    "dtype view of input returned": (lambda x: x.view(torch.int32), lambda: [f32(3)]),
    "same tensor twice": (same_tensor_twice, lambda: [f32(3)]),
    "views of intermediate": (views_of_intermediate, lambda: [f32(3, 4)]),
    "views of hidden intermediate": (views_of_hidden_intermediate, lambda: [f32(3, 4)]),
    "t_": (transpose_in_place, lambda: [f32(3, 4)]),
    "unsqueeze_": (unsqueeze_then_write, lambda: [f32(3, 4)]),
    "out=": (lambda x, y: torch.add(x, 1, out=y), lambda: [f32(3, 4), f32(3, 4)]),
    "setitem": (set_items, lambda: [f32(3, 4)]),
    "index_put_": (
        lambda x: x.index_put_((torch.tensor([0, 0]),), torch.ones(4), accumulate=True),
        lambda: [f32(3, 4)],
    ),
    "foreach": (foreach, lambda: [f32(3), f32(4)]),
    "foreach of negatives": (foreach_of_negatives, lambda: [f32(3), f32(3)]),
    "copy_ with cast": (lambda x: torch.zeros(3, 4, dtype=torch.int32).copy_(x * 10), lambda: [f32(3, 4)]),
    "copy_ within": (copy_within, lambda: [f32(3, 4)]),
    "counter": (lambda n: n.add_(1), lambda: [torch.tensor(0)]),
    "diagonal": (written_diagonal, lambda: [f32(4, 4)]),
    "unfold": (written_unfold, lambda: [f32(4)]),
    "as_strided": (written_as_strided, lambda: [f32(3, 4)]),
    "as_strided of input with offset": (lambda x: x.as_strided((2,), (1,), 3) * 2, lambda: [torch.randn(10)[2:]]),
    "view as dtype": (written_through_dtype, lambda: [f32(3, 4)]),
    "real": (written_real, lambda: [f32(3, 4)]),
    "split, unbind, chunk": (written_split, lambda: [f32(3, 4)]),
    "transposed": (lambda x: (x.transpose(0, 1).mul_(2), x + 1), lambda: [f32(3, 4)]),
    "seen as complex": (lambda x: torch.view_as_complex(x).mul_(2j).real + x[:, 0], lambda: [f32(3, 2)]),
    "negated view": (lambda x: torch._neg_view(x).add_(2) + x, lambda: [f32(3, 4)]),
    "detach_": (lambda x: (x * 2).detach_() + 1, lambda: [f32(3)]),
    "copy of a literal": (lambda x: torch.ops.aten.lift_fresh_copy(x).add_(1) + x, lambda: [f32(3)]),
    "assertion on metadata": (assert_metadata, lambda: [f32(3)]),
    "literals": (literals, lambda: [f32(3)]),
    "literal written": (written_literal, lambda: [f32(3)]),
    "batch norm statistics": (batch_norm_training, lambda: [f32(4, 3, 2, 2), torch.zeros(3), torch.ones(3)]),
    "dropout": (lambda x: F.dropout(x, 0.4), lambda: [f32(30)]),
    "random draws": (random_draws, lambda: [f32(3)]),
    "unread draw": (unread_draw, lambda: [f32(3)]),
    "bernoulli_ transposed": (bernoulli_transposed, lambda: [f32(3, 50)]),
    "scatter through strides": (scatter_through_strides, lambda: [f32(4, 4)[1:]]),
    "sum in the dtype of its out": (
        lambda x: torch.sum(x * 3, 0, out=torch.empty(4, dtype=torch.int64)),
        lambda: [f32(4, 4)],
    ),
    "products in the dtype of their out": (
        lambda x: torch.cumprod(x * 3, 0, out=torch.empty(4, 4, dtype=torch.int32)),
        lambda: [f32(4, 4)],
    ),
    "memory with gaps written": (
        lambda x: (torch.empty_strided((3, 4), (8, 2)).copy_(x), x.new_empty_strided((3, 4), (1, 4)).fill_(1)),
        lambda: [f32(3, 4)],
    ),
    "window that slides": (lambda x: x[:, :-1].copy_(x[:, 1:]), lambda: [f32(33, 33)]),
    "write beside what is read": (lambda x: x[:, 1::2].mul_(x[:, ::2]), lambda: [f32(4, 32)]),
    "places beside what is read": (lambda x: x[:, :2].index_add_(0, torch.tensor([1]), x[:1, 2:]), lambda: [f32(4, 4)]),
    "autocast": (autocast_inside, lambda: [f32(3, 4), f32(5, 4)]),
}

REFUSED = {
    "expanded input written": (lambda x: x.add_(1), lambda: [torch.randn(3, 1).expand(3, 4)], "share memory"),
    "strides of a transposed input": (
        lambda x: x.as_strided((2,), (1,)).mul_(3) + x[:2, 0],
        lambda: [f32(3, 4).t()],
        "not contiguous",
    ),
    "part of overlapping strides": (
        lambda x: x.as_strided((2, 2), (1, 1))[0, 1].fill_(5) + x,
        lambda: [f32(3)],
        "share memory",
    ),
    "empty part of overlapping strides": (
        lambda x: x.as_strided((1, 2), (0, 0)).view(-1)[3:].sub_(1),
        lambda: [f32(3)],
        "share memory",
    ),
    "input transposed in place": (lambda x: x.t_(), lambda: [f32(3, 4)], "shape of an input"),
    "view of an input transposed in place": (lambda x: x.mT.t_() + 1, lambda: [f32(3, 4)], "version of an input"),
    "write over what is read later": (lambda x: x[:, 1:].add_(x[:, :-1]), lambda: [f32(33, 33)], "reads it elsewhere"),
    "copy over what is read later": (lambda x: x.t().copy_(x[:, :1]), lambda: [f32(33, 33)], "reads it elsewhere"),
    "strides of a negated view": (lambda x: x._neg_view().fill_diagonal_(2), lambda: [f32(4, 4)], "another dtype"),
    "bools as numbers": (lambda x: x.view(torch.uint8).add_(1), lambda: [torch.tensor([True, False])], "of bools"),
    "product over a factor": (lambda x: torch.mm(x[1:, 1:], x[:-1, :-1], out=x[1:, :-1]), lambda: [f32(5, 5)], "reads"),
    "resize_": (lambda x: (x * 1).resize_(2, 2), lambda: [f32(3, 4)], "storage"),
    "out= resized": (lambda x: torch.add(x, 1, out=torch.empty(0)), lambda: [f32(3, 4)], "resizes"),
    "promotion in place": (lambda x: x.add_(1.5), lambda: [torch.arange(4)], "RuntimeError"),
    "item": (lambda x: x.sum().item(), lambda: [f32(3)], "item()"),
    "nonzero": (lambda x: x.nonzero(), lambda: [f32(3)], "values"),
    "boolean index": (lambda x: x[x > 0], lambda: [f32(3)], "values"),
    "generator": (lambda x: x.clone().uniform_(generator=torch.Generator()), lambda: [f32(3)], "generator"),
}


@pytest.mark.parametrize("backend", [aot_eager, with_passes])
@pytest.mark.parametrize("name", COMPILED)
def test_equal_to_eager_without_fallback(name, backend):
    fn, make = COMPILED[name]
    with argand.config.patch(verify_ir=True, fallback_random=True):  # draws are compared with eager's
        assert compare(backend, fn, make) == []


@pytest.mark.parametrize("name", REFUSED)
def test_refused_graph_runs_eagerly_and_says_why(name):
    fn, make, text = REFUSED[name]
    reasons = compare(aot_eager, fn, make)
    assert len(reasons) == 1
    assert text in reasons[0]


def test_an_input_with_gaps_is_written_to_as_it_lies():
    x = f32(3, 8)[:, ::2]
    program = trace_inference(graph_of(lambda x: x.add_(1), [x]), [x])
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [torch.ops.aten.add.Tensor]


def test_written_input_that_shares_memory():
    def fn(x, y):
        x.add_(1)
        return y * 2

    def make():
        base = torch.arange(6.0)
        return [base[:4], base[2:]]

    assert not compare(aot_eager, fn, make)


def test_one_tensor_passed_twice_is_one_value():
    def fn(x, y):
        x.add_(1)
        return y * 2

    ours, eager = torch.arange(3.0), torch.arange(3.0)
    got = aot_eager(graph_of(fn, [ours, ours]), [ours, ours])(ours, ours)
    assert torch.equal(got, fn(eager, eager))
    assert torch.equal(ours, eager)


def test_alias_is_not_rebuilt_on_another_layout():
    """Strides replayed on a result laid out otherwise would show wrong elements: an error instead."""
    from argand.autograd import trace_inference

    program = trace_inference(graph_of(views_of_hidden_intermediate, [f32(3, 4)]), [f32(3, 4)])
    call = wrap(program, lambda x: (torch.empty_strided((3, 4), (1, 3)),))
    with pytest.raises(argand.errors.InternalError, match="strides"):
        call(f32(3, 4))


def _views_of_what_is_written(x, w):
    y = x * w
    z = y.t()
    flat = y.view(-1)
    flat[::3].clamp_(min=0)
    a, b = y.chunk(2, 1)
    return y, z, a, b


def _chunks_before_a_write(x, w):
    y = x * w
    z = y.t()
    a, b = y.chunk(2, 1)
    y.mul_(2)
    return y, z, a, b


@pytest.mark.parametrize("program", [_views_of_what_is_written, _chunks_before_a_write])
def test_views_returned_beside_what_they_view(program):
    """Autograd makes such a view again when it is asked for its formula; for a chunk it may refuse to."""
    made = []
    for run in (program, argand.compile(program, backend="aot_eager")):
        w = torch.arange(16.0).view(4, 4).requires_grad_()
        y, *views = run(torch.ones(4, 4), w)
        (grad,) = torch.autograd.grad(y.square().sum(), w)
        made.append([tensor.tolist() for tensor in (y, *views, grad)])
    assert made[1] == made[0]


VIEWS_OF_LITERALS = {
    "expanded": lambda x: (x + 1, torch.tensor(3.0).expand(3)),
    "stepped": lambda x: (x + 1, torch.tensor([1.0, 2.0, 3.0, 4.0])[::2]),
    "from the second": lambda x: (x + 1, torch.tensor([1.0, 2.0, 3.0])[1:]),
    "transposed": lambda x: (x + 1, torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", VIEWS_OF_LITERALS)
def test_returned_views_of_literals_lie_as_in_eager(name: str, backend: str) -> None:
    program, x = VIEWS_OF_LITERALS[name], torch.randn(3)
    compiled = argand.compile(program, backend=backend)
    for _ in range(2):
        want, got = program(x)[1], compiled(x)[1]
        assert torch.equal(want, got)
        assert (want.stride(), want.storage_offset()) == (got.stride(), got.storage_offset())
        got.untyped_storage().fill_(0)  # the next call's is another


FILLED = {
    "whole": lambda v: (v,),
    "a part": lambda v: (v[:1],),
    "turned, and whole": lambda v: (v.t(), v),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("results", FILLED)
def test_what_was_filled_from_an_argument_has_memory_of_its_own(
    results: str, requires_grad: bool, backend: str
) -> None:
    def program(x):
        v = x * 2
        v.copy_(x)
        return FILLED[results](v)

    made = []
    for run in (program, argand.compile(program, backend=backend)):
        x = torch.arange(4.0).view(2, 2).requires_grad_(requires_grad)
        made.append(relations(run(x), x))
    assert made[0] == made[1]
