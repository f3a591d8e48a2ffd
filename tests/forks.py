"""Forked children of a process that may have computed on several threads."""

from __future__ import annotations

import faulthandler
import os
import pickle
from collections import Counter
from collections.abc import Callable

import torch


def fork() -> int:
    """`os.fork`; the child computes on one thread.

    OpenMP's threads stay behind in the parent, and eager's own operators would wait for them for ever (GNU's libgomp).
    """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
    return child


def counted(task: Callable[[], Counter[str]]) -> Counter[str]:
    """What `task` counts in a child: some of torch's kernels write past the end of a tensor, or crash."""
    source, sink = os.pipe()
    child = fork()
    if child == 0:
        os.close(source)
        faulthandler.disable()  # of torch's crashes nobody needs a dump
        with os.fdopen(sink, "wb") as pipe:
            pipe.write(pickle.dumps(task()))
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(told) if told else Counter(crashed=1)
