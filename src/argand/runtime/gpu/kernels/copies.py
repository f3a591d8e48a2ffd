"""A kernel on copies of its tensors: for pointers that are not aligned, where the variant for them cannot be had.

That shows in the middle of a call, when what ran before has written to the program's tensors already: nothing can be
run again by eager's kernels then.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from argand.graph.metadata.strides import elements_spanned
from argand.runtime.gpu.kernels.spec import LaunchSpec
from argand.runtime.profile import Kernel

_READ = "in_ptr"  # how names of pointers begin that a kernel only reads


class OnAlignedCopies:
    """`kernel(gx, gy, gz, *tensors, *ints)`, whose tensors may lie anywhere.

    Arguments:
        kernel: the variant for aligned pointers.
        text: its source, which says what it only reads.
        spec: its types.
        alignment: bytes of which pointers must be multiples.
    """

    def __init__(self, kernel: Kernel, text: str, spec: LaunchSpec, alignment: int) -> None:
        self.kernel, self.alignment = kernel, alignment
        header = re.search(rf"def {spec.name}\(([^)]*)\)", text)
        names = [name.strip() for name in header[1].split(",")] if header is not None else []
        self.written = [not name.startswith(_READ) for name in names[: spec.num_tensors]]

    def __call__(self, gx: int, gy: int, gz: int, *args: Any) -> None:
        count = len(self.written)
        with torch.no_grad():
            used = [self._aligned(tensor) for tensor in args[:count]]
            self.kernel(gx, gy, gz, *used, *args[count:])
            for tensor, copy, written in zip(args, used, self.written):
                if written and copy is not tensor:
                    tensor.copy_(copy)

    def _aligned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of its memory, from its first to its last element."""
        if tensor.data_ptr() % self.alignment == 0 or not tensor.numel():
            return tensor
        extent = elements_spanned(tensor.shape, tensor.stride())
        flat = tensor.detach().as_strided((extent,), (1,)).clone()
        return flat.as_strided(tensor.shape, tensor.stride())
