"""Which compiled functions outlive the process: what `argand.compile` was asked for decides."""

from __future__ import annotations

from typing import Any

from argand.backends.in_parts.buckets import buckets_text, ddp_to_cut
from argand.config import config
from argand.debug.observe import JOINT


def stored_as(request: tuple[Any, ...]) -> str:
    """How outcomes of these settings are told from those of others; "" where they are of this process alone."""
    backend, fullgraph, dynamic, mode, options = request
    watched = JOINT.observer is not None or bool(config.repro_after)
    if backend != "native" or mode not in (None, *_MODES) or watched or not _OPTIONS.issuperset(options or ()):
        return ""
    ddp = ddp_to_cut()
    cut = "" if ddp is None else f", {buckets_text(ddp)}"
    asked = "".join(f", {name} {value!r}" for name, value in sorted((options or {}).items()))
    return f"fullgraph {fullgraph}, dynamic {dynamic}, mode {mode or 'default'}{asked}{cut}"


_MODES = ("default", "reduce-overhead")  # the others time products in each process
_OPTIONS = frozenset(("freezing", "quantization"))  # the others time whole graphs in each process
