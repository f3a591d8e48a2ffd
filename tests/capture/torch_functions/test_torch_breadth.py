"""Gaps found by comparing with torch.compile and with eager, each closed once and for all."""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import gc
import random
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.helpers import CountingBackend, assert_same, check

import argand
import sweeps
from argand.capture.metadata import outcomes
from argand.capture.metadata.rules import RULES
from argand.errors import ConfigError, Unsupported


def _one_graph(fn: Any, *args: Any) -> None:
    """Captured whole, and as eager, for which torch's own compiler does not compile either (it takes 10 s for that)."""
    backend = CountingBackend()
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        want = fn(*args)
    torch.manual_seed(0)
    assert_same(want, argand.compile(fn, backend=backend, fullgraph=True)(*args))
    assert len(backend.graphs) == 1 and backend.ops


# ---------------------------------------------------------------------- fullgraph=True and a program that raises


def _next(iterator: Iterator[int]) -> int:
    return next(iterator)


def raises_behind_a_call_with_an_iterator(x: torch.Tensor) -> Any:
    _next(iter([1, 2]))
    raise ValueError("mine")


def _missing(x: torch.Tensor) -> Iterator[Any]:
    yield x
    yield x.no_such_attribute  # type: ignore[attr-defined]


def raises_in_a_generator(x: torch.Tensor) -> Any:
    return [y + 1 for y in _missing(x)]


def _applied(x: torch.Tensor, functions: Any) -> torch.Tensor:
    for function in functions:
        x = function(x)
    return x


def raises_in_torch_behind_a_map(x: torch.Tensor) -> Any:
    return _applied(x, map(lambda n: lambda y: y + n, [1, 2])) + torch.ones(9)


def truth_of_several(x: torch.Tensor) -> Any:
    if x:
        return x + 1
    return x


def item_of_several(x: torch.Tensor) -> Any:
    return x + float(x + 1)


@pytest.mark.parametrize(
    "program",
    [
        raises_behind_a_call_with_an_iterator,
        raises_in_a_generator,
        raises_in_torch_behind_a_map,
        truth_of_several,
        item_of_several,
    ],
)
def test_the_programs_exception_is_not_hidden_by_fullgraph(program: Any) -> None:
    x = torch.ones(3)
    with pytest.raises(Exception) as want:
        program(x)
    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(want.type) as got:
            compiled(x)
        assert str(got.value) == str(want.value) and got.value.__cause__ is None


def test_a_function_that_raised_is_captured_when_it_does_not() -> None:
    def program(x: torch.Tensor, bad: bool) -> Any:
        first = _next(iter([1, 2]))
        if bad:
            raise ValueError("mine")
        return x + first

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(3)
    for bad in (True, False, True, False):
        with pytest.raises(ValueError, match="mine") if bad else contextlib.nullcontext():
            assert_same(program(x, bad), compiled(x, bad))
    assert len(backend.graphs) == 1


def test_operation_that_fails_on_stand_ins_alone_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager does not raise: the function must not run eagerly unsaid as if it did."""
    monkeypatch.delitem(RULES, torch.fake_quantize_per_channel_affine)

    def untraceable(*args: Any) -> Any:
        raise outcomes.Untraceable

    monkeypatch.setattr(outcomes, "stand_ins", untraceable)

    def program(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, 0, 255)

    args = torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 0], dtype=torch.int32)
    with pytest.raises(Unsupported) as found:
        argand.compile(program, backend="eager", fullgraph=True)(*args)
    assert found.value.where[-1].text.startswith("return torch.fake_quantize")
    assert_same(program(*args), argand.compile(program, backend="eager")(*args))


# ---------------------------------------------------------------------- what torch.compile captures


_MASKED = "sum mean amax amin prod argmax argmin softmax log_softmax softmin logsumexp cumsum cumprod var std median"


@pytest.mark.parametrize("name", _MASKED.split())
def test_masked_operations_are_one_graph(name: str) -> None:
    function = getattr(torch.masked, name)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    _one_graph(lambda x, m: function(x, 1, mask=m), torch.arange(6.0).reshape(2, 3), mask)


def test_autograd_function_defined_in_captured_code() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
                return y * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return grad * 3

        return Twice.apply(x) + 1

    _one_graph(program, torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    argand.compile(program, backend="eager", fullgraph=True)(x).sum().backward()
    assert_same(x.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize(
    ("center", "length", "onesided"), sweeps.combinations([True, False], [None, 20, 40], [True, False])
)
@pytest.mark.filterwarnings("ignore")
def test_istft_is_one_graph(center: bool, length: int | None, onesided: bool) -> None:
    window = torch.ones(8)
    for x in (torch.randn(32), torch.randn(3, 32)):
        spectrum = torch.stft(x, 8, window=window, center=center, onesided=onesided, return_complex=True)
        _one_graph(
            lambda s: torch.istft(s, 8, window=window, center=center, onesided=onesided, length=length) + 1, spectrum
        )


def test_istft_that_data_make_raise() -> None:
    def program(s: torch.Tensor, window: torch.Tensor, log: list[str]) -> Any:
        log.append("before")
        try:
            return torch.istft(s, 8, window=window)
        except RuntimeError:
            log.append("caught")

    spectrum = torch.stft(torch.randn(32), 8, window=torch.ones(8), return_complex=True)
    for window in (torch.ones(8), torch.zeros(8)):
        check(program, spectrum, window, [])


def test_fake_quantize_is_one_graph() -> None:
    x = torch.randn(2, 3, 4).transpose(0, 1)
    one, zero = torch.tensor(0.1), torch.tensor(0)
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 1], dtype=torch.int32)
    _one_graph(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255) * 2, x)
    _one_graph(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 255) * 2, x, one, zero)
    _one_graph(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, 0, 255) * 2, x, scales, zeros)
    y = x.clone().requires_grad_()
    argand.compile(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 9).sum(), backend="eager")(
        y
    ).backward()
    z = x.clone().requires_grad_()
    torch.fake_quantize_per_tensor_affine(z, 0.1, 0, 0, 9).sum().backward()
    assert_same(z.grad, y.grad)


@pytest.mark.parametrize("compile_", [torch.compile, argand.compile], ids=["torch", "argand"])
def test_functions_compiled_inside_a_compiled_function(compile_: Any) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def called(x: torch.Tensor) -> torch.Tensor:
        return compile_(inner)(x) + 1

    def decorated(x: torch.Tensor) -> torch.Tensor:
        @compile_(dynamic=False)
        def own(y: torch.Tensor) -> torch.Tensor:
            return y + x

        @compile_
        def other(y: torch.Tensor) -> torch.Tensor:
            return y - 2 * x

        return own(x) * other(x)

    for program in (called, decorated):
        _one_graph(program, torch.randn(3))


def test_wrong_request_inside_a_compiled_function_raises() -> None:
    compiled = argand.compile(lambda x: argand.compile(torch.sin, backend="nonsense")(x * 2), backend="eager")
    with pytest.raises(ConfigError, match="nonsense"):
        compiled(torch.ones(2))


def test_function_made_by_torch_compile_outlives_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        @torch.compile
        def own(y: torch.Tensor) -> torch.Tensor:
            return y + x

        return x * 2, own

    x = torch.randn(3)
    doubled, own = argand.compile(program, backend="eager")(x)
    assert_same(doubled, x * 2)
    assert own.__name__ == "own"
    assert_same(own(x), x + x)


# ---------------------------------------------------------------------- objects with an end


class _Told:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("deleted")


def _suspended(log: list[Any]) -> Iterator[int]:
    try:
        yield 1
    finally:
        log.append("finally")


def _begun(log: list[Any]) -> Iterator[int]:
    found = _suspended(log)
    next(found)
    return found


def popped(x: torch.Tensor, log: list[Any], box: Any) -> Any:
    held = box.items.pop()
    log.append("popped")
    held = None
    log.append("after")
    return x + 1, held


def replaced(x: torch.Tensor, log: list[Any], box: Any) -> Any:
    box.attribute = None
    log.append("after")
    return x + 1


@pytest.mark.parametrize("make", [_begun, _Told])
@pytest.mark.parametrize("program", [popped, replaced])
def test_what_the_end_of_an_object_does_is_not_lost(program: Any, make: Any) -> None:
    compiled = argand.compile(program, backend="eager")
    found = []
    for work in (program, compiled, compiled):
        log: list[Any] = []
        box = types.SimpleNamespace(items=[make(log)], attribute=make(log))
        work(torch.ones(2), log, box)
        found.append(list(log))
        del box
        gc.collect()
    assert found[0] == found[1] == found[2]


# ---------------------------------------------------------------------- abstract classes


def test_class_registered_with_an_abstract_one_later() -> None:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Thing:
        pass

    def by_instance(x: torch.Tensor, thing: Any) -> torch.Tensor:
        return x + 1 if isinstance(thing, Base) else x - 1

    def by_class(x: torch.Tensor, thing: Any) -> torch.Tensor:
        return x + 1 if issubclass(type(thing), (int, collections.abc.Sequence)) else x - 1

    x, thing = torch.ones(2), Thing()
    for program, base in ((by_instance, Base), (by_class, collections.abc.Sequence)):
        backend = CountingBackend()
        compiled = argand.compile(program, backend=backend)
        for _ in range(2):
            assert_same(program(x, thing), compiled(x, thing))
        collections.abc.Mapping.register(type("Unrelated", (), {}))
        assert_same(program(x, thing), compiled(x, thing))
        assert len(backend.graphs) == 1
        base.register(Thing)
        assert_same(x + 1, compiled(x, thing))


# ---------------------------------------------------------------------- messages


def test_break_on_a_used_random_number_names_the_programs_line() -> None:
    def program(x: torch.Tensor) -> Any:
        number = random.random()
        return x[int(number * 2)]

    with pytest.raises(Unsupported) as found:
        argand.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    assert {line.filename for line in found.value.where} == {__file__}
