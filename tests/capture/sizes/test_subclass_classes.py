"""Tensor classes as libraries write them: units, images and boxes, tags in `__dict__`, special methods of their own."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import argand

from .test_subclasses import Counting, observed

LOG: list[Any] = []


class Kept(torch.Tensor):
    """Operations give plain tensors, but for a few that keep the class."""

    @classmethod
    def wrapped(cls, made: Any, like: Any) -> Any:
        return made.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.clone, torch.Tensor.to):
            flat = pytree.tree_leaves((args, kwargs))
            return cls.wrapped(made, next(leaf for leaf in flat if isinstance(leaf, Kept)))
        return made.as_subclass(torch.Tensor) if isinstance(made, cls) else made

    @property
    def shape(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape


class Picture(Kept):
    def __new__(cls, data: Any, *, requires_grad: bool = False) -> Any:
        return torch.as_tensor(data).requires_grad_(requires_grad).as_subclass(cls)


class Boxes(Kept):
    canvas: tuple[int, int]

    def __new__(cls, data: Any, *, canvas: Any) -> Any:
        made = torch.as_tensor(data).as_subclass(cls)
        made.canvas = canvas
        return made

    @classmethod
    def wrapped(cls, made: Any, like: Any) -> Any:
        return Boxes(made.as_subclass(torch.Tensor), canvas=like.canvas)


def flipped(picture: Any, boxes: Any) -> Any:
    moved = boxes.clone()
    moved[..., 0] = boxes.canvas[1] - moved[..., 0]
    return (
        Picture(picture.flip(-1)),
        picture * 2,
        moved,
        moved.canvas,
        picture.shape,
        boxes + 1,
        boxes.to(torch.float64),
    )


class Tagged(torch.Tensor):
    """Attributes go from arguments to results, through `__dict__`."""

    def __new__(cls, data: Any, **tags: Any) -> Any:
        made = data.as_subclass(cls)
        for name, value in tags.items():
            setattr(made, name, value)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, (torch.Tensor,), args, kwargs or {})
        tagged = [arg for arg in args if isinstance(arg, Tagged)]
        if isinstance(made, Tagged) and tagged:
            made.__dict__.update(tagged[0].__dict__)
        return made


def tags(x: Any) -> Any:
    y = (x + 1).relu()
    return y, y.tag, y.mean(), (y * 2).part


class Quantity(torch.Tensor):
    """A tensor with a unit."""

    unit: dict[str, int]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        units = [getattr(arg, "unit", {}) for arg in args if isinstance(arg, torch.Tensor)]
        made = super().__torch_function__(func, types, args, kwargs or {})
        if not isinstance(made, Quantity):
            return made
        if func in (torch.Tensor.mul, torch.mul):
            total: collections.Counter[str] = collections.Counter()
            for unit in units:
                total.update(unit)
            made.unit = dict(total)
        elif func is torch.Tensor.add and any(unit != units[0] for unit in units):
            raise ValueError("units differ")
        else:
            made.unit = dict(units[0]) if units else {}
        return made


def quantity(*numbers: float, **unit: int) -> Any:
    made = torch.tensor(numbers, dtype=torch.float32).as_subclass(Quantity)
    made.unit = unit
    return made


def units(a: Any, b: Any) -> Any:
    c = a * b
    try:
        a + b
    except ValueError as error:
        text = str(error)
    return c.unit, (c + c).unit, c + c, text, a.sin().unit


def layers(x: Any, *_: Any) -> Any:
    f = torch.nn.functional
    return (
        f.layer_norm(x, (2,)), f.softmax(x, -1), f.mse_loss(x, x * 2), f.gelu(x), f.pad(x, (1, 1)), x.sort(),
        f.interpolate(x.view(1, 1, 2), size=4), torch.cat(tensors=[x, x]), torch.sum(input=x, dim=0, keepdim=True),
    )  # fmt: skip


def under_autocast(x: Any, *_: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x.view(1, 2) @ x.view(2, 1)).float()


class Special(torch.Tensor):
    """Special methods of its own."""

    def __iter__(self) -> Any:
        LOG.append("iter")
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        LOG.append(("get", index))
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        LOG.append(("set", index))
        super().__setitem__(index, value)

    def __contains__(self, value: Any) -> bool:
        LOG.append("in")
        return True

    def __bool__(self) -> bool:
        LOG.append("bool")
        return True

    def __float__(self) -> float:
        return 2.5

    def __index__(self) -> int:
        return 1

    def __iadd__(self, other: Any) -> Any:
        LOG.append("iadd")
        return self * 2

    def __lt__(self, other: Any) -> Any:
        return "less"

    def __invert__(self) -> Any:
        return "inverted"

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Special({len(self)})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("size_"):
            return self.shape[int(name[5:])]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, ("set", value))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        LOG.append("exit")


def specials(x: Any) -> Any:
    rows = [row * 2 for row in x]
    x[0] = 4
    first, second = x
    y = x
    y += 1
    x.note = 3
    with x as same:
        answers = (3 in x, bool(x), not x, float(x), [10, 20, 30][x], x < 2, ~x, f"{x!r}", str(x), same is x)
    return rows, first, second, y, answers, x.size_0, hasattr(x, "other"), x.note, x[1:]


CASES: dict[Any, tuple[Any, ...]] = {
    flipped: (lambda: Picture(torch.arange(6.0).view(1, 2, 3)), lambda: Boxes(torch.ones(2, 4), canvas=(4, 5))),
    tags: (lambda: Tagged(torch.ones(3), tag="a", part=1),),
    units: (lambda: quantity(1, 2, m=1), lambda: quantity(2, 3, s=2)),
    layers: (lambda: quantity(1, 2, m=1),),
    under_autocast: (lambda: quantity(1, 2, m=1),),
    specials: (lambda: torch.arange(2.0).as_subclass(Special),),
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_class(fn: Any, backend: str) -> None:
    counting = Counting(backend)
    compiled = argand.compile(fn, backend=counting, fullgraph=True)
    LOG.clear()
    want = observed(fn, [make() for make in CASES[fn]]), list(LOG)
    for _ in range(2):
        LOG.clear()
        assert (observed(compiled, [make() for make in CASES[fn]]), list(LOG)) == want
    assert counting.compiled == 1


class Holding(torch.nn.Parameter):
    """A tensor without elements that shows the shape of another one."""

    def __new__(cls, data: torch.Tensor) -> Any:
        return super().__new__(cls, torch.empty(0), requires_grad=False)

    def __init__(self, data: torch.Tensor) -> None:
        self.inner = data

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self.inner.shape


def test_classes_that_say_a_shape_of_their_own() -> None:
    def program(x: torch.Tensor, held: Any) -> torch.Tensor:
        return (x * 2 + held.inner.sum()) * held.shape[0]

    given = torch.ones(3), Holding(torch.ones(2, 3))
    explanation = argand.explain(program)(*given)
    assert "says another shape than its own" in explanation.break_reasons[0].explanation
    torch.testing.assert_close(argand.compile(program, backend="eager")(*given), program(*given))
