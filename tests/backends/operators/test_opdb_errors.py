"""A fixed part of the calls of torch's op_db that eager refuses; all of them: `python tests/backends/operators/opdb_errors.py`."""

from __future__ import annotations

import warnings

import pytest
from tests.backends.operators.opdb_errors import run

import sweeps


@pytest.mark.parametrize("warm", [False, True], ids=["first calls", "after valid ones"])
def test_a_fraction_of_the_error_inputs_of_op_db(warm: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every, backends = (233, ("aot_eager",)) if warm else (67, ("eager", "aot_eager", "native"))
        every *= 1 if sweeps.WHOLE else 2
        tally = run(every=every, backends=backends, dynamic=warm or None, warm=warm)
    assert tally.problems == []
    assert tally.counts["raised"] >= (30 if warm else 100) // (1 if sweeps.WHOLE else 2)
