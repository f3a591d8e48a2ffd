"""`argand::flex_attention` and its backward: attention whose scores pass through functions, by Triton kernels.

The operators take the functions as Triton text. Their kernels are made for the sizes, strides and types of the tensors
at hand, when they are first called with such.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import torch

from argand import events
from argand.errors import GpuError
from argand.graph.operators.flex import strides_like
from argand.graph.operators.registration import Operators
from argand.quick_dataclasses import dataclass
from argand.runtime.gpu.device.target import gpu_target
from argand.runtime.gpu.kernels.load import load_triton_kernels
from argand.runtime.gpu.operators import flex_text
from argand.runtime.gpu.operators.flex_text import FlexShape, FlexText, Lists, Tiles

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""Types of queries, keys and values, as Triton calls them."""
WIDTHS = (16, 32, 64, 128)
"""Of a head that there are kernels for."""
READ_TYPES = {
    **TYPES, torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
SMALLEST = 16  # queries or keys of a tile, which tensor cores take
_INT32 = 1 << 30  # elements between the first and the last position of a head
_MOST_PROGRAMS = 65535  # along the second axis of a grid

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor[] lists, Tensor[] reads, str mods, float scale, int[] block, "
    "bool scored, bool masked, bool checks"
)


@dataclass(frozen=True, slots=True)
class Flex:
    """The arguments of a call besides its tensors.

    Arguments:
        mods: Triton functions `score_mod`, `mask_mod` and `score_grad`, those that do anything.
        scale: what products of queries and keys are multiplied with.
        block: queries and keys of a block of the block mask; (0, 0) where there is none.
        scored, masked: whether there are functions of scores, and of positions.
        checks: they have assertions.
    """

    mods: str
    scale: float
    block: tuple[int, int]
    scored: bool
    masked: bool
    checks: bool


@functools.cache
def flex_ops() -> Operators:
    """Defines the ops, once per process."""
    forward = f"flex_attention({_ARGUMENTS}) -> (Tensor, Tensor)"
    backward = (
        f"flex_attention_backward(Tensor grad, Tensor logs, Tensor delta, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
    )
    return Operators(
        {
            forward: {"CPU": _forward, "CUDA": _forward, "Meta": _results},
            backward: {"CPU": _backward, "CUDA": _backward, "Meta": _gradients},
        }
    )


# ---------------------------------------------------------------------- results


def _results(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    """The result, in the queries' order of memory, and the log2-sum-exp of each row."""
    size = (*query.shape[:3], value.shape[3])
    out = query.new_empty_strided(size, strides_like(size, query.stride()))
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


def _gradients(
    grad: torch.Tensor, logs: torch.Tensor, delta: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, *rest: Any,
) -> Any:  # fmt: skip
    return tuple([t.new_empty_strided(t.shape, strides_like(t.shape, t.stride())) for t in (query, key, value)])


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lists: Sequence[torch.Tensor],
    reads: Sequence[torch.Tensor], *flex: Any,
) -> Any:  # fmt: skip
    out, logs = _results(query, key, value)
    (kernel, grid), *_ = _launches(1, query.device, *_metadata((query, key, value, out), lists, reads, flex))
    kernel(*grid, 1, query, key, value, *_half(lists, 0), *reads, out, logs)
    return out, logs


def _backward(
    grad: torch.Tensor, logs: torch.Tensor, delta: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, lists: Sequence[torch.Tensor], reads: Sequence[torch.Tensor], *flex: Any,
) -> Any:  # fmt: skip
    gradients = _gradients(grad, logs, delta, query, key, value)
    first = (query, key, value, grad, logs, delta)
    metadata = _metadata((query, key, value, grad, grad, *gradients), lists, reads, flex)
    (kernel, grid), (other, others) = _launches(2, query.device, *metadata)
    kernel(*grid, 1, *first, *_half(lists, 0), *reads, gradients[0])
    other(*others, 1, *first, *_half(lists, 1), *reads, *gradients[1:])
    return gradients


@functools.lru_cache(maxsize=4096)
def _launches(count: int, device: torch.device, *metadata: Any) -> list[tuple[Any, tuple[int, int]]]:
    """The kernels of a forward (`count` is 1) or a backward (2) for tensors of these metadata, and their programs."""
    shape = _shape_of(*metadata)
    parts = ("forward",) if count == 1 else ("queries", "keys")
    return [_kernel(part, shape, str(device))[:2] for part in parts]


def _half(lists: Sequence[torch.Tensor], number: int) -> Sequence[torch.Tensor]:
    """The lists of queries' blocks, or of keys'."""
    count = len(lists) // 2
    return lists[number * count : (number + 1) * count]


# ---------------------------------------------------------------------- kernels


def _metadata(
    tensors: Sequence[torch.Tensor], lists: Sequence[torch.Tensor], reads: Sequence[torch.Tensor], flex: Any
) -> tuple[Any, ...]:
    """What kernels depend on: the arguments of `_shape_of`."""
    mods, scale, block, *flags = flex
    strides = tuple([tensor.stride()[:3] for tensor in tensors])
    sizes = tuple([tensor.shape for tensor in (*tensors[:3], *lists)])
    return sizes, strides, tensors[0].dtype, tuple([read.dtype for read in reads]), tuple(block), mods, scale, *flags


@functools.lru_cache(maxsize=4096)
def _shape_of(
    sizes: Any, strides: Any, dtype: torch.dtype, reads: tuple[torch.dtype, ...], block: Any, mods: str, scale: float,
    scored: bool, masked: bool, checks: bool,
) -> FlexShape:  # fmt: skip
    query, key, value, *lists = sizes
    by_query, by_key = [_lists(_half(lists, number)) if lists else None for number in (0, 1)]
    return FlexShape(
        batch=query[0], heads=query[1], keys=key[1], queries=query[2], others=key[2], width=query[3],
        value_width=value[3], dtype=TYPES[dtype], strides=strides, scale=scale, block=block, by_query=by_query,
        by_key=by_key, mods=mods, scored=scored, masked=masked,
        reads=tuple(["*" + READ_TYPES[read] for read in reads]), tiles=Tiles(0, 0, 0, 0), checks=checks,
    )  # fmt: skip


def _lists(sizes: Sequence[Sequence[int]]) -> Lists:
    batch, heads, rows, most = sizes[1]
    return Lists(batch, heads, rows, most, len(sizes) == 4)


@functools.lru_cache(maxsize=4096)
def _kernel(part: str, shape: FlexShape, device: str) -> tuple[Any, tuple[int, int], str]:
    """A kernel that launches, its programs, and its text; its tiles are smaller where the GPU has no room for the best.

    Raises:
        GpuError: it has room for none.
    """
    backend = backend_of(device)
    trouble = GpuError("")
    for tiles in smaller_and_smaller(tiles_for(part, shape, backend)):
        text = text_of(part, shape, backend, tiles)
        try:
            (kernel,) = load_triton_kernels(text.text, text.specs, device)
        except GpuError as error:
            trouble = error
            continue
        return kernel, text.grid, text.text
    raise trouble


def smaller_and_smaller(tiles: Tiles) -> list[Tiles]:
    """Tiles, then what takes less and less shared memory."""
    less = replace(tiles, stages=min(tiles.stages, 2), columns=max(SMALLEST, tiles.columns // 2))
    least = replace(less, stages=1, rows=max(SMALLEST, tiles.rows // 2))
    return list(dict.fromkeys((tiles, less, least)))


def prepare(
    tensors: Sequence[torch.Tensor], lists: Sequence[torch.Tensor], reads: Sequence[torch.Tensor], flex: Any,
    gradient: bool,
) -> None:  # fmt: skip
    """Compile the kernels of a call before it is made, several at a time; of the tensors the metadata are read.

    Arguments:
        gradient: the backward's, too, for a gradient that is laid out as the result.

    Raises:
        GpuError: the GPU refuses one.
    """
    query, _, value = tensors
    size = (*query.shape[:3], value.shape[3])
    out = strides_like(size, query.stride())[:3]
    own = [strides_like(tensor.shape, tensor.stride())[:3] for tensor in tensors]
    given = [tensor.stride()[:3] for tensor in tensors]
    sizes, _, *rest = _metadata(tensors, lists, reads, flex)
    device = str(query.device)
    wanted = [("forward", _shape_of(sizes, (*given, out), *rest))]
    if gradient:
        shape = _shape_of(sizes, (*given, out, out, *own), *rest)
        wanted += [("queries", shape), ("keys", shape)]
    with ThreadPoolExecutor(len(wanted), thread_name_prefix="argand-triton") as pool:
        kernels = [
            pool.submit(contextvars.copy_context().run, functools.partial(_kernel, *each, device)) for each in wanted
        ]
    for future in kernels:
        events.emit("kernel_code", "codegen", future.result()[-1])


def backend_of(device: str) -> str:
    """Triton's name of the maker of a device; "cuda" for one that is interpreted."""
    return "cuda" if torch.device(device).type == "cpu" else gpu_target(device).backend


def text_of(part: str, shape: FlexShape, backend: str, tiles: Tiles | None = None) -> FlexText:
    """The text of a kernel.

    Arguments:
        part: "forward", "queries" or "keys".
        shape: all but its tiles.
        backend: Triton's name of the maker of the GPU.
        tiles: others than those that are thought best.
    """
    chosen = tiles or tiles_for(part, shape, backend)
    write = {"forward": flex_text.forward_text, "queries": flex_text.queries_text, "keys": flex_text.keys_text}[part]
    return write(replace(shape, tiles=chosen))


def tiles_for(part: str, shape: FlexShape, backend: str) -> Tiles:
    """Tiles that fit the registers and the shared memory of a GPU, and divide the blocks of a block mask."""
    wide = max(shape.width, shape.value_width) > 64
    best = _TILES[f"{backend} fp32" if shape.dtype == "fp32" else backend][part][wide]
    if wide and part == "keys" and shape.scored and backend == "cuda":
        best = replace(best, warps=8)  # scores and their gradients take registers
    rows = _fitting(best.rows, shape.queries, shape.block[0])
    return replace(best, rows=rows, columns=_fitting(best.columns, shape.others, shape.block[1]))


_TILES: Final[dict[str, dict[str, tuple[Tiles, Tiles]]]] = {
    "cuda": {
        "forward": (Tiles(64, 64, 4, 3), Tiles(128, 128, 8, 3)),
        "queries": (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 3)),
        "keys": (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    },
    "hip": dict.fromkeys(("forward", "queries", "keys"), (Tiles(64, 32, 4, 1), Tiles(64, 32, 4, 1))),
    "hip fp32": dict.fromkeys(("forward", "queries", "keys"), (Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1))),
    "cuda fp32": {
        "forward": (Tiles(64, 32, 4, 1), Tiles(16, 64, 8, 1)),
        "queries": (Tiles(64, 32, 4, 1), Tiles(16, 64, 8, 1)),
        "keys": (Tiles(32, 64, 4, 1), Tiles(64, 16, 8, 1)),
    },
}
"""By maker and type, and kernel: for heads up to 64 wide, and wider ones; measured on an H200."""


def _fitting(tile: int, length: int, block: int) -> int:
    """The side of a tile, not beyond a length, that divides a block of the block mask (0: there is none)."""
    return min(tile, _power(length), block & -block if block else tile)


def _power(length: int) -> int:
    """The power of two that covers a length, not below what tensor cores take."""
    return max(SMALLEST, 1 << (length - 1).bit_length())


def refusal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: tuple[int, int], reads: Sequence[torch.Tensor]
) -> str:
    """Why there is no kernel for a call; "" when there is."""
    tensors = (query, key, value)
    if len({tensor.dtype for tensor in tensors}) != 1 or query.dtype not in TYPES:
        return "the types of its tensors"
    if query.shape[3] not in WIDTHS or value.shape[3] not in WIDTHS:
        return "the width of a head"
    if query.shape[0] != key.shape[0]:
        return "keys that all batches share"
    if query.shape[0] * query.shape[1] > _MOST_PROGRAMS:
        return "too many heads"
    if block != (0, 0) and any(size % SMALLEST for size in block):
        return "the size of a block"
    result = (*query.shape[:3], value.shape[3])
    results = [(result, query.stride()), *((tensor.shape, tensor.stride()) for tensor in tensors)]
    along = [tensor.stride(2) for tensor in tensors] + [strides_like(*layout)[2] for layout in results]
    lengths = [tensor.shape[2] for tensor in tensors] + [size[2] for size, _ in results]
    if any(length * stride > _INT32 for length, stride in zip(lengths, along)):
        return "positions of more than 32 bits"
    if any(read.dtype not in READ_TYPES for read in reads):
        return "the type of a tensor that a function reads"
    return ""
