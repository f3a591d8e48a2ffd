"""The standard `logging` module: loggers are found without its lock, and what is said is said at every call."""

from __future__ import annotations

import logging
import operator

from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a, module_of
from argand.capture.objects import polyfills
from argand.capture.objects.call_protocol.native_handlers import Args, add_functions, function
from argand.capture.record.tensor_attributes import any_held_back
from argand.capture.world.pending_effects import changed_objects
from argand.errors import graph_break


def _log(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Logging happens at each call, if its level is enabled."""
    logger = args[0]
    name = fn.__name__
    level = {"warn": logging.WARNING, "exception": logging.ERROR, "fatal": logging.CRITICAL}.get(name)
    if level is None:
        level = args[1] if name == "log" and len(args) > 1 else logging.getLevelName(name.upper())
    if not is_a(logger, logging.Logger) or not is_a(level, int):
        return NotImplemented
    if interp.polyfill(polyfills.logger_enabled, logger, level):
        if name == "exception" or kwargs.get("exc_info") or kwargs.get("stack_info") or not _is_settled(interp, logger):
            raise graph_break(
                kind="log message",
                context=name,
                explanation="What is said depends on the exception that is handled, on the stack, or on what captured "
                "code has written.",
            )
        interp.say(fn, args, kwargs)
    return None


def _is_settled(interp: Interpreter, logger: logging.Logger) -> bool:
    """Whether who is told what cannot depend on what is held back."""
    if not any_held_back(interp.state):
        return True
    with interp.suspended():
        objects = _audience(logger)
    if objects is None:
        return False
    changed = changed_objects(interp.state)
    return not any({id(one), id(vars(one)), *map(id, vars(one).values())} & changed for one in objects)


def _audience(logger: logging.Logger) -> list[object] | None:
    """The objects that decide what becomes of a message; None where code of the program's own does."""
    loggers = [logger]
    while loggers[-1].propagate and loggers[-1].parent is not None:
        loggers.append(loggers[-1].parent)
    handlers = [handler for one in loggers for handler in one.handlers]
    filters = [each for one in (*loggers, *handlers) for each in one.filters]
    formatters = [handler.formatter for handler in handlers if handler.formatter is not None]
    objects: list[object] = [*loggers, *handlers, *filters, *formatters]
    ours = logging.getLogRecordFactory() is logging.LogRecord
    ours = ours and all(module_of(type(one)).partition(".")[0] == logging.__name__ for one in objects)
    return [logging, logging.Logger.manager, *objects] if ours else None


add_functions(
    _log, logging.Logger.debug, logging.Logger.info, logging.Logger.warning, logging.Logger.warn, logging.Logger.error,
    logging.Logger.exception, logging.Logger.critical, logging.Logger.log,
)  # fmt: skip


@function(logging.Logger.isEnabledFor)
def _enabled(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Without the logger's cache, which is filled under a lock."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    return interp.polyfill(polyfills.logger_enabled, *args)


@function(logging.getLogger)
def _get_logger(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A logger that exists is read where it is kept. One that does not is made now, which the program can't tell from
    having had it; unless its class is one of the program's own, whose code is interpreted (as far as the lock)."""
    name = args[0] if args else kwargs.get("name")
    if type(name) is not str or name in ("", logging.root.name):
        return NotImplemented
    manager = logging.Logger.manager
    if not is_a(manager.loggerDict.get(name), logging.Logger):
        if (manager.loggerClass or interp.call(logging.getLoggerClass, [], {})) is not logging.Logger:
            return NotImplemented
        with interp.suspended():
            interp.native(manager.getLogger, name)
    known = interp.getattr(interp.getattr(logging.Logger, "manager"), "loggerDict")
    return interp.call(operator.getitem, [known, name], {})
