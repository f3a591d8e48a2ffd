from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import argand
from argand import events

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def seen() -> Iterator[Counter[str]]:
    """How often each event came; fallbacks by their scope."""
    argand.reset()
    found: Counter[str] = Counter()

    def note(event: Any) -> None:
        found[event.name if event.name != "fallback" else f"fallback {event.data.get('scope')}"] += 1

    stop = events.bus.subscribe(note)
    yield found
    stop()
