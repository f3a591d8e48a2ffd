"""Small functions of numpy arrays: name -> (function, its arguments)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

X = np.arange(6.0, dtype=np.float32).reshape(2, 3) + 1
D = np.linspace(-2, 2, 12).reshape(3, 4)
I = np.arange(6).reshape(2, 3)
B = np.array([[True, False, True], [False, True, True]])
V = np.array([3.0, 1.0, 2.0, 5.0])


def _augmented(x: Any) -> Any:
    x += 1
    x *= 2
    return x


def _assigned(x: Any) -> Any:
    x[0] = 7
    x[:, 1] = x[:, 0] * 2
    return x.sum()


def _view_written(x: Any) -> Any:
    row = x[1]
    row -= 3
    return row


def _masked(x: Any) -> Any:
    y = x.copy()
    y[y > 2] = 0
    return y


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _normalised(x: Any) -> Any:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def _rows(x: Any) -> Any:
    total = 0
    for row in x:
        total = total + row * 2
    return total


def _through_torch(x: Any) -> Any:
    t = torch.from_numpy(x)
    return torch.relu(t - 2).numpy() + 1


def _tensor_argument(t: torch.Tensor) -> Any:
    return torch.from_numpy(np.sin(t.numpy()) * 2) + t


def _attributes(x: Any) -> Any:
    return x.reshape(x.shape[1], -1) * x.ndim + x.size if x.dtype == np.float32 else x


def _grid(x: Any) -> Any:
    a, b = np.meshgrid(x[0], x[1])
    return a * b


def _branch(x: Any) -> Any:
    return x + 1 if isinstance(x, np.ndarray) and len(x) == 2 else x


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add_int": (lambda x: x + 1, (X,)),
    "add_float": (lambda x: x + 1.5, (X,)),
    "int_plus_float": (lambda x: x + 0.5, (I,)),
    "uint8_plus_int": (lambda x: x + 3, (I.astype(np.uint8),)),
    "float32_times_float64_scalar": (lambda x: x * np.float64(2), (X,)),
    "float32_scalar": (lambda x: x * np.float32(3), (D,)),
    "float16": (lambda x: x * 2 + 1, (X.astype(np.float16),)),
    "mixed": (lambda x, y: x + y, (X, I)),
    "bool_arithmetic": (lambda x: x * 2, (B,)),
    "divide_ints": (lambda x: x / 2, (I,)),
    "floor_divide": (lambda x: x // 2 + x % 4, (I,)),
    "floor_divide_float": (lambda x: x // 0.7, (D,)),
    "power": (lambda x: x**2 + 2**x, (X,)),
    "negative_absolute": (lambda x: abs(-x), (D,)),
    "compare": (lambda x: (x > 2) & (x <= 5) | (x == 1), (X,)),
    "invert": (lambda x: ~x, (B,)),
    "ufuncs": (lambda x: np.sin(x) + np.cos(x) * np.exp(x) - np.tanh(x), (D,)),
    "logs": (lambda x: np.log(x) + np.log1p(x) + np.sqrt(x) + np.log2(x), (X,)),
    "maximum": (lambda x: np.maximum(x, 0) - np.minimum(x, 0.5), (D,)),
    "floor_ceil": (lambda x: np.floor(x) + np.ceil(x) + np.round(x, 1) + np.trunc(x), (D,)),
    "hypot": (lambda x, y: np.hypot(x, y) + np.arctan2(x, y), (X, X)),
    "isnan": (lambda x: np.isnan(x) | np.isfinite(x), (D,)),
    "sign_square": (lambda x: np.sign(x) * np.square(x), (D,)),
    "logical": (lambda x, y: np.logical_and(x, y) | np.logical_not(x), (B, B)),
    "clip": (lambda x: np.clip(x, -1, 1) + x.clip(0, 2), (D,)),
    "sum": (lambda x: x.sum(), (X,)),
    "sum_axis": (lambda x: np.sum(x, axis=1, keepdims=True), (X,)),
    "sum_int32": (lambda x: x.sum(), (I.astype(np.int32),)),
    "mean_std_var": (lambda x: np.mean(x) + x.std() + np.var(x, axis=0), (D,)),
    "mean_of_ints": (lambda x: x.mean(axis=0), (I,)),
    "min_max": (lambda x: x.max(axis=0) - np.min(x), (X,)),
    "prod_cumsum": (lambda x: np.prod(x) + np.cumsum(x, axis=1), (X,)),
    "argmax": (lambda x: x.argmax(axis=1) + np.argmin(x, axis=1), (X,)),
    "any_all": (lambda x: np.any(x, axis=0) & x.all(axis=0), (B,)),
    "count_nonzero": (lambda x: np.count_nonzero(x, axis=1), (B,)),
    "median": (lambda x: np.median(x, axis=1), (D,)),
    "quantile": (lambda x: np.quantile(x, 0.25, axis=0), (D,)),
    "average": (lambda x: np.average(x, axis=0), (D,)),
    "diff": (lambda x: np.diff(x, axis=1), (D,)),
    "norm": (lambda x: np.linalg.norm(x, axis=1), (D,)),
    "softmax": (_softmax, (D,)),
    "normalised": (_normalised, (X,)),
    "reshape": (lambda x: x.reshape(3, 2) + np.reshape(x, (3, -1)), (X,)),
    "transpose": (lambda x: x.T + x.transpose(1, 0) + np.transpose(x), (X,)),
    "ravel_flatten": (lambda x: x.ravel() + x.flatten(), (X,)),
    "swapaxes": (lambda x: np.swapaxes(x[None], 0, 2) + np.moveaxis(x[None], 0, -1).swapaxes(0, 1), (X,)),
    "expand_squeeze": (lambda x: np.squeeze(np.expand_dims(x, 0)) + x[None].squeeze(0), (X,)),
    "concatenate": (lambda x, y: np.concatenate([x, y], axis=1), (X, X)),
    "stack": (lambda x, y: np.stack((x, y), axis=-1), (X, X)),
    "vstack_hstack": (lambda x: np.vstack([x, x]).sum() + np.hstack([x, x]), (X,)),
    "split": (lambda x: np.split(x, 2, axis=1)[0], (D,)),
    "tile_repeat": (lambda x: np.tile(x, (1, 2)) + np.repeat(x, 2, axis=1), (X,)),
    "flip_roll": (lambda x: np.flip(x, axis=0) + np.roll(x, 1, axis=1), (X,)),
    "broadcast_to": (lambda x: np.broadcast_to(x, (4, 2, 3)) + 1, (X,)),
    "atleast": (lambda x: np.atleast_2d(x) * 2, (V,)),
    "diag_trace": (lambda x: np.diag(x) + np.trace(x), (D[:, :3],)),
    "tril_triu": (lambda x: np.tril(x) - np.triu(x), (D,)),
    "matmul": (lambda x, y: x @ y.T, (D, D)),
    "dot": (lambda x: np.dot(x, x.T) + x.dot(x.T), (D,)),
    "inner_outer": (lambda x: np.outer(x, x) * np.inner(x, x), (V,)),
    "einsum": (lambda x, y: np.einsum("ij,kj->ik", x, y), (D, D)),
    "tensordot": (lambda x, y: np.tensordot(x, y, axes=([1], [1])), (D, D)),
    "kron": (lambda x: np.kron(x, x), (X,)),
    "where": (lambda x: np.where(x > 0, x, -x), (D,)),
    "sort": (lambda x: np.sort(x), (V,)),
    "take": (lambda x: np.take(x, [0, 2], axis=1), (X,)),
    "index": (lambda x: x[:, None, 1:] + x[0, 1], (X,)),
    "index_ellipsis": (lambda x: x[..., -1] + x[-1, ...][:1], (X,)),
    "index_list": (lambda x: x[:, [0, 2]], (X,)),
    "index_array": (lambda x, i: x[i], (X, np.array([1, 0, 1]))),
    "scalar_item": (lambda x: x[0, 1] * 2, (X,)),
    "augmented": (_augmented, (X,)),
    "assigned": (_assigned, (X,)),
    "view_written": (_view_written, (X,)),
    "masked": (_masked, (X,)),
    "fill": (lambda x: (x.fill(3), x + 1)[1], (X,)),
    "out": (lambda x, y: np.add(x, 1, out=y), (X, X)),
    "rows": (_rows, (X,)),
    "zeros": (lambda x: np.zeros((2, 3)) + x, (X,)),
    "arange_linspace": (lambda x: x * np.arange(3) + np.linspace(0, 1, 3), (X,)),
    "zeros_like": (lambda x: np.zeros_like(x) + np.ones_like(x) + np.full_like(x, 2), (X,)),
    "eye": (lambda x: x @ np.eye(3, dtype=np.float32), (X,)),
    "astype": (lambda x: x.astype(np.int32) + x.astype("float64") + x.astype(float), (X,)),
    "copy": (lambda x: np.array(x) + np.asarray(x) + x.copy(), (X,)),
    "meshgrid": (_grid, (X,)),
    "attributes": (_attributes, (X,)),
    "branch_on_type": (_branch, (X,)),
    "through_torch": (_through_torch, (X,)),
    "tensor_argument": (_tensor_argument, (torch.arange(3.0),)),
    "complex": (lambda x: (x * 1j).real + np.abs(x + 2j), (D,)),
    "fft": (lambda x: np.abs(np.fft.fft(x)), (D,)),
    "builtin_sum": (lambda x: sum(x) + sum([row.sum() for row in x]), (X,)),
    "float32_result_scalar": (lambda x: np.float32(3) * x.sum() + 1, (X,)),
}  # fmt: skip
