"""Running the script in several ways, and comparing the runs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

from argand.config import config
from argand.debug.doctor.child import Allowed, GraphBackend, Mode, Script, run_script
from argand.debug.doctor.differences import first_difference
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repetition import ONE_THREAD, Tally, tally, with_orders, with_variants
from argand.quick_dataclasses import dataclass

_NATIVE = ("native", "inductor")
_OURS = ("eager", "aot_eager", *_NATIVE)


@dataclass(slots=True)
class Examination:
    """One script, its runs, and what they showed.

    Arguments:
        script: what is examined.
        output: where results go.
        allowed: limits of one run.
        say: told what is going on.
        torch: scripts' `torch.compile` is answered by torch.
    """

    script: Script
    output: Path
    allowed: Allowed = field(default_factory=Allowed)
    say: Callable[[str], None] = print
    torch: bool = False
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="argand_doctor_")))
    evidence: list[str] = field(default_factory=list)
    runs: int = 0
    explained: Difference | None = None  # a difference that eager runs show among themselves too
    started: float = field(default_factory=time.monotonic)

    def run(self, mode: Mode, graphs: GraphBackend | None = None, *, allowed: Allowed | None = None) -> Run:
        """Run the script once."""
        self.runs += 1
        folder = self.folder / f"run_{self.runs}"
        run = run_script(self.script, mode, folder, allowed or self.allowed, graphs)
        shutil.rmtree(folder, ignore_errors=True)
        return run

    def difference(self, eager: Run, other: Run) -> Difference | None:
        """The first difference that eager runs do not have among themselves."""
        difference = first_difference(eager, other)
        for more in (with_variants, with_orders):
            if difference is not None:
                before, count = difference, len(eager.variants)
                more(eager, difference, self.run)
                if len(eager.variants) > count:
                    difference = first_difference(eager, other)
                    self.explained = self.explained or (before if difference != before else None)
        return difference

    def compared(self, eager: Run, mode: Mode, **options: Any) -> tuple[Run, Difference | None]:
        """A run and its first difference from the eager one."""
        run = self.run(mode, **options)
        difference = self.difference(eager, run)
        said = difference.text if difference is not None else "as eager"
        self.note(f"{mode.name}: {said}")
        return run, difference

    def note(self, text: str) -> None:
        """Keep, and say, what was tried and how it ended."""
        self.evidence.append(text)
        self.say(text)

    def tally(self, eager: Run, own: Run, mode: Mode, difference: Difference, so_far: Tally | None = None) -> Tally:
        """How many runs differ from the eager one."""
        counted = so_far or Tally()
        tally(counted, difference, own.outcome.seconds, lambda: self.difference(eager, self.run(mode)) is not None)
        self.note(f"{mode.name}, again: {counted} differ")
        return counted

    def right(self, eager: Run, mode: Mode, **options: Any) -> bool:
        """Whether runs in a mode are as eager: more than one, for what is concluded from it."""
        if self.compared(eager, mode, **options)[1] is not None:
            return False
        return self.difference(eager, self.run(mode, **options)) is None

    def needs_threads(self, eager: Run, own: Run) -> bool:
        """Whether the script is right where kernels run in one thread, and uses more."""
        return threads_of(own) > 1 and self.right(eager, ONE_THREAD)


def only_others(run: Run) -> bool:
    """Whether a run's graphs all went to backends that are not argand's."""
    return bool(run.backends) and all(name not in _OURS for name in run.backends)


def threads_of(run: Run) -> int:
    """How many threads kernels of a run could use."""
    return max(int(run.facts.get("threads", 1)), int(config.cpp.threads))
