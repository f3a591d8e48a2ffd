"""Loop programs with products of matrices, and what reads them: for tests of scheduling and of kernels."""

from __future__ import annotations

import torch
from loop_programs import Builder, softmax

aten = torch.ops.aten


def half(b, fn, *xs):
    """A pointwise loop that computes in float32 and stores the dtype of its operands."""
    dtype = b.buffers[xs[0].buffer].dtype

    def wide(o, *values):
        return o.to_dtype(fn(o, *[o.to_dtype(v, torch.float32) for v in values]), dtype)

    return b.pointwise(wide, *xs)


def add(o, x, y):
    return o.add(x, y)


def silu(o, x):
    return o.mul(x, o.sigmoid(x))


class Products:
    """Makes operands and products of one dtype."""

    def __init__(self, dtype, m=40, k=48, n=72):
        self.b, self.dtype, self.m, self.k, self.n = Builder(), dtype, m, k, n

    def input(self, *size):
        return self.b.input(*size, dtype=self.dtype)

    def mm(self, x=None, w=None, bias=False):
        x = x or self.input(self.m, self.k)
        w = w or self.input(self.n, self.k).permute(1, 0)
        size = (x.size[0], w.size[1])
        if bias:
            row = self.input(w.size[1])
            return self.b.extern(aten.addmm.default, row, x, w, size=size, dtype=self.dtype, out_variant="torch.addmm")
        return self.b.extern(aten.mm.default, x, w, size=size, dtype=self.dtype, out_variant="torch.mm")


def used(p, x):
    """A thin product, which needs `x`."""
    w = p.input(x.size[1], 3)
    return p.b.extern(aten.mm.default, x, w, size=(x.size[0], 3), dtype=p.dtype, out_variant="torch.mm")


def plain(p):
    return [p.mm()]


def activation(p):
    """In another shape than the product's."""
    return [half(p.b, silu, p.mm(bias=True).view(4, p.m // 4, p.n))]


def residual(p):
    return [half(p.b, add, p.mm(bias=True), p.input(p.m, p.n))]


def residual_that_dies(p):
    """The sum is written over the other operand."""
    other = half(p.b, silu, p.input(p.m, p.n))
    return [used(p, other), used(p, half(p.b, add, other, p.mm(bias=True)))]


def product_that_dies(p):
    """What is computed from the product is written over it."""
    return [used(p, half(p.b, silu, p.mm(bias=True)))]


def columns_of_a_row(p):
    """A row that is spread, and what differs by column."""
    row = p.input(1, p.n).expand(p.m, p.n)
    return [half(p.b, add, half(p.b, silu, p.mm()), row)]


def gated(p):
    """One kernel reads two products."""
    x = p.input(p.m, p.k)
    gate, up = p.mm(x), p.mm(x, bias=True)
    return [half(p.b, lambda o, g, u: o.mul(silu(o, g), u), gate, up)]


def needed_twice(p):
    """The product is a result too."""
    made = p.mm(bias=True)
    return [half(p.b, silu, made), made]


def heads(p):
    """The result is stored in another order."""
    made = p.mm().view(p.m, 4, p.n // 4).permute(1, 0, 2)
    return [half(p.b, silu, made)]


def wide_result(p):
    return [p.b.pointwise(lambda o, v: o.to_dtype(v, torch.float64), p.mm())]


def batched(p):
    x, w = p.input(3, p.m, p.k), p.input(3, p.n, p.k).permute(0, 2, 1)
    made = p.b.extern(aten.bmm.default, x, w, size=(3, p.m, p.n), dtype=p.dtype, out_variant="torch.bmm")
    return [half(p.b, silu, made)]


def rows_apart(p):
    """Operands are parts of larger tensors."""
    x = p.input(p.m, p.k + 5).narrow(1, 3, p.k)
    w = p.input(p.k, p.n + 2).narrow(1, 1, p.n)
    return [half(p.b, silu, p.mm(x, w))]


FUSED = (
    activation, residual, residual_that_dies, product_that_dies, columns_of_a_row, gated, needed_twice, heads, wide_result, batched,
    rows_apart,
)  # fmt: skip


def over_its_operand(p):
    """Square; the sum takes over the memory of the left operand."""
    x = half(p.b, silu, p.input(p.m, p.k))
    return [used(p, half(p.b, add, x, p.mm(x, p.input(p.k, p.k))))]


def mirrored(p):
    """Each result needs two elements of the product."""
    made = p.mm()
    left, right = made.narrow(1, 0, p.n // 2), made.narrow(1, p.n // 2, p.n // 2)
    return [half(p.b, add, left, right)]


def normalised(p):
    made = p.mm()
    wide = p.b.pointwise(lambda o, v: o.to_dtype(v, torch.float32), made)
    return [softmax(p.b, wide)]


ALONE = (plain, over_its_operand, mirrored, normalised)


# ----------------------------------------------------------------------- operands that the kernel may compute


def cast_weight(p):
    """A weight of another dtype, transposed."""
    w = p.b.pointwise(lambda o, v: o.to_dtype(v, p.dtype), p.b.input(p.n, p.k, dtype=torch.float64))
    return [half(p.b, silu, p.mm(w=w.permute(1, 0), bias=True))]


def both_operands(p):
    """Each in another shape than the product's."""
    x = half(p.b, lambda o, v: o.mul(v, o.constant(0.5, torch.float32)), p.input(4, p.m // 4, p.k))
    w = half(p.b, add, p.input(p.k, p.n), p.input(1, p.n).expand(p.k, p.n))
    return [p.mm(x.view(p.m, p.k), w)]


def operand_that_dies(p):
    """What it is computed from is written over, where the kernels are apart."""
    x = p.b.extern(aten.relu.default, p.input(p.m, p.k), size=(p.m, p.k), dtype=p.dtype)
    return [p.mm(half(p.b, silu, x))]


def batched_operand(p):
    x = half(p.b, silu, p.input(3, p.m, p.k))
    w = p.input(3, p.n, p.k).permute(0, 2, 1)
    return [p.b.extern(aten.bmm.default, x, w, size=(3, p.m, p.n), dtype=p.dtype, out_variant="torch.bmm")]


def part_of_an_operand(p):
    x = half(p.b, silu, p.input(p.m, p.k + 8))
    return [p.mm(x.narrow(1, 5, p.k))]


OPERANDS = (cast_weight, both_operands, operand_that_dies, batched_operand, part_of_an_operand)


def shared_operand(p):
    x = half(p.b, silu, p.input(p.m, p.k))
    return [p.mm(x), p.mm(x)]


def returned_operand(p):
    x = half(p.b, silu, p.input(p.m, p.k))
    return [p.mm(x), x]


def square(p):
    """One matrix is both operands."""
    x = half(p.b, silu, p.input(p.k, p.k))
    return [p.mm(x, x)]


def result_of_a_product(p):
    """The loop between two products belongs to the first."""
    return [p.mm(half(p.b, silu, p.mm(p.input(p.m, p.k), p.input(p.k, p.k))))]


MEMORY = (shared_operand, returned_operand, square, result_of_a_product)
