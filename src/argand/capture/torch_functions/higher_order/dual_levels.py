"""`torch.autograd.forward_ad` in captured code: a tangent that the program asks for is what torch.func.jvp gives of the
operations that lie between.

The graph knows no dual tensors: `make_dual` is a view of the tensor. When a tangent is asked for, what was recorded
since, as far as it depends on a dual tensor, becomes a body of a node of its own; whether there is a tangent, and what
it looks like, forward mode tells on stand-ins.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, cast

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from argand import errors
from argand.capture.facts import compat
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.record.scopes import fixed_sizes, placeholder, placeholders_first
from argand.capture.torch_functions import hops
from argand.capture.torch_functions.higher_order import subgraphs
from argand.capture.torch_functions.torch_calls import all_of, handler, name_of
from argand.quick_dataclasses import dataclass

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_BODIES = frozenset(f"torch.func.{name}" for name in ("grad", "grad_and_value", "vjp", "jacrev"))
"""Functions whose arguments may be made dual tensors; the others compute with levels themselves, or with batches."""
_SWITCH = torch._C._set_grad_enabled


@dataclass(slots=True, eq=False)
class Dual:
    """A dual tensor that captured code has made, and its parts."""

    whole: TensorInfo
    primal: TensorInfo
    tangent: TensorInfo


@dataclass(slots=True, eq=False)
class Level:
    """A level that captured code has entered.

    Arguments:
        graph: the graph that was being recorded.
        sequence: number of the root instruction that entered it.
    """

    graph: fx.Graph
    sequence: int
    duals: list[Dual] = field(default_factory=list)


def _refused(explanation: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="part of torch that is not captured", context="torch.autograd.forward_ad", explanation=explanation
    )


def check_end(state: CaptureState) -> None:
    """The graph must not end inside of a level: its dual tensors would lose their tangents. It ends before it."""
    level = state.graph.dual_level
    if level is None:
        return
    stop = _refused("The graph would end where a level of forward-mode gradients is open.")
    stop.sequence = level.sequence
    raise stop


def _outside() -> bool:
    """Whether a level is open that was entered before the frame, whose tensors have tangents of their own; guarded."""
    return bool(forward_ad._current_level >= 0)


@handler(*all_of("autograd.forward_ad.enter_dual_level"))
def _enter(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> int:
    if _outside() or state.graph.dual_level is not None:
        raise _refused("Levels of forward-mode gradients are captured one at a time.")
    if any(scope.what not in _BODIES for scope in state.graph.scopes):
        raise _refused(f"A level is entered in a function given to {state.graph.scopes[-1].what}.")
    state.graph.dual_level = Level(state.graph.graph, state.interpreter.number)
    return 0


@handler(*all_of("autograd.forward_ad.exit_dual_level"))
def _exit(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> None:
    level = _open(state, fn, kwargs)
    if args:
        raise _refused(f"{name_of(fn)} is called with arguments that are not captured.")
    if level.duals:
        region = _Region(state.graph, level)
        _tangent(region, [node for node in region.nodes if isinstance(region.values.get(node), torch.Tensor)])
    state.graph.dual_level = None


def _open(state: CaptureState, fn: Function, kwargs: Kwargs) -> Level:
    """The level that a call means."""
    level = state.graph.dual_level
    if level is None or level.graph is not state.graph.graph:
        raise _refused(f"{name_of(fn)} is called where the level that is open was not entered.")
    if kwargs.get("level") not in (None, 0) or set(kwargs) - {"level"}:
        raise _refused(f"{name_of(fn)} is called with arguments that are not captured.")
    return cast(Level, level)


@handler(*all_of("autograd.forward_ad.make_dual"))
def _make(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    if state.graph.dual_level is None and not _outside():
        return NotImplemented  # raises
    kwargs = dict(kwargs)
    given = [*args, *(kwargs.pop(name) for name in ("tensor", "tangent")[len(args) :] if name in kwargs)]
    level = _open(state, fn, kwargs)
    builder = state.graph
    if len(given) != 2 or any(type(each) not in _PLAIN for each in given):
        raise _refused("A dual tensor is captured of two plain tensors.")
    primal, tangent = (state.tensor_info(each) for each in given)
    with torch._C.DisableTorchFunction():
        alike = given[0].shape == given[1].shape and given[0].dtype is given[1].dtype
        if not alike or not (given[0].is_floating_point() or given[0].is_complex()) or primal.device != tangent.device:
            raise _refused("The tangent is not of the size, type and device of the tensor.")
    for info in (primal, tangent):
        fixed_sizes(builder, info)
        builder.node_of(info)
    with torch._C.DisableTorchFunction():
        whole = cast(torch.Tensor, builder.record(torch.ops.aten.alias.default, (given[0],), {}))
    level.duals.append(Dual(state.tensor_info(whole), primal, tangent))
    return whole


@handler(*all_of("autograd.forward_ad.unpack_dual"))
def _unpack(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Outside of any level there is no tangent."""
    given = args[0] if len(args) == 1 else None
    if not state.interpreter.is_tensor(given) or type(given) not in _PLAIN or _outside():
        raise _refused(f"{name_of(fn)} is called with what is no plain tensor.")
    builder = state.graph
    if builder.dual_level is None:
        return tuple.__new__(forward_ad.UnpackedDualTensor, (given, None))
    level = _open(state, fn, kwargs)
    info = state.tensor_info(given)
    with torch._C.DisableTorchFunction():
        primal = cast(torch.Tensor, builder.record(torch.ops.aten.alias.default, (given,), {}))
    return tuple.__new__(forward_ad.UnpackedDualTensor, (primal, _tangent_of(builder, level, info)))


def _tangent_of(builder: GraphBuilder, level: Level, info: TensorInfo) -> torch.Tensor | None:
    for dual in level.duals:
        if dual.whole is info:
            with torch._C.DisableTorchFunction():
                if dual.tangent.tensor.stride() != info.tensor.stride():
                    raise _refused("The tangent of a tensor lies in memory in another way than the tensor.")
            return dual.tangent.tensor
    if not level.duals:
        return None
    region = _Region(builder, level)
    if info.node not in region.nodes:
        return None
    shown = _tangent(region, [info.node])
    if shown is None:
        return None
    results = [(subgraphs.copy_of(info.tensor, info.tensor.requires_grad), info.device), (shown, info.device)]
    body, infos = region.body([info.node])
    return subgraphs.record(builder, hops.jvp, [("jvp_body", body)], infos, results)[1]


def _tangent(region: _Region, outputs: list[fx.Node]) -> torch.Tensor | None:
    """What the tangent of the first of `outputs` looks like; None where it has none."""
    body, infos = region.body(outputs)
    duals = len(region.level.duals)
    body = subgraphs.on_meta(body, anywhere=all(info.device.type == "cpu" for info in infos))

    def run() -> object:
        copies = [subgraphs.copy_of(info.tensor, info.tensor.requires_grad) for info in infos]
        with forward_ad.dual_level():
            given = [forward_ad.make_dual(*pair) for pair in zip(copies[:duals], copies[duals:])]
            results = body.forward(*given, *copies[2 * duals :])
            tangent = forward_ad.unpack_dual(results[0]).tangent if results else None
        return tangent, {compat.storage_address(copy) for copy in copies}

    answer: Any = subgraphs.meta_result("torch.autograd.forward_ad", run)
    tangent, storages = answer
    if tangent is None:
        return None
    with torch._C.DisableTorchFunction():
        if tangent._is_zerotensor():
            raise _refused("A tangent is a tensor of zeros without memory.")
        if len(outputs) == 1 and compat.storage_address(tangent) in storages:
            raise _refused("A tangent shares memory with another tensor.")
        return subgraphs.copy_of(tangent, tangent.requires_grad)


# ---------------------------------------------------------------------- what lies between


class _Region:
    """The operations since the first dual tensor of a level was made.

    Arguments:
        nodes: those that depend on a dual tensor, or share memory with one that does.
        switches: those that turn the recording of gradients on and off.
    """

    def __init__(self, builder: GraphBuilder, level: Level) -> None:
        self.builder, self.level = builder, level
        nodes = list(level.graph.nodes)
        self.numbers = {dual.whole.node: number for number, dual in enumerate(level.duals)}
        self.all = nodes[nodes.index(level.duals[0].whole.node) :]
        self.known = {info.node: info for info in builder.tensors.values()}
        for scope in builder.scopes:
            self.known |= {scope.lifted[id(info)]: info for info in scope.order}
        self.values = {node: info.tensor for node, info in self.known.items()}
        self.switches = [node for node in self.all if node.target is _SWITCH]
        self.nodes: dict[fx.Node, None] = {}
        self._grow()
        self._check()

    def _grow(self) -> None:
        """Find what depends on dual tensors; a tensor that such an operation writes to does, with all its views."""
        shared: set[int] = set()
        count = -1
        while count != len(self.nodes) + len(shared):
            count = len(self.nodes) + len(shared)
            for node in self.all:
                depends = node in self.numbers or any(given in self.nodes for given in node.all_input_nodes)
                if depends or self._storage(node) in shared:
                    self.nodes[node] = None
            read = {self._storage(given) for node in self.nodes for given in node.all_input_nodes}
            for node in self.all:
                for written in self.builder.writing.get(node, ()):
                    storage = self._storage(written)
                    if node in self.nodes or storage in read:
                        shared.add(storage)
        outside = {self._storage(node) for node in self.values if node not in self.nodes}
        if shared & outside:
            raise _refused("A tensor is written to that was made before the dual tensors.")

    def _storage(self, node: object) -> int:
        tensor = self.values.get(cast(fx.Node, node))
        with torch._C.DisableTorchFunction():
            return 0 if tensor is None else compat.storage_address(tensor)

    def _check(self) -> None:
        builder = self.builder
        if any(info.node in self.nodes for dual in self.level.duals for info in (dual.primal, dual.tangent)):
            raise _refused("A dual tensor is made of what depends on another one.")
        for node in self.all:
            if node in self.nodes:
                own = node.target in hops.TRANSFORMS.values() or getattr(node.target, "__module__", "") != hops.__name__
                if node in builder.effectful or not own:
                    raise _refused(f"Operations on dual tensors draw random numbers, or take functions: {node.name}.")
            elif node in builder.kept and not node.all_input_nodes and node not in builder.effectful | {*self.switches}:
                raise _refused(f"Torch's state is changed while dual tensors are computed with: {node.name}.")

    def body(self, outputs: list[fx.Node]) -> tuple[fx.GraphModule, list[TensorInfo]]:
        """(the function of the primals that gives `outputs`, the tensors that its node takes)."""
        builder, duals = self.builder, self.level.duals
        graph = fx.Graph()
        given = [placeholder(graph, dual.primal.node.name) for dual in duals]
        copies: dict[fx.Node, fx.Node] = {}
        surroundings: list[TensorInfo] = []
        held = builder.scopes[-1].attributes if builder.scopes else builder.constants
        attributes: dict[str, object] = {}

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies and node.op == "get_attr":
                attributes[str(node.target)] = held[str(node.target)]
                copies[node] = graph.node_copy(node)
            elif node not in copies:
                info = self.known.get(node)
                if info is None:
                    raise _refused(f"{node.name} is no tensor.")
                fixed_sizes(builder, info)
                surroundings.append(info)
                copies[node] = placeholder(graph, node.name)
            return copies[node]

        if self.switches:
            graph.call_function(_SWITCH, (not self.switches[0].args[0],))
        for node in self.all:
            if node in self.numbers:
                copies[node] = graph.call_function(torch.ops.aten.alias.default, (given[self.numbers[node]],))
            elif node in self.nodes or node in self.switches:
                copies[node] = graph.node_copy(node, copied)
        graph.output(tuple([copies[node] for node in outputs]))
        placeholders_first(graph)
        body = compat.CapturedGraph(attributes, graph)
        body.meta["call"] = self._call()
        infos = [*(dual.primal for dual in duals), *(dual.tangent for dual in duals), *surroundings]
        return body, infos

    def _call(self) -> hops.Call:
        count = len(self.level.duals)
        places: list[object] = [hops.Place(number) for number in range(2 * count)]
        spec = pytree.tree_flatten((tuple(places[:count]), {}))[1]
        extra_spec = pytree.tree_flatten(tuple(places[count:]))[1]
        one = pytree.tree_flatten(places[0])[1]
        call = hops.Call(places[:count], spec, [places[0]], one, count, {"has_aux": False})
        call.extra, call.extra_spec, call.extras = places[count:], extra_spec, count
        return call
