"""Results whose sizes are not one formula of the symbols: the least of two sizes, say, as that of a diagonal.

The call's own sizes and the probes may all lie on one side of such a bend. The call is computed at small sizes and with
the sizes in another order too: where the formula does not hold there, what separates these from the call at hand is
guarded. Where numbers that vary may divide sizes (a step, a kernel's size) it is computed at further sizes.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import Dynamics, GraphBuilder
from argand.capture.facts.name_tables import words
from argand.capture.facts.values.tensor_info import TensorInfo
from argand.capture.metadata.rules import RULES
from argand.capture.sizes import symbolic_index, symbolic_tensors
from argand.capture.sizes.symbolic_calls import ProbedCall
from argand.graph import compat
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.relations import Number, Relation, solve
from argand.graph.trees import tensors_of

_STRAIGHT = frozenset(
    words(
        """
    __getitem__ getitem linear matmul __matmul__ mm bmm addmm baddbmm layer_norm
    rms_norm group_norm batch_norm softmax log_softmax scaled_dot_product_attention embedding glu
    zeros ones empty full rand randn zeros_like ones_like empty_like full_like rand_like randn_like
    cross_entropy dropout sum mean amax amin any all var std norm logsumexp cumsum cumprod tril triu roll flip
    cat concat concatenate stack view reshape flatten permute transpose expand gelu silu mish selu relu6 softplus
    softsign logsigmoid tanhshrink absolute isnan isinf isfinite greater less not_equal
    """
    )
)
"""Functions whose metadata is not looked at twice: their sizes are formulas, or guarded where they are used."""
_DIVIDING = frozenset(
    words(
        """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d avg_pool1d avg_pool2d avg_pool3d
    max_pool1d max_pool2d max_pool3d interpolate arange
    """
    )
)
"""Functions of which that is so unless a number that they are given varies."""
_APART = frozenset(
    words(
        """
    getitem select narrow unsqueeze squeeze split chunk unbind expand permute transpose t movedim swapaxes swapdims
    unfold diagonal detach unflatten
    """
    )
)
"""Views of whatever lies as it may."""
_FURTHER = 12  # assignments
_FAR = 1 << 24
"""How large a size is tried where nothing bounds it."""


@functools.cache
def _is_straight(func: Function) -> bool:
    """Whether a function's sizes need not be looked at twice: those of pointwise ones are broadcast."""
    name = str(getattr(func, "__name__", ""))
    packet = getattr(torch.ops.aten, name.removeprefix("__").removesuffix("__"), None) if name else None
    return name in _STRAIGHT or (packet is not None and compat.has_tag(compat.overloads(packet)[0], "pointwise"))


@functools.cache
def _merges(func: Function) -> bool:
    """Whether the result of a function, or its memory, may depend on which dims of an argument could be one: it may
    return a view."""
    name = str(getattr(func, "__name__", "")).removeprefix("__").removesuffix("__")
    if name in _APART or name in _DIVIDING:
        return False
    packet = getattr(torch.ops.aten, name, None) if name else None
    if packet is None:
        return not _is_straight(func)
    returned = [each for overload in compat.overloads(packet) for each in overload._schema.returns]
    return any(each.alias_info is not None and not each.alias_info.is_write for each in returned)


def guard_arguments(
    builder: GraphBuilder, func: Function, args: Args, kwargs: Kwargs, infos: Iterable[TensorInfo]
) -> None:
    """Guard what a call relies on: that a part is within a tensor, how its arguments may lie in memory.

    Raises:
        Restart: it is not so at the probes.
    """
    symbolic_index.guard_part(builder, getattr(func, "__name__", ""), args, kwargs)
    if _merges(func):
        for info in infos:
            symbolic_tensors.guard_unmerged(builder, info)


def guard(builder: GraphBuilder, probed: ProbedCall, result: Any) -> None:
    """Guard on which side of a bend the sizes of a call's results are.

    Arguments:
        result: of the call, its sizes noted.

    Raises:
        Restart: the probes lie on another side.
    """
    dynamics = builder.dynamics
    if dynamics is None or probed.func in RULES or _is_straight(probed.func):
        return
    numbers = probed.numbers()
    name = str(getattr(probed.func, "__name__", ""))
    if name in _DIVIDING and not numbers:
        if name.startswith("conv"):
            _guard_elements(builder, result)
        return
    varied = [sym for sym in _apart(dynamics, probed.symbols) if dynamics.table.kinds[sym] == "int"]
    symbols = [sym for sym in varied if dynamics.table.hints[sym] > 1]
    if not symbols or (dynamics.unbacked is not None and dynamics.unbacked.among(*symbols)):
        return
    sizes = _sizes(builder, result)
    if sizes is None:
        return
    hints = dynamics.table.hints
    ranked = sorted(symbols, key=lambda sym: hints[sym])
    top = int(hints[ranked[-1]])
    if len(ranked) > 1 and _differs(probed, sizes, {s: top + 7 * (len(ranked) - i) for i, s in enumerate(ranked)}):
        for small, large in itertools.pairwise(ranked):
            dynamics.require(Relation("ge", large - small, _gap(probed, sizes, small, large)))
    for sym in symbols:
        least = _smallest(probed, sizes, sym)
        if least > 2:
            dynamics.require(Relation("ge", sym, least))
        highest = dynamics.bounds.of(sym)[1] or _FAR
        if _differs(probed, sizes, {sym: highest}):
            dynamics.require(Relation("le", sym, _largest(probed, sizes, sym, highest)))
    if numbers:
        strides = _strides(builder, result)
        rows = [row for row in _further(varied, hints) if _is_guarded(dynamics, row)]
        if strides is None or any(_differs(probed, [*sizes, *strides], row) for row in rows):
            symbolic_tensors.give_up(builder, numbers)


def _ties(dynamics: Dynamics) -> list[Relation]:
    """Equalities that inequalities leave: of `a <= b` beside `b <= a`."""
    table = dynamics.table
    facts = [fact for fact in dynamics.memory.facts if isinstance(fact, Relation) and fact.op in ("le", "ge")]
    known = [fact for fact in facts if all(sym in table.hints for sym in fact.symbols)]
    return [Relation("eq", f.left, f.right) for f in known if table.vector(f.left) == table.vector(f.right)]


def _apart(dynamics: Dynamics, symbols: Sequence[Sym]) -> list[Sym]:
    """Those of the symbols that do not go in step with others of them."""
    ties = [tie for tie in _ties(dynamics) if tie.symbols <= frozenset(symbols)]
    tied = {solution[0] for tie in ties if (solution := solve(tie, list(symbols))) is not None}
    return [sym for sym in symbols if sym not in tied]


def _assignment(dynamics: Dynamics, values: Mapping[Sym, Number]) -> dict[Sym, Number]:
    """The sizes of the call but for some values, and for what goes in step with these."""
    table = dynamics.table
    assignment = {**{sym: v for sym, v in table.hints.items() if sym not in table.definitions}, **values}
    for tie in _ties(dynamics):
        follows = [sym for sym in assignment if sym not in values]
        solution = solve(tie, [*values, *follows]) if table.holds(tie, assignment) is False else None
        if solution is not None and solution[0] in follows:
            assignment[solution[0]] = table.evaluate(solution[1], assignment)
    return assignment


def _is_guarded(dynamics: Dynamics, values: Mapping[Sym, Number]) -> bool:
    """Whether what is guarded lets sizes pass."""
    assignment = _assignment(dynamics, values)
    return all(dynamics.table.holds(relation, assignment) is not False for relation in dynamics.required)


def _further(symbols: Sequence[Sym], hints: Mapping[Sym, Number]) -> Iterator[dict[Sym, int]]:
    """Sizes near those of the call."""
    chooser = random.Random(len(symbols))
    for _ in range(_FURTHER):
        values = {}
        for sym in symbols:
            hint = int(hints[sym])
            span = chooser.choice((1, 2, 4)) * hint
            values[sym] = chooser.randint(2, span + 2) if hint > 1 else hint + chooser.randint(-4, 4)
        yield values


def _gap(probed: ProbedCall, sizes: object, small: Sym, large: Sym) -> int:
    """By how much one size must at least exceed another for the formulas to hold."""
    hints = probed.dynamics.table.hints
    top = int(hints[large])
    return _least(top - int(hints[small]), lambda gap: _differs(probed, sizes, {small: top - gap}))


def _smallest(probed: ProbedCall, sizes: object, sym: Sym) -> int:
    """The size from which on the formulas hold, up to that of the call; 2 where they hold for all."""
    dynamics = probed.dynamics
    hint, step = int(dynamics.table.hints[sym]), dynamics.memory.modulus.get(sym.name, 1)  # others are not let pass
    first = 2 + (hint - 2) % step
    raising = bool(sizes)  # else it gives no tensor

    def differs(n: int) -> bool:
        return _differs(probed, sizes, {sym: first + step * n}, raising=raising)

    return first + step * _least((hint - first) // step, differs) if hint != first and differs(0) else 2


def _largest(probed: ProbedCall, sizes: object, sym: Sym, highest: int) -> int:
    """The size up to which the formulas hold, from that of the call on."""
    top = highest - int(probed.dynamics.table.hints[sym])
    return highest - _least(top, lambda n: _differs(probed, sizes, {sym: highest - n}))


def _least(right: int, differs: Callable[[int], bool]) -> int:
    """The least number, from 0 to `right`, from which on the sizes follow their formulas."""
    wrong = -1
    while right - wrong > 1:
        middle = (wrong + right) // 2
        if differs(middle):
            wrong = middle
        else:
            right = middle
    return right


def _guard_elements(builder: GraphBuilder, result: object) -> None:
    """Guard that results are not empty: a convolution raises instead, which the program may handle."""
    dynamics = builder.dynamics
    for size in itertools.chain.from_iterable(_sizes(builder, result) or ()):
        if dynamics is not None and isinstance(size, Expr):
            if dynamics.unbacked is None or not dynamics.unbacked.among(size):
                dynamics.require(Relation("ge", size, 1))


def _differs(probed: ProbedCall, sizes: Any, values: dict[Sym, int], *, raising: bool = False) -> bool:
    """Whether the call works at these sizes, and its results have others (or other strides) than the formulas say.

    Arguments:
        raising: what is told of a call that raises, if what is guarded lets these sizes pass.
    """
    table = probed.dynamics.table
    assignment = _assignment(probed.dynamics, values)
    if any(table.maximum.get(sym, value) < value for sym, value in assignment.items()):
        return False
    results = probed.computed(assignment)
    if results is None:
        return raising and _is_guarded(probed.dynamics, values)
    try:
        expected = [tuple([int(table.evaluate(size, assignment)) for size in shape]) for shape in sizes]
    except (ArithmeticError, ValueError, KeyError):
        return False
    tensors = tensors_of(results)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(expected) > len(shapes):  # strides of no elements say nothing
        strides = expected[len(shapes) :]
        shapes += [tensor.stride() if tensor.numel() else told for tensor, told in zip(tensors, strides)]
    return shapes != expected


def _sizes(builder: GraphBuilder, result: object) -> list[list[object]] | None:
    """The sizes of the tensors in a result as expressions; None where one follows no formula."""
    tensors_sizes: list[list[Any]] = []
    for tensor in tensors_of(result):
        info = builder.tensors.get(id(tensor))
        sizes: list[Any] = list(tensor.shape) if info is None or info.dynamic is None else info.dynamic.sizes
        if len(sizes) != tensor.dim() or any(not isinstance(size, int | Expr) for size in sizes):
            return None
        tensors_sizes.append(sizes)
    return tensors_sizes


def _strides(builder: GraphBuilder, result: object) -> list[list[object]] | None:
    """The same of their strides."""
    infos = [(tensor, builder.tensors.get(id(tensor))) for tensor in tensors_of(result)]
    strides = [list(t.stride()) if i is None else symbolic_tensors.strides_of(builder, i) for t, i in infos]
    return None if any(stride is None for each in strides for stride in each) else strides
