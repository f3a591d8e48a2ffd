"""What logs, traces and profiles cost where nobody asked for any."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import argand
from argand.events import bus

OBSERVERS = tuple(
    os.path.join(os.path.dirname(argand.__file__), name) for name in ("events.py", f"debug{os.sep}", f"report{os.sep}")
)


def observers_called(function: Callable[[], Any]) -> list[str]:
    """Functions of the event bus and of what listens to it that are called meanwhile."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OBSERVERS):
            found.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("kind", ["inference", "training", "break", "sizes"])
def test_warm_call_reaches_no_observer(kind: str) -> None:
    argand.reset()
    layer = torch.nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        if kind == "break":
            argand.graph_break()
        return (y * 2).sum()

    compiled = argand.compile(f, dynamic=kind == "sizes")
    sizes = [3, 4, 5, 6] if kind == "sizes" else [3] * 4

    def call(size: int) -> None:
        with torch.set_grad_enabled(kind == "training"):
            out = compiled(torch.ones(size, 4))
        if kind == "training":
            out.backward()

    for size in sizes[:3]:
        call(size)
    assert observers_called(lambda: call(sizes[3])) == []
    assert observers_called(lambda: bus.emit("seen", "test")) != []  # the count counts


def test_without_listeners_no_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling makes no artifact that nobody reads: `bus.emit` hands nothing on."""
    argand.reset()
    assert not bus.sinks, "a test before this one left a sink"
    heard: list[str] = []
    monkeypatch.setattr(bus, "_deliver", lambda sinks, name, *rest: heard.append(name))
    compiled = argand.compile(lambda x: (x.sin() * 2).sum())
    compiled(torch.ones(7, requires_grad=True)).backward()
    assert "captured" in heard  # what argand.metrics() counts is always listened to
    assert not set(heard) - set(bus.named), "an event without a listener was delivered"
    texts = {"ir_pre_fusion", "ir_post_fusion", "output_code", "graph_code", "bytecode", "aot_joint_graph", "guards"}
    assert not texts & set(heard)
