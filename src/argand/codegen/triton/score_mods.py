"""Functions of a single score as Triton functions, from the loops that compute them for a whole matrix of scores.

In: a loop nest over (batch, head, query, key) that reads the matrix, and maybe one of gradients, at its own point, and
other buffers anywhere. Out: `@triton.jit` functions of blocks of scores, which a kernel of attention calls.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from argand.codegen.triton.functions import expression
from argand.codegen.triton.indices import index_text
from argand.codegen.triton.statements import conversion
from argand.codegen.triton.types import constant, value_type
from argand.graph.sizes.expr import ONE, ZERO, Expr, Simplifier, Var, substitute, sum_of
from argand.ir.loops import LoopNode, Program, TensorRef, Value
from argand.quick_dataclasses import dataclass

PLACES = ("b", "h", "m", "n")
_INT32 = 1 << 31


class NotPrintable(Exception):
    """A function of scores that needs more than arithmetic at one point; says why."""


@dataclass(frozen=True, slots=True)
class Mod:
    """A function as text.

    Arguments:
        text: a `@triton.jit` function of its blocks of values, then b, h, m, n, then pointers.
        known: what it returns everywhere, where that depends on nothing; else None.
        checks: it has assertions on positions.
        passes: it returns the score as it is.
    """

    text: str
    known: float | int | bool | None
    checks: bool
    passes: bool


def print_mod(name: str, program: Program, blocks: Mapping[str, str], pointers: Mapping[str, str]) -> Mod:
    """The function that a loop program computes.

    Arguments:
        name: of the function.
        program: one loop nest with one result.
        blocks: buffers that are read at the point itself -> the argument that is such a block.
        pointers: the other buffers -> the argument that points to them.

    Raises:
        NotPrintable: it is something else.
    """
    result = program.outputs[0]
    if not program.nodes and isinstance(result, TensorRef) and result.buffer in blocks:
        arguments = ", ".join([*blocks.values(), *PLACES, *pointers.values()])
        returned = blocks[result.buffer]
        return Mod(f"@triton.jit\ndef {name}({arguments}):\n    return {returned}", None, False, returned == "score")
    if len(program.nodes) != 1 or not isinstance(program.nodes[0], LoopNode) or program.constants:
        raise NotPrintable("it takes more than one loop nest over the scores")
    return _Printer(program, program.nodes[0], blocks, pointers).run(name)


class _Printer:
    def __init__(
        self, program: Program, node: LoopNode, blocks: Mapping[str, str], pointers: Mapping[str, str]
    ) -> None:
        body = node.body
        result = program.outputs[0]
        if body.reduction_vars or not isinstance(result, TensorRef) or len(result.size) != len(PLACES):
            raise NotPrintable("it reduces")
        self.program, self.body, self.blocks, self.pointers = program, body, blocks, pointers
        self.ranges: dict[Var, Expr] = {Var(place): size for place, size in zip(PLACES, result.size)}
        self.places: list[Expr] = [ZERO if size == ONE else Var(place) for place, size in zip(PLACES, result.size)]
        loops = [(var, size) for var, size in zip(body.vars, body.sizes) if size != ONE]
        moving = [place for place in self.places if place != ZERO]
        if [size for _, size in loops] != [size for size in result.size if size != ONE]:
            raise NotPrintable("its loops are not those over the scores")
        self.renamed: dict[Var, Expr] = dict.fromkeys(body.vars, ZERO)
        self.renamed.update({var: place for (var, _), place in zip(loops, moving)})
        self.simplifier = Simplifier(self.ranges)
        self.lines: list[str] = []
        self.values: dict[int, str] = {}
        self.numbers: dict[int, float | int | bool] = {}
        self.result: Value | None = None
        self.checks = False

    def run(self, name: str) -> Mod:
        for value in self.body.statements:
            self._statement(value)
        if self.result is None:
            raise NotPrintable("it stores nothing")
        returned = self.values[self.result.id]
        arguments = [*self.blocks.values(), *PLACES, *self.pointers.values()]
        lines = [*self.lines, f"return {returned}"]
        text = "\n    ".join((f"@triton.jit\ndef {name}({', '.join(arguments)}):", *lines))
        known = self.result.args[0] if self.result.op == "constant" else None
        return Mod(text, known, self.checks, returned == "score")

    def _statement(self, value: Value) -> None:
        op = value.op
        if op == "store":
            self._store(value)
        elif op == "load":
            self._load(value)
        elif op == "constant":
            self._constant(value, value.args[0])
        elif op == "index_expr":
            self._define(value, conversion(f"({self._index(value.args[0])})", torch.int32, value.dtype))
        elif op == "indirect":
            self._check(value)
        elif op in ("masked", "reduction"):
            raise NotPrintable(f"it has a {op} statement")
        else:
            self._pointwise(value)

    def _constant(self, value: Value, known: float | int | bool) -> None:
        self.numbers[value.id] = known
        self.values[value.id] = constant(known, value.dtype)

    def _define(self, value: Value, text: str) -> None:
        name = self.values[value.id] = f"tmp{value.id}"
        self.lines.append(f"{name} = {text}")

    def _pointwise(self, value: Value) -> None:
        operands = [arg for arg in value.args if isinstance(arg, Value)]
        texts = [self.values[operand.id] for operand in operands]
        known = self.numbers.get(operands[-1].id) if operands else None
        if value.op == "to_dtype" and known is not None and value.dtype.is_floating_point:
            self._constant(value, float(known))
            return
        if value.op == "truediv" and value.dtype is torch.float32 and known:  # as eager's kernels for GPUs divide
            text = f"({texts[0]} * {constant(float(1 / torch.tensor(known, dtype=torch.float32)), value.dtype)})"
        elif value.op == "to_dtype":
            text = conversion(texts[0], operands[0].dtype, value.dtype)
        elif value.op == "bitcast":
            text = f"{texts[0]}.to({value_type(value.dtype)}, bitcast=True)"
        else:
            text = expression(value.op, operands[-1].dtype, texts)
        self._define(value, text)

    def _index(self, expr: Expr) -> str:
        """An index in terms of the places, which 32 bits hold."""
        position = self.simplifier.simplify(substitute(expr, self.renamed))
        low, high = self.simplifier.bounds(position)
        if low is None or high is None or max(-low, high) >= _INT32:
            raise NotPrintable("its positions need 64 bits")
        return index_text(position)

    def _load(self, value: Value) -> None:
        name, index = value.args
        if name in self.blocks:
            self._same_point(name, index)
            self.values[value.id] = self.blocks[name]
            return
        if name not in self.pointers:
            raise NotPrintable("it takes more than one loop nest over the scores")
        text = f"tl.load({self.pointers[name]} + ({self._index(index)}))"
        self._define(value, text + (".to(tl.int1)" if value.dtype is torch.bool else ""))

    def _same_point(self, name: str, index: Expr) -> None:
        stride = self.program.buffers[name].stride
        own = sum_of([place * step for place, step in zip(self.places, stride)])
        distance = self.simplifier.simplify(substitute(index, self.renamed) - own)
        if distance != ZERO:
            raise NotPrintable("it reads scores of other points")

    def _store(self, value: Value) -> None:
        name, index, source, mode = value.args
        if mode or self.result is not None:
            raise NotPrintable("it stores more than one value")
        self._same_point(name, index)
        self.result = source

    def _check(self, value: Value) -> None:
        """A position that is read: out of bounds, it stops the kernel, as in eager."""
        source, size, wrap = value.args
        have, limit, name = self.values[source.id], self._index(size), f"i{value.id}"
        wrapped = f"tl.where({have} < 0, {have} + {limit}, {have})" if wrap else have
        self.lines.append(f"{name} = ({wrapped}).to(tl.int32)")
        self.lines.append(f"tl.device_assert(({wrapped} >= 0) & ({wrapped} < {limit}), 'index out of range in self')")
        self.checks = True
        self.values[value.id] = name
        self.ranges[Var(name)] = size
