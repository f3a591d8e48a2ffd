"""What a call writes over what its own guards ask for, so that no other call can use what is captured of it.

Tables of installed packages that a call fills: what a package finds out once in a process, and looks up from then on.
Numbers that a call counts up.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from argand.capture.facts.code.skip import library_of
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import answers_itself, is_a, namespace
from argand.capture.facts.overlays import DELETED, Overlay, Shadow
from argand.capture.facts.sources import (
    ConstSource,
    DictItemSource,
    GlobalSource,
    ImportedSource,
    InstanceDictSource,
    Source,
)
from argand.capture.record.guards import Guard
from argand.capture.sizes.symbolic_state import Restart
from argand.capture.world import pending_effects

_Held = dict[object, object]
_OF_THE_PROCESS = ConstSource | GlobalSource | ImportedSource
_NO_PACKAGES = frozenset(("", *sys.stdlib_module_names))


def fills_one(state: CaptureState, filled: set[object]) -> bool:
    """Whether code of a package found that a table of the process lacks something, or a class of it, and put it
    there for good: no result with gradients, which is this call's.

    Arguments:
        filled: what earlier calls put into tables; what is put there once more was taken out again.
    """
    added = {  # looked at past methods of a class of the program's
        source: [
            key
            for key, value in dict.items(new)
            if _is_plain(key) and not (dict.__contains__(old, key) or _of_this_call(value))
        ]
        for source, (old, new) in _written(state).items()
        if is_a(source.root, _OF_THE_PROCESS)
    }
    places = {(source.name(), key) for source, keys in added.items() for key in keys}
    if not places <= filled and any(_asked(guard, added) for guard in state.guards):
        filled |= places
        return True
    return any(map(_fills_class, pending_effects.pending(state)))


def _fills_class(entry: Shadow | Overlay) -> bool:
    """Whether a package's class gets an attribute that it had not, or that was None: the one object of a class."""
    if isinstance(entry, Shadow) or entry.kind != "attr" or not is_a(entry.obj, type):
        return False
    before = {name: inspect.getattr_static(entry.obj, name, DELETED) for name in entry.values}
    if all(was is not DELETED and (was is not None or entry.values[name] is None) for name, was in before.items()):
        return False
    module = type.__dict__["__dict__"].__get__(entry.obj).get("__module__")
    file = getattr(sys.modules.get(module if is_a(module, str) else ""), "__file__", None)
    return is_a(file, str) and library_of(file) not in _NO_PACKAGES


_AT_FIRST = (("_step_count", 1), ("_scale", None))


def begins_training(state: CaptureState) -> bool:
    """Whether an optimizer takes its first step, in which it makes what it keeps of parameters, or a scaler; or a
    schedule of learning rates, which looks then whether it comes behind a step."""
    grown: set[int] = set()
    for entry in pending_effects.pending(state):
        if isinstance(entry, Shadow):
            old, new = entry.original, entry.shadow
            if is_a(old, dict) and is_a(new, dict) and dict.__len__(new) > dict.__len__(old):
                grown.add(id(old))
        elif entry.kind == "attr" and is_a(entry.obj, LRScheduler | GradScaler):
            if any((namespace(entry.obj) or {}).get(name, 0) is value for name, value in _AT_FIRST):
                return True
    known = map(state.object_by_id, state.outer if grown else ())
    return any(is_a(obj, Optimizer) and id((namespace(obj) or {}).get("state")) in grown for obj in known)


def note_counts(state: CaptureState) -> None:
    """Numbers that are guarded, and written over, vary from the first call on.

    Raises:
        Restart: there are such numbers.
    """
    if state.policy is None:
        return
    varying, fixed = state.policy.history.varying, state.policy.history.fixed
    written, before = _written(state), len(varying)
    for guard in state.guards if written else ():
        source = guard.source
        if guard.kind != "equals" or not is_a(source, DictItemSource) or type(guard.args[0]) not in (int, float):
            continue
        value = dict.get(written[source.parent][1], source.key) if source.parent in written else None
        place = f"{source.name()}: {type(guard.args[0]).__name__}"
        if type(value) is type(guard.args[0]) and value != guard.args[0] and place not in fixed:
            varying.add(place)
    if len(varying) > before and state.policy.automatic:
        raise Restart


def _written(state: CaptureState) -> dict[Source, tuple[_Held, _Held]]:
    """The dicts that the call writes to: what they held before, and what they hold or get."""
    written: dict[Source, tuple[_Held, _Held]] = {}
    for entry in pending_effects.pending(state):
        source = entry.source if isinstance(entry, Shadow) else state.source_of(entry.obj)
        if source is None:
            continue
        if isinstance(entry, Shadow):
            if isinstance(entry.original, dict):
                written[source] = entry.original, entry.shadow
        elif entry.kind == "items":
            written[source] = entry.obj, entry.values
        elif entry.kind == "attr":
            values: dict[object, object] = {name: new for name, new in entry.values.items() if new is not DELETED}
            before: dict[object, object] = dict(namespace(entry.obj) or {})
            written[InstanceDictSource(source)] = before, values
    return written


def _asked(guard: Guard, added: Mapping[Source, Sequence[object]]) -> bool:
    if guard.source is None or guard.kind not in ("dict_keys", "not_has_key") or guard.position is None:
        return False
    if library_of(guard.position[0].co_filename) in _NO_PACKAGES:
        return False
    keys = added.get(guard.source, ())
    return bool(keys) and (guard.kind == "dict_keys" or guard.args[0] in keys)


def _of_this_call(value: object) -> bool:
    return is_a(value, torch.Tensor) and value.requires_grad


def _is_plain(key: object) -> bool:
    """Whether no code of the program runs where it is looked up."""
    if type(key) is tuple:
        return all(map(_is_plain, key))
    return type(key) is str or type(key) is int or (is_a(key, type) and not answers_itself(key))
