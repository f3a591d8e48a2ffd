"""`config.suppress_errors`: when the process ends, one summary says which functions ran eagerly, and why."""

from __future__ import annotations

import atexit
import sys
from dataclasses import field

from argand.events import Event, bus
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class Suppressed:
    """Errors that were suppressed, by function and text; counts of each."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    installed: bool = False

    def install(self) -> None:
        """Listen from now on; say what was heard when the process ends."""
        if not self.installed:
            self.installed = True
            bus.subscribe(self.take, ("suppressed",))
            atexit.register(self.print)

    def take(self, event: Event) -> None:
        """The sink."""
        key = (str(event.data.get("function", "")), event.text())
        self.counts[key] = self.counts.get(key, 0) + 1

    def text(self) -> str:
        """The summary; "" when nothing was suppressed."""
        if not self.counts:
            return ""
        functions = len({function for function, _ in self.counts})
        said = "1 function runs" if functions == 1 else f"{functions} functions run"
        lines = [f"argand: {said} eagerly, because suppress_errors hides what went wrong:"]
        for (function, cause), count in self.counts.items():
            first = " ".join([line.strip() for line in cause.splitlines() if line.strip()][:2])
            more = f" ({count} times)" if count > 1 else ""
            lines.append(f"  {function}: {first}{more}")
        lines.append("  set argand.config.suppress_errors = False to see the errors, or ARGAND_REPRO_AFTER=dynamo for")
        lines.append("  the smallest graph that shows each of them")
        return "\n".join(lines)

    def print(self) -> None:
        """Write the summary to stderr."""
        text = self.text()
        if text:
            print(text, file=sys.stderr)


SUPPRESSED = Suppressed()
