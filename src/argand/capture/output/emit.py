"""Bytecode of the transformed frame: an assembler that knows sources and temporaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import CodeType

from argand.bytecode.assemble import Assembler
from argand.capture.facts.sources import (
    BuiltinSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    GlobalSource,
    LocalSource,
    Source,
)

_ROOTS = (LocalSource, GlobalSource, BuiltinSource, ClosureSource, ClosureCellSource, ConstSource)


class Emitter:
    """An assembler that knows sources and temporaries; the `LoadTarget` of `Source.load`.

    Arguments:
        code: code object of the frame.
        uses: how often each source is loaded (from a dry run); those loaded again are kept in a temporary.
    """

    def __init__(self, code: CodeType, uses: Counter[Source] | None = None) -> None:
        self.asm = Assembler((code.co_firstlineno, code.co_firstlineno, 0, 0))
        asm = self.asm
        self.load_global, self.load_closure, self.load_closure_cell = asm.load_global, asm.load_deref, asm.load_closure
        self.load_const, self.attr = asm.load_const, asm.load_attr
        self.code = code
        self.uses: Counter[Source] = uses if uses is not None else Counter()
        self.seen: Counter[Source] = Counter()
        self._cached: dict[Source, str] = {}
        self.temps: list[str] = []
        self.cleared: set[str] = set()  # temporaries that hold nothing any more
        self._cells = frozenset(code.co_cellvars)
        self.afterwards: list[Callable[[], None]] = []

    def emit_afterwards(self) -> None:
        """What waits until the program's effects are done."""
        for emit in self.afterwards:
            emit()

    # ---------------------------------------------------------------- temporaries

    def new_temp(self, hint: str = "t") -> str:
        """Name of a new local variable that the user's code cannot have."""
        name = f"___{hint}_{len(self.temps)}"
        self.temps.append(name)
        return name

    def store_temp(self, hint: str = "t") -> str:
        """value -> ; the name of the temporary that holds it."""
        name = self.new_temp(hint)
        self.asm.store_fast(name)
        return name

    def clear(self, kept: set[str], locals_: list[str]) -> None:
        """Let go of temporaries but for those kept, and of local variables that the program has let go of."""
        self._cached.clear()
        for name in [*[name for name in self.temps if name not in kept], *locals_]:
            self.asm.load_const(None)
            self.asm.store_fast(name)
        self.cleared.update(name for name in self.temps if name not in kept)

    def push_away(self, names: list[str]) -> None:
        """-> the values of temporaries, which let go of them: an error drops the stack from its top down, and then the
        locals."""
        for name in names:
            self.asm.load_fast(name)
            self.asm.load_const(None)
            self.asm.store_fast(name)

    def store_back(self, names: list[str]) -> None:
        """What `push_away` pushed ->."""
        for name in reversed(names):
            self.asm.store_fast(name)

    # ---------------------------------------------------------------- sources

    def load_source(self, source: Source) -> None:
        """-> value."""
        self.seen[source] += 1
        name = self._cached.get(source)
        if name is not None:
            self.asm.load_fast(name)
            return
        source.load(self)
        if self.uses[source] > 1 and not isinstance(source, _ROOTS):
            self.asm.dup()
            self._cached[source] = self.store_temp("s")

    def load_local(self, name: str) -> None:
        if name in self._cells:
            self.asm.load_deref(name)
        else:
            self.asm.load_fast(name)

    def subscript(self, key: object) -> None:
        self.asm.load_const(key)
        self.asm.binary_subscr()

    # ---------------------------------------------------------------- calls

    def call_helper(self, helper: object, extra: tuple[object, ...] = ()) -> None:
        """value -> helper(value, *extra)."""
        scratch = self.store_temp("h")
        self.asm.load_const_callable(helper)
        self.asm.load_fast(scratch)
        for item in extra:
            self.asm.load_const(item)
        self.asm.call(1 + len(extra))

    def call_on(self, helper: object, count: int) -> None:
        """value * count -> helper(*values)."""
        self.asm.build_tuple(count)
        scratch = self.store_temp("h")
        self.asm.load_const_callable(helper)
        self.asm.load_fast(scratch)
        self.asm.call_function_ex(False)
