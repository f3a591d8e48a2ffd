"""argand: a see-through compiler for PyTorch.

The public names resolve on first use, so that `import argand` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from argand import config, events, garbage_collection
from argand.version import __version__ as __version__

if TYPE_CHECKING:
    from argand import hosts
    from argand.ahead_of_time import load, save
    from argand.api import (
        CompileProfiler,
        allow_in_graph,
        answer_torch_compile,
        assume_constant_result,
        compile,
        compile_times,
        counters,
        disable,
        error_on_graph_break,
        explain,
        graph_break,
        is_compiling,
        list_backends,
        mark_dynamic,
        mark_static,
        mark_step_begin,
        metrics,
        register_backend,
        reset,
        same,
        set_logs,
        set_stance,
    )
    from argand.capture.driver.substitutes import substitute_in_graph
    from argand.engine.backward_calls import compiled_autograd

__all__ = [
    "CompileProfiler", "allow_in_graph", "answer_torch_compile", "assume_constant_result", "compile", "compile_times",
    "compiled_autograd", "config", "counters", "disable", "error_on_graph_break", "explain", "graph_break", "hosts",
    "is_compiling", "list_backends", "load", "mark_dynamic", "mark_static", "mark_step_begin", "metrics",
    "register_backend", "reset", "same", "save", "set_logs", "set_stance", "substitute_in_graph",
]  # fmt: skip


def _install_sinks() -> None:
    """Called when compiling begins for the first time: whoever wants to listen subscribes (see their sinks.py)."""
    for_debug = importlib.import_module("argand.debug.sinks").refresh
    for_report = importlib.import_module("argand.report.sinks").refresh

    def refresh() -> None:
        for_debug()
        for_report()

    refresh()
    events.bus.prepare = refresh


events.bus.prepare = _install_sinks


def _follow_compiled_autograd() -> None:
    name = "argand.engine.backward_calls"
    if config.config.compiled_autograd or name in sys.modules:
        importlib.import_module(name).follow_config()


config.config.follow("compiled_autograd", _follow_compiled_autograd)


_LATE = {
    "compiled_autograd": "argand.engine.backward_calls",
    "load": "argand.ahead_of_time",
    "save": "argand.ahead_of_time",
    "substitute_in_graph": "argand.capture.driver.substitutes",
}
"""Names whose module imports what captures, or what few programs need."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        importlib.import_module("argand._core.imports").wait_at_forks()
        if config.config.compiled_autograd:  # by the environment, perhaps
            _follow_compiled_autograd()
        with garbage_collection.paused():
            if name == "hosts":  # a module
                return importlib.import_module("argand.hosts")
            return getattr(importlib.import_module(_LATE.get(name, "argand.api")), name)
    raise AttributeError(f"module 'argand' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
