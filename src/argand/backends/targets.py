"""Which `Target` code for a device is generated for."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable

import torch

from argand.config import config
from argand.graph.program import AtenProgram
from argand.ir.target import Target, cpu, gpu

# What Triton's own tests run on; older GPUs lack instructions that it prints.
_LEAST_CAPABILITY = (7, 0)
_INTERPRETED_PROCESSORS = 132


def target_of(device: torch.device) -> Target | None:
    """The target of a device; None where no code is generated for it."""
    if device.type == "cpu":
        return gpu(_INTERPRETED_PROCESSORS) if config.triton.on_cpu else cpu(torch.get_num_threads())
    if device.type == "cuda":
        processors = _processors(device.index if device.index is not None else -1)
        return gpu(processors) if processors else None
    return None


@functools.cache
def _processors(index: int) -> int:
    """Multiprocessors of a GPU (-1: the current one); 0 where kernels cannot be compiled for it, or run on it."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return 0
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if index < 0 else index)
    return int(found.multi_processor_count) if (found.major, found.minor) >= _LEAST_CAPABILITY else 0


def without_target(devices: Iterable[torch.device]) -> set[str]:
    """Types of the devices that no code is generated for."""
    return {device.type for device in devices if target_of(device) is None}


def devices_in(program: AtenProgram) -> list[torch.device]:
    """Devices of a program's tensors, each once, in order of first use."""
    return list(dict.fromkeys(node.meta["device"] for node in program.graph.nodes if "device" in node.meta))


__all__ = ["devices_in", "target_of", "without_target"]
