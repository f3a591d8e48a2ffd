"""Inputs of one call lie to each other in another way than those of the call that was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand

Inputs = tuple[torch.Tensor, torch.Tensor]


def by_slice(x, y):
    x[1:].add_(1)
    return y * 2


def by_view(x, y):
    x.view(-1).mul_(2)
    return y * 2


def by_view_as_result(x, y):
    torch.add(x, 1, out=x[:])
    return y * 2


def by_item(x, y):
    x[0] = 5
    return y * 2


def by_detached(x, y):
    x.detach().add_(1)
    return y * 2


def by_data(x, y):
    y.data.add_(x)
    return x * 2


def by_both(x, y):
    x.data.add_(1)
    y.detach().add_(x)
    return x * 2


def by_copies(x, y):
    x.detach().copy_(y)
    y.data.add_(x)
    return x * 2


def apart() -> Inputs:
    return torch.arange(4.0) - 1, torch.arange(4.0)


def one() -> Inputs:
    x = torch.arange(4.0) - 1
    return x, x


def view() -> Inputs:
    x = torch.arange(4.0) - 1
    return x, x.view(4)


def shown(fn: Callable[..., Any], inputs: Inputs) -> Any:
    try:
        result = fn(*inputs)
    except RuntimeError as error:
        result = str(error)
    return [t.tolist() if isinstance(t, torch.Tensor) else t for t in (result, *inputs)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "fn", [by_slice, by_view, by_view_as_result, by_item, by_detached, by_data, by_both, by_copies]
)
def test_writes_through_views_are_seen_by_inputs_that_share_memory_later(fn: Callable[..., Any], backend: str) -> None:
    compiled = argand.compile(fn, backend=backend)
    for inputs in (apart, one, view, apart):
        assert shown(compiled, inputs()) == shown(fn, inputs())


def test_written_inputs_beside_numbers_that_vary() -> None:
    def fn(x, n):
        x[0] = n
        return x * n

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(4), n), fn(torch.ones(4), n))


def copied(x, y):
    x.copy_(y)


def added(x, y):
    x.mul_(2)
    y.sub_(x)


def as_result(x, y):
    torch.mul(y, 2, out=x)


def set_item(x, y):
    x[:] = y


def alone(x, y):
    y.add_(1)
    x.add_(1)


def through_a_view(x, y):
    x[0] = y[1]


def handled(write: Callable[..., None]) -> Callable[..., Any]:
    def fn(x, y):
        try:
            write(x, y)
        except RuntimeError as error:
            return str(error)
        return x * 2

    return fn


def overlapping() -> Inputs:
    base = torch.arange(5.0) - 1
    return base[1:], base[:-1]


def of_a_leaf() -> Inputs:
    return torch.arange(4.0, requires_grad=True).view(4), torch.arange(4.0)


def one_of_several() -> Inputs:
    return torch.ones(2, 4, requires_grad=True).mul(1).unbind()[0], torch.arange(4.0)


def made_without_grad() -> Inputs:
    base = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        return base.view(4), torch.arange(4.0)


def of_inference() -> Inputs:
    with torch.inference_mode():
        return torch.ones(4), torch.arange(4.0)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("write", [copied, added, as_result, set_item, alone, through_a_view])
def test_writes_that_eager_refuses_reach_the_handler(write: Callable[..., None], backend: str) -> None:
    fn = handled(write)
    compiled = argand.compile(fn, backend=backend)
    for inputs in (apart, overlapping, of_a_leaf, one_of_several, made_without_grad, of_inference, one, apart):
        assert shown(compiled, inputs()) == shown(fn, inputs())


AT = torch.tensor([0, 1, 0])
TWICE: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_add": lambda x: x.index_add_(0, AT, x),
    "index_add of data": lambda x: x.index_add_(0, AT, x.data),
    "index_copy": lambda x: x.index_copy_(0, AT, x.view(3)),
    "index_fill": lambda x: x.index_fill_(0, AT, x[0]),
    "index_reduce": lambda x: x.index_reduce_(0, AT, x, "amax"),
    "index_put": lambda x: x.index_put_((AT,), x),
    "scatter": lambda x: x.scatter_(0, AT, x.detach()),
    "scatter_add": lambda x: x.scatter_add_(0, AT, x),
    "scatter_reduce": lambda x: x.scatter_reduce_(0, AT, x.view(3), "amax"),
    "item": lambda x: x.__setitem__(AT, x),
    "item of a view": lambda x: x.__setitem__(AT[:2], x[:2]),
    "item of an element": lambda x: x.__setitem__(AT, x[0]),
    "mask": lambda x: x.__setitem__(x > 0, x[0]),
    "masked_fill": lambda x: x.masked_fill_(x > 0, x[0]),
    "masked_scatter": lambda x: x.masked_scatter_(x > -9, x.view(3)),
    "put": lambda x: x.put_(AT, x),
    "copy": lambda x: x.copy_(x.view(3)),
    "shifted copy": lambda x: x[1:].copy_(x[:-1]),
    "gather": lambda x: torch.gather(x, 0, AT, out=x),
    "index_select": lambda x: torch.index_select(x, 0, AT, out=x),
    "take": lambda x: torch.take(x, AT, out=x),
    "cat": lambda x: torch.cat([x[:1], x[1:]], out=x),
    "stack": lambda x: torch.stack([x[0], x[1], x[2]], out=x),
    "sum": lambda x: torch.sum(x, 0, out=x[0]),
    "cumsum": lambda x: torch.cumsum(x, 0, out=x),
    "added": lambda x: x.add_(x),
}


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_operations_that_are_given_one_memory_twice(backend: str, made_inside: bool) -> None:
    def told(fn: Callable[..., Any]) -> Any:
        x = torch.tensor([1.0, -2.0, 3.0])
        try:
            result = fn(x)
        except RuntimeError as error:
            result = str(error), x
        return [t.tolist() if isinstance(t, torch.Tensor) else t for t in (*result, x)]

    for name, write in TWICE.items():

        def handled(x, write=write):
            x = x * 1 if made_inside else x
            try:
                write(x)
            except RuntimeError as error:
                return str(error), x
            return x * 2, x

        def plain(x, write=write):
            x = x * 1 if made_inside else x
            write(x)
            return x * 2, x

        for fn in (handled, plain):
            argand.reset()
            assert told(argand.compile(fn, backend=backend)) == told(fn), name


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_empty_input_that_begins_behind_the_memory_of_a_written_one(backend: str) -> None:
    def fn(x, y):
        x.add_(1)
        return y.tile(2) + x

    def inputs() -> Inputs:
        x = torch.ones(1)[::2]
        return x, x[1:]

    x, y = inputs()
    result = argand.compile(fn, backend=backend)(x, y)
    assert shown(lambda *_: result, (x, y)) == shown(fn, inputs())


HISTORIES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "written": lambda x, w: x.lerp_(w, 0.5),
    "written through a view": lambda x, w: x[1:].mul_(w[1:]),
    "read": lambda x, w: x + w,
    "detached": lambda x, w: x.detach_(),
    "requires": lambda x, w: x.requires_grad_(),
    "written without grad": lambda x, w: x.detach().add_(w.detach()),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", HISTORIES)
def test_what_an_input_is_to_autograd_after_a_write(name: str, backend: str) -> None:
    def fn(x, w):
        HISTORIES[name](x, w)
        return x.grad_fn is None, x.is_leaf, x.requires_grad

    compiled = argand.compile(fn, backend=backend)
    for computed in (False, True, False):

        def told(fn: Callable[..., Any], computed: bool = computed) -> Any:
            w = torch.ones(3, requires_grad=True)
            return fn(w * 1 if computed else torch.ones(3), w)

        assert told(compiled) == told(fn)
