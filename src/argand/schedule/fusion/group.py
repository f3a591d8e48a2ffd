"""Groups of loop nodes that run in one kernel, and whether two groups may become one.

A group has one set of loop variables; each member iterates a part of them. Members run in *stages*: loop nests one
after the other inside the loops that all of them share (`outer`). Softmax is one group with three stages: max, sum of
exp, quotient.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from argand.graph.sizes.expr import ZERO, Expr, Simplifier, Var, as_int, product, substitute, sum_of
from argand.ir.loops import Buffer, LoopNode, expressions, statements_of
from argand.ir.operations import ELEMENTARY, cost
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.access import hint, hint_numel, itemsize
from argand.schedule.space import FreshVars, Unifier, affine, is_dense_row
from argand.schedule.split import SHORT_ROWS

if TYPE_CHECKING:
    import torch

_LARGE_BYTES = 4 << 20  # of a result, which a reduction of its columns would else read from memory again
_FULL_VECTOR = 16
_SHORT_ROW = 320  # bytes
_LEAST_WORK = 1 << 14  # additions: a kernel of its own costs as much
_WINDOW = 4  # loads of one buffer by one loop node, beyond which they are a window that slides


@dataclass(slots=True, eq=False)
class Member:
    """A loop node inside a group.

    Arguments:
        node: the loop node.
        position: its place in program order.
        point, reduce: the group's variables that it iterates, outermost first: pointwise, reduced.
        index: every index expression of its body -> the same in terms of the group's variables.
        loads, stores: (buffer, index in terms of the group's variables).
        inside: buffers that it stores inside its reduction loops.
        ordered: its result depends on the order of its reduction loops (argmax: position of the first maximum; a scan).
    """

    node: LoopNode
    position: int
    index: dict[Expr, Expr]
    point: tuple[Var, ...]
    reduce: tuple[Var, ...]
    loads: list[tuple[str, Expr]]
    stores: list[tuple[str, Expr]]
    inside: frozenset[str]
    ordered: bool = False

    @property
    def loops(self) -> frozenset[Var]:
        return frozenset((*self.point, *self.reduce))

    def rewritten(
        self, split: Mapping[Var, Expr], parts: Mapping[Var, tuple[Var, ...]], simplify: Simplifier
    ) -> Member:
        """This member after some loop variables became expressions of others."""

        index = {old: simplify.simplify(substitute(expr, split)) for old, expr in self.index.items()}
        changed = dict(zip(self.index.values(), index.values()))

        def flat(names: Iterable[Var]) -> tuple[Var, ...]:
            return tuple(part for var in names for part in parts.get(var, (var,)))

        return Member(
            self.node,
            self.position,
            index,
            flat(self.point),
            flat(self.reduce),
            [(name, changed[index]) for name, index in self.loads],
            [(name, changed[index]) for name, index in self.stores],
            self.inside,
            self.ordered,
        )


@dataclass(slots=True, eq=False)
class StageDraft:
    """Members that share a loop nest: `inside` in the loops (reductions included), `post` after the reductions."""

    loops: frozenset[Var]
    reduce: frozenset[Var]
    inside: list[Member] = field(default_factory=list)
    post: list[Member] = field(default_factory=list)
    order: tuple[Var, ...] | None = None  # of the reduction loops, where a result depends on it (argmax)


@dataclass(slots=True, eq=False)
class Group:
    """Loop nodes that run in one kernel (or one node that runs alone).

    Arguments:
        dims: loop variables and their sizes.
        members: in program order.
        device: of all its buffers.
        blocked: loop variables that must not be shared by all stages, because a stage reads across them.
        stages: None until the group was given its stages.
        outer: loop variables shared by all stages, when there are several.
    """

    dims: dict[Var, Expr]
    members: list[Member]
    device: torch.device
    blocked: frozenset[Var] = frozenset()
    stages: list[StageDraft] = field(default_factory=list)
    outer: tuple[Var, ...] = ()
    statements: int = 0

    def reads(self) -> set[str]:
        return {name for member in self.members for name, _ in member.loads}

    def writes(self) -> set[str]:
        return {name for member in self.members for name, _ in member.stores}


def single(node: LoopNode, position: int, fresh: FreshVars, device: torch.device) -> Group:
    """A group of one node, which runs on `device`; loops of one iteration are dropped."""
    body = node.body
    subst: dict[Var, Expr] = {}
    dims: dict[Var, Expr] = {}
    kinds: tuple[list[Var], list[Var]] = ([], [])
    for kind, names, sizes in ((0, body.vars, body.sizes), (1, body.reduction_vars, body.reduction_sizes)):
        for name, size in zip(names, sizes):
            if as_int(size) == 1 and kind == 0:
                subst[name] = ZERO
                continue
            var = fresh.var()
            subst[name] = var
            dims[var] = size
            kinds[kind].append(var)
    simplify = Simplifier(dims)
    index: dict[Expr, Expr] = {}
    loads: dict[tuple[str, Expr], None] = {}
    stores: dict[tuple[str, Expr], None] = {}
    inside = set()
    reduced = set(kinds[1])
    statements = statements_of(body)
    ordered = any(s.op == "scan" or (s.op == "reduction" and s.args[0] in ("argmax", "argmin")) for s in statements)
    for statement in statements:
        for expr in expressions(statement):
            if expr not in index:
                index[expr] = simplify.simplify(substitute(expr, subst))
        if statement.op == "load":
            loads[statement.args[0], index[statement.args[1]]] = None
        elif statement.op == "store":
            stored = index[statement.args[1]]
            stores[statement.args[0], stored] = None
            if not reduced.isdisjoint(stored.free):
                inside.add(statement.args[0])
    member = Member(
        node, position, index, tuple(kinds[0]), tuple(kinds[1]), list(loads), list(stores), frozenset(inside), ordered
    )
    group = Group(dims, [member], device, statements=len(statements))
    group.stages = assign_stages(group.members)
    return group


def assign_stages(members: list[Member]) -> list[StageDraft]:
    """Put members (in program order) into as few stages as their dependencies and loops allow."""
    stages: list[StageDraft] = []
    written: dict[str, tuple[int, bool, Expr]] = {}  # buffer -> stage, inside the loops, index
    for member in members:
        loops, reduce = member.loops, frozenset(member.reduce)
        low_inside = low_post = 0
        for name, index in member.loads:
            if name not in written:
                continue
            stage, inside, stored = written[name]
            same = stored is index
            low_inside = max(low_inside, stage if same and inside and stages[stage].loops == loops else stage + 1)
            low_post = max(low_post, stage if same and not inside else stage + 1)
        place, is_post = len(stages), False
        for number in range(min(low_inside, low_post), len(stages)):
            draft = stages[number]
            if number >= low_inside and draft.loops == loops and _joins(draft, member):
                place = number
                break
            if number >= low_post and not reduce and draft.reduce and draft.loops - draft.reduce == loops:
                place, is_post = number, True
                break
        if place == len(stages):
            stages.append(StageDraft(loops, reduce))
        draft = stages[place]
        draft.reduce |= reduce
        if member.ordered:
            draft.order = member.reduce
        (draft.post if is_post else draft.inside).append(member)
        for name, index in member.stores:
            inside = not is_post and (not reduce or name in member.inside)
            written[name] = (place, inside, index)
    return stages


def _joins(draft: StageDraft, member: Member) -> bool:
    if member.ordered and draft.order is not None and draft.order != member.reduce:
        return False
    return not draft.reduce or not member.reduce or draft.reduce == frozenset(member.reduce)


@dataclass(slots=True)
class Merger:
    """Decides whether two groups may share a kernel.

    Arguments:
        buffers: of the program.
        fresh: makes loop variables.
        targets: of the devices of the groups.
    """

    buffers: Mapping[str, Buffer]
    fresh: FreshVars
    targets: Mapping[torch.device, Target]

    def merge(self, first: Group, second: Group) -> Group | None:
        """One group that does the work of both (`first` runs before `second`), or None.

        The caller has checked that no other group must run between the two.
        """
        if first.device != second.device:
            return None
        target = self.targets[first.device]
        if len(first.members) + len(second.members) > target.max_members:
            return None
        if first.statements + second.statements > target.max_statements:
            return None
        merged = self._unify(first, second)
        if merged is None:
            return None
        merged.statements = first.statements + second.statements
        merged.stages = assign_stages(merged.members)
        if len(merged.stages) > 1:
            pays = self._shared_loops(merged, target) and is_legal(merged, target)
        elif target.shares_innermost:
            pays = not self._slides_in_columns(merged)
        else:
            pays = self._one_stage_pays(merged, first, second, target)
        return merged if pays and not self._one_by_one(merged, first, second, target) else None

    def _unify(self, first: Group, second: Group) -> Group | None:
        unifier = Unifier(dict(first.dims), dict(second.dims), self.fresh)
        dependent, all_matched = False, True
        for _, index_a, index_b, is_dependency in self._anchors(first, second):
            matched = unifier.anchor(index_a, index_b)
            if is_dependency:
                dependent = True
            all_matched = all_matched and matched
        if not unifier.matched and (first.dims and second.dims):
            return None
        if not dependent and not self._sibling_pays(unifier):
            return None
        rename: dict[Var, Expr] = dict(unifier.matched)
        dims = dict(unifier.dims_a)
        dims.update({var: size for var, size in unifier.dims_b.items() if var not in rename})
        split_b = {var: substitute(expr, rename) for var, expr in unifier.split_b.items()}
        split_b.update(rename)
        simplify = Simplifier(dims)
        members = _rewrite(first.members, unifier.split_a, dims, simplify)
        members += _rewrite(second.members, split_b, dims, simplify)
        members.sort(key=lambda member: member.position)
        blocked = _follow(first.blocked, unifier.split_a) | _follow(second.blocked, split_b)
        group = Group(dims, members, first.device, blocked)
        return group if self._dependencies_hold(group, second) else None

    def _anchors(self, first: Group, second: Group) -> list[tuple[str, Expr, Expr, bool]]:
        """Pairs of indices of one buffer in both groups, the most telling first; whether one of them is a store."""
        touched: dict[str, tuple[list[Expr], bool]] = {}
        for member in first.members:
            for stores, accesses in ((True, member.stores), (False, member.loads)):
                for name, index in accesses:
                    known, written = touched.get(name, ([], False))
                    # What a kernel wrote is where the other's loads are matched, not its own loads of it.
                    touched[name] = ([index], True) if stores else ((known if written else [*known, index]), written)
        anchors = []
        for member in second.members:
            # Members of the two may alternate in the program: then the first reads what the second stores, too.
            for stores, accesses in ((False, member.loads), (True, member.stores)):
                for name, index in accesses:
                    known, written = touched.get(name, ([], False))
                    for other in known[:2]:
                        anchors.append((name, other, index, written or stores))
        unique = list(dict.fromkeys(anchors))
        unique.sort(key=lambda item: (-len(item[1].free), not item[3], -hint_numel(self.buffers[item[0]])))
        return unique[:16]

    def _sibling_pays(self, unifier: Unifier) -> bool:
        """Groups that only read the same memory: their loops must be the same loops."""
        if not unifier.matched:
            return False
        total_a = hint(product(unifier.dims_a.values()))
        total_b = hint(product(unifier.dims_b.values()))
        shared = hint(product(unifier.dims_b[var] for var in unifier.matched))
        return shared == total_a == total_b

    def _dependencies_hold(self, group: Group, second: Group) -> bool:
        """Block outer loops across which a member reads what another wrote; False when that cannot be told."""
        new = {member.node for member in second.members}
        stored: dict[str, tuple[Member, Expr]] = {}
        for member in group.members:
            for name, index in member.stores:
                if name in stored and name in self.buffers:
                    if stored[name][0] is not member:
                        return False  # two nodes fill one buffer: keep them in program order, apart
                stored[name] = (member, index)
        blocked = set(group.blocked)
        simplify = Simplifier(group.dims)
        for member in group.members:
            for name, index in member.loads:
                if name not in stored:
                    continue
                writer, written = stored[name]
                if (writer.node in new) == (member.node in new):
                    continue  # known from when that group came to be
                if sum(1 for other, _ in writer.stores if other == name) != 1:
                    return False
                if index is written:
                    if not set(writer.point) <= written.free:
                        return False
                    continue
                across = _crossed(written, index, writer, member, group.dims, simplify)
                if across is None:
                    return False
                blocked |= across
        group.blocked = frozenset(blocked)
        return True

    def _one_stage_pays(self, merged: Group, first: Group, second: Group, target: Target) -> bool:
        stage = merged.stages[0]
        if not stage.reduce:
            return True
        # A pointwise nest that becomes part of a column reduction would walk memory by columns, but where that goes
        # through rows.
        alone = [g for g in (first, second) if not any(member.reduce for member in g.members)]
        joins_inside = any(member in stage.inside for member in merged.members if not member.reduce)
        if not alone or not joins_inside:
            return True
        inner = self.unit_stride(stage)
        if inner is None or inner in stage.reduce:
            return True
        rows, columns = as_int(product(merged.dims[var] for var in stage.reduce)), as_int(merged.dims[inner])
        if rows is None or columns is None or not 16 <= rows <= SHORT_ROWS:
            return False
        apart = hint(product(merged.dims[var] for var in stage.loops - stage.reduce - {inner}))
        return apart >= target.threads and 4 * apart * rows * columns >= _LARGE_BYTES

    def _one_by_one(self, merged: Group, first: Group, second: Group, target: Target) -> bool:
        """Whether elementary functions of one number a row, alone in a group, would be computed without vectors beside
        rows so short that these are read again in less time."""
        outer, inner = set(merged.outer), None
        if len(merged.stages) == 1:
            stage = merged.stages[0]
            outer, inner = set(stage.loops - stage.reduce), self.unit_stride(stage)
            if inner not in stage.reduce or hint(merged.dims[inner]) < _FULL_VECTOR:  # lanes run across the rows
                return False
        if target.shares_innermost or self._row_bytes(merged, outer) > _SHORT_ROW:
            return False
        for group in (first, second):
            nodes = {member.node for member in group.members}
            if all(member.loops <= outer for member in merged.members if member.node in nodes):
                costs = [cost(statement.op) for node in nodes for statement in statements_of(node.body)]
                work = sum(each for each in costs if each >= ELEMENTARY)
                return work * hint(product(merged.dims[var] for var in outer)) > _LEAST_WORK
        return False

    def _slides_in_columns(self, merged: Group) -> bool:
        """Whether sums of columns would compute windows on the way: each thread has few elements in flight then, and
        many positions to find."""
        stage = merged.stages[0]
        if not stage.reduce or not any(map(_is_window, stage.inside)):
            return False
        inner = self.unit_stride(stage)
        return inner is not None and inner not in stage.reduce

    def unit_stride(self, stage: StageDraft) -> Var | None:
        """The loop variable along which most of the stage's memory is contiguous."""
        votes: dict[Var, float] = {}
        for member in (*stage.inside, *stage.post):
            for weight, accesses in ((1.0, member.loads), (1.5, member.stores)):
                for name, index in accesses:
                    buffer = self.buffers[name]
                    for monomial, scale in index.poly:
                        if scale == 1 and len(monomial) == 1 and isinstance(monomial[0], Var):
                            var = monomial[0]
                            if var in stage.loops:
                                votes[var] = votes.get(var, 0.0) + weight * hint_numel(buffer)
        return max(votes, key=lambda var: votes[var]) if votes else None

    def _shared_loops(self, group: Group, target: Target) -> bool:
        """Choose the loops that all stages share; False when fusing would cost parallelism or locality."""
        order = max((member.point for member in group.members), key=len)
        shared = {var for var in order if all(var in member.point for member in group.members)} - group.blocked
        total = max(hint(product(group.dims[var] for var in stage.loops)) for stage in group.stages)
        for stage in group.stages if not target.shares_innermost else ():
            inner = self.unit_stride(stage)
            if inner is not None and inner in shared and stage.loops - shared:
                # The loop along which memory is contiguous must stay innermost: it cannot be shared.
                shared.discard(inner)
                self._widen(inner, shared, stage, group, target)
        group.outer = tuple(var for var in order if var in shared)
        if total <= target.small_work:
            return True
        if not group.outer:
            return False
        width = target.columns if self._across(group, shared) else 1  # points that a program computes
        programs = -(-hint(product(group.dims[var] for var in group.outer)) // width)
        limit = target.row_bytes if programs >= target.threads else target.serial_bytes
        return self._row_bytes(group, shared) * width <= limit

    def _across(self, group: Group, shared: set[Var]) -> bool:
        """Whether memory is contiguous along a shared loop in a stage that has loops of its own."""
        return any(self.unit_stride(stage) in shared for stage in group.stages if stage.loops - shared)

    def _widen(self, inner: Var, shared: set[Var], stage: StageDraft, group: Group, target: Target) -> None:
        """Unshare loops that continue a short innermost one in memory, so that vectors are full."""
        length = group.dims[inner]
        while hint(length) < target.vector_run:
            name_strides = [affine(index, group.dims) for m in stage.inside for _, index in (*m.loads, *m.stores)]
            follows = {
                var
                for strides in name_strides
                if strides is not None
                for var, stride in strides.coefficients.items()
                if var in shared and stride is length
            }
            left = shared - follows
            if len(follows) != 1 or hint(product(group.dims[var] for var in left)) < target.threads:
                return
            if self._row_bytes(group, left) > target.row_bytes:
                return
            shared -= follows
            length = length * product(group.dims[var] for var in follows)

    def _row_bytes(self, group: Group, outer: set[Var]) -> int:
        """Bytes that one point of the shared loops `outer` touches."""
        seen: dict[str, int] = {}
        for member in group.members:
            for name, index in (*member.loads, *member.stores):
                inner = [group.dims[v] for v in index.free if isinstance(v, Var) and v in group.dims and v not in outer]
                size = hint(product(inner)) * itemsize(self.buffers[name].dtype)
                seen[name] = max(seen.get(name, 0), size)
        return sum(seen.values())


def _is_window(member: Member) -> bool:
    """Whether it reads many elements of one buffer for each point."""
    counts = collections.Counter(name for name, _ in set(member.loads))
    return not member.reduce and max(counts.values(), default=0) > _WINDOW


def is_legal(group: Group, target: Target) -> bool:
    """Whether the target's kernels can run the stages of a group of several."""
    if not target.barriers and not group.outer:
        return False
    outer = set(group.outer)
    return target.nested_reductions or not any(
        stage.reduce and stage.loops - stage.reduce - outer for stage in group.stages
    )


def _rewrite(
    members: list[Member], split: Mapping[Var, Expr], dims: Mapping[Var, Expr], simplify: Simplifier
) -> list[Member]:
    if not split:
        return list(members)
    parts: dict[Var, tuple[Var, ...]] = {}
    for var, expr in split.items():
        form = affine(expr, dims)
        if form is not None:
            pieces = sorted(form.coefficients, key=lambda v: -hint(form.coefficients[v]))
            parts[var] = tuple(pieces)
    return [member.rewritten(split, parts, simplify) for member in members]


def _follow(blocked: frozenset[Var], split: Mapping[Var, Expr]) -> frozenset[Var]:
    variables: set[Var] = set()
    for var in blocked:
        expr = split.get(var, var)
        variables.update(atom for atom in expr.free if isinstance(atom, Var))
    return frozenset(variables)


def _crossed(
    written: Expr, read: Expr, writer: Member, reader: Member, dims: Mapping[Var, Expr], simplify: Simplifier
) -> set[Var] | None:
    """Outer loops that must not be shared when `reader` loads at `read` what `writer` stores at `written`.

    Shared loops must move both indices alike, and what one shared point of the reader touches must be among what the
    writer stores in that same point: a dense row of the buffer. None when no set of loops makes that certain.
    """
    stored, loaded = affine(written, dims), affine(read, dims)
    if stored is None or loaded is None or any(var not in dims for var in _vars(read)):
        return None
    if not set(writer.point) <= set(stored.coefficients):
        return None  # several points write one element: which one comes last is not known
    common = [
        var
        for var in writer.point
        if var in reader.point and stored.coefficients.get(var) is loaded.coefficients.get(var)
    ]
    common.sort(key=lambda var: -hint(stored.coefficients[var]))
    while True:
        inner = {var: c for var, c in stored.coefficients.items() if var not in common}
        row = is_dense_row(inner, dims)
        if row is not None:
            offset = sum_of([c * v for v, c in loaded.coefficients.items() if v not in common] + [loaded.rest])
            if simplify.between(offset - stored.rest, row):
                shared = set(writer.point) & set(reader.point)
                return shared - set(common)
        if not common:
            return None
        common.pop()


def _vars(expr: Expr) -> list[Var]:
    return [atom for atom in expr.free if isinstance(atom, Var)]
