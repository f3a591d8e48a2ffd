"""Records of outcomes in the disk cache: found by the frame's code, tried in the frame at hand, kept after a capture.

One entry of the cache holds the records of one code object under equal settings, the newest first, for its guards say
which of them is for a call. It is read once in a process; what did not fit is tried again when nothing else fits.
"""

from __future__ import annotations

import hashlib
import marshal
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Final

import torch

from argand import events
from argand._core import _C
from argand.config import config
from argand.errors import ToolchainError
from argand.graph import compat
from argand.interruptions import let_pass
from argand.outcomes import fingerprints, records
from argand.outcomes.references import Unstorable
from argand.outcomes.resume_codes import PARTS, unlabelled
from argand.runtime import cache
from argand.runtime.environment import current_gpu, environment, replaced

FORMAT: Final = 6
_MOST: Final = 16
"""Records of one code object; the oldest go."""
_LARGEST: Final = 32 << 20


class Store:
    """The records of this process's code objects."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[CodeType], dict[str, list[records.Record]]]] = {}
        self.histories: dict[int, list[Any]] = {}
        self.collected: list[records.Record | str] | None = None
        """Where not None, gets the records instead of the cache, and why there is none."""
        self.kept = 0
        """How many outcomes this process has stored that other ranks of its job can load, too."""
        self.substituted = False
        """Capture was told to inline other functions than those that the program calls."""

    def clear(self) -> None:
        """Forget what was read (argand.reset)."""
        self._known.clear()
        self.histories.clear()
        PARTS.clear()

    def _of(self, code: CodeType) -> dict[str, list[records.Record]]:
        """The records of a code object, by key; code objects are compared by identity here."""
        number = id(code)
        entry = self._known.get(number)
        if entry is None or entry[0]() is not code:
            entry = self._known[number] = (weakref.ref(code, lambda _: self._known.pop(number, None)), {})
        return entry[1]

    def find(self, info: _C.FrameInfo, region: object, request: str, label: Callable[[], str]) -> _C.Answer:
        """What an earlier process answered for such a frame: an entry, or `_C.SKIP`; None where nothing fits.

        Arguments:
            region: the entry's key.
            request: what `argand.compile` was asked for, as text.
            label: the name of the entry's runs.
        """
        of_code, key = self._of(info.code), key_of(info, request)
        waiting = of_code.get(key)
        if waiting is None:
            waiting = of_code[key] = _read(key)
        for record in list(waiting):
            try:
                with events.span("load_outcome", "capture", function=info.code.co_name):
                    entry = records.installed(record, info, region, label())
            except Exception as error:  # a metaclass of the program's is asked, and may answer anything
                let_pass(error)
                text = str(error)
                events.emit("cache", "capture", text, outcome="mismatch", level="outcome", reason=text)
                continue
            if record in waiting:  # another thread may have taken it, too
                waiting.remove(record)
            records.tell_of_break(record, info)
            self.remember(info.code, region, record["history"])
            events.emit("cache", "capture", None, outcome="hit", level="outcome", function=info.code.co_name)
            return _C.SKIP if entry is None else entry
        return None

    def forget(self, info: _C.FrameInfo, request: str) -> None:
        """Read the records of the frame's code anew next time: another process may have stored more."""
        self._of(info.code).pop(key_of(info, request), None)

    def remember(self, code: CodeType, region: object, history: dict[str, Any]) -> None:
        """Tell captures of the code what is known of sizes and numbers in its calls."""
        if history:
            self.histories.setdefault(id(code), []).append((weakref.ref(code), region, history))

    def keep(self, info: _C.FrameInfo, request: str, captured: records.Captured) -> None:
        """Store what a capture made, where that can be told to another process."""
        if self.collected is not None:
            if not captured.graph:
                return
            try:
                self.collected.append(records.described(info, captured))
            except (Unstorable, ValueError, RecursionError) as error:
                self.collected.append(str(error))
            return
        try:
            record = records.described(info, captured)
            others = [other for other in _read(key_of(info, request)) if not _same(other, record)]
            packed = marshal.dumps((FORMAT, [record, *others][:_MOST]))
        except (Unstorable, ValueError, RecursionError, ToolchainError) as error:
            return self.leave_out(info, str(error))
        if len(packed) <= _LARGEST and (key := key_of(info, request)):
            cache.keep(key, packed, cache.OUTCOME)
            self.kept += not captured.of_rank
            events.emit("cache", "capture", None, outcome="stored", level="outcome", function=info.code.co_name)

    def leave_out(self, info: _C.FrameInfo, reason: str) -> None:
        """Say that what a capture answered is not stored."""
        if self.collected is not None:
            self.collected.append(reason)
            return
        name = info.code.co_name
        cache.count(cache.UNSTORED, reason)
        events.emit("cache", "capture", reason, outcome="bypass", level="outcome", reason=reason, function=name)


def _same(one: records.Record, other: records.Record) -> bool:
    parts = ("rows", "calls", "files", "functions", "codes", "classes", "registered", "operators")
    return all(one[part] == other[part] for part in parts)


def key_of(info: _C.FrameInfo, request: str) -> str:
    """Of the disk cache; "" where there is no compiler that works, or the code has constants that are no code's."""
    try:
        around = environment()
        parts = [
            f"format {FORMAT}, threads {torch.get_num_threads()}, deterministic {compat.deterministic()}",
            around,
            current_gpu(),
            request,
            f"{info.globals.get('__name__')}.{info.code.co_qualname}",
            fingerprints.of_code(info.code if PARTS.of(info.code) is None else unlabelled(info.code)),
            *[fingerprints.name_of(type(arg)) for arg in info.args],
            *[_held(cell) for cell in info.closure or ()],
        ]
    except (ToolchainError, ValueError):  # constants that are not plain, as code after a graph break has
        return ""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _held(cell: CellType) -> str:
    """A function that a decorator's holds: one code object stands in front of many."""
    try:
        held = cell.cell_contents
    except ValueError:
        return ""
    held = held.__func__ if type(held) is MethodType else held
    return fingerprints.of_code(held.__code__) if type(held) is FunctionType else ""


def _read(key: str) -> list[records.Record]:
    data = cache.find(key, cache.OUTCOME) if key else None
    if data is None:
        return []
    try:
        version, stored = marshal.loads(data)
        return list(stored) if version == FORMAT else []
    except (ValueError, EOFError, TypeError):  # written by another version of argand, or damaged before it was sealed
        return []


def wanted() -> bool:
    """Whether outcomes are loaded and stored: the settings say so, and nobody listens to what capture makes."""
    if not (config.cache and config.program_cache and config.outcome_cache):
        return False
    if config.verify_ir or config.repro_after or config.output_code or config.check_numerics or config.audit_rate > 0:
        return False
    return not (STORE.substituted or replaced() or events.bus.sinks or _listened_to())


_HARMLESS: Final = frozenset((
    "graph_breaks", "span_begin", "span_end", "restart", "frame_raised", "fallback", "cache", "schedule",
    "recompiles", "cache_size_limit", "cudagraphs", "remote_cache", "graph_raised", "suppressed",
    "capture_failed",
))  # fmt: skip
"""Events that a capture and a compile tell of what happens, not of what is made."""


def _listened_to() -> bool:
    named = events.bus.named
    names = named.keys() - _HARMLESS
    return any(not getattr(sink, "counts_only", False) for name in names for sink in named[name])


STORE: Final = Store()
