"""One pass over a trace's records: payloads go to files, small facts go into the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from argand.report import scanner
from argand.report.html import reasons
from argand.report.html.file_names import NO_ID, artifact_file, folder_of
from argand.report.html.model import Artifact, Attempt, Compile, Distinct, Limits, MetricsRecord, Reason, Run
from argand.report.html.spans import SpanCollector
from argand.report.html.store import Folder
from argand.report.records import Payload, Record, StackFrame, TraceId, dedent

METRICS = frozenset(
    {"compilation_metrics", "bwd_compilation_metrics", "aot_autograd_backward_compilation_metrics"}
)  # fmt: skip
_SYMBOLS = frozenset({
    "create_symbol", "create_unbacked_symbol", "symbolic_shape_specialization", "guard_added", "guard_added_fast",
    "missing_fake_kernel", "mismatched_fake_kernel", "propagate_real_tensors_provenance",
})  # fmt: skip
_SHOWN = ("symbol", "expr", "op", "source", "sources", "val", "value", "vr", "reason")
_TEXT_LIMIT = 64 << 10
_EVENT_LIMIT = 8 << 20
_MOST_SYMBOLS = 300
_TWICE = "inductor_provenance_tracking_kernel_stack_traces"  # tlparse makes two files of it, which count as two
_CACHES = ("hit", "miss", "bypass")


class ChromiumFile:
    """`chromium_events.json`: a JSON array that grows, complete after every `close`.

    Arguments:
        path: the file; made with the first event.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self.count = 0

    def add(self, event: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("r+b" if self.count else "wb")
            if self.count:
                self._file.seek(-2, 2)  # over the closing bracket
        self._file.write((b",\n" if self.count else b"[\n") + event)
        self.count += 1

    def close(self) -> None:
        """End the array; more events may follow."""
        if self._file is not None:
            self._file.write(b"\n]")
            self._file.close()
            self._file = None


class Collector:
    """Takes the records of one run, one by one.

    Arguments:
        run: filled.
        folder: where payloads go.
        limits: bounds.
    """

    def __init__(self, run: Run, folder: Folder, limits: Limits) -> None:
        self.run = run
        self.folder = folder
        self.limits = limits
        self.spans = SpanCollector(limits.spans)
        self.chromium = ChromiumFile(folder.path("chromium_events.json"))
        self.dirty: set[TraceId] = set()
        self._argand = False
        self._trace: BinaryIO | None = None

    def add(self, record: Record) -> None:
        """Take one record. What cannot be understood is counted in `run.problems`."""
        kind = record.kind[:80]
        self.run.kinds[kind if kind in self.run.kinds or len(self.run.kinds) < 300 else "others"] += 1
        try:
            self._add(record)
        except OSError:
            raise
        except Exception as error:  # fields of an untrusted trace can be anything
            what = record.kind[:80] if len(self.run.problems) < 100 else "others"
            self.run.problems[f"record not understood ({what}: {type(error).__name__})"] += 1

    def _add(self, record: Record) -> None:
        if record.rank is not None and self.run.rank is None:
            self.run.rank = record.rank
        if record.time:
            self.run.facts.setdefault("begun", record.time)
            self.run.facts["ended"] = record.time
        if record.kind == "chromium_event":
            self._chromium(record)
            return
        attempt = self._attempt(record.id)
        hear = _HEAR.get(record.kind)
        if hear is not None:
            hear(self, record, attempt)
        elif record.kind in METRICS:
            self._metrics(record, attempt)
        elif record.kind in _SYMBOLS and attempt is not None and len(attempt.symbols) < _MOST_SYMBOLS:
            told = {key: bounded(record.fields[key]) for key in _SHOWN if key in record.fields}
            places = frames_of(record.fields.get("user_stack")) or record.stack
            attempt.symbols.append({"kind": record.kind, "fields": told, "place": places[-1] if places else None})
        if record.payload is not None:
            self._artifact(record, attempt)

    def _attempt(self, id: TraceId | None) -> Attempt | None:
        """The attempt of a compile, made when it is new."""
        if id is None or id == NO_ID:
            return None
        key = id.compile
        compile = self.run.compiles.get(key)
        if compile is None:
            compile = self.run.compiles[key] = Compile(key)
        attempt = compile.attempts.get(id.attempt)
        if attempt is None:
            attempt = compile.attempts[id.attempt] = Attempt(id)
        self.dirty.add(key)
        return attempt

    def _compile(self, attempt: Attempt) -> Compile:
        return self.run.compiles[attempt.id.compile]

    def _chromium(self, record: Record) -> None:
        import orjson

        if record.payload is None:
            return
        raw = self._bytes(record.payload)
        try:
            event = orjson.loads(raw)
        except ValueError:
            self.run.problems["chromium event that is no JSON"] += 1
            return
        if not self.spans.add(event):
            self.run.problems["chromium event without name or time"] += 1
            return
        self.chromium.add(orjson.dumps(event))
        self.run.events += 1

    def _bytes(self, payload: Payload) -> bytes:
        """A small payload; the trace file stays open between them, there are thousands."""
        if self._trace is None or self._trace.name != str(payload.path):
            self.pause()
            self._trace = open(payload.path, "rb")  # noqa: SIM115 - closed by `pause`
        self._trace.seek(payload.offset)
        return dedent(self._trace.read(min(payload.length, _EVENT_LIMIT)))

    def pause(self) -> None:
        """Finish what is being written, close what is open; more records may follow."""
        self.chromium.close()
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    # ------------------------------------------------------------------ artifacts

    def _place(self, attempt: Attempt | None, artifact: Artifact) -> None:
        (self.run.loose if attempt is None else attempt.artifacts).append(artifact)
        self.run.number += 1

    def _artifact(self, record: Record, attempt: Attempt | None) -> None:
        payload = record.payload
        if payload is None:
            return
        title, name = artifact_file(record, self.run.number)
        path = f"{folder_of(None if attempt is None else attempt.id)}/{name}"
        stored = self.folder.store(path, payload)
        artifact = Artifact(
            self.run.number,
            title,
            path,
            record.id,
            stored.size,
            stored.lines,
            stored.digest,
            mark=_mark(title),
            alike=stored.alike,
        )
        self.run.payload_bytes += stored.size
        if stored.size <= self.limits.view_bytes:
            artifact.page = (
                f"{path.rpartition('.')[0]}.html" if record.kind == "inductor_output_code" else f"{path}.html"
            )
        self._place(attempt, artifact)
        if title == _TWICE:
            self.run.number += 1
        hear = _ARTIFACTS.get(title)
        if hear is not None:
            hear(self, artifact, attempt, self.folder.read(path, _TEXT_LIMIT * 4))

    def _metrics(self, record: Record, attempt: Attempt | None) -> None:
        if attempt is None:
            return
        page = f"{folder_of(attempt.id)}/{record.kind}_{self.run.number}.html"
        artifact = Artifact(self.run.number, record.kind, page, record.id, page=page, metrics=True)
        self._place(attempt, artifact)
        values = bounded(record.fields)
        attempt.metrics.append(MetricsRecord(record.kind, values, artifact))
        if record.kind == "compilation_metrics" and values.get("fail_type"):
            reason = f"{values['fail_type']}: {values.get('fail_reason') or ''}"[:2000]
            self.run.failures.append((self._compile(attempt).id, reason))

    # ------------------------------------------------------------------ reasons

    def _count(self, kind: str, reason: Reason, artifact: Artifact, attempt: Attempt | None) -> None:
        by_key: dict[tuple[str, str, int], Distinct] = getattr(self.run, kind)
        distinct = by_key.get(reason.key)
        if distinct is None:
            if len(by_key) >= self.limits.reasons:
                self.run.problems[f"more than {self.limits.reasons} distinct {kind}"] += 1
                return
            distinct = by_key[reason.key] = Distinct(reason)
        distinct.count += 1
        if reason.cause not in distinct.variants and len(distinct.variants) < 12:
            distinct.variants.append(reason.cause)
        if len(distinct.ids) < 200:
            distinct.artifacts.append(artifact)
            distinct.ids.append(attempt.id if attempt is not None else NO_ID)
        if attempt is not None:
            listed: list[Reason] = getattr(self._compile(attempt), kind)
            if len(listed) < 50 and reason not in listed:
                listed.append(reason)

    def dynamo_start(self, record: Record, attempt: Attempt | None) -> None:
        if attempt is not None:
            attempt.started = True
            attempt.stack = frames_of(record.fields.get("stack")) or record.stack

    def describe(self, record: Record, attempt: Attempt | None) -> None:
        if attempt is not None:
            attempt.tensors += 1

    def output_graph(self, record: Record, attempt: Attempt | None) -> None:
        sizes = record.fields.get("sizes")
        if attempt is not None and isinstance(sizes, dict):
            attempt.sizes = bounded(sizes)

    def link(self, record: Record, attempt: Attempt | None) -> None:
        address = str(record.fields.get("url") or "")
        if address.startswith(("https://", "http://")):
            name = str(record.fields.get("name") or address)[:200]
            self._place(attempt, Artifact(self.run.number, name, name, record.id, page=address, link=address))

    def break_text(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        if not self._argand:  # argand's traces tell the same in a record of their own, with more in it
            self._count("breaks", reasons.break_from_text(text), artifact, attempt)

    def break_record(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        reason = reasons.break_from_record(reasons.parse_json(text))
        if reason is not None:
            self._count("breaks", reason, artifact, attempt)

    def recompile_list(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        if not self._argand:
            for reason in reasons.recompiles_from_list(reasons.parse_json(text)):
                self._count("recompiles", reason, artifact, attempt)

    def recompile_record(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        for reason in reasons.recompiles_from_record(reasons.parse_json(text)):
            self._count("recompiles", reason, artifact, attempt)

    def error(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        if attempt is not None:
            self._compile(attempt).errors.append(text.strip()[:2000])

    def version(self, artifact: Artifact, attempt: Attempt | None, text: str) -> None:
        told = reasons.parse_json(text)
        if artifact.title == "argand_version":
            self._argand = True
        if isinstance(told, dict):
            names = {"pytorch_version": "torch", "argand": "argand", "torch": "torch", "python": "python"}
            for key, name in names.items():
                if isinstance(told.get(key), str) and told[key]:
                    self.run.facts[name] = told[key][:100]


def frames_of(told: Any) -> tuple[StackFrame, ...]:
    """A stack as records hold it inside their fields, cut as `bounded` cuts."""
    frames = scanner.frames_of(told[:500] if isinstance(told, list) else None)
    return tuple(StackFrame(at.filename[:1000], at.line, at.name[:500], at.source[:1000]) for at in frames)


def bounded(value: Any, depth: int = 0) -> Any:
    """`value` with long texts and containers cut: what a compile keeps in memory is small, whatever the trace holds."""
    if isinstance(value, str):
        return value[:4000]
    if isinstance(value, dict):
        return {str(k)[:200]: bounded(v, depth + 1) for k, v in list(value.items())[:400]} if depth < 4 else "…"
    if isinstance(value, (list, tuple)):
        return [bounded(item, depth + 1) for item in value[:200]] if depth < 4 else "…"
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)[:4000]


def _mark(title: str) -> str:
    return next((mark for mark in _CACHES if title.endswith(f"cache_{mark}")), "")


_Hear = Callable[[Collector, Record, "Attempt | None"], None]
_HEAR: dict[str, _Hear] = {
    "dynamo_start": Collector.dynamo_start,
    "dynamo_output_graph": Collector.output_graph,
    "describe_tensor": Collector.describe,
    "link": Collector.link,
}
_HearArtifact = Callable[[Collector, Artifact, "Attempt | None", str], None]
_ARTIFACTS: dict[str, _HearArtifact] = {
    "dynamo_graph_break_reason": Collector.break_text,
    "graph_breaks": Collector.break_record,
    "recompile_reasons": Collector.recompile_list,
    "recompiles": Collector.recompile_record,
    "dynamo_error": Collector.error,
    "frame_raised": Collector.error,
    "torch_version": Collector.version,
    "argand_version": Collector.version,
}
