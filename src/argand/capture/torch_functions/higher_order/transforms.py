"""Functions that take functions: checkpoint, autograd.Function and torch.func, captured with subgraphs as bodies."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils import _pytree as pytree

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import type_lookup
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.record.scopes import fixed_sizes, placeholder
from argand.capture.torch_functions import hops, torch_polyfills
from argand.capture.torch_functions.higher_order import hook_state, subgraphs
from argand.capture.torch_functions.torch_calls import CODES, all_of, enter_late, handler, name_of
from argand.capture.torch_functions.torch_calls import leaf as operation
from argand.capture.world import pending_effects

_CHECKPOINT_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")


def _refused(kind: str, what: str, explanation: str, hint: str) -> errors.GraphBreak:
    return errors.graph_break(kind=kind, context=what, explanation=explanation, hints=(hint,))


# ---------------------------------------------------------------------- checkpoint


@handler(torch.utils.checkpoint.checkpoint)
def _checkpoint(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Without gradients a plain call, else a node whose body is the function's graph."""
    function, *rest = args if args else (kwargs.pop("function"),)
    own = {key: value for key, value in kwargs.items() if key not in _CHECKPOINT_OPTIONS}
    options = {key: value for key, value in kwargs.items() if key in _CHECKPOINT_OPTIONS}
    if not torch.is_grad_enabled():
        return state.interpreter.call(function, tuple(rest), own)
    reentrant = options.get("use_reentrant")
    if not isinstance(reentrant, bool) or not all(
        isinstance(v, bool) or (k == "determinism_check" and isinstance(v, str)) for k, v in options.items()
    ):
        raise _refused(
            "activation checkpoint", "torch.utils.checkpoint.checkpoint",
            "checkpoint is captured with use_reentrant=True or False and no context_fn.",
            "Pass use_reentrant=False.",
        )  # fmt: skip
    if reentrant and own:
        return NotImplemented
    return _checkpointed(state, function, (tuple(rest), own), options)


def _checkpointed(state: CaptureState, function: Function, given: Any, options: dict[str, object]) -> object:
    what, builder = "torch.utils.checkpoint.checkpoint", state.graph
    reentrant = options["use_reentrant"]
    flat = subgraphs.flatten(state, given[0], what, subclasses="kept")
    infos = _unique(state, flat.tensors)
    grad = any(t.requires_grad for t in flat.tensors) if reentrant else True
    with subgraphs.scope(state, what) as scope, subgraphs.grad_mode(not reentrant):
        for info in infos:
            builder.node_of(info)
        result = state.interpreter.call(function, given[0], given[1])
    flat_result = subgraphs.flatten(state, result, what, subclasses="kept")
    inside = [t for t in flat_result.tensors if state.tensor_info(t).node.graph is scope.graph]
    if reentrant and (len(inside) != len(flat_result.tensors) or not isinstance(result, (torch.Tensor, tuple))):
        raise _refused(
            "activation checkpoint", what, "The checkpointed function returns its argument, or a container.",
            "Pass use_reentrant=False.",
        )  # fmt: skip
    body = subgraphs.close(builder, scope, inside)
    body.meta["call"] = hops.Call([], None, [], None, len(infos), dict(options))
    results = [
        (subgraphs.copy_of(t, grad if reentrant else t.requires_grad), state.tensor_info(t).device) for t in inside
    ]
    outer = iter(
        subgraphs.record(builder, hops.checkpoint, [("checkpoint_body", body)], [*infos, *_rest(scope, infos)], results)
    )
    ids = {id(t) for t in inside}
    return flat_result.rebuilt([next(outer) if id(t) in ids else t for t in flat_result.tensors])


def _unique(state: CaptureState, tensors: list[torch.Tensor]) -> list[TensorInfo]:
    return [state.tensor_info(t) for t in {id(t): t for t in tensors}.values()]


def _rest(scope: Scope, infos: list[TensorInfo]) -> list[TensorInfo]:
    """What the body reads from its surroundings."""
    known = {id(info) for info in infos}
    return [info for info in scope.order if id(info) not in known]


# ---------------------------------------------------------------------- autograd.Function


class FunctionContext:
    """The `ctx` of an autograd.Function that is captured."""

    argand_temporary = True

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[object, ...] = ()
        self.argand_fixed: tuple[object, ...] = ()
        self.argand_refused = ""

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        pass

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.argand_fixed = tensors

    def mark_dirty(self, *tensors: object) -> None:
        self.argand_refused = "mark_dirty"

    def set_materialize_grads(self, value: bool) -> None:
        if not value:
            self.argand_refused = "set_materialize_grads(False)"


def _forward(state: CaptureState, cls: type, context: FunctionContext, rest: Args, kwargs: Kwargs) -> object:
    interp = state.interpreter
    forward = interp.getattr(cls, "forward")
    if not _has_from_torch(interp, cls, "setup_context"):
        result = interp.call(forward, rest, kwargs)
        interp.call(interp.getattr(cls, "setup_context"), (context, rest, result), {})
        return result
    return interp.call(forward, (context, *rest), kwargs)


def _has_from_torch(interp: Any, cls: type, name: str) -> bool:
    """Whether a class inherits an attribute from torch's; guarded."""
    interp.note_class(cls)
    return bool(interp.types.lookup(cls, name) is type_lookup(torch.autograd.Function, name))


def _check_backward_class(interp: Any, cls: type, what: str) -> None:
    """The class of the backward nodes, which `apply` calls, is the one that torch has made for this class."""
    backward_class = interp.getattr(cls, "_backward_cls")
    ours = isinstance(backward_class, type) and torch.autograd.function.BackwardCFunction in backward_class.__mro__
    if not ours or interp.getattr(backward_class, "_forward_cls") is not cls:
        raise _refused(
            "autograd.Function", what, "The class of its backward nodes was replaced.",
            "Leave _backward_cls as torch has set it.",
        )  # fmt: skip


@handler(torch.autograd.Function.apply)
def _function_apply(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """autograd.Function.apply: inlined where no gradient is recorded, else a node with two graphs."""
    cls, *given = args
    rest = tuple(given)
    what = f"{name_of(cls)}.apply"
    tensors = [arg for arg in rest if isinstance(arg, torch.Tensor)]
    _check_backward_class(state.interpreter, cls, what)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Captured(state, cls, what, rest, kwargs).run()
    context = FunctionContext((False,) * len(rest))
    result = _forward(state, cls, context, rest, kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    if context.argand_refused == "mark_dirty":
        raise _returns_input(what)
    if not any(out is arg for out in outputs for arg in tensors):
        return result
    others = tuple([_passed_on(state, out) if any(out is arg for arg in tensors) else out for out in outputs])
    return others if isinstance(result, tuple) else others[0]


def _passed_on(state: CaptureState, tensor: torch.Tensor) -> torch.Tensor:
    """What autograd makes of an input that a forward returns where no gradient is recorded: a view of it."""
    info = state.tensor_info(tensor)
    with torch._C.DisableTorchFunction():
        shown = hops.passed_on(tensor)[0]
    return subgraphs.record(state.graph, hops.passed_on, [], [info], [(shown, info.device)])[0]


native_handlers.SAFE_NEW.add(torch._C._FunctionBase)  # an empty node, for `apply` of an instance
native_handlers.STORING_NEW.add(torch._C._FunctionBase)


@native_handlers.function(torch.autograd.function.FunctionMeta.__init__)
def _function_class(interp: Any, fn: Function, args: list[Any], kwargs: Kwargs) -> Any:
    """A subclass of autograd.Function that the captured code defines: torch makes a class for its backward nodes."""
    interp.unread(fn, *args, **kwargs)
    interp.types.forget()
    interp.renew_facts()
    interp.note_local_class(args[0]._backward_cls)


def _returns_input(what: str) -> errors.GraphBreak:
    return _refused(
        "autograd.Function returns its input", what,
        f"{what} returns its input itself, and the graph is to return that, or writes to it: autograd treats such "
        "results in a special way.",
        "Return a new tensor from forward, such as x.view_as(x) or x.clone().",
    )  # fmt: skip


class _Captured:
    """One call of `apply` with gradients."""

    def __init__(self, state: CaptureState, cls: Any, what: str, rest: Args, kwargs: Kwargs) -> None:
        self.state, self.cls, self.what = state, cls, what
        self.rest = tuple(state.deep_resolve(arg) for arg in rest)
        self.kwargs = kwargs
        self.builder = state.graph

    def run(self) -> object:
        state, builder = self.state, self.builder
        tensors = [arg for arg in self.rest if isinstance(arg, torch.Tensor)]
        infos = _unique(state, tensors)
        needs = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in self.rest)
        context = FunctionContext(needs)
        with subgraphs.scope(state, self.what) as forward, subgraphs.grad_mode(False):
            result = _forward(state, self.cls, context, self.rest, self.kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        results = self._results(outputs, forward)
        self._refuse(context)
        with (
            subgraphs.scope(state, f"the backward of {self.what}", feeds=forward) as backward,
            subgraphs.grad_mode(False),
            pending_effects.watching(state) as watched,
        ):
            stand_ins = [self._gradient(tensor, backward) for tensor in results]
            remaining = iter(stand_ins)
            grads = tuple(next(remaining) if isinstance(out, torch.Tensor) else None for out in outputs)
            function = state.interpreter.getattr(self.cls, "backward")
            answer = state.interpreter.call(function, (context, *grads), {})
            answer = subgraphs.summed(builder, answer, self.rest)
        hook_state.note_backward(state, function, context, watched.ids)
        gradients = self._gradients(answer)
        flat, call, graphs = self._graphs(infos, context, forward, backward, results, gradients)
        graphs[0].meta["call"] = call
        bodies = [("function_forward", graphs[0]), ("function_backward", graphs[1])]
        fixed = set(call.fixed)
        shown = [(self._shown(t, i not in fixed), state.tensor_info(t).device) for i, t in enumerate(results)]
        new = iter(subgraphs.record(builder, hops.autograd_function, bodies, flat, shown))
        rebuilt = tuple(next(new) if isinstance(out, torch.Tensor) else out for out in outputs)
        for before, after in zip(outputs, rebuilt):
            if isinstance(before, torch.Tensor) and after.requires_grad and self._is_view(before):
                self._stays_inside(after)
        return rebuilt if isinstance(result, tuple) else rebuilt[0]

    def _is_view(self, result: torch.Tensor) -> bool:
        """Whether a result shares the memory of an argument."""
        with torch._C.DisableTorchFunction():
            tensors = [arg for arg in self.rest if isinstance(arg, torch.Tensor)]
            return result.untyped_storage()._cdata in {arg.untyped_storage()._cdata for arg in tensors}

    def _stays_inside(self, shown: torch.Tensor) -> None:
        """Note a view with a history of its own: a graph that returns it would return a plain view instead."""
        interp = self.state.interpreter
        interp.born[id(shown)] = (shown, interp.number)
        leaving = _returns_input(self.what)
        leaving.needed = shown
        with torch._C.DisableTorchFunction():
            self.builder.staying[shown.untyped_storage()._cdata] = leaving

    def _shown(self, result: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """The stand-in for a result; for an input that is returned, one that shares its memory."""
        if not self._given(result):
            return subgraphs.copy_of(result, differentiable)
        with torch._C.DisableTorchFunction():
            return hops.passed_on_with_history(result) if differentiable else hops.passed_on(result.detach())[0]

    def _given(self, tensor: object) -> bool:
        return any(tensor is arg for arg in self.rest)

    def _results(self, outputs: Any, forward: Scope) -> list[torch.Tensor]:
        """The tensors that forward returns, each made there or an argument, each once."""
        results = [out for out in outputs if isinstance(out, torch.Tensor)]
        known = all(self.state.tensor_info(t).node.graph is forward.graph or self._given(t) for t in results)
        if not results or not known or len({id(t) for t in results}) != len(results):
            raise _returns_input(self.what)
        for out in outputs:
            if not (out is None or isinstance(out, torch.Tensor | bool | int | float | str)):
                raise _refused("autograd.Function", self.what, "Its forward returns nested containers.",
                               "Return a tensor or a tuple of tensors.")  # fmt: skip
        return results

    def _refuse(self, context: FunctionContext) -> None:
        if context.argand_refused == "mark_dirty":
            raise _returns_input(self.what)
        own = not all(_has_from_torch(self.state.interpreter, self.cls, name) for name in ("vjp", "jvp"))
        if context.argand_refused or self.kwargs or own:
            raise _refused(
                "autograd.Function", self.what, f"It uses {context.argand_refused or 'vjp or jvp'}.",
                "Write it with forward and backward alone.",
            )  # fmt: skip

    def _gradient(self, result: torch.Tensor, backward: Scope) -> torch.Tensor:
        stand_in = subgraphs.leaf_like(result, False)
        node = placeholder(backward.graph, "grad")
        return self.builder.register(stand_in, node, self.state.tensor_info(result).device)

    def _gradients(self, answer: Any) -> list[torch.Tensor | None]:
        """What backward returned, one for each argument."""
        given = list(answer) if isinstance(answer, (tuple, list)) else [answer]
        while len(given) > len(self.rest) and given[-1] is None:
            given.pop()
        given += [None] * (len(self.rest) - len(given))
        wrong = len(given) != len(self.rest) or any(
            grad is not None
            and not (isinstance(grad, torch.Tensor) and isinstance(arg, torch.Tensor) and grad.shape == arg.shape)
            for grad, arg in zip(given, self.rest)
        )
        if wrong or not isinstance(answer, (tuple, torch.Tensor)):
            raise _refused(
                "autograd.Function", self.what, "Its backward does not return a gradient of the right size per input.",
                "Return a tuple with a gradient, or None, for each argument of forward.",
            )  # fmt: skip
        return given

    def _graphs(
        self,
        infos: list[TensorInfo],
        context: FunctionContext,
        forward: Scope,
        backward: Scope,
        results: list[torch.Tensor],
        gradients: list[torch.Tensor | None],
    ) -> Any:
        """(the node's tensors, how they go together, [forward graph, backward graph])."""
        state, builder = self.state, self.builder
        kept = [g for g in gradients if g is not None]
        backward_graph = subgraphs.close(builder, backward, kept)
        inner = [info for info in backward.order if info.node.graph is forward.graph]
        outer = [info for info in backward.order if info.node.graph is not forward.graph]
        forward_outputs = [*results, *[info.tensor for info in inner]]
        forward_graph = subgraphs.close(builder, forward, forward_outputs)
        flat = list(infos)
        for info in (*forward.order, *outer):
            if all(info is not other for other in flat):
                flat.append(info)
        number = {id(info): i for i, info in enumerate(flat)}
        saved: list[tuple[str, int]] = []
        raw: list[tuple[str, int]] = []
        user_saved = {id(t) for t in context.saved_tensors if isinstance(t, torch.Tensor)}
        ordered: list[TensorInfo] = []
        for target, wanted in ((saved, True), (raw, False)):
            for info in backward.order:
                if (id(info.tensor) in user_saved) is wanted:
                    is_inner = info.node.graph is forward.graph
                    target.append(("made", _place(results, inner, info)) if is_inner else ("flat", number[id(info)]))
                    ordered.append(info)
        _reorder(backward_graph, backward, len(results), ordered)
        positions = tuple(number[id(state.tensor_info(a))] for a in self.rest if isinstance(a, torch.Tensor))
        fixed = {id(t) for t in context.argand_fixed}
        outputs = iter(range(len(kept)))
        of_argument = [None if g is None else next(outputs) for g in gradients]
        call = hops.FunctionCall(
            positions=positions,
            inputs=tuple(number[id(info)] for info in forward.order),
            results=len(results),
            saved=tuple(saved),
            raw=tuple(raw),
            fixed=tuple(
                i for i, t in enumerate(results) if id(t) in fixed or not (t.is_floating_point() or t.is_complex())
            ),
            gradients=tuple(g for g, arg in zip(of_argument, self.rest) if isinstance(arg, torch.Tensor)),
            once="once_differentiable" in getattr(getattr(self.cls.backward, "__code__", None), "co_qualname", ""),
        )
        return flat, call, [forward_graph, backward_graph]


def _place(results: list[torch.Tensor], inner: list[TensorInfo], info: TensorInfo) -> int:
    """Which output of the forward graph a tensor is."""
    for i, tensor in enumerate(results):
        if tensor is info.tensor:
            return i
    return len(results) + next(i for i, other in enumerate(inner) if other is info)


def _reorder(module: Any, scope: Scope, grads: int, ordered: list[TensorInfo]) -> None:
    """Placeholders: the gradients, then these tensors in this order."""
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    of_info = dict(zip([id(info) for info in scope.order], placeholders[grads:]))
    anchor = placeholders[grads - 1]
    for info in ordered:
        node = of_info[id(info)]
        anchor.append(node)
        anchor = node


# ---------------------------------------------------------------------- torch.func


def _is_diff(index: int, argnums: Any, count: int) -> bool:
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    return any(number % max(count, 1) == index for number in chosen)


def _transform(
    state: CaptureState,
    name: str,
    func: Function,
    options: dict[str, Any],
    inputs: list[torch.Tensor],
    flat: subgraphs.Flat,
    extra: subgraphs.Flat | None = None,
    grad: bool | None = None,
) -> object:
    """A node `name(body, ...)`; `inputs` are the tensors that the body sees for those of `flat`."""
    what, builder = f"torch.func.{name}", state.graph
    infos = [state.tensor_info(t) for t in flat.tensors]
    extras = [state.tensor_info(t) for t in extra.tensors] if extra is not None else []
    for info in (*infos, *extras):
        fixed_sizes(builder, info)
    with subgraphs.scope(state, what) as scope, subgraphs.grad_mode(torch.is_grad_enabled() if grad is None else grad):
        for tensor, info in zip(inputs, infos):
            builder.register(tensor, placeholder(scope.graph, info.node.name), info.device)
        given, named = flat.rebuilt(inputs)
        result = state.interpreter.call(func, given, named)
        flat_result = subgraphs.flatten(state, result, what)
    if name in ("vjp", "jvp", "jacrev", "jacfwd") and subgraphs.has_effects(builder, scope):
        raise _refused(
            "random numbers in a function transform", what,
            f"The function given to {what} draws random numbers.", "Draw them outside and pass them in.",
        )  # fmt: skip
    body = subgraphs.close(builder, scope, flat_result.tensors)
    call = hops.Call(flat.leaves, flat.spec, flat_result.leaves, flat_result.spec, len(infos), options)
    if extra is not None:
        call.extra, call.extra_spec, call.extras = extra.leaves, extra.spec, len(extras)
    body.meta["call"] = call
    tensors = [*infos, *extras, *scope.order]
    metas = [info.tensor for info in tensors]
    device = next((info.device for info in tensors), torch.device("cpu"))
    on_meta = subgraphs.on_meta(body, anywhere=device.type == "cpu")
    answer = subgraphs.meta_result(what, lambda: hops.transformed(name, on_meta, metas))
    leaves, spec = pytree.tree_flatten(answer)
    shown = [(_fresh(state, leaf), device) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    new = iter(subgraphs.record(builder, hops.TRANSFORMS[name], [(f"{name}_body", body)], tensors, shown))
    return pytree.tree_unflatten([next(new) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def _fresh(state: CaptureState, tensor: torch.Tensor) -> torch.Tensor:
    """The result of a function of stand-ins, as a stand-in that nothing else has."""
    with torch._C.DisableTorchFunction():
        if tensor.device.type != "meta":
            raise _refused("function transform", "torch.func", "It makes tensors on another device.", "Run it eagerly.")
        return subgraphs.copy_of(tensor, tensor.requires_grad) if id(tensor) in state.tensors else tensor


def _batched(state: CaptureState, flat: subgraphs.Flat, in_dims: Any, args: Args) -> list[torch.Tensor]:
    """What a function under vmap sees of its arguments: one element of the batch."""
    spec = pytree.tree_flatten(state.deep_resolve(args))[1]
    dims = pytree._broadcast_to_and_flatten(in_dims, spec)
    count = len(flat.leaves)
    if dims is None or any(type(d) is not int and d is not None for d in dims):
        raise _refused("vmap", "torch.func.vmap", "in_dims does not fit the arguments.", "Run it eagerly.")
    dims = [*dims, *([0] * (count - len(dims)))]
    inputs = []
    for leaf, dim in zip(flat.leaves, dims):
        if type(leaf) is not hops.Place:
            continue
        tensor = flat.tensors[leaf.index]
        if dim is not None:
            if not -tensor.dim() <= dim < tensor.dim():
                raise _refused("vmap", "torch.func.vmap", "in_dims is out of range.", "Check in_dims.")
            with torch._C.DisableTorchFunction():
                tensor = tensor.select(dim, 0)
        inputs.append(subgraphs.leaf_like(tensor, tensor.requires_grad))
    return inputs


def _vmap_impl(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, in_dims, out_dims, randomness, chunk_size, *rest = args
    in_dims, out_dims = state.deep_resolve(in_dims), state.deep_resolve(out_dims)
    wrapped = "lost" if type(in_dims) is int else ""
    flat = subgraphs.flatten(state, (tuple(rest), kwargs), "torch.func.vmap", subclasses=wrapped)
    inputs = _batched(state, flat, in_dims, tuple(rest))
    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, "chunk_size": chunk_size}
    return _transform(state, "vmap", func, options, inputs, flat)


def _differentiated(state: CaptureState, name: str, func: Any, argnums: object, args: Args, kwargs: Kwargs,
                    options: dict[str, object]) -> object:  # fmt: skip
    flat = subgraphs.flatten(state, (args, kwargs), f"torch.func.{name}", subclasses="lost")
    chosen = set()
    for index, arg in enumerate(args):
        if _is_diff(index, argnums, len(args)):
            leaves = pytree.tree_leaves(state.deep_resolve(arg))
            chosen |= {id(state.tensor_info(t).tensor) for t in leaves if isinstance(t, torch.Tensor)}
    inputs = [subgraphs.leaf_like(t, id(t) in chosen) for t in flat.tensors]
    return _transform(state, name, func, options, inputs, flat, grad=True)


def _grad_impl(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, argnums, has_aux, given, named = args
    name = "grad" if fn.__name__ == "grad_impl" else "grad_and_value"
    options = {"argnums": state.deep_resolve(argnums), "has_aux": has_aux}
    return _differentiated(
        state, name, func, options["argnums"], tuple(state.resolve(given)), state.resolve(named), options
    )


def _jacobian(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """The function that jacrev(...) or jacfwd(...) returned."""
    cells = {name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ())}
    name = fn.__code__.co_qualname.partition(".")[0]
    if kwargs:
        return NotImplemented
    func = cells.pop("func")
    if state.is_outer(fn):
        return NotImplemented
    options = {key: cells[key] for key in ("argnums", "has_aux", "chunk_size", "randomness") if key in cells}
    options["argnums"] = state.deep_resolve(options.get("argnums", 0))
    if options["argnums"] is None or cells.get("_preallocate_and_copy"):
        return NotImplemented
    return (
        _differentiated(state, name, func, options["argnums"], args, {}, options)
        if name == "jacrev"
        else _forward_mode(state, func, args, options)
    )


def _forward_mode(state: CaptureState, func: Function, args: Args, options: dict[str, Any]) -> object:
    flat = subgraphs.flatten(state, (args, {}), "torch.func.jacfwd")
    inputs = [subgraphs.leaf_like(t, t.requires_grad) for t in flat.tensors]
    return _transform(state, "jacfwd", func, options, inputs, flat)


def _jvp(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    names = ("func", "primals", "tangents")
    bound = {**dict(zip(names, args)), **kwargs}
    primals, tangents = state.deep_resolve(bound["primals"]), state.deep_resolve(bound["tangents"])
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple) or bound.get("strict"):
        return NotImplemented
    flat = subgraphs.flatten(state, (primals, {}), "torch.func.jvp")
    extra = subgraphs.flatten(state, tangents, "torch.func.jvp", offset=len(flat.tensors))
    inputs = [subgraphs.leaf_like(t, t.requires_grad) for t in flat.tensors]
    options = {"has_aux": bool(bound.get("has_aux", False))}
    return _transform(state, "jvp", bound["func"], options, inputs, flat, extra)


@handler(hops.pullback)
def _pullback(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    func, primals, has_aux, cotangents = args
    flat = subgraphs.flatten(state, (tuple(primals), {}), "torch.func.vjp")
    extra = subgraphs.flatten(state, cotangents, "torch.func.vjp", offset=len(flat.tensors))
    inputs = [subgraphs.leaf_like(t, True) for t in flat.tensors]
    return _transform(state, "vjp", func, {"has_aux": has_aux}, inputs, flat, extra, grad=True)


@handler(*all_of("func.vjp"))
def _vjp(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    return state.interpreter.call(torch_polyfills.vjp, args, kwargs)


handler(*all_of("func.jvp"))(_jvp)
CODES["eager_transforms.py:jacrev.<locals>.wrapper_fn"] = _jacobian
CODES["eager_transforms.py:jacfwd.<locals>.wrapper_fn"] = _jacobian


@handler(*all_of("vmap func.vmap func.grad func.grad_and_value func.jacrev func.jacfwd func.hessian "
                 "func.functional_call func.stack_module_state"))  # fmt: skip
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
    "_functorch.eager_transforms.grad_impl _functorch.eager_transforms.grad_and_value_impl": _grad_impl,
    "_dynamo._trace_wrapped_higher_order_op.apply": _index_by_tensors,
})  # fmt: skip
