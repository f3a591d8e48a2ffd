"""Convolutions with the channels of their operands innermost, and what lies between them in the same layout.

Libraries for GPUs are fastest so with 16-bit floats. In: a program (of inference, or of forward and backward together),
and which of its convolutions shall be laid out so. Results of the graph keep eager's strides.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata import layouts
from argand.graph.metadata.builder import Builder
from argand.graph.metadata.metas import Many
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.metadata.strides import is_channels_last, is_contiguous, is_dense
from argand.graph.nodes.program import AtenProgram
from argand.passes.layout import exact_strides, same_memory, with_strides

aten = torch.ops.aten

# Besides pointwise ops: what computes the same whatever the layout of its argument is, and passes the layout on. All
# others get their arguments as they were: ATen's group norms on GPUs, for one, take nothing but row-major images.
_NAMES: Final = """
    cat constant_pad_nd max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d
    _upsample_nearest_exact2d mean sum amax var_mean native_batch_norm _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional clone _to_copy native_dropout
    max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward upsample_nearest2d_backward
    upsample_bilinear2d_backward _upsample_nearest_exact2d_backward
    native_batch_norm_backward native_dropout_backward native_layer_norm_backward
    _prelu_kernel _prelu_kernel_backward pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
    reflection_pad2d reflection_pad2d_backward replication_pad2d replication_pad2d_backward roll flip glu glu_backward
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data amin upsample_bicubic2d
    view permute transpose unsqueeze squeeze slice select expand split split_with_sizes
"""
_FOLLOW: Final = frozenset(_NAMES.split())


def convolutions(program: AtenProgram) -> list[fx.Node]:
    """The convolutions that could be laid out so, and their gradients: of images, whose operands are row-major."""
    forward = [n for n in program.graph.nodes if n.target is aten.convolution.default and _is_plain(n)]
    operands = {tuple(node.args[:2]) for node in forward}
    gradients = [n for n in program.graph.nodes if n.target is aten.convolution_backward.default]
    return forward + [node for node in gradients if tuple(node.args[1:3]) in operands and _tensors(node.args[:1])]


def _is_plain(node: fx.Node) -> bool:
    val = node.meta["val"]
    transposed = bool(node.args[6])
    on_cpu = node.meta["device"].type == "cpu"
    if (transposed and not on_cpu) or not _tensors((*node.args[:2], node)):
        return False
    x, weight, _, _, padding, dilation = node.args[:6]
    if on_cpu and not transposed and _may_read_padding_only(x, weight, padding, dilation):
        return False
    return is_contiguous(val.shape, val.stride()) and not is_channels_last(val.shape, val.stride())


def _may_read_padding_only(x: fx.Node, weight: fx.Node, padding: Sequence[int], dilation: Sequence[int]) -> bool:
    return layouts.may_read_padding_only(x.meta["val"].shape[2:], weight.meta["val"].shape[2:], padding, dilation)


def _tensors(nodes: Sequence[Any]) -> bool:
    """Whether all are images or weights."""
    vals = [node.meta["val"] if isinstance(node, fx.Node) else None for node in nodes]
    return all(isinstance(val, torch.Tensor) and val.dim() == 4 and 0 not in val.shape for val in vals)


def lay_out(program: AtenProgram, chosen: Sequence[fx.Node], *, weights: bool = True) -> int:
    """Lay convolutions out with the channels innermost, in place; returns how many nodes have another layout then.

    Arguments:
        weights: also those of convolutions without gradients, in a kernel of their own; else the library does it, but
            for those that the program computes.
    """
    return _Layouts(program, frozenset(chosen), weights).run() if chosen else 0


def _is_computed(weight: fx.Node) -> bool:
    """Whether a kernel of the program makes a weight: it may write it in any order."""
    while weight.target is aten.view.default:
        weight = weight.args[0]
    return weight.op == "call_function" and layouts.is_pointwise(weight.target)


class _Layouts:
    """One run of `lay_out`.

    Arguments:
        chosen: the convolutions.
        weights: of `lay_out`.
    """

    def __init__(self, program: AtenProgram, chosen: frozenset[fx.Node], weights: bool) -> None:
        self.program, self.chosen = program, chosen
        self.weights = weights or any(node.target is not aten.convolution.default for node in chosen)
        self.builder = Builder(program.graph, program.specs or SpecTable(), made_by="channels_last")
        self.before: dict[fx.Node, Any] = {}  # metadata of the nodes that have another layout now
        self.copies: dict[tuple[fx.Node, bool], fx.Node] = {}

    def run(self) -> int:
        """Returns how many nodes have another layout."""
        for node in list(self.program.graph.nodes):
            if node in self.chosen:
                self._convolution(node)
            elif node.op == "output":
                self._restore_results(node)
            elif any(arg in self.before for arg in node.all_input_nodes) and not self._follow(node):
                self._restore(node)
        return len(self.before)

    def _convolution(self, node: fx.Node) -> None:
        forward = node.target is aten.convolution.default
        count = (2 if self.weights else 1) if forward else 3  # tensors: the argument and the weight, after the gradient
        with self.builder.at(node):
            operands = [self._copy(arg, last=True) for arg in node.args[:count]]
            if count == 1 and _is_computed(node.args[1]):
                operands.append(self._copy(node.args[1], last=True))
        node.args = (*operands, *node.args[len(operands) :])
        vals = [node.meta["val"]] if forward else node.meta["val"][:2]
        laid = [None if one is None else layouts.in_format(one, torch.channels_last) for one in vals]
        self._set(node, laid[0] if forward else (*laid, *node.meta["val"][2:]))

    def _set(self, node: fx.Node, val: Any) -> None:
        self.before.setdefault(node, node.meta["val"])
        node.meta["val"] = val

    def _follow(self, node: fx.Node) -> bool:
        """Give a node the layout that follows from its arguments'; False where it must not change."""
        if node.target is operator.getitem:
            source, position = node.args
            self._set(node, source.meta["val"][position])
            return True
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            return False
        if not layouts.is_pointwise(target) and target._schema.name.partition("::")[2] not in _FOLLOW:
            return False
        try:
            inferred = self.builder.infer(target, node.args, dict(node.kwargs))
        except RuntimeError:  # a view that the new strides do not allow
            return False
        if inferred.__class__ is Spec:
            if inferred.meta.stride() != node.meta["val"].stride():
                self._set(node, inferred.meta)
            return True
        if inferred.__class__ is Many:
            self._set(node, inferred.metas)
            return True
        return False

    def _restore(self, node: fx.Node) -> None:
        """Give a node its arguments as they were."""
        with self.builder.at(node):
            node.args = fx.node.map_arg(node.args, self._as_before)
            node.kwargs = fx.node.map_arg(node.kwargs, self._as_before)

    def _as_before(self, node: fx.Node) -> fx.Node:
        before = self.before.get(node)
        if not isinstance(before, torch.Tensor) or same_memory(node.meta["val"], before):
            return node
        return self._copy(node, last=False)

    def _copy(self, node: Any, *, last: bool) -> fx.Node:
        """A node's value with the channels innermost, or as it was: itself where it lies so."""
        now: torch.Tensor = node.meta["val"]
        key = (node, last)
        if key in self.copies:
            return self.copies[key]
        if last:
            done = is_channels_last(now.shape, now.stride())
            copied = node if done else self.builder(aten.clone.default, node, memory_format=torch.channels_last)
        elif is_dense(tuple(now.shape), self.before[node].stride()):
            copied = with_strides(self.builder, node, self.before[node].stride())
        else:  # a view of some of its argument
            args, kwargs = (fx.node.map_arg(part, self._as_before) for part in (node.args, node.kwargs))
            copied = self.builder(node.target, *args, **kwargs)
        self.copies[key] = copied
        return copied

    def _restore_results(self, output: fx.Node) -> None:
        with self.builder.at(output):
            given: Any = output.args[0]
            results = [self._result(node) for node in given]
        output.args = (tuple(results),)

    def _result(self, node: Any) -> Any:
        before = self.before.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(before, torch.Tensor):
            return node
        return exact_strides(self.builder, self._as_before(node), before)
