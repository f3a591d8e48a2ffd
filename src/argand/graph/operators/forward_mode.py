"""Forward mode in a trace, to which its tensors are unknown: the pullback of a pullback gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree

Args: TypeAlias = tuple[Any, ...]

_APART = frozenset([
    "fmax", "fmin", "atan2", "arctan2", "std", "std_mean", "sinc", "logit", "det", "cholesky_inverse",
    "as_strided_scatter",
])  # fmt: skip
_APART_OF_TENSORS = frozenset(["clamp", "clip", "clamp_min", "clamp_max", "pow", "scatter_reduce"])
_POWERS = (0, 1, 2, math.inf, -math.inf)


def has_own_answers(node: fx.Node) -> bool:
    """Whether forward mode differentiates a call otherwise where numbers are equal or zero: one of them is no number,
    or takes the other side."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    name = name.removeprefix("linalg_").removeprefix("special_").rstrip("_")
    given = (*node.args[1:], *node.kwargs.values())
    if name in ("norm", "vector_norm"):
        power = node.kwargs.get("p", node.kwargs.get("ord", given[0] if given else 2))
        return isinstance(power, int | float) and power not in _POWERS
    of_tensors = any(isinstance(each, fx.Node) for each in given) and isinstance(node.args[0], fx.Node)
    return name in _APART or (name in _APART_OF_TENSORS and of_tensors)


def pushed(function: Callable[..., Any], primals: Args, tangents: Any, has_aux: Any = False) -> Args:
    """torch.func.jvp without forward mode: a pullback is linear in what it is given, and its own pullback pushes.

    The latter is the same everywhere, but where the pullback takes logarithms of what it is given, which is not zeros.
    """
    results, pull, *aux = torch.func.vjp(function, *primals, has_aux=has_aux)
    _, push = torch.func.vjp(pull, pytree.tree_map(torch.ones_like, results))
    return (results, push(tuple(tangents))[0], *aux)


def jacobian(
    function: Callable[..., Any],
    args: Args,
    argnums: Any = 0,
    has_aux: Any = False,
    randomness: Any = "error",
) -> Any:
    """torch.func.jacfwd in the same way: columns, one for each number of the arguments."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    leaves, spec = pytree.tree_flatten([args[number] for number in numbers])

    def by(place: int) -> Any:
        def column(tangent: torch.Tensor) -> Args:
            def of_one(value: torch.Tensor) -> Any:
                given = list(args)
                chosen = pytree.tree_unflatten([*leaves[:place], value, *leaves[place + 1 :]], spec)
                for number, one in zip(numbers, chosen):
                    if number >= 0:  # by a negative number torch.func.jacfwd differentiates nothing
                        given[number] = one
                return function(*given)

            return pushed(of_one, (leaves[place],), (tangent,), has_aux)[1:]

        x: torch.Tensor = leaves[place]
        basis = torch.eye(x.numel(), dtype=x.dtype, device=x.device).view(-1, *x.shape)
        columns, *aux = torch.func.vmap(column, randomness=randomness)(basis)
        return pytree.tree_map(lambda each: each.movedim(0, -1).reshape(*each.shape[1:], *x.shape), columns), aux

    def nested(*each: torch.Tensor) -> Any:
        by_argument = pytree.tree_unflatten(list(each), spec)
        return by_argument[0] if isinstance(argnums, int) else tuple(by_argument)

    parts = [by(place) for place in range(len(leaves))]
    result = pytree.tree_map(nested, *[part for part, _ in parts])
    return (result, pytree.tree_map(lambda each: each[0], parts[0][1][0])) if has_aux else result
