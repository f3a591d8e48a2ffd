"""Elementwise loops: broadcasting, and promotion of operands as ATen's TensorIterator does it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.sizes.expr import ONE, ZERO, Expr
from argand.graph.sizes.symbolic import MetaTensor, SymbolicTensor, contiguous_meta
from argand.ir.loops import Value
from argand.lower.context import BROADCAST_FACTOR, LOOP_DTYPES, Context, math_dtype
from argand.lower.layout import stride_order
from argand.lower.ops import Number
from argand.lower.recorder import Recorder
from argand.lower.registry import NoLowering
from argand.lower.tensor import Index, Tensor

Operand = Tensor | Number | Expr
Operation = Callable[..., Value]
Read = Callable[[Recorder, Index], Value]


def pointwise(
    ctx: Context,
    operation: Operation,
    operands: Sequence[Operand],
    *,
    common: torch.dtype | None = None,
    cost: int = 1,
    exact: Sequence[int] = (),
    keep: Sequence[int] = (),
    val: MetaTensor | None = None,
) -> Tensor:
    """The lazy tensor `operation(ops, *operands)`, broadcast to the node's shape.

    Arguments:
        operation: called with the recorder and one Value per operand, in the dtype of computation.
        operands: tensors, and numbers.
        common: dtype that operands are promoted to (default: the result's dtype). Bfloat16 and float16 are then
            computed in float32, and the result is rounded.
        cost: of the operation, in additions.
        exact: positions of operands of which a number or 0-d tensor is not rounded to `common` first.
        keep: positions of operands that keep their own dtype (masks).
        val: metadata of the result (default: the node's).
    """
    meta = ctx.val if val is None else val
    common = common or meta.dtype
    if common not in LOOP_DTYPES:
        raise NoLowering(f"loops do not compute with {common}")
    result_dtype: torch.dtype = meta.dtype
    size = ctx.sizes(meta.shape)
    once = _without_repeats(ctx, operands, exact, meta)
    if once is not None:
        few, part = once
        repeated = pointwise(ctx, operation, few, common=common, cost=cost, exact=exact, keep=keep, val=part)
        result = pointwise(ctx, lambda ops, a: a, [repeated], val=meta, cost=0)
        result.repeated = repeated
        return result
    reads = [
        reader(ctx, operand, size, None if position in keep else common, position in exact)
        for position, operand in enumerate(operands)
    ]
    inputs = [operand for operand in operands if isinstance(operand, Tensor)]
    split = common_split(ctx, inputs, len(size))

    def load(ops: Recorder, index: Index) -> Value:
        values = [read(ops, index) for read in reads]
        return ops.to_dtype(operation(ops, *values), result_dtype)

    result = ctx.lazy(load, inputs, cost=cost, val=meta, keeps_splits=True)
    result.split = split
    return result


def _without_repeats(
    ctx: Context, operands: Sequence[Operand], exact: Sequence[int], meta: MetaTensor
) -> tuple[list[Operand], MetaTensor] | None:
    """Operands and metadata of what an operation on repeated tensors repeats: it is computed once.

    None where that gains nothing: where no loop but the innermost would go over the repeats, code generation sees it.
    """
    few = [x.repeated if isinstance(x, Tensor) and x.repeated is not None else x for x in operands]
    target = ctx.targets(ctx.device)
    if all(map(operator.is_, few, operands)) or ctx.inline or (target is not None and not target.host_memory):
        return None
    size = list(ctx.sizes(meta.shape))
    part: list[Expr] = [ONE] * len(size)
    for position, x in enumerate(few):
        if not isinstance(x, Tensor):
            continue
        if x.ndim == 0 and position in exact and x is not operands[position]:
            return None  # a number there is not rounded
        for dim, extent in enumerate(x.size):
            if extent != 1:
                part[len(size) - x.ndim + dim] = extent
    order = stride_order(tuple(size), ctx.sizes(meta.stride()), ctx.hints)
    inner = [dim for dim in order if size[dim] != 1][-1:]
    if not inner or part[inner[0]] == 1:
        return None
    if ctx.hint(_ratio(tuple(size), tuple(part), 0)) < BROADCAST_FACTOR:
        return None
    return few, contiguous_meta(part, meta.dtype)


def common_split(ctx: Context, inputs: Sequence[Tensor], ndim: int) -> tuple[int, Index | None] | None:
    """Where the parts of the inputs meet in the result; inputs that disagree are stored."""
    common: tuple[int, Index | None] | None = None
    for x in inputs:
        if x.split is None:
            continue
        shifted = (x.split[0] + ndim - x.ndim, x.split[1])
        if common is None:
            common = shifted
        elif common != shifted:
            ctx.realise(x)
    return common


def reader(
    ctx: Context, operand: Operand, size: tuple[Expr, ...], common: torch.dtype | None, exact: bool = False
) -> Read:
    """How an operand is read at an index into `size`, promoted to `common` (None: as it is)."""
    if isinstance(operand, Expr):
        expr = operand
        return lambda ops, index: symbolic_number(ctx, ops, expr, common, exact)
    if not isinstance(operand, Tensor):
        return constant_reader(operand, common, exact)
    place = broadcaster(ctx, operand, size)
    if common is None:
        return lambda ops, index: operand.load(ops, place(index))
    math = math_dtype(common)
    if operand.dtype is math or (exact and operand.ndim == 0) or operand.dtype is common:
        return lambda ops, index: ops.to_dtype(operand.load(ops, place(index)), math)
    promoted = common  # for the closure: not None
    return lambda ops, index: ops.to_dtype(ops.to_dtype(operand.load(ops, place(index)), promoted), math)


def symbolic_number(ctx: Context, ops: Recorder, expr: Expr, common: torch.dtype | None, exact: bool = False) -> Value:
    """A number that is known when the kernel is called, as ATen holds it when it meets tensors of `common`."""
    dtype = common or (torch.get_default_dtype() if expr in ctx.floats else torch.int64)
    wide = ops.index_expr(expr, torch.int64)
    if expr in ctx.floats:
        wide = ops.bitcast(wide, torch.float64)
    return ops.to_dtype(wide if exact else ops.to_dtype(wide, dtype), math_dtype(dtype))


def constant_reader(number: Any, common: torch.dtype | None, exact: bool = False) -> Read:
    """A Python number as an operand."""
    if not isinstance(number, (int, float, bool)):
        raise NoLowering(f"an operand of type {type(number).__name__}")
    value = number_in(number, common or torch.get_default_dtype(), exact)
    dtype = math_dtype(common or torch.get_default_dtype())
    return lambda ops, index: ops.constant(value, dtype)


def number_in(number: Number, dtype: torch.dtype, exact: bool = False) -> Number:
    """`number` as ATen holds it when it meets tensors of `dtype`."""
    if dtype is torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        if exact or math_dtype(dtype) is dtype:
            return float(number)
        return float(torch.tensor(float(number), dtype=dtype))
    return int(torch.tensor(number).to(dtype)) if not isinstance(number, bool) else int(number)


def broadcaster(ctx: Context, x: Tensor, size: tuple[Expr, ...]) -> Callable[[Index], Index]:
    """Maps an index into `size` to one into `x`, which broadcasts to it.

    Raises:
        NoLowering: sizes that are not known to be equal: eager's kernel judges.
    """
    if x.size == size:
        return lambda index: index
    lead = len(size) - len(x.size)
    if lead < 0 or any(extent is not size[lead + dim] and extent != 1 for dim, extent in enumerate(x.size)):
        raise NoLowering(f"a tensor of size {x.size} where {size} is asked for")
    if x.ref is None:
        repeated = ctx.hint(_ratio(size, x.size, lead))
        ctx.before_broadcast(x, repeated)
    kept = [lead + dim if extent is size[lead + dim] else -1 for dim, extent in enumerate(x.size)]
    return lambda index: tuple([index[dim] if dim >= 0 else ZERO for dim in kept])


def _ratio(size: tuple[Expr, ...], small: tuple[Expr, ...], lead: int) -> Expr:
    """How many elements of `size` read one element of `small`."""
    ratio: Expr = ZERO + 1
    for dim, extent in enumerate(size):
        if dim < lead or small[dim - lead] is not extent:
            ratio = ratio * extent
    return ratio


def result_type(ctx: Context, *positions: int) -> torch.dtype:
    """The dtype that the node's arguments at `positions` promote to."""
    node = ctx.node
    if node is None:
        raise NoLowering("no node to read arguments from")
    operands = [_meta_of(ctx, node.args[position]) for position in positions]
    if len(operands) == 1:
        return (
            operands[0].dtype if isinstance(operands[0], torch.Tensor) else torch.result_type(operands[0], operands[0])
        )
    dtype = torch.result_type(operands[0], operands[1])
    for other in operands[2:]:
        dtype = torch.promote_types(dtype, torch.result_type(torch.empty(1, dtype=dtype), other))
    return dtype


def _meta_of(ctx: Context, arg: Any) -> Any:
    if isinstance(arg, fx.Node):
        val = arg.meta["val"]
        return val.example if isinstance(val, SymbolicTensor) else val
    if isinstance(arg, Expr):
        return 1.0 if arg in ctx.floats else 1
    return arg


def unary_op(name: str) -> Operation:
    """`ops.<name>(a)` as an operation."""
    return lambda ops, a: ops.unary(name, a)


def binary_op(name: str) -> Operation:
    """`ops.<name>(a, b)` as an operation."""
    return lambda ops, a, b: ops.binary(name, a, b)
