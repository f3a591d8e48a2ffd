"""Shared by the tests that compare a compiled function with eager."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

import argand
from argand import events


@contextmanager
def collected(*names: str) -> Iterator[list[events.Event]]:
    """The events of these names (all when none is given) emitted inside."""
    seen: list[events.Event] = []
    remove = events.bus.subscribe(lambda e: seen.append(e) if not names or e.name in names else None)
    try:
        yield seen
    finally:
        remove()


def as_torchs(pack: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A hook on saved tensors that is taken for one of torch's, which see what compiled code saves, not what eager does."""
    pack.__module__ = "torch.autograd.graph"
    return pack


@contextmanager
def texts_of(*names: str) -> Iterator[list[str]]:
    """The texts of the events of these names emitted inside; nothing else is asked for."""
    texts: list[str] = []
    remove = events.bus.subscribe(lambda event: texts.append(event.text()), names)
    try:
        yield texts
    finally:
        remove()


_INTERNAL = re.compile(
    r"___|__resume_at|__compiled_fn|\b_C\.|\b[LGC]\['|cell_contents|\bstand-?in|\bshadow\b|dict_valueiterator|NoneType"
)


def internal_names(text: str) -> list[str]:
    """Names in a message that nobody wrote in their program: of argand's own functions, variables and objects."""
    return _INTERNAL.findall(text)


class CountingBackend:
    """The "eager" backend, keeping the graphs that reached it."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward

    @property
    def ops(self) -> int:
        return sum(n.op.startswith("call") for gm in self.graphs for n in gm.graph.nodes)


def assert_same(want: Any, got: Any, *, exact: bool = False, strides: bool = True) -> None:
    """Equal structure, types, values, dtypes, shapes and (for tensors) strides."""
    want_leaves, want_spec = pytree.tree_flatten(want)
    got_leaves, got_spec = pytree.tree_flatten(got)
    assert want_spec == got_spec, f"{got_spec} is not {want_spec}"
    for a, b in zip(want_leaves, got_leaves):
        assert type(a) is type(b), f"{type(b)} is not {type(a)}"
        if not isinstance(a, torch.Tensor):
            assert a == b or (a != a and b != b), f"{b!r} is not {a!r}"
            continue
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device, (a.dtype, b.dtype, a.shape, b.shape)
        assert a.requires_grad == b.requires_grad
        if strides and a.numel():
            assert a.stride() == b.stride(), f"strides {b.stride()} are not {a.stride()}"
        if exact:
            assert torch.equal(a, b) or torch.equal(torch.isnan(a), torch.isnan(b))
        else:
            torch.testing.assert_close(b, a, equal_nan=True)


def check(fn: Callable[..., Any], *args: Any, backend: Any = "eager", fullgraph: bool = False, **kwargs: Any) -> Any:
    """Run `fn` eagerly and compiled on equal inputs; results, exceptions and mutated inputs must be equal."""
    eager_args, eager_kwargs = copy.deepcopy((args, kwargs))
    compiled_args, compiled_kwargs = copy.deepcopy((args, kwargs))
    torch.manual_seed(0)
    want = _outcome(fn, eager_args, eager_kwargs)
    torch.manual_seed(0)
    got = _outcome(argand.compile(fn, backend=backend, fullgraph=fullgraph), compiled_args, compiled_kwargs)
    if isinstance(want, Exception):
        assert type(got) is type(want), f"{got!r} is not {want!r}"
    else:
        if isinstance(got, Exception):
            raise got
        assert_same(want, got)
    assert_same((eager_args, eager_kwargs), (compiled_args, compiled_kwargs))
    return got


def _outcome(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        return error


def try_seeds(disagreement: Callable[[int], str]) -> None:
    """Print how random programs differ from eager's: `PYTHONPATH=tests python FILE FIRST LAST`."""
    for seed in range(*map(int, sys.argv[1:3])):
        argand.reset()
        if problem := disagreement(seed):
            print(problem, flush=True)
