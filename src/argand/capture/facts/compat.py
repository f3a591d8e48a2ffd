"""Private or version-dependent parts of torch that capture uses; kept together so that a new torch changes one file."""

from __future__ import annotations

import functools
import linecache
import types
import weakref
from typing import Any

import torch
from torch import fx

from argand.capture.facts.handlers import Args, Kwargs
from argand.graph import compat
from argand.graph.nodes.printing import table
from argand.graph.nodes.undone_writes import undoing
from argand.graph.trees import leaves

storage_address = compat.storage_address


class PrintedGraph(fx.Graph):
    """The graph that a backend is given: it prints its table without the package that torch's own asks for."""

    def print_tabular(self) -> None:
        print(table(self))


@functools.lru_cache(maxsize=4096)
def _candidate(target: object) -> str:
    return fx.Graph()._target_to_str(target)


def new_node(graph: fx.Graph, op: str, target: Any, args: Args, kwargs: Kwargs) -> fx.Node:
    """`graph.create_node`, faster, with the name that it gives."""
    if not compat.fast_nodes():
        return graph.create_node(op, target, args, kwargs)
    return compat.new_node(graph, target, args, kwargs, _candidate(target), op)


def op_effects(func: Any) -> tuple[bool, bool]:
    """(writes to an argument, must stay although unused) of a `torch.ops` operator."""
    overloads = [func] if isinstance(func, torch._ops.OpOverload) else [getattr(func, n) for n in func.overloads()]
    mutates = any(o._schema.is_mutable for o in overloads)
    random = any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads)
    namespace = overloads[0].namespace if overloads else ""
    return mutates, mutates or random or namespace not in ("aten", "prims")


class _Source:
    """Lives as long as a graph's Python code: then torch.fx and linecache forget the text, which they never would."""

    __slots__ = ("__weakref__",)


@functools.cache
def _sources() -> dict[str, list[weakref.ref[_Source]]]:
    return {}


def _forget_with(source: _Source, filename: str) -> None:
    """Let the text of `filename` go when `source` goes.

    What does it is C code all through (`dict.pop(filename, reference)`): an interrupt that is due by then, Ctrl-C say,
    would be raised in the first Python code that runs, and Python ignores what is raised there.
    """
    caches = (linecache.cache, getattr(getattr(fx.graph_module, "_loader", None), "eval_cache", {}), _sources())
    _sources()[filename] = [weakref.ref(source, functools.partial(cache.pop, filename)) for cache in caches]


class _Spelled(complex):
    """A complex number whose text gives the number again: `repr` of -0.0 + 0j is that of another, of NaN of none."""

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"


def _spelled(value: object) -> object:
    return _Spelled(value) if type(value) is complex else value


class _LazyForward:
    """Descriptor: compiles the graph's Python code when somebody asks for `forward`."""

    def __get__(self, module: fx.GraphModule | None, owner: type) -> object:
        if module is None:
            return self
        module.recompile()
        return module.forward


class CapturedGraph(fx.GraphModule):
    """A GraphModule whose Python code is generated on first use: backends that read the graph never pay for it."""

    forward = _LazyForward()

    def recompile(self) -> object:
        if "_graph" in self.__dict__ and not self.__dict__.get("_argand_ready"):
            self.__dict__["_argand_ready"] = True  # the call from __init__: leave `forward` lazy
            return None
        for node in self._graph.nodes:
            if not any(type(leaf) is complex for leaf in leaves((node.args, node.kwargs))):
                continue
            node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), _spelled)
        python_code = super().recompile()
        forward = vars(type(self)).get("forward")
        if isinstance(forward, types.FunctionType):
            if self.meta.get("undone"):
                undone = [1 + place for place in self.meta["undone"]]  # behind `self`
                type.__setattr__(type(self), "forward", undoing(forward, undone))
            forward.__dict__["_argand_source"] = source = _Source()
            _forget_with(source, forward.__code__.co_filename)
        return python_code

    @property
    def code(self) -> str:
        if "_code" not in self.__dict__:
            self.recompile()
        return str(super().code)
