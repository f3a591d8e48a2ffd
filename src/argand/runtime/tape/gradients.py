"""The gradients of one call of a compiled graph: of its inputs, and what results contribute to each other's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from argand._core.calls import uncaptured
from argand.runtime.tape.arrivals import Arrivals
from argand.runtime.tape.double_backward import Differentiable, NotAgain
from argand.runtime.tape.moves import Backwards, Left, Moves
from argand.runtime.tape.plan import Kind, Plan


class Gradients:
    """Computes them, from what a call's node of autograd's has kept.

    Arguments:
        backwards: has the compiled backwards.
        again: for gradients that are to be differentiated again.
    """

    def __init__(self, plan: Plan, backwards: Backwards, again: Differentiable) -> None:
        self.plan = plan
        self._backwards = backwards
        self._again = again
        self._moves: dict[Kind, Moves] = {"whole": Moves(plan, backwards)}
        self._passed = [plan.differentiable[number] for number in plan.passed]
        self._itself = {position: k for k, position in plan.itself}

    def of_inputs(
        self, node: Any, grads: Sequence[Any], *, keep: bool, apart: bool = False, arrivals: Arrivals | None = None
    ) -> tuple[Any, ...]:
        """One gradient, or None, per input of the forward.

        Arguments:
            grads: per result of the forward, its gradient or None.
            keep: the call can be differentiated again afterwards (`retain_graph=True`).
            apart: what results contribute to each other's gradients is among the grads.
            arrivals: gets those gradients that are not computed yet.
        """
        moves = self.moves("apart" if apart else "whole")
        computed = _computed(node)
        if node.reads is not None and computed is None:
            node.reads.check()
        given = computed or moves.given(grads)
        data = _set_since(node)
        saved = self._saved(node, given, data)
        freed = saved.pop() is None
        late = torch.is_grad_enabled() or bool(data)
        if not keep:
            left: Left | None = node.left
            spent = moves.conflicts(given) | (0 if left is None else left.spent)
            node.left = self.moves("whole").left(saved, spent)
            node.maybe_clear_saved_tensors()
            if not late:
                node.inputs.let_go()
        if computed is not None:
            node.computed = None
            return (None,) * self.plan.inputs
        passed = self._passed if apart else []

        def differentiable() -> tuple[Any, ...]:
            return self._again.gradients(node.inputs, grads, data, passed)

        # The user's `backward()` may be called by a frame that is watched.
        try:
            gradients = uncaptured(
                self._compute, moves, differentiable, given, saved, freed, tuple(grads), node, data, arrivals
            )
        except Exception as error:
            if self.plan.sends:
                error.add_note("\n  ".join([_SENDS, *self.plan.sends]))
            raise
        if not keep and late:  # else they went before: the backward may have their memory
            node.inputs.let_go()
        return gradients

    def of_passed(self, node: Any, grads: Sequence[Any]) -> dict[int, Any]:
        """What results contribute to the gradients of others: their numbers -> gradients.

        Arguments:
            grads: per result of the forward, its gradient or None.
        """
        if node.reads is not None:
            node.reads.check()
        moves = self.moves("passed")
        given = moves.given(grads)
        data = _set_since(node)
        saved = self._saved(node, given, data)
        freed = saved.pop() is None

        def differentiable() -> tuple[Any, ...]:
            return self._again.contributions(node.inputs, grads, data, self._passed)

        contributed = uncaptured(self._compute, moves, differentiable, given, saved, freed, tuple(grads), node, data)
        return dict(zip(self.plan.passed, contributed))

    def moves(self, kind: Kind) -> Moves:
        """What moves around the backward of a kind."""
        moves = self._moves.get(kind)
        if moves is None:
            moves = self._moves[kind] = Moves(self.plan, self._backwards, kind)
        return moves

    def _saved(self, node: Any, given: tuple[bool, ...], data: Mapping[int, torch.Tensor]) -> list[Any]:
        """What the forward kept, with the data that it has by now, and last something that is None when all else was
        freed."""
        left: Left | None = node.left
        freed = left is None or any(one and left.spent >> k & 1 for k, one in enumerate(given))  # or autograd says so
        saved = list(node.saved_tensors) if left is None or freed else [*left.tensors(), None]
        changed = {} if node.seen is None else node.seen.set_since()
        changed.update((self._itself[position], now) for position, now in data.items() if position in self._itself)
        for k, now in changed.items():
            if saved[k] is not None:
                saved[k] = now.detach()
        return saved

    def _compute(
        self,
        moves: Moves,
        differentiable: Callable[[], tuple[Any, ...]],
        given: tuple[bool, ...],
        saved: list[Any],
        freed: bool,
        grads: tuple[Any, ...],
        node: Any,
        data: Mapping[int, torch.Tensor],
        arrivals: Arrivals | None = None,
    ) -> tuple[Any, ...]:
        if any(position not in self._itself for position in data) or (data and torch.is_grad_enabled()):
            return _of_data_now(differentiable)
        if not torch.is_grad_enabled():  # by operations, where compiled autograd is to see them
            return moves.gradients(given, saved, grads, node.numbers, node.by_operations, arrivals)
        try:
            return differentiable()
        except NotAgain as refused:
            reason = str(refused)
        sources = node.inputs.sources()
        if freed or sources is None:
            raise RuntimeError(_TWICE.format(reason=reason))
        with torch.no_grad():
            computed = moves.gradients(given, saved, grads, node.numbers)
        return _once(computed, (*sources, *grads), reason)


def _set_since(node: Any) -> dict[int, torch.Tensor]:
    """Results whose data the program has set since the forward, by position."""
    return {} if node.handed is None else node.handed.set_since()


def _of_data_now(differentiable: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Gradients where the program has set the data of results: eager's kernels read what lies there now."""
    try:
        gradients = differentiable()
    except NotAgain as refused:
        raise RuntimeError(_SET.format(reason=refused)) from None
    if torch.is_grad_enabled():
        return gradients
    return tuple([None if gradient is None else gradient.detach() for gradient in gradients])


def _computed(node: Any) -> tuple[bool, ...] | None:
    """The results for which compiled autograd, in this thread, has computed the gradients already."""
    given: tuple[bool, ...] | None = None if node.computed is None else node.computed[1]
    return None if given is None or node.computed[0] != threading.get_ident() else given


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again; whoever tries is told so."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.reason = reason
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_TWICE.format(reason=ctx.reason))


def _once(computed: tuple[Any, ...], sources: tuple[Any, ...], reason: str) -> tuple[Any, ...]:
    """Gradients computed under `create_graph=True`. They depend on what the graph read, as nobody recorded, and on the
    gradients that came in: `sources` lead autograd to all of these, which would else be taken for constants."""
    given = [grad for grad in computed if grad is not None]
    if not given:
        return computed
    leading = [source for source in sources if source is not None and source.requires_grad]
    marked = iter(_Once.apply(reason, len(given), *given, *leading))
    return tuple([None if grad is None else next(marked) for grad in computed])


_SENDS = "argand: raised by the backward of compiled operations, which communicates for"
_SET = (
    "argand: the program has set the data of a compiled graph's result (result.data = ...), which the backward reads, "
    "and the graph cannot run once more for its gradients: {reason}. Set the data of a detached copy, or run the "
    'function with backend="eager".'
)
_TWICE = (
    "argand: a gradient of a gradient was asked for (create_graph=True) through a compiled graph that cannot run once "
    "more for it: {reason}. Keep the part that needs second derivatives out of the compiled function, or run it with "
    'backend="eager".'
)
