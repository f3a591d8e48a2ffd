"""Settings of the thread that C code reads past every source: numpy's of errors and texts, torch's of autocast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from tests.helpers import CountingBackend

import argand

ARRAY = numpy.array([1 / 3])


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before, call, texts = numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()
    size = numpy.getbufsize()
    autocast, cache = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    yield
    numpy.seterr(**before)
    numpy.seterrcall(call)
    numpy.setbufsize(size)
    numpy.set_printoptions(**texts)
    torch.set_autocast_dtype("cpu", autocast)
    torch.set_autocast_cache_enabled(cache)


def outcome(fn: Callable[[], Any]) -> Any:
    try:
        return repr(fn())
    except FloatingPointError as e:
        return type(e), str(e)


COMPUTE: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "function of an array": lambda x, a: x * torch.as_tensor(numpy.log(a)),
    "operator of an array": lambda x, a: x * torch.as_tensor(1 / a),
    "array of a tensor": lambda x, a: (x.numpy() / a) * 2,
    "in place": lambda x, a: x * torch.as_tensor(numpy.divide(x.numpy(), a, out=numpy.empty(2))),
    "scalars": lambda x, a: x * float(numpy.float64(1.0) / numpy.float64(0.0)),
    "scalar and number": lambda x, a: x * float(numpy.float64(1.0) / 0.0),
    "function of numbers": lambda x, a: x * float(numpy.divide(1.0, 0.0)),
    "method": lambda x, a: x * float(numpy.float64(1e300).__mul__(1e300)),
    "array made here": lambda x, a: x * float((numpy.ones(2) / numpy.zeros(2))[0]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize("mode", ["raise", "call"])
def test_errors_of_numpy(name: str, mode: str) -> None:
    heard: list[Any] = []
    numpy.seterrcall(lambda *what: heard.append(what))
    compiled = argand.compile(COMPUTE[name], backend="eager")
    for now in ("ignore", mode, "ignore"):
        numpy.seterr(all=now)
        for array in (numpy.ones(2), numpy.zeros(2)):
            found = []
            for fn in (COMPUTE[name], compiled):
                heard.clear()
                found.append((outcome(lambda fn=fn, array=array: fn(torch.ones(2), array)), list(heard)))  # type: ignore[misc]
            assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_errors_of_numpy_in_a_context() -> None:
    def fn(x: torch.Tensor, a: Any) -> Any:
        with numpy.errstate(all="raise"):
            return x * torch.as_tensor(1 / a)

    compiled = argand.compile(fn, backend="eager")
    for array in (numpy.ones(2), numpy.zeros(2), numpy.ones(2)):
        assert outcome(lambda a=array: compiled(torch.ones(2), a)) == outcome(lambda a=array: fn(torch.ones(2), a))  # type: ignore[misc]


TEXTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "array_repr": lambda x: x * len(numpy.array_repr(numpy.array([1 / 3]))),
    "array2string": lambda x: x * len(numpy.array2string(numpy.array([1 / 3]))),
    "str": lambda x: x * len(str(numpy.array([1 / 3]))),
    "repr of a list": lambda x: x * len(repr([numpy.array([1 / 3])])),
    "from outside": lambda x: x * len(f"{ARRAY}") + len("%s" % ARRAY) + len("{!r}".format(ARRAY)),  # noqa: UP031, UP032
    "options": lambda x: x * numpy.get_printoptions()["precision"],
    "buffer": lambda x: x * numpy.getbufsize(),
    "errors": lambda x: x * len(numpy.geterr()["divide"]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_and_answers_of_numpy(name: str) -> None:
    compiled = argand.compile(TEXTS[name], backend="eager")
    formatters = {"float": lambda value: "x"}
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: numpy.set_printoptions(precision=2),
        lambda: numpy.set_printoptions(formatter=formatters),
        lambda: formatters.update(float=lambda value: "xyz"),
        lambda: numpy.setbufsize(16384),
        lambda: numpy.seterr(divide="ignore"),
    ]
    for change in changes:
        change()
        assert torch.equal(compiled(torch.ones(2)), TEXTS[name](torch.ones(2)))


@pytest.mark.skipif(not hasattr(numpy, "_core"), reason="numpy 1 keeps its settings elsewhere")
def test_guards_look_where_numpy_keeps_its_settings() -> None:
    """Its functions, which make dictionaries of them, are not asked in each call."""
    x, asked = torch.ones(2), []
    compiled = argand.compile(TEXTS["array_repr"], backend="eager")
    compiled(x), compiled(x)
    sys.setprofile(lambda frame, event, _: asked.append(frame.f_code) if "numpy" in frame.f_code.co_filename else None)
    try:
        compiled(x)
    finally:
        sys.setprofile(None)
    assert asked == []
    with numpy.errstate(all="warn"), numpy.printoptions(precision=2):
        assert torch.equal(compiled(x), TEXTS["array_repr"](x))


@torch.autocast("cpu")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def without_dtype(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x @ x


AUTOCAST: dict[str, Callable[[torch.Tensor], Any]] = {
    "context without dtype": without_dtype,
    "decorator": lambda x: decorated(x),
    "answers": lambda x: (x * 2, torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
}


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_that_is_off(name: str) -> None:
    compiled = argand.compile(AUTOCAST[name], backend="eager")
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.set_autocast_cache_enabled(False),
    ]
    for change in changes:
        change()
        assert repr(compiled(torch.ones(2, 2))) == repr(AUTOCAST[name](torch.ones(2, 2)))


def test_autocast_within_the_function_compiles_once() -> None:
    backend = CountingBackend()

    def fn(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x, torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    compiled = argand.compile(fn, backend=backend)
    for _ in range(3):
        assert repr(compiled(torch.ones(2, 2))) == repr(fn(torch.ones(2, 2)))
    assert len(backend.graphs) == 1
