"""The standard `logging` and `warnings` in captured code: loggers and their levels are the program's, and what is said is
said as eager says it, whatever is written before and after."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import argand


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("argand_test.outer.inner")
    outer = logging.getLogger("argand_test")
    outer.propagate = False
    handler = Kept()
    outer.addHandler(handler)
    yield made
    outer.removeHandler(handler)
    outer.setLevel(logging.NOTSET)
    made.filters.clear()


def test_a_found_logger_is_the_programs_own(logger: logging.Logger) -> None:
    """Regression: a logger from getLogger() was taken for an object of the captured code, and changed at capture too."""

    def add(name: str) -> logging.Logger:
        found = logging.getLogger(name)
        found.filters.append(logging.Filter("x"))
        return found

    compiled = argand.compile(add, backend="eager", fullgraph=True)
    for calls in (1, 2):
        assert compiled(logger.name) is logger and len(logger.filters) == calls
    before = len(logging.getLogger().filters)
    assert argand.compile(lambda: logging.getLogger().filters.append(logging.Filter()), backend="eager")() is None
    assert len(logging.getLogger().filters) == before + 1
    logging.getLogger().filters.pop()


def test_levels_may_change_after_compiling(logger: logging.Logger) -> None:
    """Regression: whether a message is said was decided once, when the function was compiled."""

    def speak(x: torch.Tensor) -> torch.Tensor:
        logger.info("hello")
        return x + 1 if logger.isEnabledFor(logging.DEBUG) else x - 1

    compiled = argand.compile(speak, backend="eager", fullgraph=True)
    outer = logging.getLogger("argand_test")
    handler = next(handler for handler in outer.handlers if isinstance(handler, Kept))
    for level in (logging.WARNING, logging.DEBUG, logging.INFO, logging.ERROR):
        outer.setLevel(level)
        said = []
        for function in (speak, compiled):
            handler.said.clear()
            said.append((function(torch.ones(1)).item(), list(handler.said)))
        assert said[0] == said[1], level
    outer.setLevel(logging.DEBUG)
    logging.disable(logging.CRITICAL)
    try:
        assert compiled(torch.ones(1)).item() == speak(torch.ones(1)).item() == 0.0
    finally:
        logging.disable(logging.NOTSET)


def test_a_logger_class_of_the_program_runs(logger: logging.Logger) -> None:
    """Regression: CPython's test_logging lost what the __init__ of a logger class did."""
    made: list[str] = []

    class Mine(logging.getLoggerClass()):  # type: ignore[misc]
        def __init__(self, name: str, level: int = 0) -> None:
            super().__init__(name, level)
            made.append(name)

    def get(name: str) -> logging.Logger:
        logging.setLoggerClass(Mine)
        return logging.getLogger(name)

    before = logging.getLoggerClass()
    try:
        found = argand.compile(get, backend="eager")("argand_test.mine")
    finally:
        logging.setLoggerClass(before)
        logging.Logger.manager.loggerDict.pop("argand_test.mine", None)
    assert type(found) is Mine and made == ["argand_test.mine"]


LOGGER = logging.getLogger("argand_test.order")
STATE: dict[str, int] = {"n": 0}
ITEMS: list[int] = []
SAID: list[Any] = []


class Telling(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler of the program's, which says what it reads elsewhere too."""

    def emit(self, record: logging.LogRecord) -> None:
        SAID.append((record.getMessage(), record.exc_info is not None, STATE["n"], list(ITEMS)))


@pytest.fixture
def heard() -> Iterator[None]:
    LOGGER.propagate = False
    yield
    LOGGER.handlers.clear()


def level_after(x: torch.Tensor) -> Any:
    LOGGER.info("one")
    LOGGER.setLevel(logging.ERROR)
    LOGGER.info("two")
    return x * 2


def level_before(x: torch.Tensor) -> Any:
    LOGGER.setLevel(logging.ERROR)
    LOGGER.info("one")
    LOGGER.setLevel(logging.INFO)
    LOGGER.info("two")
    return x * 2


def off_after(x: torch.Tensor) -> Any:
    LOGGER.info("one")
    LOGGER.disabled = True
    return x + 1


def handler_changed(x: torch.Tensor) -> Any:
    LOGGER.handlers[0].setLevel(logging.ERROR)
    LOGGER.info("one")
    LOGGER.handlers[0].setLevel(logging.NOTSET)
    LOGGER.info("two")
    return x + 1


def handler_removed(x: torch.Tensor) -> Any:
    handler = LOGGER.handlers[0]
    LOGGER.info("one")
    LOGGER.removeHandler(handler)
    LOGGER.info("two")
    LOGGER.addHandler(handler)
    LOGGER.info("three")
    return x + 1


def list_that_grows(x: torch.Tensor) -> Any:
    ITEMS.append(1)
    LOGGER.info("%s", ITEMS)
    ITEMS.append(2)
    return x + 1


def dict_of_the_functions(x: torch.Tensor) -> Any:
    values = {"a": 1}
    LOGGER.info("%s", values)
    values["a"] = 2
    return x + 1


def tuple_with_a_list(x: torch.Tensor) -> Any:
    inner = [1]
    LOGGER.info("%s", (inner, 2))
    inner.append(2)
    return x + 1


def tensor(x: torch.Tensor) -> Any:
    y = x * 2
    LOGGER.info("%s", y)
    return y + 1


def handler_that_reads(x: torch.Tensor) -> Any:
    LOGGER.info("one")
    STATE["n"] += 1
    LOGGER.info("two")
    STATE["n"] += 1
    LOGGER.info("three")
    return x + STATE["n"]


def exception(x: torch.Tensor) -> Any:
    try:
        raise ValueError("bad")
    except ValueError:
        LOGGER.exception("one")
        LOGGER.info("two", exc_info=True)
    return x + 1


def filters_after(x: torch.Tensor) -> Any:
    warnings.warn("one")
    warnings.simplefilter("ignore")
    warnings.warn("two")
    return x + 1


def filters_inserted(x: torch.Tensor) -> Any:
    warnings.warn("one")
    warnings.filters.insert(0, ("ignore", None, Warning, None, 0))  # type: ignore[attr-defined]
    return x + 1


def filters_put_back(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="un")
        argand.graph_break()
        warnings.warn("unseen")
        warnings.warn("seen")
    return x * 2


def filters_that_raise(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        argand.graph_break()
        try:
            warnings.warn("raised")
        except UserWarning:
            x = x + 5
    warnings.warn("given")
    return x


def shown_by_the_program(x: torch.Tensor) -> Any:
    STATE["n"] += 1
    warnings.warn("one")
    STATE["n"] += 1
    return x + 1


PROGRAMS = (
    level_after, level_before, off_after, handler_changed, handler_removed, list_that_grows, dict_of_the_functions,
    tuple_with_a_list, tensor, handler_that_reads, exception, filters_after, filters_inserted, filters_put_back,
    filters_that_raise, shown_by_the_program,
)  # fmt: skip


def outcome(function: Callable[[torch.Tensor], Any]) -> list[Any]:
    """What two calls give, say and leave."""
    outcomes: list[Any] = []
    LOGGER.handlers[:] = [Telling()]
    for _ in range(2):
        STATE["n"] = 0
        for kept in (SAID, ITEMS):
            kept.clear()
        LOGGER.setLevel(logging.INFO)
        LOGGER.disabled = False
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            if function.__name__ == shown_by_the_program.__name__:
                warnings.showwarning = lambda message, *rest: SAID.append((str(message), STATE["n"]))
            result = function(torch.ones(2)).tolist()
            left = len(warnings.filters)  # type: ignore[attr-defined]
        texts = [str(one.message) for one in log]
        outcomes.append(
            (result, repr(SAID), texts, left, LOGGER.level, LOGGER.disabled, len(LOGGER.handlers), dict(STATE))
        )
    return outcomes


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_said_is_eagers(program: Any, heard: None) -> None:
    assert outcome(argand.compile(program, backend="eager")) == outcome(program)


def test_plain_messages_break_no_graph(heard: None) -> None:
    """With handlers of the standard library alone, writes of other objects do not matter."""
    LOGGER.handlers[:] = [logging.NullHandler()]
    LOGGER.setLevel(logging.INFO)

    def speak(x: torch.Tensor) -> torch.Tensor:
        LOGGER.info("shape %s, %d", tuple(x.shape), 3)
        STATE["n"] += 1
        LOGGER.warning("again")
        return x * 2

    with warnings.catch_warnings(record=True):
        assert argand.compile(speak, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_list_that_is_told_of_warnings_has_them_at_once() -> None:
    def after(x: torch.Tensor) -> Any:
        warnings.warn("one")
        first = len(log)
        warnings.warn("two")
        return x + 1, first, len(log)

    def before(x: torch.Tensor) -> Any:
        first = len(log)
        warnings.warn("one")
        return x + 1, first, len(log)

    for program in (after, before):
        counts = []
        for function in (program, argand.compile(program, backend="eager")):
            for _ in range(2):
                with warnings.catch_warnings(record=True) as log:
                    warnings.simplefilter("always")
                    counts.append(function(torch.ones(2))[1:])
        assert len(set(counts)) == 1


LIBRARY = """
import logging, warnings
logger = logging.getLogger("argand_test.library")

def tell(x, level=1):
    warnings.warn("careful", DeprecationWarning, level)
    logger.warning("%s %d", "often", 4, stacklevel=level)
    return x * 2
"""


class Written(logging.Handler):
    """What listens is no part of a captured program: it may do what would break a graph."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with self.path.open("a") as file:
            file.write(f"{record.getMessage()} {record.pathname} {record.lineno} {record.funcName}\n")


@pytest.mark.parametrize("action", ["always", "default"])
def test_messages_name_the_lines_that_give_them(action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: lines of inlined functions were given as the captured function's first one."""
    library: dict[str, Any] = {"__name__": "library"}
    exec(compile(LIBRARY, "/elsewhere/library.py", "exec"), library)
    handler = Written(tmp_path / "log")
    monkeypatch.setattr(library["logger"], "handlers", [handler])
    shown: list[tuple[str, str, int]] = []
    monkeypatch.setattr(
        warnings, "showwarning", lambda message, kind, file, line, *_: shown.append((str(message), file, line))
    )

    def program(x: torch.Tensor) -> torch.Tensor:
        library["tell"](x)
        library["tell"](x, 2)
        library["logger"].error("here")
        return library["tell"](x, 3)  # type: ignore[no-any-return]

    def outcome(function: Any) -> object:
        library.pop("__warningregistry__", None)
        globals().pop("__warningregistry__", None)
        handler.path.write_text("")
        shown.clear()
        for _ in range(2):
            function(torch.ones(2))
        return handler.path.read_text(), list(shown)

    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert outcome(argand.compile(program, backend="eager", fullgraph=True)) == outcome(program)
