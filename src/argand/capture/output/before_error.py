"""What the program did before an operation that raised, where the frame's own code cannot run again (rerun.py).

The graph wrote to its inputs and then raised: lists that were appended to, attributes that were set before the failing
operation are written by then in eager. So, at each operation that may raise, capture writes down the effects that are
pending there as a small code object. It runs when the operation has raised, and costs nothing otherwise.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import Counter
from dataclasses import field
from types import CodeType

import torch
from torch import fx

from argand import errors
from argand._core import _C
from argand.bytecode.resume import transformed_code
from argand.capture.facts.frames import Frame
from argand.capture.facts.kinds import is_a
from argand.capture.interp.state import CaptureState
from argand.capture.output import tracebacks
from argand.capture.output.effects import Replay
from argand.capture.output.emit import Emitter
from argand.capture.output.reconstruct import Reconstructor
from argand.capture.output.values import Again, Plan, Values
from argand.capture.record.tensor_attributes import any_pending
from argand.quick_dataclasses import dataclass

_MOST = 256


@dataclass(slots=True)
class Points:
    """The operations of a graph that may raise, in their order, and the effects before each.

    Fields:
        state: of the capture.
        reached: (the node before the operation's, the effects: None where there are none).
        by_name: the operation's node -> (where it stands in the program, the effects).
        lost: there is an operation before which there are effects that could not be written down.
    """

    state: CaptureState
    reached: list[tuple[fx.Node, CodeType | None]] = field(default_factory=list)
    by_name: dict[str, tuple[str, CodeType | None]] = field(default_factory=dict)
    lost: bool = False

    def add(self, marker: fx.Node) -> bool:
        """Note an operation that is about to be recorded behind `marker`. False: its effects cannot be written down."""
        if self.reached and self.reached[-1][0] is marker:
            return True  # inside a subgraph: effects before it count
        code: CodeType | None = None
        if any_pending(self.state):
            code = _written_down(self.state) if len(self.reached) < _MOST else None
            if code is None:
                self.lost = True
                return False
        self.reached.append((marker, code))
        return True

    def settle(self) -> None:
        """The graph's nodes get no other names any more."""
        for marker, code in self.reached:
            node = marker.next
            while not node.op.startswith("call_") and node.op != "root":
                node = node.next
            if node.op != "root":
                self.by_name[node.name] = (str(node.meta.get("stack_trace", "")), code)

    @property
    def any(self) -> bool:
        """Whether there is anything to do when the graph raises."""
        return any(code is not None for _, code in self.by_name.values())


def _written_down(state: CaptureState) -> CodeType | None:
    """Code that, given the frame's arguments, does what is pending now; None where that cannot be."""
    frames = state.interpreter.frames
    if not frames or any(_cleans_up(frame) for frame in frames):
        return None
    with torch._C.DisableTorchFunction():
        try:
            return _emit(state, frames[0])
        except errors.GraphBreak:
            return None


def _emit(state: CaptureState, root: Frame) -> CodeType | None:
    plan = Plan()

    def body(values: Values) -> bool:
        for name, cell in zip(root.program.names, root.fast):
            if is_a(cell, types.CellType) and name in state.code.co_cellvars:
                values.root_cells[id(cell)] = name
        replay = Replay(state, values)
        replay.evaluate()
        replay.write()
        return not plan.outputs and not values.used_cells  # what the graph computes is not to be had

    for _ in range(20):
        values = Reconstructor(state, Emitter(state.code), None)
        values.plan = plan
        plan.uses.clear()
        with contextlib.suppress(Again):
            if not body(values):
                return None
            break
    else:
        return None
    emitter = Emitter(state.code, Counter(plan.uses))
    if not body(Reconstructor(state, emitter, plan)):
        return None
    emitter.asm.load_const(None)
    emitter.asm.return_value()
    return transformed_code(state.code, emitter.asm.finish())


def _cleans_up(frame: Frame) -> bool:
    """Whether a frame is inside of a block that would undo an effect when left by an exception.

    Blocks of the program do not count: where one is told of the error, the operation is not part of such a graph.
    """
    handler = frame.instruction.handler
    instructions = frame.program.instructions
    while handler is not None:
        if handler.target.opname == "PUSH_EXC_INFO":
            at = frame.program.index[handler.target] + 1
            if instructions[at].opname == "WITH_EXCEPT_START":
                if _manager_cleans_up(frame.stack[handler.depth - 1]):
                    return True
            elif not any(inst.opname == "CHECK_EXC_MATCH" for inst in instructions[at : at + 8]):
                return True
        handler = handler.target.handler
    return False


def _manager_cleans_up(leave: object) -> bool:
    manager = getattr(leave, "__self__", None)
    if not is_a(manager, contextlib._GeneratorContextManager):
        return False
    inner = getattr(manager.gen, "_frame", None)
    return inner is None or inner.instruction is None or _cleans_up(inner)


# ---------------------------------------------------------------------- called by transformed code


def do_effects(
    error: BaseException, points: Points, answer: object, arguments: list[object], cells: tuple[types.CellType, ...]
) -> None:
    """The graph raised: do what the program did before the operation that failed.

    Where the operation is not known, the backend having made other operations of the graph's, only what was done
    before the first of them is certain.

    Arguments:
        answer: of `rerun.raised`: the frame's own code may do it all again.
    """
    if answer or not isinstance(error, Exception) or isinstance(error, errors.ArgandError):
        return
    code = _effects_before(error, points)
    if code is None:
        return
    function = types.FunctionType(code, sys._getframe(1).f_globals, code.co_name, None, cells or None)
    _C.Region(None, None, function)(*arguments)


def _effects_before(error: BaseException, points: Points) -> CodeType | None:
    step = error.__traceback__
    while step is not None:
        at = tracebacks.node_at(step)
        if at is not None:
            if at.name in points.by_name and at.meta.get("stack_trace", "") == points.by_name[at.name][0]:
                return points.by_name[at.name][1]
            trace = at.meta.get("stack_trace", "")
            for trace_there, code in points.by_name.values():
                if trace and trace_there == trace:
                    return code
        step = step.tb_next
    return next((code for _, code in points.by_name.values()), None)
