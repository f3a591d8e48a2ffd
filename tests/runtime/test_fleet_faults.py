"""What a fleet shares goes wrong under ranks that compile: they compute what eager does. `fleet_faults.py` says how."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis_server import needs_redis

import sweeps
import warm


@pytest.mark.distributed
def test_random_faults() -> None:
    needs_redis()
    count = str(sweeps.part(9, 5))
    command = ["-m", "tests.runtime.fleet_faults", "--count", count]
    done = warm.run(command, cwd=Path(__file__).parents[2], timeout=900, imported="compiler")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
