"""As which tensors the host module holds buffers, where it has the choice.

Kernels take pointers, so a buffer between kernels and ATen calls can have the sizes that the calls want: each view that
need not be made saves a microsecond or more of the host's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from argand.codegen.host.library_products import DIRECT
from argand.codegen.host.memory import MemoryPlan
from argand.graph.metadata.strides import is_dense
from argand.graph.sizes.expr import Expr, as_int, product
from argand.ir.kernel import Schedule, memory_of
from argand.ir.loops import Buffer, ExternNode, TensorRef, tensor_refs

Layout = tuple[tuple[Expr, ...], tuple[Expr, ...]]
# Products that make the result themselves in less time than it takes to allocate it and hand it over.
_MAKING = frozenset(("torch.mm", "torch.addmm", "torch.bmm", "torch.baddbmm", "torch._C._nn.linear"))


def own_layout(buffer: Buffer) -> Layout:
    """Size and stride of a buffer's allocation."""
    return buffer.size, buffer.stride


def used_views(schedule: Schedule) -> Counter[TensorRef]:
    """How often ATen calls take each view of a buffer."""
    steps = [step for step in schedule.steps if isinstance(step, ExternNode) and step.out_variant != DIRECT]
    return Counter(ref for step in steps for ref in tensor_refs((step.args, step.kwargs)))


def made_by_products(schedule: Schedule, plan: MemoryPlan) -> frozenset[str]:
    """Buffers, allocated anew in each call, that the product which fills them returns: `out=` is not needed."""
    in_blocks = {name for block in plan.blocks for name in block.offsets}
    names = set()
    for step in schedule.steps:
        if isinstance(step, ExternNode) and step.out_variant in _MAKING and step.outputs[0] is not None:
            name = step.outputs[0]
            buffer = schedule.buffers[name]
            fresh = name in plan.allocated and name not in in_blocks and not schedule.in_host_memory(name)
            if fresh and buffer.stride == _contiguous(buffer.size):
                names.add(name)
    return frozenset(names)


def chosen_layouts(schedule: Schedule, plan: MemoryPlan, by_products: frozenset[str]) -> dict[str, Layout]:
    """Layouts of the buffers that are not held as they are described.

    Arguments:
        by_products: buffers that are as an ATen kernel returns them.
    """
    calls = [step for step in schedule.steps if isinstance(step, ExternNode) and step.out_variant != DIRECT]
    filled = {name for step in calls for name in step.outputs}
    free = [
        name
        for name in (*plan.allocated, *plan.same_as)
        if not schedule.in_host_memory(name)
        and name not in by_products
        and name not in filled
        and not plan.in_arena(memory_of(plan.same_as, name))
    ]
    if not free:
        return {}
    wanted: dict[str, Counter[Layout]] = {}
    outputs = tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations]))
    for ref, count in (*used_views(schedule).items(), *((ref, 1) for ref in outputs)):
        if _is_whole(ref, schedule.buffers[ref.buffer]):
            wanted.setdefault(ref.buffer, Counter())[ref.size, ref.stride] += count
    layouts: dict[str, Layout] = {}
    for name in free:
        buffer = schedule.buffers[name]
        taken = plan.same_as.get(name)
        votes = wanted.get(name, Counter())
        before = layouts.get(taken, own_layout(schedule.buffers[taken])) if taken is not None else None
        if before is not None and _same_elements(schedule.buffers[str(taken)], buffer):
            if not votes or votes[before] == max(votes.values()):
                layouts[name] = before
                continue
        if votes:
            best = max(votes.values())
            own = own_layout(buffer)
            layouts[name] = own if votes[own] == best else next(one for one, count in votes.items() if count == best)
    return {name: layout for name, layout in layouts.items() if layout != own_layout(schedule.buffers[name])}


def _is_whole(ref: TensorRef, buffer: Buffer) -> bool:
    """Whether a view shows every element of a buffer once."""
    if ref.dtype not in (None, buffer.dtype) or as_int(ref.offset) != 0:
        return False
    if product(ref.size) is not product(buffer.size):
        return False
    return _dense(ref.size, ref.stride) and _dense(buffer.size, buffer.stride)


def _same_elements(one: Buffer, two: Buffer) -> bool:
    same = one.dtype is two.dtype and product(one.size) is product(two.size)
    return same and _dense(one.size, one.stride) and _dense(two.size, two.stride)


def _dense(size: tuple[Expr, ...], stride: tuple[Expr, ...]) -> bool:
    numbers = [as_int(each) for each in (*size, *stride)]
    if None not in numbers:
        return is_dense(tuple(map(int, numbers[: len(size)])), tuple(map(int, numbers[len(size) :])))  # type: ignore[arg-type]
    return stride == _contiguous(size)


def _contiguous(size: Iterable[Expr]) -> tuple[Expr, ...]:
    sizes = tuple(size)
    return tuple(product(sizes[place + 1 :]) for place in range(len(sizes)))
