"""A group becomes a `KernelPlan`: stages with their bodies merged, values forwarded, row buffers made local."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from argand.graph.sizes.expr import ONE, ZERO, Expr, Simplifier, Sym, Var, substitute, sum_of
from argand.ir.kernel import KernelPlan, Stage
from argand.ir.loops import (
    CHECKS,
    Buffer,
    LoopBlock,
    LoopBody,
    LoopNode,
    Origin,
    Value,
    element_dtype,
    expressions,
    statements_of,
)
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.access import hint, hint_bytes, itemsize, operands
from argand.schedule.fusion.group import Group, Member, StageDraft
from argand.schedule.fusion.loops import WeightedIndex, coalesce, loop_order
from argand.schedule.space import affine, is_dense_row

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Local:
    """A buffer that lives inside the kernel.

    Arguments:
        buffer: its local layout (registers: no dimensions).
        index: index in the global buffer -> local index.
        also_global: it is stored to memory as well.
    """

    buffer: Buffer
    index: dict[Expr, Expr]
    also_global: bool
    is_register: bool


Seen = dict[tuple[Any, ...], Value]
StageLoops = tuple[dict[Var, Expr], list[tuple[Var, Expr]], list[tuple[Var, Expr]]]


@dataclass(slots=True)
class _Scope:
    """What names mean while one member is copied: old value ids, and variables of `indirect` values."""

    member: Member
    known: dict[int, Value]
    indirect: dict[Var, Expr]


@dataclass(slots=True)
class StageBuilder:
    """Copies the statements of a stage's members into one body.

    Arguments:
        simplify: knows the ranges of the stage's final loop variables.
        final: the group's loop variables in terms of the stage's.
        locals: buffers that live inside the kernel.
        dead: buffers that need no memory: their stores are dropped.
        buffers: of the program.
    """

    simplify: Simplifier
    final: Mapping[Var, Expr]
    locals: Mapping[str, Local]
    dead: frozenset[str]
    buffers: Mapping[str, Buffer]
    statements: list[Value] = field(default_factory=list)
    forward: dict[tuple[str, Expr], Value] = field(default_factory=dict)
    count: int = 0

    def run(self, members: Iterable[Member]) -> list[Value]:
        """The statements of all `members`, in order."""
        seen: dict[tuple[Any, ...], Value] = {}
        for member in members:
            scope = _Scope(member, {}, {})
            self._copy(member.node.body.statements, scope, self.statements, seen)
        return self.statements

    def _copy(self, source: Iterable[Value], scope: _Scope, into: list[Value], seen: Seen) -> None:
        for old in source:
            if old.op == "store":
                self._store(old, scope, into)
                continue
            if old.op == "load":
                copied = self._load(old, scope, into, seen)
            elif any(isinstance(arg, LoopBlock) for arg in old.args):
                args = tuple(self._block(arg, scope, seen) for arg in old.args)
                copied = self._append(old.op, args, old.dtype, old.origin, into)
            else:
                copied = self._value(old, tuple(self._arg(arg, scope) for arg in old.args), into, seen)
                if old.op == "indirect":
                    scope.indirect[Var(f"i{old.id}")] = Var(f"i{copied.id}")
            scope.known[old.id] = copied

    def _block(self, arg: Any, scope: _Scope, seen: Seen) -> Any:
        if not isinstance(arg, LoopBlock):
            return self._arg(arg, scope)
        inner: list[Value] = []
        nested = _Scope(scope.member, dict(scope.known), dict(scope.indirect))
        self._copy(arg.statements, nested, inner, dict(seen))
        return LoopBlock(inner, nested.known[arg.result.id])

    def _arg(self, arg: Any, scope: _Scope) -> Any:
        if isinstance(arg, Value):
            return scope.known[arg.id]
        if isinstance(arg, Expr):
            return self._index(arg, scope)
        if isinstance(arg, (tuple, list)):
            return tuple(self._arg(item, scope) for item in arg)
        return arg

    def _index(self, expr: Expr, scope: _Scope) -> Expr:
        final = self.simplify.simplify(substitute(scope.member.index[expr], self.final))
        return substitute(final, scope.indirect) if scope.indirect else final

    def _append(
        self, op: str, args: tuple[Any, ...], dtype: torch.dtype, origin: Origin | None, into: list[Value]
    ) -> Value:
        statement = Value(self.count, op, args, dtype, origin)
        self.count += 1
        into.append(statement)
        return statement

    def _value(self, old: Value, args: tuple[Any, ...], into: list[Value], seen: Seen) -> Value:
        key = (old.op, old.dtype, *[argument_key(arg) for arg in args])
        statement = seen.get(key)
        if statement is None:
            statement = seen[key] = self._append(old.op, args, old.dtype, old.origin, into)
        return statement

    def _load(self, old: Value, scope: _Scope, into: list[Value], seen: Seen) -> Value:
        name = old.args[0]
        index = self._index(old.args[1], scope)
        stored = self.forward.get((name, index))
        if stored is not None:
            return stored
        local = self.locals.get(name)
        if local is not None:
            name, index = local.buffer.name, local.index[index]
        return self._value(old, (name, index, *old.args[2:]), into, seen)

    def _store(self, old: Value, scope: _Scope, into: list[Value]) -> None:
        name, _, stored, *mode = old.args
        index = self._index(old.args[1], scope)
        value = scope.known[stored.id]
        dtype = element_dtype(self.buffers[name].dtype)
        if not any(mode):
            if value.dtype != dtype:
                value = self._append("to_dtype", (value, dtype), dtype, old.origin, into)
            self.forward[name, index] = value
        local = self.locals.get(name)
        if local is not None:
            args = (local.buffer.name, local.index[index], value, *mode)
            self._append("store", args, old.dtype, old.origin, into)
        if name not in self.dead and (local is None or local.also_global):
            self._append("store", (name, index, value, *mode), old.dtype, old.origin, into)


def argument_key(arg: Any) -> Any:
    """What is equal for two arguments of a statement that are the same, of the same type."""
    if isinstance(arg, Value):
        return ("v", arg.id)
    if isinstance(arg, (tuple, list)):
        return tuple([argument_key(item) for item in arg])
    if isinstance(arg, float):
        return ("f", arg.hex())  # 0.0 and -0.0 are different constants, nan is one
    return (type(arg).__name__, arg)


@dataclass(slots=True)
class Emitter:
    """Turns groups into kernels.

    Arguments:
        buffers: of the program.
        targets: of the devices of the groups.
    """

    buffers: Mapping[str, Buffer]
    targets: Mapping[torch.device, Target]

    def emit(self, group: Group, needed: frozenset[str], name: str) -> KernelPlan:
        """The kernel of `group`; `needed` are buffers that something outside of it uses."""
        shared = list(group.outer) if len(group.stages) > 1 else []
        exprs = {id(member): list(dict.fromkeys(member.index.values())) for member in group.members}
        dims = dict(group.dims)
        everything = [expr for group in exprs.values() for expr in group]
        shared, mapping, _ = coalesce(shared, dims, everything)
        shared = self._best_order(shared, group.members, mapping)
        outer_vars = [Var(f"x{number}") for number in range(len(shared))]
        outer_map: dict[Var, Expr] = {**mapping, **dict(zip(shared, outer_vars))}
        ranges = {final: dims[var] for final, var in zip(outer_vars, shared)}
        outer = tuple((final, dims[var]) for final, var in zip(outer_vars, shared))
        plans = [self._stage_loops(draft, dims, outer_map, exprs) for draft in group.stages]
        dead = self._dead(group, needed)
        local_of = self._locals(group, plans, needed, dead, ranges)
        stages = [self._stage(draft, loops, outer, local_of, dead) for draft, loops in zip(group.stages, plans)]
        return self._finish(name, outer, stages, local_of, group)

    def _best_order(self, loops: list[Var], members: Iterable[Member], mapping: Mapping[Var, Expr]) -> list[Var]:
        """`loop_order`, by what members read and write."""
        if len(loops) < 2:
            return loops
        weighted = []
        for member in members:
            for is_store, accesses in ((False, member.loads), (True, member.stores)):
                for name, index in accesses:
                    weight = float(hint_bytes(self.buffers[name]))
                    weighted.append(WeightedIndex(substitute(index, mapping), weight, is_store))
        return loop_order(loops, weighted)

    def _stage_loops(
        self,
        draft: StageDraft,
        dims: dict[Var, Expr],
        outer_map: Mapping[Var, Expr],
        exprs: Mapping[int, list[Expr]],
    ) -> StageLoops:
        """Final mapping of a stage's variables, its own loops and its reduction loops."""
        members = [*draft.inside, *draft.post]
        mine = [expr for member in members for expr in exprs[id(member)]]
        mine = [substitute(expr, outer_map) for expr in mine]
        own = [v for v in _in_order(members, "point") if v not in outer_map and v not in draft.reduce]
        reduced = [v for v in _in_order(members, "reduce") if v in draft.reduce]
        reduced += [v for v in _in_order(members, "point") if v in draft.reduce and v not in reduced]
        sizes = dict(dims)
        mapping: dict[Var, Expr] = dict(outer_map)
        result = []
        for letter, loops in (("y", own), ("r", reduced)):
            if letter == "r" and draft.order is not None:
                left = list(draft.order)
            else:
                left, joined, mine = coalesce(loops, sizes, mine)
                mapping.update(joined)
                left = self._best_order(left, members, mapping)
            finals = [(Var(f"{letter}{number}"), sizes[var]) for number, var in enumerate(left)]
            mapping.update({var: final for var, (final, _) in zip(left, finals)})
            result.append(finals)
        return mapping, result[0], result[1]

    def _dead(self, group: Group, needed: frozenset[str]) -> frozenset[str]:
        """Buffers of the group whose every use gets the value without memory."""
        place = _places(group)
        dead = {name for name in group.writes() if name not in needed}
        for member in group.members:
            for name, index in member.loads:
                if name not in dead:
                    continue
                writer, stored = _writer(group, name)
                if place[id(writer)] != place[id(member)] or stored is not index:
                    dead.discard(name)
        return frozenset(dead)

    def _locals(
        self,
        group: Group,
        plans: list[StageLoops],
        needed: frozenset[str],
        dead: frozenset[str],
        ranges: Mapping[Var, Expr],
    ) -> dict[str, Local]:
        """Which buffers become registers or row buffers. Keys of `Local.index` are final indices of any stage."""
        if len(group.stages) < 2:
            return {}
        place = _places(group)
        simplify = [Simplifier({**ranges, **dict(own), **dict(reduced)}) for _, own, reduced in plans]

        def final(member: Member, expr: Expr) -> Expr:
            stage = place[id(member)]
            return simplify[stage].simplify(substitute(expr, plans[stage][0]))

        local_buffers: dict[str, Local] = {}
        scratch_bytes = 0
        outer = set(group.outer)
        for name in dict.fromkeys(name for member in group.members for name, _ in member.stores):
            if name in dead:
                continue
            users = [(m, index) for m in group.members for other, index in (*m.stores, *m.loads) if other == name]
            if len({place[id(m)] for m, _ in users}) < 2:
                continue
            buffer = self.buffers[name]
            also = name in needed
            if all(_variables(index) <= outer for _, index in users):
                register = replace(buffer, name=register_name(name) if also else name, size=(), stride=())
                local_buffers[name] = Local(register, {final(m, index): ZERO for m, index in users}, also, True)
                continue
            row = None if also or not outer else self._row(group, name, [index for _, index in users])
            if row is None:
                continue
            length, to_local = row
            scratch_bytes += hint(length) * itemsize(buffer.dtype)
            if scratch_bytes > self.targets[group.device].scratch_bytes:
                break
            index_map = {final(m, index): final(m, to_local(index)) for m, index in users}
            local_buffers[name] = Local(replace(buffer, size=(length,), stride=(ONE,)), index_map, False, False)
        return local_buffers

    def _row(self, group: Group, name: str, indices: list[Expr]) -> tuple[Expr, Callable[[Expr], Expr]] | None:
        """Length of the part of a buffer that one outer point touches, and the map from global to local index."""
        outer = set(group.outer)
        _, stored = _writer(group, name)
        form = affine(stored, group.dims)
        if form is None:
            return None
        inner = {var: c for var, c in form.coefficients.items() if var not in outer}
        if all(index is stored for index in indices):
            length: Expr = ONE
            terms = []
            for var in sorted(inner, key=lambda v: hint(inner[v])):
                terms.append(var * length)
                length = length * group.dims[var]
            local = sum_of(terms)
            return length, lambda index: local
        dense = is_dense_row(inner, group.dims)
        if dense is None:
            return None
        drop = sum_of([c * v for v, c in form.coefficients.items() if v in outer] + [form.rest])
        return dense, lambda index: index - drop

    def _stage(
        self,
        draft: StageDraft,
        loops: StageLoops,
        outer: tuple[tuple[Var, Expr], ...],
        local_of: Mapping[str, Local],
        dead: frozenset[str],
    ) -> Stage:
        mapping, own, reduced = loops
        simplify = Simplifier(dict((*outer, *own, *reduced)))
        builder = StageBuilder(simplify, mapping, local_of, dead, self.buffers)
        builder.run((*draft.inside, *draft.post))
        statements = arrange(builder.statements, {var for var, _ in reduced})
        every = (*outer, *own)
        body = LoopBody(
            tuple(var for var, _ in every),
            tuple(size for _, size in every),
            tuple(var for var, _ in reduced),
            tuple(size for _, size in reduced),
            statements,
        )
        names = " ".join(member.node.name for member in (*draft.inside, *draft.post))
        return Stage(body, len(own), names)

    def _finish(
        self,
        name: str,
        outer: tuple[tuple[Var, Expr], ...],
        stages: list[Stage],
        local_of: Mapping[str, Local],
        group: Group,
    ) -> KernelPlan:
        local_buffers = {local.buffer.name: local for local in local_of.values()}
        reads: dict[str, None] = {}
        writes: dict[str, None] = {}
        symbols: set[str] = set()
        for _, size in outer:
            symbols.update(_symbols(size))
        for stage in stages:
            for size in (*stage.body.sizes, *stage.body.reduction_sizes):
                symbols.update(_symbols(size))
            for statement in statements_of(stage.body):
                for arg in statement.args:
                    if isinstance(arg, Expr):
                        symbols.update(_symbols(arg))
                if statement.op == "load":
                    reads[statement.args[0]] = None
                elif statement.op == "store":
                    writes[statement.args[0]] = None
        outputs = tuple(n for n in writes if n not in local_buffers)
        inputs = tuple(n for n in reads if n not in local_buffers and n not in writes)
        buffers = {n: self.buffers[n] for n in (*inputs, *outputs)}
        used = {n: local for n, local in local_buffers.items() if n in writes}
        buffers.update({n: local.buffer for n, local in used.items()})
        return KernelPlan(
            name,
            outer,
            tuple(stages),
            {n: local.buffer for n, local in used.items() if not local.is_register},
            frozenset(n for n, local in used.items() if local.is_register),
            inputs,
            outputs,
            tuple(sorted(symbols)),
            buffers,
            origins_of([member.node for member in group.members]),
            group.device,
        )


def register_name(name: str) -> str:
    """What a register is called that holds what is stored to a buffer as well."""
    return f"{name}_value"


def origins_of(nodes: Iterable[LoopNode]) -> tuple[Origin, ...]:
    """Those of all nodes, each once."""
    return tuple(dict.fromkeys([origin for node in nodes for origin in node.origins]))


def arrange(statements: list[Value], reduced: set[Var]) -> list[Value]:
    """Drop statements that no store needs; order: before, inside and after the reduction loops.

    A check stays: it raises where a position is out of bounds, whether or not anything is loaded from there.
    """
    needed: set[int] = set()
    kept = []
    for statement in reversed(statements):
        if statement.op in ("store", *CHECKS) or statement.id in needed:
            needed.update(operands(statement))
            kept.append(statement)
    kept.reverse()
    if not reduced:
        return kept
    inside: set[int] = set()
    after: set[int] = set()
    for statement in kept:
        used = operands(statement)
        if statement.op == "reduction" or not after.isdisjoint(used):
            after.add(statement.id)
        elif statement.op == "scan" or not inside.isdisjoint(used) or _moves(statement, reduced):
            inside.add(statement.id)
    first = [s for s in kept if s.id not in inside and s.id not in after and s.op != "store"]
    reductions = [s for s in kept if s.op == "reduction"]
    last = [s for s in kept if (s.id in after or (s.op == "store" and s.id not in inside)) and s.op != "reduction"]
    return [*first, *[s for s in kept if s.id in inside], *reductions, *last]


def _moves(statement: Value, reduced: set[Var]) -> bool:
    """Whether an index of the statement depends on a reduction variable."""
    return any(not reduced.isdisjoint(expr.free) for expr in expressions(statement))


def _variables(expr: Expr) -> set[Var]:
    return {atom for atom in expr.free if isinstance(atom, Var)}


def _symbols(expr: Expr) -> list[str]:
    return [atom.name for atom in expr.free if isinstance(atom, Sym)]


def _in_order(members: Iterable[Member], kind: str) -> list[Var]:
    variables: dict[Var, None] = {}
    for member in members:
        variables.update(dict.fromkeys(member.point if kind == "point" else member.reduce))
    return list(variables)


def _places(group: Group) -> dict[int, int]:
    """Stage number of each member."""
    return {id(member): number for number, draft in enumerate(group.stages) for member in (*draft.inside, *draft.post)}


def _writer(group: Group, name: str) -> tuple[Member, Expr]:
    for member in group.members:
        for other, index in member.stores:
            if other == name:
                return member, index
    raise KeyError(name)
