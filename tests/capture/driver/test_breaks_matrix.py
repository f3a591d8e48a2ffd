"""Graph breaks anywhere: place of the break x what breaks, compared with eager in everything that a program can see."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import traceback
import types
import warnings
from typing import Any

import pytest
import torch

import argand
import sweeps
from helpers import CountingBackend, collected, internal_names

from . import break_places

_numbers = itertools.count()


def load(text: str) -> types.ModuleType:
    """The text as a module, its lines visible to tracebacks."""
    name = f"<break {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType("break_program")
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def plain(value: Any) -> Any:
    """A value as data that compares by `==`."""
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            value.dtype,
            value.requires_grad,
            tuple(value.shape),
            [round(v, 3) for v in value.float().flatten().tolist()],
        )
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(v) for v in value])
    if isinstance(value, dict):
        return ("dict", [(plain(k), plain(v)) for k, v in value.items()])
    if isinstance(value, BaseException):
        return described(value)
    return (type(value).__name__, repr(value))


def described(error: BaseException | None, depth: int = 0) -> Any:
    """An exception: class, arguments, the program's lines in its traceback, what it came from."""
    if error is None or depth > 5:
        return None
    lines = [
        (entry.lineno, entry.name)
        for entry in traceback.extract_tb(error.__traceback__)
        if entry.filename.startswith("<break")
    ]
    return (
        type(error).__name__,
        str(error),
        lines,
        described(error.__cause__, depth + 1),
        described(error.__context__, depth + 1),
        error.__suppress_context__,
    )


def observe(module: types.ModuleType, fn: Any) -> Any:
    """Everything that a call does."""
    log: list[Any] = []
    x = torch.arange(1.0, 4.0)
    torch.manual_seed(7)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            outcome: Any = ("returned", plain(fn(x, log)))
        except Exception as error:
            outcome = ("raised", described(error))
    return {
        "outcome": outcome,
        "log": plain(log),
        "x": plain(x),
        "state": dict(module.STATE),
        "printed": printed.getvalue(),
        "random": torch.rand(1).item(),
        "modes": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")),
    }


def compare(text: str) -> tuple[CountingBackend, list[Any]]:
    """Run a program eagerly and compiled, three times each."""
    eager, compiled = load(text), load(text)
    backend = CountingBackend()
    argand.reset()
    fn = argand.compile(compiled.f, backend=backend)
    with collected("graph_breaks") as found, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*cache_size_limit.*")
        for _ in range(3):
            want = observe(eager, eager.f)
            got = observe(compiled, fn)
            for key in want:
                assert got[key] == want[key], f"{key}: {got[key]} instead of {want[key]}"
    return backend, found


BOTH_RAISE = {
    "except_reraise",
    "except_raise_from",
    "except_escapes",
    "finally_raising",
    "with_user_swallows",
    "with_generator_swallows",
    "with_suppress",
    "deep_exception",
}
"""Places behind which every way leads to a `raise`: a branch there is a check that the graph makes, not a break."""


@pytest.mark.parametrize(("kind", "place"), sweeps.chessboard(break_places.KINDS, break_places.PLACES))
def test_same_as_eager(place: str, kind: str) -> None:
    backend, found = compare(break_places.source(place, kind))
    skipped = [event.data["reason"] for event in found if event.data.get("frame_skipped")]
    assert not [reason for reason in skipped if reason.kind == "error inside argand"]
    assert not [name for event in found for name in internal_names(str(event.data["reason"]))]
    assert bool(found) is not (kind == "branch" and place in BOTH_RAISE)
