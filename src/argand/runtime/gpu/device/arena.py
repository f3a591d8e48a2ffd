"""Memory of a GPU graph's temporaries: one block per stream, kept between calls and shared by all compiled graphs.

Kernels of one stream run one after the other, so the next call may write where the last one's kernels have yet to read.
Each stream has arenas of its own. A call that the program records as a CUDA graph gets an arena that nobody else will
ever use: the recording's replays go on using that memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from argand.runtime.arena import MAX_LAYOUTS, Block, Views, laid_out

_HELD_PART = 16  # of a GPU's memory that an arena may keep from other uses


class Streams(Protocol):
    """What arenas ask of a device."""

    def lasting(self) -> int | None:
        """The current stream, if its handle means the same stream for ever, and it is not being recorded."""

    def most_held(self) -> int:
        """Bytes that an arena may have and be kept."""


class DeviceArena(Block):
    """A block of a device's.

    Arguments:
        stream: the only one that uses it; None: it belongs to one call.
    """

    __slots__ = ("_workspace", "stream")

    def __init__(self, nbytes: int, device: str, stream: int | None) -> None:
        super().__init__(nbytes, device)
        self.stream = stream
        self._workspace: torch.Tensor | None = None

    def workspace(self, nbytes: int) -> torch.Tensor | None:
        """Memory for what runs in between, of at least `nbytes`; None where nothing is needed."""
        if nbytes and (self._workspace is None or self._workspace.numel() < nbytes):
            self._workspace = None  # before a larger one is asked for
            with torch.inference_mode(False):
                self._workspace = torch.empty(nbytes, dtype=torch.uint8, device=self.storage.device)
        return self._workspace


class DeviceArenas:
    """Arenas of a device that no call uses at the moment, by stream.

    Arguments:
        device: "cuda:0".
        streams: tells the current one.
    """

    def __init__(self, device: str, streams: Streams) -> None:
        self._device = device
        self._streams = streams
        self._free: dict[int, list[DeviceArena]] = {}

    def take(self, nbytes: int, layout: Callable[[Any], Views]) -> DeviceArena:
        """An arena of at least `nbytes`, with `views[layout]` made by `layout`."""
        arena = self._taken(nbytes)
        if layout not in arena.views:
            arena.views[layout] = laid_out(layout, arena)
        return arena

    def take_sized(self, key: tuple[Any, ...], nbytes: Callable[..., int]) -> DeviceArena:
        """An arena with `views[key]`, for `key = (layout, *sizes)`.

        Arguments:
            key: `layout(arena, *sizes)` makes the views, once per arena and sizes.
            nbytes: `nbytes(*sizes)` bytes are needed.
        """
        arena = self._taken(nbytes(*key[1:]))
        if key not in arena.views:
            if len(arena.views) >= MAX_LAYOUTS:
                arena.views.clear()
            arena.views[key] = laid_out(key[0], arena, *key[1:])
        return arena

    def _taken(self, nbytes: int) -> DeviceArena:
        stream = self._streams.lasting()
        if stream is None:
            return DeviceArena(nbytes, self._device, None)
        try:
            arena = self._free[stream].pop()  # atomic: one thread gets it
        except (KeyError, IndexError):
            return DeviceArena(nbytes, self._device, stream)
        if arena.nbytes >= nbytes:
            return arena
        del arena  # before a larger one is asked for
        return DeviceArena(nbytes, self._device, stream)

    def give(self, arena: DeviceArena) -> None:
        """Return an arena, when the call's last kernel is in its stream's queue."""
        if arena.stream is not None and arena.nbytes <= self._streams.most_held():
            self._free.setdefault(arena.stream, []).append(arena)

    def clear(self) -> None:
        """Free the memory of all arenas that are not in use."""
        self._free.clear()


class CudaStreams:
    """The streams of a GPU, as torch knows them.

    Arguments:
        index: of the GPU.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._raw: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._recording: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._kinds: dict[int, bool] = {0: True}  # handle -> whether it lasts; 0 is the default stream
        self._most = 0

    def lasting(self) -> int | None:
        stream = self._raw(self._index)
        lasts = self._kinds.get(stream)
        if lasts is None:  # a stream of the program's own (torch knows it by its handle) may make room for another
            lasts = self._kinds[stream] = torch.cuda.current_stream(self._index).stream_id != stream
        return None if not lasts or self._recording() else stream

    def most_held(self) -> int:
        if not self._most:
            self._most = torch.cuda.get_device_properties(self._index).total_memory // _HELD_PART
        return self._most


@functools.cache
def _pools() -> dict[int, DeviceArenas]:
    return {}


def device_arenas(device: str) -> DeviceArenas:
    """The arenas of a GPU ("cuda:0"; "cuda" is the current one)."""
    index = torch.device(device).index
    place = torch.cuda.current_device() if index is None else int(index)
    known = _pools()
    return known.get(place) or known.setdefault(place, DeviceArenas(f"cuda:{place}", CudaStreams(place)))


def clear(index: int | None = None) -> None:
    """Free the memory of all arenas that are not in use, of one GPU or of all."""
    for place, pool in tuple(_pools().items()):
        if index in (None, place):
            pool.clear()
