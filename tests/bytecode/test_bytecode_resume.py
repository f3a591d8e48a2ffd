"""Resume functions: every function of the corpus, broken at every instruction, gives what it gives unbroken."""

from __future__ import annotations

import inspect
import random
import sys
import types

import pytest
from full_roundtrip import differences
from function_corpus import CASES, SUPER_CASES, Derived, Manager, outcome
from splitting import split, split_points
from test_bytecode_roundtrip import sample

from argand.bytecode.decode import ambiguous_names, decode
from argand.bytecode.encode import encode
from argand.bytecode.flow import prologue_length
from argand.bytecode.instruction import Instruction
from argand.bytecode.liveness import live_locals
from argand.bytecode.opcodes import CO_ANY_GENERATOR, PY312
from argand.bytecode.resume import (
    ResumeCode,
    StackSlot,
    build_resume_code,
    frame_arg_names,
    resume_name,
    transformed_code,
)
from argand.bytecode.stack import stack_depths
from argand.errors import InternalError


def as_hook(fn, code):
    """A function that binds its arguments as `fn` does and passes them on as the frame hook would."""
    target = types.FunctionType(code, fn.__globals__, fn.__name__, None, fn.__closure__)
    signature = inspect.signature(fn)

    def call(*args, **kwargs):
        binding = signature.bind(*args, **kwargs)
        binding.apply_defaults()
        return target(*(binding.arguments[name] for name in frame_arg_names(fn.__code__)))

    return call


def transform_only(fn):
    return as_hook(fn, transformed_code(fn.__code__, decode(fn.__code__)))


@pytest.mark.parametrize("fn, calls", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_transformed_code_takes_all_arguments(fn, calls):
    code = transformed_code(fn.__code__, decode(fn.__code__))
    count = len(inspect.signature(fn).parameters)
    assert code.co_argcount == count and not code.co_kwonlyargcount and not code.co_flags & 0xC
    assert code.co_varnames[:count] == fn.__code__.co_varnames[:count]
    assert (code.co_cellvars, code.co_freevars) == (fn.__code__.co_cellvars, fn.__code__.co_freevars)
    for args in calls:
        assert outcome(transform_only(fn), args) == outcome(fn, args)


@pytest.mark.parametrize("fn, calls", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_break_at_every_instruction(fn, calls):
    expected = [outcome(fn, args) for args in calls]
    points = split_points(fn.__code__)
    assert len(points) > len(decode(fn.__code__)) // 5
    for point in points:
        code, _ = split(fn.__code__, point)
        broken = as_hook(fn, code)
        assert [outcome(broken, args) for args in calls] == expected, (point, decode(fn.__code__)[point])


@pytest.mark.parametrize("fn, calls", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_break_resume_functions_again(fn, calls):
    rng = random.Random(fn.__name__)
    expected = [outcome(fn, args) for args in calls]
    points = split_points(fn.__code__)
    offsets = {inst.offset for inst in decode(fn.__code__)}
    twice = 0
    for point in rng.sample(points, min(15, len(points))):
        code, names = split(fn.__code__, point, again=rng.randrange(1000))
        broken = as_hook(fn, code)
        assert [outcome(broken, args) for args in calls] == expected, (point, names)
        for count, name in enumerate(names, 1):
            offset, number = name.removeprefix("__resume_at_").split("_")
            assert int(offset) in offsets and int(number) == count
        twice += len(names) == 2
    assert twice > 0


def test_library_functions_can_be_broken_anywhere():
    """Not run, but encoded: stack depths, tables and slots must fit, and the result decodes to what was meant."""
    rng = random.Random(5)
    broken = 0
    for code in sample(750)[:750]:
        if not code.co_flags & 1 or code.co_flags & CO_ANY_GENERATOR or ambiguous_names(code):
            continue
        points = split_points(code)
        for point in rng.sample(points, min(1, len(points))):
            made, names = split(code, point, again=rng.randrange(1000))
            todo = [made]
            while todo:
                inner = todo.pop()
                assert not differences(inner)
                todo += [c for c in inner.co_consts if isinstance(c, types.CodeType) and c.co_name in names]
            broken += len(names)
    assert broken > 500


@pytest.mark.parametrize("fn, calls", SUPER_CASES, ids=["value", "cell"])
def test_super_works_after_a_break(fn, calls):
    for point in split_points(fn.__code__):
        for again in (None, point):
            code, _ = split(fn.__code__, point, again=again)
            broken = as_hook(fn, code)
            for args in calls:
                assert broken(Derived(), *args) == fn(Derived(), *args)


def make_break(fn, opname, argval=None, nth=0, extra=0):
    """ResumeCode at an instruction of `fn`, with all values on the stack and all live locals."""
    code = fn.__code__
    instructions = decode(code)
    found = [i for i, inst in enumerate(instructions) if inst.opname == opname and argval in (None, inst.argval)]
    target = instructions[found[nth] + extra]
    layout = [StackSlot.VALUE] * stack_depths(instructions)[target]
    plain = set(code.co_varnames) - set(code.co_cellvars)
    live = sorted(live_locals(instructions, code)(target) & plain)
    return build_resume_code(code, instructions, target, layout, live, resume_name(target, 3)), target


def example(a, b):
    x = a + 1
    y = x * b
    if y > 100:
        return x
    return y - b


def test_shape_of_resume_code():
    resume, target = make_break(example, "BINARY_OP", "*")
    assert isinstance(resume, ResumeCode)
    assert resume.code.co_name == f"__resume_at_{target.offset}_3"
    assert resume.arg_names == ("___stack0", "___stack1", "b", "x")
    assert resume.stack_args == 2 and resume.freevars == ()
    assert resume.code.co_argcount == 4 and resume.code.co_varnames[:4] == resume.arg_names
    made = types.FunctionType(resume.code, {})
    assert made(3, 4, 4, 3) == example(2, 4) and made(50, 4, 4, 50) == example(49, 4)
    assert all(inst.argval != "a" for inst in decode(resume.code))
    lines = {inst.lineno for inst in decode(resume.code)} - {None}
    assert min(lines) == target.lineno and resume.code.co_firstlineno == example.__code__.co_firstlineno


def test_original_offsets_name_the_users_instructions():
    resume, target = make_break(example, "BINARY_OP", "*")
    originals = {inst.offset: inst for inst in decode(example.__code__)}
    seen = 0
    for inst in decode(resume.code, original_offsets=resume.original_offsets):
        if inst.offset is not None:
            assert (inst.opname, inst.argval) == (originals[inst.offset].opname, originals[inst.offset].argval)
            seen += 1
    assert seen == len([i for i in originals.values() if i.offset >= target.offset])


def test_dead_code_is_left_out_but_loops_stay():
    def f(n):
        before = [n, n + 1, n + 2]
        for i in before:
            n += i
        return n

    late, _ = make_break(f, "RETURN_VALUE", extra=-1)
    inside, target = make_break(f, "BINARY_OP", "+=")
    assert not any(inst.opname == "FOR_ITER" for inst in decode(late.code))
    assert any(inst.opname == "FOR_ITER" for inst in decode(inside.code))
    assert not any(inst.opname == "BUILD_LIST" for inst in decode(inside.code))
    assert types.FunctionType(inside.code, {})(iter([5, 6]), 10, 1, *([10] if "n" in inside.arg_names else [])) == 22


def test_cells_are_passed_and_shared():
    def f(n):
        count = n

        def bump():
            nonlocal count
            count += 1
            return count

        count += 10
        return bump(), count, bump

    resume, _ = make_break(f, "BINARY_OP", "+=")
    assert resume.freevars == ("count",) and "count" not in resume.arg_names
    assert resume.code.co_freevars == ("count",) and resume.code.co_cellvars == ()
    cell = types.CellType(5)
    made = types.FunctionType(resume.code, {}, None, None, (cell,))
    bumped = types.FunctionType(f.__code__.co_consts[1], {}, None, None, (cell,))
    arguments = {"___stack0": 5, "___stack1": 10, "bump": bumped}
    result = made(*(arguments[name] for name in resume.arg_names))
    assert result[:2] == (16, 16) and cell.cell_contents == 16
    assert result[2]() == 17


def test_break_within_with_calls_exit_once():
    def f(log):
        with Manager(log):
            x = len(log)
            log.append(x)
            log.append(1 // (x - 1))
        return x

    for point in split_points(f.__code__):
        log, plain_log = [], []
        code, _ = split(f.__code__, point)
        with pytest.raises(ZeroDivisionError):
            as_hook(f, code)(log)
        with pytest.raises(ZeroDivisionError):
            f(plain_log)
        assert log == plain_log == ["enter", 1, ("exit", "ZeroDivisionError")]


def test_exception_state_is_restored_within_handlers():
    def f(x):
        seen = []
        try:
            raise ValueError(x)
        except ValueError:
            seen.append(type(sys.exc_info()[1]).__name__)
            try:
                raise
            except ValueError as error:
                seen.append(error.args)
            seen.append(type(sys.exc_info()[1]).__name__)
        seen.append(sys.exc_info()[1])
        return seen

    expected = f(3)
    assert expected == ["ValueError", (3,), "ValueError", None]
    for point in split_points(f.__code__):
        code, _ = split(f.__code__, point)
        assert as_hook(f, code)(3) == expected, point
        assert sys.exc_info()[1] is None


def test_stack_values_die_when_they_would():
    class Tracked:
        alive = 0

        def __init__(self):
            Tracked.alive += 1

        def __del__(self):
            Tracked.alive -= 1

        def __add__(self, other):
            return 1

    def f(seen):
        y = Tracked() + Tracked()
        seen.append(Tracked.alive)
        return y

    resume, _ = make_break(f, "BINARY_OP", "+")
    made = types.FunctionType(resume.code, {}, None, None, tuple(types.CellType(Tracked) for _ in resume.freevars))
    seen = []
    arguments = [Tracked(), Tracked()]

    def call():
        a = arguments.pop()
        b = arguments.pop()
        pair = [a, b]
        del a, b
        return made(pair.pop(), pair.pop(), seen)

    call()
    assert seen == [0]


def test_locals_shows_no_stack_parameters():
    def f(a):
        return [a, 7, sorted(locals())]

    instructions = decode(f.__code__)
    resume, _ = make_break(f, "LOAD_CONST", 7)
    assert types.FunctionType(resume.code, {})(1, 1)[2] == ["a"] and len(instructions) > 4


def test_inlined_comprehension_keeps_its_local_apart():
    """x is a local of the comprehension and a free variable of the function."""
    x = 1

    def f(y):
        a = [x for x in y]
        return a, x

    for point in split_points(f.__code__):
        code, _ = split(f.__code__, point, again=point)
        assert as_hook(f, code)([5, 6]) == ([5, 6], 1)


def test_many_locals_split_wide_pairs():
    """Slots above 15 do not fit the two-in-one opcodes of 3.13: 20 stack parameters push the locals up."""
    scope = {}
    items = ", ".join(f"{i}" for i in range(20))
    exec(
        f"def f(a, b):\n    c = a\n    d = c\n    r = helper({items}, c + d)\n    a = c; b = d\n    return r, a + b",
        scope,
    )
    f = scope["f"]
    f.__globals__["helper"] = lambda *args: sum(args)
    for point in split_points(f.__code__):
        code, _ = split(f.__code__, point)
        assert as_hook(f, code)(1, 2) == f(1, 2)


def test_refusals():
    code = example.__code__
    instructions = decode(code)
    target = next(inst for inst in instructions if inst.opname == "BINARY_OP" and inst.argval == "*")
    value = StackSlot.VALUE
    with pytest.raises(InternalError, match="has 2 slots, not 1"):
        build_resume_code(code, instructions, target, [value], ["b"], "r")
    with pytest.raises(InternalError, match="no local variable"):
        build_resume_code(code, instructions, target, [value, value], ["nowhere"], "r")
    with pytest.raises(InternalError, match="not reachable"):
        build_resume_code(code, instructions, Instruction("NOP"), [], [], "r")


def test_generators_are_refused():
    def gen():
        yield 1

    instructions = decode(gen.__code__)
    with pytest.raises(InternalError, match="generator"):
        build_resume_code(gen.__code__, instructions, instructions[-1], [], [], "r")


def test_ambiguous_names_are_refused():
    x = 1

    def f(y):
        return [(lambda: x) for x in y], x

    instructions = decode(f.__code__)
    target = instructions[prologue_length(instructions)]
    if PY312:
        with pytest.raises(InternalError, match="two variables"):
            build_resume_code(f.__code__, instructions, target, [], ["y"], "r")
    else:
        assert build_resume_code(f.__code__, instructions, target, [], ["y"], "r").arg_names == ("y",)


def test_keyword_names_of_a_call_are_not_lost():
    def f(g):
        return g(1, k=2)

    instructions = decode(f.__code__)
    call = next(inst for inst in instructions if inst.opname.startswith("CALL"))
    layout = [StackSlot.VALUE] * stack_depths(instructions)[call]
    if call.opname == "CALL":
        with pytest.raises(InternalError, match="keyword names"):
            build_resume_code(f.__code__, instructions, call, layout, [], "r")
    else:
        layout[1] = StackSlot.NULL
        resume = build_resume_code(f.__code__, instructions, call, layout, [], "r")
        assert types.FunctionType(resume.code, {})(dict, 0 or {}, 2, ("k",)) == {"k": 2}


def test_transformed_code_adds_the_prologue():
    scale = 3

    def f(a, *rest, k):
        total = a
        return (lambda: total), scale, rest, k

    body = decode(f.__code__)[prologue_length(decode(f.__code__)) :]
    code = transformed_code(f.__code__, body)
    assert encode(decode(code), code) == code
    made = types.FunctionType(code, {}, None, None, f.__closure__)
    fn, *others = made(1, "k", (2, 3))
    assert fn() == 1 and others == [3, (2, 3), "k"]
    assert frame_arg_names(f.__code__) == ("a", "k", "rest")
