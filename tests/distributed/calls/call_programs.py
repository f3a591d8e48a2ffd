"""Calls of torch.distributed and of functional collectives in functions of many forms, by eager and by argand.

A case is a call, what is put around it, and a dtype; how much of that is drawn is the same on all ranks. What is
compared is what a program can see: results and their classes, versions, memory that they share, gradients, errors.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import argand
import sweeps
from argand.breaks.kinds import IDS

Call = Callable[[torch.Tensor, Any, Any], Any]
Op = dist.ReduceOp
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.bfloat16,
    torch.complex64,
)


def _all_gather(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]
    dist.all_gather(made, y, group=group)
    return made


def _all_gather_into_tensor(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(dist.get_world_size(group) * y.shape[0], *y.shape[1:])
    dist.all_gather_into_tensor(made, y, group=group)
    return made


def _all_gather_stacked(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(dist.get_world_size(group), *y.shape)
    return made, dist.all_gather_into_tensor(made, y, group)


def _reduce_scatter_tensor(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(y.shape[0] // dist.get_world_size(group), *y.shape[1:])
    dist.reduce_scatter_tensor(made, y, op, group=group)
    return made


def _reduce_scatter(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(y.shape[0] // dist.get_world_size(group), *y.shape[1:])
    dist.reduce_scatter(made, list(y.chunk(dist.get_world_size(group))), op, group=group)
    return made


def _all_to_all_single(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = torch.empty_like(y)
    dist.all_to_all_single(made, y, group=group)
    return made


def _all_to_all_splits(y: torch.Tensor, op: Any, group: Any) -> Any:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size != 2:
        return _all_to_all_single(y, op, group)
    made = y.new_empty((2, 6)[rank], *y.shape[1:])
    dist.all_to_all_single(made, y, [1, 1] if rank == 0 else [3, 3], [1, 3], group)
    return made


def _gather(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = [torch.empty_like(y) for _ in range(dist.get_world_size(group))] if dist.get_rank() == 0 else None
    if dist.get_rank() == 0 or group is None:
        dist.gather(y, made, dst=0, group=group)
    return made


def _scatter(y: torch.Tensor, op: Any, group: Any) -> Any:
    if group is None:
        dist.scatter(y, [y + n for n in range(dist.get_world_size())] if dist.get_rank() == 1 else None, src=1)


def _reduce(y: torch.Tensor, op: Any, group: Any) -> Any:
    return dist.reduce(y, dist.get_rank() if group is not None else 1, op, group=group)


def _broadcast(y: torch.Tensor, op: Any, group: Any) -> Any:
    return dist.broadcast(y, group_src=0, group=group)


def _later(y: torch.Tensor, op: Any, group: Any) -> Any:
    work = dist.all_reduce(y, op, group, async_op=True)
    other = torch.ones(3) * 2
    return work.wait(), other


def _gathered_later(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(dist.get_world_size(group) * y.shape[0], *y.shape[1:])
    rows = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]
    works = [dist.all_gather_into_tensor(made, y, group=group, async_op=True)]
    works.append(dist.all_gather(rows, y, group, True))
    for work in works:
        work.wait(datetime.timedelta(seconds=30))
    return made, rows


def _scattered_later(y: torch.Tensor, op: Any, group: Any) -> Any:
    made = y.new_empty(y.shape[0] // dist.get_world_size(group), *y.shape[1:])
    swapped = torch.empty_like(y)
    first = dist.reduce_scatter_tensor(made, y, op, group, async_op=True)
    second = dist.all_to_all_single(swapped, y, group=group, async_op=True)
    third = dist.broadcast(y.clone(), group_src=0, group=group, async_op=True)  # the others may still read y
    third.wait(), second.wait(), first.wait()
    return made, swapped


def _asked_when_done(y: torch.Tensor, op: Any, group: Any) -> Any:
    work = dist.all_reduce(y, op, group, async_op=True)
    work.wait()
    return work.is_completed(), isinstance(work, dist.Work), work is not None


def _done_elsewhere(y: torch.Tensor, op: Any, group: Any) -> Any:
    """What waits leaves the graph, in the function itself or in what it calls, and is waited for by eager's code."""
    held = {"work": dist.all_reduce(y, op, group, async_op=True)}
    argand.graph_break()
    return held["work"].wait()


class _Holder:
    work: Any = None


def _kept_elsewhere(y: torch.Tensor, op: Any, group: Any) -> Any:
    _Holder.work = dist.all_reduce(y, op, group, async_op=True)
    _Holder.work.wait()
    return _Holder.work.is_completed()


def _to_another(y: torch.Tensor, op: Any, group: Any) -> Any:
    """From one rank to the other, and back in another way."""
    came, rank = torch.empty_like(y), dist.get_rank()
    if group is not None:
        return None
    if rank == 0:
        dist.send(y, 1)
        dist.recv(came, 1)
    else:
        dist.recv(came, 0)
        dist.send(y + 1, 0)
    works = [dist.isend(y * 2, 1 - rank), dist.irecv(y, 1 - rank)]
    for work in works:
        work.wait()
    both = torch.empty_like(y)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, y, 1 - rank), dist.P2POp(dist.irecv, both, 1 - rank)]):
        work.wait()
    return came, both + 1


def _barrier(y: torch.Tensor, op: Any, group: Any) -> Any:
    return dist.barrier(group)


def _coalesced(y: torch.Tensor, op: Any, group: Any) -> Any:
    other = y * 2
    dist.all_reduce_coalesced([y, other], op, group=group)
    return other


def _objects(y: torch.Tensor, op: Any, group: Any) -> Any:
    made: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(made, {"rank": dist.get_rank()}, group=group)
    return made


CALLS: dict[str, Call] = {
    "all_reduce": lambda y, op, group: dist.all_reduce(y, op, group),
    "all_reduce, by name": lambda y, op, group: dist.all_reduce(tensor=y, op=op, group=group, async_op=False),
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor, stacked": _all_gather_stacked,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_single, splits": _all_to_all_splits,
    "all_reduce, async": _later,
    "all_gather, async": _gathered_later,
    "reduce_scatter_tensor, async": _scattered_later,
    "work looked at": _asked_when_done,
    "work across a break": _done_elsewhere,
    "work kept elsewhere": _kept_elsewhere,
    "send and recv": _to_another,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "barrier": _barrier,
    "all_reduce_coalesced": _coalesced,
    "all_gather_object": _objects,
}


FUNCTIONAL: dict[str, Call] = {
    "all_reduce": lambda y, op, group: funcol.all_reduce(y, op, group),
    "all_gather_tensor": lambda y, op, group: funcol.all_gather_tensor(y, 0, group),
    "all_gather_tensor, columns": lambda y, op, group: funcol.all_gather_tensor(y, 1, group),
    "reduce_scatter_tensor": lambda y, op, group: funcol.reduce_scatter_tensor(y, op, 0, group),
    "broadcast": lambda y, op, group: funcol.broadcast(y, 0, group),
    "all_to_all_single": lambda y, op, group: funcol.all_to_all_single(y, None, None, group),
    "all_reduce_coalesced": lambda y, op, group: funcol.all_reduce_coalesced([y, y + y], op, group),
}
"""What these give waits for its data when it is first read, and is of a class that says so."""


# ------------------------------------------------------------------------------------------ what stands around a call

Form = Callable[[Call, torch.Tensor, torch.Tensor, Any, Any], Any]


def fresh(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    y = x + x
    return call(y, op, group), y


def argument(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    call(x, op, group)
    return x + x


def view(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    y = torch.cat([x, x])
    part = y[4:]
    made = call(part, op, group)
    return y, made, part.t(), part + part


def written(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    y = x.clone()
    y[0] = 1
    kept = y.view(-1)
    call(y, op, group)
    y[1] = 0
    return kept, y.sum()


def dropped(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    call(x.clone(), op, group)


def transposed(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    y = x.t().contiguous().t()
    return call(y, op, group), y


def trained(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    """What the backward reads is what arrived after the forward had read it."""
    y = x + x
    z = w * y
    made = call(y, op, group)
    return z, made, z + y


def untracked(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    with torch.no_grad():
        y = w * x
        made = call(y, op, group)
    return y, made, w * y


def differentiated(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    return call(w * x, op, group)


FORMS: tuple[Form, ...] = (fresh, argument, view, written, dropped, transposed, trained, untracked)


def looked_at(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    """What a functional collective gives is asked what it is, in ways that libraries ask."""
    made = call(x, op, group)
    one = made[0] if type(made) is list else made
    waiting = isinstance(one, funcol.AsyncCollectiveTensor)
    whole = one.wait() if isinstance(one, funcol.AsyncCollectiveTensor) else one
    return waiting, type(one).__name__, hasattr(one, "trigger_wait"), whole, whole + 1


def viewed(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    made = call(x, op, group)
    one = made[0] if type(made) is list else made
    parts = one.chunk(2)
    return one.view(-1), one.t(), one[1], parts[0], one.reshape(2, -1), one.t().reshape(-1), one + 1, one.detach()


def across(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    made = call(x * 2, op, group)
    argand.graph_break()
    one = made[0] if type(made) is list else made
    return one.sum(), one * 2, one


def held(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    made = call(x + x, op, group)
    one = made[0] if type(made) is list else made
    before, same = one.completed, one.wait() is one.elem
    return before, same, one * 2, one.completed, one.view(-1).completed


def in_place(call: Call, x: torch.Tensor, w: torch.Tensor, op: Any, group: Any) -> Any:
    made = call(x, op, group)
    one = made[0] if type(made) is list else made
    same = one.add_(1)
    return one, same is one, one.sum()


# ------------------------------------------------------------------------------------------ cases


def cases() -> Iterator[tuple[str, Form, Call, str, torch.dtype, bool]]:
    """Every call in every form, with operations and dtypes dealt out among them; functional ones in theirs."""
    deal = random.Random(7)
    for (name, call), form in itertools.product(CALLS.items(), FORMS):
        op = deal.choice(OPS[:5])
        yield f"{name} {form.__name__}", form, call, op, DTYPES[deal.randrange(2)], deal.random() < 0.3
    for op, dtype in itertools.product(OPS, DTYPES):
        name = ("all_reduce", "reduce_scatter_tensor", "all_reduce", "reduce")[deal.randrange(4)]
        yield f"{name} {op} {dtype}", fresh, CALLS[name], op, dtype, False
    forms = (fresh, dropped, looked_at, viewed, across, held, in_place, differentiated)
    for (name, call), form in itertools.product(FUNCTIONAL.items(), forms):
        yield f"functional {name} {form.__name__}", form, call, "SUM", DTYPES[deal.randrange(2)], deal.random() < 0.3


def seen(value: Any) -> Any:
    """What a program can see of a value, in plain values that compare."""
    if isinstance(value, torch.Tensor):
        held = value.trigger_wait() if isinstance(value, funcol.AsyncCollectiveTensor) else value
        numbers = held.detach().to(torch.complex128 if held.is_complex() else torch.float64).flatten().tolist()
        facts = (value.dtype, tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf)
        return type(value).__name__, *map(str, facts), [complex(n) for n in numbers]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *map(seen, value)
    return repr(value)


def memory(values: Any, known: list[int]) -> list[int]:
    """Which tensors begin at one place in memory, as numbers in the order in which places are met."""
    if isinstance(values, (list, tuple)):
        return [number for value in values for number in memory(value, known)]
    if not isinstance(values, torch.Tensor) or isinstance(values, funcol.AsyncCollectiveTensor):
        return []
    place = values.data_ptr()
    if place not in known:
        known.append(place)
    return [known.index(place)]


def difference(found: Any, expected: Any) -> str:
    """The first part in which two outcomes differ."""
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)) and len(found) == len(expected):
        return next(difference(a, b) for a, b in zip(found, expected) if a != b)
    return f"{found}, not {expected}"


def outcome(program: Callable[..., Any], rank: int, dtype: torch.dtype) -> Any:
    numbers = torch.randint(0, 3, (4, 6), generator=torch.Generator().manual_seed(rank))
    x, w = numbers.to(dtype), torch.ones(4, 6)
    w = w.to(dtype).requires_grad_() if dtype.is_floating_point or dtype.is_complex else w.to(dtype)
    try:
        made = program(x, w)
    except Exception as error:
        return "raises", type(error).__name__
    parts = [each for each in made if isinstance(each, torch.Tensor)] if isinstance(made, tuple) else [made]
    found = [seen(made), seen(x), x._version, memory((made, x), [])]
    for part in parts:
        if isinstance(part, torch.Tensor) and part.requires_grad:
            try:
                (gradient,) = torch.autograd.grad(part.sum().abs(), w, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                found.append(type(error).__name__)
            else:
                found.append(seen(gradient)[:2] + (gradient.tolist() if gradient is not None else None,))  # noqa: RUF005
    return found


def calls(rank: int) -> dict[str, Any]:
    """Where compiled code shows something else than eager, and how many cases there were."""
    torch.set_warn_always(False)
    half = [dist.new_group([0]), dist.new_group([1])][rank]
    wrong, count = {}, 0
    backends = itertools.cycle(("eager", "aot_eager", "eager", "eager", "native", "aot_eager"))
    for number, (name, form, call, op, dtype, alone) in enumerate(cases()):
        backend = next(backends)
        if not sweeps.WHOLE and (number // len(FORMS) + number) % 3:  # every third form of a call
            continue
        group, how = half if alone else None, getattr(Op, op)
        if name.startswith("functional"):
            group, how = group or dist.group.WORLD, op.lower()

        def program(x: torch.Tensor, w: torch.Tensor) -> Any:
            return form(call, x, w, how, group)  # noqa: B023

        argand.reset()
        expected = outcome(program, rank, dtype)
        compiled = argand.compile(program, backend=backend, dynamic=count % 4 == 3 or None)
        found = outcome(compiled, rank, dtype)
        count += 1
        if found != expected:
            wrong[f"{name} {dtype} {backend} alone={alone}"] = difference(found, expected)
    return {"wrong": wrong, "count": count}


def breaks(rank: int) -> dict[str, list[str]]:
    """Ids of the breaks of each call, in its plainest form."""
    found = {}
    for name, call in (*CALLS.items(), *((f"functional {name}", call) for name, call in FUNCTIONAL.items())):
        functional = name.startswith("functional")
        group, op = (dist.group.WORLD, "sum") if functional else (None, Op.SUM)

        def program(x: torch.Tensor) -> Any:
            return call(x * 2, op, group)  # noqa: B023

        argand.reset()
        try:
            program(torch.ones(4, 6))
        except RuntimeError:
            continue  # not with gloo
        found[name] = [IDS[reason.kind] for reason in argand.explain(program)(torch.ones(4, 6)).break_reasons]
    return found
