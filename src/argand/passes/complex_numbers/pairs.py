"""Rewrites arithmetic on complex tensors as arithmetic on their parts, which loops compute with.

In: a graph with complex tensors. Out: the same values, where products, sums and moves of complex tensors are those of
real ones. A complex tensor that ATen's kernels or the caller need is put together from its parts
(`view_as_complex`), and one that they made is taken apart where it lies (`view_as_real`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import fx

from argand.graph.metadata.builder import Builder
from argand.graph.metadata.specs import SpecTable
from argand.graph.nodes.program import AtenProgram
from argand.passes.complex_numbers.arithmetic import PARTS, Pair, Part, aten
from argand.passes.complex_numbers.rules import (
    COMPUTED,
    FLOATS,
    FROM_REAL,
    INDEXED,
    LINEAR,
    READ,
    VIEWS,
    joined,
)
from argand.passes.decompose import conform, decompose, replace
from argand.passes.layout import with_strides

DEVICES: Final = ("cpu",)
"""Where complex numbers are pairs. Kernels for GPUs find no axis along which memory read in pairs is contiguous."""


def split_complex(program: AtenProgram) -> int:
    """Rewrite operations on complex tensors; returns how many. Those on parts that have decompositions get them."""
    graph = program.graph
    if not any(map(_is_complex, graph.nodes)):
        return 0
    changes = _Translation(graph, program.specs or SpecTable()).run()
    if changes:
        decompose(program)
    return changes


def _is_complex(node: Any) -> bool:
    """Whether a node is a complex tensor on a device that loops run on."""
    if not isinstance(node, fx.Node) or getattr(node.meta.get("val"), "dtype", None) not in PARTS:
        return False
    return node.meta["device"].type in DEVICES


def _tensors(node: fx.Node) -> Iterator[torch.dtype]:
    """The dtypes of the tensors that a node takes."""
    for arg in node.all_input_nodes:
        val = arg.meta.get("val")
        for each in val if isinstance(val, (tuple, list)) else (val,):
            if hasattr(each, "dtype"):
                yield each.dtype


class _Translation:
    """One run: which nodes are pairs, and their parts."""

    def __init__(self, graph: fx.Graph, specs: SpecTable) -> None:
        self.graph = graph
        self.builder = Builder(graph, specs, made_by="split_complex")
        self.pairs: dict[fx.Node, Pair] = {}
        self.computed: set[fx.Node] = set()  # complex results that exist as pairs alone
        self.free: set[fx.Node] = set()  # those that exist as they are, and whose parts cost nothing

    def run(self) -> int:
        nodes = list(self.graph.nodes)
        for node in nodes:
            if node.op == "call_function":
                self._classify(node)
        readers = [node for node in nodes if self._is_read(node)]
        if not self.computed and not readers:
            return 0
        reading = set(readers)
        for node in nodes:
            if node in reading:
                with self.builder.at(node):
                    replace(self.builder, node, READ[node.target](self, node, *node.args, **node.kwargs))
            elif node in self.computed and _is_complex(node):
                self.pair_of(node)
        changes = len(readers)
        for node in reversed(nodes):
            if node in reading or node not in self.computed | self.free | set(self.pairs):
                continue
            if node.users and node in self.computed and _is_complex(node):
                self._put_together(node)
            if not node.users and node.op == "call_function":
                self.graph.erase_node(node)
                changes += 1
        return changes

    # --- what a node becomes

    def _classify(self, node: fx.Node) -> None:
        source = node.args[0] if node.args else None
        if node.target in VIEWS:
            if not self._fits(node):
                return
            if node.target in FROM_REAL:
                self.free.add(node)
            elif source in self.computed:
                self.computed.add(node)
            elif source in self.free:
                self.free.add(node)
        elif node.target in COMPUTED and self._fits(node) and self._covers(node):
            self.computed.add(node)

    @staticmethod
    def _fits(node: fx.Node) -> bool:
        """Whether a node makes complex numbers of those that it takes, of kinds that are computed with."""
        return _is_complex(node) and all(dtype in PARTS or not dtype.is_complex for dtype in _tensors(node))

    @staticmethod
    def _covers(node: fx.Node) -> bool:
        """Whether the rule of a node covers its arguments."""
        target, val = node.target, node.meta["val"]
        dtypes = list(_tensors(node))
        if target in LINEAR and not all(dtype in PARTS or not dtype.is_floating_point for dtype in dtypes):
            return False
        if target in LINEAR and target not in INDEXED and not all(dtype in PARTS for dtype in dtypes):
            return False
        if target is aten.index_put.default and not (len(node.args) > 3 and node.args[3]):
            return False  # of several that are written to one place, one stays whole
        if target is aten.pow.Tensor_Scalar:
            return isinstance(node.args[1], (int, float)) and node.args[1] in (2, 3)
        if target is aten._to_copy.default:
            layout = node.kwargs.get("layout") in (None, torch.strided)
            return layout and node.meta["device"] == node.args[0].meta["device"]
        if target in FLOATS:
            return val.dtype is torch.complex64
        numbers = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, fx.Node)]
        return all(hasattr(arg.meta["val"], "dtype") for arg in numbers)

    def _is_read(self, node: fx.Node) -> bool:
        """Whether a node has a real result that is computed from parts; a view of what lies in memory stays one."""
        if node.op != "call_function" or node.target not in READ:
            return False
        exact = node.meta["val"].dtype is torch.float32 and node.meta["device"].type == "cpu"
        if node.target is aten.abs.default and not exact:
            return False  # gradients ask which of them is a norm that a library computed, to the last bit
        if node.target is aten.view_as_real.default and node.args[0] not in self.computed | self.free:
            return False
        return any(dtype in PARTS for dtype in _tensors(node)) and all(
            dtype in PARTS or not dtype.is_complex for dtype in _tensors(node)
        )

    # --- pairs

    def pair(self, value: Any, dtype: torch.dtype) -> Pair:
        """A complex tensor, a real one or a number, as parts of `dtype`."""
        if isinstance(value, fx.Node):
            if not _is_complex(value):
                return Pair(self._cast(value, dtype), 0.0)
            whole = self.pair_of(value)
            return Pair(self._cast(whole.re, dtype), self._cast(whole.im, dtype))
        number = complex(value)
        return Pair(number.real, number.imag)

    def pair_of(self, node: fx.Node) -> Pair:
        """The parts of a complex node, each a node of its shape."""
        pair = self.pairs.get(node)
        if pair is None:
            with self.builder.within(node):
                pair = self.pairs[node] = self._parts(node)
        return pair

    def _parts(self, node: fx.Node) -> Pair:
        if node not in self.computed and node not in self.free:
            return self._taken_apart(node)
        rule = COMPUTED.get(node.target) or VIEWS[node.target]
        pair = rule(self, node, *node.args, **node.kwargs)
        return Pair(self._whole_size(pair.re, node), self._whole_size(pair.im, node))

    def _taken_apart(self, node: fx.Node) -> Pair:
        """The parts of a tensor that lies in memory."""
        b, place = self.builder, node
        while place.op in ("placeholder", "get_attr") and place.next.op in ("placeholder", "get_attr"):
            place = place.next
        with self.graph.inserting_before(place.next):
            source = b(aten.resolve_conj.default, node) if node.meta["val"].is_conj() else node
            both = b(aten.view_as_real.default, source)
            return Pair(*[b(aten.select.int, both, -1, which) for which in range(2)])

    def _cast(self, part: Part, dtype: torch.dtype) -> Part:
        if not isinstance(part, fx.Node) or part.meta["val"].dtype is dtype:
            return part
        return self.builder(aten._to_copy.default, part, dtype=dtype)

    def _whole_size(self, part: Part, node: fx.Node) -> fx.Node:
        val, dtype = node.meta["val"], PARTS[node.meta["val"].dtype]
        if not isinstance(part, fx.Node):
            return self.builder(aten.full.default, list(val.shape), part, dtype=dtype, device=node.meta["device"])
        part = self._cast(part, dtype)
        assert isinstance(part, fx.Node)
        if part.meta["val"].shape != val.shape:
            return self.builder(aten.expand.default, part, list(val.shape))
        return part

    def _put_together(self, node: fx.Node) -> None:
        """Give those that need a complex tensor one made of its parts."""
        b, val = self.builder, node.meta["val"]
        with b.at(node):
            both = with_strides(b, joined(b, self.pair_of(node)), (*[2 * step for step in val.stride()], 1))
            try:
                whole = b(aten.view_as_complex.default, both)
            except RuntimeError:  # an odd stride of a dimension of size one, or parts apart
                both = b(aten.clone.default, both, memory_format=torch.contiguous_format)
                whole = b(aten.view_as_complex.default, both)
            whole = conform(b, whole, node)
        node.replace_all_uses_with(whole)
