"""Joins small kernels that do the same to different buffers: one kernel with a segment for each of them.

An optimizer's step does a few operations to hundreds of tensors of all sizes. Two kernels are alike when their texts
are equal but for natural numbers in loop sizes and index expressions; numbers that differ become symbols, whose values
each segment has. Kernels move: each to where the last of its group was, never past one that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from argand.graph.sizes.expr import (
    Const,
    Expr,
    FloorDiv,
    Mod,
    Simplifier,
    Sym,
    Var,
    as_int,
    coefficient,
    product,
    substitute,
    sum_of,
)
from argand.ir.kernel import KernelPlan, Schedule, Segment, Stage, Step
from argand.ir.loops import (
    Buffer,
    ExternNode,
    LoopBlock,
    LoopBody,
    Value,
    aliases_arguments,
    statements_of,
    tensor_refs,
)
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.access import has_effect, itemsize, touched

if TYPE_CHECKING:
    import torch

_NARROW = 1 << 30  # elements up to which positions have 32 bits
_ALIGNED = 16  # points: where all segments are multiples, their accesses are wide
PREFIX = "segment_number"
Interval = tuple[int, int]  # first and last


def join_segments(schedule: Schedule) -> None:
    """Join the kernels of a schedule, in place, where their target's `segments` says so."""
    outlines, candidates = _alike(schedule.steps, schedule.targets)
    if not candidates:
        return
    groups = _Groups(_dependencies(schedule))
    temporary = _temporaries(schedule)
    for numbers in candidates:
        _group(schedule, groups, numbers, temporary)
    schedule.steps = [_joined([schedule.steps[n] for n in members], [outlines.get(n) for n in members])
                  for members in groups.ordered()]  # fmt: skip


def taken_by_segments(steps: Iterable[Step], targets: Mapping[torch.device, Target]) -> set[int]:
    """Of kernels that are not joined yet, the ids of those that will be one with others of any sizes."""
    every = list(steps)
    return {id(every[number]) for numbers in _alike(every, targets)[1] for number in numbers}


def _alike(steps: Sequence[Step], targets: Mapping[torch.device, Target]) -> tuple[dict[int, Outline], list[list[int]]]:
    """Outlines of the steps that may be joined, by number, and which numbers have an outline in common."""
    outlines = {
        number: Outline(step)
        for number, step in enumerate(steps)
        if isinstance(step, KernelPlan) and _may_join(step, targets[step.device])
    }
    alike: dict[Any, list[int]] = {}
    for number, outline in outlines.items():
        alike.setdefault(outline.key, []).append(number)
    return outlines, [numbers for numbers in alike.values() if len(numbers) > 1]


def _may_join(plan: KernelPlan, target: Target) -> bool:
    """Small, of known sizes, no product, and such that a flat layout of its points suits all of its memory."""
    if not target.segments or plan.scratch or plan.segments or plan.product is not None:
        return False
    for stage in plan.stages:
        points = as_int(product((*stage.body.sizes, *stage.body.reduction_sizes)))
        if points is None or not 0 < points <= target.segment_points:
            return False
    spans = [as_int(sum_of([(n - 1) * step for n, step in zip(b.size, b.stride)])) for b in plan.buffers.values()]
    if any(span is None or span >= _NARROW for span in spans):
        return False
    return all(_suits(stage) for stage in plan.stages)


def _suits(stage: Stage) -> bool:
    """Whether no memory is walked along another loop than the innermost (which a block of two axes is for)."""
    body = stage.body
    inner = body.vars[-1] if body.vars and not body.reduction_vars else None
    indices = [s.args[1] for s in statements_of(body) if s.op in ("load", "store")]
    return inner is None or all(coefficient(index, inner) in (0, 1) for index in indices)


# ----------------------------------------------------------------------- what kernels have in common


class Outline:
    """The text of a kernel without its natural numbers, and these in the order of the text.

    Arguments:
        plan: the kernel.
        numbers: where given, `outer` and `stages` are made with them in place of the plan's own.

    Attributes:
        key: equal for kernels that may be joined.
        numbers: of the plan.
        outer, stages: with the numbers given.
    """

    def __init__(self, plan: KernelPlan, numbers: Iterable[Expr] | None = None) -> None:
        self.plan = plan
        self.names = {name: f"I{at}" for at, name in enumerate(plan.inputs)}
        self.names.update({name: f"O{at}" for at, name in enumerate(plan.outputs)})
        registers = [name for name in plan.buffers if name in plan.registers]
        self.names.update({name: f"R{at}" for at, name in enumerate(registers)})
        self.numbers: list[int] = []
        self._given = None if numbers is None else iter(numbers)
        self._values: dict[int, int] = {}
        self._parts = [f"{self.names[n]}:{b.dtype}:{b.device}" for n, b in plan.buffers.items()]
        self._parts.append(str(plan.symbols))
        self.outer = tuple((var, self._expr(size)) for var, size in plan.outer)
        self.stages = tuple(self._stage(stage) for stage in plan.stages)
        points = product(s for stage in plan.stages for s in (*stage.body.sizes, *stage.body.reduction_sizes))
        self.key = (plan.device, (as_int(points) or 1) % _ALIGNED == 0, "\n".join(self._parts))

    def _stage(self, stage: Stage) -> Stage:
        body = stage.body
        self._parts.append(f"stage {stage.inner} {body.vars} {body.reduction_vars}")
        sizes, reduced = (tuple(map(self._expr, part)) for part in (body.sizes, body.reduction_sizes))
        statements = self._statements(body.statements, {})
        return Stage(LoopBody(body.vars, sizes, body.reduction_vars, reduced, statements), stage.inner, stage.node)

    def _statements(self, statements: list[Value], known: dict[int, Value]) -> list[Value]:
        renamed = []
        for old in statements:
            at = len(self._parts)
            self._parts.append("")
            args = tuple(self._arg(arg, known) for arg in old.args)
            self._values[old.id] = len(self._values)
            self._parts[at] = f"{self._values[old.id]}={old.op} {old.dtype}"
            known[old.id] = old if self._given is None else replace(old, args=args)
            renamed.append(known[old.id])
        return renamed

    def _arg(self, arg: Any, known: dict[int, Value]) -> Any:
        if isinstance(arg, Value):
            self._parts.append(f"v{self._values[arg.id]}")
            return known[arg.id]
        if isinstance(arg, Expr):
            return self._expr(arg)
        if isinstance(arg, LoopBlock):
            self._parts.append("{")
            inner = self._statements(arg.statements, known)
            self._parts.append(f"}}v{self._values[arg.result.id]}")
            return LoopBlock(inner, known[arg.result.id])
        if isinstance(arg, (tuple, list)):
            self._parts.append("(")
            parts = tuple(self._arg(item, known) for item in arg)
            self._parts.append(")")
            return parts
        if isinstance(arg, str):
            self._parts.append(self.names.get(arg, arg))
        else:
            self._parts.append(arg.hex() if isinstance(arg, float) else f"{type(arg).__name__} {arg}")
        return arg

    def _expr(self, expr: Expr) -> Expr:
        if isinstance(expr, Const):
            if expr.value < 0:
                self._parts.append(str(expr.value))
                return expr
            self.numbers.append(expr.value)
            self._parts.append("#")
            return expr if self._given is None else next(self._given)
        if isinstance(expr, (Var, Sym)):
            indirect = expr.name[0] == "i" and expr.name[1:].isdigit()
            self._parts.append(f"i{self._values[int(expr.name[1:])]}" if indirect else expr.name)
            return expr
        self._parts.append(f"{type(expr).__name__}(")
        args = [self._expr(arg) for arg in expr.args]
        self._parts.append(")")
        if self._given is None:
            return expr
        if isinstance(expr, (FloorDiv, Mod)):
            return args[0] // args[1] if isinstance(expr, FloorDiv) else args[0] % args[1]
        return product(args) if type(expr).__name__ == "Mul" else sum_of(args)


def _joined(steps: list[Step], outlines: list[Outline | None]) -> Step:
    """One kernel that does what all of `steps`, which are alike, do."""
    plans = [step for step in steps if isinstance(step, KernelPlan)]
    alike = [outline for outline in outlines if outline is not None]
    if len(steps) == 1 or len(plans) != len(steps) or len(alike) != len(steps):
        return steps[-1]
    first = plans[0]
    columns = list(zip(*(outline.numbers for outline in alike)))
    symbols: dict[tuple[int, ...], Sym] = {}
    for column in columns:
        if len(set(column)) > 1:
            symbols.setdefault(column, Sym(f"{PREFIX}{len(symbols)}", min(column)))
    given = [symbols.get(column, Const(column[0])) for column in columns]
    shared = Outline(first, given)
    segments = []
    for row, plan in enumerate(plans):
        pairs = zip((*first.inputs, *first.outputs), (*plan.inputs, *plan.outputs))
        segments.append(Segment(dict(pairs), {symbol.name: column[row] for column, symbol in symbols.items()}))
    buffers: dict[str, Buffer] = {}
    for plan in plans:
        buffers.update({name: b for name, b in plan.buffers.items() if name not in plan.registers})
    buffers.update({name: first.buffers[name] for name in first.registers})
    return KernelPlan(
        first.name,
        shared.outer,
        shared.stages,
        {},
        first.registers,
        tuple(dict.fromkeys(name for plan in plans for name in plan.inputs)),
        tuple(dict.fromkeys(name for plan in plans for name in plan.outputs)),
        first.symbols,
        buffers,
        tuple(dict.fromkeys(origin for plan in plans for origin in plan.origins)),
        first.device,
        tuple(segments),
    )


# ----------------------------------------------------------------------- which may be joined


def _temporaries(schedule: Schedule) -> dict[str, int]:
    """Bytes of each buffer that lives only between steps."""
    kept = {*schedule.inputs, *schedule.constants}
    kept.update(ref.buffer for ref in tensor_refs((schedule.outputs, [ref for _, ref in schedule.mutations])))
    kept.update(new for new, old in schedule.aliases.items() if old in kept)
    sizes = {name: as_int(product(buffer.size)) for name, buffer in schedule.buffers.items()}
    return {
        name: itemsize(schedule.buffers[name].dtype) * size
        for name, size in sizes.items()
        if size is not None and name not in kept
    }


def _group(schedule: Schedule, groups: _Groups, numbers: list[int], temporary: Mapping[str, int]) -> None:
    """Put alike kernels into as few groups as dependencies and the target's limits allow."""
    device = next(step.device for step in (schedule.steps[n] for n in numbers) if isinstance(step, KernelPlan))
    target = schedule.targets[device]
    open_groups: list[tuple[int, set[str]]] = []  # the group's number, its buffers
    for number in numbers:
        step = schedule.steps[number]
        assert isinstance(step, KernelPlan)  # what has an outline
        names = {*step.inputs, *step.outputs}
        for at, (group, held) in enumerate(open_groups):
            together = held | names
            fits = len(groups.members[group]) < target.segments and len(together) <= target.pointers
            small = sum(temporary.get(name, 0) for name in together) <= target.segment_bytes
            if fits and small and groups.join(group, number):
                open_groups[at] = (group, together)
                break
        else:
            open_groups.append((number, names))


def _dependencies(schedule: Schedule) -> list[set[int]]:
    """For each step, earlier ones that must run before it: they touch the same memory, and one of the two writes."""
    root: dict[str, str] = dict(schedule.aliases)

    def memory(name: str) -> str:
        while name in root:
            name = root[name]
        return name

    for step in schedule.steps:
        if isinstance(step, ExternNode) and aliases_arguments(step):  # its results may be views of its arguments
            names = [ref.buffer for ref in tensor_refs((step.args, step.kwargs))]
            names += [name for name in step.outputs if name is not None]
            for one in {memory(name) for name in names} - {memory(names[0])} if names else ():
                root[one] = memory(names[0])
    shared = {memory(name) for name in root}  # memory that several buffers have, under indices of their own
    writers: dict[str, list[tuple[int, Interval | None]]] = {}
    readers: dict[str, list[int]] = {}
    effect: int | None = None
    dependencies: list[set[int]] = []
    for number, step in enumerate(schedule.steps):
        reads, writes = ({memory(name) for name in names} for names in touched(step))
        deps: set[int] = set()
        for name in reads:
            deps.update(writer for writer, _ in writers.get(name, ()))
        for name in writes:
            part = None if name in shared or not isinstance(step, KernelPlan) else stored_part(step, name, {})
            deps.update(writer for writer, other in writers.get(name, ()) if overlap(part, other))
            if part is None:
                deps.update(readers.pop(name, ()))
                writers[name] = [(number, None)]
            else:
                deps.update(readers.get(name, ()))
                writers.setdefault(name, []).append((number, part))
        for name in reads - writes:
            readers.setdefault(name, []).append(number)
        if isinstance(step, ExternNode) and has_effect(step):
            deps |= {effect} if effect is not None else set()
            effect = number
        dependencies.append(deps - {number})
    return dependencies


def stored_part(plan: KernelPlan, name: str, numbers: Mapping[str, int]) -> Interval | None:
    """The first and the last element of a buffer that a kernel may write, where it writes nothing else of it and reads
    none; None where that cannot be told.

    Arguments:
        numbers: values of a segment's symbols.
    """
    first, last = None, None
    for stage in plan.stages:
        body = stage.body
        loops = (*plan.outer, *zip(body.vars, body.sizes), *zip(body.reduction_vars, body.reduction_sizes))
        simplify = Simplifier({var: _with_numbers(size, numbers) for var, size in loops})
        for statement in statements_of(body):
            if statement.op not in ("load", "store") or statement.args[0] != name:
                continue
            low, high = simplify.bounds(_with_numbers(statement.args[1], numbers))
            if statement.op == "load" or low is None or high is None:
                return None
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
    return None if first is None or last is None else (first, last)


def _with_numbers(expr: Expr, numbers: Mapping[str, int]) -> Expr:
    return substitute(expr, {s: numbers[s.name] for s in expr.free if isinstance(s, Sym) and s.name in numbers})


def overlap(one: Interval | None, two: Interval | None) -> bool:
    """Whether two parts of a buffer may have an element in common."""
    return one is None or two is None or (one[0] <= two[1] and two[0] <= one[1])


@dataclass(slots=True)
class _Groups:
    """Steps put together, while what depends on what stays without a cycle.

    Arguments:
        deps: of each step.
        members: of each group, by the number of its first step.
    """

    deps: list[set[int]]
    members: dict[int, list[int]] = field(init=False)
    _before: dict[int, int] = field(init=False)  # by group: bit mask of the groups that must run before it

    def __post_init__(self) -> None:
        self.members = {number: [number] for number in range(len(self.deps))}
        self._before = {}
        for number, deps in enumerate(self.deps):
            mask = 0
            for dep in deps:
                mask |= self._before[dep] | 1 << dep
            self._before[number] = mask

    def join(self, kept: int, gone: int) -> bool:
        """Add a step to a group, unless another must run between them or one of them before the other."""
        before = self._before
        if before[kept] >> gone & 1 or before[gone] >> kept & 1:
            return False
        self.members[kept] += self.members.pop(gone)
        both = 1 << kept | 1 << gone
        mask = before[kept] | before.pop(gone)
        before[kept] = mask
        for number, other in before.items():
            if other & both:
                before[number] = (other | mask | 1 << kept) & ~(1 << gone)
        return True

    def ordered(self) -> list[list[int]]:
        """The groups, each after what it depends on, and where the last of its steps was otherwise."""
        of = {step: group for group, steps in self.members.items() for step in steps}
        done: set[int] = set()
        result: list[list[int]] = []

        def place(group: int) -> None:
            stack = [(group, iter(self._needs(group, of)))]
            done.add(group)
            while stack:
                current, pending = stack[-1]
                for need in pending:
                    if need not in done:
                        done.add(need)
                        stack.append((need, iter(self._needs(need, of))))
                        break
                else:
                    stack.pop()
                    result.append(self.members[current])

        for group in sorted(self.members, key=lambda group: self.members[group][-1]):
            if group not in done:
                place(group)
        return result

    def _needs(self, group: int, of: Mapping[int, int]) -> list[int]:
        needs = {of[dep] for step in self.members[group] for dep in self.deps[step]} - {group}
        return sorted(needs, key=lambda need: self.members[need][-1])
