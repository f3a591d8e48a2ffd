"""Branches on data of which one side only raises: the graph checks that the program takes the other one.

`if not mask.all(): raise ValueError(...)`, `assert (x > 0).all()`: capture goes on as if the check held. When it does
not, the graph raises before anything was done, and the frame's own code runs instead (rerun.py), with its exception.
"""

from __future__ import annotations

from typing import Any

import torch

from argand.bytecode.instruction import Instruction
from argand.capture.facts import compat
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args
from argand.capture.facts.interfaces import GraphBuilder, Interpreter
from argand.capture.facts.values.symbolic import SymbolicBool
from argand.capture.metadata import data_errors
from argand.capture.objects import operators
from argand.capture.record import constants
from argand.capture.sizes import symbolic_ops, unbacked_ops

_LEAVES = frozenset(("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR", "SEND"))
_RAISES = frozenset(("RAISE_VARARGS", "RERAISE"))
_FARTHEST = 200


def truth(interp: Interpreter, frame: Frame, value: object, jumps_if: bool, target: int) -> bool:
    """`operators.truth` of the value that a conditional jump looks at.

    Arguments:
        jumps_if: the truth value with which it jumps.
        target: where to.
    """
    if type(value) is SymbolicBool or interp.is_tensor(value):
        if type(value) is SymbolicBool and jumps_if and symbolic_ops.asserted(interp, frame, value):
            return True
        for wanted in (True, False):
            otherwise = target if jumps_if is not wanted else frame.pc
            if _only_raises(frame.program.instructions, frame.program.index, otherwise):
                if _hold(interp.state.graph, value, wanted):
                    return wanted
                break
    return operators.truth(interp, value)


def _only_raises(instructions: list[Instruction], index: dict[Instruction, int], start: int) -> bool:
    """Whether every way on from an instruction ends in a `raise`."""
    todo, seen = [start], set()
    raises = False
    while todo:
        at = todo.pop()
        while at not in seen:
            seen.add(at)
            inst = instructions[at]
            if inst.opname in _LEAVES or len(seen) > _FARTHEST:
                return False
            if inst.opname in _RAISES:
                raises = True
                break
            if inst.target is not None:
                todo.append(index[inst.target])
                if inst.is_unconditional_jump:
                    break
            at += 1
    return raises


def _hold(builder: GraphBuilder, value: Any, wanted: bool) -> bool:
    """Make the check part of the graph; False where that cannot be."""
    if builder.graph is not builder.root:
        return False
    if type(value) is SymbolicBool:
        return data_errors.rerun_on_error(builder) and _hold_number(builder, value, wanted)
    with torch._C.DisableTorchFunction():
        info = builder.tensors.get(id(value))
        if info is None or value.numel() != 1 or info.dynamic is not None or value.dtype.is_complex:
            return False
        if constants.value_of(builder, value) is not None or not data_errors.rerun_on_error(builder):
            return False
        if value.dtype is not torch.bool or not wanted:
            value = builder.call(torch.ne if wanted else torch.eq, (value, 0), {})
        if info.device.type != "cpu":
            value = builder.call(torch.Tensor.to, (value, "cpu"), {})  # a failed assertion on a GPU would be its end
        node = builder.node_of(builder.tensors[id(value)])
    text = "a check of the program does not hold"
    _keep(builder, torch.ops.aten._assert_async.msg, (node, text))
    return True


def _hold_number(builder: GraphBuilder, condition: SymbolicBool, wanted: bool) -> bool:
    if not wanted:
        condition = SymbolicBool(condition.dynamics, condition.relation.negated())
    _keep(builder, unbacked_ops.hold, (unbacked_ops.check(builder, condition),))
    return True


def _keep(builder: GraphBuilder, target: object, args: Args) -> None:
    node = compat.new_node(builder.graph, "call_function", target, args, {})
    builder.annotate(node)
    builder.kept.add(node)
    builder.calls += 1
