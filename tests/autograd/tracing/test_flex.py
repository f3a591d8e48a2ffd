"""Functions of scores, traced and printed for kernels of attention; numbers that vmap's rules cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from argand.autograd import trace_inference
from argand.autograd.tracing import flex
from argand.codegen.triton.score_mods import Mod, NotPrintable

SIZE = (2, 4, 96, 80)


def printed(function: Any, *reads: torch.Tensor, gradient: bool = False) -> list[Mod]:
    """The function of scores as text, and a mask that shows earlier keys."""

    def graph(body: Any, count: int) -> fx.GraphModule:
        made = fx.Graph()
        arguments = [made.placeholder(f"a{i}") for i in range(count)]
        made.output((made.call_function(body, tuple(arguments)),))
        return fx.GraphModule({}, made)

    score = graph(function, 5 + len(reads))
    mask = graph(lambda b, h, q, k: q >= k, 4)
    query, key = torch.empty(*SIZE[:3], 16), torch.empty(2, 4, SIZE[3], 16)
    call = flex.flex.FlexCall((), 1.0, False, tuple(range(len(reads))), ())
    return flex._printed(score, mask, call, query, key, reads, gradient)


def test_arithmetic_and_what_is_looked_up() -> None:
    slopes, documents = torch.rand(4), torch.zeros(96, dtype=torch.int64)
    mods = printed(lambda s, b, h, q, k, t, d: s * 0.5 + (k - q) * t[h] + d[q], slopes, documents)
    text = mods[0].text
    assert text.startswith("@triton.jit\ndef score_mod(score, b, h, m, n, read0_ptr, read1_ptr):")
    assert "tl.load(read0_ptr + (h))" in text and "tl.load(read1_ptr + (m))" in text and "assert" not in text
    assert "(m).to(" in mods[1].text and mods[1].known is None and not mods[0].passes


def test_positions_in_tensors_are_checked() -> None:
    (mod, _) = printed(lambda s, b, h, q, k, t, d: s + t[d[q]], torch.rand(7), torch.zeros(96, dtype=torch.int64))
    assert mod.checks and "device_assert" in mod.text


def test_scores_as_they_are_and_their_gradients() -> None:
    mods = printed(lambda s, b, h, q, k: s, gradient=True)
    assert mods[0].passes and len(mods) == 2
    mods = printed(lambda s, b, h, q, k: torch.tanh(s / 3) * 3, gradient=True)
    assert "def score_grad(score, grad, b, h, m, n):" in mods[2].text and mods[2].text.count("tanh") == 1
    mods = printed(lambda s, b, h, q, k: s + k, gradient=True)
    assert "return grad" in mods[2].text


@pytest.mark.parametrize(
    ("function", "reads"),
    [
        (lambda s, b, h, q, k, t: s + t[q].sum(), (torch.rand(96, 5),)),
        (lambda s, b, h, q, k, t: s + t.cumsum(0)[q], (torch.rand(96),)),
    ],
)
def test_what_is_no_arithmetic_at_one_point(function: Any, reads: Any) -> None:
    with pytest.raises(NotPrintable):
        printed(function, *reads)


def test_a_score_without_a_gradient() -> None:
    with pytest.raises(NotPrintable, match="no gradient"):
        printed(lambda s, b, h, q, k: s.detach() + k, gradient=True)


def test_a_number_that_vmap_casts_is_a_tensor() -> None:
    """Dispatch modes see 0.1 where torch has made a tensor of it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        inner = torch.vmap(lambda a, b: (a - b) * 0.1, in_dims=(None, 0))
        return torch.vmap(inner, in_dims=(0, None))(x, x)

    graph = fx.Graph()
    graph.output((graph.call_function(function, (graph.placeholder("x"),)),))
    program = trace_inference(fx.GraphModule({}, graph), [torch.arange(5)])
    casts = [node for node in program.graph.nodes if node.target is torch.ops.aten._to_copy.default]
    assert all(isinstance(node.args[0], fx.Node) for node in casts)
    made = fx.Interpreter(fx.GraphModule({}, program.graph)).run(torch.arange(5))
    torch.testing.assert_close(made[0], function(torch.arange(5)))
