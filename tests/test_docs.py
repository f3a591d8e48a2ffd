"""The documentation says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import argand

ROOT = Path(__file__).resolve().parent.parent


def test_settings_table_is_current() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for name, default, help_text in argand.config.describe():
        assert f"| `{name}` | `{default!r}` | {help_text} |" in text, f"docs/settings.md lacks {name}"


def test_features_name_tests_that_exist() -> None:
    """Each row of docs/features.md ends in a test, a folder of tests, a bench script, or "not yet"."""
    rows = [line for line in (ROOT / "docs" / "features.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| ---", "| feature"))]
    assert len(rows) > 25
    for row in rows:
        last = row.rstrip("| ").rsplit("|", 1)[1].strip()
        if last == "not yet":
            continue
        place = re.fullmatch(r"`([^:`]+)(?:::(\w+))?`", last)
        assert place, row
        path = ROOT / place[1]
        assert path.exists(), row
        if place[2]:
            assert f"def {place[2]}(" in path.read_text(), row


def test_interrupts_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "interrupts.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for file, test in named:
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), (file, test)
    for test in re.findall(r"`(test_\w+)`", text):
        assert f"def {test}(" in (ROOT / "tests/capture/driver/test_interruption.py").read_text(), test


def test_links_between_pages_exist() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"`((?:docs|src|tests|bench|examples)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
