"""What `cpu-debugging-and-profiling.txt` describes and this version has."""

from __future__ import annotations

import pytest
import torch

import argand
import warm
from argand.errors import ArgandError
from helpers import assert_same, collected


def foo1(x1, x2):
    a = torch.neg(x1)
    b = torch.maximum(x2, a)
    y = torch.cat([b], dim=0)
    return y


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    if dtype.is_floating_point:
        return torch.randn((1, 8), dtype=dtype), torch.randn((8390, 8), dtype=dtype)
    return torch.randint(256, (1, 8), dtype=dtype), torch.randint(256, (8390, 8), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_foo(dtype: torch.dtype) -> None:
    x1, x2 = inputs(dtype)
    assert_same(foo1(x1, x2), argand.compile(foo1, fullgraph=True)(x1, x2), exact=True)


def output_code() -> str:
    with collected("output_code") as events:
        argand.compile(foo1)(*inputs(torch.uint8))
    return events[0].text()


def test_statements_name_their_fx_node() -> None:
    text = output_code()
    assert "aten.neg" in text and "aten.maximum" in text
    assert "a = torch.neg(x1)" in text and "b = torch.maximum(x2, a)" in text


def test_output_code_runs(tmp_path) -> None:
    path = tmp_path / "output_code.py"
    path.write_text(output_code())
    done = warm.run([path], imported="compiler")
    assert done.returncode == 0, done.stderr


def test_ir_dumps() -> None:
    with collected("ir_pre_fusion", "ir_post_fusion") as events:
        argand.compile(foo1)(*inputs(torch.uint8))
    assert [e.name for e in events] == ["ir_pre_fusion", "ir_post_fusion"]
    text = events[0].text()
    for part in (
        ".writes",
        ".unmet_dependencies",
        ".met_dependencies",
        ".users",
        ".group.iteration",
        "_loop_body",
        "ops.neg",
        "ops.maximum",
    ):
        assert part in text, part


def neg1(x):
    return f"decltype({x})(-{x})"


def neg2(x):
    return f"-{x}"


def neg3(x):
    return f"decltype({x})(2 * {x})"


@pytest.fixture
def scalar_code():
    """The document's experiments are about scalar expressions, as its listings show."""
    with argand.config.patch({"cpp.simdlen": 0}):
        yield


def test_neg_overrides(scalar_code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from argand.codegen.cpp import overrides

    x1, x2 = inputs(torch.float32)
    monkeypatch.setattr(overrides, "neg", neg1)
    assert_same(foo1(x1, x2), argand.compile(foo1)(x1, x2), exact=True)
    argand.reset()
    monkeypatch.setattr(overrides, "neg", neg3)
    assert torch.equal(argand.compile(foo1)(x1, x2), torch.maximum(x2, 2 * x1))


def test_compile_error_message(scalar_code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from argand.codegen.cpp import overrides

    monkeypatch.setattr(overrides, "neg", neg2)
    with pytest.raises(ArgandError) as info:
        argand.compile(foo1)(*inputs(torch.uint8))
    text = str(info.value)
    for part in ("error:", "aten.neg", "a = torch.neg(x1)", "backend='native'"):
        assert part in text, f"{part} is not in:\n{text}"
