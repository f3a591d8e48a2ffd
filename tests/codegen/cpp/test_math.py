"""The prelude's elementary functions against wider references: errors in ulp, special values, scalar equal to vector bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from argand.codegen.cpp.prelude import prelude, words
from argand.runtime import toolchain

# name -> (largest error allowed in ulp for float32, float64; where to look)
BOUNDS = {
    "exp": (1.01, 1.0, (-110, 95)),
    "exp2": (1.1, 1.2, (-155, 130)),
    "expm1": (2.0, 2.0, (-30, 90)),
    "log": (1.0, 1.0, (0, 1e30)),
    "log2": (1.7, 1.7, (0, 1e30)),
    "log10": (1.7, 1.7, (0, 1e30)),
    "log1p": (1.7, 1.7, (-1, 1e10)),
    "tanh": (2.5, 1.7, (-12, 12)),
    "sigmoid": (3.1, 2.5, (-80, 80)),
    "erf": (2.5, 1.7, (-5, 5)),
    "erfc": (0.51, 8.0, (-5, 9)),
    "sin": (1.7, 1.0, (-29000, 29000)),
    "cos": (1.7, 1.0, (-29000, 29000)),
    "tan": (3.2, 1.0, (-2000, 2000)),
    "asin": (2.0, 1.0, (-1, 1)),
    "acos": (2.0, 1.0, (-1, 1)),
    "atan": (2.0, 1.0, (-50, 50)),
    "sinh": (0.51, 2.5, (-60, 60)),
    "cosh": (0.51, 2.0, (-60, 60)),
    "asinh": (0.51, 2.0, (-1e6, 1e6)),
    "acosh": (0.51, 2.0, (1, 1e6)),
    "atanh": (0.51, 2.0, (-1, 1)),
    "sqrt": (0.5001, 0.5001, (0, 1e30)),
    "rsqrt": (1.5, 1.5, (0, 1e30)),
}
# Of floats alone: the same.
SPECIAL_FUNCTIONS = {
    "lgamma": (2.0, (-30, 200)),
    "digamma": (0.51, (-30, 200)),
    "trigamma": (0.51, (-30, 200)),
    "erfinv": (0.51, (-1, 1)),
    "ndtri": (0.51, (0, 1)),
    "erfcx": (0.51, (-9, 60)),
    "log_ndtr": (0.51, (-60, 12)),
    "modified_bessel_i0": (0.51, (-88, 88)),
    "modified_bessel_i1": (0.51, (-88, 88)),
    "i0e": (0.51, (-200, 200)),
    "i1e": (0.51, (-200, 200)),
}
REFERENCES = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}


def reference(name, x):
    """The function in a wider type: float64 for float32, 80 bits for float64."""
    wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    with np.errstate(all="ignore"):
        if name in ("erf", "erfc"):
            if x.dtype == np.float64:
                import mpmath

                function = getattr(mpmath, name)
                with mpmath.workdps(30):
                    return np.array([np.longdouble(str(function(mpmath.mpf(float(v))))) for v in x])
            return getattr(torch.special, name)(torch.from_numpy(wide)).numpy()
        return REFERENCES.get(name, getattr(np, name, None))(wide)


@pytest.fixture(scope="module")
def library():
    text = ""
    for name in SPECIAL_FUNCTIONS:
        text += f"""
extern "C" void {name}_f32x16(const f32* x, f32* y, i64 n) {{
  for (i64 i = 0; i < n; i += 16) store(y + i, {name}(load<f32x16>(x + i)));
}}
extern "C" void {name}_f32(const f32* x, f32* y, i64 n) {{ for (i64 i = 0; i < n; ++i) y[i] = {name}(x[i]); }}"""
    for name in BOUNDS:
        for kind, lanes in (("f32", 16), ("f64", 8), ("f32", 8), ("f32", 4)):
            text += f"""
extern "C" void {name}_{kind}x{lanes}(const {kind}* x, {kind}* y, i64 n) {{
  for (i64 i = 0; i < n; i += {lanes}) store(y + i, {name}(load<{kind}x{lanes}>(x + i)));
}}"""
        for kind in ("f32", "f64"):
            text += f"""
extern "C" void {name}_{kind}(const {kind}* x, {kind}* y, i64 n) {{ for (i64 i = 0; i < n; ++i) y[i] = {name}(x[i]); }}"""
    return toolchain.load_text(prelude(words(text)) + text)


def run(library, name, kind, x):
    y = np.empty_like(x)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        library.address(f"{name}_{kind}")
    )
    function(x.ctypes.data, y.ctypes.data, len(x))
    return y


def points(name, dtype, count):
    """Dense over the interesting range, dense in exponents, and around the places where a formula changes."""
    low, high = SPECIAL_FUNCTIONS[name][1] if name in SPECIAL_FUNCTIONS else BOUNDS[name][2]
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    spread = np.exp(rng.uniform(np.log(float(info.smallest_subnormal)), np.log(max(abs(low), abs(high))), count // 3))
    parts = [rng.uniform(low, high, count // 3), spread, -spread, rng.uniform(-2, 2, count // 3)]
    for centre in (0.5, 0.625, 1.0, 0.7071067811865476, 1.4142135623730951, 3.95, 88.7, -103.97, -87.3, 0.693147):
        parts.append(centre + np.linspace(-1e-3, 1e-3, 512))
    x = np.concatenate(parts).astype(dtype)
    x = x[(x >= low) & (x <= high)]
    return x[: len(x) // 64 * 64].copy()


def errors(y, exact):
    """In units of the last place of the result."""
    info = np.finfo(y.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(y.dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), info.tiny).astype(y.dtype)).astype(exact.dtype)
        off = np.abs(y.astype(exact.dtype) - exact) / unit
        off[(y == rounded) | (np.isnan(y) & np.isnan(rounded))] = 0
    return off


@pytest.mark.parametrize("name", BOUNDS)
def test_error_float32(library, name):
    x = points(name, np.float32, 300_000)
    y = run(library, name, "f32x16", x)
    off = errors(y, reference(name, x))
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= BOUNDS[name][0], (x[worst], y[worst])


@pytest.mark.parametrize("name", BOUNDS)
def test_error_float64(library, name):
    x = points(name, np.float64, 3_000 if name in ("erf", "erfc") else 100_000)
    y = run(library, name, "f64x8", x)
    off = errors(y, reference(name, x))
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= BOUNDS[name][1], (x[worst], y[worst])


@pytest.mark.parametrize("name", SPECIAL_FUNCTIONS)
def test_special_functions_of_floats(library, name):
    x = points(name, np.float32, 60_000)
    function = {"lgamma": torch.lgamma, "trigamma": lambda x: torch.polygamma(1, x)}.get(name) or getattr(
        torch.special, name
    )
    y = run(library, name, "f32x16", x)
    off = errors(y, function(torch.from_numpy(x.astype(np.float64))).numpy())
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= SPECIAL_FUNCTIONS[name][0], (x[worst], y[worst])
    assert np.array_equal(y, run(library, name, "f32", x), equal_nan=True)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.0, -2.0, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1e5]


@pytest.mark.parametrize("name", BOUNDS)
def test_special_values(library, name):
    x = np.array(SPECIAL, dtype=np.float32)
    y = run(library, name, "f32x16", x)
    exact = reference(name, x).astype(np.float32)
    nan = np.isnan(exact)
    assert np.array_equal(np.isnan(y), nan), list(zip(x, y, exact))
    infinite = np.isinf(exact) | (exact == 0)
    assert np.array_equal(y[infinite], exact[infinite]), list(zip(x, y, exact))
    zero = (exact == 0) & (x == 0)
    assert np.array_equal(np.signbit(y[zero]), np.signbit(exact[zero])), list(zip(x, y, exact))


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_limits_are_reached(library, name):
    """What is multiplied by 1 + erf(x) or 1 - tanh(x) vanishes where these do."""
    x = np.geomspace({"erf": 3.95, "tanh": 9.1}[name], 3e38, 4096).astype(np.float32)
    assert np.array_equal(run(library, name, "f32x16", x), np.ones_like(x))
    assert np.array_equal(run(library, name, "f32x16", -x), -np.ones_like(x))


@pytest.mark.parametrize("name", BOUNDS)
def test_scalar_equals_vector_bit_for_bit(library, name):
    x = np.concatenate([points(name, np.float32, 30_000), np.array(SPECIAL * 4, dtype=np.float32)])
    wide = run(library, name, "f32x16", x).view(np.int32)
    for kind in ("f32", "f32x8", "f32x4"):
        other = run(library, name, kind, x).view(np.int32)
        nan = np.isnan(wide.view(np.float32))
        assert np.array_equal(nan, np.isnan(other.view(np.float32)))
        assert np.array_equal(wide[~nan], other[~nan]), kind
    x = np.concatenate([points(name, np.float64, 10_000), np.array(SPECIAL * 4, dtype=np.float64)])
    wide, other = run(library, name, "f64x8", x), run(library, name, "f64", x)
    assert np.array_equal(wide, other, equal_nan=True)
