"""Runs small functions through the native backend and compares everything with eager."""

import torch
from torch import fx
from torch.utils import _pytree as pytree

from argand import events
from argand.backends.native import native


def as_module(fn, count):
    """A graph module of one node that calls `fn`: any Python goes, the autograd stage sees what it calls."""
    graph = fx.Graph()
    args = tuple(graph.placeholder(f"arg{n}") for n in range(count))

    def call_it(*values):
        return fn(*values)

    graph.output(graph.call_function(call_it, args))
    return fx.GraphModule(torch.nn.Module(), graph)


def compiled(fn, args, **options):
    """`fn` through the native backend."""
    module = fn if isinstance(fn, fx.GraphModule) else as_module(fn, len(args))
    with torch.no_grad():
        return native(module, list(args), **options)


def clone_args(args):
    """Deep copies that keep strides, storage offsets and aliasing between arguments."""
    storages = {}

    def copy(value):
        if not isinstance(value, torch.Tensor):
            return value
        key = value.untyped_storage()._cdata
        if key not in storages:
            storages[key] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype)
        return made.set_(storages[key], value.storage_offset(), value.shape, value.stride())

    return [copy(value) for value in args]


def check(fn, *args, rtol=None, atol=None, strides=True, calls=2):
    """Outputs, strides, dtypes, aliasing and mutated inputs equal eager's; returns the compiled callable."""
    call = compiled(fn, clone_args(args))
    for _ in range(calls):
        mine, theirs = clone_args(args), clone_args(args)
        with torch.no_grad():
            want = fn(*theirs)
            got = call(*mine)
        same(got, want, rtol, atol, strides)
        for one, two in zip(mine, theirs, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, two, rtol=rtol, atol=atol, equal_nan=True)
        assert aliasing(got, mine) == aliasing(want, theirs)
    return call


def same(got, want, rtol=None, atol=None, strides=True):
    mine, tree = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(want)
    assert tree == wanted
    for one, two in zip(mine, theirs, strict=True):
        if not isinstance(two, torch.Tensor):
            assert one == two
            continue
        torch.testing.assert_close(one, two, rtol=rtol, atol=atol, equal_nan=True)
        if strides and two.numel():
            kept = [(a, b) for a, b, n in zip(one.stride(), two.stride(), two.shape) if n != 1]
            assert all(a == b for a, b in kept), f"strides {one.stride()}, eager {two.stride()}"


def aliasing(outputs, inputs):
    """Which outputs share memory with which inputs and outputs."""
    leaves = [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor)]
    known = [x for x in inputs if isinstance(x, torch.Tensor)]
    everything = [*known, *leaves]
    keys = [x.untyped_storage().data_ptr() if x.numel() else None for x in everything]
    return [
        (a, b)
        for a in range(len(keys))
        for b in range(a)
        if keys[a] is not None and keys[a] == keys[b] and a >= len(known)
    ]


class Recorded:
    """Events of one kind that were emitted inside a `with` block."""

    def __init__(self, name):
        self.name = name
        self.events = []

    def __enter__(self):
        self._stop = events.bus.subscribe(lambda e: self.events.append(e) if e.name == self.name else None)
        return self

    def __exit__(self, *exc):
        self._stop()
