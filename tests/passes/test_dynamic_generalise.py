"""Programs for all sizes: their structure, conditions and scalars."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

from dynamic_helpers import dynamic_graph  # noqa: E402

import argand  # noqa: E402
from argand.autograd.tracing.dynamic import trace_dynamic  # noqa: E402
from argand.graph.sizes.expr import Expr, Sym  # noqa: E402
from argand.graph.sizes.symbolic import SymbolicTensor  # noqa: E402
from argand.passes import run_passes  # noqa: E402
from argand.passes.generalise import NotGeneral  # noqa: E402

S0 = Sym("s0", 2)


def trace(fn, *args, dims=None, traced=False):
    with torch.no_grad():
        return trace_dynamic(dynamic_graph(fn, args, dims or {0: {0: "n"}}, traced=traced), args, run_passes)


def node(program, name):
    return next(n for n in program.graph.nodes if name in str(n.target))


def texts(program):
    return {str(condition) for condition in program.conditions}


def test_sizes_and_strides_are_expressions():
    program = trace(lambda x: x.transpose(0, 1) + 1, torch.rand(6, 4))
    made = node(program, "add")
    assert isinstance(made.meta["val"], SymbolicTensor)
    assert made.meta["val"].shape == (4, S0) and made.meta["val"].stride() == (1, 4)
    assert [scalar.source for scalar in program.scalars] == ["args[0].size(0)"]
    assert program.inputs[-1].kind == "scalar" and not program.conditions


def test_a_slice_is_between_nothing_and_the_size():
    program = trace(lambda x: x[-3:] * 2, torch.rand(9, 4))
    assert node(program, "slice").args[2:4] == (S0 - 3, S0)
    assert texts(program) == {"s0 - 3 >= 0"}


def test_a_needed_divisor_becomes_a_symbol():
    program = trace(lambda x: x.view(-1, 4, 3).sum(1), torch.rand(16, 3))
    assert texts(program) == {"(s0 % 4) == 0", "s0_by_4 - 2 >= 0"}
    assert [(s.sym.name, s.source) for s in program.scalars] == [("s0", "args[0].size(0)"), ("s0_by_4", "s0 // 4")]
    assert not any(isinstance(n, Expr) and n.has_divmod for each in program.graph.nodes for n in each.args)


def test_a_float_of_a_size_is_a_scalar():
    program = trace(lambda x: x * (x.shape[0] ** 0.5), torch.rand(9, 3), traced=True)
    made = node(program, "mul")
    assert isinstance(made.args[1], Sym)
    scalar = next(s for s in program.scalars if s.is_float)
    assert scalar.sym is made.args[1] and "pow" in scalar.source


def test_operations_that_depend_on_a_size_are_refused():
    with pytest.raises(NotGeneral, match="how many operations run depends on the sizes"):
        trace(lambda x: sum(x), torch.rand(3, 2))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tensor([[-8.0, -4.0, 8.0, 4.0]]).clamp(min=0, max=x.shape[1]) * 2,
        lambda x: x + (torch.tensor([2, 6]) < x.shape[1]).sum(),
        lambda x: x + torch.tensor([3, 7, 20]).div(x.shape[1], rounding_mode="floor").sum(),
    ],
    ids=["clamp", "compare", "divide"],
)
def test_literals_with_sizes_are_not_folded(fn):
    """Where the results are the same at all sizes that are compared, which are larger than those of calls."""
    compiled = argand.compile(fn, dynamic=True, fullgraph=True)
    for size in (5, 3, 9, 30):
        x = torch.ones(4, size)
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)


def test_a_symbol_that_cannot_vary_is_pinned():
    program = trace(lambda x: sum(x), torch.rand(3, 7), dims={0: {0: "n", 1: "m"}})
    assert texts(program) == {"s0 - 3 == 0"}
    assert node(program, "add").meta["val"].shape == (Sym("s1", 2),)


def test_padding_of_channels_last_results_is_no_function_of_another_size():
    """A result's stride 8*(s0//4) also is 4*(s0//2) - 4 where s0 // 2 is odd: strides are derived, not fitted."""
    weight = torch.rand(8, 4, 2, 2).contiguous(memory_format=torch.channels_last)

    def fn(x):
        y = torch.nn.functional.conv2d(x.contiguous(memory_format=torch.channels_last), weight, stride=2)
        return torch.nn.functional.conv2d(y.repeat(1, 2, 1, 1)[:, ::4], weight[:, :4], stride=2) * 2

    program = trace(fn, torch.rand(2, 4, 64, 64), dims={0: {2: "n", 3: "n"}})
    last = [n for n in program.graph.nodes if "convolution" in str(n.target)][-1].meta["val"]
    assert last.shape == (2, 8, S0 // 4, S0 // 4)
    assert last.stride()[2] in (8 * (S0 // 4), S0 // 4)


def test_what_a_read_has_of_a_write_depends_on_where_both_begin():
    """At the sizes that are traced the write begins behind the row that is read; in the first call it does not."""

    def fn(y, count):
        y[count - y.shape[0] :] = 7.0
        return y[:1] * 2

    compiled = argand.compile(fn, dynamic=True, fullgraph=True)
    for size, count in ((3, 3), (4, 4), (4, 5), (3, 5)):
        y = torch.arange(4.0 * size).view(size, 4)
        want = fn(y.clone(), count)
        assert torch.equal(compiled(y, count), want)
