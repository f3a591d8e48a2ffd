"""The trace of a step that bench/distributed.py writes shows reductions under way while the backward goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import warm
from distributed.ranks import ROOT, TIMEOUT, environment


@pytest.mark.distributed
def test_the_trace_shows_reductions_beside_the_backward(tmp_path: Path) -> None:
    """By the order of what one thread does, not by times: a reduction is begun before the last part's backward is,
    and runs in a thread of its own."""
    path = tmp_path / "overlap.json"
    command = [ROOT / "bench" / "distributed.py", "--trace", path, "--models", "cnn", "--bucket-mb", "0.01"]
    found = warm.run(command, env=environment(), timeout=TIMEOUT, imported="ranks")
    assert found.returncode == 0, found.stderr[-4000:]
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert {"rank 0", "rank 1"} <= names.keys()
    for rank in ("rank 0", "rank 1"):
        spans = [event for event in events if event.get("ph") == "X" and event["pid"] == names[rank]]
        backwards = _named(spans, "CompiledFunctionBackward")
        begun = _named(spans, "c10d::allreduce_")
        running = _named(spans, "gloo:all_reduce")
        assert len(backwards) > 1 and len(begun) > 1 and len(running) >= len(begun)
        assert {event["tid"] for event in begun} == {event["tid"] for event in backwards}
        assert not {event["tid"] for event in running} & {event["tid"] for event in backwards}
        assert begun[0]["ts"] < backwards[-1]["ts"]


def _named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return sorted((event for event in spans if event["name"] == name), key=lambda event: float(event["ts"]))
