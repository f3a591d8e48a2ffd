"""The part of autograd's tape that a backward would run, as a key, and the tensors that it would read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import CheckpointFunction

from argand._core.node_layout import NodeLayout, node_layout
from argand.engine.checkpoints import Saved, checkpoint_of
from argand.engine.node_state import (
    COMMUNICATES,
    DEVICES,
    NotRecorded,
    check_opaque,
    communicates,
    moves_of,
    reading_of,
    tensor_fact,
)
from argand.engine.reducers import Reducer, Reduction, known, reductions_of
from argand.quick_dataclasses import dataclass
from argand.runtime.tape.result_nodes import is_own


@dataclass(slots=True, eq=False)
class Structure:
    """What a backward would run.

    Arguments:
        key: equal where a recording of one backward computes the other.
        nodes: of the tape, each before those that it leads to alone.
        saved: per node, which of the tensors are its own.
        tensors: that nodes saved.
        leaves: per node that accumulates a gradient, its leaf.
        hooked: those of these nodes whose leaf has hooks that see the gradient before it is accumulated.
        ordered: some leaf has hooks, so that the order of leaves matters.
        opaque: nodes that the engine runs with the gradients that come to them, with the hooks on them.
        watched: those of them whose hooks are hooks of tensors that they made.
        formulas: those of these whose formula is part of the graph; only their hooks are code of the program.
        reduced: nodes that accumulate a gradient, on which the hook of a reducer is.
        reductions: which of these reductions are part of the backward.
        cuts: those that the program's code begins as soon as a bucket is complete.
        ends: where the engine stops, where not all leaves get gradients.
        returned: the gradients that are given back: of which node, and which of those that it gets; None for none.
        captured: nodes that do not run: only what comes to them is given back.
        gpu: where nodes run that do not run on the CPU.
        differentiable: the gradients are to be differentiated, too (`create_graph`).
        checkpoints: by the checkpoint that computes them again, which of the tensors.
    """

    key: tuple[Any, ...]
    nodes: list[Any]
    saved: list[range]
    tensors: Saved
    leaves: dict[int, torch.Tensor]
    hooked: set[int] = field(default_factory=set)
    ordered: bool = False
    opaque: dict[int, list[dict[int, Any]]] = field(default_factory=dict)
    watched: set[int] = field(default_factory=set)
    formulas: set[int] = field(default_factory=set)
    reduced: dict[int, Reducer] = field(default_factory=dict)
    reductions: list[Reduction] = field(default_factory=list)
    cuts: list[Reduction] = field(default_factory=list)
    ends: tuple[GradientEdge, ...] = ()
    returned: list[tuple[int, int] | None] = field(default_factory=list)
    captured: set[int] = field(default_factory=set)
    gpu: torch.device | None = None
    differentiable: bool = False
    checkpoints: list[list[int]] = field(default_factory=list)

    def form(self) -> tuple[Any, ...]:
        """Names of nodes and how they are joined: what does not change with sizes."""
        place = {id(node): at for at, node in enumerate(self.nodes)}
        return tuple(
            [(node.name(), tuple([(place.get(id(to)), nr) for to, nr in node.next_functions])) for node in self.nodes]
        )


def structure_of(
    roots: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    hooks: NodeLayout,
    ends: tuple[GradientEdge, ...] = (),
    *,
    returned: bool = False,
    differentiable: bool = False,
) -> Structure:
    """Read the tape behind `roots`.

    Arguments:
        grads: that the backward begins with.
        hooks: tells whether there are hooks on a node.
        ends: where gradients are wanted; nowhere else, where there are any.
        returned: they are given back, not accumulated.
        differentiable: as of `Structure`.

    Raises:
        NotRecorded: the engine has to run this.
        RuntimeError: it would raise one.
    """
    structure = Structure((), [], [], Saved(), {}, ends=ends, differentiable=differentiable)
    place: dict[int, int] = {}
    facts: list[Any] = []
    way = Way(roots, ends) if ends else None

    def placed(node: Any) -> int | None:
        if node is None or (way is not None and id(node) not in way.needed):
            return None
        at = place.get(id(node))
        if at is None:
            at = place[id(node)] = len(place)
            structure.nodes.append(node)
        return at

    facts += [_root_facts(root, grad, placed) for root, grad in zip(roots, grads)]
    for node in structure.nodes:  # grows
        first = len(structure.tensors)
        at = place[id(node)]
        if returned and way is not None and id(node) not in way.runs:
            _check_captured(node, hooks)
            structure.captured.add(at)
        else:
            facts.append(_node_facts(structure, at, node, hooks))
            facts.append(tuple([(placed(to), nr) for to, nr in node.next_functions]))
        facts.append(_received(structure, node))
        structure.saved.append(range(first, len(structure.tensors)))
    if returned:
        asked = [(place.get(id(edge.node)), edge.output_nr) for edge in ends]
        structure.returned = [None if at is None else (at, number) for at, number in asked]
        facts.append(tuple(structure.returned))
    facts += _facts_of_all(structure)
    structure.key = tuple(facts)
    return structure


def _root_facts(root: torch.Tensor, grad: torch.Tensor | None, placed: Callable[[Any], int | None]) -> Any:
    """Where a backward begins, and with what."""
    if type(root) is not torch.Tensor or root.grad_fn is None or grad is None:
        raise NotRecorded("what is differentiated is a leaf, or no plain tensor")
    if (grad.shape, grad.dtype, grad.device) != (root.shape, root.dtype, root.device):
        raise NotRecorded("a backward begins with a gradient of another dtype, which the engine converts")
    at = placed(root.grad_fn)
    if at is None:
        raise NotRecorded("what is differentiated does not lead to where gradients are wanted")
    return at, root.output_nr, tensor_fact(grad)


def _node_facts(structure: Structure, at: int, node: Any, hooks: NodeLayout) -> Any:
    """What is known of a node that runs, beyond the nodes after it."""
    edges = node.next_functions
    leaf = getattr(node, "variable", None) if not edges else None
    hooked = not hooks.unhooked(node)
    if leaf is not None:
        if hooked:
            _read_reducer(structure, at, node, hooks, leaf)
        if hooks.hooked_natively(leaf):
            raise NotRecorded("there is a hook of C++ on a leaf")
        return _leaf_facts(structure, at, leaf)
    on_node = _hooks_on(node, hooks) if hooked else []
    around = bool(on_node) and hooks.runs_hooks(node)
    ours = isinstance(node, torch._C._FunctionBase)
    again = structure.differentiable and moves_of(node) is not None  # the captured graph runs once more
    reading = None if around or again or (on_node and ours) else reading_of(node)
    if structure.ends and is_own(node):
        raise NotRecorded("results of a compiled graph hang apart, and gradients of some inputs only are wanted")
    if reading is None:
        check_opaque(node, again=again)
    if around:
        _check_targets(node, edges, hooks)
    elif on_node:
        structure.watched.add(at)
    if reading is None or on_node:
        structure.opaque[at] = on_node
    if reading is None:
        return (type(node), "opaque")
    if on_node:
        structure.formulas.add(at)
    _check_edges(node, edges)
    return (type(node), bool(on_node), reading(node, structure.tensors))


class Way:
    """The nodes between what is differentiated and where gradients are wanted.

    Fields:
        runs: the nodes that lead to a wanted place.
        needed: these, and the places.
    """

    def __init__(self, roots: Sequence[torch.Tensor], ends: Sequence[GradientEdge]) -> None:
        self._nodes = [root.grad_fn for root in roots if root.grad_fn is not None]  # held: others may get their ids
        before: dict[int, list[int]] = {id(node): [] for node in self._nodes}
        for node in self._nodes:  # grows
            for to, _ in node.next_functions:
                if to is not None:
                    if id(to) not in before:
                        before[id(to)] = []
                        self._nodes.append(to)
                    before[id(to)].append(id(node))
        self.runs: set[int] = set()
        wanted = {id(edge.node) for edge in ends}
        work = list(wanted)
        while work:
            for one in before.get(work.pop(), ()):
                if one not in self.runs:
                    self.runs.add(one)
                    work.append(one)
        self.needed = self.runs | wanted


def _check_captured(node: Any, hooks: NodeLayout) -> None:
    """Hooks of a tensor see its gradient also where that is only given back.

    Raises:
        NotRecorded: there are some.
    """
    leaf = getattr(node, "variable", None)
    on_leaf = leaf is not None and (leaf._backward_hooks or hooks.hooked_natively(leaf))
    if hooks.sees_gradients(node) or hooks.retains(node) or on_leaf:
        raise NotRecorded("somebody looks at a gradient that is given back")


def _facts_of_all(structure: Structure) -> list[Any]:
    """What the key holds beyond single nodes: reductions, and the order of nodes where that matters."""
    facts: list[Any] = []
    hooked = [structure.nodes[at] for at, hooks in structure.opaque.items() if hooks]  # each a run of its own
    stopped = structure.nodes if structure.reduced or structure.ends else hooked
    if any(map(_is_reentrant, stopped)):
        raise NotRecorded("a checkpoint with use_reentrant=True refuses a run of the engine that stops before leaves")
    if structure.tensors.late:
        facts += _checkpoints(structure)
    if structure.reduced and structure.differentiable:
        raise NotRecorded(
            "create_graph, and a reducer of DistributedDataParallel gets gradients, which drops their graph"
        )
    if structure.reduced:
        structure.reductions, structure.cuts = reductions_of(structure.reduced, structure.leaves, structure.nodes)
        facts += [tuple(sorted(structure.reduced)), *[one.facts() for one in structure.reductions], len(structure.cuts)]
        facts += [one.facts() for one in structure.cuts]
        sent = {id(one.reducer) for one in structure.reductions}
        if any(id(one) not in sent for one in structure.reduced.values()):
            structure.ordered = True  # the order in which gradients come decides on buckets
    if structure.opaque or structure.checkpoints:
        leaf_hooks = [hook for leaf in structure.leaves.values() for hook in (leaf._backward_hooks or {}).values()]
        if any(map(counts_runs, leaf_hooks)):
            raise NotRecorded("there is a hook of register_multi_grad_hook, and code of the program runs in between")
    if structure.opaque or structure.checkpoints or structure.reduced:
        facts.append(_order(structure.nodes))
    return facts


def _is_reentrant(node: Any) -> bool:
    """Whether a node is a checkpoint that runs the engine within the engine."""
    return getattr(type(node), "_forward_cls", None) is CheckpointFunction


def _checkpoints(structure: Structure) -> list[Any]:
    """Which tensors each checkpoint computes again."""
    alone = [structure.nodes[at] for at, on in structure.opaque.items() if at not in structure.watched and any(on)]
    if any(one.unpack_hook is not None for node in alone for one in getattr(node, "_raw_saved_tensors", ())):
        raise NotRecorded("a node with hooks runs in a run of its own, for which a checkpoint would compute again")
    by_frame: dict[int, list[int]] = {}
    for at, one in structure.tensors.late.items():
        by_frame.setdefault(id(checkpoint_of(one.raw)), []).append(at)
    structure.checkpoints = list(by_frame.values())
    return [tuple(map(tuple, structure.checkpoints))]


def _hooks_on(node: Any, hooks: NodeLayout) -> list[dict[int, Any]]:
    """The hooks on a node; none where all were removed. A tensor that retains its gradient counts as one.

    Raises:
        NotRecorded: one is not Python's.
    """
    on_node = hooks.hooks_of(node)
    if on_node is None:
        raise NotRecorded(f"there is a hook of C++ on {node.name()}")
    if any(counts_runs(hook) for one in on_node for hook in one.values()):
        raise NotRecorded("there is a hook of register_multi_grad_hook on a tensor that is no leaf")
    if any(communicates(hook) for one in on_node for hook in one.values()):
        raise NotRecorded(COMMUNICATES)
    if hooks.retains(node):
        return [*on_node, {}]
    return on_node if any(on_node) else []


def hooked_within(structure: Structure) -> bool:
    """Whether there are hooks on nodes that had none when the structure was read: code of the program that runs within
    the backward put them there."""
    hooks = node_layout()
    nodes = [
        node
        for at, node in enumerate(structure.nodes)
        if not (structure.opaque.get(at) or at in structure.leaves or at in structure.captured)
    ]
    return hooks is not None and any(
        any(hooks.hooks_of(node) or ()) or hooks.retains(node) for node in nodes if not hooks.unhooked(node)
    )


def _read_reducer(structure: Structure, at: int, node: Any, hooks: NodeLayout, leaf: torch.Tensor) -> None:
    """What is on the node of a leaf may be a reducer's.

    Raises:
        NotRecorded: it is something else.
    """
    reducer = known.of(leaf) if hooks.natively_followed(node) else None
    if reducer is not None:
        structure.reduced[at] = reducer
    elif _hooks_on(node, hooks):
        raise NotRecorded("there is a hook on the node of a leaf")


def counts_runs(hook: Any) -> bool:
    """A hook that is called for several tensors, and looks at which run of the engine calls it; it may bear the name
    of the program's function."""
    code = getattr(hook, "__code__", None)
    return code is not None and code.co_filename == torch.autograd.graph.__file__


def _check_targets(node: Any, edges: Sequence[tuple[Any, int]], hooks: NodeLayout) -> None:
    """What a node with hooks gives is looked at where it arrives, and would be retained there for that, too.

    Raises:
        NotRecorded: it would.
    """
    given = [(id(to), nr) for to, nr in edges if to is not None]
    if len(set(given)) < len(given):
        raise NotRecorded(f"{node.name()} gives two gradients to one place")
    for to, _ in edges:
        if to is not None and hooks.retains(to):
            raise NotRecorded(f"a tensor behind {node.name()}, which has hooks, retains its gradient")


def _order(nodes: Sequence[Any]) -> tuple[int, ...]:
    """In which order the engine would run nodes that are ready: then code of the program runs in between."""
    sequence = [node._sequence_nr() for node in nodes]
    return tuple(sorted(range(len(sequence)), key=sequence.__getitem__))


def _leaf_facts(structure: Structure, at: int, leaf: torch.Tensor) -> Any:
    """What is known of a leaf beyond its gradient, which the engine itself accumulates."""
    if not leaf.is_leaf or type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout is not torch.strided:
        raise NotRecorded("a leaf is of a subclass, sparse, or no leaf any more")
    if getattr(leaf, "grad_dtype", leaf.dtype) is not leaf.dtype:
        raise NotRecorded("a leaf takes gradients of another dtype than its own")
    structure.leaves[at] = leaf
    if leaf._backward_hooks:
        structure.hooked.add(at)
        structure.ordered = True
    if leaf._post_accumulate_grad_hooks:
        structure.ordered = True
    return ("leaf", at in structure.hooked)


def _check_edges(node: Any, edges: Sequence[tuple[Any, int]]) -> None:
    """The sizes of what was joined are told by the gradient's and by those of the gradients that come of it."""
    if node.name() == "CatBackward0" and sum(to is None for to, _ in edges) > 1:
        raise NotRecorded("CatBackward0 does not tell the sizes of tensors without gradients")


def _received(structure: Structure, node: Any) -> tuple[Any, ...]:
    """The gradients that a node expects: sizes, dtypes, devices."""
    facts = []
    for one in node._input_metadata:
        if one.is_nested_tensor or one.device.type not in DEVICES:
            raise NotRecorded(f"a gradient is nested, or on {one.device.type}")
        if one.device.type != "cpu":
            if one.device != (structure.gpu or one.device):
                raise NotRecorded("gradients are on several GPUs")
            structure.gpu = one.device
        facts.append((tuple(one.shape), one.dtype, one.device))
    return tuple(facts)
