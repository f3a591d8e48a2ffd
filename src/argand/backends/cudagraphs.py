"""Which programs are recorded as CUDA graphs, and why others are not."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from argand.backends.targets import devices_in
from argand.graph import compat
from argand.graph.nodes.program import AtenProgram
from argand.graph.operators.custom_backward import custom_backward
from argand.graph.operators.random_ops import draws_seed, of_generators, random_ops
from argand.runtime.gpu.cuda_graphs.graphs import Roles
from argand.runtime.gpu.cuda_graphs.recorder import Recorder, recorder_of
from argand.runtime.gpu.cuda_graphs.stored_recordings import not_recorded, recorded
from argand.runtime.host import HostCall
from argand.runtime.kernels.recurrent import recurrent_ops

# All that these do, they do on the device. What others do on the host would be done once, not in each call.
_NAMESPACES = ("aten", "prims", "argand")
FEWEST_NODES = 12  # of a program that is recorded though nobody asked for it
_ON_DATA = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_LOOKUPS = frozenset(
    getattr(torch.ops.aten, name).default if name.endswith("put") else getattr(torch.ops.aten, name).Tensor
    for name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put")
)


def with_cuda_graphs(
    program: AtenProgram,
    call: HostCall,
    recorder: Callable[[int], Recorder] = recorder_of,
    kind: str = "cuda",
    *,
    asked: bool = True,
) -> HostCall:
    """`call`, recorded as a CUDA graph and replayed; or what calls it, after saying why not.

    Arguments:
        call: of the program's graph.
        recorder: the recorder of a device with an index.
        kind: of the devices that have recorders.
        asked: whether the program asked for it; else graphs are recorded that gain time by it.
    """
    name = f"model__{program.model}_{program.kind}"
    devices = devices_in(program)
    if all(device.type == "cpu" for device in devices) and kind != "cpu":
        return call  # nobody expects one; the log says so for every graph of the CPU
    reason = why_not(program, devices, kind) or ("" if asked else _why_not_unasked(program))
    if reason:
        return not_recorded(call, reason, name=name, kind=program.kind, asked=asked)
    index = devices[0].index
    inputs = program.inputs
    return recorded(
        call,
        recorder,
        index if index is not None or kind != "cuda" else torch.cuda.current_device(),
        name=name,
        kind=program.kind,
        asked=asked,
        roles=Roles(
            lasting=frozenset(position for position, spec in enumerate(inputs) if spec.kind == "constant"),
            written=frozenset(m.input for m in program.mutations if not m.differentiable),
            taken=program.taken,
            kept=program.kept,
            varying=bool(program.scalars),
            draws=any(_draws(node) for node in program.graph.nodes),
            seeded=any(draws_seed(node.target) for node in program.graph.nodes),
        ),
    )


def why_not(program: AtenProgram, devices: list[torch.device], kind: str = "cuda") -> str:
    """Why a program cannot be recorded; empty if it can.

    Arguments:
        devices: of its tensors.
        kind: the kind of device that has recorders.
    """
    if program.leaves or any(spec.kind == "leaf" for spec in program.inputs):
        return "it makes leaves of autograd"
    others = sorted({device.type for device in devices} - {kind})
    if others:
        return f"a tensor is on {'the CPU' if others[0] == 'cpu' else others[0]}"
    if len(devices) != 1:
        return "its tensors are on several devices" if devices else "it computes nothing on a device"
    return next((why for node in program.graph.nodes if (why := _why_not(node))), "")


def _why_not_unasked(program: AtenProgram) -> str:
    """Why a program is not recorded that nobody asked to record."""
    if program.scalars:
        return "its sizes vary"
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        return "CUDA_LAUNCH_BLOCKING is set, to see each kernel fail where it is launched"
    if any(node.target is recurrent_ops().recurrence for node in program.graph.nodes):
        return ""  # many kernels in one call
    calls = sum(node.op == "call_function" for node in program.graph.nodes)
    return "" if calls >= FEWEST_NODES else f"it has {calls} operations only"


def _why_not(node: fx.Node) -> str:
    """Why a node cannot be recorded."""
    if node.op != "call_function" or node.target is operator.getitem:
        return ""
    func: Any = node.target
    if not isinstance(func, torch._ops.OpOverload):
        return "" if not _shows_tensors(node) else f"{node.name} is no operator"
    if func is custom_backward().custom_backward:
        return f"what the backward of {node.args[0]} does besides computing is unknown"
    if of_generators(func):
        return f"{func} sets or reads the state of a random number generator"
    if func.namespace not in _NAMESPACES:
        return f"what {func} does besides computing is unknown"
    if _by_mask(node) if func in _LOOKUPS else any(tag in func.tags for tag in _ON_DATA):
        return f"the result of {func} depends on data in its size, or is a number"
    if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((node.args, node.kwargs))):
        return f"{func} draws from a generator of the program's own"
    return ""


def _draws(node: fx.Node) -> bool:
    """Whether a kernel draws random numbers itself, unlike those that compute them of a seed."""
    func: Any = node.target
    tagged = isinstance(func, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in func.tags
    if not tagged or func is random_ops().seed:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = compat.bound_arguments(func, node.args, node.kwargs)
    dropout = [given.get(name, 0.0) for name in ("dropout_p", "dropout") if name in names]
    return not dropout or any(value != 0.0 for value in dropout)


def _by_mask(node: fx.Node) -> bool:
    """Whether a lookup is by a mask, which is turned into positions by the host; by positions the size is theirs."""
    indices: Any = node.args[1]
    values = [index.meta.get("val") for index in indices if isinstance(index, fx.Node)]
    return any(getattr(value, "dtype", torch.bool) in (torch.bool, torch.uint8) for value in values)


def _shows_tensors(node: fx.Node) -> bool:
    """Arithmetic on sizes is between numbers alone."""
    values = [node.meta.get("val"), *(each.meta.get("val") for each in node.all_input_nodes)]
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values))
