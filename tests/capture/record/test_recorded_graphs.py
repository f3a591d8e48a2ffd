"""The graph that is recorded, and the metadata of what is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.capture.interp.interpret import interpreter_of

import argand
import warm
from argand import errors
from argand.capture.facts.sources import LocalSource
from helpers import CountingBackend, assert_same, check


def traced(fn, *tensors):
    """(stand-ins of fn's result, builder) for fn called on stand-ins."""
    with interpreter_of(traced) as interp:
        made = fn(*[interp.state.load_source(LocalSource(f"x{i}", i), t) for i, t in enumerate(tensors)])
    return made, interp.state.graph


def metadata(t: torch.Tensor):
    return tuple(t.shape), t.stride(), t.dtype, t.requires_grad


X = torch.randn(2, 3, 4)
NHWC = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
CASES = [
    (lambda x: x + 1, X),
    (lambda x: x.transpose(0, 2) * 2, X),
    (lambda x: x.transpose(0, 2) + x.permute(2, 1, 0).contiguous(), X),
    (lambda x: torch.relu(x), NHWC),
    (lambda x: x + torch.ones(3, 1, 1), NHWC),
    (lambda x: x[:, :, ::2] + x[:, :, 1::2], X),
    (lambda x: x.expand(5, 2, 3, 4).exp(), X),
    (lambda x: x > 0, X),
    (lambda x: x.to(torch.int64) / 2, X),
    (lambda x: x.half() + x, X),
    (lambda x: x.sum((0, 2), keepdim=True), X),
    (lambda x: x.mean(-1), X),
    (lambda x: x.amax(1), X),
    (lambda x: torch.where(x > 0, x, 0), X),
    (lambda x: x.masked_fill(x > 0, 1.0), X),
    (lambda x: F.softmax(x, -1), X),
    (lambda x: F.layer_norm(x, (4,)), X),
    (lambda x: F.group_norm(x, 3), X),
    (lambda x: F.gelu(x, approximate="tanh"), X),
    (lambda x: F.linear(x, torch.ones(5, 4)), X),
    (lambda x: x @ x.mT, X),
    (lambda x: F.conv2d(x, torch.ones(6, 3, 3, 3), padding=1, stride=2), torch.randn(2, 3, 8, 8)),
    (lambda x: F.conv2d(x, torch.ones(6, 3, 3, 3)), NHWC),
    (lambda x: torch.cat([x, x], 1), X),
    (lambda x: torch.stack([x, x], -1), X),
    (lambda x: F.scaled_dot_product_attention(x, x, x), torch.randn(2, 3, 4, 8)),
    (lambda x: x.tril(), X),
    (lambda x: torch.zeros_like(x.mT), X),
    (lambda x: x.flip(0).roll(1, 1), X),
    (lambda x: x.cumsum(1), X),
    (lambda x: torch.arange(5) + x[0, 0, 0].long(), X),
    (lambda x: x.clamp(min=0), X),
    (lambda x: torch.fft.rfft2(x), X),
    (lambda x: torch.linalg.eig(x)[1], torch.randn(3, 3)),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_metadata_is_eagers(number: int, grad: bool) -> None:
    fn, x = CASES[number]
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(grad)
    made, builder = traced(fn, x)
    assert metadata(made) == metadata(fn(x))
    module = builder.finish([made])
    assert_same(fn(x), module(*[info.real for info in builder.inputs])[0])


def test_torchs_compiler_stays_out() -> None:

    code = (
        "import sys, torch, argand, torch.nn.functional as F\n"
        "def f(x): return F.layer_norm(F.gelu(x @ x.mT + 1), (4,)).softmax(-1).sum(-1).masked_fill(x[..., 0] > 0, 0.)\n"
        "argand.compile(f, backend='eager', fullgraph=True)(torch.randn(2, 4, 4))\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] == 'sympy' or m == 'torch._dynamo')[:3])"
    )
    done = warm.run(["-c", code], check=True)
    assert done.stdout.strip() == "[]"


def test_nodes_carry_where_they_came_from() -> None:
    backend = CountingBackend()
    argand.compile(lambda x: torch.relu(x) + 1, backend=backend)(X)
    for node in backend.graphs[0].graph.nodes:
        if node.op.startswith("call"):
            assert node.meta["example_value"].shape == X.shape
            assert "test_recorded_graphs.py" in node.meta["stack_trace"] and "relu" in node.meta["user_line"]


def test_unused_operations_are_dropped_and_random_ones_kept() -> None:
    def f(x):
        x + 1
        torch.rand(3)
        return x * 2

    backend = CountingBackend()
    argand.compile(f, backend=backend)(X)
    assert [n.name for n in backend.graphs[0].graph.nodes if n.op == "call_function"] == ["rand", "mul"]


def test_known_values_need_no_break() -> None:
    def f(x):
        n = torch.tensor(2)
        if n > 1:
            x = x[: n + 1]
        return x * n.item(), torch.clamp(x, 0, torch.tensor(1.0))

    check(f, torch.randn(5), fullgraph=True)


def test_known_values_are_forgotten_on_write() -> None:
    def f(x):
        n = torch.zeros(2)
        m = torch.tensor([1.0, 2.0])
        view = m[:1]
        m.add_(x)
        return view.item(), n

    check(f, torch.randn(2))


def test_unknown_values_break() -> None:
    for fn in (lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: x.tolist()):
        with pytest.raises(errors.Unsupported), argand.error_on_graph_break(True):
            argand.compile(fn, backend=lambda gm, _: gm.forward)(X)
        check(fn, X)


def test_metadata_mutation_keeps_history() -> None:
    def f(x):
        y = x + 1
        z = y * 2
        y.unsqueeze_(0)
        return y, z, y.shape

    check(f, X, fullgraph=True)


MOVES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.to(5) * 2,
    lambda x: x.to("cuda") * 2,
    lambda x: x.to(device="cuda", non_blocking=True) * 2,
    lambda x: x.to("meta") * 2,
    lambda x: x.to(device="meta") * 2,
    lambda x: x.cuda() * 2,
    lambda x: x.to(torch.empty(1, device="meta")) * 2,
    lambda x: torch.ones_like(x, device="meta") * 2,
]


@pytest.mark.parametrize("number", range(len(MOVES)))
@pytest.mark.parametrize("on", [False, True])
def test_moves_stay_moves_under_autocast(number: int, on: bool) -> None:
    """Under autocast too, a tensor on another device is not the one that was moved."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return MOVES[number](x)

    def outcome(fn: Callable[[torch.Tensor], torch.Tensor]) -> tuple[object, ...]:
        try:
            with torch.autocast("cpu", enabled=on):
                made = fn(torch.ones(2, 3))
        except Exception as error:
            return type(error), str(error).partition("\n")[0]
        return made.device, made.dtype, made.shape

    assert outcome(argand.compile(f, backend="eager")) == outcome(f)


def test_autocast_types() -> None:
    weight = torch.randn(4, 4)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.linear(x, weight)
            return y, y.float() + x, torch.softmax(y, -1), torch.cat([y, x])

    made = check(f, torch.randn(4, 4), fullgraph=True)
    assert made[0].dtype is torch.bfloat16


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(-1),
        lambda x: x.masked_fill(x > 0, 1.0),
        lambda x: x.sort(0)[1],
        lambda x: torch.argsort(x),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.positive(x),
        lambda x: x * torch.ones(x.shape[-1], dtype=torch.int32).expand(x.shape),
        lambda x: torch.ones(x.shape[-1], dtype=torch.int32).expand(x.shape) / x,
        lambda x: x.clone(),
        lambda x: torch.zeros_like(x),
        lambda x: x + 1,
    ],
)
def test_strides_that_the_program_asks_for(call, backend):
    """Of permuted, expanded, narrowed and empty arguments: what the program is told is what eager tells it."""

    def f(x):
        made = call(x)
        return made, made.stride(), made.is_contiguous()

    base = torch.randn(4, 5, 6)
    last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for x in (base, base.permute(2, 1, 0), base[..., ::2], base[:1].expand(4, 5, 6), base.mT, base[:, :1], last):
        argand.reset()
        want, got = f(x.clone() if x is base else x), argand.compile(f, backend=backend)(x)
        assert want[1:] == got[1:] and want[0].stride() == got[0].stride()


def argument_names(h: torch.Tensor, H: torch.Tensor, h_1: torch.Tensor, id: torch.Tensor, id_1: torch.Tensor) -> Any:
    return h - 2 * H + 3 * h_1 - 4 * id + 5 * id_1


def attribute_names(model: torch.nn.Module, x: torch.Tensor) -> Any:
    return x * model.W + 2 * model.w


def keyword_names(lambda_: torch.Tensor, _in: torch.Tensor, None_: torch.Tensor) -> Any:
    return lambda_ - 2 * _in + 3 * None_


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_names_that_differ_in_case_or_are_words_of_python(backend: str) -> None:
    """The code of a graph gave the value of `H` to `h`, which it then read for `h`; and `lambda` was no name."""
    model = torch.nn.Module()
    model.W, model.w = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.full((2,), 3.0))
    for fn, given in ((argument_names, 5), (attribute_names, 1), (keyword_names, 3)):
        for order in (1, -1):
            tensors = [torch.full((2,), float(i)) for i in range(given)][::order]
            arguments = [model, *tensors] if fn is attribute_names else tensors
            assert_same(argand.compile(fn, backend=backend, fullgraph=True)(*arguments), fn(*arguments))


def test_a_number_that_varies_of_an_operation_of_unknown_size() -> None:
    """The call was recorded anew with the number that it had, and so on (torchvision's nms, of two thresholds)."""
    with torch.library._scoped_library("argand_recorded", "FRAGMENT") as library:
        library.define("above(Tensor x, float least) -> Tensor")
        library.impl("above", lambda x, least: x[x > least], "CPU")

        def f(x: torch.Tensor, least: float) -> torch.Tensor:
            return torch.ops.argand_recorded.above(x * 2, least).sin() + 1

        x = torch.rand(8)
        assert_same(argand.compile(f, backend="eager", dynamic=True)(x, 0.7), f(x, 0.7))
        with pytest.raises(errors.Unsupported, match="cannot be told without running it"):
            argand.compile(f, backend="eager", dynamic=True, fullgraph=True)(x, 0.3)
