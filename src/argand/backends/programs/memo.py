"""Compiled graphs of this process, by what they compute; and which warnings were given."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from argand import events
from argand.runtime.host import HostCall


class Memo:
    """Compiled graphs of this process, by what they compute; and which warnings were given."""

    def __init__(self) -> None:
        self._calls: dict[str, HostCall] = {}
        self._warned = False

    def get_or_make(self, key: str | None, make: Callable[[], HostCall]) -> HostCall:
        """What `make` returned the first time that `key` was asked for; None is never shared."""
        if key is None:
            return make()
        call = self._calls.get(key)
        if call is not None:
            events.emit("cache", "backend", None, outcome="hit", key=key, level="graph")
        else:
            call = self._calls.setdefault(key, make())
        return call

    def forget(self, call: HostCall) -> None:
        """`call` does not work: whoever asks for its program has it made again."""
        for key in [key for key, known in list(self._calls.items()) if known is call]:
            self._calls.pop(key, None)

    def warn_once(self, text: str) -> None:
        """Warn that no kernels can be built, the first time: the next graph will hardly fare better."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"argand: {text}\nGraphs run with eager's kernels.", stacklevel=2)

    def clear(self) -> None:
        """Forget everything (argand.reset)."""
        self._calls.clear()
        self._warned = False


memo = Memo()
