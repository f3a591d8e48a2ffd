"""Runs eager code rounded otherwise: how far its results move then is how far rounding alone can move them.

A gradient that is zero but for rounding (of a bias before a norm) has other digits in every implementation. To tell
that from a fault, each operation's result is moved by one unit in its last place, up or down, and so is everything
that follows from it: where the program cancels, amplifies or decides by last digits, its results then show it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import torch

from argand.graph.compat import DispatchMode

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_COMPLEX = (torch.complex64, torch.complex128)
# Low bits of the significand that are zero in numbers that people and exact arithmetic make: 1.0, 0.5, 3, 1e8.
_SHORT = {torch.float64: (1 << 24) - 1, torch.float32: (1 << 10) - 1, torch.float16: 7, torch.bfloat16: 1}
# Operations whose results are exact: they move, choose or count, or give back an operand.
_EXACT = frozenset(
    """
_to_copy to clone copy copy_ cat stack index index_select index_put index_put_ _unsafe_index gather embedding
repeat roll flip where maximum minimum amax amin max min topk sort masked_fill masked_fill_ constant_pad_nd
relu relu_ clamp clamp_min clamp_max abs neg sign floor ceil round trunc zeros ones full zeros_like ones_like
full_like fill fill_ zero_ zero empty empty_like empty_strided arange eye scalar_tensor lift_fresh
lift_fresh_copy lift detach slice_scatter select_scatter diagonal_scatter scatter threshold_backward tril triu
heaviside nan_to_num max_pool2d_with_indices embedding_dense_backward new_zeros new_ones new_full new_empty
new_empty_strided set_ resize_ slice_backward select_backward unfold_backward _pin_memory _local_scalar_dense
frexp ldexp
""".split()  # noqa: SIM905 - a table
)
# Correctly rounded: a short result of these is exact, and is left alone.
_ARITHMETIC = frozenset(
    """
add add_ sub sub_ rsub mul mul_ div div_ sum mean mm bmm addmm mv dot convolution cumsum square pow sqrt
linspace logspace rand randn rand_like randn_like uniform_ normal_ bernoulli_ bernoulli native_dropout
remainder fmod lerp addcmul addcmul_ addcdiv addcdiv_ reciprocal rsqrt prod var std
""".split()  # noqa: SIM905 - a table
)


class Nudged(DispatchMode):
    """Moves the result of every operation that rounds by one unit in the last place.

    The direction follows from the digits and the seed alone, so that what is computed twice is the same twice; no
    random number is drawn.

    Arguments:
        seed: another one gives other directions.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        if name in _EXACT or func.is_view:
            return result
        for value in _written(func, args, kwargs or {}):
            self._nudge(value, name)
        if func._schema.is_mutable:
            return result
        for value in result if isinstance(result, (tuple, list)) else (result,):
            self._nudge(value, name)
        return result

    def _nudge(self, value: Any, name: str) -> None:
        if isinstance(value, (tuple, list)):
            for item in value:
                self._nudge(item, name)
            return
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type == "meta" or not value.numel():
            return
        if value.layout is not torch.strided or any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape)):
            return
        if value.dtype in _COMPLEX:
            value = torch.view_as_real(value.resolve_conj())
        if value.dtype not in _BITS or value.is_neg():
            return
        bits = value.view(_BITS[value.dtype])
        low = _SHORT[value.dtype]
        moved = torch.isfinite(value) & (value != 0)
        if name in _ARITHMETIC:
            moved &= (bits & low) != 0
        direction = (((bits ^ (self.seed * 7919)) * 27947) >> 13) & 1
        bits.add_((2 * direction - 1) * moved)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that an operation writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number] if number < len(args) else kwargs.get(argument.name)


@contextlib.contextmanager
def nudged(seed: int) -> Iterator[None]:
    """Eager operations of this thread are rounded otherwise meanwhile; 0 leaves them."""
    with Nudged(seed) if seed else contextlib.nullcontext():
        yield


def shake() -> list[object]:
    """Objects that are kept so that those made later lie elsewhere, and sets of them are walked in another order."""
    chance = random.Random(os.urandom(8))
    kept: list[object] = []
    for _ in range(2000):
        kept.append(bytearray(chance.randrange(1, 600)))
        if chance.random() < 0.5:
            kept.append(type("Kept", (), {})())
    return [item for item in kept if chance.random() < 0.7]
