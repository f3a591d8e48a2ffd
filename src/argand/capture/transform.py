"""From a finished interpretation to the code object that stands in for the frame."""

from __future__ import annotations

import itertools
import types
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from argand import errors
from argand.bytecode.assemble import Label
from argand.bytecode.flow import reachable
from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.liveness import live_locals
from argand.bytecode.opcodes import PY313
from argand.bytecode.resume import ResumeCode, StackSlot, build_resume_code, resume_name, transformed_code
from argand.bytecode.stack import stack_effect
from argand.capture import modes
from argand.capture.effects import Replay
from argand.capture.emit import Emitter
from argand.capture.frames import NULL, LazyLocal
from argand.capture.reconstruct import Again, Plan, Reconstructor
from argand.capture.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from argand.capture.interpreter import RootExit
    from argand.capture.state import CaptureState

NUMBERS = itertools.count()
"""Numbers of `__compiled_fn_<n>` and `__resume_at_<offset>_<n>`, unique in the process."""


@dataclass(slots=True)
class Transformed:
    """What a capture became.

    Arguments:
        code: the transformed code object.
        graph: the captured graph; None when it has no operation.
        graph_name: `__compiled_fn_<n>`.
        globals: names to install in the frame's globals before the code runs.
        resumes: resume functions' codes, for decoding them with the user's offsets later.
    """

    code: types.CodeType
    graph: fx.GraphModule | None
    graph_name: str
    globals: dict[str, Any] = field(default_factory=dict)
    resumes: list[ResumeCode] = field(default_factory=list)


def give_up(kind: str, explanation: str, *hints: str) -> errors.GraphBreak:
    """The frame cannot be split here: it runs eagerly."""
    return errors.graph_break(kind=kind, explanation=explanation, hints=hints, skip_frame=True)


class Transformer:
    """Builds the transformed code of one capture.

    Arguments:
        state: the finished capture.
        exit: how its interpretation ended ("return", "break" or "branch").
        modes_before, modes_after: torch's state at the frame's entry and at the end of the capture.
        reason: why the graph broke.
    """

    def __init__(
        self,
        state: CaptureState,
        exit: RootExit,
        modes_before: modes.Snapshot,
        modes_after: modes.Snapshot,
        reason: errors.BreakReason | None = None,
    ) -> None:
        self.state = state
        self.exit = exit
        self.reason = reason
        self.frame = exit.frame
        self.modes = (modes_before, modes_after)
        self.instructions: list[Instruction] = exit.frame.program.instructions
        self.live = live_locals(self.instructions, state.code)
        self.resumes: list[ResumeCode] = []
        self.globals: dict[str, Any] = {}
        self.graph_name = ""
        self._final = False

    def build(self, make_callable: Callable[[fx.GraphModule, list[torch.Tensor]], Any]) -> Transformed:
        """Emit twice: a dry run that finds graph outputs and shared values, then for good.

        Raises:
            GraphBreak: (skip_frame) a value cannot be rebuilt, or the frame cannot be split at this place.
        """
        if self.exit.kind != "return":
            self._check_place()
        plan = Plan()
        for _ in range(20):
            emitter = Emitter(self.state.code)
            values = Reconstructor(self.state, emitter, None)
            values.plan = plan
            plan.uses.clear()
            try:
                self._emit(emitter, values, [])
                break
            except Again:
                continue
        else:
            raise give_up("value cannot be rebuilt", "Objects refer to each other in a way that cannot be rebuilt.")
        graph = self._finish_graph(plan)
        inputs = list(self.state.graph.inputs) if graph is not None else []
        sources = [info.source for info in inputs if info.source is not None]
        if graph is not None:
            self.graph_name = f"__compiled_fn_{next(NUMBERS)}"
            self._emit_graph_event(graph)
            self.globals[self.graph_name] = make_callable(graph, [info.real for info in inputs])
        self.resumes.clear()
        self._final = True
        uses: Counter[Source] = Counter(plan.uses)
        counting = Plan()
        counting.uses = uses
        for source in sources:
            counting.count(source)
        emitter = Emitter(self.state.code, uses)
        self._emit(emitter, Reconstructor(self.state, emitter, plan), sources)
        code = transformed_code(self.state.code, emitter.asm.finish())
        return Transformed(code, graph, self.graph_name, self.globals, list(self.resumes))

    def _finish_graph(self, plan: Plan) -> fx.GraphModule | None:
        builder = self.state.graph
        graph = builder.finish(plan.outputs)
        calls = any(node.op not in ("placeholder", "output") for node in graph.graph.nodes)
        return graph if calls else None

    def _emit_graph_event(self, graph: fx.GraphModule) -> None:
        from argand import events

        name = self.graph_name
        events.emit("graph", "capture", lambda: f"{name}\n{graph_table(graph)}", graph=graph, graph_name=name)

    # ---------------------------------------------------------------- the body

    def _emit(self, emitter: Emitter, values: Reconstructor, inputs: list[Source]) -> None:
        """All of the body; the same in both runs but for the call of the graph."""
        if self.graph_name:
            self._call_graph(emitter, values, inputs)
        for name in self.state.code.co_cellvars:
            cell = self._slot(name)
            if isinstance(cell, types.CellType):
                values.root_cells[id(cell)] = name
        replay = Replay(self.state, values)
        if self.exit.kind == "return":
            values.push(self.exit.value)
            result = emitter.store_temp("r")
            replay.evaluate()
            cells = self._cell_values(values, values.used_cells)
            replay.write()
            self._store_cells(emitter, cells)
            self._set_modes(emitter)
            emitter.asm.load_fast(result)
            emitter.asm.return_value()
            return
        self._emit_break(emitter, values, replay)

    def _call_graph(self, emitter: Emitter, values: Reconstructor, inputs: list[Source]) -> None:
        asm = emitter.asm
        for source in inputs:  # loads that need calls come first: they use the stack below the arguments
            if emitter.uses[source] > 1:
                emitter.load_source(source)
                asm.pop_top()
        asm.load_global_callable(self.graph_name)
        for source in inputs:
            emitter.load_source(source)
        asm.call(len(inputs))
        names = list(values.plan.output_names.values())
        if not names:
            asm.pop_top()
            return
        asm.unpack_sequence(len(names))
        for name in names:
            asm.store_fast(name)

    def _slot(self, name: str) -> Any:
        program = self.frame.program
        return self.frame.fast[program.names.index(name)] if name in program.names else NULL

    def _set_modes(self, emitter: Emitter) -> None:
        before, after = self.modes
        for function, args in modes.difference(before, after):
            emitter.asm.load_const_callable(function)
            for arg in args:
                emitter.asm.load_const(arg)
            emitter.asm.call(len(args))
            emitter.asm.pop_top()

    # ---------------------------------------------------------------- a break in the middle

    def _check_place(self) -> None:
        inst = self.exit.instruction
        if inst is None:
            raise errors.InternalError("a break without its instruction")
        if self.frame.exc.topmost() is not None:
            raise give_up(
                "graph break inside an except block",
                "The graph breaks while an exception is being handled; the frame runs eagerly.",
                "move the operation out of the except block",
            )
        if inst.opname.startswith("LOAD_FAST") or inst.opname in ("RESUME", "MAKE_CELL", "COPY_FREE_VARS"):
            raise give_up(
                "argument cannot be captured",
                f"An argument or local variable of {self.state.code.co_name} is a value that graphs cannot hold: "
                f"{self.reason.explanation if self.reason is not None else ''}",
            )
        successors = [s for s in (self._next(inst), inst.target) if s is not None]
        if any(inst in reachable(self.instructions, s) for s in successors):
            raise give_up(
                "graph break inside a loop",
                "The graph breaks inside a loop of this function: it runs eagerly, what it calls is compiled.",
                "move the loop's body to a function of its own, or the operation out of the loop",
            )

    def _next(self, inst: Instruction) -> Instruction | None:
        if inst.is_terminator:
            return None
        return self.instructions[self.frame.program.index[inst] + 1]

    def _emit_break(self, emitter: Emitter, values: Reconstructor, replay: Replay) -> None:
        inst = self.exit.instruction
        assert inst is not None
        asm = emitter.asm
        stack = self.frame.stack
        held: list[str | None] = []
        for value in stack:
            if value is NULL:
                held.append(None)
            else:
                values.push(value)
                held.append(emitter.store_temp("v"))
        locals_ = self._live_values(inst)
        new_locals = []
        for name, value in locals_.items():
            if isinstance(value, LazyLocal) and value.name == name:
                continue
            values.push(value)
            new_locals.append((name, emitter.store_temp("l")))
        cells = self._cell_values(values, set(self.state.code.co_cellvars))
        replay.evaluate()
        replay.write()
        for name, temp in [*new_locals]:
            asm.load_fast(temp)
            asm.store_fast(name)
        self._store_cells(emitter, cells)
        self._set_modes(emitter)
        self._run_instruction(emitter, inst, held)

    def _live_values(self, inst: Instruction) -> dict[str, Any]:
        """Locals (not cells) that the break or what follows may read, and that are set."""
        wanted = self.live(inst)
        cells = {*self.state.code.co_cellvars, *self.state.code.co_freevars}
        return {
            name: value
            for name, value in zip(self.frame.program.names, self.frame.fast)
            if name in wanted and name not in cells and value is not NULL
        }

    def _cell_values(self, values: Reconstructor, wanted: set[str]) -> list[tuple[str, str]]:
        """Contents of this frame's own cells, evaluated into temporaries. `wanted` may grow meanwhile."""
        found: dict[str, str] = {}
        while todo := sorted(wanted - found.keys()):
            for name in todo:
                found[name] = ""
                cell = self._slot(name)
                if not isinstance(cell, types.CellType):
                    continue
                try:
                    contents = cell.cell_contents
                except ValueError:
                    continue
                if not isinstance(contents, LazyLocal):
                    values.push(contents)
                    found[name] = values.emitter.store_temp("c")
        return [(name, temp) for name, temp in found.items() if temp]

    def _store_cells(self, emitter: Emitter, cells: list[tuple[str, str]]) -> None:
        for name, temp in cells:
            emitter.asm.load_fast(temp)
            emitter.asm.store_deref(name)

    def _run_instruction(self, emitter: Emitter, inst: Instruction, held: list[str | None]) -> None:
        """Push what the instruction takes, run it for real, and call the resume function for where it goes."""
        asm = emitter.asm
        asm.set_line(inst.positions)
        taken = self._taken(inst, held)
        below = held[: len(held) - taken]
        handler = inst.handler
        catch = Label()
        if handler is not None:
            with asm.covered_by(catch, 0):
                exits = self._clone(emitter, inst, held[len(held) - taken :])
        else:
            exits = self._clone(emitter, inst, held[len(held) - taken :])
        for label, target, pushed in exits:
            if label is not None:
                asm.bind(label)
            results: list[str | None] = []
            for is_null in reversed(pushed):
                results.append(None if is_null else emitter.store_temp("n"))
            results.reverse()
            if target is not None:
                self._resume(emitter, target, [*below, *results], inst)
        if handler is not None:
            asm.bind(catch)
            exc = emitter.store_temp("x")
            self._resume_at_handler(emitter, handler, held, exc, inst)

    def _taken(self, inst: Instruction, held: list[str | None]) -> int:
        """How many stack slots from the top are put on the real stack for the instruction (at least what it pops)."""
        arg = inst.arg or 0
        if inst.opname == "CALL":
            return arg + 2
        if inst.opname == "CALL_KW":
            return arg + 3
        if inst.opname == "CALL_FUNCTION_EX":
            return 3 + (arg & 1)
        count = 0
        while count < len(held) and held[-1 - count] is not None:
            count += 1
        return count

    def _clone(
        self, emitter: Emitter, inst: Instruction, operands: list[str | None]
    ) -> list[tuple[Label | None, Instruction | None, list[bool]]]:
        """Emit operands and instruction. Returns its exits: (label, where it goes on, slots pushed: NULL or not)."""
        asm = emitter.asm
        for name in operands:
            if name is None:
                asm.push_null()
            else:
                asm.load_fast(name)
        if inst.opname == "CALL" and not PY313:
            asm.call(inst.arg or 0, self.frame.kw_names)
            return [(None, self._next(inst), [False] * (len(operands) + stack_effect(inst)))]
        follow = self._next(inst)
        if (
            inst.opname == "TO_BOOL"
            and follow is not None
            and follow.opname in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
        ):
            asm.emit("TO_BOOL")
            inst, follow = follow, self._next(follow)
        copy = inst.copy()
        copy.handler = asm._handler
        extra_null: list[bool] = []
        if inst.is_method or inst.push_null:
            flags = (inst.arg or 0) & ~1
            copy.opname, copy.arg = ("LOAD_ATTR", 0) if inst.opname == "LOAD_METHOD" else (inst.opname, flags)
            extra_null = [True]
        if inst.target is None:
            asm.append(copy)
            if inst.is_terminator:
                return []
            count = len(operands) + stack_effect(copy)
            slots = [False] * count
            if extra_null:
                slots[-1:] = [False, True] if PY313 else [True, False]
            return [(None, follow, slots)]
        jump = Label()
        asm.append(copy)
        asm._jumps.append((copy, jump))
        stay = [False] * (len(operands) + stack_effect(inst, jump=False))
        away = [False] * (len(operands) + stack_effect(inst, jump=True))
        return [(None, follow, stay), (jump, inst.target, away)]

    # ---------------------------------------------------------------- resume functions

    def _resume(self, emitter: Emitter, target: Instruction, stack: list[str | None], inst: Instruction) -> None:
        """Return what the resume function at `target` returns."""
        wanted = self.live(target)
        bound = {name for name, value in zip(self.frame.program.names, self.frame.fast) if value is not NULL}
        bound |= _stored_by(inst)
        cells = {*self.state.code.co_cellvars, *self.state.code.co_freevars}
        names = [name for name in self.frame.program.names if name in wanted and name in bound and name not in cells]
        layout = [StackSlot.NULL if slot is None else StackSlot.VALUE for slot in stack]
        made = build_resume_code(self.state.code, self.instructions, target, layout, names, self._resume_name(target))
        self.resumes.append(made)
        asm = emitter.asm
        if made.freevars:
            asm.push_null_before()
            asm.make_function(made.code, made.freevars)
            asm.push_null_after()
        else:
            name = made.code.co_name
            if self._final:
                self.globals[name] = types.FunctionType(made.code, self.state.globals, name)
            asm.load_global_callable(name)
        for slot in stack:
            if slot is not None:
                asm.load_fast(slot)
        for name in made.arg_names[made.stack_args :]:
            asm.load_fast(name)
        asm.call(len(made.arg_names))
        asm.return_value()

    def _resume_name(self, target: Instruction) -> str:
        return resume_name(target, next(NUMBERS) if self._final else 0)

    def _resume_at_handler(
        self, emitter: Emitter, handler: ExceptionHandler, held: list[str | None], exc: str, inst: Instruction
    ) -> None:
        stack: list[str | None] = list(held[: handler.depth])
        if handler.lasti:
            emitter.asm.load_const(0)
            stack.append(emitter.store_temp("i"))
        stack.append(exc)
        self._resume(emitter, handler.target, stack, inst)


def _stored_by(inst: Instruction) -> set[str]:
    if inst.opname == "STORE_FAST":
        return {inst.argval}
    if inst.opname in ("STORE_FAST_STORE_FAST",):
        return set(inst.argval)
    return set()


def graph_table(graph: fx.GraphModule) -> str:
    """The graph as a table: opcode, name, target, args, kwargs."""
    rows = [("opcode", "name", "target", "args", "kwargs")]
    rows += [(n.op, n.name, str(n.target), str(n.args), str(n.kwargs)) for n in graph.graph.nodes]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    rows.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
