"""Functions with a break of the graph in each kind of place, as text: `BREAK` is replaced by the thing that breaks.

Each function takes a tensor x and a list log. In the text `y` is a live tensor at the break.
"""

from __future__ import annotations

from . import break_places_more

PRELUDE = '''\
import contextlib
import functools
import sys
import torch
import argand

STATE = {"entered": 0, "left": 0}


@argand.disable
def real(value):
    """Runs for real: ends the graph."""
    return value


@argand.disable
def boom(value):
    raise ValueError("boom", 1)


@argand.disable
def boom_if(value, limit):
    if float(value.sum()) > limit:
        raise KeyError("limit")
    return value


class Manager:
    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        STATE["entered"] += 1
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, str(value), traceback is not None))
        STATE["left"] += 1
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(log, swallow=()):
    log.append("before")
    try:
        yield len(log)
    except swallow as error:
        log.append(("swallowed", repr(error)))
    finally:
        log.append("after")


def numbers(log, n):
    try:
        for i in range(n):
            log.append(("number", i))
            yield i
    finally:
        log.append("numbers closed")


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration
        return self.n


class Thing:
    def __init__(self, log):
        self.log = log

    @property
    def prop(self):
        self.log.append("prop")
        y = torch.ones(3)
        BREAK
        return y * 2

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        y = torch.ones(3)
        BREAK
        return name


'''

KINDS = {
    "request": "argand.graph_break()",
    "item": "log.append(round(y.sum().item(), 3))",
    "branch": "if y.sum() > 0: log.append('positive')",
    "not": "log.append(not (y.sum() < 0))",
    "disabled": "y = real(y)",
    "print": "print(end='')",
    "raises": "boom(y)",
}
"""What breaks the graph."""

PLACES = {
    "straight": """
y = x + 1
BREAK
return y * 2
""",
    "for_range": """
y = x
for i in range(4):
    y = y + i
    BREAK
    y = y * 2
return y, i
""",
    "for_list_else": """
y, out = x, []
for item in [x, x * 2, x * 3]:
    y = y + item
    BREAK
    out.append(y)
    if len(out) == 2:
        continue
    log.append(len(out))
else:
    out.append(x)
return out
""",
    "for_break": """
y, out = x, []
for i, item in enumerate((x, x * 2, x * 3)):
    y = y + item
    if i == 1:
        BREAK
        break
    out.append(y)
else:
    out.append(x)
return out, i, item
""",
    "for_zip_dict": """
y, out = x, {}
table = {"a": x, "b": x + 1}
for (key, value), other in zip(table.items(), (1.0, 2.0)):
    y = value * other
    BREAK
    out[key] = y
return out
""",
    "for_user_iterator": """
y = x
for i in Countdown(3):
    y = y + i
    BREAK
    log.append(i)
return y
""",
    "for_generator": """
y = x
for i in numbers(log, 3):
    y = y + i
    BREAK
    y = y + 1
return y
""",
    "for_generator_left": """
y = x
for i in numbers(log, 3):
    y = y + i
    BREAK
    if i == 1:
        break
log.append("done")
return y
""",
    "for_map_filter": """
y = x
scale = 3
for i in map(lambda q: q * scale, filter(None, [0, 1, 2])):
    y = y + i
    BREAK
return y
""",
    "while": """
y, i = x, 0
while i < 3:
    i += 1
    y = y * 2
    if i == 2:
        continue
    BREAK
    y = y + 1
else:
    log.append("else")
return y, i
""",
    "while_true": """
y, i = x, 0
while True:
    y = y + 1
    BREAK
    i += 1
    if i == 3:
        return y * 2
""",
    "nested_loops": """
y = x
for i in range(3):
    for j in (1, 2):
        y = y + j
        BREAK
        if j == i:
            break
    else:
        log.append(("inner else", i))
return y
""",
    "loop_in_list": """
y = x
pairs = [(1, [x]), (2, [x, x + 1])]
for n, tensors in pairs:
    for t in tensors:
        y = y + t * n
    BREAK
pairs.append(y)
return pairs
""",
    "loop_mutates_list": """
todo = [3, 2]
y = x
for n in todo:
    y = y * n
    BREAK
    if n > 1:
        todo.append(n - 1)
return y, todo
""",
    "try_body": """
y = x + 1
try:
    y = y * 2
    BREAK
    y = y + 1
except ValueError as error:
    log.append(repr(error))
    y = y * 5
else:
    log.append("else")
finally:
    log.append("finally")
return y
""",
    "try_then_raises": """
y = x + 1
try:
    BREAK
    y = y * 3
    {}["missing"]
except KeyError as error:
    log.append((repr(error), error.__context__))
    y = y + 2
return y
""",
    "except_body": """
y = x + 1
try:
    y = y * 2
    raise KeyError("first")
except KeyError as error:
    y = y + 3
    BREAK
    log.append((repr(error), repr(sys.exc_info()[1]), error is sys.exc_info()[1]))
    y = y * 4
log.append(sys.exc_info()[0])
return y
""",
    "except_reraise": """
y = x + 1
try:
    try:
        raise KeyError("first")
    except KeyError:
        y = y + 3
        BREAK
        raise
except LookupError as error:
    log.append((repr(error), repr(error.__context__)))
    return y * 2
""",
    "except_raise_from": """
y = x + 1
try:
    try:
        {}["k"]
    except KeyError as error:
        BREAK
        raise RuntimeError("second") from error
except RuntimeError as error:
    log.append((repr(error), repr(error.__cause__), repr(error.__context__)))
return y
""",
    "except_nested": """
y = x + 1
try:
    raise KeyError("outer")
except KeyError as outer:
    try:
        raise IndexError("inner")
    except IndexError as inner:
        y = y * 2
        BREAK
        log.append((repr(inner.__context__), repr(sys.exc_info()[1])))
    log.append(repr(sys.exc_info()[1]))
    BREAK
    y = y + 1
return y
""",
    "except_escapes": """
y = x + 1
try:
    raise KeyError("first")
except KeyError:
    y = y + 3
    BREAK
    raise TypeError("second")
""",
    "finally_normal": """
y = x + 1
try:
    y = y * 2
finally:
    BREAK
    y = y + 1
return y
""",
    "finally_raising": """
y = x + 1
try:
    try:
        y = y * 2
        raise KeyError("k")
    finally:
        BREAK
        log.append(repr(sys.exc_info()[1]))
        y = y + 1
except KeyError:
    y = y + 1
return y
""",
    "finally_return": """
y = x + 1
try:
    return y * 2
finally:
    BREAK
    log.append("finally")
""",
    "loop_try": """
y = x
for i in range(3):
    try:
        y = y + 1
        if i == 1:
            raise KeyError(i)
        BREAK
    except KeyError as error:
        log.append(repr(error))
        continue
    finally:
        log.append(i)
return y
""",
    "loop_except": """
y = x
for i in range(3):
    try:
        raise KeyError(i)
    except KeyError as error:
        y = y + 1
        BREAK
        log.append(error.args)
return y
""",
    "with_user": """
y = x + 1
with Manager(log) as manager:
    y = y * 2
    BREAK
    log.append(manager.swallow)
    y = y + 1
return y
""",
    "with_user_swallows": """
y = x + 1
with Manager(log, (KeyError, ValueError)):
    y = y * 2
    BREAK
    y = y + 1
    raise KeyError("in with")
return y
""",
    "with_user_escapes": """
y = x + 1
with Manager(log):
    y = y * 2
    BREAK
    raise KeyError("in with")
""",
    "with_generator": """
y = x + 1
with managed(log) as n:
    y = y * n
    BREAK
    y = y + 1
return y
""",
    "with_generator_swallows": """
y = x + 1
with managed(log, (KeyError, ValueError)) as n:
    y = y * n
    BREAK
    raise KeyError("in with")
return y
""",
    **break_places_more.PLACES,
}
"""Place of the break -> body of the function."""


def source(place: str, kind: str) -> str:
    """Text of a module with the function `f(x, log)`."""
    text = (
        PRELUDE
        + "def f(x, log):\n"
        + "".join(f"    {line}\n" if line else "\n" for line in PLACES[place].strip().split("\n"))
    )
    text = "\n".join(line for line in text.replace("BREAK", KINDS[kind]).split("\n"))
    # Only f itself has `log`; elsewhere a break that wants it finds this one.
    return text.replace("class Thing:", "log = []\n\n\nclass Thing:")
