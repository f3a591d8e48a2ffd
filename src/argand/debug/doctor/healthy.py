"""A script that does compiled what it does eagerly: does it leak, recompile too often, run slowly?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from argand.debug.doctor.child import Mode
from argand.debug.doctor.records import Run
from argand.debug.doctor.verdict import Verdict

if TYPE_CHECKING:
    from argand.debug.doctor.procedure import Doctor


def examine_healthy(doctor: Doctor, eager: Run, own: Run, mode: Mode) -> Verdict:
    """What to say of a script whose results are right."""
    return Verdict("none", "none", "The compiled program does what the eager one does.")
