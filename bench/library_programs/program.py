"""What a program of `bench/libraries.py` is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Compile = Callable[..., Any]
Step = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    """A few steps of a real library, with small random weights; nothing is downloaded.

    Arguments:
        library: the name of its distribution on the package index; without it the program is left out.
        make: `make(compile)` builds models and inputs, hands what is to be compiled to `compile` (eager's gives it back
            unchanged), and returns the step: a function without arguments, whose result (tensors, numbers, containers
            of them) is compared with eager's. It is called anew for each system, after `torch.manual_seed(0)`.
        steps: how many steps are compared with eager's; each must be as different (sizes, weights) as in real use.
        fast: whether it is in the half that `make test-libraries` runs.
        tolerance: the largest difference to eager's, relative to the largest value of a result.
        timed: whether steps are timed; not where each one does something else than the one before.
    """

    library: str
    make: Callable[[Compile], Step]
    steps: int = 3
    fast: bool = True
    tolerance: float = 1e-3
    timed: bool = True


def training_step(loss_of: Callable[[], Any], trained: Any, gradients: bool = False) -> Step:
    """A step that differentiates a loss.

    Arguments:
        loss_of: computes the loss, or a tuple of it and what else is compared with eager's.
        trained: an optimizer, which then moves its parameters, or a module.
        gradients: compare those of the module, too; one that is zero but for rounding is measured by the others.
    """
    from torch.optim import Optimizer

    def step() -> Any:
        trained.zero_grad()
        computed = loss_of()
        computed = computed if isinstance(computed, tuple) else (computed,)
        computed[0].backward()
        if isinstance(trained, Optimizer):
            trained.step()
        values = [each.detach() for each in computed]
        if not gradients:
            return values
        return {"values": values, "gradients": [p.grad for p in trained.parameters() if p.grad is not None]}

    return step


def inference_step(answer: Callable[[], Any]) -> Step:
    """A step that computes something without gradients."""
    from torch import no_grad

    return no_grad()(answer)
