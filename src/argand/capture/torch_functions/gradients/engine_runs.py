"""What the autograd engine gives for the graph recorded so far: it runs on new stand-ins, with autograd recording.

A program may ask often: what has run stays, and runs on from there. So a question leaves everything as it was: the
engine keeps the tape, which the graph's own call then uses up as the program's would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import torch
from torch import fx

from argand import errors
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.sources import AttrSource
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import metadata
from argand.capture.torch_functions import modes
from argand.capture.torch_functions.higher_order import subgraphs
from argand.graph import compat, histories
from argand.graph.metadata.strides import contiguous_strides, elements_spanned
from argand.graph.trees import mapped
from argand.quick_dataclasses import dataclass

Tensors: TypeAlias = "Sequence[torch.Tensor]"
Reals: TypeAlias = "dict[fx.Node, torch.Tensor | None]"


def refused(explanation: str, context: str = "torch.autograd.grad") -> errors.GraphBreak:
    """The break for gradients that are not captured."""
    return errors.graph_break(
        kind="gradient inside the graph",
        context=context,
        explanation=f"{context} is captured where what it differentiates is in the same graph. {explanation}",
    )


def tensors_of(state: CaptureState, value: object, optional: bool = False) -> list[torch.Tensor]:
    """The stand-ins of an argument that is a tensor or several."""
    tensors = list(value) if isinstance(value, (tuple, list)) else [value]
    for item in tensors:
        if optional and item is None:
            continue
        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise refused(f"A {type(item).__name__} is not captured there.")
        state.tensor_info(item)
    return tensors


def require(state: CaptureState, info: TensorInfo, name: str, wanted: object) -> None:
    """Guard what autograd knows of a tensor from outside."""
    with torch._C.DisableTorchFunction():
        actual = getattr(info.real, name)
    if info.source is None or actual is not wanted:
        raise refused("A tensor from outside has a gradient history, or hooks, that the graph does not have.")
    source = AttrSource(info.source, name)
    if wanted is None:
        state.guard(source, "is_none")
    else:
        state.guard(source, "id", wanted)


# ---------------------------------------------------------------------- the graph so far


@dataclass(slots=True)
class Run:
    """The graph as it ran on new stand-ins, gradients recorded.

    Arguments:
        builder: of the graph.
        graph: the one being recorded: the whole, or the body of an `autograd.Function`.
        values: what each node gave.
        ran: the operations that ran, each with what it was given.
        enabled: whether gradients are enabled behind them.
    """

    builder: GraphBuilder
    graph: fx.Graph
    values: dict[fx.Node, Any] = field(default_factory=dict)
    ran: list[tuple[fx.Node, object, object]] = field(default_factory=list)
    enabled: bool | None = None

    def goes_on(self) -> bool:
        """Whether the graph is what ran, and more."""
        calls = [node for node in self.graph.nodes if node.op not in _INPUTS]
        same = all(
            node is one and node.args is args and node.kwargs is kwargs
            for node, (one, args, kwargs) in zip(calls, self.ran)
        )
        return same and len(self.ran) <= len(calls) and modes.changed_by(self.graph) != "more"

    def of(self, tensors: Tensors) -> list[torch.Tensor]:
        """What ran in place of stand-ins of the capture; None stays None."""
        return [tensor if tensor is None else self.values[self.node_of(tensor)] for tensor in tensors]

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a stand-in of the capture."""
        return self.builder.node_of(self.builder.state.tensor_info(tensor))

    def stand_ins(self) -> dict[int, torch.Tensor]:
        """By id of what ran: the capture's own stand-in."""
        known = {info.node: info.tensor for info in self.builder.tensors.values()}
        return {id(value): known[node] for node, value in self.values.items() if node in known}


@contextlib.contextmanager
def again(builder: GraphBuilder) -> Iterator[Run]:
    """Run the graph so far on new stand-ins; torch's state is as before when this is left."""
    run, builder.rerun = builder.rerun, None  # what an error leaves is not used again
    if not isinstance(run, Run) or run.graph is not builder.graph or not run.goes_on():
        run = Run(builder, builder.graph)
    with torch._C.DisableTorchFunction(), modes.restored(), compat.hidden_from_saved_tensor_hooks():
        enabled = torch.is_grad_enabled()
        if run.enabled is None:
            switches = [node.args[0] for node in run.graph.nodes if node.target is torch._C._set_grad_enabled]
            run.enabled = not builder.scopes and (not switches[0] if switches else enabled)
        torch._C._set_grad_enabled(run.enabled)
        _run(run)
        run.enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(enabled)
        yield run
    builder.rerun = run


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a gradient looks like.

    Arguments:
        requires_grad: of it.
        laid_out: whether it lies in memory as `laid_out` says.
        batched: gradients were asked for in a batch.
    """

    requires_grad: bool
    laid_out: bool
    batched: bool


def laid_out(tensor: torch.Tensor, batch: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(size, strides) of a tensor's gradients: as the tensor; those of a batch one behind the other."""
    if batch is None:
        return tuple(tensor.shape), tensor.stride()
    size = (batch, *tensor.shape)
    return size, contiguous_strides(size)


def _seen(gradient: torch.Tensor, tensor: torch.Tensor) -> Gradient:
    batch = gradient.shape[0] if gradient.dim() > tensor.dim() else None
    return Gradient(gradient.requires_grad, gradient.stride() == laid_out(tensor, batch)[1], batch is not None)


def gradients(
    builder: GraphBuilder, outputs: Tensors, inputs: Tensors, grads: Tensors | None, options: dict[str, bool]
) -> tuple[tuple[Gradient | None, ...], dict[int, int]]:
    """What `torch.autograd.grad` gives.

    Returns:
        For each input None, or its gradient, and which gradients are the very object that is an earlier one, or (`~n`)
        the n-th of `grads`.
    """
    for tensor in (*outputs, *inputs, *(grads or ())):  # what is not in a body yet becomes an input of it
        if tensor is not None:
            builder.node_of(builder.state.tensor_info(tensor))
    with again(builder) as run:
        given = [run.of(outputs), run.of(inputs)]
        seeds = None if grads is None else run.of(grads)
        if builder.scopes:
            _refuse_ways_outside(run, given[0], inputs)
        try:
            given_back = torch.autograd.grad(given[0], given[1], seeds, **{**options, "retain_graph": True})
        except Exception as error:
            raise metadata.meta_failure("torch.autograd.grad", error) from None
    like = [None if g is None else _seen(g, t) for g, t in zip(given_back, given[1])]
    if builder.scopes and None in like:
        behind = {node for tensor in outputs for node in histories.behind(run.node_of(tensor))}
        if any(one is None and run.node_of(tensor) in behind for one, tensor in zip(like, inputs)):
            raise refused("There is no gradient, and would be one where the backward is differentiated.")
    return tuple(like), _same(given_back, run.values, seeds or [])


def _refuse_ways_outside(run: Run, outputs: Tensors, inputs: Tensors) -> None:
    """In a body, of an input's history is known that it has none, or whose nodes it comes from: refuse what leads from
    an input that the gradients pass to one whose gradient is asked for."""
    builder = run.builder
    scope = builder.scopes[-1]
    order = {id(run.values[scope.lifted[id(info)]]): info for info in scope.order}
    reached = [*histories.leaves(each.grad_fn for each in outputs), *(each for each in outputs if each.is_leaf)]
    wanted = [builder.state.tensor_info(tensor) for tensor in inputs]
    for info in filter(None, [order.get(id(leaf)) for leaf in reached]):
        own = scope.feeds is not None and info.node.graph is scope.feeds.graph
        if own or any(info.tensor is result for result in scope.results or ()):
            raise refused("It comes to what the forward of the same function has made, with gradients.")
        for other in wanted if info.source is None else ():
            if other is not info and other.node.graph is not scope.graph and _may_lead(builder, other, info):
                raise refused("A tensor that the function has kept was made of another one.")


def _may_lead(builder: GraphBuilder, one: TensorInfo, other: TensorInfo) -> bool:
    """Whether a tensor from outside of a body may be made of another one; a write joins histories."""
    return one.node.graph is not other.node.graph or bool(builder.writing) or one.node in histories.behind(other.node)


def _same(gradients: Sequence[object], values: dict[fx.Node, object], seeds: list[object]) -> dict[int, int]:
    same: dict[int, int] = {}
    known = {id(value) for value in values.values()}
    for i, gradient in enumerate(gradients):
        if gradient is None:
            continue
        earlier = next((j for j in range(i) if gradients[j] is gradient), None)
        seed = next((j for j, other in enumerate(seeds) if other is gradient), None)
        if seed is not None:
            same[i] = ~seed
        elif earlier is not None:
            same[i] = earlier
        elif id(gradient) in known:
            raise refused("A gradient is the very tensor that is something else in the program.")
    return same


@dataclass(slots=True, eq=False)
class Reached:
    """A leaf in which `backward` accumulates a gradient.

    Arguments:
        tensor: its stand-in.
        requires_grad, strides: of the gradient.
    """

    tensor: torch.Tensor
    requires_grad: bool
    strides: tuple[int, ...]


def accumulated(
    builder: GraphBuilder, outputs: Tensors, grads: Tensors | None, inputs: Tensors | None, options: dict[str, bool]
) -> tuple[list[Reached], Tensors]:
    """Where `torch.autograd.backward` puts gradients, in the order in which it does, and what else it leads to.

    Arguments:
        outputs, grads, inputs: stand-ins; `grads` and `inputs` may be None.
    """
    with again(builder) as run:
        roots = run.of(outputs)
        seeds = None if grads is None else run.of(grads)
        wanted = None if inputs is None else run.of(inputs)
        _refuse_backwards_within(roots)
        history = histories.leaves(root.grad_fn for root in roots)
        leaves = list(history) if wanted is None else list(wanted)
        leaves += [root for root in roots if wanted is None and root.requires_grad and root.grad_fn is None]
        stand_ins = run.stand_ins()
        order: list[torch.Tensor] = []
        taking = [leaf for leaf in _distinct(leaves) if leaf.is_leaf and leaf.requires_grad]
        hooks = [leaf.register_post_accumulate_grad_hook(order.append) for leaf in taking]
        try:
            torch.autograd.backward(roots, seeds, inputs=wanted, **{**options, "retain_graph": True})
        except Exception as error:
            raise metadata.meta_failure("torch.autograd.backward", error) from None
        finally:
            for hook in hooks:
                hook.remove()
        if any(not leaf.is_leaf or id(leaf) not in stand_ins for leaf in (*leaves, *history)):
            raise refused("Its history leads to a tensor that is not in the graph, or that is no leaf.", "backward()")
        received = [(leaf, leaf.grad) for leaf in order if leaf.grad is not None]
        for leaf in order:
            leaf.grad = None
        _refuse_shared([gradient for _, gradient in received], run.values.values())
        reached = [Reached(stand_ins[id(leaf)], grad.requires_grad, grad.stride()) for leaf, grad in received]
        return reached, [stand_ins[id(leaf)] for leaf in history if all(leaf is not one for one, _ in received)]


def _refuse_backwards_within(roots: Sequence[torch.Tensor]) -> None:
    """The backward of a reentrant checkpoint is one of its own, which the tape does not show the leaves of."""
    nodes = histories.nodes(root.grad_fn for root in roots)
    if any(getattr(node, "_forward_cls", None) is torch.utils.checkpoint.CheckpointFunction for node in nodes):
        raise refused("A checkpoint with use_reentrant=True accumulates gradients by itself.", "backward()")


def _distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _refuse_shared(gradients: list[torch.Tensor], values: Iterable[object]) -> None:
    """Eager's gradient may be a view of another tensor's memory: a change of one in place would show in the other."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            spans.setdefault(compat.storage_address(value), []).append(_span(value))
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            raise refused("A gradient is sparse.", "backward()")
        if not gradient.numel():
            continue
        first, end = _span(gradient)
        taken = spans.setdefault(compat.storage_address(gradient), [])
        if any(a < end and first < b for a, b in taken):
            raise refused("A gradient shares memory with another tensor.", "backward()")
        taken.append((first, end))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first element of a tensor in its storage, and the one behind its last."""
    first = tensor.storage_offset()
    return first, first + elements_spanned(tensor.shape, tensor.stride())


_INPUTS = frozenset(("placeholder", "get_attr"))


def _run(run: Run) -> None:
    """Run what has not run yet."""
    builder = run.builder
    if builder.sharded:
        raise refused("The graph has DTensors, which compute gradients by rules of their own.")
    reals = {info.node: info.real for info in builder.inputs}
    for node in run.graph.nodes:
        if node in run.values:
            continue
        try:
            run.values[node] = _value(builder, node, run.values, reals)
        except errors.GraphBreak:
            raise
        except Exception as error:
            raise refused(f"The gradient's form cannot be told: {node.name} raises {type(error).__name__}.") from None
        if node.op not in _INPUTS:
            run.ran.append((node, node.args, node.kwargs))


def _is_device(value: object, named: bool) -> bool:
    """Whether an argument of an operation that is run on stand-ins says where data would be."""
    return isinstance(value, torch.device) or (named and isinstance(value, str))


def _is_with_history(builder: GraphBuilder, known: torch.Tensor) -> bool:
    """Whether eager knows how an input of a body was made; stand-ins do not tell of what its forward returned."""
    results = builder.scopes[-1].results or ()
    return known.requires_grad or any(known is result for result in results)


def _value(builder: GraphBuilder, node: fx.Node, values: dict[fx.Node, object], reals: Reals) -> object:
    known = node.meta.get("example_value")
    if isinstance(known, (bool, int, float)):
        return known  # a number: of this call
    if node.op == "placeholder":
        if builder.scopes:
            return subgraphs.leaf_like(known, _is_with_history(builder, known))
        real = reals.get(node)
        return known if real is None else metadata.stand_in(real)
    if node.op == "get_attr":
        held = (builder.scopes[-1].attributes if builder.scopes else builder.constants)[str(node.target)]
        if isinstance(held, fx.GraphModule):  # what it makes, random numbers too, it makes without data
            return subgraphs.on_meta(held, anywhere=True)
        return metadata.stand_in(held) if isinstance(held, torch.Tensor) else held
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: values[used])
    meta = torch.device("meta")
    moves = node.target == "to" or getattr(node.target, "__name__", "") == "to"  # takes devices by name, too
    args, kwargs = mapped((args, kwargs), lambda leaf: meta if _is_device(leaf, moves) else leaf)
    kwargs = {**kwargs, "device": meta} if kwargs.get("device") is not None else kwargs
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.target in metadata.FACTORIES:
        kwargs = {**kwargs, "device": meta}
    assert callable(node.target)
    return node.target(*args, **kwargs)
