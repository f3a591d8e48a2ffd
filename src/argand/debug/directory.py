"""The debug directory: a folder for each run, in it one for every compiled graph, with everything that was made.

    argand_compile_debug/run_<time>-pid_<pid>/
        capture/debug.log  capture/<frame>_<recompile>[_<attempt>]/{graph,graph_code,bytecode,guards,...}
        native/aot_model___<n>_debug.log
        native/model__<n>_<forward|backward|inference>_<m>/{fx_graph_readable.py, output_code.py, ...}

Files appear whole or not at all. A disk that is full or not ours to write is one warning, never a failed run.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from argand import files
from argand._core.calls import locked
from argand.config import config
from argand.debug.logs import LinePrefix, caller, said
from argand.debug.messages import Message, graph_sizes, messages
from argand.events import Event, bus
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass

log = logging.getLogger("argand.debug")

CAPTURED = {
    "graph": "graph.txt",
    "graph_code": "graph_code.py",
    "bytecode": "bytecode.txt",
    "guards": "guards.txt",
    "graph_breaks": "graph_breaks.txt",
    "recompiles": "recompiles.txt",
    "compiled_autograd_graph": "compiled_autograd_graph.py",
}
"""Files of capture/<compile id>/, by the event that they hold."""

NATIVE = {
    "post_grad_graphs": ("fx_graph_transformed", "fx_graph_transformed.py"),
    "ir_pre_fusion": ("ir_pre_fusion", "ir_pre_fusion.txt"),
    "ir_post_fusion": ("ir_post_fusion", "ir_post_fusion.txt"),
    "output_code": ("output_code", "output_code.py"),
}
"""Files of native/model__.../: event -> (the setting in config.trace that switches it, file)."""

TRACED = (
    "aot_inference_graph",
    "aot_joint_graph",
    "aot_forward_graph",
    "aot_backward_graph",
    "aot_forward_graph_fw_metadata",
)
_LINES = (
    "span_begin", "span_end", "frame_raised", "fallback", "cache", "symbol", "schedule", "fusion", "restart",
)  # fmt: skip
NAMES = (*CAPTURED, *NATIVE, *TRACED, *_LINES, "fx_graph", "fused_graph")
_LINE_ARTIFACTS = ("schedule", "fusion", "perf_hints")


@dataclass(slots=True)
class Folder:
    """The folder of a graph that is being compiled.

    Arguments:
        times: [depth, stage, seconds] of the stages, as they began; seconds are set when they end.
        running: those that have not ended.
    """

    name: str
    path: Path
    times: list[list[Any]] = field(default_factory=list)
    running: list[list[Any]] = field(default_factory=list)


class DebugDirectory:
    """The sink that writes the debug directory of this process.

    Arguments:
        root: where run folders are made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pid = 0
        self.run: Path | None = None
        self.broken = False
        self.failed: set[str] = set()
        self.open: dict[int, list[Folder]] = {}
        self.formatter = LinePrefix()
        self.lock = fork_safe_lock()

    def __call__(self, event: Event) -> None:
        if self.broken:
            return
        try:
            self._take(event)
        except OSError as error:
            self.broken = True
            warnings.warn(f"argand: the debug directory {self.root} is not written any more: {error}", stacklevel=2)
        except Exception as error:  # one text could not be made: the run and the other files must not suffer
            if event.name not in self.failed:
                self.failed.add(event.name)
                warnings.warn(f"argand: the debug directory lacks what {event.name} says: {error!r}", stacklevel=2)

    @locked
    def _take(self, event: Event) -> None:
        if event.name == "span_begin" and event.data["span"] == "compile_graph":
            self._enter(event)
        folder = self._folder()
        self._lines(event, folder)
        if event.name in CAPTURED:
            self._captured(event)
        elif event.name in TRACED:
            self._traced(event)
        elif folder is not None:
            self._native(event, folder)

    # ---------------------------------------------------------------- places

    def run_folder(self) -> Path:
        """This process's folder; a forked child gets one of its own."""
        if self.run is None or self.pid != os.getpid():
            self.pid = os.getpid()
            now = time.time_ns()
            stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(now // 10**9))
            self.run = self.root / f"run_{stamp}_{now // 1000 % 10**6:06d}-pid_{self.pid}"
            self.open.clear()
        return self.run

    def _folder(self) -> Folder | None:
        """What this thread compiles."""
        folders = self.open.get(threading.get_ident())
        return folders[-1] if folders else None

    def _enter(self, event: Event) -> None:
        name = event.data["graph"]
        folder = Folder(name, self.run_folder() / "native" / name)
        folder.path.mkdir(parents=True, exist_ok=True)
        self.open.setdefault(threading.get_ident(), []).append(folder)

    # ---------------------------------------------------------------- files

    def _captured(self, event: Event) -> None:
        if event.compile_id is None or not config.trace.capture:
            return
        folder = self.run_folder() / "capture" / str(event.compile_id).replace("/", "_")
        write(folder / CAPTURED[event.name], event.text())
        if event.name == "graph":
            write(folder / "graph_sizes.txt", graph_sizes(event))

    def _traced(self, event: Event) -> None:
        path = self.run_folder() / "native" / f"aot_model___{max(event.data.get('model', 0), 0)}_debug.log"
        append(path, self._formatted(event, Message("argand.autograd", logging.DEBUG, event.text, event.name)))

    def _native(self, event: Event, folder: Folder) -> None:
        if event.name in NATIVE:
            setting, filename = NATIVE[event.name]
            if getattr(config.trace, setting):
                write(folder.path / filename, event.text())
        elif event.name == "fx_graph" and config.trace.fx_graph:
            self._fx_graph(event, folder)
        elif event.name == "fused_graph" and config.trace.graph_diagram:
            from argand.debug.diagram import diagram

            write(folder.path / "graph_diagram.svg", diagram(event.data["schedule"], folder.name))
        elif event.name in ("span_begin", "span_end"):
            self._span(event, folder)

    def _fx_graph(self, event: Event, folder: Folder) -> None:
        import torch

        from argand.debug import runnable

        program = event.data["program"]
        compile_id = "" if event.compile_id is None else f", compile [{event.compile_id}]"
        title = f"{folder.name}: the ATen graph that argand's native backend got{compile_id}"
        write(folder.path / "fx_graph_readable.py", runnable.readable_text(program, title))
        saved = runnable.constants_to_save(program, config.trace.save_data_limit)
        if saved:
            data = io.BytesIO()
            torch.save(saved, data)
            write(folder.path / runnable.DATA_FILE, data.getvalue())
        write(folder.path / "fx_graph_runnable.py", runnable.runnable_text(program, title, tuple(saved)))

    def _span(self, event: Event, folder: Folder) -> None:
        if event.name == "span_begin":
            folder.running.append([len(folder.running), event.data["span"], 0.0])
            folder.times.append(folder.running[-1])
            return
        folder.running.pop()[2] = event.data["seconds"]
        if event.data["span"] != "compile_graph":
            return
        if config.trace.compile_profile:
            write(folder.path / "compile_profile.txt", profile_text(folder))
            stages = [{"stage": name, "depth": depth, "seconds": seconds} for depth, name, seconds in folder.times]
            write(folder.path / "compile_profile.json", json.dumps({"graph": folder.name, "stages": stages}, indent=1))
        threads = self.open[threading.get_ident()]
        threads.pop()
        if not threads:
            del self.open[threading.get_ident()]
        log.warning("%s debug trace: %s", folder.name, folder.path)

    # ---------------------------------------------------------------- logs

    def _lines(self, event: Event, folder: Folder | None) -> None:
        """What is said in words goes into the debug.log of the graph, or of capture when none is being compiled."""
        place = self.run_folder() / "capture" if folder is None else folder.path
        for message in messages(event):
            if message.artifact and message.artifact not in _LINE_ARTIFACTS:
                continue
            if config.trace.debug_log or config.trace.info_log:
                text = self._formatted(event, message)
                if config.trace.debug_log:
                    append(place / "debug.log", text)
                if config.trace.info_log and message.level >= logging.INFO:
                    append(place / "info.log", text)

    def _formatted(self, event: Event, message: Message) -> str:
        filename, line, _ = caller()
        record = logging.LogRecord(message.logger, message.level, filename, line, "%s", (said(event, message),), None)
        record.created = event.time_ns / 1e9
        record.artifact, record.compile_id = message.artifact, event.compile_id
        return self.formatter.format(record) + "\n"


def profile_text(folder: Folder) -> str:
    """The time of every stage of one graph, each above what it is made of."""
    lines = [f"{folder.name}", f"{'stage':40s} {'seconds':>10s}"]
    for depth, name, seconds in folder.times:
        lines.append(f"{'  ' * depth + name:40s} {seconds:10.4f}")
    return "\n".join(lines) + "\n"


def write(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        OSError: the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as part:
        part.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def append(path: Path, text: str) -> None:
    """Add lines at the end of a file, in one write.

    Raises:
        OSError: the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(files.open_append(path, 0o666), "ab", buffering=0) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


# ---------------------------------------------------------------------- installation


class Installed:
    """The debug directory that is being written, if any."""

    def __init__(self) -> None:
        self.sink: DebugDirectory | None = None
        self.remove: Callable[[], None] | None = None

    def refresh(self) -> None:
        """Begin or end writing, as `config.trace.enabled` says."""
        root = _root() if config.trace.enabled else None
        if root == (self.sink.root if self.sink is not None else None):
            return
        if self.remove is not None:
            self.remove()
        self.sink = self.remove = None
        if root is not None:
            self.sink = DebugDirectory(root)
            self.remove = bus.subscribe(self.sink, NAMES)

    @property
    def path(self) -> Path | None:
        """The run folder, once something was written."""
        return None if self.sink is None else self.sink.run


def _root() -> Path:
    if config.debug_dir_root:
        return Path(config.debug_dir_root).absolute()
    return Path(config.base_dir or os.curdir).absolute() / "argand_compile_debug"


@contextlib.contextmanager
def writing(root: Path) -> Iterator[DebugDirectory]:
    """Write the debug directory of what is compiled inside (for tests and tools)."""
    sink = DebugDirectory(root)
    remove = bus.subscribe(sink, NAMES)
    try:
        yield sink
    finally:
        remove()


INSTALLED: Any = Installed()
