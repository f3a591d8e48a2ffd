"""Masks of attention on GPUs: what is dropped, what is laid out anew. The rule is for GPUs; here it is asked of CPU tensors."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from argand.autograd.ops import attention
from argand.graph import compat

N = 6


class OnGpu:
    """Looks to the rule like a stand-in of a trace on a GPU."""

    requires_grad = False
    device = torch.device("cuda", 0)

    def __init__(self, tensor, node=None):
        self.tensor, self.value = tensor, SimpleNamespace(node=node)
        self.shape = tensor.shape

    def dim(self):
        return self.tensor.dim()

    def stride(self, dim):
        return self.tensor.stride(dim)

    def narrow(self, *args):
        return OnGpu(self.tensor.narrow(*args))

    def contiguous(self):
        return OnGpu(self.tensor.contiguous())

    def expand(self, shape):
        return OnGpu(self.tensor.expand(shape))


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(attention, "TraceTensor", OnGpu)


class Tracing(compat.DispatchMode):
    """A trace under way: an operation that it sees would be recorded, and its values are not known."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten.any.default, torch.ops.aten.is_nonzero.default), "seen by the trace"
        return func(*args, **(kwargs or {}))


def traced(function, *inputs):
    """The mask that `function` computes, with the nodes that lead to it."""
    graph = fx.experimental.proxy_tensor.make_fx(function)(*inputs).graph
    *_, out = graph.nodes
    node = out.args[0]
    return OnGpu(function(*inputs), node)


def rule(mask, many_sizes=False, **rest):
    q = torch.randn(1, 2, N, 4)
    with Tracing():
        args, kwargs = attention.with_cheap_mask((q, q, q, mask), rest, many_sizes)
    named = {**dict(zip(("query", "key", "value", "attn_mask"), args)), **kwargs}
    return named["attn_mask"], named.get("is_causal", False)


def everything():
    return (torch.arange(N)[None, None, :, None] >= 0).expand(1, 1, N, N)


def test_a_mask_that_masks_nothing_is_none():
    assert rule(traced(everything)) == (None, False)
    assert rule(traced(lambda: torch.zeros(N, N))) == (None, False)
    mask, causal = rule(traced(everything), many_sizes=True)
    assert mask is not None and not causal


def test_a_mask_of_all_later_keys_is_causal():
    keys = torch.arange(N)
    assert rule(traced(lambda: torch.arange(N)[None, :] <= torch.arange(N)[:, None])) == (None, True)
    assert rule(traced(lambda: torch.full((N, N), float("-inf")).triu(1))) == (None, True)
    soft = rule(traced(lambda: torch.full((N, N), -1e4).triu(1)))
    assert soft[0] is not None and not soft[1]
    shifted = rule(traced(lambda: torch.arange(N)[None, :] <= torch.arange(N)[:, None] + 1))
    assert shifted[0] is not None and not shifted[1]
    for mask, is_causal in ((keys[None, :] <= keys[:, None], True), (everything(), False)):
        q = torch.randn(1, 2, N, 4)
        torch.testing.assert_close(
            F.scaled_dot_product_attention(q, q, q, mask),
            F.scaled_dot_product_attention(q, q, q, None, is_causal=is_causal),
        )


def test_a_mask_of_an_input_stays():
    x = torch.ones(N, N, dtype=torch.bool)
    mask, causal = rule(traced(lambda x: x & (torch.arange(N) >= 0), x))
    assert mask is not None and not causal
    mask, _ = rule(traced(lambda: torch.rand(N, N) >= 0))
    assert mask is not None


def test_a_mask_spread_along_the_keys_becomes_dense():
    x = torch.rand(3, 1, N, 1) > 0.5
    given = x.expand(3, 2, N, N)
    mask, _ = rule(OnGpu(given))
    assert torch.equal(mask.tensor, given) and mask.tensor.stride(-1) == 1 and mask.tensor.stride(1) == 0
    dense = OnGpu(torch.ones(3, 2, N, N))
    assert rule(dense)[0] is dense


def test_tensors_on_the_cpu_keep_their_mask():
    q = torch.randn(1, 2, N, 4)
    args, kwargs = (q, q, q, torch.ones(N, N)), {"scale": 1.0}
    assert attention.with_cheap_mask(args, kwargs, False) == (args, kwargs)
