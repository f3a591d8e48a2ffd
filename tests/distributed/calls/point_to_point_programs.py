"""Messages between two ranks in captured code: every form beside eager, in a ring of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import argand
from distributed.calls.collective_programs import backends
from distributed.ddp_programs import difference

Program = Callable[[torch.Tensor], Any]


def _next() -> int:
    return (dist.get_rank() + 1) % dist.get_world_size()


def _previous() -> int:
    return (dist.get_rank() - 1) % dist.get_world_size()


def blocking(x: torch.Tensor) -> Any:
    """Ranks take turns: those of even numbers send first."""
    y, got = x.sin() * 2, torch.empty_like(x)
    if dist.get_rank() % 2 == 0:
        dist.send(y, _next())
        dist.recv(got, _previous())
    else:
        dist.recv(got, _previous())
        dist.send(y, _next())
    return got + y.cos(), y


def works(x: torch.Tensor) -> Any:
    y, got = x.exp(), torch.zeros_like(x)
    sent = dist.isend(y, _next())
    received = dist.irecv(got, _previous())
    z = x.tanh() * 3  # computed meanwhile
    received.wait()
    sent.wait()
    return got * z, got


def batched(x: torch.Tensor) -> Any:
    y, got = x * x + 1, torch.empty_like(x)
    operations = [dist.P2POp(dist.isend, y, _next()), dist.P2POp(dist.irecv, got, _previous())]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return got - x, y


def any_source(x: torch.Tensor) -> Any:
    got = torch.empty_like(x)
    if dist.get_rank() == 0:
        total = x * 0
        for source in range(1, dist.get_world_size()):
            dist.recv(got, source)
            total = total + got
        return total, x
    dist.send((x + dist.get_rank()).contiguous(), 0)
    return x, x * 2


def twice_in_order(x: torch.Tensor) -> Any:
    """What is sent is written to after it has left; two messages of one size keep their order."""
    buffer, first, second = x.clone(), torch.empty_like(x), torch.empty_like(x)
    works = [dist.irecv(first, _previous()), dist.irecv(second, _previous())]
    dist.isend(buffer, _next()).wait()
    buffer.mul_(10)
    dist.isend(buffer, _next()).wait()
    for work in works:
        work.wait()
    return first + 1, second - first, buffer


def with_collectives(x: torch.Tensor) -> Any:
    total, got = x.clone(), torch.empty_like(x)
    dist.all_reduce(total)
    sent = dist.isend(total + dist.get_rank(), _next())
    dist.recv(got, _previous())
    sent.wait()
    dist.all_reduce(got)
    return got.sqrt(), total


def trained(x: torch.Tensor) -> Any:
    """A gradient through what is computed of a message, and of what is sent."""
    got = torch.empty(x.shape)
    sent = dist.isend(x.detach() * 2, _next())
    dist.recv(got, _previous())
    sent.wait()
    return ((x * got).tanh().sum(),)


PROGRAMS: list[Program] = [blocking, works, batched, any_source, twice_in_order, with_collectives, trained]


def compare(rank: int) -> dict[str, Any]:
    """Per program and backend the largest difference to eager, over three calls."""
    found: dict[str, Any] = {}
    for number, program in enumerate(PROGRAMS):
        for backend in backends(number):
            argand.reset()
            compiled = argand.compile(program, backend=backend)
            errors = []
            for step in range(3):
                x = torch.rand(5, 7, generator=torch.Generator().manual_seed(10 * rank + step)) + 0.5
                outcomes = []
                for call in (program, compiled):
                    given = x.clone().requires_grad_(program is trained)
                    results = list(call(given))
                    if program is trained:
                        results[0].backward()
                        results.append(given.grad)
                    outcomes.append(results)
                errors.append(difference(outcomes[1], outcomes[0]))
            found[f"{program.__name__} {backend}"] = max(errors)
    return found
