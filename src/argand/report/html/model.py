"""What a report knows: runs (one process each), their compiles, attempts and artifacts. Payloads stay in files."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any

from argand.quick_dataclasses import dataclass
from argand.report.html.file_names import folder_of
from argand.report.records import StackFrame, TraceId

# A report's colours of compile ids, with what each says.
STATUSES = {
    "ok": "Success",
    "break": "Success with restart (e.g., graph break)",
    "empty": "Empty graph",
    "error": "Error",
    "missing": "Metrics were missing",
}
MARKS = {"hit": "✅", "miss": "❌", "bypass": "❓"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep a report of a huge trace fast and small; what a bound left out is said on the page.

    Arguments:
        highlight_bytes: the largest payload that gets syntax highlighting.
        view_bytes: the largest payload that gets a page of its own; larger ones are linked as text files.
        analyse_bytes: the largest graph, code or guard text that provenance and comparisons read.
        diff_lines: the most lines of a text that is compared line by line.
        spans: the most time spans kept for the flame graph; the shortest go first.
        words: the most (word, artifact) pairs in the search index.
        reasons: the most distinct graph breaks and recompiles listed.
        compiles: how many compiles the overview lists with their artifacts; the others have pages of as many each.
        embed_bytes: the largest file that a single-file report takes in.
        ranks: the most ranks that have pages each; of more, those that compiled alike are one group.
        groups: the most groups that are shown.
    """

    highlight_bytes: int = 512 << 10
    view_bytes: int = 2 << 20
    analyse_bytes: int = 1 << 20
    diff_lines: int = 3000
    spans: int = 20_000
    words: int = 300_000
    reasons: int = 500
    compiles: int = 60
    embed_bytes: int = 4 << 20
    ranks: int = 64
    groups: int = 16


@dataclass(slots=True)
class Artifact:
    """One payload of the trace, now a file.

    Arguments:
        number: running number in the report, as tlparse counts.
        title: the artifact's name ("dynamo_output_graph").
        path: its file, relative to the run's folder: `-_0_0_0/dynamo_output_graph_0.txt`.
        id: the compile and attempt that it belongs to.
        size, lines, digest: of its text.
        mark: "hit", "miss", "bypass" or "": what a cache said.
        page: the page that shows it, or "" when the file itself is all there is.
        link: an address outside the report, for records that are links.
        metrics: True for the page of a metrics record, which has no file.
        alike: digest of its text without the numbers of devices.
    """

    number: int
    title: str
    path: str
    id: TraceId | None
    size: int = 0
    lines: int = 0
    digest: str = ""
    mark: str = ""
    page: str = ""
    link: str = ""
    metrics: bool = False
    alike: str = ""

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def href(self) -> str:
        """What a link to the artifact opens."""
        return self.page or self.path

    @property
    def sign(self) -> str:
        return MARKS.get(self.mark, "")


@dataclass(slots=True)
class MetricsRecord:
    """A metrics record: which kind, its values, and the artifact under which it is listed."""

    kind: str
    values: dict[str, Any]
    artifact: Artifact


@dataclass(slots=True)
class Attempt:
    """One attempt at a compile."""

    id: TraceId
    started: bool = False
    stack: tuple[StackFrame, ...] = ()
    artifacts: list[Artifact] = field(default_factory=list)
    metrics: list[MetricsRecord] = field(default_factory=list)
    symbols: list[dict[str, Any]] = field(default_factory=list)
    tensors: int = 0
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return folder_of(self.id)


def _seconds(metrics: dict[str, Any]) -> float | None:
    """The time that a metrics record tells; torch's of a backward have no time of a frame."""
    for name, unit in (("entire_frame_compile_time_s", 1.0), ("duration_us", 1e6), ("inductor_compile_time_s", 1.0)):
        value = metrics.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15:
            return float(value) / unit
    return None


@dataclass(slots=True)
class Compile:
    """One compile `[x/y]` with its attempts, listed with its artifacts on the page `listed`."""

    id: TraceId
    listed: str = "index.html"
    attempts: dict[int, Attempt] = field(default_factory=dict)
    breaks: list[Reason] = field(default_factory=list)
    recompiles: list[Reason] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def artifacts(self) -> list[Artifact]:
        return [artifact for attempt in self.attempts.values() for artifact in attempt.artifacts]

    @property
    def _records(self) -> list[MetricsRecord]:
        return [record for attempt in self.attempts.values() for record in attempt.metrics]

    @property
    def _forward(self) -> MetricsRecord | None:
        """The last `compilation_metrics` record."""
        return next((record for record in reversed(self._records) if record.kind == "compilation_metrics"), None)

    @property
    def metrics(self) -> dict[str, Any]:
        """The values of the last `compilation_metrics` record, or an empty dict."""
        record = self._forward
        return {} if record is None else record.values

    @property
    def has_metrics(self) -> bool:
        return self._forward is not None

    @property
    def stack(self) -> tuple[StackFrame, ...]:
        return next((a.stack for a in self.attempts.values() if a.stack), ())

    @property
    def status(self) -> str:
        """A key of STATUSES."""
        metrics = self.metrics
        if metrics.get("fail_type") or (self.errors and not self.has_metrics):
            return "error"
        if not self.has_metrics:
            return "missing"
        if not metrics.get("graph_op_count"):
            return "empty"
        return "break" if metrics.get("restart_reasons") or len(self.attempts) > 1 else "ok"

    @property
    def function(self) -> str:
        name = self.metrics.get("co_name")
        if isinstance(name, str) and name:
            return name
        return self.stack[-1].name if self.stack else ""

    @property
    def place(self) -> str:
        """`file:line` of the compiled function."""
        metrics = self.metrics
        if isinstance(metrics.get("co_filename"), str):
            return f"{metrics['co_filename']}:{metrics.get('co_firstlineno', '?')}"
        return f"{self.stack[-1].filename}:{self.stack[-1].line}" if self.stack else ""

    @property
    def seconds(self) -> float | None:
        """How long it took, with a backward that was compiled when the first gradient was asked for."""
        of_parts = [_seconds(self.metrics)]
        of_parts += [_seconds(record.values) for record in self._records if record.kind != "compilation_metrics"]
        known = [value for value in of_parts if value is not None]
        return sum(known) if known else None

    @property
    def restarts(self) -> list[str]:
        """Why capture was begun anew, one line each."""
        told = self.metrics.get("restart_reasons")
        return [str(reason).split("\n")[0][:500] for reason in told[:100]] if isinstance(told, list) else []

    @property
    def hub(self) -> str:
        """The page about this compile."""
        record = self._forward
        if record is not None:
            return record.artifact.page
        return f"{list(self.attempts.values())[-1].folder if self.attempts else '-_-_-_-'}/compile.html"

    def last(self, *titles: str) -> Artifact | None:
        """The newest artifact with one of the titles; the first title wins."""
        artifacts = self.artifacts
        for title in titles:
            for artifact in reversed(artifacts):
                if artifact.title == title or (title.endswith("*") and artifact.title.startswith(title[:-1])):
                    return artifact
        return None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a graph broke or a frame was compiled again.

    Arguments:
        cause: one line.
        explanation: more of it, or "".
        remedies: what to do about it.
        file, line, function, source: the user's line; "" and 0 where the trace does not say.
        detail: the text as the trace has it.
        group: what makes it the same reason as another one: the cause without the values of one call.
        page: what the catalogue of graph breaks says of it, with an example.
    """

    cause: str
    explanation: str = ""
    remedies: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    detail: str = ""
    group: str = ""
    page: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.group or self.cause, self.file, self.line)


@dataclass(slots=True)
class Distinct:
    """A reason that occurred, with every compile in which it did, and the causes that differ only in values."""

    reason: Reason
    variants: list[str] = field(default_factory=list)
    ids: list[TraceId] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class Run:
    """What one process wrote.

    Arguments:
        label: "rank 0", or the file's name.
        folder: where its pages lie, relative to the report: "" or "rank_0/".
    """

    label: str
    folder: str = ""
    rank: int | None = None
    compiles: dict[TraceId, Compile] = field(default_factory=dict)
    loose: list[Artifact] = field(default_factory=list)
    breaks: dict[tuple[str, str, int], Distinct] = field(default_factory=dict)
    recompiles: dict[tuple[str, str, int], Distinct] = field(default_factory=dict)
    failures: list[tuple[TraceId, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    facts: dict[str, str] = field(default_factory=dict)
    events: int = 0
    payload_bytes: int = 0
    number: int = 0

    @property
    def artifacts(self) -> list[Artifact]:
        return [*self.loose, *(a for c in self.compiles.values() for a in c.artifacts)]

    @property
    def by_status(self) -> dict[str, int]:
        counts = Counter(c.status for c in self.compiles.values())
        return {status: counts[status] for status in STATUSES if counts[status]}

    @property
    def cache(self) -> dict[str, int]:
        counts = Counter(a.mark for a in self.artifacts if a.mark)
        return {mark: counts[mark] for mark in MARKS}

    @property
    def seconds(self) -> float:
        return sum(c.seconds or 0.0 for c in self.compiles.values())
