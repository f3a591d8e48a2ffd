"""What glibc keeps of the heap between calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
import torch, argand

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

argand.config.cpp.kept_heap = int(sys.argv[1])
argand.compile(lambda x: x.sin() + 1)(torch.randn(64))
pieces = [torch.empty(1 << 18) for _ in range(100)]
pieces.clear()
ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
print(ask().keepcost >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or later")
@pytest.mark.parametrize(
    ("kept", "variables", "keeps"),
    [
        (512 << 20, {}, True),
        (32 << 20, {}, False),
        (0, {}, False),
        (512 << 20, {"MALLOC_TRIM_THRESHOLD_": "33554432"}, False),
        (512 << 20, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=33554432"}, False),
    ],
)
def test_the_end_of_the_heap_stays(kept, variables, keeps):
    """A hundred pieces of 1 MiB, freed."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, str(kept)]  # not a fork, whose heap is another process's
    done = subprocess.run(command, env={**env, **variables}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) >= 64) == keeps
