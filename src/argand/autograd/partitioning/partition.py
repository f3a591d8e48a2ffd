"""Cuts a joint graph into a forward and a backward program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import torch
from torch import fx

from argand.autograd.partitioning.kept_rounds import rounds_kept, stacked, unstacked
from argand.autograd.partitioning.passed_results import gradients_apart
from argand.autograd.partitioning.recompute import Costs, bytes_of, is_fusible, within_budget
from argand.autograd.tracing.dynamic import symbols_in
from argand.autograd.tracing.joint import JointProgram
from argand.autograd.tracing.saved_values import duplicate, read_copy, uses
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata.strides import lies_densely
from argand.graph.nodes.ancestors import ancestors
from argand.graph.nodes.meta import eliminate_dead, is_view, viewed
from argand.graph.nodes.program import AtenProgram, InputSpec, TensorSpec, spec_of
from argand.graph.operators.data_checks import must_stay
from argand.graph.operators.random_ops import draws_seed
from argand.graph.sizes.symbolic import SymbolicTensor, is_tensor
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.plan import Slot

aten = torch.ops.aten

_SMALL = 1 << 16  # bytes of an input that is copied for what the backward computes again


@dataclass(slots=True)
class Partition:
    """A forward and a backward program, and what passes between them.

    Arguments:
        forward: takes the joint program's inputs without tangents; its graph returns the forward's results and then
            the values kept.
        backward: its inputs are, in order, the values of `arguments`.
        arguments: what the backward is called with ("input", "data" or "output", then "tangent", then "number").
        gradients: input position → where its gradient is found ("value", or an argument handed through).
        results: how many outputs of the forward's graph are results.
        seeds: outputs of the forward that are the seeds it drew, in the order of the joint graph; kept so that a plain
            graph can run again.
        passed: number of a differentiable result that others are computed from → where the backward has its gradient;
            what is computed from that can be computed from any other gradient of the result as well.
        opaque: numbers of such results of which the latter is not so.
    """

    forward: AtenProgram
    backward: AtenProgram
    arguments: list[Slot]
    gradients: dict[int, Slot]
    results: int
    seeds: tuple[int, ...] = ()
    passed: dict[int, Slot] = field(default_factory=dict)
    opaque: tuple[int, ...] = ()

    @property
    def saved(self) -> list[Slot]:
        return [slot for slot in self.arguments if slot.is_saved]


def partition(
    joint: JointProgram,
    *,
    budget: float = 1.0,
    default: bool = False,
    keeps_in_loops: Callable[[Partition], bool] | None = None,
) -> Partition:
    """Split the joint graph.

    Arguments:
        keeps_in_loops: whether a loop of the backward reads what is kept as one tensor for all rounds.
        budget: memory budget between 0 and 1 (see `recompute.within_budget`).
        default: keep every value of the forward that the backward reads; recompute nothing.

    Raises:
        AutogradError: the graph cannot be cut.
    """
    split = _Split(joint)
    if budget >= 1 and not default:
        split.copy_inputs()
    saved = split.everything() if default else split.cheapest(budget)
    if saved is None:
        raise AutogradError("the backward needs a value of the forward that can be neither kept nor computed again")
    seeds = [node for node in split.nodes if draws_seed(node.target)] if joint.plain else []
    saved += [node for node in seeds if node not in saved]
    forward, kept, env = _forward_program(joint, split, saved)
    alone = {*split.results, *split.grads}  # handed on as they are
    own = [node for node in saved if node.op == "call_function" and node in kept and node not in alone]
    cut, slots = None, kept
    if keeps_in_loops is not None:
        joint_of = {env[n]: n for n in split.needed if n in env and n not in alone}
        if groups := rounds_kept(forward, joint_of, own):
            more = [*saved, *(node for group in groups for node in group if node not in kept)]
            rolled, slots, _ = _forward_program(joint, split, more, groups)
            cut = _with_backward(joint, split, rolled, slots, groups)
    if cut is None or keeps_in_loops is None or not keeps_in_loops(cut):
        cut, slots = _with_backward(joint, split, forward, kept, []), kept
    cut.seeds = tuple([slots[node].index for node in seeds])
    return cut


class _Split:
    """The joint graph's nodes by where they can run."""

    def __init__(self, joint: JointProgram) -> None:
        graph = joint.program.graph
        self.nodes = list(graph.nodes)
        outputs: tuple[Any, ...] = joint.program.output_node.args[0]
        self.results: tuple[fx.Node, ...] = outputs[: joint.results]
        placeholders = self.placeholders = joint.program.placeholders
        kinds = [spec.kind for spec in joint.program.inputs]
        self.tangents = [node for node, kind in zip(placeholders, kinds) if kind == "tangent"]
        self.primals = [node for node, kind in zip(placeholders, kinds) if kind != "tangent"]
        written = {m.input for m in joint.program.mutations}
        self.written = {node for position, node in enumerate(self.primals) if position in written}
        # What the backward sends stays there, read or not, as in eager, which other ranks may run.
        self.sent = [node for node in self.nodes if "backward" in node.meta and compat.communicates(node.target)]
        self.only_backward = self._descendants([*self.tangents, *self.sent])
        count = joint.results + len(joint.gradients)
        self.sums = dict(zip(joint.passed, outputs[count:]))  # gradients of results that others are computed from
        self.passed = gradients_apart(self.sums, self.tangents, outputs[:count])
        self.grads: tuple[fx.Node, ...] = (*outputs[joint.results : count], *self.passed.values())
        self.small: set[fx.Node] = set()  # inputs of which a copy costs next to nothing
        # node that copies an input, or stands for its data -> the input, or what it holds when the forward has run
        self.copies = {node: node.all_input_nodes[0] for node in self.nodes if "held_by" in node.meta}
        self.loose = [node for node, spec in zip(self.primals, joint.forward_inputs) if self._is_loose(node, spec)]
        self.wanted = ancestors((*self.grads, *self.sent))

    def _is_loose(self, node: fx.Node, spec: InputSpec) -> bool:
        """Programs write to queues, averages and masks between forward and backward, and through `.data` to all else.

        Where eager keeps what it made of these, so must the forward, or a copy of a small tensor with a gradient.
        """
        if not spec.spec.requires_grad:
            return True
        val = node.meta["val"]
        val = val.example if isinstance(val, SymbolicTensor) else val
        if isinstance(val, torch.Tensor) and lies_densely(val) and bytes_of(node) <= _SMALL:
            self.small.add(node)
            return False
        return True

    def copy_inputs(self) -> None:
        """Let what the backward may compute again read copies of small inputs, made when the forward runs; formulas
        that read views which the forward makes read the data that the input has then, whatever the program sets it to
        (`parameter.data = ...`). Those of the input itself see what its data is by then, as eager's."""
        for node in self.primals:
            readers = list(uses(node))
            again = [use for use in readers if use[2] and is_fusible(use[1])]
            if again and node in self.small:
                self._read_copy(node, aten.clone.default, again)
            seen = [use for use in readers if not use[2]]
            views = [use for use in seen if use[0] is not node]
            if 0 < len(views) < len(seen) and node not in self.written:
                self._read_copy(node, aten.alias.default, views)
        if self.copies:
            self.nodes = list(self.nodes[0].graph.nodes)
            self.wanted = ancestors((*self.grads, *self.sent))

    def _read_copy(self, node: fx.Node, kind: Any, readers: Iterable[tuple[fx.Node, fx.Node, bool]]) -> None:
        """Have operations read a copy of an input, or views of it."""
        self.copies[read_copy(node, kind, readers, self.placeholders[-1].next)] = node

    def _descendants(self, roots: Iterable[fx.Node]) -> frozenset[fx.Node]:
        below = set(roots)
        for node in self.nodes:
            if node.op != "output" and any(argument in below for argument in node.all_input_nodes):
                below.add(node)
        return frozenset(below)

    @property
    def needed(self) -> list[fx.Node]:
        """What the backward reads, directly or not, that does not depend on a tangent."""
        return [n for n in self.nodes if n in self.wanted and n not in self.only_backward]

    def cheapest(self, budget: float) -> list[fx.Node] | None:
        # The program may write to results, too, unseen by autograd: eager's backward reads those as they are by then.
        handed = [node for node in map(viewed, self.results) if node.op == "call_function"]
        costs = Costs(
            self.results,
            self.written,
            strict=True,
            loose=[*self.loose, *handed],
            copies=self.copies,
            handed=handed,
        )
        needed = self.needed
        marked = self.only_backward | {g for g in self.grads if g in self.only_backward}
        direct = [g for g in self.grads if g not in self.only_backward]
        if direct:  # a gradient that is a value of the forward: it is kept
            return self.everything()
        return within_budget(needed, frozenset(marked), costs, budget)

    def everything(self) -> list[fx.Node]:
        """Values of the forward that nodes of the backward read."""
        saved: dict[fx.Node, None] = {}
        for node in self.needed:
            in_forward = "backward" not in node.meta
            read = node in self.grads or any(
                user in self.only_backward or "backward" in user.meta for user in node.users if user.op != "output"
            )
            if in_forward and read:
                for one in _tensors(node):
                    saved[viewed(one) if viewed(one) in self.copies else one] = None
        return list(saved)


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The node, or for one with several results the parts that are read."""
    if is_tensor(node.meta.get("val")):
        return [node]
    return [user for user in node.users if is_tensor(user.meta.get("val")) and user.op != "output"]


def _copy(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.op == "call_function":
        args = fx.map_arg(node.args, env.__getitem__)
        kwargs = fx.map_arg(node.kwargs, env.__getitem__) if node.kwargs else {}
        twin = compat.new_node(graph, node.target, args, kwargs)
    else:
        twin = compat.copy_node(graph, node, env.__getitem__)
    twin.meta.update(node.meta)
    env[node] = twin
    return twin


def first_places(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """Where each node comes first."""
    places: dict[fx.Node, int] = {}
    for place, node in enumerate(nodes):
        places.setdefault(node, place)
    return places


def _finish(graph: fx.Graph, outputs: list[fx.Node]) -> None:
    node = graph.output(tuple(outputs))
    node.meta["val"] = tuple(n.meta["val"] for n in outputs)
    eliminate_dead(graph)
    _gather_parts(graph)


def _gather_parts(graph: fx.Graph) -> None:
    """Have the parts of a call's result stand right behind it: layers that do the same look alike then."""
    for node in list(graph.nodes):
        if node.target is operator.getitem:
            last: Any = node.args[0]
            if last.op != "call_function":
                continue
            source = last
            while last.next is not node and last.next.target is operator.getitem and last.next.args[0] is source:
                last = last.next
            if last.next is not node:
                last.append(node)


def _forward_program(
    joint: JointProgram, split: _Split, saved: list[fx.Node], groups: Sequence[list[fx.Node]] = ()
) -> tuple[AtenProgram, dict[fx.Node, Slot], dict[fx.Node, fx.Node]]:
    """The forward, where each kept value is found after it ran, and the forward's node for each of the joint graph's.

    Arguments:
        groups: values that are kept as one tensor.
    """
    kept_inside = [n for n in saved if n.op == "call_function" or n in split.written]
    effects = [n for n in split.nodes if n.op == "call_function" and "backward" not in n.meta and must_stay(n)]
    wanted = ancestors((*split.results, *kept_inside, *effects))
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    positions = {node: index for index, node in enumerate(split.primals)}
    for node in split.nodes:
        if node in split.copies:
            env[node] = env[split.copies[node]]  # only the backward needs a copy
        elif node in wanted or node in positions:
            _copy(graph, node, env)
    outputs = [env[node] for node in split.results]
    places = first_places(outputs)
    inputs = {mutation.output for mutation in joint.program.mutations if not mutation.differentiable}
    slots: dict[fx.Node, Slot] = {}
    for group in groups:
        slots.update(dict.fromkeys(group, Slot("output", len(outputs))))
        outputs.append(stacked(joint.program, graph, [env[node] for node in group]))
    for node in saved:
        if node in slots:
            continue
        if node.op == "placeholder" and node not in split.written:
            slots[node] = Slot("input", positions[node])
        elif node.op == "get_attr":
            continue  # the backward has it too
        elif node.target is aten.alias.default and node in split.copies:
            slots[node] = Slot(*node.meta.get("held_by", ("data", positions.get(split.copies[node], -1))))
        elif env[node] in places and node not in split.copies and places[env[node]] not in inputs:
            slots[node] = Slot("output", places[env[node]])
        else:
            slots[node] = Slot("output", len(outputs))
            copied = node.op == "placeholder" or node in split.copies
            outputs.append(duplicate(graph, env[node]) if copied else env[node])
            places.setdefault(outputs[-1], len(outputs) - 1)
    _finish(graph, outputs)
    program = joint.program
    forward = AtenProgram(
        graph, joint.forward_inputs, program.outputs, program.mutations, _constants(program, graph), program.out_tree,
        program.num_args, program.specialised, program.specs, program.scalars, program.conditions,
        bases=program.bases, leaves=program.leaves,
    )  # fmt: skip
    return forward, slots, env


def is_read_itself(node: fx.Node) -> bool:
    """Whether the backward reads an input otherwise than through views that the forward made, which see its data."""
    return not all(is_view(user) and "backward" not in user.meta for user in node.users)


def _constants(program: AtenProgram, graph: fx.Graph) -> dict[str, torch.Tensor]:
    held = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "placeholder")}
    held |= {node.name for node in graph.nodes}
    return {name: value for name, value in program.constants.items() if name in held}


def _with_backward(
    joint: JointProgram,
    split: _Split,
    forward: AtenProgram,
    slots: dict[fx.Node, Slot],
    groups: Sequence[list[fx.Node]],
) -> Partition:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    arguments: list[Slot] = []
    inputs: list[InputSpec] = []
    stops = set(slots)
    read = ancestors((*split.grads, *split.sent), lambda node: [] if node in stops else node.all_input_nodes)
    tangent_slots = {node: Slot("tangent", index) for index, node in enumerate(split.tangents)}
    grouped = {node for group in groups for node in group}
    alone = [(node, slot) for node, slot in slots.items() if node in read and node not in grouped]
    _add_inputs(graph, alone, env, inputs, arguments)
    rows = _add_groups(joint, graph, [(group, slots[group[0]]) for group in groups], inputs, arguments)
    _add_inputs(graph, [(node, slot) for node, slot in tangent_slots.items() if node in read], env, inputs, arguments)
    for group, row in rows:
        env.update((node, row(number)) for number, node in enumerate(group))
    _emit(graph, split, env, read)
    for place, (slot, node) in enumerate(zip(arguments, [n for n in graph.nodes if n.op == "placeholder"])):
        if slot.kind == "input" and node.users and not is_read_itself(node):
            arguments[place] = Slot("data", slot.index)
    outputs: dict[fx.Node, int] = {}
    places = first_places(graph.nodes)

    def slot_of(node: fx.Node) -> Slot:
        own = env[node]
        if own.op == "placeholder":
            return arguments[places[own]]
        return Slot("value", outputs.setdefault(own, len(outputs)))

    gradients = {position: slot_of(node) for position, node in zip(joint.gradients, split.grads)}
    passed = {number: slot_of(node) for number, node in split.passed.items()}
    _finish(graph, list(outputs))
    program = joint.program
    backward = AtenProgram(graph, inputs, [], [], _constants(program, graph), None, len(inputs), {}, program.specs)
    _pass_numbers(joint, backward, arguments)
    note_kept(forward, backward, arguments, gradients, joint.results)
    seen = [number for number, tangent in enumerate(split.tangents) if split.sums.get(number) is not tangent]
    on_the_way: frozenset[int] = frozenset().union(*joint.tape.passed)
    opaque = tuple([number for number in seen if number in on_the_way and number not in passed])
    return Partition(forward, backward, arguments, gradients, joint.results, passed=passed, opaque=opaque)


def note_kept(
    forward: AtenProgram,
    backward: AtenProgram,
    arguments: Sequence[Slot],
    gradients: Mapping[int, Slot],
    results: int,
) -> None:
    """Tell both programs which values only the backward sees."""
    handed = {slot.index for slot in gradients.values() if slot.kind == "output"}
    kept = {slot.index for slot in arguments if slot.kind == "output"} - handed
    forward.kept = frozenset(index for index in kept if index >= results)
    backward.taken = frozenset(
        position for position, slot in enumerate(arguments) if slot.kind == "output" and slot.index in forward.kept
    )


def _add_inputs(
    graph: fx.Graph, given: Sequence[tuple[fx.Node, Slot]], env: dict[fx.Node, fx.Node], inputs: list[InputSpec],
    arguments: list[Slot],
) -> None:  # fmt: skip
    for node, slot in given:
        val, device = node.meta["val"], node.meta["device"]
        placeholder = graph.placeholder(node.name)
        placeholder.meta.update(node.meta)
        kind: Literal["saved", "tangent"] = "tangent" if slot.kind == "tangent" else "saved"
        spec = TensorSpec(tuple(val.shape), tuple(val.stride()), val.storage_offset(), val.dtype, device)
        inputs.append(InputSpec(placeholder.name, kind, len(arguments), spec))
        env[node] = placeholder
        arguments.append(slot)


def _add_groups(
    joint: JointProgram, graph: fx.Graph, groups: Sequence[tuple[list[fx.Node], Slot]], inputs: list[InputSpec],
    arguments: list[Slot],
) -> list[tuple[list[fx.Node], Callable[[int], fx.Node]]]:  # fmt: skip
    """Inputs for what rounds of loops kept as one tensor, and for each what reads a round's."""
    rows = []
    for group, slot in groups:
        placeholder, row = unstacked(joint.program, graph, f"{group[0].name}_rounds", group[0], len(group))
        inputs.append(InputSpec(placeholder.name, "saved", len(arguments), spec_of(placeholder)))
        arguments.append(slot)
        rows.append((group, row))
    return rows


def _pass_numbers(joint: JointProgram, backward: AtenProgram, arguments: list[Slot]) -> None:
    """The sizes that the backward is computed with are handed to it behind its tensors."""
    backward.scalars = joint.program.scalars
    pairs = [p for p in zip(joint.program.placeholders, joint.program.inputs) if p[1].kind != "tangent"]
    if all(spec.kind != "scalar" for _, spec in pairs):
        return
    used = {sym.name for sym in symbols_in(backward)}
    before = backward.placeholders[-1].next if arguments else next(iter(backward.graph.nodes))
    for position, (node, spec) in enumerate(pairs):
        if spec.kind != "scalar" or node.name not in used:
            continue
        with backward.graph.inserting_before(before):
            placeholder = backward.graph.placeholder(node.name)
        placeholder.meta.update(node.meta)
        backward.inputs.append(InputSpec(placeholder.name, "scalar", -1, spec.spec))
        arguments.append(Slot("number", position))


def _emit(graph: fx.Graph, split: _Split, env: dict[fx.Node, fx.Node], read: set[fx.Node]) -> None:
    """The backward's nodes in the joint order, what is computed again just before its first use."""
    constant = set(split.grads) - split.only_backward  # gradients that no tangent reaches: zeros
    for node in split.nodes:
        if node not in read or node in env or not (node in split.only_backward or node in constant):
            continue
        pending = [node]
        while pending:
            at = pending[-1]
            if at in env:
                pending.pop()
                continue
            missing = [argument for argument in at.all_input_nodes if argument not in env]
            if missing:
                pending += reversed(missing)
                continue
            _copy(graph, at, env)
            pending.pop()
