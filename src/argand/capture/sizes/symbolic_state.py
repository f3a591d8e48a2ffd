"""The symbols of one capture attempt, what must hold of them, and what earlier attempts at the frame taught.

Tracing runs on the call's own sizes and on probes (graph/sizes/symbols.py). A condition that the call meets and a probe
does not is a fact to learn: the attempt is given up and the frame interpreted again, with probes that meet it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily

from argand import errors
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState, GraphBuilder, Unbacked
from argand.capture.facts.values.symbolic import (
    SYMBOLIC,
    SymbolicFloat,
    SymbolicInt,
    evaluated,
    expr_of,
    hint_of,
    is_one,
    is_whole,
    plain_of,
)
from argand.capture.facts.values.symbols import Memory, Place
from argand.capture.sizes import subclasses
from argand.capture.sizes.symbolic_emit import Nodes, text
from argand.capture.world import narration
from argand.graph.python_operators import ARITHMETIC, COMPARISONS
from argand.graph.sizes.expr import Const, Expr, Sym, free_symbols, substitute
from argand.graph.sizes.relations import Bounds, Number, Relation, Value, between, is_range, moduli, solve, with_room
from argand.graph.sizes.symbols import (
    BOUNDED,
    DOMAIN,
    FUNCTIONS,
    LARGE,
    LIMITS,
    ROUGH,
    Computed,
    Definition,
    SymbolTable,
)


class Restart(BaseException):
    """Interpret the frame again: the memory has learned something."""


class Dynamics:
    """The symbols of one capture attempt.

    Fields:
        table: their values at the hints and probes.
        places: where each symbol is found at run time; also symbols that are only another name of an expression.
        required: the guards, with the position in the user's program that needed each.
        bounded: bytes of tensors that are known to fit on a device (memory.py).
        of_both_signs: there are integers that may have either sign.
    """

    def __init__(self, state: CaptureState, memory: Memory) -> None:
        self.state = state
        self.memory = memory
        bends = [bend for key, bend in memory.bends.items() if key not in memory.decided]
        self.table = SymbolTable(LIMITS[memory.nearness], bends)
        self.places: dict[Sym, Place] = {}
        self.required: dict[Relation, object] = {}
        self.bounds = Bounds(self.table.kinds, self.table.maximum)
        self.bounded: set[tuple[Expr, torch.device]] = set()
        self._values: dict[Place, object] = {}
        self._by_size: dict[int, list[Sym]] = {}
        self._asserted, self.of_both_signs = 0, False
        self._nodes: Nodes | None = None
        self.unbacked: Unbacked | None = None
        self.keys: dict[int, object] = {}

    # ---------------------------------------------------------------- making symbols

    def symbol(
        self, place: Place, hint: object, *, low: int | None = 2, high: int | None = None, above: Value = 0
    ) -> object:
        """The expression for the number found at `place`; the number itself where it is to be a constant.

        Arguments:
            above: probes are no less than this.
        """
        if place in self._values:
            return self._values[place]
        expr = self._values[place] = self._make(place, hint, low, high, above)
        self._guard_asserted()
        return expr

    def _make(self, place: Place, hint: Any, low: int | None, high: int | None, above: Value) -> object:
        memory = self.memory
        name = memory.name(place)
        if place in memory.static or memory.exhausted:
            memory.constants[name] = hint
            return hint
        same: Expr | None = memory.solved.get(name)
        if same is not None:  # of symbols, some of which turned out to be constants since
            constants = memory.constants
            same = substitute(same, {s: constants[s.name] for s in free_symbols(same) if s.name in constants})
            if isinstance(same, Const) or not all(s in self.table.hints for s in free_symbols(same)):
                memory.static.add(place)
                return hint
        if same is None and place.what == "size" and place not in memory.marked:
            same = self._equal(place, hint)
        if same is not None:
            alias = Sym(name, None)
            self.places[alias] = place
            self.record(Relation("eq", alias, same))
            return same
        return self._new(place, hint, name, low, high, above)

    def one_sign(self) -> None:
        """Raises Restart where there are such: they have the call's sign from here on."""
        if self.of_both_signs:
            self.memory.one_sign = True
            self.memory.learned += 1
            raise Restart

    def _equal(self, place: Place, hint: int) -> Sym | None:
        """Equal sizes are one symbol until a call shows otherwise, but not of one tensor whose sizes were seen to vary:
        that is square by chance, if no other one says that its sizes are one. Of several it is one of the same dim."""
        policy, alike = self.state.policy, self._by_size.get(hint, [])
        if policy is not None:
            own = () if policy.everything else (place.source,)
            alike = [sym for sym in alike if self.places[sym].source not in own]
            alike = [sym for sym in alike if not policy.unequal(place, self.places[sym])]
        return next((sym for sym in alike if self.places[sym].dim == place.dim), alike[0] if alike else None)

    def _new(self, place: Place, hint: Any, name: str, low: int | None, high: int | None, above: Value) -> object:
        memory = self.memory
        kind: Any = "float" if place.what == "float" else "int"
        try:
            sym = self.table.new(
                str(place), hint, min=low, max=high, kind=kind, name=name,
                modulus=memory.modulus.get(name, 1), facts=(*memory.facts, *memory.room), above=above,
            )  # fmt: skip
        except ValueError:
            self._make_room(Sym(name, low if kind == "int" else None), hint)
            self._decide([place])
            memory.narrow.add(place)
            self.give_up_place(place, Relation("eq", Sym(name, None), hint))
            return hint
        self.places[sym] = place
        narration.symbol(sym, place, hint, low, high)
        if place.what == "size":
            self._by_size.setdefault(hint, []).append(sym)
        if low is not None and kind == "int":
            self.record(Relation("ge", sym, low))
        if high is not None:
            self.record(Relation("le", sym, high))
        return sym

    def _make_room(self, sym: Sym, hint: Number) -> None:
        """Choose probes of earlier symbols such that inequalities leave other values to a later one.

        Raises:
            Restart: there may be such probes.
        """
        memory = self.memory
        values = {each: number for each, number in self.table.hints.items() if each in self.places} | {sym: hint}
        relations = [fact for fact in (*memory.facts, *memory.room) if isinstance(fact, Relation)]
        limits = [limit for limit in between(sym, relations) if limit not in relations]
        if not limits:
            limits = [limit for fact in relations for limit in with_room(fact, sym, values) if limit not in relations]
        if limits:
            memory.learned += 1
            memory.room += limits
            raise Restart

    def _guard_asserted(self) -> None:
        asserted = self.memory.asserted
        if self._asserted == len(asserted):
            return
        hints = self.table.hints
        for relation in asserted:
            if relation not in self.required and all(s in hints for s in relation.symbols):
                self.record(relation)
                self._asserted += 1

    def wrap(self, expr: Any, hint: Any) -> object:
        """An expression as the program sees it: a symbolic number, or the plain one if nothing varies."""
        if not isinstance(expr, Expr):
            return expr
        if isinstance(expr, Const):
            return expr.value
        if isinstance(hint, float):
            return SymbolicFloat(self, expr, hint)
        return SymbolicInt(self, expr, hint)

    # ---------------------------------------------------------------- arithmetic

    def arithmetic(self, name: str, left: object, right: object) -> object:
        """`left name right`, of plain and symbolic numbers."""
        function = FUNCTIONS[name]
        if self.unbacked is not None and self.unbacked.among(expr_of(left), expr_of(right)):
            self._defined_for_all(name, left, right)
        if name == "pow" and is_one(left, right):
            return 1.0
        rule = ARITHMETIC[name].right
        if rule == "divisor" and type(right) in SYMBOLIC:
            self.compare("ne", right, 0)
        whole = type(right) is int and right >= 0
        if name == "pow" and not whole and type(left) is not complex and not self.compare("gt", left, 0):
            left, right = plain_of(left), plain_of(right)  # may raise, or be complex, for others
        hint = evaluated(function, left, right)
        if type(hint) not in (int, float):
            return function(plain_of(left), plain_of(right))
        a, b = expr_of(left), expr_of(right)
        if is_whole(left) and is_whole(right):
            expr = self._polynomial(name, a, b)
            if expr is not None:
                if isinstance(expr, Expr):
                    self.table.know(expr)
                return self.wrap(expr, hint)
            varies = rule == "exponent" and type(right) in SYMBOLIC
            if varies and type(hint) is int and not self._is_small_power(name, left, right):
                right, b = plain_of(right), plain_of(right)
        result = self._define(name, hint, (left, right), a, b)
        if name == "pow" and type(result) is SymbolicFloat:
            self.compare("le", result, sys.float_info.max)  # the guard computes it, and what overflows raises here
        return result

    def _is_small_power(self, name: str, base: object, exponent: object) -> bool:
        """Whether a power of a constant (or one that is shifted) has so few bits, guarded, that guards compute it."""
        if type(base) is not int or name == "rshift":
            return False
        most = 62 // max(base.bit_length(), 1) if name == "pow" else 62 - base.bit_length()
        return self.compare("ge", exponent, 0) and self.compare("le", exponent, most)

    def _defined_for_all(self, name: str, left: object, right: object) -> None:
        """Arithmetic on numbers that nothing is known of must not raise."""
        rule = ARITHMETIC[name].right
        if rule == "divisor" and not self.compare("ne", right, 0):
            raise ZeroDivisionError("division by zero")
        if rule == "exponent" and not (type(right) is int and 0 <= right <= 64):
            for number in (left, right):
                plain_of(number)

    def _polynomial(self, name: str, a: Any, b: object) -> object:
        if name == "add":
            return a + b
        if name == "sub":
            return a - b
        if name == "mul":
            return a * b
        if name == "floordiv":
            return a // b
        if name == "mod":
            return a % b
        if name == "pow" and isinstance(b, int) and 0 <= b <= 4:
            return math.prod([a] * b)
        return None

    def apply(self, name: str, value: Any) -> object:
        """A function of one symbolic number (`FUNCTIONS`)."""
        if self.unbacked is not None and name in DOMAIN and self.unbacked.among(value.expr):
            value = value.number()  # ends the graph
        if name in DOMAIN:
            op, bound = DOMAIN[name]
            self.compare(op, value, bound)
        if name in BOUNDED and type(value) is SymbolicFloat and not self._is_bounded(value, BOUNDED[name]):
            return FUNCTIONS[name](plain_of(value))
        hint = evaluated(FUNCTIONS[name], value)
        if type(value) is SymbolicInt:
            if name == "neg":
                return self.wrap(-value.expr, hint)
            if name == "abs" and self.unbacked is not None and self.unbacked.among(value.expr):
                return self._define(name, hint, (value,), value.expr)
            if name == "abs":
                return value if self.compare("ge", value, 0) else self.wrap(-value.expr, hint)
            if name in ("int", "floor", "ceil", "trunc", "round"):
                return value
        elif name == "float":
            return value
        return self._define(name, hint, (value,), value.expr)

    def function(self, name: str, *values: object) -> object:
        """A function of several numbers."""
        if self.unbacked is not None and self.unbacked.among(*map(expr_of, values)):
            return FUNCTIONS[name](*map(plain_of, values))
        return self._define(name, evaluated(FUNCTIONS[name], *values), values, *map(expr_of, values))

    def _is_bounded(self, value: SymbolicFloat, limit: float) -> bool:
        """Whether a float is from -limit to limit, guarded; quotients of sizes are, of data only the graph knows."""
        origins = () if self.unbacked is None else self.unbacked.origins
        inputs = self.table.inputs(value.expr)
        if limit >= LARGE and all(sym in origins or self.table.kinds[sym] == "int" for sym in inputs):
            return True
        return self.compare("le", value, limit) and self.compare("ge", value, -limit)

    def fits(self, value: Any) -> bool:
        """Whether torch takes a number: for a whole one that is computed from given numbers, not sizes, a guard."""
        expr = value.expr
        if type(value) is not SymbolicInt or (type(expr) is Sym and expr not in self.table.definitions):
            return True
        places = (self.places.get(sym) for sym in self.table.inputs(expr))
        if all(place is None or place.what in ("size", "stride") for place in places):
            return True
        return self.compare("le", value, LARGE) and self.compare("ge", value, -LARGE)

    def _define(self, name: str, hint: object, operands: tuple[object, ...], *exprs: Any) -> object:
        try:
            sym = self.table.define(name, *exprs)
            if all(type(value) is type(hint) and math.isfinite(value) for value in self.table.vector(sym)):
                return self.wrap(sym, hint)
        except OverflowError:  # 2.0 ** 2000
            self.nearer()
        except (ArithmeticError, ValueError, TypeError):
            pass  # the function is not defined for some of the probes: the numbers are constants
        return FUNCTIONS[name](*[plain_of(operand) for operand in operands])

    def select(self, name: str, left: object, right: object) -> object:
        """`min` or `max` of two numbers: a number of its own, or one of them, by a guard."""
        unbacked = self.unbacked is not None and bool(self.unbacked.among(expr_of(left), expr_of(right)))
        if unbacked and is_whole(left) and is_whole(right):
            exprs = (expr_of(left), expr_of(right))
            return self._define(name, FUNCTIONS[name](hint_of(left), hint_of(right)), (left, right), *exprs)
        result = NotImplemented if unbacked else self._extremum(name, left, right)
        if result is not NotImplemented:
            return result
        if type(left) in (SymbolicInt, int) and type(right) in (SymbolicInt, int):
            smaller = self.compare("le", left, right)
            return left if smaller == (name == "min") else right
        # of equals it is the first one: 1, 1.0 and True, 0.0 and -0.0
        return right if self.compare("lt" if name == "min" else "gt", right, left) else left

    def _extremum(self, name: str, left: object, right: object) -> object:
        """The least or greatest of two numbers of one type as a number of its own; NotImplemented where a guard is to
        say which it is: it is certain, the program needs to know, or probes do not tell it from one of them.

        Raises:
            Restart: there may be probes that do.
        """
        one, other = hint_of(left), hint_of(right)
        a, b, memory = expr_of(left), expr_of(right), self.memory
        if type(one) is not type(other) or type(one) not in (int, float):
            return NotImplemented
        if any(self.bounds.implied(Relation(op, a, b)) for op in ("le", "ge")):
            return NotImplemented
        key = f"{name}({self.text(a)}, {self.text(b)})"
        if key in memory.decided:
            return NotImplemented
        vectors = [tuple([vector[i] for i in ROUGH]) for vector in map(self.table.vector, (a, b))]
        if tuple(map(FUNCTIONS[name], *vectors)) in vectors:
            if key in memory.bends or (type(one) is float and isinstance(a, Expr) and isinstance(b, Expr)):
                return NotImplemented
            memory.bends[key] = Relation("lt" if any(map(operator.gt, *vectors)) else "le", a, b)  # they may be equal
            memory.learned += 1
            raise Restart
        memory.extrema[key] = frozenset(self.places[sym] for sym in self.table.inputs(a) | self.table.inputs(b))
        return self._define(name, FUNCTIONS[name](one, other), (left, right), a, b)

    def _decide(self, places: Iterable[Place]) -> None:
        """Have extrema of numbers decided by guards, before these become constants.

        Raises:
            Restart: there are some.
        """
        memory = self.memory
        given = set(places)
        keys = {key for key, of in memory.extrema.items() if not given.isdisjoint(of)} - memory.decided
        if keys:
            memory.decided |= keys
            memory.learned += 1
            raise Restart

    def with_tensor(self, name: str, number: object, tensor: torch.Tensor, reflected: bool) -> object:
        """An operator of a number and a tensor (`reflected`: the tensor is on the left)."""
        comparison = COMPARISONS.get(name)
        op = ARITHMETIC[name] if comparison is None else comparison
        method = op.method if comparison is None and reflected else op.reflected
        return recorded(self.state, getattr(torch.Tensor, method), (tensor, number), {})

    # ---------------------------------------------------------------- conditions

    def compare(self, op: str, left: object, right: object) -> bool:
        """Whether `left op right` in the call at hand; the answer is guarded."""
        if self.unbacked is not None and self.unbacked.among(expr_of(left), expr_of(right)):
            return self.unbacked.decide(op, expr_of(left), expr_of(right))
        a, b = hint_of(left), hint_of(right)
        function = COMPARISONS[op].native
        holds: bool = function(a, b)
        if a != a or b != b:  # NaN is not the opposite of anything
            return bool(function(plain_of(left), plain_of(right)))
        relation = Relation(op, expr_of(left), expr_of(right))
        self.require(relation if holds else relation.negated())
        return holds

    def require(self, relation: Relation, *, formulas: bool = True, needed: bool = False) -> None:
        """Guard a condition that holds in the call at hand.

        Arguments:
            formulas: where it does not hold, results may be others: probes must meet it too.
            needed: the program needs a plain number.

        Raises:
            Restart: a probe does not meet it.
        """
        if relation in self.required or self._implied(relation):
            return
        self._must_be_backed(relation)
        table = self.table
        both, parts = table.parts(relation)
        if both:
            for part in parts:
                self.require(part, formulas=formulas, needed=needed)
            return
        for probe in table.probes if formulas else ():
            if table.holds(relation, probe) is not True:
                self.learn(relation, needed=needed)
        self.record(relation)
        self.bounds.add(relation)

    def _implied(self, relation: Relation) -> bool:
        """Whether a condition is certain."""
        if self.bounds.implied(relation):
            return True
        both, parts = self.table.parts(relation)
        return bool(parts) and (all if both else any)(map(self._implied, parts))

    def record(self, relation: Relation) -> None:
        """Guard a condition, and note where it was needed."""
        if relation not in self.required:
            self.required[relation] = self.state.position()
            narration.relation(relation, self.required[relation])

    def specialise(self, value: Any) -> object:
        """The plain number, which is a constant from here on."""
        if self.unbacked is not None and self.unbacked.among(value.expr):
            raise self.unbacked.needed(value.expr)
        self.require(Relation("eq", value.expr, value.hint), needed=True)
        return value.hint

    def settle(self) -> None:
        """Guard what earlier attempts learned that was not asked for again, as where probes that meet it no longer tell
        numbers apart (`a <= b` beside `b <= a`): what they say of all sizes they say of such."""
        table = self.table
        for fact in self.memory.facts:
            if not all(sym in self.places and sym in table.hints for sym in fact.symbols):
                continue
            relation = fact if isinstance(fact, Relation) else self._defined_again(fact)
            if not self.bounds.implied(relation):
                self.record(relation)

    def _defined_again(self, fact: Computed) -> Relation:
        """A condition of what an earlier attempt computed, of what this one does."""

        def again(value: Value) -> Value:
            if not isinstance(value, Expr):
                return value
            definitions = fact.table.definitions
            return substitute(value, {s: defined(definitions[s]) for s in free_symbols(value) if s in definitions})

        def defined(definition: Definition) -> Sym:
            return self.table.define(definition.op, *map(again, definition.args))

        return Relation(fact.relation.op, again(fact.relation.left), again(fact.relation.right))

    def _must_be_backed(self, relation: Relation) -> None:
        if self.unbacked is not None and self.unbacked.among(relation):
            raise self.unbacked.undecided(relation)

    def learn(self, relation: Relation, asserted: bool = False, needed: bool = False) -> None:
        """Probes must meet `relation`.

        Arguments:
            asserted: an operation needs it: it is guarded as soon as its symbols exist.
            needed: a number is to be a constant, also where it is another: not only because it equals a size or a
                number that may be another as well.

        Raises:
            Restart: always.
            ConstraintViolation: it fixes a size that the user marked as dynamic.
        """
        self._must_be_backed(relation)
        if relation.says_sign:
            self.one_sign()
        memory = self.memory
        memory.learned += 1
        if asserted:
            memory.asserted.append(relation)
        inputs = self.table.inputs(relation.left) | self.table.inputs(relation.right)
        if relation.op == "eq" and not (is_range(relation) and relation not in memory.facts):
            if not self._learn_residue(relation, inputs):
                self._learn_equality(relation, inputs, needed)
        else:
            if relation in memory.facts:
                self._all_static(inputs, relation)
            memory.facts.append(relation)
            if not relation.symbols <= inputs:
                memory.facts.append(Computed(relation, self.table, inputs))
        raise Restart

    def _learn_residue(self, relation: Relation, inputs: frozenset[Sym]) -> bool:
        """An equality with divisions in it: probes keep their residues, which are guarded, as fits may rely on them."""
        modulus = moduli(relation)
        if modulus <= 1:
            return False
        grown = False
        for sym in inputs:
            before = self.memory.modulus.get(sym.name, 1)
            after = math.lcm(before, modulus)
            if after != before and after <= 1 << 14 and self.table.kinds[sym] == "int":
                self.memory.modulus[sym.name] = after
                self.memory.asserted.append(Relation("eq", sym % after, int(self.table.hints[sym]) % after))
                grown = True
        return grown

    def _learn_equality(self, relation: Relation, inputs: frozenset[Sym], needed: bool) -> None:
        if not needed:
            self.memory.narrow.update(self.places[sym] for sym in inputs if sym in self.places)
        order = [sym for sym in self.table.symbols if sym in self.places]
        solution = solve(relation, order) if relation.symbols <= set(order) else None
        if solution is None:
            self._all_static(inputs, relation)
            return
        sym, value = solution
        if isinstance(value, Const) or sym.name in self.memory.solved:
            self._all_static(frozenset((sym,)), relation)
            return
        place = self.places[sym]
        if place in self.memory.marked:
            self.violated(place, relation)
        self.memory.solved[sym.name] = value

    def _all_static(self, symbols: Any, relation: Relation) -> None:
        places = [self.places[sym] for sym in symbols]
        self._decide(places)
        for place in places:
            self.give_up_place(place, relation)

    def nearer(self) -> None:
        """Something fails at the probes only: choose probes nearer to the sizes of the call, where there are any.

        Raises:
            Restart: there are.
        """
        self.one_sign()
        if self.memory.nearness + 1 < len(LIMITS):
            self.memory.nearness += 1
            raise Restart

    def give_up(self, symbols: Any, why: Relation) -> NoReturn:
        """These symbols are constants after all.

        Raises:
            Restart: always.
        """
        self._must_be_backed(why)
        self.memory.learned += 1
        self._all_static(symbols, why)
        raise Restart

    def give_up_place(self, place: Place, why: Relation) -> None:
        """The number at `place` is a constant after all.

        Raises:
            ConstraintViolation: the user marked it as dynamic.
        """
        if place in self.memory.marked:
            self.violated(place, why)
        self.one_sign()
        self.memory.static.add(place)

    def violated(self, place: Place, why: Relation) -> None:
        """A size that the user marked does not vary freely."""
        raise errors.ConstraintViolation(
            f"{place} was marked with mark_dynamic, but the program fixes it: {self.text(why)}",
            remedy="remove the mark, or write the program so that this size may vary",
            where=self.state.user_stack(),
        )

    def nodes(self, builder: GraphBuilder) -> Nodes:
        """The scalar nodes of the graph."""
        if self._nodes is None:
            self._nodes = Nodes(self, builder)
        return self._nodes

    def text(self, value: object) -> str:
        """An expression or condition in the user's terms."""
        return text(self, value)


def recorded(state: CaptureState, func: Function, args: Args, kwargs: Kwargs) -> object:
    """A torch call with symbolic numbers among its arguments: recorded without torch's own parser seeing it."""
    state.graph.observed += 1
    if _get_current_function_mode() is None:
        return subclasses.call(state.graph, func, args, kwargs)
    with _pop_mode_temporarily() as mode:
        return subclasses.with_symbols(state, mode, func, args, kwargs)
