"""Calls that are recorded, or not, as later processes make them again of the same programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from argand import events
from argand.runtime.gpu.cuda_graphs.graphs import Recorded, Roles, tell
from argand.runtime.gpu.cuda_graphs.recorder import Recorder, recorder_of, unfit_memory
from argand.runtime.host import HostCall
from argand.runtime.recipes import with_recipe

Told = tuple[Any, ...]
"""Of a call: the kind of its program, whether recording it was asked for, and why its program is not recorded; else "",
the device's index, and its roles."""


def recorded(
    call: HostCall,
    recorder: Callable[[int], Recorder],
    index: int,
    *,
    name: str,
    kind: str,
    asked: bool,
    roles: Roles,
) -> HostCall:
    """`call`, recorded on a device, with a recipe; as it is where this process can record nothing.

    Arguments:
        name: of the graph, for events.
        kind: of the program: "forward", "backward", "inference".
        asked, roles: of `Recorded`.
    """
    told = (kind, asked, "", index, *roles.described())
    reason = unfit_memory()
    if reason:
        return _as_it_is(call, reason, name, asked, told)
    recording = Recorded(call, recorder(index), name=name, roles=roles, asked=asked)
    return with_recipe(recording, "recorded", lambda: (call, told))


def not_recorded(call: HostCall, reason: str, *, name: str, kind: str, asked: bool) -> HostCall:
    """`call` as it is, after saying why its program is recorded by no process."""
    return _as_it_is(call, reason, name, asked, (kind, asked, reason))


def _as_it_is(call: HostCall, reason: str, name: str, asked: bool, told: Told) -> HostCall:
    """A function of its own, for a call may be shared with programs that are recorded."""
    tell(name, reason, asked)

    def run(args: list[Any]) -> tuple[Any, ...]:
        return call(args)

    return with_recipe(run, "recorded", lambda: (call, told))


def recorded_again(call: HostCall, told: Told) -> HostCall:
    """What an earlier process made of a call of the same program."""
    kind, asked, reason, *how = told
    name = f"model__{events.bus.number('model')}_{kind}"
    if reason:
        return not_recorded(call, reason, name=name, kind=kind, asked=asked)
    return recorded(call, recorder_of, how[0], name=name, kind=kind, asked=asked, roles=Roles.of(how[1:]))
