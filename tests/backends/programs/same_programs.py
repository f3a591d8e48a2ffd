"""Whether two programs compute the same in the same way, whatever their nodes are called and what they return comes first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from argand.autograd.partitioning.partition import Partition
from argand.autograd.tracing.joint import JointProgram
from argand.graph.nodes.program import AtenProgram
from argand.runtime.tape.plan import Slot

Digests = dict[fx.Node, str]


def of_program(program: AtenProgram) -> tuple[Any, ...]:
    """What a program computes and how its results become the user's."""
    values = _digests(program, {})
    return tuple(values[node] for node in _returned(program)), _facts(program)


def of_halves(joint: JointProgram, cut: Partition) -> dict[str, Any]:
    """The same of a forward and backward, with what passes between them."""
    forward = _digests(cut.forward, {})
    returned = [forward[node] for node in _returned(cut.forward)]
    given = {node: _kept(slot, cut, forward, returned) for node, slot in zip(cut.backward.placeholders, cut.arguments)}
    backward = _digests(cut.backward, given)
    values = [backward[node] for node in _returned(cut.backward)]
    arguments = [_kept(slot, cut, forward, returned) for slot in cut.arguments]
    gradients = {
        position: values[slot.index] if slot.kind == "value" else _kept(slot, cut, forward, returned)
        for position, slot in cut.gradients.items()
    }
    return {
        "results": returned[: cut.results],
        "kept": sorted(returned[cut.results :]),
        "only kept": sorted(returned[position] for position in cut.forward.kept),
        "arguments": sorted(arguments),
        "taken": sorted(arguments[position] for position in cut.backward.taken),
        "specs": sorted(
            (given[node], str(spec.spec), spec.kind)
            for node, spec in zip(cut.backward.placeholders, cut.backward.inputs)
        ),
        "gradients": gradients,
        "other": (cut.seeds, cut.passed, cut.opaque),
        "forward": _facts(cut.forward),
        "joint": (
            joint.results,
            joint.differentiable,
            sorted(joint.gradients),
            joint.tape,
            joint.plain,
            joint.enables_grad,
        ),
        "inputs": (joint.program.inputs, joint.program.num_args, joint.program.specialised),
    }


def _facts(program: AtenProgram) -> tuple[Any, ...]:
    constants = {name: id(tensor) for name, tensor in program.constants.items()}
    plan = program.inputs, program.outputs, program.mutations, constants, program.num_args, program.specialised
    return *plan, [node.name for node in program.placeholders] == [spec.name for spec in program.inputs]


def _returned(program: AtenProgram) -> Iterable[fx.Node]:
    returned: Any = program.output_node.args[0]
    return returned  # type: ignore[no-any-return]


def _kept(slot: Slot, cut: Partition, forward: Digests, returned: list[str]) -> str:
    if slot.kind in ("input", "data"):
        return f"{slot.kind} of {forward[cut.forward.placeholders[slot.index]]}"
    return returned[slot.index] if slot.kind == "output" else f"{slot.kind} {slot.index}"


def _digests(program: AtenProgram, given: Mapping[fx.Node, str]) -> Digests:
    """A text for each node that is equal for equal computations."""
    digests: Digests = {}
    placeholders = iter(program.inputs)
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "placeholder":
            spec = next(placeholders)
            what: Any = given.get(node, (spec.kind, spec.index, spec.name if spec.index < 0 else ""))
        elif node.op == "get_attr":
            what = str(program.constants[str(node.target)])
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: digests[arg])
            marks = "backward" in node.meta, node.meta.get("recompute"), node.meta["origin"]
            what = str(node.target), str(args), str(kwargs), marks
        text = f"{what}{_metadata(node.meta['val'])}{node.meta['device']}"
        digests[node] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def _metadata(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
    return str([_metadata(item) for item in value]) if isinstance(value, (tuple, list)) else str(value)
