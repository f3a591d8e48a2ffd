"""Python attributes of tensors: those that were set before the frame are read from the real tensor, under guards."""

from __future__ import annotations

import os
import types
from typing import Any

import torch

from argand.capture.facts import classify
from argand.capture.facts.frames import NULL
from argand.capture.facts.interfaces import CaptureState, Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import DictItemSource, instance_dict
from argand.capture.sizes import subclasses
from argand.capture.world.pending_effects import pending
from argand.errors import GraphBreak, graph_break
from argand.graph import wrappers

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


def read(state: CaptureState, tensor: torch.Tensor, name: str) -> object:
    """An attribute that the stand-in does not have: the real tensor's, or NULL."""
    if classify.awaits(type(tensor)) and classify.is_slot(type(tensor), name):
        raise graph_break(
            kind="tensor state known only at run time",
            context=name,
            explanation=f"{name} of what a functional collective gives is known only when the program runs.",
            hints=("read it outside the compiled function, or use wait()",),
        )
    info = state.tensor_info(tensor)
    if info.source is None or info.real is None:
        return NULL
    base = instance_dict(state.interpreter.types, info.source, info.real)
    held = object.__getattribute__(info.real, "__dict__")
    shadow = state.shadows.get(id(held))
    if shadow is not None:  # the program has written to tensor.__dict__
        return shadow.shadow.get(name, NULL)
    if name not in held:
        state.guard(base, "not_has_key", name)
        return NULL
    return state.load_source(DictItemSource(base, name), held[name])


def of_the_program(attribute: object) -> bool:
    """Whether what torch.Tensor has under a name is Python code that was put there: it is interpreted like any other.
    What torch's own answers is asked of the stand-in."""
    code = attribute.fget if is_a(attribute, property) else attribute
    return is_a(code, types.FunctionType) and not code.__code__.co_filename.startswith(_TORCH)


def of_legacy_type(state: CaptureState, tensor: torch.Tensor, legacy: Any) -> bool:
    """`isinstance(tensor, torch.FloatTensor)`: such a type stands for a dtype and a kind of device and layout."""
    info = state.tensor_info(tensor)
    if info.source is not None and info.real is not None:
        with torch._C.DisableTorchFunction():
            return isinstance(info.real, legacy)
    device = "cpu" if legacy.__module__ in ("torch", "torch.sparse") else legacy.__module__.split(".")[1]
    layout: object = legacy.layout
    return bool(tensor.dtype == legacy.dtype and info.device.type == device and tensor.layout == layout)


def delete(interp: Interpreter, tensor: torch.Tensor, name: str) -> bool:
    """Delete an attribute that captured code has set on a tensor of its own; False where it is another case."""
    held = object.__getattribute__(tensor, "__dict__")
    if name not in held or interp.state.source_of(tensor) is not None:
        return False
    if interp.types.lookup(type(tensor), name) is not NULL:
        return False
    del held[name]
    return True


def namespace(state: CaptureState, tensor: torch.Tensor) -> object:
    """`tensor.__dict__`; that of a tensor from outside is an outer dict."""
    held = object.__getattribute__(tensor, "__dict__")
    info = state.tensor_info(tensor)
    if info.source is None or info.real is None:
        return held
    if held:
        raise graph_break(kind="attributes of a tensor looked at", context="__dict__")
    source = instance_dict(state.interpreter.types, info.source, info.real)
    return state.load_source(source, object.__getattribute__(info.real, "__dict__"))


def on_cpu(state: CaptureState, tensor: torch.Tensor) -> bool:
    """Whether the tensor that a stand-in stands for is on the CPU."""
    return bool(state.tensor_info(tensor).device.type == "cpu")


def refuse_write(state: CaptureState, tensor: torch.Tensor, name: str) -> None:
    """End the graph where an attribute is set on a tensor whose namespace is being looked at as a whole."""
    if id(tensor) not in state.tensors and id(tensor) not in state.graph.dressed:
        return
    info = state.tensor_info(tensor)
    if info.source is None or info.real is None:
        return
    if state.is_outer(object.__getattribute__(info.real, "__dict__")):
        raise graph_break(
            kind="attribute of a tensor written",
            context=name,
            explanation=f"The attribute {name} is set after the tensor's __dict__ was read as a whole.",
        )


def of_wrapper(cls: type, name: str) -> GraphBreak:
    """The break for attributes of a tensor that wraps others, whose graph was told what it is made of."""
    return graph_break(
        kind="attribute of a tensor written",
        context=name,
        explanation=f"The attributes of a {cls.__name__} are what it is made of, and {name} is to change them.",
    )


def any_pending(state: CaptureState) -> bool:
    """Whether the program has done something visible besides computing tensors."""
    return bool(state.said) or any_held_back(state)


def any_held_back(state: CaptureState) -> bool:
    """Whether there is anything that code run at this moment would not see yet."""
    return bool(state.extra_effects or pending(state)) or any_written(state)


def any_written(state: CaptureState) -> bool:
    """Whether the program has set attributes of tensors that existed before."""
    return any(
        info.source is not None and written(subclasses.shown(state.graph, info.tensor))
        for info in state.tensors.values()
    )


def written(shown: torch.Tensor) -> dict[str, object]:
    """What the program has set on the stand-in of a tensor from outside."""
    return {} if wrappers.holds_parts(type(shown)) else vars(shown)  # which is made of its attributes
