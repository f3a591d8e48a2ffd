"""Finds the smallest graph that fails, when `config.repro_after` asks for it, and writes it as a file that runs.

`debug.repro_after` wraps a backend (api.py calls it); `run_repro`, `minify_main`, `rand_strided` and `load` are what
the written files call; `minify_to_directory` is the whole procedure for a graph in hand.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from argand import files
from argand.config import config
from argand.debug import gpus
from argand.debug.accuracy import AccuracyError
from argand.debug.minify.attempts import attempt, run_file
from argand.debug.minify.checks import BackendCheck
from argand.debug.minify.files import Writer, copy_to_base, load_module, new_directory, program_of
from argand.debug.minify.progress import Progress
from argand.debug.minify.search import GraphSearch, MinifyResult, NotReproduced, minify
from argand.debug.minify.surgery import Program
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.isolation import Limits
from argand.debug.trial.outcome import Outcome
from argand.errors import ConfigError
from argand.graph.metadata.strides import elements_spanned

__all__ = ["AccuracyError", "load", "minify_main", "minify_to_directory", "rand_strided", "run_repro"]

_TENSOR_BYTES, _PROGRESS_BYTES = 1 << 40, 64 << 20

# ------------------------------------------------------------------------------- what written files call


def rand_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    requires_grad: bool = False,
) -> torch.Tensor:
    """A random tensor of the given layout; integers are 0 or 1, which are valid as indices of most things."""
    count = elements_spanned(size, stride)
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(count, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    else:
        flat = torch.randint(0, 2, (count,), dtype=torch.int64).to(dtype)
    return flat.to(device).as_strided(tuple(size), tuple(stride)).requires_grad_(requires_grad)


def load(beside: str, name: str) -> Any:
    """Tensors that were saved beside a file; loading runs no code.

    Raises:
        SystemExit: with a sentence, where there are none: what calls this is a script.
    """
    path = Path(beside).resolve().parent / name
    try:
        with files.open_sealed(path, _TENSOR_BYTES, own=False) as stream:
            return torch.load(stream, weights_only=True)
    except Exception as error:  # damaged files make torch raise many kinds
        raise SystemExit(
            f"argand: {path} cannot be loaded: {_first_line(error)}\n"
            "What to do: copy it again from where it was written, or let the program fail again."
        ) from error


def _first_line(error: BaseException) -> str:
    text = error.reason if isinstance(error, files.UnusableFile) else str(error)
    lines = files.printable(text, 300).strip().splitlines() or [type(error).__name__]
    return lines[0]


def from_script(path: str, name: str) -> Any:
    """An object that a script defines: runs the script's imports, definitions and assignments, and nothing else.

    Raises:
        ConfigError: the script does not define it so.
    """
    tree = ast.parse(files.read_script(path))
    names: dict[str, Any] = {"__name__": "argand_script", "__file__": path}
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    for statement in tree.body:
        if isinstance(statement, kinds):
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([statement], []), path, "exec"), names)
    if name not in names:
        raise ConfigError(f"{path} does not define {name}", remedy="put the definition into this file by hand")
    return names[name]


def run_repro(module: torch.nn.Module, args: Sequence[Any], check: BackendCheck) -> None:
    """Run a reproduction in this process: raises (or crashes) as the program did, and says so when it does not."""
    faulthandler.enable()  # a crash says where
    program = program_of(module, args)
    check(program.gm, program.inputs)
    print("argand: this graph does not fail any more", file=sys.stderr)


def minify_main(
    module: torch.nn.Module,
    args: Sequence[Any],
    check: BackendCheck,
    file: str,
    *,
    wanted: Fingerprint | None = None,
) -> MinifyResult | None:
    """Minify the graph of a `minifier_launcher.py`; an interrupted search goes on where it was.

    Returns:
        the result; None when it was not possible, which is said on stderr.
    """
    directory = Path(file).resolve().parent
    try:
        program, tried = program_of(module, args), _tried(directory / "progress.json")
        if tried and os.path.lexists(directory / "repro.py"):
            program = _program_in(directory / "repro.py")
        elif tried:
            print(f"argand: {directory / 'repro.py'} is missing: the whole graph is made small again", file=sys.stderr)
        return search_in(directory, program, check, wanted, tried=tried)
    except NotReproduced as error:
        print(f"argand: {error}\n{directory}", file=sys.stderr)
        return None
    except (ConfigError, OSError) as error:  # what a script raises is a traceback
        raise SystemExit(f"argand: {error}") from error


def _tried(path: Path) -> dict[str, bool]:
    """What an interrupted search need not try again.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        tried = files.read_sealed_json(path, _PROGRESS_BYTES, own=False)["tried"]
        if not isinstance(tried, dict) or not all(isinstance(failed, bool) for failed in tried.values()):
            raise files.UnusableFile(path, "is not what the minifier wrote")
    except FileNotFoundError:
        return {}
    except (OSError, KeyError) as error:
        reason = _first_line(error) if isinstance(error, OSError) else "is not what the minifier wrote"
        remedy = "delete it" if os.path.lexists(path) else "run this again"
        raise ConfigError(f"{path} {reason}", remedy=f"{remedy}: the search then begins anew") from error
    return tried


def _program_in(path: Path) -> Program:
    """The graph of a reproduction.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        loaded = load_module(path)
        return program_of(loaded.Repro(), loaded.args)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever a damaged program raises
        raise ConfigError(
            f"{path} is damaged: {_first_line(error).removeprefix('argand: ')}",
            remedy="delete it and progress.json: the search then begins anew",
        ) from error


# ------------------------------------------------------------------------------- the procedure


class _Files(Progress):
    """Progress that also keeps the smallest program so far on disk."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer.directory / "minifier.log")
        self.writer = writer

    def shrunk(self, search: GraphSearch) -> None:
        super().shrunk(search)
        self.writer.repro(search.smallest)
        self.writer.progress(search.tried, search.smallest.nodes, False)


def limits() -> Limits:
    """As configured."""
    return Limits(float(config.repro_time_limit), int(config.repro_memory_limit) << 20, float(config.repro_total_time))


def minify_to_directory(
    gm: fx.GraphModule, inputs: Sequence[Any], check: BackendCheck, wanted: Fingerprint | None = None
) -> tuple[Path, MinifyResult]:
    """Minify a graph and write the result into a new directory, whose path is printed last.

    Raises:
        NotReproduced: the graph does not fail (so) in a child process; the launcher is written all the same.
    """
    directory = new_directory()
    return directory, search_in(directory, Program(gm, list(inputs)), check, wanted)


def search_in(
    directory: Path,
    program: Program,
    check: BackendCheck,
    wanted: Fingerprint | None,
    *,
    tried: dict[str, bool] | None = None,
    outcome: Outcome | None = None,
    alone: bool = True,
) -> MinifyResult:
    """Minify, with the files of the search in `directory`.

    Arguments: see `minify`, and
        alone: run the written reproduction in a new process, to see whether it fails there too.
    """
    if wanted is None:
        outcome = outcome or attempt(check, program, limits())
        wanted = fingerprint(outcome)
    writer = Writer(directory, check, wanted)
    writer.environment()
    if not (directory / "minifier_launcher.py").exists():
        writer.launcher(program)
    listener, tried = _Files(writer), {} if tried is None else tried
    with listener.showing(program.nodes):
        result = minify(
            program.gm,
            program.inputs,
            check,
            wanted=wanted,
            limits=limits(),
            listener=listener,
            tried=tried,
            outcome=outcome,
        )
    final = Program(result.gm, result.inputs)
    random = fails_on_random_inputs(final, check, result.fingerprint)
    repro = writer.repro(final, random=random)
    if random:
        (directory / "inputs.pt").unlink(missing_ok=True)
    writer.progress(tried, final.nodes, result.finished)
    copy_to_base(repro)
    listener.line(f"The smallest graph that fails so has {final.nodes} nodes: {', '.join(result.calls)}")
    result.verified = verify(repro, final, result) if alone else None
    if result.verified is False:
        listener.line(
            "NOT REPRODUCED: in a new process repro.py does not fail so. What else the failure needs (an import, say) "
            "can be given in argand.config.repro_setup"
        )
    listener.line(f"Repro: {repro}")
    return result


def verify(repro: Path, program: Program, result: MinifyResult) -> bool:
    """Whether the written file fails in the same way by itself, in a new process."""
    patience = max(5.0, 4 * result.outcome.seconds) if result.outcome.kind == "hung" else limits().attempt_seconds
    outcome = run_file(repro, replace(limits(), attempt_seconds=min(patience, limits().attempt_seconds)))
    return outcome.failed and result.fingerprint.matches(fingerprint(outcome), all_names(program))


def all_names(program: Program) -> frozenset[str]:
    """Every name by which a wrong result of a program can go."""
    names = [node.name for node in program.graph.nodes]
    return frozenset([*names, *(f"gradient of {name}" for name in names)])


def fails_on_random_inputs(program: Program, check: BackendCheck, wanted: Fingerprint) -> bool:
    """Whether the values of the inputs do not matter: then their layouts are enough to reproduce the failure."""
    if not all(not isinstance(v, torch.Tensor) or v.layout is torch.strided for v in program.inputs):
        return False
    patience = limits()
    if wanted.kind == "hung":
        patience = replace(patience, attempt_seconds=min(5.0, patience.attempt_seconds))
    outcome = attempt(check, Program(program.gm, random_like(program.inputs)), patience)
    return outcome.failed and wanted.matches(fingerprint(outcome), all_names(program))


def random_like(inputs: Sequence[Any]) -> list[Any]:
    """Random tensors of the layouts of `inputs`, as a written file makes them; plain values as they are."""
    with gpus.kept_generators():
        torch.manual_seed(0)
        return [
            rand_strided(v.shape, v.stride(), v.dtype, str(v.device), v.requires_grad)
            if isinstance(v, torch.Tensor)
            else v
            for v in inputs
        ]
