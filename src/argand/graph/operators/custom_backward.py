"""The backward of a program's own operator as one operator, where its values decide what it does.

Its formula is Python that cannot be recorded without the values (a loop over groups whose sizes are data, say). So the
operator is called once more with autograd, when the gradients are there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from argand.graph.operators.registration import Operators

_OWN = ("aten", "prims", "prim", "argand")


@functools.cache
def custom_backward() -> Operators:
    """Defines the op, once per process."""
    schema = "custom_backward(str name, Tensor[] tensors, Tensor[] grads, bool[] wanted) -> Tensor[]"
    return Operators({schema: {"CPU": _run, "CUDA": _run, "Meta": _sizes}})


def is_custom(target: Any) -> bool:
    """Whether what a node calls is an operator of the program's own, or of a library of its."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0] not in _OWN
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in _OWN


def casts_inside(target: Any) -> bool:
    """Whether a call is of an operator whose kernels are Python: what they compute with, autocast casts."""
    packet = getattr(target, "overloadpacket", target)
    defined: Any = torch.library._defs
    return is_custom(target) and packet._qualified_op_name in defined


def custom_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]] | None:
    """The overload that a call of a program's own operator is of, and its arguments in their order; None where calling
    it again might differ."""
    if isinstance(target, torch._ops.OpOverloadPacket) and target.overloads() == ["default"]:
        target = target.default
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in _OWN:
        return None
    schema = target._schema
    plain = not schema.is_mutable and all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
    given = [*args, *[kwargs[one.name] for one in schema.arguments[len(args) :] if one.name in kwargs]]
    tensors = all(isinstance(arg, torch.Tensor) for arg in given)
    tensors = tensors and len(given) == len(args) + len(kwargs) == len(schema.arguments)
    tensors = tensors and not any(one.kwarg_only for one in schema.arguments)
    only_tensors = schema.returns and all(isinstance(one.type, torch.TensorType) for one in schema.returns)
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    return (target, given) if plain and tensors and only_tensors and not seeded else None


def _run(name: str, tensors: Any, grads: Any, wanted: Sequence[bool]) -> list[torch.Tensor]:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    values = [tensor.detach().requires_grad_(want) for tensor, want in zip(tensors, wanted)]
    with torch.enable_grad():
        outputs = op(*values)
    results = [(outputs, grads[0])] if isinstance(outputs, torch.Tensor) else list(zip(outputs, grads))
    taped = [(result, grad) for result, grad in results if result.requires_grad]
    leaves = [value for value in values if value.requires_grad]
    gradients = torch.autograd.grad(
        [one for one, _ in taped], leaves, [grad for _, grad in taped], allow_unused=True, materialize_grads=True
    )
    return [_like(leaf, grad) for leaf, grad in zip(leaves, gradients)]


def _like(leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The gradient in a layout that is known before: in memory of its own, as the tensor lies."""
    return torch.empty_like(leaf, requires_grad=False).copy_(grad)


def _sizes(name: str, tensors: Any, grads: Any, wanted: Sequence[bool]) -> list[torch.Tensor]:
    return [torch.empty_like(tensor) for tensor, want in zip(tensors, wanted) if want]
