"""Kernels are compiled while capture goes on: the same results, and the same errors, as when it waits for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import argand
from argand.autograd.training import LazyBackward
from argand.config import config
from argand.errors import BackendCompilerFailed, CppCompileError, ToolchainError
from argand.runtime import late_modules, toolchain
from argand.runtime.kernels import background_libraries
from forks import fork

X = torch.linspace(-2, 2, 96).reshape(8, 12)


@pytest.fixture(autouse=True)
def own_cache(folder: object) -> Iterator[None]:
    with config.patch({"program_cache": True, "outcome_cache": True, "verify_ir": False}):
        yield


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 3 + x.exp()).relu()


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> list[late_modules.Scope]:
    """The scopes of captures, as they are finished."""
    seen: list[late_modules.Scope] = []
    finish = late_modules.Scope.finish

    def finished(scope: late_modules.Scope) -> None:
        seen.append(scope)
        finish(scope)

    monkeypatch.setattr(late_modules.Scope, "finish", finished)
    return seen


@pytest.fixture
def always_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_modules.LateModule, "waits", lambda module: True)


def test_the_module_is_left_until_the_end_and_then_called_directly(scopes: list[late_modules.Scope]) -> None:
    compiled = argand.compile(f, fullgraph=True)
    assert torch.allclose(compiled(X), f(X))
    (scope,) = scopes
    (late,) = scope.modules
    assert late.call.__code__.co_filename == "output_code.py"
    assert torch.allclose(compiled(X), f(X))


def test_the_backward_is_begun_while_the_forward_is_compiled(
    scopes: list[late_modules.Scope], always_waited_for: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    begin = LazyBackward.begin
    monkeypatch.setattr(LazyBackward, "begin", lambda self: (made.append("begun"), begin(self)))
    x = X.clone().requires_grad_()
    got = argand.compile(f, fullgraph=True)(x)
    assert made == ["begun"] and len(scopes) == 1
    (gradient,) = torch.autograd.grad(got.sum(), x)
    assert len(scopes) == 2  # of the backward, which was not made again
    assert len(scopes[1].modules) == 1
    assert torch.allclose(gradient, torch.autograd.grad(f(x).sum(), x)[0])


def test_a_backward_of_several_results_is_not_begun(always_waited_for: None, scopes: list[late_modules.Scope]) -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.exp()

    x = X.clone().requires_grad_()
    got = argand.compile(two, fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(got[1].sum(), x)
    assert len(scopes) == 1
    assert torch.allclose(gradient, X.exp())


def refused(error: Exception) -> Any:
    def load(*args: object, **kwargs: object) -> object:
        raise error

    return load


def test_text_that_the_compiler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "load_text", refused(CppCompileError("no", remedy="none")))
        with pytest.raises(BackendCompilerFailed, match="CppCompileError"):
            argand.compile(f)(X)
        with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="runs eagerly"):
            assert torch.equal(argand.compile(f)(X), f(X))
    argand.reset()
    assert torch.allclose(argand.compile(f)(X), f(X))


def test_a_compiler_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "load_text", refused(ToolchainError("broken", remedy="none")))
    compiled = argand.compile(f, fullgraph=True)
    with pytest.warns(UserWarning, match=r"broken[\s\S]*eager's kernels"):
        assert torch.equal(compiled(X), f(X))
    assert torch.equal(compiled(X), f(X))


def test_a_backward_that_was_begun_and_is_refused(always_waited_for: None, monkeypatch: pytest.MonkeyPatch) -> None:
    load = toolchain.load_text
    texts: list[str] = []

    def first_only(source: str, *args: Any, **kwargs: Any) -> object:
        texts.append(source)
        if source == texts[0]:
            return load(source, *args, **kwargs)
        raise CppCompileError("no", remedy="none")

    monkeypatch.setattr(toolchain, "load_text", first_only)
    x = X.clone().requires_grad_()
    got = argand.compile(f, fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(got.sum(), x)
    assert torch.allclose(gradient, torch.autograd.grad(f(x).sum(), x)[0])
    assert len(set(texts)) == 2


SOURCE = 'extern "C" void nothing(void** ptrs, const long long* ints) {}\n'


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_compiles_for_itself() -> None:
    background_libraries.begin(SOURCE, ())
    child = fork()
    if child == 0:
        code = 1
        try:
            code = (
                0
                if not background_libraries.running(SOURCE, ())
                and background_libraries.library(SOURCE, ()).address("nothing")
                else 2
            )
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert background_libraries.library(SOURCE, ()).address("nothing")
    assert not background_libraries.running(SOURCE, ())
