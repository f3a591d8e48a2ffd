"""Runs a function through trace_inference, lower and the reference interpreter, and compares with eager."""

from __future__ import annotations

import sys
import types
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from argand.autograd import trace_inference
from argand.graph.nodes.program import AtenProgram
from argand.ir.interpret import interpret, same_layout
from argand.ir.loops import ExternNode, LoopNode, Program
from argand.lower import lower
from argand.passes.pipeline import run_passes

# eager's own kernels round intermediate results in reduced precision
TOLERANCES = {torch.bfloat16: (1.6e-2, 5e-3), torch.float16: (2e-3, 1e-3)}


def graph_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph module that calls `function`, with one placeholder per tensor among its arguments."""
    graph = fx.Graph()
    tensors: list[torch.Tensor] = []
    leaves, tree = pytree.tree_flatten((args, kwargs))
    nodes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            nodes.append(graph.placeholder(f"x{len(tensors)}"))

    def call(*flat: Any) -> Any:
        values = iter(flat)
        full = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        positional, named = pytree.tree_unflatten(full, tree)
        return function(*positional, **named)

    graph.output(graph.call_function(call, tuple(nodes)))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


def compare(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """What differs in dtype, shape, layout or value, or ""."""
    if expected.dtype is not actual.dtype or expected.shape != actual.shape:
        return f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not same_layout(expected, actual.stride()):
        return f"strides {actual.stride()} instead of {expected.stride()} (size {tuple(expected.shape)})"
    try:
        rtol, atol = TOLERANCES.get(expected.dtype, (None, None))
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=rtol, atol=atol)
    except AssertionError as error:
        return str(error).split("\n\n")[0] + " " + str(error).split("\n\n")[-1][:200].replace("\n", " ")
    return ""


@dataclass
class Run:
    """What a run made: the traced and the lowered program, the interpreter's outputs, and inputs after mutation."""

    traced: AtenProgram
    program: Program
    outputs: list[Any]
    inputs: list[torch.Tensor]

    @property
    def loops(self) -> list[LoopNode]:
        return [node for node in self.program.nodes if isinstance(node, LoopNode)]

    @property
    def externs(self) -> list[ExternNode]:
        return [node for node in self.program.nodes if isinstance(node, ExternNode)]


def given_inputs(traced: AtenProgram, names: Sequence[str], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a program made of `traced` takes under these names: `tensors` or constants, copies of what is written to."""
    sources = {spec.name: spec for spec in traced.inputs}
    written = {traced.inputs[mutation.input].name for mutation in traced.mutations}
    inputs = []
    for name in names:
        spec = sources[name]
        tensor = tensors[spec.index] if spec.kind == "arg" else traced.constants[name]
        inputs.append(copied(tensor) if name in written else tensor)
    return inputs


def run_lowered(gm: fx.GraphModule, tensors: list[torch.Tensor], *, passes: bool = False) -> Run:
    """Trace, lower, verify and interpret."""
    traced = trace_inference(gm, tensors)
    if passes:
        run_passes(traced)
    program = lower(traced, check=True)
    inputs = given_inputs(traced, program.inputs, tensors)
    return Run(traced, program, interpret(program, inputs), inputs)


def check(
    function: Callable[..., Any], *args: Any, loops_only: bool | None = None, passes: bool = False, exact: bool = False
) -> Run:
    """Compare every output of `function(*args)` with eager's.

    Arguments:
        loops_only: require that no ATen kernel is called (True), or that one is (False).
        passes: run the ATen passes before lowering.
        exact: require equal bits.
    """
    gm, tensors = graph_of(function, args, {})
    with torch.no_grad():
        expected = pytree.tree_leaves(gm(*[tensor.clone() for tensor in tensors]))
        # clones of odd layouts are dense: views of inputs are compared on the inputs themselves
        if not any(_mutates(gm, tensors)):
            expected = pytree.tree_leaves(gm(*tensors))
    run = run_lowered(gm, tensors, passes=passes)
    compared = 0
    for spec, leaf in zip(run.traced.outputs, expected):
        if not isinstance(leaf, torch.Tensor) or spec.kind not in ("value", "alias_of_output"):
            continue
        actual = run.outputs[spec.index]
        if spec.view is not None:
            continue
        difference = compare(leaf, actual)
        assert not difference, difference
        if exact:
            assert torch.equal(leaf, actual)
        compared += 1
    assert compared or run.traced.mutations, "nothing was compared"
    if loops_only is not None:
        assert bool(run.externs) != loops_only, [str(node.target) for node in run.externs]
    return run


def _mutates(gm: fx.GraphModule, tensors: list[torch.Tensor]) -> list[bool]:
    before = [tensor._version for tensor in tensors]
    clones = [tensor.clone() for tensor in tensors]
    gm(*clones)
    return [clone._version != version for clone, version in zip(clones, [0] * len(before))]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same values that lies in memory of its own in the same way."""
    if is_odd(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return tensor.clone()
    storage = tensor.detach().untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def is_odd(tensor: torch.Tensor) -> bool:
    """Whether it cannot be cloned as others are: sparse, say."""
    return tensor.layout is not torch.strided


def is_closer(gm: Any, tensors: list[torch.Tensor], eager: torch.Tensor, ours: torch.Tensor) -> bool:
    """Whether a result in reduced precision is nearer to float32's than eager's is."""
    if eager.dtype not in TOLERANCES or eager.shape != ours.shape or eager.dtype is not ours.dtype:
        return False
    wide = [tensor.float() if tensor.dtype in TOLERANCES else tensor for tensor in tensors]
    for exact in pytree.tree_leaves(gm(*wide)):
        if isinstance(exact, torch.Tensor) and exact.shape == eager.shape:
            error, allowed = (ours.float() - exact).abs().max(), (eager.float() - exact).abs().max()
            if bool(error <= allowed * 1.1):
                return True
    return False


def op_database() -> list[Any]:
    """torch's descriptions of its operators with sample inputs."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # torch's own test base class wants it, the descriptions do not
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)
