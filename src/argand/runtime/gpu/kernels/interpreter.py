"""Runs kernels on CPU tensors by Triton's interpreter: for tests, and for looking at a kernel step by step.

`TRITON_INTERPRET=1` must be set before triton is imported. The interpreter is corrected while a kernel runs, and only
then: it has no device library, it cuts bfloat16 and float8 instead of rounding, multiplies bfloat16 as if they were
integers, and its fused multiply-add of older versions rounds twice. Integers and pointers get the types of the
signature, as on a device, not those that fit them. Reductions and scans combine whole arrays, as trees, where it goes
through them an element at a time (nine tenths of the time of what was tried).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from argand.errors import GpuError
from argand.locks import fork_safe_lock
from argand.runtime.gpu.kernels import libdevice, source
from argand.runtime.gpu.kernels.spec import LaunchSpec

_LOCK = fork_safe_lock()  # corrections are attributes of triton's own modules
_MISSING = object()
_TORCH_FLOATS = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e5": torch.float8_e5m2, "fp8e4nv": torch.float8_e4m3fn,
}  # fmt: skip
_TORCH_CASTS = {"bf16", "fp8e5", "fp8e4nv"}  # types that numpy lacks


class InterpretedKernel:
    """`kernel(gx, gy, gz, *tensors, *ints)` on CPU tensors.

    Arguments:
        function: what `triton.jit` made of the kernel.
        spec: its types and constants.
    """

    __slots__ = ("_function", "name", "spec")

    def __init__(self, function: Any, spec: LaunchSpec) -> None:
        self._function = function
        self.spec = spec
        self.name = spec.name

    def __call__(self, gx: int, gy: int, gz: int, *args: Any) -> None:
        import numpy as np

        if len(args) != len(self.spec.signature):
            raise TypeError(
                f"kernel {self.name} takes {self.spec.num_tensors} tensors and {self.spec.num_ints} ints "
                f"({len(args)} arguments given)"
            )
        if min(gx, gy, gz) <= 0:
            return
        with _LOCK, _corrected(), np.errstate(all="ignore"), torch.no_grad():
            typed = [_typed(arg, kind) for arg, kind in zip(args, self.spec.signature)]
            self._function[(gx, gy, gz)](*typed, **dict(self.spec.constants))


def load(text: str, specs: Sequence[LaunchSpec]) -> list[InterpretedKernel]:
    """The kernels of a source text, interpreted.

    Raises:
        GpuError: triton is not there, or was imported without `TRITON_INTERPRET=1`.
    """
    try:
        import triton
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        raise GpuError(f"kernels cannot be interpreted: {error}", remedy="pip install triton") from error
    if not (triton.knobs.runtime.interpret and isinstance(triton.language.standard.sum, InterpretedFunction)):
        raise GpuError(
            "kernels for CPU tensors are interpreted, and triton was imported to compile them",
            remedy="set TRITON_INTERPRET=1 before the process starts",
        )
    module = source.execute(text)
    return [InterpretedKernel(getattr(module, spec.name), spec) for spec in specs]


def _typed(arg: Any, kind: str) -> Any:
    """An argument with the type that the signature gives it."""
    import numpy as np
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if kind[0] != "*":
        dtype = tl.int32 if kind == "i32" else tl.int64
        data = np.array([arg], dtype=np.int32 if kind == "i32" else np.int64)  # refuses what does not fit
        return tl.tensor(TensorHandle(data, dtype), dtype)
    if triton.runtime.jit.mangle_type(arg) == kind:
        return arg.detach()
    return triton.runtime.jit.TensorWrapper(arg.detach(), tl.str_to_ty(kind[1:], None))


# ----------------------------------------------------------------------- corrections


@contextlib.contextmanager
def _corrected() -> Iterator[None]:
    """Triton's interpreter with the corrections of this module."""
    from triton.language.extra import libdevice as stubs
    from triton.language.extra.cuda import libdevice
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    options = interpreter.interpreter_builder.options
    changes: list[tuple[Any, str, Any]] = [
        # the check takes a third of the time, and without `debug` nobody is told; on devices kernels do without it
        (interpreter.interpreter_builder, "options", dataclasses.replace(options, sanitize_overflow=False)),
        (builder, "create_extern_elementwise", _extern_elementwise),
        (builder, "create_fma", _fma),
        (builder, "create_dot", _dot(builder.create_dot)),
        (builder, "binary_op", _compared(builder.binary_op)),
        (builder, "cast_impl", _cast(builder.cast_impl)),
        (builder, "create_fp_to_fp", _fp_to_fp(builder.create_fp_to_fp)),
        (interpreter.ReduceOps, "generic_reduce", _reduce),
        (interpreter.ScanOps, "generic_scan", _scan),
    ]
    for name, function in inspect.getmembers(libdevice, inspect.isfunction):
        bound = _bound(function, interpreter.interpreter_semantic)
        changes += [(module, name, bound) for module in (libdevice, stubs) if hasattr(module, name)]
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value) if value is not _MISSING else delattr(owner, name)


def _bound(function: Any, semantic: Any) -> Any:
    """A function of the device library, which the interpreter calls as any Python function."""

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_semantic", None)
        return function(*args, **kwargs, _semantic=semantic)

    return call


def _extern_elementwise(builder: Any, lib: str, path: str, symbol: str, args: Any, kind: Any, pure: bool) -> Any:
    from triton.runtime import interpreter

    result = libdevice.call(symbol, [arg.data for arg in args], interpreter._get_np_dtype(kind))
    return interpreter.TensorHandle(result, kind.scalar)


def _compared(original: Any) -> Any:
    """`binary_op`, whose handles of comparisons say that they hold booleans: a spread scalar is converted by that."""

    def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        import triton.language as tl

        result = original(builder, lhs, rhs, op)
        if result.data.dtype == bool and result.dtype != tl.int1:
            result.dtype = tl.int1
        return result

    return binary_op


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    from triton.runtime import interpreter

    return interpreter.TensorHandle(libdevice.fma(x.data, y.data, z.data), z.dtype.scalar)


def _dot(original: Any) -> Any:
    """`create_dot`, which takes the bits of bfloat16 for integers."""

    def dot(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        import triton.language as tl

        wide = [_by_torch(side, tl.float32) for side in (a, b)]  # a handle with a zero in it is false
        return original(builder, *[new if new is not None else old for new, old in zip(wide, (a, b))], d, *options)

    return dot


def _cast(original: Any) -> Any:
    """`cast_impl`, with torch's rounding for the types that numpy lacks."""

    def cast(builder: Any, src: Any, dst_type: Any) -> Any:
        done = _by_torch(src, dst_type)  # a handle with a zero in it is false
        return original(builder, src, dst_type) if done is None else done

    return cast


def _fp_to_fp(original: Any) -> Any:
    """`create_fp_to_fp`, with torch's rounding to nearest."""

    def convert(builder: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        nearest = rounding is None or str(rounding).rpartition(".")[2] == "RTNE"
        done = _by_torch(src, dst_type) if nearest else None
        return original(builder, src, dst_type, rounding) if done is None else done

    return convert


def _by_torch(src: Any, dst_type: Any) -> Any:
    """The cast of a handle that has to do with a type that numpy lacks; None for every other."""
    import numpy as np
    from triton.runtime import interpreter

    old, new = src.dtype.scalar, dst_type.scalar
    if old.name not in _TORCH_CASTS and new.name not in _TORCH_CASTS:
        return None
    if any(kind.is_floating() and kind.name not in _TORCH_FLOATS for kind in (old, new)):
        return None
    value = torch.from_numpy(np.ascontiguousarray(src.data))
    if old.name in _TORCH_CASTS:
        value = value.view(_TORCH_FLOATS[old.name])
    dtype = interpreter._get_np_dtype(new)
    if new.name in _TORCH_CASTS:
        data = value.to(_TORCH_FLOATS[new.name]).view(torch.int8 if dtype.itemsize == 1 else torch.int16).numpy()
        return interpreter.TensorHandle(data.view(dtype).reshape(src.data.shape), new)
    wide = value.to(_TORCH_FLOATS.get(new.name, torch.float64)).numpy().reshape(src.data.shape)
    return interpreter.TensorHandle(wide.astype(dtype), new)


# ------------------------------------------------------------- reductions and scans


def _combined(op: Any, inputs: Sequence[Any], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """Arrays that the function of a reduction or scan makes of arrays: generated ones branch by `tl.where` alone."""
    import numpy as np

    dtypes = [each.dtype for each in inputs]
    shape = np.broadcast_shapes(left[0].shape, right[0].shape)
    sides = [np.broadcast_to(data, shape) for data in (*left, *right)]
    combined = op.combine_fn.fn(*[op.to_tensor(data, dtype) for data, dtype in zip(sides, dtypes * 2)])
    combined = combined if isinstance(combined, tuple) else (combined,)
    return [each.handle.data.astype(data.dtype) for each, data in zip(combined, left, strict=True)]


def _reduce(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """`generic_reduce`: neighbours are combined until one is left."""
    import numpy as np

    data, everything = [each.handle.data for each in inputs], op.axis is None
    rank = data[0].ndim
    rows = [each.reshape(-1) if everything else np.moveaxis(each, op.axis, -1) for each in data]
    while (length := rows[0].shape[-1]) > 1:
        pairs = length // 2 * 2
        halves = _combined(op, inputs, [row[..., 0:pairs:2] for row in rows], [row[..., 1:pairs:2] for row in rows])
        rows = [np.concatenate((new, row[..., pairs:]), -1) for new, row in zip(halves, rows)]
    results = [row[..., 0] for row in rows]
    if op.keep_dims:
        results = [each.reshape((1,) * rank) if everything else np.expand_dims(each, op.axis) for each in results]
    return [op.to_tensor(each if each.shape else each.item(), one.dtype) for each, one in zip(results, inputs)]


def _scan(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """`generic_scan`: the last of each left half is combined with all of the right half, of ever larger parts."""
    import numpy as np

    rows = [np.moveaxis(each.handle.data, op.axis, -1).copy() for each in inputs]
    length, half = rows[0].shape[-1], 1
    while half < length:  # sizes of blocks are powers of two
        parts = [row.reshape(*row.shape[:-1], length // (2 * half), 2, half) for row in rows]
        combined = _combined(op, inputs, [part[..., 0, -1:] for part in parts], [part[..., 1, :] for part in parts])
        for part, new in zip(parts, combined):
            part[..., 1, :] = new
        rows, half = [part.reshape(*part.shape[:-3], length) for part in parts], half * 2
    results = [np.ascontiguousarray(np.moveaxis(row, -1, op.axis)) for row in rows]
    return [op.to_tensor(each, one.dtype) for each, one in zip(results, inputs)]
