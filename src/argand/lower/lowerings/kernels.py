"""Ops that are meant to run as ATen kernels: what they do is worth a library."""

from __future__ import annotations

import torch

from argand.graph.operators.aten_names import of_aten
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
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default, aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_cudnn_attention_backward.default, device_ops().to_device, ctc_ops().ctc_losses,
    ctc_ops().ctc_gradients,
)  # fmt: skip

NO_LOOPS = (
    "mv sort sort.stable topk _fft_r2c _fft_c2r _fft_c2c linalg_cholesky_ex linalg_solve_triangular cholesky_solve "
    "cholesky_inverse _linalg_solve_ex linalg_inv_ex linalg_qr _linalg_svd _linalg_eigh linalg_eig linalg_matrix_exp "
    "linalg_lu_factor_ex linalg_lu_solve linalg_lu _linalg_det _linalg_slogdet triangular_solve "
    "_assert_async _assert_async.msg _linalg_check_errors"
)
"""Names of operators (overloads other than the default behind a dot): what they do is no loop over elements. The last
ones raise, or compute nothing."""

for _op in of_aten(NO_LOOPS):
    REGISTRY.add_kernel(_op, ExternKernel())
for _op, _name in OUT_VARIANTS.items():
    REGISTRY.add_kernel(_op, ExternKernel(_name))
for _op in PLAIN:
    REGISTRY.add_kernel(_op, ExternKernel())
