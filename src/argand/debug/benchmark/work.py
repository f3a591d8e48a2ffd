"""What a compiled graph's steps do in one run: bytes that move to or from memory, and floating point operations."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from argand.codegen.host.calls import as_linear
from argand.graph.sizes.expr import Expr, Var, evaluate
from argand.graph.trees import mapped
from argand.ir.kernel import KernelPlan, Schedule
from argand.ir.loops import Buffer, ExternNode, LoopBlock, LoopBody, TensorRef, Value, tensor_refs
from argand.ir.operations import BINARY, UNARY
from argand.quick_dataclasses import dataclass

_ARITHMETIC = frozenset((*UNARY, *BINARY))
_UNKNOWN_SIZE = 64  # of a symbol without a hint


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of a kernel or of a library call does.

    Arguments:
        bytes: read from and written to memory, each element once.
        flops: floating point operations; None where that is not known.
        fused: names of the ATen operations that it computes.
    """

    bytes: int
    flops: int | None
    fused: tuple[str, ...] = ()


def _number(expr: Expr | int, hints: Mapping[str, int]) -> int:
    return int(evaluate(expr, defaultdict(lambda: _UNKNOWN_SIZE, hints)))


def _elements(sizes: Iterable[Expr], hints: Mapping[str, int]) -> int:
    count = 1
    for size in sizes:
        count *= _number(size, hints)
    return count


def kernel_work(plan: KernelPlan, hints: Mapping[str, int]) -> Work:
    """Of one run of a fused kernel; `hints` are the values of size symbols."""
    if plan.segments:
        return _segments_work(plan, hints)
    outer = {var.name: _number(size, hints) for var, size in plan.outer}
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    flops = 0
    for stage in plan.stages:
        count = _Stage(stage.body, outer, hints)
        flops += count.flops
        for buffer, elements in count.loads.items():
            if buffer not in written:  # what this kernel has stored before is in the cache
                read[buffer] = max(read.get(buffer, 0), sum(elements.values()))
        for buffer, elements in count.stores.items():
            written[buffer] = max(written.get(buffer, 0), sum(elements.values()))
    if plan.product is not None:
        batch, rows, columns, inner = plan.product.sizes
        flops += 2 * batch * rows * columns * inner
        operands = (plan.product.left, plan.product.right, plan.product.bias)
        read.update(
            {ref.buffer: _elements(plan.buffers[ref.buffer].size, hints) for ref in operands if ref is not None}
        )
    total = 0
    for name in (*plan.inputs, *plan.outputs):
        whole = _elements(plan.buffers[name].size, hints)
        moved = min(read.get(name, 0), whole) + min(written.get(name, 0), whole)
        total += moved * int(plan.buffers[name].dtype.itemsize)
    return Work(
        total, flops, tuple(dict.fromkeys(_operation(origin.fx_code, origin.fx_node) for origin in plan.origins))
    )


def _segments_work(plan: KernelPlan, hints: Mapping[str, int]) -> Work:
    works = [kernel_work(plan.of_segment(one), {**hints, **one.numbers}) for one in plan.segments]
    return Work(sum(work.bytes for work in works), sum(work.flops or 0 for work in works), works[0].fused)


def _operation(code: str, node: str) -> str:
    """ "mul" for `mul_3: "f32[8]" = torch.ops.aten.mul.Tensor(...)`; the node's name where the code says nothing."""
    head, separator, tail = code.partition("aten.")
    return tail.split(".")[0].split("(")[0] if separator and head else node.rstrip("0123456789").rstrip("_")


class _Stage:
    """Counts the work of one loop nest.

    Attributes:
        loads, stores: elements of each buffer that each of its index expressions reaches.
        flops: arithmetic on floating point numbers.
    """

    def __init__(self, body: LoopBody, outer: Mapping[str, int], hints: Mapping[str, int]) -> None:
        self.extents = dict(outer)
        for var, size in zip((*body.vars, *body.reduction_vars), (*body.sizes, *body.reduction_sizes)):
            self.extents[var.name] = _number(size, hints)
        self.inner = {var.name for var in body.reduction_vars}
        self.points = 1
        for name, extent in self.extents.items():
            self.points *= 1 if name in self.inner else extent
        self.rounds = 1
        for name in self.inner:
            self.rounds *= self.extents[name]
        self.loads: dict[str, dict[Any, int]] = {}
        self.stores: dict[str, dict[Any, int]] = {}
        self.depends: dict[int, frozenset[str]] = {}
        self.flops = 0
        self._visit(body.statements)

    def _visit(self, statements: Iterable[Value]) -> None:
        for value in statements:
            for arg in value.args:
                if isinstance(arg, LoopBlock):
                    self._visit(arg.statements)
            self._count(value)

    def _count(self, value: Value) -> None:
        names = frozenset[str]().union(*(self._names(arg) for arg in value.args))
        inside = bool(names & self.inner)
        times = self.points * (self.rounds if inside else 1)
        if value.op in ("load", "store"):
            table = self.loads if value.op == "load" else self.stores
            index = value.args[1]
            table.setdefault(value.args[0], {})[index] = self._range(self._names(index))
        floating = value.dtype.is_floating_point or value.dtype.is_complex
        if floating and (value.op in _ARITHMETIC or value.op == "reduction"):
            self.flops += times
        self.depends[value.id] = names - self.inner if value.op == "reduction" else names

    def _range(self, names: frozenset[str]) -> int:
        count = 1
        for name in names:
            count *= self.extents.get(name, 1)
        return count

    def _names(self, arg: Any) -> frozenset[str]:
        """Loop variables on which an argument depends."""
        if isinstance(arg, Value):
            return self.depends.get(arg.id, frozenset())
        if isinstance(arg, LoopBlock):
            return self._names(arg.result)
        if isinstance(arg, Expr):
            names: set[str] = set()
            for atom in arg.free:
                if isinstance(atom, Var) and atom.name in self.extents:
                    names.add(atom.name)
                elif isinstance(atom, Var) and atom.name[1:].isdigit():  # i<id>: the value of an indirect statement
                    names |= self.depends.get(int(atom.name[1:]), frozenset())
            return frozenset(names)
        if isinstance(arg, (tuple, list)):
            return frozenset[str]().union(*(self._names(item) for item in arg))
        return frozenset()


def extern_work(node: ExternNode, buffers: Mapping[str, Buffer], hints: Mapping[str, int]) -> Work:
    """Of one call of a library function."""

    def of(ref: TensorRef) -> int:
        dtype = ref.dtype or buffers[ref.buffer].dtype
        strided = [size for size, stride in zip(ref.size, ref.stride) if _number(stride, hints) != 0]
        return _elements(strided, hints) * int(dtype.itemsize)

    total = sum(of(ref) for ref in {*tensor_refs((node.args, node.kwargs))})
    shape: tuple[int, ...] = ()
    for number, name in enumerate(node.outputs):
        if name is not None:
            size = tuple(_number(e, hints) for e in buffers[name].size)
            shape = size if number == 0 else shape
            total += _elements(buffers[name].size, hints) * int(buffers[name].dtype.itemsize)
    args, kwargs = (_plain(value, hints) for value in (node.args, node.kwargs))
    flops = flops_of(node.target, args, kwargs, shape)
    if flops is None:
        flops = _pointwise_flops(profile_name(node.target), args, shape)
    return Work(total, flops, (_operation(str(node.target), node.name),))


def _pointwise_flops(name: str, args: Any, shape: tuple[int, ...]) -> int | None:
    """Of a library's product or convolution with something done to its result, as (input, weight, ...)."""
    if not name.endswith(("_linear_pointwise", "_convolution_pointwise", "_mkl_linear")) or len(args) < 2:
        return None
    inner = args[0][-1:] if "linear" in name else args[1][1:]
    return int(2 * math.prod(shape) * math.prod(inner))


def _plain(value: Any, hints: Mapping[str, int]) -> Any:
    """An argument as flop formulas take it: shapes in place of tensors."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, TensorRef):
            return tuple(_number(size, hints) for size in leaf.size)
        return _number(leaf, hints) if isinstance(leaf, Expr) else leaf

    return mapped(value, plain)


def flops_of(target: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """Floating point operations of an ATen call that torch has a formula for; None for every other.

    Arguments:
        target: the operator.
        args, kwargs: its arguments, tensors or their shapes.
        result: what it returned, or the shape of the first tensor of that.
    """
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(getattr(target, "overloadpacket", None))
    if formula is None:
        return None
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except Exception:  # a formula that does not know an argument: no figure is better than none of the others
        return None


@functools.cache
def library_names() -> frozenset[str]:
    """Names of the operations that do what `flops_of` knows: matrix products, convolutions, attention."""
    from torch.utils.flop_counter import flop_registry

    names = {str(packet) for packet in flop_registry if isinstance(packet, torch._ops.OpOverloadPacket)}
    more = ("linear", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")
    return frozenset({name.removeprefix("aten.") for name in names}.union(more))


def is_library(name: str) -> bool:
    """Whether the profiler's name of an operation is that of a library's product, convolution or attention."""
    space, _, short = name.rpartition("::")
    return short in library_names() or "scaled_dot_product" in short or space in ("mkldnn", "mkl", "cudnn")


@dataclass(slots=True)
class GraphWork:
    """The steps of one compiled graph.

    Arguments:
        kernels: by the name in profiles, `graph_0_cpp_fused_add_0`.
        calls: work of every library call, by the name in profiles, `aten::mm`.
    """

    kernels: dict[str, Work]
    calls: dict[str, list[Work]]


def graph_work(graph: str, schedule: Schedule) -> GraphWork:
    """What one run of a compiled graph does; `graph` is how names of its kernels begin ("graph_0")."""
    work = GraphWork({}, {})
    for step in schedule.steps:
        if isinstance(step, KernelPlan):
            name = f"{graph}_{step.name}"
            if name not in work.kernels:
                work.kernels[name] = kernel_work(step, schedule.hints)
            continue
        name = "aten::linear" if as_linear(step, schedule.buffers) is not None else profile_name(step.target)
        work.calls.setdefault(name, []).append(extern_work(step, schedule.buffers, schedule.hints))
    return work


def profile_name(target: Any) -> str:
    """How torch's profiler calls an operator: `aten::mm`."""
    schema = getattr(target, "_schema", None)
    return str(schema.name) if schema is not None else getattr(target, "__name__", str(target))
