"""Hand-made loop programs for the scheduler's tests: a few lines each."""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import torch

from argand.graph.sizes.expr import ONE, ZERO, Const, Expr, Var, as_expr, sum_of
from argand.ir.interpret import interpret
from argand.ir.loops import Buffer, ExternNode, LoopBody, LoopNode, Origin, Program, TensorRef, statements_of
from argand.lower.recorder import Recorder
from argand.schedule import dump
from argand.schedule.fusion import forms
from argand.schedule.pipeline import schedule
from argand.schedule.reference import run_schedule
from argand.schedule.signature import signature
from argand.schedule.verify import verify

CPU = torch.device("cpu")


def strides(size):
    out, step = [], ONE
    for n in reversed(size):
        out.append(step)
        step = step * n
    return tuple(reversed(out))


class T:
    """A buffer (or a view of one) inside a `Builder`."""

    def __init__(self, builder, buffer, size, stride, offset=0):
        self.b, self.buffer = builder, buffer
        self.size, self.stride, self.offset = tuple(map(as_expr, size)), tuple(map(as_expr, stride)), as_expr(offset)

    def at(self, index):
        return sum_of([i * s for i, s in zip(index, self.stride)] + [self.offset])

    def permute(self, *dims):
        return T(self.b, self.buffer, [self.size[d] for d in dims], [self.stride[d] for d in dims], self.offset)

    def view(self, *size):
        return T(self.b, self.buffer, size, strides(tuple(map(as_expr, size))), self.offset)

    def expand(self, *size):
        stride = [ZERO if s is ONE and n != 1 else st for s, st, n in zip(self.size, self.stride, size)]
        return T(self.b, self.buffer, size, stride, self.offset)

    def narrow(self, dim, start, length):
        size = list(self.size)
        size[dim] = as_expr(length)
        return T(self.b, self.buffer, size, self.stride, self.offset + self.stride[dim] * start)

    @property
    def ref(self):
        return TensorRef(self.buffer, self.size, self.stride, self.offset)


class Builder:
    def __init__(self):
        self.buffers, self.nodes, self.inputs, self.count = {}, [], [], 0
        self.constants = {}

    def buffer(self, size, dtype=torch.float32, kind="temp", stride=None, name=None):
        name = name or (f"arg{len(self.inputs)}" if kind == "input" else f"buf{self.count}")
        size = tuple(map(as_expr, size))
        stride = tuple(map(as_expr, stride)) if stride else strides(size)
        self.buffers[name] = Buffer(name, dtype, CPU, size, stride, kind)
        if kind == "input":
            self.inputs.append(name)
        else:
            self.count += 1
        return T(self, name, size, stride)

    def input(self, *size, dtype=torch.float32):
        return self.buffer(size, dtype, "input")

    def load(self, ops, x, index):
        return ops.load(x.buffer, x.at(index), self.buffers[x.buffer].dtype)

    def pointwise(self, fn, *xs, out=None, name="pw", dtype=None):
        """`fn(ops, *values)` over xs, which have one shape."""
        size = xs[0].size
        zs = [Var(f"z{n}") for n in range(len(size))]
        ops = Recorder(dict(zip(zs, size)))
        ops.origin = Origin(f"{name}_{len(self.nodes)}", f"{name}(...)")
        value = fn(ops, *[self.load(ops, x, zs) for x in xs])
        out = out or self.buffer(size, value.dtype)
        ops.store(out.buffer, out.at(zs), value)
        self._node(ops, zs, size, (), (), out, name)
        return out

    def reduce(self, kind, x, dims, fn=None, post=None, extra=(), name=None, keepdim=False):
        """Reduce `fn(ops, value, *extra)` over dims."""
        name = name or kind
        kept = [d for d in range(len(x.size)) if d not in dims]
        zs = {d: Var(f"z{n}") for n, d in enumerate(kept)}
        rs = {d: Var(f"r{n}") for n, d in enumerate(dims)}
        index = [zs[d] if d in zs else rs[d] for d in range(len(x.size))]
        ops = Recorder({(zs[d] if d in zs else rs[d]): x.size[d] for d in range(len(x.size))})
        ops.origin = Origin(f"{name}_{len(self.nodes)}", f"{name}(...)")
        value = self.load(ops, x, index)
        more = [self.load(ops, e, index) for e in extra]
        if fn is not None:
            value = fn(ops, value, *more)
        result = ops.reduction(kind, value)
        if post is not None:
            result = post(ops, result)
        out = self.buffer([x.size[d] for d in kept], result.dtype)
        ops.store(out.buffer, out.at([zs[d] for d in kept]), result)
        kept_vars, red_vars = [zs[d] for d in kept], [rs[d] for d in dims]
        self._node(ops, kept_vars, [x.size[d] for d in kept], red_vars, [x.size[d] for d in dims], out, name)
        if keepdim:
            size = [ONE if d in dims else x.size[d] for d in range(len(x.size))]
            return T(self, out.buffer, size, strides(tuple(size)))
        return out

    def _node(self, ops, vars_, sizes, rvars, rsizes, out, name):
        body = LoopBody(tuple(vars_), tuple(sizes), tuple(rvars), tuple(rsizes), ops.statements)
        origins = tuple(dict.fromkeys(s.origin for s in ops.statements if s.origin))
        writers = [n for n in self.nodes if out.buffer in n.outputs]
        outputs, mutates = ((), (out.buffer,)) if writers else ((out.buffer,), ())
        self.nodes.append(LoopNode(f"op{len(self.nodes)}", body, outputs, origins, mutates))

    def extern(self, target, *args, size, dtype=torch.float32, out_variant=None):
        out = self.buffer(size, dtype)
        plain = tuple(a.ref if isinstance(a, T) else a for a in args)
        self.nodes.append(ExternNode(f"op{len(self.nodes)}", target, plain, {}, (out.buffer,), out_variant))
        return out

    def program(self, *outputs):
        refs = [o.ref if isinstance(o, T) else o for o in outputs]
        return Program(list(self.inputs), [], self.buffers, self.constants, self.nodes, refs)

    def example(self, seed=0):
        torch.manual_seed(seed)
        made = []
        for name in self.inputs:
            buffer = self.buffers[name]
            size = tuple(int(s) for s in buffer.size)
            t = torch.randn(size) if buffer.dtype.is_floating_point else torch.randint(0, 4, size)
            made.append(t.to(buffer.dtype))
        return made


def scan(b, kind, x, dim):
    """A cumulative sum or product of x."""
    zs = [Var(f"z{n}") for n in range(len(x.size) - 1)]
    index = [*zs[:dim], Var("r0"), *zs[dim:]]
    ops = Recorder(dict(zip(index, x.size)))
    ops.origin = Origin(f"cum{kind}_{len(b.nodes)}", f"cum{kind}(...)")
    value = ops.scan(kind, b.load(ops, x, index))
    out = b.buffer(x.size, value.dtype)
    ops.store(out.buffer, out.at(index), value)
    b._node(ops, zs, [n for d, n in enumerate(x.size) if d != dim], [Var("r0")], [x.size[dim]], out, f"cum{kind}")
    return out


def softmax(b, x, dim=-1):
    dim = dim % len(x.size)
    top = b.reduce("max", x, [dim], name="amax", keepdim=True).expand(*x.size)
    e = b.pointwise(lambda o, v, m: o.exp(o.sub(v, m)), x, top, name="exp")
    total = b.reduce("sum", e, [dim], keepdim=True).expand(*x.size)
    return b.pointwise(lambda o, v, s: o.truediv(v, s), e, total, name="div")


def layer_norm(b, x, weight, bias):
    last = len(x.size) - 1
    n = int(x.size[last])
    mean = b.reduce(
        "sum", x, [last], post=lambda o, v: o.mul(v, o.constant(1 / n, torch.float32)), name="mean", keepdim=True
    )
    mean = mean.expand(*x.size)
    rstd = b.reduce(
        "sum",
        x,
        [last],
        fn=lambda o, v, m: o.mul(o.sub(v, m), o.sub(v, m)),
        extra=(mean,),
        post=lambda o, v: o.unary(
            "rsqrt", o.add(o.mul(v, o.constant(1 / n, torch.float32)), o.constant(1e-5, torch.float32))
        ),
        name="rstd",
        keepdim=True,
    ).expand(*x.size)
    w, bi = (T(b, t.buffer, x.size, [ZERO] * last + [ONE]) for t in (weight, bias))
    return b.pointwise(
        lambda o, v, m, r, w_, b_: o.add(o.mul(o.mul(o.sub(v, m), r), w_), b_), x, mean, rstd, w, bi, name="norm"
    )


__all__ = ["CPU", "Builder", "Const", "Expr", "T", "layer_norm", "softmax"]


@contextlib.contextmanager
def each_for_itself():
    """Inside, no group is taken for one like another."""
    count = itertools.count()
    key_of = forms._key_of
    with mock.patch.object(forms, "_key_of", lambda *args: (key_of(*args), next(count))):
        yield


def assert_same_program(one, two):
    """Compare schedules, names, order and origins included."""
    assert dump.post_fusion_text(one) == dump.post_fusion_text(two)
    assert dump.order_text(one) == dump.order_text(two)
    assert [step.origins for step in one.steps] == [step.origins for step in two.steps]
    for mine, other in zip(one.kernels(), two.kernels(), strict=True):
        assert signature(mine) == signature(other)
        for stage, same in zip(mine.stages, other.stages, strict=True):
            assert stage.node == same.node
            origins, others = ([s.origin for s in statements_of(s.body)] for s in (stage, same))
            assert origins == others


def scheduled(builder, *outputs, targets):
    """The schedule of a program, verified, which computes what its unfused loops do."""
    program = builder.program(*outputs)
    plan = schedule(program, targets=targets)
    verify(plan)
    with each_for_itself():
        assert_same_program(plan, schedule(program, targets=targets))
    inputs = builder.example()
    for one, two in zip(interpret(program, inputs), run_schedule(plan, inputs), strict=True):
        torch.testing.assert_close(two, one, equal_nan=True)
    return plan
