"""`f(**m)` of objects that capture leaves to the program's own instruction: it names the callable when it raises."""

import types
import weakref

import pytest
import torch

import argand


class Sized:
    def __len__(self):
        return 4


KEPT = Sized()
CALLS = (
    "(lambda **k: sorted(k))(**p)", "sorted(**p)", "g(1, *[2], **p)", "x.sum(**p)", "g(**{'a': 1}, **p)", "{**p}",
    "g(*p)", "g(1, *p)", "[*p]", "x.sum(*p)", "g(**{'a': 1}, **{'a': 2})",
)  # fmt: skip
OBJECTS = (weakref.proxy(KEPT), KEPT, 5, {"q": 1}, types.SimpleNamespace(), types.MappingProxyType({"a": 1}))


def function(call):
    namespace = {}
    source = f"""
def g(*args, **kwargs):
    return args, kwargs
def f(x, p):
    t = x * 1.0
    try:
        return t + 1, {call}
    except Exception as error:
        return t + 2, type(error).__name__, str(error)
"""
    exec(source, namespace)
    return namespace["f"]


@pytest.mark.parametrize("call", CALLS)
def test_as_eager(call):
    for number, given in enumerate(OBJECTS):
        fn = function(call)
        want = fn(torch.ones(2), given)
        got = argand.compile(fn, backend="eager")(torch.ones(2), given)
        assert repr(got) == repr(want), number
