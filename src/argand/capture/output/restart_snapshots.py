"""What transformed code puts aside before a graph runs, for the frame to start again should the graph raise."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

Copies = Sequence[tuple[weakref.ref[torch.Tensor], torch.Tensor, int | None]]


def random_states(devices: tuple[torch.device, ...]) -> list[tuple[torch.device, torch.Tensor]]:
    """The states of the devices' random number generators."""
    return [(device, generator_of(device).get_state()) for device in devices if device.type in ("cpu", "cuda")]


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that a device's random numbers come from."""
    if device.type == "cpu":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def copies_of(*inputs: torch.Tensor) -> Copies:
    """Inputs that the graph is about to write to, what they hold now, and their versions."""
    with torch._C.DisableTorchFunction():
        return [
            (weakref.ref(tensor), tensor.detach().clone(), None if tensor.is_inference() else tensor._version)
            for tensor in inputs
        ]
