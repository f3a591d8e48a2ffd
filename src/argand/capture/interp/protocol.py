"""What the interpreter needs of the capture state; `CaptureState` is the real one, `NullState` a plain one."""

from __future__ import annotations

import builtins
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol

from argand.capture.facts.sources import Source


class State(Protocol):
    """See `capture.state.CaptureState`, whose methods these are."""

    code: CodeType
    globals: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[CellType, ...]
    args: tuple[Any, ...]
    config: Any
    guards: Any
    outer: dict[int, Any]
    shadows: dict[int, Any]
    shadow_origin: dict[int, Any]
    extra_effects: list[Any]
    graph: Any

    def load_source(self, source: Source, value: Any) -> Any: ...
    def source_of(self, obj: Any) -> Source | None: ...
    def guard(self, source: Source | None, kind: str, *args: Any, label: str | None = None) -> None: ...
    def shadow(self, obj: Any) -> Any: ...
    def refuse_written_names(self, container: Any) -> None: ...
    def deep_resolve(self, obj: Any) -> Any: ...
    def item(self, container: Any, key: Any) -> Any: ...
    def read_overlay(self, obj: Any, name: str) -> Any: ...
    def write_overlay(self, obj: Any, name: str, value: Any) -> None: ...
    def delete_overlay(self, obj: Any, name: str) -> None: ...
    def overlay_names(self, obj: Any) -> dict[str, Any]: ...
    def write_global(self, globals_: dict[str, Any], name: str, value: Any) -> None: ...
    def write_cell(self, cell: CellType, value: Any) -> None: ...
    def torch_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def note_local(self, obj: Any) -> None: ...
    def position(self) -> Any: ...


class NullState:
    """A state for which nothing is outer: the interpreter runs a function as CPython would.

    Arguments:
        fn: the function to run as the root.
        args: its raw arguments in the order of its local variables (see `FrameInfo.args`).
    """

    concrete = True
    tensor_types: tuple[type, ...] = ()

    def __init__(self, fn: FunctionType, args: tuple[Any, ...] = ()) -> None:
        self.code = fn.__code__
        self.globals = fn.__globals__
        self.builtins: dict[str, Any] = getattr(fn, "__builtins__", vars(builtins))
        self.closure: tuple[CellType, ...] = fn.__closure__ or ()
        self.args = args
        self.config: Any = None
        self.outer: dict[int, Any] = {}
        self.shadows: dict[int, Any] = {}
        self.shadow_origin: dict[int, Any] = {}
        self.guards: Any = None
        self.extra_effects: list[Any] = []
