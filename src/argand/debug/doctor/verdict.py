"""What the doctor says at the end."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from argand.quick_dataclasses import dataclass

STAGES = {
    "program": "the program itself",
    "capture": "capture (the symbolic interpreter of bytecode)",
    "guards": "guards (code was used again for a call that it does not fit)",
    "autograd": "autograd (tracing to an ATen graph)",
    "passes": "the ATen passes",
    "lowering": "lowering (ATen to loops)",
    "fusion": "fusion and scheduling",
    "codegen": "C++ code generation",
    "vector": "the vector path of C++ code generation",
    "host": "the host code around the kernels",
    "cache": "the runtime and its caches",
    "backend": "the backend",
    "rounding": "rounding",
    "none": "nothing",
}


def stage_text(stage: str, part: str) -> str:
    """A stage in words; `part` may name its kernels."""
    if stage == "codegen" and not part.startswith("cpp"):
        return "Triton code generation" if part.startswith("triton") else "code generation"
    return STAGES.get(stage, stage)


@dataclass(slots=True)
class Verdict:
    """What is wrong, where, and where the reproduction is.

    Arguments:
        kind: "wrong value", "exception", "C++ compile error", "crash", "hang", "leak", "NaN", "slow", "none", ...
        stage: key of `STAGES`.
        text: one paragraph.
        part: the pass, kernel or backend in the stage.
        operations: what the smallest failing graph calls.
        lines: the user's lines to which they belong.
        nodes: calls in the smallest failing graph; -1 where there is none.
        repro: path of a file that fails by itself; "" where there is none.
        fails_alone: whether it was run alone and failed in the same way; None where it was not run.
        evidence: what was tried, and how it ended.
        seconds: how long it took.
    """

    kind: str
    stage: str
    text: str
    part: str = ""
    operations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    nodes: int = -1
    repro: str = ""
    fails_alone: bool | None = None
    evidence: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def faulty(self) -> bool:
        """Whether something is wrong."""
        return self.stage not in ("none", "rounding")

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
