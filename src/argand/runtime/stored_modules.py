"""Host modules that an earlier process stored, loaded by their key."""

from __future__ import annotations

import base64
import contextlib
import json
import marshal
from collections.abc import Callable
from typing import Any

import torch

from argand import events
from argand.errors import CacheError
from argand.graph.nodes import literals
from argand.interruptions import let_pass
from argand.runtime import cache
from argand.runtime.environment import gpu
from argand.runtime.host import HostCall, load_module
from argand.runtime.kernels.calm import is_quiet
from argand.runtime.recipes import recipe_of, with_recipe


def load(key: str, kind: str, model: int = -1) -> tuple[HostCall, int] | None:
    """The callable that is stored under a key, and the number of its model; None when there is none that works, or one
    whose ways were to be timed and could not, which now they can.

    Arguments:
        kind: "forward", "backward" or "inference".
        model: number of the captured graph that it belongs to; -1: the next.
    """
    data = cache.find(key, cache.PROGRAM)
    if data is None:
        return None
    if model < 0:
        model = events.bus.number("model")
    number = events.bus.number("compiled graph")
    name = f"model__{model}_{kind}_{number}"
    try:
        stored = json.loads(data)
        if stored["guessed"] and is_quiet():
            events.emit("cache", "backend", f"{key}: what was not known is timed now", outcome="stale", key=key)
            return None
        code, told = marshal.loads(base64.b64decode(stored["code"])), stored["events"]
        _check_gpus(stored["gpus"])
        constants = {name: literals.unpacked(*held) for name, held in stored["constants"].items()}
        with events.span("compile_graph", "backend", graph=name, kind=kind, number=model, stored=True):
            with events.span("load", "runtime"):
                call: HostCall = load_module(code, constants, graph=f"graph_{number}").call
            for event in told:
                events.emit(event["name"], event["stage"], event["text"], **event["data"])
    except Exception as error:  # whatever is wrong with the entry, the program can be compiled
        let_pass(error)
        events.emit("cache", "backend", f"{key}: {error}; compiled anew", outcome="corrupt", key=key)
        return None
    return marked(call, key, kind), model


def _check_gpus(known: dict[str, str]) -> None:
    """Raises CacheError where one of the GPUs that code is for is another now: its name is the same."""
    for name, about in known.items():
        if gpu(torch.device(name)) != about:
            raise CacheError(f"{name} is another GPU than it was", remedy="the graph is compiled for this one")


def marked(call: HostCall, key: str, kind: str) -> HostCall:
    """`call`, which a later process can load by its key."""
    with contextlib.suppress(AttributeError, TypeError):  # one that takes no attributes cannot be told of
        with_recipe(call, "program", lambda: (key, kind))
    return call


def kept_as(call: Callable[..., Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Where a call's program is stored, and of one that is recorded as a CUDA graph, how; None if it is not stored."""
    recipe, told = recipe_of(call), ()
    if recipe is not None and recipe.kind == "recorded":
        inner, told = recipe.parts()
        recipe = recipe_of(inner)
    if recipe is None or recipe.kind != "program":
        return None
    return str(recipe.parts()[0]), told


def key_of(call: Callable[..., Any]) -> str:
    """The key of the program of a call.

    Raises:
        CacheError: it is not stored.
    """
    kept = kept_as(call)
    if kept is None:
        raise CacheError("the program is not kept", remedy="it is this process's alone")
    return kept[0]


def text_of(key: str) -> str:
    """The text of the host module that is stored under a key.

    Raises:
        CacheError: it is not there any more, or is more than a text.
    """
    data = cache.find(key, cache.PROGRAM)
    if data is None:
        raise CacheError(f"the program {key} is not in the cache", remedy="compile again")
    stored = json.loads(data)
    if stored["constants"]:
        raise CacheError(f"the program {key} holds tensors", remedy="compute them from the arguments")
    text: str = stored["text"]
    return text


def call_of_text(text: str, kind: str) -> HostCall:
    """The callable of a host module."""
    number = events.bus.number("compiled graph")
    name = f"model__{events.bus.number('model')}_{kind}_{number}"
    with events.span("compile_graph", "backend", graph=name, kind=kind, stored=True), events.span("load", "runtime"):
        call: HostCall = load_module(text, {}, graph=f"graph_{number}").call
    return call


def stored_call(key: str, kind: str) -> HostCall:
    """The callable that is stored under a key.

    Raises:
        CacheError: it is not there any more.
    """
    loaded = load(key, kind)
    if loaded is None:
        raise CacheError(f"the program {key} is not in the cache", remedy="it is compiled again")
    return loaded[0]
