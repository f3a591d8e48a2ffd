"""Compiled code where a device is the default one, and other calls of torch.compiler's within it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import argand
import argand.capture.driver.frame as frame
from helpers import CountingBackend

X = torch.randn(3, 3)


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def makes(x: torch.Tensor) -> Any:
    like = torch.zeros_like(x), x.new_ones(2), torch.full_like(x, 2)
    made = torch.ones(3), torch.tensor([1.0, 2]), torch.arange(3), torch.eye(2), torch.linspace(0, 1, 3)
    return x.sin(), *like, *made, torch.get_default_device()


def legacy(x: torch.Tensor) -> Any:
    return torch.FloatTensor([2, 2]), torch.Tensor([1, 2]), torch.div(3, 2), torch.add(1, 2), x * 2.5


def inner_block(x: torch.Tensor) -> Any:
    with torch.device("cpu"):
        a = torch.ones(2), torch.get_default_device()
    return x + a[0].sum(), torch.ones(2), *a


def breaks(x: torch.Tensor) -> Any:
    y = torch.ones(2)
    print(end="")
    return x * 2, y, torch.zeros(3)


def breaks_inside(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        a = torch.ones(2)
        print(end="")
        b = torch.ones(3)
    return a, b, torch.ones(1), x + 1


def arrays(x: torch.Tensor) -> Any:
    a = np.ones(3) + x.numpy()
    return torch.from_numpy(a), torch.as_tensor(np.arange(3)), a.sum() > 2, x * 2


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def kind_of_device() -> str:
    return torch.ones(2).device.type


def constants(x: torch.Tensor) -> Any:
    return x + 1, kind_of_device()


def transforms(x: torch.Tensor) -> Any:
    return torch.func.grad(lambda t: (t * t).sum())(x), torch.vmap(lambda row: row * 2)(x)


def shown(result: Any) -> list[Any]:
    return [(type(item), getattr(item, "device", None), str(item)) for item in result]


@pytest.mark.parametrize(
    "program",
    [makes, legacy, inner_block, breaks, breaks_inside, arrays, constants, transforms],
    ids=lambda f: f.__name__,
)
def test_program(program: Callable[..., Any]) -> None:
    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    for device in (None, "meta", "cpu", None, "meta", "cpu"):
        torch.set_default_device(device)
        want, got = program(X), compiled(X)
        again = compiled(X)
        torch.set_default_device(None)
        assert shown(got) == shown(want) == shown(again), device
    assert len(backend.graphs) >= (1 if program is arrays else 3)  # numpy is not captured under meta


def test_one_graph_for_each_device_and_none_for_what_came_back() -> None:
    backend = CountingBackend()
    compiled = argand.compile(makes, backend=backend, fullgraph=True)
    for device in (None, "meta", None, "meta"):
        torch.set_default_device(device)
        compiled(X)
    assert len(backend.graphs) == 2
    torch.set_default_device(None)
    with torch.device("meta"):
        compiled(X)
    assert len(backend.graphs) == 2


def test_a_mode_of_the_program_beside_the_device() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    argand.reset()
    compiled = argand.compile(inner_block, backend="eager")
    torch.set_default_device("meta")
    with Mode():
        assert shown(compiled(X)) == shown(inner_block(X))


def test_a_mode_is_told_nothing_of_what_argand_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call imports what captures; modules that are loaded call torch."""
    names: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Loading(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            torch.get_rng_state().numel()
            return getattr(frame, name)

    x = torch.ones(2)
    monkeypatch.setitem(sys.modules, frame.__name__, Loading(frame.__name__))
    with Mode():
        argand.compile(lambda x: x.sin(), backend="eager")(x)
    assert names == ["sin"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_training_and_its_backward_where_a_device_is_the_default_one(device: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    compiled = argand.compile(net)

    def gradients(call: Any) -> list[torch.Tensor]:
        net.zero_grad()
        call(X).sin().sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    want = gradients(net)
    torch.set_default_device(device)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled), want)
    torch.set_default_device(None)
    torch.testing.assert_close(gradients(compiled), want)


def test_a_region_that_torch_compiles_once_is_part_of_the_graph() -> None:
    if not hasattr(torch.compiler, "nested_compile_region"):
        pytest.skip("this torch has no nested_compile_region")
    scale = 2.0

    @torch.compiler.nested_compile_region  # type: ignore[untyped-decorator]
    def region(x: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        return x.sin() * scale + shift

    def program(x: torch.Tensor) -> torch.Tensor:
        return region(x) + region(x + 1, shift=3.0)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), program(X))
    scale = 5.0
    torch.testing.assert_close(compiled(X), program(X))


def sets_and_unsets(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    far = torch.zeros(2)
    torch.set_default_device(torch.device("cpu"))
    near = torch.ones(3), torch.get_default_device()
    torch.set_default_device(device=None)
    return x + near[0], far.device, near[1], torch.empty(1).device


def sets(x: torch.Tensor) -> Any:
    y = x * 2
    torch.set_default_device("meta")
    return y, torch.empty(1).device


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_default_device_that_captured_code_sets(backend: str) -> None:
    compiled = argand.compile(sets_and_unsets, backend=backend, fullgraph=True)
    for _ in range(2):
        assert repr(compiled(X)) == repr(sets_and_unsets(X))
        assert torch.get_default_device() == torch.device("cpu")
    lasting = argand.compile(sets, backend=backend)
    for _ in range(2):
        y, device = lasting(X)
        assert (device.type, torch.empty(1).device.type) == ("meta", "meta")
        torch.set_default_device(None)
        assert torch.equal(y, X * 2)
