"""Which stage of the native compiler makes a graph, or a whole script, go wrong.

ATen programs are compiled as far as one stage, and what that made is interpreted (`variants`). The first stage after
which the result is wrong (or that raises, crashes, hangs) is to blame; what comes later only hands the fault on. A
whole script is compiled so where no graph of it fails by itself: a gradient that is wrong only for the gradients that
the script's own loss sends back is found so.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from torch import fx

from argand.backends.compile_watchers import CompileProgram, compiled_through, watching
from argand.backends.programs import generation
from argand.backends.registry import Backend
from argand.config import config
from argand.debug.doctor import variants
from argand.debug.doctor.child import GraphBackend, Mode, Recorder
from argand.debug.minify.attempts import attempt
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.surgery import Program
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.isolation import Limits
from argand.debug.trial.outcome import Outcome
from argand.graph.nodes.program import AtenProgram
from argand.passes import pipeline
from argand.quick_dataclasses import dataclass

UNCACHED: dict[str, Any] = {"cache": False, "reuse_graphs": False}
Fails = Callable[[str, CompileProgram | None, dict[str, Any]], bool]
"""Whether it goes wrong in the same way when ATen programs are compiled by a variant (None: as always)."""


@dataclass(slots=True)
class Blame:
    """What is to blame.

    Arguments:
        stage: "autograd", "passes", "lowering", "fusion", "codegen", "vector", "host", "cache", "backend".
        part: the pass, or kernels, in it; "" where that is not known.
        evidence: what was tried, and how it ended.
    """

    stage: str
    part: str = ""
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """How far the compiler goes.

    Arguments:
        stage, part: to blame when the result goes wrong, and did not after the step before.
        graph, script: what is tried on a graph, and on a script, in words.
        variant: the compiler.
        further: what else a graph is asked when its result is right.
    """

    stage: str
    part: str
    graph: str
    script: str
    variant: CompileProgram
    further: Callable[[Trial], Blame | None] = lambda trial: None


@dataclass(slots=True)
class Trial:
    """Tries a graph in one variant of the compiler after the other.

    Arguments:
        program: the graph.
        check: what fails on it.
        wanted: how.
        seconds: limit of a trial.
    """

    program: Program
    check: BackendCheck
    wanted: Fingerprint
    seconds: float = 30.0
    evidence: list[str] = field(default_factory=list)

    def fails(self, what: str, variant: CompileProgram | None, settings: dict[str, Any] | None = None) -> bool:
        """Whether it fails in the same way when ATen programs are compiled by `variant` (None: as always)."""
        return self.same(self._told(what, variant, settings or {}))

    def right(self, what: str, variant: CompileProgram | None, settings: dict[str, Any]) -> bool:
        """Whether nothing fails: a trial that did not end in time, say, shows nothing."""
        return not self._told(what, variant, settings).failed

    def _told(self, what: str, variant: CompileProgram | None, settings: dict[str, Any]) -> Outcome:
        """The outcome of a trial, which is evidence."""
        outcome = self.run(variant, self.check, settings)
        said = "fails in the same way" if self.same(outcome) else f"{outcome}" if outcome.failed else "is right"
        self.evidence.append(f"{what}: {said}")
        return outcome

    def run(self, variant: CompileProgram | None, check: BackendCheck, settings: dict[str, Any]) -> Outcome:
        """One trial in a child process."""
        name = "" if variant is None else variant.__name__
        return attempt(check, self.program, Limits(self.seconds), check_variant, variant=name, settings=settings)

    def same(self, outcome: Outcome) -> bool:
        """Whether this is the failure that was seen: by kind and type, whatever stage it shows in."""
        return outcome.failed and self.wanted.alike(fingerprint(outcome))


def check_variant(
    check: BackendCheck, gm: fx.GraphModule, inputs: list[Any], variant: str, settings: dict[str, Any]
) -> None:
    """A check, whose ATen programs are compiled by the variant of this name ("": as always)."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(settings))
        if variant:
            chosen = variants.variant_of(variant)
            stack.enter_context(watching(lambda _compile, _name, _boxed: chosen))
        check(gm, inputs)


# ----------------------------------------------------------------------- what else a graph is asked


def _after_passes(trial: Trial) -> Blame | None:
    broken = _broken_rule(trial, _ALL_PASSES)
    if not broken:
        return None
    # Its nodes compute the right values, but what it says of them is wrong: later stages believe that.
    after = re.search(r"graph after (\w+):", broken)
    culprit = after[1] if after else ""
    return Blame("autograd") if culprit == "tracing" else Blame("passes", culprit)


def _after_lowering(trial: Trial) -> Blame | None:
    broken = _broken_rule(trial, variants.loop_program) or _broken_rule(trial, variants.loop_rules)
    return Blame("lowering") if broken else None  # it reads beyond a buffer, say


def _after_scheduling(trial: Trial) -> Blame | None:
    return Blame("fusion") if _odd(trial) or _broken_rule(trial, variants.schedule_rules) else None


def _after_codegen(trial: Trial) -> Blame | None:
    if not trial.right("compiled, with no cache", None, UNCACHED) or not trial.fails("compiled, with the cache", None):
        return None
    return Blame("cache")


def _odd(trial: Trial) -> bool:
    """Whether the schedule cannot even be interpreted (it reads what nothing wrote, say), though the loops can."""
    if not trial.run(variants.schedule, trial.check, {}).failed:
        return False
    if trial.run(variants.loop_program, trial.check, {}).failed:
        return False
    trial.evidence.append("the schedule cannot be interpreted, the same loops in their own order can")
    return True


def _broken_rule(trial: Trial, variant: CompileProgram) -> str:
    """The rule of an intermediate program that is broken, as its verifier says it; "" when none is."""
    outcome = trial.run(variant, replace(trial.check, accuracy=False), {"verify_ir": True})
    if outcome.error.rpartition(".")[2] not in ("VerificationError", "InternalError"):
        return ""
    trial.evidence.append(f"a rule is broken: {outcome.message.splitlines()[0]}")
    return outcome.message


_ALL_PASSES = variants.after_passes(len(pipeline.INFERENCE))
STEPS = (
    Step("passes", "prepare_joint", "ATen graphs before passes", "ATen graphs before passes", variants.aten_graph),
    Step("passes", "", "after all passes", "ATen graphs after all passes", _ALL_PASSES, _after_passes),
    Step("lowering", "", "the loop program, interpreted", "the loop programs, interpreted", variants.loop_program,
         _after_lowering),
    Step("fusion", "", "the schedule, interpreted", "the schedules, interpreted", variants.schedule, _after_scheduling),
    Step("codegen", "", "generating the text of the kernels", "generating the text of the kernels",
         variants.kernel_text, _after_codegen),
    Step("host", "", "the host module, with interpreted kernels", "the host modules, with interpreted kernels",
         variants.host_code),
)  # fmt: skip


def _culprit(fails: Fails) -> str:
    """The first pass after which it goes wrong, where it does after all."""
    passes = pipeline.INFERENCE
    for count, one in enumerate(passes[:-1], 1):
        if fails(f"after the pass {one.name}", variants.after_passes(count), {}):
            return one.name
    return passes[-1].name


# ----------------------------------------------------------------------- of a graph


def blame(trial: Trial) -> Blame:
    """The first stage whose result fails."""
    blamed = _blame(trial)
    blamed.evidence = trial.evidence
    return blamed


def _blame(trial: Trial) -> Blame:
    traced = trial.same(trial.run(None, replace(trial.check, backend="aot_eager", options={}), {}))
    said = "fails in the same way" if traced else "is right"
    trial.evidence.append(f"the traced ATen graph, run by eager's kernels: {said}")
    if traced:
        return Blame("autograd")
    for step in STEPS:
        if trial.fails(step.graph, step.variant):
            return Blame(step.stage, step.part or _part(trial, step.stage))
        blamed = step.further(trial)
        if blamed is not None:
            return blamed
    names = kernel_names(trial)
    compiled = any(name.startswith("cpp") for name in names)
    if compiled and not trial.fails("compiled as scalar code", None, {"reuse_graphs": False, "cpp.simdlen": 0}):
        return Blame("vector", ", ".join(names))
    return Blame("codegen", ", ".join(names))


def _part(trial: Trial, stage: str) -> str:
    if stage == "passes":
        return _culprit(trial.fails)
    if stage == "fusion":
        settings = {"fusion": False}
        return "" if trial.fails("the schedule without fusion, interpreted", variants.schedule, settings) else "fusion"
    return ""


def kernel_names(trial: Trial) -> list[str]:
    """Names of the kernels that the graph is compiled to."""
    check = replace(trial.check, accuracy=False)
    return attempt(check, trial.program, Limits(trial.seconds), names_of_kernels).value or []


def names_of_kernels(check: BackendCheck, gm: fx.GraphModule, inputs: list[Any]) -> list[str]:
    """The same, in a child."""
    names: list[str] = []

    def note(program: AtenProgram) -> variants.Boxed:
        schedule = generation.schedule_program(program)
        names.extend(plan.name for plan in schedule.kernels())
        return generation.eager_kernels(program)

    with watching(lambda _compile, _name, _boxed: note), contextlib.suppress(Exception):
        check(gm, inputs)
    return list(dict.fromkeys(names))


# ----------------------------------------------------------------------- of a script


def blame_script(shows: Callable[[Mode, GraphBackend | None], bool]) -> tuple[str, str]:
    """The first stage after which the script goes wrong, and the pass in it.

    Arguments:
        shows: whether a run in a mode, with graphs compiled in another way, goes wrong as the script does.
    """

    def fails(what: str, variant: CompileProgram | None, settings: dict[str, Any]) -> bool:
        return shows(Mode(what, settings=settings), None if variant is None else through(variant))

    for step in STEPS:
        if fails(step.script, step.variant, UNCACHED if step.stage == "host" else {}):
            return step.stage, step.part or (_culprit(fails) if step.stage == "passes" else "")
    scalar = fails("compiled as scalar code", None, {**UNCACHED, "cpp.simdlen": 0})
    return ("codegen", "") if scalar else ("vector", "")


def through(variant: CompileProgram) -> GraphBackend:
    """ATen programs are compiled by `variant`, in the child."""

    def graphs(recorder: Recorder, function: Backend, asked: Any) -> Backend:
        return compiled_through(function, lambda compile_program, name, boxed: variant)

    return graphs
