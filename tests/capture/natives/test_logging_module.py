"""The standard `logging` module in captured code: loggers, their state and their levels are the program's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

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
