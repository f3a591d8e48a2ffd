"""Installs the sinks that environment and settings ask for, when compiling begins for the first time.

`events.bus.prepare` calls `refresh` at the start of each compile; what nobody asked for is not even imported.
"""

from __future__ import annotations

import sys
import threading

from argand.config import config
from argand.debug.logs import LOGS

_lock = threading.RLock()


def refresh() -> None:
    """Bring the sinks up to date with the settings."""
    with _lock:
        LOGS.refresh()
        if config.suppress_errors:
            from argand.debug.suppressed import SUPPRESSED

            SUPPRESSED.install()
        if config.replay_record_enabled:
            from argand.debug.record import RECORDS

            RECORDS.install()
        if config.trace.enabled or "argand.debug.directory" in sys.modules:
            from argand.debug.directory import INSTALLED

            INSTALLED.refresh()
