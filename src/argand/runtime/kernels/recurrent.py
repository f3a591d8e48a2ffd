"""torch's recurrent layers as single operators: their results' sizes follow from a formula, whatever the length.

torch's own metadata of these functions runs step by step. `argand::lstm_layer` is a layer of an LSTM in one direction,
`argand::lstm_layer_keeping` hands out what the backward reads. `argand::recurrence` is any of the functions as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from argand.graph.operators.registration import Operators
from argand.quick_dataclasses import dataclass
from argand.runtime.kernels import gru as gru_steps
from argand.runtime.kernels import gru_layers, lstm

aten = torch.ops.aten
Ints = tuple[int, ...]

FUNCTIONS: dict[Any, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The arguments of a call.

    Fields:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        batch_sizes: of a packed sequence; None for a padded one.
        states: the hidden state, and the cell state of an LSTM.
    """

    kind: str
    input: torch.Tensor
    batch_sizes: torch.Tensor | None
    states: tuple[torch.Tensor, ...]
    params: tuple[torch.Tensor, ...]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        """1, or 2 where the sequence is read both ways."""
        return 2 if self.bidirectional else 1

    @property
    def draws(self) -> bool:
        """Whether the call draws random numbers, for dropout between layers."""
        return self.train and self.dropout != 0 and self.num_layers > 1

    @property
    def steps(self) -> int:
        """How many steps the layers take in all."""
        if self.batch_sizes is not None:
            length = self.batch_sizes.shape[0]
        else:
            length = self.input.shape[1 if self.batch_first else 0]
        return int(length) * self.num_layers * self.directions

    def result_sizes(self) -> tuple[tuple[Ints, Ints], ...]:
        """(size, strides) of the output and the last states.

        Raises:
            ValueError: the arguments do not fit each other, or are of a kind that torch may yet accept.
        """
        shapes = [tuple(state.shape) for state in self.states]
        self._check(shapes)
        output: list[tuple[Ints, Ints]] = []
        width = shapes[0][2] * self.directions
        if self.batch_sizes is not None:
            output.append(((self.input.shape[0], width), (width, 1)))
        else:
            a, b = self.input.shape[:2]
            output.append(((a, b, width), (width, a * width, 1) if self.batch_first else (b * width, width, 1)))
        return (*output, *[(shape, (shape[1] * shape[2], shape[2], 1)) for shape in shapes])

    def _check(self, shapes: list[Ints]) -> None:
        padded = self.batch_sizes is None
        size = tuple(self.input.shape)
        if len(size) != (3 if padded else 2) or any(len(shape) != 3 for shape in shapes):
            raise ValueError("the number of dimensions")
        layers = self.num_layers * self.directions
        batch = size[0 if self.batch_first else 1] if padded else shapes[0][1]
        if self.num_layers < 1 or any(shape[:2] != (layers, batch) for shape in shapes):
            raise ValueError("the size of the state")
        if 0 in size or any(0 in shape for shape in shapes):
            raise ValueError("an empty sequence")
        tensors = (self.input, *self.states, *self.params)
        if any(t.dtype is not self.input.dtype for t in tensors) or not self.input.dtype.is_floating_point:
            raise ValueError("dtypes that differ")
        if self.expected_params() != [tuple(t.shape) for t in self.params]:
            raise ValueError("the sizes of the weights")

    def expected_params(self) -> list[Ints]:
        """The sizes of the weights that the sizes of the states ask for."""
        kept = self.states[0].shape[2]
        hidden = self.states[-1].shape[2]
        rows = _GATES[self.kind] * hidden
        expected: list[Ints] = []
        for layer in range(self.num_layers):
            width = self.input.shape[-1] if layer == 0 else kept * self.directions
            one: list[Ints] = [(rows, width), (rows, kept)]
            one += [(rows,), (rows,)] if self.has_biases else []
            one += [(kept, hidden)] if kept != hidden else []
            expected += one * self.directions
        return expected

    @property
    def keeps(self) -> bool:
        """Whether argand's own kernel computes it, which keeps what its backward reads."""
        width = self.states[0].shape[2]
        fits = self.kind == "gru" and self.batch_sizes is None and isinstance(width, int) and gru_steps.takes(width)
        return fits and self.input.dtype is torch.float32

    def kept_sizes(self) -> list[Ints]:
        """Sizes of what is kept."""
        steps, batch = self.input.shape[:2] if not self.batch_first else self.input.shape[1::-1]
        width = self.states[0].shape[2]
        gates = [(steps, batch, 4 * width)] * (self.num_layers * self.directions)
        return [*gates, *[(steps, batch, self.directions * width)] * (self.num_layers - 1)]

    def operands(self) -> tuple[Any, ...]:
        """The arguments of `argand::recurrence`."""
        return (
            self.kind, self.input, self.batch_sizes, list(self.states), list(self.params), self.has_biases,
            self.num_layers, self.bidirectional, self.batch_first,
        )  # fmt: skip


def recurrence(kind: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Recurrence | None:
    """The arguments of a call of one of FUNCTIONS; None where they are not what torch.nn passes.

    Arguments:
        kind: a value of FUNCTIONS.
    """
    packed = len(args) > 3 and isinstance(args[1], torch.Tensor) and not isinstance(args[3], bool)
    if kwargs or len(args) != 9 or not isinstance(args[0], torch.Tensor):
        return None
    hx, params, *rest = args[2:] if packed else args[1:]
    states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if len(states) != (2 if kind == "lstm" else 1) or not isinstance(params, (tuple, list)):
        return None
    if not all(isinstance(t, torch.Tensor) for t in (*states, *params)):
        return None
    kinds = (bool, int, (float, int), bool, bool, bool)
    if not all(isinstance(value, wanted) for value, wanted in zip(rest, kinds)):  # type: ignore[arg-type]
        return None
    batch_first = False if packed else rest[5]
    has_biases, num_layers, dropout, train, bidirectional = rest[:5]
    return Recurrence(
        kind, args[0], args[1] if packed else None, states, tuple(params), has_biases, num_layers, dropout, train,
        bidirectional, batch_first,
    )  # fmt: skip


# ---------------------------------------------------------------------- operators

_ARGUMENTS = (
    "str kind, Tensor input, Tensor? batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, "
    "bool bidirectional, bool batch_first"
)


@functools.cache
def recurrent_ops() -> Operators:
    """Defines the ops, once per process."""
    layer, back = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
    arguments, gradients = (str(op._schema).partition("(")[2] for op in (layer, back))
    return Operators(
        {
            f"lstm_layer({arguments}": {"CPU": lstm.forward, "Meta": layer},
            f"lstm_layer_keeping({arguments}": {"CPU": lstm.forward_keeping, "Meta": layer},
            f"lstm_layer_backward({gradients}": {"CPU": lstm.backward, "Meta": back},
            f"recurrence({_ARGUMENTS}) -> Tensor[]": {"CPU": _forward, "CUDA": _forward, "Meta": _forward_sizes},
            f"recurrence_backward(Tensor[] grads, {_ARGUMENTS}, bool[] wanted) -> Tensor[]": {
                "CPU": _backward,
                "Meta": _backward_sizes,
            },
            f"recurrence_keeping({_ARGUMENTS}) -> Tensor[]": {"CPU": _keeping, "Meta": _keeping_sizes},
            f"recurrence_backward_from(Tensor[] grads, Tensor[] kept, {_ARGUMENTS}, bool[] wanted) -> Tensor[]": {
                "CPU": _backward_from,
                "Meta": _backward_from_sizes,
            },
        }
    )


_BY_KIND: dict[str, Any] = {kind: function for function, kind in FUNCTIONS.items()}


def _forward(*operands: Any) -> list[torch.Tensor]:
    call = _call(*operands)
    if call.input.device.type == "cpu" and not torch.is_grad_enabled() and call.keeps:
        return _by_own_kernel(call, keep=False)
    state = call.states if call.kind == "lstm" else call.states[0]
    plain = (call.params, call.has_biases, call.num_layers, 0.0, False, call.bidirectional)
    if call.batch_sizes is None:
        return list(_BY_KIND[call.kind](call.input, state, *plain, call.batch_first))
    return list(_BY_KIND[call.kind](call.input, call.batch_sizes, state, *plain))


def _call(
    kind: str, input: torch.Tensor, batch_sizes: torch.Tensor | None, hx: Any, params: Any, has_biases: bool,
    num_layers: int, bidirectional: bool, batch_first: bool,
) -> Recurrence:  # fmt: skip
    """Of the operands of `argand::recurrence`."""
    return Recurrence(
        kind, input, batch_sizes, tuple(hx), tuple(params), has_biases, num_layers, 0.0, False, bidirectional,
        batch_first,
    )  # fmt: skip


def _by_own_kernel(call: Recurrence, *, keep: bool) -> list[torch.Tensor]:
    x = call.input.transpose(0, 1) if call.batch_first else call.input
    plain = (call.has_biases, call.num_layers, call.directions)
    out, last, kept = gru_layers.forward(x, call.states[0], call.params, *plain, keep)
    return [out.transpose(0, 1) if call.batch_first else out, last, *kept]


def _keeping(*operands: Any) -> list[torch.Tensor]:
    return _by_own_kernel(_call(*operands), keep=True)


def _keeping_sizes(*operands: Any) -> list[torch.Tensor]:
    call = _call(*operands)
    kept = [call.input.new_empty(size, device="meta") for size in call.kept_sizes()]
    return [*_forward_sizes(*operands), *kept]


def _backward_from(grads: Any, kept: Any, *rest: Any) -> list[torch.Tensor]:
    *operands, wanted = rest
    call = _call(*operands)
    out, *others = kept
    grad, grad_last = grads
    if call.batch_first:
        out, grad = out.transpose(0, 1), grad.transpose(0, 1)
    x = call.input.transpose(0, 1) if call.batch_first else call.input
    plain = (call.has_biases, call.num_layers, call.directions)
    of_input, first, params = gru_layers.backward(
        grad, grad_last, others, out.contiguous(), x, call.states[0], call.params, *plain
    )  # fmt: skip
    gradients = [of_input.transpose(0, 1) if call.batch_first else of_input, first, *params]
    return [each for each, want in zip(gradients, wanted) if want]


def _backward_from_sizes(grads: Any, kept: Any, *rest: Any) -> list[torch.Tensor]:
    return _backward_sizes(grads, *rest)


def _forward_sizes(*operands: Any) -> list[torch.Tensor]:
    call = _call(*operands)
    dtype = call.input.dtype
    return [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride in call.result_sizes()]


def _backward(grads: Any, *rest: Any) -> list[torch.Tensor]:
    """The forward once more with autograd, which has no kernel of its own for these functions' gradients."""
    *operands, wanted = rest
    call = _call(*operands)
    tensors = (call.input, *call.states, *call.params)
    values = [tensor.detach().requires_grad_(want) for tensor, want in zip(tensors, wanted)]
    with torch.enable_grad():
        split = 1 + len(call.states)
        again = replace(call, input=values[0], states=tuple(values[1:split]), params=tuple(values[split:]))
        results = _forward(*again.operands())
    leaves = [value for value in values if value.requires_grad]
    gradients = torch.autograd.grad(results, leaves, list(grads), materialize_grads=True)
    return [
        _time_major(grad) if call.batch_first and leaf is values[0] else grad.contiguous()
        for grad, leaf in zip(gradients, leaves)
    ]


def _time_major(grad: torch.Tensor) -> torch.Tensor:
    """As autograd lays out the gradient of an input whose batch comes first."""
    return grad.transpose(0, 1).contiguous().transpose(0, 1)


def _backward_sizes(grads: Any, *rest: Any) -> list[torch.Tensor]:
    *operands, wanted = rest
    call = _call(*operands)
    leaves = [tensor for tensor, want in zip((call.input, *call.states, *call.params), wanted) if want]
    gradients = [torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for leaf in leaves]
    return [
        _time_major(grad) if call.batch_first and leaf is call.input else grad for grad, leaf in zip(gradients, leaves)
    ]
