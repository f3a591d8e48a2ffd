"""The standard `logging` module: loggers are found without its lock, and what is said is said at every call."""

from __future__ import annotations

import logging
import operator

from argand.capture.facts.handlers import Function, Kwargs
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.objects import polyfills
from argand.capture.objects.call_protocol.native_handlers import Args, add_functions, function


def _log(interp: Interpreter, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Logging happens at each call, if its level is enabled."""
    logger = args[0]
    name = fn.__name__
    level = {"warn": logging.WARNING, "exception": logging.ERROR, "fatal": logging.CRITICAL}.get(name)
    if level is None:
        level = args[1] if name == "log" and len(args) > 1 else logging.getLevelName(name.upper())
    if is_a(logger, logging.Logger) and is_a(level, int) and interp.polyfill(polyfills.logger_enabled, logger, level):
        interp.replay(fn, args, kwargs)
    return None


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
