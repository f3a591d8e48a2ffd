"""Whether a graph's convolutions have the channels of their operands innermost: found by timing them on the device.

What is found is kept in the disk cache, by what was timed. Where a CPU has depthwise ones among them, nothing is timed:
these want it so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan, prod
from typing import Any

import torch
from torch import fx

from argand import events
from argand.backends.targets import target_of
from argand.graph.nodes.meta import mark_guess
from argand.graph.nodes.program import AtenProgram
from argand.ir.target import Target
from argand.lower.lowerings.depthwise import becomes_loops, has_few_channels, is_depthwise
from argand.passes.channels_last import convolutions, lay_out
from argand.quick_dataclasses import dataclass
from argand.runtime import cache, process, processor
from argand.runtime.gpu.device.timing import can_time, random_tensor, time_calls
from argand.runtime.kernels.convolutions import by_products

Timer = Callable[[Sequence[Callable[[], object]], torch.device], list[float]]
Group = tuple[fx.Node, ...]
Way = Callable[[], Any]

_SHARE = 0.6  # of the estimated time of all convolutions: those that are timed take as much, the longest ones first
_BYTES_PER_FLOP = 1 / 150  # as fast as a GPU's memory and its units for products of 16-bit floats are
_GAIN = 0.93  # of the time as it is: the graph's inputs and results have to be laid out anew
_GAIN_IN_HOST_MEMORY = 0.98  # there that is little beside the convolutions, and what lies between is as fast
_SLOWER = 1.03  # there: of the time of one kind as it is, above which it stays so
_POOLED = 4e-4  # microseconds of a thread that an element of a pool's window takes less with the channels innermost
_TRAINING = 3  # times as long may be timed where gradients are computed, too
_LEAST = 20.0  # microseconds to be gained: as much as a few kernels more cost


def choose_layouts(program: AtenProgram, timer: Timer = time_calls) -> int:
    """Lay a program's convolutions out with the channels innermost, in place, if they are faster so.

    Those that become kernels of argand's are not timed: this is their layout. On a CPU all are laid out if a depthwise
    one is among them: there the library, too, is up to four times as fast so.

    Arguments:
        timer: gives the microseconds of each of some calls.

    Returns:
        how many nodes have another layout then.
    """
    candidates = [node for node in convolutions(program) if _has_choice(node)]
    target = target_of(candidates[0].meta["device"]) if candidates else None
    if target is None:
        return 0
    host = target.host_memory
    if target.depthwise_innermost and any(map(_is_wide_depthwise, candidates)):
        return lay_out(program, candidates, weights=not host)
    candidates = [node for node in candidates if not _is_product(node)]
    timed = [node for node in candidates if not _is_loops(node)]
    if not _can_time(target, timed):
        return 0
    groups = _groups(timed, together=host)
    times = _known_times(groups, timer, target)
    if times is None:
        return 0
    before = times.before + (_pools(program) / target.threads if host else 0.0)
    gains = times.after < (_GAIN_IN_HOST_MEMORY if host else _GAIN) * before and times.after + _LEAST < before
    chosen = gains and times.before > 0.0  # else pools are all that is known
    events.emit(
        "autotuning", "backend",
        f"{len(candidates)} convolutions: {'channels innermost' if chosen else 'as they are'} "
        f"(channels innermost: {times.after:.1f} us; as they are: {before:.1f} us)"
        f"{'' if times.whole else '; others had the processors while they were timed'}",
        product="convolutions", chosen="channels innermost" if chosen else "as they are",
        times={"as it is": before, "channels innermost": times.after},
    )  # fmt: skip
    if not times.whole:
        mark_guess(candidates[0])
    if not chosen:
        return 0
    stay = {node for group in groups if _digest(_kind(group)) in times.slower for node in group}
    return lay_out(program, [node for node in candidates if node not in stay], weights=not host)


def _known_times(groups: Sequence[Group], timer: Timer, target: Target) -> _Times | None:
    """The times of these convolutions, from the cache or measured; None where the device has no room for that."""
    kinds = Counter(map(_kind, groups))
    device: torch.device = groups[0][0].meta["device"]
    note = f"layout-{cache.digest(str((sorted(kinds.items()), *_versions(device))))}"
    times = _from_note(cache.read_note(note))
    if times is not None:
        return times
    each = target.host_memory
    seconds = target.layout_seconds * (_TRAINING if any(len(group) > 1 for group in groups) else 1)
    try:
        with events.span("time_layouts", "backend", convolutions=len(kinds)):
            unlike = {_kind(group): group for group in groups}
            times = _times(_longest(unlike, kinds), kinds, timer, seconds, each=each)
            if each:
                heavy = [kind for kind, group in unlike.items() if _is_heavy(group)]
                times = replace(times, slower=times.slower | {_digest(kind) for kind in heavy} - times.timed)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    if not process.compiling() and times.whole:  # else they are good enough for now
        cache.write_note(note, times.as_note())
    return times


def _groups(nodes: Sequence[fx.Node], *, together: bool) -> list[Group]:
    """The convolutions that are laid out together: where that is asked for, each with the gradients of its operands."""
    if not together:
        return [(node,) for node in nodes]
    by_operands: dict[tuple[object, ...], list[fx.Node]] = {}
    for node in nodes:
        operands = node.args[:2] if _is_forward(node) else node.args[1:3]
        by_operands.setdefault(operands, []).append(node)
    return [tuple(group) for group in by_operands.values()]


def _is_heavy(group: Group) -> bool:
    """Whether the weights, which training lays out anew in each step, there and back, are more than what they weigh."""
    result, x, weight = _operands(group[0])
    return len(group) > 1 and weight.numel() > result.numel() + x.numel()


def _pools(program: AtenProgram) -> float:
    """Microseconds of a CPU's thread that pools take longer row after row than with the channels innermost."""
    aten = torch.ops.aten
    pools = [
        n for n in program.graph.nodes if n.target in (aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)
    ]
    results = [
        node.meta["val"] if isinstance(node.meta["val"], torch.Tensor) else node.meta["val"][0] for node in pools
    ]
    return _POOLED * sum(float(result.numel() * prod(node.args[1])) for result, node in zip(results, pools))


@dataclass(frozen=True, slots=True)
class _Times:
    """What timing convolutions found.

    Arguments:
        before: microseconds as they are.
        after: microseconds with the channels innermost, of all but those that are slower so.
        slower: digests of the kinds that stay as they are.
        timed: digests of the kinds that were timed.
        whole: these are all that were to be timed: others had the processors during none.
    """

    before: float
    after: float
    slower: frozenset[str]
    timed: frozenset[str] = frozenset()
    whole: bool = True

    def as_note(self) -> dict[str, str]:
        """As texts for the cache."""
        return {
            "as it is": f"{self.before:.3f}",
            "channels innermost": f"{self.after:.3f}",
            "slower so": " ".join(sorted(self.slower)),
        }


def _has_choice(node: fx.Node) -> bool:
    """Whether its layout may be another one; where few channels are, they need not be innermost."""
    target = target_of(node.meta["device"])
    if target is None or not (target.times_layouts or target.depthwise_innermost):
        return False
    weight = _depthwise(node) if target.depthwise_innermost else None
    return weight is None or not has_few_channels(weight.shape[0])


def _is_product(node: fx.Node) -> bool:
    """Whether ATen computes it, on a CPU, as a product of matrices: with the channels innermost it lays the weight out
    in each call, into memory that may be new each time (a small ResNet ran at 0.6 of eager's speed so)."""
    _, x, weight = _operands(node)
    stride, _, dilation, transposed, _, groups = node.args[3:9] if _is_forward(node) else node.args[4:10]
    if node.meta["device"].type != "cpu" or x.dtype is not torch.float32 or transposed or x.dim() != 4:
        return False
    if set(weight.shape[2:]) == {1} or not all(isinstance(n, int) for n in x.shape):
        return False  # a weight of one point lies alike in both layouts
    return by_products(x.shape, weight.shape, stride, dilation, groups)


def _can_time(target: Target, nodes: Sequence[fx.Node]) -> bool:
    """Whether timing is possible, allowed (the host's threads run one at a time) and worth it.

    With deterministic algorithms a process is to compute what another one does.
    """
    if not nodes or not target.times_layouts or not can_time():
        return False
    if target.host_memory and torch.are_deterministic_algorithms_enabled():
        return False
    tensors = [arg.meta["val"] for node in nodes for arg in node.args[:3] if isinstance(arg, fx.Node)]
    if any(not isinstance(n, int) for tensor in tensors for n in (*tensor.shape, *tensor.stride())):
        return False
    return sum(map(_products, nodes)) >= target.layout_products


def _is_loops(node: fx.Node) -> bool:
    """Whether a convolution, or all that is asked of a gradient, is argand's own once its channels are innermost."""
    target = target_of(node.meta["device"])
    weight = _depthwise(node)
    if target is None or weight is None or not becomes_loops(target, weight.dtype, weight.shape[2:], True):
        return False
    return target.depthwise_weights or node.target is torch.ops.aten.convolution.default


def _is_wide_depthwise(node: fx.Node) -> bool:
    weight = _depthwise(node)
    return weight is not None and weight.dtype in (torch.float32, torch.float64)


def _depthwise(node: fx.Node) -> torch.Tensor | None:
    """The weight of a depthwise convolution."""
    first = 0 if node.target is torch.ops.aten.convolution.default else 1
    x, weight = (arg.meta["val"] for arg in node.args[first : first + 2] if isinstance(arg, fx.Node))
    transposed, groups = node.args[6 + first], node.args[8 + first]
    return weight if is_depthwise(x.shape, weight.shape, bool(transposed), groups) else None


def _versions(device: torch.device) -> tuple[str, ...]:
    """What times depend on besides the convolutions."""
    if device.type != "cuda":
        return device.type, processor.model(), torch.__version__, str(torch.get_num_threads()), "calm"
    name = torch.cuda.get_device_name(device)
    return name, torch.__version__, str(torch.backends.cudnn.version()), str(torch.backends.cudnn.benchmark)


def _from_note(note: Mapping[str, str] | None) -> _Times | None:
    if note is None or set(note) != {"as it is", "channels innermost", "slower so"}:
        return None
    return _Times(float(note["as it is"]), float(note["channels innermost"]), frozenset(note["slower so"].split()))


def _digest(kind: str) -> str:
    return cache.digest(kind)[:16]


def _kind(group: Group) -> str:
    """What the time of a group depends on."""
    return " and ".join(map(_kind_of_node, group))


def _kind_of_node(node: fx.Node) -> str:
    tensors = [arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args[:3]]
    described = [(tuple(t.shape), t.stride(), str(t.dtype)) if isinstance(t, torch.Tensor) else None for t in tensors]
    return str((str(node.target), described, node.args[3:]))


def _longest(groups: Mapping[str, Group], counts: Mapping[str, int]) -> dict[str, Group]:
    """The kinds of convolutions that take most of the time: the library searches for its kernels anew for each kind."""
    shares = {kind: counts[kind] * sum(map(_estimate, group)) for kind, group in groups.items()}
    left = _SHARE * sum(shares.values())
    chosen: dict[str, Group] = {}
    for kind in sorted(shares, key=lambda kind: -shares[kind]):
        if left <= 0:
            break
        chosen[kind] = groups[kind]
        left -= shares[kind]
    return chosen


def _estimate(node: fx.Node) -> float:
    """How long a convolution or its gradients take, in the time of a byte: reading and writing, or multiplying."""
    moved = sum(float(each.numel() * each.element_size()) for each in _operands(node))
    return max((1.0 if _is_forward(node) else 2.0) * moved, 2.0 * _products(node) * _BYTES_PER_FLOP)


def _products(node: fx.Node) -> float:
    """How many multiplications a convolution takes; its gradients take twice as many."""
    result, x, weight = _operands(node)
    transposed = bool(node.args[6 if _is_forward(node) else 7])
    points = (x if transposed else result).numel()
    return (1.0 if _is_forward(node) else 2.0) * points * weight.numel() / max(weight.shape[0], 1)


def _is_forward(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.convolution.default


def _operands(node: fx.Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result, the argument, the weight; of a backward, those of its forward."""
    first, second, third = (arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args[:3])
    result, x, weight = (node.meta["val"], first, second) if _is_forward(node) else (first, second, third)
    return result, x, weight


def _times(
    groups: Mapping[str, Group], counts: Mapping[str, int], timer: Timer, seconds: float, *, each: bool
) -> _Times:
    """The time of these convolutions together, as often as there are such, in both layouts.

    Arguments:
        seconds: none is begun that would follow after so long.
        each: those that are slower with the channels innermost may stay as they are.
    """
    before = after = 0.0
    slower: set[str] = set()
    timed: set[str] = set()
    whole, end = True, time.monotonic() + seconds
    for kind, group in groups.items():
        operands = _Operands(group[0].meta["device"])
        training = each and len(group) > 1
        as_it_is, innermost = _together([_ways(node, operands, training) for node in group], timer, operands.device)
        moved = 0.0
        if training and innermost > _SLOWER * as_it_is:  # else nobody asks
            (moved,) = _together([[_moved(node, operands)] for node in group], timer, operands.device)
        if isnan(as_it_is + moved):
            whole = False
        else:
            if each and innermost > _SLOWER * as_it_is + moved:
                slower.add(_digest(kind))
                innermost = as_it_is + moved
            timed.add(_digest(kind))
            before, after = before + counts[kind] * as_it_is, after + counts[kind] * innermost
        if time.monotonic() >= end:
            break
    return _Times(before, after, frozenset(slower), frozenset(timed), whole)


class _Operands:
    """Random numbers for the operands of some calls, each drawn and laid out once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._plain: dict[fx.Node, torch.Tensor] = {}
        self._innermost: dict[fx.Node, torch.Tensor] = {}

    def plain(self, arg: fx.Node) -> torch.Tensor:
        """As the graph has it."""
        if arg not in self._plain:
            val: torch.Tensor = arg.meta["val"]
            self._plain[arg] = random_tensor(val.shape, val.stride(), val.dtype, self.device)
        return self._plain[arg]

    def innermost(self, arg: fx.Node) -> torch.Tensor:
        """With the channels innermost."""
        if arg not in self._innermost:
            self._innermost[arg] = self.plain(arg).contiguous(memory_format=torch.channels_last)
        return self._innermost[arg]


def _together(ways: Sequence[list[Way]], timer: Timer, device: torch.device) -> list[float]:
    """How long each way takes for some calls, of each of which there are these ways."""
    return [sum(times) for times in zip(*(timer(of_call, device) for of_call in ways))]


def _ways(node: fx.Node, operands: _Operands, training: bool) -> list[Way]:
    """A convolution of random numbers as it is, and with the channels innermost; its weight is laid out anew.

    Arguments:
        training: on a CPU. There kernels lay the weight out, else the library does, and lay its gradient back.
    """
    last, rest = torch.channels_last, node.args[3:]
    first, second, third = (operands.plain(arg) if isinstance(arg, fx.Node) else None for arg in node.args[:3])
    assert second is not None  # a convolution has an argument and a weight
    laid = operands.innermost(node.args[0])
    call: Callable[..., Any] = node.target
    if _is_forward(node):
        in_kernel = training or operands.device.type != "cpu"
        return [
            lambda: call(first, second, third, *rest),
            lambda: call(laid, second.contiguous(memory_format=last) if in_kernel else second, third, *rest),
        ]
    other = operands.innermost(node.args[1])
    assert third is not None  # the weight, after the gradient and the argument

    def innermost() -> None:
        gradients = call(laid, other, third.contiguous(memory_format=last), *rest)
        if training and gradients[1] is not None:
            gradients[1].contiguous()

    return [lambda: call(first, second, third, *rest), innermost]


def _moved(node: fx.Node, operands: _Operands) -> Way:
    """The copies around a convolution that stays as it is."""
    last = torch.channels_last
    if _is_forward(node):
        x, result = operands.innermost(node.args[0]), operands.plain(node)
        return lambda: (x.contiguous(), result.contiguous(memory_format=last))
    grad, x = operands.innermost(node.args[0]), operands.plain(node.args[1])
    wanted = bool(node.args[-1][0])  # the gradient of the argument
    return lambda: (grad.contiguous(), x.contiguous(memory_format=last) if wanted else None)
