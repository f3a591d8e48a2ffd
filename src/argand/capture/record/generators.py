"""Generators of random numbers of the program's own (`torch.Generator`), on the CPU: a graph has their states, as
tensors. A call that draws is a function of the state before it, which also gives the state behind it; where the graph
ends, generators from outside get theirs, and those that captured code made are made anew.
"""

from __future__ import annotations

from typing import cast

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import CallSource
from argand.capture.facts.values.symbolic import SymbolicFloat, SymbolicInt, SymbolicSize
from argand.capture.metadata.metadata import generator as refused
from argand.graph.operators.random_ops import encoded_call, random_ops

_CPU = torch.device("cpu")
_FUNCTIONS = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson")
_FILLING = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_")
_DEFAULTS: dict[str, tuple[object, ...]] = {"layout": (torch.strided,), "pin_memory": (None, False),
                                            "requires_grad": (False,), "out": (None,)}  # fmt: skip
"""Options that say nothing with these values; others are not part of a graph."""


def of_call(kwargs: Kwargs) -> torch.Generator | None:
    """The generator that a call draws from, where it is one of the program's."""
    value = kwargs.get("generator")
    return value if type(value) is torch.Generator else None


def place_of(generator: torch.Generator) -> str:
    """Which kind of generator it is (a step of a source)."""
    if generator is torch.default_generator:
        return "torch's own"
    return "cpu" if generator.device.type == "cpu" else "other"


def state_of(generator: torch.Generator) -> torch.Tensor:
    """Its state (a step of a source, which transformed code takes)."""
    return generator.get_state()


def is_torchs_own(state: CaptureState, generator: torch.Generator) -> bool:
    """Whether it is the generator that calls draw from which name none.

    Raises:
        GraphBreak: its state cannot be part of the graph.
    """
    if id(generator) in state.generators:
        return False
    source = state.source_of(generator)
    place = place_of(generator)
    if source is None or place == "other":
        raise refused("A function draws from a torch.Generator on another device than the CPU")
    state.guards.add(CallSource(source, place_of), "id", place, shown=False)
    return place == "torch's own"


def held(state: CaptureState, generator: torch.Generator) -> torch.Tensor:
    """The stand-in of its state at this point of the program."""
    if state.graph.scopes:
        raise refused("A torch.Generator is used within a function that torch calls")
    tensor = state.generators.get(id(generator))
    if tensor is None:
        source = state.source_of(generator)
        assert source is not None
        with torch._C.DisableTorchFunction():
            tensor = state.graph.new_input(CallSource(source, state_of), state_of(generator))
        state.generators[id(generator)] = tensor
    return tensor


def hold(state: CaptureState, generator: torch.Generator, tensor: torch.Tensor) -> None:
    """From here on it is in another state."""
    if state.graph.scopes:
        raise refused("A torch.Generator is used within a function that torch calls")
    state.generators[id(generator)] = tensor
    if state.source_of(generator) is not None:
        state.write_overlay(generator, "state", tensor)
    state.keep(generator)


def draw(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs, generator: torch.Generator) -> object:
    """A call of torch's that draws from a generator of the program's."""
    options = {name: value for name, value in kwargs.items() if name != "generator"}
    if is_torchs_own(state, generator):
        return state.interpreter.torch_call(fn, [*args], options)
    name = getattr(fn, "__name__", "")
    fills = name in _FILLING and getattr(torch.Tensor, name) == fn
    if not fills and not (name in _FUNCTIONS and fn in (getattr(torch, name), getattr(torch.Tensor, name, None))):
        raise refused(f"{name or fn} draws from a torch.Generator")
    before = held(state, generator)
    call = _Call(state)
    text = encoded_call(name, args, call.options(options), call.part)
    if fills and id(args[0]) in state.graph.unsure:
        raise refused(f"{name} fills a tensor whose strides are not known")
    operands = [before, call.tensors, call.sizes, text]
    drawn = state.interpreter.torch_call(random_ops().generator_draw, operands, {})
    values, after = cast(tuple[torch.Tensor, torch.Tensor], drawn)
    hold(state, generator, after)
    return state.interpreter.torch_call(torch.Tensor.copy_, [args[0], values], {}) if fills else values


class _Call:
    """What `generator_draw` takes besides a text.

    Fields:
        tensors, sizes: arguments of the call that its text refers to.
    """

    def __init__(self, state: CaptureState) -> None:
        self.state = state
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[object] = []

    def options(self, given: Kwargs) -> Kwargs:
        """Keyword arguments without those that say nothing."""
        rest = {}
        for name, value in given.items():
            if name == "device" and value is not None:
                self._on_cpu(value)
            elif name in _DEFAULTS and value not in _DEFAULTS[name]:
                raise refused(f"A function with {name}={value} draws from a torch.Generator")
            elif name not in _DEFAULTS and name != "device":
                rest[name] = value
        for entered in self.state.graph.entered:
            if not is_a(entered.mode, torch.device):
                raise refused("A function draws from a torch.Generator within a torch-function mode")
            if given.get("device") is None:
                self._on_cpu(entered.mode)
        return rest

    def _on_cpu(self, device: torch.device | str | int) -> None:
        if torch.device(device).type != "cpu":
            raise refused("A generator of the CPU draws on another device")

    def part(self, value: object) -> object:
        """What the text says for an argument."""
        if type(value) is torch.dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        if type(value) is SymbolicInt:
            self.sizes.append(value)
            return {"size": len(self.sizes) - 1}
        if type(value) is SymbolicSize:
            return [item if type(item) is int else self.part(item) for item in tuple.__iter__(value)]
        if isinstance(value, SymbolicFloat):
            return value.number()
        info = self.state.tensors.get(id(value))
        if info is None or info.device != _CPU or (info.tensor.requires_grad and torch.is_grad_enabled()):
            raise refused(f"A function of a {type(value).__name__} draws from a torch.Generator")
        self.tensors.append(info.tensor)
        return {"tensor": len(self.tensors) - 1}
