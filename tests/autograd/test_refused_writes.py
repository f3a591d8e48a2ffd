"""Writes that eager's autograd refuses, and tensors of inference mode that captured code makes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import argand


def _several_of_unbind(x: torch.Tensor) -> Any:
    y = x * 2
    y.unbind()[0].add_(1)
    return y


def _several_of_split(x: torch.Tensor) -> Any:
    y = x * 2
    first, _ = y.split(2)
    first.mul_(2)
    return y


def _part_of_one_of_several(x: torch.Tensor) -> Any:
    first, _ = (x * 2).chunk(2)
    first[0] = 5
    return first


def _view_of_one_of_several(x: torch.Tensor) -> Any:
    y = x * 2
    torch.split_with_sizes(y, [1, 3])[0].view(1).add_(1)
    return y


def _rows(x: torch.Tensor) -> Any:
    y = (x * 2).view(2, 2)
    for row in y:
        row.add_(1)
    return y


def _one_by_one(x: torch.Tensor) -> Any:
    y = x * 2
    first, _ = torch.tensor_split(y, 2)
    first.zero_()
    return y


def _several_without_gradients(x: torch.Tensor) -> Any:
    y = x.detach() * 2
    y.unbind()[0].add_(1)
    return y


def _several_in_a_list(x: torch.Tensor) -> Any:
    first, _ = (x.detach() * 2).split(2)
    torch._foreach_add_([first], [x[:2]])
    return first


def _several_by_keyword(x: torch.Tensor) -> Any:
    first, _ = (x.detach() * 2).split(2)
    return first.add_(other=x[:2])


def _expanded(x: torch.Tensor) -> Any:
    """Eager's autograd says so in the backward."""
    return x.sin().expand(2, 4).index_fill_(0, torch.tensor([1]), 2)


def _expanded_in_part(x: torch.Tensor) -> Any:
    y = x.sin().expand(2, 4)
    y[1] = 2
    return y


def _several_copied(x: torch.Tensor) -> Any:
    y = x * 2
    first, second = y.split(2)
    return first.clone().add_(second)


def _made_in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 3
    return y, z, y.is_inference(), z.is_inference()


def _view_in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x.detach().view(2, 2)
    return y, y.is_inference()


def _written_behind_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.add_(1)


def _written_in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return (x * 2).add_(1)


def _requires_grad_behind_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.requires_grad_()


@torch.inference_mode()
def _whole_function(x: torch.Tensor) -> Any:
    return x.sin(), x.sum()


def _break_in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    argand.graph_break()
    return y + 1, y


def _outcome(f: Callable[..., Any]) -> Any:
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    told = []
    try:
        results = f(x)
        for each in results if isinstance(results, tuple) else (results,):
            if isinstance(each, torch.Tensor):
                gradient = torch.autograd.grad(each.sum(), x)[0].tolist() if each.requires_grad else None
                told.append((each.is_inference(), each.requires_grad, each.tolist(), gradient))
            else:
                told.append(each)
    except RuntimeError as error:
        return str(error)
    return told


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "program",
    [_several_of_unbind, _several_of_split, _part_of_one_of_several, _view_of_one_of_several, _rows, _one_by_one,
     _several_without_gradients, _several_in_a_list, _several_by_keyword, _expanded, _expanded_in_part, _several_copied,
     _made_in_inference_mode, _view_in_inference_mode,
     _written_behind_inference_mode, _written_in_inference_mode, _requires_grad_behind_inference_mode, _whole_function,
     _break_in_inference_mode],
)  # fmt: skip
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    want, compiled = _outcome(program), argand.compile(program, backend=backend)
    for _ in range(2):
        assert _outcome(compiled) == want


@pytest.mark.parametrize("program", [_one_by_one, _several_without_gradients, _several_copied, _made_in_inference_mode])
def test_what_eager_allows_is_one_graph(program: Callable[..., Any]) -> None:
    assert _outcome(argand.compile(program, fullgraph=True)) == _outcome(program)


def test_a_leaf_keeps_its_values_when_a_write_is_refused() -> None:
    """A program whose kernel stores into an input is another than one whose write autograd records, or refuses."""

    def written(x: torch.Tensor, p: torch.Tensor) -> Any:
        x.add_(1)
        return p * 2, x

    def written_both_ways(x: torch.Tensor, p: torch.Tensor) -> Any:
        x.add_(1)
        with torch.no_grad():
            p.mul_(2)
        return p * x

    p = torch.nn.Parameter(torch.ones(3, 5))
    argand.compile(written)(torch.ones(3, 5), p)  # kept by its text
    for program in (written, written_both_ways):
        fn = argand.compile(program)
        fn(torch.ones(3, 5, requires_grad=True) * 1, torch.ones(3, 5, requires_grad=True) * 1)
        for written_to in (torch.ones(3, 5, requires_grad=True), torch.ones(15, requires_grad=True).view(3, 5)):
            other = torch.ones(3, 5, requires_grad=True) * 1
            with pytest.raises(RuntimeError, match="a leaf Variable"):
                fn(written_to, other)
            assert written_to.detach().eq(1).all() and other.detach().eq(1).all()


def inside_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        view = x.view(-1)
        told = [(t.requires_grad, t.is_leaf, t.grad_fn is None, t.is_inference()) for t in (x, view, x * 2)]
        return told, [t.grad_fn is None for t in (x,)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", ["leaf", "result", "view", "plain", "inference"])
def test_tensors_from_before_inference_mode_are_none_of_it(kind: str, backend: str) -> None:
    def made() -> torch.Tensor:
        with torch.inference_mode(kind == "inference"):
            x = torch.ones(2, 2, requires_grad=kind not in ("plain", "inference"))
            return {"result": lambda: x * 1, "view": lambda: x.t().t()}.get(kind, lambda: x)()

    fn = argand.compile(inside_inference_mode, backend=backend)
    want = inside_inference_mode(made())
    assert [fn(made()), fn(made())] == [want, want]


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one of a result": lambda x: [(x * 2).unbind(0)[1]],
    "all of a result": lambda x: (x * 2).split(1),
    "a part of one": lambda x: [(x * 2).chunk(2)[1][:, 1:]],
    "of an argument": lambda x: [*x.split([1, 1]), x.unbind(1)[0]],
    "beside what they are views of": lambda x: [y := x * 2, *y.hsplit(2)],
    "of a number": lambda x: (x.sum() * 2).expand(2).unbind(),
    "one by one": lambda x: (x * 2).tensor_split(2),
    "without gradients": lambda x: (x.detach() * 2).unbind(),
    "a single view": lambda x: [(x * 2)[0]],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_writes_to_results_that_are_views(backend: str) -> None:
    """What eager refuses of the views that one call gave is refused when they come from a graph, too."""

    def written(program: Callable[[torch.Tensor], Any]) -> list[Any]:
        told: list[Any] = []
        leaf = torch.arange(1.0, 5.0).reshape(2, 2).requires_grad_()
        for result in program(leaf):
            with contextlib.suppress(RuntimeError):
                told.append(torch.autograd.grad(result.sum(), leaf, retain_graph=True)[0].tolist())
            try:
                told.append(result.mul_(2).tolist())
            except RuntimeError as error:
                told.append(re.sub(r"Output \d of \w+", "Output", str(error)))
            told.append(result._version)
        return told

    for name, program in RESULTS.items():
        assert written(argand.compile(program, backend=backend)) == written(program), name


@pytest.mark.parametrize("first", [0, 1])
def test_a_write_gives_its_history_to_all_that_shares_the_memory(first: int) -> None:
    def written(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> Any:
        (x, y)[first].mul_(p)
        return y.requires_grad, y.is_leaf, x.requires_grad, x.is_leaf, x.grad_fn is None

    x, z, p = torch.ones(2), torch.ones(2), torch.ones(2, requires_grad=True)
    assert argand.compile(written, backend="eager")(x, x.view(2), p) == written(z, z.view(2), p)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_leaf_keeps_its_values_when_a_write_to_a_view_of_it_is_refused(backend: str) -> None:
    x = torch.full((3, 4), -1.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="a view of a leaf"):
        argand.compile(lambda view: view.relu_(), backend=backend)(x.t())
    assert bool((x == -1).all())


class Unneeded(torch.autograd.Function):
    """Its backward reads what it saved, and needs none of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x[:1], y)
        return x + y, x * 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018
        return sum(grads), grads[0]


@pytest.mark.parametrize("written", ["an argument", "a view", "inside", "another result"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_function_saved_and_does_not_need(backend: str, written: str) -> None:
    def applied(x: torch.Tensor, y: torch.Tensor) -> Any:
        results = Unneeded.apply(x, y)
        if written == "inside":
            y.mul_(2)
        return results

    def refused(fn: Callable[..., Any]) -> bool:
        x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
        results = fn(x, y)
        with torch.no_grad():
            {"an argument": y, "a view": x, "inside": torch.ones(1), "another result": results[1]}[written].mul_(2)
        try:
            sum(result.sum() for result in results).backward()
        except RuntimeError:
            return True
        return False

    assert refused(argand.compile(applied, backend=backend)) == refused(applied)


def test_an_empty_tensor_written_to_itself() -> None:
    """Eager refuses it where the kernel may not read what it writes to, though nothing lies there."""
    rows = torch.zeros(0, dtype=torch.long)
    for write in (
        lambda x: x.index_add_(0, rows, x),
        lambda x: x.index_copy_(0, rows, x),
        lambda x: x.scatter_(0, rows.view(0, 1).expand(0, 3), x),
        lambda x: x.put_(rows, x),
        lambda x: torch.index_add(torch.ones(0, 3), 0, rows, x, out=x),
        lambda x: torch.cat([x, x], out=x),
    ):
        for call in (write, argand.compile(write, backend="aot_eager")):
            with pytest.raises(RuntimeError, match="unsupported operation"):
                call(torch.zeros(0, 3))
