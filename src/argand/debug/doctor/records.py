"""What the compiled functions of a run returned, kept in files, and the first difference between two runs."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from argand.debug import accuracy
from argand.debug.accuracy import Mismatch
from argand.debug.accuracy import _parts as parts_of
from argand.debug.minify.isolate import Outcome
from argand.debug.minify.surgery import clone_strided

_PLAIN = (int, float, bool, str, type(None), complex)
_DEPTH = 12
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


@dataclass(slots=True)
class Run:
    """One run of the script.

    Arguments:
        mode: how it was run.
        outcome: how the process ended.
        calls: of compiled functions, in order.
        printed: its standard output.
        facts: other things that the child noted (backends, recompiles, breaks).
    """

    mode: str
    outcome: Outcome
    calls: list[CallRecord]
    printed: str
    facts: dict[str, Any]

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

    def flatten(self, value: Any, where: str, into: dict[str, Any], depth: int = 0) -> None:
        """Add tensors and plain values in `value` to `into`."""
        if isinstance(value, torch.Tensor):
            into[where] = self._tensor(value)
            return
        parts = None if depth > _DEPTH or isinstance(value, torch.nn.Module) else parts_of(value)
        if parts is None:
            into[where] = value if type(value) in _PLAIN else f"<{type(value).__name__}>"
            return
        if not parts:
            into[where] = f"<empty {type(value).__name__}>"
        for name, part in parts.items():
            self.flatten(part, where + name, into, depth + 1)

    def _tensor(self, value: torch.Tensor) -> Any:
        with torch.no_grad():
            if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
                with contextlib.suppress(Exception):
                    return value.detach().to_dense()
                return f"<{value.layout} tensor>"
            plain = value.detach()
            whole = plain.numel() <= _WHOLE and self.bytes < _BYTES
            size = plain.numel() * plain.element_size() if whole else 0
            self.bytes += size
            kept = clone_strided(plain) if whole else plain.reshape(-1)[:4096].clone()
            return kept.requires_grad_(value.requires_grad) if kept.is_floating_point() else kept


def write(folder: Path, number: int, record: CallRecord) -> None:
    """Put a record where the parent process finds it, even if this one dies."""
    torch.save({name: getattr(record, name) for name in CallRecord.__slots__}, folder / f"call_{number:06d}.pt")


def read(folder: Path) -> list[CallRecord]:
    """The records of a run."""
    found = []
    for path in sorted(folder.glob("call_*.pt")):
        with contextlib.suppress(Exception):  # a file that a process which died did not finish
            found.append(CallRecord(**torch.load(path, weights_only=True)))
    return found


RAISED = re.compile(r"\braised [A-Z]\w*(Error|Exception)\b")  # in the reason of a fallback: a fault, not a limit
_KINDS = {"value": "wrong value", "nan": "NaN", "inf": "wrong value", "stride": "wrong stride", "dtype": "wrong dtype"}


def first_difference(eager: Run, other: Run, tol: float | None = None) -> Difference | None:
    """The first difference that counts; None when the runs did the same."""
    for number, (one, two) in enumerate(zip(eager.calls, other.calls)):
        if two.ended and one.ended:
            found = _of_calls(one, two, number, tol)
            if found is not None:
                return found
    ended = _of_ends(eager, other)
    if ended is not None:
        return ended
    for number, (one, two) in enumerate(zip(eager.calls, other.calls)):
        if two.raised.partition(":")[0] != one.raised.partition(":")[0] and (two.raised or two.ended):
            does = f"raises {two.raised}" if two.raised else f"does not raise {one.raised}"
            text = f"call {number + 1} of {two.function} {does}"
            kind = "C++ compile error" if "CppCompileError" in two.raised else "exception"
            return Difference(kind, text, number, two.function, two.place)
    last = other.last
    if last is not None and not last.ended and not other.outcome.failed:
        text = f"the compiled program ends in call {len(other.calls)} of {last.function}"
        if eager.outcome.failed or len(eager.calls) < len(other.calls) or eager.calls[len(other.calls) - 1].ended:
            return Difference("exception", text, len(other.calls) - 1, last.function, last.place)
    if other.facts.get("suppressed"):
        function, cause = other.facts["suppressed"][0]
        text = f"argand fails on {function}, which then runs eagerly: {cause}"
        kind = "out of memory" if "MemoryError" in cause else "exception"
        return Difference(kind, text, 0, function, mismatch=Mismatch("", cause.partition("(")[0], 0.0, text))
    for stage, text in other.facts.get("fallbacks", []):
        if RAISED.search(text):
            return Difference("exception", f"a graph runs with eager's kernels, because {stage} failed: {text}")
    said = _printed(eager.printed, other.printed) if not eager.outcome.failed and not other.outcome.failed else None
    if said is not None:
        return Difference("wrong value", said, mismatch=Mismatch("", "printed", 1.0, said))
    if len(eager.calls) != len(other.calls):
        text = f"{len(other.calls)} calls of compiled functions, not {len(eager.calls)}"
        return Difference("wrong value", text)
    return None


_WORD = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?|\s+|[A-Za-z_]+|.")


def _printed(one: str, two: str) -> str | None:
    """What is first printed otherwise; numbers may differ in their last digits."""
    if one == two:
        return None
    for number, (a, b) in enumerate(itertools.zip_longest(one.splitlines(), two.splitlines(), fillvalue="")):
        left, right = ([w for w in _WORD.findall(line) if not w.isspace()] for line in (a, b))
        if len(left) != len(right) or not all(map(_same_word, left, right)):
            return f"line {number + 1} of what it prints is {b!r:.80}, not {a!r:.80}"
    return None


def _same_word(one: str, two: str) -> bool:
    if one == two:
        return True
    try:
        return math.isclose(float(one), float(two), rel_tol=1e-3, abs_tol=1e-4)
    except ValueError:
        return False


def _of_calls(one: CallRecord, two: CallRecord, number: int, tol: float | None) -> Difference | None:
    if one.function != two.function:
        text = f"call {number + 1} is of {two.function}, not of {one.function}"
        return Difference("wrong value", text, number, one.function, one.place)
    if one.values.keys() != two.values.keys():
        odd = sorted(one.values.keys() ^ two.values.keys())
        text = f"call {number + 1} of {one.function} returns other parts: {', '.join(odd[:4])}"
        return Difference(
            "wrong value", text, number, one.function, one.place, Mismatch(odd[0], "structure", 0.0, text)
        )
    for name, expected in one.state.items():
        if two.state.get(name, expected) != expected:
            text = f"before call {number + 1} of {one.function}, {name} is {two.state[name]}, not {expected}"
            return Difference("wrong value", text, number, one.function, one.place, Mismatch(name, "state", 1.0, text))
    for name, expected in one.values.items():
        found = accuracy.compare(expected, two.values[name], strides=True, tol=tol, where=name)
        if found is not None:
            kind = _KINDS.get(found.kind, f"wrong {found.kind}")
            text = f"in call {number + 1} of {one.function}, {found}"
            return Difference(kind, text, number, one.function, one.place, found)
    return None


def _of_ends(eager: Run, other: Run) -> Difference | None:
    a, b = eager.outcome, other.outcome
    if not b.failed or (a.failed and (a.kind, a.error) == (b.kind, b.error)):
        if a.failed and not b.failed:
            return Difference("exception", f"eager raises {a}, the compiled program does not")
        return None
    call = other.last
    number, function, place = -1, "", ""
    if call is not None and not call.ended:
        number, function, place = len(other.calls) - 1, call.function, call.place
    kind = {"crashed": "crash", "hung": "hang", "memory": "out of memory"}.get(b.kind, "exception")
    if b.error.endswith("CppCompileError"):
        kind = "C++ compile error"
    where = f" in call {number + 1} of {function}" if function else ""
    return Difference(kind, f"the compiled program {b}{where}" if kind != "exception" else f"{b}{where}",
                      number, function, place)  # fmt: skip
