"""`ctc_loss` whose lengths are tensors is in the graph: losses and gradients are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import argand
import sweeps

BACKENDS = ["eager", "aot_eager", "native"]
LONG = torch.tensor([[1, 2, 3], [2, 2, 1]])
FLAT = torch.tensor([1, 2, 3, 4, 2])


def scores(steps: int = 9, sequences: int = 2) -> torch.Tensor:
    return torch.linspace(-2, 3, steps * sequences * 5).sin().view(steps, sequences, 5).requires_grad_()


def losses(fn: Any, *args: Any, **options: Any) -> list[Any]:
    x = scores()
    weight = torch.tensor([0.5, 3.0])
    loss = fn(x, *args, **options)
    (loss * weight if loss.dim() else loss * 2).sum().backward()
    return [loss.detach(), x.grad]


def fn(x: torch.Tensor, targets: Any, inputs: Any, lengths: Any, **options: Any) -> torch.Tensor:
    return F.ctc_loss((x * 1.5).log_softmax(-1), targets, inputs, lengths, **options)


@pytest.mark.parametrize(
    ("backend", "options", "targets"),
    sweeps.combinations(
        BACKENDS,
        [
            {},
            {"reduction": "none"},
            {"reduction": "sum", "blank": 4},
            {"zero_infinity": True, "reduction": "none"},
        ],
        [LONG, FLAT],
    ),
)
def test_losses_and_gradients(targets: torch.Tensor, options: dict[str, Any], backend: str) -> None:
    compiled = argand.compile(fn, backend=backend, fullgraph=True)
    for inputs, lengths in (([9, 8], [3, 2]), ([4, 9], [2, 3]), ([9, 1], [2, 3])):  # the last has no alignment
        given = (targets, torch.tensor(inputs), torch.tensor(lengths, dtype=torch.int32))
        torch.testing.assert_close(losses(compiled, *given, **options), losses(fn, *given, **options), equal_nan=True)


def test_one_sequence_and_no_gradient() -> None:
    compiled = argand.compile(fn, fullgraph=True)
    given = (torch.tensor([1, 2]), torch.tensor(9), torch.tensor(2))
    for reduction in ("none", "mean"):
        x = scores(sequences=1).detach()[:, 0]
        torch.testing.assert_close(compiled(x, *given, reduction=reduction), fn(x, *given, reduction=reduction))


def test_a_module_with_lengths_as_numbers() -> None:
    loss = torch.nn.CTCLoss()
    compiled = argand.compile(lambda x: loss(x.log_softmax(-1), LONG, (9, 8), (3, 2)), fullgraph=True)
    torch.testing.assert_close(compiled(scores()), loss(scores().log_softmax(-1), LONG, (9, 8), (3, 2)))


def test_lengths_that_are_too_long_raise_as_in_eager() -> None:
    compiled = argand.compile(fn)
    for lengths in ([3, 2], [3, 7]):
        texts = []
        for call in (fn, compiled):
            try:
                call(scores(), LONG, torch.tensor([9, 8]), torch.tensor(lengths))
                texts.append("")
            except RuntimeError as error:
                texts.append(str(error).splitlines()[0])
        assert texts[0] == texts[1]


def test_no_second_derivative_as_in_eager() -> None:
    given = (LONG, torch.tensor([9, 8]), torch.tensor([3, 2]))
    for call in (fn, argand.compile(fn, backend="aot_eager")):
        x = scores()
        (grad,) = torch.autograd.grad(call(x, *given), x, create_graph=True)
        with pytest.raises(RuntimeError):
            grad.sum().backward()


def under_flags(x: torch.Tensor) -> Any:
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        inside = torch._C._get_cudnn_enabled(), torch._C._get_cudnn_deterministic(), torch._C._get_cudnn_benchmark()
        loss = F.ctc_loss(x.log_softmax(-1), LONG, torch.tensor([9, 8]), torch.tensor([3, 2]))
    return loss * 2, inside, torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()


@pytest.mark.parametrize("backend", BACKENDS)
def test_flags_of_cudnn_hold_in_their_block_as_in_eager(backend: str) -> None:
    compiled = argand.compile(under_flags, backend=backend, fullgraph=True)
    before = torch.backends.cudnn.benchmark
    try:
        for benchmark in (False, True):
            torch._C._set_cudnn_benchmark(benchmark)  # the attribute may be locked, as by tests of torch
            results = []
            for call in (under_flags, compiled):
                x = scores()
                loss, *rest = call(x)
                loss.backward()
                results.append((loss.detach(), x.grad, rest, torch.backends.cudnn.benchmark))
            torch.testing.assert_close(results[1][:2], results[0][:2])
            assert results[1][2:] == results[0][2:]
    finally:
        torch._C._set_cudnn_benchmark(before)
