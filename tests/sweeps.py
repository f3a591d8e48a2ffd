"""How many cases of a sweep the tests try: a part of them, or all with SWEEPS=whole in the environment (CONTRIBUTING.md).

The part is the same in each run. Of op_db it is every n-th operator, else fewer cases of each kind.
"""

from __future__ import annotations

import os
from typing import Final

WHOLE: Final = os.environ.get("SWEEPS") == "whole"


def part(cases: int, divisor: int = 2) -> int:
    """How many of so many cases are tried."""
    return cases if WHOLE else -(-cases // divisor)
