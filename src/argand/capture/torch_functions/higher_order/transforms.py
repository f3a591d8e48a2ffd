"""Functions of `torch.func` that take functions, captured with subgraphs as bodies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils import _pytree as pytree

from argand import errors
from argand.capture.facts.frames import NULL
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.values.symbolic import SymbolicNumber
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.objects import names
from argand.capture.record.scopes import refuse_data
from argand.capture.sizes import symbolic_ops, symbolic_tensors
from argand.capture.sizes.symbolic_calls import ProbedCall
from argand.capture.torch_functions import hops, torch_polyfills
from argand.capture.torch_functions.higher_order import repeated_calls, subgraphs, written_batches
from argand.capture.torch_functions.torch_calls import CODES, all_of, enter_late, handler
from argand.capture.torch_functions.torch_calls import leaf as operation


def _refused(kind: str, what: str, explanation: str, hint: str) -> errors.GraphBreak:
    return errors.graph_break(kind=kind, context=what, explanation=explanation, hints=(hint,))


# ---------------------------------------------------------------------- torch.func


def _is_diff(index: int, argnums: Any, count: int) -> bool:
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    return any(number % max(count, 1) == index for number in chosen)


def _transform(
    state: CaptureState, name: str, func: Function, options: dict[str, Any], makes: Sequence[subgraphs.Make],
    flat: subgraphs.Flat, extra: subgraphs.Flat | None = None, grad: bool | None = None,
    dims: list[int | None] | None = None, batching: Batching | None = None,
) -> object:  # fmt: skip
    """A node `name(body, ...)`.

    Arguments:
        makes: what makes of each tensor of `flat` the one that the body sees.
        dims: the dimension of each that vmap maps over.
        batching: takes objects in the function's result apart.
    """
    what, builder = f"torch.func.{name}", state.graph
    infos = [state.tensor_info(t) for t in flat.tensors]
    extras = [state.tensor_info(t) for t in extra.tensors] if extra is not None else []
    for info in extras:
        refuse_data(builder, info)
    mode = torch.is_grad_enabled() if grad is None else grad
    with subgraphs.scope(state, what, writes=name in ("vmap", "functionalize")) as scope, subgraphs.grad_mode(mode):
        inputs = [subgraphs.taken(builder, scope, info, make) for info, make in zip(infos, makes)]
        given, named = flat.rebuilt(inputs)
        result = state.interpreter.call(func, [flat.objects.get(i, arg) for i, arg in enumerate(given)], named)
        if batching is not None:
            result = batching.results_apart(state, result)
        flat_result = subgraphs.flatten(state, result, what)
    if name in ("vjp", "jvp", "jacrev", "jacfwd") and subgraphs.has_effects(builder, scope):
        raise _refused(
            "random numbers in a function transform", what,
            f"The function given to {what} draws random numbers.", "Draw them outside and pass them in.",
        )  # fmt: skip
    writes = written_batches.of(state, scope, flat, inputs, flat_result, dims)
    if writes is not None:
        if dims is not None:
            options["out_dims"] = writes.out_dims(flat_result, options["out_dims"])
        flat_result = subgraphs.flatten(state, (result, writes.values), what)
    body = subgraphs.close(builder, scope, flat_result.tensors)
    if writes is not None:
        writes.copy_first(body)
    call = hops.Call(_hints(flat.leaves), flat.spec, flat_result.leaves, flat_result.spec, len(infos), options)
    if extra is not None:
        call.extra, call.extra_spec, call.extras = _hints(extra.leaves), extra.spec, len(extras)
    body.meta["call"] = call
    tensors = [*infos, *extras, *scope.order]
    device = next((info.device for info in tensors if isinstance(info.tensor, torch.Tensor)), torch.device("cpu"))
    leaves, siblings, spec = _computed(builder, name, subgraphs.on_meta(body, device.type == "cpu"), tensors)
    metas = [info.tensor for info in tensors]
    if not builder.scopes and (name in ("jvp", "jacfwd") or hops.computes_forward(body)):
        reached = subgraphs.meta_result(what, lambda: hops.reached(leaves, metas))
        call.reached = cast(list[list[int]], reached)
    options.pop("strict", None)  # stand-ins have told what depends on what
    shown = [(_fresh(state, leaf), device) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    new = iter(_recorded(builder, scope, name, body, tensors, shown))
    leaves = [next(new) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    with torch._C.DisableTorchFunction():
        for place, at_probes in enumerate(zip(*siblings)):
            leaves[place] = symbolic_tensors.attach(builder, leaves[place], list(at_probes))
    results = pytree.tree_unflatten(leaves, spec)
    return results if writes is None else writes.written_back(builder, results)


def _hints(leaves: list[object]) -> list[object]:
    """Arguments that the body takes from its surroundings, as they are in the call at hand."""
    return [leaf.hint if isinstance(leaf, SymbolicNumber) else leaf for leaf in leaves]


def _computed(
    builder: GraphBuilder, name: str, body: fx.GraphModule, tensors: list[TensorInfo]
) -> tuple[list[object], list[list[object]], object]:
    """The leaves of what a transform of stand-ins gives, what they are at the probes (nothing: the same), and how they
    are nested."""

    specs: list[object] = []

    def run(flat: Args, named: Kwargs, judged: bool = True) -> list[object]:
        answer = subgraphs.meta_result(f"torch.func.{name}", lambda: hops.transformed(name, body, flat, at_once=True))
        leaves, spec = pytree.tree_flatten(answer)
        specs.append(spec)
        return leaves

    flat = tuple([info.tensor for info in tensors])
    if builder.dynamics is not None:
        flat = tuple([builder.dynamics.wrap(info.node.meta["expr"], info.tensor)
                      if "expr" in info.node.meta else info.tensor for info in tensors])  # fmt: skip
        own = [info for info in tensors if isinstance(info.tensor, torch.Tensor)]
        if symbolic_tensors.involved(builder, own, flat, {}):
            with torch._C.DisableTorchFunction():
                leaves, siblings = ProbedCall(builder, run, hops.TRANSFORMS[name], flat, {}).compute()
            return leaves, siblings, specs[0]
    return run(flat, {}), [], specs[0]


def _recorded(
    builder: GraphBuilder, scope: Scope, name: str, body: fx.GraphModule, tensors: list[TensorInfo],
    shown: list[tuple[torch.Tensor, torch.device]],
) -> list[torch.Tensor]:  # fmt: skip
    """The results of the node; where its body draws random numbers, it does."""
    new = subgraphs.record(builder, hops.TRANSFORMS[name], [(f"{name}_body", body)], tensors, shown)
    if new and subgraphs.has_effects(builder, scope):
        builder.effectful.add(builder.tensors[id(new[0])].node.all_input_nodes[0])
    return new


def _fresh(state: CaptureState, tensor: torch.Tensor) -> torch.Tensor:
    """The result of a function of stand-ins, as a stand-in that nothing else has."""
    with torch._C.DisableTorchFunction():
        if tensor.device.type != "meta":
            raise _refused("function transform", "torch.func", "It makes tensors on another device.", "Run it eagerly.")
        return subgraphs.copy_of(tensor, tensor.requires_grad) if id(tensor) in state.tensors else tensor


def _element(tensor: torch.Tensor, dim: int | None, leaf: bool) -> torch.Tensor:
    """What a function under vmap sees of a tensor that is mapped over in a dimension, or not."""
    if dim is not None:
        if not -tensor.dim() <= dim < tensor.dim():
            raise _refused("vmap", "torch.func.vmap", "in_dims is out of range.", "Check in_dims.")
        with torch._C.DisableTorchFunction():
            tensor = tensor.select(dim, 0)
    like = subgraphs.leaf_like if leaf else subgraphs.copy_of  # what is no leaf may be written to
    return like(tensor, tensor.requires_grad)


def _batched(
    state: CaptureState, flat: subgraphs.Flat, in_dims: Any, args: Args
) -> tuple[list[subgraphs.Make], list[int | None]]:
    """What makes what a function under vmap sees of its arguments, one element of the batch, and which dimension the
    batch is."""
    spec = pytree.tree_flatten(state.deep_resolve(args))[1]
    dims = pytree._broadcast_to_and_flatten(in_dims, spec)
    count = len(flat.leaves)
    if dims is None or any(type(d) is not int and d is not None for d in dims):
        raise _refused("vmap", "torch.func.vmap", "in_dims does not fit the arguments.", "Run it eagerly.")
    dims = [*dims, *([0] * (count - len(dims)))]
    mapped: list[int | None] = [dim for leaf, dim in zip(flat.leaves, dims) if type(leaf) is hops.Place]
    return [functools.partial(_element, dim=dim, leaf=t.is_leaf) for t, dim in zip(flat.tensors, mapped)], mapped


class Batching:
    """Objects that vmap maps over, of a class that takes itself apart (`_add_batch_dim`), and those that come of it.

    Fields:
        tensors: those of the object at hand.
        elements: id of a tensor -> what the function sees of it.
        objects: number of an argument -> what the function sees in its place.
        results: leaves of the function's result, objects among them, each with its tensors.
        outer: id of a tensor in a result of the function -> what vmap makes of it.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.elements: dict[int, torch.Tensor] = {}
        self.objects: dict[int, object] = {}
        self.results: list[tuple[object, list[torch.Tensor]]] = []
        self.outer: dict[int, torch.Tensor] = {}

    def element_or(self, make: subgraphs.Make) -> subgraphs.Make:
        """What an object has in it already of a tensor, or what is made of it."""

        def known(tensor: torch.Tensor) -> torch.Tensor:
            element = self.elements.get(id(tensor))
            return make(tensor) if element is None else element

        return known

    def results_apart(self, state: CaptureState, result: object) -> object:
        """The function's result with a list of its tensors in the place of each object."""
        leaves, self.spec = pytree.tree_flatten(state.deep_resolve(result), is_leaf=_knows_batch)
        for leaf in leaves:
            tensors: object = []
            if _knows_batch(leaf):
                _refuse_without(leaf, "values", "_maybe_remove_batch_dim")
                tensors = state.interpreter.call(torch_polyfills.tensors_of, (leaf,), {})
            self.results.append((leaf, cast("list[torch.Tensor]", tensors)))
        return pytree.tree_unflatten([held if _knows_batch(leaf) else leaf for leaf, held in self.results], self.spec)

    def results_put_together(self, state: CaptureState, result: object, size: int, out_dims: object) -> object:
        """What vmap gives, of what it gives where lists of tensors are in the place of objects."""
        parts = self.spec.flatten_up_to(result)
        dims = pytree._broadcast_to_and_flatten(out_dims, self.spec)
        for index, ((leaf, held), part) in enumerate(zip(self.results, parts)):
            if not _knows_batch(leaf):
                continue
            if dims is None or type(dims[index]) is not int or dims[index] < 0:
                raise _knowing()
            self.outer = {id(state.tensor_info(inner).tensor): outer for inner, outer in zip(held, part)}
            method = state.interpreter.getattr(leaf, "_maybe_remove_batch_dim")
            options = {"vmap_level": 1, "batch_size": size, "out_dim": dims[index]}
            parts[index] = self.asking(state, method, {"funcname": "function", **options})
        return pytree.tree_unflatten(parts, self.spec)

    def asking(self, state: CaptureState, method: object, options: Kwargs) -> object:
        """What an object's method gives that calls vmap's functions for each of its tensors."""
        state.batching, self.tensors = self, []
        try:
            return state.interpreter.call(method, (), options)
        finally:
            state.batching = None


@handler(torch._C._functorch._add_batch_dim)
def _add_batch_dim(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What an object's `_add_batch_dim` calls for each of its tensors."""
    batching = state.batching
    if not isinstance(batching, Batching) or len(args) != 3:
        return NotImplemented
    plain = state.tensor_info(args[0]).tensor
    batching.tensors.append(args[0])
    return batching.elements.setdefault(id(plain), _element(plain, args[1], plain.is_leaf))


def _maybe_remove_batch_dim(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What an object's `_maybe_remove_batch_dim` calls for each of its tensors."""
    batching = state.batching
    if not isinstance(batching, Batching) or kwargs:
        return NotImplemented
    tensor = args[1]
    outer = batching.outer.get(id(state.tensor_info(tensor).tensor)) if isinstance(tensor, torch.Tensor) else None
    if outer is None:
        raise _knowing()
    return outer


def _knows_batch(obj: object) -> bool:
    return hasattr(type(obj), "_add_batch_dim")


def _refuse_without(obj: object, *methods: str) -> None:
    if not all(hasattr(type(obj), method) for method in methods):
        raise _knowing()


def _knowing() -> errors.GraphBreak:
    return _refused("vmap", "torch.func.vmap", "It maps over objects that know their batch.", "Run it eagerly.")


def _taken_apart(state: CaptureState, args: Sequence[object], in_dims: object) -> tuple[Args, Batching | None]:
    """The arguments of vmap with the tensors of objects that a library has vmap map over (tensordict's: it puts
    functions of its own in the place of torch's), in lists; objects that are not mapped over are copied, as there."""
    given = [state.deep_resolve(arg) for arg in args]
    if not _is_replaced():
        return tuple(given), None
    batching = Batching()
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(given)
    for index, (arg, dim) in enumerate(zip(given, dims)):
        if not _knows_batch(arg):
            if any(map(_knows_batch, pytree.tree_leaves(arg, is_leaf=_knows_batch))):
                raise _knowing()
        elif dim is None:
            _refuse_without(arg, "clone")
            clone = state.interpreter.getattr(arg, "clone")
            batching.objects[index], given[index] = state.interpreter.call(clone, (False,), {}), []
        elif type(dim) is not int or dim < 0:
            raise _knowing()
        else:
            method = state.interpreter.getattr(arg, "_add_batch_dim")
            batching.objects[index] = batching.asking(state, method, {"in_dim": dim, "vmap_level": 1})
            given[index] = list(batching.tensors)
    return tuple(given), batching


def _is_replaced() -> bool:
    """Whether a library put functions of its own (tensordict's) in the place of vmap's."""
    own = torch._functorch.vmap
    return own._create_batched_inputs.__module__ != own.__name__


def _vmap_impl(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, in_dims, out_dims, randomness, chunk_size, *rest = args
    in_dims, out_dims, chunk_size = map(symbolic_ops.plain, state.deep_resolve((in_dims, out_dims, chunk_size)))
    wrapped = "lost" if type(in_dims) is int else ""
    given, taken = _taken_apart(state, rest, in_dims)
    flat = subgraphs.flatten(state, (given, kwargs), "torch.func.vmap", subclasses=wrapped, numbers=True)
    makes, dims = _batched(state, flat, in_dims, given)
    if taken is not None and taken.objects:
        makes = [taken.element_or(make) for make in makes]
        flat.objects = taken.objects
    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, "chunk_size": chunk_size}
    result = _transform(state, "vmap", func, options, makes, flat, dims=dims, batching=taken)
    if taken is None or not any(_knows_batch(leaf) for leaf, _ in taken.results):
        return result
    with torch._C.DisableTorchFunction():
        size = next(tensor.shape[dim] for tensor, dim in zip(flat.tensors, dims) if dim is not None)
    return taken.results_put_together(state, result, size, out_dims)


def _differentiated(state: CaptureState, name: str, func: Function, argnums: object, args: Args, kwargs: Kwargs,
                    options: dict[str, object]) -> object:  # fmt: skip
    flat = subgraphs.flatten(state, (args, kwargs), f"torch.func.{name}", subclasses="lost", numbers=True)
    chosen = set()
    for index, arg in enumerate(args):
        if _is_diff(index, argnums, len(args)):
            leaves = pytree.tree_leaves(state.deep_resolve(arg))
            chosen |= {id(state.tensor_info(t).tensor) for t in leaves if isinstance(t, torch.Tensor)}
    makes = [functools.partial(subgraphs.leaf_like, requires_grad=id(t) in chosen) for t in flat.tensors]
    return _transform(state, name, func, options, makes, flat, grad=True)


def _grad_impl(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, argnums, has_aux, given, named = args
    name = "grad" if fn.__name__ == "grad_impl" else "grad_and_value"
    options = {"argnums": state.deep_resolve(argnums), "has_aux": has_aux}
    return _differentiated(
        state, name, func, options["argnums"], tuple(state.resolve(given)), state.resolve(named), options
    )


def _jacobian(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The function that jacrev(...) or jacfwd(...) returned."""
    name = fn.__code__.co_qualname.partition(".")[0]
    if kwargs:
        return NotImplemented
    made_of, *given = _closed_over(state, fn, "func", *_OF_JACOBIANS)
    func = cast("Function", made_of)
    options = {key: value for key, value in zip(_OF_JACOBIANS, given) if value is not NULL}
    options["argnums"] = state.deep_resolve(options.get("argnums", 0))
    if options["argnums"] is None:
        return NotImplemented
    return (
        _differentiated(state, name, func, options["argnums"], args, {}, options)
        if name == "jacrev"
        else _forward_mode(state, func, args, options)
    )


_OF_JACOBIANS = ("argnums", "has_aux", "chunk_size", "randomness", "_preallocate_and_copy")


def _closed_over(state: CaptureState, fn: Function, *cells: str) -> list[object]:
    """What a transformed function, from outside or not, holds of what it was made of."""
    return [symbolic_ops.plain(names.closed_over(state.interpreter, fn, cell)) for cell in cells]


def _forward_mode(state: CaptureState, func: Function, args: Args, options: dict[str, Any]) -> object:
    flat = subgraphs.flatten(state, (args, {}), "torch.func.jacfwd", numbers=True)
    _refuse_level(state, "torch.func.jacfwd")
    return _transform(state, "jacfwd", func, options, _leaves(flat), flat)


def _leaves(flat: subgraphs.Flat) -> Sequence[subgraphs.Make]:
    return [functools.partial(subgraphs.leaf_like, requires_grad=t.requires_grad) for t in flat.tensors]


def _refuse_level(state: CaptureState, what: str) -> None:
    """Torch has one level of forward mode: inside one that the program entered, its functions raise."""
    if state.graph.dual_level is not None:
        raise _refused("function transform", what, "A level of forward-mode gradients is open.", "Call it outside.")


def _jvp(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    names = ("func", "primals", "tangents")
    bound = {**dict(zip(names, args)), **kwargs}
    primals, tangents = state.deep_resolve(bound["primals"]), state.deep_resolve(bound["tangents"])
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        return NotImplemented
    _refuse_level(state, "torch.func.jvp")
    flat = subgraphs.flatten(state, (primals, {}), "torch.func.jvp")
    extra = subgraphs.flatten(state, tangents, "torch.func.jvp", offset=len(flat.tensors))
    options = {"has_aux": bool(bound.get("has_aux", False)), "strict": bool(bound.get("strict", False))}
    return _transform(state, "jvp", bound["func"], options, _leaves(flat), flat, extra)


@handler(hops.pullback)
def _pullback(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, primals, has_aux, cotangents = args
    flat = subgraphs.flatten(state, (tuple(primals), {}), "torch.func.vjp")
    extra = subgraphs.flatten(state, cotangents, "torch.func.vjp", offset=len(flat.tensors))
    makes = [functools.partial(subgraphs.leaf_like, requires_grad=True)] * len(flat.tensors)
    return _transform(state, "vjp", func, {"has_aux": has_aux}, makes, flat, extra, grad=True)


@handler(*all_of("func.vjp"))
def _vjp(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    with repeated_calls.calling(state, "torch.func.vjp", *args):
        return state.interpreter.call(torch_polyfills.vjp, args, kwargs)


@handler(hops.pushforward)
def _pushforward(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, primals, tangents = args
    given = {"func": func, "primals": tuple(primals), "tangents": tuple(tangents), "strict": True}
    results = _jvp(state, fn, (), given)
    assert isinstance(results, tuple)
    return results[1]


def _linearize(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Captured where no gradient could be recorded: torch's function of tangents has no way back to anything else, and
    gives what does not depend on them as a parameter of the graph that it made."""
    if kwargs or not args or torch.is_inference_mode_enabled():  # there it gives zeros
        return NotImplemented
    what = "torch.func.linearize"
    func, primals = args[0], state.deep_resolve(tuple(args[1:]))
    with repeated_calls.calling(state, what, *args), subgraphs.scope(state, what), subgraphs.grad_mode(True):
        with torch._C.DisableTorchFunction():
            tangents = pytree.tree_map(lambda primal: state.graph.call(torch.zeros_like, (primal,), {}), primals)
        pushed = pytree.tree_leaves(_pushforward(state, fn, (func, primals, tangents), {}))
        _refuse_nested(state, what)
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in (*pushed, *pytree.tree_leaves(primals))):
        raise _refused("function transform", what, "Gradients may be recorded in it.", "Use torch.func.jvp.")
    return state.interpreter.call(torch_polyfills.linearize, (func, primals))


def _functionalized(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The function that functionalize(...) returned."""
    func, reapply_views = _closed_over(state, fn, "func", "reapply_views")
    flat = subgraphs.flatten(state, (args, kwargs), "torch.func.functionalize", numbers=True)
    makes = [functools.partial(_element, dim=None, leaf=t.is_leaf) for t in flat.tensors]
    options = {"remove": "mutations" if reapply_views else "mutations_and_views"}
    return _transform(state, "functionalize", cast("Function", func), options, makes, flat)


def _jacobian_forward(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What torch.autograd.functional.jacobian does in forward mode."""
    func, inputs, strict, vectorize = args
    if strict or vectorize is not True or torch.is_inference_mode_enabled():  # there it gives zeros
        return NotImplemented
    jacobian = state.interpreter.call(torch_polyfills.jacobian_forward, (func, inputs))
    _refuse_nested(state, "torch.autograd.functional.jacobian")
    return jacobian


def _jacobian_by_rows(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch.autograd.functional.jacobian, torch's own code: as a batch of gradients where their number may vary."""
    given = {**dict(zip(("func", "inputs", "create_graph", "strict", "vectorize", "strategy"), args)), **kwargs}
    leaves = pytree.tree_leaves(state.deep_resolve(given.get("inputs")))
    varies = any(isinstance(leaf, torch.Tensor) and state.tensor_info(leaf).dynamic is not None for leaf in leaves)
    if not varies or given.get("strict") or given.get("vectorize"):
        return NotImplemented
    rows = state.deep_resolve(state.interpreter.call(fn, (), {**given, "vectorize": True}))
    calling = state.interpreter

    def stacked(each: object) -> object:
        return calling.call(calling.getattr(each, "contiguous"), (), {})

    return pytree.tree_map(stacked, rows)


def _refuse_nested(state: CaptureState, what: str) -> None:
    """End the graph before what was recorded last, where it is part of another transform, or has others in it: eager
    enters a level of forward mode there, of which there can be one at a time; torch.func.linearize of gradients gives
    zeros."""
    builder = state.graph
    node = next(node for node in reversed(builder.graph.nodes) if node.target in (hops.jvp, hops.jacfwd))
    held = builder.scopes[-1].attributes if builder.scopes else builder.constants
    body = node.args[0]
    assert isinstance(body, fx.Node)
    around = [scope for scope in builder.scopes if scope.what != what]
    own = 1 if what.endswith("hessian") else 0  # it is a Jacobian of gradients
    if around or hops.count_transforms(held[str(body.target)]) > own:
        raise _refused("function transform", what, "It is nested with other transforms.", "Use torch.func.jvp.")


def _hessian_forward(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch.autograd.functional.hessian; in reverse mode torch's own code."""
    names = ("func", "inputs", "create_graph", "strict", "vectorize", "outer_jacobian_strategy")
    given = {**dict(zip(names, args)), **kwargs}
    forward = given.get("outer_jacobian_strategy") == "forward-mode" and given.get("vectorize") is True
    if not forward or given.get("create_graph") or given.get("strict") or not torch.is_grad_enabled():
        return NotImplemented
    hessian = state.interpreter.call(torch_polyfills.hessian_forward, (given["func"], given["inputs"]))
    _refuse_nested(state, "torch.autograd.functional.hessian")
    return hessian


handler(*all_of("func.jvp"))(_jvp)
handler(*all_of("autograd.functional.hessian"))(_hessian_forward)
handler(*all_of("autograd.functional.jacobian"))(_jacobian_by_rows)
handler(*all_of("func.linearize"))(_linearize)
handler(*all_of("autograd.functional._jacfwd"))(_jacobian_forward)
CODES["eager_transforms.py:functionalize.<locals>.wrapped"] = _functionalized
CODES["eager_transforms.py:jacrev.<locals>.wrapper_fn"] = _jacobian
CODES["eager_transforms.py:jacfwd.<locals>.wrapper_fn"] = _jacobian


@handler(*all_of("vmap func.vmap func.grad func.grad_and_value func.jacrev func.jacfwd func.hessian "
                 "func.functionalize func.functional_call func.stack_module_state"))  # fmt: skip
def _interpreted(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """torch's own Python code, down to the functions above."""
    return NotImplemented


def _index_by_tensors(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`x[i, j]` where 0-d tensors are positions, not numbers: what torch's attention masks look things up with."""
    _, tensor, indices = args
    return operation(state, torch.ops.aten.index.Tensor, (tensor, list(state.deep_resolve(indices))), {})


def _region_of_its_own(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A function that torch is to compile once (torch.compiler.nested_compile_region) is part of the graph."""
    return state.interpreter.call(args[0], args[1:], kwargs)


CODES["invoke_subgraph.py:mark_compile_region.<locals>.wrap.<locals>.inner"] = _interpreted
enter_late({
    "_higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder": _region_of_its_own,
    "_functorch.vmap.vmap_impl": _vmap_impl,
    "_functorch.vmap._maybe_remove_batch_dim": _maybe_remove_batch_dim,
    "_functorch.eager_transforms.grad_impl _functorch.eager_transforms.grad_and_value_impl": _grad_impl,
    "_dynamo._trace_wrapped_higher_order_op.apply": _index_by_tensors,
})  # fmt: skip
