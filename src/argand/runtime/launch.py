"""Makes Python callables of compiled kernels."""

from __future__ import annotations

import torch

from argand._core import _C
from argand.runtime.profile import Kernel, connect


def make_kernel(address: int, name: str, num_tensors: int, num_ints: int) -> Kernel:
    """A callable of `num_tensors` tensors followed by `num_ints` integers.

    Arguments:
        address: of an `extern "C" void (void** pointers, const int64_t* ints)` function.
        name: for error messages and profiles.
    """
    connect()
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    return _C.Kernel(address, name, num_tensors, num_ints)
