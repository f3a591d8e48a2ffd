"""How the loops of a kernel are laid over a Triton program's blocks.

A program computes a block of points with up to three *axes*: "x" (and "y", where memory is contiguous along two
different loops) for points that are independent of each other, "r" for what each stage runs through itself: its
reduction, or its own loops where the kernel has several stages. The loops of one axis are numbered through: loop
variables are quotients and remainders of the axis' position. An axis "p" has one position in each program, and no
dimension of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from argand.codegen.analysis import hint
from argand.codegen.triton.index_width import Reach, reach_of
from argand.errors import InternalError
from argand.graph.sizes.expr import ONE, ZERO, Expr, Simplifier, Var, as_int, coefficient, evaluate, product, substitute
from argand.ir.kernel import KernelPlan, Stage
from argand.ir.loops import LoopBody, Value, statements_of
from argand.quick_dataclasses import dataclass

Loops = tuple[tuple[Var, Expr], ...]
"""(variable, size), outermost first."""
Parts = dict[Var, Expr]
"""A loop that was cut, in terms of those it was cut into."""

# Rows up to this length are held in registers from stage to stage.
PERSISTENT = 8192
# Elements of a block: enough for each thread to move 128 bits at once.
BLOCK = 1024
# Of a block of points one for each thread, where threads side by side read from places apart: so many lines of memory
# fewer does each access touch.
_ONE_EACH = 128
_TILE = 32  # of each of two axes, where memory is walked along both
# Where memory is contiguous along the points of a reduction: points of a program, so that it reads whole lines of
# memory, and elements of its block.
_COLUMNS, _COLUMNS_BLOCK = 64, 2048
_FEW_ROWS, _SOME_ROWS = 32, 128  # that one block takes; so many only of few columns
_FEW_ELEMENTS = 1 << 17
_MANY_RESULTS = 4  # reductions beyond which a thread has few elements, for what they have added up to is in registers
_HELD_COLUMNS = 16  # fewer columns, of rows that are held for later stages, are not worth it
_BUSY = 8  # programs for each processor
_MAX_GRID = 65535  # programs along the second axis of a grid
_MAX_WARPS = 16  # of a program


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the block.

    Arguments:
        name: "x", "y", "r" or "p": the variable of its position in index expressions.
        loops: (variable, size), outermost first.
        block: positions of one program, or of one round of its loop.
        looped: the program runs through the axis in rounds; else one block covers what it has to do.
    """

    name: str
    loops: tuple[tuple[Var, Expr], ...]
    block: int
    looped: bool = False

    @property
    def var(self) -> Var:
        return Var(self.name)

    @property
    def extent(self) -> Expr:
        """How many positions there are."""
        return product(size for _, size in self.loops)

    @property
    def exact(self) -> bool:
        """Whether blocks end where the axis ends: no position is masked."""
        known = as_int(self.extent)
        return known is not None and known > 0 and known % self.block == 0

    def positions(self) -> dict[Var, Expr]:
        """Each loop variable in terms of the axis' position."""
        positions: dict[Var, Expr] = {}
        below: Expr = ONE
        for number, (var, size) in enumerate(reversed(self.loops)):
            quotient = self.var // below
            positions[var] = quotient if number == len(self.loops) - 1 else quotient % size
            below = below * size
        return positions


@dataclass(frozen=True, slots=True)
class StageAxes:
    """The axes of one stage, and what its index expressions become.

    Arguments:
        axes: outermost first.
        stage: what is laid out.
    """

    stage: Stage
    axes: tuple[Axis, ...]
    mapping: dict[Var, Expr] = field(default_factory=dict)

    @property
    def row(self) -> Axis | None:
        """The axis that the stage runs through itself."""
        return next((axis for axis in self.axes if axis.name == "r"), None)


@dataclass(frozen=True, slots=True)
class KernelAxes:
    """The layout of a kernel.

    Arguments:
        grid: the axes that programs are spread over, innermost first.
        stages: in order.
        reach: how far positions may reach.
        num_warps: of a program.
    """

    grid: tuple[Axis, ...]
    stages: tuple[StageAxes, ...]
    reach: Reach
    num_warps: int


def lay_out(plan: KernelPlan, processors: int) -> KernelAxes:
    """Choose axes, blocks and warps for a kernel.

    Arguments:
        plan: of one stage, or of several that share outer loops.
        processors: of the GPU.

    Raises:
        InternalError: the plan is none that a GPU can run.
    """
    if len(plan.stages) > 1 and not plan.outer:
        raise InternalError(f"{plan.name}: several stages without shared loops cannot run as one Triton program")
    rows = [_row_loops(plan, stage) for stage in plan.stages]
    if any(rows):
        return _rows(plan, *_in_memory_order(plan, rows), processors)
    body = plan.stages[0].body
    if len(plan.stages) > 1:
        loops = plan.outer
    else:
        loops = tuple(zip(body.vars, body.sizes))
    tiled = _two_axes(plan, body, loops) if len(plan.stages) == 1 and not plan.segments else None
    if tiled is not None:
        grid = (Axis("x", tiled[1], _TILE), Axis("y", tiled[0], _TILE))
        return KernelAxes(grid, (_stage(plan.stages[0], (grid[1], grid[0])),), reach_of(plan), 4)
    points = _total(plan, product(size for _, size in loops))
    block = max(min(_power(points // (2 * processors)), BLOCK), 128)
    if points > _ONE_EACH and _steps_over(plan, loops):
        block, warps = _ONE_EACH, _ONE_EACH // 32
    else:
        warps = max(block // 256, 1) if points > 1 else 1
    axis = Axis("x", loops, block if points > 1 else 1)
    return KernelAxes((axis,), tuple(_stage(stage, (axis,)) for stage in plan.stages), reach_of(plan), warps)


def _in_segments(plan: KernelPlan, size: Expr) -> list[int]:
    """A size in each segment."""
    return [int(evaluate(size, segment.numbers)) for segment in plan.segments]


def _total(plan: KernelPlan, size: Expr) -> int:
    """A likely value of a number of points, of all segments together."""
    return sum(_in_segments(plan, size)) if plan.segments else hint(size)


def _largest(plan: KernelPlan, size: Expr) -> int:
    """A likely value of a size, the largest of all segments."""
    return max(_in_segments(plan, size)) if plan.segments else hint(size)


def blocks_of(plan: KernelPlan, axis: Axis) -> list[int]:
    """How many blocks along an axis each segment has."""
    return [-(-extent // axis.block) for extent in _in_segments(plan, axis.extent)]


def _row_loops(plan: KernelPlan, stage: Stage) -> Loops:
    """The loops that a program runs through itself."""
    body = stage.body
    own: Loops = ()
    if len(plan.stages) > 1:
        first = len(plan.outer)
        own = tuple(zip(body.vars[first:], body.sizes[first:]))
    reduced = tuple(zip(body.reduction_vars, body.reduction_sizes))
    if own and reduced:
        raise InternalError(f"{plan.name}: a stage has own loops around its reduction")
    return own or reduced


def _in_memory_order(plan: KernelPlan, rows: Sequence[Loops]) -> tuple[list[Loops], list[Parts]]:
    """Rows whose innermost loop is the one along which most memory is contiguous, and the outermost the one with the
    largest strides; and the loops of each stage that were cut for it.

    All stages run through their rows in the same order, so that a row stays in registers: loops of one size correspond,
    and a stage that numbers a row through has its loop cut as that of others. Rows stay as they are where that is not
    known, or where the order of their elements means something.
    """
    widest = max(rows, key=len, default=())
    sizes = tuple(size for _, size in widest)
    if len(sizes) < 2 or len(set(sizes)) < len(sizes) or any(map(_is_ordered, _statements(plan))):
        return list(rows), [{} for _ in rows]
    cuts: list[Parts] = [{} for _ in rows]
    apart = [_cut(loops, sizes, cut) for loops, cut in zip(rows, cuts)]
    if any(loops and {size for _, size in loops} != set(sizes) for loops in apart):
        return list(rows), [{} for _ in rows]
    steps, near = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0.0)
    for stage, loops, cut in zip(plan.stages, apart, cuts):
        for name, index in _accesses((stage.body,)):
            if name in plan.scratch or name in plan.registers:
                continue
            weight = float(hint(product(plan.buffers[name].size)))
            for var, size in loops:
                step = coefficient(substitute(index, cut), var)
                steps[size] += weight * abs(hint(step)) if step is not None and not step.free else 0.0
                near[size] += weight if step is ONE else 0.0
    nearest = max(near.values())
    order = sorted(sizes, key=lambda size: (near[size] == nearest > 0, -steps[size]))
    return [tuple(sorted(loops, key=lambda loop: order.index(loop[1]))) for loops in apart], cuts


def _cut(loops: Loops, sizes: Sequence[Expr], cut: Parts) -> Loops:
    """A single loop as loops of these sizes, outermost first, entered in `cut`; others as they are."""
    if len(loops) != 1 or loops[0][1] is not product(sizes):
        return loops
    var = loops[0][0]
    parts = tuple((Var(f"{var.name}_{number}"), size) for number, size in enumerate(sizes))
    whole: Expr = ZERO
    for part, size in parts:
        whole = whole * size + part
    cut[var] = whole
    return parts


def _statements(plan: KernelPlan) -> Iterable[Value]:
    return (statement for stage in plan.stages for statement in stage.body.statements)


def _is_ordered(statement: Value) -> bool:
    """Whether its result depends on the order in which a row is run through, besides by rounding."""
    return statement.op == "scan" or (statement.op == "reduction" and statement.args[0] in ("argmax", "argmin"))


def _rows(plan: KernelPlan, rows: Sequence[Loops], cuts: Sequence[Parts], processors: int) -> KernelAxes:
    body = plan.stages[0].body
    points = plan.outer if len(plan.stages) > 1 else tuple(zip(body.vars, body.sizes))
    lengths = [product(size for _, size in loops) for loops in rows if loops]
    longest = max(_largest(plan, length) for length in lengths)
    held = all((known := as_int(length)) is not None and 0 < known <= PERSISTENT for length in lengths)
    count = _total(plan, product(size for _, size in points))
    across = _contiguous_along(plan, points, {var for loops in rows for var, _ in loops})
    if across:
        few = count * longest <= _FEW_ELEMENTS
        # rows that one stage alone runs through are held for nobody
        shared = len(plan.stages) > 1 and (len(lengths) > 1 or count < _COLUMNS * _BUSY * processors)
        most = 4 * BLOCK // _HELD_COLUMNS if shared else _SOME_ROWS if few else _FEW_ROWS
        row = _power(longest)
        held = held and row <= most
        width = min(32, 4 * BLOCK // row) if held else _COLUMNS
        width = max(min(width, _power(count)), 1)
        while few and width > _HELD_COLUMNS and count // width < processors:
            width //= 2
        row = row if held else _COLUMNS_BLOCK // width
    elif held:
        row = _power(longest)
        width = max(min(BLOCK // row, _power(count)), 1)
    else:
        row, width = 2 * BLOCK, 1
    while width > 1 and count // width < processors and not across:
        width //= 2
    x = Axis("x", points, width)
    grid: tuple[Axis, ...] = (x,)
    if across and not held and len(plan.stages) == 1 and not plan.segments:
        grid = _apart(points, width)
    stages = []
    for stage, loops, cut in zip(plan.stages, rows, cuts):
        axes: tuple[Axis, ...] = grid
        if loops:
            length = product(size for _, size in loops)
            block = _power(int(as_int(length) or 1)) if held else row
            axes = (*grid, Axis("r", loops, block, looped=not held))
        stages.append(_stage(stage, axes, cut))
    # 8 elements for each thread; 16 have more memory in flight and less to exchange, where all processors are busy
    each = 16 if held and not across and count // width >= _BUSY * processors else 8
    warps = max(min(width * row // (32 * each), _MAX_WARPS), 1)
    if across and not held and _results(plan) <= _MANY_RESULTS:
        warps = max(warps // 2, 1)
    return KernelAxes(grid, tuple(stages), reach_of(plan), warps)


def _apart(points: Sequence[tuple[Var, Expr]], width: int) -> tuple[Axis, ...]:
    """The axes of points whose innermost loop is long enough for a program: chunks of a column are apart, so that what
    depends on the chunk alone is loaded once."""
    outer = as_int(product(size for _, size in points[:-1]))
    if len(points) < 2 or hint(points[-1][1]) < width or outer is None or outer > _MAX_GRID:
        return (Axis("x", tuple(points), width),)
    return Axis("x", tuple(points[-1:]), width), Axis("p", tuple(points[:-1]), 1)


def _results(plan: KernelPlan) -> int:
    """How many reductions the stages have, at most."""
    return max(sum(1 for value in stage.body.statements if value.op == "reduction") for stage in plan.stages)


def _stage(stage: Stage, axes: tuple[Axis, ...], cut: Parts | None = None) -> StageAxes:
    mapping: dict[Var, Expr] = {}
    for axis in axes:
        mapping.update(axis.positions())
    mapping.update({var: substitute(whole, mapping) for var, whole in (cut or {}).items()})
    return StageAxes(stage, axes, mapping)


def simplifier(axes: StageAxes) -> Simplifier:
    """Knows the ranges of the axes' positions."""
    return Simplifier({axis.var: axis.extent for axis in axes.axes})


def mapped(expr: Expr, axes: StageAxes, simplify: Simplifier) -> Expr:
    """An index expression in terms of the axes' positions."""
    return simplify.simplify(substitute(expr, axes.mapping))


def _power(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def _accesses(bodies: Iterable[LoopBody]) -> Iterable[tuple[str, Expr]]:
    for body in bodies:
        for statement in statements_of(body):
            if statement.op in ("load", "store"):
                yield statement.args[0], statement.args[1]


def _contiguous_along(plan: KernelPlan, points: Sequence[tuple[Var, Expr]], rows: set[Var]) -> bool:
    """Whether most memory is contiguous along the points, not along the rows."""
    if not points:
        return False
    inner = points[-1][0]
    votes = 0
    for name, index in _accesses(stage.body for stage in plan.stages):
        size = hint(product(plan.buffers[name].size)) if name in plan.buffers else 0
        if coefficient(index, inner) == 1:
            votes += size
        elif any(coefficient(index, var) == 1 for var in rows):
            votes -= size
    return votes > 0


def _steps_over(plan: KernelPlan, loops: Loops) -> bool:
    """Whether most accesses step over elements along the innermost loop, as windows do that move by two."""
    steps = [coefficient(index, var) for _, index in _accesses(s.body for s in plan.stages) for var, _ in loops[-1:]]
    known = [abs(number) for step in steps if step is not None and (number := as_int(step)) is not None]
    return 2 * sum(number > 1 for number in known) > len(steps)


def _two_axes(
    plan: KernelPlan, body: LoopBody, loops: Sequence[tuple[Var, Expr]]
) -> tuple[tuple[tuple[Var, Expr], ...], tuple[tuple[Var, Expr], ...]] | None:
    """The loops cut in two, where some memory is contiguous along another loop than the innermost."""
    if len(loops) < 2:
        return None
    inner = loops[-1][0]
    votes: dict[Var, int] = {}
    for name, index in _accesses((body,)):
        if coefficient(index, inner) == 1:
            continue
        for var, size in loops[:-1]:
            if coefficient(index, var) == 1 and hint(size) >= _TILE // 2 and inner in index.free:
                votes[var] = votes.get(var, 0) + hint(product(plan.buffers[name].size))
    if not votes or hint(loops[-1][1]) < _TILE // 2:
        return None
    chosen = max(votes, key=lambda var: votes[var])
    cut = [var for var, _ in loops].index(chosen) + 1
    outer, rest = tuple(loops[:cut]), tuple(loops[cut:])
    rows = as_int(product(size for _, size in outer))
    if rows is None or rows > _MAX_GRID * _TILE:
        return None
    return outer, rest
