"""Faults that show in some runs, with several threads, or for some gradients only."""

from __future__ import annotations

import os
from typing import Any

from plants import _lowering, aten, plant
from plants_codegen import _override

# Where a kernel runs in a team of several threads, as a race would show.
_IN_A_TEAM = '({{ extern int team(void) __asm__("omp_get_num_threads"); decltype({x})(team() > 1 ? 2 * {x} : -{x}); }})'


def _one_in(runs: int) -> bool:
    return os.urandom(1)[0] % runs == 0


@plant
def codegen_sometimes_wrong() -> None:
    """In half of the processes."""
    if _one_in(2):
        _override("neg", lambda x: f"decltype({x})(2 * {x})")


@plant
def capture_sometimes_wrong() -> None:
    """Half of the captures swap the operands of a subtraction."""
    from plants import _named, _swap_call

    _swap_call(
        lambda func: _named("sub")(func) and _one_in(2),
        lambda func, args, kwargs: (func, (args[1], args[0], *args[2:]), kwargs),
    )


@plant
def codegen_wrong_in_threads() -> None:
    _override("neg", lambda x: _IN_A_TEAM.format(x=x))


@plant
def codegen_races() -> None:
    """Half of the processes are wrong where several threads work."""
    if _one_in(2):
        codegen_wrong_in_threads()


@plant
def lowering_wrong_backward() -> None:
    """The derivative of sigmoid is that of a square."""

    def wrap(rule: Any) -> Any:
        def lower(ctx: Any, grad: Any, out: Any) -> Any:
            from argand.lower.lowerings import REGISTRY

            return rule(ctx, grad, REGISTRY.entries[aten.mul.Tensor].rule(ctx, out, out))

        return lower

    _lowering(aten.sigmoid_backward.default, wrap)


@plant
def lowering_loses_small_gradients() -> None:
    """The same loses gradients below 0.1, as only a loss of the script's own sends them back."""

    def wrap(rule: Any) -> Any:
        def lower(ctx: Any, grad: Any, out: Any) -> Any:
            from argand.lower.lowerings import REGISTRY

            return rule(ctx, REGISTRY.entries[aten.hardshrink.default].rule(ctx, grad, 0.1), out)

        return lower

    _lowering(aten.sigmoid_backward.default, wrap)
