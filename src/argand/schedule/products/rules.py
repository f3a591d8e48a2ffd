"""Products that are something else than a call of ATen's product on a GPU, by rule: measured on an H200.

* gelu (by tanh) or relu behind a product with a bias is computed by the library's own kernel: of bfloat16 matrices
  (4096, 768) and (768, 3072) in 36 us, instead of 32 us and a kernel of 10 us.
* A product whose rows of results do not begin at multiples of 16 bytes is a kernel of argand's: (4096, 768) and (768,
  50257) take it 0.66 ms; with zeros appended to the right side, and cut off again, the library's takes 0.95 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from argand.graph.sizes.expr import as_int
from argand.ir.kernel import KernelPlan, Product, Schedule, Step
from argand.ir.loops import ExternNode, TensorRef, Value, tensor_refs
from argand.schedule.products.kernels import Proposal, adopt, named, product_names, proposals, tiles_for, with_tile

ACTIVATED = "torch._addmm_activation"
_UNEVEN_LEAST_TERMS = 1 << 30
_UNEVEN_MOST_INNER = 2048  # with more terms in a sum the library gains more than appended zeros cost
_EVEN = 8  # elements of 16 bits: 16 bytes

# What lowering makes of `gelu(x, approximate="tanh")` and `relu(x)`; whether it is the former.
_CUBE = "add(x, mul(0.044715, mul(mul(x, x), x)))"
_GELU = f"mul(mul(0.5, x), add(1.0, tanh(mul(0.7978845608028654, {_CUBE}))))"
_ACTIVATIONS = {_GELU: True, "maximum(0.0, x)": False}


def choose_by_rule(schedule: Schedule) -> int:
    """Replace such products, in place; returns how many."""
    if not any(target.product_kernels for target in schedule.targets.values()):
        return 0
    names = product_names(schedule)
    chosen: list[tuple[Proposal, Step]] = []
    for proposal in proposals(schedule, "ieee"):
        step = activated(schedule, proposal) or _uneven(schedule, proposal, names)
        if step is not None:
            chosen.append((proposal, step))
    if chosen:
        adopt(schedule, chosen)
    return len(chosen)


# ----------------------------------------------------------------------- activations


def activated(schedule: Schedule, proposal: Proposal) -> ExternNode | None:
    """The library's call that does the same as a proposed kernel; None where there is none."""
    product, stage = proposal.plan.product, proposal.plan.stages[-1]
    node = schedule.steps[proposal.product]
    if product is None or product.bias is None or len(proposal.replaced) != 2 or not isinstance(node, ExternNode):
        return None
    if not schedule.targets[proposal.plan.device].activated_products:
        return None
    gelu = _ACTIVATIONS.get(_function(stage.body.statements, product))
    if len(proposal.plan.outputs) != 1 or gelu is None:
        return None
    (out,) = proposal.plan.outputs
    if any(ref.buffer == out for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations]))):
        return None
    product_buffer = schedule.buffers[node.outputs[0] or ""]
    if schedule.buffers[out].dtype is not product_buffer.dtype or (
        out in schedule.aliases and out not in proposal.freed
    ):
        return None
    target = torch.ops.aten._addmm_activation.default
    return replace(
        node, target=target, kwargs={"use_gelu": gelu}, outputs=(out,), out_variant=ACTIVATED,
        origins=proposal.plan.origins,
    )  # fmt: skip


def _function(statements: Sequence[Value], product: Product) -> str:
    """What a stage stores in the product's place, as a function of its value "x"; "" where it does anything else."""
    *others, store = statements
    loads = [value for value in others if value.op == "load"]
    if store.op != "store" or len(loads) != 1 or loads[0].args[0] != product.result or store.args[3]:
        return ""
    value: Value = store.args[2]
    if store.args[1] is not loads[0].args[1]:
        return ""
    return _text(value.args[0] if value.op == "to_dtype" else value)


def _text(value: Value) -> str:
    if value.op == "load" or (value.op == "to_dtype" and value.args[0].op == "load"):
        return "x"
    if value.op == "constant":
        return repr(value.args[0])
    return f"{value.op}({', '.join(_text(arg) if isinstance(arg, Value) else str(arg) for arg in value.args)})"


# ----------------------------------------------------------------------- uneven rows


def _uneven(schedule: Schedule, proposal: Proposal, names: dict[str, str]) -> KernelPlan | None:
    plan = proposal.plan
    assert plan.product is not None  # it is what a proposal is about
    _, rows, columns, inner = plan.product.sizes
    tiles = tiles_for(plan, schedule.targets[plan.device])
    if plan.buffers[plan.product.result].dtype.itemsize != 2 or not tiles:
        return None
    if columns % _EVEN == 0 or inner % _EVEN or inner > _UNEVEN_MOST_INNER:
        return None
    if rows * columns * inner < _UNEVEN_LEAST_TERMS:
        return None
    if rows * columns * inner < _UNEVEN_LEAST_TERMS or not (
        _even_rows(plan.product.left, 1) and _even_rows(plan.product.right, 0)
    ):
        return None
    return named(with_tile(proposal, tiles[0]), names)


def _even_rows(ref: TensorRef, along: int) -> bool:
    """Whether a matrix is contiguous along a dimension, and what is so begins at multiples of 16 bytes."""
    step, other, offset = (as_int(n) for n in (ref.stride[along], ref.stride[1 - along], ref.offset))
    return len(ref.size) == 2 and step == 1 and (other or 1) % _EVEN == 0 and (offset or 0) % _EVEN == 0
