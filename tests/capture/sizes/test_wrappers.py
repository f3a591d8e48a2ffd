"""Tensors that wrap others (`__torch_dispatch__` with `__tensor_flatten__`): quantized weights, pairs of tensors. One graph,
with eager's values, classes and gradients; what is not captured of them runs as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import argand
from helpers import CountingBackend

aten = torch.ops.aten
Program = Callable[..., Any]


class Quantized(torch.Tensor):
    """Rows of int8, each with its scale."""

    codes: torch.Tensor
    scale: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, kind: torch.dtype = torch.float32) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=kind, device=codes.device)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, kind: torch.dtype = torch.float32) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], (self.dtype,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["codes"], inner["scale"], *context)

    def whole(self) -> torch.Tensor:
        return self.codes.to(self.dtype) * self.scale

    @classmethod
    def of(cls, weight: torch.Tensor) -> Any:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.t.default, aten.detach.default, aten.clone.default):
            return cls(func(args[0].codes), func(args[0].scale), args[0].dtype)
        args, kwargs = pytree.tree_map_only(Quantized, Quantized.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def weight(seed: int) -> Any:
    return Quantized.of(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)))


def layers() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Quantized.of(layer.weight.detach()), requires_grad=False)
    return model


def told(results: Any, *leaves: Any) -> Any:
    """Classes, values, and the gradients of plain leaves."""
    seen: list[Any] = []
    for item in pytree.tree_leaves(results):
        seen.append(KINDS.index(type(item)))
        parts = [getattr(item, name) for name in item.__tensor_flatten__()[0]] if type(item) in KINDS[2:] else [item]
        seen += [(part.detach(), part.requires_grad) if isinstance(part, torch.Tensor) else part for part in parts]
        if type(item) is torch.Tensor and item.requires_grad:
            item.square().sum().backward(retain_graph=True)
    return seen, [leaf.grad for leaf in leaves]


KINDS = (int, torch.Tensor, Quantized, TwoTensor)


def part_of_a_result(w: Any, x: torch.Tensor) -> Any:
    turned = w.t()
    return turned.scale * 2, turned.codes.float() + 1, turned


def written_part_of_a_copy(w: Any, x: torch.Tensor) -> Any:
    copy = w.clone()
    copy.scale.mul_(2)
    return functional.linear(x, copy), copy


OF_WEIGHTS: dict[str, Program] = {
    "linear": lambda w, x: (functional.linear(x, w), w),
    "results": lambda w, x: (w.t(), w * 2, w.detach(), w.size(0) * x, w),
    "parts": lambda w, x: (w.scale * 2, w.whole() @ x.t()),
    "questions": lambda w, x: x + w.dim() if isinstance(w, Quantized) and w.dtype is torch.float32 else x,
    "part of a result": part_of_a_result,
    "written part of a copy": written_part_of_a_copy,
    "built inside": lambda w, x: built_inside(w, x),
    "built, and given back": lambda w, x: (made := Quantized.of(w.whole() + x.sum()), made.scale * 2, made.t()),
}


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_quantized_weights(name: str) -> None:
    backend = CountingBackend()
    for how in (backend, "aot_eager"):
        compiled = argand.compile(OF_WEIGHTS[name], backend=how, fullgraph=True)
        for seed in (1, 2, 3):
            x = torch.full((2, 4), float(seed))
            got, eager = (told(program(weight(seed), x)) for program in (compiled, OF_WEIGHTS[name]))
            torch.testing.assert_close(got, eager)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("how", ["eager", "aot_eager", "native"])
def test_models_with_quantized_weights(how: str) -> None:
    """Gradients flow through weights that have none; sizes of a batch may vary."""
    model, copy = layers(), layers()
    compiled = argand.compile(copy, backend=how, fullgraph=True)
    for size in (2, 3, 5) if how == "native" else (2, 3, 5, 6):
        outcomes = []
        for run, own in ((model, model), (compiled, copy)):
            x = torch.randn(size, 4, generator=torch.Generator().manual_seed(size)).requires_grad_()
            own.zero_grad()
            outcomes.append(told(run(x), x, *[p for p in own.parameters() if p.requires_grad]))
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_sizes_that_vary_cost_one_graph_more() -> None:
    model, backend = layers(), CountingBackend()
    compiled = argand.compile(model, backend=backend, fullgraph=True)
    for size in (2, 3, 5, 7):
        x = torch.ones(size, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(backend.graphs) == 2


def written_beneath(x: torch.Tensor) -> Any:
    below = x * 2
    pair = TwoTensor(below, x + 1)
    below.add_(1)
    return pair * 3, below, int(pair.a is below)


OF_PAIRS: dict[str, Program] = {
    "arithmetic": lambda t, x: ((t * x).sin() + t, x),
    "products": lambda t, x: (t @ x, (t @ x).sum()),
    "views": lambda t, x: (t.view(-1)[:3], t[0], t.t(), t.unbind(0)[1]),
    "written copies": lambda t, x: (t.clone().mul_(2), t),
    "the same twice": lambda t, x: [t, t + 1, t],
    "made of its parts": lambda t, x: TwoTensor(t.a * 2, t.b) @ x,
    "made, and taken apart": lambda t, x: TwoTensor(x, x + 1).sin().b,
    "put together again": lambda t, x: TwoTensor.__tensor_unflatten__(
        {name: getattr(t, name) + 1 for name in t.__tensor_flatten__()[0]}, None, t.shape, t.stride()
    ),
    "over a tensor that is written to": lambda t, x: written_beneath(x),
}


@pytest.mark.parametrize("name", OF_PAIRS)
def test_pairs_of_tensors(name: str) -> None:
    for how in ("eager", "aot_eager"):
        compiled = argand.compile(OF_PAIRS[name], backend=how, fullgraph=True)
        for seed in (1, 2):
            torch.manual_seed(seed)
            pair, x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4)), torch.randn(4, 4)
            got, eager = (told(program(pair, x)) for program in (compiled, OF_PAIRS[name]))
            torch.testing.assert_close(got, eager)


def test_compiled_pairs() -> None:
    pair, x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4)), torch.randn(4, 4)
    for name in ("arithmetic", "products"):
        program = OF_PAIRS[name]
        torch.testing.assert_close(told(argand.compile(program, fullgraph=True)(pair, x)), told(program(pair, x)))


def test_what_it_holds_besides_tensors_is_guarded() -> None:
    def program(w: Any, x: torch.Tensor) -> Any:
        return functional.linear(x.to(w.dtype), w)

    backend = CountingBackend()
    compiled = argand.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(2, 4)
    for kind in (torch.float32, torch.float64, torch.float32):
        w = weight(1)
        w = Quantized(w.codes, w.scale.to(kind), kind)
        torch.testing.assert_close(told(compiled(w, x)), told(program(w, x)))
    assert len(backend.graphs) == 2


def another_part(w: Any, x: torch.Tensor) -> Any:
    w.scale = w.scale * 2
    return functional.linear(x, w), w.scale


def another_attribute(w: Any, x: torch.Tensor) -> Any:
    w.note = 5
    return functional.linear(x, w) * w.note


def written_part(w: Any, x: torch.Tensor) -> Any:
    w.scale.mul_(2)
    return functional.linear(x, w), w.scale


def written_dict(w: Any, x: torch.Tensor) -> Any:
    w.__dict__["scale"] = w.scale * 3
    return functional.linear(x, w), w.scale + 1


def deleted_part(w: Any, x: torch.Tensor) -> Any:
    scale = w.scale
    del w.scale
    w.scale = scale * 3
    return functional.linear(x, w)


def part_of_a_result_replaced(w: Any, x: torch.Tensor) -> Any:
    turned = w.t()
    turned.scale = turned.scale * 2
    return turned


def built_inside(w: Any, x: torch.Tensor) -> Any:
    return functional.linear(x, Quantized.of(w.whole() * 2))


def random(w: Any, x: torch.Tensor) -> Any:
    return torch.rand_like(w).shape, functional.linear(x, w)


def transformed(w: Any, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda a: functional.linear(a, w).sum())(x)


ELSEWHERE: list[Program] = [
    another_part, another_attribute, written_part, written_dict, deleted_part, part_of_a_result_replaced,
    random, transformed,
]  # fmt: skip


@pytest.mark.parametrize("program", ELSEWHERE, ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    compiled = argand.compile(program, backend="eager")
    for seed in (1, 2):
        x = torch.full((2, 4), float(seed))
        given, other = weight(seed), weight(seed)
        got, eager = told(compiled(given, x)), told(program(other, x))
        torch.testing.assert_close(got, eager)
        torch.testing.assert_close(told(given), told(other))


def test_pairs_that_are_written_to_or_have_gradients() -> None:
    def written(pair: Any, x: torch.Tensor) -> Any:
        return pair.mul_(2), pair

    def with_history(pair: Any, x: torch.Tensor) -> Any:
        return (pair * (x * 2).requires_grad_()), pair

    for program, grad in ((written, False), (with_history, False), (with_history, True)):
        outcomes = []
        for run in (program, argand.compile(program, backend="eager")):
            pair = TwoTensor(torch.ones(2, 2), torch.full((2, 2), 3.0)).requires_grad_(grad)
            results = run(pair, torch.ones(2, 2))
            outcomes.append((told(results), [item.requires_grad for item in results]))
        torch.testing.assert_close(outcomes[1], outcomes[0])


class Pairs(nn.Module):
    """Layers whose weights, and biases, are pairs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        for layer in (self.layers[0], self.layers[2]):
            for name, p in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(TwoTensor(p.detach().clone(), p.detach() + 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["eager", "aot_eager", "native"])
def test_training_of_models_of_pairs(how: str) -> None:
    """Gradients are filled in, optimizers step; one graph."""
    outcomes = []
    for compiled in (False, True):
        model = Pairs()
        run = argand.compile(model, backend=how, fullgraph=True) if compiled else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        seen: list[Any] = []
        for step in range(3):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            loss = run(x)
            loss.backward()
            seen += told([loss, *[p.grad for p in model.parameters()]])
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                seen += told(run(x))
        outcomes.append((seen, told(list(model.parameters()))))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)


def recorded(t: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return t.cos()


WITH_GRADIENTS: dict[str, Program] = {
    "result": lambda t, x: (t * x).sin(),
    "several": lambda t, x: (t.exp(), (t * t).sum(0), t.t() + 1),
    "detached": lambda t, x: (t.detach() * t, t.a * 2, int(t.requires_grad), int(t.is_leaf)),
    "unused": lambda t, x: x * 2,
    "itself": lambda t, x: (t, t * 2),
    "recorded where it is not": lambda t, x: recorded(t),
}


@pytest.mark.parametrize("how", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_of_pairs(name: str, how: str) -> None:
    program = WITH_GRADIENTS[name]
    compiled = argand.compile(program, backend=how, fullgraph=True)
    for leaf, enabled in ((True, True), (False, True), (True, False)):
        outcomes = []
        for run in (program, compiled):
            t = TwoTensor(torch.ones(2, 2), torch.full((2, 2), 3.0)).requires_grad_()
            with torch.set_grad_enabled(enabled):
                results = pytree.tree_leaves(run(t if leaf else t * 2, torch.full((2, 2), 0.5)))
            tensors = [item for item in results if isinstance(item, torch.Tensor)]
            for item in tensors:
                if item.requires_grad:
                    (item * 3).sum().backward(retain_graph=True)
            gradient = [] if t.grad is None else told([t.grad])
            outcomes.append((told(results), [item.requires_grad for item in tensors], gradient))
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_gradients_of_weights_that_are_otherwise_made_are_eagers() -> None:
    def program(w: Any, x: torch.Tensor) -> Any:
        return functional.linear(x, w).sin()

    outcomes = []
    for run in (program, argand.compile(program, backend="aot_eager")):
        w = weight(1).requires_grad_()
        run(w, torch.ones(2, 4)).sum().backward()
        outcomes.append((KINDS.index(type(w.grad)), w.grad))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_a_gradient_of_a_plain_tensor_may_wrap() -> None:
    def program(t: Any, x: torch.Tensor) -> Any:
        return (t * x).sin()

    outcomes = []
    for run in (program, argand.compile(program, backend="aot_eager", fullgraph=True)):
        t, x = TwoTensor(torch.ones(2), torch.ones(2) * 2).requires_grad_(), torch.ones(2, requires_grad=True)
        run(t, x).sum().backward()
        outcomes.append(told([t.grad, x.grad]))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_the_class_is_guarded() -> None:
    class Other(Quantized):
        pass

    def program(w: Any, x: torch.Tensor) -> Any:
        return functional.linear(x, w)

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    w, x = weight(1), torch.ones(2, 4)
    other = Other(w.codes, w.scale)
    assert torch.equal(compiled(other, x), program(other, x))

    def negative(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Quantized, lambda t: -t.whole(), (args, kwargs or {}))
        return func(*args, **kwargs)

    Other.__torch_dispatch__ = classmethod(negative)  # type: ignore[assignment]
    assert torch.equal(compiled(other, x), program(other, x))


def test_what_a_constructor_reads_of_the_program_is_seen() -> None:
    factor = [2.0]

    class Factored(Quantized):
        def __init__(self, codes: torch.Tensor, scale: torch.Tensor, kind: torch.dtype = torch.float32) -> None:
            super().__init__(codes, scale, kind)
            self.scale = scale * factor[0]

        @classmethod
        def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
            made = cls(inner["codes"], inner["scale"], *context)
            made.scale = inner["scale"]
            return made

    def program(w: Any, x: torch.Tensor) -> Any:
        return functional.linear(x, Factored(w.codes, w.scale * 1))

    compiled = argand.compile(program, backend="eager")
    w, x = weight(1), torch.ones(2, 4)
    for factor[0] in (2.0, 3.0):
        assert torch.equal(compiled(w, x), program(w, x))


def test_what_changes_between_calls() -> None:
    def program(w: Any, x: torch.Tensor) -> Any:
        return functional.linear(x.to(w.scale.dtype), w) if w.scale.sum() > 0 else x

    compiled = argand.compile(program, backend="eager")
    w, x = weight(1), torch.ones(2, 4)
    changes: list[Callable[[], Any]] = [
        lambda: w.scale.mul_(2),
        lambda: setattr(w, "scale", w.scale * 3),
        lambda: setattr(w, "scale", w.scale[:1].expand(8, 1)),
        lambda: setattr(w, "scale", -w.scale),
        lambda: setattr(w, "codes", w.codes.flip(0)),
        lambda: setattr(w, "scale", w.scale.double().abs()),
    ]
    for change in changes:
        change()
        assert torch.equal(compiled(w, x), program(w, x))


def test_gradients_that_are_asked_for_around_wrappers() -> None:
    def checkpointed(w: Any, x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda a: functional.linear(a, w).sin(), x, use_reentrant=False)

    def differentiated(w: Any, x: torch.Tensor) -> Any:
        return torch.autograd.grad(functional.linear(x * 2, w).sum(), x)

    def part_of_a_result_with_history(w: Any, x: torch.Tensor) -> Any:
        return (TwoTensor(torch.ones(4), torch.ones(4)) * x).a * 2

    for program in (checkpointed, differentiated, part_of_a_result_with_history):
        outcomes = []
        for run in (program, argand.compile(program, backend="aot_eager")):
            x = torch.ones(2, 4, requires_grad=True)
            outcomes.append(told(run(weight(1), x), x))
        torch.testing.assert_close(outcomes[1], outcomes[0])


class SecondPart(torch.Tensor):
    """Operations on it read one of its parts; gradients are saved of that one alone."""

    a: torch.Tensor
    b: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, b.shape, dtype=b.dtype, device=b.device)

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        one = next(value for value in pytree.tree_leaves(args) if isinstance(value, cls))
        given = pytree.tree_map_only(cls, lambda value: value.b, (args, kwargs or {}))
        out = func(*given[0], **given[1])
        if func._schema.name.endswith("_"):
            return args[0]
        return pytree.tree_map_only(torch.Tensor, lambda tensor: cls(one.a.clone(), tensor), out)


WRITES: dict[str, Callable[..., object]] = {
    "nothing": lambda w, v, y: None,
    "a result": lambda w, v, y: y.mul_(3),
    "a view of a result": lambda w, v, y: y.view(-1).mul_(3),
    "an input without a gradient": lambda w, v, y: v.mul_(3),
    "an input": lambda w, v, y: w.mul_(3),
}


@pytest.mark.parametrize("cls", [TwoTensor, SecondPart])
def test_writes_between_forward_and_backward(cls: Any) -> None:
    """Autograd counts writes to the whole; what a graph saves are parts."""

    def run(w: Any, v: Any) -> Any:
        y = w * v
        return y, (y * y).sum()

    for name, write in WRITES.items():
        told = []
        for how in ("", "eager", "aot_eager", "native"):
            argand.reset()
            torch.manual_seed(0)
            leaf, v = (cls(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(2))
            w = leaf.requires_grad_() * 1
            y, loss = (argand.compile(run, backend=how, fullgraph=True) if how else run)(w, v)
            write(w, v, y)
            try:
                loss.backward()
                told.append(round(leaf.grad.b.sum().item(), 2))
            except RuntimeError as error:
                told.append(str(error)[:40])
        assert len(set(told)) == 1, (name, told)
        assert isinstance(told[0], str) is ("result" in name or "without" in name), (name, told)


def test_a_result_is_a_view_of_another() -> None:
    def run(w: Any) -> Any:
        y = w * 2
        return y, y.view(-1)

    told = []
    for how in ("", "eager", "aot_eager"):
        argand.reset()
        leaf = TwoTensor(torch.ones(2, 2), torch.ones(2, 2)).requires_grad_()
        y, view = (argand.compile(run, backend=how, fullgraph=True) if how else run)(leaf)
        view.mul_(3)
        y.sum().backward()
        told.append((view._is_view(), y.a.tolist(), leaf.grad.a.tolist()))
    assert told[1:] == told[:1] * 2


class Halved(Quantized):
    """One whose torch functions are Python code too, which calls the function that it stands for: run twice, it would
    show."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is functional.linear:
                return functional.linear(args[0], args[1].whole()) / 2 + func(*args)
            if func is torch.Tensor.add:
                return func(args[0], args[1], **(kwargs or {})) * args[0].scale
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["eager", "aot_eager", "native"])
def test_classes_with_code_for_torch_functions(how: str) -> None:
    def program(w: Any, x: torch.Tensor) -> Any:
        assert w.dtype is torch.float32 and w.dim() == 2
        return functional.linear(x, w), torch.add(w, 1), w.add(x.sum(), alpha=2), w * 2, w.t().scale, w.detach() + 1

    compiled = argand.compile(program, backend=how, fullgraph=True)
    for seed in (1, 2):
        made = weight(seed)
        given = Halved(made.codes, made.scale), torch.full((2, 4), float(seed), requires_grad=True)
        torch.testing.assert_close(compiled(*given), program(*given))
        model = nn.Linear(4, 8)
        model.weight = nn.Parameter(given[0], requires_grad=False)
        got, want = (run(given[1]).square().sum() for run in (argand.compile(model, backend=how), model))
        torch.testing.assert_close(torch.autograd.grad(got, given[1]), torch.autograd.grad(want, given[1]))


class Decided(Quantized):
    """Says itself what some torch functions of it are, and leaves the others to dispatch; counts what it is asked."""

    asked: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func.__name__)
        if func is functional.linear:
            return args[0] @ args[1].codes.float().T * args[1].scale.T + args[2]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_classes_that_say_what_torch_functions_are_are_asked_as_in_eager(backend: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Decided.of(layer.weight.detach()), requires_grad=False)
    weight = Decided.of(torch.randn(4, 6))

    def function(x: torch.Tensor) -> Any:  # what is left to dispatch
        return x + 1, torch.sin(weight), weight.shape, weight.codes * 2

    for run in (model, function) if backend == "eager" else (model,):
        compiled = argand.compile(run, backend=backend, fullgraph=run is model)
        for rows in (2, 2, 3, 5):
            x = torch.randn(rows, 6)
            Decided.asked.clear()
            torch.testing.assert_close(compiled(x), run(x))
            half = len(Decided.asked) // 2
            assert Decided.asked[:half] == Decided.asked[half:]
