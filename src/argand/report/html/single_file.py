"""A report's folder → one HTML file that holds every page, compressed, and works without anything beside it."""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from markupsafe import escape

from argand import files
from argand.report.html.model import Limits
from argand.report.html.pages import POLICY

_SCRIPT_LINK = '<script src="assets/report.js" defer></script>'
_STYLE_LINK = '<link rel="stylesheet" href="assets/report.css">'
_SEARCH = "search-index.js"
_SEARCH_HEAD = b"window.argandSearchIndex="


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _shell(folder: Path) -> str:
    """The first page with style and script inside, allowed by their hashes alone."""
    page = (folder / "index.html").read_text(encoding="utf-8")
    style = (folder / "assets/report.css").read_text(encoding="utf-8")
    script = (folder / "assets/report.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = page.replace("<html ", "<html data-single ", 1)
    page = page.replace(str(escape(POLICY)), str(escape(policy)), 1)
    page = page.replace(_STYLE_LINK, f"<style>{style}</style>", 1)
    return page.replace(_SCRIPT_LINK, f"<script>{script}</script>", 1)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith(".") and not name.startswith("assets/"):
            yield name, path


def _block(target: BinaryIO, name: str, data: bytes) -> None:
    """One file of the report: base64 text that no script runs."""
    packed = base64.b64encode(zlib.compress(data, 6))
    target.write(f'<script type="application/octet-stream" id="file:{html.escape(name)}">'.encode())
    target.write(packed)
    target.write(b"</script>\n")


def pack(folder: Path, out: Path, limits: Limits) -> list[str]:
    """Write `out`; returns the files that were too large for it.

    Arguments:
        folder: a report.
        out: replaced when it exists.
        limits: `embed_bytes` bounds each file.
    """
    left_out: list[str] = []
    head, tail = _shell(folder).rsplit("</body>", 1)
    with files.replacing(out) as beside, open(beside, "wb") as target:
        target.write(head.encode("utf-8", "replace"))
        for name, path in _files(folder):
            if path.stat().st_size > limits.embed_bytes and not name.endswith((".html", _SEARCH)):
                left_out.append(name)
                text = f"{name} is too large for a single file ({path.stat().st_size} bytes). Build a folder instead."
                _block(target, name, text.encode())
                continue
            data = path.read_bytes()
            if name.endswith(_SEARCH):
                name = name.removesuffix(".js") + ".json"
                data = data.removeprefix(_SEARCH_HEAD).rstrip().removesuffix(b";")
            _block(target, name, data)
        target.write(b"</body>" + tail.encode())
    return left_out
