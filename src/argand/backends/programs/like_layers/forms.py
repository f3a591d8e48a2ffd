"""What a step does, without the names of what it does it to; and the same step under other names."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from argand.backends.programs.like_layers.layers import Unlike
from argand.graph.sizes.expr import Expr
from argand.ir.kernel import KernelPlan, Schedule, Stage, Step
from argand.ir.loops import Buffer, ExternNode, LoopBody, Origin, TensorRef, statements_of
from argand.quick_dataclasses import dataclass
from argand.schedule.copier import renamed
from argand.schedule.signature import signature

_PLAIN: Final = frozenset((
    bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip
_NODE_NUMBER: Final = re.compile(r"\bop(\d+)")

Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Form:
    """A step.

    Arguments:
        key: what it does.
        names: of the buffers that it does it to, in an order that `key` gives a meaning.
        origins: of what it computes.
    """

    key: Hashable
    names: tuple[str, ...]
    origins: tuple[Origin, ...]


def form_of(step: Step, schedule: Schedule) -> Form:
    """A step's form.

    Raises:
        Unlike: it does not tell all that it does.
    """
    taken = [schedule.aliases[name] for name in step.outputs if name is not None and name in schedule.aliases]
    if isinstance(step, KernelPlan):
        if step.segments or step.product is not None:
            raise Unlike
        names = (*step.inputs, *step.outputs, *step.buffers, *taken)
        known = [_layout(step.buffers[name]) for name in names[: len(names) - len(taken)]]
        parts = (len(step.inputs), len(step.outputs), len(step.scratch), len(step.registers), len(taken))
        return Form((signature(step), step.name, step.device, tuple(known), parts), names, step.origins)
    refs: list[str] = []
    arguments = _argument((step.args, step.kwargs), refs)
    own = [name for name in step.outputs if name is not None]
    layouts = [_layout(schedule.buffers[name]) for name in own if name in schedule.buffers]
    key = (
        *(step.target, step.out_variant, step.reason, arguments, tuple(layouts)),
        *(tuple([name is None for name in step.outputs]), len(step.mutates), len(taken)),
    )
    return Form(key, (*refs, *own, *step.mutates, *taken), step.origins)


def _layout(buffer: Buffer) -> Hashable:
    return buffer.dtype, buffer.device, buffer.size, buffer.stride, buffer.kind


def _argument(arg: Any, refs: list[str]) -> Hashable:
    """What an argument is, but for the buffer that it lies in, which `refs` gets."""
    if isinstance(arg, TensorRef):
        refs.append(arg.buffer)
        return arg.size, arg.stride, arg.offset, arg.dtype
    if isinstance(arg, (tuple, list)):
        return type(arg), tuple([_argument(item, refs) for item in arg])
    if isinstance(arg, dict):
        return tuple([(name, _argument(value, refs)) for name, value in arg.items()])
    if isinstance(arg, Expr):
        return arg
    if type(arg) not in _PLAIN:
        raise Unlike
    return type(arg), arg.hex() if isinstance(arg, float) else arg


def ref_renamed(ref: TensorRef, name: Rename) -> TensorRef:
    """A view of another buffer."""
    return TensorRef(name(ref.buffer), ref.size, ref.stride, ref.offset, ref.dtype)


def step_renamed(step: Step, name: Rename, origin: Callable[[Origin], Origin], nodes: int) -> Step:
    """A step that does the same to other buffers.

    Arguments:
        name, origin: for a buffer's name and an origin those of the copy.
        nodes: by how much the numbers of the loop program's nodes grow.
    """
    if isinstance(step, KernelPlan):
        return _kernel_renamed(step, name, origin, nodes)
    return replace(
        step,
        name=_renumbered(step.name, nodes),
        args=_argument_renamed(step.args, name),
        kwargs=_argument_renamed(step.kwargs, name),
        outputs=tuple([None if output is None else name(output) for output in step.outputs]),
        mutates=tuple(map(name, step.mutates)),
        origins=tuple(map(origin, step.origins)),
    )


def _kernel_renamed(plan: KernelPlan, name: Rename, origin: Callable[[Origin], Origin], nodes: int) -> KernelPlan:
    names = {old: name(old) for old in plan.buffers}
    stages = [_stage_renamed(stage, names, origin, nodes) for stage in plan.stages]
    return replace(
        plan,
        stages=tuple(stages),
        scratch={names[old]: buffer_renamed(buffer, names[old]) for old, buffer in plan.scratch.items()},
        registers=frozenset([names[old] for old in plan.registers]),
        inputs=tuple([names[old] for old in plan.inputs]),
        outputs=tuple([names[old] for old in plan.outputs]),
        buffers={names[old]: buffer_renamed(buffer, names[old]) for old, buffer in plan.buffers.items()},
        origins=tuple(map(origin, plan.origins)),
    )


def _stage_renamed(stage: Stage, names: Mapping[str, str], origin: Callable[[Origin], Origin], nodes: int) -> Stage:
    body = stage.body
    origins = {id(old): None if old is None else origin(old) for old in _origins(body)}
    statements = renamed(body.statements, names, origins)
    return Stage(replace(body, statements=statements), stage.inner, _renumbered(stage.node, nodes))


def _origins(body: LoopBody) -> Iterable[Origin | None]:
    return (statement.origin for statement in statements_of(body))


def buffer_renamed(buffer: Buffer, name: str) -> Buffer:
    """The same buffer under another name."""
    return Buffer(name, buffer.dtype, buffer.device, buffer.size, buffer.stride, buffer.kind)


def _argument_renamed(arg: Any, name: Rename) -> Any:
    if isinstance(arg, TensorRef):
        return ref_renamed(arg, name)
    if isinstance(arg, (tuple, list)):
        return type(arg)([_argument_renamed(item, name) for item in arg])
    if isinstance(arg, dict):
        return {key: _argument_renamed(value, name) for key, value in arg.items()}
    return arg


def _renumbered(text: str, nodes: int) -> str:
    """Names of nodes of the loop program in a text, with greater numbers."""
    return _NODE_NUMBER.sub(lambda match: f"op{int(match[1]) + nodes}", text) if nodes else text


def node_number(step: Step) -> int:
    """The number of the first node of the loop program that a step comes from.

    Raises:
        Unlike: it has none.
    """
    match = _NODE_NUMBER.search(step.name if isinstance(step, ExternNode) else step.stages[0].node)
    if match is None:
        raise Unlike
    return int(match[1])
