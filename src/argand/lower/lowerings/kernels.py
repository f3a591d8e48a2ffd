"""Ops that are meant to run as ATen kernels: what they do is worth a library."""

from __future__ import annotations

import torch

from argand.graph.operators.aten_names import of_aten
from argand.graph.operators.ctc_ops import ctc_ops
from argand.graph.operators.device_ops import device_ops
from argand.graph.operators.jagged_ops import jagged_ops
from argand.lower.context import Context
from argand.lower.lowerings.pointwise import refuse
from argand.lower.registry import REGISTRY, ExternKernel, lowers
from argand.lower.tensor import Tensor

aten = torch.ops.aten

# op -> the callable that takes `out=`, where there is one
OUT_VARIANTS = {
    aten.mm.default: "torch.mm",
    aten.bmm.default: "torch.bmm",
    aten.baddbmm.default: "torch.baddbmm",
}
PLAIN = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default, aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_cudnn_attention_backward.default, device_ops().to_device, ctc_ops().ctc_losses,
    jagged_ops().jagged_attention, jagged_ops().jagged_attention_backward,
)  # fmt: skip

NO_LOOPS = (
    "mv sort sort.stable topk _fft_r2c _fft_c2r _fft_c2c linalg_cholesky_ex linalg_solve_triangular cholesky_solve "
    "cholesky_inverse _linalg_solve_ex linalg_inv_ex linalg_qr _linalg_svd _linalg_eigh linalg_eig linalg_matrix_exp "
    "linalg_lu_factor_ex linalg_lu_solve linalg_lu _linalg_det _linalg_slogdet triangular_solve "
    "_standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad poisson binomial randperm "
    "repeat_interleave.Tensor "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward "
    "_assert_async _assert_async.msg _linalg_check_errors"
)
"""Names of operators (overloads other than the default behind a dot): what they do is no loop over elements. Numbers
drawn by rejection take as many draws as it needs; images are shrunk (enlarging is a decomposition) by kernels that are
written for each processor, 4 to 10 times as fast of bytes as loops of floats. The last ones raise, or compute nothing.
"""

for _op in of_aten(NO_LOOPS):
    REGISTRY.add_kernel(_op, ExternKernel())
for _op, _name in OUT_VARIANTS.items():
    REGISTRY.add_kernel(_op, ExternKernel(_name))
for _op in PLAIN:
    REGISTRY.add_kernel(_op, ExternKernel())


@lowers(aten.addmm.default, else_kernel=True, out_variant="torch.addmm")
def addmm(ctx: Context, row: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """On a CPU ATen copies the row to each row of the result first; loops that read the result add it for nothing."""
    target, dtype = ctx.targets(ctx.device), ctx.val.dtype
    refuse(target is None or not target.host_memory or ctx.stored, "who reads the sum is a library")
    refuse(dtype not in (torch.float32, torch.float64), "a sum that is rounded once")
    refuse(row.ndim != 1 or row.size != right.size[1:] or beta != 1 or alpha != 1, "no row, or a factor")
    rows = ctx.extern(aten.mm.default, (left, right), {}, out_variant=OUT_VARIANTS[aten.mm.default])
    return ctx.lazy(lambda ops, index: ops.add(rows.load(ops, index), row.load(ops, index[1:])), [rows, row])


@lowers(ctc_ops().ctc_gradients)
def ctc_gradients(ctx: Context, grad: Tensor, slopes: Tensor, log_probs: Tensor) -> Tensor:
    return ctx.lazy(lambda ops, index: ops.mul(slopes.load(ops, index), grad.load(ops, index[1:2])), [slopes, grad])
