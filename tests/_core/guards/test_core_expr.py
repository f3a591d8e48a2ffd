"""Number slots and expression checks: Python's semantics, in walks and in replays, by learnt layout and by asking torch."""

from __future__ import annotations

import math
import operator
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sweeps
from argand._core import _C

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

INT64 = range(-(2**63), 2**63)
LIMIT = 2**53


class Beyond(Exception):
    """What the C core does not compute: the guard must fail."""


def whole(value: Any) -> Any:
    if type(value) is int and value not in INT64:
        raise Beyond
    return value


def true_division(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int and max(abs(a), abs(b)) > LIMIT:
        raise Beyond
    return a / b


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "truediv": true_division,
    "min": min,
    "max": max,
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "float": float,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}
LOGICAL: dict[str, Callable[[Any, Any], bool]] = {"and": lambda a, b: a and b, "or": lambda a, b: a or b}


def python_answer(program: tuple[Any, ...], values: list[Any]) -> bool:
    """What the program means in Python; False where the guard must fail because it cannot be computed."""
    stack: list[Any] = []
    try:
        for item in program:
            if isinstance(item, tuple):
                stack.append(values[item[1]])
            elif not isinstance(item, str):
                stack.append(item)
            elif item == "not":
                stack.append(not stack.pop())
            elif item in UNARY:
                stack.append(whole(UNARY[item](stack.pop())))
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(whole((BINARY | COMPARE | LOGICAL)[item](left, right)))
    except (Beyond, ZeroDivisionError, OverflowError, ValueError):
        return False
    assert len(stack) == 1 and isinstance(stack[0], bool)
    return stack[0]


# ---- random programs ----------------------------------------------------------------------------------------------------

SMALL = st.integers(-12, 12)
EDGES = st.sampled_from([2**63 - 1, -(2**63), 2**62, 2**53, 2**53 + 1, -(2**53) - 1, 2**31, 0, 1, -1, 5040])
INTS = SMALL | EDGES | st.integers(-(2**63), 2**63 - 1)
FLOATS = (
    st.sampled_from(
        [0.0, -0.0, 0.5, -2.5, 1.5, 3.5, 1e300, -1e300, float("inf"), float("-inf"), float("nan"), 2.0**63, 2.0**53]
    )
    | st.floats()
    | SMALL.map(float)
)
INT_SLOTS, FLOAT_SLOTS = 3, 2
Typed = tuple[str, tuple[Any, ...]]


def leaves() -> st.SearchStrategy[Typed]:
    return (
        st.integers(0, INT_SLOTS - 1).map(lambda i: ("int", (("slot", i),)))
        | st.integers(0, FLOAT_SLOTS - 1).map(lambda i: ("float", (("slot", INT_SLOTS + i),)))
        | INTS.map(lambda v: ("int", (v,)))
        | FLOATS.map(lambda v: ("float", (v,)))
    )


def binary(parts: tuple[Typed, Typed, str]) -> Typed:
    (a, x), (b, y), op = parts
    if op in ("min", "max") and a != b:
        x, y, a = (x, (*y, "float"), "float") if a == "float" else ((*x, "float"), y, "float")
    return ("float" if "float" in (a, b) or op == "truediv" else "int", (*x, *y, op))


def unary(parts: tuple[Typed, str]) -> Typed:
    (a, x), op = parts
    kind = "float" if op in ("float", "sqrt") else "int" if op in ("floor", "ceil", "trunc", "round") else a
    return (kind, (*x, op))


NUMBERS = st.recursive(
    leaves(),
    lambda inner: (
        st.tuples(inner, inner, st.sampled_from(sorted(BINARY))).map(binary)
        | st.tuples(inner, st.sampled_from(sorted(UNARY))).map(unary)
    ),
    max_leaves=8,
)
COMPARISONS = st.tuples(NUMBERS, NUMBERS, st.sampled_from(sorted(COMPARE))).map(lambda p: (*p[0][1], *p[1][1], p[2]))
PROGRAMS = st.recursive(
    COMPARISONS,
    lambda inner: (
        st.tuples(inner, inner, st.sampled_from(sorted(LOGICAL))).map(lambda p: (*p[0], *p[1], p[2]))
        | inner.map(lambda p: (*p, "not"))
    ),
    max_leaves=3,
)
VALUES = st.tuples(*[INTS] * INT_SLOTS, *[FLOATS] * FLOAT_SLOTS).map(list)


def tree_of(program: tuple[Any, ...]) -> _C.GuardTree:
    tree = _C.GuardTree()
    for i in range(INT_SLOTS):
        assert tree.slot(tree.child(0, "local", i), "int") == i
    for i in range(INT_SLOTS, INT_SLOTS + FLOAT_SLOTS):
        assert tree.slot(tree.child(0, "local", i), "float") == i
    tree.check_expr(program, label="expression")
    return tree


@settings(max_examples=sweeps.part(750), deadline=None)
@given(PROGRAMS, st.lists(VALUES, min_size=1, max_size=4))
@example(
    (("slot", 0), ("slot", 1), "floordiv", -2, "eq"),
    [[-3, 2, 0, 0.0, 0.0], [3, -2, 0, 0.0, 0.0], [-(2**63), -1, 0, 0.0, 0.0]],
)
@example(
    (("slot", 0), ("slot", 1), "mod", 1, "eq"),
    [[-3, 2, 0, 0.0, 0.0], [3, -2, 0, 0.0, 0.0], [-(2**63), -1, 0, 0.0, 0.0]],
)
@example(
    (("slot", 0), ("slot", 3), "eq"),
    [[2**53 + 1, 0, 0, 2.0**53, 0.0], [2**63 - 1, 0, 0, 2.0**63, 0.0], [-(2**63), 0, 0, -(2.0**63), 0.0]],
)
@example(
    (("slot", 3), ("slot", 4), "floordiv", 0.0, "eq"),
    [[0, 0, 0, 1.0, -0.1], [0, 0, 0, -1.0, 0.1], [0, 0, 0, 1e300, 1e-300]],
)
def test_programs_mean_what_python_means(program: tuple[Any, ...], assignments: list[list[Any]]) -> None:
    tree = tree_of(program)
    for values in assignments:
        expected = python_answer(program, values)
        assert tree.matches(tuple(values)) is expected, values
        explained = tree.evaluate(tuple(values))
        assert (explained is True) is expected
        if not expected:
            assert explained[:2] == (0, "expression")  # type: ignore[index]
            assert isinstance(explained[2], str)  # type: ignore[index]


@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_division_rounds_down_for_every_sign(op: str) -> None:
    tree = tree_of((("slot", 0), ("slot", 1), op, ("slot", 2), "eq"))
    for a in range(-9, 10):
        for b in range(-4, 5):
            if b == 0:
                assert not tree.matches((a, b, 0, 0.0, 0.0))
                continue
            right = a // b if op == "floordiv" else a % b
            assert tree.matches((a, b, right, 0.0, 0.0)) and not tree.matches((a, b, right + 1, 0.0, 0.0))


OVERFLOWS: dict[str, tuple[tuple[Any, ...], tuple[int, int]]] = {
    "add": ((("slot", 0), ("slot", 1), "add", 0, "ne"), (2**63 - 1, 1)),
    "sub": ((("slot", 0), ("slot", 1), "sub", 0, "ne"), (-(2**63), 1)),
    "mul": ((("slot", 0), ("slot", 1), "mul", 0, "ne"), (2**32, 2**31)),
    "neg": ((("slot", 0), "neg", 0, "ne"), (-(2**63), 1)),
    "abs": ((("slot", 0), "abs", 0, "ne"), (-(2**63), 1)),
    "floordiv": ((("slot", 0), ("slot", 1), "floordiv", 0, "ne"), (-(2**63), -1)),
    "floor": ((("slot", 0), "float", "floor", 0, "ne"), (2**63 - 1, 0)),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_overflow_fails_the_guard(name: str) -> None:
    program, (a, b) = OVERFLOWS[name]
    tree = tree_of(program)
    assert tree.matches((6, 1, 0, 0.0, 0.0))
    explained = tree.evaluate((a, b, 0, 0.0, 0.0))
    assert explained is not True and explained[2].endswith(": a number beyond 64 bits")
    assert not tree.matches((a, b, 0, 0.0, 0.0))


def test_what_python_raises_for_is_named() -> None:
    zero = tree_of((1, ("slot", 0), "mod", 0, "eq")).evaluate((0, 0, 0, 0.0, 0.0))
    assert zero == (0, "expression", "local[0] is 0: division by zero")
    root = tree_of((("slot", 3), "sqrt", 0.0, "ge")).evaluate((0, 0, 0, -1.0, 0.0))
    assert root == (0, "expression", "local[3] is -1.0: square root of a negative")


# ---- building -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ((), ValueError),
        ((1,), ValueError),
        ((1, 2, "eq", 3), ValueError),
        (("eq",), ValueError),
        ((1, "add"), ValueError),
        ((1, 2, "power"), ValueError),
        ((("slot", 9), 1, "eq"), ValueError),
        ((("slot", -1), 1, "eq"), ValueError),
        ((("hole", 0), 1, "eq"), ValueError),
        (((), 1, "eq"), ValueError),
        ((True, 1, "add", 1, "eq"), TypeError),
        ((1, 2, "and"), TypeError),
        ((1, "not"), TypeError),
        ((1, 2.0, "min", 1, "eq"), TypeError),
        ((None, 1, "eq"), TypeError),
        ((2**63, 1, "eq"), OverflowError),
        ([1, 1, "eq"], TypeError),
        ((*[1] * 200, *["add"] * 199, 3, "eq"), ValueError),
    ],
)
def test_wrong_programs(program: Any, error: type[Exception]) -> None:
    tree = tree_of((1, 1, "eq"))
    with pytest.raises(error):
        tree.check_expr(program, label="wrong")
    assert tree.num_guards == 1


def test_wrong_slots() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    for call in (
        lambda: tree.slot(0, "int"),
        lambda: tree.slot(7, "int"),
        lambda: tree.slot(node, "size", -1),
        lambda: tree.slot("x", "int"),  # type: ignore[arg-type]
        lambda: tree.slot(node, "int", name=3),  # type: ignore[arg-type]
        lambda: tree.slot(node, "int", hint="3"),  # type: ignore[arg-type]
        lambda: tree.slot(node, "int", 0),
        lambda: tree.slot(node, "size"),
        lambda: tree.slot(node, "offset"),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


def test_slots_and_checks_are_made_once() -> None:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    first = tree.slot(node, "int", name="n")
    assert tree.slot(node, "int") == first and tree.slot(node, "float") != first
    assert tree.slot(node, "size", 1) == tree.slot(node, "size", 1) != tree.slot(node, "size", 0)
    one = tree.check_expr((("slot", first), 2, "ge"), label="n >= 2")
    assert tree.check(0, "expr", (("slot", first), 2, "ge"), label="again") == one
    assert tree.check_expr((("slot", first), 3, "ge"), label="n >= 3") != one
    assert tree.checks_of(0) == [(0, "expr"), (1, "expr")]
    assert tree.describe() == ["n >= 2", "n >= 3"]


def test_slots_that_no_expression_uses_ask_nothing() -> None:
    tree = _C.GuardTree()
    tree.slot(tree.child(0, "local", 0), "int")
    assert tree.matches(("no int",))


def test_texts() -> None:
    tree = _C.GuardTree()
    n = tree.slot(tree.child(0, "local", 0), "int", name="L['n']", hint=8)
    scale = tree.slot(tree.child(0, "local", 1), "float", name="L['scale']", hint=0.5)
    tree.check_expr((("slot", n), 8, "mod", 0, "eq"), label="L['n'] % 8 == 0")
    tree.check_expr((("slot", n), ("slot", scale), "mul", ("slot", n), "lt"), label="L['n'] * L['scale'] < L['n']")
    assert tree.evaluate((16, 0.25)) is True
    assert tree.evaluate((10, 0.5)) == (0, "L['n'] % 8 == 0", "L['n'] was 8, is 10")
    assert tree.evaluate((16, 2.0)) == (
        1,
        "L['n'] * L['scale'] < L['n']",
        "L['n'] was 8, is 16; L['scale'] was 0.5, is 2.0",
    )
    assert tree.evaluate((True, 0.5)) == (0, "L['n'] % 8 == 0", "expected an int, found bool")
    assert tree.evaluate((2**63, 0.5))[2] == "expected an int of at most 64 bits, found a longer int"  # type: ignore[index]
    assert tree.evaluate((8, 1)) == (1, "L['n'] * L['scale'] < L['n']", "expected a float, found int")


# ---- below other things: recordings -------------------------------------------------------------------------------------


class Thing:
    def __init__(self) -> None:
        self.size = 8
        self.scale = 0.5
        self.listed = [4, 5]
        for i in range(12):
            setattr(self, f"a{i}", i)


def thing_tree(thing: Thing) -> _C.GuardTree:
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    tree.check(node, "type", Thing, label="type")
    space = tree.child(node, "instance_dict")
    for i in range(12):
        tree.check(tree.child(space, "dict_item", f"a{i}"), "equals", i, label=f"a{i}")
    size = tree.slot(tree.child(space, "dict_item", "size"), "int")
    scale = tree.slot(tree.child(space, "dict_item", "scale"), "float")
    listed = tree.child(space, "dict_item", "listed")
    tree.check(listed, "type", list, label="list")
    item = tree.slot(tree.child(listed, "sequence_item", 1), "int")
    called = tree.slot(tree.child(node, "call", lambda t: t.size * 1), "int")
    tree.check_expr((("slot", size), ("slot", item), "mod", 3, "eq"), label="size % item == 3")
    tree.check_expr((("slot", size), ("slot", scale), "mul", 4.0, "eq"), label="size * scale == 4")
    tree.check_expr((("slot", size), ("slot", called), "eq"), label="size == call")
    return tree


THING_CHANGES: dict[str, tuple[Callable[[Thing], Any], bool]] = {
    "size": (lambda t: setattr(t, "size", 13), False),
    "size and scale": (lambda t: t.__dict__.update(size=28, scale=1 / 7), True),
    "no int": (lambda t: setattr(t, "size", 8.0), False),
    "bool": (lambda t: setattr(t, "size", True), False),
    "item": (lambda t: t.listed.__setitem__(1, 6), False),
    "item and nothing else": (lambda t: t.listed.__setitem__(0, 99), True),
    "zero": (lambda t: t.listed.__setitem__(1, 0), False),
    "gone": (lambda t: delattr(t, "scale"), False),
    "unrelated": (lambda t: setattr(t, "other", 1), True),
}


@pytest.mark.parametrize("name", THING_CHANGES)
def test_recordings_read_numbers_anew(name: str) -> None:
    change, holds = THING_CHANGES[name]
    thing = Thing()
    tree = thing_tree(thing)
    assert all(tree.matches((thing,)) for _ in range(6))
    change(thing)
    assert {tree.matches((thing,)) for _ in range(4)} == {holds}
    assert (tree.evaluate((thing,)) is True) is holds


def test_each_evaluation_has_its_own_numbers() -> None:
    """Threads that switch in the middle of an evaluation (a guard that runs Python code) keep their numbers apart."""
    tree = _C.GuardTree()
    nodes = [tree.child(0, "local", i) for i in range(40)]  # more than fit on the stack
    slots = [tree.slot(node, "int") for node in nodes]
    tree.check(nodes[20], "call", lambda x: random.random() < 2, True, label="switch")
    tree.check_expr((*[("slot", s) for s in slots[:2]], "add", ("slot", slots[39]), "eq"), label="sum")
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(400):
            args = [seed * 1000 + i] * 39
            if not tree.matches((*args, 2 * args[0])) or tree.matches((*args, 2 * args[0] + 1)):
                wrong.append(args[0])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- tensors ------------------------------------------------------------------------------------------------------------

needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")


@pytest.fixture(params=["by layout", "by attributes"])
def layout(request: pytest.FixtureRequest) -> Any:
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor)
    found = _C.learn_tensor_layout(request.param == "by layout")
    if request.param == "by layout" and found is None:
        pytest.skip("the layout of this build of torch cannot be learnt: guards ask torch")
    assert (found is not None) == (request.param == "by layout")
    yield request.param
    _C.learn_tensor_layout(True)


def dynamic_tree(x: Any, y: Any, padding: int = 0) -> _C.GuardTree:
    """x: (s0, 4) contiguous; y: (s0, s1) of any strides with 4 <= s1."""
    tree = _C.GuardTree()
    a, b = tree.child(0, "local", 0), tree.child(0, "local", 1)
    tree.check(a, "tensor", *_C.tensor_guard_args(x, (0,), ()), label="x")
    tree.check(b, "tensor", *_C.tensor_guard_args(y, (0, 1), (0, 1)), label="y")
    s0 = tree.slot(a, "size", 0, name="L['x'].size()[0]", hint=x.shape[0])
    rows = tree.slot(b, "size", 0, name="L['y'].size()[0]", hint=y.shape[0])
    s1 = tree.slot(b, "size", 1, name="L['y'].size()[1]", hint=y.shape[1])
    stride = tree.slot(b, "stride", 0, name="L['y'].stride()[0]", hint=y.stride(0))
    tree.check_expr((("slot", s0), 2, "ge"), label="L['x'].size()[0] >= 2")
    tree.check_expr((("slot", s0), ("slot", rows), "eq"), label="L['x'].size()[0] == L['y'].size()[0]")
    tree.check_expr((("slot", s1), 4, "ge"), label="L['y'].size()[1] >= 4")
    tree.check_expr((("slot", stride), ("slot", s1), "ge"), label="rows of y do not overlap")
    return tree


@needs_torch
def test_sizes_and_strides(layout: str) -> None:
    x, y = torch.zeros(8, 4), torch.zeros(8, 6)
    tree = dynamic_tree(x, y)

    def why(a: Any, b: Any) -> Any:
        explained = tree.evaluate((a, b))
        assert all(tree.matches((a, b)) is (explained is True) for _ in range(3))
        return explained if explained is True else explained[1:]

    assert why(x, y) is True
    for n in range(2, 20):
        assert why(torch.zeros(n, 4), torch.zeros(n, n + 3)) is True
    assert why(torch.zeros(1, 4), torch.zeros(1, 6)) == ("L['x'].size()[0] >= 2", "L['x'].size()[0] was 8, is 1")
    assert why(torch.zeros(9, 4), y) == (
        "L['x'].size()[0] == L['y'].size()[0]",
        "L['x'].size()[0] was 8, is 9; L['y'].size()[0] was 8, is 8",
    )
    assert why(x, torch.zeros(6, 8).t()) == (
        "rows of y do not overlap",
        "L['y'].stride()[0] was 6, is 1; L['y'].size()[1] was 6, is 6",
    )
    base = torch.zeros(10, 4)
    assert why(base[1:9], y) is True
    assert why(x, torch.zeros(8))[0] == "y"  # another rank
    assert why(torch.zeros(8, 5), y)[0] == "x"


@needs_torch
def test_rank_six_and_more(layout: str) -> None:
    x = torch.zeros(1, 2, 3, 4, 5, 6, 7)
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    tree.check(node, "tensor", *_C.tensor_guard_args(x, (6,), range(7)), label="x")
    last, first = tree.slot(node, "size", 6), tree.slot(node, "stride", 0)
    tree.check_expr((("slot", last), 720, "mul", ("slot", first), "eq"), label="dense")
    assert tree.evaluate((x,)) is True and tree.matches((torch.zeros(1, 2, 3, 4, 5, 6, 9),))
    assert not tree.matches((torch.zeros(1, 2, 3, 4, 5, 6, 9)[..., :7],))


@needs_torch
@pytest.mark.parametrize("special", ["sparse", "conj", "subclass", "nothing guarded"])
def test_tensors_that_torch_is_asked_about(special: str, layout: str) -> None:
    make: dict[str, Callable[[int], Any]] = {
        "sparse": lambda n: torch.eye(n, 3).to_sparse(),
        "conj": lambda n: torch.zeros(n, 3, dtype=torch.complex64).conj(),
        "subclass": lambda n: torch.nn.Parameter(torch.zeros(n, 3)),
        "nothing guarded": lambda n: torch.zeros(n, 3),
    }
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    if special != "nothing guarded":
        tree.check(node, "tensor", *_C.tensor_guard_args(make[special](8), (0,), (0, 1)), label="x")
    size = tree.slot(node, "size", 0)
    tree.check_expr((("slot", size), 8, "mod", 0, "eq"), label="multiple")
    for n in (8, 9, 16, 17):
        assert tree.matches((make[special](n),)) is (n % 8 == 0)
    explained = tree.evaluate((3,))
    assert explained is not True and "found int" in explained[2]


@needs_torch
def test_a_dim_that_is_not_there() -> None:
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor)
    tree = _C.GuardTree()
    slot = tree.slot(tree.child(0, "local", 0), "size", 2)
    tree.check_expr((("slot", slot), 0, "ge"), label="third")
    assert tree.matches((torch.zeros(1, 2, 3),))
    assert tree.evaluate((torch.zeros(1, 2),)) == (0, "third", "expected a tensor with a size at dim 2, found Tensor")


@needs_torch
def test_sizes_below_a_module_in_recordings(layout: str) -> None:
    class Holder:
        def __init__(self) -> None:
            self.weight = torch.zeros(8, 4)
            for i in range(14):
                setattr(self, f"a{i}", i)

    holder = Holder()
    tree = _C.GuardTree()
    node = tree.child(0, "local", 0)
    tree.check(node, "type", Holder, label="type")
    space = tree.child(node, "instance_dict")
    for i in range(14):
        tree.check(tree.child(space, "dict_item", f"a{i}"), "equals", i, label=f"a{i}")
    weight = tree.child(space, "dict_item", "weight")
    tree.check(weight, "tensor", *_C.tensor_guard_args(holder.weight, (0,), ()), label="weight")
    rows, other = tree.slot(weight, "size", 0), tree.slot(tree.child(0, "local", 1), "size", 0)
    tree.check_expr((("slot", rows), ("slot", other), "eq"), label="rows")
    assert all(tree.matches((holder, torch.zeros(8))) for _ in range(6))
    assert not tree.matches((holder, torch.zeros(9)))
    holder.weight.resize_(9, 4)  # in place: no dict changes
    assert [tree.matches((holder, torch.zeros(n))) for n in (8, 9, 9, 8)] == [False, True, True, False]
    holder.weight.data = torch.zeros(5, 4)
    assert [tree.matches((holder, torch.zeros(n))) for n in (9, 5, 5)] == [False, True, True]
    holder.weight = torch.zeros(6, 4)
    assert [tree.matches((holder, torch.zeros(n))) for n in (5, 6, 6)] == [False, True, True]
