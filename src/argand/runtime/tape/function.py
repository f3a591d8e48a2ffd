"""A compiled forward and its backwards as one function on autograd's tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argand._core.calls import uncaptured
from argand.graph import compat
from argand.runtime.recipes import with_recipe
from argand.runtime.tape.again import Differentiable, Inputs, NotAgain
from argand.runtime.tape.moves import Backwards, Left, Moves
from argand.runtime.tape.plan import Plan

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]


def _gradients(
    moves: Moves, again: Differentiable, given: Any, saved: Any, anchor: torch.Tensor | None, grads: Any, ctx: Any
) -> Any:
    if ctx.computed is not None:  # compiled autograd has computed the gradients for these results
        ctx.computed = None
        return (None,) * moves.plan.inputs
    if not torch.is_grad_enabled():  # by operations, where compiled autograd is to see them
        return moves.gradients(given, saved, grads, ctx.numbers, ctx.by_operations)
    try:
        return again.gradients(ctx.inputs, grads)
    except NotAgain as refused:
        reason = str(refused)
    if anchor is None:
        raise RuntimeError(_TWICE.format(reason=reason))
    with torch.no_grad():
        found = moves.gradients(given, saved, grads, ctx.numbers)
    return _once(found, (anchor, *grads), reason)


def training_function(plan: Plan, forward: Boxed, backwards: Backwards, again: Differentiable) -> Callable[..., Any]:
    """A callable that takes the forward's inputs positionally and returns the forward's results, on autograd's tape.

    Arguments:
        forward: the compiled forward; takes a list (which it empties), returns results and kept values.
        backwards: has the compiled backwards; the same calling convention.
        again: for gradients that are to be differentiated again.
    """
    moves = Moves(plan, backwards)

    class CompiledFunction(torch.autograd.Function):
        """One call of the compiled graph. Its last result is empty: it stands for all that gradients depend on."""

        compiled_moves = moves  # for compiled autograd, as are `by_operations` and `computed`: see `_gradients`

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out = forward(list(inputs))
            if plan.written:
                _write_back(plan, inputs, out)
            for position, result in plan.leaves:  # before anything is saved: what is saved of a leaf is the leaf itself
                inputs[position].data = out[result]
            ctx.inputs = Inputs(inputs, [out[i] for i in plan.seeds])
            ctx.numbers = tuple([inputs[i] for i in plan.numbers])
            ctx.left = ctx.computed = None
            ctx.by_operations = False
            if compat.saved_tensor_hooks_active():
                out = [*out[: plan.results], *map(_alone, out[plan.results :])]
            anchor = torch.empty(0, device="cpu")
            ctx.save_for_backward(*_kept(plan, inputs, out), anchor)
            ctx.set_materialize_grads(False)
            results = _result_tensors(plan, out)
            if plan.plain:
                ctx.mark_non_differentiable(*[results[i] for i in plan.plain])
            return (*results, anchor)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            given = ctx.computed or moves.given(grads)
            left: Left | None = ctx.left
            spent = 0 if left is None else left.spent
            if left is None or any(one and spent >> k & 1 for k, one in enumerate(given)):  # autograd says: freed
                *saved, anchor = ctx.saved_tensors
            else:
                saved, anchor = left.tensors(), None
            if not compat.keeps_graph():
                spent |= moves.conflicts(given)
                ctx.left = moves.left(saved, spent)
                ctx.maybe_clear_saved_tensors()
            left = None
            # The user's `backward()` may be called by a frame that is watched.
            return uncaptured(_gradients, moves, again, given, saved, anchor, grads, ctx)

    return _with_own_nodes(CompiledFunction.apply, plan.apart) if plan.apart else CompiledFunction.apply


class Together(torch.autograd.Function):
    """Stands for an operation with several results: hooks of all are called when a gradient comes to one."""

    @staticmethod
    def forward(ctx: Any, *results: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def _with_own_nodes(apply: Callable[..., Any], apart: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    """The results on nodes of their own, which a backward that does not come to them leaves alone, with their hooks.

    Arguments:
        apart: positions of the results that share a node.
    """
    add = compat.node_adder()

    def call(*inputs: Any) -> Any:
        out = list(apply(*inputs))
        for group in apart:  # in eager's order, in which hooks run
            if add is not None and len(group) == 1:
                add(out[group[0]])
            else:
                for position, result in zip(group, Together.apply(*[out[i] for i in group])):
                    out[position] = result
        return out

    return call


def without_base(result: torch.Tensor) -> torch.Tensor:
    """A result that the graph's kernels made as a view of something that nobody else sees may be written to."""
    return result.detach() if result._is_view() else result


def _write_back(plan: Plan, inputs: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
    """Give inputs their new values. Before anything is saved: what the backward reads may be such an input itself."""
    stored = [inputs[position] for position in plan.raised]
    for position, output, unseen in plan.written:
        target, new = inputs[position], out[output]
        if new is not target:
            (target.data if unseen else target).copy_(new)
        elif not unseen:
            stored.append(target)
    compat.written_in_place(stored)


def _kept(plan: Plan, inputs: Sequence[Any], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the backward reads."""
    return [
        out[i] if kind == "output" else inputs[i] if kind == "input" else inputs[i].detach() for kind, i in plan.kept
    ]


def _result_tensors(plan: Plan, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """The results for autograd; None for those that are written to inputs already."""
    made: list[torch.Tensor | None] = []
    for how, result in zip(plan.handed_over, out):
        made.append(None if how == "none" else without_base(result) if how == "fresh" else result)
    return tuple(made)


def _alone(kept: torch.Tensor) -> torch.Tensor:
    """A kept tensor that shares no memory with others: hooks may write its storage to a file, say."""
    dense = kept.numel() * kept.element_size() == kept.untyped_storage().nbytes()
    return kept if dense else kept.clone()


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again; whoever tries is told so."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.reason = reason
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(_TWICE.format(reason=ctx.reason))


def _once(found: tuple[Any, ...], sources: tuple[Any, ...], reason: str) -> tuple[Any, ...]:
    """Gradients computed under `create_graph=True`. They depend on what the graph read, as nobody recorded, and on the
    gradients that came in: `sources` lead autograd to all of these, which would else be taken for constants."""
    given = [grad for grad in found if grad is not None]
    if not given:
        return found
    leading = [source for source in sources if source is not None and source.requires_grad]
    marked = iter(_Once.apply(reason, len(given), *given, *leading))
    return tuple([None if grad is None else next(marked) for grad in found])


_TWICE = (
    "argand: a gradient of a gradient was asked for (create_graph=True) through a compiled graph that cannot run once "
    "more for it: {reason}. Keep the part that needs second derivatives out of the compiled function, or run it with "
    'backend="eager".'
)


def with_tape(recorded: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The same compiled forward with and without autograd, for calls made under no_grad."""
    enabled = torch.is_grad_enabled

    def call(*args: Any) -> Any:
        return recorded(*args) if enabled() else plain(*args)

    return with_recipe(call, "with tape", lambda: (recorded, plain))


def under_grad(run: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that turns gradients on: what its end does for autograd must not happen in the mode that it began in."""
    enabled, enable = torch.is_grad_enabled, torch.enable_grad

    def call(*args: Any) -> Any:
        if enabled():
            return run(*args)
        with enable():
            return run(*args)

    return with_recipe(call, "under grad", lambda: (run,))


def untaped(run: Callable[..., Any]) -> Callable[..., Any]:
    """No result depends on a tensor that requires grad; views of inputs, made outside, may."""

    def call(args: list[Any]) -> Any:
        with torch.no_grad():
            return [without_base(result) for result in run(args)]

    return with_recipe(call, "untaped", lambda: (run,))


def results_only(forward: Callable[..., Any], results: int) -> Callable[..., Any]:
    """The forward without what it keeps for the backward."""

    def run(args: list[Any]) -> Any:
        return forward(args)[:results]

    return with_recipe(run, "results only", lambda: (forward, results))


def only_without_grad(compiled: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """Traced under no_grad with inputs that require grad: where gradients are on, the graph itself must run."""
    enabled = torch.is_grad_enabled

    def call(*args: Any) -> Any:
        return forward(*args) if enabled() else compiled(*args)

    return with_recipe(call, "only without grad", lambda: (compiled, forward))
