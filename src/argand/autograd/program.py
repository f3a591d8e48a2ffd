"""The product of this stage. Defined in `argand.graph.nodes.program`, so that the layers below may import it too."""

from argand.graph.nodes.program import AtenProgram, InputSpec, MutationSpec, OutputSpec, TensorSpec, ViewReplay

__all__ = ["AtenProgram", "InputSpec", "MutationSpec", "OutputSpec", "TensorSpec", "ViewReplay"]
