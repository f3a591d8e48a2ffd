"""What is rewritten in a graph of forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import argand
from helpers import collected


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Hardswish])
def test_batch_norms_by_given_statistics_are_loops(training, activation):
    """They save nothing for their gradients; those by the batch's do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), activation(), nn.Conv2d(8, 4, 1)).train(training)
    model[1].running_var.uniform_(0.5, 2.0)
    other, x = copy.deepcopy(model), torch.randn(2, 3, 9, 9)
    with collected("output_code") as seen:
        argand.compile(model)(x).square().sum().backward()
    other(x).square().sum().backward()
    for one, two in zip([*model.parameters(), *model.buffers()], [*other.parameters(), *other.buffers()]):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)
    assert all("batch_norm_default(" not in event.text() for event in seen)
