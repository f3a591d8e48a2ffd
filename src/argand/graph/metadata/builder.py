"""Adds ATen calls to a graph, with metadata: what decompositions and rewrites are written against."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from argand.graph import compat
from argand.graph.metadata import metas
from argand.graph.metadata.specs import Spec, SpecTable
from argand.graph.origin import NodeOrigin


class Builder:
    """Calls become nodes at the graph's insertion point: `b(aten.add.Tensor, x, 1)` returns the new node.

    An op with several results returns a tuple of nodes (one `getitem` each), None for results that are not tensors.
    """

    def __init__(self, graph: fx.Graph, table: SpecTable, made_by: str = "") -> None:
        self.graph = graph
        self.table = table
        self.origin = NodeOrigin(made_by=made_by)
        self.made_by = made_by
        self.inherited: dict[str, Any] = {}
        self.orders: list[tuple[Any, Any]] = []  # those of its program, where its user relies on the order of numbers

    def at(self, node: fx.Node) -> Any:
        """Context: new nodes go before `node` and carry its origin."""
        origin = node.meta.get("origin") or NodeOrigin()
        self.origin = NodeOrigin(origin.source_node, origin.user_line, self.made_by, origin.caller)
        self.inherited = {key: node.meta[key] for key in ("backward", "recompute") if key in node.meta}
        return self.graph.inserting_before(node)

    @contextlib.contextmanager
    def within(self, node: fx.Node) -> Iterator[None]:
        """`at`, while nodes are made at another one: afterwards new nodes carry what they carried before."""
        before = self.origin, self.inherited
        with self.at(node):
            yield
        self.origin, self.inherited = before

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        result = self.infer(func, args, kwargs)
        if result.__class__ is Spec:
            return self._node(func, args, kwargs, result.meta, result.device)
        if result.__class__ is not metas.Many:
            return result
        node = self._node(func, args, kwargs, result.metas, result.device)
        return tuple(self._pick(node, index, item) for index, item in enumerate(result.items))

    def effect(self, func: Any, *args: Any) -> None:
        """A call that returns nothing, such as a check of its first argument."""
        self._node(func, args, {}, None, args[0].meta["device"])

    def infer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call would make (see `metas.infer`), from the table when it was asked before."""
        spec_args = tuple(self.spec(arg) for arg in args)
        spec_kwargs = {name: self.spec(value) for name, value in kwargs.items()}
        key = (func, cache_key(spec_args), *spec_kwargs, cache_key(tuple(spec_kwargs.values())))
        results = self.table.results(func, kwargs)
        result = results.get(key)
        if result is None:
            result = results[key] = metas.infer(self.table, func, spec_args, spec_kwargs)
        return result

    def spec(self, value: Any) -> Any:
        """Specs in place of nodes."""
        if isinstance(value, fx.Node):
            return self.table.of_meta(value.meta["val"], value.meta["device"])
        if isinstance(value, list):
            return [self.spec(item) for item in value]
        return tuple(self.spec(item) for item in value) if isinstance(value, tuple) else value

    def _node(self, func: Any, args: Any, kwargs: Any, val: Any, device: torch.device) -> fx.Node:
        node = compat.new_node(self.graph, func, args, kwargs)
        node.meta["val"], node.meta["device"], node.meta["origin"] = val, device, self.origin
        node.meta.update(self.inherited)
        return node

    def _pick(self, node: fx.Node, index: int, item: Any) -> fx.Node | None:
        if item.__class__ is not Spec:
            return None
        return self._node(operator.getitem, (node, index), {}, item.meta, item.device)


def cache_key(tree: Any) -> Any:
    """Hashable form of arguments that tells 1 from 1.0 and from True."""
    if isinstance(tree, (tuple, list)):
        return tuple(cache_key(item) for item in tree)
    return tree if tree.__class__ is Spec else (tree.__class__, tree)
