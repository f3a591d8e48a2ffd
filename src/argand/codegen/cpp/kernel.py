"""From `KernelPlan`s to one C++ file.

In: kernels, the instruction set, options. Out: `CppSource`. A kernel is `extern "C" void name(void** ptrs, const i64*
ints)`: `ptrs` holds its inputs, its outputs, and an `int32_t*` error flag when it checks values; `ints` holds its
size symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from argand.codegen.analysis import StageFacts, analyse, apart, hint
from argand.codegen.cpp.loops import PARTS, Parallel, product_text, static_points
from argand.codegen.cpp.plan import _cost as stage_cost
from argand.codegen.cpp.plan import lanes_for, plan_stage, sizes_of, uses_replaced
from argand.codegen.cpp.prelude import prelude, words
from argand.codegen.cpp.repeated_stages import Declaration, with_tables
from argand.codegen.cpp.shared_forms import with_shared_forms
from argand.codegen.cpp.stage_plan import StagePlan
from argand.codegen.cpp.statements import Lanes, Printer, Writer
from argand.codegen.cpp.swept import SweptLoops
from argand.codegen.cpp.types import Memory, element, vector_type
from argand.config import config
from argand.errors import InternalError
from argand.graph import time_limit
from argand.graph.sizes.expr import Expr, Var, as_int, coefficient, free_vars, to_c
from argand.ir.kernel import KernelPlan, Stage
from argand.ir.loops import Buffer, Value, checks_values, element_dtype, with_nested
from argand.quick_dataclasses import dataclass
from argand.runtime import processor
from argand.runtime.toolchain import IsaInfo

_SHORT = 16  # elements of rows that kernels may keep for each of the lanes that run across them
STACK_BYTES = 64 << 10  # scratch beyond this is allocated


@dataclass(frozen=True, slots=True)
class CppOptions:
    """What the generated code depends on besides the kernels.

    Arguments:
        simdlen: bits of a vector; -1 is the instruction set's, 0 makes scalar code.
        threads: OpenMP threads; -1 follows torch.get_num_threads() at each call, 1 generates no parallel code.
        min_parallel_work: scalar operations below which a kernel runs on one thread.
    """

    simdlen: int = -1
    threads: int = -1
    min_parallel_work: int = 32768

    @staticmethod
    def from_config() -> CppOptions:
        """The options that `argand.config.cpp` sets."""
        cpp = config.cpp
        return CppOptions(int(cpp.simdlen), int(cpp.threads), int(cpp.min_parallel_work))


@dataclass(frozen=True, slots=True)
class CppSource:
    """One file of kernels.

    Arguments:
        text: freestanding C++.
        kernel_symbols: kernel name -> function name.
        flagged: kernels whose last pointer is an `int32_t*` error flag: 1 by an index out of range, 2 by a divisor 0.
        parts: the same functions cut into files that compile at the same time; one or none when that does not pay.
    """

    text: str
    kernel_symbols: dict[str, str]
    flagged: frozenset[str]
    parts: tuple[str, ...] = ()


def generate(kernels: Sequence[KernelPlan], isa: IsaInfo, options: CppOptions | None = None) -> CppSource:
    """One C++ file for all kernels of a graph.

    Arguments:
        kernels: in any order; names are distinct.
        isa: what vectors the CPU has.
        options: None takes them from `argand.config.cpp`.

    Raises:
        LoweringError: a kernel uses a dtype that generated C++ does not know.
        InternalError: a kernel uses an op that the code generator does not know.
    """
    options = options or CppOptions.from_config()
    vector_bytes = isa.vector_bytes
    if options.simdlen >= 0:
        vector_bytes = min(vector_bytes, options.simdlen // 8)
    printed: dict[str, str] = {}
    flagged = set()
    for plan in kernels:
        time_limit.check()
        printer = KernelPrinter(plan, vector_bytes, options, isa.cache_bytes)
        printed[plan.name] = printer.text()
        if printer.checks_indices:
            flagged.add(plan.name)
    texts = with_shared_forms(printed)
    symbols = {plan.name: plan.name for plan in kernels}
    used = {text: words(text) for text in texts}
    text = _file(texts, used)
    return CppSource(text, symbols, frozenset(flagged), _parts(texts, used, min(processor.count(), _COMPILERS)))


def _file(texts: Sequence[str], used: Mapping[str, frozenset[str]]) -> str:
    body = "\n".join(texts)
    return f"{prelude(frozenset().union(*[used[text] for text in texts]))}\n{body}"


_COMPILERS = 8  # at the same time: other processes compile, too
_PART = 12_000  # characters: the compiler takes 0.06 s, 0.02 s of it for what all parts have, and the call waits


def _parts(texts: list[str], used: Mapping[str, frozenset[str]], most: int) -> tuple[str, ...]:
    """Files of about the same length, when the whole is long enough for that to save time.

    Arguments:
        used: the words of each text.
        most: how many compilers can run at the same time.
    """
    count = min(len(texts), sum(map(len, texts)) // _PART, most)
    if count < 2:
        return ()
    parts: list[list[str]] = [[] for _ in range(count)]
    lengths = [0] * count
    for text in sorted(texts, key=len, reverse=True):
        shortest = lengths.index(min(lengths))
        parts[shortest].append(text)
        lengths[shortest] += len(text)
    return tuple([_file(part, used) for part in parts])


class KernelPrinter:
    """Prints one kernel."""

    def __init__(self, plan: KernelPlan, vector_bytes: int, options: CppOptions, cache_bytes: int) -> None:
        self.plan = plan
        self.cache_bytes = cache_bytes
        self.options = options
        self.vector_bytes = vector_bytes
        self.out = Writer()
        local = plan.registers.union(plan.scratch)  # one for each outer point
        self.facts = [analyse(stage.body, local, (var for var, _ in plan.outer)) for stage in plan.stages]
        self.checks_indices = any(checks_values(facts.statements) for facts in self.facts)
        self.memory = self._memory()
        self.pointers: dict[str, Declaration] = {}
        self.outer_vector: Var | None = None
        self.outer_lanes = 1
        self.plans = [self._plan(stage, facts) for stage, facts in zip(plan.stages, self.facts)]
        self._consider_outer_vector()

    def _plan(self, stage: Stage, facts: StageFacts) -> StagePlan:
        own = stage.body.vars[len(stage.body.vars) - stage.inner :] if stage.inner else ()
        return plan_stage(facts, own, self.vector_bytes)

    def _memory(self) -> dict[str, Memory]:
        plan = self.plan
        memory = {}
        for index, name in enumerate(plan.inputs):
            memory[name] = Memory(f"in_ptr{index}", element_dtype(plan.buffers[name].dtype))
        for index, name in enumerate(plan.outputs):
            memory[name] = Memory(f"out_ptr{index}", element_dtype(plan.buffers[name].dtype))
        for name in plan.scratch:
            memory[name] = Memory(name, plan.buffers[name].dtype if name in plan.buffers else plan.scratch[name].dtype)
        for name in plan.registers:
            memory[name] = Memory(name, plan.buffers[name].dtype, register=True)
        return memory

    def _consider_outer_vector(self) -> None:
        """Run lanes along the last outer loop when the stages' own loops are worse for that."""
        plan = self.plan
        if not plan.outer or self.vector_bytes == 0 or not self._has_short_rows():
            return
        var, size = plan.outer[-1]
        lanes = min(lanes_for(f, var, self.vector_bytes, p) for f, p in zip(self.facts, self.plans))
        if lanes < 2 or any(p.vector is None and uses_replaced(f) for f, p in zip(self.facts, self.plans)):
            return
        forced = []
        for stage, facts in zip(plan.stages, self.facts):
            own = stage.body.vars[len(stage.body.vars) - stage.inner :] if stage.inner else ()
            stage_plan = plan_stage(facts, own, self.vector_bytes, forced=var)
            stage_plan.lanes = lanes
            stage_plan.cost = stage_cost(facts, stage_plan) / min(lanes, hint(size))
            forced.append(stage_plan)
        if sum(p.cost for p in forced) < sum(p.cost for p in self.plans):
            self.plans = forced
            self.outer_vector, self.outer_lanes = var, lanes
            for name in plan.scratch:
                self.memory[name] = replace(self.memory[name], lanes=lanes)

    def _has_short_rows(self) -> bool:
        """Whether each of the lanes that run across rows may have its own, if there are any, in scratch memory."""
        scratch = self.plan.scratch
        sizes = [as_int(size) for buffer in scratch.values() for size in buffer.size]
        if any(size is None or size > _SHORT for size in sizes):
            return False
        outer = {var for var, _ in self.plan.outer}
        return all(
            outer.isdisjoint(free_vars(value.args[1])) and facts.indirect.keys().isdisjoint(free_vars(value.args[1]))
            for facts in self.facts
            for value in with_nested(facts.statements)
            if value.op in ("load", "store") and value.args[0] in scratch
        )

    # --- printing

    def text(self) -> str:
        """The function."""
        plan, out = self.plan, self.out
        nodes = "; ".join(dict.fromkeys(origin.fx_node for origin in plan.origins))
        if nodes:
            out.line(f"// {nodes}")
        if self._asks_in_loops():  # few others gain, and compiling takes longer: bench/optimisation_levels.py
            out.line(f'extern "C" __attribute__((optimize("O3"))) void {plan.name}(void**, const i64*);')
        with out.block(f'extern "C" void {plan.name}(void** ptrs, const i64* ints)'):
            self._arguments()
            self._guards()
            if plan.outer:
                self._outer_loops()
            else:
                self._registers()
                self._scratch()
                self._inner_stages()
        return "\n".join(out.lines) + "\n"

    def _asks_in_loops(self) -> bool:
        """Whether masks that all lanes share are in loops over vectors, which GCC's -O3 splits at what they say."""
        return any(
            value.op == "masked" and plan.vector is not None and plan.vector not in facts.deps[value.args[0]]
            for facts, plan in zip(self.facts, self.plans)
            for value in facts.statements
        )

    def _inner_stages(self) -> None:
        """Stages without outer loops around them."""
        out, stages = self.out, []
        for facts, stage_plan in zip(self.facts, self.plans):
            begin = len(out.lines)
            with out.block(""):
                stage_plan.streamed = self._streamed(facts, stage_plan)
                self._stage(facts, stage_plan, self._stage_parallel(facts, stage_plan))
            stages.append(out.lines[begin:])
            del out.lines[begin:]
        for lines in with_tables(stages, self.pointers):
            out.lines += lines

    def _arguments(self) -> None:
        plan, out = self.plan, self.out
        for index, name in enumerate((*plan.inputs, *plan.outputs)):
            memory, buffer = self.memory[name], plan.buffers[name]
            kind = f"{'const ' if index < len(plan.inputs) else ''}{element(memory.dtype).memory}*"
            self.pointers[memory.name] = kind, index
            out.line(f"{kind} {memory.name} = ({kind})ptrs[{index}];  // {_describe(buffer)}")
        if self.checks_indices:
            out.line(f"i32* error = (i32*)ptrs[{len(plan.inputs) + len(plan.outputs)}];")
        for index, symbol in enumerate(plan.symbols):
            out.line(f"const i64 {symbol} = ints[{index}];")

    def _guards(self) -> None:
        """Nothing can be looked up in a dimension of size 0; afterwards a bad index may become 0 safely."""
        for facts in self.facts:
            sizes = sizes_of(facts)
            for value in with_nested(facts.statements):
                if value.op != "indirect" or (as_int(value.args[1]) or 0) > 0:
                    continue
                points = product_text(list(sizes.values()))
                self.out.line(f"if ({to_c(value.args[1])} <= 0) {{ if ({points} > 0) *error = 1; return; }}")

    def _registers(self) -> None:
        for name in sorted(self.plan.registers):
            dtype = self.memory[name].dtype
            if self.outer_vector is None:
                self.out.line(f"{element(dtype).name} {name};")
            else:
                self.out.line(f"{vector_type(dtype, self.outer_lanes)} {name};")

    def _scratch(self) -> None:
        fixed = 0
        for name, buffer in self.plan.scratch.items():
            count = self.outer_lanes
            for size in buffer.size:
                known = as_int(size)
                count = 0 if known is None or count == 0 else count * known
            dtype = element(self.memory[name].dtype)
            fixed += count * dtype.size
            if count and fixed <= STACK_BYTES:
                self.out.line(f"alignas(64) {dtype.memory} {name}[{count}];")
            else:
                bytes_text = f"{dtype.size} * {product_text(buffer.size)}"
                self.out.line(f"{dtype.memory}* {name} = ({dtype.memory}*)workspace<__COUNTER__>({bytes_text});")

    def _outer_loops(self) -> None:
        plan, out = self.plan, self.out
        loops = [(var, size) for var, size in plan.outer if var is not self.outer_vector]
        pragma = self._pragma(self._outer_work(), len(loops))
        if pragma and loops:
            out.line(pragma)
        heads = [f"for (i64 {v.name} = 0; {v.name} < {to_c(s)}; ++{v.name})" for v, s in loops]
        for head in heads[:-1]:
            out.line(head)
        with out.block(heads[-1] if heads else ""):
            if self.outer_vector is None:
                self._outer_body(Lanes())
                return
            rounds = (as_int(dict(plan.outer)[self.outer_vector]) or 1 << 31) // self.outer_lanes
            self._outer_vector_loop(pragma if not loops and rounds > 1 else "")

    def _outer_vector_loop(self, pragma: str) -> None:
        out, var, lanes = self.out, self.outer_vector, self.outer_lanes
        if var is None:
            raise InternalError("no outer vector loop")
        name = var.name
        size = dict(self.plan.outer)[var]
        full = Lanes(var, lanes)
        text = to_c(size) if as_int(size) is not None else f"({to_c(size)})"
        if pragma:
            out.line(pragma)
        with out.block(f"for (i64 {name} = 0; {name} < {text} / {lanes} * {lanes}; {name} += {lanes})"):
            self._outer_body(full)
        known = as_int(size)
        if known is None or known % lanes:
            with out.block(f"if ({text} % {lanes})"):
                out.line(f"const i64 {name} = {text} / {lanes} * {lanes};")
                self._outer_body(Lanes(var, lanes, f"({text} % {lanes})"))

    def _outer_body(self, lanes: Lanes) -> None:
        self._registers()
        self._scratch()
        for facts, stage_plan in zip(self.facts, self.plans):
            with self.out.block(""):
                self._stage(facts, stage_plan, Parallel(), lanes)

    def _stage(self, facts: StageFacts, stage_plan: StagePlan, parallel: Parallel, lanes: Lanes | None = None) -> None:
        printer = Printer(self.out, facts, self.memory, stage_plan, lanes or Lanes())
        for name in sorted({self.memory[value.args[0]].name for value in stage_plan.streamed}):
            self.out.line(f"const bool {name}_aligned = (u64){name} % 64 == 0;")
        SweptLoops(printer, stage_plan, facts, parallel).emit()

    def _streamed(self, facts: StageFacts, stage_plan: StagePlan) -> frozenset[Value]:
        """Stores of results so large that they would only push other data out of the caches."""
        if stage_plan.vector is None or stage_plan.reduce or stage_plan.transposed or len(self.plan.stages) > 1:
            return frozenset()
        run = as_int(stage_plan.sizes[stage_plan.vector])
        streamed = set()
        traffic = sum(_bytes(self.plan.buffers[name]) for name in (*self.plan.inputs, *self.plan.outputs))
        for value in facts.statements:
            if value.op != "store" or value.args[3] is not None or run is None or value.dtype == torch.bool:
                continue
            size = element(self.memory[value.args[0]].dtype).size
            read = any(v.op == "load" and v.args[0] == value.args[0] for v in with_nested(facts.statements))
            large = 2 * _bytes(self.plan.buffers[value.args[0]]) >= self.cache_bytes and traffic > self.cache_bytes
            if (
                large
                and not read
                and size * stage_plan.lanes == 64
                and run * size >= 4096
                and _whole_lines(value, stage_plan)
            ):
                streamed.add(value)
        return frozenset(streamed)

    # --- threads

    def _outer_work(self) -> tuple[float, list[Expr]]:
        work = sum(stage_plan.work for stage_plan in self.plans)
        return work, [size for _, size in self.plan.outer]

    def _pragma(self, work: tuple[float, list[Expr]], collapse: int, apart: bool = False) -> str:
        """The OpenMP line for loops whose every point costs `work[0]`; "" when one thread is better.

        Arguments:
            apart: different points of these loops never write to one place.
        """
        each, sizes = work
        threads = self.options.threads
        if threads == 1 or (not apart and self._unordered()):
            return ""
        total: int | None = 1
        for size in sizes:
            known = as_int(size)
            total = None if known is None or total is None else total * known
        text = "#pragma omp parallel for"
        if collapse > 1:
            text += f" collapse({collapse})"
        text += " schedule(static)"
        if threads > 1:
            text += f" num_threads({threads})"
        limit = self.options.min_parallel_work
        if total is not None:
            return text if total * each >= limit and total > 1 else ""
        return f"{text} if ({product_text(sizes)} >= {max(int(limit / max(each, 1.0)), 2)})"

    def _unordered(self) -> bool:
        """Whether different points may write to one place, so that threads would race."""
        return any(_may_collide(facts) for facts in self.facts)

    def _stage_parallel(self, facts: StageFacts, stage_plan: StagePlan) -> Parallel:
        """How the loops of a stage without outer loops run on threads."""
        scalar = [var for var in stage_plan.point if var is not stage_plan.vector]
        vector = stage_plan.vector if stage_plan.vector in stage_plan.point else None
        points = static_points(stage_plan, stage_plan.point)
        each = stage_plan.work / max(points or _hinted(stage_plan, stage_plan.point), 1)
        if _may_collide(facts):
            return self._scatter_parallel(facts, stage_plan, scalar, each)
        if not stage_plan.point:
            pragma = (
                self._pragma((1.0, [stage_plan.sizes[v] for v in stage_plan.reduce]), 1) if stage_plan.reduce else ""
            )
            if pragma and facts.reductions and not facts.scans and not _stores_inside(facts):
                return Parallel(pragma, pieces=PARTS)
            return Parallel()
        sizes = [stage_plan.sizes[var] for var in stage_plan.point]
        if stage_plan.transposed:
            return Parallel(self._pragma((each, sizes), len(stage_plan.point) - 1))
        collapse, covered = 0, 1
        for var in scalar:
            if covered >= 64:
                break
            covered *= hint(stage_plan.sizes[var])
            collapse += 1
        chunk = 0
        threads = self.options.threads if self.options.threads > 0 else torch.get_num_threads()
        whole_rows = bool(stage_plan.reduce) and covered >= 2 * threads  # which are read from end to end
        if vector is not None and covered < 64 and collapse == len(scalar) and not whole_rows:
            width = stage_plan.lanes * (
                4 if stage_plan.reduce and hint(stage_plan.sizes[vector]) >= 4 * stage_plan.lanes else 1
            )
            symbolic = as_int(stage_plan.sizes[vector]) is None
            chunk = _chunk(hint(stage_plan.sizes[vector]), width, covered, each, symbolic)
            if stage_plan.reduce and covered == 1 and not symbolic:
                chunk = _even_chunk(hint(stage_plan.sizes[vector]), stage_plan.lanes, each, threads) or chunk
        if chunk and as_int(stage_plan.sizes[vector]) is not None and chunk >= (as_int(stage_plan.sizes[vector]) or 0):  # type: ignore[index]
            chunk = 0
        if not collapse and not chunk:
            return Parallel()
        pragma = self._pragma((each, sizes), collapse + (1 if chunk else 0))
        return Parallel(pragma, collapse, chunk) if pragma else Parallel()

    def _scatter_parallel(
        self, facts: StageFacts, stage_plan: StagePlan, scalar: Sequence[Var], each: float
    ) -> Parallel:
        """Threads share the outermost loops along which nothing is written twice."""
        collapse, stores = 0, _scattered(facts)
        if stage_plan.transposed:
            return Parallel()
        for var in scalar:  # what a buffer's stores write lies in one block for each value of `var`
            steps = {(store.args[0], coefficient(store.args[1], var)) for store in stores}
            one_step = len(steps) == len({name for name, _ in steps})
            if not one_step or not all(apart(facts, store.args[1], var, stage_plan.sizes) for store in stores):
                break
            collapse += 1
        sizes = [stage_plan.sizes[var] for var in stage_plan.point]
        pragma = self._pragma((each, sizes), collapse, apart=True) if collapse else ""
        return Parallel(pragma, collapse) if pragma else Parallel()


def _chunk(size: int, lanes: int, covered: int, each: float, symbolic: bool) -> int:
    """Elements of a piece of the vector loop: enough pieces for many threads, each of some thousand operations."""
    least = max(int(4096 / max(each, 1.0)), 1)
    wanted = least if symbolic else max(-(-size * covered // 64), least)
    return max(-(-wanted // lanes) * lanes, lanes)


def _even_chunk(size: int, lanes: int, each: float, threads: int) -> int:
    """Elements of a piece of a loop over reductions that run side by side, so that threads have about as much to do; 0
    where pieces would be too small.

    Narrow pieces read little of each row, which takes longer; those that do not divide the whole leave a narrow rest.
    """
    vectors = -(-size // lanes)
    best, best_time = 0, float("inf")
    for width in range(1, min(vectors, 8) + 1):
        if each * width * lanes < 4096:
            continue
        pieces = -(-vectors // width)
        time = -(-pieces // threads) * width * _NARROW.get(width, 1.0) * (1.0 if size % (width * lanes) == 0 else 1.15)
        if time <= best_time:
            best, best_time = width * lanes, time
    return best


_NARROW = {1: 1.6, 2: 1.25, 3: 1.1}  # times as long, by vectors


def _hinted(stage_plan: StagePlan, variables: Sequence[Var]) -> int:
    total = 1
    for var in variables:
        total *= hint(stage_plan.sizes[var])
    return total


def _stores_inside(facts: StageFacts) -> bool:
    return any(value.op == "store" and value not in facts.after for value in facts.statements)


def _may_collide(facts: StageFacts) -> bool:
    """Whether two points may write to one place: a scatter, or an accumulating store."""
    return bool(_scattered(facts))


def _scattered(facts: StageFacts) -> list[Value]:
    """Stores at positions that are looked up, and accumulating ones."""
    stores = [value for value in facts.statements if value.op == "store"]
    return [v for v in stores if v.args[3] is not None or any(name in facts.indirect for name in v.args[1].free)]


def _whole_lines(store: Value, stage_plan: StagePlan) -> bool:
    """Whether every vector of a contiguous store begins a cache line, given that the buffer does."""
    index = store.args[1]
    if stage_plan.vector is None or coefficient(index, stage_plan.vector) != 1:
        return False
    return all(scale % stage_plan.lanes == 0 for monomial, scale in index.poly if monomial != (stage_plan.vector,))


def _bytes(buffer: Buffer) -> int:
    """Size of a buffer; 0 when it is not known."""
    total = int(buffer.dtype.itemsize)
    for size in buffer.size:
        total *= as_int(size) or 0
    return total


def _describe(buffer: Buffer) -> str:
    sizes = ", ".join(str(size) for size in buffer.size)
    return f"{buffer.name}: {str(buffer.dtype).removeprefix('torch.')}[{sizes}]"
