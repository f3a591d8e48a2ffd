"""The interpreter runs Python as CPython does: control flow, calls, closures, exceptions, with, generators, match."""

import pytest

from .cases_core import TABLE
from .interpret import broken, same


@pytest.mark.parametrize("case", TABLE.agreeing, ids=lambda c: c[0].__doc__ or c[0].__name__)
def test_core(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)


@pytest.mark.parametrize("case", TABLE.broken, ids=lambda c: c[0].__name__)
def test_core_that_end_the_graph(case):
    broken(*case)
