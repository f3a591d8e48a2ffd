"""decode and encode: unchanged code comes back equal, also without the hints that decoded instructions carry."""

from __future__ import annotations

import ast
import dis
import itertools
import random
import sys
import types

import pytest
from full_roundtrip import code_objects, differences, source_files
from function_corpus import CASES, SUPER_CASES, Derived, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from argand.bytecode.assemble import Assembler, Label
from argand.bytecode.decode import ambiguous_names, decode, localsplus_names
from argand.bytecode.encode import const_key, encode
from argand.bytecode.flow import clone_instructions, prologue, prologue_length, reachable
from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.opcodes import KIND_OF, NAME_FLAG_BITS, PY312, PY313, Kind, all_opnames
from argand.bytecode.tables import TableEntry, build_exception_table, parse_exception_table
from argand.errors import InternalError


def sample(count: int) -> list[types.CodeType]:
    """The same `count` or more code objects on every run, from a random choice of standard library files."""
    files = [path for path in source_files("stdlib") if "lib2to3" not in path]
    random.Random(3).shuffle(files)
    found: list[types.CodeType] = []
    for path in files:
        found.extend(code_objects(path))
        if len(found) >= count:
            break
    return found


@pytest.fixture(scope="module")
def codes() -> list[types.CodeType]:
    return sample(2000)


def test_sample_round_trip(codes):
    different = {f"{c.co_filename}:{c.co_qualname}": d for c in codes if (d := differences(c))}
    assert len(codes) >= 2000
    assert not different


@pytest.mark.slow
def test_standard_library_round_trip():
    """Every sixteenth file; `full_roundtrip.py` takes all of them."""
    count = 0
    for path in itertools.islice(source_files("stdlib"), 0, None, 16):
        for code in code_objects(path):
            count += 1
            assert not differences(code), (path, code.co_qualname)
    assert count > 600


def without_hints(code: types.CodeType) -> list[Instruction]:
    """Clones with only the flag bits of `arg`, as an assembler would make them."""
    copies, _ = clone_instructions(decode(code))
    for inst in copies:
        kind = KIND_OF[inst.opname]
        if kind == Kind.NAME:
            inst.arg = (inst.arg or 0) & ((1 << NAME_FLAG_BITS.get(inst.opname, 0)) - 1)
        elif kind == Kind.COMPARE and PY313:
            inst.arg = (inst.arg or 0) & 16
        elif kind not in (Kind.RAW, Kind.NONE):
            inst.arg = None
        inst.offset = None
    return copies


def test_indices_are_found_from_argval(codes):
    for code in codes[:1500]:
        if ambiguous_names(code):
            continue
        again = encode(without_hints(code), code)
        assert again.co_names == code.co_names and again.co_varnames == code.co_varnames
        assert len(again.co_consts) == len(code.co_consts)
        ours, theirs = list(dis.get_instructions(again)), list(dis.get_instructions(code))
        assert [(a.opname, a.argrepr) for a in ours] == [(b.opname, b.argrepr) for b in theirs]


def test_decode_agrees_with_dis(codes):
    skipped = ("CACHE", "EXTENDED_ARG")
    for code in codes[:1500]:
        ours = decode(code)
        theirs = [inst for inst in dis.get_instructions(code) if inst.opname not in skipped]
        assert len(ours) == len(theirs)
        starts = {inst.offset: inst for inst in ours}
        for a, b in zip(ours, theirs):
            assert (a.offset, a.arg, a.lineno) == (b.offset, b.arg, b.positions.lineno)
            assert a.opname == b.opname or (PY313 and (a.opname, b.opname) == ("LOAD_CLOSURE", "LOAD_FAST"))
            kind = KIND_OF[a.opname]
            if kind == Kind.JUMP:
                # A target may have EXTENDED_ARG before it, where dis says the jump goes.
                assert a.target is starts.get(b.argval) or a.target.arg > 255
            elif a.opname == "KW_NAMES":  # unknown to dis of 3.11
                assert a.argval == code.co_consts[a.arg]
            elif kind in (Kind.NAME, Kind.CONST, Kind.LOCAL, Kind.DEREF, Kind.PAIR):
                assert a.argval == b.argval or a.argval is b.argval or isinstance(a.argval, float)
            elif kind in (Kind.COMPARE, Kind.BINARY):
                assert a.argval == b.argrepr.removeprefix("bool(").removesuffix(")")


def test_slots_are_named_as_the_interpreter_does(codes):
    for code in codes:
        names = localsplus_names(code)
        assert names == tuple(code._varname_from_oparg(i) for i in range(len(names)))
        with pytest.raises(IndexError):
            code._varname_from_oparg(len(names))


def test_every_opname_is_known(codes):
    seen = {inst.opname for code in codes for inst in decode(code)}
    assert seen <= all_opnames()
    assert len(seen) > 80


@pytest.mark.parametrize("fn, calls", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_re_encoded_functions_give_equal_results(fn, calls):
    for instructions in (decode(fn.__code__), without_hints(fn.__code__)):
        again = types.FunctionType(
            encode(instructions, fn.__code__), fn.__globals__, None, fn.__defaults__, fn.__closure__
        )
        again.__kwdefaults__ = fn.__kwdefaults__
        for args in calls:
            assert outcome(again, args) == outcome(fn, args)


def test_warm_code_decodes_to_plain_opcodes():
    def hot(items):
        total = 0
        for item in items:
            total = total + item.real * 2
        return total

    cold = [(inst.opname, inst.arg) for inst in decode(hot.__code__)]
    for _ in range(200):
        hot([1, 2, 3])
    warm = decode(hot.__code__)
    assert [(inst.opname, inst.arg) for inst in warm] == cold
    assert encode(warm, hot.__code__) == hot.__code__


def test_instrumented_code_decodes_to_plain_opcodes():
    def traced(n):
        out = []
        for i in range(n):
            if i:
                out.append(i)
        return out

    cold = [(inst.opname, inst.arg) for inst in decode(traced.__code__)]
    seen = []
    old = sys.gettrace()
    sys.settrace(lambda *event: seen.append([(i.opname, i.arg) for i in decode(traced.__code__)]))
    try:
        traced(3)
    finally:
        sys.settrace(old)
    assert seen and all(listing == cold for listing in seen)


def test_cache_returns_the_same_list():
    cache = {}
    code = outcome.__code__
    assert decode(code, cache) is decode(code, cache)
    assert decode(code) is not decode(code)


def test_constants_of_different_type_stay_apart():
    values = [0, 0.0, -0.0, False, 0j, -0j, complex(0, -0.0), 1, True, (0,), (0.0,), (False,), "a", b"a", None, ...]
    values += [frozenset([0]), frozenset([False]), float("nan"), [1], {}]
    assert len({const_key(value) for value in values}) == len(values)
    asm = Assembler()
    for value in values:
        asm.load_const(value)
        asm.load_const(value)
        asm.build_tuple(2)
    asm.build_list(len(values))
    asm.return_value()
    made = types.FunctionType(encode(prologue(outcome.__code__) + asm.finish(), run_template, flags=3), {})
    assert made.__code__.co_consts[len(run_template.co_consts) :].__len__() <= len(values)
    got = made()
    assert [repr(pair) for pair in got] == [repr((value, value)) for value in values]
    assert all(type(a) is type(value) for (a, _), value in zip(got, values))
    assert got[-1][0] is values[-1]


run_template = (lambda: None).__code__


# -- jumps whose distance needs EXTENDED_ARG ------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_long_jumps(blocks, loops, use_try):
    lines = ["def f(n, out):"]
    pad = "    "
    for depth in range(loops):
        lines.append(f"{pad}for v{depth} in range(2):")
        pad += "    "
    if use_try:
        lines.append(f"{pad}try:")
        pad += "    "
    for i, size in enumerate(blocks):
        lines.append(f"{pad}if n % {i + 2}:")
        lines += [f"{pad}    out.append(n + {i} * {j})" for j in range(size)] or [f"{pad}    pass"]
        lines.append(f"{pad}else:")
        lines += [f"{pad}    out.append(-n)"] * (size // 3 + 1)
    if use_try:
        pad = pad[:-4]
        lines += [f"{pad}except ZeroDivisionError:", f"{pad}    out.append('never')"]
    lines.append("    return out")
    scope = {}
    exec(compile("\n".join(lines), "<long>", "exec"), scope)
    fn = scope["f"]
    assert not differences(fn.__code__)
    again = types.FunctionType(encode(without_hints(fn.__code__), fn.__code__), {})
    for n in range(7):
        assert again(n, []) == fn(n, [])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 700), st.integers(0, 700), st.booleans())
def test_jumps_over_padding(before, after, backward):
    """A conditional jump, forward or backward, over any number of instructions around 255 code units."""
    asm = Assembler()
    done, loop = Label(), Label()
    asm.extend(prologue(count_template))
    asm.bind(loop)
    for _ in range(before):
        asm.emit("NOP")
    asm.load_fast("n")
    asm.load_const(1)
    asm.emit("BINARY_OP", "-")
    asm.store_fast("n")
    asm.load_fast("n")
    asm.load_const(0)
    asm.emit("COMPARE_OP", ">", 0)
    if backward:
        asm.jump_if_true(loop)
    else:
        asm.jump_if_false(done)
        for _ in range(after):
            asm.emit("NOP")
        asm.jump(loop)
    asm.bind(done)
    asm.load_fast("n")
    asm.return_value()
    instructions = asm.finish()
    code = encode(instructions, count_template)
    assert types.FunctionType(code, {})(4) == 0
    wanted = [inst.opname for inst in instructions if inst.opname == "NOP"]
    assert [inst.opname for inst in decode(code) if inst.opname == "NOP"] == wanted
    assert not differences(code)


def _count(n):
    return n


count_template = _count.__code__


def test_many_names_and_constants():
    body = "\n".join(f"    a{i} = n + {i + 1000}.5; g{i} = a{i}" for i in range(400))
    scope = {}
    exec(f"def f(n):\n    global {', '.join(f'g{i}' for i in range(400))}\n{body}\n    return a399 + g300", scope)
    fn = scope["f"]
    assert not differences(fn.__code__)
    again = types.FunctionType(encode(without_hints(fn.__code__), fn.__code__), scope)
    assert again(1) == fn(1)


def test_arguments_beyond_sixteen_bits():
    """70,000 constants and a jump over all of them: two EXTENDED_ARG each."""
    asm = Assembler()
    skip = Label()
    asm.extend(prologue(count_template))
    asm.load_fast("n")
    asm.jump_if_none(skip)
    for i in range(70_000):
        asm.load_const(i + 0.5)
        asm.store_fast("n")
    asm.bind(skip)
    asm.load_fast("n")
    asm.return_value()
    instructions = asm.finish()
    code = encode(instructions, count_template)
    assert not differences(code)
    fn = types.FunctionType(code, {})
    assert fn(1) == 69_999.5 and fn(None) is None
    jump = next(inst for inst in decode(code) if inst.is_jump)
    assert jump.arg > 0xFFFF and jump.target.opname == "LOAD_FAST"


# -- tables ---------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5000), st.integers(0, 3000), st.integers(0, 70_000), st.integers(0, 300), st.booleans()
        )
    )
)
def test_exception_table_round_trip(rows):
    entries, at = [], 0
    for length, gap, target, depth, lasti in rows:
        at += gap
        entries.append(TableEntry(at, at + length, target, depth, lasti))
        at += length
    assert parse_exception_table(build_exception_table(entries)) == entries


position = st.one_of(
    st.none(),
    st.tuples(st.integers(1, 5000), st.integers(0, 40), st.integers(0, 300), st.integers(0, 300)).map(
        lambda p: (p[0], p[0] + p[1], p[2], p[3])
    ),
    st.integers(1, 5000).map(lambda line: (line, line, None, None)),
)


@given(st.lists(position, min_size=1, max_size=40), st.integers(1, 6000))
def test_positions_round_trip(positions, firstlineno):
    instructions = [Instruction("RESUME", 0, 0, positions=p) for p in positions]
    instructions += [Instruction("LOAD_CONST", None, None), Instruction("RETURN_VALUE")]
    code = encode(instructions, run_template, firstlineno=firstlineno)
    assert code.co_firstlineno == firstlineno
    assert [inst.positions for inst in decode(code)] == [*positions, None, None]


def test_spliced_handlers_are_kept_apart():
    out = [Instruction("RESUME", 0, 0)]
    first, second = Instruction("PUSH_EXC_INFO"), Instruction("PUSH_EXC_INFO")
    for handler in (ExceptionHandler(first, 0), ExceptionHandler(second, 0, True)):
        out.append(Instruction("NOP", handler=handler))
        out.append(Instruction("NOP", handler=handler))
    out += [Instruction("LOAD_CONST", None, 5), Instruction("RETURN_VALUE")]
    for start in (first, second):
        out += [start, Instruction("RERAISE", 0, 0)]
    code = encode(out, run_template)
    rows = parse_exception_table(code.co_exceptiontable)
    assert [(row.end - row.start, row.depth, row.lasti) for row in rows] == [(2, 0, False), (2, 0, True)]
    assert types.FunctionType(code, {})() == 5


# -- refusals -------------------------------------------------------------------------------------------------------------


def _returns(*instructions: Instruction) -> list[Instruction]:
    return [Instruction("RESUME", 0, 0), *instructions, Instruction("LOAD_CONST", None, 0), Instruction("RETURN_VALUE")]


@pytest.mark.parametrize(
    "instructions, message",
    [
        (_returns(Instruction("LOAD_DEREF", None, "nowhere")), "nowhere"),
        (_returns(Instruction("NO_SUCH_OPCODE")), "NO_SUCH_OPCODE"),
        (_returns(Instruction("POP_TOP")), "underflow"),
        (_returns(Instruction("JUMP_FORWARD", target=Instruction("NOP"))), "not in the list"),
        ([Instruction("RESUME", 0, 0)], "runs off"),
        (_returns(Instruction("NOP", handler=ExceptionHandler(Instruction("NOP"), 0))), "not in the list"),
    ],
)
def test_bad_instructions_are_refused(instructions, message):
    with pytest.raises(InternalError, match=message):
        encode(instructions, run_template)


def test_an_instruction_twice_is_refused():
    nop = Instruction("NOP")
    with pytest.raises(InternalError, match="twice"):
        encode(_returns(nop, nop), run_template)


def test_disagreeing_depths_are_refused():
    end = Instruction("NOP")
    branch = Instruction("POP_JUMP_IF_TRUE" if PY312 else "POP_JUMP_FORWARD_IF_TRUE", target=end)
    body = [Instruction("LOAD_CONST", None, True), branch, Instruction("LOAD_CONST", None, 1), end]
    with pytest.raises(InternalError, match="one way"):
        encode(_returns(*body), run_template)


def test_a_loop_that_ends_elsewhere_is_refused():
    loop = Instruction("FOR_ITER", target=Instruction("NOP"))
    body = [Instruction("LOAD_CONST", None, ()), Instruction("GET_ITER"), loop, Instruction("POP_TOP")]
    body += [Instruction("POP_TOP"), loop.target]
    if PY312:
        with pytest.raises(InternalError, match="END_FOR"):
            encode(_returns(*body), run_template)
    else:
        assert types.FunctionType(encode(_returns(*body), run_template), {})() == 0


# -- flow -----------------------------------------------------------------------------------------------------------------


def test_clone_is_independent_and_equal():
    code = CASES[6][0].__code__
    originals = decode(code)
    copies, mapping = clone_instructions(originals)
    assert encode(copies, code) == code
    assert not set(copies) & set(originals)
    assert {inst.target for inst in copies if inst.target} <= set(copies)
    assert {inst.handler.target for inst in copies if inst.handler} <= set(copies)
    assert all(mapping[a] is b for a, b in zip(originals, copies))


def test_prologue_is_the_compilers():
    for fn, _ in CASES:
        code = fn.__code__
        ours = prologue(code)
        theirs = decode(code)[: prologue_length(decode(code))]
        assert [(i.opname, i.argval) for i in ours] == [(i.opname, i.argval) for i in theirs]


def test_reachable_leaves_out_dead_code():
    tree = ast.parse(
        "def f(x):\n    while True:\n        try:\n            x()\n        except ValueError:\n            return 1"
    )
    scope = {}
    exec(compile(tree, "<dead>", "exec"), scope)
    instructions = decode(scope["f"].__code__)
    dead = Instruction("NOP")
    assert reachable([*instructions, dead]) == set(instructions)


def test_ambiguous_names_are_reported():
    def outer():
        x = 1

        def inner(y):
            a = [(lambda: x) for x in y]
            return a, x

        return inner

    inner = outer()
    assert ambiguous_names(inner.__code__) == ({"x"} if PY312 else set())
    assert not differences(inner.__code__)
    again = types.FunctionType(encode(decode(inner.__code__), inner.__code__), {}, None, None, inner.__closure__)
    assert again([5])[1] == inner([5])[1]


@pytest.mark.parametrize("fn, calls", SUPER_CASES)
def test_methods_with_super(fn, calls):
    again = types.FunctionType(
        encode(decode(fn.__code__), fn.__code__), {"super": super}, None, (False,), fn.__closure__
    )
    again.__globals__["Derived"] = Derived
    for args in calls:
        assert again(Derived(), *args) == fn(Derived(), *args)
