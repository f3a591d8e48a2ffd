"""NVIDIA's device library on the CPU: what each of its functions computes, on numpy arrays.

Triton's interpreter has no external functions. Their symbols are `__nv_<name>` for doubles and `__nv_<name>f` for
floats; results come from torch's CPU kernels, which is what the interpreter's results are compared with.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
_PREFIX = "__nv_"
# Base name -> function of torch, where the names differ.
_TORCH_NAMES: Mapping[str, str] = {
    "fabs": "abs", "abs": "abs", "llabs": "abs", "fmax": "fmax", "fmin": "fmin", "tgamma": "", "rint": "round",
    "nearbyint": "round", "cyl_bessel_i0": "special.i0", "cyl_bessel_i1": "special.i1", "j0": "special.bessel_j0",
    "j1": "special.bessel_j1", "y0": "special.bessel_y0", "y1": "special.bessel_y1", "normcdf": "special.ndtr",
    "normcdfinv": "special.ndtri", "erfcx": "special.erfcx", "isinf": "isinf", "isnan": "isnan",
    "isfinite": "isfinite", "finite": "isfinite", "signbit": "signbit", "powi": "pow", "scalbn": "ldexp",
}  # fmt: skip
_SAME_NAMES = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "ldexp", "lgamma", "log", "log10", "log1p", "log2",
    "nextafter", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
))  # fmt: skip
# What torch has no function for: on doubles, and rounded to the type of the result.
_DOUBLES: Mapping[str, Callable[..., Array]] = {
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "exp10": lambda x: np.power(10.0, x),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2.0)),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2.0)),
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0.0)),
    "logb": lambda x: np.floor(np.log2(np.abs(x))),
    "ilogb": lambda x: np.frexp(x)[1] - 1,
    "round": lambda x: np.trunc(x) + np.trunc(2 * (x - np.trunc(x))),  # halves go away from zero
    "rhypot": lambda x, y: 1.0 / np.hypot(x, y),
    "tgamma": np.vectorize(lambda x: _gamma(x), otypes=[np.float64]),
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0.0, 1.0),
    "fast_fdivide": np.divide,
    "fdiv_rn": np.divide, "ddiv_rn": np.divide, "fmul_rn": np.multiply, "dmul_rn": np.multiply,
    "fadd_rn": np.add, "dadd_rn": np.add, "fsub_rn": np.subtract, "dsub_rn": np.subtract,
    "frcp_rn": np.reciprocal, "drcp_rn": np.reciprocal, "fsqrt_rn": np.sqrt, "dsqrt_rn": np.sqrt,
    "frsqrt_rn": lambda x: 1.0 / np.sqrt(x),
    "remainder": np.vectorize(lambda x, y: _remainder(x, y), otypes=[np.float64]),
}  # fmt: skip
# Of integers, and of bits.
_BITS: Mapping[str, Callable[..., Array]] = {
    "float_as_int": lambda x: x.view(np.int32),
    "float_as_uint": lambda x: x.view(np.uint32),
    "int_as_float": lambda x: x.view(np.float32),
    "uint_as_float": lambda x: x.view(np.float32),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
    "popc": lambda x: _each_word(x, lambda word: word.bit_count()),
    "clz": lambda x: _each_word(x, lambda word: x.itemsize * 8 - word.bit_length()),
    "ffs": lambda x: _each_word(x, lambda word: (word & -word).bit_length()),
    "mulhi": lambda x, y: _high(x, y),
    "umulhi": lambda x, y: _high(x, y),
    "mul64hi": lambda x, y: _high(x, y),
    "umul64hi": lambda x, y: _high(x, y),
    "llrint": np.rint,
    "llround": lambda x: _DOUBLES["round"](x.astype(np.float64)),
}


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except ValueError:
        return math.copysign(math.inf, x) if x == 0 else math.nan
    except OverflowError:
        return math.inf


def _remainder(x: float, y: float) -> float:
    try:
        return math.remainder(x, y)
    except ValueError:
        return math.nan


def _each_word(x: Array, count: Callable[[int], int]) -> Array:
    words = x.view(np.dtype(f"uint{x.itemsize * 8}"))
    return np.array([count(int(word)) for word in words.flat], dtype=np.int32).reshape(x.shape)


def _high(x: Array, y: Array) -> Array:
    """The upper half of the product of two integers."""
    bits = x.itemsize * 8
    pairs = zip(*(part.flat for part in np.broadcast_arrays(x, y)))
    halves = [(int(one) * int(two)) >> bits for one, two in pairs]
    return np.array(halves, dtype=x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


@cache
def _fused(single: bool) -> Callable[..., Array]:
    """`x * y + z`, rounded once: the C library's."""
    kind, name = (ctypes.c_float, "fmaf") if single else (ctypes.c_double, "fma")
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = kind, [kind] * 3
    return np.vectorize(function, otypes=[np.float32 if single else np.float64])


def fma(x: Array, y: Array, z: Array) -> Array:
    """`x * y + z` of floating-point arrays of one dtype, rounded once."""
    if z.dtype in (np.float32, np.float64):
        return _fused(z.dtype == np.float32)(x, y, z) if z.size else x * y + z
    return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(z.dtype)


def _of_torch(path: str) -> Callable[..., Array] | None:
    function: Any = torch
    for part in path.split("."):
        function = getattr(function, part, None)
    if function is None:
        return None
    return lambda *args: function(*(torch.from_numpy(np.ascontiguousarray(arg)) for arg in args)).numpy()


def _candidates(symbol: str) -> list[str]:
    """Names under which a symbol may be known: as it is, without the ending for floats, and so on."""
    name = symbol.removeprefix(_PREFIX)
    endings = [name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("ll")]
    return [*endings, *(ending.removeprefix("fast_") for ending in endings)]


@cache
def function(symbol: str) -> Callable[..., Array] | None:
    """What the device library's `symbol` computes; None when that is not known here."""
    if not symbol.startswith(_PREFIX):
        return None
    for name in _candidates(symbol):
        if name in ("fma", "fma_rn", "fmaf_rn"):
            return fma
        if name in _BITS:
            return _BITS[name]
        if name in _DOUBLES:
            compute = _DOUBLES[name]
            return lambda *args: np.asarray(compute(*(arg.astype(np.float64) for arg in args)))
        path = name if name in _SAME_NAMES else _TORCH_NAMES.get(name, "")
        if path:
            return _of_torch(path)
    return None


def call(symbol: str, args: list[Array], dtype: np.dtype[Any]) -> Array:
    """The result of the device library's `symbol`.

    Raises:
        NotImplementedError: nobody has written down what it computes.
    """
    compute = function(symbol)
    if compute is None:
        raise NotImplementedError(f"the device library's {symbol} is not among those that run on the CPU")
    result = compute(*np.broadcast_arrays(*args))
    return result if result.dtype == dtype else result.astype(dtype)
