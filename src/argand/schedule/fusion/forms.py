"""Forms of groups: what is found out about one layer of a model is not found out again for the next.

Two groups have one *form* when they differ in nothing but what their buffers, nodes and origins are called: their
loops, statements and the layouts of their buffers are equal, in an equal order. Whether two groups may share a kernel,
and the kernel that a group becomes, follow from forms and from which buffers are the same. So both are worked out for
the first groups of their forms, and for others taken from there under their own names. Where nothing is known of a
form, the group itself is worked out, by the steps by which it came to be, with the variables that it would have had.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from argand.errors import InternalError
from argand.graph.sizes.expr import Expr
from argand.ir.kernel import KernelPlan, Stage
from argand.ir.loops import Buffer, LoopBlock, LoopNode, Origin, Value
from argand.ir.target import Target
from argand.quick_dataclasses import dataclass
from argand.schedule.copier import renamed
from argand.schedule.fusion.emit import Emitter, argument_key, origins_of, register_name
from argand.schedule.fusion.group import Group, Merger, single
from argand.schedule.space import FreshVars

if TYPE_CHECKING:
    import torch

_Key = tuple[Any, ...]
_POSITION = operator.attrgetter("position")


@dataclass(slots=True, eq=False)
class Form:
    """What groups of one form have in common.

    Arguments:
        reads, writes: places of these buffers among a group's names.
        plans: the kernel of the first such group, by the places of the buffers that are needed after it.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    plans: dict[tuple[int, ...], tuple[FormedGroup, KernelPlan]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class PlacedNode:
    """A loop node, its place in the program, and the origins of its statements."""

    position: int
    node: LoopNode
    origins: list[Origin | None]


@dataclass(slots=True, eq=False)
class FormedGroup:
    """A group, known by its form.

    Arguments:
        names: its buffers, in the order that its form gives them.
        members: its loop nodes, in program order.
        births: when the groups came to be that it was merged of, ascending, itself last.
        parts: the two groups that it was merged of, the one that runs first first.
        worked_out: the group, where that was needed.
    """

    form: Form
    names: tuple[str, ...]
    members: tuple[PlacedNode, ...]
    births: tuple[int, ...]
    device: torch.device
    parts: tuple[FormedGroup, FormedGroup] | None = None
    worked_out: Group | None = None

    def reads(self) -> set[str]:
        return {self.names[place] for place in self.form.reads}

    def writes(self) -> set[str]:
        return {self.names[place] for place in self.form.writes}


class Forms:
    """The forms of a program's groups.

    Arguments:
        buffers: of the program.
        targets: of the devices of its loop nodes.
    """

    def __init__(self, buffers: Mapping[str, Buffer], targets: Mapping[torch.device, Target]) -> None:
        self.targets = targets
        self._buffers = buffers
        self._merger = Merger(buffers, FreshVars(), targets)
        self._emitter = Emitter(buffers, targets)
        self._singles: dict[_Key, Form] = {}
        self._merged: dict[_Key, Form | None] = {}
        self._births = 0

    def single(self, node: LoopNode, position: int, device: torch.device) -> FormedGroup:
        """The group of one node, which runs on `device`."""
        names: dict[str, int] = {}
        origins: list[Origin | None] = []
        key = _key_of(node, names, origins, self._buffers)
        form, group = self._singles.get(key), None
        if form is None:
            group = self._single(node, position, device, self._births)
            form = self._singles[key] = _form(group, names)
        placed = PlacedNode(position, node, origins)
        self._births += 1
        return FormedGroup(form, tuple(names), (placed,), (self._births - 1,), device, worked_out=group)

    def merge(self, first: FormedGroup, second: FormedGroup) -> FormedGroup | None:
        """`Merger.merge`."""
        names = {name: place for place, name in enumerate(first.names)}
        same = tuple([names.setdefault(name, len(names)) for name in second.names])
        key = first.form, second.form, same, _interleaved(first.births, second.births)
        merged = None
        try:
            form = self._merged[key]
        except KeyError:
            merged = self._merge(first, second, self._births)
            form = self._merged[key] = None if merged is None else _form(merged, names)
        if form is None:
            return None
        members = tuple(sorted((*first.members, *second.members), key=_POSITION))
        births = (*sorted((*first.births, *second.births)), self._births)
        self._births += 1
        return FormedGroup(form, tuple(names), members, births, first.device, (first, second), merged)

    def emit(self, group: FormedGroup, needed: frozenset[str]) -> KernelPlan:
        """`Emitter.emit`."""
        plans, key = group.form.plans, tuple([p for p in group.form.writes if group.names[p] in needed])
        known = plans.get(key)
        plan = None if known is None else self._under_own_names(*known, group)
        if plan is None:
            plan = self._emitter.emit(self._worked_out(group), needed, "kernel")
            plans.setdefault(key, (group, plan))
        return plan

    # --- what is not known yet

    def _single(self, node: LoopNode, position: int, device: torch.device, birth: int) -> Group:
        self._merger.fresh.begin(birth)
        return single(node, position, self._merger.fresh, device)

    def _merge(self, first: FormedGroup, second: FormedGroup, birth: int) -> Group | None:
        one, two = self._worked_out(first), self._worked_out(second)
        self._merger.fresh.begin(birth)
        return self._merger.merge(one, two)

    def _worked_out(self, group: FormedGroup) -> Group:
        if group.worked_out is None:
            if group.parts is not None:
                merged = self._merge(*group.parts, group.births[-1])
                if merged is None:
                    raise InternalError("a group does not come to be by the steps by which one of its form did")
                group.worked_out = merged
            else:
                [placed] = group.members
                group.worked_out = self._single(placed.node, placed.position, group.device, group.births[-1])
        return group.worked_out

    # --- what is known

    def _under_own_names(self, other: FormedGroup, plan: KernelPlan, group: FormedGroup) -> KernelPlan | None:
        """The kernel of `other`, which has the same form, for `group`; None where not the same origins are shared."""
        origins: dict[int, Origin | None] = {}
        nodes: dict[str, str] = {}
        for theirs, mine in zip(other.members, group.members):
            nodes[theirs.node.name] = mine.node.name
            for one, two in zip(theirs.origins, mine.origins):
                if origins.setdefault(id(one), two) is not two:
                    return None
        names = dict(zip(other.names, group.names))
        names.update({register_name(one): register_name(two) for one, two in names.items()})
        stages = []
        for stage in plan.stages:
            body = replace(stage.body, statements=renamed(stage.body.statements, names, origins))
            stages.append(Stage(body, stage.inner, " ".join([nodes[node] for node in stage.node.split()])))
        own = {
            names[name]: self._buffers[names[name]]
            if buffer is self._buffers.get(name)
            else replace(buffer, name=names[name])
            for name, buffer in plan.buffers.items()
        }
        return KernelPlan(
            plan.name,
            plan.outer,
            tuple(stages),
            {names[name]: own[names[name]] for name in plan.scratch},
            frozenset([names[name] for name in plan.registers]),
            tuple([names[name] for name in plan.inputs]),
            tuple([names[name] for name in plan.outputs]),
            plan.symbols,
            own,
            origins_of([member.node for member in group.members]),
            plan.device,
        )


def _form(group: Group, names: Mapping[str, int]) -> Form:
    reads, writes = group.reads(), group.writes()
    return Form(
        tuple([place for name, place in names.items() if name in reads]),
        tuple([place for name, place in names.items() if name in writes]),
    )


def _interleaved(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[bool, ...]:
    """In which order the numbers of two ascending rows come; nothing where those of the first come first."""
    if first[-1] < second[0]:
        return ()
    mine = set(first)
    return tuple([number in mine for number in sorted((*first, *second))])


# ----------------------------------------------------------------------- what makes the form of a node


def _key_of(node: LoopNode, names: dict[str, int], origins: list[Origin | None], buffers: Mapping[str, Buffer]) -> _Key:
    """Everything that fusing reads of a node, with places in `names` for buffers.

    Arguments:
        names, origins: get the node's buffers, in order of first use, and the origin of each statement.
    """
    body = node.body
    loops = body.vars, body.sizes, body.reduction_vars, body.reduction_sizes
    statements = _statements_key(body.statements, names, origins)
    written = [(names[name], name in node.mutates) for name in (*node.outputs, *node.mutates)]
    layouts = [(b.dtype, b.device, b.size, b.stride, b.kind) for b in [buffers[name] for name in names]]
    return loops, statements, tuple(written), tuple(layouts)


def _statements_key(statements: Sequence[Value], names: dict[str, int], origins: list[Origin | None]) -> _Key:
    parts: list[Any] = []
    for statement in statements:
        args = statement.args
        parts += statement.id, statement.op, statement.dtype, len(args)
        if statement.op in ("load", "store"):
            parts.append(names.setdefault(args[0], len(names)))
            args = args[1:]
        for arg in args:
            if isinstance(arg, LoopBlock):
                parts += "block", _statements_key(arg.statements, names, origins), arg.result.id
            elif isinstance(arg, Expr):
                parts.append(arg)
            else:
                parts.append(argument_key(arg))
        origins.append(statement.origin)
    return tuple(parts)
