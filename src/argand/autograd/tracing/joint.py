"""Torch-level graph → one functional ATen graph of its forward and its backward; `trace.trace_joint` is the entry.

The torch-level graph runs under the tracer with autograd recording above it, as it would in eager; then the autograd
engine itself is asked for the gradients, and what it computes arrives at the same tracer. So every formula is torch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from argand import garbage_collection
from argand.autograd.recording.bases import Bases
from argand.autograd.recording.inputs import InputBuilder
from argand.autograd.recording.leaves import reached_leaves, refuse_separate_histories
from argand.autograd.recording.values import TraceTensor, Value, make_tensor
from argand.autograd.tracing.gradients import autocast_off, leaves_tape, records_gradients
from argand.autograd.tracing.inference import Attention, lift_attributes, run_graph
from argand.autograd.tracing.outputs import Outputs, check_aliased_inputs, versions_raised
from argand.autograd.tracing.saved_values import as_read, read_written, reads_of_results
from argand.autograd.tracing.tape import Tape, read_tape, saved_by_functions
from argand.autograd.tracing.tracer import Tracer
from argand.errors import AutogradError
from argand.graph import compat, time_limit
from argand.graph.checkpoint_regions import region_of
from argand.graph.dtensors import Edge, whole
from argand.graph.metadata.specs import Spec
from argand.graph.metadata.strides import is_dense
from argand.graph.nodes.meta import attribute, eliminate_dead, viewed
from argand.graph.nodes.program import AtenProgram, InputSpec, LeafSpec, MutationSpec, OutputSpec, TensorSpec
from argand.graph.operators.custom_backward import is_custom
from argand.graph.operators.data_checks import must_stay
from argand.graph.origin import NodeOrigin
from argand.graph.plain_checks import with_plain_checks
from argand.graph.wrappers import KNOWN
from argand.quick_dataclasses import dataclass

aten = torch.ops.aten


@dataclass(slots=True)
class JointProgram:
    """A forward and its backward in one functional graph, before partitioning.

    The program's graph takes the forward's inputs and then one tangent per differentiable result, and returns the
    forward's results and then the gradients. Nodes that the backward made carry `meta["backward"]`, the number of
    autograd's node.

    Arguments:
        program: the graph with the forward's plan (outputs, mutations, out_tree); inputs include the tangents.
        results: how many of the graph's outputs are the forward's.
        differentiable: positions among these that have a tangent, in the order of the tangents.
        gradients: per gradient that the graph returns, the position of the input it belongs to.
        tape: what eager's tape holds between these results and inputs.
        enables_grad: the graph itself turns gradients on, as one does that ends a `no_grad` block which it began in.
        plain: autograd recorded each operation of the forward as it stands in the graph: nothing is detached, runs
            without gradients or has a backward of its own.
        spent: results that require grad though the graph itself has differentiated and freed what leads to them, and
            what autograd says to whoever differentiates them again.
        differentiates: the graph itself asks the engine for gradients.
        passed: numbers of the differentiable results that others are computed from. Their own gradients are the last of
            what the graph returns.
        counted: results to which writes are counted together: parts of one wrapper.
        told: leaves by position whose gradients are as the dtype that these ask for (`grad_dtype`) says: it is another
            than theirs, or the engine converts what arrives.
    """

    program: AtenProgram
    results: int
    differentiable: tuple[int, ...]
    gradients: tuple[int, ...]
    tape: Tape = field(default_factory=lambda: Tape((), ()))
    enables_grad: bool = False
    plain: bool = False
    spent: dict[int, str] = field(default_factory=dict)
    differentiates: bool = False
    passed: tuple[int, ...] = ()
    counted: tuple[tuple[int, ...], ...] = ()
    told: dict[int, torch.dtype | None] = field(default_factory=dict)

    @property
    def forward_inputs(self) -> list[InputSpec]:
        return [spec for spec in self.program.inputs if spec.kind != "tangent"]

    @property
    def tangents(self) -> list[InputSpec]:
        return [spec for spec in self.program.inputs if spec.kind == "tangent"]


class JointTracer(Tracer):
    """A tracer that knows which autograd node runs, so that a backward node names the user line of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self.plain = True
        self.differentiated = False  # the graph itself has asked the engine for gradients
        self.told: dict[int, torch.dtype | None] = {}  # as of `JointProgram`
        self.reached: dict[int, torch.Tensor] = {}  # input position -> a real tensor that autograd itself saw
        self._by_sequence: dict[int, NodeOrigin] = {}
        self._backward_of: dict[int, NodeOrigin] = {}  # the same, for nodes that the backward makes

    def close(self) -> None:
        """As `Tracer.close`."""
        super().close()
        self.reached.clear()

    def tensor(self, tensor: torch.Tensor) -> TraceTensor:
        """As `Tracer.tensor`; a module's own parameters arrive here behind autograd, which knows them as leaves."""
        traced = super().tensor(tensor)
        if traced is not tensor and tensor.requires_grad:
            self.reached.setdefault(traced.value.input, tensor)
        return traced

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Tracer.run`; notes where the program leaves the tape."""
        if self.backward:
            args = tuple([as_read(self, arg) for arg in args])
        elif self.plain:
            unrecorded = not torch.is_grad_enabled() and any(
                isinstance(arg, torch.Tensor) and arg.requires_grad for arg in compat.tree_flatten((args, kwargs))[0]
            )
            self.plain = not unrecorded and not (func is aten.detach.default and compat.called_by_program())
        return super().run(func, args, kwargs)

    def commit(self, value: Value, new: TraceTensor) -> None:
        """As `Recorder.commit`; a backward that reads a part of an input reads the input as it is by then."""
        super().commit(value, new)
        if value.root.input >= 0 and value is not value.root and not self.backward:
            value.seen = -1

    def copied(self, source: TraceTensor, spec: Spec) -> TraceTensor:
        """As `Recorder.copied`, by a node of its own: a backward that reads the copy does not read the source."""
        new = super().copied(source, spec)
        if self.backward or viewed(self.read(new.value)) is not viewed(self.read(source.value)):
            return new
        copy = self.one(aten.clone.default, new)
        self.read(copy.value).meta["copied"] = True
        return copy

    def _node(self, func: Any, args: Any, kwargs: Any, val: Any, device: torch.device) -> fx.Node:
        if self.backward:
            running = compat.current_autograd_node()
            number = compat.sequence_number(running) if running is not None else -1
            origin = self._by_sequence.get(number)
            if number not in self._backward_of:
                self._backward_of[number] = replace(origin or NodeOrigin(), made_by="backward")
            self.origin = self._backward_of[number]
            time_limit.begin(origin)
        elif compat.current_autograd_node() is not None:
            self.differentiated = True
        else:
            self._by_sequence[compat.next_sequence_number() - 1] = self.origin
        node = super()._node(func, args, kwargs, val, device)
        if self.backward:
            node.meta["backward"] = number
        elif (region := region_of(func, args, kwargs)) is not None:
            node.meta["recompute"] = region
        return node


_FREED = "backward through the graph a second time"


class _Identity(torch.autograd.Function):
    """A graph input that is not a leaf, inside the trace: the same value behind an autograd node, so that it may be
    written to while it requires grad."""

    @staticmethod
    def forward(ctx: Any, tensor: TraceTensor) -> TraceTensor:
        ctx.set_materialize_grads(False)  # a function of the program's may give it none
        return make_tensor(tensor.value)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


@dataclass(slots=True, eq=False)
class _Leaves:
    """The tensors that the engine differentiates by: input position → leaf."""

    by_input: dict[int, TraceTensor] = field(default_factory=dict)
    starts: dict[int, Any] = field(default_factory=dict)  # input position -> grad_fn before the graph ran


def trace(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None = None,
    shared: Sequence[Sequence[torch.Tensor]] = (),
    attention: Attention | None = None,
) -> JointProgram:
    """What `trace_joint` does; `shared` and `attention` as for `inference.trace`."""
    given = (gm, example_inputs, layouts, shared, attention)
    whole = False
    told: dict[int, torch.dtype | None] = {}
    while True:
        try:
            return _traced(*given, whole_backwards=whole, told=told)
        except _Converted as other:
            told = other.told
        except BackwardError:
            if whole or not any(is_custom(node.target) for node in gm.graph.nodes):
                raise
            whole = True


def _traced(
    gm: fx.GraphModule, *given: Any, whole_backwards: bool, told: Mapping[int, torch.dtype | None]
) -> JointProgram:
    """One attempt.

    Arguments:
        whole_backwards: those of the program's own operators are one operator each.
        told: leaves whose gradients the engine is known to convert.
    """
    tracer = JointTracer()
    tracer.whole_backwards, tracer.told = whole_backwards, dict(told)
    try:
        return _trace(tracer, gm, *given)
    finally:
        tracer.close()


class _Converted(Exception):
    """Gradients of leaves are of other dtypes than these."""

    def __init__(self, told: dict[int, torch.dtype | None]) -> None:
        super().__init__()
        self.told = told


class BackwardError(AutogradError):
    """The graph was recorded, the computation of its gradients was not."""


def _trace(
    tracer: JointTracer,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    layouts: Mapping[int, TensorSpec] | None,
    shared: Sequence[Sequence[torch.Tensor]],
    attention: Attention | None,
) -> JointProgram:
    tracer.bases = Bases(shared)
    tracer.many_sizes = layouts is not None
    builder = InputBuilder(tracer)
    leaves = _Leaves()
    specialised: dict[int, Any] = {}
    arguments: list[Any] = []
    builder.names(gm)
    compat.keep_torch_compiler_out()
    with garbage_collection.paused(), compat.restored_torch_state(), compat.single_threaded_autograd():
        for index, value in enumerate(example_inputs):
            if isinstance(value, torch.Tensor):
                stand_in = builder.argument(value, index, layouts.get(index) if layouts else None)
                arguments.append(_differentiable_input(tracer, leaves, stand_in, value))
            else:
                specialised[index] = value
                arguments.append(value)

        tracer.on_lift = builder.constant
        attributes = {
            name: _differentiable_input(tracer, leaves, lifted, attribute(gm, name))
            if isinstance(lifted, TraceTensor)
            else lifted
            for name, lifted in lift_attributes(gm, tracer).items()
        }
        tracer.reached.clear()
        with tracer, compat.hidden_from_saved_tensor_hooks():
            result = run_graph(gm, arguments, attributes, tracer, attention)
        edges = [edge for node in gm.graph.nodes if isinstance(edge := node.meta.get("edge"), Edge)]
        joint = _Finisher(tracer, builder, leaves, edges).finish(result)
    joint.enables_grad = records_gradients(gm, example_inputs, enabled=False)
    joint.plain = tracer.plain and not (joint.enables_grad or tracer.differentiated)
    joint.plain = joint.plain and not any(map(leaves_tape, gm.graph.nodes))
    joint.program.num_args = len(example_inputs)
    joint.program.specialised = specialised
    return joint


def _differentiable_input(
    tracer: JointTracer, leaves: _Leaves, stand_in: TraceTensor, real: torch.Tensor
) -> TraceTensor:
    position = stand_in.value.input
    if not real.requires_grad or position in leaves.by_input or stand_in.requires_grad:
        return stand_in
    if not (stand_in.dtype.is_floating_point or stand_in.dtype.is_complex):
        return stand_in
    stand_in.requires_grad_(True)
    leaves.by_input[position] = stand_in
    if real.is_leaf:
        asked: torch.dtype | None = getattr(real, "grad_dtype", real.dtype)
        if asked is not real.dtype:
            stand_in.grad_dtype = tracer.told[position] = asked
        return stand_in
    with torch.enable_grad():  # which a graph may do itself, later
        inner: TraceTensor = _Identity.apply(stand_in)
    tracer.inputs[position] = inner
    tracer.lifted[id(real)] = (real, inner)
    leaves.starts[position] = inner.grad_fn
    return inner


class _JointOutputs(Outputs):
    """Sorts outputs as for inference, and notes which results carry a gradient."""

    def __init__(self, tracer: Tracer, inputs: InputBuilder, given: Iterable[torch.Tensor]) -> None:
        super().__init__(tracer, inputs)
        self._given = {id(leaf) for leaf in given}  # those that stand for inputs
        self.carriers: dict[int, torch.Tensor] = {}  # result position -> the tensor that autograd knows
        self._taped: set[int] = set()  # ids of roots of which a returned tensor requires grad

    def classify(self, leaves: list[Any]) -> list[OutputSpec]:
        tensors = [self.tracer.tensor(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._taped = {id(tensor.value.root) for tensor in tensors if tensor.requires_grad and not self.is_leaf(tensor)}
        return super().classify(leaves)

    def may_hold(self, tensor: TraceTensor) -> bool:
        """A detached tensor is a view of the one with the gradient, whichever is returned first."""
        taped = (tensor.requires_grad and not self.is_leaf(tensor)) or id(tensor.value.root) not in self._taped
        return taped and super().may_hold(tensor)

    def _tensor(self, tensor: TraceTensor, shared: set[int], bases: dict[int, int]) -> OutputSpec:
        spec = super()._tensor(tensor, shared, bases)
        if spec.kind == "alias_of_input" and spec.index in self.leaf_inputs:
            return spec
        if spec.kind == "value":
            if tensor.requires_grad:
                self._carry(spec.index, tensor)
            return spec
        if spec.kind == "alias_of_output" and spec.view is not None:
            return self._view_of_result(tensor, spec)
        if spec.kind == "alias_of_input":
            return self._view_of_input(tensor, spec)
        return spec

    def _view_of_input(self, tensor: TraceTensor, spec: OutputSpec) -> OutputSpec:
        if tensor.requires_grad and self.tracer.bases.is_base(tensor.value.root):
            raise AutogradError("the graph returns a view of an input that shares its memory with a written one")
        if not tensor.requires_grad:
            # A view of an input without a gradient gives it one when it is multiplied by something that has one.
            return spec
        if any(id(leaf) not in self._given for leaf in reached_leaves([tensor])):
            raise AutogradError("the graph returns a view of a leaf that it makes, and not the leaf")
        return replace(spec, untaped=self._made_under_no_grad(tensor))

    def _carry(self, position: int, tensor: torch.Tensor) -> None:
        self.carriers.setdefault(position, tensor)

    def _view_of_result(self, tensor: TraceTensor, spec: OutputSpec) -> OutputSpec:
        if not tensor.requires_grad:
            return spec if spec.detached or spec.detached_base else replace(spec, detached=True)
        if self._made_under_no_grad(tensor):
            spec = replace(spec, untaped=True)
        elif any(
            isinstance(leaf, TraceTensor) and leaf.value.root is tensor.value.root for leaf in reached_leaves([tensor])
        ):
            raise AutogradError("the graph returns a view of a leaf that it makes in a result's memory")
        if spec.index in self.carriers:
            return spec
        base = tensor._base
        if not isinstance(base, TraceTensor) or base.value.root is not tensor.value.root or not base.requires_grad:
            raise AutogradError("the graph returns views whose base does not carry their gradient")
        if base.value is not base.value.root:
            raise AutogradError("the graph returns views of a tensor that is itself a view without a gradient")
        self._carry(spec.index, base)
        return spec

    def refuse_gradient(self, tensor: TraceTensor) -> None:
        """Results may require grad here."""


class _Finisher:
    """From a traced forward to the joint program: results, tangents, the engine's run, gradients."""

    def __init__(self, tracer: JointTracer, builder: InputBuilder, leaves: _Leaves, edges: list[Edge]) -> None:
        self.tracer = tracer
        self.edges = edges  # of inputs that are DTensors
        self.builder = builder
        self.leaves = leaves
        self.outputs = _JointOutputs(tracer, builder, leaves.by_input.values())
        self.tape = Tape((), ())
        self.passed: tuple[int, ...] = ()

    def finish(self, result: Any) -> JointProgram:
        tracer, outputs = self.tracer, self.outputs
        flat, tree = compat.tree_flatten(result)
        check_aliased_inputs(tracer, self.builder.reals)
        with torch.no_grad():  # ops are recorded directly: an active tracer would see how their sizes are found
            specs = outputs.classify(flat)
        mutations = self._mutations()
        tracer.bases.refuse_gradients()
        results = len(outputs.nodes)
        spent = self._spent() if tracer.differentiated else {}
        positions = tuple(sorted(outputs.carriers.keys() - spent.keys()))
        handed = {spec.index for spec in specs if spec.kind in ("value", "alias_of_output") and spec.view is None}
        gradients = self._backward(positions, handed)
        graph = tracer.graph
        graph.output(tuple(outputs.nodes)).meta["val"] = tuple(n.meta["val"] for n in outputs.nodes)
        read_written(graph, [(outputs.nodes[m.output], m.input, outputs.carriers.get(m.output)) for m in mutations])
        seen = {outputs.nodes[p]: (p, outputs.carriers.get(p)) for p in handed - {m.output for m in mutations}}
        itself, data = reads_of_results(seen)
        self.tape = replace(self.tape, itself=itself, data=data)
        eliminate_dead(graph)
        self._drop_late_constants()
        literals = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
        constants = dict(self.builder.constants)
        constants |= {name: value for name, value in tracer.literals.items() if name in literals}
        out_tree = None if tree.is_leaf() else tree
        bases = tracer.bases.finish(tracer.inputs)
        program = AtenProgram(
            graph, self.builder.specs, specs, mutations, constants, out_tree, specs=tracer.specs, bases=bases,
            leaves=outputs.leaves,
        )  # fmt: skip
        return JointProgram(
            program, results, positions if gradients else (), gradients, self.tape, spent=spent,
            differentiates=tracer.differentiated, passed=self.passed,
            counted=outputs.counted() if KNOWN else (), told=tracer.told,
        )  # fmt: skip

    def _mutations(self) -> list[MutationSpec]:
        mutations: list[MutationSpec] = []
        tracer, outputs = self.tracer, self.outputs
        for index, root in tracer.mutated.items():
            with torch.no_grad():
                position = outputs.result(root)
            tensor = tracer.inputs[index]
            changed = tensor.requires_grad and tensor.grad_fn is not self.leaves.starts.get(index)
            changed = changed and not tensor.is_leaf  # else it is written under no_grad
            if changed:
                outputs.carriers[position] = tensor
            mutations.append(MutationSpec(index, position, changed, versions_raised(tracer, index)))
        return mutations

    def _spent(self) -> dict[int, str]:
        """Results that cannot be differentiated, as the graph has freed what autograd saved for that."""
        wanted = [*self.leaves.by_input.values(), *self.tracer.reached.values(), *self.outputs.leaf_inputs.values()]
        spent: dict[int, str] = {}
        if not wanted:  # torch 2.11 refuses to be asked for nothing
            return spent
        for position, carrier in self.outputs.carriers.items():
            try:
                with self.tracer:
                    seed = torch.ones_like(carrier)
                    torch.autograd.grad(carrier, wanted, seed, allow_unused=True, retain_graph=True)
            except RuntimeError as error:
                if _FREED not in str(error):
                    raise AutogradError(f"a result cannot be differentiated: {error}") from error
                spent[position] = str(error)
        return spent

    def _backward(self, positions: tuple[int, ...], handed: set[int]) -> tuple[int, ...]:
        """Ask the engine for the gradients; appends their nodes to the outputs, returns the inputs they belong to.

        Arguments:
            handed: positions of the results that the program sees as they are.
        """
        tracer, outputs = self.tracer, self.outputs
        if not positions:
            return ()
        carriers = [outputs.carriers[position] for position in positions]
        wanted = [*self.leaves.by_input.items(), *tracer.reached.items(), *outputs.leaf_inputs.items()]
        wanted += self._unseen_leaves(carriers, {id(leaf) for _, leaf in wanted})
        tangents = [self._tangent(order, outputs.nodes[position]) for order, position in enumerate(positions)]
        tracer.backward = True
        try:
            with tracer, autocast_off():
                apart = [number for number, position in enumerate(positions) if position in handed]
                self.tape = replace(read_tape(carriers, wanted, apart), watched=self._watched(carriers))
                passed = sorted(frozenset().union(*self.tape.passed))
                sources = [*[leaf for _, leaf in wanted], *[carriers[number] for number in passed]]
                for index in self.leaves.by_input.keys() - self.leaves.starts.keys() - tracer.told.keys():
                    self.leaves.by_input[index].grad_dtype = None  # what arrives is looked at, it is not converted
                if self.edges and len(carriers) > 1:
                    self._lay_out(carriers, sources, tangents)
                grads = with_plain_checks(torch.autograd.grad, (carriers, sources, tangents), {"allow_unused": True})
                time_limit.begin(None)
        except AutogradError:
            raise
        except Exception as error:
            raise BackwardError(
                f"the backward of the graph raised {type(error).__name__}: {error}",
                remedy="the graph runs eagerly, which raises the program's own error if it is one",
            ) from error
        by_input: dict[int, torch.Tensor] = {}
        with torch.no_grad(), tracer:
            for (index, _), grad in zip(wanted, grads):
                if grad is not None:
                    by_input[index] = whole(grad) if index not in by_input else by_input[index] + whole(grad)
        others = {i: tracer.inputs[i].dtype for i, g in by_input.items() if g.dtype is not tracer.inputs[i].dtype}
        if any(tracer.told.get(index, ...) is None for index in others):
            raise AutogradError("gradients of several dtypes come to a leaf that asks for none in particular")
        if others := {index: dtype for index, dtype in others.items() if index not in tracer.told}:
            raise _Converted(tracer.told | others)
        if not by_input:
            raise AutogradError("results require grad, and no input of the graph has a gradient")
        with torch.no_grad():
            outputs.nodes += [self._gradient(grad) for grad in by_input.values()]
            values = {n: tracer.tensor(g).value for n, g in zip(passed, grads[len(wanted) :]) if g is not None}
            values = {n: value for n, value in values.items() if not (value.held.conj or value.held.neg)}
            outputs.nodes += [tracer.read(value) for value in values.values()]
            self.passed = tuple(values)
        return tuple(by_input)

    def _watched(self, carriers: list[torch.Tensor]) -> tuple[tuple[str, int], ...]:
        """As of `Tape`."""
        places: dict[tuple[str, int], None] = {}
        for saved in saved_by_functions(carriers):
            root = saved.value.root if isinstance(saved, TraceTensor) else None
            if root is not None and root.input >= 0:
                if root.input not in self.tracer.mutated:  # those are written to when the graph has run, by the graph
                    places["input", root.input] = None
            elif root is not None and root.node in self.outputs.nodes:
                places["output", self.outputs.nodes.index(root.node)] = None
        return tuple(places)

    def _lay_out(self, carriers: list[torch.Tensor], sources: list[torch.Tensor], tangents: list[Any]) -> None:
        """Where the gradient of a DTensor is laid out in other ways for other results, it is laid out as the DTensor.

        Eager's layout of it depends on which of the results are differentiated; the graph's is one for all.
        """
        nodes = self.tracer.graph.nodes
        before = len(nodes)
        layouts: list[set[Any]] = [set() for _ in self.edges]
        for carrier, tangent in zip(carriers, tangents):
            for edge in self.edges:
                edge.placements = None
            torch.autograd.grad(carrier, sources, tangent, allow_unused=True, retain_graph=True)
            for edge, known in zip(self.edges, layouts):
                known.update(filter(None, [edge.placements]))
        called: list[fx.Node] = []  # collectives, and what reads them; others may be parts of the forward's results
        for node in list(nodes)[before:]:
            if must_stay(node) or any(read in called for read in node.all_input_nodes):
                called.append(node)
        for node in reversed(called):
            self.tracer.graph.erase_node(node)
        for edge, known in zip(self.edges, layouts):
            edge.several |= len(known) > 1

    def _unseen_leaves(self, carriers: list[torch.Tensor], known: set[int]) -> list[tuple[int, torch.Tensor]]:
        """Inputs for leaves that the graph made and does not return, where nothing else makes results require grad."""
        with self.tracer:
            if self.outputs.leaves:
                refuse_separate_histories(carriers, self.leaves.starts.values())
            reached = reached_leaves(carriers)
        if any(id(leaf) in known for leaf in reached):
            return []
        unseen: list[tuple[int, torch.Tensor]] = []
        for leaf in reached:
            if isinstance(leaf, TraceTensor):
                unseen.append((self.builder.leaf(leaf), leaf))
                self.outputs.leaves.append(LeafSpec(unseen[-1][0], None))
        return unseen

    def _drop_late_constants(self) -> None:
        """The engine looks at tensors of its own; inputs stand before the tangents, so that none may be used."""
        specs, nodes = self.builder.specs, [n for n in self.tracer.graph.nodes if n.op == "placeholder"]
        kinds = [spec.kind for spec in specs]
        if "tangent" not in kinds:
            return
        for position in range(len(specs) - 1, kinds.index("tangent"), -1):
            if specs[position].kind == "tangent":
                continue
            if nodes[position].users:
                raise AutogradError("the backward of the graph reads a tensor that its forward does not")
            self.builder.constants.pop(specs[position].name, None)
            self.tracer.graph.erase_node(nodes[position])
            del specs[position]

    def _gradient(self, grad: torch.Tensor) -> fx.Node:
        tracer = self.tracer
        value = tracer.tensor(grad).value
        node = tracer.read(value)
        if value.held.conj or value.held.neg:
            held = make_tensor(Value(value.held, node))
            node = tracer.read(tracer.one(aten.clone.default, held, memory_format=torch.contiguous_format).value)
        return node

    def _tangent(self, order: int, result: fx.Node) -> TraceTensor:
        val: torch.Tensor = result.meta["val"]
        device = result.meta["device"]
        size, stride = tuple(val.shape), tuple(val.stride())
        if not is_dense(size, stride):
            stride = tuple(torch.empty(size, device="meta").stride())
        spec = self.tracer.specs.make(size, stride, 0, val.dtype, device)
        node = self.builder.placeholder(f"tangents_{order + 1}")
        node.meta.update(val=spec.meta, device=device, origin=NodeOrigin(f"tangents_{order + 1}"))
        plain = TensorSpec(size, stride, 0, val.dtype, device)
        self.builder.specs.append(InputSpec(node.name, "tangent", order, plain))
        return make_tensor(Value(spec, node))
