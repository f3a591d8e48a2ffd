"""The reader: argand's and torch.compile's traces, growing, cut off, mutated and meaningless files."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argand.errors import ConfigError
from argand.report import scanner
from argand.report.reader import Reader
from argand.report.records import Payload, Record, TraceId, digest_of, trace_files
from trace_programs import run_program

HEAD = "V1121 13:32:44.840000 1390 torch/_dynamo/utils.py:2350] "
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def line(content: dict[str, Any], payload: str | None = None) -> str:
    """One record as torch writes it."""
    if payload is None:
        return f"{HEAD}{json.dumps(content)}\n"
    content = {**content, "has_payload": digest_of(payload.encode())}
    return HEAD + json.dumps(content) + "".join(f"\n\t{part}" for part in payload.split("\n")) + "\n"


def artifact(name: str, payload: str, **more: Any) -> str:
    fields = {"artifact": {"name": name, "encoding": "string"}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    return line({**fields, **more}, payload)


SMALL = (
    line({"str": ["/home/me/model.py", 0]})
    + line({"dynamo_start": {"stack": [{"line": 5, "name": "f", "filename": 0}]}, "frame_id": 0, "frame_compile_id": 0})
    + artifact("a", "one line")
    + artifact("b", "several\n\nlines\n\twith a tab\n", attempt=2)
    + artifact("empty", "")
    + line({"compilation_metrics": {"co_name": "f", "guard_count": 3}, "frame_id": 0, "frame_compile_id": 0})
)


def read(path: Path, **options: Any) -> tuple[list[Record], Counter[str]]:
    reader = Reader(path, **options)
    return list(reader), reader.problems


def wrote(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace of argand's, without the chromium events in which it would otherwise consist."""
    folder = tmp_path_factory.mktemp("real")
    run_program("argand", "eager", folder, ARGAND_TRACE=str(folder / "trace"))
    return next((folder / "trace").glob("*.log")).read_bytes()


def told(record: Record) -> tuple[Any, ...]:
    return record.kind, str(record.fields), record.id, record.payload.read() if record.payload else None


# ---------------------------------------------------------------------- what is read


def test_small_trace(tmp_path: Path) -> None:
    records, problems = read(wrote(tmp_path / "t.log", SMALL))
    assert not problems
    assert [record.index for record in records] == list(range(6))
    assert [record.kind for record in records] == [
        "str", "dynamo_start", "artifact", "artifact", "artifact", "compilation_metrics",
    ]  # fmt: skip
    start, one, several, empty = records[1:5]
    assert str(start.stack[0]) == "/home/me/model.py:5 in f"
    assert start.fields["stack"][0]["filename"] == "/home/me/model.py"
    assert (start.time, start.thread, start.pathname, start.lineno) == (
        "1121 13:32:44.840000", 1390, "torch/_dynamo/utils.py", 2350,
    )  # fmt: skip
    assert one.payload is not None and one.payload.text() == "one line" and one.name == "a"
    assert several.payload is not None and several.payload.text() == "several\n\nlines\n\twith a tab\n"
    assert several.payload.size == len(several.payload.read()) and several.payload.intact()
    assert str(several.id) == "[0/0_2]" and several.id is not None and several.id.directory == "-_0_0_2"
    assert empty.payload is not None and empty.payload.size == 0 and empty.payload.open().read() == b""
    assert several.payload.text(limit=8) == "several"
    assert records[5].fields["guard_count"] == 3 and records[5].payload is None


def test_compiled_autograd_ids_and_ranks(tmp_path: Path) -> None:
    ids = {"compiled_autograd_id": 1, "frame_id": None, "frame_compile_id": None}
    (tmp_path / "d").mkdir()
    for rank in (0, 1, 10):
        wrote(tmp_path / "d" / f"dedicated_log_torch_trace_rank_{rank}_x.log", artifact("a", "x", rank=rank, **ids))
    wrote(tmp_path / "d" / "other.log", SMALL)
    records, problems = read(tmp_path / "d")
    assert not problems
    assert [record.rank for record in records] == [0, 1, 10]
    assert str(records[0].id) == "[!1/-/-]" and records[0].id == TraceId(None, None, 0, 1)
    assert len(trace_files(tmp_path / "d")) == 3
    assert trace_files(tmp_path) == trace_files(tmp_path / "d")  # of the folders within, where there are none


def test_rank_of_the_file_name(tmp_path: Path) -> None:
    records, _ = read(wrote(tmp_path / "dedicated_log_torch_trace_rank_3_ab.log", SMALL))
    assert {record.rank for record in records} == {3}


def test_no_trace() -> None:
    with pytest.raises(ConfigError, match="no structured trace"):
        Reader("/nowhere/at/all")


def test_directory_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no structured trace"):
        Reader(tmp_path)


def test_unknown_kinds_are_yielded_and_counted(tmp_path: Path) -> None:
    text = line({"of_the_future": {"a": 1}, "frame_id": 1}) + line({"rank": 0}) + line({"artifact": 3, "more": [1]})
    records, problems = read(wrote(tmp_path / "t.log", text))
    assert [record.kind for record in records] == ["of_the_future", "unknown", "artifact"]
    assert records[2].fields == {"value": 3} and records[2].extra == {"more": [1]}
    assert problems == Counter({"unknown kind": 2})


def test_numbers_json_does_not_have(tmp_path: Path) -> None:
    records, problems = read(wrote(tmp_path / "t.log", HEAD + '{"link": {"name": NaN, "url": Infinity}}\n'))
    assert not problems and records[0].kind == "link"


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1000])
def test_chunks_of_any_size(real: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    data = real[:20_000] if chunk == 1 else real[:200_000]
    path = wrote(tmp_path / "t.log", data[: data.rindex(b"\nV") + 1])
    whole, _ = read(path)
    monkeypatch.setattr(scanner, "CHUNK", chunk)
    pieces, problems = read(path)
    assert not problems
    assert list(map(told, pieces)) == list(map(told, whole))


# ---------------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("text", "reason", "count"),
    [
        ("hello world\n", "malformed glog prefix", 1),
        (HEAD + "{not json}\n", "malformed json", 1),
        (HEAD + "[1, 2]\n", "malformed json", 1),
        ("\tindented\n\tlines\n", "payload without record", 1),
        (artifact("a", "text").replace("\ttext", "\ttexT"), "payload hash mismatch", 1),
        (artifact("a", "text").replace("\n\ttext", ""), "payload missing", 1),
        (HEAD + '{"dynamo_start', "line cut off at the end of the file", 1),
        (HEAD[:20], "line cut off at the end of the file", 1),
        (line({"str": [1, "x"]}), "malformed string", 1),
        (HEAD + "[" * 100_000 + "\n", "malformed json", 1),
        (line({}), "unknown kind", 1),
    ],
)
def test_problems(tmp_path: Path, text: str, reason: str, count: int) -> None:
    between = "" if not text.endswith("\n") else SMALL
    records, problems = read(wrote(tmp_path / "t.log", SMALL + text + between))
    assert problems[reason] == count and len(problems) == 1, problems
    assert len(records) >= (12 if between else 6)


def test_text_of_other_programs_in_front(tmp_path: Path) -> None:
    """A log collector's own prefix, empty lines, and Windows line ends."""
    text = "\n".join("[rank0]: " + part if part.startswith("V") else part for part in SMALL.split("\n"))
    records, problems = read(wrote(tmp_path / "t.log", text + "\n\n"))
    assert len(records) == 6 and not problems
    records, problems = read(wrote(tmp_path / "w.log", SMALL.replace("\n", "\r\n")))
    assert len(records) == 6 and not problems


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "MAX_LINE", 1000)
    monkeypatch.setattr(scanner, "CHUNK", 256)
    records, problems = read(wrote(tmp_path / "t.log", SMALL + line({"link": {"name": "x" * 5000}}) + SMALL))
    assert len(records) == 12 and problems == Counter({"line too long": 1})


def test_cut_at_every_byte(tmp_path: Path) -> None:
    data = SMALL.encode()
    whole = list(map(told, read(wrote(tmp_path / "t.log", data))[0]))
    for end in range(len(data)):
        records, problems = read(wrote(tmp_path / "t.log", data[:end]))
        assert sum(problems.values()) <= 1
        found = list(map(told, records))
        assert found[:-1] == whole[: max(len(found) - 1, 0)]


def test_payloads_may_be_bigger_than_memory_allowed(tmp_path: Path) -> None:
    text = ("x" * 79 + "\n") * 400_000  # 32 MB
    path = wrote(tmp_path / "t.log", SMALL + artifact("big", text) + artifact("wide", "y" * 12_000_000) + SMALL)
    tracemalloc.start()
    reader = Reader(path)
    count = sum(1 for _ in reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 14 and not reader.problems
    assert peak < 30e6, f"{peak / 1e6:.0f} MB"


@QUICK
@given(data=st.binary(max_size=2000))
def test_garbage(tmp_path: Path, data: bytes) -> None:
    records, problems = read(wrote(tmp_path / "t.log", data))
    assert not records or sum(problems.values()) >= 0
    if data.strip(b"\n"):
        assert records or problems


_PARTS = st.sampled_from(
    [HEAD, "V", "\t", "\n", "\n\t", "] ", "{", "}", '{"str": ["a", 0]}', '{"has_payload": "0"}', '"stack": [3]', "\r\n"]
)


@QUICK
@given(parts=st.lists(st.one_of(_PARTS, st.text(max_size=20)), max_size=40))
def test_garbage_that_looks_like_a_trace(tmp_path: Path, parts: list[str]) -> None:
    data = "".join(parts).encode("utf-8", "surrogatepass")
    for record in Reader(wrote(tmp_path / "t.log", data)):
        if record.payload is not None:
            assert len(record.payload.read()) <= len(data)


@QUICK
@given(st.data())
def test_mutated_real_traces(real: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, removed and repeated: nothing raises, and what was not touched is still read."""
    begin = data.draw(st.integers(0, len(real) // 2))
    piece = bytearray(real[begin : begin + 30_000])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, max(len(piece) - 1, 0)))
        how = data.draw(st.integers(0, 2))
        if how == 0:
            piece[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif how == 1:
            del piece[at : at + data.draw(st.integers(1, 500))]
        else:
            piece[at:at] = piece[at : at + data.draw(st.integers(1, 500))]
    untouched = SMALL.encode()
    records, _ = read(wrote(tmp_path / "t.log", bytes(piece) + b"\n" + untouched))
    assert [record.kind for record in records[-5:]] == [
        "dynamo_start", "artifact", "artifact", "artifact", "compilation_metrics",
    ]  # fmt: skip
    assert [record.payload.intact() for record in records[-4:-1] if record.payload is not None] == [True] * 3
    for record in records:
        if record.payload is not None:
            record.payload.text()
        json.dumps(record.fields, default=str)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_KEYS = st.sampled_from([*sorted(scanner.KINDS), *sorted(scanner.ENVELOPE)])


@QUICK
@given(content=st.dictionaries(_KEYS, _JSON, max_size=6))
def test_any_json_under_any_key(tmp_path: Path, content: dict[str, Any]) -> None:
    records, _ = read(wrote(tmp_path / "t.log", f"{HEAD}{json.dumps(content)}\n{SMALL}"))
    assert len(records) == 7
    assert isinstance(records[0].name, str) and isinstance(str(records[0].id), str)


# ---------------------------------------------------------------------- following


def test_follows_a_growing_file(tmp_path: Path) -> None:
    """Records appear as they are written, in pieces of any size; the last one too."""
    path = wrote(tmp_path / "t.log", b"")
    data = SMALL.encode()
    steps = iter(range(0, len(data) + 17, 17))
    seen: list[tuple[Any, ...]] = []

    def more() -> bool:
        start = next(steps, None)
        if start is None:
            return True
        with open(path, "ab") as file:
            file.write(data[start : start + 17])
        return False

    for record in Reader(path, follow=True, poll=0, stop=more):
        seen.append(told(record))
    assert seen == list(map(told, read(path)[0]))


def test_follow_yields_what_is_complete_at_once(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.log", SMALL)
    seen: list[str] = []
    for record in Reader(path, follow=True, poll=0, stop=lambda: True):
        seen.append(record.kind)
    assert len(seen) == 6


def test_follow_finds_new_files_of_a_directory(tmp_path: Path) -> None:
    names = iter(["dedicated_log_torch_trace_rank_0_a.log", "dedicated_log_torch_trace_rank_1_b.log"])

    def more() -> bool:
        name = next(names, None)
        if name is not None:
            wrote(tmp_path / name, SMALL)
        return name is None

    records = list(Reader(tmp_path, follow=True, poll=0, stop=more))
    assert Counter(record.rank for record in records) == {0: 6, 1: 6}


def test_follow_while_another_thread_writes(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.log", b"")
    done = threading.Event()

    def write() -> None:
        with open(path, "ab", buffering=0) as file:
            for number in range(200):
                text = artifact(f"n{number}", "x\n" * number).encode()
                file.write(text[:50])
                file.write(text[50:])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader = Reader(path, follow=True, poll=0.001, stop=done.is_set)
    names = [record.name for record in reader]
    writer.join()
    assert names == [f"n{number}" for number in range(200)] and not reader.problems


def test_a_file_that_is_cut_while_it_is_followed(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.log", SMALL)
    actions = iter([lambda: wrote(path, artifact("new", "x"))])

    def more() -> bool:
        action = next(actions, None)
        if action is not None:
            action()
        return action is None

    reader = Reader(path, follow=True, poll=0, stop=more)
    assert [record.name for record in reader][-1] == "new"
    assert reader.problems == Counter({"file was cut while it was read": 1})


def test_payload_of_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Payload(tmp_path / "gone", 0, 1, 1).read()
