"""What kind of GPU kernels are compiled for, and why there may be none (`gpu_problem`)."""

from __future__ import annotations

import ctypes
import functools
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from argand.quick_dataclasses import dataclass

MIN_TRITON = (3, 6)  # the oldest that argand is tested with
MIN_CAPABILITY = (7, 0)  # what Triton still generates code for
LIBCUDA = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What machine code depends on.

    Arguments:
        backend: Triton's name of the maker: "cuda" or "hip".
        arch: 90 for compute capability 9.0; "gfx942".
        warp_size: threads that run in step.
    """

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}:{self.warp_size}"


def device_index(device: str) -> int:
    """The index of a GPU; of the current one where `device` has none."""
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else int(index)


def gpu_target(device: str) -> GpuTarget:
    """What to compile for, for kernels on `device`."""
    return _target(device_index(device))


@functools.cache
def _target(index: int) -> GpuTarget:
    if torch.version.hip:
        properties = torch.cuda.get_device_properties(index)
        return GpuTarget("hip", properties.gcnArchName.partition(":")[0], int(properties.warp_size))
    major, minor = torch.cuda.get_device_capability(index)
    return GpuTarget("cuda", 10 * major + minor, 32)


# ----------------------------------------------------------------------- triton, without importing it


@functools.cache
def triton_version() -> str:
    """Version and build of the installed triton, as a key; empty when there is none."""
    spec = find_spec("triton")
    if spec is None or not spec.origin:
        return ""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:  # built from source, perhaps
        version = "unknown"
    core = next(iter(sorted((Path(spec.origin).parent / "_C").glob("libtriton*"))), None)
    return f"{version}+{core.stat().st_size}" if core is not None else version


def _triton_problem() -> str | None:
    version = triton_version()
    if not version:
        return "triton, which compiles GPU kernels, is not installed: pip install triton."
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers and numbers < MIN_TRITON:
        wanted = ".".join(map(str, MIN_TRITON))
        return f"triton {version.split('+')[0]} is too old for argand, which needs {wanted}: pip install -U triton."
    return None


# ----------------------------------------------------------------------- whether there can be kernels


def gpu_problem(device: str) -> str | None:
    """Why graphs on `device` cannot have kernels of argand's; None when they can.

    Arguments:
        device: "cuda:0", say.

    Returns:
        One sentence: what is missing and what to do about it.
    """
    kind = torch.device(device).type
    if kind != "cuda":
        return f"argand has no kernels for devices of type {kind!r}."
    if not torch.cuda.is_available():
        return "torch sees no GPU: nvidia-smi tells whether the driver does."
    return _problem(device_index(device))


@functools.cache
def _problem(index: int) -> str | None:
    trouble = _triton_problem()
    if trouble or torch.version.hip:
        return trouble
    capability = tuple(torch.cuda.get_device_capability(index))
    if capability < MIN_CAPABILITY:
        have, wanted = (".".join(map(str, each)) for each in (capability, MIN_CAPABILITY))
        return f"this GPU has compute capability {have}, and kernels need {wanted} or later."
    try:
        ctypes.CDLL(LIBCUDA)
    except OSError as error:
        return f"the driver's library cannot be loaded ({error}): install the driver, or add it to the container."
    return None
