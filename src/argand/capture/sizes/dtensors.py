"""DTensors: tensors of which each process has a part, and a mesh and placements that say which.

Their stand-ins are DTensors over stand-ins of the local parts, so that what operations on them give is DTensor's own
answer. The graph takes local parts, makes DTensors of them, operates on those, and gives local parts of its results
(`graph.dtensors`). How an input is laid out is guarded; so is the size of the groups that its mesh is made of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NoReturn, cast

import torch
from torch import fx

from argand import errors
from argand._core import _C
from argand.capture.facts.classify import awaits, is_plain_tensor
from argand.capture.facts.compat import new_node
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder
from argand.capture.facts.sources import ConstSource, Source
from argand.capture.facts.values.symbolic import SYMBOLIC
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata import data_errors, metadata, written_arguments
from argand.capture.metadata.call_targets import target_of
from argand.capture.metadata.special_calls import CONSTANTS, SPECIAL, getter
from argand.capture.sizes import dtensor_vetting, symbolic_tensors
from argand.capture.sizes.dtensor_vetting import Vetting, mask_buffers, refused
from argand.capture.sizes.symbolic_calls import ProbedCall
from argand.capture.sizes.symbolic_state import Restart
from argand.capture.world.process_groups import guarded_facts
from argand.graph import compat, dtensors, version_counters, wrappers
from argand.graph.dtensors import DTensor, Edge, Layout, Repeated, Spec, Step, is_sharded
from argand.graph.trees import mapped, rebuilt

_Tensor = torch.Tensor
_OF_STAND_INS = frozenset(getter(name) for name in ("is_leaf", "requires_grad", "itemsize", "nbytes"))
_VIEWS = frozenset(getter(name) for name in ("T", "mT", "H", "mH", "real", "data"))
_GRADIENTS = (getter("grad"), _Tensor.grad.__set__, getter("grad_fn"))
_MOVES = (_Tensor.to, _Tensor.cpu)
_SCALED = ("add", "addcdiv", "addcmul", "sub")
_SPLITS = frozenset(["chunk", "split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind"])
_PARTS = frozenset(("to_local", "local_part", "as_local"))
CHECKPOINT = "torch.utils.checkpoint.checkpoint"
"""What a backward computes again of its own accord: eager calls the function, communication and all, once more."""
HOOK = "Tensor.register_hook"
_ROOMS = ("argand.capture.torch_functions.higher_order.", "argand.capture.torch_functions.gradients.")
_BODIES = frozenset(("tensor_hooks", "autograd_functions"))
"""Modules of handlers that capture functions with DTensors."""


def why_not(tensor: DTensor) -> str:
    """Why a DTensor from outside cannot be in a graph; "" where it can."""
    local = tensor._local_tensor
    if type(local) is not _Tensor and not awaits(type(local)):
        return f"its local tensor is a {type(local).__name__}"
    if not is_plain_tensor(local):
        return "its local tensor is sparse, quantized or nested"
    if mask_buffers(tensor):
        return "it is a sum whose parts are masked"
    if tensor._spec.tensor_meta is None or tensor._spec.mesh.get_coordinate() is None:
        return "this process is not in its mesh"
    return ""


# ---------------------------------------------------------------------- inputs


def new_input(state: CaptureState, source: Source, real: DTensor) -> torch.Tensor:
    """The stand-in of a DTensor that existed before the frame."""
    why = why_not(real)
    if why:
        raise refused(source.friendly(), why)
    builder = state.graph
    spec = real._spec
    edge = Edge(spec)
    guard_mesh(state, spec.mesh)
    state.guards.add(source, "tensor", *_C.tensor_guard_args(real))
    local = dtensors.local_of(real, edge)
    plain = builder.new_input(source, local)
    info = builder.tensors[id(plain)]
    info.real = real
    info.node.meta["edge"] = edge
    builder.layouts.append((source, Layout(spec, local)))
    if real.is_leaf:
        stand_in: DTensor = dtensors.with_spec(metadata.stand_in(local.detach()), spec, real.requires_grad)
    else:
        stand_in = dtensors.made_of(plain, spec)
    if "_is_param" in vars(real):
        stand_in._is_param = True
    node = builder.root.call_function(dtensors.entered(edge), (info.node,))
    stands_for(builder, stand_in, node, info.device, source, real)
    return stand_in


def stands_for(
    builder: GraphBuilder,
    stand_in: torch.Tensor,
    node: fx.Node,
    device: torch.device,
    source: Source,
    real: torch.Tensor,
) -> None:
    """`stand_in` is that of a tensor from outside, `real`, which `node` makes of its parts."""
    builder.annotate(node)
    builder.sharded = True
    builder.register(stand_in, node, device)
    own = builder.tensors[id(stand_in)]
    own.source, own.real = source, real


def guard_layouts(state: CaptureState) -> None:
    """What the graph's DTensors depend on, a guard for all inputs among them; called at the end of a capture."""
    if state.graph.sharded and dtensors.sharded_class() is not None:
        check = (dtensors.dispatching, dtensors.dispatching())
        state.guards.add(None, "global_state", (check,), label="GLOBAL_STATE")
    if state.graph.layouts:
        sources, layouts = zip(*state.graph.layouts)
        as_before = functools.partial(dtensors.laid_out, layouts)
        state.guards.add(None, "python", as_before, [*sources], label="TENSOR_SUBCLASS_MATCH", shown=False)


def guard_mesh(state: CaptureState, mesh: Spec) -> None:
    """The groups of a mesh have the sizes and ranks that they had."""
    names: tuple[str, ...] = tuple(getattr(mesh, "_dim_group_names", ()))
    if len(names) != mesh.ndim:
        raise refused("DeviceMesh", "the process groups of its dimensions are not known")
    for name in names:
        if guarded_facts(state, name) is None:
            raise refused("DeviceMesh", "there is no process group for one of its dimensions")


def pin_mesh(state: CaptureState, mesh: Spec) -> None:
    """The program uses a mesh; another one that is equal, of the same process groups, does the same."""
    guard_mesh(state, mesh)
    source = state.outer.get(id(mesh))
    if source is not None and not isinstance(source, ConstSource):
        same = functools.partial(dtensors.same_mesh, mesh)
        state.guards.add(None, "python", same, [source], label="MESH_MATCH", shown=False)


# ---------------------------------------------------------------------- operations


def among(args: Args, kwargs: Kwargs) -> bool:
    """Whether a call is given a DTensor, or another tensor that wraps some (`graph.wrappers`)."""
    for value in (*args, *kwargs.values()):
        if _dispatches(type(value)):
            return True
        if type(value) in (list, tuple) and any(_dispatches(type(item)) for item in value):
            return True
    return False


def _dispatches(cls: type) -> bool:
    return is_sharded(cls) or cls in wrappers.KNOWN


def refuse_functions(decides: Callable[..., object], name: str, args: Args, kwargs: Kwargs) -> None:
    """End the graph where a DTensor is given to a function whose body, or hook, or gradient would be part of it.

    Arguments:
        decides: what is asked what becomes of the call.
    """
    module = decides.__module__
    entered = name == CHECKPOINT or module.rpartition(".")[2] in _BODIES
    if module.startswith(_ROOMS) and not entered and among(args, kwargs):
        raise refused(name, "functions of functions, and gradients of DTensors that are asked for, are not captured")


def call(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """A torch call with DTensors among its arguments.

    Raises:
        GraphBreak: the call cannot be part of a graph.
    """
    with torch._C.DisableTorchFunctionSubclass():  # what a class does with torch functions was interpreted
        return _call(builder, func, args, kwargs)


def _call(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    name = getattr(func, "__name__", str(func))
    if func in CONSTANTS or func in _OF_STAND_INS:
        return func(*args, **kwargs)
    if func == getter("device"):
        return builder.tensors[id(args[0])].device
    if func in _GRADIENTS:
        return SPECIAL[func](builder, func, args, kwargs)
    if name.removeprefix("_foreach_").rstrip("_") in _SCALED and _are_tensors((*args[3:], *kwargs.values())):
        scaled = SPECIAL[func](builder, func, args, kwargs)
        if scaled is not NotImplemented:
            return scaled
    if func is _Tensor.requires_grad_ and (args[1:] or tuple(kwargs.values())) == (args[0].requires_grad,):
        return args[0]
    if func in _MOVES:
        args, kwargs = _stays(builder.tensors[id(args[0])].device, func, args, kwargs)
        if not (args[1:] or kwargs):
            return args[0]
        func = _Tensor.to
    if name in ("__get__", "__set__") and func not in _VIEWS:
        raise refused(name, "this attribute of a DTensor is known, or set, only when the program runs")
    return record(builder, func, func, args, kwargs)


def _are_tensors(scales: Iterable[object]) -> bool:
    """Whether there are tensors where optimizers have numbers, unless they are captured."""
    return any(isinstance(one, _Tensor) or (type(one) is list and _are_tensors(one)) for one in scales)


def attribute(state: CaptureState, tensor: DTensor, name: str) -> object:
    """`tensor._local_tensor`, which records no gradient, or `tensor._spec`."""
    if not state.tensor_info(tensor).laid_out:
        raise unknown_layout(name)
    if name == "_spec":
        return state.load_source(ConstSource(tensor._spec), tensor._spec)
    if tensor._local_tensor.requires_grad:
        raise refused(name, "it records a gradient by itself")
    with torch._C.DisableTorchFunction():
        return record(state.graph, dtensors.local_part, dtensors.local_part, (tensor,), {})


def _stays(device: torch.device, func: Function, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a move to the device where a DTensor is, without the device."""
    rest, named = list(args), dict(kwargs)
    place: object = "cpu" if func is _Tensor.cpu else named.pop("device", None)
    if place is None and len(rest) > 1 and type(rest[1]) in (str, torch.device):
        place = rest.pop(1)
    if place is not None and torch.device(cast(str, place)) != device:
        raise refused(func.__name__, "a mesh has the devices that it has")
    if place is not None and named and not rest[1:]:
        named.setdefault("dtype", args[0].dtype)
    return tuple(rest), named


def record(builder: GraphBuilder, func: Function, operation: Function, args: Args, kwargs: Kwargs) -> object:
    """One node.

    Arguments:
        func: what is called on stand-ins.
        operation: what the graph calls; where it is `func`, as the program called it.
    """
    name = getattr(func, "__name__", str(func))
    if any(scope.what not in (CHECKPOINT, HOOK) and scope.results is None for scope in builder.scopes):
        raise refused(name, "it is called in a function of a function, which may run it again")
    infos: list[TensorInfo] = []
    node_args = tuple([builder.to_node(arg, infos) for arg in args])
    node_kwargs = {key: builder.to_node(value, infos) for key, value in kwargs.items()}
    for info in infos:
        if type(info.tensor) in wrappers.KNOWN:
            check_namespace(builder.state, info)
    varies = any(info.dynamic is not None for info in infos) or _symbolic((*args, *kwargs.values()))
    if any(is_sharded(type(info.tensor)) for info in infos):
        data_errors.changes_outside(builder, name)  # it may communicate
        if varies:
            with_constants(builder, name)
    device = infos[0].device
    if any(type(info.tensor) in wrappers.KNOWN and wrappers.asks_class(type(info.tensor)) for info in infos):
        operation = wrappers.past_class(operation)
    target = target_of(operation)
    laid_out = all(info.laid_out for info in infos)
    if not laid_out and name in _PARTS:
        raise unknown_layout(name)
    before = _versions(infos)
    siblings: list[object] = []
    if varies:
        meta, siblings = _at_all_sizes(builder, name, func, args, kwargs)
    elif torch._C._is_any_autocast_enabled() and not str(getattr(func, "__module__", "")).startswith("argand."):
        meta = _with_casts(builder, infos, name, func, args, kwargs)
    else:
        meta = _with_masks(builder, infos, lambda: computed(name, func, args, kwargs, laid_out, bool(builder.scopes)))
    named, behind = written_arguments.written(func, args, kwargs, target.mutates)
    moved = [info.tensor for info, old, new in zip(infos, before, _versions(infos)) if old != new]
    counted = name.endswith("_") and not name.startswith("_foreach_")  # else eager does not count the write
    written = [*(moved if counted else named), *behind, *moved]
    changed = bool(written)
    if changed:
        _note_writes(builder, name, infos, written)
    if name.endswith("_") and not (changed or name.endswith("__")):
        raise refused(name, "it changes what a DTensor is, and not what it holds")
    if not metadata.has_tensor(meta) and not (changed and meta is None):
        raise refused(name, "it gives, or does, what is known only when the program runs")
    builder.sharded = True
    result = builder.finish_call(target, node_args, node_kwargs, meta, device, changed, written)
    if not laid_out and name not in ("redistribute", "full_tensor"):
        mapped(result, functools.partial(_with_unknown_layout, builder))
    note_parts(builder, result, device)
    return symbolic_tensors.attach(builder, result, siblings) if varies else result


def _with_unknown_layout(builder: GraphBuilder, value: object) -> None:
    if id(value) in builder.tensors:
        builder.tensors[id(value)].laid_out = False


def unknown_layout(name: str) -> errors.GraphBreak:
    """The break where a program asks how a gradient is laid out, which the backward decides when it runs."""
    return refused(name, "how a gradient is laid out is known when the backward runs", "Redistribute it first")


def gradient_of(builder: GraphBuilder, tensor: torch.Tensor, grad: torch.Tensor, node: fx.Node) -> torch.Tensor:
    """The stand-in, `grad`, of the gradient of `tensor`."""
    builder.register(grad, node, builder.tensors[id(tensor)].device)
    builder.tensors[id(grad)].laid_out = not is_sharded(type(grad))
    return grad


def note_parts(builder: GraphBuilder, result: object, device: torch.device) -> None:
    """The parts of wrappers among the results of an operation are operations, too, for whoever asks for them."""
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if type(item) not in wrappers.KNOWN or not isinstance(item, _Tensor):
            continue
        with torch._C.DisableTorchFunction():
            layout = wrappers.layout_of(item)
            for name, part in zip(layout.names, wrappers.parts_of(item, layout)):
                if type(part) is not _Tensor:
                    raise refused(type(item).__name__, f"its part {name} is a {type(part).__name__}")
                if id(part) not in builder.tensors:
                    whole = builder.tensors[id(item)].node
                    taken = new_node(builder.graph, "call_function", wrappers.part(name), (whole,), {})
                    builder.register(part, taken, device)


def _at_all_sizes(
    builder: GraphBuilder, name: str, func: Function, args: Args, kwargs: Kwargs
) -> tuple[object, list[object]]:
    """What a call gives at the sizes of this call and at the probes, where a wrapper is given whose sizes are fixed."""

    def run(plain_args: Args, plain_kwargs: Kwargs, judged: bool = True) -> object:
        return computed(name, func, plain_args, plain_kwargs)

    probed = ProbedCall(builder, run, func, args, kwargs)
    unbacked = probed.dynamics.unbacked
    if unbacked is not None and unbacked.among(*probed.symbols):
        raise refused(name, "its sizes depend on data")
    meta, siblings = probed.compute()
    if not isinstance(meta, _Tensor) or type(meta) in wrappers.KNOWN:
        with_constants(builder, name)
    return meta, siblings


def check_namespace(state: CaptureState, info: TensorInfo) -> None:
    """What the program writes to the `__dict__` of a wrapper from outside, where it has that, is not seen here."""
    if info.real is not None and state.is_outer(object.__getattribute__(info.real, "__dict__")):
        raise refused(type(info.tensor).__name__, "its __dict__ is looked at as a whole")


def with_constants(builder: GraphBuilder, name: str) -> NoReturn:
    """Capture again, with every size and number a constant."""
    policy = builder.state.policy
    if policy is None or policy.history.exact:
        raise refused(name, "its sizes depend on data")
    policy.history.exact = True
    raise Restart


def _with_masks(builder: GraphBuilder, infos: list[TensorInfo], compute: Callable[[], object]) -> object:
    """Masks of rows are there while an operation on stand-ins runs; eager's own operations do not find them."""
    buffers = [buffer for info in infos for buffer in mask_buffers(info.tensor)]
    for buffer in buffers:
        buffer.data, buffer.refcount = builder.masks.pop(id(buffer), (None, 0))
    try:
        meta = compute()
    except BaseException:
        dtensors.forget_masks(lambda mask: mask.is_meta)
        raise
    results = meta if isinstance(meta, (tuple, list)) else (meta,)
    buffers += [buffer for item in results for buffer in mask_buffers(item)]
    for buffer in buffers:
        if buffer.data is not None:
            builder.masks[id(buffer)] = (buffer.data, buffer.refcount)
            buffer.data, buffer.refcount = None, 0
    return meta


def _with_casts(
    builder: GraphBuilder, infos: list[TensorInfo], name: str, func: Function, args: Args, kwargs: Kwargs
) -> object:
    """What a call gives under autocast, which casts nothing for tensors without data: fake tensors, which are on a
    device, tell the types."""
    if any(mask_buffers(info.tensor) or type(info.tensor) in wrappers.KNOWN for info in infos):
        raise refused(name, "what autocast does with tensors of such classes is not known without their data")
    try:
        wanted = dtensor_vetting.types_on_fakes(func, args, kwargs, infos)
    except Exception as error:
        raise refused(name, f"on tensors without data it raises {type(error).__name__}: {error}") from None
    lower = torch.get_autocast_dtype(infos[0].device.type)
    with torch._C.DisableTorchFunction(), torch.autocast(infos[0].device.type, enabled=False):
        for dtype in (None, lower, torch.float32):
            cast_args, cast_kwargs = mapped((args, kwargs), functools.partial(_cast, dtype))
            before = _versions(infos)
            run = functools.partial(computed, name, func, cast_args, cast_kwargs, inside=bool(builder.scopes))
            meta = _with_masks(builder, infos, run)
            if dtensor_vetting.types_of(meta) == wanted:
                return meta
            if _versions(infos) != before:
                break
    raise refused(name, "which casts autocast makes is not known")


def _cast(dtype: torch.dtype | None, value: object) -> object:
    if dtype is None or not isinstance(value, _Tensor) or not value.is_floating_point():
        return value
    return value if value.dtype is torch.float64 else value.to(dtype)


def _symbolic(values: Iterable[object]) -> bool:
    return any(type(value) in SYMBOLIC or (isinstance(value, (list, tuple)) and _symbolic(value)) for value in values)


def _versions(infos: list[TensorInfo]) -> list[list[int | None]]:
    return [[metadata.version(each) for each in (info.tensor, *_parts(info.tensor))] for info in infos]


def _parts(tensor: DTensor) -> list[torch.Tensor]:
    """The local part of a DTensor, the parts of another wrapper; any other tensor itself."""
    if type(tensor) in wrappers.KNOWN:
        return wrappers.parts_of(tensor, wrappers.layout_of(tensor))
    return [tensor._local_tensor if is_sharded(type(tensor)) else tensor]


def storages_of(tensor: torch.Tensor) -> set[int]:
    """Where a tensor, or each of its parts, has its memory."""
    return {compat.storage_address(part) for part in _parts(tensor)}


def _note_writes(builder: GraphBuilder, name: str, infos: list[TensorInfo], written: list[torch.Tensor]) -> None:
    """A call writes to these tensors; of a wrapper only its class knows which.

    Where autograd would record it, nothing that is from outside is written to: it would have to know of that, as a
    DTensor and as its part.
    """
    if any(type(info.tensor) in wrappers.KNOWN for info in infos):
        written = [info.tensor for info in infos]
    outside = _outside(builder)
    for tensor in written:
        if storages_of(tensor) & outside and (type(tensor) in wrappers.KNOWN or _is_recorded(tensor)):
            raise refused(name, "it may write to a tensor from outside that wraps others, and autograd records it")
    builder.note_writes(written)


def _is_recorded(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def _outside(builder: GraphBuilder) -> set[int]:
    """The memory of tensors from outside."""
    outside: set[int] = set().union(*[storages_of(info.tensor) for info in builder.tensors.values() if info.source])
    return outside | {
        compat.storage_address(info.tensor) for info in builder.inputs if isinstance(info.tensor, _Tensor)
    }


def note_write_to_part(builder: GraphBuilder, written: TensorInfo) -> None:
    """A tensor is written to that may be, or have, the local part of a DTensor from outside."""
    storages = storages_of(written.tensor)
    for info in list(builder.tensors.values()):
        if info.source and _dispatches(type(info.tensor)) and storages_of(info.tensor) & storages:
            if type(info.tensor) in wrappers.KNOWN or _is_recorded(written.tensor):
                raise refused("in-place operation", "a part of a tensor from outside that wraps others is written to")
            builder.mutated[id(info.tensor)] = info


def computed(
    name: str, func: Function, args: Args, kwargs: Kwargs, laid_out: bool = True, inside: bool = True
) -> object:
    """What `func` gives of stand-ins. Nothing is sent: collectives of tensors without data only tell sizes.

    Arguments:
        laid_out: all of them are laid out as the tensors will be for which they stand.
        inside: it is called in a function that may run again.
    """
    compat.keep_torch_compiler_out()
    with torch._C.DisableTorchFunction():
        try:
            with Vetting(name, laid_out, inside):
                meta = func(*args, **kwargs)
        except errors.GraphBreak:
            raise
        except Exception as error:
            raise refused(name, f"on tensors without data it raises {type(error).__name__}: {error}") from None
        return _arrived(meta)


def _arrived(meta: object) -> object:
    """Results as they are once what they wait for is there."""
    if isinstance(meta, _Tensor) and awaits(type(meta)):
        plain = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="meta")
        if not meta.requires_grad:
            return plain
        with torch.enable_grad():
            return plain.requires_grad_().view_as(plain)
    return rebuilt(meta, _arrived)


# ---------------------------------------------------------------------- results


def origin(builder: GraphBuilder, tensor: torch.Tensor) -> tuple[torch.Tensor, Repeated] | None:
    """The first tensor of which a result of the graph has the memory, and what the program called to come from there.

    None where none of them is a DTensor, or wraps others: the graph gives views of plain tensors as such.
    """
    storages = storages_of(tensor)
    steps: list[fx.Node] = []
    first, dispatching, calls, why = tensor, _dispatches(type(tensor)), 0, ""
    node = builder.tensors[id(tensor)].node
    while (info := builder.tensors.get(id(first))) is not None and info.source is None:
        above = [each for each in node.all_input_nodes if _has(each.meta.get("example_value"), storages)]
        if not above:
            break
        if len(node.all_input_nodes) > 1 or not node.args or node.args[0] is not above[0] or node.op == "call_module":
            why = f"{node.target} takes other tensors too"
        if _several(node) and getattr(node.target, "__name__", node.target) not in _SPLITS:
            why = f"{node.target} gives several tensors"
        steps.append(node)
        node = above[0]
        value = node.meta["example_value"]
        if isinstance(value, _Tensor):
            first, calls, dispatching = value, len(steps), dispatching or _dispatches(type(value))
    if not dispatching:
        return None
    called = steps[:calls][::-1]
    if not why and records(builder):
        why = _counted_apart(first, called)
    if why:
        ending = refused(type(tensor).__name__, f"a result shares memory with another one, or an input, and {why}")
        ending.needed = tensor
        raise ending
    return first, Repeated(tuple([_step(node) for node in called if not _several(node)]))


def records(builder: GraphBuilder) -> bool:
    """Whether any tensor of a graph requires grad."""
    with torch._C.DisableTorchFunctionSubclass():
        return any(info.tensor.requires_grad for info in builder.tensors.values())


def _counted_apart(first: torch.Tensor, steps: list[fx.Node]) -> str:
    """Why autograd would not notice writes to the last of some tensors, each of which an operation gave of the one
    before, if these were called outside of the graph: what the graph has saved is another tensor, with a counter of its
    own.
    """
    counted = first
    used = False
    for node, following in zip(steps, [*steps[1:], None]):
        value = node.meta["example_value"]
        if isinstance(value, _Tensor) and not version_counters.share_version(value, counted):
            counted, used = value, False
        used |= counted is not first and any(user is not following for user in node.users)
    return "autograd counts writes to what gave it by themselves" if used else ""


def _has(value: object, storages: set[int]) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has(item, storages) for item in value)
    return isinstance(value, _Tensor) and storages <= storages_of(value)


def _several(node: fx.Node) -> bool:
    return isinstance(node.meta["example_value"], (tuple, list))


def _step(node: fx.Node) -> Step:
    """One call. Of one that gives several views, the one by itself: torch cannot differentiate those of DTensors where
    some have no gradient."""
    call, part = node.all_input_nodes[0], node.meta["example_value"]
    if not _several(call):
        return node.target, node.args[1:], tuple(node.kwargs.items()), node.meta.get("grad")
    siblings, number = call.meta["example_value"], cast(int, node.args[1])
    whole = call.all_input_nodes[0].meta["example_value"]
    if part.dim() < whole.dim():
        dim = cast(int, call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0))
        return torch.select, (dim, number), (), call.meta.get("grad")
    dims = [dim for dim in range(part.dim()) if part.shape[dim] != whole.shape[dim]]
    start = sum(sibling.shape[dims[0]] for sibling in siblings[:number]) if dims else 0
    length = part.shape[dims[0]] if dims else whole.shape[0]
    return torch.narrow, (dims[0] if dims else 0, start, length), (), call.meta.get("grad")


def local_output(builder: GraphBuilder, tensor: torch.Tensor) -> torch.Tensor:
    """The stand-in of what the graph gives for a DTensor."""
    known = builder.local_parts.get(id(tensor))
    if known is None:
        if mask_buffers(tensor):
            raise refused("DTensor", "a sum whose parts are masked leaves the graph")
        with torch._C.DisableTorchFunction():
            part = cast(torch.Tensor, record(builder, dtensors.as_local, dtensors.as_local, (tensor,), {}))
        known = builder.local_parts[id(tensor)] = [part]
    return known[0]
