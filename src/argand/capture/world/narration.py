"""What capture says of itself, instruction by instruction, to whoever subscribed to it by name ("trace_bytecode", ...).

Nothing here touches a value of the program but by its type: neither its methods nor its `repr` are called.
"""

from __future__ import annotations

import types
from typing import Any

from torch import fx

from argand import events
from argand.bytecode.format import instruction_text
from argand.capture.facts.code.stack_text import line_of_frame
from argand.capture.facts.frames import Frame
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.name_tables import source_line
from argand.capture.facts.overlays import ADDED, Shadow
from argand.capture.world.pending_effects import pending
from argand.errors import UserLine

_SHOWN = 60  # characters of one value
_DEEPEST = 8  # values of a stack
_TRACED = ("trace_bytecode", "trace_source")


def table(frame: Frame) -> Any:
    """The operations of a frame: as they are, or such that looking one up tells that it is about to be executed."""
    named = events.bus.named
    if frame.quiet or not any(name in named for name in _TRACED):
        return frame.program.ops
    return _Told(frame)


class _Told:
    """A table of operations that says which is looked up."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.ops = frame.program.ops
        self.line = -1

    def __getitem__(self, pc: int) -> object:
        frame = self.frame
        instruction = frame.program.instructions[pc]
        line = instruction.lineno
        code = frame.code
        if line is not None and line != self.line:
            self.line = line
            place = f"TRACE starts_line {code.co_filename}:{line} in {code.co_name}"
            text = source_line(code.co_filename, line).rstrip()
            events.bus.detail("trace_source", "capture", f"{place}\n    {text}", filename=code.co_filename, line=line)
        said = f"TRACE {instruction_text(instruction)} {stack_text(frame.stack)}"
        events.bus.detail("trace_bytecode", "capture", said, filename=code.co_filename, line=line)
        return self.ops[pc]


def stack_text(stack: list[object]) -> str:
    """The topmost values of a stack in short."""
    left_out = "... " if len(stack) > _DEEPEST else ""
    return f"[{left_out}{', '.join([value_text(value) for value in stack[-_DEEPEST:]])}]"


def value_text(value: Any) -> str:
    """A value in short: plain ones as they are written, others by what they are."""
    kind = type(value)
    if kind in (int, float, bool, str, bytes, type(None)):
        text = repr(value)
    elif kind in (types.FunctionType, types.BuiltinFunctionType):
        text = f"<function {value.__name__}>"
    elif kind is types.ModuleType:
        text = f"<module {types.ModuleType.__getattribute__(value, '__dict__').get('__name__', '?')}>"
    elif kind is type:
        text = f"<class {value.__name__}>"
    elif kind in (list, tuple, dict, set):
        text = f"<{kind.__name__} of {len(value)}>"
    else:
        text = f"<{kind.__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def operation(node: fx.Node, frames: list[Frame]) -> None:
    """An operation was put into the graph."""
    if "trace_call" not in events.bus.named:
        return
    line: UserLine | None = next((line_of_frame(frame) for frame in reversed(frames) if not frame.quiet), None)
    said = f"TRACE FX call {node.name}"
    if line is not None:
        said += f" from {line.filename}:{line.lineno} in {line.function}\n    {line.text}"
        if line.carets:
            said += f"\n    {line.carets}"
    events.bus.detail("trace_call", "capture", said, node=node.name)


def symbol(name: object, place: object, hint: object, low: object, high: object) -> None:
    """A size or number of the program became a symbol."""
    if "symbol" in events.bus.named:
        limits = f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"
        events.bus.detail("symbol", "capture", f"create_symbol {name} = {hint} for {place} {limits}", symbol=str(name))


def relation(condition: object, position: Any) -> None:
    """The capture relies on a relation between sizes."""
    if "symbol_guard" in events.bus.named:
        where = "" if position is None else f"  # {position[0].co_filename}:{position[1]} in {position[0].co_name}"
        events.bus.detail("symbol_guard", "capture", f"eval {condition}{where}")


def side_effects(state: CaptureState) -> None:
    """What the transformed code will write to objects that existed before the call."""
    if "side_effects" not in events.bus.named:
        return
    lines = []
    for entry in pending(state):
        if isinstance(entry, Shadow):
            lines.append(f"  the {type(entry.original).__name__} {_named(state, entry.original)}: its contents")
        elif entry.kind in ADDED:
            what = "replaced" if entry.kind == "places" else "added"
            lines.append(f"  the {type(entry.obj).__name__} {_named(state, entry.obj)}: {len(entry.values)} {what}")
        else:
            what = {"attr": "attributes", "global": "globals", "cell": "variables of an outer function"}[entry.kind]
            lines.append(f"  {_named(state, entry.obj)}: {what} {', '.join(entry.values)}")
    lines += [f"  a call of {value_text(function)}" for function, *_ in (*state.said, *state.extra_effects)]
    if lines:
        events.bus.detail("side_effects", "capture", "SIDE EFFECTS:\n" + "\n".join(lines))


def _named(state: CaptureState, obj: object) -> str:
    source = state.source_of(obj)
    return f"<{type(obj).__name__}>" if source is None else source.friendly()
