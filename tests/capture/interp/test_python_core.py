"""The interpreter runs Python as CPython does: control flow, calls, closures, exceptions, with, generators, match."""

import pytest

from . import cases_control, cases_exceptions, cases_generators
from .interpret import broken, same

TABLES = (cases_control.TABLE, cases_exceptions.TABLE, cases_generators.TABLE)


@pytest.mark.parametrize(
    "case", [case for table in TABLES for case in table.agreeing], ids=lambda c: c[0].__doc__ or c[0].__name__
)
def test_core(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)


@pytest.mark.parametrize("case", [case for table in TABLES for case in table.broken], ids=lambda c: c[0].__name__)
def test_core_that_end_the_graph(case):
    broken(*case)
