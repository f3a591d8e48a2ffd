"""Which compiled functions outlive the process: what `argand.compile` was asked for decides."""

from __future__ import annotations

from typing import Any

from argand.config import config
from argand.debug.observe import JOINT
from argand.hosts import active_ddp


def stored_as(request: tuple[Any, ...]) -> str:
    """How outcomes of these settings are told from those of others; "" where they are of this process alone."""
    backend, fullgraph, dynamic, mode, options = request
    watched = JOINT.observer is not None or (config.optimize_ddp and active_ddp() is not None)
    if backend != "native" or mode not in (None, *_MODES) or options or watched:
        return ""
    return f"fullgraph {fullgraph}, dynamic {dynamic}, mode {mode or 'default'}"


_MODES = ("default", "reduce-overhead")  # the others time products in each process
