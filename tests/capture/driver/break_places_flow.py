"""Breaks of the graph in loops and in handlers of exceptions."""

from __future__ import annotations

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
}
"""Place of the break -> body of the function; see break_places.py."""
