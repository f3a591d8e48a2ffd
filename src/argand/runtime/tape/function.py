"""A compiled forward and its backwards as one function on autograd's tape."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from argand.errors import say_unwritten
from argand.graph import compat
from argand.graph.version_counters import share_counters
from argand.runtime.recipes import with_recipe
from argand.runtime.tape.arrivals import Arrivals, Order, chain
from argand.runtime.tape.double_backward import Differentiable, Inputs, LetGo, RandomStates
from argand.runtime.tape.gradients import Gradients
from argand.runtime.tape.handed_results import HandedResults
from argand.runtime.tape.moves import Backwards
from argand.runtime.tape.plan import Plan
from argand.runtime.tape.quick_backward import Quick
from argand.runtime.tape.result_nodes import ResultNodes, are_apart, has_own_nodes

Boxed = Callable[[list[Any]], Sequence[torch.Tensor]]


def training_function(plan: Plan, forward: Boxed, backwards: Backwards, again: Differentiable) -> Callable[..., Any]:
    """A callable that takes the forward's inputs positionally and returns the forward's results, on autograd's tape.

    Arguments:
        forward: the compiled forward; takes a list (which it empties), returns results and kept values.
        backwards: has the compiled backwards; the same calling convention.
        again: for gradients that are to be differentiated again.
    """
    gradients = Gradients(plan, backwards, again)
    own_nodes, handed = has_own_nodes(plan), plan.handed
    # what no result leads to is no input of the node: its hooks are not called
    connected = [position for position in range(plan.inputs) if position not in plan.unreached]
    touched = sorted({*(entry[0] for entry in plan.written), *plan.raised, *(entry[0] for entry in plan.leaves)})
    let_go, kept, quick = LetGo(plan, touched), _keeper(plan), Quick(gradients, connected)
    order = Order(arriving(plan))

    class CompiledFunction(torch.autograd.Function):
        """One call of the compiled graph.

        It is handed the inputs, what leads to later gradients, or None, and the inputs that it has gradients for.
        """

        # for compiled autograd, as are `by_operations` and `computed`: see `Gradients`; `reads` of checkpoint_reads
        compiled_moves = gradients.moves("whole")

        @staticmethod
        def forward(ctx: Any, inputs: Sequence[Any], link: Any, *_: Any) -> Any:
            before = {position: inputs[position].clone() for position in plan.before} if plan.before else _NOTHING
            random = RandomStates(plan.tangents[0].device) if plan.draws else None
            out = _written(plan, forward, inputs) if touched else forward(list(inputs))
            seeds = [out[i] for i in plan.seeds] if plan.seeds else ()
            ctx.inputs = Inputs(inputs, let_go, seeds, touched, before, random)
            ctx.numbers = tuple([inputs[i] for i in plan.numbers]) if plan.numbers else ()
            ctx.first = None if link is None else link.first
            if compat.saved_tensor_hooks_active():
                out = [*out[: plan.results], *map(_alone, out[plan.results :])]
                ctx.hooked_saved = True
            ctx.save_for_backward(*kept(inputs, out), _anchor())
            ctx.set_materialize_grads(False)
            results = _result_tensors(plan, out)
            ctx.handed = HandedResults.of(results, handed) if handed else None
            ctx.seen = HandedResults([(k, inputs[position]) for k, position in plan.seen]) if plan.seen else None
            if plan.plain:
                ctx.mark_non_differentiable(*[results[i] for i in plan.plain])
            return results

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            arrivals = None if ctx.first is None else Arrivals(plan.arrivals)
            apart = own_nodes and are_apart(ctx)
            if arrivals is None and not apart and (done := quick.gradients(ctx, grads)) is not None:
                return done
            of_inputs = gradients.of_inputs(ctx, grads, keep=compat.keeps_graph(), apart=apart, arrivals=arrivals)
            if arrivals is None:
                return (None, None, *[of_inputs[position] for position in connected])
            return (None, *arrivals.first(of_inputs, ctx.first))

    _set_usual(CompiledFunction)
    call = _called(CompiledFunction, connected if plan.unreached else None, order)
    return ResultNodes(plan, gradients).around(call) if own_nodes else call


def _called(function: Any, connected: Sequence[int] | None, order: Order) -> Callable[..., Any]:
    """The function of a graph as one of its inputs.

    Arguments:
        connected: positions of the inputs that the graph's node has gradients for; None for all.
        order: where gradients leave one after the other.
    """
    apply = super(torch.autograd.Function, function).apply  # without the search for a transform
    transformed, recorded = compat.transforms_active, compat.compiled_autograd_active

    def call(*inputs: Any) -> Any:
        run = function.apply if transformed() else apply
        link, first = None, connected
        if order.matters() and run is apply and not recorded():
            groups = order.now()
            link = chain(inputs, groups)
            first = first if link is None else groups[0][1]
        return run(inputs, link, *(inputs if first is None else [inputs[position] for position in first]))

    return call


def arriving(plan: Plan) -> list[Sequence[int]]:
    """Positions of the inputs whose gradients leave together; the last of them at the end."""
    early = {position for group in plan.arrivals for position in group}
    others = [position for positions in plan.classes for position in positions if position not in early]
    return [*plan.arrivals, sorted(others)]


def without_base(result: torch.Tensor) -> torch.Tensor:
    """A result that the graph's kernels made as a view of something that nobody else sees may be written to."""
    return result.detach() if result._is_view() else result


def _told(forward: Boxed, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """What a forward gives that has its inputs written to; an error says that they are not yet."""
    try:
        return forward(list(inputs))
    except Exception as error:
        say_unwritten(error)
        raise


def _written(plan: Plan, forward: Boxed, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """What a forward gives whose inputs get new values. Before anything is saved: what is saved of a leaf is the leaf
    itself."""
    out = _told(forward, inputs) if plan.written else forward(list(inputs))
    if plan.written:
        _write_back(plan, inputs, out)
    for position, result in plan.leaves:
        inputs[position].data = out[result]
    return out


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


@functools.cache
def _anchor() -> torch.Tensor:
    """What a node saves last: autograd says of it, too, that it was freed."""
    with torch.inference_mode(False), compat.outside_of_modes():
        return torch.empty(0, device="cpu")


_NOTHING: Mapping[int, torch.Tensor] = MappingProxyType({})
_USUAL: dict[str, Any] = {
    **dict.fromkeys(("left", "computed", "reads")),
    **dict.fromkeys(("by_operations", "hooked_saved", "by_input", "hooked"), False),
    "runs": MappingProxyType({}),
}
"""What is so of most calls; a call's node has what is not."""


def _set_usual(function: Any) -> None:
    for name, value in _USUAL.items():
        setattr(function._backward_cls, name, value)


def _keeper(plan: Plan) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[torch.Tensor]]:
    """`_kept` of a plan, of inputs and what the forward gives."""
    counts = {"input": 0, "output": plan.inputs}
    if plan.counted or not len(plan.kept) > 1 or any(kind not in counts for kind, _ in plan.kept):
        return lambda inputs, out: _kept(plan, inputs, out)
    pick = operator.itemgetter(*[counts[kind] + i for kind, i in plan.kept])
    return lambda inputs, out: pick([*inputs, *out])


def _kept(plan: Plan, inputs: Sequence[Any], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the backward reads; from here on, writes to parts of one wrapper are counted together."""
    for parts in plan.counted:
        share_counters([out[parts[0]]] * len(parts), [out[part] for part in parts])
    values = {"input": inputs, "output": out, "data": inputs, "apart": out}
    return [values[kind][i].detach() if kind in ("data", "apart") else values[kind][i] for kind, i in plan.kept]


def _result_tensors(plan: Plan, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """The results for autograd; None for those that are written to inputs already."""
    tensors: list[torch.Tensor | None] = []
    for how, result in zip(plan.handed_over, out):
        if how == "fresh":
            tensors.append(result.detach() if result._is_view() else result)
        else:
            tensors.append(None if how == "none" else result)
    return tuple(tensors)


def _alone(kept: torch.Tensor) -> torch.Tensor:
    """A kept tensor that shares no memory with others: hooks may write its storage to a file, say."""
    dense = kept.numel() * kept.element_size() == kept.untyped_storage().nbytes()
    return kept if dense else kept.clone()


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


def heeding_hooks(run: Callable[..., Any], otherwise: Callable[..., Any], kept: bool) -> Callable[..., Any]:
    """A graph saves other tensors than eager: where hooks are to see what autograd saves it runs eagerly.

    Arguments:
        kept: it saves some. Torch's own hooks (`save_on_cpu`, a checkpoint's) give back what they were given, whatever
            that is, so it runs. A graph that differentiates itself saves nothing.
    """
    hooks, own = compat.saved_tensor_hooks_active, compat.own_saved_tensor_hooks_active

    def call(*args: Any) -> Any:
        return otherwise(*args) if hooks() and (not kept or own()) else run(*args)

    return with_recipe(call, "heeding hooks", lambda: (run, otherwise, kept))


def untaped(run: Callable[..., Any]) -> Callable[..., Any]:
    """No result depends on a tensor that requires grad; views of inputs, made outside, may."""

    enabled, enable = torch.is_grad_enabled, torch._C._set_grad_enabled  # `torch.no_grad` is nine Python calls

    def call(args: list[Any]) -> Any:
        before = enabled()
        enable(False)
        try:
            return [without_base(result) for result in run(args)]
        finally:
            enable(before)

    return with_recipe(call, "untaped", lambda: (run,))


class _Spent(torch.autograd.Function):
    """A result of which the graph itself has taken the gradient; whoever takes it again is told so."""

    @staticmethod
    def forward(ctx: Any, reason: str, held: tuple[torch.Tensor], leading: torch.Tensor) -> torch.Tensor:
        ctx.reason = reason
        return held[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(ctx.reason)


def with_spent(run: Callable[..., Any], spent: Sequence[tuple[int, str]]) -> Callable[..., Any]:
    """A compiled graph whose results at the positions `spent` require grad, as in eager, and have none to give."""
    if not spent:
        return run

    def call(*args: Any) -> Any:
        results = list(run(*args))
        with torch.enable_grad():
            leading = torch.empty(0, requires_grad=True)
            for position, reason in spent:
                results[position] = _Spent.apply(reason, (without_base(results[position]),), leading)
        return results

    return with_recipe(call, "spent", lambda: (run, spent))


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
