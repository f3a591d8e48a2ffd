"""Which local names may still be read: backward data flow over instructions, exception edges included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType

from argand.bytecode.flow import zero_argument_super_calls
from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import KIND_OF, Kind
from argand.errors import InternalError

# Builtins that look at the caller's local variables behind the bytecode's back.
LOCALS_READERS = frozenset(["locals", "vars", "dir", "eval", "exec"])

_READS = frozenset(["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "MAKE_CELL"])
_WRITES = frozenset(["STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_CELL"])


def local_names(inst: Instruction) -> tuple[str, ...]:
    """Names that an opcode on plain locals reads or writes (not those of opcodes on cells)."""
    kind = KIND_OF.get(inst.opname)
    if kind == Kind.LOCAL:
        return (inst.argval,)
    return tuple(inst.argval) if kind == Kind.PAIR else ()


def accesses(inst: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(locals that it reads before writing them, locals that it writes).

    DELETE_FAST reads (it raises for an unbound name) and writes. An opcode on a cell reads it, even a store: the cell
    itself must be there. MAKE_CELL reads the plain value and puts a new cell in its place.
    """
    opname = inst.opname
    kind = KIND_OF.get(opname)
    if kind == Kind.LOCAL or opname == "MAKE_CELL":
        name = (inst.argval,)
        return (name if opname in _READS else ()), (name if opname in _WRITES else ())
    if kind == Kind.DEREF:
        return (inst.argval,), ()
    if kind == Kind.PAIR:
        first, second = inst.argval
        if opname == "LOAD_FAST_LOAD_FAST":
            return (first, second), ()
        if opname == "STORE_FAST_STORE_FAST":
            return (), (first, second)
        return (() if first == second else (second,)), (first,)
    return (), ()


def live_locals(
    instructions: Sequence[Instruction], code: CodeType | None = None
) -> Callable[[Instruction], frozenset[str]]:
    """Find the local variables, plain or cells, that may be read before written from an instruction on.

    Arguments:
        instructions: a whole code; unreachable parts are harmless.
        code: the code object they were decoded from, when there is one. With it, free variables are left out, a
            zero-argument `super()` reads the first argument, and a use of `locals`, `vars`, `dir`, `eval` or `exec`
            reads every local variable. Without it, free variables count as locals and those reads are not seen.

    Returns a function from an instruction of the list to the names live just before it.
    """
    flow = _Flow(instructions, code)
    flow.solve()
    return flow.names_before


class _Flow:
    """Sets of names as bits of integers; one bit a name."""

    def __init__(self, instructions: Sequence[Instruction], code: CodeType | None) -> None:
        self.instructions = instructions
        self.index = {inst: i for i, inst in enumerate(instructions)}
        self.bits: dict[str, int] = {}
        self.every_local = 0
        self.first_argument = 0
        self.super_calls: dict[Instruction, Instruction] = {}
        self.ignored: frozenset[str] = frozenset()
        self.code = code
        if code is not None:
            # An inlined comprehension may use the name, even the slot, of a free variable as its own: then it stays.
            used = {name for inst in instructions for name in local_names(inst)}
            self.ignored = frozenset(code.co_freevars) - set(code.co_varnames) - used
            for name in (*code.co_varnames, *code.co_cellvars):
                self.every_local |= self._bit(name)
            if code.co_argcount and "__class__" in code.co_freevars:
                self.first_argument = self._bit(code.co_varnames[0])
                self.super_calls = zero_argument_super_calls(instructions, code)
        self.reads: list[int] = []
        self.keeps: list[int] = []
        for inst in instructions:
            read, written = self._access_bits(inst)
            self.reads.append(read)
            self.keeps.append(~written)
        self.live = [0] * len(instructions)
        self.memo: dict[int, frozenset[str]] = {}

    def _bit(self, name: str) -> int:
        if name in self.ignored:
            return 0
        return self.bits.setdefault(name, 1 << len(self.bits))

    def _access_bits(self, inst: Instruction) -> tuple[int, int]:
        read, written = accesses(inst)
        reads = writes = 0
        for name in read:
            reads |= self._bit(name)
        for name in written:
            writes |= self._bit(name)
        if inst in self.super_calls:
            reads |= self.first_argument
        elif self.code is not None and inst.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if inst.argval == "super":
                reads |= self.first_argument
            elif inst.argval in LOCALS_READERS:
                reads |= self.every_local
        return reads, writes

    def solve(self) -> None:
        """Repeat backward sweeps until nothing changes: one sweep, and about one more per depth of nested loops."""
        edges = [
            (
                not inst.is_terminator and i + 1 < len(self.instructions),
                self._position(inst.target),
                self._position(inst.handler.target) if inst.handler is not None else -1,
            )
            for i, inst in enumerate(self.instructions)
        ]
        live, reads, keeps = self.live, self.reads, self.keeps
        changed = True
        while changed:
            changed = False
            for i in range(len(live) - 1, -1, -1):
                falls, target, handler = edges[i]
                after = live[i + 1] if falls else 0
                if target >= 0:
                    after |= live[target]
                before = reads[i] | (after & keeps[i])
                if handler >= 0:
                    # Whatever raises does so before it writes; the whole instruction may also not have run at all.
                    before |= live[handler]
                if before != live[i]:
                    live[i] = before
                    changed = True

    def _position(self, inst: Instruction | None) -> int:
        if inst is None:
            return -1
        if inst not in self.index:
            raise InternalError(f"{inst} is the target of a jump or handler but is not in the list")
        return self.index[inst]

    def names_before(self, inst: Instruction) -> frozenset[str]:
        """Names live just before `inst`."""
        if inst not in self.index:
            raise InternalError(f"{inst} is not in the list whose live locals were asked for")
        mask = self.live[self.index[inst]]
        names = self.memo.get(mask)
        if names is None:
            names = self.memo[mask] = frozenset(name for name, bit in self.bits.items() if mask & bit)
        return names
