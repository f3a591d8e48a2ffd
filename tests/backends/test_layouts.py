"""Whether convolutions are laid out anew, by times that the tests make up."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import argand
from argand import events
from argand.autograd import wrap
from argand.backends import layouts
from argand.backends.aot_eager import run_eagerly
from argand.backends.programs import preparation, stored_programs
from argand.config import config
from argand.ir.target import cpu, gpu
from argand.passes import run_passes, verify
from argand.runtime import cache, stored_modules
from argand.runtime.gpu.device import timing
from argand.runtime.kernels import calm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "passes"))
from pass_helpers import traced

ARGS = (torch.randn(2, 6, 12, 12), torch.randn(8, 6, 3, 3), torch.randn(8, 8, 3, 3))


def program(x, w, v):
    return F.conv2d(F.conv2d(F.relu(F.conv2d(x, w)), v), v, padding=2)


@pytest.fixture(autouse=True)
def timed(monkeypatch, tmp_path):
    monkeypatch.setattr(layouts, "target_of", lambda device: gpu(132))
    with config.patch(cache_dir=str(tmp_path)):
        cache.reset()
        yield
        cache.reset()


class Timer:
    def __init__(self, before, after, moved=0.0):
        self.times, self.asked, self.moved = [before, after], 0, moved

    def __call__(self, calls, device):
        self.asked += 1
        one, *others = (call() for call in calls)
        if not others:  # the copies around a convolution that stays
            return [self.moved]
        if others[0] is not None:  # else it lays gradients out as well
            torch.testing.assert_close(one, others[0], rtol=1e-3, atol=1e-3)
        return self.times


def chosen(timer):
    made = run_passes(traced(program, *ARGS))
    changed = layouts.choose_layouts(made, timer)
    torch.testing.assert_close(wrap(made, run_eagerly(made))(*ARGS), program(*ARGS), rtol=1e-3, atol=1e-3)
    return changed > 0


@pytest.mark.parametrize(
    "before, after, wanted", [(100.0, 50.0, True), (100.0, 95.0, False), (2.0, 1.0, False), (50.0, 100.0, False)]
)
def test_the_faster_layout_is_taken(before, after, wanted):
    assert chosen(Timer(before, after)) is wanted


def test_each_kind_is_timed_once_and_kept():
    timer = Timer(100.0, 50.0)
    seen = []
    remove = events.bus.subscribe(seen.append, ("autotuning",))
    try:
        assert chosen(timer) and timer.asked == 2  # of three kinds those that take most of the time
        assert chosen(timer) and timer.asked == 2
    finally:
        remove()
    assert [event.data["times"]["as it is"] for event in seen] == [200.0, 200.0]
    assert "channels innermost" in seen[0].text()


def test_times_beside_a_compiler_are_not_kept(monkeypatch):
    timer = Timer(100.0, 50.0)
    with monkeypatch.context() as patch:
        patch.setattr(layouts.process, "compiling", lambda: True)
        assert chosen(timer) and timer.asked == 2
    assert chosen(timer) and timer.asked == 4
    assert chosen(timer) and timer.asked == 4


@pytest.mark.parametrize(
    ("seconds", "factor", "rounds"),
    [(1e-5, 1, 25), (2.1e-4, 1, 10), (2e-3, 1, 5), (0.02, 1, 3), (0.02, 1.1, 3), (0.02, 1.3, 1), (3e-4, 3, 4)],
)
def test_quick_calls_are_timed_more_often_and_so_are_those_that_take_about_as_long(
    monkeypatch, seconds, factor, rounds
):
    now = [0.0]
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(timing.time, clock, lambda: now[0])
    monkeypatch.setattr(calm, "taken_away", lambda: 0)

    def call():
        now[0] += seconds

    def other():
        now[0] += seconds * factor

    times = timing.time_calls([call, other], torch.device("cpu"))
    assert times == pytest.approx([1e6 * seconds, 1e6 * seconds * factor])
    assert now[0] == pytest.approx((1 + factor) * seconds * (1 + rounds))


@pytest.mark.parametrize("disturbed_rounds", [1, 25])
def test_rounds_in_which_others_had_the_processors_do_not_count(monkeypatch, disturbed_rounds):
    """Where too few others are left nothing is known, however often one of the calls was left alone."""
    now, taken, rounds = [0.0], [0], [0]
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(timing.time, clock, lambda: now[0])
    monkeypatch.setattr(calm, "taken_away", lambda: taken[0])
    monkeypatch.setattr(timing.torch, "get_num_threads", lambda: 2)

    def call():
        now[0] += 1e-3

    def disturbed():
        rounds[0] += 1
        now[0] += 1e-3 * (1 if rounds[0] > disturbed_rounds else 20)
        taken[0] += rounds[0] <= disturbed_rounds

    times = timing.time_calls([call, disturbed], torch.device("cpu"))
    assert times == pytest.approx([1e3, 1e3] if disturbed_rounds == 1 else [math.nan] * 2, nan_ok=True)


class Disturbed(Timer):
    """What is timed first says nothing."""

    def __call__(self, calls, device):
        times = super().__call__(calls, device)
        return [math.nan] * len(times) if self.asked == 1 else times


@pytest.mark.parametrize("gains", [True, False])
def test_kinds_that_were_not_left_alone_are_timed_again_once_the_machine_is_quiet(gains, monkeypatch):
    made = run_passes(traced(program, *ARGS))
    timer = Disturbed(100.0, 50.0 if gains else 100.0)
    assert (layouts.choose_layouts(made, timer) > 0) is gains and timer.asked == 2
    with config.patch(program_cache=True, verify_ir=False):
        entry = stored_programs.entry_for(made, "one")
    entry.keep("def call(args):\n    return args\n", {})
    for quiet in (False, True):  # until then a later process takes what there is
        monkeypatch.setattr(stored_modules, "is_quiet", lambda: quiet)
        assert (stored_modules.load(entry.key, "inference") is None) is quiet
    assert chosen(timer) is gains and timer.asked == 4
    made = run_passes(traced(program, *ARGS))
    assert (layouts.choose_layouts(made, timer) > 0) is gains and timer.asked == 4
    with config.patch(program_cache=True, verify_ir=False):
        assert not stored_programs.entry_for(made, "two").guessed


def test_where_nothing_is_known_pools_alone_do_not_decide(monkeypatch):
    monkeypatch.setattr(layouts, "target_of", lambda device: cpu(2))
    made = run_passes(
        traced(lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 8), torch.randn(8, 8, 96, 96), ARGS[2])
    )
    timer = Timer(math.nan, math.nan)
    assert layouts.choose_layouts(made, timer) == 0 and timer.asked == 1
    assert layouts.choose_layouts(made, Timer(100.0, 90.0)) > 0


def test_other_targets_time_nothing(monkeypatch):
    monkeypatch.setattr(layouts, "target_of", lambda device: replace(gpu(132), times_layouts=False))
    timer = Timer(100.0, 50.0)
    assert not chosen(timer) and timer.asked == 0


def test_a_device_without_room_leaves_the_graph_as_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def full(calls, device):
        raise torch.cuda.OutOfMemoryError

    assert not chosen(full)


def depthwise(x, w, v):
    return F.conv2d(F.relu6(F.conv2d(F.conv2d(x, w), v, padding=1, groups=v.shape[0])), w.transpose(0, 1))


@pytest.mark.parametrize("target, asked", [(gpu(132), 2), (cpu(2), 0)])
def test_what_becomes_loops_is_not_timed(monkeypatch, target, asked):
    """On a CPU nothing is timed where a depthwise convolution is: all have the channels innermost."""
    monkeypatch.setattr(layouts, "target_of", lambda device: target)
    args = (torch.randn(2, 6, 12, 12), torch.randn(16, 6, 3, 3), torch.randn(16, 1, 3, 3))
    timer = Timer(100.0, 50.0)
    made = run_passes(traced(depthwise, *args))
    assert layouts.choose_layouts(made, timer) > 0 and timer.asked == asked
    torch.testing.assert_close(wrap(made, run_eagerly(made))(*args), depthwise(*args), rtol=1e-3, atol=1e-3)
    assert target == gpu(132) or layouts.choose_layouts(run_passes(traced(program, *ARGS)), timer) == 0


def test_depthwise_convolutions_of_few_channels_stay_as_they_are(monkeypatch):
    """No vector is filled by their channels; others beside them are laid out all the same."""
    monkeypatch.setattr(layouts, "target_of", lambda device: cpu(2))
    x, few, many = torch.randn(2, 3, 12, 12), torch.randn(3, 1, 3, 3), torch.randn(16, 1, 3, 3)

    def both(x, few, many):
        return F.conv2d(x, few, groups=3), F.conv2d(x.mean(1, True).expand(2, 16, 12, 12), many, groups=16)

    timer = Timer(100.0, 50.0)
    alone = run_passes(traced(lambda x, few: both(x, few, many)[0], x, few))
    assert layouts.choose_layouts(alone, timer) == 0 and timer.asked == 0
    made = run_passes(traced(both, x, few, many))
    assert layouts.choose_layouts(made, timer) > 0 and timer.asked == 0
    of_few, of_many = wrap(made, run_eagerly(made))(x, few, many)
    results = [n.meta["val"] for n in made.graph.nodes if n.target is torch.ops.aten.convolution.default]
    assert [one.stride(1) == 1 for one in results] == [False, True]
    torch.testing.assert_close((of_few, of_many), both(x, few, many))


WIDE = (torch.randn(1, 32, 32, 32), torch.randn(32, 32, 3, 3), torch.randn(32, 32, 3, 3))


def gradients(x, w, v):
    y = F.conv2d(x, w, padding=2)
    return torch.ops.aten.convolution_backward(
        y, x, w, [0], [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [True, True, False]
    )[0]


@pytest.mark.parametrize("case", ["wide", "small", "training", "deterministic"])
def test_a_cpu_times_long_convolutions(monkeypatch, case):
    monkeypatch.setattr(layouts, "target_of", lambda device: cpu(2))
    timer = Timer(100.0, 50.0)
    function = gradients if case == "training" else program
    try:
        torch.use_deterministic_algorithms(case == "deterministic")
        changed = layouts.choose_layouts(run_passes(traced(function, *(ARGS if case == "small" else WIDE))), timer)
    finally:
        torch.use_deterministic_algorithms(False)
    wanted = case in ("wide", "training")
    assert (timer.asked > 0, changed > 0) == (wanted, wanted)


def test_products_on_a_cpu_stay_as_they_are(monkeypatch):
    """Regression: ATen computes convolutions of one small image as products, and lays weights out in each call where the
    channels are innermost: a small ResNet ran at 0.6 of eager's speed in most processes."""
    monkeypatch.setattr(layouts, "target_of", lambda device: replace(cpu(2), layout_products=0.0))
    for size, timed in (16, False), (32, True):
        timer = Timer(100.0, 50.0)
        changed = layouts.choose_layouts(run_passes(traced(program, torch.randn(1, 32, size, size), *WIDE[1:])), timer)
        assert (timer.asked > 0, changed > 0) == (timed, timed)


@pytest.mark.parametrize("after, moved, stays", [(110.0, 0.0, True), (110.0, 20.0, False), (90.0, 0.0, False)])
def test_in_training_a_convolution_stays_where_that_gains_more_than_the_copies_around_it(
    monkeypatch, after, moved, stays
):
    """A convolution and its gradients are laid out together, and one whose weights are large and not timed stays."""
    monkeypatch.setattr(layouts, "target_of", lambda device: replace(cpu(2), layout_products=0.0))
    asked = []

    def timer(calls, device):
        for call in calls:
            call()
        asked.append(len(calls))
        if len(calls) == 1:
            return [moved]
        return [100.0, after] if asked.count(2) <= 2 else [1000.0, 10.0]

    def step(x, w, v, big):
        def back(grad, given, weight, window, padding, dilation):
            rest = [window] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1, [True, True, False]
            return torch.ops.aten.convolution_backward(grad, given, weight, [0], *rest)[:2]

        y = F.conv2d(x, w, padding=1)
        z = F.conv2d(F.relu(y), v, padding=2, dilation=2)
        small = z[:, :, :2, :2]
        made = F.conv2d(small, big)
        grad, third = back(made, small, big, 1, 0, 1)
        grad, second = back(z * grad.sum(), F.relu(y), v, 1, 2, 2)
        return made, third, second, *back(grad, x, w, 1, 1, 1)

    args = (torch.randn(4, 32, 16, 16), *(torch.randn(n, 32, k, k) * 0.1 for n, k in ((32, 3), (32, 3), (64, 2))))
    program = run_passes(traced(step, *args))
    assert layouts.choose_layouts(program, timer) > 0
    verify(program)
    for found, want in zip(wrap(program, run_eagerly(program))(*args), step(*args), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-3, atol=float(want.abs().max()) * 1e-4)
        assert found.stride() == want.stride()
    convolutions = [node for node in program.graph.nodes if node.target is torch.ops.aten.convolution.default]
    laid = [node.args[0].meta["val"].stride()[1] == 1 for node in convolutions]
    assert laid == [not stays, True, False] and asked == [2, 2, *([1, 1] if after > 100.0 else []), 2, 2]


def test_operands_are_numbers_of_which_few_are_drawn():
    for size, stride in (((0, 3), (3, 1)), ((5,), (2,)), ((4, 30, 70), (1, 280, 4)), ((3, 8192), (8192, 1))):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            one = timing.random_tensor(size, stride, dtype, torch.device("cpu"))
            assert (tuple(one.shape), one.stride(), one.dtype) == (size, stride, dtype)
            assert one.abs().le(1.0).all() and (one == 0).all().item() is (dtype is torch.int64 or not one.numel())
    whole = timing.random_tensor((3, 1 << 13), (1 << 13, 1), torch.float32, torch.device("cpu"))
    assert whole[0].unique().numel() > 8000 and whole[0].equal(whole[2])


def test_a_cpu_stops_timing_after_a_while(monkeypatch):
    monkeypatch.setattr(layouts, "target_of", lambda device: replace(cpu(2), layout_seconds=0.0))
    timer = Timer(100.0, 50.0)
    assert layouts.choose_layouts(run_passes(traced(program, *WIDE)), timer) > 0 and timer.asked == 1


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)
        self.second, self.last = torch.nn.Conv2d(8, 8, 3, padding=1, stride=2), torch.nn.Conv2d(8, 4, 1)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(self.second(y) + F.avg_pool2d(y, 3, 2, 1)), y


@pytest.mark.parametrize("given", ["as it is", "channels last"])
def test_training(monkeypatch, given):
    """Forward and backward together; gradients and results have eager's strides."""
    timer = Timer(100.0, 50.0)
    laid = []
    monkeypatch.setattr(
        preparation, "prepare_convolutions", lambda program: laid.append(layouts.choose_layouts(program, timer))
    )
    torch.manual_seed(0)
    model, x = Images(), torch.randn(2, 3, 14, 14, requires_grad=True)
    if given == "channels last":
        model, x = model.to(memory_format=torch.channels_last), x.detach().contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
    other = copy.deepcopy(model)
    argand.reset()
    found = []
    for module, run in ((model, argand.compile(model)), (other, other)):
        for _ in range(2):
            x.grad = None
            results = run(x)
            sum(result.square().sum() for result in results).backward()
        found.append([*results, x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    assert max(laid, default=0) > 0 or given == "channels last"
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
        assert got.stride() == want.stride()
    argand.reset()


@pytest.mark.parametrize("slower", [0, 1])
def test_a_cpu_leaves_kinds_as_they_are_that_are_slower_so(monkeypatch, slower):
    """Results and strides are eager's whichever stay, and weights are not copied by a kernel."""
    monkeypatch.setattr(layouts, "target_of", lambda device: replace(cpu(2), layout_products=0.0))
    asked = []

    def timer(calls, device):
        for call in calls:
            call()
        asked.append(len(asked))
        return [100.0, 400.0 if asked[-1] == slower else 10.0]

    args = (torch.randn(2, 32, 16, 16), torch.randn(32, 32, 3, 3), torch.randn(32, 32, 3, 3))
    for _ in range(2):  # the second time by the note
        made = run_passes(traced(program, *args))
        assert layouts.choose_layouts(made, timer) > 0
        laid = [node.args[0].meta["val"].stride()[1] == 1 for node in made.graph.nodes if "convolution" in node.name]
        assert True in laid and False in laid
        assert all(node.args[1].op == "placeholder" for node in made.graph.nodes if "convolution" in node.name)
        verify(made)
        found = wrap(made, run_eagerly(made))(*args)
        torch.testing.assert_close(found, program(*args), rtol=1e-3, atol=1e-2)
        assert found.stride() == program(*args).stride()
    assert len(asked) == 2
