"""Functions captured into graphs of their own: the bodies of checkpoints, function transforms and branches.

While a scope is open, what is recorded goes to its graph; a tensor from outside that is used becomes an input of it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand import errors
from argand.capture.facts import compat
from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tensor_info import Scope, TensorInfo
from argand.capture.metadata import meta_tensors, metadata
from argand.capture.metadata.call_targets import device_constructors
from argand.capture.record.scopes import lift, placeholder, placeholders_first, refuse_data
from argand.capture.sizes import subclasses, symbolic_tensors
from argand.capture.sizes.subclasses import is_default
from argand.capture.torch_functions import hops
from argand.capture.world import pending_effects
from argand.graph.dtensors import DTensor, for_gradients, is_sharded, made_of, with_spec
from argand.graph.metadata.strides import is_dense, memory_order
from argand.quick_dataclasses import dataclass

Make: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""A stand-in of a tensor's."""
WRITE = "write in a subgraph"
_META = torch.device("meta")
_CONSTANTS = frozenset((bool, int, float, str, complex, torch.dtype, torch.device))
_VIEWS = frozenset(
    words(
        """
    getitem view view_as reshape reshape_as flatten unflatten squeeze unsqueeze transpose swapaxes swapdims movedim
    moveaxis t permute expand expand_as select narrow chunk split split_with_sizes tensor_split hsplit vsplit dsplit
    unbind diagonal unfold detach getattr as_strided real imag view_as_real view_as_complex contiguous to type float
    double half bfloat16 squeeze_ unsqueeze_ transpose_ t_ swapaxes_ swapdims_ requires_grad_ atleast_1d atleast_2d
    atleast_3d broadcast_to broadcast_tensors ravel adjoint mT conj resolve_conj resolve_neg alias positive
    """
    )
)
"""Functions whose result may be a view of their first argument."""
_OF_THE_OBJECT = frozenset(words("requires_grad_ squeeze_ unsqueeze_ transpose_ t_ swapaxes_ swapdims_"))
"""Functions that change one tensor object, not the memory that it may share with others."""


@contextlib.contextmanager
def scope(
    state: CaptureState,
    what: str,
    feeds: Scope | None = None,
    *,
    writes: bool = False,
    results: Sequence[torch.Tensor] | None = None,
) -> Iterator[Scope]:
    """Record into a new graph. What the function inside changes outside of it ends the graph.

    Arguments:
        writes: not so what it writes to tensors: the caller looks at that.
        results: of `Scope`.
    """
    builder = state.graph
    opened = Scope(what, fx.Graph(), feeds=feeds, sequence=state.interpreter.number, results=results)
    outer_graph, modes = builder.graph, len(state.open_modes)
    before = pending_effects.effects(state)
    builder.scopes.append(opened)
    builder.graph = opened.graph
    try:
        yield opened
    finally:
        builder.scopes.pop()
        builder.graph = outer_graph
        builder.finished[id(opened.graph)] = (what, opened.sequence)
        state.keep(opened.graph)
    if len(state.open_modes) != modes or not pending_effects.same_effects(state, before):
        raise errors.graph_break(
            kind="side effect in a subgraph",
            context=what,
            explanation=f"The function given to {what} changes an object outside of it.",
        )
    if not writes:
        refuse_writes(builder, opened)


@contextlib.contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Grad mode of the capture itself, set without a node."""
    with torch._C.DisableTorchFunction():
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(enabled)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(before)


def refuse_writes(builder: GraphBuilder, opened: Scope) -> None:
    """A subgraph must not write to what it did not make."""
    for node, _ in written(builder, opened):
        raise errors.graph_break(
            kind=WRITE,
            context=f"{opened.what}: {node.name}",
            explanation=f"The function given to {opened.what} writes to a tensor from outside of it.",
        )


def written(builder: GraphBuilder, opened: Scope) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(what writes, the input whose memory it writes to) of a subgraph."""
    for node in opened.graph.nodes:
        for value in builder.writing.get(node, ()):
            if isinstance(value, fx.Node) and (root := _root(value)).op == "placeholder":
                if value is root or node.target not in _OF_THE_OBJECT:
                    yield node, root


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a value may share."""
    while node.op != "placeholder":
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name not in _VIEWS and not str(name).endswith("_"):
            break
        parent = node.args[0] if node.args else None
        if isinstance(parent, (list, tuple)):
            parent = parent[0] if parent else None
        if not isinstance(parent, fx.Node):
            break
        node = parent
    return node


def close(builder: GraphBuilder, opened: Scope, outputs: list[torch.Tensor]) -> fx.GraphModule:
    """The finished graph as a module that returns `outputs` (stand-ins of the scope, or from outside) as a tuple."""
    builder.check_staying(outputs)
    builder.scopes.append(opened)
    try:
        nodes = tuple([_node(builder, opened, tensor) for tensor in outputs])
    finally:
        builder.scopes.pop()
    opened.graph.output(nodes)
    builder.drop_dead(opened.graph)
    placeholders_first(opened.graph)
    return compat.CapturedGraph(opened.attributes, opened.graph)


def _node(builder: GraphBuilder, opened: Scope, tensor: torch.Tensor) -> fx.Node:
    info = builder.state.tensor_info(tensor)
    return info.node if info.node.graph is opened.graph else lift(builder, info)


# ---------------------------------------------------------------------- arguments and results


@dataclass(slots=True, eq=False)
class Flat:
    """Nested values taken apart: tensors in `tensors`, their places in `leaves`.

    `dress` makes of a plain tensor, and its number, what the program sees; None where none is of a subclass.
    `objects` are what the program sees in place of arguments, by number, whose tensors stand in a list.
    """

    leaves: list[Any]
    spec: object
    tensors: list[torch.Tensor]
    dress: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    objects: dict[int, object] = field(default_factory=dict)

    def rebuilt(self, tensors: list[torch.Tensor]) -> Any:
        if self.dress is not None:
            tensors = [self.dress(tensor, i) for i, tensor in enumerate(tensors)]
        return pytree.tree_unflatten(hops.fill(self.leaves, tensors), self.spec)


def flatten(
    state: CaptureState,
    tree: object,
    what: str,
    *,
    offset: int = 0,
    subclasses: str = "",
    objects: bool = False,
    numbers: bool = False,
) -> Flat:
    """Take apart arguments or results.

    Arguments:
        offset: the number of the first tensor.
        subclasses: "kept" for tensors that may be of subclasses, "lost" for tensors that a transform wraps: it forgets
            their class. The plain stand-ins are taken.
        objects: other objects may be among them; numbers: numbers that vary may, which are constants else.

    Raises:
        GraphBreak: something in it is neither a tensor nor a constant.
    """
    leaves, spec = pytree.tree_flatten(state.deep_resolve(tree))
    tensors: list[torch.Tensor] = []
    places: list[object] = []
    classes: dict[int, type] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            info = state.tensor_info(leaf)
            if info.tensor is not leaf:
                if not _may_be(leaf, subclasses):
                    raise _subclass(what, leaf)
                if subclasses == "kept":
                    classes[len(tensors)] = type(leaf)
                leaf = info.tensor
            places.append(hops.Place(offset + len(tensors)))
            tensors.append(leaf)
        elif type(leaf) in SYMBOLIC:
            places.append(leaf if numbers or objects else leaf.number())
        elif objects or leaf is None or type(leaf) in _CONSTANTS:
            places.append(leaf)
        else:
            raise errors.graph_break(
                kind="argument of a subgraph",
                context=f"{what}: {type(leaf).__name__}",
                explanation=f"{what} is captured with tensors and numbers in containers, not a {type(leaf).__name__}.",
            )
    return Flat(places, spec, tensors, functools.partial(_dressed, state, classes) if classes else None)


def taken(builder: GraphBuilder, opened: Scope, info: TensorInfo, make: Make) -> torch.Tensor:
    """An input of a subgraph: what is made of a tensor from outside."""
    refuse_data(builder, info)
    tensor = make(info.tensor)
    builder.register(tensor, placeholder(opened.graph, info.node.name), info.device)
    symbolic_tensors.passed_on(builder, info, tensor, make)
    return tensor


def unique(state: CaptureState, tensors: list[torch.Tensor]) -> list[TensorInfo]:
    """What is known of each of some tensors."""
    return [state.tensor_info(t) for t in {id(t): t for t in tensors}.values()]


def _may_be(tensor: torch.Tensor, subclasses: str) -> bool:
    """Whether a tensor of a subclass can be taken apart; a program's own `__torch_function__` hears of a wrapping."""
    return not vars(tensor) if subclasses == "kept" else subclasses == "lost" and is_default(type(tensor))


def _subclass(what: str, tensor: torch.Tensor) -> errors.GraphBreak:
    return errors.graph_break(
        kind="subclass in a subgraph",
        context=f"{what}: {type(tensor).__name__}",
        explanation=f"{what} is captured with plain tensors, not with a {type(tensor).__name__}.",
    )


def _dressed(state: CaptureState, classes: dict[int, type], tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A result of a subgraph as the program sees it."""
    cls = classes.get(index)
    known = subclasses.shown(state.graph, tensor)
    return known if cls is None or known is not tensor else subclasses.dress(state.graph, tensor, cls)


def record(
    builder: GraphBuilder,
    function: Function,
    bodies: list[tuple[str, fx.GraphModule]],
    flat: list[TensorInfo],
    results: list[tuple[torch.Tensor, torch.device]],
) -> list[torch.Tensor]:
    """The node `function(*bodies, *flat)` that returns a tuple; gives the stand-ins `results` to its items."""
    held = builder.scopes[-1].attributes if builder.scopes else builder.constants
    args: list[fx.Node] = []
    for name, body in bodies:
        key = f"{name}_{sum(k.startswith(name) for k in held)}"
        held[key] = body
        args.append(builder.graph.create_node("get_attr", key, (), {}))
    args.extend(builder.node_of(info) for info in flat)
    node = builder.effect(function, tuple(args))
    builder.calls += 1
    node.meta["example_value"] = tuple(tensor for tensor, _ in results)
    if function in hops.TRANSFORMS.values():
        with torch._C.DisableTorchFunction():
            layouts = [(tuple(tensor.shape), tensor.stride()) for tensor, _ in results]
            orders = [memory_order(*layout) if is_dense(*layout) else None for layout in layouts]
            bodies[0][1].meta["call"].orders = orders
    stand_ins = []
    for index, (tensor, device) in enumerate(results):
        part = compat.new_node(builder.graph, "call_function", operator.getitem, (node, index), {})
        part.meta.update({k: node.meta[k] for k in ("stack_trace", "user_line") if k in node.meta})
        stand_ins.append(builder.register(tensor, part, device))
    return stand_ins


def record_like(
    builder: GraphBuilder,
    function: Function,
    bodies: list[tuple[str, fx.GraphModule]],
    flat: list[TensorInfo],
    results: Sequence[tuple[TensorInfo, Make]],
) -> list[torch.Tensor]:
    """The same, for results that are made of tensors whose sizes are known."""
    new = record(builder, function, bodies, flat, [(make(info.tensor), info.device) for info, make in results])
    for stand_in, (info, make) in zip(new, results):
        symbolic_tensors.passed_on(builder, info, stand_in, make)
    return new


def copy_of(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A stand-in with the same metadata."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        if is_sharded(type(tensor)):
            sharded: DTensor = tensor
            return made_of(copy_of(sharded._local_tensor, requires_grad), sharded._spec)
        return meta_tensors.new(tuple(tensor.shape), tensor.stride(), tensor.dtype, requires_grad)


def leaf_like(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A stand-in with the same metadata that is a leaf."""
    with torch._C.DisableTorchFunction():
        if is_sharded(type(tensor)):
            sharded: DTensor = tensor
            return with_spec(leaf_like(sharded._local_tensor, False), for_gradients(sharded._spec), requires_grad)
        leaf = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
        return leaf.requires_grad_() if requires_grad and (leaf.is_floating_point() or leaf.is_complex()) else leaf


def has_effects(builder: GraphBuilder, opened: Scope) -> bool:
    """Whether the graph draws random numbers, or does something else that running it twice would do twice."""
    return any(node in builder.effectful for node in opened.graph.nodes)


def on_meta(body: fx.GraphModule, anywhere: bool = False) -> fx.GraphModule:
    """A graph to run on stand-ins: what it makes on a device it makes without data. Itself where it makes nothing.

    Arguments:
        anywhere: also what it makes without saying where, which then is where everything else is.
    """
    held = {str(n.target): getattr(body, str(n.target)) for n in body.graph.nodes if n.op == "get_attr"}
    inner = {name: on_meta(value, anywhere) for name, value in held.items() if isinstance(value, fx.GraphModule)}
    plain = {name: value.to(_META) for name, value in held.items() if isinstance(value, torch.Tensor)}
    making = {n for n in body.graph.nodes if n.kwargs.get("device") is not None or torch.device in map(type, n.args)}
    if anywhere:
        placed = device_constructors()
        unplaced = {n for n in body.graph.nodes if n.op == "call_function" and n.target in placed} - making
        making |= unplaced
    else:
        unplaced = set()
    of_data = {n for n in body.graph.nodes if n.target is torch.tensor and not n.kwargs.get("requires_grad")}
    if not making and not of_data and not plain and all(held[name] is value for name, value in inner.items()):
        return body
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in body.graph.nodes:
        if node in of_data:  # a transform takes data that goes to the meta device for a tensor that is changed
            shown = node.meta["example_value"]
            copies[node] = graph.call_function(torch.empty, (shown.shape,), {"dtype": shown.dtype, "device": _META})
            continue
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in making:
            copy.args = tuple([_META if isinstance(arg, torch.device) else arg for arg in copy.args])
            copy.kwargs = {**copy.kwargs, **({"device": _META} if "device" in copy.kwargs or node in unplaced else {})}
    copied = compat.CapturedGraph({**held, **plain, **inner}, graph)
    copied.meta.update(body.meta)
    return copied


def meta_result(name: str, function: Callable[[], object]) -> object:
    """What a function of stand-ins gives, nothing recorded.

    Raises:
        GraphBreak: it raised.
    """
    try:
        with torch._C.DisableTorchFunction():
            return function()
    except errors.GraphBreak:
        raise
    except Exception as error:
        raise metadata.meta_failure(name, error) from None


def summed(builder: GraphBuilder, answer: object, args: Sequence[object]) -> object:
    """What a backward returned, with gradients of arguments that were broadcast summed, as autograd does."""
    if type(answer) is tuple:
        return tuple([_of_size(builder, *pair) for pair in zip(answer, args)]) + answer[len(args) :]
    return _of_size(builder, answer, args[0]) if args else answer


def _of_size(builder: GraphBuilder, grad: object, arg: object) -> object:
    if not (isinstance(grad, torch.Tensor) and isinstance(arg, torch.Tensor)):
        return grad
    known = builder.tensors.get(id(arg)) if id(grad) in builder.tensors else None
    with torch._C.DisableTorchFunction():
        size, wanted = tuple(grad.shape), tuple(arg.shape)
        trailing = zip(reversed(size), reversed(wanted))
        if known is None or size == wanted or len(size) < len(wanted) or any(b not in (1, a) for a, b in trailing):
            return grad
        return builder.call(torch.Tensor.sum_to_size, (grad, symbolic_tensors.shape(builder, known)), {})
