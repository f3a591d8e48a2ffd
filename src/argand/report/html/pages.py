"""The model → HTML pages, through jinja2 templates that escape everything.

Only `code` and `linked_lines` make HTML themselves, with every text escaped; nothing else is marked as safe.
"""

from __future__ import annotations

import html
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from argand.report.html.model import MARKS, STATUSES, Artifact, Compile
from argand.report.html.provenance import Line
from argand.report.records import TraceId

HERE = Path(__file__).parent
SCRIPTS = ("shell.js", "highlight.js", "trie.js", "search.js", "flame.js", "provenance.js", "live.js")
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)

# What each artifact is, for the tooltip and the artifact's page.
EXPLANATIONS = {
    "dynamo_output_graph": "The graph that was captured from the program's bytecode.",
    "dynamo_guards": "The conditions under which the compiled code may be used again.",
    "dynamo_cpp_guards_str": "The tree of guards, as it is checked on every call.",
    "dynamo_graph_break_reason": "Why capture stopped here.",
    "graph_breaks": "Why capture stopped here, with the user's line and what to do.",
    "recompile_reasons": "Which guard of which earlier version refused the call.",
    "recompiles": "Which guard refused the call, with what to do.",
    "aot_joint_graph": "Forward and backward in one graph of ATen operators.",
    "aot_forward_graph": "The forward half of the joint graph.",
    "aot_backward_graph": "The backward half of the joint graph.",
    "aot_inference_graph": "The graph of ATen operators, where no gradients are needed.",
    "inductor_pre_grad_graph": "The graph before autograd sees it.",
    "inductor_post_grad_graph": "The ATen graph after the passes, as it is lowered.",
    "inductor_output_code": "The generated program: runs as it is.",
    "kernel_code": "The generated kernels.",
    "ir_pre_fusion": "Loop bodies and their dependencies before fusion.",
    "ir_post_fusion": "Loop bodies after fusion, one block per kernel.",
    "fx_graph_runnable": "A program that reproduces this compile.",
    "compilation_metrics": "Times, counts and failures of this compile.",
    "bytecode": "The function's bytecode before and after.",
    "torch._functorch.config": "Settings in force.",
    "compiled_autograd_graph": "The autograd graph that compiled autograd traced.",
    "chromium_events.json": "Time spans for Perfetto.",
}


class Values(dict[str, Any]):
    """Metrics as a template reads them: what is missing is None."""

    def __missing__(self, key: str) -> None:
        return None


def fmt_bytes(size: float) -> str:
    """1536 → "1.5 kB"."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def fmt_seconds(value: Any) -> str:
    """0.0123 → "12 ms"; "" for what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 0.001:
        return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} µs" if value else "0"


def fmt_value(value: Any) -> str:
    """A metrics value as text."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(fmt_value(v) for v in value[:200]) if value else "none"
    if isinstance(value, dict):
        return json.dumps(value, default=str)[:4000]
    return str(value)[:4000]


def for_script(value: Any) -> Markup:
    """A value as JSON that can stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    for char, escape in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(char, escape)
    return Markup(text)


def linked_lines(lines: list[Line]) -> Markup:
    """The lines of a provenance pane; a template would take several times as long, and there are many."""
    lines_html = []
    for line in lines:
        if line.nodes:
            head = '<div role="option" aria-selected="false" tabindex="-1" class="p" data-n="'
            lines_html.append(f'{head}{" ".join(map(str, line.nodes))}">{html.escape(line.text)}</div>')
        else:
            lines_html.append(f'<div class="q" role="presentation">{html.escape(line.text) or " "}</div>')
    return Markup("".join(lines_html))


def anchor(id: TraceId | None) -> str:
    """The id of a compile's place on the overview: `[0/0]`, as tlparse spells it."""
    return "[-/-]" if id is None else str(id.compile)


def short_path(path: str) -> str:
    """The last two components of a path."""
    parts = path.replace("\\", "/").split("/")
    return "/".join(parts[-2:]) if len(parts) > 3 else path


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates, with autoescape and no undefined names."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        bytes=fmt_bytes,
        seconds=fmt_seconds,
        value=fmt_value,
        script=for_script,
        anchor=anchor,
        short=short_path,
        linked=linked_lines,
    )
    templates.globals.update(statuses=STATUSES, marks=MARKS, policy=POLICY, explanations=EXPLANATIONS)
    return templates


def render(template: str, **values: Any) -> str:
    """One page."""
    return environment().get_template(template).render(**values)


def assets() -> dict[str, str]:
    """The files that every page loads: one style sheet, one script."""
    static = HERE / "static"
    script = "\n".join((static / name).read_text() for name in SCRIPTS)
    return {"assets/report.css": (static / "report.css").read_text(), "assets/report.js": script}


def phase_artifacts(compiles: list[Compile]) -> dict[str, list[Artifact]]:
    """The newest artifacts by title, for the links in the description of the phases."""
    by_title: dict[str, list[Artifact]] = {}
    for compile in compiles[:200]:
        for artifact in compile.artifacts:
            title = "inductor_output_code" if artifact.title.startswith("inductor_output_code") else artifact.title
            by_title.setdefault(title, [artifact])
    return by_title
