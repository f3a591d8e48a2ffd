"""One layer of an LSTM on a CPU, in one direction: argand's own kernels for its steps (`lstm.h`), forward and backward,
or oneDNN's layer, which eager calls.

Which is faster is found by timing a call of each kind. What a forward keeps for the backward tells which one it was.
The kernel takes float32, widths that fill vectors, and weights without projections.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any

import torch

from argand.config import config
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels import background_kernels
from argand.runtime.kernels.products import faster_product
from argand.runtime.kernels.timed_choice import Rivals
from argand.runtime.profile import Kernel

aten = torch.ops.aten
# Timed again and again, a layer finds its weights in the caches: among others it does not, and the kernel packs them.
LAYERS = Rivals("LSTM layers", lambda: False, 0.88, "lstm")
TRAINED = Rivals("LSTM layers with gradients", lambda: True, 0.95, "lstm")
_FUNCTIONS = {"lstm_forward": (9, 7), "lstm_backward": (12, 7)}
_WIDTH = 16  # units that a vector holds at most
_LANES = 32  # columns of a packed panel at most
_MODE = 2  # aten's number of LSTMs
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """The arguments of `aten.mkldnn_rnn_layer`: input (steps, batch, features) whatever `batch_first`, weights of the
    input and of the state, their biases, first states (batch, width)."""

    input: torch.Tensor
    into: torch.Tensor
    again: torch.Tensor
    bias: torch.Tensor
    bias_again: torch.Tensor
    start: torch.Tensor
    start_cell: torch.Tensor
    reverse: bool
    batch_sizes: list[int]
    mode: int
    width: int
    num_layers: int
    has_biases: bool
    bidirectional: bool
    batch_first: bool
    train: bool

    def operands(self) -> tuple[Any, ...]:
        """In order."""
        return tuple(getattr(self, name) for name in self.__slots__)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Steps, rows of the batch, units."""
        return self.input.shape[0], self.input.shape[1], self.width

    @property
    def fits(self) -> bool:
        """Whether argand's own kernel can compute it."""
        plain = self.mode == _MODE and not self.batch_sizes
        units = self.width > 0 and self.width % _WIDTH == 0 and self.again.shape[1] == self.width
        floats = all(each.dtype is torch.float32 for each in (self.input, self.again, self.start, self.start_cell))
        return plain and units and floats and self.input.numel() > 0 and takes_widths()

    @property
    def starts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First states, contiguous."""
        return self.start.contiguous(), self.start_cell.contiguous()

    def project_into(self, out: torch.Tensor) -> None:
        """Products of the input, with the biases: (steps * batch, 4 width)."""
        flat = self.input.reshape(-1, self.input.shape[2])
        faster_product(flat, self.into.t(), self.bias + self.bias_again if self.has_biases else None, out=out)


def takes_widths() -> bool:
    """Whether LSTMs whose units fill vectors can be computed here."""
    return background_kernels.available("avx2", "avx512")


@functools.cache
def _compiled() -> Future[dict[str, Kernel]]:
    """The kernels, being compiled by a thread of their own; nobody waits for them where oneDNN's may be called."""
    patient = config.cpp.own_products is None and all(each.known() is None for each in (LAYERS, TRAINED))
    return background_kernels.compiled("lstm", _FUNCTIONS, _compiled.cache_clear, patient=patient)


def prepare(width: int) -> None:
    """Begin to compile the kernels, if layers of so many units may be computed by them."""
    if width % _WIDTH == 0 and any(map(_wanted, (LAYERS, TRAINED))) and takes_widths():
        _compiled()


def _wanted(rivals: Rivals) -> bool:
    setting = config.cpp.own_products
    return rivals.known() is not False if setting is None else bool(setting)


def forward(*operands: Any) -> Tensors:
    """Results, last states, and a tensor of no elements."""
    layer = Layer(*operands)
    return _by_choice(layer, keep=False) if layer.fits else aten.mkldnn_rnn_layer.default(*operands)


def forward_keeping(*operands: Any) -> Tensors:
    """Results, last states, and what `backward` reads."""
    layer = Layer(*operands)
    return _by_choice(layer, keep=True) if layer.fits else _library(layer, keep=True)


def backward(*operands: Any) -> Tensors:
    """As `aten.mkldnn_rnn_layer_backward`, of what `forward_keeping` kept."""
    *rest, workspace = operands
    if workspace.dtype is torch.uint8:  # oneDNN's
        return aten.mkldnn_rnn_layer_backward.default(*operands)
    layer, given = _of_backward(rest)
    if not _compiled().result():  # of a process that began after the forward, and cannot compile
        return _library_backward(layer, _library(layer, keep=True), *given)
    return _own_backward(layer, rest[7].contiguous(), workspace, *given)


def _of_backward(rest: list[Any]) -> tuple[Layer, list[torch.Tensor | None]]:
    reverse, mode, width, layers, has_biases, train, both, sizes, batch_first = rest[13:]
    operands: list[Any] = [*rest[:7], reverse, sizes, mode, width, layers, has_biases, both, batch_first, train]
    return Layer(*operands), rest[10:13]


def _by_choice(layer: Layer, *, keep: bool) -> Tensors:
    rivals = TRAINED if keep else LAYERS
    if not _wanted(rivals):
        return _library(layer, keep=keep)
    kind, kernels = _kind(layer), _compiled()
    own = rivals.taken(kind) if config.cpp.own_products is None else True
    if own is None and kernels.done():
        return _timed(layer, rivals, kind, keep=keep)
    return _own(layer, keep=keep) if own and kernels.result() else _library(layer, keep=keep)


def _kind(layer: Layer) -> Hashable:
    """What says which is faster; numbers of steps and rows that are alike are of one kind."""
    steps, batch, width = layer.sizes
    return min(steps.bit_length(), 7), batch.bit_length(), layer.input.shape[2], width


def _timed(layer: Layer, rivals: Rivals, kind: Hashable, *, keep: bool) -> Tensors:
    """The results, of the faster one; with gradients where there will be some."""
    results: list[Tensors] = [()]

    def own() -> None:
        out, *last, kept = results[0] = _own(layer, keep=keep)
        if keep:
            _own_backward(layer, out, kept, out, *last)

    def library() -> None:
        results[0] = _library(layer, keep=keep)
        if keep:
            _library_backward(layer, results[0], *results[0][:3])

    if not _compiled().result():
        return _library(layer, keep=keep)
    rivals.run(own, library, kind)
    return results[0]


# ---------------------------------------------------------------------- argand's own


def _own(layer: Layer, *, keep: bool) -> Tensors:
    """Keeps the gates of all steps, then the cells."""
    steps, batch, width = layer.sizes
    rows, x = steps * batch, layer.input
    kept = x.new_empty(rows * (5 if keep else 4) * width)
    gates, cells = _gates_and_cells(kept, rows, width)
    layer.project_into(gates)
    out, last, last_cell = x.new_empty(steps, batch, width), *(torch.empty_like(each) for each in layer.starts)
    room = x.new_empty(4 * width * (width + _LANES))
    tensors = (gates, layer.again.contiguous(), *layer.starts, room, out, cells if keep else last_cell, last, last_cell)
    _compiled().result()["lstm_forward"](*tensors, steps, batch, width, int(layer.reverse), int(keep), 0, 0)
    return out, last, last_cell, kept if keep else x.new_empty(0, dtype=torch.uint8)


def _gates_and_cells(kept: torch.Tensor, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return kept[: rows * 4 * width].view(rows, 4 * width), kept[rows * 4 * width :]


def _own_backward(layer: Layer, out: torch.Tensor, kept: torch.Tensor, *given: torch.Tensor | None) -> Tensors:
    steps, batch, width = layer.sizes
    rows = steps * batch
    grad, grad_last, grad_cell = given
    gates, cells = _gates_and_cells(kept, rows, width)
    start, start_cell = layer.starts
    if grad is not None and (grad.stride(2) != 1 or 0 in grad.stride()):
        grad = grad.contiguous()
    lasts = [torch.zeros_like(start) if each is None else each.contiguous() for each in (grad_last, grad_cell)]
    inputs, first, first_cell = gates.new_empty(rows, 4 * width), torch.empty_like(start), torch.empty_like(start)
    room, carried = (gates.new_empty(count * (width + _LANES)) for count in (4 * width, batch))
    tensors = (out if grad is None else grad, *lasts, gates, cells, layer.again.contiguous(), start_cell, room, carried)
    numbers = (0, 0, 0) if grad is None else (1, grad.stride(0), grad.stride(1))
    kernel = _compiled().result()["lstm_backward"]
    kernel(*tensors, inputs, first, first_cell, steps, batch, width, int(layer.reverse), *numbers)
    flat, bias = layer.input.reshape(rows, -1), inputs.sum(0)
    back = faster_product(inputs, layer.into).view(layer.input.shape)
    weights = [faster_product(inputs.t(), read) for read in (flat, _states_before(layer, out))]
    return back, *weights, bias, bias, first, first_cell


def _states_before(layer: Layer, out: torch.Tensor) -> torch.Tensor:
    """The state that each step began with: a row for each step and row of the batch."""
    start = layer.starts[0].view(1, *out.shape[1:])
    states = (out[1:], start) if layer.reverse else (start, out[:-1])
    return torch.cat(states).view(-1, out.shape[2])


# ---------------------------------------------------------------------- oneDNN's


def _library(layer: Layer, *, keep: bool) -> Tensors:
    """oneDNN hands out what a backward reads only while gradients are recorded; in a compiled forward they are not."""
    operands = layer.operands()
    if not keep:
        return aten.mkldnn_rnn_layer.default(*operands)
    detached = [each.detach() if isinstance(each, torch.Tensor) else each for each in operands]
    with torch.enable_grad():
        results = aten.mkldnn_rnn_layer.default(*detached)
    return results


def _library_backward(layer: Layer, results: Tensors, *given: torch.Tensor | None) -> Tensors:
    *outs, workspace = results
    plain = (layer.reverse, layer.mode, layer.width, layer.num_layers, layer.has_biases, layer.train)
    rest = (layer.bidirectional, layer.batch_sizes, layer.batch_first, workspace)
    gradients = aten.mkldnn_rnn_layer_backward.default(*layer.operands()[:7], *outs, *given, *plain, *rest)
    return gradients
