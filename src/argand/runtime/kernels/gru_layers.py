"""A GRU of several layers, one or both ways, by argand's own kernel for its steps: forward, and gradients of what it
kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argand.runtime.kernels import gru
from argand.runtime.kernels.products import faster_product

Params = Sequence[torch.Tensor]


def of_layer(params: Params, number: int, has_biases: bool) -> tuple[torch.Tensor | None, ...]:
    """Weights of the input and of the state, and their biases, of layer and direction `number`."""
    each = 4 if has_biases else 2
    weights = params[each * number : each * (number + 1)]
    return (*weights, None, None) if not has_biases else tuple(weights)


def forward(
    x: torch.Tensor, start: torch.Tensor, params: Params, has_biases: bool, layers: int, ways: int, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The states of the last layer (steps, batch, ways * width), the last states, and what the backward reads.

    Arguments:
        x: (steps, batch, features).
        start: (layers * ways, batch, width).
        keep: whether there will be a backward. What it reads is the gates of each layer and way, then the states of
            all layers but the last.
    """
    steps, batch, _ = x.shape
    width = start.shape[2]
    last, gates, states = torch.empty_like(start, memory_format=torch.contiguous_format), [], []
    for layer in range(layers):
        out = x.new_empty(steps, batch, ways * width)
        flat = x.reshape(steps * batch, -1)
        for way in range(ways):
            number = layer * ways + way
            into, again, bias, bias_again = of_layer(params, number, has_biases)
            assert into is not None and again is not None
            projected = faster_product(flat, into.t(), bias).view(steps, batch, 3 * width)
            kept = x.new_empty(steps, batch, 4 * width) if keep else None
            place = out[:, :, way * width : (way + 1) * width]
            gru.forward(projected, again, bias_again, start[number], way == 1, place, last[number], kept)
            gates += [kept] if kept is not None else []
        states.append(out)
        x = out
    return x, last, [*gates, *states[:-1]] if keep else []


def backward(
    grad: torch.Tensor, grad_last: torch.Tensor, kept: Params, out: torch.Tensor, x: torch.Tensor,
    start: torch.Tensor, params: Params, has_biases: bool, layers: int, ways: int,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """Gradients of the input, the first states, and the parameters.

    Arguments:
        grad, grad_last: of the results of `forward`; `out` is the first of these.
        kept: what `forward` kept.
    """
    steps, batch, _ = x.shape
    width = start.shape[2]
    given = [x, *kept[layers * ways :]]
    outs = [*kept[layers * ways :], out]
    first, of_layers = torch.empty_like(start, memory_format=torch.contiguous_format), {}
    for layer in reversed(range(layers)):
        flat, grad = given[layer].reshape(steps * batch, -1), grad.contiguous()
        total: torch.Tensor | None = None
        for way in range(ways):
            number = layer * ways + way
            into, again, _, _ = of_layer(params, number, has_biases)
            assert into is not None and again is not None
            part = slice(way * width, (way + 1) * width)
            states = outs[layer][:, :, part]
            inputs, products, first[number] = gru.backward(
                grad[:, :, part], grad_last[number], kept[number], states, again, start[number], way == 1
            )
            rows = inputs.view(steps * batch, -1)
            before = _before(states, start[number], way == 1).reshape(steps * batch, width)
            of_weights = [faster_product(rows.t(), flat), faster_product(products.view(steps * batch, -1).t(), before)]
            of_layers[number] = [*of_weights, rows.sum(0), products.sum((0, 1))] if has_biases else of_weights
            back = faster_product(rows, into)
            total = back if total is None else total.add_(back)
        assert total is not None
        grad = total.view(steps, batch, -1)
    return grad, first, [each for number in range(layers * ways) for each in of_layers[number]]


def _before(states: torch.Tensor, start: torch.Tensor, reverse: bool) -> torch.Tensor:
    """The state that each step began with."""
    return torch.cat((states[1:], start[None])) if reverse else torch.cat((start[None], states[:-1]))
