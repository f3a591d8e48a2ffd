"""The event bus."""

from __future__ import annotations

import pytest

from argand.events import CompileId, Event, EventBus


def test_payload_is_made_only_for_listeners() -> None:
    bus, made = EventBus(), []

    def payload() -> str:
        made.append(1)
        return "text"

    bus.emit("graph", "capture", payload)
    assert not made
    seen: list[Event] = []
    remove = bus.subscribe(seen.append)
    bus.emit("graph", "capture", payload, nodes=3)
    assert seen[0].text() == "text" and seen[0].data == {"nodes": 3}
    remove()
    bus.emit("graph", "capture", payload)
    assert len(seen) == 1


def test_compile_id_and_spans() -> None:
    bus, seen = EventBus(), []
    bus.subscribe(seen.append)
    with bus.compiling(CompileId(2, 1, 3)):
        with pytest.raises(ValueError), bus.span("lower", "lower"):
            raise ValueError
    assert [str(e.compile_id) for e in seen] == ["2/1_3", "2/1_3"]
    assert seen[1].data["ok"] is False and seen[1].data["seconds"] >= 0
    bus.emit("x", "y")
    assert seen[-1].compile_id is None


def test_a_raising_sink_is_dropped_and_others_still_served() -> None:
    bus, seen = EventBus(), []

    def bad(_: Event) -> None:
        raise RuntimeError("sink")

    bus.subscribe(bad)
    bus.subscribe(seen.append)
    with pytest.warns(UserWarning, match="sink"):
        bus.emit("a", "b")
    bus.emit("c", "d")
    assert [e.name for e in seen] == ["a", "c"]
