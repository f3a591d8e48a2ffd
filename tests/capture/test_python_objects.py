"""The interpreter runs Python as CPython does: classes, descriptors, operators, containers, the standard library."""

import pytest

from .cases_objects import TABLE
from .interpret import broken, same


@pytest.mark.parametrize("case", TABLE.agreeing, ids=lambda c: c[0].__name__)
def test_objects(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)


@pytest.mark.parametrize("case", TABLE.broken, ids=lambda c: c[0].__name__)
def test_objects_that_end_the_graph(case):
    broken(*case)
