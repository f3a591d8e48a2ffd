"""Compiled functions and modules under copy, pickle, TorchScript and torch.fx."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
from helpers import assert_same

X = torch.randn(4, 3)


@argand.compile(backend="eager")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit warns that it is old
        yield


def saved(value: Any) -> Any:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": saved,
}


@pytest.mark.parametrize("way", WAYS)
def test_function(way: str) -> None:
    assert WAYS[way](decorated) is decorated  # by its name, as every function
    for fn in (plain, functools.partial(torch.add, X), torch.sin):
        copied = WAYS[way](argand.compile(fn, backend="eager"))
        assert type(copied) is type(decorated)
        torch.testing.assert_close(copied(X), fn(X))
    disabled = WAYS[way](argand.disable(plain))
    torch.testing.assert_close(disabled(X), plain(X))


@pytest.mark.parametrize("way", WAYS)
def test_what_was_asked_for_is_kept(way: str) -> None:
    def broken() -> Any:
        return argand.compile(prints, backend="eager", fullgraph=True)

    for compiled in (broken(), argand.compile(Printing(), backend="eager", fullgraph=True)):
        argand.reset()
        with pytest.raises(argand.errors.Unsupported):
            WAYS[way](compiled)(X)


def prints(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


class Printing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return prints(x)


def test_deep_copy_of_a_bound_method_is_of_the_copied_object() -> None:
    net = Net()
    net.forward = argand.compile(net.forward, backend="eager")  # type: ignore[method-assign]
    other = copy.deepcopy(net)
    with torch.no_grad():
        net.fc.weight.zero_()
    torch.testing.assert_close(other(X), torch.nn.functional.linear(X, other.fc.weight, other.fc.bias).relu())


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_module_are_apart_as_those_of_the_original(way: str) -> None:
    def outcome(net: Any) -> Any:
        hook = net.register_forward_hook(_negated)
        named = net.register_forward_pre_hook(_doubled, with_kwargs=True)
        copied = WAYS[way](net)
        named.remove()
        copied.told = True
        copied.train(False)
        hook.remove()
        with torch.no_grad():
            copied.fc.weight.fill_(1.0)
        return copied(X), net(X), hasattr(net, "told"), net.training, copied.training, copied.fc is net.fc

    def seeded() -> Net:
        torch.manual_seed(0)
        return Net()

    assert_same(outcome(seeded()), outcome(argand.compile(seeded(), backend="eager")))


def _negated(module: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
    return -result


def _doubled(module: Any, args: Any, kwargs: Any) -> Any:
    return tuple([2 * arg for arg in args]), kwargs


def test_copies_with_a_backend_that_is_a_function() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        return gm.forward

    for compiled in (argand.compile(plain, backend=backend), argand.compile(torch.nn.ReLU(), backend=backend)):
        torch.testing.assert_close(copy.deepcopy(compiled)(X), compiled(X))
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(compiled)


def test_decorated_function_is_sent_to_a_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        torch.testing.assert_close(pool.apply(decorated, (X,)), X * 2 + 1)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_torchscript_modules_run(backend: str) -> None:
    for module in (torch.jit.script(Net()), torch.jit.trace(Net(), X)):
        compiled = argand.compile(module, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), module(X))
        with pytest.raises(argand.errors.Unsupported, match="ScriptMethod"):
            argand.compile(module, backend=backend, fullgraph=True)(X)


def test_torchscript_takes_what_was_compiled() -> None:
    net = Net()
    for scripted in (
        torch.jit.script(argand.compile(net)),
        torch.jit.script(torch.nn.Sequential(argand.compile(net))),
    ):
        torch.testing.assert_close(scripted(X), net(X))
    torch.testing.assert_close(torch.jit.script(argand.compile(plain))(X), plain(X))
