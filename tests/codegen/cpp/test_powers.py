"""Powers of floats: within one last place of double's, C's special values, scalar equal to vector bit for bit."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from argand.codegen.cpp.prelude import prelude, words
from argand.runtime import toolchain

KINDS = {"f32x16": 16, "f32x8": 8, "f32x4": 4, "f32": 1}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -1.5, 1e-45, -1e-45]
SPECIAL += [
    3.4e38,
    -3.4e38,
    16777215.0,
    16777216.0,
    -16777217.0,
    2147483648.0,
    1 + 2.0**-23,
    1 - 2.0**-24,
    127.0,
    -149.0,
]


@pytest.fixture(scope="module")
def library():
    text = ""
    for kind, lanes in KINDS.items():
        load = "x[i]" if lanes == 1 else f"load<{kind}>(x + i)"
        store = "z[i] = pow(x[i], y[i]);" if lanes == 1 else f"store(z + i, pow({load}, load<{kind}>(y + i)));"
        text += f"""
extern "C" void pow_{kind}(const f32* x, const f32* y, f32* z, i64 n) {{ for (i64 i = 0; i < n; i += {lanes}) {store} }}"""
    return toolchain.load_text(prelude(words(text)) + text)


def power(library, kind, x, y):
    z = np.empty_like(x)
    address = library.address(f"pow_{kind}")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    function(x.ctypes.data, y.ctypes.data, z.ctypes.data, len(x))
    return z


def pairs():
    rng = np.random.default_rng(0)
    count = 200_000
    x = [
        np.exp(rng.uniform(-100, 88, count)),
        rng.uniform(0, 4, count),
        -rng.uniform(0, 40, count),
        1 + rng.normal(0, 1e-4, count),
    ]
    y = [
        rng.uniform(-3, 3, count),
        rng.uniform(-150, 150, count),
        rng.integers(-30, 30, count),
        rng.normal(0, 1e5, count),
    ]
    special = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    x, y = np.concatenate([*x, special[:, 0]]), np.concatenate([*y, special[:, 1]])
    length = len(x) // 16 * 16
    return x[-length:].astype(np.float32), y[-length:].astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_error_and_special_values(library, kind):
    x, y = pairs()
    z = power(library, kind, x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        rounded = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny)).astype(np.float64)
        off = np.where((z == rounded) | (np.isnan(z) & np.isnan(rounded)), 0.0, np.abs(z - exact) / unit)
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= 0.51, (x[worst], y[worst], z[worst], rounded[worst])
    zero = rounded == 0
    assert np.array_equal(np.signbit(z[zero]), np.signbit(rounded[zero]))


def test_scalar_equals_vector_bit_for_bit(library):
    x, y = pairs()
    found = [power(library, kind, x, y) for kind in KINDS]
    assert all(np.array_equal(found[0], other, equal_nan=True) for other in found[1:])
