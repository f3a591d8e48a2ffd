"""Callables that launch: `kernel(gx, gy, gz, *tensors, *ints)` on the current stream of the tensors' device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.driver import Driver, Loaded
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.kernels.spec import INTEGERS, LaunchSpec
from argand.runtime.profile import Kernel, ProfiledKernel, connect

ALIGNMENT = 16  # bytes; what the first variant of a kernel expects of pointers
CUDA = 2  # DLPack's number for the kind of device
StreamOf = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels are launched.

    Arguments:
        driver: its library.
        kind: DLPack's number for the kind of device.
        index: of the device.
        stream_of: the address of the current stream of a device.
    """

    driver: Driver
    kind: int
    index: int
    stream_of: StreamOf


def cuda_place(driver: Driver, index: int) -> Place:
    """The place of the kernels of one NVIDIA GPU: launches go to torch's current stream."""
    return Place(driver, CUDA, index, torch._C._cuda_getCurrentRawStream)


def make_device_kernel(
    spec: LaunchSpec, image: Image, loaded: Loaded, place: Place, unaligned: Callable[[], Kernel] | None
) -> Kernel:
    """A callable for a loaded function.

    Arguments:
        unaligned: makes the variant for pointers that are not multiples of `ALIGNMENT`, when it is first needed; None
            when this one takes them.
    """

    def failed(code: int, name: str) -> None:
        place.driver.fail(code, f"launching kernel {name} on cuda:{place.index}")

    try:
        from argand._core import _C

        kernel_type = _C.DeviceKernel
    except (ImportError, AttributeError):
        return ProfiledKernel(PythonKernel(spec, image, loaded, place, unaligned, failed), spec.name)
    connect()
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    kinds = "".join("p" if kind[0] == "*" else "i" if INTEGERS[kind] == 4 else "l" for kind in spec.signature)
    kernel: Kernel = kernel_type(
        loaded.function, loaded.context, (place.kind, place.index), spec.name, kinds, image.threads, image.shared,
        len(image.params) - len(kinds), place.driver.addresses, place.stream_of, failed, unaligned, image,
    )  # fmt: skip
    return kernel


class PythonKernel:
    """The same through ctypes: what runs when argand's C extension is not built.

    Arguments: as `make_device_kernel`.
        failed: raises what is to be said of a launch that the driver refused.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        image: Image,
        loaded: Loaded,
        place: Place,
        unaligned: Callable[[], Kernel] | None,
        failed: Callable[[int, str], None],
    ) -> None:
        self.name = spec.name
        self._spec, self._image, self._loaded, self._place = spec, image, loaded, place
        self._unaligned, self._failed = unaligned, failed
        self._other: Kernel | None = None
        kinds = [ctypes.c_void_p if kind[0] == "*" else _CTYPES[kind] for kind in spec.signature]
        self._types = kinds + [ctypes.c_void_p] * (len(image.params) - len(kinds))

    def __call__(self, gx: int, gy: int, gz: int, *args: Any) -> None:
        count = self._spec.num_tensors
        if len(args) != len(self._spec.signature):
            raise TypeError(
                f"kernel {self.name} takes {count} tensors and {self._spec.num_ints} ints ({len(args)} arguments given)"
            )
        if 0 in (gx, gy, gz):
            return
        values = [self._pointer(arg, place) for place, arg in enumerate(args[:count])]
        if self._unaligned is not None and any(pointer % ALIGNMENT for pointer in values):
            if self._other is None:
                self._other = self._unaligned()
            self._other(gx, gy, gz, *args)
            return
        for arg, kind in zip(args[count:], self._spec.signature[count:]):
            if not -(1 << (8 * INTEGERS[kind] - 1)) <= arg < 1 << (8 * INTEGERS[kind] - 1):
                raise OverflowError(f"kernel {self.name}: {arg} does not fit into {kind}")
            values.append(arg)
        values += [0] * (len(self._types) - len(values))
        self._launch((gx, gy, gz), [kind(value) for kind, value in zip(self._types, values)])

    def _pointer(self, tensor: Any, position: int) -> int:
        on_device = (
            tensor.is_cuda and tensor.get_device() == self._place.index if self._place.kind == CUDA else tensor.is_cpu
        )
        if not on_device:
            raise ValueError(
                f"kernel {self.name}: argument {position} is on {tensor.device}, the kernel on {self._place.index}"
            )
        return int(tensor.data_ptr())

    def _launch(self, grid: tuple[int, int, int], words: list[Any]) -> None:
        params = (ctypes.c_void_p * len(words))(*[ctypes.addressof(word) for word in words])
        library, what = self._place.driver.library, f"launching kernel {self.name} on cuda:{self._place.index}"
        self._place.driver.call(what, "cuCtxPushCurrent_v2", ctypes.c_void_p(self._loaded.context))
        try:
            code = library.cuLaunchKernel(
                ctypes.c_void_p(self._loaded.function), *grid, self._image.threads, 1, 1, self._image.shared,
                ctypes.c_void_p(self._place.stream_of(self._place.index)), params, None,
            )  # fmt: skip
        finally:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        if code:
            self._failed(code, self.name)


_CTYPES: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}
