"""The guards of one capture: collected while tracing, printed for people, built into a C guard tree at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Final

from argand import errors
from argand._core import _C
from argand.bytecode.format import constant_text
from argand.capture.facts import interfaces
from argand.capture.facts.handlers import Args
from argand.capture.facts.interfaces import Dynamics
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import ConstSource, DictItemSource, GlobalSource, InstanceDictSource, Source
from argand.capture.facts.typefacts import TypeFacts
from argand.capture.record import conditions
from argand.capture.record.guard_runs import BY_VALUE, Pattern, Run, identity_of, pattern_of
from argand.capture.sizes import symbolic_emit
from argand.graph import time_limit
from argand.outcomes.guard_log import Log
from argand.quick_dataclasses import dataclass

# Kind of check in the C tree -> the name that people read.
LABELS: dict[str, str] = {
    "type": "TYPE_MATCH", "type_version": "TYPE_MATCH", "id": "ID_MATCH", "equals": "CONSTANT_MATCH",
    "base_value": "CONSTANT_MATCH", "is_none": "CONSTANT_MATCH", "not_none": "NOT_NONE_MATCH",
    "len": "SEQUENCE_LENGTH", "dict_keys": "DICT_KEYS", "has_key": "DICT_CONTAINS",
    "not_has_key": "DICT_NOT_CONTAINS", "has_attr": "HASATTR", "not_has_attr": "NOT_HASATTR", "call": "CALL_MATCH",
    "global_state": "GLOBAL_STATE", "functions": "FUNCTION_MATCH", "tensor": "TENSOR_MATCH",
    "same_object": "DUPLICATE_INPUT", "distinct": "NO_ALIASING", "python": "PYTHON_MATCH",
}  # fmt: skip

_CHECKED = 1024  # guards between two looks at the clock
FRAME = "frame"  # stands for node 0


@dataclass(slots=True, eq=False)
class Guard:
    """One check on one source.

    Arguments:
        source: what is checked; None for checks on the frame or process state.
        kind: kind of check as `_core._C.GuardTree.check` names it.
        args: its arguments; a `Source` among them (or in a tuple of them) stands for its node.
        label: the name that people read (`TENSOR_MATCH`).
        position: (code, line) of the user's program that needed it, or None.
        visible: overrides `shown`.
    """

    source: Source | None
    kind: str
    args: Args
    label: str
    position: tuple[CodeType, int] | None = None
    visible: bool | None = None

    @property
    def shown(self) -> bool:
        """Whether the short listing prints it (identity of torch's own functions, process state are not)."""
        if self.visible is not None:
            return self.visible
        return self.source is not None and not _torch_internal(self.source)

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """As `str()`, with single quotes around the path whatever it contains, and the value expected."""
        return f"{self.place()} {self.label}"

    def place(self) -> str:
        """The beginning of `text`."""
        return FRAME if self.source is None else f"{self.source.kind} '{self.source.friendly()}'"


class GuardSet:
    """Collects guards, each once, in the order in which they were needed."""

    def __init__(self) -> None:
        self._guards: dict[object, Guard] = {}
        self.dynamics: Dynamics | None = None
        self.of_process = ""
        """What the capture relies on that is another in each process, if anything: hashes of texts, addresses."""
        self.operators: set[str] = set()
        """Operators of libraries that it calls: what they are made of is traced, and no guard tells if that changes."""
        self.of_rank = False
        """It relies on this process's rank in a group."""
        self.registered: list[tuple[type, type]] = []
        """Classes and abstract ones of theirs that they do not derive from: nobody can take a registration back, but
        another process may not have made it."""
        self.locate: Callable[[], tuple[CodeType, int] | None] | None = None
        self.positions: dict[str, tuple[CodeType, int]] = {}  # by label, filled by build()
        self.runs: dict[int, Run] = {}
        """What was repeated for a part of the program, by how many guards there were before it; none within another."""

    def add(
        self,
        source: Source | None,
        kind: str,
        *args: object,
        position: tuple[CodeType, int] | None = None,
        label: str | None = None,
        shown: bool | None = None,
    ) -> None:
        """Add a check; an identical one is not added twice. `position`: default: what `locate` says."""
        key = (source, kind, identity_of(args) if args else ())
        if key in self._guards:
            return
        if not len(self._guards) % _CHECKED:
            time_limit.check()
        if position is None and self.locate is not None:
            position = self.locate()
        self._guards[key] = Guard(source, kind, args, label or LABELS.get(kind, kind.upper()), position, shown)

    def add_like(self, guard: interfaces.Guard, source: Source, identity: object) -> None:
        """Add a check like one that was added, of another source. `identity`: `identity_of` its arguments."""
        key = (source, guard.kind, identity)
        if key not in self._guards:
            if not len(self._guards) % _CHECKED:
                time_limit.check()
            self._guards[key] = Guard(source, guard.kind, guard.args, guard.label, guard.position, guard.visible)

    def note_run(self, like: object, begin: int, sources: Sequence[Source]) -> None:
        """The guards from number `begin` on were added for a part of the program that is found at the first source.

        Arguments:
            like: runs that have the same are alike.
            sources: all places of the part; alike runs have alike places.
        """
        if len(self._guards) > begin:
            self.runs[begin] = Run(like, len(self._guards), sources)

    def has_like(self, guard: interfaces.Guard, source: Source, identity: object) -> bool:
        """Whether `add_like` would add nothing."""
        return (source, guard.kind, identity) in self._guards

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def __len__(self) -> int:
        return len(self._guards)

    def __str__(self) -> str:
        return "\n".join(f"- {guard.text()}" for guard in self._sorted() if guard.shown)

    def listing(self) -> str:
        """As `str`, with what each tensor must be, and the constants, keys and lengths."""
        lines = []
        for guard in self._sorted():
            if guard.shown:
                detail = ""
                if guard.kind == "tensor":
                    cls, dtype, device, requires_grad, keys, sizes, strides, _ = guard.args
                    detail = (
                        f" class={cls.__name__} dtype={dtype} device={device} requires_grad={requires_grad} "
                        f"size={list(sizes or ())} stride={list(strides or ())}"
                        + (f" dispatch_keys={keys}" if keys else "")
                    )
                elif guard.kind == "is_none":
                    detail = " None"
                elif guard.kind in _WITH_VALUE:
                    detail = f" {_short(guard.args)}"
                lines.append(f"- {guard.text()}{detail}")
        if self.dynamics is not None:
            lines += symbolic_emit.listing(self.dynamics)
        return "\n".join(lines)

    def verbose(self) -> str:
        """Every guard, with its arguments and the user's line that needed it."""
        lines = []
        for guard in self._sorted():
            lines.append(f"- {guard.text()}" + (f" {_short(guard.args)}" if guard.args else ""))
            if guard.position is not None:
                code, line = guard.position
                lines.append(f"    {code.co_filename}:{line} in {code.co_name}")
        return "\n".join(lines)

    def _sorted(self) -> list[Guard]:
        order = {"local": 0, "closure": 1, "global": 2, "builtin": 3, "constant": 4}
        return sorted(self, key=lambda g: 5 if g.source is None else order[g.source.kind])

    def build(self, collected: Sequence[Source] = (), log: Log | None = None) -> _C.GuardTree:
        """The C guard tree, which hands the values of `collected` over. Node paths are computed once per source.

        Arguments:
            log: notes how the tree is built.
        """
        guard_tree = _C.GuardTree() if log is None else log.tree
        tree: Any = guard_tree if log is None else log
        nodes: dict[Source, int] = {}
        wanted, places = frozenset(collected), dict[Source, int]()
        patterns: dict[int, Pattern | None] = {}
        every, at = list(self), 0
        for begin, run in self.runs.items():  # in their order
            self._check(every[at:begin], tree, nodes)
            guards, at, like = every[begin : run.end], run.end, id(run.like)
            pattern = patterns.get(like)
            if pattern is None or not pattern.repeat(
                run, guards, tree, run.sources[0].guard_node(tree, nodes), places, self.positions
            ):
                first = guard_tree.num_guards
                self._check(guards, tree, nodes)
                if like not in patterns:
                    checks = first, guard_tree.num_guards
                    patterns[like] = pattern_of(run, guards, checks, nodes, wanted, [guard.text() for guard in guards])
        self._check(every[at:], tree, nodes)
        _ask(every, tree, lambda source: source.guard_node(tree, nodes))
        if self.dynamics is not None:
            symbolic_emit.build(self.dynamics, tree, lambda source: source.guard_node(tree, nodes), self.positions)
        if collected:
            tree.collect([places.get(source) or source.guard_node(tree, nodes) for source in collected])
        return guard_tree

    def _check(self, guards: Sequence[Guard], tree: Any, nodes: dict[Source, int]) -> None:
        source: Source | None = None
        node, place = 0, FRAME
        for guard in guards:
            if guard.source is not source:  # most sources have several guards, one after the other
                source = guard.source
                node = 0 if source is None else source.guard_node(tree, nodes)
                place = guard.place()
            args, label = guard.args, f"{place} {guard.label}"
            if guard.kind != "id" and not _AS_THEY_ARE.issuperset(map(type, args)):
                args = tuple([_resolve(arg, tree, nodes) for arg in args])
            if guard.position is not None:
                self.positions.setdefault(label, guard.position)
            if guard.label == conditions.LABEL:  # asked together
                continue
            try:
                tree.check(node, guard.kind, *args, label=label)
            except ValueError as refused:  # a class that CPython gives no version tag
                raise errors.graph_break(
                    kind="class that changes too often",
                    context=label,
                    explanation=f"{guard.source.friendly() if guard.source is not None else 'A class'}: {refused}",
                    skip_frame=True,
                ) from None


def _ask(guards: Sequence[Guard], tree: _C.GuardTree | Log, node_of: Callable[[Source], int]) -> None:
    """All conditions in one check."""
    asked = [guard.args for guard in guards if guard.label == conditions.LABEL]
    if asked:
        condition = conditions.Conditions(asked)
        inputs = [node_of(source) for source in condition.sources]
        tree.check(0, "python", condition, inputs, label=f"{FRAME} {conditions.LABEL}")


def _resolve(arg: object, tree: _C.GuardTree, nodes: dict[Source, int]) -> object:
    if is_a(arg, Source):
        return arg.guard_node(tree, nodes)
    if is_a(arg, TypeFacts):  # the names that "type_version" is about, all known by now
        return None if arg.whole else arg.names
    if is_a(arg, list):  # only "distinct" and "python" take a list, of sources
        return [item.guard_node(tree, nodes) for item in arg]
    return arg


_AS_THEY_ARE: Final = BY_VALUE | {tuple, type, float}


def _torch_internal(source: Source) -> bool:
    """Below a torch module (`G['torch'].abs`) or below a constant: implied by what the user sees guarded."""
    for step in source.steps():
        if is_a(step, ConstSource):
            return True
        if is_a(step, DictItemSource) and is_a(step.base, InstanceDictSource):
            if is_a(step.base.base, GlobalSource) and step.base.base.key in ("torch", "F", "nn"):
                return True
    return source.kind == "builtin"


_WITH_VALUE = (
    "equals", "base_value", "len", "dict_keys", "has_key", "not_has_key", "has_attr", "not_has_attr",
)  # fmt: skip
"""Kinds of checks whose short listing says what they compare with."""


def _short(args: Args) -> str:
    text = ", ".join(arg.name() if is_a(arg, Source) else constant_text(arg) for arg in args)
    return text if len(text) <= 300 else text[:297] + "..."
