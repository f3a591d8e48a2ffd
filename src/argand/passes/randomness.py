"""Random ops as pure functions of a seed that the graph draws, so that kernels make the numbers where they are used.

The numbers differ from eager's for the same `torch.manual_seed`; `config.fallback_random` keeps eager's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.config import config
from argand.graph import compat
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.strides import contiguous_strides, lies_densely, memory_order
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.random_ops import random_ops
from argand.passes.decompose import decompose

aten = torch.ops.aten

Draw = Callable[[Builder, Any, torch.dtype, torch.device], fx.Node]
Rule = Callable[..., Any]


def functional_random(program: AtenProgram) -> int:
    """Replace random ops; returns how many nodes changed. Does nothing under `config.fallback_random`."""
    eager = config.fallback_random or config.check_numerics  # (the checker needs eager's numbers to compare with)
    if eager or not any(target in RULES for target in compat.targets_of(program.graph)):
        return 0
    return decompose(program, RULES)


def _uniform(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """Numbers from 0 up to, not including, 1."""
    ops = random_ops()
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    drawn: fx.Node = b(ops.uniform, b(ops.seed, device=device), list(size), dtype=wide)
    return drawn


def _plain(x: fx.Node) -> bool:
    val: torch.Tensor = x.meta["val"]
    return val.dtype in _FLOATS and val.numel() > 0


_FLOATS = (torch.float32, torch.float64)
_DIGITS = {torch.bfloat16: 8, torch.float16: 11}  # binary ones of a number from 0 to 1 that eager draws


def _unit(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """`_uniform`, of numbers that 16 bits hold if that is the dtype: none is rounded to 1."""
    drawn = _uniform(b, size, dtype, device)
    if dtype not in _DIGITS:
        return drawn
    steps = b(aten.floor.default, b(aten.mul.Tensor, drawn, 2.0 ** _DIGITS[dtype]))
    scaled: fx.Node = b(aten.mul.Tensor, steps, 2.0 ** -_DIGITS[dtype])
    return scaled


def _in_layout_of(x: fx.Node) -> bool:
    """Results are laid out as the tensor, which has no gaps; a draw for another layout is left to eager's kernel."""
    return lies_densely(x.meta["val"])


_NO_PROBABILITY = (
    "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  "
    "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
)


def _bernoulli_p(b: Builder, x: fx.Node, p: float = 0.5, *, generator: Any = None) -> Any:
    val: torch.Tensor = x.meta["val"]
    if generator is not None or val.numel() == 0 or val.dtype.is_complex:
        return NotImplemented
    drawn = b(aten.lt.Scalar, _drawn_like(b, x, _uniform), float(p))
    return b(aten._to_copy.default, drawn, dtype=val.dtype)


def _bernoulli(b: Builder, x: fx.Node, *, generator: Any = None) -> Any:
    return _bernoulli_tensor(b, x, x, generator=generator)


def _bernoulli_tensor(b: Builder, x: fx.Node, p: fx.Node, *, generator: Any = None) -> Any:
    val: torch.Tensor = x.meta["val"]
    if generator is not None or not _plain(p) or val.numel() == 0 or val.dtype.is_complex:
        return NotImplemented
    inside = b(aten.all.default, b(aten.logical_and.default, b(aten.ge.Scalar, p, 0.0), b(aten.le.Scalar, p, 1.0)))
    b.effect(aten._assert_async.msg, inside, _NO_PROBABILITY)
    drawn = b(aten.lt.Tensor, _uniform(b, val.shape, p.meta["val"].dtype, x.meta["device"]), p)
    return b(aten._to_copy.default, drawn, dtype=val.dtype)


def _native_dropout(b: Builder, x: fx.Node, p: float, train: bool | None) -> Any:
    val: torch.Tensor = x.meta["val"]
    if train is False or not 0 < p < 1 or val.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return NotImplemented
    mask = b(aten.lt.Scalar, _drawn_like(b, x, _uniform), 1.0 - p)
    kept = b(aten.mul.Tensor, x, b(aten._to_copy.default, mask, dtype=val.dtype))
    return b(aten.mul.Tensor, kept, 1.0 / (1.0 - p)), mask


def _normal(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates" (1958)."""
    first, second = _uniform(b, size, dtype, device), _uniform(b, size, dtype, device)
    away = b(aten.add.Tensor, b(aten.neg.default, first), 1.0)  # never 0
    radius = b(aten.sqrt.default, b(aten.mul.Tensor, b(aten.log.default, away), -2.0))
    drawn: fx.Node = b(aten.mul.Tensor, radius, b(aten.cos.default, b(aten.mul.Tensor, second, 2 * math.pi)))
    return drawn


def _drawn_like(b: Builder, x: fx.Node, draw: Draw) -> fx.Node:
    val: torch.Tensor = x.meta["val"]
    if val.stride() == contiguous_strides(val.shape) or not _in_layout_of(x):
        return draw(b, val.shape, val.dtype, x.meta["device"])
    order = memory_order(tuple(val.shape), val.stride())
    drawn = draw(b, [val.shape[dim] for dim in order], val.dtype, x.meta["device"])
    back: fx.Node = b(aten.permute.default, drawn, [order.index(dim) for dim in range(len(order))])
    return back


def _factory(draw: Draw) -> Rule:
    """The rule of `rand` or `randn`, which differ in the distribution."""

    def rule(b: Builder, size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **rest: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        if dtype not in (*_FLOATS, *_DIGITS) or layout not in (None, torch.strided) or 0 in size:
            return NotImplemented
        if rest.get("generator") is not None:
            return NotImplemented
        return draw(b, size, dtype, device or torch.device("cpu"))

    return rule


def _changes(options: dict[str, Any]) -> bool:
    """Whether a result like another is to be something else than of another dtype."""
    given = {key for key, value in options.items() if value not in (None, False, torch.preserve_format)}
    return bool(given - {"dtype"})


def _like(draw: Draw) -> Rule:
    """The rule of `rand_like` or `randn_like`."""

    def rule(b: Builder, x: fx.Node, **options: Any) -> Any:
        val: torch.Tensor = x.meta["val"]
        if _changes(options) or val.dtype not in (*_FLOATS, *_DIGITS) or val.numel() == 0:
            return NotImplemented
        if options.get("dtype") not in (None, val.dtype):
            return NotImplemented
        return _drawn_like(b, x, draw) if _in_layout_of(x) else NotImplemented

    return rule


def _uniform_range(b: Builder, x: fx.Node, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or not _plain(x) or not _in_layout_of(x):
        return NotImplemented
    drawn = _drawn_like(b, x, _uniform)
    if low == 0 and high == 1:
        return drawn
    return b(aten.add.Tensor, b(aten.mul.Tensor, drawn, float(high - low)), float(low))


# --- other distributions, by the inverse of what accumulates


def _exponential_numbers(b: Builder, size: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """-log(1 - u), never 0"""
    away = b(aten.add.Tensor, b(aten.neg.default, _uniform(b, size, dtype, device)), 1.0)
    least = 2.0**-54 if dtype is torch.float64 else 2.0**-25
    drawn: fx.Node = b(aten.clamp_min.default, b(aten.neg.default, b(aten.log.default, away)), least)
    return drawn


def _filled(formula: Callable[..., Any], draw: Draw) -> Rule:
    """The rule of an op that fills a tensor with `formula(b, drawn, *parameters)`, NotImplemented of odd parameters."""

    def rule(b: Builder, x: fx.Node, *parameters: float, generator: Any = None) -> Any:
        if generator is not None or not _plain(x) or any(type(each) not in (int, float) for each in parameters):
            return NotImplemented
        return formula(b, _drawn_like(b, x, draw), *parameters)

    return rule


def _exponential(b: Builder, drawn: fx.Node, rate: float = 1.0) -> Any:
    return b(aten.div.Tensor, drawn, rate) if rate > 0 else NotImplemented


def _cauchy(b: Builder, drawn: fx.Node, median: float = 0.0, sigma: float = 1.0) -> Any:
    """median + sigma tan(pi (u - 1/2))"""
    if not sigma > 0:
        return NotImplemented
    angle = b(aten.mul.Tensor, b(aten.sub.Tensor, drawn, 0.5), math.pi)
    return b(aten.add.Tensor, b(aten.mul.Tensor, b(aten.tan.default, angle), sigma), median)


def _log_normal(b: Builder, drawn: fx.Node, mean: float = 1.0, std: float = 2.0) -> Any:
    """exp(mean + std n)"""
    scaled = _scaled_normal(b, drawn, mean, std) if std > 0 else NotImplemented
    return scaled if scaled is NotImplemented else b(aten.exp.default, scaled)


def _scaled_normal(b: Builder, drawn: fx.Node, mean: Any = 0.0, std: Any = 1.0) -> Any:
    """mean + std n"""
    if not isinstance(std, fx.Node) and not std >= 0:
        return NotImplemented
    return b(aten.add.Tensor, b(aten.mul.Tensor, drawn, std), mean)


def _geometric(b: Builder, drawn: fx.Node, p: float) -> Any:
    """ceil(log(1 - u) / log(1 - p)), at least 1"""
    if not 0 < p < 1:
        return NotImplemented
    count = b(aten.ceil.default, b(aten.mul.Tensor, drawn, -1.0 / math.log1p(-p)))
    return b(aten.clamp_min.default, count, 1.0)


def _normal_of(b: Builder, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    """`torch.normal`, where one of mean and standard deviation or both are tensors."""
    given = [each for each in (mean, std) if isinstance(each, fx.Node)]
    if generator is not None or not all(map(_plain, given)) or len({each.meta["val"].dtype for each in given}) > 1:
        return NotImplemented
    if isinstance(std, fx.Node):
        b.effect(aten._assert_async.msg, b(aten.all.default, b(aten.ge.Scalar, std, 0.0)), _NO_DEVIATION)
    size = list(torch.broadcast_shapes(*[each.meta["val"].shape for each in given]))
    return _scaled_normal(b, _normal(b, size, given[0].meta["val"].dtype, given[0].meta["device"]), mean, std)


_NO_DEVIATION = "normal expects all elements of std >= 0.0"
_MOST_INTEGERS = 1 << 32  # of which each is as likely as another by all that is known of 53 bits


def _integers(b: Builder, size: Any, low: Any, high: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Whole numbers from `low` up to, not including, `high`, which may vary with the sizes of the call."""
    if type(low) is not int or type(high) is not int or not 0 < high - low <= _MOST_INTEGERS:
        return NotImplemented
    if dtype not in _HOLDS or not -_HOLDS[dtype] <= low < high <= _HOLDS[dtype] + 1:
        return NotImplemented
    scaled = b(aten.mul.Tensor, _uniform(b, size, torch.float64, device), high - low)
    drawn = b(aten._to_copy.default, scaled, dtype=torch.int64)
    return b(aten._to_copy.default, b(aten.add.Tensor, drawn, low) if low else drawn, dtype=dtype)


_HOLDS = {
    **{dtype: torch.iinfo(dtype).max for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)},
    torch.float32: 1 << 24, torch.float64: 1 << 53,
}  # fmt: skip


def _randint(b: Builder, *bounds: Any, dtype: Any = None, layout: Any = None, device: Any = None, **rest: Any) -> Any:
    low, high, size = bounds if len(bounds) == 3 else (0, *bounds)
    if rest.get("generator") is not None or layout not in (None, torch.strided) or 0 in size:
        return NotImplemented
    return _integers(b, size, low, high, device or torch.device("cpu"), dtype or torch.int64)


def _integers_like(b: Builder, x: fx.Node, *bounds: Any, generator: Any = None, **options: Any) -> Any:
    val: torch.Tensor = x.meta["val"]
    if generator is not None or val.numel() == 0 or _changes(options) or options.get("dtype") not in (None, val.dtype):
        return NotImplemented
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return _integers(b, val.shape, low, high, x.meta["device"], val.dtype)


def _multinomial(b: Builder, p: fx.Node, count: Any, replacement: bool = False, *, generator: Any = None) -> Any:
    """The places of the largest p / q, where q are exponential numbers: without replacement."""
    if generator is not None or not _plain(p) or type(count) is not int or (replacement and count != 1):
        return NotImplemented
    finite = b(aten.logical_and.default, b(aten.ge.Scalar, p, 0.0), b(aten.lt.Scalar, p, math.inf))
    b.effect(aten._assert_async.msg, b(aten.all.default, finite), _NO_WEIGHTS)
    some = b(aten.gt.Scalar, b(aten.amax.default, p, [-1]), 0.0)
    b.effect(aten._assert_async.msg, b(aten.all.default, some), _NO_WEIGHT)
    weighed = b(aten.div.Tensor, p, _drawn_like(b, p, _exponential_numbers))
    if count == 1:
        return b(aten.argmax.default, weighed, -1, True)
    return b(aten.topk.default, weighed, count)[1]


_NO_WEIGHTS = "probability tensor contains either `inf`, `nan` or element < 0"
_NO_WEIGHT = "invalid multinomial distribution (sum of probabilities <= 0)"


RULES: dict[Any, Any] = {
    aten.bernoulli.p: _bernoulli_p,
    aten.bernoulli.default: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    **dict.fromkeys((aten.rand.default, aten.rand.generator), _factory(_unit)),
    aten.rand_like.default: _like(_unit),
    **dict.fromkeys((aten.randn.default, aten.randn.generator), _factory(_normal)),
    aten.randn_like.default: _like(_normal),
    aten.uniform.default: _uniform_range, aten.bernoulli.Tensor: _bernoulli_tensor,
    aten.exponential.default: _filled(_exponential, _exponential_numbers),
    aten.geometric.default: _filled(_geometric, _exponential_numbers),
    aten.cauchy.default: _filled(_cauchy, _uniform), aten.log_normal.default: _filled(_log_normal, _normal),
    aten.normal_functional.default: _filled(_scaled_normal, _normal),
    **dict.fromkeys((aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor), _normal_of),
    **{getattr(aten.randint, name): _randint for name in ("default", "low", "generator", "low_generator")},
    **dict.fromkeys((aten.randint_like.default, aten.randint_like.low_dtype), _integers_like),
    **dict.fromkeys((aten.random.to, getattr(aten.random, "from")), _integers_like),
    aten.multinomial.default: _multinomial,
}  # fmt: skip
