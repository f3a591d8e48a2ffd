"""Branches on data of which one side only raises: the graph checks that the program takes the other one.

`if not mask.all(): raise ValueError(...)`, `assert (x > 0).all()`: capture goes on as if the check held. When it does
not, the graph raises before anything was done, and the frame's own code runs instead (rerun.py), with its exception.

`if (variance < bound).any(): warnings.warn(...)` is taken for one of these too: the side that warns is not expected.
Nor is one that comes to a warning or a `raise` whichever way it goes on, as a factorisation that is tried again.

Of `assert up.all() or down.all()` neither alternative only raises at the first jump: the others are computed too, where
that is nothing but operations on tensors, and the graph checks that one of them holds.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from argand.bytecode.instruction import Instruction
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import Frame
from argand.capture.facts.handlers import Args
from argand.capture.facts.interfaces import GraphBuilder, Interpreter
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.symbolic import SymbolicBool
from argand.capture.metadata import data_errors
from argand.capture.objects import operators
from argand.capture.record import conditions, constants
from argand.capture.sizes import symbolic_ops, unbacked_ops
from argand.errors import GraphBreak

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
            instructions = frame.program.instructions
            warns = type(value) is not SymbolicBool and _begins_with_warning(instructions, otherwise)
            if warns or _ends_badly(instructions, frame.program.index, otherwise):
                if hold(interp.state.graph, value, wanted):
                    return wanted
                break
        else:
            if _one_holds(interp, frame, value, jumps_if, target):
                return jumps_if
        if type(value) is SymbolicBool:
            answer = conditions.ask_relation(interp.state.graph, value.relation)
            if type(answer) is bool:
                return answer
    return operators.truth(interp, value)


def _ends_badly(instructions: list[Instruction], index: dict[Instruction, int], start: int) -> bool:
    """Whether every way on from an instruction ends in a `raise`, or comes to a warning."""
    todo, seen = [start], set()
    raises = False
    while todo:
        at = todo.pop()
        while at not in seen:
            seen.add(at)
            inst = instructions[at]
            if inst.opname in _LEAVES or len(seen) > _FARTHEST:
                return False
            warns = _is_warning(inst) and _begins_with_warning(instructions, at)
            if inst.opname in _RAISES or warns:
                raises = True
                break
            if inst.target is not None:
                todo.append(index[inst.target])
                if inst.is_unconditional_jump:
                    break
            at += 1
    return raises


def _begins_with_warning(instructions: list[Instruction], start: int) -> bool:
    """Whether the statement at an instruction is a call of something that warns."""
    warns = False
    for inst in instructions[start : start + _FARTHEST]:
        if inst.opname == "POP_TOP":
            return warns
        if inst.target is not None or inst.opname in _LEAVES | _RAISES or inst.opname.startswith("STORE_"):
            return False
        warns |= _is_warning(inst)
    return False


def _is_warning(inst: Instruction) -> bool:
    """Whether an instruction loads something that warns, as far as its name says."""
    return inst.opname.startswith(("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")) and "warn" in str(inst.argval).lower()


_MOST = 4  # alternatives
_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL",
                    "PUSH_NULL", "PRECALL", "TO_BOOL"))  # fmt: skip
_OPERATORS = frozenset(("BINARY_OP", "COMPARE_OP", "UNARY_NOT", "UNARY_INVERT", "UNARY_NEGATIVE", "BINARY_SUBSCR"))
_ATTRIBUTES = frozenset(("LOAD_METHOD", "LOAD_ATTR"))
_NATIVE = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType | types.MethodWrapperType
_QUESTIONS = frozenset(words("all any isfinite isnan isinf abs eq ne lt le gt ge logical_not diff sum"))
"""Methods of tensors and functions of torch that values cannot make raise."""


def _one_holds(interp: Interpreter, frame: Frame, value: object, jumps_if: bool, target: int) -> bool:
    """Check in the graph that one of several conditions makes the program jump; False where that cannot be."""
    stack, start = list(frame.stack), frame.pc
    alternatives: tuple[object, ...] = (value,)
    instructions, index = frame.program.instructions, frame.program.index
    try:
        for _ in range(_MOST):
            jump = _run_question(interp, frame)
            if jump is None or jump.target is None or not _same_way(instructions, index[jump.target], target):
                return False
            if not jump.opname.endswith("IF_TRUE" if jumps_if else "IF_FALSE"):
                return False
            alternatives = (*alternatives, frame.stack.pop())
            if _ends_badly(instructions, index, frame.pc):
                return _hold_one(interp.state.graph, alternatives, jumps_if)
    except (GraphBreak, ObservedException):
        pass  # eager may not come there
    finally:
        frame.stack[:], frame.pc = stack, start
    return False


def _same_way(instructions: list[Instruction], a: int, b: int) -> bool:
    """Whether it makes no difference which of two instructions is next: compilers double short ways out."""
    while a != b:
        one, other = instructions[a], instructions[b]
        if (one.opname, one.argval) != (other.opname, other.argval) or one.target is not other.target:
            return False
        if one.opname in _LEAVES:
            return True
        if not one.opname.startswith("LOAD_CONST"):
            return False
        a, b = a + 1, b + 1
    return True


def _run_question(interp: Interpreter, frame: Frame) -> Instruction | None:
    """Run to the next conditional jump, whose value then is on the stack; None where more than tensors is asked."""
    while True:
        inst = frame.program.instructions[frame.pc]
        if inst.opname.startswith("POP_JUMP"):
            frame.pc += 1
            return inst
        if not _asks_tensors(interp, frame, inst):
            return None
        handler, arg = frame.program.ops[frame.pc]
        frame.pc += 1
        handler(interp, frame, arg)


def _asks_tensors(interp: Interpreter, frame: Frame, inst: Instruction) -> bool:
    known, stack = interp.state.graph.tensors, frame.stack
    if inst.opname in _LOADS:
        return True
    if inst.opname in _ATTRIBUTES:
        return inst.argval in _QUESTIONS and (stack[-1] is torch or id(stack[-1]) in known)
    if inst.opname == "CALL":
        count = inst.arg or 0
        called = next((part for part in stack[-count - 2 :] if is_a(part, _NATIVE)), None)
        name = getattr(called, "__name__", "")
        own = any(called is getattr(owner, name, None) for owner in (torch, torch.Tensor))
        if name not in _QUESTIONS or not (own or id(getattr(called, "__self__", None)) in known):
            return False
        operands = stack[-count:][:count]
    elif inst.opname not in _OPERATORS or (str(inst.argval).endswith("=") and inst.opname == "BINARY_OP"):
        return False
    else:
        operands = stack[-1:] if inst.opname.startswith("UNARY") else stack[-2:]
    return all(id(operand) in known or type(operand) in (int, float, bool) for operand in operands)


def _hold_one(builder: GraphBuilder, alternatives: tuple[object, ...], wanted: bool) -> bool:
    """Make the check that one of several is true, or false, part of the graph."""
    whole: object = None
    with torch._C.DisableTorchFunction():
        for value in alternatives:
            info = builder.tensors.get(id(value))
            if info is None or info.dynamic is not None or info.tensor.numel() != 1 or info.tensor.dtype.is_complex:
                return False
            one = builder.call(torch.ne if wanted else torch.eq, (value, 0), {})
            one = builder.call(torch.Tensor.reshape, (one, ()), {})
            whole = one if whole is None else builder.call(torch.logical_or, (whole, one), {})
    return hold(builder, whole, True)


def hold(builder: GraphBuilder, value: Any, wanted: bool) -> bool:
    """Make the check that a value is true, or false, part of the graph; False where that cannot be."""
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
    builder.effect(target, args)
    builder.calls += 1
