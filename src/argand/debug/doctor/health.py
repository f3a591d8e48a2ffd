"""A script that does compiled what it does eagerly: does it leak, recompile too often, run slowly?"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from argand._core.calls import capture_off
from argand.backends.compile_watchers import compiled_through
from argand.backends.programs import generation
from argand.backends.registry import Backend
from argand.debug import gpus
from argand.debug.doctor.child import OWN, PLAIN, Mode, Recorder
from argand.debug.doctor.differences import leaks
from argand.debug.doctor.localisation import Localiser
from argand.debug.doctor.records import Run
from argand.debug.doctor.verdict import Verdict
from argand.debug.trial.kernels import Kernel, host_module
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.hints import size_hints
from argand.ir.kernel import KernelPlan, Schedule
from argand.schedule.access import hint_bytes

_MANY = 4  # recompiles of one function that are worth a word
_TIMED = 5  # calls without a compile from which on times are compared


def examine_healthy(doctor: Localiser, eager: Run, own: Run, mode: Mode) -> Verdict:
    """What to say of a script whose results are right."""
    leak = _leak(doctor, mode)
    if leak is not None:
        return leak
    texts = ["The compiled program does what the eager one does."]
    kind = "none"
    recompiled = _recompiles(own)
    if recompiled:
        kind, text = "recompiles", recompiled
        texts.append(text)
    if not own.outcome.failed and mode.torch is None:
        slow = _slow(doctor, eager, own)
        if slow is not None:
            texts.append(slow)
            kind = "slow" if kind == "none" else kind
    verdict = Verdict(kind, "none", " ".join(texts))
    if kind != "none":
        verdict.stage = "guards" if kind == "recompiles" else "codegen"
    return verdict


# ----------------------------------------------------------------------- leaks


def _leak(doctor: Localiser, mode: Mode) -> Verdict | None:
    """Compiled calls after which more lives than before, again and again, where eager ones leave nothing."""
    plain = doctor.run(replace(PLAIN, count=True))
    leak = leaks(plain, doctor.run(replace(mode, count=True)))
    if leak is None:
        return None
    doctor.say(leak.text)
    if mode.torch is not None:
        return Verdict("leak", "backend", leak.text)
    stage = "host"
    for backend, blamed in (("eager", "capture"), ("aot_eager", "autograd")):
        run = doctor.run(Mode(f'backend "{backend}"', backend=backend, count=True))
        leaking = leaks(plain, run) is not None
        doctor.evidence.append(f'backend "{backend}": {"leaks too" if leaking else "does not leak"}')
        if leaking:
            stage = blamed
            break
    others = [n for n in doctor.run(mode).backends if n not in ("native", "eager", "aot_eager")]
    if stage == "host" and others:
        stage = "backend"
    if stage == "host":
        run = doctor.run(Mode("without kernels", count=True), _without_kernels)
        leaking = leaks(plain, run) is not None
        doctor.evidence.append(f"without running kernels: {'leaks too' if leaking else 'does not leak'}")
        stage = "host" if leaking else "codegen"
    return doctor.reduced(doctor.run(PLAIN), leak, stage, replace(OWN, count=True))


def _without_kernels(recorder: Recorder, function: Backend, asked: Any) -> Backend:
    """The native backend, in the child, whose kernels do nothing."""

    def compiled(program: AtenProgram) -> Callable[..., Any]:
        call: Callable[..., Any] = host_module(generation.schedule_program(program), lambda *_: lambda *args: None).call
        return call

    return compiled_through(function, lambda compile_program, name, boxed: compiled)


# ----------------------------------------------------------------------- recompiles


def _recompiles(run: Run) -> str:
    times = Counter(str(function) for function, _ in run.facts.get("recompiles", []))
    many = [(name, count) for name, count in times.most_common(3) if count >= _MANY]
    if not many:
        return ""
    reasons: dict[str, list[str]] = {}
    for function, why in run.facts["recompiles"]:
        reasons.setdefault(str(function), []).extend(map(str, why))
    said = []
    for name, count in many:
        last = " ".join(reasons[name][-1].split()) if reasons[name] else "unknown"
        said.append(f"{name} is compiled {count + 1} times; the last reason: {last}")
    return "It compiles too often: " + "; ".join(said) + "."


# ----------------------------------------------------------------------- slow steps


class Timed:
    """Replaces the native backend, in the child: kernels and ATen calls are timed as they run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, list[float]] = {}  # name -> seconds of each launch
        self.bytes: dict[str, int] = {}
        self.lines: dict[str, list[str]] = {}  # the user's, that each kernel computes
        self.whole: list[float] = []
        self.device = torch.device("cpu")  # of the last kernel

    def __call__(self, recorder: Recorder, function: Backend, asked: Any) -> Backend:
        return compiled_through(function, lambda compile_program, name, boxed: self.compiled)

    def compiled(self, program: AtenProgram) -> Callable[..., Any]:
        schedule = generation.schedule_program(program)
        module = host_module(schedule, self._timed)
        for plan in schedule.kernels():
            self.bytes.setdefault(plan.name, _bytes(plan, schedule))
            self.lines.setdefault(plan.name, list(dict.fromkeys(o.user_line for o in plan.origins if o.user_line)))
            self.device = plan.device

        def call(args: list[Any]) -> Any:
            start = time.perf_counter()
            with capture_off():
                result = module.call(args)
                gpus.synchronize()
            self.whole.append(time.perf_counter() - start)
            return result

        return call

    def _timed(self, plan: KernelPlan, kernel: Kernel) -> Kernel:
        rows = self.rows.setdefault(plan.name, [])

        def run(*args: Any) -> None:
            rows.append(gpus.seconds_of(lambda: kernel(*args), plan.device))

        return run

    def write(self) -> None:
        """Leave what was measured for the parent process."""
        rows = [
            {"name": name, "seconds": sum(times), "launches": len(times), "best": min(times), "bytes": self.bytes[name],
             "lines": self.lines[name]}
            for name, times in self.rows.items()
            if times
        ]  # fmt: skip
        bandwidth = gpus.copy_bandwidth(self.device)
        self.file.write_text(json.dumps({"rows": rows, "whole": sum(self.whole), "bandwidth": bandwidth}))


def _bytes(plan: KernelPlan, schedule: Schedule) -> int:
    """Memory that a kernel must at least read and write."""
    with size_hints(schedule.hints):
        return sum(hint_bytes(plan.buffers[name]) for name in (*plan.inputs, *plan.outputs))


def _slow(doctor: Localiser, eager: Run, own: Run) -> str | None:
    """What takes the time, where the last compiled calls are slower than eager's."""
    ratio = _ratio(eager, own)
    if ratio is None:
        return None
    if ratio < 1.1:
        doctor.evidence.append(f"a compiled call takes {ratio:.2f} of the time of an eager one")
        return None
    file = doctor.folder / "timed.json"
    timed = Timed(file)
    doctor.run(Mode("kernels timed"), _written(timed))
    text = f"A compiled call takes {ratio:.1f} times as long as an eager one."
    if not file.exists():
        return text
    timings = json.loads(file.read_text())
    rows = sorted(timings["rows"], key=lambda row: -row["seconds"])
    if not rows or not timings["whole"]:
        return text + " None of the time is in kernels: it is in guards, host code and ATen calls."
    kernels = sum(row["seconds"] for row in rows)
    first = rows[0]
    share = first["seconds"] / timings["whole"]
    part = first["bytes"] / first["best"] / timings["bandwidth"]
    text += (
        f" The kernel {first['name']} is {share:.0%} of the time in graphs, at {part:.0%} of the bandwidth of a copy."
    )
    if first["lines"]:
        text += f" It computes {'; '.join(first['lines'][:3])}."
    if kernels < 0.5 * timings["whole"]:
        text += f" Kernels are {kernels / timings['whole']:.0%} of it, ATen calls and host code the rest."
    return text


def _written(timed: Timed) -> Callable[[Recorder, Backend, Any], Backend]:
    def graphs(recorder: Recorder, function: Backend, asked: Any) -> Backend:
        if recorder.at_end is None:
            recorder.at_end = timed.write
        return timed(recorder, function, asked)

    return graphs


def _ratio(eager: Run, own: Run) -> float | None:
    """How long the later compiled calls take, compared with eager's; None where there are too few of them."""
    calls: dict[str, tuple[list[float], list[float]]] = {}
    after_calls = [call.compiles for call in own.calls[1:]] + [own.facts.get("compiles", 0)]
    for one, two, compiles in zip(eager.calls, own.calls, after_calls):
        if one.function == two.function and two.compiles == compiles:  # others take the time of a compile
            pair = calls.setdefault(one.function, ([], []))
            pair[0].append(one.seconds)
            pair[1].append(two.seconds)
    before = after = 0.0
    for plain, compiled in calls.values():
        if len(plain) >= _TIMED:
            before += min(plain[1:])  # on a loaded machine most calls, of either kind, wait for a processor
            after += min(compiled[1:])
    return after / before if before > 0 and after > 1e-5 else None
