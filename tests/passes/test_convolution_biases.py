"""Convolutions without their biases compute what they did, gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pass_helpers import traced

from argand.autograd import wrap
from argand.backends.aot_eager import run_eagerly
from argand.passes import run_passes
from argand.passes.convolution_biases import part_biases

aten = torch.ops.aten
PROGRAMS = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b).relu(), (2, 3, 9), (4, 3, 3)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1) * 2, (2, 3, 6, 6), (4, 3, 3, 3)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), (2, 3, 5, 5), (3, 4, 3, 3)),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b), (1, 2, 4, 4, 4), (4, 2, 2, 2, 2)),
}


def targets(program):
    return [node.target for node in program.graph.nodes]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bias_is_added_behind_the_convolution(name, dtype):
    function, size, weight = PROGRAMS[name]
    args = tuple(torch.randn(shape, dtype=dtype) for shape in (size, weight, (4,)))
    program = run_passes(traced(function, *args))
    assert part_biases(program, lambda device: device.type == "cpu") == 1
    (call,) = [node for node in program.graph.nodes if node.target is aten.convolution.default]
    assert call.args[2] is None
    made, want = wrap(program, run_eagerly(program))(*args), function(*args)
    torch.testing.assert_close(made, want)
    assert made.stride() == want.stride()


def test_other_devices_and_convolutions_without_a_bias_stay():
    args = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(3)
    program = run_passes(traced(F.conv2d, *args))
    before = targets(program)
    assert part_biases(program, lambda device: device.type == "cuda") == 0 and targets(program) == before
    bare = run_passes(traced(F.conv2d, *args[:2]))
    assert part_biases(bare, lambda device: True) == 0
