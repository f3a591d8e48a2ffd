"""Which stage of the native compiler makes a small graph fail: each stage's result is run by a slow, plain interpreter.

The graph is compiled as far as one stage and what that stage made is interpreted. The first stage after which the
result is wrong (or that raises, crashes, hangs) is to blame; what comes later only hands the fault on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from argand.backends import native
from argand.backends.targets import target_of
from argand.backends.watch import CompileProgram, watching
from argand.codegen.host.kernels import kernel_source
from argand.config import config
from argand.debug.benchmark.work import tensors_of
from argand.debug.minify.attempts import attempt
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.surgery import Program
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.isolation import Limits
from argand.debug.trial.outcome import Outcome
from argand.debug.trial.tensors import detached
from argand.graph.nodes.program import AtenProgram
from argand.graph.sizes.hints import size_hints
from argand.ir.interpret import flatten, interpret
from argand.ir.kernel import KernelPlan, Schedule
from argand.lower import lower
from argand.lower.verify import verify
from argand.passes import pipeline
from argand.runtime import host
from argand.runtime.gpu.kernels import load
from argand.schedule.reference import run_kernel, run_schedule

Boxed = Callable[[list[Any]], Any]


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

    def fails(self, what: str, variant: CompileProgram | None = None, **settings: Any) -> bool:
        """Whether it fails in the same way when ATen programs are compiled by `variant` (None: as always)."""
        outcome = self.run(variant, self.check, settings)
        same = self.same(outcome)
        said = "fails in the same way" if same else f"{outcome}" if outcome.failed else "is right"
        self.evidence.append(f"{what}: {said}")
        return same

    def run(self, variant: CompileProgram | None, check: BackendCheck, settings: dict[str, Any]) -> Outcome:
        """One trial in a child process."""
        name = "" if variant is None else variant.__name__
        return attempt(check, self.program, Limits(self.seconds), check_variant, variant=name, settings=settings)

    def same(self, outcome: Outcome) -> bool:
        """Whether this is the failure that was seen: by kind and type, whatever stage it shows in."""
        if not outcome.failed:
            return False
        found = fingerprint(outcome)
        if (found.kind, found.mismatch) != (self.wanted.kind, self.wanted.mismatch):
            return False
        return found.kind in ("hung", "memory") or found.error == self.wanted.error


def check_variant(
    check: BackendCheck, gm: fx.GraphModule, inputs: list[Any], variant: str, settings: dict[str, Any]
) -> None:
    """A check, whose ATen programs are compiled by the variant of this name ("": as always)."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(settings))
        if variant:
            chosen = variant_of(variant)
            stack.enter_context(watching(lambda _compile, _name, _boxed: chosen))
        check(gm, inputs)


def variant_of(name: str) -> CompileProgram:
    """The variant of the native compiler that has this `__name__`."""
    function, _, count = name.partition(" ")
    found = globals()[function]
    made: CompileProgram = found(int(count)) if count else found
    return made


def blame(trial: Trial) -> Blame:
    """The first stage whose result fails."""
    found = _blame(trial)
    found.evidence = trial.evidence
    return found


def _blame(trial: Trial) -> Blame:
    eager = replace(trial.check, backend="aot_eager", options={})
    outcome = trial.run(None, eager, {})
    if trial.same(outcome):
        trial.evidence.append("the traced ATen graph, run by eager's kernels: fails in the same way")
        return Blame("autograd")
    trial.evidence.append("the traced ATen graph, run by eager's kernels: is right")
    if trial.fails("ATen graphs before passes", _eager):
        return Blame("passes", "prepare_joint")
    passes = pipeline.INFERENCE
    if trial.fails("after all passes", _after_passes(len(passes))):
        for count, one in enumerate(passes, 1):
            if count == len(passes) or trial.fails(f"after the pass {one.name}", _after_passes(count)):
                return Blame("passes", one.name)
    broken = _broken_rule(trial, _verified_passes)
    if broken:  # its nodes compute the right values, but what it says of them is wrong: later stages believe that
        after = re.search(r"graph after (\w+):", broken)
        culprit = after[1] if after else ""
        return Blame("autograd") if culprit == "tracing" else Blame("passes", culprit)
    if trial.fails("the loop program, interpreted", _interpreted):
        return Blame("lowering")
    if _broken_rule(trial, _interpreted) or _broken_rule(trial, _verified_loops):  # it reads beyond a buffer, say
        return Blame("lowering")
    if trial.fails("the schedule, interpreted", _scheduled):
        off = trial.fails("the schedule without fusion, interpreted", _scheduled, fusion=False)
        return Blame("fusion", "" if off else "fusion")
    if _odd(trial) or _broken_rule(trial, _verified_schedule):
        return Blame("fusion")
    if trial.fails("generating the text of the kernels", _generated):
        return Blame("codegen")
    if not trial.fails("compiled, with no cache", None, cache=False, reuse_graphs=False):
        if trial.fails("compiled, with the cache", None):
            return Blame("cache")
    if trial.fails("the host module, with interpreted kernels", _hosted):
        return Blame("host")
    names = kernel_names(trial)
    kernels = ", ".join(names)
    if not any(name.startswith("cpp") for name in names):
        return Blame("codegen", kernels)
    fresh: dict[str, Any] = {"reuse_graphs": False}
    if not trial.fails("compiled as scalar code", None, **{**fresh, "cpp.simdlen": 0}):
        return Blame("vector", kernels)
    return Blame("codegen", kernels)


def _odd(trial: Trial) -> bool:
    """Whether the schedule cannot even be interpreted (it reads what nothing wrote, say), though the loops can."""
    if not trial.run(_scheduled, trial.check, {}).failed or trial.run(_interpreted, trial.check, {}).failed:
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


# ----------------------------------------------------------------------- variants of the native compiler


def _eager(program: AtenProgram) -> Boxed:
    return native._eager_kernels(program)


def _passed(program: AtenProgram, count: int | None = None) -> AtenProgram:
    """The program after passes; one for many sizes was made from traces that they have rewritten."""
    return program if program.scalars else pipeline.run_passes(program, pipeline.INFERENCE[:count])


def _after_passes(count: int) -> CompileProgram:
    def compile_program(program: AtenProgram) -> Boxed:
        return native._eager_kernels(_passed(program, count))

    compile_program.__name__ = f"{_after_passes.__name__} {count}"
    return compile_program


def _interpreted(program: AtenProgram) -> Boxed:
    loops = lower(_passed(program), targets=target_of)
    loops.mutations = []

    def call(args: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            return tuple(interpret(loops, list(map(detached, args))))

    return call


def _verified_passes(program: AtenProgram) -> Boxed:
    return native._eager_kernels(_passed(program))


def _verified_loops(program: AtenProgram) -> Boxed:
    with config.patch(verify_ir=False):
        loops = lower(_passed(program), targets=target_of)
    verify(loops)
    return native._eager_kernels(program)


def _verified_schedule(program: AtenProgram) -> Boxed:
    native.schedule_program(program)
    return native._eager_kernels(program)


def _scheduled(program: AtenProgram) -> Boxed:
    made = native.schedule_program(program)

    def call(args: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            return tuple(run_schedule(made, list(map(detached, args))))

    return call


def _generated(program: AtenProgram) -> Boxed:
    made = native.schedule_program(program)
    with size_hints(made.hints):
        kernel_source(made)

    def call(args: list[Any]) -> tuple[Any, ...]:
        with torch.no_grad():
            return tuple(run_schedule(made, list(map(detached, args))))

    return call


def _hosted(program: AtenProgram) -> Boxed:
    made = native.schedule_program(program)
    with _no_kernels():
        module = host.load_module(native.host_text(made), made.constants)
    kernels = _Interpreted(made)
    for plan in made.kernels():
        module.__dict__[plan.name] = kernels.run

    def call(args: list[Any]) -> Any:
        kernels.begin(args)
        return module.call(args)

    return call


class _Interpreted:
    """Kernels of a host module that are interpreted."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steps = [step for step in schedule.steps if isinstance(step, KernelPlan)]
        self.position = 0
        self.sizes: dict[str, Any] = {}

    def begin(self, args: list[Any]) -> None:
        given = dict(zip(self.schedule.inputs, args))
        self.position = 0
        self.sizes = {name: value for name, value in given.items() if isinstance(value, (int, float))}
        for symbol, name, dim in self.schedule.input_symbols:
            if name:
                self.sizes[symbol] = int(given[name].size(dim))

    def run(self, *args: Any) -> None:
        plan = self.steps[self.position % len(self.steps)]
        self.position += 1
        tensors = dict(zip((*plan.inputs, *plan.outputs), tensors_of(self.schedule, plan, args)))
        with torch.no_grad():
            run_kernel(plan, self.sizes, {name: flatten(tensor) for name, tensor in tensors.items()})


def _none_loaded(text: str, kernels: Mapping[str, Any], *_: Any) -> list[Any]:
    return [None] * len(kernels)


@contextlib.contextmanager
def _no_kernels() -> Iterator[None]:
    """Host modules are loaded without their kernels being compiled."""
    loaders: tuple[tuple[Any, str], ...] = ((host, "load_kernels"), (load, "load_triton_kernels"))
    saved = [(module, name, getattr(module, name)) for module, name in loaders]
    for module, name in loaders:
        setattr(module, name, _none_loaded)
    try:
        yield
    finally:
        for module, name, loader in saved:
            setattr(module, name, loader)


def kernel_names(trial: Trial) -> list[str]:
    """Names of the kernels that the graph is compiled to."""
    check = replace(trial.check, accuracy=False)
    return attempt(check, trial.program, Limits(trial.seconds), named_kernels).value or []


def named_kernels(check: BackendCheck, gm: fx.GraphModule, inputs: list[Any]) -> list[str]:
    """The same, in a child."""
    names: list[str] = []

    def note(program: AtenProgram) -> Boxed:
        made = native.schedule_program(program)
        names.extend(plan.name for plan in made.kernels())
        return native._eager_kernels(program)

    with watching(lambda _compile, _name, _boxed: note), contextlib.suppress(Exception):
        check(gm, inputs)
    return list(dict.fromkeys(names))
