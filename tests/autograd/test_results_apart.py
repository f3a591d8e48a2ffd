"""Results that lie in an input's or another result's memory, and what autograd knows of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "data": lambda x: (x * 2, x.data),
    "detached": lambda x: (x * 2, x.detach()),
    "view of detached": lambda x: (x * 2, x.detach()[1:]),
    "view of data": lambda x: (x * 2, x.data[1:]),
    "detached view": lambda x: (x * 2, x[1:].detach()),
    "view": lambda x: (x * 2, x[1:]),
    "detached twice": lambda x: (x * 2, x.detach().detach()),
    "detached result": lambda x: ((y := x * 2), y.detach()),
    "data of a result": lambda x: ((y := x * 2), y.data),
    "views of a result": lambda x: ((y := x * 2), y[1:], y.data[1:]),
    "view and data of a hidden result": lambda x: ((y := x * 2)[:2], y[1:], y.data[1:]),
    "detached first": lambda x: ((y := x * 2).detach(), y),
    "complex": lambda x: ((z := torch.complex(x, x)).real, z),
}


def plain() -> torch.Tensor:
    return torch.ones(3)


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def computed() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 1


def told_by_autograd(t: torch.Tensor) -> Any:
    try:
        return t.requires_grad, t.is_leaf, t._is_view(), t._base is None
    except RuntimeError as error:  # a view whose history has to be made anew, and may not
        return str(error)[:40]


def seen(fn: Callable[..., Any], make: Callable[[], torch.Tensor], grad: bool) -> list[Any]:
    """What is to be seen of all tensors when the results are written to, with gradients."""
    x, w = make(), torch.ones(1, requires_grad=True)
    with torch.set_grad_enabled(grad):
        results = fn(x)
    told: list[Any] = []
    for result in results:
        before = [t._version for t in (x, *results)]
        try:
            result.mul_(w)
        except RuntimeError as error:
            told.append(str(error)[:40])
            continue
        told.append([t._version - old for t, old in zip((x, *results), before)])
        told += map(told_by_autograd, (x, *results))
        told.append(x.tolist())
    return told


@pytest.mark.parametrize(
    ("backend", "make", "grad"), sweeps.combinations(["aot_eager", "native"], [plain, leaf, computed], [True, False])
)
def test_writes_to_results_reach_what_they_reach_in_eager(
    make: Callable[[], torch.Tensor], grad: bool, backend: str
) -> None:
    for name, program in PROGRAMS.items():
        assert seen(argand.compile(program, backend=backend), make, grad) == seen(program, make, grad), name


def copied_row(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x * 2
    return torch.empty(4).copy_(rows[0]), rows


def copied_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x * 2
    return tuple(torch.empty(4).copy_(row) for row in rows)


def added_to_row(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x * 2
    whole = torch.zeros(2, 4)
    whole[:] = rows.view(4, 2).reshape(2, 4)
    return rows, whole, torch.add(rows[1], 0, out=torch.empty(4))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn", [copied_row, copied_rows, added_to_row])
def test_results_that_hold_copies_have_memory_of_their_own(fn: Callable[..., Any], backend: str) -> None:
    """A graph need not compute a copy of a view; a write to a result would have been one to the other."""
    results = argand.compile(fn, backend=backend, fullgraph=True)(torch.ones(2, 4))
    for number, (result, eager) in enumerate(zip(results, fn(torch.ones(2, 4)))):
        result.mul_(number)
        assert torch.equal(result, eager * number)
    assert len({result.untyped_storage().data_ptr() for result in results}) == len(results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_views_of_a_result_of_one_element(backend: str) -> None:
    """Its strides are what the last operation left, and tell nothing: views of it were refused."""

    def filled(x: torch.Tensor) -> Any:
        y = x.frac()
        part = y[0:1]
        y.numpy()[...] = 2.0
        return y, part

    x = torch.ones(1, 1, dtype=torch.float16)[::2]
    want, got = filled(x), argand.compile(filled, backend=backend)(x)
    assert [t.tolist() for t in want] == [t.tolist() for t in got]
    assert got[0].data_ptr() == got[1].data_ptr()


def _view_made_before_its_base_asks(y: torch.Tensor) -> Any:
    w = y.detach()
    v = w.view(4)
    w.requires_grad_()
    return v, w, v * 2, v.requires_grad


def _view_of_a_detached(y: torch.Tensor) -> Any:
    w = y.detach()
    return w.view(4)[1:], w


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_view_of_a_result_that_is_no_view(backend: str) -> None:
    for fn in (_view_made_before_its_base_asks, _view_of_a_detached):
        for run in (fn, argand.compile(fn, backend=backend)):
            view, base, *others = run(torch.arange(4.0).view(2, 2))
            assert view._base is base and not base._is_view()
            base.requires_grad_()
            assert view.requires_grad
            with pytest.raises(RuntimeError, match="a view of a leaf"):
                view.mul_(2)
            assert [getattr(other, "requires_grad", other) for other in others] == [True] * len(others)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_versions_count_every_write(backend: str) -> None:
    def write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[1:].add_(1)
        x.view(-1).clamp_(0, 9)
        x.data.add_(1)
        x.copy_(x)
        x[:] = x
        numbers = x.numpy()
        numbers[0] = 7
        numbers += 1
        return x * w

    for grad in (False, True):
        versions = []
        for run in (write, argand.compile(write, backend=backend)):
            x = torch.arange(4.0)
            run(x, torch.ones(4, requires_grad=grad))
            versions.append(x._version)
        assert versions == [5, 5]


@pytest.mark.parametrize("share", [lambda x: x[:], lambda x: x.data, lambda x: x.view(2, 2).t()])
def test_versions_of_inputs_that_share_memory(share: Any) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y.add_(1)
        y[:1] = 3
        return x + y.flatten()

    versions = []
    for run in (write, argand.compile(write, backend="aot_eager")):
        x = torch.arange(4.0)
        y = share(x)
        run(x, y)
        versions.append((x._version, y._version, x.tolist()))
    assert versions[0] == versions[1]


class _Plain(torch.Tensor):
    pass


def test_leaf_of_a_subclass_stays_a_leaf() -> None:
    def leaf(x: torch.Tensor) -> Any:
        w = x.clone().requires_grad_()
        (w * w).sum().backward()
        return w

    for run in (leaf, argand.compile(leaf, backend="aot_eager")):
        w = run(torch.ones(3).as_subclass(_Plain))
        assert type(w) is _Plain and w.is_leaf and w.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_lie_as_eagers_where_they_are_parts_of_a_whole(backend: str) -> None:
    def joined(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return torch.cat([a, b * 2], 1), torch.stack([a, c], 1), torch.hstack([b, c]).sin()

    def gradients(function: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        given = [torch.randn(2, width, requires_grad=True) for width in (3, 4, 3)]
        results = function(*given)
        slopes = [torch.ones_like(result) for result in results]
        parts = torch.autograd.grad(results, given, slopes, retain_graph=True)
        torch.autograd.backward(results, slopes)
        alone = torch.autograd.grad(function(*given)[0], given[0], slopes[0])
        return [(g, g.stride()) for g in (*parts, *[leaf.grad for leaf in given], *alone) if g is not None]

    for (want, strides), (got, steps) in zip(gradients(joined), gradients(argand.compile(joined, backend=backend))):
        torch.testing.assert_close(got, want)
        assert steps == strides


def test_gradients_of_gradients_of_results_that_lie_in_another_order_at_each_size():
    """What is passed from one result to another is laid out as the sum that is read there."""

    def program(y):
        v = y.clone()
        return v, v.sum() * v

    compiled = argand.compile(program)
    for y in (torch.randn(3, 4), torch.randn(4, 5).t(), torch.randn(1, 1).as_strided((1, 1), (2, 2))):
        y = y.double().requires_grad_()
        made = []
        for run in (program, compiled):
            (grad,) = torch.autograd.grad(sum((one * one).sum() for one in run(y)), y, create_graph=True)
            made.append((grad, *torch.autograd.grad(grad.cos().sum(), y)))
        torch.testing.assert_close(made[1], made[0])
