"""Programs on which the fuzzer (tests/fuzz) once found a difference, made small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fuzz"))

import differential
import programs

_HEAD = "def f(x, y, n, s, items, table, obj):\n"

_PROGRAMS = {
    "generator_dropped_by_break_before_a_later_error": """
    with Managed(ValueError, IndexError):
        for i in finishing(3):
            LOG.append(real(i))
            if len(LOG) > 0: break
        checked(y.shape[0])
""",
    "generator_dropped_by_break_before_later_effects": """
    for i in finishing(3):
        LOG.append(real(i))
        if i: break
    LOG.append('behind')
    t = x * y.shape[0]
    LOG.append('later')
    return real(t)
""",
    "generator_of_a_frame_in_the_traceback_of_a_graph": """
    try:
        pass
    except Exception as e:
        pass
    for i in finishing(3):
        argand.graph_break()
        v = look_up(x, 9)
""",
    "operation_whose_result_is_not_used_raises": """
    try:
        LOG.append('before')
        v = torch.gather(y, 0, torch.full((1, 4), 9))
        LOG.append('behind')
    except RuntimeError as e:
        LOG.append(str(e))
    return x + 1
""",
    "generator_dropped_by_return": """
    for i in finishing(3):
        LOG.append(real(i))
        if i:
            t = x + 1
            LOG.append('behind')
            return t
""",
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_program(name: str, dynamic: bool | None) -> None:
    source = programs.PRELUDE + _HEAD + _PROGRAMS[name].lstrip("\n")
    assert differential.difference(source, dynamic=dynamic) is None
