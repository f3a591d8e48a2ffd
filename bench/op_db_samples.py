"""One sample of torch's test database: run eagerly and compiled, its results and gradients compared."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from argand import events
from op_db_eager import SEED, copied

OUTCOMES = ("equal", "both raise", "difference", "error", "crash", "timeout")
BAD = OUTCOMES[2:]


@dataclass(slots=True)
class Sample:
    """What one sample did.

    Arguments:
        outcome: one of OUTCOMES; "error" is an exception where eager returns.
        gradients: how many gradients were compared.
        kinds: of "native" (generated kernels ran), "fallback" (an ATen kernel that has no lowering), "eager graph" (a
            whole graph ran eagerly), "graph break".
        reasons: texts of fallbacks.
    """

    outcome: str
    detail: str = ""
    gradients: int = 0
    kinds: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def call_operator(op: Any, args: Any, kwargs: Any) -> Any:
    return op(*args, **kwargs)


@dataclass(slots=True)
class Outcome:
    """Results and gradients of one run, or the exception."""

    results: Any = None
    gradients: Any = None
    error: Exception | None = None


def run(call: Callable[..., Any], op: Any, sample: Any, differentiable: bool) -> Outcome:
    """Results and gradients of `call(op, args, kwargs)` on a copy of the sample's arguments."""
    args, kwargs = copied(((sample.input, *sample.args), sample.kwargs))
    inputs = [t for t in tensors((args, kwargs)) if t.requires_grad]
    seed()
    try:
        results = call(op, args, kwargs)
        if not differentiable:
            return Outcome(results)
        with torch.random.fork_rng():
            return Outcome(results, gradients_of(sample.output_process_fn_grad(results), inputs))
    except Exception as error:
        return Outcome(error=error)


def gradients_of(results: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """`.grad` of all inputs for random cotangents of the results that have one."""
    ends = [t for t in tensors(results) if t.requires_grad]
    if not ends or not inputs:
        return []
    seed()
    cotangents = [torch.randn(t.shape, dtype=t.dtype, device=t.device) for t in ends]
    torch.autograd.backward(ends, cotangents)
    return [None if t.grad is None else _without_idle_strides(t.grad) for t in inputs]


def _without_idle_strides(grad: torch.Tensor) -> torch.Tensor:
    """autograd takes any stride of a dimension of size one."""
    if grad.layout is not torch.strided or grad.is_nested or 1 not in grad.shape:
        return grad
    return grad.as_strided(grad.shape, [1 if n == 1 else s for n, s in zip(grad.shape, grad.stride())])


def seed() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def difference(want: Any, got: Any, exact: Any, values: bool) -> str:
    """What differs between two results of any structure, or "".

    Arguments:
        exact: the same results computed in float64, or None.
        values: whether values count, not only metadata.
    """
    a, tree = pytree.tree_flatten(want)
    b, other = pytree.tree_flatten(got)
    if tree != other:
        return f"structure {other}, eager {tree}"
    truth = pytree.tree_leaves(exact) if exact is not None else []
    truth = truth if len(truth) == len(a) else [None] * len(a)
    for i, (x, y, z) in enumerate(zip(a, b, truth)):
        found = _leaf_difference(x, y, z, values)
        if found:
            return f"[{i}] {found}"
    return ""


def _leaf_difference(want: Any, got: Any, exact: Any, values: bool) -> str:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = want is got or want == got or (want != want and got != got)
        if not same and isinstance(want, float) and isinstance(got, float):
            same = math.isclose(want, got, rel_tol=1e-5) or not values
        return "" if same or type(want) is type(got) is torch.Generator else f"{got!r}, eager {want!r}"
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        if getattr(want, name) != getattr(got, name):
            return f"{name} {getattr(got, name)}, eager {getattr(want, name)}"
    strided = want.layout is torch.strided and not want.is_nested and want.numel() > 0
    if strided and want.stride() != got.stride():
        return f"strides {got.stride()} of {tuple(want.shape)}, eager {want.stride()}"
    if not values or want.is_meta:
        return ""
    return _value_difference(_plain(want), _plain(got), exact)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return tensor.resolve_conj().resolve_neg()


def _value_difference(want: torch.Tensor, got: torch.Tensor, exact: Any) -> str:
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
        return ""
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        text = "values: " + ", ".join(lines[1:3] or lines)
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape or not want.dtype.is_floating_point:
        return text
    wide, a, b = _plain(exact).double(), want.double(), got.double()
    finite = wide.isfinite() & a.isfinite() & b.isfinite()
    if not torch.equal(a[~finite], b[~finite]) and not torch.allclose(a[~finite], b[~finite], equal_nan=True):
        return text
    slack = torch.finfo(want.dtype).eps * wide.abs().clamp_min(torch.finfo(want.dtype).tiny)
    ours, eagers = (b - wide).abs()[finite], (a - wide).abs()[finite]
    near = ours <= torch.maximum(eagers.max() if eagers.numel() else eagers.new_zeros(()), 4 * slack[finite]) * 2
    return "" if bool(near.all()) else text


def exact_results(op: Any, sample: Any, differentiable: bool) -> Outcome:
    """The sample in float64, or nothing where that is not possible."""
    if any(t.layout is not torch.strided or t.is_nested for t in tensors((sample.input, sample.args, sample.kwargs))):
        return Outcome()

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16, torch.float16):
            return value.detach().double().requires_grad_(value.requires_grad)
        return torch.float64 if value in (torch.float32, torch.bfloat16) and isinstance(value, torch.dtype) else value

    with contextlib.suppress(Exception):
        made = sample.transform(wide)
        made.output_process_fn_grad = sample.output_process_fn_grad
        return run(call_operator, op, made, differentiable)
    return Outcome()


class _Listener:
    """What the compiler says while one sample runs."""

    def __init__(self) -> None:
        self.kinds: dict[str, None] = {}
        self.reasons: dict[str, None] = {}

    def __call__(self, event: events.Event) -> None:
        if event.name == "kernel_code":
            if event.text():
                self.kinds["native"] = None
        elif event.name == "graph_breaks":
            self.kinds["graph break"] = None
        elif event.name == "fallback":
            graph = event.data.get("scope") == "graph"
            self.kinds["eager graph" if graph else "fallback"] = None
            self.reasons[f"{event.data.get('op', 'graph')}: {event.text().splitlines()[0][:200]}"] = None


def check_sample(call: Callable[..., Any], op: Any, sample: Any, differentiable: bool, values: bool) -> Sample:
    """One sample of a function, eagerly and compiled."""
    want = run(call_operator, op, sample, differentiable)
    listener = _Listener()
    remove = events.bus.subscribe(listener)
    try:
        got = run(call, op, sample, differentiable)
    finally:
        remove()
    kinds, reasons = list(listener.kinds), list(listener.reasons)
    if want.error is not None or got.error is not None:
        if want.error is not None and got.error is not None:
            return Sample("both raise", kinds=kinds, reasons=reasons)
        error = got.error or want.error
        side = "raised" if got.error is not None else "returned, eager raised"
        text = f"{side} {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Sample("error", text, 0, kinds, reasons)
    found = difference(want.results, got.results, None, values)
    grads = difference(want.gradients, got.gradients, None, values)
    if "values" in found or "values" in grads:
        exact = exact_results(op, sample, differentiable)
        found = difference(want.results, got.results, exact.results, values)
        grads = difference(want.gradients, got.gradients, exact.gradients, values)
    compared = len(want.gradients or ())
    if found or grads:
        return Sample("difference", f"result{found}" if found else f"gradient{grads}", compared, kinds, reasons)
    return Sample("equal", "", compared, kinds, reasons)
