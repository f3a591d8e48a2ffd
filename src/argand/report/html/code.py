"""Source text → HTML lines. Pygments classes, so that one text serves the light and the dark theme."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import Any

_EMBEDDED = re.compile(r"(r?'''|r?\"\"\")(.*?)('''|\"\"\")", re.S)
_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\]])')
_CPP = re.compile(r'#include|extern "C"|#define|#pragma')


def language_of(title: str, name: str, head: str) -> str:
    """Which lexer fits: "python", "cpp", "json", "bytecode", "guards" or "text"."""
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


@lru_cache(maxsize=4)
def _lexer(language: str) -> Any:
    from pygments.lexers import CppLexer, JsonLexer, PythonLexer

    made = {"python": PythonLexer, "cpp": CppLexer, "json": JsonLexer}[language]
    return made(stripnl=False, ensurenl=False)


def _tokens(text: str, language: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter

    done: str = highlight(text, _lexer(language), HtmlFormatter(nowrap=True))
    # The formatter may add a line feed that the text does not have.
    return done.rstrip("\n") + text[len(text.rstrip("\n")) :]


def _python(text: str) -> str:
    """Python in which long triple-quoted strings hold other programs: each piece by its own lexer."""
    pieces: list[str] = []
    at = 0
    for found in _EMBEDDED.finditer(text):
        inner = found[2]
        if inner.count("\n") < 4:
            continue
        pieces.append(_tokens(text[at : found.start()], "python"))
        quotes = html.escape(found[1])
        body = _tokens(inner, "cpp" if _CPP.search(inner) else "python")
        pieces.append(f'<span class="s">{quotes}</span>{body}<span class="s">{html.escape(found[3])}</span>')
        at = found.end()
    pieces.append(_tokens(text[at:], "python"))
    return "".join(pieces)


_GUARD = re.compile(r"^((?:\| )*)(\+- )([A-Za-z_]+)(:)(.*?)((?:\s+#.*)?)$")


def _guards(text: str) -> str:
    """A guard tree: branches dim, kinds of guards marked, comments as comments."""
    lines = []
    for line in text.split("\n"):
        found = _GUARD.match(line)
        if not found:
            lines.append(html.escape(line))
            continue
        rails, branch, kind, colon, rest, comment = found.groups()
        name = "nc" if kind.endswith("Manager") else "k"
        tail = f'<span class="c1">{html.escape(comment)}</span>' if comment else ""
        shown = html.escape(rest)
        lines.append(f'<span class="gu">{rails}{branch}</span><span class="{name}">{kind}</span>{colon}{shown}{tail}')
    return "\n".join(lines)


def highlighted(text: str, language: str) -> list[str]:
    """The lines of `text` as HTML, escaped."""
    if language == "python":
        made = _python(text)
    elif language in ("cpp", "json"):
        made = _tokens(text, language)
    elif language == "guards":
        made = _guards(text)
    else:
        made = html.escape(text)
    return made.split("\n")


def plain(text: str) -> list[str]:
    """The lines of `text`, escaped."""
    return html.escape(text).split("\n")


def numbered(lines: list[str]) -> str:
    """Escaped lines as elements that a link can name (`#L7`)."""
    return "".join(f'<span class="l" id="L{number}">{line}\n</span>' for number, line in enumerate(lines, 1))
