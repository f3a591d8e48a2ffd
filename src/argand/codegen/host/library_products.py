"""Products that a host module hands to the GPU's library itself (`gpu.operators.blas`): sizes known, 16-bit floats."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import torch

from argand.graph.sizes.expr import ONE, ZERO, as_int
from argand.ir.kernel import Schedule
from argand.ir.loops import Buffer, ExternNode, TensorRef
from argand.quick_dataclasses import dataclass

DIRECT = "direct_product"
LOADER = "from argand.runtime.gpu.operators.blas import load_products"
_MULTIPLE = 8  # elements: of 16 bits, as many as the library's fast kernels take at a time
_OPS = {
    "torch.mm": "aten.mm.default",
    "torch.addmm": "aten.addmm.default",
    "torch._addmm_activation": "aten._addmm_activation.default",
}
_DTYPES = (torch.float16, torch.bfloat16)
Literal = tuple[Any, ...]  # of `ProductSpec`, in order


def choose_direct(schedule: Schedule) -> int:
    """Send products to the library where the device's target wants that; returns how many."""
    changes = 0
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternNode) and literal_of(step, schedule) is not None:
            schedule.steps[number] = replace(step, out_variant=DIRECT)
            changes += 1
    return changes


def literal_of(node: ExternNode, schedule: Schedule) -> Literal | None:
    """What `ProductSpec` takes; None for calls that stay ATen's."""
    name = node.outputs[0] if node.outputs else None
    if name is None or _OPS.get(node.out_variant or "", "") != str(node.target):
        return None
    activated = node.out_variant == "torch._addmm_activation"
    if set(node.kwargs) != ({"use_gelu"} if activated else set()):
        return None
    target = schedule.targets.get(schedule.buffers[name].device)
    return _literal(node, schedule.buffers[name], schedule) if target is not None and target.direct_products else None


def _literal(node: ExternNode, result: Buffer, schedule: Schedule) -> Literal | None:
    refs = [ref for ref in node.args if isinstance(ref, TensorRef)]
    if len(refs) != len(node.args) or result.dtype not in _DTYPES:
        return None
    buffers = [schedule.buffers[ref.buffer] for ref in refs]
    if any(each.dtype is not result.dtype or each.device != result.device for each in buffers):
        return None
    if any(ref.dtype not in (None, result.dtype) or ref.offset is not ZERO for ref in refs):
        return None
    *bias, left, right = refs
    rows, terms, columns = (as_int(size) for size in (*left.size, right.size[1]))
    if rows is None or terms is None or columns is None or min(rows, terms, columns) < _MULTIPLE:
        return None
    if bias and (len(bias[0].size) != 1 or bias[0].stride[0] is not ONE or as_int(bias[0].size[0]) != columns):
        return None
    strides = _stride(left), _stride(right)
    if None in strides or columns % _MULTIPLE or tuple(map(as_int, result.stride)) != (columns, 1):
        return None
    literal = rows, columns, terms, result.dtype, strides[0], strides[1], bool(bias)
    return (*literal, "gelu" if node.kwargs["use_gelu"] else "relu") if node.kwargs else literal


def _stride(ref: TensorRef) -> tuple[int, int] | None:
    """The strides of a matrix whose rows, or columns, are contiguous and begin at multiples of 16 bytes."""
    outer, inner = map(as_int, ref.stride)
    height, width = map(as_int, ref.size)
    if None in (outer, inner, height, width):
        return None
    for along, step, length in ((inner, outer, width), (outer, inner, height)):
        if along == 1 and int(step or 0) >= int(length or 0) and int(step or 0) % _MULTIPLE == 0:
            return int(outer or 0), int(inner or 0)
    return None


@dataclass(slots=True)
class DirectText:
    """The products of a module, by device."""

    tables: dict[torch.device, dict[Literal, str]] = field(default_factory=dict)

    def name(self, device: torch.device, literal: Literal) -> str:
        """The name by which a product is called."""
        table = self.tables.setdefault(device, {})
        count = sum(map(len, self.tables.values()))
        return table.setdefault(literal, f"product{count}")

    def workspace(self, device: torch.device) -> str:
        """The name of a device's workspace."""
        return f"workspace{_suffix(device)}"

    def loading(self) -> list[str]:
        """Lines that prepare the products."""
        lines = []
        for device, table in self.tables.items():
            end = _suffix(device)
            lines += [
                "# name: rows, columns, terms, dtype, strides of left and of right, whether a row is added, activation"
            ]
            lines += [f"products{end} = {{", *(f"    {name!r}: {literal!r}," for literal, name in table.items()), "}"]
            names = ", ".join(table.values())
            lines += [f"[{names}], workspace_bytes{end} = load_products(products{end}, {str(device)!r})", ""]
        return lines

    def take(self, device: torch.device, arena: str) -> list[str]:
        """Lines of `call` that get the workspace."""
        end = _suffix(device)
        return [f"workspace{end} = {arena}.workspace(workspace_bytes{end})"] if device in self.tables else []


def _suffix(device: torch.device) -> str:
    return "_" + str(device).replace(":", "_")


def operands(node: ExternNode) -> list[Any]:
    """The references of a call in the order in which products take them: left, right, bias."""
    *bias, left, right = node.args
    return [left, right, *bias]
