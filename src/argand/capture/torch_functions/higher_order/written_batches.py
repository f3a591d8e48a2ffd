"""Functions given to vmap and functionalize that write to their arguments: the body gets copies, and the arguments get
the values when it is over."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.values.tensor_info import Scope
from argand.capture.torch_functions import hops
from argand.capture.torch_functions.higher_order import subgraphs
from argand.graph.compat import storage_address
from argand.quick_dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Writes:
    """What a function writes to its arguments.

    Arguments:
        numbers: which of its tensors.
        given: these tensors, outside.
        values: what the body sees for them; results of it behind those of the function.
        dims: for vmap, which dimension of each is the batch.
        returned: by place among the results: (the number in `given` of what it is, the dimension of its batch).
    """

    numbers: list[int]
    given: list[torch.Tensor]
    values: list[torch.Tensor]
    dims: list[int | None]
    returned: dict[int, tuple[int, int]] = field(default_factory=dict)

    def out_dims(self, result: subgraphs.Flat, out_dims: object) -> object:
        """Where the batches of the results are, and then of the values."""
        if len(result.leaves) == 1 and isinstance(out_dims, tuple) and len(out_dims) == 1:
            out_dims = out_dims[0]  # of a single tensor
        each = pytree._broadcast_to_and_flatten(out_dims, result.spec) or []
        known = {id(value): number for number, value in enumerate(self.values)}
        for place, (leaf, dim) in enumerate(zip(result.leaves, each)):
            number = known.get(id(result.tensors[leaf.index])) if type(leaf) is hops.Place else None
            if number is not None and dim is not None:
                self.returned[place] = number, dim
        return out_dims, self.dims

    def copy_first(self, body: fx.GraphModule) -> None:
        """Have the body compute with copies."""
        inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
        for number in self.numbers:
            with body.graph.inserting_after(inputs[-1]):
                copy = body.graph.call_function(torch.clone, (inputs[number],))
            for user in [user for user in inputs[number].users if user is not copy]:
                user.replace_input_with(inputs[number], copy)

    def written_back(self, builder: GraphBuilder, results: object) -> object:
        """The function's results of those of the body; those that are arguments are views of these, as in eager."""
        assert isinstance(results, tuple)
        results, values = results
        leaves, spec = pytree.tree_flatten(results)
        with torch._C.DisableTorchFunction():
            for tensor, value in zip(self.given, values):
                builder.call(torch.Tensor.copy_, (tensor, value), {})
            for place, (number, dim) in self.returned.items():
                leaves[place] = builder.call(torch.movedim, (self.given[number], self.dims[number], dim), {})
        return pytree.tree_unflatten(leaves, spec)


def of(
    state: CaptureState, scope: Scope, flat: subgraphs.Flat, inputs: list[torch.Tensor], result: subgraphs.Flat,
    dims: list[int | None] | None,
) -> Writes | None:  # fmt: skip
    """What the function that was recorded in `scope` writes to its arguments; None where it does not.

    Raises:
        GraphBreak: it writes to another tensor, or to one that it also keeps, or that is not mapped over.
    """
    roots = {root for _, root in subgraphs.written(state.graph, scope)}
    if not roots:
        return None
    numbers = [number for number, tensor in enumerate(inputs) if state.tensor_info(tensor).node in roots]
    others = [tensor for number, tensor in enumerate(flat.tensors) if number not in numbers]
    changed = _storages([flat.tensors[number] for number in numbers])
    alone = len(changed) == len(numbers) == len(roots)
    alone = alone and not changed & _storages([*others, *(info.tensor for info in scope.order)])
    if dims is not None:  # what vmap returns of them shares their memory
        kept = [tensor for tensor in result.tensors if all(tensor is not each for each in inputs)]
        inner = _storages([inputs[number] for number in numbers])
        alone = alone and not inner & _storages(kept) and all(dims[number] is not None for number in numbers)
    if not alone:
        subgraphs.refuse_writes(state.graph, scope)
    given, values = ([tensors[number] for number in numbers] for tensors in (flat.tensors, inputs))
    return Writes(numbers, given, values, [] if dims is None else [dims[number] for number in numbers])


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    with torch._C.DisableTorchFunction():
        return {storage_address(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)}
