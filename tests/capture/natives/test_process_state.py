"""Native code about the process as a whole: subclasses of a class, pickles, warnings and their filters, threads."""

from __future__ import annotations

import collections
import contextvars
import gc
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings
from helpers import assert_same

X = torch.ones(2)


def whole(fn: Any) -> Any:
    return argand.compile(fn, backend="eager", fullgraph=True)


class Base:
    pass


class First(Base):
    pass


def test_subclasses_are_those_of_the_moment() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * len(Base.__subclasses__()), [cls.__name__ for cls in Base.__subclasses__()]

    compiled = whole(program)
    assert compiled(X)[1] == program(X)[1] == ["First"]

    class Second(Base):
        pass

    assert compiled(X)[1] == program(X)[1] == ["First", "Second"]
    del Second
    gc.collect()
    assert compiled(X)[1] == program(X)[1] == ["First"]


@pytest.mark.parametrize("value", [{}, {"upper": False, "n": (1, 2.5, None)}, ("a", "b"), [b"x", {"k": []}]], ids=repr)
def test_plain_values_are_pickled(value: Any) -> None:
    def program(x: torch.Tensor, **kwargs: Any) -> Any:
        return x + 1, pickle.dumps(kwargs), pickle.dumps(value)

    assert whole(program)(X, upper=True)[1:] == program(X, upper=True)[1:]
    assert whole(program)(X)[1:] == program(X)[1:]


def test_what_is_there_twice_is_pickled_by_identity() -> None:
    def program(x: torch.Tensor, a: list[str]) -> Any:
        return x + 1, pickle.dumps([a, a]), pickle.dumps([a, list(a)]), pickle.dumps(["b", "".join(a)])

    compiled = argand.compile(program, backend="eager")
    assert compiled(X, ["b"])[1:] == program(X, ["b"])[1:]


def test_filters_of_warnings_are_left_as_they_were() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x * 2

    with warnings.catch_warnings():
        before = list(warnings.filters)
        assert torch.equal(whole(program)(X), X * 2)
        assert warnings.filters == before


@pytest.mark.parametrize("record", [False, True])
def test_warnings_within_other_filters_go_where_they_go_in_eager(record: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=record) as caught:
            warnings.simplefilter("always" if record else "ignore")
            y = x * 2
            warnings.warn("inside", stacklevel=1)
        return y, [str(w.message) for w in caught or ()]

    compiled = argand.compile(program, backend="eager")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as outer:
            warnings.simplefilter("always")
            got = compiled(X)
        assert got[1] == program(X)[1]
        assert "inside" not in [str(w.message) for w in outer]


def test_filters_that_stay_changed() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        warnings.simplefilter("error", category=RuntimeWarning)
        return x * 2

    for fn in (program, argand.compile(program, backend="eager")):
        with warnings.catch_warnings():
            fn(X)
            with pytest.raises(RuntimeWarning):
                warnings.warn("now an error", RuntimeWarning, stacklevel=1)


def test_what_a_thread_has_is_read_in_that_thread() -> None:
    local = threading.local()
    local.factor = 2.0

    def program(x: torch.Tensor) -> Any:
        return x * getattr(local, "factor", 10.0), local.__dict__.get("name", "none"), hasattr(local, "name")

    compiled = whole(program)
    assert compiled(X)[1:] == ("none", False)
    local.factor, local.name = 3.0, "main"
    assert torch.equal(compiled(X)[0], X * 3) and compiled(X)[1:] == ("main", True)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(compiled(X)))
    thread.start()
    thread.join()
    assert torch.equal(seen[0][0], X * 10) and seen[0][1:] == ("none", False)
    assert torch.equal(compiled(X)[0], X * 3)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("name", ["keys", "values", "items"])
def test_views_from_before_show_the_dict_of_the_moment(kind: type, name: str) -> None:
    def run(compile_it: bool) -> list[Any]:
        held = kind(a=1.0, b=2.0)
        view = getattr(held, name)()

        def program(x: torch.Tensor, write: bool) -> Any:
            before = [len(view), list(view), [part for part in view], ("a" in view), view is view]
            if write:
                held["c"] = 5.0
            return x * len(view), before, list(view), repr(view), list(reversed(view))

        call = whole(program) if compile_it else program
        seen = []
        for write in (False, False, True):
            result = call(X, write)
            seen.append((result[0].tolist(), *result[1:], dict(held)))
        held.pop("a")
        seen.append(call(X, False)[1:])
        return seen

    assert run(True) == run(False)


def test_a_view_from_before_is_given_back_itself() -> None:
    view = {"a": 1}.keys()

    def program(x: torch.Tensor) -> Any:
        return x + len(view), view

    assert whole(program)(X)[1] is view


def test_any_object_may_be_asked_whether_it_is_a_tensor() -> None:
    thing, plain = Base(), [1]

    def program(x: torch.Tensor, y: Any) -> Any:
        return x + 1, [torch.is_tensor(v) for v in (x, y, thing, plain, Base)]

    compiled = whole(program)
    for y in (X, 2, thing, torch.nn.Parameter(X)):
        assert compiled(X, y)[1] == program(X, y)[1]


def test_a_module_of_fx_is_called() -> None:
    from torch import fx

    traced = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    compiled = whole(lambda x: traced(x) + 1)
    assert torch.equal(compiled(X), traced(X) + 1)
    traced.graph.eliminate_dead_code()
    for node in traced.graph.nodes:
        if node.target == "1":
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
            break
    traced.recompile()
    assert torch.equal(compiled(X), traced(X) + 1)


_collector: contextvars.ContextVar[Any] = contextvars.ContextVar("collector", default=None)


def test_variables_of_contexts_are_put_back_behind_a_graph_break() -> None:
    """As transformers' collector of outputs: set before the forward, reset in a `finally` behind it."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        argand.graph_break()
        _collector.get().append(len(y))
        return y * 2

    def program(x: torch.Tensor) -> Any:
        seen: list[int] = []
        token = _collector.set(seen)
        try:
            y = forward(x)
        finally:
            _collector.reset(token)
        return y - 1, seen, _collector.get()

    findings = Findings()
    with findings.listening():
        compiled = argand.compile(program, backend="eager")
        for _ in range(3):
            assert_same(program(torch.ones(3)), compiled(torch.ones(3)))
            assert _collector.get() is None
    assert not any("reset" in reason.context for reason in findings.breaks)
    assert not findings.recompiles


_depth: contextvars.ContextVar[Any] = contextvars.ContextVar("depth", default=1)
_name: contextvars.ContextVar[str] = contextvars.ContextVar("name")


def set_and_put_back(x: torch.Tensor) -> Any:
    token = _depth.set(_depth.get() + 1)
    try:
        y = x * _depth.get()
    finally:
        _depth.reset(token)
    return y * _depth.get(), token.old_value is contextvars.Token.MISSING, token.var is _depth


def set_for_good(x: torch.Tensor) -> Any:
    _depth.set([x + 1])
    return x * 2, _depth.get()[0], _name.get("nobody")


def nested(x: torch.Tensor) -> Any:
    outer = _name.set("outer")
    inner = _name.set("inner")
    names = [_name.get()]
    _name.reset(inner)
    names.append(_name.get())
    _name.reset(outer)
    try:
        _name.get()
    except LookupError:
        names.append("none")
    return x + len(names), names


def put_back_in_another_order(x: torch.Tensor) -> Any:
    outer, inner = _name.set("outer"), _name.set("inner")
    _name.reset(outer)
    first = _name.get("none")
    _name.reset(inner)
    return x + 1, first, _name.get("none")


def given_back_twice(x: torch.Tensor) -> Any:
    token = _name.set("once")
    _name.reset(token)
    try:
        _name.reset(token)
    except RuntimeError:
        return (x + 1,)
    return (x,)


def of_another_variable(x: torch.Tensor) -> Any:
    token = _name.set("here")
    try:
        _depth.reset(token)
    except ValueError:
        _name.reset(token)
    return x + 1, _name.get("none")


def kept_through_a_break(x: torch.Tensor) -> Any:
    token = _name.set("before")
    y = x + len(_name.get())
    argand.graph_break()
    seen = _name.get()
    _name.reset(token)
    return y * 2, seen, _name.get("none")


def set_in_a_loop_of_calls(x: torch.Tensor) -> Any:
    for i in range(3):
        x = set_and_put_back(x)[0] + i
    _name.set(f"after {i}")
    return x, _name.get()


def set_before_it_raises(x: torch.Tensor) -> Any:
    _name.set("left")
    if x.shape[0] == 2:
        raise ValueError(_name.get())


CONTEXTS = [
    set_and_put_back, set_for_good, nested, put_back_in_another_order, given_back_twice, of_another_variable,
    kept_through_a_break, set_in_a_loop_of_calls, set_before_it_raises,
]  # fmt: skip
WHOLE = (set_and_put_back, set_for_good, nested, set_in_a_loop_of_calls)


@pytest.mark.parametrize("program", CONTEXTS)
def test_variables_of_contexts_are_set_as_in_eager(program: Any) -> None:
    compiled = argand.compile(program, backend="eager", fullgraph=program in WHOLE)

    def twice(fn: Any) -> Any:
        found = []
        for _ in range(2):
            try:
                found.append(fn(torch.ones(2)))
            except ValueError as error:
                found.append(str(error))
            found.append([_depth.get(), _name.get("nobody")])
        return found

    want = contextvars.Context().run(twice, program)
    for _ in range(2):
        assert_same(want, contextvars.Context().run(twice, compiled))


def test_threads_have_variables_of_their_own() -> None:
    compiled = whole(set_for_good)
    compiled(X)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((_depth.get(), compiled(X)[2], _depth.get())))
    contextvars.Context().run(thread.start)
    thread.join()
    assert found[0][0] == 1 and torch.equal(found[0][2][0], X + 1)


def ignoring_all(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("unseen")
        warnings.warn("unseen", DeprecationWarning, stacklevel=2)
        x = x + 1
    warnings.warn("seen")
    return x * 2


def ignoring_a_kind(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.warn("unseen")
        warnings.warn("unseen", category=UserWarning)
        x = x + 1
    return x * 2


def ignoring_another_kind(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.warn("seen")
        x = x + 1
    return x * 2


def ignoring_what_says_so(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="un")
        warnings.warn("unseen")
        warnings.warn("seen")
    return x * 2


def always_again(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always")
        warnings.warn("seen")
    return x * 2


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.warn("kept")
        x = x + 1
        warns_of_its_caller("kept too")
    return x, [(str(each.message), each.category, each.lineno, each.filename, each.source) for each in log], len(log)


def warns_of_its_caller(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=2)


def recorded_by_whoever_called(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.warn("kept", stacklevel=2)
    return x * 2, [str(each.message) for each in log]


IGNORING = [
    ignoring_all, ignoring_a_kind, ignoring_another_kind, ignoring_what_says_so, always_again, recorded,
    recorded_by_whoever_called,
]  # fmt: skip
CAPTURED = (ignoring_all, ignoring_a_kind, recorded)


@pytest.mark.parametrize("program", IGNORING)
def test_warnings_under_filters_of_captured_code(program: Any) -> None:
    compiled = argand.compile(program, backend="eager", fullgraph=program in CAPTURED)
    for _ in range(2):
        texts = []
        for call in (program, compiled):
            with warnings.catch_warnings(record=True) as log:
                warnings.simplefilter("always")
                texts.append((call(X), [(str(each.message), each.category) for each in log]))
        assert_same(*texts)
