"""Tensor subclasses at the level of torch functions: captured whole, with eager's classes, attributes and identities."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.capture.sizes.subclass_programs import CASES, LOG, Dis, Log, Meta, Sub, Sub2, labelled, made

import argand
from argand.backends.registry import lookup_backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    argand.reset()
    LOG.clear()
    yield


class Counting:
    """A backend that counts what it compiles, and is given plain tensors only."""

    def __init__(self, name: str = "eager") -> None:
        self.name = name
        self.compiled = 0

    def __call__(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1
        assert all(type(value) in (torch.Tensor, torch.nn.Parameter, int, float) for value in inputs)
        return lookup_backend(self.name)(gm, inputs)


def described(value: Any, seen: dict[int, int]) -> Any:
    """A value with classes, contents, attributes and identities of the tensors in it."""
    if isinstance(value, torch.Tensor):
        if id(value) in seen:
            return ("same as", seen[id(value)])
        seen[id(value)] = len(seen)
        with torch._C.DisableTorchFunctionSubclass():
            numbers = value.detach().as_subclass(torch.Tensor).tolist()
            attributes = {name: described(held, seen) for name, held in vars(value).items()}
            return (type(value), value.dtype, value.requires_grad, numbers, attributes)
    if isinstance(value, list | tuple):
        return (type(value), [described(item, seen) for item in value])
    if isinstance(value, dict):
        return {key: described(item, seen) for key, item in value.items()}
    return value if type(value).__module__ == "builtins" else type(value)


def alike(one: Any, other: Any) -> bool:
    """Whether descriptions are equal, but for the last bits of numbers: exp of the native backend is its own."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(held, other[name]) for name, held in one.items())
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def observed(fn: Any, args: list[Any]) -> Any:
    LOG.clear()
    seen: dict[int, int] = {}
    return described(fn(*args), seen), described(args, seen), list(LOG)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_program(name: str, backend: str) -> None:
    fn, makers = CASES[name]
    counting = Counting(backend)
    compiled = argand.compile(fn, backend=counting, fullgraph=True)
    want = observed(fn, [make() for make in makers])
    for _ in range(2):
        assert observed(compiled, [make() for make in makers]) == want
    assert counting.compiled == 1


@pytest.mark.parametrize("name", ["mixed", "inplace", "meta", "holder", "twofn", "setlab", "swap", "attr_tensor"])
def test_program_native(name: str) -> None:
    fn, makers = CASES[name]
    compiled = argand.compile(fn, backend="native", fullgraph=True)
    want = observed(fn, [make() for make in makers])
    for _ in range(2):
        got = observed(compiled, [make() for make in makers])
        assert alike(got, want), (got, want)


# ---------------------------------------------------------------------- guards


def test_each_class_has_its_own_graph() -> None:
    backend = Counting()
    compiled = argand.compile(lambda x: x + 1, backend=backend, fullgraph=True)
    x = torch.ones(3)
    for _ in range(2):
        for value in (x, x.as_subclass(Sub), x.as_subclass(Sub2)):
            assert type(compiled(value)) is type(value)
    assert backend.compiled == 3


@pytest.mark.parametrize("cls", [Sub, torch.Tensor])
def test_attributes_are_guarded(cls: Any) -> None:
    compiled = argand.compile(lambda x: x * x.k if hasattr(x, "k") else x + 0, backend="eager", fullgraph=True)

    def value(**attributes: Any) -> Any:
        return labelled(torch.ones(2).as_subclass(Sub) if cls is Sub else torch.ones(2), **attributes)

    changing = value(k=2)
    for _ in range(2):
        assert compiled(changing).tolist() == [2, 2]
        assert compiled(value(k=3)).tolist() == [3, 3]
        assert compiled(value()).tolist() == [1, 1]
        assert compiled(value(k=torch.ones(2) * 4)).tolist() == [4, 4]
    del changing.k
    assert compiled(changing).tolist() == [1, 1]


def test_class_that_changes() -> None:
    class Changing(torch.Tensor):
        factor = 2

        def scaled(self) -> Any:
            return self * self.factor

    compiled = argand.compile(lambda x: x.scaled(), backend="eager", fullgraph=True)
    x = torch.ones(2).as_subclass(Changing)
    assert compiled(x).tolist() == [2, 2]
    Changing.factor = 5
    assert compiled(x).tolist() == [5, 5]
    Changing.scaled = lambda self: self - 1  # type: ignore[method-assign]
    assert compiled(x).tolist() == [0, 0]
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: "heard")  # type: ignore
    assert compiled(x) == "heard"


def test_torch_functions_switched_off_outside() -> None:
    compiled = argand.compile(lambda x: x + 1, backend="eager")
    x = torch.ones(3).as_subclass(Sub)
    for _ in range(2):
        assert type(compiled(x)) is Sub
        with torch._C.DisableTorchFunctionSubclass():
            assert type(compiled(x)) is torch.Tensor
        with torch._C.DisableTorchFunction():
            assert type(compiled(x)) is torch.Tensor


@pytest.mark.parametrize("make", [
    lambda: torch.ones(3).as_subclass(Log),
    lambda: torch.ones(3, requires_grad=True).as_subclass(Log),
    lambda: (torch.ones(3, requires_grad=True) * 2).as_subclass(Log),
    lambda: torch.ones(3).as_subclass(Log).requires_grad_(),
])  # fmt: skip
def test_guards_are_not_heard(make: Any) -> None:
    """The program's `__torch_function__` hears of the program's own operations, not of what guards ask."""
    fn = lambda x: x + 1  # noqa: E731
    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    for shape in (3, 3, 4, 3):
        x = make()[:shape] if shape == 3 else torch.ones(shape).as_subclass(Log)
        assert observed(compiled, [x]) == observed(fn, [x])


def test_guards_are_not_heard_without_the_learnt_layout() -> None:
    from argand._core import _C

    fn = lambda x: x + 1  # noqa: E731
    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    x = made(Log)
    _C.learn_tensor_layout(False)
    try:
        for _ in range(2):
            assert observed(compiled, [x]) == observed(fn, [x])
    finally:
        _C.learn_tensor_layout(True)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("cls", [Sub, Log, Dis, Meta])
def test_sizes_that_vary(cls: Any, dynamic: bool | None) -> None:
    fn = lambda x: (x * x.shape[0] + 1).sum()  # noqa: E731
    backend = Counting()
    compiled = argand.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    for size in (3, 4, 5, 6):
        assert observed(compiled, [made(cls, size)]) == observed(fn, [made(cls, size)])
    assert backend.compiled == (1 if dynamic else 2)


def test_length_that_varies() -> None:
    backend = Counting()
    compiled = argand.compile(lambda x: x * len(x), backend=backend, dynamic=True, fullgraph=True)
    for size in (3, 4, 5):
        assert compiled(torch.ones(size).as_subclass(Sub)).tolist() == [size] * size
    assert backend.compiled == 1


# ---------------------------------------------------------------------- aliases, breaks, refusals


def _one(x: Any) -> Any:
    return x, x


@pytest.mark.parametrize("make", [
    lambda: _one(torch.ones(3).as_subclass(Sub)),
    lambda: (torch.ones(3).as_subclass(Sub), torch.ones(3).as_subclass(Sub)),
    lambda: (lambda x: (x, x.view(3)))(torch.ones(3).as_subclass(Sub)),
    lambda: (lambda x: (x.as_subclass(Sub), x))(torch.ones(3)),
])  # fmt: skip
def test_aliases(make: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        x.add_(1)
        return x + y, x is y

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    compiled(torch.ones(3).as_subclass(Sub), torch.zeros(3).as_subclass(Sub))
    assert observed(compiled, list(make())) == observed(fn, list(make()))


def test_graph_break() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        y.label = [x]
        argand.graph_break()
        return y * 2, type(y), y.label[0] is x

    compiled = argand.compile(fn, backend="eager")
    assert observed(compiled, [made(Sub)]) == observed(fn, [made(Sub)])


def test_graph_break_where_torch_functions_are_off() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        with torch._C.DisableTorchFunctionSubclass():
            z = y * 2
            argand.graph_break()
            w = z + 1
        return y, z, w, type(w), w * 2

    compiled = argand.compile(fn, backend="eager")
    for _ in range(2):
        assert observed(compiled, [made(Log)]) == observed(fn, [made(Log)])


def test_size_changed_in_place_breaks_the_graph() -> None:
    def fn(x: Any) -> Any:
        x.unsqueeze_(0)
        return x

    assert observed(argand.compile(fn, backend="eager"), [made(Sub)]) == observed(fn, [made(Sub)])
    with pytest.raises(argand.errors.Unsupported, match="size or strides of a tensor of a subclass"):
        argand.compile(fn, backend="eager", fullgraph=True)(made(Sub))


def test_not_implemented_by_all_raises_as_eager() -> None:
    class Other(torch.Tensor):
        pass

    compiled = argand.compile(lambda a, b: a + b, backend="eager")
    with pytest.raises(TypeError):
        compiled(made(Sub), made(Other))


class Doubled(torch.Tensor):
    """Two tensors as one, below the level of torch functions."""

    one: torch.Tensor
    two: torch.Tensor

    @staticmethod
    def __new__(cls, one: Any, two: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one: Any, two: Any) -> None:
        self.one, self.two = one, two

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parts = [[getattr(arg, part) if type(arg) is Doubled else arg for arg in args] for part in ("one", "two")]
        made = [func(*part, **(kwargs or {})) for part in parts]
        return Doubled(*made) if isinstance(made[0], torch.Tensor) else made[0]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_torch_dispatch_runs_eagerly(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        return (y * y).sum()

    def make() -> Any:
        return Doubled(torch.arange(3.0), torch.ones(3))

    want, got = fn(make()), argand.compile(fn, backend=backend)(make())
    assert type(got) is Doubled and torch.equal(got.one, want.one) and torch.equal(got.two, want.two)
    with pytest.raises(argand.errors.Unsupported, match="Doubled defines __torch_dispatch__"):
        argand.compile(fn, backend=backend, fullgraph=True)(make())


def test_inputs_are_let_go() -> None:
    x = torch.ones(3).as_subclass(Sub)
    held = weakref.ref(x)
    argand.compile(lambda x: x + 1, backend="eager", fullgraph=True)(x)
    del x
    gc.collect()
    assert held() is None


# ---------------------------------------------------------------------- modules and training


class Scaled(torch.nn.Parameter):
    def scale(self) -> Any:
        return self * 2


class Marked(torch.nn.Parameter):
    def __new__(cls, data: Any, requires_grad: bool = True, tag: Any = None) -> Any:
        found = torch.Tensor._make_subclass(cls, data, requires_grad)
        found.tag = tag
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(4, 4).as_subclass(Sub))
        self.scaled = Scaled(torch.randn(4, 4))
        self.marked = Marked(torch.randn(4), tag="on")
        self.register_buffer("count", torch.randn(4).as_subclass(Sub))
        self.buffer = torch.nn.Buffer(torch.ones(4))
        self.linear = torch.nn.Linear(4, 4)
        self.linear.weight = torch.nn.Parameter(self.linear.weight.data.as_subclass(Sub))

    def forward(self, x: Any) -> Any:
        assert isinstance(self.marked, torch.nn.Parameter) and isinstance(self.weight, torch.nn.Parameter)
        assert isinstance(self.buffer, torch.nn.Buffer) and not isinstance(x, torch.nn.Buffer)
        y = x @ self.weight + self.scaled.scale()[0]
        if self.marked.tag == "on":
            y = y * self.marked
        self.count.add_(1)
        return (self.linear(y) + self.count * self.buffer).relu()


def _trained(backend: str | None) -> Any:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = model if backend is None else argand.compile(model, backend=backend, fullgraph=True)
    LOG.clear()
    seen = []
    for _ in range(3):
        x = torch.arange(8.0).view(2, 4).requires_grad_()
        out = run(x)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append((type(out), out.requires_grad, type(x.grad)))
        plain = torch.Tensor.as_subclass(x.grad, torch.Tensor)  # type: ignore[arg-type]
    state = {
        name: (type(value), value.detach().as_subclass(torch.Tensor)) for name, value in model.state_dict().items()
    }
    return seen, plain, {name: cls for name, (cls, _) in state.items()}, [t for _, t in state.values()], len(LOG)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_training(backend: str) -> None:
    want, got = _trained(None), _trained(backend)
    assert got[0] == want[0] and got[2] == want[2] and got[4] == want[4]
    torch.testing.assert_close([got[1], *got[3]], [want[1], *want[3]])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_written_to_under_autograd(backend: str) -> None:
    def fn(w: Any, x: Any) -> Any:
        x.mul_(w)
        return x.sum()

    def run(call: Any) -> Any:
        w = torch.nn.Parameter(torch.arange(3.0).as_subclass(Sub))
        x = (torch.arange(3.0).requires_grad_() * 1).as_subclass(Sub)
        out = call(w, x)
        out.backward()
        return out.item(), type(out), w.grad.tolist(), type(w.grad), x.tolist(), x.requires_grad  # type: ignore

    assert run(argand.compile(fn, backend=backend, fullgraph=True)) == run(fn)


def test_function_transforms() -> None:
    def square(row: Any) -> Any:
        return (row * row).sum()

    def fn(x: Any) -> Any:
        return torch.func.vmap(square)(x), torch.func.grad(square)(x), torch.func.jacrev(square)(x)

    compiled = argand.compile(fn, backend="eager", fullgraph=True)
    assert observed(compiled, [made(Sub)]) == observed(fn, [made(Sub)])
