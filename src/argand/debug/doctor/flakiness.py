"""Faults that show in some runs only: how many, and in which ways of running the script they still do."""

from __future__ import annotations

import functools

from argand.debug.doctor.child import GraphBackend, Mode
from argand.debug.doctor.examination import Examination, only_others, threads_of
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repetition import ONE_THREAD, THREADS, Tally
from argand.debug.doctor.reproduction import fails_alone, write
from argand.debug.doctor.setup import source_of
from argand.debug.doctor.stages import UNCACHED, blame_script
from argand.debug.doctor.verdict import Verdict, stage_text


def blame_flaky(
    doctor: Examination, eager: Run, own: Run, mode: Mode, difference: Difference, counted: Tally
) -> Verdict:
    """The stage to blame for a fault that some runs do not show: each way to run the script is tried several times."""
    shows = functools.partial(_shows, doctor, eager, counted.needed)
    threads = False
    if mode.torch is not None:
        stage, part = "backend", ""
    elif shows(Mode('backend "eager"', backend="eager")):
        stage, part = "capture", ""
    elif only_others(own):
        stage, part = "backend", ""
    elif shows(Mode('backend "aot_eager"', backend="aot_eager")):
        stage, part = "autograd", ""
    else:
        threads = threads_of(own) > 1 and not shows(ONE_THREAD)
        if not threads and not shows(Mode("with every cache off", settings=UNCACHED)):
            stage, part = "cache", ""
        else:
            stage, part = blame_script(shows)
    verdict = Verdict(difference.kind, stage, "", part, lines=[difference.place] if difference.place else [])
    what = difference.text[:1].upper() + difference.text[1:].rstrip(".")
    texts = [f"{what}.", f"It is flaky: {counted} go wrong, the others do what the eager program does."]
    texts.append(f"To blame is {stage_text(stage, part)}" + (f": {part}." if part else "."))
    if threads:
        texts.append(THREADS)
    if not doctor.script.is_module:
        more = f", times={3 * counted.needed}"
        repro = write(doctor, source_of(doctor.script.path), mode, difference.text, more)
        verdict.repro = str(repro)
        finding = {"kind": difference.kind, "error": "", "message": difference.text}
        verdict.fails_alone = fails_alone(repro, finding, doctor.allowed.seconds * counted.needed)
    verdict.text = " ".join(texts)
    return verdict


def _shows(doctor: Examination, eager: Run, times: int, mode: Mode, graphs: GraphBackend | None = None) -> bool:
    """Whether the fault shows in a mode, in as many runs as it takes to be rather sure."""
    for number in range(times):
        difference = doctor.difference(eager, doctor.run(mode, graphs))
        if difference is not None:
            doctor.note(f"{mode.name}, run {number + 1}: {difference.text}")
            return True
    doctor.note(f"{mode.name}, {times} runs: as eager")
    return False
