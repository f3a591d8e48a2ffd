"""argand as a backend of torch.compile, and torch's backends as ours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import argand
from argand._core import _C
from argand.backends.interop import argand_for_torch_compile
from argand.backends.registry import list_backends, lookup_backend


@pytest.fixture(autouse=True)
def fresh_dynamo():
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_entry_point_is_found_by_name():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        got = torch.compile(model, backend="argand")(x)
        torch.testing.assert_close(got, model(x))


@pytest.mark.parametrize("inner", ["aot_eager", "native"])
def test_symbolic_sizes_are_compiled_per_shape(inner):
    fn = lambda x: F.softmax(x * x.shape[0], -1).view(-1)
    backend = lambda gm, inputs: argand_for_torch_compile(gm, inputs, backend=inner)
    compiled = torch.compile(fn, backend=backend, dynamic=True)
    for size in (3, 5, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), fn(x))


def test_arguments_that_share_memory_are_another_version():
    def fn(x, y):
        x.add_(1)
        return y * 2

    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(fn, (x, y)),))
    call = argand_for_torch_compile(fx.GraphModule(nn.Module(), graph), [], backend="aot_eager")
    apart = [torch.zeros(3), torch.zeros(3)]
    assert torch.equal(call(*apart)[0], torch.zeros(3))
    base = torch.zeros(4)
    assert torch.equal(call(base[:3], base[1:])[0], torch.tensor([2.0, 2.0, 0.0]))


def test_gradients_flow():
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    torch.compile(model, backend=lambda gm, i: argand_for_torch_compile(gm, i, backend="aot_eager"))(x).sum().backward()
    assert torch.allclose(model.bias.grad, torch.full((2,), 3.0))


def test_torchs_backends_are_ours():
    assert "inductor" in list_backends(torch_backends=True)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (x,)),))
    value = torch.randn(4)
    (got,) = lookup_backend("aot_eager_decomp_partition")(fx.GraphModule(nn.Module(), graph), [value])(value)
    assert torch.equal(got, value.relu())


def test_torch_compile_of_what_argand_compiled():
    """torch.compile's hook is off inside: it would compile argand's own code, which has no module that it can import."""

    def f(x):
        y = x * 2
        return y.relu() + 1

    x = torch.randn(4)
    compiled = argand.compile(f)
    assert torch.equal(torch.compile(compiled, backend="eager")(x), f(x))
    assert torch.equal(torch.compile(lambda x: compiled(x) * 3, backend="eager")(x), f(x) * 3)
    around = argand.compile(lambda x: torch.compile(lambda x: compiled(x) * 3, backend="eager")(x) - 1)
    assert torch.equal(around(x), f(x) * 3 - 1)
    assert torch.equal(compiled(x), f(x)) and not _C.is_hook_installed()


def test_torch_compile_is_on_again_after_an_error_in_argands_region():
    graphs = []

    def count(gm, inputs):
        graphs.append(gm)
        return gm.forward

    def fails(x):
        raise KeyError("no")

    failing = argand.compile(fails, backend="eager")

    def f(x):
        try:
            failing(x + 1)
        except KeyError:
            pass
        return g(x)

    def g(x):
        return x * 2

    f = torch._dynamo.disable(f, recursive=False)
    assert torch.equal(torch.compile(lambda x: f(x) + 1, backend=count)(torch.ones(2)), torch.full((2,), 3.0))
