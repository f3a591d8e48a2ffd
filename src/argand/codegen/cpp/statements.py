"""Prints one statement of a loop body as one line of C++, for scalars or for a vector of lanes.

In: `ir.loops.Value`s and a `Lanes` context. Out: lines of C++. Names: value 3 is `tmp3`, loop variables keep their
names, buffers are `in_ptr0`, `out_ptr0` or a scratch array's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace

import torch

from argand.codegen.analysis import StageFacts, has_spare_bits, is_half, lane_stride, store_pair
from argand.codegen.cpp import overrides
from argand.codegen.cpp.crossings import Crossing, crossing
from argand.codegen.cpp.integers import fits
from argand.codegen.cpp.stage_plan import StagePlan
from argand.codegen.cpp.types import Memory, element, literal, number, vector_type
from argand.errors import InternalError
from argand.graph.sizes.expr import Const, Expr, Var, as_int, coefficient, free_vars, substitute, to_c
from argand.graph.sizes.expr_nodes import from_poly
from argand.ir.loops import LoopBlock, Origin, Value, identity
from argand.ir.operations import INTEGER_DIVISIONS
from argand.quick_dataclasses import dataclass

_NARROW_ARITHMETIC = frozenset(("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"))
_BOOL_COMPARISONS = {
    "eq": "logical_not(logical_xor({0}, {1}))",
    "ne": "logical_xor({0}, {1})",
    "lt": "logical_and(logical_not({0}), {1})",
    "le": "logical_or(logical_not({0}), {1})",
    "gt": "logical_and({0}, logical_not({1}))",
    "ge": "logical_or({0}, logical_not({1}))",
}
_STAYS_NARROW = frozenset(("remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"))
"""Operations on integers whose result is in 32 bits where the operands are."""
_NARROW_COMPARISONS = {
    "eq": "equal_narrow({0}, {1})", "ne": "~equal_narrow({0}, {1})",
    "lt": "below_narrow({0}, {1})", "ge": "~below_narrow({0}, {1})",
    "le": "below_narrow({0}, min_i64({1}, 1ll << 31) + 1)", "gt": "~below_narrow({0}, min_i64({1}, 1ll << 31) + 1)",
}  # fmt: skip
"""Of lanes of 32 bits with one number of 64: as vectors of 64 bits they would be twice as long as a register."""
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_LANE = Var("l")
_SCANS = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "logaddexp": "log_add_exp({0}, {1})", "max": "maximum({0}, {1})",
    "min": "minimum({0}, {1})",
}  # fmt: skip
_MODES = {"add": "{0} + {1}", "mul": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})"}  # of stores


class Writer:
    """Lines of C++ with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head {` ... `}`."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")


@dataclass(frozen=True, slots=True)
class Lanes:
    """How statements are printed.

    Arguments:
        var: the loop variable that runs over lanes; None prints scalars.
        count: lanes of a vector.
        tail: C++ expression for the number of lanes in use; "" when all are.
        mask: name of a vector of booleans: the lanes for which memory may be read; "" when all may.
        tile: loads whose vectors are rows of `tile<id>`, already transposed, and stores to rows that will be.
    """

    var: Var | None = None
    count: int = 1
    tail: str = ""
    mask: str = ""
    tile: frozenset[Value] = frozenset()


@dataclass(slots=True)
class Printer:
    """Prints the statements of one stage.

    Arguments:
        out: where lines go.
        facts: of the stage.
        memory: buffers by name.
        plan: how the stage runs.
        lanes: the current context.
    """

    out: Writer
    facts: StageFacts
    memory: dict[str, Memory]
    plan: StagePlan
    lanes: Lanes = field(default_factory=Lanes)
    _origin: Origin | None = None

    @contextmanager
    def within(self, lanes: Lanes) -> Iterator[None]:
        """Print in another context."""
        saved, self.lanes = self.lanes, lanes
        self._origin = None
        yield
        self.lanes = saved
        self._origin = None

    # --- operands

    def dtype(self, value: Value) -> torch.dtype:
        """The type that `value` has in C++."""
        return torch.int32 if value in self.plan.narrow else value.dtype

    def _is_narrow(self, value: Value) -> bool:
        """Whether 32 bits hold an integer, by its type or as a number."""
        known = constant_of(value)
        return self.dtype(value) == torch.int32 or (value.dtype == torch.int64 and known is not None and fits(known))

    def is_vector(self, value: Value) -> bool:
        """Whether `value` differs between lanes."""
        return self.lanes.var is not None and self.lanes.var in self.facts.deps[value]

    def type_of(self, dtype: torch.dtype, vector: bool) -> str:
        """C++ type of a value."""
        return vector_type(dtype, self.lanes.count) if vector else element(dtype).name

    def operand(self, value: Value, vector: bool, dtype: torch.dtype | None = None) -> str:
        """`value` as C++ text, spread over the lanes when `vector` asks for it, converted to `dtype`."""
        have = self.dtype(value)
        want = dtype or have
        known = constant_of(value)
        if known is not None:
            if not vector or want == torch.bool:
                return literal(known, want)
            return f"splat<{self.type_of(want, True)}>({number(known, want)})"
        text = f"tmp{value.id}"
        spread = vector and not self.is_vector(value)
        if want != have:
            text = self.conversion(text, have, want, vector and not spread)
        if not spread or want == torch.bool:  # the prelude's functions take one boolean for all lanes
            return text
        return f"splat<{self.type_of(want, True)}>({text})"

    # --- statements

    def comment(self, origin: Origin | None) -> None:
        """One comment line when the origin changes: the FX node and the user's line."""
        if origin is None or origin is self._origin or origin == self._origin:
            return
        self._origin = origin
        self.out.line("// " + origin.comment.rstrip("\\ "))

    def emit(self, value: Value) -> None:
        """Print the statement that makes `value`."""
        if value.op == "reduction" or constant_of(value) is not None:
            return
        self.comment(value.origin)
        vector = self.is_vector(value)
        if value.op == "store":
            self._store(value)
        elif value.op == "masked":
            self._masked(value, vector)
        elif value.op == "indirect":
            self._indirect(value, vector)
        elif value.op == "scan":
            self._scan(value, vector)
        else:
            self.out.line(f"auto tmp{value.id} = {self._expression(value, vector)};")

    def _expression(self, value: Value, vector: bool) -> str:
        if value.op == "load":
            return self._load(value)
        if value.op == "index_expr":
            return self._index_expr(value, vector)
        if value.op == "to_dtype":
            source = value.args[0]
            return self.conversion(self.operand(source, vector), self.dtype(source), self.dtype(value), vector)
        if value.op == "bitcast":
            return f"bits<{self.type_of(value.dtype, vector)}>({self.operand(value.args[0], vector)})"
        if value.op == "divisor":
            return self._divisor(value, vector)
        if value.op == "where":
            return self._where(value, vector)
        return self._pointwise(value, vector)

    def conversion(self, text: str, have: torch.dtype, want: torch.dtype, vector: bool) -> str:
        """`text` of dtype `have` converted to `want`, as eager converts."""
        if have == want:
            return text
        if is_half(have):
            text = f"{'bf16' if have == torch.bfloat16 else 'f16'}_to_f32({text})"
            return self.conversion(text, torch.float32, want, vector)
        if is_half(want):
            text = self.conversion(text, have, torch.float32, vector)
            return f"f32_to_{'bf16' if want == torch.bfloat16 else 'f16'}({text})"
        target = self.type_of(want, vector)
        if want == torch.bool:
            return f"to_bool({text})"
        if have == torch.bool:
            return f"from_bool<{target}>({text})" if vector else f"{target}({text})"
        if have.is_floating_point and not want.is_floating_point:
            return f"float_to_int<{target}>({text})"
        return f"convert<{target}>({text})" if vector else f"{target}({text})"

    def _where(self, value: Value, vector: bool) -> str:
        condition, a, b = value.args
        mask = self.operand(condition, vector)
        want = self.dtype(value)
        left, right = self.operand(a, vector, want), self.operand(b, vector, want)
        if value.dtype == torch.bool:
            kind = f"<i8x{self.lanes.count}>" if vector else ""
            return f"where_bool{kind}({mask}, {left}, {right})"
        return overrides.expression("where", mask, left, right)

    def _pointwise(self, value: Value, vector: bool) -> str:
        op = value.op
        if not overrides.known(op):
            raise InternalError(f"the C++ code generator does not know the op {value.op!r}")
        args: list[Value] = [arg for arg in value.args if isinstance(arg, Value)]
        dtypes = {self.dtype(arg) for arg in args}
        common = torch.int64 if len(dtypes) > 1 else next(iter(dtypes))
        if vector and op in _NARROW_COMPARISONS and dtypes == {torch.int32, torch.int64}:
            turned = self.dtype(args[0]) == torch.int64
            wide, narrow = args if turned else args[::-1]
            if not self._is_narrow(wide) and not self.is_vector(wide):
                text = _NARROW_COMPARISONS[_TURNED.get(op, op) if turned else op]
                return text.format(self.operand(narrow, True), self.operand(wide, False))
        compared = value.dtype == torch.bool and len(dtypes) > 1 and all(map(self._is_narrow, args))
        if compared or value in self.plan.narrow:  # then so are its operands, numbers among them
            common = torch.int32
        elif value.dtype == torch.int64 and op not in _STAYS_NARROW:
            common = torch.int64
        half = is_half(common)
        operands = [self.operand(arg, vector, torch.float32 if half else common) for arg in args]
        if vector and common == torch.bool and op in _BOOL_COMPARISONS:
            return _BOOL_COMPARISONS[op].format(*operands)
        by = constant_of(args[-1]) or 0
        whole = op in INTEGER_DIVISIONS and not (common.is_floating_point or overrides.replaced(op))
        if whole and by not in (0, -1, -(1 << 63)):  # the template negates it
            text = f"{op}_by<{literal(by, common)}>({operands[0]})"  # by a number: without dividing
        else:
            text = overrides.expression(op, *operands)
        if half and is_half(value.dtype):
            return self.conversion(f"({text})", torch.float32, value.dtype, vector)
        if not vector and op in _NARROW_ARITHMETIC and element(common).size < 4 and not half:
            return f"{element(common).name}({text})"
        if value not in self.plan.narrow and value.dtype == torch.int64 and common == torch.int32:
            return self.conversion(f"({text})", common, value.dtype, vector)
        return text

    # --- memory

    def address(self, memory: Memory, index: Expr) -> str:
        """C++ pointer to an element."""
        return memory.name if index == 0 else f"{memory.name} + {to_c(index * memory.lanes)}"

    def _stride(self, memory: Memory, index: Expr) -> Expr | None:
        """How far apart in memory neighbouring lanes are; None when it is not one distance."""
        assert self.lanes.var is not None
        return Const(1) if memory.lanes > 1 else lane_stride(self.facts, index, self.lanes.var, self.lanes.count)

    def _lane_index(self, index: Expr) -> str:
        """`index` of lane `l`."""
        mapping: dict[Var, Expr] = {}
        for var in free_vars(index):
            source = self.facts.indirect.get(var)
            if var is self.lanes.var:
                mapping[var] = var + _LANE
            elif source is not None and self.is_vector(source):
                mapping[var] = Var(f"i64({to_c(var)}[l])" if source in self.plan.inside else f"{to_c(var)}[l]")
        return to_c(substitute(index, mapping))

    def _load(self, value: Value) -> str:
        memory, index = self.memory[value.args[0]], value.args[1]
        if memory.register:
            # Inside a mask that differs between lanes, a value that all lanes share counts as a vector too.
            shared = self.lanes.var not in self.facts.outer
            return self.operand_splat(memory.name, memory.dtype) if shared and self.is_vector(value) else memory.name
        if not self.is_vector(value):
            return f"{memory.name}[{to_c(index)}]"
        lanes = self.lanes
        assert lanes.var is not None
        vector = vector_type(memory.dtype, lanes.count)
        stride = self._stride(memory, index)
        boolean = memory.dtype == torch.bool
        if value in lanes.tile:
            return f"tile{value.id}[row]" + (" != 0" if boolean else "")
        if stride == 1:
            pointer = self.address(memory, index)
            if lanes.mask:
                cast = f"(const i8*)({pointer})" if boolean else pointer
                return f"load_masked<{vector}>({cast}, {lanes.mask})" + (" != 0" if boolean else "")
            name = "load_bool" if boolean else "load"
            return f"{name}_tail<{vector}>({pointer}, {lanes.tail})" if lanes.tail else f"{name}<{vector}>({pointer})"
        crossed = self._crossing(value, index) if stride is None else None
        across = self._across(memory, vector, crossed) if crossed is not None and crossed.step == 1 else ""
        if across and crossed is not None and as_int(crossed.divisor) is not None:
            return f"{across} != 0" if boolean else across
        at = f"[&](int l) {{ return {memory.name}[{self._lane_index(index)}]; }}"
        positions = self._positions(index) if not lanes.mask and not lanes.tail else None
        if positions is not None:
            start, places = positions
            name = "gather_near" if self.plan.looks_near(self.facts.indirect, index) else "gather_at"
            text = f"{name}<{vector}>({self.address(memory, start)}, {places})"
        elif lanes.mask and stride == 0:
            text = f"splat_masked<{vector}>({lanes.mask}, [&] {{ return {memory.name}[{to_c(index)}]; }})"
        elif stride == 2 and not boolean and (lanes.mask or not lanes.tail or lanes.tail.isdigit()):
            some = lanes.mask or (f"tail_mask<i32x{lanes.count}>({lanes.tail})" if lanes.tail else "")
            name, some = ("load_pairs_masked", f", {some}") if some else ("load_pairs", "")
            return f"{name}<{vector}>({self.address(memory, index)}{some})"
        elif lanes.mask:
            text = f"gather_masked<{vector}>({lanes.mask}, {at})"
        elif stride == -1 and not lanes.tail:
            text = f"load_reversed<{vector}>({self.address(memory, index)})"
        elif stride == 0:  # the index is one for all lanes; only the mask around it differs
            return self.operand_splat(f"{memory.name}[{to_c(index)}]", memory.dtype)
        elif lanes.tail:
            text = f"gather_tail<{vector}>({lanes.tail}, {at})"
        else:
            text = f"gather<{vector}>({at})"
        if across and crossed is not None:
            text = f"({to_c(crossed.divisor)} >= {lanes.count} ? {across} : {text})"
        return f"{text} != 0" if boolean else text

    def _across(self, memory: Memory, vector: str, crossed: Crossing) -> str:
        """A load of neighbours on both sides of a multiple."""
        mask = self.lanes.mask or f"tail_mask<i32x{self.lanes.count}>({self.lanes.tail or self.lanes.count})"
        cast = "(const i8*)" if memory.dtype == torch.bool else ""
        lines = [f"{cast}({self.address(memory, place)})" for place in (crossed.before, crossed.after)]
        return f"load_across<{vector}>({', '.join(lines)}, {crossed.lanes_before}, {mask})"

    def _crossing(self, value: Value, index: Expr) -> Crossing | None:
        """`index` as two lines of lanes, whose remainder is printed; None where it is no such index."""
        assert self.lanes.var is not None
        if self._looks_up(index):
            return None
        crossed = crossing(index, self.lanes.var, self.lanes.count, str(value.id))
        if crossed is not None:
            self.out.line(crossed.declaration)
        return crossed

    def _looks_up(self, index: Expr) -> bool:
        """Whether lanes look up where they are."""
        return any(v in self.facts.indirect and self.is_vector(self.facts.indirect[v]) for v in free_vars(index))

    def _positions(self, index: Expr) -> tuple[Expr, str] | None:
        """`index` as what all lanes share and what each looks up, a vector of 32 bits; None where it is no such sum."""
        start: Expr = Const(0)
        far, terms = 0, []
        for monomial, scale in index.poly:
            sources = [
                self.facts.indirect[atom] for atom in monomial if isinstance(atom, Var) and atom in self.facts.indirect
            ]
            vectors = [source for source in sources if self.is_vector(source)]
            if not vectors and self.lanes.var not in [var for atom in monomial for var in atom.free]:
                start = start + from_poly({monomial: scale})
                continue
            if len(monomial) != 1 or not vectors or vectors[0] not in self.plan.inside:
                return None
            if vectors[0].args[0] not in self.plan.narrow:
                return None
            far += abs(scale) * (as_int(vectors[0].args[1]) or 1 << 31)
            terms.append(to_c(monomial[0]) if scale == 1 else f"{to_c(monomial[0])} * {scale}")
        return (start, " + ".join(terms)) if terms and far < 1 << 31 else None

    def _held(self, value: Value, vector: bool, dtype: torch.dtype) -> str:
        """`operand` as a variable takes it: a condition as bytes, of whatever width its maker's lanes are."""
        text = self.operand(value, vector, dtype)
        return f"convert<{self.type_of(dtype, True)}>({text})" if vector and dtype == torch.bool else text

    def operand_splat(self, text: str, dtype: torch.dtype) -> str:
        """C++ scalar `text` in every lane."""
        name = "splat_mask" if dtype == torch.bool else "splat"
        return f"{name}<{self.type_of(dtype, True)}>({text})"

    def _store(self, value: Value) -> None:
        buffer, index, source, mode = value.args
        memory = self.memory[buffer]
        vector = self.is_vector(value)
        held = memory.register or not self.is_vector(source)
        text = (self._held if held else self.operand)(source, vector, memory.dtype)
        if memory.register:
            self.out.line(f"{memory.name} = {text};")
        elif value in self.lanes.tile:
            self.out.line(f"tile{value.id}[row] = {f'to_bytes({text})' if memory.dtype == torch.bool else text};")
        elif vector:
            if value in self.plan.streamed and not self.lanes.tail:
                self.out.line(f"store_stream({self.address(memory, index)}, {text}, {memory.name}_aligned);")
                return
            self._store_vector(value, memory, text)
        else:
            place = f"{memory.name}[{to_c(index)}]"
            self.out.line(f"{place} = {self._combined(mode, place, text, memory.dtype)};")

    def _combined(self, mode: str | None, a: str, b: str, dtype: torch.dtype) -> str:
        """What a store of scalar `b` leaves where `a` is, in memory of `dtype`."""
        if mode is None:
            return b
        if is_half(dtype):
            wide = [self.conversion(x, dtype, torch.float32, False) for x in (a, b)]
            return self.conversion(_MODES[mode].format(*wide), torch.float32, dtype, False)
        kind = element(dtype).name
        return f"{kind}({_MODES[mode].format(f'{kind}({a})', f'{kind}({b})')})"

    def _store_vector(self, value: Value, memory: Memory, text: str) -> None:
        lanes, index, mode = self.lanes, value.args[1], value.args[3]
        assert lanes.var is not None
        stride = self._stride(memory, index)
        boolean = memory.dtype == torch.bool
        if stride == 2 and not lanes.tail and not boolean and (pair := store_pair(self.facts, value)) is not None:
            if value is pair[-1]:
                low, high = sorted(pair, key=lambda each: as_int(each.args[1] - index) or 0)
                texts = [self.operand(each.args[2], True, memory.dtype) for each in (low, high)]
                self.out.line(f"store_pairs({self.address(memory, low.args[1])}, {', '.join(texts)});")
            return
        if stride == 1 and not (mode is not None and (boolean or is_half(memory.dtype))):
            pointer = self.address(memory, index)
            name = "store_bool" if boolean else "store"
            if mode is not None:
                vector = vector_type(memory.dtype, lanes.count)
                old = f"load_tail<{vector}>({pointer}, {lanes.tail})" if lanes.tail else f"load<{vector}>({pointer})"
                text = _MODES[mode].format(old, text)
            tail = f", {lanes.tail}" if lanes.tail else ""
            self.out.line(f"{name}{'_tail' if tail else ''}({pointer}, {text}{tail});")
            return
        place = f"{memory.name}[{self._lane_index(index)}]"
        with self.out.block(""):
            self.out.line(f"const auto value = {text};")
            lane = self._combined(mode, place, "value[l]" + (" != 0" if boolean else ""), memory.dtype)
            self.out.line(f"for (int l = 0; l < {lanes.tail or lanes.count}; ++l) {place} = {lane};")

    def _index_expr(self, value: Value, vector: bool) -> str:
        expr, want = value.args[0], self.dtype(value)
        if not vector:
            text = f"i64({to_c(expr)})"
            return self.conversion(text, torch.int64, want, False)
        integer = want if element(want).kind in ("int", "uint") and element(want).size >= 4 else torch.int64
        kind = vector_type(integer, self.lanes.count)
        assert self.lanes.var is not None
        step = None if self._looks_up(expr) else coefficient(expr, self.lanes.var)
        if step is not None:
            text = f"iota<{kind}>({to_c(expr)}, {to_c(step)})"
        else:
            text = f"gather<{kind}>([&](int l) {{ return {self._lane_index(expr)}; }})"
            crossed = self._crossing(value, expr)
            if crossed is not None:
                lines = [f"iota<{kind}>({to_c(place)}, {crossed.step})" for place in (crossed.before, crossed.after)]
                before = f"min_i64({crossed.lanes_before}, {self.lanes.count})"
                across = f"where(tail_mask<i32x{self.lanes.count}>({before}), {', '.join(lines)})"
                known = as_int(crossed.divisor) is not None
                text = across if known else f"({to_c(crossed.divisor)} >= {self.lanes.count} ? {across} : {text})"
        return self.conversion(text, integer, want, True)

    def _indirect(self, value: Value, vector: bool) -> None:
        source, size, wrap = value.args
        text = self.operand(source, vector)
        flag = "true" if wrap else "false"
        name, limit = to_c(Var(f"i{value.id}")), to_c(size)
        if value in self.plan.inside:
            self.out.line(f"const {'auto' if vector else 'i64'} {name} = {text};")
        elif not vector:
            self.out.line(f"const i64 {name} = check_index<{flag}>({text}, {limit}, error);")
        elif self.lanes.mask:
            self.out.line(
                f"const auto {name} = check_indices_masked<{flag}>({text}, {limit}, error, {self.lanes.mask});"
            )
        else:
            tail = f", {self.lanes.tail}" if self.lanes.tail else ""
            self.out.line(f"const auto {name} = check_indices<{flag}>({text}, {limit}, error{tail});")

    def _divisor(self, value: Value, vector: bool) -> str:
        lanes, name = (self.lanes, "check_divisors") if vector else (Lanes(), "check_divisor")
        text, used = self.operand(value.args[0], vector), lanes.mask or lanes.tail
        return f"{name}{'_masked' if lanes.mask else ''}({text}, error{f', {used}' if used else ''})"

    # --- scans

    def declare_state(self, value: Value) -> None:
        """Before the reduction loops: what a scan has added up so far."""
        kind = value.args[0]
        start = float("-inf") if kind == "logaddexp" else identity(kind, value.dtype)
        cell = self.type_of(value.dtype, self.lanes.var is not None)
        text = number(start, value.dtype)
        self.out.line(f"{cell} state{value.id} = " + (f"splat<{cell}>({text});" if self.lanes.var else f"{text};"))

    def _scan(self, value: Value, vector: bool) -> None:
        kind, source = value.args
        text, state = self.operand(source, vector, value.dtype), f"state{value.id}"
        if vector and self.lanes.var in self.facts.body.reduction_vars:
            step = _SCANS[kind].format("a", "b")
            tail = f", {self.lanes.tail}" if self.lanes.tail else ""
            head = f"scan_lanes({text}, {state}"
            if kind in ("max", "min") or (kind == "sum" and has_spare_bits(source)):
                start = literal(identity(kind, value.dtype), self.dtype(value))
                head = f"scan_grouped({text}, {state}, {start}"
            text = f"{head}, [](auto a, auto b) {{ return {step}; }}{tail})"
            self.out.line(f"const auto tmp{value.id} = {text};")
            return
        self.out.line(f"{state} = {_SCANS[kind].format(state, text)};")
        self.out.line(f"const auto tmp{value.id} = {state};")

    # --- masked blocks

    def _masked(self, value: Value, vector: bool) -> None:
        condition, block, other = value.args
        want = self.dtype(value)
        if self.is_vector(condition):
            self._masked_lanes(value, condition, block, other)
            return
        result_vector = vector or self.is_vector(block.result)
        self._declare(value, other, result_vector)
        with self.out.block(f"if ({self.operand(condition, False)})"):
            self._block(block)
            self.out.line(f"tmp{value.id} = {self._held(block.result, result_vector, want)};")

    def _declare(self, value: Value, other: Value | float, vector: bool) -> None:
        """What a masked block makes, which is `other` until the block has run."""
        want = self.dtype(value)
        if isinstance(other, Value):
            start = self._held(other, vector, want)
        else:
            start = self.operand_splat(number(other, want), want) if vector else literal(other, want)
        self.out.line(f"{self.type_of(want, vector)} tmp{value.id} = {start};")

    def _block(self, block: LoopBlock) -> None:
        for statement in block.statements:
            self.emit(statement)

    def _masked_lanes(self, value: Value, condition: Value, block: LoopBlock, other: Value | float) -> None:
        """The mask differs between lanes: memory is touched only in lanes where it holds."""
        want = self.dtype(value)
        lanes = self.lanes
        kind = self.type_of(want, True)
        parts = conjuncts(condition)
        uniform = [self.operand(part, False) for part in parts if not self.is_vector(part)]
        varying = [self.operand(part, True) for part in parts if self.is_vector(part)]
        if lanes.mask:
            varying.append(lanes.mask)
        elif lanes.tail:
            varying.append(f"tail_mask<i32x{lanes.count}>({lanes.tail})")
        text = varying[0]
        for part in varying[1:]:
            text = f"logical_and({text}, {part})"
        self._declare(value, other, True)
        mask = f"mask{value.id}"
        with self.out.block(f"if ({' && '.join(uniform)})" if uniform else ""):
            self.out.line(f"const auto {mask} = {text};")
            with self.within(replace(lanes, mask=mask)):
                self._block(block)
                result = self.operand(block.result, True, want)
                name = f"where_bool<{kind}>" if want == torch.bool else "where"
                self.out.line(f"tmp{value.id} = {name}({mask}, {result}, tmp{value.id});")


def constant_of(value: Value) -> float | int | bool | None:
    """The number that a value always is, printed where it is used; None when it is computed."""
    if value.op == "constant":
        number: float | int | bool = value.args[0]
        return number
    if value.op == "index_expr" and not is_half(value.dtype):
        return as_int(value.args[0])
    return None


def conjuncts(value: Value) -> list[Value]:
    """The conditions that a condition is the logical_and of."""
    if value.op == "logical_and":
        return [part for arg in value.args for part in conjuncts(arg)]
    return [value]
