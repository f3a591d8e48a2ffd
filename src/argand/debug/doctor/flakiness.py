"""Faults that show in some runs only: how many, and in which ways of running the script they still do."""

from __future__ import annotations

from pathlib import Path

from argand.debug.doctor.child import GraphBackend, Mode
from argand.debug.doctor.examination import Examination, only_others, threads_of
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repetition import ONE_THREAD, THREADS, Tally
from argand.debug.doctor.reproduction import fails_alone, write
from argand.debug.doctor.setup import source_of
from argand.debug.doctor.stages import UNCACHED, blame_script
from argand.debug.doctor.verdict import Verdict, stage_text


def blame_flaky(doctor: Examination, eager: Run, own: Run, mode: Mode, found: Difference, counted: Tally) -> Verdict:
    """The stage to blame for a fault that some runs do not show: each way to run the script is tried several times."""
    flaky = _Flaky(doctor, eager, counted)
    threads = False
    if mode.torch is not None:
        stage, part = "backend", ""
    elif flaky.shows(Mode('backend "eager"', backend="eager")):
        stage, part = "capture", ""
    elif only_others(own):
        stage, part = "backend", ""
    elif flaky.shows(Mode('backend "aot_eager"', backend="aot_eager")):
        stage, part = "autograd", ""
    else:
        threads = threads_of(own) > 1 and not flaky.shows(ONE_THREAD)
        if not threads and not flaky.shows(Mode("with every cache off", settings=UNCACHED)):
            stage, part = "cache", ""
        else:
            stage, part = blame_script(flaky.shows)
    verdict = Verdict(found.kind, stage, "", part, lines=[found.place] if found.place else [])
    what = found.text[:1].upper() + found.text[1:].rstrip(".")
    texts = [f"{what}.", f"It is flaky: {counted} go wrong, the others do what the eager program does."]
    texts.append(f"To blame is {stage_text(stage, part)}" + (f": {part}." if part else "."))
    if threads:
        texts.append(THREADS)
    if not doctor.script.is_module:
        repro = _repro(doctor, mode, found, counted)
        verdict.repro = str(repro)
        finding = {"kind": found.kind, "error": "", "message": found.text}
        verdict.fails_alone = fails_alone(repro, finding, doctor.allowed.seconds * counted.needed)
    verdict.text = " ".join(texts)
    return verdict


class _Flaky:
    """Looks for a fault that shows in some runs only."""

    def __init__(self, doctor: Examination, eager: Run, counted: Tally) -> None:
        self.doctor = doctor
        self.eager = eager
        self.counted = counted

    def shows(self, mode: Mode, graphs: GraphBackend | None = None) -> bool:
        """Whether it shows in a mode, in as many runs as it takes to be rather sure."""
        for number in range(self.counted.needed):
            found = self.doctor.difference(self.eager, self.doctor.run(mode, graphs))
            if found is not None:
                self.doctor.note(f"{mode.name}, run {number + 1}: {found.text}")
                return True
        self.doctor.note(f"{mode.name}, {self.counted.needed} runs: as eager")
        return False


def _repro(doctor: Examination, mode: Mode, found: Difference, counted: Tally) -> Path:
    more = f", times={3 * counted.needed}"
    return write(doctor, source_of(doctor.script.path), mode, found.text, more)
