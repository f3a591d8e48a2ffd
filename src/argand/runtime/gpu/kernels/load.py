"""The way in: Triton source text and specs → callables that launch."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import torch

from argand import events
from argand.errors import GpuError
from argand.locks import fork_safe_lock
from argand.runtime import kernel_directories, processor
from argand.runtime.gpu.device.driver import OUT_OF_MEMORY, Loaded, driver
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.device.target import device_index, gpu_target
from argand.runtime.gpu.kernels import entries, hip, interpreter, launch
from argand.runtime.gpu.kernels.copies import OnAlignedCopies
from argand.runtime.gpu.kernels.entries import Request
from argand.runtime.gpu.kernels.spec import LaunchSpec, launch_spec
from argand.runtime.profile import Kernel, ProfiledKernel, label

# Triton lets go of the GIL in its passes and while ptxas runs; more threads than this wait for each other.
MAX_THREADS = 8
_BEAT = 0.5  # seconds
_ON = ("1", "true", "yes", "on", "y")  # what switches one of Triton's variables on


def load_triton_kernels(text: str, specs: Mapping[str, Any], device: str) -> list[Kernel]:
    """Compile (or find in the cache) the kernels of a host module.

    Arguments:
        text: a Python module of `@triton.jit` functions.
        specs: by kernel name; what `launch_spec` takes.
        device: "cuda:1", "cuda" (the current one), or "cpu". Kernels for CPU tensors are interpreted, and all are with
            `TRITON_INTERPRET=1`.

    Returns:
        For each spec a callable `kernel(gx, gy, gz, *tensors, *ints)`.

    Raises:
        GpuError: Triton refuses the text, or the device a kernel.
        ToolchainError: there is no place where compiled kernels can be written.
    """
    wanted = [launch_spec(name, literal) for name, literal in specs.items()]
    kernels = _load(text, wanted, device)
    for kernel, spec in zip(kernels, wanted):
        label(kernel, spec.name)
    return kernels


def _load(text: str, wanted: Sequence[LaunchSpec], device: str) -> list[Kernel]:
    if torch.device(device).type == "cpu" or os.environ.get("TRITON_INTERPRET", "").lower() in _ON:
        return [ProfiledKernel(kernel, kernel.name) for kernel in interpreter.load(text, wanted)]
    index, target = device_index(device), gpu_target(device)
    if target.backend == "hip":
        return hip.load(text, wanted, index, target)
    texts = entries.single_texts(text, [spec.name for spec in wanted])
    requests = [Request(texts[spec.name], spec, target) for spec in wanted]
    return load_on(requests, launch.cuda_place(driver(), index))


def load_on(requests: Sequence[Request], place: launch.Place) -> list[Kernel]:
    """Kernels on a device, compiled where they are not in the cache. Raises as `load_triton_kernels`."""
    known = _loaded()
    fresh = {request.key: request for request in requests if known.get(request.key, place) is None}
    if fresh:
        with events.span("triton_compile", "runtime", kernels=len(fresh), target=str(requests[0].target)):
            images = get_images(list(fresh.values()))
        for key, image in zip(fresh, images):
            known.add(key, place, image)
    return [_make(request, place, known) for request in requests]


def _make(request: Request, place: launch.Place, known: _Known) -> Kernel:
    entry = known.get(request.key, place)
    assert entry is not None
    image, loaded = entry

    def unaligned() -> Kernel:
        try:
            return load_on([replace(request, aligned=False)], place)[0]
        except GpuError as error:  # in the middle of a call, which cannot be made anew
            reason = f"kernel {request.spec.name} runs on copies of tensors that are not aligned: {error}"
            events.emit("fallback", "runtime", reason, backend="native", scope="kernel", reason=reason)
            aligned = launch.make_device_kernel(request.spec, image, loaded, place, None)
            return OnAlignedCopies(aligned, request.text, request.spec, launch.ALIGNMENT)

    return launch.make_device_kernel(request.spec, image, loaded, place, unaligned if request.aligned else None)


class _Known:
    """What was loaded in this process, by key, driver and device."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str, int], tuple[Image, Loaded]] = {}
        self._lock = fork_safe_lock()

    def get(self, key: str, place: launch.Place) -> tuple[Image, Loaded] | None:
        """The kernel, if it is loaded there."""
        return self._kernels.get((key, place.driver.path, place.index))

    def add(self, key: str, place: launch.Place, image: Image) -> None:
        """Load a kernel, unless another thread was faster."""
        with self._lock:
            if self.get(key, place) is None:
                loaded = _load_image(image, place)
                self._kernels[key, place.driver.path, place.index] = replace(image, code=b""), loaded


def _load_image(image: Image, place: launch.Place) -> Loaded:
    """Load machine code; where there is no memory, once torch has given back what it keeps for later."""
    try:
        return place.driver.load(image, place.index)
    except GpuError as error:
        if error.code != OUT_OF_MEMORY or torch.cuda.is_current_stream_capturing():
            raise
    torch.cuda.empty_cache()
    return place.driver.load(image, place.index)


@functools.cache
def _loaded() -> _Known:
    return _Known()


# ----------------------------------------------------------------------- in parallel


def get_images(requests: Sequence[Request]) -> list[Image]:
    """Machine code of kernels, several of which are compiled at a time.

    Raises:
        GpuError, ToolchainError: as `entries.get_image`; the first in the order of `requests`.
    """
    threads = min(len(requests), MAX_THREADS, processor.count())
    if threads < 2:
        return [entries.get_image(request) for request in requests]
    with ThreadPoolExecutor(threads, thread_name_prefix="argand-triton") as pool:
        running: list[Future[Image]] = [
            pool.submit(contextvars.copy_context().run, entries.get_image, request) for request in requests
        ]
        left = set(running)
        while left:  # another process that waits for one of these shall see that this one gets on
            done, left = wait(left, timeout=_BEAT, return_when=FIRST_COMPLETED)
            kernel_directories.beat()
            if any(future.exception() is not None for future in done):
                pool.shutdown(wait=False, cancel_futures=True)
                break
    failed = next((future for future in running if not future.cancelled() and future.exception() is not None), None)
    return [failed.result()] if failed is not None else [future.result() for future in running]
