"""Calls that are recorded, as later processes make them again: of the same program, under the same conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from argand import events
from argand.runtime.gpu.cuda_graphs.graphs import Recorded, Roles
from argand.runtime.gpu.cuda_graphs.recorder import Recorder, recorder_of
from argand.runtime.host import HostCall
from argand.runtime.recipes import with_recipe

Told = tuple[Any, ...]
"""Of a call that is recorded: the kind of its program, the device's index, whether it was asked for, its roles."""


def recorded(
    call: HostCall,
    recorder: Callable[[int], Recorder],
    index: int,
    *,
    name: str,
    kind: str,
    asked: bool,
    roles: Roles,
) -> Recorded:
    """`call`, recorded on a device, with a recipe.

    Arguments:
        name: of the graph, for events.
        kind: of the program: "forward", "backward", "inference".
        others: of `Recorded`.
    """
    made = Recorded(call, recorder(index), name=name, roles=roles, asked=asked)
    return with_recipe(made, "recorded", lambda: (call, (kind, index, asked, *roles.described())))


def recorded_again(call: HostCall, told: Told) -> Recorded:
    """What an earlier process made of a call of the same program."""
    kind, index, asked, *roles = told
    name = f"model__{events.bus.number('model')}_{kind}"
    return recorded(call, recorder_of, index, name=name, kind=kind, asked=asked, roles=Roles.of(roles))
