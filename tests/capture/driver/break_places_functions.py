"""Breaks of the graph in functions, generators, comprehensions and classes that the function makes and calls."""

from __future__ import annotations

PLACES = {
    "generator_locals": """
def inner():
    g = numbers(log, 3)
    return next(g)
y = x + inner()
log.append("inner done")
any(n > 0 for n in numbers(log, 3))
log.append("any done")
BREAK
return y * 2
""",
    "comprehension": """
y = x + 1

def step(i):
    nonlocal y
    y = y + i
    BREAK
    return y

return [step(i) for i in range(3)], y
""",
    "comprehension_dict": """
z = x + 1
def step(i):
    y = z + i
    BREAK
    return y * i
return {i: step(i) for i in range(3)}, {j for j in (1, 2)}
""",
    "comprehension_closure": """
z = x + 1
def step(i):
    y = z + i
    BREAK
    return i
fns = [lambda: (i, step(i)) for i in range(2)]
return [f() for f in fns if step(1)], z
""",
    "generator_expression": """
z = x + 1
def step(i):
    y = z + i
    BREAK
    return y * i
return sum(step(i) * z for i in range(3)), tuple(step(i) for i in (1, 2))
""",
    "generator_kept": """
y = x + 1
g = numbers(log, 3)
first = next(g)
BREAK
second = next(g)
y = y + first + second
g.close()
return y
""",
    "generator_abandoned": """
y = x + 1
g = numbers(log, 3)
next(g)
BREAK
del g
log.append("deleted")
return y * 2
""",
    "generator_send": """
def averager():
    total = 0
    while True:
        got = yield total
        if got is None:
            return total
        y = got * 2
        BREAK
        total = total + got
def outer():
    result = yield from averager()
    log.append("returned")
    return result
y = x
g = outer()
next(g)
y = y + g.send(x)
y = y + g.send(x * 2)
try:
    g.send(None)
except StopIteration as stop:
    y = y + stop.value
return y
""",
    "nested_call": """
def inner(y, depth):
    y = y + 1
    if depth:
        return inner(y, depth - 1) * 2
    BREAK
    return y * 3
return inner(x, 2) + inner(x, 0)
""",
    "lambda_key": """
y = x + 1
def key(item):
    y = x * 1
    BREAK
    return -item
return sorted([1, 3, 2], key=key), max([1, 2], key=lambda q: key(q)), y * 2
""",
    "map_callback": """
y = x + 1
def double(item):
    y = x * 1
    BREAK
    return item * 2
return list(map(double, [1, 2, 3])), functools.reduce(lambda a, b: double(a) + b, [x, y])
""",
    "property": """
y = x + 1
thing = Thing(log, x)
return y + thing.prop, thing.missing, getattr(thing, "other"), hasattr(thing, "_private")
""",
    "closure_cells": """
y = x + 1
total = 0
def add(n):
    nonlocal total
    total += n
    return total
for i in range(3):
    add(i)
    BREAK
    total += 1
return y, total, add(10)
""",
    "class_kept": '''
class Local:
    """doc"""
    scale = 2
    def get(self):
        return __class__, self.scale
    def twice(self):
        return super().__repr__()[:1]
y = x * Local.scale
BREAK
made = Local()
return y, made.get()[1], made.get()[0] is Local, made.twice(), Local.__doc__
''',
    "match": """
y = x + 1
for item in ({"a": 1}, [1, 2], 3):
    match item:
        case {"a": n}:
            BREAK
            y = y + n
        case [a, b]:
            y = y + a + b
            BREAK
        case _:
            BREAK
            log.append("other")
return y
""",
    "aliases": """
y = x + 1
a = [y]
b = a
pair = (a, {"a": a})
BREAK
a.append(1)
return b, pair[0] is b, pair[1]["a"] is a, y is a[0]
""",
    "iterator_kept": """
y = x + 1
it = iter([1, 2, 3])
next(it)
pairs = zip(it, "ab")
BREAK
return y, list(pairs), list(it)
""",
    "deep_exception": """
def inner(y, n):
    if n:
        return inner(y + 1, n - 1)
    BREAK
    raise OverflowError("deep")
y = x
return inner(y, 3)
""",
}
"""Place of the break -> body of the function; see break_places.py."""
