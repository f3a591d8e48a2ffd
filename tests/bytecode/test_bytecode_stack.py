"""Stack effects, stack depths, and the opcode tables that they rest on."""

from __future__ import annotations

import opcode
import types

import pytest
from function_corpus import CASES
from test_bytecode_roundtrip import sample

from argand.bytecode.cells import cell_slots
from argand.bytecode.decode import decode
from argand.bytecode.flow import reachable
from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import (
    KIND_OF,
    OPMAP,
    PY312,
    PY313,
    SUPPORTED_VERSIONS,
    VERSION,
    Kind,
    all_opnames,
)
from argand.bytecode.stack import max_stack_depth, stack_depths, stack_effect
from argand.errors import InternalError

# Opcodes of `opcode.opmap` that never reach a decoded instruction: filler, and what only the interpreter itself makes.
INVISIBLE = {"CACHE", "EXTENDED_ARG", "RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR"}


def test_tables_list_exactly_the_opcodes_of_this_python():
    real = {name for name, op in opcode.opmap.items() if op < 256 and not name.startswith("INSTRUMENTED_")}
    extra = {"LOAD_CLOSURE"} if PY313 else set()
    assert all_opnames() == (real - INVISIBLE) | extra


def test_tables_of_every_version():
    assert VERSION in SUPPORTED_VERSIONS
    sizes = {version: len(all_opnames(version)) for version in SUPPORTED_VERSIONS}
    assert sizes == {(3, 11): 108, (3, 12): 107, (3, 13): 114}
    with pytest.raises(InternalError, match=r"3\.10"):
        all_opnames((3, 10))


def test_every_opcode_has_a_kind():
    assert all_opnames() <= set(KIND_OF)
    assert KIND_OF["LOAD_CLOSURE"] == Kind.DEREF and KIND_OF["LOAD_FAST"] == Kind.LOCAL
    jumps = {name for name in all_opnames() if KIND_OF[name] == Kind.JUMP}
    assert jumps == {opcode.opname[op] for op in opcode.hasjrel if op < 256}


def test_max_depth_is_the_compilers_where_all_code_is_reachable():
    compared = 0
    for code in sample(3000):
        instructions = decode(code)
        deepest = max(max_stack_depth(instructions), 1 if PY313 else 0)
        assert deepest <= code.co_stacksize
        if len(reachable(instructions)) == len(instructions):
            compared += 1
            assert deepest == code.co_stacksize, code.co_qualname
    assert compared > 2000


def test_depths_follow_every_edge():
    for fn, _ in CASES:
        instructions = decode(fn.__code__)
        depths = stack_depths(instructions)
        assert depths[instructions[0]] == 0
        for i, inst in enumerate(instructions):
            if inst not in depths:
                continue
            if not inst.is_terminator:
                assert depths[instructions[i + 1]] == depths[inst] + stack_effect(inst)
            if inst.target is not None:
                assert depths[inst.target] == depths[inst] + stack_effect(inst, jump=True)
            if inst.handler is not None:
                assert depths[inst.handler.target] == inst.handler.entry_depth <= depths[inst] + 1 + inst.handler.lasti
            if inst.opname in ("RETURN_VALUE", "RETURN_CONST"):
                assert depths[inst] == (inst.opname == "RETURN_VALUE")
            if inst.opname in ("FOR_ITER", "SEND", "GET_ITER"):
                assert depths[inst] >= 1


@pytest.mark.parametrize(
    "inst, fall, jump",
    [
        (Instruction("LOAD_GLOBAL", 1, "f"), 2, 2),
        (Instruction("LOAD_GLOBAL", 0, "f"), 1, 1),
        (Instruction("LOAD_GLOBAL", None, "f"), 1, 1),
        (Instruction("LOAD_CONST", None, 3), 1, 1),
        (Instruction("CALL", 3, 3), -4, -4),
        (Instruction("RETURN_GENERATOR"), 1, 1),
        (Instruction("FOR_ITER"), 1, 1 if PY312 else -1),
        (Instruction("LOAD_CLOSURE", None, "x"), 1, 1),
        (Instruction("BUILD_MAP", 2, 2), -3, -3),
        (Instruction("UNPACK_EX", 0x102, 0x102), 3, 3),
        (Instruction("LOAD_ATTR", 1, "f"), 1 if PY312 else 0, 1 if PY312 else 0),
        *([(Instruction("PRECALL", 3, 3), 0, 0), (Instruction("JUMP_IF_TRUE_OR_POP"), -1, 0)] if not PY312 else []),
        *([(Instruction("LOAD_SUPER_ATTR", 1, "f"), -1, -1)] if PY312 else []),
        *([(Instruction("CALL_KW", 2, 2), -4, -4)] if PY313 else []),
    ],
)
def test_effects(inst, fall, jump):
    assert (stack_effect(inst), stack_effect(inst, jump=True)) == (fall, jump)


def test_depth_with_real_stack_of_a_generator():
    def gen():
        got = yield [1, (yield 2)]
        return got

    instructions = decode(gen.__code__)
    depths = stack_depths(instructions)
    start = next(i for i, inst in enumerate(instructions) if inst.opname == "RETURN_GENERATOR")
    assert [depths[inst] for inst in instructions[start : start + 3]] == [0, 1, 0]


def test_empty_and_foreign_lists():
    assert stack_depths([]) == {}
    with pytest.raises(InternalError, match="not in the list"):
        stack_depths([Instruction("JUMP_FORWARD", target=Instruction("NOP"))])


def test_instruction_properties():
    code = (lambda self, x: (x.f(1), f(x), x < 1, x is None)).__code__  # noqa: F821
    found = {inst.opname: inst for inst in decode(code)}
    method = found["LOAD_ATTR"] if PY312 else found["LOAD_METHOD"]
    assert method.is_method and method.argval == "f"
    assert found["LOAD_GLOBAL"].push_null and found["LOAD_GLOBAL"].argval == "f"
    assert found["COMPARE_OP"].argval == "<" and not found["COMPARE_OP"].to_bool
    assert found["IS_OP"].argval == "is"
    assert found["RETURN_VALUE"].is_terminator and not found["RETURN_VALUE"].is_jump
    assert found["RETURN_VALUE"].opcode == OPMAP["RETURN_VALUE"]
    assert found["RETURN_VALUE"].lineno == code.co_firstlineno
    assert "LOAD_GLOBAL" in repr(found["LOAD_GLOBAL"]) and "'f'" in repr(found["LOAD_GLOBAL"])


def test_comparison_for_a_branch_keeps_its_bool_bit():
    def branch(x):
        return 1 if x < 2 else 3

    compare = next(inst for inst in decode(branch.__code__) if inst.opname == "COMPARE_OP")
    assert compare.argval == "<" and compare.to_bool == PY313


def test_two_argument_super_is_told_apart():
    class A:
        def one(self):
            return super().f

        def two(self):
            return super(A, self).f  # noqa: UP008

    if PY312:
        found = [[i for i in decode(fn.__code__) if i.opname == "LOAD_SUPER_ATTR"][0] for fn in (A.one, A.two)]
        assert [inst.is_two_arg_super for inst in found] == [False, True]
        assert [inst.argval for inst in found] == ["f", "f"]
    else:
        assert all(isinstance(fn, types.FunctionType) and decode(fn.__code__) for fn in (A.one, A.two))


def _mixed_comprehensions(y):
    a = [(lambda: i) for i in y]
    b = [y and i for i in y]
    return a, b


def _comprehensions_in_try(y):
    try:
        a = [(lambda: i) for i in y]
        b = [(lambda i=i: 1 // i) for i in y]
    except ZeroDivisionError:
        return None
    return a, b


def test_a_handler_knows_which_slots_hold_cells():
    """What stands around a comprehension does not raise: where the variable has no cell, nobody comes to the handler."""
    code = _comprehensions_in_try.__code__
    slots = cell_slots(code, decode(code))
    for inst, state in slots.items():
        assert inst.opname != "PUSH_EXC_INFO" or not (state.plain or state.unsure)
    assert bool(slots) == PY312


def test_loads_of_cells_and_of_values_are_told_apart():
    """A variable of two inlined comprehensions is a cell in one and a plain local in the other."""
    names = [inst.opname for inst in decode(_mixed_comprehensions.__code__) if inst.argval in ("i", ("i", "i"))]
    if PY312:
        assert names.count("LOAD_CLOSURE") == 1 and names.count("LOAD_FAST") == 1
        assert names.index("LOAD_CLOSURE") < names.index("LOAD_FAST")
        assert "STORE_DEREF" in names and "STORE_FAST" in names
    else:
        assert names == []
