"""DistributedDataParallel under compiled autograd: which buckets its reducer would send now, and how it is told of
those that a graph has sent.

A reducer counts gradients by hooks of C++ on the nodes of its parameters, and stays what decides when a reduction is
due, which parameters were used, and what `.grad` becomes. Its communication hook, which anybody may set once, is
argand's: where a graph has sent a bucket already, it answers with what arrived, else it sends the bucket as the reducer
itself would. Buckets have the reducer's sizes and are sent in its order either way, so ranks need not agree on whether
a graph or the engine runs: they call the same collectives.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from argand.engine.node_state import DEVICES, NotRecorded
from argand.quick_dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Parameters that are reduced together, by their numbers in the module."""

    parameters: list[int]
    dtype: torch.dtype


class Reducer:
    """What is known of the reducer of one module under DistributedDataParallel.

    Arguments:
        ddp: the module.

    Fields:
        taken: the communication hook is argand's.
        armed: the last forward asked for a reduction that has not begun; None where nobody has seen it.
        calls: backwards since then; `usual`: how many the last reduction took.
        arrived: per bucket, what a graph has received for the backward that runs.
        active: under a `join()` that divides by the number of ranks that go on, a future of it.
    """

    def __init__(self, ddp: Any) -> None:
        self._ddp = weakref.ref(ddp)
        self.taken = _take(ddp, self)
        self.armed: bool | None = None
        self.calls = 0
        self.usual = 0
        self.arrived: dict[int, torch.Tensor] = {}
        self.active: Any = None
        self._layout: tuple[Any, list[Bucket]] | None = None

    def ddp(self) -> Any:
        """The module; None where it is gone."""
        return self._ddp()

    def parameters(self) -> list[torch.Tensor]:
        """Of the module."""
        parameters: list[torch.Tensor] = self.ddp()._module_parameters
        return parameters

    def answer(self, bucket: Any) -> Any:
        """The communication hook: a future of the reduced bucket."""
        ddp = self.ddp()
        buffer, number = bucket.buffer(), bucket.index()
        if bucket.is_last():
            self.armed, self.usual = False, self.calls
        arrived = self.arrived.pop(number, None)
        if arrived is not None:
            if arrived.shape != buffer.shape or arrived.dtype is not buffer.dtype:
                raise RuntimeError("argand: a graph has reduced another bucket than DistributedDataParallel's")
            done: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
            done.set_result(arrived)
            return done
        group = ddp.process_group
        size = group.size() if self.active is None else int(self.active.value()[0])
        buffer.mul_(1.0 / size)
        return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(_first)

    def buckets(self) -> list[Bucket]:
        """The reducer's buckets, in the order in which it sends them."""
        ddp = self.ddp()
        state = (ddp._has_rebuilt_buckets, ddp.process_group.group_name)
        if self._layout is None or self._layout[0] != state:
            parameters = self.parameters()
            numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
            buckets = []
            for one in ddp.reducer._get_zeros_like_grad_buckets():
                members = [numbers[id(parameter)] for parameter in one.parameters()]
                if one.buffer().numel() != sum(parameters[number].numel() for number in members):
                    raise NotRecorded("a bucket of DistributedDataParallel is laid out in another way")
                buckets.append(Bucket(members, one.buffer().dtype))
            self._layout = (state, buckets)
        return self._layout[1]

    def sends_soon(self) -> bool:
        """Whether a communication hook of the program's waits for buckets, as far as can be told."""
        ddp = self.ddp()
        return not self.taken and ddp._has_rebuilt_buckets and ddp.require_forward_param_sync

    def overwrites(self) -> bool:
        """Whether what a bucket holds when it is reduced is of no account: else the reducer looks which parameters
        have got a gradient."""
        ddp = self.ddp()
        return not (ddp.find_unused_parameters or ddp.static_graph)

    def why_not(self) -> str:
        """Why a graph cannot send the buckets now; "" where it can."""
        ddp = self.ddp()
        if not self.taken:
            return "the communication hook is not argand's"
        if not self.armed:
            return "no reduction is due"
        if ddp._join_config.enable or ddp.mixed_precision is not None:
            return "join() or mixed precision is on"
        if not (ddp._has_rebuilt_buckets or (ddp.find_unused_parameters and not ddp.static_graph)):
            return "the buckets are yet to be made in the order in which gradients come"
        if ddp.static_graph and self.usual != 1:
            return "several backwards make one reduction"
        return ""


def _first(done: Any) -> Any:
    return done.value()[0]


def _hook(state: Reducer, bucket: Any) -> Any:
    return state.answer(bucket)


_hook.__annotations__ = {}  # DDP compares them with classes, here they are texts


class _Watched:
    """Stands for a module's reducer, to see when a forward asks for a reduction."""

    def __init__(self, reducer: Any, state: Reducer) -> None:
        self.reducer = reducer
        self.state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reducer, name)

    def prepare_for_forward(self) -> None:
        """A forward begins whose backward is to reduce gradients."""
        self.reducer.prepare_for_forward()
        self.state.active = None

    def _set_forward_pass_work_handle(self, work: Any, all_ranks: bool) -> None:
        """A forward under `join()` counts the ranks that go on."""
        self.reducer._set_forward_pass_work_handle(work, all_ranks)
        self.state.active = None if all_ranks else work.get_future()

    def prepare_for_backward(self, outputs: Any) -> None:
        """A forward has ended, and its backward is to reduce gradients."""
        self.reducer.prepare_for_backward(outputs)
        self.state.armed, self.state.calls = True, 0
        self.state.arrived.clear()


def _take(ddp: Any, state: Reducer) -> bool:
    """Make the communication hook argand's, where nobody has set one and gradients are multiplied, not divided."""
    if ddp._comm_hooks or ddp.mixed_precision is not None or ddp._delay_all_reduce_all_params:
        return False
    if len(ddp.device_ids or ()) > 1 or ddp.device_type not in DEVICES:
        return False
    size = ddp.process_group.size()
    if getattr(ddp, "batched_grad_copy", False) or (ddp.gradient_as_bucket_view and size & (size - 1)):
        return False
    try:
        ddp.register_comm_hook(state, _hook)
    except RuntimeError:  # one of C++
        return False
    finally:
        ddp._comm_hooks.clear()  # what it keeps is pickled and copied with the module
    ddp.reducer = _Watched(ddp.reducer, state)
    return True


# ---------------------------------------------------------------------- which there are


class _Known:
    """The reducers of parameters; None for those that have none."""

    def __init__(self) -> None:
        self.by_parameter = WeakIdKeyDictionary()
        self.reducers: list[Reducer] = []

    def of(self, parameter: torch.Tensor) -> Reducer | None:
        """The reducer whose hook is on a parameter's node."""
        reducer: Reducer | None = self.by_parameter.get(parameter)
        if parameter not in self.by_parameter or (reducer is not None and reducer.ddp() is None):
            self.by_parameter[parameter] = None
            self._search()
            reducer = self.by_parameter[parameter]
        return reducer

    def _search(self) -> None:
        """Nobody tells of modules under DistributedDataParallel that were made before one asks."""
        if not dist.is_available():
            return
        self.reducers = [one for one in self.reducers if one.ddp() is not None]
        known = {id(one.ddp()) for one in self.reducers}
        for ddp in gc.get_objects():
            if issubclass(type(ddp), torch.nn.parallel.DistributedDataParallel) and id(ddp) not in known:
                try:
                    reducer = Reducer(ddp)
                except AttributeError:  # another version's
                    continue
                self.reducers.append(reducer)
                for parameter in reducer.parameters():
                    self.by_parameter[parameter] = reducer

    def count(self) -> None:
        """A backward begins."""
        for one in self.reducers:
            one.calls += bool(one.armed)


known = _Known()


@dataclass(slots=True, eq=False)
class Reduction:
    """The reduction that one backward makes for a module.

    Arguments:
        leaves: per parameter, the node that accumulates its gradient; None where the backward does not come to it.
        old: per parameter, the gradient that it has already.
    """

    reducer: Reducer
    buckets: list[Bucket]
    leaves: list[int | None]
    old: list[torch.Tensor | None] = field(default_factory=list)

    def facts(self) -> tuple[Any, ...]:
        """The part of the key."""
        ddp = self.reducer.ddp()
        group = ddp.process_group
        shapes = [
            (one.shape, one.stride(), one.dtype, None if old is None else (old.shape, old.stride(), old.dtype))
            for one, old in zip(self.reducer.parameters(), self.old)
        ]
        members = [tuple(one.parameters) for one in self.buckets]
        return (group.group_name, group.size(), tuple(shapes), tuple(members), tuple(self.leaves))


def reductions_of(
    reduced: dict[int, Reducer], leaves: dict[int, torch.Tensor], nodes: Sequence[Any]
) -> tuple[list[Reduction], list[Reduction]]:
    """What a backward is to send itself, and what communication hooks of the program's send while it runs.

    Arguments:
        reduced: per node that accumulates a gradient, the reducer whose hook is on it.
        leaves: their leaves.
    """
    reductions: list[Reduction] = []
    others: list[Reduction] = []
    for reducer in {id(one): one for one in reduced.values()}.values():
        if reducer.why_not() and not reducer.sends_soon():
            continue
        places = {id(leaves[at]): at for at, one in reduced.items() if one is reducer}
        parameters, buckets = reducer.parameters(), reducer.buckets()
        members = [places.get(id(parameter)) for parameter in parameters]
        sent = [number for bucket in buckets for number in bucket.parameters]  # not those that are frozen
        if any(members[number] is None for number in sent) and not _is_reached(reducer, nodes):
            continue
        hooked = any(parameters[n]._backward_hooks or parameters[n]._post_accumulate_grad_hooks for n in sent)
        old = [parameter.grad for parameter in parameters]
        odd = any(one is not None and (one.layout is not torch.strided or one.requires_grad) for one in old)
        if reducer.sends_soon():
            others.append(Reduction(reducer, buckets, members, [None] * len(parameters)))
        elif not (hooked or odd):
            reductions.append(Reduction(reducer, buckets, members, old))
    return reductions, others


def _is_reached(reducer: Reducer, nodes: Sequence[Any]) -> bool:
    """Whether the backward comes to all results of the module, so that what it does not come to was not used."""
    ddp = reducer.ddp()
    if not ddp.find_unused_parameters or ddp.static_graph:
        return False
    sinks = [node for node in nodes if isinstance(node, torch._C._FunctionBase) and hasattr(node, "ddp_weakref")]
    return any(node.ddp_weakref() is ddp for node in sinks)
