"""The gradients of a call of a compiled graph in the usual case, without the questions that other cases need.

What is usual a first call by the long way tells: every result got a gradient, in the layouts that the backward was
compiled for, and nothing is left to differentiate afterwards. From then on a guard tree compares the tensors of a call
with those, in C.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand._core import _C
from argand.graph import compat
from argand.runtime.tape.gradients import Gradients
from argand.runtime.tape.moves import Given


class Quick:
    """The quick way for one graph.

    Arguments:
        connected: positions of the inputs that the graph's node has gradients for.
    """

    def __init__(self, gradients: Gradients, connected: Sequence[int]) -> None:
        plan, moves = gradients.plan, gradients.moves("whole")
        self._moves = moves
        self._connected = connected
        self._given: Given = (True,) * len(plan.differentiable)
        self._all = (1 << len(plan.differentiable)) - 1
        self._refused = bool(plan.arrivals or plan.larger or plan.sends)
        self._same: Callable[[tuple[Any, ...]], bool] | None = None
        self._pick: Callable[[Sequence[Any]], tuple[Any, ...]] = tuple
        self._saved: list[int] = []
        self._tangents: list[int] = []
        self._numbers: list[int] = []

    def gradients(self, node: Any, grads: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What the node's backward returns; None where it is to be found in the usual way.

        Arguments:
            grads: per result of the forward, its gradient or None.
        """
        if self._refused or node.left is not None or node.reads is not None or node.computed is not None:
            return None
        if node.by_operations or node.hooked_saved or (node.handed is not None and node.handed.set_since()):
            return None
        if node.seen is not None and node.seen.set_since():
            return None
        if torch.is_grad_enabled() or compat.autocast_active():
            return None
        saved = node.saved_tensors
        if self._same is None:
            self._learn(saved, grads)
            return None
        if not self._same((*grads, *saved)):
            return None
        arguments = [saved[k] for k in self._saved]
        arguments.extend([grads[k] for k in self._tangents])
        if self._numbers:
            arguments.extend([node.numbers[k] for k in self._numbers])
        if not compat.keeps_graph():
            node.maybe_clear_saved_tensors()
            node.inputs.forget()
        del saved  # kept tensors die as the backward uses them up
        out = _C.run_with_callback(None, None, self._moves.backwards.run(self._given), (arguments,))
        return self._pick([None, *grads, *out])

    def _learn(self, saved: tuple[Any, ...], grads: tuple[Any, ...]) -> None:
        """Take over from a call what is usual, if it is a usual one."""
        moves = self._moves
        if moves.given(grads) != self._given:
            return
        part, first = moves.part_of(self._given), len(grads) + 1
        simple = all(slot.kind in ("value", "tangent") for _, slot in part.gradients)
        if not simple or moves.conflicts(self._given) != self._all:
            self._refused = True
            return
        self._tangents = [moves.differentiable[index] for index, _ in part.tangents]
        looked_at = part.usual(saved, [grads[k] for k in self._tangents])
        if looked_at is None:
            self._refused = part.layouts is not None
            return
        places = {
            position: first + slot.index if slot.kind == "value" else 1 + moves.differentiable[slot.index]
            for position, slot in part.gradients
        }
        self._pick = operator.itemgetter(0, 0, *[places.get(position, 0) for position in self._connected])
        self._saved, self._numbers = part.saved, part.taken
        tree = _C.GuardTree()
        for place, tensor in enumerate((*grads, *saved)):
            if tensor is not None and (place < len(grads) or place - len(grads) in looked_at):
                tree.check(tree.child(0, "local", place), "tensor", *_C.tensor_guard_args(tensor), label="")
        self._same = tree.matches
