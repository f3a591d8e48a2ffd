"""Small makers shared by the tests of argand._core."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

from argand._core import _C

SRC = os.path.join(os.path.dirname(__file__), "..", "..", "src")


def positional(fn: Callable[..., Any]) -> types.CodeType:
    """The code of a plain function, checked to be usable as transformed code."""
    code = fn.__code__
    assert not code.co_flags & 0x0C and code.co_kwonlyargcount == 0
    return code


def always() -> _C.GuardTree:
    """Guards that hold for every frame."""
    return _C.GuardTree()


def type_guard(index: int, cls: type, label: str = "type") -> _C.GuardTree:
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", index), "type", cls, label=label)
    return tree


def equals_guard(index: int, value: Any, label: str = "equals") -> _C.GuardTree:
    tree = _C.GuardTree()
    tree.check(tree.child(0, "local", index), "equals", value, label=label)
    return tree


class Recorder:
    """A callback that answers from a table {code: answer or function of the frame info} and records what it was asked."""

    def __init__(self, table: dict[types.CodeType, Any] | None = None, default: Any = None) -> None:
        self.table = table or {}
        self.default = default
        self.infos: list[_C.FrameInfo] = []

    @property
    def names(self) -> list[str]:
        return [info.code.co_name for info in self.infos]

    def __call__(self, info: _C.FrameInfo) -> Any:
        if "hypothesis" in info.code.co_filename:
            return None  # its gc callback may run at any time
        self.infos.append(info)
        answer = self.table.get(info.code, self.default)
        return answer(info) if callable(answer) and not isinstance(answer, _C.Entry) else answer


def clone(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own, so that tests do not share caches."""
    made = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def run_python(code: str) -> str:
    """Output of a fresh interpreter; fails on a crash."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([SRC, os.path.dirname(__file__), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def one(accessors: list[tuple[Any, ...]], kind: str, *args: Any) -> _C.GuardTree:
    """A tree with one check at the end of a path; the label is "g"."""
    tree = _C.GuardTree()
    node = 0
    for accessor in accessors:
        node = tree.child(node, *accessor)
    tree.check(node, kind, *args, label="g")
    return tree


def detail(tree: _C.GuardTree, *args: Any, **frame: Any) -> str:
    """The explanation of a failure; checks that the quick answer agrees."""
    result = tree.evaluate(args, **frame)
    assert tree.matches(args, **frame) is (result is True)
    assert isinstance(result, tuple), result
    assert result[:2] == (0, "g")
    return result[2]


def holds(tree: _C.GuardTree, *args: Any, **frame: Any) -> bool:
    result = tree.evaluate(args, **frame)
    assert tree.matches(args, **frame) is (result is True)
    return result is True


LOCAL = [("local", 0)]


KEY = object()


def run(callback: Any, fn: Any, *args: Any, key: object = KEY, **kwargs: Any) -> Any:
    return _C.run_with_callback(callback, key, fn, args, kwargs)


def entry_for(replacement: Any, guards: Any = None, key: object = KEY, payload: Any = None) -> _C.Entry:
    return _C.Entry(positional(replacement), always() if guards is None else guards, key, payload)
