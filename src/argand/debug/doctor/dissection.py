"""In a child process that runs the script: finds the graph that fails, makes it small, finds the stage to blame."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from argand._core.calls import capture_off
from argand.backends.registry import Backend
from argand.backends.torch_compile_backends import torch_backend
from argand.config import config
from argand.debug import gpus
from argand.debug.doctor.child import Recorder
from argand.debug.doctor.stages import Blame, Trial, blame
from argand.debug.minify.attempts import attempt, fails_eagerly
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import new_directory
from argand.debug.minify.search import NotReproduced, names_of_calls
from argand.debug.minify.surgery import Program
from argand.debug.repro import search_in
from argand.debug.tensors import clone_inputs
from argand.debug.trial.fingerprint import fingerprint
from argand.debug.trial.isolation import Limits
from argand.debug.trial.outcome import Outcome
from argand.debug.trial.surroundings import Surroundings
from argand.errors import ConfigError
from argand.graph.nodes.meta import user_line
from argand.quick_dataclasses import dataclass

FINDING_EXIT = 77  # exit code of a child that found the graph
_CALLS = 3  # of each graph, with the values of the program
_TOTAL = 240.0  # seconds that making a graph small may take at least


@dataclass(slots=True)
class Dissection:
    """Replaces backends in the child.

    Arguments:
        folder: where the finding is written (finding.json).
        backend: used instead of the one that was asked for; "" keeps it.
        seconds: limit of one attempt.
        calls: how often a compiled graph is called in a check.
        torch: backends are torch's own; graphs are those that torch captured.
    """

    folder: Path
    backend: str = ""
    seconds: float = 60.0
    calls: int = 1
    torch: bool = False

    def __call__(self, recorder: Recorder, function: Backend, asked: Any) -> Backend:
        chosen = self.backend or asked
        if self.torch and isinstance(chosen, str):
            chosen = functools.partial(torchs_backend, chosen)

        def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
            check = BackendCheck(
                chosen, {} if self.backend else options, accuracy=True, surroundings=Surroundings.now()
            )
            if self.calls > 1:
                check = replace(check, calls=self.calls)
            if not self.torch:  # torch's example inputs are not always real ones
                with capture_off():
                    self.examine(recorder, Program(gm, list(example_inputs)), check)
            return _Checked(self, recorder, gm, check)

        return compile_graph

    def examine(self, recorder: Recorder, program: Program, check: BackendCheck) -> None:
        """Try a graph in a child; does not return when it fails."""
        if any(isinstance(v, torch.Tensor) and v.device.type == "meta" for v in program.inputs):
            return
        outcome = attempt(check, program, Limits(self.seconds))
        if not outcome.failed or fails_eagerly(check, program, Limits(self.seconds), outcome):
            return
        finding: dict[str, Any] = {"graph": recorder.current, "outcome": str(outcome), "error": outcome.error}
        finding["detail"], finding["message"], finding["kind"] = outcome.detail, outcome.message, outcome.kind
        try:
            finding.update(self.dissect(program, check, outcome))
        except Exception as error:
            finding["problem"] = f"{type(error).__name__}: {error}"
        (self.folder / "finding.json").write_text(json.dumps(finding))
        recorder.finish()
        sys.stdout.flush()
        os._exit(FINDING_EXIT)

    def dissect(self, program: Program, check: BackendCheck, outcome: Outcome) -> dict[str, Any]:
        """Make it small, and find what is to blame."""
        directory = new_directory()
        wanted = fingerprint(outcome)
        small = program
        with open(directory / "search.txt", "w") as log, contextlib.redirect_stderr(log):
            total = 4 * self.seconds if wanted.kind == "hung" else max(4 * self.seconds, _TOTAL)
            settings = {"repro_time_limit": self.seconds, "repro_total_time": total}
            with contextlib.suppress(NotReproduced), gpus.kept_generators(), config.patch(settings):
                result = search_in(directory, program, check, wanted, outcome=outcome, alone=False)
                small = Program(result.gm, result.inputs)
        if check.backend == "native":
            limit = 8.0 if wanted.kind == "hung" else 20.0 + 4 * outcome.seconds
            blamed = blame(Trial(small, check, wanted, min(self.seconds, limit)))
        else:
            blamed = Blame("autograd" if check.backend == "aot_eager" else "backend")
        names = {node.name for node in small.calls}
        lines = [user_line(node) for node in program.graph.nodes if node.name in names]
        return {
            "stage": blamed.stage,
            "part": blamed.part,
            "evidence": blamed.evidence,
            "calls": names_of_calls(small.graph),
            "lines": list(dict.fromkeys(str(line) for line in lines if line)),
            "repro": str(directory / "repro.py"),
            "directory": str(directory),
            "fingerprint": str(wanted),
            "nodes_before": len(program.calls),
        }


def torchs_backend(name: str, gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A graph compiled by one of torch.compile's own backends.

    Arguments:
        name: of the backend; argand has others of the same name.

    Raises:
        ConfigError: torch has no such backend.
    """
    backend = torch_backend(name)
    if backend is None:
        raise ConfigError(f"torch has no backend {name!r}", remedy="see torch.compiler.list_backends()")
    return backend(gm, example_inputs, **options)


class _Checked:
    """A graph that runs eagerly, after its compiled version was tried on the same values."""

    def __init__(self, owner: Dissection, recorder: Recorder, gm: fx.GraphModule, check: BackendCheck) -> None:
        self.owner = owner
        self.recorder = recorder
        self.gm = gm
        self.check = check
        self.left = _CALLS

    def __call__(self, *args: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            with capture_off():
                self.owner.examine(self.recorder, Program(self.gm, clone_inputs(args)), self.check)
        return self.gm.forward(*args)
