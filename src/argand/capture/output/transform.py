"""From a finished interpretation to the code object that stands in for the frame."""

from __future__ import annotations

import contextlib
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import field

import torch
from torch import fx

from argand import errors, events
from argand.bytecode.assemble import Label
from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.liveness import live_locals
from argand.bytecode.opcodes import PY312, PY313
from argand.bytecode.resume import ResumeCode, StackSlot, transformed_code
from argand.bytecode.stack import operand_slots, stack_effect
from argand.capture.facts.code import moving_numbers
from argand.capture.facts.frames import NULL, LazyLocal, Previous
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import Source, collectable
from argand.capture.interp.interpreter import RootExit
from argand.capture.interp.state import CaptureState
from argand.capture.metadata import data_errors
from argand.capture.objects.call_protocol import lru_caches
from argand.capture.output import backward_reads, chain, finalizers, prefix, rebuild, rerun
from argand.capture.output.effects import Replay
from argand.capture.output.emit import Emitter
from argand.capture.output.reconstruct import Reconstructor
from argand.capture.output.resumes import Handled, Resumes
from argand.capture.output.values import Again, Plan, Values
from argand.capture.sizes import wrappers
from argand.capture.torch_functions import modes
from argand.capture.torch_functions.higher_order import hook_state
from argand.graph.nodes.printing import table
from argand.outcomes.resume_codes import NUMBERS
from argand.quick_dataclasses import dataclass

MANY_INPUTS = 16
"""From so many graph inputs on, the guards hand them over instead of bytecode that loads each."""


@dataclass(slots=True)
class Transformed:
    """What a capture became.

    Arguments:
        code: the transformed code object.
        graph: the captured graph; None when it has no operation.
        graph_name: `__compiled_fn_<n>`.
        globals: names to install in the frame's globals before the code runs.
        resumes: resume functions' codes, for decoding them with the user's offsets later.
        collected: the inputs that the guards are to hand over (`_C.take_inputs`).
    """

    code: types.CodeType
    graph: fx.GraphModule | None
    graph_name: str
    globals: dict[str, object] = field(default_factory=dict)
    resumes: list[ResumeCode] = field(default_factory=list)
    collected: list[Source] = field(default_factory=list)


def give_up(kind: str, explanation: str, *hints: str) -> errors.GraphBreak:
    """The frame cannot be split here: it runs eagerly."""
    return errors.graph_break(kind=kind, explanation=explanation, hints=hints, skip_frame=True)


def break_where_made(obj: object) -> errors.GraphBreak:
    """The break must be where `obj` comes into being: the frame then goes on with the real one."""
    stop = give_up(
        "value cannot be rebuilt",
        f"A {type(obj).__name__} that came up in the captured code is needed after it.",
        "make it outside the compiled function, or do not let it outlive the captured part",
    )
    stop.needed = obj
    return stop


class Transformer:
    """Builds the transformed code of one capture.

    Arguments:
        state: the finished capture.
        exit: how its interpretation ended ("return", "break" or "branch").
        modes_before, modes_after: torch's state at the frame's entry and at the end of the capture.
        reason: why the graph broke.
        resumes: the resume functions of the process.
    """

    def __init__(
        self,
        state: CaptureState,
        resumes: Resumes,
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
        self.known_resumes = resumes
        own = resumes.of(state.code)
        self.is_link = own is not None and own.loops  # one of a chain: whoever calls it calls what comes next too
        self.resumes: list[ResumeCode] = []
        self.globals: dict[str, object] = {}
        self.graph_name = ""
        self.collected: list[Source] = []
        if state.graph.dynamics is not None:
            state.graph.dynamics.settle()
        self.gives_away = own is not None
        self.rerun: rerun.Rerun | None = None
        self.let_go_before: Instruction | None = None  # the last one that reads the graph's inputs
        self._final = False
        self.real_frame = False

    def build(self, make_callable: Callable[[fx.GraphModule, list[torch.Tensor]], object]) -> Transformed:
        """Emit twice: a dry run that finds graph outputs and shared values, then for good.

        Raises:
            GraphBreak: (skip_frame) a value cannot be rebuilt, or the frame cannot be split at this place.
        """
        if self.exit.kind != "return":
            self._check_place()
        lru_caches.check_end(self.state)
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
            raise give_up(
                "value cannot be rebuilt",
                "Objects made in the captured code refer to each other in a circle.",
                "Make them outside the compiled function.",
            )
        finalizers.check_generators(self.state, values.temps)
        graph = self._finish_graph(plan)
        inputs = list(self.state.graph.inputs) if graph is not None else []
        sources = [info.source for info in inputs if info.source is not None]
        if graph is not None:
            self.rerun = rerun.plan(self.state, graph, self.gives_away, rerun.entry_of(self))
            self.graph_name = f"__compiled_fn_{next(NUMBERS)}"
            self._emit_graph_event(graph, self.graph_name)
            self.globals[self.graph_name] = make_callable(graph, [info.real for info in inputs])
        self.resumes.clear()
        self._final = True
        uses: Counter[Source] = Counter(plan.uses)
        counting = Plan()
        counting.uses = uses
        self.collected = self._collectable(sources)
        for source in [*([] if self.collected else sources), *(self.rerun.written if self.rerun is not None else ())]:
            counting.count(source)
        emitter = Emitter(self.state.code, uses)
        self._emit(emitter, Reconstructor(self.state, emitter, plan), sources)
        if self.rerun is not None:
            self.rerun.finish(emitter, self)
        body = emitter.asm.finish()
        if self.gives_away and self.let_go_before is not None:
            chain.let_go(body, self.let_go_before, sources, self.state.code)
        code = transformed_code(self.state.code, body)
        return Transformed(code, graph, self.graph_name, self.globals, list(self.resumes), self.collected)

    def build_prefix(self) -> Transformed | None:
        """For a break before any operation of the graph: the program's own code up to it, nothing rebuilt (prefix.py).

        None where that cannot be done. Raises GraphBreak as `build` does.
        """
        self._check_place()
        inst = self.exit.instruction
        if inst is not None and self.frame.program.index[inst] in self.state.interpreter.first_number:
            return None
        if prefix.binding_shows(self.frame.stack):
            return None
        exits = prefix.exits_of(self.instructions, inst) if inst is not None else None
        if not exits:
            return None
        self._final = self.real_frame = True
        emitter = Emitter(self.state.code)
        body = prefix.body(self.instructions, exits, emitter, self._resume_with(emitter))
        emitter.asm.finish()  # resolves the labels within the calls of resume functions
        return Transformed(transformed_code(self.state.code, body), None, "", self.globals, list(self.resumes))

    def _resume_with(self, emitter: Emitter) -> Callable[[Instruction, list[str | None], Instruction], None]:
        return lambda goal, stack, inst: self._resume(emitter, goal, stack, inst)

    def _finish_graph(self, plan: Plan) -> fx.GraphModule | None:
        builder = self.state.graph
        for value in data_errors.keep(builder, plan.outputs):
            plan.outputs.append(value)
            plan.output_names["unused", id(value)] = "___unused"
        hook_state.check_outputs(self.state, plan.outputs)
        wrappers.count_writes(builder)
        graph = builder.finish(plan.outputs)
        calls = any(node.op not in ("placeholder", "output") for node in graph.graph.nodes)
        return graph if calls else None

    def _emit_graph_event(self, graph: fx.GraphModule, name: str) -> None:
        events.emit("graph", "capture", lambda: f"{name}\n{table(graph.graph)}", graph=graph, graph_name=name)

    # ---------------------------------------------------------------- the body

    def _emit(self, emitter: Emitter, values: Values, inputs: list[Source]) -> None:
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

    def _call_graph(self, emitter: Emitter, values: Values, inputs: list[Source]) -> None:
        asm = emitter.asm
        collected = bool(self.collected)
        with self.rerun.covering(emitter) if self.rerun is not None else contextlib.nullcontext():
            called = self.graph_name, self.state.graph.root
            self.let_go_before = chain.call_graph(emitter, *called, inputs, collected, self.gives_away)
        names = list(values.plan.output_names.values())
        if not names:
            asm.pop_top()
            return
        asm.unpack_sequence(len(names))
        for name, value in zip(names, values.plan.outputs):
            for helper in rebuild.helpers_of(self.state.graph, value):
                emitter.call_helper(helper)
            asm.store_fast(name)
        emitter.temps += names  # let go of like the others where the rest of the program is called
        backward_reads.emit(self.state, emitter, names, values.plan.outputs)

    def _collectable(self, sources: list[Source]) -> list[Source]:
        """The inputs, when they are many and the guards look at each of them anyway: then the guards hand them over."""
        guarded = {guard.source for guard in self.state.guards if guard.kind == "tensor"}
        many = len(sources) >= MANY_INPUTS
        return sources if many and all(source in guarded and collectable(source) for source in sources) else []

    def _slot(self, name: str) -> object:
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
        for context, _, _ in self.state.open_modes:  # entered by the graph: it must be entered for real
            raise break_where_made(self.state.interpreter.born[context][0])
        if prefix.looks_at_frames(self.instructions):
            raise give_up(
                "frame looked at",
                "The function asks for its own frame or local variables, which splitting it would change.",
                "move sys._getframe(), locals(), eval() or the use of traceback frames to a function of its own",
            )
        if inst.opname in ("KW_NAMES", "PRECALL"):
            raise give_up("program not repeatable", "Capturing the function twice took different ways through it.")
        if inst.opname.startswith("LOAD_FAST") or inst.opname in ("RESUME", "MAKE_CELL", "COPY_FREE_VARS"):
            raise give_up(
                "argument cannot be captured",
                f"An argument or local variable of {self.state.code.co_name} is a value that graphs cannot hold: "
                f"{self.reason.explanation if self.reason is not None else ''}",
                *(self.reason.hints if self.reason is not None else ()),
            )

    def _next(self, inst: Instruction) -> Instruction | None:
        if inst.is_terminator:
            return None
        return self.instructions[self.frame.program.index[inst] + 1]

    def _emit_break(self, emitter: Emitter, values: Values, replay: Replay) -> None:
        inst = self.exit.instruction
        assert inst is not None
        asm = emitter.asm
        stack = self.frame.stack
        held: list[str | None] = []
        handled = self._handled()
        for value in stack:
            if value is NULL:
                held.append(None)
            elif type(value) is Previous:
                values.push(handled.pop(0))
                held.append(Handled(emitter.store_temp("x")))
            else:
                values.push(value)
                held.append(emitter.store_temp("v"))
        locals_ = self._live_values(inst)
        new_locals = []
        for name, value in locals_.items():
            if is_a(value, LazyLocal) and value.name == name:
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
        own = self.known_resumes.of(self.state.code)
        for name in own.body.arg_names[: own.body.stack_args] if own is not None else ():  # `held` has what is left
            asm.load_const(None)
            asm.store_fast(name)
        emitter.clear({*filter(None, held)}, chain.overwritten(self.frame, locals_))
        self._run_instruction(emitter, inst, held)

    def _live_values(self, inst: Instruction) -> dict[str, object]:
        """Locals (not cells) that are set and that the break or what follows may read, or whose end is seen."""
        wanted = self.live(inst) | finalizers.seen_ending(self.state, self.frame, self.real_frame)
        cells = {*self.state.code.co_cellvars, *self.state.code.co_freevars}
        return {
            name: value
            for name, value in zip(self.frame.program.names, self.frame.fast)
            if name in wanted and name not in cells and value is not NULL
        }

    def _cell_values(self, values: Values, wanted: set[str]) -> list[tuple[str, str]]:
        """Contents of this frame's own cells, evaluated into temporaries. `wanted` may grow meanwhile."""
        temps: dict[str, str] = {}
        while todo := sorted(wanted - temps.keys()):
            for name in todo:
                temps[name] = ""
                cell = self._slot(name)
                if not isinstance(cell, types.CellType):
                    continue
                try:
                    contents = cell.cell_contents
                except ValueError:
                    continue
                if not is_a(contents, LazyLocal):
                    values.push(contents)
                    temps[name] = values.emitter.store_temp("c")
        return [(name, temp) for name, temp in temps.items() if temp]

    def _store_cells(self, emitter: Emitter, cells: list[tuple[str, str]]) -> None:
        for name, temp in cells:
            emitter.asm.load_fast(temp)
            emitter.asm.store_deref(name)
        emitter.emit_afterwards()

    def _handled(self) -> list[BaseException]:
        """The exceptions being handled in this frame, outermost first: one for each `Previous` on the stack.

        Raises GraphBreak for one that was made while capturing: the frame must break where it is raised, so that it
        comes with the traceback and the context that it has in eager.
        """
        saved = [value.value for value in self.frame.stack if type(value) is Previous]
        if not saved:
            return []
        handled = [*saved[1:], self.frame.exc.value]
        for exc in handled:
            if exc is None or saved[0] is not None:
                raise give_up(
                    "graph break inside an except block",
                    "The graph breaks where it is not known which exception is being handled.",
                    "move the operation out of the except block",
                )
            if id(exc) not in self.state.outer:
                raise break_where_made(exc)
        return [exc for exc in handled if exc is not None]

    def _run_instruction(self, emitter: Emitter, inst: Instruction, held: list[str | None]) -> None:
        """Push what the instruction takes, run it for real, and call the resume function for where it goes."""
        asm = emitter.asm
        asm.set_line(inst.positions)
        taken = self._taken(inst, held)
        below = held[: len(held) - taken]
        operands = held[len(held) - taken :]
        handled = [name for name in held if isinstance(name, Handled)]
        handler = inst.handler
        if handled:
            asm.load_fast(handled[-1])
            asm.emit("PUSH_EXC_INFO")
        above = below[handler.depth if handler is not None else 0 :]
        dropped = [name for name in above if name is not None and name not in handled]
        emitter.push_away(dropped)
        catch = Label()
        with asm.covered_by(catch, 2 if handled else 0) if handler is not None else contextlib.nullcontext():
            exits = self._clone(emitter, inst, operands)
        for label, target, pushed in exits:
            if label is not None:
                asm.bind(label)
            stored: set[str] = set()
            if target is not None:
                target = self._go_on(emitter, target, pushed, stored)
            results: list[str | None] = []
            for i in range(len(pushed) - 1, -1, -1):
                left = i < len(operands) and operands[i] is None  # other NULLs are pushed by the resume function alone
                name = emitter.store_temp("n") if left or not pushed[i] else None
                kept = i < len(operands) and isinstance(operands[i], Handled)
                results.append(None if pushed[i] else Handled(name) if kept and name is not None else name)
            results.reverse()
            emitter.store_back(dropped)
            if handled:
                self._no_longer_handled(emitter)
            if target is not None:
                self._resume(emitter, target, [*below, *results], inst, stored)
        if handler is not None:
            asm.bind(catch)
            exc = emitter.store_temp("x")
            if handled:
                self._no_longer_handled(emitter)
            self._resume_at_handler(emitter, handler, held, exc, inst)

    def _no_longer_handled(self, emitter: Emitter) -> None:
        """previous exception, exception -> ; the resume function sets this state again."""
        emitter.asm.pop_top()
        emitter.asm.emit("POP_EXCEPT")

    def _go_on(self, emitter: Emitter, target: Instruction, pushed: list[bool], stored: set[str]) -> Instruction:
        """Do right here what merely moves the result: fewer values pass through the resume function as unnamed ones,
        which it would have to guard. Returns where it goes on after that; `pushed` and `stored` follow."""
        asm = emitter.asm
        cells = {*self.state.code.co_cellvars, *self.state.code.co_freevars}
        while pushed and pushed[-1] is False:
            following = self._next(target)
            if following is None:
                return target
            if target.opname == "POP_TOP":
                asm.pop_top()
                pushed.pop()
            elif target.opname == "STORE_FAST" and target.argval not in cells:
                asm.store_fast(target.argval)
                pushed.pop()
                stored.add(target.argval)
            else:
                return target
            target = following
        return target

    def _taken(self, inst: Instruction, held: list[str | None]) -> int:
        """How many stack slots from the top are put on the real stack for the instruction (at least what it pops)."""
        slots = operand_slots(inst)
        if slots is not None:
            return slots
        count = 0
        while count < len(held) and held[-1 - count] is not None and not isinstance(held[-1 - count], Handled):
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
        elif PY313 and inst.opname in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"):
            asm.emit("TO_BOOL")  # they take bools only; capture leaves a comparison's result the tensor that it is
        copy = inst.copy()
        copy.handler = asm._handler
        extra_null: list[bool] = []
        if inst.is_method or inst.push_null:
            flags = (inst.arg or 0) & ~1
            copy.opname, copy.arg = ("LOAD_ATTR", 0) if inst.opname == "LOAD_METHOD" else (inst.opname, flags)
            extra_null = [True]
        if inst.opname == "FOR_ITER":
            return self._clone_for(emitter, inst, copy)
        if inst.target is None:
            asm.append(copy)
            if inst.is_terminator:
                return []
            slots = [False] * (len(operands) + stack_effect(copy))
            if inst.opname == "DICT_MERGE":  # leaves what is below its last operand
                slots = [name is None for name in operands[:-1]]
            if extra_null:
                slots[-1:] = [False, True] if PY313 else [True, False]
            return [(None, follow, slots)]
        jump = Label()
        asm.append(copy)
        asm._jumps.append((copy, jump))
        stay = [False] * (len(operands) + stack_effect(inst, jump=False))
        away = [False] * (len(operands) + stack_effect(inst, jump=True))
        return [(None, follow, stay), (jump, inst.target, away)]

    def _clone_for(
        self, emitter: Emitter, inst: Instruction, copy: Instruction
    ) -> list[tuple[Label | None, Instruction | None, list[bool]]]:
        """FOR_ITER: on with the next item above the iterator, or without both behind the loop."""
        asm = emitter.asm
        end, after = Label(), Label()
        asm.append(copy)
        asm._jumps.append((copy, end))
        asm.jump(after)
        asm.bind(end)
        asm.end_for()
        behind = inst.target
        if behind is not None and PY312:
            behind = self.instructions[self.frame.program.index[behind] + (2 if PY313 else 1)]
        done = Label()
        asm.jump(done)
        return [(after, self._next(inst), [False, False]), (done, behind, [])]

    # ---------------------------------------------------------------- resume functions

    def _resume(
        self,
        emitter: Emitter,
        target: Instruction,
        stack: list[str | None],
        inst: Instruction,
        stored: set[str] | frozenset[str] = frozenset(),
    ) -> None:
        """Return what the resume function at `target` returns.

        Arguments:
            stack: temporaries of all slots of the stack there.
            inst: the instruction that was run for real.
            stored: locals that were assigned after it.
        """
        if not self._final:
            return
        wanted = self.live(target) | finalizers.seen_ending(self.state, self.frame, self.real_frame)
        if self.real_frame:  # what is overwritten later must die then
            wanted = wanted | prefix.stored_from(self.instructions, target)
        bound = {name for name, value in zip(self.frame.program.names, self.frame.fast) if value is not NULL}
        bound |= moving_numbers.stored_by(inst) | stored
        bound -= {inst.argval} if inst.opname == "DELETE_FAST" else set()
        cells = {*self.state.code.co_cellvars, *self.state.code.co_freevars}
        names = [name for name in self.frame.program.names if name in wanted and name in bound and name not in cells]
        self.resume_with(emitter, target, stack, names)

    def resume_with(self, emitter: Emitter, target: Instruction, stack: list[str | None], names: list[str]) -> None:
        """Return what the resume function at `target` returns, given these locals."""
        layout = [
            StackSlot.NULL if slot is None else StackSlot.HANDLED if isinstance(slot, Handled) else StackSlot.VALUE
            for slot in stack
        ]
        resume = self.known_resumes.get(self.state.code, self.instructions, target, layout, names)
        body = resume.body
        self.resumes.append(body)
        if not body.freevars:
            self.globals[resume.name] = types.FunctionType(body.code, self.state.globals, resume.name)
        arguments = [slot for slot in stack if slot is not None]
        arguments += body.arg_names[body.stack_args :]
        if self.is_link:
            chain.hand_on(emitter, resume, arguments)
        else:
            chain.call_resume(emitter, resume, arguments)

    def _resume_at_handler(
        self, emitter: Emitter, handler: ExceptionHandler, held: list[str | None], exc: str, inst: Instruction
    ) -> None:
        stack: list[str | None] = list(held[: handler.depth])
        if handler.lasti:
            emitter.asm.load_const(0)
            stack.append(emitter.store_temp("i"))
        stack.append(exc)
        self._resume(emitter, handler.target, stack, inst)
