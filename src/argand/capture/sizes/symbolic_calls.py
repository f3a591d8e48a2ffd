"""Calls whose results' sizes vary: computed at the sizes of the call at hand, and at the probes.

What works at the hint but not at the probes works under a condition, which is searched for here and learned.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from argand import errors
from argand.capture.facts.handlers import Args, Kwargs
from argand.capture.facts.interfaces import GraphBuilder
from argand.capture.facts.values.symbolic import SYMBOLIC, SymbolicFloat, SymbolicInt, SymbolicSize
from argand.capture.sizes import symbolic_tensors
from argand.capture.sizes.symbolic_tensors import PROBED, at, memory_of, same_structure
from argand.graph import compat, time_limit
from argand.graph.sizes.expr import Expr, Sym, as_int, coefficient
from argand.graph.sizes.relations import Number, Relation, solve
from argand.graph.trees import rebuilt, tensors_of

_Tensor = torch.Tensor
Run = Callable[..., Any]
_MODULI = (
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256, 512,
    1024,
)  # fmt: skip
_TERMS = frozenset([
    getattr(owner, name)
    for owner in (torch, _Tensor)
    for base in ("add", "sub", "mul", "div", "truediv", "eq", "ne", "lt", "le", "gt", "ge")
    for name in (base, f"{base}_", f"__{base}__", f"__r{base}__", f"__i{base}__")
    if hasattr(owner, name)
])  # fmt: skip
_LIMITS = frozenset((torch.clamp, torch.clip, _Tensor.clamp, _Tensor.clamp_, _Tensor.clip, _Tensor.clip_))
_ITEMS = frozenset((_Tensor.__getitem__, _Tensor.__setitem__, _Tensor.select, torch.select))
_FILLS = {torch.full: 0, _Tensor.new_full: 1, torch.full_like: 0, _Tensor.fill_: 0, _Tensor.masked_fill: 0}
"""Functions that fill a tensor with a number, and which argument says its sizes."""
_MEASURED = frozenset(
    [f"{kind}{n}d" for kind in ("conv", "avg_pool", "max_pool") for n in (1, 2, 3)] + ["interpolate", "unfold", "stft"]
)
"""Functions whose sizes are quotients, and whose metadata costs little at large sizes (that of others is computed)."""
_EXACT = 1 << 10
"""Multiples of its inverse scale sizes without an error."""
_FARTHEST = 1 << 10
"""How far from the hint is looked for where a quotient grows."""
_APART = frozenset(["unbind", "split", "unsafe_split", "chunk", "unsafe_chunk", "tensor_split"])
_LARGEST = {
    **{
        dtype: float(torch.iinfo(dtype).max)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    },
    **{dtype: torch.finfo(dtype).max for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64)},
}


def _taken_apart(name: str, args: Args, kwargs: Kwargs) -> tuple[int, int] | None:
    """(length of parts, or number of them, as the program gives it; dimension) of a call that takes a tensor apart."""
    if not args or not isinstance(args[0], _Tensor):
        return None
    given = [*args[1:], *(value for key, value in kwargs.items() if key != "dim")]
    count = 1 if name == "unbind" else given.pop(0) if given else None
    dim = kwargs.get("dim", given[0] if given else 0)
    if count is None or type(count) not in (int, SymbolicInt) or type(dim) is not int:
        return None
    return (count, dim) if -args[0].dim() <= dim < args[0].dim() else None


def pieces(name: str, args: Args, kwargs: Kwargs) -> int | None:
    """Into how many tensors a function takes one apart, told without making them: at probes these may be millions."""
    taken = _taken_apart(name, args, kwargs)
    if taken is None or taken[0] < 1:
        return None
    count, size = taken[0], args[0].shape[taken[1]]
    if name == "unbind":
        return size
    if name == "tensor_split" or ("chunk" in name and not size):
        return count
    return max(-(-size // (-(-size // count) if "chunk" in name else count)), 1)


class ProbedCall:
    """A call, computed at the hint and the probes; where it fails at the probes, the condition under which it works.

    Arguments:
        run: computes the metadata of the result for plain arguments; with `judged=False` it raises anything where it
            cannot, else what ends the graph.
    """

    def __init__(self, builder: GraphBuilder, run: Run, func: Any, args: Args, kwargs: Kwargs) -> None:
        self.builder = builder
        assert builder.dynamics is not None
        self.dynamics = builder.dynamics
        self.func = func
        self.args, self.kwargs = args, kwargs
        self.run = run
        if getattr(func, "__name__", "") in _APART:
            parts = pieces(func.__name__, *self.arguments_at(0))
            self.run = self._into_as_many(run, parts)
            self._guard_pieces(parts)
        self.result: object = None
        self.memory: list[int | None] = []
        self.grad = False
        self.exprs: list[tuple[Any, int]] = []
        self._collect((args, kwargs))
        inputs: set[Sym] = set()
        for expr, _ in self.exprs:
            inputs |= self.dynamics.table.inputs(expr)
        self.symbols = [sym for sym in self.dynamics.table.symbols if sym in inputs]

    def _collect(self, value: Any) -> None:
        if isinstance(value, _Tensor):
            info = self.builder.tensors.get(id(value))
            if info is not None and info.dynamic is not None:
                pairs = zip(info.dynamic.sizes, info.tensor.shape)
                self.exprs += [(expr, size) for expr, size in pairs if expr is not None]
            else:
                self.exprs += [(size, size) for size in value.shape]
        elif type(value) in SYMBOLIC:
            self.exprs.append((value.expr, value.hint))
        elif isinstance(value, tuple | list):
            for item in tuple.__iter__(value) if isinstance(value, tuple) else value:
                self._collect(item)
        elif isinstance(value, dict):
            self._collect(list(value.values()))
        elif isinstance(value, slice):
            self._collect([value.start, value.stop, value.step])

    def numbers(self) -> list[Sym]:
        """The input symbols that numbers among the arguments depend on, sizes of tensors aside."""
        values = compat.tree_flatten((self.args, self.kwargs))[0]
        exprs = [value.expr for value in values if type(value) in SYMBOLIC]
        return [sym for sym in self.symbols if any(sym in self.dynamics.table.inputs(expr) for expr in exprs)]

    def refuse_counts(self) -> None:
        """Make a constant of an integer that is 0 or 1 now, where the call is given 0 or 1 because of it,
        and guard of others that they are larger, as the probes are: these two are what no other number is as a size or
        a power, say, if not as a term or an index. Floats that are computed from it are like any. A call that gives for
        these two what it gives for others takes them too.

        Raises:
            Restart: there is one.
        """
        dynamics = self.dynamics
        if self._is_term():
            return
        places, table = dynamics.places, dynamics.table
        least = self._least()
        whole = {sym for expr in least for sym in table.inputs(expr)}
        numbers = [sym for sym in table.symbols if sym in places and places[sym].what == "int"]
        counts = {sym for sym in numbers if table.hints[sym] in (0, 1)}
        if counts and len(numbers) > 1 and self._takes_counts(whole):  # of one, versions for 0 and 1 are few and faster
            table.counts = True
            return
        of_counts = {expr: counts & table.inputs(expr) for expr in least}
        small = {sym for expr in least if table.evaluate(expr, table.hints) < least[expr] for sym in of_counts[expr]}
        if small:
            symbolic_tensors.give_up(self.builder, small)
        for expr in [each for each, symbols in of_counts.items() if symbols]:
            dynamics.require(Relation("ge", expr, least[expr]))
        for sym in whole:
            if sym in places and places[sym].what == "int" and table.hints[sym] not in (0, 1):
                dynamics.require(Relation("ge", sym, 2) if table.hints[sym] > 1 else Relation("lt", sym))

    def _least(self) -> dict[Expr, int]:
        """How large the whole numbers and sizes of the call are to be: 1 where slices begin, which take all from 0."""
        exprs = [expr for expr, hint in self.exprs if type(hint) is int and isinstance(expr, Expr)]
        index = self.args[1] if self.func in _ITEMS and len(self.args) > 1 else ()
        slices = [each for each in (index if type(index) is tuple else (index,)) if type(each) is slice]
        starts = [each.start.expr for each in slices if type(each.start) is SymbolicInt]
        return {expr: 1 if exprs.count(expr) == starts.count(expr) else 2 for expr in exprs}

    def _refuse_overflow(self, result: object) -> None:
        """Make a constant of a number that eager refuses to convert to the dtype of a result, and guard of others that
        it does not.

        Raises:
            Restart: there is one.
        """
        values = compat.tree_flatten((self.args, self.kwargs))[0]
        floats = [value for value in values if type(value) in SYMBOLIC and type(value.hint) is float]
        if floats and (self.func not in _TERMS or self.kwargs):  # these compute with it as it is
            dtypes = {tensor.dtype for tensor in (*tensors_of(result), *tensors_of(self.args[:1]))}
            largest = min([_LARGEST[dtype] for dtype in dtypes if dtype in _LARGEST], default=math.inf)
            for value in floats:
                inside = self.dynamics.compare("le", value, largest) and self.dynamics.compare("ge", value, -largest)
                if not inside:
                    symbolic_tensors.give_up(self.builder, self.dynamics.table.inputs(value.expr))

    def _takes_counts(self, whole: set[Sym]) -> bool:
        """Whether the results are what they are at the probes wherever a size or a number is 0 or 1."""
        table = self.dynamics.table
        if self.dynamics.unbacked is not None:
            return False
        try:
            at_hint, *at_probes = [self._computed(table.assignments[i]) for i in (0, *PROBED)]
            tensors = [tensors_of(result) for result, _ in (at_hint, *at_probes)]
            if not all(same_structure(at_hint[0], result) and memory == at_hint[1] for result, memory in at_probes):
                return False
            sizes = [
                [table.fit(numbers, at=(0, *PROBED)) for numbers in zip(*[each.shape for each in alike])]
                for alike in zip(*tensors)
            ]
            cases = [case for expr, hint in self.exprs if type(hint) is int for case in self._at_counts(expr, whole)]
        except (errors.GraphBreak, ArithmeticError, ValueError, LookupError):
            return False
        for case in cases:
            result, memory = self._computed(case)
            if memory != at_hint[1] or not same_structure(at_hint[0], result):
                return False
            tensors.append(tensors_of(result))
            for formulas, tensor in zip(sizes, tensors[-1]):
                if any(n is None or table.evaluate(n, case) != size for n, size in zip(formulas, tensor.shape)):
                    return False
        return bool(sizes) and all(tensor.is_contiguous() for each in tensors for tensor in each)

    def _at_counts(self, expr: object, whole: set[Sym]) -> Iterator[dict[Sym, Number]]:
        """Assignments at which a size is 0 and 1, as far as what is guarded allows.

        Raises:
            LookupError: there is none, though nothing says that the size is larger.
        """
        table, bounds = self.dynamics.table, self.dynamics.bounds
        if not isinstance(expr, Expr) or whole.isdisjoint(table.inputs(expr)):
            return
        for count in (0, 1):
            cases = []
            for base in map(self._probe, (*PROBED, 0)):
                for sym in whole & table.inputs(expr):
                    step = as_int(coefficient(expr, sym) or 0)
                    if step in (1, -1):
                        case = {**base, sym: base[sym] + step * (count - table.evaluate(expr, base))}
                        guarded = (table.holds(relation, case) is not False for relation in self.dynamics.required)
                        if case[sym] >= 0 and all(guarded):
                            cases.append(case)
            if not cases and not bounds.implied(Relation("ge", expr, count + 1)):
                raise LookupError
            yield from cases[:1]

    def _is_term(self) -> bool:
        """Whether numbers are but terms of a sum, a product or a comparison, or say which part of a tensor is taken."""
        if self.func in _ITEMS and len(self.args) > 1:
            index = self.args[1]
            slices = [each for each in (index if type(index) is tuple else (index,)) if type(each) is slice]
            return not any(type(end) in SYMBOLIC for each in slices for end in (each.start, each.stop, each.step))
        sizes = _FILLS.get(self.func)
        if sizes is not None and len(self.args) > sizes:
            return not any(type(each) in SYMBOLIC for each in compat.tree_flatten(self.args[sizes])[0])
        return self.func in _TERMS | _LIMITS and self.kwargs.keys() <= {"min", "max", "alpha"}

    def compute(self) -> tuple[Any, list[Any]]:
        """(result at the hint, results at the probes).

        Raises:
            Restart: the call works at the sizes of this call only under a condition that is now learned.
        """
        arguments = self.arguments_at(0)
        result = self.run(*arguments)
        self._refuse_overflow(result)
        with torch._C.DisableTorchFunction():
            if any(each.layout is not torch.strided for each in tensors_of(result)):
                raise errors.graph_break(
                    kind="result of unknown size",
                    context=getattr(self.func, "__name__", ""),
                    explanation="it makes a sparse tensor of tensors whose sizes vary.",
                )
        self.memory = memory_of(result, arguments)
        siblings = []
        alike = True
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            for i in range(1, len(PROBED) + 1):
                arguments = self.arguments_at(i)
                siblings.append(self.run(*arguments, judged=False))
                alike = alike and memory_of(siblings[-1], arguments) == self.memory
        except (errors.GraphBreak, Exception):  # what fails at the probes only says something of the sizes, never more
            siblings.clear()
        finally:
            torch._C._set_grad_enabled(grad)
        if not siblings or not alike or not all(same_structure(result, sibling) for sibling in siblings):
            self.result = result
            self.learn()
        if getattr(self.func, "__name__", "") in _MEASURED and self._is_exact():
            self._know_quotients(result, siblings)
        return result, siblings

    def _is_exact(self) -> bool:
        """Whether no size is scaled by a number that rounds: 245 * (1/49) is less than 5, 147 * (1/49) is 3."""
        numbers = compat.tree_flatten((self.args, self.kwargs))[0]
        scales = [each for each in numbers if type(each) in (float, SymbolicFloat)]
        return all(type(scale) is float and (scale * _EXACT).is_integer() for scale in scales)

    def _know_quotients(self, result: object, siblings: list[Any]) -> None:
        """Find the sizes of results that are quotients by more than the hint and the probes tell apart (those of a
        convolution of stride 4): where they grow says by what."""
        table = self.dynamics.table
        for place, tensors in enumerate(zip(*map(tensors_of, (result, *siblings)))):
            for dim, sizes in enumerate(zip(*[tensor.shape for tensor in tensors])):
                table.fit(sizes, at=(0, *PROBED), measured=functools.partial(self._measured, place, dim, sizes))

    def _measured(self, place: int, dim: int, sizes: Sequence[int]) -> Expr | None:
        """A size as a rounded quotient of one symbol, or the product of those of several (of windows)."""
        table = self.dynamics.table
        whole = [sym for sym in self.symbols if table.kinds[sym] == "int"]
        quotients = {
            sym: quotient for sym in whole if (quotient := self._quotient(sym, place, dim, sizes[0])) is not None
        }
        product = math.prod(quotients.values(), start=1)
        if not isinstance(product, Expr):
            return None
        times, rest = divmod(sizes[0], int(table.vector(product)[0]))
        if rest or [times * table.vector(product)[i] for i in (0, *PROBED)] != [*sizes]:
            return None
        for turn in (1, 2, 5, _FARTHEST) if len(quotients) > 1 else ():
            moved = {sym: int(table.hints[sym]) + self._step(sym) * turn * (i + 1) for i, sym in enumerate(quotients)}
            try:
                if self._size_at(moved, place, dim) != times * int(table.evaluate(product, moved)):
                    return None
            except IndexError:  # it fails there
                return None
        return product * times

    def _step(self, sym: Sym) -> int:
        return self.dynamics.memory.modulus.get(sym.name, 1)

    def _size_at(self, moved: Mapping[Sym, Number], place: int, dim: int) -> int:
        """A size where some symbols have other values than in the call at hand."""
        return int(tensors_of(self.computed({**self._probe(0), **moved}))[place].shape[dim])

    def _quotient(self, sym: Sym, place: int, dim: int, size: int) -> Expr | None:
        """The rounded quotient of one symbol that a size is a multiple of, which was seen at a dozen values; None where
        there is no such.

        Arguments:
            place, dim: of the size among the results.
            size: in the call at hand.
        """
        table, step, hint = self.dynamics.table, self._step(sym), int(self.dynamics.table.hints[sym])

        def at(turn: int) -> int:
            return self._size_at({sym: hint + step * turn}, place, dim)

        def grown(least: int) -> int:
            return bisect.bisect_left(range(_FARTHEST), True, key=lambda turn: at(turn) >= least)

        try:
            first = grown(size + 1)
            if not 0 < first < _FARTHEST:
                return None
            times = at(first) - size
            second, third = grown(size + times + 1), grown(size + 2 * times + 1)
            if not first < second < third < _FARTHEST or size % times:
                return None
            divisor = step * (second - first)
            quotient = (sym + ((size // times + 1) * divisor - hint - step * first)) // divisor
            far = _FARTHEST << 7  # where 0.2501 * n is no quarter
            seen = {turn: at(turn) for turn in (1, 2, 3, second - 1, third - 1, 2 * third, 5 * third + 1, far)}
        except IndexError:  # it fails there
            return None
        holds = all(
            times * table.evaluate(quotient, {sym: hint + step * turn}) == seen_size for turn, seen_size in seen.items()
        )
        return quotient if holds else None

    def _into_as_many(self, run: Run, parts: int | None) -> Run:
        """`run` that raises where a tensor is taken apart into more or fewer than at the hint."""
        name = self.func.__name__

        def checked(args: Args, kwargs: Kwargs, judged: bool = True) -> object:
            if pieces(name, args, kwargs) != parts:
                raise ValueError("another number of tensors")
            return run(args, kwargs, judged)

        return checked

    def _guard_pieces(self, parts: int | None) -> None:
        """Guard into how many tensors one is taken apart, where two numbers of which neither is known say so: at the
        probes one of these may be larger than the other as in the call at hand, and others would not be told apart.

        Raises:
            Restart: at a probe they are others.
        """
        name, dynamics = self.func.__name__, self.dynamics
        taken = _taken_apart(name, self.args, self.kwargs)
        if taken is None or not parts or name == "unbind":
            return
        count, dim = taken
        info = self.builder.tensors.get(id(self.args[0]))
        size = self.args[0].shape[dim]
        if info is not None and info.dynamic is not None and info.dynamic.sizes[dim] is not None:
            size = dynamics.wrap(info.dynamic.sizes[dim], size)
        varying = [each.expr for each in (size, count) if type(each) is SymbolicInt]
        if not varying or (dynamics.unbacked is not None and dynamics.unbacked.among(*varying)):
            return
        if name == "tensor_split":
            dynamics.compare("eq", count, parts)
        elif "chunk" in name and type(count) is int and size > (count - 1) ** 2:
            pass  # each of so many has elements
        else:
            length = (size + count - 1) // count if "chunk" in name else count
            dynamics.compare("le", size, length * parts)
            dynamics.compare("gt", size, length * (parts - 1))

    def arguments_at(self, index: int) -> tuple[Args, Kwargs]:
        """The arguments at the hint (0) or at the probe of sibling `index`."""
        return at(self.builder, self.args, index), at(self.builder, self.kwargs, index)

    def learn(self) -> None:
        """Raises Restart: an order, an equality, a divisibility, or constants were learned."""
        table = self.dynamics.table
        if any(table.kinds[sym] == "int" and sym.minimum is None for sym in self.symbols):
            self.dynamics.one_sign()
        self._learn_order()
        equalities = self._equalities()
        for relation in [r for r in equalities if self._works_when_equal([r])] or self._together(equalities):
            self.dynamics.learn(relation, asserted=True)
        for sym in self.symbols:
            modulus = self._modulus(sym)
            if modulus is not None:
                hint = int(self.dynamics.table.hints[sym])
                self.dynamics.learn(Relation("eq", sym % modulus, hint % modulus), asserted=True)
        for sym in self.symbols:
            if self._works_with_sign(sym):
                self.dynamics.learn(Relation("gt" if self.dynamics.table.hints[sym] > 0 else "lt", sym), asserted=True)
        if self._works_nearby():
            self.dynamics.nearer()
        for sym in self.symbols:
            hints = self.dynamics.table.hints
            if all(self._works({**self._probe(i), sym: hints[sym]}) for i in PROBED):
                symbolic_tensors.give_up(self.builder, [sym])
        symbolic_tensors.give_up(self.builder, self.symbols or self.dynamics.table.symbols)

    def _works_with_sign(self, sym: Sym) -> bool:
        """Whether the call works for floats of the sign of the one at hand, and for no others."""
        hint = self.dynamics.table.hints[sym]
        if not isinstance(hint, float) or hint == 0:
            return False
        probes = [self._probe(i) for i in PROBED]
        if all(probe[sym] * hint > 0 for probe in probes):
            return False
        return all(self._works({**probe, sym: math.copysign(probe[sym], hint)}) for probe in probes)

    def _works_nearby(self) -> bool:
        """Whether the call works at sizes that differ little from those at hand."""
        table = self.dynamics.table
        for step in (1, 3):
            near = {
                sym: table.hints[sym] + step * (1 + 2 * i) if table.kinds[sym] == "int" else table.hints[sym]
                for i, sym in enumerate(self.symbols)
            }
            if any(table.maximum.get(sym, value) < value for sym, value in near.items()):
                return False
            if not self._works({**self._probe(0), **near}):
                return False
        return bool(self.symbols)

    def _probe(self, index: int) -> dict[Sym, Number]:
        table = self.dynamics.table
        return {sym: v for sym, v in table.assignments[index].items() if sym not in table.definitions}

    def _equalities(self) -> list[Relation]:
        equalities: dict[Relation, None] = {}
        for i, (a, size) in enumerate(self.exprs):
            for b, other in self.exprs[i + 1 :]:
                if size == other and a is not b and (isinstance(a, Expr) or isinstance(b, Expr)) and a != b:
                    left, right = (a, b) if isinstance(a, Expr) else (b, a)
                    equalities[Relation("eq", left, right)] = None
        return list(equalities)

    def _learn_order(self) -> None:
        """A number that must not exceed a size, or another one: `x.topk(k)`."""
        table, numbers = self.dynamics.table, self.numbers()
        known = [sym for sym in self.symbols if sym in self.dynamics.places and table.kinds[sym] == "int"]
        for small, large in itertools.permutations(known, 2):
            met = all(table.assignments[i][small] <= table.assignments[i][large] for i in PROBED)
            if met or table.hints[small] > table.hints[large] or not (small in numbers or large in numbers):
                continue
            equal = self._works_ordered(small, large, equal=True)
            if (equal or table.hints[small] < table.hints[large]) and self._works_ordered(small, large):
                self.dynamics.learn(Relation("le" if equal else "lt", small, large), asserted=True)
        constants = sorted({size for expr, size in self.exprs if not isinstance(expr, Expr)}, reverse=True)
        for small, most in itertools.product((sym for sym in known if sym in numbers), constants):
            if table.hints[small] <= most < max(table.assignments[i][small] for i in PROBED):
                if all(self._works({**probe, small: min(probe[small], most)}) for probe in map(self._probe, PROBED)):
                    self.dynamics.learn(Relation("le", small, most), asserted=True)

    def _works_ordered(self, small: Sym, large: Sym, *, equal: bool = False) -> bool:
        for i in PROBED:
            probe = self._probe(i)  # with the large one alone larger: it may be another that the small one exceeds
            if not self._works({**probe, large: probe[small] if equal else max(probe[large], probe[small] + 1)}):
                return False
        return True

    def _together(self, equalities: list[Relation]) -> list[Relation]:
        """Equalities under which the call works, and without each of which it does not: `x.view(a, b)`."""
        one_each = {solution[0]: relation for relation in reversed(equalities) if (solution := self._solved(relation))}
        needed = list(one_each.values())
        if len(needed) < 2 or not self._works_when_equal(needed):
            return []
        for relation in list(needed):
            fewer = [each for each in needed if each is not relation]
            needed = fewer if self._works_when_equal(fewer) else needed
        return needed

    def _solved(self, relation: Relation) -> tuple[Sym, Expr] | None:
        places = self.dynamics.places
        if not all(sym in places for sym in relation.symbols):
            return None
        return solve(relation, [sym for sym in self.dynamics.table.symbols if sym in places])

    def _works_when_equal(self, relations: list[Relation]) -> bool:
        table = self.dynamics.table
        for i in PROBED:
            assignment = self._probe(i)
            for relation in relations:
                solution = self._solved(relation)
                if solution is None:
                    return False
                sym, value = solution
                assignment[sym] = table.evaluate(value, assignment)
                if assignment[sym] < 1:
                    return False
            if not all(table.holds(each, assignment) for each in relations) or not self._works(assignment):
                return False
        return True

    def _modulus(self, sym: Sym) -> int | None:
        hint = self.dynamics.table.hints[sym]
        if not isinstance(hint, int):
            return None
        for modulus in _MODULI:
            if modulus > max(2 * hint, 2):
                return None
            others = {**self._probe(PROBED[0])}
            if all(self._works({**others, sym: hint + modulus * k}) for k in (1, 3, 7)):
                return modulus if not self._works({**others, sym: hint + 1}) else None
        return None

    def _works(self, assignment: dict[Sym, Number]) -> bool:
        result, memory = self._computed(assignment)
        return memory == self.memory and same_structure(self.result, result)

    def computed(self, assignment: dict[Sym, Number]) -> object:
        """The call's result at any sizes; None where it fails."""
        return self._computed(assignment)[0]

    def _computed(self, assignment: dict[Sym, Number]) -> tuple[object, list[int | None]]:
        time_limit.check()
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            arguments = self._at(self.args, assignment), self._at(self.kwargs, assignment)
            result = self.run(*arguments, judged=False)
            return result, memory_of(result, arguments)
        except (errors.GraphBreak, Exception):
            return None, []
        finally:
            torch._C._set_grad_enabled(grad)

    def _at(self, value: Any, assignment: dict[Sym, Number]) -> object:
        """An argument under any assignment: its tensors are made anew from their expressions."""
        if isinstance(value, _Tensor):
            info = self.builder.tensors.get(id(value))
            if info is None or info.dynamic is None:
                return value
            strides = symbolic_tensors.strides_of(self.builder, info)
            if None in info.dynamic.sizes or None in strides:
                raise ValueError("sizes that nothing fits")
            tensor = symbolic_tensors.empty(self.dynamics, info.dynamic.sizes, strides, info.tensor.dtype, assignment)
            return tensor.requires_grad_() if self.grad and value.requires_grad else tensor
        real = type(value)
        if real in SYMBOLIC:
            return self.dynamics.table.evaluate(value.expr, assignment)
        if real is SymbolicSize:
            return torch.Size([self._at(item, assignment) for item in tuple.__iter__(value)])
        return rebuilt(value, lambda item: self._at(item, assignment))
