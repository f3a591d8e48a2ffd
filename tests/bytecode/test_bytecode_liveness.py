"""Live locals against the definition, searched by brute force."""

from __future__ import annotations

import random

import pytest
from function_corpus import CASES, Derived
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bytecode_roundtrip import sample

from argand.bytecode.decode import decode
from argand.bytecode.instruction import ExceptionHandler, Instruction
from argand.bytecode.liveness import accesses, live_locals
from argand.bytecode.opcodes import CACHES, KIND_OF, OPMAP, PY312, PY313, Kind
from argand.errors import InternalError


def is_live(instructions, start, name):
    """Definition: some path from `start` reads `name` before it writes it. Depth-first search over all paths."""
    index = {inst: i for i, inst in enumerate(instructions)}
    seen, todo = set(), [start]
    while todo:
        inst = todo.pop()
        if inst in seen:
            continue
        seen.add(inst)
        reads, writes = accesses(inst)
        if name in reads:
            return True
        if inst.handler is not None:  # the exception comes before the write
            todo.append(inst.handler.target)
        if name in writes:
            continue
        if inst.target is not None:
            todo.append(inst.target)
        if not inst.is_terminator and index[inst] + 1 < len(instructions):
            todo.append(instructions[index[inst] + 1])
    return False


def names_in(instructions):
    return {name for inst in instructions for group in accesses(inst) for name in group}


def check(instructions, points):
    live = live_locals(instructions)
    names = names_in(instructions)
    for inst in points:
        assert live(inst) == {name for name in names if is_live(instructions, inst, name)}, inst


def test_corpus_against_brute_force():
    for fn, _ in CASES:
        instructions = decode(fn.__code__)
        check(instructions, instructions)


def test_library_code_against_brute_force():
    rng = random.Random(1)
    checked = 0
    for code in sample(3000):
        instructions = decode(code)
        if code.co_varnames and 20 < len(instructions) < 400:
            check(instructions, rng.sample(instructions, 2))
            checked += 1
    assert checked > 500


@st.composite
def programs(draw):
    """Random lists of accesses, jumps and handlers (no valid stack is needed for data flow)."""
    size = draw(st.integers(2, 14))
    choices = ["LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_DEREF", "STORE_DEREF", "MAKE_CELL", "NOP", "JUMP", "IF"]
    choices += ["RETURN_VALUE"]
    if PY312:
        choices += ["LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK"]
    if PY313:
        choices += ["LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"]
    name = st.sampled_from("xyz")
    out = []
    for _ in range(size):
        opname = draw(st.sampled_from(choices))
        if opname == "JUMP":
            out.append(Instruction("JUMP_FORWARD"))
        elif opname == "IF":
            out.append(Instruction("POP_JUMP_IF_TRUE" if PY312 else "POP_JUMP_FORWARD_IF_TRUE"))
        elif KIND_OF[opname] == Kind.PAIR:
            out.append(Instruction(opname, None, (draw(name), draw(name))))
        elif KIND_OF[opname] in (Kind.LOCAL, Kind.DEREF):
            out.append(Instruction(opname, None, draw(name)))
        else:
            out.append(Instruction(opname))
    for inst in out:
        if inst.is_jump:
            inst.target = out[draw(st.integers(0, size - 1))]
        if draw(st.integers(0, 3)) == 0:
            inst.handler = ExceptionHandler(out[draw(st.integers(0, size - 1))], 0)
    return out


@settings(max_examples=300, deadline=None)
@given(programs())
def test_random_programs_against_brute_force(instructions):
    check(instructions, instructions)


def at(code, opname, argval=None, nth=0):
    found = [i for i in decode(code) if i.opname == opname and (argval is None or i.argval == argval)]
    return found[nth]


def live_at(fn, opname, argval=None, nth=0, with_code=True):
    code = fn.__code__
    instructions = decode(code)
    index = [i for i, x in enumerate(decode(code)) if x.opname == opname and argval in (None, x.argval)][nth]
    return live_locals(instructions, code if with_code else None)(instructions[index])


def test_a_read_in_a_handler_keeps_the_old_value_alive():
    def f(a, b, g):
        try:
            a = g(b)
        except ValueError:
            return a
        return b

    # `a` is about to be written, but the store itself is still covered by the handler that reads it.
    assert live_at(f, "STORE_FAST", "a") == {"a", "b"}


def test_delete_reads():
    def f(a):
        b = 1
        del a
        a = b
        return a

    assert live_at(f, "DELETE_FAST", "a") == {"a", "b"}
    assert live_at(f, "STORE_FAST", "a") == set()


def test_free_variables_are_not_locals():
    x = 1

    def f(a):
        return lambda: a + x

    code = f.__code__
    start = decode(code)
    resume = next(i for i, inst in enumerate(start) if inst.opname == "RESUME")
    assert live_locals(start, code)(start[resume]) == {"a"}
    assert live_locals(start)(start[resume]) == {"a", "x"}


def test_cells_stay_alive_over_stores():
    def f(a):
        c = a
        c = a + 1
        return lambda: c

    assert live_at(f, "STORE_DEREF", "c") >= {"c"}


@pytest.mark.parametrize("reader", ["locals", "eval", "exec", "vars", "dir"])
def test_readers_of_locals_read_all(reader):
    scope = {}
    exec(f"def f(a, b):\n    c = 1\n    {reader}()\n    return 0", scope)
    f = scope["f"]
    assert live_at(f, "LOAD_GLOBAL", reader) == {"a", "b", "c"}
    assert live_at(f, "LOAD_GLOBAL", reader, with_code=False) == set()


def test_zero_argument_super_reads_self():
    code = Derived.value.__code__
    instructions = decode(code)
    live = live_locals(instructions, code)
    loads = [inst for inst in instructions if inst.opname == "LOAD_GLOBAL" and inst.argval == "super"]
    assert len(loads) == 3 and all("self" in live(inst) for inst in loads)
    assert "self" in live_locals(instructions, code)(loads[1]) and CACHES[OPMAP["LOAD_GLOBAL"]] > 0


def test_foreign_instruction_is_refused():
    instructions = decode(at.__code__)
    with pytest.raises(InternalError, match="not in the list"):
        live_locals(instructions)(Instruction("NOP"))
