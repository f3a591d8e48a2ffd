"""When a graph raises: the frame's own code runs instead, as if there were no graph.

Transformed code does nothing before its graph, so that at this moment the frame's own code can still start from the
beginning: what it does until the error, its handlers and the traceback are then eager's. This costs nothing while
graphs do not raise: an entry in the exception table.

Where the frame cannot start again, the graph having written to its inputs, or is not to, the program being interrupted,
the error counts as raised where the frame began: for a resume function that is inside of the `with` and `try` blocks
that the function before it has entered.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Protocol

import torch
from torch import fx

from argand import errors, events
from argand._core import _C
from argand.bytecode.assemble import Label
from argand.bytecode.cells import SAVED_CELL_MARK
from argand.bytecode.instruction import Instruction
from argand.bytecode.resume import StackSlot, frame_arg_names
from argand.capture.facts.data_dependent_errors import RERUNS, Known, OnData, Points
from argand.capture.facts.frames import Frame
from argand.capture.facts.name_tables import place_of
from argand.capture.facts.per_code import warn_once
from argand.capture.facts.sources import Source
from argand.capture.interp.state import CaptureState
from argand.capture.metadata.call_targets import may_draw
from argand.capture.metadata.data_errors import RAISED, manager_is_told
from argand.capture.output import before_error
from argand.capture.output.emit import Emitter
from argand.capture.output.restart_snapshots import generator_of, random_states
from argand.capture.output.resumes import Resumes
from argand.capture.record.tensor_attributes import any_pending
from argand.capture.torch_functions import hops, modes
from argand.graph.nodes.undone_writes import Copies, copies_of, put_back
from argand.interruptions import is_of_handler
from argand.quick_dataclasses import dataclass


class Ending(Protocol):
    """What writes the code after the graph (`transform.Transformer`)."""

    state: CaptureState
    frame: Frame
    instructions: list[Instruction]
    known_resumes: Resumes

    @property
    def live(self) -> Callable[[Instruction], frozenset[str]]: ...

    def resume_with(self, emitter: Emitter, target: Instruction, stack: list[str | None], names: list[str]) -> None:
        """Return what the resume function at `target` returns, given these locals."""


@dataclass(slots=True)
class Entry:
    """Where a resume function begins inside of `with` or `try` blocks.

    Fields:
        inst: the instruction, whose handler is that of the innermost block; None in a plan that was stored.
        stack: names of the parameters that are the stack there; None for a NULL.
        of_torch: all the blocks are `with` blocks of torch's managers.
    """

    inst: Instruction | None
    stack: list[str | None]
    of_torch: bool


_NO_MEMORY = ("DefaultCPUAllocator", "std::bad_alloc")


@dataclass(slots=True, eq=False)
class Rerun:
    """How one transformed code falls back on the frame's own.

    Fields:
        code: of the frame, which owns the transformed code and so may not be held by it.
        known: what is remembered of it.
        again: what the graph raises for the frame to start again; nothing where it cannot.
        noticed: an operation that may raise stands where the program would be told of it.
        may_split: the graph may be broken there instead, should it raise often.
        devices: whose random numbers the graph draws.
        entry: None where no block is open when the frame begins.
        catch, saved: the handler, and the temporary with the states of the generators.
        points: what to do before the error goes on, where the frame does not start again; None: nothing.
        written: inputs that the graph writes to, and that are put back before the frame starts again.
        copies: the temporary with copies of them.
        unwritten: it writes to others, and starts again only where what raised says that none was written to yet.
    """

    code: weakref.ref[CodeType]
    known: Known
    again: tuple[type[Exception], ...]
    noticed: bool
    may_split: bool
    devices: tuple[torch.device, ...]
    entry: Entry | None
    catch: Label
    saved: str = ""
    points: Points | None = None
    written: tuple[Source, ...] = ()
    copies: str = ""
    unwritten: bool = False

    @contextlib.contextmanager
    def covering(self, emitter: Emitter) -> Iterator[None]:
        """What is emitted within may raise; nothing has been done before it, and the stack is empty."""
        if self.devices:
            emitter.asm.load_const_callable(random_states)
            emitter.asm.load_const(self.devices)
            emitter.asm.call(1)
            self.saved = emitter.store_temp("g")
        if self.written:
            for source in self.written:
                emitter.load_source(source)
            emitter.call_on(copies_of, len(self.written))
            self.copies = emitter.store_temp("w")
        with emitter.asm.covered_by(self.catch, 0):
            yield

    def finish(self, emitter: Emitter, ending: Ending) -> None:
        """Emit the handler."""
        asm = emitter.asm
        asm.bind(self.catch)
        exc = emitter.store_temp("x")
        asm.load_const_callable(raised)
        asm.load_fast(exc)
        asm.load_const(self)
        if self.saved:
            asm.load_fast(self.saved)
        elif self.copies:
            asm.load_const(())
        if self.copies:
            asm.load_fast(self.copies)
        asm.call(2 + bool(self.saved or self.copies) + bool(self.copies))
        answer = emitter.store_temp("a")
        if self.points is not None:
            self._do_effects(emitter, exc, answer)
        leave, at_entry = Label(), Label()
        asm.load_fast(answer)
        asm.jump_if_none(leave)
        if self.entry is not None:
            asm.load_fast(answer)
            asm.jump_if_false(at_entry)
        if self.again:
            self._start_again(emitter, exc, answer)
        asm.bind(leave)
        asm.load_fast(exc)
        asm.delete_fast(exc)
        asm.emit("RERAISE", 0, 0)
        if self.entry is not None:
            asm.bind(at_entry)
            _raise_at_entry(emitter, ending, self.entry, exc)

    def _do_effects(self, emitter: Emitter, exc: str, answer: str) -> None:
        asm, code = emitter.asm, emitter.code
        asm.load_const_callable(before_error.do_effects)
        asm.load_fast(exc)
        asm.load_const(self.points)
        asm.load_fast(answer)
        self._load_arguments(emitter)
        for name in code.co_freevars:
            asm.load_closure(name)
        asm.build_tuple(len(code.co_freevars))
        asm.call(5)
        asm.pop_top()

    def _load_arguments(self, emitter: Emitter) -> None:
        """-> list of the frame's arguments."""
        asm, code = emitter.asm, emitter.code
        names = frame_arg_names(code)
        for name in names:
            (asm.load_deref if name in code.co_cellvars else asm.load_fast)(name)
        asm.build_list(len(names))

    def _start_again(self, emitter: Emitter, exc: str, answer: str) -> None:
        asm = emitter.asm
        asm.load_const(None)  # the exception, its traceback and this frame hold each other
        asm.store_fast(exc)
        asm.load_const_callable(_C.run_original)
        self._load_arguments(emitter)
        asm.load_fast(answer)
        asm.call(2)
        asm.return_value()


def plan(state: CaptureState, graph: fx.GraphModule, gives_away: bool, entry: Entry | None) -> Rerun | None:
    """What happens when the graph raises; None: the error is the frame's.

    Arguments:
        graph: gets, as `meta["undone"]`, which of its inputs its forward is to put back when it raises.
        gives_away: the arguments are those of a resume function, which lets go of them as soon as it can: they are kept
            only where the program would see the difference.
        entry: of `entry_of`.
    """
    builder = state.graph
    on_data = builder.on_data
    if on_data.known is None:
        return None
    random = draws(state)
    needed = on_data.noticed or (on_data.possible and any_pending(state))
    # Some of the blocks that the frame begins in may be left before the operation: only its own code knows which.
    needed = needed or (on_data.possible and entry is not None and not entry.of_torch)
    # A graph that raises leaves torch's modes as they were. Which changes the program keeps, only its code knows.
    needed = needed or (on_data.possible and bool(modes.changed_by(builder.root)))
    lost = on_data.points is not None and on_data.points.lost
    needed = needed or (lost and bool(on_data.undone))
    outside = on_data.outside or (bool(on_data.saved or on_data.undone) and not needed)
    outside = outside or (on_data.opaque and not lost)  # such a function runs twice rather than that an effect is lost
    free = not (gives_away or (random and any(info.device.type != "cpu" for info in builder.tensors.values())))
    late = on_data.late or (on_data.possible and free)
    told = bool(on_data.undone) and not outside and on_data.told and not graph.meta.get("unbacked")
    unwritten = told or (outside and late and not (on_data.effects or on_data.opaque))
    again = unwritten or (not outside and (needed or free))
    points = on_data.points if outside and on_data.points is not None and on_data.points.any else None
    if not again and entry is None and points is None:
        return None
    devices = tuple(dict.fromkeys(info.device for info in builder.tensors.values())) if random and again else ()
    code = weakref.ref(state.code)
    answered = _answered(on_data) if again else ()
    saved = (*on_data.saved, *on_data.undone) if again and (told or not unwritten) else ()
    written = () if told else tuple([info.source for info in saved if info.source is not None])
    if told:
        places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        graph.meta["undone"] = [places.index(info.node) for info in saved]
    noticed, may_split = on_data.noticed, on_data.may_split
    return Rerun(
        *(code, on_data.known, answered, noticed, may_split, devices, entry, Label()),
        points=points, written=written, unwritten=unwritten,
    )  # fmt: skip


def stored(
    code: weakref.ref[CodeType],
    known: Known,
    again: tuple[type[Exception], ...],
    noticed: bool,
    may_split: bool,
    devices: tuple[torch.device, ...],
    of_torch: bool | None,
    unwritten: bool,
) -> Rerun:
    """The plan of transformed code that an earlier process made."""
    entry = None if of_torch is None else Entry(None, [], of_torch)
    return Rerun(code, known, again, noticed, may_split, devices, entry, Label(), unwritten=unwritten)


def _lacks_memory(error: Exception) -> bool:
    """Whether there is no memory for a tensor: of main memory torch says so with a RuntimeError like any other."""
    return type(error) is RuntimeError and any(text in str(error) for text in _NO_MEMORY)


def draws(state: CaptureState) -> bool:
    """Whether the graph draws random numbers."""
    return any(_draws(node) for node in (*state.graph.effectful, *state.graph.writing))


def _answered(on_data: OnData) -> tuple[type[Exception], ...]:
    """Errors that may be the program's. Others are the backend's, and not to be covered up."""
    short = (MemoryError, torch.OutOfMemoryError)
    return (Exception,) if on_data.foreign else (*RAISED, *short) if on_data.possible else short


def entry_of(ending: Ending) -> Entry | None:
    """Where the frame begins, if that is inside of a `with` or `try`."""
    own = ending.known_resumes.of(ending.state.code)
    if own is None or StackSlot.HANDLED in own.layout:
        return None
    inst = next(inst for inst in ending.instructions if inst.offset is not None or inst.opname == "JUMP_FORWARD")
    inst = inst.target if inst.offset is None and inst.target is not None else inst
    if inst.handler is None:
        return None
    names = iter(own.body.arg_names)
    stack = [None if slot is StackSlot.NULL else next(names) for slot in own.layout]
    if any(name is not None and SAVED_CELL_MARK in name for name in stack):
        return None
    return Entry(inst, stack, _of_torch(ending, inst, stack))


def _of_torch(ending: Ending, inst: Instruction, stack: list[str | None]) -> bool:
    """Whether all the blocks around an instruction are `with` blocks of torch's managers."""
    index = ending.frame.program.index
    values = dict(zip(frame_arg_names(ending.state.code), ending.state.args))
    handler = inst.handler
    while handler is not None:
        if handler.target.opname == "PUSH_EXC_INFO":  # another one tidies up within the interpreter's stack
            leaves = ending.instructions[index[handler.target] + 1].opname == "WITH_EXCEPT_START"
            if not leaves or manager_is_told(values.get(stack[handler.depth - 1] or "")):
                return False
        handler = handler.target.handler
    return True


def _raise_at_entry(emitter: Emitter, ending: Ending, entry: Entry, exc: str) -> None:
    """Go on at the handler of the block that the frame begins in, with what the frame was given."""
    handler = None if entry.inst is None else entry.inst.handler
    assert handler is not None
    stack = entry.stack[: handler.depth]
    if handler.lasti:
        emitter.asm.load_const(0)
        stack.append(emitter.store_temp("i"))
    code = ending.state.code
    cells = {*code.co_cellvars, *code.co_freevars}
    wanted = ending.live(handler.target)
    names = [name for name in frame_arg_names(code) if name in wanted and name not in cells and name not in entry.stack]
    ending.resume_with(emitter, handler.target, [*stack, exc], names)


_DROPOUTS = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # where `dropout_p` is
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


def _draws(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags
    if node.kwargs.get("training") is False or node.kwargs.get("dropout_p") == 0:
        return False  # evaluation: saving five kilobytes of state in every call would be for nothing
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    given = node.args
    place = _DROPOUTS.get(name)
    if place is not None:
        return bool(node.kwargs.get("dropout_p", (*given[place:], 0)[0]))
    if name in _RECURRENT:  # their only float is the dropout, before whether they train
        return not any(type(each) is float and (each == 0 or not on) for each, on in itertools.pairwise(given))
    return may_draw(name) or target in hops.TRANSFORMS.values()  # which have effects if their bodies draw


# ---------------------------------------------------------------------- called by transformed code


def raised(
    error: BaseException,
    plan: Rerun,
    states: list[tuple[torch.device, torch.Tensor]] | tuple[()] = (),
    copies: Copies = (),
) -> Callable[[bool], None] | bool | None:
    """The graph raised: put back what it changed on the way.

    Returns what to call when the frame's own code has run; False: the error is to be raised where the frame began;
    None: it leaves the frame.
    """
    if not isinstance(error, Exception) or is_of_handler(error):
        return None if plan.entry is None else False
    ours = isinstance(error, plan.again) or (bool(plan.again) and _lacks_memory(error))
    unwritten = error.__dict__.pop(errors.UNWRITTEN, False) and not _lacks_memory(error)
    ours = ours and (unwritten or not plan.unwritten)
    if not ours or isinstance(error, errors.ArgandError):
        return False if plan.entry is not None and plan.entry.of_torch else None
    put_back(copies)
    for device, state in states:
        generator_of(device).set_state(state)
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    code = plan.code()
    events.emit("graph_raised", "capture", text, function=code.co_name if code is not None else "", error=type(error))
    if plan.noticed:
        plan.known.reruns += 1
        if plan.known.reruns == RERUNS and plan.may_split and code is not None:
            _C.reset_code(code)  # from now on the graph ends before the operation
    return functools.partial(_finished, plan, text)


def _finished(plan: Rerun, text: str, returned: bool) -> None:
    code = plan.code()
    if returned and not plan.noticed and code is not None:
        warn_once(
            plan.known.warned,
            "rerun",
            f"argand: the compiled code of {place_of(code)} raised {text}\nThe function ran eagerly instead, "
            "and did not raise.",
            code,
        )
