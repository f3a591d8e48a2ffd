"""`trace_joint_dynamic`: one joint program of forward and backward for many sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from argand.autograd.tracing.dynamic import Assignment, NotGeneral, Prepare, Tracing
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.trace import trace_joint
from argand.graph.nodes.program import AtenProgram, TensorSpec, general
from argand.graph.sizes.expr import Expr, Sym


def trace_joint_dynamic(gm: fx.GraphModule, example_inputs: Sequence[Any], prepare: Prepare) -> JointProgram:
    """As `trace_joint`, for every size that meets the program's `conditions`.

    Arguments:
        gm: a torch-level graph with `meta["symbols"]`.
        example_inputs: one value per placeholder.
        prepare: applied to each concrete joint trace before they are compared (the graph passes).

    Raises:
        NotGeneral: what runs depends on the sizes in a way that no expression describes.
        AutogradError: the graph cannot be differentiated ahead of time.
    """
    tracing = _JointTracing(gm, example_inputs, prepare)
    program = tracing.run()
    joint_program = next(joint for joint in tracing.joints if joint.program is program)
    program.inputs = [
        replace(spec, spec=general(spec.spec, node)) if spec.kind in ("tangent", "leaf") else spec
        for spec, node in zip(program.inputs, program.placeholders)
    ]
    return joint_program


class _JointTracing(Tracing):
    """Generalises joint traces."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], prepare: Prepare) -> None:
        super().__init__(gm, example_inputs, prepare)
        self.joints: list[JointProgram] = []

    def _generalised(
        self, assignments: list[Assignment], pinned: frozenset[Sym], domain: Sequence[Expr] = ()
    ) -> tuple[AtenProgram, bool]:
        general = super()._generalised(assignments, pinned, domain)
        joints = [joint for joint in self.joints if any(joint.program is each for each in self.programs)]
        kinds = {(joint.results, joint.differentiable, joint.gradients, joint.tape, joint.passed) for joint in joints}
        if len(kinds) != 1:
            raise NotGeneral("which results have gradients depends on the sizes")
        return general

    def _traced(self, values: list[Any], layouts: dict[int, TensorSpec]) -> AtenProgram:
        joint = trace_joint(self.gm, values, layouts=layouts)
        self.joints.append(joint)
        return joint.program
