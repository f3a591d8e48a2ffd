"""What the report computes: graphs read back, spans paired, reasons parsed, provenance, comparisons, the server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sweeps
from argand.report.html import Limits, build, reasons
from argand.report.html.code import language_of, numbered, plain
from argand.report.html.collect import Collector
from argand.report.html.compare import guard_lines, side_by_side
from argand.report.html.graphtext import operations, place_in, read_graph
from argand.report.html.model import Artifact, Run
from argand.report.html.pages import fmt_bytes, fmt_seconds, fmt_value, for_script
from argand.report.html.provenance import code_lines, kernel_mapping, line_tables, marked_lines
from argand.report.html.search import SearchIndex, words_of
from argand.report.html.serve import Server, serving
from argand.report.html.spans import SpanCollector
from argand.report.html.store import Folder
from argand.report.records import Payload, Record, StackFrame, TraceId
from report_traces import BREAK, CODE, GRAPH, POST_GRAD, TraceMaker, rich_trace

# ---------------------------------------------------------------------- graphs


def test_graph_lines_know_their_user_line() -> None:
    lines = {line.node: line for line in read_graph(GRAPH) if line.node}
    assert list(lines) == ["l_x_", "relu", "add", "sum_1"]
    assert str(lines["add"].user[0]) == "/home/me/model.py:7 in forward"
    assert lines["sum_1"].user[0].code == "return y.sum()"
    assert lines["l_x_"].user == ()
    assert operations(GRAPH) == ["torch.relu", "add.sum"]


def test_both_spellings_of_a_place() -> None:
    for text in ("# File: /a b/c.py:3 in f, code: x: int = 1", "# /a b/c.py:3 in f: x: int = 1"):
        place = place_in(text)
        assert place and (place.file, place.line, place.function, place.code) == ("/a b/c.py", 3, "f", "x: int = 1")
    assert place_in("# just words") is None


INDEX = {"relu": 0, "add": 1, "sum_1": 2}


def test_code_of_torch_is_linked_by_its_comments() -> None:
    lines = {line.text.strip(): line.nodes for line in code_lines(CODE, INDEX, {})}
    assert lines["cpp_fused_add_relu_sum_0(arg0_1, buf0)"] == (0, 1)
    assert lines["return (buf0,)"] == (0, 1) or lines["return (buf0,)"] == ()
    assert lines["import torch"] == ()


def test_code_of_torch_is_linked_by_its_provenance_artifact() -> None:
    table = json.dumps({"cppCodeToPost": {"cpp_fused_add_relu_sum_0:1": ["relu", "add", "sum_1", "gone"]}})
    lines = {line.text.strip(): line.nodes for line in code_lines(CODE, INDEX, kernel_mapping(table))}
    assert lines["cpp_fused_add_relu_sum_0(arg0_1, buf0)"] == (0, 1, 2)
    assert lines["auto tmp0 = in_ptr0[0];"] == (0, 1, 2)
    assert lines["import torch"] == ()
    assert kernel_mapping("[1]") == kernel_mapping("{") == kernel_mapping('{"cppCodeToPost": 3}') == {}


def test_lines_of_argand_are_linked_by_its_tables() -> None:
    table = {"2": ["relu"], "3": ["add", "gone"], "4": 7}
    artifacts = {"provenance_lines": json.dumps({"ir_post_fusion": table, "other": 3}), "ir_post_fusion": "{"}
    group = [Artifact(0, title, "", None) for title in artifacts]
    tables = line_tables(group, lambda artifact: artifacts[artifact.title])
    assert tables == {"ir_post_fusion": {"2": ["relu"], "3": ["add", "gone"]}}
    lines = marked_lines("a\nb = ops.x()  # relu\nc  # relu", tables["ir_post_fusion"], INDEX)
    assert [(line.text, line.nodes) for line in lines] == [("a", ()), ("b = ops.x()", (0,)), ("c  # relu", (1,))]


# ---------------------------------------------------------------------- reasons


def test_break_text_of_torch() -> None:
    reason = reasons.break_from_text(BREAK)
    assert (reason.cause, reason.file, reason.line) == ("Data-dependent branching", "/home/me/model.py", 9)
    assert reason.function == "forward" and reason.source == "if y > 0:"
    assert reason.remedies == ("Use `torch.cond` to express it.",)
    assert reason.explanation == "Detected data-dependent branching."


def test_break_cause_below_the_headline_and_said_twice() -> None:
    text = BREAK.replace(
        "Data-dependent branching\n", "Encountered graph break when tracing CALL:\n\nFailed to trace builtin\n"
    )
    text = text.replace("  Hint: Use", "  Hint: Use `torch.cond` to express it.\n  Hint: Use")
    reason = reasons.break_from_text(text)
    assert reason.cause == "Failed to trace builtin" and len(reason.remedies) == 1


def test_break_text_of_argand() -> None:
    reason = reasons.break_from_text(
        'data-dependent branch: Which way it goes depends on a value.\n  context: __bool__\n  hint: Use torch.where.\n  File "/a.py", line 8, in toy\n      if b.sum() < 0:\n         ^^^'
    )
    assert (reason.cause, reason.file, reason.line, reason.function) == ("data-dependent branch", "/a.py", 8, "toy")
    assert reason.source == "if b.sum() < 0:" and reason.remedies == ("Use torch.where.",)


def test_break_record_of_argand_comes_with_its_page() -> None:
    told = {"id": "AG0001", "kind": "data-dependent branch", "explanation": "It depends.", "remedies": [], "stack": []}
    reason = reasons.break_from_record(told)
    assert reason is not None and reason.cause == "[AG0001] data-dependent branch"
    assert reason.page.startswith("AG0001: data-dependent branch\n") and "torch.where" in reason.page
    for strange in (None, 7, "AG9999", ["AG0001"]):  # of another version, or damaged
        reason = reasons.break_from_record({**told, "id": strange})
        assert reason is not None and reason.cause == "data-dependent branch" and not reason.page


@pytest.mark.parametrize(
    "guard, advice",
    [
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", "dynamic=True"),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", "dtype"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=1", "gradients"),
        ("tensor 'x' stride mismatch at index 0", "contiguous"),
        ("len(L['xs']) == 3", "length"),
        ("___check_obj_id(L['f'], 12)", "object"),
        ("L['n'] == 3", "Python value"),
        ("GLOBAL_STATE changed: num_threads", "global setting"),
    ],
)
def test_remedies_for_guards(guard: str, advice: str) -> None:
    assert advice in reasons.remedy_for(guard)


def test_recompile_reason_with_a_place() -> None:
    [reason] = reasons.recompiles_from_list(["0/0: L['n'] == 3  # for i in range(n):  # home/model.py:12 in forward"])
    assert (reason.cause, reason.file, reason.line) == ("L['n'] == 3", "home/model.py", 12)
    assert reason.source == "for i in range(n):"


def test_recompiles_that_differ_in_values_are_one(tmp_path: Path) -> None:
    made = TraceMaker(tmp_path / "trace.log")
    for size in (5, 6, 7):
        made.artifact(
            "recompile_reasons",
            json.dumps([f"0/0: tensor 'x' size mismatch at index 0. expected 4, actual {size}"]),
            (0, 1),
            "json",
        )
    made.artifact(
        "recompile_reasons",
        json.dumps(["0/0: tensor 'x' size mismatch at index 1. expected 4, actual 5"]),
        (0, 1),
        "json",
    )
    [run] = build(made.save(), tmp_path / "out").runs
    assert [(d.count, len(d.variants)) for d in run.recompiles.values()] == [(3, 3), (1, 1)]


# ---------------------------------------------------------------------- spans


def event(phase: str, name: str, ts: float, **more: object) -> dict[str, object]:
    return {"ph": phase, "name": name, "ts": ts, "pid": 0, "tid": 0, **more}


def test_spans_nest_and_own_time_excludes_callees() -> None:
    spans = SpanCollector(100)
    for told in (
        event("B", "a", 0),
        event("B", "b", 10),
        event("E", "b", 30),
        event("X", "c", 40, dur=5),
        event("E", "a", 100),
    ):
        assert spans.add(told)
    assert spans.totals["a"].seconds == pytest.approx(100e-6) and spans.totals["b"].own == pytest.approx(20e-6)
    assert spans.totals["a"].own == pytest.approx(75e-6)
    data = spans.as_data()
    assert [(data["names"][s[0]], s[1], s[2], s[3]) for s in data["spans"]] == [
        ("a", 0, 100, 0),
        ("b", 10, 20, 1),
        ("c", 40, 5, 1),
    ]


def test_spans_are_bounded_and_count_what_is_wrong() -> None:
    spans = SpanCollector(10)
    for n in range(50):
        spans.add(event("X", "n", n * 10, dur=n))
    spans.add(event("E", "never begun", 5))
    spans.add(event("B", "never ended", 400))
    assert len(spans.as_data()["spans"]) == 11 and spans.dropped == 40
    assert min(s[2] for s in spans.as_data()["spans"][:10]) >= 40
    assert (spans.unmatched, spans.unfinished) == (1, 1)
    for bad in (
        None,
        3,
        [],
        {},
        {"name": "x"},
        {"name": "x", "ts": "y"},
        {"name": "x", "ts": float("nan")},
        {"name": "x", "ts": True},
    ):
        assert not spans.add(bad)


# ---------------------------------------------------------------------- comparison, search, text


def test_rows_of_a_comparison() -> None:
    rows, note = side_by_side(["a", "b", "c"], ["a", "x", "c", "d"], 100)
    assert [(r.sign, r.left, r.right) for r in rows] == [
        (" ", "a", "a"),
        ("~", "b", "x"),
        (" ", "c", "c"),
        ("+", "", "d"),
    ]
    assert note == "" and rows[-1].right_number == 4 and rows[-1].left_number == 0
    rows, note = side_by_side([str(n) for n in range(50)], [], 10)
    assert len(rows) == 10 and "first 10 lines" in note


def test_guards_without_addresses_compare_equal() -> None:
    one = "+- TYPE_MATCH: ___check_type_id(L['s'], 94283131658704)  # y = x  # a.py:1 in f\n+- GuardManager: source=x\n"
    assert guard_lines(one) == guard_lines(one.replace("94283131658704", "99999999999999")) != []


def test_search_index_is_bounded() -> None:
    index = SearchIndex(5)
    index.add("artifact", "a", "", "a.html", words_of("one two three four"))
    index.add("artifact", "b", "", "b.html", words_of("One five six"))
    assert index.truncated and index.pairs == 5 and index.words["one"] == [0, 1]
    assert len(words_of(" ".join(f"word{n}" for n in range(9000)))) == 1500


@pytest.mark.parametrize(
    "text",
    [GRAPH, POST_GRAD, CODE, "", "\n", "a\n\n", "x = '''\n" * 9, '{"a": 1}\n', "int x;\n<&>", "r'''\n\n\n\n\n<b>"],
)
def test_numbered_lines_keep_the_text(text: str) -> None:
    import html
    import re

    made = numbered(plain(text))
    assert html.unescape(re.sub(r"</?span[^>]*>", "", made)) == text + "\n"
    assert made.count("<span") == made.count("</span>") == text.count("\n") + 1


def test_languages() -> None:
    assert language_of("dynamo_output_graph", "x.txt", GRAPH) == "python"
    assert language_of("kernel_code", "x.txt", '#include <x>\nextern "C" void f') == "cpp"
    assert language_of("kernel_code", "x.txt", "import triton\n@triton.jit\ndef f") == "python"
    assert language_of("fx_graph_cache_hit", "x.json", "{") == "json"
    assert language_of("dynamo_cpp_guards_str", "x.txt", "TREE") == "guards"
    assert language_of("dynamo_guards", "x.txt", '[\n  {\n    "code": 1') == "json"
    assert language_of("whatever", "x.txt", "[words]") == "text"


def test_values_as_text() -> None:
    assert [fmt_bytes(n) for n in (0, 999, 1500, 123_456, 5e9)] == ["0 B", "999 B", "1.5 kB", "123 kB", "5.0 GB"]
    assert [fmt_seconds(n) for n in (0, 3e-6, 0.0021, 0.25, 2.5, 250, None, "x", True)] == [
        "0",
        "3 µs",
        "2.1 ms",
        "250 ms",
        "2.50 s",
        "250 s",
        "",
        "",
        "",
    ]
    assert fmt_value([1, None, 2.5]) == "1, none, 2.5"
    assert "</script" not in for_script({"a": "</script>\u2028"}) and json.loads(
        for_script({"a": "</script>\u2028"})
    ) == {"a": "</script>\u2028"}


# ---------------------------------------------------------------------- store


def test_payloads_stream_without_tabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"\tline one\n\t\n\t\tindented\n\tlast"
    (tmp_path / "t").write_bytes(b"head\n" + raw + b"\n")
    for chunk in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr("argand.report.html.store._CHUNK", chunk)
        Folder(tmp_path / "out").store("a/b.txt", Payload(tmp_path / "t", 5, len(raw), 4))
        assert (tmp_path / "out/a/b.txt").read_bytes() == b"line one\n\n\tindented\nlast"


def test_store_refuses_to_leave_its_folder(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a/../../x", "a//b", "C:/x", "a\\b", ""):
        with pytest.raises(ValueError):
            Folder(tmp_path / "out").path(name)


# ---------------------------------------------------------------------- garbage

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = [
    "dynamo_start", "dynamo_output_graph", "artifact", "compilation_metrics", "bwd_compilation_metrics", "chromium_event", "link", "graph_dump",
    "describe_tensor", "create_symbol", "guard_added_fast", "symbolic_shape_specialization", "inductor_output_code", "dump_file", "unknown",
    "optimize_ddp_split_child", "dynamo_cpp_guards_str",
]  # fmt: skip
FIELDS = ["stack", "name", "encoding", "sizes", "filename", "url", "user_stack", "symbol", "co_name", "co_filename", "co_firstlineno", "graph_op_count",
          "restart_reasons", "fail_type", "fail_reason", "entire_frame_compile_time_s", "compliant_custom_ops", "guard_count"]  # fmt: skip
NAMES = ["graph_breaks", "recompiles", "recompile_reasons", "dynamo_graph_break_reason", "torch_version", "argand_version", "dynamo_error", "inductor_post_grad_graph",
         "kernel_code", "ir_post_fusion", "inductor_provenance_tracking_node_mappings", "fx_graph_cache_hit"]  # fmt: skip
texts = st.text(max_size=60) | values.map(lambda v: json.dumps(v)) | st.sampled_from([GRAPH, POST_GRAD, CODE, BREAK])
identities = st.none() | st.builds(
    TraceId,
    st.none() | st.integers(-2, 3),
    st.none() | st.integers(-2, 3),
    st.integers(-1, 2),
    st.none() | st.integers(0, 1),
)
stacks = st.lists(st.builds(StackFrame, st.text(max_size=9), st.integers(), st.text(max_size=9)), max_size=3).map(tuple)


@st.composite
def records(draw: st.DrawFn) -> tuple[Record, str | None]:
    fields = draw(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), values, max_size=6))
    kind = draw(st.sampled_from(KINDS))
    if kind == "artifact" and draw(st.booleans()):
        fields["name"] = draw(st.sampled_from(NAMES))
    record = Record(
        0,
        kind,
        fields,
        draw(identities),
        draw(stacks),
        draw(st.none() | st.integers(0, 3)),
        "1121 10:00:00",
        1,
        "x.py",
        1,
    )
    return record, draw(st.none() | texts)


@settings(
    max_examples=sweeps.part(60, 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(given_records=st.lists(records(), min_size=1, max_size=12))
def test_any_records_make_pages(
    tmp_path_factory: pytest.TempPathFactory, given_records: list[tuple[Record, str | None]]
) -> None:
    """Whatever fields hold, every page is written, and what was not understood is counted."""
    from argand.report.html.build import Builder

    folder = tmp_path_factory.mktemp("garbage")
    (folder / "t.log").write_text("")
    builder = Builder(folder / "t.log", folder / "out", Limits())
    writer = builder.run_for(folder / "t.log", False)
    for number, (record, text) in enumerate(given_records):
        if text is not None:
            raw = "\n".join(f"\t{line}" for line in text.split("\n")).encode("utf-8", "replace")
            (folder / f"p{number}").write_bytes(raw)
            record.payload = Payload(folder / f"p{number}", 0, len(raw), raw.count(b"\n") + 1)
        writer.collector.add(record)
    writer.finish({})
    assert (folder / "out/index.html").is_file()
    assert sum(writer.run.kinds.values()) == len(given_records)


@settings(max_examples=40, deadline=None)
@given(text=texts)
def test_parsers_take_any_text(text: str) -> None:
    read_graph(text)
    operations(text)
    reasons.break_from_text(text)
    list(reasons.recompiles_from_list(reasons.parse_json(text)))
    list(reasons.recompiles_from_record(reasons.parse_json(text)))
    reasons.break_from_record(reasons.parse_json(text))
    line_tables([Artifact(0, "provenance_lines", "", None)], lambda artifact: text)
    code_lines(text, INDEX, kernel_mapping(text))
    guard_lines(text)


def test_a_full_disk_is_not_counted_as_a_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(Run("x"), Folder(tmp_path), Limits())

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collector.folder, "store", full)
    (tmp_path / "p").write_text("\tx")
    record = Record(
        0, "artifact", {"name": "a"}, TraceId(0, 0), (), None, "", 1, "", 1, Payload(tmp_path / "p", 0, 2, 1)
    )
    with pytest.raises(OSError):
        collector.add(record)


# ---------------------------------------------------------------------- server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    build(rich_trace(tmp_path / "trace.log"), tmp_path / "out")
    with serving(Server(tmp_path / "out")) as running:
        yield running


def ask(server: Server, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
    connection.request(method, path, headers={"Host": f"{host}:{server.server_address[1]}"})
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_server_serves_the_report_and_nothing_else(server: Server) -> None:
    status, headers, body = ask(server, "/?user=me")
    assert status == 200 and b"Compile report" in body and headers["x-content-type-options"] == "nosniff"
    assert ask(server, "/-_0_0_0/dynamo_output_graph_1.txt")[1]["content-type"] == "text/plain; charset=utf-8"
    assert ask(server, "/", method="HEAD")[0] == 200
    assert ask(server, "/-_0_0_0/")[0] == 404
    assert ask(server, "/../trace.log")[0] == 404 and ask(server, "/%2e%2e/trace.log")[0] == 404
    assert ask(server, "/", host="evil.example")[0] == 403
    assert ask(server, "/", host="evil.example", method="HEAD")[0] == 403
    assert server.server_address[0] == "127.0.0.1"


def test_a_followed_trace_is_read_incrementally(tmp_path: Path) -> None:
    """Only what is new is written again; a second file begins the report anew, with a page for both."""
    import threading

    from argand.report.html.serve import Follower, News

    directory = tmp_path / "trace"
    made = TraceMaker(directory / "dedicated_log_torch_trace_rank_0_a.log")
    made.compile((0, 0))
    made.save()
    news = News()
    follower = Follower(directory, tmp_path / "out", Limits(), news, every=0.05)
    thread = threading.Thread(target=follower.run, daemon=True)
    thread.start()
    try:
        assert news.wait(0, 120) == 1
        artifact = tmp_path / "out/-_0_0_0/aot_inference_graph_1.txt.html"
        before = artifact.stat().st_mtime_ns
        seen = news.version
        made.compile((1, 0))
        made.save()
        seen = news.wait(seen, 120)
        assert "[1/0]" in (tmp_path / "out/index.html").read_text()
        assert artifact.stat().st_mtime_ns == before
        other = TraceMaker(directory / "dedicated_log_torch_trace_rank_1_b.log")
        other.compile((0, 0))
        other.save()
        for _ in range(5):
            seen = news.wait(seen, 60)
            if (tmp_path / "out/rank_1/index.html").is_file() and "2 ranks" in (
                tmp_path / "out/index.html"
            ).read_text():
                break
        assert "2 ranks" in (tmp_path / "out/index.html").read_text()
    finally:
        follower.stopped.set()
        thread.join(120)
    assert not thread.is_alive()
