"""Matrix products of fixed sizes by cuBLASLt itself, prepared when a graph is loaded.

A product by way of ATen takes 15 to 20 us of the host's time on an H200, most of it spent on finding out anew what does
not change from call to call. Here a call is one call of C, which launches what the library's heuristic chose once. The
library is the one that torch has loaded. Sums are kept in float32, also where torch's settings would allow less; so the
result does not depend on them.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from argand._core import _C
from argand.locks import fork_safe_lock
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.driver import driver
from argand.runtime.gpu.device.target import device_index
from argand.runtime.gpu.kernels.launch import Place, cuda_place

Product = Callable[..., None]
_Handles = tuple[int, int, int, int, int]

WORKSPACE = 32 << 20  # bytes that an algorithm may ask for: torch's limit for the same library
ALIGNMENT = 16  # of addresses; calls with others go to ATen
_RESULT = 64 + 8 + 4 + 4 + 16  # bytes of a cublasLtMatmulHeuristicResult_t, which begins with the algorithm
_ALGORITHM = 64
_FLOAT32, _COMPUTE_FLOAT32 = 0, 68  # CUDA_R_32F, CUBLAS_COMPUTE_32F
_KINDS = {torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_16F, CUDA_R_16BF
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # CUBLASLT_MATMUL_DESC_...
_EPILOGUES = {"": 4, "relu": 6, "gelu": 36}  # CUBLASLT_EPILOGUE_BIAS, _RELU_BIAS, _GELU_BIAS
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # CUBLASLT_MATMUL_PREF_...
_IN_FLOAT32 = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: parts of a sum are added in float32
_NAMES = ["Create", "MatmulDescCreate", "MatmulDescSetAttribute", "MatrixLayoutCreate", "MatmulPreferenceCreate"]
_NAMES += ["MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic", "Matmul"]


@dataclass(frozen=True, slots=True)
class ProductSpec:
    """A product of matrices, `activation(left @ right + bias)`, stored by rows.

    Arguments:
        rows, columns, terms: left is (rows, terms), right (terms, columns).
        dtype: of all of them.
        left, right: their strides: one is 1.
        bias: whether a row is added.
        activation: of the sums and the bias: "", "relu", or "gelu", by tanh.
    """

    rows: int
    columns: int
    terms: int
    dtype: torch.dtype
    left: tuple[int, int]
    right: tuple[int, int]
    bias: bool
    activation: str = ""


def load_products(table: Mapping[str, Sequence[Any]], device: str) -> tuple[list[Product], int]:
    """The products of a host module.

    Arguments:
        table: by name, what `ProductSpec` takes.
        device: "cuda:0", say.

    Returns:
        For each a callable `product(left, right, [bias,] result, workspace)`; the bytes of workspace that they need.
    """
    specs = [ProductSpec(*literal) for literal in table.values()]
    library = _library() if torch.device(device).type == "cuda" else None
    if library is None:
        return [TorchProduct(spec) for spec in specs], 0
    place = cuda_place(driver(), device_index(device))
    products = [library.product(spec, place) for spec in specs]
    return [product for product, _ in products], max((nbytes for _, nbytes in products), default=0)


class TorchProduct:
    """The same by ATen: for tensors that cuBLASLt's choice is not made for, and where there is no cuBLASLt."""

    def __init__(self, spec: ProductSpec) -> None:
        self.spec = spec

    def __call__(self, *args: Any) -> None:
        *operands, result, _ = args
        spec = self.spec
        left = torch.as_strided(operands[0], (spec.rows, spec.terms), spec.left)
        right = torch.as_strided(operands[1], (spec.terms, spec.columns), spec.right)
        result = torch.as_strided(result, (spec.rows, spec.columns), (spec.columns, 1))
        if spec.activation:
            gelu = spec.activation == "gelu"
            torch._addmm_activation(operands[2], left, right, use_gelu=gelu, out=result)
        elif spec.bias:
            torch.addmm(operands[2], left, right, out=result)
        else:
            torch.mm(left, right, out=result)


class Blas:
    """cuBLASLt at a path.

    Arguments:
        path: of the library.

    Raises:
        OSError, AttributeError: it cannot be loaded, or lacks a function.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._functions = {name: getattr(self._library, f"cublasLt{name}") for name in _NAMES}
        self._handles: dict[int, int] = {}
        self._products: dict[tuple[ProductSpec, str, int], tuple[Product, int]] = {}
        self._lock = fork_safe_lock()

    def product(self, spec: ProductSpec, place: Place) -> tuple[Product, int]:
        """A product on a device, and the bytes of workspace that it needs. Products that are alike are one."""
        key = spec, place.driver.path, place.index
        with self._lock:
            product = self._products.get(key)
            if product is None:
                product = self._products[key] = self._make(spec, place)
        return product

    def _make(self, spec: ProductSpec, place: Place) -> tuple[Product, int]:
        otherwise = TorchProduct(spec)
        context = place.driver.context(place.index)
        with place.driver.inside("preparing a product", context):
            prepared = self._prepare(spec, place.index)
        if prepared is None:
            return otherwise, 0
        handles, algorithm, workspace = prepared
        _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
        functions = (
            self._address("Matmul"), self._address("MatmulDescSetAttribute"), *place.driver.addresses[1:],
        )  # fmt: skip
        attribute = _BIAS if spec.bias else -1
        product = _C.DeviceProduct(
            functions, (*handles, context), (place.kind, place.index), algorithm, workspace, attribute, place.stream_of,
            otherwise, self,
        )  # fmt: skip
        return product, workspace

    def _address(self, name: str) -> int:
        return int(ctypes.cast(self._functions[name], ctypes.c_void_p).value or 0)

    def _prepare(self, spec: ProductSpec, index: int) -> tuple[_Handles, bytes, int] | None:
        """Handles, algorithm and bytes of workspace; None where the library does not take the product."""
        handle = self._handle(index)
        kind = _KINDS.get(spec.dtype)
        if handle is None or kind is None:
            return None
        # By columns, as the library counts, what is stored by rows is its transpose: result' = right' @ left'.
        right, left = (_stored(spec.right, spec.columns, spec.terms), _stored(spec.left, spec.terms, spec.rows))
        description = ctypes.c_void_p()
        if self._call("MatmulDescCreate", ctypes.byref(description), _COMPUTE_FLOAT32, _FLOAT32):
            return None
        attributes = [(_TRANSPOSE_A, int(right.transposed)), (_TRANSPOSE_B, int(left.transposed))]
        attributes += [(_EPILOGUE, _EPILOGUES[spec.activation])] if spec.bias else []
        for attribute, value in attributes:
            if self._set("MatmulDescSetAttribute", description, attribute, ctypes.c_int32(value)):
                return None
        layouts = [
            self._layout(kind, *shape)
            for shape in (
                (left.rows, left.columns, left.step),
                (right.rows, right.columns, right.step),
                (spec.columns, spec.rows, spec.columns),
            )
        ]
        if None in layouts:
            return None
        recommended = self._heuristic(handle, description, layouts)
        if recommended is None:
            return None
        algorithm, workspace = recommended
        one, two, three = (layout.value or 0 for layout in layouts if layout is not None)
        return (handle, description.value or 0, one, two, three), algorithm, workspace

    def _handle(self, index: int) -> int | None:
        if index not in self._handles:
            handle = ctypes.c_void_p()
            if self._call("Create", ctypes.byref(handle)):
                return None
            self._handles[index] = handle.value or 0
        return self._handles[index]

    def _layout(self, kind: int, rows: int, columns: int, step: int) -> ctypes.c_void_p | None:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(step)
        return None if self._call("MatrixLayoutCreate", ctypes.byref(layout), kind, *sizes) else layout

    def _heuristic(
        self, handle: int, description: ctypes.c_void_p, layouts: Sequence[ctypes.c_void_p | None]
    ) -> tuple[bytes, int] | None:
        """The algorithm that the library recommends, and the bytes of workspace that it needs."""
        wishes, count = ctypes.c_void_p(), ctypes.c_int()
        if self._call("MatmulPreferenceCreate", ctypes.byref(wishes)):
            return None
        wanted: list[tuple[int, Any]] = [(_MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))]
        wanted.append((_REDUCTIONS, ctypes.c_uint32(_IN_FLOAT32)))
        wanted += [(place, ctypes.c_uint32(ALIGNMENT)) for place in _ALIGNMENTS]
        for attribute, value in wanted:
            if self._set("MatmulPreferenceSetAttribute", wishes, attribute, value):
                return None
        left, right, result = layouts
        answer = ctypes.create_string_buffer(_RESULT)
        code = self._call(
            "MatmulAlgoGetHeuristic", ctypes.c_void_p(handle), description, right, left, result, result, wishes, 1,
            answer, ctypes.byref(count),
        )  # fmt: skip
        status = int.from_bytes(answer.raw[_ALGORITHM + 8 : _ALGORITHM + 12], sys.byteorder)
        if code or not count.value or status:
            return None
        workspace = int.from_bytes(answer.raw[_ALGORITHM : _ALGORITHM + 8], sys.byteorder)
        return answer.raw[:_ALGORITHM], workspace

    def _set(self, name: str, what: ctypes.c_void_p, attribute: int, value: Any) -> int:
        return self._call(name, what, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, name: str, *args: Any) -> int:
        return int(self._functions[name](*args))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A matrix as it lies in memory, counted by columns, and whether it is to be transposed."""

    rows: int
    columns: int
    step: int
    transposed: bool


def _stored(stride: tuple[int, int], rows: int, columns: int) -> _Stored:
    """The layout of an operand that is (rows, columns) by columns; `stride` is of its transpose, counted by rows."""
    outer, inner = stride
    return _Stored(rows, columns, outer, False) if inner == 1 else _Stored(columns, rows, inner, True)


@functools.cache
def _library() -> Blas | None:
    """The cuBLASLt that torch has loaded; None where there is none."""
    path = _loaded_path()
    try:
        return Blas(path) if path else None
    except (OSError, AttributeError):
        return None


def _loaded_path() -> str:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    paths = [line.split(maxsplit=5)[-1] for line in lines if "libcublasLt.so" in line]
    return paths[0] if paths else ""


def available() -> bool:
    """Whether products can be cuBLASLt's."""
    return not torch.version.hip and _library() is not None
