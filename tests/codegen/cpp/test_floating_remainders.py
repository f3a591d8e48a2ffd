"""The remainder of floats is C's, bit for bit: quotients small and huge, special values, scalars and vectors."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from argand.codegen.cpp.prelude import prelude, words
from argand.runtime import toolchain

KINDS = {"f32x16": 16, "f32x8": 8, "f32x4": 4, "f32": 1, "f64x8": 8, "f64x4": 4, "f64": 1}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.1, -0.1, 3.0, -3.0, 1e-45, -1e-45, 1e-38, 3.4e38, 8388608.0]


@pytest.fixture(scope="module")
def library():
    text = ""
    for kind, lanes in KINDS.items():
        element = kind[:3]
        one = "z[i] = fmod(x[i], y[i]);"
        many = f"store(z + i, fmod(load<{kind}>(x + i), load<{kind}>(y + i)));"
        text += f"""
extern "C" void fmod_{kind}(const {element}* x, const {element}* y, {element}* z, i64 n) {{
  for (i64 i = 0; i < n; i += {lanes}) {one if lanes == 1 else many}
}}"""
    return toolchain.load_text(prelude(words(text)) + text)


def pairs(dtype):
    rng = np.random.default_rng(0)
    count = 100_000
    wide = 38 if dtype is np.float32 else 290
    y = 10 ** rng.uniform(-wide, wide, count)
    near = rng.integers(1, 1 << 22, count) * y * (1 + rng.integers(-2, 3, count) * np.finfo(dtype).eps)  # of multiples
    x = [near, y * 10 ** rng.uniform(-3, 9, count), 10 ** rng.uniform(-wide, wide, count), rng.uniform(-50, 50, count)]
    y = [y, y, y, rng.uniform(-5, 5, count)]
    special = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = (np.concatenate([*part, special[:, place]]).astype(dtype) for place, part in enumerate((x, y)))
    length = len(x) // 16 * 16
    return x[-length:].copy(), y[-length:].copy()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_that_of_c(library, kind):
    x, y = pairs(np.float32 if kind.startswith("f32") else np.float64)
    z = np.empty_like(x)
    address = library.address(f"fmod_{kind}")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    function(x.ctypes.data, y.ctypes.data, z.ctypes.data, len(x))
    with np.errstate(all="ignore"):
        exact = np.fmod(x, y)
    wrong = ~((z == exact) & (np.signbit(z) == np.signbit(exact))) & ~(np.isnan(z) & np.isnan(exact))
    assert not wrong.any(), list(zip(x[wrong], y[wrong], z[wrong], exact[wrong]))[:5]
