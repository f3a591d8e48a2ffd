"""Convolutions laid out with the channels innermost: same values, and the strides of eager's results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pass_helpers import traced

from argand.autograd import wrap
from argand.backends.aot_eager import run_eagerly
from argand.passes import run_passes, verify
from argand.passes.channels_last import convolutions, lay_out

aten = torch.ops.aten
X, W, P = torch.randn(2, 6, 12, 12), torch.randn(8, 6, 3, 3), torch.randn(8)
V, ONE = torch.randn(8, 8, 3, 3), torch.randn(8, 8, 1, 1)


def chain(x, w, p, v, one):
    y = F.relu(F.batch_norm(F.conv2d(x, w, None, padding=1), p, p.abs() + 1, p, p))
    z = F.conv2d(F.max_pool2d(y, 2), v, p, padding=1)
    return F.conv2d(z + F.avg_pool2d(y, 2), one), y


def images(x, w, p, v, one):
    y = F.conv2d(x, w, p)
    wide = F.interpolate(F.group_norm(y, 2, p, p), scale_factor=2.0)
    return torch.cat([F.conv2d(wide, v), F.conv2d(wide, v)], 1)[:, 3:9], F.pad(y, (1, 1)), y.mean((2, 3))


def views(x, w, p, v, one):
    y = F.conv2d(x, w, p)
    return y.flatten(2).transpose(1, 2).contiguous(), y.reshape(2, -1), y.permute(2, 0, 3, 1) * 2, y[:, 2], y


def strided(x, w, p, v, one):
    """What reads memory as it lies."""
    y = F.conv2d(x, w, p) * 2
    return torch.as_strided(y, (4, 5), (3, 7)) + 1, F.conv2d(y, v).view(-1)


def small(x, w, p, v, one):
    y = F.adaptive_avg_pool2d(F.conv2d(x, w, p), 1)
    return F.conv2d(y, one, p), y


def norms(x, w, p, v, one):
    y = F.conv2d(x, w, p, padding=1)
    z = F.conv2d(F.silu(F.group_norm(y, 2, p, p)), v, p, padding=1)
    return F.conv2d(F.group_norm(z + y, 4), one)


def activations(x, w, p, v, one):
    """Pointwise operations that torch does not tag as such, and one that it does."""
    y = F.hardtanh(F.hardswish(F.conv2d(x, w, p, padding=1)), -2, 2)
    return F.conv2d(y * F.hardsigmoid(F.conv2d(y.mean((2, 3), keepdim=True), one)), one)


def upwards(x, w, p, v, one):
    """Transposed convolutions, which are laid out so on CPUs."""
    y = F.relu(F.conv_transpose2d(F.conv2d(x, w, p), v, p, stride=2, output_padding=1))
    back = aten.upsample_bilinear2d_backward(y, list(y.shape[2:]), [2, 8, 12, 12], False)  # gradients follow, too
    return F.conv_transpose2d(back, one), F.conv_transpose2d(y, v[:, :2], groups=2)


def shuffled(x, w, p, v, one):
    """Points and channels that change places, slopes by channel."""
    y = F.prelu(F.pixel_shuffle(F.prelu(F.conv2d(x, w, p, padding=1), p), 2), p[:1])
    z = F.prelu(F.channel_shuffle(F.conv2d(F.pixel_unshuffle(y, 2), v, padding=1), 4), p)
    grads = aten._prelu_kernel_backward(z, z + 1, p.view(1, -1, 1, 1))
    return F.conv2d(grads[0], one), grads[1].sum((0, 2, 3)), F.pixel_shuffle(F.conv2d(z, one), 2)


def padded(x, w, p, v, one):
    """Images that continue beyond their edges, or are turned."""
    y = F.conv2d(F.pad(F.conv2d(x, w, p), (1, 1, 1, 1), "reflect"), v)
    z = F.conv2d(F.pad(y.roll(1, 3), (0, 1, 2, 1), "replicate").flip(2), v)
    return F.conv2d(F.glu(torch.cat([z, z], 1), 1), one), z.amin(1)


def choices(x, w, p, v, one):
    """Probabilities over channels, and their gradients."""
    y = F.conv2d(x, w, p).softmax(1)
    z = F.conv2d(y, one).log_softmax(1)
    grad = aten._softmax_backward_data(aten._log_softmax_backward_data(z + 1, z, 1, z.dtype), y, 1, y.dtype)
    return F.conv2d(grad, v), z


PROGRAMS = (chain, images, views, strided, small, norms, activations, upwards, shuffled, padded, choices)


def test_activations_between_convolutions_keep_the_layout():
    made = run_passes(traced(activations, X, W, P, V, ONE))
    assert lay_out(made, convolutions(made)) > 0
    names = [node.target for node in made.graph.nodes]
    first, last = names.index(aten.hardswish.default), names.index(aten.mul.Tensor)
    assert aten.clone.default not in names[first:last]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_strides(program):
    args = (X, W, P, V, ONE)
    made = run_passes(traced(program, *args))
    found = convolutions(made)
    assert found and lay_out(made, found) > 0
    verify(made)
    for node in found:
        x, weight = (arg.meta["val"] for arg in node.args[:2])
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert weight.is_contiguous(memory_format=torch.channels_last)
    for got, want in zip(wrap(made, run_eagerly(made))(*args), program(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_strides_of_a_graph_that_was_not_decomposed(program):
    args = (X, W, P, V, ONE)
    made = traced(program, *args)
    assert lay_out(made, convolutions(made)) > 0
    run_passes(made)
    verify(made)
    for got, want in zip(wrap(made, run_eagerly(made))(*args), program(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("program", [shuffled, padded], ids=lambda fn: fn.__name__)
def test_operations_between_convolutions_keep_the_layout(program):
    made = traced(program, X, W, P, V, ONE)
    lay_out(made, convolutions(made))
    results = made.graph.output_node().args[0]
    laid = {node for node in made.graph.nodes if node.target is aten.clone.default}
    assert all(node.args[0].op == "placeholder" or node in results or set(node.users) & set(results) for node in laid)


def test_what_lies_between_convolutions_is_not_copied():
    made = run_passes(traced(chain, X, W, P, V, ONE))
    lay_out(made, convolutions(made))
    copies = [n for n in made.graph.nodes if n.target is aten.clone.default]
    # x, two weights (one of 1 x 1 lies right as it is), and the two results
    assert len(copies) == 5


def test_weights_that_the_program_computes_are_laid_out_by_it():
    """Those that it is given are the library's to lay out."""
    made = run_passes(traced(lambda x, w, v: F.conv2d(F.conv2d(x, (w * 2 + 1).view(8, 6, 3, 3)), v), X, W, V))
    lay_out(made, convolutions(made), weights=False)
    for node, last in zip(convolutions_of(made), (True, False), strict=True):
        assert node.args[1].meta["val"].is_contiguous(memory_format=torch.channels_last) is last


def convolutions_of(made):
    return [node for node in made.graph.nodes if node.target is aten.convolution.default]


def test_who_asks_for_row_major_memory_gets_it():
    made = run_passes(traced(strided, X, W, P, V, ONE))
    lay_out(made, convolutions(made))
    (read,) = [n for n in made.graph.nodes if n.target is aten.as_strided.default]
    assert read.args[0].meta["val"].is_contiguous()


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0]),
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        lambda x, w: x @ x,
    ],
    ids=["1-d", "channels last already", "none"],
)
def test_others_are_left_alone(program):
    made = traced(program, X, W)
    assert convolutions(made) == [] and lay_out(made, []) == 0


def with_gradient(x, w, p, v, one):
    y = F.conv2d(x, w, p, padding=1)
    z, mean, scale = aten.native_group_norm(y, p, p, 2, 8, 144, 2, 1e-5)
    gradients = aten.native_group_norm_backward(F.conv2d(z, one), y, mean, scale, p, 2, 8, 144, 2, [True, True, True])
    return F.conv2d(gradients[0], v), gradients[1]


@pytest.mark.parametrize("program", [norms, with_gradient])
def test_group_norms_left_to_aten_get_row_major_images(program):
    """Its kernels for GPUs refuse others."""
    args = (X, W, P, V, ONE)
    made = traced(program, *args)  # passes would decompose them
    assert lay_out(made, convolutions(made)) > 0
    verify(made)
    found = [node for node in made.graph.nodes if "group_norm" in str(node.target)]
    assert found
    for node in found:
        images = [arg.meta["val"] for arg in node.all_input_nodes if arg.meta["val"].dim() == 4]
        assert images and all(image.is_contiguous() for image in images)
    for got, want in zip(wrap(made, run_eagerly(made))(*args), program(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("window", "args", "may"),
    [
        ((3, 3), {"padding": 1}, True),
        ((3, 3), {"padding": 2}, True),
        ((3, 3), {"padding": 3}, False),
        ((1, 3), {"padding": (1, 1)}, False),
        ((3, 3), {"padding": 2, "dilation": 2}, True),
        ((2, 2), {"padding": 13, "dilation": 13}, False),  # there are windows on both sides of an image
    ],
)
def test_windows_in_the_padding_stay_where_eager_has_them(window, args, may):
    """oneDNN's kernels for channels that lie innermost end the process where a window reads nothing but zeros."""
    weight = torch.randn(8, 6, *window)
    program = traced(lambda x, w: F.conv2d(x, w, **args), X, weight)
    assert bool(convolutions(program)) is may


def test_one_number_for_all_sides():
    program = traced(lambda x, w: torch.convolution(x, w, None, [1], [1], [1], False, [0], 1), X, W)
    assert not convolutions(program)
