"""What functions read in any way: another value is told apart, or has no words."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator

import pytest
import torch

from argand.outcomes.reads import Reads, Unknown

CASES = {
    "default": "def fn(x, k={v}): return x * k",
    "default by name": "def fn(x, *, k={v}): return x * k",
    "closure": "def make(k):\n  def fn(x): return x * k\n  return fn\nfn = make({v})",
    "partial": "def of(k, x): return x * k\nfn = functools.partial(of, {v})",
    "global of a nested function": "K = {v}\ndef fn(x): return [y * K for y in x]",
    "lambda in a dict": "D = dict(a=lambda x: x * {v})\ndef fn(x): return D['a'](x)",
    "list": "D = [{v}]\ndef fn(x): return x * D[0]",
    "attribute of a function": "def fn(x): return x * fn.k\nfn.k = {v}",
    "attribute of a module": "other.k = {v}\ndef fn(x): return x * other.k",
    "module passed on": "other.k = {v}\ndef use(m, x): return x * m.k\ndef fn(x): return use(other, x)",
    "module imported within": "other.k = {v}\ndef fn(x):\n  import argand_other as o\n  return x * o.k",
    "name imported within": "other.k = {v}\ndef fn(x):\n  from argand_other import k\n  return x * k",
    "class": "class C:\n  k = {v}\ndef fn(x): return x * C.k",
    "method": "class C:\n  def f(self, x): return x * {v}\nfn = C().f",
    "memoized": "@functools.lru_cache\ndef k(): return {v}\ndef fn(x): return x * k()",
    "wrapped": "def deco(f):\n  @functools.wraps(f)\n  def w(x): return f(x) * {v}\n  return w\n@deco\ndef fn(x): return x",
    "tensor": "T = torch.tensor({v})\ndef fn(x): return x * T",
    "globals": "K = {v}\ndef fn(x): return x * globals()['K']",
    "globals by another name": "K = {v}\nG = globals\ndef fn(x): return x * G()['K']",
    "globals of a function": "K = {v}\ndef fn(x): return x * fn.__globals__['K']",
    "dict of a module": "other.k = {v}\ndef fn(x): return x * other.__dict__['k']",
    "modules": "import sys\nother.k = {v}\ndef fn(x): return x * sys.modules['argand_other'].k",
    "attrgetter": "other.k = {v}\ndef fn(x): return x * operator.attrgetter('k')(other)",
    "pattern": "other.k = {v}\ndef fn(x):\n  match other:\n    case object(k=k): return x * k",
    "text with a place": "other.k = {v}\ndef fn(x): return x * float('{{0.k}}'.format(other))",
    "docstring": "def fn(x): return x * float(fn.__doc__)\nfn.__doc__ = '{v}'",
    "attribute of torch": "torch.argand_test = {v}\ndef fn(x): return x * torch.argand_test",
    "function of torch": "torch.argand_test = lambda x: x * {v}\ndef fn(x): return torch.argand_test(x)",
    "object of torch": "class C:\n  k = {v}\ntorch.argand_test = C\ndef fn(x): return x * torch.argand_test.k",
    "named tuple": "P = collections.namedtuple('P', 'a')({v})\ndef fn(x): return x * P.a",
}  # fmt: skip


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("argand_other")
    monkeypatch.setitem(sys.modules, "argand_other", module)
    yield module
    vars(torch).pop("argand_test", None)


def words(text: str, other: types.ModuleType) -> object:
    names = {"__name__": "argand_reads", "other": other}
    exec("import collections, functools, operator, torch\n" + text, names)
    reads = Reads(lambda operator: None)
    try:
        reads.value(names["fn"])
        return reads.digest()
    except Unknown:
        return object()


@pytest.mark.parametrize("case", CASES)
def test_what_a_function_reads_is_told(case: str, other: types.ModuleType) -> None:
    one, another = (words(CASES[case].format(v=v), other) for v in (1, 2))
    assert one != another


def test_equal_functions_have_equal_words(other: types.ModuleType) -> None:
    known = [words(CASES[case].format(v=1), other) for case in itertools.islice(CASES, 12)]
    assert known == [words(CASES[case].format(v=1), other) for case in itertools.islice(CASES, 12)]
