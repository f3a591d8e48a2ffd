"""Inputs that share memory while one of them is written to: views of one base inside the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import argand
import sweeps
from argand import events


@pytest.fixture
def reasons() -> Iterator[list[str]]:
    """Why graphs ran eagerly."""
    argand.reset()
    found: list[str] = []
    stop = events.bus.subscribe(
        lambda e: (
            found.append(str(e.data.get("reason"))) if e.name == "fallback" and e.data.get("scope") == "graph" else None
        )
    )
    yield found
    stop()


@pytest.fixture(params=["aot_eager", "native"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def flat() -> torch.Tensor:
    return torch.arange(12.0) / 7


def part_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return y * 2


def both_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    y.add_(x.sum())
    x.sub_(1)
    return x + 0, y + 0


def write_after_read(x: torch.Tensor, y: torch.Tensor) -> Any:
    before = y + 1
    x[1:].zero_()
    return before, y.sum(), x.mean()


def views_returned(x: torch.Tensor, y: torch.Tensor) -> Any:
    y.mul_(3)
    return x, y[1:], x.view(-1)[:2]


def nothing_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.reshape(-1).sum() + y.reshape(-1).sum()


PAIRS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "whole and rest": lambda b: (b, b[2:]),
    "rest and whole": lambda b: (b[2:], b),
    "overlapping": lambda b: (b[:8], b[5:]),
    "side by side": lambda b: (b[:6], b[6:]),
    "transposed": lambda b: (b.view(3, 4), b.view(3, 4).t()),
    "column": lambda b: (b.view(3, 4), b.view(3, 4)[:, 1]),
    "every second": lambda b: (b[::2], b[1:9]),
    "every second behind the first": lambda b: (b[2::2], b[3:11]),
    "columns behind the first": lambda b: (b.view(3, 4)[:, 1:3], b.view(3, 4)[:, 2:]),
    "same": lambda b: (b[:], b.view(12)),
    "one element": lambda b: (b, b[3]),
    "empty": lambda b: (b[4:4], b),
}


@pytest.mark.parametrize(
    ("pair", "fn"),
    sweeps.chessboard(PAIRS, [part_written, both_written, write_after_read, views_returned, nothing_written]),
)
def test_two_views_of_one_tensor(fn: Callable[..., Any], pair: str, backend: str, reasons: list[str]) -> None:
    try:
        fn(*PAIRS[pair](flat()))
    except (RuntimeError, IndexError) as error:  # not for these shapes: the compiled function says so as well
        with pytest.raises(type(error)):
            argand.compile(fn, backend=backend)(*PAIRS[pair](flat()))
        return
    compiled = argand.compile(fn, backend=backend)
    for _ in range(2):
        one, two = flat(), flat()
        mine, theirs = PAIRS[pair](one), PAIRS[pair](two)
        want, got = fn(*theirs), compiled(*mine)
        torch.testing.assert_close([got, *mine, one], [want, *theirs, two], equal_nan=True)
        if fn is views_returned:
            assert got[0] is mine[0] and got[1].untyped_storage()._cdata == one.untyped_storage()._cdata
            assert got[1].storage_offset() == want[1].storage_offset()
    assert not reasons


def test_a_part_as_other_numbers(backend: str, reasons: list[str]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        numbers = torch.view_as_complex(y.view(3, 2))
        x.mul_(2)
        return numbers

    one, two = flat(), flat()
    torch.testing.assert_close(argand.compile(program, backend=backend)(one, one[4:10]), program(two, two[4:10]))
    torch.testing.assert_close(one, two)
    assert not reasons


def test_inputs_that_share_memory_in_another_way_in_the_next_call(backend: str) -> None:
    compiled = argand.compile(part_written, backend=backend)
    for start in (2, 3, 0, 2):
        one, two = flat(), flat()
        got, want = compiled(one[:6], one[start : start + 6]), part_written(two[:6], two[start : start + 6])
        torch.testing.assert_close([got, one], [want, two])
    apart = [flat()[:6], flat()[:6]]
    torch.testing.assert_close(compiled(*apart), part_written(flat()[:6], flat()[:6]))


def test_one_tensor_twice_and_written(backend: str, reasons: list[str]) -> None:
    one, two = flat(), flat()
    torch.testing.assert_close(argand.compile(both_written, backend=backend)(one, one), both_written(two, two))
    torch.testing.assert_close(one, two)
    assert not reasons


def test_versions_move_as_in_eager(backend: str) -> None:
    versions = []
    for call in (part_written, argand.compile(part_written, backend=backend)):
        base = flat()
        x, y = base[:4], base[2:].data
        before = (x._version, y._version, base._version)
        call(x, y)
        versions.append([now > then for now, then in zip((x._version, y._version, base._version), before)])
    assert versions[1] == versions[0] == [True, False, True]


# ---------------------------------------------------------------------- with gradients


def trained(call: Callable[..., torch.Tensor], make: Callable[[], list[torch.Tensor]]) -> list[Any]:
    given = make()
    out = call(*given)
    out.sum().backward()
    return [out.detach(), *[t.grad for t in given], *[t.detach() for t in given]]


def compare(fn: Callable[..., torch.Tensor], make: Callable[[], list[torch.Tensor]], backend: str) -> None:
    compiled = argand.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(trained(compiled, make), trained(fn, make))


def test_shared_buffers_beside_a_weight(backend: str, reasons: list[str]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (y * w).sin() * x.sum()

    def make() -> list[torch.Tensor]:
        base = flat()
        return [base[:6], base[2:8], torch.ones(6, requires_grad=True)]

    compare(fn, make, backend)
    assert not reasons


def test_a_view_of_a_leaf_written_under_no_grad(backend: str, reasons: list[str]) -> None:
    def fn(w: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            part.clamp_(0.2, 0.9)
        return (w * w).sum()

    def make() -> list[torch.Tensor]:
        w = flat().requires_grad_()
        return [w, w.detach()[3:]]

    compare(fn, make, backend)
    assert not reasons


def test_two_parameters_over_one_storage(backend: str, reasons: list[str]) -> None:
    """Tied weights as views: one is renormalised, both are used."""

    def fn(one: torch.Tensor, two: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            one.div_(one.norm())
        return (x @ one).sin() + (x @ two.t()).cos()

    def make() -> list[torch.Tensor]:
        base = torch.arange(16.0).view(4, 4) / 20
        return [torch.nn.Parameter(base), torch.nn.Parameter(base.t()), torch.ones(2, 4)]

    compare(fn, make, backend)
    assert not reasons


def test_tied_parameters_of_a_module(backend: str) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            storage = torch.arange(16.0).view(4, 4) / 20
            self.one = torch.nn.Parameter(storage)
            self.two = torch.nn.Parameter(storage[:2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.one.mul_(0.9)
            return (x @ self.one).sin().sum() + (self.two @ x.t()).sum()

    results = []
    for wrap in (lambda m: m, lambda m: argand.compile(m, backend=backend)):
        model = Tied()
        run = wrap(model)
        for _ in range(3):
            run(torch.ones(2, 4)).backward()
        results.append([*[p.detach() for p in model.parameters()], *[p.grad for p in model.parameters()]])
    torch.testing.assert_close(results[1], results[0])


def test_a_kept_value_is_not_the_shared_memory(backend: str) -> None:
    """What the backward needs was kept before somebody else wrote through another name."""

    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y * w

    def use(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        base, w = flat(), torch.ones(6, requires_grad=True)
        out = call(base[:6], base[2:8].clone().data, w)
        out.sum().backward()
        assert w.grad is not None
        return w.grad

    torch.testing.assert_close(use(argand.compile(fn, backend=backend)), use(fn))


def test_writes_that_autograd_records_end_the_graph(backend: str, reasons: list[str]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return y * 2

    def make() -> list[torch.Tensor]:
        base = flat()
        return [base[:6], base[2:8], torch.full((6,), 2.0, requires_grad=True)]

    results = []
    for call in (fn, argand.compile(fn, backend=backend)):
        given = make()
        out = call(*given)
        (out.sum() + given[0].sum()).backward()
        results.append([out.detach(), given[2].grad])
    torch.testing.assert_close(results[1], results[0])
    assert not reasons


def test_a_write_to_what_the_backward_reads_is_an_error_as_in_eager(backend: str) -> None:
    def fn(w: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        out = (w * w).sum()
        with torch.no_grad():
            part.add_(1)
        return out

    for call in (fn, argand.compile(fn, backend=backend)):
        w = flat().requires_grad_()
        out = call(w, w.detach()[3:])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def mul_by_neighbour(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.mul_(y)


def copy_neighbour(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.copy_(y)


def foreach_neighbour(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_addcmul_([x], [y], [y])
    return x + 0


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("fn", [mul_by_neighbour, copy_neighbour, foreach_neighbour])
def test_writes_over_part_of_an_argument_raise_as_in_eager(fn: Callable[..., Any], inside: bool, backend: str) -> None:
    def views_made_inside(base: torch.Tensor) -> torch.Tensor:
        own = base * 1
        return fn(own[:4], own[2:6])

    for wrap in (lambda f: f, lambda f: argand.compile(f, backend=backend)):
        with pytest.raises(RuntimeError, match="single memory location|partial|overlap"):
            if inside:
                wrap(views_made_inside)(flat())
            else:
                base = flat()
                wrap(fn)(base[:4], base[2:6])


def test_what_a_program_did_before_such_a_write(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, log: list[int]) -> torch.Tensor:
        log.append(1)
        x.add_(y.t())
        log.append(2)
        return x

    log: list[int] = []
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="single memory location|partial|overlap"):
        argand.compile(program, backend=backend)(x, x.view(2, 2), log)
    assert log == [1]


def test_several_groups_of_arguments_that_share_memory(reasons: list[str], backend: str) -> None:
    """Groups are told apart by what they are, not by what their tensors hold."""

    def written(a: torch.Tensor, a2: torch.Tensor, b: torch.Tensor, b2: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.mul_(2)
        b.add_(1)
        return a2 + 1, b2 * 3

    for length in (6, 1):
        outcomes = []
        for call in (written, argand.compile(written, backend=backend)):
            x, y = torch.ones(length * 2), torch.ones(length * 2)
            results = call(x[:length], x.view(-1)[:length], y[:length], y.view(-1)[:length])
            outcomes.append([tensor.tolist() for tensor in (*results, x, y)])
        assert outcomes[0] == outcomes[1]
    assert not reasons


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_are_views_of_what_they_are_in_eager(backend: str) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return x.detach(), x[1:], y[:2], x.data, y.detach(), x.view(2, 2)

    for share in (torch.Tensor.detach, lambda x: x.data[1:], lambda x: x[1:]):
        outcomes = []
        for run in (write, argand.compile(write, backend=backend)):
            x = torch.arange(4.0)
            results = run(x, share(x))
            views = [result._is_view() for result in results]
            x.requires_grad_()
            outcomes.append((views, [result.requires_grad for result in results], [r.tolist() for r in results]))
        assert outcomes[0] == outcomes[1]
