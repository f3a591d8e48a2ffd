"""Sets of texts have another order in each process: what depends on it is no later process's, and is eager's in its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import argand
import warm
from outcomes.processes import STORED, Program

PROGRAM = """
import collections, functools, itertools
import torch, argand
from argand import events

W = "{'alpha', 'betas', 'gamma', 'delta', 'e', 'zeta'}"
EXPRESSIONS = [
    f"[(x.sum() * 0 + i, n) for i, n in enumerate({W})]", f"list({W})", f"tuple({W})", f"[*{W}]", f"next(iter({W}))",
    f"str({W})", f"'{{}}'.format({W})", f"max({W}, key=len)", f"sorted({W}, key=len)",
    f"{W}.pop()", f"dict.fromkeys({W})", f"list(zip({W}, range(9)))", f"list(map(len, {W}))", f"(lambda *a: a)(*{W})",
    f"list(itertools.chain({W}, {W}))", f"functools.reduce(lambda a, b: a, {W})", f"list(collections.Counter({W}))",
    f"list(collections.deque({W}))", f"list({W} - {{'e'}})", f"list({W} | {{'q'}})", f"str([{W}])",
    f"'-'.join({W})", f"[q for q in {W}]", f"hash('alpha') % 1000", f"hash(('alpha', 2)) % 1000",
    f"'e' in {W}", f"len({W})", f"sorted({W})",
]
x = torch.arange(3.0)
stored = []
events.bus.subscribe(lambda event: stored.append(event.data["outcome"]), ("cache",))
for text in EXPRESSIONS:
    space = dict(globals())
    exec(f"def function(x): return x + 1, {text}", space)
    one, two = space["function"](x), argand.compile(space["function"])(x)
    assert repr(one) == repr(two), (text, one, two)
print("hit" in stored)
"""


@pytest.mark.slow
def test_each_process_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    """Those of two processes that were started apart, whose forks have their hashes."""
    environment = {**os.environ, "ARGAND_CACHE_DIR": str(tmp_path / "cache"), "ARGAND_PROGRAM_CACHE": "1"}
    for imported in ("", "compiler"):
        done = warm.run(["program.py"], cwd=tmp_path, env=environment, imported=imported)
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "True"


BESIDE = """
import torch
WORDS = {"alpha", "betas", "gamma"}
TABLE = {"words": WORDS, "scale": 3}
def main(x):
    import math
    return x * TABLE.get("scale") + math.pi * len(TABLE.copy())
def check(compile):
    with torch.no_grad():
        torch.testing.assert_close(compile(main)(torch.ones(3)), main(torch.ones(3)))
"""


def test_native_code_that_does_not_look_into_a_set_tells_nothing(tmp_path: Path) -> None:
    with argand.config.patch({**STORED, "cache_dir": str(tmp_path / "cache")}):
        program = Program(tmp_path, BESIDE)
        assert [program.run(), program.run()] == [["stored"], ["hit"]]
