"""How the programs of `--mutate` read an object that they know nothing of, and how what they read gets into their result."""

from __future__ import annotations

import random
import re
from typing import Any

import torch

GENERIC = (
    "len($o)", "bool($o)", "str($o)", "repr($o)", 'f"{$o}"', 'f"{$o!r:>20}"', "format($o)", "hash($o)", "callable($o)", "type($o).__name__", "$o.__class__.__name__", "isinstance($o, (int, list, str))",
    "isinstance($o, float)", "isinstance($o, dict)", "isinstance($o, tuple)", "isinstance($o, Other)", "type($o) is int", "isinstance($o, collections.abc.Iterable)", "isinstance($o, numbers.Number)", "issubclass(type($o), dict)", "hasattr($o, 'a')", "hasattr($o, '__len__')", "hasattr($o, '__call__')", "getattr($o, 'a', 7.)", "getattr($o, 'extra', 1)",
    "list($o)", "tuple($o)", "sorted($o)", "min($o)", "max($o)", "sum($o)", "set($o) == {1}", "dict($o)", "$o == $p", "$o != $p", "$o is $p", "$o in [1, 2]", "[$o].count($p)", "($o,) == ($p,)", "3 in $o", "'k' in $o", "$o[0]", "$o[-1]", "$o['k']", "$o[1:]", "$o + 1", "$o + $p", "$o * 2", "1 + $o", "-$o", "abs($o)",
    "int($o)", "float($o)", "complex($o)", "round($o)", "operator.index($o)", "$o()", "$o(2)", "$o(x)", "[q for q in $o]", "{q: 1 for q in $o}", "any($o)", "all($o)", "not $o", "$o is None", "$o < 3", "$o >= 2", "$o and 3", "$o or 4", "[n for n in dir($o) if n[0] != '_']", "len(dir($o))", "sorted(vars($o))", "vars($o)", "$o.__dict__", "list(vars($o).values())",
    "'a' * $o", "[1, 2, 3, 4][$o]", "range(6)[$o]", "list(range($o))", "'%s' % ($o,)", "'%d' % $o", "'{}'.format($o)", "(lambda *a: a)(*$o)", "(lambda **k: sorted(k))(**$o)", "[*$o]", "{**$o}", "dict.fromkeys($o, 1)", "{$o: 1}.get($p)", "$o in {$p}", "next(iter($o), 7)", "list(reversed($o))", "list(zip($o, $o))", "list(enumerate($o))", "list(map(str, $o))", "list(filter(None, $o))",
    "type($o).__mro__[1].__name__", "$o.__doc__", "copy.copy($o)", "copy.deepcopy($o)", "torch.tensor($o)", "torch.as_tensor($o)", "math.floor($o)", "math.sqrt($o)", "$o.real", "a_match($o)", "with_value($o)", "functools.reduce(lambda a, b: b, $o)", "list(itertools.chain($o, $p))", "' '.join($o)", "torch.full((2,), $o)", "x * $o", "x + $o", "$o * x", "torch.mul(x, $o)", "torch.add(x, 1, alpha=$o)", "x[$o]", "torch.zeros($o)",
    "x.reshape($o)", "operator.itemgetter(0)($o)", "operator.attrgetter('a')($o)", "operator.methodcaller('go')($o)", "list(itertools.repeat(1, $o))", "list(itertools.islice($o, 2))", "operator.truth($o)", "operator.not_($o)", "operator.concat($o, $p)", "operator.contains($o, 2)", "operator.length_hint($o, 3)", "divmod($o, 2)", "pow($o, 2)", "sum([$o, 1])", "max($o, $p)", "sorted([$o, $p])[0]", "bin($o)", "chr($o)",
    "json.dumps($o)", "$o.__len__()", "$o.__eq__($p)", "$o.__hash__() == 3", "$o.__str__()", "type($o).__len__($o)", "object.__repr__($o)[:4]", "getattr(type($o), 'a', 5)", "type($o).__dict__.get('scale', 4)", "hasattr(type($o), '__missing__')", "$o.__class__ is type($o)", "isinstance($o, type)", "isinstance($o, torch.Tensor)", "inspect.isfunction($o)", "inspect.isclass($o)", "operator.eq($o, $p)", "operator.lt($o, $p)",
    "bytes($o)", "bytearray($o)", "memoryview($o)", "frozenset($o) == frozenset([1])", "array.array('d', $o)", "collections.deque($o)", "collections.Counter($o)", "collections.OrderedDict($o)", "enumerate($o).__next__()", "iter($o).__next__()", "str($o).upper()", "getattr($o, '__name__', 'x')", "getattr($o, '__wrapped__', 3)", "$o.__module__", "type($o).__module__", "$o.__sizeof__() > 0", "$o.__reduce_ex__(2)[0].__name__",
    "[i for i, q in enumerate($o) if q]", "sum(q for q in $o)", "next((q for q in $o if q), 3)", "numpy.asarray($o)", "numpy.sum($o)", "torch.Size($o)", "torch.cat([x, x], $o)", "x.sum($o)", "isinstance($p, type($o))", "type($o) == type($p)", "statistics.mean($o)", "string.Formatter().format('{0}', $o)", "str.format('{0.a}', $o)", "'{0[k]}'.format($o)", "int($o is not None)", "id($o) == id($p)", "dataclasses.is_dataclass($o)",
)  # fmt: skip
"""Questions to any object; `$p` is another object of the world."""


def generic_reads(rng: random.Random, value: Any, count: int) -> list[str]:
    """Templates for an object: protocols that its type has are likelier."""
    found = rng.sample(GENERIC, count)
    names = [n for n in dir(type(value)) if n[0] != "_"]
    own = [n for n in getattr(value, "__dict__", {}) if isinstance(n, str) and n.isidentifier() and n[0] != "_"]
    for name in rng.sample(names, min(2, len(names))) + rng.sample(own, min(3, len(own))):
        if name in DANGEROUS or name.startswith("register"):  # hooks have numbers that count on from case to case
            continue
        text = f"$o.{name}"
        if callable(getattr(type(value), name, None)) and rng.random() < 0.8:
            text += rng.choice(("()", "()", "(2)", "($p)"))
        found.append(text)
    return found


DANGEROUS = frozenset(
    "acquire release join get put wait tofile dump tobytes run start backward register_hook share_memory_ set_ cuda xpu ipu to_mkldnn new map_ map2_ apply_ requires_grad_ "
    "chdir abort fork system unlink remove rename close exit kill popen open write pin_memory resize_ resize_as_ resize_as_sparse_ random_ normal_ uniform_ bernoulli_ cauchy_ exponential_ geometric_ log_normal_ "
    "bernoulli multinomial rand randn seed".split()
)
"""Methods that hang, draw random numbers, have effects outside the process, or end it (a tensor in shared memory that `resize_as_` makes larger)."""


def as_number(rng: random.Random, e: str) -> str:
    return rng.choice(
        (f"t = t + {e}", f"t = t + {e}", f"t = t * (2 + {e})", f"out.append({e})", f"t = t + (1 if {e} > 2 else 3)", f"q = {e}\nt = t + q\nout.append(type(q).__name__)", f"for i in range(2):\n    t = t + {e} * i", f"if {e}:\n    t = t + 1", f"t = torch.add(t, {e})", f"out.append([{e}, {e}])", f"t = t.clamp(max=10. + {e})")
    )  # fmt: skip


def as_sequence(rng: random.Random, e: str) -> str:
    return rng.choice(
        (
            f"out.append({e})",
            f"out.extend({e})",
            f"for q in {e}:\n    out.append(q)",
            f"q, *w = {e}\nout.append([q, len(w)])",
            f"t = t + len({e})",
            f"out.append([q for q in {e}])",
            f"out.append(2 in {e})",
        )
    )


def as_tensor(rng: random.Random, e: str) -> str:
    return rng.choice(
        (
            f"t = t + ({e}).sum()",
            f"t = t + {e}",
            f"out.append({e})",
            f"out.append(({e}) * 2)",
            f"q = {e}\nt = t + q.to(t.dtype).sum()\nout.append(q.dtype)",
        )
    )


def statement(rng: random.Random, e: str, value: Any, number: int, chunks: list[str]) -> str:
    """Lines that read `e`, whose value was `value`, and let it flow into the result; may add a helper function to the module."""
    if re.search(r"[ ,]", re.sub(r"'[^']*'|\([^()]*\)|\[[^\[\]]*\]", "", e)):
        e = f"({e})"
    if rng.random() < 0.12:
        chunks.append(f"def read{number}(o, w=1): return o")
        e = f"read{number}({e})"
    elif rng.random() < 0.06:
        e = f"(lambda: {e})()"
    if isinstance(value, bool):
        text = rng.choice(
            (f"out.append({e})", f"t = t + 1 if {e} else t - 1", f"if {e}:\n    t = t * 3", f"t = t + {e}")
        )
    elif isinstance(value, (int, float)) and abs(value) < 1e4:
        text = as_number(rng, e)
    elif isinstance(value, torch.Tensor):
        text = as_tensor(rng, e)
    elif isinstance(value, (list, tuple)):
        text = as_sequence(rng, e)
    elif isinstance(value, str):
        text = rng.choice(
            (
                f"out.append({e})",
                f"t = t + len({e})",
                f"out.append(f'<{{{e}}}>')" if "'" not in e and "\\" not in e else f"out.append({e})",
            )
        )
    else:
        text = rng.choice((f"out.append({e})", f"out.append({e})", f"q = {e}\nout.append((type(q).__name__, q))"))
    if rng.random() < 0.4:
        inner = "\n".join("    " + line for line in text.splitlines())
        text = f"try:\n{inner}\nexcept Exception as error:\n    out.append((type(error).__name__, str(error)))"
    if rng.random() < 0.03:
        text += "\nargand.graph_break()"
    return text
