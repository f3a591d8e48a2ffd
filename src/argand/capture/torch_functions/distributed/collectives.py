"""Communication in a graph: functional collectives, those of torch.distributed that write to a tensor, process groups.

Operators of `_c10d_functional` become nodes, which stay, in order, though nobody reads what they give. A function of
torch.distributed that waits for its result is the operator and a copy of what it delivers. Groups are constants: code
is valid while the group of a name has the size and the rank that it had.
"""

from __future__ import annotations

import datetime
import re
import sys
from typing import Any

import torch

from argand import errors
from argand.capture.facts.classify import awaits
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import is_a
from argand.capture.facts.sources import ConstSource
from argand.capture.sizes import async_collective_tensors
from argand.capture.sizes.dtensors import CHECKPOINT, HOOK, pin_mesh
from argand.capture.torch_functions.torch_calls import (
    Handler,
    enter_late,
    find,
    handler,
    leaf,
    name_of,
)
from argand.capture.world.process_groups import asking, c10d, guarded_facts
from argand.graph.operators.collectives import IN_PLACE, NAMESPACES, STARTS

_SUMS_ONLY = frozenset(
    ("all_reduce", "all_reduce_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
)
_GROUP: Any = find("_C._distributed_c10d.ProcessGroup")
_WORK: Any = find("_C._distributed_c10d.Work")


def _refused(fn: Function, why: str) -> errors.GraphBreak:
    return errors.graph_break(
        kind="part of torch that is not captured", context=name_of(fn), explanation=f"{name_of(fn)}: {why}."
    )


# ----------------------------------------------------------------------- groups


def group_answer(question: str, name: str, *rest: int) -> object:
    """What a function of torch.distributed says of the group of a name; None where there is none."""
    module = c10d()
    try:
        answer = getattr(module, question)(module._resolve_process_group(name), *rest)
    except (LookupError, RuntimeError, ValueError):
        return None
    return tuple(answer) if type(answer) is list else answer


def _facts(state: CaptureState, fn: Function, name: str | None) -> tuple[str, int, int]:
    """Facts of a group, which are guarded."""
    facts = guarded_facts(state, name)
    if facts is None:
        raise _refused(fn, "there is no such process group")
    return facts


def _name_of_group(state: CaptureState, fn: Function, group: Any) -> str:
    """The name of what the program takes for a group."""
    if group is None:
        return _facts(state, fn, None)[0]
    if type(group) is str:
        return _facts(state, fn, group)[0]
    mesh, dim = group if type(group) is tuple and len(group) == 2 else (group, 0)
    if is_a(mesh, _GROUP) and mesh is group:
        state.interpreter.pin(group)
        return _facts(state, fn, group.group_name)[0]
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    if device_mesh is not None and type(mesh) is device_mesh.DeviceMesh and type(dim) is int:
        pin_mesh(state, mesh)
        names = getattr(mesh, "_dim_group_names", ())
        if (mesh is group and len(names) != 1) or not -len(names) <= dim < len(names):
            raise _refused(fn, "a mesh of several dimensions is no group")
        return _facts(state, fn, names[dim])[0]
    raise _refused(fn, "what it takes for a process group is not known")


def _bound(fn: Function, names: str, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Arguments by name; a name may have a default behind `=`."""
    bound: dict[str, Any] = {}
    order = [name.partition("=")[0] for name in names.split()]
    if len(args) > len(order) or not kwargs.keys() <= set(order):
        raise _refused(fn, "it is called in a way that is not known")
    bound.update(zip(order, args))
    bound.update(kwargs)
    for name in names.split():
        key, given, _ = name.partition("=")
        if key not in bound:
            if not given:
                raise _refused(fn, "it is called in a way that is not known")
            bound[key] = None
    return bound


def _of_ranks(names: str) -> Handler:
    """A question about a group, and perhaps a rank."""

    def answer(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        given = _bound(fn, names, args, kwargs)
        group = _name_of_group(state, fn, given.pop("group"))
        rest = tuple(given.values())
        reply = group_answer(fn.__name__, group, *rest)
        if reply is None or any(type(rank) is not int for rank in rest):
            raise _refused(fn, "it has no answer")
        check = asking(group_answer, fn.__name__, group, *rest)
        state.guards.add(None, "global_state", ((check, reply),), label="GLOBAL_STATE")
        return [*reply] if type(reply) is tuple else reply

    return answer


def _world(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`dist.group.WORLD`: the object itself, for graphs refer to groups by name."""
    _facts(state, fn, None)
    group = c10d()._get_default_group()
    return state.load_source(ConstSource(group), group)


def _of_group(place: int, names: str) -> Handler:
    """What is known of the group that the first argument is."""

    def answer(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        group = _bound(fn, names, args, kwargs)[re.split("[= ]", names)[0]]
        return _facts(state, fn, _name_of_group(state, fn, group))[place]

    return answer


# ----------------------------------------------------------------------- operators


def _operators(names: frozenset[str]) -> list[object]:
    """The packets and overloads of these names."""
    operators: list[object] = []
    for space in NAMESPACES:
        for name in sorted(names):
            packet = find(f"ops.{space}.{name}")
            operators += [] if packet is None else [packet, packet.default]
    return operators


def _tensors(value: object) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else [value]


def _start(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """An operator that begins to communicate."""
    overload = fn if is_a(fn, torch._ops.OpOverload) else fn.default
    name = overload._schema.name.partition("::")[2]
    bound = {**dict(zip((argument.name for argument in overload._schema.arguments), args)), **kwargs}
    if "torch.distributed._functional_collectives" not in sys.modules:
        raise _refused(fn, "torch.distributed._functional_collectives, which says what it gives, is not imported")
    if any(scope.what not in (CHECKPOINT, HOOK) and scope.results is None for scope in state.graph.scopes):
        raise _refused(fn, "it is called in a function of a function, which may run it again")
    group = bound.get("group_name")
    if type(group) is not str:
        raise _refused(fn, "its group is not given by name")
    _facts(state, fn, group)
    given = state.deep_resolve(next(iter(bound.values())))
    differentiable = torch.is_grad_enabled() and any(
        state.interpreter.getattr(each, "requires_grad") for each in _tensors(given)
    )
    if differentiable and (name not in STARTS or name == "broadcast"):
        raise _refused(fn, "it has no gradient")
    if differentiable and name in _SUMS_ONLY and bound.get("reduce_op") != "sum":
        raise _refused(fn, "only sums have a gradient")
    return leaf(state, fn, args, kwargs)


def _wait(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What is waited for began in the graph."""
    tensor = (*args, *kwargs.values())[0]
    if id(tensor) in state.graph.dressed and awaits(type(tensor)):
        return async_collective_tensors.arrived(state, tensor, completed=True)
    info = state.graph.tensors.get(id(tensor))
    if info is None or (info.source is not None and id(tensor) not in state.graph.mutated):
        raise _refused(fn, "what it waits for began before the compiled code")
    return leaf(state, fn, args, kwargs)


def _wrapped(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """What a functional collective gives: a tensor that waits when it is first read. The graph sees to that."""
    plain = state.interpreter.call(torch.ops._c10d_functional.wait_tensor, args, kwargs)
    if find("ops._c10d_functional._wrap_tensor_autograd") is None:
        raise _refused(fn, "this version of torch makes of it what is not known here")
    return async_collective_tensors.dress_waiting(
        state, plain, sys.modules["torch.distributed._functional_collectives"].AsyncCollectiveTensor
    )


# ----------------------------------------------------------------------- in place


def _plain(state: CaptureState, fn: Function, *tensors: object) -> None:
    """Tensors that a functional collective sends as eager's does."""
    getattr_ = state.interpreter.getattr
    for tensor in tensors:
        if not state.interpreter.is_tensor(tensor):
            raise _refused(fn, "it is not given single tensors")
        if getattr_(getattr_(tensor, "dtype"), "is_complex") or not _is_contiguous(state, tensor):
            raise _refused(fn, "it is given complex numbers, or a tensor that is not contiguous")
        if torch.is_grad_enabled() and getattr_(tensor, "requires_grad"):
            raise _refused(fn, "it has no gradient")
    if len({getattr_(tensor, "dtype") for tensor in tensors}) > 1:
        raise _refused(fn, "its tensors have different dtypes")


def _is_contiguous(state: CaptureState, tensor: object) -> bool:
    interp = state.interpreter
    return bool(interp.call(interp.getattr(tensor, "is_contiguous"), ()))


def _fit(state: CaptureState, fn: Function, whole: object, part: object, count: int) -> None:
    """`whole` is as large as `count` parts one below the other, and has a first dimension."""
    sizes, parts = ([*state.interpreter.getattr(tensor, "shape")] for tensor in (whole, part))
    if not parts or sizes != [parts[0] * count, *parts[1:]]:
        raise _refused(fn, "the sizes of its tensors do not fit")


def _call(state: CaptureState, name: str, tensor: object, *args: object) -> object:
    """What an operator delivers."""
    pending = state.interpreter.call(getattr(torch.ops._c10d_functional, name), (tensor, *args), {})
    return state.interpreter.call(torch.ops._c10d_functional.wait_tensor, (pending,), {})


def _flat(state: CaptureState, tensor: object) -> object:
    return state.interpreter.call(torch.Tensor.reshape, (tensor, (-1,)), {})


def _put(state: CaptureState, target: object, value: object) -> None:
    """`target` holds `value` from now on, whatever its shape. Autograd does not notice, as it does not in eager."""
    interp = state.interpreter
    shaped = interp.call(torch.Tensor.reshape, (value, interp.getattr(target, "shape")), {})
    interp.call(torch.Tensor.copy_, (interp.getattr(target, "data"), shaped), {})


def _member(state: CaptureState, fn: Function, bound: dict[str, Any]) -> tuple[str, int]:
    """Name and size of the group, of which this process is one."""
    if bound["async_op"] not in (None, False, True):
        raise _refused(fn, "whether it goes on after it is asked for is not known")
    name = _name_of_group(state, fn, bound["group"])
    _, size, rank = _facts(state, fn, name)
    if rank < 0:
        raise _refused(fn, "the process is not in the group")
    return name, size


def _begun(state: CaptureState, bound: dict[str, Any]) -> object:
    """What the call gives: None, or with `async_op=True` what the program waits by.

    What is written to until then has no value in eager; here it holds what arrives at once, and the schedule waits
    where that is read. So there is nothing left to do for `wait()`.
    """
    if not bound["async_op"]:
        return None
    work: object = _WORK()
    state.interpreter.born[id(work)] = (work, state.interpreter.number)
    return work


def _of_work(name: str) -> Handler:
    """`work.wait()`; whether it is done yet, and the like, only the running program knows."""

    def answer(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
        if id(args[0]) not in state.interpreter.born:
            raise _refused(_WORK, f"{name} of one that was begun before the graph")
        if name == "wait" and all(is_a(value, datetime.timedelta) for value in (*args[1:], *kwargs.values())):
            return True
        raise _refused(_WORK, f"{name} of one that is under way is known only when the program runs")

    return answer


def _reduction(fn: Function, op: object, group: str) -> str:
    """The name of an operation; a sum where none is said."""
    if op is None:
        return "sum"
    names: dict[object, str] = sys.modules["torch.distributed._functional_collectives"].REDUCE_OP_TO_STR
    try:
        name = names[op]
    except (KeyError, TypeError):
        raise _refused(fn, "what it reduces by has no name") from None
    if name == "avg" and group_answer("get_backend", group) != "nccl":
        raise _refused(fn, "where a sum is divided behind the communication, autograd notices that write")
    return name


def _all_reduce(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "tensor op= group= async_op=", args, kwargs)
    name, _ = _member(state, fn, bound)
    _plain(state, fn, bound["tensor"])
    _put(
        state,
        bound["tensor"],
        _call(state, "all_reduce", bound["tensor"], _reduction(fn, bound["op"], name), name),
    )
    return _begun(state, bound)


def _broadcast(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "tensor src= group= async_op= group_src=", args, kwargs)
    name, size = _member(state, fn, bound)
    _plain(state, fn, bound["tensor"])
    source, module = bound["group_src"], c10d()
    if (source is None) == (bound["src"] is None):
        raise _refused(fn, "it is not said which process sends")
    if source is None:
        ranks = module.get_process_group_ranks(module._resolve_process_group(name))
        source = ranks.index(bound["src"]) if bound["src"] in ranks else -1
    if type(source) is not int or not 0 <= source < size:
        raise _refused(fn, "what sends is not in the group")
    _put(state, bound["tensor"], _call(state, "broadcast", bound["tensor"], source, name))
    return _begun(state, bound)


def _all_gather_into_tensor(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "output_tensor input_tensor group= async_op=", args, kwargs)
    name, size = _member(state, fn, bound)
    output, given = bound["output_tensor"], bound["input_tensor"]
    _plain(state, fn, output, given)
    _fit(state, fn, output, given, size)
    _put(state, output, _call(state, "all_gather_into_tensor", _flat(state, given), size, name))
    return _begun(state, bound)


def _reduce_scatter_tensor(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "output input op= group= async_op=", args, kwargs)
    name, size = _member(state, fn, bound)
    _plain(state, fn, bound["output"], bound["input"])
    _fit(state, fn, bound["input"], bound["output"], size)
    how = _reduction(fn, bound["op"], name)
    _put(
        state, bound["output"], _call(state, "reduce_scatter_tensor", _flat(state, bound["input"]), how, size, name)
    )  # fmt: skip
    return _begun(state, bound)


def _all_to_all_single(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "output input output_split_sizes= input_split_sizes= group= async_op=", args, kwargs)
    name, size = _member(state, fn, bound)
    _plain(state, fn, bound["output"], bound["input"])
    splits = []
    for tensor, key in ((bound["output"], "output_split_sizes"), (bound["input"], "input_split_sizes")):
        rows = [*state.interpreter.getattr(tensor, "shape")][:1]
        given = state.deep_resolve(bound[key]) or ([rows[0] // size] * size if rows else [])
        if not is_a(given, list | tuple) or len(given) != size or sum(given) != rows[0]:
            raise _refused(fn, "the sizes of its tensors do not fit")
        splits.append(list(given))
    arrived = _call(state, "all_to_all_single", bound["input"], *splits, name)
    _fit(state, fn, bound["output"], arrived, 1)
    _put(state, bound["output"], arrived)
    return _begun(state, bound)


def _all_gather(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    bound = _bound(fn, "tensor_list tensor group= async_op=", args, kwargs)
    name, size = _member(state, fn, bound)
    given, targets = bound["tensor"], state.deep_resolve(bound["tensor_list"])
    if type(targets) is not list or len(targets) != size:
        raise _refused(fn, "it is not given a list of one tensor for each process")
    _plain(state, fn, given, *targets)
    for target in targets:
        _fit(state, fn, target, given, 1)
    interp = state.interpreter
    arrived = _call(state, "all_gather_into_tensor", _flat(state, given), size, name)
    rows = interp.call(torch.Tensor.reshape, (arrived, (size, -1)), {})
    for number, target in enumerate(targets):
        _put(state, target, interp.call(torch.Tensor.select, (rows, 0, number), {}))
    return _begun(state, bound)


# ----------------------------------------------------------------------- tables


handler(*_operators(STARTS), *_operators(IN_PLACE))(_start)
handler(*_operators(frozenset(("wait_tensor",))))(_wait)
for _name, _what in {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_single": _all_gather_into_tensor,
    "_all_gather_base": _all_gather_into_tensor,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_single": _reduce_scatter_tensor,
    "_reduce_scatter_base": _reduce_scatter_tensor,
    "all_to_all_single": _all_to_all_single,
    "all_gather": _all_gather,
    "get_rank": _of_group(2, "group="),
    "get_world_size": _of_group(1, "group="),
    "get_backend": _of_ranks("group="),
    "get_process_group_ranks": _of_ranks("group="),
    "get_group_rank": _of_ranks("group global_rank"),
    "get_global_rank": _of_ranks("group group_rank"),
}.items():
    _function = find(f"distributed.distributed_c10d.{_name}")
    if _function is not None:
        handler(_function)(_what)
enter_late({
    "distributed._functional_collectives._resolve_group distributed._functional_collectives._resolve_group_name":
        _of_group(0, "group tag="),
    "distributed._functional_collectives._maybe_wrap_tensor": _wrapped,
    "distributed._functional_collectives.wait distributed._functional_collectives.trigger_wait":
        async_collective_tensors.wait,
    "distributed.distributed_c10d._get_group_size_by_name": _of_group(1, "group_name"),
    "distributed.distributed_c10d._get_group_tag": _of_ranks("group"),
})  # fmt: skip
if _WORK is not None:
    for _name, _method in vars(_WORK).items():
        if not _name.startswith("__") and hasattr(_method, "__func__"):
            handler(_method.__func__)(_of_work(_name))
if _GROUP is not None:
    _own = vars(_GROUP)
    handler(_own["group_name"].fget)(_of_group(0, "self"))
    handler(_own["size"].__func__)(_of_group(1, "self"))
    handler(_own["rank"].__func__)(_of_group(2, "self"))
    handler(type(find("distributed.group")).__dict__["WORLD"].fget)(_world)
