"""Sums of tensors that are zero outside of disjoint parts become those parts, one after another."""

import pytest
import torch
from pass_helpers import traced
from torch.nn import functional as F

import argand
from argand.passes.padded_sums import join_padded_sums
from argand.passes.pipeline import run_passes

aten = torch.ops.aten


def pads_of(program):
    return [node for node in program.graph.nodes if node.target is aten.constant_pad_nd.default]


def at(x, start, size, dim):
    """`x` with zeros around it, `size` long."""
    pads = [0] * (2 * x.dim())
    pads[2 * (x.dim() - 1 - dim)] = start
    pads[2 * (x.dim() - 1 - dim) + 1] = size - start - x.shape[dim]
    return F.pad(x, pads)


def whole(*parts):
    return sum((at(x, 2 * step, 2 * len(parts), 1) for step, x in enumerate(parts[1:])), at(parts[0], 8, 10, 1))


def with_gaps(a, b, c):
    return at(c, 9, 14, 0) + at(a, 1, 14, 0) + at(b, 4, 14, 0)


def with_others(a, b, c):
    total = at(a, 0, 10, 1) + a.repeat(1, 5)
    return (total + at(b, 4, 10, 1)) + (at(c, 7, 10, 1) + at(c, 6, 10, 1)) + torch.ones(3, 10)


def in_two_dimensions(a, b, c):
    return at(a, 0, 6, 1) + at(b, 2, 6, 1) + at(c, 4, 6, 1) + F.pad(c, (0, 4)) + F.pad(c[:1], (0, 4, 2, 0))


PARTS = tuple(torch.randn(3, 2) for _ in range(5))
PROGRAMS = {
    "whole": (whole, PARTS),
    "gaps": (with_gaps, PARTS[:3]),
    "others, and parts that overlap": (with_others, PARTS[:3]),
    "two halves": (lambda a, b: at(a.exp(), 0, 4, 1) + at(b.sin(), 2, 4, 1), PARTS[:2]),
    "two dimensions": (in_two_dimensions, PARTS[:3]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    function, args = PROGRAMS[name]
    with argand.config.patch(verify_ir=True):
        program = run_passes(traced(function, *args))
    assert any(node.target is aten.cat.default for node in program.graph.nodes)
    want = function(*args)
    torch.testing.assert_close(argand.compile(function)(*args), want)


def test_zeros_have_eagers_sign():
    parts = [torch.full((2, 1), -0.0) for _ in range(3)]

    def function(a, b, c):
        return at(a, 0, 3, 1) + at(b, 1, 3, 1) + at(c, 2, 3, 1)

    made = argand.compile(function)(*parts)
    assert torch.equal(made.signbit(), function(*parts).signbit())


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: at(a, 0, 6, 1) + at(b, 3, 6, 1),  # two, and zeros between
        lambda a, b, c: (at(a, 0, 4, 1) + at(b, 2, 4, 1)).exp(),  # no memory is needed for the sum
        lambda a, b, c: F.pad(a, (0, 4), value=1.0) + F.pad(b, (2, 2), value=1.0) + F.pad(c, (4, 0), value=1.0),
        lambda a, b, c: F.pad(a, (-1, 5)) + F.pad(b, (2, 2)) + F.pad(c, (4, 0)),
        lambda a, b, c: F.pad(a.int(), (0, 4)) + F.pad(b.int(), (2, 2)) + F.pad(c.int(), (4, 0)),
    ],
)
def test_others_stay(function):
    program = traced(function, *PARTS[:3])
    assert join_padded_sums(program) == 0 and len(pads_of(program)) >= 2


def test_gradients_of_a_loop_over_time_steps_have_no_tensor_of_the_whole_size_per_step():
    def loop(x, gate):
        state, states = torch.zeros(2, 3, dtype=torch.float64), []
        for step in range(x.shape[1]):
            state = gate[:, step] * state + x[:, step].tanh()
            states.append((state * gate[:, step]).sum(-1))
        return torch.stack(states, 1)

    args = [torch.randn(2, 16, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    texts = []
    remove = argand.events.bus.subscribe(lambda event: texts.append(event.text()), ("output_code",))
    try:
        gradients = torch.autograd.grad(argand.compile(loop)(*args).square().sum(), args)
    finally:
        remove()
    assert texts and not any("constant_pad_nd" in text for text in texts)
    for made, want in zip(gradients, torch.autograd.grad(loop(*args).square().sum(), args)):
        torch.testing.assert_close(made, want)


@pytest.mark.parametrize("sizes", [(3, 4, 5, 1), (3, 1, 5, 4), (3, 4, 1, 6), (1, 1, 1, 1), (0, 2, 1, 2), (2, 2, 0, 1)])
def test_products_of_matrices_and_vectors(sizes):
    batch, rows, inner, columns = sizes
    x, y = torch.randn(batch, inner, rows).transpose(1, 2), torch.randn(batch, inner, columns)
    torch.testing.assert_close(argand.compile(lambda x, y: torch.bmm(x, y) + 1)(x, y), torch.bmm(x, y) + 1)
