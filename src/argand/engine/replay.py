"""A backward whose gradients a compiled graph computes.

The engine runs all the same, twice: once through the nodes with no gradient at all, so that each frees what it saved,
and raises what it raises; and once from a node whose gradients are the computed ones to the leaves, where it
accumulates them as ever.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from argand.engine.node_state import moves_of
from argand.engine.recording import Recorded
from argand.engine.structure import Structure

Run = Callable[..., Any]
"""As `torch.autograd.graph._engine_run_backward`."""


class _Nothing(torch.autograd.Function):
    """Stands behind what is differentiated, and gives it no gradient."""

    @staticmethod
    def forward(ctx: Any, *roots: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(roots)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * ctx.count


class _Delivered(torch.autograd.Function):
    """Stands behind leaves, and gives them gradients that are computed already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *leaves: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Nobody else holds them: the engine may take them as they are.
        gradients = ctx.gradients
        del ctx.gradients
        found = (None, *gradients)
        gradients.clear()
        return found


def replay(
    structure: Structure,
    recorded: Recorded,
    compiled: Callable[..., Any],
    roots: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    keep: bool,
    run: Run,
) -> None:
    """Compute gradients and give them to the leaves.

    Arguments:
        structure: of this backward; is emptied.
        compiled: the recorded graph.
        roots, grads: what is differentiated, and the gradients that this begins with.
        keep: the tape is kept for another backward.
        run: runs the engine.
    """
    leaves = [structure.leaves[at] for at in recorded.leaves]
    given = [*[grads[at] for at in recorded.grads], *[structure.tensors[at] for at in recorded.tensors]]
    for at, results in recorded.given.items():
        node = structure.nodes[at]
        if moves_of(node) is not None:
            node.computed = results
    ordered = structure.ordered
    structure.tensors.clear()
    structure.nodes.clear()
    with torch.enable_grad():
        nothing = _Nothing.apply(*roots)
    start = torch.empty(0, device="cpu")
    with _silent(list(structure.leaves.values())) if ordered else contextlib.nullcontext():
        run((nothing,), (start,), keep, False, (), allow_unreachable=True, accumulate_grad=True)
    del nothing
    with torch.no_grad():
        gradients = list(compiled(*given))
    del given
    found = _deliveries(gradients, leaves, ordered)
    run(found, (start,) * len(found), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _deliveries(gradients: list[Any], leaves: list[torch.Tensor], ordered: bool) -> tuple[torch.Tensor, ...]:
    """What the engine is to run for leaves to get their gradients, which are taken out of the list.

    Arguments:
        ordered: one leaf after the other, with its hooks: what is made last runs first.
    """
    with torch.enable_grad():
        if not ordered:
            return (_Delivered.apply(gradients, *leaves),)
        found = [_Delivered.apply([gradients.pop()], leaf) for leaf in reversed(leaves)]
        return tuple(found)


class _Silent:
    """Stands for a hook while the engine passes without gradients; other threads call the hook."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        self.thread = threading.get_ident()

    def __call__(self, *grads: Any) -> Any:
        return None if threading.get_ident() == self.thread else self.hook(*grads)


@contextlib.contextmanager
def _silent(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hooks of leaves are not called in this thread."""
    silenced: list[tuple[Any, int, _Silent]] = []
    try:
        for leaf in leaves:
            for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks):
                for key, hook in list((hooks or {}).items()):
                    silenced.append((hooks, key, _Silent(hook)))
                    hooks[key] = silenced[-1][2]
        yield
    finally:
        for hooks, key, silent in reversed(silenced):
            if hooks.get(key) is silent:  # nobody has removed it
                hooks[key] = silent.hook
