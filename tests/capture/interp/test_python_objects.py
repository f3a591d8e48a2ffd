"""The interpreter runs Python as CPython does: classes, descriptors, operators, containers, the standard library."""

import pytest

from . import cases_classes, cases_library, cases_operators
from .interpret import broken, same

TABLES = (cases_classes.TABLE, cases_operators.TABLE, cases_library.TABLE)


@pytest.mark.parametrize("case", [case for table in TABLES for case in table.agreeing], ids=lambda c: c[0].__name__)
def test_objects(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)


@pytest.mark.parametrize("case", [case for table in TABLES for case in table.broken], ids=lambda c: c[0].__name__)
def test_objects_that_end_the_graph(case):
    broken(*case)
