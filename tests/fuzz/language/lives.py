"""Random programs of Python objects that live across graph breaks and calls: containers, iterators, closures, classes, descriptors, contexts.

    python tests/fuzz/language/lives.py [--count 1000] [--seed 0] [--backends eager] [--dynamic] [--no-reduce]

Each program makes a few subjects of `life_objects` and `life_values`, does things to them and asks them things, with graph breaks amid expressions. What it
returns, raises, prints, and everything reachable from arguments and module, is compared by `Picture`: types, contents, identity. The module changes between calls.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import random
import re
import sys
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy
import torch
from life_objects import OBJECTS
from life_parts import ALONE, CHANGES, PRELUDE
from life_values import VALUES

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import control  # noqa: E402
import seeds  # noqa: E402

import argand  # noqa: E402

KINDS: list[tuple[list[str], list[str], list[str]]] = []
"""Of each kind of subject: how one begins, what is done, what is asked."""
for _line in (OBJECTS + VALUES).strip().replace("\n\n", "\n").split("\n"):
    if _line[0] == "=" and (not KINDS or KINDS[-1][1] or KINDS[-1][2]):
        KINDS.append(([], [], []))
    KINDS[-1]["=!?".index(_line[0])].append(_line[2:])
WHOLE = ALONE.strip().replace("::\n", "::").split("\n")
NUMBERS = ("n", "3", "n + 1", "1", "x.shape[0]", "n % 2", "2")
TENSORS = ("x", "x + 1", "z", "(x * n)", "-x", "x[:1]")
BETWEEN = (
    "brk(None)", "argand.graph_break()", "x = x + 1", "print(n, brk(1))", "z.add_(1)", "keep = S", "LOG.append(S)", "KEPT[:] = [S]"
)  # fmt: skip
ASKING = (
    "LOG.append(Q)", "r = Q", "LOG.append((brk(1), Q))", "LOG.append([r, Q, brk(2)])", "r = [same(Q)]", "x = x + (1 if (Q) else 2)"
)  # fmt: skip
CAUGHT = ("Exception", "(KeyError, TypeError)", "AttributeError", "ValueError")


class Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.names, self.count = rng, [], {}, 0

    def filled(self, text: str, subject: str) -> str:
        """A part with its places filled."""
        rng = self.rng
        others = [name for name in self.names if name != subject] or ["x"]
        text = re.sub(r"\bS\b", subject, text)
        text = re.sub(r"\bO\b", lambda m: rng.choice(others), text)
        text = re.sub(r"\bK\b", lambda m: rng.choice(NUMBERS), text)
        text = re.sub(r"\bX\b", lambda m: rng.choice(TENSORS), text)
        return re.sub(r"\bB\(", lambda m: rng.choice(("brk(", "same(", "same(")), text)

    def emit(self, depth: int, text: str) -> None:
        self.lines += ["    " * depth + line for line in text.split("::")]

    def step(self, depth: int) -> None:
        rng = self.rng
        if not self.names or rng.random() < 0.25 and len(self.names) < 5:
            kind = rng.randrange(len(KINDS))
            self.count += 1
            name = f"s{self.count}"
            self.emit(depth, f"{name} = {self.filled(rng.choice(KINDS[kind][0]), name)}")
            self.names[name] = kind
            return
        name = rng.choice(list(self.names))
        _, acts, asks = KINDS[self.names[name]]
        chance = rng.random()
        if chance < 0.15:
            self.emit(depth, self.filled(rng.choice(WHOLE), name))
        elif chance < 0.5 and acts:
            self.emit(depth, self.filled(rng.choice(acts), name))
        elif chance < 0.6:
            self.emit(depth, re.sub(r"\bS\b", name, rng.choice(BETWEEN)))
        else:
            asked = self.filled(rng.choice(asks), name)
            self.emit(depth, rng.choice(ASKING).replace("Q", asked))

    def steps(self, depth: int, count: int) -> None:
        """Steps, some of them inside of something."""
        rng = self.rng
        while count > 0:
            kind, inside = rng.randrange(30), rng.randrange(1, 3)
            count -= inside
            self.count += 1
            at = self.count
            if depth > 3 or kind > 9:
                for _ in range(inside):
                    self.step(depth)
                continue
            known = dict(self.names)
            before, after = "", ""
            if kind < 3:
                before, last = "try:", rng.choice(("", "::    raise", "::    KEPT.append(type(error))"))
                after = f"except {rng.choice(CAUGHT)} as error:::    LOG.append(error){last}"
                after += rng.choice(("", f"::finally: LOG.append({at})"))
            elif kind == 3:
                before = rng.choice(("for j in range(2):", "for j in (n, 3):", "for j, q in enumerate(x):"))
            elif kind == 4:
                before = rng.choice(("if n > 2:", "if x.sum() > 0:", "if brk(n) % 2:"))
            elif kind == 5:
                before = rng.choice(("with Managed(KeyError) as man:", "with managed(LOG):", "with torch.no_grad():", "with Managed():"))  # fmt: skip
            elif kind == 6:
                shared = "".join(f"::    nonlocal {', '.join(known)}" for _ in range(1) if known)
                before, after = f"def in{at}(x, z=z, r=None):{shared}", f"    return x, r::x, r = in{at}(x + 1)"
            elif kind == 7:
                shared = "".join(f"::    nonlocal {', '.join(known)}" for _ in range(1) if known)
                before, after = f"def in{at}(x, r=None):{shared}::    yield x", f"    yield r::for r in in{at}(x): LOG.append(brk(r))"  # fmt: skip
            elif kind == 8:
                before = f"class C{at}:::    r = None"
                after = f"LOG.append(sorted(q for q in vars(C{at}) if q[0] != '_'))"
            else:
                before = f"while n < {rng.randrange(3, 5)}:::    n += 1"
            self.emit(depth, before)
            for _ in range(inside):
                self.steps(depth + 1, 1)
            if kind in (6, 7, 8):
                self.names = {name: self.names[name] for name in known}
            if after:
                self.emit(depth, after)


def program(seed: int) -> str:
    """The text of `f(x, n)`, which compiles as Python; its changes are in its last line."""
    while True:
        rng = random.Random(seed)
        seed += 1_000_003
        writer = Writer(rng)
        writer.steps(1, rng.choice((3, 4, 6, 8)))
        scope = [line for line in ("global GLOBAL", "global RATE") if any(line in text for text in writer.lines)]
        lines = [re.sub(r"global (GLOBAL|RATE); ", "", line) for line in writer.lines]
        result = ", ".join(["x", "r", *rng.sample(list(writer.names), min(2, len(writer.names)))])
        head = ["def f(x, n, z, keep=None):", *scope, "r = None"]
        text = "\n    ".join(head) + "\n" + "\n".join(lines) + f"\n    return {result}\n"
        changes = rng.sample(CHANGES.strip().split("\n"), 2)
        try:
            compile(text, "<control>", "exec")
        except SyntaxError:
            continue
        return text + "# " + " ;; ".join(changes) + "\n"


class Picture:
    """What is reachable from a value, as texts and numbers: an object that was seen before is a number."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.seen: dict[int, int] = {}
        self.held: list[Any] = []
        self.space = space
        self.storages: dict[int, int] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, (bool, types.EllipsisType, types.NotImplementedType)):
            return repr(value)
        kind = type(value)
        if kind in (int, str, bytes, complex):
            return f"{kind.__name__} {value!r}"
        if kind is float:
            return value
        if id(value) in self.seen:
            return f"again {self.seen[id(value)]}"
        if depth > 14:
            return "deep"
        self.seen[id(value)] = len(self.seen)
        self.held.append(value)
        return [kind.__name__, self.inside(value, kind, depth + 1)]

    def inside(self, value: Any, kind: type, depth: int) -> Any:
        def all_of(values: Any) -> list[Any]:
            return [self.of(one, depth) for one in values]

        if isinstance(value, torch.Tensor):
            storage = self.storages.setdefault(value.untyped_storage().data_ptr(), len(self.storages))
            return [control.plain(value), storage if value.numel() else "empty", value.stride(), self.of(vars(value), depth)]  # fmt: skip
        if isinstance(value, numpy.ndarray):
            return [str(value.dtype), value.tolist()]
        if isinstance(value, BaseException):
            inside = value.exceptions if isinstance(value, BaseExceptionGroup) else ()
            extra = all_of(
                (value.args, value.__cause__, value.__context__, value.__suppress_context__, vars(value), inside)
            )
            return [str(value)[:300], lines_of(value), *extra]
        if isinstance(value, (set, frozenset)):
            return [sorted(map(repr, value)) if depth < 12 else len(value), self.slots(value, depth)]
        if isinstance(value, dict):
            pairs = [[self.of(k, depth), self.of(v, depth)] for k, v in dict.items(value)]
            return [pairs, self.of(getattr(value, "default_factory", None), depth), self.slots(value, depth)]
        if isinstance(value, (list, tuple, collections.deque)):
            parts = list(kind.__mro__[-2].__iter__(value)) if isinstance(value, (list, tuple)) else list(value)
            return [*all_of(parts), getattr(value, "maxlen", None), self.slots(value, depth)]
        return self.other(value, kind, depth)

    def other(self, value: Any, kind: type, depth: int) -> Any:
        if isinstance(value, types.FunctionType):
            cells = [
                cell.cell_contents if full(cell) else "empty"
                for cell in value.__closure__ or ()
                if not hasattr(value, "registry") and value.__module__ != "functools"
            ]
            parts = (list(value.__defaults__ or ()), value.__kwdefaults__, vars(value), cells)
            return [value.__name__, value.__qualname__, *(self.of(one, depth) for one in parts)]
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return [
                value.__name__,
                frame
                and (
                    frame.f_lineno,
                    self.of({k: v for k, v in sorted(frame.f_locals.items()) if k[:1] != "." or k == ".0"}, depth),
                ),
            ]
        if isinstance(value, types.MethodType):
            return [self.of(value.__self__, depth), self.of(value.__func__, depth)]
        if isinstance(value, type):
            if value.__module__ not in (self.space["__name__"], "builtins") or value.__module__ == "builtins":
                return value.__qualname__
            names = {k: v for k, v in vars(value).items() if k not in ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl")}  # fmt: skip
            return [value.__qualname__, [base.__name__ for base in value.__mro__], self.of(names, depth)]
        if isinstance(value, (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)):
            return "opaque"
        if isinstance(value, weakref.ref):
            return self.of(value(), depth)
        if isinstance(value, (type({}.keys()), type({}.values()), type({}.items()), bytearray, range, slice)):
            return repr(value)[:100] if isinstance(value, (bytearray, range, slice)) else self.of(list(value), depth)
        reduced = self.slots(value, depth)
        if kind.__module__ in ("itertools", "builtins") and hasattr(kind, "__next__"):
            try:
                reduced.append(self.of([*itertools.islice(value, 5)], depth))
            except Exception as error:
                reduced.append(repr(error))
        return reduced

    def slots(self, value: Any, depth: int) -> list[Any]:
        """Its attributes."""
        parts: list[Any] = []
        with contextlib.suppress(Exception):
            parts.append(self.of(object.__getattribute__(value, "__dict__"), depth))
        for base in type(value).__mro__:
            for name in base.__dict__.get("__slots__", ()) if base.__module__ == self.space["__name__"] else ():
                if name[:2] != "__":
                    with contextlib.suppress(AttributeError):
                        parts.append([name, self.of(object.__getattribute__(value, name), depth)])
        return parts


def full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None or True
    except ValueError:
        return False


def lines_of(error: BaseException) -> list[int]:
    return control.chain(error)[-1]


def loaded(text: str) -> dict[str, Any]:
    """A module of its own, with what a program uses."""
    module = types.ModuleType("lives_world")
    space = vars(module)
    WORLDS.append(module)
    space.update(
        brk=argand.disable(lambda v: v),
        KEPT=[],
        argand=argand,
        counter_code=(lambda start, step=1, seen=[]: start).__code__,
    )  # noqa: B006
    sys.modules["lives_world"] = module
    exec(compile(PRELUDE + "\ndef same(v): return v\nOUTER_LIST2 = [3]\n", "<prelude>", "exec"), space)
    exec(compile(text, "<control>", "exec"), space)
    return space


WORLDS: list[types.ModuleType] = []
FOREIGN = ("brk", "argand", "at")


def call(space: dict[str, Any], fn: Any, at: int, changes: list[str]) -> Any:
    """What the call number `at` gives, prints and leaves."""
    sys.modules["lives_world"] = next(module for module in WORLDS if vars(module) is space)
    x = torch.randn((3, 3, 5, 1)[at % 4], generator=torch.Generator().manual_seed(at))
    z = torch.ones(1)
    space["LOG"].clear()
    space["KEPT"].clear()
    space["at"] = at
    if at == 2:
        for change in changes:
            with contextlib.suppress(Exception):
                exec(change, space)
    out = io.StringIO()
    torch.manual_seed(at)
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result: Any = fn(x, (0, 3, 4, 2)[at % 4], z)
        except Exception as error:
            result = error
    said = sorted(str(w.message)[:100] for w in warned if w.category is UserWarning and "careful" in str(w.message))
    picture = Picture(space)
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    left = {
        k: v for k, v in space.items() if k[:2] != "__" and k not in FOREIGN and not isinstance(v, types.ModuleType)
    }
    return [*(picture.of(one) for one in (result, space["LOG"], [x, z, out.getvalue(), said], left)), grad]


def differing(at: int, want: list[Any], got: list[Any]) -> str | None:
    """The first part that is another."""
    for name, a, b in zip(("result", "log", "arguments, text", "module", "grad mode"), want, got, strict=True):
        if not control.near(a, b):
            path, a, b = narrowed(a, b, "")
            return f"call {at}, {name}{path}:\n  eager    {str(a)[:600]}\n  compiled {str(b)[:600]}"
    return None


def narrowed(a: Any, b: Any, path: str) -> tuple[str, Any, Any]:
    """The smallest part that differs."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (one, other) in enumerate(zip(a, b, strict=True)):
            if not control.near(one, other):
                if not isinstance(one, list) or not isinstance(other, list):
                    return f"{path}[{at}] in {str(a)[:200]}", one, other
                return narrowed(one, other, f"{path}[{at}]")
    return path, a, b


def difference(text: str, backend: str, dynamic: bool | None) -> str | None:
    changes = text.rstrip("\n").split("\n")[-1].removeprefix("# ").split(" ;; ")
    eager, again, compiled = loaded(text), loaded(text), loaded(text)
    fn = argand.compile(compiled["f"], backend=backend, dynamic=dynamic)
    state = random.getstate()
    try:
        with seeds.calls():
            for at in (0, 1, 2, 1, 3, 0):
                random.seed(at)
                want = call(eager, eager["f"], at, changes)
                random.seed(at)
                if not control.near(want, call(again, again["f"], at, changes)):
                    return None
                random.seed(at)
                try:
                    got = call(compiled, fn, at, changes)
                except Exception as error:
                    return f"call {at}: {type(error).__name__}: {error}"
                if (how := differing(at, want, got)) is not None:
                    return how
        return None
    finally:
        random.setstate(state)
        WORLDS.clear()
        torch.set_grad_enabled(True)


def main() -> int:
    return seeds.run_main(__doc__, 1000, program, difference, 2500)


if __name__ == "__main__":
    sys.exit(main())
