"""What code depends on besides the program: versions, the processor, the compiler, settings, GPUs."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from argand import events
from argand.config import config
from argand.graph import product_settings
from argand.runtime import processor, toolchain
from argand.version import __version__


def environment(devices: Iterable[torch.device] = ()) -> str:
    """What a compiled program depends on beside itself: versions, the processor, compiler, settings, GPUs.

    Raises:
        ToolchainError: there is no C++ compiler that works.
    """
    mkldnn = torch.backends.mkldnn
    settings = [f"{name}={_setting(name)!r}" for name, _, _ in config.describe() if name not in _NO_MATTER]
    return "\n".join(
        [
            _installation(),
            repr(toolchain.isa_for(config.cpp.simdlen)),
            toolchain.find_toolchain().version,
            f"oneDNN {mkldnn.is_available()} {mkldnn.enabled}, products {product_settings.float32_products()}",
            *[gpu(device) for device in devices if device.type != "cpu"],
            *settings,
        ]
    )


_NO_MATTER = frozenset(("cache_dir", "remote_cache", "remote_cache_key", "check_ranks"))
"""Settings that say where code is kept, which is the same for all who look there."""


@functools.cache
def versions() -> dict[str, str]:
    """What saved models are made for and other processes must be, too, by name."""
    root = Path(events.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".h", ".cpp") and path.is_file())
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return {
        "Python": f"{sys.implementation.cache_tag} {sys.version.split()[0]}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "argand": f"{__version__} {whole.hexdigest()[:12]}",
    }


def gpu(device: torch.device) -> str:
    """A GPU, and what compiles its kernels."""
    return _gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _gpu(index: int) -> str:
    kind = f"{torch.cuda.get_device_name(index)} {torch.cuda.get_device_capability(index)}"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = ""
    return f"cuda:{index} {kind} {torch.version.cuda} {torch.version.hip} triton {triton}"


def current_gpu() -> str:
    """What a program that names no GPU, or asks for GPUs, depends on; the GPU itself once it is in use."""
    seen = [f"{name}={os.environ[name]}" for name in _GPU_VARIABLES if name in os.environ]
    if torch.cuda.is_initialized():
        seen.append(f"current {_gpu(torch.cuda.current_device())} of {torch.cuda.device_count()}")
    return ", ".join(seen)


UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""With one of these, whatever it is, torch asks the driver for the memory of each tensor."""

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_GPU_VARIABLES = (*_VISIBLE, "CUDA_LAUNCH_BLOCKING", *UNCACHED)


def _setting(name: str) -> object:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


@functools.cache
def _installation() -> str:
    """Versions, argand's own files, and the processor."""
    own = hashlib.sha256(repr(sorted(_stamps(os.path.dirname(events.__file__), ""))).encode()).hexdigest()
    known = processor.facts()
    chip = [known.get(name) for name in ("vendor_id", "model name", "flags", "Features")]
    return f"{sys.version} {torch.__version__} {torch.version.git_version} argand {own} processor {chip}"


def _stamps(folder: str, within: str) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of the files in a folder that code is made from."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so", ".h", ".cpp")):
                stat = entry.stat()
                yield within + entry.name, stat.st_size, stat.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _stamps(entry.path, f"{within}{entry.name}/")


def replaced() -> bool:
    """Whether the program, not argand, says how some operation is compiled: in a table that it imported, then."""
    for name in ("argand.codegen.cpp.overrides", "argand.codegen.triton.overrides"):
        table: Any = sys.modules.get(name)
        if table is not None and any(map(table.replaced, table.DEFAULTS)):
            return True
    registry: Any = sys.modules.get("argand.lower.registry")
    return registry is not None and registry.REGISTRY.altered()
