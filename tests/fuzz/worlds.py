"""Random worlds for `--mutate`: a module of classes, functions and objects, and a function `f` that reads them in many ways.

`world(rng, ...)` chooses parts, places their objects where a program can have them (globals, arguments, closures, defaults, class attributes,
containers, other modules), tries reads on a first instance of the module, and writes `f` of those that are worth it.
"""

from __future__ import annotations

import itertools
import linecache
import random
import re
import sys
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from parts import PYTHON_PARTS, Part
from parts_library import LIBRARY_PARTS
from parts_torch import TORCH_PARTS
from reads import generic_reads, statement
from snapshots import snapshot

PARTS = PYTHON_PARTS + LIBRARY_PARTS + TORCH_PARTS

PRELUDE = """\
import abc, argparse, array, bisect, cmath, codecs, collections, collections.abc, contextvars, copy, ctypes, dataclasses, datetime, decimal
import enum, fractions, functools, gc, heapq, inspect, io, itertools, json, locale, logging, math, numbers, operator, os, pathlib, queue, random, re
import signal, statistics, string, struct, sys, threading, time, types, typing, urllib.parse, uuid, warnings, weakref
import numpy, torch, argand
from torch import nn

class Other:
    unit = 4
    a = b = v = 6
    def size(self): return 5
    def go(self): return 8
    def __repr__(self): return 'other'

class Plainer:
    def __init__(self, v): self.v = v
    def __repr__(self): return 'plainer'
    def go(self, k=1): return self.v + k

def a_match(o):
    match o:
        case [a, *_]: return a
        case {'k': k}: return k
        case int() | float() | str(): return o
        case Other(unit=u): return u
        case _: return 'none'

def with_value(o):
    with o as v:
        return v

def raised(e):
    try:
        raise e
    except Exception as error:
        return str(error), error.args

def import_value(name):
    import importlib
    return importlib.import_module(name).v
"""

_files = itertools.count()

NUMBERS = ("1", "2", "3", "4", "5", "7", "0", "1.", "2.", "1.5", "2.5", "0.5", "-1", "-2.", "True", "6.")
FEW_NUMBERS = ("2", "3", "2.", "3.")
WORDS = ("k", "abc", "other", "longer one", "Q", "")


def load(source: str) -> types.ModuleType:
    """The world as a module of its own, with its lines visible to tracebacks."""
    name = f"<world {next(_files)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = sys.modules["fuzz_world"] = types.ModuleType("fuzz_world")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@dataclass
class Placed:
    """An object of the world: the part it comes from, how `f` reaches it, how a change does, how another is put there."""

    part: Part
    number: int
    made_by: str
    read: str
    path: str
    replace: str


@dataclass
class World:
    """The text of a world, in pieces that a reducer can leave out."""

    chunks: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=lambda: ["torch.linspace(-1., 2., 12).reshape(3, 4)"])
    captured: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)

    def source(self) -> str:
        names = ", ".join(["x", *(f"a{i}" for i in range(1, len(self.args)))])
        inner = ["        t = x * 1.", "        out = []"]
        inner += ["        " + line for text in self.body for line in text.splitlines()]
        lines = [PRELUDE, *self.chunks, "def make_f():", *("    " + text for text in self.captured)]
        lines += [f"    def f({names}):", *inner, "        return t, out", "    return f", "f = make_f()"]
        made = ["def arguments():", "    return [", *(f"        {a}," for a in self.args), "    ]"]
        return "\n".join([*lines, *made]) + "\n"


class Filler:
    """Fills in the numbers and words of a template."""

    def __init__(self, rng: random.Random, few: bool) -> None:
        self.rng = rng
        self.numbers = FEW_NUMBERS if few else NUMBERS

    def fill(self, text: str, number: int, path: str = "") -> str:
        text = text.replace("~", str(number)).replace("$o", path)
        text = re.sub("#", lambda _: self.rng.choice(self.numbers), text)
        return re.sub(r"\$s", lambda _: self.rng.choice(WORDS), text)


def place(world: World, part: Part, number: int, made_by: str, filler: Filler) -> Placed:
    """Put one object somewhere."""
    n = len(world.placed)
    value = filler.fill(made_by, number)
    spot = filler.rng.randrange(14)
    chunk = ""
    if spot <= 3:
        world.args.append(value)
        i = len(world.args) - 1
        read, path, replace = f"a{i}", f"A[{i}]", f"item(A, {i}, {{}})"
    elif spot <= 6:
        chunk, read, path, replace = f"g{n} = {value}", f"g{n}", f"g{n}", f"put(M, 'g{n}', {{}})"
    elif spot == 7:
        world.captured.append(f"c{n} = {value}")
        cell = f"F.__code__.co_freevars.index('c{n}')"
        read, path, replace = f"c{n}", f"F.__closure__[{cell}].cell_contents", f"cell(F, {cell}, {{}})"
    elif spot == 8:
        chunk = f"def holds{n}(held):\n    def get(): return held\n    return get\nh{n} = holds{n}({value})"
        read, path, replace = f"h{n}()", f"h{n}.__closure__[0].cell_contents", f"cell(h{n}, 0, {{}})"
    elif spot == 9:
        chunk, read, path = f"def given{n}(o={value}): return o", f"given{n}()", f"given{n}.__defaults__[0]"
        replace = f"put(given{n}, '__defaults__', ({{}},))"
    elif spot == 10:
        chunk, read, path = f"class Has{n}:\n    v = {value}", f"Has{n}.v", f"Has{n}.v"
        replace = f"put(Has{n}, 'v', {{}})"
    elif spot == 11:
        chunk, read = f"bag{n} = [{value}, {{'k': 1}}]", f"bag{n}[0]"
        path, replace = read, f"item(bag{n}, 0, {{}})"
    elif spot == 12:
        chunk, read = f"table{n} = {{'o': {value}, 'p': 2}}", f"table{n}['o']"
        path, replace = read, f"item(table{n}, 'o', {{}})"
    else:
        world.args.append(f"types.SimpleNamespace(v={value})")
        i = len(world.args) - 1
        read, path, replace = f"a{i}.v", f"A[{i}].v", f"put(A[{i}], 'v', {{}})"
    if chunk:
        world.chunks.append(chunk)
    return Placed(part, number, made_by, read, path, replace)


def evaluate(module: types.ModuleType, args: list[Any], expression: str) -> Any:
    """A snapshot of what an expression gives, and the value; ("raised", ...) for an exception."""
    scope = dict(zip((f"a{i}" for i in range(len(args))), args), x=args[0])
    for name, cell in zip(module.f.__code__.co_freevars, module.f.__closure__ or ()):
        scope[name] = cell.cell_contents
    try:
        value = eval(expression, {**module.__dict__, **scope})
        if isinstance(value, str) and "0x" in value.lower():
            return ("raised", "SyntaxError"), None  # an address, whose digits may show in what is made of it
        return snapshot(value), value
    except (RecursionError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        return ("raised", type(error).__name__), None


def world(rng: random.Random, few_numbers: bool = False, reads: int = 7, parts: tuple[Part, ...] = PARTS) -> World:
    """A world and its program.

    Arguments:
        rng: the only source of choice.
        few_numbers: only few different numbers, so that compiled kernels come out alike.
        reads: at most so many statements.
        parts: what to choose from.
    """
    made, filler = World(), Filler(rng, few_numbers)
    for number in range(rng.choice((1, 1, 2, 2, 3))):
        part = rng.choice(parts)
        if part.text:
            made.chunks.append(filler.fill(part.text, number).strip("\n"))
        for _ in range(rng.choice((1, 1, 2))):
            placed = place(made, part, number, rng.choice(part.objects), filler)
            made.placed.append(placed)
    write_program(made, filler, 1 + rng.randrange(reads))
    return made


def candidates(made: World, filler: Filler, module: types.ModuleType, args: list[Any]) -> list[str]:
    """Expressions that might be read, in random order."""
    rng, found = filler.rng, []
    for placed in made.placed:
        own = rng.sample(placed.part.reads, min(len(placed.part.reads), 14))
        found += [filler.fill(text, placed.number, placed.read) for text in own]
        if placed.part.name == "interpreter":  # methods of what the process itself needs may change it
            continue
        value = evaluate(module, args, placed.read)[1]
        other = rng.choice(made.placed).read
        found += [
            filler.fill(text, placed.number, placed.read).replace("$p", other) for text in generic_reads(rng, value, 8)
        ]
    rng.shuffle(found)
    return found


def write_program(made: World, filler: Filler, size: int) -> None:
    rng = filler.rng
    source = made.source()
    modules = [load(source), load(source)]
    args = [module.arguments() for module in modules]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        for expression in candidates(made, filler, modules[0], args[0]):
            try:
                (first, value), (second, _) = (evaluate(m, a, expression) for m, a in zip(modules, args))
            except (RecursionError, MemoryError):
                continue
            if (
                repr(first) != repr(second)
                or first == ("raised", "SyntaxError")
                or (first[0] == "raised" and rng.random() > 0.08)
            ):
                continue
            made.body.append(statement(rng, expression, value, len(made.body), made.chunks))
            if len(made.body) >= size:
                break
