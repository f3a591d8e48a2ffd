"""What is done to a graph's traces before it is known whether an earlier process compiled them."""

from __future__ import annotations

import torch

from argand.backends.targets import target_of, targets_in
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram
from argand.passes import joint
from argand.passes.channels_last import convolutions
from argand.passes.convolution_biases import part_biases
from argand.passes.one_dimension import as_images

_CONVOLUTIONS = frozenset((torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default))


def prepare_joint(program: AtenProgram) -> None:
    """Rewrite a graph of forward and backward, before it is cut in two."""
    joint.prepare_joint(program)
    as_images(program)
    prepare_convolutions(program)


def prepare_convolutions(program: AtenProgram) -> None:
    """Without their biases and laid out anew, where that is faster on the program's devices."""
    if _CONVOLUTIONS.isdisjoint(compat.targets_of(program.graph)):
        return
    program.layers = None  # calls come and go
    targets = [target for target in targets_in(program) if target is not None]
    if any(target.parts_biases for target in targets):
        part_biases(program, _parts_biases)
    timed = any(target.times_layouts for target in targets) and bool(convolutions(program))
    if timed:
        joint.open_group_norms(program)
    if timed or (any(target.depthwise_innermost for target in targets) and _has_groups(program)):
        from argand.backends.layouts import choose_layouts  # graphs without convolutions do not wait for its imports

        choose_layouts(program)


def _parts_biases(device: torch.device) -> bool:
    target = target_of(device)
    return target is not None and target.parts_biases


def _has_groups(program: AtenProgram) -> bool:
    convolution = torch.ops.aten.convolution.default
    return any(node.target is convolution and node.args[8] > 1 for node in program.graph.nodes)
