"""Batch norms with fixed statistics after convolutions whose weights are constant: part of the weights."""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Any

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram

aten = torch.ops.aten

_NORMS = {
    # where an operator has weight, bias, mean, variance and eps, and whether it computes statistics
    aten.native_batch_norm.default: ((1, 2, 3, 4), 7, 5),
    aten._native_batch_norm_legit_functional.default: ((1, 2, 3, 4), 7, 5),
    aten._native_batch_norm_legit_no_training.default: ((1, 2, 3, 4), 6, None),
}


def fold_batch_norms(program: AtenProgram, constant: Set[fx.Node]) -> int:
    """Scale the weights of convolutions instead of their results, in place; returns how many norms went.

    Arguments:
        constant: nodes whose values do not change.
    """
    builder = Builder(program.graph, program.specs or SpecTable(), made_by="fold_batch_norms")
    return sum(_fold(builder, node, constant) for node in list(program.graph.nodes) if node.target in _NORMS)


def _fold(builder: Builder, norm: fx.Node, constant: Set[fx.Node]) -> bool:
    places, eps, training = _NORMS[norm.target]
    source: Any = norm.args[0]
    picked = list(norm.users)
    if training is not None and norm.args[training]:
        return False
    if len(picked) != 1 or picked[0].target is not operator.getitem or picked[0].args[1] != 0:
        return False
    if not isinstance(source, fx.Node) or source.target is not aten.convolution.default or len(source.users) != 1:
        return False
    x, weight, bias, *rest = source.args
    parameters = [norm.args[place] for place in places]
    if rest[3] or any(each is not None and each not in constant for each in (weight, bias, *parameters)):
        return False  # transposed: its weight has the channels elsewhere
    if parameters[2] is None or parameters[3] is None or picked[0].meta["val"].dtype != source.meta["val"].dtype:
        return False
    if any(each.meta["val"].dtype is not torch.float32 for each in (weight, bias, *parameters) if each is not None):
        return False
    with builder.at(norm):
        scaled, shift = _scaled(builder, weight, bias, parameters, norm.args[eps])
        folded = builder(source.target, x, scaled, shift, *rest)
    if folded.meta["val"].stride() != picked[0].meta["val"].stride():
        builder.graph.erase_node(folded)
        return False
    picked[0].replace_all_uses_with(folded)
    for gone in (picked[0], norm, source):
        builder.graph.erase_node(gone)
    return True


def _scaled(b: Builder, weight: fx.Node, bias: Any, parameters: list[Any], eps: Any) -> tuple[fx.Node, fx.Node]:
    """The weight and the bias of the convolution and its norm, computed in double precision and rounded once."""
    scale, shift, mean, variance = [None if each is None else _cast(b, each, torch.float64) for each in parameters]
    factor = b(aten.rsqrt.default, b(aten.add.Tensor, variance, eps))
    factor = factor if scale is None else b(aten.mul.Tensor, scale, factor)
    per_channel = b(aten.view.default, factor, [-1, *[1] * (weight.meta["val"].dim() - 1)])
    scaled = _cast(b, b(aten.mul.Tensor, _cast(b, weight, torch.float64), per_channel), torch.float32)
    centred = b(aten.neg.default, mean) if bias is None else b(aten.sub.Tensor, _cast(b, bias, torch.float64), mean)
    moved = b(aten.mul.Tensor, centred, factor)
    moved = moved if shift is None else b(aten.add.Tensor, moved, shift)
    return scaled, _cast(b, moved, torch.float32)


def _cast(b: Builder, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    converted: fx.Node = b(aten._to_copy.default, node, dtype=dtype)
    return converted
