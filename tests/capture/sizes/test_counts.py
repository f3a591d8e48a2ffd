"""Numbers that a call counts up vary from the first call on; where 0 or 1 are special, these have versions of their own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand.capture.driver.explain import Findings


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + 1 if self.count > 0 else x


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_module_that_counts_its_calls_is_compiled_once(backend: str) -> None:
    module = Counting()
    compiled = argand.compile(module, backend=backend, fullgraph=True)
    findings = Findings()
    with findings.listening():
        for number in range(1, 7):
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
            assert module.count == number and type(module.count) is int
    assert not findings.recompiles and len(findings.graphs) == 1


class Cache:
    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.length = 0

    def update(self, key: torch.Tensor) -> torch.Tensor:
        self.keys = key if self.keys is None else torch.cat([self.keys, key], 1)
        self.length += key.shape[1]
        return self.keys


def test_a_count_that_equals_a_size_is_no_constant_for_good() -> None:
    def step(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        mask = torch.arange(cache.length + x.shape[1])  # in the second call the keys are not known to grow
        return cache.update(x) + mask

    compiled = argand.compile(step, backend="eager", fullgraph=True)
    findings = Findings()
    with findings.listening():
        for prompt in (12, 9):
            eager, cache = Cache(), Cache()
            for size in (prompt, 1, 1, 1, 1):
                assert torch.equal(compiled(torch.ones(2, size), cache), step(torch.ones(2, size), eager))
            assert cache.length == prompt + 4
    assert len(findings.recompiles) == 3  # the first token, all others, prompts of other sizes


@pytest.mark.parametrize("most", [1 << 20, 512])
def test_sizes_in_step_are_not_tried_apart(most: int) -> None:
    def step(mask: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        length, n = mask.shape[1], cache.shape[1] + 1
        if n > most or length > n or length < n:
            return mask
        every = torch.arange(0, length + n, 4)
        return torch.arange(n) * mask + len(every)  # as many as the mask has, by what was asked

    compiled = argand.compile(step, backend="eager", fullgraph=True)
    findings = Findings()
    with findings.listening():
        for n in (9, 10, 11, 12):
            mask, cache = torch.ones(2, n), torch.ones(2, n - 1)
            assert torch.equal(compiled(mask, cache), step(mask, cache))
        assert torch.equal(compiled(mask, mask), mask)  # out of step
    assert len(findings.recompiles) == 2


def test_sizes_that_vary_before_a_break_vary_behind_it() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        parts = [x * 2, (x.T, x.shape[0])]
        argand.graph_break()
        y = parts[0] + parts[1][0].T * parts[1][1]
        argand.graph_break()
        return y * parts[0]

    compiled = argand.compile(step, backend="eager")
    findings = Findings()
    with findings.listening():
        for size in (4, 5, 6):
            x = torch.randn(size, 3)
            argand.mark_dynamic(x, 0)
            assert torch.equal(compiled(x), step(x))
    assert not findings.recompiles and len(findings.graphs) == 3


@pytest.mark.parametrize("kind", ["rate", "steps", "flag", "reset"])
def test_what_is_written_over(kind: str) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state: dict[str, Any] = {"rate": 0.5, "steps": 0, "flag": 0, "reset": 7}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state, before = self.state, self.state[kind]
            if kind == "flag":
                state["flag"] = 1 - before
                return x + 1 if before else x
            if kind == "reset":
                state["reset"] = 7
                return x * before
            state[kind] = before * 0.5 if kind == "rate" else before + 1
            return x * (1 - 0.9 ** state[kind])

    eager, module = Module(), Module()
    compiled = argand.compile(module, backend="eager", fullgraph=True)
    findings = Findings()
    with findings.listening():
        for _ in range(6):
            torch.testing.assert_close(compiled(torch.ones(3)), eager(torch.ones(3)))
            assert module.state == eager.state and type(module.state[kind]) is type(eager.state[kind])
    assert len(findings.recompiles) == (kind == "flag")


USES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "factor": lambda x, n: x * n,
    "float": lambda x, n: x * float(n),
    "half": lambda x, n: x * (n / 2),
    "inverse": lambda x, n: x * (1 / n),
    "quotient": lambda x, n: 7 // n,
    "remainder": lambda x, n: x + (7 % n),
    "power": lambda x, n: x + 0.0**n,
    "negative power": lambda x, n: n**-1,
    "logarithm": lambda x, n: __import__("math").log(n) + x,
    "slice": lambda x, n: x[:n].sum() + x[n:].sum(),
    "index": lambda x, n: x[n],
    "size": lambda x, n: torch.zeros(n) + x[:1],
    "broadcast": lambda x, n: torch.ones(n, 4) * torch.ones(2, 1, 4),
    "expanded": lambda x, n: x[None].expand(n, 4),
    "reshaped": lambda x, n: torch.ones(n, 4).reshape(-1, 2),
    "softmax": lambda x, n: torch.ones(3, n).softmax(1),
    "mean": lambda x, n: torch.ones(n).mean(),
    "truth": lambda x, n: x + 1 if n else x,
    "is one": lambda x, n: x + 1 if n == 1 else x,
    "below two": lambda x, n: x + 1 if n < 2 else x,
    "parity": lambda x, n: x + 1 if n % 2 else x,
    "range": lambda x, n: sum((x * i for i in range(n)), x),
    "item": lambda x, n: [x, x + 1, x + 2, x + 3, x + 4][n],
    "repeated": lambda x, n: [x] * n,
    "least": lambda x, n: x + min(n, 2) + max(n, 1),
    "text": lambda x, n: (x, f"{n:03d}"),
    "key": lambda x, n: ({0: x, 1: x + 1}.get(n, x * 2), bool(n), -n, abs(n - 1)),
    "shift": lambda x, n: (x, 1 << n, n >> 1, n & 1, n | 2, ~n),
    "returned": lambda x, n: (x, n, n + 1, type(n)),
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (ZeroDivisionError, ValueError, IndexError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize(
    ("order", "name"), sweeps.chessboard([(0, 1, 2, 3, 1, 0), (1, 0, 3, 2, 0), (3, 1, 0, 2), (2, 0, 1)], USES), ids=str
)
def test_as_eager(name: str, order: tuple[int, ...]) -> None:
    function, x = USES[name], torch.arange(4.0)
    compiled = argand.compile(lambda x, n: function(x, n), backend="eager")
    for n in order:
        assert repr(outcome(compiled, x, n)) == repr(outcome(function, x, n)), n


def test_a_number_that_conditions_leave_one_value_varies_elsewhere() -> None:
    """A window that fills: at one length two comparisons meet, and behind it all lengths are alike."""

    class Window:
        length = 3

    def program(window: Window, x: torch.Tensor) -> torch.Tensor:
        before, window.length = window.length, window.length + 1
        offset = max(before - 5, 0)
        return x * 2 + offset if before + 1 > 6 else x + offset

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    ours, theirs = Window(), Window()
    findings = Findings()
    with findings.listening():
        for _ in range(12):
            assert torch.equal(compiled(ours, torch.ones(3)), program(theirs, torch.ones(3)))
    assert ours.length == theirs.length == 15
    assert len(findings.graphs) <= 4


SERVED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "item": lambda x, n: x[n] * 2,
    "factor": lambda x, n: x * n - n,
    "fill": lambda x, n: torch.full((3,), n) + x.new_full((3,), n),
    "select": lambda x, n: x.select(0, n) / (n + 1),
    "compared": lambda x, n: (x > n).sum() + torch.where(x == n, x, x + 1),
    "written": lambda x, n: x.clone().__setitem__(n, 5.0) or x,
    "limits": lambda x, n: x.clamp(n, 8) + x.clamp(max=n),
    "alpha": lambda x, n: x.add(x, alpha=n),
}


@pytest.mark.parametrize("name", SERVED)
def test_0_and_1_are_served_with_larger_numbers_where_they_are_terms_or_indices(name: str) -> None:
    compiled, x = argand.compile(SERVED[name], backend="native", fullgraph=True), torch.arange(10.0)
    findings = Findings()
    with findings.listening():
        for number in (3, 7, 0, 1, 5, 2):
            assert torch.equal(compiled(x, number), SERVED[name](x, number))
    assert len(findings.recompiles) == 1


def test_positions_in_a_cache_from_0_on_have_two_versions() -> None:
    """That the position is 1 is nothing to `position + 1`, nor to where a slice begins."""

    def step(cache: torch.Tensor, x: torch.Tensor, position: int) -> torch.Tensor:
        cache[:, position : position + 1] = x
        seen = cache[:, : position + 1]
        return (x @ seen.mT).softmax(-1) @ seen + position

    compiled = argand.compile(step, backend="native", fullgraph=True)
    ours, theirs, findings = torch.zeros(2, 9, 4), torch.zeros(2, 9, 4), Findings()
    with findings.listening():
        for position in (*range(6), 0, 1):
            x = torch.randn(2, 1, 4)
            torch.testing.assert_close(compiled(ours, x, position), step(theirs, x, position))
    assert torch.equal(ours, theirs)
    assert len(findings.graphs) == 2


SIGNED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "item": SERVED["item"],
    "full": SERVED["fill"],
    "python": lambda x, n: (x * (n % 3) + n // 2 - n**2, n >> 1, -n, n * 0.5),
    "limits": lambda x, n: x * max(n, 2) + min(n, 3) + x.clamp(n, n + 1),
    "branch": lambda x, n: x * n if n > 2 else x - n,
    "both": lambda x, n: x[: n + 9] * n if n > -9 else x,
    "diagonal": lambda x, n: x.view(2, 5).tril(n) * n,
    "root": lambda x, n: x * (abs(n) + 1) ** 0.5,
}
COMPILES = {"branch": 3, "both": 5, "limits": 4, "diagonal": 5, "item": 3, "root": 3}


@pytest.mark.parametrize("name", SIGNED)
def test_numbers_that_were_seen_with_both_signs(name: str) -> None:
    compiled, x = argand.compile(SIGNED[name], backend="native", fullgraph=True), torch.arange(10.0)
    findings = Findings()
    with findings.listening():
        for number in (3, -2, 5, -7, -1, 4, 2, -9, 6, 0, 1):
            want, got = SIGNED[name](x, number), compiled(x, number)
            assert str(want) == str(got), number
    assert len(findings.graphs) <= COMPILES.get(name, 2)


@pytest.mark.parametrize("other", [True, 2.5, 1j, torch.tensor(2), 1 << 62, 1 << 64, -(1 << 70)])
def test_numbers_of_both_signs_are_integers(other: object) -> None:
    def function(x: torch.Tensor, n: Any, seen: list[int]) -> Any:
        seen.append(1)
        return x * n, x

    compiled, x = argand.compile(function, backend="native"), torch.ones(2, dtype=torch.int16)
    for number in (3, -2, 5, -7, other, 4):
        results: list[Any] = []
        for each in (function, compiled):
            seen: list[int] = []
            try:
                results.append((each(x, number, seen), seen))
            except (RuntimeError, OverflowError) as error:
                results.append((type(error), seen))
        assert str(results[0]) == str(results[1]), number


def losses(x: torch.Tensor, n: int) -> Any:
    low, high = x.min().item(), x.max().item()
    return x * low + high, low, {"high": high}


def rounds(x: torch.Tensor, n: int) -> Any:
    total = 0
    for i in range(n):
        x = x + i
        print("round", i)
        total += i
    return x * total


def halves(x: torch.Tensor, n: int) -> Any:
    count = 0
    while x.sum() > n:
        x, count = x / 2, count + 1
    return x, count


def drawn(x: torch.Tensor, n: int) -> Any:
    return (x.flip(0) if random.random() < 0.5 else x) * random.randint(2, 9)


@pytest.mark.parametrize(("program", "most"), [(losses, 0), (rounds, 0), (halves, 1), (drawn, 2)])
def test_numbers_of_breaks_and_loops_vary_from_the_first_time_on(
    program: Callable[..., Any], most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled, seen = argand.compile(program, backend="eager"), []
    findings = Findings()
    with findings.listening():
        for fn in (compiled, program):
            random.seed(0)
            seen.append(([str(fn(torch.arange(8.0) + k, 7)) for k in range(5)], capsys.readouterr().out))
    assert seen[0] == seen[1] and len(findings.recompiles) <= most


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_parts_of_a_whole_may_be_empty_or_single(backend: str) -> None:
    """As tokens are dealt out to experts: one version of the code for each pattern of such parts would never end."""
    weights = torch.randn(4, 8, 8, requires_grad=True)

    def experts(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        parts = x.split(sizes)
        return torch.cat([torch.nn.functional.linear(parts[i], weights[i]) for i in range(4)]) * 2

    compiled = argand.compile(experts, backend=backend, fullgraph=True)
    findings = Findings()
    with findings.listening():
        for sizes in (
            [16, 10, 14, 8], [15, 11, 13, 9], [16, 1, 15, 16], [20, 1, 12, 15], [16, 0, 15, 17], [5, 0, 1, 42],
            [0, 0, 24, 24], [1, 20, 20, 7], [9, 19, 20, 0], [0, 0, 0, 48], [12, 12, 12, 12], [12, 12, 23, 1],
        ):  # fmt: skip
            x = torch.randn(48, 8)
            want, got = experts(x, sizes), compiled(x, sizes)
            torch.testing.assert_close(got, want)
            gradients = [torch.autograd.grad(result.square().sum(), weights) for result in (want, got)]
            torch.testing.assert_close(gradients[1], gradients[0])
    assert len(findings.recompiles) == 2


@pytest.mark.parametrize("name", ["split", "chunk", "tensor_split"])
def test_into_how_many_parts_varies(name: str) -> None:
    """Of two numbers that vary, one may be the larger in each call that a trace knows of."""

    def program(x: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        return getattr(x, name)(count)  # type: ignore[no-any-return]

    compiled = argand.compile(program, backend="eager", dynamic=True)
    for size, count in ((4, 5), (3, 7), (3, 2), (5, 2), (5, 6), (9, 4), (8, 4), (0, 3)):
        x = torch.randn(size, 2)
        assert [part.tolist() for part in compiled(x, count)] == [part.tolist() for part in program(x, count)]


def test_one_version_serves_sizes_with_as_many_parts() -> None:
    compiled = argand.compile(lambda x: x.split(4)[-1] * 2, backend="eager", fullgraph=True, dynamic=True)
    findings = Findings()
    with findings.listening():
        for size in (6, 7, 5, 8):
            x = torch.randn(size, 2)
            assert torch.equal(compiled(x), x[4:] * 2)
    assert not findings.recompiles


def test_sizes_that_would_be_negative_raise_where_eager_does() -> None:
    def program(x: torch.Tensor) -> object:
        try:
            return torch.arange(1, x.shape[0] // 3, 1)
        except RuntimeError:
            return "no numbers"

    compiled = argand.compile(program, backend="eager")
    for size in (9, 12, 15, 2, 3):
        x = torch.ones(size)
        assert str(compiled(x)) == str(program(x))


Numbers = tuple[int, int, int, float, float]
ONE_VERSION: dict[str, Callable[[torch.Tensor, int, int, float, float], Any]] = {
    "least of size and constant": lambda x, a, b, u, v: x[: min(x.shape[0], 5)] * 2,
    "least of sizes": lambda x, a, b, u, v: x[: min(*x.shape), : min(*x.shape)],
    "greatest of numbers": lambda x, a, b, u, v: x * max(a, b),
    "least of three": lambda x, a, b, u, v: x * min(a, b, x.shape[0]),
    "between": lambda x, a, b, u, v: x.clamp(min(a, b), max(a, b)),
    "nested": lambda x, a, b, u, v: x[: max(min(a, x.shape[0]), 1)],
    "padded": lambda x, a, b, u, v: torch.nn.functional.pad(x, (0, 0, 0, max(0, 6 - x.shape[0]))),
    "zeros": lambda x, a, b, u, v: torch.zeros(min(a, b), max(a, b)),
    "floats": lambda x, a, b, u, v: x * max(u, v),
    "limited float": lambda x, a, b, u, v: x * min(max(u, 0.0), 1.0),
    "rounded": lambda x, a, b, u, v: x * round(u, 1) + round(a / 3, 2),
    "divisor": lambda x, a, b, u, v: x * math.gcd(a, b) + math.lcm(a, b),
    "divisor of a size": lambda x, a, b, u, v: x[: math.gcd(x.shape[0], 4)],
    "powers": lambda x, a, b, u, v: x * pow(2, a) + 10**-a,
    "functions": lambda x, a, b, u, v: x * math.sinh(u) + math.atan2(u, v) + math.asin(min(max(u, -1.0), 1.0)),
    "finite": lambda x, a, b, u, v: x * u if math.isfinite(u) and not math.isnan(v) else x,
    "square": lambda x, a, b, u, v: x * 2,
}


@pytest.mark.parametrize(("backend", "name"), sweeps.chessboard(["eager", "aot_eager"], ONE_VERSION), ids=str)
def test_numbers_of_which_no_condition_is_needed_have_one_version(backend: str, name: str) -> None:
    """None for each order of them, or for each that is rounded to another one."""
    program = ONE_VERSION[name]
    compiled = argand.compile(lambda *given: program(*given), backend=backend, fullgraph=True)
    findings = Findings()
    square: list[tuple[int, ...]] = [(5, 5), (6, 6), (4, 3), (3, 7), (8, 2), (6, 5)]
    shapes = square if name == "square" else [(4, 3), (5, 6), (9, 4), (3, 7), (8, 2), (6, 5)]
    numbers = [
        (3, 4, 0.5, 0.25),
        (6, 2, 0.75, 1.5),
        (2, 5, -0.5, 0.1),
        (4, 4, 1.5, 2.0),
        (7, 3, 0.1, 0.1),
        (5, 8, 0.9, -2.0),
    ]
    with findings.listening():
        for shape, given in zip(shapes, numbers):
            x = torch.arange(float(math.prod(shape))).view(shape)
            torch.testing.assert_close(compiled(x, *given), program(x, *given))
    assert len(findings.recompiles) == 1


def test_what_is_between_numbers_of_a_known_order_is_no_constant() -> None:
    def program(x: torch.Tensor, k: int) -> torch.Tensor:
        y = x[k:]
        return y.sum() * len(y)

    compiled = argand.compile(program, backend="eager")
    for n, m, k in ((5, 5, 2), (8, 8, 4), (9, 4, 3), (2, 5, 4), (5, 6, 3), (6, 3, 2)):
        assert torch.equal(compiled(torch.ones(n, m), k), program(torch.ones(n, m), k))


def test_the_step_of_a_slice_varies() -> None:
    def program(x: torch.Tensor, k: int) -> Any:
        y = x.clone()
        y[::k] = 0
        return y, x[::k] * 2, x[1:-1:k].contiguous(), x[:, ::k] + 1

    compiled = argand.compile(program, backend="native", fullgraph=True)
    findings = Findings()
    with findings.listening():
        for n, k in ((9, 2), (10, 3), (12, 4), (23, 5), (11, 2), (30, 7)):
            x = torch.randn(n, n + 1)
            torch.testing.assert_close(compiled(x, k), program(x, k))
    assert len(findings.recompiles) == 1
