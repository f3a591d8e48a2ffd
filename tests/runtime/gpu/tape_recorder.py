"""A `Recorder` for CPU tensors: a tape of ATen calls, which a replay makes again in the same memory."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from argand.graph.operators.random_ops import random_ops

aten = torch.ops.aten


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, which this does not keep: a CUDA graph knows addresses only."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return tensor
    memory = torch.frombuffer((ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


class Tape(TorchDispatchMode):
    """As while a CUDA graph is recorded, nothing is written to what existed before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.made: list[torch.Tensor] = []

    def _addresses(self, value: Any) -> Any:
        own = {each.untyped_storage()._cdata for each in self.made}

        def replaced(leaf: Any) -> Any:
            outside = isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in own
            return unowned(leaf) if outside else leaf

        return pytree.tree_map(replaced, value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        known, named = self._addresses(args), self._addresses(kwargs)
        if func._schema.is_mutable:
            self.calls.append((func, known, named, None))
            return args[0]
        result = func(*args, **kwargs)
        # Allocations, and seeds, which are given.
        allocates = func in (aten.empty.memory_format, aten.empty_strided.default, random_ops().seed)
        if not allocates and not any(each.alias_info is not None for each in func._schema.returns):
            self.calls.append((func, known, named, result))
            self.made += [each for each in tensors(result) if each.layout is torch.strided]
        return result

    def clear(self) -> None:
        """Results are undefined until the first replay."""
        for *_, result in self.calls:
            for each in tensors(result):
                if each.layout is torch.strided:
                    each.fill_(float("nan") if each.is_floating_point() else 99)

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tensors(result), tensors(again)):
                old.copy_(new)


@dataclass
class Mark:
    """An event: its time in seconds; `late`: the device comes to it later than anybody asks."""

    seconds: float
    late: bool = False

    def query(self) -> bool:
        return not self.late

    def elapsed_time(self, other: Mark) -> float:
        return (other.seconds - self.seconds) * 1e3


class TapeRecorder:
    """Counts what is recorded and replayed.

    Arguments:
        foreign: somebody else records.
        fail: raised while recording.
        behind: seconds that the device takes for each mark, at least.
        late: the device is still at earlier work when the host is through with a call.
        crowd: why there is no memory for recordings that nobody asked for.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.active = False
        self.foreign = False
        self.fail: BaseException | None = None
        self.recorded = self.replayed = self.turns = 0
        self.underway = self.late = False
        self.marks = 0
        self.clock = self.behind = 0.0
        self.crowd = ""
        self.rooms: list[list[Tape]] = []
        self.parameters: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.lent: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.given_up: list[tuple[list[Tape], torch.Tensor]] = []

    def capturing(self) -> bool:
        return self.foreign or self.underway

    def room(self, *, lasting: bool, apart: bool = False) -> list[Tape]:
        """The tapes of a room, in the order in which they were recorded."""
        if apart:
            return []
        if lasting or not self.rooms:
            self.rooms.append([])
        return self.rooms[-1]

    def unowned(self, tensor: torch.Tensor, room: list[Tape]) -> torch.Tensor:
        """The tapes keep the memory."""
        storage = tensor.untyped_storage()
        memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        run = torch.frombuffer(memory, dtype=torch.uint8)
        self.given_up.append((room, run))
        return run

    def record(
        self, run: Callable[[], Any], room: list[Tape], *, draws: bool = False
    ) -> tuple[Callable[[], None], Any]:
        assert self.active and not self.underway
        tape = Tape()
        self.underway = True
        try:
            with tape:
                results = run()
                if self.fail is not None:
                    raise self.fail
        finally:
            self.underway = False
        with torch.no_grad():
            tape.clear()
        self.recorded += 1
        room.append(tape)

        def replay() -> None:
            assert self.turns % 2 == 1, "outside of a turn"
            self.replayed += 1
            for later in room[room.index(tape) + 1 :]:
                later.clear()  # what it left may lie where this has its temporaries
            tape.replay()
            for there, run in self.given_up:
                if there is room and tape is not room[0]:
                    run.fill_(255)  # it was free for what this leaves behind

        return replay, results

    def mark(self) -> Any:
        """The device is at the end of its work at once, or `behind` seconds after the last mark."""
        self.clock = max(self.clock + self.behind, time.perf_counter())
        self.marks += 1
        return Mark(self.clock, self.late and self.marks % 2 == 1)  # the first of two stands before a call

    def crowded(self) -> str:
        return self.crowd

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self.turns += 1
        try:
            yield
        finally:
            self.turns += 1

    @contextlib.contextmanager
    def placing(self, room: list[Tape]) -> Iterator[None]:
        yield
