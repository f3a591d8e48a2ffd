"""Kernels on AMD's GPUs: compiled, kept and launched by Triton itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argand.errors import GpuError
from argand.runtime.gpu.device.target import GpuTarget
from argand.runtime.gpu.kernels import entries, triton_compile
from argand.runtime.gpu.kernels.spec import LaunchSpec
from argand.runtime.profile import Kernel, ProfiledKernel

_ALIGNMENT = 16


class TritonKernel:
    """`kernel(gx, gy, gz, *tensors, *ints)` through Triton's own launcher.

    Arguments:
        text: a module that has the kernel.
        spec, target: how it is compiled.
        index: of the device.
    """

    def __init__(self, text: str, spec: LaunchSpec, target: GpuTarget, index: int) -> None:
        self.name = spec.name
        self._text, self._spec, self._target, self._index = text, spec, target, index
        self._constants = tuple(value for _, value in spec.constants)
        self._variants: dict[bool, Any] = {}
        self._compiled(True)

    def _compiled(self, aligned: bool) -> Any:
        compiled = self._variants.get(aligned)
        if compiled is None:
            with torch.cuda.device(self._index):
                compiled = triton_compile.compile_by_triton(self._text, self._spec, self._target, aligned=aligned)
            self._variants[aligned] = compiled
        return compiled

    def __call__(self, gx: int, gy: int, gz: int, *args: Any) -> None:
        if 0 in (gx, gy, gz):
            return
        tensors = args[: self._spec.num_tensors]
        compiled = self._compiled(not any(tensor.data_ptr() % _ALIGNMENT for tensor in tensors))
        with torch.cuda.device(self._index):
            try:
                compiled[(gx, gy, gz)](*args, *self._constants)
            except RuntimeError as error:
                remedy = 'compile with backend="eager", and please report the kernel'
                raise GpuError(f"launching kernel {self.name}: {error}", remedy=remedy) from error


def load(text: str, specs: Sequence[LaunchSpec], index: int, target: GpuTarget) -> list[Kernel]:
    """The kernels of a source text.

    Raises:
        GpuError: Triton refuses the text, or the device a kernel.
    """
    texts = entries.single_texts(text, [spec.name for spec in specs])
    return [ProfiledKernel(TritonKernel(texts[spec.name], spec, target, index), spec.name) for spec in specs]
