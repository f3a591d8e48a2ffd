"""Whether a graph's convolutions have the channels of their operands innermost: found by timing them on the device.

What is found is kept in the disk cache, by what was timed. On a CPU nothing is timed: depthwise ones want it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand import events
from argand.backends.targets import target_of
from argand.graph.nodes.program import AtenProgram
from argand.lower.lowerings.depthwise import becomes_loops, is_depthwise
from argand.passes.channels_last import convolutions, lay_out
from argand.runtime import cache
from argand.runtime.gpu.device.timing import can_time, random_tensor, time_calls

Timer = Callable[[Sequence[Callable[[], object]], torch.device], list[float]]

_SHARE = 0.6  # of the estimated time of all convolutions: those that are timed take as much, the longest ones first
_BYTES_PER_FLOP = 1 / 150  # as fast as a GPU's memory and its units for products of 16-bit floats are
_GAIN = 0.93  # of the time as it is: the graph's inputs and results have to be laid out anew
_LEAST = 20.0  # microseconds to be gained: as much as a few kernels more cost


def choose_layouts(program: AtenProgram, timer: Timer = time_calls) -> int:
    """Lay a program's convolutions out with the channels innermost, in place, if they are faster so.

    Those that become kernels of argand's are not timed: this is their layout. On targets where nothing is timed, all
    are laid out if a depthwise one is among them: there the library, too, is up to four times as fast so.

    Arguments:
        timer: gives the microseconds of each of some calls.

    Returns:
        how many nodes have another layout then.
    """
    found = [node for node in convolutions(program) if _has_choice(node.meta["device"])]
    if found and not _is_timed(found[0].meta["device"]):
        return lay_out(program, found) if any(map(_is_wide_depthwise, found)) else 0
    timed = [node for node in found if not _is_loops(node)]
    if not timed or not can_time():
        return 0
    kinds = Counter(_kind(node) for node in timed)
    note = f"layout-{cache.digest(str((sorted(kinds.items()), *_versions(timed[0].meta['device']))))}"
    times = _from_note(cache.read_note(note))
    if times is None:
        try:
            with events.span("time_layouts", "backend", convolutions=len(kinds)):
                times = _times(_longest({_kind(node): node for node in timed}, kinds), kinds, timer)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 0
        cache.write_note(note, {name: f"{time:.3f}" for name, time in times.items()})
    before, after = times["as it is"], times["channels innermost"]
    chosen = after < _GAIN * before and after + _LEAST < before
    events.emit(
        "autotuning", "backend",
        f"{len(found)} convolutions: {'channels innermost' if chosen else 'as they are'} "
        f"(channels innermost: {after:.1f} us; as they are: {before:.1f} us)",
        product="convolutions", chosen="channels innermost" if chosen else "as they are", times=times,
    )  # fmt: skip
    return lay_out(program, found) if chosen else 0


def _has_choice(device: torch.device) -> bool:
    target = target_of(device)
    return target is not None and (target.times_layouts or target.depthwise_innermost)


def _is_timed(device: torch.device) -> bool:
    target = target_of(device)
    return target is not None and target.times_layouts


def _is_loops(node: fx.Node) -> bool:
    """Whether a convolution, or all that is asked of a gradient, is argand's own once its channels are innermost."""
    target = target_of(node.meta["device"])
    found = _depthwise(node)
    if target is None or found is None or not becomes_loops(target, found.dtype, found.shape[2:], True):
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
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name, torch.__version__, str(torch.backends.cudnn.version()), str(torch.backends.cudnn.benchmark)


def _from_note(note: Mapping[str, str] | None) -> dict[str, float] | None:
    if note is None or set(note) != {"as it is", "channels innermost"}:
        return None
    return {name: float(time) for name, time in note.items()}


def _kind(node: fx.Node) -> str:
    """What the time of a convolution depends on."""
    tensors = [arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args[:3]]
    described = [(tuple(t.shape), t.stride(), str(t.dtype)) if isinstance(t, torch.Tensor) else None for t in tensors]
    return str((str(node.target), described, node.args[3:]))


def _longest(nodes: Mapping[str, fx.Node], counts: Mapping[str, int]) -> dict[str, fx.Node]:
    """The kinds of convolutions that take most of the time: the library searches for its kernels anew for each kind."""
    shares = {kind: counts[kind] * _estimate(node) for kind, node in nodes.items()}
    left = _SHARE * sum(shares.values())
    chosen: dict[str, fx.Node] = {}
    for kind in sorted(shares, key=lambda kind: -shares[kind]):
        if left <= 0:
            break
        chosen[kind] = nodes[kind]
        left -= shares[kind]
    return chosen


def _estimate(node: fx.Node) -> float:
    """How long a convolution or its gradients take, in the time of a byte: reading and writing, or multiplying."""
    forward = node.target is torch.ops.aten.convolution.default
    x, weight = (arg.meta["val"] for arg in node.args[:2] if isinstance(arg, fx.Node))
    made = node.meta["val"]
    if not forward:  # the gradient, the argument, the weight
        made, x, weight = x, weight, node.args[2].meta["val"]
    moved = sum(float(each.numel() * each.element_size()) for each in (x, weight, made))
    products = 2.0 * made.numel() * weight.numel() / max(weight.shape[0], 1)
    return (1.0 if forward else 2.0) * max(moved, products * _BYTES_PER_FLOP)


def _times(nodes: Mapping[str, fx.Node], counts: Mapping[str, int], timer: Timer) -> dict[str, float]:
    """Microseconds of these convolutions together, as often as there are such, in both layouts."""
    total = [0.0, 0.0]
    for kind, node in nodes.items():
        for place, time in enumerate(timer(_ways(node), node.meta["device"])):
            total[place] += counts[kind] * time
    return {"as it is": total[0], "channels innermost": total[1]}


def _ways(node: fx.Node) -> list[Callable[[], object]]:
    """A convolution of random numbers as it is, and with the channels innermost; its weight is laid out anew."""
    device: torch.device = node.meta["device"]
    last, rest = torch.channels_last, node.args[3:]
    first, second, third = (_random(arg, device) for arg in node.args[:3])
    assert first is not None and second is not None  # a convolution has them
    laid, other = first.contiguous(memory_format=last), second.contiguous(memory_format=last)
    call: Callable[..., object] = node.target
    if node.target is torch.ops.aten.convolution.default:
        return [
            lambda: call(first, second, third, *rest),
            lambda: call(laid, second.contiguous(memory_format=last), third, *rest),
        ]
    assert third is not None  # the weight, after the gradient and the argument
    return [
        lambda: call(first, second, third, *rest),
        lambda: call(laid, other, third.contiguous(memory_format=last), *rest),
    ]


def _random(arg: Any, device: torch.device) -> torch.Tensor | None:
    if not isinstance(arg, fx.Node):
        return None
    val: torch.Tensor = arg.meta["val"]
    return random_tensor(val.shape, val.stride(), val.dtype, device)
