"""Optimizer steps as the backends compile them: fused kernels in place, lists of tensors taken apart, writes to `.data`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import argand
from argand import events
from argand.backends.native import native
from helpers import CountingBackend

O = torch.optim
FUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (O.SGD, dict(lr=0.1)),
    "sgd_momentum": (O.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "sgd_maximize": (O.SGD, dict(lr=0.1, momentum=0.9, maximize=True)),
    "sgd_tensor_lr": (O.SGD, dict(lr=torch.tensor(0.1))),
    "adagrad": (O.Adagrad, dict(lr=0.1, lr_decay=0.1)),
    "adam": (O.Adam, dict(lr=0.01)),
    "adam_amsgrad": (O.Adam, dict(lr=0.01, amsgrad=True, maximize=True)),
    "adam_tensor_lr": (O.Adam, dict(lr=torch.tensor(0.01))),
    "adamw": (O.AdamW, dict(lr=0.01, weight_decay=0.1)),
    "adamw_tensor_lr": (O.AdamW, dict(lr=torch.tensor(0.01))),
}


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    argand.reset()
    found: list[Any] = []
    stop = events.bus.subscribe(found.append)
    yield found
    stop()


def texts(found: list[Any], name: str) -> list[str]:
    return [str(e.text() if callable(e.text) else e.text) for e in found if e.name == name]


def steps(wrap: Callable[[Any], Any], cls: Any, options: dict[str, Any], schedule: Any = None) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = cls(model.parameters(), **options)
    scheduler = schedule(optimizer) if schedule else None
    step = wrap(optimizer.step)
    for i in range(5):
        optimizer.zero_grad(set_to_none=bool(i % 2))
        model(torch.randn(2, 4)).pow(2).sum().backward()
        step()
        if scheduler is not None:
            scheduler.step()
    state = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
    return [p.detach() for p in model.parameters()], state


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_fused_step_is_one_node_and_exact(name: str, backend: str, seen: list[Any]) -> None:
    """torch's kernel runs, so that every bit is eager's."""
    cls, options = FUSED[name]
    want = steps(lambda step: step, cls, {**options, "fused": True})
    counting = CountingBackend()
    got = steps(
        lambda step: argand.compile(step, backend=backend if backend != "eager" else counting, fullgraph=True),
        cls,
        {**options, "fused": True},
    )
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    scopes = Counter(str(e.data.get("scope")) for e in seen if e.name == "fallback")
    assert scopes["graph"] == 0
    for graph in counting.graphs:
        assert sum("_fused_" in str(node.target) for node in graph.graph.nodes) == 1
    if backend == "native":
        last = texts(seen, "output_code")[-1]
        assert "torch.ops.aten._fused_" in last  # in place: the kernel of the running optimizer, not a copy of it
        assert "restrided" not in last.split("def call")[1]


def test_a_fused_step_that_cannot_be_in_place_copies(seen: list[Any]) -> None:
    """The old value of a parameter is returned: the kernel must not write over it."""

    def fn(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            old = p * 1
            torch._fused_sgd_([p], [g], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False,
                              maximize=False, is_first_step=False)  # fmt: skip
            return old + p.sum()

    one, two, g = torch.arange(3.0), torch.arange(3.0), torch.ones(3)
    torch.testing.assert_close(argand.compile(fn)(two, g), fn(one, g))
    torch.testing.assert_close(two, one)


def test_the_same_tensor_in_two_places_of_a_fused_step() -> None:
    def fn(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch._fused_sgd_([p], [p], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False,
                              maximize=False, is_first_step=False)  # fmt: skip
        return p * g

    one, two, g = torch.arange(3.0), torch.arange(3.0), torch.ones(3)
    torch.testing.assert_close(argand.compile(fn)(two, g), fn(one, g))
    torch.testing.assert_close(two, one)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["lambda", "one_cycle"])
def test_a_schedule_of_learning_rates_compiles_once(kind: str, fused: bool, seen: list[Any]) -> None:
    """For every learning rate, behind the first step, which makes the state."""
    L = O.lr_scheduler
    make = {
        "lambda": lambda o: L.LambdaLR(o, lambda epoch: 0.9**epoch),
        "one_cycle": lambda o: L.OneCycleLR(o, max_lr=0.1, total_steps=10),
    }[kind]
    options = dict(lr=0.01, fused=fused)
    want = steps(lambda step: step, O.AdamW, options, make)
    got = steps(argand.compile, O.AdamW, options, make)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len(texts(seen, "output_code")) == 1


@pytest.mark.parametrize("cls", [O.Adam, O.SGD, O.RMSprop, O.NAdam, O.Adamax])
def test_foreach_steps_have_no_foreach_left(cls: Any, seen: list[Any]) -> None:
    options = dict(lr=0.01, foreach=True)
    want = steps(lambda step: step, cls, options)
    got = steps(argand.compile, cls, options)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert "ops.aten._foreach" not in "".join(texts(seen, "aot_inference_graph"))
    assert not [e for e in seen if e.name == "fallback"]


FOREACH: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor]], Any]] = {
    "add list": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "add tensor": lambda a, b: torch._foreach_add(a, b[0][0], alpha=2),
    "numbers": lambda a, b: torch._foreach_mul(a, [2.0, 3]),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
    "clamp": lambda a, b: torch._foreach_clamp_max(a, 1.5),
    "pow": lambda a, b: torch._foreach_pow(a, b),
    "number to tensors": lambda a, b: torch._foreach_pow(2.0, b),
    "lerp": lambda a, b: (torch._foreach_lerp(a, b, 0.3), torch._foreach_lerp(a, b, b)),
    "addcdiv": lambda a, b: (torch._foreach_addcdiv(a, b, b, [1.0, 2.0]), torch._foreach_addcmul(a, b, b, value=3)),
    "norm": lambda a, b: (torch._foreach_norm(a, 1), torch._foreach_norm(a)),
    "unary": lambda a, b: (torch._foreach_sqrt(a), torch._foreach_neg(torch._foreach_exp(b))),
    "writes": lambda a, b: (torch._foreach_copy_(a, b), torch._foreach_zero_(b), torch._foreach_add_(a, 1), None)[3],
    "one tensor twice": lambda a, b: torch._foreach_add_([a[0], a[0]], 1),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_ops(name: str, seen: list[Any]) -> None:
    def fn(a0: torch.Tensor, a1: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor) -> Any:
        return FOREACH[name]([a0, a1], [b0, b1])

    def given() -> list[torch.Tensor]:
        return [torch.tensor([1.0, 4.0]), torch.ones(2, 2), torch.tensor([3.0, 2.0]), torch.full((2, 2), 0.5)]

    one, two = given(), given()
    torch.testing.assert_close(argand.compile(fn)(*two), fn(*one))
    torch.testing.assert_close(two, one)
    assert "ops.aten._foreach" not in "".join(texts(seen, "aot_inference_graph"))


# ---------------------------------------------------------------------- writes that autograd does not see


def through_data(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w.data.clamp_(-0.5, 0.5)
    return x @ w


def under_no_grad(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.clamp_(-0.5, 0.5)
    return (x @ w).sin()


def through_detach(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w.detach().clamp_(-0.5, 0.5)
    return (x @ w).sin()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn", [through_data, under_no_grad, through_detach])
def test_a_parameter_that_is_written_to_before_it_is_used(fn: Callable[..., torch.Tensor], backend: str) -> None:
    """gemma3n clamps a weight through `.data` in its forward: the backward reads the new value, and the version of the
    weight moves where eager's does."""
    results = []
    for call in (fn, argand.compile(fn, backend=backend)):
        torch.manual_seed(0)
        w, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        before = w._version
        out = call(w, x)
        moved = w._version > before
        out.sum().backward()
        results.append([out.detach(), w.grad, x.grad, w.detach(), torch.tensor(moved)])
    torch.testing.assert_close(results[1], results[0])


def test_the_native_backend_reads_parameters_in_place_that_it_wrote() -> None:
    """Kernels store into the parameter itself; its version is raised before it is saved, not after."""
    graph = torch.fx.Graph()
    w, x = graph.placeholder("w"), graph.placeholder("x")
    graph.output(graph.call_function(through_data, (w, x)))
    one = torch.randn(4, 4, requires_grad=True)
    two = one.detach().clone().requires_grad_()
    given = torch.randn(4, 4, requires_grad=True)
    call = native(torch.fx.GraphModule(nn.Module(), graph), [two, given])
    call(two, given).sum().backward()
    through_data(one, given.detach()).sum().backward()
    torch.testing.assert_close([two.grad, two.detach()], [one.grad, one.detach()])


def test_a_result_that_is_copied_for_its_aliases_adds_no_input(seen: list[Any]) -> None:
    """An averaged model copies parameters in its first update: finding the copy's size must not be part of the trace."""

    def fn(average: torch.Tensor, p: torch.Tensor) -> None:
        average.detach().copy_(p.detach())

    average, p = torch.zeros(3, requires_grad=True), torch.arange(3.0).requires_grad_()
    argand.compile(fn)(average, p)
    torch.testing.assert_close(average.detach(), p.detach())
    assert not [e for e in seen if e.name == "fallback"]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ["ema", "plain"])
def test_averaged_models(name: str, backend: str) -> None:
    results = []
    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        average = O.swa_utils.AveragedModel(
            model, multi_avg_fn=O.swa_utils.get_ema_multi_avg_fn(0.9) if name == "ema" else None, use_buffers=True
        )
        optimizer = O.SGD(model.parameters(), lr=0.1, fused=True)
        update = wrap(average.update_parameters)
        for i in range(5):
            optimizer.zero_grad(set_to_none=bool(i % 2))
            model(torch.randn(6, 4)).pow(2).sum().backward()
            optimizer.step()
            update(model)
        results.append([t.detach().clone() for t in (*average.parameters(), *average.buffers())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_fused_step_after_accumulation_and_clipping(backend: str) -> None:
    results = []
    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend)):
        torch.manual_seed(0)
        model = nn.Linear(4, 5)
        optimizer = O.AdamW([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}], lr=0.1, fused=True)

        def step(parts: list[torch.Tensor], model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            for part in parts:
                (model(part).pow(2).mean() / len(parts)).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            nn.utils.clip_grad_value_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return norm

        run = wrap(step)
        norms = [run([torch.randn(3, 4), torch.randn(3, 4)]) for _ in range(5)]
        results.append([*norms, *[p.detach() for p in model.parameters()]])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


WRITES: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "unary": lambda t: torch._foreach_neg_(t),
    "number": lambda t: torch._foreach_mul_(t, 2),
    "lists": lambda t: torch._foreach_add_(t, [one * 2 for one in t]),
    "lerp": lambda t: torch._foreach_lerp_(t, [one * 2 for one in t], 0.5),
    "scaled": lambda t: torch._foreach_addcmul_(t, [one * 2 for one in t], [one + 1 for one in t], 0.5),
    "copy": lambda t: torch._foreach_copy_(t, [one * 2 for one in t]),
    "zero": lambda t: torch._foreach_zero_(t),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", WRITES)
def test_autograd_hears_of_writes_to_lists_of_tensors(name: str, backend: str) -> None:
    """A backward that has kept one of them is refused afterwards, as it would compute with other values."""

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        WRITES[name]([x, y.data])

    for wrap in (lambda fn: fn, lambda fn: argand.compile(fn, backend=backend)):
        w, x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0), torch.full((3,), 3.0)
        kept, unnoticed = (w * x).sum(), (w * y).sum()
        wrap(step)(x, y)
        assert x._version == 1 and y._version == 0
        unnoticed.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.backward()
