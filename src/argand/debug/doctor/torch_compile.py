"""Scripts whose torch.compile is torch's own: which of its stages is to blame, by its own backends."""

from __future__ import annotations

import os

from argand.debug.doctor.child import Mode
from argand.debug.doctor.localisation import Localiser
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.verdict import Verdict

_STAGES = (
    ("eager", "capture", "TorchDynamo"),
    ("aot_eager", "autograd", "AOTAutograd"),
    ("aot_eager_decomp_partition", "passes", "decompositions and the partitioner"),
    ("inductor", "codegen", "TorchInductor's lowering and code generation"),
)
NAMES = ("inductor", "aot_eager", "aot_eager_decomp_partition", "eager", "cudagraphs", "openxla", "tvm")


def prepare() -> None:
    """Settings that torch's compiler needs in forked children: it must not hand work to processes of its own."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def blame_torch(doctor: Localiser, eager: Run, own: Run, own_difference: Difference) -> Verdict:
    """The first of torch's backends with which the script goes wrong."""
    asked = own.backends
    if asked and all(name not in NAMES for name in asked):
        _, plain = doctor.compared(eager, Mode('torch\'s "eager"', torch="eager"))
        if plain is None:
            return _named(doctor.dissect(eager, own_difference, "backend", "", own), ", ".join(asked))
    for backend, stage, name in _STAGES:
        mode = Mode(f'torch\'s "{backend}"', torch=backend)
        _, difference = doctor.compared(eager, mode)
        if difference is not None and difference.signature[0] == own_difference.signature[0]:
            if backend == "eager":
                return _named(doctor.reduced(eager, difference, stage, mode), name)
            return _named(doctor.dissect(eager, difference, stage, backend, own), name)
    return _named(
        doctor.reduced(eager, own_difference, "backend", Mode("as the script says", torch="")), ", ".join(asked)
    )


def _named(verdict: Verdict, name: str) -> Verdict:
    """The verdict with torch's own name for the stage."""
    verdict.part = name
    verdict.text = verdict.text.replace("To blame is", f"To blame is {name} of torch.compile, that is", 1)
    return verdict
