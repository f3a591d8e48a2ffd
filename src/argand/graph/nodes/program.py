"""`AtenProgram`: the functional ATen graph of one captured graph, and how its results become the user's outputs.

Made by `argand.autograd`, rewritten by `argand.passes`, read by `argand.lower` and the runtime wrapper. It lives in
this low layer so that all of them may import it.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import fx

from argand.graph import compat
from argand.graph.sizes.relations import Relation
from argand.graph.sizes.symbolic import Scalar
from argand.quick_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Metadata of one tensor value. `device` is the logical device: the graph's own values live on `meta`."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False


def spec_of(node: fx.Node) -> TensorSpec:
    """Of a tensor that begins where its memory does."""
    val: torch.Tensor = node.meta["val"]
    return TensorSpec(tuple(val.shape), tuple(val.stride()), 0, val.dtype, node.meta["device"])


def general(spec: TensorSpec, node: fx.Node) -> TensorSpec:
    """The metadata, with sizes and strides as expressions where they depend on the program's numbers."""
    val = node.meta["val"]
    return spec if isinstance(val, torch.Tensor) else replace(spec, size=val.shape, stride=val.strides)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One placeholder of the graph, in placeholder order.

    Arguments:
        name: the placeholder's name.
        kind: "arg": the tensor is `args[index]` of the call; "constant": it is `program.constants[name]`, a
            parameter, buffer or other tensor that lives outside the call and whose values may change between calls;
            "leaf": a new tensor that requires grad, see `program.leaves`; the graph does not read it;
            "tangent", in a joint or backward graph: the gradient of a result of the forward; "saved", in a backward
            graph: a value that the forward kept; "scalar": a number of `program.scalars`, whose name it has; "base":
            the memory that other inputs share, see `program.bases`.
        index: which argument, tangent, saved value, leaf or base; -1 for "constant".
        spec: its metadata when traced.
    """

    name: str
    kind: Literal["arg", "constant", "tangent", "saved", "scalar", "base", "leaf"]
    index: int
    spec: TensorSpec

    @property
    def source(self) -> tuple[Any, ...]:
        return (self.kind, self.index) if self.kind == "arg" else (self.kind, self.name)


@dataclass(frozen=True, slots=True)
class ViewReplay:
    """How to rebuild an alias from the real tensor that it aliases.

    `offset` is relative to that tensor's own storage offset. `chain`, when not empty, replaces size/stride/offset:
    calls `op(tensor, *args)` to apply in order, for views that as_strided cannot express (another dtype, conjugation).
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    chain: tuple[tuple[Any, tuple[Any, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One tensor or plain leaf of what the user's function returns.

    Arguments:
        kind: "value": graph output `index`, handed over as it is;
            "input": graph input `index` itself (the same Python object);
            "alias_of_input": a view of graph input `index`, rebuilt by `view` after mutations were applied;
            "alias_of_output": graph output `index` itself when `view` is None, else a view of it;
            "constant": the Python value `value`.
        detached: to autograd it is no view of what it lies in.
        detached_base: it is a view of a tensor that is no view of what both lie in.
        unseen: autograd does not notice writes to it there, and the other way round (`.data`).
        untaped: a view made under no_grad.
        of_several: one of the views that one call gave: autograd refuses writes to it.
        of: position of the output that it is a view of, to autograd too; -1: of what `kind` says.
    """

    kind: Literal["value", "input", "alias_of_input", "alias_of_output", "constant"]
    index: int = -1
    view: ViewReplay | None = None
    value: Any = None
    detached: bool = False
    detached_base: bool = False
    unseen: bool = False
    untaped: bool = False
    of_several: bool = False
    of: int = -1


@dataclass(frozen=True, slots=True)
class MutationSpec:
    """After the graph ran: `graph input[input].copy_(graph output[output])`, recorded by autograd if differentiable.

    Arguments:
        raises: how far eager raises the tensor's version; 0 where it writes through `.data`: autograd does not notice.
        held: who runs the graph has written the values already; autograd is to record it.
    """

    input: int
    output: int
    differentiable: bool = False
    raises: int = 1
    held: bool = False

    @property
    def unseen(self) -> bool:
        """Whether autograd does not notice."""
        return not self.raises


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """A flat tensor over memory that several inputs share, one of which is written to. The graph uses it, not them.

    Arguments:
        members: positions of the inputs that share the memory.
        offsets: storage offset of each, counted from the first one's.
        start: storage offset of the base, counted from the first member's.
        length: elements of the base.
        written: positions of the members whose version eager raises, once for each time.
    """

    members: tuple[int, ...]
    offsets: tuple[int, ...]
    start: int
    length: int
    written: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """A leaf of autograd that the program makes. The graph has an input for it, which gets the leaf's gradient.

    Arguments:
        input: position of that input.
        data: where the leaf's data is found ("value", "alias_of_input" or "alias_of_output"); None for a leaf that
            only makes results require grad, and that nobody sees.
    """

    input: int
    data: OutputSpec | None


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Where a graph has layers that do the same: of its calls, the run of them that begins at `begin`.

    Arguments:
        length: calls of a layer.
        count: of layers.
        given: names of inputs that calls of the first layer read, each with those that stand for it in the others.
    """

    begin: int
    length: int
    count: int
    given: tuple[tuple[str, ...], ...]


Arrivals: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Results that leave a run of a graph together, in order, and the inputs that may be written to from then on."""


@dataclass(slots=True)
class AtenProgram:
    """A functional ATen graph and the plan that turns its results into the user's.

    The graph holds placeholders (one per `inputs` entry), `get_attr` of `constants` (literals: never change, may be
    folded), call_function on OpOverloads (and `operator.getitem` on multi-result ops), and one output node whose single
    argument is a tuple of nodes: values named by `outputs` and `mutations`. No node mutates its arguments. Nodes
    that draw random numbers stay, in order, even when unused.

    Every node but the output carries `meta["val"]` (plain `meta`-device tensor, its strides those that the node's
    result
    has; or a tuple/list of them), `meta["device"]` (logical device) and `meta["origin"]` (`nodes.meta.NodeOrigin`).
    """

    graph: fx.Graph
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    mutations: list[MutationSpec]
    constants: dict[str, torch.Tensor]
    out_tree: Any  # torch.utils._pytree.TreeSpec, or None when the user's output is one leaf
    num_args: int = 0  # arguments of the call, tensors or not
    specialised: dict[int, Any] = field(default_factory=dict)  # argument index -> the Python value it was traced with
    specs: Any = None  # graph.specs.SpecTable with what inference has found so far; passes go on using it
    # of a program for many sizes: the numbers that it is computed with, and what they must satisfy
    scalars: list[Scalar] = field(default_factory=list)
    conditions: list[Relation] = field(default_factory=list)
    orders: list[tuple[Any, Any]] = field(default_factory=list)  # numbers of which passes rely on that no first is more
    kind: Literal["inference", "forward", "backward"] = "inference"
    kept: frozenset[int] = frozenset()  # results of a forward that only its backward sees
    taken: frozenset[int] = frozenset()  # inputs of a backward that are such results of its forward
    bases: list[BaseSpec] = field(default_factory=list)
    leaves: list[LeafSpec] = field(default_factory=list)
    arrivals: Arrivals = ()  # of a backward: what leaves a run before its end
    rewritten: bool = False  # the graph passes are through with it
    layers: LayerRun | None = None  # of such a program, where that is known
    model: int = -1  # number of the captured graph that it belongs to, of those compiled in this process

    @property
    def writes(self) -> bool:
        """Whether arguments are written to, or leaves made, behind a run of the graph."""
        return bool(self.mutations or self.leaves)

    @property
    def output_node(self) -> fx.Node:
        """The graph's single output node."""
        return next(iter(reversed(self.graph.nodes)))

    @property
    def handed_over(self) -> set[int]:
        """Results of the graph that the program's user gets, or views of them: each in memory of its own."""
        specs = [*self.outputs, *[leaf.data for leaf in self.leaves if leaf.data is not None]]
        return {spec.index for spec in specs if spec.kind in ("value", "alias_of_output")}

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]


def copied(program: AtenProgram) -> AtenProgram:
    """A program with a graph of its own: passes change what belongs to a program in place."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        env[node] = compat.copy_node(graph, node, env.__getitem__)
    return replace(program, graph=graph, inputs=list(program.inputs), constants=dict(program.constants))
