"""`globals()` and the dict of a module: read and written while names of theirs are, and changed between calls."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import argand

PROGRAMS = {
    "get": "def f(x): return x * globals().get('name', 1.0)",
    "contains": "def f(x): return x * (5 if 'name' in globals() else 1)",
    "item": "def f(x):\n    try: return x * globals()['name']\n    except KeyError: return x * 7",
    "walk": "def f(x): return x * sum(v for k, v in list(globals().items()) if k == 'name')",
    "keys": "def f(x): return x * len([k for k in globals() if k.startswith('na')])",
    "inlined": "def g(x): return x * globals().get('name', 1.0)\ndef f(x): return g(x) + 1",
    "module": "import sys\ndef f(x): return x * vars(sys.modules[__name__]).get('name', 1.0)",
    "write": "def f(x):\n    globals()['made'] = x * 2\n    return made + 1",
    "write in a module": "import sys\nm = sys.modules[__name__]\ndef f(x):\n    vars(m)['made'] = x * 2\n    return made + 1",
    "update": "def f(x):\n    globals().update(made=x * 2)\n    return made + 1",
    "delete": "def f(x):\n    globals().pop('name', None)\n    return x + ('name' in globals())",
    "written inside": "def g(x):\n    globals()['made'] = x * 2\n    return made\ndef f(x): return g(x) + 1",
    "name, then dict": "def f(x):\n    global made\n    made = 5\n    globals()['made'] += 1\n    return x * made",
    "name, then read": "def f(x):\n    global made\n    made = x.shape[0] + 1\n    return x * globals()['made'] + globals().get('made')",
    "dict, then name": "def f(x):\n    global made\n    d = globals()\n    made = 5\n    return x * d['made'] + len(d.get('nothing', 'ab'))",
}  # fmt: skip


def made(text: str, name: str) -> dict[str, Any]:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(torch=torch, made=0)
    exec(text, vars(module))
    return vars(module)


@pytest.mark.parametrize("name", PROGRAMS)
def test_globals(name: str) -> None:
    one, other = made(PROGRAMS[name], "globals_of_eager"), made(PROGRAMS[name], "globals_of_compiled")
    try:
        compiled = argand.compile(other["f"], backend="eager")
        for value in (None, 3.0, 4.0, None, 5.0):
            for namespace in (one, other):
                namespace.pop("name", None)
                if value is not None:
                    namespace["name"] = value
            for _ in range(2):
                with argand.config.patch(cache_size_limit=64):  # compiling adds names to globals
                    found = compiled(torch.ones(2))
                assert repr(found) == repr(one["f"](torch.ones(2)))
                assert repr(other["made"]) == repr(one["made"]) and ("name" in one) == ("name" in other)
    finally:
        del sys.modules["globals_of_eager"], sys.modules["globals_of_compiled"]
