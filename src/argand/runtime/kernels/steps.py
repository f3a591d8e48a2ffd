"""Loops over time steps: `argand::steps` runs the kernels and products of a round once a step, without Python in
between.

What a round hands to the next, and what is read after the loop, lies step after step in one tensor each; of what is
handed on the first step's lies before it. Where only the last step's is read, there is room for two. Generated code
holds the kernels' text and the description of the loop, so that programs with loops are stored as any other; graphs of
a process name them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch

from argand.graph.operators.registration import Operators
from argand.quick_dataclasses import dataclass
from argand.runtime import toolchain
from argand.runtime.kernels.texts import text_here
from argand.runtime.launch import make_kernel
from argand.runtime.profile import Kernel

_PANEL = 128  # bytes: widest rows of a packed panel
_KINDS = {"float32": 1, "float64": 2}
_NO_PRODUCT = (0,) * 22


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel of a round, or a product.

    Arguments:
        pointers: of the kernel; of a product, those of what is added, -1 for nothing, left, right and result.
        symbol: of the kernel; "" for a product.
        dtype, sizes: of a product: (batch, m, n, k).
        strides: three for each of its four pointers, in elements.
        constant: its right side is the same in all steps.
    """

    pointers: tuple[int, ...]
    symbol: str = ""
    dtype: str = ""
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """A loop.

    Arguments:
        count: steps.
        layouts: size and strides that the loop expects of each input.
        results: size (of a step), name of the dtype, the number of the input that the first step reads instead of
            a result, -1 where none is read, and rows that there is room for.
        room: bytes for what a round does not hand on.
        pointers: "input", "result" or "room", the number of the input or result, where it begins and how far it
            advances in a step, in bytes; after how many steps it begins anew, 0 for never, and how many it is ahead.
        calls: of a round, in order.
    """

    count: int
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    results: tuple[tuple[tuple[int, ...], str, int, int], ...]
    room: int
    pointers: tuple[tuple[str, int, int, int, int, int], ...]
    calls: tuple[Call, ...]


def _described(loop: str) -> Steps:
    count, layouts, results, room, pointers, calls = ast.literal_eval(loop)
    return Steps(count, layouts, results, room, pointers, tuple(Call(*call) for call in calls))


class _Loops:
    """Loops that graphs of this process name: the kernels' source, and the description."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[str, str]] = {}
        self.loaded: dict[str, Callable[..., list[torch.Tensor]]] = {}


LOOPS = _Loops()


def named(source: str, steps: Steps) -> str:
    """The name by which a graph calls a loop."""
    loop = repr(astuple(steps))
    name = hashlib.sha256((source + loop).encode()).hexdigest()[:16]
    LOOPS.told[name] = source, loop
    return name


@functools.cache
def steps_ops() -> Operators:
    """Defines the op, once per process."""
    return Operators({"steps(str loop, Tensor[] inputs) -> Tensor[]": {"CPU": _by_name, "Meta": _sizes}})


def _sizes(name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    told = _described(LOOPS.told[name][1])
    return [_empty(result, "meta") for result in told.results]


def _by_name(name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if name not in LOOPS.loaded:
        LOOPS.loaded[name] = load_steps(*LOOPS.told[name])
    return LOOPS.loaded[name](name, inputs)


def load_steps(source: str, loop: str) -> Callable[..., list[torch.Tensor]]:
    """The function of a loop: takes its name and its inputs. Its kernels are loaded now, not when it is called."""
    told = _described(loop)
    driver = toolchain.load_text(text_here("steps"), toolchain.cpu_isa(), name="steps")
    addresses: dict[str, int] = {}
    if source:
        body = toolchain.load_text(source)
        addresses = {call.symbol: body.address(call.symbol) for call in told.calls if call.symbol}
    call = make_kernel(driver.address("steps"), "steps", 3 + len(told.layouts) + len(told.results), 0)
    table, packed = _table(told, addresses)
    return functools.partial(_run, told, call, table, packed)


def _table(told: Steps, addresses: dict[str, int]) -> tuple[torch.Tensor, int]:
    """What `steps.h` reads, and how many bytes the packed sides of products take."""
    before = {"input": 0, "result": len(told.layouts), "room": len(told.layouts) + len(told.results)}
    numbers = [told.count, len(told.pointers), len(told.calls)]
    for kind, number, *rest in told.pointers:
        numbers += [before[kind] + number, *rest]
    arguments: list[int] = []
    packed = 0
    for call in told.calls:
        if call.symbol:
            numbers += [0, addresses[call.symbol], len(call.pointers), *_NO_PRODUCT]
            arguments += call.pointers
            continue
        batch, _, n, k = call.sizes
        element = torch.finfo(getattr(torch, call.dtype)).bits // 8
        numbers += [_KINDS[call.dtype], 0, 0, *call.pointers, *call.sizes, *call.strides, packed, int(call.constant)]
        packed += batch * k * ((n * element + _PANEL - 1) // _PANEL * _PANEL)
    return torch.tensor([*numbers, *arguments]), packed


def _run(
    told: Steps, call: Kernel, table: torch.Tensor, packed: int, name: str, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    given = [_laid_out(tensor, *layout) for tensor, layout in zip(inputs, told.layouts)]
    results = [_empty(result, "cpu") for result in told.results]
    for tensor, (_, _, first, _) in zip(results, told.results):
        if first >= 0:
            tensor[0].copy_(inputs[first])
    rooms = [torch.empty(max(size, 1), dtype=torch.uint8) for size in (packed, told.room)]
    call(table, rooms[0], *given, *results, rooms[1])
    return results


def _empty(result: tuple[tuple[int, ...], str, int, int], device: str) -> torch.Tensor:
    size, dtype, _, rows = result
    return torch.empty((rows, *size), dtype=getattr(torch, dtype), device=device)


def _laid_out(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
