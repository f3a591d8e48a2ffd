"""`torch.Generator`s: made, seeded, their states read and set (`record.generators` has what draws from them)."""

from __future__ import annotations

import torch

from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.overlays import UNSET
from argand.capture.facts.sources import CallSource
from argand.capture.metadata.metadata import generator as refused
from argand.capture.natives.rows import operation, operation_of
from argand.capture.record import generators
from argand.graph.operators.random_ops import STATE_OF_THE_CPU, random_ops

_GENERATOR = "torch.Generator"


@operation(torch.Generator, counts=(0, 1), options="device")
def _new(interp: Interpreter, device: object = "cpu") -> torch.Generator:
    """A new one, in the state that all new ones are in."""
    fresh = interp.unread(torch.Generator, device)
    if generators.place_of(fresh) != "cpu":
        raise refused("A torch.Generator is made for another device than the CPU")
    generators.hold(interp.state, fresh, _seeded(interp, fresh.initial_seed()))
    return fresh


def _seeded(interp: Interpreter, seed: object) -> torch.Tensor:
    """The state of a generator that was seeded."""
    return interp.torch_call(random_ops().seeded_state, [seed], {"device": torch.device("cpu")})


@operation_of(_GENERATOR, "manual_seed", counts=1)
def _manual_seed(interp: Interpreter, owner: torch.Generator, seed: object) -> torch.Generator:
    _put(interp, owner, _seeded(interp, seed))
    return owner


def _put(interp: Interpreter, generator: torch.Generator, tensor: torch.Tensor) -> None:
    """A generator is in this state from here on."""
    if generators.is_torchs_own(interp.state, generator):
        interp.torch_call(torch.set_rng_state, [tensor], {})
    else:
        generators.hold(interp.state, generator, tensor)


@operation_of(_GENERATOR, "get_state")
def _get_state(interp: Interpreter, owner: torch.Generator) -> object:
    if generators.is_torchs_own(interp.state, owner):
        return interp.torch_call(torch.get_rng_state, [], {})
    return interp.torch_call(torch.clone, [generators.held(interp.state, owner)], {})


@operation_of(_GENERATOR, "set_state", counts=1)
def _set_state(interp: Interpreter, owner: torch.Generator, state: torch.Tensor) -> torch.Generator:
    if not _is_state(interp.state, state):
        raise refused("A torch.Generator is given what may be no state")
    _put(interp, owner, interp.torch_call(torch.clone, [state], {}))
    return owner


def _is_state(state: CaptureState, value: object) -> bool:
    """Whether a generator of the CPU takes a tensor as its state."""
    info = state.tensors.get(id(value))
    if info is None or info.device.type != "cpu":
        return False
    tensor = info.tensor
    with torch._C.DisableTorchFunction():
        return (
            type(tensor) is torch.Tensor
            and tensor.dtype is torch.uint8
            and tuple(tensor.shape) == (STATE_OF_THE_CPU,)
            and tensor.is_contiguous()
        )


@operation_of(_GENERATOR, "initial_seed")
def _initial_seed(interp: Interpreter, owner: torch.Generator) -> object:
    """That of one from outside is a number that may vary, as long as nothing here seeds it."""
    if generators.is_torchs_own(interp.state, owner):  # the graph, which may seed it, runs before the number is read
        raise refused("Torch's own generator is asked for its seed")
    seed = interp.unread(torch.Generator.initial_seed, owner)
    if not interp.is_outer(owner) or interp.state.read_overlay(owner, "state") is not UNSET:
        raise refused("A torch.Generator that captured code made or drew from is asked for its seed")
    return interp.state.load_source(CallSource(interp.source(owner), torch.Generator.initial_seed), seed)
