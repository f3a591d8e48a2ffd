"""Warnings that native code gives: they name the program's line, at every call, as eagerly."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import argand
from argand.capture import interp, natives, objects
from argand.capture.natives import native_warnings
from argand.capture.objects import call_protocol


def of_truth(x: torch.Tensor) -> torch.Tensor:
    return x + bool(NotImplemented)


def of_branch(x: torch.Tensor) -> torch.Tensor:
    if NotImplemented:
        x = x * 2
    return x + 1


def of_not(x: torch.Tensor) -> torch.Tensor:
    return x + (not NotImplemented)


def of_any(x: torch.Tensor) -> torch.Tensor:
    return x + any([0, NotImplemented])


def places(fn: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[str, int]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            fn(torch.ones(2))
    return [(one.filename, one.lineno) for one in heard if issubclass(one.category, DeprecationWarning)]


@pytest.mark.parametrize("fn", [of_truth, of_branch, of_not, of_any])
def test_a_warning_names_the_programs_line_at_every_call(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    want = places(fn)
    assert want and {name for name, _ in want} == {__file__}
    assert places(argand.compile(fn, backend="eager")) == want


def test_the_modules_that_call_native_code_are_known() -> None:
    """A room that gets another name is noticed."""
    argand.compile(of_branch, backend="eager")(torch.ones(2))
    known = {file.rsplit("/", 2)[-2] for file in native_warnings._modules()}
    assert known == {room.__name__.rpartition(".")[2] for room in (interp, natives, objects, call_protocol)}


LOG = logging.getLogger(__name__)


def tells() -> None:
    warnings.warn("of its caller", stacklevel=2)
    warnings.warn("here", stacklevel=1)
    LOG.warning("told")
    LOG.warning("of its caller", stacklevel=2)


def tells_twice(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("here", stacklevel=1)
    tells()
    x = x + 1
    warnings.warn("here", stacklevel=1)
    tells()
    LOG.warning("at the end")
    return x


@pytest.mark.parametrize("mode", ["always", "default"])
def test_what_the_program_says_names_the_line_that_says_it(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of `default` filters one warning is shown for each line, not for each function."""
    told = []
    for fn in (tells_twice, argand.compile(tells_twice, backend="eager", fullgraph=True)):
        globals().pop("__warningregistry__", None)
        caplog.clear()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter(mode)  # type: ignore[arg-type]
            for _ in range(3):
                fn(torch.ones(2))
        lines = [(one.filename, one.lineno, str(one.message)) for one in heard]
        told.append((lines, [(log.filename, log.lineno, log.funcName, log.message) for log in caplog.records]))
    assert told[0] == told[1]
    assert len(told[0][0]) == (18 if mode == "always" else 5)


def _losses(x):
    return F.mse_loss(x, torch.ones(1)), F.softmax(x), F.kl_div(x, x.exp()), F.l1_loss(x, x + 1)


def _recorded(x):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        loss = F.mse_loss(x, torch.ones(1))
    return loss, [(str(each.message), each.category, each.filename, each.lineno) for each in given]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_functions_of_torch_that_warn_name_the_programs_line_in_every_call(backend):
    compiled, recorded = (argand.compile(f, backend=backend, fullgraph=True) for f in (_losses, _recorded))

    def given_by(function):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            function(torch.ones(4))
        return [(str(each.message), each.category, each.filename, each.lineno) for each in given]

    for _ in range(3):
        assert given_by(compiled) == given_by(_losses)
        assert given_by(recorded) == []
        assert recorded(torch.ones(4))[1] == _recorded(torch.ones(4))[1] != []
