"""Views, over realised buffers and over lazy expressions."""

import pytest
import torch
from lowering_helpers import check

import argand
from argand.ir.loops import TensorRef

VIEWS = {
    "view": lambda x: x.view(6, 20),
    "view split": lambda x: x.view(2, 3, 2, 2, 5),
    "view mixed": lambda x: x.view(3, 8, 5),
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.permute(3, 1, 0, 2),
    "transpose reshape": lambda x: x.transpose(1, 2).reshape(2, 4, 15),
    "reshape of permuted": lambda x: x.permute(2, 0, 3, 1).reshape(-1, 6),
    "t": lambda x: x[0, 0].t(),
    "unsqueeze": lambda x: x.unsqueeze(2).unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(1).squeeze(),
    "expand": lambda x: x[:, :1].expand(2, 7, 4, 5),
    "expand new": lambda x: x[0].expand(3, 3, 4, 5),
    "slice": lambda x: x[:, 1:, ::2, -3:],
    "slice clamped": lambda x: x[-9:7, :, 3:100],
    "empty slice": lambda x: x[:, 2:1],
    "select": lambda x: x[1, -1],
    "split": lambda x: torch.split(x, 2, dim=2)[1],
    "split sizes": lambda x: torch.split(x, [1, 3], dim=2)[1],
    "chunk": lambda x: torch.chunk(x, 3, dim=-1)[2],
    "unbind": lambda x: torch.unbind(x, 1)[2],
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "diagonal below": lambda x: x.diagonal(-2, 3, 2),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "narrow": lambda x: x.narrow(3, 1, 3),
    "movedim": lambda x: x.movedim(0, -1),
    "swap view": lambda x: x.transpose(2, 3).unsqueeze(0).flatten(3),
    "view dtype": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
}


@pytest.mark.parametrize("name", list(VIEWS))
def test_views(name):
    function = VIEWS[name]
    x = torch.randn(2, 3, 4, 5)
    loops = name != "as_strided" or None
    check(lambda a: function(a) + 1, x, loops_only=True)  # of an input
    check(lambda a: function(a * 2) + 1, x, loops_only=loops)  # of a lazy value
    check(lambda a: function((a * 2).exp()).clone(), x, loops_only=loops)
    check(lambda a: (function(a.sin()), a.cos()), x)  # as an output: the base is stored
    if name not in ("view", "view split", "view mixed", "flatten", "view dtype", "as_strided"):
        check(lambda a: function(a) + 1, x.to(memory_format=torch.channels_last), loops_only=True)


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("view dtype", "as_strided")])
def test_views_reach_kernels_as_strides(name):
    """An ATen kernel gets a strided view of the buffer, not a copy."""
    function = VIEWS[name]
    run = check(lambda a: torch.cumsum(function(a), 0), torch.randn(2, 3, 4, 5))
    refs = [ref for node in run.externs for ref in node.args if isinstance(ref, TensorRef)]
    copied = any(node for node in run.loops)
    assert refs and copied == (name in ("transpose reshape", "reshape of permuted", "swap view"))


def test_nothing_in_memory_with_gaps():
    """Where nothing lies, no gaps are rebuilt."""

    def f(x):
        x[::2] *= 3
        return x.as_strided((0, 3), (12, 2)) + 1

    wide = torch.ones(0, 6)[:, ::2]
    assert wide.stride() == (6, 2)
    compiled = argand.compile(f, fullgraph=True, dynamic=False)
    assert torch.equal(compiled(wide), f(wide))


def test_matmul_operands_stay_views():
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    run = check(lambda a, b: torch.mm(a, b.t()).relu(), x, w, passes=True)
    (mm,) = run.externs
    assert mm.out_variant == "torch.mm" and not mm.reason
    assert [int(str(s)) for s in mm.args[1].stride] == [1, 6]
    assert len(run.loops) == 1


def test_reshape_round_trip_is_the_identity():
    """Index arithmetic of nested reshapes cancels."""
    x = torch.randn(4, 6, 10)
    run = check(lambda a: (a * 2).reshape(24, 10).reshape(4, 60).reshape(4, 6, 10) + 1, x, loops_only=True)
    (loop,) = run.loops
    assert not any(expr.has_divmod for s in loop.body.statements if s.op == "load" for expr in s.args[1:])


def test_views_of_zero_and_one():
    for shape in ((), (1,), (0,), (1, 1, 1)):
        x = torch.ones(shape)
        check(lambda a: (a * 2).reshape(-1).unsqueeze(0) + 1, x, loops_only=True)
        check(lambda a: (a * 2).unsqueeze(-1).expand(*shape, 3) + 1, x, loops_only=True)
    check(lambda a: (a + 1).reshape(0, 5, 2) * 2, torch.ones(2, 0, 3), loops_only=True)


def test_view_of_noncontiguous_strides():
    base = torch.randn(8, 12)
    for x in (base[::2, ::3], base.t(), base[:, 3], base.expand(2, 8, 12)):
        check(lambda a: a.reshape(-1) * 2, x, loops_only=True)
        check(lambda a: (a + 1).reshape(-1)[2:], x, loops_only=True)


@pytest.mark.parametrize("offset", [-2, 0, 1])
@pytest.mark.parametrize("dims", [(0, 1), (-2, -1), (1, 0), (0, 2)])
def test_diagonals(offset: int, dims: tuple[int, int]) -> None:
    x = torch.randn(3, 4)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x[:, :, None] + x[:, None]
        made = torch.diag_embed(x, offset, *dims)
        part = torch.ops.aten.diagonal_copy(y, offset, *dims)
        return made * 2, part, torch.ops.aten.diagonal_backward(part, list(y.shape), offset, *dims), torch.diag(x[0])

    check(function, x, loops_only=True, exact=True, passes=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_a_stack_of_pairs_is_one_loop(dtype):
    x, y = (torch.randn(3, 5, 37) * 3).to(dtype), (torch.randn(3, 5, 37) * 3).to(dtype)
    for function in (
        lambda a, b: torch.stack((a, b), -1).flatten(-2),
        lambda a, b: torch.stack((a, b), -1).flatten(-2).transpose(0, 1).to(torch.float32) + 1,
        lambda a, b: torch.stack((a[..., ::2], b[..., 1:36:2].expand(3, 5, 18)[..., :1].expand(3, 5, 19)), -1),
    ):
        run = check(function, x, y, loops_only=True, passes=True)
        assert len(run.loops) == 1
    check(lambda a, b: torch.stack((a, b), -1).flatten(-2).view(3, -1).sum(1), x, y, loops_only=True, passes=True)
    check(lambda a, b: torch.stack((a, b), -1) == torch.stack((b, a), -1), x, y, loops_only=True, passes=True)
    check(lambda a, b: torch.stack((a, b), 1), x, y, loops_only=True, passes=True)


def test_gradients_of_pairs():
    def function(x):
        pairs = x.view(4, -1, 2)
        return torch.stack((pairs[..., 0] * 2 - pairs[..., 1], pairs[..., 1] * 3), -1).flatten(1)

    for width in (2, 10, 64, 66):
        x = torch.randn(4, width, requires_grad=True)
        weight = torch.linspace(0, 1, 4 * width).view(4, width)
        ours, eagers = (torch.autograd.grad((f(x) * weight).sum(), x) for f in (argand.compile(function), function))
        torch.testing.assert_close(ours, eagers)
