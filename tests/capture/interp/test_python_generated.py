"""Random functions: interpretation and CPython agree in value, exception, and what happens to the arguments."""

from __future__ import annotations

import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .interpret import same

NAMES = ["a", "b", "xs", "d"]
ATOMS = [
    "0",
    "1",
    "-2",
    "2.5",
    "'s'",
    "None",
    "True",
    "()",
    "[1, 2]",
    "{'k': 1}",
    "a",
    "b",
    "xs",
    "d",
    "len(xs)",
    "d.get('k')",
]
BINARY = ["+", "-", "*", "//", "%", "&", "|", "<", "==", "in", "is", "and", "or"]

atoms = st.sampled_from(ATOMS)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(BINARY), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"(not {e})"),
        inner.map(lambda e: f"[{e}, *xs]"),
        inner.map(lambda e: f"[i for i in xs if i != {e}]"),
        inner.map(lambda e: f"sum(i for i in xs if i) + len([{e}])"),
        inner.map(lambda e: f"(lambda t: f'{{t!r:>6}}|{{t}}')({e})"),
        inner.map(lambda e: f"(lambda v=({e}): v)()"),
        inner.map(lambda e: f"sorted(map(str, [{e}, 3, 1]), key=lambda s: s[::-1])"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"dict(p={t[0]}, **{{'q': {t[1]}}})"),
        st.tuples(inner, inner).map(lambda t: f"xs[{t[0]}:{t[1]}]"),
        inner.map(lambda e: f"d[{e}]"),
    )


expressions = st.recursive(atoms, _compound, max_leaves=5)
simple = st.one_of(
    st.tuples(st.sampled_from(NAMES), expressions).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(st.sampled_from(["a", "b"]), expressions).map(lambda t: f"{t[0]} += {t[1]}"),
    expressions.map(lambda e: f"xs.append({e})"),
    expressions.map(lambda e: f"d['k'] = {e}"),
    expressions.map(lambda e: f"a, *b = {e}"),
    expressions.map(lambda e: f"raise ValueError({e})"),
    expressions.map(lambda e: f"return {e}"),
    st.sampled_from(
        ["del b", "xs.pop()", "d.popitem()", "pass", "xs.sort()", "yield_from()", "bump()", "b = list(gen(3))"]
    ),
)


def _block(body: list[str]) -> str:
    return textwrap.indent("\n".join(body) or "pass", "    ")


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=3).map(_block)
    return st.one_of(
        st.tuples(expressions, body, body).map(lambda t: f"if {t[0]}:\n{t[1]}\nelse:\n{t[2]}"),
        st.tuples(expressions, body, body).map(lambda t: f"for a in {t[0]}:\n{t[1]}\n    if a: break\nelse:\n{t[2]}"),
        st.tuples(body, body, body).map(
            lambda t: (
                f"try:\n{t[0]}\nexcept (TypeError, KeyError) as e:\n{t[1]}\n    xs.append(str(e))\nfinally:\n{t[2]}"
            )
        ),
        st.tuples(expressions, body).map(lambda t: f"with Manager({t[0]}) as b:\n{t[1]}"),
        st.tuples(expressions, body, body).map(
            lambda t: (
                f"match {t[0]}:\n    case [x, *_]:\n{textwrap.indent(t[1], '    ')}\n    case int() | None:\n{textwrap.indent(t[2], '    ')}"
            )
        ),
    )


statements = st.recursive(simple, _nested, max_leaves=6)
PRELUDE = """
class Manager:
    def __init__(self, v): self.v = v
    def __enter__(self): return self.v
    def __exit__(self, kind, value, tb): return kind is ValueError and bool(self.v)

def gen(n):
    got = []
    for i in range(n):
        got.append((yield i))
    return got

def function(a, b, xs, d):
    calls = 0
    def bump():
        nonlocal calls
        calls += 1
        return calls
    def yield_from():
        def outer():
            r = yield from gen(2)
            yield r
        xs.extend(outer())
"""


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    body=st.lists(statements, min_size=1, max_size=6).map(_block),
    a=st.sampled_from([0, 3, "t", None, [1]]),
    xs=st.lists(st.integers(-2, 3), max_size=4),
)
def test_generated_functions(body: str, a: object, xs: list[int]) -> None:
    namespace: dict[str, object] = {"__name__": __name__}
    source = f"{PRELUDE}{body}\n    return a, b, xs, d, calls\n"
    exec(compile(source, "<generated>", "exec", dont_inherit=True), namespace)
    same(namespace["function"], a, 2, xs, {"k": 1, 0: "z"})
