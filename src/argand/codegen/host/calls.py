"""How a host module calls ATen: the Python name of each operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from argand.codegen.host.convolutions import (
    FASTER_CONVOLUTION,
    MEASURED_CONVOLUTION,
    OWN_CONVOLUTION,
)
from argand.graph.operators.aten_names import operator_path
from argand.graph.sizes.expr import ONE, ZERO
from argand.ir.loops import Buffer, ExternNode, TensorRef
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels.steps import LOOPS

# `torch.ops` calls go through a dispatcher of Python objects, which takes 1 to 4 us more than these bindings of the
# same arguments.
_NAMES = (
    (
        torch,
        "torch",
        """mm bmm addmm baddbmm mv dot vdot convolution embedding _embedding_bag _embedding_bag_forward_only
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _fft_c2c _fft_c2r _fft_r2c native_layer_norm native_group_norm native_batch_norm grid_sampler_2d multinomial
        index_put index_add scatter_add gather _unique2 bincount count_nonzero
        nonzero nonzero_static masked_select unique_consecutive topk kthvalue mode median nanmedian sort masked_scatter
        histc cummax cummin bernoulli
        cholesky cholesky_solve cholesky_inverse _linalg_solve_ex _linalg_det _linalg_slogdet _linalg_eigh _linalg_svd
        lu_unpack geqrf ormqr triangular_solve
        _softmax_backward_data _log_softmax_backward_data""",
    ),
    (
        torch._C._nn,
        "torch._C._nn",
        """max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d avg_pool2d avg_pool3d
        adaptive_max_pool2d im2col upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
        _upsample_bilinear2d_aa""",
    ),
    (
        torch._C._linalg,
        "torch._C._linalg",
        """linalg_solve_triangular linalg_lu_factor_ex linalg_lu_solve linalg_lstsq linalg_cholesky_ex linalg_inv_ex
        linalg_qr linalg_eig linalg_householder_product linalg_ldl_factor_ex linalg_ldl_solve linalg_lu
        linalg_matrix_exp""",
    ),
)
BINDINGS = {
    f"aten.{name}.default": f"{place}.{name}"
    for module, place, names in _NAMES
    for name in names.split()
    if hasattr(module, name)
}

# Operators of argand's that are oneDNN's, with results of sizes that argand knows.
_PACKED = {
    "packed_convolution": "torch.ops.mkldnn._convolution_pointwise.default",
    "packed_convolution_and": "torch.ops.mkldnn._convolution_pointwise.binary",
    "packed_linear": "torch.ops.mkldnn._linear_pointwise.default",
}

MEASURED_PRODUCT = "MeasuredProduct"  # the class of `runtime.kernels.products`: one object for each call
LOAD_STEPS = "load_steps"  # the function of `runtime.kernels.steps`
CALL_NUMPY = "call_numpy"  # the function of `graph.operators.numpy_ops`
_LINEAR = "torch._C._nn.linear"


@dataclass(frozen=True, slots=True)
class ExternFunction:
    """A module-level name for an operator.

    Arguments:
        name: the name.
        expression: what it is bound to.
        returns_tuple: the operator returns several values.
    """

    name: str
    expression: str
    returns_tuple: bool


def extern_function(node: ExternNode) -> ExternFunction:
    """The name by which a host module calls `node`'s kernel."""
    target = node.target
    schema = getattr(target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    several = len(returns) > 1 or any("List" in str(one.type) for one in returns)
    text = str(target)
    if node.out_variant == MEASURED_PRODUCT:
        return ExternFunction(f"{node.name}_out", f"{MEASURED_PRODUCT}()", several)
    if node.out_variant in (MEASURED_CONVOLUTION, OWN_CONVOLUTION):
        return ExternFunction(node.out_variant.replace("measured_", ""), node.out_variant, several)
    if node.out_variant == FASTER_CONVOLUTION:
        return ExternFunction(f"{node.name}_faster", node.out_variant, several)
    if node.out_variant is not None:
        return ExternFunction(
            node.out_variant.replace("torch._C._nn.", "").replace(".", "_") + "_out", node.out_variant, several
        )
    listed = [part for each in node.args if isinstance(each, (list, tuple)) for part in each]
    if text in BINDINGS and not any(part is None for part in listed):  # which bindings refuse in a list of tensors
        return ExternFunction(BINDINGS[text].replace(".", "_"), BINDINGS[text], several)
    if text.startswith("argand.") and text.endswith(".steps.default"):
        source, loop = LOOPS.told[node.args[0]]
        return ExternFunction(f"steps_{node.args[0]}", f"{LOAD_STEPS}({source!r}, {loop!r})", True)
    if text.startswith("argand.") and text.endswith(".numpy_call.default"):
        return ExternFunction("numpy_call", CALL_NUMPY, True)
    if text.startswith("argand."):  # registered by the function that hands it out
        own = f"argand_ops().{text.removeprefix('argand.')}"
        return ExternFunction(text.replace(".", "_"), _PACKED.get(text.split(".")[1], own), several)
    if isinstance(target, torch._ops.OpOverload):
        return ExternFunction(text.replace(".", "_"), operator_path(target), several)
    name = f"{target.__module__}.{target.__qualname__}"
    return ExternFunction(name.replace(".", "_"), name, several)


def as_linear(node: ExternNode, buffers: Mapping[str, Buffer]) -> ExternNode | None:
    """A product with a transposed weight, called as linear: ATen then makes the transposed view itself, in C++.

    Only for weights whose view is not made once and kept (inputs of the call). None when `node` is no such product.
    """
    text = str(node.target)
    if (
        node.kwargs
        or not (node.out_variant or "").startswith("torch.")
        or text not in ("aten.addmm.default", "aten.mm.default")
    ):
        return None
    *bias, x, weight = node.args
    if not isinstance(weight, TensorRef) or weight.dtype is not None or weight.offset is not ZERO:
        return None
    buffer = buffers[weight.buffer]
    if buffer.kind != "input" or len(buffer.size) != 2 or len(weight.size) != 2:
        return None
    rows, columns = buffer.size
    plain = buffer.stride[1] is ONE and buffer.stride[0] is columns
    transposed = weight.size == (columns, rows) and weight.stride == (ONE, columns)
    one_row_bias = all(isinstance(b, TensorRef) and len(b.size) == 1 for b in bias)
    if not plain or not transposed or not one_row_bias:
        return None
    whole = replace(weight, size=buffer.size, stride=buffer.stride)
    return replace(node, args=(x, whole, *bias), out_variant=_LINEAR)
