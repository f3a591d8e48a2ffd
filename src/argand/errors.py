"""Error taxonomy: every failure says what, where and what next.

`GraphBreak` is control flow inside capture; every other class may reach a user, and then carries the stage, the
user's source line when one is known, one sentence of cause and one of remedy.
"""

from __future__ import annotations

import sys
from types import CodeType

from argand.breaks.kinds import EXPLANATIONS, IDS, REMEDIES
from argand.interruptions import let_pass
from argand.quick_dataclasses import dataclass

UNWRITTEN = "argand_unwritten"
"""An error has this attribute where the graph that raised it writes to inputs, and has not written yet."""


def say_unwritten(error: BaseException) -> None:
    """Note on an error that what the graph writes to is as it was."""
    vars(error)[UNWRITTEN] = True


@dataclass(frozen=True, slots=True)
class UserLine:
    """A position in the user's program.

    Arguments:
        text: the line, without the spaces around it.
        start, end: which characters of `text` the operation takes up; -1 where that is not known.
    """

    filename: str
    lineno: int
    function: str
    text: str = ""
    start: int = -1
    end: int = -1

    def __str__(self) -> str:
        head = f'File "{self.filename}", line {self.lineno}, in {self.function}'
        if not self.text:
            return head
        return f"{head}\n    {self.text}" + (f"\n    {self.carets}" if self.carets else "")

    @property
    def carets(self) -> str:
        """The line below `text` that marks the operation; empty when that is the whole line or not known."""
        if not 0 <= self.start < self.end <= len(self.text) or self.end - self.start == len(self.text):
            return ""
        return " " * self.start + "^" * (self.end - self.start)


class ArgandError(Exception):
    """Base of every error that argand raises on purpose.

    Arguments:
        cause: one sentence: what went wrong.
        remedy: one sentence: what the user can do.
        where: stack of user lines, outermost first.
    """

    stage = "argand"

    def __init__(self, cause: str, *, remedy: str = "", where: tuple[UserLine, ...] = ()) -> None:
        let_pass(sys.exc_info()[1])
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        parts = [self.cause]
        if self.where:
            parts.append(
                "\nfrom user code:\n" + "\n".join("  " + str(line).replace("\n", "\n  ") for line in self.where)
            )
        if self.remedy:
            parts.append(f"\nWhat to do: {self.remedy}")
        return "\n".join(parts)


class ConfigError(ArgandError, ValueError):
    """An unknown setting, backend or log name, or a value of the wrong type."""

    stage = "config"


def not_traced(tracer: str) -> ArgandError:
    """The refusal of a tracer of torch's: it would miss what compiled code does without Python."""
    return ArgandError(
        f"{tracer} does not trace what argand compiled: "
        "trace the original, a module's `_orig_mod` or a function's `__wrapped__`"
    )


class Unsupported(ArgandError):
    """With `fullgraph=True`: the program cannot be captured in one graph."""

    stage = "capture"


class RecompileForbidden(ArgandError, RuntimeError):
    """Under the stance "fail_on_recompile": a call needs code that was not compiled before."""

    stage = "capture"


class ConstraintViolation(ArgandError):
    """A size marked with `mark_dynamic` cannot vary as marked: the program, or this call, fixes it."""

    stage = "capture"


class InternalError(ArgandError):
    """An invariant of argand does not hold: a bug in argand."""

    stage = "internal"

    def __init__(self, cause: str, *, remedy: str = "", where: tuple[UserLine, ...] = ()) -> None:
        super().__init__(
            cause,
            remedy=remedy or "this is a bug in argand: please report it with the script",
            where=where,
        )


class BackendCompilerFailed(ArgandError):
    """A backend raised while compiling a captured graph; the original exception is `__cause__`."""

    stage = "backend"

    def __init__(self, backend: str, inner: BaseException, *, where: tuple[UserLine, ...] = ()) -> None:
        notes = "".join(f"\n{note}" for note in getattr(inner, "__notes__", ()))  # where the minifier wrote, say
        super().__init__(
            f"backend={backend!r} raised:\n{type(inner).__name__}: {inner}",
            remedy='compile with backend="eager" to see whether capture alone works, or set '
            f"argand.config.suppress_errors = True to run the frame eagerly instead{notes}",
            where=where,
        )
        self.backend = backend
        self.inner = inner


class AutogradError(ArgandError):
    """A graph cannot be made functional (an unknown mutation, a data-dependent op, aliased inputs): run it eagerly."""

    stage = "autograd"


class VerificationError(InternalError):
    """A graph broke a rule of its stage after a pass."""

    stage = "passes"


class LoweringError(ArgandError):
    """A lowering failed on an ATen node."""

    stage = "lower"


class CppCompileError(ArgandError):
    """The C++ compiler refused a generated kernel."""

    stage = "codegen"


class ToolchainError(ArgandError):
    """Kernels cannot be built on this machine now: the compiler does not work, or there is no room for what it writes.

    Arguments:
        hung: a compiler did not end in time; trying again takes as long.
        disk: it may be the disk: another place may do.
    """

    stage = "runtime"

    def __init__(
        self,
        cause: str,
        *,
        remedy: str = "",
        where: tuple[UserLine, ...] = (),
        hung: bool = False,
        disk: bool = False,
    ) -> None:
        super().__init__(cause, remedy=remedy, where=where)
        self.hung = hung
        self.disk = disk


class ToolchainMissing(ToolchainError):
    """There is no working C++ compiler."""


class GpuError(ArgandError, RuntimeError):
    """Kernels of a GPU cannot be compiled, loaded or launched. A RuntimeError, as torch's errors of a GPU are.

    Arguments:
        code: the driver's number for what went wrong; 0 when it was not asked.
    """

    stage = "runtime"

    def __init__(self, cause: str, *, remedy: str = "", where: tuple[UserLine, ...] = (), code: int = 0) -> None:
        super().__init__(cause, remedy=remedy, where=where)
        self.code = code


class SavedModelError(ArgandError):
    """`argand.save` cannot write a compiled model, or what `argand.load` reads does not fit this process or model."""

    stage = "archive"


class CacheError(ArgandError):
    """A cache file could not be used (corrupt or not owned by the user)."""

    stage = "runtime"


@dataclass(slots=True)
class BreakReason:
    """Why a graph ended: the texts of one graph break.

    Arguments:
        kind: the name of the kind of break, one of `argand.breaks.kinds`, e.g. "data-dependent branch".
        context: the objects involved, short, for the developer.
        explanation: one or two sentences for the user.
        hints: what the user can do, one sentence each.
        where: user stack, outermost first.
    """

    kind: str
    context: str
    explanation: str
    hints: tuple[str, ...] = ()
    where: tuple[UserLine, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in IDS:
            raise InternalError(f"{self.kind!r} is no kind of graph break: argand/breaks/kinds.py has no such name")

    @property
    def id(self) -> str:
        """The stable id of the kind, e.g. "AG0001": its page in docs/graph-breaks.md, `argand breaks AG0001`."""
        return IDS[self.kind]

    @property
    def more(self) -> str:
        """Where to read more of this kind of break."""
        return f"argand breaks {self.id} shows an example before and after (docs/graph-breaks.md)"

    @property
    def headline(self) -> str:
        """Id, kind and explanation in one line."""
        return f"[{self.id}] {self.kind}: {self.explanation}"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.context:
            lines.append(f"  context: {self.context}")
        lines += [f"  hint: {hint}" for hint in self.hints]
        lines += ["  " + str(line).replace("\n", "\n  ") for line in self.where]
        return "\n".join(lines)


@dataclass(slots=True)
class GraphBreak(BaseException):
    """Raised inside capture to end the graph at the current instruction; never reaches the user.

    A BaseException, so that `except Exception` in code that capture runs does not swallow it.

    Arguments:
        skip_frame: the frame cannot be captured at all; it runs eagerly.
        sequence: number of the root instruction at which the graph is to end; None while that is not known.
        instruction: the root instruction itself.
        exception: what the program raises here.
        needed: the object that cannot be rebuilt; the graph may end where it was made instead.
        strict: the program wants an error here instead of a break (`error_on_graph_break`).
        in_loop: it stands in a loop, or a function, that is to run as it is written.
        within: the calls inside of the captured function that it was met in, outermost first: code, instruction.
        sets_up: the call at hand sets up a module, which later calls find set up.
    """

    reason: BreakReason
    skip_frame: bool = False
    sequence: int | None = None
    instruction: object = None
    exception: BaseException | None = None
    needed: object = None
    strict: bool = False
    in_loop: bool = False
    within: tuple[tuple[CodeType, object], ...] = ()
    sets_up: bool = False

    def met_at(self, sequence: int, instruction: object) -> None:
        """Note the root instruction that was under way, unless it is known already."""
        if self.sequence is None:
            self.sequence = sequence
        if self.instruction is None:
            self.instruction = instruction

    def __str__(self) -> str:
        return str(self.reason)


def graph_break(
    *, kind: str, context: str = "", explanation: str = "", hints: tuple[str, ...] = (), skip_frame: bool = False
) -> GraphBreak:
    """Build the one exception by which every graph break is raised (`raise graph_break(kind=...)`).

    Arguments: see `BreakReason`. Explanation and hints come out as sentences (first letter, full stop); without either,
    what `breaks.kinds` says of this kind of break is said.
    """
    let_pass(sys.exc_info()[1])
    explanation = explanation or EXPLANATIONS.get(kind, "").replace("{context}", context)
    said = tuple(map(sentence, hints)) or (REMEDIES.get(kind, "").replace("`", ""),)
    return GraphBreak(BreakReason(kind, context, sentence(explanation), said), skip_frame)


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop, unless it begins with a name of the program."""
    text = text.strip()
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower():
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else text + "."
