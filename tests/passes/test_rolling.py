"""Loops over time steps that Python unrolled become one node, and compute what eager computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps
from argand.passes.rolling import windows
from argand.runtime.kernels import steps
from helpers import texts_of


@pytest.fixture(autouse=True)
def short_loops(monkeypatch):
    """Loops of fewer rounds are compiled sooner."""
    monkeypatch.setattr(windows, "LEAST", 32)
    monkeypatch.setattr(windows, "LEAST_WITH_PRODUCTS", 8)


@pytest.fixture
def loops():
    """What is said of loops."""
    with texts_of("loop") as texts:
        yield texts


def check(function, *args, exact: bool = False):
    compiled = argand.compile(function, fullgraph=True)
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    with torch.no_grad(), argand.config.patch(verify_ir=True):
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), function(*args), **tolerance)
    argand.reset()


def recurrence(x, decay):
    h, outs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(decay * h + x[:, t])
        outs.append(h)
    return torch.stack(outs, 1)


def moving_average(x, rate):
    average = x[:, 0]
    outs = [average]
    for t in range(1, x.shape[1]):
        average = torch.lerp(average, x[:, t], rate)
        outs.append(average)
    return torch.stack(outs, -1), average


def backwards(x, rate):
    h, outs = rate * 0, []
    for t in reversed(range(x.shape[1])):
        h = F.silu(h * rate + x[:, t])
        outs.append(h.unsqueeze(0))
    return torch.cat(outs)


def every_other(x, rate):
    h = rate.exp()
    for t in range(x.shape[1] // 2):
        h = torch.maximum(h * 0.9, x[:, 2 * t + 1])
    return h


def two_states(x, rate):
    c = h = torch.zeros(x.shape[0], x.shape[2])
    outs, seen = [], []
    for t in range(x.shape[1]):
        c = torch.sigmoid(x[:, t]) * c + torch.tanh(h + x[:, t])
        h = torch.tanh(c) * rate
        outs.append(h)
        if t in (5, 30):
            seen.append(c)
    return torch.stack(outs), c, seen, outs[17], outs[-1]


def selective_scan(x, rate):
    state, outs = x.new_zeros(x.shape[0], x.shape[2], 4), []
    gate, out = torch.sigmoid(x).unsqueeze(-1) * rate[0, :4], x[..., :4].exp()
    for t in range(x.shape[1]):
        state = gate[:, t] * state + x[:, t].unsqueeze(-1)
        outs.append((state * out[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(outs, 1)


def two_layers(x, rate):
    return recurrence(recurrence(x, rate), rate * 0.5)


def parts(x, rate):
    h, outs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        a, b = (x[:, t] + torch.cat([h[:, 4:], h[:, :4]], 1)).chunk(2, 1)
        h = torch.cat([torch.tanh(a) * rate[:, :4], b.sigmoid()], 1)
        outs.append(h)
    return torch.stack(outs, 1)


LOOPS = [recurrence, moving_average, backwards, every_other, two_states, selective_scan, two_layers]


@pytest.mark.parametrize(
    ("function", "dtype"),
    sweeps.chessboard(LOOPS, [torch.float32, torch.float64]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_loops_are_eagers(function, dtype, loops):
    torch.manual_seed(0)
    x, rate = torch.randn(3, 80, 8, dtype=dtype), torch.rand(3, 8, dtype=dtype)
    if function is two_states:
        x, rate = x.float(), rate.float()
    check(function, x, rate)
    assert len(loops) == (2 if function is two_layers else 1)


@pytest.mark.parametrize("function", [recurrence, selective_scan], ids=lambda f: f.__name__)
def test_inputs_of_other_layouts(function, loops):
    permuted = torch.randn(80, 8, 3).permute(2, 0, 1), torch.rand(8, 3).t()
    strided = torch.randn(3, 160, 16)[:, ::2, ::2], torch.rand(3, 8)
    for given in (permuted, strided) if sweeps.WHOLE else (permuted if function is recurrence else strided,):
        loops.clear()
        check(function, *given)
        assert given is permuted or len(loops) == 1


def test_numbers_that_are_none_and_integers(loops):
    x, rate = torch.randn(3, 50, 8), torch.rand(3, 8)
    x[0, 20, 3], x[1, 30, 2] = float("nan"), float("inf")
    compiled = argand.compile(recurrence)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, rate), recurrence(x, rate), equal_nan=True)

    def counts(x, rate):
        h, outs = rate, []
        for t in range(x.shape[1]):
            h = (h * 3 + x[:, t]) % 1000
            outs.append(h)
        return torch.stack(outs, 1)

    check(counts, torch.randint(0, 9, (3, 50, 8)), torch.ones(3, 8, dtype=torch.int64), exact=True)
    assert len(loops) == 2


def odd_round(x, rate):
    h, outs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(rate * h + x[:, t] * (2.0 if t == 50 else 1.0))
        outs.append(h)
    return torch.stack(outs, 1)


def two_before(x, rate):
    one = two = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        one, two = torch.tanh(rate * two + x[:, t]), one
    return one


def own_numbers(x, rate):
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(rate * h + x[:, t] * t)
    return h


def written(x, rate):
    out, h = torch.empty_like(x), torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(rate * h + x[:, t])
        out[:, t] = h
    return out


def uneven(x, rate):
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(rate * h + x[:, t * t % 64])
    return h


def random(x, rate):
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = F.dropout(torch.tanh(rate * h + x[:, t]), 0.0)
    return h


def products(x, rate):
    h, outs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(h @ rate[:, :8].t()[:, :3] @ rate + x[:, t])
        outs.append(h)
    return torch.stack(outs, 1)


OTHERS = [odd_round, two_before, own_numbers, written, uneven, random, products, parts]


@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f.__name__)
def test_what_only_looks_like_a_loop_is_eagers(function):
    torch.manual_seed(0)
    check(function, torch.randn(3, 64, 8), torch.rand(3, 8))


def test_rounds_that_differ_end_a_loop(loops):
    check(odd_round, torch.randn(3, 90, 8), torch.rand(3, 8))
    assert [text.split()[0] for text in loops] == ["50", "39"]


def test_kernels_do_not_grow_with_the_steps():
    with texts_of("output_code") as texts:
        for count in (64, 256):
            check(recurrence, torch.randn(2, count, 8), torch.rand(2, 8))
    assert len(texts[1]) < 1.1 * len(texts[0])


def test_large_states_stay_unrolled(loops, monkeypatch):
    monkeypatch.setattr(windows, "MOST_ELEMENTS", 20)
    check(recurrence, torch.randn(3, 64, 8), torch.rand(3, 8))
    assert not loops


def test_gradients_are_eagers(loops):
    x, rate = torch.randn(2, 40, 4, requires_grad=True), torch.rand(2, 4, requires_grad=True)
    argand.compile(recurrence)(x, rate).square().sum().backward()
    found = [x.grad, rate.grad]
    x.grad = rate.grad = None
    recurrence(x, rate).square().sum().backward()
    torch.testing.assert_close(found, [x.grad, rate.grad])
    assert len(loops) == 2  # forward and backward


def test_a_later_process_finds_the_loop(tmp_path, loops):
    x, rate = torch.randn(3, 64, 8), torch.rand(3, 8)
    with argand.config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        first = argand.compile(recurrence)(x, rate)
        argand.reset()
        second = argand.compile(recurrence)(x, rate)
    assert torch.equal(first, second)


def test_without_a_compiler_eagers_kernels_run(monkeypatch):
    from argand.errors import ToolchainMissing
    from argand.runtime import toolchain

    def missing(*args, **kwargs):
        raise ToolchainMissing("no compiler", remedy="none")

    monkeypatch.setattr(toolchain, "compile_text", missing)
    x, rate = torch.randn(3, 64, 8), torch.rand(3, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="no compiler"), argand.config.patch(program_cache=False):
        torch.testing.assert_close(argand.compile(recurrence)(x, rate), recurrence(x, rate))


def test_a_saved_model_holds_the_kernels_of_its_loops(tmp_path, monkeypatch):
    from argand.runtime import toolchain

    x, rate = torch.randn(3, 64, 8), torch.rand(3, 8)
    with torch.no_grad():
        argand.save(argand.compile(recurrence), tmp_path / "model.argand", x, rate)
        argand.reset()
        steps.LOOPS.told.clear(), steps.LOOPS.loaded.clear()

        def none(*args, **kwargs):
            raise AssertionError("a compiler is asked for")

        monkeypatch.setattr(toolchain, "compile_text", none)
        loaded = argand.load(tmp_path / "model.argand", recurrence)
        torch.testing.assert_close(loaded(x, rate), recurrence(x, rate))
