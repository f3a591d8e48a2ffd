"""Graphs that turn out slower than eager: found in an early call, without an effect that the program could see."""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

import argand
from argand import events, threads
from argand.backends import eager_contest, training
from argand.backends.eager_contest import _apart, contested, unless_too_small
from argand.backends.slow_kernels import to_blame
from argand.errors import CacheError
from argand.runtime.kernels import calm
from argand.runtime.recipes import recipe_of


class Clock:
    """What `contest` takes for the time: calls take what they are said to, however busy the machine is."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_contest, "time", CLOCK)
    monkeypatch.setattr(calm, "taken_away", lambda: 0)


@pytest.fixture
def slower() -> Iterator[list[events.Event]]:
    """What is said of graphs that are slower."""
    found: list[events.Event] = []
    stop = events.bus.subscribe(found.append, ("slower",))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "argand: a compiled graph takes")
        yield found
    stop()


def graph(function: Callable[..., Any], *examples: torch.Tensor, slow: bool = True, choose: bool = True) -> Any:
    """The graph of a function, and `contested` of a stand-in for its compiled form, which counts its calls."""
    gm = fx.symbolic_trace(function)
    calls: list[int] = []

    def compiled(*args: Any) -> Any:
        calls.append(1)
        if slow:
            CLOCK.sleep(0.03)
        return gm.forward(*args)

    if not slow:
        original = gm.forward

        def forward(*args: Any) -> Any:
            CLOCK.sleep(0.03)
            return original(*args)

        gm.forward = forward  # type: ignore[method-assign]
        return contested(lambda *args: (calls.append(1), original(*args))[1], gm, examples, choose=choose), calls
    return contested(compiled, gm, examples, choose=choose), calls


def test_the_faster_runs(slower: list[events.Event]) -> None:
    x = torch.randn(8, 8)
    call, calls = graph(lambda x: torch.relu(x) @ x, x)
    for _ in range(8):
        assert torch.equal(call(x), torch.relu(x) @ x)
    compared = len(calls)
    call(x)
    assert len(calls) == compared
    assert len(slower) == 1 and slower[0].data["chosen"] and slower[0].data["compiled_s"] > slower[0].data["eager_s"]

    call, calls = graph(lambda x: torch.relu(x) @ x, x, slow=False)
    for _ in range(8):
        call(x)
    compared = len(calls)
    call(x)
    assert len(calls) == compared + 1 and len(slower) == 1


def test_where_others_had_the_processors_a_later_call_decides(
    slower: list[events.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, count = torch.randn(8, 8), itertools.count()
    call, calls = graph(lambda x: torch.relu(x) @ x, x)
    monkeypatch.setattr(calm, "taken_away", lambda: next(count))
    for _ in range(8):
        call(x)
    assert not slower
    monkeypatch.setattr(calm, "taken_away", lambda: 0)
    compared = len(calls)
    for _ in range(200):  # a comparison takes as long as many calls
        call(x)
    assert len(calls) == compared + 200 and not slower
    for _ in range(80):
        call(x)
    compared = len(calls)
    call(x)
    assert slower and len(calls) == compared


def test_it_warns_once() -> None:
    x = torch.randn(8, 8)
    call, _ = graph(lambda x: torch.relu(x), x)
    with pytest.warns(UserWarning, match="takes .* ms a call, eager's kernels take .* ms") as caught:
        for _ in range(8):
            call(x)
    assert len(caught) == 1


def test_writes_are_not_repeated(slower: list[events.Event]) -> None:
    """Nor are they seen: by what holds the tensor, nor by autograd."""
    x = torch.zeros(8, 8)

    def add(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0].fill_(5)
        return x * 2

    call, _ = graph(add, x)
    for count in range(1, 9):
        version = x._version
        call(x)
        assert bool((x[1:] == count).all()) and x._version == version + 2
    assert slower


def test_random_numbers_are_eagers(slower: list[events.Event]) -> None:
    x = torch.ones(64, 64)
    call, _ = graph(lambda x: torch.nn.functional.dropout(x, 0.5, True), x)
    torch.manual_seed(3)
    got = [call(x) for _ in range(6)]
    torch.manual_seed(3)
    want = [torch.nn.functional.dropout(x, 0.5, True) for _ in range(6)]
    assert all(map(torch.equal, got, want)) and slower


def test_gradients_are_added_up_once(slower: list[events.Event]) -> None:
    x, weight = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    hooked: list[int] = []
    weight.register_hook(lambda grad: hooked.append(1))
    call, _ = graph(lambda x, w: (x @ w).sin(), x, weight)
    for count in range(1, 7):
        call(x, weight).sum().backward()
        assert len(hooked) == count
    want = 6 * torch.autograd.grad((x @ weight).sin().sum(), weight)[0]
    torch.testing.assert_close(weight.grad, want)
    assert slower


@pytest.mark.parametrize("refused", ["a function of the program", "a generator", "shared memory", "a subclass"])
def test_what_is_not_run_twice(refused: str, slower: list[events.Event]) -> None:
    x: Any = torch.zeros(8, 8)
    y: Any = x
    seen: list[int] = []

    def own(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x + 1

    functions: dict[str, Callable[..., Any]] = {
        "a generator": lambda x, y: torch.bernoulli(x, generator=y),
        "shared memory": lambda x, y: x.add_(y) * 1,
    }
    gm = fx.symbolic_trace(functions.get(refused, lambda x, y: x + y))
    if refused == "a function of the program":
        (node,) = (node for node in gm.graph.nodes if node.op == "call_function")
        node.target, node.args = own, node.args[:1]
        gm.recompile()
    if refused == "a subclass":
        y = torch.zeros(8, 8).as_subclass(type("Mine", (torch.Tensor,), {}))
    elif refused == "a generator":
        y = torch.Generator()
    elif refused != "shared memory":
        y = torch.zeros(8, 8)
    calls: list[int] = []
    compiled = lambda *args: (calls.append(1), CLOCK.sleep(0.01), gm.forward(*args))[2]  # noqa: E731
    call = contested(compiled, gm, (x, y), choose=True)
    for _ in range(6):
        call(x, y)
    assert len(calls) == 6 and not slower and len(seen) in (0, 6)


def test_nothing_is_timed_while_a_profiler_looks_on(slower: list[events.Event]) -> None:
    x = torch.randn(8, 8)
    call, calls = graph(lambda x: torch.relu(x), x)
    with torch.profiler.profile():
        for _ in range(6):
            call(x)
    assert len(calls) == 6 and not slower


def test_without_the_option_it_is_only_said(slower: list[events.Event], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1 << 10, 1 << 8)
    call, calls = graph(lambda x: torch.relu(x), x, choose=False)
    for _ in range(eager_contest._TELL_AT + 3):
        assert torch.equal(call(x), torch.relu(x))
    compared = len(calls)
    call(x)
    assert len(calls) == compared + 1 and len(slower) == 1 and not slower[0].data["chosen"]
    small = torch.randn(8)
    call, calls = graph(lambda x: torch.relu(x), small, choose=False)
    for _ in range(eager_contest._TELL_AT + 3):
        call(small)
    assert len(calls) == eager_contest._TELL_AT + 3


def test_compiled_training_steps_are_eagers(slower: list[events.Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of batch norms, gradients, results; whichever is faster, and after the change."""
    monkeypatch.setattr(eager_contest, "_SLOWER", 0.0)  # every compiled graph counts as slower
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(inplace=True))
    twin = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(inplace=True))
    twin.load_state_dict(model.state_dict())
    compiled = argand.compile(model, options={"never_slower": True})
    for _ in range(6):
        x = torch.randn(32, 16)
        got, want = compiled(x), twin(x)
        torch.testing.assert_close(got, want)
        got.square().mean().backward()
        want.square().mean().backward()
    assert len(slower) == 1 and slower[0].data["chosen"]
    for one, two in zip([*model.parameters(), *model.buffers()], [*twin.parameters(), *twin.buffers()]):
        torch.testing.assert_close(one, two)
    for one, two in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one.grad, two.grad)


def test_the_kernel_to_blame() -> None:
    compiled = {"graph_0_cpp_fused_sin_add_0": 900.0, "graph_0_cpp_fused_pow_1": 500.0, "aten::mm": 5000.0}
    eager = {"aten::sin": 700.0, "aten::add": 150.0, "aten::pow": 100.0, "aten::mm": 4900.0}
    assert to_blame(compiled, eager).startswith("graph_0_cpp_fused_pow_1 loses most (0.5 ms; in eager 0.1 ms)")
    assert to_blame({}, eager) == "the time is not in its kernels"


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a compiler runs, small graphs are not compared."""
    monkeypatch.setattr(threads, "working", lambda: False)


def test_nothing_is_compared_while_a_compiler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "working", lambda: True)
    x = torch.randn(4, 4, requires_grad=True)
    call, calls = small(lambda x: x.sin(), x)
    for _ in range(100):
        call(x)
    assert len(calls) == 100
    monkeypatch.setattr(threads, "working", lambda: False)
    for _ in range(60):
        call(x)
    compared = len(calls)
    call(x)
    assert len(calls) == compared


def small(
    function: Callable[..., Any], *examples: torch.Tensor, seconds: float = 1e-4
) -> tuple[Callable[..., Any], list[int]]:
    """`unless_too_small` of a stand-in for a function's compiled form, which counts its calls.

    Arguments:
        seconds: that it takes longer than the graph.
    """
    gm = fx.symbolic_trace(function)
    calls: list[int] = []

    def compiled(*args: Any) -> Any:
        calls.append(1)
        CLOCK.sleep(seconds)
        return gm.forward(*args)

    return unless_too_small(compiled, gm, examples, has_backward=lambda: True, key=str), calls


def test_a_small_graph_that_is_slower_runs_by_eagers_kernels() -> None:
    x, weight = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    call, calls = small(lambda x, w: (x @ w).sin(), x, weight)
    told: list[events.Event] = []
    stop = events.bus.subscribe(told.append, ("fallback",))
    for count in range(1, 40):
        call(x, weight).sum().backward()
        want = count * torch.autograd.grad((x @ weight).sin().sum(), weight)[0]
        torch.testing.assert_close(weight.grad, want)
    stop()
    assert [event.data["scope"] for event in told] == ["graph"]
    compared = len(calls)
    call(x, weight)
    assert len(calls) == compared


@pytest.mark.parametrize(
    "view", [lambda x: x[:, 1], lambda x: x[0].expand(3, 4), lambda x: x.unfold(1, 2, 1), lambda x: x[:0, ::2]]
)
def test_copies_of_views_lie_as_these_do(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = torch.randn(5, 4)
    call, calls = small(lambda x: x.sin(), view(whole))
    for _ in range(40):
        assert torch.equal(call(view(whole)), view(whole).sin())
    compared = len(calls)
    call(view(whole))
    assert len(calls) == compared
    copy = _apart(view(whole))
    assert torch.equal(copy, view(whole)) and copy.stride() == view(whole).stride()
    assert not whole.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr()


def test_a_small_graph_that_nobody_differentiates_is_compared_without_its_backward() -> None:
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise AssertionError("nobody asked for it")

    x = torch.randn(4, 4, requires_grad=True)
    gm = fx.symbolic_trace(lambda x: x.sin())
    calls: list[int] = []

    def compiled(x: torch.Tensor) -> Any:
        calls.append(1)
        CLOCK.sleep(1e-4)
        return Sine.apply(x)

    call = unless_too_small(compiled, gm, [x], has_backward=lambda: False, key=str)
    for _ in range(40):
        assert torch.equal(call(x), x.sin())
    compared = len(calls)
    call(x)
    assert len(calls) == compared


def test_a_small_graph_without_an_entry_of_its_own_is_compared_all_the_same() -> None:
    def key() -> str:
        raise CacheError("the forward is not kept", remedy="-")

    gm, x = fx.symbolic_trace(lambda x: x.sin()), torch.randn(4, 4, requires_grad=True)
    call = unless_too_small(gm.forward, gm, [x], has_backward=lambda: False, key=key)
    recipe = recipe_of(call)
    assert recipe is not None
    with pytest.raises(CacheError):
        recipe.parts()
    for _ in range(40):
        assert torch.equal(call(x), x.sin())


@pytest.mark.parametrize("why", ["faster", "deterministic"])
def test_a_small_graph_stays_compiled(why: str) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    call, calls = small(lambda x: x.sin(), x, seconds=-1e-4 if why == "faster" else 1e-4)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or why == "deterministic")
    try:
        for _ in range(40):
            call(x)
    finally:
        torch.use_deterministic_algorithms(before)
    compared = len(calls)
    call(x)
    assert len(calls) == compared + 1


def test_large_graphs_have_no_contest() -> None:
    x, gm = torch.randn(1024, 1025), fx.symbolic_trace(lambda x: x.sin())
    assert unless_too_small(torch.sin, gm, [x], has_backward=lambda: True, key=str) is torch.sin


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_small_training_steps_are_eagers(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the steps after the contest, which eager wins here; graphs that draw random numbers have none."""
    monkeypatch.setattr(eager_contest.Contest, "is_slower", lambda *_: ("slower", math.inf, 0.0))
    told: list[events.Event] = []
    stop = events.bus.subscribe(told.append, ("fallback",))
    weights = []
    for compile in (lambda module: module, argand.compile):
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(dropout), torch.nn.Tanh())
        step: Any = compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with argand.config.patch(fallback_random=True):
            for _ in range(48):
                optimizer.zero_grad()
                step(torch.ones(2, 4)).sum().backward()
                optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    stop()
    torch.testing.assert_close(weights[0], weights[1])


def test_a_node_on_the_tape_has_to_gain_what_it_costs_where_memory_is_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    times = eager_contest._Times(eager=50e-6, compiled=45e-6, gain_later=0.0)
    monkeypatch.setattr(eager_contest.Contest, "_times", lambda *_: times)
    contest = eager_contest.Contest(torch.sin, torch.sin)
    assert [bool(contest.is_slower([torch.ones(4)], backward)[0]) for backward in (False, True)] == [False, True]


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_attention_is_compared_where_it_drops_nothing(dropped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def beside(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        compared.append(1)
        return compiled

    monkeypatch.setattr(training, "unless_too_small", beside)
    q = torch.randn(1, 2, 7, 8, requires_grad=True)
    argand.reset()
    argand.compile(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropped))(q)
    assert len(compared) == (dropped == 0.0)


@pytest.mark.filterwarnings("ignore:argand. a compiled graph takes")
@pytest.mark.parametrize("options", [{}, {"never_slower": True}])
def test_both_runs_of_a_checkpoint_are_alike(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved is counted: another way to run the graph would save other tensors."""
    monkeypatch.setattr(eager_contest, "_CLEARLY", 0.0)
    monkeypatch.setattr(eager_contest, "_SLOWER", 0.0)  # whatever is compared is slower
    monkeypatch.setattr(eager_contest, "_GAINS", 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    compiled, x = argand.compile(model, options=options), torch.randn(4, 8)
    for run in (compiled, model) * 9:  # the 16th call, and the third, decide
        loss = sum(checkpoint(run, x, use_reentrant=False).square().sum() for _ in range(3))
        torch.testing.assert_close(
            torch.autograd.grad(loss, model[0].weight),
            torch.autograd.grad(3 * model(x).square().sum(), model[0].weight),
        )
    for _ in range(20):  # decided outside, it still is so inside
        compiled(x)
    checkpoint(compiled, x, use_reentrant=False).sum().backward()


@pytest.mark.parametrize("writes", [False, True])
def test_arguments_that_are_written_to_are_copied(monkeypatch: pytest.MonkeyPatch, writes: bool) -> None:
    copies: list[torch.Tensor] = []
    monkeypatch.setattr(eager_contest, "_apart", lambda tensor: copies.append(tensor) or tensor.clone())

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.add_(1) if writes else x + 1) * 2

    x, y = torch.ones(3), torch.ones(3)
    compiled = argand.compile(fn, options={"never_slower": True})
    for _ in range(eager_contest._CHOOSE_AT + 1):
        assert torch.equal(compiled(x), fn(y)) and torch.equal(x, y)
    assert bool(copies) == writes


def own_calls(function: Callable[..., Any], name: str, *args: Any) -> int:
    """How many Python functions of a name a call starts: those that were captured are in the graph."""
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls.count(name)


def smallest(x: torch.Tensor) -> torch.Tensor:
    return x.kthvalue(1).values


INNER = argand.compile(smallest)
TOTAL = torch.zeros(())


@torch.library.custom_op("argand_contest::counted", mutates_args={"total"})
def counted(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(1)
    return x.clone()


@counted.register_fake
def _(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Reversed(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.view_as(x))
    backward = staticmethod(lambda ctx, gradient: -gradient)


HOOKED = torch.nn.Identity()
HOOKED.register_forward_hook(lambda module, given, result: smallest(result))


@pytest.mark.parametrize("gradients", [False, True])
def test_frames_that_lose_run_as_if_argand_were_not_there(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose graph breaks, where all parts lose. But those that would do something else then: what is asked
    for compiled code, is saved, or draws random numbers."""
    monkeypatch.setattr(eager_contest, "_GAINS", 0.0)
    x = torch.randn(4, 4, requires_grad=gradients)

    def breaks(x: torch.Tensor, then: Callable[..., torch.Tensor] = smallest) -> torch.Tensor:
        y = smallest(x)
        argand.graph_break()
        return then(y[None])

    programs: dict[Callable[..., Any], int] = {
        lambda x: smallest(x): 1,
        lambda x: smallest(x).sin() * 2: 1,
        lambda x: HOOKED(x): 1,
        lambda x: Reversed.apply(smallest(x)): 1,
        lambda x: smallest(x) * torch.from_numpy(numpy.interp(x.detach().numpy(), [0], [2])).amax(1): 1,
        lambda x: torch.vmap(torch.sin)(counted(TOTAL, smallest(x))): 1,  # nothing can be compiled of it
        lambda x: smallest(x) * torch.rand(()).ceil(): 0,
        lambda x: smallest(x) + 1 if torch.compiler.is_compiling() else smallest(x): 0,
        lambda x: INNER(x): 0,
        breaks: 2,
        lambda x: breaks(x, lambda y: smallest(y) * torch.rand(()).ceil()): 0,
        lambda x: breaks(x, lambda y: smallest(y) + 1 if torch.compiler.is_compiling() else y): 0,
        lambda x: breaks(x, INNER): 0,
    }
    for program, left in programs.items():
        compiled = argand.compile(program)
        want = compiled(x)
        for _ in range(40 if program is not breaks else 60):
            assert torch.equal(compiled(x), want)
        assert own_calls(compiled, "smallest", x) == left
        if left and gradients:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                assert own_calls(compiled, "smallest", x) == 0
        assert torch.equal(compiled(torch.cat([x, x]))[:1], program(torch.cat([x, x]))[:1]) or left == 0


def test_numbers_that_vary_beside_a_graph_of_one_size_are_nothing_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_contest, "_GAINS", 0.0)

    def program(x: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
        return smallest(x), number + 1

    compiled, x = argand.compile(program), torch.randn(4, 4)
    for number in range(50):
        compiled(x, number)
    assert own_calls(compiled, "smallest", x, 5000) == 1


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, weight) if x.shape[0] > 10 else torch.mm(weight, x.t())


@pytest.mark.parametrize("gradients", [False, True])
def test_each_power_of_two_of_a_size_is_compared_by_itself(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of small calls are left to themselves, those of large ones run compiled; results are eager's."""
    compared: list[int] = []

    def is_slower(contest: Any, args: Any, backward: bool) -> tuple[str, float, float]:
        compared.append(args[0].shape[0])
        return "slower" if args[0].shape[0] < 16 else "", math.inf, 0.0

    monkeypatch.setattr(eager_contest.Contest, "is_slower", is_slower)
    weight = torch.randn(4, 4, requires_grad=gradients)
    compiled = argand.compile(lambda x, weight: product(x, weight), dynamic=True)
    for size in (5, 13, 20) * 40:
        x = torch.randn(size, 4)
        result = compiled(x, weight)
        assert torch.equal(result, product(x, weight))
        if gradients:
            wanted = torch.autograd.grad(product(x, weight).sum(), weight)
            assert torch.equal(torch.autograd.grad(result.sum(), weight)[0], wanted[0])
    assert sorted(compared) == [5, 5, 13, 13, 20]
    own = {size: own_calls(compiled, "product", torch.randn(size, 4), weight) for size in (5, 6, 13, 15, 20, 31)}
    assert own == {5: 1, 6: 1, 13: 1, 15: 1, 20: 0, 31: 0}


def test_the_faster_is_chosen_at_each_power_of_two_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    times = lambda contest, args: eager_contest._Times(float(len(args[0])), 32.0, 0.0)  # noqa: E731
    monkeypatch.setattr(eager_contest.Contest, "_times", times)
    monkeypatch.setattr(eager_contest.slow_kernels, "slowest", lambda *_: "none")
    chosen: list[int] = []
    monkeypatch.setattr(
        eager_contest.Contest, "_eager", lambda _, x: (chosen.append(len(x)), (x.kthvalue(1).values,))[1]
    )
    compiled = argand.compile(lambda x: x.kthvalue(1).values, dynamic=True, options={"never_slower": True})
    with pytest.warns(UserWarning, match="a compiled graph takes"):
        for size in (10, 40) * 5:
            assert torch.equal(compiled(x := torch.randn(size)), x.min())
    assert set(chosen) == {10}
