"""Programs that earlier processes compiled: from the key of an ATen program to its loaded callable.

In: the text that `graph_key` makes. Out: the callable of the host module that an equal program became, so that passes,
lowering, scheduling and code generation are left out, and not even imported. An entry of the disk cache is that
module's text, and the events that told of its making; its kernels have entries of their own. The entry's key is a
digest of the program's text and of everything else that the outcome depends on (`environment`). What may depend on more
than that is not stored: programs with objects that the text does not describe, with operations that are not torch's
own, or made while a lowering rule or an expression was replaced. Who listens to what stages make (`STAGES`) gets it:
nothing is loaded then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from argand import events
from argand.backends.programs.graph_key import undescribed
from argand.backends.targets import devices_in
from argand.config import config
from argand.errors import ToolchainError
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram
from argand.runtime import cache, toolchain
from argand.runtime.host import HostCall, load_module

STAGES = frozenset(
    [
        "fx_graph",
        "post_grad_graphs",
        "aten_graph_after_pass",
        "ir_pre_fusion",
        "ir_post_fusion",
        "fusion",
        "compute_dependencies",
        "provenance",
        "provenance_lines",
        "fused_graph",
        "kernel_code",
        "output_code",
        "autotuning",
    ]
)
"""Events between a program and its callable that tell of intermediate results."""
RETOLD = ("schedule", "fallback")
"""Events that are stored with a program, and emitted again."""


@dataclass(slots=True)
class Entry:
    """One program's place in the cache.

    Arguments:
        key: of the disk cache; "" where nothing is loaded or stored.
    """

    key: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def load(self, program: AtenProgram) -> HostCall | None:
        """The callable that was stored; None when there is none, or it cannot be loaded."""
        data = cache.find(self.key, cache.PROGRAM) if self.key else None
        if data is None:
            return None
        if program.model < 0:
            program.model = events.bus.number("model")
        number = events.bus.number("compiled graph")
        name = f"model__{program.model}_{program.kind}_{number}"
        try:
            stored = json.loads(data)
            text, told = stored["text"], stored["events"]
            with events.span(
                "compile_graph", "backend", graph=name, kind=program.kind, number=program.model, stored=True
            ):
                with events.span("load", "runtime"):
                    call: HostCall = load_module(text, {}, graph=f"graph_{number}").call
                for event in told:
                    events.emit(event["name"], event["stage"], event["text"], **event["data"])
        except Exception as error:  # whatever is wrong with the entry, the program can be compiled
            events.emit("cache", "backend", f"{self.key}: {error}; compiled anew", outcome="corrupt", key=self.key)
            return None
        return call

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While a program is compiled: what is told of it is stored with it."""
        if not self.key:
            yield
            return
        thread = threading.get_ident()

        def sink(event: events.Event) -> None:
            if threading.get_ident() == thread and event.stage != "runtime":  # what loading says, it says again
                told = {"name": event.name, "stage": event.stage, "text": event.text(), "data": event.data}
                self.events.append(told)

        unsubscribe = events.bus.subscribe(sink, RETOLD)
        try:
            yield
        finally:
            unsubscribe()

    def keep(self, text: str, constants: Mapping[str, torch.Tensor]) -> None:
        """Store a host module. One that names tensors, made of the program's numbers by passes, is not."""
        if self.key and not constants:
            with contextlib.suppress(TypeError, ValueError):  # a listener's data that is no JSON
                cache.keep(self.key, json.dumps({"text": text, "events": self.events}).encode(), cache.PROGRAM)


def entry_for(program: AtenProgram, key: str | None) -> Entry:
    """Where a program is stored.

    Arguments:
        key: `graph_key` of the program; None for one that is not shared.
    """
    reason = _reason_against(program, key)
    if reason:
        events.emit("cache", "backend", f"the program is not stored: {reason}", outcome="bypass", reason=reason)
        return Entry("")
    try:
        text = f"{environment(devices_in(program))}\n{key}"
    except ToolchainError:  # what is compiled then says so
        return Entry("")
    return Entry(hashlib.sha256(text.encode()).hexdigest()[:40])


def _reason_against(program: AtenProgram, key: str | None) -> str:
    if not config.cache or not config.program_cache:
        return "config.cache or config.program_cache is off"
    if key is None:
        return "it is not shared"
    if events.bus.sinks or STAGES & events.bus.named.keys():
        return "what stages make is listened to"
    if config.verify_ir or config.repro_after or config.output_code:
        return "a setting asks for what stages make"
    if _replaced():
        return "a lowering rule or an expression of kernels is replaced"
    return undescribed(program)


def _replaced() -> bool:
    """Whether the program, not argand, says how some operation is compiled: in a table that it imported, then."""
    for name in ("argand.codegen.cpp.overrides", "argand.codegen.triton.overrides"):
        table: Any = sys.modules.get(name)
        if table is not None and any(map(table.replaced, table.DEFAULTS)):
            return True
    registry: Any = sys.modules.get("argand.lower.registry")
    if registry is None:
        return False
    rules = (entry.rule for entry in registry.REGISTRY.entries.values())
    return any(not str(getattr(rule, "__module__", "")).startswith("argand.") for rule in rules)


def environment(devices: Iterable[torch.device] = ()) -> str:
    """What a compiled program depends on beside itself: versions, the processor, compiler, settings, GPUs.

    Raises:
        ToolchainError: there is no C++ compiler that works.
    """
    mkldnn = torch.backends.mkldnn
    settings = [f"{name}={_setting(name)!r}" for name, _, _ in config.describe() if name not in _NO_MATTER]
    return "\n".join(
        [
            _installation(),
            repr(toolchain.isa_for(config.cpp.simdlen)),
            toolchain.find_toolchain().version,
            f"oneDNN {mkldnn.is_available()} {mkldnn.enabled}, products {compat.float32_products()}",
            *[_gpu(device) for device in devices if device.type != "cpu"],
            *settings,
        ]
    )


_NO_MATTER = frozenset(("cache_dir", "remote_cache", "remote_cache_key", "check_ranks"))
"""Settings that say where code is kept, which is the same for all who look there."""


@functools.cache
def _gpu(device: torch.device) -> str:
    """A GPU, and what compiles its kernels."""
    kind = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{device} {kind} {torch.version.cuda} {torch.version.hip} triton {importlib.metadata.version('triton')}"


def _setting(name: str) -> object:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


@functools.cache
def _installation() -> str:
    """Versions, argand's own files, and the processor."""
    root = Path(events.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".so", ".h", ".cpp") and path.is_file())
    stamps = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    own = hashlib.sha256(repr(stamps).encode()).hexdigest()
    processor = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        names = ("vendor_id", "model name", "flags", "Features")
        lines = (line for line in stream if line.partition(":")[0].strip() in names)
        processor = hashlib.sha256("".join(dict.fromkeys(lines)).encode()).hexdigest()
    return f"{sys.version} {torch.__version__} {torch.version.git_version} argand {own} processor {processor}"


__all__ = ["Entry", "entry_for", "environment"]
