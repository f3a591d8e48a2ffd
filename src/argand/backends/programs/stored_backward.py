"""What a process tells later ones of a backward: its graph, and which programs parts of it became.

One entry of the disk cache for each backward, made when an outcome is described that calls it, and anew when one more
part of it is compiled. Its key is a digest of the whole: two processes that keep the same write the same.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

from argand.autograd.double_backward import RunsAgain
from argand.autograd.partitioning.partition import Partition
from argand.autograd.tracing.tape import Tape
from argand.autograd.training import Boxed, LazyBackward
from argand.backends.programs import backward_entries
from argand.backends.programs.graph_key import surroundings, undescribed
from argand.backends.targets import devices_in
from argand.errors import ArgandError, CacheError, ToolchainError
from argand.graph.nodes import program_codec
from argand.graph.nodes.program import AtenProgram
from argand.runtime.environment import environment
from argand.runtime.stored_modules import kept_as
from argand.runtime.tape.plan import Kind, Plan, pairs

_ALONE = "it is compiled by each process"


class KeptBackward:
    """Keeps one backward.

    Arguments:
        forward: the compiled forward, by whose results it is called.
        again: what is known of the graph, found out before.
    """

    def __init__(
        self, cut: Partition, tape: Tape, plan: Plan, forward: Boxed, backward: LazyBackward, again: RunsAgain
    ) -> None:
        self.cut, self.tape, self.plan, self.forward, self.backward = cut, tape, plan, forward, backward
        self.again = again
        self._key = ""
        self._replay: program_codec.Encoded | None = None
        self._graph: program_codec.Encoded = b""

    def key(self) -> str:
        """The key of the backward's entry, which is there from now on.

        Raises:
            ArgandError: only this process understands the backward.
        """
        if not self._key:
            self._key = self._found_key()
            self.backward.told = self._write
        self._write()
        return self._key

    def _found_key(self) -> str:
        forward = kept_as(self.forward)
        problem = undescribed(self.cut.backward)
        if forward is None or problem:
            raise CacheError(problem or "the forward is not kept", remedy=_ALONE)
        self._graph = program_codec.encode_program(self.cut.backward)
        if (replay := self.again.replay) is not None:
            program = AtenProgram(replay.graph, [], [], [], {}, None)
            self._replay = program_codec.encode_program(program)
        try:
            around = environment(devices_in(self.cut.backward))
        except ToolchainError as error:
            raise CacheError(str(error), remedy=_ALONE) from error
        moves = (self.plan, pairs(self.cut.arguments), _gradients(self.cut.gradients), _gradients(self.cut.passed))
        parts = (forward, surroundings(self.cut.backward), moves, _tape(self.tape), len(self._graph))
        digest = hashlib.sha256(f"backward\n{around}\n{parts!r}".encode())
        digest.update(self._graph)
        digest.update(self._replay or b"")
        return digest.hexdigest()[:40]

    def _write(self) -> None:
        """Write the entry anew; nothing depends on whether it works."""
        with contextlib.suppress(ArgandError, ValueError):
            backward_entries.write(self._key, self.content())

    def content(self) -> dict[str, Any]:
        """What is told of the backward, in plain values."""
        compiled = [
            (kind, given, call)
            for kind, backward in self.backward.kinds.items()
            for given, call in backward.compiled.items()
            if kept_as(call) is not None
        ]
        every = (1 << len(self.plan.differentiable)) - 1
        alive = {every & ~self.plan.spent(given) for _, given, _ in compiled}
        return {
            "graph": self._graph,
            "again": self._replay,
            "arguments": pairs(self.cut.arguments),
            "gradients": _gradients(self.cut.gradients),
            "passed": _gradients(self.cut.passed),
            "reached": _tape(self.tape),
            "parts": tuple([self._part(*one) for one in compiled]),
            "read": tuple([(mask, pairs(sorted(self.backward.read_by(mask), key=str))) for mask in alive if mask]),
        }

    def _part(self, kind: Kind, given: tuple[bool, ...], call: Callable[..., Any]) -> tuple[Any, ...]:
        part = self.backward.of_kind(kind).part(given)
        return kind, given, pairs(part.arguments), _gradients(part.gradients), kept_as(call)


def _tape(tape: Tape) -> tuple[Any, ...]:
    sets = (tape.reached, tape.passed, tape.alone)
    return tape.conflicts, *[tuple([tuple(sorted(one)) for one in each]) for each in sets]


def _gradients(gradients: dict[int, Any]) -> tuple[tuple[int, str, int], ...]:
    return tuple([(position, slot.kind, slot.index) for position, slot in gradients.items()])
