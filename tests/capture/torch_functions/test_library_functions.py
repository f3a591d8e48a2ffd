"""Functions of torch that libraries call around their models: `Module.to`, `zero_grad`, sizes as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.capture.driver.explain import Findings


def whole(fn: Any) -> Any:
    return argand.compile(fn, backend="eager", fullgraph=True)


def test_a_module_where_its_input_is() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    x = torch.randn(3, 2)
    compiled = argand.compile(lambda x: module.to(x)(x), backend="eager")
    assert torch.equal(compiled(x), module(x))
    wide = compiled(x.double())
    assert wide.dtype == torch.float64 and module[0].weight.dtype == torch.float64
    assert torch.equal(wide, module(x.double()))


def test_gradients_are_cleared() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x = torch.randn(3, 2)

    @argand.compile(backend="eager")
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        return module(x).sum()

    for _ in range(2):
        step().backward()
        assert torch.equal(module.bias.grad, torch.full((2,), 3.0))
    optimizer.zero_grad(set_to_none=False)
    assert torch.equal(module.bias.grad, torch.zeros(2))


def test_sizes_as_a_tensor() -> None:
    compiled = whole(lambda x: (torch._shape_as_tensor(x), x * 2))
    for shape in ((2, 3), (4, 5), (1,), ()):
        sizes = compiled(torch.ones(shape))[0]
        assert sizes.dtype == torch.int64 and sizes.tolist() == list(shape)


def test_sparse_tensors_of_sizes_that_vary() -> None:
    """That they have no storage was taken for an error of the program, which may handle it."""

    def program(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        places = torch.arange(2 * len(values)).view(2, -1) % 3
        try:
            return torch.sparse.mm(torch.sparse_coo_tensor(places, values, (3, 3)), weight)
        except NotImplementedError:
            return weight

    compiled, weight = argand.compile(program, backend="eager"), torch.randn(3, 2)
    for count in (4, 5, 6):
        values = torch.randn(count)
        torch.testing.assert_close(compiled(values, weight), program(values, weight))


def test_what_a_function_keeps_for_its_backward_behind_a_graph_break() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            argand.graph_break()
            ctx.save_for_backward(x, y)
            ctx.mark_non_differentiable(marked := y * 1)
            ctx.set_materialize_grads(False)
            return x * y, marked

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, other: Any) -> Any:
            x, y = ctx.saved_tensors
            return grad * y * (2 if other is None else 3), grad * x

    def run(call: Any) -> list[torch.Tensor]:
        x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
        out, marked = call(x, y)
        assert not marked.requires_grad
        out.sum().backward()
        return [out, x.grad, y.grad]

    want = run(Scaled.apply)
    compiled = argand.compile(lambda x, y: Scaled.apply(x, y), backend="eager")
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(want, run(compiled)))


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("broken", [False, True])
def test_autocast_objects_from_before(enabled: bool, broken: bool) -> None:
    module, x = torch.nn.Linear(2, 2), torch.ones(3, 2)
    context, off = torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled), torch.autocast("cpu", enabled=False)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return module(x)

    def program(x: torch.Tensor) -> Any:
        with context:
            first = module(x)
            if broken:
                argand.graph_break()
            with off:
                second = module(x)
            third = module(x)
        try:
            with context:
                raise ValueError
        except ValueError:
            pass
        return first, second, third, module(x), decorated(x), torch.is_autocast_enabled("cpu")

    want = program(x)
    seen = vars(context).copy()
    compiled = argand.compile(program, backend="eager", fullgraph=not broken)
    for _ in range(2):
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(want[:-1], compiled(x)[:-1]))
        assert not torch.is_autocast_enabled("cpu") and vars(context) == seen
    context.fast_dtype = torch.float16 if enabled else torch.bfloat16
    assert [t.dtype for t in compiled(x)[:-1]] == [t.dtype for t in program(x)[:-1]]


NEW: dict[str, Any] = {
    "size": lambda x: x.new(x.shape),
    "part of a size": lambda x: x.new(x.size()[:-1]),
    "sum of sizes": lambda x: x.new(x.shape + (2,)),
    "size of numbers": lambda x: x.new(torch.Size([x.shape[0], 2])),
    "size by name": lambda x: x.new(size=x.shape),
    "size and device": lambda x: x.new(x.shape, device="cpu"),
    "numbers": lambda x: x.new(*x.shape),
    "nothing": lambda x: x.new(),
    "tuple": lambda x: x.new(tuple(x.shape)),
    "list": lambda x: x.new(list(x.shape)),
    "tensor": lambda x: x.new(x),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NEW)
def test_new_tensor_of_a_size_or_of_data(name: str, dynamic: bool) -> None:
    """`Tensor.new` takes a `torch.Size` for a size, any other sequence for values."""

    def f(x: torch.Tensor) -> torch.Tensor:
        new = NEW[name](x)
        return new if name in ("tuple", "list") else new.fill_(2.0)

    compiled = argand.compile(f, backend="eager", dynamic=dynamic)
    for length in (3, 5):
        x = torch.zeros(length, 4)
        assert torch.equal(compiled(x), f(x.clone()))
        assert torch.equal(x, torch.full_like(x, 2.0 if name == "tensor" else 0.0))


@pytest.mark.parametrize("family", ["Laplace", "Cauchy", "HalfCauchy", "Weibull", "Pareto", "Exponential", "Geometric"])
def test_draws_of_distributions(family: str) -> None:
    """Those that draw into `loc.new(shape)`: each item is a draw of its own."""
    cls = getattr(torch.distributions, family)
    one = cls is torch.distributions.Exponential or cls is torch.distributions.HalfCauchy or family == "Geometric"

    def f(p: torch.Tensor) -> torch.Tensor:
        return cls(p).sample((2,)) if one else cls(p, p).sample((2,))

    p = torch.linspace(0.1, 0.9, 5)
    compiled = argand.compile(f, backend="eager")
    with argand.config.patch(fallback_random=True):
        for seed in range(2):
            torch.manual_seed(seed)
            want = f(p)
            torch.manual_seed(seed)
            assert torch.equal(compiled(p), want)


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None
        (x,) = ctx.saved_tensors
        return grad * x.sigmoid() * (1 + x * (1 - x.sigmoid()))


class Marked(torch.autograd.Function):
    """A second result that is not differentiable, whose gradient is none always."""

    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sign(), x * x.sigmoid(), x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[0])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, of_sign: Any, grad: Any, of_mask: Any) -> Any:
        if grad is None:
            return None
        (x,) = ctx.saved_tensors
        return grad * x.sigmoid() * (1 + x * (1 - x.sigmoid())) * (2 if of_sign is of_mask is None else 3)


class Forgetting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients_that_there_are_not_stay_none(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sign, marked, mask = Marked.apply(y)
        assert marked.requires_grad and not sign.requires_grad
        lost = Forgetting.apply(Gated.apply(y) + marked + sign * mask)
        return Gated.apply(x).sum() + Marked.apply(x)[1].sum() + lost.sum()

    sides = []
    for call in (program, argand.compile(program, backend=backend, fullgraph=True)):
        x, y = torch.linspace(-1, 1, 3).requires_grad_(), torch.linspace(-2, 2, 4).requires_grad_()
        call(x, y).backward()
        assert y.grad is None
        sides.append(x.grad)
    torch.testing.assert_close(sides[0], sides[1])


def test_events_are_written_by_one_call(tmp_path: Path) -> None:
    """The writer's own functions run as they are, and none of what they call is captured."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        writer.add_scalar("one", 1.0, 0)
        writer.add_histogram("many", x, 0)
        return y + 1

    findings = Findings()
    with findings.listening():
        assert torch.equal(argand.compile(f, backend="eager")(torch.ones(3)), f(torch.ones(3)))
    assert [reason.id for reason in findings.breaks] == ["AG0105", "AG0105"]
    writer.close()
