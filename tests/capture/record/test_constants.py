"""Tensors whose values are known while capturing: what needs no break, and what is not known any more, or never was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Dirichlet, Gamma, MultivariateNormal

import argand
from argand.capture.metadata.call_targets import may_draw

Program = Callable[[torch.Tensor], Any]


def causal(x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((3, 3), -torch.inf).triu(1)
    return x + 1 if bool((mask == torch.nn.Transformer.generate_square_subsequent_mask(3)).all()) else x - 1


def prior(x: torch.Tensor) -> torch.Tensor:
    return MultivariateNormal(torch.zeros(2), torch.eye(2)).log_prob(x)


def long_chain(x: torch.Tensor) -> torch.Tensor:
    count = torch.full((4,), 2.0)
    for _ in range(300):
        count = count + 1
    return x * count[0].item()


def read_before_the_write(x: torch.Tensor) -> torch.Tensor:
    t = torch.zeros(2)
    u = t + 1
    t.fill_(3.0)
    return x * u[0].item()


def list_changed_after_the_call(x: torch.Tensor) -> torch.Tensor:
    sizes = [2, 3]
    t = torch.ones(sizes)
    sizes[0] = 9
    return x * t.sum().item()


def compared(x: torch.Tensor) -> torch.Tensor:
    same, near = torch.equal(torch.eye(2), torch.ones(2, 2)), torch.allclose(torch.eye(2), torch.eye(2) + 1e-9)
    return x * 2 if near and not same else x


def several_results(x: torch.Tensor) -> torch.Tensor:
    value, index = torch.arange(6.0).reshape(2, 3).max(1)
    return x * value[1].item() + int(index[0])


def as_numbers(x: torch.Tensor) -> torch.Tensor:
    two = torch.tensor(2.0)
    return x * float(two.log2()) + int(two * 1.3) + float(torch.tensor([[1.5]]) * 2) + int(two > 1) + round(float(-two))


def no_numbers(x: torch.Tensor) -> list[Any]:
    said: list[Any] = [x + 1]
    for kind in (int, float):
        for values in (2.5, torch.inf, torch.nan, 1j, True, [1.0, 2.0], [1, 2], []):
            try:
                said.append(str(kind(torch.tensor(values) * 1)))
            except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                said.append(type(error))
    return said


def not_taken_for_numbers(x: torch.Tensor) -> list[Any]:
    one, some, place = torch.tensor(1.0), torch.tensor([1.0]), torch.zeros(1, 1, dtype=torch.long)
    said: list[Any] = [x + 1]
    calls: list[Callable[[], object]] = [
        lambda: x[some],
        lambda: x[torch.tensor([])],
        lambda: x.clone().__setitem__(some, 1.0),
        lambda: x.clone().scatter_(0, place, one),
        lambda: x.quantile(one.double()),
        lambda: x.split(torch.tensor([1, len(x) - 1])),
        lambda: torch.nn.functional.pad(x, (0, torch.tensor(True))),
        lambda: torch.nn.functional.pad(x, torch.tensor([1, 1])),
    ]
    for call in calls:
        try:
            said.append(call())
        except (TypeError, IndexError, RuntimeError) as error:
            said.append(type(error))
    return said


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [as_numbers, no_numbers, not_taken_for_numbers])
def test_known_tensors_as_numbers(program: Program, dynamic: bool | None) -> None:
    """That an integer could not be made of them was taken for an error of the program, which may handle it."""
    compiled = argand.compile(program, backend="eager", dynamic=dynamic)
    for size in (2, 3):
        x = torch.randn(size)
        want, got = program(x), compiled(x)
        torch.testing.assert_close(got[:1], want[:1])
        assert list(got[1:]) == list(want[1:])


@pytest.mark.parametrize(
    "program",
    [causal, prior, long_chain, read_before_the_write, list_changed_after_the_call, compared, several_results],
    ids=lambda program: program.__name__,
)
def test_values_known_while_capturing(program: Program) -> None:
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(argand.compile(program, fullgraph=True)(x), program(x))


def view_of_an_unknown_shape(x: torch.Tensor) -> torch.Tensor:
    t = torch.tensor([1.0, 2.0])
    t.view_as(x).add_(1)
    return x * t[0].item()


def part_written(x: torch.Tensor) -> torch.Tensor:
    t = torch.arange(6).reshape(2, 3)
    t[:, 0] = 7
    return x * t.sum().item()


def detached_and_written(x: torch.Tensor) -> torch.Tensor:
    t = torch.ones(2)
    t.detach().mul_(3)
    return x * t[0].item()


def written_through_data(x: torch.Tensor) -> torch.Tensor:
    t = torch.ones(2)
    t.data.fill_(4)
    return x * t[0].item()


def base_of_an_expanded_view_written(x: torch.Tensor) -> torch.Tensor:
    t = torch.ones(2)
    view = t.expand(3, 2)
    t += 1
    return x * view[0, 0].item()


def one_of_several_views_written(x: torch.Tensor) -> torch.Tensor:
    t = torch.ones(2)
    first, second = t.unbind()
    first.zero_()
    return x * (t[0].item() + second.item())


def given_as_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2)
    torch.add(torch.ones(2), torch.ones(2), out=out)
    return x * out[0].item()


def copied_from_an_input(x: torch.Tensor) -> torch.Tensor:
    t = torch.ones(2)
    t.copy_(x)
    return x * 2 if t[0] > 0 else x


def rounded_by_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.full((3, 3), 1.01) @ torch.eye(3)
    return x * product.float().sum().item()


def overwritten(x: torch.Tensor) -> torch.Tensor:
    t, u = torch.arange(4), torch.arange(4)
    t[1:] = u[:-1]
    t[t > 1] = 7
    t.clamp_(u, u + 3).add_(1)
    u.copy_(t)
    t.zero_()
    return x * sum(u.tolist()) + t[0].item()


@pytest.mark.parametrize("program", [part_written, overwritten], ids=lambda program: program.__name__)
def test_values_behind_writes_that_are_known(program: Program) -> None:
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(argand.compile(program, fullgraph=True)(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "program",
    [view_of_an_unknown_shape, detached_and_written, written_through_data, given_as_out,
     base_of_an_expanded_view_written, one_of_several_views_written, copied_from_an_input, rounded_by_autocast],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_values_that_are_written_are_not_known(program: Program, backend: str) -> None:
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 2.0])):
        torch.testing.assert_close(argand.compile(program, backend=backend)(x), program(x))


DRAWN = {
    "gamma": lambda: Gamma(torch.tensor(2.0), torch.tensor(1.0)).sample(),
    "dirichlet": lambda: Dirichlet(torch.tensor([2.0, 1.0])).sample()[0],
    "categorical": lambda: Categorical(probs=torch.tensor([0.5, 0.5])).sample(),
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)),
    "method": lambda: torch.tensor(0.5).bernoulli(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(1), 0.5),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 1)] * 3, dropout_p=0.5),
    "rand_like": lambda: torch.rand_like(torch.ones(())),
    "rrelu": lambda: torch.nn.functional.rrelu(torch.tensor([-1.0]), training=True),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_random_numbers_are_drawn_in_each_call(draw: Callable[[], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * draw().item()

    compiled, x = argand.compile(program, backend="eager"), torch.ones(1)
    for seed in range(8):
        torch.manual_seed(seed)
        expected, state = program(x), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_table_of_functions_that_draw_covers_what_aten_marks() -> None:
    marked = set()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::") and hasattr(torch.ops.aten, name):
            op = getattr(getattr(torch.ops.aten, name), overload or "default", None)
            if op is not None and torch.Tag.nondeterministic_seeded in op.tags:
                marked.add(name)
    assert len(marked) > 40
    assert {name for name in marked if not may_draw(name)} <= {"_fused_sdp_choice"}  # says only which kernel


@pytest.mark.parametrize("grad", [False, True])
def test_masks_that_are_known_are_positions(grad: bool) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        off = ~torch.eye(3, dtype=torch.bool)
        first = torch.tensor([True, False, True])
        none = torch.zeros(3, dtype=torch.bool)
        return [
            x[:, off].pow(2).sum(-1),
            x[0][off].view(3, -1),
            x[..., first],
            x[1, first, :2],
            x[None, ..., first, 0],
            x[:, first, torch.tensor([0, 2])],
            x[torch.tensor(1), ..., none],
            x[first[:2]],
        ]

    compiled = argand.compile(f, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(2, 3, 3, requires_grad=grad)
        want, got = f(x), compiled(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert [one.stride() for one in got] == [one.stride() for one in want]
        if grad:
            gradients = [torch.autograd.grad(sum(one.sin().sum() for one in results), x) for results in (want, got)]
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("index", ["x[off]", "x[:, :, off]", "x[..., off[:2]]", "x[off, 0]"])
def test_masks_of_another_size_raise_as_in_eager(index: str) -> None:
    programs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "x[off]": lambda x: x[~torch.eye(3, dtype=torch.bool)],
        "x[:, :, off]": lambda x: x[:, :, ~torch.eye(3, dtype=torch.bool)],
        "x[..., off[:2]]": lambda x: x[..., (~torch.eye(3, dtype=torch.bool))[:2]],
        "x[off, 0]": lambda x: x[~torch.eye(3, dtype=torch.bool), 0],
    }
    x = torch.randn(2, 3, 3)
    with pytest.raises(IndexError) as eager:
        programs[index](x)
    with pytest.raises(IndexError) as ours:
        argand.compile(programs[index], backend="eager")(x)
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_complex_numbers_whose_text_is_that_of_others(backend: str) -> None:
    """`repr(complex(-0.0, 0.0))` gives another number, `repr(complex(0, nan))` none."""
    for number in (complex(-0.0, 0.0), complex(1.0, -0.0), complex(0.0, torch.nan), complex(-torch.inf, 2.0)):

        def program(x: torch.Tensor) -> Any:
            return torch.full((2,), number), torch.tensor(number), (x + 1j).mul(number)  # noqa: B023

        want = program(torch.ones(2))
        assert str(argand.compile(program, backend=backend)(torch.ones(2))) == str(want)
