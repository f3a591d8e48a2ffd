"""Ops that are meant to run as ATen kernels: what they do is worth a library."""

from __future__ import annotations

import torch

from argand.graph.operators.ctc_ops import ctc_ops
from argand.graph.operators.device_ops import device_ops
from argand.lower.registry import REGISTRY, ExternKernel

aten = torch.ops.aten

# op -> the callable that takes `out=`, where there is one
OUT_VARIANTS = {
    aten.mm.default: "torch.mm",
    aten.addmm.default: "torch.addmm",
    aten.bmm.default: "torch.bmm",
    aten.baddbmm.default: "torch.baddbmm",
}
PLAIN = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
    device_ops().to_device,
    ctc_ops().ctc_losses,
    ctc_ops().ctc_gradients,
)

for _op, _name in OUT_VARIANTS.items():
    REGISTRY.add_kernel(_op, ExternKernel(_name))
for _op in PLAIN:
    REGISTRY.add_kernel(_op, ExternKernel())
