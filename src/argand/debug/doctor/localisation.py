"""From a stage that is to blame to what shows it: the smallest graph, or the script made small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from argand.debug.doctor.child import OWN, Allowed, GraphBackend, Mode
from argand.debug.doctor.differences import RAISED
from argand.debug.doctor.dissection import Dissection
from argand.debug.doctor.examination import Examination
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.reproduction import fails_alone
from argand.debug.doctor.script_search import shrink_script
from argand.debug.doctor.setup import setup_of, source_of
from argand.debug.doctor.stages import blame_script
from argand.debug.doctor.verdict import Verdict, stage_text
from argand.debug.trial.scope import changed
from argand.quick_dataclasses import dataclass

_SPANS = {"autograd": "autograd", "passes": "passes", "lower": "lowering", "schedule": "fusion", "codegen": "codegen",
          "runtime": "cache", "backend": "host", "capture": "capture"}  # fmt: skip


@dataclass(slots=True)
class Localiser(Examination):
    """An examination that can say where in the script, and in its graphs, a fault lies."""

    def blame_cache(self, eager: Run, difference: Difference) -> Verdict:
        """What is wrong may lie on disk already, or be kept wrongly by this program."""
        empty = Mode("with an empty cache directory", empty_cache=True)
        _, anew = self.compared(eager, empty)
        return self.reduced(eager, difference, "cache", OWN if anew is None else empty)

    # --------------------------------------------------------------------------- below the graph

    def dissect(self, eager: Run, difference: Difference, coarse: str, backend: str, own: Run) -> Verdict:
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
            return self.reduced(eager, difference, coarse, mode)
        if self.torch:
            finding["stage"] = coarse
        if not finding:
            stage, part = self._without_graph(eager, difference, own) if coarse == "native" else (coarse, "")
            return self.reduced(eager, difference, stage, Mode("as the script says", backend=backend), part)
        verdict = self.verdict_of(finding, difference, coarse)
        if verdict.stage == "cache" and not verdict.fails_alone:  # it takes what other graphs left in the cache
            return self.blame_cache(eager, difference)
        return verdict

    def _without_graph(self, eager: Run, wanted: Difference, own: Run) -> tuple[str, str]:
        """The stage below capture that is to blame, and the part of it, where no graph fails by itself."""
        for stage, text in own.facts.get("fallbacks", []):
            if RAISED.search(text):
                return str(_SPANS.get(stage, stage)), ""
        last = own.outcome.stage.removeprefix("compile: ")
        if wanted.kind not in ("wrong value", "NaN") and last in _SPANS:
            return _SPANS[last], ""
        self.say("no graph fails by itself: compiling the whole script stage by stage")

        def fails(mode: Mode, graphs: GraphBackend | None) -> bool:
            _, difference = self.compared(eager, mode, graphs=graphs)
            return difference is not None and alike(wanted, difference)

        return blame_script(fails)

    def verdict_of(self, finding: dict[str, Any], difference: Difference, coarse: str) -> Verdict:
        """The paragraph, and whether the reproduction fails by itself."""
        self.evidence += finding.get("evidence", [])
        stage = finding.get("stage") or ("codegen" if coarse == "native" else coarse)
        operations = finding.get("calls", [])
        verdict = Verdict(difference.kind, stage, "", finding.get("part", ""), operations, finding.get("lines", []))
        verdict.nodes = len(operations) if operations else -1
        repro = Path(finding.get("repro", ""))
        if repro.name and repro.exists():
            verdict.repro = str(repro)
            verdict.fails_alone = fails_alone(repro, finding, self.allowed.seconds)
            if not verdict.fails_alone and not self.script.is_module:
                verdict.fails_alone = self._with_script(repro, finding)
        verdict.text = _paragraph(verdict, difference, finding)
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

    def reduced(self, eager: Run, difference: Difference, stage: str, mode: Mode, part: str = "") -> Verdict:
        """A fault that no graph shows: the script itself is made small."""
        verdict = Verdict(difference.kind, stage, "", part)
        if stage == "guards":
            verdict.lines = self._what_changed(eager, difference)
        if not self.script.is_module:
            self.say("making the script small")
            repro, nodes, place = shrink_script(self, difference, mode)
            if repro is not None:
                verdict.repro, verdict.nodes = str(repro), nodes
                finding = {"kind": difference.kind, "error": "", "message": difference.text}
                verdict.fails_alone = fails_alone(repro, finding, self.allowed.seconds)
            if place:
                verdict.lines = [*place, *verdict.lines]
        if not verdict.lines and difference.place:
            verdict.lines = [difference.place]
        verdict.text = _paragraph(verdict, difference, {})
        return verdict

    def _what_changed(self, eager: Run, difference: Difference) -> list[str]:
        """What the function could see that was another value in the call before the one that went wrong."""
        return [f"changed before call {difference.call + 1}: {text}" for text in self.changes(eager, difference)[:8]]

    def changes(self, eager: Run, difference: Difference) -> list[str]:
        """What the function could see, now and in its call before: `changed`'s words."""
        if difference.call < 0 or difference.call >= len(eager.calls):
            return []
        now = eager.calls[difference.call]
        before = [c for c in eager.calls[: difference.call] if c.function == now.function]
        return changed(before[-1].state, now.state) if before else []


def alike(one: Difference, two: Difference) -> bool:
    """Whether two differences can have the same cause: both are wrong results, or both end the same way."""
    wrong = ("wrong", "NaN")
    if one.kind.startswith(wrong) and two.kind.startswith(wrong):
        return True
    return one.kind == two.kind


def _paragraph(verdict: Verdict, difference: Difference, finding: dict[str, Any]) -> str:
    stage = stage_text(verdict.stage, verdict.part)
    what = difference.text[:1].upper() + difference.text[1:].rstrip(".")
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
