"""Makes Python callables of compiled kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from argand.runtime.profile import Kernel, ProfiledKernel, connect


class CtypesKernel:
    """`kernel(t0, ..., i0, ...)` through ctypes: what runs when argand's C extension is not built.

    Arguments:
        address: of an `extern "C" void (void** pointers, const int64_t* ints)` function.
        name: for error messages and profiles.
        num_tensors, num_ints: how many arguments of each kind a call takes.
    """

    __slots__ = ("_function", "_ints", "_pointers", "name", "num_tensors")

    def __init__(self, address: int, name: str, num_tensors: int, num_ints: int) -> None:
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
        self._pointers = ctypes.c_void_p * num_tensors
        self._ints = ctypes.c_int64 * num_ints
        self.name = name
        self.num_tensors = num_tensors

    def __call__(self, *args: Any) -> None:
        count = self.num_tensors
        pointers = self._pointers(*[tensor.data_ptr() for tensor in args[:count]])
        self._function(pointers, self._ints(*args[count:]))


def make_kernel(address: int, name: str, num_tensors: int, num_ints: int) -> Kernel:
    """A callable of `num_tensors` tensors followed by `num_ints` integers for the kernel at `address`."""
    try:
        from argand._core import _C
    except ImportError:
        return ProfiledKernel(CtypesKernel(address, name, num_tensors, num_ints), name)
    kernel_type = getattr(_C, "Kernel", None)
    if kernel_type is None:
        return ProfiledKernel(CtypesKernel(address, name, num_tensors, num_ints), name)
    connect()
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    kernel: Kernel = kernel_type(address, name, num_tensors, num_ints)
    return kernel
