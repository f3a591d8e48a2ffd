"""Why graphs broke and why frames were compiled again: texts and records of a trace → `Reason`, with what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from argand.breaks import render
from argand.report.html.model import Reason

_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.M)
_IN_CODE = re.compile(r"Graph break in user code at (?P<file>.+):(?P<line>\d+)\s*$", re.M)
_LABELLED = re.compile(r"^\s*(Explanation|Hint|hint|Developer debug context|context)\s*:\s*(.*)$")
_OF_COMPILE = re.compile(r"^\s*\[?(?:!\d+/)?\d+/\d+(?:_\d+)?\]?:\s*")
_GUARD_PLACE = re.compile(
    r"^(?P<guard>.*?)\s+#\s(?P<source>.*?)\s+#\s(?P<file>\S+):(?P<line>\d+) in (?P<name>\S+)", re.S
)
_OF_ONE_CALL = re.compile(r"\s*(?:\bexpected\b|==|!=|<=|>=|<|>|\bis\b).*", re.S)  # the values in a guard's text
_MAX = 4000

# What a failed guard looks like, and what lets one compiled version serve both calls.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"size mismatch at index|\.size\(\)\[\d+\]",
        "Mark the dimension as dynamic before the first call (mark_dynamic(tensor, dim)) or compile with dynamic=True.",
    ),
    (r"stride mismatch|\.stride\(\)", "Call .contiguous() on the input, or always pass the same memory layout."),
    (r"dtype mismatch", "Convert inputs to one dtype before the call; each dtype needs its own version."),
    (
        r"requires_grad|grad_mode|inference_mode",
        "Call it always with or always without gradients; each of the two needs its own version.",
    ),
    (r"device", "Each device needs its own version: expected when the model moves between devices."),
    (
        r"dispatch key|DispatchKeySet",
        "The kind of tensor changed (subclass, inference mode, autocast): keep the surrounding context the same.",
    ),
    (r"rank mismatch|\bndim\b", "The number of dimensions changed; each needs its own version."),
    (
        r"len\(|length",
        "A container changed its length: keep it the same, or move the loop over it out of the compiled function.",
    ),
    (
        r"___check_obj_id|ID_MATCH|\bis\b .*object|check_type_id|type mismatch",
        "An object was replaced by another: create it once outside and reuse it.",
    ),
    (
        r"___check_global_state|global state|GLOBAL_STATE",
        "A global setting (deterministic, threads, autocast, default dtype) changed between calls.",
    ),
    (
        r"___dict_contains|KeyError|attribute",
        "An attribute or key appeared or went away between calls: set it once before the first call.",
    ),
    (r"==|!=|<=|>=|\bin\b", "A Python value is part of the compiled code: pass it as a tensor, or keep it constant."),
)


def remedy_for(guard: str) -> str:
    """One sentence about how to avoid a recompile that `guard` caused; "" when nothing general can be said."""
    return next((text for pattern, text in _REMEDIES if re.search(pattern, guard, re.I)), "")


def _labelled(text: str) -> tuple[str, dict[str, list[str]]]:
    """The headline of a graph break's text and what its `Explanation:` and `Hint:` lines say, each once."""
    labels: dict[str, list[str]] = {}
    current: list[str] | None = None
    headline = ""
    for line in text.splitlines():
        if line.startswith("Graph Break Reason:"):
            headline, current = line.partition(":")[2].strip(), None
        elif labelled := _LABELLED.match(line):
            current = labels.setdefault(labelled[1].lower(), [])
            current.append(labelled[2].strip())
        elif current is not None and line.startswith(" " * 4) and line.strip() and not _PLACE.match(line):
            current[-1] += "\n" + line.strip()
        else:
            current = None
            if headline.endswith(":") and line.strip():  # says where it was met; what it is comes below
                headline = line.strip()
    return headline, {label: list(dict.fromkeys(said)) for label, said in labels.items()}


def break_from_text(text: str) -> Reason:
    """The reason that a `dynamo_graph_break_reason` text tells: torch.compile's or argand's form."""
    text = text[: _MAX * 8].strip()
    # What follows is the traceback within the compiler.
    told = text.partition("\nTraceback (most recent call last):")[0]
    headline, labels = _labelled(told)
    explanation = "\n".join(labels.get("explanation", ()))
    if not headline:
        first = next((line.strip() for line in told.splitlines() if line.strip() and not _IN_CODE.match(line)), "")
        headline, _, rest = first.partition(": ")
        explanation = explanation or rest
    _before, marker, users = told.partition("User code traceback:")
    place = _IN_CODE.search(told)
    places = list(_PLACE.finditer(users if marker else told))
    last = places[-1] if places else None
    source = (users if marker else told)[last.end() :].strip("\n").splitlines()[:1] if last else []
    return Reason(
        cause=headline[:300] or "graph break",
        explanation=explanation[:_MAX],
        remedies=tuple(hint[:_MAX] for hint in labels.get("hint", ())[:10]),
        file=(place or last or {"file": ""})["file"],
        line=int((place or last or {"line": 0})["line"]),
        function=str(last["name"] or "") if last else "",
        source=source[0].strip()[:300] if source else "",
        detail=told[:_MAX],
    )


def _user_place(told: dict[str, Any]) -> dict[str, Any]:
    """The user's line in the innermost frame of a record's stack, as arguments of `Reason`."""
    stack = told.get("stack") or told.get("where")
    frame = stack[-1] if isinstance(stack, list) and stack else stack
    if not isinstance(frame, dict):
        return {}
    line = frame.get("line", frame.get("lineno", 0))
    return {
        "file": str(frame.get("filename") or frame.get("file") or ""),
        "line": line if isinstance(line, int) else 0,
        "function": str(frame.get("name") or frame.get("function") or ""),
        "source": str(frame.get("source") or frame.get("text") or "")[:300],
    }


def break_from_record(told: Any) -> Reason | None:
    """The reason that argand's `graph_breaks` artifact tells."""
    if not isinstance(told, dict) or "kind" not in told:
        return None
    remedies, name = told.get("remedies"), told.get("id")
    page = render.find(name) if isinstance(name, str) else None
    return Reason(
        cause=f"[{page.id}] {told['kind']}"[:300] if page is not None else str(told["kind"])[:300],
        explanation=str(told.get("explanation") or "")[:_MAX],
        remedies=tuple(str(r)[:_MAX] for r in remedies[:10]) if isinstance(remedies, list) else (),
        detail=f"context: {told['context']}"[:_MAX] if told.get("context") else "",
        page=render.terminal(page) if page is not None else "",
        **_user_place(told),
    )


def recompiles_from_list(told: Any) -> Iterator[Reason]:
    """The reasons in a `recompile_reasons` artifact: a list of texts, one for each version whose guard failed."""
    for entry in told if isinstance(told, list) else [told]:
        text = str(entry)[:_MAX]
        guard = _OF_COMPILE.sub("", text).strip()
        place = _GUARD_PLACE.match(guard)
        cause = (place["guard"] if place else guard).strip()
        advice = remedy_for(cause)
        yield Reason(
            cause=cause[:500] or "unknown",
            remedies=(advice,) if advice else (),
            file=place["file"] if place else "",
            line=int(place["line"]) if place else 0,
            function=place["name"] if place else "",
            source=place["source"].strip()[:300] if place else "",
            detail=text,
            group=_OF_ONE_CALL.sub("", cause) or cause,
        )


def recompiles_from_record(told: Any) -> Iterator[Reason]:
    """The reasons in argand's `recompiles` artifact, each with its remedy."""
    failures = told.get("failures") if isinstance(told, dict) else None
    for failure in failures if isinstance(failures, list) else ():
        if not isinstance(failure, dict):
            continue
        cause = f"{failure.get('what', '')}: {failure.get('detail', '')}".strip(": ")
        advice = str(failure.get("remedy") or "") or remedy_for(cause)
        place = failure.get("where")
        yield Reason(
            cause=cause[:500] or "unknown",
            remedies=(advice[:_MAX],) if advice else (),
            detail=str(failure.get("guard") or "")[:_MAX],
            group=str(failure.get("what") or "")[:500],
            **_user_place({"stack": [place]} if isinstance(place, dict) else {}),
        )


def parse_json(text: str) -> Any:
    """The value of a JSON text, or the text itself when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
