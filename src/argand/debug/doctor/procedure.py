"""The procedure: run the script in several ways, compare, and name the stage that is to blame."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from argand.debug.doctor.alone import fails_alone
from argand.debug.doctor.child import OWN, PLAIN, Allowed, GraphBackend, Mode, Script, run_script, warm
from argand.debug.doctor.differences import RAISED, first_difference
from argand.debug.doctor.dissect import FOUND, Dissection
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repeated import ONE_THREAD, THREADS, Tally, again, tally, with_orders, with_variants
from argand.debug.doctor.script_stages import UNCACHED, blame_script
from argand.debug.doctor.setup import setup_of, source_of
from argand.debug.doctor.verdict import Verdict, stage_text
from argand.debug.doctor.visible import changed

_NATIVE = ("native", "inductor")
_OURS = ("eager", "aot_eager", *_NATIVE)


@dataclass(slots=True)
class Doctor:
    """One examination.

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

    def examine(self) -> Verdict:
        """Everything."""
        warm()
        if self.torch or self._names_torchs_backend():
            from argand.debug.doctor.torchs import prepare

            self.torch = True
            prepare()
        try:
            found = self._examine()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        found.evidence = [*self.evidence, *found.evidence]
        found.seconds = time.monotonic() - self.started
        return found

    def _names_torchs_backend(self) -> bool:
        """Whether the script names one of torch's own backends, and argand nowhere."""
        source = source_of(self.script.path)
        named = re.findall(r"backend\s*=\s*[\"'](inductor|aot_eager|aot_eager_decomp_partition|eager)[\"']", source)
        return bool(named) and "argand" not in source and "torch.compile" in source

    def run(self, mode: Mode, graphs: GraphBackend | None = None, *, allowed: Allowed | None = None) -> Run:
        """Run the script once."""
        self.runs += 1
        folder = self.folder / f"run_{self.runs}"
        made = run_script(self.script, mode, folder, allowed or self.allowed, graphs)
        shutil.rmtree(folder, ignore_errors=True)
        return made

    def difference(self, eager: Run, other: Run) -> Difference | None:
        """The first difference that eager runs do not have among themselves."""
        found = first_difference(eager, other)
        for more in (with_variants, with_orders):
            if found is not None:
                before, count = found, len(eager.variants)
                more(eager, found, self.run)
                if len(eager.variants) > count:
                    found = first_difference(eager, other)
                    self.explained = self.explained or (before if found != before else None)
        return found

    def compared(self, eager: Run, mode: Mode, **options: Any) -> tuple[Run, Difference | None]:
        """A run and its first difference from the eager one."""
        made = self.run(mode, **options)
        found = self.difference(eager, made)
        said = found.text if found is not None else "as eager"
        self.note(f"{mode.name}: {said}")
        return made, found

    def note(self, text: str) -> None:
        """Keep, and say, what was tried and how it ended."""
        self.evidence.append(text)
        self.say(text)

    def _examine(self) -> Verdict:
        eager = self.run(PLAIN)
        self.note(f"{PLAIN.name}: {eager.outcome if eager.outcome.failed else 'finished'}, {len(eager.calls)} calls "
                   "of compiled functions")  # fmt: skip
        if eager.outcome.failed and not eager.calls:
            text = f"The script fails before it calls anything compiled: {eager.outcome}."
            return Verdict("exception", "program", text, evidence=[eager.outcome.detail])
        own_mode = replace(OWN, torch="") if self.torch else OWN
        own, found = self.compared(eager, own_mode)
        if self.explained is not None:
            self.note(f"eager's own runs, made again and rounded otherwise, explain this: {self.explained.text}")
        if found is None and eager.outcome.failed:
            text = f"The script fails in the same way when it is not compiled: {eager.outcome}."
            return Verdict("exception", "program", text, evidence=[eager.outcome.detail])
        counted = None
        if found is None and not self.torch:  # a fault may show in some runs only
            counted, own, found = self._once_more(eager, own, own_mode)
        if found is None:
            from argand.debug.doctor.healthy import examine_healthy

            return examine_healthy(self, eager, own, own_mode)
        if found.kind == "hang":  # the parts need not be waited for as long as the whole
            patience = max(min(self.allowed.seconds, 20 + 10 * eager.outcome.seconds), self.allowed.seconds / 4)
            self.allowed = replace(self.allowed, seconds=patience)
        counted = counted or self.tally(eager, own, own_mode, found)
        if counted.flaky:
            from argand.debug.doctor.flaky import blame_flaky

            return blame_flaky(self, eager, own, own_mode, found, counted)
        if self.torch:
            from argand.debug.doctor.torchs import blame_torch

            return blame_torch(self, eager, own, found)
        return self.blame(eager, own, found)

    def _once_more(self, eager: Run, own: Run, mode: Mode) -> tuple[Tally | None, Run, Difference | None]:
        """Whether a script that was right once is right again: how often not, and the run that was not."""
        for number in range(2, 2 + again(own.outcome.seconds)):
            made = self.run(mode)
            found = self.difference(eager, made)
            if found is not None:
                self.note(f"{mode.name}, run {number}: {found.text}")
                return self.tally(eager, made, mode, found, Tally(1, number)), made, found
        return None, own, None

    def tally(self, eager: Run, own: Run, mode: Mode, found: Difference, so_far: Tally | None = None) -> Tally:
        """How many runs differ from the eager one."""
        made = so_far or Tally()
        tally(made, found, own.outcome.seconds, lambda: self.difference(eager, self.run(mode)) is not None)
        self.note(f"{mode.name}, again: {made} differ")
        return made

    def right(self, eager: Run, mode: Mode, **options: Any) -> bool:
        """Whether runs in a mode are as eager: more than one, for what is concluded from it."""
        if self.compared(eager, mode, **options)[1] is not None:
            return False
        return self.difference(eager, self.run(mode, **options)) is None

    def blame(self, eager: Run, own: Run, found: Difference) -> Verdict:
        """Which stage is to blame for a difference between argand's run and the eager one."""
        verdict = self._blame(eager, own, found)
        if verdict.stage not in ("capture", "guards", "autograd", "backend") and self.needs_threads(eager, own):
            verdict.text += f" {THREADS}"
        return verdict

    def needs_threads(self, eager: Run, own: Run) -> bool:
        """Whether the script is right where kernels run in one thread, and uses more."""
        return threads_of(own) > 1 and self.right(eager, ONE_THREAD)

    def _blame(self, eager: Run, own: Run, found: Difference) -> Verdict:
        _, by_eager = self.compared(eager, Mode('backend "eager"', backend="eager"))
        if by_eager is not None:  # whatever comes later only hands it on, in this or another guise
            return self.blame_capture(eager, by_eager)
        if only_others(own):
            return self.dissect(eager, found, "backend", "", own)
        _, by_aot = self.compared(eager, Mode('backend "aot_eager"', backend="aot_eager"))
        if by_aot is not None and _alike(found, by_aot):
            return self.dissect(eager, found, "autograd", "aot_eager", own)
        if self._used_again(eager, own, found):
            if self.right(eager, Mode("captured anew for each call", fresh=True)):
                return self.reduced(eager, found, "guards", OWN)
        if found.kind != "leak" and self.right(eager, Mode("with every cache off", settings=UNCACHED)):
            return self.blame_cache(eager, found)
        return self.dissect(eager, found, "native", "", own)

    def blame_cache(self, eager: Run, found: Difference) -> Verdict:
        """What is wrong may lie on disk already, or be kept wrongly by this program."""
        empty = Mode("with an empty cache directory", empty_cache=True)
        _, anew = self.compared(eager, empty)
        return self.reduced(eager, found, "cache", OWN if anew is None else empty)

    def _used_again(self, eager: Run, own: Run, found: Difference) -> bool:
        """Whether the call that went wrong ran code made for an earlier one that saw other things than sizes."""
        if found.call < 0 or found.call >= min(len(eager.calls), len(own.calls)):
            return False
        after = own.calls[found.call + 1].compiles if found.call + 1 < len(own.calls) else own.facts.get("compiles", 0)
        if after != own.calls[found.call].compiles:
            return False
        return any(map(_more_than_sizes, self._changes(eager, found)))

    def blame_capture(self, eager: Run, by_eager: Difference) -> Verdict:
        """Capture or guards: the graphs, run as they are, differ from the frame."""
        _, fresh = self.compared(
            eager, Mode('backend "eager", captured anew for each call', backend="eager", fresh=True)
        )
        stage = "capture" if fresh is not None else "guards"
        return self.reduced(eager, by_eager, stage, Mode('backend "eager"', backend="eager"))

    # --------------------------------------------------------------------------- below the graph

    def dissect(self, eager: Run, found: Difference, coarse: str, backend: str, own: Run) -> Verdict:
        """Find the graph that fails, make it small, and name the stage."""
        self.say("looking for the smallest graph that fails")
        folder = self.folder / "dissection"
        folder.mkdir(exist_ok=True)
        setup = setup_of(source_of(self.script.path), str(Path(self.script.path).resolve().parent))
        settings = {"base_dir": str(self.output), "repro_setup": setup}
        allowed = Allowed(max(600.0, 20 * self.allowed.seconds), 0, self.allowed.threads)
        finding: dict[str, Any] = {}
        for calls in (1, 3):
            mode = Mode("dissection", settings=settings, torch="" if self.torch else None)
            self.run(mode, Dissection(folder, backend, self.allowed.seconds, calls, self.torch), allowed=allowed)
            if (folder / "finding.json").exists():
                finding = json.loads((folder / "finding.json").read_text())
                break
        if not finding and self.torch:
            mode = Mode("as the script says", torch=backend)
            return self.reduced(eager, found, coarse, mode)
        if self.torch:
            finding["stage"] = coarse
        if not finding:
            stage, part = self._without_graph(eager, found, own) if coarse == "native" else (coarse, "")
            return self.reduced(eager, found, stage, Mode("as the script says", backend=backend), part)
        verdict = self.verdict_of(finding, found, coarse)
        if verdict.stage == "cache" and not verdict.fails_alone:  # it takes what other graphs left in the cache
            return self.blame_cache(eager, found)
        return verdict

    def _without_graph(self, eager: Run, found: Difference, own: Run) -> tuple[str, str]:
        """The stage below capture that is to blame, and the part of it, where no graph fails by itself."""
        for stage, text in own.facts.get("fallbacks", []):
            if RAISED.search(text):
                return str(_SPANS.get(stage, stage)), ""
        last = own.outcome.stage.removeprefix("compile: ")
        if found.kind not in ("wrong value", "NaN") and last in _SPANS:
            return _SPANS[last], ""
        self.say("no graph fails by itself: compiling the whole script stage by stage")

        def fails(mode: Mode, graphs: GraphBackend | None) -> bool:
            _, difference = self.compared(eager, mode, graphs=graphs)
            return difference is not None and _alike(found, difference)

        return blame_script(fails)

    def verdict_of(self, finding: dict[str, Any], found: Difference, coarse: str) -> Verdict:
        """The paragraph, and whether the reproduction fails by itself."""
        self.evidence += finding.get("evidence", [])
        stage = finding.get("stage") or ("codegen" if coarse == "native" else coarse)
        operations = finding.get("calls", [])
        verdict = Verdict(found.kind, stage, "", finding.get("part", ""), operations, finding.get("lines", []))
        verdict.nodes = len(operations) if operations else -1
        repro = Path(finding.get("repro", ""))
        if repro.name and repro.exists():
            verdict.repro = str(repro)
            verdict.fails_alone = fails_alone(repro, finding, self.allowed.seconds)
            if not verdict.fails_alone and not self.script.is_module:
                verdict.fails_alone = self._with_script(repro, finding)
        verdict.text = _paragraph(verdict, found, finding)
        return verdict

    def _with_script(self, repro: Path, finding: dict[str, Any]) -> bool:
        """Let the reproduction run the script first, which changes something that matters; whether it fails then."""
        self.say("running the script before the reproduction, for what it changes")
        before = repro.read_text(encoding="utf8")
        setup = setup_of(source_of(self.script.path), str(Path(self.script.path).resolve().parent))
        head, separator, rest = before.replace(setup.rstrip(), "").partition("\nclass Repro(")
        source = source_of(self.script.path).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        run = f'run_setup("""{source}""", {self.script.path!r})'
        lines = ["from argand.debug.doctor.program import run_setup", "", run, ""]
        repro.write_text("\n".join([head, *lines, separator + rest]), encoding="utf8")
        if separator and fails_alone(repro, finding, self.allowed.seconds):
            return True
        repro.write_text(before, encoding="utf8")
        return False

    # --------------------------------------------------------------------------- above the graph

    def reduced(self, eager: Run, found: Difference, stage: str, mode: Mode, part: str = "") -> Verdict:
        """A fault that no graph shows: the script itself is made small."""
        from argand.debug.doctor.shrink import shrink_script

        verdict = Verdict(found.kind, stage, "", part)
        if stage == "guards":
            verdict.lines = self._what_changed(eager, found)
        if not self.script.is_module:
            self.say("making the script small")
            repro, nodes, place = shrink_script(self, found, mode)
            if repro is not None:
                verdict.repro, verdict.nodes = str(repro), nodes
                finding = {"kind": found.kind, "error": "", "message": found.text}
                verdict.fails_alone = fails_alone(repro, finding, self.allowed.seconds)
            if place:
                verdict.lines = [*place, *verdict.lines]
        if not verdict.lines and found.place:
            verdict.lines = [found.place]
        verdict.text = _paragraph(verdict, found, {})
        return verdict

    def _what_changed(self, eager: Run, found: Difference) -> list[str]:
        """What the function could see that was another value in the call before the one that went wrong."""
        return [f"changed before call {found.call + 1}: {text}" for text in self._changes(eager, found)[:8]]

    def _changes(self, eager: Run, found: Difference) -> list[str]:
        if found.call < 0 or found.call >= len(eager.calls):
            return []
        now = eager.calls[found.call]
        before = [c for c in eager.calls[: found.call] if c.function == now.function]
        return changed(before[-1].state, now.state) if before else []


def only_others(run: Run) -> bool:
    """Whether a run's graphs all went to backends that are not argand's."""
    asked = [str(name) for name in run.facts.get("backends", [])]
    return bool(asked) and all(name not in _OURS for name in asked)


def threads_of(run: Run) -> int:
    """How many threads kernels of a run could use."""
    from argand.config import config

    return max(int(run.facts.get("threads", 1)), int(config.cpp.threads))


def _more_than_sizes(change: str) -> bool:
    """Whether a change, as `changed` words it, is of more than the sizes of a tensor: its dtype, say."""
    before, _, after = change.partition(" -> ")
    if "torch." not in after:
        return True
    return re.findall(r"torch\.\w+|requires grad", before) != re.findall(r"torch\.\w+|requires grad", after)


_SPANS = {"autograd": "autograd", "passes": "passes", "lower": "lowering", "schedule": "fusion", "codegen": "codegen",
          "runtime": "cache", "backend": "host", "capture": "capture"}  # fmt: skip


def _alike(one: Difference, two: Difference) -> bool:
    """Whether two differences can have the same cause: both are wrong results, or both end the same way."""
    wrong = ("wrong", "NaN")
    if one.kind.startswith(wrong) and two.kind.startswith(wrong):
        return True
    return one.kind == two.kind


def _paragraph(verdict: Verdict, found: Difference, finding: dict[str, Any]) -> str:
    stage = stage_text(verdict.stage, verdict.part)
    what = found.text[:1].upper() + found.text[1:].rstrip(".")
    parts = [f"{what}.", f"To blame is {stage}" + (f": {verdict.part}." if verdict.part else ".")]
    if verdict.operations:
        parts.append(f"The smallest graph that shows it calls {', '.join(verdict.operations[:6])}"
                     + (f" (of {finding['nodes_before']} calls)." if finding.get("nodes_before") else "."))  # fmt: skip
    if verdict.lines:
        parts.append("The line: " + "; ".join(" ".join(line.split()) for line in verdict.lines[:4]) + ".")
    if finding.get("problem"):
        parts.append(f"It could not be made small: {finding['problem']}.")
    if verdict.fails_alone is False:
        parts.append("The reproduction does not fail when run alone: what matters is outside of it.")
    return " ".join(parts)


__all__ = ["FOUND", "Doctor", "only_others", "threads_of"]
