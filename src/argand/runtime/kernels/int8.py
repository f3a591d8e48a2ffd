"""Linear layers whose weights are integers of 8 bits: `argand::int8_scales`, `pack_int8` and `int8_linear`.

A column of a weight is `integers * scale`, the scale being its largest magnitude over 127. "weight_only" multiplies the
rows of floats with the integers; "dynamic" makes integers of each row in the same way, whose products with the weight's
are added up exactly. The kernels (`int8.h`) are compiled while the first graph with such a layer is; without a compiler
torch computes the same.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import Any

import torch

from argand.graph.operators.registration import Operators
from argand.runtime.kernels import background_kernels
from argand.runtime.profile import Kernel

ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")  # as `int8.h` counts them
MOST_TERMS = 1 << 16  # of a sum of products of integers that has room in 32 bits
_PANEL, _GROUP = 32, 4  # columns that lie together, and terms of each of these
_LARGEST = 127.0
_LEAST_SCALE = 2.0**-120
_OFFSET = 128  # added to the integers of weights where rows are integers, too
_FUNCTIONS = {
    f"{mode}_{dtype}": (6, 9) for mode in ("weight_only", "dynamic") for dtype in ("float32", "bfloat16")
}  # C functions, and how many tensors and numbers they take


@functools.cache
def _compiled() -> Future[dict[str, Kernel]]:
    return background_kernels.compiled("int8", _FUNCTIONS, _compiled.cache_clear)


def prepare() -> None:
    """Begin to compile the kernels."""
    _compiled()


@functools.cache
def int8_ops() -> Operators:
    """Defines the ops, once per process."""
    return Operators(
        {
            "int8_scales(Tensor weight) -> Tensor": {"CompositeExplicitAutograd": scales_of, "Meta": _scales_size},
            "pack_int8(Tensor weight, Tensor scales, bool dynamic) -> Tensor": {
                "CompositeExplicitAutograd": packed,
                "Meta": packed_size,
            },
            "int8_linear(Tensor x, Tensor weight, Tensor scales, Tensor? bias, Tensor? other, int columns, "
            "bool dynamic, str activation) -> Tensor": {"CPU": _linear, "Meta": _linear_size},
        }
    )


# ---------------------------------------------------------------------- weights


def scales_of(weight: torch.Tensor) -> torch.Tensor:
    """One scale for each column of a matrix (terms, columns), and zeros up to whole panels."""
    largest = weight.detach().float().abs().amax(0)
    scales = torch.zeros(_whole(weight.shape[1], _PANEL), dtype=torch.float32, device=weight.device)
    torch.div(largest, _LARGEST, out=scales[: weight.shape[1]]).clamp_(min=_LEAST_SCALE)
    return scales


def packed(weight: torch.Tensor, scales: torch.Tensor, dynamic: bool) -> torch.Tensor:
    """The integers of a matrix (terms, columns), panel by panel."""
    terms, columns = weight.shape
    group = _GROUP if dynamic else 1
    rows = weight.detach().t().float() / scales[:columns, None]
    whole = scales.new_zeros(scales.shape[0], _whole(terms, group))
    whole[:columns, :terms] = rows.round_().clamp_(-_LARGEST, _LARGEST).nan_to_num_(nan=0.0)
    panels = whole.view(-1, _PANEL, whole.shape[1] // group, group).permute(0, 2, 1, 3)
    integers = panels + _OFFSET if dynamic else panels
    return integers.to(_dtype(dynamic)).reshape(panels.shape[0], -1)


def packed_size(weight: torch.Tensor, scales: torch.Tensor, dynamic: bool) -> torch.Tensor:
    """What `packed` returns, on `meta`."""
    terms = _whole(weight.shape[0], _GROUP if dynamic else 1)
    panels = _whole(weight.shape[1], _PANEL) // _PANEL
    return torch.empty((panels, terms * _PANEL), dtype=_dtype(dynamic), device="meta")


def integers_of(weight: torch.Tensor, terms: int, columns: int, dynamic: bool) -> torch.Tensor:
    """The matrix (terms, columns) of integers that was packed, as floats of double precision."""
    group = _GROUP if dynamic else 1
    panels = weight.view(weight.shape[0], -1, _PANEL, group).permute(0, 2, 1, 3)
    whole = panels.reshape(weight.shape[0] * _PANEL, -1).double() - (_OFFSET if dynamic else 0)
    return whole[:columns, :terms].t()


def _dtype(dynamic: bool) -> torch.dtype:
    return torch.uint8 if dynamic else torch.int8


def _whole(count: int, of: int) -> int:
    return (count + of - 1) // of * of


def _scales_size(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(_whole(weight.shape[1], _PANEL), dtype=torch.float32, device="meta")


# ---------------------------------------------------------------------- products


def int8_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None,
    other: torch.Tensor | None, columns: int, dynamic: bool, activation: str, *, out: torch.Tensor,
) -> None:  # fmt: skip
    """`activation(x @ (weight * scales) + bias) + other`, in `out`.

    Arguments:
        x: rows (m, terms) of float32 or bfloat16.
        weight, scales: as `packed` and `scales_of` give them.
        bias, other, out: of the dtype of `x`; a row, or matrices (m, columns).
        dynamic: the rows are made integers.
        activation: one of `ACTIVATIONS`.
    """
    kind = "dynamic" if dynamic else "weight_only"
    kernel = _compiled().result().get(f"{kind}_{str(x.dtype).removeprefix('torch.')}")
    if kernel is None:
        out.copy_(_by_torch(x, weight, scales, bias, other, columns, dynamic, activation))
        return
    x, bias = x if x.stride(1) == 1 else x.contiguous(), bias if bias is None else bias.contiguous()
    other = other if other is None or other.stride(1) == 1 else other.contiguous()
    added = (scales if bias is None else bias, scales if other is None else other)
    numbers = (
        x.shape[0], columns, x.shape[1], x.stride(0), 0 if other is None else other.stride(0), out.stride(0),
        int(bias is not None), int(other is not None), ACTIVATIONS.index(activation),
    )  # fmt: skip
    kernel(x, weight, scales, *added, out, *numbers)


def _linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: Any, other: Any, columns: int, *rest: Any
) -> torch.Tensor:
    out = _linear_size(x, weight, scales, bias, other, columns)
    int8_linear(x, weight, scales, bias, other, columns, *rest, out=out)
    return out


def _linear_size(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: Any, other: Any, columns: int, *_: Any
) -> torch.Tensor:
    return x.new_empty((x.shape[0], columns))


def _by_torch(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None,
    other: torch.Tensor | None, columns: int, dynamic: bool, activation: str,
) -> torch.Tensor:  # fmt: skip
    """What the kernels compute, in double precision."""
    integers = integers_of(weight, x.shape[1], columns, dynamic)
    rows, factor = x.double(), scales[:columns].double()
    if dynamic:
        of_rows, rows = rounded_rows(x)
        factor = factor * of_rows[:, None].double()
    sums = rows @ integers * factor
    sums = sums if bias is None else sums + bias.double()
    sums = _ACTIVATED[activation](sums)
    return (sums if other is None else sums + other.double()).to(x.dtype)


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of rows, and their integers as floats of double precision."""
    x = x.float()
    scales = (x.abs().amax(1) / _LARGEST).clamp_(min=_LEAST_SCALE)
    integers = (x * (1.0 / scales)[:, None]).round_().clamp_(-_LARGEST, _LARGEST).double()
    wrong = ~x.isfinite().all(1)
    return scales.masked_fill(wrong, float("nan")), integers.masked_fill(wrong[:, None], 0.0)


_ACTIVATED = {
    "none": lambda x: x,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
}
