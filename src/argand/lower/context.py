"""`Context`: what a lowering rule works with: the program being built, and the ATen node being lowered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.errors import InternalError, LoweringError
from argand.graph.sizes.expr import ZERO, Const, Expr, Sym, Var, sum_of
from argand.graph.sizes.symbolic import MetaTensor, is_tensor
from argand.ir.loops import Buffer, ExternNode, LoopBody, LoopNode, Node, Origin, TensorRef, Value, with_nested
from argand.ir.target import Targets
from argand.lower.layout import dense_like, hint, is_dense, stride_order
from argand.lower.recorder import Recorder, without_dead
from argand.lower.registry import NoLowering
from argand.lower.tensor import Index, Loader, Tensor

# dtypes that loop bodies compute with; values of others live in ATen kernels only, but for parts of complex numbers and
# conversions of float8 (`float8.py`)
LOOP_DTYPES = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
))  # fmt: skip
REDUCED_FLOATS = (torch.bfloat16, torch.float16)

# when an unrealised value becomes a buffer of its own
MAX_READS = 16  # buffers read by one inlined expression
MAX_COUNT = 64  # statements of one inlined expression
SHARED_COST = 8  # cost from which a value with several users is stored rather than computed again
SHARED_TRAFFIC = 1.5  # the same, in tensors of its own size read
BROADCAST_COST = 4  # cost from which a value is stored rather than computed again for each element it is broadcast to
BROADCAST_FACTOR = 4

ReduceBody = Callable[[Recorder, Callable[[str, Value], Value], Index], Value]
ScanBody = Callable[[Recorder, Value, Expr], Sequence[Value]]


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of `dtype` are computed."""
    return torch.float32 if dtype in REDUCED_FLOATS else dtype


class Context:
    """The program being built and the node being lowered.

    Attributes:
        buffers, nodes, constants: of the program.
        targets: what kernels may be like on each device.
        node, val, device, origin: the ATen node being lowered, its meta value, its logical device, its origin.
        stored: its result becomes a buffer, whatever reads it.
        symbols: how a `torch.SymInt` is written as an expression, by its text.
        hints: likely values of size symbols.
        floats: symbols that are doubles; as an index expression, such a symbol is the double's bits.
        inline: what can be computed where it is read is, whatever that costs.
    """

    def __init__(self, inline: bool = False) -> None:
        self.inline = inline
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.symbols: dict[str, Expr] = {}
        self.hints: dict[str, int] = {}
        self.floats: frozenset[Sym] = frozenset()
        self.node: fx.Node | None = None
        self.stored = False
        self.val: Any = None
        self.device = torch.device("cpu")
        self.targets: Targets = lambda device: None
        self.origin: Origin | None = None
        self._buffer_count = 0
        self._node_count = 0
        self._sizes: dict[tuple[Any, ...], tuple[Expr, ...]] = {}
        self._vars: dict[tuple[str, int], Var] = {}

    # --- sizes

    def expr(self, value: Any) -> Expr:
        """An integer of the ATen graph (int, SymInt or expression) as an expression."""
        if isinstance(value, int):
            return Const(value)
        if isinstance(value, Expr):
            return value
        if isinstance(value, torch.SymInt):
            text = str(value)
            if text not in self.symbols:
                self.symbols[text] = Sym(text)
            return self.symbols[text]
        raise LoweringError(f"a size of type {type(value).__name__} ({value!r}) reached lowering")

    def sizes(self, values: Sequence[Any]) -> tuple[Expr, ...]:
        """A shape or strides as expressions."""
        key = tuple(values)
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = tuple([Const(value) if type(value) is int else self.expr(value) for value in key])
            if all(type(value) is int for value in key):
                self._sizes[key] = sizes
        return sizes

    def hint(self, expr: Expr) -> int:
        """A likely value of a size."""
        return hint(expr, self.hints)

    # --- lazy tensors

    def lazy(
        self,
        loader: Loader,
        inputs: Sequence[Tensor],
        *,
        cost: int = 1,
        count: int = 1,
        val: MetaTensor | None = None,
        keeps_splits: bool = False,
    ) -> Tensor:
        """A lazy tensor with the metadata of the node being lowered (or of `val`).

        Arguments:
            loader: records the element at an index.
            inputs: the tensors that it reads.
            cost, count: of the loader's own statements, without those of the inputs.
            keeps_splits: whether the caller takes care of inputs that are stored in parts; else they are stored now.
        """
        meta = self.val if val is None else val
        if meta.dtype not in LOOP_DTYPES:
            raise NoLowering(f"loops do not compute with {meta.dtype}")
        reads: frozenset[str] = frozenset()
        for tensor in inputs:
            if tensor.ref is None:
                if (
                    tensor.count > MAX_COUNT
                    or len(tensor.reads) > MAX_READS
                    or (tensor.split is not None and not keeps_splits)
                ):
                    self.realise(tensor)
            if tensor.dtype not in LOOP_DTYPES:
                raise NoLowering(f"loops do not compute with {tensor.dtype}")
            if tensor.device != self.device and not is_number(tensor):
                raise NoLowering(f"operands on {tensor.device} and {self.device}")
            cost += tensor.cost
            count += tensor.count + 1
            reads = reads | tensor.reads if reads else tensor.reads
        size = self.sizes(meta.shape)
        return Tensor(
            size,
            self.sizes(meta.stride()),
            meta.dtype,
            self.device,
            loader=loader,
            origin=self.origin,
            cost=cost,
            count=count,
            reads=reads,
        )

    def view(
        self,
        x: Tensor,
        size: tuple[Expr, ...],
        index: Callable[[Recorder, Index], Index],
        to_ref: Callable[[TensorRef], TensorRef | None],
        *,
        stride: tuple[Expr, ...] | None = None,
        places: Sequence[int] | None = None,
        takes_turns: bool = False,
    ) -> Tensor:
        """A view of `x`: `index` maps its index to one of `x`, `to_ref` maps a buffer view of `x` to one of it.

        Arguments:
            places: where each dimension of `x` is in the view, when all are there.
            takes_turns: whether the elements of `x` at even places of its last dimension are those of the view's.
        """
        in_turns = takes_turns and x.split == (x.ndim - 1, None)
        if x.split is not None and places is None and not in_turns:
            self.realise(x)
        if x.ref is not None:
            ref = to_ref(x.ref)
            if ref is not None:
                return self.from_ref(ref, x.dtype, x.device)
        if x.dtype not in LOOP_DTYPES:
            raise NoLowering(f"a view of {x.dtype} that strides cannot express")
        if stride is None:
            stride = self.sizes(self.val.stride())
        viewed = Tensor(
            size,
            stride,
            x.dtype,
            x.device,
            loader=lambda ops, position: x.load(ops, index(ops, position)),
            origin=x.origin or self.origin,
            cost=x.cost,
            count=x.count + 1,
            reads=x.reads,
            base=x,
            to_ref=to_ref,
        )
        if x.split is not None and places is not None:
            viewed.split = (places[x.split[0]], x.split[1])
        elif in_turns:
            viewed.split = (len(size) - 1, None)
        return viewed

    def from_ref(self, ref: TensorRef, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A realised tensor."""
        return Tensor(ref.size, ref.stride, dtype, device, ref=ref, reads=frozenset((ref.buffer,)))

    def before_broadcast(self, x: Tensor, factor: int) -> None:
        """Store `x` before each of its elements is used `factor` times, when computing it costs more than a load."""
        if x.ref is None and not self.inline and factor >= BROADCAST_FACTOR and x.cost >= BROADCAST_COST:
            self.realise(x)

    # --- buffers and nodes

    def new_buffer(
        self, size: tuple[Expr, ...], stride: tuple[Expr, ...], dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """A fresh temporary; a layout with gaps is given without them."""
        if not is_dense(size, stride, self.hints):
            stride = dense_like(size, stride, self.hints)
        name = f"buf{self._buffer_count}"
        self._buffer_count += 1
        buffer = self.buffers[name] = Buffer(name, dtype, device, size, stride)
        return buffer

    def ref_of(self, buffer: Buffer) -> TensorRef:
        """The whole of a buffer."""
        return TensorRef(buffer.name, buffer.size, buffer.stride, ZERO)

    def realise(self, x: Tensor) -> TensorRef:
        """The buffer view that holds `x`; computes it into a buffer with eager's strides if it is still lazy."""
        if x.ref is not None:
            return x.ref
        if x.base is not None and x.to_ref is not None:
            # a view of a lazy tensor: store what it views, as eager does, and take the view of that
            ref = x.to_ref(self.realise(x.base))
            if ref is not None:
                x.hold(ref)
                return ref
        if x.realiser is not None:
            ref = x.realiser(self, x)
        else:
            buffer = self.new_buffer(x.size, x.stride, x.dtype, x.device)
            ref = self.ref_of(buffer)
            self.store(x, ref, creates=True)
        x.hold(ref)
        return ref

    def realise_together(self, tensors: Sequence[Tensor]) -> None:
        """Store lazy tensors of one size, dense in the same order, by one loop nest."""
        lazy = [x for x in tensors if x.ref is None and x.base is None and x.realiser is None and x.split is None]
        alike = {(x.size, x.stride, x.device) for x in lazy}
        if len(lazy) < 2 or len(alike) > 1:
            for x in tensors:
                self.realise(x)
            return
        ranges, dims, index = self.loop(lazy[0].size, stride_order(lazy[0].size, lazy[0].stride, self.hints))
        ops = Recorder(ranges)
        refs = []
        for x in lazy:
            buffer = self.new_buffer(x.size, x.stride, x.dtype, x.device)
            value = x.load(ops, index)
            ops.origin = x.origin or value.origin
            ops.store(buffer.name, sum_of([position * stride for position, stride in zip(index, buffer.stride)]), value)
            refs.append(self.ref_of(buffer))
        self.add_loop(ops, dims, lazy[0].size, (), (), [ref.buffer for ref in refs], [])
        for x, ref in zip(lazy, refs):
            x.hold(ref)

    def store(self, x: Tensor, ref: TensorRef, *, creates: bool, origin: Origin | None = None) -> None:
        """Append the loop nest that writes `x` to `ref`.

        Arguments:
            creates: whether this is the first write to the buffer (else it counts as updating it).
            origin: of the store, and of a plain copy; by default that of `x`.
        """
        origin = origin or x.origin or self.origin
        if x.split is None:
            self._store_part(x, ref, x.size, -1, ZERO, creates, origin)
            return
        dim, cuts = x.split
        if cuts is None:
            self._store_in_turns(x, ref, dim, creates, origin)
            return
        for number, (start, end) in enumerate(zip((ZERO, *cuts), (*cuts, x.size[dim]))):
            size = (*x.size[:dim], end - start, *x.size[dim + 1 :])
            self._store_part(x, ref, size, dim, start, creates and number == 0, origin)

    def _store_part(
        self,
        x: Tensor,
        ref: TensorRef,
        size: tuple[Expr, ...],
        dim: int,
        start: Expr,
        creates: bool,
        origin: Origin | None,
    ) -> None:
        """Store the part of `x` that begins at `start` along `dim`."""
        ranges, variables, index = self.loop(size, stride_order(size, ref.stride, self.hints))
        if dim >= 0:
            index = (*index[:dim], index[dim] + start, *index[dim + 1 :])
        ops = Recorder(ranges)
        ops.origin = origin
        value = x.load(ops, index)
        if value.dtype is not x.dtype:
            raise InternalError(f"{x.origin}: the lowered value is {value.dtype}, not {x.dtype}")
        terms = [position * stride for position, stride in zip(index, ref.stride)]
        ops.store(ref.buffer, sum_of([*terms, ref.offset]), value)
        self.add_loop(ops, variables, size, (), (), [ref.buffer] if creates else [], [] if creates else [ref.buffer])

    def _store_in_turns(self, x: Tensor, ref: TensorRef, dim: int, creates: bool, origin: Origin | None) -> None:
        """Store the elements at even and at odd places of a dimension by two stores of one loop nest."""
        size = (*x.size[:dim], x.size[dim] // 2, *x.size[dim + 1 :])
        ranges, variables, index = self.loop(size, stride_order(size, ref.stride, self.hints))
        ops = Recorder(ranges)
        for turn in range(2):
            place = (*index[:dim], index[dim] * 2 + turn, *index[dim + 1 :])
            ops.origin = origin
            terms = [position * stride for position, stride in zip(place, ref.stride)]
            ops.store(ref.buffer, ops.simplifier.simplify(sum_of([*terms, ref.offset])), x.load(ops, place))
        self.add_loop(ops, variables, size, (), (), [ref.buffer] if creates else [], [] if creates else [ref.buffer])

    def loop(self, size: tuple[Expr, ...], order: Sequence[int]) -> tuple[dict[Var, Expr], list[int], Index]:
        """Variables for the dimensions of `size`, in `order` (outermost first); those of size one have none.

        Returns:
            ranges of the variables, the dimensions that have one in loop order, and the logical index.
        """
        index: list[Expr] = [ZERO] * len(size)
        ranges: dict[Var, Expr] = {}
        dims = [dim for dim in order if size[dim] != 1]
        for number, dim in enumerate(dims):
            index[dim] = var = self.var("z", number)
            ranges[var] = size[dim]
        return ranges, dims, tuple(index)

    def var(self, prefix: str, number: int) -> Var:
        """The loop variable of that name."""
        var = self._vars.get((prefix, number))
        if var is None:
            var = self._vars[prefix, number] = Var(f"{prefix}{number}")
        return var

    def add_loop(
        self,
        ops: Recorder,
        dims: Sequence[int],
        size: tuple[Expr, ...],
        reduction_dims: Sequence[int],
        reduction_size: tuple[Expr, ...],
        creates: Sequence[str],
        mutates: Sequence[str],
    ) -> LoopNode:
        """Append a recorded loop nest over `size[d] for d in dims`, reducing over `reduction_size[d]`.

        Raises:
            NoLowering: its buffers are on several devices.
        """
        statements = without_dead(ops.statements) if ops.folded else ops.statements
        touched = [statement.args[0] for statement in with_nested(statements) if statement.op in ("load", "store")]
        devices = {self.buffers[name].device for name in touched}
        if len(devices) > 1:
            raise NoLowering(f"a loop over memory on {' and '.join(sorted(map(str, devices)))}")
        body = LoopBody(
            tuple([self.var("z", number) for number in range(len(dims))]),
            tuple([size[dim] for dim in dims]),
            tuple([self.var("r", number) for number in range(len(reduction_dims))]),
            tuple([reduction_size[dim] for dim in reduction_dims]),
            statements,
        )
        origins: dict[Origin, None] = {}
        for statement in statements:
            if statement.origin is not None:
                origins[statement.origin] = None
        node = LoopNode(f"op{self._node_count}", body, tuple(creates), tuple(origins), tuple(mutates))
        self._node_count += 1
        self.nodes.append(node)
        return node

    # --- reductions

    def reduce(
        self,
        size: tuple[Expr, ...],
        dims: Sequence[int],
        body: ReduceBody,
        *,
        val: MetaTensor | None = None,
        inputs: Sequence[Tensor] = (),
    ) -> Tensor:
        """A reduction over the dimensions `dims` of the iteration space `size`.

        Arguments:
            body: called as `body(ops, reduce, index)` with `reduce(kind, value)`; returns the element to store.
            val: metadata of the result (default: of the node), with or without the reduced dimensions.
            inputs: what the body reads.
        """
        meta = self.val if val is None else val
        if meta.dtype not in LOOP_DTYPES:
            raise NoLowering(f"loops do not compute with {meta.dtype}")
        for tensor in inputs:
            if tensor.device != self.device or tensor.dtype not in LOOP_DTYPES:
                raise NoLowering(f"a reduction of {tensor.dtype} on {tensor.device}")
            if tensor.split is not None:
                self.realise(tensor)
        out_size = self.sizes(meta.shape)
        out_stride = self.sizes(meta.stride())
        kept = [dim for dim in range(len(size)) if dim not in dims]
        places = kept if len(out_size) == len(kept) else list(range(len(size)))  # dimension of `size` for each of out
        if all(size[dim] == 1 for dim in dims):
            return self._trivial_reduction(size, dims, places, body, meta, inputs)
        buffer = self.new_buffer(out_size, out_stride, meta.dtype, self.device)
        order = [place for place in stride_order(out_size, buffer.stride, self.hints) if places[place] not in dims]
        ranges, loops, out_index = self.loop(out_size, order)
        index: list[Expr] = [ZERO] * len(size)
        for place, dim in enumerate(places):
            index[dim] = out_index[place]
        reduced = [dim for dim in dims if size[dim] != 1]
        for number, dim in enumerate(reduced):
            index[dim] = var = self.var("r", number)
            ranges[var] = size[dim]
        ops = Recorder(ranges)
        ops.origin = self.origin
        value = body(ops, ops.reduction, tuple(index))
        if value.dtype is not meta.dtype:
            raise InternalError(f"{self.origin}: the lowered value is {value.dtype}, not {meta.dtype}")
        terms = [position * stride for position, stride in zip(out_index, buffer.stride)]
        ops.store(buffer.name, sum_of(terms), value)
        self.add_loop(ops, loops, out_size, reduced, size, [buffer.name], [])
        return self.from_ref(self.ref_of(buffer), meta.dtype, self.device)

    def scan(self, x: Tensor, dim: int, kind: str, dtype: torch.dtype) -> Tensor:
        """`kind` over each element of `x` and those before it along `dim`, computed in `dtype`."""
        return self.scans(x, dim, lambda ops, value, place: [ops.scan(kind, ops.to_dtype(value, dtype))], [self.val])[0]

    def scans(self, x: Tensor, dim: int, body: ScanBody, vals: Sequence[MetaTensor]) -> list[Tensor]:
        """What `body` makes of each element of `x` and its place in `dim`, in their order along that: one loop."""
        if x.device != self.device or x.dtype not in LOOP_DTYPES:
            raise NoLowering(f"a scan of {x.dtype} on {x.device}")
        if x.split is not None:
            self.realise(x)
        size = self.sizes(vals[0].shape)
        buffers = [self.new_buffer(size, self.sizes(val.stride()), val.dtype, self.device) for val in vals]
        order = [place for place in stride_order(size, buffers[0].stride, self.hints) if place != dim]
        ranges, loops, index = self.loop(size, order)
        var = self.var("r", 0)
        ranges[var] = size[dim]
        index = (*index[:dim], var, *index[dim + 1 :])
        ops = Recorder(ranges)
        ops.origin = self.origin
        for value, buffer in zip(body(ops, x.load(ops, index), var), buffers):
            terms = [position * step for position, step in zip(index, buffer.stride)]
            ops.store(buffer.name, sum_of(terms), ops.to_dtype(value, buffer.dtype))
        self.add_loop(ops, loops, size, [dim], size, [buffer.name for buffer in buffers], [])
        return [self.from_ref(self.ref_of(buffer), buffer.dtype, self.device) for buffer in buffers]

    def _trivial_reduction(
        self,
        size: tuple[Expr, ...],
        dims: Sequence[int],
        places: list[int],
        body: ReduceBody,
        meta: MetaTensor,
        inputs: Sequence[Tensor],
    ) -> Tensor:
        """A reduction over dimensions of size one is pointwise."""

        def load(ops: Recorder, index: Index) -> Value:
            full: list[Expr] = [ZERO] * len(size)
            for place, dim in enumerate(places):
                if dim not in dims:
                    full[dim] = index[place]

            def reduce(kind: str, value: Value) -> Value:
                return ops.constant(0, torch.int64) if kind in ("argmax", "argmin") else value

            return body(ops, reduce, tuple(full))

        return self.lazy(load, inputs, cost=2, count=4, val=meta)

    # --- ATen kernels

    def extern(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        reason: str = "",
        out_variant: str | None = None,
    ) -> Any:
        """Append a call of an ATen kernel on realised tensors; returns what it returns, as Tensors."""
        plain_args = tuple([self.extern_arg(arg) for arg in args])
        plain_kwargs = {name: self.extern_arg(arg) for name, arg in kwargs.items()}
        results, outputs = self._extern_results(self.val)
        if isinstance(self.val, (tuple, list)):
            self._forget_unused(outputs)
        node = ExternNode(
            f"op{self._node_count}",
            target,
            plain_args,
            plain_kwargs,
            tuple(outputs),
            out_variant,
            reason=reason,
            origins=() if self.origin is None else (self.origin,),
        )
        self._node_count += 1
        self.nodes.append(node)
        return results

    def extern_arg(self, arg: Any) -> Any:
        """An argument of an ATen kernel: tensors realised, sizes as expressions, the rest as it is."""
        if isinstance(arg, Tensor):
            return self.realise(arg)
        if isinstance(arg, (list, tuple)):
            return [self.extern_arg(item) for item in arg]
        if isinstance(arg, torch.SymInt):
            return self.expr(arg)
        return arg

    def _forget_unused(self, outputs: list[str | None]) -> None:
        """Drop the buffers of results that nothing reads (eager leaves some of them empty)."""
        node = self.node
        if node is None or any(user.target is not operator.getitem for user in node.users):
            return
        if len(outputs) != len(self.val):
            return
        used = {user.args[1] for user in node.users}
        for position, name in enumerate(outputs):
            if name is not None and position not in used:
                del self.buffers[name]
                outputs[position] = None

    def _extern_results(self, val: Any) -> tuple[Any, list[str | None]]:
        if is_tensor(val):
            size, stride = self.sizes(val.shape), self.sizes(val.stride())
            name = f"buf{self._buffer_count}"
            self._buffer_count += 1
            buffer = self.buffers[name] = Buffer(name, val.dtype, self.device, size, stride)
            return self.from_ref(self.ref_of(buffer), val.dtype, self.device), [name]
        if isinstance(val, (tuple, list)):
            results, outputs = [], []
            for item in val:
                result, names = self._extern_results(item)
                results.append(result)
                outputs += names
            return tuple(results), outputs
        return None, [None]


def is_number(x: Tensor) -> bool:
    """Whether a value is a scalar that is computed from nothing: it may be so on any device."""
    return x.ref is None and not x.size and not x.reads and x.realiser is None
