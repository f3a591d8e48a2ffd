"""Prints the statements of one stage: straight-line Triton over blocks.

In: a stage, its axes. Out: lines before, inside and after the stage's loop. Value 3 of stage 1 is `tmp1_3`. A value
is a block with the dimensions of the axes that it depends on, of extent 1 along the others: Triton spreads it where
it meets a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch

from argand.codegen.analysis import StageFacts, analyse, is_half
from argand.codegen.triton.axes import StageAxes, mapped, simplifier
from argand.codegen.triton.functions import expression
from argand.codegen.triton.indices import index_text
from argand.codegen.triton.rounding import is_coarse, users_of
from argand.codegen.triton.types import PositionType, constant, value_type
from argand.errors import InternalError
from argand.graph.sizes.expr import Expr, Simplifier, Var, substitute
from argand.ir.kernel import KernelPlan
from argand.ir.loops import LoopBlock, Origin, Value, identity
from argand.quick_dataclasses import dataclass

Names = frozenset[str]
_NONE: Names = frozenset()
_COMBINE = {"max": ("nan_maximum", "int_maximum"), "min": ("nan_minimum", "int_minimum")}
_SCANS = {"sum": "add", "prod": "product"}
_POSITIONS = {"argmax": "first_maximum", "argmin": "first_minimum"}


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as text.

    Arguments:
        text: a name, or an expression that may stand anywhere.
        axes: names of the axes that it has an extent along.
    """

    text: str
    axes: Names


@dataclass(slots=True)
class Memory:
    """What all stages of a kernel know of its buffers.

    Arguments:
        pointers: the names of pointers by buffer; row buffers are there when they need memory.
        registers: values of the buffers that are one value per outer point.
        held: blocks that were loaded from or stored at a place, by (buffer, index, length of the row).
        stored, loaded: buffers that earlier stages wrote, or read, in memory.
        wanted: row buffers of which something must be read from memory.
        waits: stages that begin with a barrier.
    """

    pointers: dict[str, str]
    registers: dict[str, Operand] = field(default_factory=dict)
    held: dict[tuple[str, Expr, Expr | None], Operand] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    waits: set[int] = field(default_factory=set)


class StagePrinter:
    """Prints one stage.

    Arguments:
        plan: its kernel.
        number: which stage it is.
        axes: how its loops are laid out.
        memory: of the kernel.
        dims: the names of the block's constants by axis, outermost first: {"x": "XBLOCK", "r": "RBLOCK0"}.
        position: the type of positions.
    """

    def __init__(
        self,
        plan: KernelPlan,
        number: int,
        axes: StageAxes,
        memory: Memory,
        dims: dict[str, str],
        position: PositionType,
    ) -> None:
        self.plan, self.number, self.axes, self.memory, self.dims = plan, number, axes, memory, dims
        self.position = position
        self.body = axes.stage.body
        self.users = users_of(self.body)
        self.facts: StageFacts = analyse(self.body, plan.registers, [var for var, _ in plan.outer])
        self.simplify: Simplifier = simplifier(axes)
        self.row = axes.row
        self.before: list[str] = []
        self.inside: list[str] = []
        self.after: list[str] = []
        self.checks = False
        self._values: dict[int, Operand] = {}
        self._indirect: dict[Var, tuple[Var, Operand]] = {}
        self._masks: list[Operand] = []
        self._origin: dict[int, Origin | None] = {}
        self._local_stores: set[str] = set()
        self._local_loads: set[str] = set()

    def run(self) -> None:
        """Fill `before`, `inside` and `after`."""
        for value in self.body.statements:
            self._statement(value)
        self.memory.stored |= self._local_stores
        self.memory.loaded |= self._local_loads

    # --- names and places

    def shape(self, axes: Names) -> str:
        """The extents of a block along `axes`."""
        return "[" + ", ".join(dim if name in axes else "1" for name, dim in self.dims.items()) + "]"

    def spread(self, operand: Operand, axes: Names) -> str:
        """`operand` with the dimensions of `axes` too."""
        if axes <= operand.axes:
            return operand.text
        return f"tl.broadcast_to({operand.text}, {self.shape(axes | operand.axes)})"

    def mask(self, axes: Names) -> list[str]:
        """The conditions under which positions along `axes` exist."""
        conditions = []
        for axis in self.axes.axes:
            if axis.name in axes and not axis.exact:
                conditions.append("rmask" + str(self.number) if axis.name == "r" else f"{axis.name}mask")
        return conditions

    def lines_for(self, axes: Names, value: Value) -> list[str]:
        """Where a statement of a value with `axes` belongs."""
        if self.row is None:
            return self.before
        if value in self.facts.after:
            return self.after
        if "r" in axes:
            return self.inside
        return self.after if value.op == "store" else self.before

    def emit(self, lines: list[str], origin: Origin | None, text: str) -> None:
        """One line, with a comment before it when the origin changes."""
        if origin is not None and origin != self._origin.get(id(lines)):
            self._origin[id(lines)] = origin
            lines.append("# " + origin.comment)
        lines.append(text)

    def index(self, expr: Expr) -> tuple[Expr, Names]:
        """An index expression in terms of the axes, and the axes that it depends on."""
        axes: set[str] = set()
        renamed: dict[Var, Expr] = {}
        for var in expr.free:
            if isinstance(var, Var) and var in self._indirect:
                name, operand = self._indirect[var]
                renamed[var] = name
                axes |= operand.axes
        on_axes = mapped(substitute(expr, renamed) if renamed else expr, self.axes, self.simplify)
        axes |= {atom.name for atom in on_axes.free if isinstance(atom, Var) and atom.name in ("x", "y", "r")}
        return on_axes, frozenset(axes)

    def text_of(self, expr: Expr, wide: bool = False) -> str:
        """Source of an index expression in terms of the axes."""
        return index_text(substitute(expr, {Var("r"): Var(f"r{self.number}")}), wide)

    # --- statements

    def _statement(self, value: Value) -> None:
        handlers = {
            "load": self._load,
            "store": self._store,
            "masked": self._masked,
            "indirect": self._check,
            "reduction": self._reduce,
            "scan": self._scan,
            "index_expr": self._position,
        }
        handler = handlers.get(value.op)
        if handler is not None:
            handler(value)
        elif value.op == "constant":
            self._values[value.id] = Operand(constant(value.args[0], value.dtype), _NONE)
        else:
            self._pointwise(value)

    def _define(self, value: Value, axes: Names, text: str) -> Operand:
        name = f"tmp{self.number}_{value.id}"
        self.emit(self.lines_for(axes, value), value.origin, f"{name} = {text}")
        operand = self._values[value.id] = Operand(name, axes)
        return operand

    def _operands(self, args: Sequence[Any]) -> list[Operand]:
        return [self._values[arg.id] for arg in args if isinstance(arg, Value)]

    def _pointwise(self, value: Value) -> None:
        operands = self._operands(value.args)
        axes = frozenset().union(*(operand.axes for operand in operands))
        texts = [operand.text for operand in operands]
        if value.op == "to_dtype":
            text = conversion(texts[0], value.args[0].dtype, value.dtype)
        elif value.op == "bitcast":
            text = f"{texts[0]}.to({value_type(value.dtype)}, bitcast=True)"
        elif value.op == "truediv" and (factor := _reciprocal(value)):
            text = f"({texts[0]} * {factor})"
        elif value.op == "erf" and is_coarse(value, self.users):
            text = f"erf_beside_one({texts[0]})"
        else:
            text = expression(value.op, value.args[-1].dtype, texts)
        self._define(value, axes, text)

    def _position(self, value: Value) -> None:
        expr, axes = self.index(value.args[0])
        low, high = self.simplify.bounds(expr)
        narrow = low is not None and high is not None and max(-low, high) < 1 << 31
        exact = self.position.dtype is not torch.int32 or narrow
        text = self.text_of(expr, wide=not exact)
        if not axes and not expr.free:
            self._values[value.id] = Operand(constant(int(text), value.dtype), _NONE)
            return
        if self.position.dtype is None:
            self._define(value, axes, f"({text}).to({value_type(value.dtype)})")
            return
        have = torch.int32 if narrow and self.position.dtype is torch.int32 else torch.int64
        self._define(value, axes, conversion(f"({text})", have, value.dtype))

    # --- memory

    def _place(self, expr: Expr, axes: Names, spread: Names) -> str:
        """The text of an index with the dimensions of `spread`."""
        text = self.text_of(expr)
        if spread <= axes:
            return text
        shape = self.shape(spread | axes)
        if not expr.free:
            return f"tl.full({shape}, {text}, {self.position.text})"
        return f"tl.broadcast_to({text}, {shape})"

    def _key(self, name: str, expr: Expr, axes: Names) -> tuple[str, Expr, Expr | None] | None:
        """What a block of memory is known by; None when it cannot be kept for later stages."""
        if any(isinstance(atom, Var) and atom.name not in ("x", "y", "r", "p") for atom in expr.free):
            return None
        if "r" not in axes:
            return (name, expr, None)
        assert self.row is not None  # it is what "r" stands for
        return None if self.row.looped else (name, expr, self.row.extent)

    def _load(self, value: Value) -> None:
        name, raw = value.args
        if name in self.plan.registers:
            self._values[value.id] = self.memory.registers[name]
            return
        expr, axes = self._element(name, raw)
        key = None if self._masks else self._key(name, expr, axes)
        if key is not None and key in self.memory.held:
            self._values[value.id] = self.memory.held[key]
            return
        if name in self.plan.scratch:
            self.memory.wanted.add(name)
        if name in self.memory.stored:
            self.memory.waits.add(self.number)
        self._local_loads.add(name)
        spread = axes.union(*(mask.axes for mask in self._masks))
        masks = [*self.mask(axes), *(mask.text for mask in self._masks)]
        place = self._place(expr, axes, spread)
        condition = f", {' & '.join(masks)}" if masks else ""
        text = f"tl.load({self.memory.pointers.get(name, 'unused')} + ({place}){condition})"
        if value.dtype is torch.bool:
            text += ".to(tl.int1)"
        operand = self._define(value, spread, text)
        lasts = self.row is None or "r" not in axes or not self.row.looped
        if key is not None and lasts and name not in self.plan.outputs and value not in self.facts.after:
            self.memory.held[key] = operand

    def _element(self, name: str, raw: Expr) -> tuple[Expr, Names]:
        """The place of an element, and the axes that it depends on: in a row buffer among those of all outer points."""
        expr, axes = self.index(raw)
        if name not in self.plan.scratch:
            return expr, axes
        return Var("x") * self.plan.buffers[name].size[0] + expr, axes | {"x"}

    def _store(self, value: Value) -> None:
        name, raw, source, mode = value.args
        operand = self._values[source.id]
        if name in self.plan.registers:
            self.memory.registers[name] = operand
            self._values[value.id] = operand
            return
        expr, axes = self._element(name, raw)
        key = None if mode or self._masks else self._key(name, expr, axes)
        if key is not None:
            self.memory.held[key] = operand
        self._values[value.id] = operand
        if name in self.plan.scratch and name not in self.memory.pointers:
            return
        if name in self.memory.loaded or name in self.memory.stored:
            self.memory.waits.add(self.number)
        self._local_stores.add(name)
        spread = axes.union(operand.axes, *(mask.axes for mask in self._masks))
        masks = [*self.mask(spread), *(mask.text for mask in self._masks)]
        pointer = f"{self.memory.pointers[name]} + ({self._place(expr, axes, spread)})"
        condition = f", {' & '.join(masks)}" if masks else ""
        text = self.spread(operand, spread)
        call = (
            f"tl.atomic_add({pointer}, {text}{condition}, sem='relaxed')"
            if mode
            else f"tl.store({pointer}, {text}{condition})"
        )
        self.emit(self.lines_for(spread, value), value.origin, call)

    def _check(self, value: Value) -> None:
        """Make a position usable in index expressions; a position out of bounds stops the kernel, as eager's does."""
        source, size, wrap = value.args
        operand = self._values[source.id]
        limit, _ = self.index(size)
        size_text = self.text_of(limit)
        lines = self.lines_for(operand.axes, value)
        name = f"i{self.number}_{value.id}"
        cast = "" if self.position.dtype is torch.int64 else f".to({self.position.text})"
        wrapped = (
            f"tl.where({operand.text} < 0, {operand.text} + ({size_text}), {operand.text})" if wrap else operand.text
        )
        self.emit(lines, value.origin, f"{name} = {wrapped}{cast}")
        masks = [*self.mask(operand.axes), *(mask.text for mask in self._masks)]
        checked = f"({wrapped} >= 0) & ({wrapped} < ({size_text}))"
        if masks:
            checked = f"({checked}) | ~({' & '.join(masks)})"
        lines.append(f"tl.device_assert({checked}, 'index out of range in self')")
        self.checks = True
        self._indirect[Var(f"i{value.id}")] = (Var(name), Operand(name, operand.axes))
        self._values[value.id] = Operand(name, operand.axes)

    def _masked(self, value: Value) -> None:
        condition, block, other = value.args
        assert isinstance(block, LoopBlock)  # what the op is defined to have
        mask = self._values[condition.id]
        self._masks.append(mask)
        for statement in block.statements:
            self._statement(statement)
        self._masks.pop()
        result = self._values[block.result.id]
        rest = self._values[other.id].text if isinstance(other, Value) else constant(other, value.dtype)
        self._define(value, mask.axes | result.axes, f"tl.where({mask.text}, {result.text}, {rest})")

    # --- reductions

    def _reduce(self, value: Value) -> None:
        if self.row is None:
            raise InternalError(f"{self.plan.name}: a reduction without reduction loops")
        kind, source = value.args
        operand = self._values[source.id]
        if kind in _POSITIONS:
            self._reduce_position(value, kind, source, operand)
            return
        dtype = torch.int32 if source.dtype is torch.bool else source.dtype
        text = conversion(operand.text, source.dtype, dtype)
        start = constant(identity(kind, dtype), dtype)
        full = self.shape(frozenset(self.dims))
        step = f"tl.broadcast_to({text}, {full})"
        masks = self.mask(frozenset(("r",)))
        name = f"tmp{self.number}_{value.id}"
        if self.row.looped:
            self.emit(self.before, value.origin, f"acc{name} = tl.full({full}, {start.removeprefix('tl.full([], ')}")
            new = _combined(kind, dtype, f"acc{name}", step)
            text = f"tl.where({masks[0]}, {new}, acc{name})" if masks else new
            self.emit(self.inside, value.origin, f"acc{name} = {text}")
            whole = f"acc{name}"
        else:
            self.emit(
                self.inside,
                value.origin,
                f"all{name} = " + (f"tl.where({masks[0]}, {step}, {start})" if masks else step),
            )
            whole = f"all{name}"
        result = f"{_folded(kind, dtype, whole)}[:, None]"
        if source.dtype is torch.bool:
            result = f"({result} != 0)"
        self.emit(self.after, value.origin, f"{name} = {result}")
        self._values[value.id] = Operand(name, frozenset(("x",)))

    def _scan(self, value: Value) -> None:
        """Along the row; rounds go on from what those before them came to."""
        if self.row is None:
            raise InternalError(f"{self.plan.name}: a scan without reduction loops")
        kind, source = value.args
        operand, dtype, function = self._values[source.id], source.dtype, _SCANS[value.args[0]]
        full = self.shape(frozenset(self.dims))
        step = f"tl.broadcast_to({operand.text}, {full})"
        name = f"tmp{self.number}_{value.id}"
        if not self.row.looped:
            self.emit(self.inside, value.origin, f"{name} = tl.associative_scan({step}, 1, {function})")
        else:
            start = constant(identity(kind, dtype), dtype)
            masks = self.mask(frozenset(("r",)))
            column = self.shape(frozenset(("x",)))
            self.before.append(f"acc{name} = tl.full({column}, {start.removeprefix('tl.full([], ')}")
            step = f"tl.where({masks[0]}, {step}, {start})" if masks else step
            self.emit(self.inside, value.origin, f"all{name} = {step}")
            scanned = f"tl.associative_scan(all{name}, 1, {function})"
            self.inside.append(f"{name} = {_combined(kind, dtype, f'acc{name}', scanned)}")
            whole = f"{_folded(kind, dtype, f'all{name}')}[:, None]"
            self.inside.append(f"acc{name} = {_combined(kind, dtype, f'acc{name}', whole)}")
        self._values[value.id] = Operand(name, frozenset(("x", "r")))

    def _reduce_position(self, value: Value, kind: str, source: Value, operand: Operand) -> None:
        assert self.row is not None  # the caller has checked
        combine, dtype = _POSITIONS[kind], source.dtype
        text = operand.text
        if dtype is torch.bool:
            text, dtype = conversion(text, dtype, torch.int32), torch.int32
        full = self.shape(frozenset(self.dims))
        step = f"tl.broadcast_to({text}, {full})"
        place = f"tl.broadcast_to(r{self.number}, {full}).to(tl.int64)"
        worst = constant(identity(kind.removeprefix("arg"), dtype), dtype)
        masks = self.mask(frozenset(("r",)))
        name = f"tmp{self.number}_{value.id}"
        far = "9223372036854775807"
        if self.row.looped:
            self.emit(self.before, value.origin, f"acc{name} = tl.full({full}, {worst.removeprefix('tl.full([], ')}")
            self.before.append(f"at{name} = tl.full({full}, {far}, tl.int64)")
            text = f"new{name}, where{name} = {combine}(acc{name}, at{name}, {step}, {place})"
            self.emit(self.inside, value.origin, text)
            kept = f"tl.where({masks[0]}, {{0}}, {{1}})" if masks else "{0}"
            self.inside.append(f"acc{name} = " + kept.format(f"new{name}", f"acc{name}"))
            self.inside.append(f"at{name} = " + kept.format(f"where{name}", f"at{name}"))
        else:
            kept = f"tl.where({masks[0]}, {{0}}, {{1}})" if masks else "{0}"
            self.emit(self.inside, value.origin, f"acc{name} = " + kept.format(step, worst))
            self.inside.append(f"at{name} = " + kept.format(place, far))
        self.emit(self.after, value.origin, f"_, {name} = tl.reduce((acc{name}, at{name}), 1, {combine})")
        self.after.append(f"{name} = {name}[:, None]")
        self._values[value.id] = Operand(name, frozenset(("x",)))


def _reciprocal(value: Value) -> str:
    """What a quotient by a constant is a product with, as in eager's kernels for GPUs; "" for other quotients."""
    divisor = value.args[1]
    if divisor.op != "constant" or value.dtype is not torch.float32 or not divisor.args[0]:
        return ""
    return constant(float(1 / torch.tensor(divisor.args[0], dtype=torch.float32)), value.dtype)


def _combined(kind: str, dtype: torch.dtype, a: str, b: str) -> str:
    if kind == "sum":
        return f"{a} + {b}"
    if kind == "prod":
        return f"{a} * {b}"
    if kind == "any":
        return f"{a} | {b}"
    return f"{_COMBINE[kind][not dtype.is_floating_point]}({a}, {b})"


def _folded(kind: str, dtype: torch.dtype, text: str) -> str:
    """A block combined along the row."""
    if kind == "sum":
        return f"tl.sum({text}, 1)" if dtype.itemsize >= 4 else f"tl.reduce({text}, 1, add)"
    if kind == "any":
        return f"tl.max({text}, 1)"
    if kind == "prod":
        return f"tl.reduce({text}, 1, product)"
    return f"tl.reduce({text}, 1, {_COMBINE[kind][not dtype.is_floating_point]})"


def conversion(text: str, have: torch.dtype, want: torch.dtype) -> str:
    """`text` of dtype `have` converted to `want`, as eager converts."""
    if have is want:
        return text
    if want is torch.bool:
        return f"({text}.to(tl.float32) != 0)" if is_half(have) else f"({text} != 0)"
    if (is_half(have) and not want.is_floating_point) or (is_half(want) and have is torch.float64):
        text = f"{text}.to(tl.float32)"
    return f"{text}.to({value_type(want)})"
