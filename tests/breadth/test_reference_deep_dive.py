"""What `capture-deep-dive.txt` describes, example by example."""

from __future__ import annotations

import re

import torch

import argand
from helpers import CountingBackend, assert_same, collected


def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def run_both_branches(compiled) -> None:
    for sign in (1, -1):
        a, b = torch.randn(10), sign * torch.rand(10)
        assert_same(toy_example(a, b), compiled(a, b))


def test_toy_example() -> None:
    printed: list[str] = []

    def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
        assert all(isinstance(t, torch.Tensor) for t in example_inputs)
        printed.append(" ".join(n.name for n in gm.graph.nodes))
        return gm.forward

    compiled = argand.compile(toy_example, backend=my_compiler)
    for _ in range(100):
        a, b = torch.randn(10), torch.randn(10)
        assert_same(toy_example(a, b), compiled(a, b))
    assert printed[0] == "a b abs_1 add truediv sum_1 lt output"


def test_three_graphs_two_breaks() -> None:
    backend = CountingBackend()
    run_both_branches(argand.compile(toy_example, backend=backend))
    assert len(backend.graphs) == 3
    first = [(n.op, n.name) for n in backend.graphs[0].graph.nodes]
    assert first == [
        ("placeholder", "a"),
        ("placeholder", "b"),
        ("call_function", "abs_1"),
        ("call_function", "add"),
        ("call_function", "truediv"),
        ("call_method", "sum_1"),
        ("call_function", "lt"),
        ("output", "output"),
    ]


def test_modified_bytecode() -> None:
    with collected("bytecode") as events:
        run_both_branches(argand.compile(toy_example, backend="eager"))
    text = events[0].text()
    assert "ORIGINAL BYTECODE toy_example" in text and "MODIFIED BYTECODE toy_example" in text
    modified = text[text.index("MODIFIED BYTECODE") :]
    assert len(set(re.findall(r"__compiled_fn_\d+", modified))) == 1
    assert len(set(re.findall(r"__resume_at_\d+_\d+", modified))) == 2


def test_guards_text() -> None:
    with collected("guards") as events:
        argand.compile(toy_example, backend="eager")(torch.randn(10), torch.rand(10))
    text = events[0].text()
    for line in ("- local 'a' TENSOR_MATCH", "- local 'b' TENSOR_MATCH", "- global 'torch'"):
        assert line in text


def test_tensor_match_checks() -> None:
    """Each property of the list in the reference makes the guard fail, and only then is the frame compiled again."""

    def f(a):
        return a * 2

    base = torch.randn(4, 6)
    others = {
        "class": torch.nn.Parameter(base.clone(), requires_grad=False),
        "dtype": base.double(),
        "requires_grad": base.clone().requires_grad_(),
        "ndim": base.reshape(4, 2, 3),
        "sizes": torch.randn(5, 6),
        "strides": torch.randn(6, 4).t(),
    }
    for what, other in others.items():
        argand.reset()
        backend = CountingBackend()
        compiled = argand.compile(f, backend=backend, dynamic=False)
        compiled(base)
        compiled(base.clone())
        assert len(backend.graphs) == 1
        assert_same(f(other), compiled(other))
        assert len(backend.graphs) == 2, f"{what} changed and the code was reused"
    with collected("guards") as events:
        argand.reset()
        argand.compile(f, backend="eager")(base)
    text = events[0].text()
    assert "[4, 6]" in text or "(4, 6)" in text
    assert "[6, 1]" in text or "(6, 1)" in text


def test_dispatch_keys_are_guarded() -> None:
    def f(a):
        return a + 1

    backend = CountingBackend()
    compiled = argand.compile(f, backend=backend)
    x = torch.randn(3, dtype=torch.complex64)
    assert_same(f(x), compiled(x))
    assert_same(f(x.conj()), compiled(x.conj()))
    with torch.inference_mode():
        y = torch.randn(3)
        assert_same(f(y), compiled(y))


def test_guard_failure_recompiles() -> None:
    backend = CountingBackend()
    compiled = argand.compile(toy_example, backend=backend)
    compiled(torch.randn(10), torch.rand(10))
    count = len(backend.graphs)
    with collected("recompiles") as events:
        a, b = torch.randn(7), torch.rand(7)
        assert_same(toy_example(a, b), compiled(a, b))
    assert len(backend.graphs) > count
    assert any("'a'" in e.text() for e in events), [e.text() for e in events]


def test_dynamic_output_breaks() -> None:
    def f(x):
        return torch.nonzero(x > 0) * 2

    backend = CountingBackend()
    x = torch.randn(8)
    assert_same(f(x), argand.compile(f, backend=backend)(x))
    assert len(backend.graphs) == 2
