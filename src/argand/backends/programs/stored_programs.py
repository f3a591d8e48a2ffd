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

import base64
import contextlib
import hashlib
import json
import marshal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import torch

from argand import events
from argand.backends.programs.graph_key import undescribed
from argand.backends.targets import devices_in
from argand.config import config
from argand.errors import ToolchainError
from argand.graph.nodes import literals
from argand.graph.nodes.meta import is_guess
from argand.graph.nodes.program import AtenProgram
from argand.quick_dataclasses import dataclass
from argand.runtime import cache, stored_modules
from argand.runtime.environment import environment, gpu, replaced
from argand.runtime.host import HostCall, code_of

STAGES = frozenset([
    "fx_graph", "post_grad_graphs", "aten_graph_after_pass", "ir_pre_fusion", "ir_post_fusion", "fusion",
    "compute_dependencies", "provenance", "provenance_lines", "fused_graph", "kernel_code", "output_code",
    "autotuning",
])  # fmt: skip
"""Events between a program and its callable that tell of intermediate results."""
RETOLD = ("schedule", "fallback")
"""Events that are stored with a program, and emitted again."""


@dataclass(slots=True)
class Entry:
    """One program's place in the cache.

    Arguments:
        key: of the disk cache; "" where nothing is loaded or stored.
        gpus: those that the program is for, by name.
        guessed: others had the processors while ways to compute it were timed.
    """

    key: str
    gpus: dict[str, str] = field(default_factory=dict)
    guessed: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    kept: bool = False

    def load(self, program: AtenProgram) -> HostCall | None:
        """The callable that was stored; None when there is none, or it cannot be loaded."""
        loaded = stored_modules.load(self.key, program.kind, program.model) if self.key else None
        if loaded is None:
            return None
        call, program.model = loaded
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
        """Store a host module. One that names large tensors, made of the program's numbers by passes, is not."""
        held = literals.packed_all(constants) if self.key else None
        if held is not None:
            with contextlib.suppress(TypeError, ValueError):  # a listener's data that is no JSON
                code = base64.b64encode(marshal.dumps(code_of(text))).decode()  # a later process need not compile it
                content = {
                    "text": text, "code": code, "events": self.events, "gpus": self.gpus, "constants": held,
                    "guessed": self.guessed,
                }  # fmt: skip
                cache.keep(self.key, json.dumps(content).encode(), cache.PROGRAM)
                self.kept = True

    def marked(self, call: HostCall, kind: str) -> HostCall:
        """`call`, of which is known where it is stored, if it is."""
        return stored_modules.marked(call, self.key, kind) if self.kept else call


def entry_for(program: AtenProgram, key: str | None) -> Entry:
    """Where a program is stored.

    Arguments:
        key: `graph_key` of the program; None for one that is not shared.
    """
    reason = _reason_against(program, key)
    if reason:
        events.emit("cache", "backend", f"the program is not stored: {reason}", outcome="bypass", reason=reason)
        return Entry("")
    devices = devices_in(program)
    try:
        text = f"{environment(devices)}\n{key}"
    except ToolchainError:  # what is compiled then says so
        return Entry("")
    gpus = {str(device): gpu(device) for device in devices if device.type == "cuda"}
    guessed = any(map(is_guess, program.graph.nodes))
    return Entry(hashlib.sha256(text.encode()).hexdigest()[:40], gpus, guessed)


def _reason_against(program: AtenProgram, key: str | None) -> str:
    if not config.cache or not config.program_cache:
        return "config.cache or config.program_cache is off"
    if key is None:
        return "it is not shared"
    if events.bus.sinks or STAGES & events.bus.named.keys():
        return "what stages make is listened to"
    if config.verify_ir or config.repro_after or config.output_code:
        return "a setting asks for what stages make"
    if replaced():
        return "a lowering rule or an expression of kernels is replaced"
    return undescribed(program)
