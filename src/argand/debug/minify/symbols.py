"""Sizes that vary: which symbols a piece of a graph still has, and how a written file says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from argand.graph.sizes.expr import Expr, Sym, evaluate
from argand.graph.sizes.symbols import SymbolTable


def refresh(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give a graph with symbols those that its own inputs show, with the values that they have there."""
    old = gm.meta.get("symbols")
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    kinds: Mapping[Sym, Any] = {} if old is None else old.kinds
    table = SymbolTable()
    known: dict[str, Any] = {}

    def add(sym: Sym, hint: Any) -> None:
        try:
            kind = kinds.get(sym, "float" if isinstance(hint, float) else "int")
            table.new(sym.name, hint, min=sym.minimum, kind=kind, name=sym.name)
        except ValueError:  # no other value of it is possible
            return
        known[sym.name] = hint

    entries = [pair for node, value in zip(placeholders, inputs) for pair in _entries(node, value)]
    for expr, number in entries:
        if isinstance(expr, Sym) and expr.name not in known and number >= (expr.minimum or 0):
            add(expr, number)
    renamed: dict[Expr, Expr] = {}  # sizes computed from symbols that the piece does not show: symbols of their own
    for expr, number in entries:
        lost = not {atom.name for atom in expr.free if isinstance(atom, Sym)} & known.keys()
        if not isinstance(expr, Sym) and lost and expr not in renamed and number >= 2 and expr.free:
            renamed[expr] = sym = Sym(f"s{100 + len(renamed)}", 2)
            add(sym, number)
    for node, value in zip(placeholders, inputs):
        node.meta = _meta(node.meta, value, known, renamed)
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            node.meta = {key: value for key, value in node.meta.items() if _is_known(value, known)}
    if known:
        gm.meta["symbols"] = table
    else:
        gm.meta.pop("symbols", None)


def _entries(node: fx.Node, value: Any) -> list[tuple[Expr, Any]]:
    """Expressions that a size, a stride or the number that an input is are, and their values."""
    if not isinstance(value, torch.Tensor):
        expr = node.meta.get("expr")
        return [(expr, value)] if isinstance(expr, Expr) else []
    pairs = [*zip(node.meta.get("sizes") or (), value.shape), *zip(node.meta.get("strides") or (), value.stride())]
    return [(expr, number) for expr, number in pairs if isinstance(expr, Expr)]


def _meta(meta: dict[str, Any], value: Any, known: Mapping[str, Any], renamed: Mapping[Expr, Expr]) -> dict[str, Any]:
    """What is said of an input, with constants for what no symbol explains any more."""
    meta_now = dict(meta)
    if not isinstance(value, torch.Tensor):
        meta_now["example_value"] = value
        if isinstance(meta_now.get("expr"), Expr) and not _explains(meta_now["expr"], value, known):
            del meta_now["expr"]
        return meta_now
    for name, numbers in (("sizes", value.shape), ("strides", value.stride())):
        if name in meta_now and meta_now[name] is not None and len(meta_now[name]) == len(numbers):
            said = [renamed.get(entry, entry) if isinstance(entry, Expr) else entry for entry in meta_now[name]]
            meta_now[name] = tuple(
                entry if isinstance(entry, Expr) and _explains(entry, number, known) else number
                for entry, number in zip(said, numbers)
            )
        else:
            meta_now.pop(name, None)
    if "sizes" in meta_now and "strides" not in meta_now:
        meta_now["strides"] = _contiguous(meta_now["sizes"]) if value.is_contiguous() else tuple(value.stride())
    example = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    meta_now["example_value"] = example.requires_grad_(value.requires_grad)
    return meta_now


def _contiguous(sizes: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step = size * step
    return tuple(strides)


def _is_known(value: Any, known: Mapping[str, Any]) -> bool:
    """Whether every symbol in what is said of a node is one that the piece has."""
    if isinstance(value, (tuple, list)):
        return all(_is_known(item, known) for item in value)
    return not isinstance(value, Expr) or {atom.name for atom in value.free if isinstance(atom, Sym)} <= known.keys()


def _explains(expr: Expr, number: Any, known: Mapping[str, Any]) -> bool:
    names = [atom.name for atom in expr.free if isinstance(atom, Sym)]
    return bool(set(names) <= known.keys() and evaluate(expr, {name: known[name] for name in names}) == number)


def description(gm: fx.GraphModule) -> dict[str, Any]:
    """Which sizes and numbers of the inputs vary, as plain data: {"x": {"sizes": ["s0", "4"]}}."""
    if "symbols" not in gm.meta:
        return {}
    described: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        said: dict[str, Any] = {}
        for name in ("sizes", "strides"):
            entries = node.meta.get(name)
            if entries and any(isinstance(entry, Expr) for entry in entries):
                said[name] = [str(entry) for entry in entries]
        if isinstance(node.meta.get("expr"), Expr):
            said["expr"] = str(node.meta["expr"])
        if said:
            described[node.name] = said
    return described


def restore(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give a graph read from a file the symbols that the file describes (`graph_meta["varying"]`)."""
    described = gm.meta.pop("varying", None)
    if not described:
        return
    for node in gm.graph.nodes:
        for name, value in described.get(node.name, {}).items() if node.op == "placeholder" else ():
            node.meta[name] = _parsed(value) if isinstance(value, str) else tuple(map(_parsed, value))
    refresh(gm, inputs)


def _parsed(text: str) -> Any:
    """An expression over sizes from its text."""
    names = {name: Sym(name, 2) for name in re.findall(r"[A-Za-z_]\w*", text)}
    return eval(text, {"__builtins__": {}}, names)
