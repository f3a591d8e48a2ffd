"""Tables of installed packages that a call fills: what a package finds out once in a process, and looks up from then
on.

What is captured of such a call asks for what was not there yet, so that no other call can use it.
"""

from __future__ import annotations

import sys

from argand.capture.facts.code.skip import library_of
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.overlays import DELETED, Shadow
from argand.capture.facts.sources import ConstSource, GlobalSource, ImportedSource, InstanceDictSource, Source
from argand.capture.record.guards import Guard
from argand.capture.world import pending_effects

_OF_THE_PROCESS = ConstSource | GlobalSource | ImportedSource
_NO_PACKAGES = frozenset(("", "torch", *sys.stdlib_module_names))


def fills_one(state: CaptureState) -> bool:
    """Whether code of a package found that a table of the process lacks something, and put it there."""
    added = _added(state)
    return bool(added) and any(_asked(guard, added) for guard in state.guards)


def _added(state: CaptureState) -> dict[Source, set[object]]:
    """The keys that dicts get in this call, and did not have."""
    added: dict[Source, set[object]] = {}
    for entry in pending_effects.pending(state):
        source = entry.source if isinstance(entry, Shadow) else state.source_of(entry.obj)
        if source is None or not is_a(source.root, _OF_THE_PROCESS):
            continue
        if isinstance(entry, Shadow):
            if isinstance(entry.original, dict):
                added[source] = set(dict.keys(entry.shadow) - dict.keys(entry.original))
        elif entry.kind == "attr":
            names = {name for name, value in entry.values.items() if value is not DELETED}
            added[InstanceDictSource(source)] = set(names)
    return added


def _asked(guard: Guard, added: dict[Source, set[object]]) -> bool:
    if guard.source is None or guard.kind not in ("dict_keys", "not_has_key") or guard.position is None:
        return False
    if library_of(guard.position[0].co_filename) in _NO_PACKAGES:
        return False
    keys = added.get(guard.source, set())
    return bool(keys) and (guard.kind == "dict_keys" or guard.args[0] in keys)
