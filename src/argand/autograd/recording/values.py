"""Values of a trace: functional values with their view relation, and the tensor that user code sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from argand.errors import InternalError
from argand.graph import compat, wrappers
from argand.graph.dtensors import dispatches_itself
from argand.graph.metadata.specs import Spec


class AliasGroup:
    """All values that share one storage; `version` counts the writes to it."""

    __slots__ = ("root", "version")

    def __init__(self, root: Value) -> None:
        self.root = root
        self.version = 0


class Value:
    """One tensor of the program: what eager would hold, and the functional node that computes it.

    `node` is right while `seen` equals the group's version; after a write through another alias it is made anew from
    `parent` by `view` (op, further arguments, keywords). A root has no parent and is always up to date. `held` is the
    layout that the node's result really has; it differs from `spec` after a write to a tensor with holes.
    """

    __slots__ = ("group", "held", "input", "node", "parent", "pick", "seen", "spec", "view")

    def __init__(self, spec: Spec, node: fx.Node | None, held: Spec | None = None) -> None:
        self.spec = spec
        self.held = held or spec
        self.node = node
        self.pick: tuple[fx.Node, int] | None = None  # result `int` of a multi-result node, until somebody reads it
        self.group: AliasGroup | None = None
        self.parent: Value | None = None
        self.view: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
        self.seen = 0
        self.input = -1  # which graph input it is the root of

    @property
    def root(self) -> Value:
        return self.group.root if self.group is not None else self


class TraceTensor(torch.Tensor):
    """What torch functions see while a graph is traced: a tensor without data on its logical device.

    `value` is what it holds; `constant` the real tensor, for a literal of the program; `apart`: it is a tensor of its
    own over the memory of another, whose data may be set.
    """

    value: Value
    apart: bool = False
    constant: torch.Tensor | None

    __torch_function__ = compat.disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(wrappers.is_wrapper(kind) or dispatches_itself(kind) for kind in types):
            return NotImplemented  # that class decides
        # Reached only when a tensor outlives its trace or is used by another thread.
        raise InternalError(f"{func} ran on a tensor of a trace that is not active")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"TraceTensor({list(self.shape)}, {self.dtype}, {self.value.node})"


def make_tensor(value: Value) -> TraceTensor:
    """A new tensor object that holds a value."""
    spec = value.spec
    tensor = compat.make_wrapper(TraceTensor, spec.size, spec.stride, spec.offset, spec.dtype, spec.device)
    tensor.value = value
    tensor.constant = None
    return tensor
