"""The ATen operations of a backward, recorded while the engine runs it for the first time.

A node's hooks tell when it begins and ends, a dispatch mode sees what it calls in between, and what the engine itself
adds up between two nodes. Whatever an operation is given must be known: a result of an earlier one, a tensor that the
node saved, a gradient that the backward began with, or a number that follows from what the key holds.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from argand.engine.node_state import NotRecorded, moves_of
from argand.engine.structure import Structure
from argand.graph import compat
from argand.runtime.tape.result_nodes import SILENT

aten = torch.ops.aten

_UNSURE = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
_SUMS = (aten.add.Tensor, aten.add_.Tensor)
"""What the engine calls between two nodes."""
_BETWEEN, _LEAF = -1, -2


@dataclass(slots=True)
class Recorded:
    """A backward as a graph.

    Arguments:
        graph: of the gradients and saved tensors that it reads; returns a gradient per leaf.
        grads, tensors: which of the backward's first gradients, and of the structure's tensors, the graph reads.
        leaves: the nodes that accumulate what the graph returns (None: no gradient), in the engine's order.
        given: per node of a compiled graph, by which of its results gradients came.
    """

    graph: fx.Graph
    grads: list[int]
    tensors: list[int]
    leaves: list[int]
    given: dict[int, tuple[bool, ...]]


class _Unknown(NotRecorded):
    """A tensor of which nothing recorded tells where it is from."""


class Recorder(compat.DispatchMode):
    """Records one run of the engine. What it does not understand is a reason not to compile, never an error."""

    def __init__(self, structure: Structure, grads: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.reason = ""
        self._structure = structure
        self._graph = fx.Graph()
        self._grads = [self._graph.placeholder(f"grad_{at}") for at in range(len(grads))]
        self._saved = [self._graph.placeholder(f"saved_{at}") for at in range(len(structure.tensors))]
        self._known = WeakIdKeyDictionary(dict(zip(grads, self._grads)))
        self._held = {_storage(tensor) for tensor in (*grads, *structure.tensors)}
        self._at = _BETWEEN
        self._probed: list[Any] | None = None
        self._results: list[tuple[int, fx.Node | None]] = []
        self._given: dict[int, list[fx.Node]] = {at: [] for at in structure.leaves}
        self._given_back: dict[fx.Node, StorageWeakRef] = {}
        self._compiled: dict[int, tuple[bool, ...]] = {}
        self._handles: list[Any] = []
        self._leaf_places = {id(structure.nodes[at]): at for at in structure.leaves}

    # ------------------------------------------------------------------ what is heard

    def listen(self) -> None:
        """Put hooks on the nodes."""
        for at, node in enumerate(self._structure.nodes):
            if at in self._structure.leaves:
                self._handles.append(node.register_prehook(self._of(at, self._accumulates)))
            else:
                self._handles.append(node.register_prehook(self._of(at, self._begins)))
                self._handles.append(node.register_hook(self._of(at, self._ended)))

    def stop(self) -> None:
        """Take them away again."""
        for handle in self._handles:
            handle.remove()

    def _of(self, at: int, hear: Any) -> Any:
        def hook(*grads: Any) -> None:
            if not self.reason:
                try:
                    hear(at, *grads)
                except NotRecorded as refused:
                    self.reason = str(refused)

        setattr(hook, SILENT, True)
        return hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._at == _BETWEEN and func not in _SUMS:  # of hooks of leaves, which run again when the graph does
            return out
        if self._probed is not None:
            if func is not aten.detach.default and any(True for _ in _tensors(out)):  # detach: what was saved is read
                self._probed.append(func)
            return out
        if not self.reason and self._at != _LEAF:
            try:
                self._note(func, args, kwargs or {}, out)
            except NotRecorded as refused:
                self.reason = str(refused)
        return out

    # ------------------------------------------------------------------ nodes

    def _begins(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        for grad in grads:
            if grad is not None and grad not in self._known:
                self._refuse(f"{self._name(at)} was given a gradient that nothing recorded made")
        self._at = at
        node = self._structure.nodes[at]
        moves = moves_of(node)
        if moves is not None:
            self._compiled[at] = moves.given(grads)
            node.by_operations = True
        elif not isinstance(node, torch._C._FunctionBase):
            self._passes_nothing(at, node, len(grads))

    def _passes_nothing(self, at: int, node: Any, count: int) -> None:
        """A node that is given no gradient must make none: so it is run when its gradients are computed elsewhere."""
        computed: list[Any] = []
        self._probed = computed
        try:
            made = node(*[None] * count)
        except Exception as error:
            self._refuse(f"{self._name(at)} cannot run without a gradient: {type(error).__name__}")
        finally:
            self._probed = None
        if computed or any(one is not None for one in (made if isinstance(made, tuple) else (made,))):
            self._refuse(f"{self._name(at)} computes without a gradient")

    def _ended(self, at: int, made: tuple[torch.Tensor | None, ...], grads: tuple[torch.Tensor | None, ...]) -> None:
        node = self._structure.nodes[at]
        for one, (to, _) in zip(made, node.next_functions):
            if one is not None:
                found = self._known[one] = self._lookup(one)
                place = self._leaf_places.get(id(to))
                if place is not None:
                    self._given[place].append(found)
                    self._check_alone(found, one)
        self._at = _BETWEEN

    def _check_alone(self, found: fx.Node, grad: torch.Tensor) -> None:
        """A gradient that lies in the memory of another one, or of what was saved, would show writes to that."""
        if grad.layout is not torch.strided:
            self._refuse("a gradient is sparse")
        if found not in self._given_back:
            storage = StorageWeakRef(grad.untyped_storage())
            shared = storage.cdata in self._held and found.op != "placeholder"
            if shared or any(storage == other and not other.expired() for other in self._given_back.values()):
                self._refuse("a gradient shares memory with another tensor")
            self._given_back[found] = storage

    def _accumulates(self, at: int, grads: tuple[torch.Tensor | None, ...]) -> None:
        """A leaf's node begins, after hooks of the leaf have seen the sum of what it was given."""
        self._at = _LEAF
        given = self._given[at]
        total = given[0] if given else None
        for one in given[1:]:
            total = self._graph.call_function(aten.add.Tensor, (total, one))
        self._results.append((at, total))

    # ------------------------------------------------------------------ operations

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            self._refuse(f"{func} is called, which is no operator of torch's")
        unsure = [tag.name for tag in _UNSURE if tag in func.tags]
        if unsure:
            self._refuse(f"{func} is called: {unsure[0]}")
        if any(tensor.layout is not torch.strided or tensor.device.type != "cpu" for tensor in _tensors(out)):
            self._refuse("a tensor is sparse, or not on a CPU")
        if func is aten.add_.Tensor and self._at == _BETWEEN:  # into a gradient that the engine alone has
            func = aten.add.Tensor
        elif func._schema.is_mutable:
            written = [arg for at, arg in enumerate(args) if _is_written(func, at)]
            named = [kwargs.get(arg.name) for arg in func._schema.arguments if arg.alias_info and arg.kwarg_only]
            if any(_storage(tensor) in self._held for tensor in _tensors((written, named))):
                self._refuse(f"{func} writes to a tensor that was saved")
        try:
            node = self._graph.call_function(func, self._as_nodes(args), self._as_nodes(kwargs))
        except _Unknown:  # what comes of it is unknown, too
            if func._schema.is_mutable and self._at != _BETWEEN:
                raise
            return
        self._name_results(node, out)

    def _name_results(self, node: fx.Node, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            self._known[out] = node
        elif isinstance(out, (tuple, list)):
            for at, one in enumerate(out):
                if one is not None:
                    self._name_results(self._graph.call_function(operator.getitem, (node, at)), one)

    def _as_nodes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._lookup(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self._as_nodes(one) for one in value])
        if isinstance(value, dict):
            return {key: self._as_nodes(one) for key, one in value.items()}
        if isinstance(value, (torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._refuse(f"an operation is given a {type(value).__name__}")
        return value

    def _lookup(self, tensor: torch.Tensor) -> fx.Node:
        found = self._known.get(tensor)
        if found is not None:
            return found
        if self._at >= 0:
            for at in self._structure.saved[self._at]:
                if _is_same(self._structure.tensors[at], tensor):
                    return self._saved[at]
        raise _Unknown(f"{self._name(self._at)} reads a tensor that it does not tell of")

    # ------------------------------------------------------------------ what comes of it

    def recorded(self) -> Recorded:
        """What was recorded.

        Raises:
            NotRecorded: the engine has to run this.
        """
        if self.reason or not any(node is not None for _, node in self._results):
            self._refuse(self.reason or "no leaf was given a gradient")
        self._graph.output(tuple([node for _, node in self._results]))
        for at, node in self._results:
            if at in self._structure.hooked and node is not None and not _is_alone(node):
                self._refuse("a hook of a leaf sees a gradient that other formulas read as well")
        self._graph.eliminate_dead_code(lambda node: _has_effect(node))
        grads = [at for at, node in enumerate(self._grads) if node.users]
        tensors = [at for at, node in enumerate(self._saved) if node.users]
        for node in (*self._grads, *self._saved):
            if not node.users:
                self._graph.erase_node(node)
        return Recorded(self._graph, grads, tensors, [at for at, _ in self._results], self._compiled)

    def _name(self, at: int) -> str:
        return self._structure.nodes[at].name() if at >= 0 else "the engine"

    def _refuse(self, reason: str) -> NoReturn:
        raise NotRecorded(reason)


def _is_alone(node: fx.Node) -> bool:
    """Whether nothing else reads a gradient, or what it is a view of: a hook may write to it."""
    while node.op == "call_function" and len(node.users) == 1:
        func = node.target
        if not isinstance(func, torch._ops.OpOverload) or not compat.is_view_op(func):
            return True
        (node,) = node.all_input_nodes[:1]
    return False


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or (
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    )


def _is_written(func: Any, at: int) -> bool:
    arguments = func._schema.arguments
    return at < len(arguments) and arguments[at].alias_info is not None and arguments[at].alias_info.is_write


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _is_same(saved: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the saved one, or another object for it."""
    return saved is tensor or (
        saved.dtype is tensor.dtype
        and saved.shape == tensor.shape
        and saved.stride() == tensor.stride()
        and saved.data_ptr() == tensor.data_ptr()
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.layout is torch.strided
    )


__all__ = ["Recorded", "Recorder"]
