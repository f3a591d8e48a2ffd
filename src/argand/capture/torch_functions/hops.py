"""Functions that captured graphs call with a subgraph: what they do when the graph runs.

Each takes the body, a GraphModule of plain torch operations, then tensors: the call's own first, then those that the
body reads from its surroundings. How they go together is in the body's `meta["call"]` (`Call`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils import _pytree as pytree

from argand.capture.facts.handlers import Args, Function
from argand.graph import histories
from argand.graph.checkpoint_regions import Keeps, recomputed
from argand.graph.metadata.strides import contiguous_strides, is_dense, lies_densely, memory_order
from argand.graph.operators import forward_mode
from argand.graph.operators.custom_backward import is_custom
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class Call:
    """How a subgraph is called.

    Arguments:
        leaves: the flattened arguments; a tensor is `Place(n)`, the n-th tensor of the node.
        spec: how they are nested.
        results, result_spec: the same for what the body returns; `Place(n)` is the n-th output of the body.
        count: how many of the node's tensors are arguments of the body.
        options: of the function that is called.
        extra, extra_spec: further arguments of the function that is called, not of the body (tangents).
        extras: how many tensors they have, behind those of the arguments; what follows are the body's surroundings.
        reached: for each tensor of the result, of which of the node's tensors eager records gradients in it, be they
            zeros; None where backends' own way of computing it tells.
        orders: of each tensor that a transform gives, its `memory_order` as capture says; None where it is not dense.
    """

    leaves: list[object]
    spec: Any
    results: list[object]
    result_spec: object
    count: int
    options: dict[str, object] = field(default_factory=dict)
    extra: list[object] = field(default_factory=list)
    extra_spec: object = None
    extras: int = 0
    reached: list[list[int]] | None = None
    orders: list[tuple[int, ...] | None] = field(default_factory=list)

    def arguments(self, flat: Sequence[object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The nested (args, kwargs)."""
        args, kwargs = pytree.tree_unflatten(fill(self.leaves, flat), self.spec)
        return args, kwargs

    def inner(self, body: fx.GraphModule, flat: Sequence[object]) -> Callable[..., Any]:
        """The captured function, called as the program called the original."""
        surroundings = flat[self.count + self.extras :]

        def captured(*args: object, **kwargs: object) -> object:
            given = pytree.tree_leaves((args, kwargs))
            tensors: list[object] = [None] * self.count
            for leaf, value in zip(self.leaves, given):
                if type(leaf) is Place:
                    tensors[leaf.index] = value
            results = body.forward(*tensors, *surroundings)
            return pytree.tree_unflatten(fill(self.results, results), self.result_spec)

        return captured


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for a tensor in a list of leaves."""

    index: int


def fill(leaves: list[object], tensors: Sequence[object]) -> list[object]:
    """`leaves` with each Place taken from `tensors`."""
    return [tensors[leaf.index] if type(leaf) is Place else leaf for leaf in leaves]


def _flat(tree: object) -> tuple[torch.Tensor, ...]:
    return tuple([leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)])


def being_traced() -> bool:
    """Whether a backend is looking at the graph rather than running it."""
    return torch._C._len_torch_dispatch_stack() > 0


# ---------------------------------------------------------------------- checkpoint


def checkpoint(body: fx.GraphModule, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch.utils.checkpoint.checkpoint of the body."""
    call: Call = body.meta["call"]
    own, surroundings = flat[: call.count], flat[call.count :]
    options = call.options

    def run(*tensors: object) -> Any:
        return tuple(body.forward(*tensors, *surroundings))

    if being_traced():  # the backend decides what is recomputed; drawing random numbers twice would not be the same
        needed = not options["use_reentrant"] or any(t.requires_grad for t in own)
        with torch.set_grad_enabled(torch.is_grad_enabled() and needed), recomputed(kept_by(options)):
            return run(*own)
    results = torch.utils.checkpoint.checkpoint(run, *own, **options)
    return tuple(results)


def kept_by(options: Mapping[str, Any]) -> Keeps | None:
    """Which operations a selective checkpoint keeps the results of, as its list or its policy says."""
    contexts = options.get("context_fn")
    if contexts is None:
        return None
    chosen = contexts()[0].policy_fn
    policies = torch.utils.checkpoint.CheckpointPolicy
    keeping = (True, policies.MUST_SAVE, policies.PREFER_SAVE)
    forward = torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False)
    return lambda func, args, kwargs: chosen(forward, func, *args, **kwargs) in keeping


# ---------------------------------------------------------------------- scales that are tensors


def scaled_sum(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`x.add(y, alpha=scale)`: eager reads the scale's number, and rounds once; a backend multiplies by the tensor."""
    if being_traced() or scale.is_meta:
        return x + y * scale
    return x.add(y, alpha=scale)


# ---------------------------------------------------------------------- torch.autograd.grad


def autograd_grad(
    outputs: Any, inputs: object, grad_outputs: object, **options: object
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` of tensors of the graph."""
    return torch.autograd.grad(outputs, inputs, grad_outputs, **options)


def autograd_backward(
    tensors: Sequence[torch.Tensor],
    grad_tensors: Sequence[torch.Tensor] | None,
    leaves: list[torch.Tensor],
    outside: list[int],
    laid_out: list[int],
    **options: bool,
) -> tuple[torch.Tensor | None, ...]:
    """What `torch.autograd.backward` would accumulate in leaves: tensors that are nobody else's, laid out as eager's.

    Arguments:
        outside: the leaves that the graph did not make: their hooks are not called here, they are in the graph.
        laid_out: those whose gradients have their strides, in dimensions of size 1, too.
    """
    with _without_hooks([leaves[i] for i in outside]):
        gradients = list(torch.autograd.grad(tensors, leaves, grad_tensors, allow_unused=True, **options))
    with torch.set_grad_enabled(bool(options.get("create_graph"))):
        for i, leaf in enumerate(leaves):
            gradients[i] = gradients[i] if gradients[i] is None else _settled(gradients[i], leaf, i in laid_out)
    return tuple(gradients)


@contextlib.contextmanager
def _without_hooks(leaves: list[torch.Tensor]) -> Iterator[None]:
    hooked = [(leaf, leaf._backward_hooks) for leaf in leaves if leaf._backward_hooks is not None]
    for leaf, _ in hooked:
        leaf._backward_hooks = None
    try:
        yield
    finally:
        for leaf, hooks in hooked:
            leaf._backward_hooks = hooks


def _settled(gradient: torch.Tensor, leaf: torch.Tensor, laid_out: bool) -> torch.Tensor:
    shape, wanted = tuple(leaf.shape), gradient_strides(leaf)
    if all((n == 1 and not laid_out) or a == b for n, a, b in zip(shape, gradient.stride(), wanted)):
        return gradient.clone()
    return torch.empty_strided(shape, wanted, dtype=gradient.dtype, device=gradient.device).copy_(gradient)


def gradient_strides(leaf: torch.Tensor) -> tuple[int, ...]:
    """Strides of what is accumulated in a leaf: its own where it is dense, else those of a new tensor."""
    shape, strides = tuple(leaf.shape), leaf.stride()
    return strides if is_dense(shape, strides) else contiguous_strides(shape)


# ---------------------------------------------------------------------- autograd.Function


@dataclass(slots=True)
class FunctionCall:
    """A captured autograd.Function.

    Arguments:
        positions: for each argument that `apply` gets, which of the node's tensors it is.
        inputs: which of the node's tensors the forward graph takes.
        results: how many results the forward graph has; what follows is only for the backward graph.
        saved, raw: what the backward graph takes behind the gradients: ("flat" | "made", index); saved ones through
            `save_for_backward`, the others as they are.
        fixed: positions of results that are not differentiable.
        dirty: (which argument of `apply`, which result is what becomes of it), of those that it marks as written to.
        gradients: for each argument of `apply`, which output of the backward graph is its gradient, or None.
        materializes: its backward gets zeros for gradients that there are not; else, without that of
            the one differentiable result, it gives none.
        once: the backward may not be differentiated.
        name: of the class, for `grad_fn` and in torch's errors.
    """

    positions: tuple[int, ...]
    inputs: tuple[int, ...]
    results: int
    saved: tuple[tuple[str, int], ...]
    raw: tuple[tuple[str, int], ...]
    fixed: tuple[int, ...]
    dirty: tuple[tuple[int, int], ...]
    gradients: tuple[int | None, ...]
    materializes: bool
    once: bool
    name: str


Static: TypeAlias = tuple[FunctionCall, fx.GraphModule, fx.GraphModule, Sequence[torch.Tensor]]
"""A captured autograd.Function: how it is called, its two graphs, the tensors of its node."""


def autograd_function(
    forward: fx.GraphModule, backward: fx.GraphModule, *flat: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """An autograd.Function whose forward and backward are graphs."""
    call: FunctionCall = forward.meta["call"]
    kind: Any = _CapturedOnce if call.once else _Captured
    if torch._C._functorch.peek_interpreter_stack() is not None:
        kind = _Transformed
    results = _named(kind, call.name).apply((call, forward, backward, flat), *[flat[i] for i in call.positions])
    return tuple(results[: call.results])


@functools.lru_cache(maxsize=256)
def _named(kind: Any, name: str) -> Any:
    return type(name, (kind,), {})


def _forward(ctx: Any, static: Static, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    call, forward, backward, _ = static
    tensors = _given(static, args)
    outputs = list(forward.forward(*[tensors[i] for i in call.inputs]))
    for place, result in call.dirty:
        outputs[result] = args[place].copy_(outputs[result])
    ctx.mark_dirty(*[args[place] for place, _ in call.dirty])

    def pick(places: Iterable[tuple[str, int]]) -> list[torch.Tensor]:
        return [tensors[i] if kind == "flat" else outputs[i] for kind, i in places]

    ctx.save_for_backward(*pick(call.saved))
    ctx.raw = pick(call.raw)
    ctx.call, ctx.graph = call, backward
    ctx.set_materialize_grads(call.materializes)
    results = tuple(outputs[: call.results])
    ctx.mark_non_differentiable(*[results[i] for i in call.fixed])
    return results


def _backward(ctx: Any, *grads: torch.Tensor) -> tuple[object, ...]:
    if all(grad is None for grad in grads):
        return (None,) * (1 + len(ctx.call.gradients))
    outputs = ctx.graph.forward(*grads, *ctx.saved_tensors, *ctx.raw)
    return (None, *[None if i is None else outputs[i] for i in ctx.call.gradients])


class _Captured(torch.autograd.Function):
    """The runtime of `autograd_function`."""

    forward = staticmethod(_forward)
    backward = staticmethod(_backward)


class _CapturedOnce(torch.autograd.Function):
    """The same, for a backward that is not differentiable."""

    forward = staticmethod(_forward)
    backward = staticmethod(torch.autograd.function.once_differentiable(_backward))


class _Transformed(torch.autograd.Function):
    """The same within a transform of torch.func: everything that the backward needs is a result of forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(static: Static, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call, forward, _, _ = static
        tensors = _given(static, args)
        return tuple(forward.forward(*[tensors[i] for i in call.inputs]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        static, *args = inputs
        call, tensors = static[0], _given(static, args)
        kept = [tensors[i] if kind == "flat" else output[i] for kind, i in (*call.saved, *call.raw)]
        ctx.save_for_backward(*[each for each in kept if isinstance(each, torch.Tensor)])
        ctx.numbers = [each for each in kept if not isinstance(each, torch.Tensor)]  # which are last
        ctx.call, ctx.graph = call, static[2]
        ctx.mark_non_differentiable(*[output[i] for i in call.fixed], *output[call.results :])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[object, ...]:
        # Gradients that there are not are zeros here: what else a transform does with them nobody sees.
        outputs = ctx.graph.forward(*grads[: ctx.call.results], *ctx.saved_tensors, *ctx.numbers)
        return (None, *[None if i is None else outputs[i] for i in ctx.call.gradients])


def _given(static: Static, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The node's tensors, those among them that are arguments of `apply` as it got them."""
    tensors = list(static[3])
    for position, value in zip(static[0].positions, args):
        tensors[position] = value
    return tensors


class _PassedOn(torch.autograd.Function):
    """Returns its first argument, which autograd makes a view of."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return tensor

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> tuple[object, ...]:
        return grads[0], None  # of stand-ins, whose gradients nobody asks for


def passed_on(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What an autograd.Function gives that returns its argument, where no gradient is recorded."""
    return (_PassedOn.apply(tensor),)


class _Dirty(_PassedOn):
    """The same, marked as written to: the argument itself, with the history of a function of both."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor


def made_dirty(tensor: torch.Tensor) -> None:
    """Change a stand-in as a function does that marks it as written to, where a history is recorded."""
    with torch.enable_grad():
        _Dirty.apply(tensor, torch.empty(0, device=tensor.device, requires_grad=True))


def passed_on_with_history(tensor: torch.Tensor) -> torch.Tensor:
    """The same where one is recorded, be it for another argument."""
    with torch.enable_grad():
        result: torch.Tensor = _PassedOn.apply(tensor, torch.empty(0, device=tensor.device, requires_grad=True))
    return result


# ---------------------------------------------------------------------- torch.func


def _transform(name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(body: fx.GraphModule, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = _flat(transformed(name, body, flat))
        reached = body.meta["call"].reached
        if being_traced():
            results = tuple(map(_laid_out, results, body.meta["call"].orders))
        if reached is None or not being_traced() or not torch.is_grad_enabled():
            return results
        return tuple([_reaching(result, [flat[i] for i in numbers]) for result, numbers in zip(results, reached)])

    run.__name__ = run.__qualname__ = name
    return run


def _laid_out(result: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """A result as eager's lies in memory, which copies tangents to lie as what they are of."""
    if order is None or not lies_densely(result) or memory_order(tuple(result.shape), result.stride()) == order:
        return result
    return result.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


_NAMES = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "jvp", "vjp", "functionalize")
TRANSFORMS = {name: _transform(name) for name in _NAMES}
"""Of torch.func; the tangents of jvp, and the cotangents of the pullback that is vjp's, are the last of its tensors."""
# where written graphs look for them:
vmap, grad, grad_and_value, jacrev, jacfwd, jvp, vjp, functionalize = TRANSFORMS.values()


def count_transforms(body: fx.GraphModule) -> int:
    """How many transforms are within a body."""
    graphs = [part.graph for part in body.modules() if isinstance(part, fx.GraphModule)]
    return sum(node.target in TRANSFORMS.values() for graph in graphs for node in graph.nodes)


def computes_forward(body: fx.GraphModule) -> bool:
    """Whether a transform of this body, or one within it, is computed in another way while it is traced."""
    graphs = [part.graph for part in body.modules() if isinstance(part, fx.GraphModule)]
    return any(node.target in (jvp, jacfwd) for graph in graphs for node in graph.nodes)


def reached(results: Sequence[object], given: Sequence[torch.Tensor]) -> list[list[int]]:
    """For each tensor among the results, which of the tensors that were given have a gradient of it."""
    numbers = [
        number for number, tensor in enumerate(given) if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    wanted = [given[number] for number in numbers]
    every: list[list[int]] = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            continue
        gradients: Sequence[object] = ()
        if result.requires_grad and numbers:
            ones = torch.ones_like(result)
            gradients = torch.autograd.grad(result, wanted, ones, retain_graph=True, allow_unused=True)
        every.append([number for number, gradient in zip(numbers, gradients) if gradient is not None])
    return every


def _reaching(result: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
    """A result with the history that eager's has: what it does not depend on gets zeros."""
    if not given:
        return result.detach() if result.requires_grad else result
    behind = {id(node) for node in histories.nodes([result.grad_fn])}
    missing = [tensor for tensor in given if id(_history(tensor)) not in behind]
    return _Reaching.apply(result, *missing) if missing else result


def _history(tensor: torch.Tensor) -> object:
    return torch.autograd.graph.get_gradient_edge(tensor).node if tensor.requires_grad else None


class _Reaching(torch.autograd.Function):
    """Its first argument; the gradients of the others are zeros."""

    @staticmethod
    def forward(ctx: object, result: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        vars(ctx)["others"] = [(tuple(other.shape), other.dtype, other.device) for other in others]
        return result.view_as(result)

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> tuple[object, ...]:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in vars(ctx)["others"]]
        return grads[0], *zeros


_CHUNKS = ("chunk_size", "_preallocate_and_copy")


def transformed(name: str, body: fx.GraphModule, flat: Sequence[object], *, at_once: bool = False) -> object:
    """The nested result of a function transform; `at_once`: not in chunks, which change nothing of what it is like."""
    call: Call = body.meta["call"]
    # a trace keeps no setting back of torch's generator, by which each chunk draws what the first one did
    at_once = at_once or call.options.get("randomness") == "same"
    options = {key: value for key, value in call.options.items() if not (at_once and key in _CHUNKS)}
    traced = name in ("jvp", "jacfwd") and being_traced()
    if traced:
        body = _without_switches(body, flat)
    inner = call.inner(body, flat)
    args, named = call.arguments(flat)
    if traced:  # forward mode makes tensors of its own, which have no trace
        _refuse_forward_mode(name, body)
        inner = functools.partial(inner, **named) if named else inner
        if name == "jacfwd":
            return forward_mode.jacobian(inner, args, **options)
        return forward_mode.pushed(
            inner, args, pytree.tree_unflatten(fill(call.extra, flat), call.extra_spec), **options
        )
    if call.extra_spec is None:
        return getattr(torch.func, name)(inner, **options)(*args, **named)
    other = pytree.tree_unflatten(fill(call.extra, flat), call.extra_spec)
    if name == "jvp":
        return torch.func.jvp(inner, args, other, **options)
    return torch.func.vjp(inner, *args, **options)[1](other)


def _without_switches(body: fx.GraphModule, flat: Sequence[object]) -> fx.GraphModule:
    """The body as forward mode sees it, which looks at no grad mode; itself where somebody else would look at it."""
    graph = body.graph
    if any(isinstance(t, torch.Tensor) and _records(t) for t in flat) or len(list(body.modules())) > 1:
        return body
    if all(node.target is not torch._C._set_grad_enabled for node in graph.nodes):
        return body
    copy = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.target is not torch._C._set_grad_enabled:
            copies[node] = copy.node_copy(node, copies.__getitem__)
    return fx.GraphModule(body, copy)


def _records(tensor: torch.Tensor) -> bool:
    """Whether gradients of a tensor, or of one that a transform has wrapped, are recorded."""
    while not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _refuse_forward_mode(name: str, body: fx.GraphModule) -> None:
    """Where forward mode is not what a pullback of the pullback gives, backends do not take the graph.

    Forward mode looks at no grad mode, and needs a `jvp` of functions with backwards of their own.
    """
    nodes = [node for part in body.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]
    own = any(node.target is autograd_function or is_custom(node.target) for node in nodes)
    if own or any(node.target is torch._C._set_grad_enabled or forward_mode.has_own_answers(node) for node in nodes):
        raise RuntimeError(f"torch.func.{name} runs eagerly: forward mode differentiates its function otherwise")


def pullback(func: Function, primals: Args, has_aux: bool, cotangents: object) -> object:
    """The gradients that torch.func.vjp's function gives; captured as one operation."""
    return torch.func.vjp(func, *primals, has_aux=has_aux)[1](cotangents)


def pushforward(func: Function, primals: Args, tangents: Args) -> object:
    """The tangents that torch.func.linearize's function gives; captured as one operation."""
    return torch.func.jvp(func, primals, tangents)[1]


def scanned(function: Function, init: object, xs: object) -> tuple[object, object]:
    """What is carried through steps over rows of tensors, and what the steps give, stacked; captured."""
    raise NotImplementedError


# ---------------------------------------------------------------------- hooks


def register_hook(body: fx.GraphModule, tensor: torch.Tensor, *surroundings: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensor.register_hook of a graph that takes the gradient and returns the new one, or nothing."""

    def hook(grad: torch.Tensor) -> torch.Tensor | None:
        outputs = body.forward(grad, *surroundings)
        return outputs[0] if outputs else None

    tensor.register_hook(hook)
    return ()
