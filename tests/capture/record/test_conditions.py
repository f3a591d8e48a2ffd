"""What code of installed packages asks of the values that came in: a guard on the answer, not the end of the graph."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from tests.helpers import CountingBackend

import argand
from argand.capture.driver.explain import Findings

LIBRARY = """
import torch


def squared_distance(x1, x2):
    same = torch.equal(x1, x2)
    return (x1 - x2).square().sum() if not same else x1.sum() * 0


def ascending(t, x):
    if len(t) > 1 and t[0] > t[1]:
        return x - t.flip(0)
    assert (t.diff() > 0).all(), "not ascending"
    return x + t


def present(scores, labels):
    losses = []
    for c in range(scores.shape[1]):
        foreground = (labels == c).type_as(scores)
        if foreground.sum() == 0:
            continue
        losses.append((foreground - scores[:, c]).abs().mean())
    return torch.stack(losses).sum()


def steps(t, size):
    count = torch.ceil((t[1] - t[0]) / size).item()
    return t * count


def computed(x, w):
    return x * 2 if (x @ w).sum() > 0 else x


def written(x):
    x = x.clone()
    x.add_(1)
    return x * 2 if x.sum() > 0 else x


def attends_globally(x):
    mask = (1.0 - x.clamp(0, 1))[None] * -9.0
    mask = mask.expand(3, 2).contiguous()[:, :]
    mask[(x == 2).expand(3, 2)] = 5.0
    row = mask[0]
    row.mul_(2)
    return x * 2 if (row > 0).flatten().any().item() else x


def masked(x, mask):
    if mask is not None and mask.sum().item() < x.shape[0] * mask.shape[-1]:
        return x.masked_fill(mask == 0, 0.0)
    return x * 2


def compared(x):
    return x * 2 if x.exp().matmul(x.T).sum().item() < 3 else x


def beside(x, y):
    x.add_(1)
    return x * 2 if y[0] > 0.5 else x * 3


def ordered(x):
    size = x.abs().max()
    if size <= 1:
        return x
    if size == 2:
        return x * 2
    size.add_(1)
    return x * 3 if size < 4 else x * 4


class Counter:
    def __init__(self):
        self.calls = torch.tensor(0)

    def count(self, x):
        if self.calls >= 3:
            self.calls.zero_()
            return x * 10
        self.calls += 1
        return x + 1


def told(loss):
    return -loss.item(), -loss


def step(count, x):
    number = count.item()
    count.add_(1)
    return x * (2 if number % 2 else 3)
"""


def _library() -> Any:
    """Functions whose code is an installed package's, as far as its file says."""
    import types

    module = types.ModuleType("someones")
    path = "/somewhere/site-packages/someones/functions.py"
    exec(compile(textwrap.dedent(LIBRARY), path, "exec"), module.__dict__)
    return module


def test_whether_two_arguments_are_equal() -> None:
    library = _library()
    compiled = argand.compile(lambda x, y: library.squared_distance(x, y) + 1, backend="eager", fullgraph=True)
    x, y = torch.arange(3.0), torch.ones(3)
    for pair in ((x, x), (x, y), (y.clone(), y), (y, x), (x, torch.full((3,), float("nan")))):
        torch.testing.assert_close(compiled(*pair), library.squared_distance(*pair) + 1, equal_nan=True)


def test_one_answer_is_one_graph() -> None:
    library = _library()
    backend = CountingBackend()
    compiled = argand.compile(lambda t, x: library.ascending(t, x) * 2, backend=backend)
    for _ in range(4):
        t, x = torch.rand(3).cumsum(0), torch.randn(3)
        assert torch.equal(compiled(t, x), library.ascending(t, x) * 2)
    assert len(backend.graphs) == 1
    down = torch.tensor([3.0, 2.0, 1.0])
    assert torch.equal(compiled(down, x), library.ascending(down, x) * 2)
    with pytest.raises(AssertionError, match="not ascending"):
        compiled(torch.tensor([1.0, 2.0, 1.5]), x)


def test_dtypes_of_what_is_computed_do_not_matter() -> None:
    library = _library()

    def f(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = library.present((x @ w).softmax(1), labels)
        return result

    compiled = argand.compile(f, backend="eager", fullgraph=True)
    x, w = torch.randn(4, 3), torch.randn(3, 3)
    for labels in (torch.tensor([0, 1, 2, 0]), torch.tensor([2, 1, 0, 1]), torch.tensor([0, 1, 1, 0])):
        assert torch.equal(compiled(x, w, labels), f(x, w, labels))


def test_gradients_of_asked_tensors() -> None:
    library = _library()
    compiled = argand.compile(library.squared_distance, backend="aot_eager", fullgraph=True)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    compiled(x, y).backward()
    grad, x.grad = x.grad, None
    library.squared_distance(x, y).backward()
    assert x.grad is not None and torch.equal(grad, x.grad)


def test_a_number_that_varies_breaks_the_graph() -> None:
    library = _library()
    backend = CountingBackend()
    compiled = argand.compile(library.steps, backend=backend)
    for end in (1.0, 1.0, 2.0, 5.0, 9.0, 4.0, 7.0, 3.0):
        t = torch.tensor([0.0, end])
        assert torch.equal(compiled(t, 0.5), library.steps(t, 0.5))
    assert len(backend.graphs) <= 4


def test_what_the_graph_has_computed_is_not_asked() -> None:
    library = _library()
    with pytest.raises(argand.errors.Unsupported):
        argand.compile(library.computed, backend="eager", fullgraph=True)(torch.ones(2), torch.ones(2))
    compiled = argand.compile(library.computed, backend="eager")
    for sign in (1.0, -1.0, 3.0, -3.0):
        given = torch.full((2,), sign), torch.full((2,), sign)
        assert torch.equal(compiled(*given), library.computed(*given))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", ["written", "attends_globally"])
def test_what_the_graph_has_written_to_its_own_tensor_is_asked(name: str, backend: str) -> None:
    f = getattr(_library(), name)
    compiled = argand.compile(f, backend=backend, fullgraph=True)
    for values in ([-0.5, -0.5], [1.0, 2.0], [-3.0, 1.0], [0.0, 2.0], [-0.5, -0.25]):
        given, want = torch.tensor(values), torch.tensor(values)
        assert torch.equal(compiled(given), f(want)) and torch.equal(given, want)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_memory_that_was_written_through_another_argument(backend: str) -> None:
    library = _library()
    compiled = argand.compile(lambda x, y: library.beside(x, y), backend=backend)
    for first in (0.1, -3.0, 0.9, 0.1):
        for shared in (False, True, False):
            x, y = torch.tensor([first, 1.0]), torch.tensor([0.1, 1.0])
            a, b = x.clone(), y.clone()
            assert torch.equal(
                compiled(a, a.view(-1) if shared else b), library.beside(x, x.view(-1) if shared else y)
            ), (first, shared)
            assert torch.equal(a, x)


def test_what_several_questions_ask_for_is_computed_once() -> None:
    """But what one of them writes to is its own."""
    library = _library()
    compiled = argand.compile(library.ordered, backend="eager")
    for value in (2.5, 5.0, -2.5, 2.0, 2.75, -7.0, 0.5, 2.0, 2.5):
        x = torch.tensor([value, 0.25])
        assert torch.equal(compiled(x), library.ordered(x)), value
    library = _library()
    compiled = argand.compile(library.ordered, backend="eager", fullgraph=True)
    compiled(x)
    with torch.autograd.profiler.profile() as profile:
        compiled(x)
    assert [event.name for event in profile.function_events].count("aten::max") == 3  # the graph's, and two of guards


def test_a_count_that_the_library_writes_to() -> None:
    library = _library()
    ours, eager = library.Counter(), library.Counter()
    backend = CountingBackend()
    compiled = argand.compile(ours.count, backend=backend)
    x = torch.ones(2)
    for _ in range(9):
        assert torch.equal(compiled(x), eager.count(x))
        assert torch.equal(ours.calls, eager.calls)
    assert len(backend.graphs) == 2


def test_the_programs_own_branches_stay_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(argand.errors.Unsupported):
        argand.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


def test_guards_ask_past_what_surrounds_a_call() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    library = _library()
    compiled = argand.compile(library.ascending, backend="eager")
    t, x = torch.tensor([1.0, 2.0]), torch.ones(2)
    want = library.ascending(t, x)
    for _ in range(3):
        assert torch.equal(compiled(t, x), want)
    with torch.autocast("cpu"):
        assert torch.equal(compiled(t, x), want)
    with Seeing():
        assert torch.equal(compiled(t, x), want)
    assert "aten.add.Tensor" in seen and not any("detach" in name for name in seen)
    with torch.inference_mode():
        assert torch.equal(compiled(t, x), want)


def test_a_number_that_was_read_is_compared() -> None:
    """Where numbers read from tensors are symbols, what is guarded is the answer, not the number."""
    library = _library()
    compiled = argand.compile(library.masked, backend="eager", fullgraph=True)
    x = torch.randn(2, 3)
    for mask in ([[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]):
        given = torch.tensor(mask)
        assert torch.equal(compiled(x, given), library.masked(x, given))
    with pytest.raises(argand.errors.Unsupported):
        argand.compile(library.compared, backend="eager", fullgraph=True)(x)


def test_a_number_that_the_graph_writes_over_is_no_guard() -> None:
    library = _library()
    compiled = argand.compile(lambda count, x: library.step(count, x) + 1, backend="eager")
    count, x = torch.tensor(0), torch.ones(3)
    findings = Findings()
    with findings.listening():
        for number in range(4):
            assert torch.equal(compiled(count, x), x * (2 if number % 2 else 3) + 1)
            assert count.item() == number + 1
    assert not any("item ==" in str(each) for each in findings.recompiles)


def test_the_number_of_a_loss_is_no_guard() -> None:
    """What has a history is another number in the next call: it was captured for one and recompiled for the next."""
    library = _library()
    compiled = argand.compile(library.told, backend="eager")
    findings = Findings()
    with findings.listening():
        for number in range(3):
            loss = torch.tensor(float(number), requires_grad=True) * 2
            assert str(compiled(loss)) == str(library.told(loss))
    assert not findings.recompiles
