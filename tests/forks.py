"""Forked children of a process that may have computed on several threads."""

from __future__ import annotations

import os

import torch


def fork() -> int:
    """`os.fork`; the child computes on one thread.

    OpenMP's threads stay behind in the parent, and eager's own operators would wait for them for ever (GNU's libgomp).
    """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
    return child
