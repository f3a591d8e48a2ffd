"""What a function can see."""

from __future__ import annotations

from argand.debug.trial.scope import changed, plain_state

SCALE = 2.0


def test_what_changed_between_calls() -> None:
    def fn(x: float) -> float:
        return x * SCALE

    before = plain_state(fn, (1.0,), {})
    assert before["global SCALE"] == "2.0"
    now = {**before, "global SCALE": "3.0"}
    assert changed(before, now) == ["global SCALE: 2.0 -> 3.0"]
