"""The one file with private or version-dependent use of torch for graphs and tracing."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from argand.graph.product_settings import cudnn_flags, set_cudnn_flags

aten = torch.ops.aten


def default_device() -> torch.device | None:
    """That of `torch.set_default_device` or of an entered `torch.device`, where no mode of the program's is active."""
    if torch._C._len_torch_function_stack() != 1:
        return None
    kind = getattr(sys.modules.get("torch.utils._device"), "DeviceContext", None)
    mode: Any = torch._C._get_function_stack_at(0)
    return mode.device if type(mode) is kind else None


@contextlib.contextmanager
def without_default_device() -> Iterator[None]:
    """Inside, tensors are made where the call that makes them says."""
    if default_device() is None:
        yield
        return
    mode = torch._C._pop_torch_function_stack()
    try:
        yield
    finally:
        torch._C._push_on_torch_function_stack(mode)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that keeps torch's own compiler out of the process: every mode of argand's is one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch must not wrap `__torch_dispatch__` in a helper that imports torch._dynamo (0.8 s) when run."""
        return False


def make_wrapper(
    cls: type[torch.Tensor],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A tensor without data of a subclass, with the metadata given and the dispatch keys of `device`."""
    wrapper: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        cls, size, stride, offset, None, dtype, torch.strided, device
    )
    return wrapper


outside_of_modes = torch._C._DisableTorchDispatch  # inside, operations on plain tensors see no dispatch mode


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no dispatch mode is active, and another one can be entered."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return context


def set_wrapper_metadata(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    """Change the metadata of a tensor made by `make_wrapper` in place."""
    with torch._C._DisableTorchDispatch():
        torch.ops.aten.as_strided_.default(tensor, size, stride, offset)


disabled_torch_function = torch._C._disabled_torch_function_impl
transforms_active = torch._C._are_functorch_transforms_active  # whether one of torch.func's is, in this thread


def watched_by_modes() -> bool:
    """Whether a mode sees operations on plain tensors: of functions or of dispatch."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


@functools.cache
def fast_nodes() -> bool:
    """Whether this torch has what `new_node` does without."""
    graph = fx.Graph()
    wanted = ("_graph_namespace", "_insert", "_find_nodes_lookup_table", "_len", "_target_to_str")
    names = vars(graph).get("_graph_namespace")
    return all(hasattr(graph, name) for name in wanted) and {"_used_names", "_base_count"} <= vars(names).keys()


@functools.cache
def _node_name(target: Callable[..., Any]) -> str:
    return str(getattr(target, "_opname", None) or getattr(target, "__name__", "node"))


def new_node(
    graph: fx.Graph, target: Any, args: Any, kwargs: Any, name: str = "", op: str = "call_function", kind: Any = None
) -> fx.Node:
    """`graph.create_node` without its search of the arguments for symbolic numbers (half its time).

    Arguments:
        name: wished for; by default the operation's.
        kind: of the value, as the node tells it.
    """
    wish = name or _node_name(target)
    if not fast_nodes():
        return graph.create_node(op, target, args, kwargs, wish, kind)
    namespace = graph._graph_namespace
    name = _free_name(namespace, wish)
    node = fx.Node(graph, name, op, target, args, kwargs, kind)
    namespace.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def targets_of(graph: fx.Graph) -> list[Any]:
    """The functions that a graph calls, each once: whoever asks something of each need not ask for each call."""
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    return list(dict(zip(map(id, called), called)).values())  # operators hash themselves in Python


def copy_node(graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], Any]) -> fx.Node:
    """`graph.node_copy(node, argument)`, as `new_node` makes nodes."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    copied = new_node(graph, node.target, args, kwargs, node.name, node.op, node.type)
    copied.meta.update(node.meta)
    return copied


def _free_name(names: Any, wish: str) -> str:
    """`names.create_name(wish, None)`. That splits names with an expression, which takes 0.1 ms for long ones, as
    inputs have, and most of the time for numbered ones, as copies have. No long or numbered name is one of Python's."""
    used, counts = names._used_names, names._base_count
    base, _, number = wish.rpartition("_")
    numbered = base != "" and number.isdigit()
    if wish in used and not numbered and counts.get(wish):  # one that torch has numbered before
        name, count = wish, counts[wish]
        while name in used:
            count += 1
            name = f"{wish}_{count}"
        counts[wish] = count
        used.add(name)
        return name
    usual = numbered or len(wish) >= 40
    if not usual or wish in used or not (wish.isascii() and wish.isidentifier()):
        return str(names.create_name(wish, None))
    key = base if numbered else wish
    counts[key] = int(number) if numbered else counts.get(key, 0)
    used.add(wish)
    return wish


def bound_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call of an op gives, by name."""
    return {**dict(zip((argument.name for argument in func._schema.arguments), args)), **kwargs}


@functools.cache
def is_view_op(func: Any) -> bool:
    """The schema says that a result aliases an argument and that nothing is written."""
    schema = func._schema
    if schema.is_mutable:
        return False
    return any(ret.alias_info is not None for ret in schema.returns)


def written_arguments(func: Any) -> list[tuple[int, str]]:
    """(position, name) of the arguments that an op writes to, as its schema says."""
    written = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append((position, argument.name))
    return written


@functools.cache
def is_random(func: Any) -> bool:
    """The op draws from a random number generator."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    if func.name() in ("aten::_fused_sdp_choice",):
        return False
    return torch.Tag.nondeterministic_seeded in func.tags


def has_effect(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call must stay, in order, even when nobody reads its results: it draws random numbers, asserts
    something, talks to other processes, or was asked to raise where a decomposition does not exist."""
    if getattr(func, "_schema", None) is None:
        return False
    effect = _effect(func)
    return bool(bound_arguments(func, args, kwargs).get("check_errors")) if effect is None else effect


@functools.cache
def _effect(func: Any) -> bool | None:
    """What `has_effect` says of every call of an op; None where an argument decides."""
    if not func._schema.returns or is_random(func) or communicates(func):
        return True
    return None if func._schema.name.startswith("aten::linalg_") else False


COMMUNICATION = frozenset(("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem"))
"""Namespaces of operators that talk to other processes. Their schemas tell nothing of it: calls that look alike would
be merged, those whose results nobody reads left out, memory that is still read or written used again."""


def communicates(func: Any) -> bool:
    """The op overload talks to other processes, or waits for them."""
    return isinstance(func, torch._ops.OpOverload) and (func.namespace in COMMUNICATION or waits(func))


def waits(func: Any) -> bool:
    """The op overload is one of those that wait for what a collective delivers."""
    return isinstance(func, torch._ops.OpOverload) and func._schema.name.startswith("argand::received")


@functools.cache
def is_composite(func: Any) -> bool:
    """The op is defined by other ops alone; it reaches a dispatch mode only under inference mode."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


_TAGGED_LATER = {("pointwise", "aten::leaky_relu"), ("pointwise", "aten::_conj_physical")}
"""Tags that operations have from torch 2.12 on."""


@functools.cache
def has_tag(func: Any, name: str) -> bool:
    """The op overload carries the torch tag of this name."""
    tag = getattr(torch.Tag, name, None)
    if tag is None or not isinstance(func, torch._ops.OpOverload):
        return False
    return tag in func.tags or (name, func.name()) in _TAGGED_LATER


def overloads(packet: Any) -> list[Any]:
    """Every overload of an op packet."""
    return [getattr(packet, name) for name in packet.overloads()]


def packet_named(namespace: str, name: str) -> Any | None:
    """`torch.ops.<namespace>.<name>`, or None."""
    return getattr(getattr(torch.ops, namespace), name, None)


def deterministic() -> tuple[bool, bool]:
    """Whether algorithms must be deterministic, and whether that only warns."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def set_deterministic(wanted: tuple[bool, bool]) -> None:
    """What `torch.use_deterministic_algorithms` does to torch itself."""
    torch._C._set_deterministic_algorithms(wanted[0], warn_only=wanted[1])


Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def settings_of(owner: Any, names: list[tuple[str, str]]) -> tuple[Setting, ...]:
    """(read, write) of what this version of torch has."""
    pairs = [(getattr(owner, a, None), getattr(owner, b, None)) for a, b in names]
    return tuple((read, write) for read, write in pairs if read is not None and write is not None)


def _flags() -> tuple[Setting, ...]:
    names = [(f"_get_{kind}_sdp_enabled", f"_set_sdp_use_{kind}")
             for kind in ("flash", "mem_efficient", "math", "cudnn", "overrideable")]  # fmt: skip
    names.append(("_get_sdp_priority_order", "_set_sdp_priority_order"))
    names += [(f"_get_cudnn_{kind}", f"_set_cudnn_{kind}") for kind in ("enabled", "benchmark", "deterministic")]
    kinds = ("deterministic_fill_uninitialized_memory", "dtensor_allow_implicit_replication")
    names += [(f"_get_{kind}", f"_set_{kind}") for kind in kinds]
    return (
        *settings_of(torch._C, names),
        (deterministic, set_deterministic),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (cudnn_flags, set_cudnn_flags),
    )


FLAGS = _flags()
"""(read, write) of flags of torch that captured code may change."""


@contextlib.contextmanager
def restored_torch_state() -> Iterator[None]:
    """Grad mode, autocast, default dtype and FLAGS are as before after the block; inference mode is off inside."""
    devices = ("cpu", "cuda")
    grad = torch.is_grad_enabled()
    cache = torch.is_autocast_cache_enabled()
    states = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    dtype, flags = torch.get_default_dtype(), [read() for read, _ in FLAGS]
    try:
        with torch.inference_mode(False):
            torch._C._set_grad_enabled(grad)
            yield
    finally:
        torch._C._set_grad_enabled(grad)
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        for (read, write), value in zip(FLAGS, flags):
            if read() != value:
                write(value)
        torch.set_autocast_cache_enabled(cache)
        for device, enabled, dtype in states:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        while torch.autocast_increment_nesting() > nesting:
            torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def fills_empty_tensors() -> bool:
    """New memory is filled with NaN, or the greatest number, so that programs which read it are repeatable."""
    return bool(
        torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()
    )


def _compiled_helper(name: str) -> Any | None:
    """A function that torch has for generated code, in C++ and without the dispatcher; None where it has none."""
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), name, None)


def _allocator(device: str) -> Callable[..., torch.Tensor]:
    helper: Callable[..., torch.Tensor] | None = _compiled_helper(f"_empty_strided_{device}")

    def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return helper or empty


def gpu_allocator() -> Callable[..., torch.Tensor]:
    """`empty(size, stride, dtype)` on the current GPU, in half of the time of torch.empty_strided."""
    return _allocator("cuda")


def cpu_allocator() -> Callable[..., torch.Tensor]:
    """`empty(size, stride, dtype)` in the CPU's memory, in half of the time of a method of a tensor."""
    return _allocator("cpu")


def view_maker() -> Callable[..., torch.Tensor]:
    """`view(base, size, stride, offset)`, the offset from the first element of `base`: a plain tensor over its memory,
    of which autograd does not know that it is a view."""
    helper: Callable[..., torch.Tensor] | None = _compiled_helper("_reinterpret_tensor")

    def view(base: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
        return torch.as_strided(base, size, stride, base.storage_offset() + offset)

    return helper or view


@contextlib.contextmanager
def single_threaded_autograd() -> Iterator[None]:
    """The autograd engine runs everything on the calling thread inside, where a dispatch mode sees it."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


current_autograd_node = torch._C._current_autograd_node  # that the engine is evaluating in this thread, or None


def sequence_number(node: Any) -> int:
    """When an autograd node was made, counted in nodes of its thread."""
    return int(node._sequence_nr())


next_sequence_number = torch._C._autograd._get_sequence_nr  # `sequence_number` of the next autograd node of this thread
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
"""Whether the backward that runs in this thread frees nothing (`retain_graph=True`), or none runs."""
running_backward = torch._C._current_graph_task_id  # a number of the backward that runs in this thread
goes_to_all_leaves = torch.autograd._is_checkpoint_valid  # the running backward: `inputs` and `grad` do not
will_run = torch._C._will_engine_execute_node  # whether the running backward comes to a node of its own graph
autocast_active = torch._C._is_any_autocast_enabled  # whether any autocast is on in this thread


def compiled_autograd_active() -> bool:
    """Whether compiled autograd is on anywhere in this process."""
    return torch.autograd._engine_run_backward is not torch.autograd.graph._engine_run_backward


def disabled_autocast() -> object:
    """No op is cast as long as what this gives lives."""
    guard: Any = torch._C._DisableAutocast()
    guard.__enter__()  # before that it changes nothing
    return guard


def called_by_program() -> bool:
    """Whether a dispatch mode sees an operation that autograd has passed on, and not one of autograd's own, which
    detaches what it saves."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView))


# What is saved for a backward in this thread goes through hooks: these, or None.
_top_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
saved_tensor_hooks_active: Callable[[], Any] = functools.partial(_top_hooks, False)


def own_saved_tensor_hooks_active() -> bool:
    """As `saved_tensor_hooks_active`, and the hook is the program's, not one of torch's."""
    hooks = saved_tensor_hooks_active()
    return hooks is not None and not (getattr(hooks[0], "__module__", None) or "").startswith(("torch.", "argand."))


def hidden_from_saved_tensor_hooks() -> Any:
    """Context manager: hooks of the user's do not see what is saved inside."""
    if not saved_tensor_hooks_active():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def node_owner(tensor: torch.Tensor) -> Any:
    """What keeps alive the node that made a tensor, with what it saved, where that is a node of Python's."""
    with torch._C.DisableTorchFunction(), outside_of_modes():
        return tensor.view_as(tensor).grad_fn


@functools.cache
def node_adder() -> Callable[[torch.Tensor], object] | None:
    """A function that puts a node of autograd's between a tensor and the node that made it, which hands gradients on.

    None where torch's operation for it does something else in this version.
    """
    with torch.enable_grad(), outside_of_modes():
        tensor = torch.ones(1, requires_grad=True) * 2
        before, version = tensor.grad_fn, tensor._version
        result = aten.lift.default(tensor)
        node = result.grad_fn
        hands_on = node is not None and node is not before and node.next_functions == ((before, 0),)
        same = result is tensor and result._version == version and not result._is_view()
    return getattr(aten.lift.default, "_op", aten.lift.default) if hands_on and same else None


def written_in_place(tensors: list[torch.Tensor]) -> None:
    """Tell autograd that memory of these tensors was written by something that it does not know of."""
    if tensors:
        torch._C._increment_version(tensors)


def tree_flatten(value: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of nested tuples, lists, dicts and registered classes."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(value)


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """The inverse of `tree_flatten`."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, spec)


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """A strided tensor of torch's own class with memory, without lazy conjugation or negation."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not torch._is_functional_tensor(tensor)
    )


def is_transformed(tensor: torch.Tensor) -> bool:
    """It has no memory of its own: `torch.func` or either of torch's two vmaps computes with it."""
    return not torch._C._has_storage(tensor) and tensor.layout is torch.strided


def storage_address(tensor: torch.Tensor) -> int:
    """Where torch keeps what it knows of a tensor's memory: the same for all that share it. Sparse ones share none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        if tensor.layout is torch.strided:
            raise
        return id(tensor)


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage; 0 for a tensor without memory."""
    return storage_address(tensor) if tensor.device.type != "meta" else 0


def is_fake(tensor: torch.Tensor) -> bool:
    """A `FakeTensor` (torch.compile hands them to backends as examples); asked by name, its import costs 0.8 s."""
    return type(tensor).__name__ == "FakeTensor" and all(isinstance(n, int) for n in tensor.shape)


@functools.cache
def keep_torch_compiler_out() -> int:
    """Keep torch's meta kernels from importing torch._dynamo (0.8 s and sympy) when they are first called.

    torch wraps some Python kernels in a helper that looks for the attribute `__dynamo_disable` on the function and,
    where there is none, imports torch._dynamo to make one. The function itself is the right value as long as dynamo is
    not tracing, and dynamo does not trace below the dispatcher. Returns how many functions were prepared; 0 when
    torch._dynamo is loaded already.
    """
    if "torch._dynamo" in sys.modules:
        return 0
    from torch._compile import _disable_dynamo

    helper_code = _disable_dynamo(keep_torch_compiler_out).__code__
    position = helper_code.co_freevars.index("fn")
    seen: set[int] = set()
    prepared = 0
    pending = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith(("torch._refs", "torch._prims", "torch._decomp", "torch._meta"))
        for value in list(vars(module).values())
        if isinstance(value, types.FunctionType)
    ]
    while pending:
        function = pending.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        cells = function.__closure__ or ()
        if function.__code__ is helper_code:
            inner = cells[position].cell_contents
            if not hasattr(inner, "__dynamo_disable"):
                setattr(inner, "__dynamo_disable", inner)
                prepared += 1
        pending += [
            c.cell_contents for c in cells if not _is_empty(c) and isinstance(c.cell_contents, types.FunctionType)
        ]
    return prepared


def _is_empty(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


class Sharing:
    """Who shares the memory of some tensors.

    Arguments:
        tensors: whose memory; they stay alive as long as this.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        storages = {storage_address(tensor): tensor.untyped_storage() for tensor in self._tensors}
        # Python has one object for a storage, whoever asks: it is held here, so that its references can be counted.
        self._addresses, self._storages = list(storages), list(storages.values())
        del storages
        self._alone = self._counts()

    def _counts(self) -> list[int]:
        return [*map(torch._C._storage_Use_Count, self._addresses), *map(sys.getrefcount, self._storages)]

    def alone(self) -> bool:
        """Whether as few tensors, records of autograd and Python objects share it as when this was made."""
        return self._counts() == self._alone


def nothing_in(storage: torch.UntypedStorage, nbytes: int) -> bool:
    """Whether no tensor has its memory there any more, and it still has so many bytes."""
    return torch._C._storage_Use_Count(storage._cdata) == 1 and storage.nbytes() == nbytes


def foreach_clone(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """A copy of each tensor, whose memory has no gaps, in the same layout. All are of one dtype."""
    clone: Any = getattr(torch, "_foreach_clone", None)
    if clone is not None:
        copies: Sequence[torch.Tensor] = clone(tensors)
    elif tensors[0].dtype.is_floating_point and tensors[0].dtype.itemsize > 1:
        copies = torch._foreach_mul(tensors, 1.0)  # exact, and memory is made without a call each
    else:
        copies = [torch.empty_like(tensor) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
    return copies
