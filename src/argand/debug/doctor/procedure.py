"""The procedure: run the script in several ways, compare, and name the stage that is to blame."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

from argand.debug.doctor.child import OWN, PLAIN, Mode
from argand.debug.doctor.examination import only_others
from argand.debug.doctor.flakiness import blame_flaky
from argand.debug.doctor.health import examine_healthy
from argand.debug.doctor.localisation import Localiser, alike
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repetition import THREADS, Tally, again
from argand.debug.doctor.setup import source_of
from argand.debug.doctor.stages import UNCACHED
from argand.debug.doctor.torch_compile import blame_torch, prepare
from argand.debug.doctor.verdict import Verdict
from argand.debug.trial.process import warm
from argand.errors import ConfigError
from argand.files import printable
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class Doctor(Localiser):
    """One examination, to its verdict."""

    def examine(self) -> Verdict:
        """Everything."""
        warm()
        if self.torch or self._names_torchs_backend():
            self.torch = True
            prepare()
        try:
            verdict = self._examine()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        verdict.evidence = [*self.evidence, *verdict.evidence]
        verdict.seconds = time.monotonic() - self.started
        return verdict

    def _names_torchs_backend(self) -> bool:
        """Whether the script names one of torch's own backends, and argand nowhere."""
        source = source_of(self.script.path)
        named = re.findall(r"backend\s*=\s*[\"'](inductor|aot_eager|aot_eager_decomp_partition|eager)[\"']", source)
        return bool(named) and "argand" not in source and "torch.compile" in source

    def _examine(self) -> Verdict:
        eager = self.run(PLAIN)
        self.note(f"{PLAIN.name}: {eager.outcome if eager.outcome.failed else 'finished'}, {len(eager.calls)} calls "
                   "of compiled functions")  # fmt: skip
        if not (self.script.is_module or self.script.source or Path(self.script.path).is_file()):
            raise ConfigError(
                f"{printable(self.script.path)} is gone after its first run",
                remedy="examine a script that does not remove its own file",
            )
        if eager.outcome.failed and not eager.calls:
            text = f"The script fails before it calls anything compiled: {eager.outcome}."
            return Verdict("exception", "program", text, evidence=[eager.outcome.detail])
        own_mode = replace(OWN, torch="") if self.torch else OWN
        own, difference = self.compared(eager, own_mode)
        if self.explained is not None:
            self.note(f"eager's own runs, made again and rounded otherwise, explain this: {self.explained.text}")
        if difference is None and eager.outcome.failed:
            text = f"The script fails in the same way when it is not compiled: {eager.outcome}."
            return Verdict("exception", "program", text, evidence=[eager.outcome.detail])
        counted = None
        if difference is None and not self.torch:  # a fault may show in some runs only
            counted, own, difference = self._once_more(eager, own, own_mode)
        if difference is None:
            return examine_healthy(self, eager, own, own_mode)
        if difference.kind == "hang":  # the parts need not be waited for as long as the whole
            patience = max(min(self.allowed.seconds, 20 + 10 * eager.outcome.seconds), self.allowed.seconds / 4)
            self.allowed = replace(self.allowed, seconds=patience)
        counted = counted or self.tally(eager, own, own_mode, difference)
        if counted.flaky:
            return blame_flaky(self, eager, own, own_mode, difference, counted)
        if self.torch:
            return blame_torch(self, eager, own, difference)
        return self.blame(eager, own, difference)

    def _once_more(self, eager: Run, own: Run, mode: Mode) -> tuple[Tally | None, Run, Difference | None]:
        """Whether a script that was right once is right again: how often not, and the run that was not."""
        for number in range(2, 2 + again(own.outcome.seconds)):
            run = self.run(mode)
            difference = self.difference(eager, run)
            if difference is not None:
                self.note(f"{mode.name}, run {number}: {difference.text}")
                return self.tally(eager, run, mode, difference, Tally(1, number)), run, difference
        return None, own, None

    def blame(self, eager: Run, own: Run, difference: Difference) -> Verdict:
        """Which stage is to blame for a difference between argand's run and the eager one."""
        verdict = self._blame(eager, own, difference)
        if verdict.stage not in ("capture", "guards", "autograd", "backend") and self.needs_threads(eager, own):
            verdict.text += f" {THREADS}"
        return verdict

    def _blame(self, eager: Run, own: Run, difference: Difference) -> Verdict:
        _, by_eager = self.compared(eager, Mode('backend "eager"', backend="eager"))
        if by_eager is not None:  # whatever comes later only hands it on, in this or another guise
            return self.blame_capture(eager, by_eager)
        if only_others(own):
            return self.dissect(eager, difference, "backend", "", own)
        _, by_aot = self.compared(eager, Mode('backend "aot_eager"', backend="aot_eager"))
        if by_aot is not None and alike(difference, by_aot):
            return self.dissect(eager, difference, "autograd", "aot_eager", own)
        if self._used_again(eager, own, difference):
            if self.right(eager, Mode("captured anew for each call", fresh=True)):
                return self.reduced(eager, difference, "guards", OWN)
        if difference.kind != "leak" and self.right(eager, Mode("with every cache off", settings=UNCACHED)):
            return self.blame_cache(eager, difference)
        return self.dissect(eager, difference, "native", "", own)

    def _used_again(self, eager: Run, own: Run, difference: Difference) -> bool:
        """Whether the call that went wrong ran code made for an earlier one that saw other things than sizes."""
        if difference.call < 0 or difference.call >= min(len(eager.calls), len(own.calls)):
            return False
        after = (
            own.calls[difference.call + 1].compiles
            if difference.call + 1 < len(own.calls)
            else own.facts.get("compiles", 0)
        )
        if after != own.calls[difference.call].compiles:
            return False
        return any(map(_more_than_sizes, self.changes(eager, difference)))

    def blame_capture(self, eager: Run, by_eager: Difference) -> Verdict:
        """Capture or guards: the graphs, run as they are, differ from the frame."""
        _, fresh = self.compared(
            eager, Mode('backend "eager", captured anew for each call', backend="eager", fresh=True)
        )
        stage = "capture" if fresh is not None else "guards"
        return self.reduced(eager, by_eager, stage, Mode('backend "eager"', backend="eager"))


def _more_than_sizes(change: str) -> bool:
    """Whether a change, as `changed` words it, is of more than the sizes of a tensor: its dtype, say."""
    before, _, after = change.partition(" -> ")
    if "torch." not in after:
        return True
    return re.findall(r"torch\.\w+|requires grad", before) != re.findall(r"torch\.\w+|requires grad", after)
