"""Convolutions of sequences as convolutions of images of one row, which is what ATen makes of them on a CPU.

So they can be laid out with the channels innermost, too (`channels_last`). All that is added are views.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.layout import exact_strides, with_strides

aten = torch.ops.aten

_ROW: Final = 2  # the new dimension
_FIRST: Final = {aten.convolution.default: 0, aten.convolution_backward.default: 1}  # the argument that is convolved


def as_images(program: AtenProgram) -> int:
    """Rewrite a program's convolutions of sequences in place; returns how many, gradients included, are so now."""
    sequences = [node for node in program.graph.nodes if node.target in _FIRST and _is_of_sequences(node)]
    rewrite = _Rewrite(Builder(program.graph, program.specs or SpecTable(), made_by="as_images"))
    for node in sequences:
        rewrite.convolution(node)
    return len(sequences)


def _is_of_sequences(node: fx.Node) -> bool:
    first = _FIRST[node.target]
    vals = [arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args[: first + 2]]
    if node.meta["device"] != torch.device("cpu"):
        return False
    return all(
        isinstance(val, torch.Tensor) and val.dim() == 3 and all(isinstance(n, int) and n > 0 for n in val.shape)
        for val in vals
    )


class _Rewrite:
    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.rows: dict[fx.Node, fx.Node] = {}

    def convolution(self, node: fx.Node) -> None:
        """One convolution, or the gradients of one."""
        first = _FIRST[node.target]
        rest: list[Any] = list(node.args[first + 2 :])
        for place, filler in ((1, 1), (2, 0), (3, 1), (5, 0)):  # stride, padding, dilation, output padding
            rest[place] = [filler, *rest[place]]
        with self.builder.at(node):
            operands = [self._row(arg) for arg in node.args[: first + 2]]
            image = self.builder(node.target, *operands, *rest)
            if first == 0:
                self._replace(node, image)
                return
            picked = [user for user in node.users if user.target is operator.getitem]
        for user in picked:
            with self.builder.at(user):
                self._replace(user, image[user.args[1]])
        self.builder.graph.erase_node(node)

    def _row(self, node: Any) -> fx.Node:
        if node not in self.rows:
            self.rows[node] = self.builder(aten.unsqueeze.default, node, _ROW)
        return self.rows[node]

    def _replace(self, node: fx.Node, image: fx.Node) -> None:
        want = node.meta["val"]
        if image.meta["val"].dim() > want.dim():
            laid = with_strides(self.builder, self.builder(aten.squeeze.dim, image, _ROW), tuple(want.stride()))
            image = exact_strides(self.builder, laid, want)
        node.replace_all_uses_with(image)
        self.builder.graph.erase_node(node)
