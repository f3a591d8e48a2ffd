"""Fused optimizer steps without writes: `argand::fused_adam` and its like, one per overload of torch's fused kernels.

Each takes what torch's kernel takes and returns, as one flat list, the new values of what that kernel would write to.
A schedule that stores all of them where the old ones are calls torch's kernel itself (`FusedStep.writing`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from argand.quick_dataclasses import dataclass

_NAMES = ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_")


@dataclass(frozen=True, slots=True)
class FusedStep:
    """One overload of a fused optimizer kernel.

    Arguments:
        writing: torch's overload, which writes to its arguments.
        functional: the op of this module that returns new values instead.
        names: names of the arguments, in order.
        written: of these, the lists of tensors that are written to.
    """

    writing: Any
    functional: Any
    names: tuple[str, ...]
    written: tuple[str, ...]

    def targets(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors that a call writes to, in the order of the functional op's results."""
        bound = {**dict(zip(self.names, args)), **kwargs}
        # Gradients are written only where they are unscaled.
        lists = [name for name in self.written if name != "grads" or bound.get("grad_scale") is not None]
        return [tensor for name in lists for tensor in bound[name]]


class OptimizerOps:
    """The registered steps, by torch's overload (`by_writing`) and by ours (`by_functional`)."""

    def __init__(self, library: torch.library.Library, steps: Sequence[FusedStep]) -> None:
        self._library = library  # the registration lives as long as this
        self.by_writing = {step.writing: step for step in steps}
        self.by_functional = {step.functional: step for step in steps}


@functools.cache
def optimizer_ops() -> OptimizerOps:
    """Defines the ops, once per process."""
    library = torch.library.Library("argand", "FRAGMENT")
    steps = []
    for packet_name in _NAMES:
        packet = getattr(torch.ops.aten, packet_name, None)
        for overload in packet.overloads() if packet is not None else ():
            steps.append(_define(library, getattr(packet, overload)))
    return OptimizerOps(library, steps)


def _define(library: torch.library.Library, writing: Any) -> FusedStep:
    schema = writing._schema
    name = schema.name.split("::")[1].strip("_") + (f"_{schema.overload_name}" if schema.overload_name else "")
    arguments = re.sub(r"\([a-z]!\)", "", str(schema).split("(", 1)[1].rsplit(" -> ", 1)[0])
    library.define(f"{name}({arguments} -> Tensor[]")
    names = tuple(argument.name for argument in schema.arguments)
    marked = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    written = tuple(name for name in marked if name != "state_steps")  # which no kernel writes to
    step = FusedStep(writing, getattr(torch.ops.argand, name).default, names, written)
    library.impl(name, _implementation(step), "CompositeExplicitAutograd")
    return step


def _implementation(step: FusedStep) -> Callable[..., list[torch.Tensor]]:
    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        bound = {**dict(zip(step.names, args)), **kwargs}
        targets = step.targets(args, kwargs)
        if any(tensor.device.type == "meta" for tensor in targets):
            return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in targets]
        copies = {name: [tensor.clone() for tensor in bound[name]] for name in step.written}
        kept = {name: value for name, value in bound.items() if name not in copies}
        step.writing(**copies, **kept)
        return step.targets((), {**kept, **copies})

    return run
