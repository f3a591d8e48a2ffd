"""Compiled calls after each of which more is alive than before, where eager ones leave nothing."""

from __future__ import annotations

import itertools

from argand.debug.doctor.records import Difference, Run

_STEADY = {"tensors": 3, "objects": 5, "bytes": 5}  # calls in a row that each leave more alive
_LEAST = {"tensors": 1, "objects": 1, "bytes": 1 << 16}  # that one call must leave for it to be a leak


def _growth(run: Run) -> dict[tuple[str, str], int]:
    """By function and kind: what each of its last calls left alive; 0 where that does not grow steadily."""
    counts: dict[tuple[str, str], list[int]] = {}
    for call in run.calls:
        for kind, number in call.held.items():
            counts.setdefault((call.function, kind), []).append(number)
    found = {}
    for key, numbers in counts.items():
        steps = [b - a for a, b in itertools.pairwise(numbers)][-_STEADY[key[1]] :]
        found[key] = min(steps) if len(steps) == _STEADY[key[1]] else 0
    return found


def leaks(eager: Run, other: Run) -> Difference | None:
    """The leak of a run that an eager one does not have."""
    before, after = _growth(eager), _growth(other)
    for kind, least in _LEAST.items():
        grown = {
            name: n for (name, k), n in after.items() if k == kind and n >= max(before.get((name, k), 0), 0) + least
        }
        if grown:
            name, count = max(grown.items(), key=lambda item: item[1])
            what = {"tensors": "more tensor", "objects": "more object", "bytes": "more byte"}[kind]
            text = f"each call of {name} leaves {count} {what}{'s' if count > 1 else ''} alive than the call before"
            return Difference("leak", text, function=name)
    return None
