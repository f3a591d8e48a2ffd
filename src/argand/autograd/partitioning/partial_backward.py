"""The part of a backward that runs when only some results of the forward got a gradient.

Eager runs the history of these results alone. Zeros in place of the other gradients are not the same: 0 * inf is nan
where eager computes nothing, and inputs that no gradient reaches get zeros instead of None. So what depends on missing
gradients alone is taken out of the graph: a backward is linear in the gradients that it is given, and for the
operations in the tables below it is known which zeros make a result zero. Any other operation gets its zeros as a
tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.passed_results import Backward
from argand.autograd.tracing.tape import Tape
from argand.graph import compat
from argand.graph.nodes.meta import eliminate_dead
from argand.graph.nodes.program import AtenProgram, copied
from argand.graph.operators.aten_names import operator_name
from argand.graph.origin import NodeOrigin
from argand.graph.sizes.symbolic import MetaTensor, contiguous_meta, is_tensor, strided_meta
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.plan import Slot

aten = torch.ops.aten


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# zero when the first argument is
_OF_FIRST = _names(
    "neg sum mean view _unsafe_view reshape _reshape_alias expand permute t transpose clone _to_copy slice select "
    "index index_select gather unsqueeze squeeze alias detach flip roll tril triu cumsum diagonal unfold repeat div "
    "real imag conj _conj conj_physical _neg_view view_as_real view_as_complex split split_with_sizes unbind chunk "
    "contiguous movedim _fft_r2c _fft_c2r _fft_c2c as_strided lift_fresh_copy rot90 trace diag_embed"
)
# zero when one of the arguments is
_OF_ANY = _names("mul mm bmm mv dot vdot outer")
# zero when all arguments at these positions are
_OF_ALL: dict[str, tuple[int, ...]] = {
    "add": (0, 1), "sub": (0, 1), "cat": (0,), "stack": (0,), "where": (1, 2), "masked_fill": (0, 2),
    "slice_scatter": (0, 1), "select_scatter": (0, 1), "diagonal_scatter": (0, 1), "as_strided_scatter": (0, 1),
    "index_put": (0, 2), "_unsafe_index_put": (0, 2), "scatter_add": (0, 3), "scatter": (0, 3), "index_add": (0, 3),
    "constant_pad_nd": (0, 2), "complex": (0, 1), "full": (1,), "zeros": (), "zeros_like": (), "new_zeros": (),
    "getitem": (0,), "masked_scatter": (0, 2),
}  # fmt: skip
# zero when the first of these is and one of the others
_PRODUCT_SUMS = _names("addmm baddbmm addmv")
# zeros that formulas make, and views of them
_CONSTANT = _names("full zeros zeros_like new_zeros expand view unsqueeze permute")


@dataclass(frozen=True, slots=True)
class BackwardPart:
    """A backward for some gradients.

    Arguments:
        program: the graph.
        arguments: what it is called with.
        gradients: input position → where its gradient is found; no other input has one.
    """

    program: AtenProgram
    arguments: list[Slot]
    gradients: dict[int, Slot]


def backward_part(cut: Backward, tape: Tape, given: Sequence[bool]) -> BackwardPart:
    """The backward for the results that are `given`, in a graph of its own where it is not all of the backward.

    Arguments:
        given: per differentiable result, whether it got a gradient.
    """
    returned = {slot.index for slot in cut.gradients.values() if slot.kind == "value"}
    if all(given) and len(returned) == len(cut.backward.output_node.args[0]):
        return BackwardPart(cut.backward, list(cut.arguments), dict(cut.gradients))
    own = copied(cut.backward)
    graph, own.arrivals, own.rewritten, own.layers = own.graph, (), False, None
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    missing = [
        node for node, slot in zip(placeholders, cut.arguments) if slot.kind == "tangent" and not given[slot.index]
    ]
    zeros = _without(graph, missing)
    gradients = _remaining(cut, tape, graph, given, zeros)
    eliminate_dead(graph)
    read = {*gradients.values(), *[slot for slot in cut.arguments if slot.kind == "number"]}  # sizes read numbers
    kept = [i for i, node in enumerate(placeholders) if node.users or cut.arguments[i] in read]
    for i, node in enumerate(placeholders):
        if i not in kept:
            graph.erase_node(node)
    own.inputs = [own.inputs[i] for i in kept]
    own.taken = frozenset(place for place, i in enumerate(kept) if i in cut.backward.taken)
    return BackwardPart(own, [cut.arguments[i] for i in kept], gradients)


def _remaining(
    cut: Backward, tape: Tape, graph: fx.Graph, given: Sequence[bool], zeros: set[fx.Node]
) -> dict[int, Slot]:
    """Gradients of the inputs that the given results lead to; the graph then returns no others."""
    reached = tape.leads_to(given)
    output = next(iter(reversed(graph.nodes)))
    values: tuple[fx.Node, ...] = output.args[0]
    gradients: dict[int, Slot] = {}
    returned: dict[fx.Node, int] = {}
    for position, slot in cut.gradients.items():
        if position not in reached:
            continue
        if slot.kind == "value":
            value = values[slot.index]
            if value in zeros:
                with graph.inserting_before(output):
                    value = _as_tensor(graph, value)
            slot = Slot("value", returned.setdefault(value, len(returned)))
        gradients[position] = slot
    output.args = (tuple(returned),)
    output.meta["val"] = tuple([node.meta["val"] for node in returned])
    return gradients


def _without(graph: fx.Graph, missing: Iterable[fx.Node]) -> set[fx.Node]:
    """Take out of the graph what only zeros reach; returns the nodes whose values are zeros for want of a gradient."""
    zeros = set(missing)
    constants: set[fx.Node] = set()  # zeros by themselves: a product with them is computed
    stand_ins: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        inputs = node.all_input_nodes
        wanting = [argument for argument in inputs if argument in zeros]
        constant = operator_name(node.target) in _CONSTANT
        if (wanting or constant) and _is_zero(node, zeros | constants if constants else zeros):
            (zeros if wanting else constants).add(node)
            continue
        other = _other_term(node, zeros) if wanting else None
        if other is not None:
            node.replace_all_uses_with(other)
            continue
        for argument in wanting:
            if argument not in stand_ins:
                with graph.inserting_before(node):
                    stand_ins[argument] = _as_tensor(graph, argument)
            node.replace_input_with(argument, stand_ins[argument])
    return zeros


def _is_zero(node: fx.Node, zeros: set[fx.Node]) -> bool:
    """Whether every element is known to be zero."""
    args, name = node.args, operator_name(node.target)

    def zero(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return bool(value) and all(map(zero, value))
        if isinstance(value, fx.Node):
            return value in zeros
        return type(value) in (int, float, bool) and value == 0

    if name in _OF_FIRST:
        return bool(args) and zero(args[0])
    if name in _OF_ANY:
        return any(isinstance(arg, fx.Node) and arg in zeros for arg in args[:2])
    if name in _PRODUCT_SUMS:
        return zero(args[0]) and (zero(args[1]) or zero(args[2]))
    if name in _OF_ALL:
        return all(zero(args[at]) if at < len(args) else name == "constant_pad_nd" for at in _OF_ALL[name])
    if "_backward" in name and isinstance(node.target, torch._ops.OpOverload):
        given = compat.bound_arguments(node.target, args, node.kwargs)
        tensors = [arg for key, arg in given.items() if key.startswith("grad") and isinstance(arg, fx.Node)]
        return bool(tensors) and all(map(zero, tensors))
    return False


def _other_term(node: fx.Node, zeros: set[fx.Node]) -> fx.Node | None:
    """What a sum is when one of its two terms is zero, where it has the sum's layout or is a gradient itself: autograd
    returns the only part of one as it came."""
    if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    one, two = node.args
    other = two if one in zeros else one
    if not isinstance(other, fx.Node) or other in zeros:
        return None
    have, want = other.meta["val"], node.meta["val"]
    same = have.dtype == want.dtype and tuple(have.shape) == tuple(want.shape)
    free = all(user.op == "output" for user in node.users)
    return other if same and (free or tuple(have.stride()) == tuple(want.stride())) else None


def _as_tensor(graph: fx.Graph, zero: fx.Node) -> fx.Node:
    """A tensor of zeros in place of a value that need not be computed; the value itself where its layout is odd."""
    val = zero.meta.get("val")
    if not is_tensor(val):
        return zero
    size, stride = tuple(val.shape), tuple(val.stride())
    if stride == tuple(contiguous_meta(size, val.dtype).stride()):
        return _full(graph, zero, size, val)
    if not isinstance(val, torch.Tensor):
        return zero
    order = sorted(range(len(size)), key=lambda dim: (-stride[dim], -size[dim], dim))
    dense = [1 if stride[dim] == 0 else size[dim] for dim in order]
    whole = torch.empty(dense, dtype=val.dtype, device="meta")
    back = [order.index(dim) for dim in range(len(size))]
    moved = whole.permute(back)
    if moved.expand(size).stride() != stride:
        return zero
    filled = _full(graph, zero, tuple(dense), whole)
    filled = _node(graph, zero, aten.permute.default, (filled, back), moved)
    if moved.shape != val.shape:
        filled = _node(graph, zero, aten.expand.default, (filled, list(size)), val)
    return filled


def _full(graph: fx.Graph, zero: fx.Node, size: tuple[Any, ...], val: MetaTensor) -> fx.Node:
    device = zero.meta["device"]
    filled = _node(graph, zero, aten.full.default, (list(size), 0), strided_meta(size, tuple(val.stride()), val.dtype))
    filled.kwargs = {"dtype": val.dtype, "device": device}
    return filled


def _node(graph: fx.Graph, zero: fx.Node, func: Any, args: tuple[Any, ...], val: MetaTensor) -> fx.Node:
    new = compat.new_node(graph, func, args, {})
    new.meta.update(zero.meta)
    new.meta.update(val=val, origin=NodeOrigin(zero.name, made_by="partition"))
    return new
