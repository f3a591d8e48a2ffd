"""How torch dtypes and numbers are spelt in Triton."""

from __future__ import annotations

import math

import torch

from argand.errors import LoweringError
from argand.quick_dataclasses import dataclass

# dtype -> (Triton's type of a value, type of a pointer's element in a signature)
_TYPES = {
    torch.float32: ("tl.float32", "fp32"),
    torch.float64: ("tl.float64", "fp64"),
    torch.bfloat16: ("tl.bfloat16", "bf16"),
    torch.float16: ("tl.float16", "fp16"),
    torch.int8: ("tl.int8", "i8"),
    torch.int16: ("tl.int16", "i16"),
    torch.int32: ("tl.int32", "i32"),
    torch.int64: ("tl.int64", "i64"),
    torch.uint8: ("tl.uint8", "u8"),
    torch.uint16: ("tl.uint16", "u16"),
    torch.uint32: ("tl.uint32", "u32"),
    torch.uint64: ("tl.uint64", "u64"),
    torch.bool: ("tl.int1", "i1"),
}


def value_type(dtype: torch.dtype) -> str:
    """Triton's type of a value. Raises LoweringError for a dtype that kernels do not know."""
    return _type(dtype)[0]


def pointer_type(dtype: torch.dtype) -> str:
    """The type of a pointer to `dtype` in a kernel's signature."""
    return "*" + _type(dtype)[1]


def _type(dtype: torch.dtype) -> tuple[str, str]:
    spelling = _TYPES.get(dtype)
    if spelling is None:
        raise LoweringError(
            f"Triton kernels cannot compute with {dtype}", remedy="lower the op to an ATen kernel instead"
        )
    return spelling


@dataclass(frozen=True, slots=True)
class PositionType:
    """Triton's type of positions.

    Arguments:
        text: as source.
        dtype: None where each variant of a kernel has its own.
    """

    text: str
    dtype: torch.dtype | None

    def cast(self) -> str:
        """What makes 32-bit numbers positions."""
        return "" if self.dtype is torch.int32 else f".to({self.text})"


NARROW = PositionType("tl.int32", torch.int32)
WIDE = PositionType("tl.int64", torch.int64)
VARIES = PositionType("POSITION", None)
WIDE_FLAG = "WIDE"  # the constant by which a kernel whose positions vary has them in 64 bits
POSITION_LINE = f"POSITION: tl.constexpr = tl.int64 if {WIDE_FLAG} else tl.int32"


def number(value: float | int | bool, dtype: torch.dtype) -> str:
    """A number of `dtype` as Python source."""
    if dtype is torch.bool:
        return str(bool(value))
    if dtype.is_floating_point:
        value = float(value)
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    value = int(value)
    info = torch.iinfo(dtype)
    value = (value - info.min) % (info.max - info.min + 1) + info.min  # wraps around as in memory
    return f"({value + 1} - 1)" if value == torch.iinfo(torch.int64).min else str(value)


def constant(value: float | int | bool, dtype: torch.dtype) -> str:
    """A scalar tensor of `dtype`."""
    return f"tl.full([], {number(value, dtype)}, {value_type(dtype)})"
