"""Source text → HTML lines. Highlighting is the browser's work (`static/highlight.js`): few of the pages are opened."""

from __future__ import annotations

import html
import re

_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\]])')
_CPP = re.compile(r'#include|extern "C"|#define|#pragma')


def language_of(title: str, name: str, head: str) -> str:
    """Which language it is: "python", "cpp", "json", "bytecode", "guards" or "text"."""
    if name.endswith(".json"):
        return "json"
    if "cpp_guards" in title:
        return "guards"
    if "BYTECODE" in title or title == "bytecode":
        return "text"
    if title == "kernel_code" and _CPP.search(head):
        return "cpp"
    if title in ("torch._functorch.config", "aot_forward_graph_fw_metadata") or title.startswith("ir_"):
        return "python"
    if re.search(r"graph|code|submod|runnable|wrapper|compiled_f|logue|orchestration", title) and (
        re.search(r"^\s*(def|class|import|from|#|opcode)\b", head, re.M)
    ):
        return "python"
    if _JSON.match(head):
        return "json"
    return "text"


def plain(text: str) -> list[str]:
    """The lines of `text`, escaped."""
    return html.escape(text).split("\n")


def numbered(lines: list[str]) -> str:
    """Escaped lines as elements that a link can name (`#L7`)."""
    return "".join([f'<span class="l" id="L{number}">{line}\n</span>' for number, line in enumerate(lines, 1)])
