"""While torch's symbolic numbers are stood in for: the same answers to plain questions, the modules for all others."""

from __future__ import annotations

import pytest

import warm

PLAIN = """
import sys
import torch
from argand.graph.plain_symbols import SYMBOLIC, stood_in
if "sympy" in sys.modules or SYMBOLIC in sys.modules:
    sys.exit(3)
ASKED = [
    ("guard_or_false", (True,)), ("guard_or_true", (False,)), ("statically_known_true", (True,)),
    ("expect_true", (False,)), ("sym_and", (True, True, False)), ("sym_and", (True,)), ("sym_or", (False, True)),
    ("sym_eq", (3, 3)), ("sym_eq", ([1, 2], torch.Size([1, 2]))), ("sym_eq", ((1, 2), (1, 2, 3))),
    ("is_nested_int", (3,)), ("has_guarding_hint", (2.5,)), ("statically_known_false", (True,)), ("guard_int", (7,)),
    ("has_hint", (3,)), ("size_hint", (5,)), ("free_symbols", ([3, 2.5],)), ("free_unbacked_symbols", (torch.ones(2),)),
    ("has_free_symbols", (torch.ones(2)[:0],)), ("has_free_unbacked_symbols", (4,)),
]
def answers(module):
    return {f"{name}{args}": getattr(module, name)(*args) for name, args in ASKED if hasattr(module, name)}
"""

SAME = """
with stood_in():
    import torch.fx.experimental.symbolic_shapes as stand_in
    import sympy as early
    from torch.fx.experimental.symbolic_shapes import guard_or_false
    found = answers(stand_in)
    kind = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    assert torch._prims_common.elementwise_dtypes(torch.ones(2), 3, type_promotion_kind=kind)[1] is torch.float32
    assert not any(hasattr(module, "__warningregistry__") for module in (early, stand_in))
assert SYMBOLIC not in sys.modules and "sympy" not in sys.modules
import torch.fx.experimental.symbolic_shapes as real
import sympy
assert real is not stand_in and answers(real).items() <= found.items(), (found, answers(real))
assert isinstance(early.Symbol("x"), early.Basic) and early.Basic is sympy.Basic  # what was kept goes to the real one
assert guard_or_false(True) is True
"""

MORE = """
with stood_in():
    import sympy as early
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
    import torch.fx.experimental.symbolic_shapes as inside
assert "sympy" in sys.modules and sys.modules[SYMBOLIC] is inside and inside.ShapeEnv is ShapeEnv
assert issubclass(sys.modules["sympy"].Symbol, early.Basic)
with stood_in():  # which does nothing any more
    assert sys.modules["sympy"] is not early
for wrong in (1, torch.ones(())):
    try:
        guard_or_false(wrong)
    except AssertionError:
        continue
    raise SystemExit(5)
"""

BASES = """
with stood_in():
    import sympy
    class Own(sympy.Basic):  # not torch's question: it gets the real one
        pass
assert issubclass(Own, sys.modules["sympy"].Basic)
"""

THREADS = """
import threading
kept = []
def other():
    import sympy
    kept.append(isinstance(sympy.Symbol("x"), sympy.Basic))
with stood_in():
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
assert kept == [True]
"""

TRAINED = """
import argand
layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU6(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
x = torch.randn(2, 3, 8, 8)
got = argand.compile(layers)(x)
(got ** 2).mean().backward()
given = [p.grad.clone() for p in layers.parameters()]
assert "sympy" not in sys.modules
layers.zero_grad()
want = layers(x)
(want ** 2).mean().backward()
assert torch.allclose(got, want, atol=1e-5)
assert all(torch.allclose(a, p.grad, atol=1e-5) for a, p in zip(given, layers.parameters()))
"""


@pytest.mark.parametrize(
    "program", [SAME, MORE, BASES, THREADS, TRAINED], ids=["same", "more", "bases", "threads", "training"]
)
def test_in_a_process_of_its_own(program: str) -> None:
    done = warm.run(["-c", PLAIN + program], timeout=600)
    if done.returncode == 3:
        pytest.skip("this torch imports sympy itself")
    assert done.returncode == 0, done.stderr[-2000:]
