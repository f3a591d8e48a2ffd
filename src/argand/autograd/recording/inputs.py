"""The inputs of a trace: placeholders, and the tensors that stand for them."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import torch
from torch import fx

from argand.autograd.recording.bases import Group
from argand.autograd.recording.recorder import Recorder
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.specs import Spec
from argand.graph.metadata.strides import is_dense, memory_order
from argand.graph.nodes.program import InputSpec, TensorSpec
from argand.graph.origin import NodeOrigin

aten = torch.ops.aten


class InputBuilder:
    """Makes placeholders: for the call's tensor arguments, then for parameters and buffers as they are met."""

    def __init__(self, tracer: Recorder) -> None:
        self.tracer = tracer
        self.specs: list[InputSpec] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.reals: list[torch.Tensor] = []  # the tensor of each input when traced, for aliasing checks
        self._names: dict[int, str] = {}
        self._last: fx.Node | None = None

    def names(self, gm: fx.GraphModule) -> None:
        """Learn what parameters and buffers are called, for readable placeholders."""
        for name, tensor in (*gm.named_parameters(remove_duplicate=True), *gm.named_buffers(remove_duplicate=True)):
            self._names[id(tensor)] = name

    def argument(self, tensor: torch.Tensor, index: int, layout: TensorSpec | None = None) -> TraceTensor:
        known = self.tracer.lifted.get(id(tensor))
        if known is not None:
            return known[1]  # one tensor passed twice is one value
        return self._add(tensor, f"arg{index}_1", "arg", index, layout)

    def constant(self, tensor: torch.Tensor) -> TraceTensor:
        known = self._names.get(id(tensor))
        name = f"p_{known}" if known else f"constant{len(self.constants)}"
        lifted = self._add(tensor, re.sub(r"\W", "_", name), "constant", -1)
        self.constants[self.specs[-1].name] = tensor
        return lifted

    def _add(
        self, tensor: torch.Tensor, name: str, kind: Any, index: int, layout: TensorSpec | None = None
    ) -> TraceTensor:
        if not (compat.is_plain_tensor(tensor) or compat.is_fake(tensor)):
            raise AutogradError(
                f"an input of the graph is a {type(tensor).__name__} ({tensor.layout}), which cannot be traced",
                remedy="the graph that holds it runs eagerly",
            )
        tracer = self.tracer
        spec = tracer.specs.make(
            tuple(int(n) for n in (tensor.shape if layout is None else layout.size)),
            tuple(int(n) for n in (tensor.stride() if layout is None else layout.stride)),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
        )
        group = tracer.bases.group_of(tensor)
        viewed = self._of_base(group, spec) if group is not None else None
        node = self.placeholder(name)
        node.meta.update(val=spec.meta, device=spec.device, origin=NodeOrigin(name))
        stand_in = make_tensor(Value(spec, node)) if viewed is None else viewed
        stand_in.value.input = len(self.specs)
        plain = TensorSpec(spec.size, spec.stride, spec.offset, spec.dtype, spec.device, tensor.requires_grad)
        self.specs.append(InputSpec(node.name, kind, index, plain))
        self.reals.append(tensor)
        tracer.inputs.append(stand_in)
        tracer.lifted[id(tensor)] = (tensor, stand_in)
        return stand_in

    def leaf(self, tensor: TraceTensor) -> int:
        """An input for a leaf that the graph makes; returns its position."""
        spec = tensor.value.spec
        index = sum(one.kind == "leaf" for one in self.specs)
        node = self.placeholder(f"leaf{index}_1")
        node.meta.update(val=spec.meta, device=spec.device, origin=NodeOrigin(node.name))
        plain = TensorSpec(spec.size, spec.stride, 0, spec.dtype, spec.device, True)
        self.specs.append(InputSpec(node.name, "leaf", index, plain))
        self.tracer.inputs.append(tensor)
        return len(self.specs) - 1

    def base(self, real: torch.Tensor, number: int) -> TraceTensor:
        """An input for the memory that others share."""
        return self._add(real, f"base{number}", "base", number)

    def _of_base(self, group: Group, spec: Spec) -> TraceTensor:
        """An input of a group: a view of the group's base."""
        root = self.tracer.bases.root_of(group, self.base)
        stand_in = _viewed(self.tracer, root, spec)
        if group.stand_ins is not None:
            group.stand_ins.append(stand_in)
        return stand_in

    def placeholder(self, name: str) -> fx.Node:
        """A new placeholder behind those made so far."""
        graph = self.tracer.graph
        if self._last is None:
            first = next(iter(graph.nodes), None)
            with graph.inserting_before(first) if first is not None else graph.inserting_after(None):
                node = graph.placeholder(name)
        else:
            with graph.inserting_after(self._last):
                node = graph.placeholder(name)
        self._last = node
        return node


def _viewed(tracer: Recorder, root: TraceTensor, spec: Spec) -> TraceTensor:
    """The part of the base that an input is, with the metadata that eager reports."""
    start = spec.offset - root.value.spec.offset
    size, stride = spec.size, spec.stride
    parent: Value | None = root.value
    view: Any = ("as_strided", (size, stride, start), {})
    if 0 in size:
        part = tracer.one(aten.as_strided.default, root, list(size), list(stride), start)
    elif is_dense(size, stride):
        order = memory_order(size, stride)
        inner = [size[d] for d in order]
        part = tracer.record_view(aten.slice.Tensor, (root, 0, start, start + prod(inner)), {})
        part = tracer.record_view(aten.view.default, (part, inner), {})
        if order != tuple(range(len(order))):
            back = [order.index(d) for d in range(len(order))]
            part = tracer.record_view(aten.permute.default, (part, back), {})
        parent, view = part.value.parent, part.value.view
    else:
        part = tracer.windows(root, size, stride, start)
    if parent is None or view is None:
        raise AutogradError("an input that shares memory could not be made a view")
    value = Value(spec, tracer.read(part.value))
    tracer.link(value, parent, *view)
    return make_tensor(value)
