"""What is said, and to whom, when a frame cannot be captured or compiled as asked."""

from __future__ import annotations

import platform
import re
import traceback
import weakref
from collections.abc import Callable
from dataclasses import field
from types import CodeType
from typing import Any

import torch

from argand import errors, events
from argand._core import _C
from argand.bytecode.decode import decode
from argand.bytecode.eager_calls import code_running_eagerly
from argand.bytecode.resume import resume_label, transformed_code
from argand.capture.driver import consequent_breaks, recompiles, stance, strict
from argand.capture.driver.region import Region
from argand.capture.facts.code.skip import is_torch
from argand.capture.facts.code.stack_text import line_of_frame
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import code_words, place_of, source_line
from argand.capture.facts.per_code import warn_once
from argand.capture.sizes.symbolic_policy import History
from argand.config import config
from argand.quick_dataclasses import dataclass
from argand.version import __version__

CACHE_LIMIT_HELP = (
    "See docs/recompiles.md; argand.CompileProfiler counts the guards that fail while the whole program runs."
)


@dataclass(slots=True)
class Known:
    """What is remembered of a code object.

    Arguments:
        frame_id: its number, from its first capture on.
        only_python: the captures so far recorded nothing up to the return or to a break, and in a package's function
            what goes on behind it neither; or arrays alone were computed, or one operation.
        loops: how often a graph was to end in a loop that runs as it is written.
        set_up: how many calls ran eagerly as they set up lazy modules, or filled tables of packages.
        filled: what these calls put into tables (`self_written.fills_one`).
        raises: how many captures found that a package's function raises, before anything of torch's.
        wasted: how many captures made versions that no call ever used before an object that they are for was gone.
        told: the places (`place_of_break`) at which a caller's graph broke within a call of it, as its own does.
        module: the one that the first version is for (`loops.is_idle`).
    """

    frame_id: int | None = None
    compiles: int = 0
    only_python: bool = False
    too_deep: int = 0
    loops: int = 0
    set_up: int = 0
    filled: set[object] = field(default_factory=set)
    raises: int = 0
    reruns: int = 0
    not_raising: dict[int, int | None] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    raised_in: weakref.WeakSet[Region] = field(default_factory=weakref.WeakSet)
    histories: dict[Region, History] = field(default_factory=dict)
    wasted: weakref.WeakKeyDictionary[Region, int] = field(default_factory=weakref.WeakKeyDictionary)
    told: set[object] = field(default_factory=set)
    module: Callable[[], object] = type(None)

    def is_told(self, reason: errors.BreakReason, instruction: object) -> bool:
        """Whether a break was told when a caller's graph broke there; of each that was told one more is not."""
        place = place_of_break(reason, instruction)
        known = place in self.told
        self.told.discard(place)
        return known

    def history(self, region: Region) -> History:
        """What the captures of this code under one region have seen of its inputs."""
        return self.histories.setdefault(region, History())


def place_of_break(reason: errors.BreakReason, instruction: object) -> object:
    """Where a function breaks the graph, and where in what it calls."""
    return getattr(instruction, "offset", None), reason.where[-1:]


def tell_within(ending: errors.GraphBreak | None, known_of: Callable[[CodeType], Known]) -> None:
    """What a frame tells of a break is told of the calls in which it is, which break there by themselves."""
    if ending is not None:
        for code, instruction in ending.within:
            known_of(code).told.add(place_of_break(ending.reason, instruction))


def left_alone(ending: errors.GraphBreak, known_of: Callable[[CodeType], Known]) -> errors.GraphBreak:
    """A break for which the function runs as it is written."""
    ending.in_loop = True
    tell_within(ending, known_of)
    return ending


def past_limit(info: _C.FrameInfo, region: Region, known: Known) -> bool:
    """Whether one version more is not worth while: there are many, or each was for an object of one call."""
    if info.wasted:
        known.wasted[region] = known.wasted.get(region, 0) + info.wasted
    entries = info.entries
    if config.cache_size_limit <= entries < _MOST_FUNCTIONS * config.cache_size_limit and info.closure:
        # versions of a decorator's wrapper around other functions
        entries -= sum(1 for _, label, _ in info.failures if _OF_ANOTHER.fullmatch(label))
    return max(entries, known.wasted.get(region, 0)) >= config.cache_size_limit


_OF_ANOTHER = re.compile(r"closure '(cell\(C\['\w+'\]\)\.cell_contents|\w+)(\.__code__)?' FUNCTION_MATCH")
_MOST_FUNCTIONS = 16  # that have a wrapper's versions each for themselves


# ---------------------------------------------------------------------- graph breaks


def unsupported(ending: errors.GraphBreak) -> errors.Unsupported:
    """What fullgraph=True raises for a break."""
    reason = ending.reason
    context = f" ({reason.context})" if config.verbose and reason.context else ""
    cause = f"graph break, which fullgraph=True and error_on_graph_break turn into an error: {reason.headline}{context}"
    return errors.Unsupported(cause, remedy=f"{' Or: '.join(reason.hints)}\nMore: {reason.more}", where=reason.where)


def program_raises(ending: errors.GraphBreak) -> bool:
    """Whether a break stands for an exception that the program itself raises in this call."""
    return isinstance(ending.exception, Exception)


def must_raise(ending: errors.GraphBreak, region: Region) -> bool:
    """Whether this break is an error: asked for by the region or around the code, and not the program's own error."""
    return (region.fullgraph or ending.strict or strict.wanted()) and not program_raises(ending)


def told_too_much(state: CaptureState) -> bool:
    """Whether the program is to be captured again, as one that is not told that it is compiled: it raises where it was
    told so, as it then leaves out what it needs."""
    again = state.told_compiling and not state.memory.untold
    state.memory.untold |= again
    return again


def gave_up(ending: errors.GraphBreak, info: _C.FrameInfo, region: Region, known: Known) -> _C.Answer:
    """The frame cannot be captured: it runs eagerly, what it calls is still looked at."""
    if must_raise(ending, region):
        raise unsupported(ending) from None
    if ending.in_loop:
        known.loops += 1
        if known.loops > 1:  # it was told of: the call at hand alone ran eagerly, or a caller's graph ended there
            return _of_this_container(info, region)
    name, reason = code_words(info.code), consequent_breaks.in_terms_of_the_program(ending.reason, info.code)
    if not known.is_told(ending.reason, ending.instruction):
        events.emit("graph_breaks", "capture", str(reason), reason=reason, function=name, frame_skipped=True)
    if program_raises(ending):  # in this call; it may not in the next
        place = -1 if ending.sequence is None else ending.sequence, getattr(ending.instruction, "offset", None)
        return unless_it_returns(info, region, known, ending.reason.headline, place)
    return None if ending.in_loop else _C.SKIP


def _of_this_container(info: _C.FrameInfo, region: Region) -> _C.Answer:
    """What is answered where a loop runs as it is written from now on: of a module of torch's only this one's, in
    training or not as it is, as those of others may be compiled whole. Else versions for other ways through the
    function are used as before."""
    module = info.args[0] if info.args and is_torch(info.code.co_filename) else None
    if not is_a(module, torch.nn.Module) or resume_label(info.code) is not None:
        return _C.RUN_ONLY
    guards = _C.GuardTree()
    place = guards.child(0, "local", 0)
    guards.check(place, "id", module)
    guards.check(guards.child(place, "attr", "training"), "equals", module.training)
    return _C.Entry(transformed_code(info.code, decode(info.code)), guards, region, whole=2)


def of_such_arguments(info: _C.FrameInfo, region: Region) -> _C.Entry:
    """What is answered where calls with arguments of these classes run eagerly, with what they call."""
    guards = _C.GuardTree()
    for index, arg in enumerate(info.args):
        if type(arg) is not tuple:  # those behind the others, whose classes may not say
            guards.check(guards.child(0, "local", index), "type", type(arg))
    return _C.Entry(code_running_eagerly(info.code), guards, region, whole=2)


def runs_once(info: _C.FrameInfo, region: Region, known: Known) -> _C.Entry | None:
    """What is answered where the call at hand sets up what later calls find set up (lazy modules, tables of packages):
    it runs eagerly, with what it calls. None where calls before did, and there was as much left to do."""
    if known.set_up >= SET_UPS:
        return None
    known.set_up += 1
    return _C.Entry(code_running_eagerly(info.code), None, region)


SET_UPS = 3
"""Eager calls of one function, for what is set up one after the other."""


def not_evaluated(code: CodeType) -> errors.BreakReason:
    """Why the graph ends at an instruction that capture once found to raise, which it did not."""
    return errors.BreakReason(
        "call that capture cannot evaluate",
        "",
        "A call seemed to raise while it was captured, and did not when it ran.",
        ("Call it outside the compiled function.",),
        (_first_line(code),),
    )


def unless_it_returns(
    info: _C.FrameInfo, region: Region, known: Known, what: str, origin: tuple[int, int | None]
) -> _C.Answer:
    """The program raises in this call, so capture found: it runs eagerly, and is believed only if it does raise.

    Arguments:
        what: what it is said to raise.
        origin: number and offset of the root instruction that is said to raise.
    """
    code, fullgraph = info.code, region.fullgraph

    def returned() -> None:
        events.emit("frame_returned", "capture", what, function=code_words(code))
        known.raised_in.discard(region)
        known.not_raising[origin[0]] = origin[1]  # from now on the graph ends there, and the instruction runs as it is
        if fullgraph:
            raise errors.Unsupported(
                f"capture cannot evaluate a call that seemed to raise, and did not ({what}); fullgraph=True",
                remedy="leave fullgraph out, or call it outside the compiled function.",
                where=(_first_line(code),),
            )

    return returned


def because_of(ending: errors.GraphBreak, inner: errors.BreakReason | None) -> errors.GraphBreak:
    """A frame that is given up because it cannot be split at a break: name the break, its line and its hints too."""
    reason = ending.reason
    if inner is not None and inner is not reason and not reason.where:
        reason.where = inner.where
        if inner.explanation not in reason.explanation:
            reason.explanation = f"{inner.explanation} {reason.explanation}"
        reason.hints = tuple(dict.fromkeys((*inner.hints, *reason.hints)))
    return ending


# ---------------------------------------------------------------------- errors


def failed(error: BaseException, info: _C.FrameInfo, region: Region, known: Known) -> _C.Answer:
    """An error of argand's or of a backend: raised, or with `suppress_errors` one warning; the frame runs eagerly."""
    if isinstance(error, errors.InternalError):
        return internal_failure(error, info, region, known)
    if isinstance(error, errors.ArgandError) and not error.where:
        error.where = (_first_line(info.code),)
    if not config.suppress_errors or not isinstance(error, errors.ArgandError) or isinstance(error, errors.Unsupported):
        raise error from error.__cause__
    said = str(error) if config.verbose else f"{error.cause}\n(argand.config.verbose = True shows the whole error)"
    text = f"argand: {place_of(info.code)} runs eagerly, because of suppress_errors: {said}"
    warn_once(known.warned, "failed", text, info.code)
    events.emit("suppressed", "capture", f"{type(error).__name__}: {error.cause}", function=place_of(info.code))
    _report_skipped(info, "compiling failed", error.cause, "Fix the error, or leave the function out: argand.disable.")
    return _C.SKIP


def internal_failure(error: BaseException, info: _C.FrameInfo, region: Region, known: Known) -> _C.Answer:
    """A bug in argand: the frame runs eagerly, with one warning; with fullgraph it is raised."""
    inner: BaseException = getattr(error, "error", error)
    cause = f"capturing {place_of(info.code)} failed inside argand: {type(inner).__name__}: {inner}"
    where = _interpreted_lines(error) or (_first_line(info.code),)
    if region.fullgraph and not config.suppress_errors:
        raise errors.InternalError(cause, remedy=report_this(), where=where) from error
    detail = "\n" + "".join(traceback.format_exception(error)) if config.verbose else ""
    lines = "\n".join(f"  {line}" for line in where)
    text = f"argand: {cause}\nThe function runs eagerly.\n\nfrom user code:\n{lines}\n\n{report_this()}{detail}"
    warn_once(known.warned, "internal", text, info.code)
    events.emit("suppressed", "capture", cause, function=place_of(info.code))
    _report_skipped(info, "error inside argand", cause, "Please report it; the function runs eagerly meanwhile.", where)
    return _C.SKIP


def report_this() -> str:
    """The paragraph that ends an internal error: what to send, and how to go on meanwhile."""
    compile_id = events.bus.compile_id
    return (
        "this is a bug in argand, not in your program. Please report it with the lines above, a script that shows it "
        f"if you can, and: argand {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, compile id [{compile_id}]. argand.config.verbose = True (or "
        "ARGAND_VERBOSE=1) shows argand's own stack trace; argand.disable on the function leaves it out."
    )


def _first_line(code: CodeType) -> errors.UserLine:
    line = code.co_firstlineno
    return errors.UserLine(code.co_filename, line, code.co_name, source_line(code.co_filename, line).strip())


def _interpreted_lines(error: BaseException) -> tuple[errors.UserLine, ...]:
    """The user's lines that were being interpreted when an error came up, read off argand's own frames."""
    lines = []
    step = error.__traceback__
    while step is not None:
        frame: Any = step.tb_frame.f_locals.get("frame")
        if step.tb_frame.f_code.co_name in ("run", "run_root") and hasattr(frame, "program") and not frame.quiet:
            lines.append(line_of_frame(frame))
        step = step.tb_next
    return tuple(lines)


def _report_skipped(
    info: _C.FrameInfo, kind: str, explanation: str, hint: str, where: tuple[errors.UserLine, ...] = ()
) -> None:
    if events.bus.wanted("graph_breaks"):
        lines = where or (_first_line(info.code),)
        reason = errors.BreakReason(kind, "", errors.sentence(explanation), (hint,), lines)
        events.emit(
            "graph_breaks", "capture", str(reason), reason=reason, function=code_words(info.code), frame_skipped=True
        )


# ---------------------------------------------------------------------- recompiles


def report_recompile(info: _C.FrameInfo) -> None:
    """Tell whoever listens why no compiled version fitted; a decorator's wrapper around another function is another."""
    if all(_OF_ANOTHER.fullmatch(label) for _, label, _ in info.failures) or not events.bus.wanted("recompiles"):
        return
    recompile = recompiles.of_frame(info.code, info.failures, _C.code_entries(info.code))
    events.emit(
        "recompiles",
        "capture",
        str(recompile),
        function=recompile.function,
        reasons=[str(failure) for failure in recompile.failures],
        recompile=recompile,
    )


def without_compiling(info: _C.FrameInfo) -> _C.Answer:
    """A miss under a stance that compiles nothing: the frame runs eagerly, or is an error."""
    report_recompile(info)
    if stance.CURRENT.name != "fail_on_recompile":
        return None
    recompile = recompiles.of_frame(info.code, info.failures, _C.code_entries(info.code))
    why = f"no compiled version of {place_of(info.code)} fits this call"
    if not recompile.failures:
        why = f"{place_of(info.code)} has not been compiled"
    raise errors.RecompileForbidden(
        f'{why}, and the stance is "fail_on_recompile"' + "".join(f"\n  {failure}" for failure in recompile.failures),
        remedy=recompile.failures[0].remedy
        if recompile.failures
        else "call it once under the default stance to compile it.",
        where=(_first_line(info.code),),
    )


def warn_cache_limit(info: _C.FrameInfo, known: Known) -> None:
    """One warning per function that there are as many compiled versions as allowed."""
    recompile = recompiles.of_frame(info.code, info.failures, _C.code_entries(info.code))
    last = recompile.failures[0] if recompile.failures else None
    lines = [
        f"argand hit config.cache_size_limit ({config.cache_size_limit}): calls that no compiled version fits now run "
        "eagerly.",
        f"   function: {place_of(info.code)}",
        f"   last reason: {last} [{last.guard}]" if last else "   last reason: unknown",
    ]
    if last and last.where is not None:
        lines.append("   needed by: " + str(last.where).replace("\n", "\n   "))
    if last:
        lines.append(f"   what to do: {last.remedy}")
    lines.append(f"   {CACHE_LIMIT_HELP}")
    events.emit("cache_size_limit", "capture", "\n".join(lines), function=recompile.function, recompile=recompile)
    warn_once(known.warned, "cache_size_limit", "\n".join(lines), info.code)
