"""Installs the sinks that environment and settings ask for, when compiling begins for the first time.

`events.bus.prepare` calls `refresh` at the start of each compile; what nobody asked for is not even imported.
"""

from __future__ import annotations

import sys

from argand._core import _C
from argand.config import config
from argand.debug.logs import LOGS
from argand.locks import fork_safe_lock

_lock = fork_safe_lock()


def refresh() -> None:
    """Bring the sinks up to date with the settings."""
    _C.call_locked(_lock, _refresh)


def _refresh() -> None:
    LOGS.refresh()
    if config.suppress_errors:
        from argand.debug.suppression import SUPPRESSED

        SUPPRESSED.install()
    if config.replay_record_enabled:
        from argand.debug.frame_records.record import RECORDS

        RECORDS.install()
    if config.check_ranks:
        from argand.debug.ranks import RANKS

        RANKS.install()
    if config.trace.enabled or "argand.debug.directory" in sys.modules:
        from argand.debug.directory import INSTALLED

        INSTALLED.refresh()
