"""Per-compile metrics, counters, the metrics file and the chrome trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand.events import CompileId, Event
from argand.report.chromium import ChromeTraceSink
from argand.report.metrics import Collector, CompilationMetrics


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    argand.reset()
    argand.metrics(clear=True)
    yield
    argand.metrics(clear=True)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


def test_one_compile() -> None:
    argand.compile(softmax, backend="native")(torch.randn(4, 8))
    (made,) = argand.metrics()
    assert (made.compile_id, made.co_name, made.co_filename) == ("0/0", "softmax", __file__)
    assert made.co_firstlineno == softmax.__code__.co_firstlineno
    assert made.graph_op_count == 2 and made.graph_input_count == 1 and made.graph_node_count == 4
    assert made.guard_count >= 1 and made.kernels >= 1 and made.cache_size == 0
    assert made.fail_type is None and made.restart_reasons == [] and made.fallbacks == []
    assert 0 < made.inductor_compile_time_s < made.backend_compile_time_s < made.entire_frame_compile_time_s
    assert 0 < made.code_gen_time_s <= made.inductor_compile_time_s
    assert {"capture_frame", "backend", "lower", "schedule", "codegen"} <= set(made.phases)
    assert made.end_time - made.start_time == pytest.approx(made.entire_frame_compile_time_s, abs=0.1)
    assert json.loads(json.dumps(made.as_dict())) == made.as_dict()


def test_recompile_and_cache_size() -> None:
    f = argand.compile(softmax, backend="eager")
    f(torch.randn(4, 8))
    f(torch.randn(4, 8, dtype=torch.float64))
    first, second = argand.metrics()
    assert (first.compile_id, second.compile_id) == ("0/0", "0/1")
    assert second.cache_size == 1 and any("dtype" in reason for reason in second.recompile_reasons)
    assert argand.counters()["recompiles"] == {"softmax": 1}


def test_symbolic_sizes_are_counted() -> None:
    f = argand.compile(softmax, backend="eager", dynamic=True)
    f(torch.randn(4, 8))
    (made,) = argand.metrics()
    assert made.shape_env_guard_count >= 1


def test_break_and_failure() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("here")
        return x

    argand.compile(breaks, backend="eager")(torch.ones(2))
    made = argand.metrics(clear=True)[0]
    assert made.compile_id == "0/0_1" and len(made.restart_reasons) == 1 and "print" in made.break_reasons[0]
    assert made.dynamo_time_before_restart_s > 0
    with pytest.raises(argand.errors.Unsupported):
        argand.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))
    (failed,) = argand.metrics()
    assert failed.fail_type == "Unsupported" and failed.fail_user_frame_filename == __file__
    assert failed.fail_user_frame_lineno == breaks.__code__.co_firstlineno + 2
    assert argand.counters()["frames"]["failed"] == 1


def test_program_that_raises() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        argand.compile(raises, backend="eager")(torch.ones(2))
    (made,) = argand.metrics()
    assert made.fail_type == "FrameRaised" and "mine" in str(made.fail_reason)
    assert argand.counters()["frames"]["raised"] == 1


def test_backward() -> None:
    argand.compile(softmax, backend="native")(torch.randn(4, 8, requires_grad=True)).sum().backward()
    forward, backward = argand.metrics()
    assert forward.is_forward and not backward.is_forward
    assert backward.compile_id == forward.compile_id and backward.co_name == "softmax"
    assert backward.kernels >= 1 and backward.inductor_compile_time_s > 0


def test_counters() -> None:
    f = argand.compile(softmax, backend="native")
    f(torch.randn(4, 8))
    found = argand.counters()
    assert found["graphs"] == {"captured": 1, "ops": 2} and found["frames"] == {"compiled": 1}
    assert found["kernels"]["generated"] >= 1
    argand.metrics(clear=True)
    assert argand.counters() == {}


def test_compiles_within_compiles_are_kept_apart() -> None:
    """A compile that begins while another is under way in the same thread (a backend that compiles)."""
    inner = argand.compile(lambda x: x * 2, backend="eager")

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        inner(torch.ones(2))
        return gm

    argand.compile(softmax, backend=backend)(torch.randn(2, 2))
    made = argand.metrics()
    assert [one.graph_op_count for one in made][-1] == 2
    assert all(one.fail_type is None for one in made)


def test_an_event_of_another_thread_does_not_mix() -> None:
    done: list[CompilationMetrics] = []
    collector = Collector(lambda made, compile_id: done.append(made))
    collector(Event("graph", "capture", CompileId(0, 0), 0))
    collector(Event("span_end", "capture", CompileId(0, 0), 0, {"span": "capture_frame", "seconds": 1.0, "ok": True}))
    assert done == []


def test_metrics_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    code = (
        "import torch, argand\n"
        "f = argand.compile(lambda x: x + 1, backend='eager')\n"
        "f(torch.ones(2)); f(torch.ones(2, dtype=torch.int32))"
    )
    for _ in range(2):
        warm.run(["-c", code], env={**os.environ, "ARGAND_METRICS": str(path)}, check=True, imported="compiler")
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    assert [row["compile_id"] for row in rows] == ["0/0", "0/1"] * 2
    assert len({row["pid"] for row in rows}) == 2
    assert set(CompilationMetrics().as_dict()) < set(rows[0])


def test_metrics_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    f = argand.compile(softmax, backend="eager")
    with argand.config.patch(metrics_file=str(tmp_path / "file" / "x")):
        with pytest.warns(UserWarning, match="no metrics in") as caught:
            f(torch.randn(2, 2))
            f(torch.randn(2, 2, dtype=torch.float64))
    assert len(caught) == 1 and len(argand.metrics()) == 2


def test_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "chrome.json"
    f = argand.compile(softmax, backend="native")
    with argand.config.patch(chrome_trace=str(path)):
        f(torch.randn(4, 8))
        assert json.loads(path.read_text() + "]")  # readable while it grows
    argand.compile(softmax, backend="eager")(torch.ones(1, 1))  # the setting is off: closed
    made = json.loads(path.read_text())
    assert {"name", "ts", "ph", "pid", "tid", "cat", "args"} <= set(made[0])
    begun = [event["name"] for event in made if event["ph"] == "B"]
    assert sorted(begun) == sorted(event["name"] for event in made if event["ph"] == "E")
    assert "capture_frame" in begun and made[0]["args"]["compile_id"] == "0/0"


def test_chrome_traces_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "chrome.json"
    event = Event("cache", "runtime", None, 0, {"outcome": "hit"})
    first, second = ChromeTraceSink(path), ChromeTraceSink(path)
    for _ in range(3):
        first(event)
        second(event)
    first.close()
    second.close()
    beside = tmp_path / f"chrome.{os.getpid()}.json"
    assert len(json.loads(path.read_text())) == len(json.loads(beside.read_text())) == 3
    again = ChromeTraceSink(path)  # the next run overwrites
    again(event)
    again.close()
    assert len(json.loads(path.read_text())) == 1


def test_chrome_trace_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = ChromeTraceSink(tmp_path / "file" / "x.json")
    with pytest.warns(UserWarning, match="no chrome trace"):
        sink(Event("cache", "runtime", None, 0, {"outcome": "hit"}))
    sink(Event("cache", "runtime", None, 0, {"outcome": "hit"}))
    sink.close()


def test_metrics_are_bounded() -> None:
    from argand.report.metrics import KEPT
    from argand.report.sinks import ProcessMetrics

    assert ProcessMetrics().finished.maxlen == KEPT
