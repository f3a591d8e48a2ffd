"""The torch-level graph being recorded: stand-ins for tensors, and the mode that turns torch calls into fx nodes.

A stand-in is a plain meta tensor. While `TraceMode` is active every torch function, method and tensor property arrives
at `GraphBuilder.call`, which records a node and computes the result's metadata on the stand-ins.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from argand import errors
from argand.capture.facts import compat
from argand.capture.facts.code import effort_limits
from argand.capture.facts.code.stack_text import stack_trace
from argand.capture.facts.data_dependent_errors import OnData
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.input_names import free_name
from argand.capture.facts.interfaces import CaptureState, Dynamics
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import Source
from argand.capture.facts.values.memories import Memories
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicBool
from argand.capture.facts.values.tensor_info import Dressed, Moved, Scope, TensorInfo
from argand.capture.metadata import (
    data_errors,
    memory,
    metadata,
    numpy_scalars,
    refused_writes,
    repeatable_writes,
    written_arguments,
)
from argand.capture.metadata.call_targets import (
    METHODS_OF_OPERATORS,
    OPERATOR_OPCODES,
    Target,
    is_replaced,
    placed,
    target_of,
)
from argand.capture.metadata.special_calls import CONSTANTS, SPECIAL
from argand.capture.record import constants, data_attribute, gradient_flags, scopes, size_tensors
from argand.capture.sizes import (
    dtensors,
    piecewise,
    symbolic_tensors,
    unbacked_calls,
    unbacked_index,
    unbacked_ops,
)
from argand.capture.sizes.symbolic_calls import ProbedCall
from argand.capture.world import narration
from argand.capture.world.native_reads import base_value, refuse_python_sequence
from argand.graph import time_limit
from argand.graph.dtensors import Layout
from argand.graph.nested_tensors import is_jagged, nested

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_SEQUENCES: frozenset[type] = frozenset((list, tuple, str, torch.Size))


def _replaced(func: Function) -> errors.GraphBreak:
    name = getattr(func, "__name__", str(func))
    return errors.graph_break(
        kind="torch function that is not known",
        context=name,
        explanation=f"The program put another function in place of torch's {name}, and a graph would call that one.",
    )


def _whole_nested() -> errors.GraphBreak:
    return errors.graph_break(
        kind="argument that a graph cannot hold",
        context="NestedTensor",
        explanation="A nested tensor was passed to a function that would be one operation; graphs hold its parts.",
    )


class GraphBuilder:
    """Records torch calls into an `fx.Graph`. One per capture attempt.

    Fields:
        root: the graph; `finish` adds its output.
        graph: where operations are recorded now: `root`, or the subgraph of the innermost of `scopes`.
        finished: id of a finished subgraph -> (what it belongs to, root instruction).
        entered: torch-function modes and devices (`torch_contexts.Entered`) that the program is inside of.
        dressed: id of the stand-in of a subclass -> what it stands for; wearers: the other way (subclasses.py).
        undressing: root instructions that switched `__torch_function__` of classes off, and have not left that.
        observed: how many torch calls have reached the trace mode; flags_seen: indices of `compat.FLAGS`, guarded.
        unsure: ids of stand-ins whose strides may not be those that eager's result has.
        maybe_same: id of a stand-in -> the one that it may be the same object as; known: those of known values.
        writing: nodes that write to arguments -> the nodes of these.
        effectful: nodes that stay although unused (random numbers).
        tensors: id of a stand-in -> TensorInfo; inputs: infos of the placeholders, in their order.
        constants: attribute name -> real tensor that the graph holds.
        moved: tensors whose data was set.
        flags: id of an input's stand-in -> by its `requires_grad` what it is, and the break there (`gradient_flags`).
        dynamics: the symbols of the capture; None while nothing varies; arguments: of the call that is being recorded.
        answered: the function of a call that a rule of its own answered since somebody set it to None.
        on_data: operations that values can make raise.
        gradients: id of a stand-in that the program made -> its `.grad`, where that was set.
        checkpoints: those that a backward may compute again (`higher_order.checkpoints`); checkpoint_reads: what
            functions of others look at, of what may change until their backward.
        several: ids of stand-ins of views of which one call gave several, and of views of these.
        hooks: those on tensors that the program made (`higher_order.hook_state.Later`).
        asked: id of an input's stand-in whose value was told -> what notes that it varies.
        memories: those of inputs; written: the storages of inputs that the graph has written to.
        staying: storage of stand-ins that are not to be returned -> the break that this is; passed_on: id -> storages.
        rerun: the graph so far, as it ran on new stand-ins to tell of gradients (`gradients.engine_runs.Run`).
        dual_level: of forward-mode gradients, that captured code has entered (`higher_order.dual_levels.Level`).
        sharded: stand-ins of DTensors were made; layouts: of those that are inputs; local_parts: id of one
            -> what the graph gives for it; masks: id of a buffer -> what it holds meanwhile (`sizes.sharded`).
        nested: stand-ins of nested tensors were made; ragged: those from outside, and offsets of them; ragged_sizes:
            number of a ragged size -> the stand-in of the offsets, or lengths, that it is of.
    """

    def __init__(self) -> None:
        self.root: fx.Graph = compat.PrintedGraph()
        self.graph = self.root
        self.scopes: list[Scope] = []
        self.unsure: set[int] = set()
        self.several: set[int] = set()
        self.maybe_same: dict[int, torch.Tensor] = {}
        self.known: list[TensorInfo] = []
        self.entered: list[Any] = []
        self.dressed: dict[int, Dressed] = {}
        self.wearers: dict[int, torch.Tensor] = {}
        self.undressing: list[int] = []
        self.flags_seen: set[int] = set()
        self.observed = 0
        self.finished: dict[int, tuple[str, int]] = {}
        self.writing: dict[fx.Node, list[object]] = {}
        self.effectful: set[fx.Node] = set()
        self.tensors: dict[int, TensorInfo] = {}
        self.inputs: list[TensorInfo] = []
        self.input_names: dict[str, int] = {"self": 1}  # which is the module in the function that fx writes
        self.constants: dict[str, torch.Tensor] = {}
        self.kept: set[fx.Node] = set()
        self.mutated: dict[int, TensorInfo] = {}
        self.moved: list[Moved] = []
        self.flags: dict[int, dict[bool, tuple[TensorInfo, errors.GraphBreak | None]]] = {}
        self.calls = 0
        self.arguments: tuple[object, ...] = ()
        self.answered: object = None
        self.state: CaptureState = None  # type: ignore[assignment]
        self.dynamics: Dynamics | None = None
        self.on_data = OnData()
        self.gradients: dict[int, torch.Tensor | None] = {}
        self.checkpoints: list[Any] = []
        self.checkpoint_reads: dict[tuple[Source | None, str, object], str] = {}
        self.hooks: list[object] = []
        self.asked: dict[int, Callable[[], None]] = {}
        self.conditions: set[str] = set()
        self.memories = Memories()
        self.written: set[int] = set()
        self.staying: dict[int, errors.GraphBreak] = {}
        self.passed_on: dict[int, frozenset[int]] = {}
        self.rerun: object = None
        self.dual_level: Any = None
        self.sharded = False
        self.layouts: list[tuple[Source, Layout]] = []
        self.local_parts: dict[int, list[torch.Tensor]] = {}
        self.masks: dict[int, tuple[torch.Tensor | None, int]] = {}
        self.nested = False
        self.ragged: list[tuple[Source, torch.Tensor]] = []
        self.ragged_sizes: dict[int, torch.Tensor] = {}

    # ---------------------------------------------------------------- inputs

    def new_input(self, source: Source, real: torch.Tensor) -> torch.Tensor:
        """A placeholder for a tensor that existed before the frame; returns its stand-in."""
        stand_in = metadata.stand_in(real)
        node = self.root.placeholder(free_name(source, self.input_names))
        node.meta.update(example_value=stand_in, source=source)
        info = self.tensors[id(stand_in)] = TensorInfo(stand_in, node, real.device, source, real)
        self.memories.add(info, real)
        self.inputs.append(info)
        return stand_in

    def constant(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor that the graph itself holds (`get_attr`)."""
        name = f"_tensor_constant{len(self.constants)}"
        self.constants[name] = real
        node = self.root.create_node("get_attr", name, (), {})
        return self.register(metadata.stand_in(real), node, real.device)

    def register(self, tensor: torch.Tensor, node: fx.Node, device: torch.device) -> torch.Tensor:
        """Make `tensor` the stand-in of `node`'s value."""
        node.meta["example_value"] = tensor
        info = self.tensors[id(tensor)] = TensorInfo(tensor, node, device)
        self.memories.hold(info)
        if self.dynamics is not None:
            symbolic_tensors.doubt(info)
        return tensor

    def node_of(self, info: TensorInfo) -> fx.Node:
        """The node that stands for a tensor in the graph being recorded."""
        node = info.node
        if node.graph is self.graph:
            return node
        return scopes.lift(self, info)

    # ---------------------------------------------------------------- calls

    def call(self, func: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Record a torch call and return its result: stand-ins for tensors, real values for everything else.

        Raises:
            GraphBreak: the call cannot be part of a graph.
        """
        if self.sharded and dtensors.among(args, kwargs):
            return dtensors.call(self, func, args, kwargs)
        if func in CONSTANTS:
            if self.unsure and id(args[0] if args else None) in self.unsure and func in metadata.LAYOUT_READS:
                raise metadata.unknown_layout(func)
            if self.dynamics is not None:
                answer = symbolic_tensors.constant(self, func, args, kwargs)
                if answer is not NotImplemented:
                    return answer
            return func(*args, **kwargs)
        journal = self.state.journal
        if journal is not None and not journal.busy:
            return journal.call(func, args, kwargs, True)
        for value in (*args, *kwargs.values()):
            if is_a(value, list | tuple | str) and type(value) not in _SEQUENCES:
                refuse_python_sequence(self.state.interpreter, type(value))
        special = SPECIAL.get(func)
        if special is not None:
            result = special(self, func, args, kwargs)
            if result is not NotImplemented:
                self.answered = func
                return result
        return self.record(func, args, kwargs)

    def record(
        self,
        func: Function,
        args: Args,
        kwargs: dict[str, object],
        *,
        device: torch.device | None = None,
        meta_args: tuple[object, ...] | None = None,
        meta_kwargs: dict[str, object] | None = None,
    ) -> object:
        """The general case of `call`.

        Arguments:
            func, args, kwargs: the user's call.
            device: logical device of the results; default: that of the tensor arguments, or the call's `device`.
            meta_args, meta_kwargs: arguments for computing metadata, where they differ.
        """
        if self.sharded and dtensors.among(args, kwargs):
            return dtensors.record(self, func, func, args, kwargs)
        journal = self.state.journal
        if journal is not None and not journal.busy and device is None and meta_args is None and meta_kwargs is None:
            return journal.call(func, args, kwargs, False)
        try:
            time_limit.check()
            kwargs = placed(func, kwargs, device) if self.entered else kwargs
            return self._record(func, args, kwargs, device, meta_args, meta_kwargs)
        except time_limit.OutOfTime:
            raise effort_limits.out_of_time(getattr(func, "__name__", str(func))) from None

    def _record(
        self,
        func: Function,
        args: Args,
        kwargs: dict[str, object],
        device: torch.device | None,
        meta_args: tuple[object, ...] | None,
        meta_kwargs: dict[str, object] | None,
    ) -> object:
        infos: list[TensorInfo] = []
        self.arguments = (*args, *kwargs.values())
        node_args = tuple([self.to_node(arg, infos) for arg in args])
        node_kwargs = {key: self.to_node(value, infos) for key, value in kwargs.items()} if kwargs else {}
        data_errors.check(self, func, args, infos)
        if device is None:
            device = metadata.logical_device(func, infos, kwargs)
        target = self._target(func, kwargs)
        named, behind = written_arguments.written(func, args, kwargs, target.mutates or "out" in kwargs)
        written = named + behind
        metadata.refuse_overlapping(func, written, args)
        self.note_writes(named, func, args, tuple([kwargs[name] for name in kwargs if name != "out"]))
        self.note_writes(behind)  # kernels do not ask autograd whether they may
        first = infos[0].tensor if infos else None
        before, shapes = written_arguments.versions(infos), metadata.out_shapes(kwargs)
        siblings: list[object] | None = None
        try:
            if self.dynamics is not None and symbolic_tensors.involved(self, infos, args, kwargs):
                piecewise.guard_arguments(self, func, args, kwargs, infos)
                meta, siblings = self.compute_dynamic(func, args, kwargs, infos, device, meta_args, meta_kwargs)
            else:
                meta = self.compute(func, args, kwargs, infos, device, meta_args, meta_kwargs)
        except errors.GraphBreak:
            as_numbers = size_tensors.numbers(self, func, args, kwargs)
            if as_numbers is None:
                raise
            return self.record(func, *as_numbers, device=device)
        further = written_arguments.moved(infos, before, {id(tensor) for tensor in written})
        writes = target.mutates or "out" in kwargs or bool(written or further)
        if meta is first and first is not None and not writes:
            if before[0] is not None:
                if id(first) in self.unsure and metadata.asks_for_layout(func, args, kwargs):
                    raise metadata.unknown_layout(func)
                return meta  # the very same tensor came back untouched: no operation took place
            writes, further = True, [first]
        self.note_writes(further)
        if infos and meta.__class__ is not _Tensor and not (writes or target.keep or metadata.has_tensor(meta)):
            metadata.refuse_unknown(func, meta, bool(target.attribute))
        self._refuse_huge(func, meta, device)
        result = self.finish_call(target, node_args, node_kwargs, meta, device, writes, (*written, *further))
        if not writes and (self.several or result.__class__ is not _Tensor):
            refused_writes.note_views(self.several, func, first, result)
        self._note_layout(func, infos, data_errors.resizes(self, func, args, kwargs, shapes), result)
        if siblings is not None:
            result = symbolic_tensors.attach(self, result, siblings)
            piecewise.guard(self, self._probed(func, args, kwargs, infos, device, meta_args, meta_kwargs), result)
            return result
        if not writes and not target.keep:
            constants.note(self, func, args, kwargs, infos, device, result)
        return result

    def _note_layout(self, func: Function, infos: list[TensorInfo], resized: bool, result: object) -> None:
        unsure = resized or metadata.is_layout_unsure(func, infos)
        if unsure or (self.unsure and any(id(info.tensor) in self.unsure for info in infos)):
            metadata.note_unsure(self.unsure, result)

    def _refuse_huge(self, func: Function, meta: object, device: torch.device) -> None:
        """`memory.refuse_huge`, but where sizes depend on data: their stand-ins are of any size."""
        if not unbacked_index.depends(self, self.arguments):
            memory.refuse_huge(func, meta, device)

    def _target(self, func: Function, kwargs: dict[str, object]) -> Target:
        """What becomes the node's target."""
        target = self._operator(func, kwargs) or target_of(func)
        if is_replaced(func, target):
            raise _replaced(func)
        return target

    def compute(
        self,
        func: Function,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        infos: list[TensorInfo],
        device: torch.device,
        meta_args: tuple[object, ...] | None,
        meta_kwargs: dict[str, object] | None,
        judged: bool = True,
    ) -> object:
        args = args if meta_args is None else meta_args
        kwargs = kwargs if meta_kwargs is None else meta_kwargs
        return metadata.compute(func, args, kwargs, infos, judged)

    def compute_dynamic(
        self, func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], device: torch.device, *meta: object
    ) -> tuple[object, list[object]]:
        """The metadata at the sizes of this call and at the probes."""
        probed = self._probed(func, args, kwargs, infos, device, *meta)
        probed.refuse_counts()
        unbacked = probed.dynamics.unbacked
        if unbacked is not None and unbacked.among(*probed.symbols):
            return unbacked_calls.compute(probed)
        return probed.compute()

    def _probed(
        self, func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], device: torch.device, *meta: Any
    ) -> ProbedCall:
        def run(plain_args: Args, plain_kwargs: Kwargs, judged: bool = True) -> object:
            return self.compute(func, plain_args, plain_kwargs, infos, device, plain_args, plain_kwargs, judged)

        meta_args, meta_kwargs = meta
        args = args if meta_args is None else meta_args
        return ProbedCall(self, run, func, args, kwargs if meta_kwargs is None else meta_kwargs)

    def _operator(self, func: object, kwargs: dict[str, object]) -> Target | None:
        """The operator that the program wrote, where `func` is the method behind one."""
        target = METHODS_OF_OPERATORS.get(func)
        if target is None or kwargs:
            return None
        frames = self.state.interpreter.frames
        return target if frames and frames[-1].instruction.opname in OPERATOR_OPCODES else None

    def finish_call(
        self,
        target: Target,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        meta: object,
        device: torch.device,
        writes: bool,
        written: Sequence[torch.Tensor] = (),
    ) -> object:
        if meta.__class__ is not _Tensor and not metadata.has_tensor(meta):
            if meta is NotImplemented or (meta is not None and not writes and not target.keep):
                return meta
        if target.attribute:
            args = (args[0], target.attribute)
        elif target.swap and isinstance(args[1], fx.Node):  # not what an operator would do: `a.__rdiv__(b)`
            target = Target("call_method", target.name)
        elif target.swap:
            args = (args[1], args[0])
        node = compat.new_node(self.graph, target.op, target.target, args, kwargs)
        self.annotate(node)
        self.calls += 1
        if writes or target.keep or meta is None:
            self.kept.add(node)
            if not writes:
                self.effectful.add(node)
            else:
                into = [self.to_node(tensor, []) for tensor in written if id(tensor) in self.tensors]
                self.writing[node] = into
                node.meta["writes"] = [number for number, given in enumerate(node.all_input_nodes) if given in into]
                repeatable_writes.noted(self, node)
        return self._wrap(meta, node, device)

    def _wrap(self, meta: object, node: fx.Node, device: torch.device) -> object:
        if isinstance(meta, _Tensor):
            info = self.tensors.get(id(meta))
            if info is not None:
                node.meta["example_value"] = meta
                return meta
            return self.register(meta, node, device)
        if isinstance(meta, tuple | list) and not isinstance(meta, torch.Size):
            node.meta["example_value"] = meta
            items = []
            for i, item in enumerate(meta):
                if isinstance(item, _Tensor | tuple | list):
                    if isinstance(item, _Tensor) and id(item) in self.tensors:
                        items.append(item)
                        continue
                    part = compat.new_node(self.graph, "call_function", operator.getitem, (node, i), {})
                    part.meta.update({k: node.meta[k] for k in ("stack_trace", "user_line") if k in node.meta})
                    items.append(self._wrap(item, part, device))
                else:
                    items.append(item)
            return meta if all(a is b for a, b in zip(items, meta)) else type(meta)(items)
        node.meta["example_value"] = meta
        return meta

    def effect(self, function: object, args: Args) -> fx.Node:
        """The node of a call that stays in the graph, whoever reads what it returns."""
        node = compat.new_node(self.graph, "call_function", function, args, {})
        self.annotate(node)
        self.kept.add(node)
        return node

    def annotate(self, node: fx.Node) -> None:
        """Note where in the program an operation stands."""
        frames = self.state.interpreter.frames
        if frames:
            node.meta["stack_trace"], node.meta["user_line"] = stack_trace(frames)
            narration.operation(node, frames)
        if self.sharded:
            node.meta["grad"] = torch.is_grad_enabled()

    def note_writes(self, written: Iterable[torch.Tensor], func: Function | None = None, *args: Args) -> None:
        """A call writes to these tensors.

        Arguments:
            func, args: the call, where eager may refuse to write: its arguments, then what it is given by keyword.
        """
        given = sum(args, ())
        for tensor in written:
            info = self.tensors.get(id(tensor))
            if info is not None:
                if self.sharded:
                    dtensors.note_write_to_part(self, info)
                refused_writes.check(self.tensors, self.several, func, given, info.tensor)
                self.mutated[id(tensor)] = info
                data_errors.written(self, info, func, given)
                constants.forget(self, info, func, *args[:1])

    def to_node(self, value: Any, infos: list[TensorInfo]) -> object:
        cls = type(value)
        if cls is _Tensor or cls is _Parameter:
            info = self.tensors.get(id(value))
            if info is None:
                raise metadata.leak(value)
            infos.append(info)
            return self.node_of(info)
        if cls in _PLAIN:
            return value
        if cls is tuple or cls is torch.Size:
            return tuple([self.to_node(item, infos) for item in value])
        if cls is list:
            return [self.to_node(item, infos) for item in value]
        if cls is dict:
            return {key: self.to_node(item, infos) for key, item in value.items()}
        if cls is slice:
            return slice(
                self.to_node(value.start, infos), self.to_node(value.stop, infos), self.to_node(value.step, infos)
            )
        return self._odd_to_node(value, infos)

    def number_node(self, value: Any) -> object:
        """The node of a symbolic number."""
        if self.graph is not self.root:
            return scopes.number(self, value)
        if self.dynamics is None:
            return value.number()
        if type(value) is SymbolicBool:
            return self.dynamics.nodes(self).condition(value.relation)
        return self.dynamics.nodes(self).of(value.expr) if self.dynamics.fits(value) else value.number()

    def _odd_to_node(self, value: object, infos: list[TensorInfo]) -> object:
        cls = type(value)
        if type(value) in SYMBOLIC:
            return self.number_node(value)
        if isinstance(value, tuple | list):
            refuse_python_sequence(self.state.interpreter, type(value))
            base: Any = tuple if isinstance(value, tuple) else list
            return base([self.to_node(item, infos) for item in base.__iter__(value)])
        if numpy_scalars.is_scalar(value) and not isinstance(value, str | bytes):
            return numpy_scalars.number(value, self.arguments)
        if isinstance(value, int | float | str):
            return base_value(value)
        if isinstance(value, _Tensor):
            info = self.tensors.get(id(value))
            if info is None:
                raise metadata.leak(value)
            if is_jagged(cls):
                raise _whole_nested()
            infos.append(info)
            return self.node_of(info)
        if isinstance(value, torch.Generator):
            raise metadata.generator("A function draws from a torch.Generator")
        raise errors.graph_break(
            kind="argument that a graph cannot hold",
            context=f"{type(value).__module__}.{type(value).__qualname__}",
            explanation=f"A {type(value).__name__} was passed to a torch function; graphs hold tensors and numbers.",
        )

    def item(self, tensor: torch.Tensor) -> object:
        """The value of a tensor as a symbolic number; NotImplemented where capture does not have it."""
        if not self.state.data_numbers or id(tensor) not in self.tensors:
            return NotImplemented
        with torch._C.DisableTorchFunction():
            if constants.value_of(self, tensor) is not None:
                return NotImplemented
            return unbacked_ops.item(self, tensor)

    # ---------------------------------------------------------------- the end

    def finish(self, outputs: list[object]) -> fx.GraphModule:
        """Add the output node, drop what nobody needs, and make the module.

        Arguments:
            outputs: stand-ins to return, in order, and symbolic numbers that only the graph can tell.
        """
        graph = self.root
        self.check_staying(scopes.not_passed_on(self, outputs))
        gradient_flags.finish(self, outputs)
        graph.output(tuple([self._output(value) for value in outputs]))
        self.drop_dead(graph)
        unbacked_index.copy_selected(self)
        if self.nested and any(node.target is nested for node in graph.nodes):
            raise _whole_nested()
        self.inputs = scopes.read_inputs(graph, self.inputs)
        scopes.placeholders_first(graph)
        module = compat.CapturedGraph(self.constants, graph)
        if self.dynamics is not None and any("sizes" in n.meta or "expr" in n.meta for n in graph.nodes):
            module.meta["symbols"] = self.dynamics.table
            self.dynamics.table.relations = tuple(self.dynamics.required)
            if any("unbacked" in n.meta for n in graph.nodes):
                module.meta["unbacked"] = True
        return module

    def check_staying(self, outputs: Sequence[object]) -> None:
        """Raise the break of a stand-in that this graph, or subgraph, must not return."""
        for value in outputs if self.staying or self.moved else ():
            info = self.tensors.get(id(value))
            if info is not None and info.source is None:
                with torch._C.DisableTorchFunction():
                    memory = compat.storage_address(info.tensor)
                if memory in self.staying:
                    raise self.staying[memory]
                data_attribute.check_leaving(self, info, memory)

    def _output(self, value: object) -> object:
        return self.number_node(value) if type(value) in SYMBOLIC else self.node_of(self.tensors[id(value)])

    def drop_dead(self, graph: fx.Graph) -> None:
        """Erase the operations whose results nobody needs."""
        for node in reversed(list(graph.nodes)):
            if node.op in ("call_function", "call_method", "get_attr") and not node.users and node not in self.kept:
                graph.erase_node(node)


_PLAIN: frozenset[type] = frozenset(
    {int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout,
     type(...), range, bytes}
)  # fmt: skip
