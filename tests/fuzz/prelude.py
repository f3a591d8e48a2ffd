"""What random programs begin with: the module that they are written into."""

PRELUDE = """\
import contextlib, functools, itertools, math, operator, sys
import torch, argand

LOG = []
COUNTER = 0

class Box:
    def __init__(self, value):
        self.value = value
        self.history = []

    def bump(self, by=1):
        self.value = self.value + by
        self.history.append(by)
        return self

    @property
    def twice(self):
        return self.value * 2

    def __add__(self, other):
        return Box(self.value + (other.value if isinstance(other, Box) else other))

def helper(a, b=2, *rest, scale=1, **more):
    return a * scale + b + sum(rest) + more.get("extra", 0)

def gen(limit):
    total = 0
    for i in range(limit):
        got = yield i + total
        total += got or 1
    return total

def delegating(limit):
    last = yield from gen(limit)
    yield last

def look_up(table, index):
    return torch.nn.functional.embedding(torch.tensor([index, 1]), table) * 2

def noted_look_up(table, index):
    LOG.append("looking up")
    try:
        return table.index_select(0, torch.tensor([0, index]))
    finally:
        LOG.append("looked up")

@argand.disable
def real(value):
    return value

@argand.disable
def checked(value):
    if isinstance(value, int) and value % 4 == 3:
        raise IndexError(value)
    return value

class Managed:
    def __init__(self, *swallow):
        self.swallow = swallow

    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        LOG.append(("exit", kind and kind.__name__, str(value)))
        return kind is not None and issubclass(kind, self.swallow)

@contextlib.contextmanager
def managed(*swallow):
    LOG.append("before")
    try:
        yield len(LOG)
    except swallow as error:
        LOG.append(repr(error))
    finally:
        LOG.append("after")

def breaking(limit):
    for i in range(limit):
        if i != 1:
            argand.graph_break()
        yield real(i)

def finishing(limit):
    try:
        yield from range(limit)
        LOG.append("all")
    finally:
        LOG.append("finished")

def raising(k):
    if k % 3 == 0:
        raise ValueError(f"bad {k}")
    if k % 3 == 1:
        return {}[k]
    return k
"""
