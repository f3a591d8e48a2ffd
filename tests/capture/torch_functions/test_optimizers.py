"""torch.optim: a captured step leaves parameters and state as eager's does."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import nn

import argand
import sweeps
from helpers import CountingBackend, assert_same

O = torch.optim
OPTIMIZERS = (
    "SGD Adam AdamW Adagrad RMSprop Adadelta Adamax NAdam RAdam ASGD Rprop Adafactor Muon LBFGS SparseAdam"
).split()
FLAGS: dict[str, Any] = {  # each alone, where the optimizer has it
    "foreach": True, "fused": True, "differentiable": True, "maximize": True, "amsgrad": True, "momentum": 0.9,
    "weight_decay": 0.1, "nesterov": True, "centered": True, "decoupled_weight_decay": True, "dampening": 0.1,
    "lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": (1e-20, 1e-2), "rho": 0.8, "t0": 2.0, "line_search_fn":
    "strong_wolfe",
}  # fmt: skip
OF_MOST = ("foreach", "differentiable", "maximize", "weight_decay", "lr")  # each is tried with every second optimizer
WITH = {"nesterov": {"momentum": 0.9}, "dampening": {"momentum": 0.9}, "decoupled_weight_decay": {"weight_decay": 0.1}}


def cases() -> list[tuple[str, str]]:
    """Optimizers with no flag, each flag, several rates: (optimizer, flag)."""
    found, tried = [], sweeps.chessboard(OPTIMIZERS, OF_MOST)
    for name in OPTIMIZERS:
        cls = getattr(O, name, None)  # Muon is of torch 2.9
        known = set() if cls is None else set(inspect.signature(cls).parameters)
        flags = [flag for flag in ("", *FLAGS, "lr") if not flag or flag in known]
        found += [(name, flag) for flag in flags if flag not in OF_MOST or (name, flag) in tried]
    return [(n, f) for n, f in found if getattr(O, n, None) and ((f == "eps") == (n == "Adafactor") or f != "eps")]


def options(name: str, flag: str, cls: Any) -> dict[str, Any]:
    made: dict[str, Any] = {} if not flag else {flag: FLAGS.get(flag), **WITH.get(flag, {})}
    if flag == "lr":
        made = {"lr": torch.tensor(0.02)}
        if name in ("Adam", "AdamW") and "foreach" in inspect.signature(cls).parameters:
            made["foreach"] = False
    if name == "LBFGS":
        made["max_iter"] = 3
    return {key: value for key, value in made.items() if key in inspect.signature(cls).parameters}


def run(name: str, flag: str, wrap: Any, steps: int = 6) -> tuple[list[torch.Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(*size, generator=generator) for size in [(3, 5), (4, 3), *([(4,)] if name != "Muon" else [])]]
    for param in params if flag != "differentiable" else ():
        param.requires_grad_()
    optimizer = getattr(O, name)(params, **options(name, flag, getattr(O, name)))
    step = wrap(optimizer.step)

    def loss() -> torch.Tensor:
        for param in params:
            param.grad = (param.detach() * 2).requires_grad_(False)
        return torch.stack([(param * param).sum() for param in params]).sum()

    for number in range(steps):
        for param in params:
            grad = torch.randn(param.shape, generator=generator) / (number + 1)
            param.grad = grad.to_sparse(1) if name == "SparseAdam" else grad
        for group in optimizer.param_groups:  # as a scheduler does
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(0.9)
            else:
                group["lr"] = group["lr"] * (0.9 if number >= 1 else 1.0)
        step(*([loss] if name == "LBFGS" else []))
    return [p.detach() for p in params], optimizer.state_dict()


def assert_as_eager(want: Any, got: Any, **tolerance: float) -> None:
    for a, b in zip(want[0], got[0]):
        torch.testing.assert_close(b, a, **tolerance)
    assert list(want[1]["state"]) == list(got[1]["state"])
    for index, state in want[1]["state"].items():
        assert list(state) == list(got[1]["state"][index])
        for name, value in state.items():
            torch.testing.assert_close(got[1]["state"][index][name], value, **tolerance)


@pytest.mark.parametrize(("name", "flag"), cases())
def test_step(name: str, flag: str) -> None:
    """Parameters and states as eager leaves them; one graph, made anew once or twice: for the states, for the rate."""
    breaks = name in ("RAdam", "ASGD") and flag == "differentiable"  # numbers that gradients are not recorded for
    if breaks or name in ("LBFGS", "SparseAdam"):  # calls its closure, has sparse gradients
        argand.reset()
        got = run(name, flag, lambda f: argand.compile(f, backend="eager"))
        tolerance = dict(rtol=1e-3, atol=1e-4) if name == "LBFGS" else {}  # differences of nearly equal gradients
        assert_as_eager(run(name, flag, lambda f: f), got, **tolerance)
        return
    backend, made = CountingBackend(), []
    argand.reset()

    def compiled(step: Any) -> Any:
        call = argand.compile(step, backend=backend, fullgraph=True)
        return lambda: (call(), made.append(len(backend.graphs)))

    got = run(name, flag, compiled)
    assert_as_eager(run(name, flag, lambda f: f), got)
    assert made[0] == 1 and made[-1] == made[2] <= 3


@pytest.mark.parametrize("name", ["RAdam", "ASGD", "Adafactor", "Muon"])
@pytest.mark.parametrize("foreach", [False, True])
def test_step_that_reads_numbers_compiled(name: str, foreach: bool) -> None:
    if not hasattr(O, name) or (foreach and name == "Muon"):
        return
    flag = "foreach" if foreach else ""
    argand.reset()
    assert_as_eager(run(name, flag, lambda f: f), run(name, flag, argand.compile))


def test_step_inside_a_larger_function() -> None:
    """With clipping before and an average after: one graph, as far as the gradients are given."""
    results = []
    backend = CountingBackend()
    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend, fullgraph=True)):
        params = [torch.full((3, 2), 0.5, requires_grad=True), torch.full((4,), -0.5, requires_grad=True)]
        means = [p.detach().clone() for p in params]
        optimizers = [O.RAdam(params[:1], lr=0.1), O.ASGD(params[1:], lr=0.1)]

        def update(params: Any = params, means: Any = means, optimizers: Any = optimizers) -> torch.Tensor:
            norm = nn.utils.clip_grad_norm_(params, 0.5)
            for optimizer in optimizers:
                optimizer.step()
            with torch.no_grad():
                for mean, param in zip(means, params):
                    mean.lerp_(param, 0.1)
            return norm

        call = wrap(update)
        for number in range(6):
            for param in params:
                param.grad = torch.full_like(param, number - 2.5).detach()
            norm = call()
        results.append([norm, *[p.detach() for p in params], *means])
    torch.testing.assert_close(results[1], results[0])
    assert len(backend.graphs) <= 2


def test_dict_with_tensor_keys_from_outside() -> None:
    keys = [torch.ones(2), torch.ones(3)]
    table = {keys[0]: 1.5, keys[1]: torch.tensor(2.0)}

    def f(keys, table):
        total = table[keys[0]] * table[keys[1]]
        for key, value in table.items():
            total = total + key.sum() * value
        table[keys[0]] = 4.0
        return total, keys[1] in table, torch.ones(2) in list(range(0))

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    want = f(keys, dict(table))
    got = compiled(keys, table)
    assert torch.equal(want[0], got[0]) and want[1:] == got[1:]
    assert table[keys[0]] == 4.0 and len(table) == 2
    other = {keys[1]: torch.tensor(7.0), keys[0]: 1.0}  # another order, other values: not the same guards
    assert torch.equal(f(keys, dict(other))[0], compiled(keys, dict(other))[0])


@pytest.mark.parametrize("name", ["addcdiv", "addcdiv_", "addcmul", "addcmul_"])
def test_scale_that_is_a_tensor(name: str) -> None:
    def f(x, a, b, scale):
        return getattr(x + 0, name)(a, b, value=scale)

    given = (torch.randn(5), torch.randn(5), torch.rand(5) + 1, torch.tensor(0.3))
    got = argand.compile(f, backend="eager", fullgraph=True)(*given)
    torch.testing.assert_close(got, f(*given))


def test_clip_grad_norm_and_averaged_model() -> None:
    def make() -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        return model, O.SGD(model.parameters(), lr=0.1, momentum=0.9), average

    def update(model, optimizer, average):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        return norm

    results = []
    for fn in (update, argand.compile(update, backend="eager")):
        model, optimizer, average = make()
        norms = []
        for i in range(4):
            torch.manual_seed(i)
            model(torch.randn(2, 4)).pow(2).sum().backward()
            norms.append(fn(model, optimizer, average))
        results.append((norms, list(model.parameters()), list(average.parameters())))
    torch.testing.assert_close(results[1], results[0])


def test_learning_rate_schedule() -> None:
    def steps(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = O.Adam(model.parameters(), lr=0.1)
        schedule = O.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        step = wrap(optimizer.step)
        for i in range(10):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(i))).pow(2).sum().backward()
            step()
            schedule.step()
        return list(model.parameters())

    argand.reset()
    want, got = steps(lambda step: step), steps(lambda step: argand.compile(step, backend="eager"))
    torch.testing.assert_close(got, want)


def test_steps_are_captured_after_torch_marked_its_optimizers() -> None:
    """The first use of torch.compile marks parts of torch.optim as not for compilers: for torch's own."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert hasattr(O.Adam._init_group, "_torchdynamo_orig_callable")
    test_step("Adam", "")


@pytest.mark.parametrize("scales", [torch.tensor([2.0, 3.0]), [2.0, 3.0], 0.5])
def test_lists_of_results_have_eagers_type(scales: Any) -> None:
    def scaled(xs: list[torch.Tensor]) -> Any:
        return torch._foreach_addcmul(xs, xs, xs, scales)

    xs = [torch.ones(2), torch.ones(3)]
    assert type(argand.compile(scaled, backend="eager")(xs)) is type(scaled(xs))


@pytest.mark.parametrize(
    ("name", "foreach"),
    sweeps.chessboard([name for name in OPTIMIZERS if name not in ("LBFGS", "SparseAdam", "Muon")], [False, True]),
)
def test_numbers_of_steps_are_as_exact_as_pythons(name: str, foreach: bool) -> None:
    """Eager computes corrections of the step's number with Python's numbers, also where the step is a float32 tensor.

    Beside parameters of float64 there are single numbers of float32, of which tensors are not told apart by type.
    """
    answers = []
    for compiled in (False, True):
        generator = torch.Generator().manual_seed(3)
        params = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
        params.append(torch.randn((), generator=generator, dtype=torch.float64))
        params += [torch.randn((), generator=generator), torch.randn(3, generator=generator)]
        optimizer = getattr(O, name)([param.requires_grad_() for param in params], foreach=foreach)
        argand.reset()
        step = argand.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for _ in range(4):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)
            step()
        answers.append([param.detach() for param in params])
    for got, want in zip(*answers[::-1]):
        exact = got.dtype is torch.float64 and not (foreach and name == "ASGD")  # whose lists have float32 rates
        torch.testing.assert_close(got, want, rtol=1e-13 if exact else 1e-6, atol=1e-15 if exact else 1e-7)


def test_a_fused_step_that_torch_refuses_comes_after_the_gradients() -> None:
    """One buffer of a group is gone after a state was loaded."""

    def outcome(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.003}]
        optimizer = torch.optim.SGD(groups, momentum=0.9, fused=True)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        fn = argand.compile(step, backend="eager") if compiled else step
        x = torch.arange(15.0).reshape(5, 3) * 0.3 - 1
        for _ in range(2):
            optimizer.param_groups[0]["lr"] *= 0.7
            fn(x)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        fn(x)
        del optimizer.state[model[0].weight]
        with pytest.raises(TypeError, match="got NoneType"):
            fn(x)
        return [(p.detach(), p.grad) for p in model.parameters()]

    assert_same(outcome(False), outcome(True))


@pytest.mark.parametrize("name", ["add", "add_", "sub", "sub_"])
def test_a_sum_scaled_by_a_tensor_rounds_as_eagers(name: str) -> None:
    """Once: a product that is added rounds twice (LBFGS's first step, rates in tensors)."""
    x, y, scale = torch.randn(7, 9), torch.randn(7, 9), torch.tensor(0.15619632601737976)

    def step(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
        given = [x.clone(), x.clone()]
        one = getattr(given[0], name)(y, alpha=scale)
        several = getattr(torch, f"_foreach_{name}")(given, [y, y], alpha=scale)
        return one, given, list(several or ())

    want = step(x, y, scale)
    backend = CountingBackend()
    assert_same(want, argand.compile(step, backend=backend, fullgraph=True)(x, y, scale), exact=True)
    assert_same(want, argand.compile(step, fullgraph=True)(x, y, scale))


@pytest.mark.parametrize("name", ["_foreach_addcdiv_", "_foreach_addcmul_"])
def test_lists_scaled_by_one_tensor(name: str) -> None:
    """RMSprop's step with a rate in a tensor."""
    x, y, scale = torch.randn(7, 9), torch.rand(7, 9) + 1, torch.tensor(-0.3)

    def step(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
        given = [x.clone(), x.clone()]
        returned = getattr(torch, name)(given, [y, x], [y, y], value=scale)
        return given, returned is given

    assert_same(step(x, y, scale), argand.compile(step, backend="eager", fullgraph=True)(x, y, scale))
