"""Names that appear in classes and modules because a program asked for something else: captured code sees each when eager does."""

from __future__ import annotations

import copy
import io
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
from argand import events
from capture.agreement import outcome

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")


def plain_class() -> type:
    class Plain:
        far = 2

    return Plain


def protocol() -> Any:
    @typing.runtime_checkable
    class Goes(typing.Protocol):
        def go(self) -> None: ...

    return Goes


def instance_check(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(cls))
        return x * 3 if isinstance(cls(), goes) else x

    return f


def subclass_check(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        before = len(dir(cls))
        issubclass(cls, goes)
        return x + before, len(dir(cls))

    return f


def check_of_an_instance_from_outside(cls: Any, goes: Any) -> Callable[..., Any]:
    o = cls()

    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(o))
        return x * 3 if isinstance(o, goes) else x

    return f


def check_in_a_call_that_breaks_the_graph(cls: Any, goes: Any) -> Callable[..., Any]:
    def checked(x: torch.Tensor) -> torch.Tensor:
        isinstance(cls(), goes)
        argand.graph_break()
        return x

    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(cls))
        return checked(x) + len(dir(cls))

    return f


def check_before_a_break(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(cls))
        isinstance(cls(), goes)
        io.StringIO().close()
        argand.graph_break()
        return x + len(dir(cls))

    return f


def check_before_an_exception(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        before = len(dir(cls))
        isinstance(cls(), goes)
        raise ValueError(before, len(dir(cls)))

    return f


def check_without_a_graph(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        before = len(dir(cls))
        isinstance(cls(), goes)
        return before, len(dir(cls))

    return f


def class_annotations(cls: Any, goes: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(cls))
        return x + len(cls.__annotations__) + len(dir(cls))

    return f


def module_annotations(cls: Any, goes: Any) -> Callable[..., Any]:
    module = types.ModuleType("made_here")

    def f(x: torch.Tensor) -> Any:
        x = x + ("__annotations__" in vars(module))
        return x + len(module.__annotations__) + len(vars(module))

    return f


def copied(cls: Any, goes: Any) -> Callable[..., Any]:
    o = cls()

    def f(x: torch.Tensor) -> Any:
        x = x + hasattr(cls, "__slotnames__")
        copy.copy(o)
        return x + 10 * hasattr(cls, "__slotnames__")

    return f


def copied_deeply(cls: Any, goes: Any) -> Callable[..., Any]:
    o = cls()

    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(cls))
        copy.deepcopy([o])
        return x + len(dir(cls))

    return f


def reduced(cls: Any, goes: Any) -> Callable[..., Any]:
    o = cls()

    def f(x: torch.Tensor) -> Any:
        x = x + len(dir(o))
        o.__reduce_ex__(2)
        return x + len(dir(cls))

    return f


PROGRAMS = [
    instance_check, subclass_check, check_of_an_instance_from_outside, check_in_a_call_that_breaks_the_graph,
    check_before_a_break, check_before_an_exception, check_without_a_graph, class_annotations, module_annotations,
    copied, copied_deeply, reduced,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_names_made_by_asking(program: Callable[..., Callable[..., Any]]) -> None:
    """Eager and compiled have worlds of their own: the first call changes what the second reads."""
    eager, captured = program(plain_class(), protocol()), program(plain_class(), protocol())
    compiled = argand.compile(captured, backend="eager")
    for call in range(4):
        wanted, found = outcome(eager, torch.ones(2)), outcome(compiled, torch.ones(2))
        assert found == wanted, (call, found, wanted)


def compiled_counting(program: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """A function compiled as one graph, and a list that gets an item for each graph."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(len(inputs))
        return graph.forward

    return argand.compile(program, backend=backend, fullgraph=True), graphs


def test_graph_stays_whole_and_is_kept_from_the_second_call_on() -> None:
    """A class that changes in the first capture costs one more, and no break."""
    compiled, graphs = compiled_counting(instance_check(plain_class(), protocol()))
    for _ in range(4):
        compiled(torch.ones(2))
    assert len(graphs) == 2


def test_reason_to_capture_again_is_said_in_words() -> None:
    compiled = argand.compile(instance_check(plain_class(), protocol()), backend="eager")
    said: list[str] = []
    leave = events.bus.subscribe(lambda event: said.append(event.text()), ("recompiles",))
    try:
        for _ in range(3):
            compiled(torch.ones(2))
    finally:
        leave()
    assert len(said) == 1
    assert "a class that was read changed meanwhile" in said[0]
    assert "ThisCallOnly" not in said[0]


def test_class_that_nobody_asked_for_its_names_is_no_reason_to_capture_again() -> None:
    cls, goes = plain_class(), protocol()

    def f(x: torch.Tensor) -> torch.Tensor:
        copy.copy(cls())
        return x * 3 if isinstance(cls(), goes) else x * 2

    compiled, graphs = compiled_counting(f)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(graphs) == 1
