"""Checks of plain conditions answer as torch's, without what torch imports for symbolic ones."""

from __future__ import annotations

import pytest
import torch

import warm
from argand.graph.plain_checks import with_plain_checks

PROGRAM = """
import sys, torch, argand
if "sympy" in sys.modules:
    sys.exit(3)

@argand.compile
def positions(table):
    return torch.nn.functional.embedding(torch.arange(5, device=table.device)[None], table) * 2

table = torch.randn(8, 4)
assert torch.equal(positions(table), table[:5][None] * 2)

layers = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5))
many = argand.compile(layers, dynamic=True, backend="aot_eager")  # which at other sizes than 4 raises
pooled = argand.compile(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2)), backend="aot_eager")
with torch.no_grad():  # torch imports them for gradients
    assert torch.allclose(many(table), layers(table))
    assert pooled(torch.randn(2, 3, 10, 10)).shape == (2, 4, 4, 4)
    dropped = argand.compile(lambda x: torch.nn.functional.dropout(x, 0.5).div_(2).add_(1), backend="aot_eager")
    assert dropped(table).min() >= -8  # dropout divides its mask in place

words, rows = torch.nn.Embedding(8, 4), torch.arange(12).reshape(3, 4) % 8
argand.compile(lambda rows: words(rows).sigmoid())(rows).sum().backward()
got, words.weight.grad = words.weight.grad, None
words(rows).sigmoid().sum().backward()
assert torch.allclose(got, words.weight.grad)
sys.exit(4 if "sympy" in sys.modules else 0)
"""


def test_a_program_that_needs_no_symbolic_numbers_does_not_import_them() -> None:
    code = warm.run(["-c", PROGRAM]).returncode
    if code == 3:
        pytest.skip("this torch imports sympy itself")
    assert code == 0


def failed(call: object) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:  # noqa: B017 whichever it is
        call()  # type: ignore[operator]
    return caught.type, str(caught.value)


@pytest.mark.parametrize("condition", [False, 1, torch.ones(())])
def test_what_does_not_hold_raises_as_before(condition: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argand.graph.plain_checks._SYMBOLIC", "no such module")

    def check() -> None:
        torch._check_value(condition, lambda: "too large")

    assert failed(lambda: with_plain_checks(check, (), {})) == failed(check)
    assert with_plain_checks(lambda: torch._check(True) or 7, (), {}) == 7


def test_torchs_own_check_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argand.graph.plain_checks._SYMBOLIC", "no such module")
    own = torch._check_with
    seen = []
    with_plain_checks(lambda: seen.append(torch._check_with), (), {})
    with pytest.raises(ZeroDivisionError):
        with_plain_checks(lambda: 1 // 0, (), {})
    assert torch._check_with is own and seen[0] is not own
    monkeypatch.setattr(torch, "_check_with", print)
    with_plain_checks(lambda: seen.append(torch._check_with), (), {})
    assert torch._check_with is seen[1] is print
