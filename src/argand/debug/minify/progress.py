"""Shows how a search goes on: log lines on stderr, and a bar where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from argand import events
from argand.debug.minify.search import GraphSearch, Listener
from argand.debug.trial.outcome import Outcome


class Progress(Listener):
    """A listener that prints.

    Arguments:
        log: path of a file that gets the lines too, or None.
    """

    def __init__(self, log: Any = None) -> None:
        self.log = log
        self._bar: Any = None
        self._task: Any = None

    @contextlib.contextmanager
    def showing(self, nodes: int) -> Iterator[None]:
        """Show the bar meanwhile, where there is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("minifying"), BarColumn(), TextColumn("{task.fields[said]}"))
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._task = bar, bar.add_task("minify", total=max(1, nodes - 3), said=f"{nodes} nodes left")
            try:
                yield
            finally:
                self._bar = None

    def line(self, text: str) -> None:
        """Print a line, above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
        if self.log is not None:
            with open(self.log, "a", encoding="utf8") as file:
                file.write(text + "\n")
        events.emit("minifier", "debug", text)

    def attempt(self, search: GraphSearch, outcome: Outcome) -> None:
        """Update the bar."""
        self._update(search)

    def shrunk(self, search: GraphSearch) -> None:
        """Update the bar."""
        self._update(search)

    def _update(self, search: GraphSearch) -> None:
        if self._bar is not None:
            nodes = search.smallest.nodes
            total = self._bar.tasks[0].total
            said = f"{nodes} nodes left, {search.attempts} attempts, about {remaining(search):.0f} s left"
            self._bar.update(self._task, completed=max(0, total + 3 - nodes), said=said)


def remaining(search: GraphSearch) -> float:
    """A guess at the seconds that are left: each call that is left is looked at about twice."""
    each = search.seconds / max(1, search.attempts)
    guess = each * 2 * max(1, len(search.smallest.calls))
    limit = search.limits.total_seconds
    return min(guess, limit - search.seconds) if limit else guess
