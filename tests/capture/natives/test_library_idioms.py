"""What libraries do around their tensors: partials with classes of their own, digests, contexts, signatures, numpy tables."""

from __future__ import annotations

import contextvars
import functools
import hashlib
import inspect
import re
import threading
import typing
from typing import Any

import numpy as np
import pytest
import torch

import argand
from helpers import assert_same

X = torch.ones(2, 2)
P = typing.ParamSpec("P")
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE")
WITH_DEFAULT: contextvars.ContextVar[float] = contextvars.ContextVar("WITH_DEFAULT", default=3.0)


def whole(fn: Any) -> Any:
    return argand.compile(fn, backend="eager", fullgraph=True)


class Plain(functools.partial):  # type: ignore[type-arg]
    pass


class Doubling(functools.partial):  # type: ignore[type-arg]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


class Hiding(functools.partial):  # type: ignore[type-arg]
    @property
    def func(self) -> Any:  # type: ignore[override]
        return torch.sub


class Bound(functools.partial):  # type: ignore[type-arg]
    __slots__ = ("func",)

    def __init__(self, func: Any) -> None:
        self.func = func


@pytest.mark.parametrize("cls", [Plain, Doubling])
def test_partials_of_a_class_of_ones_own(cls: Any) -> None:
    outer = cls(torch.mul, other=torch.tensor(3.0))

    def program(x: torch.Tensor) -> Any:
        made = cls(torch.add, other=2.0)
        return outer(x), made(x), made.keywords

    compiled = whole(program)
    assert torch.equal(compiled(X)[0], program(X)[0]) and torch.equal(compiled(X)[1], program(X)[1])
    outer.keywords["other"] = torch.tensor(5.0)
    assert torch.equal(compiled(X)[0], program(X)[0])


def test_a_partial_that_hides_what_it_calls() -> None:
    hiding, bound = Hiding(torch.mul, other=3.0), Bound(torch.mul)
    program = lambda x: (hiding(x) + 1, bound(x, 2.0), bound.func, hiding.func is torch.sub)
    compiled = whole(program)
    assert torch.equal(compiled(X)[0], X * 3 + 1) and torch.equal(compiled(X)[1], X * 2)
    assert compiled(X)[2:] == program(X)[2:] == (torch.mul, True)
    bound.func = torch.add
    assert compiled(X)[2] is torch.add and torch.equal(compiled(X)[1], X * 2)


def test_parameters_of_signatures_in_annotations() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        def inner(*args: P.args, **kwargs: P.kwargs) -> Any:
            return args[0] * kwargs["k"]

        return inner(x, k=2.0)

    assert torch.equal(whole(program)(X), X * 2)


def _passed_on(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Stepped:
    @_passed_on
    @_passed_on
    def step(self, closure: Any = None) -> None:
        pass


@_passed_on
def _two(a: int, *, b: int) -> None:
    pass


def test_the_signature_of_what_decorators_wrap() -> None:
    stepped = Stepped()

    def f(x: torch.Tensor, function: Any) -> Any:
        return (
            x * len(inspect.signature(function).parameters),
            str(inspect.signature(stepped.step)),
            "b" in str(inspect.getfullargspec(function)),
        )

    run = argand.compile(f, backend="eager", fullgraph=True)
    for function in (_two, _two, _passed_on(Stepped.step), _passed_on(_two)):
        assert_same(f(X, function), run(X, function))
    changed = _passed_on(_two)
    for wrapped in (_two, Stepped.step, _two):
        changed.__wrapped__ = wrapped
        assert_same(f(X, changed), run(X, changed))


def test_the_signature_of_a_module() -> None:
    class Own(torch.nn.Linear):
        def __call__(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
            return super().__call__(x) * scale

    for module in (torch.nn.Linear(2, 2), Own(2, 2)):
        program = lambda x, module=module: (
            x * len(inspect.signature(module).parameters),
            str(inspect.signature(module)),
        )
        assert whole(program)(X)[1] == program(X)[1]


def test_variables_of_contexts_are_read_at_each_call() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * VARIABLE.get(2.0), WITH_DEFAULT.get()

    compiled = whole(program)
    assert torch.equal(compiled(X)[0], X * 2) and compiled(X)[1] == 3.0
    token = VARIABLE.set(4.0)
    assert torch.equal(compiled(X)[0], X * 4)
    VARIABLE.reset(token)
    assert torch.equal(compiled(X)[0], X * 2)

    def elsewhere() -> Any:
        WITH_DEFAULT.set(7.0)
        return compiled(X)[1]

    assert contextvars.copy_context().run(elsewhere) == 7.0 and compiled(X)[1] == 3.0


def test_a_variable_without_a_value() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return x * VARIABLE.get()
        except LookupError:
            return x - 1

    assert torch.equal(argand.compile(program, backend="eager")(X), X - 1)


@pytest.mark.parametrize("name", ["md5", "sha1", "sha256", "sha512"])
def test_digests(name: str) -> None:
    def program(x: torch.Tensor, text: str) -> Any:
        digest = getattr(hashlib, name)(text.encode())
        digest.update(b"more")
        return x * 2, digest.hexdigest(), digest.copy().digest()

    compiled = argand.compile(program, backend="eager")
    for text in ("a", "b", "a"):
        assert compiled(X, text)[1:] == program(X, text)[1:]


def test_a_digest_from_outside_is_not_captured() -> None:
    digest = hashlib.sha256(b"start")

    def program(x: torch.Tensor) -> Any:
        digest.update(b"more")
        return x * 2, digest.hexdigest()

    compiled = argand.compile(program, backend="eager")
    first, second = compiled(X)[1], compiled(X)[1]
    fresh = hashlib.sha256(b"startmore")
    assert first == fresh.hexdigest() != second


def test_tables_of_numpy_as_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        points, weights = np.polynomial.legendre.leggauss(3)
        return x * float((np.arange(3) / 3).sum()), points.tolist(), weights[0].item(), np.shape(x), np.ndim(x)

    assert whole(program)(X)[1:] == program(X)[1:]


def test_constants_that_a_cached_function_makes() -> None:
    calls = []

    @functools.lru_cache(maxsize=None)
    def constants(values: tuple[float, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(value, dtype=dtype) * 2 for value in values)

    @functools.lru_cache(maxsize=None)
    def noise(n: int) -> torch.Tensor:
        calls.append(n) if n > 5 else None
        return torch.rand(n)

    def program(x: torch.Tensor) -> Any:
        return x * constants((1.0, 2.0), x.dtype)[1], constants((1.0, 2.0), x.dtype)[0]

    compiled = whole(program)
    assert torch.equal(compiled(X)[0], X * 4) and compiled(X)[1] is constants((1.0, 2.0), torch.float32)[0]
    constants((1.0, 2.0), torch.float32)[1].fill_(9.0)
    assert torch.equal(compiled(X)[0], X * 9)
    constants.cache_clear()
    assert torch.equal(compiled(X)[0], X * 4)
    seen = []
    for call in (lambda x: x * noise(2), argand.compile(lambda x: x * noise(2), backend="eager")):
        noise.cache_clear()
        torch.manual_seed(0)
        seen.append((call(X), call(X), torch.rand(1)))
    assert all(torch.equal(a, b) for a, b in zip(*seen))


class Recorder(threading.local):
    """tensordict's: a namespace for each thread, with defaults that `__init__` gives in each."""

    def __init__(self) -> None:
        self.marked, self.by = False, 3


class AcceptedKeys:
    action = "action"


class Keyed:
    """A key by its identity and that of what it holds, as tensordict's parameters are."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __hash__(self) -> int:
        return hash((id(self), id(self.__dict__.get("held"))))

    def __eq__(self, other: object) -> bool:
        return self is other


def test_namespaces_of_threads_under_a_class_of_their_own() -> None:
    state = Recorder()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x - 1 if state.marked else x * state.by

    compiled = whole(program)
    for by, marked in ((3, False), (3, True), (5, False)):
        state.by, state.marked = by, marked
        assert torch.equal(compiled(X), program(X))
    seen: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: seen.append(compiled(X)))
    thread.start()
    thread.join()
    assert torch.equal(seen[0], X * 3)


def test_names_in_the_namespace_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x + 1 if "action" in AcceptedKeys.__dict__ else x
        return x * 2 if "reward" in vars(AcceptedKeys) else x

    compiled = whole(program)
    assert torch.equal(compiled(X), X + 1)
    monkeypatch.setattr(AcceptedKeys, "reward", "reward", raising=False)
    assert torch.equal(compiled(X), (X + 1) * 2)
    monkeypatch.delattr(AcceptedKeys, "action")
    assert torch.equal(compiled(X), X * 2)


def test_keys_that_look_into_their_own_namespace() -> None:
    keyed, other = Keyed([1]), Keyed([2])

    def program(x: torch.Tensor) -> torch.Tensor:
        seen = {keyed}
        if other not in seen:
            seen.add(other)
        return x * len(seen) if keyed in seen else x

    assert torch.equal(whole(program)(X), X * 2)


VOWELS = re.compile("[aeiou]")


def expressions(x: torch.Tensor, count: int) -> Any:
    pattern = re.compile("a(b+)", re.I)
    found = pattern.match("A" + "b" * count)
    assert found is not None
    try:
        re.compile("(")
    except re.error as error:
        refused = str(error)
    same = re.compile(VOWELS) is VOWELS, re.compile("a(b+)", re.I) is pattern
    texts = re.sub("b", "c" * count, "abc"), re.split(r"\.", "a.b"), re.findall(rb"a", b"aba"), VOWELS.sub("", "text")
    return x * len(found.group(1)), same, texts, refused


def test_regular_expressions() -> None:
    """Python 3.13 keeps what it compiled in tables whose keys capture could not compare."""
    compiled = whole(expressions)
    for count in (1, 3):
        assert_same(compiled(X, count), expressions(X, count))


class Version(str):
    """A text that compares, and counts, in its own way: as `torch.__version__` does."""

    def __ge__(self, other: Any) -> bool:
        return re.search(r"\d+", self).group() >= str(other)  # type: ignore[union-attr]

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: Any) -> str:
        return "9"


def test_texts_of_a_class_are_searched_past_its_methods() -> None:
    own = Version("v2.13")

    def program(x: torch.Tensor) -> Any:
        parts = re.findall(r"\d", own), re.split(r"\.", own), re.match("v", own).end()  # type: ignore[union-attr]
        places = "ab v2.13".find(own), "v2.13".startswith(own), b"ab".hex(), "v2.13 v2.13".split(own)
        return x * 2 if torch.__version__ >= "2.0" and own >= "2" else x, parts, places, own.upper()

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert_same(compiled(x), program(x))
    own = Version("v1.13")
    assert_same(compiled(x), program(x))


def test_functions_of_pybind() -> None:
    """What they are bound to, a record of their overloads, is no object of the program's."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if torch._C._is_tracing() or torch._C._functorch.is_batchedtensor(x) else 2)

    assert_same(argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2)), program(torch.ones(2)))
