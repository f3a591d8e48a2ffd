"""Control flow operators of torch: cond and while_loop as nodes with subgraphs; scan and map run step by step, or as a
node with one where the number of steps varies."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import fx

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs, enter
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.values.tensor_info import Scope
from argand.capture.metadata import meta_tensors
from argand.capture.record import constants
from argand.capture.sizes import symbolic_tensors
from argand.capture.torch_functions import hops, torch_polyfills
from argand.capture.torch_functions.higher_order import loops, subgraphs
from argand.capture.torch_functions.torch_calls import NAMED, enter_late, handler
from argand.graph.sizes.expr import Expr
from argand.graph.sizes.relations import Relation

_MOST_STEPS = 256  # of a scan or map, which become that many copies of its body


def _refused(what: str, explanation: str, hint: str) -> errors.GraphBreak:
    return errors.graph_break(kind="control flow operator", context=what, explanation=explanation, hints=(hint,))


def _branch(state: CaptureState, what: str, function: Function, args: Args) -> tuple[Scope, subgraphs.Flat]:
    """A function captured into a scope that stays open for its graph to be made, and what it returned."""
    with subgraphs.scope(state, what) as scope:
        result = state.interpreter.call(function, args, {})
    return scope, subgraphs.flatten(state, result, what)


def _alike(state: CaptureState, one: subgraphs.Flat, other: subgraphs.Flat) -> bool:
    """Whether two functions return the same kinds of tensors, of the same sizes and strides, and numbers."""

    def described(flat: subgraphs.Flat) -> object:
        return [
            (t.dtype, state.tensor_info(t).device) for t in flat.tensors
        ], str(flat.spec), [leaf for leaf in flat.leaves if type(leaf) is not hops.Place]  # fmt: skip

    with torch._C.DisableTorchFunction():
        return described(one) == described(other) and all(
            symbolic_tensors.alike(state.graph, *pair, strides=True) for pair in zip(one.tensors, other.tensors)
        )


def _bodies(
    state: CaptureState, first: list[torch.Tensor], parts: list[tuple[str, Scope, list[torch.Tensor]]]
) -> tuple[list[Any], list[tuple[str, fx.GraphModule]]]:
    """The node's tensors (`first`, then what the functions read) and the graphs; `meta["call"]` of each says which of
    the node's tensors it takes."""
    flat = [state.tensor_info(t) for t in first]
    bodies = []
    for name, scope, outputs in parts:
        module = subgraphs.close(state.graph, scope, outputs)
        for info in scope.order:
            if all(info is not other for other in flat):
                flat.append(info)
        bodies.append((name, module, scope))
    for _, module, scope in bodies:
        module.meta["call"] = tuple(next(i for i, o in enumerate(flat) if o is info) for info in scope.order)
    return flat, [(name, module) for name, module, _ in bodies]


def _cond(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A condition that is known picks its branch now; a tensor makes a node with both branches."""
    bound = {**dict(zip(("pred", "true_fn", "false_fn", "operands"), args)), **kwargs}
    pred = bound["pred"]
    operands = tuple(state.resolve(bound.get("operands", ())))
    known = constants.value_of(state.graph, pred) if isinstance(pred, torch.Tensor) else None
    if known is not None:
        with torch._C.DisableTorchFunction():
            pred = bool(known)
    if isinstance(pred, bool):
        return state.interpreter.call(torch_polyfills.cond, (pred, bound["true_fn"], bound["false_fn"], operands), {})
    if not isinstance(pred, torch.Tensor) or pred.numel() != 1:
        return NotImplemented
    what = "torch.cond"
    true_scope, yes = _branch(state, what, bound["true_fn"], operands)
    false_scope, no = _branch(state, what, bound["false_fn"], operands)
    if not _alike(state, yes, no) or len({id(t) for t in yes.tensors}) != len(yes.tensors):
        raise _refused(what, "The branches return tensors of different sizes, strides or types.",
                       "Make both branches return the same kind of tensors.")  # fmt: skip
    if subgraphs.has_effects(state.graph, true_scope) or subgraphs.has_effects(state.graph, false_scope):
        raise _refused(what, "A branch draws random numbers.", "Draw them before the call and pass them in.")
    flat, bodies = _bodies(state, [pred], [("true_branch", true_scope, yes.tensors),
                                           ("false_branch", false_scope, no.tensors)])  # fmt: skip
    results = [
        (state.tensor_info(a), functools.partial(subgraphs.copy_of, requires_grad=a.requires_grad or b.requires_grad))
        for a, b in zip(yes.tensors, no.tensors)
    ]
    return yes.rebuilt(subgraphs.record_like(state.graph, loops.cond, bodies, flat, results))


def _while_loop(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A node that runs the body's graph while the condition's graph says so."""
    bound = {**dict(zip(("cond_fn", "body_fn", "carried_inputs"), args)), **kwargs}
    what = "torch.while_loop"
    start = subgraphs.flatten(state, tuple(state.resolve(bound["carried_inputs"])), what)
    if torch.is_grad_enabled() and any(t.requires_grad for t in start.tensors):
        raise _refused(what, "A loop whose gradient is needed is not captured.", "Run it under torch.no_grad().")
    make = functools.partial(subgraphs.leaf_like, requires_grad=False)
    infos = [state.tensor_info(t) for t in start.tensors]
    parts, kept = [], []
    for name, function in (("loop_condition", bound["cond_fn"]), ("loop_body", bound["body_fn"])):
        with subgraphs.scope(state, what) as scope:
            own = [subgraphs.taken(state.graph, scope, info, make) for info in infos]
            result = state.interpreter.call(function, start.rebuilt(own), {})
        kept.append(subgraphs.flatten(state, result if name == "loop_condition" else tuple(result), what))
        parts.append((name, scope, kept[-1].tensors))
    body = kept[1]
    if not _alike(state, body, start) or len(kept[0].tensors) != 1:
        raise _refused(what, "The body does not return tensors like those that it takes.",
                       "Return tensors of the same sizes, strides and types.")  # fmt: skip
    lifted, bodies = _bodies(state, [], parts)
    for _, module in bodies:
        module.meta["count"] = len(infos)
    results = [(info, functools.partial(subgraphs.copy_of, requires_grad=False)) for info in infos]
    return start.rebuilt(subgraphs.record_like(state.graph, loops.while_loop, bodies, [*infos, *lifted], results))


def _scanned(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Steps over rows: copies of the function, or a node where how many there are varies or is large."""
    what = "a scan"
    function, *given = args
    init, xs = (subgraphs.flatten(state, each, what) for each in given)
    if not xs.tensors or len(xs.tensors) != len(xs.leaves):
        raise _refused(what, "It has no tensors to go through.", "Pass tensors.")
    if any(not tensor.dim() or not tensor.shape[0] for tensor in xs.tensors):
        raise _refused(what, "It has no steps.", "Call it outside.")
    rows = [state.tensor_info(tensor) for tensor in xs.tensors]
    counts = [info.tensor.shape[0] if info.dynamic is None else info.dynamic.sizes[0] for info in rows]
    looped = None
    if None not in counts and (isinstance(counts[0], Expr) or counts[0] > _MOST_STEPS):
        looped = _looped(state, function, init, xs, counts)
    if looped is None and xs.tensors[0].shape[0] > _MOST_STEPS:
        raise _refused(what, f"It has more than {_MOST_STEPS} steps.", "Call it outside.")
    return looped or state.interpreter.call(torch_polyfills.step_by_step, args, {})


def _looped(
    state: CaptureState, function: Function, init: subgraphs.Flat, xs: subgraphs.Flat, counts: list[Expr | int]
) -> tuple[object, object] | None:
    """A node that runs the function's graph for each row; None where steps are not all alike."""
    what, builder = "a scan", state.graph
    infos = [state.tensor_info(t) for t in (*init.tensors, *xs.tensors)]
    carries = len(init.tensors)
    needs = [t.requires_grad and torch.is_grad_enabled() for t in init.tensors]
    steps = 1
    while True:
        makes: list[subgraphs.Make] = [functools.partial(subgraphs.copy_of, requires_grad=need) for need in needs]
        makes += [_row] * len(xs.tensors)
        with subgraphs.scope(state, what) as scope:
            own = [subgraphs.taken(builder, scope, info, make) for info, make in zip(infos, makes)]
            pair = state.interpreter.call(function, (init.rebuilt(own), xs.rebuilt(own[carries:])), {})
            carry, outs = (subgraphs.flatten(state, each, what) for each in pair)
        if not _alike(state, carry, init) or len(outs.tensors) != len(outs.leaves):
            return None
        before, needs = needs, [tensor.requires_grad for tensor in carry.tensors]
        if before == needs:
            break
        steps += 1  # until what is carried is like what they give
        if xs.tensors[0].shape[0] < steps or any(need and not still for need, still in zip(before, needs)):
            return None
    if builder.dynamics is not None:
        for count in counts[1:]:
            builder.dynamics.require(Relation("eq", count, counts[0]))
        builder.dynamics.require(Relation("ge", counts[0], max(steps, 2)))
    lifted, bodies = _bodies(state, [], [("scan_body", scope, [*carry.tensors, *outs.tensors])])
    bodies[0][1].meta["count"] = (carries, len(infos))
    shown = [(subgraphs.copy_of(info.tensor, need), info.device) for info, need in zip(infos, needs)]
    stacks = [_stacked(state, xs.tensors[0], tensor) for tensor in outs.tensors]
    shown += [(stack[0], state.tensor_info(tensor).device) for stack, tensor in zip(stacks, outs.tensors)]
    new = subgraphs.record(builder, loops.scan, bodies, [*infos, *lifted], shown)
    if new and subgraphs.has_effects(builder, scope):
        builder.effectful.add(state.tensor_info(new[0]).node.all_input_nodes[0])
    if builder.dynamics is not None:
        for tensor, info, make in zip(new[:carries], infos, makes):
            symbolic_tensors.passed_on(builder, info, tensor, make)
        with torch._C.DisableTorchFunction():
            for tensor, (_, *siblings) in zip(new[carries:], stacks):
                symbolic_tensors.note(builder, tensor, tuple(siblings))
    return init.rebuilt(new[:carries]), outs.rebuilt(new[carries:])


def _stacked(state: CaptureState, rows: torch.Tensor, tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor of each step gives, now and at the probes."""
    pairs = zip(symbolic_tensors.at_probes(state.graph, rows), symbolic_tensors.at_probes(state.graph, tensor))
    with torch._C.DisableTorchFunction():
        return [
            meta_tensors.new((all_rows.shape[0], *each.shape), None, each.dtype, tensor.requires_grad)
            for all_rows, each in pairs
        ]


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """What a step sees of a tensor."""
    with torch._C.DisableTorchFunction():
        row = tensor.select(0, 0)
    return subgraphs.copy_of(row, tensor.requires_grad and torch.is_grad_enabled())


def _scan(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return state.interpreter.call(torch_polyfills.scan, args, kwargs)


def _map(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return state.interpreter.call(torch_polyfills.map_rows, args, kwargs)


def _associative_scan(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return state.interpreter.call(torch_polyfills.associative_scan, args, kwargs)


_COMPILE_OPTIONS = frozenset(("fullgraph", "dynamic", "backend", "mode", "options", "disable"))


def _compile(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch.compile or argand.compile of a function: what it would compile is part of the graph."""
    bound = {**({"model": args[0]} if args else {}), **kwargs}
    model = bound.pop("model", None)
    options = set(bound) <= _COMPILE_OPTIONS and len(args) < 2
    if model is None and options:
        return state.interpreter.call(torch_polyfills.compiling, (fn, bound), {})
    if options and bound.get("disable") is True:
        return model
    if not options or not isinstance(model, types.FunctionType | types.MethodType):
        raise _not_inlined(fn, "of what is no function makes an object with a state of its own")
    if fn is not torch.compile:
        try:
            fn(_compile, **{**state.deep_resolve(bound), "disable": True})
        except errors.ConfigError as error:
            raise _not_inlined(fn, "refuses its arguments") from error
    return state.interpreter.call(torch_polyfills.compiled, (model,), {})


def _not_inlined(fn: Function, why: str) -> errors.GraphBreak:
    name = f"{fn.__module__.partition('.')[0]}.compile"
    return errors.graph_break(kind="torch function with outside effects", context=name, explanation=f"{name} {why}.")


handler(torch.compile)(_compile)
handler(hops.scanned)(_scanned)
enter(NAMED, "argand.api.compile", _compile)
enter_late({
    "_higher_order_ops.associative_scan.associative_scan": _associative_scan,
    "_higher_order_ops.cond.cond cond": _cond,
    "_higher_order_ops.while_loop.while_loop": _while_loop,
    "_higher_order_ops.scan.scan": _scan,
    "_higher_order_ops.map.map": _map,
})  # fmt: skip
