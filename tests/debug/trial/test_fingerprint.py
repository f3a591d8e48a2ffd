"""What makes two failures the same one."""

from __future__ import annotations

import pytest

from argand.debug.trial.fingerprint import Fingerprint, normalise


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("size mismatch, got input (32), mat (32x200), vec (300)", "size mismatch, got input (3), mat (3x2), vec (5)"),
        ("bad pointer 0x7ffe12 in /tmp/a/b.py", "bad pointer 0x12 in /home/c/d/e.py"),
        ("the lowering of add_17 failed", "the lowering of add failed"),
        ("shape [2, 3, 4] is wrong", "shape [1] is wrong"),
    ],
)
def test_messages_of_one_failure(one: str, two: str) -> None:
    assert normalise(one) == normalise(two)


def test_messages_of_two_failures() -> None:
    assert normalise("no kernel for relu") != normalise("no kernel for sin")
    assert "maximum" in normalise("Output:\nk.cpp:3:1: error: no matching function for call to 'maximum(u8&, int&)'")


def test_wrong_values_of_another_order_are_another_failure() -> None:
    def wrong(size: float, output: str = "y", kind: str = "value") -> Fingerprint:
        return Fingerprint("raised", "AccuracyError", "accuracy", "", output, kind, size)

    assert wrong(0.5).matches(wrong(0.4))
    assert not wrong(0.5).matches(wrong(1e-5)), "noise is not the error that was seen"
    assert not wrong(0.5).matches(wrong(0.5, kind="nan"))
    assert wrong(0.5).matches(wrong(0.5, "x"), frozenset(["x", "y"]))
    assert not wrong(0.5).matches(wrong(0.5, "z"), frozenset(["x", "y"]))
