"""A graph that raises: what eager would have done until then is done, and the program's handlers run."""

from __future__ import annotations

import contextlib
import copy
import gc
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import CountingBackend, assert_same, collected

import argand
import sweeps

_X = torch.arange(6.0).reshape(2, 3)
_BAD = torch.tensor([0, 7])
_GOOD = torch.tensor([0, 1])


class Manager:
    """A manager of the program's own; swallows the error if asked."""

    def __init__(self, log: list[Any], swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, tb: Any) -> bool:
        self.log.append(("exit", kind, torch.is_grad_enabled()))
        return self.swallow


@contextlib.contextmanager
def noting(log: list[Any]) -> Iterator[None]:
    log.append("begin")
    try:
        yield
    finally:
        log.append("end")


@contextlib.contextmanager
def plain(log: list[Any]) -> Iterator[None]:
    log.append("begin")
    yield
    log.append("end")


# ---------------------------------------------------------------------- what raises


def first(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    return F.embedding(i, x) + 1


def middle(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = (x * 2).sin()
    z = y.index_select(0, i)
    return z + x.sum()


def _called(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return _deeper(x + 1, i)


def _deeper(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i].cos()


def in_callee(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    return _called(x.cos(), i) * 2


def after_list(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = x + 1
    log.append(y)
    z = y.gather(0, i.reshape(2, 1))
    log.append("later")
    return z


def local_write(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = x.clone()
    y[0] = 5
    y.add_(1)
    return y[i]


def random_numbers(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = F.dropout(x + 1, 0.5)
    log.append(1)
    return y[i] + torch.rand(3)


def in_loop(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    for step in range(3):
        log.append(step)
        x = x + x[i - 2 + step] if step else x * 2
    return x


RAISERS = (first, middle, in_callee, after_list, local_write, random_numbers, in_loop)


# ---------------------------------------------------------------------- what is around it


def bare(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    log.append("bare")
    return work(x, i, log)


def try_except(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    try:
        y = work(x, i, log)
    except (IndexError, RuntimeError) as e:
        log.append(type(e))
        y = x - 1
    else:
        log.append("else")
    return y + 1


def try_finally(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    try:
        return work(x, i, log) * 2
    finally:
        log.append("finally")


def try_both(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    try:
        try:
            y = work(x, i, log)
        finally:
            log.append("inner")
    except Exception as e:
        log.append((type(e), type(e.__context__)))
        raise ValueError("wrong") from e
    return y


def other_class(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    try:
        y = work(x, i, log)
    except KeyError:
        log.append("never")
        y = x
    return y


def user_manager(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with Manager(log):
        return work(x, i, log)


def swallowing(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    y = x
    with Manager(log, swallow=True):
        y = work(x, i, log)
        log.append("through")
    return y + 1


def generator_manager(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with noting(log):
        y = work(x, i, log)
    return y + 1


def plain_generator_manager(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with plain(log):
        y = work(x, i, log)
    return y + 1


def suppressed(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with contextlib.suppress(IndexError, RuntimeError), noting(log):
        return work(x, i, log)
    return x


def nested(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    for n in range(2):
        try:
            with Manager(log), torch.no_grad():
                y = work(x + n, i, log)
        except IndexError:
            log.append(("caught", n, torch.is_grad_enabled()))
            continue
        except RuntimeError:
            log.append(("runtime", n))
            y = x
        finally:
            log.append(n)
        x = y.sum() + x
    return x


def under_no_grad(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with torch.no_grad():
        log.append(torch.is_grad_enabled())
        y = work(x, i, log)
    return y


def under_autocast(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        return work(x, i, log) + y.sum()


@torch.no_grad()
def _decorated(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    return work(x, i, log)


def decorated(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    try:
        return _decorated(work, x, i, log)
    except (IndexError, RuntimeError):
        log.append(torch.is_grad_enabled())
        raise


def broken_before(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    y = x + 1
    log.append("before")
    argand.graph_break()
    try:
        y = work(y, i, log)
    finally:
        log.append("finally")
    return y


def broken_in_try(work: Any, x: Any, i: Any, log: list[Any]) -> Any:
    with torch.no_grad():
        try:
            y = x + 1
            log.append("before")
            argand.graph_break()
            y = work(y, i, log)
        except (IndexError, RuntimeError) as e:
            log.append((type(e), torch.is_grad_enabled()))
            y = x
    return y * 2, torch.is_grad_enabled()


AROUND = (
    bare, try_except, try_finally, try_both, other_class, user_manager, swallowing, generator_manager, plain_generator_manager,
    suppressed, nested, under_no_grad, under_autocast, decorated, broken_before, broken_in_try,
)  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else str(value)


def _run(fn: Callable[..., Any], work: Any, i: torch.Tensor, file: str = __file__) -> Any:
    torch.manual_seed(3)
    x, log = _X.clone(), ["start"]
    error = None
    try:
        result = fn(work, x, i, log)
    except Exception as e:
        error, result = e, (type(e), str(e), type(e.__context__), type(e.__cause__))
    found = _plain([result, log, x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.rand(2)])
    lines = [] if error is None else [
        (entry.lineno, entry.name) for entry in traceback.extract_tb(error.__traceback__) if entry.filename == file
    ][1:]  # fmt: skip
    torch.set_grad_enabled(True)
    return found, lines


@pytest.mark.parametrize(("around", "work"), sweeps.chessboard(AROUND, RAISERS), ids=lambda fn: fn.__name__)
def test_error_on_data_is_as_in_eager(around: Any, work: Any) -> None:
    compiled = argand.compile(around, backend="eager")
    for i in (_GOOD, _BAD, _GOOD, _BAD, _BAD, _BAD, _GOOD, _BAD):
        want, want_lines = _run(around, work, i)
        got, got_lines = _run(compiled, work, i)
        assert_same(want, got)
        assert got_lines == want_lines


# ---------------------------------------------------------------------- what must not be noticed


def _lookup(x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        return x.sin()[i] + 1
    except IndexError:
        return x


def test_try_around_an_operation_that_may_raise_is_one_graph() -> None:
    backend = CountingBackend()
    compiled = argand.compile(_lookup, backend=backend, fullgraph=True)
    for i in (_GOOD, _BAD, _GOOD, _BAD, _BAD, _BAD):
        assert_same(_lookup(_X, i), compiled(_X, i))
    assert len(backend.graphs) == 1


def test_graph_ends_before_an_operation_that_raised_several_times() -> None:
    backend = CountingBackend()
    compiled = argand.compile(_lookup, backend=backend)
    with collected("graph_raised") as seen:
        for i in (_GOOD, _BAD, _BAD, _BAD, _BAD, _GOOD):
            assert_same(_lookup(_X, i), compiled(_X, i))
    assert len(seen) == 3 and len(backend.graphs) == 3  # whole, then before and behind the operation


def test_running_again_compiles_nothing() -> None:
    def helper(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        try:
            return helper(x, i)
        except IndexError:
            return helper(x, i - i)

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend)
    with collected("recompiles", "capture_frame") as seen:
        compiled(_X, _GOOD)
        compiled(_X, _BAD)
        compiled(_X, _GOOD)
    assert len(backend.graphs) == 1 and not [e for e in seen if e.name == "recompiles"]


def test_first_error_is_nobodys_context() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
        try:
            return x[i]
        except IndexError as e:
            log.append((e.__context__, e.__cause__, sys.exception() is e))
            raise

    compiled = argand.compile(program, backend="eager")
    log: list[Any] = []
    compiled(_X, _GOOD, log)
    with pytest.raises(IndexError) as found:
        compiled(_X, _BAD, log)
    assert log == [(None, None, True)] and found.value.__context__ is None
    try:
        raise KeyError("outer")
    except KeyError as outer:
        with pytest.raises(IndexError) as found:
            compiled(_X, _BAD, log)
        assert found.value.__context__ is outer
    assert sys.exception() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, IndexError])
def test_interrupt_is_not_answered_by_running_again(error: type[BaseException]) -> None:
    runs = 0

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            nonlocal runs
            runs += 1
            signal.raise_signal(signal.SIGUSR1)

        return run

    def handler(*_: Any) -> None:
        raise error

    log: list[Any] = []

    def program(x: torch.Tensor) -> Any:
        log.append(1)
        return x[torch.tensor([0, 2])]

    compiled = argand.compile(program, backend=backend)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(error):
            compiled(_X)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert runs == 1 and log == []


def _failing(error: Exception) -> Any:
    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise error

        return run

    return backend


def test_compiled_code_that_raises_where_eager_does_not_is_reported() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x[i]

    compiled = argand.compile(program, backend=_failing(RuntimeError("out of luck")))
    with pytest.warns(UserWarning, match="raised RuntimeError: out of luck\nThe function ran eagerly instead"):
        assert_same(_X[_GOOD], compiled(_X, _GOOD))


def test_errors_that_only_the_backend_can_have_made_are_raised() -> None:
    def adding(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x + 1

    def indexing(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x[i]

    with pytest.raises(RuntimeError, match="broken"):
        argand.compile(adding, backend=_failing(RuntimeError("broken")))(_X, _GOOD)
    with pytest.raises(TypeError, match="broken"):
        argand.compile(indexing, backend=_failing(TypeError("broken")))(_X, _GOOD)


def test_memory_that_only_the_graph_lacks() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return x + 1
        except MemoryError:
            return x

    assert_same(_X + 1, argand.compile(program, backend=_failing(MemoryError()))(_X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("inlined", [False, True])
def test_main_memory_that_eager_lacks_too(backend: str, inlined: bool) -> None:
    """The allocator's error is a RuntimeError, which the program handles."""

    def program(x: torch.Tensor) -> Any:
        try:
            y = torch.zeros(1 << 45)
        except RuntimeError as error:
            return x + 3, "allocate" in str(error)
        return x + y.sum(), False

    def outer(x: torch.Tensor) -> Any:
        return program(x * 2)

    fn = outer if inlined else program
    compiled = argand.compile(fn, backend=backend)
    for _ in range(3):
        assert_same(fn(_X), compiled(_X))


def test_nothing_outlives_the_error() -> None:
    class Held:
        pass

    def program(x: torch.Tensor, i: torch.Tensor, held: Any) -> Any:
        y = x * 2
        try:
            return y[i]
        except IndexError:
            return None

    compiled = argand.compile(program, backend="eager")
    x, held = _X.clone(), Held()
    compiled(x, _GOOD, held)
    assert compiled(x, _BAD, held) is None
    seen = weakref.ref(x), weakref.ref(held)
    gc.disable()
    try:
        del x, held
        assert seen[0]() is None and seen[1]() is None
    finally:
        gc.enable()


def test_frame_with_cells_defaults_and_variable_arguments() -> None:
    def program(x: torch.Tensor, /, i: torch.Tensor, *more: int, scale: float = 2.0, **named: Any) -> Any:
        total = [0.0]

        def add(value: Any) -> Any:
            nonlocal x
            x = x + value
            total.append(scale)
            return x[i]

        try:
            return add(sum(more)), total, named
        except IndexError:
            return x, total, i, more, scale, named

    compiled = argand.compile(program, backend="eager")
    for i in (_GOOD, _BAD):
        want = program(_X, i, 1, 2, scale=3.0, key=4)
        assert_same(want, compiled(_X, i, 1, 2, scale=3.0, key=4))


def test_method_with_super_and_free_variables() -> None:
    note: list[str] = []

    class Base:
        def look(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            note.append("base")
            return x[i]

    class Derived(Base):
        def look(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            note.append("derived")
            try:
                return super().look(x, i)
            except IndexError:
                note.append("caught")
                return x

    compiled = argand.compile(Derived().look, backend="eager")
    for i in (_GOOD, _BAD):
        want = Derived().look(_X, i)
        noted = copy.copy(note)
        note.clear()
        assert_same(want, compiled(_X, i))
        assert note == noted
        note.clear()


def test_many_inputs_handed_over_by_the_guards() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(4, 3)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(12))
            self.calls = 0

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x = self.table(i)
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    compiled = argand.compile(model, backend="eager")
    compiled(_GOOD)
    with pytest.raises(IndexError):
        compiled(_BAD)
    assert model.calls == 2
    assert_same(model(_GOOD), compiled(_GOOD))


def test_error_inside_a_generator_of_the_program() -> None:
    def rows(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Iterator[torch.Tensor]:
        try:
            for n in range(3):
                yield x[i - 1 + n]
        finally:
            log.append("closed")

    def program(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
        found = []
        try:
            for row in rows(x, i, log):
                found.append(row.sum())
                log.append(len(found))
        except IndexError:
            log.append("caught")
        return found

    compiled = argand.compile(program, backend="eager")
    for start in (torch.tensor([0]), torch.tensor([-1]), torch.tensor([1])):
        want_log: list[Any] = []
        got_log: list[Any] = []
        assert_same(program(_X, start, want_log), compiled(_X, start, got_log))
        assert want_log == got_log


def test_native_backend_runs_again_too() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> Any:
        log.append("begin")
        try:
            return F.embedding(i, x.sin()) + 1
        except IndexError:
            log.append("caught")
            return x

    compiled = argand.compile(program, fullgraph=True)
    for i in (_GOOD, _BAD):
        want_log: list[Any] = []
        got_log: list[Any] = []
        assert_same(program(_X, i, want_log), compiled(_X, i, got_log))
        assert want_log == got_log
