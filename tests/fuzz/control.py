"""Random programs of Python's control flow around tensors: nested tries, managers, generators, coroutines, matches, closures.

    python tests/fuzz/control.py [--count 1000] [--seed 0] [--backends eager] [--dynamic] [--no-reduce]

Everything that happens is written to a log: what is entered, left, caught, yielded, in which order, and with which exceptions behind which.
"""

from __future__ import annotations

import random
import sys
import traceback
from typing import Any

import seeds
import torch

import argand

PRELUDE = """
import torch, functools, itertools, contextlib
class Boom(Exception): pass
class Other(ValueError): pass
class Manager:
    def __init__(self, name, log, swallow=False): self.name, self.log, self.swallow = name, log, swallow
    def __enter__(self):
        self.log.append(('enter', self.name)); return self
    def __exit__(self, kind, error, tb):
        self.log.append(('exit', self.name, kind and kind.__name__, str(error)[:60])); return self.swallow
@contextlib.contextmanager
def managed(name, log):
    log.append(('begin', name))
    try: yield name
    except Boom as error:
        log.append(('seen', str(error)[:60])); raise Other('from manager') from error
    finally: log.append(('end', name))
class Point:
    __match_args__ = ('a', 'b')
    def __init__(self, a, b): self.a, self.b = a, b
def may_raise(x, k, log):
    log.append(('may', k))
    if k % 3 == 0: raise Boom(f'k{k}')
    if k % 5 == 0: raise Other(f'o{k}')
    return x + k
def gen(x, n, log):
    try:
        for i in range(n):
            got = yield x + i
            if got: log.append(('got', got))
    except Boom as error:
        log.append(('thrown', str(error))); yield x * 0
    finally: log.append(('closed', n))
def gen2(x, n, log):
    r = yield from gen(x, n, log)
    log.append(('inner', r)); yield x - 1
    return n
async def co(x, k, log):
    log.append(('co', k))
    if k % 4 == 3: raise Boom(f'co{k}')
    return x * k
async def outer(x, k, log):
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(log.append, ('callback', k))
        y = await co(x, k, log)
    return y + 1
def drive(c):
    try: c.send(None)
    except StopIteration as stop: return stop.value
    finally: c.close()
"""


class Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.count = rng, [], 0

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def number(self) -> str:
        return self.rng.choice(
            ("n", "i", "n + 1", "i * 2", "len(log)", "3", "5", "x.shape[0]", "n % 2", "7", "int(x.dim())")
        )

    def condition(self) -> str:
        return self.rng.choice(
            ("x.sum() > 0", f"{self.number()} % 2", f"{self.number()} > 2", "(w := x.mean()) > 0", "len(log) % 3 == 0", "x.shape[0] > 2", "isinstance(x, torch.Tensor)", "x.max().item() > 1", "log and log[-1][0] == 'may'")
        )  # fmt: skip

    def expression(self) -> str:
        k = self.number()
        return self.rng.choice(
            (f"x + {k}", "x * 0.5", f"may_raise(x, {k}, log)", f"sum([y for y in gen(x, {k} % 4, log)], x)", f"drive(outer(x, {k}, log))", f"drive(co(x, {k}, log))", f"next(gen2(x, {k} % 3, log))", "torch.stack([y for y in (x, -x) if y.sum() > 0] or [x]).sum(0)",
             f"functools.reduce(lambda a, b: a + b, (x * j for j in range({k} % 3)), x)", f"max((x, x + {k}), key=lambda t: t.sum().item())", f"x[[{k} % 9]].sum() + x", f"x.view({k}, -1).sum() + x", f"(lambda *a, **kw: a[0] + kw.get('q', 0))(x, q={k})", f"[x, -x][{k}]", f"{{'a': x}}.get({k}, x)", "(*_, last)[-1] if (last := x) is None else last", f"x / ({k} - 3)",
             f"next(itertools.islice(gen(x, 5, log), {k} % 6, None))", f"dict(zip(range({k} % 3), (x, x)))[0]", "sorted([x, -x], key=lambda t: float(t.sum()))[0]")
        )  # fmt: skip

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, depth: int, level: int, loop: bool) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 2, 3))):
            self.statement(depth, level, loop)

    def statement(self, depth: int, level: int, loop: bool) -> None:
        rng, emit = self.rng, self.emit
        kind = rng.randrange(22 if level else 9)
        if kind < 3:
            emit(depth, f"x = {self.expression()}")
        elif kind == 3:
            emit(depth, f"log.append(('at', {self.count}, {self.number()}))")
        elif kind == 4:
            emit(depth, rng.choice(("if i > 2: raise Boom('now')", "raise Other(f'{x.shape[0]}') from Boom('cause')", f"if {self.condition()}: raise Boom(str({self.number()}))", "assert x.sum() > -50, 'low'", "del x; x = z", "x.add_(1)", "z[0] = i", "raise ExceptionGroup('g', [Boom('a'), Other('b')])")))  # fmt: skip
        elif kind == 5 and loop:
            emit(depth, f"if {self.condition()}: {rng.choice(('break', 'continue'))}")
        elif kind == 6:
            emit(depth, f"if {self.condition()}: return x, {self.number()}")
        elif kind < 9:
            emit(depth, f"x = x + {self.number()}")
        elif kind < 12:
            emit(depth, "try:")
            self.block(depth + 1, level - 1, loop)
            if rng.random() < 0.25:
                emit(depth, f"except* {rng.choice(('Boom', 'Other'))} as group:")
                emit(depth + 1, "log.append(('group', [str(e)[:60] for e in group.exceptions]))")
            else:
                if rng.random() < 0.75:
                    emit(
                        depth,
                        f"except {rng.choice(('Boom', 'Other', '(Boom, IndexError)', 'Exception', 'RuntimeError', 'ZeroDivisionError'))} as error:",
                    )
                    emit(
                        depth + 1,
                        "log.append(('caught', type(error).__name__, str(error)[:60], type(error.__context__).__name__, type(error.__cause__).__name__))",
                    )
                    if rng.random() < 0.4:
                        self.block(depth + 1, level - 1, loop)
                    if rng.random() < 0.2:
                        emit(depth + 1, "raise")
                    if rng.random() < 0.4:
                        emit(depth, "else:")
                        self.block(depth + 1, level - 1, loop)
                    final = rng.random() < 0.4
                else:
                    final = True
                if final:
                    emit(depth, "finally:")
                    emit(depth + 1, f"log.append(('finally', {self.count}))")
                    if rng.random() < 0.4:
                        self.block(depth + 1, level - 1, loop)
        elif kind < 14:
            manager = rng.choice((f"Manager('{self.name('m')}', log)", f"Manager('{self.name('s')}', log, True)", f"managed('{self.name('c')}', log)", "contextlib.suppress(Boom)", "torch.no_grad()", "contextlib.ExitStack() as stack"))  # fmt: skip
            emit(depth, f"with {manager}:")
            if "stack" in manager:
                emit(
                    depth + 1,
                    f"stack.callback(log.append, ('left', {self.count})); stack.enter_context(Manager('st', log))",
                )
            self.block(depth + 1, level - 1, loop)
        elif kind < 17:
            what = rng.choice((f"for i in range({self.number()} % 5):", f"for i, y in enumerate(gen(x, {self.number()} % 4, log)):", f"for i in itertools.count():\n{'    ' * (depth + 1)}if i > {self.number()} % 4: break", "for i, y in zip(range(3), x):"))  # fmt: skip
            for line in what.split("\n"):
                self.lines.append(line if line.startswith(" ") else "    " * depth + line)
            self.block(depth + 1, level - 1, True)
            if rng.random() < 0.3:
                emit(depth, "else:")
                self.block(depth + 1, level - 1, loop)
        elif kind == 17:
            counter = self.name("c")
            emit(depth, f"{counter} = 0")
            emit(depth, f"while {counter} < 3 and {self.condition()}:")
            emit(depth + 1, f"{counter} += 1")
            self.block(depth + 1, level - 1, True)
        elif kind == 18:
            emit(depth, f"match {rng.choice(('(x.shape[0], i)', 'Point(i, x)', '[i, n, 3]', '{chr(97): i}', 'i'))}:")
            emit(
                depth + 1,
                rng.choice(
                    (
                        "case (1 | 2, k):",
                        "case Point(0 | 1 as k):",
                        "case [a, *rest] if len(rest) > 1:",
                        "case {'a': k, **more}:",
                        "case int() if i > 1:",
                    )
                ),
            )
            self.block(depth + 2, level - 1, loop)
            emit(depth + 1, "case _:")
            self.block(depth + 2, level - 1, loop)
        elif kind == 19:
            inner = self.name("f")
            emit(depth, f"def {inner}(x, *args, k=i, **kw):")
            emit(depth + 1, "nonlocal z")
            emit(depth + 1, f"z = z + {self.number()}")
            self.block(depth + 1, level - 1, False)
            emit(depth + 1, "return x, k")
            emit(depth, f"{self.name('r')} = {inner}(x, *[1, 2][:i], **{{'q': 1}}); x = x + z.mean()")
        elif kind == 20:
            g = self.name("g")
            emit(depth, f"{g} = {rng.choice(('gen', 'gen2'))}(x, 3, log)")
            for _ in range(rng.randrange(1, 4)):
                emit(depth, rng.choice((f"x = x + next({g})", f"x = x + ({g}.send({self.count}) if log and log[-1][0] == 'got' else next({g}))", f"x = {g}.throw(Boom('in'))", f"{g}.close()", f"x = x + next({g}, x)", f"x, *_ = {g}")))  # fmt: skip
        else:
            emit(depth, f"if {self.condition()}:")
            self.block(depth + 1, level - 1, loop)
            if rng.random() < 0.5:
                emit(depth, f"elif {self.condition()}:")
                self.block(depth + 1, level - 1, loop)
            if rng.random() < 0.5:
                emit(depth, "else:")
                self.block(depth + 1, level - 1, loop)


def program(seed: int) -> str:
    """The text of `f(x, n, log)`, which compiles as Python."""
    rng = random.Random(seed)
    while True:
        writer = Writer(rng)
        for _ in range(rng.choice((2, 3, 4))):
            writer.statement(1, 3, False)
        text = "def f(x, n, log):\n    i, z = n, x * 1\n" + "\n".join(writer.lines) + "\n    return x, z, i\n"
        try:
            compile(text, "<made>", "exec")
        except SyntaxError:  # a break inside of except*, say
            continue
        return text


def chain(error: BaseException | None, depth: int = 0) -> Any:
    """An exception with those behind it."""
    if error is None or depth > 4:
        return None
    inside = [chain(one, depth + 1) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<control>" and frame.name != "run"
    ]
    return (
        type(error).__name__,
        str(error)[:200],
        chain(error.__cause__, depth + 1),
        chain(error.__context__, depth + 1),
        inside,
        lines,
    )


def seen(fn: Any, call: int) -> Any:
    g = torch.Generator().manual_seed(call)
    x = torch.randn((3, 3, 5, 1)[call % 4], generator=g)
    log: list[Any] = []
    try:
        result: Any = fn(x, (0, 3, 4, 2)[call % 4], log)
    except Exception as error:
        result = chain(error)
    return plain((result, log, x, torch.is_grad_enabled()))


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            "tensor",
            str(value.dtype),
            tuple(value.shape),
            value.requires_grad,
            [round(float(v), 3) for v in value.detach().flatten()],
        )
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, str, type(None))) else repr(value)


def loaded(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(PRELUDE, "<prelude>", "exec"), space)
    exec(compile(text, "<control>", "exec"), space)
    return space["f"]


def near(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2e-3 * max(1.0, abs(a)) or (a != a and b != b) or a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(near, a, b))
    return bool(a == b)


def differing(call: int, want: list[Any], got: list[Any]) -> str | None:
    """The first part of what a call gave, logged and left that is another than eager's."""
    for name, a, b in zip(("result", "log", "argument", "grad mode"), want, got, strict=True):
        if not near(a, b):
            return f"call {call}, {name}:\n  eager    {a}\n  compiled {b}"
    return None


def difference(text: str, backend: str, dynamic: bool | None) -> str | None:
    eager, fn = loaded(text), argand.compile(loaded(text), backend=backend, dynamic=dynamic)
    try:
        with seeds.calls():
            for call in range(5):
                want = seen(eager, call)
                if not near(want, seen(eager, call)):
                    return None
                try:
                    got = seen(fn, call)
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    return f"call {call}: {type(error).__name__}: {error}"
                if (how := differing(call, want, got)) is not None:
                    return how
        return None
    finally:
        torch.set_grad_enabled(True)


def main() -> int:
    return seeds.run_main(__doc__, 1000, program, difference, 1500)


if __name__ == "__main__":
    sys.exit(main())
