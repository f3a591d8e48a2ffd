"""Graphs as plain data, and back: what a process that captured nothing runs where compiled code does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import fx

from argand.errors import ArgandError

Encoded = tuple[tuple[Any, ...], ...]
_CALLED = ("call", "count")
"""What a graph's metadata says of how the graph is called within another."""


class NoText(ArgandError):
    """A graph that holds tensors, or modules that are no graphs."""


def encode(module: fx.GraphModule, row: Callable[[Any], int]) -> Encoded:
    """The nodes of a graph of functions, methods, and graphs within it.

    Arguments:
        row: describes an object that a node names, as a number.

    Raises:
        NoText: the graph holds other modules, or tensors.
    """
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    rows = []

    def described(value: Any) -> tuple[Any, ...]:
        names = [field.name for field in fields(value) if field.init] if is_dataclass(value) else []
        if isinstance(value, type) or not names:
            return ("row", row(value))
        given = tuple([getattr(value, name) for name in names])  # of a graph within: how it is called
        return ("object", row(type(value)), pack(given, {}, described))

    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(inner := getattr(module, str(node.target), None), fx.GraphModule):
            called = {name: inner.meta[name] for name in _CALLED if name in inner.meta}
            rows.append((node.op, node.target, encode(inner, row), pack(called, {}, described)))
            continue
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            raise NoText(f"the graph holds {node.target}", remedy="it is captured by each process")
        target = row(node.target) if node.op == "call_function" else node.target
        if node.op == "placeholder" and node.args:
            raise NoText("an argument of the graph has a default", remedy="it is captured by each process")
        args, kwargs = pack(node.args, numbers, described), pack(node.kwargs, numbers, described)
        rows.append((node.op, target, args, kwargs))
    return tuple(rows)


def pack(value: Any, numbers: Mapping[fx.Node, int], leaf: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What a node is given, as plain data; `leaf` packs what is no node, container or plain value."""
    cls = type(value)
    if cls is fx.Node:
        return ("node", numbers[value])
    if cls in _PLAIN:
        return ("plain", value)
    if isinstance(value, dict):
        return ("dict", tuple([(key, pack(item, numbers, leaf)) for key, item in value.items()]) if value else ())
    if cls is tuple or (isinstance(value, (tuple, list)) and not isinstance(value, torch.Size)):
        items = [  # without a call where there is nothing inside
            ("node", numbers[item])
            if type(item) is fx.Node
            else ("plain", item)
            if type(item) in _PLAIN
            else pack(item, numbers, leaf)
            for item in value
        ]
        return ("list" if isinstance(value, list) else "tuple", tuple(items))
    if isinstance(value, slice):
        return ("slice", tuple([pack(part, numbers, leaf) for part in (value.start, value.stop, value.step)]))
    return leaf(value)


_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, type(...)))


def decode(encoded: Encoded, objects: Callable[[int], Any]) -> fx.GraphModule:
    """The graph again.

    Arguments:
        objects: the object of a number.
    """
    graph, root = fx.Graph(), torch.nn.Module()
    nodes: list[fx.Node] = []

    def described(packed: tuple[Any, ...]) -> Any:
        value = objects(packed[1])
        return value(*unpack(packed[2], (), described)) if packed[0] == "object" else value

    for op, target, args, kwargs in encoded:
        if op == "get_attr":
            inner = decode(args, objects)
            inner.meta.update(unpack(kwargs, (), described))
            root.add_module(target, inner)
            nodes.append(graph.create_node(op, target))
            continue
        given, named = unpack(args, nodes, described), unpack(kwargs, nodes, described)
        if op == "output":
            nodes.append(graph.output(*given))
        elif op == "placeholder":
            nodes.append(graph.placeholder(target))
        else:
            nodes.append(graph.create_node(op, objects(target) if op == "call_function" else target, given, named))
    return fx.GraphModule(root, graph)


def unpack(packed: tuple[Any, ...], nodes: Sequence[fx.Node], leaf: Callable[[tuple[Any, ...]], Any]) -> Any:
    """What `pack` packed."""
    kind, held = packed[0], packed[1]
    if kind == "node":
        return nodes[held]
    if kind == "plain":
        return held
    if kind == "dict":
        return {key: unpack(item, nodes, leaf) for key, item in held}
    if kind not in ("list", "tuple", "slice"):
        return leaf(packed)
    items = [unpack(item, nodes, leaf) for item in held]
    return slice(*items) if kind == "slice" else items if kind == "list" else tuple(items)
