"""Which tensors share a storage, as guards ask in each call."""

from __future__ import annotations

import time

import torch

from argand.capture.world.aliasing import same_sharing, sharing


def test_pairs_of_a_mutated_tensor_and_another_that_share_memory() -> None:
    a, b = torch.zeros(4), torch.zeros(4)
    tensors = [a, b[1:], a[2:], b, torch.zeros(2), a]
    expected = ((0, 2), (0, 5), (1, 3), (2, 0), (2, 5))
    assert sharing(3, tensors) == expected
    assert same_sharing(3, expected, *tensors) and not same_sharing(3, (), *tensors)
    assert sharing(2, [torch.zeros(1) for _ in range(5)]) == ()


def test_the_thousands_of_tensors_of_an_optimizers_step_are_not_compared_in_pairs() -> None:
    tensors = [torch.zeros(1) for _ in range(6000)]
    tensors[7] = tensors[5999].view(1)
    start = time.thread_time()
    assert sharing(5000, tensors) == ((7, 5999),)
    assert time.thread_time() - start < 1.0  # comparing all pairs takes 2 s and more
