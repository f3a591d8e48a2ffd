"""torch.autograd.Function: inlined where no gradient is recorded, else a node with two graphs, forward and backward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from argand import errors
from argand.capture.facts.code import directives
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.sources import type_lookup
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.objects.call_protocol import native_handlers
from argand.capture.record import tensor_attributes
from argand.capture.record.scopes import lift, placeholder
from argand.capture.sizes import async_collective_tensors, dtensors, symbolic_tensors, wrappers
from argand.capture.sizes.symbolic_state import Restart
from argand.capture.torch_functions import hops, torch_calls
from argand.capture.torch_functions.higher_order import hook_state, subgraphs
from argand.capture.torch_functions.torch_calls import find, handler, name_of
from argand.capture.world import pending_effects
from argand.graph.compat import storage_address
from argand.graph.dtensors import is_sharded
from argand.graph.metadata.strides import lies_densely


def _refused(kind: str, what: str, explanation: str, hint: str) -> errors.GraphBreak:
    return errors.graph_break(kind=kind, context=what, explanation=explanation, hints=(hint,))


class FunctionContext:
    """The `ctx` of an autograd.Function that is captured."""

    argand_temporary = True

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.argand_saved: tuple[object, ...] = ()
        self.argand_reads = False
        self.argand_fixed: tuple[object, ...] = ()
        self.argand_dirty: tuple[object, ...] = ()
        self.argand_refused = ""
        self.argand_materializes = True

    @property
    def saved_tensors(self) -> tuple[object, ...]:
        self.argand_reads = True
        return self.argand_saved

    def save_for_backward(self, *tensors: object) -> None:
        self.argand_saved = tensors

    def save_for_forward(self, *tensors: object) -> None:
        pass

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.argand_fixed = tensors

    def mark_dirty(self, *tensors: object) -> None:
        self.argand_dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.argand_materializes = value


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


_FORWARD_MODE = frozenset(("torch.func.jvp", "torch.func.jacfwd"))


def _check_transforms(state: CaptureState, cls: type, what: str) -> None:
    """Transforms ask for more of a function: how it computes with tangents, and with batches."""
    interp = state.interpreter
    around = {scope.what for scope in state.graph.scopes if scope.what.startswith("torch.func.")}
    if around & _FORWARD_MODE or state.graph.dual_level is not None:
        raise _refused("autograd.Function", what, "Tangents are computed by its own jvp.", "Call it outside.")
    if around and _has_from_torch(interp, cls, "setup_context"):
        raise _refused(
            "autograd.Function", what, "Within a transform of torch.func it needs a setup_context.",
            "Write forward without ctx, and a setup_context.",
        )  # fmt: skip
    if "torch.func.vmap" in around or "torch.func.jacrev" in around:
        generated = interp.getattr(cls, "generate_vmap_rule")
        if generated is not True or not _has_from_torch(interp, cls, "vmap"):
            raise _refused(
                "autograd.Function", what, "Within torch.func.vmap it is called with batches.",
                "Set generate_vmap_rule = True.",
            )  # fmt: skip


@handler(torch.autograd.Function.apply)
def _function_apply(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """autograd.Function.apply: inlined where no gradient is recorded, else a node with two graphs."""
    cls, *given = args
    rest = tuple(given)
    if cls is find("distributed._functional_collectives._FromTorchTensor"):  # of torch 2.11; its backward is nothing
        return state.interpreter.call(find("distributed._functional_collectives._maybe_wrap_tensor"), rest, {})
    what = f"{name_of(cls)}.apply"
    tensors = [arg for arg in rest if isinstance(arg, torch.Tensor)]
    _check_backward_class(state.interpreter, cls, what)
    if directives.is_allowed_in_graph(cls):
        return _allowed(state, cls, rest)
    _check_transforms(state, cls, what)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Captured(state, cls, what, rest, kwargs).run()
    context = FunctionContext((False,) * len(rest))
    result = _forward(state, cls, context, rest, kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    _check_dirty(context, what, tensors, outputs)
    if not any(out is arg for out in outputs for arg in tensors):
        return result
    dirty = {id(tensor) for tensor in context.argand_dirty}
    others = tuple([
        (_written_to if id(out) in dirty else _passed_on)(state, out) if any(out is arg for arg in tensors) else out
        for out in outputs
    ])  # fmt: skip
    return others if isinstance(result, tuple) else others[0]


def _allowed(state: CaptureState, cls: Any, args: Args) -> object:
    """A call that is marked as one operation: the graph is given tensors and numbers, and the operation keeps objects
    that stay what they are."""
    kept = {place: arg for place, arg in enumerate(args) if wrappers.stays(state, arg)}

    def apply(*given: object) -> object:
        rest = iter(given)
        return cls.apply(*[kept[i] if i in kept else next(rest) for i in range(len(args))])

    apply.__name__ = apply.__qualname__ = cls.__name__
    given = tuple(arg for place, arg in enumerate(args) if place not in kept)
    return torch_calls.allowed_in_graph(state, apply, given, {})


def _passed_on(state: CaptureState, tensor: torch.Tensor) -> torch.Tensor:
    """What autograd makes of an input that a forward returns where no gradient is recorded: a view of it."""
    info = state.tensor_info(tensor)
    with torch._C.DisableTorchFunction():
        shown = hops.passed_on(tensor)[0]
    return subgraphs.record(state.graph, hops.passed_on, [], [info], [(shown, info.device)])[0]


def _written_to(state: CaptureState, tensor: torch.Tensor) -> object:
    """What it makes of one that is marked as written to: the tensor itself, where that has no history."""
    with torch._C.DisableTorchFunction():
        state.graph.call(torch.autograd.graph.increment_version, (tensor,), {})
        return state.graph.call(torch.Tensor.detach, (tensor,), {}) if tensor.requires_grad else tensor


def _check_dirty(context: FunctionContext, what: str, given: Sequence[object], outputs: Sequence[object]) -> None:
    """What a forward marks as written to are arguments that it returns; eager complains of others."""
    for tensor in context.argand_dirty:
        if not (any(tensor is arg for arg in given) and any(tensor is out for out in outputs)):
            raise _returns_input(what)


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
        f"{what} returns its input itself, and the graph is to return that, or marks a tensor as written to that is "
        "not, or may not be: autograd treats such results in a special way.",
        "Return a new tensor from forward, such as x.clone().",
    )  # fmt: skip


class _Captured:
    """One call of `apply` with gradients."""

    def __init__(self, state: CaptureState, cls: Any, what: str, rest: Args, kwargs: Kwargs) -> None:
        self.state, self.cls, self.what = state, cls, what
        self.rest = tuple(state.deep_resolve(arg) for arg in rest)
        self.kwargs = kwargs
        self.builder = state.graph
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.dirty: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self) -> object:
        state, builder = self.state, self.builder
        tensors = [arg for arg in self.rest if isinstance(arg, torch.Tensor)]
        infos = subgraphs.unique(state, tensors)
        needs = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in self.rest)
        context = FunctionContext(needs)
        forward, result = self._run_forward(context)
        returned = result if isinstance(result, tuple) else (result,)
        outputs = tuple([async_collective_tensors.plain(state, out) for out in returned])
        results = self._results(outputs, forward)
        self._note_dirty(context, outputs)
        copies = [copy for _, copy in self.copies]
        context.argand_fixed = (*context.argand_fixed, *copies)
        fixed = _fixed(context, results)
        self._refuse(context)
        with (
            subgraphs.scope(state, f"the backward of {self.what}", feeds=forward, results=results) as backward,
            subgraphs.grad_mode(False),
            pending_effects.watching(state) as watched,
        ):
            stand_ins = [self._gradient(tensor, backward) for tensor in (*results, *copies)]
            remaining: Iterator[torch.Tensor | None] = iter(stand_ins)
            function = state.interpreter.getattr(self.cls, "backward")
            if not context.argand_materializes:
                self._check_none(context, function, len(results) - len(fixed), len(outputs))
                remaining = iter([None if i in fixed else grad for i, grad in enumerate(stand_ins)])
            grads = tuple(next(remaining) if isinstance(out, torch.Tensor) else None for out in outputs)
            answer = state.interpreter.call(function, (context, *grads), {})
            answer = async_collective_tensors.plain(state, answer)
            if type(answer) is tuple:
                answer = tuple([async_collective_tensors.plain(state, grad) for grad in answer])
            answer = subgraphs.summed(builder, answer, self.rest)
            if context.argand_reads:
                self._lift_saved(context, results)
        self._check_copies(forward, backward, results)
        results += copies
        gradients = self._gradients(answer)
        flat, call, graphs = self._graphs(infos, context, forward, backward, results, gradients)
        graphs[0].meta["call"] = call
        bodies = [("function_forward", graphs[0]), ("function_backward", graphs[1])]
        makes = [functools.partial(self._shown, result=t, differentiable=i not in fixed) for i, t in enumerate(results)]
        shown = list(zip(map(state.tensor_info, results), makes))
        new = iter(subgraphs.record_like(builder, hops.autograd_function, bodies, flat, shown))
        rebuilt = tuple(next(new) if isinstance(out, torch.Tensor) else out for out in outputs)
        rebuilt = tuple([self._made_dirty(before, after) for before, after in zip(outputs, rebuilt)])
        hook_state.note_backward(state, function, context, watched, next(iter(reversed(builder.graph.nodes))))
        self._write_back(new)
        for before, after in zip(outputs, rebuilt):
            if not isinstance(before, torch.Tensor):
                continue
            if not self._given(before):
                vars(after).update(tensor_attributes.written(before))
            if after.requires_grad and self._is_view(before):
                self._stays_inside(after, before)
        rebuilt = tuple([
            after if before is out else async_collective_tensors.dress_waiting(state, after, type(out))
            for out, before, after in zip(returned, outputs, rebuilt)
        ])  # fmt: skip
        return rebuilt if isinstance(result, tuple) else rebuilt[0]

    def _check_none(self, context: FunctionContext, function: Function, differentiable: int, outputs: int) -> None:
        """Without a gradient of its one differentiable result, the backward is to give none, and do nothing else."""
        answer: object = NotImplemented
        if differentiable == 1 and not self.copies:
            before = {name: value for name, value in vars(context).items() if name != "argand_reads"}
            scope = subgraphs.scope(self.state, f"the backward of {self.what}", results=())
            with scope as opened, contextlib.suppress(ObservedException):
                answer = self.state.interpreter.call(function, (context, *[None] * outputs), {})
            after = {name: value for name, value in vars(context).items() if name != "argand_reads"}
            if len(opened.graph.nodes) or len(after) > len(before) or any(after[n] is not before[n] for n in before):
                answer = NotImplemented
        if any(each is not None for each in (answer if isinstance(answer, tuple) else (answer,))):
            context.argand_refused = "set_materialize_grads(False)"
            self._refuse(context)

    def _run_forward(self, context: FunctionContext) -> tuple[Scope, object]:
        """Record what forward does; it gets copies of the arguments that an earlier attempt saw it write to.

        Raises:
            Restart: it writes to an argument that was not copied.
        """
        state, memory = self.state, self.state.memory
        given = list(self.rest)
        try:
            with subgraphs.scope(state, self.what, results=()) as forward, subgraphs.grad_mode(False):
                for place in sorted(memory.copied.get(self.what, ())):
                    if isinstance(given[place], torch.Tensor):
                        given[place] = self._copy(given[place])
                result = _forward(state, self.cls, context, tuple(given), self.kwargs)
        except errors.GraphBreak as ending:
            if ending.reason.kind != subgraphs.WRITE:
                raise
            written = {root for _, root in subgraphs.written(self.builder, forward)}
            known = memory.copied.get(self.what, frozenset())
            places = {i: root for i, arg in enumerate(self.rest) if (root := self._input(forward, arg)) in written}
            copied = written == set(places.values()) and all(self._can_be_copied(self.rest[i]) for i in places)
            if not copied or known.issuperset(places):
                raise
            memory.copied[self.what] = known.union(places)
        else:
            return forward, result
        raise Restart

    def _input(self, forward: Scope, arg: object) -> fx.Node | None:
        """What stands for an argument in the forward graph."""
        return forward.lifted.get(id(self.state.tensor_info(arg))) if isinstance(arg, torch.Tensor) else None

    def _can_be_copied(self, arg: Any) -> bool:
        with torch._C.DisableTorchFunction():
            plain = self.state.tensor_info(arg).tensor is arg and not (arg.is_conj() or arg.is_neg())
            plain = plain and not is_sharded(type(arg))
            return plain and lies_densely(arg)

    def _copy(self, arg: torch.Tensor) -> torch.Tensor:
        """What forward writes to in the place of an argument; the argument gets the values when it is over."""
        for known, earlier in self.copies:
            if known is arg:
                return earlier
        with torch._C.DisableTorchFunction():
            copy: torch.Tensor = self.builder.call(torch.clone, (arg,), {})
            copy.requires_grad_(arg.requires_grad)  # as forward may ask
        self.copies.append((arg, copy))
        return copy

    def _note_dirty(self, context: FunctionContext, outputs: Args) -> None:
        """Copies that are marked as written to are results: the arguments become these."""
        marked = {id(tensor) for tensor in context.argand_dirty}
        self.dirty = [(arg, copy) for arg, copy in self.copies if id(copy) in marked]
        self.copies = [(arg, copy) for arg, copy in self.copies if id(copy) not in marked]
        _check_dirty(context, self.what, [copy for _, copy in self.dirty], outputs)
        with torch._C.DisableTorchFunction():
            for arg, _ in self.dirty:
                vary = self.state.tensor_info(arg).dynamic is not None and not arg.requires_grad
                refused = (arg.is_leaf and arg.requires_grad) or (arg._is_view() and len(outputs) > 1)
                if refused or vary or torch._C._functorch.peek_interpreter_stack() is not None:
                    raise _returns_input(self.what)

    def _made_dirty(self, before: object, after: object) -> object:
        """The argument that a result is, where it is one that is marked as written to; it has changed now."""
        builder = self.builder
        for arg, copy in self.dirty:
            if copy is before:
                node, info = self.state.tensor_info(after).node.all_input_nodes[0], self.state.tensor_info(arg)
                builder.note_writes([arg], self.cls.apply, self.rest)
                builder.writing.setdefault(node, []).append(builder.node_of(info))
                with torch._C.DisableTorchFunction():
                    hops.made_dirty(arg)
                return arg
        return after

    def _check_copies(self, forward: Scope, backward: Scope, results: list[torch.Tensor]) -> None:
        """An argument that forward writes to is used in no other way, and the copy of it is not kept."""
        pairs = [*self.copies, *self.dirty]
        if not pairs:
            return
        infos = map(self.state.tensor_info, (arg for arg, _ in pairs))
        used_once = all(len(forward.lifted[id(info)].users) == 1 for info in infos)
        with torch._C.DisableTorchFunction():
            same = all(
                (arg.shape, arg.stride(), arg.requires_grad) == (copy.shape, copy.stride(), copy.requires_grad)
                for arg, copy in pairs
            )
            others = [info.tensor for info in forward.order if all(info.tensor is not arg for arg, _ in pairs)]
            kept = [*others, *results, *(info.tensor for info in backward.order)]
            kept = [tensor for tensor in kept if all(tensor is not copy for _, copy in self.dirty)]
            kept = [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]  # the others are sizes
            written = [storage_address(tensor) for pair in pairs for tensor in pair]
            alone = len({*written}) == len(written)
            if used_once and same and alone and not {storage_address(tensor) for tensor in kept} & {*written}:
                return
        raise _refused(
            "write in a subgraph", self.what,
            f"The function given to {self.what} writes to a tensor that it also keeps.",
            "Write to a copy: x = x.clone().",
        )  # fmt: skip

    def _write_back(self, values: Iterable[torch.Tensor]) -> None:
        """What forward wrote to its arguments, which autograd does not record."""
        with torch._C.DisableTorchFunction():
            for (arg, _), value in zip(self.copies, values):
                self.builder.call(torch.Tensor.copy_, (self.builder.call(torch.Tensor.detach, (arg,), {}), value), {})

    def _lift_saved(self, context: FunctionContext, results: list[torch.Tensor]) -> None:
        """Have the backward take what was saved though it reads it for nothing: autograd refuses to hand it out when it
        was written to since."""
        with torch._C.DisableTorchFunction():
            tensors = [arg for arg in (*self.rest, *results) if isinstance(arg, torch.Tensor)]
            written = set().union(*map(dtensors.storages_of, tensors))
            for saved in context.argand_saved:
                if isinstance(saved, torch.Tensor) and dtensors.storages_of(saved) & written:
                    lift(self.builder, self.state.tensor_info(saved))

    def _is_view(self, result: torch.Tensor) -> bool:
        """Whether a result shares the memory of an argument."""
        with torch._C.DisableTorchFunction():
            tensors = [arg for arg in self.rest if isinstance(arg, torch.Tensor)]
            return any(dtensors.storages_of(result) & dtensors.storages_of(arg) for arg in tensors)

    def _stays_inside(self, shown: torch.Tensor, result: torch.Tensor) -> None:
        """Note a view with a history of its own: a graph that returns it would return a plain view instead, but where
        the transformed code can make one of it in the same way: eager's lies in one of the storages noted."""
        interp, builder = self.state.interpreter, self.builder
        interp.born[id(shown)] = (shown, interp.number)
        leaving = _returns_input(self.what)
        leaving.needed = shown
        with torch._C.DisableTorchFunction():
            own, places = dtensors.storages_of(shown), dtensors.storages_of(result)
            for earlier in builder.passed_on.values():
                places |= earlier if places & earlier else set()
            builder.passed_on[id(shown)] = frozenset(own | places)
            builder.staying.update(dict.fromkeys(own, leaving))

    def _shown(self, tensor: torch.Tensor, result: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """The stand-in for a result, of that or of a sibling; for an input that is returned, one that shares its
        memory."""
        if not self._given(result):
            return subgraphs.copy_of(tensor, differentiable)
        with torch._C.DisableTorchFunction():
            return hops.passed_on_with_history(tensor) if differentiable else hops.passed_on(tensor.detach())[0]

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
        own = not _has_from_torch(self.state.interpreter, self.cls, "vjp")
        if context.argand_refused or self.kwargs or own:
            raise _refused(
                "autograd.Function", self.what, f"It uses {context.argand_refused or 'vjp'}.",
                "Write it with forward and backward alone.",
            )  # fmt: skip

    def _gradient(self, result: torch.Tensor, backward: Scope) -> torch.Tensor:
        make = functools.partial(subgraphs.leaf_like, requires_grad=False)
        info, grad = self.state.tensor_info(result), make(result)
        dtensors.gradient_of(self.builder, result, grad, placeholder(backward.graph, "grad"))
        symbolic_tensors.passed_on(self.builder, info, grad, make)
        return grad

    def _gradients(self, answer: Any) -> list[torch.Tensor | None]:
        """What backward returned, one for each argument."""
        given = list(answer) if isinstance(answer, (tuple, list)) else [answer]
        while len(given) > len(self.rest) and given[-1] is None:
            given.pop()
        wrong = len(given) != len(self.rest) or any(
            grad is not None
            and not (
                isinstance(grad, torch.Tensor)
                and isinstance(arg, torch.Tensor)
                and symbolic_tensors.alike(self.builder, grad, arg)
            )
            for grad, arg in zip(given, self.rest)
        )
        if wrong or not (answer is None or isinstance(answer, (tuple, torch.Tensor))):
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
        user_saved = {id(t) for t in context.argand_saved if isinstance(t, torch.Tensor)}
        ordered: list[TensorInfo] = []
        for target, wanted in ((saved, True), (raw, False)):
            for info in sorted(backward.order, key=lambda info: not isinstance(info.tensor, torch.Tensor)):
                if (id(info.tensor) in user_saved) is wanted:
                    place = _place(results, inner, info.tensor) if info.node.graph is forward.graph else None
                    target.append(("flat", number[id(info)]) if place is None else ("made", place))
                    ordered.append(info)
        _reorder(backward_graph, backward, len(results), ordered)
        positions = tuple(number[id(state.tensor_info(a))] for a in self.rest if isinstance(a, torch.Tensor))
        outputs = iter(range(len(kept)))
        given = [arg for arg in self.rest if isinstance(arg, torch.Tensor)]
        of_argument = [None if g is None else next(outputs) for g in gradients]
        call = hops.FunctionCall(
            positions=positions,
            inputs=tuple(number[id(info)] for info in forward.order),
            results=len(results),
            saved=tuple(saved),
            raw=tuple(raw),
            fixed=_fixed(context, results),
            dirty=tuple([(_place(given, [], arg), _place(results, [], copy)) for arg, copy in self.dirty]),
            gradients=tuple(g for g, arg in zip(of_argument, self.rest) if isinstance(arg, torch.Tensor)),
            materializes=context.argand_materializes,
            once="once_differentiable" in getattr(getattr(self.cls.backward, "__code__", None), "co_qualname", ""),
            name=self.cls.__name__,
        )
        return flat, call, [forward_graph, backward_graph]


def _fixed(context: FunctionContext, results: list[torch.Tensor]) -> tuple[int, ...]:
    """Which results are not differentiable."""
    marked = {id(tensor) for tensor in context.argand_fixed}
    return tuple([
        i for i, t in enumerate(results) if id(t) in marked or not (t.is_floating_point() or t.is_complex())
    ])  # fmt: skip


def _place(results: list[torch.Tensor], inner: list[TensorInfo], tensor: torch.Tensor) -> int:
    """Which output of the forward graph a tensor is."""
    return next(i for i, other in enumerate((*results, *[info.tensor for info in inner])) if other is tensor)


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
