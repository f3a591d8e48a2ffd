"""What the compiled functions of a run returned, kept in files."""

from __future__ import annotations

import contextlib
from dataclasses import field
from pathlib import Path
from typing import Any

import torch

from argand.debug.accuracy import Mismatch
from argand.debug.tensors import clone_strided, named_leaves, parts_of
from argand.debug.trial.outcome import Outcome
from argand.quick_dataclasses import dataclass

_PLAIN = (int, float, bool, str, type(None), complex)
_DEPTH = 13
_WHOLE = 1 << 22  # elements of a tensor that are kept; of a larger one a part is
_BYTES = 1 << 29  # kept in a run; later tensors are kept in part


@dataclass(slots=True)
class CallRecord:
    """One outermost call of a compiled function, or one backward.

    Arguments:
        function: qualified name; "backward" for gradients.
        place: "file:line" of its definition.
        values: results, arguments and module state after the call, and gradients, by how one would write them.
        state: plain values that the function can see, before the call (what guards are about).
        held: what is alive after the call: "tensors" and "objects" (numbers), "bytes" (of memory); empty where that was
            not counted.
        seconds: how long it took.
        ended: False while it runs: the process died in it.
        compiles: frames that were captured before it began.
        raised: the exception with which it ended.
        thread: where it ran in; "" is the main one.
    """

    function: str
    place: str
    values: dict[str, Any] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    ended: bool = False
    compiles: int = 0
    raised: str = ""
    thread: str = ""


@dataclass(slots=True)
class Run:
    """One run of the script.

    Arguments:
        mode: how it was run.
        outcome: how the process ended.
        calls: of compiled functions, in order.
        printed: its standard output.
        facts: other things that the child noted (backends, recompiles, breaks).
        variants: of an eager run: others that are as right as it is (made again, rounded otherwise).
    """

    mode: str
    outcome: Outcome
    calls: list[CallRecord]
    printed: str
    facts: dict[str, Any]
    variants: list[Run] = field(default_factory=list)

    @property
    def backends(self) -> list[str]:
        """What graphs went to."""
        return [str(name) for name in self.facts.get("backends", [])]

    @property
    def last(self) -> CallRecord | None:
        """The call that the process was in, or made last."""
        return self.calls[-1] if self.calls else None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which a run differs from the eager one.

    Arguments:
        kind: "wrong value", "wrong stride", "NaN", "exception", "crash", "hang", ...
        text: what differs, for people.
        call: number of the call (from 0); -1 where the difference is not in one.
        function, place: of the call.
        mismatch: of values.
    """

    kind: str
    text: str
    call: int = -1
    function: str = ""
    place: str = ""
    mismatch: Mismatch | None = None

    @property
    def signature(self) -> tuple[str, str]:
        """What must be the same for two differences to be the same fault."""
        return self.kind, self.mismatch.kind if self.mismatch is not None else ""


class Kept:
    """Copies of values, within a limit of bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def flatten(self, whole: Any, name: str, into: dict[str, Any]) -> None:
        """Add tensors and plain values in `whole` to `into`."""
        for where, value in named_leaves(whole, name, _DEPTH):
            if isinstance(value, torch.Tensor):
                into[where] = self._tensor(value)
                if on_gpu(value):
                    into[f"{where}.device"] = str(value.device)
            elif type(value) in _PLAIN:
                into[where] = value
            else:
                into[where] = f"<{'empty ' if parts_of(value) == {} else ''}{type(value).__name__}>"

    def _tensor(self, value: torch.Tensor) -> Any:
        with torch.no_grad():
            if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
                with contextlib.suppress(Exception):
                    return value.detach().to_dense().cpu()
                return f"<{value.layout} tensor>"
            plain = value.detach()
            whole = plain.numel() <= _WHOLE and self.bytes < _BYTES
            size = plain.numel() * plain.element_size() if whole else 0
            self.bytes += size
            kept = clone_strided(plain) if whole else plain.reshape(-1)[:4096].clone()
            if on_gpu(value):  # the process that compares must not use a GPU: it forks
                kept = clone_strided(kept, torch.device("cpu"))
            return kept.requires_grad_(value.requires_grad) if kept.is_floating_point() else kept


def on_gpu(value: torch.Tensor) -> bool:
    """Whether a tensor's memory is a GPU's."""
    return value.device.type not in ("cpu", "meta")


def write(folder: Path, number: int, record: CallRecord) -> None:
    """Put a record where the parent process finds it, even if this one dies."""
    torch.save({name: getattr(record, name) for name in CallRecord.__slots__}, folder / f"call_{number:06d}.pt")


def read(folder: Path) -> list[CallRecord]:
    """The records of a run."""
    records = []
    for path in sorted(folder.glob("call_*.pt")):
        with contextlib.suppress(Exception):  # a file that a process which died did not finish
            records.append(CallRecord(**torch.load(path, weights_only=True)))
    return records
