"""The random numbers that transformed code puts aside before a graph runs, for the frame to start again."""

from __future__ import annotations

import torch


def random_states(devices: tuple[torch.device, ...]) -> list[tuple[torch.device, torch.Tensor]]:
    """The states of the devices' random number generators."""
    return [(device, generator_of(device).get_state()) for device in devices if device.type in ("cpu", "cuda")]


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that a device's random numbers come from."""
    if device.type == "cpu":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
