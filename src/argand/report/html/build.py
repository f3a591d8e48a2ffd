"""A trace → a folder of pages (`single_file` makes it one page), piece by piece: a growing trace can be followed."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from argand.errors import ConfigError
from argand.quick_dataclasses import dataclass
from argand.report.html import code, pages
from argand.report.html.collect import Collector
from argand.report.html.compare import Comparison, compare
from argand.report.html.file_names import NO_ID, safe_name
from argand.report.html.fleet import Group, grouped
from argand.report.html.model import Artifact, Attempt, Compile, Distinct, Limits, Run
from argand.report.html.provenance import provenance
from argand.report.html.ranks import compare_runs
from argand.report.html.search import SearchIndex, words_of
from argand.report.html.single_file import pack
from argand.report.html.store import Folder
from argand.report.html.trie import build_trie
from argand.report.reader import Reader
from argand.report.records import TraceId, trace_files

MARKER = ".argand-report"
_RANK = re.compile(r"rank_(\d{1,6})")


@dataclass(slots=True)
class Built:
    """What `build` made.

    Arguments:
        index: the page to open.
        runs: what each process wrote.
        left_out: files that were too large for a single-file report.
    """

    index: Path
    runs: list[Run]
    left_out: list[str] = field(default_factory=list)

    @property
    def problems(self) -> int:
        return sum(sum(run.problems.values()) for run in self.runs)


def build(source: Path, out: Path, single_file: bool = False, limits: Limits | None = None) -> Built:
    """Write the report of a trace.

    Arguments:
        source: a trace file, or a directory of them (one for each rank).
        out: the folder to write, or the file with `single_file`.
        single_file: one self-contained page instead of a folder.
        limits: bounds; the defaults suit traces of any size.

    Raises:
        ConfigError: there is no trace, or `out` holds something that no report made.
    """
    limits = limits or Limits()
    if not single_file:
        return Builder(source, out, limits).build()
    if out.is_dir():
        raise ConfigError(f"{out} is a directory", remedy="name a file, such as report.html, for --single-file")
    with tempfile.TemporaryDirectory(prefix="argand-report-") as temporary:
        built = Builder(source, Path(temporary) / "report", limits).build()
        out.parent.mkdir(parents=True, exist_ok=True)
        left_out = pack(built.index.parent, out, limits)
    return Built(out, built.runs, left_out)


def prepare(out: Path) -> None:
    """Make an empty folder for a report; an older report in it is removed, anything else is left alone.

    Raises:
        ConfigError: the folder holds something else.
    """
    if out.exists():
        if not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).is_file()):
            raise ConfigError(f"{out} exists and is no report of argand", remedy="choose another folder with -o")
        for old in out.iterdir():
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            elif old.name != MARKER:
                old.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("written by argand report; replaced by the next one\n")


class Builder:
    """Builds a report, in one go (`build`) or as the trace grows (`follow`).

    Arguments:
        source: the trace.
        out: the folder, emptied first.
        limits: bounds.
        live: pages look for news on their server.
    """

    def __init__(self, source: Path, out: Path, limits: Limits, live: bool = False) -> None:
        self.source = source
        self.limits = limits
        self.live = live
        self.files = trace_files(source)
        if not live and (not self.files or not all(path.is_file() for path in self.files)):
            Reader(source)  # says what is missing
        prepare(out)
        self.out = out
        self.top = Folder(out, live)
        self.writers: list[RunWriter] = []
        for name, text in pages.assets().items():
            self.top.write(name, text)

    def run_for(self, path: Path, several: bool) -> RunWriter:
        """The writer for a trace file's pages."""
        label, folder = path.name, ""
        rank = _RANK.search(path.name)
        if rank:
            label = f"rank {int(rank[1])}"
        if several:
            base = folder = safe_name(label.replace(" ", "_"), "trace", 60)
            taken = {writer.run.folder for writer in self.writers}
            for number in range(2, 1000):
                if f"{folder}/" not in taken:
                    break
                folder, label = f"{base}_{number}", f"{label.partition(' (')[0]} ({number})"
            folder += "/"
        run = Run(label, folder, int(rank[1]) if rank else None)
        writer = RunWriter(self, run, several)
        self.writers.append(writer)
        return writer

    def build(self) -> Built:
        """Read everything, then write every page.

        Of very many ranks, those that compiled alike are one group, whose pages are those of its first rank.
        """
        groups = grouped(self.files, self.limits) if len(self.files) > self.limits.ranks else []
        for path in [group.path for group in groups[: self.limits.groups]] or self.files:
            writer = self.run_for(path, len(self.files) > 1)
            reader = Reader(path)
            for record in reader:
                writer.collector.add(record)
            writer.finish(reader.problems)
        for writer, group in zip(self.writers, groups):
            writer.run.problems.update(group.problems - writer.run.problems)
        self.write_top(groups)
        return Built(self.out / "index.html", [writer.run for writer in self.writers])

    def write_top(self, groups: Sequence[Group] = ()) -> None:
        """The page that compares ranks, when there are several.

        Arguments:
            groups: of ranks, of which those that are shown have a writer each.
        """
        if len(self.writers) < 2 and not groups:
            return
        runs = [writer.run for writer in self.writers]
        by_run = {id(writer.run): writer for writer in self.writers}
        weights = [len(group.ranks) for group in groups[: len(runs)]]
        comparison = compare_runs(runs, self.limits, lambda run, artifact: by_run[id(run)].read(artifact), weights)
        shell = {"root": "", "base": "", "top": "", "title": "Ranks", "live": self.live, "run": None, "active": "ranks"}
        page = pages.render("ranks.jinja", **shell, comparison=comparison, runs=runs, groups=groups)
        self.top.write("index.html", page)


def list_page(number: int) -> str:
    """The page that lists the compiles of that part of the trace."""
    return f"compiles-{number + 1}.html" if number else "index.html"


@dataclass(slots=True)
class RunWriter:
    """Writes the pages of one run; only those that changed since the last time."""

    builder: Builder
    run: Run
    several: bool
    folder: Folder = field(init=False)
    collector: Collector = field(init=False)
    words: dict[str, list[str]] = field(default_factory=dict)
    word_count: int = 0
    written: dict[str, tuple[str, str]] = field(default_factory=dict)
    provenances: dict[TraceId, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = self.builder.out / self.run.folder.rstrip("/") if self.run.folder else self.builder.out
        self.folder = Folder(root, self.builder.live)
        self.collector = Collector(self.run, self.folder, self.builder.limits)

    def read(self, artifact: Artifact) -> str:
        """An artifact's text, up to what is analysed."""
        return self.folder.read(artifact.path, self.builder.limits.analyse_bytes)

    def finish(self, problems: dict[str, int]) -> None:
        """Write what the records so far say.

        Arguments:
            problems: what the reader could not read.
        """
        self.collector.pause()
        self.run.problems.update({key: n - self.run.problems[key] for key, n in problems.items()})
        dirty, self.collector.dirty = self.collector.dirty, set()
        keys = list(self.run.compiles)
        for position, compile in enumerate(self.run.compiles.values()):
            compile.listed = list_page(position // self.builder.limits.compiles)
        for position, key in enumerate(keys):
            neighbours = {keys[position - 1] if position else key, keys[min(position + 1, len(keys) - 1)]}
            if key in dirty or neighbours & dirty:
                compile = self.run.compiles[key]
                self._attempts(compile)
                self._compile(compile, keys[position - 1 : position] or [], keys[position + 1 : position + 2])
        self._artifacts(self.run.loose)
        self._overview()

    # ------------------------------------------------------------------ pages

    def _page(self, name: str, template: str, title: str, active: str, **values: Any) -> None:
        depth = name.count("/")
        base = "../" * depth
        top = base + ("../" if self.run.folder else "")
        shell = {
            "root": top,
            "base": base,
            "top": top if self.several else "",
            "title": title,
            "live": self.builder.live,
        }
        self.folder.write(name, pages.render(template, **shell, run=self.run, active=active, **values))

    def _overview(self) -> None:
        compiles = list(self.run.compiles.values())
        trie, left_out = build_trie(compiles)
        per_page = self.builder.limits.compiles
        starts = range(0, max(len(compiles), 1), per_page)
        shared: dict[str, Any] = {
            "compiles": compiles,
            "provenances": self.provenances,
            "names": [list_page(number) for number in range(len(starts))],
            "ranges": [f"{start + 1}–{min(start + per_page, len(compiles))}" for start in starts],
            "slowest": max((compile.seconds or 0.0 for compile in compiles), default=0.0),
        }
        for number, start in enumerate(starts[1:], 1):
            listed = compiles[start : start + per_page]
            title = f"Compiles {shared['ranges'][number]}"
            self._page(list_page(number), "compiles.jinja", title, "overview", listed=listed, number=number, **shared)
        self._page(
            "index.html",
            "index.jinja",
            "Compile report",
            "overview",
            trie=trie,
            left_out=left_out,
            phases=pages.phase_artifacts(compiles),
            elsewhere={pages.anchor(compile.id): compile.listed for compile in compiles[per_page:]},
            listed=compiles[:per_page],
            number=0,
            **shared,
        )
        reasons = {kind: _numbered(getattr(self.run, kind)) for kind in ("breaks", "recompiles")}
        self._page("breaks.html", "breaks.jinja", "Graph breaks and recompiles", "breaks", compiles=compiles, **reasons)
        spans = self.collector.spans
        totals = sorted(spans.totals.items(), key=lambda item: -item[1].own)
        data = spans.as_data()
        self._page("time.html", "time.jinja", "Compile time", "time", spans=spans, totals=totals[:300], data=data)
        self._search()

    def _attempts(self, compile: Compile) -> None:
        for attempt in compile.attempts.values():
            self._artifacts(attempt.artifacts)

    def _artifacts(self, artifacts: list[Artifact]) -> None:
        for position, artifact in enumerate(artifacts):
            if not artifact.page or artifact.metrics or artifact.link:
                continue
            before = artifacts[position - 1] if position else None
            after = artifacts[position + 1] if position + 1 < len(artifacts) else None
            state = (before.href if before else "", after.href if after else "")
            if self.written.get(artifact.path) == state:
                continue
            self._artifact(artifact, before, after)
            self.written[artifact.path] = state

    def _artifact(self, artifact: Artifact, before: Artifact | None, after: Artifact | None) -> None:
        limits = self.builder.limits
        text = self.folder.read(artifact.path, limits.view_bytes)
        if artifact.path not in self.words and self.word_count < limits.words:
            self.words[artifact.path] = words_of(text)
            self.word_count += len(self.words[artifact.path])
        note = ""
        language = code.language_of(artifact.title, artifact.name, text[:4000])
        lines = code.plain(text)
        if artifact.size > limits.highlight_bytes:
            note = "Large: shown without highlighting."
        self._page(
            artifact.page,
            "artifact.jinja",
            artifact.title,
            "overview",
            artifact=artifact,
            code=Markup(code.numbered(lines)),
            count=len(lines),
            language=language,
            note=note,
            before=before,
            after=after,
        )

    # ------------------------------------------------------------------ compiles

    def _compile(self, compile: Compile, before: list[TraceId], after: list[TraceId]) -> None:
        self._provenance(compile)
        comparisons = list(self._comparisons(compile))
        values: dict[str, Any] = {
            "compile": compile,
            "comparisons": comparisons,
            "provenance": self.provenances.get(compile.id, []),
            "before": [self.run.compiles[key] for key in before],
            "after": [self.run.compiles[key] for key in after],
        }
        title = f"{pages.anchor(compile.id)} {compile.function}"
        hub = compile.hub
        self._page(hub, "compile.jinja", title, "overview", metrics=None, v=pages.Values(compile.metrics), **values)
        for attempt in compile.attempts.values():
            for record in attempt.metrics:
                if record.artifact.page != hub:
                    own = {**values, "metrics": record, "v": pages.Values(record.values)}
                    self._page(record.artifact.page, "compile.jinja", title, "overview", **own)

    def _provenance(self, compile: Compile) -> None:
        panes = provenance(compile, self.read)
        names = []
        attempts = list(compile.attempts.values())
        for number, entry in enumerate(panes):
            name = f"{attempts[-1].folder}/provenance{f'-{number + 1}' if number else ''}.html"
            names.append(name)
            title = f"Provenance {pages.anchor(compile.id)}"
            self._page(
                name, "provenance.jinja", title, "overview", compile=compile, entry=entry, names=names, number=number
            )
        if names:
            self.provenances[compile.id] = names

    def _comparisons(self, compile: Compile) -> Iterator[tuple[str, Comparison]]:
        """Pages that compare this compile with the frame's one before it, and its attempts with each other."""
        pairs: list[tuple[Attempt, Attempt]] = []
        attempts = list(compile.attempts.values())
        id = compile.id
        if id.recompile and attempts:
            earlier = self.run.compiles.get(TraceId(id.frame, id.recompile - 1, 0, id.compiled_autograd))
            if earlier is not None and earlier.attempts:
                pairs.append((list(earlier.attempts.values())[-1], attempts[-1]))
        pairs += list(itertools.pairwise(attempts))[:10]
        for left, right in pairs:
            again = left.id.recompile != right.id.recompile
            listed = compile.recompiles if again else compile.breaks
            comparison = compare(left, right, listed, self.read, self.builder.limits.diff_lines)
            name = f"{right.folder}/compare_with_{left.folder.removeprefix('-_')}.html"
            self._page(
                name,
                "compare.jinja",
                f"{comparison.left} → {comparison.right}",
                "overview",
                compile=compile,
                comparison=comparison,
            )
            yield name, comparison

    # ------------------------------------------------------------------ search

    def _search(self) -> None:
        index = SearchIndex(self.builder.limits.words)
        index.truncated = self.word_count >= self.builder.limits.words
        run = self.run
        for compile in run.compiles.values():
            index.add("compile", f"{pages.anchor(compile.id)} {compile.function}", compile.place, compile.hub)
        for kind, label in (("breaks", "graph break"), ("recompiles", "recompile")):
            for number, distinct in enumerate(getattr(run, kind).values()):
                reason = distinct.reason
                detail = f"{reason.file}:{reason.line} {reason.source}" if reason.file else reason.source
                words = words_of(f"{reason.cause} {reason.explanation} {reason.source}")
                index.add(label, reason.cause, detail, f"breaks.html#{kind}-{number}", words)
        for name in sorted(self.collector.spans.totals)[:1000]:
            index.add("time span", name, "", "time.html")
        for artifact in run.artifacts:
            where = pages.anchor(artifact.id) if artifact.id not in (None, NO_ID) else "[-/-]"
            index.add("artifact", artifact.name, where, artifact.href, self.words.get(artifact.path, ()))
        data = pages.for_script(index.as_data())
        self.folder.write("search-index.js", f"window.argandSearchIndex={data};\n")


def _numbered(by_key: dict[Any, Distinct]) -> list[tuple[int, Distinct]]:
    """Distinct reasons with their numbers in the order in which they came, the most frequent first."""
    return sorted(enumerate(by_key.values()), key=lambda item: -item[1].count)
