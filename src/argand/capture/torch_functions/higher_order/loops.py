"""What nodes of torch's control flow call when a graph runs."""

from __future__ import annotations

import torch
from torch import fx

from argand.capture.torch_functions.hops import being_traced


def cond(yes: fx.GraphModule, no: fx.GraphModule, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch.cond: the graph of the branch that the first tensor picks."""
    branch = yes if bool(flat[0]) else no
    return tuple(branch.forward(*[flat[i] for i in branch.meta["call"]]))


def while_loop(condition: fx.GraphModule, body: fx.GraphModule, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch.while_loop: the first tensors are carried, the others are what the graphs read."""
    count = body.meta["count"]
    carried, rest = flat[:count], flat[count:]
    asked = [rest[i] for i in condition.meta["call"]]
    given = [rest[i] for i in body.meta["call"]]
    while bool(condition.forward(*carried, *asked)[0]):
        carried = tuple(body.forward(*carried, *given))
    return tuple(t.clone() if t is start else t for t, start in zip(carried, flat))


def scan(body: fx.GraphModule, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Steps of a graph over rows: the first tensors are carried, the next have the rows, the others are what it reads.

    On stand-ins two steps show what all give.
    """
    if being_traced():
        raise RuntimeError("a scan over rows whose number varies runs eagerly")
    carries, ends = body.meta["count"]
    carried, rows, rest = flat[:carries], flat[carries:ends], [flat[ends + i] for i in body.meta["call"]]
    count = rows[0].shape[0]
    steps = min(count, 2) if rows[0].is_meta else count
    outs = []
    for step in range(steps):
        results = body.forward(*carried, *[each[step] for each in rows], *rest)
        carried = results[:carries]
        outs.append(results[carries:])
    columns = [torch.stack(column) for column in zip(*outs)]
    if steps < count:
        columns = [torch.cat([column, column.new_empty(count - steps, *column.shape[1:])]) for column in columns]
    return (*[t.clone() if any(t is each for each in flat) else t for t in carried], *columns)
