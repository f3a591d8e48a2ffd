"""The steps of a GRU on a CPU: one kernel forward, one backward (`gru.h`), for float32 and widths that fill vectors."""

from __future__ import annotations

import functools
from concurrent.futures import Future

import torch

from argand.runtime.kernels import background_kernels
from argand.runtime.profile import Kernel

_FUNCTIONS = {"gru_forward": (8, 7), "gru_backward": (11, 7)}
_WIDTH = 16  # units that a vector holds at most
_LANES = 32  # columns of a packed panel at most


def takes(width: int) -> bool:
    """Whether GRUs of so many units are computed here."""
    return width % _WIDTH == 0 and width > 0 and background_kernels.available("avx2", "avx512")


@functools.cache
def _compiled() -> Future[dict[str, Kernel]]:
    return background_kernels.compiled("gru", _FUNCTIONS, _compiled.cache_clear)


def prepare() -> None:
    """Begin to compile the kernels."""
    _compiled()


def forward(
    given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, start: torch.Tensor, reverse: bool,
    out: torch.Tensor, last: torch.Tensor, gates: torch.Tensor | None,
) -> None:  # fmt: skip
    """All steps of one layer in one direction.

    Arguments:
        given: (steps, batch, 3 width), contiguous: products of the input, with their bias.
        weight, bias: of the state.
        start: the first state.
        out: (steps, batch, width), of any strides but the last; gets the states.
        last: gets the last state.
        gates: (steps, batch, 4 width), gets what the backward reads; None where there will be none.
    """
    steps, batch, _ = given.shape
    width = start.shape[1]
    kernel = _compiled().result().get("gru_forward")
    bias = given.new_zeros(3 * width) if bias is None else bias.contiguous()
    if kernel is None:
        return _forward_by_steps(given, weight, bias, start, reverse, out, last, gates)
    packed = given.new_empty(3 * width * (width + _LANES))
    kept = packed if gates is None else gates
    numbers = (steps, batch, width, int(reverse), int(gates is not None), out.stride(0), out.stride(1))
    kernel(given, weight.contiguous(), bias, start.contiguous(), packed, out, last, kept, *numbers)
    return None


def backward(
    grads: torch.Tensor, grad_last: torch.Tensor, gates: torch.Tensor, out: torch.Tensor, weight: torch.Tensor,
    start: torch.Tensor, reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of the products of the input, of those of the states (steps, batch, 3 width), and of the first state.

    Arguments:
        grads: of `out`; with its strides.
    """
    steps, batch, width = out.shape
    kernel = _compiled().result().get("gru_backward")
    if kernel is None:
        return _backward_by_steps(grads, grad_last, gates, out, weight, start, reverse)
    packed, carried = (gates.new_empty(count * (width + _LANES)) for count in (3 * width, batch))
    inputs, states = gates.new_empty(steps, batch, 3 * width), gates.new_empty(steps, batch, 3 * width)
    first = torch.empty_like(start, memory_format=torch.contiguous_format)
    numbers = (steps, batch, width, int(reverse), 1, out.stride(0), out.stride(1))
    tensors = (grads, grad_last.contiguous(), gates, out, weight.contiguous(), start.contiguous(), packed, carried)
    kernel(*tensors, inputs, states, first, *numbers)
    return inputs, states, first


# ----------------------------------------------------------------------- where the kernels do not compile


def _order(steps: int, reverse: bool) -> list[int]:
    return list(reversed(range(steps))) if reverse else list(range(steps))


def _forward_by_steps(
    given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, start: torch.Tensor, reverse: bool,
    out: torch.Tensor, last: torch.Tensor, gates: torch.Tensor | None,
) -> None:  # fmt: skip
    state = start
    for t in _order(given.shape[0], reverse):
        x, y = given[t].chunk(3, 1), torch.addmm(bias, state, weight.t()).chunk(3, 1)
        r, z = (x[0] + y[0]).sigmoid(), (x[1] + y[1]).sigmoid()
        n = (x[2] + r * y[2]).tanh()
        state = (state - n) * z + n
        out[t] = state
        if gates is not None:
            gates[t] = torch.cat((r, z, n, y[2]), 1)
    last.copy_(state)


def _backward_by_steps(
    grads: torch.Tensor, grad_last: torch.Tensor, gates: torch.Tensor, out: torch.Tensor, weight: torch.Tensor,
    start: torch.Tensor, reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    order, carried = _order(out.shape[0], reverse), grad_last
    inputs, states = (gates.new_empty(*out.shape[:2], 3 * out.shape[2]) for _ in range(2))
    for number in reversed(range(len(order))):
        t = order[number]
        old = out[order[number - 1]] if number else start
        r, z, n, a = gates[t].chunk(4, 1)
        d = carried + grads[t]
        dn, dz = d * (1 - z) * (1 - n * n), d * (old - n) * z * (1 - z)
        dr = dn * a * r * (1 - r)
        inputs[t], states[t] = torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn * r), 1)
        carried = d * z + states[t] @ weight
    return inputs, states, carried
