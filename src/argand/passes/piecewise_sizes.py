"""Which operations make numbers of sizes by one formula, whatever the sizes are.

Others may take the least of two sizes, say: traces whose sizes are all in one order show only one of the two.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata import layouts

aten = torch.ops.aten

_NAMES: Final = """
    mm addmm bmm baddbmm addbmm mv addmv dot convolution convolution_backward linear
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training cudnn_batch_norm _fused_rms_norm _fused_rms_norm_backward
    batch_norm_backward _batch_norm_with_update_functional _batch_norm_no_update
    embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only index _unsafe_index
    _unsafe_masked_index _unsafe_masked_index_put_accumulate index_put _unsafe_index_put index_select index_add
    index_copy index_fill gather scatter scatter_add scatter_reduce masked_fill masked_scatter where bucketize
    searchsorted take take_along_dim isin
    cat stack view _unsafe_view reshape _reshape_alias permute transpose t expand unsqueeze squeeze select slice
    slice_scatter select_scatter split split_with_sizes unbind alias detach clone _to_copy copy lift lift_fresh_copy
    view_as_real view_as_complex view_copy contiguous repeat flip roll unfold unfold_backward slice_backward
    select_backward split_copy expand_copy constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d replication_pad2d
    replication_pad3d replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    full full_like empty empty_like empty_strided empty_permuted zeros zeros_like ones ones_like new_zeros new_full
    new_ones new_empty new_empty_strided arange linspace scalar_tensor fill rand randn randint rand_like randn_like
    randint_like bernoulli native_dropout native_dropout_backward randperm normal multinomial uniform exponential
    sum mean amax amin max min argmax argmin any all prod var std var_mean std_mean logsumexp cumsum cumprod cummax
    cummin logcumsumexp norm linalg_vector_norm count_nonzero _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data softmax log_softmax _safe_softmax _masked_softmax
    _masked_softmax_backward aminmax nansum sort topk kthvalue median nanmedian tril triu masked_select sum_to_size
    avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool2d_backward
    avg_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_avg_pool1d
    _adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool2d_backward upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d
    upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa upsample_nearest1d_backward
    upsample_nearest2d_backward upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
    pixel_shuffle pixel_unshuffle glu glu_backward nll_loss_forward nll_loss_backward nll_loss2d_forward
    nll_loss2d_backward mse_loss mse_loss_backward huber_loss smooth_l1_loss smooth_l1_loss_backward
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss
    huber_loss_backward soft_margin_loss_backward threshold_backward hardtanh softshrink_backward hardshrink_backward
    log_sigmoid_forward log_sigmoid_backward rrelu_with_noise_functional rrelu_with_noise_backward _prelu_kernel
    _prelu_kernel_backward nan_to_num isinf angle rsub addr _conj _conj_copy upsample_nearest3d_backward
    upsample_trilinear3d_backward _upsample_nearest_exact3d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
    lstm_layer lstm_layer_keeping lstm_layer_backward recurrence recurrence_backward recurrence_keeping
    recurrence_backward_from im2col col2im grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d native_channel_shuffle _cdist_forward _fft_r2c _fft_c2r _fft_c2c
    _thnn_fused_lstm_cell _foreach_add _assert_async _assert_tensor_metadata one_hot eye
"""
_FORMULAS: Final = frozenset(_NAMES.split())
_LINE = frozenset(("argand", "prims"))


def follows_formulas(graph: fx.Graph) -> bool:
    """Whether every operation is known to make numbers by one formula."""
    return all(_known(node.target) for node in graph.nodes if node.op == "call_function")


@functools.lru_cache(maxsize=4096)
def _known(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target.namespace in _LINE or layouts.is_pointwise(target):
        return True
    return target._schema.name.partition("::")[2] in _FORMULAS
