"""Memory of temporaries: one block per running call, kept between calls and shared by all compiled graphs.

A call takes an arena from the pool and gives it back when it is done, so two threads (or a compiled function called by
an extern kernel of another) never share one, and the memory held between calls is that of the largest graph, not the
sum. An arena that a call does not give back because it raised is simply garbage-collected.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from argand.graph.compat import nothing_in

Views = tuple[Any, ...]

MAX_LAYOUTS = 256  # graphs and sizes of which an arena keeps the tensors
MOST_KEPT = 256 << 20  # bytes of blocks that forwards made, kept between calls
DIVIDED_BY_ZERO = 2  # what kernels flag; everything else is a position
MOST_TRIED = 4  # blocks of a size that are looked at before a new one is made


class IndexOutOfRange(IndexError, RuntimeError):
    """A position that a kernel looked up is out of range; eager's kernels raise one or the other."""


def laid_out(layout: Callable[..., Views], arena: Any, *sizes: int) -> Views:
    """What `layout` makes: tensors that may be written to in any mode, whatever the mode of the first call is."""
    with torch.inference_mode(False):
        return layout(arena, *sizes)


class Block:
    """One block of memory, and the tensors that host modules have laid out in it.

    Arguments:
        nbytes: size of the block.
    """

    __slots__ = ("nbytes", "storage", "views")

    def __init__(self, nbytes: int, device: str) -> None:
        self.nbytes = nbytes
        self.storage = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.views: dict[Any, Views] = {}  # by `layout`, or by (layout, *sizes)

    def tensor(self, offset: int, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the given layout whose first element is `offset` bytes into the block."""
        typed = torch.empty(0, dtype=dtype, device=self.storage.device)
        return typed.set_(self.storage.untyped_storage(), offset // dtype.itemsize, size, stride)


class Arena(Block):
    """A block of the host's, with the flag by which kernels report an error."""

    __slots__ = ("error", "flag")

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes, "cpu")
        self.error = torch.zeros(1, dtype=torch.int32, device="cpu")
        # Reading the flag through ctypes costs a tenth of Tensor.item().
        self.flag = ctypes.c_int32.from_address(self.error.data_ptr())

    def check(self) -> None:
        """Raise the error that a kernel has flagged.

        Raises:
            IndexError: a kernel met an index out of range.
            RuntimeError: integers were divided by 0.
        """
        flagged, self.flag.value = self.flag.value, 0
        if flagged == DIVIDED_BY_ZERO:
            raise RuntimeError("ZeroDivisionError")
        if flagged:
            raise IndexOutOfRange("index out of range in self")


class ArenaPool:
    """Arenas that no call uses at the moment."""

    def __init__(self) -> None:
        self._free: list[Arena] = []

    def take(self, nbytes: int, layout: Callable[[Arena], Views]) -> Arena:
        """An arena of at least `nbytes`, with `views[layout]` made by `layout`."""
        try:
            arena = self._free.pop()  # atomic: one thread gets it
        except IndexError:
            arena = Arena(nbytes)
        if arena.nbytes < nbytes:
            arena = Arena(nbytes)
        if layout not in arena.views:
            arena.views[layout] = laid_out(layout, arena)
        return arena

    def take_sized(self, key: tuple[Any, ...], nbytes: Callable[..., int]) -> Arena:
        """An arena with `views[key]`, for `key = (layout, *sizes)`.

        Arguments:
            key: `layout(arena, *sizes)` makes the views, once per arena and sizes.
            nbytes: `nbytes(*sizes)` bytes are needed.
        """
        try:
            arena = self._free.pop()
        except IndexError:
            arena = Arena(nbytes(*key[1:]))
        if key not in arena.views:
            wanted = nbytes(*key[1:])
            if arena.nbytes < wanted:
                arena = Arena(wanted)
            elif len(arena.views) >= MAX_LAYOUTS:
                arena.views.clear()
            arena.views[key] = laid_out(key[0], arena, *key[1:])
        return arena

    def give(self, arena: Arena) -> None:
        """Return an arena."""
        self._free.append(arena)

    def clear(self) -> None:
        """Free the memory of all arenas that are not in use."""
        self._free.clear()


arena_pool = ArenaPool()


class KeptBlocks:
    """Memory of what forwards keep for their backwards, for later forwards to use again.

    The C library would hand it back to the system when a backward has ended: mapped anew in each step, page by page, it
    costs up to a quarter of a step.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, deque[torch.UntypedStorage]] = {}  # by bytes

    def take(self, nbytes: int) -> torch.UntypedStorage:
        """A block in which no tensor is."""
        blocks = self._blocks.setdefault(nbytes, deque())
        for _ in range(min(len(blocks), MOST_TRIED)):
            try:
                block = blocks.pop()  # atomic: one thread gets it
            except IndexError:
                break
            held = sys.getrefcount(block) > 2  # this variable's and that of the call: a caller of Python's may add one
            if not held and nothing_in(block, nbytes):
                return block
            blocks.appendleft(block)
        self._make_room(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()

    def give(self, block: torch.UntypedStorage, nbytes: int) -> None:
        """Remember a block in which there are tensors now."""
        self._blocks.setdefault(nbytes, deque()).append(block)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()

    def _make_room(self, nbytes: int) -> None:
        """Forget blocks of the sizes that came first, up to what may be kept."""
        held = sum(size * len(blocks) for size, blocks in list(self._blocks.items()))
        for size in list(self._blocks):
            if held + nbytes <= MOST_KEPT:
                break
            held -= size * len(self._blocks.pop(size, ()))


kept_blocks = KeptBlocks()
