"""Round trips with torch's own tools: tlparse reads argand's traces, argand's reader reads torch.compile's."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.report.records import Record
from trace_programs import read, run_program, tlparse, tlparse_binary, traced

WAYS = {
    # records that tlparse writes out under their own name
    "dynamo_output_graph": "txt",
    "aot_joint_graph": "txt",
    "aot_forward_graph": "txt",
    "aot_backward_graph": "txt",
    "aot_inference_graph": "txt",
    "dynamo_cpp_guards_str": "txt",
}


@pytest.fixture(scope="module")
def argand_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("argand")
    run_program("argand", "native", folder, ARGAND_TRACE=str(folder / "trace"))
    return next((folder / "trace").glob("*.log"))


@pytest.fixture(scope="module")
def pages(argand_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages") / "out"
    said = tlparse(argand_trace, out, "--strict-compile-id", "--plain-text")
    assert re.search(r"Stats \{ ok: \d+ \}", said), said  # nothing failed, nothing unknown
    return out


COMPILED_AUTOGRAD = """
x = torch.randn(4, 5, requires_grad=True)
with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", dynamic=True)):
    (x.sin() * x).sum().backward()
"""


@pytest.fixture(scope="module")
def torch_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    run_program("torch", "aot_eager", folder, more=COMPILED_AUTOGRAD, TORCH_TRACE=str(folder / "trace"))
    return next((folder / "trace").glob("*.log"))


def of(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record.kind == kind]


def artifacts(records: list[Record], name: str) -> list[Record]:
    return [record for record in records if record.kind == "artifact" and record.name == name]


def rounded(text: str) -> Any:
    """JSON with numbers rounded: tlparse reads the last digit of some differently."""
    return json.loads(text, parse_float=lambda number: round(float(number), 6))


def page_texts(pages: Path, record: Record, extension: str) -> list[str]:
    """What tlparse wrote for records of this name and compile id."""
    assert record.id is not None
    found = (pages / record.id.directory).glob(f"{record.name}_*.{extension}")
    exact = [path for path in found if re.fullmatch(re.escape(record.name) + r"_\d+", path.stem)]
    return [path.read_text() for path in exact]


def test_no_line_fails(pages: Path) -> None:
    assert (pages / "index.html").exists()


@pytest.mark.parametrize("kind", sorted(WAYS))
def test_record_by_record(argand_trace: Path, pages: Path, kind: str) -> None:
    found = of(read(argand_trace), kind)
    assert found, f"no {kind} in the trace"
    for record in found:
        assert record.payload is not None
        assert record.payload.text() in page_texts(pages, record, WAYS[kind])


def test_artifact_by_artifact(argand_trace: Path, pages: Path) -> None:
    found = of(read(argand_trace), "artifact")
    names = {record.name for record in found}
    assert {"ir_pre_fusion", "ir_post_fusion", "kernel_code", "bytecode", "inductor_post_grad_graph"} <= names
    assert {"dynamo_graph_break_reason", "graph_breaks", "restart", "recompile_reasons", "dynamo_error"} <= names
    for record in found:
        assert record.payload is not None
        if record.fields["encoding"] == "json":
            written = [json.loads(text) for text in page_texts(pages, record, "json")]
            assert record.payload.json() in written, record.name
        else:
            assert record.payload.text() in page_texts(pages, record, "txt"), record.name


def test_output_code(argand_trace: Path, pages: Path) -> None:
    found = of(read(argand_trace), "inductor_output_code")
    assert found
    for record in found:
        assert record.id is not None and record.payload is not None
        written = [p.read_text() for p in (pages / record.id.directory).glob("inductor_output_code_*")]
        assert record.payload.text() in written


def test_provenance(argand_trace: Path, tmp_path: Path) -> None:
    """tlparse's three panes: a kernel's lines point at its ATen nodes, those at the torch-level nodes, and back."""
    tlparse(argand_trace, tmp_path / "out", "--inductor-provenance")
    pages = {path.name: path.read_text() for path in (tmp_path / "out").glob("provenance_tracking_*.html")}
    records = read(argand_trace)
    found = artifacts(records, "inductor_provenance_tracking_node_mappings")
    assert found and artifacts(records, "provenance")
    linked = 0
    for record in found:
        assert record.id is not None
        tables = record.payload.json()
        for kernel, nodes in tables["cppCodeToPost"].items():
            assert all(kernel in tables["postToCppCode"][node] for node in nodes)
        page = pages[f"provenance_tracking_{record.id.directory}.html"]
        linked += any(kernel in page for kernel in tables["cppCodeToPost"])
    assert linked
    (row, *_) = [
        record.payload.json() for record in artifacts(records, "provenance") if record.payload.json()["kernels"]
    ]
    node = next(iter(row["kernels"].values()))[0]
    assert node["node"] in node["code"] and "program_argand.py" in node["user_line"]
    assert {post for posts in row["pre_to_post"].values() for post in posts} >= {node["node"]}


def test_output_code_is_highlighted_too(argand_trace: Path, tmp_path: Path) -> None:
    assert re.search(r"Stats \{ ok: \d+ \}", tlparse(argand_trace, tmp_path / "out", "--strict-compile-id"))


def test_stack_trie(pages: Path) -> None:
    index = (pages / "index.html").read_text()
    trie = index[index.index("stack-trie'") : index.index("IR dumps")]
    assert re.search(r"<a href='#\[\d+/0\]' class='status-ok'>", trie)
    assert re.search(r"<a href='#\[\d+/0\]' class='status-break'>", trie)
    assert re.search(r"<a href='#\[\d+/0\]' class='status-error'>", trie)
    assert "status-missing" not in trie
    assert "program_argand.py" in trie and "argand/capture" not in trie


def test_cache_marks_and_failures(argand_trace: Path, pages: Path) -> None:
    assert any("fx_graph_cache_" in path.name for path in pages.rglob("*.json"))
    index = (pages / "index.html").read_text()
    assert re.search(r"fx_graph_cache_(hit|miss)_\d+\.json</a> (✅|❌)", index)
    failures = html.unescape((pages / "failures_and_restarts.html").read_text())
    assert "RestartAnalysis" in failures and "[AG0023] print: print() writes to the terminal" in failures
    assert "Unsupported" in failures and "program_argand.py" in failures


def test_metrics_page(argand_trace: Path, pages: Path) -> None:
    for record in of(read(argand_trace), "compilation_metrics"):
        assert record.id is not None
        page = next((pages / record.id.directory).glob("compilation_metrics_*.html")).read_text()
        assert str(record.fields["guard_count"]) in page
        assert html.escape(str(record.fields["co_name"])) in page
    assert list(pages.rglob("bwd_compilation_metrics_*.html"))


def test_guards_page(argand_trace: Path, pages: Path) -> None:
    pages_of_guards = [path.read_text() for path in pages.rglob("dynamo_guards_*.html")]
    assert any("TENSOR_MATCH" in page for page in pages_of_guards)
    listed = [guard for record in of(read(argand_trace), "dynamo_guards") for guard in record.payload.json()]
    assert any(guard.get("user_stack") for guard in listed)


def test_chromium_events(argand_trace: Path, pages: Path) -> None:
    made = rounded((pages / "chromium_events.json").read_text())
    assert made == [rounded(record.payload.text()) for record in of(read(argand_trace), "chromium_event")]
    depth: dict[int, int] = {}
    for event in made:
        if event["ph"] in "BE":
            depth[event["tid"]] = depth.get(event["tid"], 0) + (1 if event["ph"] == "B" else -1)
            assert depth[event["tid"]] >= 0
    assert set(depth.values()) == {0}
    assert {"capture_frame", "backend", "lower", "schedule", "codegen"} <= {event["name"] for event in made}


def test_odd_text_survives(tmp_path: Path) -> None:
    """Line ends of other systems, lone surrogates and numbers beyond 64 bits in what events carry."""
    from argand.events import CompileId, bus

    texts = ["a\r\nb\rc\n", "", "\n", "\ttab\n\t", "lone \ud800", "\x00\x0b\x1c\x85\u2028end"]
    with traced(tmp_path / "t"), bus.compiling(CompileId(0, 0)):
        for number, text in enumerate(texts):
            bus.emit(f"odd {number}/../x", "test", text)
        bus.emit("fallback", "test", "reason", op="op", big=1 << 70, nan=float("nan"), bad="\udc80", odd={1: {2}})
    log = next((tmp_path / "t").glob("*.log"))
    assert re.search(r"Stats \{ ok: \d+ \}", tlparse(log, tmp_path / "out"))
    found = [record for record in read(log) if record.name.startswith("odd")]
    assert [record.payload.text() for record in found[:4]] == ["a\nb\nc\n", "", "\n", "\ttab\n\t"]
    assert all("/" not in record.name for record in found)


def test_in_process_trace_of_a_dynamic_graph(tmp_path: Path) -> None:
    @argand.compile(backend="native", dynamic=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1) + x.shape[0]

    with traced(tmp_path / "t"):
        f(torch.randn(4, 6))
    log = next((tmp_path / "t").glob("*.log"))
    assert re.search(r"Stats \{ ok: \d+ \}", tlparse(log, tmp_path / "out", "--strict-compile-id"))
    conditions = [record.fields["expr"] for record in of(read(log), "guard_added_fast")]
    assert conditions and all("size" in text or "s0" in text for text in conditions)
    (metrics,) = (tmp_path / "out").rglob("compilation_metrics_*.html")
    page = html.unescape(metrics.read_text())
    assert all(text in page for text in conditions)


def test_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a file per rank, as tlparse's page for all ranks wants it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        argand.reset()
        with traced(tmp_path / "t"):
            argand.compile(f, backend="native")(torch.randn(4 + rank))
    said = tlparse(tmp_path / "t", tmp_path / "out", "--all-ranks-html")
    assert "fail" not in said and "unknown" not in said.lower()
    for rank in range(3):
        assert (tmp_path / "out" / f"rank_{rank}" / "index.html").exists()
    records = read(tmp_path / "t")
    assert [record.rank for record in of(records, "dynamo_start")] == [0, 1, 2]


# ---------------------------------------------------------------------- torch.compile's traces in our reader


def test_reads_torch_compile(torch_trace: Path, tmp_path: Path) -> None:
    records = read(torch_trace)
    kinds = {record.kind for record in records}
    assert {"dynamo_start", "dynamo_output_graph", "compilation_metrics", "chromium_event", "str"} <= kinds
    assert {"aot_joint_graph", "aot_forward_graph", "aot_backward_graph"} <= kinds
    starts = of(records, "dynamo_start")
    assert all(start.stack and start.stack[-1].name for start in starts)
    assert any(start.stack[-1].filename.endswith("program_torch.py") for start in starts)
    assert {str(start.id) for start in starts} >= {"[0/0]", "[1/0]"}
    assert all(record.payload is None or record.payload.intact() for record in records)


def test_same_records_as_tlparse(torch_trace: Path, tmp_path: Path) -> None:
    """Artifact by artifact: what tlparse extracts is what our reader yields."""
    tlparse(torch_trace, tmp_path / "out", "--plain-text")
    records = read(torch_trace)
    checked = 0
    for record in records:
        if record.kind in WAYS:
            assert record.payload.text() in page_texts(tmp_path / "out", record, WAYS[record.kind])
            checked += 1
        elif record.kind == "artifact" and record.fields["encoding"] == "string" and record.id is not None:
            assert record.payload.text() in page_texts(tmp_path / "out", record, "txt"), record.name
            checked += 1
    assert checked > 10
    events = rounded((tmp_path / "out" / "chromium_events.json").read_text())
    assert events == [rounded(record.payload.text()) for record in of(records, "chromium_event")]


def test_reads_compiled_autograd(torch_trace: Path) -> None:
    records = read(torch_trace)
    (graph,) = of(records, "compiled_autograd_graph")
    assert graph.payload is not None and graph.id is not None and graph.id.directory == "0_-_-_0"
    assert any(re.fullmatch(r"\[!0/\d+/0\]", str(record.id)) for record in records)
    symbols = [record for record in of(records, "create_symbol") if str(record.id).startswith("[!0/")]
    assert symbols and all(isinstance(frame["filename"], str) for frame in symbols[0].fields["stack"])


@pytest.mark.slow
def test_as_fast_as_half_of_tlparse(tmp_path: Path, argand_trace: Path) -> None:
    """Far from the limit (bench/trace_speed.py measures), so that a busy machine does not decide."""
    import trace_speed

    tlparse_binary()
    trace_speed.enlarge(argand_trace, tmp_path / "big.log", 20 << 20)
    ours = min(trace_speed.read_all(tmp_path / "big.log", True)[0] for _ in range(3))
    theirs = trace_speed.tlparse(tmp_path / "big.log", True)
    assert theirs is not None and ours < 2 * theirs[0]
