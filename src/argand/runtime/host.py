"""Runs host modules: what their generated text refers to."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch

from argand.config import config
from argand.errors import InternalError
from argand.graph.compat import cpu_allocator
from argand.graph.metadata.strides import elements_spanned
from argand.runtime.arena import Arena, arena_pool
from argand.runtime.kernels import background_libraries
from argand.runtime.launch import make_kernel
from argand.runtime.profile import Kernel, label

_FILENAME = "output_code.py"
_PAGE, _MADV_HUGEPAGE = mmap.PAGESIZE, 14
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_TUNABLES = "GLIBC_TUNABLES"
_LARGEST_IN_HEAP = 32 << 20  # bytes: larger ones are mapped alone, as glibc's own rule has it in the end
_DOUBLE, _INT64 = struct.Struct("=d"), struct.Struct("=q")

HostCall = Callable[[list[Any]], tuple[Any, ...]]


def load_kernels(source: str, kernels: Mapping[str, tuple[str, int, int]], parts: Sequence[str] = ()) -> list[Kernel]:
    """Compile (or find in the cache) the kernels of a host module.

    Arguments:
        source: C++ text.
        kernels: name -> (symbol, number of tensors, number of integers).
        parts: the same functions as several files, which are compiled at the same time.

    Raises:
        CppCompileError: the compiler refused the text.
        ToolchainMissing: there is no compiler.
    """
    keep_heap()
    library = background_libraries.library(source, parts)
    loaded = []
    for name, (symbol, tensors, ints) in kernels.items():
        kernel = make_kernel(library.address(symbol), name, tensors, ints)
        label(kernel, name)
        loaded.append(kernel)
    return loaded


BY_ITSELF = "\ndef example_inputs():"
"""From here on, a host module's text is for running it by itself: it is compiled where Python reads the file."""


@functools.lru_cache(maxsize=4)  # who stores a module asks for it as well as who runs it
def _compiled(text: str, filename: str) -> CodeType:
    return compile(text.rpartition(BY_ITSELF)[0] or text, filename, "exec")


def code_of(text: str, filename: str = _FILENAME) -> CodeType:
    """The code of a host module's text."""
    return _compiled(text, filename)


def load_module(
    text: str | CodeType,
    constants: Mapping[str, torch.Tensor],
    filename: str = _FILENAME,
    *,
    graph: str = "",
) -> ModuleType:
    """Execute host module text; its kernels are compiled on the way.

    Arguments:
        text: what codegen/host wrote, or its code.
        constants: tensors that the text refers to by name.
        filename: shown in tracebacks.
        graph: "graph_0", say: how names of the kernels begin in profiles, so that those of two graphs stay apart.
    """
    module = ModuleType("argand_output_code")
    execute(module, text, constants, filename, graph=graph)
    return module


def execute(
    module: ModuleType,
    text: str | CodeType,
    constants: Mapping[str, torch.Tensor],
    filename: str = _FILENAME,
    *,
    graph: str = "",
) -> None:
    """`load_module`, in a module that is there."""
    module.__dict__["constants"] = dict(constants)
    exec(code_of(text, filename) if isinstance(text, str) else text, module.__dict__)
    for table in [name for name in module.__dict__ if name == "kernels" or name.startswith("triton_kernels")]:
        for name in module.__dict__[table] if graph else ():
            label(module.__dict__[name], f"{graph}_{name}")


@functools.cache
def _advise() -> Callable[..., int] | None:
    """The C function `madvise`, on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def on_large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The new `tensor`; Linux is asked to back its memory with large pages.

    The C library may get memory of this size from the system in every call. A page at a time, that takes several times
    as long as to fill it.
    """
    advise = _advise()
    if advise is not None:
        begin = -(-tensor.data_ptr() // _PAGE) * _PAGE
        advise(begin, max(tensor.data_ptr() + tensor.nbytes - begin, 0), _MADV_HUGEPAGE)  # a refusal does no harm
    return tensor


@functools.cache
def keep_heap() -> None:
    """Have the C library keep what is freed at the end of its heap, up to `config.cpp.kept_heap` bytes of it.

    glibc hands it back to the system where it is more than twice the largest piece that was ever freed: what a training
    step keeps for its backward is mapped anew in each step, page by page (a tenth of the time of a dense network's).
    Whoever set the C library's own variables is left alone.
    """
    wanted = config.cpp.kept_heap
    asked = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(_TUNABLES, "")
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") and wanted > 0 and not asked else None
    if library is not None and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_TRIM_THRESHOLD, min(wanted, (1 << 31) - 1))
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)  # having set one, glibc adapts neither


def product_into(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor) -> None:
    """`x @ weight.T + bias`, computed by oneDNN, in `out`."""
    out.copy_(torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], ""))


def reinterpret(
    base: torch.Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """The memory of `base` as another dtype; `offset` counts elements of `dtype` from the first element of `base`."""
    start = base.storage_offset() * base.element_size() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), start + offset, size, stride)


def double_bits(value: float) -> int:
    """The bits of a double as a signed integer: how kernels take it."""
    bits: int = _INT64.unpack(_DOUBLE.pack(value))[0]
    return bits


def restrided(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """`tensor` in the given layout: itself when strides differ only where they do not matter, else a copy.

    Raises:
        InternalError: its size is another than the compiled code expects.
    """
    if tuple(tensor.shape) != size:
        raise InternalError(f"an ATen kernel returned a tensor of size {tuple(tensor.shape)}, not {size}")
    pairs = zip(tensor.shape, tensor.stride(), stride)
    if tensor.numel() == 0 or all(n == 1 or one == two for n, one, two in pairs):
        return tensor
    repeated = [dim for dim, (extent, step) in enumerate(zip(size, stride)) if extent > 1 and step == 0]
    if repeated:  # a view of one that was expanded, of which the kernel got a copy
        for dim in repeated:
            tensor = tensor.narrow(dim, 0, 1)
        return restrided(tensor, tuple(tensor.shape), stride).expand(size)
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def on_device(call: HostCall, name: str) -> HostCall:
    """`call`, run with the GPU `name` ("cuda:0") as the current one."""
    index = torch.device(name).index
    current = torch.cuda.current_device

    def run(args: list[Any]) -> tuple[Any, ...]:
        if current() == index:
            return call(args)
        with torch.cuda.device(index):
            return call(args)

    return run


def rand_strided(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """A random tensor of the given layout, for running a host module by itself."""
    count = elements_spanned(size, stride)
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(count, dtype=torch.float32, device="cpu").to(dtype)
    elif dtype is torch.bool:
        flat = torch.rand(count, device="cpu") < 0.5
    else:
        flat = torch.zeros(count, dtype=dtype, device="cpu")  # an integer may be an index: zero is always in range
    return torch.as_strided(flat.to(device), size, stride)


def benchmark(call: HostCall, example_inputs: Callable[[], list[Any]], *, repeat: int = 10) -> float:
    """Run a host module on random inputs; prints and returns the median milliseconds of one call."""
    torch.manual_seed(0)
    inputs = example_inputs()
    with torch.no_grad():
        call(list(inputs))
        times = []
        for _ in range(repeat):
            _wait(inputs)
            start = time.perf_counter()
            call(list(inputs))
            _wait(inputs)
            times.append((time.perf_counter() - start) * 1e3)
    median = sorted(times)[len(times) // 2]
    print(f"{median:.3f} ms a call (median of {repeat})")
    return median


def _wait(inputs: list[Any]) -> None:
    """Until the GPUs that hold inputs have done what they were given."""
    for device in {each.device for each in inputs if isinstance(each, torch.Tensor)}:
        if device.index is not None:
            torch.cuda.synchronize(device)


__all__ = [
    "Arena", "HostCall", "arena_pool", "benchmark", "cpu_allocator", "double_bits", "load_kernels", "load_module",
    "on_device", "rand_strided", "reinterpret", "restrided",
]  # fmt: skip
