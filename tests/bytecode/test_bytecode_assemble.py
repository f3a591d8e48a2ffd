"""Every helper of the assembler, executed."""

from __future__ import annotations

import builtins
import types

import pytest

from argand.bytecode.assemble import Assembler, Label
from argand.bytecode.decode import decode
from argand.bytecode.encode import encode
from argand.bytecode.flow import prologue
from argand.bytecode.format import dis_text
from argand.bytecode.opcodes import PY312
from argand.bytecode.resume import transformed_code
from argand.errors import InternalError


def template(a, b, *args, key=None, **kwargs):
    return a


def run(build, *args, globals=None, code=template.__code__, closure=None):
    """Assemble a body with `build(asm)` and call it as the frame hook would."""
    asm = Assembler()
    build(asm)
    made = transformed_code(code, asm.finish())
    return types.FunctionType(made, {"__builtins__": builtins, **(globals or {})}, None, None, closure)(*args)


def value(build, a=None, b=None, **more):
    """What `build` leaves on the stack."""

    def body(asm):
        build(asm)
        asm.return_value()

    return run(body, a, b, None, (), {}, **more)


def test_arguments_come_in_slot_order():
    def body(asm):
        for name in ("a", "b", "key", "args", "kwargs"):
            asm.load_fast(name)
        asm.build_tuple(5)
        asm.return_value()

    assert run(body, 1, 2, 3, (4,), {"k": 5}) == (1, 2, 3, (4,), {"k": 5})


def test_variables():
    def body(asm):
        asm.load_const([1])
        asm.store_fast("temp")
        asm.load_fast("temp", check=True)
        asm.load_global("len")
        asm.store_global("G")
        asm.load_global("G")
        asm.delete_global("G")
        asm.build_list(2)
        asm.delete_fast("temp")
        asm.return_value()

    assert run(body, 1, 2, None, (), {}) == [[1], len]


def test_unbound_check():
    def body(asm):
        asm.load_fast("temp", check=True)
        asm.return_value()

    with pytest.raises(UnboundLocalError, match="temp"):
        run(body, 1, 2, None, (), {})


def test_attributes_and_items():
    class Box:
        pass

    box, table = Box(), {"gone": 1}

    def build(asm):
        asm.load_const(5)
        asm.load_fast("a")
        asm.store_attr("x")
        asm.load_fast("a")
        asm.load_attr("x")
        asm.load_fast("b")
        asm.load_const("k")
        asm.store_subscr()
        asm.load_fast("b")
        asm.load_const("gone")
        asm.delete_subscr()
        asm.load_fast("a")
        asm.delete_attr("x")
        asm.load_fast("b")
        asm.load_const("k")
        asm.binary_subscr()

    assert value(build, box, table) == 5
    assert table == {"k": 5} and not hasattr(box, "x")


BINARY = {
    "+": 7 + 3, "-": 4, "*": 21, "/": 7 / 3, "//": 2, "%": 1, "**": 343, "&": 3, "|": 7, "^": 4, "<<": 56, ">>": 0, "+=": 10
}  # fmt: skip


@pytest.mark.parametrize("symbol", BINARY)
def test_binary_op(symbol):
    def build(asm):
        asm.load_fast("a")
        asm.load_fast("b")
        asm.emit("BINARY_OP", symbol)

    assert value(build, 7, 3) == BINARY[symbol]


@pytest.mark.parametrize("symbol", ["<", "<=", "==", "!=", ">", ">="])
@pytest.mark.parametrize("right", [1, 2, 3])
def test_compare_op(symbol, right):
    def build(asm):
        asm.load_fast("a")
        asm.load_fast("b")
        asm.emit("COMPARE_OP", symbol, 0)

    assert value(build, 2, right) is eval(f"2 {symbol} right")


def test_unary_is_in():
    def build(asm):
        for name in ("UNARY_NEGATIVE", "UNARY_INVERT"):
            asm.load_fast("a")
            asm.emit(name)
        for word in ("is", "is not"):
            asm.load_fast("a")
            asm.load_const(None)
            asm.emit("IS_OP", word)
        for invert in (False, True):
            asm.load_fast("a")
            asm.load_fast("b")
            asm.emit("CONTAINS_OP", "not in" if invert else "in")
        asm.build_tuple(6)

    assert value(build, 5, [5]) == (-5, ~5, False, True, True, False)


def test_containers():
    def build(asm):
        for i in range(4):
            asm.load_const(i)
        asm.build_map(2)
        asm.load_const(1)
        asm.load_const(1)
        asm.build_set(2)
        asm.load_const((3, 4))
        asm.emit("SET_UPDATE", 1, 1)
        asm.load_const("a")
        asm.load_const("b")
        asm.build_string(2)
        asm.build_list(0)
        asm.load_const(9)
        asm.emit("LIST_APPEND", 1, 1)
        asm.load_const((8, 7))
        asm.emit("LIST_EXTEND", 1, 1)
        asm.emit(*(("CALL_INTRINSIC_1", "INTRINSIC_LIST_TO_TUPLE") if PY312 else ("LIST_TO_TUPLE",)))
        asm.load_const(1)
        asm.load_const(None)
        asm.build_slice(2)
        asm.build_map(0)
        asm.load_fast("a")
        asm.emit("DICT_UPDATE", 1, 1)
        asm.build_tuple(6)

    expected = ({0: 1, 2: 3}, {1, 3, 4}, "ab", (9, 8, 7), slice(1, None), {"z": 1})
    assert value(build, {"z": 1}) == expected


def test_stack_moves():
    def build(asm):
        for item in "abcd":
            asm.load_const(item)
        asm.swap(3)  # a d c b
        asm.copy(3)  # a d c b d
        asm.dup()
        asm.pop_top()
        asm.build_tuple(5)

    assert value(build) == ("a", "d", "c", "b", "d")


def test_unpack():
    def build(asm):
        asm.load_fast("a")
        asm.unpack_sequence(3)
        asm.build_list(3)

    assert value(build, (1, 2, 3)) == [3, 2, 1]


def record(*args, **kwargs):
    return args, kwargs


def test_calls_of_a_global():
    def build(asm):
        asm.load_global_callable("record")
        asm.load_const(1)
        asm.load_fast("a")
        asm.call(2)
        asm.load_global_callable("record")
        asm.load_const(1)
        asm.load_fast("a")
        asm.load_const(3)
        asm.call(3, ("x", "y"))
        asm.build_tuple(2)

    assert value(build, 2, globals={"record": record}) == (((1, 2), {}), ((1,), {"x": 2, "y": 3}))


@pytest.mark.parametrize("prepare", ["around", "on_top", "const", "fast"])
def test_calls_of_values(prepare):
    def build(asm):
        if prepare == "around":
            asm.push_null_before()
            asm.load_fast("a")
            asm.load_attr("append")
            asm.push_null_after()
        elif prepare == "on_top":
            asm.load_fast("a")
            asm.load_attr("append")
            asm.callable_on_top()
        elif prepare == "const":
            asm.load_const_callable(items.append)
        else:
            asm.load_fast("a")
            asm.load_attr("append")
            asm.store_fast("f")
            asm.load_fast("f")
            asm.callable_on_top()
        asm.load_const(4)
        asm.call(1)

    items = []
    assert value(build, items) is None
    assert items == [4]


def test_call_function_ex():
    def build(asm):
        asm.load_global_callable("record")
        asm.load_fast("a")
        asm.call_function_ex(False)
        asm.load_global_callable("record")
        asm.load_fast("a")
        asm.load_fast("b")
        asm.call_function_ex(True)
        asm.build_tuple(2)

    assert value(build, (1, 2), {"k": 3}, globals={"record": record}) == (((1, 2), {}), ((1, 2), {"k": 3}))


def test_make_function_with_a_closure():
    def outer(a, b, *args, key=None, **kwargs):
        shared = a

        def inner(x, y=1, *, z=2):
            nonlocal shared
            shared = shared + 1
            return shared, x, y, z

        return inner, lambda: shared

    inner = next(c for c in outer.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == "inner")

    def body(asm):
        asm.load_fast("a")
        asm.store_deref("shared")
        asm.make_function(inner, ["shared"])
        asm.store_fast("f")
        asm.make_function(inner, ["shared"])
        asm.load_closure("shared")
        asm.load_fast("f")
        asm.load_deref("shared")
        asm.build_tuple(4)
        asm.emit("DELETE_DEREF", "shared")
        asm.load_fast("a")
        asm.store_deref("shared")
        asm.return_value()

    g, cell, f, before = run(body, 5, None, None, (), {}, code=outer.__code__)
    assert before == 5
    assert f(0, 10, z=3) == (6, 0, 10, 3)
    assert g(0, 1, z=20) == (7, 0, 1, 20)
    assert cell.cell_contents == 7 and f.__globals__ is g.__globals__


def test_make_function_refuses_two_closures():
    with pytest.raises(InternalError, match="not both"):
        Assembler().make_function(template.__code__, closure=["x"], closure_on_stack=True)


@pytest.mark.parametrize("kind", ["true", "false", "none"])
@pytest.mark.parametrize("item", [True, False, None, 0, "x", [], [1]])
def test_conditional_jumps(kind, item):
    def body(asm):
        yes = Label()
        asm.load_fast("a")
        getattr(asm, f"jump_if_{kind}")(yes)
        asm.load_const("fell")
        asm.return_value()
        asm.bind(yes)
        asm.load_const("jumped")
        asm.return_value()

    taken = {"true": bool(item), "false": not item, "none": item is None}[kind]
    assert run(body, item, None, None, (), {}) == ("jumped" if taken else "fell")


def test_jump_on_a_comparison_without_conversion():
    def body(asm):
        yes = Label()
        asm.load_fast("a")
        asm.load_fast("b")
        asm.is_op()
        asm.jump_if_true(yes, is_bool=True)
        asm.load_fast("a")
        asm.load_fast("b")
        asm.is_op()
        asm.jump_if_false(yes, is_bool=True)
        asm.bind(yes)
        asm.load_const("end")
        asm.return_value()

    assert run(body, 1, None, None, (), {}) == "end"


def test_loop_with_backward_jumps():
    def body(asm):
        top, end = Label(), Label()
        asm.load_const(0)
        asm.store_fast("total")
        asm.load_fast("a")
        asm.emit("GET_ITER")
        asm.bind(top)
        asm.for_iter(end)
        asm.dup()
        asm.jump_if_none(skip := Label())
        asm.load_fast("total")
        asm.emit("BINARY_OP", "+")
        asm.store_fast("total")
        asm.jump(top)
        asm.bind(skip)
        asm.pop_top()
        asm.jump(top)
        asm.bind(end)
        asm.end_for()
        asm.load_fast("total")
        asm.return_value()

    assert run(body, [1, None, 2, 3], None, None, (), {}) == 6
    assert run(body, [], None, None, (), {}) == 0


@pytest.mark.parametrize("kind", ["true", "false", "none"])
def test_conditional_jumps_backward(kind):
    """Goes back until the iterator in `a` yields something that does not jump."""

    def body(asm):
        top = Label()
        asm.load_const(0)
        asm.store_fast("count")
        asm.bind(top)
        asm.load_fast("count")
        asm.load_const(1)
        asm.emit("BINARY_OP", "+=")
        asm.store_fast("count")
        asm.load_global_callable("next")
        asm.load_fast("a")
        asm.call(1)
        getattr(asm, f"jump_if_{kind}")(top)
        asm.load_fast("count")
        asm.return_value()

    items = {"true": [1, 2, 0], "false": [0, "", 1], "none": [None, None, 1], "not_none": [1, 2, None]}[kind]
    assert run(body, iter(items), None, None, (), {}) == 3


def test_raise_and_handler():
    def body(asm):
        handler, done = Label(), Label()
        with asm.covered_by(handler, depth=0):
            asm.load_fast("a")
            asm.emit("RAISE_VARARGS", 1, 1)
        asm.bind(handler)
        asm.emit("PUSH_EXC_INFO")
        asm.load_attr("args")
        asm.store_fast("caught")
        asm.emit("POP_EXCEPT")
        asm.jump(done)
        asm.bind(done)
        asm.load_fast("caught")
        asm.return_value()

    assert run(body, ValueError("x", 1), None, None, (), {}) == ("x", 1)


def test_nested_handlers_and_given_targets():
    outer, inner = Label(), Label()
    asm = Assembler()
    with asm.covered_by(outer, 0):
        first = asm.emit("NOP")
        with asm.covered_by(inner, 1, lasti=True):
            second = asm.emit("NOP")
        third = asm.emit("NOP")
    asm.bind(inner)
    target = asm.emit("NOP")
    asm.bind(outer)
    out = asm.finish()
    assert first.handler is third.handler and first.handler.target is out[-1]
    assert second.handler.target is target and second.handler.entry_depth == 3
    assert target.handler is None


def test_positions():
    asm = Assembler((7, 7, 0, 3))
    assert asm.pop_top().positions == (7, 7, 0, 3)
    asm.set_line(9)
    assert asm.pop_top().lineno == 9
    asm.set_line(None)
    assert asm.pop_top().positions is None


def test_import():
    def build(asm):
        asm.load_const(0)
        asm.load_const(None)
        asm.emit("IMPORT_NAME", "math")

    import math

    assert value(build) is math


def test_label_mistakes():
    asm = Assembler()
    label = Label()
    asm.bind(label)
    with pytest.raises(InternalError, match="twice"):
        asm.bind(label)
    asm = Assembler()
    asm.jump(Label())
    with pytest.raises(InternalError, match="never bound"):
        asm.finish()


def test_extending_with_clones_of_a_function():
    asm = Assembler()
    from argand.bytecode.flow import clone_instructions

    copies, _ = clone_instructions(decode(template.__code__))
    asm.extend(copies)
    assert encode(asm.finish(), template.__code__) == template.__code__


# -- listings -------------------------------------------------------------------------------------------------------------


def listed(a, b):
    if b < 0:
        b = b * -1
    return a.real(b)


def test_listing_of_a_code_object():
    text = dis_text(listed.__code__)
    lines = text.splitlines()
    first = listed.__code__.co_firstlineno
    assert f"{first + 1:>3}" in text and f"{first + 3:>3}" in text
    assert any(line.split()[-3:-1] == ["COMPARE_OP", str(decode_arg("COMPARE_OP"))] for line in lines)
    assert any("LOAD_FAST" in line and "(b)" in line for line in lines)
    jump = next(line for line in lines if "POP_JUMP" in line)
    offset = jump.split("(to ")[1].rstrip(")")
    assert any(line.split()[:2] == [">>", offset] or line.split()[1:3] == [">>", offset] for line in lines)
    assert all(line == line.rstrip() for line in lines)


def decode_arg(opname):
    return next(inst.arg for inst in decode(listed.__code__) if inst.opname == opname)


def test_listing_of_new_instructions_numbers_them():
    asm = Assembler()
    asm.extend(prologue(listed.__code__))
    end = Label()
    asm.load_global_callable("f")
    asm.jump(end)
    asm.bind(end)
    asm.load_const(Unprintable())
    asm.return_value()
    text = dis_text(asm.finish())
    assert "(NULL + f)" in text and "(to 3)" in text and "<Unprintable object>" in text
    assert ">>    3 LOAD_CONST" in text


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def test_listing_shows_the_exception_table():
    def guarded(x):
        try:
            return x()
        finally:
            x = 0

    text = dis_text(guarded.__code__)
    assert "ExceptionTable:" in text and "lasti" in text and " -> " in text
    assert dis_text([]) == ""
