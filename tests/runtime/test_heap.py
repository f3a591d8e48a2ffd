"""What glibc keeps of the heap between calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, sys
import torch, argand
from argand.runtime.host import keep_heap

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

def measure(kept, compiled):
    argand.config.cpp.kept_heap = kept
    if compiled:
        argand.compile(lambda x: x.sin() + 1)(torch.randn(64))
    else:
        keep_heap()  # as compiled code does
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes, library.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_void_p], Info
    pieces = (ctypes.c_void_p * 100)()
    for number in range(100):  # of nobody else's: an object that lives on behind them would keep the heap, too
        pieces[number] = library.malloc(1 << 20)
    for piece in pieces:
        library.free(piece)
    print(library.mallinfo2().keepcost >> 20, flush=True)

torch.set_num_threads(1)
for number, kept in enumerate(map(int, sys.argv[1:])):
    child = os.fork()
    if child == 0:
        measure(kept, compiled=number == 0 and len(sys.argv) > 2)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or later")
@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, {512 << 20: True, 32 << 20: False, 0: False}),
        ({"MALLOC_TRIM_THRESHOLD_": "33554432"}, {512 << 20: False}),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=33554432"}, {512 << 20: False}),
    ],
    ids=["settings", "variable", "tunable"],
)
def test_the_end_of_the_heap_stays(variables, kept):
    """A hundred pieces of 1 MiB, freed. The C library reads its variables when a process begins."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, *map(str, kept)]
    done = subprocess.run(command, env={**env, **variables}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [int(text) >= 64 for text in done.stdout.split()] == list(kept.values())
