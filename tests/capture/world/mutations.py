"""Every change of every subject, wherever the object is found and however it is read: compiled against eager.

    python -m tests.capture.world.mutations                 # all of them (several minutes)
    python -m tests.capture.world.mutations --only enum     # subjects whose name contains the text
    python -m tests.capture.world.mutations --share 20      # every 20th combination

Each combination is one program: called, the object changed, called, changed back, called. The suite runs a fixed share.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.capture import table
from tests.capture.world import mutation_classes, mutation_functions, mutation_modules, mutation_values
from tests.capture.world.mutation_subjects import SUBJECTS

import argand

assert mutation_classes and mutation_functions and mutation_modules and mutation_values  # they add to SUBJECTS
X = torch.tensor([1.0, -2.0])


class Holder:
    o: Any


_PLACES: dict[str, str] = {
    "argument": "def program(x, o):\n    return x + 1, {read}",
    "attribute": "def program(x, h):\n    o = h.o\n    return x + 1, {read}",
    "list item": "def program(x, h):\n    o = h[0]\n    return x + 1, {read}",
    "dict item": "def program(x, h):\n    o = h['o']\n    return x + 1, {read}",
    "global": "def program(x):\n    return x + 1, {read}",
    "closure": "def make(o):\n    def program(x):\n        return x + 1, {read}\n    return program\nprogram = make(o)",
    "class attribute": "def program(x):\n    o = Cls.o\n    return x + 1, {read}",
    "module attribute": "def program(x):\n    o = mod.o\n    return x + 1, {read}",
    "default": "def helper(x, o=o):\n    return x + 1, {read}\ndef program(x):\n    return helper(x)",
    "method": (
        "class H:\n    def run(self, x):\n        o = self.o\n        return x + 1, {read}\nh = H()\nh.o = o\ndef program(x, h=h):\n    return h.run(x)"
    ),
    "two levels": (
        "def inner(x, o):\n    return x + 1, {read}\ndef middle(x, h):\n    return inner(x, h['o'])\ndef program(x, h):\n    return middle(x, h)"
    ),
    "helper's cell": (
        "def make(o):\n    def helper(x):\n        return x + 1, {read}\n    return helper\nhelper = make(o)\ndef program(x):\n    return helper(x)"
    ),
}


def program_of(place: str, read: str, o: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The program that finds the object at the place, and its arguments."""
    space: dict[str, Any] = {"torch": torch, "o": o, "__name__": "mutations"}
    holder: Any = None
    if place == "attribute":
        holder = Holder()
        holder.o = o
    elif place == "list item":
        holder = [o]
    elif place in ("dict item", "two levels"):
        holder = {"o": o}
    elif place == "class attribute":
        space["Cls"] = type("Cls", (), {"o": staticmethod(o) if isinstance(o, types.FunctionType) else o})
    elif place == "module attribute":
        module = space["mod"] = types.ModuleType("mod")
        module.o = o  # type: ignore[attr-defined]
    exec(_PLACES[place].format(read=read), space)
    args = (X, o) if place == "argument" else (X, holder) if holder is not None else (X,)
    return space["program"], args


def answer(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What can be compared: values with their types, exceptions by type."""
    try:
        result = call(*args)
    except RecursionError:
        return "RecursionError"
    except Exception as e:
        return f"{type(e).__name__}: {str(e).replace(hex(id(e)), '')}" if type(e) is not TypeError else "TypeError"
    return re.sub("grad_fn=<[^>]*>", "grad_fn", repr(result))


def combinations(only: str = "") -> Iterator[tuple[str, str, int, int]]:
    """(subject, place, number of the read, number of the change)."""
    for name, make in SUBJECTS.items():
        if only in name:
            made = make()
            for r in range(len(made.reads)):
                for c in range(len(made.changes)):
                    for place in _PLACES:
                        yield name, place, r, c


def differs(name: str, place: str, r: int, c: int, backend: str = "eager") -> str | None:
    """Runs one combination: None, or what was different."""
    argand.reset()
    made = SUBJECTS[name]()
    read = made.reads[r]
    label, do, undo = made.changes[c]
    program, args = program_of(place, read, made.o)
    compiled = argand.compile(program, backend=backend)
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in ("first", "changed", "back", "changed again"):
            if step.startswith("changed"):
                do()
                stack.callback(undo)
            elif step == "back":
                stack.close()
            want = answer(program, args)
            got = answer(compiled, args)
            if want != got:
                return f"{name} | {place} | {read} | {label} | {step}: {got} is not {want}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--place", default="")
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    table.run(
        combinations(options.only),
        lambda name, place, *_: options.place in place,
        lambda *combination: differs(*combination, options.backend),
        options.share,
    )


if __name__ == "__main__":
    main()
