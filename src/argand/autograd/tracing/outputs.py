"""From a finished trace to an AtenProgram: what each user output is, which inputs are written back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from argand.autograd.recording.bases import shared_memory
from argand.autograd.recording.inputs import InputBuilder
from argand.autograd.recording.leaves import is_leaf, reached_leaves, refuse_hooks
from argand.autograd.recording.recorder import Recorder
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.strides import is_dense
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, LeafSpec, MutationSpec, OutputSpec, ViewReplay
from argand.graph.version_counters import share_version

aten = torch.ops.aten


def finish(tracer: Recorder, inputs: InputBuilder, result: Any) -> AtenProgram:
    """Close the graph: returned values, written inputs, the output node; `result`: what the torch-level graph gave."""
    flat, tree = compat.tree_flatten(result)
    check_aliased_inputs(tracer, inputs.reals)
    builder = Outputs(tracer, inputs, tuple(real.requires_grad for real in inputs.reals))
    outputs = builder.classify(flat)
    mutations = [
        MutationSpec(index, builder.result(root), raises=versions_raised(tracer, index))
        for index, root in tracer.mutated.items()
    ]
    graph = tracer.graph
    node = graph.output(tuple(builder.nodes))
    node.meta["val"] = tuple(n.meta["val"] for n in builder.nodes)
    eliminate_dead(graph)
    literals = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    merged = {**inputs.constants, **{name: value for name, value in tracer.literals.items() if name in literals}}
    return AtenProgram(
        graph, inputs.specs, outputs, mutations, merged, None if tree.is_leaf() else tree, specs=tracer.specs,
        bases=tracer.bases.finish(tracer.inputs), leaves=builder.leaves,
    )  # fmt: skip


def is_of_several(tensor: torch.Tensor) -> bool:
    """Whether a tensor that requires grad is one of the views that one call gave: autograd refuses writes to it."""
    metas = torch._C._autograd.CreationMeta
    return (
        tensor.requires_grad
        and tensor._is_view()
        and torch._C._autograd._get_creation_meta(tensor) == metas.MULTI_OUTPUT_NODE
    )


def versions_raised(tracer: Recorder, index: int) -> int:
    """How far writes raised the version of an input; through `.data` alone they do not."""
    return int(tracer.inputs[index]._version)


def check_aliased_inputs(tracer: Recorder, reals: list[torch.Tensor]) -> None:
    """A written input must not share memory with another one: the trace treats them as separate."""
    for index, stand_in in enumerate(tracer.inputs):  # a view may be given another shape in place
        if index not in tracer.mutated and not stand_in.is_inference() and stand_in._version:
            if not tracer.bases.covers(reals[index]):
                raise AutogradError("the graph raises the version of an input that it does not write to")
    if not tracer.mutated:
        return
    if not tracer.inference_mode and any(reals[index].is_inference() for index in tracer.mutated):
        raise AutogradError("the graph writes to a tensor of inference mode outside of it, which eager refuses")
    if len(reals) == 1:
        return
    by_storage: dict[int, list[int]] = {}
    for index, real in enumerate(reals):
        by_storage.setdefault(compat.storage_key(real), []).append(index)
    groups = []
    for key, members in by_storage.items():
        if not key or len(members) < 2 or not any(index in tracer.mutated for index in members):
            continue
        if not all(tracer.bases.covers(reals[index]) for index in members):
            groups.append([reals[index] for index in members])
    if groups:
        raise shared_memory(groups)


class Outputs:
    """Sorts user outputs into kinds and collects the graph's own outputs."""

    def __init__(self, tracer: Recorder, inputs: InputBuilder, requires_grad: tuple[bool, ...] = ()) -> None:
        self.tracer = tracer
        self.builder = inputs
        self.leaves: list[LeafSpec] = []
        self.leaf_inputs: dict[int, TraceTensor] = {}  # position of the input that stands for a leaf -> the leaf
        self._requires_grad = requires_grad  # per input, where nothing of the graph is recorded by autograd
        self.nodes: list[fx.Node] = []
        self._owners: set[fx.Node] = set()
        self._objects: dict[int, int] = {}  # id of a returned tensor object -> its graph output
        self._holders: dict[int, torch.Tensor] = {}  # id of a root that several outputs share -> what they are views of
        self._tensors: list[TraceTensor] = []
        self._inputs = {id(tensor): index for index, tensor in enumerate(tracer.inputs)}

    def classify(self, leaves: list[Any]) -> list[OutputSpec]:
        tensors = [self.tracer.tensor(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        self._tensors = [t for t in tensors if t is not None]
        shared = self._shared_roots(self._tensors)
        self._find_holders(self._tensors, shared)
        bases: dict[int, int] = {}  # id of a root value that several outputs share -> graph output that holds it
        self._find_leaves(self._tensors, shared, bases)
        specs: list[OutputSpec] = []
        for leaf, tensor in zip(leaves, tensors):
            if tensor is None:
                specs.append(OutputSpec("constant", value=leaf))
            else:
                specs.append(self._tensor(tensor, shared, bases))
        for place, tensor in enumerate(tensors):
            if tensor is not None:
                spec = self._of_another(specs[place], tensor, tensors)
                refused = spec.view is not None and not spec.detached and is_of_several(tensor)
                specs[place] = replace(spec, of_several=refused)
        return specs

    def _of_another(self, spec: OutputSpec, tensor: TraceTensor, tensors: list[TraceTensor | None]) -> OutputSpec:
        """A view of another returned tensor, where that is itself no view of what both lie in."""
        if not spec.detached_base or spec.view is None or spec.view.chain:
            return spec
        for position, other in enumerate(tensors):
            if other is not None and other is tensor._base and other.dtype is tensor.dtype:
                view = _replay(tensor.value, other.value)
                return spec if view.chain else replace(spec, detached_base=False, view=view, of=position)
        return spec

    def _find_leaves(self, tensors: list[TraceTensor], shared: set[int], bases: dict[int, int]) -> None:
        """Inputs for the returned tensors that are leaves of the graph's own, before anything is a view of them."""
        for tensor in tensors:
            if id(tensor) in self._inputs or not self.is_leaf(tensor):
                continue
            refuse_hooks(tensor)
            data = self._value(tensor, shared, bases)
            if data.kind == "alias_of_output" and data.view is None:
                raise AutogradError("the graph returns a leaf that is another of its results")
            position = self._inputs[id(tensor)] = self.builder.leaf(tensor)
            self.leaf_inputs[position] = tensor
            self.leaves.append(LeafSpec(position, replace(data, detached=True)))

    def is_leaf(self, tensor: TraceTensor) -> bool:
        """Whether the tensor is a leaf that requires grad."""
        if not tensor.requires_grad:
            return False
        try:
            with self.tracer:  # where what it views was written to, autograd makes the view again to tell
                return is_leaf(tensor)
        except RuntimeError:  # one of several views that one operation made
            return False

    def _view_of_leaf(self, tensor: TraceTensor) -> OutputSpec | None:
        """A returned view of a leaf that the graph made, through which its gradient flows, or which only looks so.

        To autograd it may be a view of what the leaf is one of: of an input, say.
        """
        if not (tensor.requires_grad and tensor._is_view() and self.leaf_inputs):
            return None
        untaped = self._made_under_no_grad(tensor)
        behind = [tensor._base] if untaped else reached_leaves([tensor])
        for position, leaf in self.leaf_inputs.items():
            if leaf.value.root is tensor.value.root and any(leaf is one for one in behind):
                if leaf.dtype is not tensor.dtype or leaf.value.spec.conj != tensor.value.spec.conj:
                    raise AutogradError("the graph returns a leaf that it makes, and a view of other numbers of it")
                return OutputSpec("alias_of_input", position, _replay(tensor.value, leaf.value), untaped=untaped)
        return None

    def _made_under_no_grad(self, tensor: TraceTensor) -> bool:
        """Eager's view requires grad, as what it views does, and hands none on."""
        try:
            with self.tracer:  # where what it views was written to, autograd makes the view again to tell
                return tensor._is_view() and tensor.grad_fn is None
        except RuntimeError as error:  # one of several views that one operation made
            raise AutogradError(f"autograd has no formula for a view that the graph returns: {error}") from error

    def _of_view_without_history(self, tensor: TraceTensor) -> bool:
        """Eager's view hands its gradient to another view, which has no history, and not to what both lie in."""
        try:
            with self.tracer:
                node = tensor.grad_fn
        except RuntimeError:  # one of several views that one operation made
            return False
        if node is None:  # the view is such a one itself
            return False
        while node is not None and not hasattr(node, "variable"):
            if len(node.next_functions) != 1:
                return False
            ((node, _),) = node.next_functions
        return node is None or node.variable._is_view()

    def _shared_roots(self, tensors: list[TraceTensor]) -> set[int]:
        """Roots (by id) that distinct returned tensors share, or whose views autograd must know as such."""
        seen: dict[int, set[int]] = {}
        for tensor in tensors:
            seen.setdefault(id(tensor.value.root), set()).add(id(tensor))
        viewed = {id(tensor.value.root) for tensor in tensors if is_of_several(tensor) or _is_marked(tensor.value)}
        return {root for root, members in seen.items() if len(members) > 1} | viewed

    def _tensor(self, tensor: TraceTensor, shared: set[int], bases: dict[int, int]) -> OutputSpec:
        index = self._inputs.get(id(tensor))
        if index is not None:
            return OutputSpec("input", index)
        viewed = self._view_of_leaf(tensor)
        if viewed is not None:
            return viewed
        self.refuse_gradient(tensor)
        return self._value(tensor, shared, bases)

    def _value(self, tensor: TraceTensor, shared: set[int], bases: dict[int, int]) -> OutputSpec:
        """Where a returned tensor's data is found."""
        value = tensor.value
        root = value.root
        if root.input >= 0:
            index = self._member(tensor) if self.tracer.bases.is_base(root) else root.input
            untaped = 0 <= index < len(self._requires_grad) and self._requires_grad[index]
            if untaped and root.input in self.tracer.mutated:
                raise AutogradError("the graph returns a view, made under no_grad, of an input that it writes to")
            if index < 0:
                apart = not tensor._is_view()  # a `.data`: nothing else has its counter
                return OutputSpec("alias_of_input", root.input, _replay(value, root), detached=apart)
            given = self.tracer.inputs[index]
            spec = OutputSpec("alias_of_input", index, _replay(value, given.value), untaped=untaped)
            return self._apart(spec, tensor, given)
        known = self._objects.get(id(tensor))
        if known is not None:
            return OutputSpec("alias_of_output", known)
        # A view of a literal is one of a copy: it would be a copy of the view, laid out in another way.
        of_literal = value is not root and root.node is not None and root.node.op == "get_attr"
        if id(root) not in shared and not of_literal:
            self._objects[id(tensor)] = self.result(value)
            return OutputSpec("value", self._objects[id(tensor)])
        base = bases.get(id(root))
        if base is None:
            base = bases[id(root)] = self.result(root)
        holder = self._holders.get(id(root))
        if _covers(value, root) and self.may_hold(tensor) and (holder is None or holder is tensor):
            # Two objects of one value: the second must be an object of its own.
            if base not in self._objects.values():
                self._objects[id(tensor)] = base
                return OutputSpec("value", base)
        self.tracer.read(value)
        return self._apart(OutputSpec("alias_of_output", base, _replay(value, root)), tensor, holder)

    def _member(self, tensor: TraceTensor) -> int:
        """Position of the input, of several that share memory, that the tensor is a view of, or has the counter of."""
        viewed = tensor._base if tensor._is_view() else tensor
        inputs = [(index, one) for index, one in enumerate(self.tracer.inputs) if one.value.root is tensor.value.root]
        for index, one in inputs:
            if viewed is one or (viewed is tensor and not tensor.is_inference() and share_version(tensor, one)):
                return index
        return -1

    def _find_holders(self, tensors: list[TraceTensor], shared: set[int]) -> None:
        """Of each shared root, the tensor that others are views of to autograd: a returned one, if there is any."""
        for tensor in tensors:
            root = tensor.value.root
            if id(root) in shared and root.input < 0 and _covers(tensor.value, root) and self.may_hold(tensor):
                known = self._holders.get(id(root))
                if known is None or (known._is_view() and not tensor._is_view()):
                    self._holders[id(root)] = tensor
        for tensor in tensors:
            if id(tensor.value.root) in shared and tensor._is_view() and tensor._base is not None:
                self._holders.setdefault(id(tensor.value.root), tensor._base)

    def _apart(self, spec: OutputSpec, tensor: TraceTensor, holder: torch.Tensor | None) -> OutputSpec:
        """What autograd is not to know of a result and of what it is rebuilt from."""
        if holder is None or tensor is holder:
            return spec
        if self.tracer.inference_mode or tensor.is_inference() or holder.is_inference():
            return spec
        viewed = tensor._base if tensor._is_view() else tensor
        if viewed is not tensor and tensor.requires_grad and self._of_view_without_history(tensor):
            raise AutogradError("the graph returns a view of a view that was made under no_grad")
        if viewed is holder or (viewed is not tensor and viewed is holder._base):
            return spec
        if tensor.requires_grad:
            whose = "an input" if spec.kind == "alias_of_input" else "another result"
            raise AutogradError(f"the graph returns memory of {whose}, with a gradient that is not of that")
        unseen = not share_version(tensor, holder)
        return replace(spec, detached=viewed is tensor, detached_base=viewed is not tensor, unseen=unseen)

    def counted(self) -> tuple[tuple[int, ...], ...]:
        """Results that are no views of one tensor, and have one version counter: parts of a wrapper."""
        groups: list[list[int]] = []
        left = [
            (tensor, self._objects[id(tensor)])
            for tensor in self._tensors
            if id(tensor) in self._objects and not tensor.is_inference()
        ]
        while left:
            (first, _), *others = left
            together = [one for one in left if one[0] is first or share_version(first, one[0])]
            left = [one for one in others if not any(one is each for each in together)]
            groups.append(sorted({position for _, position in together}))
        return tuple([tuple(group) for group in groups if len(group) > 1])

    def may_hold(self, tensor: TraceTensor) -> bool:
        """Whether the tensor may be the one that others, returned too, are views of."""
        return not is_of_several(tensor)

    def refuse_gradient(self, tensor: TraceTensor) -> None:
        """Without gradients nothing that the graph returns may require grad."""
        if tensor.requires_grad:
            raise AutogradError("the graph returns a tensor that requires grad, made inside the graph")

    def result(self, value: Value) -> int:
        """Make a value a result of the graph, laid out as eager's; returns its position."""
        tracer = self.tracer
        node = tracer.read(value)
        spec = value.spec
        if value.held is not spec:
            fixed = make_tensor(Value(spec, node, value.held))
            if is_dense(spec.size, spec.stride):
                fixed = tracer.with_strides(fixed, spec.stride)
            elif value.input >= 0:  # it is copied to the input
                fixed = tracer.with_strides(fixed, value.held.stride)
            else:
                fixed = tracer.with_gaps(fixed)
            node = tracer.read(fixed.value)
        if _owner(node).op in ("placeholder", "get_attr"):
            copied = tracer.record(aten.clone.default, (make_tensor(Value(spec, node)),), {})
            node = tracer.read(copied.value)
        if node.meta["val"].stride() != spec.stride and is_dense(spec.size, spec.stride):
            # Strides of size-1 dimensions, which nothing but the user's own look can tell.
            fixed = tracer.record(
                aten.as_strided.default, (_held(tracer, node), list(spec.size), list(spec.stride)), {}
            )
            node = tracer.read(fixed.value)
        if _owner(node) in self._owners:
            copied = tracer.record(aten.clone.default, (make_tensor(Value(spec, node)),), {})
            node = tracer.read(copied.value)
        self._owners.add(_owner(node))
        self.nodes.append(node)
        return len(self.nodes) - 1


def _held(tracer: Recorder, node: fx.Node) -> TraceTensor:
    return make_tensor(Value(tracer.specs.of_meta(node.meta["val"], node.meta["device"]), node))


def _owner(node: fx.Node) -> fx.Node:
    """The node that made the memory of a result, which no argument and no other result has."""
    while node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        if not compat.is_view_op(node.target) or not node.args or not isinstance(node.args[0], fx.Node):
            return node
        node = node.args[0]
    return node


def _covers(value: Value, root: Value) -> bool:
    return value is root or (
        value.spec.size == root.spec.size
        and value.spec.stride == root.spec.stride
        and value.spec.offset == root.spec.offset
        and value.spec.dtype is root.spec.dtype
        and (value.spec.conj, value.spec.neg) == (root.spec.conj, root.spec.neg)
    )


def _is_marked(value: Value) -> bool:
    """Whether a view is conjugated or negated by a bit of its own, which a kernel that stores it would not set."""
    at = value
    while at.parent is not None and at.view is not None and not at.view[2] and at.view[0] != "as_strided":
        at = at.parent
    marks, kept = (value.spec.conj, value.spec.neg), value.spec.dtype is at.spec.dtype
    return at is value.root and marks != (at.spec.conj, at.spec.neg) and (kept or any(marks))


def _replay(value: Value, root: Value) -> ViewReplay:
    spec, base = value.spec, root.spec
    same_kind = spec.dtype is base.dtype and (spec.conj, spec.neg) == (base.conj, base.neg)
    chain: list[tuple[Any, tuple[Any, ...]]] = []
    if not same_kind:
        at = value
        while at is not root:
            func, args, kwargs = at.view or ("", (), {})
            if kwargs or at.parent is None or func == "as_strided":
                raise AutogradError("a returned view of an input is too involved to rebuild")
            chain.append((func, args))
            at = at.parent
        chain.reverse()
    return ViewReplay(spec.size, spec.stride, spec.offset - base.offset, tuple(chain))
