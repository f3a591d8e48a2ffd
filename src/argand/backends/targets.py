"""Which `Target` code for a device is generated for."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

import torch

from argand import events
from argand.config import config
from argand.graph.nodes.program import AtenProgram
from argand.ir.target import Target, amd_gpu, cpu, gpu

_INTERPRETED_PROCESSORS = 132  # an H100's


def target_of(device: torch.device) -> Target | None:
    """The target of a device; None where no code is generated for it."""
    if device.type == "cpu":
        if not config.triton.on_cpu:
            return cpu(torch.get_num_threads())
        interpreted = gpu(_INTERPRETED_PROCESSORS)
        return replace(interpreted, times_layouts=False, activated_products=False)  # its library is the CPU's
    if problem_of(device) is not None:
        return None
    if torch.version.hip:
        return amd_gpu(*_properties(device))
    from argand.runtime.gpu.operators import blas

    direct = bool(config.triton.direct_products) and blas.available()
    return gpu(*_properties(device), direct_products=direct)


def problem_of(device: torch.device) -> str | None:
    """Why no code is generated for a device that is not the CPU, in one sentence; None when it is."""
    from argand.runtime.gpu.device.target import gpu_problem

    return gpu_problem(str(device))


@functools.cache
def _properties(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and the shared memory that a program may have."""
    properties = torch.cuda.get_device_properties(device)
    memory = getattr(properties, "shared_memory_per_block_optin", 0) or getattr(
        properties, "shared_memory_per_block", 48 << 10
    )
    return int(properties.multi_processor_count), int(memory)


def without_target(devices: Iterable[torch.device]) -> set[str]:
    """Types of the devices that no code is generated for."""
    return {device.type for device in devices if target_of(device) is None}


def devices_in(program: AtenProgram) -> list[torch.device]:
    """Devices of a program's tensors, each once, in order of first use."""
    given = [node.meta.get("device") for node in program.graph.nodes]
    once = dict(zip(map(id, given), given))  # many nodes have the same object
    return list(dict.fromkeys([device for device in once.values() if device is not None]))


def targets_in(program: AtenProgram) -> list[Target | None]:
    """The targets of `devices_in`."""
    return [target_of(device) for device in devices_in(program)]


def in_host_memory(program: AtenProgram) -> bool:
    """Whether all of a program's tensors are where the CPU computes."""
    return all(target is None or target.host_memory for target in targets_in(program))


def without_gpu_code(why: str) -> None:
    """Answer who asked for the logs of what only GPU code has."""
    events.bus.detail("cudagraphs", "backend", f"no CUDA graph is recorded: {why}")
    events.bus.detail("autotuning", "backend", f"no candidates are timed: {why}")
