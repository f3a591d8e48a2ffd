"""Whether a graph's convolutions have the channels of their operands innermost: found by timing them on the device.

What is found is kept in the disk cache, by what was timed.
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
from argand.passes.channels_last import convolutions, lay_out
from argand.runtime import cache
from argand.runtime.gpu.device.timing import can_time, random_tensor, time_calls

Timer = Callable[[Sequence[Callable[[], object]], torch.device], list[float]]

_GAIN = 0.93  # of the time as it is: the graph's inputs and results have to be laid out anew
_LEAST = 20.0  # microseconds to be gained: as much as a few kernels more cost


def choose_layouts(program: AtenProgram, timer: Timer = time_calls) -> int:
    """Lay a program's convolutions out with the channels innermost, in place, if they are faster so.

    Arguments:
        timer: gives the microseconds of each of some calls.

    Returns:
        how many nodes have another layout then.
    """
    found = [node for node in convolutions(program) if _is_timed(node.meta["device"])]
    if not found or not can_time():
        return 0
    kinds = Counter(_kind(node) for node in found)
    note = f"layout-{cache.digest(str((sorted(kinds.items()), *_versions(found[0].meta['device']))))}"
    times = _from_note(cache.read_note(note))
    if times is None:
        try:
            with events.span("time_layouts", "backend", convolutions=len(kinds)):
                times = _times({_kind(node): node for node in found}, kinds, timer)
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


def _is_timed(device: torch.device) -> bool:
    target = target_of(device)
    return target is not None and target.times_layouts


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


def _times(nodes: Mapping[str, fx.Node], counts: Mapping[str, int], timer: Timer) -> dict[str, float]:
    """Microseconds of all convolutions together, in both layouts."""
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
