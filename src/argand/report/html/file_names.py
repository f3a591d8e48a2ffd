"""File names made from what a trace says: letters, digits and `._+-` only, of bounded length."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from argand.report.records import Record, TraceId

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
NO_ID = TraceId(None, None)


def safe_name(text: Any, fallback: str = "unnamed", limit: int = 120) -> str:
    """`text` as a part of a file name: never empty, never beginning with a dot, never with a separator."""
    cleaned = _UNSAFE.sub("_", str(text)).lstrip(".")[:limit]
    return cleaned or fallback


def stem(text: Any) -> str:
    """The last component of a path (POSIX or Windows), without its suffix."""
    given = str(text)
    last = PureWindowsPath(given).name if "\\" in given else PurePosixPath(given).name
    return last.rsplit(".", 1)[0] if "." in last[1:] else last


def folder_of(id: TraceId | None) -> str:
    """The folder that holds what belongs to a compile: `-_0_0_0`; `-_-_-_-` for what belongs to none."""
    if id is None or id == NO_ID:
        return "-_-_-_-"
    return safe_name(id.directory)


def artifact_file(record: Record, number: int) -> tuple[str, str]:
    """The title and the file name of a record's payload, in the scheme of tlparse: `dynamo_output_graph_0.txt`."""
    fields = record.fields
    name = record.kind
    ending = "txt"
    if record.kind == "artifact":
        name = str(fields.get("name") or "artifact")
        ending = "json" if fields.get("encoding") == "json" else "txt"
    elif record.kind == "graph_dump" and fields.get("name"):
        name = str(fields["name"])
    elif record.kind == "dump_file" and fields.get("name"):
        name = f"dump_file_{fields['name']}"
    elif record.kind == "optimize_ddp_split_child" and fields.get("name"):
        name = f"optimize_ddp_split_child_{fields['name']}"
    elif record.kind == "inductor_output_code" and fields.get("filename"):
        name = f"inductor_output_code_{stem(fields['filename'])}"
    return name, f"{safe_name(name)}_{number}.{ending}"
