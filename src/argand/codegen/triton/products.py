"""Prints a kernel that begins with a product of matrices.

A program computes one tile of the result: sums of products of blocks, by tensor cores, then what the last stage
computes from them. Tiles are numbered in groups of a few rows, so that programs that run at the same time read the same
operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from argand.codegen.triton import types
from argand.codegen.triton.axes import Axis, StageAxes
from argand.codegen.triton.index_width import reach_of
from argand.codegen.triton.spec import KernelSpec
from argand.codegen.triton.statements import Memory, Operand, StagePrinter
from argand.codegen.triton.types import pointer_type, value_type
from argand.errors import InternalError
from argand.graph.sizes.expr import Const, Expr, as_int
from argand.ir.kernel import KernelPlan, Product, Stage, Tile
from argand.ir.loops import TensorRef

_GROUP = 8  # rows of tiles that are numbered column by column
_ACROSS = frozenset(("x", "y"))


class ProductPrinter:
    """Prints one kernel.

    Arguments:
        plan: with a product, whose tile is chosen.
    """

    def __init__(self, plan: KernelPlan) -> None:
        if plan.product is None or plan.product.tile is None:
            raise InternalError(f"{plan.name}: a product without a tile")
        self.plan = plan
        self.product: Product = plan.product
        self.tile: Tile = plan.product.tile
        reach = reach_of(plan)
        self.wide = reach.wide or reach.varies
        self.position = types.WIDE if self.wide else types.NARROW
        self.pointers: dict[str, str] = {}
        for letter, names in (("in", plan.inputs), ("out", plan.outputs)):
            self.pointers.update({name: f"{letter}_ptr{number}" for number, name in enumerate(names)})
        self.checks = False
        self.constants = {"YBLOCK": self.tile.rows, "XBLOCK": self.tile.columns, "RBLOCK": self.tile.inner}

    def spec(self) -> KernelSpec:
        """How the function that `text` printed is compiled and launched."""
        batch, rows, columns, _ = self.product.sizes
        tiles = -(-rows // self.tile.rows) * -(-columns // self.tile.columns)
        return KernelSpec(
            self.plan.name,
            tuple(pointer_type(self.plan.buffers[name].dtype) for name in self.pointers),
            tuple(self.constants.items()),
            self.tile.warps,
            self.tile.stages,
            (Const(tiles), Const(batch)),
            (1, 1),
            (),
            self.checks,
        )

    def text(self) -> str:
        """The function."""
        lines = [*self._place(), *self._operands(), *self._sums(), *self._rounded(), *self._last_stage()]
        arguments = [*self.pointers.values(), *(f"{name}: tl.constexpr" for name in self.constants)]
        head = f"@triton.jit\ndef {self.plan.name}({', '.join(arguments)}):"
        return "\n".join((head, *("    " + line for line in lines)))

    # --- the function's lines

    def _place(self) -> list[str]:
        """Where the program's tile is."""
        batch, rows, columns, _ = self.product.sizes
        kind = ".to(tl.int64)" if self.wide else ""
        down, across = -(-rows // self.tile.rows), -(-columns // self.tile.columns)
        lines = [f"z = tl.program_id(1){kind}"] if batch > 1 else []
        if down <= _GROUP:
            lines += [f"tile_y = tl.program_id(0) % {down}", f"tile_x = tl.program_id(0) // {down}"]
        else:
            lines += [
                f"group = tl.program_id(0) // {_GROUP * across} * {_GROUP}",
                f"within = tl.program_id(0) % {_GROUP * across}",
                f"height = tl.minimum({down} - group, {_GROUP})",
                "tile_y = group + within % height",
                "tile_x = within // height",
            ]
        for name in ("y", "x"):
            block = f"{name.upper()}BLOCK"
            lines.append(f"{name}_places = (tile_{name} * {block} + tl.arange(0, {block})){kind}")
        return lines

    def _operands(self) -> list[str]:
        """Pointers to the first blocks of the operands in memory, and which rows and columns exist."""
        _, rows, columns, _ = self.product.sizes
        lines = [f"r = tl.arange(0, RBLOCK){'.to(tl.int64)' if self.wide else ''}"]
        if rows % self.tile.rows:
            lines.append(f"left_rows = (y_places < {rows})[:, None]")
        if columns % self.tile.columns:
            lines.append(f"right_columns = (x_places < {columns})[None, :]")
        for name, ref, axes in (
            ("left", self.product.left, ("y_places[:, None]", "r[None, :]")),
            ("right", self.product.right, ("r[:, None]", "x_places[None, :]")),
        ):
            if ref.buffer in self.pointers:
                lines.append(f"{name} = {self.pointers[ref.buffer]} + ({_index(ref, axes)})")
        return lines

    def _sums(self) -> list[str]:
        _, _, _, inner = self.product.sizes
        lines = [f"# {origin.comment}" for origin in self.plan.origins[:1]]  # the product's own
        lines += ["sums = tl.zeros((YBLOCK, XBLOCK), tl.float32)", f"for offset in range(0, {inner}, RBLOCK):"]
        inside = [f"terms = r < {inner} - offset"] if inner % self.tile.inner else []
        for name in ("left", "right"):
            ref: TensorRef = getattr(self.product, name)
            inside += self._loaded(name) if ref.buffer in self.pointers else self._computed(name, ref)
        inside.append(f"sums = tl.dot(left_block, right_block, sums, input_precision={self.product.precision!r})")
        for name, ref, along in (("left", self.product.left, -1), ("right", self.product.right, -2)):
            if ref.buffer in self.pointers:
                inside.append(f"{name} += RBLOCK * {ref.stride[along]}")
        return [*lines, *("    " + line for line in inside)]

    def _loaded(self, name: str) -> list[str]:
        """The block of an operand in memory."""
        _, rows, columns, inner = self.product.sizes
        left = name == "left"
        outside = rows % self.tile.rows if left else columns % self.tile.columns
        masks = [("left_rows" if left else "right_columns")] if outside else []
        masks += [("terms[None, :]" if left else "terms[:, None]")] if inner % self.tile.inner else []
        condition = f", {' & '.join(masks)}, other=0.0" if masks else ""
        return [f"{name}_block = tl.load({name}{condition})"]

    def _computed(self, name: str, ref: TensorRef) -> list[str]:
        """The block of an operand that a stage computes."""
        number = next(n for n, stage in enumerate(self.plan.stages) if stage.body.statements[-1].args[0] == ref.buffer)
        _, rows, columns, inner = self.product.sizes
        left, block, terms = name == "left", self.tile.inner, "(offset + r)"
        if left:
            blocks, dims = (("y", self.tile.rows), ("x", block)), {"y": "YBLOCK", "x": "RBLOCK"}
            places = ("y_places[:, None]", f"{terms}[None, :]")
        else:
            blocks, dims = (("y", block), ("x", self.tile.columns)), {"y": "RBLOCK", "x": "XBLOCK"}
            places = (f"{terms}[:, None]", "x_places[None, :]")
        lines = [f"{axis} = {place}" for axis, place in zip("yx", places)]
        sizes = (rows, inner) if left else (inner, columns)
        for (axis, extent), size in zip(blocks, sizes):
            lines += [f"{axis}mask = {axis} < {size}"] if size % extent else []
        memory = Memory(dict(self.pointers))
        axes = self._axes(self.plan.stages[number], blocks)
        printer = StagePrinter(self.plan, number, axes, memory, dims, self.position)
        printer.run()
        value = printer.spread(memory.registers[ref.buffer], _ACROSS)
        kind = value_type(self.plan.buffers[ref.buffer].dtype)
        if inner % self.tile.inner:  # what is beyond the end must add nothing
            value = f"tl.where({'xmask' if left else 'ymask'}, {value}, 0.0)"
        return [*lines, *printer.before, f"{name}_block = ({value}).to({kind})"]

    def _rounded(self) -> list[str]:
        """The bias added, and the value as it would be in memory."""
        _, rows, columns, _ = self.product.sizes
        lines = ["y = y_places[:, None]", "x = x_places[None, :]"]
        lines += [f"ymask = y < {rows}"] if rows % self.tile.rows else []
        lines += [f"xmask = x < {columns}"] if columns % self.tile.columns else []
        bias = self.product.bias
        if bias is not None:
            condition = ", xmask" if columns % self.tile.columns else ""
            place = _index(bias, ("x",))
            lines.append(f"sums += tl.load({self.pointers[bias.buffer]} + ({place}){condition}).to(tl.float32)")
        dtype = self.plan.buffers[self.product.result].dtype
        return [*lines, f"rounded = sums.to({value_type(dtype)})"]

    def _last_stage(self) -> list[str]:
        memory = Memory(dict(self.pointers), {self.product.result: Operand("rounded", _ACROSS)})
        axes = self._axes(self.plan.stages[-1], (("y", self.tile.rows), ("x", self.tile.columns)))
        dims = {"y": "YBLOCK", "x": "XBLOCK"}
        printer = StagePrinter(self.plan, len(self.plan.stages) - 1, axes, memory, dims, self.position)
        printer.run()
        self.checks = printer.checks
        return printer.before

    def _axes(self, stage: Stage, across: tuple[tuple[str, int], ...]) -> StageAxes:
        blocks = (("z", 1), *across)
        loops = list(zip(stage.body.vars, stage.body.sizes))
        axes = tuple(Axis(name, (loop,), block) for (name, block), loop in zip(blocks[-len(loops) :], loops))
        mapping = {var: place for axis in axes for var, place in axis.positions().items()}
        if len(loops) == 3 and self.product.sizes[0] == 1:
            mapping[loops[0][0]] = Const(0)
        return StageAxes(stage, axes, mapping)


def _index(ref: TensorRef, axes: Sequence[str]) -> str:
    """The place of a block of a tensor's last dimensions, of which `axes` are the positions."""
    terms = [_term(name, step) for name, step in zip(axes, ref.stride[-len(axes) :])]
    if len(ref.size) > len(axes) and as_int(ref.size[0]) != 1:
        terms.insert(0, _term("z", ref.stride[0]))
    if as_int(ref.offset):
        terms.insert(0, str(ref.offset))
    return " + ".join(terms)


def _term(name: str, step: Expr) -> str:
    return name if as_int(step) == 1 else f"{name} * {step}"
