"""Loops over time steps whose body is one kernel: `argand::steps` calls it once a step, without Python in between.

What the body carries from step to step, and what is read after the loop, lies step after step in one tensor each; of
what is carried the first step's lies before it. Generated code holds the kernel's text and the description of its
arguments, so that programs with loops are stored as any other; graphs of a process name them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch

from argand.graph.operators.registration import Operators
from argand.runtime import toolchain
from argand.runtime.kernels import background_kernels
from argand.runtime.launch import make_kernel
from argand.runtime.profile import Kernel

MOST_POINTERS = 64  # of a kernel: as many as `steps.h` has room for


@dataclass(frozen=True, slots=True)
class Steps:
    """A loop.

    Arguments:
        symbol: of the kernel.
        count: steps.
        layouts: size and strides that the kernel expects of each input.
        results: size (of a step), name of the dtype, and the number of the input that the first step reads instead of
            a result; -1 where none is read.
        pointers: of the kernel, in order: "input", "read" or "write", the number of the input or result, where its
            first element lies and how far it advances, in elements.
    """

    symbol: str
    count: int
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    results: tuple[tuple[tuple[int, ...], str, int], ...]
    pointers: tuple[tuple[str, int, int, int], ...]


class _Loops:
    """Loops that graphs of this process name: the kernel's source, and the description."""

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
    told = Steps(*ast.literal_eval(LOOPS.told[name][1]))
    return [_empty(result, told.count, "meta") for result in told.results]


def _by_name(name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if name not in LOOPS.loaded:
        LOOPS.loaded[name] = load_steps(*LOOPS.told[name])
    return LOOPS.loaded[name](name, inputs)


def load_steps(source: str, loop: str) -> Callable[..., list[torch.Tensor]]:
    """The function of a loop: takes its name and its inputs. Its kernel is loaded now, not when it is called first."""
    told = Steps(*ast.literal_eval(loop))
    body, driver = toolchain.load_text(source), toolchain.load_text(background_kernels.text_of("steps"), name="steps")
    pointers = len(told.pointers)
    call = make_kernel(driver.address("steps"), "steps", pointers, 3 + 2 * pointers)
    return functools.partial(_run, told, call, body.address(told.symbol))


def _run(told: Steps, call: Kernel, address: int, name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    given = [_laid_out(tensor, *layout) for tensor, layout in zip(inputs, told.layouts)]
    results = [_empty(result, told.count, "cpu") for result in told.results]
    for tensor, (_, _, first) in zip(results, told.results):
        if first >= 0:
            tensor[0].copy_(inputs[first])
    tensors, moves = [], []
    for kind, number, first, step in told.pointers:
        tensor = given[number] if kind == "input" else results[number]
        tensors.append(tensor)
        moves += [first * tensor.element_size(), step * tensor.element_size()]
    call(*tensors, address, told.count, len(tensors), *moves)
    return results


def _empty(result: tuple[tuple[int, ...], str, int], count: int, device: str) -> torch.Tensor:
    size, dtype, first = result
    return torch.empty((count + (first >= 0), *size), dtype=getattr(torch, dtype), device=device)


def _laid_out(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
