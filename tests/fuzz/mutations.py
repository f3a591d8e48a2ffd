"""What can be changed between the calls of a program: parts' own changes, and anything reachable from the objects that it reads.

A change is a statement over the helpers of `changes.py`. `choose` walks the live objects of one world, so that a change fits what is there now.
"""

from __future__ import annotations

import random
import re
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from worlds import Filler, Placed, World

DUNDERS = (
    ("__call__", "lambda s, *a, **k: #"), ("__len__", "lambda s: 2"), ("__bool__", "lambda s: False"), ("__eq__", "lambda s, o: True"), ("__hash__", "lambda s: 3"), ("__iter__", "lambda s: iter([#, #])"), ("__getitem__", "lambda s, i: [#][i if isinstance(i, int) else 0]"),
    ("__contains__", "lambda s, o: True"), ("__getattr__", "lambda s, n: #"), ("__index__", "lambda s: 2"), ("__float__", "lambda s: 2.5"), ("__int__", "lambda s: 4"), ("__add__", "lambda s, o: #"), ("__radd__", "lambda s, o: #"), ("__mul__", "lambda s, o: #"), ("__rmul__", "lambda s, o: #"),
    ("__lt__", "lambda s, o: True"), ("__gt__", "lambda s, o: True"), ("__ne__", "lambda s, o: True"), ("__str__", "lambda s: '$s'"), ("__repr__", "lambda s: '$s'"), ("__format__", "lambda s, f: '$s'"), ("__missing__", "lambda s, k: #"), ("__abs__", "lambda s: #"), ("__neg__", "lambda s: #"), ("__round__", "lambda s, n=0: #"),
    ("__enter__", "lambda s: #"), ("__exit__", "lambda s, *a: None"), ("__get__", "lambda s, o, t=None: #"), ("__set__", "lambda s, o, v: None"), ("__getattribute__", "lambda s, n: #"), ("__dir__", "lambda s: ['a', 'zz']"), ("__copy__", "lambda s: #"), ("__reversed__", "lambda s: iter([#])"), ("__instancecheck__", "lambda s, o: True"),
    ("__next__", "(lambda left: lambda s: next(left))(iter([#, #]))"), ("__floor__", "lambda s: #"), ("__and__", "lambda s, o: #"), ("__or__", "lambda s, o: #"), ("__rsub__", "lambda s, o: #"), ("__pow__", "lambda s, o: #"), ("__rpow__", "lambda s, o: #"), ("__complex__", "lambda s: 1j"), ("__length_hint__", "lambda s: 5"), ("__divmod__", "lambda s, o: (#, #)"), ("__bytes__", "lambda s: b'q'"),
)  # fmt: skip
"""Special methods that a class can gain."""

BUILTINS = (
    "len",
    "str",
    "list",
    "sorted",
    "max",
    "sum",
    "isinstance",
    "getattr",
    "hasattr",
    "type",
    "callable",
    "torch",
    "range",
    "dict",
    "tuple",
    "float",
    "int",
    "bool",
    "Other",
    "operator",
    "repr",
    "any",
)
"""Names that a module can shadow or lose."""

GLOBAL_STATE = (
    "state(torch.is_grad_enabled, torch.set_grad_enabled, False)", "state(torch.get_default_dtype, torch.set_default_dtype, torch.float64)", "state(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)",
    "state(lambda: torch.is_autocast_enabled('cpu'), lambda v: torch.set_autocast_enabled('cpu', v), True)", "state(sys.getrecursionlimit, sys.setrecursionlimit, 1800)", "state(gc.isenabled, lambda v: gc.enable() if v else gc.disable(), False)", "item(os.environ, 'FUZZ_K', '$s')",
)  # fmt: skip

FIRST_ARGUMENT = (
    "torch.linspace(-2., 3., 12).reshape(3, 4)", "torch.ones(5, 4)", "torch.ones(2, 4)", "torch.linspace(-1., 2., 12, dtype=torch.float64).reshape(3, 4)", "torch.ones(4, 3).t()", "torch.ones(3, 4, requires_grad=True)",
    "torch.ones(3, 8)[:, ::2]", "torch.ones(1, 4).expand(3, 4)", "torch.linspace(-1., 2., 28).reshape(7, 4)",
)  # fmt: skip


def vary(rng: random.Random, value: Any) -> str:
    """An expression for another value: of the same type, or an equal one of another type."""
    if isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1)):
        if rng.random() < 0.5:
            return rng.choice(("True", "1", "1.") if value else ("False", "0", "0.", "-0."))
    if isinstance(value, (int, float)):
        if rng.random() < 0.25 and value == value and abs(value) < 1e9:
            return rng.choice((repr(float(value)), repr(int(value)), f"numpy.float64({float(value)!r})"))
        return rng.choice(("#", "#", "#", "#", "None", "'$s'", "torch.tensor(#)", "numpy.float32(#)", "float('nan')"))
    if isinstance(value, str):
        return rng.choice(("'$s'", "'$s'", "#", "None", "['$s']"))
    if isinstance(value, (list, tuple)):
        return rng.choice(("[#, #]", "(#, #)", "[]", "[#]", "collections.deque([#])", "'$s'", "{'k': #}"))
    if isinstance(value, dict):
        return rng.choice(("{'k': #}", "{}", "collections.OrderedDict(k=#)", "[#]", "{'a': #, 'k': #}"))
    if isinstance(value, torch.Tensor):
        return rng.choice(
            (
                "torch.full((4,), float(#))",
                "torch.ones(4, dtype=torch.float64)",
                "#",
                "torch.ones(4, 2)[:, 0]",
                "torch.ones(4, requires_grad=True)",
                "None",
                "torch.ones(2, 4)",
            )
        )
    if isinstance(value, property):
        return rng.choice(("property(lambda s: #)", "#", "lambda s: #"))
    if isinstance(value, staticmethod):
        return "staticmethod(lambda *a, **k: #)"
    if isinstance(value, classmethod):
        return "classmethod(lambda *a, **k: #)"
    if callable(value) and not isinstance(value, type):
        return rng.choice(
            (
                "lambda *a, **k: #",
                "lambda *a, **k: #",
                "lambda *a, **k: a[-1] if a else #",
                "None",
                "property(lambda s: #)",
            )
        )
    return rng.choice(("#", "'$s'", "None", "[#]", "Other()", "Plainer(#)", "lambda *a, **k: #"))


UNCHECKED = frozenset({"_backward_cls"})
"""Attributes that C code takes for what they were without a look: torch's `Function.apply` ends the process (a segmentation fault, eagerly) when
`_backward_cls` is anything else."""


def is_ours(value: Any) -> bool:
    return getattr(value, "__module__", None) == "fuzz_world"


def children(path: str, value: Any) -> Iterator[tuple[str, Any, str]]:
    """(path, object, statement that replaces it) of what an object directly holds."""
    if isinstance(value, dict):
        for key, held in list(dict.items(value))[:6]:
            if isinstance(key, (str, int)) and type(key) in (str, int):
                yield f"dict.__getitem__({path}, {key!r})", held, f"item({path}, {key!r}, {{}})"
    elif isinstance(value, (list, tuple, deque)):
        for i, held in enumerate(list(value)[:5]):
            yield f"{path}[{i}]", held, "" if isinstance(value, tuple) else f"item({path}, {i}, {{}})"
    if isinstance(value, types.FunctionType):
        for i, cell in enumerate(value.__closure__ or ()):
            try:
                yield f"{path}.__closure__[{i}].cell_contents", cell.cell_contents, f"cell({path}, {i}, {{}})"
            except ValueError:
                continue
        for i, held in enumerate(value.__defaults__ or ()):
            yield f"{path}.__defaults__[{i}]", held, f"put({path}, '__defaults__', ({{}},))"
    if isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__, ""
        yield f"{path}.__func__", value.__func__, ""
    for name in getattr(type(value), "__slots__", ()) if is_ours(type(value)) else ():
        if isinstance(name, str) and not name.startswith("__") and hasattr(value, name):
            yield f"{path}.{name}", getattr(value, name), f"put({path}, {name!r}, {{}})"
    own = getattr(value, "__dict__", None)
    if isinstance(own, (dict, types.MappingProxyType)) and (not isinstance(value, type) or is_ours(value)):
        for name, held in list(own.items())[:14]:
            if (
                isinstance(name, str)
                and not name.startswith("_abc")
                and name not in UNCHECKED
                and (name[:2] != "__" or name in ("__wrapped__", "__call__", "__init__", "__len__", "__eq__"))
            ):
                yield f"{path}.__dict__[{name!r}]", held, f"put({path}, {name!r}, {{}})"
    if isinstance(own, dict) and is_ours(type(value)):
        yield f"type({path})", type(value), f"put({path}, '__class__', {{}})"
    if isinstance(value, type) and is_ours(value):
        for i, base in enumerate(value.__mro__[1:4]):
            if is_ours(base):
                yield f"{path}.__mro__[{i + 1}]", base, ""
        if is_ours(type(value)):
            yield f"type({path})", type(value), ""
    for name in ("func", "keywords", "args", "fget", "__func__", "maps", "data"):
        if type(value).__module__ in ("functools", "builtins", "collections") and not isinstance(
            value, (type, types.ModuleType)
        ):
            held = getattr(value, name, None)
            if (
                held is not None
                and not callable(getattr(type(value), name, None))
                and not isinstance(value, BaseException)
            ):
                yield f"{path}.{name}", held, ""


def walk(path: str, value: Any, replace: str, limit: int = 60) -> list[tuple[str, Any, str]]:
    """Everything reachable from an object, nearest first."""
    found: list[tuple[str, Any, str]] = []
    seen: set[int] = set()
    waiting = deque([(path, value, replace)])
    while waiting and len(found) < limit:
        node = waiting.popleft()
        plain = isinstance(node[1], (bool, int, float, str, type(None)))
        if not plain and (id(node[1]) in seen or isinstance(node[1], (types.BuiltinFunctionType, types.CodeType))):
            continue
        seen.add(id(node[1]))
        found.append(node)
        if isinstance(node[1], types.ModuleType) and not node[1].__name__.startswith(("fuzz", "m", "lazy")):
            continue
        waiting.extend(children(*node[:2]))
    return found


def generic_changes(rng: random.Random, path: str, value: Any, replace: str) -> list[str]:
    """Statements that change an object itself, by what it is."""
    found = []
    if replace:
        found += [
            replace.format(vary(rng, value).replace("{", "{{").replace("}", "}}")).replace("{{", "{").replace("}}", "}")
        ] * 2
    if isinstance(value, (list, deque)):
        found += [
            f"item({path}, {rng.choice((0, -1))}, {vary(rng, value[0]) if len(value) else '#'})",
            f"refill({path}, list({path})[::-1])",
            f"do(lambda: {path}.append(#), lambda: {path}.pop())",
            f"cut_item({path}, 0)",
            f"refill({path}, [#, #])",
        ]
    elif isinstance(value, dict) and len(value):
        key = rng.choice([k for k in dict.keys(value) if type(k) in (str, int)] or ["k"])
        found += [
            f"item({path}, {key!r}, {vary(rng, dict.get(value, key))})",
            f"refill({path}, list({path}.items())[::-1])",
            f"cut_item({path}, {key!r})",
            f"item({path}, 'added', #)",
        ]
    elif isinstance(value, types.FunctionType):
        found += [
            f"put({path}, '__defaults__', (#,))",
            f"put({path}, '__kwdefaults__', {{'k': #}})",
            f"put({path}, 'note', #)",
            f"put({path}, '__name__', '$s')",
        ]
        if not value.__closure__:
            found.append(f"put({path}, '__code__', (lambda *a, **k: #).__code__)")
    elif isinstance(value, torch.Tensor):
        found += [
            f"{path}.detach().mul_(2)",
            f"put({path}, 'note', #)",
            f"put({path}, 'data', torch.ones(4))",
            f"put({path}, 'requires_grad', {not value.requires_grad})",
        ]
    elif isinstance(value, type) and is_ours(value):
        for name, made in rng.sample(DUNDERS, 3):
            found.append(f"put({path}, '{name}', {made})")
        there = [
            n
            for n in vars(value)
            if n[:4] != "_abc" and n not in UNCHECKED and (not n.startswith("__") or callable(vars(value)[n]))
        ]
        if there:
            found.append(f"cut({path}, {rng.choice(there)!r})")
        found += [f"put({path}, 'a', #)", f"put({path}, 'extra', property(lambda s: #))"]
    elif hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        found += [
            f"put({path}, '{rng.choice(('a', 'extra', 'v', 'size', 'go', '__call__', 'k'))}', {rng.choice(('#', 'lambda *a: #', repr('w')))})"
        ]
        if is_ours(type(value)):
            found.append(f"put({path}, '__class__', variant(type({path})))")
    return found


def choose(rng: random.Random, made: World, filler: Filler, scope: dict[str, Any], training: bool) -> str:
    """One change to the world at hand, weighed towards what its program reads."""
    kind = rng.random()
    if kind < 0.1:
        return "undo()"
    if kind < 0.14:
        return filler.fill(rng.choice(GLOBAL_STATE), 0)
    if kind < 0.17:
        return filler.fill(f"put(M, '{rng.choice(BUILTINS)}', {rng.choice(('lambda *a, **k: #', '#', 'Other'))})", 0)
    if kind < 0.23:
        first = rng.choice(FIRST_ARGUMENT)
        return f"item(A, 0, {first}{'.detach().requires_grad_()' if training else ''})"
    mentioned = [p for p in made.placed if any(p.read in line for line in made.body)]
    placed = rng.choice(mentioned or made.placed)
    if kind < 0.55 and placed.part.changes:
        body = "\n".join([*made.body, *made.captured])
        used = [c for c in placed.part.changes if is_relevant(c, body)] if rng.random() < 0.85 else []
        return filler.fill(rng.choice(used or placed.part.changes), placed.number, placed.path)
    if kind < 0.72:
        other = placed.made_by if rng.random() < 0.7 else rng.choice(placed.part.objects)
        return placed.replace.format(filler.fill(other, placed.number))
    return filler.fill(anywhere(rng, placed, scope), placed.number)


SIGNS = {
    "__call__": r"\)\(|\w\(|callable|map|key=", "__len__": r"len|bool|if |not |\[|list|sorted", "__bool__": r"if |bool|not |and |or |filter|any|all", "__eq__": r"==|!=| in |index|count|get|\{|set|fromkeys|case|a_match", "__ne__": "!=",
    "__hash__": r"hash|\{|set|get|in |fromkeys|Counter", "__iter__": r"for |list|tuple|sorted|sum|min|max|\*| in |zip|map|enumerate|any|all|iter|set|join", "__getitem__": r"\[|for | in |itemgetter|list|format|%|dict|\*\*", "__contains__": r" in |contains", "__getattr__": r"\.\w|attr", "__getattribute__": r"\.\w|attr",
    "__index__": r"\[|range|\* |repeat|index|%|bytes|chr|just|center|hex|bin|pack|float|int|full", "__float__": r"float|sqrt|full|%|format|complex", "__int__": r"int|%", "__add__": r"\+|sum|reduce|add", "__radd__": r"\+|sum|reduce|add", "__mul__": r"\*|mul", "__rmul__": r"\*|mul", "__lt__": r"<|>|sorted|min|max", "__gt__": r"<|>|sorted|min|max",
    "__str__": r"str|format|%|f\"|print|join", "__repr__": r"repr|str|!r|\[|print", "__format__": r"format|f\"|\{", "__missing__": r"\[|get|format", "__instancecheck__": "isinstance|case", "__get__": r"\.\w", "__set__": r"\.\w", "__dir__": "dir", "__copy__": "copy", "__enter__": "with", "__exit__": "with", "__defaults__": r"\(", "__kwdefaults__": r"\(", "__code__": r"\(",
}  # fmt: skip
"""Where a program may use a special name."""


def is_relevant(change: str, body: str) -> bool:
    """Whether a program may see a change: it uses a name that is quoted in it, or what the special name stands for."""
    names = [w for w in change.split("'")[1::2] if w.isidentifier()]
    return not names or any(re.search(SIGNS.get(n, rf"\b{n}\b"), body) is not None for n in names)


def anywhere(rng: random.Random, placed: Placed, scope: dict[str, Any]) -> str:
    if placed.part.name == "interpreter":  # what the process itself needs
        return rng.choice(placed.part.changes)
    try:
        value = eval(placed.path, scope)
    except Exception:
        return "undo()"
    for _ in range(6):
        try:
            nodes = walk(placed.path, value, placed.replace)
            node = nodes[min(int(rng.expovariate(0.15)), len(nodes) - 1)]
            found = generic_changes(rng, *node)
        except Exception:  # objects whose attributes raise, by an earlier change
            return "undo()"
        if found:
            return rng.choice(found)
    return "undo()"
