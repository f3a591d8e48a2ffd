"""What stored code refers to, of parts of capture that a process without captures does not import until they run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from argand._core import _C
from argand.graph.nodes.undone_writes import Copies


class _Known:
    """What is remembered of a frame's code that was not captured in this process."""

    def __init__(self) -> None:
        self.reruns = 0
        self.warned: set[str] = set()


class StoredRerun:
    """How transformed code of an earlier process falls back on the frame's own (`output.rerun.Rerun`).

    Arguments:
        code: of the frame.
        again, noticed, may_split, devices: of the `Rerun`.
        entry: `of_torch` of the block that the frame begins in; None where there is none.
        unwritten: of the `Rerun`.
    """

    def __init__(
        self,
        code: CodeType,
        again: tuple[type[Exception], ...],
        noticed: bool,
        may_split: bool,
        devices: tuple[torch.device, ...],
        entry: bool | None,
        unwritten: bool,
    ) -> None:
        self.code = weakref.ref(code)
        self.parts = again, noticed, may_split, devices, entry, unwritten
        self.plan: Any = None

    def real(self) -> Any:
        """What `output.rerun` works with."""
        if self.plan is None:
            self.plan = _C.Region(None, None, self._make)()  # which makes dataclasses: nothing to capture
        return self.plan

    def _make(self) -> object:
        from argand.capture.output import rerun

        return rerun.stored(self.code, _Known(), *self.parts)


def raised(
    error: BaseException,
    plan: StoredRerun,
    states: list[tuple[torch.device, torch.Tensor]] | tuple[()] = (),
    copies: Copies = (),
) -> Callable[[bool], None] | bool | None:
    """As `output.rerun.raised`."""
    from argand.capture.output import rerun

    return rerun.raised(error, plan.real(), states, copies)


class StoredAnswer:
    """A guard: a function that remembers its results gives this one (`call_protocol.lru_caches.Answer`).

    Arguments:
        args, named: plain values.
    """

    def __init__(
        self, fn: Callable[..., object], args: list[object], named: tuple[tuple[str, object], ...], value: object
    ) -> None:
        self.fn, self.args, self.named, self.value = fn, args, dict(named), value

    def __call__(self, _: object) -> bool:
        result = self.fn(*self.args, **self.named)
        return result is self.value or (type(result) is type(self.value) and bool(result == self.value))
