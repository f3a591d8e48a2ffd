"""The structured trace as bytes: the line format, processes, threads, ranks, and that it never disturbs a run."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
import warm
from argand.events import CompileId, bus
from argand.report.reader import Reader
from argand.report.records import Record, digest_of
from argand.report.tracefile import TraceFile, process_rank
from argand.report.writer import TraceSink
from forks import fork
from trace_programs import read, traced

LINE = re.compile(r"V\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ argand/[\w/]+\.py:\d+\] \{.*\}")


def log_of(folder: Path) -> Path:
    (found,) = folder.glob("dedicated_log_torch_trace_*.log")
    return found


def named(records: list[Record], name: str) -> list[Record]:
    return [record for record in records if record.name == name]


@argand.compile(backend="eager")
def small(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.fixture(autouse=True)
def fresh() -> None:
    argand.reset()


def test_line_format(tmp_path: Path) -> None:
    with traced(tmp_path):
        small(torch.ones(2))
    payload: list[str] | None = None
    digest = ""
    for line in [*log_of(tmp_path).read_text().split("\n")[:-1], "V end"]:
        if line.startswith("\t"):
            assert payload is not None
            payload.append(line[1:])
            continue
        if digest:
            assert payload and digest_of("\n".join(payload).encode()) == digest
        payload, digest = [], ""
        if line != "V end":
            assert LINE.fullmatch(line), line
            digest = json.loads(line[line.index("] ") + 2 :]).get("has_payload", "")
    assert os.stat(log_of(tmp_path)).st_mode & 0o077 == 0


def test_what_a_compile_writes(tmp_path: Path) -> None:
    with traced(tmp_path):
        small(torch.ones(2))
    records = read(tmp_path)
    (start,) = named(records, "dynamo_start")
    assert start.stack[-1].name == "small" and start.stack[-1].filename == __file__
    (caller,) = [frame for frame in start.stack if frame.name == "test_what_a_compile_writes"]
    assert caller.source == "small(torch.ones(2))" and start.stack[-1].source == ""
    assert not any("argand/capture" in frame.filename for frame in start.stack)
    (graph,) = named(records, "dynamo_output_graph")
    assert graph.payload is not None and "def forward" in graph.payload.text()
    (metrics,) = named(records, "compilation_metrics")
    assert metrics.fields["co_name"] == "small" and metrics.fields["fail_type"] is None
    assert metrics.fields["restart_reasons"] == [] and metrics.fields["graph_op_count"] == 1
    assert {str(record.id) for record in records if record.id is not None} == {"[0/0]"}
    strings = [record.fields["value"][0] for record in records if record.kind == "str"]
    assert len(strings) == len(set(strings))


def test_a_graph_break_restarts_and_says_so_once(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        print("break")
        return x + 1

    with traced(tmp_path):
        argand.compile(broken, backend="eager")(torch.ones(3))
    records = read(tmp_path)
    (reason,) = named(records, "dynamo_graph_break_reason")
    assert str(reason.id) == "[0/0]" and reason.payload is not None and "print" in reason.payload.text()
    (restart,) = named(records, "restart")
    assert restart.payload is not None and restart.payload.json()["next_attempt"] == 1
    (told,) = named(records, "graph_breaks")
    assert str(told.id) == "[0/0_1]" and told.payload is not None
    facts = told.payload.json()
    assert facts["stack"][-1]["filename"] == __file__ and facts["stack"][-1]["source"] == 'print("break")'
    assert facts["remedies"] and facts["kind"] == "print" and not facts["frame_skipped"]
    (first, *_) = named(records, "compilation_metrics")
    assert len(first.fields["restart_reasons"]) == 1 and str(first.id) == "[0/0_1]"


def test_a_lazy_backward_belongs_to_its_forward(tmp_path: Path) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    with traced(tmp_path):
        result = argand.compile(loss, backend="aot_eager")(torch.ones(3, requires_grad=True))
        small(torch.ones(2))
        thread = threading.Thread(target=result.backward)
        thread.start()
        thread.join()
    records = read(tmp_path)
    (backward,) = named(records, "bwd_compilation_metrics")
    assert str(backward.id) == "[0/0]"
    assert backward.fields["co_name"].endswith("loss") and not backward.fields["is_forward"]


def test_graphs_after_passes_are_named_after_the_pass(tmp_path: Path) -> None:
    with traced(tmp_path), torch.no_grad():
        argand.compile(lambda x: torch.softmax(x, -1))(torch.ones(2, 3))
    assert [r.name for r in read(tmp_path) if r.name.startswith("aten_graph_after_")] == ["aten_graph_after_decompose"]


def test_program_that_argand_runs_begins_with_its_own_frame(tmp_path: Path) -> None:
    """Found in a report: each stack began with twelve frames of the command line's libraries."""
    script = tmp_path / "script.py"
    script.write_text("import torch\ndef main():\n    torch.compile(lambda x: x + 1)(torch.ones(2))\nmain()\n")
    environment = {**os.environ, "ARGAND_TRACE": str(tmp_path)}
    warm.run(["-m", "argand.cli", "run", script], env=environment, check=True, imported="compiler")
    starts = named(read(tmp_path), "dynamo_start")
    assert starts
    for start in starts:
        assert [frame.name for frame in start.stack][:2] == ["<module>", "main"], start.stack
        assert start.stack[0].filename == str(script)


def test_an_error_of_the_backend(tmp_path: Path) -> None:
    def refuses(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("no relu here")

    with traced(tmp_path), pytest.raises(argand.errors.BackendCompilerFailed):
        argand.compile(lambda x: x.relu(), backend=refuses)(torch.ones(2))
    records = read(tmp_path)
    (metrics,) = named(records, "compilation_metrics")
    assert metrics.fields["fail_type"] == "BackendCompilerFailed" and metrics.fields["fail_reason"] == "no relu here"
    (error,) = named(records, "dynamo_error")
    assert error.payload is not None and "Traceback" in error.payload.text()


def test_recompiles(tmp_path: Path) -> None:
    with traced(tmp_path):
        small(torch.ones(2))
        small(torch.ones(2, dtype=torch.int64))
    (made,) = named(read(tmp_path), "recompile_reasons")
    assert str(made.id) == "[0/1]" and made.payload is not None and "dtype" in str(made.payload.json())


def test_a_payload_that_cannot_be_made(tmp_path: Path) -> None:
    def fails() -> str:
        raise ValueError("no text")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with traced(tmp_path):
            bus.emit("mine", "test", fails)
            bus.emit("other", "test", "text")
    names = [record.name for record in read(tmp_path)]
    assert names == ["argand_version", "mine_failed", "other"]


def test_threads(tmp_path: Path) -> None:
    file = TraceFile(tmp_path)

    def write(number: int) -> None:
        for count in range(100):
            stack = file.stack([(f"/f{count}.py", count, f"g{number}")])
            fields = {"name": f"{number}-{count}", "encoding": "string"}
            file.write("artifact", fields, CompileId(number, 0), payload="x\n" * count)
            file.write("dynamo_start", {"stack": stack}, CompileId(number, 0))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    records = read(tmp_path)
    assert sum(record.kind == "artifact" for record in records) == 800
    assert sum(record.kind == "str" for record in records) == 100
    starts = [record for record in records if record.kind == "dynamo_start"]
    assert all(record.stack[0].filename == f"/f{record.stack[0].line}.py" for record in starts)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    sink = TraceSink(tmp_path)
    remove = bus.subscribe(sink)
    try:
        small(torch.ones(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
            child = fork()
        if child == 0:
            code = 1
            try:
                argand.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
                sink.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        argand.compile(lambda x: x * 5, backend="eager")(torch.ones(2))
    finally:
        remove()
        sink.close()
    assert len(list(tmp_path.glob("*.log"))) == 2
    reader = Reader(tmp_path)
    by_file: dict[Path | None, list[str]] = {}
    for record in reader:
        by_file.setdefault(record.file, []).append(record.kind)
        if record.kind == "dynamo_start":
            assert record.stack[-1].filename == __file__
    assert not reader.problems
    assert sorted(kinds.count("dynamo_start") for kinds in by_file.values()) == [1, 2]


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="no structured trace in") as caught, traced(tmp_path / "file" / "deeper"):
        assert small(torch.ones(2)).tolist() == [2, 2]
        small(torch.ones(2, dtype=torch.int64))
    assert len(caught) == 1


def test_a_full_disk_ends_the_trace_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, [3]

    def write(handle: int, data: Any) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.warns(UserWarning, match="No space left") as caught, traced(tmp_path):
        assert small(torch.ones(2)).tolist() == [2, 2]
    assert len(caught) == 1


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:100])))
    with traced(tmp_path):
        small(torch.ones(2))
    assert named(read(tmp_path), "compilation_metrics")


def test_rank_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with traced(tmp_path):
        small(torch.ones(2))
    assert log_of(tmp_path).name.startswith("dedicated_log_torch_trace_rank_3_")
    assert {record.rank for record in read(tmp_path)} == {3}
    assert '"rank":3' in log_of(tmp_path).read_text()


def test_rank_of_torch_distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "nonsense")
    assert process_rank() is None
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert process_rank() == 0
        with traced(tmp_path):
            small(torch.ones(2))
    finally:
        torch.distributed.destroy_process_group()
    assert log_of(tmp_path).name.startswith("dedicated_log_torch_trace_rank_0_")


@pytest.mark.parametrize("variable", ["ARGAND_TRACE", "TORCH_TRACE"])
def test_environment(tmp_path: Path, variable: str) -> None:
    code = "import torch, argand\nargand.compile(lambda x: x + 1, backend='eager')(torch.ones(2))"
    env = {name: value for name, value in os.environ.items() if name not in ("ARGAND_TRACE", "TORCH_TRACE")}
    env[variable] = str(tmp_path / "made" / "here")
    if variable == "TORCH_TRACE":  # which torch reads too, when it is imported
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
    else:
        warm.run(["-c", code], env=env, check=True, imported="compiler")
    assert named(read(tmp_path / "made" / "here"), "compilation_metrics")


def test_setting(tmp_path: Path) -> None:
    """Also of a function that was given to argand.compile before the setting was made; and off again."""
    with argand.config.patch(trace_dir=str(tmp_path)):
        small(torch.ones(2))
    small(torch.ones(2, dtype=torch.int64))
    assert [str(record.id) for record in named(read(tmp_path), "compilation_metrics")] == ["[0/0]"]


def test_nothing_listens_by_default() -> None:
    """Tracing off costs nothing: no sink is there for which texts would be made."""
    small(torch.ones(2))
    assert not any(isinstance(sink, TraceSink) for sink in bus.sinks)
    for name in ("guards", "bytecode", "output_code", "graph_code", "ir_pre_fusion"):
        assert not any("argand.report" in type(sink).__module__ for sink in bus.named.get(name, ()))


def test_under_torch_compile(tmp_path: Path) -> None:
    """What argand makes of torch.compile's graphs goes by torch's compile ids."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    with traced(tmp_path):
        torch.compile(f, backend="argand")(torch.randn(5))
    records = read(tmp_path)
    assert named(records, "inductor_output_code")
    ids = {record.id for record in records if record.kind != "str"}
    assert len(ids) == 1 and None not in ids
    (metrics,) = [record.fields for record in records if record.kind == "compilation_metrics"]
    assert metrics["co_name"] == "f" and metrics["co_filename"] == __file__
    assert metrics["graph_op_count"] == 2 and metrics["fail_type"] is None
    assert 0 < metrics["inductor_compile_time_s"] <= metrics["entire_frame_compile_time_s"]
    kinds = [record.kind for record in records]
    assert kinds.count("dynamo_start") == kinds.count("dynamo_output_graph") == 1
