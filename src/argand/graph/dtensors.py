"""DTensors at the edges of graphs: outside they are DTensors, inside they begin and end as the tensors of this process.

A compiled graph takes and gives local tensors. Its first operations make DTensors of them (`entered`), its last take
what is local of its results (`left`); what lies between dispatches by DTensor's own rules, forward and backward. Around
the graph, `local_of` and `made_of` do the opposite, with gradients: what the graph finds out about how a gradient is
laid out is in the `Edge` that the two sides of an input share.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from argand.graph.metadata.strides import is_dense, strides_in
from argand.graph.shared_gradients import own
from argand.graph.version_counters import counted_as, share_counters
from argand.quick_dataclasses import dataclass

DTensor: TypeAlias = Any
Spec: TypeAlias = Any
MaskBuffer: TypeAlias = Any
"""torch.distributed.tensor is imported by programs that use it, not here: its classes, by their names."""


def sharded_class() -> type | None:
    """DTensor, where it is imported; only that class itself is known here."""
    module = sys.modules.get("torch.distributed.tensor")
    return None if module is None else vars(module).get("DTensor")


def is_sharded(cls: type) -> bool:
    """Whether tensors of a class are DTensors."""
    return cls.__name__ == "DTensor" and cls is sharded_class()


def mesh_class() -> type | None:
    """DeviceMesh, where it is imported."""
    module = sys.modules.get("torch.distributed.device_mesh")
    return None if module is None else vars(module).get("DeviceMesh")


def same_mesh(mesh: Any, other: Any) -> bool:
    """Whether two meshes are of the same devices, in the same order and of the same names, and their process groups
    are the same ones."""
    return mesh is other or bool(mesh == other and mesh._dim_group_names == other._dim_group_names)


def dispatches_itself(cls: type) -> bool:
    """Whether what operations on tensors of a class do is for the class to say: DTensors, and what awaits data."""
    return cls.__name__ in ("DTensor", "AsyncCollectiveTensor") and cls.__module__.startswith("torch.distributed.")


def fakes() -> bool:
    """Whether torch's fake tensors are on, by which DTensor asks how large results are: none of the program's."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def own_rules_of_dtensor() -> frozenset[Any]:
    """Operators that DTensor's dispatcher does not run by its tables of placements."""
    cls: Any = sharded_class()
    return frozenset(cls._op_dispatcher._custom_op_handlers) - {
        torch.ops.aten.is_same_size.default,
        torch.ops.aten.as_strided.default,
    }


def is_rule_of_losses(func: Any) -> bool:
    """Whether `loss_parallel()` has put up the rule that DTensor's dispatcher has for an operator."""
    cls: Any = sharded_class()
    return bool(cls._op_dispatcher._custom_op_handlers[func].__module__ == "torch.distributed.tensor.parallel.loss")


def _tracker() -> Any:
    """What makes the processes of a mesh draw random numbers together; None where each draws its own."""
    return sys.modules["torch.distributed.tensor._random"]._rng_tracker


def draws_alone(tensor: DTensor) -> bool:
    """Whether an operation on a DTensor draws random numbers as one on its local part would."""
    return tensor.device_mesh.device_type == "cpu" and _tracker() is None


def draws_together(func: Any, tensor: DTensor) -> bool:
    """Whether an operation on a DTensor draws this process's part of what its mesh draws, by torch's own tracker."""
    random: Any = sys.modules["torch.distributed.tensor._random"]
    cls: Any = sharded_class()
    ours = (
        type(_tracker()) in (random.OffsetBasedRNGTracker, _traced_tracker())
        and tensor.device_mesh.device_type == "cuda"
    )
    return ours and _tracker().distribute_region_enabled and func in cls._op_dispatcher._random_ops


@functools.cache
def _traced_tracker() -> Any:
    """The class of what stands for the tracker while one thread traces an operation."""
    tracker: Any = sys.modules["torch.distributed.tensor._random"].OffsetBasedRNGTracker

    class Traced(tracker):
        def _distribute_region(self, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return super()._distribute_region(*args, **kwargs)
            return contextlib.nullcontext()

    return Traced


@contextlib.contextmanager
def tracing_draws() -> Iterator[None]:
    """Inside, what this thread does with DTensors draws nothing: generators stay where they are."""
    random: Any = sys.modules["torch.distributed.tensor._random"]
    before = random._rng_tracker
    if before is None:
        yield
        return
    cls = _traced_tracker()
    traced = cls.__new__(cls)
    vars(traced).update(vars(before), thread=threading.get_ident())
    random._rng_tracker = traced
    try:
        yield
    finally:
        random._rng_tracker = before


def part_of_draw(spec: Spec) -> tuple[int, int]:
    """Where this process's part of what a mesh draws begins, and the next draw, from where generators are."""
    random: Any = sys.modules["torch.distributed.tensor._random"]
    state, tracker = random._PhiloxState(torch.zeros(16, dtype=torch.uint8)), random._rng_tracker
    begin = state.offset.clone()
    tracker._set_pre_op_offset(state, spec)
    start = int(state.offset)
    tracker._set_post_op_offset(state, spec, begin)
    return start, int(state.offset)


def dispatching() -> tuple[object, ...]:
    """What decides, besides its arguments, what an operation on DTensors does: contexts of DTensor's put this up."""
    cls: Any = sharded_class()
    dispatcher, tracker = cls._op_dispatcher, _tracker()
    draws = None if tracker is None else (type(tracker).__name__, tracker.distribute_region_enabled)
    return len(dispatcher._custom_op_handlers), dispatcher._allow_implicit_replication, draws


def forget_masks(of: Callable[[torch.Tensor], bool]) -> None:
    """Empty the buffers in which placements of DTensors keep masks of rows, where a mask is one of tracing.

    DTensor keeps one object for all calls that look alike: what tracing leaves there, eager would find.
    """
    kind = getattr(sys.modules.get("torch.distributed.tensor._ops._mask_buffer"), "MaskBuffer", None)
    for each in [] if kind is None else gc.get_objects():
        if type(each) is kind and each.data is not None and of(each.data):
            each.data, each.refcount = None, 0


def arrived(local: torch.Tensor) -> torch.Tensor:
    """What is local, once it is there."""
    known: Any = local
    wait = getattr(known, "trigger_wait", None)
    if wait is None:
        return local
    try:
        part: torch.Tensor = wait()
    except RuntimeError as error:  # torch tells of it once; who reads the tensor afterwards is told again
        known.trigger_wait = known.wait = functools.partial(_failed, error)
        raise
    return part


def _failed(error: RuntimeError) -> None:
    raise error


def _waiting(tensor: torch.Tensor) -> Any:
    """Of one counter with the result, which the graph may have saved, and with its own element."""
    cls = sys.modules["torch.distributed._functional_collectives"].AsyncCollectiveTensor
    return counted_as(tensor, cls(tensor.detach()))


class _Awaiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return _waiting(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def awaited(tensor: torch.Tensor) -> Any:
    """A result of a graph as an AsyncCollectiveTensor."""
    return _Awaiting.apply(tensor) if tensor.requires_grad else _waiting(tensor)


def with_spec(local: torch.Tensor, spec: Spec, requires_grad: bool) -> torch.Tensor:
    """The DTensor of which `local` is this process's part; the memory is the same."""
    cls: Any = sharded_class()
    sharded: torch.Tensor = cls.__new__(cls, local, spec, requires_grad=requires_grad)  # its __init__ does nothing
    return sharded


def _for_gradients(placements: Any) -> tuple[Any, ...]:
    """How a gradient is laid out of what is laid out so: nowhere as parts of a sum."""
    from torch.distributed.tensor import Replicate

    return tuple(Replicate() if placement.is_partial() else placement for placement in placements)


def _replicated(spec: Spec) -> tuple[Any, ...]:
    from torch.distributed.tensor import Replicate

    return (Replicate(),) * spec.mesh.ndim


def for_gradients(spec: Spec) -> Spec:
    """How a gradient may be laid out of what is laid out so."""
    placements = _for_gradients(spec.placements)
    return spec if placements == spec.placements else type(spec)(spec.mesh, placements, tensor_meta=spec.tensor_meta)


def _redistributed(grad: DTensor, placements: Any) -> DTensor:
    return grad if grad.placements == placements else grad.redistribute(placements=placements)


def _part(grad: DTensor) -> torch.Tensor:
    """What is local of a gradient: the tensor itself, which shows who holds it (`shared_gradients`); where it can be
    differentiated again, a view."""
    return grad.to_local() if torch.is_grad_enabled() else arrived(grad._local_tensor)


def _is_plain(local: torch.Tensor) -> bool:
    return type(local) is torch.Tensor and not (local.requires_grad and torch.is_grad_enabled())


def _gradient(local: torch.Tensor, spec: Spec, placements: Any) -> torch.Tensor:
    """The gradient, laid out as `placements` say, of what has `spec`."""
    cls: Any = sharded_class()
    shape = spec.tensor_meta.shape
    if not is_dense(local.shape, local.stride()):
        local = local.contiguous()
    stride = spec.tensor_meta.stride
    if not local.is_contiguous() or stride != torch.empty(shape, device="meta").stride():
        stride = strides_in(sorted(range(local.dim()), key=lambda dim: (local.stride(dim), -dim)), shape)
    if _is_plain(local):
        meta = type(spec.tensor_meta)(shape, stride, local.dtype)
        return with_spec(local, type(spec)(spec.mesh, placements, tensor_meta=meta), False)  # takes a third of the time
    gradient: torch.Tensor = cls.from_local(local, spec.mesh, placements, run_check=False, shape=shape, stride=stride)
    return gradient


@dataclass(slots=True, eq=False)
class Edge:
    """An input of a graph.

    Arguments:
        spec: how the DTensor is laid out, which is guarded.
        placements: how its gradient is, once the graph's backward was traced.
        several: results of the graph lay its gradient out in several ways: it is laid out as the DTensor is.
        records: the graph may turn gradients on where it is called without.
        packed: the size of a part of its gradient, where it is not its own: `carried` hands it over.
        last: how a part of the last gradient lay in memory, and the gradient's spec.
    """

    spec: Spec
    placements: tuple[Any, ...] | None = None
    several: bool = False
    records: bool = False
    packed: torch.Size | None = None
    last: tuple[Any, Spec] | None = None

    def gradient(self, local: torch.Tensor) -> torch.Tensor:
        """Its gradient, of which `local` is this process's part."""
        placements = _for_gradients(self.spec.placements) if self.several else self.placements
        if placements is None:
            raise RuntimeError("argand: it is not known how the gradient of a DTensor is laid out")
        if self.packed is not None and not self.several:
            local = local.reshape(-1)[: self.packed.numel()].view(self.packed)
        layout = (placements, local.shape, local.stride(), local.dtype)
        if self.last is not None and self.last[0] == layout and _is_plain(local):
            return with_spec(local, self.last[1], False)
        gradient: DTensor = _gradient(local, self.spec, placements)
        self.last = (layout, gradient._spec) if gradient._local_tensor is local else None
        return gradient


class Layout:
    """How a DTensor and its local part are laid out."""

    __slots__ = ("part", "spec")

    def __init__(self, spec: Spec, local: torch.Tensor) -> None:
        self.spec = spec
        self.part = _layout(local)


def laid_out(layouts: tuple[Layout, ...], *tensors: DTensor) -> bool:
    """Whether DTensors of the same classes, dtypes and global sizes are laid out so."""
    with torch._C.DisableTorchFunction():
        for layout, tensor in zip(layouts, tensors):
            spec, known = tensor._spec, layout.spec
            if spec is not known and not (spec == known and same_mesh(known.mesh, spec.mesh)):
                return False
            if _layout(tensor._local_tensor) != layout.part:
                return False
    return True


def _layout(local: torch.Tensor) -> tuple[object, ...]:
    known = type(local) is torch.Tensor or dispatches_itself(type(local))
    return known, local.shape, local.stride(), local.dtype, local.device


class _Sum(torch.Tensor):
    """Gradients that autograd takes for one of a plain tensor, of whatever size, and adds up.

    Arguments:
        of: DTensors, and parts as the graph's backward was traced to give them.
    """

    of: list[Any]

    @staticmethod
    def __new__(cls, of: list[Any], size: torch.Size) -> _Sum:
        make: Any = torch.Tensor._make_wrapper_subclass
        total: _Sum = make(cls, size, dtype=of[0].dtype, device=of[0].device)
        total.of = of
        return total

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        added = args if func.overloadpacket in (torch.ops.aten.add, torch.ops.aten.add_) else args[:1]
        size = next(one.shape for one in added if type(one) is cls)
        return cls([part for one in added for part in (one.of if type(one) is cls else [one])], size)


class _Summand(torch.autograd.Function):
    """A gradient -> itself as one of a tensor of another size."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, size: torch.Size) -> torch.Tensor:
        return _Sum([gradient.detach()], size)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _Total.apply(grad, None), None


class _Total(torch.autograd.Function):
    """What was added up -> the gradient of a DTensor."""

    @staticmethod
    def forward(ctx: Any, added: Any, edge: Any) -> torch.Tensor:
        ctx.size = added.shape
        gradients = [one if is_sharded(type(one)) else edge.gradient(one) for one in added.of]
        first = with_spec(gradients[0]._local_tensor.clone(), gradients[0]._spec, False)  # the given may be anybody's
        return sum(gradients[1:], first)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _Summand.apply(grad, ctx.size), None


def carried(gradient: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """A gradient as autograd takes it for a plain tensor of another size: a smaller one with zeros behind it."""
    rest = size.numel() - gradient.numel()
    if rest < 0:
        return _Sum([gradient], size)
    return torch.cat((gradient.reshape(-1), gradient.new_zeros(rest))).view(size)


def whole(gradient: Any) -> Any:
    """What `carried` was given, where that was larger."""
    return gradient.of[0] if type(gradient) is _Sum else gradient


class _Entered(torch.autograd.Function):
    """local tensor -> DTensor, inside the graph."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, edge: Edge) -> torch.Tensor:
        ctx.edge, ctx.shape = edge, local.shape
        ctx.set_materialize_grads(False)
        return counted_as(local, with_spec(local.view_as(local), edge.spec, local.requires_grad))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None, None
        edge, usual = ctx.edge, _for_gradients(ctx.edge.spec.placements)
        if not is_sharded(type(grad)):  # zeros, as some of torch's formulas make them
            grad = _gradient(grad, edge.spec, _replicated(edge.spec))
        if edge.several:
            grad = _redistributed(grad, usual)
        runs = type(arrived(grad._local_tensor)) is torch.Tensor  # else it is traced
        if runs and not (grad.placements == usual and edge.placements in (None, usual)):
            return _Summand.apply(grad, ctx.shape), None  # laid out as in one run, others need not be
        part = _part(grad)
        edge.placements, edge.packed = grad.placements, None if part.shape == ctx.shape else part.shape
        return part if edge.packed is None else carried(part, ctx.shape), None


class _Local(torch.autograd.Function):
    """DTensors -> local tensors, around the graph: one node, since each costs the host as much as a small kernel."""

    @staticmethod
    def forward(ctx: Any, edges: Sequence[Edge], *tensors: DTensor) -> tuple[torch.Tensor, ...]:
        ctx.edges = edges
        ctx.set_materialize_grads(False)
        parts = [arrived(tensor._local_tensor).detach() for tensor in tensors]
        share_counters(tensors, parts)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        totals = [_Total.apply(*pair) if type(pair[0]) is _Sum else None for pair in zip(grads, ctx.edges)]
        gradients = zip(own(grads), totals, ctx.edges)
        return None, *[
            edge.gradient(part) if part is not None and total is None else total for part, total, edge in gradients
        ]


class _Left(torch.autograd.Function):
    """DTensor -> local tensor, inside the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> torch.Tensor:
        ctx.spec = tensor._spec
        ctx.set_materialize_grads(False)
        local = arrived(tensor._local_tensor)
        return counted_as(tensor, local.view_as(local))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        return None if grad is None else _gradient(grad, ctx.spec, _for_gradients(ctx.spec.placements))


class _Wrapped(torch.autograd.Function):
    """local tensor -> DTensor, around the graph."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, spec: Spec) -> torch.Tensor:
        ctx.spec = spec
        ctx.set_materialize_grads(False)
        return counted_as(local, with_spec(local.data, spec, local.requires_grad))  # a part has a counter of its own

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None, None
        return _part(_redistributed(grad, _for_gradients(ctx.spec.placements))), None


class Entered:
    """The operation of a graph that makes its input a DTensor."""

    __name__ = __qualname__ = "as_dtensor"

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def __call__(self, local: torch.Tensor) -> torch.Tensor:
        if not local.requires_grad:
            return counted_as(local, with_spec(local, self.edge.spec, False))
        with torch.enable_grad():
            sharded: torch.Tensor = _Entered.apply(local, self.edge)
        return sharded


def entered(edge: Edge) -> Callable[[torch.Tensor], torch.Tensor]:
    """The operation for an input."""
    return Entered(edge)


Step: TypeAlias = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...], "bool | None"]
"""A function, or the name of a method; what it is given after its first argument; whether gradients are on."""


class Repeated:
    """What the program called to come from one tensor to another with the same memory, for the tensors outside."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __call__(self, value: Any) -> Any:
        for target, args, kwargs, recorded in self.steps:
            function = getattr(type(value), target) if isinstance(target, str) else target
            with torch.set_grad_enabled(torch.is_grad_enabled() if recorded is None else recorded):
                value = function(value, *args, **dict(kwargs))
        return value


class Asked:
    """The operation of a graph that calls a function of DTensor's: of a tensor, and of constants, which say how it, or
    its gradient, is laid out."""

    def __init__(self, function: Callable[..., Any], name: str, rest: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.function, self.name, self.rest, self.named = function, name, rest, named
        self.__name__ = self.__qualname__ = name
        self.lays_out = name != "from_local" and bool(rest or named)

    def __call__(self, tensor: torch.Tensor) -> Any:
        return self.function(tensor, *self.rest, **self.named)


def local_part(tensor: DTensor) -> torch.Tensor:
    """The operation of a graph that takes what is local as it is."""
    part: torch.Tensor = tensor._local_tensor
    return part.detach() if part.requires_grad else part


def refuses_writes(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses writes to a tensor: `to_local`, a function of DTensor's own, gave a view."""
    autograd: Any = torch._C._autograd
    return tensor._is_view() and autograd._get_creation_meta(tensor) == autograd.CreationMeta.IN_CUSTOM_FUNCTION


class _ToTorchTensor(torch.autograd.Function):
    """A view that autograd refuses writes to, and calls by this name, as eager's."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def only_read(tensor: torch.Tensor) -> torch.Tensor:
    """A result of a graph as such a view."""
    if not tensor.requires_grad or refuses_writes(tensor):
        return tensor
    with torch.enable_grad():
        view: torch.Tensor = _ToTorchTensor.apply(tensor)
    return view


def as_local(tensor: DTensor) -> torch.Tensor:
    """The operation of a graph that takes what is local of its result."""
    if not tensor.requires_grad:
        return counted_as(tensor, arrived(tensor._local_tensor).detach())
    with torch.enable_grad():
        part: torch.Tensor = _Left.apply(tensor)
    return part


def is_recorded(tensor: DTensor, edge: Edge) -> bool:
    """Whether a DTensor gets a gradient through a graph."""
    return tensor.requires_grad and (edge.records or torch.is_grad_enabled())


def local_of(tensor: DTensor, edge: Edge) -> torch.Tensor:
    """What a graph gets for a DTensor."""
    if is_recorded(tensor, edge):
        return locals_of((tensor,), (edge,))[0]
    local = arrived(tensor._local_tensor)
    if edge.records or torch.is_grad_enabled():
        return counted_as(tensor, local.detach())
    return local.detach().requires_grad_() if tensor.requires_grad else local


def locals_of(tensors: Sequence[DTensor], edges: Sequence[Edge]) -> tuple[torch.Tensor, ...]:
    """What a graph gets for DTensors that get gradients through it."""
    with torch.enable_grad():
        parts: tuple[torch.Tensor, ...] = _Local.apply(edges, *tensors)
    return parts


def made_of(local: torch.Tensor, spec: Spec) -> torch.Tensor:
    """What the program gets for what a graph gave."""
    if not local.requires_grad:
        return counted_as(local, with_spec(local.data, spec, False))
    with torch.enable_grad():
        sharded: torch.Tensor = _Wrapped.apply(local, spec)
    return sharded
