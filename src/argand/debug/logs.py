"""Logs: `ARGAND_LOGS` and `argand.set_logs`, with the grammar and the names of `TORCH_LOGS`, over Python's logging.

Settings choose levels of loggers ("argand", "argand.capture", ...) and artifacts; a sink turns events into records of
these loggers. Nothing is subscribed that nobody asked for.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import field
from importlib.util import find_spec
from types import FrameType
from typing import Any, TextIO

from argand import files
from argand.config import config
from argand.debug.log_names import ALIASES, ARTIFACTS, COMPONENTS, ROOT, component, help_text
from argand.debug.messages import Message, messages
from argand.errors import ConfigError
from argand.events import Event, bus
from argand.quick_dataclasses import dataclass

_ITEM = re.compile(r"([+-]?)([\w./]+)")
_HELP = ("help", "+help")
_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR, "": logging.INFO}
_ALWAYS = (
    "frame_raised", "fallback", "cache", "symbol", "restart", "cache_size_limit", "toolchain_missing", "span_begin",
    "span_end",
)  # fmt: skip
_BY_LEVEL = {logging.INFO: ("graph", "bytecode", "guards")}
"""Artifacts that `config.log_level` switches on, from this level down."""

LOGS_ENV = ("ARGAND_LOGS", "TORCH_LOGS")
OUT_ENV = ("ARGAND_LOGS_OUT", "TORCH_LOGS_OUT")
FILTER_ENV = ("ARGAND_LOGS_TRACE_ID_FILTER", "TORCH_LOGS_TRACE_ID_FILTER")
"""Compile ids, as `[0/0],[1/0]`: nothing else is logged."""
FORMAT_ENV = ("ARGAND_LOGS_FORMAT", "TORCH_LOGS_FORMAT")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What was asked for.

    Arguments:
        levels: logger name -> level.
        artifacts: names of artifacts that are on.
        off: names of artifacts that were switched off by name.
    """

    levels: dict[str, int] = field(default_factory=dict)
    artifacts: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()


def first_env(names: Iterable[str]) -> str | None:
    """The first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def parse(text: str, *, foreign: bool = False) -> LogSettings:
    """Settings from the grammar of `ARGAND_LOGS`: names with `+` (debug) or `-` (errors only), separated by commas.

    Arguments:
        foreign: the text is TORCH_LOGS's: names of modules outside argand are torch's to show, and passed over.

    Raises:
        ConfigError: an unknown name; `help` and `+help`, whose answer is the error's text.
    """
    text = re.sub(r"\s+", "", text)
    if text in _HELP:
        raise ConfigError(help_text(everything=text == "+help"))
    levels: dict[str, int] = {}
    artifacts: set[str] = set()
    off: set[str] = set()
    for item in filter(None, text.split(",")):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _unknown(item)
        sign, name = match.groups()
        part = component(name)
        if part is not None:
            levels.update(dict.fromkeys(part.loggers, _LEVELS[sign]))
        elif name in ARTIFACTS:
            (off if sign == "-" else artifacts).add(name)
        elif (logger := _module(name)) is not None:
            levels[logger] = _LEVELS[sign]
        elif not (foreign and "." in name):
            raise _unknown(name)
    return LogSettings(levels, frozenset(artifacts), frozenset(off))


def asked_by_environment() -> LogSettings:
    """What `ARGAND_LOGS` asks for, or else `TORCH_LOGS`. `help` prints the names and ends the program.

    Raises:
        ConfigError: an unknown name.
    """
    text = os.environ.get("ARGAND_LOGS")
    if not text:
        return parse(os.environ.get("TORCH_LOGS", ""), foreign=True)
    if text.strip() in _HELP:
        print(help_text(everything=text.strip() == "+help"))
        raise SystemExit(0)
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"ARGAND_LOGS={text!r}: {error.cause}", remedy=error.remedy) from None


def _module(name: str) -> str | None:
    """The logger of a module of argand's; None where there is no such module."""
    if not name.startswith(ROOT + "."):
        return None
    try:
        return name if find_spec(name) is not None else None
    except (ImportError, ValueError):
        return None


def _unknown(name: str) -> ConfigError:
    parts = sorted([*COMPONENTS, *ALIASES])
    artifacts = sorted(name for name, artifact in ARTIFACTS.items() if artifact.events)
    close = difflib.get_close_matches(name.lstrip("+-"), [*parts, *artifacts], n=3)
    said = f"did you mean {', '.join(close)}? " if close else ""
    return ConfigError(
        f"unknown log name {name!r}",
        remedy=f"{said}known components: {', '.join(parts)}; known artifacts: {', '.join(artifacts)}; "
        "ARGAND_LOGS=help describes them",
    )


def set_logs(*, modules: dict[str, int | bool] | None = None, **names: int | bool | None) -> None:
    """Choose what is logged; each call replaces what the one before chose, and one without arguments resets.

    Arguments:
        modules: module of argand's -> level.
        names: components with a level (`dynamo=logging.DEBUG`), artifacts with True or False (`graph_breaks=True`):
            the names of `ARGAND_LOGS`. None leaves a name out.

    The environment variable wins: where `ARGAND_LOGS` is set, a call changes nothing, and says so.

    Raises:
        ConfigError: an unknown name, or a value of the wrong kind.
    """
    levels: dict[str, int] = {}
    artifacts: set[str] = set()
    off: set[str] = set()
    for name, value in {**(modules or {}), **names}.items():
        part = component(name)
        if value is None and (part or name in ARTIFACTS):
            continue
        if name in ARTIFACTS:
            if not isinstance(value, bool):
                raise ConfigError(
                    f"set_logs({name}=...) takes True or False, not {value!r}", remedy="see help(set_logs)"
                )
            (artifacts if value else off).add(name)
            continue
        loggers = part.loggers if part is not None else (_module(name),)
        if loggers == (None,):
            raise _unknown(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(
                f"set_logs({name}=...) takes a level such as logging.INFO, not {value!r}", remedy="import logging"
            )
        levels.update({logger: value for logger in loggers if logger is not None})
    if first_env(LOGS_ENV) is not None:
        warnings.warn("argand.set_logs changes nothing: ARGAND_LOGS (or TORCH_LOGS) is set", stacklevel=2)
        return
    LOGS.choose(LogSettings(levels, frozenset(artifacts), frozenset(off)))


# ---------------------------------------------------------------------- the sink


class Logs:
    """The sink of logs, and what of Python's logging it has changed."""

    def __init__(self) -> None:
        self.chosen: LogSettings | None = None
        self.handlers: list[logging.Handler] = []
        self.levels: dict[str, int] = {}
        self.artifacts: frozenset[str] = frozenset()
        self.subscribed: frozenset[str] = frozenset()
        self.key: Any = None
        self.told: set[str] = set()
        self.only = frozenset(filter(None, (first_env(FILTER_ENV) or "").replace(" ", "").split(",")))
        self.remove: Callable[[], None] | None = None

    def choose(self, settings: LogSettings | None) -> None:
        """Apply settings; None goes back to what the environment says."""
        self.chosen = settings
        self.key = None
        self.refresh()

    def refresh(self) -> None:
        """Take over what changed in the settings; a few comparisons when nothing did."""
        names = ("argand", *self.levels)
        key = (config.log_level, config.debug, tuple([logging.getLogger(name).level for name in names]))
        if key == self.key:
            return
        self._apply(self._settings())
        self.key = (
            config.log_level,
            config.debug,
            tuple([logging.getLogger(name).level for name in ("argand", *self.levels)]),
        )

    def _settings(self) -> LogSettings:
        if self.chosen is None:
            self.chosen = asked_by_environment()
        settings = self.chosen
        levels, artifacts = dict(settings.levels), set(settings.artifacts)
        for level, names in _BY_LEVEL.items():
            if config.log_level <= level:
                artifacts.update(names)
        if config.debug:
            levels = {**dict.fromkeys(COMPONENTS["inductor"].loggers, logging.DEBUG), **levels}
        return LogSettings(levels, frozenset(artifacts - settings.off), settings.off)

    def _apply(self, settings: LogSettings) -> None:
        root = logging.getLogger(ROOT)
        wanted = {ROOT: int(config.log_level), **settings.levels}
        for name in set(self.levels) - set(wanted):
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in wanted.items():
            logger = logging.getLogger(name)
            if logger.level in (logging.NOTSET, self.levels.get(name)) or name in settings.levels:
                logger.setLevel(level)  # else the program has set it, and means it
        self.levels = wanted
        self.artifacts = frozenset(n for n in ARTIFACTS if _is_on(n, settings))
        shown = bool(settings.levels or settings.artifacts or config.log_level != logging.WARNING)
        if shown and not self.handlers:
            self.handlers = _handlers()
            for handler in self.handlers:
                root.addHandler(handler)
            root.propagate = False
        elif not shown and self.handlers:
            self._remove_handlers()
        self._subscribe()

    def _remove_handlers(self) -> None:
        root = logging.getLogger(ROOT)
        for handler in self.handlers:
            root.removeHandler(handler)
            handler.close()
        self.handlers, root.propagate = [], True

    def _subscribe(self) -> None:
        names = frozenset(self._names())
        if names != self.subscribed:
            if self.remove is not None:
                self.remove()
            self.remove = bus.subscribe(self, names) if names else None
            self.subscribed = names

    def _names(self) -> Iterable[str]:
        """Events that anything would be said of."""
        for name in self.artifacts:
            yield from ARTIFACTS[name].events
        loggers = [logging.getLogger(name) for name in self.levels]
        if any(logger.isEnabledFor(logging.INFO) for logger in loggers):
            yield from _ALWAYS
        if logging.getLogger("argand.capture").isEnabledFor(logging.WARNING):
            yield "graph_breaks"

    def __call__(self, event: Event) -> None:
        if self.only and f"[{event.compile_id}]" not in self.only:
            return
        for message in messages(event):
            if message.artifact:
                if message.artifact in self.artifacts:
                    self._log(event, message, logging.getLogger(f"{message.logger}.__{message.artifact}"))
                continue
            logger = logging.getLogger(message.logger)
            if logger.isEnabledFor(message.level) and not self._repeats(event):
                self._log(event, message, logger)

    def _repeats(self, event: Event) -> bool:
        """A graph break in one line is said once for each place, and not beside the long text of it."""
        if event.name != "graph_breaks":
            return False
        if any(getattr(getattr(sink, "__self__", None), "shows_breaks", False) for sink in bus.sinks):
            return True  # somebody is about to report them
        reason = event.data["reason"]
        place = f"{reason.where[-1].filename}:{reason.where[-1].lineno}" if reason.where else event.data["function"]
        told = f"{place} {reason.headline}"  # whichever frames meet it: callers, parts that go on after it
        if "graph_breaks" in self.artifacts or told in self.told:
            return True
        self.told.add(told)
        return False

    def _log(self, event: Event, message: Message, logger: logging.Logger) -> None:
        filename, line, function = caller()
        text = said(event, message)
        record = logger.makeRecord(
            logger.name, message.level, filename, line, text, (), None, function,
            {"artifact": message.artifact, "compile_id": event.compile_id},
        )  # fmt: skip
        record.created = event.time_ns / 1e9
        record.msecs = event.time_ns // 1_000_000 % 1000
        logger.handle(record)

    def reset(self) -> None:
        """Back to the state before the first compile (for tests)."""
        if self.remove is not None:
            self.remove()
        self._remove_handlers()
        for name in self.levels:
            logging.getLogger(name).setLevel(logging.NOTSET)
        self.__dict__.update(Logs().__dict__)


def _is_on(name: str, settings: LogSettings) -> bool:
    artifact = ARTIFACTS[name]
    if name in settings.off or not artifact.events:
        return False
    return name in settings.artifacts or (
        not artifact.asked and logging.getLogger(artifact.logger).isEnabledFor(logging.DEBUG)
    )


def said(event: Event, message: Message) -> str:
    """The text of a message; that a text cannot be made is said in its place, as nothing may depend on it."""
    try:
        return message.text()
    except Exception as error:
        return f"<the text of {event.name} could not be made: {error!r}>"


def caller() -> tuple[str, int, str]:
    """Where the event was emitted that is being handled: file, line, function."""
    frame: FrameType | None = sys._getframe(1)
    here = os.path.dirname(__file__)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(here) and not filename.endswith(("events.py", "contextlib.py")):
            return filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return "?", 0, "?"


# ---------------------------------------------------------------------- handlers


def _handlers() -> list[logging.Handler]:
    formatter = make_formatter()
    stream = _Stream()
    stream.setFormatter(formatter)
    handlers: list[logging.Handler] = [stream]
    path = first_env(OUT_ENV)
    if path is not None:
        try:
            file = _File(path)
        except OSError as error:
            warnings.warn(f"argand: logs are not written to {path}: {error}", stacklevel=2)
        else:
            file.setFormatter(formatter)
            handlers.append(file)
    return handlers


def make_formatter() -> logging.Formatter:
    """`ARGAND_LOGS_FORMAT`'s, or that of TORCH_LOGS: every line with its level, time, process, place and compile id."""
    chosen = first_env(FORMAT_ENV)
    if chosen is None:
        return LinePrefix()
    return logging.Formatter(logging.BASIC_FORMAT if chosen in ("short", "basic") else chosen)


class LinePrefix(logging.Formatter):
    """`V1121 13:33:12.089000 1954 argand/capture/driver/frame.py:314] [0/0] [__graph_code] text`, on each line."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join([f"{self.prefix(record)} {line}" for line in self.text(record).split("\n")])

    def text(self, record: logging.LogRecord) -> str:
        """Message and exception."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text

    def prefix(self, record: logging.LogRecord) -> str:
        """What stands before each line."""
        letter = {"DEBUG": "V"}.get(record.levelname, record.levelname[:1])
        time = f"{self.formatTime(record, '%m%d %H:%M:%S')}.{int(record.created * 1e6) % 1_000_000:06d}"
        compile_id, artifact = getattr(record, "compile_id", None), getattr(record, "artifact", "")
        tags = (f" [{compile_id}]" if compile_id is not None else "") + (f" [__{artifact}]" if artifact else "")
        return f"{_rank()}{letter}{time} {record.process} {_relative(record.pathname)}:{record.lineno}]{tags}"


def _rank() -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return f"[rank{distributed.get_rank()}]:"
    return ""


def _relative(path: str) -> str:
    """The path from the package's folder on."""
    parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
    return path.removeprefix(parent)


_COLOURS = {logging.DEBUG: "\x1b[2m", logging.INFO: "\x1b[36m", logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}


class _Quiet:
    """A handler that says once that it cannot write, instead of a traceback for each record."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.failed:
            self.failed = True
            warnings.warn(f"argand: logs cannot be written: {sys.exception()!r}", stacklevel=2)


class _Stream(_Quiet, logging.StreamHandler[TextIO]):
    """Standard error, whatever it is at the time; prefixes are coloured on a terminal."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        formatter = self.formatter
        if not isinstance(formatter, LinePrefix) or not _coloured(self.stream):
            return super().format(record)
        colour = _COLOURS.get(record.levelno, "")
        head = f"{colour}{formatter.prefix(record)}\x1b[0m "
        return "\n".join([head + line for line in formatter.text(record).split("\n")])


class _File(_Quiet, logging.Handler):
    """The file of `ARGAND_LOGS_OUT`. A record is one write at its end, so that processes can share it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = files.open_append(path, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
            while data:
                data = data[os.write(self.file, data) :]
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        super().close()
        if self.file >= 0:
            file, self.file = self.file, -1
            os.close(file)


def _coloured(stream: Any) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


LOGS = Logs()
