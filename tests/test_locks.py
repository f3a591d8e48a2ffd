"""Locks of a thread that is not there in a forked child."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from argand.locks import fork_safe_lock

SRC = Path(__file__).resolve().parent.parent / "src" / "argand"
# These begin anew in a child by themselves, or are names that capture knows.
OTHERS = {"locks.py", "report/tracefile.py", "report/chromium.py", "capture/natives_library.py"}


def test_lock_that_another_thread_held_is_free_in_a_child() -> None:
    lock, held, ended = fork_safe_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    ended.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock = fork_safe_lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock._is_owned() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_every_lock_of_argand_is_one() -> None:
    for path in SRC.rglob("*.py"):
        if str(path.relative_to(SRC)) not in OTHERS:
            assert not re.search(r"\bthreading\.R?Lock\(", path.read_text()), path
