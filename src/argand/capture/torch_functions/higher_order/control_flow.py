"""Control flow operators of torch: cond and while_loop as nodes with subgraphs; scan and map run step by step."""

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
from argand.capture.record import constants
from argand.capture.sizes import symbolic_tensors
from argand.capture.torch_functions import hops, torch_polyfills
from argand.capture.torch_functions.higher_order import subgraphs
from argand.capture.torch_functions.torch_calls import NAMED, enter_late, handler

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
    return yes.rebuilt(subgraphs.record_like(state.graph, hops.cond, bodies, flat, results))


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
    return start.rebuilt(subgraphs.record_like(state.graph, hops.while_loop, bodies, [*infos, *lifted], results))


def _stepwise(state: CaptureState, xs: object, what: str) -> None:
    """Refuse what would become too large a graph."""
    flat = subgraphs.flatten(state, xs, what)
    if not flat.tensors or len(flat.tensors) != len(flat.leaves):
        raise _refused(what, "It has no tensors to go through.", "Pass tensors.")
    for tensor in flat.tensors:
        if tensor.dim() == 0 or not 0 < tensor.shape[0] <= _MOST_STEPS:
            raise _refused(what, f"It has more than {_MOST_STEPS} steps, or none.", "Call it outside.")


def _scan(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = {"dim": 0, "reverse": False, **dict(zip(("combine_fn", "init", "xs"), args)), **kwargs}
    if bound["dim"] != 0:
        raise _refused("scan", "A scan over another dimension than the first is not captured.", "Pass dim=0.")
    _stepwise(state, bound["xs"], "scan")
    order = (bound["combine_fn"], bound["init"], bound["xs"], bool(bound["reverse"]))
    return state.interpreter.call(torch_polyfills.scan, order, {})


def _map(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    function, xs, *rest = args
    _stepwise(state, xs, "map")
    return state.interpreter.call(torch_polyfills.map_rows, (function, xs, *rest), kwargs)


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
enter(NAMED, "argand.api.compile", _compile)
enter_late({
    "_higher_order_ops.associative_scan.associative_scan": _associative_scan,
    "_higher_order_ops.cond.cond cond": _cond,
    "_higher_order_ops.while_loop.while_loop": _while_loop,
    "_higher_order_ops.scan.scan": _scan,
    "_higher_order_ops.map.map": _map,
})  # fmt: skip
