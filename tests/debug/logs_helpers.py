"""Programs and readers that the tests of logs share."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

import argand
from argand.debug import logs
from argand.debug.logs import LOGS

LINE = re.compile(r"^([VIWEC])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w./]+:\d+\]( \[[!\d/-]+(_\d+)?\])?( \[__\w+\])? ")


@pytest.fixture(autouse=True)
def clean_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*logs.LOGS_ENV, *logs.OUT_ENV, *logs.FORMAT_ENV):
        monkeypatch.delenv(name, raising=False)
    LOGS.reset()
    yield
    LOGS.reset()


def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def run_toy(backend: str = "eager") -> None:
    with torch.no_grad():
        argand.compile(toy_example, backend=backend)(torch.randn(10), torch.rand(10))


def lines_of(capsys: pytest.CaptureFixture[str], tag: str = "") -> list[str]:
    """The log's lines (of one artifact) without their prefixes; every line must have one."""
    found = []
    for line in capsys.readouterr().err.splitlines():
        match = LINE.match(line)
        assert match, line
        if not tag or (match[4] or "").strip() == f"[__{tag}]":
            found.append(line[match.end() :])
    return found


def native_inference() -> None:
    with torch.no_grad():
        argand.compile(lambda x, w: torch.softmax(x @ w, -1) + 1)(torch.randn(4, 4), torch.randn(4, 4))


def quantized() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 4))
    with torch.no_grad():
        argand.compile(module, options={"quantization": "int8_dynamic"})(torch.randn(3, 64))


def engine_backward() -> None:
    x = torch.ones(3, requires_grad=True)
    with argand.compiled_autograd(backend="eager"):
        (x.sin() * 2).sum().backward()


def native_training() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    argand.compile(lambda x: (torch.sin(x) * x).sum())(x).backward()


def recompiling() -> None:
    compiled = argand.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4))


def writing() -> None:
    found: list[torch.Tensor] = []

    def f(x):
        found.append(x + 1)
        return x

    argand.compile(f, backend="eager")(torch.ones(3))


def varying() -> None:
    argand.compile(lambda x: x * x.shape[0], backend="eager", dynamic=True)(torch.ones(5))


def falling_back() -> None:
    argand.compile(lambda x: torch.kthvalue(x, 2)[0] + 1)(torch.eye(3))
