"""Checkpoints: nodes whose body is the graph of the program's function, which the backward computes again.

Eager calls the function again in the backward, with whatever the program has changed by then. So where the backward is
in the same graph, the function is interpreted once more there; where that gives another graph, the checkpoint is not
captured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
import torch.utils.checkpoint
from torch import fx

from argand import errors
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.sources import (
    AttrSource,
    CellContentsSource,
    ClosureCellSource,
    ClosureSource,
    DictItemSource,
    FuncCellSource,
    FuncClosureSource,
    GlobalSource,
    InstanceDictSource,
    SequenceItemSource,
    Source,
    TypeAttrSource,
)
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.torch_functions import hops, modes
from argand.capture.torch_functions.higher_order import hook_state, leaf_hooks, subgraphs
from argand.capture.torch_functions.torch_calls import handler
from argand.capture.world import pending_effects
from argand.graph import compat, histories, thread_state
from argand.graph.trees import tensors_of
from argand.quick_dataclasses import dataclass
from argand.runtime.tape import checkpoint_reads

_WHAT = "torch.utils.checkpoint.checkpoint"
_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")


def _refused(explanation: str, *hints: str) -> errors.GraphBreak:
    return errors.graph_break(kind="activation checkpoint", context=_WHAT, explanation=explanation, hints=hints)


@handler(torch.utils.checkpoint.checkpoint)
def _checkpoint(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Without gradients a plain call, else a node whose body is the function's graph."""
    function, *rest = args if args else (kwargs.pop("function"),)
    own = {key: value for key, value in kwargs.items() if key not in _OPTIONS}
    options = {key: value for key, value in kwargs.items() if key in _OPTIONS}
    if not torch.is_grad_enabled():
        return state.interpreter.call(function, tuple(rest), own)
    reentrant, contexts = options.get("use_reentrant"), options.get("context_fn")
    if contexts is torch.utils.checkpoint.noop_context_fn or (not reentrant and contexts is None):
        options.pop("context_fn", None)
    plain = {key: value for key, value in options.items() if key != "context_fn"}
    if not isinstance(reentrant, bool) or not all(
        isinstance(v, bool) or (k == "determinism_check" and isinstance(v, str)) for k, v in plain.items()
    ):
        raise _refused("checkpoint is captured with use_reentrant=True or False.", "Pass use_reentrant=False.")
    if len(plain) < len(options):
        if reentrant:
            raise _refused("Its context_fn is nothing for use_reentrant=True.")
        options = plain | _selection(state, contexts)
    if reentrant and own:
        return NotImplemented
    if not reentrant:
        if not thread_state.saved_tensor_hooks_allowed():
            raise _refused("It puts up hooks on saved tensors, which are disabled here.")
        state.guards.add(
            None, "python", thread_state.saved_tensor_hooks_allowed, [], label="SAVED_TENSOR_HOOKS", shown=False
        )
    return _captured(state, function, (tuple(rest), own), options)


@dataclass(slots=True, frozen=True)
class _Selects:
    """What `create_selective_checkpoint_contexts` gives: contexts that only select what is kept. Nothing that is
    computed depends on that."""

    chosen: object


@handler(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def _selective(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs:
        raise _refused("Its selective contexts may let what they keep be written to.")
    return _Selects(args[0]), _Selects(args[0])


def _selection(state: CaptureState, contexts: object) -> dict[str, object]:
    """The option for a function that gives contexts.

    Raises:
        GraphBreak: they do not just select.
    """
    before = pending_effects.effects(state)
    pair = state.interpreter.call(contexts, (), {})
    if not pending_effects.same_effects(state, before):
        raise _refused("Its context_fn has effects.")
    kinds = tuple(map(type, pair)) if isinstance(pair, tuple) else ()
    if kinds == (contextlib.nullcontext, contextlib.nullcontext):
        return {}
    if kinds != (_Selects, _Selects):
        raise _refused("Its context_fn gives other contexts than those of create_selective_checkpoint_contexts.")
    chosen = pair[0].chosen
    if state.is_outer(chosen):
        state.interpreter.pin(chosen)
    listed = type(chosen) is list and all(isinstance(one, torch._ops.OpOverload) for one in chosen)
    if listed or (type(chosen) is types.FunctionType and state.is_outer(chosen)):
        return {"context_fn": functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, chosen)}
    if type(contexts) in (types.FunctionType, functools.partial) and state.is_outer(
        contexts
    ):  # makes a policy for each call
        state.interpreter.pin(contexts)
        return {"context_fn": contexts}
    raise _refused("Its context_fn makes a policy, and is made in the compiled function.")


def _captured(
    state: CaptureState, function: Function, given: tuple[Args, Kwargs], options: dict[str, object]
) -> object:
    builder, reentrant = state.graph, bool(options["use_reentrant"])
    flat = subgraphs.flatten(state, given[0], _WHAT, subclasses="kept", objects=True)
    infos = subgraphs.unique(state, flat.tensors)
    grad = any(t.requires_grad for t in flat.tensors) if reentrant else True
    with pending_effects.watching(state) as watched:
        scope, result = _interpreted(state, function, given, infos, reentrant)
    reads = _reads(state, watched)
    flat_result = subgraphs.flatten(state, result, _WHAT, subclasses="kept", numbers=True)
    inside = [t for t in flat_result.tensors if state.tensor_info(t).node.graph is scope.graph]
    written = _written(state, scope, inside)
    if reentrant and (len(inside) != len(flat_result.tensors) or not isinstance(result, (torch.Tensor, tuple))):
        raise _refused("The checkpointed function returns its argument, or a container.", "Pass use_reentrant=False.")
    body = subgraphs.close(builder, scope, inside)
    body.meta["call"] = hops.Call([], None, [], None, len(infos), dict(options))
    makes = [functools.partial(subgraphs.copy_of, requires_grad=grad if reentrant else t.requires_grad) for t in inside]
    results = list(zip(map(state.tensor_info, inside), makes))
    known = {id(info) for info in infos}
    rest = [info for info in scope.order if id(info) not in known]  # what the body reads from its surroundings
    shown = subgraphs.record_like(builder, hops.checkpoint, [("checkpoint_body", body)], [*infos, *rest], results)
    rest = [info for info in rest if isinstance(info.tensor, torch.Tensor)]  # the others are sizes
    if reentrant:
        _refuse_hooks(state, rest)
    if shown and builder.graph is builder.root:
        node = state.tensor_info(shown[0]).node.all_input_nodes[0]
        if written:
            into = builder.writing[node] = [builder.node_of(info) for info in written]
            node.meta["writes"] = [number for number, given in enumerate(node.all_input_nodes) if given in into]
            node.meta["writes_again"] = True  # so does its backward
        effects, now = pending_effects.effects(state), modes.snapshot()
        one = _Captured(function, given, infos, rest, scope, body, node, len(builder.writing), effects, now, reads)
        builder.checkpoints.append(one)
        if not reentrant:
            reads = {}
        elif not _is_as_it_was(state, one):  # it was interpreted without gradients
            raise _refused("The checkpointed function computes something else where gradients are recorded.")
    builder.checkpoint_reads.update(reads)
    outer = iter(shown)
    ids = {id(t) for t in inside}
    return flat_result.rebuilt([next(outer) if id(t) in ids else t for t in flat_result.tensors])


def _written(state: CaptureState, scope: Scope, results: list[torch.Tensor]) -> list[TensorInfo]:
    """The buffers (statistics, counters) that a body writes to, as its backward will once more.

    Raises:
        GraphBreak: it writes to something else from outside.
    """
    builder = state.graph
    placed = {scope.lifted[id(info)]: info for info in scope.order}
    written = {root: placed[root] for _, root in subgraphs.written(builder, scope)}
    with torch._C.DisableTorchFunction():
        if written and (not results or builder.graph is not builder.root or not all(map(_is_buffer, written.values()))):
            subgraphs.refuse_writes(builder, scope)
    return list(written.values())


def _is_buffer(info: TensorInfo) -> bool:
    """An input that has no history, and is laid out as it was."""
    tensor, real = info.tensor, info.real
    if real is None or info.source is None or type(tensor) is not torch.Tensor or tensor.requires_grad:
        return False
    return (tensor.shape, tensor.stride(), tensor.dtype) == (real.shape, real.stride(), real.dtype)


Reads: TypeAlias = "dict[tuple[Source | None, str, object], str]"
"""Owner (None: the globals), way and name of what is read, and what users call it."""


def _reads(state: CaptureState, watched: pending_effects.Watched) -> Reads:
    """What a function looks at that may be another when the backward calls it again.

    Raises:
        GraphBreak: it cannot be looked at again by then.
    """
    reads: Reads = {}
    for source, _ in hook_state.passing_reads(state, watched):
        owner = _owner(source)
        if owner is None:
            raise _refused(f"It reads {source.friendly()}, which may be another when the backward calls it again.")
        reads[owner] = source.friendly()
    spaces = {owner for owner, _, _ in reads if isinstance(owner, InstanceDictSource)}
    for _, _, name in [read for read in reads if read[1] == _OF_CLASS]:  # an instance may come to have it, too
        reads.update({(space, "item", name): f"{space.parent.friendly()}.{name}" for space in spaces})
    return reads


def _owner(source: Source) -> tuple[Source | None, str, object] | None:
    if isinstance(source, GlobalSource):
        return None, "item", source.key
    if isinstance(source, ClosureSource):
        return ClosureCellSource(source.key, source.index), "cell", None
    if isinstance(source, FuncClosureSource):
        return FuncCellSource(source.base, source.key), "cell", None
    how = next((how for kind, how in _WAYS.items() if isinstance(source, kind)), None)
    return None if how is None else (source.base, how, source.key)


_OF_CLASS: Final = "of class"
_WAYS: Final[dict[type[Source], str]] = {
    DictItemSource: "item",
    SequenceItemSource: "item",
    TypeAttrSource: _OF_CLASS,
    AttrSource: "attribute",
    CellContentsSource: "cell",
}


def reads_of_later_backwards(state: CaptureState, results: Sequence[torch.Tensor]) -> Reads:
    """What checkpoints look at whose backward, through `results`, comes after the graph."""
    reads = dict(state.graph.checkpoint_reads)
    for one in state.graph.checkpoints:
        reads.update(one.reads)
    return {**reads, **_before_reentrant(state, results)}


def _before_reentrant(state: CaptureState, results: Sequence[torch.Tensor]) -> Reads:
    """Tensors from outside whose gradients come through a checkpoint that does not let one ask for them alone."""
    reads: Reads = {}
    for node in state.graph.root.find_nodes(op="call_function", target=hops.checkpoint):
        call: hops.Call = state.graph.constants[str(node.args[0].target)].meta["call"]
        if not call.options["use_reentrant"]:
            continue
        if all(node in histories.behind(state.tensor_info(result).node, _is_recorded) for result in results):
            own = [one for used in node.args[1 : 1 + call.count] for one in histories.behind(used, _is_recorded)]
            sources = [one.meta["source"] for one in own if one.op == "placeholder"]
            reads.update({(one, checkpoint_reads.BEHIND, None): one.friendly() for one in sources if one is not None})
    return reads


def _is_recorded(node: fx.Node) -> bool:
    return any(tensor.requires_grad for tensor in tensors_of(node.meta.get("example_value")))


def _refuse_hooks(state: CaptureState, surroundings: Sequence[TensorInfo]) -> None:
    """A reentrant checkpoint gives leaves their gradients in a run of the engine of its own: where they are used
    outside of it, too, their hooks are called once more. In the backward of a graph they get the sum."""
    for info in surroundings:
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks") if info.tensor.requires_grad else ():
            hooks = leaf_hooks.seen_by_program(state, info.tensor, name)
            if hooks is not None and state.interpreter.polyfill(bool, hooks):
                raise _refused("A tensor with hooks is read by a checkpoint with use_reentrant=True, which calls them.")


def _interpreted(
    state: CaptureState, function: Function, given: tuple[Args, Kwargs], infos: Sequence[TensorInfo], reentrant: bool
) -> tuple[Scope, object]:
    """The function's graph, and what it returns."""
    with subgraphs.scope(state, _WHAT, writes=True) as scope, subgraphs.grad_mode(not reentrant):
        for info in infos:
            state.graph.node_of(info)
        return scope, state.interpreter.call(function, given[0], given[1])


# ---------------------------------------------------------------------- in the backward


@dataclass(slots=True)
class _Captured:
    """A checkpoint of the graph.

    Arguments:
        function, given: what is called, with which arguments.
        infos, rest: the tensors among these, and what the body reads from its surroundings.
        scope, body, node: where it was recorded; its graph, and the node that calls that.
        writes, effects: how many writes were in the graph then, and what was held back.
        modes: torch's state then.
        reads: what the function looks at.
    """

    function: Function
    given: tuple[Args, Kwargs]
    infos: list[TensorInfo]
    rest: list[TensorInfo]
    scope: Scope
    body: fx.GraphModule
    node: fx.Node
    writes: int
    effects: object
    modes: modes.Snapshot
    reads: Reads


def compute_again(state: CaptureState, outputs: Sequence[torch.Tensor], keep: bool) -> None:
    """What a backward does with the checkpoints that are behind `outputs`.

    Arguments:
        keep: another backward may come to them.

    Raises:
        GraphBreak: a function is not what it was, where the checkpoint was called.
    """
    builder = state.graph
    if not builder.checkpoints:
        return
    behind = {node for tensor in outputs for node in histories.behind(state.tensor_info(tensor).node)}
    for one in list(builder.checkpoints):
        if one.node not in behind and not builder.writing:  # a write joins histories past what nodes are given
            continue
        if one.node in builder.writing:
            raise _refused("It writes to buffers, as the backward in the same graph would once more.")
        _check(state, one)
        if one.node in behind and not keep:
            builder.checkpoints.remove(one)


def check_end(state: CaptureState) -> None:
    """The graph ends, and the backward of what it computes comes later: as `compute_again`, where the program has
    changed something in between. What it changes later is noticed in the backward (`runtime.tape.checkpoint_reads`)."""
    for one in state.graph.checkpoints:
        if len(state.graph.writing) > one.writes or not pending_effects.same_effects(state, one.effects):
            _check(state, one)


def _check(state: CaptureState, one: _Captured) -> None:
    if _reads_what_is_written(state.graph, one) or not _is_as_it_was(state, one):
        stop = _refused("What the checkpointed function reads is changed before the backward, which computes it again.")
        stop.sequence = one.scope.sequence
        raise stop


def _reads_what_is_written(builder: GraphBuilder, one: _Captured) -> bool:
    """Whether the graph writes to what the body reads, or sets its data."""
    nodes = {info.node for info in (*one.infos, *one.rest)}
    if any(one.node < moved.info.node and moved.before.node in nodes for moved in builder.moved):
        return True
    writes = list(builder.writing.items())[one.writes :]
    later = [value for node, values in writes if node.graph is builder.root for value in values]  # not again in a body
    if not later:
        return False
    known = {info.node: info for info in builder.tensors.values()}
    with torch._C.DisableTorchFunction():
        read = {compat.storage_address(info.tensor) for info in (*one.infos, *one.rest)}
        return any(
            compat.storage_address(known[value].tensor) in read
            for value in later
            if isinstance(value, fx.Node) and value in known
        )


def _is_as_it_was(state: CaptureState, one: _Captured) -> bool:
    """Whether the function's graph is now what it was."""
    now = modes.snapshot()
    then = dataclasses.replace(now, autocast=one.modes.autocast, autocast_cache=one.modes.autocast_cache)
    try:
        with modes.restored():
            with torch._C.DisableTorchFunction():
                for change, args in modes.difference(now, then):
                    change(*args)
            scope, result = _interpreted(state, one.function, one.given, one.infos, False)
        flat = subgraphs.flatten(state, result, _WHAT, subclasses="kept", numbers=True)
        inside = [t for t in flat.tensors if state.tensor_info(t).node.graph is scope.graph]
        body = subgraphs.close(state.graph, scope, inside)
    except (errors.GraphBreak, ObservedException, Exception):  # whatever it is, eager is to meet it
        return False
    inputs = {node: at for at, node in one.scope.lifted.items()}, {node: at for at, node in scope.lifted.items()}
    return _same(one.body, body, inputs)


def _same(one: fx.GraphModule, other: fx.GraphModule, inputs: tuple[dict[fx.Node, int], dict[fx.Node, int]]) -> bool:
    """Whether two graphs compute the same.

    Arguments:
        inputs: of each, which tensor from outside a placeholder stands for.
    """
    if len(one.graph.nodes) != len(other.graph.nodes):
        return False
    paired: dict[fx.Node, fx.Node] = {}
    for a, b in zip(one.graph.nodes, other.graph.nodes):
        if a.op != b.op or (a.op.startswith("call") and a.target != b.target):
            return False
        if a.op == "placeholder" and inputs[0].get(a) != inputs[1].get(b):
            return False
        if a.op == "get_attr" and not _same_held(getattr(one, str(a.target)), getattr(other, str(b.target))):
            return False
        arguments = fx.node.map_arg((a.args, a.kwargs), paired.__getitem__)
        with contextlib.suppress(RuntimeError, ValueError):  # of values that have no truth
            if arguments == (b.args, b.kwargs):
                paired[a] = b
                continue
        return False
    return True


def _same_held(one: object, other: object) -> bool:
    if isinstance(one, fx.GraphModule) and isinstance(other, fx.GraphModule):
        return _same(one, other, ({}, {}))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return one is other or (one.dtype is other.dtype and torch.equal(one, other))
    return one is other
