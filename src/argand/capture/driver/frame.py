"""Captures a frame: the callback of the frame hook.

FrameInfo -> interpret (restarting at the instruction where the graph breaks) -> graph, guards, new code -> Entry
"""

from __future__ import annotations

import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable

import torch
from torch import fx

from argand import errors, events
from argand._core import _C
from argand.bytecode.decode import decode
from argand.bytecode.resume import ResumeCode, raising_code, resume_label, transformed_code
from argand.capture.driver import (
    announce,
    failures,
    loops,
    outcome_storing,
    process_limits,
    recompiles,
    release,
    stance,
    strict,
)
from argand.capture.driver import own_functions as _  # noqa: F401 - what it registers
from argand.capture.driver.region import Region
from argand.capture.facts.code import effort_limits, moving_numbers, skip, stack_text
from argand.capture.facts.code.stack_text import line_of_code
from argand.capture.facts.data_dependent_errors import OnData
from argand.capture.facts.exceptions import OF_CAPTURE
from argand.capture.facts.namespaces import ONCE, ThisCallOnly
from argand.capture.facts.sources import CallSource, ConstSource
from argand.capture.facts.values.symbols import Memory
from argand.capture.interp.interpreter import Interpreter, RootExit, Session, too_deep
from argand.capture.interp.state import CaptureState
from argand.capture.metadata import call_targets, data_errors
from argand.capture.natives import native_warnings
from argand.capture.objects import generators, outer_generators
from argand.capture.output import before_error, finalizers, graph_parts, rerun
from argand.capture.output.resumes import Resumes
from argand.capture.output.transform import Transformed, Transformer
from argand.capture.record import data_attribute, self_written
from argand.capture.record.tensors import GraphBuilder
from argand.capture.sizes import dtensors, subclasses
from argand.capture.sizes.symbolic_policy import Policy
from argand.capture.sizes.symbolic_state import Restart
from argand.capture.torch_functions import modes, torch_contexts
from argand.capture.torch_functions.higher_order import checkpoints, dual_levels, hook_state
from argand.capture.torch_functions.nested import stand_ins
from argand.capture.torch_functions.overriding import TraceMode
from argand.capture.world import aliasing
from argand.config import config
from argand.graph import thread_state
from argand.graph.compat import default_device, keep_torch_compiler_out, without_default_device
from argand.interruptions import let_pass
from argand.outcomes import installed_names, store
from argand.runtime import late_modules
from argand.runtime.tape import bared_inputs

BreakAt = dict[int, int | None]
"""As `Interpreter.run_root` takes it: number of an executed root instruction -> its offset, or None."""
_TOO_DEEP = 3  # so many captures of a function run out of stack; then it is not tried again
_RESTARTS = 96  # attempts on one frame: each restart breaks at one more place, or has learned about sizes


class _Process:
    """Process-wide bookkeeping: frame numbers and the interpreter's caches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.known: weakref.WeakKeyDictionary[types.CodeType, failures.Known] = weakref.WeakKeyDictionary()
        self.frame_ids = itertools.count()
        self.local = threading.local()
        self.resumes = Resumes()

    def of(self, code: types.CodeType) -> failures.Known:
        known = self.known.get(code)
        return known or self.known.setdefault(code, failures.Known())

    def compile_id(self, known: failures.Known) -> events.CompileId:
        """The next one of a code object: frames are numbered as they are captured."""
        if known.frame_id is None:
            known.frame_id = next(self.frame_ids)
        known.compiles += 1
        return events.CompileId(known.frame_id, known.compiles - 1)

    def looked_at(self, code: types.CodeType) -> failures.Known | None:
        """What is remembered of a code object that may be argand's own, whose constants have no hash."""
        try:
            return self.known.get(code)
        except TypeError:
            return None

    def session(self) -> Session:
        """The decoded programs of this thread."""
        session: Session | None = getattr(self.local, "session", None)
        if session is None:
            session = self.local.session = Session()
        return session


_process = _Process()


def next_frame_id() -> int:
    """A frame id for what is compiled and is no frame: a backward."""
    return next(_process.frame_ids)


_BY_CODE = (call_targets.target_of, stack_text.frame_text, line_of_code, data_errors.kind, subclasses.announced)
"""Caches whose keys are code objects and functions of the program."""


def reset() -> None:
    """Forget frame numbers, warnings, decoded programs, and what is remembered of code objects and functions."""
    _process.reset()
    for remembered in _BY_CODE:
        remembered.cache_clear()


def capture_frame(info: _C.FrameInfo, *, region: Region) -> _C.Answer:
    """Answer the frame hook for a frame that no entry matched.

    Returns:
        An Entry; SKIP for code that is never captured; RUN_ONLY past the cache limit; None to run this call eagerly.

    Raises:
        Unsupported: `region.fullgraph` (or `error_on_graph_break`), and the frame cannot be captured whole.
        RecompileForbidden: the stance is "fail_on_recompile".
        BackendCompilerFailed: the backend raised (unless `config.suppress_errors`).
    """
    code = info.code
    if not process_limits.can_capture() or config.disable or (config.debug_function and not announce.asked_for(code)):
        return None
    if skip.why_never(code) is not None:
        return _C.SKIP_RECURSIVE if skip.with_callees(code) else _C.SKIP
    if thread_state.cannot_capture():
        return None
    events.bus.prepare()
    known = _process.of(code)
    outcome_storing.take_histories(code, known)
    if region.observe and info.entries:
        failures.report_recompile(info)
        return None
    if failures.past_limit(info, region, known):
        failures.warn_cache_limit(info, known)
        return _C.RUN_ONLY
    if stance.CURRENT.name != "default":
        return failures.without_compiling(info)
    if _caller_runs_eagerly(region):
        return None
    with (
        events.bus.compiling(_process.compile_id(known)),
        events.span("capture_frame", "capture", function=code.co_name),
    ):
        _announce(info, known)
        try:
            return _Capture(info, region, known).run()
        except errors.GraphBreak as ending:
            return _ended(ending, info, region, known)
        except BaseException as error:
            events.bus.detail("capture_failed", "capture", None, info=info, error=error)
            if process_limits.ran_out(error):
                events.emit("frame_raised", "capture", repr(error), function=code.co_name)
                return None
            let_pass(error)
            if not isinstance(error, OF_CAPTURE):  # Ctrl-C, a signal handler, another thread
                raise
            if isinstance(error, errors.ArgandError):
                return failures.failed(error, info, region, known)
            if isinstance(error, RecursionError):  # values nested too deeply, say
                known.too_deep += 1
                return failures.gave_up(too_deep(), info, region, known) if known.too_deep >= _TOO_DEEP else None
            return failures.internal_failure(error, info, region, known)


def _ended(ending: errors.GraphBreak, info: _C.FrameInfo, region: Region, known: failures.Known) -> _C.Answer:
    """The answer for a frame of which nothing is captured."""
    events.bus.detail("capture_failed", "capture", None, info=info, error=ending)
    if failures.program_raises(ending):
        known.raised_in.add(region)
    release.forget_frames(ending)
    once = failures.runs_once(info, region, known) if ending.sets_up else None
    answer = once or failures.gave_up(ending, info, region, known)
    return failures.of_such_arguments(info, region) if loops.around_values(info.code, ending) else answer


def raise_in_blocks(info: _C.FrameInfo, region: Region, error: BaseException) -> _C.Answer:
    """What a resume function runs where compiling it failed: the `with` and `try` that it goes on in, and the error.

    They began before the break: if the error came out of the call, gradients would stay off and locks held.

    Raises:
        error: the frame is no resume function, or goes on in no block.
    """
    resume = _process.resumes.of(info.code)
    code = None if resume is None else raising_code(resume.body, error)
    if code is None:
        raise error
    return _C.Entry(code, None, region)


def _announce(info: _C.FrameInfo, known: failures.Known) -> None:
    """Tell of a capture, and why it is one more; where nothing may come of that, only once something did."""
    announce.frame_start(info)
    if not known.only_python:
        failures.report_recompile(info)


def _caller_runs_eagerly(region: Region) -> bool:
    """Whether this is called by a function in which the program raises, under fullgraph=True, so that it runs eagerly
    with all that it calls: what would break the graph of what it calls, an iterator that it has begun, say, is part of
    the graph when the function is captured."""
    frame = sys._getframe(2) if region.fullgraph else None
    while frame is not None:
        known = _process.looked_at(frame.f_code)
        if known and region in known.raised_in:
            return True
        frame = frame.f_back
    return False


class _Capture:
    """One answer of the hook: as many attempts as the frame needs."""

    def __init__(self, info: _C.FrameInfo, region: Region, known: failures.Known) -> None:
        self.info = info
        self.device = default_device()
        self.region = region
        self.known = known
        self.reason: errors.BreakReason | None = None
        self.ending: errors.GraphBreak | None = None  # the break
        self.handled = sys.exception()
        self.states: list[CaptureState] = []
        self.performed: CaptureState | None = None  # whose transformed code runs
        self.memory = Memory()
        self.looked_again = False
        self.spent = 0
        self.surroundings = 0  # guards that every frame has
        self.clock = effort_limits.Clock()

    def run(self) -> _C.Answer:
        """Capture the frame."""
        try:
            return self._attempts()
        except errors.GraphBreak as ending:
            self._keep_failure(ending)
            raise
        finally:
            self._take_back()
            for state in self.states:
                release.forget(state)

    def _keep_failure(self, ending: errors.GraphBreak) -> None:
        """Store that the frame runs eagerly from now on, where that holds for other calls too."""
        state = self.states[-1]
        passing = ending.sets_up or failures.must_raise(ending, self.region) or failures.program_raises(ending)
        passing = passing or (ending.in_loop and not self.known.loops)
        keeper = None if passing or _classes_changed(state) else outcome_storing.keeper(self.info, self.region, state)
        if keeper is not None:
            told = failures.place_of_break(ending.reason, ending.instruction) in self.known.told
            (keeper.keep_written if ending.in_loop else keeper.keep_eager)(None if told else ending.reason)

    def _take_back(self) -> None:
        """Undo what attempts did to classes, except that one whose transformed code goes on from there."""
        for state in self.states:
            if state is not self.performed:
                state.interpreter.types.namespaces.take_back()

    def _attempts(self) -> _C.Answer:
        # Where capture once thought that the program raised, and it did not, the program's own instruction runs.
        break_at: BreakAt = {} if self.region.fullgraph or strict.wanted() else dict(self.known.not_raising)
        if break_at:
            self.reason = failures.not_evaluated(self.info.code)
        for attempt in range(_RESTARTS):
            if attempt:
                announce.restart(attempt, self.reason, self.info.code)
            with modes.restored() as before:
                state = self._new_state()
                try:
                    with self.clock.running():
                        exit = self._trace(state, break_at)
                except Restart:
                    self._count(state)
                    continue
                except errors.GraphBreak as ending:
                    if strict.wanted(state.read_overlay):
                        ending.strict = True
                    break_at = self._restart(ending, break_at)
                    release.forget_frames(ending)
                    continue
                after = modes.snapshot()
            if exit.kind == "raise":
                if failures.told_too_much(state):
                    continue
                return self._raised(exit)
            if (first := loops.first_time(state, exit)) is not None:
                break_at = {first: None}
                continue
            try:
                return self._compile(state, exit, before, after)
            except Restart:
                self._count(state)
                continue
            except errors.GraphBreak as ending:
                break_at = self._earlier(failures.because_of(ending, self.reason), state, exit, break_at)
                release.forget_frames(ending)
        raise errors.graph_break(kind="too many restarts", skip_frame=True)

    def _count(self, state: CaptureState) -> None:
        self.spent += state.interpreter.patience.spent
        effort_limits.check_restarts(0 if self.region.fullgraph else self.spent, len(state.tensors))

    def _new_state(self) -> CaptureState:
        info = self.info
        self._take_back()
        state = CaptureState(info.code, info.globals, info.builtins, info.closure, info.args, config, GraphBuilder())
        torch_contexts.enter_default_device(state, self.device)
        interpreter = Interpreter(state, _process.session())
        interpreter.handled_outside = self.handled
        interpreter.patience.endless = self.region.fullgraph
        self.states.append(state)
        may_split, points = not (self.region.fullgraph or strict.wanted()), before_error.Points(state)
        state.graph.on_data = OnData(self.known, may_split, points=points, told=self.region.told)
        if self.region.fullgraph:
            state.data_numbers = state.data_sizes = True
        elif self.region.data_sizes and self.region.dynamic is not False:
            state.data_sizes = True
        if self.region.dynamic is not False:
            state.policy = Policy(self.known.history(self.region), self.region.dynamic, self.memory.shapes)
        state.memory = self.memory
        return state

    def _trace(self, state: CaptureState, break_at: BreakAt) -> RootExit:
        """`_interpret`, its begin and end told: step 1."""
        code = self.info.code
        name = resume_label(code) or code.co_name
        with events.span(
            "trace_frame", "capture", function=name, filename=code.co_filename, line=code.co_firstlineno
        ) as told:
            try:
                with without_default_device():
                    exit = self._interpret(state, break_at)
            except (errors.GraphBreak, Restart) as ending:
                told["outcome"] = (
                    "graph break" if isinstance(ending, errors.GraphBreak) else "restarts for symbolic sizes"
                )
                raise
            told["outcome"] = exit.kind if exit.instruction is None else exit.instruction.opname
            return exit

    def _interpret(self, state: CaptureState, break_at: BreakAt) -> RootExit:
        modes.guard_surroundings(state)
        self.surroundings = len(state.guards)
        interpreter: Interpreter = state.interpreter
        resume = _process.resumes.of(self.info.code)
        if resume is not None:  # maybe made in another thread
            interpreter.session.original_offsets.set(resume.body.code, resume.body.original_offsets)
        keep_torch_compiler_out()
        with TraceMode(state.graph), native_warnings.heard():
            try:
                exit = interpreter.run_root(break_at)
            finally:
                for _, guard, _ in reversed(state.open_modes):
                    if guard is not None:
                        guard.__exit__(None, None, None)
        if state.graph.hooks and exit.kind != "raise":
            hook_state.check(state, goes_on=exit.kind != "return")
        if state.graph.checkpoints and exit.kind != "raise":
            with TraceMode(state.graph), native_warnings.heard():  # bodies are interpreted once more
                checkpoints.check_end(state)
        if state.graph.entered and exit.kind != "raise":
            torch_contexts.check_end(state)
        if state.graph.undressing and exit.kind != "raise":
            raise subclasses.still_off(state.graph.undressing)
        if exit.kind != "raise":
            dual_levels.check_end(state)
            data_attribute.check_end(state)
            outer_generators.check_end(state)
        return exit

    def _restart(self, ending: errors.GraphBreak, break_at: BreakAt) -> BreakAt:
        if ending.sets_up and self.known.set_up < failures.SET_UPS:
            raise ending
        if failures.must_raise(ending, self.region):
            raise failures.unsupported(ending) from None
        if ending.skip_frame or ending.sequence is None or ending.sequence in break_at:
            raise ending
        for number, (code, instruction) in enumerate(ending.within, 1):
            alone = loops.left_alone(code, instruction, None, ending.within[number:], ending.reason)
            if alone or loops.of_numpy(code, ending.reason):
                _process.of(code).loops += 1  # by itself it would break there again, and is not told of twice
        offsets = _process.session().original_offsets.get(self.info.code)
        alone = loops.left_alone(self.info.code, ending.instruction, offsets, ending.within, ending.reason)
        if alone or loops.without_tensors(self.info, self.states[-1]):
            raise failures.left_alone(ending, _process.of)
        self.reason, self.ending = ending.reason, ending
        return {ending.sequence: None}

    def _earlier(self, ending: errors.GraphBreak, state: CaptureState, exit: RootExit, at: BreakAt) -> BreakAt:
        """Where to break the graph because of an object that transformed code cannot rebuild: where it is made."""
        if ending.sequence is not None:
            return self._restart(ending, at)
        obj = ending.needed
        birth = None if obj is None else state.interpreter.born.get(id(obj))
        if birth is None or birth[1] >= exit.sequence or self.region.fullgraph:
            raise ending
        if generators.ends_visibly(obj) and any(value is obj for value in (*exit.frame.stack, *exit.frame.fast)):
            raise ending  # calls hold on to their arguments: it would be closed later than in eager
        self.reason = self.reason or ending.reason
        return {birth[1]: None}

    def _raised(self, exit: RootExit) -> _C.Answer:
        """The program raises in this call: run it for real, so that everything about the exception is right."""
        if loops.raises_only(self.info, self.region, self.states[-1], self.known):
            return _C.RUN_ONLY
        self.known.raised_in.add(self.region)
        events.emit("frame_raised", "capture", lambda: announce.shown(exit.exc), function=self.info.code.co_name)
        interpreter = self.states[-1].interpreter
        assert exit.exc is not None
        origin = interpreter.born.get(id(exit.exc), (None, exit.sequence))[1]
        place = origin, interpreter.offset_at(origin)
        return failures.unless_it_returns(self.info, self.region, self.known, announce.shown(exit.exc), place)

    def _compile(self, state: CaptureState, exit: RootExit, before: modes.Snapshot, after: modes.Snapshot) -> _C.Answer:
        info = self.info
        empty = loops.is_empty(state)
        resumed = resume_label(info.code) is not None
        if exit.kind == "return" and empty and not (resumed and state.told_compiling):
            return self._without_graph(state)
        if empty and self.ending is not None and loops.only_passes_on(info, exit, self.ending):
            raise failures.left_alone(self.ending, _process.of)
        idle = loops.is_idle(info, self.region, state, self.known)
        if idle and loops.left_to_python(info, self.known):
            return _C.RUN_ONLY
        self_written.note_counts(state)
        if eagerly := outcome_storing.filling_tables(info, self.region, state, self.known):
            return eagerly
        self._note_work(idle)
        finalizers.check(state)
        aliasing.guard(state)
        dtensors.guard_layouts(state)
        stand_ins.guard_raggedness(state)
        if rerun.draws(state):
            modes.guard_transforms(state)
        modes.guard_current_gpu(state)
        transformer = Transformer(state, _process.resumes, exit, before, after, self.reason)
        with late_modules.gathered(store.wanted() and bool(self.region.stored_as())) as late:
            prefix, transformed = self._transformed(state, transformer, empty)
        late.use_time()
        once = _this_call_only(state)
        keeper = outcome_storing.keeper(self.info, self.region, state) if once is None else None
        guards = state.guards.build(transformed.collected, keeper.log if keeper is not None else None)
        positions = state.guards.positions.items()
        needed = recompiles.Needed({label: (weakref.ref(code), number) for label, (code, number) in positions})
        outcome = guards.evaluate(info.args, info.globals, info.builtins, info.closure)
        if outcome is not True:
            self._look_again(outcome)
        if once is not None:
            once.open = False
        self.performed = None if prefix else state
        installed_names.install(transformed.globals, transformed.code, info.globals)
        self._note_resumes(transformed.resumes, exit)
        whole = min(state.alike, 1) if exit.kind == "return" and not resumed else state.alike
        told = self.reason is None or self.known.is_told(self.reason, exit.instruction)
        reason = None if told else self.reason
        announce.version(info.code, state, transformed, reason)
        failures.tell_within(self.ending, _process.of)
        if keeper is not None:
            keeper.keep(transformed, self.known, reason, whole)
        self._load(late)
        about = self.region, needed, self._label(), info.globals
        return _C.Entry(transformed.code, guards, *about, transformed.graph is not None, resumed, whole)

    def _note_resumes(self, resumes: list[ResumeCode], exit: RootExit) -> None:
        frame, kind = exit.frame, "" if self.reason is None else self.reason.kind
        values, tensors = dict(zip(frame.program.names, frame.fast)), self.states[-1].tensors
        before, varying = zip(self.info.code.co_varnames, self.info.args), self.known.history(self.region).varying
        kept = moving_numbers.still_varying(before, values, varying)
        for resume in resumes:
            _process.session().original_offsets.set(resume.code, resume.original_offsets)
            if exit.instruction is not None:
                at, passed = frame.program.index[exit.instruction], resume.arg_names[: resume.stack_args]
                moving = moving_numbers.after_break(frame.program.instructions, at, frame.stack, values, passed, kind)
                history = _process.of(resume.code).history(self.region)
                history.moving |= moving
                history.varying |= kept | moving_numbers.sizes_after_break(frame.stack, values, passed, tensors)

    def _transformed(self, state: CaptureState, transformer: Transformer, empty: bool) -> tuple[bool, Transformed]:
        """The code that runs instead, and whether it is the frame's own up to where a graph may begin."""
        own = empty and not state.told_compiling and not finalizers.suspended(state)
        prefix = transformer.build_prefix() if own else None
        try:
            return prefix is not None, prefix or transformer.build(self._backend)
        except errors.GraphBreak:  # a generator that cannot be made anew
            if not empty or (prefix := transformer.build_prefix()) is None:
                raise
            return True, prefix

    def _look_again(self, outcome: bool | tuple[int, str, str]) -> None:
        """Guards do not hold right after the capture: once more, for a table, say, that a library's code fills the
        first time that it runs."""
        if not self.looked_again:
            self.looked_again = True
            raise Restart
        raise errors.graph_break(
            kind="condition that changes by itself",
            context=str(outcome),
            explanation="Something that the captured code relies on is different each time it is looked at "
            f"({outcome[1] if isinstance(outcome, tuple) else outcome}).",
            skip_frame=True,
        )

    def _load(self, late: late_modules.Scope) -> None:
        """Have kernels that were compiled meanwhile: an error is the backend's."""
        try:
            late.finish()
        except errors.ArgandError as error:
            self.performed = None
            raise errors.BackendCompilerFailed(self.region.backend_name, error, where=error.where) from error

    def _note_work(self, idle: bool) -> None:
        """From now on each capture of this code is one that pays, unless it is idle; this one was not told yet."""
        if self.known.only_python and not idle:
            failures.report_recompile(self.info)
        self.known.only_python = idle and (self.known.only_python or self.info.entries == 0)
        users = _process.resumes.of_users(self.info.code)
        if users is not None and not idle:
            _process.of(users).only_python = False

    def _label(self) -> str:
        """How torch's profiler calls the compiled code."""
        now = events.bus.compile_id
        number = "" if now is None else f" {now.frame}/{now.recompile}"
        return f"Argand-Compiled Region:{number} ({self.info.code.co_name})"

    def _without_graph(self, state: CaptureState) -> _C.Answer:
        """Nothing of torch's ran: the frame's own code, kept under the guards that led here.

        Where that is so again under other guards, it is left to Python (`loops.left_to_python`).
        """
        keeper = outcome_storing.keeper(self.info, self.region, state)
        if len(state.guards) <= self.surroundings:
            if keeper is not None:
                keeper.keep_eager()
            return _C.SKIP
        if loops.left_to_python(self.info, self.known):
            return _C.RUN_ONLY
        self.known.only_python = self.known.only_python or self.info.entries == 0
        announce.captured(state.guards)
        guards = state.guards.build((), None if keeper is None else keeper.log)
        code = transformed_code(self.info.code, decode(self.info.code))
        if keeper is not None and not _classes_changed(state):
            keeper.keep_python(code, state.alike)
        return _C.Entry(code, guards, self.region, whole=state.alike)

    def _backend(self, graph: fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        with events.span("backend", "capture", backend=self.region.backend_name), without_default_device():
            changes = modes.changed_by(graph.graph)
            places = subclasses.places(inputs, graph)
            compiled = self._in_parts(graph) or self.region.backend(graph, bared_inputs.examples_at(places, inputs))
            if places:
                compiled = bared_inputs.bared(compiled, places)
        if changes:
            compiled = modes.put_back_on_error(compiled, changes)
        return _C.Region(None, None, compiled)  # Python code of the backend's own is not captured

    def _in_parts(self, graph: fx.GraphModule) -> Callable[..., object] | None:
        if self.region.cuts is None or not graph.meta.get("unbacked"):
            return None
        return graph_parts.in_parts(graph, self.region)


def _classes_changed(state: CaptureState) -> bool:
    """Whether a class changed after capture had read it."""
    interpreter = state.interpreter
    return interpreter.types.changed_meanwhile(interpreter.local_classes)


def _this_call_only(state: CaptureState) -> ThisCallOnly | None:
    """The guard that has to be closed once the entry is made, where classes changed after capture had read them."""
    if not _classes_changed(state):
        return None
    once = ThisCallOnly()
    state.guards.add(CallSource(ConstSource(None), once), "id", True, label=ONCE, shown=False)
    return once
