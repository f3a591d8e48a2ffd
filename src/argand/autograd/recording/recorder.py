"""What a trace records: nodes of a functional ATen graph, values, and the views and writes between them.

How an op is recorded is the tracer's to say (`tracer`), by the rules of `special`, `foreach`, `mutation` and `views`,
which are written in terms of this.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from argand.autograd.recording.bases import Bases
from argand.autograd.recording.values import AliasGroup, TraceTensor, Value, make_tensor
from argand.errors import AutogradError
from argand.graph import compat
from argand.graph.metadata import metas
from argand.graph.metadata.specs import Spec, SpecTable, settings, table_for_program
from argand.graph.metadata.strides import dense_strides, elements_spanned, is_dense, memory_order, overlaps
from argand.graph.origin import NodeOrigin

aten = torch.ops.aten

Handler = Callable[["Recorder", Any, tuple[Any, ...], dict[str, Any]], Any]

_PLAIN = frozenset(
    (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)


class Recorder(compat.DispatchMode):
    """Records operations as nodes of `graph`.

    Results are `TraceTensor`s: code that runs under the tracer sees tensors of the right size, stride, dtype and
    (logical)
    device, and no data. Writes never reach the graph: a write makes a new value, and aliases are made anew from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._settings = settings()
        self.specs = table_for_program(self._settings)
        self.origin = NodeOrigin()
        self.inputs: list[TraceTensor] = []
        self.literals: dict[str, torch.Tensor] = {}
        self.mutated: dict[int, Value] = {}  # input index -> root value, in order of first write
        self.lifted: dict[int, tuple[torch.Tensor, TraceTensor]] = {}  # id of a real tensor -> itself, its stand-in
        self.on_lift: Callable[[torch.Tensor], TraceTensor] | None = None
        self.bases = Bases()  # of inputs that share memory
        self.many_sizes = False  # traces at other sizes are compared with this one
        self.whole_backwards = False  # a backward of an operator of the program's own is one operator
        self.inference_mode = False  # the graph runs in inference mode
        self.received: list[Value] = []  # inputs that hold what other processes delivered
        self._uneven = False  # an argument of the op being recorded has `held` differ from `spec`

    def close(self) -> None:
        """Let go of the program's tensors: tracer, stand-ins and builders refer to each other."""
        self.on_lift = None
        self.lifted.clear()
        self.inputs.clear()
        self.mutated.clear()
        self.received.clear()
        self.bases = Bases()

    # ------------------------------------------------------------------ recording

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `func(*args, **kwargs)` (any ATen overload) and return its results as the program sees them."""
        raise NotImplementedError

    def replay(self, func: Any, source: TraceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TraceTensor:
        """The view of `source` that a view op made of an earlier value."""
        raise NotImplementedError

    def inverse(self, view: tuple[Any, Any, Any], parent: TraceTensor, new: TraceTensor) -> TraceTensor:
        """`parent` where its view now holds `new`."""
        raise NotImplementedError

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an op that neither writes nor aliases."""
        self._uneven = False
        key, node_args = self._lower_args(args)
        node_kwargs: dict[str, Any] = {}
        if kwargs:
            kw_key, kw_values = self._lower_args(tuple(kwargs.values()))
            key = (*key, *kwargs, *kw_key)
            node_kwargs = dict(zip(kwargs, kw_values))
        result = self._result_specs((func, *key), func, args, kwargs)
        if self._uneven:
            return self._record_uneven(result, func, args, kwargs, node_args, node_kwargs)
        cls = result.__class__
        if cls is Spec:
            node = self._node(func, node_args, node_kwargs, result.meta, result.device)
            return make_tensor(Value(result, node))
        if cls is not metas.Many:
            if not func._schema.returns:
                self._node(func, node_args, node_kwargs, None, torch.device("cpu"))  # an assertion on data
            return result
        node = self._node(func, node_args, node_kwargs, result.metas, result.device)
        return result.kind(
            self._pick(node, index, item) if item.__class__ is Spec else item for index, item in enumerate(result.items)
        )

    def one(self, func: Any, *args: Any, **kwargs: Any) -> TraceTensor:
        """Record an op that makes a single tensor."""
        result: TraceTensor = self.record(func, args, kwargs)
        return result

    def _record_uneven(
        self, held: Any, func: Any, args: Any, kwargs: dict[str, Any], node_args: Any, node_kwargs: dict[str, Any]
    ) -> Any:
        """Some argument's node has another layout than eager's tensor: infer the result for both."""
        self._uneven = False
        eager = metas.infer(
            self.specs,
            func,
            self._held(_as_eager(args)),
            {n: self._held(_as_eager((v,))[0]) for n, v in kwargs.items()},
        )
        if held.__class__ is Spec:
            node = self._node(func, node_args, node_kwargs, held.meta, held.device)
            return make_tensor(Value(eager, node, held))
        if held.__class__ is not metas.Many:
            return held
        node = self._node(func, node_args, node_kwargs, held.metas, held.device)
        picked = []
        for index, (item, seen) in enumerate(zip(held.items, eager.items)):
            picked.append(self._pick(node, index, seen, item) if item.__class__ is Spec else item)
        return held.kind(picked)

    def record_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TraceTensor:
        """Record an op whose only result is a view of its first argument."""
        source = self.tensor(args[0])
        result: TraceTensor = self.record(func, (source, *args[1:]), kwargs)
        self.link(result.value, source.value, func, args[1:], kwargs)
        return result

    def windows(self, root: TraceTensor, size: tuple[int, ...], stride: tuple[int, ...], start: int) -> TraceTensor:
        """A part of a dense tensor by strides, as views that count from its first element, wherever that lies."""
        spec = root.value.spec
        flat = self.one(aten.permute.default, root, list(memory_order(spec.size, spec.stride)))
        flat = self.one(aten.view.default, flat, [math.prod(spec.size)])
        reach = elements_spanned(size, stride)
        part = self.one(aten.slice.Tensor, flat, 0, start, start + reach)
        for dim, (n, step) in enumerate(zip(size, stride)):
            reach -= (n - 1) * step
            if step == 0:
                wider = self.one(aten.unsqueeze.default, part, dim)
                part = self.one(aten.expand.default, wider, [*size[: dim + 1], reach])
            else:
                part = self.one(aten.unfold.default, part, dim, reach, step)
        return self.one(aten.select.int, part, len(size), 0)

    def link(self, value: Value, parent: Value, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make `value` a view of `parent`."""
        group = parent.group
        if group is None:
            group = parent.group = AliasGroup(parent)
        value.group = group
        value.parent = parent
        value.view = (func, args, kwargs)
        value.seen = group.version

    def _pick(self, node: fx.Node, index: int, spec: Spec, held: Spec | None = None) -> TraceTensor:
        value = Value(spec, None, held)
        value.pick = (node, index)
        return make_tensor(value)

    def _node(self, func: Any, args: Any, kwargs: Any, val: Any, device: torch.device) -> fx.Node:
        node = compat.new_node(self.graph, func, args, kwargs)
        meta = node.meta
        meta["val"] = val
        meta["device"] = device
        meta["origin"] = self.origin
        return node

    # ------------------------------------------------------------------ arguments

    def _lower_args(self, args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        key: list[Any] = []
        nodes: list[Any] = []
        for arg in args:
            cls = arg.__class__
            if cls is TraceTensor:
                value = arg.value
                nodes.append(self.read(value))
                key.append(value.held)
                if value.held is not value.spec:
                    self._uneven = True
            elif cls in _PLAIN:
                key.append(cls)
                key.append(arg)
                nodes.append(arg)
            elif cls is list or cls is tuple or isinstance(arg, (list, tuple)):
                inner_key, inner_nodes = self._lower_args(arg)
                key.append(inner_key)
                nodes.append(list(inner_nodes))
            elif isinstance(arg, torch.Tensor):
                value = self.tensor(arg).value
                nodes.append(self.read(value))
                key.append(value.held)
            else:
                plain = self._plain_number(arg)
                key.append(plain.__class__)
                key.append(plain)
                nodes.append(plain)
        return tuple(key), tuple(nodes)

    def _plain_number(self, arg: Any) -> Any:
        """numpy numbers and int subclasses as plain numbers; anything else is refused."""
        kinds: tuple[Any, ...] = (bool, int, float, complex, str)
        for kind in kinds:
            if isinstance(arg, kind):
                return kind(arg)
        raise AutogradError(
            f"an operator takes an argument of type {type(arg).__name__}, which a graph cannot hold",
            remedy="random generators, streams and symbolic sizes run eagerly",
        )

    def tensor(self, tensor: torch.Tensor) -> TraceTensor:
        """The stand-in of a tensor: itself, or for a real one the graph input or literal made for it."""
        if tensor.__class__ is TraceTensor:
            return tensor
        known = self.lifted.get(id(tensor))
        if known is not None:
            return known[1]
        if self.on_lift is None or not compat.is_plain_tensor(tensor):
            raise AutogradError(f"a tensor of type {type(tensor).__name__} cannot be traced")
        return self.on_lift(tensor)

    def read(self, value: Value) -> fx.Node:
        """The node that computes what the value holds now."""
        group = value.group
        if group is not None and value.seen != group.version and value.parent is not None:
            self._rederive(value)
        node = value.node
        if node is None:
            node = self._picked(value)
        return node

    def _rederive(self, value: Value) -> None:
        parent, view, group = value.parent, value.view, value.group
        if parent is None or view is None or group is None:
            return
        func, args, kwargs = view
        source = make_tensor(Value(parent.spec, self.read(parent), parent.held))
        uneven = self._uneven
        again: TraceTensor = self.replay(func, source, args, kwargs)
        self._uneven = uneven
        value.node, value.pick = self.read(again.value), None
        value.held = again.value.held
        value.seen = group.version

    def _picked(self, value: Value) -> fx.Node:
        if value.pick is None:
            raise AutogradError("a value is read that nothing computes")
        multi, index = value.pick
        spec = value.held
        node = self._node(operator.getitem, (multi, index), {}, spec.meta, spec.device)
        node.meta["origin"] = multi.meta["origin"]
        value.node, value.pick = node, None
        return node

    # ------------------------------------------------------------------ metadata

    def look_at_settings(self) -> None:
        """After a call that may have changed a setting of torch: then what other programs know holds no longer."""
        if settings() != self._settings:
            self.specs = SpecTable()

    def _result_specs(self, key: tuple[Any, ...], func: Any, args: Any, kwargs: Any) -> Any:
        results = self.specs.results(func, kwargs)
        result = results.get(key)
        if result is None:
            held = {name: self._held(value) for name, value in kwargs.items()}
            result = results[key] = metas.infer(self.specs, func, self._held(args), held)
        return result

    def _held(self, tree: Any) -> Any:
        """`tree` with the Spec that each tensor's node really has in place of the tensor."""
        if isinstance(tree, torch.Tensor):
            return self.tensor(tree).value.held
        if isinstance(tree, list):
            return [self._held(item) for item in tree]
        return tuple(self._held(item) for item in tree) if isinstance(tree, tuple) else tree

    # ------------------------------------------------------------------ writes

    def write(self, target: TraceTensor, new: Any) -> None:
        """`target` holds `new` from now on, in its own dtype, size and layout; its aliases see the write."""
        spec = target.value.spec
        if overlaps(spec.size, spec.stride):
            raise AutogradError("an in-place operator writes to a tensor whose elements share memory")
        self.commit(target.value, self.conform(self.tensor(new), spec))
        target.constant = None

    def conform(self, new: TraceTensor, spec: Spec) -> TraceTensor:
        """`new` cast, expanded and laid out as `spec` (densely, when `spec` has holes)."""
        if new.value.spec.dtype is not spec.dtype:
            new = self.record(aten._to_copy.default, (new,), {"dtype": spec.dtype})
        if new.value.spec.device != spec.device:
            new = self.record(aten._to_copy.default, (new,), {"device": spec.device})
        if new.value.spec.size != spec.size:
            new = self.record(aten.expand.default, (new, list(spec.size)), {})
        stride = spec.stride if is_dense(spec.size, spec.stride) else dense_strides(spec.size, spec.stride)
        return self.with_strides(new, stride)

    def with_strides(self, tensor: TraceTensor, stride: tuple[int, ...]) -> TraceTensor:
        """The same values in a dense layout with these strides."""
        spec = tensor.value.held
        size = spec.size
        same = all(n == 1 or a == b for n, a, b in zip(size, spec.stride, stride)) or 0 in size
        if same and not spec.conj and not spec.neg:
            return tensor
        order = memory_order(size, stride)
        if order == tuple(range(len(order))):
            return self.one(aten.clone.default, tensor, memory_format=torch.contiguous_format)
        moved = self.record(aten.permute.default, (tensor, list(order)), {})
        copied = self.record(aten.clone.default, (moved,), {"memory_format": torch.contiguous_format})
        back = [order.index(d) for d in range(len(order))]
        return self.one(aten.permute.default, copied, back)

    def with_gaps(self, tensor: TraceTensor) -> TraceTensor:
        """What a tensor of a layout with gaps holds, laid out so."""
        spec, held = tensor.value.spec, tensor.value.held
        dense = self.with_strides(tensor, held.stride)
        reach = elements_spanned(spec.size, spec.stride)
        memory = self.one(aten.empty.memory_format, [reach], dtype=spec.dtype, device=spec.device)
        layout = (list(spec.size), list(spec.stride), 0)
        filled = self.one(aten.as_strided_scatter.default, memory, dense, *layout)
        return self.one(aten.as_strided.default, filled, *layout)

    def commit(self, value: Value, new: TraceTensor) -> None:
        """Store a conformed value and carry it up to the root of its storage."""
        group = value.group
        if group is None:
            group = value.group = AliasGroup(value)
        exact = new.value.spec.stride == value.spec.stride
        first = new
        at = value
        while at.parent is not None and at.view is not None:
            parent = make_tensor(Value(at.parent.spec, self.read(at.parent), at.parent.held))
            new = self.inverse(at.view, parent, new)
            at = at.parent
        if at is not value:
            new = self.conform(new, at.spec)
        if overlaps(at.spec.size, at.spec.stride):
            raise AutogradError("an in-place operator writes to a tensor whose elements share memory")
        node = self.read(new.value)
        group.version += 1
        at.node, at.pick, at.seen = node, None, group.version
        at.held = self._held_as(new.value.held, at.spec)
        if exact and at is not value:
            value.node, value.pick, value.seen = self.read(first.value), None, group.version
            value.held = self._held_as(first.value.held, value.spec)
        if at.input >= 0:
            self.mutated[at.input] = at
            self.bases.note_write(at)

    def _held_as(self, held: Spec, spec: Spec) -> Spec:
        """`held`, or `spec` itself where they differ in nothing that an op can see."""
        even = all(n == 1 or a == b for n, a, b in zip(spec.size, held.stride, spec.stride)) or 0 in spec.size
        return spec if even else held

    def copied(self, source: TraceTensor, spec: Spec) -> TraceTensor:
        """What a tensor of a layout holds after `source` was copied to it."""
        return self.conform(self.snapshot(source), spec)

    def snapshot(self, tensor: TraceTensor) -> TraceTensor:
        """What a tensor holds now, as a value that later writes do not change."""
        node = self.read(tensor.value)
        return make_tensor(Value(tensor.value.spec, node, tensor.value.held))


def _as_eager(args: Any) -> tuple[Any, ...]:
    """Arguments whose tensors claim to hold what eager's would."""
    as_eager: list[Any] = []
    for arg in args:
        if arg.__class__ is TraceTensor:
            arg = make_tensor(Value(arg.value.spec, arg.value.node))
        elif isinstance(arg, (list, tuple)):
            arg = list(_as_eager(arg))
        as_eager.append(arg)
    return tuple(as_eager)
