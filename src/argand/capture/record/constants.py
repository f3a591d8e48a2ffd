"""Tensors whose values are known while capturing: `torch.tensor(5)`, `torch.eye(3)`, what is computed from such alone.

Their `.item()`, truth value and use as index or slice bound need no graph break. A value is computed when somebody
asks for it, which is seldom: until then only the call is remembered.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import partial

import torch
from torch._ops import OpOverload

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.kinds import is_a
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import Cost, Deferred, TensorInfo
from argand.capture.record import conditions
from argand.capture.sizes.symbolic_state import Restart
from argand.graph import compat
from argand.graph.trees import leaves
from argand.interruptions import let_pass

_LIMIT = 1 << 16  # elements of a tensor; a mask over 256 tokens
_DEEPEST = 100  # calls that a value waits for
_MAKERS = frozenset(
    getattr(torch, name)
    for name in words(
        "tensor scalar_tensor as_tensor zeros ones full eye arange linspace logspace tril_indices triu_indices"
    )
)
_SIZED_AS: dict[Function, Function] = {
    torch.Tensor.view_as: torch.Tensor.view,
    torch.Tensor.reshape_as: torch.Tensor.reshape,
    torch.Tensor.expand_as: torch.Tensor.expand,
}
_PLAIN = (int, float, bool, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip


class _Unknown(Exception):
    """A value cannot be told from the arguments."""


def note(
    builder: GraphBuilder,
    func: Function,
    args: Args,
    kwargs: Kwargs,
    infos: list[TensorInfo],
    device: torch.device,
    result: object,
) -> None:
    """Remember of a call that was recorded how its result comes about, where it is known."""
    if len(infos) == 2 and len(args) == 2 and infos[1].device.type == "cpu":  # of the second no value may be asked
        with torch._C.DisableTorchFunction():
            like = infos[1].tensor
            if func is torch.Tensor.type_as:
                func, args, infos = torch.Tensor.to, (args[0], like.dtype), infos[:1]
            elif func in _SIZED_AS:
                func, args, infos = _SIZED_AS[func], (args[0], like.shape), infos[:1]
    if _applicable(func, infos, device):
        _propagate(builder, func, args, kwargs, result)


def _applicable(func: Function, infos: list[TensorInfo], device: torch.device) -> bool:
    """Whether the result of a call may be known: everything that went in is."""
    if device.type != "cpu":
        return False
    if not infos:
        return func in _MAKERS
    return all(info.constant is not None for info in infos)


def _propagate(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, result: object) -> None:
    """Remember with the stand-ins of `result` how their values come about."""
    if not all(is_a(leaf, torch.Tensor) and leaf.numel() <= _LIMIT for leaf in leaves(result)):
        return
    try:
        call = _Call(builder, func, args, kwargs)
    except _Unknown:
        return
    if call.cost is Cost.CONDITION and not conditions.is_cheap(func):
        return
    _attach(builder, result, call, ())


def _attach(builder: GraphBuilder, result: object, call: _Call, path: tuple[int, ...]) -> None:
    if is_a(result, torch.Tensor):
        info = builder.tensors.get(id(result))
        if info is not None:
            remember(builder, info, Deferred(call.result, path, call.depth, result, call.cost, call))
    elif isinstance(result, tuple | list):
        for number, part in enumerate(result):
            _attach(builder, part, call, (*path, number))


def copied(builder: GraphBuilder, real: torch.Tensor) -> object:
    """The stand-in of a copy, made at each call, of a tensor that the graph holds: its values are known."""
    with torch._C.DisableTorchFunction():
        held = builder.constant(real)
        if real.device.type == "cpu" and real.numel() <= _LIMIT:
            remember(builder, builder.tensors[id(held)], real)
        return builder.call(torch.Tensor.clone, (held,), {})


def result(builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> object:
    """What a call gives whose result's size depends on values, where these are known; NotImplemented elsewhere."""
    infos = [builder.tensors.get(id(arg)) for arg in (*args, *kwargs.values()) if is_a(arg, torch.Tensor)]
    if not infos or any(info is None or not _at_hand(info) for info in infos):
        return NotImplemented
    try:
        value = _Call(builder, func, args, kwargs).result()
    except _Unknown:
        return NotImplemented
    if is_a(value, torch.Tensor):
        return copied(builder, value)
    if type(value) is tuple and all(is_a(part, torch.Tensor) for part in value):
        return tuple([copied(builder, part) for part in value])
    return NotImplemented


def positions(builder: GraphBuilder, x: torch.Tensor, index: object) -> object:
    """An index with the positions that its masks select instead of those of them that are known."""
    items = index if type(index) is tuple else (index,)
    info = builder.tensors.get(id(x))
    if info is None or info.dynamic is not None:
        return index
    with torch._C.DisableTorchFunction():
        sizes, taken = tuple(x.shape), [_dims_taken(item) for item in items]
        parts: list[object] = []
        for place, item in enumerate(items):
            after = any(each is Ellipsis for each in items[:place])
            at = len(sizes) - sum(taken[place:]) if after else sum(taken[:place])
            mask = _known_mask(builder, item)
            if mask is None or at < 0 or sizes[at : at + mask.dim()] != tuple(mask.shape):
                parts.append(item)
            else:
                parts += [copied(builder, one) for one in mask.nonzero(as_tuple=True)]
    return index if len(parts) == len(items) and all(map(operator.is_, parts, items)) else tuple(parts)


def _dims_taken(item: object) -> int:
    """How many dims an item of an index is about."""
    if is_a(item, torch.Tensor):
        return item.dim() if item.dtype is torch.bool else 1
    return 0 if item is None or item is Ellipsis else 1


def _known_mask(builder: GraphBuilder, item: object) -> torch.Tensor | None:
    if not is_a(item, torch.Tensor) or item.dtype is not torch.bool or not item.dim():
        return None
    return value_of(builder, item, Cost.KEPT)


def _at_hand(info: TensorInfo) -> bool:
    data = type(info.constant) is Deferred and info.constant.cost > Cost.KEPT
    return info.constant is not None and not data and not info.tensor.requires_grad


def remember(builder: GraphBuilder, info: TensorInfo, value: torch.Tensor | Deferred) -> None:
    """`value` is what `info`'s tensor holds until the program writes to it."""
    info.constant = value
    builder.known.append(info)


class _Call:
    """A call that is made for real when its result is asked for, be its arguments written to by then."""

    def __init__(self, builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs) -> None:
        self.func, self.depth, self.cost = func, 1, Cost.NOTHING
        self.args: list[object] = [conditions.mapped(value, partial(self._held, builder)) for value in args]
        self.kwargs: dict[str, object] = {
            key: conditions.mapped(value, partial(self._held, builder)) for key, value in kwargs.items()
        }
        self.results: list[object] = []

    def _held(self, builder: GraphBuilder, value: object) -> object:
        """What is known of a stand-in, in its place in the arguments; what else is held must not change."""
        if not is_a(value, torch.Tensor):
            if type(value) not in _PLAIN:
                raise _Unknown
            return value
        info = builder.tensors.get(id(value))
        held = None if info is None else info.constant
        if info is not None and type(held) is Deferred and held.depth >= _DEEPEST:
            held = None if held.cost else _value(info)
        if held is None:
            raise _Unknown
        self.cost = max(self.cost, held.cost if type(held) is Deferred else Cost.NOTHING)
        self.depth = max(self.depth, held.depth + 1 if type(held) is Deferred else 1)
        return held

    def result(self) -> object:
        """What the call gives; None where that is not the same each time, or where it raises."""
        if not self.results:
            try:
                with torch._C.DisableTorchFunction(), compat.without_modes(), torch.no_grad(), _SameEachTime():
                    args = [conditions.mapped(value, _known) for value in self.args]
                    kwargs = {key: conditions.mapped(value, _known) for key, value in self.kwargs.items()}
                    self.results.append(self.func(*args, **kwargs))
            except Exception as error:  # the value stays unknown; the operation itself was recorded
                let_pass(error)
                self.results.append(None)
        return self.results[0]


def _known(value: object) -> object:
    if type(value) is not Deferred:
        return value
    known = value.get()
    if known is None:
        raise _Unknown
    return known


class _SameEachTime(compat.DispatchMode):
    """Refuses operators that draw random numbers, that leave memory as it was, and those of libraries."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        name = func._schema.name
        if compat.is_random(func) or func.namespace not in ("aten", "prims") or "empty" in name:
            raise _Unknown
        return func(*args, **kwargs or {})


class _Overwritten:
    """A function that writes to its first argument as one that returns what that holds then.

    Arguments:
        calls: how many calls were recorded before it.
    """

    def __init__(self, func: Function, calls: int) -> None:
        self.func, self.calls, self.__name__ = func, calls, getattr(func, "__name__", "")

    def __call__(self, x: torch.Tensor, *args: object) -> torch.Tensor:
        x = x.clone()
        self.func(x, *args)
        return x


def _after(builder: GraphBuilder, info: TensorInfo, func: Function | None, args: Args) -> Deferred | None:
    """What a tensor that the graph made holds behind a call that writes to it, where that is known."""
    held, tensor = info.constant, info.tensor
    if func is None or held is None or info.source is not None or len(builder.arguments) != len(args):
        return None
    if args[0] is not tensor or info.device.type != "cpu" or not _lies_apart(tensor):
        return None
    origin = held.origin if type(held) is Deferred else None
    if isinstance(origin, _Call) and is_a(origin.func, _Overwritten) and origin.func.calls == builder.calls:
        return None  # the same call, once more with numbers in the places of tensors
    try:
        call = _Call(builder, _Overwritten(func, builder.calls), args, {})
    except _Unknown:
        return None
    if call.cost is Cost.CONDITION and not conditions.is_cheap(func):
        return None
    return Deferred(call.result, (), call.depth, tensor, call.cost, call)


def _lies_apart(tensor: torch.Tensor) -> bool:
    """Whether no two elements of a tensor share their memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1) if size > 1 else 0
    return True


def forget(builder: GraphBuilder, info: TensorInfo, func: Function | None = None, args: Args = ()) -> None:
    """`info`'s tensor is written to, by this call: neither it, unless what is written is, nor any view of it is known
    any more."""
    with torch._C.DisableTorchFunction():
        after = _after(builder, info, func, args)
        storage = compat.storage_address(info.tensor)
        if storage in builder.memories.outside:
            builder.written.add(builder.memories.outside[storage])
        if not builder.known:
            return
        written: Collection[int] = {storage}
        if storage in builder.memories.outside:
            _restart_if_asked(builder, storage)
            written = builder.memories.outside  # two of them may share their memory
        for other in builder.known:
            if compat.storage_address(other.tensor) in written:
                other.constant = None
        info.constant = after
    builder.known[:] = [other for other in builder.known if other.constant is not None]


def _restart_if_asked(builder: GraphBuilder, storage: int) -> None:
    """A tensor that captured code writes to, such as a count of steps, is not known by its values.

    Raises:
        Restart: it was, so far.
    """
    if not builder.asked:
        return
    changing = [
        note
        for info in builder.inputs
        if (note := builder.asked.get(id(info.tensor))) is not None and compat.storage_address(info.tensor) == storage
    ]
    for note in changing:
        note()
    if changing:
        raise Restart


def _value(info: TensorInfo) -> torch.Tensor | None:
    held = info.constant
    if type(held) is not Deferred:
        return held
    value = held.get()
    if value is None and held.cost in (Cost.KEPT, Cost.ARGUMENT):
        held.cost = Cost.CONDITION  # it varies; answers about it may be the same
    else:
        info.constant = value
    return value


def value_of(builder: GraphBuilder, tensor: object, most: Cost = Cost.NOTHING) -> torch.Tensor | None:
    """The known value of a stand-in, or None.

    Arguments:
        most: what may be paid for it where the graph ends without it.
    """
    info = builder.tensors.get(id(tensor))
    if info is None or info.constant is None:
        return None
    if type(info.constant) is Deferred and info.constant.cost > most:
        return None
    with torch._C.DisableTorchFunction():
        return _value(info)
