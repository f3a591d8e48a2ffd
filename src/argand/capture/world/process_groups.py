"""Process groups that captured code depends on: code is valid while the group of a name has its size and rank."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType

from argand.capture.facts.interfaces import CaptureState


def c10d() -> ModuleType:
    return sys.modules["torch.distributed.distributed_c10d"]


def group_facts(name: str | None) -> tuple[str, int, int] | None:
    """Name, size and own rank of the group of a name, or of the default one; None where there is none."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return None
    try:
        group = module._get_default_group() if name is None else module._resolve_process_group(name)
    except (LookupError, RuntimeError, ValueError):
        return None
    return group.group_name, group.size(), group.rank()


@functools.cache
def asking(ask: Callable[..., object], *args: object) -> Callable[[], object]:
    """The check of a guard that asks again; the same object for the same question."""
    return functools.partial(ask, *args)


def guarded_facts(state: CaptureState, name: str | None) -> tuple[str, int, int] | None:
    """`group_facts`, which are guarded where there is such a group."""
    facts = group_facts(name)
    if facts is not None:
        state.guards.of_rank = True
        state.guards.add(None, "global_state", ((asking(group_facts, name), facts),), label="GLOBAL_STATE")
    return facts
