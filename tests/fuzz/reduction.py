"""Makes a case of `--mutate` that differs small: fewer calls, changes, statements and definitions, as long as it differs.

`reduce` gives the smaller case, `script` prints it as a program of its own.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import mutated
from changes import Changes, inferred, own_value, variant
from mutated import Case
from worlds import PRELUDE

MINIMAL = {
    "put": "put = setattr",
    "cut": "cut = delattr",
    "item": "def item(o, k, v): o[k] = v",
    "cut_item": "def cut_item(o, k): del o[k]",
    "refill": "def refill(o, v):\n    v = list(v)\n    o.clear()\n    (o.update if hasattr(o, 'update') else o.extend)(v)",
    "cell": "def cell(f, i, v): f.__closure__[i].cell_contents = v",
    "do": "def do(forth, back): forth()",
    "state": "def state(read, write, value): write(value)",
    "var": "def var(v, value): v.set(value)",
    "hook": "def hook(o, register, fn): getattr(o, register)(fn)",
    "referent": "def referent(p): return next(r for r in gc.get_referents(p) if isinstance(r, dict))",
}
"""The helpers of changes that are never taken back."""


def differs(case: Case) -> str | None:
    """The difference of a case; None when there is none, or when eager does not agree with itself, or the case is no program."""
    try:
        found = mutated.check(case, mutated.replay(case))
    except Exception:
        return None
    return None if found.dropped else found.difference


def without_each(items: list[Any]) -> Iterator[list[Any]]:
    """The list without ever smaller runs of its items."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def shorter(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""

    def made(edit: Callable[[Case], None]) -> Case:
        new = copy.deepcopy(case)
        edit(new)
        return new

    for steps in without_each(case.steps):
        if steps:
            yield made(lambda c: setattr(c, "steps", steps))
    for i, step in enumerate(case.steps):
        for kept in without_each(step):
            yield made(lambda c: c.steps.__setitem__(i, kept))
    for name in ("body", "chunks", "captured"):
        for kept in without_each(getattr(case.world, name)):
            yield made(lambda c: setattr(c.world, name, kept))
    for i, text in enumerate(case.world.args):
        if i and text != "None":
            yield made(lambda c: c.world.args.__setitem__(i, "None"))
    while_last = case.world.args[-1] == "None"
    if while_last:
        yield made(lambda c: c.world.args.pop())
    for name in ("chunks", "body"):
        for i, text in enumerate(getattr(case.world, name)):
            for smaller in smaller_texts(text):
                yield made(lambda c: getattr(c.world, name).__setitem__(i, smaller))
    for edit in (
        lambda c: setattr(c, "training", False),
        lambda c: setattr(c, "dynamic", None),
        lambda c: setattr(c, "backend", "eager"),
    ):
        new = made(edit)
        if (new.training, new.dynamic, new.backend) != (case.training, case.dynamic, case.backend):
            yield new


def smaller_texts(text: str) -> Iterator[str]:
    """Fewer lines; a try statement's block alone."""
    lines = text.splitlines()
    if lines and lines[0] == "try:" and "except Exception as error:" in lines:
        yield "\n".join(line[4:] for line in lines[1 : lines.index("except Exception as error:")])
    if len(lines) > 1:
        for kept in without_each(lines):
            if kept:
                yield "\n".join(kept)


def reduce(case: Case) -> Case:
    """A smallest case that still differs: no one thing can be left out."""
    assert differs(case) is not None, "the case does not differ"
    again = True
    while again:
        again = False
        for smaller in shorter(case):
            if differs(smaller) is not None:
                case, again = smaller, True
                break
    return case


def used_prelude(text: str) -> str:
    """The imports and helper functions that a text needs."""
    pieces = PRELUDE.split("\n\n")
    kept = [
        p
        for p in pieces[1:]
        if (name := re.match(r"(?:def|class) (\w+)", p.strip())) and re.search(rf"\b{name[1]}\b", text)
    ]
    text += "".join(kept)
    names = re.findall(
        r"[\w.]+",
        " ".join(line.removeprefix("import ") for line in pieces[0].splitlines() if line.startswith("import ")),
    )
    used = [n for n in names if re.search(rf"\b{n}\b", text)]
    imports = ["import " + ", ".join(used)] if used else []
    if re.search(r"\bnn\.", text):
        imports.append("from torch import nn")
    return "\n".join([*imports, *kept]) + "\n"


def script(case: Case) -> str:
    """A case as a program of its own, which prints what eager and compiled calls give."""
    source = (
        case.world.source()
        .removeprefix(PRELUDE)
        .replace("        t = x * 1.\n        out = []\n", "        t, out = x * 1., []\n")
    )
    changes = "\n".join(text for step in case.steps for text in step)
    source = used_prelude(source + changes) + source
    helpers = [text for name, text in MINIMAL.items() if re.search(rf"\b{name}\(", changes)]
    made, scope = (
        "\n".join(helpers),
        f"globals().get(n) for n in {[n for n in MINIMAL if re.search(rf'{chr(92)}b{n}{chr(92)}(', changes)]}",
    )
    scope = "n: " + scope
    if "variant(" in changes:
        made, scope = made + "\n" + inspect.getsource(variant), scope
    extra = "variant=variant, " if "variant(" in changes else ""
    if "inferred(" in changes + source or "with_inference(" in changes:
        made += "\n" + inspect.getsource(inferred)
        extra += "inferred=inferred, with_inference=inferred, "
    scope = f"M.__dict__.update({{{scope}}}, A=A, M=M, F=M.f, {extra})".replace(", )", ")")
    if "undo()" in changes:
        made = f"{inspect.getsource(own_value)}\n{inspect.getsource(variant)}\n{inspect.getsource(inferred)}\n{inspect.getsource(Changes)}"
        scope = "M.F = M.f; Changes(M, A)"
    train = "\n    A[0].requires_grad_()" if case.training else ""
    back = "\n            r[0].sum().backward()\n            print('   gradient', A[0].grad)" if case.training else ""
    steps = "".join(f"    {step!r},\n" for step in case.steps)
    return f'''\
import gc, operator, types, sys
import argand

WORLD = r"""
{source.strip()}
"""
STEPS = [
{steps}]

{made}

def run(compiled):
    M = sys.modules["fuzz_world"] = types.ModuleType("fuzz_world")
    exec(WORLD, M.__dict__)
    A = M.arguments(){train}
    {scope}
    f = argand.compile(M.f, backend={case.backend!r}, dynamic={case.dynamic!r}) if compiled else M.f
    for step in STEPS:
        for change in step:
            try:
                exec(change, M.__dict__)
            except Exception as error:
                print("change raises", repr(error))
        try:
            r = f(*A)
            print(r){back}
        except Exception as error:
            print("raises", repr(error))

for compiled in (False, True):
    print("compiled" if compiled else "eager")
    run(compiled)
'''
