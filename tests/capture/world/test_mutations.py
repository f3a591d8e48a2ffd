"""What may change between two calls is seen: shares of the tables in mutations.py, tensor_properties.py, operator_calls.py.

Each of these files is a program that runs all of its table.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.capture.objects import operator_calls
from tests.capture.world import mutations, tensor_properties

import argand

_MUTATIONS = list(mutations.combinations())
_PROPERTIES = list(tensor_properties.combinations())
_OPERATIONS = list(operator_calls.combinations())


@pytest.mark.parametrize("start", range(8))
def test_changes_of_objects_are_seen(start: int) -> None:
    chosen = _MUTATIONS[start * 13 :: 1201]
    assert len(chosen) > 8
    assert [found for found in map(lambda c: mutations.differs(*c), chosen) if found] == []


@pytest.mark.parametrize("name", sorted(mutations.SUBJECTS))
def test_every_subject_with_its_first_and_last_change(name: str) -> None:
    made = mutations.SUBJECTS[name]()
    last = len(made.changes) - 1
    for place, read, change in (("argument", 0, 0), ("two levels", len(made.reads) - 1, last), ("global", 0, last)):
        assert mutations.differs(name, place, read, change) is None


def test_changes_of_objects_are_seen_by_the_native_backend() -> None:
    chosen = _MUTATIONS[7::2503]
    assert [found for found in (mutations.differs(*c, backend="native") for c in chosen) if found] == []


@pytest.mark.parametrize("start", range(4))
def test_properties_of_tensors_are_seen(start: int) -> None:
    chosen = _PROPERTIES[start * 29 :: 401]
    assert len(chosen) > 8
    assert [found for found in (tensor_properties.differs(*c) for c in chosen) if found] == []


def test_values_of_tensors_that_are_no_tensors() -> None:
    plain = [read for read in tensor_properties.reads() if "__" not in read and _is_plain(read)]
    assert len(plain) > 60 and "x.storage_type()" in plain
    assert [found for found in (tensor_properties.differs(read, "bool") for read in plain) if found] == []


def _is_plain(read: str) -> bool:
    """Whether eager answers with a value that is no tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = tensor_properties.answer(tensor_properties.program_of(read), torch.ones(2, 2))
    result = said[1][1] if isinstance(said, tuple) else (torch.Tensor,)  # of (tensor, what was read); or it raised
    return not (isinstance(result, tuple) and isinstance(result[0], type) and issubclass(result[0], torch.Tensor))


@pytest.mark.parametrize("read", tensor_properties._EXTRA[:12])
@pytest.mark.parametrize("variant", ["float64", "negative", "parameter", "inference"])
def test_kinds_of_tensors_are_told_apart(read: str, variant: str) -> None:
    assert tensor_properties.differs(read, variant) is None


@pytest.mark.parametrize("flag", ["is_inference", "is_conj", "is_neg"])
@pytest.mark.parametrize("variant", ["inference", "conjugate", "negative"])
def test_flags_of_inputs(flag: str, variant: str) -> None:
    for read in (f"x.{flag}()", f"torch.{flag}(x)"):
        assert tensor_properties.differs(read, variant) is None


@pytest.mark.parametrize(
    "read", ["x.resolve_conj()", "torch.resolve_neg(x)", "x.conj().resolve_conj()", "(x * 1).resolve_neg()"]
)
@pytest.mark.parametrize("variant", ["conjugate", "negative", "complex"])
def test_resolved_inputs_are_other_tensors(read: str, variant: str) -> None:
    assert tensor_properties.differs(read, variant) is None
    assert tensor_properties.differs(f"({read}) is x", variant) is None


def test_flags_of_results_break_where_an_input_has_the_bit() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 1
        return y.is_conj(), x.t().is_conj(), y

    x = torch.ones(2, 2, dtype=torch.complex64).conj()
    want, got = program(x), argand.compile(program, backend="eager")(x)
    assert want[:2] == got[:2] and torch.equal(want[2], got[2])


@pytest.mark.parametrize("start", range(8))
def test_operations_call_what_cpython_calls(start: int) -> None:
    """A share of the table; `python -m tests.capture.objects.operator_calls` runs all of it, `--only "OPERATION | OPERANDS"` one."""
    chosen = _OPERATIONS[start * 61 :: 503]
    assert len(chosen) > 30
    assert [found for found in (operator_calls.differs(*c) for c in chosen) if found] == []


# ---- the cases that led to the tables ------------------------------------------------------------------------------


class State(NamedTuple):
    step: int
    scale: float

    @property
    def double(self) -> float:
        return self.scale * 2


def answers_follow(program: Callable[..., Any], *calls: tuple[Any, ...], backend: str = "eager") -> None:
    compiled = argand.compile(program, backend=backend)
    for args in calls:
        assert repr(compiled(*args)) == repr(program(*args))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_fields_of_named_tuples(backend: str) -> None:
    x = torch.tensor([1.0, -2.0])

    def update(x: torch.Tensor, s: State) -> Any:
        return x * s.scale + s.step, s.double, s._replace(step=1).step

    answers_follow(update, (x, State(0, 1.0)), (x, State(5, 10.0)), (x, State(0, 1.0)), backend=backend)


def test_defaults_of_another_function_of_the_same_code() -> None:
    x = torch.tensor([1.0, -2.0])

    def make(*defaults: Any) -> Any:
        def f(a: Any, b: Any, c: Any) -> Any:
            return a * b - c

        f.__defaults__ = defaults
        return f

    def program(x: torch.Tensor, f: Any) -> Any:
        return f(x)

    answers_follow(program, (x, make(1.0, 2.0)), (x, make(1.0, 2.0, 3.0)), (x, make(4.0, 2.0)), (x, make(1.0, 2.0)))


def test_functions_made_by_captured_code_are_not_waited_for() -> None:
    def program(x: torch.Tensor) -> Any:
        def f(a: Any, k: float = 2.0) -> Any:
            return a * k

        f.__defaults__ = (3.0,)
        return f(x)

    backend = mutations_counted()
    compiled = argand.compile(program, backend=backend)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2) * 3)
    assert len(backend.graphs) == 1


def mutations_counted() -> Any:
    from tests.helpers import CountingBackend

    return CountingBackend()


def test_a_function_that_is_gone_keeps_nothing_alive() -> None:
    import gc
    import weakref

    class Big:
        pass

    def helper(a: Any, k: Any) -> Any:
        return a * 2

    big = Big()
    bound = types.FunctionType(helper.__code__, globals(), "f", (big,))
    seen = weakref.ref(big)
    space = {"f": bound}
    exec("def program(x): return f(x)", space)
    argand.compile(space["program"], backend="eager")(torch.ones(2))
    del bound, big
    space["f"] = functools.partial(helper, k=1)  # type: ignore[assignment]
    gc.collect()
    assert seen() is None
