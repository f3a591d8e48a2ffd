"""How torch dtypes are spelt in generated C++, and what buffers are called there."""

from __future__ import annotations

import math

import torch

from argand.errors import LoweringError
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Element:
    """An element type.

    Arguments:
        name: C++ type of a value in a register ("f32"); bfloat16 and half are their 16 bits ("u16").
        size: bytes in memory.
        kind: "float", "half" (bfloat16 or half), "int", "uint" or "bool".
        memory: C++ type in memory.
    """

    name: str
    size: int
    kind: str
    memory: str


_ELEMENTS = {
    torch.float32: Element("f32", 4, "float", "f32"),
    torch.float64: Element("f64", 8, "float", "f64"),
    torch.bfloat16: Element("u16", 2, "half", "u16"),
    torch.float16: Element("u16", 2, "half", "u16"),
    torch.int8: Element("i8", 1, "int", "i8"),
    torch.int16: Element("i16", 2, "int", "i16"),
    torch.int32: Element("i32", 4, "int", "i32"),
    torch.int64: Element("i64", 8, "int", "i64"),
    torch.uint8: Element("u8", 1, "uint", "u8"),
    torch.uint16: Element("u16", 2, "uint", "u16"),
    torch.uint32: Element("u32", 4, "uint", "u32"),
    torch.uint64: Element("u64", 8, "uint", "u64"),
    torch.bool: Element("bool", 1, "bool", "bool"),
}


def element(dtype: torch.dtype) -> Element:
    """How `dtype` is spelt. Raises LoweringError for a dtype that kernels do not know."""
    spelling = _ELEMENTS.get(dtype)
    if spelling is None:
        raise LoweringError(f"C++ kernels cannot compute with {dtype}", remedy="lower the op to an ATen kernel instead")
    return spelling


def vector_type(dtype: torch.dtype, lanes: int) -> str:
    """C++ vector type of `lanes` values; booleans are loaded as bytes."""
    spelling = element(dtype)
    return f"{'i8' if spelling.kind == 'bool' else spelling.name}x{lanes}"


def number(value: float | int | bool, dtype: torch.dtype) -> str:
    """A C++ expression for the constant `value`, rounded to `dtype` as torch rounds it, without its type's name."""
    kind = element(dtype).kind
    if kind == "bool":
        return "true" if value else "false"
    if kind == "half":
        raw = torch.tensor(float(value), dtype=dtype).view(torch.int16).item()
        return f"{int(raw) & 0xFFFF:#06x}"
    if kind == "float":
        return _float(float(value))
    integer = int(value)
    bits = 8 * element(dtype).size
    integer &= (1 << bits) - 1
    if kind == "int" and integer >> (bits - 1):
        integer -= 1 << bits
    if integer == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    suffix = "ULL" if integer >= 1 << 63 else "LL" if abs(integer) >= 1 << 31 else ""
    return f"{integer}{suffix}"


def _float(value: float) -> str:
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return repr(value)


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A C++ expression of type `element(dtype).name`: `f32(0.5)`."""
    return f"{element(dtype).name}({number(value, dtype)})"


def limit(dtype: torch.dtype, low: bool) -> float | int:
    """The least (or greatest) value of `dtype`: where a maximum (or minimum) starts."""
    if dtype.is_floating_point:
        return -math.inf if low else math.inf
    if dtype == torch.bool:
        return int(not low)
    info = torch.iinfo(dtype)
    return int(info.min if low else info.max)


@dataclass(slots=True)
class Memory:
    """How a buffer is reached.

    Arguments:
        name: C++ pointer or array; for a register, the variable.
        dtype: of its elements.
        register: a single value, not memory.
        lanes: how many of each element there are, side by side: rows of a kernel whose lanes run across them.
    """

    name: str
    dtype: torch.dtype
    register: bool = False
    lanes: int = 1
