"""`is` and `id()` of equal numbers, strings and bytes, which are one object in a call and several in another."""

import pytest
import torch

import argand
from helpers import collected

MADE = {
    "float": lambda: float("2.5"),
    "int": lambda: int("1000000"),
    "complex": lambda: complex("1+2j"),
    "str": lambda: "".join(("a", "b")),
    "bytes": lambda: bytes([1, 2, 3]),
}


def program(x, a, b):
    return x + 1, a is b, a is not b, id(a) == id(b), id(a) in {id(b)}


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("kind", MADE)
def test_equal_values_that_are_one_object_or_two(kind, dynamic):
    compiled = argand.compile(program, backend="eager", dynamic=dynamic)
    one, two, three = (MADE[kind]() for _ in range(3))
    for a, b in ((one, one), (one, two), (two, two), (three, one), (one, one)):
        assert compiled(torch.ones(1), a, b)[1:] == program(torch.ones(1), a, b)[1:]


def test_values_behind_attributes_and_items():
    class Box:
        pass

    def program(x, o, d):
        return x * 2, o.value is d["k"]

    compiled = argand.compile(program, backend="eager")
    box, shared = Box(), "".join(("x", "y"))
    for value, item in ((shared, shared), ("".join(("x", "y")), shared), (shared, "".join(("x", "y")))):
        box.value = value
        assert compiled(torch.ones(1), box, {"k": item})[1] == program(torch.ones(1), box, {"k": item})[1]


def test_values_that_cpython_has_one_object_of_compile_once():
    compiled = argand.compile(program, backend="eager", dynamic=False)
    with collected("captured") as seen:
        for a, b in ((3, 3), (int("3"), 3)):
            assert compiled(torch.ones(1), a, b)[1:] == program(torch.ones(1), a, b)[1:]
    assert len(seen) == 1


def test_equal_values_that_are_only_compared_compile_once():
    def program(x, a, b):
        return x + 1, a == b, a in (b, 1.0)

    compiled = argand.compile(program, backend="eager", dynamic=False)
    with collected("captured") as seen:
        for _ in range(3):
            assert compiled(torch.ones(1), float("2.5"), float("2.5"))[1:] == (True, True)
    assert len(seen) == 1


def test_namespaces_of_classes_are_new_objects_at_each_read():
    class Local:
        field = 1

    def program(x, cls):
        one, two = cls.__dict__, vars(cls)
        return x + 1, one, two, one is two, one["field"]

    compiled = argand.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        _, one, two, same, field = compiled(torch.ones(1), Local)
        assert one is not two and not same and field == 1
        assert type(one) is type(two) is type(vars(Local)) and one == vars(Local)
