"""What makes two failures the same one, so that a smaller program that fails otherwise is not taken for a success."""

from __future__ import annotations

import math
import re

from argand.debug.trial.outcome import Outcome
from argand.quick_dataclasses import dataclass

_NORMALISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"(?:/[\w.+-]+){2,}"), "PATH"),
    (re.compile(r"\b(?:tmp|buf|arg|primals_|tangents_|op|in_ptr|out_ptr)\d+(?:_\d+)?\b"), "NAME"),
    (re.compile(r"(?<=[A-Za-z])_\d+\b"), ""),  # add_3
    (re.compile(r"\b\d+(?:x\d+)+\b"), "N"),
    (re.compile(r"[-+]?\b\d+(?:\.\d*)?(?:e[-+]?\d+)?\b"), "N"),
    (re.compile(r"[\[(]\s*N(?:,\s*N)*,?\s*[\])]"), "SHAPE"),
    (re.compile(r"\s+"), " "),
)
_COMPILER_ERROR = re.compile(r"(?:fatal )?error: (?P<text>[^\n]*)")
_SMALLER, _LARGER = 1e-2, 1e6  # how far the error of a wrong value may move while the program shrinks


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a failure.

    Arguments:
        kind: as of `Outcome`.
        error: type of the exception, or name of the signal.
        stage: the stage that failed.
        message: the text, without numbers, names, addresses and paths.
        output: of a wrong value: which result, by the name of the node that made it.
        mismatch: of a wrong value: "value", "nan", "dtype", "shape", "stride", ...
        size: of a wrong value: its error relative to the size of the values.
    """

    kind: str
    error: str = ""
    stage: str = ""
    message: str = ""
    output: str = ""
    mismatch: str = ""
    size: float = 0.0

    def alike(self, other: Fingerprint) -> bool:
        """Whether `other` is such a failure too, in whatever stage and with whatever text."""
        return (self.kind, self.error, self.mismatch) == (other.kind, other.error, other.mismatch)

    def matches(self, other: Fingerprint, names: frozenset[str] | None = None) -> bool:
        """Whether `other`, of a smaller program, is the same failure.

        Arguments:
            names: nodes in which a wrong value may show instead of in this one's output: what that was computed from.
        """
        if not self.alike(other):
            return False
        if self.kind == "crashed" or self.kind == "hung" or self.kind == "memory":
            return self.stage == other.stage
        if not self.mismatch:
            return (self.stage, self.message) == (other.stage, other.message)
        if names is not None and other.output and other.output not in names:
            return False
        if not math.isfinite(self.size) or not math.isfinite(other.size):
            return math.isfinite(self.size) == math.isfinite(other.size)
        return self.size * _SMALLER <= other.size <= max(self.size, 1e-6) * _LARGER

    def __str__(self) -> str:
        if self.mismatch:
            return f"wrong result {self.output} ({self.mismatch}, relative error {self.size:.1e})"
        text = f"{self.error}: {self.message}" if self.message else self.error or self.kind
        return f"{text} [{self.stage}]" if self.stage else text


def normalise(message: str) -> str:
    """The text of an error without what differs between programs that fail in the same way.

    Of a C++ compiler's output only the first error counts, of other long texts the first two lines: what follows often
    shows the values or objects at hand.
    """
    raised = _COMPILER_ERROR.search(message)
    lines = [line for line in message.splitlines() if line.strip()]
    text = raised["text"] if raised else "\n".join(lines[:2])
    for pattern, to in _NORMALISE:
        text = pattern.sub(to, text)
    return text.strip()[:400]


def fingerprint(outcome: Outcome) -> Fingerprint:
    """The identity of a failure.

    Arguments:
        outcome: of `run_isolated` or `outcome_of`; one that passed has the fingerprint of kind "passed".
    """
    if outcome.kind in ("passed", "hung", "memory"):
        return Fingerprint(outcome.kind, stage=outcome.stage)
    if outcome.kind == "crashed":
        return Fingerprint("crashed", outcome.error, outcome.stage)
    if "mismatch" in outcome.data:
        data = outcome.data
        return Fingerprint(
            "raised", outcome.error, "accuracy", "", str(data.get("output", "")), data["mismatch"], data["size"]
        )
    message = normalise(outcome.message) or outcome.where.rpartition(":")[2]  # an assert without a text: where it is
    return Fingerprint("raised", outcome.error, outcome.stage, message)
