"""Calls that write to other arguments than their first, or whose schema does not say that they write, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import argand
from helpers import assert_same

aten = torch.ops.aten
Body = Callable[..., Any]
X = torch.arange(12.0).reshape(4, 3) * 0.3 - 1
ZERO, ONE = torch.zeros(3), torch.ones(3)
ONES = torch.ones(1)
STATISTICS = (ZERO, ONE)


@pytest.fixture(scope="module", autouse=True)
def _library() -> Iterator[None]:
    with torch.library._scoped_library("written_arguments", "FRAGMENT") as library:
        library.define("second(Tensor x, Tensor(a!) y) -> Tensor")
        library.define("listed(Tensor x, Tensor(a!)[] ys) -> ()")
        library.define("named(Tensor x, *, Tensor(a!) z) -> ()")
        library.impl("second", lambda x, y: y.add_(x.sum()) * 0 + 2, "CompositeExplicitAutograd")
        library.impl("listed", lambda x, ys: [y.add_(x.sum()) for y in ys] and None, "CompositeExplicitAutograd")
        library.impl("named", lambda x, *, z: z.copy_(x.sum()) and None, "CompositeExplicitAutograd")
        library.impl("second", lambda x, y: y.new_empty(y.shape), "Meta")
        library.impl("listed", lambda x, ys: None, "Meta")
        library.impl("named", lambda x, *, z: None, "Meta")
        yield


def _fused_adam(x: torch.Tensor, moment: torch.Tensor) -> None:
    rest = {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.0,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    torch._fused_adam_([torch.ones(3)], [x.sum(0)], [moment], [torch.zeros(3)], [], [torch.ones(())], **rest)


def _unscaled(x: torch.Tensor, infinite: torch.Tensor) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_([x / 0], infinite, torch.ones(()))


def _observed(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
    scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    torch.fused_moving_avg_obs_fake_quant(x, ONES, ONES, low, high, scale, zero, 0.1, -128, 127, 0)


CALLS: dict[str, tuple[Body, tuple[torch.Tensor, ...]]] = {
    "F.batch_norm": (lambda x, m, v: F.batch_norm(x, m, v, training=True), STATISTICS),
    "torch.batch_norm": (lambda x, m, v: torch.batch_norm(x, None, None, m, v, True, 0.1, 1e-5, False), STATISTICS),
    "native_batch_norm": (lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5), STATISTICS),
    "legit": (lambda x, m, v: aten._native_batch_norm_legit(x, None, None, m, v, True, 0.1, 1e-5), STATISTICS),
    "in_place_statistics": (lambda x, both: F.batch_norm(x, both[0], both[1], training=True), (torch.ones(2, 3),)),
    "instance_norm": (lambda x, m, v: F.instance_norm(x.t()[None], m, v, use_input_stats=True), STATISTICS),
    "embedding": (lambda x, w: F.embedding(torch.tensor([0, 2]), w, max_norm=1.0), (torch.ones(3, 4),)),
    "embedding_bag": (lambda x, w: F.embedding_bag(torch.tensor([[0, 2]]), w, max_norm=1.0), (torch.ones(3, 4),)),
    "unscale": (_unscaled, (torch.zeros(1),)),
    "fused_adam": (_fused_adam, (ZERO,)),
    "observer": (_observed, (torch.zeros(1), torch.zeros(1))),
    "rrelu_noise": (lambda x, n: torch._C._nn.rrelu_with_noise(x, n, 0.3, 0.3, True), (torch.zeros(4, 3),)),
    "custom_second": (lambda x, y: torch.ops.written_arguments.second(x, y), (ZERO,)),
    "custom_keyword": (lambda x, y: torch.ops.written_arguments.second.default(x=x, y=y), (ZERO,)),
    "custom_view": (lambda x, y: torch.ops.written_arguments.second(x, y[1]), (torch.zeros(2, 2),)),
    "custom_list": (lambda x, y, z: torch.ops.written_arguments.listed(x, [y, z]), (ZERO, torch.ones(()))),
    "custom_keyword_only": (lambda x, z: torch.ops.written_arguments.named(x, z=z), (torch.ones(()),)),
    "out_of_overload": (lambda x, a, b: aten.max.dim_max(x, 0, max=a, max_values=b), (ZERO, ZERO.long())),
}  # fmt: skip


def _run(fn: Body, *given: torch.Tensor, calls: int = 2) -> Any:
    torch.manual_seed(0)
    given = copy.deepcopy(given)
    return [fn(X * number, *given) for number in range(1, calls + 1)], given


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_is_read_anew(name: str, backend: str) -> None:
    """The values were known before the call; nobody needs the result of it."""
    body, start = CALLS[name]

    def program(x: torch.Tensor) -> Any:
        made = [torch.full(t.shape, float(t.flatten()[0]), dtype=t.dtype) for t in start]
        body(x, *made)
        return [torch.tensor(t.tolist()) for t in made], (x + 1 if made[0].sum() > 0.5 else x - 1)

    assert_same(_run(program), _run(argand.compile(program, backend=backend)))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_stays_written(name: str, backend: str) -> None:
    """Arguments from outside, read before and after the call, whose result nobody needs."""
    body, start = CALLS[name]

    def program(x: torch.Tensor, *given: torch.Tensor) -> Any:
        before = [t + 1 for t in given]
        body(x, *given)
        return before, [t + 1 for t in given]

    def silent(x: torch.Tensor, *given: torch.Tensor) -> None:
        body(x, *given)

    for fn in (program, silent):
        assert_same(_run(fn, *start), _run(argand.compile(fn, backend=backend), *start))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_model_that_runs_for_its_statistics_alone(mode: Callable[[], Any], momentum: float | None) -> None:
    def outcome(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=momentum), nn.ReLU())

        def calibrate(x: torch.Tensor) -> None:
            model(x)

        fn = argand.compile(calibrate, backend="native") if compiled else calibrate
        for number in range(2):
            with mode():
                fn(X + number)
        return {key: value.clone() for key, value in model.state_dict().items()}

    assert_same(outcome(False), outcome(True))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_optimizer_step_is_left_out_after_infinite_gradients(backend: str) -> None:
    def outcome(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach(), model.weight.detach().clone(), scaler.get_scale()

        fn = argand.compile(step, backend=backend) if compiled else step
        return [fn(X), fn(X / 0), fn(X), fn(X)]

    assert_same(outcome(False), outcome(True))


def test_statistics_of_a_checkpoint() -> None:
    def outcome(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
        hooked: list[torch.Tensor] = []

        def program(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y.register_hook(lambda gradient: hooked.append(gradient.sum()))
            return checkpoint(model, y, use_reentrant=False).sum()

        fn = argand.compile(program, backend="native") if compiled else program
        results = []
        for number in (0, 2):
            x = (X + number).requires_grad_()
            fn(x).backward()
            results.append(x.grad)
        return results, hooked, model.state_dict()

    assert_same(outcome(False), outcome(True))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_both_statistics_in_one_memory(backend: str) -> None:
    """The kernel writes to one after the other."""

    def same(x: torch.Tensor, both: torch.Tensor) -> Any:
        return F.batch_norm(x, both, both, training=True), both + 1

    def of_input(x: torch.Tensor, both: torch.Tensor) -> Any:
        whole = torch.cat([x, both[None]])
        return F.batch_norm(whole, whole[0], both, training=True), whole, both + 1

    for fn in (same, of_input):
        assert_same(_run(fn, ONE), _run(argand.compile(fn, backend=backend), ONE))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_observers_of_quantization_resize_their_buffers_in_the_first_call(backend: str) -> None:
    def observed(x: torch.Tensor, buffers: list[torch.Tensor]) -> torch.Tensor:
        return torch.fused_moving_avg_obs_fake_quant(x * 2, ONES, ONES, *buffers, 0.01, -128, 127, 0, True, True) + 1  # type: ignore[attr-defined,no-any-return]

    empty = [torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int32)]
    compiled = argand.compile(observed, backend=backend)
    ours, theirs = copy.deepcopy(empty), copy.deepcopy(empty)
    for step in range(3):
        assert_same(compiled(X + step, ours), observed(X + step, theirs))
        assert_same(ours, theirs)


class Told(torch.Tensor):
    names: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_is_told_of_the_writes_of_the_program_only() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        return x.clone().sin_().add_(1)

    names = []
    for function in (write, argand.compile(write, backend="eager")):
        Told.names.clear()
        function(X.clone().as_subclass(Told))
        names.append([*Told.names])
    assert names[0] == names[1]
