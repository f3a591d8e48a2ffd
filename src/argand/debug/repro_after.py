"""Watches backends while a program runs: a failure, or a wrong result, starts the minifier."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import fx

from argand._core.calls import capture_off
from argand.backends.compile_watchers import CompileProgram, compiled_through
from argand.backends.registry import Backend
from argand.config import config
from argand.debug import gpus
from argand.debug.accuracy import AccuracyError, Mismatch
from argand.debug.minify import aten
from argand.debug.minify.attempts import attempt, fails_eagerly
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import Writer, copy_to_base, new_directory
from argand.debug.minify.search import NotReproduced
from argand.debug.minify.surgery import Program
from argand.debug.repro import limits, rand_strided, search_in
from argand.debug.tensors import clone_inputs, detached
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.outcome import Outcome, outcome_of
from argand.debug.trial.surroundings import Surroundings
from argand.errors import ArgandError, ConfigError
from argand.graph.nodes.program import AtenProgram

_ATEN_BACKENDS = ("native", "aot_eager")


class ChildFailure(ArgandError):
    """A graph crashes, hangs, or takes too much memory: found out in a child process, so that this one goes on."""

    stage = "minify"


def watch(function: Backend, backend: str | Backend) -> Backend:
    """A backend that is watched as `config.repro_after` and `config.repro_level` say.

    Arguments:
        function: compiles graphs.
        backend: the name, or the callable, by which it was asked for.

    Raises:
        ConfigError: a value that these settings do not have.
    """
    after, level = str(config.repro_after), int(config.repro_level)
    if after not in ("dynamo", "capture", "aot"):
        raise ConfigError(f"repro_after is {after!r}", remedy='it is "dynamo" (any backend) or "aot" (native)')
    if not 1 <= level <= 4:
        raise ConfigError(f"repro_level is {level}", remedy="it is 1, 2, 3 or 4")
    if after == "aot" and backend in _ATEN_BACKENDS:
        return _watch_programs(function, str(backend), level)

    def call(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        check = _check(backend, options, "dynamo", level, Surroundings.now())

        def compile_graph() -> Callable[..., Any]:
            with capture_off():
                return function(gm, example_inputs, **options)

        compiled = _compiled(Program(gm, list(example_inputs)), check, level, compile_graph)
        return compiled if not callable(compiled) else _Watched(compiled, gm, check, list)

    return call


def _watch_programs(function: Backend, backend: str, level: int) -> Backend:
    def watcher(compile_program: CompileProgram, _name: str, boxed: bool) -> CompileProgram:
        def compile_watched(program: AtenProgram) -> Callable[..., Any]:
            surroundings = replace(Surroundings.now(), grad=False, autocast=None, gpu_autocast=None)
            check = _check(backend, {}, "aot", level, surroundings)
            gm = aten.graph_module(program)
            example = Program(gm, aten.inputs_of(program, None, rand_strided))
            compiled = _compiled(example, check, level, lambda: compile_program(program))

            def inputs_of(args: tuple[Any, ...]) -> list[Any]:
                given = list(args[0]) if boxed else list(args)
                return list(map(detached, aten.inputs_of(program, given, rand_strided)))

            return _Watched(compiled, gm, check, inputs_of)

        return compile_watched

    return compiled_through(function, watcher)


def _check(
    backend: str | Backend, options: dict[str, Any], after: str, level: int, surroundings: Surroundings
) -> BackendCheck:
    """What a level looks at."""
    tolerance = float(config.repro_tolerance)
    return BackendCheck(backend, options, after, level == 4, level >= 3, surroundings, tolerance)


def _compiled(
    program: Program, check: BackendCheck, level: int, compile_graph: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """A graph compiled; what fails on it is looked into."""
    if level == 3:
        _try_first(program, check)
    try:
        return compile_graph()
    except Exception as error:
        _handle(program, replace(check, run=False, accuracy=False), error)
        raise


class _Watched:
    """A compiled graph whose calls are checked, and whose exceptions are looked into.

    Arguments:
        inputs_of: from arguments of a call to the inputs of `gm`.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        gm: fx.GraphModule,
        check: BackendCheck,
        inputs_of: Callable[[tuple[Any, ...]], list[Any]],
    ) -> None:
        self.compiled = compiled
        self.gm = gm
        self.check = replace(check, run=True)
        self.inputs_of = inputs_of
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.check.accuracy and self.calls & (self.calls - 1) == 0:  # the first, the second, the fourth, the eighth
            with capture_off():
                check_results(Program(self.gm, clone_inputs(self.inputs_of(args))), self.check)
        try:
            return self.compiled(*args)
        except Exception as error:
            with capture_off():
                _handle_running(Program(self.gm, self.inputs_of(args)), self.check, error)
            raise


def check_results(program: Program, check: BackendCheck) -> None:
    """Level 4: run the graph compiled and eagerly; minify it when it fails or its results differ.

    Raises:
        AccuracyError, ChildFailure: it fails.
    """
    outcome = attempt(check, program, limits())
    if not outcome.failed or (not outcome.data and fails_eagerly(check, program, limits(), outcome)):
        return
    remedy = _minify(program, check, outcome, outcome)
    error: ArgandError
    if outcome.data:
        data = outcome.data
        mismatch = Mismatch(*(data[name] for name in ("where", "kind", "size", "text")))
        error = AccuracyError(mismatch, str(data["output"]), remedy=remedy)
    else:
        error = ChildFailure(f"the compiled graph {outcome}", remedy=remedy)
    raise error


def _try_first(program: Program, check: BackendCheck) -> None:
    """Level 3: write the graph down, and run it in a child before it is run here.

    Raises:
        ChildFailure: it would take this process with it.
    """
    directory = new_directory()
    writer = Writer(directory, check, Fingerprint("unknown"))
    with contextlib.suppress(ArgandError):
        print(f"argand: graph written to {writer.launcher(program)}", file=sys.stderr)
    outcome = attempt(check, program, limits())
    if outcome.kind in ("crashed", "hung", "memory") and not fails_eagerly(check, program, limits(), outcome):
        error = ChildFailure(f"the compiled graph {outcome}")
        error.add_note(_minify(program, check, outcome, outcome, directory))
        raise error


def _handle(program: Program, check: BackendCheck, error: Exception) -> None:
    """A backend raised: note on the exception where the smallest graph that makes it raise was written."""
    if not getattr(error, "argand_minified", False):
        with contextlib.suppress(AttributeError):
            error.argand_minified = True  # type: ignore[attr-defined]
        note = _minify(program, check, outcome_of(error, "compile"))
        error.add_note(note)


def _handle_running(program: Program, check: BackendCheck, error: Exception) -> None:
    """The compiled graph raised: the same, unless eager raises too (then it is the program's own error)."""
    outcome = outcome_of(error, "run")
    if not isinstance(error, AccuracyError) and not fails_eagerly(check, program, limits(), outcome):
        _handle(program, replace(check, accuracy=False), error)


def _minify(
    program: Program,
    check: BackendCheck,
    outcome: Outcome,
    in_child: Outcome | None = None,
    directory: Path | None = None,
) -> str:
    """Write (level 1) or minify a failing graph; the sentence that says where the result is.

    Arguments:
        outcome: how it failed.
        in_child: the same, when that was in a child process.
        directory: where to write, by default a new one.
    """
    directory = directory or new_directory()
    wanted = fingerprint(outcome)
    writer = Writer(directory, check, wanted)
    try:
        with gpus.kept_generators(), capture_off(), config.patch(repro_after=""):
            writer.environment()
            if int(config.repro_level) == 1:
                writer.launcher(program)
                copy_to_base(writer.repro(program))
                return _place_note(directory, "The graph that fails is in")
            search_in(directory, program, check, wanted, outcome=in_child)
            return _place_note(directory, "The smallest graph that fails so is in")
    except NotReproduced as error:
        print(f"argand: {error}", file=sys.stderr)
        return _place_note(directory, "The graph that fails (it could not be made smaller) is in")
    except Exception as error:  # the program's own error is what the user must see
        print(f"argand: the minifier failed: {type(error).__name__}: {error}", file=sys.stderr)
        return _place_note(directory, "What the minifier wrote before it failed is in")


def _place_note(directory: Path, text: str) -> str:
    print(directory, file=sys.stderr, flush=True)
    repro = directory / "repro.py"
    return f"{text} {repro if repro.exists() else directory}"
