"""Are two results the same? Compiled against eager, with eager in float64 as the arbiter, so that only errors count.

    from argand.debug.accuracy import same
    assert same(expected, actual)

A compiled result may differ from eager's in the last bits: both are roundings of the same number. What counts as an
error is a result that is further from the float64 one than eager's is, by more than the dtype's tolerance.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict
from typing import Any

import torch

from argand.debug.tensors import parts_of
from argand.errors import ArgandError
from argand.quick_dataclasses import dataclass

log = logging.getLogger("argand.debug.accuracy")

TOLERANCE = {
    torch.float64: 1e-8,
    torch.complex128: 1e-8,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
"""How far a value may lie from the right one, relative to the values around it, by dtype."""
_EAGER = 8.0  # times eager's own error
_NOISE = 100.0  # the same, of values that nearly cancel: eager's are noise too
_LARGE_ERROR = 1e-5  # a float64 run that differs from eager by more (beyond the tolerance) is no arbiter


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two results.

    Arguments:
        where: which part: "[0]", "['logits']", ".grad of weight", or "".
        kind: "type", "structure", "shape", "dtype", "device", "stride", "requires_grad", "nan", "inf", "value".
        size: largest error, relative to the typical size of the values (0 for kinds other than "value").
        text: what differs.
    """

    where: str
    kind: str
    size: float
    text: str

    def __str__(self) -> str:
        return f"{self.where or 'the result'}: {self.text}"


class AccuracyError(ArgandError):
    """A compiled program computes something else than eager does.

    Arguments:
        mismatch: the difference.
        output: name of the graph's result that is wrong, or "gradient of <input>".
    """

    stage = "accuracy"

    def __init__(self, mismatch: Mismatch, output: str = "", *, remedy: str = "") -> None:
        super().__init__(f"wrong result{' ' + output if output else ''}: {mismatch}", remedy=remedy)
        self.mismatch = mismatch
        self.output = output
        self.data = {"output": output, "mismatch": mismatch.kind, "size": mismatch.size, **asdict(mismatch)}


def same(
    expected: Any,
    actual: Any,
    float64: Any = None,
    *,
    tol: float | None = None,
    equal_nan: bool = True,
    exact_dtype: bool = True,
    strides: bool = False,
) -> bool:
    """Whether a compiled result is eager's; where it is not, a logged error says what differs.

    Arguments:
        expected: eager's result: tensors in lists, tuples, dicts, dataclasses; other objects are compared by `==`.
        actual: the compiled one.
        float64: eager's result in float64, with which both are compared; None compares them with each other.
        tol: relative tolerance; by default that of the dtype (`TOLERANCE`).
        equal_nan: NaN equals NaN.
        exact_dtype: dtypes must be equal.
        strides: so must strides.
    """
    mismatch = compare(
        expected, actual, float64, tol=tol, equal_nan=equal_nan, exact_dtype=exact_dtype, strides=strides
    )
    if mismatch is not None:
        log.error("Accuracy failed: %s", mismatch)
    return mismatch is None


def compare(
    expected: Any,
    actual: Any,
    float64: Any = None,
    *,
    tol: float | None = None,
    equal_nan: bool = True,
    exact_dtype: bool = True,
    strides: bool = False,
    where: str = "",
    floor: float = 0.0,
) -> Mismatch | None:
    """The first difference that counts; None when there is none.

    Arguments: see `same`; and
        where: how messages call the result.
        floor: absolute errors up to this do not count.
    """
    return _compare(expected, actual, float64, where, _Rules(tol, equal_nan, exact_dtype, strides, floor))


@dataclass(frozen=True, slots=True)
class _Rules:
    """What counts, as `compare` takes it."""

    tol: float | None
    equal_nan: bool
    exact_dtype: bool
    strides: bool
    floor: float


def _compare(expected: Any, actual: Any, float64: Any, where: str, rules: _Rules) -> Mismatch | None:
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            return Mismatch(where, "type", 0.0, f"a {type(actual).__name__}, not a tensor")
        return _tensors(expected, actual, float64 if isinstance(float64, torch.Tensor) else None, where, rules)
    if type(expected) is not type(actual):
        return Mismatch(where, "type", 0.0, f"a {type(actual).__name__}, not a {type(expected).__name__}")
    parts = parts_of(expected)
    if parts is None:
        return _plain(expected, actual, where, rules.tol)
    others, arbiters = parts_of(actual) or {}, (parts_of(float64) or {}) if type(float64) is type(expected) else {}
    if parts.keys() != others.keys():
        return Mismatch(where, "structure", 0.0, f"parts {list(others)}, not {list(parts)}")
    for name, part in parts.items():
        mismatch = _compare(part, others[name], arbiters.get(name), where + name, rules)
        if mismatch is not None:
            return mismatch
    return None


def _plain(expected: Any, actual: Any, where: str, tol: float | None) -> Mismatch | None:
    if isinstance(expected, float):
        both_nan = math.isnan(expected) and math.isnan(actual)
        if both_nan or expected == actual or math.isclose(expected, actual, rel_tol=tol or 1e-4, abs_tol=1e-8):
            return None
        size = abs(expected - actual) / max(abs(expected), 1e-30)
        return Mismatch(where, "value", size, f"{actual!r}, not {expected!r}")
    try:
        equal = expected is actual or bool(expected == actual)
    except Exception:  # an object of the user's whose comparison means something else
        equal = True
    return None if equal else Mismatch(where, "value", 1.0, f"{actual!r}, not {expected!r}")


def _tensors(
    expected: torch.Tensor, actual: torch.Tensor, arbiter: torch.Tensor | None, where: str, rules: _Rules
) -> Mismatch | None:
    if expected.shape != actual.shape:
        return Mismatch(where, "shape", 0.0, f"shape {list(actual.shape)}, not {list(expected.shape)}")
    if rules.exact_dtype and expected.dtype != actual.dtype:
        return Mismatch(where, "dtype", 0.0, f"{actual.dtype}, not {expected.dtype}")
    if expected.device != actual.device:
        return Mismatch(where, "device", 0.0, f"on {actual.device}, not {expected.device}")
    if rules.strides and expected.requires_grad != actual.requires_grad:
        said = f"requires_grad={actual.requires_grad}, not {expected.requires_grad}"
        return Mismatch(where, "requires_grad", 0.0, said)
    if expected.layout is not torch.strided or actual.layout is not torch.strided:
        expected, actual, arbiter = expected.to_dense(), actual.to_dense(), None
    elif rules.strides and not _same_strides(expected, actual):
        return Mismatch(where, "stride", 0.0, f"strides {actual.stride()}, not {expected.stride()}")
    if expected.is_quantized:
        expected, actual, arbiter = expected.dequantize(), actual.dequantize(), None
    with torch.no_grad():
        return _values(expected.detach(), actual.detach(), arbiter, where, rules)


def _same_strides(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.numel() == 0 or all(n < 2 or a == b for n, a, b in zip(one.shape, one.stride(), two.stride()))


def _values(
    expected: torch.Tensor, actual: torch.Tensor, arbiter: torch.Tensor | None, where: str, rules: _Rules
) -> Mismatch | None:
    if torch.equal(expected, actual):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = int((expected != actual).sum())
        large = float((expected.double() - actual.double()).abs().max())
        size = large / max(1.0, float(expected.double().abs().max()))
        return Mismatch(where, "value", size, f"{wrong} of {expected.numel()} elements differ, by up to {large:g}")
    tol = TOLERANCE.get(expected.dtype, 1e-1) if rules.tol is None else rules.tol
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected.resolve_conj()), torch.view_as_real(actual.resolve_conj())
        arbiter = torch.view_as_real(arbiter.resolve_conj()) if arbiter is not None and arbiter.is_complex() else None
    want, got = expected.double(), actual.double()
    right = _arbiter(arbiter, want, tol)
    mismatch = _special(want, got, right, rules.equal_nan, where)
    if mismatch is not None:
        return mismatch
    normal = torch.isfinite(want) & torch.isfinite(got) & torch.isfinite(right)
    want, got, right = want[normal], got[normal], right[normal]
    if not want.numel():
        return None
    typical = root_mean_square(right)
    eager_error = (want - right).abs()
    error = (got - right).abs()
    times = _NOISE if root_mean_square(eager_error) > 0.01 * typical else _EAGER
    allowed = allowed_error(right, eager_error, tol, times) + rules.floor
    if bool((error <= allowed).all()):
        return None
    wrong = int((error > allowed).sum())
    size = float(error.max()) / max(typical, 1e-30)
    said = f"allclose not within tol={tol:g}: {wrong} of {want.numel()} elements, by up to {float(error.max()):.3g}"
    return Mismatch(where, "value", size, said)


def root_mean_square(values: torch.Tensor) -> float:
    """The size that values have."""
    return float(values.square().mean().sqrt())


def allowed_error(right: torch.Tensor, spread: torch.Tensor, tol: float, times: float) -> torch.Tensor:
    """How far values may lie from the right ones, which eager misses by `spread`: so many times as far as that."""
    typical, usual = min(root_mean_square(right), 1.0), root_mean_square(spread[torch.isfinite(spread)])
    return tol * (right.abs() + typical * 0.1 + 1e-30) + times * (spread + (usual if math.isfinite(usual) else 0.0))


def _arbiter(arbiter: torch.Tensor | None, want: torch.Tensor, tol: float) -> torch.Tensor:
    """The float64 result, unless it is of something else (random numbers that depend on the dtype, say)."""
    if arbiter is None or arbiter.shape != want.shape or not arbiter.is_floating_point():
        return want
    right = arbiter.detach().double()
    normal = torch.isfinite(want) & torch.isfinite(right)
    if not bool((torch.isfinite(want) == torch.isfinite(right)).all()):
        return want
    if not bool(normal.any()):
        return right
    difference = root_mean_square(want[normal] - right[normal])
    return want if difference > 100 * tol * root_mean_square(right[normal]) + _LARGE_ERROR else right


def _special(
    want: torch.Tensor, got: torch.Tensor, right: torch.Tensor, equal_nan: bool, where: str
) -> Mismatch | None:
    """Differences in which elements are NaN or infinite, unless float64 takes the compiled side."""
    if not equal_nan and bool(torch.isnan(want).any() | torch.isnan(got).any()):
        return Mismatch(where, "nan", 0.0, "there are NaNs")
    for name, test in (("nan", torch.isnan), ("inf", torch.isinf)):
        odd = (test(want) != test(got)) & (test(got) != test(right))
        if bool(odd.any()):
            odd_in_both = int((odd & test(got)).sum())
            said = f"{int(odd.sum())} elements differ in being {name} ({odd_in_both} of them are {name} when compiled)"
            return Mismatch(where, name, 0.0, said)
    infinite = torch.isinf(want) & torch.isinf(got) & (want != got)
    return Mismatch(where, "inf", 0.0, "infinities of the other sign") if bool(infinite.any()) else None
