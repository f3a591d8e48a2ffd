"""The entries of tracing, without gradients and with: `flex_attention` becomes one operator where it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from argand.autograd.recording.bases import with_bases
from argand.autograd.tracing import inference, joint
from argand.autograd.tracing.joint import JointProgram
from argand.graph.nodes.program import AtenProgram, TensorSpec


def trace_inference(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    layouts: Mapping[int, TensorSpec] | None = None,
    bases: bool = False,
) -> AtenProgram:
    """Trace a torch-level graph into a functional ATen program.

    Arguments:
        gm: graph of torch functions, methods, operators and `get_attr`s; `call_module` runs the module's forward.
        example_inputs: one value per placeholder: tensors (only their metadata is read) or plain Python values, which
            the program is specialised on.
        layouts: metadata to trace with in place of the example's own, by argument.
        bases: inputs that share memory may be written to; the program then holds for calls whose inputs share it in
            the same way (`program.bases`).

    Raises:
        AutogradError: the graph cannot be expressed as a functional ATen graph; run it eagerly.
    """
    return with_bases(lambda groups: inference.trace(gm, example_inputs, layouts, groups, _as_kernel), bases)


def trace_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    layouts: Mapping[int, TensorSpec] | None = None,
    bases: bool = False,
) -> JointProgram:
    """Trace a torch-level graph and its gradients into one functional ATen graph.

    Arguments:
        gm, example_inputs, layouts, bases: as for `trace_inference`; gradients are made for the inputs that require
            grad.

    Raises:
        AutogradError: the graph cannot be differentiated ahead of time; run it eagerly.
    """
    return with_bases(lambda groups: joint.trace(gm, example_inputs, layouts, groups, _as_kernel), bases)


def _as_kernel(*args: Any) -> Any:
    """`flex_attention` as one operator, where its device has kernels for it."""
    from argand.autograd.tracing.flex import stands_for  # with lowering and Triton's code, which most do not need

    return stands_for(*args)
