"""Callables that launch: `kernel(gx, gy, gz, *tensors, *ints)` on the current stream of the tensors' device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from argand._core import _C
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.driver import Driver, Loaded
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.kernels.spec import INTEGERS, LaunchSpec
from argand.runtime.profile import Kernel, connect

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

    connect()
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    kinds = "".join("p" if kind[0] == "*" else "i" if INTEGERS[kind] == 4 else "l" for kind in spec.signature)
    return _C.DeviceKernel(
        loaded.function, loaded.context, (place.kind, place.index), spec.name, kinds, image.threads, image.shared,
        len(image.params) - len(kinds), place.driver.addresses, place.stream_of, failed, unaligned, image,
    )  # fmt: skip
