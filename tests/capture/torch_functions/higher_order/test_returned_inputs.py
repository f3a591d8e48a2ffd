"""`autograd.Function`s that return their inputs: what they give is a view of the input with a history of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import argand
import sweeps

T = torch.Tensor


class Doubled(torch.autograd.Function):
    """Its gradient is twice what comes."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: T) -> T:
        return grads[0] * 2


class Reversed(torch.autograd.Function):
    """It makes the view itself."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: T) -> T:
        return -grads[0]


class Stitched(torch.autograd.Function):
    """The value of one, the gradient for the other."""

    @staticmethod
    def forward(ctx: Any, x: T, value: T) -> T:
        return value

    @staticmethod
    def backward(ctx: Any, *grads: T) -> tuple[T, None]:
        return grads[0], None


class Both(torch.autograd.Function):
    """One returned, one made, one that has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> tuple[T, T, T]:
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(y)
        return x, x * y, y

    @staticmethod
    def backward(ctx: Any, *grads: T) -> tuple[T, T]:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 + grads[1] * x, grads[1]


class Twice(torch.autograd.Function):
    """The same input in two results, which the graph does not hold."""

    @staticmethod
    def forward(ctx: Any, x: T) -> tuple[T, T]:
        return x, x

    @staticmethod
    def backward(ctx: Any, *grads: T) -> T:
        return grads[0] + grads[1] * 2


class Written(torch.autograd.Function):
    """It becomes its input, of which it keeps what it made of it."""

    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> T:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.clone(), x)
        ctx.made = x
        return x.mul_(y).add_(1)

    @staticmethod
    def backward(ctx: Any, *grads: T) -> tuple[T, T]:
        before, after = ctx.saved_tensors
        return grads[0] * after, grads[0] * before + ctx.made


class WrittenBesideOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> tuple[T, T]:
        other = x * y
        ctx.mark_dirty(x)
        ctx.save_for_backward(other)
        return other, x.exp_()

    @staticmethod
    def backward(ctx: Any, *grads: T) -> tuple[T, T]:
        (other,) = ctx.saved_tensors
        return grads[0] * other + grads[1] * 3, grads[0]


def doubled(x: T, y: T) -> Any:
    return Doubled.apply(x) * 3


def returned(x: T, y: T) -> Any:
    return Doubled.apply(x)


def reversed_and_used(x: T, y: T) -> Any:
    return Reversed.apply(x) * 3, Reversed.apply(x * 2) + 1


def reversed_and_returned(x: T, y: T) -> Any:
    return Reversed.apply(x), Reversed.apply(x * 2)[1:]


def checkpointed(x: T, y: T) -> Any:
    body = torch.utils.checkpoint.checkpoint
    return body(lambda a: Reversed.apply(a), x, use_reentrant=False), body(
        lambda a: Doubled.apply(a).exp(), x, use_reentrant=False
    )


def of_a_result(x: T, y: T) -> Any:
    z = x * 2
    return Doubled.apply(z), z


def stitched(x: T, y: T) -> Any:
    value = Stitched.apply(x, y.detach().sin())
    return value * y, value.requires_grad, value.is_leaf


def returned_of_a_result(x: T, y: T) -> Any:
    return Doubled.apply(x.sin() * 2), y * 2


def view_returned_of_a_result(x: T, y: T) -> Any:
    return Reversed.apply(x.sin() * 2), y * 2


def view_and_what_it_is_of(x: T, y: T) -> Any:
    z = x * 2
    return Reversed.apply(z), z[1:]


def views_of_views_of_an_input(x: T, y: T) -> Any:
    return Reversed.apply(Reversed.apply(x)) if x.requires_grad else x


def view_of_what_is_written(x: T, y: T) -> Any:
    z = x * 2
    view = Reversed.apply(z)
    z.add_(1)
    return view, y * 2


def returned_of_several(x: T, y: T) -> Any:
    same = Stitched.apply(x * 2, (y * 3).exp())
    return same, same + 1, Doubled.apply(x.exp())


def several(x: T, y: T) -> Any:
    a, b, c = Both.apply(x, y)
    return a * 2, b, c, c.requires_grad, a is x


def several_alone(x: T, y: T) -> Any:
    return Both.apply(x, y)


def base_is_written(x: T, y: T) -> Any:
    z = x.detach() * 2
    same = Doubled.apply(z)
    z.add_(1)
    return same + 1, z, same is z


def written(x: T, y: T) -> Any:
    z = x * 2
    same = Doubled.apply(z)
    same.add_(1)
    return same * 2, z


def base_with_history_is_written(x: T, y: T) -> Any:
    z = x * 2
    same = Doubled.apply(z)
    z.mul_(3)
    return same * 5, z * 1


def written_without_gradients(x: T, y: T) -> Any:
    z = x * 2
    same = Doubled.apply(z)
    with torch.no_grad():
        z.mul_(3)
    return same * 5, z * 1


def view_is_written_without_gradients(x: T, y: T) -> Any:
    z = x * 2
    same = Doubled.apply(z)
    with torch.no_grad():
        same.mul_(3)
    return same * 5, z * 1


def without_gradients(x: T, y: T) -> Any:
    with torch.no_grad():
        same = Doubled.apply(x)
    return same.requires_grad, same * 2, same is x


def input_is_written(x: T, y: T) -> Any:
    same = Doubled.apply(y.detach())
    y.detach().mul_(2)
    return same + x


def written_by_a_function(x: T, y: T) -> Any:
    z, w = x * 2, x * 3
    view = z[1:]
    same = Written.apply(z, y)
    other, also = WrittenBesideOthers.apply(w, z)
    return view * z, same is z, also is w, other + w, same.is_leaf


def written_twice(x: T, y: T) -> Any:
    z = (x * 2).sin()
    Written.apply(Written.apply(z, y), y.cos())
    return z, (z * z).sum()


def written_parts(x: T, y: T) -> Any:
    z = x * 2
    Written.apply(z[1:], y[:3])
    return z, z * y


def written_before_gradients(x: T, y: T) -> Any:
    z = (x + y).exp()
    w = torch.utils.checkpoint.checkpoint(lambda a: Written.apply(a * 2, y), z, use_reentrant=False)
    (g,) = torch.autograd.grad((w * w).sum(), z, retain_graph=True) if z.requires_grad else (w,)
    return g, w


def written_input(x: T, y: T) -> Any:
    z = x * 1 if x.is_leaf and x.requires_grad else x
    return Written.apply(z, y).detach() * 2, z.detach()


def written_without_history(x: T, y: T) -> Any:
    z = x * 2
    with torch.no_grad():
        same = Written.apply(z, y)
    return same, z, z.cos(), same.requires_grad


def written_after_it_was_saved(x: T, y: T) -> Any:
    z = x * 2
    w = Written.apply(z, y) * 3
    z.add_(1)
    return w.sum()


def written_leaf(x: T, y: T) -> Any:
    return Written.apply(x, y), x


def twice(x: T, y: T) -> Any:
    a, b = Twice.apply(x)
    return a + b * 2


ONE_GRAPH = [
    reversed_and_used,
    doubled,
    stitched,
    several,
    without_gradients,
    returned_of_a_result,
    view_returned_of_a_result,
    returned_of_several,
    written_by_a_function,
    written_twice,
    written_parts,
    written_before_gradients,
    written_without_history,
]
OTHERS = [written_input, written_after_it_was_saved, written_leaf, returned, of_a_result, several_alone, base_is_written, written, input_is_written, twice,
          view_and_what_it_is_of, views_of_views_of_an_input, view_of_what_is_written, reversed_and_returned, checkpointed, base_with_history_is_written, written_without_gradients, view_is_written_without_gradients]  # fmt: skip


def outcome(program: Callable[..., Any], grads: tuple[bool, bool]) -> Any:
    x = (torch.arange(4.0) / 3 + 1).requires_grad_(grads[0])
    y = (torch.arange(4.0) / 5 - 1).requires_grad_(grads[1])
    try:
        result = program(x, y)
        results = result if isinstance(result, tuple) else (result,)
        tensors = [t for t in results if isinstance(t, T)]
        flags = [
            t if not isinstance(t, T) else (t.requires_grad, t.is_leaf, t._base is x, t._base is y) for t in results
        ]
        for number, t in enumerate(tensors):
            if t.requires_grad:
                (t * (number + 1)).sum().backward(retain_graph=True)
    except Exception as error:
        return type(error), x, y
    return str(
        ([t.detach() for t in tensors], flags, x.grad, y.grad, x.detach(), y.detach(), x._version > 0, y._version > 0)
    )


@pytest.mark.parametrize(
    ("grads", "backend", "program"),
    sweeps.combinations(
        [(False, False), (True, False), (False, True), (True, True)],
        ["eager", "aot_eager", "native"],
        ONE_GRAPH + OTHERS,
    ),
)
def test_as_eager(program: Callable[..., Any], backend: str, grads: tuple[bool, bool]) -> None:
    compiled = argand.compile(program, backend=backend, fullgraph=program in ONE_GRAPH)
    for _ in range(2):
        assert str(outcome(compiled, grads)) == str(outcome(program, grads))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_is_passed_on_is_not_written_to(backend: str) -> None:
    for program in (returned_of_a_result, view_returned_of_a_result):
        for system in (program, argand.compile(program, backend=backend, fullgraph=True)):
            same, _ = system(torch.ones(3, requires_grad=True), torch.ones(3))
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                same.add_(1)


class Noted(torch.autograd.Function):
    """What it gives has attributes: its input, a number, and where it is asked for a tensor that forward makes."""

    @staticmethod
    def forward(ctx: Any, x: T, inner: bool) -> T:
        out = x.round()
        out.soft, out.number = (x * 3 if inner else x), 5  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: T) -> tuple[T, None]:
        return grads[0], None


@pytest.mark.parametrize("inner", [False, True])
def test_attributes_of_a_result_stay(inner: bool) -> None:
    def program(x: T) -> tuple[T, Any]:
        out = Noted.apply(x * 2, inner)
        return out, getattr(out, "soft", out) * getattr(out, "number", 1)

    for f in (program, lambda x: (Noted.apply(x * 2, inner), x * 2)):
        wanted, got = torch.tensor([0.3, 1.4], requires_grad=True), torch.tensor([0.3, 1.4], requires_grad=True)
        a, b = f(wanted), argand.compile(f, backend="eager")(got)
        (a[0] + a[1]).sum().backward(), (b[0] + b[1]).sum().backward()
        assert torch.equal(a[1], b[1]) and torch.equal(wanted.grad, got.grad)
        assert (
            b[0].number == 5
            and torch.equal(a[0].soft, b[0].soft)
            and a[0].soft.requires_grad is b[0].soft.requires_grad
        )
