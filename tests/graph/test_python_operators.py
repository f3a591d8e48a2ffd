"""The table of Python's operators: it has all that bytecode can say, and what it says of them is so."""

import numpy
import pytest
import torch

from argand._core import _C
from argand.bytecode.opcodes import BINARY_OPS, CMP_OPS, all_opnames
from argand.graph.python_operators import ARITHMETIC, BINARY, COMPARE, COMPARISONS, UNARY

ALL = (*BINARY.values(), *COMPARE.values(), *UNARY)


def test_every_operator_of_the_bytecode_has_a_row():
    assert set(BINARY) == set(BINARY_OPS)
    assert set(COMPARE) == set(CMP_OPS[:6])
    assert {op.opcode for op in UNARY} <= all_opnames((3, 11))


class Spy:
    """Says which of its methods was asked."""


def _spy(name):
    return lambda self, *operands: name


for _op in ALL:
    for _name in {_op.method, getattr(_op, "inplace", "")} - {""}:
        setattr(Spy, _name, _spy(_name))


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.symbol)
def test_methods_are_those_that_cpython_asks(op):
    operands = (Spy(),) if op in UNARY else (Spy(), object())
    assert op.native(*operands) == (getattr(op, "inplace", "") or op.method)


@pytest.mark.parametrize("op", [*ARITHMETIC.values(), *COMPARE.values()], ids=lambda op: op.symbol)
def test_reflected_methods_are_those_that_cpython_asks(op):
    right = type("Right", (), {op.reflected: _spy(op.reflected)})()
    assert op.native(object(), right) == op.reflected


@pytest.mark.parametrize("op", COMPARISONS.values(), ids=lambda op: op.symbol)
def test_mirrors_and_opposites(op):
    for a, b in ((1, 2), (2, 1), (1, 1)):
        assert op.native(a, b) is COMPARISONS[op.mirror].native(b, a)
        assert op.native(a, b) is not COMPARISONS[op.opposite].native(a, b)


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.symbol)
def test_numpy_and_torch_know_the_names(op):
    assert getattr(numpy, op.ufunc).__name__
    assert all(callable(getattr(torch.Tensor, name)) for name in op.torch)


@pytest.mark.parametrize("op", [*ARITHMETIC.values(), *COMPARE.values(), *UNARY], ids=lambda op: op.symbol)
def test_guards_compute_what_the_table_says(op):
    tree = _C.GuardTree()
    number = ("slot", tree.slot(tree.child(0, "local", 0), "int"))
    operands = (number,) if op in UNARY else (number, 2)
    program = (*operands, op.name) if op in COMPARE.values() else (*operands, op.name, 1000, "lt")
    if op.guard:
        tree.check_expr(program, label="")
        assert tree.num_guards == 1
    else:  # "and" and "or" are of conditions there, and no operators
        with pytest.raises((TypeError, ValueError)):
            tree.check_expr(program, label="")
